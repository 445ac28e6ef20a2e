/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache over a real array: initiator, NVMe/TCP, target and store in the simulator, with its
 * drives, its network, its crashes. A raw client beside it puts and takes values as they are.
 */
#include "kt.h"

#include "cache_array_fixture.h"
#include "cache_core_fixture.h"

#define THREE (3 * FIX_CUT - 100)

static struct raw {
	struct loop *loop;
	struct host *host;
	struct host_op op;
	struct iovec iov;
	bool done;
	int res;
} raw;

static uint8_t data[64 * KiB], back[64 * KiB];

static bool raw_live(void *arg)
{
	return host_state(raw.host) == HOST_LIVE;
}

static void raw_up(void)
{
	struct loop_opts loop = {.name = "raw"};
	struct host_opts o = {.queues = 1, .depth = 4};
	char why[256];

	expect_int(loop_open(&loop, &raw.loop), 0);
	expect_int(host_target_parse("tcp://127.0.0.1:4420/" NQN, &o, why), 0);
	snprintf(o.hostnqn, sizeof(o.hostnqn),
		 "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000009");
	expect_int(host_open(raw.loop, &o, NULL, NULL, why, &raw.host), 0);
	expect(sim_run_until(raw_live, NULL, 5 * NS_PER_S));
}

static void raw_done(struct host_op *op, int res)
{
	raw.res = res;
	raw.done = true;
}

static void raw_released(struct host_op *op)
{
}

static bool raw_is_done(void *arg)
{
	return raw.done;
}

static int raw_run(enum host_op_kind kind, const struct kv_key *key, void *at, uint32_t bytes)
{
	raw.iov = (struct iovec){at, bytes};
	raw.op = (struct host_op){.kind = kind, .key = *key, .iov = &raw.iov,
		.iov_count = bytes > 0, .bytes = bytes, .done = raw_done, .released = raw_released};
	raw.done = false;
	host_submit(raw.host, &raw.op);
	expect(sim_run_until(raw_is_done, NULL, 10 * NS_PER_S));
	return raw.res;
}

/* digests: 0 or 3. */
static void begin_with(const struct sim_opts *sim, uint32_t digests, uint64_t dram_bytes)
{
	fix_begin("f16");
	sim_end();
	expect_int(sim_begin(sim), 0);
	fix.opts.target = "tcp://127.0.0.1:4420/" NQN;
	fix.opts.queues = 2;
	fix.opts.depth = 8;
	fix.opts.digests = digests;
	fix.opts.dram_bytes = dram_bytes;
	memset(&array, 0, sizeof(array));
	memset(&raw, 0, sizeof(raw));
	array_up(true);
	sim_faults_on(false);
	raw_up();
	expect_int(fix_open(), 0);
	sim_faults_on(true);
}

static void begin(void)
{
	struct sim_opts sim = {.seed = 3};

	begin_with(&sim, 0, 0);
}

/* Everything is closed in order. */
static void end(void)
{
	unsigned want = 1;

	sim_faults_on(false);
	fix_close_core();
	array.ends = 0;
	host_close(&raw.host, array_end, NULL);
	expect(sim_run_until(array_has_ended, &want, 60 * NS_PER_S));
	array_down();
	loop_close(&raw.loop);
	loop_close(&fix.loop);
	identity_free(&fix.identity);
	sim_end();
}

TEST(blocks_of_any_length_come_back_over_the_array)
{
	static const size_t bytes[] = {0, 1, 511, 512, 513, 4031, 4032, 4033, 8064, THREE, 60000};

	for (uint32_t digests = 0; digests <= 3; digests += 3) {
		struct sim_opts sim = {.seed = 7};

		begin_with(&sim, digests, 0);
		for (uint32_t i = 0; i < ARRAY_COUNT(bytes); i++) {
			fix_fill(data, bytes[i] + 1, i);
			expect_int(fix_one(KVOF_SAVE, i, data + 1, bytes[i]).reason, KVOF_OK);
		}
		for (uint32_t i = 0; i < ARRAY_COUNT(bytes); i++) {
			struct kvof_result r;

			fix_fill(data, bytes[i] + 1, i);
			kt_noise(back, sizeof(back));
			r = fix_one(KVOF_LOAD, i, back + i, bytes[i]);
			expect_int(r.reason, KVOF_OK);
			expect_int(r.value_bytes, bytes[i]);
			expect_mem(back + i, data + 1, bytes[i]);
			expect_int(fix_one(KVOF_EXISTS_OP, i, NULL, 0).reason, KVOF_OK);
			fix_fill(data, bytes[i], i + 100);
			expect_int(fix_one(KVOF_SAVE, i, data, bytes[i]).reason, KVOF_EXISTS);
		}
		end();
	}
}

