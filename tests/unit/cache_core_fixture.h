/* SPDX-License-Identifier: Apache-2.0 */
/* A cache core in the simulator, with its batches and results in plain sight. Included once. */
#ifndef KVOF_TESTS_UNIT_CACHE_CORE_FIXTURE_H
#define KVOF_TESTS_UNIT_CACHE_CORE_FIXTURE_H

#include "kt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/prng.h"
#include "cache/core.h"
#include "loop/sim.h"

#define FIX_RESULTS 8192
#define FIX_CUT 4032                       /* part_bytes 4096 */

struct fix {
	struct loop *loop;
	struct core *core;
	struct identity *identity;
	struct kvof_cache_opts opts;
	int opened_res;
	char why[256];
	bool opened, closed;
	struct kvof_result result[FIX_RESULTS];
	uint64_t result_at_ns[FIX_RESULTS];
	unsigned results;
	unsigned overs, submits;
	uint64_t next_id;
	struct cache_batch *posted;
	struct tier *flash;                /* of the test; NULL: none */
	unsigned stored[KVOF_TIER_COUNT], removed[KVOF_TIER_COUNT];  /* events */
	uint32_t admission;                /* beside the options', which want a flash to go with */
	uint32_t flags;                    /* of batches submitted from now on */
};

static struct fix fix;

struct fix_msg {
	struct msg msg;
	struct cache_batch *batch;
	uint64_t cancel;
	void (*call)(void);
};

static void fix_opened(void *arg, int res, const char *why)
{
	expect(!fix.opened);
	fix.opened = true;
	fix.opened_res = res;
	snprintf(fix.why, sizeof(fix.why), "%s", why);
}

static void fix_result(void *arg, struct cache_batch *batch, const struct kvof_result *r)
{
	expect(fix.results < FIX_RESULTS);
	fix.result_at_ns[fix.results] = loop_now_ns(fix.loop);
	fix.result[fix.results++] = *r;
}

static void fix_over(void *arg, struct cache_batch *batch)
{
	fix.overs++;
	batch_free(&batch);
}

static void fix_changed(void *arg, const struct kvof_id *id, enum kvof_tier tier, bool stored)
{
	if (stored)
		fix.stored[tier]++;
	else
		fix.removed[tier]++;
}

static const struct core_events fix_events = {fix_opened, fix_result, fix_over, fix_changed};

static void fix_msg_run(struct loop *here, struct msg *m)
{
	struct fix_msg *msg = container_of(m, struct fix_msg, msg);

	if (msg->batch != NULL)
		core_submit(fix.core, msg->batch);
	else if (msg->cancel != 0)
		core_cancel(fix.core, msg->cancel);
	else
		msg->call();
	free(msg);
}

static void fix_post(struct cache_batch *batch, uint64_t cancel, void (*call)(void))
{
	struct fix_msg *msg = calloc(1, sizeof(*msg));

	*msg = (struct fix_msg){{NULL, fix_msg_run}, batch, cancel, call};
	loop_post(fix.loop, &msg->msg);
}

static void fix_open_run(void)
{
	struct core_opts opts = {.cache = &fix.opts, .identity = fix.identity,
				 .flash = fix.flash};
	char why[256];
	int rc = core_open(fix.loop, &opts, &fix_events, NULL, why, &fix.core);

	if (rc != 0)
		fix_opened(NULL, rc, why);
}

static bool fix_is_open(void *arg)
{
	return fix.opened;
}

static bool fix_all_over(void *arg)
{
	return fix.overs == fix.submits;
}

/* Options of the fixture; a test changes them and then opens. */
static inline void fix_begin(const char *dtype)
{
	static struct kvof_field field[1];
	struct sim_opts sim = {.seed = 1};

	field[0] = (struct kvof_field){"kv_dtype", dtype};
	memset(&fix, 0, sizeof(fix));
	fix.next_id = 1;
	expect_int(sim_begin(&sim), 0);
	fix.opts = (struct kvof_cache_opts){
		.struct_bytes = sizeof(fix.opts),
		.target = "tcp://array:4420",
		.fields = field,
		.field_count = 1,
		.model_id = "m",
		.block_tokens = 4,
		.part_bytes = FIX_CUT + FRAME_BYTES,
		.strict = 1,
	};
}

/* Return: what kvof_cache_open() would have returned. */
static inline int fix_open(void)
{
	struct loop_opts opts = {.name = "cache", .ops_max = 16384, .timers_max = 16384};
	char why[256];

	expect_int(core_opts_check(&fix.opts, why), 0);
	fix.opts.admission |= fix.admission;
	expect_int(identity_make(&fix.opts, why, &fix.identity), 0);
	expect_int(loop_open(&opts, &fix.loop), 0);
	fix_post(NULL, 0, fix_open_run);
	expect(sim_run_until(fix_is_open, NULL, 60 * NS_PER_S));
	return fix.opened_res;
}

static void fix_closed(void *arg)
{
	fix.closed = true;
}

