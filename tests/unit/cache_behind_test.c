/* SPDX-License-Identifier: Apache-2.0 */
/* Saves that are answered from DRAM and written behind it; touches that keep heads on the array. */
#include "kt.h"

#include "cache_sim_host.h"

#include "cache_core_fixture.h"
#include "cache_core_tier.h"

#include "cache/admit.h"

#define THREE (3 * FIX_CUT - 100)          /* bytes of a block of three parts */

static uint8_t data[256 * KiB], back[256 * KiB];
static struct kvof_cache_stat stat;

struct setting {
	uint64_t dram_bytes, behind_bytes;
	uint32_t behind_full;
	bool flash;
};

static void begin(const struct setting *s)
{
	sim_host_reset();
	fix_begin("f16");
	fix.flash = s->flash ? sim_tier_reset(&fix.loop) : NULL;
	fix.opts.dram_bytes = s->dram_bytes;
	fix.opts.behind_bytes = s->behind_bytes;
	fix.opts.behind_full = s->behind_full;
	fix.opts.policy = "lru";
	expect_int(fix_open(), 0);
	sim_host.log_count = 0;
	fix_fill(data, sizeof(data), 1);
}

static void begin_usual(void)
{
	begin(&(struct setting){MiB, 256 * KiB, 0, false});
}

static void seen(void)
{
	core_stat(fix.core, &stat);
}

static struct core_flush flush;
static int flush_res;
static bool flush_over;

static void flush_done(struct core_flush *f, int res)
{
	flush_res = res;
	flush_over = true;
}

static uint64_t flush_within_ns;

static void flush_run(void)
{
	uint64_t now = loop_now_ns(fix.loop);

	flush = (struct core_flush){.done = flush_done};
	if (flush_within_ns != 0)
		flush.deadline_ns = now + flush_within_ns;
	core_flush(fix.core, &flush);
}

static bool flush_is_over(void *arg)
{
	return flush_over;
}

static int flushed(uint64_t within_ns)
{
	flush_over = false;
	flush_within_ns = within_ns;
	fix_post(NULL, 0, flush_run);
	expect(sim_run_until(flush_is_over, NULL, 60 * NS_PER_S));
	return flush_res;
}

static enum sim_hook hook_hang(struct host_op *op, int *res)
{
	return SIM_HOOK_HANG;
}

static bool hang_stores;

static enum sim_hook hook_hang_stores(struct host_op *op, int *res)
{
	return op->kind == HOST_STORE && hang_stores ? SIM_HOOK_HANG : SIM_HOOK_NONE;
}

static struct kvof_result save(uint32_t n, size_t bytes)
{
	fix_fill(data, bytes, n);
	return fix_one(KVOF_SAVE, n, data, bytes);
}

static struct kvof_result load(uint32_t n, size_t bytes)
{
	kt_noise(back, sizeof(back));
	return fix_one(KVOF_LOAD, n, back, bytes);
}

static bool on_array(uint32_t n, uint32_t count)
{
	struct kv_key head = fix_key(n, 0, 1);

	for (uint32_t i = 0; count > 1 && i < count; i++) {
		struct kv_key key = fix_key(n, i, count);

		if (sim_host_find(&key) == NULL)
			return false;
	}
	return sim_host_find(&head) != NULL;
}

/* --- saves ------------------------------------------------------------------------------------ */

