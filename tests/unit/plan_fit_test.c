/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arms from rows that a known arm made: what went in comes out, whatever cells are missing; rows
 * off the line are named; what can't be told is said and not guessed.
 */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include <kvof/plan.h>

#include "base/must.h"
#include "base/prng.h"
#include "plan/line.h"

static bool within(const char *what, double got, double want, double share)
{
	bool is = fabs(got - want) <= share * (fabs(want) + 1e-3);

	if (!is)
		print_message("# %s is %.9g and not %.9g\n", what, got, want);
	return is;
}
#define expect_within(got, want, share) assert_true(within(#got, got, want, share))
#define expect_near(got, want) expect_within(got, want, 1e-6)

static struct kvof_plan_row rows[64];
static uint32_t count;
static struct kvof_plan_fit_out out;
static struct kvof_plan_bad bad;

static const struct kvof_plan_arm truth = {.kind = KVOF_PLAN_ARRAY, .fixed_s = 1.5,
	.tokens_per_s = 40000, .median_share = 0.9, .median_rank = 0.25, .tail_fixed_s = 1,
	.tail_session_s = 0.03, .output_tokens = 64};

static struct kvof_plan_row *row_of(const struct kvof_plan_arm *arm, uint32_t sessions,
				    double tokens, uint32_t resident)
{
	const struct kvof_plan_wave wave = {.tokens = tokens, .bytes = tokens * 1000,
		.sessions = sessions, .resident = resident};
	struct kvof_plan_row *row = &rows[count++];
	struct kvof_plan_ttft t;

	expect_int(kvof_plan_ttft(arm, &wave, &t, &bad), 0);
	*row = (struct kvof_plan_row){.kind = arm->kind, .line = count + 1,
		.concurrency = sessions, .tokens = tokens, .ttft_p50_s = t.p50_s,
		.ttft_last_s = t.last_s, .tokens_per_s = t.tokens_per_s};
	return row;
}

static int fit_asked(const struct kvof_plan_fit_ask *ask)
{
	kt_noise(&out, sizeof(out));
	kt_noise(&bad, sizeof(bad));
	return kvof_plan_fit(rows, count, ask, &out, &bad);
}

static const struct kvof_plan_arm *fit(void)
{
	int rc = fit_asked(&(struct kvof_plan_fit_ask){.output_tokens = 0});

	if (rc != 0)
		print_message("# %s %s\n", bad.field, bad.why);
	expect_int(rc, 0);
	return &out.arm[0].arm;
}

static bool noted(const struct kvof_plan_fit *of, const char *words)
{
	for (uint32_t i = 0; i < of->notes; i++)
		if (strstr(of->note[i], words) != NULL)
			return true;
	return false;
}

static void predict(const struct kvof_plan_arm *arm, uint32_t sessions, double tokens,
		    struct kvof_plan_ttft *t)
{
	const struct kvof_plan_wave wave = {.tokens = tokens, .bytes = tokens * 1000,
		.sessions = sessions};

	expect_int(kvof_plan_ttft(arm, &wave, t, &bad), 0);
}

static void expect_same(const struct kvof_plan_arm *arm, const struct kvof_plan_arm *want,
			uint32_t sessions, double tokens)
{
	struct kvof_plan_ttft got, should;

	predict(arm, sessions, tokens, &got);
	predict(want, sessions, tokens, &should);
	expect_near(got.last_s, should.last_s);
	expect_near(got.p50_s, should.p50_s);
	expect_near(got.tokens_per_s, should.tokens_per_s);
}

/* --- two rows --------------------------------------------------------------------------------- */

TEST(two_rows_give_back_the_arm_that_made_them)
{
	const struct kvof_plan_arm *arm;

	count = 0;
	row_of(&truth, 8, 30000, 0);
	row_of(&truth, 32, 30000, 0);
	arm = fit();
	expect_int(out.arms, 1);
	expect_int(arm->source, KVOF_PLAN_ROWS);
	expect_str(arm->bottleneck, "unknown");
	expect_near(arm->fixed_s, 1.5);
	expect_near(arm->tokens_per_s, 40000);
	expect_near(arm->median_share, 0.9);
	expect_near(arm->median_rank, 0.25);
	expect_near(arm->tail_fixed_s, 1);
	expect_near(arm->tail_session_s, 0.03);
	expect_int(arm->output_tokens, 64);
	expect_same(arm, &truth, 16, 30000);
	expect_same(arm, &truth, 100, 8000);
	expect_int(out.arm[0].rows, 2);
	expect_int(out.arm[0].concurrency_min, 8);
	expect_int(out.arm[0].concurrency_max, 32);
	expect_near(out.arm[0].tokens_max, 30000);
	expect(out.arm[0].worst_row_error < 1e-9);
	expect(noted(&out.arm[0], "64 output tokens"));
}

