/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/where.c: what is told of a value without touching it. */
#include "../fault/store_rig.h"

#include <errno.h>

#include "store/where.h"

TEST(where_a_value_lies_is_told_and_is_no_hit)
{
	uint32_t bytes = 0;
	struct rig g;

	rig_begin(&g, 1, 3, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 30; i++) {
		struct kv_key key = rig_key(i);
		uint64_t hits = rig_stat(&g).hits, drives = 3;
		int drive;

		expect_int(store_where(g.st, &key, &bytes), -ENOENT);
		expect_int(rig_put(&g, i, 1, 1000 + i), 0);
		drive = store_where(g.st, &key, &bytes);
		expect(drive >= 0 && drive < (int)drives);
		expect_int(bytes, 1000 + i);
		expect_int(rig_stat(&g).hits, hits);
		expect_int(rig_put(&g, i, 2, 5000), 0);        /* a key stays on its drive */
		expect_int(store_where(g.st, &key, &bytes), drive);
		expect_int(bytes, 5000);
		if (i % 3 == 0) {
			expect_int(rig_delete(&g, i), 0);
			expect_int(store_where(g.st, &key, &bytes), -ENOENT);
		}
	}
	rig_end(&g);
}