static void fix_close_run(void)
{
	if (fix.core != NULL)
		core_close(&fix.core, fix_closed, NULL);
	else
		fix.closed = true;
}

static bool fix_is_closed(void *arg)
{
	return fix.closed;
}

static inline void fix_close_core(void)
{
	if (fix.closed)
		return;
	fix_post(NULL, 0, fix_close_run);
	expect(sim_run_until(fix_is_closed, NULL, 60 * NS_PER_S));
	expect_int(fix.overs, fix.submits);
}

static inline void fix_end(void)
{
	fix_close_core();
	loop_close(&fix.loop);
	identity_free(&fix.identity);
	sim_end();
}

static struct kvof_id fix_id(uint32_t n)
{
	struct kvof_id id;

	identity_engine(fix.identity, &n, sizeof(n), &id);
	return id;
}

/* A block over one piece of memory. */
static struct kvof_block fix_block(uint32_t n, struct iovec *iov, void *at, size_t bytes)
{
	*iov = (struct iovec){at, bytes};
	return (struct kvof_block){fix_id(n), iov, 1, bytes};
}

/* Return: the batch's id. */
static inline uint64_t fix_submit(enum kvof_op op, const struct kvof_block *blocks, uint32_t count,
			   uint64_t deadline_ns)
{
	struct cache_batch *batch;

	expect_int(batch_make(op, blocks, count, FIX_CUT, &batch), 0);
	batch->deadline_ns = deadline_ns;
	batch->flags = fix.flags;
	batch->id = fix.next_id++;
	fix.submits++;
	fix.posted = batch;
	fix_post(batch, 0, NULL);
	return fix.next_id - 1;
}

static void fix_wait(void)
{
	expect(sim_run_until(fix_all_over, NULL, 600 * NS_PER_S));
}

/* Result of a block of a batch; fails where there is none, or more than one. */
static struct kvof_result fix_result_of(uint64_t batch, uint32_t index, uint32_t flags)
{
	struct kvof_result r = {0};
	unsigned n = 0;

	for (unsigned i = 0; i < fix.results; i++) {
		if (fix.result[i].batch != batch || fix.result[i].index != index ||
		    (fix.result[i].flags & KVOF_RESULT_RELEASED) != flags)
			continue;
		r = fix.result[i];
		n++;
	}
	expect_int(n, 1);
	return r;
}

/* One block, waited for. */
static inline struct kvof_result fix_one(enum kvof_op op, uint32_t n, void *at, size_t bytes)
{
	struct iovec iov;
	struct kvof_block b = {.id = fix_id(n)};
	uint64_t batch;

	if (op == KVOF_LOAD || op == KVOF_SAVE)
		b = fix_block(n, &iov, at, bytes);
	batch = fix_submit(op, &b, 1, 0);
	fix_wait();
	return fix_result_of(batch, 0, 0);
}

static struct loop_timer fix_timer;
static uint64_t fix_timer_ns;
static bool fix_passed;

static void fix_timer_fire(struct loop_timer *t)
{
	fix_passed = true;
}

static void fix_timer_run(void)
{
	loop_timer_init(&fix_timer, fix_timer_fire);
	loop_timer_set(fix.loop, &fix_timer, loop_now_ns(fix.loop) + fix_timer_ns);
}

static bool fix_has_passed(void *arg)
{
	return fix_passed;
}

/* Time passes. */
static inline void fix_pass(uint64_t ns)
{
	fix_passed = false;
	fix_timer_ns = ns;
	fix_post(NULL, 0, fix_timer_run);
	expect(sim_run_until(fix_has_passed, NULL, ns + NS_PER_S));
}

static void fix_fill(void *at, size_t bytes, uint64_t seed)
{
	struct prng p = prng_of(seed);

	prng_fill(&p, at, bytes);
}

/* As match does it. */
static inline uint32_t fix_match(const uint32_t *n, uint32_t count, uint64_t deadline_ns)
{
	struct kvof_block b[64];
	struct kvof_result r[64];
	struct cache_batch *batch;
	uint64_t id;

	for (uint32_t i = 0; i < count; i++)
		b[i] = (struct kvof_block){.id = fix_id(n[i])};
	expect_int(batch_make(KVOF_EXISTS_OP, b, count, FIX_CUT, &batch), 0);
	batch->question = true;
	batch->deadline_ns = deadline_ns;
	batch->id = id = fix.next_id++;
	fix.submits++;
	fix_post(batch, 0, NULL);
	fix_wait();
	for (uint32_t i = 0; i < count; i++)
		r[i] = fix_result_of(id, i, 0);
	return prefix_leading(r, count);
}

/* Key of a value of block n, as it lies on the array. */
static inline struct kv_key fix_key(uint32_t n, uint32_t index, uint32_t count)
{
	struct kvof_id block = fix_id(n), part;

	identity_part(&block, (struct part_of){index, count}, &part);
	return identity_key(&part);
}

#endif
