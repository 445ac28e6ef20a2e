/* SPDX-License-Identifier: Apache-2.0 */
/* The closed form of an arm, each term worked out by hand, and what is refused. */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include <kvof/plan.h>

#include "base/must.h"
#include "plan/arm.h"

static bool near(double got, double want)
{
	return fabs(got - want) <= 1e-9 * (1 + fabs(want));
}
#define expect_near(got, want) assert_true(near(got, want))

static struct kvof_plan_ttft ttft;
static struct kvof_plan_bad bad;

static int ask(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave)
{
	kt_noise(&ttft, sizeof(ttft));
	kt_noise(&bad, sizeof(bad));
	return kvof_plan_ttft(arm, wave, &ttft, &bad);
}

static void refused(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave,
		    const char *field)
{
	expect_int(ask(arm, wave), -EINVAL);
	expect_str(bad.field, field);
	expect(bad.why[0] != 0);
}

/* 2 s, then 1 GB for each session at 4 GB/s: a quarter of a second each. */
static struct kvof_plan_arm array(void)
{
	return (struct kvof_plan_arm){.kind = KVOF_PLAN_ARRAY, .source = KVOF_PLAN_SPEC,
		.bottleneck = "link", .fixed_s = 2, .bytes_per_s = 4e9, .output_tokens = 64};
}

TEST(a_load_ends_after_the_fixed_time_and_all_bytes_at_the_rate)
{
	struct kvof_plan_arm arm = array();

	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 16}), 0);
	expect_near(ttft.last_s, 2 + 16 * 0.25);
	expect_near(ttft.p50_s, 6);
	expect_near(ttft.p90_s, 6);
	expect_near(ttft.wall_s, 6);
	expect_near(ttft.tokens_per_s, 16 * 64 / 6.0);
	expect_near(ttft.bytes_per_s_needed, 4e9);
	expect_str(ttft.bottleneck, "link");
}

TEST(sessions_in_memory_are_not_loaded_but_count_in_the_throughput)
{
	struct kvof_plan_arm arm = array();

	arm.tail_fixed_s = 1;
	arm.tail_session_s = 0.125;
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 16,
						      .resident = 4}), 0);
	expect_near(ttft.last_s, 2 + 12 * 0.25);
	expect_near(ttft.wall_s, 5 + 1 + 16 * 0.125);
	expect_near(ttft.tokens_per_s, 16 * 64 / 8.0);
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 4,
						      .resident = 4}), 0);
	expect_near(ttft.last_s, 2);
	expect_near(ttft.p50_s, 2);
	expect_near(ttft.bytes_per_s_needed, 0);
	expect_str(ttft.bottleneck, "fixed time");
}

TEST(the_median_waits_for_its_share_of_the_loads_and_never_for_more_than_all)
{
	struct kvof_plan_arm arm = array();

	arm.median_share = 0.5;
	arm.median_rank = 1;
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 16}), 0);
	expect_near(ttft.last_s, 6);
	expect_near(ttft.p50_s, 2 + 9 * 0.25);       /* a[int(16 / 2)] is the 9th */
	expect_near(ttft.p90_s, 4.25 + 0.8 * 1.75);
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 1}), 0);
	expect_near(ttft.p50_s, ttft.last_s);
	arm.median_rank = -20;
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 16}), 0);
	expect_near(ttft.p50_s, 2);
}

TEST(one_session_alone_can_be_the_bound_and_is_named)
{
	struct kvof_plan_arm arm = array();

	arm.session_bytes_per_s = 5e8;
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 4}), 0);
	expect_near(ttft.last_s, 2 + 2);             /* 4 x 0.25 are less than 2 */
	arm.fixed_s = 0;
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 4}), 0);
	expect_str(ttft.bottleneck, "session");
	expect_near(ttft.bytes_per_s_needed, 2e9);
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 9}), 0);
	expect_near(ttft.last_s, 2.25);
	expect_str(ttft.bottleneck, "link");
}

TEST(requests_take_their_time_for_each_session)
{
	struct kvof_plan_arm arm = array();

	arm.session_s = 0.5;
	arm.fixed_s = 0;
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 4}), 0);
	expect_near(ttft.last_s, 4 * 0.5 + 4 * 0.25);
	expect_str(ttft.bottleneck, "requests");
}

