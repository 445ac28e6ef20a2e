/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load or recompute, over tiers from a hundredth to a hundred times break-even: time to first token
 * of requests that go through the restore, against loading everything and recomputing everything,
 * all three measured the same way. The engine's rate is told wrong by up to 30 percent, and its
 * slope (a token at the end takes twice as long as the first) is not told at all.
 *
 * Prints the tables of docs/restore.md: ratio to break-even, rate told over rate, ms to load all
 * and to compute all; then ENDS, first request of all and a later one, with the blocks it computed;
 * the same for PREFIX, with k. Each relative to the better of loading and computing all. An engine
 * of mode ENDS computes its suffix when all blocks are there, one of PREFIX layer by layer; loading
 * is measured the same way for each.
 */
#include "kt.h"

#include "cache_restore_rig.h"

#define BLOCKS 64u
#define TOKENS (BLOCKS * 256u)
#define LAYERS 32u
#define BLOCK (1 * MiB)
#define SUFFIX 64u

static const struct place_engine real = {100 * 1000 * 1000, 100 * 1000 * 1000 / TOKENS};

static uint64_t engine_ns(uint64_t first, uint64_t count)
{
	return place_engine_ns(&real, (struct place_span){first, count});
}

/* A pass of the engine over compute_ns of work, layer by layer behind the layers of a request. */
static uint64_t pass_ns(const struct rig_request *q, uint64_t compute_ns)
{
	uint64_t at = q->step_ns;

	for (uint32_t i = 0; i < LAYERS; i++) {
		if (i < q->layer_count && q->layer_ns[i] > at)
			at = q->layer_ns[i];
		at += compute_ns / LAYERS;
	}
	return at;
}

struct point {
	uint64_t load_ns, ends_load_ns, ends_first_ns, ends_ns, prefix_first_ns, prefix_ns;
	uint32_t ends_computed, prefix_split;
};

static struct rig_request *run(enum kvof_restore_mode mode, uint32_t flags, double told)
{
	struct rig_shape s = {
		.n = BLOCKS,
		.layers = LAYERS,
		.block_bytes = BLOCK,
		.opts = {
			.mode = mode,
			.flags = flags,
			.suffix_tokens = SUFFIX,
			.prefill_tokens_per_s = 10000 * told,
		},
	};
	struct rig_request *q;

	if (mode == KVOF_RESTORE_ENDS)
		s.engine = real;
	q = rig_request(&s);
	q->streams = mode == KVOF_RESTORE_PREFIX;
	rig_wait(q);
	return q;
}

static struct {
	struct request *req;
	uint32_t first;
} reported;

/* What the engine computed behind the split. */
static void report(void *arg)
{
	uint32_t first = reported.first;

	expect_int(restore_computed(reported.req, first, BLOCKS - first,
				    engine_ns(first * 256, (BLOCKS - first) * 256)), 0);
	reported.req = NULL;
}

static bool report_done(void *arg)
{
	return reported.req == NULL;
}

static uint64_t run_prefix(double told, uint32_t *split)
{
	struct rig_request *q = run(KVOF_RESTORE_PREFIX, 0, told);
	struct kvof_restore_trace trace;

	request_trace(q->req, &trace);
	*split = trace.split;
	if (trace.split < BLOCKS) {
		reported.req = q->req;
		reported.first = trace.split;
		rig_call(report, NULL);
		expect(sim_run_until(report_done, NULL, NS_PER_S));
	}
	return pass_ns(q, engine_ns((uint64_t)trace.split * 256, TOKENS + SUFFIX -
				    (uint64_t)trace.split * 256));
}

static void world(uint64_t bytes_per_s, uint64_t latency_ns)
{
	rig_cut_bytes = 256 * KiB;
	rig_begin();
	rig.no_bytes = true;
	rig_tier_set(KVOF_TIER_REMOTE, bytes_per_s, latency_ns);
}

static struct point measure(uint64_t bytes_per_s, double told, uint64_t latency_ns)
{
	struct rig_request *q;
	struct point p;
	uint32_t split;