TEST(any_line_is_met_from_two_of_its_rows_over_many_arms)
{
	struct prng prng;

	prng = prng_of(0x51a7);
	for (int i = 0; i < 500; i++) {
		uint32_t few = 1 + (uint32_t)prng_below(&prng, 20);
		uint32_t many = few + 2 + (uint32_t)prng_below(&prng, 60);
		const double tokens = 1000 + (double)prng_below(&prng, 100000);
		struct kvof_plan_arm arm = {.kind = (enum kvof_plan_arm_kind)(i % 5),
			.fixed_s = (double)prng_below(&prng, 1000) / 100,
			.tokens_per_s = 100 + (double)prng_below(&prng, 1000000),
			.median_share = 0.3 + (double)prng_below(&prng, 700) / 1000,
			.tail_fixed_s = (double)prng_below(&prng, 300) / 100,
			.tail_session_s = (double)prng_below(&prng, 100) / 1000,
			.output_tokens = 64};

		count = 0;
		row_of(&arm, few, tokens, 0);
		row_of(&arm, many, tokens, 0);
		expect_same(fit(), &arm, (few + many) / 2, tokens);
		expect_same(&out.arm[0].arm, &arm, many * 2, tokens);
	}
}

TEST(arms_come_apart_whatever_the_order_of_their_rows)
{
	struct kvof_plan_arm local = truth, recompute = truth;

	local.kind = KVOF_PLAN_LOCAL;
	local.tokens_per_s = 20000;
	recompute.kind = KVOF_PLAN_RECOMPUTE;
	recompute.tokens_per_s = 2000;
	count = 0;
	row_of(&local, 32, 30000, 0);
	row_of(&truth, 8, 30000, 0);
	row_of(&recompute, 32, 30000, 0);
	row_of(&local, 8, 30000, 0);
	row_of(&recompute, 8, 30000, 0);
	row_of(&truth, 32, 30000, 0);
	fit();
	expect_int(out.arms, 3);
	expect_int(out.arm[0].arm.kind, KVOF_PLAN_RECOMPUTE);
	expect_str(out.arm[0].arm.bottleneck, "gpu");
	expect_near(out.arm[0].arm.tokens_per_s, 2000);
	expect_int(out.arm[1].arm.kind, KVOF_PLAN_LOCAL);
	expect_near(out.arm[1].arm.tokens_per_s, 20000);
	expect_near(out.arm[2].arm.tokens_per_s, 40000);
}

TEST(rows_in_bytes_give_a_rate_in_bytes)
{
	const struct kvof_plan_arm *arm;
	struct kvof_plan_arm bytes = truth;

	bytes.tokens_per_s = 0;
	bytes.bytes_per_s = 4e7;
	count = 0;
	row_of(&bytes, 8, 30000, 0)->bytes = 3e7;
	row_of(&bytes, 32, 30000, 0)->bytes = 3e7;
	arm = fit();
	expect_near(arm->bytes_per_s, 4e7);
	expect_near(arm->tokens_per_s, 0);
	expect_same(arm, &bytes, 16, 30000);
}

TEST(sessions_that_a_row_says_were_not_read_are_not_taken_as_read)
{
	const struct kvof_plan_arm *arm;

	count = 0;
	row_of(&truth, 8, 30000, 0);
	row_of(&truth, 16, 30000, 4)->resident = 4;
	row_of(&truth, 32, 30000, 1)->resident = 1;
	arm = fit();
	expect_near(arm->fixed_s, 1.5);
	expect_near(arm->tokens_per_s, 40000);
	expect_int(out.odd, 0);
}

/* --- one row, many rows ----------------------------------------------------------------------- */

