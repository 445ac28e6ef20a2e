/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache on one loop: order of operations on a key, the walk through the tiers, deadlines,
 * results. What moves between tiers is in core_move.c, open and close in core_open.c.
 *
 *   load    DRAM, flash, arrays: the first that has it whole and good; then a copy for DRAM
 *   save    DRAM, and answered if the rest is written behind it; else DRAM, flash, arrays, and the
 *           last one's answer counts
 *   exists  as load        delete  all
 *
 * A tier that has a block damaged, or under another identity, or is away, is passed over: the next
 * one may have it whole. What each said is counted. Flash that hardly answers is asked last.
 *
 * An operation waits while an earlier one on the same identity is unfinished, unless both only
 * look. Questions of match wait for nobody.
 *
 * Invariants: an operation has exactly one result, and one release if that result was busy;
 * batch->left counts those without result, batch->busy those without release; the batch is over
 * when both are zero. `ready` holds waiting operations that may start; it is emptied before a
 * callback of the loop returns, by a loop, so that no completion nests in another.
 *
 * Owned by one loop.
 */
#include <errno.h>
#include <string.h>

#include "cache/core_inner.h"

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

/* --- order on one identity -------------------------------------------------------------------- */

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

/* It writes to slower tiers itself. */
static bool op_writes_below(const struct core *core, const struct cache_op *op)
{
	return op->batch->kind == KVOF_DELETE ||
	       (op->batch->kind == KVOF_SAVE &&
		(!core->behind_saves || (op->batch->flags & KVOF_WAIT_ALL) != 0));
}

/* No earlier operation on this identity is in its way. */
static bool op_may_run(struct core *core, struct cache_op *op)
{
	LIST_FOR_EACH(link, bucket_of(core, &op->tier_op.id)) {
		struct cache_op *other = container_of(link, struct cache_op, link);

		if (other == op)
			break;
		if (identity_same(&op->tier_op.id, &other->tier_op.id) &&
		    (op_writes(op) || op_writes(other)))
			return false;
	}
	return !op_writes_below(core, op) || !core_writes_behind(core, &op->tier_op.id);
}

void core_ready_find(struct core *core, const struct kvof_id *id)
{
	LIST_FOR_EACH(link, bucket_of(core, id)) {
		struct cache_op *op = container_of(link, struct cache_op, link);

		if (identity_same(&op->tier_op.id, id) && op->state == CACHE_WAITING &&
		    !list_linked(&op->ready) && op_may_run(core, op))
			list_push_back(&core->ready, &op->ready);
	}
}

/* --- results ---------------------------------------------------------------------------------- */

static void dram_used(struct core *core, const struct prefix_ids *ids, uint32_t at)
{
	const char *id = (const char *)ids->first + at * ids->stride_bytes;

	dram_hit(core->tier[KVOF_TIER_DRAM], (const void *)id);
}

/* Each is the one before the next; the first may continue one that was known before. */
static void dram_links(struct core *core, const struct prefix_ids *ids)
{
	struct tier *dram = core->tier[KVOF_TIER_DRAM];
	const struct kvof_id *before = NULL;
	struct kvof_id parent;

	if (prefix_parent(core->known, ids->first, &parent))
		before = &parent;
	for (uint32_t i = 0; i < ids->count; i++) {
		const struct kvof_id *id = (const void *)((const char *)ids->first +
							  i * ids->stride_bytes);

		if (before != NULL)
			dram_link(dram, id, before);
		before = id;
	}
}

static struct prefix_ids batch_ids(const struct cache_batch *batch)
{
	return (struct prefix_ids){&batch->op[0].tier_op.id, sizeof(batch->op[0]), batch->count};
}

/* What is there is a sequence, and so is the block after it: the one that will be saved next. */
static void links_learn(struct core *core, const struct cache_batch *batch)
{
	struct prefix_ids ids = batch_ids(batch);
	uint32_t leading = 0;

	if ((batch->flags & KVOF_UNORDERED) != 0)
		return;
	while (leading < batch->count && batch->op[leading].any)
		leading++;
	if (leading == 0)
		return;
	ids.count = leading + (leading < batch->count);
	prefix_link(core->known, ids, true);
}

/* The batch has used its blocks: from its tail to its head, so that tails go first. Questions only
 * take a lease: what is looked up and then loaded was used once. */
