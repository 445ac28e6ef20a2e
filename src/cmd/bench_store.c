/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof bench store: values put into, or got from, a store on local drives, with a fixed number of
 * operations in flight, on one loop. No fabric and no copy: what is measured is the store and its
 * drives.
 *
 *	fill (retrieve, exist) -> flush -> measure for --seconds -> drain -> close
 *
 * Every value that is read is checked by the store itself (checksum, key, place) and for its stamp
 * here; a wrong one ends the bench with exit code 3. CPU time is this process's, user and system,
 * while measuring.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "cmd/cmd.h"
#include "cmd/drives.h"
#include "loop/loop.h"
#include "store/store.h"

#define STAMP_EVERY 4096
#define TURN_NS (10 * NS_PER_MS)
#define STEPS 32
#define BUCKETS (64 * STEPS)

enum phase { PHASE_FILL, PHASE_MEASURE };

struct bench;

struct worker {
	struct store_op op;
	struct store_buf_wait wait;
	struct bench *bench;
	struct store_buf *buf;
	uint64_t key_index, begun_ns;
};

struct bench {
	struct loop *loop;
	struct store *store;
	struct store_opts opts;
	struct cmd_drives drives;
	const char *op_name;
	uint64_t value_bytes, seconds_ns, cap_bytes;
	unsigned depth, keys;
	bool json, format;

