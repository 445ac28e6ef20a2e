/* SPDX-License-Identifier: Apache-2.0 */
/* The split of a prefix: by table, and against every split there is. */
#include "kt.h"

#include <stdlib.h>

#include "base/must.h"
#include "base/prng.h"
#include "cache/place.h"

#define BLOCKS 40

/* A block of 256 tokens takes 25.6 ms to compute; break-even is 40 MB/s of 1 MiB blocks. */
static struct place base_place(void)
{
	return (struct place){
		.tier[2] = {.latency_ns = 100000, .bytes_per_s = 40 * MiB},
		.engine = {.token_ps = 100 * 1000 * 1000},
		.tier_all = 2,
		.block_count = BLOCKS,
		.block_tokens = 256,
		.block_bytes = MiB,
		.suffix_tokens = 64,
		.layer_count = 30,
	};
}

TEST(a_token_costs_more_the_further_back_it_is)
{
	struct place_engine e = {.token_ps = 1000, .slope_ps = 1000};

	expect_int(place_engine_ns(&e, (struct place_span){0, 0}), 0);
	expect_int(place_engine_ns(&e, (struct place_span){0, 1}), 1);
	expect_int(place_engine_ns(&e, (struct place_span){0, 3}), 1 + 2 + 3);
	expect_int(place_engine_ns(&e, (struct place_span){2, 3}), 3 + 4 + 5);
	expect_int(place_engine_ns(&e, (struct place_span){5, 0}), 0);
}

TEST(a_tier_loads_behind_its_queue_and_nothing_takes_no_time)
{
	struct place_tier t = {.latency_ns = 5, .bytes_per_s = NS_PER_S, .queued_bytes = 1000};

	expect_int(place_tier_ns(&t, 0), 0);
	expect_int(place_tier_ns(&t, 1), 5 + 1000 + 1);
	t.bytes_per_s = 0;
	expect_int(place_tier_ns(&t, 1), PLACE_NEVER_NS);
	expect_int(place_tier_ns(&t, 0), 0);
}

TEST(no_numbers_are_too_large)
{
	struct place p = base_place();

	p.tier[2] = (struct place_tier){UINT64_MAX / 4, 1, UINT64_MAX / 2};
	p.engine = (struct place_engine){UINT64_MAX / 2, UINT64_MAX / 2};
	p.block_bytes = 16 * GiB;
	p.block_count = 1000;
	expect_int(place_load_ns(&p, (struct place_blocks){0, 1000}), PLACE_NEVER_NS);
	expect_int(place_compute_ns(&p, (struct place_blocks){0, 1000}), PLACE_NEVER_NS);
	expect_int(place_prefix_ns(&p, 500), PLACE_NEVER_NS);
	expect_int(place_ends_ns(&p, 500), PLACE_NEVER_NS);
	expect(place_prefix(&p) <= 1000);
	expect(place_ends(&p) <= 1000);
}

TEST(a_tier_far_from_break_even_decides_alone)
{
	static const struct {
		uint64_t bytes_per_s;
		uint32_t prefix, ends_least, ends_most;
	} row[] = {
		{400 * 1000 * MiB, BLOCKS, 0, 1},  /* 10000 times as fast as computing */
		{400 * MiB, BLOCKS - 3, 3, 4},     /* ten times: three blocks come for free */
		{40 * MiB, 20, 19, 21},
		{4 * MiB, 3, 36, 37},
		{40 * KiB, 0, BLOCKS, BLOCKS},
		{0, 0, BLOCKS, BLOCKS},
	};

	for (size_t i = 0; i < ARRAY_COUNT(row); i++) {
		struct place p = base_place();
		uint32_t k, m;

		p.tier[2].bytes_per_s = row[i].bytes_per_s;
		k = place_prefix(&p);
		m = place_ends(&p);
		if (k != row[i].prefix)
			printf("# row %zu: k %u, m %u\n", i, k, m);
		expect_int(k, row[i].prefix);
		expect(m >= row[i].ends_least && m <= row[i].ends_most);
	}
}

TEST(an_engine_that_is_not_known_loads_all_that_is_there)
{
	uint8_t tier_of[BLOCKS];
	struct place p = base_place();

	p.engine = (struct place_engine){0, 0};
	expect_int(place_prefix(&p), BLOCKS);
	expect_int(place_ends(&p), 0);
	memset(tier_of, 2, sizeof(tier_of));
	tier_of[7] = 0;
	p.tier_of = tier_of;
	expect_int(place_prefix(&p), 7);
}

