/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The DRAM tier: whole blocks in pieces of one slab, so that no size fragments it and the cap is
 * exact: slab bytes are all that values ever take. Which block goes next is the policy's to say.
 *
 * Invariants: free pieces + pieces of entries = all pieces; the slots that the policy holds are
 * exactly the entries in the table. An entry under lease is not evicted, nor one that the owner
 * holds. An entry that is read or filled or lent is pinned: evicted by nobody, and if it is
 * deleted meanwhile its pieces are free when the last pin is gone. `stays` has every entry that is
 * pinned or was given a lease; `stay_pieces` is their sum.
 *
 * A block is immutable: a second save of an identity changes nothing. A save is in the table when
 * all of it has been copied, not before. Copies are made one part a turn, and all together about
 * DRAM_TURN_BYTES a turn, so that large blocks do not hold up the loop; a save that finds no room
 * while others are being filled waits for them, and may then take their place.
 *
 * The owner hits a prefix from its tail to its head, so that tails are evicted first.
 * All memory is taken at open. Owned by one loop.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/list.h"
#include "base/log.h"
#include "cache/dram.h"
#include "cache/policy.h"

#define DRAM_MAGIC 0x6472616du
#define DRAM_NONE DRAM_SLOT_NONE
#define DRAM_CUT_BYTES ((uint32_t)(4 * MiB) - FRAME_BYTES)  /* until tier_cut_set() */
#define DRAM_LATENCY_NS 10000              /* two turns of the loop */
#define DRAM_HUGE_BYTES (2 * MiB)
#define DRAM_AGAIN_NS (20 * NS_PER_MS)     /* what stays is passed over so long, and */
#define DRAM_AGAIN_BLOCK_NS 1000           /* so much longer for each block that is held */
#define DRAM_TURN_BYTES (8 * MiB)          /* copied in one turn of the loop, about */

_Static_assert(DRAM_NONE == POLICY_NONE, "a slot is the policy's slot");

struct dram_entry {
	struct list_link link;             /* on idle, or on stays, or on none */
	struct kvof_id id;
	uint64_t bytes, lease_until_ns;
	uint32_t first;                    /* piece */
	uint32_t chain;                    /* next entry of the bucket */
	uint32_t pins;
	bool gone;                         /* deleted, but pinned */
	bool refused;                      /* to go, when room was looked for */
	bool filling;                      /* not in the table yet */
	bool promoted;                     /* came from a slower tier */
	bool prefetched;                   /* and not hit yet */
	bool dropped;                      /* deleted while it is being filled */
	uint8_t below;                     /* bits: tiers that have it as well */
};

struct dram {
	struct tier tier;
	uint32_t magic;
	struct loop *loop;
	const struct dram_events *events;
	void *arg;
	struct policy *policy;
	uint8_t *slab;
	uint64_t slab_bytes, piece_bytes;
	bool registered;
	uint32_t piece_count, piece_free, free_first;
	uint32_t *next;                    /* of a piece: in its entry, or in the free list */
	struct dram_entry *entry;          /* as many as pieces */
	uint32_t *bucket, bucket_mask;
	struct list_link idle, stays;
	struct list_link starved;          /* saves that wait for room that others are filling */
	uint32_t fills;
	uint64_t stay_pieces, pinned_pieces;
	uint64_t lease_end_ns;             /* no lease ends before */
	uint64_t now_ns;                   /* of the search for a victim */
	uint64_t again_ns;                 /* from then on the policy looks at all again */
	uint32_t parent;                   /* of the block that wants room: it stays as well */
	struct dram_stat stat;
	uint64_t bytes_per_s, loads, queued_bytes;
	uint64_t turn_ns, turn_bytes;      /* copied in the turn that began then */
};

static struct dram *dram_of(const struct tier *t)
{
	struct dram *d = t->self;

	OBJ_CHECK(d, DRAM_MAGIC);
	return d;
}

static uint32_t slot_of(const struct dram *d, const struct dram_entry *e)
{
	return (uint32_t)(e - d->entry);
}

static uint32_t *bucket_of(struct dram *d, const struct kvof_id *id)
{
	uint32_t bits;

	memcpy(&bits, id->byte, sizeof(bits));
	return &d->bucket[bits & d->bucket_mask];
}

static uint64_t key_of(const struct kvof_id *id)
{
	uint64_t key;

	memcpy(&key, id->byte, sizeof(key));
	return key;
}