	world(bytes_per_s, latency_ns);
	q = run(KVOF_RESTORE_ENDS, 0, told);
	p.ends_first_ns = q->engine.done_ns + engine_ns(TOKENS, SUFFIX);
	q = run(KVOF_RESTORE_ENDS, 0, told);
	p.ends_ns = q->engine.done_ns + engine_ns(TOKENS, SUFFIX);
	p.ends_computed = q->engine.blocks;
	q = run(KVOF_RESTORE_ENDS, KVOF_RESTORE_LOAD_ALL, told);
	p.ends_load_ns = q->engine.done_ns + engine_ns(TOKENS, SUFFIX);
	rig_end();
	world(bytes_per_s, latency_ns);
	p.prefix_first_ns = run_prefix(told, &split);
	q = run(KVOF_RESTORE_PREFIX, KVOF_RESTORE_LOAD_ALL, told);
	p.load_ns = pass_ns(q, engine_ns(TOKENS, SUFFIX));
	p.prefix_ns = run_prefix(told, &p.prefix_split);
	rig_end();
	return p;
}

static double over(uint64_t ns, uint64_t load_ns, uint64_t compute_ns)
{
	return (double)ns / (double)bytes_min(load_ns, compute_ns);
}

/* A row of the table; ratios are of the better of loading and recomputing. Return: the largest. */
static double row(const struct point *p, double ratio, double told, uint64_t compute)
{
	double all[] = {over(p->ends_first_ns, p->ends_load_ns, compute),
			over(p->ends_ns, p->ends_load_ns, compute),
			over(p->prefix_first_ns, p->load_ns, compute),
			over(p->prefix_ns, p->load_ns, compute)};
	double worst = 0;

	printf("# | %g | %.1f | %.0f | %.0f | %.3f | %.3f | %u | %.3f | %.3f | %u |\n", ratio, told,
	       (double)p->load_ns / 1e6, (double)compute / 1e6, all[0], all[1], p->ends_computed,
	       all[2], all[3], p->prefix_split);
	for (size_t i = 0; i < ARRAY_COUNT(all); i++)
		worst = all[i] > worst ? all[i] : worst;
	return worst;
}

/* But for PREFIX while it knows nothing of the tier nor of the engine. */
static void expect_below_both(const struct point *p, uint64_t compute)
{
	expect(over(p->ends_first_ns, p->ends_load_ns, compute) < 0.6);
	expect(over(p->ends_ns, p->ends_load_ns, compute) < 0.6);
	expect(over(p->prefix_ns, p->load_ns, compute) < 0.85);
}

static void grid(uint64_t latency_ns)
{
	static const double ratio[] = {0.01, 0.03, 0.1, 0.2, 0.33, 0.5, 0.7, 0.85, 1, 1.2, 1.5, 2,
				       3, 5, 10, 20, 30, 50, 70, 100};
	static const double told[] = {0.7, 1, 1.3};
	uint64_t compute = engine_ns(0, TOKENS + SUFFIX);
	double even = (double)BLOCKS * BLOCK * 1e9 / (double)engine_ns(0, TOKENS), most = 0;

	for (size_t t = 0; t < ARRAY_COUNT(told); t++) {
		for (size_t i = 0; i < ARRAY_COUNT(ratio); i++) {
			struct point p = measure((uint64_t)(even * ratio[i]), told[t], latency_ns);
			double worst = row(&p, ratio[i], told[t], compute);

			most = worst > most ? worst : most;
			if (ratio[i] > 0.8 && ratio[i] < 1.3)
				expect_below_both(&p, compute);
			expect(worst <= 1.05);
		}
	}
	printf("# worst %.3f\n", most);
}

TEST(time_to_first_token_is_never_much_beyond_the_better_of_loading_and_recomputing)
{
	grid(200000);
}

TEST(the_same_when_every_read_takes_five_milliseconds_more)
{
	grid(5 * NS_PER_MS);
}
