/* SPDX-License-Identifier: Apache-2.0 */
/* Stages, the smallest of them, and arms made of hardware; figures worked by hand. */
#include "kt.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include <kvof/plan.h>

static struct kvof_plan_supply_rate rate;
static struct kvof_plan_arm arm;
static struct kvof_plan_bad bad;

static void near(double got, double want, double share)
{
	if (!(fabs(got - want) <= share * fabs(want)))
		fail_msg("%.9g, not %.9g within %g", got, want, share);
}

/* Four drives of 6.943e9 B/s behind one port of 100 Gbit/s at 83.56 %. */
static struct kvof_plan_supply published(void)
{
	return (struct kvof_plan_supply){.drives = 4, .drive_read_bytes_per_s = 6.943e9,
		.drive_write_bytes_per_s = 2e9, .stripe_efficiency = 0.95, .ports = 1,
		.port_bytes_per_s = 12.5e9, .link_efficiency = 0.8356, .ranks = 8,
		.rank_bytes_per_s = 5e9};
}

static void make(const struct kvof_plan_supply *s, enum kvof_plan_arm_kind kind)
{
	kt_noise(&rate, sizeof(rate));
	if (kvof_plan_supply_rate(s, kind, &rate, &bad) != 0)
		fail_msg("%s: %s", bad.field, bad.why);
}

TEST(the_smallest_stage_is_the_rate_and_names_the_bottleneck)
{
	struct kvof_plan_supply s = published();

	make(&s, KVOF_PLAN_ARRAY);
	expect_str(rate.bottleneck, "link");
	/* The reports' peak of 10.2 "GB/s" counts 1.024e9: 83.56 % of the raw port. */
	near(rate.bytes_per_s, 10.2 * 1.024e9, 1e-4);
	expect_int(rate.stages, 3);
	expect_str(rate.stage[0].name, "drives");
	near(rate.stage[0].bytes_per_s, 4 * 6.943e9 * 0.95, 1e-12);
	expect_str(rate.stage[1].name, "link");
	expect_str(rate.stage[2].name, "client");
	near(rate.stage[2].bytes_per_s, 40e9, 1e-12);
	s.link_efficiency = 0.8528;
	make(&s, KVOF_PLAN_ARRAY);
	near(rate.bytes_per_s, 10.41 * 1.024e9, 1e-4);
	/* All six ports: the drives are next. */
	s.ports = 6;
	make(&s, KVOF_PLAN_ARRAY);
	expect_str(rate.bottleneck, "drives");
	near(rate.bytes_per_s, 26.3834e9, 1e-9);
	s.ranks = 2;
	make(&s, KVOF_PLAN_ARRAY);
	expect_str(rate.bottleneck, "client");
	near(rate.bytes_per_s, 10e9, 1e-12);
	s.pcie_bytes_per_s = 8e9;
	make(&s, KVOF_PLAN_ARRAY);
	expect_str(rate.bottleneck, "pcie");
	s.server_bytes_per_s = 1e9;
	make(&s, KVOF_PLAN_NFS);
	expect_str(rate.bottleneck, "server");
	near(rate.bytes_per_s, 1e9, 1e-12);
}

TEST(local_drives_have_no_link_and_memory_has_no_drives)
{
	struct kvof_plan_supply s = published();

	s.drives = 1;
	s.stripe_efficiency = 0;
	make(&s, KVOF_PLAN_LOCAL);
	expect_str(rate.bottleneck, "drives");
	near(rate.bytes_per_s, 6.78 * 1.024e9, 1e-3);
	expect_int(rate.stages, 2);
	s.dram_bytes_per_s = 200e9;
	make(&s, KVOF_PLAN_DRAM);
	expect_str(rate.bottleneck, "client");
	s.rank_bytes_per_s = 0;
	make(&s, KVOF_PLAN_DRAM);
	expect_str(rate.bottleneck, "dram copy");
	expect_int(rate.stages, 1);
}

TEST(writes_go_at_the_drives_rate_of_writes)
{
	struct kvof_plan_supply s = published();

	kt_noise(&rate, sizeof(rate));
	expect_int(kvof_plan_supply_write(&s, KVOF_PLAN_ARRAY, &rate, &bad), 0);
	expect_str(rate.bottleneck, "drives");
	near(rate.bytes_per_s, 7.6e9, 1e-12);
}