static struct dram_entry *entry_find(struct dram *d, const struct kvof_id *id)
{
	uint32_t at = *bucket_of(d, id);

	while (at != DRAM_NONE && memcmp(&d->entry[at].id, id, sizeof(*id)) != 0)
		at = d->entry[at].chain;
	return at != DRAM_NONE ? &d->entry[at] : NULL;
}

static uint32_t pieces_for(const struct dram *d, uint64_t bytes)
{
	uint64_t n = (bytes + d->piece_bytes - 1) / d->piece_bytes;

	return n == 0 ? 1 : n > DRAM_NONE - 1 ? DRAM_NONE - 1 : (uint32_t)n;
}

static void changed(struct dram *d, const struct kvof_id *id, bool there)
{
	if (d->events != NULL && d->events->changed != NULL)
		d->events->changed(d->arg, id, there);
}

/* --- what stays ------------------------------------------------------------------------------- */

static bool entry_leased(const struct dram_entry *e, uint64_t now_ns)
{
#ifdef KVOF_PLANT_LEASE_NOT_HONOURED
	return false;
#endif
	return e->lease_until_ns > now_ns;
}

static bool entry_stays(const struct dram_entry *e, uint64_t now_ns)
{
	return e->pins > 0 || entry_leased(e, now_ns);
}

static void stay(struct dram *d, struct dram_entry *e)
{
	if (list_linked(&e->link))
		return;
	list_push_back(&d->stays, &e->link);
	d->stay_pieces += pieces_for(d, e->bytes);
}

static void stay_end(struct dram *d, struct dram_entry *e)
{
	if (!list_linked(&e->link))
		return;
	list_remove(&e->link);
	must(d->stay_pieces >= pieces_for(d, e->bytes));
	d->stay_pieces -= pieces_for(d, e->bytes);
}

static void entry_pin(struct dram *d, struct dram_entry *e)
{
	if (e->pins++ == 0)
		d->pinned_pieces += pieces_for(d, e->bytes);
	stay(d, e);
}

static bool may_go(void *arg, uint32_t slot);

/* One thing less keeps it here: if it may go now, the policy is to look at it again. */
static void entry_let(struct dram *d, struct dram_entry *e)
{
	d->now_ns = loop_now_ns(d->loop);
	if (e->refused && may_go(d, slot_of(d, e)))
		d->again_ns = 0;
}

/* Gives the pieces back; nobody finds or reads the entry any more. */
static void entry_free(struct dram *d, struct dram_entry *e)
{
	uint32_t last = e->first, count = 1;

	must(e->pins == 0);
	stay_end(d, e);
	while (d->next[last] != DRAM_NONE) {
		last = d->next[last];
		count++;
	}
	must(count == pieces_for(d, e->bytes));
	d->next[last] = d->free_first;
	d->free_first = e->first;
	d->piece_free += count;
	list_push_back(&d->idle, &e->link);
	must(d->piece_free <= d->piece_count);
}

static void entry_unpin(struct dram *d, struct dram_entry *e)
{
	must(e->pins > 0);
	if (--e->pins > 0)
		return;
	d->pinned_pieces -= pieces_for(d, e->bytes);
	entry_let(d, e);
	if (e->gone)
		entry_free(d, e);
	else if (!entry_stays(e, loop_now_ns(d->loop)))
		stay_end(d, e);
}

/* Out of the table; the policy has been told, or never knew. */
static void entry_drop(struct dram *d, struct dram_entry *e)
{
	uint32_t *at = bucket_of(d, &e->id), slot = slot_of(d, e);
	struct kvof_id id = e->id;

	while (*at != slot) {
		must(*at != DRAM_NONE);
		at = &d->entry[*at].chain;
	}
	*at = e->chain;
	d->stat.blocks--;
	d->stat.prefetched_wasted += e->prefetched;
	e->gone = e->pins > 0;
	if (!e->gone)
		entry_free(d, e);
	changed(d, &id, false);
}

static void entry_remove(struct dram *d, struct dram_entry *e)
{
	policy_remove(d->policy, slot_of(d, e));
	entry_drop(d, e);
}

/* --- room ------------------------------------------------------------------------------------- */