TEST(a_save_is_answered_from_dram_and_written_behind_it)
{
	begin(&(struct setting){MiB, 256 * KiB, 0, true});
	sim_host.latency_ns = 50 * NS_PER_MS;
	expect_int(save(1, THREE).tier, KVOF_TIER_DRAM);
	expect(!on_array(1, 3));
	expect_int(load(1, THREE).tier, KVOF_TIER_DRAM);
	seen();
	expect_int(stat.behind_blocks, 1);
	expect_int(stat.behind_bytes, THREE);
	expect(stat.dram_pinned_bytes >= THREE);
	expect_int(flushed(0), 0);
	expect(on_array(1, 3));
	expect_int(sim_tier_count(), 1);
	seen();
	expect_int(stat.behind_blocks, 0);
	expect_int(stat.dram_pinned_bytes, 0);
	expect_int(stat.behind_written[KVOF_TIER_REMOTE], 1);
	expect_int(stat.behind_written[KVOF_TIER_FLASH], 1);
	expect_int(fix.stored[KVOF_TIER_REMOTE], 1);
	fix_end();
	/* and the bytes are the right ones: another process loads them */
	fix_begin("f16");
	expect_int(fix_open(), 0);
	expect_int(load(1, THREE).tier, KVOF_TIER_REMOTE);
	fix_fill(data, THREE, 1);
	expect_mem(back, data, THREE);
	fix_end();
}

TEST(a_save_that_waits_for_all_is_answered_by_the_array_all_the_same)
{
	begin_usual();
	fix.flags = KVOF_WAIT_ALL;
	expect_int(save(1, THREE).tier, KVOF_TIER_REMOTE);
	fix.flags = 0;
	expect(on_array(1, 3));
	/* one that waits for a write of its own block behind it ends well too */
	sim_host.latency_ns = 20 * NS_PER_MS;
	expect_int(save(2, 500).tier, KVOF_TIER_DRAM);
	fix.flags = KVOF_WAIT_ALL;
	expect_int(save(2, 500).reason, KVOF_EXISTS);
	fix.flags = 0;
	fix_end();
}

TEST(the_tail_of_a_sequence_is_written_before_its_head)
{
	struct kvof_block b[32];
	struct iovec iov[32];
	unsigned at = 0;

	begin(&(struct setting){MiB, 512 * KiB, 0, true});
	for (uint32_t i = 0; i < 32; i++)
		b[i] = fix_block(i, &iov[i], data + i, 2000);
	fix_submit(KVOF_SAVE, b, 32, 0);
	fix_wait();
	expect_int(flushed(0), 0);
	for (unsigned i = 0; i < sim_host.log_count; i++) {
		struct kv_key key = fix_key(31 - at, 0, 1);

		if (sim_host.log_kind[i] != HOST_STORE)
			continue;
		expect(kv_key_equal(&sim_host.log_key[i], &key));
		at++;
	}
	expect_int(at, 32);
	expect_int(sim_tier.log_count, 32);
	for (uint32_t i = 0; i < 32; i++) {
		struct kvof_id id = fix_id(31 - i);

		expect_mem(&sim_tier.log[i].id, &id, sizeof(id));
	}
	fix_end();
}

static void save_some(uint32_t first, uint32_t count)
{
	static struct iovec iov[64];
	struct kvof_block b[64];

	expect(count <= ARRAY_COUNT(b));
	for (uint32_t i = 0; i < count; i++)
		b[i] = fix_block(first + i, &iov[i], data + i, 2000);
	fix_submit(KVOF_SAVE, b, count, 0);
	fix_wait();
}

static struct kvof_id looked[64];
static struct core_look look;

static void look_run(void)
{
	core_look(fix.core, &look);
	look.ids = NULL;
}

static bool look_is_over(void *arg)
{
	return look.ids == NULL;
}

/* What a match begins with: blocks [first, first + count) are a sequence. */
static void look_at(uint32_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		looked[i] = fix_id(first + i);
	look = (struct core_look){.ids = looked, .count = count};
	fix_post(NULL, 0, look_run);
	expect(sim_run_until(look_is_over, NULL, NS_PER_S));
}

/* Which of the array's stores a block was. */
static unsigned stored_at(uint32_t n)
{
	struct kv_key key = fix_key(n, 0, 1);

	for (unsigned i = 0; i < sim_host.log_count; i++)
		if (sim_host.log_kind[i] == HOST_STORE && kv_key_equal(&sim_host.log_key[i], &key))
			return i;
	fail_msg("%u was not stored", n);
	return 0;
}

