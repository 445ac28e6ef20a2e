/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bit flipped anywhere on a drive: the store opens, every value is whole or a miss, at most one
 * entry is lost, and what was deleted stays deleted. Every byte of the superblocks, of the
 * segment's header and footer and of the record headers; every 61st byte of the payload.
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
