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

	must(tier < PLACE_LANES);
	return tier;
}

/* Tiers, and devices of one, work side by side: the slowest counts. What is added changes one. */
struct load {
	uint64_t bytes[PLACE_LANES];
	uint64_t ns;
};

static void load_add(const struct place *p, struct load *l, uint32_t block)
{
	unsigned tier = tier_of(p, block);

	l->bytes[tier] += p->block_bytes;
	l->ns = larger(l->ns, tier == 0 ? PLACE_NEVER_NS :
		       place_tier_ns(&p->tier[tier], l->bytes[tier]));
}

uint64_t place_load_ns(const struct place *p, struct place_blocks blocks)
{
	struct load l = {{0}, 0};

	if (p->tier_of == NULL && p->tier_all != 0)
		return place_tier_ns(&p->tier[p->tier_all], blocks.count * p->block_bytes);
	for (uint32_t i = blocks.first; i < blocks.first + blocks.count; i++)
		load_add(p, &l, i);
	return l.ns;
}

uint64_t place_compute_ns(const struct place *p, struct place_blocks blocks)
{
	return place_engine_ns(&p->engine, (struct place_span){
		(uint64_t)blocks.first * p->block_tokens,
		(uint64_t)blocks.count * p->block_tokens});
}

static uint64_t suffix_ns(const struct place *p, const struct place_engine *e)
{
	return place_engine_ns(e, (struct place_span){
		(uint64_t)p->block_count * p->block_tokens, p->suffix_tokens});
}

/*
 * Layers of [0, k) come one after another; the engine's pass over [k, n) and the suffix goes on
 * layer by layer behind them: the slower of both is never waited for by more than one layer.
 */
static uint64_t prefix_ns(const struct place *p, const struct place_engine *e, uint32_t k,
			  uint64_t load)
{
	uint64_t compute = sum(place_engine_ns(e, (struct place_span){
		(uint64_t)k * p->block_tokens,
		(uint64_t)(p->block_count - k) * p->block_tokens}), suffix_ns(p, e));
	uint64_t layers = p->layer_count, first = bytes_min(load, sum(load / layers, p->mixed_ns));

	must(layers > 0 && k <= p->block_count);
	if (load == PLACE_NEVER_NS)
		return load;
	if (k > p->begun_count)
		first = larger(first, p->begun_ns);
	return larger(sum(load, compute / layers), sum(first, compute));
}

uint64_t place_prefix_ns(const struct place *p, uint32_t k)
{
	return prefix_ns(p, &p->engine, k, place_load_ns(p, (struct place_blocks){0, k}));
}

#define COSTS 3                            /* as it says, faster, slower */

/* The engines it may be, and the better of the two ends for each. */
struct costs {
	struct place_engine engine[COSTS];
	uint64_t better_ns[COSTS];
	unsigned count;
};

static uint64_t scaled(uint64_t ps, uint32_t by, uint32_t of)
{
	place_wide wide = (place_wide)ps * by / of;

	return wide < UINT64_MAX / 2 ? (uint64_t)wide : UINT64_MAX / 2;
}

static struct place_engine faster(const struct place *p)
{
	uint32_t of = 100 + (p->doubt_percent < 100 ? p->doubt_percent : 99);

#ifdef KVOF_PLANT_DOUBT_OF_TIME
	return (struct place_engine){scaled(p->engine.token_ps, 200 - of, 100),
				     scaled(p->engine.slope_ps, 200 - of, 100)};
#endif
	return (struct place_engine){scaled(p->engine.token_ps, 100, of),
				     scaled(p->engine.slope_ps, 100, of)};
}

static struct place_engine slower(const struct place *p)
{
	uint32_t of = 100 - (p->slower_percent < 100 ? p->slower_percent : 99);
	uint64_t tokens = (uint64_t)p->block_count * p->block_tokens;
	struct place_engine e = p->engine;

	if (tokens > 0)
		e.slope_ps += scaled(e.token_ps, p->slope_percent, 100) / tokens;
	return (struct place_engine){scaled(e.token_ps, 100, of), scaled(e.slope_ps, 100, of)};
}

static void costs_fill(const struct place *p, struct costs *c)
{
	uint32_t most = place_loadable(p);
	uint64_t load = place_load_ns(p, (struct place_blocks){0, most});

	*c = (struct costs){.engine = {p->engine, faster(p), slower(p)}, .count = 1};
	if (p->doubt_percent + p->slower_percent + p->slope_percent > 0)
		c->count = COSTS;
	for (unsigned i = 0; i < c->count; i++)
		c->better_ns[i] = bytes_min(prefix_ns(p, &c->engine[i], most, load),
					    prefix_ns(p, &c->engine[i], 0, 0));
}

static uint64_t cost_of(const struct place *p, const struct costs *c, uint32_t k, uint64_t load)
{
	uint64_t worst = 0;

	if (c->count == 1)
		return prefix_ns(p, &c->engine[0], k, load);
	for (unsigned i = 0; i < c->count; i++) {
		place_wide ns = prefix_ns(p, &c->engine[i], k, load);

		worst = larger(worst, narrow((ns << 20) /
					     (c->better_ns[i] > 0 ? c->better_ns[i] : 1)));
	}
	return worst;
}

uint64_t place_prefix_cost(const struct place *p, uint32_t k)
{
	struct costs c;

	costs_fill(p, &c);
	return cost_of(p, &c, k, place_load_ns(p, (struct place_blocks){0, k}));
}

uint64_t place_ends_ns(const struct place *p, uint32_t m)
{
	uint64_t load = place_load_ns(p, (struct place_blocks){m, p->block_count - m});
	uint64_t compute = place_compute_ns(p, (struct place_blocks){0, m});

	return sum(larger(load, compute), suffix_ns(p, &p->engine));
}

static bool engine_known(const struct place *p)
{
	return p->engine.token_ps > 0 || p->engine.slope_ps > 0;
}

uint32_t place_loadable(const struct place *p)
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
	struct load load = {{0}, 0};
	uint32_t next = s->from;

	for (uint32_t k = 0; k <= s->to; k++) {
		if (k > 0)
			load_add(p, &load, k - 1);
		if (k < next && k != s->to)
			continue;
		if (k >= s->from) {
			uint64_t cost = cost_of(p, &s->costs, k, load.ns);

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
	uint32_t most = place_loadable(p), step = most / PLACE_EXACT_BLOCKS + 1, around;
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
