/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bit flipped anywhere on a drive: the store opens, every value is whole or a miss, at most one
 * entry is lost, and what was deleted stays deleted. Every byte of the superblocks, of the
 * segment's header and footer and of the record headers; every 61st byte of the payload. And of a
 * whole small drive with several segments every byte there is; with KVOF_FLIPS=all each of them,
 * else every 199th.
 */
#include "store_rig.h"

#include <errno.h>

#define KEYS 10
#define DELETED 3u

static uint32_t bytes_of(uint32_t key)
{
	return key * 1500;
}

struct image {
	struct rig g;
	uint8_t *medium, *copy;
	uint64_t bytes;
	uint32_t segment_bytes;
	unsigned flips, lost;
};

static void image_make(struct image *im)
{
	rig_begin(&im->g, 1, 1, 3 * MiB);
	expect_int(rig_open(&im->g), 0);
	for (uint32_t i = 0; i < KEYS; i++)
		expect_int(rig_put(&im->g, i, 1, bytes_of(i)), 0);
	expect_int(rig_delete(&im->g, DELETED), 0);
	im->segment_bytes = im->g.st->segment_bytes;
	rig_close(&im->g);
	im->medium = sim_disk_bytes("drive0", &im->bytes);
	im->copy = malloc(im->bytes);
	memcpy(im->copy, im->medium, im->bytes);
	im->flips = im->lost = 0;
}

static void flip(struct image *im, uint64_t at)
{
	unsigned lost = 0;

	memcpy(im->medium, im->copy, im->bytes);
	im->medium[at] ^= (uint8_t)(1 << at % 8);
	if (rig_open(&im->g) != 0)
		fail_msg("byte %llu: %s", (unsigned long long)at, im->g.report.text);
	for (uint32_t i = 0; i < KEYS; i++) {
		int rc = rig_get(&im->g, i, 1, bytes_of(i));

		if (i == DELETED) {
			expect_int(rc, -ENOENT);
			continue;
		}
		if (rc != 0 && rc != -ENOENT && rc != -EBADMSG)
			fail_msg("byte %llu: key %u: %d", (unsigned long long)at, i, rc);
		lost += rc != 0;
	}
	if (lost > 1)
		fail_msg("byte %llu: %u values lost", (unsigned long long)at, lost);
	im->lost += lost;
	im->flips++;
	rig_close(&im->g);
}

TEST(any_byte_of_the_metadata_flipped_costs_at_most_one_entry_and_brings_nothing_back)
{
	struct image im;
	uint64_t segment = FMT_FIRST_SEGMENT_BLOCK * FMT_BLOCK_BYTES, end, block = 1;
	uint64_t footer = sizeof(struct fmt_segment) + (KEYS + 1) * sizeof(struct fmt_entry);

	image_make(&im);
	end = segment + im.segment_bytes - FMT_BLOCK_BYTES;
	expect_mem(im.copy + end, "KVOFSEGF", 8);   /* the footer is where it is flipped */
	for (uint64_t i = 0; i < sizeof(struct fmt_super); i++) {
		flip(&im, i);
		flip(&im, im.bytes - FMT_BLOCK_BYTES + i);
	}
	for (uint64_t i = 0; i < sizeof(struct fmt_segment); i++)
		flip(&im, segment + i);
	for (uint64_t i = 0; i < footer; i++)
		flip(&im, end + i);
	expect_int(im.lost, 0);
	for (uint32_t k = 0; k <= KEYS; k++) {
		for (uint64_t i = 0; i < sizeof(struct fmt_record); i++)
			flip(&im, segment + block * FMT_BLOCK_BYTES + i);
		block += k < KEYS ? fmt_record_blocks(bytes_of(k)) : 1;
	}
	printf("# %u flips, %u values lost\n", im.flips, im.lost);
	expect(im.lost > 0);
	free(im.copy);
	rig_end(&im.g);
}

TEST(any_byte_of_a_value_flipped_costs_that_value_only)
{
	struct image im;
	uint64_t segment = FMT_FIRST_SEGMENT_BLOCK * FMT_BLOCK_BYTES, block = 1;

	image_make(&im);
	for (uint32_t k = 0; k < KEYS; k++) {
		for (uint64_t i = 0; i < bytes_of(k); i += 61) {
			unsigned before = im.lost;

			flip(&im, segment + block * FMT_BLOCK_BYTES +
					  sizeof(struct fmt_record) + i);
			expect_int(im.lost - before, k != DELETED);
		}
		block += fmt_record_blocks(bytes_of(k));
	}
	free(im.copy);
	rig_end(&im.g);
}

