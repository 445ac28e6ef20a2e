/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The set of drives, its namespaces open on the loops, and the target over them.
 *
 *	create  control thread: catalog ─ shards' loops: parts, store ─ space ─ first loop: target
 *	remove  first loop: target lets go ─ shards' loops: stores close ─ control thread: catalog
 *
 * A step on a loop is a call: a message there, and a semaphore that a control thread waits for;
 * before the loops run the calling thread turns them itself. If a step of create fails, those
 * before it are undone. The catalog rules: what flags say of a namespace that exists must agree
 * with it.
 *
 * Owned by the thread of the phase (array.h); `seen` and `collecting` by the first loop. While
 * serving, control threads change it one at a time (`change`). A removal lets go of that while it
 * waits for the target and the stores: a drive may hang. Other removals begin then; what would
 * write to the drives waits until it is known which of them hang (`closing`, `probing`). What lists
 * show is a copy (`known`), so that they wait for nobody.
 */
#include "cmd/array.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd/cmd.h"
#include "cmd/probe.h"

_Static_assert(SET_NAMESPACES_MAX == TARGET_NAMESPACES && SET_SUBSYSTEMS_MAX == TARGET_SUBSYSTEMS &&
	       SET_HOSTS_MAX == TARGET_HOSTS && STORE_SHARDS_MAX == TARGET_LOOPS,
	       "what the catalog can hold, the target can serve");

#define INDEX_KEY_BYTES 48
#define TURN_NS (1 * NS_PER_MS)
#define SILENT_NS (10 * NS_PER_S)    /* a drive that answers nothing for that long hangs */

struct shard {
	struct loop *loop;
	struct store *store;
	struct block *block;
	uint64_t keys;                               /* found when it was opened */
	struct disk_counts moved[STORE_DRIVES_MAX];  /* at the close, by drive of the array */
};

struct array_ns {
	struct set_ns ns;
	char nqn[SET_NQN_BYTES];
	struct shard shard[STORE_SHARDS_MAX];
	struct space *space;
	struct volume *volume;
	struct store_report report;
	struct array *array;
	bool leaving;                        /* is being removed */
};

struct array {
	struct set *set;
	struct array_opts opts;
	struct loop *set_loop;               /* of the whole drives' disks: never turns */
	struct loop *loop[ARRAY_LOOPS_MAX];
	struct buf_pool *pool[ARRAY_LOOPS_MAX];
	struct store_report report;
	char first_nqn[SET_NQN_BYTES];
	bool was_there[STORE_DRIVES_MAX], first, opened;
	bool memory, running;
	struct target *target;
	struct array_ns *ns[SET_NAMESPACES_MAX];
	unsigned ns_count;
	pthread_mutex_t change;              /* set, ns, closing */
	pthread_cond_t closed;
	unsigned closing;                    /* namespaces whose stores are being closed */
	bool probing;                        /* one that will write asks whether drives answer */
	bool silent[STORE_DRIVES_MAX];       /* drives that are not written to any more */
	pthread_mutex_t know;                /* known; taken last, held for a copy alone */
	struct array_known known;
	/* the first loop's */
	struct array_ns *seen[SET_NAMESPACES_MAX];
	unsigned seen_count, collecting;     /* seen is not changed while collecting */
	struct disk_counts gone[STORE_DRIVES_MAX];   /* of namespaces that were removed */
	struct call *idle_wait;              /* continue when nothing is being collected */
};

/* --- calls -------------------- */

struct call {
	struct msg msg;
	struct call *next;                   /* in idle_wait */
	struct array *array;
	struct array_ns *ns;
	unsigned shard;
	void (*run)(struct call *c);         /* ends by call_end(), now or later, on its loop */
	int rc;
	bool over;
	char why[256];
	sem_t *done;
};

static void call_end(struct call *c, int rc)
{
	must(!c->over);
	c->rc = rc;
	c->over = true;
	sem_post(c->done);                   /* the last that touches c */
}

static void call_arrived(struct loop *here, struct msg *m)
{
	struct call *c = container_of(m, struct call, msg);

	c->run(c);
}

/* It runs again when nothing is being collected; on the first loop. */
static void call_when_idle(struct call *c, void (*run)(struct call *c))
{
	must(c->array->collecting > 0);
	c->run = run;
	c->next = c->array->idle_wait;
	c->array->idle_wait = c;
}

/* Runs calls[i] on loop[i], all at once, and waits for all. Return: the first error. */
static int calls_run(struct array *a, struct call *calls, struct loop *const *loop, unsigned count)
{
	sem_t done;
	int rc = 0;

	must(count > 0 && sem_init(&done, 0, 0) == 0);
	for (unsigned i = 0; i < count; i++) {
		calls[i].array = a;
		calls[i].done = &done;
		calls[i].msg = (struct msg){.run = call_arrived};
		loop_post(loop[i], &calls[i].msg);
	}
	for (unsigned i = 0; i < count; i++) {
		while (!a->running && sem_trywait(&done) != 0)
			for (unsigned k = 0; k < a->opts.loop_count; k++)
				loop_turn(a->loop[k], TURN_NS);
		while (a->running && sem_wait(&done) != 0)
			must(errno == EINTR);
	}
	sem_destroy(&done);
	for (unsigned i = 0; rc == 0 && i < count; i++)
		rc = calls[i].rc;
	return rc;
}

static int call_first(struct array *a, struct call *c)
{
	return calls_run(a, c, a->loop, 1);
}

/* The same call for each shard of a namespace, on the shard's loop. */
static int call_shards(struct array *a, struct array_ns *n, void (*run)(struct call *c),
		       char why[512])
{
	struct call *calls = calloc(n->ns.shards, sizeof(*calls));
	struct loop *loop[STORE_SHARDS_MAX];
	int rc;

	if (calls == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < n->ns.shards; i++) {
		calls[i].ns = n;
		calls[i].shard = i;
		calls[i].run = run;
		loop[i] = n->shard[i].loop;
	}
	rc = calls_run(a, calls, loop, n->ns.shards);
	for (unsigned i = 0; rc != 0 && i < n->ns.shards; i++)
		if (calls[i].rc == rc && why[0] == '\0')
			snprintf(why, 512, "%s", calls[i].why);
	free(calls);
	return rc;
}