/* One sequence in several calls, as engines save it: a match told what follows what. Others that
 * wait behind it are overtaken, but keep their order. */
TEST(a_later_part_of_a_sequence_goes_before_a_head_that_still_waits)
{
	begin_usual();
	sim_host.latency_ns = 20 * NS_PER_MS;
	look_at(0, 40);
	expect_int(look.leading, 0);
	save_some(1000, BEHIND_WRITERS);   /* what the array is busy with */
	save_some(0, 16);
	save_some(2000, 4);
	save_some(16, 16);
	save_some(32, 8);
	expect_int(flushed(0), 0);
	for (uint32_t i = 1; i < 40; i++)
		expect(stored_at(i) < stored_at(i - 1));
	for (uint32_t i = 1; i < 4; i++)
		expect(stored_at(2000 + i) < stored_at(2000 + i - 1));
	expect(stored_at(0) < stored_at(2003));
	fix_end();
}

/* A sequence that grows as fast as the array takes it holds nothing up for longer than the bound:
 * what was pushed at 0 is stored soon after BEHIND_AGE_NS, though its lane never runs empty. */
TEST(a_sequence_that_grows_and_grows_does_not_starve_what_waits_behind_its_head)
{
	uint64_t begin_ns, most = 0;
	uint32_t next = 1;

	begin_usual();
	sim_host.latency_ns = 100 * NS_PER_MS;     /* 8 blocks in 100 ms */
	save_some(1000, BEHIND_WRITERS);
	save_some(0, 1);
	begin_ns = sim_now_ns();
	save_some(2000, 1);
	while (!on_array(2000, 1)) {
		for (unsigned i = 0; i < BEHIND_WRITERS; i++, next++) {
			look_at(next - 1, 2);
			save_some(next, 1);
		}
		fix_pass(100 * NS_PER_MS);
		most = sim_now_ns() - begin_ns;
		if (most > 10 * NS_PER_S)
			fail_msg("starved");
	}
	expect(most <= BEHIND_AGE_NS + NS_PER_S);
	expect_int(flushed(0), 0);
	for (uint32_t i = 0; i < next; i++)
		expect(on_array(i, 1));
	fix_end();
}

TEST(several_blocks_are_in_flight_and_never_more_than_the_limit)
{
	struct kvof_block b[40];
	struct iovec iov[40];

	begin_usual();
	for (uint32_t i = 0; i < 40; i++)
		b[i] = fix_block(i, &iov[i], data + i, 2000);
	sim_host.flying_max = 0;
	fix_submit(KVOF_SAVE, b, 40, 0);
	fix_wait();
	expect_int(flushed(0), 0);
	expect_int(sim_host.flying_max, BEHIND_WRITERS);
	fix_end();
}

TEST(a_block_that_waits_to_be_written_is_not_evicted)
{
	begin(&(struct setting){64 * KiB, 64 * KiB, 0, false});
	hang_stores = true;
	sim_host.hook = hook_hang_stores;
	expect_int(save(1, 16 * KiB).tier, KVOF_TIER_DRAM);
	fix.flags = KVOF_SKIP_WRITE;
	for (uint32_t i = 10; i < 20; i++)
		expect_int(save(i, 16 * KiB).tier, KVOF_TIER_DRAM);
	fix.flags = 0;
	expect_int(load(1, 16 * KiB).tier, KVOF_TIER_DRAM);
	expect_int(load(10, 16 * KiB).reason, KVOF_ABSENT);
	hang_stores = false;
	expect_int(flushed(0), 0);
	seen();
	expect_int(stat.behind_dropped[KVOF_TIER_REMOTE], 1);      /* late */
	fix.flags = KVOF_SKIP_WRITE;
	for (uint32_t i = 10; i < 20; i++)
		expect_int(save(i, 16 * KiB).reason, KVOF_OK);
	fix.flags = 0;
	expect_int(load(1, 16 * KiB).reason, KVOF_ABSENT);
	fix_end();
}

