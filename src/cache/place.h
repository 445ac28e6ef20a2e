/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load or recompute: where a prefix is split so that its first token comes soonest. Arithmetic
 * only; any thread. docs/restore.md "the model" has the formulas.
 *
 *   PREFIX  [0, k) loaded, [k, n) and the suffix computed behind it, layer by layer
 *   ENDS    [0, m) computed while [m, n) is loaded from the tail; then the suffix
 *
 * Times are ns, saturated at PLACE_NEVER_NS. What can't be loaded takes PLACE_NEVER_NS.
 */
#ifndef KVOF_CACHE_PLACE_H
#define KVOF_CACHE_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#define PLACE_TIERS 4                      /* enum kvof_tier; 0: no tier has it */
#define PLACE_LANES 68                     /* behind the tiers, devices of them */
#define PLACE_NEVER_NS (UINT64_C(1) << 60)
#define PLACE_EXACT_BLOCKS 4096            /* beyond, k is one of so many, then looked at closely */

/* A tier loads x bytes, behind what is queued there, in latency + (queued + x) / rate. */
struct place_tier {
	uint64_t latency_ns, bytes_per_s;  /* bytes_per_s 0: not to be had */
	uint64_t queued_bytes;
};

/* The engine computes a token at position p in (token_ps + slope_ps * p) / 1000 ns. */
struct place_engine {
	uint64_t token_ps, slope_ps;       /* both 0: not known */
};

struct place {
	struct place_tier tier[PLACE_LANES];
	struct place_engine engine;
	const uint8_t *tier_of;            /* [block_count]; NULL: all are in tier_all */
	uint8_t tier_all;
	uint32_t block_count, block_tokens;
	uint64_t block_bytes;
	uint32_t suffix_tokens;
	uint32_t layer_count;              /* at least 1 */
	/* Of the first begun_count blocks parts are under way that land in begun_ns: before layer 0
	 * of any block behind them. 0: nothing is. */
	uint32_t begun_count;
	uint64_t begun_ns;
	/* Parts of later layers are under way beside those of layer 0, which come so much later. */
	uint64_t mixed_ns;
	/* The engine's rate may be so much higher or lower, and the last token of the prefix may
	 * take so much longer than the first beside what slope_ps says; then a split is judged by
	 * how much worse it can be than the better of loading and computing all. All 0: no
	 * doubt. */
	uint32_t doubt_percent, slower_percent, slope_percent;
};

/* Tokens [first, first + count). */
struct place_span {
	uint64_t first, count;
};
uint64_t place_engine_ns(const struct place_engine *e, struct place_span tokens);
/* Bytes behind what is queued. */
uint64_t place_tier_ns(const struct place_tier *t, uint64_t bytes);

/* Blocks [first, first + count): until all of them are loaded; until the engine has computed them
 * one after another. */
struct place_blocks {
	uint32_t first, count;
};
uint64_t place_load_ns(const struct place *p, struct place_blocks blocks);
uint64_t place_compute_ns(const struct place *p, struct place_blocks blocks);

/* Leading blocks that some tier can load. */
uint32_t place_loadable(const struct place *p);

/* Time to first token with this split. */
uint64_t place_prefix_ns(const struct place *p, uint32_t k);
uint64_t place_ends_ns(const struct place *p, uint32_t m);

/* How bad a split is at worst, within the doubt: time over the better of loading and computing all,
 * in 2^20ths, smaller is better. Without doubt: place_prefix_ns(). */
uint64_t place_prefix_cost(const struct place *p, uint32_t k);

/* The best split: the largest k of those with the smallest cost; m within one block. */
uint32_t place_prefix(const struct place *p);
uint32_t place_ends(const struct place *p);

#endif