/* --- a namespace opens and closes -------------------- */

static uint64_t share_of(uint64_t bytes, unsigned shards)
{
	return bytes / shards;
}

static int shard_open_kv(struct array *a, struct array_ns *n, struct shard *s,
			 struct store_opts *o, struct store_report *report)
{
	unsigned loop = 0;

	while (a->loop[loop] != s->loop)
		loop++;
	if (a->opts.want.kv_given && n->ns.nsid == 1 && n->ns.subsys == 0 &&
	    a->opts.want.kv_bytes < n->ns.cap_bytes)
		o->cap_bytes = share_of(a->opts.want.kv_bytes, n->ns.shards);
	o->segment_bytes = a->opts.segment_bytes;
	o->index_keys_max = a->opts.index_keys > 0 ?
		(a->opts.index_keys + n->ns.shards - 1) / n->ns.shards : 0;
	o->ack_durable = a->opts.ack_durable;
	o->second_touch = a->opts.second_touch && n->ns.evict;
	o->carry_percent = a->opts.carry_percent;
	o->keep_blocks = a->opts.keep_blocks;
	o->drive_depth = a->opts.drive_depth;
	o->scrub_bytes = share_of(a->opts.scrub_bytes, n->ns.shards);
	o->write_budget_percent = a->opts.write_budget_percent;
	o->pool = a->pool[loop];
	return store_open(o, s->loop, &s->store, report);
}

static int shard_open_block(struct array *a, struct array_ns *n, unsigned shard,
			    const struct store_opts *parts, struct store_report *report)
{
	struct block_opts o = {.parts = *parts, .size_bytes = n->ns.bytes,
		.block_bytes = n->ns.block_bytes, .shard = shard, .shard_count = n->ns.shards,
		.ack_durable = a->opts.ack_durable};

	o.parts.keep_blocks = a->opts.keep_blocks;
	memcpy(o.uuid, parts->uuid, sizeof(o.uuid));
	return block_open(&o, n->shard[shard].loop, &n->shard[shard].block, report);
}

static void shard_open(struct call *c)
{
	struct array_ns *n = c->ns;
	struct array *a = c->array;
	struct store_opts *o = calloc(1, sizeof(*o));
	struct store_report report = {0};
	int rc = o == NULL ? -ENOMEM :
		set_ns_parts(a->set, n->ns.id, c->shard, n->shard[c->shard].loop, o);

	if (rc == 0 && n->ns.kind == SET_KV)
		rc = shard_open_kv(a, n, &n->shard[c->shard], o, &report);
	else if (rc == 0)
		rc = shard_open_block(a, n, c->shard, o, &report);
	free(o);
	if (rc != 0 && report.can_degrade)
		snprintf(c->why, sizeof(c->why), "%.200s, or open degraded (--degraded) to go on "
			 "without it", report.text);
	else
		snprintf(c->why, sizeof(c->why), "%s", report.text);
	n->shard[c->shard].keys = report.keys;
	if (report.text[0] != '\0' && (rc == 0 || n->report.text[0] == '\0') && c->shard == 0)
		n->report = report;
	call_end(c, rc);
}

/* The first shard's report becomes that of all. */
static void report_sum(struct array_ns *n)
{
	n->report.keys = 0;
	for (unsigned i = 0; i < n->ns.shards; i++)
		n->report.keys += n->shard[i].keys;
	store_report_say(&n->report);
}

static void shard_closed(void *arg)
{
	call_end(arg, 0);
}

static int drive_index(const struct array *a, const char *path)
{
	for (unsigned i = 0; i < a->opts.set.drive_count; i++)
		if (strcmp(a->opts.set.drive[i].path, path) == 0)
			return (int)i;
	return -1;
}

static void counts_add(struct disk_counts *sum, const struct disk_counts *more)
{
	_Static_assert(sizeof(*sum) % sizeof(uint64_t) == 0, "nothing but counters");
	for (unsigned i = 0; i < sizeof(*sum) / sizeof(uint64_t); i++)
		((uint64_t *)sum)[i] += ((const uint64_t *)more)[i];
}

static unsigned shard_look(const struct shard *s, struct store_look look[STORE_DRIVES_MAX])
{
	if (s->store != NULL)
		return store_look(s->store, look);
	return s->block != NULL ? block_look(s->block, look) : 0;
}

static void shard_close(struct call *c)
{
	struct shard *s = &c->ns->shard[c->shard];
	struct store_look look[STORE_DRIVES_MAX];
	unsigned count = shard_look(s, look);

	for (unsigned i = 0; i < count; i++) {
		int at = drive_index(c->array, look[i].path);

		if (at >= 0)
			counts_add(&s->moved[at], &look[i].counts);
	}
	if (s->store != NULL)
		store_close(&s->store, shard_closed, c);
	else if (s->block != NULL)
		block_close(&s->block, shard_closed, c);
	else
		call_end(c, 0);
}

static int ns_volume_open(struct array_ns *n)
{
	struct space_shard kv[STORE_SHARDS_MAX];
	struct volume_shard block[STORE_SHARDS_MAX];

	for (unsigned i = 0; i < n->ns.shards; i++) {
		kv[i] = (struct space_shard){n->shard[i].loop, n->shard[i].store};
		block[i] = (struct volume_shard){n->shard[i].loop, n->shard[i].block};
	}
	return n->ns.kind == SET_KV ? space_open(kv, n->ns.shards, &n->space) :
				      volume_open(block, n->ns.shards, &n->volume);
}

static void ns_close(struct array *a, struct array_ns *n)
{
	char why[512] = "";

	if (n->space != NULL)
		space_close(&n->space);
	if (n->volume != NULL)
		volume_close(&n->volume);
	(void)call_shards(a, n, shard_close, why);
}

/* What it moved stays in what the drives have moved. */
static void first_moved(struct call *c)
{
	for (unsigned i = 0; i < c->ns->ns.shards; i++)
		for (unsigned d = 0; d < STORE_DRIVES_MAX; d++)
			counts_add(&c->array->gone[d], &c->ns->shard[i].moved[d]);
	call_end(c, 0);
}

