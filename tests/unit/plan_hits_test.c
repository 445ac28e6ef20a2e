/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hits of every size from one pass, held to a list that is moved by hand and to published counts.
 * KVOF_TRACES names the folder with the public traces (docs/sources.md); without it what needs them
 * is skipped.
 */
#include "kt.h"

#include <math.h>
#include <stdio.h>

#include "base/must.h"
#include "base/prng.h"
#include "plan/hits.h"
#include "plan/workload.h"

static bool trace_open(const char *path, struct trace *t)
{
	struct trace_bad bad = {NULL, ""};
	FILE *f = fopen(path, "r");
	uint64_t line;

	*t = (struct trace){0};
	if (f == NULL)
		return false;
	expect_int(trace_read(t, f, 0, &line, &bad), 0);
	fclose(f);
	return true;
}

static bool public_open(const char *name, struct trace *t)
{
	const char *folder = getenv("KVOF_TRACES");
	char path[4096];

	if (folder == NULL || folder[0] == '\0')
		return false;
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return trace_open(path, t);
}

static struct hits counted(const struct trace *t, bool rev)
{
	struct hits_opts o = {.block_tokens = 512, .rev = rev};
	struct hits h;

	kt_noise(&h, sizeof(h));
	expect_int(hits_count(t, &o, &h), 0);
	return h;
}

/* Sequences over few blocks with repeats in any place, which no engine sends: what holds for them
 * holds for all. */
static void random_trace(uint64_t seed, unsigned requests, unsigned blocks, struct trace *t)
{
	struct prng r = prng_of(seed);

	*t = (struct trace){0};
	for (unsigned i = 0; i < requests; i++) {
		unsigned count = (unsigned)prng_below(&r, 12);
		uint64_t tokens = count > 0 ? count * 512 - prng_below(&r, 512) : 0;

		expect_int(trace_add(t, i * 100, tokens, 1), 0);
		for (unsigned n = 0; n < count; n++)
			expect_int(trace_add_block(t, prng_below(&r, blocks)), 0);
	}
}

/* --- the list that is moved by hand ----------------------------------------------------------- */

struct list {
	uint32_t block[2048];
	uint32_t count, room;
};

static bool list_has(const struct list *l, uint32_t block)
{
	for (uint32_t i = 0; i < l->count; i++)
		if (l->block[i] == block)
			return true;
	return false;
}

static void list_use(struct list *l, uint32_t block)
{
	uint32_t at = 0;

	while (at < l->count && l->block[at] != block)
		at++;
	if (at == l->count && l->count == l->room)
		at--;
	else if (at == l->count)
		l->count++;
	memmove(l->block + 1, l->block, at * sizeof(l->block[0]));
	l->block[0] = block;
}

static void list_count(const struct trace *t, uint32_t room, bool rev, uint64_t *blocks,
		       uint64_t *tokens)
{
	struct list l = {.room = room};

	*blocks = *tokens = 0;
	for (uint32_t i = 0; i < t->requests; i++) {
		const struct trace_request *q = &t->request[i];
		const uint32_t *block = &t->block[q->first];
		uint32_t hits = 0;

		while (hits < q->count && list_has(&l, block[hits]))
			hits++;
		*blocks += hits;
		*tokens += (uint64_t)hits * 512 < q->input_tokens ? (uint64_t)hits * 512 :
								     q->input_tokens;
		for (uint32_t n = 0; n < q->count; n++)
			list_use(&l, block[rev ? q->count - 1 - n : n]);
	}
}

TEST(every_size_hits_what_a_list_of_that_size_moved_by_hand_hits)
{
	for (unsigned seed = 1; seed <= 6; seed++) {
		struct trace t;

		random_trace(seed, 300, 5 + seed * seed * 8, &t);
		for (unsigned rev = 0; rev < 2; rev++) {
			struct hits h = counted(&t, rev);

			expect_int(hits_blocks_at(&h, 0), 0);
			for (uint32_t room = 1; room <= t.unique_blocks + 1; room++) {
				uint64_t blocks, tokens;

				list_count(&t, room, rev, &blocks, &tokens);
				expect_int(hits_blocks_at(&h, room), blocks);
				expect_int(hits_tokens_at(&h, room), tokens);
			}
			hits_free(&h);
		}
		trace_free(&t);
	}
}

/* 68 places for two blocks: they are given out anew every 66 uses. */
TEST(two_blocks_in_turn_for_a_long_time_stay_one_and_two_deep)
{
	struct trace t = {0};
	struct hits h;

	for (unsigned i = 0; i < 10000; i++) {
		expect_int(trace_add(&t, i, 512, 1), 0);
		expect_int(trace_add_block(&t, i % 2), 0);
	}
	h = counted(&t, false);
	expect_int(hits_blocks_at(&h, 1), 0);
	expect_int(hits_blocks_at(&h, 2), 9998);
	hits_free(&h);
	trace_free(&t);
}