TEST(one_row_is_a_line_through_the_origin_and_says_so)
{
	const struct kvof_plan_arm *arm;
	struct kvof_plan_ttft t;

	count = 0;
	row_of(&truth, 16, 30000, 0);
	arm = fit();
	expect_near(arm->fixed_s, 0);
	predict(arm, 16, 30000, &t);
	expect_near(t.last_s, rows[0].ttft_last_s);
	expect_near(t.p50_s, rows[0].ttft_p50_s);
	expect_near(t.tokens_per_s, rows[0].tokens_per_s);
	predict(arm, 32, 30000, &t);
	expect_near(t.last_s, 2 * rows[0].ttft_last_s);
	expect(noted(&out.arm[0], "through the origin"));
}

TEST(the_rate_of_the_device_makes_one_row_a_line)
{
	const struct kvof_plan_arm *arm;

	count = 1;
	rows[0] = (struct kvof_plan_row){.kind = KVOF_PLAN_ARRAY, .concurrency = 10, .tokens = 1000,
		.bytes = 1e9, .ttft_last_s = 7, .bytes_per_s = 2e9};
	arm = fit();
	expect_near(arm->fixed_s, 2);                /* 10 x 1 GB at 2 GB/s are 5 s */
	expect_near(arm->bytes_per_s, 2e9);
	rows[0].bytes_per_s = 1e9;                   /* would have taken 10 s */
	arm = fit();
	expect_near(arm->fixed_s, 0);
	expect_near(arm->bytes_per_s, 10e9 / 7);
	expect(noted(&out.arm[0], "not used"));
}

TEST(many_rows_are_met_in_the_least_squares_of_relative_errors)
{
	struct prng prng;
	struct kvof_plan_ttft t;

	prng = prng_of(77);
	count = 0;
	for (uint32_t n = 2; n <= 40; n += 2) {
		struct kvof_plan_row *row = row_of(&truth, n, 30000, 0);
		double noise = 0.99 + 0.02 * (double)prng_below(&prng, 1000) / 1000;

		row->ttft_p50_s *= noise;
		row->ttft_last_s *= noise;
		row->tokens_per_s /= noise;
	}
	fit();
	expect_int(out.odd, 0);
	expect_int(out.arm[0].rows, 20);
	expect(out.arm[0].worst_row_error < 0.02);
	predict(&out.arm[0].arm, 21, 30000, &t);
	expect_within(t.last_s, 1.5 + 21 * 0.75, 0.005);
}

TEST(rows_of_several_lengths_show_a_time_for_each_session)
{
	struct kvof_plan_arm arm = truth;

	arm.session_s = 0.4;
	count = 0;
	row_of(&arm, 8, 30000, 0);
	row_of(&arm, 32, 30000, 0);
	row_of(&arm, 8, 8000, 0);
	row_of(&arm, 32, 8000, 0);
	expect_near(fit()->session_s, 0.4);
	expect_same(&out.arm[0].arm, &arm, 16, 16000);
	expect(noted(&out.arm[0], "time for each session"));
}

TEST(rows_of_three_lengths_show_attention_in_recompute)
{
	struct kvof_plan_arm arm = truth;

	arm.kind = KVOF_PLAN_RECOMPUTE;
	arm.token2_s = 2e-9;
	count = 0;
	for (double tokens = 8000; tokens <= 64000; tokens *= 2)
		row_of(&arm, 4, tokens, 0);
	row_of(&arm, 8, 8000, 0);
	expect_near(fit()->token2_s, 2e-9);
	expect_same(&out.arm[0].arm, &arm, 8, 100000);
}

TEST(a_fixed_time_below_zero_is_zero_and_said)
{
	const struct kvof_plan_arm *arm;
	struct kvof_plan_ttft t;

	count = 0;
	row_of(&truth, 8, 30000, 0)->ttft_last_s = 7;
	row_of(&truth, 32, 30000, 0)->ttft_last_s = 32;
	rows[0].ttft_p50_s = rows[1].ttft_p50_s = 0;
	arm = fit();
	expect_near(arm->fixed_s, 0);
	expect_near(arm->free_loads, 1.28);                  /* -4/3 s at 25/24 s a load */
	expect(noted(&out.arm[0], "fixed time would be -1.333 s: it is 0, and 1.28 loads"));
	expect(out.arm[0].worst_row_error < 1e-9);
	predict(arm, 20, 30000, &t);
	expect_near(t.last_s, 7 + 12 * 25 / 24.0);
	/* of few sessions half at least */
	predict(arm, 2, 30000, &t);
	expect_near(t.last_s, 25 / 24.0);
}