/* The slot of the block before this one; DRAM_NONE: not known, or not held. */
static uint32_t parent_of(struct dram *d, const struct kvof_id *id)
{
	const struct dram_entry *e = NULL;
	struct kvof_id parent;

	if (d->events != NULL && d->events->parent != NULL &&
	    d->events->parent(d->arg, id, &parent))
		e = entry_find(d, &parent);
	return e != NULL ? slot_of(d, e) : DRAM_NONE;
}

static bool may_go(void *arg, uint32_t slot)
{
	const struct dram *d = arg;
	struct dram_entry *e = &d->entry[slot];

	e->refused = entry_stays(e, d->now_ns) || slot == d->parent ||
		     (d->events != NULL && d->events->held != NULL &&
		      d->events->held(d->arg, &e->id));
	return !e->refused;
}

/* Would there be room if all went that may? */
static bool room_possible(struct dram *d, uint32_t pieces)
{
	if (pieces > d->piece_count)
		return false;
	if (d->piece_count - d->stay_pieces >= pieces)
		return true;
	if (d->now_ns < d->lease_end_ns)
		return false;
	d->lease_end_ns = UINT64_MAX;
	LIST_FOR_EACH_SAFE(link, &d->stays) {
		struct dram_entry *e = container_of(link, struct dram_entry, link);

		if (!entry_stays(e, d->now_ns))
			stay_end(d, e);    /* its lease is over */
		else if (e->lease_until_ns > d->now_ns)
			d->lease_end_ns = bytes_min(d->lease_end_ns, e->lease_until_ns);
	}
	return d->piece_count - d->stay_pieces >= pieces;
}

/* Frees pieces by dropping what the policy names. False when too much stays: nothing is dropped
 * then, unless it is the owner who holds the rest. */
static bool room_make(struct dram *d, uint32_t pieces, const struct kvof_id *id)
{
	d->now_ns = loop_now_ns(d->loop);
	if (d->piece_free >= pieces)
		return true;
	d->parent = policy_tails_first(d->policy) ? parent_of(d, id) : DRAM_NONE;
	if (!room_possible(d, pieces))
		return false;
	if (d->now_ns >= d->again_ns) {
		policy_look_again(d->policy);
		d->again_ns = d->now_ns + DRAM_AGAIN_NS + d->stat.blocks * DRAM_AGAIN_BLOCK_NS;
	}
	while (d->piece_free < pieces) {
		uint32_t slot = policy_victim(d->policy, may_go, d);

		if (slot == POLICY_NONE)
			return false;
		policy_evict(d->policy, slot);
		entry_drop(d, &d->entry[slot]);
		d->stat.evicted++;
	}
	return true;
}

/* Takes pieces; the bytes are the caller's to fill, and nobody finds it yet. */
static struct dram_entry *entry_take(struct dram *d, const struct kvof_id *id, uint64_t bytes)
{
	uint32_t pieces = pieces_for(d, bytes), last;
	struct list_link *link = list_pop_front(&d->idle);
	struct dram_entry *e;

	must(link != NULL && d->piece_free >= pieces);
	e = container_of(link, struct dram_entry, link);
	*e = (struct dram_entry){.id = *id, .bytes = bytes, .first = d->free_first,
				 .filling = true};
	last = e->first;
	for (uint32_t i = 1; i < pieces; i++)
		last = d->next[last];
	d->free_first = d->next[last];
	d->next[last] = DRAM_NONE;
	d->piece_free -= pieces;
	return e;
}

/* The entry is whole: it can be found from now on. */
static void entry_publish(struct dram *d, struct dram_entry *e)
{
	uint32_t *bucket = bucket_of(d, &e->id), slot = slot_of(d, e);
	struct policy_item item = {.key = key_of(&e->id), .parent = parent_of(d, &e->id),
				   .units = pieces_for(d, e->bytes)};

	if (d->events != NULL && d->events->priority != NULL)
		item.priority = d->events->priority(d->arg, &e->id);
	e->filling = false;
	e->chain = *bucket;
	*bucket = slot;
	d->stat.blocks++;
	d->stat.promoted += e->promoted;
	d->stat.prefetched += e->prefetched;
	policy_insert(d->policy, slot, &item);
	changed(d, &e->id, true);
}

/* --- copying ---------------------------------------------------------------------------------- */

struct cursor {
	const struct iovec *iov;
	unsigned iov_count, at;
	uint64_t offset;
};

