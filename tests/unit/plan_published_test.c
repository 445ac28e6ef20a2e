/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that others measured and published, held out: arms are fitted to some of them and predict
 * the rest. Nothing in kvof is set to these rows.
 */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include <kvof/plan.h>

#include "base/must.h"
#include "plan/rows.h"

#define TEXT_BYTES_MAX 65536

static struct plan_rows rows;
static struct kvof_plan_fit_out out;
static struct kvof_plan_bad bad;

static void rows_load(const char *name, const struct plan_rows_only *only, uint32_t count)
{
	static char text[TEXT_BYTES_MAX];
	char path[512];
	size_t bytes;
	FILE *from;

	snprintf(path, sizeof(path), DATA "/%s", name);
	from = fopen(path, "r");
	expect(from != NULL);
	bytes = fread(text, 1, sizeof(text), from);
	expect_int(fclose(from), 0);
	expect_int(plan_rows_read(text, bytes, only, count, &rows, &bad), 0);
}

/* An arm fitted to the rows, without those of one concurrency (0: with all). */
static const struct kvof_plan_arm *fit_without(enum kvof_plan_arm_kind kind, uint32_t left_out)
{
	struct kvof_plan_row some[64];
	size_t count = 0;

	for (uint32_t i = 0; i < rows.count; i++)
		if (rows.row[i].concurrency != left_out)
			some[count++] = rows.row[i];
	kt_noise(&out, sizeof(out));
	expect_int(kvof_plan_fit(some, count, &(struct kvof_plan_fit_ask){.keep_odd = false}, &out,
				 &bad), 0);
	for (uint32_t i = 0; i < out.arms; i++)
		if (out.arm[i].arm.kind == kind)
			return &out.arm[i].arm;
	fail();
	return NULL;
}

static const struct kvof_plan_row *row_find(enum kvof_plan_arm_kind kind, uint32_t concurrency)
{
	for (uint32_t i = 0; i < rows.count; i++)
		if (rows.row[i].kind == kind && rows.row[i].concurrency == concurrency)
			return &rows.row[i];
	fail();
	return NULL;
}

static struct kvof_plan_ttft predict(const struct kvof_plan_arm *arm,
				     const struct kvof_plan_row *row, uint32_t resident)
{
	const struct kvof_plan_wave wave = {.tokens = row->tokens, .bytes = row->bytes,
		.sessions = row->concurrency, .resident = resident};
	struct kvof_plan_ttft t;

	expect_int(kvof_plan_ttft(arm, &wave, &t, &bad), 0);
	return t;
}

static bool within(const char *what, double got, double want, double share)
{
	double error = got / want - 1;

	print_message("# %s: %.3f predicted, %.3f published, %+.1f %%\n", what, got, want,
		      100 * error);
	return fabs(error) <= share;
}

TEST(two_points_predict_the_third_when_two_of_its_sessions_were_in_memory)
{
	static const enum kvof_plan_arm_kind kinds[] = {KVOF_PLAN_ARRAY, KVOF_PLAN_LOCAL};

	rows_load("plan-rows.csv", NULL, 0);
	for (unsigned i = 0; i < ARRAY_COUNT(kinds); i++) {
		const struct kvof_plan_row *row = row_find(kinds[i], 16);
		struct kvof_plan_ttft t = predict(fit_without(kinds[i], 16), row, 2);

		expect(within("last s", t.last_s, row->ttft_p90_s, 0.05));
		expect(within("median s", t.p50_s, row->ttft_p50_s, 0.05));
		expect(within("tokens/s", t.tokens_per_s, row->tokens_per_s, 0.05));
	}
	plan_rows_free(&rows);
}

TEST(with_all_sessions_read_the_array_would_have_been_26_percent_sooner_and_not_32)
{
	struct kvof_plan_ttft array, local;
	double sooner, more;

	rows_load("plan-rows.csv", NULL, 0);
	array = predict(fit_without(KVOF_PLAN_ARRAY, 16), row_find(KVOF_PLAN_ARRAY, 16), 0);
	local = predict(fit_without(KVOF_PLAN_LOCAL, 16), row_find(KVOF_PLAN_LOCAL, 16), 0);
	sooner = array.p50_s / local.p50_s - 1;
	more = array.tokens_per_s / local.tokens_per_s - 1;
	print_message("# clean wave of 16: %+.1f %% median, %+.1f %% tokens/s\n", 100 * sooner,
		      100 * more);
	expect(fabs(sooner + 0.26) < 0.01);
	expect(fabs(more - 0.32) < 0.01);
	plan_rows_free(&rows);
}

