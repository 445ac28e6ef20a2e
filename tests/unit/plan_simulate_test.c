/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator against the closed form, against promises that hold for any workload, and against
 * small cases done by hand. (Against what `kvof replay` counts: cmd_replay_test.)
 */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include "base/must.h"
#include "base/prng.h"
#include "plan/simulate.h"
#include "plan/workload.h"

#define TOKEN_BYTES 253952.0

static const struct kvof_plan_arm array = {.kind = KVOF_PLAN_ARRAY, .bottleneck = "link",
	.fixed_s = 1.25, .bytes_per_s = 10e9, .tail_fixed_s = 0.5, .tail_session_s = 0.03,
	.output_tokens = 64};
static const struct kvof_plan_arm recompute = {.kind = KVOF_PLAN_RECOMPUTE, .bottleneck = "gpu",
	.tokens_per_s = 3200, .median_share = 0.5, .median_rank = 1, .output_tokens = 64};

static const struct kvof_plan_arm dram_arm = {.kind = KVOF_PLAN_DRAM, .fixed_s = 0.01,
	.bytes_per_s = 40e9};
static const struct kvof_plan_arm local_arm = {.kind = KVOF_PLAN_LOCAL, .fixed_s = 0.05,
	.bytes_per_s = 6e9, .session_bytes_per_s = 3e9};

static bool near(const char *what, double got, double want, double part)
{
	if (fabs(got - want) <= part * fabs(want) + 1e-9)
		return true;
	printf("# %s: %.6g, wanted %.6g\n", what, got, want);
	return false;
}

static struct simulate_result simulated(const struct trace *t, const struct simulate_opts *o)
{
	struct kvof_plan_bad bad = {"", ""};
	struct simulate_result r;
	int rc;

	kt_noise(&r, sizeof(r));
	rc = simulate(t, o, &r, &bad);
	if (rc != 0)
		printf("# %s %s\n", bad.field, bad.why);
	expect_int(rc, 0);
	return r;
}

/* A wave of sessions that lie whole on the arm. */
static struct simulate_result waved(const struct kvof_plan_arm *arm, unsigned sessions,
				    unsigned tokens, double staging_sessions)
{
	struct simulate_opts o = {.seed = 1, .arrivals = SIMULATE_WAVE, .load = SIMULATE_ALWAYS,
		.block_tokens = tokens, .token_bytes = TOKEN_BYTES, .tail = arm,
		.staging_bytes = staging_sessions * tokens * TOKEN_BYTES};
	struct simulate_result r;
	struct trace t = {0};

	expect_int(simulate_wave_add(&t, sessions, tokens, arm->output_tokens), 0);
	if (arm->kind == KVOF_PLAN_RECOMPUTE) {
		o.recompute = *arm;
	} else {
		o.tier[TIERS_ARRAY] = (struct simulate_tier){.present = true, .warm = true,
			.arm = *arm};
	}
	r = simulated(&t, &o);
	expect_int(r.hit_blocks, arm->kind == KVOF_PLAN_RECOMPUTE ? 0 : sessions);
	trace_free(&t);
	return r;
}

static struct kvof_plan_ttft closed(const struct kvof_plan_arm *arm, unsigned sessions,
				    unsigned tokens)
{
	const struct kvof_plan_wave w = {.tokens = tokens, .bytes = tokens * TOKEN_BYTES,
		.sessions = sessions};
	struct kvof_plan_bad bad;
	struct kvof_plan_ttft out;

	expect_int(kvof_plan_ttft(arm, &w, &out, &bad), 0);
	return out;
}

/* --- the closed form -------------------------------------------------------------------------- */

static const unsigned waves[] = {1, 2, 3, 8, 16, 31, 32, 100};
static const unsigned lengths[] = {1024, 8448, 30208, 131072};

