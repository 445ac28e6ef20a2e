/* SPDX-License-Identifier: Apache-2.0 */
/* The walk over three tiers: DRAM, a flash tier and a host that answer what the test says. */
#include "kt.h"

#include "cache_sim_host.h"

#include "cache_core_fixture.h"
#include "cache_core_tier.h"

#define THREE (3 * FIX_CUT - 100)          /* bytes of a block of three parts */

static uint8_t data[128 * KiB], back[128 * KiB];
static struct kvof_cache_stat stat;

/* dram_bytes 0: without DRAM. */
static void begin(uint64_t dram_bytes)
{
	sim_host_reset();
	fix_begin("f16");
	fix.flash = sim_tier_reset(&fix.loop);
	fix.opts.dram_bytes = dram_bytes;
	fix.opts.policy = dram_bytes > 0 ? "lru" : NULL;
	expect_int(fix_open(), 0);
	sim_host.log_count = 0;
	fix_fill(data, sizeof(data), 1);
}

static void seen(void)
{
	core_stat(fix.core, &stat);
}

static struct kvof_result load(uint32_t n, size_t bytes)
{
	kt_noise(back, sizeof(back));
	return fix_one(KVOF_LOAD, n, back, bytes);
}

/* --- the walk --------------------------------------------------------------------------------- */

TEST(a_load_asks_dram_then_flash_then_the_array_and_stops_where_the_block_is)
{
	struct kvof_id id;

	begin(0);
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).reason, KVOF_OK);
	expect_int(load(1, 500).tier, KVOF_TIER_FLASH);
	expect_mem(back, data, 500);
	id = fix_id(1);
	sim_tier_find(&id)->there = false;
	expect_int(load(1, 500).tier, KVOF_TIER_REMOTE);
	expect_mem(back, data, 500);
	fix_end();
	begin(MiB);
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).reason, KVOF_OK);
	sim_tier.log_count = sim_host.log_count = 0;
	expect_int(load(1, 500).tier, KVOF_TIER_DRAM);
	expect_int(sim_tier.log_count, 0);
	expect_int(sim_host.log_count, 0);
	seen();
	expect_int(stat.hits[KVOF_TIER_DRAM], 1);
	expect_int(stat.hits[KVOF_TIER_FLASH] + stat.hits[KVOF_TIER_REMOTE], 0);
	fix_end();
}

static enum kvof_reason flash_says;

static enum sim_tier_hook hook_says(struct tier_op *op, enum kvof_reason *reason)
{
	*reason = flash_says;
	return SIM_TIER_ANSWER;
}

TEST(a_block_that_flash_can_not_give_is_served_by_the_array_and_the_reason_counted)
{
	static const enum kvof_reason say[] = {KVOF_ABSENT, KVOF_CORRUPT, KVOF_IDENTITY,
					       KVOF_UNREACHABLE, KVOF_ERROR};

	begin(0);
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).reason, KVOF_OK);
	sim_tier.hook = hook_says;
	for (unsigned i = 0; i < ARRAY_COUNT(say); i++) {
		struct kvof_result r;

		flash_says = say[i];
		r = load(1, 500);
		expect_int(r.reason, KVOF_OK);
		expect_int(r.tier, KVOF_TIER_REMOTE);
		expect_mem(back, data, 500);
		expect_int(fix_match((uint32_t[]){1}, 1, 0), 1);
		seen();
		expect_int(stat.tier_reason[KVOF_TIER_FLASH][say[i]], 1);
		expect_int(stat.hits[KVOF_TIER_REMOTE], i + 1);
		expect_int(stat.misses, 0);
	}
	fix_end();
}

TEST(when_no_tier_has_a_block_the_reason_that_tells_most_is_told)
{
	static const struct {
		enum kvof_reason flash, want;
	} row[] = {{KVOF_ABSENT, KVOF_ABSENT}, {KVOF_CORRUPT, KVOF_CORRUPT},
		   {KVOF_IDENTITY, KVOF_IDENTITY}, {KVOF_UNREACHABLE, KVOF_UNREACHABLE}};

	begin(MiB);
	sim_tier.hook = hook_says;
	for (unsigned i = 0; i < ARRAY_COUNT(row); i++) {
		flash_says = row[i].flash;
		expect_int(load(1, 500).reason, row[i].want);
		expect_int(fix_one(KVOF_EXISTS_OP, 1, NULL, 0).reason, row[i].want);
		seen();
		expect_int(stat.misses, i + 1);
		expect_int(stat.reason[row[i].want], 1);
	}
	sim_tier.hook = NULL;
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	expect_int(load(1, 500).reason, KVOF_UNREACHABLE);
	fix_end();
}