TEST(a_full_queue_answers_when_the_block_is_written)
{
	begin(&(struct setting){MiB, 64 * KiB, 0, false});
	sim_host.latency_ns = 10 * NS_PER_MS;
	for (uint32_t i = 0; i < 4; i++)
		expect_int(save(i, 16 * KiB).tier, KVOF_TIER_DRAM);
	expect_int(save(4, 16 * KiB).tier, KVOF_TIER_REMOTE);
	seen();
	expect_int(stat.behind_full, 1);
	expect(stat.behind_bytes <= 64 * KiB);
	expect_int(flushed(0), 0);
	for (uint32_t i = 0; i < 5; i++)
		expect(on_array(i, frame_part_count(16 * KiB, FIX_CUT)));
	fix_end();
}

TEST(a_full_queue_drops_and_counts_where_the_options_say_so)
{
	begin(&(struct setting){MiB, 64 * KiB, 1, false});
	sim_host.latency_ns = 10 * NS_PER_MS;
	for (uint32_t i = 0; i < 6; i++)
		expect_int(save(i, 16 * KiB).tier, KVOF_TIER_DRAM);
	seen();
	expect_int(stat.behind_full, 2);
	expect_int(stat.behind_dropped[KVOF_TIER_REMOTE], 2);
	expect_int(flushed(0), 0);
	expect(!on_array(5, frame_part_count(16 * KiB, FIX_CUT)));
	expect_int(load(5, 16 * KiB).tier, KVOF_TIER_DRAM);
	/* its use brings it down after all */
	expect_int(flushed(0), 0);
	expect(on_array(5, frame_part_count(16 * KiB, FIX_CUT)));
	fix_end();
}

TEST(an_array_that_is_away_costs_the_writes_in_hand_and_holds_nothing_up)
{
	uint64_t begin_ns;

	begin(&(struct setting){MiB, 512 * KiB, 0, true});
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	begin_ns = sim_now_ns();
	for (uint32_t i = 0; i < 30; i++)
		expect_int(save(i, 8 * KiB).tier, KVOF_TIER_DRAM);
	expect_int(flushed(0), 0);
	expect(sim_now_ns() < begin_ns + 50 * NS_PER_MS);
	seen();
	expect_int(stat.behind_dropped[KVOF_TIER_REMOTE], 30);
	expect_int(stat.behind_written[KVOF_TIER_FLASH], 30);
	expect_int(stat.behind_full, 0);
	sim_host_state_set(HOST_LIVE, 0);
	expect_int(save(30, 500).tier, KVOF_TIER_DRAM);
	expect_int(flushed(0), 0);
	expect(on_array(30, 1));
	/* what was dropped goes down when it is used */
	expect_int(load(3, 8 * KiB).tier, KVOF_TIER_DRAM);
	expect_int(flushed(0), 0);
	expect(on_array(3, frame_part_count(8 * KiB, FIX_CUT)));
	fix_end();
}

TEST(an_array_that_hangs_makes_its_lane_sick_until_it_answers_again)
{
	begin(&(struct setting){MiB, 512 * KiB, 0, true});
	hang_stores = true;
	sim_host.hook = hook_hang_stores;
	for (uint32_t i = 0; i < 20; i++)
		expect_int(save(i, 8 * KiB).tier, KVOF_TIER_DRAM);
	expect_int(flushed(0), 0);
	seen();
	expect_int(stat.behind_dropped[KVOF_TIER_REMOTE], 20);
	expect_int(stat.behind_written[KVOF_TIER_FLASH], 20);
	/* sick: nothing waits for it but one that tries */
	for (uint32_t i = 20; i < 40; i++)
		expect_int(save(i, 500).tier, KVOF_TIER_DRAM);
	fix_pass(10 * NS_PER_MS);
	seen();
	expect(stat.behind_blocks <= 1);
	hang_stores = false;
	fix_pass(5 * NS_PER_S);
	expect_int(save(50, 500).tier, KVOF_TIER_DRAM);
	expect_int(flushed(0), 0);
	expect(on_array(50, 1));
	for (uint32_t i = 60; i < 80; i++)
		expect_int(save(i, 500).tier, KVOF_TIER_DRAM);
	expect_int(flushed(0), 0);
	for (uint32_t i = 60; i < 80; i++)
		expect(on_array(i, 1));
	fix_end();
}