/* The median of an even wave that is served in turn falls between two loads. */
static void agrees(const struct kvof_plan_arm *arm, bool median)
{
	for (size_t i = 0; i < ARRAY_COUNT(waves); i++) {
		for (size_t n = 0; n < ARRAY_COUNT(lengths); n++) {
			struct kvof_plan_ttft want = closed(arm, waves[i], lengths[n]);
			struct simulate_result got = waved(arm, waves[i], lengths[n], 0);
			double load_s = (want.last_s - arm->fixed_s) / waves[i];

			expect(near("last", got.ttft.last_s, want.last_s, 0.02));
			if (median && waves[i] % 2 == 0)
				expect(near("p50", got.ttft.p50_s, want.p50_s, 0.02));
			if (median)
				expect(fabs(got.ttft.p90_s - want.p90_s) <=
				       0.02 * want.p90_s + load_s);
			simulate_free(&got);
		}
	}
}

TEST(loads_that_share_an_arm_agree_with_the_closed_form)
{
	struct kvof_plan_arm a = array;

	agrees(&a, true);
	a.fixed_s = 0;
	agrees(&a, true);
	a.session_s = 0.02;
	agrees(&a, true);
	a.session_bytes_per_s = 1.2e9;
	agrees(&a, false);
	a.session_s = 0;
	agrees(&a, true);
	a = (struct kvof_plan_arm){.kind = KVOF_PLAN_LOCAL, .fixed_s = 0.7, .tokens_per_s = 27000,
		.median_share = 1, .output_tokens = 64};
	agrees(&a, true);
	a.session_tokens_per_s = 5000;
	agrees(&a, true);
}

TEST(loads_and_prompts_that_follow_one_another_agree_with_the_closed_form)
{
	struct kvof_plan_arm a = array;

	agrees(&recompute, true);
	a.median_share = 0.5;
	a.median_rank = 1;
	agrees(&a, true);
	a = recompute;
	a.fixed_s = 0.3;
	a.token2_s = 2e-9;
	agrees(&a, true);
	a.session_s = 0.05;
	agrees(&a, true);
}

TEST(prompts_that_an_engine_runs_side_by_side_agree_with_the_closed_form)
{
	struct kvof_plan_arm a = recompute;

	a.median_share = 1;
	a.median_rank = 0;
	agrees(&a, true);
	a.session_tokens_per_s = 800;
	agrees(&a, true);
}

TEST(output_of_a_wave_agrees_with_the_closed_form)
{
	struct kvof_plan_arm a = array;

	for (unsigned i = 0; i < 3; i++) {
		for (size_t n = 0; n < ARRAY_COUNT(waves); n++) {
			struct kvof_plan_ttft want = closed(&a, waves[n], 8448);
			struct simulate_result got = waved(&a, waves[n], 8448, 0);

			expect(near("wall", got.wall_s, want.wall_s, 0.02));
			expect(near("tokens/s", got.output_tokens_per_s, want.tokens_per_s, 0.02));
			simulate_free(&got);
		}
		a.tail_fixed_s -= 0.25;
		a.tail_session_s += 0.1;
		a.output_tokens *= 2;
	}
}

/* As many sessions at a time as staging holds, one lot after another. */
static double staged_last_s(const struct kvof_plan_arm *a, unsigned sessions, unsigned tokens,
			    unsigned slots)
{
	double last_s = 0;

	while (sessions > 0) {
		unsigned lot = sessions < slots ? sessions : slots;

		last_s += closed(a, lot, tokens).last_s;
		sessions -= lot;
	}
	return last_s;
}

TEST(less_staging_makes_lots_of_sessions_that_come_one_after_another)
{
	struct kvof_plan_arm arms[2] = {array, array};

	arms[1].session_bytes_per_s = 1.7e9;
	for (unsigned k = 0; k < 2; k++)
		for (size_t i = 0; i < ARRAY_COUNT(waves); i++)
			for (unsigned slots = 1; slots <= 32; slots *= 2) {
				struct simulate_result got = waved(&arms[k], waves[i], 30208,
								   slots);

				expect(near("last", got.ttft.last_s, staged_last_s(&arms[k],
					waves[i], 30208, slots), 0.02));
				expect_int(got.unstaged, 0);
				simulate_free(&got);
			}
}

