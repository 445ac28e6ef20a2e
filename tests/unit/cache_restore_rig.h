/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A restore in the simulator over tiers that do what the test says, and an engine with a clock.
 * Included once.
 *
 * A tier is one server: parts go through it one after another at bytes_per_s, then take latency_ns
 * more. It can be made slower, hang, be away, miss blocks, break a part of a block, and leave
 * buffers busy. What it delivers is a pattern of the block's number and the byte's place.
 */
#ifndef KVOF_TESTS_UNIT_CACHE_RESTORE_RIG_H
#define KVOF_TESTS_UNIT_CACHE_RESTORE_RIG_H

#include "kt.h"

#include <errno.h>

#include "base/bytes.h"
#include "cache/dev_rate.h"
#include "cache/restore_inner.h"
#include "loop/sim.h"

#define RIG_PARTS 4096
#define RIG_OPS 1024
#define RIG_BLOCKS 4096
#define RIG_EVENTS 8192
#define RIG_REQUESTS 16
#define RIG_VERIFY_NS 10                   /* each block */

enum rig_part_state { RIG_FREE, RIG_QUEUED, RIG_SERVED, RIG_FLYING };

struct rig_part {
	struct rig_tier *tier;
	struct tier_op *op;                /* NULL: canceled meanwhile */
	uint32_t index;
	enum rig_part_state state;
	struct dev_rate_mark mark;
	struct loop_timer timer;
};

/* What a tier keeps of an operation, found by its address. */
struct rig_op {
	struct tier_op *op;
	struct rig_tier *tier;
	uint32_t started, landed, count;   /* parts */
	enum kvof_reason reason;
	bool ended, out;                   /* done was called, released follows */
	struct loop_timer end, release, late;
};

struct rig_tier {
	struct tier tier;                  /* self: this */
	uint64_t latency_ns, bytes_per_s, busy_ns;
	uint64_t block_bytes;              /* true length of its blocks; 0: as long as the room */
	bool there, hangs, away, unmeasured, knows_all;
	uint64_t small_ns;                 /* not 0: a second device, which gave small answers
					    * only, and took so long over them */
	uint8_t has[RIG_BLOCKS];           /* by number of the block */
	int32_t bad_part[RIG_BLOCKS];      /* + 1; that part breaks the block */
	enum kvof_reason bad_reason;
	struct dev_rate rate;
	struct rig_part part[RIG_PARTS];
	uint32_t queue[RIG_PARTS], queue_at, queue_count;
	bool serving;
	struct rig_op op[RIG_OPS];
	uint64_t delivered_bytes, in_flight_bytes, in_flight_max;
	uint32_t starts, cancels;
	uint8_t lost_devices;              /* so many of the first that are asked for are away */
};

struct rig_engine {
	struct place_engine real;
	bool busy;
	uint32_t first, count;
	struct loop_timer timer;
	uint64_t computed_ns, done_ns;
	uint32_t blocks;
	bool done;
};

struct rig_request {
	struct request *req;
	uint64_t id;
	uint32_t n, layers;
	uint64_t block_bytes;
	uint8_t *memory;                   /* n blocks */
	uint8_t *claimed;                  /* n */
	struct rig_engine engine;
	bool over, free_now, changed;
	bool streams;                      /* PREFIX, and an engine asks for the split */
	uint64_t step_ns;                  /* it was handed the blocks behind it */
	uint32_t step_first;
	struct kvof_result last;           /* REQUEST */
	uint64_t begin_ns, over_ns;        /* over and layers: since begin */
	uint64_t layer_ns[64];
	uint32_t layer_blocks[64], layer_count;
};