TEST(a_trace_of_nothing_hits_nothing)
{
	struct trace t = {0};
	struct hits h = counted(&t, false);

	expect_int(hits_blocks_at(&h, 100), 0);
	expect_int(hits_capacity_of(&h, 1), 0);
	hits_free(&h);
	expect_int(trace_add(&t, 5, 0, 0), 0);
	h = counted(&t, false);
	expect_int(hits_tokens_at(&h, 1), 0);
	hits_free(&h);
	trace_free(&t);
}

TEST(hits_of_the_small_trace_are_those_of_a_naive_list)
{
	static const struct {
		uint64_t capacity, fwd, fwd_tokens, rev, rev_tokens;
	} rows[] = {
		{1, 0, 0, 170, 87040}, {5, 82, 41984, 222, 113664},
		{20, 306, 156672, 338, 173056}, {50, 474, 242688, 486, 248832},
		{100, 693, 354816, 697, 356864}, {200, 759, 388608, 759, 388608},
	};
	struct hits fwd, rev;
	struct trace t;

	expect(trace_open(DATA "/trace-small.jsonl", &t));
	fwd = counted(&t, false);
	rev = counted(&t, true);
	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		expect_int(hits_blocks_at(&fwd, rows[i].capacity), rows[i].fwd);
		expect_int(hits_tokens_at(&fwd, rows[i].capacity), rows[i].fwd_tokens);
		expect_int(hits_blocks_at(&rev, rows[i].capacity), rows[i].rev);
		expect_int(hits_tokens_at(&rev, rows[i].capacity), rows[i].rev_tokens);
	}
	hits_free(&fwd);
	hits_free(&rev);
	trace_free(&t);
}

/* --- the public traces ------------------------------------------------------------------------ */

static unsigned rate(uint64_t part, uint64_t whole, unsigned of)
{
	return (unsigned)((part * of * 2 + whole) / whole / 2);
}

TEST(hits_of_the_conversation_trace_are_the_published_ones_at_every_capacity)
{
	static const struct {
		uint64_t capacity, fwd;
		unsigned block_rate, token_rate, rev_rate;   /* in ten thousandths */
	} rows[] = {
		{195, 12018, 417, 425, 419}, {586, 12181, 422, 431, 423},
		{1953, 15337, 532, 542, 533}, {5860, 39101, 1355, 1382, 1361},
		{10000, 60921, 2112, 2153, 2116}, {19532, 82273, 2852, 2908, 2852},
		{30000, 93967, 3257, 3321, 3257}, {50000, 102290, 3546, 3615, 3546},
		{58594, 103511, 3588, 3658, 3588}, {100000, 104924, 3637, 3708, 3637},
		{182790, 105710, 3664, 3736, 3664},
	};
	struct hits fwd, rev;
	struct trace t;

	if (!public_open("mooncake_conversation_trace.jsonl", &t))
		skip_because("no public traces; KVOF_TRACES names their folder");
	fwd = counted(&t, false);
	rev = counted(&t, true);
	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		uint64_t room = rows[i].capacity;

		expect_int(hits_blocks_at(&fwd, room), rows[i].fwd);
		expect_int(rate(hits_blocks_at(&fwd, room), t.blocks, 10000), rows[i].block_rate);
		expect_int(rate(hits_tokens_at(&fwd, room), t.tokens, 10000), rows[i].token_rate);
		expect_int(rate(hits_blocks_at(&rev, room), t.blocks, 10000), rows[i].rev_rate);
	}
	expect_int(hits_capacity_of(&fwd, 1) <= 182790, 1);
	expect_int(hits_tokens_at(&fwd, hits_capacity_of(&fwd, 1)), fwd.hit_tokens[182790]);
	hits_free(&fwd);
	hits_free(&rev);
	trace_free(&t);
}

TEST(token_rates_in_bytes_are_the_published_ones_for_three_models)
{
	static const uint64_t gb[] = {500, 1000, 2000, 4000, 14000, 100000};
	static const struct {
		uint64_t token_bytes;
		unsigned permille[6];
	} rows[] = {
		{327680, {66, 141, 234, 312, 370, 374}},
		{253952, {84, 175, 263, 334, 371, 374}},
		{70272, {253, 326, 365, 372, 374, 374}},
	};
	struct trace t;
	struct hits h;

	if (!public_open("mooncake_conversation_trace.jsonl", &t))
		skip_because("no public traces; KVOF_TRACES names their folder");
	h = counted(&t, false);
	for (size_t i = 0; i < ARRAY_COUNT(rows); i++)
		for (size_t n = 0; n < ARRAY_COUNT(gb); n++) {
			uint64_t room = gb[n] * 1000000000 / (rows[i].token_bytes * 512);

			expect_int(rate(hits_tokens_at(&h, room), t.tokens, 1000),
				   rows[i].permille[n]);
		}
	hits_free(&h);
	trace_free(&t);
}