TEST(a_hole_ends_the_prefix_and_is_behind_the_meeting_point)
{
	uint8_t tier_of[BLOCKS];
	struct place p = base_place();

	p.tier[2].bytes_per_s = 4000 * MiB;
	memset(tier_of, 2, sizeof(tier_of));
	tier_of[11] = 0;
	p.tier_of = tier_of;
	expect_int(place_prefix(&p), 11);
	expect_int(place_ends(&p), 12);
}

TEST(a_longer_queue_never_loads_more)
{
	struct place p = base_place();
	uint32_t k_before = BLOCKS, m_before = 0;

	p.tier[2].bytes_per_s = 100 * MiB;
	for (uint64_t queue = 0; queue < 400 * MiB; queue += 10 * MiB) {
		uint32_t k, m;

		p.tier[2].queued_bytes = queue;
		k = place_prefix(&p);
		m = place_ends(&p);
		expect(k <= k_before && m >= m_before);
		k_before = k;
		m_before = m;
	}
	expect_int(k_before, 0);
	expect(m_before >= BLOCKS - 1);
}

/* Any model of a seed. */
static struct place any_place(struct prng *r, uint8_t tier_of[BLOCKS])
{
	struct place p = {
		.engine = {prng_below(r, 1000 * 1000 * 1000) + 1, prng_below(r, 100000)},
		.block_count = (uint32_t)prng_below(r, BLOCKS + 1),
		.block_tokens = (uint32_t)prng_below(r, 512) + 1,
		.block_bytes = prng_below(r, 8 * MiB) + 1,
		.suffix_tokens = (uint32_t)prng_below(r, 1000),
		.layer_count = (uint32_t)prng_below(r, 64) + 1,
		.tier_all = (uint8_t)(1 + prng_below(r, 3)),
	};

	for (unsigned i = 1; i < PLACE_TIERS; i++) {
		p.tier[i].latency_ns = prng_below(r, 20 * NS_PER_MS);
		p.tier[i].bytes_per_s = prng_below(r, 8) == 0 ? 0 :
					UINT64_C(1) << (12 + prng_below(r, 24));
		p.tier[i].queued_bytes = prng_below(r, 3) == 0 ? prng_below(r, 100 * MiB) : 0;
	}
	if (prng_below(r, 2) == 0) {
		unsigned tier = p.tier_all;

		for (uint32_t i = 0; i < BLOCKS; i++) {
			if (prng_below(r, 10) == 0)
				tier = (unsigned)prng_below(r, PLACE_TIERS);
			tier_of[i] = (uint8_t)tier;
		}
		p.tier_of = tier_of;
	}
	return p;
}

TEST(no_split_is_sooner_than_the_one_that_is_chosen)
{
	struct prng r = prng_of(5);
	uint8_t tier_of[BLOCKS];

	for (int round = 0; round < 20000; round++) {
		struct place p = any_place(&r, tier_of);
		uint64_t prefix = place_prefix_ns(&p, place_prefix(&p));
		uint64_t ends = place_ends_ns(&p, place_ends(&p));

		for (uint32_t k = 0; k <= p.block_count; k++) {
			expect(prefix <= place_prefix_ns(&p, k));
			expect(ends <= place_ends_ns(&p, k));
		}
	}
}

TEST(an_engine_in_doubt_costs_the_least_at_its_worst)
{
	struct prng r = prng_of(6);
	uint8_t tier_of[BLOCKS];

	for (int round = 0; round < 5000; round++) {
		struct place p = any_place(&r, tier_of);
		uint64_t cost;

		p.doubt_percent = (uint32_t)prng_below(&r, 60) + 1;
		p.slower_percent = (uint32_t)prng_below(&r, 60);
		cost = place_prefix_cost(&p, place_prefix(&p));
		for (uint32_t k = 0; k <= p.block_count; k++)
			expect(cost <= place_prefix_cost(&p, k));
	}
}

