/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: their life, their order, their deadline, what is told.
 *
 *   MADE      the caller's
 *   SCANNING  which tier has which block (memory only; a long list takes several turns)
 *   PROBING   PREFIX: the first parts are under way, the split is not chosen yet
 *   LOADING   the split is chosen (ENDS: never is), loads begin as the plan and staging allow
 *   ENDING    deadline or cancel: nothing begins any more, what is under way ends
 *   OVER      told; buffers that are busy come free, ENDS still hands out what was not loaded
 *
 * Everything happens in restore_run(), on a turn of its own after whatever changed: requests are
 * gone through in order of priority and deadline, each starts what it may; so no completion nests
 * in another, and a request that comes later but is due sooner finds the staging that falls free.
 *
 * Invariants: wanted + open + busy + loaded + claimed + failed = blocks below the goal and above; a
 * block is handed out only from WANTED, FAILED or LOADED, never while a tier or the kernel may
 * write. A request is over once; then nothing of it is open.
 *
 * Owned by one loop.
 */
#include "cache/restore.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/restore_inner.h"

static const uint8_t block_next[RB_STATE_N] = {  /* bit n set: may go to state n */
	[RB_WANTED] = 1 << RB_LOADING | 1 << RB_CLAIMED,
	[RB_LOADING] = 1 << RB_LOADED | 1 << RB_FAILED | 1 << RB_BUSY,
	[RB_BUSY] = 1 << RB_FAILED,
	[RB_LOADED] = 1 << RB_CLAIMED,     /* PREFIX: behind the split that was chosen */
	[RB_FAILED] = 1 << RB_CLAIMED,
	[RB_CLAIMED] = 0,
};

void block_go(struct rblock *b, enum rblock_state to)  /* the only writer of b->state */
{
	must(block_next[b->state] & 1u << to);
	b->state = (uint8_t)to;
}

static const uint8_t request_next[REQ_STATE_N] = {  /* bit n set: may go to state n */
	[REQ_MADE] = 1 << REQ_SCANNING,
	[REQ_SCANNING] = 1 << REQ_PROBING | 1 << REQ_LOADING | 1 << REQ_ENDING,
	[REQ_PROBING] = 1 << REQ_LOADING | 1 << REQ_ENDING,
	[REQ_LOADING] = 1 << REQ_ENDING | 1 << REQ_OVER,
	[REQ_ENDING] = 1 << REQ_OVER,
	[REQ_OVER] = 0,
};

void request_go(struct request *req, enum request_state to)  /* the only writer of req->state */
{
	must(request_next[req->state] & 1u << to);
	req->state = to;
}

uint64_t request_now(const struct request *req)
{
	return loop_now_ns(req->restore->opts.loop);
}

void request_event(struct request *req, struct kvof_result *result)
{
	result->batch = req->id;
	req->events->event(req->owner, result);
}

void request_dirty(struct request *req)
{
	req->dirty = true;
	restore_soon(req->restore);
}

void request_wake_at(struct request *req, uint64_t at_ns)
{
	loop_timer_set(req->restore->opts.loop, &req->wake, at_ns);
}

static void request_woke(struct loop_timer *timer)
{
	struct request *req = container_of(timer, struct request, wake);

	request_dirty(req);
}

void request_lead(struct request *req)
{
	uint32_t most = request_prefix(req) ? req->goal : req->n;

	while (req->lead < most && (req->block[req->lead].state == RB_LOADED ||
				    req->block[req->lead].state == RB_CLAIMED))
		req->lead++;
	if (req->lead > most)
		req->lead = most;
}

/* Of a block that was not begun, behind one that ended the prefix. */
static enum kvof_reason behind_reason(const struct request *req, uint32_t index,
				      enum kvof_reason why)
{
	if (why == KVOF_OK || why == KVOF_LATE)
		return why;
	return index < req->scan_at && req->tier_of[index] == KVOF_TIER_NONE ? KVOF_ABSENT :
	       KVOF_CANCELED;
}

void request_shrink(struct request *req, uint32_t goal, enum kvof_reason why)
{
	must(request_prefix(req));
	if (goal >= req->goal)
		return;
	if (why != KVOF_OK)
		req->ended_by = why;
	for (uint32_t i = goal; i < req->goal; i++) {
		struct rblock *b = &req->block[i];

		must(req->layer_hist[b->layers] > 0);
		req->layer_hist[b->layers]--;
		if (b->state == RB_WANTED) {
			req->wanted--;
			if (i < req->scan_at)
				req->want_bytes[req->tier_of[i]] -= b->bytes;
			b->reason = (uint8_t)behind_reason(req, i, why);
		}
	}
	/* before cancel: what it ends is behind the goal */
	req->goal = goal;
	for (uint32_t i = 0; i < req->slot_count; i++) {
		struct rslot *s = &req->slot[i];

		if (s->tier != 0 && s->block >= goal &&
		    req->block[s->block].state == RB_LOADING)
			load_give_up(s);
	}
	request_lead(req);
	request_dirty(req);
}

