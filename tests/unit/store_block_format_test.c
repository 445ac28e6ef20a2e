/* SPDX-License-Identifier: Apache-2.0 */
#include "kt.h"

#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "store/block_format.h"

static const struct blk_geometry usual = {.uuid = "0123456789abcde", .drive = 1, .drive_count = 3,
	.shard = 1, .shard_count = 2, .block_bytes = 4096, .size_bytes = 3 * GiB,
	.part_bytes = 600 * MiB};

static void page_fill(uint32_t slot[BLK_PAGE_ENTRIES], uint32_t seed)
{
	struct blk_layout lay = blk_layout_of(&usual);

	for (unsigned i = 0; i < BLK_PAGE_ENTRIES; i++)
		slot[i] = (i * 7 + seed) % lay.slot_count + 1;
}

static const char *page_read(const uint8_t page[BLK_BYTES], uint32_t number, unsigned place,
			     uint64_t *version)
{
	struct blk_layout lay = blk_layout_of(&usual);
	static uint32_t slot[BLK_PAGE_ENTRIES];

	kt_noise(slot, sizeof(slot));
	return blk_page_read(&usual, &lay, number, place, page, version, slot);
}

static void reseal(uint8_t *at, size_t bytes)
{
	le32 crc = le32_of(crc32c(at + 12, bytes - 12));

	memcpy(at + 8, &crc, 4);
}

TEST(a_part_of_the_size_asked_for_holds_its_share_and_no_chunk_is_in_two_parts)
{
	static const uint64_t sizes[] = {4096, 256 * KiB, 256 * KiB + 4096, 100 * MiB, GiB,
		GiB + 512, 40 * GiB, 5 * TiB};

	for (unsigned n = 0; n < ARRAY_COUNT(sizes) * 16; n++) {
		struct blk_geometry g = usual;
		uint64_t chunks = 0;

		g.size_bytes = sizes[n / 16];
		g.shard_count = (uint8_t)(1 + n % 4);
		g.drive_count = (uint8_t)(1 + n / 4 % 4);
		g.part_bytes = blk_part_bytes(g.size_bytes, g.shard_count, g.drive_count);
		for (g.shard = 0; g.shard < g.shard_count; g.shard++)
			for (g.drive = 0; g.drive < g.drive_count; g.drive++) {
				struct blk_layout lay = blk_layout_of(&g);

				chunks += lay.chunk_count;
				expect(lay.slot_count >= lay.chunk_count);
				expect(lay.first_slot_bytes % BLK_CHUNK_BYTES == 0);
				expect(lay.first_slot_bytes >=
				       blk_page_block(lay.page_count, 0) * BLK_BYTES);
				expect(lay.first_slot_bytes +
				       ((uint64_t)lay.slot_count << BLK_CHUNK_SHIFT) <=
				       g.part_bytes - BLK_BYTES);
			}
		expect_int(chunks, (g.size_bytes + BLK_CHUNK_BYTES - 1) >> BLK_CHUNK_SHIFT);
	}
}

TEST(a_part_too_small_for_a_chunk_has_no_slot)
{
	struct blk_geometry g = usual;

	g.part_bytes = blk_layout_of(&g).first_slot_bytes + BLK_CHUNK_BYTES + BLK_BYTES - 1;
	expect_int(blk_layout_of(&g).slot_count, 0);
	g.part_bytes++;
	expect_int(blk_layout_of(&g).slot_count, 1);
	g.part_bytes = 4096;
	expect_int(blk_layout_of(&g).slot_count, 0);
}

TEST(a_superblock_is_read_as_written_and_any_flipped_byte_is_seen)
{
	uint8_t block[BLK_BYTES], other[BLK_BYTES];
	enum blk_super_state how;
	struct blk_geometry is;

	blk_super_write(&usual, BLK_MADE, 77, block);
	kt_noise(&is, sizeof(is));
	expect(blk_super_read(block, 77, &is, &how) == NULL);
	expect_int(how, BLK_MADE);
	expect(blk_geometry_differs(&is, &usual) == NULL);
	expect_str(blk_super_read(block, 78, &is, &how), "was written for another place");
	for (unsigned i = 0; i < sizeof(struct blk_super); i++) {
		memcpy(other, block, BLK_BYTES);
		other[i] ^= 0x10;
		expect(blk_super_read(other, 77, &is, &how) != NULL);
	}
	memset(other, 0, BLK_BYTES);
	expect_str(blk_super_read(other, 77, &is, &how), "blank");
}