/* 30 percent of the rate: so a token takes 100 / 130 of what was told, and not 70 / 100. */
TEST(doubt_is_of_the_rate_on_both_sides)
{
	struct place p = base_place(), fast = p, slow = p;

	p.tier[2].bytes_per_s = fast.tier[2].bytes_per_s = slow.tier[2].bytes_per_s = 20 * MiB;
	p.doubt_percent = p.slower_percent = 30;
	fast.engine.token_ps = p.engine.token_ps * 100 / 130;
	slow.engine.token_ps = p.engine.token_ps * 100 / 70;
	/* loading all is the worst for the fast engine, computing all for the slow one */
	expect_int(place_prefix_cost(&p, BLOCKS),
		   (place_prefix_ns(&fast, BLOCKS) << 20) / place_prefix_ns(&fast, 0));
	p.tier[2].bytes_per_s = slow.tier[2].bytes_per_s = 100 * MiB;
	expect_int(place_prefix_cost(&p, 0),
		   (place_prefix_ns(&slow, 0) << 20) / place_prefix_ns(&slow, BLOCKS));
}

TEST(in_doubt_a_split_is_no_worse_than_either_end_by_more_than_it_must_be)
{
	struct place p = base_place();

	p.doubt_percent = p.slower_percent = 30;
	for (uint64_t rate = 400 * KiB; rate < 4096 * MiB; rate = rate * 5 / 4) {
		p.tier[2].bytes_per_s = rate;
		expect(place_prefix_cost(&p, place_prefix(&p)) <= (UINT64_C(105) << 20) / 100);
	}
}

TEST(a_million_blocks_are_split_within_a_step_of_the_best)
{
	struct place p = base_place();
	uint64_t chosen;

	p.block_count = 1 << 20;
	p.block_tokens = 16;
	p.block_bytes = 64 * KiB;
	p.engine.slope_ps = 1;
	chosen = place_prefix_ns(&p, place_prefix(&p));
	for (uint32_t k = 0; k < p.block_count; k += 997)
		expect(chosen <= place_prefix_ns(&p, k) + place_prefix_ns(&p, k) / 1000);
}

TEST(devices_of_a_tier_count_by_the_one_that_has_most_to_do)
{
	struct place p = base_place();
	uint8_t lane_of[BLOCKS];

	p.tier[PLACE_TIERS] = (struct place_tier){0, 10 * MiB, 0};
	p.tier[PLACE_TIERS + 1] = (struct place_tier){0, 30 * MiB, 0};
	for (unsigned i = 0; i < BLOCKS; i++)
		lane_of[i] = (uint8_t)(PLACE_TIERS + (i % 4 != 0));
	p.tier_of = lane_of;
	expect_int(place_load_ns(&p, (struct place_blocks){0, 4}), NS_PER_S / 10);
	expect_int(place_load_ns(&p, (struct place_blocks){0, 5}), NS_PER_S / 5);
	expect_int(place_loadable(&p), BLOCKS);
	p.tier[PLACE_TIERS].bytes_per_s = 0;
	expect_int(place_loadable(&p), 0);
	lane_of[0] = PLACE_TIERS + 1;
	expect_int(place_loadable(&p), 4);
}

TEST(layer_0_is_later_by_what_is_under_way_beside_it)
{
	struct place p = base_place();
	uint64_t before = place_prefix_ns(&p, BLOCKS / 2), load;

	p.mixed_ns = NS_PER_MS;
	expect_int(place_prefix_ns(&p, BLOCKS / 2), before + NS_PER_MS);
	p.mixed_ns = 1000 * NS_PER_S;      /* but never later than all of it */
	load = place_load_ns(&p, (struct place_blocks){0, 1});
	expect_int(place_prefix_ns(&p, 1), load + place_compute_ns(&p, (struct place_blocks){1,
		BLOCKS - 1}) + place_engine_ns(&p.engine, (struct place_span){BLOCKS * 256, 64}));
}

TEST(a_slope_that_nobody_told_makes_computing_the_tail_doubtful)
{
	struct place p = base_place();
	uint64_t sure, doubtful;

	p.doubt_percent = p.slower_percent = 30;
	sure = place_prefix_cost(&p, 0);
	p.slope_percent = 100;
	doubtful = place_prefix_cost(&p, 0);
	expect(doubtful > sure);           /* of computing all, against loading all */
	expect(place_prefix(&p) >= BLOCKS / 2);
}
