/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes and checks the format of a block part. Pure functions; bytes from a drive are input, so
 * each check looks at every field once and answers in words. Any thread.
 */
#include "store/block_format.h"

#include <string.h>

#include "base/hash.h"
#include "base/must.h"

static const uint8_t super_magic[8] = {'K', 'V', 'O', 'F', 'B', 'L', 'K', 'S'};
static const uint8_t lost_magic[8] = {'K', 'V', 'O', 'F', 'B', 'L', 'K', 'L'};
static const uint8_t page_magic[8] = {'K', 'V', 'O', 'F', 'B', 'L', 'K', 'M'};

#define CRC_FROM 12                          /* magic and the crc itself are not covered by it */

static le32 crc_of(const void *at, size_t bytes)
{
	return le32_of(crc32c((const uint8_t *)at + CRC_FROM, bytes - CRC_FROM));
}

static bool le32_same(le32 a, le32 b)
{
	return memcmp(a.b, b.b, sizeof(a.b)) == 0;
}

/* Of count things dealt out in turn to `to` places: how many place `index` gets. */
static uint64_t dealt(uint64_t count, unsigned to, unsigned index)
{
	must(to > 0 && index < to);
	return (count + to - 1 - index) / to;
}

static uint64_t chunks_of(uint64_t size_bytes)
{
	return (size_bytes + BLK_CHUNK_BYTES - 1) >> BLK_CHUNK_SHIFT;
}

static uint64_t first_slot_of(uint64_t chunk_count)
{
	uint64_t pages = (chunk_count + BLK_PAGE_ENTRIES - 1) / BLK_PAGE_ENTRIES;

	return bytes_round_up((1 + pages * BLK_PLACES) * BLK_BYTES, BLK_CHUNK_BYTES);
}

struct blk_layout blk_layout_of(const struct blk_geometry *g)
{
	uint64_t chunks = dealt(chunks_of(g->size_bytes), g->shard_count, g->shard), slots = 0;
	struct blk_layout lay;

	chunks = dealt(chunks, g->drive_count, g->drive);
	lay = (struct blk_layout){
		.chunk_count = chunks,
		.page_count = (uint32_t)((chunks + BLK_PAGE_ENTRIES - 1) / BLK_PAGE_ENTRIES),
		.first_slot_bytes = first_slot_of(chunks),
	};
	if (g->part_bytes > lay.first_slot_bytes + BLK_BYTES)
		slots = (g->part_bytes - BLK_BYTES - lay.first_slot_bytes) >> BLK_CHUNK_SHIFT;
	lay.slot_count = (uint32_t)bytes_min(slots, BLK_SLOTS_MAX);
	return lay;
}

uint64_t blk_part_bytes(uint64_t size_bytes, unsigned shards, unsigned drives)
{
	uint64_t chunks = dealt(dealt(chunks_of(size_bytes), shards, 0), drives, 0);

	return first_slot_of(chunks) + (chunks << BLK_CHUNK_SHIFT) + BLK_BYTES;
}

void blk_lost_write(uint8_t out[BLK_BYTES])
{
	memset(out, 0, BLK_BYTES);
	memcpy(out, lost_magic, sizeof(lost_magic));
}

bool blk_lost_check(const uint8_t in[BLK_BYTES])
{
	return memcmp(in, lost_magic, sizeof(lost_magic)) == 0;
}

void blk_super_write(const struct blk_geometry *g, enum blk_super_state state, uint64_t block,
		     uint8_t out[BLK_BYTES])
{
	struct blk_super s = {
		.version = le32_of(BLK_VERSION),
		.drive = g->drive, .drive_count = g->drive_count,
		.shard = g->shard, .shard_count = g->shard_count,
		.state = (uint8_t)state,
		.block_bytes = le32_of(g->block_bytes),
		.chunk_bytes = le32_of((uint32_t)BLK_CHUNK_BYTES),
		.size_bytes = le64_of(g->size_bytes),
		.part_bytes = le64_of(g->part_bytes),
		.block = le64_of(block),
	};

	memcpy(s.magic, super_magic, sizeof(s.magic));
	memcpy(s.uuid, g->uuid, sizeof(s.uuid));
	s.crc = crc_of(&s, sizeof(s));
	memset(out, 0, BLK_BYTES);
	memcpy(out, &s, sizeof(s));
}

const char *blk_super_read(const uint8_t in[BLK_BYTES], uint64_t block, struct blk_geometry *out,
			   enum blk_super_state *state)
{
	const struct blk_super *s = (const struct blk_super *)in;

