/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof stat TARGET --domains: which models and settings the values of a namespace belong to, and
 * how much room each takes. kvof rm TARGET --domain D: deletes all values of one.
 *
 * The tag of a value's domain is in its footer, its last 64 bytes, and a Retrieve gives values from
 * their beginning: so each value that is looked at is read whole. stat looks at a sample when there
 * are many; rm at every value, before it deletes the first.
 *
 * Domain lists are values too. One is believed when its footer and checksum are good and it lies
 * under the key of the model that its first entry names.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "cache/domains.h"
#include "cache/frame.h"
#include "cmd/cmd.h"
#include "cmd/domains.h"
#include "nvme/kv.h"

#define PAGE_BYTES (64 * KiB)
#define SAMPLE_KEYS 4096               /* more are counted, not read, by stat */
#define SLOTS_MAX 16                   /* reads in flight */
#define SLOTS_BYTES (64 * MiB)         /* of them together */
#define LISTED_MAX 256                 /* domains that are named */
#define TAGS (1 << 16)
#define TEXT_MAX 400

struct listed {
	uint16_t tag;
	char text[TEXT_MAX];
};

struct share {
	uint64_t values, bytes;
};

struct scan;

struct slot {
	struct host_op op;
	struct iovec iov;
	struct scan *scan;
	size_t at;                     /* of scan->key */
	int res;
	bool flying;
};

struct scan {
	const char *command;
	struct cmd_link link;
	struct cmd_common common;
	uint64_t keys;                 /* of the namespace */
	struct kv_key *key;            /* those that are read */
	uint16_t *tag;                 /* of each; 0: none, or not a value of ours */
	size_t key_count, key_room;
	bool all;                      /* every key is read */
	bool opened;
	struct prng rng;
	uint64_t gone, foreign_values, foreign_bytes, list_values;
	struct share share[TAGS];
	struct listed listed[LISTED_MAX];
	unsigned listed_count;
	uint8_t *buffer;
	uint32_t value_bytes_max;
	struct slot slot[SLOTS_MAX];
	unsigned slots, flying;
};

/* --- keys ------------------------------------------------------------------------------------- */

/* Return: false: no memory. */
static bool key_add(struct scan *s, const struct kv_key *key)
{
	s->keys++;
	if (!s->all && s->key_count == SAMPLE_KEYS) {
		/* each key is in the sample with the same probability */
		uint64_t at = prng_below(&s->rng, s->keys);

		if (at < SAMPLE_KEYS)
			s->key[at] = *key;
		return true;
	}
	if (s->key_count == s->key_room) {
		size_t room = s->key_room != 0 ? s->key_room * 2 : SAMPLE_KEYS;
		struct kv_key *more = realloc(s->key, room * sizeof(*more));

		if (more == NULL)
			return false;
		s->key = more;
		s->key_room = room;
	}
	s->key[s->key_count++] = *key;
	return true;
}

/* One page from *from, which was seen already unless first. -1 go on, else a code. */
static int keys_page(struct scan *s, struct kv_key *from, bool first, bool *more)
{
	uint32_t bytes = (uint32_t)bytes_min(PAGE_BYTES, s->value_bytes_max);
	struct iovec iov = {s->buffer, bytes};
	struct host_op op = {
		.kind = HOST_LIST, .key = *from, .iov = &iov, .iov_count = 1, .bytes = bytes,
	};
	struct kv_key key, before = *from;
	struct nv_kv_list_in in;
	int rc = cmd_link_op(&s->link, &op);

	if (rc != 0)
		return cmd_link_result(&s->link, "list of keys", rc);
	*more = false;
	rc = nv_kv_list_open(&in, s->buffer, op.moved_bytes);
	while (rc == 0 && (rc = nv_kv_list_next(&in, &key)) == 1) {
		rc = kv_key_compare(&key, from) < 0 ? -EPROTO : 0;
		if (rc != 0 || (!first && kv_key_equal(&key, &before)))
			continue;
		*from = key;
		*more = true;
		first = false;
		before = (struct kv_key){0};
		if (!key_add(s, &key)) {
			cmd_error(s->command, "no memory");
			return CMD_FAILED;
		}
	}
	if (rc >= 0)
		return -1;
	cmd_error(s->command, "%s: the list of keys is not well formed", s->link.target);
	return CMD_FAILED;
}

static int keys_read(struct scan *s)
{
	struct kv_key from = {0};
	bool first = true, more = true;
	int rc = -1;

	while (rc < 0 && more) {
		rc = keys_page(s, &from, first, &more);
		first = false;
	}
	return rc;
}

/* --- values ----------------------------------------------------------------------------------- */

