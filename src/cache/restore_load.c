/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks under way: which tier is asked, how much of a block may be in flight, what has landed.
 *
 * A load begins with one part allowed (all of them from DRAM, which costs no staging). The plan's
 * order does the rest: PREFIX raises the block with the fewest parts allowed, so that all blocks
 * get their first part before any gets its second; ENDS finishes a block before it begins the one
 * before it. `raise` holds loads of which more may be allowed, in that order.
 *
 * Staging counts bytes allowed and not landed. It is bounded over all requests; and one request
 * takes at most three quarters of what those before it in order leave, so that one that is stuck
 * leaves room to those behind it.
 *
 * A layer is there when all parts that overlap it have landed: parts are counted from the first
 * one without a gap, with a mask for those that came before their turn.
 */
#include <string.h>

#include "cache/restore_inner.h"

static void op_done(struct tier_op *op);
static void op_released(struct tier_op *op);
static void op_landed(struct tier_op *op, uint32_t part, uint32_t part_count);

static struct tier *tier_at(const struct restore *r, unsigned number)
{
	return r->opts.ops->tier(r->opts.arg, number);
}

/* --- staging ---------------------------------------------------------------------------------- */

static void stage(struct rslot *s, uint64_t bytes)
{
	struct request *req = s->req;

	s->staged_bytes += bytes;
	req->staged_bytes += bytes;
	req->restore->staged_bytes += bytes;
	req->restore->tier_staged[s->tier] += bytes;
}

static void unstage(struct rslot *s, uint64_t bytes)
{
	struct request *req = s->req;

	bytes = bytes_min(bytes, s->staged_bytes);
	s->staged_bytes -= bytes;
	must(req->staged_bytes >= bytes && req->restore->staged_bytes >= bytes);
	req->staged_bytes -= bytes;
	req->restore->staged_bytes -= bytes;
	req->restore->tier_staged[s->tier] -= bytes;
}

static bool budget_has(struct request *req, uint64_t bytes)
{
	struct restore *r = req->restore;
	uint64_t all = r->opts.staging_bytes, own = req->staged_bytes + bytes;
	uint64_t share = all > req->ahead_bytes ? (all - req->ahead_bytes) / 4 * 3 : 0;
	bool fits;

	if (r->staged_bytes == 0)          /* a part larger than all staging goes alone */
		fits = true;
	else if (r->staged_bytes + bytes > all)
		fits = false;
	else
		fits = req->staged_bytes == 0 || (own <= share && own <= plan_flight_bytes(req));
	if (!fits && req->staged_bytes == 0 && req->starved_ns == 0) {
		req->starved_ns = request_now(req);
		r->stat.staging_waits += !req->starved_once;
		req->starved_once = true;
	}
	req->budget_full = !fits;
	return fits;
}

static void fed(struct request *req)
{
	if (req->starved_ns == 0)
		return;
	req->trace.staging_ns += request_now(req) - req->starved_ns;
	req->starved_ns = 0;
}

/* --- a load ----------------------------------------------------------------------------------- */

/* Of part `part` as allow counts. */
static uint64_t part_bytes(const struct rslot *s, uint32_t part)
{
	uint64_t from = (uint64_t)part * s->cut_bytes;

	return from < s->op.bytes ? bytes_min(s->cut_bytes, s->op.bytes - from) : 0;
}

static void op_fill(struct rslot *s, struct tier *t)
{
	const struct rblock *b = &s->req->block[s->block];
	struct tier_part *part = s->op.part;
	unsigned part_slots = s->op.part_slots;

	s->op = (struct tier_op){
		.kind = KVOF_LOAD,
		.id = b->id,
		.iov = b->iov,
		.iov_count = b->iov_count,
		.bytes = b->bytes,
		.part = part,
		.part_slots = part_slots,
		.begin_ns = request_now(s->req),
		.landed = op_landed,
		.done = op_done,
		.released = op_released,
	};
#ifndef KVOF_PLANT_DEADLINE_IGNORED
	s->op.deadline_ns = s->req->deadline_ns;
#endif
	s->cut_bytes = tier_cut(t, b->bytes);
	s->part_count = frame_part_count(b->bytes, s->cut_bytes);
	s->lead = 0;
	s->mask = 0;
	s->blurred = false;
	s->landed_bytes = 0;
}

