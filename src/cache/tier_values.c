/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks as values of devices: the tiers "remote" (arrays) and "flash" (drives of this machine).
 *
 * An operation goes through stages; each stage is a number of values ("items"), at most
 * `part_slots` of them in flight, and ends when all have been answered:
 *
 *   load    FIRST  (0 of 1) into the buffer        guess: the block is one part
 *           PARTS  head and all parts              guess: cut as we cut, length of the buffer
 *           a wrong guess shows in the head or in a length; one more round with the truth follows
 *   save    FIRST  the value (0 of 1), if absent   one part
 *           FIRST  is there a head?  CHECK its parts: all there, the save is over
 *           PARTS  from the last to the first  HEAD, if absent: now visible
 *   exists  FIRST  (0 of 1): Exist if its length is known, else its first 64 bytes; PARTS Exist
 *   delete  FIRST  64 bytes of (0 of 1)  HEAD: delete it, now invisible  PARTS: delete
 *
 * Payload goes between the device and the caller's memory; the footer has memory of its own. Where
 * the value is shorter than the room, its footer lies in the caller's buffer, and is read there.
 * What a device says is distrusted alike, be it an array or a drive of this machine.
 *
 * Each device has a lane: what flies there, what waits for room there, how fast it is. Nothing of
 * one lane waits for another. When a device is lost, what is started on it ends at once; loads and
 * questions under way get VALUES_GRACE_NS for its return, then they are canceled and end as
 * KVOF_UNREACHABLE; what changes something waits until its deadline.
 *
 * A load that streams (landed) tells of each part when it is good and the head has said that it is
 * a part of this block; a part that is sooner than the head is held, with its slot. A load that may
 * not start all of its parts yet (allow) is parked when nothing of it flies, until more() or its
 * end.
 *
 * Invariants: flying counts parts between submit() and done; busy those whose buffers the device
 * still owns; an operation is done when nothing flies, and released when nothing is busy.
 *
 * Owned by one loop.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "cache/dev.h"
#include "cache/dev_rate.h"
#include "cache/known.h"
#include "cache/tier.h"
#include "cache/values.h"

#define VALUES_MAGIC 0x76616c75u
#define VALUES_ROUNDS_MAX 3

_Static_assert(TIER_FLYING_MAX >= TIER_PARTS_MAX, "one operation's parts fit");

struct lane {
	struct values *values;
	struct dev *dev;
	struct dev_rate rate;
	uint32_t value_bytes_max;          /* 0: not told */
	bool unfit;                        /* it takes none of our values */
	bool lost;                         /* away longer than the grace */
	uint32_t flying;                   /* values */
	struct list_link starved;          /* operations that wait for flying to fall */
	struct list_link ops;              /* operations of this lane */
	struct loop_timer grace;
	uint64_t asked, answered, unreachable, present, absent;   /* operations */
	uint64_t delivered_bytes;          /* of loads */
};

struct values {
	struct tier tier;
	struct tier_ops ops;               /* with its name */
	uint32_t magic;
	struct loop *loop;
	void *owner;
	struct known *known;
	uint64_t in_flight;                /* operations */
	unsigned lane_count;
	uint64_t name[VALUES_DEVS_MAX];    /* of the lane's device */
	struct lane lane[VALUES_DEVS_MAX];
};

static const uint8_t stage_next[TIER_STAGE_N] = {  /* bit n set: may go to stage n */
	[TIER_IDLE] = 1 << TIER_FIRST | 1 << TIER_PARTS | 1 << TIER_OVER,
	[TIER_FIRST] = 1 << TIER_CHECK | 1 << TIER_PARTS | 1 << TIER_HEAD | 1 << TIER_OVER,
	[TIER_PARTS] = 1 << TIER_FIRST | 1 << TIER_PARTS | 1 << TIER_HEAD | 1 << TIER_OVER,
	[TIER_CHECK] = 1 << TIER_PARTS | 1 << TIER_OVER,
	[TIER_HEAD] = 1 << TIER_PARTS | 1 << TIER_OVER,
	[TIER_OVER] = 0,
};

static struct values *values_of(const struct tier *t)
{
	struct values *v = t->self;

	OBJ_CHECK(v, VALUES_MAGIC);
	return v;
}

static struct lane *lane_of(const struct tier_op *op)
{
	struct values *v = values_of(op->tier);

	must(op->run.lane < v->lane_count);
	return &v->lane[op->run.lane];
}

static bool lane_live(const struct lane *l)
{
	return !l->unfit && l->dev->ops->live(l->dev);
}

static uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* What an errno of the device stands for; live: it is there. */
static enum kvof_reason dev_reason(int res, bool live)
{
	switch (res) {
	case 0:
		return KVOF_OK;
	case -ENOENT:
		return KVOF_ABSENT;
	case -EEXIST:
		return KVOF_EXISTS;
	case -ENOSPC:
		return KVOF_FULL;
	case -EBADMSG:
		return KVOF_CORRUPT;
	case -ETIMEDOUT:
		return live ? KVOF_LATE : KVOF_UNREACHABLE;
	case -ECONNRESET:
		return KVOF_UNREACHABLE;
	case -ECANCELED:
	case -ESHUTDOWN:
		return KVOF_CANCELED;
	default:
		return KVOF_ERROR;
	}
}

/* Which of two reasons tells more about why there is no block: the later in this list. */
static void worse(struct tier_op *op, enum kvof_reason reason)
{
	static const uint8_t rank[KVOF_REASON_COUNT] = {
		[KVOF_OK] = 0, [KVOF_ABSENT] = 1, [KVOF_EXISTS] = 2, [KVOF_SHORT] = 3,
		[KVOF_FULL] = 4, [KVOF_ERROR] = 5, [KVOF_IDENTITY] = 6, [KVOF_CORRUPT] = 7,
		[KVOF_UNREACHABLE] = 8, [KVOF_LATE] = 9, [KVOF_CANCELED] = 10,
	};

	if (rank[reason] > rank[op->run.worst])
		op->run.worst = reason;
}

/* --- a stage ---------------------------------------------------------------------------------- */

