/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a replay counts. The figures of the small trace are from a naive list; those of the
 * conversation trace are the published ones. KVOF_TRACES names the folder with the public traces
 * (docs/sources.md); without it what needs them is skipped.
 */
#include "kt.h"

#include <errno.h>
#include <stdio.h>

#include "base/must.h"
#include "cmd/replay.h"
#include "plan/simulate.h"
#include "plan/workload.h"

static bool trace_open(const char *path, struct trace *t)
{
	struct trace_bad bad = {NULL, ""};
	FILE *f = fopen(path, "r");
	uint64_t line;
	int rc;

	*t = (struct trace){0};
	if (f == NULL)
		return false;
	rc = trace_read(t, f, 0, &line, &bad);
	fclose(f);
	if (rc != 0)
		printf("# %s:%llu: %s %s\n", path, (unsigned long long)line,
		       bad.field != NULL ? bad.field : "the line", bad.why);
	expect_int(rc, 0);
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

struct counted {
	uint64_t blocks, tokens;
};

static struct counted counted(const struct trace *t, const char *policy, uint64_t capacity,
			      bool rev)
{
	struct replay_opts o = {.policy = policy, .capacity_blocks = capacity, .rev = rev,
		.block_tokens = 512, .seed = 1, .speed_percent = 100};
	struct replay_result r;

	expect_int(replay_run(t, &o, &r), 0);
	replay_result_free(&r);
	return (struct counted){r.hit_blocks, r.hit_tokens};
}

TEST(lru_hits_of_a_small_trace_are_those_of_a_naive_list)
{
	static const struct {
		uint64_t capacity;
		struct counted fwd, rev;
	} rows[] = {
		{1, {0, 0}, {170, 87040}},
		{5, {82, 41984}, {222, 113664}},
		{20, {306, 156672}, {338, 173056}},
		{50, {474, 242688}, {486, 248832}},
		{100, {693, 354816}, {697, 356864}},
		{200, {759, 388608}, {759, 388608}},
		{0, {759, 388608}, {759, 388608}},
	};
	struct trace t;

	expect(trace_open(DATA "/trace-small.jsonl", &t));
	expect_int(t.requests, 260);
	expect_int(t.blocks, 1566);
	expect_int(t.unique_blocks, 807);
	expect_int(t.tokens, 759651);
	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		struct counted fwd = counted(&t, "lru", rows[i].capacity, false);
		struct counted rev = counted(&t, "lru", rows[i].capacity, true);

		expect_int(fwd.blocks, rows[i].fwd.blocks);
		expect_int(fwd.tokens, rows[i].fwd.tokens);
		expect_int(rev.blocks, rows[i].rev.blocks);
		expect_int(rev.tokens, rows[i].rev.tokens);
	}
	trace_free(&t);
}

static const struct {
	uint64_t capacity, fwd;
	unsigned block_rate, token_rate, rev_rate;   /* in ten thousandths */
} conversation[] = {
	{195, 12018, 417, 425, 419}, {586, 12181, 422, 431, 423}, {1953, 15337, 532, 542, 533},
	{5860, 39101, 1355, 1382, 1361}, {10000, 60921, 2112, 2153, 2116},
	{19532, 82273, 2852, 2908, 2852}, {30000, 93967, 3257, 3321, 3257},
	{50000, 102290, 3546, 3615, 3546}, {58594, 103511, 3588, 3658, 3588},
	{100000, 104924, 3637, 3708, 3637}, {182790, 105710, 3664, 3736, 3664},
};

static unsigned rate(uint64_t part, uint64_t whole)
{
	return (unsigned)((part * 20000 + whole) / whole / 2);
}

TEST(lru_hits_of_the_conversation_trace_are_the_published_ones_at_every_capacity)
{
	struct trace t;

	if (!public_open("mooncake_conversation_trace.jsonl", &t))
		skip_because("no public traces; KVOF_TRACES names their folder");
	expect_int(t.requests, 12031);
	expect_int(t.blocks, 288500);
	expect_int(t.unique_blocks, 182790);
	for (size_t i = 0; i < ARRAY_COUNT(conversation); i++) {
		struct counted fwd = counted(&t, "lru", conversation[i].capacity, false);
		struct counted rev = counted(&t, "lru", conversation[i].capacity, true);

		expect_int(fwd.blocks, conversation[i].fwd);
		expect_int(rate(fwd.blocks, t.blocks), conversation[i].block_rate);
		expect_int(rate(fwd.tokens, t.tokens), conversation[i].token_rate);
		expect_int(rate(rev.blocks, t.blocks), conversation[i].rev_rate);
	}
	trace_free(&t);
}

TEST(the_default_hits_at_least_what_lru_hits_at_every_capacity)
{
	struct trace t;

	if (!public_open("mooncake_conversation_trace.jsonl", &t))
		skip_because("no public traces; KVOF_TRACES names their folder");
	for (size_t i = 0; i < ARRAY_COUNT(conversation); i++) {
		uint64_t hits = counted(&t, NULL, conversation[i].capacity, false).blocks;

		printf("# %llu blocks: %llu hits, lru %llu\n",
		       (unsigned long long)conversation[i].capacity, (unsigned long long)hits,
		       (unsigned long long)conversation[i].fwd);
		expect(hits >= conversation[i].fwd);
		if (conversation[i].capacity == 1953)
			expect(hits >= 2 * conversation[i].fwd);
	}
	trace_free(&t);
}

