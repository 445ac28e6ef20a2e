/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of the closed form turned round: what is told holds, and one more does not, over seeded
 * arms; break-even worked by hand; the published rows.
 */
#include "kt.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include <kvof/plan.h>

#include "base/prng.h"

#define SESSION 7671382016.0
#define TOKENS 30208.0

static struct kvof_plan_bad bad;
static struct kvof_plan_sla sla;

/* Two-point fits of published rows: the array 7.54 s at 8 and 26.37 s at 32 sessions, a local
 * drive 10.18 and 35.75 s. */
static const struct kvof_plan_arm array = {.kind = KVOF_PLAN_ARRAY, .source = KVOF_PLAN_ROWS,
	.fixed_s = 7.54 - 8 * (26.37 - 7.54) / 24, .bytes_per_s = SESSION * 24 / (26.37 - 7.54),
	.median_share = 1, .output_tokens = 64};
static const struct kvof_plan_arm local = {.kind = KVOF_PLAN_LOCAL, .source = KVOF_PLAN_ROWS,
	.fixed_s = 10.18 - 8 * (35.75 - 10.18) / 24, .bytes_per_s = SESSION * 24 / (35.75 - 10.18),
	.median_share = 1, .output_tokens = 64};

static void near(double got, double want, double share)
{
	if (!(fabs(got - want) <= share * fabs(want)))
		fail_msg("%.9g, not %.9g within %g", got, want, share);
}

static double rank_s(const struct kvof_plan_ttft *t, enum kvof_plan_rank rank)
{
	return rank == KVOF_PLAN_P50 ? t->p50_s : rank == KVOF_PLAN_P90 ? t->p90_s : t->last_s;
}

static double uniform(struct prng *r, double low, double high)
{
	return low + (high - low) * (double)(prng_next(r) >> 11) / 9007199254740992.0;
}

static struct kvof_plan_arm any_arm(struct prng *r)
{
	struct kvof_plan_arm arm = {.kind = KVOF_PLAN_ARRAY, .fixed_s = uniform(r, 0, 3),
		.session_s = uniform(r, 0, 0.05), .median_share = 1};

	switch (prng_below(r, 3)) {
	case 0:
		arm.kind = KVOF_PLAN_RECOMPUTE;
		arm.tokens_per_s = uniform(r, 500, 50000);
		arm.token2_s = uniform(r, 0, 1e-9);
		arm.median_share = 0.5;
		arm.median_rank = 1;
		break;
	case 1:
		arm.bytes_per_s = uniform(r, 1e8, 5e10);
		break;
	default:
		arm.bytes_per_s = uniform(r, 1e8, 5e10);
		arm.session_bytes_per_s = uniform(r, 1e8, 1e10);
		break;
	}
	return arm;
}

static double at_s(const struct kvof_plan_arm *arm, struct kvof_plan_wave w, uint32_t staged,
		   enum kvof_plan_rank rank)
{
	struct kvof_plan_ttft t;

	expect_int(staged > 0 ? kvof_plan_staged_ttft(arm, &w, staged, &t, &bad) :
		   kvof_plan_ttft(arm, &w, &t, &bad), 0);
	return rank_s(&t, rank);
}

/* --- how many sessions ------------------------------------------------------------------------ */

TEST(five_seconds_allow_between_four_and_five_sessions_of_30k_on_the_published_array)
{
	const struct kvof_plan_wave wave = {TOKENS, SESSION, 1, 0};

	kt_noise(&sla, sizeof(sla));
	expect_int(kvof_plan_sla_sessions(&array, &wave, 0, KVOF_PLAN_LAST, 5, &sla, &bad), 0);
	expect_int(sla.sessions, 4);
	near(sla.at_s, 1.263333 + 4 * 0.784583, 1e-6);
	near(sla.next_s, 1.263333 + 5 * 0.784583, 1e-6);
	/* 4.76 with a fraction. */
	near(4 + (5 - sla.at_s) / (sla.next_s - sla.at_s), 4.763, 1e-3);
	expect(!sla.unbounded);
	/* The local drive allows 3, and no row of either meets 5 s. */
	expect_int(kvof_plan_sla_sessions(&local, &wave, 0, KVOF_PLAN_LAST, 5, &sla, &bad), 0);
	expect_int(sla.sessions, 3);
	expect_int(kvof_plan_sla_sessions(&array, &wave, 0, KVOF_PLAN_LAST, 1, &sla, &bad), 0);
	expect_int(sla.sessions, 0);
	near(sla.next_s, 2.047917, 1e-6);
}

