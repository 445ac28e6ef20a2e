/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof bench fabric --op read|write: a block namespace, with a fixed number of operations of one
 * size in flight, at random places or in order, over its first --span bytes.
 *
 * A write bench overwrites the namespace, so it wants --overwrite. With it a read bench first
 * writes all it will read, and compares a stamp in each 4 KiB of what comes back; without it
 * nothing is compared. A wrong byte ends the bench with exit code 3. The main thread and its loop.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "cmd/bench_block.h"

#define STAMP_EVERY 4096u
#define TURN_NS (10 * NS_PER_MS)
#define FILL_BYTES (256 * KiB)

struct block_bench;

struct worker {
	struct host_op op;
	struct block_bench *bench;
	struct iovec iov;
	uint64_t begun_ns;
};

struct block_bench {
	const struct bench_block_opts *opts;
	struct cmd_link *link;
	struct cmd_meter *meter;
	struct worker *worker;         /* [depth] */
	struct prng prng;
	uint64_t span_bytes, next_bytes, end_ns, io_bytes;
	bool filling, compares;
	unsigned flying;
	int failed;
};

static void stamps_put(uint8_t *at, uint64_t offset_bytes, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += STAMP_EVERY) {
		uint64_t stamp = hash_key16((const uint8_t *)"kvof block stamp",
					    (offset_bytes + i) / STAMP_EVERY);

		memcpy(at + i, &stamp, sizeof(stamp));
	}
}

static bool stamps_right(const uint8_t *at, uint64_t offset_bytes, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += STAMP_EVERY) {
		uint64_t stamp = hash_key16((const uint8_t *)"kvof block stamp",
					    (offset_bytes + i) / STAMP_EVERY);

		if (memcmp(at + i, &stamp, sizeof(stamp)) != 0)
			return false;
	}
	return true;
}

static bool goes_on(const struct block_bench *b)
{
	if (b->failed != 0)
		return false;
	return b->filling ? b->next_bytes < b->span_bytes : cmd_now_ns() < b->end_ns;
}

static uint64_t place_next(struct block_bench *b)
{
	uint64_t places = b->span_bytes / b->io_bytes;

	if (!b->filling && !b->opts->sequential)
		return prng_below(&b->prng, places) * b->io_bytes;
	if (!b->filling && b->next_bytes + b->io_bytes > b->span_bytes)
		b->next_bytes = 0;
	b->next_bytes += b->io_bytes;
	return b->next_bytes - b->io_bytes;
}

static void submit(struct block_bench *b, struct worker *w)
{
	bool writes = b->filling || b->meter->op == CMD_BENCH_WRITE;

	w->op.offset_bytes = place_next(b);
	w->op.range_bytes = bytes_min(b->io_bytes, b->span_bytes - w->op.offset_bytes);
	w->iov.iov_len = w->op.range_bytes;
	w->op.kind = writes ? HOST_WRITE : HOST_READ;
	w->op.iov = &w->iov;
	w->op.iov_count = 1;
	w->op.bytes = (uint32_t)w->op.range_bytes;
	if (writes)
		stamps_put(w->iov.iov_base, w->op.offset_bytes, w->op.range_bytes);
	w->begun_ns = cmd_now_ns();
	w->op.deadline_ns = loop_now_ns(b->link->loop) + cmd_link_timeout_ns(b->link);
	b->flying++;
	host_submit(b->link->host, &w->op);
}

static void done(struct host_op *op, int res)
{
	struct worker *w = container_of(op, struct worker, op);
	struct block_bench *b = w->bench;

	if (res == 0 && !b->filling)
		cmd_meter_add(b->meter, cmd_now_ns() - w->begun_ns);
	if (res == 0 && b->compares && op->kind == HOST_READ &&
	    !stamps_right(w->iov.iov_base, op->offset_bytes, op->range_bytes))
		res = -EBADMSG;
	if (res != 0 && b->failed == 0)
		b->failed = res;
	if (op->busy)
		return;
	b->flying--;
	if (goes_on(b))
		submit(b, w);
}

static void released(struct host_op *op)
{
	container_of(op, struct worker, op)->bench->flying--;
}

static void run(struct block_bench *b, bool filling)
{
	b->filling = filling;
	b->next_bytes = 0;
	b->io_bytes = filling ? bytes_min(FILL_BYTES, b->span_bytes) : b->meter->value_bytes;
	b->end_ns = cmd_now_ns() + b->opts->seconds_ns;
	for (unsigned i = 0; i < b->meter->depth && goes_on(b); i++)
		submit(b, &b->worker[i]);
	while (b->flying > 0)
		loop_turn(b->link->loop, TURN_NS);
}

