/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advice by hand. A session has 30,000 tokens of 250,000 bytes: 7.5 GB. Recompute takes 6 s of
 * each, local NVMe 0.5 s and 1.25 s of each, the array 0.7 s and 0.75 s of each; 10 s are asked
 * for.
 */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include "base/must.h"
#include "plan/advice.h"

static void near(double got, double want)
{
	if (fabs(got - want) > 1e-6 * fabs(want))
		printf("# %.9g, not %.9g\n", got, want);
	expect(fabs(got - want) <= 1e-6 * fabs(want));
}

static struct advice_facts facts(uint32_t sessions)
{
	struct advice_facts f = {
		.length = {.token_bytes = 250000}, .tokens = 30000, .block_tokens = 256,
		.curve = {.points = 2, .room = {0, 1}, .hit = {0, 1}}, .hbm_bytes = 0.1e12,
		.working_set_bytes = 0.75e12, .sessions = sessions, .hosts = 1,
		.rank = KVOF_PLAN_LAST, .sla_s = 10, .least_gain = 0.1};

	f.arm[KVOF_PLAN_RECOMPUTE] = (struct kvof_plan_arm){.kind = KVOF_PLAN_RECOMPUTE,
		.tokens_per_s = 5000};
	f.arm[KVOF_PLAN_LOCAL] = (struct kvof_plan_arm){.kind = KVOF_PLAN_LOCAL,
		.fixed_s = 0.5, .bytes_per_s = 6e9};
	f.arm[KVOF_PLAN_ARRAY] = (struct kvof_plan_arm){.kind = KVOF_PLAN_ARRAY,
		.fixed_s = 0.7, .bytes_per_s = 10e9};
	f.has[KVOF_PLAN_RECOMPUTE] = f.has[KVOF_PLAN_LOCAL] = f.has[KVOF_PLAN_ARRAY] = true;
	f.capacity_bytes[KVOF_PLAN_LOCAL] = 10e12;
	f.capacity_bytes[KVOF_PLAN_ARRAY] = 30e12;
	return f;
}

static struct advice ask(const struct advice_facts *f, enum advice_what what, enum advice_why why)
{
	struct kvof_plan_bad bad;
	char text[ADVICE_TEXT_BYTES];
	struct advice a;

	kt_noise(&a, sizeof(a));
	expect_int(advice_make(f, &a, &bad), 0);
	advice_text(f, &a, text);
	if (a.what != what || a.why != why)
		printf("# %s, %s: %s\n", advice_name(a.what), advice_why_name(a.why), text);
	expect_int(a.what, what);
	expect_int(a.why, why);
	expect(text[0] != 0 && strlen(text) < ADVICE_TEXT_BYTES - 1);
	return a;
}

/* The flip of a fact in a direction; what ADVICE_NOTHING and at 0 when there is none. */
static struct advice_flip flip_of(const struct advice_facts *f, enum advice_fact fact, bool above)
{
	struct advice_flip flips[ADVICE_FLIPS_MAX], none = {.fact = fact};
	char text[ADVICE_TEXT_BYTES];
	struct kvof_plan_bad bad;
	unsigned count;

	expect_int(advice_flips(f, flips, &count, &bad), 0);
	for (unsigned i = 0; i < count; i++) {
		advice_flip_text(&flips[i], text);
		expect(strstr(text, "now") != NULL);
		if (flips[i].fact == fact && flips[i].above == above)
			return flips[i];
	}
	return none;
}

TEST(local_drives_are_enough_while_they_meet_the_service_level)
{
	struct advice_facts f = facts(4);
	struct advice a = ask(&f, ADVICE_LOCAL, ADVICE_ENOUGH);

	expect(a.meets);
	near(a.time_s[KVOF_PLAN_LOCAL], 0.5 + 4 * 1.25);
	near(a.time_s[KVOF_PLAN_ARRAY], 0.7 + 4 * 0.75);
	near(a.time_s[KVOF_PLAN_RECOMPUTE], 24);
	near(a.gain, 1 - 3.7 / 24);
	expect(isinf(a.time_s[KVOF_PLAN_DRAM]) && isinf(a.time_s[KVOF_PLAN_NFS]));
}

TEST(an_array_pays_from_as_many_sessions_as_local_drives_bring_back_too_late)
{
	struct advice_facts f = facts(4);
	struct advice_flip flip = flip_of(&f, ADVICE_SESSIONS, true);

	expect_int(flip.what, ADVICE_ARRAY);         /* 7 take 9.25 s, 8 take 10.5 s */
	expect_int(flip.why, ADVICE_RATE);
	near(flip.at, 8);
	flip = flip_of(&f, ADVICE_SESSIONS, false);
	expect_int(flip.what, ADVICE_NOTHING);       /* one alone is computed in 6 s */
	expect_int(flip.why, ADVICE_MEETS);
	near(flip.at, 1);
	f = facts(8);
	ask(&f, ADVICE_ARRAY, ADVICE_RATE);
}

