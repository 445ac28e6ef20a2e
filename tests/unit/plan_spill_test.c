/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory and staging, held to what published runs had: Qwen3-Coder-480B on 8 GPUs of 192 GB, a
 * session of 118 chunks of 256 tokens (7,671,382,016 bytes), 4 GiB of staging a rank.
 */
#include "kt.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include <kvof/plan.h>

#define GB 1e9
#define GIB 1073741824.0
#define SESSION 7671382016.0

static struct kvof_plan_spill spill;
static struct kvof_plan_bad bad;

static struct kvof_plan_spill_ask published(uint32_t tp)
{
	return (struct kvof_plan_spill_ask){.gpus = tp, .gpu_bytes = 192 * GB, .gpu_share = 0.9,
		.weight_bytes = 450 * GB, .session_bytes = SESSION,
		.session_rank_bytes = SESSION / tp};
}

static void make(const struct kvof_plan_spill_ask *ask)
{
	kt_noise(&spill, sizeof(spill));
	if (kvof_plan_spill_make(ask, &spill, &bad) != 0)
		fail_msg("%s: %s", bad.field, bad.why);
}

static void near(double got, double want, double off)
{
	if (!(fabs(got - want) <= off))
		fail_msg("%.9g, not %.9g within %g", got, want, off);
}

static void refused(const struct kvof_plan_spill_ask *ask, const char *field)
{
	expect_int(kvof_plan_spill_make(ask, &spill, &bad), -EINVAL);
	expect_str(bad.field, field);
	expect(bad.why[0] != 0);
}

TEST(a_working_set_that_fits_in_the_gpus_does_not_spill)
{
	struct kvof_plan_spill_ask ask = published(8);

	/* 8 x 192 x 0.9 - 450 = 932.4 GB: 121.5 sessions, and 34 were used. */
	ask.sessions = 34;
	make(&ask);
	near(spill.kv_bytes, 932.4 * GB, 1);
	near(spill.rank_kv_bytes, 116.55 * GB, 1);
	near(spill.resident, 121.543, 0.001);
	expect_int(spill.resident_sessions, 121);
	expect(!spill.spills && spill.spilled_bytes == 0);
	/* Four GPUs have the same weights: 241.2 GB, 31 sessions; two instances hold 62. */
	ask = published(4);
	ask.sessions = 24;
	make(&ask);
	near(spill.kv_bytes, 241.2 * GB, 1);
	expect_int(spill.resident_sessions, 31);
	expect(!spill.spills);
	ask.instances = 2;
	make(&ask);
	expect_int(spill.resident_sessions, 62);
}

TEST(what_does_not_fit_spills_and_host_memory_takes_its_part)
{
	struct kvof_plan_spill_ask ask = published(8);

	ask.sessions = 400;
	ask.turns_per_s = 2;
	ask.dram_bytes = 1500 * GB;
	ask.store_bytes = 14000 * GB;
	ask.new_bytes_per_s = 1 * GB;
	ask.horizon_s = 86400;
	make(&ask);
	near(spill.spilled_sessions, 279, 0);
	near(spill.spilled_bytes, 279 * SESSION, 1);
	near(spill.dram_sessions, 195.53, 0.01);
	near(spill.below_dram_bytes, (279 - 195) * SESSION, 1);
	near(spill.store_sessions, 1825, 0.05);
	near(spill.horizon_bytes, 86400 * GB, 1);
	near(spill.read_bytes_per_s, 2 * SESSION * 279 / 400, 1);
	expect(spill.spills);
}

