/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See behind.h. Items are the blocks; a lane is a list of items that wait for its tier, and its
 * writers.
 *
 * Invariants: an item is in the table and on `items` (in the order of the pushes) from push to
 * over; it has one pin of DRAM's, and is over when it is on no lane, no writer has it and no buffer
 * of it is busy. bytes and count are the sums over items. A lane that is sick has at most one
 * writer at work.
 *
 * What waits in a lane is in order of since_ns: that of a push at the end is the time, that of one
 * put in front of another is the other's. So whatever comes in front of a block has the since_ns of
 * something that was pushed before it, and after BEHIND_AGE_NS nothing does any more.
 */
#include "cache/behind.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BEHIND_MAGIC 0x6265686eu
#define BEHIND_BUCKETS 4096
#define BEHIND_NONE UINT32_MAX

struct behind_item {
	struct list_link link;             /* on items, or on idle */
	struct list_link lane[BEHIND_LANES];
	uint64_t since_ns[BEHIND_LANES];   /* of its place there */
	struct kvof_id id;
	uint64_t bytes, number;
	uint32_t slot;                     /* DRAM's */
	uint32_t chain;
	uint8_t writers;                   /* that have it, or lend it still */
	uint8_t flies;                     /* lanes whose tier is asked now */
};

struct behind_writer {
	struct tier_op op;
	struct behind_lane *lane;
	struct behind_item *item;          /* NULL: free */
	bool flying;                       /* else busy */
	struct tier_part part[BEHIND_PARTS];
	struct iovec *iov;
};

struct behind_lane {
	struct behind *behind;
	unsigned index;
	enum kvof_tier number;
	struct tier *tier;                 /* NULL: no such lane */
	struct list_link wait;
	/* of the last push: what it was, and the block it was put in front of, if any */
	struct kvof_id last, front;
	bool has_last, has_front;
	unsigned flying, lates;
	bool sick;
	uint64_t retry_ns;
	struct behind_writer writer[BEHIND_WRITERS];
};

struct behind {
	uint32_t magic;
	struct loop *loop;
	struct behind_opts opts;
	unsigned pieces_max;
	struct behind_lane lane[BEHIND_LANES];
	struct list_link items, idle, flushes;
	struct behind_item *item;
	struct iovec *iov;
	uint32_t bucket[BEHIND_BUCKETS];
	uint64_t bytes, count, number;
	struct behind_stat stat;
	bool closing, told, running;
	struct loop_timer grace;
	struct loop_op soon, run;
	void (*closed)(void *arg);
};

static uint32_t *bucket_of(struct behind *b, const struct kvof_id *id)
{
	uint32_t bits;

	memcpy(&bits, id->byte, sizeof(bits));
	return &b->bucket[bits % BEHIND_BUCKETS];
}

static struct behind_item *item_find(struct behind *b, const struct kvof_id *id)
{
	uint32_t at = *bucket_of(b, id);

	while (at != BEHIND_NONE && memcmp(&b->item[at].id, id, sizeof(*id)) != 0)
		at = b->item[at].chain;
	return at != BEHIND_NONE ? &b->item[at] : NULL;
}

/* --- flush and close -------------------------------------------------------------------------- */

static void flush_end(struct behind_flush *f, int res)
{
	list_remove(&f->link);
	loop_timer_cancel(f->behind->loop, &f->timer);
	f->done(f, res);
}

static void flush_late(struct loop_timer *timer)
{
	flush_end(container_of(timer, struct behind_flush, timer), -ETIMEDOUT);
}

/* Those that waited only for what is over now. */
static void flush_check(struct behind *b)
{
	uint64_t oldest = UINT64_MAX;

	if (!list_empty(&b->items))
		oldest = container_of(b->items.next, struct behind_item, link)->number;
	LIST_FOR_EACH_SAFE(link, &b->flushes) {
		struct behind_flush *f = container_of(link, struct behind_flush, link);

		if (f->number < oldest)
			flush_end(f, 0);
	}
}