	if (bytes_all_zero(in, BLK_BYTES))
		return "blank";
	if (memcmp(s->magic, super_magic, sizeof(super_magic)) != 0)
		return blk_lost_check(in) ? "of a part whose data was lost with its drive" :
					    "not a superblock of a block namespace";
	if (le32_get(s->version) != BLK_VERSION)
		return "of another version";
	if (!le32_same(s->crc, crc_of(s, sizeof(*s))))
		return "checksum is wrong";
	if (le64_get(s->block) != block)
		return "was written for another place";
	if (s->shard_count == 0 || s->shard >= s->shard_count || s->drive_count == 0 ||
	    s->drive >= s->drive_count)
		return "numbers of drive or shard are wrong";
	if (le32_get(s->chunk_bytes) != BLK_CHUNK_BYTES)
		return "has another chunk size";
	if (le32_get(s->block_bytes) != 512 && le32_get(s->block_bytes) != 4096)
		return "has an odd block size";
	if (s->state != BLK_MAKING && s->state != BLK_MADE)
		return "has an odd state";
	*out = (struct blk_geometry){
		.drive = s->drive, .drive_count = s->drive_count,
		.shard = s->shard, .shard_count = s->shard_count,
		.block_bytes = le32_get(s->block_bytes),
		.size_bytes = le64_get(s->size_bytes),
		.part_bytes = le64_get(s->part_bytes),
	};
	memcpy(out->uuid, s->uuid, sizeof(out->uuid));
	*state = (enum blk_super_state)s->state;
	return NULL;
}

const char *blk_geometry_differs(const struct blk_geometry *is, const struct blk_geometry *want)
{
	if (memcmp(is->uuid, want->uuid, sizeof(is->uuid)) != 0)
		return "belongs to another namespace";
	if (is->shard != want->shard || is->shard_count != want->shard_count)
		return "belongs to another shard";
	if (is->drive != want->drive || is->drive_count != want->drive_count)
		return "is another drive of the namespace";
	if (is->size_bytes != want->size_bytes || is->block_bytes != want->block_bytes)
		return "is of a namespace of another size";
	if (is->part_bytes != want->part_bytes)
		return "was larger or smaller when it was made";
	return NULL;
}

void blk_page_write(const struct blk_geometry *g, uint32_t page, unsigned place, uint64_t version,
		    const uint32_t *slot, uint8_t out[BLK_BYTES])
{
	struct blk_page *p = (struct blk_page *)out;

	must(place < BLK_PLACES && version > 0);
	memset(p, 0, offsetof(struct blk_page, slot));
	memcpy(p->magic, page_magic, sizeof(p->magic));
	memcpy(p->uuid, g->uuid, sizeof(p->uuid));
	p->number = le32_of(page);
	p->block = le64_of(blk_page_block(page, place));
	p->version = le64_of(version);
	p->drive = g->drive;
	p->shard = g->shard;
	for (unsigned i = 0; i < BLK_PAGE_ENTRIES; i++)
		p->slot[i] = le32_of(slot[i]);
	p->crc = crc_of(p, sizeof(*p));
}

const char *blk_page_read(const struct blk_geometry *g, const struct blk_layout *lay, uint32_t page,
			  unsigned place, const uint8_t in[BLK_BYTES], uint64_t *version,
			  uint32_t slot[BLK_PAGE_ENTRIES])
{
	const struct blk_page *p = (const struct blk_page *)in;
	uint64_t first = (uint64_t)page * BLK_PAGE_ENTRIES;

	if (bytes_all_zero(in, BLK_BYTES))
		return "blank";
	if (memcmp(p->magic, page_magic, sizeof(page_magic)) != 0)
		return "not a map page";
#ifndef KVOF_PLANT_BLOCK_PAGE_TORN
	if (!le32_same(p->crc, crc_of(p, sizeof(*p))))
		return "checksum is wrong";
#endif
	if (memcmp(p->uuid, g->uuid, sizeof(p->uuid)) != 0 || p->drive != g->drive ||
	    p->shard != g->shard)
		return "belongs to another part";
	if (le32_get(p->number) != page || le64_get(p->block) != blk_page_block(page, place))
		return "was written for another place";
	if (le64_get(p->version) == 0)
		return "has no version";
	for (unsigned i = 0; i < BLK_PAGE_ENTRIES; i++) {
		uint32_t s = le32_get(p->slot[i]);

		if (s > lay->slot_count || (s != 0 && first + i >= lay->chunk_count))
			return "names a slot that there is not";
		slot[i] = s;
	}
	*version = le64_get(p->version);
	return NULL;
}
