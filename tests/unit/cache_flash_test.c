/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks on drives of this machine, in the simulator: its drives can be damaged, full, silent or
 * dead, and the process can be killed. What lies there is distrusted as an array is.
 */
#include "cache_tier_fixture.h"

#include "cache/dev.h"
#include "cache/flash.h"

#define PART (4032 + FRAME_BYTES)
#define CUT (PART - FRAME_BYTES)
#define THREE (3 * CUT - 100)
#define BLOCKS 40

static const char *paths[4] = {"f0,size=16MiB", "f1,size=16MiB", "f2,size=16MiB", "f3,size=16MiB"};
static struct flash_opts opts;
static char why[256];
static uint8_t data[96 * KiB], back[96 * KiB];

static int flash_up(void)
{
	struct loop_opts loop = {.name = "cache", .ops_max = 16384};

	expect_int(loop_open(&loop, &tf_loop), 0);
	return flash_open(tf_loop, &opts, why, &tf_tier);
}

static void begin_with(const struct sim_opts *sim, unsigned drives)
{
	expect_int(sim_begin(sim), 0);
	opts = (struct flash_opts){.path = paths, .path_count = drives, .part_bytes = PART};
	if (flash_up() != 0)
		fail_msg("%s", why);
}

static void begin(unsigned drives)
{
	struct sim_opts sim = {.seed = 5};

	begin_with(&sim, drives);
}

static void tier_down(void)
{
	unsigned want = 1;

	tf_ends = 0;
	flash_close(&tf_tier, tf_end_one, NULL);
	expect(sim_run_until(tf_has_ended, &want, 60 * NS_PER_S));
}

/* What a killed process had: its memory is nobody's, but still reachable for the leak checker. */
static void *grave[64];
static unsigned graves;

static void flash_kill(void)
{
	sim_crash(&tf_loop, true);
	expect(graves < ARRAY_COUNT(grave));
	grave[graves++] = tf_tier;
}

static void flash_down(void)
{
	tier_down();
	loop_close(&tf_loop);
}

static void end(void)
{
	flash_down();
	sim_end();
}

static size_t bytes_of(uint32_t n)
{
	static const size_t bytes[] = {THREE, 1, CUT, 0, CUT + 1, 5 * CUT};

	return bytes[n % ARRAY_COUNT(bytes)];
}

static enum kvof_reason save(uint32_t n)
{
	tf_fill(data, bytes_of(n), n);
	return tf_one(KVOF_SAVE, n, data, bytes_of(n));
}

/* Good bytes or a reason; other bytes fail the test. */
static enum kvof_reason load(uint32_t n)
{
	enum kvof_reason reason;

	kt_noise(back, sizeof(back));
	reason = tf_one(KVOF_LOAD, n, back, bytes_of(n));
	if (reason == KVOF_OK) {
		tf_fill(data, bytes_of(n), n);
		expect_mem(back, data, bytes_of(n));
	}
	return reason;
}

static void save_all(void)
{
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(save(n), KVOF_OK);
}

TEST(blocks_of_any_length_come_back_from_flash)
{
	begin(2);
	for (uint32_t n = 0; n < BLOCKS; n++) {
		expect_int(tf_one(KVOF_EXISTS_OP, n, NULL, 0), KVOF_ABSENT);
		expect_int(load(n), KVOF_ABSENT);
		expect_int(save(n), KVOF_OK);
		expect_int(save(n), KVOF_EXISTS);
		expect_int(tf_one(KVOF_EXISTS_OP, n, NULL, 0), KVOF_OK);
	}
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(load(n), KVOF_OK);
	for (uint32_t n = 0; n < BLOCKS; n++) {
		expect_int(tf_one(KVOF_DELETE, n, NULL, 0), KVOF_OK);
		expect_int(load(n), KVOF_ABSENT);
		expect_int(tf_one(KVOF_EXISTS_OP, n, NULL, 0), KVOF_ABSENT);
	}
	end();
}

TEST(any_alignment_and_any_pieces_of_memory_work)
{
	static const struct iovec in[5] = {{data + 1, 3}, {data + 7, 0}, {data + 9, 4000},
					   {data + 4100, 4096}, {data + 9001, 7000}};
	static const struct iovec out[4] = {{back + 3, 11111}, {back + 20001, 1},
					    {back + 30007, 3000}, {back + 40000, 987}};
	uint8_t want[15099], got[15099];
	struct tf_op t;

	begin(1);
	tf_fill(data, sizeof(data), 9);
	frame_gather(in, 5, (struct frame_span){0, sizeof(want)}, want);
	tf_set(&t, KVOF_SAVE, 1, data, sizeof(want));
	memcpy(t.iov, in, sizeof(in));
	t.op.iov_count = 5;
	tf_start(&t);
	expect_int(tf_wait(&t), KVOF_OK);
	tf_set(&t, KVOF_LOAD, 1, back, sizeof(want));
	memcpy(t.iov, out, sizeof(out));
	t.op.iov_count = 4;
	tf_start(&t);
	expect_int(tf_wait(&t), KVOF_OK);
	frame_gather(out, 4, (struct frame_span){0, sizeof(got)}, got);
	expect_mem(got, want, sizeof(want));
	end();
}

