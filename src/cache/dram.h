/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The DRAM tier beyond struct tier_ops: what it tells its owner about a block, what it is told, and
 * how its memory is lent to who writes a block to a slower tier. Owned by one loop.
 */
#ifndef KVOF_CACHE_DRAM_H
#define KVOF_CACHE_DRAM_H

#include "cache/tier.h"

#define DRAM_SLOT_NONE UINT32_MAX
#define DRAM_PIECE_BYTES (64 * KiB)        /* 4 KiB when there is less than 64 MiB */

/* What the owner knows about blocks; any of them NULL: nothing. */
struct dram_events {
	int32_t (*priority)(void *arg, const struct kvof_id *id);  /* when it comes */
	/* The block before it in its sequence. False: not known. */
	bool (*parent)(void *arg, const struct kvof_id *id, struct kvof_id *out);
	/* Not to be evicted now: leased or pinned by the engine. */
	bool (*held)(void *arg, const struct kvof_id *id);
	/* It is there, or gone: evicted or deleted. */
	void (*changed)(void *arg, const struct kvof_id *id, bool there);
};

struct dram_opts {
	uint64_t bytes;                    /* exact cap, rounded down to whole pieces */
	uint32_t cut_bytes, layer_count;   /* as tier_cut_set(); 0: the defaults */
	const char *policy;                /* NULL: the default */
	const struct dram_events *events;  /* NULL: none */
	void *arg;
	bool drives;                       /* a drive of this machine reads from it: register it */
};

struct dram_stat {
	uint64_t used_bytes, pinned_bytes, blocks;       /* now */
	uint64_t evicted, refused, promoted, promotion_refused;
	uint64_t prefetched, prefetched_hits, prefetched_wasted;
};

/* Takes all memory. Return: 0; -EINVAL less than 64 KiB, no such policy; -ENOMEM. */
int dram_open(struct loop *loop, const struct dram_opts *opts, struct tier **out);
void dram_close(struct tier **t);
void dram_stat(const struct tier *t, struct dram_stat *out);

/* The owner does not hold it any more: it may be evicted, at once. */
void dram_let(struct tier *t, const struct kvof_id *id);
/* Ends a lease of touch(). */
void dram_unlease(struct tier *t, const struct kvof_id *id);
/* It was used: once a use, of a prefix the tail first. */
void dram_hit(struct tier *t, const struct kvof_id *id);
/* parent comes before id in a sequence. Nothing happens unless both are held. */
void dram_link(struct tier *t, const struct kvof_id *id, const struct kvof_id *parent);
void dram_priority(struct tier *t, const struct kvof_id *id, int32_t priority);

/* Tiers below that are known to have this block: bits, 1 << enum kvof_tier. */
unsigned dram_below(const struct tier *t, const struct kvof_id *id);
void dram_below_set(struct tier *t, const struct kvof_id *id, unsigned bits, bool on);

/*
 * Takes a copy of the block that op's load from a slower tier brought (value_bytes in its iov), if
 * the policy finds it worth it, or it is prefetched: nobody has asked for it yet, but will. A block
 * of one part is copied at once; a larger one in parts, one a turn, and op->done follows with
 * op->reason KVOF_OK, or why not; else op stays as it is. below: bits of tiers that have it, where
 * saves are written behind.
 */
enum dram_kept { DRAM_KEPT, DRAM_KEEPING, DRAM_THERE, DRAM_REFUSED };
enum dram_kept dram_promote(struct tier *t, struct tier_op *op, bool prefetch, unsigned below);

/* A pinned block stays where it is, also when it is deleted meanwhile. Return: its slot, which
 * dram_unpin() takes; DRAM_SLOT_NONE: it is not there. */
uint32_t dram_pin(struct tier *t, const struct kvof_id *id, uint64_t *bytes);
void dram_unpin(struct tier *t, uint32_t slot);
/* The pieces of a pinned block, neighbours joined. Return: how many, also when more than max. */
unsigned dram_iov(const struct tier *t, uint32_t slot, struct iovec *iov, unsigned max);
uint32_t dram_piece_bytes(const struct tier *t);
uint64_t dram_bytes(const struct tier *t);

#endif
