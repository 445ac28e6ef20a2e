/* SPDX-License-Identifier: Apache-2.0 */
/* Quantities with their units, bounds, and which of flag, file and standard holds. */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include "base/must.h"
#include "plan/input.h"

static double number_of(const char *flag, const char *text)
{
	struct plan_input in;
	struct kvof_plan_bad bad;
	int id = plan_input_find_flag(flag);

	expect(id >= 0);
	plan_input_begin(&in);
	expect_int(plan_input_set(&in, (enum plan_input_id)id, PLAN_IN_FLAG, text, &bad), 0);
	expect_str(plan_input_text(&in, (enum plan_input_id)id), text);
	return plan_input_number(&in, (enum plan_input_id)id);
}

static void refused(const char *flag, const char *text, const char *word)
{
	struct plan_input in;
	struct kvof_plan_bad bad = {.field = ""};
	int id = plan_input_find_flag(flag);

	expect(id >= 0);
	plan_input_begin(&in);
	expect_int(plan_input_set(&in, (enum plan_input_id)id, PLAN_IN_FILE, text, &bad), -EINVAL);
	expect(strstr(bad.why, word) != NULL && bad.field[0] == '[');
	expect(!plan_input_told(&in, (enum plan_input_id)id));
}

TEST(gb_is_ten_to_the_ninth_and_gib_two_to_the_thirtieth)
{
	static const struct {
		const char *flag, *text;
		double want;
	} rows[] = {
		{"gpu-memory", "192 GB", 192e9}, {"gpu-memory", "192GiB", 192 * 0x1p30},
		{"drives-capacity", "7.68 TB", 7.68e12}, {"drives-tbw", "14 PB", 14e15},
		{"model-bytes-per-token", "248 KiB", 253952},
		{"model-bytes_per_token", "5 kB", 5000},
		{"link-port", "100 Gbit/s", 12.5e9}, {"link-port", "10 GB/s", 10e9},
		{"drives-read", "6.5 GiB/s", 6.5 * 0x1p30}, {"sla-ttft", "300 ms", 0.3},
		{"prices-life", "4 years", 4 * 365.25 * 86400}, {"link-rtt", "50us", 50e-6},
		{"link-efficiency", "85 %", 0.85}, {"link-efficiency", "85%", 0.85},
		{"workload-requests", "600 /h", 600 / 3600.0}, {"workload-requests", "2/s", 2},
		{"model-prefill", "3700 tokens/s", 3700}, {"workload-tokens", "30208", 30208},
		{"workload-tokens", "30208 tokens", 30208},
		{"drives-write-amplification", "1.07", 1.07},
		{"gpu-flops", "1.3 PFLOP/s", 1.3e15}, {"gpu-flops", "990 TFLOP/s", 990e12},
		{"prices-gpu-hour", "2.5", 2.5}, {"dram-size", "0 B", 0},
		{"workload-outlive", "move", 2}, {"workload-preset", "multi-turn", 0},
	};

	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		double got = number_of(rows[i].flag, rows[i].text);

		if (fabs(got - rows[i].want) > 1e-12 * rows[i].want)
			printf("# %s %s: %g\n", rows[i].flag, rows[i].text, got);
		expect(fabs(got - rows[i].want) <= 1e-12 * rows[i].want);
	}
}

TEST(what_could_be_meant_two_ways_is_refused)
{
	refused("gpu-memory", "192", "unit");
	refused("gpu-memory", "192 G", "unit");
	refused("gpu-memory", "192 Gbit", "unit");
	refused("link-port", "100 Gb/s", "unit");
	refused("link-port", "100 GB", "unit");
	refused("sla-ttft", "5", "unit");
	refused("sla-ttft", "5 m", "unit");
	refused("link-efficiency", "0.85", "percent");
	refused("workload-requests", "600", "how often");
	refused("workload-tokens", "30 k", "tokens");
	refused("workload-tokens", "0.5", "tokens");
	refused("prices-gpu-hour", "2.5 EUR", "currency");
}

