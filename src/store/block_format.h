/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a block namespace writes on its part of a drive, beside the blocks themselves, and the pure
 * functions that write and check it. docs/formats.md section "Block part" is the prose.
 *
 *   block 0                superblock, first copy
 *   block 1 + 4 p + i      map page p, place i of 4
 *   first_slot ...         slots of BLK_CHUNK_BYTES each
 *   last block             superblock, second copy
 *
 * Why a page has four places. Three contents of it may matter at once: the last that is known to be
 * durable (a power cut may fall back to it), the one that a flush on its way will make durable, and
 * the last that was written and answered for (a kill may fall back to it). What is being written is
 * the fourth. So no write of a page ever waits for a flush, and none can tear what is needed.
 *
 * Why a chunk has 256 KiB. Its map entry costs 4 bytes of memory and 16 on the drive: 16 MiB of
 * memory for a TiB that is written, and an open reads 64 MiB. A file system's scattered small
 * writes cost at most 64 times their size in room, and none of it in traffic, since slots are zero
 * before they are given out; 1 MiB I/O moves in at most 5 pieces, on several drives at once, and
 * chunks whose slots are neighbours move as one.
 *
 * Checks answer with a word for people: NULL is "fine". Any thread.
 */
#ifndef KVOF_STORE_BLOCK_FORMAT_H
#define KVOF_STORE_BLOCK_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

#define BLK_VERSION 1
#define BLK_BYTES 4096u                      /* of a superblock, of a map page */
#define BLK_CHUNK_SHIFT 18
#define BLK_CHUNK_BYTES (UINT64_C(1) << BLK_CHUNK_SHIFT)
#define BLK_PLACES 4u
#define BLK_PAGE_ENTRIES 1008u
#define BLK_SLOTS_MAX 0x7fffffffu

/* At both ends of a part on a drive that took the place of a lost one: what is gone is an error,
 * never zeros, also where no other part is left to tell that the namespace was made. */
void blk_lost_write(uint8_t out[BLK_BYTES]);
bool blk_lost_check(const uint8_t in[BLK_BYTES]);

enum blk_super_state { BLK_MAKING = 1, BLK_MADE = 2 };

/* What a superblock says; the part is useless to anyone for whom one of these is different. */
struct blk_geometry {
	uint8_t uuid[16];                    /* of the namespace */
	uint8_t drive, drive_count, shard, shard_count;
	uint32_t block_bytes;
	uint64_t size_bytes;                 /* of the namespace */
	uint64_t part_bytes;
};

struct blk_super {
	uint8_t magic[8];
	le32 crc;                            /* of the bytes that follow, to the struct's end */
	le32 version;
	uint8_t uuid[16];
	uint8_t drive, drive_count, shard, shard_count;
	uint8_t state;                       /* enum blk_super_state */
	uint8_t reserved_a[3];
	le32 block_bytes, chunk_bytes;
	le64 size_bytes, part_bytes;
	le64 block;                          /* own address */
	uint8_t reserved_b[56];
};
_Static_assert(sizeof(struct blk_super) == 128, "superblock of a block part is 128 bytes");
_Static_assert(_Alignof(struct blk_super) == 1, "read in place");

struct blk_page {
	uint8_t magic[8];
	le32 crc;                            /* of the bytes that follow, to the page's end */
	le32 number;
	uint8_t uuid[16];
	le64 block;                          /* own address: also says the place */
	le64 version;                        /* the highest whole one is the truth */
	uint8_t drive, shard;
	uint8_t reserved[14];
	le32 slot[BLK_PAGE_ENTRIES];         /* slot + 1; 0: reads as zeros */
};
_Static_assert(sizeof(struct blk_page) == BLK_BYTES, "a map page is one block");
_Static_assert(offsetof(struct blk_page, slot) == 64, "entries follow the head");
_Static_assert(_Alignof(struct blk_page) == 1, "read in place");

/* Where things are on the part of one drive of one shard. */
struct blk_layout {
	uint64_t chunk_count;                /* of this part; its share of the namespace */
	uint32_t page_count, slot_count;
	uint64_t first_slot_bytes;           /* from the start of the part */
};
/* slot_count 0: too small for even one chunk. */
struct blk_layout blk_layout_of(const struct blk_geometry *g);
/* Bytes that each part of a namespace needs to hold its share whole. */
uint64_t blk_part_bytes(uint64_t size_bytes, unsigned shards, unsigned drives);

static inline uint64_t blk_page_block(uint32_t page, unsigned place)
{
	return 1 + (uint64_t)page * BLK_PLACES + place;
}

void blk_super_write(const struct blk_geometry *g, enum blk_super_state state, uint64_t block,
		     uint8_t out[BLK_BYTES]);
/* out is filled when the answer is NULL. All zero is "blank". */
const char *blk_super_read(const uint8_t in[BLK_BYTES], uint64_t block, struct blk_geometry *out,
			   enum blk_super_state *state);
const char *blk_geometry_differs(const struct blk_geometry *is, const struct blk_geometry *want);

/* slot[]: [BLK_PAGE_ENTRIES], 0 or slot + 1. */
void blk_page_write(const struct blk_geometry *g, uint32_t page, unsigned place, uint64_t version,
		    const uint32_t *slot, uint8_t out[BLK_BYTES]);
const char *blk_page_read(const struct blk_geometry *g, const struct blk_layout *lay, uint32_t page,
			  unsigned place, const uint8_t in[BLK_BYTES], uint64_t *version,
			  uint32_t slot[BLK_PAGE_ENTRIES]);

#endif