static bool whole_allowed(const struct rslot *s)
{
	return s->op.allow == 0 || s->op.allow >= s->part_count;
}

static void tier_leave(struct rslot *s)
{
	if (list_linked(&s->link))         /* nothing more of it is allowed */
		list_remove(&s->link);
	unstage(s, s->staged_bytes);
	s->req->open_bytes[s->tier] -= s->open_bytes;
	s->open_bytes = 0;
}

static unsigned number_next(const struct rslot *s, unsigned number)
{
	const struct restore *r = s->req->restore;

	if (!s->flash_last)
		return r->opts.ops->tier_next(r->opts.arg, number);
	if (number == KVOF_TIER_NONE && tier_at(r, KVOF_TIER_DRAM) != NULL)
		return KVOF_TIER_DRAM;
	return number == KVOF_TIER_REMOTE ? KVOF_TIER_FLASH :
	       number == KVOF_TIER_FLASH ? KVOF_TIER_NONE : KVOF_TIER_REMOTE;
}

/* Asks the next tier. False: there is none. */
static bool tier_next(struct rslot *s)
{
	struct request *req = s->req;
	struct restore *r = req->restore;
	unsigned number = s->tier;
	struct tier *t;

	tier_leave(s);
	do {
		number = number_next(s, number);
		t = number != 0 ? tier_at(r, number) : NULL;
	} while (t != NULL && number == KVOF_TIER_DRAM &&
		 !t->ops->has(t, &req->block[s->block].id));
	if (t == NULL)
		return false;
	s->tier = number;
	op_fill(s, t);
	s->open_bytes = s->op.bytes;
	req->open_bytes[number] += s->open_bytes;
	s->begin_ns = request_now(req);
	s->expect_ns = plan_expect_ns(req, number, s->op.bytes, &s->queue_ns);
	if (number != KVOF_TIER_DRAM) {
		s->op.allow = 1;
		stage(s, part_bytes(s, 0));
		if (!whole_allowed(s))
			list_push_back(&req->raise, &s->link);
	}
	t->ops->start(t, &s->op);
	return true;
}

/* A try may cost the block, and of a prefix all behind it: the last one. */
static bool flash_last(const struct request *req, uint32_t index)
{
	const struct restore *r = req->restore;
	uint64_t now = request_now(req);

	return r->opts.ops->flash_last != NULL && now < req->deadline_ns &&
	       r->opts.ops->flash_last(r->opts.arg, &req->block[index].id, req->deadline_ns - now,
				       index == req->n - 1);
}

void load_unasked(struct request *req, uint32_t block)
{
	struct kvof_result r = {
		.index = block,
		.reason = KVOF_ABSENT,
		.wait_ns = request_now(req) - req->begin_ns,
	};

	req->restore->opts.ops->failed(req->restore->opts.arg, KVOF_ABSENT);
	if ((req->opts.flags & KVOF_RESTORE_EACH) != 0)
		request_event(req, &r);
}

/* False: no room for one more block. */
static bool block_open(struct request *req, uint32_t index)
{
	struct rblock *b = &req->block[index];
	unsigned tier = req->tier_of[index];
	struct list_link *link;
	struct rslot *s;

	if (list_empty(&req->idle))
		return false;
	if (tier > KVOF_TIER_DRAM &&
	    !budget_has(req, bytes_min(b->bytes, tier_cut(tier_at(req->restore, tier), b->bytes))))
		return false;
	fed(req);
	link = list_pop_front(&req->idle);
	s = container_of(link, struct rslot, link);
	s->block = index;
	s->tier = 0;
	s->before = KVOF_OK;
	s->given_up = false;
	s->flash_last = flash_last(req, index);
	s->landed_bytes = s->open_bytes = 0;
	load_unwant(req, index);
	block_go(b, RB_LOADING);
	b->slot = (uint32_t)(s - req->slot);
	req->open++;
	/* its time to live may have ended since it was looked up */
	if (tier == KVOF_TIER_NONE || req->restore->opts.ops->expired(req->restore->opts.arg,
	    &b->id) || !tier_next(s)) {    /* no tier could have it */
		s->tier = 0;
		req->open--;
		list_push_back(&req->idle, &s->link);
		b->reason = KVOF_ABSENT;
		block_go(b, RB_FAILED);
		load_unasked(req, index);
		if (request_prefix(req) && index < req->goal)
			request_shrink(req, index, KVOF_ABSENT);
		request_dirty(req);
	}
	return true;
}

