/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/recover.c: what store_open() takes, what it refuses and in which words. */
#include "../fault/store_rig.h"

#include <errno.h>

static void refused(struct rig *g, int rc, const char *word)
{
	expect_int(rig_open(g), rc);
	expect(g->st == NULL);
	if (strstr(g->report.text, word) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", g->report.text, word);
}

static void made(struct rig *g, uint64_t seed, unsigned drives, uint64_t bytes)
{
	rig_begin(g, seed, drives, bytes);
	expect_int(rig_open(g), 0);
	expect_int(rig_put(g, 1, 1, 9000), 0);
	rig_close(g);
}

TEST(a_missing_drive_is_refused_unless_it_may_be_made)
{
	struct rig g;

	rig_begin(&g, 1, 1, 0);
	refused(&g, -ENOENT, "drive0: missing");
	rig_end(&g);
}

TEST(a_drive_too_small_for_four_segments_is_refused_with_the_size_it_needs)
{
	struct rig g;

	rig_begin(&g, 1, 1, 2 * MiB);
	refused(&g, -EINVAL, "too small");
	rig_end(&g);
}

TEST(a_drive_with_foreign_bytes_in_its_first_blocks_is_refused_and_left_alone)
{
	static const uint64_t where[] = {0, 512, 1024, 4096, 65536, 131071};

	for (unsigned i = 0; i < ARRAY_COUNT(where); i++) {
		struct rig g;
		struct loop_opts lo = {.name = "x"};
		struct disk *disk;
		struct disk_opts create = {.create_bytes = 16 * MiB};
		uint8_t *medium, before[256];

		rig_begin(&g, 1, 1, 16 * MiB);
		expect_int(loop_open(&lo, &g.loop), 0);
		expect_int(disk_open(g.loop, "drive0", &create, &disk), 0);
		disk_close(&disk);
		medium = sim_disk_bytes("drive0", NULL);
		medium[where[i]] = 0x42;
		memcpy(before, medium, sizeof(before));
		refused(&g, -EPROTO, "not kvof's");
		expect_mem(medium, before, sizeof(before));
		g.opts.format = true;
		expect_int(rig_open(&g), 0);
		rig_end(&g);
	}
}

TEST(a_newer_superblock_is_refused)
{
	struct rig g;
	uint64_t bytes;
	uint8_t *medium;

	made(&g, 1, 1, 16 * MiB);
	medium = sim_disk_bytes("drive0", &bytes);
	medium[12] = medium[bytes - 4096 + 12] = FMT_VERSION + 1;
	refused(&g, -EPROTO, "newer");
	rig_end(&g);
}

TEST(either_superblock_is_enough_and_without_both_the_drive_is_refused)
{
	struct rig g;
	uint64_t bytes;
	uint8_t *medium, copy[2][4096];

	made(&g, 1, 2, 16 * MiB);
	medium = sim_disk_bytes("drive1", &bytes);
	memcpy(copy[0], medium, 4096);
	memcpy(copy[1], medium + bytes - 4096, 4096);
	for (unsigned which = 0; which < 2; which++) {
		memset(which == 0 ? medium : medium + bytes - 4096, 0x77, 4096);
		expect_int(rig_open(&g), 0);
		expect_int(rig_get(&g, 1, 1, 9000), 0);
		rig_close(&g);
	}
	memset(medium, 0x77, 4096);
	memset(medium + bytes - 4096, 0x77, 4096);
	refused(&g, -EPROTO, "drive1");
	memcpy(medium, copy[0], 4096);
	medium[20] ^= 1;
	refused(&g, -EPROTO, "damaged");
	rig_end(&g);
}

TEST(a_store_in_use_is_refused_to_a_second_opener)
{
	struct rig g;
	struct store *other = NULL;
	struct store_report report;

	rig_begin(&g, 1, 1, 16 * MiB);
	expect_int(rig_open(&g), 0);
	expect_int(store_open(&g.opts, g.loop, &other, &report), -EBUSY);
	expect(other == NULL && strstr(report.text, "in use") != NULL);
	expect_int(rig_put(&g, 1, 1, 10), 0);
	rig_end(&g);
}

TEST(drives_given_in_another_order_are_put_in_theirs)
{
	struct rig g;

	made(&g, 1, 3, 16 * MiB);
	g.opts.drive[0].path = "drive2";
	g.opts.drive[2].path = "drive0";
	expect_int(rig_open(&g), 0);
	expect_str(g.st->drive[0].path, "drive0");
	expect_int(rig_get(&g, 1, 1, 9000), 0);
	rig_end(&g);
}

TEST(a_set_that_lacks_a_drive_or_mixes_two_is_refused)
{
	struct rig g, h;

	made(&g, 1, 2, 16 * MiB);
	h = g;
	h.opts.drive_count = 1;
	refused(&h, -ENOENT, "store of 2 drives, 1 are given");
	h = g;
	h.opts.drive[1] = (struct store_drive){.path = "new", .bytes = 16 * MiB};
	refused(&h, -EINVAL, "blank");
	h.opts.drive_count = 1;
	h.opts.drive[0] = (struct store_drive){.path = "other", .bytes = 16 * MiB};
	h.opts.drive[1] = (struct store_drive){.path = "other2", .bytes = 16 * MiB};
	h.opts.drive_count = 2;
	expect_int(rig_open(&h), 0);
	rig_close(&h);
	h.opts.drive[0] = g.opts.drive[0];
	refused(&h, -EINVAL, "another set");
	rig_end(&h);
}

TEST(a_crash_in_the_middle_of_making_a_store_does_not_stand_in_the_way_of_the_next_try)
{
	for (uint64_t n = 1;; n++) {
		struct rig g;
		int rc;

		rig_begin(&g, n, 3, 16 * MiB);
		sim_crash_at_write(n);
		rc = rig_open(&g);
		if (sim_crashed() == NULL) {
			expect_int(rc, 0);
			expect(n > 12);
			rig_end(&g);
			break;
		}
		rig_crash(&g, n % 2 == 0);
		expect_int(rig_open(&g), 0);
		expect_int(rig_put(&g, 1, 1, 10), 0);
		rig_end(&g);
	}
}

TEST(a_crash_in_the_middle_of_opening_a_store_loses_nothing)
{
	for (uint64_t n = 1;; n++) {
		struct rig g;
		bool over;

		rig_begin(&g, n, 3, 16 * MiB);
		expect_int(rig_open(&g), 0);
		for (uint32_t i = 0; i < 9; i++)
			expect_int(rig_put(&g, i, 1, 9000), 0);
		expect_int(rig_flush(&g), 0);
		rig_crash(&g, true);
		sim_crash_at_write(n);
		(void)rig_open(&g);
		over = sim_crashed() == NULL;
		if (!over) {
			rig_crash(&g, n % 2 == 0);
			expect_int(rig_open(&g), 0);
		}
		for (uint32_t i = 0; i < 9; i++)
			expect_int(rig_get(&g, i, 1, 9000), 0);
		rig_end(&g);
		if (over)
			break;
	}
}

TEST(a_smaller_cap_drops_what_lies_past_it_for_good_and_brings_nothing_deleted_back)
{
	struct rig g;

	rig_begin(&g, 3, 1, 16 * MiB);
	g.opts.segment_bytes = 1 << 20;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_put(&g, i, 1, 400000), 0);
	expect_int(rig_delete(&g, 1), 0);            /* its tombstone lies past the new cap */
	rig_close(&g);
	for (unsigned pass = 0; pass < 2; pass++) {
		g.opts.cap_bytes = pass == 0 ? 6 * MiB : 0;
		expect_int(rig_open(&g), 0);
		expect(pass == 1 || rig_stat(&g).used_bytes <= 6 * MiB);
		expect(pass == 1 || rig_stat(&g).capacity_bytes <= 6 * MiB);
		expect(!rig_exists(&g, 1));
		expect_int(rig_stat(&g).keys, pass);
		expect_int(rig_put(&g, 100 + pass, 1, 400000), 0);
		rig_close(&g);
	}
	rig_end(&g);
}