static void list_take(struct scan *s, const uint8_t *at, size_t bytes)
{
	struct domains_entry entry;
	size_t next = 0;

	while (domains_next(at, bytes, &next, &entry)) {
		uint16_t tag = domains_entry_tag(&entry);
		struct listed l = {.tag = tag};
		unsigned i = 0;

		domains_text(&entry, l.text, sizeof(l.text));
		while (i < s->listed_count && (s->listed[i].tag != tag ||
					       strcmp(s->listed[i].text, l.text) != 0))
			i++;
		if (i == s->listed_count && i < LISTED_MAX)
			s->listed[s->listed_count++] = l;
	}
}

/* Is it the domain list of the model it names? */
static bool is_list(const uint8_t *at, size_t bytes, const struct frame *f)
{
	struct domains_entry entry;
	struct kvof_id id;
	char model[256];
	size_t next = 0;

	if (f->block_bytes != bytes || !domains_next(at, bytes, &next, &entry) ||
	    !domains_field(&entry, "model_id", model, sizeof(model)))
		return false;
	identity_domains(model, &id);
	return memcmp(&id, &f->identity, sizeof(id)) == 0 && hash_xxh3(at, bytes) == f->xxh3;
}

static void value_take(struct scan *s, struct slot *slot)
{
	uint32_t bytes = slot->op.value_bytes;
	const uint8_t *at = slot->iov.iov_base;
	struct frame_footer footer;
	struct frame f;

	if (slot->res == -ENOENT) {
		s->gone++;
		return;
	}
	if (slot->res != 0 || bytes < FRAME_BYTES || slot->op.moved_bytes != bytes) {
		s->foreign_values++;
		s->foreign_bytes += bytes;
		return;
	}
	memcpy(&footer, at + bytes - FRAME_BYTES, sizeof(footer));
	if (!frame_look(&footer, &f)) {
		s->foreign_values++;
		s->foreign_bytes += bytes;
	} else if (is_list(at, bytes - FRAME_BYTES, &f)) {
		s->list_values++;
		list_take(s, at, bytes - FRAME_BYTES);
	} else {
		s->tag[slot->at] = f.tag;
		s->share[f.tag].values++;
		s->share[f.tag].bytes += bytes;
	}
}

static void slot_over(struct slot *slot)
{
	slot->flying = false;
	slot->scan->flying--;
}

static void slot_done(struct host_op *op, int res)
{
	struct slot *slot = container_of(op, struct slot, op);

	slot->res = res;
	if (!op->busy)
		slot_over(slot);
}

static void slot_released(struct host_op *op)
{
	slot_over(container_of(op, struct slot, op));
}

static void slot_start(struct scan *s, struct slot *slot, enum host_op_kind kind, size_t at)
{
	uint8_t *room = s->buffer + (size_t)(slot - s->slot) * s->value_bytes_max;

	*slot = (struct slot){.scan = s, .at = at, .flying = true, .iov = {room, 0}};
	slot->op = (struct host_op){.kind = kind, .key = s->key[at], .done = slot_done,
		.released = slot_released,
		.deadline_ns = loop_now_ns(s->link.loop) + cmd_link_timeout_ns(&s->link)};
	if (kind == HOST_RETRIEVE) {
		slot->iov.iov_len = s->value_bytes_max;
		slot->op.iov = &slot->iov;
		slot->op.iov_count = 1;
		slot->op.bytes = s->value_bytes_max;
	}
	s->flying++;
	host_submit(s->link.host, &slot->op);
}

/* Waits for one of the slots that fly, or for all. */
static struct slot *slot_wait(struct scan *s, bool all)
{
	while (all ? s->flying > 0 : s->flying == s->slots)
		loop_turn(s->link.loop, 100 * NS_PER_MS);
	for (unsigned i = 0; i < s->slots; i++)
		if (!s->slot[i].flying && s->slot[i].scan != NULL)
			return &s->slot[i];
	return NULL;
}

/* Runs one operation for each key that `takes` says, some at once; done[] sees each. Return: -1, or
 * a code: the array is lost. */