/* Parts up to here may be in flight. lead counts parts as they land, allow as we cut: a block that
 * was cut larger elsewhere would else stop before its second part. */
static bool window_full(const struct rslot *s)
{
	uint64_t lead_bytes = (uint64_t)s->lead * s->op.landed_cut_bytes;

	return !s->blurred && s->op.allow >= lead_bytes / s->cut_bytes + RESTORE_WINDOW;
}

/* Allows one more part of a load. False: its window is full. */
static bool slot_raise(struct rslot *s)
{
	struct request *req = s->req;
	struct tier *t = tier_at(req->restore, s->tier);

	must(!whole_allowed(s));
	if (window_full(s))
		return false;
	stage(s, part_bytes(s, s->op.allow));
	fed(req);
	s->op.allow++;
	list_remove(&s->link);
	if (!whole_allowed(s)) {
		if (request_prefix(req))
			list_push_back(&req->raise, &s->link);
		else
			list_push_front(&req->raise, &s->link);
	}
	t->ops->more(t, &s->op);
	return true;
}

static bool raise_one(struct request *req)
{
	LIST_FOR_EACH(link, &req->raise) {
		struct rslot *s = container_of(link, struct rslot, link);

		if (window_full(s))
			continue;
		return budget_has(req, part_bytes(s, s->op.allow)) && slot_raise(s);
	}
	return false;
}

/* ENDS: what DRAM has costs nothing, all of it at once. */
static bool quick_one(struct request *req)
{
	while (req->quick_at > 0) {
		uint32_t index = req->quick_at - 1;

		if (req->block[index].state == RB_WANTED &&
		    req->tier_of[index] == KVOF_TIER_DRAM)
			return block_open(req, index);
		req->quick_at--;
	}
	return false;
}

/* The next block that nobody writes into, in the order of the mode; false: none. */
static bool next_to_open(struct request *req, uint32_t *index)
{
	if (request_prefix(req)) {
		while (req->open_at < req->goal && req->block[req->open_at].state != RB_WANTED)
			req->open_at++;
		*index = req->open_at;
		return req->open_at < req->goal && plan_probes(req, req->open_at);
	}
	while (req->open_at > 0 && req->block[req->open_at - 1].state != RB_WANTED)
		req->open_at--;
	*index = req->open_at - 1;
	return req->open_at > 0 && plan_begins(req, *index);
}

bool load_one(struct request *req)
{
	uint32_t index;

	if (!request_active(req))
		return false;
	if (!request_prefix(req)) {
		if (quick_one(req))
			return true;
		if (!list_empty(&req->raise))
			return raise_one(req);
	}
	if (next_to_open(req, &index) && block_open(req, index))
		return true;
	return raise_one(req);
}

void load_unwant(struct request *req, uint32_t block)
{
	const struct rblock *b = &req->block[block];

	must(b->state == RB_WANTED);
	if (block >= req->goal)            /* request_shrink() has done it */
		return;
	must(req->wanted > 0);
	req->wanted--;
	if (block < req->scan_at)
		req->want_bytes[req->tier_of[block]] -= b->bytes;
}

void load_give_up(struct rslot *s)
{
	struct tier *t = tier_at(s->req->restore, s->tier);

	if (s->given_up)
		return;
	s->given_up = true;
	s->req->open_bytes[s->tier] -= s->open_bytes;
	s->open_bytes = 0;
	if (list_linked(&s->link))
		list_remove(&s->link);
	t->ops->cancel(t, &s->op);
}

void load_late(struct request *req)
{
	for (uint32_t i = 0; i < req->slot_count; i++) {
		struct rslot *s = &req->slot[i];
		struct tier *t;

		if (s->tier == 0 || req->block[s->block].state != RB_LOADING ||
		    req->block[s->block].slot != i)
			continue;
		t = tier_at(req->restore, s->tier);
		if (t->ops->late != NULL)
			t->ops->late(t, &s->op);
		else if (s->tier == KVOF_TIER_DRAM)
			load_give_up(s);
	}
}

/* --- layers ----------------------------------------------------------------------------------- */

