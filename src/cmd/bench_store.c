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
#include <unistd.h>

#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "cmd/cmd.h"
#include "cmd/drives.h"
#include "cmd/meter.h"
#include "loop/loop.h"
#include "store/store.h"

#define STAMP_EVERY 4096
#define TURN_NS (10 * NS_PER_MS)

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
	struct cmd_meter meter;
	uint64_t seconds_ns, cap_bytes;
	bool json, format;

	enum phase phase;
	struct worker *worker;       /* [depth] */
	struct prng prng;
	uint64_t next, end_ns, misses;
	unsigned flying;
	int failed;
};

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
	return b->phase == PHASE_MEASURE ? cmd_now_ns() < b->end_ns : b->next < b->meter.keys;
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
		cmd_meter_add(&b->meter, cmd_now_ns() - w->begun_ns);
		if (b->meter.op == CMD_BENCH_RETRIEVE && !stamps(op->buf, w->key_index, true))
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

	w->key_index = measure ? prng_below(&b->prng, b->meter.keys) : b->next++;
	w->begun_ns = cmd_now_ns();
	w->op.buf = NULL;
	b->flying++;
	if (!measure || b->meter.op == CMD_BENCH_STORE) {
		w->wait = (struct store_buf_wait){.payload_bytes = (uint32_t)b->meter.value_bytes,
						  .ready = buf_ready};
		store_buf_take(b->store, &w->wait);
		return;
	}
	w->op = (struct store_op){.key = key_of(w->key_index), .done = op_done,
				  .want_bytes = b->meter.op == CMD_BENCH_RETRIEVE ? UINT32_MAX : 0};
	store_get(b->store, &w->op);
}

static void phase_run(struct bench *b, enum phase phase)
{
	b->phase = phase;
	b->next = 0;
	b->end_ns = cmd_now_ns() + b->seconds_ns;
	for (unsigned i = 0; i < b->meter.depth && goes_on(b); i++)
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

static int report(const struct bench *b)
{
	const struct cmd_meter *m = &b->meter;
	struct store_stat stat;
	json_t *o;

	store_stat(b->store, &stat);
	if (b->json) {
		o = cmd_meter_json(m, loop_kind(b->loop));
		json_object_set_new(o, "drives", json_integer(b->opts.drive_count));
		json_object_set_new(o, "misses", json_integer((json_int_t)b->misses));
		json_object_set_new(o, "evicted_keys", json_integer((json_int_t)stat.evicted_keys));
		return cmd_json_print("bench", o, CMD_DONE);
	}
	printf("%s of %llu bytes, %u in flight on %u drives, %u keys, %.2f s\n", m->op_name,
	       (unsigned long long)m->value_bytes, m->depth, b->opts.drive_count, m->keys,
	       m->seconds);
	cmd_meter_print(m);
	printf("; %llu misses\n", (unsigned long long)b->misses);
	return cmd_output_end("bench", CMD_DONE);
}

static int measure(struct bench *b)
{
	if (b->meter.op != CMD_BENCH_STORE) {
		phase_run(b, PHASE_FILL);
		flush(b);
	}
	cmd_meter_begin(&b->meter);
	if (b->failed == 0)
		phase_run(b, PHASE_MEASURE);
	cmd_meter_end(&b->meter);
	if (b->failed == 0)
		return report(b);
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
	uint64_t least = 512 * KiB;

	if (!cmd_meter_op(&b->meter))
		return CMD_USAGE;
	if (b->meter.op >= CMD_BENCH_READ) {
		cmd_error("bench", "--op %s: store, retrieve or exist", b->meter.op_name);
		return CMD_USAGE;
	}
	memcpy(b->opts.drive, b->drives.drive, sizeof(b->opts.drive));
	b->opts.drive_count = b->drives.count;
	if (b->meter.value_bytes > STORE_VALUE_BYTES_LIMIT || b->meter.depth > 4096 ||
	    b->seconds_ns == 0) {
		cmd_error("bench", "values of at most 64 MiB, a depth of at most 4096, "
				   "more than 0 s");
		return CMD_USAGE;
	}
	b->opts.value_bytes_max =
		(uint32_t)(b->meter.value_bytes > least ? b->meter.value_bytes : least);
	b->opts.buffer_bytes =
		(b->meter.depth + 4) * (bytes_round_up(b->meter.value_bytes, 4096) + 8192);
	b->opts.evict = true;
	b->opts.format = b->format;
	b->opts.cap_bytes = b->cap_bytes;
	return -1;
}

int cmd_bench_store(int argc, char **argv)
{
	struct bench b = {
		.meter = {.op_name = "retrieve", .value_bytes = MiB, .depth = 32, .queues = 1,
			  .keys = 256},
		.seconds_ns = 5 * NS_PER_S,
	};
	const struct cmd_opt opts[] = {
		{"op", CMD_TEXT, &b.meter.op_name, "OP", "store, retrieve or exist (retrieve)"},
		{"value-bytes", CMD_BYTES, &b.meter.value_bytes, "N", "size of each value (1MiB)"},
		{"depth", CMD_COUNT, &b.meter.depth, "D", "operations in flight in all (32)"},
		{"keys", CMD_COUNT, &b.meter.keys, "K", "different keys, taken at random (256)"},
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
	b.worker = calloc(b.meter.depth, sizeof(*b.worker));
	if (b.worker == NULL) {
		cmd_error("bench", "no memory");
		return CMD_FAILED;
	}
	for (unsigned i = 0; i < b.meter.depth; i++)
		b.worker[i].bench = &b;
	rc = run(&b);
	free(b.worker);
	return rc;
}