TEST(a_short_room_tells_the_true_length_and_a_larger_one_works)
{
	static const size_t bytes[] = {1, CUT, CUT + 1, THREE};

	begin(2);
	for (uint32_t n = 0; n < ARRAY_COUNT(bytes); n++) {
		struct tf_op t;

		tf_fill(data, bytes[n], n);
		expect_int(tf_one(KVOF_SAVE, n, data, bytes[n]), KVOF_OK);
		tf_set(&t, KVOF_LOAD, n, back, bytes[n] - 1);
		tf_start(&t);
		expect_int(tf_wait(&t), KVOF_SHORT);
		expect_int(t.op.value_bytes, bytes[n]);
		tf_set(&t, KVOF_LOAD, n, back, bytes[n] + 5000);
		tf_start(&t);
		expect_int(tf_wait(&t), KVOF_OK);
		expect_int(t.op.value_bytes, bytes[n]);
		expect_mem(back, data, bytes[n]);
	}
	end();
}

/* --- restart ---------------------------------------------------------------------------------- */

TEST(what_was_saved_is_there_after_a_close_and_after_a_kill)
{
	begin(3);
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(save(n), KVOF_OK);
	flash_down();
	if (flash_up() != 0)
		fail_msg("%s", why);
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(load(n), KVOF_OK);
	expect_int(save(BLOCKS), KVOF_OK);
	flash_kill();
	if (flash_up() != 0)
		fail_msg("%s", why);
	for (uint32_t n = 0; n <= BLOCKS; n++) {
		expect_int(load(n), KVOF_OK);
		expect_int(save(n), KVOF_EXISTS);
	}
	end();
}

TEST(a_kill_at_any_write_leaves_blocks_whole_or_absent)
{
	for (uint64_t at = 1; at < 60; at += 5) {
		struct tf_op t[4];
		unsigned whole = 0;

		begin(2);
		for (uint32_t n = 0; n < 4; n++)
			expect_int(save(n), KVOF_OK);
		sim_crash_at_write(at);
		for (uint32_t n = 0; n < 4; n++) {
			tf_fill(data + n * 24 * KiB, bytes_of(n + 4), n + 4);
			tf_set(&t[n], KVOF_SAVE, n + 4, data + n * 24 * KiB, bytes_of(n + 4));
			tf_start(&t[n]);
		}
		for (unsigned i = 0; i < 4; i++)
			if (sim_crashed() == NULL)
				sim_run_until(tf_is_done, &t[i], 60 * NS_PER_S);
		sim_crash_at_write(0);
		flash_kill();
		if (flash_up() != 0)
			fail_msg("%s", why);
		for (uint32_t n = 0; n < 8; n++) {
			enum kvof_reason reason = load(n);

			expect(reason == KVOF_OK || (n >= 4 && reason == KVOF_ABSENT));
			expect(n < 4 || t[n - 4].done == 0 || t[n - 4].op.reason != KVOF_OK ||
			       reason == KVOF_OK);
			whole += reason == KVOF_OK;
			expect_int(save(n), reason == KVOF_OK ? KVOF_EXISTS : KVOF_OK);
			expect_int(load(n), KVOF_OK);
		}
		expect(whole >= 4);
		end();
	}
}

TEST(a_larger_part_size_finds_what_a_smaller_one_saved)
{
	static const uint32_t parts[] = {PART, 512 * KiB, 64 * KiB, 8 * MiB};

	begin(2);
	save_all();
	for (unsigned i = 0; i < ARRAY_COUNT(parts); i++) {
		flash_down();
		opts.part_bytes = parts[i];
		if (flash_up() != 0) {
			expect(parts[i] == 8 * MiB && strstr(why, "do not fit the segments"));
			opts.part_bytes = PART;
			expect_int(flash_up(), 0);
		}
		for (uint32_t n = 0; n < BLOCKS; n++) {
			expect_int(load(n), KVOF_OK);
			expect_int(save(n), KVOF_EXISTS);
		}
	}
	end();
}

/* --- refusals at open ------------------------------------------------------------------------- */