struct rig {
	struct loop *loop;
	struct restore *restore;
	struct rig_tier tier[PLACE_TIERS];
	struct rig_request request[RIG_REQUESTS];
	uint32_t request_count;
	struct kvof_result event[RIG_EVENTS];
	uint64_t event_ns[RIG_EVENTS];
	uint32_t event_count;
	bool idle;
	uint32_t loaded, prefetched, missed, failed, used, used_most, spares;
	uint32_t hinted[RIG_BLOCKS];       /* blocks that hints brought, in this order */
	uint8_t expired[RIG_BLOCKS];
	uint8_t where[RIG_BLOCKS];         /* bits of tiers that are believed to have it */
	uint32_t block_tokens;
	bool no_bytes;                     /* time only */
	/* copies that tiers above make of what was loaded: done comes again this much later */
	uint64_t copy_ns;
	struct loop_timer copy_timer[RIG_BLOCKS];
	struct tier_op *copy_op[RIG_BLOCKS];
	uint32_t copies;
};

static struct rig rig;

static uint32_t rig_salt;                  /* other blocks of the same numbers */

static struct kvof_id rig_id(uint32_t n)
{
	struct kvof_id id = {{0}};

	memcpy(id.byte, &n, sizeof(n));
	memcpy(id.byte + 8, &rig_salt, sizeof(rig_salt));
	return id;
}

static uint32_t rig_number(const struct kvof_id *id)
{
	uint32_t n;

	memcpy(&n, id->byte, sizeof(n));
	return n % RIG_BLOCKS;
}

static uint8_t rig_byte(uint32_t n, uint64_t at)
{
	return (uint8_t)(n * 31 + at * 7 + (at >> 8) + 1);
}

/* --- a tier ----------------------------------------------------------------------------------- */

static struct rig_op *rig_op_of(struct rig_tier *t, const struct tier_op *op)
{
	for (uint32_t i = 0; i < RIG_OPS; i++)
		if (t->op[i].op == op)
			return &t->op[i];
	return NULL;
}

static void rig_serve(struct rig_tier *t);

static void rig_op_end_now(struct loop_timer *timer)
{
	struct rig_op *o = container_of(timer, struct rig_op, end);
	struct tier_op *op = o->op;

	loop_timer_cancel(rig.loop, &o->late);
	op->reason = o->reason;
	op->busy = o->tier->busy_ns > 0 && o->reason != KVOF_OK && o->reason != KVOF_ABSENT &&
		   o->started > o->landed;
	op->verify_ns = RIG_VERIFY_NS;
	if (op->busy) {
		o->out = true;
		loop_timer_set(rig.loop, &o->release, loop_now_ns(rig.loop) + o->tier->busy_ns);
	} else {
		o->op = NULL;
	}
	op->done(op);
}

static void rig_op_released(struct loop_timer *timer)
{
	struct rig_op *o = container_of(timer, struct rig_op, release);
	struct tier_op *op = o->op;

	o->op = NULL;
	for (unsigned i = 0; i < op->iov_count && !rig.no_bytes; i++)
		memset(op->iov[i].iov_base, 0xee, op->iov[i].iov_len);  /* until now */
	op->released(op);
}

static void rig_op_end(struct rig_op *o, enum kvof_reason reason)
{
	if (o->ended)
		return;
	o->ended = true;
	o->reason = reason;
	for (uint32_t i = 0; i < RIG_PARTS; i++)
		if (o->tier->part[i].state != RIG_FREE && o->tier->part[i].op == o->op)
			o->tier->part[i].op = NULL;
	loop_timer_set(rig.loop, &o->end, loop_now_ns(rig.loop));
}

static void rig_op_short(struct rig_op *o)
{
	o->op->value_bytes = o->tier->block_bytes;
	rig_op_end(o, KVOF_SHORT);
}

static void rig_op_late(struct loop_timer *timer)
{
	rig_op_end(container_of(timer, struct rig_op, late), KVOF_LATE);
}

static uint64_t rig_part_bytes(const struct rig_tier *t, const struct tier_op *op, uint32_t index)
{
	uint64_t cut = tier_cut(&t->tier, op->bytes), from = index * cut;

	return from < op->bytes ? bytes_min(cut, op->bytes - from) : 0;
}

