/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block namespaces under random work, kills, power cuts and failing drives, against a model of
 * every sector (block_rig.h). Each seed is a run of its own; KVOF_SEEDS says how many.
 */
#include "kt.h"

#include "block_work.h"
#include "store/block_check.h"
#include "store/block_format.h"

static unsigned seeds(unsigned standard)
{
	const char *said = getenv("KVOF_SEEDS");

	return said != NULL ? (unsigned)atoi(said) : standard;
}

static struct rig_options options_of(uint64_t seed)
{
	struct prng p = prng_of(seed);
	struct rig_options o = {.seed = seed};

	o.drives = 1 + (unsigned)prng_below(&p, 3);
	o.shards = 1 + (unsigned)prng_below(&p, 3);
	o.loops = 1 + (unsigned)prng_below(&p, o.shards);
	o.block_bytes = prng_below(&p, 2) == 0 ? 512 : 4096;
	o.align_bytes = prng_below(&p, 2) == 0 ? 512 : 4096;
	o.size_bytes = (8 + prng_below(&p, 24)) * MiB + prng_below(&p, 64) * 4096;
	o.room_percent = prng_below(&p, 3) == 0 ? 75 : 110;
	return o;
}

TEST(what_is_read_is_what_was_written_last)
{
	for (uint64_t seed = 1; seed <= seeds(40); seed++) {
		struct rig_options o = options_of(seed);
		struct rig r;

		rig_begin(&r, &o);
		rig_expect(&r, work(&r, 300));
		rig_expect(&r, flush_all(&r));
		rig_close(&r);
		rig_open(&r);
		rig_verify(&r, false);
		rig_expect(&r, work(&r, 100));
		rig_close(&r);
		rig_end(&r);
	}
}

static void deaths(uint64_t seed, bool power_cut)
{
	struct rig_options o = options_of(seed);
	struct rig r;

	rig_begin(&r, &o);
	for (unsigned round = 0; round < 6; round++) {
		sim_crash_at_write(1 + prng_below(&r.prng, 400));
		if (work(&r, 150) && sim_crashed() == NULL)
			(void)flush_all(&r);
		sim_crash_at_write(0);
		rig_die(&r, !power_cut);
		rig_open(&r);
		rig_verify(&r, power_cut);
	}
	rig_close(&r);
	rig_end(&r);
}

TEST(a_kill_loses_nothing_answered)
{
	for (uint64_t seed = 1000; seed < 1000 + seeds(40); seed++)
		deaths(seed, false);
}

TEST(a_power_cut_loses_nothing_flushed_and_shows_no_foreign_bytes)
{
	for (uint64_t seed = 2000; seed < 2000 + seeds(60); seed++)
		deaths(seed, true);
}

/* --- drives that fail -------------------- */

static struct rig_options plain(uint64_t seed)
{
	return (struct rig_options){.seed = seed, .drives = 2, .shards = 1, .loops = 1,
		.block_bytes = 4096, .align_bytes = 4096, .size_bytes = 4 * MiB,
		.room_percent = 100};
}

/* A fixed piece of work that touches every kind of I/O; results are what they may be. */
static void chores(struct rig *r)
{
	for (unsigned i = 0; i < 6; i++) {
		struct rig_op *x = &r->op[0];

		(void)rig_sync(r, BLOCK_WRITE, i * 512 * KiB, 300 * KiB, i % 2);
		(void)rig_sync(r, BLOCK_READ, i * 512 * KiB, 300 * KiB, false);
		(void)rig_sync(r, BLOCK_ZERO, i * 512 * KiB + 4096, 8192, false);
		(void)rig_sync(r, BLOCK_DEALLOCATE, i * 512 * KiB, 256 * KiB, false);
		(void)rig_sync(r, BLOCK_WRITE, i * 512 * KiB, 8192, false);
		(void)rig_sync(r, BLOCK_VERIFY, 0, MiB, false);
		(void)rig_sync(r, BLOCK_FLUSH, 0, 0, false);
		rig_expect(r, !x->busy);
	}
}