/* --- over ------------------------------------------------------------------------------------- */

/* A load of it ended without it, and the engine computes it now. */
static bool block_missed(const struct rblock *b)
{
	return b->state == RB_CLAIMED && b->reason != KVOF_OK && b->reason != KVOF_CANCELED;
}

/* Why blocks did not come, for the trace. */
static void reasons_count(struct request *req)
{
	for (uint32_t i = 0; i < req->n; i++) {
		const struct rblock *b = &req->block[i];

		if (b->state == RB_FAILED || b->state == RB_BUSY || block_missed(b) ||
		    (b->state == RB_WANTED && b->reason != KVOF_OK))
			req->trace.reasons[b->reason]++;
	}
}

/* ENDS: the first block that has not come the way that the blocks before it have. */
static uint32_t blocks_met(const struct request *req)
{
	bool claimed = req->block[0].state == RB_CLAIMED;
	uint32_t i = 0;

	while (i < req->n && req->block[i].state == (claimed ? RB_CLAIMED : RB_LOADED))
		i++;
	return i;
}

static enum kvof_reason over_reason(const struct request *req)
{
	uint32_t most = request_prefix(req) ? req->goal : req->n;

	if (req->ended_by != KVOF_OK)
		return req->ended_by;
	if (req->lead < most && req->block[req->lead].state != RB_WANTED)
		return req->block[req->lead].reason;
	return KVOF_OK;
}

/* Some of what a long request used, the tail first: the loop has others to serve. */
static void used_step(struct request *req)
{
	const struct restore *r = req->restore;
	struct prefix_ids ids = {&req->block[0].id, sizeof(struct rblock), req->used_left};

	req->used_left -= (uint32_t)bytes_min(req->used_left, RESTORE_USED_STEP);
	if (ids.count > 0)
		r->opts.ops->used(r->opts.arg, ids, req->used_left);
	request_dirty(req);
}

static void request_over(struct request *req)
{
	struct kvof_result r = {
		.flags = KVOF_RESULT_REQUEST,
		.busy = req->busy + req->copying > 0,
		.wait_ns = request_now(req) - req->begin_ns,
		.verify_ns = req->trace.verify_ns,
	};

	must(req->open == 0 && !req->told_over);
	load_layers_tell(req);
	request_go(req, REQ_OVER);
	req->told_over = true;
	req->told_busy = r.busy != 0;
	loop_timer_cancel(req->restore->opts.loop, &req->timer);
	loop_timer_cancel(req->restore->opts.loop, &req->wake);
	request_lead(req);
	reasons_count(req);
	r.reason = over_reason(req);
	r.value_bytes = req->lead;
	req->trace.reason = r.reason;
	req->trace.end_ns = request_now(req);
	if (req->starved_ns != 0)
		req->trace.staging_ns += request_now(req) - req->starved_ns;
	request_event(req, &r);
	req->used_left = req->lead;
	if (request_prefix(req))
		req->goal = req->lead;     /* what is behind it is the engine's */
	used_step(req);
}

/* Nothing is under way, and nothing will be. */
static bool loads_over(const struct request *req)
{
	if (req->open > 0)
		return false;
	if (req->state == REQ_ENDING)
		return true;
	return req->state == REQ_LOADING && req->wanted == 0 && req->copying == 0;
}

static void over_check(struct request *req)
{
	if (!req->told_over && loads_over(req))
		request_over(req);
	if (req->told_busy && req->busy + req->copying == 0) {
		struct kvof_result r = {.flags = KVOF_RESULT_REQUEST | KVOF_RESULT_RELEASED};

		req->told_busy = false;
		request_event(req, &r);
		req->dirty = true;
	}
}

static void request_end(struct request *req, enum kvof_reason why)
{
	bool left = req->wanted + req->open > 0;   /* else only copies for DRAM are being made */

	if (req->state == REQ_ENDING || req->state == REQ_OVER)
		return;
	if (req->ended_by == KVOF_OK && left)
		req->ended_by = why;
	for (uint32_t i = 0; i < req->n; i++)
		if (req->block[i].state == RB_WANTED)
			req->block[i].reason = (uint8_t)why;
	request_go(req, REQ_ENDING);
	if (why == KVOF_LATE) {
		req->trace.late = left;
		req->restore->stat.restores_late += left;
		load_late(req);
	} else {
		for (uint32_t i = 0; i < req->slot_count; i++)
			if (req->slot[i].tier != 0 &&
			    req->block[req->slot[i].block].state == RB_LOADING)
				load_give_up(&req->slot[i]);
	}
	request_dirty(req);
}

