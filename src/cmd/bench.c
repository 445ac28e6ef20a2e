/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof bench fabric: values stored in, or retrieved from, a namespace, with a fixed number of
 * operations in flight, on one loop. All contents are a function of the key and are compared when
 * they are read: in full by a digest (--verify full), or at a stamp in each 4 KiB (--verify
 * stamps). A wrong byte ends the bench with exit code 3.
 *
 *	fill (retrieve, exist) -> measure for --seconds -> drain -> delete the bench's keys
 *
 * Latency runs from submit to done, in a histogram whose buckets are 1/32 wide. CPU time is this
 * process's, user and system, while measuring.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "cmd/bench_block.h"
#include "cmd/cmd.h"
#include "cmd/meter.h"

#define BENCH_STAMP_EVERY 4096
#define BENCH_TURN_NS (10 * NS_PER_MS)

enum bench_phase { BENCH_FILL, BENCH_MEASURE, BENCH_DELETE };

struct bench;

struct bench_worker {
	struct host_op op;
	struct bench *bench;
	struct iovec iov;
	uint64_t key_index;
	uint64_t begun_ns;
	bool busy;
};

struct bench {
	struct cmd_link link;
	struct cmd_common common;
	struct cmd_meter meter;
	const char *verify;
	enum host_op_kind kind;
	uint64_t seconds_ns;
	bool keep;
	struct bench_block_opts block;

	enum bench_phase phase;
	struct bench_worker *worker;   /* [depth] */
	uint8_t *base;                 /* [value_bytes] */
	uint64_t *digest;              /* [keys] */
	struct prng prng;
	uint32_t salt;
	uint64_t next;                 /* fill, delete: next key */
	uint64_t end_ns;
	unsigned flying;
	int failed;                    /* errno of the first failure */
	uint64_t wrong;
};

/* --- contents -------------------- */

static void bench_stamp(const struct bench *b, uint64_t key_index, uint8_t *value)
{
	uint64_t stamp = hash_key16((const uint8_t *)"kvof bench stamp", key_index ^ b->salt);

	for (uint64_t at = 0; at < b->meter.value_bytes; at += BENCH_STAMP_EVERY)
		memcpy(value + at, &stamp, bytes_min(sizeof(stamp), b->meter.value_bytes - at));
}

static bool bench_stamps_right(const struct bench *b, uint64_t key_index, const uint8_t *value)
{
	uint64_t stamp = hash_key16((const uint8_t *)"kvof bench stamp", key_index ^ b->salt);

	for (uint64_t at = 0; at < b->meter.value_bytes; at += BENCH_STAMP_EVERY)
		if (memcmp(value + at, &stamp,
			   bytes_min(sizeof(stamp), b->meter.value_bytes - at)) != 0)
			return false;
	return true;
}

static bool bench_value_right(const struct bench *b, const struct bench_worker *w)
{
	const uint8_t *value = w->iov.iov_base;

	if (w->op.value_bytes != b->meter.value_bytes || w->op.moved_bytes != b->meter.value_bytes)
		return false;
	if (b->verify[0] == 'f')
		return hash_xxh3(value, b->meter.value_bytes) == b->digest[w->key_index];
	return bench_stamps_right(b, w->key_index, value);
}

static struct kv_key bench_key(const struct bench *b, uint64_t key_index)
{
	struct kv_key key = {.len = 16};

	memcpy(key.byte, "kvbn", 4);
	memcpy(key.byte + 4, &b->salt, 4);
	for (unsigned i = 0; i < 8; i++)
		key.byte[8 + i] = (uint8_t)(key_index >> (56 - 8 * i));
	return key;
}

/* --- work -------------------- */

static bool bench_goes_on(const struct bench *b)
{
	if (b->failed != 0)
		return false;
	return b->phase == BENCH_MEASURE ? cmd_now_ns() < b->end_ns : b->next < b->meter.keys;
}

