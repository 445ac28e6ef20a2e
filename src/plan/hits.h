/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a cache of any size would hit of a block trace, in one pass over the trace.
 *
 * A cache that evicts what was used longest ago holds, at any size, the blocks that were used last:
 * at a size of C blocks the first C of one list in order of use. So the depth of a block in that
 * list says which sizes hit it, and one pass answers for all of them [MATTSON]. Hits are a strict
 * prefix: a block counts at a size that holds it and every block before it in its request, which is
 * the greatest depth so far. Conventions are those of docs/replay.md: a request sees the cache as
 * it was before it, then all its blocks are used.
 *
 * With times told as well, the same pass keeps for each of a few sizes and rates a device that
 * serves one load after another: what more room brings and what a faster device brings, told apart.
 *
 * Pure arithmetic on a trace that fits; one thread. Memory: some 28 bytes a different block.
 */
#ifndef KVOF_PLAN_HITS_H
#define KVOF_PLAN_HITS_H

#include <stdbool.h>
#include <stdint.h>

#include "plan/trace.h"

#define HITS_CAPACITIES_MAX 64u
#define HITS_LOADS_MAX 8u
#define HITS_PEAK_MS 10000u                /* spans of which the busiest is told */

/* A device that hits come from. */
struct hits_load {
	double fixed_s;                    /* of a load, whatever its size; 0 or more */
	double block_s;                    /* seconds of the whole device for a block; 0 or more */
};

struct hits_opts {
	uint32_t block_tokens;             /* 1 or more */
	bool rev;                          /* blocks are used from the last to the first */
	/* sizes about which more is told than how much they hit */
	const uint64_t *capacity_blocks;
	uint32_t capacities;
	/* and of each of them, behind each of these devices; token_s 0: no times */
	const struct hits_load *load;
	uint32_t loads;
	double token_s;                    /* seconds of an engine to compute a token */
	double speed;                      /* of the trace's clock; 0 and 1: as it was */
};

struct hits_time {                         /* of a size behind a device */
	double mean_s;                     /* until the first token; as many engines as needed */
	double wait_s;                     /* of that, for loads of requests before */
	double busy_share;                 /* of the device, from the first request to the last */
	uint64_t loaded_tokens;            /* what is sooner computed is not loaded */
};

struct hits_size {
	uint64_t capacity_blocks, hit_blocks, hit_tokens;
	uint64_t peak_blocks;              /* hits of the busiest HITS_PEAK_MS */
	struct hits_time time[HITS_LOADS_MAX];
};

struct hits {
	uint64_t requests, blocks, unique_blocks, tokens;
	double span_s;                     /* from the first request to the last, at that speed */
	double compute_s;                  /* mean until the first token without a cache */
	uint64_t *hit_blocks, *hit_tokens; /* [unique_blocks + 1]: with room for so many blocks */
	struct hits_size size[HITS_CAPACITIES_MAX];
};

/* hits_free() may follow in any case. Return: 0; -ENOMEM. */
int hits_count(const struct trace *t, const struct hits_opts *o, struct hits *out);
void hits_free(struct hits *h);

/* Of any capacity. */
uint64_t hits_blocks_at(const struct hits *h, uint64_t capacity_blocks);
uint64_t hits_tokens_at(const struct hits *h, uint64_t capacity_blocks);
/* The least room that hits that share (0 to 1) of the tokens that any room can. */
uint64_t hits_capacity_of(const struct hits *h, double share);

#endif