static void request_late(struct loop_timer *timer)
{
	request_end(container_of(timer, struct request, timer), KVOF_LATE);
}

/* --- the turn --------------------------------------------------------------------------------- */

/* The restore may be gone afterwards. */
static void stop_check(struct restore *r)
{
	if (!r->stopping || r->soon_pending)
		return;
	LIST_FOR_EACH(link, &r->requests)
		if (!request_free_now(container_of(link, struct request, link)))
			return;
	r->idle(r->idle_arg);
}

bool restore_wants(const struct restore *r)
{
	LIST_FOR_EACH(link, &r->requests) {
		const struct request *req = container_of(link, struct request, link);

		if (req->state != REQ_OVER && (req->open > 0 || req->wanted > 0))
			return true;
	}
	return false;
}

static void restore_run(struct loop_op *soon, int res)
{
	struct restore *r = container_of(soon, struct restore, soon);
	uint64_t ahead = 0, left[PLACE_TIERS] = {0};

	r->soon_pending = false;
	LIST_FOR_EACH(link, &r->requests) {
		struct request *req = container_of(link, struct request, link);

		if (req->state == REQ_OVER && req->used_left > 0)
			used_step(req);
		if (req->state == REQ_OVER)
			continue;
		req->ahead_bytes = ahead;
		memcpy(req->ahead_left, left, sizeof(left));
		plan_speeds(r);
		plan_update(req);
		while (load_one(req))
			;
		ahead += req->staged_bytes;
		for (unsigned i = 0; i < PLACE_TIERS; i++)
			left[i] += req->want_bytes[i] + req->open_bytes[i];
	}
	LIST_FOR_EACH(link, &r->requests)
		over_check(container_of(link, struct request, link));
	LIST_FOR_EACH_SAFE(link, &r->requests) {
		struct request *req = container_of(link, struct request, link);

		if (!req->dirty)
			continue;
		req->dirty = false;
		req->events->changed(req->owner);  /* may forget it */
	}
	if (r->opts.spare != NULL && !r->stopping && !restore_wants(r))
		r->opts.spare(r->opts.spare_arg);
	stop_check(r);
}

void restore_soon(struct restore *r)
{
	if (r->soon_pending)
		return;
	r->soon_pending = true;
	r->soon = (struct loop_op){.done = restore_run};
	loop_soon(r->opts.loop, &r->soon, 0);
}

/* --- requests --------------------------------------------------------------------------------- */

static bool sooner(const struct request *a, const struct request *b)
{
	if (a->opts.priority != b->opts.priority)
		return a->opts.priority > b->opts.priority;
	return a->deadline_ns < b->deadline_ns;
}

static void request_insert(struct restore *r, struct request *req)
{
	LIST_FOR_EACH(link, &r->requests) {
		if (!sooner(req, container_of(link, struct request, link)))
			continue;
		list_insert_before(link, &req->link);
		return;
	}
	list_push_back(&r->requests, &req->link);
}

void restore_begin(struct restore *r, struct request *req, uint64_t id,
		   const struct request_events *events, void *owner)
{
	OBJ_CHECK(r, RESTORE_MAGIC);
	OBJ_CHECK(req, REQUEST_MAGIC);
	loop_must_own(r->opts.loop);
	req->restore = r;
	req->id = id;
	req->events = events;
	req->owner = owner;
	req->begin_ns = loop_now_ns(r->opts.loop);
	req->deadline_ns = req->begin_ns + tier_deadline_ns(req->opts.deadline_ns != 0 ?
		req->opts.deadline_ns : r->opts.deadline_ns);
	req->trace.begin_ns = req->begin_ns;
	req->open_at = request_prefix(req) ? 0 : req->n;
	req->quick_at = req->n;
	speed_engine_tell(&req->engine, req->opts.prefill_tokens_per_s, req->opts.prefill_slope);
	if (speed_engine_measured(&r->engine) &&
	    (speed_engine_now(&req->engine).token_ps == 0 ||
	     (req->engine.told.token_ps == r->engine.told.token_ps &&
	      req->engine.told.slope_ps == r->engine.told.slope_ps)))
		req->engine = r->engine;   /* measured, under the same words */
	loop_timer_init(&req->timer, request_late);
	loop_timer_init(&req->wake, request_woke);
#ifndef KVOF_PLANT_DEADLINE_IGNORED
	loop_timer_set(r->opts.loop, &req->timer, req->deadline_ns);
#endif
	request_go(req, REQ_SCANNING);
	request_insert(r, req);
	r->stat.restores++;
	if (r->stopping)
		request_end(req, KVOF_CANCELED);
	restore_soon(r);
}