static void bench_submit(struct bench *b, struct bench_worker *w)
{
	bool stores, moves;

	w->key_index = b->phase == BENCH_MEASURE ? prng_below(&b->prng, b->meter.keys) : b->next++;
	w->op.kind = b->phase == BENCH_FILL ? HOST_STORE :
		     b->phase == BENCH_DELETE ? HOST_DELETE : b->kind;
	w->op.key = bench_key(b, w->key_index);
	stores = w->op.kind == HOST_STORE;
	moves = stores || w->op.kind == HOST_RETRIEVE;
	if (stores)
		bench_stamp(b, w->key_index, w->iov.iov_base);
	if (stores && b->phase == BENCH_FILL)
		b->digest[w->key_index] = hash_xxh3(w->iov.iov_base, b->meter.value_bytes);
	w->op.iov = &w->iov;
	w->op.iov_count = moves;
	w->op.bytes = moves ? (uint32_t)b->meter.value_bytes : 0;
	w->begun_ns = cmd_now_ns();
	w->op.deadline_ns = loop_now_ns(b->link.loop) + cmd_link_timeout_ns(&b->link);
	w->busy = true;
	b->flying++;
	host_submit(b->link.host, &w->op);
}

static void bench_over(struct bench_worker *w)
{
	w->busy = false;
	w->bench->flying--;
}

static void bench_done(struct host_op *op, int res)
{
	struct bench_worker *w = container_of(op, struct bench_worker, op);
	struct bench *b = w->bench;

	if (b->phase == BENCH_MEASURE && res == 0) {
		cmd_meter_add(&b->meter, cmd_now_ns() - w->begun_ns);
		if (op->kind == HOST_RETRIEVE && !bench_value_right(b, w)) {
			b->wrong++;
			b->failed = -EBADMSG;
		}
	}
	if (res != 0 && !(res == -ENOENT && b->phase == BENCH_DELETE) && b->failed == 0)
		b->failed = res;
	if (op->busy)
		return;
	bench_over(w);
	if (bench_goes_on(b))
		bench_submit(b, w);
}

static void bench_released(struct host_op *op)
{
	bench_over(container_of(op, struct bench_worker, op));
}

static void bench_progress(const struct bench *b, const char *what, uint64_t *next_ns)
{
	if (cmd_now_ns() < *next_ns || b->common.json || !isatty(STDERR_FILENO))
		return;
	*next_ns = cmd_now_ns() + NS_PER_S / 2;
	fprintf(stderr, "\r%s: %llu operations  ", what,
		(unsigned long long)(b->phase == BENCH_MEASURE ? b->meter.ops : b->next));
}

static int bench_phase_run(struct bench *b, enum bench_phase phase, const char *what)
{
	uint64_t next_ns = cmd_now_ns() + NS_PER_S / 2;

	b->phase = phase;
	b->next = 0;
	b->end_ns = cmd_now_ns() + b->seconds_ns;
	for (unsigned i = 0; i < b->meter.depth && bench_goes_on(b); i++)
		bench_submit(b, &b->worker[i]);
	while (b->flying > 0) {
		loop_turn(b->link.loop, BENCH_TURN_NS);
		bench_progress(b, what, &next_ns);
	}
	return b->failed;
}

/* --- result -------------------- */

static int bench_report(const struct bench *b)
{
	const struct cmd_meter *m = &b->meter;
	bool compared = b->kind == HOST_RETRIEVE;
	json_t *o;

	if (b->common.json) {
		o = cmd_meter_json(m, loop_kind(b->link.loop));
		json_object_set_new(o, "verify", json_string(compared ? b->verify : "none"));
		return cmd_json_print("bench", o, CMD_DONE);
	}
	printf("%s of %llu bytes, %u in flight on %u queues, %u keys, %.2f s\n", m->op_name,
	       (unsigned long long)m->value_bytes, m->depth, m->queues, m->keys, m->seconds);
	cmd_meter_print(m);
	printf("%s\n", compared ? "; every value was compared" : "");
	return cmd_output_end("bench", CMD_DONE);
}

/* A key that was stored and is gone, or that found no room. */
static bool bench_too_much(const struct bench *b)
{
	return b->failed == -ENOSPC || (b->failed == -ENOENT && b->phase == BENCH_MEASURE);
}

