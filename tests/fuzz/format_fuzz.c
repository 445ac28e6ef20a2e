/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input: what a drive may hold, one kind byte and up to nine blocks: superblock, segment header,
 * footer with its entries, record header. The checksum is made right first, so that every field is
 * reached; what is accepted must be within the bounds that the store relies on.
 */
#include <string.h>

#include "base/hash.h"
#include "base/must.h"
#include "store/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SEGMENT_BYTES (1024u * 1024)
#define BLOCKS_MAX 9u
#define CRC_AT 8u

static const uint8_t uuid[] = "format-fuzz-uuid";

/* The checksum covers what follows it, to the end of the struct. */
static void seal(uint8_t *at, size_t bytes)
{
	le32 crc = le32_of(crc32c(at + CRC_AT + 4, bytes - CRC_AT - 4));

	memcpy(at + CRC_AT, &crc, 4);
}

static void super(uint8_t *block)
{
	struct fmt_super_info info;

	if (fmt_super_check(block, 0, &info) != FMT_SUPER_OK)
		return;
	must(info.drive_count >= 1 && info.drive_count <= FMT_DRIVES_MAX);
	must(info.drive < info.drive_count && info.segment_bytes >= 4 * FMT_BLOCK_BYTES);
	must(info.segment_bytes % FMT_BLOCK_BYTES == 0);
	must(fmt_segment_count(info.drive_bytes, info.segment_bytes) <=
	     info.drive_bytes / info.segment_bytes);
}

static void header(const uint8_t *block, const struct fmt_place *at)
{
	struct fmt_segment_info info;

	if (fmt_header_check(block, at, SEGMENT_BYTES, &info) == NULL)
		must(info.state >= FMT_SEGMENT_ERASED && info.state <= FMT_SEGMENT_SEALED);
}

/* The blocks in front of the tail are there when the tail asks for no more than the input has. */
static void footer(uint8_t *blocks, uint32_t count, const struct fmt_place *at)
{
	static struct fmt_entry entries[SEGMENT_BYTES / FMT_BLOCK_BYTES];
	uint8_t *tail = blocks + (size_t)(count - 1) * FMT_BLOCK_BYTES;
	struct fmt_segment_info info;
	uint32_t need;

	if (fmt_footer_check(tail, at, SEGMENT_BYTES, &info) != NULL)
		return;
	must(info.entry_count <= fmt_entries_max(SEGMENT_BYTES));
	need = fmt_footer_blocks(info.entry_count);
	must(need + info.used_blocks <= SEGMENT_BYTES / FMT_BLOCK_BYTES);
	if (need > count)
		return;
	if (fmt_footer_entries(tail - (size_t)(need - 1) * FMT_BLOCK_BYTES, &info, entries) != NULL)
		return;
	for (uint32_t i = 0; i < info.entry_count; i++) {
		uint64_t end = le32_get(entries[i].block) +
			       (uint64_t)fmt_record_blocks(le32_get(entries[i].value_bytes));

		must(entries[i].key_len >= 1 && entries[i].key_len <= FMT_KEY_PART);
		must(le32_get(entries[i].block) >= 1 && end <= info.used_blocks);
	}
}

static void record(const uint8_t *block, const struct fmt_place *at, uint32_t room)
{
	struct fmt_record_info info;

	if (fmt_record_check(block, at, room, &info) != NULL)
		return;
	must(info.key.len >= 1 && info.key.len <= FMT_KEY_PART);
	must(info.key.len == FMT_KEY_PART ||
	     bytes_all_zero(info.key.byte + info.key.len, KV_KEY_BYTES_MAX - info.key.len));
	must(fmt_record_blocks(info.value_bytes) <= room);
	must(info.kind == FMT_PUT || info.kind == FMT_DELETE);
	must(info.sequence <= FMT_SEQ_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t blocks[BLOCKS_MAX * FMT_BLOCK_BYTES];
	struct fmt_place at = {.store_id = fmt_store_id(uuid), .drive = 1, .block = 300};
	uint32_t count;
	size_t bytes;

	if (size < 2)
		return 0;
	bytes = bytes_min(size - 1, sizeof(blocks));
	count = (uint32_t)((bytes + FMT_BLOCK_BYTES - 1) / FMT_BLOCK_BYTES);
	memset(blocks, 0, sizeof(blocks));
	memcpy(blocks, data + 1, bytes);
	switch (data[0] & 3) {
	case 0:
		seal(blocks, sizeof(struct fmt_super));
		super(blocks);
		break;
	case 1:
		seal(blocks, sizeof(struct fmt_segment));
		header(blocks, &at);
		break;
	case 2:
		seal(blocks + (size_t)(count - 1) * FMT_BLOCK_BYTES, sizeof(struct fmt_segment));
		footer(blocks, count, &at);
		break;
	default:
		seal(blocks, sizeof(struct fmt_record));
		record(blocks, &at, data[0] >> 2);
		break;
	}
	return 0;
}