TEST(a_save_goes_to_every_tier_and_the_array_answers)
{
	begin(MiB);
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).tier, KVOF_TIER_REMOTE);
	expect_int(sim_tier_count(), 1);
	expect_int(sim_host_count(), 2);           /* the domain list */
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).reason, KVOF_EXISTS);
	sim_tier.hook = hook_says;
	flash_says = KVOF_FULL;
	expect_int(fix_one(KVOF_SAVE, 2, data, 500).reason, KVOF_OK);
	sim_tier.hook = NULL;
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	expect_int(fix_one(KVOF_SAVE, 3, data, 500).reason, KVOF_UNREACHABLE);
	expect_int(load(3, 500).tier, KVOF_TIER_DRAM);
	expect_int(sim_tier_count(), 2);
	expect_int(fix.stored[KVOF_TIER_DRAM], 3);
	expect_int(fix.stored[KVOF_TIER_FLASH], 2);
	expect_int(fix.stored[KVOF_TIER_REMOTE], 2);
	fix_end();
}

TEST(a_delete_removes_a_block_from_all_three_tiers)
{
	begin(MiB);
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).reason, KVOF_OK);
	expect_int(fix_one(KVOF_DELETE, 1, NULL, 0).reason, KVOF_OK);
	expect_int(sim_tier_count(), 0);
	expect_int(sim_host_count(), 1);
	expect_int(load(1, 500).reason, KVOF_ABSENT);
	expect_int(fix_one(KVOF_DELETE, 1, NULL, 0).reason, KVOF_ABSENT);
	for (enum kvof_tier t = KVOF_TIER_DRAM; t < KVOF_TIER_COUNT; t++)
		expect_int(fix.removed[t], 1);
	/* what only flash has goes too; what could not be deleted everywhere is told */
	expect_int(fix_one(KVOF_SAVE, 2, data, 500).reason, KVOF_OK);
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	expect_int(fix_one(KVOF_DELETE, 2, NULL, 0).reason, KVOF_UNREACHABLE);
	expect_int(sim_tier_count(), 0);
	fix_end();
}

TEST(match_counts_what_any_tier_has)
{
	begin(MiB);
	expect_int(fix_one(KVOF_SAVE, 0, data, 500).reason, KVOF_OK);
	fix.flags = KVOF_SKIP_WRITE;
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).reason, KVOF_OK);
	fix.flags = 0;
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	expect_int(fix_one(KVOF_SAVE, 2, data, 500).reason, KVOF_UNREACHABLE);
	sim_host_state_set(HOST_LIVE, 0);
	expect_int(fix_match((uint32_t[]){0, 1, 2, 3}, 4, 0), 3);
	fix_end();
}

static enum sim_tier_hook hook_hang(struct tier_op *op, enum kvof_reason *reason)
{
	return SIM_TIER_HANG;
}

TEST(a_load_from_a_flash_that_hangs_ends_at_its_deadline)
{
	struct iovec iov;
	struct kvof_block b;
	uint64_t batch, begin_ns;

	begin(0);
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).reason, KVOF_OK);
	sim_tier.hook = hook_hang;
	b = fix_block(1, &iov, back, 500);
	begin_ns = sim_now_ns();
	batch = fix_submit(KVOF_LOAD, &b, 1, 200 * NS_PER_MS);
	fix_wait();
	expect_int(fix_result_of(batch, 0, 0).reason, KVOF_LATE);
	expect(sim_now_ns() < begin_ns + 201 * NS_PER_MS);
	batch = fix_submit(KVOF_LOAD, &b, 1, NS_PER_S);
	fix_post(NULL, batch, NULL);
	fix_wait();
	expect_int(fix_result_of(batch, 0, 0).reason, KVOF_CANCELED);
	fix_end();
}

/* --- per request ------------------------------------------------------------------------------ */

