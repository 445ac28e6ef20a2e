/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load or recompute through the whole library: core, frames and checks, and below them a store over
 * a simulated drive (flash), or initiator, NVMe/TCP, targets and stores (one, two or four arrays).
 * Drives are throttled by the store's own limiter, all of them together from a hundredth to a
 * hundred times break-even; DRAM has nothing. The engine keeps time, its rate is told wrong by up
 * to 30 percent, its slope (a token at the end takes twice as long as the first) not at all.
 *
 * Prints the tables of docs/restore.md: ratio to break-even, ms to load all; for each rate told the
 * time to first token over the better of loading and computing all: first request of all and a
 * later one, in both modes. Bytes that were loaded are compared.
 *
 * Then the same at any speed, over other blocks, from a seed: KVOF_SEEDS of them, from
 * KVOF_SEED_FIRST on.
 */
#include "kt.h"

#include <inttypes.h>

#include "base/prng.h"

#include "cache_core_fixture.h"
#include "cache_restore_rig.h"

#include "target/target.h"

#define NQN "nqn.2026-11.io.kvof:array"
#define BLOCKS 64u
#define TOKENS (BLOCKS * 256u)
#define LAYERS 16u
#define LAYER (32 * KiB)
#define BLOCK (LAYERS * LAYER)
#define SUFFIX 64u
#define ARRAYS 4
#define TOLD 3
#define DEADLINE (10000 * NS_PER_S)

static const struct place_engine real = {100 * 1000 * 1000, 100 * 1000 * 1000 / TOKENS};
static const double told[TOLD] = {0.7, 1, 1.3};

static struct array {
	struct loop *loop;
	struct store *store;
	struct target *target;
} array[ARRAYS];

static unsigned arrays;                    /* 0: flash */
static unsigned first_percent;             /* of what all give, the first array; 0: its part */
static uint64_t sim_seed = 3;
static uint32_t suffix = SUFFIX;
static uint8_t data[BLOCKS * BLOCK];
static struct iovec iov[BLOCKS];
static struct kvof_block block[BLOCKS];

static uint64_t engine_ns(uint64_t first, uint64_t count)
{
	return place_engine_ns(&real, (struct place_span){first, count});
}

/* --- a world ---------------------------------------------------------------------------------- */

static void array_up(unsigned i, uint64_t bytes_per_s)
{
	struct loop_opts loop = {.name = "array"};
	char path[8];
	struct store_opts so = {.drive_count = 1, .evict = true, .buffer_bytes = 64 * MiB,
				.drive_read_bytes_per_s = bytes_per_s,
				.format = bytes_per_s == 0,
				.drive = {{.path = path, .bytes = 128 * MiB}}};
	struct target_ns_opts ns = {.nsid = 1, .evicts = true};
	struct target_subsys_opts subsys = {.nqn = NQN, .ns = &ns, .ns_count = 1};
	struct target_opts to = {.subsys = &subsys, .subsys_count = 1};
	struct sock_addr addr = {.host = "127.0.0.1", .port = (uint16_t)(4420 + i)};
	struct store_report report;
	char why[256] = "";
	uint16_t port;

	snprintf(path, sizeof(path), "a%u", i);
	expect_int(loop_open(&loop, &array[i].loop), 0);
	if (store_open(&so, array[i].loop, &array[i].store, &report) != 0)
		fail_msg("store: %s", report.text);
	ns.store = array[i].store;
	to.loop = array[i].loop;
	if (target_open(&to, why, &array[i].target) != 0)
		fail_msg("target: %s", why);
	expect_int(target_listen(array[i].target, &addr, NULL, &port), 0);
}

static uint64_t array_bytes_per_s(unsigned i, uint64_t bytes_per_s)
{
	uint64_t first = bytes_per_s * first_percent / 100;

	if (first_percent == 0)
		return bytes_per_s / arrays;
	return i == 0 ? first : (bytes_per_s - first) / (arrays - 1);
}

