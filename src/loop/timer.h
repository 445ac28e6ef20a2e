/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers of one loop: a binary heap of pointers, earliest first; timers set for the same instant
 * fire in the order in which they were set. Bought whole at open. Shared by uring.c and sim.c. Own
 * thread only.
 */
#ifndef KVOF_LOOP_TIMER_H
#define KVOF_LOOP_TIMER_H

#include "loop/loop.h"

struct timers {
	struct loop_timer **heap;    /* heap[1] is the earliest; heap[0] is not used */
	uint32_t count, max;
	uint32_t order;              /* given to the next timer that is set */
};

int timers_open(struct timers *ts, unsigned max);          /* 0 or -ENOMEM */
void timers_close(struct timers *ts);
void timers_set(struct timers *ts, struct loop_timer *t, uint64_t at_ns);
void timers_cancel(struct timers *ts, struct loop_timer *t);
struct loop_timer *timers_first(const struct timers *ts);  /* NULL: none is set */
/* of a crashed node: memory not touched */
void timers_forget(struct timers *ts);

#endif