static int each_key(struct scan *s, enum host_op_kind kind,
		    bool (*takes)(struct scan *s, size_t at),
		    void (*done)(struct scan *s, struct slot *slot))
{
	struct slot *slot;
	int rc = 0;

	memset(s->slot, 0, sizeof(s->slot));
	loop_turn(s->link.loop, 0);
	for (size_t at = 0; at <= s->key_count && rc == 0; at++) {
		bool end = at == s->key_count;

		if (!end && !takes(s, at))
			continue;
		while (rc == 0 && (slot = slot_wait(s, end)) != NULL) {
			if (slot->res == -ECONNRESET || slot->res == -ETIMEDOUT)
				rc = slot->res;
			done(s, slot);
			slot->scan = NULL;
		}
		for (unsigned i = 0; !end && i < s->slots; i++) {
			if (s->slot[i].scan != NULL)
				continue;
			slot_start(s, &s->slot[i], kind, at);
			break;
		}
	}
	while (s->flying > 0)
		loop_turn(s->link.loop, 100 * NS_PER_MS);
	return rc == 0 ? -1 : cmd_link_result(&s->link, "values", rc);
}

static bool takes_all(struct scan *s, size_t at)
{
	return true;
}

/* --- begin and end ---------------------------------------------------------------------------- */

static int scan_open(struct scan *s, const char *target)
{
	int rc = cmd_link_open(s->command, target, &s->common, &s->link);

	if (rc != 0)
		return rc;
	s->opened = true;
	s->rng = prng_of(1);
	s->value_bytes_max = host_ns(s->link.host)->value_bytes_max;
	s->slots = (unsigned)bytes_min(SLOTS_MAX, SLOTS_BYTES / s->value_bytes_max + 1);
	s->buffer = malloc((size_t)s->slots * s->value_bytes_max);
	if (s->buffer == NULL) {
		cmd_error(s->command, "no memory for %u values of %u bytes", s->slots,
			  s->value_bytes_max);
		return CMD_FAILED;
	}
	rc = keys_read(s);
	if (rc >= 0)
		return rc;
	s->tag = calloc(s->key_count + 1, sizeof(*s->tag));
	if (s->tag == NULL) {
		cmd_error(s->command, "no memory");
		return CMD_FAILED;
	}
	return each_key(s, HOST_RETRIEVE, takes_all, value_take);
}

static void scan_close(struct scan *s)
{
	if (s->opened)
		cmd_link_close(&s->link);
	free(s->key);
	free(s->tag);
	free(s->buffer);
	free(s);
}

static const struct listed *listed_find(const struct scan *s, uint16_t tag, unsigned skip)
{
	for (unsigned i = 0; i < s->listed_count; i++)
		if (s->listed[i].tag == tag && skip-- == 0)
			return &s->listed[i];
	return NULL;
}

/* --- stat ------------------------------------------------------------------------------------- */

/* What the sample says of all. */
static uint64_t of_all(const struct scan *s, uint64_t n)
{
	return s->key_count == s->keys || s->key_count == 0 ? n :
	       (uint64_t)((double)n * (double)s->keys / (double)s->key_count + 0.5);
}

static json_t *domain_json(const struct scan *s, uint16_t tag)
{
	char name[8];
	json_t *fields = json_array();

	snprintf(name, sizeof(name), "%04x", tag);
	for (unsigned i = 0; listed_find(s, tag, i) != NULL; i++)
		json_array_append_new(fields, json_string(listed_find(s, tag, i)->text));
	return json_pack("{s:s, s:o, s:I, s:I}", "domain", name, "fields", fields, "values",
			 (json_int_t)of_all(s, s->share[tag].values), "bytes",
			 (json_int_t)of_all(s, s->share[tag].bytes));
}

static int stat_json(const struct scan *s)
{
	json_t *domains = json_array();

	for (unsigned tag = 0; tag < TAGS; tag++)
		if (s->share[tag].values > 0 || listed_find(s, (uint16_t)tag, 0) != NULL)
			json_array_append_new(domains, domain_json(s, (uint16_t)tag));
	return cmd_json_print(s->command, json_pack("{s:b, s:I, s:I, s:I, s:I, s:o}",
		"exact", s->key_count == s->keys, "keys", (json_int_t)s->keys,
		"read", (json_int_t)s->key_count,
		"other_values", (json_int_t)of_all(s, s->foreign_values),
		"other_bytes", (json_int_t)of_all(s, s->foreign_bytes), "domains", domains),
		CMD_DONE);
}

static int stat_print(const struct scan *s)
{
	if (s->key_count == s->keys)
		printf("%llu values, all of them read\n", (unsigned long long)s->keys);
	else
		printf("%llu values; a sample of %zu was read, and the figures are estimates\n",
		       (unsigned long long)s->keys, s->key_count);
	printf("domain       values            bytes  fields\n");
	for (unsigned tag = 0; tag < TAGS; tag++) {
		const struct listed *l = listed_find(s, (uint16_t)tag, 0);

		if (s->share[tag].values == 0 && l == NULL)
			continue;
		printf("%04x   %12llu %16llu  %s\n", tag,
		       (unsigned long long)of_all(s, s->share[tag].values),
		       (unsigned long long)of_all(s, s->share[tag].bytes),
		       l != NULL ? l->text : tag == 0 ? "(without a tag)" : "(not listed)");
		for (unsigned i = 1; (l = listed_find(s, (uint16_t)tag, i)) != NULL; i++)
			printf("%39s%s (the same tag)\n", "", l->text);
	}
	if (s->foreign_values > 0)
		printf("other  %12llu %16llu  not stored by libkvof, or damaged\n",
		       (unsigned long long)of_all(s, s->foreign_values),
		       (unsigned long long)of_all(s, s->foreign_bytes));
	return cmd_output_end(s->command, CMD_DONE);
}

