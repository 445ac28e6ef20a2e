/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See touch.h. When a block was touched last is kept in a table of sets; a block whose set is full
 * of blocks touched within the last minute is not touched, so "at most once a minute" always holds.
 *
 * Invariants: flying counts operations between start() and done (released follows for none: a
 * question has no buffer of the caller's); the timer is set while something waits and nothing
 * flies.
 */
#include "cache/touch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOUCH_MAGIC 0x746f7563u
#define TOUCH_OPS 8
#define TOUCH_WAYS 4

_Static_assert(TOUCH_OPS * TIER_QUESTIONS_MAX == TOUCH_FLYING_MAX, "values of all operations");
_Static_assert((TOUCH_WAITING_MAX & (TOUCH_WAITING_MAX - 1)) == 0, "the ring's index is a mask");

struct touch_op {
	struct tier_op tier_op;
	struct tier_part part[TIER_QUESTIONS_MAX];
	struct iovec iov[TIER_QUESTIONS_MAX];
	struct touch *touch;
	bool flying, busy;
};

struct touch_last {
	uint64_t key, at_ns;               /* at_ns 0: free */
};

struct touch {
	uint32_t magic;
	struct loop *loop;
	struct tier *remote;
	const struct touch_events *events;
	void *arg;
	void (*closed)(void *arg);
	bool closing, told;
	struct loop_timer timer;
	struct loop_op soon;
	uint64_t sent, absent, dropped;
	uint32_t head, tail, flying;       /* of the ring: taken, put */
	struct kvof_id ring[TOUCH_WAITING_MAX];
	struct touch_op op[TOUCH_OPS];
	struct touch_last last[TOUCH_BLOCKS_MAX / TOUCH_WAYS][TOUCH_WAYS];
};

static void stop_check(struct touch *t)
{
	for (unsigned i = 0; i < TOUCH_OPS; i++)
		if (t->op[i].flying || t->op[i].busy)
			return;
	if (!t->closing || t->told)
		return;
	t->told = true;
	loop_soon(t->loop, &t->soon, 0);
}

static void stopped(struct loop_op *soon, int res)
{
	struct touch *t = container_of(soon, struct touch, soon);

	t->closed(t->arg);
}

static void feed(struct touch *t);

static void op_done(struct tier_op *tier_op)
{
	struct touch_op *op = container_of(tier_op, struct touch_op, tier_op);
	struct touch *t = op->touch;

	OBJ_CHECK(t, TOUCH_MAGIC);
	must(op->flying && t->flying > 0);
	op->flying = false;
	op->busy = tier_op->busy;
	t->flying--;
	if (tier_op->reason == KVOF_OK && t->events->present != NULL && !t->closing) {
		t->events->present(t->arg, &tier_op->id);
	} else if (tier_op->reason == KVOF_ABSENT) {
		t->absent++;
		if (!t->closing)
			t->events->absent(t->arg, &tier_op->id);
	} else if (tier_op->reason == KVOF_LATE) {
		/* the array hangs: what waits would only queue up for it */
		t->dropped += t->tail - t->head;
		t->head = t->tail;
	}
	feed(t);
	stop_check(t);
}

static void op_released(struct tier_op *tier_op)
{
	struct touch_op *op = container_of(tier_op, struct touch_op, tier_op);

	op->busy = false;
	feed(op->touch);
	stop_check(op->touch);
}

static void op_start(struct touch *t, struct touch_op *op)
{
	op->tier_op = (struct tier_op){
		.kind = KVOF_EXISTS_OP,
		.id = t->ring[t->head++ & (TOUCH_WAITING_MAX - 1)],
		.deadline_ns = loop_now_ns(t->loop) + TOUCH_DEADLINE_NS,
		.part = op->part,
		.part_slots = TIER_QUESTIONS_MAX,
		.done = op_done,
		.released = op_released,
	};
	for (unsigned i = 0; i < TIER_QUESTIONS_MAX; i++)
		op->part[i] = (struct tier_part){.iov = &op->iov[i]};
	op->flying = true;
	t->flying++;
	t->sent++;
	t->remote->ops->start(t->remote, &op->tier_op);
}

static void feed(struct touch *t)
{
	if (t->closing)
		return;
	for (unsigned i = 0; i < TOUCH_OPS && t->head != t->tail; i++)
		if (!t->op[i].flying && !t->op[i].busy)
			op_start(t, &t->op[i]);
}

static void waited(struct loop_timer *timer)
{
	feed(container_of(timer, struct touch, timer));
}

/* True, and remembered, when it was not touched for long enough. */
static bool is_due(struct touch *t, const struct kvof_id *id)
{
	uint64_t now = loop_now_ns(t->loop), key;
	struct touch_last *set, *to = NULL;

	memcpy(&key, id->byte, sizeof(key));
	set = t->last[key % ARRAY_COUNT(t->last)];
	for (unsigned i = 0; i < TOUCH_WAYS; i++) {
		bool old = set[i].at_ns == 0 || now - set[i].at_ns >= TOUCH_EVERY_NS;

		if (set[i].at_ns != 0 && set[i].key == key) {
			if (!old)
				return false;
			to = &set[i];
			break;
		}
		if (old)
			to = &set[i];
	}
	if (to == NULL) {
		t->dropped++;
		return false;
	}
	*to = (struct touch_last){key, now == 0 ? 1 : now};
	return true;
}

static void ring_put(struct touch *t, const struct kvof_id *id)
{
	t->ring[t->tail++ & (TOUCH_WAITING_MAX - 1)] = *id;
	if (t->flying == 0 && !loop_timer_is_set(&t->timer))
		loop_timer_set(t->loop, &t->timer, loop_now_ns(t->loop) + TOUCH_WAIT_NS);
}

void touch_want(struct touch *t, const struct kvof_id *id)
{
	OBJ_CHECK(t, TOUCH_MAGIC);
	loop_must_own(t->loop);
#ifdef KVOF_PLANT_TOUCH_FORGOTTEN
	return;
#endif
	if (t->closing)
		return;
	if (t->tail - t->head == TOUCH_WAITING_MAX) {
		t->dropped++;
		return;
	}
	if (is_due(t, id))
		ring_put(t, id);
}

void touch_now(struct touch *t, const struct kvof_id *id)
{
	OBJ_CHECK(t, TOUCH_MAGIC);
	loop_must_own(t->loop);
	if (t->closing)
		return;
	if (t->tail - t->head == TOUCH_WAITING_MAX)
		t->dropped++;
	else
		ring_put(t, id);
}

int touch_open(struct loop *loop, struct tier *remote, const struct touch_events *events,
	       void *arg, struct touch **out)
{
	struct touch *t = calloc(1, sizeof(*t));

	if (t == NULL)
		return -ENOMEM;
	OBJ_INIT(t, TOUCH_MAGIC);
	t->loop = loop;
	t->remote = remote;
	t->events = events;
	t->arg = arg;
	t->soon.done = stopped;
	for (unsigned i = 0; i < TOUCH_OPS; i++)
		t->op[i].touch = t;
	loop_timer_init(&t->timer, waited);
	*out = t;
	return 0;
}

void touch_stop(struct touch *t, void (*closed)(void *arg))
{
	OBJ_CHECK(t, TOUCH_MAGIC);
	must(!t->closing);
	t->closing = true;
	t->closed = closed;
	t->dropped += t->tail - t->head;
	t->head = t->tail;
	loop_timer_cancel(t->loop, &t->timer);
	for (unsigned i = 0; i < TOUCH_OPS; i++)
		if (t->op[i].flying)
			t->remote->ops->cancel(t->remote, &t->op[i].tier_op);
	stop_check(t);
}

void touch_free(struct touch **tp)
{
	struct touch *t;

	OBJ_TAKE(t, tp, TOUCH_MAGIC);
	must(t->flying == 0);
	t->magic = 0;
	free(t);
}

void touch_stat(const struct touch *t, struct touch_stat *out)
{
	OBJ_CHECK(t, TOUCH_MAGIC);
	*out = (struct touch_stat){t->sent, t->absent, t->dropped, t->tail - t->head, t->flying};
}