static void rig_fill(const struct tier_op *op, uint64_t from, uint64_t bytes)
{
	uint32_t n = rig_number(&op->id);
	uint64_t at = 0;

	for (unsigned i = 0; i < op->iov_count; i++) {
		for (uint64_t k = 0; k < op->iov[i].iov_len; k++, at++)
			if (at >= from && at < from + bytes)
				((uint8_t *)op->iov[i].iov_base)[k] = rig_byte(n, at);
	}
}

static void rig_part_lands(struct loop_timer *timer)
{
	struct rig_part *p = container_of(timer, struct rig_part, timer);
	struct rig_tier *t = p->tier;
	struct tier_op *op = p->op;
	uint32_t index = p->index;
	struct rig_op *o;
	uint64_t bytes;

	p->state = RIG_FREE;
	t->in_flight_bytes -= p->mark.bytes;
	if (op == NULL) {
		dev_rate_end(&t->rate, &p->mark, DEV_RATE_UNTOLD, 0, loop_now_ns(rig.loop));
		return;
	}
	o = rig_op_of(t, op);
	bytes = rig_part_bytes(t, op, index);
	dev_rate_end(&t->rate, &p->mark, DEV_RATE_CAME, (uint32_t)bytes, loop_now_ns(rig.loop));
	if (t->bad_part[rig_number(&op->id)] == (int32_t)index + 1) {
		rig_op_end(o, t->bad_reason);
		return;
	}
	if (!rig.no_bytes)
		rig_fill(op, index * (uint64_t)tier_cut(&t->tier, op->bytes), bytes);
	t->delivered_bytes += bytes;
	o->landed++;
	op->value_bytes = op->bytes;
	op->landed_cut_bytes = tier_cut(&t->tier, op->bytes);
	if (o->landed == o->count)
		rig_op_end(o, KVOF_OK);
	if (op->landed != NULL)
		op->landed(op, index, o->count);
}

static void rig_part_served(struct loop_timer *timer)
{
	struct rig_part *p = container_of(timer, struct rig_part, timer);
	struct rig_tier *t = p->tier;

	t->serving = false;
	p->state = RIG_FLYING;
	loop_timer_init(&p->timer, rig_part_lands);
	loop_timer_set(rig.loop, &p->timer, loop_now_ns(rig.loop) + t->latency_ns);
	rig_serve(t);
}

static void rig_serve(struct rig_tier *t)
{
	while (!t->serving && t->queue_count > 0 && !t->hangs) {
		struct rig_part *p = &t->part[t->queue[t->queue_at++ % RIG_PARTS]];

		t->queue_count--;
		if (p->op == NULL) {       /* canceled before it was its turn */
			p->state = RIG_FREE;
			t->in_flight_bytes -= p->mark.bytes;
			dev_rate_end(&t->rate, &p->mark, DEV_RATE_UNTOLD, 0,
				     loop_now_ns(rig.loop));
			continue;
		}
		t->serving = true;
		p->state = RIG_SERVED;
		loop_timer_init(&p->timer, rig_part_served);
		loop_timer_set(rig.loop, &p->timer, loop_now_ns(rig.loop) +
			       p->mark.bytes * NS_PER_S / t->bytes_per_s);
	}
}

static void rig_op_more(struct rig_tier *t, struct rig_op *o)
{
	uint32_t allowed = o->op->allow == 0 || o->op->allow > o->count ? o->count : o->op->allow;

	while (!o->ended && o->started < allowed) {
		struct rig_part *p = t->part;

		while (p->state != RIG_FREE)
			p++;
		must(p < t->part + RIG_PARTS);
		p->tier = t;
		p->op = o->op;
		p->index = o->started++;
		p->state = RIG_QUEUED;
		dev_rate_begin(&t->rate, &p->mark,
			       (uint32_t)rig_part_bytes(t, o->op, p->index),
			       loop_now_ns(rig.loop));
		t->in_flight_bytes += p->mark.bytes;
		if (t->in_flight_bytes > t->in_flight_max)
			t->in_flight_max = t->in_flight_bytes;
		t->queue[(t->queue_at + t->queue_count++) % RIG_PARTS] = (uint32_t)(p - t->part);
	}
	rig_serve(t);
}