TEST(a_session_larger_than_the_staging_is_computed)
{
	struct simulate_opts o = {.arrivals = SIMULATE_WAVE, .load = SIMULATE_ALWAYS,
		.block_tokens = 4096, .token_bytes = TOKEN_BYTES, .recompute = recompute,
		.staging_bytes = 2048 * TOKEN_BYTES,
		.tier[TIERS_ARRAY] = {.present = true, .warm = true, .arm = array}};
	struct simulate_result r;
	struct trace t = {0};

	expect_int(simulate_wave_add(&t, 2, 4096, 1), 0);
	r = simulated(&t, &o);
	expect_int(r.unstaged, 2);
	expect_int(r.hit_blocks, 0);
	expect(near("last", r.ttft.last_s, 2 * 4096 / 3200.0, 1e-6));
	simulate_free(&r);
	o.rank_share = 0.5;                /* two ranks, half of the session each */
	r = simulated(&t, &o);
	expect_int(r.unstaged, 0);
	expect_int(r.hit_blocks, 2);
	simulate_free(&r);
	trace_free(&t);
}

/* --- by hand ---------------------------------------------------------------------------------- */

TEST(instances_have_a_queue_each_and_the_median_is_of_all)
{
	struct simulate_opts o = {.arrivals = SIMULATE_WAVE, .load = SIMULATE_ALWAYS,
		.block_tokens = 3200, .token_bytes = 1, .recompute = recompute, .instances = 2};
	struct simulate_result r;
	struct trace t = {0};

	expect_int(simulate_wave_add(&t, 16, 3200, 64), 0);
	r = simulated(&t, &o);
	expect(near("last", r.ttft.last_s, 8, 1e-6));
	expect(near("p50", r.ttft.p50_s, 5, 1e-6));      /* the 9th of 1 1 2 2 3 3 4 4 5 5 ... */
	expect(near("engine", r.resource[0].utilisation, 1, 1e-6));
	expect_str(r.bottleneck, "engine");
	simulate_free(&r);
	o.instances = 1;
	r = simulated(&t, &o);
	expect(near("p50 of one", r.ttft.p50_s, 9, 1e-6));
	simulate_free(&r);
	trace_free(&t);
}

TEST(a_user_waits_for_the_answer_thinks_and_asks_again)
{
	struct simulate_opts o = {.arrivals = SIMULATE_CLOSED, .users = 1, .load = SIMULATE_NEVER,
		.block_tokens = 3200, .token_bytes = 1, .recompute = recompute, .tail = &array};
	struct simulate_result r;
	struct trace t = {0};

	expect_int(simulate_wave_add(&t, 10, 3200, 64), 0);
	r = simulated(&t, &o);
	expect(near("wall", r.wall_s, 10 * (1 + 0.53), 1e-6));
	expect(near("p99", r.ttft.p99_s, 1, 1e-6));
	simulate_free(&r);
	o.users = 5;                       /* the engine is never idle, decoding goes on beside */
	o.tail = NULL;
	r = simulated(&t, &o);
	expect(near("wall", r.wall_s, 10, 1e-6));
	expect(near("p50", r.ttft.p50_s, 5, 1e-6));
	simulate_free(&r);
	o.users = 2;
	o.think_s = 1000;
	r = simulated(&t, &o);
	expect(r.wall_s > 1000);
	simulate_free(&r);
	trace_free(&t);
}

/* One server, random arrivals, all as long: the mean wait is u / 2 (1 - u) of one. */
TEST(random_arrivals_wait_as_long_as_queueing_theory_says)
{
	static const double rates[] = {0.3, 0.5, 0.8};
	struct trace t = {0};

	expect_int(simulate_wave_add(&t, 40000, 3200, 1), 0);
	for (size_t i = 0; i < ARRAY_COUNT(rates); i++) {
		struct simulate_opts o = {.seed = 7, .arrivals = SIMULATE_POISSON,
			.requests_per_s = rates[i], .load = SIMULATE_NEVER, .block_tokens = 3200,
			.token_bytes = 1, .recompute = recompute};
		struct simulate_result r = simulated(&t, &o);

		expect(near("mean", r.ttft.mean_s, 1 + rates[i] / 2 / (1 - rates[i]), 0.04));
		expect(near("utilisation", r.resource[0].utilisation, rates[i], 0.03));
		expect(r.resource[0].saturated == false);
		simulate_free(&r);
	}
	trace_free(&t);
}