TEST(a_request_that_skips_reads_asks_no_tier)
{
	begin(MiB);
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).reason, KVOF_OK);
	sim_tier.log_count = sim_host.log_count = 0;
	fix.flags = KVOF_SKIP_READ;
	expect_int(load(1, 500).reason, KVOF_ABSENT);
	expect_int(fix_one(KVOF_EXISTS_OP, 1, NULL, 0).reason, KVOF_ABSENT);
	fix.flags = 0;
	expect_int(sim_tier.log_count + sim_host.log_count, 0);
	expect_int(load(1, 500).reason, KVOF_OK);
	fix_end();
}

TEST(a_request_that_skips_writes_stays_in_dram_also_when_it_is_used_again)
{
	begin(MiB);
	fix.flags = KVOF_SKIP_WRITE;
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).tier, KVOF_TIER_DRAM);
	fix.flags = 0;
	for (unsigned i = 0; i < 3; i++)
		expect_int(load(1, 500).tier, KVOF_TIER_DRAM);
	fix_pass(NS_PER_S);
	expect_int(sim_tier_count(), 0);
	expect_int(sim_host_count(), 1);
	fix_end();
	begin(0);
	fix.flags = KVOF_SKIP_WRITE;
	expect_int(fix_one(KVOF_SAVE, 1, data, 500).reason, KVOF_FULL);
	fix.flags = 0;
	fix_end();
}

TEST(s17_a_fast_load_is_not_held_by_a_slow_one_of_the_same_batch)
{
	struct iovec iov[3];
	struct kvof_block b[3];
	uint64_t batch, begin_ns;

	begin(MiB);
	expect_int(fix_one(KVOF_SAVE, 2, data, 500).reason, KVOF_OK);
	sim_tier.latency_ns = NS_PER_S;
	begin_ns = sim_now_ns();
	for (uint32_t i = 0; i < 3; i++)
		b[i] = fix_block(i, &iov[i], back + i * 1000, 500);
	batch = fix_submit(KVOF_LOAD, b, 3, 0);
	fix_wait();
	expect_int(fix.result[fix.results - 3].index, 2);
	expect(fix.result_at_ns[fix.results - 3] < begin_ns + NS_PER_MS);
	expect_int(fix_result_of(batch, 2, 0).tier, KVOF_TIER_DRAM);
	expect_int(fix_result_of(batch, 0, 0).reason, KVOF_ABSENT);
	expect(fix.result_at_ns[fix.results - 1] >= begin_ns + NS_PER_S);
	fix_end();
}

/* Each load takes a tenth of a second longer than the one before. */
static enum sim_tier_hook hook_slower(struct tier_op *op, enum kvof_reason *reason)
{
	sim_tier.latency_ns += 100 * NS_PER_MS;
	return SIM_TIER_PASS;
}

TEST(s9_a_tier_that_becomes_slow_gives_the_prefix_that_came_by_the_deadline)
{
	struct iovec iov[8];
	struct kvof_block b[8];
	struct kvof_result r[8];
	uint64_t batch, begin_ns;

	begin(0);
	for (uint32_t i = 0; i < 8; i++) {
		b[i] = fix_block(i, &iov[i], data + i, 1000);
		expect_int(fix_one(KVOF_SAVE, i, data + i, 1000).reason, KVOF_OK);
	}
	sim_tier.hook = hook_slower;
	sim_tier.latency_ns = 0;
	for (uint32_t i = 0; i < 8; i++)
		iov[i].iov_base = back + i * 1000;
	begin_ns = sim_now_ns();
	batch = fix_submit(KVOF_LOAD, b, 8, 450 * NS_PER_MS);
	fix_wait();
	expect(sim_now_ns() < begin_ns + 451 * NS_PER_MS);
	for (uint32_t i = 0; i < 8; i++) {
		r[i] = fix_result_of(batch, i, 0);
		expect_int(r[i].reason, i < 4 ? KVOF_OK : KVOF_LATE);
		if (i < 4)
			expect_mem(iov[i].iov_base, data + i, 1000);
	}
	expect_int(prefix_leading(r, 8), 4);
	fix_end();
}

