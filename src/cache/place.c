/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The split of a prefix. PREFIX is searched over all k (the engine's side is not convex when its
 * time a token grows with the position): the load's side is summed as k grows. ENDS is a crossing
 * of a rising and a falling line: searched by halving.
 *
 * Pure functions, any thread. Integers: picoseconds a token, 128 bits for products.
 */
#include "cache/place.h"

#include "base/bytes.h"
#include "base/must.h"

#define PS_PER_NS 1000

__extension__ typedef unsigned __int128 place_wide;

static uint64_t narrow(place_wide ns)
{
	return ns < PLACE_NEVER_NS ? (uint64_t)ns : PLACE_NEVER_NS;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
	return bytes_min(a + b, PLACE_NEVER_NS);   /* neither is beyond PLACE_NEVER_NS */
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

uint64_t place_engine_ns(const struct place_engine *e, struct place_span tokens)
{
	place_wide n = tokens.count;
	/* sum of positions, twice */
	place_wide twice = n == 0 ? 0 : n * (2 * (place_wide)tokens.first + n - 1);

	return narrow((n * e->token_ps + twice / 2 * e->slope_ps) / PS_PER_NS);
}

uint64_t place_tier_ns(const struct place_tier *t, uint64_t bytes)
{
	place_wide all = bytes;

	if (bytes == 0)
		return 0;
	if (t->bytes_per_s == 0)
		return PLACE_NEVER_NS;
#ifndef KVOF_PLANT_SPLIT_IGNORES_QUEUE
	all += t->queued_bytes;
#endif
	return narrow(t->latency_ns + all * NS_PER_S / t->bytes_per_s);
}

static unsigned tier_of(const struct place *p, uint32_t block)
{
	unsigned tier = p->tier_of != NULL ? p->tier_of[block] : p->tier_all;

	must(tier < PLACE_TIERS);
	return tier;
}

/* Tiers work side by side: the slowest one counts. */
static uint64_t load_ns(const struct place *p, const uint64_t bytes[PLACE_TIERS])
{
	uint64_t ns = bytes[0] > 0 ? PLACE_NEVER_NS : 0;

	for (unsigned i = 1; i < PLACE_TIERS; i++)
		ns = larger(ns, place_tier_ns(&p->tier[i], bytes[i]));
	return ns;
}

uint64_t place_load_ns(const struct place *p, struct place_blocks blocks)
{
	uint64_t bytes[PLACE_TIERS] = {0};

	if (p->tier_of == NULL)
		bytes[p->tier_all] = blocks.count * p->block_bytes;
	else
		for (uint32_t i = blocks.first; i < blocks.first + blocks.count; i++)
			bytes[tier_of(p, i)] += p->block_bytes;
	return load_ns(p, bytes);
}

uint64_t place_compute_ns(const struct place *p, struct place_blocks blocks)
{
	return place_engine_ns(&p->engine, (struct place_span){
		(uint64_t)blocks.first * p->block_tokens,
		(uint64_t)blocks.count * p->block_tokens});
}

static uint64_t suffix_ns(const struct place *p)
{
	return place_engine_ns(&p->engine, (struct place_span){
		(uint64_t)p->block_count * p->block_tokens, p->suffix_tokens});
}

/*
 * Layers of [0, k) come one after another; the engine's pass over [k, n) and the suffix goes on
 * layer by layer behind them: the slower of both is never waited for by more than one layer.
 */
static uint64_t prefix_ns(const struct place *p, uint32_t k, uint64_t load)
{
	uint64_t compute = sum(place_compute_ns(p, (struct place_blocks){k, p->block_count - k}),
			       suffix_ns(p));
	uint64_t layers = p->layer_count, first = load / layers;

	must(layers > 0 && k <= p->block_count);
	if (load == PLACE_NEVER_NS)
		return load;
	if (k > p->begun_count)
		first = larger(first, p->begun_ns);
	return larger(sum(load, compute / layers), sum(first, compute));
}

uint64_t place_prefix_ns(const struct place *p, uint32_t k)
{
	return prefix_ns(p, k, place_load_ns(p, (struct place_blocks){0, k}));
}

#define COSTS 3                            /* faster, as it says, slower */

/* The same question for the engines it may be, and the better of the two ends for each. */
struct costs {
	struct place as[COSTS];
	uint64_t better_ns[COSTS];
	unsigned count;
};

static uint64_t scaled(uint64_t ps, uint32_t by, uint32_t of)
{
	place_wide wide = (place_wide)ps * by / of;

	return wide < UINT64_MAX / 2 ? (uint64_t)wide : UINT64_MAX / 2;
}

static uint32_t loadable(const struct place *p);

static void costs_fill(const struct place *p, struct costs *c)
{
	uint32_t doubt = p->doubt_percent < 100 ? p->doubt_percent : 99, most = loadable(p);
	uint32_t slower = p->slower_percent < 100 ? p->slower_percent : 99;
	uint32_t by[COSTS] = {100, 100 - doubt, 100}, of[COSTS] = {100, 100, 100 - slower};

	c->count = doubt + slower > 0 ? COSTS : 1;
	for (unsigned i = 0; i < c->count; i++) {
		uint64_t all, none;

		c->as[i] = *p;
		c->as[i].engine.token_ps = scaled(p->engine.token_ps, by[i], of[i]);
		c->as[i].engine.slope_ps = scaled(p->engine.slope_ps, by[i], of[i]);
		all = place_prefix_ns(&c->as[i], most);
		none = place_prefix_ns(&c->as[i], 0);
		c->better_ns[i] = bytes_min(all, none);
	}
}

static uint64_t cost_of(const struct costs *c, uint32_t k, uint64_t load)
{
	uint64_t worst = 0;

	if (c->count == 1)
		return prefix_ns(&c->as[0], k, load);
	for (unsigned i = 0; i < c->count; i++) {
		place_wide ns = prefix_ns(&c->as[i], k, load);

		worst = larger(worst, narrow((ns << 20) /
					     (c->better_ns[i] > 0 ? c->better_ns[i] : 1)));
	}
	return worst;
}

uint64_t place_prefix_cost(const struct place *p, uint32_t k)
{
	struct costs c;

	costs_fill(p, &c);
	return cost_of(&c, k, place_load_ns(p, (struct place_blocks){0, k}));
}

uint64_t place_ends_ns(const struct place *p, uint32_t m)
{
	uint64_t load = place_load_ns(p, (struct place_blocks){m, p->block_count - m});
	uint64_t compute = place_compute_ns(p, (struct place_blocks){0, m});

	return sum(larger(load, compute), suffix_ns(p));
}

static bool engine_known(const struct place *p)
{
	return p->engine.token_ps > 0 || p->engine.slope_ps > 0;
}

/* Leading blocks that some tier can load. */
static uint32_t loadable(const struct place *p)
{
	uint32_t k = 0;

	while (k < p->block_count && p->tier[tier_of(p, k)].bytes_per_s > 0)
		k++;
	return k;
}

struct search {
	struct costs costs;
	uint32_t from, to, step, best;     /* [from, to] */
	uint64_t best_cost;
};

/* Blocks are counted once each, whatever the step is. */
static void prefix_search(const struct place *p, struct search *s)
{
	uint64_t bytes[PLACE_TIERS] = {0};
	uint32_t next = s->from;

	for (uint32_t k = 0; k <= s->to; k++) {
		if (k > 0)
			bytes[tier_of(p, k - 1)] += p->block_bytes;
		if (k < next && k != s->to)
			continue;
		if (k >= s->from) {
			uint64_t cost = cost_of(&s->costs, k, load_ns(p, bytes));

			if (cost <= s->best_cost) {
				s->best_cost = cost;
				s->best = k;
			}
		}
		next = k + s->step;
	}
}

uint32_t place_prefix(const struct place *p)
{
	uint32_t most = loadable(p), step = most / PLACE_EXACT_BLOCKS + 1, around;
	struct search s = {.to = most, .step = step, .best_cost = UINT64_MAX};

	if (!engine_known(p))
		return most;
	costs_fill(p, &s.costs);
	prefix_search(p, &s);
	if (step == 1)
		return s.best;
	around = s.best;
	s.from = around > step ? around - step : 0;
	s.to = most - around > step ? around + step : most;
	s.step = 1;
	prefix_search(p, &s);
	return s.best;
}

uint32_t place_ends(const struct place *p)
{
	uint32_t low = 0, high = p->block_count;

	if (!engine_known(p))
		return 0;
	/* the first m whose loading is over when its computing is */
	while (low < high) {
		uint32_t m = low + (high - low) / 2;

		if (place_compute_ns(p, (struct place_blocks){0, m}) >=
		    place_load_ns(p, (struct place_blocks){m, p->block_count - m}))
			high = m;
		else
			low = m + 1;
	}
	if (low > 0 && place_ends_ns(p, low - 1) <= place_ends_ns(p, low))
		low--;
	return low;
}
