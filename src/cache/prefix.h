/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix tree: what this process knows about blocks, one node an identity. A node's parent is
 * the block before it in the sequence it came in. It holds
 *
 *   which tiers have the block whole; for flash and arrays, until when that is believed
 *   leases and pins (DRAM keeps it), priority (DRAM's policy), the end of its life (TTL)
 *
 * What it says of flash and arrays is a hint, never a promise: they forget without telling. What
 * was learned is believed for presence_ns, and corrected when a load finds otherwise.
 *
 * Memory is bounded and bought at open. Full, it forgets the leaf that was used longest ago, so a
 * head is never forgotten before its tail; what is pinned, under lease or has a TTL stays.
 *
 * Every call is O(1) a block: two cache lines, fetched for many blocks together.
 * Pure: no clock, no I/O. Owned by one loop.
 */
#ifndef KVOF_CACHE_PREFIX_H
#define KVOF_CACHE_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvof/cache.h"

#define PREFIX_BLOCKS_MIN 1024
#define PREFIX_BLOCKS_MAX (1u << 28)
#define PREFIX_BLOCKS (1u << 20)           /* unless the options say otherwise */

struct prefix;

struct prefix_opts {
	uint32_t blocks;                   /* PREFIX_BLOCKS_MIN .. PREFIX_BLOCKS_MAX */
	uint64_t presence_ns;
};

/* What the options ask for, or the defaults. */
struct prefix_opts prefix_opts_of(const struct kvof_cache_opts *opts);
/* Bytes that so many blocks take. */
uint64_t prefix_memory_bytes(uint32_t blocks);

/* Takes all its memory. Return: 0; -ENOMEM. */
int prefix_open(const struct prefix_opts *opts, struct prefix **out);
void prefix_close(struct prefix **p);

/* --- presence --------------------------------------------------------------------------------- */

/* The tier has the block whole: it was saved, loaded, or said to be there. */
void prefix_seen(struct prefix *p, enum kvof_tier tier, const struct kvof_id *id, uint64_t now_ns);
/* The tier does not have it (any more), or what it has can't be used. */
void prefix_lost(struct prefix *p, enum kvof_tier tier, const struct kvof_id *id);
/* Deleted from every tier, and with it a TTL that has not ended. */
void prefix_gone(struct prefix *p, const struct kvof_id *id);
/* Bit (1 << tier) for each tier that is believed to have it. 0 when its TTL is over. */
uint32_t prefix_where(const struct prefix *p, const struct kvof_id *id, uint64_t now_ns);

/**
 * prefix_match() - leading blocks that are known to be present whole
 * @lease_until_ns: those in DRAM stay there until then; 0: no lease
 */
uint32_t prefix_match(struct prefix *p, const struct kvof_id *ids, uint32_t count, uint64_t now_ns,
		      uint64_t lease_until_ns);
/* The same for each block, whatever comes before it: where[i] is what prefix_where() says. */
void prefix_look(struct prefix *p, const struct kvof_id *ids, uint32_t count, uint64_t now_ns,
		 uint64_t lease_until_ns, uint8_t *where);

/* Blocks from the first on that are present whole (KVOF_OK); the first other one ends it. */
uint32_t prefix_leading(const struct kvof_result *results, uint32_t count);

/* --- sequence --------------------------------------------------------------------------------- */

/* Consecutive blocks of one sequence, wherever their identities lie. */
struct prefix_ids {
	const struct kvof_id *first;
	size_t stride_bytes;
	uint32_t count;
};

/* Each is the parent of the next. make: blocks that are not known become so; else they end the
 * sequence. What has a parent keeps it. */
void prefix_link(struct prefix *p, struct prefix_ids ids, bool make);
/* Return: false, and *out all zero, when none is known. */
bool prefix_parent(const struct prefix *p, const struct kvof_id *id, struct kvof_id *out);

/* --- what is to stay, and what is not --------------------------------------------------------- */

/* Pins are counted: each on needs its off. Return: 0; -EBUSY more than half of the tree would be
 * held, or one block 65535 times (then none of the call's is pinned); -EINVAL off without on (the
 * others of the call are off). */
int prefix_pin(struct prefix *p, const struct kvof_id *ids, uint32_t count, bool on);
/* Return: 0; -EBUSY as above, for TTLs; those before it are set. */
int prefix_hint(struct prefix *p, const struct kvof_id *ids, uint32_t count,
		const struct kvof_hint *hint, uint64_t now_ns);
/* Ends one lease; others on the same block stay. */
void prefix_unlease(struct prefix *p, const struct kvof_id *id);

/* Under lease or pinned: DRAM keeps it. */
bool prefix_held(const struct prefix *p, const struct kvof_id *id, uint64_t now_ns);
bool prefix_pinned(const struct prefix *p, const struct kvof_id *id);
/* Walks over the tree, `nodes` of it a call, from *at on (0: from the start; 0 again at the end).
 * Return: how many pinned ones were put into out, room for `nodes`. */
uint32_t prefix_pinned_some(const struct prefix *p, uint32_t *at, uint32_t nodes,
			    struct kvof_id *out);
/* Nodes that there were at most, at once. */
uint32_t prefix_nodes(const struct prefix *p);
int32_t prefix_priority(const struct prefix *p, const struct kvof_id *id);
/* Its TTL has ended: it is not served any more. */
bool prefix_over(const struct prefix *p, const struct kvof_id *id, uint64_t now_ns);
/* It is saved anew: if its TTL has ended, that is forgotten. */
void prefix_renew(struct prefix *p, const struct kvof_id *id, uint64_t now_ns);

/* When the next TTL ends; UINT64_MAX: none is set. */
uint64_t prefix_over_at(const struct prefix *p);
/* Takes one whose TTL has ended, to be deleted everywhere: prefix_over_done() when that is done,
 * prefix_over_again() when it is to be tried again. False: there is none. */
bool prefix_over_take(struct prefix *p, uint64_t now_ns, struct kvof_id *out);
void prefix_over_done(struct prefix *p, const struct kvof_id *id);
void prefix_over_again(struct prefix *p, const struct kvof_id *id, uint64_t at_ns);

struct prefix_stat {
	uint64_t blocks, forgotten;        /* nodes now; dropped for room */
	uint64_t wrong;                    /* believed present, and lost */
	uint64_t pinned, over;             /* blocks now; TTLs that ended */
};
void prefix_stat(const struct prefix *p, struct prefix_stat *out);
/* Asserts every invariant; walks everything. For tests. */
void prefix_check(const struct prefix *p);

#endif
