/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What prefix.c (table, tree, presence) and prefix_hold.c (pins, hints, ends of life) share. Nobody
 * else includes this.
 *
 * A node is a hot line of 64 bytes, which is all that match reads, and a cold part. Nodes have
 * numbers from 1; 0 is none. They come from `free_first`, and beyond what was ever used from
 * `fresh`, so memory that no block needs is never touched.
 *
 * Invariants: a node is in the chain of its identity's bucket, and in no other; `children` is the
 * number of nodes whose parent it is; it is on the list of leaves exactly when that is 0; parents
 * make no circle. `held` counts nodes that are pinned, have an end of life, or are past it.
 *
 * Times of a node are ticks of 4 ms since base_ns, in 32 bits; every 104 days they are moved.
 */
#ifndef KVOF_CACHE_PREFIX_INNER_H
#define KVOF_CACHE_PREFIX_INNER_H

#include <string.h>

#include "base/heap.h"
#include "base/must.h"
#include "cache/prefix.h"

#define PREFIX_MAGIC 0x70726678u
#define PREFIX_TICK_SHIFT 22               /* 4.2 ms */
#define PREFIX_TICK_MOVE (1u << 31)
#define PREFIX_LEASES 63                   /* so many or more: only time ends them */
#define PREFIX_BATCH 32                    /* lookups whose lines are fetched together */

enum prefix_flag {
	PREFIX_OVER = 1,                   /* its TTL ended; it is deleted, or will be again */
	PREFIX_TTL = 2,                    /* it is on the heap */
};

struct node {
	struct kvof_id id;
	uint32_t chain;                    /* next of the bucket, or of the free list */
	uint32_t parent, children;
	uint32_t stamp;                    /* of the last use as the last block of a sequence */
	uint8_t tiers;
	uint8_t flags : 2;                 /* enum prefix_flag */
	uint8_t leases : 6;                /* matches whose lease it is; see PREFIX_LEASES */
	uint16_t pins;
	uint32_t until[2];                 /* tick: remote and flash are believed; see deep_of() */
	uint32_t lease;                    /* tick */
};
_Static_assert(sizeof(struct node) == 64, "a node is one cache line");

struct node_rest {
	struct heap_node over;             /* on the heap while a TTL is set */
	uint32_t prev, next;               /* on the list of leaves */
	int8_t priority;
};

struct prefix {
	uint32_t magic;
	uint32_t blocks, bucket_mask;
	uint64_t presence_ns, base_ns;
	uint32_t now_tick;                 /* newest that was seen */
	bool begun;                        /* base_ns is set */
	uint32_t fresh, free_first, count, clock, held;
	uint32_t leaf_first, leaf_last;    /* used longest ago; last */
	uint32_t *bucket;                  /* first node, 0: none */
	struct node *node;                 /* [0] is not used */
	struct node_rest *rest;
	struct heap over;
	uint64_t map_bytes;
	void *map;
	struct prefix_stat stat;
};

/* 0: not there. */
uint32_t prefix_at(const struct prefix *p, const struct kvof_id *id);
/* 0: there is no room, all that could be forgotten is held. */
uint32_t prefix_make(struct prefix *p, const struct kvof_id *id);
uint32_t prefix_tick_of(const struct prefix *p, uint64_t now_ns);

/* Stays in the tree, whatever comes. */
static inline bool node_held(const struct node *n)
{
	return n->pins > 0 || (n->flags & (PREFIX_TTL | PREFIX_OVER)) != 0;
}

static inline bool node_over(const struct prefix *p, uint32_t at, uint64_t now_ns)
{
	uint8_t flags = p->node[at].flags;

	return (flags & PREFIX_OVER) != 0 ||
	       ((flags & PREFIX_TTL) != 0 && p->rest[at].over.at_ns <= now_ns);
}

/* Counts p->held around a change of pins or flags. */
static inline void node_hold(struct prefix *p, uint32_t at, bool before)
{
	p->held += node_held(&p->node[at]);
	must(p->held >= before);
	p->held -= before;
}

/* Its life has no end any more. */
void prefix_ttl_end(struct prefix *p, uint32_t at);

#endif
