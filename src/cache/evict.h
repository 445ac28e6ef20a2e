/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deletes blocks whose TTL has ended, from every tier. The tree serves none of them any more from
 * the instant on; this is what frees their room, in batches, each block in order with the engine's
 * own operations on it. What could not be deleted (an array is away) is tried again each second.
 *
 * Owned by one loop.
 */
#ifndef KVOF_CACHE_EVICT_H
#define KVOF_CACHE_EVICT_H

#include "cache/core.h"
#include "cache/prefix.h"
#include "loop/loop.h"

#define EVICT_BATCH 64                     /* deletions in flight */
#define EVICT_AGAIN_NS (1 * NS_PER_S)

struct evict;

/* core and tree outlive it. Return: 0; -ENOMEM. */
int evict_open(struct loop *loop, struct core *core, struct prefix *tree, struct evict **out);
/* A TTL was set: looks when the next one ends. */
void evict_set(struct evict *ev);
/* Begins nothing any more; what is in flight ends as the core ends it. */
void evict_stop(struct evict *ev);
/* Nothing of it is in flight. */
void evict_close(struct evict **ev);

#endif