static void batch_touch(struct core *core, struct cache_batch *batch)
{
	uint64_t until = loop_now_ns(core->loop) + batch->lease_ns;
	struct prefix_ids ids = batch_ids(batch);
	struct tier *dram = core->tier[KVOF_TIER_DRAM];

	if (batch->kind == KVOF_LOAD || batch->kind == KVOF_EXISTS_OP)
		links_learn(core, batch);
	if (dram == NULL || batch->kind == KVOF_DELETE)
		return;
	for (uint32_t i = 0; i < batch->count; i++) {
#ifdef KVOF_PLANT_HEAD_EVICTED_FIRST
		uint32_t at = i;
#else
		uint32_t at = batch->count - 1 - i;
#endif
		if (batch->question)
			dram->ops->touch(dram, &batch->op[at].tier_op.id, until);
		else if (batch->kind != KVOF_EXISTS_OP && !batch->op[at].fresh)
			dram_used(core, &ids, at);
	}
	if ((batch->flags & KVOF_UNORDERED) == 0 && batch->kind != KVOF_EXISTS_OP)
		dram_links(core, &ids);
}

static struct prefix_ids ids_from(struct prefix_ids ids, uint32_t from)
{
	ids.first = (const void *)((const char *)ids.first + from * ids.stride_bytes);
	ids.count -= from;
	return ids;
}

void core_used_prefix(struct core *core, struct prefix_ids ids, uint32_t from)
{
	struct prefix_ids some = ids_from(ids, from);

	must(from < ids.count);
	/* with the block before them, which is told later */
	prefix_link(core->known, ids_from(ids, from > 0 ? from - 1 : 0), false);
	if (core->tier[KVOF_TIER_DRAM] == NULL)
		return;
	for (uint32_t i = 0; i < some.count; i++)
		dram_used(core, &some, some.count - 1 - i);
	dram_links(core, &some);
}

static void flush_check(struct core *core);

static void batch_check_over(struct core *core, struct cache_batch *batch)
{
	if (batch->left > 0 || batch->busy > 0)
		return;
	loop_timer_cancel(core->loop, &batch->timer);
	list_remove(&batch->link);
	if (batch->anchored)
		dram_unpin(core->tier[KVOF_TIER_DRAM], batch->anchor);
	if (batch->quiet != NULL)
		batch->quiet(batch, NULL);
	else
		core->events->over(core->arg, batch);
	flush_check(core);
	core_close_check(core);
}

static void tell(struct core *core, struct cache_batch *batch, const struct kvof_result *r)
{
	if (batch->quiet != NULL)
		batch->quiet(batch, r);
	else
		core->events->result(core->arg, batch, r);
}

void core_load_failed(struct core *core, enum kvof_reason reason)
{
	core->stat.misses++;
	core->stat.reason[reason]++;
}

static void count_result(struct core *core, const struct cache_batch *batch,
			 const struct kvof_result *r)
{
	struct kvof_cache_stat *stat = &core->stat;

	if (batch->kind == KVOF_SAVE && r->reason == KVOF_OK)
		stat->saved_bytes += r->value_bytes;
	if (batch->kind != KVOF_LOAD)
		return;
	stat->wait_ns += r->wait_ns;
	stat->verify_ns += r->verify_ns;
	if (r->reason != KVOF_OK) {
		core_load_failed(core, r->reason);
		return;
	}
	must(r->tier < ARRAY_COUNT(stat->hits));
	stat->reason[KVOF_OK]++;
	stat->hits[r->tier]++;
	stat->loaded_bytes[r->tier] += r->value_bytes;
}

/* The result of op. It and its batch may be gone afterwards. */
static void finish(struct core *core, struct cache_op *op, enum kvof_reason reason)
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
		.tier = reason == KVOF_OK || reason == KVOF_EXISTS ? op->tier : KVOF_TIER_NONE,
	};

	op_go(op, busy ? CACHE_BUSY : CACHE_FREE);
	if (list_linked(&op->ready))
		list_remove(&op->ready);
	if (list_linked(&op->link)) {
		list_remove(&op->link);
		core_ready_find(core, &op->tier_op.id);
	}
	must(batch->left > 0);
	batch->left--;
	batch->busy += busy;
	if (batch->left == 0) {
		r.flags = KVOF_RESULT_LAST;
		batch_touch(core, batch);
	}
	count_result(core, batch, &r);
	tell(core, batch, &r);
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
	tell(core, batch, &r);
	batch_check_over(core, batch);
}

