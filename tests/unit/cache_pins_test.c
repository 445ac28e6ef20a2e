/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins below DRAM, over a real store on a drive of the simulator: scans of several times the flash,
 * the bound, unpinning, a restart; and an array that is asked about pinned blocks.
 */
#include "kt.h"

#include "cache_sim_host.h"

#include "cache_core_fixture.h"

#define BYTES (2 * FIX_CUT + 100)          /* three parts and a head */
#define FLASH (16 * MiB)
#define LIES (24 * KiB)                    /* so much of flash takes one */
#define ROOM ((uint32_t)(FLASH / LIES))

static uint8_t data[BYTES], back[BYTES];
static struct kvof_cache_stat stat;
static const char *flash_list[1] = {"f0,size=16MiB"};
static uint32_t scanned = 100000;

static void up(uint64_t dram_bytes, bool array)
{
	uint64_t begun = fix.next_id;

	fix = (struct fix){.next_id = begun + 1, .opts = fix.opts};
	fix.opts.dram_bytes = dram_bytes;
	fix.opts.behind_bytes = dram_bytes / 4;
	fix.opts.flash = flash_list;
	fix.opts.flash_count = 1;
	if (!array)
		fix.opts.target = NULL;
	expect_int(fix_open(), 0);
}

static void down(void)
{
	fix_close_core();
	loop_close(&fix.loop);
	identity_free(&fix.identity);
}

static void begin(uint64_t dram_bytes, bool array)
{
	sim_host_reset();
	fix_begin("f16");
	up(dram_bytes, array);
}

static struct {
	struct kvof_id id[2048];
	uint32_t count;
	bool on, done;
	int res;
} call;

static void pin_run(void)
{
	call.res = core_pin(fix.core, call.id, call.count, call.on);
	call.done = true;
}

static bool call_is_done(void *arg)
{
	return call.done;
}

static int pin(uint32_t first, uint32_t count, bool on)
{
	expect(count <= ARRAY_COUNT(call.id));
	for (uint32_t i = 0; i < count; i++)
		call.id[i] = fix_id(first + i);
	call.count = count;
	call.on = on;
	call.done = false;
	fix_post(NULL, 0, pin_run);
	expect(sim_run_until(call_is_done, NULL, 60 * NS_PER_S));
	return call.res;
}

static void seen(void)
{
	core_stat(fix.core, &stat);
}

static void save(uint32_t n)
{
	struct kvof_result r;

	fix_fill(data, BYTES, n);
	fix.results = 0;
	fix.flags = KVOF_WAIT_ALL;
	r = fix_one(KVOF_SAVE, n, data, BYTES);
	fix.flags = 0;
	expect(r.reason == KVOF_OK || r.reason == KVOF_EXISTS);
}

static void scan(unsigned laps)
{
	for (uint32_t i = 0; i < laps * ROOM; i++)
		save(scanned++);
}

static struct kvof_result load(uint32_t n)
{
	struct kvof_result r;

	kt_noise(back, BYTES);
	r = fix_one(KVOF_LOAD, n, back, BYTES);
	if (r.reason == KVOF_OK) {
		fix_fill(data, BYTES, n);
		expect_mem(back, data, BYTES);
	}
	return r;
}

static uint32_t hits(uint32_t first, uint32_t count)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < count; i++)
		n += load(first + i).reason == KVOF_OK;
	return n;
}

/* DRAM is not there at all: what is a hit is so by flash. Half is pinned before it is saved. */
TEST(a_scan_of_several_times_the_flash_does_not_evict_what_is_pinned)
{
	begin(0, false);
	expect_int(pin(0, 20, true), 0);
	for (uint32_t i = 0; i < 40; i++) {
		save(i);
		for (unsigned k = 0; k < 5; k++)
			save(scanned++);
	}
	expect_int(pin(20, 20, true), 0);
	scan(4);
	expect_int(hits(0, 40), 40);
	seen();
	expect(stat.pinned_flash_bytes == 40 * LIES);
	expect_int(stat.pins_refused + stat.pins_lost, 0);
	/* the second pin keeps it when the first goes */
	expect_int(pin(5, 1, true), 0);
	expect_int(pin(0, 40, false), 0);
	scan(4);
	expect_int(load(5).reason, KVOF_OK);
	expect_int(hits(0, 40), 1);
	expect_int(pin(5, 1, false), 0);
	seen();
	expect_int(stat.pinned_flash_bytes, 0);
	fix_end();
}

TEST(what_a_small_dram_gives_up_is_pinned_on_flash_all_the_same)
{
	begin(256 * KiB, false);
	expect_int(pin(0, 8, true), 0);
	for (uint32_t i = 0; i < 8; i++)
		save(i);
	scan(2);
	expect_int(hits(0, 8), 8);
	seen();
	expect(stat.pinned_flash_bytes == 8 * LIES);
	fix_end();
}

TEST(pins_beyond_half_of_the_flash_are_counted_and_the_others_hold)
{
	uint32_t there;

	begin(0, false);
	expect_int(pin(0, ROOM, true), 0);
	for (uint32_t i = 0; i < ROOM; i++)
		save(i);
	seen();
	expect(stat.pins_refused > 0);
	expect(stat.pinned_flash_bytes > FLASH / 4 && stat.pinned_flash_bytes <= FLASH / 2);
	there = (uint32_t)(stat.pinned_flash_bytes / LIES);
	scan(3);
	seen();
	expect_int(stat.pins_lost, 0);
	expect_int(hits(0, there), there);
	expect(hits(there, ROOM - there) < 10);
	fix_end();
}

/* A pin is the process's: the next one finds the blocks, and pins them anew. */
TEST(after_a_restart_what_was_pinned_is_there_and_is_pinned_when_it_is_pinned_again)
{
	begin(0, false);
	expect_int(pin(0, 10, true), 0);
	for (uint32_t i = 0; i < 20; i++)
		save(i);
	scan(2);
	down();
	up(0, false);
	seen();
	expect_int(stat.pinned_flash_bytes, 0);
	expect_int(pin(0, 10, true), 0);
	fix_pass(NS_PER_S);                /* flash is asked how they lie */
	seen();
	expect(stat.pinned_flash_bytes == 10 * LIES);
	scan(3);
	expect_int(hits(0, 10), 10);
	fix_end();
}

TEST(an_array_is_asked_about_pinned_blocks_each_minute_and_gets_again_what_it_lost)
{
	begin(MiB, true);
	expect_int(pin(0, 4, true), 0);
	for (uint32_t i = 0; i < 6; i++)
		save(i);
	fix_pass(300 * NS_PER_S);
	seen();
	expect(stat.touches >= 4 * 3 && stat.touches <= 4 * 6);
	for (uint32_t i = 0; i < 2; i++) {
		struct kv_key key = fix_key(i, 0, 1);

		sim_host_find(&key)->there = false;
	}
	fix_pass(120 * NS_PER_S);
	for (uint32_t i = 0; i < 2; i++) {
		struct kv_key key = fix_key(i, 0, 1);

		expect(sim_host_find(&key) != NULL && sim_host_find(&key)->there);
	}
	expect_int(pin(0, 4, false), 0);
	seen();
	expect(stat.touches_absent >= 2);
	fix_pass(120 * NS_PER_S);
	seen();
	expect(stat.touches <= 4 * 9);
	fix_end();
}
