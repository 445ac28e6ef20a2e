/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tier of the simulator holds which blocks: DRAM, then local flash, then the array, each
 * with room for so many. A tier evicts what was used longest ago; or, as a log (kvof's own store),
 * what was written longest ago, but carries on what was asked for since, up to a part of what is
 * written. Other rules are those of the model of `kvof replay` with --policy lru (docs/replay.md),
 * so that both count the same. Blocks have numbers and no bytes. One thread.
 */
#ifndef KVOF_PLAN_TIERS_H
#define KVOF_PLAN_TIERS_H

#include <stdbool.h>
#include <stdint.h>

enum { TIERS_DRAM, TIERS_LOCAL, TIERS_ARRAY, TIERS };

struct tiers_tier {
	bool present, second_touch;        /* takes a block when it is saved again */
	bool log;
	uint64_t capacity_blocks;          /* 0: for all */
	/* what was seen */
	uint64_t evicted, promoted, refused, touched, written, carried;
	/* its own: a list in order of use, its ends at [unique blocks] */
	uint32_t *newer, *older, count;
	uint8_t *known;                    /* held now; held or asked about before; used */
	double may_carry;
};

struct tiers {
	struct tiers_tier tier[TIERS];
	uint32_t unique_blocks;
	double *touched_s;                 /* of the array, + 1; 0: never */
	uint8_t *saved;
};

/* tier[] is filled in to capacity_blocks. tiers_close() may follow in any case.
 * Return: 0; -ENOMEM. */
int tiers_open(struct tiers *t, uint32_t unique_blocks);
void tiers_close(struct tiers *t);

/* from[]: which tier gives each block of the prefix. Return: how many there are. */
uint32_t tiers_find(const struct tiers *t, const uint32_t *block, uint32_t count, uint8_t *from);
/* What is loaded of a prefix counts as used where it lies. */
void tiers_use(struct tiers *t, const uint32_t *block, uint32_t hits, const uint8_t *from,
	       double now_s);
/* What a slower tier gave moves up; the rest was computed and is saved. */
void tiers_save(struct tiers *t, const uint32_t *block, uint32_t hits, uint32_t count,
		const uint8_t *from);
/* A block is there before the first request. */
void tiers_warm(struct tiers *t, unsigned tier, uint32_t block);

#endif