/* --- the walk through the tiers --------------------------------------------------------------- */

struct tier *core_tier(const struct core *core, enum kvof_tier tier)
{
	OBJ_CHECK(core, CORE_MAGIC);
	return core->tier[tier];
}

enum kvof_tier core_tier_next(const struct core *core, enum kvof_tier after)
{
	static const uint8_t next[KVOF_TIER_COUNT] = {  /* the order of asking */
		[KVOF_TIER_NONE] = KVOF_TIER_DRAM,
		[KVOF_TIER_DRAM] = KVOF_TIER_FLASH,
		[KVOF_TIER_FLASH] = KVOF_TIER_REMOTE,
		[KVOF_TIER_REMOTE] = KVOF_TIER_NONE,
	};
	enum kvof_tier tier = after;

	do {
		tier = next[tier];
	} while (tier != KVOF_TIER_NONE && core->tier[tier] == NULL);
	return tier;
}

/* Flash answers nothing, or so slowly that a load would hardly be in time, and an array is there:
 * it is asked first. */
bool core_flash_slow(struct core *core, const struct kvof_id *id, uint64_t deadline_ns)
{
	const struct tier *flash = core->tier[KVOF_TIER_FLASH];
	const struct tier *remote = core->tier[KVOF_TIER_REMOTE];
	struct tier_speed speed;

	if (flash == NULL || remote == NULL || flash->ops->speed == NULL ||
	    remote->ops->speed == NULL)
		return false;
	flash->ops->speed(flash, id, &speed);
	if (speed.latency_ns < deadline_ns / 2)
		return false;
	remote->ops->speed(remote, id, &speed);
	return speed.live && speed.latency_ns < deadline_ns / 2;
}

bool core_flash_try(struct core *core)
{
	return ++core->probes % CORE_PROBE_EVERY == 0;
}

static enum kvof_tier load_next(const struct core *core, const struct cache_op *op)
{
	if (!op->flash_last || op->tier == KVOF_TIER_NONE)
		return core_tier_next(core, op->tier);
	return op->tier == KVOF_TIER_DRAM ? KVOF_TIER_REMOTE :
	       op->tier == KVOF_TIER_REMOTE ? KVOF_TIER_FLASH : KVOF_TIER_NONE;
}

/* Who has the operation in hand. */
static struct tier *tier_of(const struct core *core, const struct cache_op *op)
{
	return core->tier[op->keeping ? KVOF_TIER_DRAM : op->tier];
}

static void op_start(struct core *core, struct cache_op *op, enum kvof_tier tier)
{
	op->tier = tier;
	op->tier_op.begin_ns = op->batch->begin_ns;
	op->tier_op.deadline_ns = op->batch->begin_ns + op->batch->deadline_ns;
	core->tier[tier]->ops->start(core->tier[tier], &op->tier_op);
}

/* A save goes on to the next tier that may have it. */
static enum kvof_tier save_next(struct core *core, const struct cache_op *op, enum kvof_tier after)
{
	enum kvof_tier tier = after;

	do {
		tier = core_tier_next(core, tier);
	} while (tier != KVOF_TIER_NONE && tier != KVOF_TIER_DRAM &&
		 ((op->batch->flags & KVOF_SKIP_WRITE) != 0 ||
		  !core_admits(core, tier, op->second)));
	return tier;
}

/* The one to ask now that op->tier has said this; KVOF_TIER_NONE: that was all. */
static enum kvof_tier goes_on(struct core *core, struct cache_op *op, enum kvof_reason reason)
{
	static const uint16_t passed_over = 1 << KVOF_ABSENT | 1 << KVOF_CORRUPT |
		1 << KVOF_IDENTITY | 1 << KVOF_UNREACHABLE | 1 << KVOF_ERROR;

