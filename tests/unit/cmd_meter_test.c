/* SPDX-License-Identifier: Apache-2.0 */
/* The benches' histogram: what it says about a share of all latencies. */
#include "kt.h"

#include <math.h>
#include <stdlib.h>

#include "base/must.h"
#include "base/prng.h"
#include "cmd/meter.h"

#define COUNT 5000

static int order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static struct cmd_meter *meter_new(void)
{
	struct cmd_meter *m = calloc(1, sizeof(*m));

	expect(m != NULL);
	return m;
}

TEST(a_share_is_told_to_a_32nd_and_never_too_small)
{
	static uint64_t ns[COUNT];
	struct prng p = prng_of(9);
	struct cmd_meter *m = meter_new();

	for (unsigned i = 0; i < COUNT; i++) {
		ns[i] = prng_below(&p, UINT64_C(1) << (1 + prng_below(&p, 40)));
		cmd_meter_add(m, ns[i]);
	}
	qsort(ns, COUNT, sizeof(ns[0]), order);
	for (unsigned percent = 0; percent < 100; percent++) {
		double share = percent / 100.0, said = cmd_meter_us(m, share);
		double is = (double)ns[(unsigned)(share * COUNT)] / 1e3;

		expect(said >= is && said <= is * (1 + 1.0 / CMD_METER_STEPS) + 0.002);
	}
	expect(cmd_meter_us(m, 1.0) >= (double)ns[COUNT - 1] / 1e3);
	free(m);
}

TEST(one_latency_is_every_share_and_none_is_zero)
{
	struct cmd_meter *m = meter_new();

	expect(cmd_meter_us(m, 0.5) == 0);
	cmd_meter_add(m, 63);
	expect(fabs(cmd_meter_us(m, 0.0) - 0.064) < 1e-9);
	expect(fabs(cmd_meter_us(m, 0.99) - 0.064) < 1e-9);
	free(m);
}

TEST(the_longest_time_there_is_has_a_bucket)
{
	struct cmd_meter *m = meter_new();

	cmd_meter_add(m, UINT64_MAX);
	cmd_meter_add(m, 0);
	expect_int(m->ops, 2);
	expect(cmd_meter_us(m, 0.0) < 0.002);
	free(m);
}

TEST(an_operation_is_found_by_its_name)
{
	struct cmd_meter *m = meter_new();

	m->op_name = "exist";
	expect(cmd_meter_op(m));
	expect_int(m->op, CMD_BENCH_EXIST);
	m->op_name = "retrieve";
	expect(cmd_meter_op(m));
	expect_int(m->op, CMD_BENCH_RETRIEVE);
	m->op_name = "exists";
	expect(!cmd_meter_op(m));
	free(m);
}

TEST(the_result_has_the_fields_that_scripts_rely_on)
{
	static const char *const fields[] = {"op", "value_bytes", "depth", "queues", "seconds",
		"ops_per_s", "bytes_per_s", "p50_us", "p99_us", "cpu_s"};
	struct cmd_meter *m = meter_new();
	json_t *o;

	m->op_name = "store";
	m->value_bytes = 1000;
	cmd_meter_begin(m);
	cmd_meter_add(m, 5000);
	cmd_meter_end(m);
	expect(m->seconds > 0 && m->cpu_s >= 0);
	o = cmd_meter_json(m, "simulator");
	for (unsigned i = 0; i < ARRAY_COUNT(fields); i++)
		expect(json_object_get(o, fields[i]) != NULL);
	expect(fabs(json_real_value(json_object_get(o, "bytes_per_s")) -
		    1000 * json_real_value(json_object_get(o, "ops_per_s"))) < 1);
	json_decref(o);
	free(m);
}