static int bench_fail(struct bench *b, const char *what)
{
	const struct host_ns *ns = host_ns(b->link.host);
	uint64_t bytes = b->meter.value_bytes * b->meter.keys;

	if (bench_too_much(b))
		cmd_error("bench", "%s: %u keys of %" PRIu64 " bytes, %" PRIu64 " MiB, are more "
			  "than namespace %u of %" PRIu64 " MiB keeps; lower --keys or "
			  "--value-bytes", what, b->meter.keys, b->meter.value_bytes,
			  bytes / MiB, ns->nsid, ns->capacity_bytes / MiB);
	else if (b->wrong > 0)
		cmd_error("bench", "%s: a value came back with wrong bytes", b->link.target);
	else
		cmd_link_result(&b->link, what, b->failed);
	return CMD_FAILED;
}

static int bench_run(struct bench *b)
{
	int code = CMD_DONE;

	if (b->kind != HOST_STORE && bench_phase_run(b, BENCH_FILL, "filling") != 0)
		return bench_fail(b, "filling");
	cmd_meter_begin(&b->meter);
	if (bench_phase_run(b, BENCH_MEASURE, "measuring") != 0)
		code = bench_fail(b, "measuring");
	cmd_meter_end(&b->meter);
	if (!b->keep && code == CMD_DONE && bench_phase_run(b, BENCH_DELETE, "deleting") != 0)
		code = bench_fail(b, "deleting");
	if (isatty(STDERR_FILENO) && !b->common.json)
		fprintf(stderr, "\r%40s\r", "");
	return code == CMD_DONE ? bench_report(b) : code;
}

static void bench_free(struct bench *b)
{
	for (unsigned i = 0; b->worker != NULL && i < b->meter.depth; i++)
		free(b->worker[i].iov.iov_base);
	free(b->worker);
	free(b->base);
	free(b->digest);
}

static bool bench_alloc(struct bench *b)
{
	size_t room = bytes_round_up(b->meter.value_bytes + 1, 4096);

	b->worker = calloc(b->meter.depth, sizeof(b->worker[0]));
	b->digest = calloc(b->meter.keys, sizeof(b->digest[0]));
	b->base = aligned_alloc(4096, room);
	if (b->worker == NULL || b->digest == NULL || b->base == NULL)
		return false;
	prng_fill(&b->prng, b->base, b->meter.value_bytes);
	for (unsigned i = 0; i < b->meter.depth; i++) {
		struct bench_worker *w = &b->worker[i];

		w->bench = b;
		w->op.done = bench_done;
		w->op.released = bench_released;
		w->iov = (struct iovec){aligned_alloc(4096, room), b->meter.value_bytes};
		if (w->iov.iov_base == NULL)
			return false;
		memcpy(w->iov.iov_base, b->base, b->meter.value_bytes);
	}
	return true;
}

static int bench_check(struct bench *b)
{
	static const enum host_op_kind kinds[] = {
		[CMD_BENCH_STORE] = HOST_STORE,
		[CMD_BENCH_RETRIEVE] = HOST_RETRIEVE,
		[CMD_BENCH_EXIST] = HOST_EXIST,
	};

	if (!cmd_meter_op(&b->meter))
		return CMD_USAGE;
	b->common.block = b->meter.op >= CMD_BENCH_READ;
	b->kind = b->common.block ? HOST_READ : kinds[b->meter.op];
	if (b->meter.value_bytes == 0)
		b->meter.value_bytes = b->common.block ? 4096 : MiB;
	b->block.seconds_ns = b->seconds_ns;
	if (strcmp(b->verify, "full") != 0 && strcmp(b->verify, "stamps") != 0) {
		cmd_error("bench", "--verify %s: full or stamps", b->verify);
		return CMD_USAGE;
	}
	if (b->meter.value_bytes > UINT32_MAX / 2 || b->meter.queues > HOST_QUEUES_MAX ||
	    b->meter.depth > 65536 || b->meter.keys > 100000000 || b->seconds_ns == 0) {
		cmd_error("bench", "values below 2 GiB, at most %u queues, a depth up to 65536, "
			  "at most 100000000 keys, more than 0 seconds", HOST_QUEUES_MAX);
		return CMD_USAGE;
	}
	if (b->meter.queues > b->meter.depth)
		b->meter.queues = b->meter.depth;
	b->common.queues = b->meter.queues;
	b->common.depth = (unsigned)bytes_min(
		HOST_DEPTH_MAX, (b->meter.depth + b->meter.queues - 1) / b->meter.queues);
	return 0;
}