TEST(a_flash_that_hardly_answers_is_asked_after_the_array)
{
	unsigned tiers[KVOF_TIER_COUNT] = {0};
	struct kv_key key;

	begin(0);
	for (uint32_t i = 0; i < 64; i++)
		expect_int(fix_one(KVOF_SAVE, i, data, 100).reason, KVOF_OK);
	sim_tier.speed_ns = 1500 * NS_PER_MS;      /* of a deadline of 2 s */
	for (uint32_t i = 0; i < 64; i++)
		tiers[load(i, 100).tier]++;
	expect_int(tiers[KVOF_TIER_REMOTE], 62);
	expect_int(tiers[KVOF_TIER_FLASH], 2);     /* to learn how it is */
	/* what the array does not have is looked for on flash after all */
	key = fix_key(3, 0, 1);
	sim_host_find(&key)->there = false;
	expect_int(load(3, 100).tier, KVOF_TIER_FLASH);
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	fix_pass(NS_PER_S);
	expect_int(load(4, 100).tier, KVOF_TIER_FLASH);
	sim_host_state_set(HOST_LIVE, 0);
	sim_tier.speed_ns = NS_PER_MS;
	expect_int(load(5, 100).tier, KVOF_TIER_FLASH);
	fix_end();
}

/* --- moving up -------------------------------------------------------------------------------- */

/* Blocks that only the array has. */
static void put_on_array(uint32_t first, uint32_t count, size_t bytes)
{
	fix.flash = NULL;
	sim_host_reset();
	fix_begin("f16");
	expect_int(fix_open(), 0);
	for (uint32_t i = 0; i < count; i++) {
		fix_fill(data, bytes, first + i);
		expect_int(fix_one(KVOF_SAVE, first + i, data, bytes).reason, KVOF_OK);
	}
	fix_end();
}

static void begin_over(uint64_t dram_bytes, uint32_t admission, const char *policy)
{
	fix_begin("f16");
	fix.flash = sim_tier_reset(&fix.loop);
	fix.opts.dram_bytes = dram_bytes;
	fix.admission = admission;
	fix.opts.policy = policy;
	expect_int(fix_open(), 0);
}

TEST(a_block_loaded_from_the_array_moves_up_to_dram_and_to_flash)
{
	put_on_array(0, 4, THREE);
	begin_over(MiB, 0, NULL);
	for (uint32_t i = 0; i < 4; i++) {
		expect_int(load(i, THREE).tier, KVOF_TIER_REMOTE);
		fix_fill(data, THREE, i);
		expect_mem(back, data, THREE);
		expect_int(load(i, THREE).tier, KVOF_TIER_DRAM);
		expect_mem(back, data, THREE);
	}
	fix_pass(NS_PER_S);
	expect_int(sim_tier_count(), 4);
	seen();
	expect_int(stat.promoted[KVOF_TIER_DRAM], 4);
	expect_int(stat.promoted[KVOF_TIER_FLASH], 4);
	expect_int(stat.behind_written[KVOF_TIER_FLASH], 4);
	for (uint32_t i = 0; i < 4; i++) {
		struct kvof_id id = fix_id(i);

		fix_fill(data, THREE, i);
		expect_mem(sim_tier_find(&id)->at, data, THREE);
	}
	fix_end();
}

TEST(flash_takes_a_block_at_its_second_touch_where_the_options_say_so)
{
	put_on_array(0, 2, 500);
	begin_over(MiB, KVOF_ADMIT_FLASH_SECOND, NULL);
	expect_int(load(0, 500).tier, KVOF_TIER_REMOTE);
	fix_pass(NS_PER_S);
	expect_int(sim_tier_count(), 0);
	expect_int(load(0, 500).tier, KVOF_TIER_DRAM);
	fix_pass(NS_PER_S);
	expect_int(sim_tier_count(), 1);
	/* a save is a touch as well */
	fix_fill(data, 500, 7);
	expect_int(fix_one(KVOF_SAVE, 7, data, 500).reason, KVOF_OK);
	expect_int(sim_tier_count(), 1);
	expect_int(load(7, 500).reason, KVOF_OK);
	fix_pass(NS_PER_S);
	expect_int(sim_tier_count(), 2);
	seen();
	expect_int(stat.admission_refused[KVOF_TIER_FLASH], 2);
	expect_int(stat.admission_refused[KVOF_TIER_REMOTE], 0);
	fix_end();
}