	if (op->tier_op.busy || reason == KVOF_LATE || reason == KVOF_CANCELED)
		return KVOF_TIER_NONE;
	switch (op->batch->kind) {
	case KVOF_LOAD:
	case KVOF_EXISTS_OP:
		if ((passed_over & 1u << reason) == 0)
			return KVOF_TIER_NONE;
		return load_next(core, op);
	case KVOF_SAVE:
		if (op->tier == KVOF_TIER_DRAM && (reason == KVOF_OK || reason == KVOF_EXISTS) &&
		    (op->batch->flags & (KVOF_WAIT_ALL | KVOF_SKIP_WRITE)) == 0 &&
		    core_save_behind(core, &op->tier_op.id, op->second))
			return KVOF_TIER_NONE;
		return save_next(core, op, op->tier);
	case KVOF_DELETE:
		return core_tier_next(core, op->tier);
	}
	return KVOF_TIER_NONE;
}

/* Which of two reasons tells more about why there is no block: the later in this list. */
static void worse(struct cache_op *op, enum kvof_reason reason)
{
	static const uint8_t rank[KVOF_REASON_COUNT] = {
		[KVOF_OK] = 0, [KVOF_ABSENT] = 1, [KVOF_EXISTS] = 2, [KVOF_SHORT] = 3,
		[KVOF_FULL] = 4, [KVOF_ERROR] = 5, [KVOF_IDENTITY] = 6, [KVOF_CORRUPT] = 7,
		[KVOF_UNREACHABLE] = 8, [KVOF_LATE] = 9, [KVOF_CANCELED] = 10,
	};

	if (rank[reason] > rank[op->worst])
		op->worst = reason;
}

/* What a tier's answer says about where the block is. */
static void learn(struct core *core, const struct kvof_id *id, enum kvof_op kind,
		  enum kvof_tier tier, enum kvof_reason reason)
{
	if (tier == KVOF_TIER_DRAM || kind == KVOF_DELETE)
		return;                    /* DRAM speaks for itself, and so does the end */
	if (reason == KVOF_OK || reason == KVOF_EXISTS)
		core_seen(core, id, tier, true);
	else if (kind != KVOF_SAVE && (reason == KVOF_ABSENT || reason == KVOF_CORRUPT ||
				       reason == KVOF_IDENTITY))
		core_seen(core, id, tier, false);
}

/* It came into DRAM just now; the one after it may be there already: saves begin with the tail. */
static void link_next(struct core *core, const struct cache_op *op)
{
	const struct cache_batch *batch = op->batch;

	if ((batch->flags & KVOF_UNORDERED) == 0 && op->index + 1 < batch->count)
		dram_link(core->tier[KVOF_TIER_DRAM], &batch->op[op->index + 1].tier_op.id,
			  &op->tier_op.id);
}

static void answered(struct core *core, struct cache_op *op, enum kvof_reason reason)
{
	enum kvof_op kind = op->batch->kind;

	if (kind == KVOF_LOAD)
		core->stat.tier_reason[op->tier][reason]++;
	if (reason == KVOF_OK && kind == KVOF_SAVE && op->tier != KVOF_TIER_DRAM)
		core_changed(core, &op->tier_op.id, op->tier, true);
	if (reason == KVOF_OK && kind == KVOF_DELETE && op->tier != KVOF_TIER_DRAM)
		core_changed(core, &op->tier_op.id, op->tier, false);
	op->any = op->any || reason == KVOF_OK;
	if (kind == KVOF_SAVE && op->tier == KVOF_TIER_DRAM && reason == KVOF_OK) {
		op->fresh = true;
		link_next(core, op);
	}
	worse(op, reason);
	learn(core, &op->tier_op.id, kind, op->tier, reason);
}

/* What all tiers that were asked say together. */
static enum kvof_reason verdict(struct core *core, struct cache_op *op, enum kvof_reason last)
{
	switch (op->batch->kind) {
	case KVOF_LOAD:
	case KVOF_EXISTS_OP:
		return last == KVOF_OK ? KVOF_OK : op->worst;
	case KVOF_SAVE:
		if (core->tier[KVOF_TIER_DRAM] != NULL)
			dram_below_set(core->tier[KVOF_TIER_DRAM], &op->tier_op.id,
				       1u << KVOF_TIER_NONE,
				       (op->batch->flags & KVOF_SKIP_WRITE) != 0);
		return last;
	case KVOF_DELETE:
		if (op->worst == KVOF_ABSENT && op->any)
			return KVOF_OK;
		return op->worst;
	}
	return last;
}