TEST(whichever_io_fails_the_answers_are_true_and_a_reopening_agrees)
{
	static const enum sim_fault kinds[] = {
		SIM_DISK_READ_EIO, SIM_DISK_WRITE_EIO, SIM_DISK_FLUSH_EIO, SIM_DISK_ENOSPC};
	unsigned hits = 0;

	for (unsigned k = 0; k < ARRAY_COUNT(kinds); k++) {
		for (uint64_t n = 1;; n++) {
			struct rig_options o = plain(n);
			struct rig r;
			bool hit;

			rig_begin(&r, &o);
			sim_fault_at(kinds[k], n);
			chores(&r);
			hit = sim_fault_hits(kinds[k]) > 0;
			hits += hit;
			sim_fault_at(kinds[k], 0);
			rig_close(&r);
			rig_open(&r);
			rig_verify(&r, false);
			rig_close(&r);
			rig_end(&r);
			if (!hit)
				break;
		}
	}
	expect(hits > 60);
}

static bool flag_never(void *arg)
{
	return false;
}

static bool of_drive(uint64_t chunk, unsigned drive)
{
	return chunk % 2 == drive;
}

TEST(a_drive_that_is_gone_costs_its_own_chunks_and_no_others)
{
	struct rig_options o = plain(5);
	struct rig r;

	rig_begin(&r, &o);
	expect_int(rig_sync(&r, BLOCK_WRITE, 0, 2 * MiB, false), 0);
	expect_int(rig_sync(&r, BLOCK_FLUSH, 0, 0, false), 0);
	sim_disk_mode("/sim/s0d1", SIM_DISK_GONE);
	for (unsigned c = 0; c < 16; c++) {
		int read = rig_sync(&r, BLOCK_READ, c * 256 * KiB, 64 * KiB, false);
		int write = rig_sync(&r, BLOCK_WRITE, c * 256 * KiB, 4096, false);

		expect_int(write, of_drive(c, 1) ? -EIO : 0);
		expect_int(read, of_drive(c, 1) && c < 8 ? -EIO : 0);
	}
	/* nothing that was answered is on the drive that is gone and not durable */
	expect_int(rig_sync(&r, BLOCK_FLUSH, 0, 0, false), 0);
	sim_disk_mode("/sim/s0d1", SIM_DISK_WELL);
	rig_die(&r, true);
	rig_open(&r);
	rig_verify(&r, false);
	rig_close(&r);
	rig_end(&r);
}

TEST(a_map_that_cant_be_written_is_errors_and_reads_go_on)
{
	struct rig_options o = plain(9);
	struct rig r;

	o.fault = SIM_DISK_WRITE_EIO;
	o.faults_per_million = 1000000;
	rig_prepare(&r, &o);
	sim_faults_on(false);
	rig_open(&r);
	expect_int(rig_sync(&r, BLOCK_WRITE, 0, 2 * MiB, true), 0);
	expect_int(rig_sync(&r, BLOCK_WRITE, 2 * MiB, 2 * MiB, true), 0);
	sim_faults_on(true);
	for (unsigned i = 0; i < 8; i++)               /* no data, only the map */
		expect_int(rig_sync(&r, BLOCK_DEALLOCATE, i * 512 * KiB, 256 * KiB, false), -EIO);
	expect(!sim_run_until(flag_never, NULL, NS_PER_S));
	sim_faults_on(false);
	/* that drive takes no more */
	expect_int(rig_sync(&r, BLOCK_WRITE, 4096, 4096, false), -EIO);
	expect_int(rig_sync(&r, BLOCK_WRITE, 256 * KiB, 4096, false), 0);
	expect_int(rig_sync(&r, BLOCK_READ, 0, 2 * MiB, false), 0);
	rig_close(&r);
	rig_open(&r);
	rig_verify(&r, true);                          /* what failed may be back */
	rig_close(&r);
	rig_end(&r);
}

