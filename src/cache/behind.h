/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write-behind: blocks that DRAM holds and that flash or arrays shall have as well. A block that
 * waits is pinned in DRAM and is written from there, so what waits costs no memory of its own.
 *
 * Each tier has a lane: written in the order of the pushes (the owner pushes the tail of a sequence
 * before its head), BEHIND_WRITERS blocks at a time, stored only if absent. But a block goes in
 * front of the nearest one before it in its sequence that still waits: so tails go before heads
 * over several pushes, too. What has waited for BEHIND_AGE_NS is not overtaken any more.
 *
 * A tier that is away or hangs costs the blocks in hand, counted as dropped; BEHIND_LATE_MAX late
 * ones in a row make the lane sick: what waits for it is dropped, and one block at a time tries it
 * again.
 *
 *   waiting   behind_push()        pinned, on the lanes of the tiers it is to go to
 *   flying    a writer took it     for one tier or several
 *   over      every tier answered, and no buffer is busy: unpinned
 *
 * Bounded by bytes and by BEHIND_BLOCKS_MAX blocks. All memory is taken at open. Owned by one loop.
 */
#ifndef KVOF_CACHE_BEHIND_H
#define KVOF_CACHE_BEHIND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "cache/dram.h"

#define BEHIND_WRITERS 8                   /* blocks of a lane in flight */
#define BEHIND_PARTS 4                     /* parts of a block in flight */
#define BEHIND_LANES 2
#define BEHIND_BLOCKS_MAX 16384
#define BEHIND_PIECES_MAX 16384            /* of one block: 1 GiB in pieces of 64 KiB */
#define BEHIND_LATE_MAX 4
#define BEHIND_AGE_NS NS_PER_S             /* nothing is put in front of what waits so long */
#define BEHIND_PARENTS_MAX 4096            /* blocks looked at, up a sequence */
#define BEHIND_RETRY_NS (100 * NS_PER_MS)  /* a sick lane tries one block so often */

struct behind;

struct behind_events {
	/* A tier answered for a block; reason KVOF_CANCELED: dropped before it was asked. Not
	 * inside behind_push(). */
	void (*written)(void *arg, const struct kvof_id *id, enum kvof_tier tier,
			enum kvof_reason reason);
	/* No tier is asked to store this block now: behind_flies() is false. */
	void (*landed)(void *arg, const struct kvof_id *id);
	/* The block before it in its sequence; false: not known. NULL: never is. */
	bool (*parent)(void *arg, const struct kvof_id *id, struct kvof_id *out);
};

struct behind_opts {
	struct tier *dram;                 /* all borrowed */
	struct tier *flash, *remote;       /* NULL: not there */
	uint64_t bytes;                    /* that may wait, counted in whole blocks */
	uint64_t deadline_ns;              /* of one block's write */
	uint32_t cut_bytes;                /* largest part */
	const struct behind_events *events;
	void *arg;
};

struct behind_stat {
	uint64_t bytes, blocks;            /* now */
	uint64_t written[KVOF_TIER_COUNT], dropped[KVOF_TIER_COUNT];
	uint64_t full;
};

/* Waits until all that was pushed before behind_flush() is over. */
struct behind_flush {
	void (*done)(struct behind_flush *f, int res);   /* 0; -ETIMEDOUT; -ESHUTDOWN */
	/* the queue's, until done */
	struct behind *behind;
	struct list_link link;
	struct loop_timer timer;
	uint64_t number;
};

/* Return: 0; -ENOMEM. */
int behind_open(struct loop *loop, const struct behind_opts *opts, struct behind **out);

/**
 * behind_push() - a block that DRAM holds is to be written to these tiers
 * @tiers: bits, 1 << enum kvof_tier; those without a lane are left out
 * @spare: only if the queue is less than half full: for what can be had again
 *
 * A block that waits already is left in its place; tiers are added.
 * Return: true, also when there is nothing to do; false: full (counted unless spare), too many
 * pieces, or DRAM does not have it.
 */
bool behind_push(struct behind *b, const struct kvof_id *id, unsigned tiers, bool spare);
/* A tier is being asked to store it: deletes of it wait for landed(). */
bool behind_flies(const struct behind *b, const struct kvof_id *id);
/* What waits of it and does not fly is dropped (not counted). */
void behind_forget(struct behind *b, const struct kvof_id *id);

/* deadline_ns: absolute; 0: none. done never comes inside. */
void behind_flush(struct behind *b, struct behind_flush *f, uint64_t deadline_ns);

/* Takes no more; what waits may still be written for grace_ns; then it is dropped and what flies is
 * withdrawn. closed() on a later turn, then behind_free(). */
void behind_stop(struct behind *b, uint64_t grace_ns, void (*closed)(void *arg));
void behind_free(struct behind **b);
void behind_stat(const struct behind *b, struct behind_stat *out);

#endif