static bool three_are_in(void *arg)
{
	return sim_host.log_count >= 3;
}

TEST(nothing_of_a_block_is_seen_before_all_of_it_is_there)
{
	struct iovec iov;
	struct kvof_block b;
	uint64_t batch;

	begin_usual();
	/* in DRAM: a save that is taken back while it is copied, part by part */
	fix_fill(data, 100 * KiB, 5);
	b = fix_block(1, &iov, data, 100 * KiB);
	batch = fix_submit(KVOF_SAVE, &b, 1, 0);
	fix_post(NULL, batch, NULL);
	fix_wait();
	expect_int(fix_result_of(batch, 0, 0).reason, KVOF_CANCELED);
	expect_int(load(1, 100 * KiB).reason, KVOF_ABSENT);
	expect_int(fix_match((uint32_t[]){1}, 1, 0), 0);
	seen();
	expect_int(stat.dram_used_bytes, 0);
	expect_int(fix.stored[KVOF_TIER_DRAM], 0);
	/* on the array: its parts are there and its head is not */
	sim_host.latency_ns = 10 * NS_PER_MS;
	sim_host.log_count = 0;
	expect_int(save(2, THREE).tier, KVOF_TIER_DRAM);
	expect(sim_run_until(three_are_in, NULL, NS_PER_S));
	expect(!on_array(2, 3));
	expect_int(flushed(0), 0);
	expect(on_array(2, 3));
	fix_end();
}

TEST(a_delete_overtakes_what_waits_and_waits_for_what_flies)
{
	struct kvof_block b[20];
	struct iovec iov[20];

	begin_usual();
	sim_host.latency_ns = 20 * NS_PER_MS;
	for (uint32_t i = 0; i < 20; i++)
		b[i] = fix_block(i, &iov[i], data + i, 2000);
	fix_submit(KVOF_SAVE, b, 20, 0);
	fix_wait();
	for (uint32_t i = 0; i < 20; i++)
		b[i] = (struct kvof_block){.id = b[i].id};
	fix_submit(KVOF_DELETE, b, 20, 0);
	fix_wait();
	expect_int(flushed(0), 0);
	for (uint32_t i = 0; i < 20; i++) {
		expect(!on_array(i, 1));
		expect_int(load(i, 2000).reason, KVOF_ABSENT);
	}
	seen();
	expect_int(stat.dram_used_bytes, 0);
	expect_int(stat.behind_bytes, 0);
	fix_end();
}

TEST(a_flush_ends_by_its_deadline_and_at_once_when_nothing_waits)
{
	uint64_t begin_ns;

	begin_usual();
	expect_int(flushed(NS_PER_S), 0);
	sim_host.hook = hook_hang;
	expect_int(save(1, 500).tier, KVOF_TIER_DRAM);
	begin_ns = sim_now_ns();
	expect_int(flushed(100 * NS_PER_MS), -ETIMEDOUT);
	expect(sim_now_ns() < begin_ns + 101 * NS_PER_MS);
	sim_host.hook = NULL;
	expect_int(flushed(0), 0);
	fix_end();
}