/* All tiers together give bytes_per_s; 0: no limit. */
static void up(uint64_t bytes_per_s)
{
	static struct kvof_field field[1] = {{"kv_dtype", "f16"}};
	static char flash[64], name[ARRAYS][64];
	static const char *flash_list[1] = {flash};
	static const char *target[ARRAYS];
	struct restore_opts opts = {.ops = &restore_core_ops, .deadline_ns = DEADLINE,
				    .block_tokens = 256};

	memset(&fix, 0, sizeof(fix));
	fix.next_id = 1;
	fix.opts = (struct kvof_cache_opts){
		.struct_bytes = sizeof(fix.opts), .fields = field, .field_count = 1,
		.model_id = "m", .block_tokens = 256, .strict = 1, .layer_count = LAYERS,
		.part_bytes = 4 * LAYER + FRAME_BYTES,
	};
	for (unsigned i = 0; i < arrays; i++) {
		array_up(i, array_bytes_per_s(i, bytes_per_s));
		snprintf(name[i], sizeof(name[i]), "tcp://127.0.0.1:%u/" NQN, 4420 + i);
		target[i] = name[i];
	}
	fix.opts.targets = arrays > 0 ? target : NULL;
	fix.opts.target_count = arrays;
	if (arrays == 0) {
		int n = snprintf(flash, sizeof(flash), "f0,size=128MiB");

		if (bytes_per_s > 0)
			snprintf(flash + n, sizeof(flash) - (size_t)n, ",rate=%" PRIu64 "B",
				 bytes_per_s);
		fix.opts.flash = flash_list;
		fix.opts.flash_count = 1;
	}
	if (fix_open() != 0)
		fail_msg("cache: %s", fix.why);
	memset(&rig, 0, sizeof(rig));
	rig.loop = opts.loop = fix.loop;
	opts.arg = fix.core;
	rig.no_bytes = true;
	rig.block_tokens = 256;
	rig_cut_bytes = core_cut_bytes(&fix.opts);
	expect_int(restore_open(&opts, &rig.restore), 0);
}

static bool ended;

static void one_end(void *arg)
{
	ended = true;
}

static bool has_ended(void *arg)
{
	return ended;
}

static void down(void)
{
	rig_call(rig_stop, NULL);
	expect(sim_run_until(rig_is_idle, NULL, 3600 * NS_PER_S));
	restore_close(&rig.restore);
	for (uint32_t i = 0; i < rig.request_count; i++) {
		free(rig.request[i].memory);
		free(rig.request[i].claimed);
	}
	fix_post(NULL, 0, fix_close_run);
	expect(sim_run_until(fix_is_closed, NULL, 3600 * NS_PER_S));
	for (unsigned i = 0; i < arrays; i++) {
		ended = false;
		target_close(&array[i].target, 0, one_end, NULL);
		expect(sim_run_until(has_ended, NULL, 3600 * NS_PER_S));
		ended = false;
		store_close(&array[i].store, one_end, NULL);
		expect(sim_run_until(has_ended, NULL, 3600 * NS_PER_S));
		loop_close(&array[i].loop);
	}
	loop_close(&fix.loop);
	identity_free(&fix.identity);
}

static void world(unsigned n)
{
	struct sim_opts sim = {.seed = sim_seed};
	uint64_t batch;

	arrays = n;
	expect_int(sim_begin(&sim), 0);
	up(0);
	fix_fill(data, sizeof(data), 5);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		iov[i] = (struct iovec){data + (size_t)i * BLOCK, BLOCK};
		block[i] = (struct kvof_block){rig_id(i), &iov[i], 1, BLOCK};
	}
	batch = fix_submit(KVOF_SAVE, block, BLOCKS, 20 * NS_PER_S);
	fix_wait();
	for (uint32_t i = 0; i < BLOCKS; i++)
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_OK);
	down();
}

/* --- a request -------------------------------------------------------------------------------- */

static struct rig_request *run(enum kvof_restore_mode mode, uint32_t flags, double rate)
{
	struct rig_shape s = {
		.n = BLOCKS, .layers = LAYERS, .block_bytes = BLOCK,
		.opts = {.mode = mode, .flags = flags, .suffix_tokens = suffix,
			 .prefill_tokens_per_s = 10000 * rate},
	};
	struct rig_request *q;

	fix_pass(20 * NS_PER_S);           /* drives are through with what was given up */
	if (mode == KVOF_RESTORE_ENDS)
		s.engine = real;
	q = rig_request(&s);
	q->streams = mode == KVOF_RESTORE_PREFIX;
	rig_wait(q);
	for (uint32_t i = 0; i < BLOCKS; i++)
		if (mode == KVOF_RESTORE_ENDS ? !q->claimed[i] : i < q->last.value_bytes)
			expect_mem(q->memory + (size_t)i * BLOCK, data + (size_t)i * BLOCK, BLOCK);
	return q;
}

