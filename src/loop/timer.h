/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers of one loop: a heap, bought whole at open; timers set for the same instant fire in the
 * order in which they were set. Shared by loop.c and sim.c. Own thread only.
 */
#ifndef KVOF_LOOP_TIMER_H
#define KVOF_LOOP_TIMER_H

#include "loop/loop.h"

struct timers {
	struct heap heap;
};

int timers_open(struct timers *ts, unsigned max);          /* 0 or -ENOMEM */
void timers_close(struct timers *ts);
void timers_set(struct timers *ts, struct loop_timer *t, uint64_t at_ns);
void timers_cancel(struct timers *ts, struct loop_timer *t);
struct loop_timer *timers_first(const struct timers *ts);  /* NULL: none is set */
/* of a crashed node: memory not touched */
void timers_forget(struct timers *ts);

#endif