static void made(const char *name, struct trace *t)
{
	struct workload_opts w = {.seed = 2, .requests = 1200, .block_tokens = 512};

	*t = (struct trace){0};
	expect_int(workload_make(name, &w, t), 0);
}

TEST(with_room_for_all_every_policy_hits_all_that_comes_again)
{
	struct trace t;

	made("mixed", &t);
	for (const char *const *name = policy_names(); *name != NULL; name++) {
		expect_int(counted(&t, *name, 0, false).blocks, t.blocks - t.unique_blocks);
		expect_int(counted(&t, *name, t.unique_blocks, true).blocks,
			   t.blocks - t.unique_blocks);
	}
	trace_free(&t);
}

static struct replay_opts tiered(uint64_t dram_blocks, uint64_t flash_blocks,
				 uint64_t remote_blocks)
{
	return (struct replay_opts){.block_bytes = 1000, .block_tokens = 512, .seed = 1,
		.speed_percent = 100, .tier_bytes = {1000 * dram_blocks, 1000 * flash_blocks,
		1000 * remote_blocks}, .device = {{0, 20000000}, {100000, 6000000},
		{300000, 3000000}}};
}

TEST(tiers_add_up_and_bytes_are_those_of_their_blocks)
{
	struct replay_opts o = tiered(500, 3000, 100000);
	struct replay_result r;
	struct trace t;
	uint64_t hits = 0, tokens = 0;

	made("mixed", &t);
	expect_int(replay_run(&t, &o, &r), 0);
	expect(r.tiered && !r.timed);
	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		uint64_t read = 0, written = 0;

		expect(r.tier[i].hit_blocks > 0);
		expect_int(r.tier[i].read_bytes, 1000 * r.tier[i].hit_blocks);
		expect_int(r.tier[i].written_bytes,
			   1000 * (r.tier[i].used_blocks + r.tier[i].evicted_blocks));
		for (unsigned n = 0; n < REPLAY_SPANS; n++) {
			read += r.span[n].read_bytes[i];
			written += r.span[n].written_bytes[i];
		}
		expect_int(read, r.tier[i].read_bytes);
		expect_int(written, r.tier[i].written_bytes);
		hits += r.tier[i].hit_blocks;
		tokens += r.tier[i].hit_tokens;
	}
	expect_int(hits, r.hit_blocks);
	expect_int(tokens, r.hit_tokens);
	/* the arrays have room for all */
	expect_int(r.hit_blocks, t.blocks - t.unique_blocks);
	replay_result_free(&r);
	trace_free(&t);
}

TEST(a_cold_workload_promotes_nothing_and_second_touch_writes_nothing)
{
	struct replay_opts o = tiered(100, 1000, 10000);
	struct replay_result r;
	struct trace t;

	made("cold-long", &t);
	o.second_touch[REPLAY_FLASH] = true;
	expect_int(replay_run(&t, &o, &r), 0);
	expect_int(r.hit_blocks, 0);
	for (unsigned i = 0; i < REPLAY_TIERS; i++)
		expect_int(r.tier[i].promoted_blocks, 0);
	expect_int(r.tier[REPLAY_FLASH].written_bytes, 0);
	expect_int(r.tier[REPLAY_FLASH].refused_blocks, t.blocks);
	expect_int(r.tier[REPLAY_DRAM].written_bytes, r.saved_bytes);
	replay_result_free(&r);
	trace_free(&t);
}

TEST(the_first_token_never_comes_later_than_without_the_tiers)
{
	/* a tier far slower than the engine, one far faster, and about the same */
	static const uint64_t rates[] = {1000, 100000, 1000000, 100000000};
	struct trace t;

	made("shared-prefix", &t);
	for (size_t i = 0; i < ARRAY_COUNT(rates); i++) {
		struct replay_opts o = tiered(0, 0, 100000);
		struct replay_result r;

		o.device[REPLAY_REMOTE].bytes_per_s = rates[i];
		o.prefill_tokens_per_s = 20000;
		expect_int(replay_run(&t, &o, &r), 0);
		printf("# %llu bytes/s: p50 %.3f s with, %.3f s without, %llu blocks computed\n",
		       (unsigned long long)rates[i], r.with.p50, r.without.p50,
		       (unsigned long long)r.skipped_blocks);
		expect(r.timed && r.with.p50 <= r.without.p50 && r.with.mean <= r.without.mean);
		for (uint32_t n = 0; n < t.requests; n++)
			expect(r.with_s[n] <= r.without_s[n]);
		if (i == 0)
			expect(r.skipped_blocks > 0);
		if (i == ARRAY_COUNT(rates) - 1)
			expect(r.skipped_blocks == 0 && 4 * r.with.p50 < r.without.p50);
		replay_result_free(&r);
	}
	trace_free(&t);
}