TEST(a_flush_waits_for_a_save_that_is_not_answered_yet)
{
	struct iovec iov;
	struct kvof_block b;

	begin_usual();
	b = fix_block(1, &iov, data, 100 * KiB);
	fix_submit(KVOF_SAVE, &b, 1, 0);
	expect_int(flushed(0), 0);
	expect(fix_all_over(NULL));
	expect(on_array(1, frame_part_count(100 * KiB, FIX_CUT)));
	fix_end();
}

TEST(close_writes_what_waits_for_a_quarter_of_a_second_and_no_longer)
{
	struct kvof_block b[30];
	struct iovec iov[30];
	uint64_t begin_ns;

	begin_usual();
	sim_host.latency_ns = 10 * NS_PER_MS;
	for (uint32_t i = 0; i < 30; i++)
		b[i] = fix_block(i, &iov[i], data + i, 2000);
	fix_submit(KVOF_SAVE, b, 30, 0);
	fix_wait();
	fix_close_core();
	for (uint32_t i = 0; i < 30; i++)
		expect(on_array(i, 1));
	fix_end();
	begin_usual();
	sim_host.hook = hook_hang;
	sim_host.busy_ns = 50 * NS_PER_MS;
	expect_int(save(1, THREE).tier, KVOF_TIER_DRAM);
	begin_ns = sim_now_ns();
	fix_close_core();
	expect(sim_now_ns() >= begin_ns + 250 * NS_PER_MS);
	expect(sim_now_ns() < begin_ns + 400 * NS_PER_MS);
	sim_host.busy_ns = 0;
	fix_end();
}

/* --- heads on the array ----------------------------------------------------------------------- */

/* The array keeps so many values, those that were used last; use is what reaches it. */
static unsigned array_values;
static struct { struct kv_key key; uint64_t at; } array_use[SIM_HOST_VALUES];
static unsigned array_uses;
static uint64_t array_clock;

static void array_touch(const struct kv_key *key)
{
	for (unsigned i = 0; i < array_uses; i++) {
		if (!kv_key_equal(&array_use[i].key, key))
			continue;
		array_use[i].at = ++array_clock;
		return;
	}
	must(array_uses < SIM_HOST_VALUES);
	array_use[array_uses].key = *key;
	array_use[array_uses++].at = ++array_clock;
}

static void array_evict(void)
{
	while (sim_host_count() > array_values) {
		struct sim_value *v;
		unsigned oldest = 0;

		for (unsigned i = 1; i < array_uses; i++)
			if (array_use[i].at < array_use[oldest].at)
				oldest = i;
		v = sim_host_find(&array_use[oldest].key);
		array_use[oldest] = array_use[--array_uses];
		if (v != NULL)
			v->there = false;
	}
}

static enum sim_hook hook_array(struct host_op *op, int *res)
{
	if (op->kind == HOST_STORE || sim_host_find(&op->key) != NULL)
		array_touch(&op->key);
	array_evict();
	return SIM_HOOK_NONE;
}

/* Other hosts store. */
static void pressure(unsigned values, uint64_t *seed)
{
	for (unsigned i = 0; i < values; i++) {
		struct kv_key key = {.len = KV_KEY_BYTES_MAX};

		memcpy(key.byte, seed, sizeof(*seed));
		(*seed)++;
		sim_host_put(&key, "x", 1);
		array_touch(&key);
		array_evict();
	}
}

static unsigned leading(uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (!on_array(i, 1))
			return i;
	return count;
}

