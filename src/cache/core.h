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
#include "cache/behind.h"
#include "cache/identity.h"
#include "cache/prefix.h"
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
	enum kvof_tier tier;               /* asked now, or last */
	enum kvof_reason worst;            /* of those that were asked and do not have it */
	uint64_t verify_ns;
	bool canceled;
	bool any;                          /* a tier had it */
	bool second;                       /* of a save: it was touched before */
	bool keeping;                      /* loaded; DRAM takes its copy */
	bool fresh;                        /* came into DRAM just now */
	bool flash_last;                   /* flash is too slow: it is asked after the array */
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
	uint64_t serial;                   /* in the order of the submits */
	uint32_t count, left, busy;
	bool question;                     /* of match: in no order with others, takes a lease */
	bool anchored;                     /* a save: the block before it is pinned in DRAM */
	uint32_t anchor;                   /* its slot */
	uint64_t lease_ns;
	size_t bytes;                      /* of this memory */
	void *owner, *waiter;              /* the door's */
	/* Not NULL: results go here instead of events->result(); at the end r is NULL, instead of
	 * events->over(). */
	void (*quiet)(struct cache_batch *batch, const struct kvof_result *r);
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
	/* A tier has taken a block, or has none of it any more. NULL: nobody asks. */
	void (*changed)(void *arg, const struct kvof_id *id, enum kvof_tier tier, bool stored);
};

struct core_opts {
	const struct kvof_cache_opts *cache;     /* checked by core_opts_check() */
	const struct identity *identity;         /* outlives the core */
	const struct wire_ops *wire;             /* NULL: tcp */
	struct tier *flash;                      /* NULL: as the options say; else this one, the
						  * caller's */
};

/* The first wrong option in one sentence. Return: 0; -EINVAL. */
int core_opts_check(const struct kvof_cache_opts *opts, char why[256]);
/* Payload of a part, as the options say. */
uint32_t core_cut_bytes(const struct kvof_cache_opts *opts);

/* Return: 0, and opened() follows on a later turn; -EINVAL, -ENOMEM. */
int core_open(struct loop *loop, const struct core_opts *opts, const struct core_events *events,
	      void *arg, char why[256], struct core **out);
/* Ends every operation (KVOF_CANCELED); what waits to be written behind may still be for a quarter
 * of a second; then the tiers. closed(arg) is the last call. */
void core_close(struct core **core, void (*closed)(void *arg), void *arg);

void core_submit(struct core *core, struct cache_batch *batch);
/* 0: every batch. An id that is over is ignored. */
void core_cancel(struct core *core, uint64_t batch_id);
void core_unlease(struct core *core, const struct kvof_id *ids, uint32_t count);
/* As prefix_pin(), prefix_hint(). */
int core_pin(struct core *core, const struct kvof_id *ids, uint32_t count, bool on);
int core_hint(struct core *core, const struct kvof_id *ids, uint32_t count,
	      const struct kvof_hint *hint);
void core_stat(const struct core *core, struct kvof_cache_stat *out);

/* --- what is known without asking (core_match.c) ---------------------------------------------- */

/* What one match asks: a row of blocks. */
struct core_look {
	const struct kvof_id *ids;
	uint32_t count;
	uint8_t *where;                    /* [count], filled: (1 << tier) bits, 0: not known to be
					    * anywhere; NULL: only leading is wanted */
	uint32_t leading;                  /* filled: blocks from the first on that are known */
};
/* Takes a lease on those in DRAM. Return: true: tiers below it may have more, and can be asked. */
bool core_look(struct core *core, struct core_look *look);
/* Tiers that are believed to have it: bits, 1 << enum kvof_tier. */
unsigned core_where(const struct core *core, const struct kvof_id *id);
/* Its TTL is over: no tier may serve it. */
bool core_over(const struct core *core, const struct kvof_id *id);
struct prefix *core_tree(struct core *core);

/* Waits until all that was submitted before is on every tier, or counted why not. */
struct core_flush {
	uint64_t deadline_ns;              /* absolute; 0: none */
	void (*done)(struct core_flush *f, int res);     /* 0; -ETIMEDOUT; -ESHUTDOWN */
	/* the core's, until done */
	struct core *core;
	struct list_link link;
	struct loop_timer timer;
	uint64_t serial;
	struct behind_flush behind;
};
void core_flush(struct core *core, struct core_flush *f);

/* --- for who loads without a batch (restore) -------------------------------------------------- */

/* NULL: there is none. */
struct tier *core_tier(const struct core *core, enum kvof_tier tier);
/* Flash would hardly answer by then, and an array would: it is asked first. */
bool core_flash_slow(struct core *core, const struct kvof_id *id, uint64_t deadline_ns);
/* Now and then: this one asks it all the same, to learn when that is over. */
bool core_flash_try(struct core *core);
/* The one to ask after this one; after KVOF_TIER_NONE the first. KVOF_TIER_NONE: that was all. */
enum kvof_tier core_tier_next(const struct core *core, enum kvof_tier after);

/**
 * core_loaded() - a load from this tier ended with KVOF_OK: counted, kept nearer if it is worth it
 * @prefetch: nobody has asked for it yet: kept whatever the policy says, and marked
 *
 * Return: true: DRAM's copy is being made part by part; op->done comes once more, and until then
 * the buffer must not change.
 */
bool core_loaded(struct core *core, struct tier_op *op, enum kvof_tier tier, bool prefetch);
/* It ended otherwise, and perhaps the next tier has it. */
void core_missed(struct core *core, const struct tier_op *op, enum kvof_tier tier);
/* No tier delivered it. */
void core_load_failed(struct core *core, enum kvof_reason reason);
/* Of these consecutive blocks of a sequence those from `from` on were used, once; those behind them
 * have been told. */
void core_used_prefix(struct core *core, struct prefix_ids ids, uint32_t from);

#endif
