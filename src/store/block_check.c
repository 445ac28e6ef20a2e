/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The offline check of a block part: both superblocks, every place of every map page, and that no
 * two chunks have one slot. Reads metadata only. Control path: blocks.
 */
#include "store/block_check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "loop/disk.h"
#include "store/block_format.h"

struct checker {
	struct disk *disk;
	void (*say)(void *arg, const char *line);
	void *arg;
	struct block_check *out;
	struct blk_geometry geometry;
	struct blk_layout lay;
	uint8_t *memory;                     /* [BLK_PLACES * BLK_BYTES] */
	uint8_t *taken;                      /* a bit a slot */
};

__attribute__((format(printf, 2, 3))) static void tell(struct checker *c, const char *format, ...)
{
	char line[256];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	c->say(c->arg, line);
}

/* 1: go on; 0: blank. */
static int supers_check(struct checker *c)
{
	uint64_t blocks = disk_info(c->disk)->bytes / BLK_BYTES;
	unsigned good = 0, blank = 0, lost = 0;

	for (unsigned copy = 0; copy < 2; copy++) {
		uint64_t block = copy == 0 ? 0 : blocks - 1;
		enum blk_super_state state;
		struct blk_geometry is;
		const char *wrong = "can't be read";

		if (disk_read_now(c->disk, c->memory, BLK_BYTES, block * BLK_BYTES) == 0)
			wrong = blk_super_read(c->memory, block, &is, &state);
		if (wrong == NULL && is.part_bytes != blocks * BLK_BYTES)
			wrong = "is of a part of another size";
		if (wrong == NULL) {
			c->geometry = is;
			good++;
			continue;
		}
		blank += strcmp(wrong, "blank") == 0;
		lost += strcmp(wrong, "can't be read") != 0 && blk_lost_check(c->memory);
		c->out->superblocks_bad++;
		if (strcmp(wrong, "blank") != 0)
			tell(c, "superblock at block %" PRIu64 " %s", block, wrong);
	}
	if (good == 0 && blank == 2) {
		c->out->superblocks_bad -= 2;
		return 0;                              /* its first open makes it */
	}
	if (good == 0 && lost > 0)
		return 0;                              /* told; there is nothing to look at */
	if (good == 0)
		tell(c, "no superblock can be used: not a part of a block namespace");
	return good > 0 ? 1 : -EPROTO;
}

static void slots_check(struct checker *c, uint32_t page, const uint32_t slot[BLK_PAGE_ENTRIES])
{
	for (unsigned i = 0; i < BLK_PAGE_ENTRIES; i++) {
		uint32_t s = slot[i] - 1;

		if (slot[i] == 0)
			continue;
		must(slot[i] <= c->lay.slot_count);
		c->out->used++;
		if (c->taken[s / 8] >> s % 8 & 1) {
			c->out->slots_twice++;
			tell(c, "slot %u belongs to two chunks, one of them %" PRIu64, s,
			     (uint64_t)page * BLK_PAGE_ENTRIES + i);
		}
		c->taken[s / 8] |= (uint8_t)(1u << s % 8);
	}
}

static int page_check(struct checker *c, uint32_t page)
{
	uint32_t slot[BLK_PAGE_ENTRIES], best[BLK_PAGE_ENTRIES];
	uint64_t version, newest = 0;
	unsigned blank = 0;

	if (disk_read_now(c->disk, c->memory, BLK_PLACES * BLK_BYTES,
			  blk_page_block(page, 0) * BLK_BYTES) != 0) {
		tell(c, "map page %u can't be read", page);
		return -EIO;
	}
	for (unsigned place = 0; place < BLK_PLACES; place++) {
		const uint8_t *at = c->memory + (size_t)place * BLK_BYTES;
		const char *wrong = blk_page_read(&c->geometry, &c->lay, page, place, at, &version,
						  slot);

		if (wrong != NULL && strcmp(wrong, "blank") == 0) {
			blank++;
		} else if (wrong != NULL) {
			c->out->places_torn++;
			tell(c, "map page %u, place %u: %s", page, place, wrong);
		} else if (version > newest) {
			newest = version;
			memcpy(best, slot, sizeof(best));
		}
	}
	if (newest > 0) {
		slots_check(c, page, best);
	} else if (blank == 0) {
		c->out->pages_bad++;
		tell(c, "map page %u can't be used: its chunks are lost", page);
	}
	return 0;
}

int block_check(struct disk *part, void (*say)(void *arg, const char *line), void *arg,
		struct block_check *out)
{
	struct checker c = {.disk = part, .say = say, .arg = arg, .out = out};
	int rc;

	c.memory = loop_buffer_map(BLK_PLACES * BLK_BYTES);
	rc = c.memory == NULL ? -ENOMEM : supers_check(&c);
	if (rc == 1) {
		c.lay = blk_layout_of(&c.geometry);
		c.taken = calloc(c.lay.slot_count / 8 + 1, 1);
		out->chunks += c.lay.chunk_count;
		out->pages += c.lay.page_count;
		rc = c.taken == NULL ? -ENOMEM : 0;
		for (uint32_t page = 0; page < c.lay.page_count && rc == 0; page++)
			rc = page_check(&c, page);
	}
	if (rc == -ENOMEM)
		tell(&c, "no memory");
	free(c.taken);
	loop_buffer_unmap(c.memory, BLK_PLACES * BLK_BYTES);
	return rc;
}