static void refused(int rc, const char *words)
{
	struct loop_opts loop = {.name = "second"};
	struct loop *second;
	struct tier *tier = NULL;

	expect_int(loop_open(&loop, &second), 0);
	kt_noise(why, sizeof(why));
	expect_int(flash_open(second, &opts, why, &tier), rc);
	if (strstr(why, words) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", why, words);
	loop_close(&second);
}

TEST(what_is_no_drive_of_ours_is_refused_with_a_sentence)
{
	static const char *foreign[1] = {"f0"};
	uint64_t bytes;
	uint8_t *at;

	begin(1);
	expect_int(save(1), KVOF_OK);
	refused(-EBUSY, "f0: in use by another process");
	flash_down();
	at = sim_disk_bytes("f0", &bytes);
	memcpy(at, "a file system, or so", 20);
	memset(at + 20, 0x5a, 64 * KiB);
	memset(at + bytes - 64 * KiB, 0x5a, 64 * KiB);
	opts.path = foreign;
	refused(-EPROTO, "f0");
	opts.format = true;
	expect_int(flash_up(), 0);
	expect_int(load(1), KVOF_ABSENT);
	expect_int(save(1), KVOF_OK);
	end();
}

TEST(a_drive_text_that_is_wrong_is_quoted)
{
	static const struct {
		const char *text, *words;
	} row[] = {
		{"", "the path is empty"},
		{",size=1GiB", "the path is empty"},
		{"f,size=1", "need a number with a unit"},
		{"f,size=GiB", "need a number with a unit"},
		{"f,size=0MiB", "need a number with a unit"},
		{"f,size=99999999TiB", "need a number with a unit"},
		{"f,size=1GiB,size=1GiB", "one thing twice"},
		{"f,speed=1GiB", "only size= and rate= may follow"},
		{"f,", "only size= and rate= may follow"},
		{"nowhere", "missing"},
		{"small,size=64KiB", "small"},
	};
	struct sim_opts sim = {.seed = 5};

	expect_int(sim_begin(&sim), 0);
	for (unsigned i = 0; i < ARRAY_COUNT(row); i++) {
		const char *one[1] = {row[i].text};

		opts = (struct flash_opts){.path = one, .path_count = 1, .part_bytes = PART};
		refused(i == 9 ? -ENOENT : -EINVAL, row[i].words);
	}
	sim_end();
}

TEST(drives_of_different_rates_are_refused_and_a_rate_slows_reads_down)
{
	const char *two[2] = {"f0,size=16MiB,rate=1MiB", "f1,size=16MiB"};
	struct sim_opts sim = {.seed = 5};
	uint64_t begin_ns;

	expect_int(sim_begin(&sim), 0);
	opts = (struct flash_opts){.path = two, .path_count = 2, .part_bytes = PART};
	refused(-EINVAL, "the same for all drives");
	opts.path_count = 1;
	if (flash_up() != 0)
		fail_msg("%s", why);
	for (uint32_t n = 0; n < 100; n++)
		expect_int(tf_one(KVOF_SAVE, n, data, 5 * CUT), KVOF_OK);
	begin_ns = sim_now_ns();
	for (uint32_t n = 0; n < 100; n++)
		expect_int(tf_one(KVOF_LOAD, n, back, 5 * CUT), KVOF_OK);
	expect(sim_now_ns() - begin_ns > NS_PER_S);       /* 2 MB at 1 MiB a second */
	end();
}

TEST(a_drive_text_is_taken_apart)
{
	struct dev_store_drive d;

	expect_int(dev_store_parse("/mnt/a b,size=10GiB,rate=100MB", &d, why), 0);
	expect_str(d.path, "/mnt/a b");
	expect_int(d.bytes, 10 * GiB);
	expect_int(d.rate_bytes_per_s, 100000000);
	expect_int(dev_store_parse("/dev/nvme0n1", &d, why), 0);
	expect_str(d.path, "/dev/nvme0n1");
	expect_int(d.bytes, 0);
	expect_int(d.rate_bytes_per_s, 0);
}

TEST(s12_a_cap_beyond_the_drives_is_refused_with_both_figures)
{
	struct sim_opts sim = {.seed = 5};

	expect_int(sim_begin(&sim), 0);
	opts = (struct flash_opts){.path = paths, .path_count = 2, .part_bytes = PART,
				   .cap_bytes = 64 * MiB};
	refused(-EINVAL, "67108864");
	sim_end();
}

TEST(bytes_on_flash_never_pass_the_cap_and_old_blocks_go)
{
	struct tier_stat s;
	unsigned there = 0;

	begin(1);
	flash_down();
	opts.cap_bytes = 8 * MiB;
	opts.format = true;
	if (flash_up() != 0)
		fail_msg("%s", why);
	for (uint32_t n = 0; n < 1000; n++) {
		tf_fill(data, 5 * CUT, n);
		expect_int(tf_one(KVOF_SAVE, n, data, 5 * CUT), KVOF_OK);
		flash_stat(tf_tier, &s);
		expect(s.used_bytes <= 8 * MiB);
		expect(s.capacity_bytes <= 8 * MiB);
	}
	expect(s.evicted > 1000);
	for (uint32_t n = 0; n < 1000; n++) {
		enum kvof_reason reason = tf_one(KVOF_LOAD, n, back, 5 * CUT);

		expect(reason == KVOF_OK || reason == KVOF_ABSENT);
		there += reason == KVOF_OK;
	}
	expect(there > 100 && there < 500);
	end();
}

/* --- S1: damage on the drives ----------------------------------------------------------------- */

/* Where the payload of one part lies on a drive; false: not on this one. */
static bool find_part(const char *path, uint32_t n, uint32_t part, uint64_t *at)
{
	uint64_t bytes;
	uint8_t *disk = sim_disk_bytes(path, &bytes), *found;

	tf_fill(data, bytes_of(n), n);
	found = memmem(disk, bytes, data + (size_t)part * CUT, 64);
	*at = found == NULL ? 0 : (uint64_t)(found - disk);
	return found != NULL;
}

static const char *drive_of(uint32_t n, uint32_t part, uint64_t *at)
{
	static const char *names[] = {"f0", "f1"};

	for (unsigned i = 0; i < 2; i++)
		if (find_part(names[i], n, part, at))
			return names[i];
	fail_msg("block %u is on no drive", n);
	return NULL;
}

/* Block n (of three parts) answers as told, the others as ever; saved anew it is good again. */
static void only_one_lost(uint32_t lost, uint32_t other)
{
	for (uint32_t n = 0; n < BLOCKS; n++) {
		enum kvof_reason reason = load(n);

		if (n != lost && n != other)
			expect_int(reason, KVOF_OK);
		else
			expect(reason == KVOF_CORRUPT || reason == KVOF_IDENTITY ||
			       reason == KVOF_ABSENT);
	}
	expect_int(save(lost), KVOF_OK);
	expect_int(save(other), lost == other ? KVOF_EXISTS : KVOF_OK);
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(load(n), KVOF_OK);
}

TEST(s1_a_flipped_byte_on_flash_costs_that_block_and_no_other)
{
	for (uint32_t part = 0; part < 3; part++) {
		struct tier_stat s;
		const char *path;
		uint64_t at, bytes;

		begin(2);
		save_all();
		path = drive_of(6, part, &at);
		sim_disk_bytes(path, &bytes)[at + 1000] ^= 0x10;
		only_one_lost(6, 6);
		flash_stat(tf_tier, &s);
		expect_int(s.corrupt, 1);
		end();
	}
}

TEST(s1_a_flipped_byte_costs_the_same_after_a_restart)
{
	const char *path;
	uint64_t at, bytes;

	begin(2);
	save_all();
	path = drive_of(12, 1, &at);
	flash_down();
	sim_disk_bytes(path, &bytes)[at] ^= 0x80;
	if (flash_up() != 0)
		fail_msg("%s", why);
	only_one_lost(12, 12);
	end();
}

TEST(s1_two_values_swapped_on_flash_cost_these_blocks_and_no_other)
{
	uint64_t a, b, bytes;
	const char *pa, *pb;
	uint8_t *da, *db;

	begin(2);
	save_all();
	pa = drive_of(6, 1, &a);
	pb = drive_of(12, 2, &b);
	da = sim_disk_bytes(pa, &bytes) + (a & ~UINT64_C(4095));
	db = sim_disk_bytes(pb, &bytes) + (b & ~UINT64_C(4095));
	for (unsigned i = 0; i < 4096; i++) {      /* the record's first block, header and all */
		uint8_t swap = da[i];

		da[i] = db[i];
		db[i] = swap;
	}
	only_one_lost(6, 12);
	end();
}

TEST(s1_what_is_cut_off_the_end_of_a_drive_is_a_miss)
{
	uint64_t bytes, lost = 0;
	uint8_t *disk;

	begin(2);
	save_all();
	disk = sim_disk_bytes("f1", &bytes);
	for (uint64_t at = 256 * KiB; at < bytes - 256 * KiB; at += 4096)
		if (memcmp(disk + at, back, 0) == 0)   /* all of its middle */
			memset(disk + at, 0, 4096);
	for (uint32_t n = 0; n < BLOCKS; n++) {
		enum kvof_reason reason = load(n);

		lost += reason != KVOF_OK;
		expect(reason == KVOF_OK || reason == KVOF_CORRUPT || reason == KVOF_ABSENT);
	}
	expect(lost > 0);
	for (uint32_t n = 0; n < BLOCKS; n++) {
		enum kvof_reason reason = save(n);

		expect(reason == KVOF_OK || reason == KVOF_EXISTS);
	}
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(load(n), KVOF_OK);
	end();
}

TEST(s1_two_drives_swapped_are_told_apart_by_what_stands_on_them)
{
	uint64_t bytes;
	uint8_t *a, *b;

	begin(2);
	save_all();
	flash_down();
	a = sim_disk_bytes("f0", &bytes);
	b = sim_disk_bytes("f1", &bytes);
	for (uint64_t i = 0; i < bytes; i++) {
		uint8_t swap = a[i];

		a[i] = b[i];
		b[i] = swap;
	}
	if (flash_up() == 0) {             /* either they are known, or refused in words */
		for (uint32_t n = 0; n < BLOCKS; n++)
			expect_int(load(n), KVOF_OK);
		end();
	} else {
		expect(why[0] != '\0');
		loop_close(&tf_loop);
		sim_end();
	}
}

TEST(random_damage_never_delivers_other_bytes)
{
	struct prng p = prng_of(11);

	for (unsigned round = 0; round < 10; round++) {
		struct sim_opts sim = {.seed = round + 1, .fault_per_million = {
			[SIM_DISK_READ_BAD] = 20000, [SIM_DISK_READ_MISDIRECT] = 20000,
			[SIM_DISK_READ_EIO] = 20000, [SIM_DISK_WRITE_LOST] = 5000,
			[SIM_DISK_WRITE_MISDIRECT] = 2000, [SIM_DISK_WRITE_EIO] = 2000}};
		unsigned good = 0;

		expect_int(sim_begin(&sim), 0);
		sim_faults_on(false);
		opts = (struct flash_opts){.path = paths, .path_count = 4, .part_bytes = PART};
		if (flash_up() != 0)
			fail_msg("%s", why);
		sim_faults_on(true);
		for (unsigned i = 0; i < 400; i++) {
			uint32_t n = (uint32_t)prng_below(&p, BLOCKS);

			if (prng_below(&p, 3) == 0)
				save(n);
			else
				good += load(n) == KVOF_OK;
		}
		expect(good > 50);
		sim_faults_on(false);
		end();
	}
}

/* --- S2, S12: a save that fails half way, a full disk ----------------------------------------- */

TEST(s2_a_save_that_fails_half_way_is_invisible_and_a_later_one_works)
{
	static const enum sim_fault faults[] = {SIM_DISK_WRITE_EIO, SIM_DISK_ENOSPC};
	unsigned failed = 0, worked = 0;

	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct sim_opts sim = {.seed = seed};
		enum kvof_reason reason;

		sim.fault_per_million[faults[seed % 2]] = 400000;
		expect_int(sim_begin(&sim), 0);
		sim_faults_on(false);
		opts = (struct flash_opts){.path = paths, .path_count = 2, .part_bytes = PART};
		if (flash_up() != 0)
			fail_msg("%s", why);
		expect_int(save(1), KVOF_OK);
		sim_faults_on(true);
		reason = save(6);                  /* three parts and a head */
		sim_faults_on(false);
		if (reason != KVOF_OK) {
			failed++;
			expect(reason == KVOF_ERROR || reason == KVOF_FULL ||
			       reason == KVOF_UNREACHABLE);
			expect(load(6) != KVOF_OK);
			expect(tf_one(KVOF_EXISTS_OP, 6, NULL, 0) != KVOF_OK);
		}
		if (tf_tier->ops->live(tf_tier)) {
			reason = save(6);
			worked += reason == KVOF_OK || reason == KVOF_EXISTS;
			expect(reason != KVOF_ERROR && reason != KVOF_CORRUPT);
			expect_int(load(6), reason == KVOF_FULL ? KVOF_ABSENT : KVOF_OK);
		}
		end();
	}
	expect(failed >= 3 && worked >= 15);   /* at times so many segments broke that it is full */
}