static void rig_tier_start(struct tier *tier, struct tier_op *op)
{
	struct rig_tier *t = tier->self;
	struct rig_op *o = t->op;

	while (o->op != NULL)
		o++;
	must(o < t->op + RIG_OPS);
	t->starts++;
	*o = (struct rig_op){.op = op, .tier = t,
			     .count = frame_part_count(op->bytes, tier_cut(tier, op->bytes))};
	loop_timer_init(&o->end, rig_op_end_now);
	loop_timer_init(&o->release, rig_op_released);
	loop_timer_init(&o->late, rig_op_late);
	op->tier = tier;
	if (op->deadline_ns != 0)
		loop_timer_set(rig.loop, &o->late, op->deadline_ns);
	if (t->away)
		rig_op_end(o, KVOF_UNREACHABLE);
	else if (!t->has[rig_number(&op->id)])
		rig_op_end(o, KVOF_ABSENT);
	else if (op->bytes < t->block_bytes)
		rig_op_short(o);
	else
		rig_op_more(t, o);
}

static void rig_tier_more(struct tier *tier, struct tier_op *op)
{
	rig_op_more(tier->self, rig_op_of(tier->self, op));
}

static void rig_tier_cancel(struct tier *tier, struct tier_op *op)
{
	struct rig_tier *t = tier->self;

	t->cancels++;
	rig_op_end(rig_op_of(t, op), KVOF_CANCELED);
}

static bool rig_tier_has(const struct tier *tier, const struct kvof_id *id)
{
	const struct rig_tier *t = tier->self;

	return t->knows_all && t->has[rig_number(id)];
}

static void rig_tier_speed(const struct tier *tier, const struct kvof_id *id,
			   struct tier_speed *out)
{
	const struct rig_tier *t = tier->self;

	*out = (struct tier_speed){
		.latency_ns = dev_rate_latency_ns(&t->rate, loop_now_ns(rig.loop)),
		.bytes_per_s = t->rate.bytes_per_s,
		.queued_bytes = t->rate.queued_bytes,
		.samples = t->unmeasured ? 0 : t->rate.samples,
		.live = !t->away && (id == NULL ? t->lost_devices < UINT8_MAX :
			 id->byte[1] >= t->lost_devices),
	};
	if (t->small_ns == 0)
		return;
	out->devices = 2;
	out->device = id != NULL && rig_number(id) % 2;
	if (out->device == 0)
		return;
	out->bytes_per_s = out->came_bytes = 0;
	out->came_ns = out->busy_ns = t->small_ns;
}

static const struct tier_ops rig_tier_ops = {
	.name = "rig",
	.has = rig_tier_has,
	.start = rig_tier_start,
	.cancel = rig_tier_cancel,
	.more = rig_tier_more,
	.speed = rig_tier_speed,
};

/* --- what the restore stands on --------------------------------------------------------------- */

static struct tier *rig_tier(void *arg, unsigned number)
{
	return rig.tier[number].there ? &rig.tier[number].tier : NULL;
}

static unsigned rig_tier_next(void *arg, unsigned number)
{
	static const unsigned order[PLACE_TIERS] = {KVOF_TIER_DRAM, KVOF_TIER_FLASH, 0,
						    KVOF_TIER_REMOTE};

	do
		number = order[number];
	while (number != 0 && !rig.tier[number].there);
	return number;
}

static void rig_copied(struct loop_timer *timer)
{
	struct tier_op *op = rig.copy_op[timer - rig.copy_timer];

	op->done(op);
}