TEST(s6_the_array_keeps_the_head_of_a_session_that_is_served_from_dram)
{
	static struct iovec iov[64];
	static struct kvof_block b[64];
	uint64_t seed = UINT64_C(0x1234567800000000);

	begin_usual();
	array_values = 200;
	array_uses = 0;
	array_touch(&sim_host.value[0].key);       /* the domain list */
	sim_host.hook = hook_array;
	for (uint32_t turn = 8; turn <= 40; turn += 4) {
		/* the next turn: all before it comes from DRAM, its own blocks are new */
		for (uint32_t i = 0; i < turn; i++)
			b[i] = fix_block(i, &iov[i], i < turn - 4 ? back : data + i, 1000);
		if (turn > 8) {
			uint64_t batch = fix_submit(KVOF_LOAD, b, turn - 4, 0);

			fix_wait();
			for (uint32_t i = 0; i < turn - 4; i++)
				expect_int(fix_result_of(batch, i, 0).tier, KVOF_TIER_DRAM);
			fix_submit(KVOF_SAVE, b + turn - 4, 4, 0);
		} else {
			for (uint32_t i = 0; i < turn; i++)
				b[i] = fix_block(i, &iov[i], data + i, 1000);
			fix_submit(KVOF_SAVE, b, turn, 0);
		}
		fix_wait();
		expect_int(flushed(0), 0);
		fix_pass(61 * NS_PER_S);
		pressure(130, &seed);
		for (uint32_t i = 0; i < turn; i++)
			if (on_array(i, 1))
				expect(leading(turn) > 0);
		expect_int(leading(turn), turn);
	}
	seen();
	expect(stat.touches > 100);
	fix_end();
	/* another host finds all of it */
	fix_begin("f16");
	expect_int(fix_open(), 0);
	for (uint32_t i = 0; i < 40; i++)
		expect_int(load(i, 1000).reason, KVOF_OK);
	sim_host.hook = NULL;
	fix_end();
}

TEST(s6_a_head_that_the_array_lost_is_written_again_while_dram_has_it)
{
	begin_usual();
	for (uint32_t i = 0; i < 4; i++)
		expect_int(save(i, 1000).tier, KVOF_TIER_DRAM);
	expect_int(flushed(0), 0);
	for (uint32_t i = 0; i < 2; i++) {
		struct kv_key key = fix_key(i, 0, 1);

		sim_host_find(&key)->there = false;
	}
	expect_int(leading(4), 0);
	for (uint32_t i = 0; i < 4; i++)
		expect_int(load(i, 1000).tier, KVOF_TIER_DRAM);
	fix_pass(NS_PER_S);
	expect_int(leading(4), 4);
	seen();
	expect_int(stat.touches, 4);
	expect_int(stat.touches_absent, 2);
	fix_end();
}

TEST(a_block_is_touched_at_most_once_a_minute_and_not_at_all_when_the_array_is_away)
{
	begin_usual();
	for (uint32_t i = 0; i < 4; i++)
		expect_int(save(i, 1000).tier, KVOF_TIER_DRAM);
	expect_int(flushed(0), 0);
	for (unsigned round = 0; round < 5; round++) {
		for (uint32_t i = 0; i < 4; i++)
			expect_int(load(i, 1000).tier, KVOF_TIER_DRAM);
		fix_pass(10 * NS_PER_S);
	}
	seen();
	expect_int(stat.touches, 4);
	fix_pass(20 * NS_PER_S);
	for (uint32_t i = 0; i < 4; i++)
		expect_int(load(i, 1000).tier, KVOF_TIER_DRAM);
	fix_pass(NS_PER_S);
	seen();
	expect_int(stat.touches, 8);
	fix_pass(61 * NS_PER_S);
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	for (unsigned round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < 4; i++)
			expect_int(load(i, 1000).tier, KVOF_TIER_DRAM);
		fix_pass(NS_PER_S);
	}
	seen();
	expect(stat.touches + stat.touches_dropped <= 12);
	fix_end();
}

/* --- admission -------------------------------------------------------------------------------- */

static struct kvof_id any_id(uint64_t n)
{
	struct kvof_id id;

	hash_sha256_once(&n, sizeof(n), id.byte);
	return id;
}