TEST(a_fixed_time_far_below_zero_is_a_line_through_the_origin)
{
	const struct kvof_plan_arm *arm;

	count = 0;
	row_of(&truth, 8, 30000, 0)->ttft_last_s = 7;
	row_of(&truth, 32, 30000, 0)->ttft_last_s = 70;
	rows[0].ttft_p50_s = rows[1].ttft_p50_s = 0;
	arm = fit();
	expect_near(arm->fixed_s, 0);
	expect_near(arm->free_loads, 0);
	expect(noted(&out.arm[0], "fixed time would be -14.000 s: it is 0, and the line goes"));
	expect(out.arm[0].worst_row_error > 0.3);
}

TEST(more_sessions_in_less_time_can_not_be_fitted)
{
	count = 0;
	row_of(&truth, 8, 30000, 0)->ttft_last_s = 9;
	row_of(&truth, 32, 30000, 0)->ttft_last_s = 4;
	rows[0].ttft_p50_s = rows[1].ttft_p50_s = 4;
	/* A line through the origin is still one, however bad: it is told with its error. */
	fit();
	expect(out.arm[0].worst_row_error > 0.5);
}

/* --- cells that are missing ------------------------------------------------------------------- */

TEST(the_median_stands_in_for_a_last_that_nobody_wrote_down)
{
	count = 0;
	row_of(&truth, 8, 30000, 0)->ttft_last_s = 0;
	row_of(&truth, 32, 30000, 0)->ttft_last_s = 0;
	fit();
	expect(noted(&out.arm[0], "line 2 has no ttft_last_s"));
	expect_near(out.arm[0].arm.median_share, 1);
	expect(out.arm[0].worst_row_error < 1e-9);
}

TEST(many_rows_without_a_last_leave_room_for_the_other_notes)
{
	count = 0;
	for (uint32_t n = 1; n <= 30; n++)
		row_of(&truth, n, 30000, 0)->ttft_last_s = 0;
	fit();
	expect(noted(&out.arm[0], "line 5 has no ttft_last_s"));
	expect(!noted(&out.arm[0], "line 6 has no ttft_last_s"));
	expect(noted(&out.arm[0], "and so it is in 26 rows more"));
	expect(noted(&out.arm[0], "64 output tokens"));
}

TEST(a_missing_last_follows_from_the_rows_that_have_both)
{
	struct kvof_plan_arm arm = truth;
	struct kvof_plan_ttft t;

	arm.fixed_s = 0;
	arm.median_rank = 0;
	count = 0;
	row_of(&arm, 8, 30000, 0);
	row_of(&arm, 32, 30000, 0)->ttft_last_s = 0;
	fit();
	expect(noted(&out.arm[0], "1.111 times the median"));
	predict(&out.arm[0].arm, 32, 30000, &t);
	expect_near(t.last_s, 24);
}

TEST(p90_stands_nearer_to_the_last_than_the_median)
{
	struct kvof_plan_ttft t;

	count = 0;
	row_of(&truth, 8, 30000, 0)->ttft_last_s = 0;
	row_of(&truth, 32, 30000, 0)->ttft_last_s = 0;
	rows[0].ttft_p90_s = 7.4;
	rows[1].ttft_p90_s = 25.4;
	fit();
	predict(&out.arm[0].arm, 8, 30000, &t);
	expect_near(t.last_s, 7.4);
}

TEST(recompute_goes_one_after_another_so_its_median_tells_the_last)
{
	struct kvof_plan_arm arm = {.kind = KVOF_PLAN_RECOMPUTE, .tokens_per_s = 2000,
		.median_share = 0.5, .median_rank = 1, .output_tokens = 64};
	const struct kvof_plan_arm *got;

	count = 0;
	row_of(&arm, 16, 30000, 0)->ttft_last_s = 0;         /* 15 s each; the 9th at 135 */
	rows[0].tokens_per_s = 0;
	got = fit();
	expect_near(rows[0].ttft_p50_s, 135);
	expect_near(got->tokens_per_s, 2000);
	expect_near(got->median_share, 0.5);
	expect_near(got->median_rank, 1);
	expect_int(got->output_tokens, 0);
	expect(noted(&out.arm[0], "no tokens_per_s"));
	/* p90 of 16 is the 15th */
	rows[0].ttft_p50_s = 0;
	rows[0].ttft_p90_s = 225;
	expect_near(fit()->tokens_per_s, 2000);
	/* both: what is before the first does not matter to what one takes */
	rows[0].ttft_p50_s = 139;
	rows[0].ttft_p90_s = 229;
	fit();
	expect(noted(&out.arm[0], "244.00 s stands in"));
}

