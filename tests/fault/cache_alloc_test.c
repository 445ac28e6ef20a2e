/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory runs out at the n-th request for it, n = 1, 2, ..., while the flash tier opens: the open
 * says so, holds nothing, and the next one works; an open tier asks for no more. The tier and its
 * store are built with an allocator that can refuse.
 */
#include "store_alloc.h"

#include "cache_tier_fixture.h"

#include "cache/flash.h"

#define PART (4032 + FRAME_BYTES)

static const char *paths[2] = {"f0,size=16MiB", "f1,size=16MiB"};
static char why[256];
static uint8_t data[64 * KiB], back[64 * KiB];

static int flash_up(void)
{
	struct flash_opts opts = {.path = paths, .path_count = 2, .part_bytes = PART};

	return flash_open(tf_loop, &opts, why, &tf_tier);
}

static void begin(void)
{
	struct sim_opts sim = {.seed = 1};
	struct loop_opts loop = {.name = "cache", .ops_max = 16384};

	fail_at = 0;
	expect_int(sim_begin(&sim), 0);
	expect_int(loop_open(&loop, &tf_loop), 0);
}

static void flash_down(void)
{
	unsigned want = 1;

	tf_ends = 0;
	flash_close(&tf_tier, tf_end_one, NULL);
	expect(sim_run_until(tf_has_ended, &want, 60 * NS_PER_S));
}

TEST(flash_without_memory_is_refused_whole_at_every_request_for_it)
{
	for (unsigned made = 0; made < 2; made++) {
		unsigned long n = 1;

		for (;; n++) {
			int rc;

			begin();
			if (made == 1) {
				expect_int(flash_up(), 0);
				expect_int(tf_one(KVOF_SAVE, 1, data, 10000), KVOF_OK);
				flash_down();
			}
			fail_at = n;
			asked = 0;
			rc = flash_up();
			fail_at = 0;
			if (rc == 0)
				break;
			expect_int(rc, -ENOMEM);
			expect_int(flash_up(), 0);     /* nothing holds the drives */
			expect_int(tf_one(KVOF_LOAD, 1, back, 10000),
				   made == 1 ? KVOF_OK : KVOF_ABSENT);
			flash_down();
			loop_close(&tf_loop);
			sim_end();
		}
		flash_down();
		loop_close(&tf_loop);
		sim_end();
		printf("# %lu requests\n", n - 1);
		expect(n > 20);
	}
}

TEST(open_flash_asks_for_no_memory)
{
	unsigned long before;

	begin();
	expect_int(flash_up(), 0);
	before = asked;
	for (uint32_t n = 0; n < 200; n++) {
		tf_fill(data, 20000, n);
		expect_int(tf_one(KVOF_SAVE, n, data, 20000), KVOF_OK);
		expect_int(tf_one(KVOF_LOAD, n, back, 20000), KVOF_OK);
		expect_mem(back, data, 20000);
		expect_int(tf_one(KVOF_EXISTS_OP, n, NULL, 0), KVOF_OK);
		if (n % 3 == 0)
			expect_int(tf_one(KVOF_DELETE, n, NULL, 0), KVOF_OK);
	}
	expect_int(asked, before);
	flash_down();
	loop_close(&tf_loop);
	sim_end();
}