/* The catalog has 16 random bytes; what is shown is a UUID of version 4. */
static void uuid_mark(uint8_t uuid[16])
{
	uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40);
	uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

static int ns_open(struct array *a, const struct set_ns *ns, const char *nqn,
		   struct array_ns **out, char why[512])
{
	struct array_ns *n = calloc(1, sizeof(*n));
	int rc;

	if (n == NULL)
		return -ENOMEM;
	must(ns->shards >= 1 && ns->shards <= STORE_SHARDS_MAX);
	n->array = a;
	n->ns = *ns;
	uuid_mark(n->ns.uuid);
	snprintf(n->nqn, sizeof(n->nqn), "%s", nqn);
	for (unsigned i = 0; i < ns->shards; i++)
		n->shard[i].loop = a->loop[i % a->opts.loop_count];
	rc = call_shards(a, n, shard_open, why);
	if (rc == 0 && n->ns.kind == SET_KV)
		report_sum(n);
	if (rc == 0)
		rc = ns_volume_open(n);
	if (rc != 0) {
		ns_close(a, n);
		free(n);
		return rc;
	}
	*out = n;
	return 0;
}

/* --- the catalog and what flags say -------------------- */

static int exit_of(int rc)
{
	switch (rc) {
	case -EINVAL:
	case -ENOENT:
		return CMD_USAGE;
	case -EPROTO:
	case -EEXIST:
		return CMD_REFUSED;
	default:
		return CMD_FAILED;
	}
}

static int failed(int rc, char why[512])
{
	if (why[0] == '\0')
		snprintf(why, 512, "%s", strerror(-rc));
	return exit_of(rc);
}

/* A cap may be as large as the drives, though labels take a little of them. */
static uint64_t cap_slack(const struct array *a)
{
	return set_drives(a->set) * MiB;
}

static uint64_t kv_cap(const struct array *a, uint64_t bytes)
{
	uint64_t free_bytes = set_free_bytes(a->set);

	return bytes > free_bytes && bytes <= free_bytes + cap_slack(a) ? 0 : bytes;
}

/* First start: KV takes what block leaves, so block comes first. */
static int first_namespaces(struct array *a, char why[512])
{
	const struct array_want *w = &a->opts.want;
	struct set_ns block = {.kind = SET_BLOCK, .bytes = w->block_size,
		.block_bytes = w->block_bytes};
	struct set_ns kv = {.kind = SET_KV, .nsid = 1, .cap_bytes = kv_cap(a, w->kv_bytes),
		.evict = w->evict, .stripe = !w->evict, .value_bytes_max = w->value_bytes_max};
	bool has_kv = !w->kv_given || w->kv_bytes > 0;
	const char *flag;
	char said[256] = "";
	uint8_t number;
	int rc = set_subsys_create(a->set, w->nqn, &number, said);

	block.nsid = has_kv ? 2 : 1;
	flag = "";
	if (rc == 0 && w->block_size > 0) {
		flag = "--block: ";
		block.subsys = number;
		rc = set_ns_create(a->set, &block, said);
	}
	if (rc == 0 && has_kv) {
		flag = w->kv_given ? "--kv: " : "";
		kv.subsys = number;
		rc = set_ns_create(a->set, &kv, said);
	}
	if (rc != 0)
		snprintf(why, 512, "%s%s", flag, said);
	return rc;
}

/* A first start that fails leaves nothing behind: the next one is a first one again. */
static void first_undo(struct array *a)
{
	static struct set_ns all[SET_NAMESPACES_MAX];
	struct set_subsys subsys[SET_SUBSYSTEMS_MAX];
	char said[256];
	unsigned count = set_ns_list(a->set, all);

	for (unsigned i = 0; i < count; i++)
		(void)set_ns_remove(a->set, all[i].id, said);
	count = set_subsys_list(a->set, subsys);
	for (unsigned i = 0; i < count; i++)
		(void)set_subsys_remove(a->set, subsys[i].number, said);
}

static const struct set_ns *kind_find(const struct set_ns *all, unsigned count, enum set_kind kind)
{
	const struct set_ns *found = NULL;

	for (unsigned i = 0; i < count; i++)
		if (all[i].kind == kind && all[i].subsys == 0 &&
		    (found == NULL || all[i].nsid < found->nsid))
			found = &all[i];
	return found;
}

static int differs(char why[512], const struct set_ns *ns, const char *flag, const char *has,
		   const char *what_to_do)
{
	snprintf(why, 512, "%s: namespace %u was made with %s; leave the flag out, %s", flag,
		 ns->nsid, has, what_to_do);
	return CMD_REFUSED;
}

static const char *bytes_text(uint64_t bytes, char out[32])
{
	snprintf(out, 32, "%llu bytes", (unsigned long long)bytes);
	return out;
}

static int want_check_kv(const struct array *a, const struct set_ns *kv, char why[512])
{
	const struct array_want *w = &a->opts.want;
	const char *again = "or remove it (kvof ns rm) and create another";
	char has[32];

	if (kv == NULL && w->kv_given && w->kv_bytes > 0) {
		snprintf(why, 512, "--kv: these drives have no KV namespace; leave it out, and "
			 "make one with kvof ns create --kind kv");
		return CMD_REFUSED;
	}
	if (kv == NULL)
		return 0;
	if (w->kv_given && w->kv_bytes == 0)
		return differs(why, kv, "--kv 0", "Key Value", "or remove it with kvof ns rm");
	if (w->kv_given && w->kv_bytes > kv->cap_bytes + cap_slack(a))
		return differs(why, kv, "--kv: more than the namespace has",
			       bytes_text(kv->cap_bytes, has), again);
	if (w->evict_given && w->evict != kv->evict)
		return differs(why, kv, "--on-full", kv->evict ? "evict" : "refuse", again);
	if (w->value_given && w->value_bytes_max != kv->value_bytes_max)
		return differs(why, kv, "--value-bytes-max", bytes_text(kv->value_bytes_max, has),
			       again);
	return 0;
}