TEST(staging_is_counted_on_each_rank_not_on_each_host)
{
	struct kvof_plan_spill_ask ask = published(8);

	/* "4 GB" on 8 ranks is 32 GiB: 4.48 sessions, not 0.56. */
	ask.staging_rank_bytes = 4 * GIB;
	ask.wave = 16;
	make(&ask);
	near(spill.staged_sessions, 4.479, 0.001);
	expect_int(spill.staged_waves, 4);
	/* 8 sessions on 4 ranks need 14.3 GiB on each. */
	ask = published(4);
	ask.staging_rank_bytes = 4 * GIB;
	ask.wave = 8;
	make(&ask);
	near(spill.staging_need_rank_bytes, 14.289 * GIB, 0.001 * GIB);
	near(spill.staged_sessions, 2.2395, 0.0005);
	expect_int(spill.staged_waves, 4);
	/* 64 GiB a rank, 256 an instance: all at once. */
	ask.staging_rank_bytes = 64 * GIB;
	make(&ask);
	expect_int(spill.staged_waves, 1);
}

TEST(staging_below_one_session_loads_nothing_whole)
{
	struct kvof_plan_spill_ask ask = published(8);

	ask.wave = 4;
	ask.staging_rank_bytes = 0.8 * GIB;
	make(&ask);
	near(spill.staged_sessions, 0.896, 0.001);
	expect_int(spill.staged_waves, 0);
	ask.staging_rank_bytes = 0;
	make(&ask);
	expect_int(spill.staged_waves, 0);
	near(spill.staging_need_rank_bytes, 4 * SESSION / 8, 1);
}

TEST(ranks_past_the_kv_heads_hold_more_than_their_share)
{
	static const char text[] = "{\"model_type\": \"llama\", \"num_hidden_layers\": 80, "
		"\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"hidden_size\": 8192}";
	struct kvof_plan_spill_ask ask = {.gpus = 16, .gpu_bytes = 80 * GB,
		.weight_bytes = 141 * GB, .wave = 4};
	struct kvof_plan_geometry geometry;
	struct kvof_plan_model model;
	uint64_t bytes, rank;

	expect_int(kvof_plan_model_read(text, sizeof(text) - 1, &model, &bad), 0);
	expect_int(kvof_plan_geometry(&model, &(struct kvof_plan_split){16, 0}, &geometry, &bad),
		   0);
	expect_int(kvof_plan_bytes_at(&model, &geometry, 32768, &bytes, &rank), 0);
	ask.session_bytes = (double)bytes;
	ask.session_rank_bytes = (double)rank;
	make(&ask);
	/* 10.74 GB a session; each of 16 ranks has one of 8 heads: an eighth, not a sixteenth. */
	near(ask.session_bytes, 10737418240.0, 0);
	near(spill.staging_need_rank_bytes, 4 * 10737418240.0 / 8, 0);
	near(spill.resident, (80 * GB - 141 * GB / 16) / (10737418240.0 / 8), 1e-6);
}

TEST(gb_is_not_gib)
{
	struct kvof_plan_spill_ask ask = published(8);

	/* Memory that is sold as 192 GiB holds 134.8 sessions beside the same 450 GB; "450 GB" that
	 * are GiB (the weights of this model in FP8 are 449.1) leave 130.5. */
	ask.gpu_bytes = 192 * GIB;
	make(&ask);
	near(spill.resident, 134.83, 0.01);
	ask.weight_bytes = 450 * GIB;
	make(&ask);
	near(spill.resident, 130.51, 0.01);
	ask = published(8);
	make(&ask);
	near(spill.resident, 121.54, 0.01);
}

TEST(what_can_not_be_is_refused_by_name)
{
	struct kvof_plan_spill_ask ask = published(8);

	ask.weight_bytes = 1400 * GB;
	refused(&ask, "weight_bytes");
	ask.weight_bytes = 0;
	refused(&ask, "weight_bytes");
	ask = published(8);
	ask.session_rank_bytes = 0;
	refused(&ask, "session_rank_bytes");
	ask.session_rank_bytes = 2 * SESSION;
	refused(&ask, "session_rank_bytes");
	ask = published(8);
	ask.gpus = 0;
	refused(&ask, "gpus");
	ask = published(8);
	ask.gpu_share = 1.1;
	refused(&ask, "gpu_share");
	ask.gpu_share = 0.9;
	ask.activation_share = 1;
	refused(&ask, "activation_share");
	ask.activation_share = 0;
	ask.sessions = NAN;
	refused(&ask, "sessions");
	ask.sessions = -1;
	refused(&ask, "sessions");
}