/* Leading layers of a block of which the first lead_bytes are there. */
static uint32_t layers_of(const struct request *req, const struct rslot *s, uint64_t lead_bytes)
{
	uint32_t layers = req->layer_count, have = req->block[s->block].layers;

	if (lead_bytes >= s->op.bytes)
		return layers;
	if (req->layer_end != NULL && req->layer_end[layers - 1] != s->op.bytes)
		return 0;                  /* not the layout that was told: layers come at done */
	while (have < layers) {
		uint64_t end = req->layer_end != NULL ? req->layer_end[have] :
			       s->op.bytes / layers * (have + 1) +
			       s->op.bytes % layers * (have + 1) / layers;

#ifdef KVOF_PLANT_LAYER_TOLD_EARLY
		end -= bytes_min(end, s->op.bytes / layers);
#endif
		if (end > lead_bytes)
			break;
		have++;
	}
	return have;
}

static void layers_set(struct request *req, uint32_t index, uint32_t layers)
{
	struct rblock *b = &req->block[index];

	if (layers <= b->layers)
		return;
	if (index < req->goal) {
		must(req->layer_hist[b->layers] > 0);
		req->layer_hist[b->layers]--;
		req->layer_hist[layers]++;
	}
	b->layers = layers;
}

void load_layers_tell(struct request *req)
{
	while (request_prefix(req) && req->state == REQ_LOADING && req->goal > 0 &&
	       req->layer_told < req->layer_count && req->layer_hist[req->layer_told] == 0) {
		struct kvof_result r = {
			.index = req->layer_told,
			.value_bytes = req->goal,
			.flags = KVOF_RESULT_LAYER,
			.wait_ns = request_now(req) - req->begin_ns,
		};

		if (req->layer_told++ == 0)
			req->trace.first_layer_ns = request_now(req);
		request_event(req, &r);
	}
}

static void op_landed(struct tier_op *op, uint32_t part, uint32_t part_count)
{
	struct rslot *s = container_of(op, struct rslot, op);
	struct request *req = s->req;
	uint64_t from = (uint64_t)part * op->landed_cut_bytes;
	uint64_t bytes = from < op->value_bytes ?
			 bytes_min(op->landed_cut_bytes, op->value_bytes - from) : 0;

	bytes = bytes_min(bytes, s->open_bytes);
	s->landed_bytes += bytes;
	req->landed_bytes[s->tier] += bytes;
	s->open_bytes -= bytes;
	req->open_bytes[s->tier] -= bytes;
	unstage(s, bytes);
	if (part > s->lead && part - s->lead - 1 < 64)
		s->mask |= UINT64_C(1) << (part - s->lead - 1);
	else if (part != s->lead)
		s->blurred = true;
	while (!s->blurred && part == s->lead) {
		s->lead++;
		part += s->mask & 1;
		s->mask >>= 1;
	}
	if (!s->blurred && !s->given_up) {
		uint64_t lead = s->lead >= part_count ? op->value_bytes :
				(uint64_t)s->lead * op->landed_cut_bytes;

		/* the whole is there when it is done: its sum may still be wrong */
		if (lead < op->bytes)
			layers_set(req, s->block, layers_of(req, s, lead));
	}
	restore_soon(req->restore);
}

/* --- the end of a load ------------------------------------------------------------------------ */

static void slot_free(struct rslot *s)
{
	if (list_linked(&s->link))
		list_remove(&s->link);
	s->tier = 0;
	list_push_back(&s->req->idle, &s->link);
	restore_soon(s->req->restore);
}

static void trace_load(struct rslot *s)
{
	struct kvof_restore_trace *t = &s->req->trace;
	uint64_t took = request_now(s->req) - s->begin_ns;
	uint64_t queue = bytes_min(s->queue_ns, took);

#ifndef KVOF_PLANT_TRACE_OF_WAITS_LOST
	t->queue_ns += queue;
#endif
	t->device_ns += took - queue;
	t->verify_ns += s->op.verify_ns;
}

static void each_tell(struct request *req, const struct rslot *s, enum kvof_reason reason)
{
	struct kvof_result r = {
		.index = s->block,
		.reason = reason,
		.value_bytes = s->op.value_bytes,
		.busy = req->block[s->block].state == RB_BUSY,
		.wait_ns = request_now(req) - req->begin_ns,
		.verify_ns = s->op.verify_ns,
		.tier = reason == KVOF_OK ? s->tier : 0,
	};

	if ((req->opts.flags & KVOF_RESTORE_EACH) != 0)
		request_event(req, &r);
}