static int want_check_block(const struct array_want *w, const struct set_ns *block, char why[512])
{
	const char *again = "or remove it (kvof ns rm) and create another";
	char has[32];

	if (block == NULL && w->block_size > 0) {
		snprintf(why, 512, "--block: these drives have no block namespace; leave it out, "
			 "and make one with kvof ns create --kind block --size S");
		return CMD_REFUSED;
	}
	if (block == NULL)
		return 0;
	if (w->block_given && w->block_size != block->bytes)
		return differs(why, block, "--block", bytes_text(block->bytes, has), again);
	if (w->block_bytes_given && w->block_bytes != block->block_bytes)
		return differs(why, block, "--block-bytes", bytes_text(block->block_bytes, has),
			       again);
	return 0;
}

static const char *nqn_of(const struct array *a, uint8_t number)
{
	static _Thread_local struct set_subsys all[SET_SUBSYSTEMS_MAX];
	unsigned count = set_subsys_list(a->set, all);

	for (unsigned i = 0; i < count; i++)
		if (all[i].number == number)
			return all[i].nqn[0] != '\0' ? all[i].nqn : a->opts.want.nqn;
	return a->opts.want.nqn;
}

static int want_check(struct array *a, char why[512])
{
	static struct set_ns all[SET_NAMESPACES_MAX];
	const struct array_want *w = &a->opts.want;
	unsigned count = set_ns_list(a->set, all);
	int code;

	if (a->opts.set.shards != 0 && a->opts.set.shards != set_shards(a->set)) {
		snprintf(why, 512, "--shards %u: these drives were made with %u; leave it out",
			 a->opts.set.shards, set_shards(a->set));
		return CMD_REFUSED;
	}
	if (w->nqn_given && strcmp(nqn_of(a, 0), w->nqn) != 0) {
		snprintf(why, 512, "--subsystem %.150s: the first subsystem of these drives is "
			 "%.200s; leave the flag out", w->nqn, nqn_of(a, 0));
		return CMD_REFUSED;
	}
	code = want_check_kv(a, kind_find(all, count, SET_KV), why);
	return code != 0 ? code : want_check_block(w, kind_find(all, count, SET_BLOCK), why);
}

/* --- open and close -------------------- */

static uint64_t pool_bytes_of(const struct array *a)
{
	static struct set_ns all[SET_NAMESPACES_MAX];
	unsigned count = set_ns_list(a->set, all);
	uint64_t value = MiB, bytes = a->opts.buffer_bytes, least;

	for (unsigned i = 0; i < count; i++)
		if (all[i].kind == SET_KV && all[i].value_bytes_max > value)
			value = all[i].value_bytes_max;
	if (count == 0)
		value = a->opts.want.value_bytes_max;
	least = 8 * value > 64 * MiB ? 8 * value : 64 * MiB;
	if (bytes == 0)
		return least / a->opts.loop_count > 4 * value ? least / a->opts.loop_count :
								4 * value;
	return bytes / a->opts.loop_count;
}

static int pools_open(struct array *a, char why[512])
{
	uint64_t bytes = pool_bytes_of(a);

	for (unsigned i = 0; i < a->opts.loop_count; i++) {
		int rc = store_pool_open(a->loop[i], bytes, &a->pool[i]);

		if (rc != 0) {
			snprintf(why, 512, "value buffers: %llu MiB for each of %u loops is not "
				 "there; --buffer-bytes", (unsigned long long)(bytes / MiB),
				 a->opts.loop_count);
			return rc;
		}
	}
	return 0;
}

static int namespaces_open(struct array *a, char why[512])
{
	static struct set_ns all[SET_NAMESPACES_MAX];
	unsigned count = set_ns_list(a->set, all);

	for (unsigned i = 0; i < count; i++) {
		const char *nqn = nqn_of(a, all[i].subsys);
		int rc = ns_open(a, &all[i], nqn, &a->ns[a->ns_count], why);

		if (rc == -ENOENT && a->opts.set.degraded) {
			log_error("namespace %u of %s: left out, all of its drives are missing: %s",
				  all[i].nsid, nqn, why);
			why[0] = '\0';
			continue;
		}
		if (rc != 0)
			return rc;
		a->ns_count++;
	}
	return 0;
}

static void opts_keep(struct array *a, const struct array_opts *opts)
{
	a->opts = *opts;
	for (unsigned i = 0; i < opts->loop_count; i++)
		a->loop[i] = opts->loop[i];
	for (unsigned i = 0; i < opts->set.drive_count; i++)
		a->memory |= strcmp(opts->set.drive[i].path, "mem") == 0;
}

/* The kernel would promise it all the same, and end this program, or another, once it is used. */
static int memory_check(const struct array_opts *o, char why[512])
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	uint64_t has = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
	uint64_t index = o->index_keys * INDEX_KEY_BYTES, drives = 0;

	for (unsigned i = 0; i < o->set.drive_count; i++)
		if (strcmp(o->set.drive[i].path, "mem") == 0)
			drives += o->set.drive[i].bytes;
	if (index + drives <= has && o->buffer_bytes <= has - index - drives)
		return 0;
	snprintf(why, 512, "memory: this machine has %" PRIu64 " MiB, but value buffers take %"
		 PRIu64 ", an index of %" PRIu64 " keys %" PRIu64 ", drives in memory %" PRIu64,
		 has / MiB, o->buffer_bytes / MiB, o->index_keys, index / MiB, drives / MiB);
	return CMD_FAILED;
}

static int set_begin(struct array *a, char why[512])
{
	struct loop_opts loop = {.name = "kvof-set", .ops_max = 64, .timers_max = 8,
		.kind = a->opts.loop_kind};
	int rc = loop_open(&loop, &a->set_loop);

	for (unsigned i = 0; i < a->opts.set.drive_count; i++)
		a->was_there[i] = access(a->opts.set.drive[i].path, F_OK) == 0;
	a->opts.set.old = (struct set_old){.keep = !a->opts.want.evict,
		.value_bytes_max = a->opts.want.value_given ? a->opts.want.value_bytes_max : 0,
		.cap_bytes = a->opts.want.kv_bytes};
	if (rc == 0)
		rc = set_open(&a->opts.set, a->set_loop, &a->set, &a->report);
	if (rc == 0)
		return 0;
	snprintf(why, 512, "%s", a->report.text);
	return failed(rc, why);
}