TEST(an_arm_of_hardware_says_that_it_is_of_data_sheets)
{
	const struct kvof_plan_wave wave = {30208, 7671382016.0, 8, 0};
	struct kvof_plan_supply s = published();
	struct kvof_plan_ttft t;

	s.fixed_s = 1;
	s.session_bytes_per_s = 2e9;
	kt_noise(&arm, sizeof(arm));
	expect_int(kvof_plan_arm_of_supply(&s, KVOF_PLAN_ARRAY, &arm, &bad), 0);
	expect(arm.source == KVOF_PLAN_SPEC && arm.kind == KVOF_PLAN_ARRAY);
	expect_str(arm.bottleneck, "link");
	expect_int(kvof_plan_ttft(&arm, &wave, &t, &bad), 0);
	near(t.last_s, 1 + 8 * 7671382016.0 / 10.445e9, 1e-9);
	near(t.p50_s, t.last_s, 1e-12);
	s.measured = true;
	expect_int(kvof_plan_arm_of_supply(&s, KVOF_PLAN_ARRAY, &arm, &bad), 0);
	expect(arm.source == KVOF_PLAN_MEASURED);
}

TEST(an_arm_without_a_stage_is_refused_by_what_it_lacks)
{
	struct kvof_plan_supply s = {.ranks = 8};

	expect_int(kvof_plan_supply_rate(&s, KVOF_PLAN_ARRAY, &rate, &bad), -EINVAL);
	expect_str(bad.field, "ports, port_bytes_per_s");
	expect_int(kvof_plan_supply_rate(&s, KVOF_PLAN_LOCAL, &rate, &bad), -EINVAL);
	expect_str(bad.field, "drives, drive_read_bytes_per_s");
	expect_int(kvof_plan_arm_of_supply(&s, KVOF_PLAN_DRAM, &arm, &bad), -EINVAL);
	expect_str(bad.field, "dram_bytes_per_s");
	s = published();
	expect_int(kvof_plan_supply_rate(&s, KVOF_PLAN_RECOMPUTE, &rate, &bad), -EINVAL);
	s.link_efficiency = 1.2;
	expect_int(kvof_plan_supply_rate(&s, KVOF_PLAN_ARRAY, &rate, &bad), -EINVAL);
	expect_str(bad.field, "link_efficiency");
	s = published();
	s.port_bytes_per_s = NAN;
	expect_int(kvof_plan_supply_rate(&s, KVOF_PLAN_ARRAY, &rate, &bad), -EINVAL);
	expect_str(bad.field, "port_bytes_per_s");
}

TEST(recompute_of_hardware_is_flops_over_flops)
{
	/* Llama-3.1-8B: 13.959e9 FLOPs a token, 524,288 a pair; 400e12 FLOP/s at a half. */
	const struct kvof_plan_work work = {.token_flops = 2 * 6979588096.0, .pair_flops = 524288};
	const struct kvof_plan_wave wave = {32768, 0, 2, 0};
	struct kvof_plan_ttft t;

	kt_noise(&arm, sizeof(arm));
	expect_int(kvof_plan_arm_of_work(&work, 400e12, 0.5, &arm, &bad), 0);
	expect(arm.source == KVOF_PLAN_SPEC && arm.kind == KVOF_PLAN_RECOMPUTE);
	expect_str(arm.bottleneck, "gpu");
	near(arm.tokens_per_s, 14327.5, 1e-5);
	expect_int(kvof_plan_ttft(&arm, &wave, &t, &bad), 0);
	/* 2 x (32768 x 13.959e9 + 32768^2 x 262,144) / 200e12; T^2 for T (T + 1). */
	near(t.last_s, 2 * kvof_plan_work_flops(&work, 32768) / 200e12, 1e-4);
	near(t.last_s, 7.38888, 1e-5);
	expect_int(kvof_plan_arm_of_work(&work, 0, 0.5, &arm, &bad), -EINVAL);
	expect_int(kvof_plan_arm_of_work(&work, 1e12, 1.5, &arm, &bad), -EINVAL);
	expect_int(kvof_plan_arm_of_work(&(struct kvof_plan_work){0}, 1e12, 0.5, &arm, &bad),
		   -EINVAL);
}

TEST(recompute_takes_layers_that_slide_with_full_windows)
{
	const struct kvof_plan_work work = {.token_flops = 1e9, .window_pair_flops = 1e6,
		.window = 1000};

	expect_int(kvof_plan_arm_of_work(&work, 1e13, 1, &arm, &bad), 0);
	near(arm.tokens_per_s, 1e13 / 2e9, 1e-12);
	/* Never fewer than are needed, and as many for long prompts. */
	expect(1e6 / arm.tokens_per_s >= kvof_plan_work_flops(&work, 1e6) / 1e13);
	near(1e6 / arm.tokens_per_s, kvof_plan_work_flops(&work, 1e6) / 1e13, 1e-3);
}