static void stage_go(struct tier_op *op, enum tier_stage to)  /* the only writer of run.stage */
{
	struct tier_run *run = &op->run;

	must(run->flying == 0);
	if (to == TIER_PARTS && run->stage == TIER_PARTS)
		must(op->kind == KVOF_LOAD);
	must(stage_next[run->stage] & 1u << to);
	run->stage = to;
	run->next = 0;
	for (unsigned i = 0; i < op->part_slots; i++)
		op->part[i].held = false;
	run->items = to == TIER_CHECK ? run->check_count :
		     to == TIER_PARTS ? run->part_count + (run->with_head ? 1 : 0) : 1;
	if (to != TIER_HEAD) {
		run->sum = 0;
		run->absent = 0;
		run->odd = false;
	}
}

static void lane_count(const struct tier_op *op, enum kvof_reason reason)
{
	struct lane *l = lane_of(op);

	if (reason == KVOF_UNREACHABLE)
		l->unreachable++;
	else if (reason != KVOF_LATE && reason != KVOF_CANCELED)
		l->answered++;
	if (op->kind == KVOF_LOAD || op->kind == KVOF_EXISTS_OP) {
		l->present += reason == KVOF_OK || reason == KVOF_SHORT;
		l->absent += reason == KVOF_ABSENT;
	}
	if (reason == KVOF_OK && op->kind == KVOF_LOAD)
		l->delivered_bytes += op->value_bytes;
}

static void finish(struct tier_op *op, enum kvof_reason reason)
{
	struct values *v = values_of(op->tier);

	stage_go(op, TIER_OVER);
	must(v->in_flight > 0);
	v->in_flight--;
	if (list_linked(&op->lane)) {
		list_remove(&op->lane);
		lane_count(op, reason);
	}
	op->reason = reason;
	op->busy = op->run.busy > 0;
	op->done(op);
}

static void part_reset(struct tier_part *part)
{
	part->op = (struct host_op){0};
	part->mark.begun = false;
	part->head = false;
	part->index = 0;
}

/* Key of one value, and its identity for the footer. */
static void part_name(struct tier_part *part, uint32_t count, struct kvof_id *identity)
{
	identity_part(&part->owner->id, (struct part_of){part->index, count}, identity);
	part->op.key = identity_key(identity);
}

/* The pieces of the caller's memory that this part fills, then the footer's. */
static void part_span(struct tier_part *part, uint64_t offset, uint32_t bytes)
{
	struct tier_op *op = part->owner;
	unsigned n = frame_slice(op->iov, op->iov_count, (struct frame_span){offset, bytes},
				 part->iov);

	part->iov[n] = (struct iovec){&part->footer, sizeof(part->footer)};
	part->op.iov = part->iov;
	part->op.iov_count = n + 1;
	part->op.bytes = bytes + FRAME_BYTES;
}

static uint32_t part_count_now(const struct tier_part *part)
{
	const struct tier_run *run = &part->owner->run;

	if (run->stage == TIER_CHECK)
		return run->check_count;
	return run->stage == TIER_PARTS && !part->head ? run->part_count : 1;
}

static uint32_t part_payload(const struct tier_part *part)
{
	const struct tier_run *run = &part->owner->run;

	if (part->head || run->stage == TIER_HEAD)
		return 0;
	return frame_part_bytes(run->block_bytes, run->cut_bytes, part->index);
}

static void part_load(struct tier_part *part)
{
	struct tier_op *op = part->owner;
	uint64_t offset = (uint64_t)part->index * op->run.cut_bytes;

	part->op.kind = HOST_RETRIEVE;
	memset(&part->footer, 0, sizeof(part->footer));
	part_span(part, offset, part_payload(part));
}

static void part_save(struct tier_part *part, const struct kvof_id *identity)
{
	struct tier_op *op = part->owner;
	struct tier_run *run = &op->run;
	uint32_t bytes = part_payload(part);
	uint64_t begin = clock_ns();
	struct frame f = {*identity, run->block_bytes, run->sum, run->cut_bytes,
		op->tier->domain_tag};
	struct known_block known;

	part_span(part, (uint64_t)part->index * run->cut_bytes, bytes);
	if (run->stage != TIER_HEAD) {
		f.xxh3 = hash_xxh3_iov(part->iov, part->op.iov_count - 1, bytes);
		run->sum = frame_sum_add(run->sum, part->index, f.xxh3);
	}
	frame_encode(&f, &part->footer);
	known_find(values_of(op->tier)->known, &op->id, &known);
	part->op.kind = HOST_STORE;
	/* Parts that nobody sees yet are simply written: a dead writer may have left others. */
	part->op.if_absent = run->stage != TIER_PARTS && !known.bad && !run->overwrite;
	part->op.repeat_ok = true;
	op->verify_ns += clock_ns() - begin;
}

static void part_ask(struct tier_part *part, bool peek)
{
	part->op.kind = peek ? HOST_RETRIEVE : HOST_EXIST;
	if (peek) {
		memset(&part->footer, 0, sizeof(part->footer));
		part_span(part, 0, 0);
	}
}

/* Fills the host's operation for this part of this stage. */
static void part_prepare(struct tier_part *part)
{
	struct tier_op *op = part->owner;
	struct tier_run *run = &op->run;
	struct kvof_id identity;
	bool first = run->stage == TIER_FIRST;

	part_name(part, part_count_now(part), &identity);
	switch (op->kind) {
	case KVOF_LOAD:
		part_load(part);
		break;
	case KVOF_SAVE:
		if (run->stage == TIER_CHECK || (first && run->part_count > 1))
			part_ask(part, first);
		else
			part_save(part, &identity);
		break;
	case KVOF_EXISTS_OP:
		part_ask(part, first && run->part_count == 0);
		break;
	case KVOF_DELETE:
		if (first) {
			part_ask(part, true);
		} else {
			part->op.kind = HOST_DELETE;
			part->op.repeat_ok = true;
		}
		break;
	}
}

static void part_done(struct host_op *hop, int res);
static void part_released(struct host_op *hop);