int array_open(const struct array_opts *opts, struct array **out, char why[512])
{
	struct array *a = calloc(1, sizeof(*a));
	struct set_subsys subsys[SET_SUBSYSTEMS_MAX];
	int rc = 0, code;

	must(opts->loop_count >= 1 && opts->loop_count <= ARRAY_LOOPS_MAX);
	why[0] = '\0';
	if (a == NULL)
		return failed(-ENOMEM, why);
	pthread_mutex_init(&a->change, NULL);
	pthread_mutex_init(&a->know, NULL);
	pthread_cond_init(&a->closed, NULL);
	opts_keep(a, opts);
	*out = a;
	code = memory_check(opts, why);
	if (code == 0)
		code = set_begin(a, why);
	if (code != 0)
		return code;
	a->first = set_was_made(a->set) || set_subsys_list(a->set, subsys) == 0;
	if (a->first)
		rc = first_namespaces(a, why);
	else
		code = want_check(a, why);
	if (code != 0 || rc == -ENOSPC)
		return code != 0 ? code : CMD_USAGE;
	snprintf(a->first_nqn, sizeof(a->first_nqn), "%s", nqn_of(a, 0));
	rc = rc != 0 ? rc : pools_open(a, why);
	rc = rc != 0 ? rc : namespaces_open(a, why);
	a->opened = rc == 0;
	return rc == 0 ? 0 : failed(rc, why);
}

/* Ends when nothing is being collected. */
static void first_idle(struct call *c)
{
	if (c->array->collecting > 0)
		call_when_idle(c, first_idle);
	else
		call_end(c, 0);
}

static void pool_close(struct call *c)
{
	(void)store_pool_close(&c->array->pool[c->shard]);
	call_end(c, 0);
}

void array_close(struct array *a)
{
	struct call idle = {.run = first_idle};

	must(a->target == NULL);
	if (a->running)
		(void)call_first(a, &idle);
	for (unsigned i = 0; i < a->ns_count; i++) {
		ns_close(a, a->ns[i]);
		free(a->ns[i]);
	}
	for (unsigned i = 0; i < a->opts.loop_count; i++) {
		struct call c = {.run = pool_close, .shard = i};

		if (a->pool[i] != NULL)
			(void)calls_run(a, &c, &a->loop[i], 1);
	}
	a->ns_count = a->seen_count = 0;
}

const char *array_busy_drive(const struct array *a)
{
	return a->set != NULL ? set_busy_drive(a->set) : NULL;
}

void array_free(struct array **ap)
{
	struct array *a = *ap;

	*ap = NULL;
	must(a->ns_count == 0);
	if (a->first && !a->opened)
		first_undo(a);
	if (a->set != NULL)
		set_close(&a->set);
	for (unsigned i = 0; a->first && !a->opened && i < a->opts.set.drive_count; i++)
		if (!a->was_there[i] && strcmp(a->opts.set.drive[i].path, "mem") != 0)
			(void)unlink(a->opts.set.drive[i].path);
	if (a->set_loop != NULL)
		loop_close(&a->set_loop);
	pthread_mutex_destroy(&a->change);
	pthread_mutex_destroy(&a->know);
	pthread_cond_destroy(&a->closed);
	free(a);
}

void array_reports(const struct array *a, void (*say)(void *arg, const char *text), void *arg)
{
	char text[320];

	if (a->report.text[0] != '\0')
		say(arg, a->report.text);
	for (unsigned i = 0; i < a->ns_count; i++) {
		const struct array_ns *n = a->ns[i];

		if (n->report.text[0] == '\0')
			continue;
		snprintf(text, sizeof(text), "namespace %u of %.40s: %.200s", n->ns.nsid, n->nqn,
			 n->report.text);
		say(arg, a->ns_count > 1 ? text : n->report.text);
	}
}

struct array_memory array_memory(const struct array *a)
{
	struct array_memory m = {.memory = a->memory};

	for (unsigned i = 0; i < a->opts.loop_count; i++)
		m.buffer_bytes += store_pool_bytes(a->pool[i]);
	for (unsigned i = 0; i < a->ns_count; i++) {
		for (unsigned k = 0; k < a->ns[i]->ns.shards; k++) {
			struct store_stat stat;

			if (a->ns[i]->shard[k].store == NULL)
				continue;
			store_stat(a->ns[i]->shard[k].store, &stat);
			m.index_bytes += stat.index_bytes;
			m.index_keys += stat.index_keys_max;
		}
	}
	return m;
}

/* --- the target -------------------- */

static struct target_ns_opts target_ns_of(const struct array *a, const struct array_ns *n)
{
	struct target_ns_opts o = {.nsid = n->ns.nsid, .space = n->space, .volume = n->volume,
		.memory = a->memory, .evicts = n->ns.evict, .durable = a->opts.ack_durable};

	if (n->ns.id != 0)                             /* of version 1: as it was shown before */
		memcpy(o.uuid, n->ns.uuid, sizeof(o.uuid));
	return o;
}

struct hosts {
	char text[SET_HOSTS_MAX][SET_NQN_BYTES];
	const char *name[SET_HOSTS_MAX];
};

/* The subsystem's own list, else that of the array. */
static void hosts_of(const struct array *a, uint8_t number, struct hosts *h,
		     struct target_subsys_opts *out)
{
	unsigned count = set_subsys_hosts_list(a->set, number, h->text);

	for (unsigned i = 0; i < count; i++)
		h->name[i] = h->text[i];
	out->host = count > 0 ? h->name : a->opts.host;
	out->host_count = count > 0 ? count : a->opts.host_count;
}

/* What lists show is as the set is now. Under `change`, or before the loops run. */
static void known_again(struct array *a)
{
	struct array_known *k = &a->known;

	pthread_mutex_lock(&a->know);
	k->free_bytes = set_free_bytes(a->set);
	k->ns_count = set_ns_list(a->set, k->ns);
	k->subsys_count = set_subsys_list(a->set, k->subsys);
	for (unsigned i = 0; i < k->subsys_count; i++) {
		snprintf(k->subsys[i].nqn, sizeof(k->subsys[i].nqn), "%s",
			 nqn_of(a, k->subsys[i].number));
		k->host_count[i] = set_subsys_hosts_list(a->set, k->subsys[i].number, k->host[i]);
	}
	pthread_mutex_unlock(&a->know);
}