static void load_served(struct core *core, struct cache_op *op)
{
	if (op->fresh && core->tier[KVOF_TIER_DRAM] != NULL)
		link_next(core, op);
	core_used(core, &op->tier_op.id, op->tier);
	finish(core, op, KVOF_OK);
}

static void op_done(struct tier_op *tier_op)
{
	struct cache_op *op = container_of(tier_op, struct cache_op, tier_op);
	struct core *core = core_of(op);
	enum kvof_reason reason = tier_op->reason;
	enum kvof_tier next;

	loop_must_own(core->loop);
	if (op->keeping) {
		op->keeping = false;
		load_served(core, op);
		core_ready_run(core);
		return;
	}
	op->verify_ns += tier_op->verify_ns;
	answered(core, op, reason);
	next = goes_on(core, op, reason);
	if (next != KVOF_TIER_NONE && !op->canceled && !core->closing) {
		op_start(core, op, next);
		return;
	}
	reason = next != KVOF_TIER_NONE ? KVOF_CANCELED : verdict(core, op, reason);
	if (op->batch->kind == KVOF_DELETE)
		core_gone(core, &op->tier_op.id, true);
	if (op->batch->kind == KVOF_LOAD && reason == KVOF_OK) {
		if (op->tier != KVOF_TIER_DRAM) {
			op->keeping = core_promote(core, tier_op, op->tier, false);
			op->fresh = true;
		}
		if (!op->keeping)
			load_served(core, op);
	} else {
		finish(core, op, reason);
	}
	core_ready_run(core);
}

/* What ends without asking anybody. True: op is over, and may be gone. */
static bool ends_unasked(struct core *core, struct cache_op *op, enum kvof_tier first)
{
	bool looks = op->batch->kind == KVOF_LOAD || op->batch->kind == KVOF_EXISTS_OP;

	if (looks && ((op->batch->flags & KVOF_SKIP_READ) != 0 ||
		      prefix_over(core->known, &op->tier_op.id, loop_now_ns(core->loop)))) {
		finish(core, op, KVOF_ABSENT);
		return true;
	}
	if (first == KVOF_TIER_NONE) {
		finish(core, op, KVOF_FULL);       /* a save that nobody may have */
		return true;
	}
	return false;
}

static void op_run(struct core *core, struct cache_op *op)
{
	enum kvof_tier first = core_tier_next(core, KVOF_TIER_NONE);

	op_go(op, CACHE_RUNNING);
	op->tier_op.done = op_done;
	op->tier_op.released = op_released;
	if (op->batch->kind == KVOF_SAVE) {
		op->second = core_second(core, &op->tier_op.id);
		first = save_next(core, op, KVOF_TIER_NONE);
		core_gone(core, &op->tier_op.id, false);
	}
	if (ends_unasked(core, op, first))
		return;
	if (op->batch->kind == KVOF_LOAD &&
	    core_flash_slow(core, &op->tier_op.id, op->batch->deadline_ns) &&
	    !core_flash_try(core)) {
		op->flash_last = true;
		first = first == KVOF_TIER_FLASH ? KVOF_TIER_REMOTE : first;
	}
	if (op->batch->kind == KVOF_DELETE) {
		core_gone(core, &op->tier_op.id, true);
		if (core->behind != NULL)
			behind_forget(core->behind, &op->tier_op.id);
	}
	op_start(core, op, first);
}

void core_ready_run(struct core *core)
{
	struct list_link *link;

	while ((link = list_pop_front(&core->ready)) != NULL)
		op_run(core, container_of(link, struct cache_op, ready));
}

/* --- loads without a batch -------------------------------------------------------------------- */

bool core_loaded(struct core *core, struct tier_op *op, enum kvof_tier tier, bool prefetch)
{
	bool keeping;

	OBJ_CHECK(core, CORE_MAGIC);
	loop_must_own(core->loop);
	core->stat.tier_reason[tier][KVOF_OK]++;
	core->stat.reason[KVOF_OK] += !prefetch;
	core->stat.hits[tier] += !prefetch;
	core->stat.loaded_bytes[tier] += op->value_bytes;
	core->stat.verify_ns += op->verify_ns;
	learn(core, &op->id, KVOF_LOAD, tier, KVOF_OK);
	keeping = tier != KVOF_TIER_DRAM && core_promote(core, op, tier, prefetch);
	core_used(core, &op->id, tier);
	return keeping;
}