TEST(the_median_of_a_queue_allows_more_sessions_than_its_last)
{
	/* One after another at 2 s: the last of N has 2 N, the median 2 (N / 2 + 1). */
	const struct kvof_plan_arm recompute = {.kind = KVOF_PLAN_RECOMPUTE, .tokens_per_s = 5000,
		.median_share = 0.5, .median_rank = 1};
	const struct kvof_plan_wave wave = {10000, 0, 1, 0};

	expect_int(kvof_plan_sla_sessions(&recompute, &wave, 0, KVOF_PLAN_LAST, 10, &sla, &bad), 0);
	expect_int(sla.sessions, 5);
	expect_int(kvof_plan_sla_sessions(&recompute, &wave, 0, KVOF_PLAN_P50, 10, &sla, &bad), 0);
	expect_int(sla.sessions, 8);
	expect_int(kvof_plan_sla_sessions(&recompute, &wave, 0, KVOF_PLAN_P90, 10, &sla, &bad), 0);
	expect_int(sla.sessions, 5);
}

TEST(the_number_of_sessions_holds_and_one_more_does_not)
{
	struct prng r = prng_of(0x51a5);

	for (int i = 0; i < 3000; i++) {
		const struct kvof_plan_arm arm = any_arm(&r);
		const enum kvof_plan_rank rank = (enum kvof_plan_rank)prng_below(&r, 3);
		const double limit = uniform(&r, 0.1, 60);
		const uint32_t staged = prng_chance(&r, 250000) ?
			1 + (uint32_t)prng_below(&r, 20) : 0;
		struct kvof_plan_wave w = {uniform(&r, 100, 1e5), 0, 7,
			prng_chance(&r, 300000) ? (uint32_t)prng_below(&r, 5) : 0};
		uint32_t resident = w.resident;

		w.bytes = w.tokens * uniform(&r, 1e3, 3e5);
		expect_int(kvof_plan_sla_sessions(&arm, &w, staged, rank, limit, &sla, &bad), 0);
		w.sessions = sla.sessions;
		w.resident = resident < w.sessions ? resident : w.sessions;
		if (sla.sessions > 0 && !(at_s(&arm, w, staged, rank) <= limit))
			fail_msg("%d: %u sessions take longer than %g s", i, sla.sessions, limit);
		w.sessions++;
		w.resident = resident < w.sessions ? resident : w.sessions;
		if (!sla.unbounded && !(at_s(&arm, w, staged, rank) > limit))
			fail_msg("%d: one more than %u holds too", i, sla.sessions);
		near(sla.next_s, at_s(&arm, w, staged, rank), 1e-12);
	}
}

TEST(an_arm_that_is_never_too_slow_says_so)
{
	const struct kvof_plan_arm fast = {.kind = KVOF_PLAN_DRAM, .bytes_per_s = 1e20,
		.median_share = 1};
	const struct kvof_plan_wave wave = {100, 1e6, 1, 0};

	expect_int(kvof_plan_sla_sessions(&fast, &wave, 0, KVOF_PLAN_LAST, 5, &sla, &bad), 0);
	expect(sla.unbounded && sla.sessions == KVOF_PLAN_SESSIONS_MAX);
	expect_int(kvof_plan_sla_sessions(&fast, &wave, 0, KVOF_PLAN_LAST, 0, &sla, &bad), -EINVAL);
	expect_str(bad.field, "limit_s");
	expect_int(kvof_plan_sla_sessions(&fast, &wave, 0, KVOF_PLAN_LAST, NAN, &sla, &bad),
		   -EINVAL);
	expect_int(kvof_plan_sla_sessions(&fast, &wave, 0, (enum kvof_plan_rank)7, 5, &sla, &bad),
		   -EINVAL);
}

/* --- how long a context ----------------------------------------------------------------------- */