static void stop_check(struct behind *b)
{
	if (!b->closing || b->told || b->running || b->count > 0)
		return;
	b->told = true;
	loop_timer_cancel(b->loop, &b->grace);
	LIST_FOR_EACH_SAFE(link, &b->flushes)
		flush_end(container_of(link, struct behind_flush, link), 0);
	loop_soon(b->loop, &b->soon, 0);
}

static void stopped(struct loop_op *soon, int res)
{
	struct behind *b = container_of(soon, struct behind, soon);

	b->closed(b->opts.arg);
}

/* --- items ------------------------------------------------------------------------------------ */

static bool item_waits(const struct behind_item *item)
{
	for (unsigned i = 0; i < BEHIND_LANES; i++)
		if (list_linked(&item->lane[i]))
			return true;
	return false;
}

/* The item is over if nothing holds it any more. */
static void item_check(struct behind *b, struct behind_item *item)
{
	uint32_t *at = bucket_of(b, &item->id), index = (uint32_t)(item - b->item);

	if (item_waits(item) || item->writers > 0)
		return;
	while (*at != index) {
		must(*at != BEHIND_NONE);
		at = &b->item[*at].chain;
	}
	*at = item->chain;
	list_remove(&item->link);
	list_push_back(&b->idle, &item->link);
	must(b->bytes >= item->bytes && b->count > 0);
	b->bytes -= item->bytes;
	b->count--;
	dram_unpin(b->opts.dram, item->slot);
	flush_check(b);
	stop_check(b);
}

static struct behind_item *item_new(struct behind *b, const struct kvof_id *id)
{
	uint32_t *bucket = bucket_of(b, id);
	struct behind_item *item;
	struct iovec none;
	struct list_link *link;
	uint64_t bytes;
	uint32_t slot = dram_pin(b->opts.dram, id, &bytes);

	if (slot == DRAM_SLOT_NONE)
		return NULL;
	if (list_empty(&b->idle) || b->bytes + bytes > b->opts.bytes ||
	    dram_iov(b->opts.dram, slot, &none, 0) > b->pieces_max) {
		dram_unpin(b->opts.dram, slot);
		return NULL;
	}
	link = list_pop_front(&b->idle);
	item = container_of(link, struct behind_item, link);
	*item = (struct behind_item){.id = *id, .bytes = bytes, .number = ++b->number,
				     .slot = slot, .chain = *bucket};
	*bucket = (uint32_t)(item - b->item);
	list_push_back(&b->items, &item->link);
	b->bytes += bytes;
	b->count++;
	return item;
}

/* --- lanes ------------------------------------------------------------------------------------ */

static void lane_run(struct behind_lane *lane);

/* What waits for this lane is not written: it would only wait for a tier that hangs. */
static void lane_drop(struct behind_lane *lane)
{
	struct behind *b = lane->behind;
	struct list_link *link;

	while ((link = list_pop_front(&lane->wait)) != NULL) {
		struct behind_item *item = container_of(link - lane->index, struct behind_item,
							lane[0]);

		b->stat.dropped[lane->number]++;
		b->opts.events->written(b->opts.arg, &item->id, lane->number, KVOF_CANCELED);
		item_check(b, item);
	}
}

static void lane_answer(struct behind_lane *lane, enum kvof_reason reason)
{
	struct behind *b = lane->behind;

	if (reason == KVOF_OK || reason == KVOF_EXISTS)
		b->stat.written[lane->number]++;
	else
		b->stat.dropped[lane->number]++;
	if (reason == KVOF_CANCELED)
		return;
	lane->lates = reason == KVOF_LATE ? lane->lates + 1 : 0;
	lane->sick = lane->lates >= BEHIND_LATE_MAX;
	if (lane->sick) {
		lane->retry_ns = loop_now_ns(b->loop) + BEHIND_RETRY_NS;
		lane_drop(lane);
	}
}

static void writer_free(struct behind_writer *w)
{
	struct behind_item *item = w->item;
	struct behind *b = w->lane->behind;
	struct kvof_id id = item->id;
	bool last;

	must(item->writers > 0);
	last = --item->writers == 0;
	w->item = NULL;
	item_check(b, item);
	if (last)
		b->opts.events->landed(b->opts.arg, &id);
}

