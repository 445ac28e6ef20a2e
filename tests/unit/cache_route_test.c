/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several arrays as one tier: initiators, NVMe/TCP, targets and stores in the simulator, and arrays
 * that are killed, cut off and started again.
 */
#include "cache_tier_fixture.h"

#include "cache/route.h"
#include "target/target.h"

#define NQN "nqn.2026-11.io.kvof:array"
#define ARRAYS 3
#define PART (4032 + FRAME_BYTES)
#define CUT (PART - FRAME_BYTES)
#define THREE (3 * CUT - 100)
#define BLOCKS 30

static struct array {
	struct loop *loop;
	struct store *store;
	struct target *target;
} array[ARRAYS];

static const char *targets[ARRAYS] = {"tcp://127.0.0.1:4420/" NQN, "tcp://127.0.0.1:4421/" NQN,
				      "tcp://127.0.0.1:4422/" NQN};
static struct kvof_field field;
static struct kvof_cache_opts opts;
static struct identity *identity;
static unsigned readies;
static int ready_res;
static char ready_why[256], why[256];
static uint8_t data[64 * KiB], back[BLOCKS][16 * KiB];
static void *grave[64];
static unsigned graves;

static void array_up(unsigned i, bool format)
{
	char path[16], name[16];
	struct loop_opts loop = {.name = name};
	struct store_opts so = {.drive_count = 1, .evict = true, .buffer_bytes = 64 * MiB,
				.format = format, .drive = {{.path = path, .bytes = 128 * MiB}}};
	struct target_ns_opts ns = {.nsid = 1, .evicts = true};
	struct target_subsys_opts subsys = {.nqn = NQN, .ns = &ns, .ns_count = 1};
	struct target_opts to = {.subsys = &subsys, .subsys_count = 1};
	struct sock_addr addr = {.host = "127.0.0.1", .port = (uint16_t)(4420 + i)};
	struct store_report report;
	uint16_t port;

	snprintf(path, sizeof(path), "drive%u", i);
	snprintf(name, sizeof(name), "array%u", i);
	expect_int(loop_open(&loop, &array[i].loop), 0);
	if (store_open(&so, array[i].loop, &array[i].store, &report) != 0)
		fail_msg("store: %s", report.text);
	ns.store = array[i].store;
	to.loop = array[i].loop;
	if (target_open(&to, why, &array[i].target) != 0)
		fail_msg("target: %s", why);
	expect_int(target_listen(array[i].target, &addr, NULL, &port), 0);
}

/* Its memory is nobody's, but still reachable for the leak checker. */
static void array_kill(unsigned i)
{
	sim_crash(&array[i].loop, true);
	if (graves + 2 > ARRAY_COUNT(grave))
		graves = 0;
	grave[graves++] = array[i].store;
	grave[graves++] = array[i].target;
	array[i] = (struct array){0};
}

static void ready(void *arg, int res, const char *text)
{
	readies++;
	ready_res = res;
	snprintf(ready_why, sizeof(ready_why), "%s", text);
}

static bool is_ready(void *arg)
{
	return readies > 0;
}

static int route_up(const char *dtype)
{
	struct loop_opts loop = {.name = "cache", .ops_max = 16384};
	struct route_opts route = {.cache = &opts, .model_id = "m", .deadline_ns = NS_PER_S};
	int rc;

	field = (struct kvof_field){"kv_dtype", dtype};
	opts.fields = &field;
	opts.field_count = 1;
	opts.model_id = "m";
	opts.block_tokens = 4;
	opts.part_bytes = PART;
	opts.queues = 2;
	opts.depth = 8;
	readies = 0;
	expect_int(identity_make(&opts, why, &identity), 0);
	route.identity = identity;
	expect_int(loop_open(&loop, &tf_loop), 0);
	rc = route_open(tf_loop, &route, ready, NULL, why, &tf_tier);
	if (rc != 0) {
		loop_close(&tf_loop);
		identity_free(&identity);
		return rc;
	}
	expect_int(readies, 0);
	expect(sim_run_until(is_ready, NULL, 10 * NS_PER_S));
	return ready_res;
}

static void begin_with(unsigned arrays)
{
	struct sim_opts sim = {.seed = 3};

	expect_int(sim_begin(&sim), 0);
	memset(array, 0, sizeof(array));
	for (unsigned i = 0; i < arrays; i++)
		array_up(i, true);
	opts = (struct kvof_cache_opts){.struct_bytes = sizeof(opts), .targets = targets,
					.target_count = ARRAYS, .strict = 1};
}