static void part_start(struct tier_op *op, struct tier_part *part)
{
	struct lane *l = lane_of(op);
	struct tier_run *run = &op->run;
	uint32_t item = run->next++;

	part_reset(part);
	part->owner = op;
	if (run->stage == TIER_PARTS) {
		part->head = run->with_head && item == 0;
		item -= run->with_head && item > 0;
		part->index = part->head ? 0 : item;
		if (op->kind == KVOF_SAVE)
			part->index = run->part_count - 1 - item;
	} else if (run->stage == TIER_CHECK) {
		part->index = item;
	}
	part_prepare(part);
#ifndef KVOF_PLANT_DEADLINE_IGNORED
	part->op.deadline_ns = op->deadline_ns;
#endif
	part->op.done = part_done;
	part->op.released = part_released;
	part->flying = true;
	run->flying++;
	l->flying++;
	if (part->op.kind == HOST_RETRIEVE)
		dev_rate_begin(&l->rate, &part->mark, part->op.bytes,
			       loop_now_ns(l->values->loop));
	l->dev->ops->submit(l->dev, &part->op);
}

static bool stage_over(struct tier_op *op);

/* How many items of this stage may be started by now. */
static uint32_t items_allowed(const struct tier_op *op)
{
	const struct tier_run *run = &op->run;
	uint64_t parts;

	if (op->kind != KVOF_LOAD || op->allow == 0 || run->stage != TIER_PARTS)
		return run->items;
	/* allow counts parts as we cut; these may be others */
	parts = ((uint64_t)op->allow * run->our_cut_bytes + run->cut_bytes - 1) / run->cut_bytes;
	return (uint32_t)bytes_min(run->items, parts + (run->with_head ? 1 : 0));
}

static bool head_is_ours(const struct tier_run *run)
{
	return run->head_seen && run->head.block_bytes == run->block_bytes &&
	       run->head.cut_bytes == run->cut_bytes;
}

/* What was read says already that the other parts of this round are of no use. */
static bool is_decided(const struct tier_op *op)
{
	const struct tier_run *run = &op->run;

	if (op->kind != KVOF_LOAD || run->stage != TIER_PARTS)
		return false;
	return run->single || (run->head_seen &&
			       (!head_is_ours(run) || run->absent > 0 || run->odd));
}

/* Outside an answer: nothing of it flies, nothing may start, and it is not over. */
static bool is_parked(const struct tier_op *op)
{
	const struct tier_run *run = &op->run;

	return run->stage == TIER_PARTS && run->flying == 0 && run->next < run->items &&
	       run->worst == KVOF_OK && !run->canceled && !run->ending && !is_decided(op);
}

static uint32_t lane_flying(const struct lane *l)
{
#ifdef KVOF_PLANT_LANES_SHARED
	uint32_t flying = 0;

	for (unsigned i = 0; i < l->values->lane_count; i++)
		flying += l->values->lane[i].flying;
	return flying;
#else
	return l->flying;
#endif
}

/* Starts what there is room for. False: it waits on the starved list for more room. */
static bool parts_start(struct lane *l, struct tier_op *op)
{
	struct tier_run *run = &op->run;
	uint32_t items = items_allowed(op);

	for (unsigned i = 0; i < op->part_slots && run->next < items; i++) {
		if (op->part[i].flying || op->part[i].busy || op->part[i].held)
			continue;
		if (run->canceled || run->worst != KVOF_OK || is_decided(op))
			break;
		if (l->lost || l->unfit) {
			worse(op, KVOF_UNREACHABLE);
			break;
		}
		if (lane_flying(l) >= TIER_FLYING_MAX) {
			if (!list_linked(&op->starved))
				list_push_back(&l->starved, &op->starved);
			return false;
		}
		part_start(op, &op->part[i]);
	}
	return true;
}

/* Goes on until something flies, or all is over: then op may be gone. */
static void pump(struct tier_op *op)
{
	struct lane *l = lane_of(op);

	do {
		if (!parts_start(l, op) || is_parked(op))
			return;
	} while (op->run.flying == 0 && stage_over(op));
}

static void feed_starved(struct lane *l)
{
	while (l->flying < TIER_FLYING_MAX && !list_empty(&l->starved)) {
		struct list_link *link = list_pop_front(&l->starved);

		pump(container_of(link, struct tier_op, starved));
	}
}

/* --- an answer -------------------------------------------------------------------------------- */

/* The footer of a value of value_bytes: behind the payload, wherever that ends. */
static void footer_read(struct tier_part *part, uint64_t value_bytes)
{
	struct frame_footer footer;

	frame_gather(part->op.iov, part->op.iov_count,
		     (struct frame_span){value_bytes - FRAME_BYTES, FRAME_BYTES}, &footer);
	part->footer = footer;
}

/* Payload of a value whose footer is good. */
static bool payload_good(struct tier_part *part, const struct frame *f, uint64_t bytes)
{
	struct tier_op *op = part->owner;
	uint64_t begin = clock_ns(), sum;

	sum = hash_xxh3_iov(part->op.iov, part->op.iov_count, bytes);
	op->verify_ns += clock_ns() - begin;
	return sum == f->xxh3;
}

/* --- landing: parts that are good, told one by one ------------------------------------------- */

static void land(struct tier_part *part, uint32_t count, uint32_t cut_bytes, uint64_t block_bytes)
{
	struct tier_op *op = part->owner;

	part->held = false;
	op->landed_cut_bytes = cut_bytes;
	op->value_bytes = block_bytes;
	if (!op->run.canceled && op->run.worst == KVOF_OK)
		op->landed(op, part->index, count);
}

static bool lands(const struct tier_op *op)
{
	return op->landed != NULL && op->kind == KVOF_LOAD;
}

/* The value (0 of 1) is the whole block. */
static void single_good(struct tier_part *part, uint64_t bytes)
{
	if (lands(part->owner) && part->owner->run.stage == TIER_FIRST)
		land(part, 1, bytes > 0 ? (uint32_t)bytes : 1, bytes);
}