TEST(what_is_no_number_or_out_of_bounds_is_refused)
{
	refused("gpu-memory", "-1 GB", "not a size");
	refused("gpu-memory", "1e9 B", "not a size");
	refused("gpu-memory", ".5 GB", "not a size");
	refused("gpu-memory", "nan GB", "not a size");
	refused("gpu-memory", "1.2.3 GB", "not a size");
	refused("gpu-memory", "1234567890123456789 GB", "not a size");
	refused("gpu-memory", "", "empty");
	refused("gpu-memory", "9999 TB", "out of range");
	refused("gpu-count", "0", "out of range");
	refused("link-efficiency", "101 %", "out of range");
	refused("drives-write-amplification", "0.9", "out of range");
	refused("workload-preset", "multi", "multi-turn|shared-prefix");
	refused("model-name", "a\nb", "plain");
}

TEST(a_flag_beats_the_file_and_the_file_the_standard)
{
	struct plan_input in;
	struct kvof_plan_bad bad;

	plan_input_begin(&in);
	expect_int(plan_input_count(&in, PLAN_IN_workload_sessions), 16);
	expect(!plan_input_told(&in, PLAN_IN_workload_sessions));
	expect_int(plan_input_set(&in, PLAN_IN_workload_sessions, PLAN_IN_FLAG, "9", &bad), 0);
	expect_int(plan_input_set(&in, PLAN_IN_workload_sessions, PLAN_IN_FILE, "7", &bad), 0);
	expect_int(plan_input_count(&in, PLAN_IN_workload_sessions), 9);
	expect_int(plan_input_set(&in, PLAN_IN_workload_sessions, PLAN_IN_FLAG, "8", &bad),
		   -EINVAL);
	expect(strstr(bad.why, "twice") != NULL);
	expect(plan_input_told(&in, PLAN_IN_workload_sessions));
}

TEST(an_empty_value_is_not_told_where_that_means_something)
{
	struct plan_input in;
	struct kvof_plan_bad bad;

	plan_input_begin(&in);
	expect_int(plan_input_set(&in, PLAN_IN_model_weights, PLAN_IN_FILE, "", &bad), 0);
	expect(!plan_input_has(&in, PLAN_IN_model_weights));
	expect(!plan_input_told(&in, PLAN_IN_model_weights));
}

TEST(every_key_is_found_by_its_section_and_as_a_flag)
{
	for (int i = 0; i < PLAN_IN_COUNT; i++) {
		const struct plan_input_row *row = plan_input_row((enum plan_input_id)i);
		char flag[96];

		expect_int(plan_input_find(row->section, row->name), i);
		snprintf(flag, sizeof(flag), "%s-%s", row->section, row->name);
		for (char *at = flag; *at != 0; at++)
			*at = *at == '_' ? '-' : *at;
		expect_int(plan_input_find_flag(flag), i);
	}
	expect_int(plan_input_find("array", "capacity"), -1);
	expect_int(plan_input_find_flag("array"), -1);
	expect_int(plan_input_find_flag(""), -1);
}

TEST(what_contradicts_itself_is_refused)
{
	static const struct {
		enum plan_input_id a, b;
		const char *a_text, *b_text, *word;
	} rows[] = {
		{PLAN_IN_model_config, PLAN_IN_model_bytes_per_token, "c.json", "1 KiB", "config"},
		{PLAN_IN_workload_trace, PLAN_IN_workload_preset, "t.jsonl", "mixed", "trace"},
		{PLAN_IN_model_weights, PLAN_IN_gpu_count, "450 GB", "1", "memory"},
		{PLAN_IN_workload_kept, PLAN_IN_workload_sessions, "8", "9", "sessions"},
	};
	struct kvof_plan_bad bad;
	struct plan_input in;

	plan_input_begin(&in);
	expect_int(plan_input_check(&in, &bad), 0);
	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		plan_input_begin(&in);
		expect_int(plan_input_set(&in, rows[i].a, PLAN_IN_FILE, rows[i].a_text, &bad), 0);
		expect_int(plan_input_set(&in, rows[i].b, PLAN_IN_FILE, rows[i].b_text, &bad), 0);
		expect_int(plan_input_check(&in, &bad), -EINVAL);
		expect(strstr(bad.why, rows[i].word) != NULL);
	}
}
