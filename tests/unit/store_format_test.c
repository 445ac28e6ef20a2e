/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/format.c: bytes laid down are read back, and any byte changed is noticed. */
#include "kt.h"

#include "base/must.h"
#include "base/prng.h"
#include "store/format.h"

static const struct fmt_place place = {.store_id = 77, .drive = 3, .block = 16};
#define SEGMENT (2u << 20)

static struct fmt_super_info super_info(void)
{
	struct fmt_super_info in = {
		.drive = 1, .drive_count = 4, .segment_bytes = SEGMENT,
		.value_bytes_max = 512 * 1024,
		.mount = 9, .trusted = 15, .drive_bytes = 64 * MiB, .write_count = 5, .epoch = 2,
		.generation_min = 11, .sequence_min = 1234,
	};

	memcpy(in.uuid, "0123456789abcdef", 16);
	in.store_id = fmt_store_id(in.uuid);
	return in;
}

TEST(a_superblock_comes_back_field_by_field)
{
	struct fmt_super_info in = super_info(), out;
	uint8_t block[FMT_BLOCK_BYTES];

	kt_noise(block, sizeof(block));
	kt_noise(&out, sizeof(out));
	fmt_super_write(block, &in, 7);
	expect_int(fmt_super_check(block, 7, &out), FMT_SUPER_OK);
	expect_mem(in.uuid, out.uuid, 16);
	expect_int(in.store_id, out.store_id);
	expect_int(in.drive * 256 + in.drive_count, out.drive * 256 + out.drive_count);
	expect_int(in.segment_bytes, out.segment_bytes);
	expect_int(in.value_bytes_max, out.value_bytes_max);
	expect_int(in.mount, out.mount);
	expect_int(in.trusted, out.trusted);
	expect_int(in.drive_bytes, out.drive_bytes);
	expect_int(in.write_count, out.write_count);
	expect_int(in.epoch, out.epoch);
	expect_int(in.generation_min, out.generation_min);
	expect_int(in.sequence_min, out.sequence_min);
	expect_int(fmt_super_check(block, 8, &out), FMT_SUPER_DAMAGED);
}

TEST(no_block_of_a_drive_however_large_has_a_number_past_32_bits)
{
	static const uint32_t sizes[] = {64 << 10, 2 << 20, 256 << 20};

	for (unsigned i = 0; i < 3; i++) {
		for (unsigned shift = 30; shift < 60; shift++) {
			uint64_t drive = UINT64_C(1) << shift;
			uint32_t count = fmt_segment_count(drive, sizes[i]);
			uint64_t end = fmt_segment_block(sizes[i], count);

			expect(end <= UINT32_MAX && end * FMT_BLOCK_BYTES < drive);
			if (shift < 44 && count < 1u << 24)
				expect(end * FMT_BLOCK_BYTES + sizes[i] + FMT_BLOCK_BYTES > drive);
		}
	}
}

TEST(a_superblock_that_leaves_no_room_to_count_or_for_a_value_is_damaged)
{
	uint8_t block[FMT_BLOCK_BYTES];

	for (unsigned i = 0; i < 3; i++) {
		struct fmt_super_info in = {.drive_count = 1, .segment_bytes = 256 << 20}, out;

		in.uuid[0] = 1;
		in.value_bytes_max = i == 1 ? FMT_VALUE_BYTES_MAX + 1 : FMT_VALUE_BYTES_MAX;
		in.sequence_min = i == 2 ? FMT_SEQ_MAX : FMT_SEQ_FOUND_MAX;
		fmt_super_write(block, &in, 0);
		expect_int(fmt_super_check(block, 0, &out),
			   i == 0 ? FMT_SUPER_OK : FMT_SUPER_DAMAGED);
	}
}

