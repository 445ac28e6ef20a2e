/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof stat: how full a namespace is and what it has done, from the array's statistics log page
 * (nvme/stat.h); of another make of array what Identify says. kvof discover: what an address
 * offers.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/domains.h"
#include "nvme/stat.h"

struct stat_row {
	const char *name;
	size_t offset;
	bool bytes;
	const char *help;
};

static const struct stat_row stat_rows[] = {
#define STAT(name, is_bytes, text) {#name, offsetof(struct nv_kvof_stat, name), is_bytes, text},
#include "tbl/stat.def"
};

/* "1.50 GiB" */
static void stat_bytes_text(uint64_t bytes, char out[32])
{
	static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
	unsigned step = 0;
	uint64_t scaled;

	while (step + 1 < ARRAY_COUNT(unit) && bytes >> (10 * (step + 1)) > 0)
		step++;
	if (step == 0) {
		snprintf(out, 32, "%llu bytes", (unsigned long long)bytes);
		return;
	}
	scaled = bytes >> (10 * step);
	snprintf(out, 32, "%llu.%02llu %s", (unsigned long long)scaled,
		 (unsigned long long)(((bytes >> (10 * (step - 1))) & 1023) * 100 / 1024),
		 unit[step]);
}

/* The others count values. */
static bool stat_row_of_blocks(const struct stat_row *row)
{
	static const size_t offset[] = {
		offsetof(struct nv_kvof_stat, used_bytes),
		offsetof(struct nv_kvof_stat, capacity_bytes),
		offsetof(struct nv_kvof_stat, device_read_bytes),
		offsetof(struct nv_kvof_stat, device_write_bytes),
		offsetof(struct nv_kvof_stat, io_errors), offsetof(struct nv_kvof_stat, no_space),
	};

	for (unsigned i = 0; i < ARRAY_COUNT(offset); i++)
		if (offset[i] == row->offset)
			return true;
	return false;
}

static int stat_print(const struct cmd_link *link, const struct nv_kvof_stat *s)
{
	const struct host_ns *ns = host_ns(link->host);
	char text[32];

	printf("namespace %u of %s, ", ns->nsid, ns->subnqn);
	if (ns->block_bytes != 0)
		printf("block, %llu blocks of %u bytes",
		       (unsigned long long)(ns->capacity_bytes / ns->block_bytes), ns->block_bytes);
	else
		printf("values up to %u bytes", ns->value_bytes_max);
	printf("%s\n",
	       le32_get(s->flags) & NV_KVOF_STAT_MEMORY ? ", in memory (not on flash)" : "");
	if (le32_get(s->drives_failed) > 0)
		printf("%u of %u drives have failed\n", le32_get(s->drives_failed),
		       le32_get(s->drives));
	for (size_t i = 0; i < ARRAY_COUNT(stat_rows); i++) {
		const struct stat_row *row = &stat_rows[i];
		uint64_t value = le64_get(*(const le64 *)((const char *)s + row->offset));

		if (ns->block_bytes != 0 && !stat_row_of_blocks(row))
			continue;
		if (row->bytes)
			stat_bytes_text(value, text);
		else
			snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
		printf("  %-20s %14s   %s\n", row->name, text, row->help);
	}
	return cmd_output_end("stat", CMD_DONE);
}

static json_t *stat_json_head(const struct host_ns *ns)
{
	json_t *o = json_pack("{s:I, s:s, s:I}", "nsid", (json_int_t)ns->nsid, "subsystem",
			      ns->subnqn, "value_bytes_max", (json_int_t)ns->value_bytes_max);

	json_object_set_new(o, "kind", json_string(ns->block_bytes != 0 ? "block" : "kv"));
	if (ns->block_bytes != 0) {
		json_object_set_new(o, "block_bytes", json_integer(ns->block_bytes));
		json_object_set_new(o, "size_bytes", json_integer((json_int_t)ns->capacity_bytes));
	}
	return o;
}