TEST(the_end_of_the_wave_tells_the_last_of_recompute_unless_it_contradicts)
{
	struct kvof_plan_arm arm = {.kind = KVOF_PLAN_RECOMPUTE, .tokens_per_s = 2000,
		.median_share = 0.5, .median_rank = 0, .output_tokens = 64};

	count = 0;
	row_of(&arm, 16, 30000, 0)->ttft_last_s = 0;
	fit();                                               /* the 8th at 120, all at 240 */
	expect(noted(&out.arm[0], "240.00 s stands in for it, from the end of the wave"));
	rows[0].tokens_per_s *= 4;                           /* of 256 output tokens, say */
	fit();
	expect(noted(&out.arm[0], "213.33 s stands in for it, from the median"));
}

TEST(a_median_that_is_missing_is_told_as_the_last)
{
	count = 0;
	row_of(&truth, 8, 30000, 0)->ttft_p50_s = 0;
	row_of(&truth, 32, 30000, 0)->ttft_p50_s = 0;
	expect_near(fit()->median_share, 1);
	expect(noted(&out.arm[0], "no ttft_p50_s"));
}

TEST(more_output_tokens_than_assumed_do_not_change_the_throughput)
{
	struct kvof_plan_arm arm = truth;

	arm.output_tokens = 200;
	arm.tail_session_s = 0;
	count = 0;
	row_of(&arm, 8, 30000, 0);
	row_of(&arm, 32, 30000, 0);
	expect_same(fit(), &arm, 16, 30000);
	expect(noted(&out.arm[0], "ask for at least"));
	expect_int(fit_asked(&(struct kvof_plan_fit_ask){.output_tokens = 200}), 0);
	expect_near(out.arm[0].arm.tail_fixed_s, 1);
	expect_int(out.arm[0].arm.output_tokens, 200);
	rows[0].output_tokens = rows[1].output_tokens = 200;
	expect_near(fit()->tail_fixed_s, 1);
	expect(!noted(&out.arm[0], "assumed"));
}

/* --- rows off the line ------------------------------------------------------------------------ */

TEST(a_row_of_which_sessions_were_not_read_is_named_with_their_number)
{
	const struct kvof_plan_arm *arm;

	count = 0;
	row_of(&truth, 8, 30000, 0);
	row_of(&truth, 16, 30000, 3);
	row_of(&truth, 32, 30000, 0);
	arm = fit();
	expect_int(out.odd, 1);
	expect_int(out.odd_row[0].row, 1);
	expect_int(out.odd_row[0].unread, 3);
	expect_near(out.odd_row[0].line_s, 1.5 + 16 * 0.75);
	expect_near(out.odd_row[0].unread_s, out.odd_row[0].measured_s);
	expect_near(arm->fixed_s, 1.5);
	expect_int(out.arm[0].rows, 2);
	expect_int(fit_asked(&(struct kvof_plan_fit_ask){.keep_odd = true}), 0);
	expect_int(out.odd, 1);
	expect_int(out.arm[0].rows, 3);
	expect(fabs(out.arm[0].arm.fixed_s - 1.5) > 0.01);
}

TEST(arms_that_share_a_wave_tell_together_how_many_were_not_read)
{
	struct kvof_plan_arm local = truth;

	local.kind = KVOF_PLAN_LOCAL;
	local.tokens_per_s = 25000;
	count = 0;
	row_of(&truth, 8, 30000, 0);
	row_of(&truth, 16, 30000, 2)->ttft_last_s *= 0.965;  /* alone: 3 */
	row_of(&truth, 32, 30000, 0);
	row_of(&local, 8, 30000, 0);
	row_of(&local, 16, 30000, 2)->ttft_last_s *= 1.035;  /* alone: 2, nearly 1 */
	row_of(&local, 32, 30000, 0);
	fit();
	expect_int(out.odd, 2);
	expect_int(out.odd_row[0].unread, 2);
	expect_int(out.odd_row[1].unread, 2);
}