/* One that shares: as long as alone over 1 - u, whatever the lengths. */
TEST(random_loads_of_a_shared_arm_take_as_long_as_queueing_theory_says)
{
	struct kvof_plan_arm arm = {.kind = KVOF_PLAN_ARRAY, .bytes_per_s = 1000,
		.bottleneck = "drives"};
	struct trace t = {0};

	expect_int(simulate_wave_add(&t, 40000, 1000, 1), 0);
	for (double u = 0.3; u < 0.9; u += 0.25) {
		struct simulate_opts o = {.seed = 7, .arrivals = SIMULATE_POISSON,
			.requests_per_s = u, .load = SIMULATE_ALWAYS, .block_tokens = 1000,
			.token_bytes = 1,
			.tier[TIERS_ARRAY] = {.present = true, .warm = true, .arm = arm}};
		struct simulate_result r = simulated(&t, &o);

		expect(near("mean", r.ttft.mean_s, 1 / (1 - u), 0.04));
		expect(near("needed", r.resource[1].bytes_per_s_needed, 1000 * u, 0.03));
		expect_str(r.bottleneck, "array");
		expect_str(r.resource[1].name, "array");
		expect_str(r.resource[1].bottleneck, "drives");
		simulate_free(&r);
	}
	trace_free(&t);
}

TEST(blocks_are_there_from_the_first_token_of_the_request_that_made_them)
{
	struct simulate_opts o = {.arrivals = SIMULATE_TRACE, .load = SIMULATE_ALWAYS,
		.block_tokens = 1600, .token_bytes = 1, .recompute = recompute,
		.tier[TIERS_DRAM] = {.present = true, .arm = {.kind = KVOF_PLAN_DRAM,
			.fixed_s = 0.125, .bytes_per_s = 1e9}}};
	struct simulate_result r;
	struct trace t = {0};

	for (unsigned i = 0; i < 3; i++) {
		expect_int(trace_add(&t, i * 600, 3200, 1), 0);
		expect_int(trace_add_block(&t, 0), 0);
		expect_int(trace_add_block(&t, 1), 0);
	}
	r = simulated(&t, &o);
	expect_int(r.hit_blocks, 2);       /* of the third alone: at 1.2 s the first is over */
	expect(near("first", r.ttft_s[0], 1, 1e-5));
	expect(near("second", r.ttft_s[1], 1.4, 1e-5));
	expect(near("third", r.ttft_s[2], 0.125, 1e-3));
	simulate_free(&r);
	trace_free(&t);
}

/* Room for 100: what is asked for in between is carried on; else it is gone 100 blocks later. */
TEST(a_log_evicts_what_was_written_first_and_carries_what_was_asked_for)
{
	struct simulate_opts o = {.arrivals = SIMULATE_CLOSED, .users = 1, .load = SIMULATE_ALWAYS,
		.block_tokens = 512, .token_bytes = 1, .recompute = recompute,
		.tier[TIERS_LOCAL] = {.present = true, .capacity_blocks = 100, .arm = local_arm}};
	struct simulate_result lru, log;
	struct trace t = {0};
	uint64_t next = 10;

	for (unsigned i = 0; i < 1000; i++) {
		expect_int(trace_add(&t, 0, 512, 1), 0);
		expect_int(trace_add_block(&t, i % 60 == 0 ? i / 240 : next++), 0);
	}
	lru = simulated(&t, &o);
	o.tier[TIERS_LOCAL].log = true;
	log = simulated(&t, &o);
	expect_int(lru.hit_blocks, 17 - 5);        /* five blocks, four times each, the last once */
	expect_int(log.hit_blocks, 17 - 5);
	expect(log.tier[TIERS_LOCAL].carried > 5);
	expect(near("written", log.tier[TIERS_LOCAL].written_bytes,
		    lru.tier[TIERS_LOCAL].written_bytes + 512.0 *
		    (double)log.tier[TIERS_LOCAL].carried, 1e-6));
	simulate_free(&lru);
	simulate_free(&log);
	trace_free(&t);
}