/* One of several: it waits for the head. */
static void part_good(struct tier_part *part)
{
	struct tier_run *run = &part->owner->run;

	if (!lands(part->owner))
		return;
	part->held = !run->head_seen;
	if (head_is_ours(run))
		land(part, run->part_count, run->cut_bytes, run->block_bytes);
}

/* Those that waited for it land, if it is the head of what they are parts of. */
static void head_good(struct tier_op *op)
{
	struct tier_run *run = &op->run;

	for (unsigned i = 0; i < op->part_slots; i++) {
		if (op->part[i].held && head_is_ours(run))
			land(&op->part[i], run->part_count, run->cut_bytes, run->block_bytes);
		op->part[i].held = false;
	}
}

static enum frame_verdict value_judge(struct tier_part *part, uint64_t value_bytes)
{
	struct tier_op *op = part->owner;
	struct tier_run *run = &op->run;
	uint64_t payload = value_bytes - FRAME_BYTES;
	uint32_t count = part_count_now(part);
	enum frame_verdict verdict;
	struct kvof_id identity;
	struct frame f;
	bool good;

	footer_read(part, value_bytes);
	part_name(part, count, &identity);
	verdict = frame_check(&part->footer, &identity, &f);
	if (verdict != FRAME_OK)
		return verdict;
	if (count == 1 && frame_is_head(&f, payload)) {
		run->head_seen = true;
		run->head = f;
		head_good(op);
		return FRAME_OK;
	}
	if (!frame_place_fits(&f, (struct frame_place){part->index, count, (uint32_t)payload}))
		return FRAME_BAD_LENGTH;
	good = payload_good(part, &f, payload);
#ifdef KVOF_PLANT_LANDS_UNCHECKED
	if (!good && count > 1)
		part_good(part);
#endif
	if (!good)
		return FRAME_BAD_PAYLOAD;
	if (count == 1) {
		run->single = true;
		run->single_bytes = payload;
		single_good(part, payload);
	} else if (f.block_bytes != run->block_bytes || f.cut_bytes != run->cut_bytes) {
		run->odd = true;           /* cut elsewhere: the head decides */
	} else {
		run->sum = frame_sum_add(run->sum, part->index, f.xxh3);
		part_good(part);
	}
	return FRAME_OK;
}

/* A Retrieve came back: how much, and is it good? */
static void load_answer(struct tier_part *part)
{
	struct tier_op *op = part->owner;
	uint64_t value = part->op.value_bytes;
	enum frame_verdict verdict;

	if (value < FRAME_BYTES) {
		worse(op, KVOF_CORRUPT);
		return;
	}
	if (value > part->op.bytes && part_count_now(part) == 1) {
		op->run.single = true;     /* larger than the room: the block is one part */
		op->run.single_bytes = value - FRAME_BYTES;
		return;
	}
	if (value > part->op.bytes) {
		op->run.odd = true;
		return;
	}
	verdict = part->op.moved_bytes == value ? value_judge(part, value) : FRAME_BAD_LENGTH;
	if (verdict != FRAME_OK)
		worse(op, frame_reason(verdict));
}

/* The first 64 bytes of (0 of 1): a head, an empty block, or the beginning of a payload. */
static void peek_answer(struct tier_part *part)
{
	struct tier_op *op = part->owner;
	struct tier_run *run = &op->run;
	uint64_t value = part->op.value_bytes;

	if (value < FRAME_BYTES) {
		worse(op, KVOF_CORRUPT);
	} else if (value > FRAME_BYTES) {
		run->single = true;
		run->single_bytes = value - FRAME_BYTES;
	} else {
		load_answer(part);
	}
}

static void part_answer(struct tier_part *part, int res)
{
	struct tier_op *op = part->owner;
	struct lane *l = lane_of(op);
	bool live = lane_live(l);

	if (res == -ECANCELED && l->lost && !op->run.canceled)
		res = -ECONNRESET;         /* values_dev_changed() gave it up */
	if (res == 0 && part->op.kind == HOST_RETRIEVE) {
		if (op->kind == KVOF_LOAD)
			load_answer(part);
		else
			peek_answer(part);
	} else if (res == -ENOENT && op->kind == KVOF_LOAD && op->run.stage == TIER_PARTS &&
		   !part->head) {
		op->run.absent++;          /* perhaps cut in another way: the head tells */
	} else if (res == -ENOENT && op->kind == KVOF_SAVE) {
		op->run.absent++;          /* no head yet, or a part of it is gone */
	} else if (res == -ENOENT && op->kind == KVOF_DELETE && op->run.stage != TIER_FIRST) {
		/* somebody else was faster */
	} else {
		worse(op, dev_reason(res, live));
	}
}

static void ended(struct loop_op *soon, int res)
{
	struct tier_op *op = container_of(soon, struct tier_op, soon);

	finish(op, op->run.canceled ? KVOF_CANCELED : op->run.worst);
}

/* Ends an operation of which nothing flies, on the next turn. */
static void end_soon(struct tier_op *op, enum kvof_reason reason)
{
	must(op->run.flying == 0 && !op->run.ending);
	op->run.ending = true;
	worse(op, reason);
	op->soon = (struct loop_op){.done = ended};
	loop_soon(values_of(op->tier)->loop, &op->soon, 0);
}

/* Takes op off the list of those that wait for room; what flies of it ends it. */
static void starved_end(struct tier_op *op, enum kvof_reason reason)
{
	list_remove(&op->starved);
	worse(op, reason);
	if (op->run.flying == 0 && !op->run.answering)     /* else the answer ends it */
		end_soon(op, reason);
}

static void rate_end(struct lane *l, const struct tier_part *part, int res)
{
	enum dev_rate_end how = res == 0 || res == -ENOENT || res == -EBADMSG ? DEV_RATE_CAME :
				res == -ETIMEDOUT ? DEV_RATE_LATE : DEV_RATE_UNTOLD;

	dev_rate_end(&l->rate, &part->mark, how, res == 0 ? part->op.moved_bytes : 0,
		     loop_now_ns(l->values->loop));
}