int domains_stat(const char *target, const struct cmd_common *common)
{
	struct scan *s = calloc(1, sizeof(*s));
	int rc;

	if (s == NULL)
		return CMD_FAILED;
	s->command = "stat";
	s->common = *common;
	s->common.any_kind = false;
	rc = scan_open(s, target);
	if (rc < 0)
		rc = common->json ? stat_json(s) : stat_print(s);
	scan_close(s);
	return rc;
}

/* --- rm --------------------------------------------------------------------------------------- */

static uint16_t rm_tag;
static uint64_t rm_values, rm_failed;

static bool takes_tag(struct scan *s, size_t at)
{
	return s->tag[at] == rm_tag;
}

static void rm_done(struct scan *s, struct slot *slot)
{
	rm_values += slot->res == 0;
	rm_failed += slot->res != 0 && slot->res != -ENOENT;
}

static int rm_run(struct scan *s, const char *domain)
{
	const struct listed *a = listed_find(s, rm_tag, 0), *b = listed_find(s, rm_tag, 1);
	uint64_t bytes = s->share[rm_tag].bytes;
	int rc;

	if (b != NULL) {
		cmd_error("rm", "domain %s is two domains with the same tag: \"%.100s\" and "
			  "\"%.100s\"; nothing was deleted", domain, a->text, b->text);
		return CMD_REFUSED;
	}
	rc = each_key(s, HOST_DELETE, takes_tag, rm_done);
	if (rc >= 0)
		return rc;
	if (rm_failed > 0) {
		cmd_error("rm", "%llu values of domain %s could not be deleted",
			  (unsigned long long)rm_failed, domain);
		return CMD_FAILED;
	}
	rc = rm_values > 0 ? CMD_DONE : CMD_MISS;
	if (s->common.json)
		return cmd_json_print("rm", json_pack("{s:s, s:I, s:I}", "domain", domain,
			"deleted", (json_int_t)rm_values, "bytes", (json_int_t)bytes), rc);
	if (rm_values == 0)
		cmd_error("rm", "%s has no value of domain %s", s->link.target, domain);
	else
		printf("%llu values, %llu bytes of domain %s deleted\n",
		       (unsigned long long)rm_values, (unsigned long long)bytes, domain);
	return cmd_output_end("rm", rc);
}

static bool tag_parse(const char *text, uint16_t *tag)
{
	char *end;
	unsigned long value = strtoul(text, &end, 16);

	*tag = (uint16_t)value;
	return strlen(text) == 4 && *end == '\0' && strspn(text, "0123456789abcdefABCDEF") == 4 &&
	       value != 0;
}

int domains_rm(int argc, char **argv)
{
	struct cmd_common common = {0};
	const char *domain = NULL, *arg[1];
	const struct cmd_opt opts[] = {
		{"domain", CMD_TEXT, &domain, "D", "four hex digits, as stat --domains shows"},
		{.name = NULL},
	};
	const struct cmd_opt shared[] = {CMD_COMMON_OPTS(&common), {.name = NULL}};
	const struct cmd_usage u = {
		.name = "rm", .args = "TARGET --domain D", .least = 1, .most = 1, .opts = opts,
		.common = shared,
		.what = "Deletes every value of one domain; reads all values to find them.",
	};
	struct scan *s;
	unsigned count;
	int rc = cmd_args(&u, argc, argv, arg, &count);

	if (rc >= 0)
		return rc;
	if (domain == NULL || !tag_parse(domain, &rm_tag)) {
		cmd_error("rm", "--domain \"%.40s\" is not four hex digits other than 0000; kvof "
			  "stat %.100s --domains lists them", domain != NULL ? domain : "", arg[0]);
		return CMD_USAGE;
	}
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return CMD_FAILED;
	s->command = "rm";
	s->common = common;
	s->all = true;
	rc = scan_open(s, arg[0]);
	if (rc < 0)
		rc = rm_run(s, domain);
	scan_close(s);
	return rc;
}