/* --- what too little staging does ------------------------------------------------------------- */

/* Two-point fit of the published array rows: 7.54 s at 8, 26.37 s at 32. */
static const struct kvof_plan_arm array = {.kind = KVOF_PLAN_ARRAY, .source = KVOF_PLAN_ROWS,
	.fixed_s = 7.54 - 8 * (26.37 - 7.54) / 24, .bytes_per_s = SESSION * 24 / (26.37 - 7.54),
	.median_share = 1, .output_tokens = 64};

TEST(too_little_staging_costs_the_fixed_time_once_a_wave)
{
	const struct kvof_plan_wave wave = {30208, SESSION, 16, 0};
	struct kvof_plan_ttft free, staged;

	expect_int(kvof_plan_ttft(&array, &wave, &free, &bad), 0);
	near(free.last_s, 13.8167, 0.0001);
	expect_int(kvof_plan_staged_ttft(&array, &wave, 4, &staged, &bad), 0);
	near(staged.last_s, 4 * 1.263333 + 16 * 0.784583, 0.0001);
	near(staged.p50_s, 3 * (1.263333 + 4 * 0.784583), 0.0001);
	near(staged.p90_s, staged.last_s, 1e-9);
	near(staged.tokens_per_s, 16 * 64 / staged.wall_s, 1e-6);
	expect(strstr(staged.bottleneck, "staging") != NULL);
	expect_int(kvof_plan_staged_ttft(&array, &wave, 16, &staged, &bad), 0);
	near(staged.last_s, free.last_s, 0);
	expect_str(staged.bottleneck, free.bottleneck);
	expect_int(kvof_plan_staged_ttft(&array, &wave, 0, &staged, &bad), -EINVAL);
	expect_str(bad.field, "staging");
}

TEST(staging_leaves_recompute_and_resident_sessions_alone)
{
	const struct kvof_plan_arm recompute = {.kind = KVOF_PLAN_RECOMPUTE, .tokens_per_s = 2000,
		.median_share = 0.5, .median_rank = 1};
	struct kvof_plan_wave wave = {30208, SESSION, 16, 0};
	struct kvof_plan_ttft free, staged;

	expect_int(kvof_plan_ttft(&recompute, &wave, &free, &bad), 0);
	expect_int(kvof_plan_staged_ttft(&recompute, &wave, 2, &staged, &bad), 0);
	near(staged.last_s, free.last_s, 0);
	near(staged.p50_s, free.p50_s, 0);
	wave.resident = 12;
	expect_int(kvof_plan_ttft(&array, &wave, &free, &bad), 0);
	expect_int(kvof_plan_staged_ttft(&array, &wave, 4, &staged, &bad), 0);
	near(staged.last_s, free.last_s, 0);
}

TEST(staging_never_makes_a_wave_sooner)
{
	for (uint32_t n = 1; n <= 40; n++) {
		const struct kvof_plan_wave wave = {30208, SESSION, n, 0};
		struct kvof_plan_ttft free, less, more;

		expect_int(kvof_plan_ttft(&array, &wave, &free, &bad), 0);
		expect_int(kvof_plan_staged_ttft(&array, &wave, 1, &more, &bad), 0);
		for (uint32_t staged = 2; staged <= n + 1; staged++) {
			less = more;
			expect_int(kvof_plan_staged_ttft(&array, &wave, staged, &more, &bad), 0);
			expect(more.last_s <= less.last_s + 1e-9);
			expect(more.last_s >= free.last_s - 1e-9);
			expect(more.p50_s <= more.p90_s && more.p90_s <= more.last_s);
		}
	}
}