TEST(any_bit_flipped_in_a_superblock_is_noticed)
{
	struct fmt_super_info in = super_info(), out;
	uint8_t block[FMT_BLOCK_BYTES];

	fmt_super_write(block, &in, 0);
	for (unsigned bit = 0; bit < 8 * sizeof(struct fmt_super); bit++) {
		block[bit / 8] ^= (uint8_t)(1 << bit % 8);
		expect(fmt_super_check(block, 0, &out) != FMT_SUPER_OK);
		block[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	expect_int(fmt_super_check(block, 0, &out), FMT_SUPER_OK);
}

TEST(blank_foreign_and_newer_superblocks_are_told_apart)
{
	struct fmt_super_info in = super_info(), out;
	uint8_t block[FMT_BLOCK_BYTES] = {0};

	expect_int(fmt_super_check(block, 0, &out), FMT_SUPER_BLANK);
	block[4000] = 1;
	expect_int(fmt_super_check(block, 0, &out), FMT_SUPER_FOREIGN);
	fmt_super_write(block, &in, 0);
	block[offsetof(struct fmt_super, version)] = FMT_VERSION + 1;
	expect_int(fmt_super_check(block, 0, &out), FMT_SUPER_NEWER);
}

/* Each open counts it up; past 32 bits the generations of new segments would be the lowest. */
TEST(a_superblock_whose_mounts_are_used_up_is_not_believed)
{
	uint8_t block[FMT_BLOCK_BYTES];
	struct fmt_super_info in, out;

	for (uint32_t left = 0; left < 40; left++) {
		memset(block, 0, sizeof(block));
		in = super_info();
		in.mount = UINT32_MAX - left;
		fmt_super_write(block, &in, 0);
		expect_int(fmt_super_check(block, 0, &out),
			   left < 16 ? FMT_SUPER_DAMAGED : FMT_SUPER_OK);
	}
}

static struct fmt_segment_info segment_info(uint32_t entries)
{
	return (struct fmt_segment_info){
		.state = FMT_SEGMENT_SEALED, .generation = 0x900000005, .oldest_generation = 4,
		.sequence_base = 1000, .used_blocks = 1 + entries, .entry_count = entries,
		.mount = 9,
	};
}

static void entries_fill(struct fmt_entry *e, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		e[i] = (struct fmt_entry){.block = le32_of(1 + i), .value_bytes = le32_of(100),
					  .sequence_delta = le32_of(i), .key_len = 16,
					  .kind = FMT_PUT};
		memset(e[i].key, (int)(i + 1), 16);
	}
}

TEST(a_footer_of_any_number_of_records_comes_back)
{
	static const uint32_t counts[] = {0, 1, 123, 124, 125, 252, 253, 505};

	for (unsigned c = 0; c < ARRAY_COUNT(counts); c++) {
		struct fmt_entry in[505], out[505];
		uint8_t footer[8 * FMT_BLOCK_BYTES];
		struct fmt_segment_info info = segment_info(counts[c]), got;
		uint32_t blocks = fmt_footer_blocks(counts[c]);

		entries_fill(in, counts[c]);
		kt_noise(footer, sizeof(footer));
		kt_noise(out, sizeof(out));
		fmt_footer_write(footer, &place, SEGMENT, &info, in);
		expect(fmt_footer_check(footer + (blocks - 1) * FMT_BLOCK_BYTES, &place, SEGMENT,
					&got) == NULL);
		expect_int(got.entry_count, counts[c]);
		expect_int(got.generation, info.generation);
		expect(fmt_footer_entries(footer, &got, out) == NULL);
		expect_mem(in, out, counts[c] * sizeof(in[0]));
	}
}

TEST(any_byte_flipped_in_a_footer_is_noticed_unless_it_is_padding)
{
	struct fmt_entry in[130], out[130];
	uint8_t footer[2 * FMT_BLOCK_BYTES];
	struct fmt_segment_info info = segment_info(130), got;

	entries_fill(in, 130);
	fmt_footer_write(footer, &place, SEGMENT, &info, in);
	for (unsigned i = 0; i < sizeof(footer); i++) {
		bool padding = i >= 6 * sizeof(in[0]) && i < FMT_BLOCK_BYTES;
		const char *wrong;

		footer[i] ^= 0x40;
		wrong = fmt_footer_check(footer + FMT_BLOCK_BYTES, &place, SEGMENT, &got);
		if (wrong == NULL)
			wrong = fmt_footer_entries(footer, &got, out);
		expect((wrong == NULL) == padding);
		footer[i] ^= 0x40;
	}
}

/* A checksum says only that the bytes are as written: a hostile drive may have written anything. */
TEST(a_footer_with_a_good_checksum_and_an_entry_out_of_bounds_is_refused)
{
	struct fmt_segment_info info = segment_info(2), got;
	uint8_t footer[FMT_BLOCK_BYTES];
	struct fmt_entry good[2], e[2], out[2];

	entries_fill(good, 2);
	for (unsigned bad = 0; bad < 6; bad++) {
		memcpy(e, good, sizeof(e));
		if (bad == 0)
			e[1].block = le32_of(info.used_blocks);
		else if (bad == 1)
			e[1].value_bytes = le32_of(UINT32_MAX);
		else if (bad == 2)
			e[1].key_len = 18;
		else if (bad == 3)
			e[1].key_len = 3;            /* with bytes behind it */
		else if (bad == 4)
			e[1].kind = 9;
		else
			e[1].block = le32_of(0);
		fmt_footer_write(footer, &place, SEGMENT, &info, e);
		expect(fmt_footer_check(footer, &place, SEGMENT, &got) == NULL);
		expect(fmt_footer_entries(footer, &got, out) != NULL);
	}
}

TEST(a_header_of_another_place_store_or_size_is_refused)
{
	struct fmt_segment_info info = segment_info(0), got;
	struct fmt_place other;
	uint8_t block[FMT_BLOCK_BYTES];

	fmt_header_write(block, &place, SEGMENT, &info);
	expect(fmt_header_check(block, &place, SEGMENT, &got) == NULL);
	expect_int(got.sequence_base, 1000);
	other = place, other.block++;
	expect(fmt_header_check(block, &other, SEGMENT, &got) != NULL);
	other = place, other.drive++;
	expect(fmt_header_check(block, &other, SEGMENT, &got) != NULL);
	other = place, other.store_id++;
	expect(fmt_header_check(block, &other, SEGMENT, &got) != NULL);
	expect(fmt_header_check(block, &place, SEGMENT * 2, &got) != NULL);
	expect(fmt_footer_check(block, &place, SEGMENT, &got) != NULL);
}

TEST(any_bit_flipped_in_a_record_header_is_noticed)
{
	struct fmt_record_info in = {.key = {.len = 3, .byte = "abc"}, .kind = FMT_PUT,
				     .generation = 8,
				     .sequence = 99, .payload_xxh3 = 12345, .value_bytes = 5000,
				     .mount = 2, .durable_blocks = 17}, out;
	uint8_t r[sizeof(struct fmt_record)];

	kt_noise(&out, sizeof(out));
	fmt_record_write(r, &place, &in);
	expect(fmt_record_check(r, &place, 2, &out) == NULL);
	expect(kv_key_equal(&in.key, &out.key));
	expect_int(in.kind, out.kind);
	expect_int(in.generation, out.generation);
	expect_int(in.sequence, out.sequence);
	expect_int(in.payload_xxh3, out.payload_xxh3);
	expect_int(in.value_bytes, out.value_bytes);
	expect_int(in.mount, out.mount);
	expect_int(in.durable_blocks, out.durable_blocks);
	expect(fmt_record_check(r, &place, 1, &out) != NULL);
	for (unsigned bit = 0; bit < 8 * sizeof(r); bit++) {
		r[bit / 8] ^= (uint8_t)(1 << bit % 8);
		expect(fmt_record_check(r, &place, 2, &out) != NULL);
		r[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

TEST(noise_is_never_taken_for_a_structure)
{
	struct prng p = prng_of(3);
	uint8_t block[FMT_BLOCK_BYTES];
	struct fmt_super_info super;
	struct fmt_segment_info segment;
	struct fmt_record_info record;

	for (unsigned i = 0; i < 500; i++) {
		prng_fill(&p, block, sizeof(block));
		expect_int(fmt_super_check(block, 0, &super), FMT_SUPER_FOREIGN);
		expect(fmt_header_check(block, &place, SEGMENT, &segment) != NULL);
		expect(fmt_footer_check(block, &place, SEGMENT, &segment) != NULL);
		expect(fmt_record_check(block, &place, 100, &record) != NULL);
	}
}

TEST(a_record_wastes_less_than_one_block)
{
	for (uint32_t bytes = 0; bytes < 20000; bytes++) {
		uint64_t room = (uint64_t)fmt_record_blocks(bytes) * FMT_BLOCK_BYTES;

		expect(room >= bytes + sizeof(struct fmt_record));
		expect(room - bytes - sizeof(struct fmt_record) < FMT_BLOCK_BYTES);
	}
	expect_int(fmt_record_blocks(0), 1);
	expect_int(fmt_record_blocks(64 * MiB), 64 * 256 + 1);
}
