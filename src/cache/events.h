/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events kept for the engine: which tier has taken a block, or given it up. A ring with one
 * producer, the cache's loop, which never waits: what does not fit is lost and counted. Consumers
 * are any threads, one at a time.
 */
#ifndef KVOF_CACHE_EVENTS_H
#define KVOF_CACHE_EVENTS_H

#include <stdint.h>

#include "kvof/cache.h"

struct events;

/* Room for count events, bought here. Return: 0; -ENOMEM. */
int events_open(uint32_t count, struct events **out);
void events_close(struct events **ev);
/* The loop's thread. */
void events_put(struct events *ev, const struct kvof_event *event);
/* Any thread. *lost: those lost since the last call. Return: how many. */
uint32_t events_take(struct events *ev, struct kvof_event *out, uint32_t n, uint64_t *lost);
/* All that were lost. Any thread. */
uint64_t events_lost(const struct events *ev);

#endif
