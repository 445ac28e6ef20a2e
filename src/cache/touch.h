/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batched touches: blocks that a nearer tier served are asked about on the array, so that it does
 * not lose the head of a prefix whose tail it keeps (an Exist counts there as a use). Pinned blocks
 * are, too, and of flash a second one asks whether it has them.
 *
 * Low priority and bounded: they wait TOUCH_WAIT_NS to become a batch, at most TOUCH_FLYING_MAX are
 * in flight, each block is touched at most once in TOUCH_EVERY_NS, and what finds no room is not
 * touched (counted). All memory is taken at open. Owned by one loop.
 */
#ifndef KVOF_CACHE_TOUCH_H
#define KVOF_CACHE_TOUCH_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/tier.h"

#define TOUCH_FLYING_MAX (8 * TIER_QUESTIONS_MAX)  /* values */
#define TOUCH_WAITING_MAX 4096             /* blocks */
#define TOUCH_BLOCKS_MAX 65536             /* whose last touch is remembered */
#define TOUCH_EVERY_NS (60 * NS_PER_S)
#define TOUCH_WAIT_NS (50 * NS_PER_MS)
#define TOUCH_DEADLINE_NS (2 * NS_PER_S)

struct touch;

struct touch_events {
	/* The array does not have it (any more). Not inside touch_want(). */
	void (*absent)(void *arg, const struct kvof_id *id);
	/* It has; NULL: nobody asks. */
	void (*present)(void *arg, const struct kvof_id *id);
};

struct touch_stat {
	uint64_t sent, absent, dropped;
	uint32_t waiting, flying;
};

/* remote is borrowed; of pinned blocks it may be flash as well. Return: 0; -ENOMEM. */
int touch_open(struct loop *loop, struct tier *remote, const struct touch_events *events,
	       void *arg, struct touch **out);
void touch_want(struct touch *t, const struct kvof_id *id);
/* Whenever it was touched last. */
void touch_now(struct touch *t, const struct kvof_id *id);
/* Forgets what waits and withdraws what flies. closed() on a later turn, then touch_free(). */
void touch_stop(struct touch *t, void (*closed)(void *arg));
void touch_free(struct touch **t);
void touch_stat(const struct touch *t, struct touch_stat *out);

#endif
