/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory runs out at the n-th request for it, n = 1, 2, ..., while a cache of three tiers opens: it
 * says so and holds nothing, or it works. Every file of the cache is built with an allocator that
 * can refuse.
 */
#include "kt.h"

#include "cache_sim_host.h"

#include "cache_core_fixture.h"
#include "store_alloc.h"

static bool hit;

static void open_refused_run(void)
{
	asked = 0;
	fix_open_run();
	hit = asked >= fail_at;
	fail_at = 0;
}

/* As fix_open(), with the n-th request of core_open() refused. */
static int open_with(unsigned n)
{
	struct loop_opts opts = {.name = "cache", .ops_max = 16384, .timers_max = 16384};
	char why[256];

	expect_int(core_opts_check(&fix.opts, why), 0);
	expect_int(identity_make(&fix.opts, why, &fix.identity), 0);
	expect_int(loop_open(&opts, &fix.loop), 0);
	fail_at = n;
	fix_post(NULL, 0, open_refused_run);
	expect(sim_run_until(fix_is_open, NULL, 60 * NS_PER_S));
	return fix.opened_res;
}

static int run(unsigned n)
{
	static const char *flash[1] = {"f0,size=16MiB"};
	static uint8_t data[20000], back[20000];
	int rc;

	sim_host_reset();
	fix_begin("f16");
	fix.opts.dram_bytes = 256 * KiB;
	fix.opts.behind_bytes = 128 * KiB;
	fix.opts.flash = flash;
	fix.opts.flash_count = 1;
	fix.opts.admission = KVOF_ADMIT_FLASH_SECOND;
	fix.opts.index_blocks = 1024;
	rc = open_with(n);
	if (rc == 0) {
		fix_fill(data, sizeof(data), 1);
		expect_int(fix_one(KVOF_SAVE, 1, data, sizeof(data)).reason, KVOF_OK);
		expect_int(fix_one(KVOF_LOAD, 1, back, sizeof(back)).reason, KVOF_OK);
		expect_mem(back, data, sizeof(data));
		expect_int(fix_match((uint32_t[]){1}, 1, 0), 1);
		expect_int(fix_one(KVOF_DELETE, 1, NULL, 0).reason, KVOF_OK);
	}
	fix_end();
	return rc;
}

TEST(a_cache_of_three_tiers_survives_each_refused_allocation_of_its_open)
{
	unsigned n = 1;

	do {
		int rc = run(n);

		expect(rc == 0 || rc == -ENOMEM);
		expect(hit || rc == 0);
		n++;
	} while (hit);
	expect(n > 20);
}