/* --- load or compute -------------------------------------------------------------------------- */

/* Arms, loads and rooms of all kinds from a seed. */
static struct simulate_opts random_opts(struct prng *r)
{
	struct simulate_opts o = {.seed = prng_next(r), .load = SIMULATE_SOONER,
		.arrivals = (enum simulate_arrivals)prng_below(r, 4), .block_tokens = 512,
		.users = 1 + (uint32_t)prng_below(r, 60), .think_s = (double)prng_below(r, 20),
		.requests_per_s = 0.2 + (double)prng_below(r, 50) / 10,
		.speed = 1 + (double)prng_below(r, 20), .token_bytes = 100000,
		.instances = 1 + (uint32_t)prng_below(r, 4), .recompute = recompute};

	o.recompute.tokens_per_s = 1000 << prng_below(r, 5);
	o.recompute.fixed_s = (double)prng_below(r, 3) / 10;
	o.recompute.token2_s = (double)prng_below(r, 3) * 1e-9;
	o.tier[TIERS_DRAM] = (struct simulate_tier){.present = prng_below(r, 3) > 0,
		.capacity_blocks = 50 << prng_below(r, 8), .arm = dram_arm};
	o.tier[TIERS_LOCAL] = (struct simulate_tier){.present = prng_below(r, 3) > 0,
		.capacity_blocks = 200 << prng_below(r, 8), .arm = local_arm,
		.second_touch = prng_below(r, 2) > 0};
	o.tier[TIERS_ARRAY] = (struct simulate_tier){.present = true, .arm = array,
		.warm = prng_below(r, 2) > 0};
	o.tier[TIERS_ARRAY].arm.bytes_per_s = 1e8 * (1 << prng_below(r, 8));
	if (prng_below(r, 2) > 0)
		o.tier[TIERS_ARRAY].arm.median_share = 0.5;
	o.tier[TIERS_ARRAY].arm.session_s = (double)prng_below(r, 2) * 0.01;
	o.tier[TIERS_ARRAY].arm.session_bytes_per_s = (double)prng_below(r, 3) * 4e8;
	if (prng_below(r, 2) > 0)
		o.staging_bytes = 5e9 * (double)(1 + prng_below(r, 20));
	return o;
}

TEST(no_first_token_is_later_than_if_all_were_computed_in_order)
{
	uint64_t loaded = 0, held = 0, given_up = 0;

	for (unsigned seed = 1; seed <= 60; seed++) {
		const char *const *names = workload_names();
		struct prng r = prng_of(seed);
		const struct workload_opts w = {.seed = seed, .requests = 250,
			.block_tokens = 512};
		struct simulate_opts o = random_opts(&r);
		struct simulate_result got;
		struct trace t = {0};

		expect_int(workload_make(names[seed % 4], &w, &t), 0);
		got = simulated(&t, &o);
		if (got.late > 0)
			printf("# seed %u: %llu late\n", seed, (unsigned long long)got.late);
		expect_int(got.late, 0);
		expect(got.without_known && got.ttft.mean_s <= got.without.mean_s * 1.00001);
		expect(got.ttft.last_s <= got.without.last_s * 1.00001);
		loaded += got.hit_blocks;
		held += got.held;
		given_up += got.given_up;
		simulate_free(&got);
		trace_free(&t);
	}
	printf("# %llu blocks loaded, %llu loads waited, %llu were given up\n",
	       (unsigned long long)loaded, (unsigned long long)held,
	       (unsigned long long)given_up);
	expect(loaded > 1000 && held > 100 && given_up > 100);
}

