/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof fsck: reads every record on the drives of an array that is not in use, and says what is
 * wrong. It repairs nothing: a store passes over what is wrong and evicts it in time. Exit code 0:
 * nothing is wrong; 3: something is, or the drives can't be read.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cmd/cmd.h"
#include "cmd/drives.h"
#include "loop/loop.h"
#include "store/check.h"

static void say(void *arg, const char *line)
{
	(void)arg;
	cmd_error("fsck", "%s", line);
}

static int report(const struct store_check *c, bool json)
{
	const struct block_check *b = &c->block;
	uint64_t bad = c->superblocks_bad + c->frames_bad + c->records_bad + b->superblocks_bad +
		       b->pages_bad + b->slots_twice;
	int code = bad == 0 ? CMD_DONE : CMD_FAILED;

	if (json)
		return cmd_json_print("fsck", json_pack(
			"{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
			"namespaces", (json_int_t)c->namespaces,
			"values", (json_int_t)c->values, "deletes", (json_int_t)c->deletes,
			"value_bytes", (json_int_t)c->value_bytes,
			"segments_sealed", (json_int_t)c->segments_sealed,
			"segments_open", (json_int_t)c->segments_open,
			"segments_free", (json_int_t)c->segments_free,
			"superblocks_bad", (json_int_t)(c->superblocks_bad + b->superblocks_bad),
			"frames_bad", (json_int_t)c->frames_bad,
			"records_bad", (json_int_t)c->records_bad,
			"block_chunks", (json_int_t)b->used,
			"block_pages_bad", (json_int_t)b->pages_bad,
			"block_slots_twice", (json_int_t)b->slots_twice), code);
	printf("%llu values of %llu bytes and %llu deletes in %llu sealed and %llu open segments, "
	       "%llu free\n", (unsigned long long)c->values, (unsigned long long)c->value_bytes,
	       (unsigned long long)c->deletes, (unsigned long long)c->segments_sealed,
	       (unsigned long long)c->segments_open, (unsigned long long)c->segments_free);
	if (b->pages > 0)
		printf("%llu chunks of block namespaces; %llu map pages are wrong, %llu chunks "
		       "have one place\n", (unsigned long long)b->used,
		       (unsigned long long)b->pages_bad, (unsigned long long)b->slots_twice);
	printf("%llu copies of labels and superblocks, %llu headers or footers and %llu records "
	       "are wrong\n", (unsigned long long)(c->superblocks_bad + b->superblocks_bad),
	       (unsigned long long)c->frames_bad, (unsigned long long)c->records_bad);
	return cmd_output_end("fsck", code);
}

int cmd_fsck(int argc, char **argv)
{
	struct cmd_drives drives;
	struct store_opts so = {.drive_count = 0};
	struct loop_opts lo = {.name = "fsck"};
	struct store_check check;
	struct loop *loop;
	bool json = false;
	unsigned count;
	const struct cmd_opt opts[] = {
		{"json", CMD_FLAG, &json, NULL, "print JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = "fsck", .args = "--drive PATH...", .opts = opts,
		.what = "Checks the drives of an array that is not running; changes nothing.",
		.more = "Give all drives of the set. Values that were overwritten and not evicted "
			"yet are counted too.\nEnds with 0 if nothing is wrong, 3 if something "
			"is or the drives can't be read, 2 for wrong usage.\n",
	};
	int rc = cmd_drives_take("fsck", &argc, argv, &drives);

	if (rc < 0)
		rc = cmd_args(&u, argc, argv, NULL, &count);
	if (rc >= 0)
		return rc;
	for (unsigned i = 0; i < drives.count; i++)
		so.drive[so.drive_count++].path = drives.path[i];
	if (loop_open(&lo, &loop) != 0) {
		cmd_error("fsck", "no loop can be opened");
		return CMD_FAILED;
	}
	rc = store_check(&so, loop, say, NULL, &check);
	loop_close(&loop);
	return rc != 0 ? CMD_FAILED : report(&check, json);
}
