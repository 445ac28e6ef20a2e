/* SPDX-License-Identifier: Apache-2.0 */
/* A report from what was asked: which arms are compared with which, hosts, staging, a trace. */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include "base/must.h"
#include "plan/report.h"

static struct report report;                     /* large */
static struct plan_input input;

static void near(double got, double want)
{
	if (fabs(got - want) > 1e-6 * fabs(want))
		printf("# %.9g, not %.9g\n", got, want);
	expect(fabs(got - want) <= 1e-6 * fabs(want));
}

static void tell(const char *flag, const char *text)
{
	struct kvof_plan_bad bad;
	int id = plan_input_find_flag(flag);

	expect(id >= 0);
	expect_int(plan_input_set(&input, (enum plan_input_id)id, PLAN_IN_FLAG, text, &bad), 0);
}

/* 16 sessions of 30,208 tokens of 253,952 bytes, which all come again; last within 20 s. */
static void begin(void)
{
	plan_input_begin(&input);
	tell("workload-preset", "all-again");
	tell("sla-ttft", "20 s");
	tell("sla-quantile", "last");
}

static void make(const struct report_ask *more)
{
	struct report_ask ask = more != NULL ? *more : (struct report_ask){0};
	struct kvof_plan_bad bad;

	ask.in = &input;
	kt_noise(&report, sizeof(report));
	expect_int(report_make(&ask, &report, &bad), 0);
}

static struct plan_profile profile(void)
{
	struct plan_profile p = {.machine = "box A", .engine = "engine 1", .precision = "bf16",
		.source = KVOF_PLAN_ROWS, .arms = 2};

	p.arm[0].arm = (struct kvof_plan_arm){.kind = KVOF_PLAN_RECOMPUTE,
		.source = KVOF_PLAN_ROWS, .tokens_per_s = 2000};
	p.arm[1].arm = (struct kvof_plan_arm){.kind = KVOF_PLAN_ARRAY, .source = KVOF_PLAN_ROWS,
		.fixed_s = 1, .tokens_per_s = 40000};
	return p;
}

static bool said(const char *words)
{
	for (unsigned i = 0; i < report.differences; i++)
		if (strstr(report.difference[i].text, words) != NULL)
			return true;
	return false;
}

TEST(arms_of_another_precision_are_not_advised_by_and_the_difference_is_named)
{
	struct plan_profile p = profile();
	const struct report_ask ask = {.profile = &p, .profile_name = {"p.json"}, .profiles = 1};

	begin();
	tell("model-kv-dtype", "bf16");
	make(&ask);
	expect_int(report.used, 1);
	strcpy(p.precision, "fp8");
	make(&ask);
	expect_int(report.used, 0);
	expect(said("precision (bf16 | fp8)"));
	expect_int(report.sets, 2);                /* it is shown all the same */
}

TEST(arms_of_a_profile_are_alone_in_their_set)
{
	struct plan_profile p = profile();
	const struct report_ask ask = {.profile = &p, .profile_name = {"p.json"}, .profiles = 1};

	begin();
	make(&ask);
	expect(!report.facts.has[KVOF_PLAN_LOCAL]);        /* only the data sheets have it */
	expect(report.facts.has[KVOF_PLAN_ARRAY]);
	near(report.advice.time_s[KVOF_PLAN_ARRAY], 1 + 16 * 30208 / 40000.0);
	near(report.advice.time_s[KVOF_PLAN_RECOMPUTE], 16 * 30208 / 2000.0);
	expect(said("data sheets and p.json are not compared"));
}

static bool noted(const char *words)
{
	for (unsigned i = 0; i < report.notes; i++)
		if (strstr(report.note[i].text, words) != NULL)
			return true;
	return false;
}

TEST(what_a_measurement_doubts_is_said_with_the_advice)
{
	struct plan_profile p = profile();
	const struct report_ask ask = {.profile = &p, .profile_name = {"p.json"}, .profiles = 1};

	begin();
	tell("model-kv-dtype", "bf16");
	plan_fit_note(&p.arm[1], "restores of blocks of 1024 KiB");
	make(&ask);
	expect(!noted("array of p.json"));                 /* other notes stay in the profile */
	plan_fit_note(&p.arm[1], PLAN_NOTE_LOOPBACK ": name it");
	plan_fit_note(&p.arm[1], "check: " PLAN_NOTE_UNSURE);
	p.arm[1].concurrency_min = p.arm[1].concurrency_max = 8;
	p.devices = 1;
	p.device[0].kind = PLAN_DEVICE_DRIVE;
	plan_device_note(&p.device[0], PLAN_NOTE_NOT_DRIVE);
	make(&ask);
	expect_int(report.used, 1);
	expect(noted("array of p.json: " PLAN_NOTE_LOOPBACK ": name it; check: " PLAN_NOTE_UNSURE
		     "; 16 sessions are beyond"));
	expect(!noted(PLAN_NOTE_NOT_DRIVE));               /* drives are the arm local's */
	p.arm[1].arm.kind = KVOF_PLAN_LOCAL;
	make(&ask);
	expect(noted("local of p.json: " PLAN_NOTE_NOT_DRIVE "; " PLAN_NOTE_LOOPBACK));
	strcpy(p.precision, "fp8");                        /* shown only: doubted, too */
	make(&ask);
	expect_int(report.used, 0);
	expect(noted("local of p.json: " PLAN_NOTE_NOT_DRIVE));
}