/* --- every byte of a whole drive -------------------- */

#define WHOLE_KEYS 32u

static uint32_t whole_bytes(uint32_t key)
{
	return key % 7 == 0 ? key * 10 : 7000 + key * 250;
}

/* Sealed segments, an open one, overwritten and deleted keys, free segments. */
static void whole_make(struct image *im, bool killed)
{
	rig_begin(&im->g, 3, 1, 1 * MiB);
	im->g.opts.evict = false;
	im->g.opts.value_bytes_max = 30000;
	im->g.opts.segment_bytes = 128 * 1024;
	im->g.opts.index_keys_max = 64;
	im->g.opts.buffer_bytes = 1;
	expect_int(rig_open(&im->g), 0);
	for (uint32_t i = 0; i < WHOLE_KEYS; i++)
		expect_int(rig_put(&im->g, i, 1, whole_bytes(i)), 0);
	for (uint32_t i = 0; i < WHOLE_KEYS; i += 8)
		expect_int(rig_delete(&im->g, i), 0);
	for (uint32_t i = 1; i < WHOLE_KEYS; i += 8)
		expect_int(rig_put(&im->g, i, 2, whole_bytes(i)), 0);
	while (killed && sim_step())
		;
	im->segment_bytes = im->g.st->segment_bytes;
	if (killed)
		rig_crash(&im->g, true);
	else
		rig_close(&im->g);
	im->medium = sim_disk_bytes("drive0", &im->bytes);
	im->copy = malloc(im->bytes);
	memcpy(im->copy, im->medium, im->bytes);
	im->flips = im->lost = 0;
}

/* Return: values that are missed. */
static unsigned whole_look(struct image *im, uint64_t at)
{
	unsigned lost = 0;

	for (uint32_t i = 0; i < WHOLE_KEYS; i++) {
		int rc = rig_get(&im->g, i, i % 8 == 1 ? 2 : 1, whole_bytes(i));

		if (rc != -ENOENT && rc != -EBADMSG && (rc != 0 || i % 8 == 0))
			fail_msg("byte %llu: key %u: %d", (unsigned long long)at, i, rc);
		lost += rc != 0;
	}
	return lost;
}

/* The store is opened on the drive with the flip, and everything is read. */
static void flip_opened(struct image *im, uint64_t at)
{
	unsigned lost;

	im->medium[at] ^= (uint8_t)(1 << at % 8);
	if (rig_open(&im->g) != 0)
		fail_msg("byte %llu: %s", (unsigned long long)at, im->g.report.text);
	lost = whole_look(im, at);
	if (lost > WHOLE_KEYS / 8 + 1)
		fail_msg("byte %llu: %u values lost", (unsigned long long)at,
			 lost - WHOLE_KEYS / 8);
	im->lost += lost - WHOLE_KEYS / 8;
	im->flips++;
	rig_crash(&im->g, true);
	memcpy(im->medium, im->copy, im->bytes);
}

/* Nothing that an open looks at: in a store that is open, the value that has the byte is read. */
static void flip_read(struct image *im, uint64_t at)
{
	uint32_t block = (uint32_t)(at >> FMT_BLOCK_SHIFT);
	struct store *st = im->g.st;

	im->medium[at] ^= (uint8_t)(1 << at % 8);
	for (uint32_t i = 0; i < WHOLE_KEYS; i++) {
		struct kv_key key = rig_key(i);
		uint32_t entry = index_find(st->index, &key);
		struct index_place p;
		uint64_t offset;
		bool mine;
		int rc;

		if (entry == INDEX_NONE)
			continue;
		p = index_place(st->index, entry);
		if (block < p.block || block >= p.block + fmt_record_blocks(p.value_bytes))
			continue;
		offset = at - ((uint64_t)p.block << FMT_BLOCK_SHIFT);
		mine = offset < sizeof(struct fmt_record) + p.value_bytes;
		rc = rig_get(&im->g, i, i % 8 == 1 ? 2 : 1, whole_bytes(i));
		if (rc != (mine ? -EBADMSG : 0))
			fail_msg("byte %llu: key %u: %d", (unsigned long long)at, i, rc);
		im->lost += mine;
		if (!mine)
			continue;
		index_set_flags(st->index, entry, 0);    /* as if it had not been found bad */
		st->dead_entries--;
		st->value_bytes += p.value_bytes;
	}
	im->medium[at] = im->copy[at];
	im->flips++;
}