TEST(what_is_given_back_is_discarded_on_the_drive)
{
	struct rig_options o = plain(11);
	uint64_t bytes, at;
	uint8_t *medium;
	struct rig r;

	o.drives = 1;
	o.size_bytes = 40 * MiB;
	rig_begin(&r, &o);
	for (at = 0; at < o.size_bytes; at += 2 * MiB)
		expect_int(rig_sync(&r, BLOCK_WRITE, at, 2 * MiB, false), 0);
	medium = sim_disk_bytes("/sim/s0d0", &bytes);
	expect(!bytes_all_zero(medium + 20 * MiB, 2 * MiB));
	for (at = 0; at < o.size_bytes; at += 2 * MiB)
		expect_int(rig_sync(&r, BLOCK_DEALLOCATE, at, 2 * MiB, false), 0);
	expect(!sim_run_until(flag_never, NULL, NS_PER_S));
	/* all but the last of them, which wait for more */
	for (at = 256 * KiB; at < o.size_bytes - 17 * MiB; at += MiB)
		expect(bytes_all_zero(medium + at, MiB));
	rig_close(&r);
	rig_end(&r);
}

static int reopen(struct rig *r, struct store_report *report)
{
	int rc;

	expect_int(loop_open(&(struct loop_opts){.name = "rig"}, &r->loop[0]), 0);
	rc = rig_block_open(r, 0, report);
	if (rc != 0)
		loop_close(&r->loop[0]);
	return rc;
}

static void reopened(struct rig *r)
{
	struct volume_shard shard = {r->loop[0], r->block[0]};

	expect_int(volume_open(&shard, 1, &r->volume), 0);
}

TEST(a_part_that_lost_its_map_reads_as_errors_never_as_zeros)
{
	struct rig_options o = plain(6);
	struct store_report report;
	uint64_t bytes;
	uint8_t *medium;
	struct rig r;

	rig_begin(&r, &o);
	expect_int(rig_sync(&r, BLOCK_WRITE, 0, 2 * MiB, false), 0);
	rig_close(&r);
	medium = sim_disk_bytes("/sim/s0d1", &bytes);
	for (unsigned place = 0; place < BLK_PLACES; place++)
		medium[blk_page_block(0, place) * BLK_BYTES + 100] ^= 1;
	memset(medium + blk_page_block(0, 3) * BLK_BYTES + 64, 7, 64);
	for (unsigned place = 0; place < BLK_PLACES; place++)
		medium[blk_page_block(0, place) * BLK_BYTES] |= 1;
	expect_int(reopen(&r, &report), 0);
	expect(strstr(report.text, "damaged") != NULL);
	reopened(&r);
	for (unsigned c = 0; c < 16; c++)
		expect_int(rig_sync(&r, BLOCK_READ, c * 256 * KiB, 4096, false),
			   of_drive(c, 1) ? -EIO : 0);
	expect_int(rig_sync(&r, BLOCK_WRITE, 256 * KiB, 4096, false), -EIO);
	rig_close(&r);
	rig_end(&r);
}

TEST(two_chunks_with_one_slot_are_both_refused)
{
	struct rig_options o = plain(7);
	uint32_t slot[BLK_PAGE_ENTRIES] = {5, 5};
	struct blk_geometry g = {.uuid = "0123456789abcde", .drive_count = 2, .shard_count = 1,
		.block_bytes = 4096, .size_bytes = 4 * MiB};
	struct store_report report;
	uint8_t *medium;
	struct rig r;

	rig_begin(&r, &o);
	expect_int(rig_sync(&r, BLOCK_WRITE, 0, 2 * MiB, false), 0);
	rig_close(&r);
	medium = sim_disk_bytes("/sim/s0d0", &g.part_bytes);
	blk_page_write(&g, 0, 1, 1000, slot, medium + blk_page_block(0, 1) * BLK_BYTES);
	expect_int(reopen(&r, &report), 0);
	expect(strstr(report.text, "damaged") != NULL);
	reopened(&r);
	expect_int(rig_sync(&r, BLOCK_READ, 0, 4096, false), -EIO);
	expect_int(rig_sync(&r, BLOCK_READ, 256 * KiB, 4096, false), 0);
	rig_close(&r);
	rig_end(&r);
}

