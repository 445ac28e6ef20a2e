/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calibration makes of its measurements. Waves are made by the closed form of the planner from
 * arms that are known, and must give these arms back, also through noise.
 */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include "base/must.h"
#include "base/prng.h"
#include "plan/measured.h"

#define MB 1e6

static bool near_by(double got, double want, double share)
{
	bool near = fabs(got - want) <= share * fabs(want) + 1e-12;

	if (!near)
		printf("# %g, not %g\n", got, want);
	return near;
}

static struct measured_series series_of(const double *value, unsigned count)
{
	struct measured_series s = {.count = 0};

	for (unsigned i = 0; i < count; i++)
		expect(measured_add(&s, value[i]));
	return s;
}

TEST(the_median_is_the_middle_of_the_repeats_and_not_the_best)
{
	struct measured_series odd = series_of((const double[]){9, 1, 5}, 3);
	struct measured_series even = series_of((const double[]){4, 100, 1, 6}, 4);
	struct measured_series none = {.count = 0};

	expect(near_by(measured_median(&odd), 5, 0));
	expect(near_by(measured_median(&even), 5, 0));
	expect(near_by(measured_median(&none), 0, 0));
}

TEST(the_spread_is_that_of_the_middle_half_from_five_repeats_on)
{
	const double spread[] = {1, 2, 9, 10, 10, 11, 12, 80, 90};
	struct measured_series nine = series_of(spread, ARRAY_COUNT(spread));
	struct measured_series four = series_of((const double[]){10, 10, 10, 30}, 4);
	struct measured_series five = series_of((const double[]){1, 10, 11, 12, 90}, 5);
	struct measured_series one = series_of((const double[]){3}, 1);

	expect(near_by(measured_spread(&four), 2, 1e-9));
	expect(near_by(measured_spread(&five), 2.0 / 11, 1e-9));
	expect(near_by(measured_spread(&nine), 0.3, 1e-9));
	expect(near_by(measured_spread(&one), 0, 0));
}

TEST(repeats_beyond_the_room_are_left_out)
{
	struct measured_series s = {.count = 0};

	for (unsigned i = 0; i < MEASURED_REPEATS_MAX; i++)
		expect(measured_add(&s, 1));
	expect(!measured_add(&s, 1000));
	expect_int(s.count, MEASURED_REPEATS_MAX);
}

TEST(the_knee_is_the_least_depth_that_is_nearly_as_fast_as_the_fastest)
{
	const struct measured_step rising[] = {{1, 1e9}, {2, 2e9}, {4, 3.9e9}, {8, 4e9}, {16, 4e9}};
	const struct measured_step falling[] = {{1, 3e9}, {2, 2e9}, {4, 1e9}};
	const struct measured_step last[] = {{1, 1e9}, {2, 2e9}};

	expect_int(measured_knee(rising, ARRAY_COUNT(rising)), 2);
	expect_int(measured_knee(falling, ARRAY_COUNT(falling)), 0);
	expect_int(measured_knee(last, ARRAY_COUNT(last)), 1);
}

/* --- waves -------------------- */

static const struct {
	uint32_t sessions;
	double bytes;
} points[] = {{1, 8 * MB}, {1, 32 * MB}, {8, 8 * MB}, {8, 32 * MB}, {4, 32 * MB}, {2, 32 * MB}};

static void waves_make(const struct kvof_plan_arm *arm, double noise, struct prng *prng,
		       struct measured_wave out[ARRAY_COUNT(points)])
{
	for (unsigned i = 0; i < ARRAY_COUNT(points); i++) {
		const struct kvof_plan_wave wave = {.bytes = points[i].bytes,
						    .sessions = points[i].sessions};
		double f = 1 + noise * ((double)prng_below(prng, 2001) / 1000 - 1);
		struct kvof_plan_ttft ttft;
		struct kvof_plan_bad bad;

		expect_int(kvof_plan_ttft(arm, &wave, &ttft, &bad), 0);
		out[i] = (struct measured_wave){wave.sessions, wave.bytes, ttft.p50_s * f,
						ttft.last_s * f};
	}
}

static const struct kvof_plan_arm known[] = {
	{.kind = KVOF_PLAN_LOCAL, .fixed_s = 1e-3, .session_s = 2e-4, .bytes_per_s = 5e9,
	 .median_share = 0.5, .median_rank = 1},
	{.kind = KVOF_PLAN_ARRAY, .fixed_s = 2e-3, .bytes_per_s = 1e10, .session_bytes_per_s = 3e9,
	 .median_share = 1},
	{.kind = KVOF_PLAN_DRAM, .bytes_per_s = 2e10, .median_share = 0.75, .median_rank = 0.5},
};