TEST(a_drive_that_has_shrunk_is_refused)
{
	struct rig g;
	uint64_t bytes;
	uint8_t *medium;
	struct fmt_super_info info;

	made(&g, 1, 1, 16 * MiB);
	medium = sim_disk_bytes("drive0", &bytes);
	expect_int(fmt_super_check(medium, 0, &info), FMT_SUPER_OK);
	info.drive_bytes += 4096;
	info.write_count++;
	fmt_super_write(medium, &info, 0);
	refused(&g, -EINVAL, "when it was made");
	rig_end(&g);
}

TEST(usage_and_values_are_the_same_right_after_reopening)
{
	struct rig g;
	struct store_stat before, after;

	rig_begin(&g, 4, 2, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 100; i++)
		expect_int(rig_put(&g, i % 40, i, 30000 + i), 0);
	before = rig_stat(&g);
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	after = rig_stat(&g);
	expect_int(after.keys, before.keys);
	expect_int(after.value_bytes, before.value_bytes);
	expect_int(after.used_bytes, before.used_bytes);
	rig_end(&g);
}

TEST(a_hundred_restarts_use_no_more_room_than_one)
{
	struct rig g;
	uint64_t used;

	rig_begin(&g, 5, 2, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_put(&g, i, 1, 50000), 0);
	used = rig_stat(&g).used_bytes;
	for (unsigned i = 0; i < 100; i++) {
		if (i % 2 == 0)
			rig_close(&g);
		else
			rig_crash(&g, true);
		expect_int(rig_open(&g), 0);
		expect_int(rig_stat(&g).keys, 20);
		expect_int(rig_stat(&g).used_bytes, used);
	}
	rig_end(&g);
}

TEST(a_drive_left_out_once_is_not_believed_when_it_comes_back)
{
	struct rig g;
	uint64_t bytes;
	uint8_t *medium, *kept;
	unsigned back = 0;

	rig_begin(&g, 6, 2, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_put(&g, i, 1, 5000), 0);
	rig_close(&g);
	g.opts.degraded = true;
	g.opts.drive[1].path = "elsewhere";
	g.opts.drive[1].bytes = 0;
	expect_int(rig_open(&g), 0);
	expect_int(rig_stat(&g).drives_failed, 1);
	for (uint32_t i = 0; i < 20; i++) {
		if (rig_exists(&g, i))
			expect_int(rig_delete(&g, i), 0);
		else
			expect_int(rig_delete(&g, i), -ENOENT);
	}
	rig_close(&g);
	g.opts.drive[1].path = "drive1";
	medium = sim_disk_bytes("drive1", &bytes);
	kept = malloc(bytes);
	memcpy(kept, medium, bytes);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 20; i++)
		back += rig_exists(&g, i);
	expect_int(back, 0);
	expect_int(rig_stat(&g).drives_failed, 0);
	expect_int(rig_put(&g, 50, 1, 100), 0);
	free(kept);
	rig_end(&g);
}