TEST(the_longest_context_of_the_published_array_for_eight_sessions)
{
	const struct kvof_plan_length length = {.token_bytes = 253952};
	uint64_t tokens;

	expect_int(kvof_plan_sla_tokens(&array, &length, 8, 0, KVOF_PLAN_LAST, 5, &tokens,
					&bad), 0);
	/* (5 - 1.263333) s x 9.77765e9 B/s / (8 x 253,952 B) */
	near((double)tokens, 17983.6, 1e-4);
	expect_int(kvof_plan_sla_tokens(&array, &length, 8, 0, KVOF_PLAN_LAST, 1, &tokens,
					&bad), 0);
	expect_int(tokens, 0);
	expect_int(kvof_plan_sla_tokens(&array, &length, 8, 8, KVOF_PLAN_LAST, 5, &tokens,
					&bad), 0);
	expect_int(tokens, KVOF_PLAN_TOKENS_MAX);
}

static const char slides[] = "{\"model_type\": \"gpt_oss\", \"num_hidden_layers\": 24, "
	"\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 64, "
	"\"sliding_window\": 128}";

TEST(bytes_of_a_length_follow_windows_and_lie_straight_between_tokens)
{
	/* 12 layers see all and 12 the last 128 tokens, 2,048 bytes a layer and token. */
	struct kvof_plan_geometry geometry;
	struct kvof_plan_model model;
	const struct kvof_plan_length length = {&model, &geometry, 1}, flat = {NULL, NULL, 5};

	expect_int(kvof_plan_model_read(slides, sizeof(slides) - 1, &model, &bad), 0);
	expect_int(kvof_plan_geometry(&model, &(struct kvof_plan_split){1, 0}, &geometry, &bad), 0);
	near(kvof_plan_length_bytes(&length, 128), 24 * 2048.0 * 128, 1e-12);
	near(kvof_plan_length_bytes(&length, 1000), 12 * 2048.0 * 1128, 1e-12);
	near(kvof_plan_length_bytes(&length, 127.5), 24 * 2048.0 * 127.5, 1e-12);
	near(kvof_plan_length_bytes(&length, 128.5), 24 * 2048.0 * 128 + 12 * 1024.0, 1e-12);
	near(kvof_plan_length_bytes(&flat, 100), 500, 1e-12);
	/* What no session has is more than any can load. */
	expect(kvof_plan_length_bytes(&length, NAN) > 1e20);
	expect(kvof_plan_length_bytes(&length, -1) > 1e20);
}

TEST(the_longest_context_holds_and_one_token_more_does_not)
{
	struct kvof_plan_geometry geometry;
	struct kvof_plan_model model;
	struct prng r = prng_of(0xc0de);

	expect_int(kvof_plan_model_read(slides, sizeof(slides) - 1, &model, &bad), 0);
	expect_int(kvof_plan_geometry(&model, &(struct kvof_plan_split){1, 0}, &geometry, &bad), 0);
	for (int i = 0; i < 2000; i++) {
		const struct kvof_plan_length length = {prng_chance(&r, 500000) ? &model : NULL,
			&geometry, uniform(&r, 1e3, 3e5)};
		const struct kvof_plan_arm arm = any_arm(&r);
		const enum kvof_plan_rank rank = (enum kvof_plan_rank)prng_below(&r, 3);
		const double limit = uniform(&r, 0.1, 60);
		struct kvof_plan_wave w = {.sessions = 1 + (uint32_t)prng_below(&r, 64)};
		uint64_t tokens;

		expect_int(kvof_plan_sla_tokens(&arm, &length, w.sessions, 0, rank, limit, &tokens,
						&bad), 0);
		w.tokens = (double)tokens;
		w.bytes = kvof_plan_length_bytes(&length, w.tokens);
		if (tokens > 0)
			expect(at_s(&arm, w, 0, rank) <= limit);
		w.tokens += 1;
		w.bytes = kvof_plan_length_bytes(&length, w.tokens);
		if (tokens < KVOF_PLAN_TOKENS_MAX)
			expect(at_s(&arm, w, 0, rank) > limit);
	}
}

/* --- saturation ------------------------------------------------------------------------------- */