static int stat_print_json(const struct cmd_link *link, const struct nv_kvof_stat *s)
{
	json_t *object = stat_json_head(host_ns(link->host));

	for (size_t i = 0; i < ARRAY_COUNT(stat_rows); i++)
		json_object_set_new(object, stat_rows[i].name, json_integer((json_int_t)
			le64_get(*(const le64 *)((const char *)s + stat_rows[i].offset))));
	json_object_set_new(object, "drives", json_integer(le32_get(s->drives)));
	json_object_set_new(object, "drives_failed", json_integer(le32_get(s->drives_failed)));
	json_object_set_new(object, "memory",
			    json_boolean(le32_get(s->flags) & NV_KVOF_STAT_MEMORY));
	return cmd_json_print("stat", object, CMD_DONE);
}

/* Another make: only what Identify has. */
static int stat_identify(const struct cmd_link *link)
{
	const struct host_ns *ns = host_ns(link->host);
	json_t *object;
	char used[32], capacity[32];

	if (link->common.json) {
		object = stat_json_head(ns);
		json_object_set_new(object, "keys", json_null());
		json_object_set_new(object, "used_bytes", json_integer((json_int_t)ns->used_bytes));
		json_object_set_new(object, "capacity_bytes",
				    json_integer((json_int_t)ns->capacity_bytes));
		json_object_set_new(object, "evicted_keys", json_null());
		return cmd_json_print("stat", object, CMD_DONE);
	}
	stat_bytes_text(ns->used_bytes, used);
	stat_bytes_text(ns->capacity_bytes, capacity);
	printf("namespace %u of %s (%s): %s of %s used; this array has no statistics log\n",
	       ns->nsid, ns->subnqn, ns->model, used, capacity);
	return cmd_output_end("stat", CMD_DONE);
}

static int stat_run(struct cmd_link *link)
{
	struct nv_kvof_stat page = {0};
	struct nv_log what = {
		.lid = NV_LOG_KVOF_STAT, .bytes = sizeof(page), .nsid = host_ns(link->host)->nsid,
	};
	struct host_admin admin = {
		.sqe = nv_log_build(&what), .into = &page, .bytes = sizeof(page),
	};
	int rc = cmd_link_admin(link, &admin);

	if (rc != 0)
		return cmd_link_result(link, "statistics log", rc);
	if (!nv_status_ok(nv_cqe_status(&admin.cqe)) || admin.moved_bytes != sizeof(page) ||
	    memcmp(page.magic, NV_KVOF_STAT_MAGIC, sizeof(page.magic)) != 0 ||
	    le32_get(page.version) < 1)
		return stat_identify(link);
	return link->common.json ? stat_print_json(link, &page) : stat_print(link, &page);
}

int cmd_stat(int argc, char **argv)
{
	struct cmd_link link;
	struct cmd_common c = {.any_kind = true};
	bool domains = false;
	const struct cmd_opt opts[] = {
		{"domains", CMD_FLAG, &domains, NULL, "share of each model and its settings"},
		{.name = NULL},
	};
	const struct cmd_opt common[] = {CMD_COMMON_OPTS(&c), {.name = NULL}};
	const struct cmd_usage u = {
		.name = "stat", .args = "TARGET", .least = 1, .most = 1, .opts = opts,
		.common = common,
		.what = "Shows how full a namespace is, and counters since the array was started.",
		.more = "--domains reads values whole, a sample of them where there are many, and "
			"says so.\n",
	};
	const char *arg[1];
	unsigned count;
	int rc = cmd_args(&u, argc, argv, arg, &count);

	if (rc >= 0)
		return rc;
	if (domains)
		return domains_stat(arg[0], &c);
	rc = cmd_link_open("stat", arg[0], &c, &link);
	if (rc != 0)
		return rc;
	rc = stat_run(&link);
	cmd_link_close(&link);
	return rc;
}

/* --- discover -------------------- */

static bool discover_over;
static int discover_res;

static void discover_done(struct host_discover *d, int res)
{
	(void)d;
	discover_res = res;
	discover_over = true;
}

static const char *discover_transport(uint8_t trtype)
{
	return trtype == NV_TRTYPE_TCP ? "tcp" : trtype == NV_TRTYPE_RDMA ? "rdma" :
	       trtype == NV_TRTYPE_LOOP ? "loop" : "other";
}

