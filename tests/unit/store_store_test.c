/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/store.c: what each operation answers, in the simulator without faults. */
#include "../fault/store_rig.h"

#include <errno.h>

TEST(a_value_comes_back_whole_at_every_size_around_a_block)
{
	static const uint32_t sizes[] = {0, 1, 127, 128, 511, 512, 513, 3967, 3968, 3969, 4095, 4096,
					 4097, 65535, 131071, 512 * 1024 - 1, 512 * 1024};
	struct rig g;

	rig_begin(&g, 1, 2, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < ARRAY_COUNT(sizes); i++)
		expect_int(rig_put(&g, i, 1, sizes[i]), 0);
	for (uint32_t i = 0; i < ARRAY_COUNT(sizes); i++)
		expect_int(rig_get(&g, i, 1, sizes[i]), 0);
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	expect_int(g.report.keys, ARRAY_COUNT(sizes));
	for (uint32_t i = 0; i < ARRAY_COUNT(sizes); i++)
		expect_int(rig_get(&g, i, 1, sizes[i]), 0);
	rig_end(&g);
}