TEST(the_rows_off_the_line_are_found_and_two_of_their_sixteen_sessions_were_not_read)
{
	rows_load("plan-rows.csv", NULL, 0);
	fit_without(KVOF_PLAN_ARRAY, 0);
	expect_int(out.odd, 2);
	for (uint32_t i = 0; i < out.odd; i++) {
		const struct kvof_plan_odd *odd = &out.odd_row[i];
		const struct kvof_plan_row *row = &rows.row[odd->row];

		expect_int(row->concurrency, 16);
		expect_int(odd->unread, 2);
		expect(within("with 14 of 16 read, s", odd->unread_s, odd->measured_s, 0.05));
		expect(!within("with all read, s", odd->line_s, odd->measured_s, 0.05));
	}
	expect(rows.row[out.odd_row[0].row].kind != rows.row[out.odd_row[1].row].kind);
	expect_int(fit_without(KVOF_PLAN_ARRAY, 0)->kind, KVOF_PLAN_ARRAY);
	plan_rows_free(&rows);
}

TEST(the_median_of_recompute_is_the_ninth_of_sixteen_one_after_another)
{
	struct kvof_plan_row *row;
	const struct kvof_plan_arm *arm;
	struct kvof_plan_ttft t;
	double p50, tokens_per_s;

	rows_load("plan-rows.csv", (const struct plan_rows_only[]){{"arm", "recompute"}}, 1);
	expect_int(rows.count, 1);
	row = &rows.row[0];
	p50 = row->ttft_p50_s;
	tokens_per_s = row->tokens_per_s;
	/* Only that the 15th had its first token after 237 s. */
	row->ttft_p50_s = row->tokens_per_s = 0;
	arm = fit_without(KVOF_PLAN_RECOMPUTE, 0);
	t = predict(arm, row, 0);
	expect(within("median s", t.p50_s, p50, 0.05));
	expect(within("tokens/s", 16 * 64 / t.last_s, tokens_per_s, 0.05));
	plan_rows_free(&rows);
}

TEST(a_faster_client_leaves_the_fixed_time_as_it_was)
{
	static const char *const engines[] = {"before", "after"};
	struct kvof_plan_arm arm[2];
	struct kvof_plan_row row[2];

	for (unsigned i = 0; i < 2; i++) {
		rows_load("plan-rows-patch.csv",
			  (const struct plan_rows_only[]){{"engine", engines[i]}}, 1);
		expect_int(rows.count, 1);
		row[i] = rows.row[0];
		arm[i] = *fit_without(KVOF_PLAN_ARRAY, 0);
		plan_rows_free(&rows);
	}
	expect(fabs(arm[0].fixed_s - 2.66) < 0.005);
	expect(fabs(arm[1].fixed_s - 2.68) < 0.005);
	/* Each time follows from the other's fixed time and its own rate. */
	for (unsigned i = 0; i < 2; i++) {
		struct kvof_plan_arm crossed = arm[i];

		crossed.fixed_s = arm[1 - i].fixed_s;
		expect(within("last s", predict(&crossed, &row[i], 0).last_s, row[i].ttft_p50_s,
			      0.005));
	}
}

TEST(two_engines_are_not_put_into_one_comparison)
{
	static const char text[] = "engine,arm,concurrency,tokens,ttft_p50_s\n"
				   "before,array,16,8448,37.97\nafter,array,16,8448,9.30\n";

	expect_int(plan_rows_read(text, sizeof(text) - 1, NULL, 0, &rows, &bad), -EINVAL);
	expect(rows.mixed);
	expect_str(bad.field, "line 3, engine:");
	expect(strstr(bad.why, "after here, before in line 2") != NULL);
	plan_rows_free(&rows);
}

TEST(two_networks_have_the_same_fixed_time_and_predict_one_another)
{
	struct kvof_plan_arm array, nfs;

	rows_load("plan-rows-load.csv", NULL, 0);
	array = *fit_without(KVOF_PLAN_ARRAY, 0);
	nfs = *fit_without(KVOF_PLAN_NFS, 0);
	expect(within("fixed s", nfs.fixed_s, array.fixed_s, 0.02));
	expect(within("array bytes/s", array.bytes_per_s, 1.99e9, 0.005));
	expect(within("NFS bytes/s", nfs.bytes_per_s, 0.107e9, 0.005));
	/* The fixed time of one with the rate of the other. */
	for (uint32_t i = 0; i < rows.count; i++) {
		const struct kvof_plan_row *row = &rows.row[i];
		struct kvof_plan_arm crossed = row->kind == KVOF_PLAN_NFS ? nfs : array;

		crossed.fixed_s = row->kind == KVOF_PLAN_NFS ? array.fixed_s : nfs.fixed_s;
		expect(within("load s", predict(&crossed, row, 0).last_s, row->ttft_last_s, 0.05));
	}
	plan_rows_free(&rows);
}