static bool rig_loaded(void *arg, struct tier_op *op, unsigned number)
{
	uint32_t i = rig.copies;

	rig.loaded++;
	if (rig.copy_ns == 0)
		return false;
	rig.copies++;
	rig.copy_op[i] = op;
	loop_timer_init(&rig.copy_timer[i], rig_copied);
	loop_timer_set(rig.loop, &rig.copy_timer[i], loop_now_ns(rig.loop) + rig.copy_ns);
	return true;
}

static bool rig_prefetched(void *arg, struct tier_op *op, unsigned number)
{
	rig.hinted[rig.prefetched++] = rig_number(&op->id);
	rig.tier[KVOF_TIER_DRAM].has[rig_number(&op->id)] = 1;
	return false;
}

static bool rig_expired(void *arg, const struct kvof_id *id)
{
	return rig.expired[rig_number(id)] != 0;
}

static void rig_missed(void *arg, const struct tier_op *op, unsigned number)
{
	rig.missed++;
}

static void rig_failed(void *arg, enum kvof_reason reason)
{
	rig.failed++;
}

/* From the tail on, each once. */
static void rig_used(void *arg, struct prefix_ids ids, uint32_t from)
{
	expect(from < ids.count);
	rig.used += ids.count - from;
	if (ids.count - from > rig.used_most)
		rig.used_most = ids.count - from;
}

static unsigned rig_where(void *arg, const struct kvof_id *id)
{
	return rig.where[rig_number(id)];
}

static void rig_spare(void *arg)
{
	rig.spares++;
}

static const struct restore_ops rig_ops = {
	rig_tier, rig_tier_next, rig_loaded, rig_prefetched, rig_missed, rig_failed, rig_expired,
	rig_used, NULL, rig_where,
};

/* --- the engine ------------------------------------------------------------------------------- */

static void rig_engine_go(struct rig_request *q);

static void rig_engine_computed(struct loop_timer *timer)
{
	struct rig_engine *e = container_of(timer, struct rig_engine, timer);
	struct rig_request *q = container_of(e, struct rig_request, engine);
	struct place_span span = {(uint64_t)e->first * rig.block_tokens,
				  (uint64_t)e->count * rig.block_tokens};

	e->busy = false;
	expect_int(restore_computed(q->req, e->first, e->count, place_engine_ns(&e->real, span)),
		   0);
	rig_engine_go(q);
}

/* Takes the next step, if there is an engine; checks that what is handed out is not written. */
static void rig_engine_go(struct rig_request *q)
{
	struct rig_engine *e = &q->engine;
	struct kvof_restore_step step;
	struct place_span span;

	if (e->real.token_ps == 0 || e->busy || e->done)
		return;
	restore_next(q->req, &step);
	if (step.act == KVOF_STEP_DONE) {
		e->done = true;
		e->done_ns = loop_now_ns(rig.loop) - q->begin_ns;
	}
	if (step.act != KVOF_STEP_COMPUTE)
		return;
	for (uint32_t i = step.first; i < step.first + step.count; i++) {
		expect(!q->claimed[i]);
		q->claimed[i] = 1;
		if (!rig.no_bytes)
			memset(q->memory + i * q->block_bytes, 0xc1, q->block_bytes);
	}
	e->busy = true;
	e->first = step.first;
	e->count = step.count;
	e->blocks += step.count;
	span = (struct place_span){(uint64_t)step.first * rig.block_tokens,
				   (uint64_t)step.count * rig.block_tokens};
	e->computed_ns += place_engine_ns(&e->real, span);
	loop_timer_set(rig.loop, &e->timer, loop_now_ns(rig.loop) +
		       place_engine_ns(&e->real, span));
}

static void rig_layer_check(struct rig_request *q, const struct kvof_result *r);

