/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory runs out at the n-th request for it, n = 1, 2, ..., while a store is made, opened again
 * and used: the open says so and has changed nothing and holds no drive; and once a store is open
 * it asks for no more. The store is built with an allocator that can refuse.
 */
#include "store_alloc.h"
#include "store_rig.h"

#include <errno.h>

TEST(an_open_without_memory_is_refused_whole_at_every_request_for_it)
{
	for (unsigned made = 0; made < 2; made++) {
		unsigned long n = 1;

		for (;; n++) {
			struct rig g;
			int rc;

			rig_begin(&g, 1, 2, 8 * MiB);
			fail_at = 0;
			if (made == 1) {
				expect_int(rig_open(&g), 0);
				expect_int(rig_put(&g, 1, 1, 5000), 0);
				rig_close(&g);
			}
			fail_at = n;
			asked = 0;
			rc = rig_open(&g);
			fail_at = 0;
			if (rc == 0) {
				rig_end(&g);
				break;
			}
			expect_int(rc, -ENOMEM);
			expect(g.st == NULL && strstr(g.report.text, "memory") != NULL);
			expect_int(rig_open(&g), 0);
			expect_int(rig_get(&g, 1, 1, 5000), made == 1 ? 0 : -ENOENT);
			rig_end(&g);
		}
		printf("# %lu requests\n", n - 1);
		expect(n > 20);
	}
}

TEST(an_open_store_asks_for_no_memory)
{
	struct rig g;
	unsigned long before;

	rig_begin(&g, 2, 2, 6 * MiB);
	expect_int(rig_open(&g), 0);
	before = asked;
	for (uint32_t i = 0; i < 300; i++) {
		expect_int(rig_put(&g, i, 1, 60000), 0);
		expect_int(rig_get(&g, i, 1, 60000), 0);
		if (i % 5 == 0)
			expect_int(rig_delete(&g, i), 0);
		if (i % 50 == 0)
			expect_int(rig_flush(&g), 0);
	}
	expect(rig_stat(&g).evicted_segments > 0);
	expect_int(asked, before);
	rig_end(&g);
}