TEST(an_array_pays_from_the_working_set_that_local_drives_have_no_room_for)
{
	struct advice_facts f = facts(4);
	struct advice_flip flip = flip_of(&f, ADVICE_WORKING_SET, true);

	near(flip.at, 0);                            /* 17 times what it is: another plan */
	f.working_set_bytes = 5e12;
	flip = flip_of(&f, ADVICE_WORKING_SET, true);
	/* h of it is hit: 0.5 + 5 h + 24 (1 - h) = 10 at h = 14.5 / 19 */
	expect_int(flip.what, ADVICE_ARRAY);
	expect_int(flip.why, ADVICE_ROOM);
	near(flip.at, 10e12 * 19 / 14.5);
	f = facts(4);
	flip = flip_of(&f, ADVICE_WORKING_SET, false);
	expect_int(flip.why, ADVICE_HBM);
	near(flip.at, 0.1e12 / 0.99);
}

TEST(each_fact_flips_where_the_formulas_say)
{
	static const struct {
		enum advice_fact fact;
		bool above;
		double at;
		enum advice_what what;
		enum advice_why why;
	} rows[] = {
		{ADVICE_PREFILL, true, 12000, ADVICE_NOTHING, ADVICE_MEETS},
		{ADVICE_TOKENS, false, 12500, ADVICE_NOTHING, ADVICE_MEETS},
		{ADVICE_TOKENS, true, 57001, ADVICE_ARRAY, ADVICE_RATE},
		{ADVICE_SLA, false, 5.5, ADVICE_ARRAY, ADVICE_RATE},
		{ADVICE_SLA, true, 24, ADVICE_NOTHING, ADVICE_MEETS},
		{ADVICE_LOCAL_RATE, false, 30e9 / 9.5, ADVICE_ARRAY, ADVICE_RATE},
		{ADVICE_OUTLIVE, true, 2, ADVICE_ARRAY, ADVICE_SHARED},
		{ADVICE_HOSTS, true, 4, ADVICE_NOTHING, ADVICE_MEETS},
	};
	struct advice_facts f = facts(4);

	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		struct advice_flip flip = flip_of(&f, rows[i].fact, rows[i].above);

		near(flip.at, rows[i].at);
		expect_int(flip.what, rows[i].what);
		expect_int(flip.why, rows[i].why);
	}
	expect(flip_of(&f, ADVICE_ARRAY_RATE, true).at == 0);   /* it is not the array's rate */
}

TEST(flips_are_told_nearest_first_and_none_is_beyond_the_model_s_context)
{
	struct advice_flip flip[ADVICE_FLIPS_MAX];
	struct kvof_plan_bad bad;
	struct advice_facts f = facts(4);
	double before = 1;
	unsigned count;

	near(flip_of(&f, ADVICE_TOKENS, true).at, 57001);
	f.context_tokens = 57001;
	near(flip_of(&f, ADVICE_TOKENS, true).at, 57001);
	f.context_tokens = 57000;
	near(flip_of(&f, ADVICE_TOKENS, true).at, 0);
	expect_int(advice_flips(&f, flip, &count, &bad), 0);
	for (unsigned i = 0; i < count; i++) {
		double far = flip[i].fact == ADVICE_OUTLIVE || flip[i].fact == ADVICE_ROUTING ? 2 :
			     fmax(flip[i].at / flip[i].now, flip[i].now / flip[i].at);

		expect(far >= before && far <= 8);
		before = far;
	}
	expect(count > 4);
}

TEST(longer_prefixes_leave_staging_for_fewer_sessions)
{
	struct advice_facts f = facts(4);            /* local: 5.5 s of 10 */
	struct advice_flip flip;

	f.staging_bytes = 4.5 * 30000 * 250000;      /* from 33,751 tokens on two waves */
	f.staged = 4;
	ask(&f, ADVICE_LOCAL, ADVICE_ENOUGH);
	flip = flip_of(&f, ADVICE_TOKENS, true);     /* two waves: 1 s + 4 T 250000 / 6e9 = 10 s */
	near(flip.at, 54001);
	expect_int(flip.what, ADVICE_ARRAY);
	f.sessions = 1;                              /* 0.5 + T 250000 / 6e9 = 10 */
	f.arm[KVOF_PLAN_RECOMPUTE].tokens_per_s = 2000;
	f.staging_bytes = 228001 * 250000.0;
	near(flip_of(&f, ADVICE_TOKENS, true).at, 228001);
	f.staging_bytes -= 1;                        /* and none where one is not staged whole */
	near(flip_of(&f, ADVICE_TOKENS, true).at, 0);
}

