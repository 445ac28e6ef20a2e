/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores on the cache's loop: requests whose blocks are brought into the engine's buffers by
 * their deadline, beside an engine that computes. restore_api.c puts the public names around it;
 * tests run it in the simulator, with tiers of their own.
 *
 *   request_make()       any thread; memory of the request, all it will ever need
 *   restore_begin()      the loop's; event() from now on, never from inside a call of here
 *   restore_next()       what the engine does now
 *   restore_forget()     over and not busy: the caller's again, to request_free()
 *
 * Owned by one loop, but for request_make() and request_free().
 */
#ifndef KVOF_CACHE_RESTORE_H
#define KVOF_CACHE_RESTORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "cache/tier.h"
#include "kvof/restore.h"
#include "loop/loop.h"

#define RESTORE_OPEN_MAX 512               /* blocks of one request under way */
#define RESTORE_PARTS_MAX 512              /* their parts in flight, about */
#define RESTORE_USED_STEP 1024             /* blocks told as used in one turn */
#define RESTORE_REQUEST_BYTES_MAX (256 * MiB)
#define RESTORE_STAGING_BYTES (256 * MiB)  /* the default */

struct restore;
struct request;

/* What lies below: the tiers of the cache, by enum kvof_tier. */
struct restore_ops {
	struct tier *(*tier)(void *arg, unsigned number);       /* NULL: not there */
	unsigned (*tier_next)(void *arg, unsigned number);      /* order of asking; 0: no more */
	/* A load ended well, its buffer is whole. True: a tier above makes a copy; op->done comes
	 * once more, and until then the buffer stays as it is. */
	bool (*loaded)(void *arg, struct tier_op *op, unsigned number);
	/* The same of a block that nobody has asked for yet. */
	bool (*prefetched)(void *arg, struct tier_op *op, unsigned number);
	/* A tier did not have the block; no tier had it. */
	void (*missed)(void *arg, const struct tier_op *op, unsigned number);
	void (*failed)(void *arg, enum kvof_reason reason);
	/* Its time to live is over: no tier may serve it. */
	bool (*expired)(void *arg, const struct kvof_id *id);
	/* At the end of a request: of its usable blocks [0, ids.count) those from `from` on were
	 * used, and those behind them have been told. Each once, some in a turn. */
	void (*used)(void *arg, struct prefix_ids ids, uint32_t from);
	/* Flash is to be asked after the arrays. may_try: but for a few, that it may cost. NULL:
	 * never. */
	bool (*flash_last)(void *arg, const struct kvof_id *id, uint64_t left_ns, bool may_try);
	/* Tiers that are believed to have it, from memory: bits, 1 << enum kvof_tier. NULL: nothing
	 * is known. */
	unsigned (*where)(void *arg, const struct kvof_id *id);
};

/* A core's tiers (restore_core.c); arg is the core. */
extern const struct restore_ops restore_core_ops;

struct restore_opts {
	struct loop *loop;
	const struct restore_ops *ops;
	void *arg;
	/* No request wants to load now: time for what is of less use. NULL: nothing is. */
	void (*spare)(void *arg);
	void *spare_arg;
	uint64_t staging_bytes;            /* 0: the default */
	uint64_t deadline_ns;              /* of requests that name none */
	uint32_t block_tokens;
};

struct restore_stat {
	uint64_t staging_bytes, staging_waits, restores, restores_late;
};

/* Return: 0; -ENOMEM. */
int restore_open(const struct restore_opts *opts, struct restore **out);
/* Cancels every request; idle(arg) when nothing of any is in flight, on a later turn, until it says
 * true: after restore_soon() it is asked again. */
void restore_stop(struct restore *r, bool (*idle)(void *arg), void *arg);
/* After idle(), and inside it. Frees requests that were not forgotten. */
void restore_close(struct restore **r);
void restore_stat(const struct restore *r, struct restore_stat *out);
/* Looks again at everything on the next turn. */
void restore_soon(struct restore *r);
bool restore_wants(const struct restore *r);

/* Who hears of a request. */
struct request_events {
	void (*event)(void *owner, const struct kvof_result *result);
	/* restore_next() may say something else than WAIT, or the request is over or free. */
	void (*changed)(void *owner);
};

struct request_layout {
	uint32_t cut_bytes;                /* largest part */
	uint32_t layer_count;              /* 0: not known, a block is one layer */
	const uint64_t *layer_bytes;       /* NULL: equal layers; their sum is a block */
};

/* opts: NULL: defaults. Return: 0; -EINVAL; -EBUSY no memory. */
int request_make(const struct kvof_block *blocks, uint32_t n, const struct kvof_restore_opts *opts,
		 const struct request_layout *layout, struct request **out);
void request_free(struct request **req);
/* Most events that it will have. */
uint32_t request_event_count(const struct request *req);

void restore_begin(struct restore *r, struct request *req, uint64_t id,
		   const struct request_events *events, void *owner);
/* NULL: no such request. */
struct request *restore_find(struct restore *r, uint64_t id);
void *request_owner(const struct request *req);
/* Hands blocks out if it says so. look: hands nothing out. */
void restore_next(struct request *req, struct kvof_restore_step *out);
void restore_look(struct request *req, struct kvof_restore_step *out);
/* Return: 0; -EINVAL not blocks of this request. */
int restore_computed(struct request *req, uint32_t first, uint32_t count, uint64_t ns);
/* It is over soon. 0: all. */
void restore_cancel(struct restore *r, uint64_t id);
/* Over, no byte of its buffers is written any more, and all that was used has been told. */
bool request_free_now(const struct request *req);
void request_trace(struct request *req, struct kvof_restore_trace *out);
/* request_free_now() holds; the request is the caller's again. */
void restore_forget(struct request *req);

#endif