struct request *restore_find(struct restore *r, uint64_t id)
{
	LIST_FOR_EACH(link, &r->requests) {
		struct request *req = container_of(link, struct request, link);

		if (req->id == id)
			return req;
	}
	return NULL;
}

void *request_owner(const struct request *req)
{
	return req->owner;
}

void restore_look(struct request *req, struct kvof_restore_step *out)
{
	OBJ_CHECK(req, REQUEST_MAGIC);
	loop_must_own(req->restore->opts.loop);
	plan_decide(req, out);
}

static void block_claim(struct request *req, uint32_t index)
{
	struct rblock *b = &req->block[index];

	if (b->state == RB_WANTED)
		load_unwant(req, index);
	if (b->state == RB_LOADED) {
		req->loaded--;
		req->trace.wasted_bytes += b->bytes;
	}
	block_go(b, RB_CLAIMED);
	req->claimed++;
}

void restore_next(struct request *req, struct kvof_restore_step *out)
{
	uint64_t now = request_now(req);
	struct place_engine e;

	restore_look(req, out);
	if (out->act != KVOF_STEP_COMPUTE)
		return;
	for (uint32_t i = out->first; i < out->first + out->count; i++)
		block_claim(req, i);
	e = speed_engine_now(&req->engine);
	req->engine_free_ns = now + place_engine_ns(&e, (struct place_span){
		(uint64_t)out->first * req->restore->opts.block_tokens,
		(uint64_t)out->count * req->restore->opts.block_tokens});
	req->trace.computed += out->count;
	if (request_prefix(req))
		req->behind = out->first;
	request_lead(req);
	out->usable = req->lead;
	restore_soon(req->restore);
}

int restore_computed(struct request *req, uint32_t first, uint32_t count, uint64_t ns)
{
	uint64_t tokens = req->restore->opts.block_tokens;

	if (count == 0 || first >= req->n || count > req->n - first)
		return -EINVAL;
	speed_engine_report(&req->engine, (struct place_span){first * tokens, count * tokens}, ns);
	req->restore->engine = req->engine;
	req->engine_free_ns = 0;
	restore_soon(req->restore);
	return 0;
}

void restore_cancel(struct restore *r, uint64_t id)
{
	loop_must_own(r->opts.loop);
	LIST_FOR_EACH(link, &r->requests) {
		struct request *req = container_of(link, struct request, link);

		if (id == 0 || req->id == id)
			request_end(req, KVOF_CANCELED);
	}
}

bool request_free_now(const struct request *req)
{
	return req->state == REQ_OVER && req->busy + req->copying == 0 && !req->told_busy &&
	       req->used_left == 0;
}

void request_trace(struct request *req, struct kvof_restore_trace *out)
{
	request_lead(req);
	*out = req->trace;
	out->struct_bytes = sizeof(*out);
	out->blocks = req->n;
	out->loaded = req->loaded;
	out->usable = req->lead;
	if (!request_prefix(req))
		out->split = blocks_met(req);
}

void restore_forget(struct request *req)
{
	struct restore *r = req->restore;

	must(request_free_now(req));
	loop_timer_cancel(r->opts.loop, &req->timer);
	loop_timer_cancel(r->opts.loop, &req->wake);
	list_remove(&req->link);
	restore_soon(r);                   /* a close may wait for it */
}

/* --- open and close --------------------------------------------------------------------------- */

int restore_open(const struct restore_opts *opts, struct restore **out)
{
	struct restore *r = calloc(1, sizeof(*r));

	if (r == NULL)
		return -ENOMEM;
	OBJ_INIT(r, RESTORE_MAGIC);
	r->opts = *opts;
	if (r->opts.staging_bytes == 0)
		r->opts.staging_bytes = RESTORE_STAGING_BYTES;
	list_init(&r->requests);
	*out = r;
	return 0;
}

void restore_stop(struct restore *r, bool (*idle)(void *arg), void *arg)
{
	OBJ_CHECK(r, RESTORE_MAGIC);
	loop_must_own(r->opts.loop);
	r->stopping = true;
	r->idle = idle;
	r->idle_arg = arg;
	restore_cancel(r, 0);
	restore_soon(r);
}

void restore_close(struct restore **rp)
{
	struct restore *r;

	OBJ_TAKE(r, rp, RESTORE_MAGIC);
	must(!r->soon_pending);
	LIST_FOR_EACH_SAFE(link, &r->requests) {
		struct request *req = container_of(link, struct request, link);

		loop_timer_cancel(r->opts.loop, &req->timer);
		loop_timer_cancel(r->opts.loop, &req->wake);
		list_remove(&req->link);
		request_free(&req);
	}
	must(r->staged_bytes == 0);
	r->magic = 0;
	free(r);
}

void restore_stat(const struct restore *r, struct restore_stat *out)
{
	*out = r->stat;
	out->staging_bytes = r->staged_bytes;
}