TEST(a_batch_of_many_blocks_is_in_flight_at_once_and_right)
{
	static uint8_t many[100 * 5000], room[100 * 5000];
	static struct iovec iov[100];
	struct kvof_block b[100];
	uint32_t n[100];
	uint64_t batch;

	begin();
	fix_fill(many, sizeof(many), 1);
	for (uint32_t i = 0; i < 100; i++) {
		n[i] = i;
		b[i] = fix_block(i, &iov[i], many + i * 5000, 5000);
	}
	batch = fix_submit(KVOF_SAVE, b, 100, 0);
	fix_wait();
	for (uint32_t i = 0; i < 100; i++)
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_OK);
	expect_int(fix_match(n, 64, 0), 64);
	for (uint32_t i = 0; i < 100; i++)
		iov[i].iov_base = room + i * 5000;
	batch = fix_submit(KVOF_LOAD, b, 100, 0);
	fix_wait();
	for (uint32_t i = 0; i < 100; i++)
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_OK);
	expect_mem(room, many, sizeof(room));
	expect_int(fix_one(KVOF_DELETE, 40, NULL, 0).reason, KVOF_OK);
	expect_int(fix_match(n, 64, 0), 40);
	end();
}

TEST(what_a_raw_client_puts_under_a_key_is_a_miss_with_its_reason)
{
	uint8_t value[FIX_CUT + FRAME_BYTES];
	struct kv_key one, two;

	begin();
	fix_fill(data, 3000, 1);
	expect_int(fix_one(KVOF_SAVE, 1, data, 1000).reason, KVOF_OK);
	expect_int(fix_one(KVOF_SAVE, 2, data + 5, 1000).reason, KVOF_OK);
	one = fix_key(1, 0, 1);
	two = fix_key(2, 0, 1);
	expect_int(raw_run(HOST_RETRIEVE, &one, value, sizeof(value)), 0);
	expect_int(raw.op.value_bytes, 1064);
	expect_mem(value, data, 1000);
	/* another block's value: good in itself */
	expect_int(raw_run(HOST_STORE, &two, value, 1064), 0);
	expect_int(fix_one(KVOF_LOAD, 2, back, 1000).reason, KVOF_IDENTITY);
	/* wrong checksum */
	value[500] ^= 4;
	expect_int(raw_run(HOST_STORE, &one, value, 1064), 0);
	expect_int(fix_one(KVOF_LOAD, 1, back, 1000).reason, KVOF_CORRUPT);
	value[500] ^= 4;
	/* wrong length: a byte less in front, a byte more in front, footer alone */
	expect_int(raw_run(HOST_STORE, &one, value + 1, 1063), 0);
	expect_int(fix_one(KVOF_LOAD, 1, back, 1000).reason, KVOF_CORRUPT);
	expect_int(raw_run(HOST_STORE, &one, value + 1000, 64), 0);
	expect_int(fix_one(KVOF_LOAD, 1, back, 1000).reason, KVOF_CORRUPT);
	expect_int(raw_run(HOST_STORE, &one, value, 10), 0);
	expect_int(fix_one(KVOF_LOAD, 1, back, 1000).reason, KVOF_CORRUPT);
	expect_int(raw_run(HOST_STORE, &one, value, 0), 0);
	expect_int(fix_one(KVOF_LOAD, 1, back, 1000).reason, KVOF_CORRUPT);
	/* the next save heals it */
	expect_int(fix_one(KVOF_SAVE, 1, data, 1000).reason, KVOF_OK);
	expect_int(fix_one(KVOF_LOAD, 1, back, 1000).reason, KVOF_OK);
	expect_mem(back, data, 1000);
	end();
}

TEST(a_bit_flipped_on_the_drive_is_a_miss_and_corrupt)
{
	unsigned hit = 0;

	begin();
	fix_fill(data, 3000, 77);
	expect_int(fix_one(KVOF_SAVE, 1, data, 3000).reason, KVOF_OK);
	for (int d = 0; d < 2; d++) {
		uint64_t bytes = 0;
		uint8_t *disk = sim_disk_bytes(d == 0 ? "a0" : "a1", &bytes);
		uint8_t *at = memmem(disk, bytes, data, 3000);

		if (at != NULL) {
			at[1234] ^= 0x20;
			hit++;
		}
	}
	expect_int(hit, 1);
	expect_int(fix_one(KVOF_LOAD, 1, back, 3000).reason, KVOF_CORRUPT);
	expect_int(fix_one(KVOF_SAVE, 1, data, 3000).reason, KVOF_OK);
	expect_int(fix_one(KVOF_LOAD, 1, back, 3000).reason, KVOF_OK);
	end();
}