TEST(the_published_array_is_in_use_nine_tenths_of_the_time_from_fifteen_sessions)
{
	struct kvof_plan_wave wave = {TOKENS, SESSION, 1, 0};
	struct kvof_plan_saturation s;
	struct kvof_plan_ttft t;

	kt_noise(&s, sizeof(s));
	expect_int(kvof_plan_saturation_make(&array, &wave, 0.9, &s, &bad), 0);
	near(s.busy_sessions, 0.9 * 1.263333 / (0.1 * 0.784583), 1e-5);         /* 14.49 */
	near(s.throughput_sessions, s.busy_sessions, 1e-9);
	near(s.limit_tokens_per_s, 64 / 0.784583, 1e-5);
	expect(s.ceiling_sessions == 0);
	wave.sessions = 15;
	expect_int(kvof_plan_ttft(&array, &wave, &t, &bad), 0);
	expect(t.tokens_per_s >= 0.9 * s.limit_tokens_per_s);
	wave.sessions = 14;
	expect_int(kvof_plan_ttft(&array, &wave, &t, &bad), 0);
	expect(t.tokens_per_s < 0.9 * s.limit_tokens_per_s);
}

TEST(a_ceiling_of_each_session_is_a_saturation_point_of_its_own)
{
	/* 10e9 B/s, of which one session has 2e9: five fill it. */
	struct kvof_plan_arm arm = {.kind = KVOF_PLAN_ARRAY, .bytes_per_s = 10e9,
		.session_bytes_per_s = 2e9, .median_share = 1};
	const struct kvof_plan_wave wave = {1000, 1e9, 1, 0};
	struct kvof_plan_saturation s;

	expect_int(kvof_plan_saturation_make(&arm, &wave, 0.9, &s, &bad), 0);
	near(s.ceiling_sessions, 5, 1e-12);
	near(s.busy_sessions, 5, 1e-12);
	/* Requests as long as the bytes: the rate is never in use more than half of the time. */
	arm.session_s = 0.1;
	expect_int(kvof_plan_saturation_make(&arm, &wave, 0.9, &s, &bad), 0);
	expect(isinf(s.busy_sessions));
	expect_int(kvof_plan_saturation_make(&arm, &wave, 1, &s, &bad), -EINVAL);
}

/* --- load or recompute ------------------------------------------------------------------------ */

static struct kvof_plan_even_at even(double load_fixed, double load_tokens_per_s,
				     double compute_fixed, double token2_s, uint32_t sessions)
{
	const struct kvof_plan_length length = {.token_bytes = 1e5};
	const struct kvof_plan_arm load = {.kind = KVOF_PLAN_ARRAY, .fixed_s = load_fixed,
		.bytes_per_s = load_tokens_per_s * 1e5, .median_share = 1};
	const struct kvof_plan_arm compute = {.kind = KVOF_PLAN_RECOMPUTE,
		.fixed_s = compute_fixed, .tokens_per_s = 4000, .token2_s = token2_s,
		.median_share = 0.5, .median_rank = 1};
	struct kvof_plan_even_at at;

	kt_noise(&at, sizeof(at));
	expect_int(kvof_plan_even_tokens(&load, &compute, &length, sessions, &at, &bad), 0);
	return at;
}

TEST(a_load_is_sooner_from_the_length_at_which_its_fixed_time_is_paid_back)
{
	/* T / 4000 = 2 + T / 10000 */
	struct kvof_plan_even_at at = even(2, 10000, 0, 0, 1);

	expect_int(at.load, KVOF_PLAN_LOAD_FROM);
	near(at.from_tokens, 13333.333, 1e-6);
	at = even(2, 10000, 0, 0, 4);
	expect_int(at.load, KVOF_PLAN_LOAD_FROM);
	near(at.from_tokens, 3333.333, 1e-6);
	at = even(0, 10000, 0, 0, 1);
	expect_int(at.load, KVOF_PLAN_LOAD_ALWAYS);
	/* A link slower than the GPU never pays, but where attention grows: T / 4000 + 1e-8 T^2 =
	 * 2 + T / 2000. */
	at = even(2, 2000, 0, 0, 1);
	expect_int(at.load, KVOF_PLAN_LOAD_NEVER);
	at = even(2, 2000, 0, 1e-8, 1);
	expect_int(at.load, KVOF_PLAN_LOAD_FROM);
	near(at.from_tokens, (0.00025 + sqrt(6.25e-8 + 8e-8)) / 2e-8, 1e-6);
}