TEST(rows_that_scatter_or_bend_upwards_are_not_odd)
{
	count = 0;
	row_of(&truth, 8, 30000, 0);
	row_of(&truth, 16, 30000, 0)->ttft_last_s *= 0.97;
	row_of(&truth, 32, 30000, 0);
	rows[1].ttft_p50_s *= 0.97;
	fit();
	expect_int(out.odd, 0);
	rows[1].ttft_last_s *= 1.2;                          /* over the line: slower, not unread */
	fit();
	expect_int(out.odd, 0);
}

TEST(waves_that_scatter_by_two_percent_are_all_used)
{
	static const uint32_t waves[][5] = {{8, 16, 32}, {8, 16, 24, 32}, {4, 8, 16, 32},
		{16, 24, 32, 48}, {4, 8, 16, 32, 64}};
	struct prng prng = prng_of(0x0dd);

	for (unsigned round = 0; round < 400; round++) {
		const uint32_t *wave = waves[round % ARRAY_COUNT(waves)];

		count = 0;
		for (unsigned i = 0; i < 5 && wave[i] != 0; i++) {
			double scatter = 1 + ((double)prng_below(&prng, 5001) - 2500) / 1e5;
			struct kvof_plan_row *row = row_of(&truth, wave[i], 30000, 0);

			row->ttft_last_s *= scatter;
			row->ttft_p50_s *= scatter;
		}
		fit();
		expect_int(out.odd, 0);
	}
}

TEST(recompute_reads_nothing_so_none_of_its_rows_is_odd)
{
	struct kvof_plan_arm arm = truth;

	arm.kind = KVOF_PLAN_RECOMPUTE;
	count = 0;
	row_of(&arm, 8, 30000, 0);
	row_of(&arm, 16, 30000, 0)->ttft_last_s *= 0.8;
	row_of(&arm, 32, 30000, 0);
	rows[1].ttft_p50_s *= 0.8;
	fit();
	expect_int(out.odd, 0);
}

/* --- what is wrong ---------------------------------------------------------------------------- */

TEST(rows_that_can_not_be_are_refused_with_their_line)
{
	struct kvof_plan_fit_ask ask = {0};

	count = 0;
	expect_int(fit_asked(&ask), -EINVAL);
	row_of(&truth, 8, 30000, 0)->tokens = NAN;
	rows[0].line = 12;
	expect_int(fit_asked(&ask), -EINVAL);
	expect_str(bad.field, "line 12:");
	rows[0] = (struct kvof_plan_row){.line = 3, .concurrency = 1, .tokens = 5};
	expect_int(fit_asked(&ask), -EINVAL);
	expect(strstr(bad.why, "no time") != NULL);
	rows[0] = (struct kvof_plan_row){.line = 3, .kind = KVOF_PLAN_DRAM, .concurrency = 4,
		.resident = 4, .tokens = 5, .ttft_last_s = 1};
	expect_int(fit_asked(&ask), -EINVAL);
	count = 2;
	rows[0].resident = 0;
	rows[1] = rows[0];
	rows[1].tokens = 0;
	rows[1].bytes = 5;
	rows[1].line = 4;
	expect_int(fit_asked(&ask), -EINVAL);
	expect_str(bad.field, "line 4, tokens:");
}

TEST(the_least_squares_are_those_worked_out_by_hand)
{
	/* y = 1, 3, 4 at x = 0, 1, 2 with equal weights: 7/6 + 3/2 x */
	const struct line_point p[] = {{1, {1, 0}, 1}, {3, {1, 1}, 1}, {4, {1, 2}, 1}};
	const struct line_point down[] = {{1, {1, 1}, 1}, {4, {1, 2}, 1}};
	struct line line;

	expect(line_fit(p, 3, 3, &line));
	expect_near(line.term[0], 7 / 6.0);
	expect_near(line.term[1], 1.5);
	expect_near(line.square, 1 / 6.0);
	expect_near(line_at(&line, (const double[LINE_TERMS_MAX]){1, 4}), 7 / 6.0 + 6);
	expect(!line_fit(p, 1, 3, &line));
	expect(!line_fit(p, 3, 4, &line));                   /* a term that no point has */
	/* -2 + 3 x has a term below 0: through the origin it is 9/5 x */
	expect_int(line_fit_positive(down, 2, 3, 2, &line), 2);
	expect_near(line.term[1], 1.8);
	expect_int(line_fit_positive(p, 3, 3, 2, &line), 3);
}