void core_missed(struct core *core, const struct tier_op *op, enum kvof_tier tier)
{
	OBJ_CHECK(core, CORE_MAGIC);
	core->stat.tier_reason[tier][op->reason]++;
	learn(core, &op->id, KVOF_LOAD, tier, op->reason);
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
		finish(core, &batch->op[i], reason);
	}
}

static void batch_late(struct loop_timer *timer)
{
	struct cache_batch *batch = container_of(timer, struct cache_batch, timer);
	struct core *core = batch->core;

	for (uint32_t i = 0; i < batch->count; i++) {
		struct cache_op *op = &batch->op[i];
		struct tier *tier = tier_of(core, op);

		if (op->state == CACHE_RUNNING && tier->ops->late != NULL)
			tier->ops->late(tier, &op->tier_op);
	}
	batch_end_waiting(core, batch, KVOF_LATE);
	core_ready_run(core);
}

static void batch_cancel(struct core *core, struct cache_batch *batch)
{
	for (uint32_t i = 0; i < batch->count; i++) {
		struct cache_op *op = &batch->op[i];

		if (op->state != CACHE_RUNNING)
			continue;
		op->canceled = true;
		tier_of(core, op)->ops->cancel(tier_of(core, op), &op->tier_op);
	}
	batch_end_waiting(core, batch, KVOF_CANCELED);
}

/* A save begins with its tail, and must not get its room from the block that it continues. */
static void anchor_take(struct core *core, struct cache_batch *batch)
{
	struct tier *dram = core->tier[KVOF_TIER_DRAM];
	struct kvof_id before;
	uint64_t bytes;

	if (dram == NULL || !prefix_parent(core->known, &batch->op[0].tier_op.id, &before))
		return;
	batch->anchor = dram_pin(dram, &before, &bytes);
	batch->anchored = batch->anchor != DRAM_SLOT_NONE;
}

static void batch_begin(struct core *core, struct cache_batch *batch)
{
	batch->core = core;
	batch->serial = ++core->serial;
	batch->begin_ns = loop_now_ns(core->loop);
	if (batch->deadline_ns == 0)
		batch->deadline_ns = core->deadline_ns;
	batch->deadline_ns = tier_deadline_ns(batch->deadline_ns);
	if (batch->question && batch->lease_ns == 0)
		batch->lease_ns = core->lease_ns;
	list_push_back(&core->batches, &batch->link);
	loop_timer_init(&batch->timer, batch_late);
#ifndef KVOF_PLANT_DEADLINE_IGNORED
	loop_timer_set(core->loop, &batch->timer, batch->begin_ns + batch->deadline_ns);
#endif
	if (batch->question)
		core->stat.match_asked += batch->count;
	if (batch->kind == KVOF_SAVE && (batch->flags & KVOF_UNORDERED) == 0) {
		core_trail_link(core, &batch->op[0].tier_op.id);
		prefix_link(core->known, batch_ids(batch), true);
		anchor_take(core, batch);
	}
}

void core_submit(struct core *core, struct cache_batch *batch)
{
	OBJ_CHECK(core, CORE_MAGIC);
	loop_must_own(core->loop);
	batch_begin(core, batch);
	for (uint32_t i = 0; i < batch->count; i++) {
		/* a save begins with its tail */
		uint32_t at = batch->kind == KVOF_SAVE ? batch->count - 1 - i : i;
		struct cache_op *op = &batch->op[at];

		if (batch->kind == KVOF_SAVE)
			prefix_renew(core->known, &op->tier_op.id, batch->begin_ns);
		if (!batch->question)
			list_push_back(bucket_of(core, &op->tier_op.id), &op->link);
		if (batch->question || op_may_run(core, op))
			list_push_back(&core->ready, &op->ready);
	}
	if (core->closing || core_tier_next(core, KVOF_TIER_NONE) == KVOF_TIER_NONE)
		batch_cancel(core, batch);
	core_ready_run(core);
}

static struct cache_batch *batch_find(struct core *core, uint64_t id)
{
	LIST_FOR_EACH(link, &core->batches) {
		struct cache_batch *batch = container_of(link, struct cache_batch, link);

		if (batch->id == id && batch->quiet == NULL)
			return batch;
	}
	return NULL;
}