	enum { BENCH_STORE, BENCH_RETRIEVE, BENCH_EXIST } kind;
	enum phase phase;
	struct worker *worker;       /* [depth] */
	struct prng prng;
	uint64_t next, end_ns, ops, misses;
	unsigned flying;
	int failed;
	uint64_t histogram[BUCKETS];
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static double cpu_s(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
	       (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static unsigned bucket_of(uint64_t ns)
{
	unsigned shift = 0;

	while (ns >> shift >= 2 * STEPS)
		shift++;
	return shift * STEPS + (unsigned)(ns >> shift);
}

/* Upper end of the bucket in which that share of all lies. */
static double latency_us(const struct bench *b, double share)
{
	uint64_t want = (uint64_t)(share * (double)b->ops), seen = 0;

	for (unsigned i = 0; i < BUCKETS; i++) {
		unsigned shift = i < 2 * STEPS ? 0 : i / STEPS - 1;

		seen += b->histogram[i];
		if (seen > want || (seen == b->ops && seen > 0))
			return (double)((uint64_t)(i - shift * STEPS + 1) << shift) / 1e3;
	}
	return 0;
}

/* --- contents -------------------- */

static struct kv_key key_of(uint64_t key_index)
{
	struct kv_key key = {.len = 16};
	uint64_t mixed = hash_key16((const uint8_t *)"kvof bench store", key_index);

	memcpy(key.byte, &mixed, sizeof(mixed));
	memcpy(key.byte + 8, &key_index, sizeof(key_index));
	return key;
}

/* Only the first bytes of each piece's blocks carry the stamp; the rest is what the pool's memory
 * holds. */
static bool stamps(const struct store_buf *buf, uint64_t key_index, bool check)
{
	uint64_t stamp = hash_key16((const uint8_t *)"kvof bench stamp", key_index);

	for (unsigned i = 0; i < buf->piece_count; i++) {
		uint8_t *at = buf->piece[i].iov_base;

		for (size_t o = 0; o < buf->piece[i].iov_len; o += STAMP_EVERY) {
			size_t left = buf->piece[i].iov_len - o;
			size_t n = left < sizeof(stamp) ? left : sizeof(stamp);

			if (check && memcmp(at + o, &stamp, n) != 0)
				return false;
			if (!check)
				memcpy(at + o, &stamp, n);
		}
	}
	return true;
}

/* --- work -------------------- */

static void submit(struct bench *b, struct worker *w);

static bool goes_on(const struct bench *b)
{
	if (b->failed != 0)
		return false;
	return b->phase == PHASE_MEASURE ? now_ns() < b->end_ns : b->next < b->keys;
}

static void op_done(struct store_op *op, int res)
{
	struct worker *w = container_of(op, struct worker, op);
	struct bench *b = w->bench;
	struct store_buf *buf = w->buf != NULL ? w->buf : op->buf;

	if (res == -ENOENT)
		b->misses++;
	else if (res != 0 && b->failed == 0)
		b->failed = res;
	if (res == 0 && b->phase == PHASE_MEASURE) {
		b->histogram[bucket_of(now_ns() - w->begun_ns)]++;
		b->ops++;
		if (b->kind == BENCH_RETRIEVE && !stamps(op->buf, w->key_index, true))
			b->failed = -EBADMSG;
	}
	w->buf = NULL;
	if (buf != NULL)
		store_buf_give(b->store, &buf);
	op->buf = NULL;
	b->flying--;
	if (goes_on(b))
		submit(b, w);
}

static void buf_ready(struct store_buf_wait *wait, struct store_buf *buf)
{
	struct worker *w = container_of(wait, struct worker, wait);

	stamps(buf, w->key_index, false);
	w->buf = buf;
	w->op = (struct store_op){.key = key_of(w->key_index), .buf = buf, .done = op_done};
	store_put(w->bench->store, &w->op);
}

static void submit(struct bench *b, struct worker *w)
{
	bool measure = b->phase == PHASE_MEASURE;

	w->key_index = measure ? prng_below(&b->prng, b->keys) : b->next++;
	w->begun_ns = now_ns();
	w->op.buf = NULL;
	b->flying++;
	if (!measure || b->kind == BENCH_STORE) {
		w->wait = (struct store_buf_wait){.payload_bytes = (uint32_t)b->value_bytes,
						  .ready = buf_ready};
		store_buf_take(b->store, &w->wait);
		return;
	}
	w->op = (struct store_op){.key = key_of(w->key_index), .done = op_done,
				  .want_bytes = b->kind == BENCH_RETRIEVE ? UINT32_MAX : 0};
	store_get(b->store, &w->op);
}

static void phase_run(struct bench *b, enum phase phase)
{
	b->phase = phase;
	b->next = 0;
	b->end_ns = now_ns() + b->seconds_ns;
	for (unsigned i = 0; i < b->depth && goes_on(b); i++)
		submit(b, &b->worker[i]);
	while (b->flying > 0)
		loop_turn(b->loop, TURN_NS);
}

static void flush_done(struct store_op *op, int res)
{
	struct worker *w = container_of(op, struct worker, op);

	if (res != 0)
		w->bench->failed = res;
	w->bench->flying--;
}

static void flush(struct bench *b)
{
	b->worker[0].op = (struct store_op){.done = flush_done};
	b->flying = 1;
	store_flush(b->store, &b->worker[0].op);
	while (b->flying > 0)
		loop_turn(b->loop, TURN_NS);
}

static void closed(void *arg)
{
	*(bool *)arg = true;
}

/* --- options and result -------------------- */

static int report(const struct bench *b, double seconds, double cpu)
{
	double ops_per_s = (double)b->ops / seconds;
	double bytes_per_s = b->kind == BENCH_EXIST ? 0 : ops_per_s * (double)b->value_bytes;
	struct store_stat stat;

	store_stat(b->store, &stat);
	if (b->json)
		return cmd_json_print("bench", json_pack(
			"{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f,"
			" s:I, s:I, s:I, s:I, s:s}",
			"op", b->op_name, "value_bytes", (json_int_t)b->value_bytes, "depth",
			(json_int_t)b->depth, "queues", (json_int_t)1, "seconds", seconds,
			"ops_per_s", ops_per_s, "bytes_per_s", bytes_per_s, "p50_us",
			latency_us(b, 0.50), "p99_us", latency_us(b, 0.99), "cpu_s", cpu,
			"keys", (json_int_t)b->keys, "drives", (json_int_t)b->opts.drive_count,
			"misses", (json_int_t)b->misses, "evicted_keys",
			(json_int_t)stat.evicted_keys, "loop", loop_kind()), CMD_DONE);
	printf("%s of %llu bytes, %u in flight on %u drives, %u keys, %.2f s\n", b->op_name,
	       (unsigned long long)b->value_bytes, b->depth, b->opts.drive_count, b->keys, seconds);
	printf("  %.0f operations/s, %.3f GB/s; latency p50 %.0f us, p99 %.0f us; CPU %.2f s; "
	       "%llu misses\n", ops_per_s, bytes_per_s / 1e9, latency_us(b, 0.50),
	       latency_us(b, 0.99), cpu, (unsigned long long)b->misses);
	return cmd_output_end("bench", CMD_DONE);
}

static int measure(struct bench *b)
{
	uint64_t begun;
	double cpu;

	if (b->kind != BENCH_STORE) {
		phase_run(b, PHASE_FILL);
		flush(b);
	}
	begun = now_ns();
	cpu = cpu_s();
	if (b->failed == 0)
		phase_run(b, PHASE_MEASURE);
	if (b->failed == 0)
		return report(b, (double)(now_ns() - begun) / 1e9, cpu_s() - cpu);
	cmd_error("bench", b->failed == -EBADMSG ? "%s: a value came back with wrong bytes"
						 : "%s: the store failed", b->drives.path[0]);
	return CMD_FAILED;
}

static int run(struct bench *b)
{
	struct loop_opts lo = {.name = "bench"};
	struct store_report rep;
	bool done = false;
	int code = CMD_FAILED;

	if (loop_open(&lo, &b->loop) != 0) {
		cmd_error("bench", "no loop can be opened");
		return CMD_FAILED;
	}
	if (store_open(&b->opts, b->loop, &b->store, &rep) != 0) {
		cmd_error("bench", "%s", rep.text);
		loop_close(&b->loop);
		return CMD_FAILED;
	}
	if (rep.keys > 0)
		cmd_error("bench", "drive %s: holds %llu values, which a bench would evict; "
			  "--format to drop them", b->drives.path[0], (unsigned long long)rep.keys);
	else
		code = measure(b);
	store_close(&b->store, closed, &done);
	while (!done)
		loop_turn(b->loop, TURN_NS);
	loop_close(&b->loop);
	return code;
}

static int check(struct bench *b)
{
	static const char *const names[] = {"store", "retrieve", "exist"};
	unsigned kind = 0;
	uint64_t least = 512 * KiB;

	while (kind < ARRAY_COUNT(names) && strcmp(names[kind], b->op_name) != 0)
		kind++;
	if (kind == ARRAY_COUNT(names)) {
		cmd_error("bench", "--op %s: store, retrieve or exist", b->op_name);
		return CMD_USAGE;
	}
	b->kind = kind;
	memcpy(b->opts.drive, b->drives.drive, sizeof(b->opts.drive));
	b->opts.drive_count = b->drives.count;
	if (b->value_bytes > STORE_VALUE_BYTES_LIMIT || b->depth > 4096 || b->seconds_ns == 0) {
		cmd_error("bench", "values of at most 64 MiB, a depth of at most 4096, "
				   "more than 0 s");
		return CMD_USAGE;
	}
	b->opts.value_bytes_max = (uint32_t)(b->value_bytes > least ? b->value_bytes : least);
	b->opts.buffer_bytes = (b->depth + 4) * (bytes_round_up(b->value_bytes, 4096) + 8192);
	b->opts.evict = true;
	b->opts.format = b->format;
	b->opts.cap_bytes = b->cap_bytes;
	return -1;
}

int cmd_bench_store(int argc, char **argv)
{
	struct bench b = {
		.op_name = "retrieve", .value_bytes = MiB, .depth = 32, .keys = 256,
		.seconds_ns = 5 * NS_PER_S,
	};
	const struct cmd_opt opts[] = {
		{"op", CMD_TEXT, &b.op_name, "OP", "store, retrieve or exist (retrieve)"},
		{"value-bytes", CMD_BYTES, &b.value_bytes, "N", "size of each value (1MiB)"},
		{"depth", CMD_COUNT, &b.depth, "D", "operations in flight in all (32)"},
		{"keys", CMD_COUNT, &b.keys, "K", "different keys, taken at random (256)"},
		{"seconds", CMD_SECONDS, &b.seconds_ns, "S", "how long to measure (5)"},
		{"cap", CMD_BYTES, &b.cap_bytes, "N", "most bytes on the drives in all"},
		{"format", CMD_FLAG, &b.format, NULL, "overwrite what the drives hold"},
		{"json", CMD_FLAG, &b.json, NULL, "print JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = "bench store", .args = "--drive PATH[,size=S]...", .opts = opts,
		.what = "Measures a store on local drives, without a fabric.",
		.more = "--drive PATH[,size=S] may be given up to 16 times; size= makes a\n"
			"missing file.\n",
	};
	unsigned count;
	int rc = cmd_drives_take("bench store", &argc, argv, &b.drives);

	if (rc >= 0)
		return rc;
	rc = cmd_args(&u, argc, argv, NULL, &count);
	if (rc < 0)
		rc = check(&b);
	if (rc >= 0)
		return rc;
	b.prng = prng_of(1);
	b.worker = calloc(b.depth, sizeof(*b.worker));
	if (b.worker == NULL) {
		cmd_error("bench", "no memory");
		return CMD_FAILED;
	}
	for (unsigned i = 0; i < b.depth; i++)
		b.worker[i].bench = &b;
	rc = run(&b);
	free(b.worker);
	return rc;
}
