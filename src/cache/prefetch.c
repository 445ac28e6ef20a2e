/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetch. Each of a few slots loads one block into a buffer of its own, which DRAM then copies. A
 * slot's buffer grows to the length that the tier tells (KVOF_SHORT), within the slot's share of
 * bytes_max; larger blocks are left. This is the one place where the loop allocates while it
 * serves: a block's length is not known before, it happens once a slot and length, and nobody waits
 * for it.
 *
 * Hints are taken in order of the time by which they are wanted. What is in DRAM already, or came
 * there meanwhile, is skipped.
 *
 * Owned by one loop.
 */
#include "cache/prefetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PREFETCH_MAGIC 0x70726566u

struct pslot {
	struct tier_op op;
	struct prefetch *prefetch;
	struct hint *hint;                 /* NULL: idle, or canceled */
	unsigned tier;
	uint8_t *buffer;
	uint64_t room_bytes;
	struct iovec iov;
	struct tier_part part[TIER_PARTS_MAX];
	struct iovec part_iov[TIER_PARTS_MAX][2];
	bool flying, copying, canceled;
};

struct prefetch {
	uint32_t magic;
	struct prefetch_opts opts;
	struct list_link hints;
	struct pslot slot[PREFETCH_FLYING_MAX];
	struct loop_op soon;
	bool soon_pending, stopping;
	uint64_t block_bytes;              /* of the last block whose length was told */
};

int hint_make(const struct kvof_id *ids, uint32_t n, uint64_t by_ns, struct hint **out)
{
	struct hint *h;

	if (ids == NULL || n == 0 || n > KVOF_RESTORE_BLOCKS_MAX)
		return -EINVAL;
	h = malloc(sizeof(*h) + n * sizeof(*ids));
	if (h == NULL)
		return -EBUSY;
	*h = (struct hint){.count = n, .by_ns = by_ns};
	memcpy(h->ids, ids, n * sizeof(*ids));
	*out = h;
	return 0;
}

void hint_free(struct hint **h)
{
	free(*h);
	*h = NULL;
}

static void prefetch_turn(struct loop_op *soon, int res)
{
	struct prefetch *p = container_of(soon, struct prefetch, soon);

	p->soon_pending = false;
	prefetch_run(p);
	restore_soon(p->opts.restore);     /* a close may wait for this one */
}

static void prefetch_soon(struct prefetch *p)
{
	if (p->soon_pending)
		return;
	p->soon_pending = true;
	p->soon = (struct loop_op){.done = prefetch_turn};
	loop_soon(p->opts.loop, &p->soon, 0);
}

/* Over when nothing of it is left to start or under way. */
static void hint_check(struct hint *h)
{
	if (h->next < h->count || h->flying > 0)
		return;
	list_remove(&h->link);
	h->over(h);
}

static struct tier *tier_at(const struct prefetch *p, unsigned number)
{
	return p->opts.ops->tier(p->opts.arg, number);
}

/* --- one block -------------------------------------------------------------------------------- */

static void slot_end(struct pslot *s)
{
	struct hint *h = s->hint;

	s->flying = s->copying = false;
	s->hint = NULL;
	must(h->flying > 0);
	h->flying--;
	hint_check(h);
	prefetch_soon(s->prefetch);
}

static void slot_done(struct tier_op *op);
static void slot_released(struct tier_op *op);

static void slot_start(struct pslot *s, const struct kvof_id *id)
{
	struct prefetch *p = s->prefetch;
	uint64_t end_ns = loop_now_ns(p->opts.loop) + p->opts.deadline_ns;

	s->iov = (struct iovec){s->buffer, s->room_bytes};
	s->op = (struct tier_op){
		.kind = KVOF_LOAD,
		.id = *id,
		.iov = &s->iov,
		.iov_count = s->room_bytes > 0 ? 1 : 0,
		.bytes = s->room_bytes,
		.begin_ns = loop_now_ns(p->opts.loop),
		.deadline_ns = s->hint->by_ns != 0 ? bytes_min(s->hint->by_ns, end_ns) : end_ns,
		.part = s->part,
		.part_slots = TIER_PARTS_MAX,
		.done = slot_done,
		.released = slot_released,
	};
	for (unsigned i = 0; i < TIER_PARTS_MAX; i++)
		s->part[i].iov = s->part_iov[i];
	tier_at(p, s->tier)->ops->start(tier_at(p, s->tier), &s->op);
}

/* Room for a block of so many bytes. */
static bool slot_grow(struct pslot *s, uint64_t bytes)
{
	uint8_t *buffer;

	if (bytes <= s->room_bytes)
		return true;
	if (bytes > s->prefetch->opts.bytes_max / PREFETCH_FLYING_MAX)
		return false;
	buffer = malloc(bytes);
	if (buffer == NULL)
		return false;
	free(s->buffer);
	s->buffer = buffer;
	s->room_bytes = bytes;
	return true;
}

static unsigned tier_below(const struct prefetch *p, unsigned number)
{
	do
		number = p->opts.ops->tier_next(p->opts.arg, number);
	while (number == KVOF_TIER_DRAM);
	return number;
}

/* The next tier may have it whole. Nothing is asked twice past a time that was too short. */
static bool goes_on(const struct pslot *s, enum kvof_reason reason)
{
#ifdef KVOF_PLANT_HINT_ENDS_AT_DAMAGE
	return reason == KVOF_ABSENT && !s->canceled;
#endif
	return !s->canceled && reason != KVOF_LATE && reason != KVOF_CANCELED &&
	       reason != KVOF_SHORT;
}

