/* SPDX-License-Identifier: Apache-2.0 */
/* kvof put, get, exists, rm: one value, one answer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/cmd.h"
#include "cmd/domains.h"

#define VALUE_BYTES_LIMIT (64 * MiB)   /* the most that any namespace can have */

/* What all four begin with: the arguments, the key, a connection. -1: go on. */
struct rw {
	struct cmd_link link;
	struct cmd_common common;
	struct kv_key key;
	const char *arg[3];
	unsigned args;
	bool if_absent, if_present;
	bool reads;                    /* it begins with a value from FILE or standard input */
	struct cmd_value value;
};

/* A value is read before there is a connection: standard input may take its time. */
static int rw_value_read(struct rw *rw)
{
	if (!rw->reads)
		return CMD_DONE;
	return cmd_value_read("put", rw->args > 2 ? rw->arg[2] : NULL, VALUE_BYTES_LIMIT,
			      &rw->value);
}

static int rw_begin(struct rw *rw, struct cmd_usage *u, const struct cmd_opt *opts, int argc,
		    char **argv)
{
	const struct cmd_opt common[] = {CMD_COMMON_OPTS(&rw->common), {.name = NULL}};
	char why[128];
	int rc;

	u->opts = opts;
	u->common = common;
	rc = cmd_args(u, argc, argv, rw->arg, &rw->args);
	u->common = NULL;
	if (rc >= 0)
		return rc;
	if (rw->if_absent && rw->if_present) {
		cmd_error(u->name, "--if-absent and --if-present exclude each other");
		return CMD_USAGE;
	}
	if (!cmd_key_parse(rw->arg[1], &rw->key, why)) {
		cmd_error(u->name, "%s", why);
		return CMD_USAGE;
	}
	rc = cmd_target_check(u->name, rw->arg[0]);
	if (rc == 0)
		rc = rw_value_read(rw);
	if (rc == 0)
		rc = cmd_link_open(u->name, rw->arg[0], &rw->common, &rw->link);
	if (rc == 0)
		return -1;
	free(rw->value.at);
	return rc;
}

static json_t *rw_json(const struct kv_key *key, const char *what, bool is, uint64_t value_bytes)
{
	char hex[2 * KV_KEY_BYTES_MAX + 1];

	cmd_key_hex(key, hex);
	return json_pack("{s:s, s:b, s:I}", "key", hex, what, is, "value_bytes",
			 (json_int_t)value_bytes);
}

/* --- put -------------------- */

static int put_run(struct rw *rw)
{
	uint32_t most = host_ns(rw->link.host)->value_bytes_max;
	struct iovec iov = {rw->value.at, rw->value.bytes};
	int rc, code;

	if (rw->value.bytes > most) {
		cmd_error("put", "%s: %zu bytes; the longest value of this namespace has %u",
			  rw->arg[1], rw->value.bytes, most);
		return CMD_FAILED;
	}
	rc = cmd_link_op(&rw->link, &(struct host_op){
		.kind = HOST_STORE,
		.key = rw->key,
		.if_absent = rw->if_absent,
		.if_present = rw->if_present,
		.iov = &iov,
		.iov_count = 1,
		.bytes = (uint32_t)rw->value.bytes,
	});
	if (rc == -ENOENT && rw->if_present) {
		cmd_error("put", "%s: no such key, nothing was stored", rw->arg[1]);
		code = CMD_REFUSED;
	} else {
		code = cmd_link_result(&rw->link, rw->arg[1], rc);
	}
	if (rw->common.json && (code == CMD_DONE || code == CMD_REFUSED))
		return cmd_json_print("put", rw_json(&rw->key, "stored", rc == 0,
						     rw->value.bytes), code);
	return code;
}

int cmd_put(int argc, char **argv)
{
	struct rw rw = {.reads = true};
	const struct cmd_opt opts[] = {
		{"if-absent", CMD_FLAG, &rw.if_absent, NULL,
		 "only if there is no such key (else exit 4)"},
		{"if-present", CMD_FLAG, &rw.if_present, NULL,
		 "only if there is such a key (else exit 4)"},
		{.name = NULL},
	};
	struct cmd_usage u = {
		.name = "put", .args = "TARGET KEY [FILE]", .least = 2, .most = 3,
		.what = "Stores FILE, or standard input, as the value of KEY; all or nothing.",
		.more = "When it ends with 0 the value is on the array's drives.\n",
	};
	int rc = rw_begin(&rw, &u, opts, argc, argv);

	if (rc >= 0)
		return rc;
	rc = put_run(&rw);
	free(rw.value.at);
	cmd_link_close(&rw.link);
	return rc;
}

/* --- get -------------------- */

