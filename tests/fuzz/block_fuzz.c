/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input: a kind byte and a block, as a part of a block namespace may hold it: superblock or map
 * page; or an SQE with the ranges of a Dataset Management. The checksum is made right first, so
 * that every field is reached; what is accepted must be within the bounds that the store relies on.
 */
#include <string.h>

#include "base/hash.h"
#include "base/must.h"
#include "nvme/nvm.h"
#include "store/block_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct blk_geometry geometry = {.uuid = "0123456789abcde", .drive = 1,
	.drive_count = 2, .shard = 0, .shard_count = 1, .block_bytes = 4096,
	.size_bytes = 1 * GiB, .part_bytes = 300 * MiB};

static void seal(uint8_t *at, size_t bytes)
{
	le32 crc = le32_of(crc32c(at + 12, bytes - 12));

	memcpy(at + 8, &crc, 4);
}

static void super(uint8_t *block)
{
	enum blk_super_state state;
	struct blk_geometry is;
	struct blk_layout lay;

	seal(block, sizeof(struct blk_super));
	if (blk_super_read(block, 0, &is, &state) != NULL)
		return;
	must(is.shard < is.shard_count && is.drive < is.drive_count);
	must(is.block_bytes == 512 || is.block_bytes == 4096);
	must(state == BLK_MAKING || state == BLK_MADE);
	if (blk_geometry_differs(&is, &geometry) != NULL)
		return;
	lay = blk_layout_of(&is);
	must(lay.slot_count > 0);
}

static void page(uint8_t *block)
{
	static uint32_t slot[BLK_PAGE_ENTRIES];
	struct blk_layout lay = blk_layout_of(&geometry);
	uint64_t version = 0;

	seal(block, BLK_BYTES);
	if (blk_page_read(&geometry, &lay, 1, 2, block, &version, slot) != NULL)
		return;
	must(version > 0);
	for (unsigned i = 0; i < BLK_PAGE_ENTRIES; i++)
		must(slot[i] <= lay.slot_count &&
		     (slot[i] == 0 || BLK_PAGE_ENTRIES + i < lay.chunk_count));
}

static void command(const uint8_t *at)
{
	const struct nv_nvm_limits limits = {1000, 4096, 8 * MiB};
	struct nv_nvm_cmd cmd;
	struct bad bad;

	if (!nv_status_ok(nv_nvm_parse((const struct nv_sqe *)at, &limits, &cmd, &bad))) {
		must(bad.offset < 64);
		return;
	}
	must(cmd.bytes <= limits.transfer_bytes_max);
	if (cmd.block_count > 0)
		must(cmd.first_block < 1000 && cmd.block_count <= 1000 - cmd.first_block);
	if (cmd.opcode != NV_NVM_DSM)
		return;
	must(cmd.bytes <= 4096 && cmd.ranges >= 1);
	if (cmd.ranges > 16)
		cmd.ranges = 16;
	if (nv_status_ok(nv_dsm_check((const struct nv_dsm_range *)(at + 64), cmd.ranges, &limits,
				      &bad)))
		for (unsigned i = 0; i < cmd.ranges; i++) {
			const struct nv_dsm_range *r =
				(const struct nv_dsm_range *)(at + 64) + i;

			must(le32_get(r->blocks) == 0 ||
			     le64_get(r->slba) + le32_get(r->blocks) <= 1000);
		}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t block[BLK_BYTES];

	if (size < 2)
		return 0;
	memset(block, 0, sizeof(block));
	memcpy(block, data + 1, bytes_min(size - 1, sizeof(block)));
	switch (data[0] % 3) {
	case 0:
		super(block);
		break;
	case 1:
		page(block);
		break;
	default:
		command(block);
	}
	return 0;
}
