/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache on one loop: order of operations on a key, the walk through the tiers, deadlines,
 * results.
 *
 *   load    DRAM, else the array; what the array gave is copied up into DRAM
 *   save    copied into DRAM, then stored on the array; the array's answer counts
 *   exists  DRAM, else the array          delete  both
 *
 * An operation waits while an earlier one on the same identity is unfinished, unless both only
 * look.
 * Questions of match wait for nobody.
 *
 * Invariants: an operation has exactly one result, and one release if that result was busy;
 * batch->left counts those without result, batch->busy those without release; the batch is over
 * when both are zero. `ready` holds waiting operations that may start; it is emptied before a
 * callback of the loop returns, by a loop, so that no completion nests in another.
 *
 * Owned by one loop.
 */
#include "cache/core.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cache/route.h"

#define CORE_MAGIC 0x636f7265u
#define CORE_BUCKETS 1024
#define CORE_DEADLINE_NS (2 * NS_PER_S)
#define CORE_LEASE_NS (5 * NS_PER_S)

struct core {
	uint32_t magic;
	struct loop *loop;
	const struct core_events *events;
	void *arg;
	uint64_t deadline_ns, lease_ns;
	struct tier *dram, *remote;        /* NULL: not there */
	bool opened, closing, remote_closed, soon_pending, end_pending;
	struct loop_op soon, end;
	struct list_link batches, ready;
	struct list_link bucket[CORE_BUCKETS];
	struct kvof_cache_stat stat;
	void (*closed)(void *arg);
	void *closed_arg;
};

static const uint8_t op_next[CACHE_OP_STATE_N] = {  /* bit n set: may go to state n */
	[CACHE_WAITING] = 1 << CACHE_RUNNING | 1 << CACHE_FREE,
	[CACHE_RUNNING] = 1 << CACHE_BUSY | 1 << CACHE_FREE,
	[CACHE_BUSY] = 1 << CACHE_FREE,
	[CACHE_FREE] = 0,
};

static void op_go(struct cache_op *op, enum cache_op_state to)  /* the only writer of op->state */
{
	must(op_next[op->state] & 1u << to);
	op->state = to;
}

static struct core *core_of(const struct cache_op *op)
{
	struct core *core = op->batch->core;

	OBJ_CHECK(core, CORE_MAGIC);
	return core;
}

static bool op_writes(const struct cache_op *op)
{
	return op->batch->kind == KVOF_SAVE || op->batch->kind == KVOF_DELETE;
}

static struct list_link *bucket_of(struct core *core, const struct kvof_id *id)
{
	uint16_t bits;

	memcpy(&bits, id->byte, sizeof(bits));
	return &core->bucket[bits % CORE_BUCKETS];
}

static bool same_id(const struct cache_op *a, const struct cache_op *b)
{
	return memcmp(&a->tier_op.id, &b->tier_op.id, sizeof(struct kvof_id)) == 0;
}

/* No earlier operation on this identity is in its way. */
static bool op_may_run(struct core *core, struct cache_op *op)
{
	LIST_FOR_EACH(link, bucket_of(core, &op->tier_op.id)) {
		struct cache_op *other = container_of(link, struct cache_op, link);

		if (other == op)
			break;
		if (same_id(op, other) && (op_writes(op) || op_writes(other)))
			return false;
	}
	return true;
}

/* Those that waited for `gone` and wait for nobody now. */
static void ready_find(struct core *core, struct cache_op *gone)
{
	LIST_FOR_EACH(link, bucket_of(core, &gone->tier_op.id)) {
		struct cache_op *op = container_of(link, struct cache_op, link);

		if (same_id(op, gone) && op->state == CACHE_WAITING && !list_linked(&op->ready) &&
		    op_may_run(core, op))
			list_push_back(&core->ready, &op->ready);
	}
}

static void core_end(struct loop_op *end, int res);

/* The core ends on a turn of its own, when nothing of it is left in flight. */
static void close_check(struct core *core)
{
	if (!core->closing || core->end_pending || !list_empty(&core->batches) ||
	    !core->remote_closed || core->soon_pending)
		return;
	core->end_pending = true;
	core->end = (struct loop_op){.done = core_end};
	loop_soon(core->loop, &core->end, 0);
}

/* --- results ---------------------------------------------------------------------------------- */

/* Marks what the batch used as used now: from its tail to its head, so that tails go first. */
static void batch_touch(struct core *core, struct cache_batch *batch)
{
	uint64_t until = batch->question ? loop_now_ns(core->loop) + batch->lease_ns : 0;

	if (core->dram == NULL || batch->kind == KVOF_DELETE)
		return;
	for (uint32_t i = 0; i < batch->count; i++) {
#ifdef KVOF_PLANT_HEAD_EVICTED_FIRST
		uint32_t at = i;
#else
		uint32_t at = batch->count - 1 - i;
#endif
		core->dram->ops->touch(core->dram, &batch->op[at].tier_op.id, until);
	}
}

