/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The DRAM tier: whole blocks in pieces of one slab, so that no size fragments it and the cap is
 * exact: slab bytes are all that values ever take.
 *
 * Invariants: free pieces + pieces of entries = all pieces; the entries on `order` are exactly the
 * ones in the table; the front of `order` was used longest ago. An entry under lease is kept.
 * A block is immutable: a second save of an identity changes nothing. A load copies one part a turn
 * and pins its entry until it is over: evicted by nobody, and if it is deleted meanwhile its pieces
 * are free when the last pin is gone.
 *
 * The owner touches a prefix from its tail to its head, so that tails are evicted first.
 * All memory is reserved at open. Owned by one loop.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/list.h"
#include "cache/tier.h"

#define DRAM_MAGIC 0x6472616du
#define DRAM_NONE UINT32_MAX
#define DRAM_CUT_BYTES ((uint32_t)(4 * MiB) - FRAME_BYTES)  /* until tier_cut_set() */
#define DRAM_LATENCY_NS 10000              /* two turns of the loop */

struct dram_entry {
	struct list_link link;             /* on order, or on idle */
	struct kvof_id id;
	uint64_t bytes, lease_until_ns;
	uint32_t first;                    /* piece */
	uint32_t chain;                    /* next entry of the bucket */
	uint32_t pins;
	bool gone;                         /* deleted, but pinned */
};

struct dram {
	struct tier tier;
	uint32_t magic;
	struct loop *loop;
	uint8_t *slab;
	uint64_t piece_bytes;
	uint32_t piece_count, piece_free, free_first;
	uint32_t *next;                    /* of a piece: in its entry, or in the free list */
	struct dram_entry *entry;          /* as many as pieces */
	uint32_t *bucket, bucket_mask;
	struct list_link order, idle;
	uint64_t evicted, refused, blocks;
	uint64_t bytes_per_s, loads, queued_bytes;
};

static struct dram *dram_of(const struct tier *t)
{
	struct dram *d = t->self;

	OBJ_CHECK(d, DRAM_MAGIC);
	return d;
}