static void part_done(struct host_op *hop, int res)
{
	struct tier_part *part = container_of(hop, struct tier_part, op);
	struct tier_op *op = part->owner;
	struct lane *l = lane_of(op);

	loop_must_own(l->values->loop);
	must(part->flying && op->run.flying > 0);
	part->flying = false;
	op->run.flying--;
	l->flying--;
	if (part->mark.begun)
		rate_end(l, part, res);
	if (hop->busy) {
		part->busy = true;
		op->run.busy++;
	}
	op->run.answering = true;
	part_answer(part, res);
	op->run.answering = false;
	if (!list_linked(&op->starved))
		pump(op);
	else if (op->run.flying == 0 && op->run.worst != KVOF_OK)
		starved_end(op, op->run.worst);
	feed_starved(l);
}

static void part_released(struct host_op *hop)
{
	struct tier_part *part = container_of(hop, struct tier_part, op);
	struct tier_op *op = part->owner;

	must(part->busy && op->run.busy > 0);
	part->busy = false;
	op->run.busy--;
	if (op->run.busy == 0 && op->run.stage == TIER_OVER && op->busy)
		op->released(op);
}

/* --- what follows a stage: true, another stage is set up --------------------------------- */

static void know(struct tier_op *op, uint64_t block_bytes, uint32_t cut_bytes, bool bad)
{
	struct known_block known = {block_bytes, cut_bytes, bad};

	known_set(values_of(op->tier)->known, &op->id, &known);
}

static bool load_fail(struct tier_op *op, enum kvof_reason reason)
{
	if (reason == KVOF_CORRUPT || reason == KVOF_IDENTITY)
		know(op, 0, 0, true);
	else if (reason == KVOF_ABSENT)
		known_forget(values_of(op->tier)->known, &op->id);
	finish(op, reason);
	return false;
}

static bool load_good(struct tier_op *op, uint64_t bytes, uint32_t cut_bytes)
{
	op->value_bytes = bytes;
	know(op, bytes, cut_bytes, false);
	finish(op, KVOF_OK);
	return false;
}

static bool load_short(struct tier_op *op, uint64_t bytes)
{
	op->value_bytes = bytes;
	finish(op, KVOF_SHORT);
	return false;
}

/* One more round, cut as the array says. */
static bool load_again(struct tier_op *op, uint64_t bytes, uint32_t cut_bytes)
{
	struct tier_run *run = &op->run;

	if (bytes > op->bytes)
		return load_short(op, bytes);
	if (++run->rounds == VALUES_ROUNDS_MAX)
		return load_fail(op, KVOF_CORRUPT);
	run->block_bytes = bytes;
	run->cut_bytes = cut_bytes;
	run->part_count = frame_part_count(bytes, cut_bytes);
	run->with_head = run->part_count > 1;
	run->head_seen = run->single = false;
	stage_go(op, run->part_count == 1 ? TIER_FIRST : TIER_PARTS);
	return true;
}

static bool load_over(struct tier_op *op)
{
	struct tier_run *run = &op->run;

	if (run->worst != KVOF_OK)
		return load_fail(op, run->worst);
	if (run->single && run->single_bytes > op->bytes)
		return load_short(op, run->single_bytes);
	if (run->single && run->stage == TIER_FIRST)
		return load_good(op, run->single_bytes, run->cut_bytes);
	if (run->single)                   /* asked for parts, but one value is the whole block */
		return load_again(op, run->single_bytes,
				  run->single_bytes > 0 ? (uint32_t)run->single_bytes : 1);
	must(run->head_seen);
	if (run->head.block_bytes != run->block_bytes || run->head.cut_bytes != run->cut_bytes)
		return load_again(op, run->head.block_bytes, run->head.cut_bytes);
	if (run->absent > 0)
		return load_fail(op, KVOF_ABSENT);
	if (run->odd || run->sum != run->head.xxh3)    /* parts of two saves met */
		return load_fail(op, KVOF_CORRUPT);
	return load_good(op, run->block_bytes, run->cut_bytes);
}

/* (0 of 1) was looked at before parts are written: what is there already? */
static bool save_found(struct tier_op *op)
{
	struct tier_run *run = &op->run;

	if (run->worst == KVOF_CORRUPT || run->worst == KVOF_IDENTITY) {
		run->worst = KVOF_OK;
		run->overwrite = true;
	}
	if (run->worst == KVOF_OK && run->single)
		run->worst = KVOF_EXISTS;
	if (run->worst != KVOF_OK)
		return false;
	run->check_count = run->head_seen ? frame_part_count(run->head.block_bytes,
							     run->head.cut_bytes) : 0;
#ifdef KVOF_PLANT_HEAD_STORED_FIRST
	if (!run->head_seen) {
		stage_go(op, TIER_HEAD);
		return true;
	}
#endif
	stage_go(op, run->head_seen ? TIER_CHECK : TIER_PARTS);
	return true;
}

/* Its parts were asked for: whole, or does it have to be written anew? */
static bool save_checked(struct tier_op *op)
{
	struct tier_run *run = &op->run;

	if (run->worst == KVOF_OK && run->absent == 0)
		run->worst = KVOF_EXISTS;
	if (run->worst != KVOF_OK)
		return false;
	run->overwrite = true;
	stage_go(op, TIER_PARTS);
	return true;
}

/* The stage after parts of a block, or its head, were stored. */
static bool save_stored(struct tier_op *op)
{
#ifdef KVOF_PLANT_HEAD_STORED_FIRST
	enum tier_stage from = TIER_HEAD, to = TIER_PARTS;
#else
	enum tier_stage from = TIER_PARTS, to = TIER_HEAD;
#endif

	if (op->run.worst != KVOF_OK || op->run.stage != from || op->run.part_count == 1)
		return false;
	stage_go(op, to);
	return true;
}

static bool save_over(struct tier_op *op)
{
	struct tier_run *run = &op->run;
	bool more = run->stage == TIER_CHECK ? save_checked(op) :
		    run->stage == TIER_FIRST && run->part_count > 1 ? save_found(op) :
		    save_stored(op);

	if (more)
		return true;
	op->value_bytes = run->block_bytes;
	if (run->worst == KVOF_OK)
		know(op, run->block_bytes, run->cut_bytes, false);
	finish(op, run->worst);
	return false;
}