/* The structs: superblocks, headers and footers of segments, and headers of records. What fills
 * their blocks up is no part of it. */
static bool is_metadata(const struct image *im, uint64_t at)
{
	uint64_t block = at >> FMT_BLOCK_SHIFT, blocks = im->segment_bytes >> FMT_BLOCK_SHIFT;
	uint64_t in = (block - FMT_FIRST_SEGMENT_BLOCK) % blocks, byte = at % FMT_BLOCK_BYTES;
	uint64_t footer = sizeof(struct fmt_segment) + blocks * sizeof(struct fmt_entry);

	if (block < FMT_FIRST_SEGMENT_BLOCK || block == (im->bytes >> FMT_BLOCK_SHIFT) - 1)
		return byte < sizeof(struct fmt_super) &&
		       (block == 0 || block >= FMT_FIRST_SEGMENT_BLOCK);
	if (in == 0 || in == blocks - 1)
		return byte < (in == 0 ? sizeof(struct fmt_segment) : footer);
	return byte < sizeof(struct fmt_record) &&
	       memcmp(im->copy + (block << FMT_BLOCK_SHIFT), "KVOFRECD", 8) == 0;
}

static void flips_whole(bool killed)
{
	const char *env = getenv("KVOF_FLIPS");
	uint64_t stride = env != NULL && strcmp(env, "all") == 0 ? 1 : 199;
	uint64_t reads = 0;
	struct image im;

	whole_make(&im, killed);
	for (uint64_t at = 0; at < im.bytes; at += stride) {
		if (is_metadata(&im, at) || at / stride % 67 == 0)
			flip_opened(&im, at);
	}
	expect_int(rig_open(&im.g), 0);
	memcpy(im.copy, im.medium, im.bytes);        /* an open writes, too */
	for (uint64_t at = 0; at < im.bytes; at += stride) {
		if (!is_metadata(&im, at)) {
			flip_read(&im, at);
			reads++;
		}
	}
	expect_int(whole_look(&im, 0), WHOLE_KEYS / 8);
	printf("# %u flips, %llu of them read only, %u values lost\n", im.flips,
	       (unsigned long long)reads, im.lost);
	expect(im.lost > im.flips / 4);
	free(im.copy);
	rig_end(&im.g);
}

TEST(any_byte_of_a_whole_drive_that_was_closed_flipped_costs_at_most_one_value)
{
	flips_whole(false);
}

TEST(any_byte_of_a_whole_drive_of_a_killed_process_flipped_costs_at_most_one_value)
{
	flips_whole(true);
}

/* --- a header in an open segment -------------------- */

TEST(a_header_that_goes_bad_after_a_kill_costs_its_record_where_a_later_one_vouches_for_it)
{
	for (unsigned field = 0; field < 6; field++) {
		static const unsigned at[] = {0, 8, 16, 24, 64, 100};    /* the length is at 64 */
		struct rig g;
		struct index_place p;
		struct kv_key key = rig_key(5);
		uint8_t *medium;
		unsigned lost = 0;

		rig_begin(&g, 20 + field, 1, 16 * MiB);
		expect_int(rig_open(&g), 0);
		for (uint32_t i = 0; i < 12; i++)
			expect_int(rig_put(&g, i, 1, 20000), 0);
		expect_int(rig_flush(&g), 0);
		for (uint32_t i = 12; i < 20; i++)
			expect_int(rig_put(&g, i, 1, 20000), 0);
		p = index_place(g.st->index, index_find(g.st->index, &key));
		rig_crash(&g, true);
		medium = sim_disk_bytes("drive0", NULL) + ((uint64_t)p.block << FMT_BLOCK_SHIFT);
		expect_mem(medium, "KVOFRECD", 8);
		medium[at[field]] ^= 0x40;
		expect_int(rig_open(&g), 0);
		for (uint32_t i = 0; i < 20; i++)
			lost += rig_get(&g, i, 1, 20000) != 0;
		printf("# byte %u of a header: %u lost\n", at[field], lost);
		expect_int(rig_get(&g, 5, 1, 20000), -ENOENT);
		expect_int(lost, 1);
		rig_end(&g);
	}
}