TEST(token_rates_of_the_synthetic_trace_are_the_published_ones)
{
	static const unsigned permille[] = {229, 371, 534, 637};
	struct trace t;
	struct hits h;

	if (!public_open("mooncake_synthetic_trace.jsonl", &t))
		skip_because("no public traces; KVOF_TRACES names their folder");
	h = counted(&t, false);
	for (unsigned i = 0; i < ARRAY_COUNT(permille); i++) {
		uint64_t room = (UINT64_C(500000000000) << i) / (UINT64_C(253952) * 512);

		expect_int(rate(hits_tokens_at(&h, room), t.tokens, 1000), permille[i]);
	}
	hits_free(&h);
	trace_free(&t);
}

/* --- sizes and devices ------------------------------------------------------------------------ */

static void near(double got, double want)
{
	if (fabs(got - want) > 1e-9 * (1 + fabs(want)))
		printf("# %.12g is not %.12g\n", got, want);
	expect(fabs(got - want) <= 1e-9 * (1 + fabs(want)));
}

/* Prompts of four blocks, each twice: the second time at a second of its own. */
static void twice_trace(struct trace *t, uint64_t second_ms)
{
	*t = (struct trace){0};
	for (unsigned i = 0; i < 4; i++) {
		expect_int(trace_add(t, i < 2 ? 0 : second_ms, 2048, 1), 0);
		for (unsigned n = 0; n < 4; n++)
			expect_int(trace_add_block(t, i % 2 * 4 + n), 0);
	}
}

TEST(more_room_and_a_faster_device_are_told_apart)
{
	const uint64_t sizes[] = {4, 8};
	const struct hits_load loads[] = {{0.125, 0.25}, {0.125, 0.125}};
	struct hits_opts o = {.block_tokens = 512, .capacity_blocks = sizes, .capacities = 2,
		.load = loads, .loads = 2, .token_s = 1.0 / 1024};
	struct trace t;
	struct hits h;

	twice_trace(&t, 8000);
	expect_int(hits_count(&t, &o, &h), 0);
	near(h.compute_s, 2);
	near(h.span_s, 8);
	expect_int(h.size[0].hit_blocks, 0);
	near(h.size[0].time[0].mean_s, 2);
	near(h.size[0].time[1].mean_s, 2);
	expect_int(h.size[1].hit_blocks, 8);
	expect_int(h.size[1].hit_tokens, 4096);
	expect_int(h.size[1].peak_blocks, 8);
	/* one second each at the device; the second one waits, and is served after 2.125 > 2 */
	near(h.size[1].time[0].mean_s, (2 + 2 + 1.125 + 2) / 4);
	near(h.size[1].time[0].busy_share, 1.0 / 8);
	expect_int(h.size[1].time[0].loaded_tokens, 2048);
	near(h.size[1].time[1].mean_s, (2 + 2 + 0.625 + 1.125) / 4);
	near(h.size[1].time[1].wait_s, 0.5 / 4);
	expect_int(h.size[1].time[1].loaded_tokens, 4096);
	hits_free(&h);
	trace_free(&t);
}

TEST(no_device_makes_a_first_token_later_than_computing_all)
{
	const uint64_t sizes[] = {10, 100, 1000, 100000};
	const struct hits_load loads[] = {{0, 0.001}, {0.1, 0.01}, {0.5, 0.1}, {3, 1}};
	struct hits_opts o = {.block_tokens = 512, .capacity_blocks = sizes,
		.capacities = ARRAY_COUNT(sizes), .load = loads, .loads = ARRAY_COUNT(loads),
		.token_s = 1.0 / 10000};
	const struct workload_opts w = {.seed = 9, .requests = 800, .block_tokens = 512};

	for (const char *const *name = workload_names(); *name != NULL; name++) {
		struct trace t = {0};
		struct hits h;

		expect_int(workload_make(*name, &w, &t), 0);
		for (o.speed = 1; o.speed <= 100; o.speed *= 10) {
			expect_int(hits_count(&t, &o, &h), 0);
			for (unsigned i = 0; i < o.capacities; i++)
				for (unsigned d = 0; d < o.loads; d++)
					expect(h.size[i].time[d].mean_s <= h.compute_s * 1.000001);
			hits_free(&h);
		}
		trace_free(&t);
	}
}

TEST(the_least_room_for_a_share_is_the_least)
{
	const struct workload_opts w = {.seed = 3, .requests = 1000, .block_tokens = 512};
	struct trace t = {0};
	struct hits h;

	expect_int(workload_make("mixed", &w, &t), 0);
	h = counted(&t, false);
	for (unsigned percent = 5; percent <= 100; percent += 5) {
		uint64_t room = hits_capacity_of(&h, percent / 100.0);
		double wanted = percent / 100.0 * (double)h.hit_tokens[h.unique_blocks];

		expect((double)hits_tokens_at(&h, room) >= wanted);
		expect(room > 0 && (double)hits_tokens_at(&h, room - 1) < wanted);
	}
	hits_free(&h);
	trace_free(&t);
}