static uint64_t run_ends(uint32_t flags, double rate)
{
	struct rig_request *q = run(KVOF_RESTORE_ENDS, flags, rate);

	return q->engine.done_ns + engine_ns(TOKENS, suffix);
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

/* The engine's pass, layer by layer behind the layers of the request. */
static uint64_t run_prefix(uint32_t flags, double rate, uint32_t *split)
{
	struct rig_request *q = run(KVOF_RESTORE_PREFIX, flags, rate);
	struct kvof_restore_trace trace;
	uint64_t at = q->step_ns, compute;

	request_trace(q->req, &trace);
	*split = trace.split;
	if (trace.split < BLOCKS) {
		reported.req = q->req;
		reported.first = trace.split;
		rig_call(report, NULL);
		expect(sim_run_until(report_done, NULL, NS_PER_S));
	}
	compute = engine_ns((uint64_t)trace.split * 256,
			    TOKENS + suffix - (uint64_t)trace.split * 256);
	for (uint32_t i = 0; i < LAYERS; i++) {
		if (i < q->layer_count && q->layer_ns[i] > at)
			at = q->layer_ns[i];
		at += compute / LAYERS;
	}
	return at;
}

/* --- the grid --------------------------------------------------------------------------------- */

enum { ENDS_FIRST, ENDS_LATER, PREFIX_FIRST, PREFIX_LATER, KINDS };

static const char *const kind_name[KINDS] = {"ENDS first", "ENDS later", "PREFIX first",
					     "PREFIX later"};

struct point {
	double ratio;                      /* to break-even */
	uint64_t bytes_per_s;
	uint64_t ends_load_ns, prefix_load_ns, compute_ns, ns[TOLD][KINDS];
	uint32_t split;
};

/* With each of these rates told. */
static void measure(struct point *p, const double *rate, unsigned rates)
{
	uint32_t split;

	p->compute_ns = engine_ns(0, TOKENS + suffix);
	up(p->bytes_per_s);
	p->prefix_load_ns = run_prefix(KVOF_RESTORE_LOAD_ALL, 1, &split);
	expect_int(split, BLOCKS);
	p->ends_load_ns = run_ends(KVOF_RESTORE_LOAD_ALL, 1);
	down();
	for (unsigned t = 0; t < rates; t++) {
		up(p->bytes_per_s);
		p->ns[t][ENDS_FIRST] = run_ends(0, rate[t]);
		p->ns[t][ENDS_LATER] = run_ends(0, rate[t]);
		down();
		up(p->bytes_per_s);
		p->ns[t][PREFIX_FIRST] = run_prefix(0, rate[t], &split);
		p->ns[t][PREFIX_LATER] = run_prefix(0, rate[t], &p->split);
		down();
	}
}

static double over(const struct point *p, unsigned t, unsigned kind)
{
	uint64_t load = kind < PREFIX_FIRST ? p->ends_load_ns : p->prefix_load_ns;

	return (double)p->ns[t][kind] / (double)bytes_min(load, p->compute_ns);
}

/* Near break-even what is known of the tier has to be of use. */
static bool good(const struct point *p, unsigned t, unsigned kind)
{
	double most = 1.05;

	if (p->ratio > 0.9 && p->ratio < 1.5 && kind != PREFIX_FIRST)
		most = kind < PREFIX_FIRST ? 0.7 : 1;
	return over(p, t, kind) <= most;
}

/* A row of the table. Return: how many of its cells are not good. */
static unsigned row(const struct point *p)
{
	unsigned bad = 0;

	printf("# | %g | %.0f |", p->ratio, (double)p->prefix_load_ns / 1e6);
	for (unsigned k = 0; k < KINDS; k++) {
		for (unsigned t = 0; t < TOLD; t++) {
			printf("%s %.3f", t == 0 ? "" : " /", over(p, t, k));
			bad += !good(p, t, k);
		}
		printf(" |");
	}
	printf(" %u |\n", p->split);
	return bad;
}

static double even_bytes_per_s(void)
{
	return (double)BLOCKS * BLOCK * 1e9 / (double)engine_ns(0, TOKENS);
}

static void grid(unsigned n)
{
	static const double ratio[] = {0.01, 0.03, 0.1, 0.33, 0.7, 1, 1.3, 3, 10, 30, 100};
	unsigned bad = 0;

	world(n);
	for (size_t i = 0; i < ARRAY_COUNT(ratio); i++) {
		struct point p = {.ratio = ratio[i]};

		p.bytes_per_s = (uint64_t)(even_bytes_per_s() * ratio[i]);
		measure(&p, told, TOLD);
		bad += row(&p);
	}
	sim_end();
	expect_int(bad, 0);
}

TEST(flash_is_never_much_beyond_the_better_of_loading_and_recomputing)
{
	grid(0);
}

TEST(an_array_is_never_much_beyond_the_better_of_loading_and_recomputing)
{
	grid(1);
}

TEST(two_arrays_are_never_much_beyond_the_better_of_loading_and_recomputing)
{
	grid(2);
}

TEST(four_arrays_are_never_much_beyond_the_better_of_loading_and_recomputing)
{
	grid(4);
}

/* --- arrays that are not alike, or not asked alike -------------------------------------------- */

/* Of a first and a later request of PREFIX. Return: what the later one loads. */
static uint32_t prefix_twice(double ratio, double rate, double over[2])
{
	struct point p = {.ratio = ratio, .compute_ns = engine_ns(0, TOKENS + suffix)};

	p.bytes_per_s = (uint64_t)(even_bytes_per_s() * ratio);
	up(p.bytes_per_s);
	p.prefix_load_ns = run_prefix(KVOF_RESTORE_LOAD_ALL, 1, &p.split);
	down();
	up(p.bytes_per_s);
	for (unsigned i = 0; i < 2; i++)
		over[i] = (double)run_prefix(0, rate, &p.split) /
			  (double)bytes_min(p.prefix_load_ns, p.compute_ns);
	down();
	printf("# %u percent, %g: %.3f, %.3f, k %u\n", first_percent, ratio, over[0], over[1],
	       p.split);
	return p.split;
}

/* What it was asked ends before it has answered: a second request knows of its silence. */
TEST(an_array_far_slower_than_the_other_is_planned_by_its_own_rate)
{
	static const double ratio[] = {0.5, 1, 2, 3};
	static const unsigned percent[] = {10, 25};
	double over[2];

	world(2);
	for (size_t i = 0; i < ARRAY_COUNT(ratio) * ARRAY_COUNT(percent); i++) {
		first_percent = percent[i % 2];
		prefix_twice(ratio[i / 2], 1, over);
		if (over[0] > 1.05 || over[1] > 1.05)
			fail_msg("%.3f, %.3f", over[0], over[1]);
	}
	first_percent = 0;
	sim_end();
}

/* These blocks lie so that some arrays have nothing to do while a request finds out how fast all
 * of them are. */
TEST(arrays_that_were_asked_for_nothing_do_not_make_a_tier_slow)
{
	double over[2];

	rig_salt = 4;
	world(4);
	prefix_twice(2.1, 1.29, over);
	if (over[0] > 1.05 || over[1] > 1.05)
		fail_msg("%.3f, %.3f", over[0], over[1]);
	rig_salt = 0;
	sim_end();
}

TEST(a_split_that_gains_next_to_nothing_is_not_taken)
{
	double over[2];

	world(0);
	expect_int(prefix_twice(0.33, 1, over), 0);
	sim_end();
}

/* --- anywhere --------------------------------------------------------------------------------- */

/* From 10^-decades to 10^decades, each ratio as likely. */
static double any_ratio(struct prng *seed, unsigned decades_10)
{
	uint64_t steps = prng_below(seed, 2 * decades_10 * 100 + 1);
	double ratio = 1;

	for (uint64_t i = 0; i < steps; i++)
		ratio *= 1.0023052380778996;       /* 10^(1 / 1000) */
	for (unsigned i = 0; i < decades_10 * 100; i++)
		ratio /= 1.0023052380778996;
	return ratio;
}

/* Return: cells that are not good. */
static unsigned anywhere(uint64_t number)
{
	struct prng seed = prng_of(number);
	double rate = 0.7 + 0.6 * (double)prng_below(&seed, 1001) / 1000;
	struct point p = {.ratio = any_ratio(&seed, prng_below(&seed, 2) == 0 ? 20 : 5)};
	unsigned n = (unsigned)prng_below(&seed, ARRAYS + 1), bad = 0;

	rig_salt = (uint32_t)prng_below(&seed, 1u << 31);
	suffix = (uint32_t)prng_below(&seed, 257) + 1;
	sim_seed = number;
	world(n);
	p.bytes_per_s = (uint64_t)(even_bytes_per_s() * p.ratio);
	measure(&p, &rate, 1);
	sim_end();
	for (unsigned k = 0; k < KINDS; k++) {
		if (good(&p, 0, k))
			continue;
		printf("# seed %llu: %u arrays, %.4f times break-even, rate told %.3f, suffix %u: "
		       "%s %.3f, k %u\n", (unsigned long long)number, n, p.ratio, rate, suffix,
		       kind_name[k], over(&p, 0, k), p.split);
		bad++;
	}
	return bad;
}

TEST(at_any_speed_with_any_blocks_no_request_is_much_beyond_the_better_one)
{
	const char *text = getenv("KVOF_SEEDS"), *first = getenv("KVOF_SEED_FIRST");
	uint64_t seeds = text != NULL ? strtoull(text, NULL, 0) : 160;
	uint64_t from = first != NULL ? strtoull(first, NULL, 0) : 0;
	unsigned bad = 0;

	for (uint64_t i = from; i < from + seeds; i++)
		bad += anywhere(i);
	expect_int(bad, 0);
}