static void begin(void)
{
	begin_with(ARRAYS);
	expect_int(route_up("f16"), 0);
	expect_str(ready_why, "");
}

static void route_down(void)
{
	unsigned want = 1;

	tf_ends = 0;
	route_close(&tf_tier, tf_end_one, NULL);
	expect(sim_run_until(tf_has_ended, &want, 60 * NS_PER_S));
	expect_int(readies, 1);
	loop_close(&tf_loop);
	identity_free(&identity);
}

static void end(void)
{
	unsigned want = 0;

	if (tf_loop != NULL)
		route_down();
	tf_ends = 0;
	for (unsigned i = 0; i < ARRAYS; i++) {
		if (array[i].loop == NULL)
			continue;
		want++;
		target_close(&array[i].target, 0, tf_end_one, NULL);
		expect(sim_run_until(tf_has_ended, &want, 60 * NS_PER_S));
		want++;
		store_close(&array[i].store, tf_end_one, NULL);
		expect(sim_run_until(tf_has_ended, &want, 60 * NS_PER_S));
		loop_close(&array[i].loop);
	}
	sim_end();
}

static enum kvof_reason save(uint32_t n)
{
	tf_fill(data, THREE, n);
	return tf_one(KVOF_SAVE, n, data, THREE);
}

static enum kvof_reason load(uint32_t n)
{
	enum kvof_reason reason;

	kt_noise(back, sizeof(back));
	reason = tf_one(KVOF_LOAD, n, back[0], THREE);
	if (reason == KVOF_OK) {
		tf_fill(data, THREE, n);
		expect_mem(back[0], data, THREE);
	}
	return reason;
}

static struct route_array stat_of(unsigned i)
{
	struct route_array all[KVOF_TARGETS_MAX];

	expect(i < route_arrays(tf_tier, all));
	return all[i];
}

static bool all_live(void *arg)
{
	struct tier_stat s;

	route_stat(tf_tier, &s);
	return s.devs_live == ARRAYS;
}

static bool one_lost(void *arg)
{
	return !all_live(arg);
}

/* The array that a block was stored on, by what each was asked. */
static unsigned array_of(uint32_t n)
{
	uint64_t before[ARRAYS];

	for (unsigned i = 0; i < ARRAYS; i++)
		before[i] = stat_of(i).stat.asked;
	tf_one(KVOF_EXISTS_OP, n, NULL, 0);
	for (unsigned i = 0; i < ARRAYS; i++)
		if (stat_of(i).stat.asked != before[i])
			return i;
	fail_msg("block %u was asked nowhere", n);
	return 0;
}

TEST(blocks_spread_over_the_arrays_and_each_serves_its_own)
{
	unsigned count[ARRAYS] = {0};

	begin();
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(save(n), KVOF_OK);
	for (uint32_t n = 0; n < BLOCKS; n++) {
		count[array_of(n)]++;
		expect_int(load(n), KVOF_OK);
		expect_int(save(n), KVOF_EXISTS);
	}
	for (unsigned i = 0; i < ARRAYS; i++) {
		struct route_array a = stat_of(i);

		expect(count[i] > 2);
		expect_int(a.stat.delivered_bytes, count[i] * THREE);
		expect_int(a.stat.devs_live, 1);
		expect(strstr(a.name, NQN) != NULL);
	}
	end();
}

TEST(the_order_of_targets_does_not_matter_to_another_host)
{
	static const char *turned[ARRAYS];

	begin();
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(save(n), KVOF_OK);
	route_down();
	for (unsigned i = 0; i < ARRAYS; i++)
		turned[i] = targets[(i + 1) % ARRAYS];
	opts.target = turned[0];                   /* the first may be given apart */
	opts.targets = turned + 1;
	opts.target_count = ARRAYS - 1;
	expect_int(route_up("f16"), 0);
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(load(n), KVOF_OK);
	end();
}