static void batch_check_over(struct core *core, struct cache_batch *batch)
{
	if (batch->left > 0 || batch->busy > 0)
		return;
	loop_timer_cancel(core->loop, &batch->timer);
	list_remove(&batch->link);
	core->events->over(core->arg, batch);
	close_check(core);
}

static void count_result(struct core *core, const struct cache_batch *batch,
			 const struct kvof_result *r)
{
	struct kvof_cache_stat *stat = &core->stat;

	if (batch->kind == KVOF_SAVE && r->reason == KVOF_OK)
		stat->saved_bytes += r->value_bytes;
	if (batch->kind != KVOF_LOAD)
		return;
	stat->reason[r->reason]++;
	stat->wait_ns += r->wait_ns;
	stat->verify_ns += r->verify_ns;
	if (r->reason != KVOF_OK) {
		stat->misses++;
		return;
	}
	must(r->tier < ARRAY_COUNT(stat->hits));
	stat->hits[r->tier]++;
	stat->loaded_bytes[r->tier] += r->value_bytes;
}

/* The result of op. It and its batch may be gone afterwards. */
static void finish(struct core *core, struct cache_op *op, enum kvof_reason reason, unsigned tier)
{
	struct cache_batch *batch = op->batch;
	bool busy = op->state == CACHE_RUNNING && op->tier_op.busy;
	struct kvof_result r = {
		.batch = batch->id,
		.index = op->index,
		.reason = reason,
		.value_bytes = op->tier_op.value_bytes,
		.busy = busy,
		.wait_ns = loop_now_ns(core->loop) - batch->begin_ns,
		.verify_ns = op->verify_ns,
		.tier = reason == KVOF_OK || reason == KVOF_EXISTS ? tier : 0,
	};

	op_go(op, busy ? CACHE_BUSY : CACHE_FREE);
	if (list_linked(&op->ready))
		list_remove(&op->ready);
	if (list_linked(&op->link)) {
		list_remove(&op->link);
		ready_find(core, op);
	}
	must(batch->left > 0);
	batch->left--;
	batch->busy += busy;
	if (batch->left == 0) {
		r.flags = KVOF_RESULT_LAST;
		batch_touch(core, batch);
	}
	count_result(core, batch, &r);
	core->events->result(core->arg, batch, &r);
	batch_check_over(core, batch);
}

static void op_released(struct tier_op *tier_op)
{
	struct cache_op *op = container_of(tier_op, struct cache_op, tier_op);
	struct core *core = core_of(op);
	struct cache_batch *batch = op->batch;
	struct kvof_result r = {
		.batch = batch->id,
		.index = op->index,
		.flags = KVOF_RESULT_RELEASED,
	};

	op_go(op, CACHE_FREE);
	must(batch->busy > 0);
	batch->busy--;
	core->stat.late_releases++;
	core->events->result(core->arg, batch, &r);
	batch_check_over(core, batch);
}

/* --- the walk through the tiers --------------------------------------------------------------- */

static struct tier *tier_at(const struct core *core, unsigned tier_index)
{
	return tier_index == 1 ? core->dram : core->remote;
}

static void op_start(struct core *core, struct cache_op *op, unsigned tier_index)
{
	op->tier_index = tier_index;
	op->tier_op.deadline_ns = op->batch->begin_ns + op->batch->deadline_ns;
	tier_at(core, tier_index)->ops->start(tier_at(core, tier_index), &op->tier_op);
}

/* DRAM has answered; has the array to be asked as well? */
static bool goes_on(const struct cache_op *op, enum kvof_reason reason)
{
	switch (op->batch->kind) {
	case KVOF_LOAD:
	case KVOF_EXISTS_OP:
		return reason == KVOF_ABSENT;
	case KVOF_SAVE:
	case KVOF_DELETE:
		return true;
	}
	return false;
}

static enum kvof_reason reason_of_both(const struct cache_op *op, enum kvof_reason last)
{
	if (op->batch->kind == KVOF_DELETE && last == KVOF_ABSENT && op->first == KVOF_OK)
		return KVOF_OK;
	return last;
}

static void ready_run(struct core *core);

