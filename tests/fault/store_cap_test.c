/* SPDX-License-Identifier: Apache-2.0 */
/* The cap is physical and hard; a restart reads metadata, not data; eviction stalls and confuses
 * nobody. */
#include "store_rig.h"

#include "base/bytes.h"

#include <errno.h>

TEST(ten_times_the_cap_is_written_and_no_byte_past_the_cap_is_ever_touched)
{
	struct rig g;
	uint64_t cap = 20 * MiB, written = 0, bytes;
	const uint64_t drive_bytes = 32 * MiB;

	rig_begin(&g, 1, 2, drive_bytes);
	g.opts.cap_bytes = cap;
	g.opts.segment_bytes = 1 << 20;
	expect_int(rig_open(&g), 0);
	expect(rig_stat(&g).capacity_bytes <= cap);
	for (uint32_t i = 0; written < 10 * cap; i++) {
		uint32_t size = i % 5 == 0 ? 200000 : 90000;

		expect_int(rig_put(&g, i, 1, size), 0);
		expect(rig_stat(&g).used_bytes <= cap);
		written += size;
		if (i % 16 == 0)
			expect_int(rig_get(&g, i, 1, size), 0);
	}
	expect(rig_stat(&g).evicted_keys > 100);
	expect(rig_stat(&g).value_bytes > cap / 2);
	for (unsigned d = 0; d < 2; d++) {
		uint8_t *medium = sim_disk_bytes(g.path[d], &bytes);

		expect_int(bytes, drive_bytes);
		/* Only the second superblock lies past this drive's share. */
		expect(bytes_all_zero(medium + cap / 2, drive_bytes - 4096 - cap / 2));
	}
	rig_end(&g);
}

static void reopen_reads(uint32_t size, bool kill)
{
	struct rig g;
	uint64_t data = 0;

	rig_begin(&g, 2, 4, 64 * MiB);
	g.opts.index_keys_max = 100000;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; data < 300 * MiB; i++) {
		expect_int(rig_put(&g, i, 1, size), 0);
		data += size;
	}
	data = rig_stat(&g).value_bytes;
	if (kill) {
		/* Idle for a moment, as a server is before somebody kills it. */
		while (sim_step())
			;
		rig_crash(&g, true);
	} else {
		rig_close(&g);
	}
	expect_int(rig_open(&g), 0);
	printf("# %u-byte values, %s: read %llu of %llu bytes (%.3f %%)\n", size,
	       kill ? "killed" : "closed", (unsigned long long)g.report.metadata_bytes_read,
	       (unsigned long long)data,
	       100.0 * (double)g.report.metadata_bytes_read / (double)data);
	expect_int(rig_stat(&g).value_bytes, data);
	expect(g.report.metadata_bytes_read <= data / 100);
	rig_end(&g);
}

TEST(reopening_reads_at_most_one_percent_of_the_data)
{
	reopen_reads(256 * 1024, false);
	reopen_reads(256 * 1024, true);
	reopen_reads(40000, false);
	reopen_reads(40000, true);
}

TEST(a_kill_under_load_makes_the_next_open_read_no_more_than_the_window)
{
	struct rig g;
	struct rig_op r[8];
	uint64_t data;

	rig_begin(&g, 3, 4, 64 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 600; i++)
		expect_int(rig_put(&g, i, 1, 256 * 1024), 0);
	data = rig_stat(&g).value_bytes;
	for (uint32_t i = 0; i < 8; i++)
		expect(rig_put_start(&g, &r[i], 2000 + i, 1, 256 * 1024, STORE_PUT_ANY));
	for (unsigned i = 0; i < 4; i++)
		(void)sim_step();
	rig_crash(&g, true);
	expect_int(rig_open(&g), 0);
	printf("# read %llu of %llu bytes (%.3f %%)\n",
	       (unsigned long long)g.report.metadata_bytes_read, (unsigned long long)data,
	       100.0 * (double)g.report.metadata_bytes_read / (double)data);
	/* The window of each drive, headers and footers. */
	expect(g.report.metadata_bytes_read <= 4 * 64 * MiB / STORE_WINDOW_PART + data / 200);
	rig_end(&g);
}

TEST(the_youngest_values_stay_when_the_oldest_segments_go)
{
	struct rig g;
	uint32_t n = 400;

	rig_begin(&g, 4, 2, 8 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < n; i++)
		expect_int(rig_put(&g, i, 1, 100000), 0);
	expect(rig_stat(&g).evicted_segments > 10);
	for (uint32_t i = n - 60; i < n; i++)
		expect_int(rig_get(&g, i, 1, 100000), 0);
	for (uint32_t i = 0; i < 100; i++)
		expect_int(rig_get(&g, i, 1, 100000), -ENOENT);
	index_check(g.st->index);
	rig_end(&g);
}