TEST(s12_foreign_data_fills_the_disk_and_saves_are_refused_until_there_is_room)
{
	unsigned full = 0, held = 0;

	begin(1);
	for (uint32_t n = 0; n < 6; n++)
		expect_int(save(n), KVOF_OK);
	sim_disk_space("f0", 200 * KiB);   /* the file has holes, and the rest is not ours */
	for (uint32_t n = 6; n < 60; n++) {
		enum kvof_reason reason = save(n);

		expect(reason == KVOF_OK || reason == KVOF_FULL || reason == KVOF_ERROR);
		full += reason != KVOF_OK;
		if (reason != KVOF_OK)
			expect_int(load(n), KVOF_ABSENT);
	}
	for (uint32_t n = 0; n < 60; n++) {
		enum kvof_reason reason = load(n);

		expect(reason == KVOF_OK || reason == KVOF_ABSENT);
		held += reason == KVOF_OK;
	}
	printf("# %u refused, %u held\n", full, held);
	expect(full > 0 || held < 60);     /* refused, or old ones made room */
	expect(held > 0);
	sim_disk_space("f0", UINT64_MAX);
	flash_down();
	if (flash_up() != 0)
		fail_msg("%s", why);
	for (uint32_t n = 60; n < 80; n++) {
		expect_int(save(n), KVOF_OK);
		expect_int(load(n), KVOF_OK);
	}
	end();
}