TEST(an_arm_comes_back_from_the_waves_that_it_makes)
{
	struct prng prng = prng_of(1);

	for (unsigned i = 0; i < ARRAY_COUNT(known); i++) {
		struct measured_wave wave[ARRAY_COUNT(points)];
		struct kvof_plan_arm arm = {.kind = known[i].kind};

		waves_make(&known[i], 0, &prng, wave);
		expect_int(measured_arm_of_waves(wave, ARRAY_COUNT(points), &arm), 0);
		expect(near_by(arm.fixed_s + 1e-3, known[i].fixed_s + 1e-3, 1e-6));
		expect(near_by(arm.session_s + 1e-3, known[i].session_s + 1e-3, 1e-6));
		expect(near_by(arm.bytes_per_s, known[i].bytes_per_s, 1e-6));
		expect(near_by(arm.session_bytes_per_s, known[i].session_bytes_per_s, 1e-6));
	}
}

TEST(what_one_session_can_draw_at_most_is_kept_apart_from_the_rate_of_all)
{
	struct measured_wave wave[ARRAY_COUNT(points)];
	const struct kvof_plan_wave one = {.bytes = 100 * MB, .sessions = 1};
	struct kvof_plan_arm arm = {.kind = KVOF_PLAN_ARRAY};
	struct prng prng = prng_of(2);
	struct kvof_plan_ttft ttft;
	struct kvof_plan_bad bad;

	waves_make(&known[1], 0, &prng, wave);
	expect_int(measured_arm_of_waves(wave, ARRAY_COUNT(points), &arm), 0);
	expect_int(kvof_plan_ttft(&arm, &one, &ttft, &bad), 0);
	expect(near_by(ttft.last_s, 2e-3 + 100 * MB / 3e9, 1e-6));
}

TEST(the_median_of_a_wave_is_predicted_apart_from_its_last)
{
	const struct kvof_plan_wave six = {.bytes = 20 * MB, .sessions = 6};
	struct prng prng = prng_of(3);

	for (unsigned i = 0; i < ARRAY_COUNT(known); i++) {
		struct measured_wave wave[ARRAY_COUNT(points)];
		struct kvof_plan_arm arm = {.kind = known[i].kind};
		struct kvof_plan_ttft got, want;
		struct kvof_plan_bad bad;

		waves_make(&known[i], 0, &prng, wave);
		expect_int(measured_arm_of_waves(wave, ARRAY_COUNT(points), &arm), 0);
		expect_int(kvof_plan_ttft(&arm, &six, &got, &bad), 0);
		expect_int(kvof_plan_ttft(&known[i], &six, &want, &bad), 0);
		expect(near_by(got.last_s, want.last_s, 1e-6));
		expect(near_by(got.p50_s, want.p50_s, 0.02));
	}
}

TEST(an_arm_of_noisy_waves_predicts_another_wave_within_a_tenth)
{
	const struct kvof_plan_wave six = {.bytes = 20 * MB, .sessions = 6};
	struct prng prng = prng_of(4);

	for (unsigned n = 0; n < 300; n++) {
		const struct kvof_plan_arm *k = &known[n % ARRAY_COUNT(known)];
		struct measured_wave wave[ARRAY_COUNT(points)];
		struct kvof_plan_arm arm = {.kind = k->kind};
		struct kvof_plan_ttft got, want;
		struct kvof_plan_bad bad;

		waves_make(k, 0.03, &prng, wave);
		expect_int(measured_arm_of_waves(wave, ARRAY_COUNT(points), &arm), 0);
		expect_int(kvof_plan_ttft(&arm, &six, &got, &bad), 0);
		expect_int(kvof_plan_ttft(k, &six, &want, &bad), 0);
		expect(near_by(got.last_s, want.last_s, 0.1));
		expect(near_by(got.p50_s, want.p50_s, 0.1));
	}
}

TEST(waves_without_a_line_are_refused)
{
	struct measured_wave wave[ARRAY_COUNT(points)];
	struct kvof_plan_arm arm = {.kind = KVOF_PLAN_DRAM};
	struct prng prng = prng_of(5);

	waves_make(&known[0], 0, &prng, wave);
	expect_int(measured_arm_of_waves(wave, 1, &arm), -EINVAL);
	expect_int(measured_arm_of_waves(wave, 2, &arm), -EINVAL);
	wave[3].bytes = wave[2].bytes;
	expect_int(measured_arm_of_waves(wave, ARRAY_COUNT(points), &arm), -EINVAL);
}

