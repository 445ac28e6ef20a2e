/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: the timers of timer.h, and the functions of loop.h that need nothing but the timer.
 *
 * Invariant: a timer is set exactly while its node is in the heap.
 *
 * Thread: the loop's own.
 */
#include "loop/timer.h"

#include "base/must.h"

int timers_open(struct timers *ts, unsigned max)
{
	*ts = (struct timers){0};
	return heap_reserve(&ts->heap, max);
}

void timers_close(struct timers *ts)
{
	heap_free(&ts->heap);
}

void timers_forget(struct timers *ts)
{
	ts->heap.count = 0;
}

void timers_set(struct timers *ts, struct loop_timer *t, uint64_t at_ns)
{
	must(t->fire != NULL);
	timers_cancel(ts, t);
	t->node.at_ns = at_ns;
	heap_add(&ts->heap, &t->node);
}

void timers_cancel(struct timers *ts, struct loop_timer *t)
{
	heap_remove(&ts->heap, &t->node);
}

struct loop_timer *timers_first(const struct timers *ts)
{
	struct heap_node *first = heap_first(&ts->heap);

	return first == NULL ? NULL : container_of(first, struct loop_timer, node);
}

void loop_timer_init(struct loop_timer *t, void (*fire)(struct loop_timer *t))
{
	must(fire != NULL);
	*t = (struct loop_timer){.fire = fire};
}

bool loop_timer_is_set(const struct loop_timer *t)
{
	return t->node.index != 0;
}