static int get_run(struct rw *rw)
{
	const char *path = rw->args > 2 ? rw->arg[2] : NULL;
	uint32_t room_bytes = host_ns(rw->link.host)->value_bytes_max;
	struct iovec iov = {malloc(room_bytes), room_bytes};
	struct host_op op = {
		.kind = HOST_RETRIEVE, .key = rw->key, .iov = &iov, .iov_count = 1,
		.bytes = room_bytes,
	};
	int rc, code;

	if (iov.iov_base == NULL) {
		cmd_error("get", "no memory for a value of %u bytes", room_bytes);
		return CMD_FAILED;
	}
	rc = cmd_link_op(&rw->link, &op);
	if (rc == 0 && op.value_bytes > op.moved_bytes) {
		cmd_error("get", "%s: the value has %u bytes, the array sends at most %u",
			  rw->arg[1], op.value_bytes, room_bytes);
		code = CMD_FAILED;
	} else {
		code = cmd_link_result(&rw->link, rw->arg[1], rc);
	}
	/* With --json standard output is the object's: the value goes to a file, or is only
	 * looked at. */
	if (code == CMD_DONE && (path != NULL || !rw->common.json))
		code = cmd_value_write("get", path, iov.iov_base, op.value_bytes);
	free(iov.iov_base);
	if (rw->common.json && (code == CMD_DONE || code == CMD_MISS))
		return cmd_json_print("get", rw_json(&rw->key, "found", rc == 0, op.value_bytes),
				      code);
	return code;
}

int cmd_get(int argc, char **argv)
{
	struct cmd_usage u = {
		.name = "get", .args = "TARGET KEY [FILE]", .least = 2, .most = 3,
		.what = "Retrieves the value of KEY to FILE, or to standard output.",
		.more = "FILE appears only when the whole value is there. Exit code 1: no such\n"
			"key; 3: also when the stored value is damaged: nothing of it is written.\n"
			"With --json and no FILE the value is retrieved but not written.\n",
	};
	struct rw rw = {0};
	int rc = rw_begin(&rw, &u, NULL, argc, argv);

	if (rc >= 0)
		return rc;
	rc = get_run(&rw);
	cmd_link_close(&rw.link);
	return rc;
}

/* --- exists, rm -------------------- */

int cmd_exists(int argc, char **argv)
{
	struct cmd_usage u = {
		.name = "exists", .args = "TARGET KEY", .least = 2, .most = 2,
		.what = "Ends with 0 if there is such a key, with 1 if there is not.",
	};
	struct rw rw = {0};
	uint32_t value_bytes = 0;
	int rc = rw_begin(&rw, &u, NULL, argc, argv), code;

	if (rc >= 0)
		return rc;
	rc = cmd_link_op(&rw.link, &(struct host_op){.kind = HOST_EXIST, .key = rw.key});
	if (rc == 0 && rw.common.json)
		rc = cmd_link_length(&rw.link, &rw.key, &value_bytes);
	code = rc == -ENOENT ? CMD_MISS : cmd_link_result(&rw.link, rw.arg[1], rc);
	if (rw.common.json && (code == CMD_DONE || code == CMD_MISS))
		code = cmd_json_print("exists", rw_json(&rw.key, "found", rc == 0, value_bytes),
				      code);
	cmd_link_close(&rw.link);
	return code;
}

int cmd_rm(int argc, char **argv)
{
	struct cmd_usage u = {
		.name = "rm", .args = "TARGET KEY", .least = 2, .most = 2,
		.what = "Deletes KEY and its value. Ends with 1 if there is no such key.",
		.more = "kvof rm TARGET --domain D, without KEY, deletes every value of one\n"
			"domain; D is what kvof stat TARGET --domains shows. All values are read\n"
			"to find them. Ends with 1 if there are none.\n",
	};
	struct rw rw = {0};
	uint32_t value_bytes = 0;
	int rc, code;

	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strcmp(argv[i], "--domain") == 0 || strncmp(argv[i], "--domain=", 9) == 0)
			return domains_rm(argc, argv);
	rc = rw_begin(&rw, &u, NULL, argc, argv);
	if (rc >= 0)
		return rc;
	if (rw.common.json)
		(void)cmd_link_length(&rw.link, &rw.key, &value_bytes);
	rc = cmd_link_op(&rw.link, &(struct host_op){.kind = HOST_DELETE, .key = rw.key});
	code = cmd_link_result(&rw.link, rw.arg[1], rc);
	if (rw.common.json && (code == CMD_DONE || code == CMD_MISS))
		code = cmd_json_print("rm", rw_json(&rw.key, "found", rc == 0,
						    rc == 0 ? value_bytes : 0), code);
	cmd_link_close(&rw.link);
	return code;
}