/* --- prompts -------------------- */

static struct measured_prompt prompt_of(double tokens, double fixed_s, double rate, double token2_s)
{
	return (struct measured_prompt){tokens, fixed_s + tokens / rate +
					tokens * tokens * token2_s};
}

TEST(three_lengths_give_fixed_time_rate_and_the_bend_of_attention)
{
	const double bends[] = {0, 1e-8, 1e-7};

	for (unsigned i = 0; i < ARRAY_COUNT(bends); i++) {
		const struct measured_prompt prompt[] = {prompt_of(1000, 0.05, 8000, bends[i]),
			prompt_of(2000, 0.05, 8000, bends[i]),
			prompt_of(4000, 0.05, 8000, bends[i])};
		struct kvof_plan_arm arm = {.kind = KVOF_PLAN_RECOMPUTE};

		expect_int(measured_prefill(prompt, 3, &arm), 0);
		expect(near_by(arm.fixed_s, 0.05, 1e-3));
		expect(near_by(arm.tokens_per_s, 8000, 1e-3));
		expect(near_by(arm.token2_s + 1e-9, bends[i] + 1e-9, 1e-3));
	}
}

TEST(no_term_of_a_prefill_is_negative_whatever_was_measured)
{
	const struct measured_prompt rounded[] = {{1000, 0.10}, {2000, 0.22}, {4000, 0.43}};
	const struct measured_prompt early[] = {{1000, 0.05}, {2000, 0.16}, {4000, 0.55}};
	struct kvof_plan_arm arm = {.kind = KVOF_PLAN_RECOMPUTE};

	expect_int(measured_prefill(rounded, 3, &arm), 0);
	expect(arm.fixed_s >= 0 && arm.tokens_per_s > 0 && arm.token2_s >= 0);
	expect_int(measured_prefill(early, 3, &arm), 0);
	expect(arm.fixed_s >= 0 && arm.tokens_per_s > 0 && arm.token2_s >= 0);
}

TEST(prompts_that_tell_no_rate_are_refused)
{
	const struct measured_prompt same[] = {{1000, 0.1}, {1000, 0.1}};
	const struct measured_prompt flat[] = {{1000, 0.3}, {2000, 0.2}, {4000, 0.1}};
	const struct measured_prompt none[] = {{0, 0.1}, {2000, 0.2}};
	struct kvof_plan_arm arm = {.kind = KVOF_PLAN_RECOMPUTE};

	expect_int(measured_prefill(same, 2, &arm), -EINVAL);
	expect_int(measured_prefill(flat, 3, &arm), -EINVAL);
	expect_int(measured_prefill(flat, 1, &arm), -EINVAL);
	expect_int(measured_prefill(none, 2, &arm), -EINVAL);
}

TEST(a_bend_that_is_lost_in_the_noise_is_not_drawn_on_to_longer_prompts)
{
	struct prng prng = prng_of(6);

	for (unsigned n = 0; n < 200; n++) {
		struct kvof_plan_arm arm = {.kind = KVOF_PLAN_RECOMPUTE};
		struct measured_prompt prompt[3];

		for (unsigned i = 0; i < 3; i++) {
			double f = 1 + ((double)prng_below(&prng, 2001) / 1000 - 1) * 0.01;

			prompt[i] = prompt_of(1000 << i, 0.05, 8000, 0);
			prompt[i].first_s *= f;
		}
		expect_int(measured_prefill(prompt, 3, &arm), 0);
		/* at eight times the longest */
		expect(near_by(arm.fixed_s + 32000 / arm.tokens_per_s + 32000.0 * 32000 *
			       arm.token2_s, 0.05 + 4, 0.6));
	}
}

TEST(two_prompts_tell_whether_an_engine_takes_them_one_after_another)
{
	const struct kvof_plan_arm arm = {.fixed_s = 0.1, .tokens_per_s = 1000};
	double share, rank;

	/* alone 1.1 s; one after another: 1.1 and 2.1; together: both at 2.1; two lanes: 1.1 */
	expect(near_by(measured_pair(&arm, 1.1, 1.1, 2.1, &share, &rank), 1, 1e-9));
	expect(near_by(share, 0.5, 1e-9) && near_by(rank, 1, 1e-9));
	expect(near_by(measured_pair(&arm, 1.1, 2.1, 2.1, &share, &rank), 1, 1e-9));
	expect(near_by(share, 1, 1e-9) && near_by(rank + 1, 1, 1e-9));
	expect(near_by(measured_pair(&arm, 1.1, 1.1, 1.1, &share, &rank), 2, 1e-9));
}