static void op_done(struct tier_op *tier_op)
{
	struct cache_op *op = container_of(tier_op, struct cache_op, tier_op);
	struct core *core = core_of(op);
	enum kvof_reason reason = tier_op->reason;

	loop_must_own(core->loop);
	op->verify_ns += tier_op->verify_ns;
	if (op->tier_index == 1 && core->remote != NULL && goes_on(op, reason)) {
		if (!op->canceled && !core->closing) {
			op->first = reason;
			op_start(core, op, 2);
			return;
		}
		reason = KVOF_CANCELED;
	}
	if (op->tier_index == 2) {
		if (op->batch->kind == KVOF_LOAD && reason == KVOF_OK && core->dram != NULL &&
		    core->dram->ops->keep(core->dram, tier_op))
			core->stat.promoted[KVOF_TIER_DRAM]++;
		reason = reason_of_both(op, reason);
	}
	finish(core, op, reason, op->tier_index);
	ready_run(core);
}

static void op_run(struct core *core, struct cache_op *op)
{
	op_go(op, CACHE_RUNNING);
	op->tier_op.done = op_done;
	op->tier_op.released = op_released;
	op_start(core, op, core->dram != NULL ? 1 : 2);
}

static void ready_run(struct core *core)
{
	struct list_link *link;

	while ((link = list_pop_front(&core->ready)) != NULL)
		op_run(core, container_of(link, struct cache_op, ready));
}

/* --- batches ---------------------------------------------------------------------------------- */

/* Ends what has not started; what has is the tier's. */
static void batch_end_waiting(struct core *core, struct cache_batch *batch, enum kvof_reason reason)
{
	uint32_t left = batch->left;       /* the batch may be gone after its last result */

	for (uint32_t i = 0; left > 0 && i < batch->count; i++) {
		if (batch->op[i].state != CACHE_WAITING)
			continue;
		left = batch->left - 1 + batch->busy;
		finish(core, &batch->op[i], reason, 0);
	}
}

static void batch_late(struct loop_timer *timer)
{
	struct cache_batch *batch = container_of(timer, struct cache_batch, timer);
	struct core *core = batch->core;

	for (uint32_t i = 0; i < batch->count; i++) {
		struct cache_op *op = &batch->op[i];

		if (op->state == CACHE_RUNNING && tier_at(core, op->tier_index)->ops->late != NULL)
			tier_at(core, op->tier_index)->ops->late(
				tier_at(core, op->tier_index), &op->tier_op);
	}
	batch_end_waiting(core, batch, KVOF_LATE);
	ready_run(core);
}

static void batch_cancel(struct core *core, struct cache_batch *batch)
{
	for (uint32_t i = 0; i < batch->count; i++) {
		struct cache_op *op = &batch->op[i];

		if (op->state != CACHE_RUNNING)
			continue;
		op->canceled = true;
		tier_at(core, op->tier_index)->ops->cancel(tier_at(core, op->tier_index),
							   &op->tier_op);
	}
	batch_end_waiting(core, batch, KVOF_CANCELED);
}

void core_submit(struct core *core, struct cache_batch *batch)
{
	OBJ_CHECK(core, CORE_MAGIC);
	loop_must_own(core->loop);
	batch->core = core;
	batch->begin_ns = loop_now_ns(core->loop);
	if (batch->deadline_ns == 0)
		batch->deadline_ns = core->deadline_ns;
	if (batch->question && batch->lease_ns == 0)
		batch->lease_ns = core->lease_ns;
	list_push_back(&core->batches, &batch->link);
	loop_timer_init(&batch->timer, batch_late);
#ifndef KVOF_PLANT_DEADLINE_IGNORED
	loop_timer_set(core->loop, &batch->timer, batch->begin_ns + batch->deadline_ns);
#endif
	for (uint32_t i = 0; i < batch->count; i++) {
		/* a save begins with its tail */
		uint32_t at = batch->kind == KVOF_SAVE ? batch->count - 1 - i : i;
		struct cache_op *op = &batch->op[at];

		if (!batch->question)
			list_push_back(bucket_of(core, &op->tier_op.id), &op->link);
		if (batch->question || op_may_run(core, op))
			list_push_back(&core->ready, &op->ready);
	}
	if (core->closing || (core->dram == NULL && core->remote == NULL))
		batch_cancel(core, batch);
	ready_run(core);
}

static struct cache_batch *batch_find(struct core *core, uint64_t id)
{
	LIST_FOR_EACH(link, &core->batches) {
		struct cache_batch *batch = container_of(link, struct cache_batch, link);

		if (batch->id == id)
			return batch;
	}
	return NULL;
}

static void cancel_all(struct core *core)
{
	LIST_FOR_EACH_SAFE(link, &core->batches)
		batch_cancel(core, container_of(link, struct cache_batch, link));
}

void core_cancel(struct core *core, uint64_t batch_id)
{
	struct cache_batch *batch;

	OBJ_CHECK(core, CORE_MAGIC);
	loop_must_own(core->loop);
	if (batch_id == 0) {
		cancel_all(core);
	} else {
		batch = batch_find(core, batch_id);
		if (batch != NULL)
			batch_cancel(core, batch);
	}
	ready_run(core);
}