TEST(a_rate_of_tokens_is_one_of_bytes_of_this_model)
{
	struct plan_profile p = profile();
	const struct report_ask ask = {.profile = &p, .profile_name = {"p.json"}, .profiles = 1};

	begin();
	make(&ask);
	near(report.facts.arm[KVOF_PLAN_ARRAY].bytes_per_s, 40000 * 253952.0);
}

TEST(hosts_share_the_sessions_out_and_the_array_has_all_of_them)
{
	const double session = 30208 * 253952.0;
	const struct report_arm *arms = report.set[0].arm;
	struct kvof_plan_bad bad;
	struct kvof_plan_ttft t;

	begin();
	tell("workload-hosts", "4");
	tell("array-ports", "8");
	make(NULL);
	expect_int(report_wave(&report, &arms[KVOF_PLAN_LOCAL], 16, &t, &bad), 0);
	near(t.last_s, 0.5 + 4 * session / 6.9e9);
	expect_int(report_wave(&report, &arms[KVOF_PLAN_ARRAY], 16, &t, &bad), 0);
	near(t.last_s, 0.7 + 16 * session / (4 * 6.9e9 * 0.95));     /* 4 ports give more */
	near(report.advice.hit[KVOF_PLAN_LOCAL], 0.25);
	expect_int(report_wave(&report, &arms[KVOF_PLAN_LOCAL], 5, &t, &bad), 0);
	near(t.last_s, 0.5 + 2 * session / 6.9e9);
	near(t.bytes_per_s_needed, 2.5 * 6.9e9);     /* two have one host, three have one each */
}

TEST(an_array_of_all_hosts_is_held_to_all_that_they_compute_side_by_side)
{
	const struct report_arm *array = &report.set[0].arm[KVOF_PLAN_ARRAY];
	double all, part;

	begin();
	tell("workload-hosts", "4");
	make(NULL);
	all = report.facts.sessions;
	part = ceil(all / 4);
	expect(all >= 4);
	expect_int(array->even.load, KVOF_PLAN_LOAD_FROM);
	near(array->even.from_tokens, 0.7 / (part / report.facts.arm[0].tokens_per_s -
					     all * 253952 / array->arm.bytes_per_s));
}

TEST(staging_that_holds_half_of_the_sessions_makes_two_waves)
{
	const double session = 30208 * 253952.0;
	struct kvof_plan_bad bad;
	struct kvof_plan_ttft t;

	begin();
	tell("dram-staging", "62 GB");               /* 8.08 sessions */
	make(NULL);
	expect_int(report.facts.staged, 8);
	expect_int(report_wave(&report, &report.set[0].arm[KVOF_PLAN_LOCAL], 16, &t, &bad), 0);
	near(t.last_s, 2 * 0.5 + 16 * session / 6.9e9);
	begin();
	tell("dram-staging", "62 GB");
	tell("workload-sessions", "16");
	make(NULL);                                  /* seven of nearly 8 GB fit: three waves */
	near((double)report.set[0].arm[KVOF_PLAN_LOCAL].longest_tokens,
	     floor((20 - 3 * 0.5) * 6.9e9 / 16 / 253952));
	begin();
	tell("dram-staging", "7 GB");
	expect_int(report_make(&(struct report_ask){.in = &input}, &report, &bad), -EINVAL);
	expect_str(bad.field, "[dram] staging");
}

TEST(a_trace_tells_tokens_rate_and_working_set_that_nobody_told)
{
	struct trace t = {0};

	for (unsigned i = 0; i < 11; i++) {
		expect_int(trace_add(&t, 2000 * i, 1024, 8), 0);
		expect_int(trace_add_block(&t, i % 2 == 0 ? 1 : 2), 0);
		expect_int(trace_add_block(&t, i % 2 == 0 ? 3 : 4), 0);
	}
	plan_input_begin(&input);
	make(&(struct report_ask){.trace = &t});
	near(report.tokens, 1024);
	near(report.requests_per_s, 11 / 20.0);
	near(report.working_set_bytes, 4 * 512 * 253952.0);
	near(report_hit(&report, report.working_set_bytes), 9 / 11.0);
	tell("workload-tokens", "4096");
	make(&(struct report_ask){.trace = &t});
	near(report.tokens, 4096);
	trace_free(&t);
}

TEST(every_step_has_a_formula_numbers_and_a_result)
{
	begin();
	tell("prices-gpu-hour", "2");
	tell("prices-array", "50000");
	tell("model-weights", "450 GB");
	make(NULL);
	expect(report.steps > 20);
	for (unsigned i = 0; i < report.steps; i++) {
		const struct report_step *s = &report.step[i];

		expect(s->what[0] != 0 && s->formula[0] != 0 && s->numbers[0] != 0);
		expect(s->result[0] != 0 && strlen(s->result) + 1 < sizeof(s->result));
		expect(strlen(s->formula) + 1 < sizeof(s->formula));
	}
	expect_int(report.reasons, 5);
}