TEST(s8_a_lost_array_is_misses_the_others_serve_and_it_comes_back_by_itself)
{
	unsigned of[BLOCKS];

	begin();
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(save(n), KVOF_OK);
	for (uint32_t n = 0; n < BLOCKS; n++)
		of[n] = array_of(n);
	array_kill(1);
	expect(sim_run_until(one_lost, NULL, 5 * NS_PER_S));
	for (unsigned pass = 0; pass < 3; pass++) {
		for (uint32_t n = 0; n < BLOCKS; n++) {
			uint64_t begin_ns = sim_now_ns();

			expect_int(load(n), of[n] == 1 ? KVOF_UNREACHABLE : KVOF_OK);
			expect(sim_now_ns() - begin_ns < 20 * NS_PER_MS);
		}
		tf_pass(2 * NS_PER_S);
	}
	expect(stat_of(1).stat.unreachable > 0);
	expect_int(stat_of(0).stat.unreachable, 0);
	array_up(1, false);
	expect(sim_run_until(all_live, NULL, 30 * NS_PER_S));
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(load(n), KVOF_OK);
	expect(stat_of(1).stat.reconnects > 0);
	end();
}

/* Loads of all blocks at once, each with 200 ms. */
static void loads_start(struct tf_op *t, uint64_t deadline_ns)
{
	kt_noise(back, sizeof(back));
	for (uint32_t n = 0; n < BLOCKS; n++) {
		tf_set(&t[n], KVOF_LOAD, n, back[n], THREE);
		t[n].op.deadline_ns = deadline_ns;
		tf_start(&t[n]);
	}
}

TEST(s8_an_array_lost_in_the_middle_of_a_request_costs_its_blocks_by_the_deadline)
{
	struct tf_op *t = calloc(BLOCKS, sizeof(*t));
	unsigned of[BLOCKS], lost = 0;

	for (unsigned how = 0; how < 2; how++) {   /* killed; cut off without a word */
		for (uint64_t after = 0; after < 400 * 1000; after += 37 * 1000) {
			uint64_t begin_ns;

			begin();
			for (uint32_t n = 0; n < BLOCKS; n++)
				expect_int(save(n), KVOF_OK);
			for (uint32_t n = 0; n < BLOCKS; n++)
				of[n] = array_of(n);
			begin_ns = sim_now_ns();
			loads_start(t, begin_ns + 200 * NS_PER_MS);
			if (after > 0)
				tf_pass(after);
			if (how == 0)
				array_kill(2);
			else
				sim_link_cut(tf_loop, array[2].loop, true);
			for (uint32_t n = 0; n < BLOCKS; n++) {
				enum kvof_reason reason = tf_wait(&t[n]);

				expect(t[n].done_ns - begin_ns <= 201 * NS_PER_MS);
				if (reason != KVOF_OK) {
					lost++;
					expect_int(of[n], 2);
					expect(reason == KVOF_LATE ||
					       reason == KVOF_UNREACHABLE);
					continue;
				}
				tf_fill(data, THREE, n);
				expect_mem(back[n], data, THREE);
			}
			if (how == 1)
				sim_link_cut(tf_loop, array[2].loop, false);
			end();
		}
	}
	expect(lost > 10);
	free(t);
}

TEST(a_host_that_stores_while_an_array_dies_leaves_blocks_whole_or_absent)
{
	struct tf_op *t = calloc(BLOCKS, sizeof(*t));
	static uint8_t each[BLOCKS][16 * KiB];

	for (uint64_t after = 1; after < 600 * 1000; after += 97 * 1000) {
		begin();
		for (uint32_t n = 0; n < BLOCKS; n++) {
			tf_fill(each[n], THREE, n);
			tf_set(&t[n], KVOF_SAVE, n, each[n], THREE);
			t[n].op.deadline_ns = sim_now_ns() + 300 * NS_PER_MS;
			tf_start(&t[n]);
		}
		tf_pass(after);
		array_kill(0);
		for (uint32_t n = 0; n < BLOCKS; n++)
			tf_wait(&t[n]);
		array_up(0, false);
		expect(sim_run_until(all_live, NULL, 30 * NS_PER_S));
		for (uint32_t n = 0; n < BLOCKS; n++) {
			enum kvof_reason reason = load(n);

			expect(reason == KVOF_OK || reason == KVOF_ABSENT);
			if (t[n].op.reason == KVOF_OK)
				expect_int(reason, KVOF_OK);
			reason = save(n);
			expect(reason == KVOF_OK || reason == KVOF_EXISTS);
			expect_int(load(n), KVOF_OK);
		}
		end();
	}
	free(t);
}

/* --- open and close --------------------------------------------------------------------------- */

TEST(strict_names_the_array_that_is_out_of_reach)
{
	begin_with(2);
	expect_int(route_up("f16"), -ECONNRESET);
	if (strstr(ready_why, "127.0.0.1:4422") == NULL ||
	    strstr(ready_why, "out of reach") == NULL)
		fail_msg("%s", ready_why);
	end();
}