TEST(engines_are_waited_for_and_speed_brings_requests_closer)
{
	double before = 0;
	struct trace t;

	made("cold-long", &t);
	for (unsigned i = 0; i < 3; i++) {
		struct replay_opts o = tiered(10, 0, 0);
		struct replay_result r;

		o.prefill_tokens_per_s = 20000;
		o.engines = i == 0 ? 0 : 4;
		o.speed_percent = i == 2 ? 1000 : 100;
		expect_int(replay_run(&t, &o, &r), 0);
		expect(r.with.mean > before);
		before = r.with.mean;
		replay_result_free(&r);
	}
	trace_free(&t);
}

TEST(an_empty_trace_and_a_request_without_blocks_are_no_trouble)
{
	struct replay_opts o = tiered(10, 10, 10);
	struct replay_result r;
	struct trace t = {0};

	o.prefill_tokens_per_s = 1;
	o.engines = 2;
	expect_int(replay_run(&t, &o, &r), 0);
	expect_int(r.requests, 0);
	replay_result_free(&r);
	expect_int(trace_add(&t, TRACE_TIME_MS_MAX, TRACE_TOKENS_MAX, 0), 0);
	expect_int(trace_add(&t, 0, 0, 0), 0);
	expect_int(replay_run(&t, &o, &r), 0);
	expect_int(r.hit_blocks, 0);
	replay_result_free(&r);
	expect_int(counted(&t, NULL, 5, false).blocks, 0);
	trace_free(&t);
}

/* --- the planner's simulator, one request after another ------------------------------------ */

static void simulated_alike(const struct trace *t, const struct replay_opts *o)
{
	const struct kvof_plan_arm arm = {.kind = KVOF_PLAN_ARRAY, .bytes_per_s = 1e12};
	struct simulate_opts s = {.seed = 1, .arrivals = SIMULATE_TRACE, .load = SIMULATE_ALWAYS,
		.block_tokens = 512, .token_bytes = (double)o->block_bytes / 512};
	struct kvof_plan_bad bad;
	struct simulate_result got;
	struct replay_result want;

	expect_int(replay_run(t, o, &want), 0);
	for (unsigned i = 0; i < TIERS; i++)
		s.tier[i] = (struct simulate_tier){.present = o->tier_bytes[i] > 0,
			.second_touch = o->second_touch[i], .arm = arm,
			.capacity_blocks = o->tier_bytes[i] / o->block_bytes};
	expect_int(simulate(t, &s, &got, &bad), 0);
	expect_int(got.hit_blocks, want.hit_blocks);
	expect_int(got.hit_tokens, want.hit_tokens);
	for (unsigned i = 0; i < TIERS; i++) {
		const struct simulate_tier_result *tier = &got.tier[i];

		if (!want.tier[i].present)
			continue;
		expect_int(tier->hit_blocks, want.tier[i].hit_blocks);
		expect_int(tier->hit_tokens, want.tier[i].hit_tokens);
		expect_int(tier->evicted, want.tier[i].evicted_blocks);
		expect_int(tier->promoted, want.tier[i].promoted_blocks);
		expect_int(tier->refused, want.tier[i].refused_blocks);
		expect_int(tier->touched, want.tier[i].touches);
		expect_int(tier->read_bytes, want.tier[i].read_bytes);
		expect_int(tier->written_bytes, want.tier[i].written_bytes);
	}
	simulate_free(&got);
	replay_result_free(&want);
}

TEST(the_simulator_counts_what_a_replay_of_the_same_tiers_counts)
{
	static const uint64_t sizes[][REPLAY_TIERS] = {
		{300, 0, 0}, {0, 2000, 0}, {50, 400, 0}, {200, 1500, 9000}, {100, 0, 5000},
		{1, 7, 3000}, {1000, 5000, 30000},
	};
	const struct workload_opts w = {.seed = 11, .requests = 900, .block_tokens = 512};

	for (const char *const *name = workload_names(); *name != NULL; name++) {
		struct trace t = {0};

		expect_int(workload_make(*name, &w, &t), 0);
		for (uint32_t i = 0; i < t.requests; i++)
			t.request[i].time_ms += i;         /* no two at once */
		for (size_t i = 0; i < ARRAY_COUNT(sizes) * 2; i++) {
			struct replay_opts o = {.policy = "lru", .block_tokens = 512, .seed = 1,
				.speed_percent = 100, .block_bytes = 1 << 20,
				.second_touch[REPLAY_FLASH] = i >= ARRAY_COUNT(sizes)};

			for (unsigned n = 0; n < REPLAY_TIERS; n++)
				o.device[n].bytes_per_s = UINT64_C(1000000000);
			for (unsigned n = 0; n < REPLAY_TIERS; n++)
				o.tier_bytes[n] = sizes[i % ARRAY_COUNT(sizes)][n] << 20;
			simulated_alike(&t, &o);
		}
		trace_free(&t);
	}
}