/* Copies between one piece and the next bytes of the caller's pieces. */
static void piece_move(struct cursor *c, uint8_t *piece, uint64_t bytes, bool to_caller)
{
	while (bytes > 0) {
		uint64_t left, step;
		char *at;

		must(c->at < c->iov_count);
		if (c->offset >= c->iov[c->at].iov_len) {
			c->offset -= c->iov[c->at++].iov_len;
			continue;
		}
		left = c->iov[c->at].iov_len - c->offset;
		step = bytes_min(left, bytes);
		at = (char *)c->iov[c->at].iov_base + c->offset;
		if (to_caller)
			memcpy(at, piece, step);
		else
			memcpy(piece, at, step);
		piece += step;
		bytes -= step;
		c->offset += step;
	}
}

/* The next bytes of op, from where it stands. */
static void entry_move(struct dram *d, struct tier_op *op, uint64_t bytes)
{
	struct tier_run *run = &op->run;
	struct cursor c = {op->iov, op->iov_count, 0, run->moved_bytes};

	while (bytes > 0) {
		uint64_t in = run->moved_bytes % d->piece_bytes;
		uint64_t step = bytes_min(bytes, d->piece_bytes - in);

		must(run->piece < d->piece_count);
		piece_move(&c, d->slab + run->piece * d->piece_bytes + in, step, !run->filling);
		bytes -= step;
		run->moved_bytes += step;
		if (in + step == d->piece_bytes)
			run->piece = d->next[run->piece];
	}
}

static uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* --- an operation, one part a turn ------------------------------------------------------------ */

static void dram_turn(struct loop_op *soon, int res);

static void turn_soon(struct dram *d, struct tier_op *op)
{
	must(op->run.flying == 0);
	op->run.flying = 1;
	op->soon = (struct loop_op){.done = dram_turn};
	loop_soon(d->loop, &op->soon, 0);
}

/* Begins to copy between op and an entry. */
static void copy_begin(struct dram *d, struct tier_op *op, struct dram_entry *e)
{
	struct tier_run *run = &op->run;

	entry_pin(d, e);
	run->filling = e->filling;
	run->block_bytes = e->bytes;
	run->cut_bytes = tier_cut(&d->tier, e->bytes);
	run->part_count = frame_part_count(e->bytes, run->cut_bytes);
	run->entry = slot_of(d, e);
	run->piece = e->first;
	if (run->filling) {
		d->fills++;
	} else {
		op->landed_cut_bytes = run->cut_bytes;
		d->queued_bytes += e->bytes;
	}
}

/* The last byte is in: the block is there, unless another copy of it was faster. */
static enum kvof_reason fill_end(struct dram *d, struct dram_entry *e, enum kvof_reason reason)
{
#ifdef KVOF_PLANT_BEHIND_VISIBLE_EARLY
	bool whole = true;
#else
	bool whole = reason == KVOF_OK && !e->dropped;
#endif
	must(d->fills > 0);
	d->fills--;
	if (whole && entry_find(d, &e->id) == NULL) {
		entry_publish(d, e);
	} else {
		e->gone = true;            /* goes with the pin */
		reason = whole ? KVOF_EXISTS : e->dropped ? KVOF_CANCELED : reason;
	}
	return reason;
}

/* Begins to fill an entry. False: there is no room now. */
static bool save_begin(struct dram *d, struct tier_op *op)
{
	if (!room_make(d, pieces_for(d, op->bytes), &op->id))
		return false;
	copy_begin(d, op, entry_take(d, &op->id, op->bytes));
	return true;
}

static void feed_starved(struct dram *d)
{
	while (!list_empty(&d->starved)) {
		struct tier_op *op = container_of(d->starved.next, struct tier_op, starved);

		if (!save_begin(d, op)) {
			if (d->fills > 0)
				return;
			d->stat.refused++;
			op->run.worst = KVOF_FULL;
		}
		list_remove(&op->starved);
		turn_soon(d, op);
	}
}

static void dram_over(struct dram *d, struct tier_op *op, enum kvof_reason reason)
{
	struct tier_run *run = &op->run;

	if (run->part_count > 0) {
		struct dram_entry *e = &d->entry[run->entry];

		if (run->filling)
			reason = fill_end(d, e, reason);
		else
			d->queued_bytes -= run->block_bytes;
		entry_unpin(d, e);
		if (run->filling)
			feed_starved(d);
	}
	run->stage = TIER_OVER;
	op->reason = reason;
	op->done(op);
}