TEST(not_strict_opens_with_a_warning_and_uses_the_array_when_it_comes)
{
	unsigned unreachable = 0;

	begin_with(2);
	opts.strict = 0;
	expect_int(route_up("f16"), 0);
	expect(strstr(ready_why, "127.0.0.1:4422") != NULL);
	for (uint32_t n = 0; n < BLOCKS; n++) {
		enum kvof_reason reason = save(n);

		expect(reason == KVOF_OK || reason == KVOF_UNREACHABLE);
		unreachable += reason == KVOF_UNREACHABLE;
	}
	expect(unreachable > 0 && unreachable < BLOCKS);
	array_up(2, true);
	expect(sim_run_until(all_live, NULL, 30 * NS_PER_S));
	for (uint32_t n = 0; n < BLOCKS; n++) {
		enum kvof_reason reason = save(n);

		expect(reason == KVOF_OK || reason == KVOF_EXISTS);
		expect_int(load(n), KVOF_OK);
	}
	end();
}

TEST(s14_strict_names_the_array_and_the_field_that_differ)
{
	begin_with(ARRAYS);
	opts.targets = targets + 2;                /* only the last has a domain of this model */
	opts.target_count = 1;
	expect_int(route_up("f16"), 0);
	route_down();
	opts.targets = targets;
	opts.target_count = ARRAYS;
	expect_int(route_up("q8_0"), -EINVAL);
	if (strstr(ready_why, "127.0.0.1:4422") == NULL || strstr(ready_why, "kv_dtype") == NULL)
		fail_msg("%s", ready_why);
	end();
}

TEST(targets_that_are_none_or_stand_twice_are_refused_with_a_sentence)
{
	static const char *const wrong[][2] = {
		{"tcp://127.0.0.1:4420/" NQN, "tcp://127.0.0.1:4420/" NQN},
		{"tcp://127.0.0.1:4420/" NQN, "udp://127.0.0.1:4421"},
		{"tcp://127.0.0.1:4420/" NQN, "tcp://127.0.0.1:99999"},
	};
	static const char *const words[] = {"stands twice", "does not begin with tcp://", "99999"};

	begin_with(0);
	for (unsigned i = 0; i < ARRAY_COUNT(wrong); i++) {
		opts.targets = wrong[i];
		opts.target_count = 2;
		expect_int(route_up("f16"), -EINVAL);
		if (strstr(why, words[i]) == NULL)
			fail_msg("%s", why);
	}
	end();
}

TEST(a_close_under_load_with_one_array_cut_off_ends_all_and_soon)
{
	struct tf_op *t = calloc(BLOCKS, sizeof(*t));
	uint64_t begin_ns;

	begin();
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(save(n), KVOF_OK);
	sim_link_cut(tf_loop, array[0].loop, true);
	loads_start(t, sim_now_ns() + 5 * NS_PER_S);
	tf_pass(100 * 1000);
	begin_ns = sim_now_ns();
	for (uint32_t n = 0; n < BLOCKS; n++)
		if (t[n].done == 0)
			tf_tier->ops->cancel(tf_tier, &t[n].op);
	route_down();
	expect(sim_now_ns() - begin_ns < NS_PER_S);
	for (uint32_t n = 0; n < BLOCKS; n++) {
		expect_int(t[n].done, 1);
		expect(!t[n].op.busy || t[n].released == 1);
	}
	free(t);
	end();
}

TEST(a_close_before_any_array_answered_is_silent)
{
	unsigned want = 1;
	struct loop_opts loop = {.name = "cache", .ops_max = 16384};
	struct route_opts route = {.cache = &opts, .model_id = "m", .deadline_ns = NS_PER_S};

	begin_with(ARRAYS);
	expect_int(route_up("f16"), 0);            /* fills the options */
	route_down();
	expect_int(identity_make(&opts, why, &identity), 0);
	route.identity = identity;
	readies = 0;
	expect_int(loop_open(&loop, &tf_loop), 0);
	expect_int(route_open(tf_loop, &route, ready, NULL, why, &tf_tier), 0);
	tf_ends = 0;
	route_close(&tf_tier, tf_end_one, NULL);
	expect(sim_run_until(tf_has_ended, &want, 60 * NS_PER_S));
	expect_int(readies, 0);
	loop_close(&tf_loop);
	identity_free(&identity);
	end();
}