TEST(an_index_that_is_full_evicts_instead_of_refusing)
{
	struct rig g;

	rig_begin(&g, 5, 2, 16 * MiB);
	g.opts.index_keys_max = 100;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 1000; i++) {
		expect_int(rig_put(&g, i, 1, 100), 0);
		expect(rig_stat(&g).keys <= 100);
	}
	expect_int(rig_get(&g, 999, 1, 100), 0);
	rig_end(&g);
}

TEST(a_namespace_that_does_not_evict_refuses_when_full_and_keeps_what_it_has)
{
	struct rig g;
	uint32_t n = 0, kept;

	rig_begin(&g, 6, 2, 8 * MiB);
	g.opts.evict = false;
	expect_int(rig_open(&g), 0);
	while (rig_put(&g, n, 1, 100000) == 0)
		n++;
	kept = n;
	expect(kept > 80);
	expect_int(rig_put(&g, 5000, 1, 100000), -ENOSPC);
	expect_int(rig_put(&g, 3, 2, 100000), -ENOSPC);
	for (uint32_t i = 0; i < kept; i++)
		expect_int(rig_get(&g, i, 1, 100000), 0);
	/* Deleting makes room again, also when everything is deleted. */
	for (uint32_t i = 0; i < kept; i++)
		expect_int(rig_delete(&g, i), 0);
	for (uint32_t i = 0; i < kept / 2; i++)
		expect_int(rig_put(&g, i, 3, 100000), 0);
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < kept; i++)
		expect_int(rig_get(&g, i, 3, 100000), i < kept / 2 ? 0 : -ENOENT);
	rig_end(&g);
}

TEST(deleted_values_stay_away_while_tombstones_and_their_segments_are_evicted)
{
	struct rig g;
	uint32_t n = 2000;

	rig_begin(&g, 7, 2, 6 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < n; i++) {
		expect_int(rig_put(&g, i, 1, 60000), 0);
		if (i % 3 == 0) {
			expect_int(rig_delete(&g, i), 0);
			expect(!rig_exists(&g, i));
		}
		if (i % 250 == 0) {
			rig_crash(&g, i % 500 == 0);
			expect_int(rig_open(&g), 0);
			for (uint32_t j = 0; j <= i; j += 3)
				expect(!rig_exists(&g, j));
		}
	}
	rig_end(&g);
}

TEST(values_that_are_being_read_outlive_the_eviction_of_their_segment)
{
	struct rig g;
	unsigned good = 0, gone = 0;

	rig_begin(&g, 8, 1, 6 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 500; i++) {
		struct rig_op r = {.done = false}, w;
		uint32_t key = i > 30 ? i - 30 : 0;
		uint8_t value[60000];

		r.op = (struct store_op){.key = rig_key(key), .want_bytes = UINT32_MAX,
					 .done = rig_op_done};
		store_get(g.st, &r.op);
		expect(rig_put_start(&g, &w, i, 1, sizeof(value), STORE_PUT_ANY));
		expect(rig_wait(&r.done));
		expect(rig_wait(&w.done));
		expect_int(w.res, 0);
		store_buf_give(g.st, &w.buf);
		if (r.res != 0) {
			expect_int(r.res, -ENOENT);
			gone++;
			continue;
		}
		rig_value(key, 1, value, sizeof(value));
		expect(rig_same(r.op.buf, value));
		store_buf_give(g.st, &r.op.buf);
		good++;
	}
	expect(good > 300);
	rig_end(&g);
}

TEST(drives_that_evict_take_turns_by_their_size_so_that_age_is_even)
{
	struct rig g;
	uint64_t placed[3];

	rig_begin(&g, 9, 3, 16 * MiB);
	g.opts.drive[2].bytes = 32 * MiB;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 1500; i++)
		expect_int(rig_put(&g, i, 1, 100000), 0);
	for (unsigned d = 0; d < 3; d++)
		placed[d] = g.st->drive[d].placed_bytes / MiB;
	printf("# MiB given to the drives: %u %u %u\n", (unsigned)placed[0], (unsigned)placed[1],
	       (unsigned)placed[2]);
	expect(placed[0] > 25 && placed[1] > 25 && placed[2] > placed[0] * 3 / 2);
	rig_end(&g);
}

TEST(values_of_the_limit_fill_a_drive_without_gaps)
{
	static const uint32_t limits[] = {512 * 1024, 1 << 20, 8 << 20};

	for (unsigned i = 0; i < ARRAY_COUNT(limits); i++) {
		struct rig g;
		struct store_stat s;

		rig_begin(&g, 10, 1, 256 * MiB);
		g.opts.value_bytes_max = limits[i];
		expect_int(rig_open(&g), 0);
		for (uint32_t n = 0; n < 300 * MiB / limits[i]; n++)
			expect_int(rig_put(&g, n, 1, limits[i]), 0);
		s = rig_stat(&g);
		printf("# limit %u: segments of %u bytes, %u %% of the drive are values\n",
		       limits[i], s.segment_bytes, (unsigned)(s.value_bytes * 100 / (256 * MiB)));
		expect(s.value_bytes * 100 >= 256 * MiB * 85);
		rig_end(&g);
	}
}