/* Copies the next part. */
static void part_copy(struct dram *d, struct tier_op *op)
{
	struct tier_run *run = &op->run;
	uint64_t begin = clock_ns(), took;
	uint32_t bytes = frame_part_bytes(run->block_bytes, run->cut_bytes, run->next);

	entry_move(d, op, bytes);
	d->turn_bytes += bytes;
	took = clock_ns() - begin + 1;
	run->next++;
	if (bytes >= d->piece_bytes && !run->filling) {
		uint64_t sample = (uint64_t)bytes * NS_PER_S / took;

		d->bytes_per_s = d->bytes_per_s == 0 ? sample : (3 * d->bytes_per_s + sample) / 4;
	}
}

/* Enough was copied in this turn: the loop has other things to do. */
static bool turn_is_full(struct dram *d)
{
	uint64_t now = loop_now_ns(d->loop);   /* read once a turn */

	if (now != d->turn_ns) {
		d->turn_ns = now;
		d->turn_bytes = 0;
	}
	return d->turn_bytes >= DRAM_TURN_BYTES;
}

static bool may_copy(const struct tier_op *op)
{
	const struct tier_run *run = &op->run;

	return run->next < run->part_count &&
	       (run->filling || op->allow == 0 || run->next < op->allow);
}

static void dram_turn(struct loop_op *soon, int res)
{
	struct tier_op *op = container_of(soon, struct tier_op, soon);
	struct dram *d = dram_of(op->tier);
	struct tier_run *run = &op->run;

	run->flying = 0;
	if (run->worst == KVOF_OK && !run->canceled && may_copy(op)) {
		if (turn_is_full(d)) {
			turn_soon(d, op);
			return;
		}
		part_copy(d, op);
		run->answering = true;
		if (op->landed != NULL && !run->filling)
			op->landed(op, run->next - 1, run->part_count);
		run->answering = false;
	}
	if (run->canceled)
		dram_over(d, op, KVOF_CANCELED);
	else if (run->worst != KVOF_OK || run->next == run->part_count)
		dram_over(d, op, run->worst);
	else if (may_copy(op))
		turn_soon(d, op);
}

static enum kvof_reason dram_load(struct dram *d, struct tier_op *op)
{
	struct dram_entry *e = entry_find(d, &op->id);

	if (e == NULL)
		return KVOF_ABSENT;
	op->value_bytes = e->bytes;
	if (e->bytes > op->bytes)
		return KVOF_SHORT;
	d->loads++;
	copy_begin(d, op, e);
	return KVOF_OK;
}

static enum kvof_reason dram_save(struct dram *d, struct tier_op *op)
{
	op->value_bytes = op->bytes;
	if (entry_find(d, &op->id) != NULL)
		return KVOF_EXISTS;
	if (list_empty(&d->starved) && save_begin(d, op))
		return KVOF_OK;
	if (d->fills == 0 || pieces_for(d, op->bytes) > d->piece_count) {
		d->stat.refused++;
		return KVOF_FULL;
	}
	list_push_back(&d->starved, &op->starved);
	return KVOF_OK;
}

/* What is being copied up is in no order with deletes: it must not come after one. */
static void fills_drop(struct dram *d, const struct kvof_id *id)
{
	if (d->fills == 0)
		return;
	LIST_FOR_EACH(link, &d->stays) {
		struct dram_entry *e = container_of(link, struct dram_entry, link);

		if (e->filling && memcmp(&e->id, id, sizeof(*id)) == 0)
			e->dropped = true;
	}
}

static enum kvof_reason dram_delete(struct dram *d, struct tier_op *op)
{
	struct dram_entry *e = entry_find(d, &op->id);

	fills_drop(d, &op->id);
	if (e == NULL)
		return KVOF_ABSENT;
	entry_remove(d, e);
	return KVOF_OK;
}

