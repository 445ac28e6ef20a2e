/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limit of what is read from a drive: reads of values and of blocks begin no faster than so many
 * bytes a second. They wait, and never fail for it.
 *
 * struct slow_rate is one a drive, shared by all that read from it, on any loops. struct slow is
 * one a reader: it holds what has to wait, on its own loop.
 */
#ifndef KVOF_STORE_SLOW_H
#define KVOF_STORE_SLOW_H

#include <stdatomic.h>
#include <stddef.h>

#include "loop/disk.h"
#include "loop/loop.h"

struct slow_rate {
	uint64_t bytes_per_s;                /* 0: no limit; set before the loops run */
	_Atomic uint64_t free_ns;            /* when the drive is through with what was begun */
};

struct slow {
	struct slow_rate *rate;              /* NULL: no limit */
	struct loop *loop;
	struct loop_timer timer;
	struct disk *disk;
	/* held, in order; linked by op.next, op.scratch[0] is when */
	struct disk_io *first, *last;
	bool open;                           /* nothing waits any more */
};

void slow_begin(struct slow *s, struct slow_rate *rate, struct loop *loop, struct disk *disk);
/* A limit is set: there must be no read that goes past this one. */
static inline bool slow_limits(const struct slow *s)
{
	return s->rate != NULL && s->rate->bytes_per_s != 0;
}
/* disk_read(), now or later. Return: when it begins, on the loop's clock. */
uint64_t slow_read(struct slow *s, struct disk_io *io);
/* What waits begins now, and all that comes: the reader is being closed. */
void slow_end(struct slow *s);

#endif