TEST(a_slow_link_that_starts_sooner_pays_for_short_prompts_only)
{
	/* 3 + T / 4000 = 2 + T / 2000 */
	struct kvof_plan_even_at at = even(2, 2000, 3, 0, 1);

	expect_int(at.load, KVOF_PLAN_LOAD_UNTIL);
	near(at.until_tokens, 4000, 1e-6);
	/* And with attention again from 20,000 on: 1e-8 T^2 - 0.00025 T + 1 = 0. */
	at = even(2, 2000, 3, 1e-8, 1);
	expect_int(at.load, KVOF_PLAN_LOAD_OUTSIDE);
	near(at.until_tokens, 5000, 1e-6);
	near(at.from_tokens, 20000, 1e-6);
}

TEST(around_the_break_even_the_sooner_arm_changes)
{
	struct prng r = prng_of(0xe7e2);
	unsigned crossed = 0;

	for (int i = 0; i < 500; i++) {
		const struct kvof_plan_length length = {.token_bytes = 1e5};
		struct kvof_plan_arm load = {.kind = KVOF_PLAN_LOCAL,
			.fixed_s = uniform(&r, 0.1, 3), .bytes_per_s = uniform(&r, 1e8, 1e10),
			.median_share = 1};
		struct kvof_plan_arm compute = {.kind = KVOF_PLAN_RECOMPUTE,
			.tokens_per_s = uniform(&r, 1000, 20000), .token2_s = 1e-9,
			.median_share = 0.5, .median_rank = 1};
		struct kvof_plan_even_at at;
		struct kvof_plan_wave w = {.sessions = 1 + (uint32_t)prng_below(&r, 32)};

		expect_int(kvof_plan_even_tokens(&load, &compute, &length, w.sessions, &at, &bad),
			   0);
		if (at.load != KVOF_PLAN_LOAD_FROM)
			continue;
		crossed++;
		for (int side = -1; side <= 1; side += 2) {
			w.tokens = at.from_tokens * (1 + side * 1e-4);
			w.bytes = w.tokens * 1e5;
			expect((at_s(&load, w, 0, KVOF_PLAN_LAST) <
				at_s(&compute, w, 0, KVOF_PLAN_LAST)) == (side > 0));
		}
	}
	expect(crossed > 300);
}

TEST(break_even_in_bandwidth_makes_both_arms_take_the_same)
{
	const struct kvof_plan_arm compute = {.kind = KVOF_PLAN_RECOMPUTE, .tokens_per_s = 4000,
		.median_share = 0.5, .median_rank = 1};
	struct kvof_plan_arm load = {.kind = KVOF_PLAN_ARRAY, .fixed_s = 2, .bytes_per_s = 1e10,
		.median_share = 1};
	struct kvof_plan_wave wave = {10000, 1e9, 4, 0};
	double rate;

	/* 4 x 2.5 s of computing - 2 s leave 8 s for 4 GB. */
	expect_int(kvof_plan_even_rate(&load, &compute, &wave, &rate, &bad), 0);
	near(rate, 0.5e9, 1e-12);
	load.bytes_per_s = rate;
	near(at_s(&load, wave, 0, KVOF_PLAN_LAST), at_s(&compute, wave, 0, KVOF_PLAN_LAST), 1e-12);
	load.fixed_s = 10;
	expect_int(kvof_plan_even_rate(&load, &compute, &wave, &rate, &bad), 0);
	expect(isinf(rate));
	load.fixed_s = 2;
	load.session_bytes_per_s = 0.1e9;                /* one alone takes 10 s */
	expect_int(kvof_plan_even_rate(&load, &compute, &wave, &rate, &bad), 0);
	expect(isinf(rate));
	wave.bytes = 0;
	expect_int(kvof_plan_even_rate(&load, &compute, &wave, &rate, &bad), -EINVAL);
}

TEST(arms_that_can_not_be_compared_are_refused)
{
	const struct kvof_plan_length length = {.token_bytes = 1e5}, none = {0};
	struct kvof_plan_even_at at;

	expect_int(kvof_plan_even_tokens(&array, &local, &length, 1, &at, &bad), -EINVAL);
	expect_str(bad.field, "recompute");
	expect_int(kvof_plan_even_tokens(&array, &local, &length, 0, &at, &bad), -EINVAL);
	expect_str(bad.field, "sessions");
	expect_int(kvof_plan_even_tokens(&array, &(struct kvof_plan_arm){
		.kind = KVOF_PLAN_RECOMPUTE, .tokens_per_s = 1000, .median_share = 1}, &none, 1,
		&at, &bad), -EINVAL);
	expect_str(bad.field, "bytes");
}