/* --- drives that are silent, or gone ---------------------------------------------------------- */

TEST(a_silent_drive_is_late_at_the_deadline_with_the_buffer_free)
{
	struct tf_op t[8];
	uint64_t begin_ns;

	begin(1);
	for (uint32_t n = 0; n < 8; n++)
		expect_int(tf_one(KVOF_SAVE, n, data, CUT), KVOF_OK);
	sim_disk_mode("f0", SIM_DISK_HANGS);
	kt_noise(back, sizeof(back));
	begin_ns = sim_now_ns();
	for (uint32_t n = 0; n < 8; n++) {
		tf_set(&t[n], n % 2 == 0 ? KVOF_LOAD : KVOF_SAVE, n % 2 == 0 ? n : n + 100,
		       n % 2 == 0 ? back : data, CUT);
		t[n].op.deadline_ns = begin_ns + 200 * NS_PER_MS;
		tf_start(&t[n]);
	}
	for (uint32_t n = 0; n < 8; n++) {
		expect_int(tf_wait(&t[n]), KVOF_LATE);
		expect(!t[n].op.busy);
		expect(t[n].done_ns - begin_ns <= 201 * NS_PER_MS);
	}
	sim_disk_mode("f0", SIM_DISK_WELL);
	tf_pass(NS_PER_S);
	for (size_t i = 0; i < sizeof(back); i++)  /* nothing came after the answer */
		expect(back[i] == (uint8_t)(0xa5 ^ i * 131));
	for (uint32_t n = 0; n < 8; n++)
		expect_int(tf_one(KVOF_LOAD, n, back, CUT), KVOF_OK);
	end();
}