static void write_done(struct tier_op *op)
{
	struct behind_writer *w = container_of(op, struct behind_writer, op);
	struct behind_lane *lane = w->lane;
	struct behind *b = lane->behind;

	OBJ_CHECK(b, BEHIND_MAGIC);
	loop_must_own(b->loop);
	must(w->flying && lane->flying > 0);
	w->flying = false;
	lane->flying--;
	w->item->flies &= (uint8_t)~(1u << lane->index);
	b->opts.events->written(b->opts.arg, &w->item->id, lane->number, op->reason);
	lane_answer(lane, op->reason);
	if (!op->busy)
		writer_free(w);
	lane_run(lane);
}

static void write_released(struct tier_op *op)
{
	struct behind_writer *w = container_of(op, struct behind_writer, op);
	struct behind_lane *lane = w->lane;

	must(!w->flying && w->item != NULL);
	writer_free(w);
	lane_run(lane);
}

static void write_start(struct behind_writer *w, struct behind_item *item)
{
	struct behind_lane *lane = w->lane;
	struct behind *b = lane->behind;
	struct iovec *iov = w->iov;
	unsigned n = dram_iov(b->opts.dram, item->slot, iov, b->pieces_max);

	must(n <= b->pieces_max);
	w->item = item;
	w->flying = true;
	item->writers++;
	item->flies |= (uint8_t)(1u << lane->index);
	lane->flying++;
	w->op = (struct tier_op){
		.kind = KVOF_SAVE,
		.id = item->id,
		.iov = iov,
		.iov_count = n,
		.bytes = item->bytes,
		.deadline_ns = loop_now_ns(b->loop) + b->opts.deadline_ns,
		.part = w->part,
		.part_slots = (unsigned)bytes_min(BEHIND_PARTS,
			tier_slots(KVOF_SAVE, item->bytes, lane->tier->cut_bytes)),
		.done = write_done,
		.released = write_released,
	};
	lane->tier->ops->start(lane->tier, &w->op);
}

static struct behind_writer *writer_find(struct behind_lane *lane)
{
	for (unsigned i = 0; i < BEHIND_WRITERS; i++)
		if (lane->writer[i].item == NULL)
			return &lane->writer[i];
	return NULL;
}

/* Gives what waits to writers that are free. */
static void lane_run(struct behind_lane *lane)
{
	struct behind *b = lane->behind;
	struct behind_writer *w;

	while (!list_empty(&lane->wait) && (w = writer_find(lane)) != NULL) {
		struct list_link *link;

		if (lane->sick && (lane->flying > 0 || loop_now_ns(b->loop) < lane->retry_ns)) {
			lane_drop(lane);
			return;
		}
#ifdef KVOF_PLANT_BEHIND_HEAD_FIRST
		link = lane->wait.prev;
		list_remove(link);
#else
		link = list_pop_front(&lane->wait);
#endif
		write_start(w, container_of(link - lane->index, struct behind_item, lane[0]));
	}
}

/* --- the queue -------------------------------------------------------------------------------- */

/* The nearest block before this one in its sequence that waits in the lane, or NULL. */
static struct behind_item *waiting_before(struct behind_lane *lane, const struct kvof_id *id)
{
	struct behind *b = lane->behind;
	struct kvof_id at = *id, up;

	for (unsigned i = 0; i < BEHIND_PARENTS_MAX; i++) {
		struct behind_item *item;

		if (!b->opts.events->parent(b->opts.arg, &at, &up))
			return NULL;
		item = item_find(b, &up);
		if (item != NULL && list_linked(&item->lane[lane->index]))
			return item;
		at = up;
	}
	return NULL;
}

/* What it goes in front of. The last push was often the block behind it: then it is that one's. */
static struct behind_item *front_of(struct behind_lane *lane, const struct kvof_id *id)
{
	struct behind *b = lane->behind;
	struct behind_item *front;
	struct kvof_id up;

	if (b->opts.events->parent == NULL || list_empty(&lane->wait))
		return NULL;
	if (!lane->has_last || !b->opts.events->parent(b->opts.arg, &lane->last, &up) ||
	    !identity_same(&up, id))
		return waiting_before(lane, id);
	if (!lane->has_front)
		return NULL;
	front = item_find(b, &lane->front);
	return front != NULL && list_linked(&front->lane[lane->index]) ? front :
	       waiting_before(lane, id);
}