/* What (0 of 1) said about the block's length and parts. */
static void exists_learn(struct tier_op *op)
{
	struct tier_run *run = &op->run;

	if (run->head_seen) {
		run->block_bytes = run->head.block_bytes;
		run->cut_bytes = run->head.cut_bytes;
	} else if (run->single) {
		run->block_bytes = run->single_bytes;
		run->cut_bytes = run->single_bytes > 0 ? (uint32_t)run->single_bytes : 1;
	} else {
		return;                    /* it was known before */
	}
	run->part_count = frame_part_count(run->block_bytes, run->cut_bytes);
}

/*
 * That values lie there says nothing about their bytes: a block that a load found bad stays bad
 * until it is saved, loaded well or gone, else the save after this question would leave it as it
 * is.
 */
static void exists_know(struct tier_op *op)
{
	struct known_block known;

	known_find(values_of(op->tier)->known, &op->id, &known);
	if (!known.bad)
		know(op, op->run.block_bytes, op->run.cut_bytes, false);
}

static bool exists_over(struct tier_op *op)
{
	struct tier_run *run = &op->run;

	if (run->worst == KVOF_OK && run->stage == TIER_FIRST) {
		exists_learn(op);
		if (run->part_count > 1) {
			stage_go(op, TIER_PARTS);
			return true;
		}
	}
	if (run->worst == KVOF_OK)
		exists_know(op);
	else if (run->worst == KVOF_ABSENT)
		known_forget(values_of(op->tier)->known, &op->id);
	finish(op, run->worst);
	return false;
}

static bool delete_over(struct tier_op *op)
{
	struct tier_run *run = &op->run;

	if (run->stage == TIER_FIRST) {
		/* what can't be read as a value of ours goes all the same */
		if (run->worst == KVOF_CORRUPT || run->worst == KVOF_IDENTITY)
			run->worst = KVOF_OK;
		if (run->head_seen)
			run->part_count = frame_part_count(run->head.block_bytes,
							   run->head.cut_bytes);
	}
	if (run->worst == KVOF_OK && run->stage == TIER_FIRST) {
		stage_go(op, TIER_HEAD);
		return true;
	}
	if (run->worst == KVOF_OK && run->stage == TIER_HEAD && run->part_count > 1) {
		stage_go(op, TIER_PARTS);
		return true;
	}
	known_forget(values_of(op->tier)->known, &op->id);
	finish(op, run->worst);
	return false;
}

static bool stage_over(struct tier_op *op)
{
	if (op->run.canceled)
		worse(op, KVOF_CANCELED);
	switch (op->kind) {
	case KVOF_LOAD:
		return load_over(op);
	case KVOF_SAVE:
		return save_over(op);
	case KVOF_EXISTS_OP:
		return exists_over(op);
	case KVOF_DELETE:
		return delete_over(op);
	}
	return false;
}

/* --- the tier --------------------------------------------------------------------------------- */

static bool tier_values_has(const struct tier *t, const struct kvof_id *id)
{
	return false;                      /* only the device knows */
}

/* How a device's limit leaves a block of so many bytes to be cut. */
static uint32_t lane_cut(const struct lane *l, uint64_t bytes)
{
	const struct tier *t = &l->values->tier;
	uint32_t most = l->value_bytes_max == 0 ? t->cut_bytes :
			(uint32_t)bytes_min(t->cut_bytes, l->value_bytes_max - FRAME_BYTES);

	return tier_cut_layers(most, t->layer_count, bytes);
}

/* How the block is cut, as far as we know; and the first stage. */
static enum tier_stage run_begin(struct values *v, struct tier_op *op)
{
	struct tier_run *run = &op->run;
	struct known_block known;

	*run = (struct tier_run){
		.block_bytes = op->bytes,
		.our_cut_bytes = tier_cut(&v->tier, op->bytes),
		.lane = v->lane_count > 0 ? values_pick(v->name, v->lane_count, &op->id) : 0,
	};
	run->cut_bytes = v->lane_count > 0 ? lane_cut(lane_of(op), op->bytes) : run->our_cut_bytes;
	known_find(v->known, &op->id, &known);
	switch (op->kind) {
	case KVOF_LOAD:
		run->part_count = frame_part_count(op->bytes, run->cut_bytes);
		run->with_head = run->part_count > 1;
		return run->with_head ? TIER_PARTS : TIER_FIRST;
	case KVOF_SAVE:
		run->part_count = frame_part_count(op->bytes, run->cut_bytes);
		return known.bad && run->part_count > 1 ? TIER_PARTS : TIER_FIRST;
	case KVOF_EXISTS_OP:
		run->block_bytes = known.block_bytes;
		run->cut_bytes = known.cut_bytes;
		run->part_count = known.cut_bytes == 0 ? 0 :
				  frame_part_count(known.block_bytes, known.cut_bytes);
		return TIER_FIRST;
	case KVOF_DELETE:
		run->part_count = 1;
		return TIER_FIRST;
	}
	return TIER_FIRST;
}

static void tier_values_start(struct tier *t, struct tier_op *op)
{
	struct values *v = values_of(t);
	enum tier_stage first;

	loop_must_own(v->loop);
	must(op->part_slots > 0);
	op->tier = t;
	op->busy = false;
	op->value_bytes = op->verify_ns = 0;
	for (unsigned i = 0; i < op->part_slots; i++)
		op->part[i].flying = op->part[i].busy = op->part[i].held = false;
	op->starved = op->lane = (struct list_link){0};
	v->in_flight++;
	first = run_begin(v, op);
	if (v->lane_count == 0) {
		end_soon(op, KVOF_UNREACHABLE);
		return;
	}
	list_push_back(&lane_of(op)->ops, &op->lane);
	lane_of(op)->asked++;
	if (!lane_live(lane_of(op))) {
		end_soon(op, KVOF_UNREACHABLE);
		return;
	}
	stage_go(op, first);
	pump(op);
}