TEST(arrays_take_a_block_at_its_second_touch_where_the_options_say_so)
{
	sim_host_reset();
	begin_over(MiB, KVOF_ADMIT_REMOTE_SECOND, NULL);
	expect_int(fix_one(KVOF_SAVE, 7, data, 500).tier, KVOF_TIER_FLASH);
	fix_pass(NS_PER_S);
	expect_int(sim_host_count(), 1);
	expect_int(load(7, 500).reason, KVOF_OK);
	fix_pass(NS_PER_S);
	expect_int(sim_host_count(), 2);
	fix_end();
}

/* A working set that fills DRAM is used again and again; then a scan of blocks, each loaded once,
 * from the array. */
TEST(a_scan_promotes_nothing_once_dram_is_full)
{
	put_on_array(100, 60, 4000);
	begin_over(64 * KiB, 0, NULL);
	for (uint32_t round = 0; round < 3; round++)
		for (uint32_t i = 0; i < 16; i++) {
			fix_fill(data, 4000, i);
			fix_one(round == 0 ? KVOF_SAVE : KVOF_LOAD, i, data, 4000);
		}
	seen();
	expect_int(stat.dram_blocks, 16);
	expect_int(stat.hits[KVOF_TIER_DRAM], 32);
	for (uint32_t i = 100; i < 160; i++)
		expect_int(load(i, 4000).tier, KVOF_TIER_REMOTE);
	seen();
	expect_int(stat.promoted[KVOF_TIER_DRAM], 0);
	expect_int(stat.promotion_refused[KVOF_TIER_DRAM], 60);
	for (uint32_t i = 0; i < 16; i++)
		expect_int(load(i, 4000).tier, KVOF_TIER_DRAM);
	/* what is asked for again is worth it */
	expect_int(load(159, 4000).tier, KVOF_TIER_REMOTE);
	expect_int(load(159, 4000).tier, KVOF_TIER_DRAM);
	fix_end();
}

/* A working set a little larger than DRAM, asked for from its first block to its last, again and
 * again: what was used longest ago is what comes next. */
TEST(s7_a_cyclic_scan_slightly_over_capacity_still_hits)
{
	put_on_array(0, 18, 4000);
	begin_over(64 * KiB, 0, NULL);
	for (unsigned round = 0; round < 20; round++)
		for (uint32_t i = 0; i < 18; i++)
			expect_int(load(i, 4000).reason, KVOF_OK);
	seen();
	expect_int(stat.hits[KVOF_TIER_DRAM] + stat.hits[KVOF_TIER_FLASH] +
		   stat.hits[KVOF_TIER_REMOTE], 360);
	expect(stat.hits[KVOF_TIER_DRAM] > 90);
	fix_end();
}

/* --- heads and tails in DRAM ------------------------------------------------------------------ */

static bool in_dram(uint32_t n)
{
	struct kvof_id id = fix_id(n);
	const struct tier *dram = core_tier(fix.core, KVOF_TIER_DRAM);

	return dram->ops->has(dram, &id);
}

static uint32_t holes;

/* Every sequence is there from its head on. */
static void holes_run(void)
{
	for (uint32_t sequence = 0; sequence < 30; sequence++)
		for (uint32_t i = 1; i < 8; i++)
			holes += in_dram(sequence * 8 + i) && !in_dram(sequence * 8 + i - 1);
}

TEST(s6_blocks_that_flash_serves_are_touched_on_the_array)
{
	begin(0);
	for (uint32_t i = 0; i < 4; i++)
		expect_int(fix_one(KVOF_SAVE, i, data, 500).reason, KVOF_OK);
	for (unsigned round = 0; round < 3; round++) {
		sim_host.log_count = 0;
		for (uint32_t i = 0; i < 4; i++)
			expect_int(load(i, 500).tier, KVOF_TIER_FLASH);
		fix_pass(NS_PER_S);
		seen();
		/* once a minute each, and nothing else is asked of it */
		expect_int(stat.touches, round < 2 ? 4 : 8);
		expect_int(sim_host.log_count, round == 1 ? 0 : 4);
		if (round == 1)
			fix_pass(61 * NS_PER_S);
	}
	expect_int(stat.touches_absent + stat.touches_dropped, 0);
	fix_end();
}