TEST(what_is_sooner_computed_than_loaded_is_computed)
{
	struct simulate_opts o = {.arrivals = SIMULATE_WAVE, .load = SIMULATE_SOONER,
		.block_tokens = 3200, .token_bytes = TOKEN_BYTES, .recompute = recompute,
		.tier[TIERS_ARRAY] = {.present = true, .warm = true, .arm = array}};
	struct simulate_result r;
	struct trace t = {0};

	expect_int(simulate_wave_add(&t, 1, 3200, 1), 0);    /* 1 s, or 1.25 s and some */
	r = simulated(&t, &o);
	expect_int(r.hit_blocks, 0);
	expect_int(r.skipped_blocks, 1);
	simulate_free(&r);
	trace_free(&t);
	expect_int(simulate_wave_add(&t, 8, 3200, 1), 0);
	r = simulated(&t, &o);
	expect(r.hit_blocks > 0 && r.hit_blocks < 8);
	expect(r.ttft.last_s < 8 && r.ttft.last_s > 1.25);
	expect_int(r.late, 0);
	simulate_free(&r);
	trace_free(&t);
}

TEST(the_same_seed_gives_the_same_run_and_another_another)
{
	const struct workload_opts w = {.seed = 3, .requests = 300, .block_tokens = 512};
	struct simulate_opts o = {.seed = 5, .arrivals = SIMULATE_POISSON, .requests_per_s = 2,
		.load = SIMULATE_SOONER, .block_tokens = 512, .token_bytes = 100000,
		.recompute = recompute,
		.tier[TIERS_ARRAY] = {.present = true, .arm = array}};
	struct simulate_result a, b, c;
	struct trace t = {0};

	expect_int(workload_make("mixed", &w, &t), 0);
	a = simulated(&t, &o);
	b = simulated(&t, &o);
	o.seed = 6;
	c = simulated(&t, &o);
	expect_mem(a.ttft_s, b.ttft_s, 300 * sizeof(float));
	expect(memcmp(a.ttft_s, c.ttft_s, 300 * sizeof(float)) != 0);
	simulate_free(&a);
	simulate_free(&b);
	simulate_free(&c);
	trace_free(&t);
}

/* --- what is refused -------------------------------------------------------------------------- */

TEST(options_that_make_no_sense_are_refused_by_name)
{
	const struct simulate_opts good = {.arrivals = SIMULATE_CLOSED, .users = 2,
		.block_tokens = 512, .token_bytes = 1, .recompute = recompute,
		.tier[TIERS_ARRAY] = {.present = true, .arm = array}};
	struct kvof_plan_bad bad;
	struct simulate_result r;
	struct simulate_opts o;
	struct trace t = {0};

#define REFUSED(change, name)                                                                      \
	do {                                                                                       \
		o = good;                                                                          \
		change;                                                                            \
		expect_int(simulate(&t, &o, &r, &bad), -EINVAL);                                   \
		expect_str(bad.field, name);                                                       \
		simulate_free(&r);                                                                 \
	} while (0)
	REFUSED(o.users = 0, "users");
	REFUSED(o.users = SIMULATE_USERS_MAX + 1, "users");
	REFUSED(o.token_bytes = 0, "bytes_per_token");
	REFUSED(o.recompute.tokens_per_s = 0, "recompute");
	REFUSED(o.recompute.fixed_s = -1, "fixed_s");
	REFUSED(o.tier[TIERS_ARRAY].arm.tokens_per_s = 5, "tokens_per_s");
	REFUSED(o.requests = 5, "requests");
	REFUSED(o.instances = SIMULATE_INSTANCES_MAX + 1, "instances");
	REFUSED(o.arrivals = SIMULATE_POISSON, "requests_per_s");
#undef REFUSED
	expect_int(simulate(&t, &good, &r, &bad), 0);
	expect_int(r.requests, 0);
	expect_str(r.bottleneck, "none");
	simulate_free(&r);
}
