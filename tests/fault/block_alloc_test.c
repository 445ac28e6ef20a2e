/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory runs out at the n-th request for it, n = 1, 2, ..., while a block namespace is made and
 * opened again: the open says so, has changed nothing and holds no drive; and once it is open it
 * asks for no more. The store is built with an allocator that can refuse.
 */
#include "kt.h"

#include "block_work.h"
#include "store_alloc.h"

static const struct rig_options options = {.seed = 1, .drives = 2, .shards = 1, .loops = 1,
	.block_bytes = 512, .align_bytes = 4096, .size_bytes = 4 * MiB, .room_percent = 100};

TEST(an_open_without_memory_is_refused_whole_at_every_request_for_it)
{
	for (unsigned made = 0; made < 2; made++) {
		unsigned long n = 1;
		int rc;

		for (rc = -ENOMEM; rc != 0; n++) {
			struct store_report report;
			struct rig r;

			fail_at = 0;
			rig_prepare(&r, &options);
			if (made == 1) {
				rig_open(&r);
				expect_int(rig_sync(&r, BLOCK_WRITE, 0, MiB, false), 0);
				rig_close(&r);
			}
			expect_int(loop_open(&(struct loop_opts){.name = "rig"}, &r.loop[0]), 0);
			fail_at = n;
			asked = 0;
			rc = rig_block_open(&r, 0, &report);
			fail_at = 0;
			if (rc == 0) {
				block_forget(&r.block[0]);
				sim_crash(&r.loop[0], true);
			} else {
				expect_int(rc, -ENOMEM);
				expect(strstr(report.text, "memory") != NULL);
				loop_close(&r.loop[0]);        /* no drive is held */
			}
			rig_open(&r);
			rig_verify(&r, false);
			rig_close(&r);
			rig_end(&r);
		}
		printf("# %lu requests\n", n - 2);
		expect(n > 10);
	}
}

TEST(an_open_namespace_asks_for_no_memory)
{
	unsigned long before;
	struct rig r;

	rig_begin(&r, &options);
	before = asked;
	expect(work(&r, 300) && flush_all(&r));
	expect_int(asked, before);
	rig_close(&r);
	rig_end(&r);
}