TEST(a_canceled_load_writes_no_byte_after_its_answer)
{
	struct tf_op load_op, save_op;

	begin(1);
	expect_int(save(6), KVOF_OK);
	kt_noise(back, sizeof(back));
	tf_set(&load_op, KVOF_LOAD, 6, back, bytes_of(6));
	tf_set(&save_op, KVOF_SAVE, 7, data, CUT);
	tf_start(&load_op);
	tf_start(&save_op);
	tf_tier->ops->cancel(tf_tier, &load_op.op);
	tf_tier->ops->cancel(tf_tier, &save_op.op);
	expect_int(tf_wait(&load_op), KVOF_CANCELED);
	expect_int(tf_wait(&save_op), KVOF_CANCELED);
	tf_pass(NS_PER_S);
	for (size_t i = 0; i < sizeof(back); i++)
		expect(back[i] == (uint8_t)(0xa5 ^ i * 131));
	expect_int(load(6), KVOF_OK);
	end();
}

TEST(a_dead_drive_costs_its_own_blocks_and_the_others_go_on)
{
	unsigned there = 0;

	begin(4);
	for (uint32_t n = 0; n < BLOCKS; n++) {
		tf_fill(data, CUT, n);
		expect_int(tf_one(KVOF_SAVE, n, data, CUT), KVOF_OK);
	}
	sim_disk_mode("f2", SIM_DISK_GONE);
	for (unsigned pass = 0; pass < 3; pass++) {
		there = 0;
		for (uint32_t n = 0; n < BLOCKS; n++) {
			enum kvof_reason reason = tf_one(KVOF_LOAD, n, back, CUT);

			there += reason == KVOF_OK;
			expect(reason == KVOF_OK || reason == KVOF_ERROR ||
			       reason == KVOF_ABSENT);
		}
		expect(there >= BLOCKS / 2 && there < BLOCKS);
	}
	for (uint32_t n = 100; n < 130; n++) {
		tf_fill(data, CUT, n);
		expect_int(tf_one(KVOF_SAVE, n, data, CUT), KVOF_OK);
		expect_int(tf_one(KVOF_LOAD, n, back, CUT), KVOF_OK);
		expect_mem(back, data, CUT);
	}
	end();
}

TEST(one_silent_drive_of_two_costs_its_own_blocks_and_few_others)
{
	enum { COUNT = 300 };
	struct tf_op *t = calloc(COUNT, sizeof(*t));
	unsigned there = 0;
	uint64_t begin_ns;

	begin(2);
	for (uint32_t n = 0; n < COUNT; n++)
		expect_int(tf_one(KVOF_SAVE, n, data, CUT), KVOF_OK);
	sim_disk_mode("f1", SIM_DISK_HANGS);
	begin_ns = sim_now_ns();
	for (uint32_t n = 0; n < COUNT; n++) {
		tf_set(&t[n], KVOF_LOAD, n, back, CUT);
		t[n].op.deadline_ns = begin_ns + 200 * NS_PER_MS;
		tf_start(&t[n]);
	}
	for (uint32_t n = 0; n < COUNT; n++) {
		enum kvof_reason reason = tf_wait(&t[n]);

		expect(reason == KVOF_OK || reason == KVOF_LATE);
		expect(t[n].done_ns - begin_ns <= 201 * NS_PER_MS);
		there += reason == KVOF_OK;
	}
	expect(there > COUNT / 3 && there < COUNT);
	sim_disk_mode("f1", SIM_DISK_WELL);
	free(t);
	end();
}