TEST(a_blank_part_among_others_is_a_loss_and_foreign_parts_are_refused)
{
	struct rig_options o = plain(8);
	struct store_report report;
	uint64_t bytes;
	uint8_t *medium, saved[BLK_BYTES], last[BLK_BYTES];
	struct rig r;

	rig_begin(&r, &o);
	expect_int(rig_sync(&r, BLOCK_WRITE, 0, 2 * MiB, false), 0);
	rig_close(&r);
	r.o.size_bytes += 4096;                        /* another namespace's size */
	expect_int(reopen(&r, &report), -EPROTO);
	r.o.size_bytes -= 4096;
	medium = sim_disk_bytes("/sim/s0d0", &bytes);
	memcpy(saved, medium, BLK_BYTES);
	memset(medium, 0x5a, BLK_BYTES);
	memcpy(last, medium + bytes - BLK_BYTES, BLK_BYTES);
	memset(medium + bytes - BLK_BYTES, 0x5a, BLK_BYTES);
	expect_int(reopen(&r, &report), -EPROTO);
	expect(strstr(report.text, "not a superblock") != NULL);
	memcpy(medium + bytes - BLK_BYTES, last, BLK_BYTES);   /* one copy is enough */
	expect_int(reopen(&r, &report), 0);
	reopened(&r);
	rig_verify(&r, false);
	expect_mem(medium, saved, BLK_BYTES);
	rig_close(&r);
	memset(medium, 0, bytes);
	expect_int(reopen(&r, &report), 0);
	reopened(&r);
	expect_int(rig_sync(&r, BLOCK_READ, 0, 4096, false), -EIO);
	expect_int(rig_sync(&r, BLOCK_READ, 256 * KiB, 4096, false), 0);
	rig_close(&r);
	rig_end(&r);
}

TEST(a_namespace_is_made_whole_or_made_again_whatever_cuts_it_short)
{
	for (uint64_t n = 1; n < 60; n++) {
		struct rig_options o = plain(100 + n);
		struct store_report report;
		struct rig r;
		int rc;

		rig_prepare(&r, &o);
		sim_crash_at_write(n);
		expect_int(loop_open(&(struct loop_opts){.name = "rig"}, &r.loop[0]), 0);
		rc = rig_block_open(&r, 0, &report);
		sim_crash_at_write(0);
		if (rc == 0)
			block_forget(&r.block[0]);
		sim_crash(&r.loop[0], n % 2);
		rig_open(&r);
		rig_verify(&r, false);
		expect_int(rig_sync(&r, BLOCK_WRITE, 0, MiB, false), 0);
		rig_close(&r);
		rig_end(&r);
	}
}

/* --- the offline check -------------------- */

static void said(void *arg, const char *line)
{
	(*(unsigned *)arg)++;
}

static struct block_check checked(const char *path, unsigned *lines, int rc)
{
	struct block_check found = {0};
	struct loop *loop;
	struct disk *disk;

	*lines = 0;
	expect_int(loop_open(&(struct loop_opts){.name = "check"}, &loop), 0);
	expect_int(disk_open(loop, path, &(struct disk_opts){0}, &disk), 0);
	expect_int(block_check(disk, said, lines, &found), rc);
	disk_close(&disk);
	loop_close(&loop);
	return found;
}