int array_target(struct array *a, const struct target_opts *opts, char why[256],
		 struct target **out)
{
	struct set_subsys all[SET_SUBSYSTEMS_MAX];
	struct target_subsys_opts subsys[SET_SUBSYSTEMS_MAX] = {{.ns_count = 0}};
	struct target_ns_opts *ns = calloc(SET_NAMESPACES_MAX, sizeof(*ns)), *next = ns;
	struct hosts *hosts = calloc(SET_SUBSYSTEMS_MAX, sizeof(*hosts));
	struct target_opts o = *opts;
	unsigned count = set_subsys_list(a->set, all);
	int rc = ns == NULL || hosts == NULL ? -ENOMEM : 0;

	for (unsigned i = 0; rc == 0 && i < count; i++) {
		snprintf(subsys[i].nqn, sizeof(subsys[i].nqn), "%s", nqn_of(a, all[i].number));
		memcpy(subsys[i].uuid, all[i].uuid, sizeof(subsys[i].uuid));
		hosts_of(a, all[i].number, &hosts[i], &subsys[i]);
		subsys[i].ns = next;
		for (unsigned k = 0; k < a->ns_count; k++)
			if (a->ns[k]->ns.subsys == all[i].number)
				next[subsys[i].ns_count++] = target_ns_of(a, a->ns[k]);
		next += subsys[i].ns_count;
	}
	o.subsys = subsys;
	o.subsys_count = count;
	o.loops = a->loop;
	o.pools = a->pool;
	o.loop_count = a->opts.loop_count;
	if (rc == 0)
		rc = target_open(&o, why, &a->target);
	free(ns);
	free(hosts);
	if (rc != 0)
		return rc;
	for (unsigned i = 0; i < a->ns_count; i++)
		a->seen[a->seen_count++] = a->ns[i];
	known_again(a);
	a->running = true;
	*out = a->target;
	return 0;
}

void array_target_gone(struct array *a)
{
	must(a->target != NULL);
	a->target = NULL;
}

/* --- while serving -------------------- */

void array_know(struct array *a, struct array_known *out)
{
	pthread_mutex_lock(&a->know);
	*out = a->known;
	pthread_mutex_unlock(&a->know);
}

bool array_subsys_known(struct array *a, const char *nqn)
{
	bool is = false;

	pthread_mutex_lock(&a->know);
	for (unsigned i = 0; i < a->known.subsys_count; i++)
		is |= strcmp(a->known.subsys[i].nqn, nqn) == 0;
	pthread_mutex_unlock(&a->know);
	return is;
}

uint64_t array_free_bytes(struct array *a)
{
	uint64_t bytes;

	pthread_mutex_lock(&a->know);
	bytes = a->known.free_bytes;
	pthread_mutex_unlock(&a->know);
	return bytes;
}

const char *array_first_nqn(const struct array *a)
{
	return a->first_nqn;
}

/* Under `change`; -1: no such subsystem. */
static int subsys_find(const struct array *a, const char *nqn)
{
	struct set_subsys all[SET_SUBSYSTEMS_MAX];
	unsigned count = set_subsys_list(a->set, all);

	for (unsigned i = 0; i < count; i++)
		if (strcmp(nqn_of(a, all[i].number), nqn) == 0)
			return all[i].number;
	return -1;
}

static int subsys_none(const char *nqn, char why[512])
{
	snprintf(why, 512, "subsystem %.223s: there is none; kvof subsys ls lists them", nqn);
	return CMD_MISS;
}

struct looking {
	struct array_rows rows;
	sem_t done;
};

static void looked(struct array_rows *r)
{
	sem_post(&container_of(r, struct looking, rows)->done);
}

/* Drives that the stores have given up: the set writes to them no more, it might wait for ever. */
static void failed_drives_tell(struct array *a)
{
	struct looking *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return;
	must(sem_init(&l->done, 0, 0) == 0);
	l->rows.done = looked;
	array_collect(a, &l->rows);
	while (sem_wait(&l->done) != 0)
		must(errno == EINTR);
	for (unsigned i = 0; i < l->rows.drive_count; i++) {
		a->silent[i] |= l->rows.drive[i].failed || l->rows.drive[i].missing;
		if (l->rows.drive[i].failed && !l->rows.drive[i].missing)
			set_drive_failed(a->set, l->rows.drive[i].path);
	}
	sem_destroy(&l->done);
	free(l);
}

/* Drives that hang and that no store has noticed yet, since it asks nothing of them. `change` is
 * let go of for as long. */
static void silent_drives_tell(struct array *a)
{
	const char *path[STORE_DRIVES_MAX];
	unsigned drive[STORE_DRIVES_MAX], count = 0;
	bool answers[PROBE_DRIVES_MAX];

	_Static_assert(PROBE_DRIVES_MAX == STORE_DRIVES_MAX, "all are asked at once");
	for (unsigned i = 0; i < a->opts.set.drive_count; i++) {
		if (a->silent[i] || strcmp(a->opts.set.drive[i].path, "mem") == 0)
			continue;
		drive[count] = i;
		path[count++] = a->opts.set.drive[i].path;
	}
	a->probing = true;
	pthread_mutex_unlock(&a->change);
	probe_drives(path, count, SILENT_NS, answers);
	pthread_mutex_lock(&a->change);
	a->probing = false;
	pthread_cond_broadcast(&a->closed);
	for (unsigned i = 0; i < count; i++) {
		if (answers[i])
			continue;
		a->silent[drive[i]] = true;
		set_drive_failed(a->set, path[i]);
	}
}

/* The drives are written to by one at a time, and only those that answer: else the write might
 * never end. With `change`, which others have meanwhile, but not to write. */
static void drives_ready(struct array *a)
{
	do {
		while (a->closing > 0 || a->probing)  /* it may turn out that one hangs */
			pthread_cond_wait(&a->closed, &a->change);
		failed_drives_tell(a);
		silent_drives_tell(a);
	} while (a->closing > 0);
}

static void change_begin(struct array *a)
{
	pthread_mutex_lock(&a->change);
	drives_ready(a);
}

static void change_end(struct array *a)
{
	known_again(a);
	pthread_mutex_unlock(&a->change);
}

static void first_ns_known(struct call *c);