static int cmd_bench_fabric(int argc, char **argv)
{
	struct bench b = {
		.meter = {.op_name = "retrieve", .depth = 32, .queues = 4,
			  .keys = 256},
		.verify = "full", .seconds_ns = 5 * NS_PER_S,
	};
	const struct cmd_opt opts[] = {
		{"op", CMD_TEXT, &b.meter.op_name, "OP", "store, retrieve or exist (retrieve); "
		 "of blocks read or write"},
		{"value-bytes", CMD_BYTES, &b.meter.value_bytes, "N",
		 "size of each value (1MiB), or of each read or write (4096)"},
		{"depth", CMD_COUNT, &b.meter.depth, "D", "operations in flight in all (32)"},
		{"queues", CMD_COUNT, &b.meter.queues, "Q", "I/O queues, a connection each (4)"},
		{"keys", CMD_COUNT, &b.meter.keys, "K", "different keys, taken at random (256)"},
		{"seconds", CMD_SECONDS, &b.seconds_ns, "S", "how long to measure (5)"},
		{"verify", CMD_TEXT, &b.verify, "HOW", "full: all bytes; stamps: 8 in each 4 KiB"},
		{"span", CMD_BYTES, &b.block.span_bytes, "N", "blocks: of the namespace (all)"},
		{"sequential", CMD_FLAG, &b.block.sequential, NULL, "blocks: in order"},
		{"overwrite", CMD_FLAG, &b.block.overwrite, NULL,
		 "blocks: what is there may go; reads write it first, and compare"},
		{"keep", CMD_FLAG, &b.keep, NULL, "leave the bench's keys in the namespace"},
		{.name = NULL},
	};
	const struct cmd_opt common[] = {CMD_COMMON_OPTS(&b.common), {.name = NULL}};
	const struct cmd_usage u = {
		.name = "bench fabric", .args = "TARGET", .least = 1, .most = 1, .opts = opts,
		.common = common,
		.what = "Measures a namespace over the fabric, from one loop of this process.",
		.more = "JSON: op value_bytes depth queues seconds ops_per_s bytes_per_s p50_us\n"
			"p99_us cpu_s and more. CPU is this process's, user and system.\n",
	};
	const char *arg[1];
	unsigned count;
	int rc = cmd_args(&u, argc, argv, arg, &count);

	if (rc < 0)
		rc = bench_check(&b);
	else
		return rc;
	if (rc != 0)
		return rc;
	rc = cmd_link_open("bench", arg[0], &b.common, &b.link);
	if (rc != 0)
		return rc;
	b.salt = (uint32_t)getpid();
	b.prng = prng_of(b.salt);
	if (b.common.block) {
		rc = cmd_bench_block(&b.link, &b.meter, &b.block);
	} else if (bench_alloc(&b)) {
		rc = bench_run(&b);
	} else {
		cmd_error("bench", "no memory for %u values of %llu bytes", b.meter.depth,
			  (unsigned long long)b.meter.value_bytes);
		rc = CMD_FAILED;
	}
	cmd_link_close(&b.link);
	bench_free(&b);
	return rc;
}

int cmd_bench(int argc, char **argv)
{
	if (argc >= 2 && strcmp(argv[1], "fabric") == 0)
		return cmd_bench_fabric(argc - 1, argv + 1);
	if (argc >= 2 && strcmp(argv[1], "store") == 0)
		return cmd_bench_store(argc - 1, argv + 1);
	if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		printf("usage: kvof bench fabric TARGET [OPTIONS]\n"
		       "       kvof bench store --drive PATH[,size=S]... [OPTIONS]\n\n"
		       "fabric measures a namespace over NVMe/TCP, store the drives directly.\n"
		       "`kvof bench fabric --help` and `kvof bench store --help` say more.\n");
		return cmd_output_end("bench", CMD_DONE);
	}
	cmd_error("bench", "fabric or store comes first: kvof bench fabric TARGET, or "
		  "kvof bench store --drive PATH");
	return CMD_USAGE;
}
