/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: the heap of timer.h, and the functions of loop.h that need nothing but the timer.
 *
 * Invariants: heap[i] is not later than heap[2i] and heap[2i + 1]; heap[i]->heap_index == i; a
 * timer that is not set has heap_index 0.
 *
 * Thread: the loop's own.
 */
#include "loop/timer.h"

#include <errno.h>
#include <stdlib.h>

#include "base/must.h"

int timers_open(struct timers *ts, unsigned max)
{
	must(max > 0);
	*ts = (struct timers){.max = max};
	ts->heap = calloc((size_t)max + 1, sizeof(*ts->heap));
	return ts->heap == NULL ? -ENOMEM : 0;
}

void timers_close(struct timers *ts)
{
	must(ts->count == 0);
	free(ts->heap);
	*ts = (struct timers){0};
}

void timers_forget(struct timers *ts)
{
	ts->count = 0;
}

static bool timer_before(const struct loop_timer *a, const struct loop_timer *b)
{
	if (a->at_ns != b->at_ns)
		return a->at_ns < b->at_ns;
	return (int32_t)(a->order - b->order) < 0;
}

static void timers_place(struct timers *ts, uint32_t index, struct loop_timer *t)
{
	must(index >= 1 && index <= ts->count);
	ts->heap[index] = t;
	t->heap_index = index;
}

static void timers_up(struct timers *ts, uint32_t index, struct loop_timer *t)
{
	while (index > 1 && timer_before(t, ts->heap[index / 2])) {
		timers_place(ts, index, ts->heap[index / 2]);
		index /= 2;
	}
	timers_place(ts, index, t);
}

static void timers_down(struct timers *ts, uint32_t index, struct loop_timer *t)
{
	for (;;) {
		uint32_t child = index * 2;

		if (child > ts->count)
			break;
		if (child < ts->count && timer_before(ts->heap[child + 1], ts->heap[child]))
			child++;
		if (!timer_before(ts->heap[child], t))
			break;
		timers_place(ts, index, ts->heap[child]);
		index = child;
	}
	timers_place(ts, index, t);
}

void timers_set(struct timers *ts, struct loop_timer *t, uint64_t at_ns)
{
	must(t->fire != NULL);
	timers_cancel(ts, t);
	must(ts->count < ts->max);
	t->at_ns = at_ns;
	t->order = ts->order++;
	timers_up(ts, ++ts->count, t);
}

void timers_cancel(struct timers *ts, struct loop_timer *t)
{
	uint32_t index = t->heap_index;
	struct loop_timer *last;

	if (index == 0)
		return;
	must(index <= ts->count && ts->heap[index] == t);
	last = ts->heap[ts->count--];
	t->heap_index = 0;
	if (last == t)
		return;
	if (index > 1 && timer_before(last, ts->heap[index / 2]))
		timers_up(ts, index, last);
	else
		timers_down(ts, index, last);
}

struct loop_timer *timers_first(const struct timers *ts)
{
	return ts->count == 0 ? NULL : ts->heap[1];
}

void loop_timer_init(struct loop_timer *t, void (*fire)(struct loop_timer *t))
{
	must(fire != NULL);
	*t = (struct loop_timer){.fire = fire};
}

bool loop_timer_is_set(const struct loop_timer *t)
{
	return t->heap_index != 0;
}