static void load_good(struct rslot *s)
{
	struct request *req = s->req;
	struct rblock *b = &req->block[s->block];

	s->copying = req->restore->opts.ops->loaded(req->restore->opts.arg, &s->op, s->tier);
	req->copying += s->copying;
	req->tier_of[s->block] = (uint8_t)s->tier;
	b->reason = KVOF_OK;
	block_go(b, RB_LOADED);
	req->loaded++;
	req->trace.bytes[s->tier] += s->op.value_bytes;
	req->trace.block_count[s->tier]++;
	layers_set(req, s->block, req->layer_count);
	request_lead(req);
	each_tell(req, s, KVOF_OK);
	if (!s->copying)
		slot_free(s);
}

/* A copy for DRAM has been made; until now the buffer had to stay as it is. */
static void load_copied(struct rslot *s)
{
	s->copying = false;
	must(s->req->copying > 0);
	s->req->copying--;
	slot_free(s);
	request_dirty(s->req);
}

static void load_bad(struct rslot *s, enum kvof_reason reason)
{
	struct request *req = s->req;
	struct rblock *b = &req->block[s->block];
	struct kvof_restore_trace *t = &req->trace;

	req->restore->opts.ops->failed(req->restore->opts.arg, reason);
	b->reason = (uint8_t)reason;
	t->wasted_bytes += s->landed_bytes;
	if (!s->given_up && t->miss_count < KVOF_RESTORE_MISSES) {
		t->miss[t->miss_count].index = s->block;
		t->miss[t->miss_count].reason = reason;
		t->miss[t->miss_count++].tier = s->tier;
	}
#ifdef KVOF_PLANT_CLAIM_WHILE_LOADING
	block_go(b, RB_FAILED);
#else
	block_go(b, s->op.busy ? RB_BUSY : RB_FAILED);
#endif
	if (request_prefix(req) && s->block < req->goal)
		request_shrink(req, s->block, reason);
	each_tell(req, s, reason);
	if (s->op.busy)
		req->busy++;               /* the slot stays until it is released */
	else
		slot_free(s);
}

/* Another tier may have it, and this buffer is free for it. */
static bool goes_on(const struct rslot *s, enum kvof_reason reason)
{
	if (s->op.busy || s->given_up || !request_active(s->req))
		return false;
	return reason != KVOF_LATE && reason != KVOF_CANCELED && reason != KVOF_SHORT;
}

static void op_done(struct tier_op *op)
{
	struct rslot *s = container_of(op, struct rslot, op);
	struct request *req = s->req;
	struct restore *r = req->restore;
	enum kvof_reason reason = op->reason;

	loop_must_own(r->opts.loop);
	if (s->copying) {
		load_copied(s);
		return;
	}
	must(req->block[s->block].state == RB_LOADING);
	/* A part of an earlier try may still come into the buffer: its bytes are not final. */
	if (reason == KVOF_OK && op->busy)
		reason = KVOF_LATE;
	trace_load(s);
	if (reason != KVOF_OK) {
		r->opts.ops->missed(r->opts.arg, op, s->tier);
		if (reason != KVOF_ABSENT && s->before == KVOF_OK)
			s->before = reason;
		if (goes_on(s, reason) && tier_next(s))
			return;
		if (reason == KVOF_ABSENT && s->before != KVOF_OK)
			reason = s->before;
	}
	tier_leave(s);
	must(req->open > 0);
	req->open--;
	if (reason == KVOF_OK)
		load_good(s);
	else
		load_bad(s, reason);
	request_dirty(req);
}

static void op_released(struct tier_op *op)
{
	struct rslot *s = container_of(op, struct rslot, op);
	struct request *req = s->req;
	struct kvof_result r = {.index = s->block, .flags = KVOF_RESULT_RELEASED};

	must(req->busy > 0);
#ifndef KVOF_PLANT_CLAIM_WHILE_LOADING
	block_go(&req->block[s->block], RB_FAILED);
#endif
	req->busy--;
	if ((req->opts.flags & KVOF_RESTORE_EACH) != 0)
		request_event(req, &r);
	slot_free(s);
	request_dirty(req);
}
