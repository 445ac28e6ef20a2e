/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier below DRAM that answers what the test says: implements struct tier_ops over a small map,
 * on any loop. hook() sees each operation first and may answer it or leave it hanging; hanging ones
 * end at their deadline (KVOF_LATE) or when they are canceled. Included once.
 */
#ifndef KVOF_TESTS_UNIT_CACHE_CORE_TIER_H
#define KVOF_TESTS_UNIT_CACHE_CORE_TIER_H

#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cache/tier.h"

#define SIM_TIER_BLOCKS 1024
#define SIM_TIER_FLYING 8192
#define SIM_TIER_LOG 8192

struct sim_block {
	struct kvof_id id;
	uint8_t *at;
	uint64_t bytes;
	bool there;
};

struct sim_tier_flight {
	struct tier_op *op;                /* NULL: free */
	struct loop_timer timer;
	bool decided;                      /* reason is; else it is carried out when it is due */
	enum kvof_reason reason;
};

enum sim_tier_hook { SIM_TIER_PASS, SIM_TIER_ANSWER, SIM_TIER_HANG };

struct sim_tier {
	struct tier tier;
	struct loop **loop;
	uint64_t latency_ns, speed_ns;     /* speed_ns: what it says of its latency */
	enum sim_tier_hook (*hook)(struct tier_op *op, enum kvof_reason *reason);
	unsigned log_count, flying, flying_max;
	struct { enum kvof_op kind; struct kvof_id id; } log[SIM_TIER_LOG];
	struct sim_block block[SIM_TIER_BLOCKS];
	struct sim_tier_flight flight[SIM_TIER_FLYING];
};

static struct sim_tier sim_tier;

static struct sim_block *sim_tier_find(const struct kvof_id *id)
{
	for (unsigned i = 0; i < SIM_TIER_BLOCKS; i++)
		if (sim_tier.block[i].there &&
		    memcmp(&sim_tier.block[i].id, id, sizeof(*id)) == 0)
			return &sim_tier.block[i];
	return NULL;
}

static inline unsigned sim_tier_count(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < SIM_TIER_BLOCKS; i++)
		n += sim_tier.block[i].there;
	return n;
}

static void sim_tier_store(const struct tier_op *op)
{
	struct sim_block *b = sim_tier.block;
	uint8_t *to;

	while (b->there)
		must(++b < sim_tier.block + SIM_TIER_BLOCKS);
	free(b->at);
	*b = (struct sim_block){op->id, malloc(op->bytes + 1), op->bytes, true};
	to = b->at;
	for (unsigned i = 0; i < op->iov_count; i++) {
		if (op->iov[i].iov_len > 0)
			memcpy(to, op->iov[i].iov_base, op->iov[i].iov_len);
		to += op->iov[i].iov_len;
	}
}

static enum kvof_reason sim_tier_load(struct tier_op *op, const struct sim_block *b)
{
	uint64_t left = b->bytes, done = 0;

	op->value_bytes = b->bytes;
	if (b->bytes > op->bytes)
		return KVOF_SHORT;
	for (unsigned i = 0; i < op->iov_count && left > 0; i++) {
		uint64_t step = op->iov[i].iov_len < left ? op->iov[i].iov_len : left;

		memcpy(op->iov[i].iov_base, b->at + done, step);
		done += step;
		left -= step;
	}
	return KVOF_OK;
}

static enum kvof_reason sim_tier_carry_out(struct tier_op *op)
{
	struct sim_block *b = sim_tier_find(&op->id);

	switch (op->kind) {
	case KVOF_LOAD:
		return b != NULL ? sim_tier_load(op, b) : KVOF_ABSENT;
	case KVOF_SAVE:
		op->value_bytes = op->bytes;
		if (b != NULL)
			return KVOF_EXISTS;
		sim_tier_store(op);
		return KVOF_OK;
	case KVOF_EXISTS_OP:
		return b != NULL ? KVOF_OK : KVOF_ABSENT;
	case KVOF_DELETE:
		if (b == NULL)
			return KVOF_ABSENT;
		b->there = false;
		return KVOF_OK;
	}
	return KVOF_ERROR;
}

static void sim_tier_due(struct loop_timer *timer)
{
	struct sim_tier_flight *f = container_of(timer, struct sim_tier_flight, timer);
	struct tier_op *op = f->op;

	f->op = NULL;
	sim_tier.flying--;
	op->reason = f->decided ? f->reason : sim_tier_carry_out(op);
	op->done(op);
}

static void sim_tier_start(struct tier *t, struct tier_op *op)
{
	struct sim_tier_flight *f = sim_tier.flight;
	uint64_t now = loop_now_ns(*sim_tier.loop), at;
	enum kvof_reason reason = KVOF_OK;
	enum sim_tier_hook hook = SIM_TIER_PASS;

	while (f->op != NULL)
		must(++f < sim_tier.flight + SIM_TIER_FLYING);
	op->busy = false;
	op->value_bytes = op->verify_ns = 0;
	if (sim_tier.log_count < SIM_TIER_LOG) {
		sim_tier.log[sim_tier.log_count].kind = op->kind;
		sim_tier.log[sim_tier.log_count++].id = op->id;
	}
	if (sim_tier.hook != NULL)
		hook = sim_tier.hook(op, &reason);
	at = now + sim_tier.latency_ns;
	*f = (struct sim_tier_flight){.op = op, .decided = hook == SIM_TIER_ANSWER,
				      .reason = reason};
	if (++sim_tier.flying > sim_tier.flying_max)
		sim_tier.flying_max = sim_tier.flying;
	loop_timer_init(&f->timer, sim_tier_due);
	if (hook == SIM_TIER_HANG || (op->deadline_ns != 0 && op->deadline_ns < at)) {
		f->decided = true;
		f->reason = KVOF_LATE;
		at = op->deadline_ns;
	}
	loop_timer_set(*sim_tier.loop, &f->timer, at < now ? now : at);
}

static void sim_tier_cancel(struct tier *t, struct tier_op *op)
{
	for (unsigned i = 0; i < SIM_TIER_FLYING; i++) {
		struct sim_tier_flight *f = &sim_tier.flight[i];

		if (f->op != op)
			continue;
		f->decided = true;
		f->reason = KVOF_CANCELED;
		loop_timer_set(*sim_tier.loop, &f->timer, loop_now_ns(*sim_tier.loop));
	}
}

static bool sim_tier_has(const struct tier *t, const struct kvof_id *id)
{
	return sim_tier_find(id) != NULL;
}

static void sim_tier_speed(const struct tier *t, const struct kvof_id *id, struct tier_speed *out)
{
	*out = (struct tier_speed){.latency_ns = sim_tier.speed_ns, .live = true};
}

static const struct tier_ops sim_tier_ops = {
	.name = "flash",
	.has = sim_tier_has,
	.start = sim_tier_start,
	.cancel = sim_tier_cancel,
	.speed = sim_tier_speed,
};

/* Forgets blocks and settings; the tier to give to the fixture. */
static struct tier *sim_tier_reset(struct loop **loop)
{
	for (unsigned i = 0; i < SIM_TIER_BLOCKS; i++)
		free(sim_tier.block[i].at);
	memset(&sim_tier, 0, sizeof(sim_tier));
	sim_tier.tier = (struct tier){.ops = &sim_tier_ops, .self = &sim_tier,
				      .cut_bytes = (uint32_t)(4 * MiB)};
	sim_tier.loop = loop;
	sim_tier.latency_ns = 50000;
	return &sim_tier.tier;
}

#endif