TEST(jitter_takes_the_array_out_where_its_round_trips_make_it_late)
{
	struct advice_facts f = facts(8);            /* 0.7 + 6 s of 10; local 10.5 s */
	struct advice_flip flip;

	f.has_net = true;
	f.net = (struct kvof_plan_net){.transport = KVOF_PLAN_RDMA, .link_bytes_per_s = 10e9,
		.rtt_s = 50e-6, .flows = 32};
	ask(&f, ADVICE_ARRAY, ADVICE_RATE);
	flip = flip_of(&f, ADVICE_JITTER, true);
	near(flip.at, 10 - 6.7);
	expect(flip.what != ADVICE_ARRAY || flip.why == ADVICE_BEST);
	f.net.jitter_s = flip.at * 1.01;
	ask(&f, flip.what, flip.why);
	f.net.jitter_s = flip.at * 0.99;
	ask(&f, ADVICE_ARRAY, ADVICE_RATE);
}

TEST(recompute_that_is_as_quick_means_do_not_buy)
{
	struct advice_facts f = facts(40);

	f.arm[KVOF_PLAN_RECOMPUTE].tokens_per_s = 50000;       /* 24 s; the array takes 30.7 s */
	ask(&f, ADVICE_NOTHING, ADVICE_SLOWER);
	expect_int(flip_of(&f, ADVICE_PREFILL, false).what, ADVICE_ARRAY);
	f = facts(1);                                /* 6 s, 10 are asked for */
	ask(&f, ADVICE_NOTHING, ADVICE_MEETS);
}

TEST(short_prompts_and_prompts_that_never_come_again_mean_do_not_buy)
{
	struct advice_facts f = facts(400);

	f.tokens = 200;
	ask(&f, ADVICE_NOTHING, ADVICE_SHORT);
	f = facts(8);
	f.curve.hit[1] = 0.03;
	ask(&f, ADVICE_NOTHING, ADVICE_COLD);
	f = facts(8);
	f.tokens = 1000;                             /* 8 prompts of 1,000 take 1.6 s */
	ask(&f, ADVICE_NOTHING, ADVICE_MEETS);
}

TEST(what_fits_in_gpu_memory_is_not_bought_for_unless_it_has_to_outlive_a_restart)
{
	struct advice_facts f = facts(8);

	f.working_set_bytes = 0.09e12;
	expect(ask(&f, ADVICE_NOTHING, ADVICE_HBM).meets);
	f.outlive = ADVICE_OUTLIVE_RESTART;
	ask(&f, ADVICE_ARRAY, ADVICE_RATE);
}

TEST(memory_of_the_host_is_taken_where_it_has_room_and_nothing_must_outlive_it)
{
	struct advice_facts f = facts(4);

	f.has[KVOF_PLAN_DRAM] = true;
	f.arm[KVOF_PLAN_DRAM] = (struct kvof_plan_arm){.kind = KVOF_PLAN_DRAM, .fixed_s = 0.3,
		.bytes_per_s = 40e9};
	f.capacity_bytes[KVOF_PLAN_DRAM] = 1e12;
	near(ask(&f, ADVICE_DRAM, ADVICE_ENOUGH).time_s[KVOF_PLAN_DRAM], 0.3 + 30 / 40.0);
	f.outlive = ADVICE_OUTLIVE_RESTART;
	ask(&f, ADVICE_LOCAL, ADVICE_ENOUGH);
	f.outlive = ADVICE_OUTLIVE_NOTHING;
	f.capacity_bytes[KVOF_PLAN_DRAM] = 0.3e12;   /* h = 0.4: 0.3 + 0.3 + 14.4 s */
	near(ask(&f, ADVICE_LOCAL, ADVICE_ENOUGH).time_s[KVOF_PLAN_DRAM], 15);
}

TEST(sharing_between_hosts_takes_hits_from_what_each_has_for_itself)
{
	struct advice_facts f = facts(8);
	struct advice a;

	f.hosts = 2;
	f.capacity_bytes[KVOF_PLAN_LOCAL] = 20e12;
	a = ask(&f, ADVICE_ARRAY, ADVICE_SHARED);    /* 4 each: 0.5 + 2.5 + 12 s */
	near(a.hit[KVOF_PLAN_LOCAL], 0.5);
	near(a.time_s[KVOF_PLAN_LOCAL], 15);
	near(a.time_s[KVOF_PLAN_ARRAY], 0.7 + 8 * 0.75);
	f.sticky = true;
	ask(&f, ADVICE_LOCAL, ADVICE_ENOUGH);
	expect_int(flip_of(&f, ADVICE_ROUTING, false).what, ADVICE_ARRAY);
}