TEST(a_check_finds_what_is_damaged_and_nothing_in_what_is_whole)
{
	struct rig_options o = plain(10);
	struct block_check found;
	unsigned lines;
	uint64_t bytes;
	uint8_t *medium;
	struct rig r;

	rig_prepare(&r, &o);
	rig_open(&r);
	expect_int(rig_sync(&r, BLOCK_WRITE, 0, 2 * MiB, false), 0);
	rig_close(&r);
	found = checked("/sim/s0d0", &lines, 0);
	expect(found.chunks == 8 && found.used == 4 && found.pages == 1 && lines == 0);
	expect(found.superblocks_bad + found.pages_bad + found.slots_twice == 0);
	medium = sim_disk_bytes("/sim/s0d0", &bytes);
	medium[20] ^= 1;                               /* a copy is enough */
	found = checked("/sim/s0d0", &lines, 0);
	expect(found.superblocks_bad == 1 && found.used == 4 && lines == 1);
	for (unsigned place = 0; place < BLK_PLACES; place++)
		medium[blk_page_block(0, place) * BLK_BYTES + 64] ^= 1;
	found = checked("/sim/s0d0", &lines, 0);
	expect(found.pages_bad + found.places_torn > 0 && found.used == 0);
	medium[bytes - BLK_BYTES + 20] ^= 1;
	(void)checked("/sim/s0d0", &lines, -EPROTO);
	memset(medium, 0, bytes);
	found = checked("/sim/s0d0", &lines, 0);       /* blank: nobody opened it so far */
	expect(lines == 0 && found.superblocks_bad == 0);
	rig_end(&r);
}

TEST(blocks_are_read_as_fast_as_the_limit_lets_them_and_none_fails)
{
	struct rig_options o = plain(11);
	uint64_t began;
	struct rig r;

	o.read_bytes_per_s = 1000000;
	rig_prepare(&r, &o);
	rig_open(&r);
	expect_int(rig_sync(&r, BLOCK_WRITE, 0, 2 * MiB, false), 0);
	began = sim_now_ns();
	for (unsigned i = 0; i < 4; i++)               /* all at once, longer than a hang may be */
		rig_start(&r, &r.op[i], BLOCK_READ, 0, 2 * MiB, false);
	for (unsigned i = 0; i < 4; i++)
		expect(rig_wait(&r, &r.op[i]) && r.op[i].res == 0);
	expect((sim_now_ns() - began) * o.drives * o.shards >= 6 * NS_PER_S);
	rig_close(&r);
	rig_end(&r);
}

static bool never(void *arg)
{
	return false;
}

/* Drives as sparse files: what they lie on may be full long before the namespace is. */
TEST(a_full_file_system_below_refuses_new_chunks_as_full_and_serves_what_is_there)
{
	struct rig_options o = plain(12);
	unsigned refused = 0, taken = 0;
	struct rig r;
	int rc;

	o.size_bytes = 64 * MiB;
	o.drives = 1;
	rig_prepare(&r, &o);
	rig_open(&r);
	expect_int(rig_sync(&r, BLOCK_WRITE, 0, 2 * MiB, false), 0);
	sim_disk_space("/sim/s0d0", 24 * MiB);
	for (uint64_t at = 2 * MiB; at < 64 * MiB; at += 2 * MiB) {
		rc = rig_sync(&r, BLOCK_WRITE, at, 2 * MiB, false);
		if (rc != 0 && rc != -ENOSPC)
			fail_msg("at %u MiB: %d", (unsigned)(at / MiB), rc);
		refused += rc == -ENOSPC;
		taken += rc == 0;
	}
	expect(refused > 5 && taken > 5);
	for (unsigned i = 0; i < 20; i++) {            /* what has its place can be written again */
		expect_int(rig_sync(&r, BLOCK_WRITE, 0, 2 * MiB, i % 2 == 0), 0);
		expect_int(rig_sync(&r, BLOCK_READ, 0, 2 * MiB, false), 0);
	}
	sim_disk_space("/sim/s0d0", UINT64_MAX);       /* somebody made room */
	expect(!sim_run_until(never, NULL, 10 * NS_PER_S));
	for (uint64_t at = 0; at < 64 * MiB; at += 2 * MiB)
		expect_int(rig_sync(&r, BLOCK_WRITE, at, 2 * MiB, false), 0);
	rig_verify(&r, false);
	rig_close(&r);
	rig_end(&r);
}
