/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door between engine threads and the cache's own thread, as api.c offers it to the other
 * files that hold public calls.
 *
 * A call that only posts:
 *
 *	rc = door_enter(c);                inside: the cache does not go away
 *	...loop_post(door_loop(c), ...);
 *	door_posted(c);                    posts nothing any more; may still wait for its answer
 *	door_leave(c);
 *
 * A call that waits for one answer has a struct door_ask on its stack, and door_ask() does all
 * that. Any thread, but for what is said to be the cache's own.
 */
#ifndef KVOF_CACHE_DOOR_H
#define KVOF_CACHE_DOOR_H

#include <semaphore.h>
#include <stdint.h>

#include "cache/core.h"
#include "cache/events.h"
#include "cache/identity.h"
#include "kvof/cache.h"
#include "loop/loop.h"

/* Return: 0, and door_posted() and door_leave() must follow; -EINVAL no cache; -ESHUTDOWN. */
int door_enter(struct kvof_cache *c);
void door_posted(struct kvof_cache *c);
void door_leave(struct kvof_cache *c);
/* For what touches nothing of the thread: is it a cache, and of this process? */
int door_look(const struct kvof_cache *c);

struct loop *door_loop(const struct kvof_cache *c);
struct core *door_core(const struct kvof_cache *c);        /* the cache's thread */
const struct identity *door_identity(const struct kvof_cache *c);
/* Its numbers; the texts were the caller's. */
const struct kvof_cache_opts *door_opts(const struct kvof_cache *c);
uint32_t door_cut_bytes(const struct kvof_cache *c);
struct events *door_events(const struct kvof_cache *c);    /* NULL: none are kept */
/* The number of a new batch or request: one series, so that cancel knows what is meant. */
uint64_t door_number(struct kvof_cache *c);

/*
 * Room in the ring that drain empties: one of door_count() for each result that will come. A busy
 * result and its release share one. Given back by drain, or by door_uncount() for what never came.
 * Return: 0; -EBUSY.
 */
int door_count(struct kvof_cache *c, uint32_t n);
void door_uncount(struct kvof_cache *c, uint32_t n);
/* Puts a counted result into the ring and wakes the engine. The cache's thread. */
void door_result(struct kvof_cache *c, const struct kvof_result *r);

/* Asks for each block as match does: in no order with other operations, with a lease; waits for all
 * answers. flags: 0, KVOF_UNORDERED. Return: 0; as kvof_cache_submit(). */
int door_question(struct kvof_cache *c, const struct kvof_block *blocks, uint32_t n_blocks,
		  uint32_t flags, uint64_t deadline_ns, struct kvof_result *results);

/* A question on the caller's stack. */
struct door_ask {
	struct msg msg;
	struct kvof_cache *cache;
	/* The cache's thread; then or later calls door_answer(), after which *ask is gone. */
	void (*run)(struct kvof_cache *c, struct door_ask *ask);
	/* run() answers at once and begins nothing: while the cache's thread sleeps, the caller
	 * runs it itself (loop_visit()) */
	bool brief;
	sem_t answered;
};
/* Posts it, if it must, and waits for the answer. Return: 0; -EINVAL, -ESHUTDOWN (run was not
 * called). */
int door_ask(struct kvof_cache *c, struct door_ask *ask);
void door_answer(struct door_ask *ask);

/* What restore_api.c has on the cache's thread beside the core; NULL: nothing of the kind. */
struct door_guest {
	/* After core_open(). Return: 0 and *self; -ENOMEM. */
	int (*open)(struct kvof_cache *c, void **self);
	void (*cancel)(void *self, uint64_t request);      /* 0: all */
	void (*stat)(void *self, struct kvof_cache_stat *out);
	/* Before core_close(): ends everything; closed(arg) is the last call. */
	void (*close)(void *self, void (*closed)(void *arg), void *arg);
};
extern const struct door_guest door_restore;
void *door_restore_self(const struct kvof_cache *c);       /* the cache's thread */

#endif
