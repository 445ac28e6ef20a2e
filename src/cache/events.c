/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant: consumed <= produced <= consumed + count. The lock is the consumers' alone.
 */
#include "cache/events.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/must.h"

#define EVENTS_MAGIC 0x65766e74u

struct events {
	uint32_t magic, count;
	_Atomic uint64_t produced, consumed, lost;
	pthread_mutex_t lock;
	uint64_t told;                     /* of lost; under the lock */
	struct kvof_event ring[];
};

int events_open(uint32_t count, struct events **out)
{
	struct events *ev = calloc(1, sizeof(*ev) + count * sizeof(ev->ring[0]));

	if (ev == NULL)
		return -ENOMEM;
	must(count > 0);
	OBJ_INIT(ev, EVENTS_MAGIC);
	ev->count = count;
	pthread_mutex_init(&ev->lock, NULL);
	*out = ev;
	return 0;
}

void events_close(struct events **evp)
{
	struct events *ev;

	OBJ_TAKE(ev, evp, EVENTS_MAGIC);
	pthread_mutex_destroy(&ev->lock);
	free(ev);
}

void events_put(struct events *ev, const struct kvof_event *event)
{
	uint64_t at = atomic_load_explicit(&ev->produced, memory_order_relaxed);

	OBJ_CHECK(ev, EVENTS_MAGIC);
	if (at - atomic_load(&ev->consumed) == ev->count) {
		atomic_fetch_add(&ev->lost, 1);
		return;
	}
	ev->ring[at % ev->count] = *event;
	atomic_store(&ev->produced, at + 1);
}

uint32_t events_take(struct events *ev, struct kvof_event *out, uint32_t n, uint64_t *lost)
{
	uint64_t at, end, all;
	uint32_t got = 0;

	OBJ_CHECK(ev, EVENTS_MAGIC);
	pthread_mutex_lock(&ev->lock);
	at = atomic_load(&ev->consumed);
	end = atomic_load(&ev->produced);
	while (at < end && got < n)
		out[got++] = ev->ring[at++ % ev->count];
	atomic_store(&ev->consumed, at);
	all = atomic_load(&ev->lost);
	*lost = all - ev->told;
	ev->told = all;
	pthread_mutex_unlock(&ev->lock);
	return got;
}

uint64_t events_lost(const struct events *ev)
{
	return atomic_load(&ev->lost);
}
