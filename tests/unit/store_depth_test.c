/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/depth.c: what is chosen from what was measured, and that it bounds the reads. */
#include "../fault/store_rig.h"

#include "store/depth.h"

TEST(the_least_depth_that_is_nearly_the_fastest_is_taken_with_room_for_small_reads)
{
	const struct disk_rate flash[] = {{1, 200}, {4, 700}, {16, 1960}, {64, 2000}};
	const struct disk_rate disk[] = {{1, 150}, {4, 148}, {16, 151}, {64, 149}};
	const struct disk_rate deep[] = {{1, 100}, {4, 400}, {16, 1600}, {64, 6000}};
	const struct disk_rate odd[] = {{1, 900}, {4, 1000}, {16, 600}, {64, 500}};

	expect_int(depth_choose(flash, 4), 64);
	expect_int(depth_choose(disk, 4), 16);
	expect_int(depth_choose(deep, 4), 256);
	expect_int(depth_choose(odd, 4), 16);
	expect_int(depth_choose(NULL, 0), STORE_READS_MAX);
}

static bool all_done(void *arg)
{
	const struct rig_op *r = arg;

	for (unsigned i = 0; i < 60; i++) {
		if (!r[i].done)
			return false;
	}
	return true;
}

TEST(no_more_reads_than_that_are_in_flight_and_all_are_answered)
{
	static struct rig_op r[60];
	struct rig g;
	unsigned most = 0;

	rig_begin(&g, 1, 1, 16 * MiB);
	g.opts.drive_depth = 7;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 60; i++)
		expect_int(rig_put(&g, i, 1, 20000), 0);
	memset(r, 0, sizeof(r));
	for (uint32_t i = 0; i < 60; i++) {
		r[i].op = (struct store_op){.key = rig_key(i), .want_bytes = UINT32_MAX,
					    .done = rig_op_done};
		store_get(g.st, &r[i].op);
	}
	while (!all_done(r)) {
		most = g.st->drive[0].reading_busy > most ? g.st->drive[0].reading_busy : most;
		expect(sim_step());
	}
	expect_int(most, 7);
	for (uint32_t i = 0; i < 60; i++) {
		expect_int(r[i].res, 0);
		store_buf_give(g.st, &r[i].op.buf);
	}
	rig_end(&g);
}