static void slot_done(struct tier_op *op)
{
	struct pslot *s = container_of(op, struct pslot, op);
	struct prefetch *p = s->prefetch;
	enum kvof_reason reason = op->reason;
	struct kvof_id id = op->id;

	loop_must_own(p->opts.loop);
	if (s->copying) {
		slot_end(s);
		return;
	}
	if (op->busy)                      /* released() ends it */
		return;
	if (reason == KVOF_OK && !s->canceled) {
		p->block_bytes = op->value_bytes;
		s->copying = p->opts.ops->prefetched(p->opts.arg, op, s->tier);
		if (!s->copying)
			slot_end(s);
		return;
	}
	if (reason == KVOF_SHORT && !s->canceled && slot_grow(s, op->value_bytes)) {
		p->block_bytes = op->value_bytes;
		slot_start(s, &id);
		return;
	}
	if (reason != KVOF_OK && reason != KVOF_SHORT)
		p->opts.ops->missed(p->opts.arg, op, s->tier);
	s->tier = goes_on(s, reason) ? tier_below(p, s->tier) : 0;
	if (s->tier != 0)
		slot_start(s, &id);
	else
		slot_end(s);
}

static void slot_released(struct tier_op *op)
{
	slot_end(container_of(op, struct pslot, op));
}

/* --- hints ------------------------------------------------------------------------------------ */

/* The next block that is worth it: not in DRAM, not too late. */
static bool hint_next(struct prefetch *p, struct hint *h, struct kvof_id *id)
{
	struct tier *dram = tier_at(p, KVOF_TIER_DRAM);

	if (h->by_ns != 0 && h->by_ns <= loop_now_ns(p->opts.loop))
		h->next = h->count;
	while (h->next < h->count) {
		*id = h->ids[h->next++];
		if (!dram->ops->has(dram, id) && !p->opts.ops->expired(p->opts.arg, id))
			return true;
	}
	return false;
}

static struct pslot *slot_idle(struct prefetch *p)
{
	for (unsigned i = 0; i < PREFETCH_FLYING_MAX; i++)
		if (!p->slot[i].flying)
			return &p->slot[i];
	return NULL;
}

void prefetch_run(struct prefetch *p)
{
	LIST_FOR_EACH_SAFE(link, &p->hints) {
		struct hint *h = container_of(link, struct hint, link);
		struct pslot *s;
		struct kvof_id id;

		while ((s = slot_idle(p)) != NULL && !p->stopping &&
		       !restore_wants(p->opts.restore) && hint_next(p, h, &id)) {
			s->tier = tier_below(p, 0);
			if (s->tier == 0) {
				h->next = h->count;
				break;
			}
			s->hint = h;
			s->flying = true;
			s->canceled = false;
			h->flying++;
			slot_grow(s, p->block_bytes);
			slot_start(s, &id);
		}
		hint_check(h);
	}
}

void prefetch_begin(struct prefetch *p, struct hint *h)
{
	OBJ_CHECK(p, PREFETCH_MAGIC);
	loop_must_own(p->opts.loop);
	if (h->by_ns != 0)
		h->by_ns = loop_now_ns(p->opts.loop) + tier_deadline_ns(h->by_ns);
	if (tier_at(p, KVOF_TIER_DRAM) == NULL || p->stopping)
		h->next = h->count;
	LIST_FOR_EACH(link, &p->hints) {
		const struct hint *other = container_of(link, struct hint, link);

		if (h->by_ns != 0 && (other->by_ns == 0 || h->by_ns < other->by_ns)) {
			list_insert_before(link, &h->link);
			break;
		}
	}
	if (!list_linked(&h->link))
		list_push_back(&p->hints, &h->link);
	prefetch_soon(p);
}

void prefetch_cancel(struct prefetch *p, uint64_t id)
{
	LIST_FOR_EACH(link, &p->hints) {
		struct hint *h = container_of(link, struct hint, link);

		if (id != 0 && h->id != id)
			continue;
		h->next = h->count;
		for (unsigned i = 0; i < PREFETCH_FLYING_MAX; i++) {
			struct pslot *s = &p->slot[i];

			if (!s->flying || s->hint != h || s->copying || s->canceled)
				continue;
			s->canceled = true;
			if (!s->op.busy)
				tier_at(p, s->tier)->ops->cancel(tier_at(p, s->tier), &s->op);
		}
	}
	prefetch_soon(p);
}

/* --- open and close --------------------------------------------------------------------------- */

int prefetch_open(const struct prefetch_opts *opts, struct prefetch **out)
{
	struct prefetch *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return -ENOMEM;
	OBJ_INIT(p, PREFETCH_MAGIC);
	p->opts = *opts;
	list_init(&p->hints);
	for (unsigned i = 0; i < PREFETCH_FLYING_MAX; i++)
		p->slot[i].prefetch = p;
	*out = p;
	return 0;
}

void prefetch_stop(struct prefetch *p)
{
	OBJ_CHECK(p, PREFETCH_MAGIC);
	p->stopping = true;
	prefetch_cancel(p, 0);
}

bool prefetch_idle(const struct prefetch *p)
{
	return list_empty(&p->hints) && !p->soon_pending;
}

void prefetch_close(struct prefetch **pp)
{
	struct prefetch *p;

	OBJ_TAKE(p, pp, PREFETCH_MAGIC);
	must(prefetch_idle(p));
	for (unsigned i = 0; i < PREFETCH_FLYING_MAX; i++)
		free(p->slot[i].buffer);
	p->magic = 0;
	free(p);
}