static void lane_put(struct behind_lane *lane, struct behind_item *item)
{
	uint64_t now = loop_now_ns(lane->behind->loop);
	struct behind_item *front = front_of(lane, &item->id);

#ifdef KVOF_PLANT_BEHIND_BATCHES_APART
	front = NULL;
#endif
	lane->last = item->id;
	lane->has_last = true;
	lane->has_front = front != NULL;
	if (front != NULL)
		lane->front = front->id;
#ifndef KVOF_PLANT_BEHIND_STARVES
	if (front != NULL && now - front->since_ns[lane->index] >= BEHIND_AGE_NS)
		front = NULL;
#endif
	item->since_ns[lane->index] = front != NULL ? front->since_ns[lane->index] : now;
	list_insert_before(front != NULL ? &front->lane[lane->index] : &lane->wait,
			   &item->lane[lane->index]);
}

static void run_soon(struct loop_op *soon, int res);

bool behind_push(struct behind *b, const struct kvof_id *id, unsigned tiers, bool spare)
{
	struct behind_item *item = item_find(b, id);
	bool any = false;

	OBJ_CHECK(b, BEHIND_MAGIC);
	loop_must_own(b->loop);
	for (unsigned i = 0; i < BEHIND_LANES; i++)
		any = any || (b->lane[i].tier != NULL && (tiers & 1u << b->lane[i].number) != 0);
	if (!any)
		return true;
	if (b->closing || (spare && item == NULL && b->bytes > b->opts.bytes / 2))
		return false;
	if (item == NULL)
		item = item_new(b, id);
	if (item == NULL) {
		b->stat.full += !spare;
		return false;
	}
	for (unsigned i = 0; i < BEHIND_LANES; i++) {
		struct behind_lane *lane = &b->lane[i];

		if (lane->tier == NULL || (tiers & 1u << lane->number) == 0 ||
		    (item->flies & 1u << i) != 0 || list_linked(&item->lane[i]))
			continue;
		lane_put(lane, item);
	}
	if (!b->running) {
		b->running = true;
		b->run = (struct loop_op){.done = run_soon};
		loop_soon(b->loop, &b->run, 0);
	}
	return true;
}

static void run_soon(struct loop_op *soon, int res)
{
	struct behind *b = container_of(soon, struct behind, run);

	b->running = false;
	for (unsigned i = 0; i < BEHIND_LANES; i++)
		lane_run(&b->lane[i]);
	stop_check(b);
}

bool behind_flies(const struct behind *b, const struct kvof_id *id)
{
	struct behind *self = (struct behind *)(uintptr_t)b;
	const struct behind_item *item = item_find(self, id);

	return item != NULL && item->writers > 0;
}

void behind_forget(struct behind *b, const struct kvof_id *id)
{
	struct behind_item *item = item_find(b, id);

	loop_must_own(b->loop);
	if (item == NULL)
		return;
	for (unsigned i = 0; i < BEHIND_LANES; i++)
		if (list_linked(&item->lane[i]))
			list_remove(&item->lane[i]);
	item_check(b, item);
}

static void flush_now(struct loop_timer *timer)
{
	flush_end(container_of(timer, struct behind_flush, timer), 0);
}

void behind_flush(struct behind *b, struct behind_flush *f, uint64_t deadline_ns)
{
	OBJ_CHECK(b, BEHIND_MAGIC);
	loop_must_own(b->loop);
	f->behind = b;
	f->number = b->number;
	f->link = (struct list_link){0};
	list_push_back(&b->flushes, &f->link);
	if (list_empty(&b->items)) {
		loop_timer_init(&f->timer, flush_now);
		loop_timer_set(b->loop, &f->timer, loop_now_ns(b->loop));
		return;
	}
	loop_timer_init(&f->timer, flush_late);
	if (deadline_ns != 0)
		loop_timer_set(b->loop, &f->timer, deadline_ns);
}

/* --- open and close --------------------------------------------------------------------------- */

