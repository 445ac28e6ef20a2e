/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Second-touch admission: what was asked for once and stayed is not pushed out by new values that
 * nobody asks for, even where nobody asks for it either while they come.
 */
#include "store_rig.h"

#define VALUE 32000u
#define HOT 200u

/* Hot values are asked for as long as it takes them to stay; then two capacities of others come.
 * Return: how many of them are left. */
static uint32_t left_after(bool second_touch)
{
	struct rig g;
	uint32_t next = 100000, left = 0;

	rig_begin(&g, 1, 2, 32 * MiB);
	g.opts.segment_bytes = 1 << 20;
	g.opts.index_keys_max = 100000;
	g.opts.second_touch = second_touch;
	expect_int(rig_open(&g), 0);
	for (uint32_t k = 0; k < HOT; k++)
		expect_int(rig_put(&g, k, 1, VALUE), 0);
	for (uint32_t i = 0; i < 2000; i++) {
		expect_int(rig_put(&g, next++, 1, VALUE), 0);
		(void)rig_exists(&g, i % HOT);
	}
	for (uint32_t i = 0; i < 4000; i++)
		expect_int(rig_put(&g, next++, 1, VALUE), 0);
	for (uint32_t k = 0; k < HOT; k++)
		left += rig_get(&g, k, 1, VALUE) == 0;
	printf("# second touch %s: %u of %u left\n", second_touch ? "on" : "off", left, HOT);
	rig_end(&g);
	return left;
}

TEST(values_asked_for_again_outlive_scans_in_which_nobody_asks_for_them)
{
	uint32_t without = left_after(false), with = left_after(true);

	expect(with > HOT * 9 / 10);
	expect(without < with / 2);
}