static uint32_t *bucket_of(struct dram *d, const struct kvof_id *id)
{
	uint32_t bits;

	memcpy(&bits, id->byte, sizeof(bits));
	return &d->bucket[bits & d->bucket_mask];
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

/* Gives the pieces back; nobody finds or reads the entry any more. */
static void entry_free(struct dram *d, struct dram_entry *e)
{
	uint32_t last = e->first, count = 1;

	must(e->pins == 0 && !list_linked(&e->link));
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

static void entry_drop(struct dram *d, struct dram_entry *e)
{
	uint32_t *at = bucket_of(d, &e->id), index = (uint32_t)(e - d->entry);

	while (*at != index) {
		must(*at != DRAM_NONE);
		at = &d->entry[*at].chain;
	}
	*at = e->chain;
	d->blocks--;
	list_remove(&e->link);
	e->gone = e->pins > 0;
	if (!e->gone)
		entry_free(d, e);
}

static void entry_unpin(struct dram *d, struct dram_entry *e)
{
	must(e->pins > 0);
	if (--e->pins == 0 && e->gone)
		entry_free(d, e);
}

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

/* Frees pieces by dropping what was used longest ago. False, and nothing dropped, when leases hold
 * too much. */
static bool room_make(struct dram *d, uint32_t pieces)
{
	uint64_t found = d->piece_free, now = loop_now_ns(d->loop);

	if (pieces > d->piece_count)
		return false;
	LIST_FOR_EACH(link, &d->order) {
		struct dram_entry *e = container_of(link, struct dram_entry, link);

		if (found >= pieces)
			break;
		if (!entry_stays(e, now))
			found += pieces_for(d, e->bytes);
	}
	if (found < pieces)
		return false;
	LIST_FOR_EACH_SAFE(link, &d->order) {
		struct dram_entry *e = container_of(link, struct dram_entry, link);

		if (d->piece_free >= pieces)
			break;
		if (!entry_stays(e, now)) {
			entry_drop(d, e);
			d->evicted++;
		}
	}
	must(d->piece_free >= pieces);
	return true;
}

/* Links an entry with its pieces; the bytes are the caller's to fill. */
static struct dram_entry *entry_new(struct dram *d, const struct kvof_id *id, uint64_t bytes)
{
	uint32_t pieces = pieces_for(d, bytes), *bucket = bucket_of(d, id), last;
	struct list_link *link = list_pop_front(&d->idle);
	struct dram_entry *e;

	must(link != NULL && d->piece_free >= pieces);
	e = container_of(link, struct dram_entry, link);
	e->id = *id;
	e->bytes = bytes;
	e->lease_until_ns = 0;
	e->pins = 0;
	e->gone = false;
	e->first = last = d->free_first;
	for (uint32_t i = 1; i < pieces; i++)
		last = d->next[last];
	d->free_first = d->next[last];
	d->next[last] = DRAM_NONE;
	d->piece_free -= pieces;
	d->blocks++;
	e->chain = *bucket;
	*bucket = (uint32_t)(e - d->entry);
	list_push_back(&d->order, &e->link);
	return e;
}

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

/* Fills an entry with the block that op holds. */
static void entry_fill(struct dram *d, const struct dram_entry *e, const struct tier_op *op)
{
	struct cursor c = {op->iov, op->iov_count, 0, 0};
	uint64_t left = e->bytes;
	uint32_t at = e->first;

	while (left > 0) {
		uint64_t step = bytes_min(left, d->piece_bytes);

		must(at < d->piece_count);
		piece_move(&c, d->slab + at * d->piece_bytes, step, false);
		left -= step;
		at = d->next[at];
	}
}

/* The next bytes of a load, from where it stands. */
static void entry_read(struct dram *d, struct tier_op *op, uint64_t bytes)
{
	struct tier_run *run = &op->run;
	struct cursor c = {op->iov, op->iov_count, 0, run->moved_bytes};

	while (bytes > 0) {
		uint64_t in = run->moved_bytes % d->piece_bytes;
		uint64_t step = bytes_min(bytes, d->piece_bytes - in);

		must(run->piece < d->piece_count);
		piece_move(&c, d->slab + run->piece * d->piece_bytes + in, step, true);
		bytes -= step;
		run->moved_bytes += step;
		if (in + step == d->piece_bytes)
			run->piece = d->next[run->piece];
	}
}

static bool tier_dram_has(const struct tier *t, const struct kvof_id *id)
{
	return entry_find(dram_of(t), id) != NULL;
}

static bool tier_dram_keep(struct tier *t, const struct tier_op *op)
{
	struct dram *d = dram_of(t);

	if (entry_find(d, &op->id) != NULL)
		return true;
	if (!room_make(d, pieces_for(d, op->value_bytes))) {
		d->refused++;
		return false;
	}
	entry_fill(d, entry_new(d, &op->id, op->value_bytes), op);
	return true;
}

static void tier_dram_touch(struct tier *t, const struct kvof_id *id, uint64_t lease_until_ns)
{
	struct dram *d = dram_of(t);
	struct dram_entry *e = entry_find(d, id);

	if (e == NULL)
		return;
	list_remove(&e->link);
	list_push_back(&d->order, &e->link);
	if (lease_until_ns > e->lease_until_ns)
		e->lease_until_ns = lease_until_ns;
}

void dram_unlease(struct tier *t, const struct kvof_id *id)
{
	struct dram_entry *e = entry_find(dram_of(t), id);

	if (e != NULL)
		e->lease_until_ns = 0;
}

/* --- a load, one part a turn ------------------------------------------------------------------ */

static uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void dram_turn(struct loop_op *soon, int res);

static void turn_soon(struct dram *d, struct tier_op *op)
{
	must(op->run.flying == 0);
	op->run.flying = 1;
	op->soon = (struct loop_op){.done = dram_turn};
	loop_soon(d->loop, &op->soon, 0);
}

static void dram_over(struct dram *d, struct tier_op *op, enum kvof_reason reason)
{
	struct tier_run *run = &op->run;

	if (op->kind == KVOF_LOAD && run->part_count > 0) {
		entry_unpin(d, &d->entry[run->entry]);
		d->queued_bytes -= run->block_bytes;
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

	entry_read(d, op, bytes);
	took = clock_ns() - begin + 1;
	run->next++;
	if (bytes >= d->piece_bytes) {
		uint64_t sample = (uint64_t)bytes * NS_PER_S / took;

		d->bytes_per_s = d->bytes_per_s == 0 ? sample : (3 * d->bytes_per_s + sample) / 4;
	}
}

static bool may_copy(const struct tier_op *op)
{
	return op->run.next < op->run.part_count && (op->allow == 0 || op->run.next < op->allow);
}

static void dram_turn(struct loop_op *soon, int res)
{
	struct tier_op *op = container_of(soon, struct tier_op, soon);
	struct dram *d = dram_of(op->tier);
	struct tier_run *run = &op->run;

	run->flying = 0;
	if (run->worst == KVOF_OK && !run->canceled && may_copy(op)) {
		part_copy(d, op);
		run->answering = true;
		if (op->landed != NULL)
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
	struct tier_run *run = &op->run;

	if (e == NULL)
		return KVOF_ABSENT;
	op->value_bytes = run->block_bytes = e->bytes;
	if (e->bytes > op->bytes)
		return KVOF_SHORT;
	e->pins++;
	d->loads++;
	d->queued_bytes += e->bytes;
	run->cut_bytes = op->landed_cut_bytes = tier_cut(&d->tier, e->bytes);
	run->part_count = frame_part_count(e->bytes, run->cut_bytes);
	run->entry = (uint32_t)(e - d->entry);
	run->piece = e->first;
	return KVOF_OK;
}

static void tier_dram_cancel(struct tier *t, struct tier_op *op)
{
	struct tier_run *run = &op->run;

	if (run->stage == TIER_OVER || run->part_count == 0)
		return;                    /* the answer is on its way already */
	run->canceled = true;
	if (run->flying == 0 && !run->answering)
		turn_soon(dram_of(t), op);
}

static void tier_dram_late(struct tier *t, struct tier_op *op)
{
	struct tier_run *run = &op->run;

	if (run->stage == TIER_OVER || run->part_count == 0)
		return;
	run->worst = KVOF_LATE;
	if (run->flying == 0 && !run->answering)
		turn_soon(dram_of(t), op);
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

static enum kvof_reason dram_save(struct dram *d, struct tier_op *op)
{
	op->value_bytes = op->bytes;
	if (entry_find(d, &op->id) != NULL)
		return KVOF_EXISTS;
	return tier_dram_keep(&d->tier, op) ? KVOF_OK : KVOF_FULL;
}

static enum kvof_reason dram_delete(struct dram *d, struct tier_op *op)
{
	struct dram_entry *e = entry_find(d, &op->id);

	if (e == NULL)
		return KVOF_ABSENT;
	entry_drop(d, e);
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
	turn_soon(d, op);
}

static const struct tier_ops tier_dram_ops = {
	.name = "dram",
	.has = tier_dram_has,
	.start = tier_dram_start,
	.cancel = tier_dram_cancel,
	.late = tier_dram_late,
	.more = tier_dram_more,
	.speed = tier_dram_speed,
	.keep = tier_dram_keep,
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

int dram_open(struct loop *loop, uint64_t bytes, struct tier **out)
{
	uint64_t piece_bytes = bytes >= 64 * MiB ? 64 * KiB : 4 * KiB;
	uint32_t buckets = 64;
	struct dram *d;

	if (bytes < DRAM_BYTES_MIN || bytes > DRAM_BYTES_MAX)
		return -EINVAL;
	d = calloc(1, sizeof(*d));
	if (d == NULL)
		return -ENOMEM;
	OBJ_INIT(d, DRAM_MAGIC);
	d->tier = (struct tier){.ops = &tier_dram_ops, .self = d, .cut_bytes = DRAM_CUT_BYTES};
	d->loop = loop;
	d->piece_bytes = piece_bytes;
	d->piece_count = d->piece_free = (uint32_t)(bytes / piece_bytes);
	while (buckets < d->piece_count)
		buckets *= 2;
	d->bucket_mask = buckets - 1;
	list_init(&d->order);
	list_init(&d->idle);
	d->slab = mmap(NULL, d->piece_count * piece_bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	d->next = calloc(d->piece_count, sizeof(*d->next));
	d->entry = calloc(d->piece_count, sizeof(*d->entry));
	d->bucket = calloc(buckets, sizeof(*d->bucket));
	*out = &d->tier;
	if (d->slab == MAP_FAILED || d->next == NULL || d->entry == NULL || d->bucket == NULL) {
		dram_close(out);
		return -ENOMEM;
	}
	madvise(d->slab, d->piece_count * piece_bytes, MADV_HUGEPAGE);
	tables_fill(d);
	return 0;
}

void dram_close(struct tier **t)
{
	struct dram *d = dram_of(*t);

	*t = NULL;
	if (d->slab != MAP_FAILED)
		munmap(d->slab, d->piece_count * d->piece_bytes);
	free(d->next);
	free(d->entry);
	free(d->bucket);
	free(d);
}

void dram_stat(const struct tier *t, struct dram_stat *out)
{
	const struct dram *d = dram_of(t);

	*out = (struct dram_stat){
		.used_bytes = (d->piece_count - (uint64_t)d->piece_free) * d->piece_bytes,
		.blocks = d->blocks,
		.evicted = d->evicted,
		.refused = d->refused,
	};
}