TEST(s6_dram_never_drops_a_head_before_its_tail)
{
	struct prng p = prng_of(3);
	unsigned evicted = 0;

	fix_begin("f16");
	fix.flash = NULL;
	fix.opts.target = NULL;
	fix.opts.dram_bytes = 256 * KiB;
	fix.opts.lease_ns = NS_PER_MS;
	expect_int(fix_open(), 0);
	for (unsigned round = 0; round < 1500; round++) {
		uint32_t sequence = (uint32_t)prng_below(&p, 1 + prng_below(&p, 30));
		uint32_t there, want = 1 + (uint32_t)prng_below(&p, 8), n[8];
		struct kvof_block b[8];
		struct iovec iov[8];

		/* as engines do: what matches is loaded, what follows is saved */
		fix.results = 0;
		for (uint32_t i = 0; i < want; i++) {
			b[i] = fix_block(sequence * 8 + i, &iov[i], data, 3000);
			n[i] = sequence * 8 + i;
		}
		there = fix_match(n, want, 0);
		if (there > 0)
			fix_submit(KVOF_LOAD, b, there, 0);
		if (there < want)
			fix_submit(KVOF_SAVE, b + there, want - there, 0);
		fix_wait();
		holes = 0;
		fix_post(NULL, 0, holes_run);
		fix_pass(2 * NS_PER_MS);   /* the leases of match end */
		expect_int(holes, 0);
	}
	seen();
	evicted = (unsigned)stat.dram_evicted;
	expect(evicted > 300);
	fix_end();
}

/* --- counters --------------------------------------------------------------------------------- */

static struct tier_op guest;
static struct iovec guest_iov;
static bool guest_prefetch, guest_done;

static void guest_over(struct tier_op *op)
{
	guest_done = true;
}

static void guest_run(void)
{
	guest_done = !core_loaded(fix.core, &guest, KVOF_TIER_REMOTE, guest_prefetch);
}

static bool guest_is_done(void *arg)
{
	return guest_done;
}

/* A load beside the batches, as restores do it: from the array, of bytes that are there already. */
static void guest_load(uint32_t n, size_t bytes, bool prefetch)
{
	guest_iov = (struct iovec){data, bytes};
	guest = (struct tier_op){.kind = KVOF_LOAD, .id = fix_id(n), .iov = &guest_iov,
				 .iov_count = 1, .bytes = bytes, .value_bytes = bytes,
				 .done = guest_over};
	guest_prefetch = prefetch;
	guest_done = false;
	fix_post(NULL, 0, guest_run);
	expect(sim_run_until(guest_is_done, NULL, NS_PER_S));
}

TEST(s18_prefetched_and_resident_hits_misses_and_errors_are_counted_apart)
{
	begin(MiB);
	fix_fill(data, THREE, 1);
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	guest_load(2, THREE, true);
	guest_load(3, THREE, true);
	expect_int(load(1, THREE).tier, KVOF_TIER_DRAM);
	expect_int(load(2, THREE).tier, KVOF_TIER_DRAM);
	expect_mem(back, data, THREE);
	expect_int(load(2, THREE).tier, KVOF_TIER_DRAM);
	expect_int(load(9, THREE).reason, KVOF_ABSENT);
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	expect_int(load(10, THREE).reason, KVOF_UNREACHABLE);
	seen();
	expect_int(stat.hits[KVOF_TIER_DRAM], 3);
	expect_int(stat.prefetched, 2);
	expect_int(stat.prefetched_hits, 1);       /* the second hit of 2 is of a resident block */
	expect_int(stat.hits[KVOF_TIER_REMOTE], 0);
	expect_int(stat.reason[KVOF_OK], 3);
	expect_int(stat.misses, 2);
	expect_int(stat.reason[KVOF_ABSENT], 1);
	expect_int(stat.reason[KVOF_UNREACHABLE], 1);
	expect_int(fix_one(KVOF_DELETE, 3, NULL, 0).reason, KVOF_UNREACHABLE);
	seen();
	expect_int(stat.prefetched_wasted, 1);
	fix_end();
}

TEST(a_load_beside_the_batches_does_not_bring_back_what_was_deleted)
{
	begin(MiB);
	fix_fill(data, 500, 1);
	expect_int(fix_one(KVOF_DELETE, 4, NULL, 0).reason, KVOF_ABSENT);
	guest_load(4, 500, false);
	expect_int(load(4, 500).reason, KVOF_ABSENT);
	expect_int(fix_one(KVOF_SAVE, 4, data, 500).reason, KVOF_OK);
	guest_load(4, 500, false);
	expect_int(load(4, 500).tier, KVOF_TIER_DRAM);
	fix_end();
}