static void tier_dram_start(struct tier *t, struct tier_op *op)
{
	struct dram *d = dram_of(t);

	loop_must_own(d->loop);
	op->tier = t;
	op->busy = false;
	op->value_bytes = op->verify_ns = 0;
	op->run = (struct tier_run){.stage = TIER_PARTS};
	switch (op->kind) {
	case KVOF_LOAD:
		op->run.worst = dram_load(d, op);
		break;
	case KVOF_SAVE:
		op->run.worst = dram_save(d, op);
		break;
	case KVOF_EXISTS_OP:
		op->run.worst = entry_find(d, &op->id) != NULL ? KVOF_OK : KVOF_ABSENT;
		break;
	case KVOF_DELETE:
		op->run.worst = dram_delete(d, op);
		break;
	}
	if (!list_linked(&op->starved))
		turn_soon(d, op);
}

/* Ends an operation before its time, on a turn of its own. */
static void end_early(struct dram *d, struct tier_op *op, enum kvof_reason reason)
{
	struct tier_run *run = &op->run;

	if (list_linked(&op->starved))
		list_remove(&op->starved);
	else if (run->stage == TIER_OVER || run->part_count == 0)
		return;                    /* the answer is on its way already */
	if (reason == KVOF_CANCELED)
		run->canceled = true;
	else
		run->worst = reason;
	if (run->flying == 0 && !run->answering)
		turn_soon(d, op);
}

static void tier_dram_cancel(struct tier *t, struct tier_op *op)
{
	end_early(dram_of(t), op, KVOF_CANCELED);
}

static void tier_dram_late(struct tier *t, struct tier_op *op)
{
	end_early(dram_of(t), op, KVOF_LATE);
}

static void tier_dram_more(struct tier *t, struct tier_op *op)
{
	struct tier_run *run = &op->run;

	must(op->tier == t && op->kind == KVOF_LOAD);
	if (run->stage != TIER_OVER && run->flying == 0 && !run->answering && may_copy(op))
		turn_soon(dram_of(t), op);
}

static void tier_dram_speed(const struct tier *t, const struct kvof_id *id, struct tier_speed *out)
{
	const struct dram *d = dram_of(t);

	*out = (struct tier_speed){
		.latency_ns = DRAM_LATENCY_NS,
		.bytes_per_s = d->bytes_per_s,
		.queued_bytes = d->queued_bytes,
		.samples = d->loads,
		.live = true,
	};
}

/* --- what moves up ---------------------------------------------------------------------------- */

/* An entry for the block that op brought, to be filled. NULL: there is one, or none is to be. */
static struct dram_entry *promote_take(struct dram *d, const struct tier_op *op, bool force,
				       bool *there)
{
	uint32_t pieces = pieces_for(d, op->value_bytes);

	*there = entry_find(d, &op->id) != NULL;
	if (*there)
		return NULL;
#ifndef KVOF_PLANT_PROMOTION_BY_SCAN
	if (!policy_admit(d->policy, key_of(&op->id), pieces) && !force) {
		d->stat.promotion_refused++;
		return NULL;
	}
#endif
	if (!room_make(d, pieces, &op->id)) {
		d->stat.refused++;
		return NULL;
	}
	return entry_take(d, &op->id, op->value_bytes);
}

enum dram_kept dram_promote(struct tier *t, struct tier_op *op, bool prefetch, unsigned below)
{
	struct dram *d = dram_of(t);
	bool there;
	struct dram_entry *e = promote_take(d, op, prefetch, &there);
	struct tier_run *run = &op->run;

	if (e == NULL)
		return there ? DRAM_THERE : DRAM_REFUSED;
	e->promoted = true;
	e->prefetched = prefetch;
	e->below = (uint8_t)below;
	op->tier = t;
	*run = (struct tier_run){.stage = TIER_PARTS};
	copy_begin(d, op, e);
	if (run->part_count > 1) {
		turn_soon(d, op);
		return DRAM_KEEPING;
	}
	part_copy(d, op);
	run->stage = TIER_OVER;
	(void)fill_end(d, e, KVOF_OK);
	entry_unpin(d, e);
	return DRAM_KEPT;
}

/* --- what is known about a block -------------------------------------------------------------- */

static bool tier_dram_has(const struct tier *t, const struct kvof_id *id)
{
	return entry_find(dram_of(t), id) != NULL;
}

/* A lease is no use: what is looked up and then loaded was used once. */
static void tier_dram_touch(struct tier *t, const struct kvof_id *id, uint64_t lease_until_ns)
{
	struct dram *d = dram_of(t);
	struct dram_entry *e = entry_find(d, id);

	if (e == NULL || lease_until_ns <= e->lease_until_ns)
		return;
	e->lease_until_ns = lease_until_ns;
	d->lease_end_ns = bytes_min(d->lease_end_ns, lease_until_ns);
	stay(d, e);
}

