/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: see slow.h.
 *
 * Theory: a drive is free at some time; a read that comes gets the time from then on that its bytes
 * take, and is passed on at the end of it, so that also the first one of an idle drive comes no
 * sooner than a drive of that rate gives it. When is known at once, and readers on several loops
 * need no more than one atomic number. A drive that was idle for a while has SLOW_BURST_NS to give
 * at once, so that a timer that is late costs no rate.
 *
 * Invariants: what is held begins in order of time. Thread: the reader's.
 */
#include "store/slow.h"

#include "base/bytes.h"
#include "base/must.h"

#define SLOW_BURST_NS NS_PER_MS

/* When a read of so many bytes is passed on. */
static uint64_t slow_reserve(struct slow_rate *r, uint64_t bytes, uint64_t now_ns)
{
	uint64_t took_ns = bytes * UINT64_C(1000000) / (r->bytes_per_s / 1000 + 1);
	uint64_t free_ns = atomic_load_explicit(&r->free_ns, memory_order_relaxed), from;

	must(bytes <= UINT64_C(1) << 40);
	do {
		from = now_ns < SLOW_BURST_NS || free_ns > now_ns - SLOW_BURST_NS ?
			free_ns : now_ns - SLOW_BURST_NS;
	} while (!atomic_compare_exchange_weak_explicit(&r->free_ns, &free_ns, from + took_ns,
							memory_order_relaxed,
							memory_order_relaxed));
	return from + took_ns > now_ns ? from + took_ns : now_ns;
}

static void slow_fire(struct loop_timer *t)
{
	struct slow *s = container_of(t, struct slow, timer);
	uint64_t now_ns = loop_now_ns(s->loop);

	while (s->first != NULL && (s->open || s->first->op.scratch[0] <= now_ns)) {
		struct disk_io *io = s->first;

		s->first = io->op.next == NULL ? NULL :
			container_of(io->op.next, struct disk_io, op);
		disk_read(s->disk, io);
	}
	if (s->first != NULL)
		loop_timer_set(s->loop, &s->timer, s->first->op.scratch[0]);
}

void slow_begin(struct slow *s, struct slow_rate *rate, struct loop *loop, struct disk *disk)
{
	*s = (struct slow){.rate = rate, .loop = loop, .disk = disk};
	loop_timer_init(&s->timer, slow_fire);
}

uint64_t slow_read(struct slow *s, struct disk_io *io)
{
	uint64_t now_ns = loop_now_ns(s->loop), at_ns = now_ns;

	if (slow_limits(s) && !s->open)
		at_ns = slow_reserve(s->rate, io->bytes, now_ns);
	if (at_ns == now_ns && s->first == NULL) {
		disk_read(s->disk, io);
		return now_ns;
	}
	io->op.next = NULL;
	io->op.scratch[0] = at_ns;
	if (s->first == NULL) {
		s->first = io;
		loop_timer_set(s->loop, &s->timer, at_ns);
	} else {
		s->last->op.next = &io->op;
	}
	s->last = io;
	return at_ns;
}

void slow_end(struct slow *s)
{
	if (s->loop == NULL)
		return;
	s->open = true;
	loop_timer_cancel(s->loop, &s->timer);
	slow_fire(&s->timer);
}