TEST(a_cut_link_ends_every_operation_at_its_deadline_and_heals)
{
	struct iovec iov[2];
	struct kvof_block b[2];
	uint64_t batch, begin_ns;

	begin();
	fix_fill(data, THREE, 1);
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	sim_link_cut(fix.loop, array.loop, true);
	b[0] = fix_block(1, &iov[0], back, THREE);
	b[1] = fix_block(2, &iov[1], back + 32 * KiB, 100);
	begin_ns = sim_now_ns();
	batch = fix_submit(KVOF_LOAD, b, 2, 200 * NS_PER_MS);
	fix_wait();
	for (uint32_t i = 0; i < 2; i++)
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_LATE);
	for (unsigned i = 0; i < 2; i++)
		expect(fix.result_at_ns[i + 1] <= begin_ns + 201 * NS_PER_MS);
	expect(sim_now_ns() <= begin_ns + 200 * NS_PER_MS + HOST_RELEASE_NS + 10 * NS_PER_MS);
	expect_int(fix_match((uint32_t[]){1}, 1, 100 * NS_PER_MS), 0);
	sim_link_cut(fix.loop, array.loop, false);
	fix_pass(15 * NS_PER_S);
	expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_OK);
	expect_mem(back, data, THREE);
	end();
}

TEST(cancel_over_a_cut_link_leaves_the_buffer_alone_afterwards)
{
	struct iovec iov;
	struct kvof_block b;
	uint64_t batch;

	begin();
	fix_fill(data, 60000, 1);
	expect_int(fix_one(KVOF_SAVE, 1, data, 60000).reason, KVOF_OK);
	for (uint64_t after = 0; after < NS_PER_MS; after += 37000) {
		b = fix_block(1, &iov, back, 60000);
		batch = fix_submit(KVOF_LOAD, &b, 1, NS_PER_S);
		fix_pass(after);
		fix_post(NULL, batch, NULL);
		fix_wait();            /* result, and release where it was busy */
		if (fix_result_of(batch, 0, 0).reason == KVOF_OK)
			continue;
		expect_int(fix_result_of(batch, 0, 0).reason, KVOF_CANCELED);
		kt_noise(back, sizeof(back));
		fix_pass(NS_PER_S);
		for (size_t i = 0; i < sizeof(back); i++)
			expect(back[i] == (uint8_t)(0xa5 ^ i * 131));
	}
	end();
}

TEST(an_array_killed_in_the_middle_of_a_load_is_used_again_when_back)
{
	static uint8_t many[30 * 9000], room[30 * 9000];
	struct iovec iov[30];
	struct kvof_block b[30];
	uint64_t batch, begin_ns;
	unsigned lost = 0;

	begin();
	fix_fill(many, sizeof(many), 2);
	for (uint32_t i = 0; i < 30; i++)
		b[i] = fix_block(i, &iov[i], many + i * 9000, 9000);
	batch = fix_submit(KVOF_SAVE, b, 30, 0);
	fix_wait();
	for (uint32_t i = 0; i < 30; i++)
		iov[i].iov_base = room + i * 9000;
	begin_ns = sim_now_ns();
	batch = fix_submit(KVOF_LOAD, b, 30, 500 * NS_PER_MS);
	fix_pass(400000);
	array_kill();
	fix_wait();
	expect(sim_now_ns() <= begin_ns + 800 * NS_PER_MS);
	for (uint32_t i = 0; i < 30; i++) {
		struct kvof_result r = fix_result_of(batch, i, 0);

		if (r.reason == KVOF_OK)
			expect_mem(room + i * 9000, many + i * 9000, 9000);
		else
			expect(r.reason == KVOF_UNREACHABLE || r.reason == KVOF_LATE);
		lost += r.reason != KVOF_OK;
	}
	expect(lost > 0);
	begin_ns = sim_now_ns();
	expect_int(fix_one(KVOF_LOAD, 1, room, 9000).reason, KVOF_UNREACHABLE);
	expect(sim_now_ns() <= begin_ns + 2001 * NS_PER_MS);
	array_up(false);
	fix_pass(12 * NS_PER_S);
	for (uint32_t i = 0; i < 30; i++)
		expect_int(fix_one(KVOF_LOAD, i, room + i * 9000, 9000).reason, KVOF_OK);
	expect_mem(room, many, sizeof(room));
	end();
}

/* --- any order of things, with everything that can go wrong ----------------------------------- */

#define RANDOM_BLOCKS 24
#define RANDOM_BYTES 9000
#define RANDOM_FLYING 8

struct random {
	struct prng p;
	uint8_t room[RANDOM_FLYING][RANDOM_BYTES];
	struct iovec iov[RANDOM_FLYING];
	uint64_t batch[RANDOM_FLYING];     /* 0: free */
	uint32_t n[RANDOM_FLYING];
	enum kvof_op op[RANDOM_FLYING];
	uint64_t begin_ns[RANDOM_FLYING];
	unsigned loads, hits, wrong, slow;
};