/* The grace is over: drops what waits, withdraws what flies. */
static void grace_over(struct loop_timer *timer)
{
	struct behind *b = container_of(timer, struct behind, grace);

	for (unsigned i = 0; i < BEHIND_LANES; i++) {
		struct behind_lane *lane = &b->lane[i];

		lane_drop(lane);
		for (unsigned k = 0; k < BEHIND_WRITERS && lane->tier != NULL; k++)
			if (lane->writer[k].flying)
				lane->tier->ops->cancel(lane->tier, &lane->writer[k].op);
	}
	stop_check(b);
}

void behind_stop(struct behind *b, uint64_t grace_ns, void (*closed)(void *arg))
{
	OBJ_CHECK(b, BEHIND_MAGIC);
	must(!b->closing);
	b->closing = true;
	b->closed = closed;
	loop_timer_set(b->loop, &b->grace, loop_now_ns(b->loop) + grace_ns);
	stop_check(b);
}

/* Hands a writer its share of the iovs: of the block, then of each part. */
static struct iovec *writer_init(struct behind_writer *w, struct iovec *iov, unsigned whole,
				 unsigned part)
{
	w->iov = iov;
	iov += whole;
	for (unsigned i = 0; i < BEHIND_PARTS; i++, iov += part)
		w->part[i].iov = iov;
	return iov;
}

static int tables_take(struct behind *b)
{
	uint64_t piece = dram_piece_bytes(b->opts.dram);
	uint64_t whole = bytes_min(dram_bytes(b->opts.dram) / piece, BEHIND_PIECES_MAX);
	uint64_t part = bytes_min(b->opts.cut_bytes / piece + 3, whole + 1), total = 0;
	struct iovec *iov;

	b->pieces_max = (unsigned)whole;
	for (unsigned i = 0; i < BEHIND_LANES; i++)
		if (b->lane[i].tier != NULL)
			total += BEHIND_WRITERS * (whole + BEHIND_PARTS * part);
	b->item = calloc(BEHIND_BLOCKS_MAX, sizeof(*b->item));
	b->iov = iov = calloc(total, sizeof(*iov));
	if (b->item == NULL || iov == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < BEHIND_LANES; i++)
		for (unsigned k = 0; k < BEHIND_WRITERS && b->lane[i].tier != NULL; k++)
			iov = writer_init(&b->lane[i].writer[k], iov, (unsigned)whole,
					  (unsigned)part);
	for (unsigned i = 0; i < BEHIND_BLOCKS_MAX; i++)
		list_push_back(&b->idle, &b->item[i].link);
	return 0;
}

int behind_open(struct loop *loop, const struct behind_opts *opts, struct behind **out)
{
	struct behind *b = calloc(1, sizeof(*b));

	if (b == NULL)
		return -ENOMEM;
	OBJ_INIT(b, BEHIND_MAGIC);
	b->loop = loop;
	b->opts = *opts;
	b->soon.done = stopped;
	memset(b->bucket, 0xff, sizeof(b->bucket));
	list_init(&b->items);
	list_init(&b->idle);
	list_init(&b->flushes);
	loop_timer_init(&b->grace, grace_over);
	for (unsigned i = 0; i < BEHIND_LANES; i++) {
		struct behind_lane *lane = &b->lane[i];

		lane->behind = b;
		lane->index = i;
		lane->number = i == 0 ? KVOF_TIER_FLASH : KVOF_TIER_REMOTE;
		lane->tier = i == 0 ? opts->flash : opts->remote;
		list_init(&lane->wait);
		for (unsigned k = 0; k < BEHIND_WRITERS; k++)
			lane->writer[k].lane = lane;
	}
	*out = b;
	if (tables_take(b) != 0) {
		behind_free(out);
		return -ENOMEM;
	}
	return 0;
}

void behind_free(struct behind **bp)
{
	struct behind *b;

	OBJ_TAKE(b, bp, BEHIND_MAGIC);
	must(b->count == 0);
	b->magic = 0;
	free(b->item);
	free(b->iov);
	free(b);
}

void behind_stat(const struct behind *b, struct behind_stat *out)
{
	OBJ_CHECK(b, BEHIND_MAGIC);
	*out = b->stat;
	out->bytes = b->bytes;
	out->blocks = b->count;
}