void dram_unlease(struct tier *t, const struct kvof_id *id)
{
	struct dram *d = dram_of(t);
	struct dram_entry *e = entry_find(d, id);

	if (e == NULL)
		return;
	e->lease_until_ns = 0;
	entry_let(d, e);
	if (!entry_stays(e, loop_now_ns(d->loop)))
		stay_end(d, e);
}

void dram_let(struct tier *t, const struct kvof_id *id)
{
	struct dram *d = dram_of(t);
	struct dram_entry *e = entry_find(d, id);

	if (e != NULL)
		entry_let(d, e);
}

void dram_hit(struct tier *t, const struct kvof_id *id)
{
	struct dram *d = dram_of(t);
	struct dram_entry *e = entry_find(d, id);

	if (e == NULL)
		return;
	d->stat.prefetched_hits += e->prefetched;
	e->prefetched = false;
	policy_hit(d->policy, slot_of(d, e));
}

void dram_link(struct tier *t, const struct kvof_id *id, const struct kvof_id *parent)
{
	struct dram *d = dram_of(t);
	const struct dram_entry *e = entry_find(d, id), *p = entry_find(d, parent);

	if (e != NULL && p != NULL && e != p)
		policy_link(d->policy, slot_of(d, e), slot_of(d, p));
}

void dram_priority(struct tier *t, const struct kvof_id *id, int32_t priority)
{
	struct dram *d = dram_of(t);
	const struct dram_entry *e = entry_find(d, id);

	if (e != NULL)
		policy_priority(d->policy, slot_of(d, e), priority);
}

unsigned dram_below(const struct tier *t, const struct kvof_id *id)
{
	const struct dram_entry *e = entry_find(dram_of(t), id);

	return e != NULL ? e->below : 0;
}

void dram_below_set(struct tier *t, const struct kvof_id *id, unsigned bits, bool on)
{
	struct dram_entry *e = entry_find(dram_of(t), id);

	must(bits <= UINT8_MAX);
	if (e != NULL)
		e->below = (uint8_t)(on ? e->below | bits : e->below & ~bits);
}

/* --- lent memory ------------------------------------------------------------------------------ */

uint32_t dram_pin(struct tier *t, const struct kvof_id *id, uint64_t *bytes)
{
	struct dram *d = dram_of(t);
	struct dram_entry *e = entry_find(d, id);

	if (e == NULL)
		return DRAM_SLOT_NONE;
	entry_pin(d, e);
	*bytes = e->bytes;
	return slot_of(d, e);
}

void dram_unpin(struct tier *t, uint32_t slot)
{
	struct dram *d = dram_of(t);

	must(slot < d->piece_count);
	entry_unpin(d, &d->entry[slot]);
}

unsigned dram_iov(const struct tier *t, uint32_t slot, struct iovec *iov, unsigned max)
{
	const struct dram *d = dram_of(t);
	const struct dram_entry *e = &d->entry[slot];
	uint64_t left = e->bytes;
	uint32_t at = e->first, before = DRAM_NONE;
	unsigned n = 0;

	must(slot < d->piece_count && e->pins > 0);
	while (left > 0) {
		uint64_t step = bytes_min(left, d->piece_bytes);

		must(at < d->piece_count);
		if (n > 0 && at == before + 1) {
			if (n <= max)
				iov[n - 1].iov_len += step;
		} else {
			if (n < max)
				iov[n] = (struct iovec){d->slab + at * d->piece_bytes, step};
			n++;
		}
		left -= step;
		before = at;
		at = d->next[at];
	}
	return n;
}

uint32_t dram_piece_bytes(const struct tier *t)
{
	return (uint32_t)dram_of(t)->piece_bytes;
}

uint64_t dram_bytes(const struct tier *t)
{
	return dram_of(t)->piece_count * dram_of(t)->piece_bytes;
}

/* --- open and close --------------------------------------------------------------------------- */

static const struct tier_ops tier_dram_ops = {
	.name = "dram",
	.has = tier_dram_has,
	.start = tier_dram_start,
	.cancel = tier_dram_cancel,
	.late = tier_dram_late,
	.more = tier_dram_more,
	.speed = tier_dram_speed,
	.touch = tier_dram_touch,
};