TEST(a_superblock_of_another_kind_of_namespace_is_told_apart)
{
	static const struct {
		size_t offset;
		uint8_t value;
	} bad[] = {{offsetof(struct blk_super, version), 2},
		{offsetof(struct blk_super, shard_count), 0},
		{offsetof(struct blk_super, drive), 3},
		{offsetof(struct blk_super, chunk_bytes), 1},
		{offsetof(struct blk_super, block_bytes), 1},
		{offsetof(struct blk_super, state), 3}};
	struct blk_geometry is, want;
	enum blk_super_state how;
	uint8_t block[BLK_BYTES];

	for (unsigned i = 0; i < ARRAY_COUNT(bad); i++) {
		blk_super_write(&usual, BLK_MADE, 0, block);
		block[bad[i].offset] = bad[i].value;
		reseal(block, sizeof(struct blk_super));
		expect(blk_super_read(block, 0, &is, &how) != NULL);
	}
	for (unsigned i = 0; i < 6; i++) {
		want = usual;
		want.uuid[3] ^= i == 0;
		want.shard ^= i == 1;
		want.drive_count = (uint8_t)(want.drive_count + (i == 2));
		want.size_bytes += i == 3;
		want.block_bytes += i == 4;
		want.part_bytes += i == 5;
		expect(blk_geometry_differs(&usual, &want) != NULL);
	}
}

TEST(a_map_page_is_read_as_written_and_only_at_its_own_place)
{
	uint32_t slot[BLK_PAGE_ENTRIES], out[BLK_PAGE_ENTRIES];
	struct blk_layout lay = blk_layout_of(&usual);
	struct blk_geometry other = usual;
	uint8_t page[BLK_BYTES];
	uint64_t version = 0;

	page_fill(slot, 1);
	blk_page_write(&usual, 0, 2, 9, slot, page);
	expect(blk_page_read(&usual, &lay, 0, 2, page, &version, out) == NULL);
	expect_int(version, 9);
	expect_mem(out, slot, sizeof(slot));
	expect(page_read(page, 0, 1, &version) != NULL);
	expect(page_read(page, 1, 2, &version) != NULL);
	other.uuid[0] ^= 1;
	expect_str(blk_page_read(&other, &lay, 0, 2, page, &version, out),
		   "belongs to another part");
	other = usual;
	other.drive = 2;
	expect_str(blk_page_read(&other, &lay, 0, 2, page, &version, out),
		   "belongs to another part");
	lay.slot_count = 5;
	expect_str(blk_page_read(&usual, &lay, 0, 2, page, &version, out),
		   "names a slot that there is not");
}

TEST(a_page_of_which_a_part_is_older_is_not_believed)
{
	uint32_t slot[BLK_PAGE_ENTRIES];
	uint8_t older[BLK_BYTES], newer[BLK_BYTES], torn[BLK_BYTES];
	uint64_t version;

	page_fill(slot, 1);
	blk_page_write(&usual, 0, 0, 8, slot, older);
	page_fill(slot, 2);
	blk_page_write(&usual, 0, 0, 12, slot, newer);
	for (unsigned mask = 1; mask < 255; mask++) {  /* any sectors of it, but all or none */
		for (unsigned i = 0; i < 8; i++)
			memcpy(torn + i * 512, (mask >> i & 1 ? newer : older) + i * 512, 512);
		expect(page_read(torn, 0, 0, &version) != NULL);
	}
	expect(page_read(newer, 0, 0, &version) == NULL);
}

TEST(any_flipped_byte_of_a_page_is_seen)
{
	uint32_t slot[BLK_PAGE_ENTRIES];
	uint8_t page[BLK_BYTES];
	uint64_t version;

	page_fill(slot, 3);
	blk_page_write(&usual, 0, 3, 1, slot, page);
	for (unsigned i = 0; i < BLK_BYTES; i++) {
		page[i] ^= 4;
		expect(page_read(page, 0, 3, &version) != NULL);
		page[i] ^= 4;
	}
	expect(page_read(page, 0, 3, &version) == NULL);
}

TEST(a_page_names_no_slot_for_chunks_that_there_are_not)
{
	struct blk_geometry small = usual;
	uint32_t slot[BLK_PAGE_ENTRIES] = {0}, out[BLK_PAGE_ENTRIES];
	uint8_t page[BLK_BYTES];
	struct blk_layout lay;
	uint64_t version;

	small.size_bytes = 100 * MiB;
	lay = blk_layout_of(&small);
	expect(lay.chunk_count < BLK_PAGE_ENTRIES);
	slot[lay.chunk_count] = 1;
	blk_page_write(&small, 0, 0, 1, slot, page);
	expect_str(blk_page_read(&small, &lay, 0, 0, page, &version, out),
		   "names a slot that there is not");
}