/* Loads of all blocks at once, with 200 ms. Return: how many came. */
static unsigned wave(struct tf_op *t, unsigned count, uint8_t *at, size_t bytes)
{
	uint64_t begin_ns = sim_now_ns();
	unsigned there = 0;

	for (uint32_t n = 0; n < count; n++) {
		tf_set(&t[n], KVOF_LOAD, n, at, bytes);
		t[n].op.deadline_ns = begin_ns + 200 * NS_PER_MS;
		tf_start(&t[n]);
	}
	for (uint32_t n = 0; n < count; n++) {
		enum kvof_reason reason = tf_wait(&t[n]);

		expect(reason == KVOF_OK || reason == KVOF_LATE || reason == KVOF_ERROR);
		expect(t[n].done_ns - begin_ns <= 201 * NS_PER_MS);
		there += reason == KVOF_OK;
	}
	return there;
}

TEST(a_drive_that_stays_silent_never_takes_the_others_down_and_is_used_again)
{
	enum { COUNT = 400, BYTES = 500000 };
	const char *two[2] = {"f0,size=256MiB", "f1,size=256MiB"};
	struct tf_op *t = calloc(COUNT, sizeof(*t));
	uint8_t *big = calloc(1, BYTES);
	struct sim_opts sim = {.seed = 5};
	unsigned waves = 0, there;

	expect_int(sim_begin(&sim), 0);
	opts = (struct flash_opts){.path = two, .path_count = 2, .part_bytes = 512 * KiB};
	if (flash_up() != 0)
		fail_msg("%s", why);
	for (uint32_t n = 0; n < COUNT; n++)
		expect_int(tf_one(KVOF_SAVE, n, big, BYTES), KVOF_OK);
	expect_int(wave(t, COUNT, big, BYTES), COUNT);
	sim_disk_mode("f1", SIM_DISK_HANGS);
	for (uint64_t end_ns = sim_now_ns() + 6 * NS_PER_S; sim_now_ns() < end_ns; waves++) {
		there = wave(t, COUNT, big, BYTES);
		expect(there >= COUNT * 2 / 5 && there < COUNT);
		tf_pass(100 * NS_PER_MS);
	}
	expect(waves > 10);
	sim_disk_mode("f1", SIM_DISK_WELL);
	do {
		tf_pass(500 * NS_PER_MS);
		there = wave(t, COUNT, big, BYTES);
	} while (there < COUNT && waves-- > 0);
	expect_int(there, COUNT);
	free(big);
	free(t);
	end();
}

TEST(with_no_drive_left_blocks_are_unreachable_at_once)
{
	struct tier_stat s;
	unsigned tries = 0;

	begin(1);
	for (uint32_t n = 0; n < 20; n++)
		expect_int(tf_one(KVOF_SAVE, n, data, CUT), KVOF_OK);
	sim_disk_mode("f0", SIM_DISK_GONE);
	while (tf_tier->ops->live(tf_tier) && tries++ < 200) {
		expect(tf_one(KVOF_LOAD, tries % 20, back, CUT) != KVOF_OK);
		tf_one(KVOF_SAVE, 100 + tries, data, CUT);
		tf_pass(200 * NS_PER_MS);
	}
	expect(!tf_tier->ops->live(tf_tier));
	expect_int(tf_one(KVOF_LOAD, 1, back, CUT), KVOF_UNREACHABLE);
	expect_int(tf_one(KVOF_SAVE, 500, data, CUT), KVOF_UNREACHABLE);
	flash_stat(tf_tier, &s);
	expect_int(s.drives_failed, 1);
	expect_int(s.devs_live, 0);
	end();
}

TEST(a_burst_of_reads_that_kills_the_last_drive_leaves_flash_unreachable)
{
	enum kvof_reason last = KVOF_OK;

	begin(1);
	for (uint32_t n = 0; n < 40; n++)
		expect_int(tf_one(KVOF_SAVE, n, data, CUT), KVOF_OK);
	sim_disk_mode("f0", SIM_DISK_GONE);
	for (uint32_t n = 0; n < 40; n++)
		expect(tf_one(KVOF_LOAD, n, back, CUT) != KVOF_OK);
	tf_pass(NS_PER_S);
	for (uint32_t n = 0; n < 4; n++)
		last = tf_one(KVOF_LOAD, n, back, CUT);
	expect_int(last, KVOF_UNREACHABLE);
	end();
}

/* A leak checker is told of memory that stays since the kernel still writes there. */
__attribute__((weak)) void __lsan_disable(void);
__attribute__((weak)) void __lsan_enable(void);

static void leak_checker_sees(bool on)
{
	if (__lsan_disable != NULL && !on)
		__lsan_disable();
	if (__lsan_enable != NULL && on)
		__lsan_enable();
}

