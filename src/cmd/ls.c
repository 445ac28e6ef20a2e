/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof ls: keys in order of their bytes, a page at a time; the lengths of a page's values are asked
 * for side by side, by Retrieves without room.
 *
 * The scan is not a snapshot: each key that lives through it is seen once, others may be.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "nvme/kv.h"

#define LS_PAGE_BYTES (64 * KiB)
#define LS_PAGE_KEYS 4096              /* more than fit a page, in records of at least 8 bytes */
#define LS_TURN_NS (100 * NS_PER_MS)

struct ls_key {
	struct host_op op;
	struct ls *ls;
	int res;
	bool over;
};

struct ls {
	struct cmd_link link;
	struct cmd_common common;
	uint8_t *page;
	struct ls_key *key;            /* [LS_PAGE_KEYS] */
	unsigned keys, left;
	json_t *array;
};

static void ls_over(struct ls_key *k)
{
	k->over = true;
	k->ls->left--;
}

static void ls_done(struct host_op *op, int res)
{
	struct ls_key *k = container_of(op, struct ls_key, op);

	k->res = res;
	if (!op->busy)
		ls_over(k);
}

static void ls_released(struct host_op *op)
{
	ls_over(container_of(op, struct ls_key, op));
}

/* Asks for the length of each value of the page. */
static void ls_lengths(struct ls *ls)
{
	uint64_t timeout_ns = cmd_link_timeout_ns(&ls->link);

	loop_turn(ls->link.loop, 0);   /* its clock may be old: output may have waited */
	ls->left = ls->keys;
	for (unsigned i = 0; i < ls->keys; i++) {
		struct ls_key *k = &ls->key[i];

		k->ls = ls;
		k->op.kind = HOST_RETRIEVE;
		k->op.done = ls_done;
		k->op.released = ls_released;
		k->op.deadline_ns = loop_now_ns(ls->link.loop) + timeout_ns;
		host_submit(ls->link.host, &k->op);
	}
	while (ls->left > 0)
		loop_turn(ls->link.loop, LS_TURN_NS);
}

static bool ls_printable(const struct kv_key *key)
{
	for (unsigned i = 0; i < key->len; i++)
		if (!isgraph(key->byte[i]))
			return false;
	return true;
}

static int ls_print(struct ls *ls)
{
	char hex[2 * KV_KEY_BYTES_MAX + 1];

	for (unsigned i = 0; i < ls->keys; i++) {
		struct ls_key *k = &ls->key[i];

		cmd_key_hex(&k->op.key, hex);
		if (k->res == -ENOENT)
			continue;      /* deleted meanwhile */
		if (k->res != 0 && k->res != -EBADMSG)
			return cmd_link_result(&ls->link, hex, k->res);
		if (ls->common.json)
			json_array_append_new(ls->array, json_pack("{s:s, s:I}", "key", hex,
				"value_bytes", (json_int_t)k->op.value_bytes));
		else if (ls_printable(&k->op.key))
			printf("%-32s %10u bytes  text:%.16s\n", hex, k->op.value_bytes,
			       (const char *)k->op.key.byte);
		else
			printf("%-32s %10u bytes\n", hex, k->op.value_bytes);
	}
	return -1;
}

/* Reads one page from *from, which is skipped when it was printed already. -1 go on, else a
 * code. */
static int ls_page(struct ls *ls, struct kv_key *from, bool first, bool *more)
{
	const struct host_ns *ns = host_ns(ls->link.host);
	uint32_t bytes = (uint32_t)bytes_min(LS_PAGE_BYTES, ns->value_bytes_max);
	struct iovec iov = {ls->page, bytes};
	struct host_op op = {
		.kind = HOST_LIST, .key = *from, .iov = &iov, .iov_count = 1, .bytes = bytes,
	};
	struct nv_kv_list_in in;
	struct kv_key key;
	int rc = cmd_link_op(&ls->link, &op);

	if (rc != 0)
		return cmd_link_result(&ls->link, "list of keys", rc);
	ls->keys = 0;
	rc = nv_kv_list_open(&in, ls->page, op.moved_bytes);
	while (rc == 0 && ls->keys < LS_PAGE_KEYS && (rc = nv_kv_list_next(&in, &key)) == 1) {
		rc = kv_key_compare(&key, from) < 0 ? -EPROTO : 0;
		if (rc == 0 && (first || !kv_key_equal(&key, from)))
			ls->key[ls->keys++] = (struct ls_key){.op.key = key};
		if (rc == 0)
			*from = key;
		first = false;
	}
	if (rc < 0) {
		cmd_error("ls", "%s: the list of keys is not well formed", ls->link.target);
		return CMD_FAILED;
	}
	*more = ls->keys > 0;
	return -1;
}

static int ls_run(struct ls *ls, struct kv_key from)
{
	bool first = true, more = true;
	int rc = -1;

	while (rc < 0 && more) {
		rc = ls_page(ls, &from, first, &more);
		first = false;
		if (rc >= 0)
			break;
		ls_lengths(ls);
		rc = ls_print(ls);
	}
	if (rc >= 0)
		return rc;
	if (!ls->common.json)
		return cmd_output_end("ls", CMD_DONE);
	rc = cmd_json_print("ls", ls->array, CMD_DONE);
	ls->array = NULL;
	return rc;
}

int cmd_ls(int argc, char **argv)
{
	const char *from_text = NULL, *arg[1];
	struct ls ls = {0};
	const struct cmd_opt opts[] = {
		{"from", CMD_TEXT, &from_text, "KEY", "begin with this key, or the next there is"},
		{.name = NULL},
	};
	const struct cmd_opt common[] = {CMD_COMMON_OPTS(&ls.common), {.name = NULL}};
	const struct cmd_usage u = {
		.name = "ls", .args = "TARGET", .least = 1, .most = 1, .opts = opts,
		.common = common,
		.what = "Lists keys in the order of their bytes, and the sizes of their values.",
		.more = "With --json an array of {key, value_bytes}; keys are hex.\n",
	};
	struct kv_key from = {0};
	unsigned count;
	char why[128];
	int rc = cmd_args(&u, argc, argv, arg, &count);

	if (rc >= 0)
		return rc;
	if (from_text != NULL && !cmd_key_parse(from_text, &from, why)) {
		cmd_error("ls", "%s", why);
		return CMD_USAGE;
	}
	rc = cmd_link_open("ls", arg[0], &ls.common, &ls.link);
	if (rc != 0)
		return rc;
	ls.page = malloc(LS_PAGE_BYTES);
	ls.key = calloc(LS_PAGE_KEYS, sizeof(ls.key[0]));
	ls.array = json_array();
	rc = CMD_FAILED;
	if (ls.page != NULL && ls.key != NULL && ls.array != NULL)
		rc = ls_run(&ls, from);
	else
		cmd_error("ls", "no memory");
	json_decref(ls.array);
	free(ls.page);
	free(ls.key);
	cmd_link_close(&ls.link);
	return rc;
}