void core_cancel_all(struct core *core)
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
		core_cancel_all(core);
	} else {
		batch = batch_find(core, batch_id);
		if (batch != NULL)
			batch_cancel(core, batch);
	}
	core_ready_run(core);
}

/* --- what the engine wants of blocks ---------------------------------------------------------- */

void core_unlease(struct core *core, const struct kvof_id *ids, uint32_t count)
{
	loop_must_own(core->loop);
	for (uint32_t i = 0; i < count; i++) {
		prefix_unlease(core->known, &ids[i]);
		if (core->tier[KVOF_TIER_DRAM] != NULL)
			dram_unlease(core->tier[KVOF_TIER_DRAM], &ids[i]);
	}
}

int core_pin(struct core *core, const struct kvof_id *ids, uint32_t count, bool on)
{
	int rc;

	loop_must_own(core->loop);
	rc = prefix_pin(core->known, ids, count, on);
	for (uint32_t i = 0; (rc == 0 || !on) && i < count; i++)
		core_pins_set(core, &ids[i]);
	for (uint32_t i = 0; !on && core->tier[KVOF_TIER_DRAM] != NULL && i < count; i++)
		dram_let(core->tier[KVOF_TIER_DRAM], &ids[i]);
	return rc;
}

int core_hint(struct core *core, const struct kvof_id *ids, uint32_t count,
	      const struct kvof_hint *hint)
{
	int rc;

	loop_must_own(core->loop);
	for (uint32_t i = 0; core->tier[KVOF_TIER_DRAM] != NULL && i < count; i++)
		dram_priority(core->tier[KVOF_TIER_DRAM], &ids[i], hint->priority);
	rc = prefix_hint(core->known, ids, count, hint, loop_now_ns(core->loop));
	evict_set(core->evict);
	return rc;
}

/* --- flush ------------------------------------------------------------------------------------ */

static void flush_end(struct core_flush *f, int res)
{
	list_remove(&f->link);
	loop_timer_cancel(f->core->loop, &f->timer);
	f->done(f, res);
}

static void flush_behind_done(struct behind_flush *bf, int res)
{
	struct core_flush *f = container_of(bf, struct core_flush, behind);

	f->done(f, res);
}

/* No save that was submitted before it is unfinished: what they left in the queue is next. False:
 * it waits for one. */
static bool flush_go(struct core *core, struct core_flush *f)
{
	LIST_FOR_EACH(link, &core->batches) {
		const struct cache_batch *batch = container_of(link, struct cache_batch, link);

		if (batch->serial <= f->serial && batch->kind == KVOF_SAVE)
			return false;
	}
	if (core->behind == NULL || core->closing) {
		flush_end(f, core->closing ? -ESHUTDOWN : 0);
		return true;
	}
	list_remove(&f->link);
	loop_timer_cancel(core->loop, &f->timer);
	f->behind.done = flush_behind_done;
	behind_flush(core->behind, &f->behind, f->deadline_ns);
	return true;
}

static void flush_check(struct core *core)
{
	LIST_FOR_EACH_SAFE(link, &core->flushes)
		(void)flush_go(core, container_of(link, struct core_flush, link));
}

void core_flush_cancel(struct core *core)
{
	LIST_FOR_EACH_SAFE(link, &core->flushes)
		flush_end(container_of(link, struct core_flush, link), -ESHUTDOWN);
}

static void flush_timer(struct loop_timer *timer)
{
	struct core_flush *f = container_of(timer, struct core_flush, timer);
	uint64_t now = loop_now_ns(f->core->loop);

	if (f->deadline_ns != 0 && now >= f->deadline_ns)
		flush_end(f, -ETIMEDOUT);
	else if (!flush_go(f->core, f) && f->deadline_ns != 0)
		loop_timer_set(f->core->loop, &f->timer, f->deadline_ns);
}

void core_flush(struct core *core, struct core_flush *f)
{
	OBJ_CHECK(core, CORE_MAGIC);
	loop_must_own(core->loop);
	f->core = core;
	f->serial = core->serial;
	f->link = (struct list_link){0};
	list_push_back(&core->flushes, &f->link);
	loop_timer_init(&f->timer, flush_timer);
	loop_timer_set(core->loop, &f->timer, loop_now_ns(core->loop));  /* never done inside */
}