static void first_ns_told(void *arg)
{
	struct call *c = arg;
	struct array *a = c->array;

	if (a->collecting > 0) {
		call_when_idle(c, first_ns_known);
		return;
	}
	must(a->seen_count < SET_NAMESPACES_MAX);
	a->seen[a->seen_count++] = c->ns;
	call_end(c, 0);
}

static void first_ns_known(struct call *c)
{
	first_ns_told(c);
}

static void first_ns_add(struct call *c)
{
	struct array *a = c->array;
	struct target_ns_opts opts = target_ns_of(a, c->ns);
	int rc = target_ns_add(a->target, c->ns->nqn, &opts, c->why, first_ns_told, c);

	if (rc != 0)
		call_end(c, rc);
}

static int ns_create(struct array *a, struct set_ns *ns, char why[512])
{
	uint64_t pool = store_pool_bytes(a->pool[0]);
	struct call c = {.run = first_ns_add};
	struct array_ns *n = NULL;
	char said[256] = "";
	int rc;

	if (ns->kind == SET_KV && 4 * (uint64_t)ns->value_bytes_max > pool) {
		snprintf(why, 512, "values of %u bytes: four need to fit into the buffers of a "
			 "loop, %llu bytes; start the array with larger --buffer-bytes",
			 ns->value_bytes_max, (unsigned long long)pool);
		return CMD_USAGE;
	}
	rc = set_ns_create(a->set, ns, said);
	if (rc != 0) {
		snprintf(why, 512, "%s", said);
		return rc == -ENOSPC ? CMD_REFUSED : failed(rc, why);
	}
	uuid_mark(ns->uuid);
	rc = ns_open(a, ns, nqn_of(a, ns->subsys), &n, why);
	if (rc == 0) {
		c.ns = n;
		rc = call_first(a, &c);
		if (rc == 0) {
			a->ns[a->ns_count++] = n;
			log_event(LOG_INFO, "namespace_added", LOG_NUMBER("nsid", ns->nsid),
				  LOG_TEXT("subsystem", n->nqn),
				  LOG_TEXT("kind", ns->kind == SET_KV ? "kv" : "block"));
			return 0;
		}
		snprintf(why, 512, "%s", c.why);
		ns_close(a, n);
		free(n);
	}
	(void)set_ns_remove(a->set, ns->id, said);
	return failed(rc, why);
}

int array_ns_create(struct array *a, const char *nqn, struct set_ns *ns, char why[512])
{
	int number, code;

	why[0] = '\0';
	change_begin(a);
	number = subsys_find(a, nqn);
	ns->subsys = (uint8_t)number;
	code = number < 0 ? subsys_none(nqn, why) : ns_create(a, ns, why);
	change_end(a);
	return code;
}

static void first_ns_left(void *arg);

static void first_ns_gone(struct call *c)
{
	first_ns_left(c);
}

/* It is taken out of what is collected when no collection looks at it. */
static void first_ns_left(void *arg)
{
	struct call *c = arg;
	struct array *a = c->array;
	unsigned at = 0;

	if (a->collecting > 0) {
		call_when_idle(c, first_ns_gone);
		return;
	}
	while (a->seen[at] != c->ns)
		at++;
	must(at < a->seen_count);
	a->seen[at] = a->seen[--a->seen_count];
	call_end(c, 0);
}

static void first_ns_remove(struct call *c)
{
	int rc = target_ns_remove(c->array->target, c->ns->nqn, c->ns->ns.nsid, first_ns_left, c);

	if (rc != 0)
		call_end(c, rc);
}

/* The target and the stores let go, which a drive that hangs makes long; `change` is let go of. */
static void ns_let_go(struct array *a, struct array_ns *n)
{
	struct call c = {.run = first_ns_remove, .ns = n}, moved = {.run = first_moved, .ns = n};

	failed_drives_tell(a);               /* also what only this namespace knows */
	n->leaving = true;
	a->closing++;
	pthread_mutex_unlock(&a->change);
	must(call_first(a, &c) == 0);        /* the table here and the target's are one */
	ns_close(a, n);
	(void)call_first(a, &moved);
	pthread_mutex_lock(&a->change);
	a->closing--;
	pthread_cond_broadcast(&a->closed);
	drives_ready(a);                     /* the catalog is written next */
}

int array_ns_remove(struct array *a, const char *nqn, uint32_t nsid, char why[512])
{
	char said[256] = "";
	struct array_ns *n;
	unsigned at = 0;
	int rc;

	why[0] = '\0';
	pthread_mutex_lock(&a->change);
	while (at < a->ns_count && (a->ns[at]->ns.nsid != nsid || a->ns[at]->leaving ||
				    strcmp(a->ns[at]->nqn, nqn) != 0))
		at++;
	if (at == a->ns_count) {
		pthread_mutex_unlock(&a->change);
		snprintf(why, 512, "namespace %u of %.223s: there is none", nsid, nqn);
		return CMD_MISS;
	}
	n = a->ns[at];
	ns_let_go(a, n);
	at = 0;
	while (a->ns[at] != n)               /* others have come and gone */
		at++;
	must(at < a->ns_count);
	a->ns[at] = a->ns[--a->ns_count];
	rc = set_ns_remove(a->set, n->ns.id, said);
	change_end(a);
	log_event(LOG_INFO, "namespace_removed", LOG_NUMBER("nsid", nsid),
		  LOG_TEXT("subsystem", nqn));
	free(n);
	if (rc != 0)
		snprintf(why, 512, "namespace %u: taken from hosts, but the drives keep it: %s",
			 nsid, said);
	return rc == 0 ? 0 : failed(rc, why);
}

struct subsys_call {
	struct call call;
	struct target_subsys_opts opts;
	const char *nqn;
};

static void first_subsys_add(struct call *c)
{
	struct subsys_call *s = container_of(c, struct subsys_call, call);

	call_end(c, target_subsys_add(c->array->target, &s->opts, c->why));
}

static void first_subsys_remove(struct call *c)
{
	struct subsys_call *s = container_of(c, struct subsys_call, call);

	call_end(c, target_subsys_remove(c->array->target, s->nqn));
}