TEST(a_close_ends_what_is_in_flight_and_seals_what_is_acknowledged)
{
	struct tf_op t[10];
	uint64_t begin_ns;

	for (unsigned silent = 0; silent < 3; silent++) {
		if (silent > 0)
			leak_checker_sees(false);
		begin(1);
		if (silent > 0)
			leak_checker_sees(true);
		for (uint32_t n = 0; n < 6; n++)
			expect_int(save(n), KVOF_OK);
		if (silent > 0)
			sim_disk_mode("f0", SIM_DISK_HANGS);
		for (uint32_t n = 0; n < 10; n++) {
			tf_set(&t[n], n < 5 ? KVOF_LOAD : KVOF_SAVE, n < 5 ? 0 : n + 50,
			       n < 5 ? back : data, THREE);
			tf_start(&t[n]);
		}
		if (silent == 2)
			tf_pass(100 * NS_PER_MS);  /* the drive has its writes */
		begin_ns = sim_now_ns();
		tier_down();
		/* who closes waits less for a drive that answers nothing than for one that works */
		expect(sim_now_ns() - begin_ns <= 4 * NS_PER_S);
		for (uint32_t n = 0; n < 10; n++) {
			expect_int(t[n].done, 1);
			expect(t[n].op.reason == KVOF_CANCELED ||
			       t[n].op.reason == KVOF_UNREACHABLE);
			expect(!t[n].op.busy);
		}
		if (silent == 0)
			loop_close(&tf_loop);
		else
			sim_crash(&tf_loop, true); /* the kernel has its buffers still */
		sim_disk_mode("f0", SIM_DISK_WELL);
		if (flash_up() != 0)
			fail_msg("%s", why);
		for (uint32_t n = 0; n < 6; n++)
			expect_int(load(n), KVOF_OK);
		end();
	}
}

/* --- many at once, parts, what is read -------------------------------------------------------- */

TEST(a_load_lands_part_by_part_from_flash)
{
	uint8_t *keep = calloc(1, sizeof(data));
	struct tf_op t;

	begin(2);
	expect_int(save(5), KVOF_OK);
	kt_noise(back, sizeof(back));
	tf_set(&t, KVOF_LOAD, 5, back, bytes_of(5));
	t.op.landed = tf_landed;
	t.keep = keep;
	tf_start(&t);
	expect_int(tf_wait(&t), KVOF_OK);
	expect_int(t.landed_count, 5);
	tf_fill(data, bytes_of(5), 5);
	expect_mem(keep, data, bytes_of(5));
	free(keep);
	end();
}

TEST(many_loads_are_in_flight_at_once_and_read_little_more_than_they_deliver)
{
	enum { COUNT = 200, BYTES = 60000 };
	struct tf_op *t = calloc(COUNT, sizeof(*t));
	uint8_t *room = malloc((size_t)COUNT * BYTES);
	struct tier_stat before, after;
	uint64_t begin_ns;
	uint8_t *want = malloc(BYTES);

	begin(4);
	tier_cut_set(tf_tier, BYTES, 0);
	for (uint32_t n = 0; n < COUNT; n++) {
		tf_fill(want, BYTES, n);
		expect_int(tf_one(KVOF_SAVE, n, want, BYTES), KVOF_OK);
	}
	flash_stat(tf_tier, &before);
	begin_ns = sim_now_ns();
	for (uint32_t n = 0; n < COUNT; n++) {
		tf_set(&t[n], KVOF_LOAD, n, room + (size_t)n * BYTES, BYTES);
		tf_start(&t[n]);
	}
	for (uint32_t n = 0; n < COUNT; n++) {
		expect_int(tf_wait(&t[n]), KVOF_OK);
		tf_fill(want, BYTES, n);
		expect_mem(room + (size_t)n * BYTES, want, BYTES);
	}
	flash_stat(tf_tier, &after);
	expect_int(after.delivered_bytes - before.delivered_bytes, COUNT * BYTES);
	expect(after.device_read_bytes - before.device_read_bytes >= COUNT * BYTES);
	expect(after.device_read_bytes - before.device_read_bytes <
	       COUNT * BYTES * UINT64_C(110) / 100);
	/* one after the other they would take 200 times the latency of a read */
	expect(sim_now_ns() - begin_ns < COUNT * UINT64_C(100000) / 4);
	free(want);
	free(room);
	free(t);
	end();
}

TEST(saves_beyond_the_buffers_wait_for_room_and_all_end_well)
{
	enum { COUNT = 300 };
	struct tf_op *t = calloc(COUNT, sizeof(*t));

	begin(2);
	tier_cut_set(tf_tier, 512 * KiB - FRAME_BYTES, 0);
	tf_fill(data, sizeof(data), 1);
	for (uint32_t n = 0; n < COUNT; n++) {
		tf_set(&t[n], KVOF_SAVE, n, data, sizeof(data));
		tf_start(&t[n]);
	}
	for (uint32_t n = 0; n < COUNT; n++)
		expect_int(tf_wait(&t[n]), KVOF_OK);
	free(t);
	end();
}