static void rig_event(void *owner, const struct kvof_result *r)
{
	struct rig_request *q = owner;

	expect(rig.event_count < RIG_EVENTS);
	rig.event[rig.event_count] = *r;
	rig.event_ns[rig.event_count++] = loop_now_ns(rig.loop);
	expect_int(r->batch, q->id);
	if ((r->flags & KVOF_RESULT_LAYER) != 0) {
		expect_int(r->index, q->layer_count);
		if (!rig.no_bytes)
			rig_layer_check(q, r);
		if (r->index < 64) {
			q->layer_ns[r->index] = loop_now_ns(rig.loop) - q->begin_ns;
			q->layer_blocks[r->index] = (uint32_t)r->value_bytes;
		}
		q->layer_count++;
	}
	if (r->flags == KVOF_RESULT_REQUEST) {
		expect(!q->over);
		q->over = true;
		q->over_ns = loop_now_ns(rig.loop) - q->begin_ns;
		q->last = *r;
	}
}

static void rig_changed(void *owner)
{
	struct rig_request *q = owner;

	q->changed = true;
	q->free_now = request_free_now(q->req);
	rig_engine_go(q);
	if (q->streams && q->step_ns == 0) {
		struct kvof_restore_step step;

		restore_next(q->req, &step);
		if (step.act == KVOF_STEP_COMPUTE ||
		    (step.act == KVOF_STEP_DONE && step.usable == 0)) {
			q->step_ns = loop_now_ns(rig.loop) - q->begin_ns;
			q->step_first = step.first;
		}
	}
}

static const struct request_events rig_request_events = {rig_event, rig_changed};

/* Bytes [from, from + bytes) of a block are those that were saved. */
static bool rig_good(const struct rig_request *q, uint32_t index, uint64_t from, uint64_t bytes)
{
	const uint8_t *at = q->memory + index * q->block_bytes;

	for (uint64_t i = from; i < from + bytes; i++)
		if (at[i] != rig_byte(index, i))
			return false;
	return true;
}

static void rig_layer_check(struct rig_request *q, const struct kvof_result *r)
{
	uint64_t layer = q->block_bytes / q->layers;

	for (uint32_t i = 0; i < r->value_bytes; i++)
		expect(rig_good(q, i, r->index * layer, layer));
}

/* --- a world ---------------------------------------------------------------------------------- */

struct rig_call {
	struct msg msg;
	void (*run)(void *arg);
	void *arg;
};

static void rig_call_run(struct loop *here, struct msg *m)
{
	struct rig_call *call = container_of(m, struct rig_call, msg);

	call->run(call->arg);
	free(call);
}

static void rig_call(void (*run)(void *arg), void *arg)
{
	struct rig_call *call = malloc(sizeof(*call));

	*call = (struct rig_call){{NULL, rig_call_run}, run, arg};
	loop_post(rig.loop, &call->msg);
}

static uint64_t rig_staging_bytes, rig_cut_bytes = 16384;

static inline void rig_tier_set(unsigned number, uint64_t bytes_per_s, uint64_t latency_ns)
{
	struct rig_tier *t = &rig.tier[number];

	t->tier = (struct tier){.ops = &rig_tier_ops, .self = t};
	t->tier.cut_bytes = (uint32_t)rig_cut_bytes;
	t->bytes_per_s = bytes_per_s;
	t->latency_ns = latency_ns;
	t->there = true;
	memset(t->has, 1, sizeof(t->has));
}

static inline void rig_begin(void)
{
	struct sim_opts sim = {.seed = 1};
	struct loop_opts loop = {.name = "cache", .ops_max = 16384, .timers_max = 65536};
	struct restore_opts opts = {
		.ops = &rig_ops,
		.spare = rig_spare,
		.staging_bytes = rig_staging_bytes,
		.deadline_ns = 1000 * NS_PER_S,
	};

	memset(&rig, 0, sizeof(rig));
	rig.block_tokens = opts.block_tokens = 256;
	expect_int(sim_begin(&sim), 0);
	expect_int(loop_open(&loop, &rig.loop), 0);
	opts.loop = rig.loop;
	expect_int(restore_open(&opts, &rig.restore), 0);
}