TEST(recompute_grows_with_the_square_of_tokens_and_nothing_of_it_is_resident)
{
	const struct kvof_plan_arm arm = {.kind = KVOF_PLAN_RECOMPUTE, .bottleneck = "gpu",
		.tokens_per_s = 1000, .token2_s = 1e-7, .median_share = 0.5, .median_rank = 1,
		.tail_fixed_s = 2, .output_tokens = 10};

	expect_int(ask(&arm, &(struct kvof_plan_wave){.tokens = 10000, .sessions = 16,
						      .resident = 2}), 0);
	expect_near(ttft.last_s, 16 * (10 + 10));
	expect_near(ttft.p50_s, 9 * 20);
	expect_near(ttft.wall_s, 322);
	expect_near(ttft.tokens_per_s, 160 / 322.0);
	expect_near(ttft.bytes_per_s_needed, 0);
	expect_str(ttft.bottleneck, "gpu");
}

TEST(prompts_side_by_side_are_bounded_by_what_one_of_them_gets)
{
	struct kvof_plan_arm arm = {.kind = KVOF_PLAN_RECOMPUTE, .tokens_per_s = 4000,
		.session_tokens_per_s = 1000};

	expect_int(ask(&arm, &(struct kvof_plan_wave){.tokens = 2000, .sessions = 2}), 0);
	expect_near(ttft.last_s, 2);
	expect_int(ask(&arm, &(struct kvof_plan_wave){.tokens = 2000, .sessions = 8}), 0);
	expect_near(ttft.last_s, 4);
	expect_str(ttft.bottleneck, "unknown");
}

TEST(loads_that_are_free_are_at_most_half_of_a_wave)
{
	struct kvof_plan_arm arm = array();

	arm.free_loads = 3;
	arm.fixed_s = 0;
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 16}), 0);
	expect_near(ttft.last_s, 13 * 0.25);
	expect_near(ttft.bytes_per_s_needed, 4e9);
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 4}), 0);
	expect_near(ttft.last_s, 2 * 0.25);
}

TEST(a_wave_never_ends_before_its_last_first_token)
{
	struct kvof_plan_arm arm = array();

	arm.tail_fixed_s = -1;
	arm.tail_session_s = 0.25;
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 2}), 0);
	expect_near(ttft.wall_s, 2.5);
	expect_int(ask(&arm, &(struct kvof_plan_wave){.bytes = 1e9, .sessions = 8}), 0);
	expect_near(ttft.wall_s, 4 - 1 + 2);
}

TEST(an_arm_without_a_rate_or_with_two_is_refused)
{
	const struct kvof_plan_wave wave = {.tokens = 10, .bytes = 10, .sessions = 1};
	struct kvof_plan_arm arm = array();

	arm.tokens_per_s = 1;
	refused(&arm, &wave, "tokens_per_s");
	arm.tokens_per_s = arm.bytes_per_s = 0;
	refused(&arm, &wave, "tokens_per_s");
	arm = array();
	arm.kind = KVOF_PLAN_RECOMPUTE;
	refused(&arm, &wave, "bytes_per_s");
	arm = array();
	arm.fixed_s = -1;
	refused(&arm, &wave, "fixed_s");
	arm.fixed_s = NAN;
	refused(&arm, &wave, "fixed_s");
	arm = array();
	arm.median_share = INFINITY;
	refused(&arm, &wave, "median_share");
	arm = array();
	arm.kind = (enum kvof_plan_arm_kind)9;
	refused(&arm, &wave, "arm");
}

TEST(a_wave_without_what_the_rate_counts_is_refused)
{
	struct kvof_plan_arm arm = array();

	refused(&arm, &(struct kvof_plan_wave){.bytes = 10}, "sessions");
	refused(&arm, &(struct kvof_plan_wave){.tokens = 10, .sessions = 1}, "bytes");
	refused(&arm, &(struct kvof_plan_wave){.bytes = 10, .sessions = 1, .resident = 2},
		"resident");
	refused(&arm, &(struct kvof_plan_wave){.bytes = NAN, .sessions = 1}, "tokens");
	arm.bytes_per_s = 0;
	arm.tokens_per_s = 1;
	refused(&arm, &(struct kvof_plan_wave){.bytes = 10, .sessions = 1}, "tokens");
}

TEST(names_of_arms_and_sources_are_found_again)
{
	enum kvof_plan_arm_kind kind;
	enum kvof_plan_source source;

	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++) {
		expect(kvof_plan_arm_find(kvof_plan_arm_name((enum kvof_plan_arm_kind)i), &kind));
		expect_int(kind, i);
	}
	for (unsigned i = 0; i <= KVOF_PLAN_SPEC; i++) {
		expect(plan_source_find(kvof_plan_source_name((enum kvof_plan_source)i), &source));
		expect_int(source, i);
	}
	expect(!kvof_plan_arm_find("tape", &kind));
	expect(!plan_source_find("hope", &source));
	expect_str(kvof_plan_arm_name((enum kvof_plan_arm_kind)77), "unknown");
	expect_str(kvof_plan_source_name((enum kvof_plan_source)77), "unknown");
}