void core_unlease(struct core *core, const struct kvof_id *ids, uint32_t count)
{
	loop_must_own(core->loop);
	for (uint32_t i = 0; core->dram != NULL && i < count; i++)
		dram_unlease(core->dram, &ids[i]);
}

void core_stat(const struct core *core, struct kvof_cache_stat *out)
{
	OBJ_CHECK(core, CORE_MAGIC);
	*out = core->stat;
	if (core->dram != NULL) {
		struct dram_stat dram;

		dram_stat(core->dram, &dram);
		out->dram_used_bytes = dram.used_bytes;
		out->dram_blocks = dram.blocks;
		out->dram_evicted = dram.evicted;
		out->dram_refused = dram.refused;
	}
	if (core->remote != NULL) {
		struct tier_stat remote;

		route_stat(core->remote, &remote);
		out->remote_reconnects = remote.reconnects;
		out->remote_live = remote.devs_live;
	}
}

/* --- open and close --------------------------------------------------------------------------- */

static void opened(void *arg, int res, const char *why)
{
	struct core *core = arg;

	must(!core->opened);
	core->opened = true;
	core->events->opened(core->arg, res, why);
}

static void opened_soon(struct loop_op *soon, int res)
{
	struct core *core = container_of(soon, struct core, soon);

	core->soon_pending = false;
	if (core->closing)
		close_check(core);
	else
		opened(core, 0, "");
}

static void core_free(struct core *core)
{
	if (core->dram != NULL)
		dram_close(&core->dram);
	must(core->remote == NULL);
	core->magic = 0;
	free(core);
}

static const char *model_of(const struct identity *id)
{
	uint32_t at = 0;

	while (strcmp(id->name[at], "model_id") != 0)
		must(++at < id->field_count);      /* identity_make() added it */
	return id->value[at];
}

static int remote_make(struct core *core, const struct core_opts *opts, char why[256])
{
	struct route_opts route = {
		.cache = opts->cache,
		.identity = opts->identity,
		.wire = opts->wire,
		.model_id = model_of(opts->identity),
		.deadline_ns = core->deadline_ns,
	};

	return route_open(core->loop, &route, opened, core, why, &core->remote);
}

static void core_init(struct core *core, struct loop *loop, const struct core_opts *opts,
		      const struct core_events *events, void *arg)
{
	const struct kvof_cache_opts *c = opts->cache;

	OBJ_INIT(core, CORE_MAGIC);
	core->loop = loop;
	core->events = events;
	core->arg = arg;
	core->deadline_ns = c->deadline_ns != 0 ? c->deadline_ns : CORE_DEADLINE_NS;
	core->lease_ns = c->lease_ns != 0 ? c->lease_ns : CORE_LEASE_NS;
	list_init(&core->batches);
	list_init(&core->ready);
	for (unsigned i = 0; i < CORE_BUCKETS; i++)
		list_init(&core->bucket[i]);
}

int core_open(struct loop *loop, const struct core_opts *opts, const struct core_events *events,
	      void *arg, char why[256], struct core **out)
{
	const struct kvof_cache_opts *c = opts->cache;
	struct core *core = calloc(1, sizeof(*core));
	int rc = 0;

	why[0] = '\0';
	if (core == NULL)
		return -ENOMEM;
	core_init(core, loop, opts, events, arg);
	if (c->dram_bytes > 0)
		rc = dram_open(loop, c->dram_bytes, &core->dram);
	if (rc == 0 && (c->target != NULL || c->target_count > 0))
		rc = remote_make(core, opts, why);
	if (rc != 0) {
		core_free(core);
		return rc;
	}
	*out = core;
	if (core->remote == NULL) {
		core->soon_pending = true;
		core->soon = (struct loop_op){.done = opened_soon};
		loop_soon(loop, &core->soon, 0);
	}
	return 0;
}

static void core_end(struct loop_op *end, int res)
{
	struct core *core = container_of(end, struct core, end);
	void (*closed)(void *arg) = core->closed;
	void *arg = core->closed_arg;

	core_free(core);
	closed(arg);
}

static void remote_gone(void *arg)
{
	struct core *core = arg;

	core->remote = NULL;
	core->remote_closed = true;
	close_check(core);
}

void core_close(struct core **corep, void (*closed)(void *arg), void *arg)
{
	struct core *core;
	struct tier *remote;

	OBJ_TAKE(core, corep, CORE_MAGIC);
	loop_must_own(core->loop);
	must(!core->closing);
	remote = core->remote;
	core->closing = true;
	core->closed = closed;
	core->closed_arg = arg;
	cancel_all(core);
	ready_run(core);
	if (remote != NULL)                /* its operations know it until it is closed */
		route_close(&remote, remote_gone, core);
	else
		core->remote_closed = true;
	close_check(core);
}