static int check(const struct block_bench *b)
{
	const struct host_ns *ns = host_ns(b->link->host);
	const struct cmd_meter *m = b->meter;

	if (m->value_bytes % ns->block_bytes != 0 || m->value_bytes > ns->transfer_bytes_max ||
	    m->value_bytes > b->span_bytes) {
		cmd_error("bench", "--value-bytes %llu: whole blocks of %u bytes, at most %llu",
			  (unsigned long long)m->value_bytes, ns->block_bytes,
			  (unsigned long long)bytes_min(ns->transfer_bytes_max, b->span_bytes));
		return CMD_USAGE;
	}
	if (m->op == CMD_BENCH_WRITE && !b->opts->overwrite) {
		cmd_error("bench", "a write bench overwrites namespace %u: say --overwrite if it "
			  "holds nothing of value", ns->nsid);
		return CMD_REFUSED;
	}
	return CMD_DONE;
}

static bool buffers(struct block_bench *b)
{
	uint64_t room = bytes_round_up(b->meter->value_bytes > FILL_BYTES ? b->meter->value_bytes :
									   FILL_BYTES, 4096);

	b->worker = calloc(b->meter->depth, sizeof(b->worker[0]));
	for (unsigned i = 0; b->worker != NULL && i < b->meter->depth; i++) {
		struct worker *w = &b->worker[i];

		w->bench = b;
		w->op.done = done;
		w->op.released = released;
		w->iov.iov_base = aligned_alloc(4096, room);
		if (w->iov.iov_base == NULL)
			return false;
		prng_fill(&b->prng, w->iov.iov_base, room);
	}
	return b->worker != NULL;
}

static int report(const struct block_bench *b)
{
	const struct cmd_meter *m = b->meter;
	json_t *o;

	if (b->link->common.json) {
		o = cmd_meter_json(m, loop_kind(b->link->loop));
		json_object_set_new(o, "verify", json_string(b->compares ? "stamps" : "none"));
		json_object_set_new(o, "span_bytes", json_integer((json_int_t)b->span_bytes));
		json_object_set_new(o, "sequential", json_boolean(b->opts->sequential));
		return cmd_json_print("bench", o, CMD_DONE);
	}
	printf("%s of %llu bytes, %s, over %llu MiB, %u in flight on %u queues, %.2f s\n",
	       m->op_name, (unsigned long long)m->value_bytes,
	       b->opts->sequential ? "in order" : "at random",
	       (unsigned long long)(b->span_bytes / MiB), m->depth, m->queues, m->seconds);
	cmd_meter_print(m);
	printf("%s\n", b->compares ? "; every 4 KiB was compared" : "");
	return cmd_output_end("bench", CMD_DONE);
}

static int measure(struct block_bench *b)
{
	if (b->compares)
		run(b, true);
	cmd_meter_begin(b->meter);
	if (b->failed == 0)
		run(b, false);
	cmd_meter_end(b->meter);
	if (b->failed == 0)
		return report(b);
	if (b->failed == -EBADMSG && b->compares)
		cmd_error("bench", "%s: blocks came back with wrong bytes", b->link->target);
	else
		cmd_error("bench", "%s: %s", b->link->target, strerror(-b->failed));
	return CMD_FAILED;
}

int cmd_bench_block(struct cmd_link *link, struct cmd_meter *meter,
		    const struct bench_block_opts *opts)
{
	struct block_bench b = {.opts = opts, .link = link, .meter = meter, .prng = prng_of(1)};
	int rc;

	b.span_bytes = host_ns(link->host)->capacity_bytes;
	if (opts->span_bytes != 0)
		b.span_bytes = bytes_min(b.span_bytes, opts->span_bytes);
	b.span_bytes &= ~(uint64_t)(STAMP_EVERY - 1);
	b.compares = meter->op == CMD_BENCH_READ && opts->overwrite;
	rc = check(&b);
	if (rc == CMD_DONE && !buffers(&b)) {
		cmd_error("bench", "no memory for %u buffers", meter->depth);
		rc = CMD_FAILED;
	}
	if (rc == CMD_DONE)
		rc = measure(&b);
	for (unsigned i = 0; b.worker != NULL && i < meter->depth; i++)
		free(b.worker[i].iov.iov_base);
	free(b.worker);
	return rc;
}