TEST(the_sketch_remembers_a_touch_long_enough_and_forgets_it_in_the_end)
{
	struct admit *a;
	unsigned wrong = 0, kept = 0;

	expect_int(admit_open(4096, &a), 0);
	for (uint64_t i = 0; i < 100000; i++) {
		struct kvof_id id = any_id(i);

		wrong += admit_touch(a, &id);
		if (i >= 4000) {
			id = any_id(i - 4000);     /* touched 4000 to 8000 touches ago */
			if (i % 500 == 0)
				expect(admit_touch(a, &id));
		}
		if (i >= 20000 && i % 500 == 250) {
			id = any_id(i - 20000);
			kept += admit_touch(a, &id);
		}
	}
	expect(wrong < 1000);
	expect(kept < 10);
	admit_close(&a);
	expect_int(admit_open(1, &a), -EINVAL);
}

/* --- everything at once ----------------------------------------------------------------------- */

static struct prng mix;

static enum sim_hook hook_mix(struct host_op *op, int *res)
{
	static const int answer[] = {-ENOSPC, -EIO, -EBADMSG, -ECONNRESET, -ENOENT};

	if (prng_chance(&mix, 30000)) {
		*res = answer[prng_below(&mix, ARRAY_COUNT(answer))];
		return SIM_HOOK_ANSWER;
	}
	return prng_chance(&mix, 20000) ? SIM_HOOK_HANG : SIM_HOOK_NONE;
}

static enum sim_tier_hook hook_flash(struct tier_op *op, enum kvof_reason *reason)
{
	static const enum kvof_reason say[] = {KVOF_ABSENT, KVOF_CORRUPT, KVOF_UNREACHABLE,
					       KVOF_IDENTITY, KVOF_ERROR};

	if (op->kind == KVOF_LOAD && prng_chance(&mix, 50000)) {
		*reason = say[prng_below(&mix, ARRAY_COUNT(say))];
		return SIM_TIER_ANSWER;
	}
	return prng_chance(&mix, 10000) ? SIM_TIER_HANG : SIM_TIER_PASS;
}

/* Blocks of one identity are the same for ever, so a hit has one right answer. */
TEST(s15_random_work_over_three_faulty_tiers_is_right_or_a_miss_and_leaves_nothing_behind)
{
	unsigned hits[KVOF_TIER_COUNT] = {0};

	begin(&(struct setting){128 * KiB, 64 * KiB, 0, true});
	mix = prng_of(9);
	sim_host.hook = hook_mix;
	sim_tier.hook = hook_flash;
	sim_host.busy_ns = NS_PER_MS;
	for (unsigned i = 0; i < 8000; i++) {
		uint32_t n = (uint32_t)prng_below(&mix, 40);
		size_t bytes = n * 1501 % 30000;
		struct kvof_result r;

		fix_fill(data, bytes, n);
		fix.results = 0;
		switch (prng_below(&mix, 6)) {
		case 0:
			fix_one(KVOF_DELETE, n, NULL, 0);
			break;
		case 1:
		case 2:
			fix_one(KVOF_SAVE, n, data, bytes);
			break;
		default:
			kt_noise(back, bytes);
			r = fix_one(KVOF_LOAD, n, back, bytes);
			if (r.reason == KVOF_OK)
				expect_mem(back, data, bytes);
			hits[r.tier]++;
			expect(r.reason != KVOF_CANCELED);
		}
	}
	for (enum kvof_tier t = KVOF_TIER_DRAM; t < KVOF_TIER_COUNT; t++)
		expect(hits[t] > 50);
	sim_host.hook = NULL;
	sim_tier.hook = NULL;
	expect_int(flushed(0), 0);
	fix_pass(10 * NS_PER_S);
	seen();
	expect_int(stat.behind_blocks, 0);
	expect_int(stat.behind_bytes, 0);
	expect_int(stat.dram_pinned_bytes, 0);
	expect_int(sim_host.flying, 0);
	expect_int(sim_tier.flying, 0);
	fix_end();
}