/* Ends an operation, or what flies of it will. */
static void give_up(struct tier_op *op, bool parked, enum kvof_reason reason)
{
	struct lane *l = lane_of(op);

	if (list_linked(&op->starved))
		starved_end(op, reason);
	else if (parked && !op->run.answering)
		end_soon(op, reason);
	for (unsigned i = 0; i < op->part_slots; i++)
		if (op->part[i].flying)
			l->dev->ops->cancel(l->dev, &op->part[i].op);
}

static void tier_values_cancel(struct tier *t, struct tier_op *op)
{
	bool parked = is_parked(op);

	if (op->run.stage == TIER_OVER || op->run.canceled)
		return;
	op->run.canceled = true;
	if (values_of(t)->lane_count > 0)
		give_up(op, parked, KVOF_CANCELED);
}

static void tier_values_late(struct tier *t, struct tier_op *op)
{
	if (list_linked(&op->starved))     /* what flies has the deadline itself */
		starved_end(op, KVOF_LATE);
	else if (is_parked(op) && !op->run.answering)
		end_soon(op, KVOF_LATE);
}

static void tier_values_more(struct tier *t, struct tier_op *op)
{
	const struct tier_run *run = &op->run;

	must(op->tier == t && op->kind == KVOF_LOAD);
	if (run->stage != TIER_PARTS || run->answering || run->ending || list_linked(&op->starved))
		return;                    /* seen where it goes on */
	if (run->flying == 0 && lane_of(op)->lost)
		end_soon(op, KVOF_UNREACHABLE);
	else
		pump(op);
}

/* --- which device ---------------------------------------------------------------------------- */

uint64_t values_name(const char *text)
{
	return hash_xxh3(text, strlen(text));
}

unsigned values_pick(const uint64_t *names, unsigned count, const struct kvof_id *id)
{
	struct {
		le64 name;
		uint8_t id[KVOF_ID_BYTES];
	} text;
	uint64_t most = 0;
	unsigned best = 0;

	must(count > 0);
	memcpy(text.id, id->byte, KVOF_ID_BYTES);
	for (unsigned i = 0; count > 1 && i < count; i++) {
		uint64_t weight;

		text.name = le64_of(names[i]);
		weight = hash_xxh3(&text, sizeof(text));
		if (i == 0 || weight > most || (weight == most && names[i] > names[best])) {
			most = weight;
			best = i;
		}
	}
	return best;
}

/* --- the seam --------------------------------------------------------------------------------- */

static bool tier_values_live(const struct tier *t)
{
	const struct values *v = values_of(t);

	for (unsigned i = 0; i < v->lane_count; i++)
		if (lane_live(&v->lane[i]))
			return true;
	return false;
}

static void lane_speed(const struct lane *l, uint64_t now, struct tier_speed *out)
{
	*out = (struct tier_speed){
		.latency_ns = dev_rate_latency_ns(&l->rate, now),
		.bytes_per_s = l->rate.bytes_per_s,
		.queued_bytes = dev_rate_queued_bytes(&l->rate, now),
		.samples = l->rate.samples,
		.came_bytes = l->rate.came_bytes,
		.came_ns = l->rate.came_ns,
		.busy_ns = dev_rate_busy_ns(&l->rate, now),
		.quiet_ns = l->rate.samples > 0 ? now - l->rate.last_ns : 0,
		.live = lane_live(l),
	};
}

/* Devices that are there work side by side; one that has not been measured is like the others. The
 * queue is that of the slowest to be through, as if all had as much to do. */
static void all_speed(const struct values *v, uint64_t now, struct tier_speed *out)
{
	unsigned live = 0, measured = 0;
	double wait_s = 0;

	*out = (struct tier_speed){.quiet_ns = UINT64_MAX};
	for (unsigned i = 0; i < v->lane_count; i++) {
		struct tier_speed s;

		lane_speed(&v->lane[i], now, &s);
		if (!s.live)
			continue;
		live++;
		out->samples += s.samples;
		out->came_bytes += s.came_bytes;
		out->came_ns += s.came_ns;
		out->busy_ns += s.busy_ns;
		out->quiet_ns = bytes_min(out->quiet_ns, s.quiet_ns);
		out->latency_ns = s.latency_ns > out->latency_ns ? s.latency_ns : out->latency_ns;
		if (s.bytes_per_s == 0)
			continue;
		measured++;
		out->bytes_per_s += s.bytes_per_s;
		if ((double)s.queued_bytes / (double)s.bytes_per_s > wait_s)
			wait_s = (double)s.queued_bytes / (double)s.bytes_per_s;
	}
	out->live = live > 0;
	out->devices = live;
	if (measured > 0)
		out->bytes_per_s = out->bytes_per_s / measured * live;
	out->queued_bytes = (uint64_t)(wait_s * (double)out->bytes_per_s);
	if (out->samples == 0)
		out->quiet_ns = 0;
}

static void tier_values_speed(const struct tier *t, const struct kvof_id *id,
			      struct tier_speed *out)
{
	const struct values *v = values_of(t);
	uint64_t now = loop_now_ns(v->loop);

	*out = (struct tier_speed){0};
	if (id == NULL) {
		all_speed(v, now, out);
	} else if (v->lane_count > 0) {
		unsigned lane = values_pick(v->name, v->lane_count, id);

		lane_speed(&v->lane[lane], now, out);
		out->device = lane;
	}
}

static int value_pin(struct lane *l, const struct kvof_id *id, struct part_of part, bool on)
{
	struct kvof_id identity;
	struct kv_key key;

	identity_part(id, part, &identity);
	key = identity_key(&identity);
	return l->dev->ops->keep(l->dev, &key, on);
}

