/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache on one loop, without threads: batches in, results out. api.c puts a thread, an eventfd
 * and the public names around it; tests run it in the simulator.
 *
 * Lifetime of a batch (memory from batch_make() to batch_free(), both any thread):
 *
 *   made        batch_make()              the caller's
 *   submitted   core_submit()             the core's; result() once a block, twice for a busy one
 *   over        over()                    the caller's again, after the last of these
 */
#ifndef KVOF_CACHE_CORE_H
#define KVOF_CACHE_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "cache/identity.h"
#include "cache/tier.h"
#include "kvof/cache.h"
#include "loop/loop.h"

#define CACHE_BATCH_BYTES_MAX (256 * MiB)  /* of one batch's own memory, buffers not counted */

struct core;
struct cache_batch;

enum cache_op_state { CACHE_WAITING, CACHE_RUNNING, CACHE_BUSY, CACHE_FREE, CACHE_OP_STATE_N };

/* One block of a batch. */
struct cache_op {
	struct tier_op tier_op;
	struct list_link link;             /* among unfinished operations of its bucket */
	struct list_link ready;            /* may start */
	struct cache_batch *batch;
	uint32_t index;
	enum cache_op_state state;
	unsigned tier_index;               /* asked now */
	enum kvof_reason first;            /* what DRAM said, when the array is asked as well */
	uint64_t verify_ns;
	bool canceled;
};

struct cache_batch {
	struct msg msg;                    /* the owner's, to post it */
	struct list_link link;             /* the core's */
	struct core *core;
	struct loop_timer timer;
	uint64_t id;
	enum kvof_op kind;
	uint64_t deadline_ns;              /* from submit; 0: the default */
	uint32_t flags;                    /* KVOF_UNORDERED, ... */
	uint64_t begin_ns;
	uint32_t count, left, busy;
	bool question;                     /* of match: in no order with others, takes a lease */
	uint64_t lease_ns;
	size_t bytes;                      /* of this memory */
	void *owner, *waiter;              /* the door's */
	struct cache_op op[];
};

/**
 * batch_make() - checks blocks and copies them with their iov arrays; any thread
 * Return: 0; -EINVAL (no blocks or too many, pieces that do not add up, NULL memory, a load or save
 * beyond TIER_BLOCK_BYTES_MAX, CACHE_BATCH_BYTES_MAX passed); -EBUSY no memory.
 */
int batch_make(enum kvof_op kind, const struct kvof_block *blocks, uint32_t count,
	       uint32_t cut_bytes, struct cache_batch **out);
void batch_free(struct cache_batch **batch);

struct core_events {
	/* res: 0, and why may hold a warning; else as kvof_cache_open() returns, and the core is of
	 * no use but to be closed. Once. */
	void (*opened)(void *arg, int res, const char *why);
	void (*result)(void *arg, struct cache_batch *batch, const struct kvof_result *result);
	void (*over)(void *arg, struct cache_batch *batch);
};

struct core_opts {
	const struct kvof_cache_opts *cache;     /* checked by core_opts_check() */
	const struct identity *identity;         /* outlives the core */
	const struct wire_ops *wire;             /* NULL: tcp */
};

/* The first wrong option in one sentence. Return: 0; -EINVAL. */
int core_opts_check(const struct kvof_cache_opts *opts, char why[256]);
/* Payload of a part, as the options say. */
uint32_t core_cut_bytes(const struct kvof_cache_opts *opts);

/* Return: 0, and opened() follows on a later turn; -EINVAL, -ENOMEM. */
int core_open(struct loop *loop, const struct core_opts *opts, const struct core_events *events,
	      void *arg, char why[256], struct core **out);
/* Ends every operation (KVOF_CANCELED), then the array. closed(arg) is the last call. */
void core_close(struct core **core, void (*closed)(void *arg), void *arg);

void core_submit(struct core *core, struct cache_batch *batch);
/* 0: every batch. An id that is over is ignored. */
void core_cancel(struct core *core, uint64_t batch_id);
void core_unlease(struct core *core, const struct kvof_id *ids, uint32_t count);
void core_stat(const struct core *core, struct kvof_cache_stat *out);

#endif