static void tables_fill(struct dram *d)
{
	for (uint32_t i = 0; i < d->piece_count; i++) {
		d->next[i] = i + 1 < d->piece_count ? i + 1 : DRAM_NONE;
		list_push_back(&d->idle, &d->entry[i].link);
	}
	memset(d->bucket, 0xff, ((size_t)d->bucket_mask + 1) * sizeof(*d->bucket));
}

/* Says once, where it matters, that the machine has no huge pages to give. */
static void pages_tell(uint64_t bytes)
{
	static _Atomic bool told;
	char text[128] = "";
	FILE *f;

	if (bytes < DRAM_HUGE_BYTES || told)
		return;
	f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
	if (f != NULL && fgets(text, sizeof(text), f) == NULL)
		text[0] = '\0';
	if (f != NULL)
		fclose(f);
	if (f != NULL && strstr(text, "[never]") == NULL)
		return;
	told = true;
	log_info("the DRAM tier lies on small pages: this machine gives no huge ones "
		 "(/sys/kernel/mm/transparent_hugepage/enabled); copies are slower");
}

static int tables_take(struct dram *d, const struct dram_opts *opts)
{
	struct policy_opts policy = {.slots = d->piece_count, .capacity_units = d->piece_count,
				     .seed = 1};
	uint32_t buckets = 64;
	int rc = policy_open(opts->policy, &policy, &d->policy);

	if (rc != 0)
		return rc;
	while (buckets < d->piece_count)
		buckets *= 2;
	d->bucket_mask = buckets - 1;
	d->slab = loop_buffer_map(d->slab_bytes);
	d->next = calloc(d->piece_count, sizeof(*d->next));
	d->entry = calloc(d->piece_count, sizeof(*d->entry));
	d->bucket = calloc(buckets, sizeof(*d->bucket));
	if (d->slab == NULL || d->next == NULL || d->entry == NULL || d->bucket == NULL)
		return -ENOMEM;
	return 0;
}

int dram_open(struct loop *loop, const struct dram_opts *opts, struct tier **out)
{
	uint64_t bytes = opts->bytes;
	struct dram *d;
	int rc;

	if (bytes < DRAM_BYTES_MIN || bytes > DRAM_BYTES_MAX)
		return -EINVAL;
	d = calloc(1, sizeof(*d));
	if (d == NULL)
		return -ENOMEM;
	OBJ_INIT(d, DRAM_MAGIC);
	d->tier = (struct tier){.ops = &tier_dram_ops, .self = d, .cut_bytes = DRAM_CUT_BYTES};
	if (opts->cut_bytes != 0)
		tier_cut_set(&d->tier, opts->cut_bytes, opts->layer_count);
	d->loop = loop;
	d->events = opts->events;
	d->arg = opts->arg;
	d->piece_bytes = bytes >= 64 * MiB ? DRAM_PIECE_BYTES : 4 * KiB;
	d->piece_count = d->piece_free = (uint32_t)(bytes / d->piece_bytes);
	d->slab_bytes = d->piece_count * d->piece_bytes;
	list_init(&d->idle);
	list_init(&d->stays);
	list_init(&d->starved);
	*out = &d->tier;
	rc = tables_take(d, opts);
	if (rc != 0) {
		dram_close(out);
		return rc;
	}
	tables_fill(d);
	pages_tell(d->slab_bytes);
	if (opts->drives) {
		loop_buffer_register(loop, d->slab, d->slab_bytes);
		d->registered = true;
	}
	return 0;
}

void dram_close(struct tier **t)
{
	struct dram *d = dram_of(*t);

	*t = NULL;
	if (d->registered)
		loop_buffer_unregister(d->loop, d->slab, d->slab_bytes);
	if (d->slab != NULL)
		loop_buffer_unmap(d->slab, d->slab_bytes);
	if (d->policy != NULL)
		policy_close(&d->policy);
	free(d->next);
	free(d->entry);
	free(d->bucket);
	free(d);
}

void dram_stat(const struct tier *t, struct dram_stat *out)
{
	const struct dram *d = dram_of(t);

	*out = d->stat;
	out->used_bytes = (d->piece_count - (uint64_t)d->piece_free) * d->piece_bytes;
	out->pinned_bytes = d->pinned_pieces * d->piece_bytes;
}