/* All of its values, or none; a block of several parts has a head beside them. */
static int tier_values_pin(struct tier *t, const struct kvof_id *id, bool on)
{
	struct values *v = values_of(t);
	struct known_block known;
	struct lane *l;
	uint32_t count;
	int rc;

	if (v->lane_count == 0 || !known_find(v->known, id, &known) || known.cut_bytes == 0)
		return -ENOENT;
	l = &v->lane[values_pick(v->name, v->lane_count, id)];
	if (l->dev->ops->keep == NULL)
		return -ENOENT;
	count = frame_part_count(known.block_bytes, known.cut_bytes);
	rc = value_pin(l, id, (struct part_of){0, 1}, on);
	for (uint32_t i = 0; count > 1 && i < count && (rc == 0 || !on); i++)
		rc = value_pin(l, id, (struct part_of){i, count}, on);
	for (uint32_t i = 0; rc != 0 && on && count > 1 && i < count; i++)
		(void)value_pin(l, id, (struct part_of){i, count}, false);
	if (rc != 0 && on)
		(void)value_pin(l, id, (struct part_of){0, 1}, false);
	return rc;
}

static const struct tier_ops tier_values_ops = {
	.has = tier_values_has,
	.start = tier_values_start,
	.cancel = tier_values_cancel,
	.late = tier_values_late,
	.more = tier_values_more,
	.live = tier_values_live,
	.speed = tier_values_speed,
	.pin = tier_values_pin,
};

/* --- devices ---------------------------------------------------------------------------------- */

/* It has been away for too long: who only looks does not wait for it any more. */
static void lane_lost(struct loop_timer *timer)
{
	struct lane *l = container_of(timer, struct lane, grace);

	l->lost = true;
	LIST_FOR_EACH_SAFE(link, &l->ops) {
		struct tier_op *op = container_of(link, struct tier_op, lane);

		if ((op->kind == KVOF_LOAD || op->kind == KVOF_EXISTS_OP) &&
		    op->run.stage != TIER_OVER && !op->run.canceled && !op->run.ending)
			give_up(op, is_parked(op), KVOF_UNREACHABLE);
	}
}

void values_dev_changed(struct tier *t, unsigned dev_index)
{
	struct values *v = values_of(t);
	struct lane *l = &v->lane[dev_index];

	must(dev_index < v->lane_count);
	if (l->dev->ops->live(l->dev)) {
		loop_timer_cancel(v->loop, &l->grace);
		l->lost = false;
	} else if (!l->lost && !loop_timer_is_set(&l->grace)) {
		loop_timer_set(v->loop, &l->grace, loop_now_ns(v->loop) + VALUES_GRACE_NS);
	}
}

void values_dev_limit(struct tier *t, unsigned dev_index, uint32_t value_bytes_max)
{
	struct lane *l = &values_of(t)->lane[dev_index];

	must(dev_index < values_of(t)->lane_count);
	l->unfit = value_bytes_max == 0;
	must(l->unfit || value_bytes_max >= TIER_CUT_MIN + FRAME_BYTES);
	l->value_bytes_max = value_bytes_max;
}

unsigned values_dev_add(struct tier *t, struct dev *dev, uint64_t name)
{
	struct values *v = values_of(t);
	struct lane *l = &v->lane[v->lane_count];

	must(v->lane_count < VALUES_DEVS_MAX && v->in_flight == 0);
	*l = (struct lane){.values = v, .dev = dev};
	list_init(&l->starved);
	list_init(&l->ops);
	loop_timer_init(&l->grace, lane_lost);
	v->name[v->lane_count] = name;
	return v->lane_count++;
}

uint64_t values_in_flight(const struct tier *t)
{
	return values_of(t)->in_flight;
}

static void stat_add(const struct lane *l, struct tier_stat *out)
{
	struct dev_stat d;

	l->dev->ops->stat(l->dev, &d);
	out->devs++;
	out->devs_live += lane_live(l);
	out->asked += l->asked;
	out->answered += l->answered;
	out->unreachable += l->unreachable;
	out->present += l->present;
	out->absent += l->absent;
	out->delivered_bytes += l->delivered_bytes;
	out->device_read_bytes += d.device_read_bytes;
	out->device_write_bytes += d.device_write_bytes;
	out->used_bytes += d.used_bytes;
	out->capacity_bytes += d.capacity_bytes;
	out->values += d.values;
	out->evicted += d.evicted;
	out->corrupt += d.corrupt;
	out->kept_bytes += d.kept_bytes;
	out->kept_lost += d.kept_lost;
	out->reconnects += d.reconnects;
	out->drives += d.drives;
	out->drives_failed += d.drives_failed;
}

void values_dev_stat(const struct tier *t, unsigned dev_index, struct tier_stat *out)
{
	*out = (struct tier_stat){0};
	must(dev_index < values_of(t)->lane_count);
	stat_add(&values_of(t)->lane[dev_index], out);
}

void values_stat(const struct tier *t, struct tier_stat *out)
{
	const struct values *v = values_of(t);

	*out = (struct tier_stat){0};
	for (unsigned i = 0; i < v->lane_count; i++)
		stat_add(&v->lane[i], out);
}

/* --- the tier itself -------------------------------------------------------------------------- */

int values_open(struct loop *loop, const struct values_opts *opts, struct tier **out)
{
	struct values *v = calloc(1, sizeof(*v));

	if (v == NULL)
		return -ENOMEM;
	if (known_open(opts->known_slots, &v->known) != 0) {
		free(v);
		return -ENOMEM;
	}
	OBJ_INIT(v, VALUES_MAGIC);
	v->ops = tier_values_ops;
	v->ops.name = opts->name;
	v->tier = (struct tier){.ops = &v->ops, .self = v};
	tier_cut_set(&v->tier, opts->cut_bytes, 0);
	v->loop = loop;
	v->owner = opts->owner;
	*out = &v->tier;
	return 0;
}

void *values_owner(const struct tier *t)
{
	return values_of(t)->owner;
}

void values_close(struct tier **t)
{
	struct values *v = values_of(*t);

	*t = NULL;
	must(v->in_flight == 0);
	for (unsigned i = 0; i < v->lane_count; i++) {
		must(v->lane[i].flying == 0);
		loop_timer_cancel(v->loop, &v->lane[i].grace);
	}
	known_close(&v->known);
	v->magic = 0;
	free(v);
}