TEST(where_none_meets_it_the_best_is_told_and_that_it_does_not)
{
	struct advice_facts f = facts(16);
	uint32_t sessions;
	bool unbounded;
	struct kvof_plan_bad bad;

	expect(!ask(&f, ADVICE_ARRAY, ADVICE_BEST).meets);     /* 12.7 s; local 20.5 s */
	expect_int(advice_sessions(&f, KVOF_PLAN_ARRAY, &sessions, &unbounded, &bad), 0);
	expect_int(sessions, 12);
	expect(!unbounded);
	f.arm[KVOF_PLAN_LOCAL].bytes_per_s = 9.5e9;  /* 13.1 s: as quick, and cheaper */
	ask(&f, ADVICE_LOCAL, ADVICE_BEST);
}

TEST(a_network_that_loses_packets_takes_the_array_out)
{
	struct advice_facts f = facts(8);
	struct advice_flip flip;

	f.has_net = true;
	f.net = (struct kvof_plan_net){.transport = KVOF_PLAN_TCP, .link_bytes_per_s = 10e9,
		.rtt_s = 0.005, .flows = 32};
	ask(&f, ADVICE_ARRAY, ADVICE_RATE);
	flip = flip_of(&f, ADVICE_LOSS, true);
	expect(flip.at > 0 && flip.at < 0.01);
	expect_int(flip.what, ADVICE_LOCAL);
	expect_int(flip.why, ADVICE_LOSSY);
	f.net.loss = 0.01;
	ask(&f, ADVICE_LOCAL, ADVICE_LOSSY);
	f.has[KVOF_PLAN_LOCAL] = false;
	ask(&f, ADVICE_NOTHING, ADVICE_LOSSY);
}

TEST(without_an_arm_that_hits_anything_it_is_said)
{
	struct advice_facts f = facts(8);

	f.has[KVOF_PLAN_ARRAY] = false;
	f.outlive = ADVICE_OUTLIVE_MOVE;             /* local drives don't move */
	expect(!ask(&f, ADVICE_NOTHING, ADVICE_NO_ARM).meets);
	f.has[KVOF_PLAN_LOCAL] = false;
	f.outlive = ADVICE_OUTLIVE_NOTHING;
	ask(&f, ADVICE_NOTHING, ADVICE_NO_ARM);
	f.working_set_bytes = 0.09e12;
	ask(&f, ADVICE_NOTHING, ADVICE_HBM);
}

/* 1,000 requests a day, 0.8667 of their tokens not in GPU memory: 5,200 s, 11.556 GPU-h at 2. */
TEST(what_is_not_needed_is_bought_only_if_it_pays_for_itself)
{
	struct advice_facts f = facts(1);
	struct advice a;

	f.money = (struct advice_money){.told = true, .gpus = 8, .gpu_hour = 2,
		.life_s = 4 * 365.25 * 86400, .payback_days = 730, .requests_per_day = 1000};
	f.money.has_price[KVOF_PLAN_LOCAL] = f.money.has_price[KVOF_PLAN_ARRAY] = true;
	f.money.price[KVOF_PLAN_LOCAL] = 1000;
	f.money.price[KVOF_PLAN_ARRAY] = 20000;
	a = ask(&f, ADVICE_LOCAL, ADVICE_PAYS);
	near(a.payback_days[KVOF_PLAN_LOCAL], 1000 / (5200.0 * 8 / 3600 * 2));
	near(a.payback_days[KVOF_PLAN_ARRAY], 20000 / (5200.0 * 8 / 3600 * 2));
	f.money.price[KVOF_PLAN_LOCAL] = 30000;
	ask(&f, ADVICE_NOTHING, ADVICE_MEETS);
}

TEST(loads_wait_for_staging)
{
	struct advice_facts f = facts(4);

	f.staged = 2;                                /* two waves: the fixed time twice */
	near(ask(&f, ADVICE_LOCAL, ADVICE_ENOUGH).time_s[KVOF_PLAN_LOCAL], 2 * 0.5 + 4 * 1.25);
}

TEST(a_curve_is_straight_between_its_points)
{
	struct advice_curve c = {.points = 3, .room = {0.1, 0.5, 1}, .hit = {0.2, 0.6, 0.7}};

	near(advice_curve_at(&c, 0.05), 0.1);
	near(advice_curve_at(&c, 0.1), 0.2);
	near(advice_curve_at(&c, 0.3), 0.4);
	near(advice_curve_at(&c, 0.75), 0.65);
	near(advice_curve_at(&c, 7), 0.7);
}

TEST(an_arm_that_is_none_is_refused)
{
	struct advice_facts f = facts(4);
	struct kvof_plan_bad bad = {.why = ""};
	struct advice a;

	f.arm[KVOF_PLAN_LOCAL].bytes_per_s = 0;
	expect_int(advice_make(&f, &a, &bad), -EINVAL);
	expect(bad.why[0] != 0);
}