static int subsys_create(struct array *a, const char *nqn, const char *const *host,
			 unsigned host_count, char why[512])
{
	struct subsys_call s = {.call = {.run = first_subsys_add}};
	struct set_subsys all[SET_SUBSYSTEMS_MAX];
	char said[256] = "";
	unsigned count;
	uint8_t number;
	int rc = set_subsys_create(a->set, nqn, &number, said);

	why[0] = '\0';
	if (rc == 0 && host_count > 0) {
		rc = set_subsys_hosts(a->set, number, host, host_count, said);
		if (rc != 0)
			(void)set_subsys_remove(a->set, number, (char[256]){0});
	}
	if (rc != 0) {
		snprintf(why, 512, "%s", said);
		return rc == -ENOSPC ? CMD_REFUSED : failed(rc, why);
	}
	snprintf(s.opts.nqn, sizeof(s.opts.nqn), "%s", nqn);
	s.opts.host = host_count > 0 ? host : a->opts.host;
	s.opts.host_count = host_count > 0 ? host_count : a->opts.host_count;
	count = set_subsys_list(a->set, all);
	for (unsigned i = 0; i < count; i++)
		if (all[i].number == number)
			memcpy(s.opts.uuid, all[i].uuid, sizeof(s.opts.uuid));
	rc = call_first(a, &s.call);
	if (rc == 0)
		return 0;
	(void)set_subsys_remove(a->set, number, said);
	snprintf(why, 512, "%s", s.call.why);
	return failed(rc, why);
}

int array_subsys_create(struct array *a, const char *nqn, const char *const *host,
			unsigned host_count, char why[512])
{
	int code;

	change_begin(a);
	code = subsys_create(a, nqn, host, host_count, why);
	change_end(a);
	return code;
}

static int subsys_remove(struct array *a, const char *nqn, char why[512])
{
	struct subsys_call s = {.call = {.run = first_subsys_remove}, .nqn = nqn};
	int number = subsys_find(a, nqn), rc;
	char said[256] = "";

	why[0] = '\0';
	if (number < 0)
		return subsys_none(nqn, why);
	rc = set_subsys_remove(a->set, (uint8_t)number, said);
	if (rc != 0) {
		snprintf(why, 512, "%s", said);
		return rc == -EBUSY ? CMD_REFUSED : failed(rc, why);
	}
	rc = call_first(a, &s.call);
	must(rc == 0);
	return 0;
}

int array_subsys_remove(struct array *a, const char *nqn, char why[512])
{
	int code;

	change_begin(a);
	code = subsys_remove(a, nqn, why);
	change_end(a);
	return code;
}

/* --- what it has done -------------------- */

static void collect_next(struct array_rows *r);

static void collect_got(struct space_stat *s)
{
	struct array_rows *r = container_of(s, struct array_rows, stat);

	r->row[r->count++].kv = s->stat;
	collect_next(r);
}

static void drive_add(struct array_rows *r, const struct store_look *look)
{
	int at = drive_index(r->array, look->path);

	if (at < 0)
		return;
	r->drive[at].failed |= look->failed;
	r->drive[at].missing |= look->missing;
	counts_add(&r->drive[at].counts, &look->counts);
}

static void collect_drives(struct loop *here, struct msg *m);

/* Shards are looked at on their loops, one loop after the other; then the first loop ends it. */
static void collect_loop(struct array_rows *r)
{
	struct array *a = r->array;

	r->msg = (struct msg){.run = collect_drives};
	loop_post(a->loop[r->next_loop < a->opts.loop_count ? r->next_loop : 0], &r->msg);
}

static void collect_end(struct array_rows *r);

static void collect_drives(struct loop *here, struct msg *m)
{
	struct array_rows *r = container_of(m, struct array_rows, msg);
	struct array *a = r->array;
	struct store_look look[STORE_DRIVES_MAX];

	if (r->next_loop == a->opts.loop_count) {
		collect_end(r);
		return;
	}
	for (unsigned i = 0; i < a->seen_count; i++) {
		const struct array_ns *n = a->seen[i];

		for (unsigned k = 0; k < n->ns.shards; k++) {
			unsigned count = n->shard[k].loop == here ?
				shard_look(&n->shard[k], look) : 0;

			for (unsigned d = 0; d < count; d++)
				drive_add(r, &look[d]);
		}
	}
	r->next_loop++;
	collect_loop(r);
}

static void collect_end(struct array_rows *r)
{
	struct array *a = r->array;
	struct call *waits = a->idle_wait;

	must(a->collecting > 0);
	a->collecting--;
	if (a->target != NULL) {
		r->target = *target_counts(a->target);
		r->host_count = target_hosts(a->target, r->host, TARGET_HOST_ROWS);
	}
	r->done(r);
	if (a->collecting > 0 || waits == NULL)
		return;
	a->idle_wait = NULL;
	while (waits != NULL) {
		struct call *c = waits;

		waits = c->next;             /* c is its caller's once it has run */
		c->run(c);
	}
}

static void collect_next(struct array_rows *r)
{
	struct array *a = r->array;

	while (r->next < a->seen_count) {
		struct array_ns *n = a->seen[r->next++];
		struct array_row *row = &r->row[r->count];

		row->ns = n->ns;
		memcpy(row->nqn, n->nqn, sizeof(row->nqn));
		if (n->ns.kind == SET_KV) {
			r->stat.done = collect_got;
			space_stat(n->space, a->loop[0], &r->stat);
			return;
		}
		volume_stat(n->volume, &row->block);
		r->count++;
	}
	collect_loop(r);
}

static void collect_begin(struct loop *here, struct msg *m)
{
	struct array_rows *r = container_of(m, struct array_rows, msg);

	struct array *a = r->array;

	r->count = r->next = r->next_loop = 0;
	r->drive_count = a->opts.set.drive_count;
	for (unsigned i = 0; i < r->drive_count; i++) {
		r->drive[i] = (struct array_drive){.counts = a->gone[i]};
		snprintf(r->drive[i].path, sizeof(r->drive[i].path), "%s",
			 a->opts.set.drive[i].path);
	}
	a->collecting++;
	collect_next(r);
}

void array_collect(struct array *a, struct array_rows *r)
{
	r->array = a;
	r->msg = (struct msg){.run = collect_begin};
	loop_post(a->loop[0], &r->msg);
}