static size_t random_bytes(uint32_t n)
{
	return n * 1777 % RANDOM_BYTES;
}

static void random_start(struct random *r, unsigned slot)
{
	uint32_t n = (uint32_t)prng_below(&r->p, RANDOM_BLOCKS);
	struct kvof_block b = {.id = fix_id(n)};
	uint64_t pick = prng_below(&r->p, 10);

	r->op[slot] = pick < 5 ? KVOF_LOAD : pick < 8 ? KVOF_SAVE : pick < 9 ? KVOF_EXISTS_OP :
		      KVOF_DELETE;
	r->n[slot] = n;
	if (r->op[slot] == KVOF_SAVE)
		fix_fill(r->room[slot], random_bytes(n), n);
	if (r->op[slot] == KVOF_LOAD || r->op[slot] == KVOF_SAVE)
		b = fix_block(n, &r->iov[slot], r->room[slot], random_bytes(n));
	r->begin_ns[slot] = sim_now_ns();
	r->batch[slot] = fix_submit(r->op[slot], &b, 1, 300 * NS_PER_MS);
}

static void random_check(struct random *r, unsigned slot, const struct kvof_result *result,
			 uint64_t at_ns)
{
	uint8_t want[RANDOM_BYTES];

	r->slow += at_ns > r->begin_ns[slot] + 310 * NS_PER_MS;
	if (r->op[slot] != KVOF_LOAD)
		return;
	r->loads++;
	if (result->reason != KVOF_OK)
		return;
	r->hits++;
	fix_fill(want, random_bytes(r->n[slot]), r->n[slot]);
	r->wrong += result->value_bytes != random_bytes(r->n[slot]) ||
		    memcmp(want, r->room[slot], random_bytes(r->n[slot])) != 0;
}

/* Frees the slots of results that have come. */
static void random_reap(struct random *r)
{
	for (unsigned i = 0; i < fix.results; i++) {
		const struct kvof_result *result = &fix.result[i];

		for (unsigned slot = 0; slot < RANDOM_FLYING; slot++) {
			if (r->batch[slot] != result->batch)
				continue;
			if ((result->flags & KVOF_RESULT_RELEASED) == 0)
				random_check(r, slot, result, fix.result_at_ns[i]);
			if (!result->busy)
				r->batch[slot] = 0;
		}
	}
	fix.results = 0;
}

static void random_run(struct random *r, uint64_t seed, unsigned ops)
{
	struct sim_opts sim = {.seed = seed};

	sim.fault_per_million[SIM_NET_RESET] = 200;
	sim.fault_per_million[SIM_NET_DELAY] = 500;
	sim.fault_per_million[SIM_NET_FLIP] = 100;
	sim.fault_per_million[SIM_DISK_READ_EIO] = 2000;
	sim.fault_per_million[SIM_DISK_READ_BAD] = 5000;
	sim.fault_per_million[SIM_DISK_SLOW] = 2000;
	r->p = prng_of(seed);
	begin_with(&sim, 3, seed % 2 ? 64 * KiB : 0);
	for (unsigned i = 0; i < ops; i++) {
		unsigned slot = 0;

		while (slot < RANDOM_FLYING && r->batch[slot] != 0)
			slot++;
		if (slot < RANDOM_FLYING)
			random_start(r, slot);
		if (prng_chance(&r->p, 500000))
			fix_pass(prng_below(&r->p, 3 * NS_PER_MS));
		if (prng_chance(&r->p, 4000)) {
			array_kill();
			fix_pass(prng_below(&r->p, NS_PER_S));
			sim_faults_on(false);
			array_up(false);
			sim_faults_on(true);
		}
		random_reap(r);
	}
	fix_wait();
	random_reap(r);
	end();
}

/* A failure names the seed; KVOF_CACHE_SEED=n KVOF_CACHE_SEEDS=1 replays it. */
static uint64_t random_setting(const char *name, uint64_t standard)
{
	const char *text = getenv(name);

	return text != NULL ? strtoull(text, NULL, 0) : standard;
}

TEST(random_work_with_faults_and_crashes_never_delivers_wrong_bytes_nor_late)
{
	static struct random r;
	uint64_t first = random_setting("KVOF_CACHE_SEED", 1);
	uint64_t seeds = random_setting("KVOF_CACHE_SEEDS", 25);
	unsigned hits = 0, loads = 0;

	for (uint64_t seed = first; seed < first + seeds; seed++) {
		memset(&r, 0, sizeof(r));
		random_run(&r, seed, 300);
		if (r.wrong != 0 || r.slow != 0)
			fail_msg("KVOF_CACHE_SEED=%llu: %u wrong, %u late",
				 (unsigned long long)seed, r.wrong, r.slow);
		hits += r.hits;
		loads += r.loads;
	}
	expect(hits * 4 > loads && hits < loads);
}