static const char *discover_subtype(uint8_t subtype)
{
	return subtype == NV_SUBTYPE_NVM ? "subsystem" : subtype == NV_SUBTYPE_DISCOVERY ?
	       "discovery" : subtype == NV_SUBTYPE_REFERRAL ? "referral" : "other";
}

static int discover_print(const struct host_discover *d, bool json)
{
	json_t *array = json ? json_array() : NULL;

	for (unsigned i = 0; i < d->count; i++) {
		const struct nv_discovered *e = &d->entry[i];
		const char *type = discover_subtype(e->subtype);
		bool six = strchr(e->traddr, ':') != NULL;

		if (json)
			json_array_append_new(array, json_pack("{s:s, s:s, s:s, s:s, s:s}",
				"subnqn", e->subnqn, "transport", discover_transport(e->trtype),
				"traddr", e->traddr, "trsvcid", e->trsvcid, "type", type));
		else
			printf("%s://%s%s%s:%s/%s%s%s\n", discover_transport(e->trtype),
			       six ? "[" : "", e->traddr, six ? "]" : "", e->trsvcid, e->subnqn,
			       e->subtype == NV_SUBTYPE_NVM ? "" : "  ",
			       e->subtype == NV_SUBTYPE_NVM ? "" : type);
	}
	if (d->count == 0)
		cmd_error("discover", "nothing is offered; is this host on the array's list?");
	if (d->left_out > 0)
		cmd_error("discover", "%u entries could not be used", d->left_out);
	return json ? cmd_json_print("discover", array, CMD_DONE) :
		      cmd_output_end("discover", CMD_DONE);
}

static int discover_run(const struct host_opts *o, const char *target, bool json)
{
	struct loop_opts lopts = {.name = "kvof"};
	struct host_discover *d = calloc(1, sizeof(*d));
	struct loop *loop = NULL;
	int rc = d != NULL ? loop_open(&lopts, &loop) : -ENOMEM;

	if (rc < 0) {
		cmd_error("discover", "no event loop (%s)", strerror(-rc));
		free(d);
		return CMD_FAILED;
	}
	d->done = discover_done;
	rc = host_discover(loop, o, d);
	while (rc == 0 && !discover_over)
		loop_turn(loop, 100 * NS_PER_MS);
	if (rc == 0)
		rc = discover_res;
	if (rc == 0) {
		rc = discover_print(d, json);
	} else {
		cmd_error("discover", "%s: %s", target, d->why);
		rc = CMD_FAILED;
	}
	loop_close(&loop);
	free(d);
	return rc;
}

int cmd_discover(int argc, char **argv)
{
	struct cmd_common c = {0};
	const struct cmd_opt common[] = {CMD_COMMON_OPTS(&c), {.name = NULL}};
	const struct cmd_usage u = {
		.name = "discover", .args = "tcp://ADDR:PORT", .least = 1, .most = 1,
		.common = common,
		.what = "Lists the subsystems that the Discovery service of an address offers.",
		.more = "Each line is a target that the other commands take.\n",
	};
	struct host_opts o = {0};
	const char *arg[1];
	unsigned count;
	char why[256];
	int rc = cmd_args(&u, argc, argv, arg, &count);

	if (rc >= 0)
		return rc;
	if (host_target_parse(arg[0], &o, why) < 0) {
		cmd_error("discover", "%s", why);
		return CMD_USAGE;
	}
	if (o.subnqn[0] != '\0' || o.nsid != 0) {
		cmd_error("discover", "%s: an address alone, tcp://ADDR:PORT, lists what is there",
			  arg[0]);
		return CMD_USAGE;
	}
	o.header_digest = c.header_digest;
	o.data_digest = c.data_digest;
	o.connect_ns = c.connect_ns;
	if (c.host_nqn != NULL && !nv_nqn_check(c.host_nqn)) {
		cmd_error("discover", "--host-nqn %s: not an NQN", c.host_nqn);
		return CMD_USAGE;
	}
	snprintf(o.hostnqn, sizeof(o.hostnqn), "%s", c.host_nqn != NULL ? c.host_nqn : "");
	return discover_run(&o, arg[0], c.json);
}
