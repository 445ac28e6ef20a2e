/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that will be wanted: from slower tiers into DRAM, while no request wants to load. A hint
 * ends without a trace: no event, no result; what did not come by its time is left.
 *
 * Owned by one loop, but for hint_make() and hint_free().
 */
#ifndef KVOF_CACHE_PREFETCH_H
#define KVOF_CACHE_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/restore.h"

#define PREFETCH_FLYING_MAX 4              /* blocks under way */

struct prefetch;

struct hint {
	struct list_link link;
	uint64_t id, by_ns;                /* by_ns: from begin; then absolute; 0: any time */
	uint32_t count, next, flying;
	void (*over)(struct hint *h);      /* the caller's again; not inside prefetch_begin() */
	void *owner;
	struct kvof_id ids[];
};

/* Return: 0; -EINVAL; -EBUSY no memory. */
int hint_make(const struct kvof_id *ids, uint32_t n, uint64_t by_ns, struct hint **out);
void hint_free(struct hint **h);

struct prefetch_opts {
	struct loop *loop;
	const struct restore_ops *ops;
	void *arg;
	struct restore *restore;           /* whose requests come first */
	uint32_t cut_bytes;
	uint64_t bytes_max;                /* of buffers, all blocks under way */
	uint64_t deadline_ns;              /* of one load */
};

/* Return: 0; -ENOMEM. */
int prefetch_open(const struct prefetch_opts *opts, struct prefetch **out);
void prefetch_begin(struct prefetch *p, struct hint *h);
/* 0: all. */
void prefetch_cancel(struct prefetch *p, uint64_t id);
/* Starts what there is room for, if no request wants to load. */
void prefetch_run(struct prefetch *p);
/* Cancels all; nothing is in flight once prefetch_idle(). */
void prefetch_stop(struct prefetch *p);
bool prefetch_idle(const struct prefetch *p);
/* It is idle. */
void prefetch_close(struct prefetch **p);

#endif