static bool rig_idle(void *arg)
{
	rig.idle = true;
	return true;
}

static bool rig_is_idle(void *arg)
{
	return rig.idle;
}

static void rig_stop(void *arg)
{
	restore_stop(rig.restore, rig_idle, NULL);
}

static inline void rig_end(void)
{
	rig_call(rig_stop, NULL);
	expect(sim_run_until(rig_is_idle, NULL, 3600 * NS_PER_S));
	restore_close(&rig.restore);
	for (uint32_t i = 0; i < rig.request_count; i++) {
		loop_timer_cancel(rig.loop, &rig.request[i].engine.timer);
		free(rig.request[i].memory);
		free(rig.request[i].claimed);
	}
	for (unsigned i = 0; i < PLACE_TIERS; i++)
		for (unsigned k = 0; k < RIG_PARTS; k++)
			if (rig.tier[i].part[k].state != RIG_FREE)
				loop_timer_cancel(rig.loop, &rig.tier[i].part[k].timer);
	loop_close(&rig.loop);
	sim_end();
}

static void rig_request_begin(void *arg)
{
	struct rig_request *q = arg;

	q->begin_ns = loop_now_ns(rig.loop);
	loop_timer_init(&q->engine.timer, rig_engine_computed);
	restore_begin(rig.restore, q->req, q->id, &rig_request_events, q);
}

struct rig_shape {
	uint32_t n, layers;
	uint64_t block_bytes;
	struct kvof_restore_opts opts;
	struct place_engine engine;        /* 0: none asks */
};

static struct rig_request *rig_request(const struct rig_shape *shape)
{
	struct rig_request *q = &rig.request[rig.request_count++];
	struct request_layout layout = {.cut_bytes = (uint32_t)rig_cut_bytes,
					.layer_count = shape->layers};
	struct kvof_restore_opts opts = shape->opts;
	struct kvof_block *b = calloc(shape->n, sizeof(*b));
	struct iovec *iov = calloc(shape->n * 2, sizeof(*iov));

	*q = (struct rig_request){.id = rig.request_count, .n = shape->n,
				  .layers = shape->layers > 0 ? shape->layers : 1,
				  .block_bytes = shape->block_bytes,
				  .engine = {.real = shape->engine}};
	q->memory = malloc(shape->n * shape->block_bytes + 1);
	q->claimed = calloc(shape->n, 1);
	if (!rig.no_bytes)
		memset(q->memory, 0x55, shape->n * shape->block_bytes);
	for (uint32_t i = 0; i < shape->n; i++) {
		uint8_t *at = q->memory + i * shape->block_bytes;
		uint64_t half = shape->block_bytes / 2;

		iov[2 * i] = (struct iovec){at, half};
		iov[2 * i + 1] = (struct iovec){at + half, shape->block_bytes - half};
		b[i] = (struct kvof_block){rig_id(i), &iov[2 * i], 2, shape->block_bytes};
	}
	opts.struct_bytes = sizeof(opts);
	for (unsigned i = 1; i < PLACE_TIERS; i++)
		rig.tier[i].tier.layer_count = shape->layers;
	expect_int(request_make(b, shape->n, &opts, &layout, &q->req), 0);
	free(b);
	free(iov);
	rig_call(rig_request_begin, q);
	return q;
}

static bool rig_over(void *arg)
{
	struct rig_request *q = arg;

	return q->over && (q->engine.real.token_ps == 0 || q->engine.done);
}

static bool rig_free(void *arg)
{
	struct rig_request *q = arg;

	return q->free_now;
}

static inline void rig_wait(struct rig_request *q)
{
	expect(sim_run_until(rig_over, q, 100000 * NS_PER_S));
	expect(sim_run_until(rig_free, q, NS_PER_S));
}

#endif
