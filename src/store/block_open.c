/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing a shard of a block namespace.
 *
 *	open   disks ─ superblocks ─ (make) ─ map pages ─ flush ─ slots nobody names form the ring
 *	make   zeros where pages go, "making" on every part, flush; "made" on every part, flush
 *	close  pages that are behind ─ flush ─ disks
 *
 * Parts of a namespace are made together: once one says "made", all others had said "making", so a
 * blank part among made ones is not new but has lost its data: its chunks are errors, not zeros.
 *
 * What a kill or a power cut leaves of a page: whole copies, of which the highest version counts,
 * and torn ones. At least one place is whole or still blank, since a page is never written over
 * what it has to fall back to. A page without either was damaged later: its chunks are errors. So
 * are those of two pages that name one slot.
 *
 * Control path. An open blocks, before the shard's loop runs or on it; a close is on it and does
 * not block.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "store/attach.h"
#include "store/block_inner.h"

#define SCAN_BYTES (256 * KiB)
#define SCAN_PAGES (SCAN_BYTES / (BLK_PLACES * BLK_BYTES))

enum part_found { PART_MISSING, PART_BLANK, PART_LOST, PART_MAKING, PART_MADE };

struct opening {
	const struct block_opts *opts;
	struct block *b;
	struct store_report *report;
	uint8_t *memory;                     /* [SCAN_BYTES] */
	enum part_found found[STORE_DRIVES_MAX];
	bool repair[STORE_DRIVES_MAX];       /* one of its superblocks is not as it should be */
	unsigned bad_pages;
};

__attribute__((format(printf, 3, 4))) static int fail(struct opening *o, int rc,
						      const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(o->report->text, sizeof(o->report->text), format, args);
	va_end(args);
	return rc;
}

uint64_t block_part_bytes(uint64_t size_bytes, unsigned shard_count, unsigned drive_count)
{
	return blk_part_bytes(size_bytes, shard_count, drive_count);
}

/* --- disks and superblocks -------------------- */

static int part_open(struct opening *o, unsigned i)
{
	const struct store_drive *from = &o->opts->parts.drive[i];
	struct block_part *p = &o->b->part[i];
	struct disk_opts disk = {.create_bytes = from->bytes};
	int rc = 0;

	disk.memory = strcmp(p->path, "mem") == 0;
	if (p->disk == NULL && from->path != NULL && !from->missing)
		rc = disk_open(o->b->loop, from->path, &disk, &p->disk);
	if (p->disk == NULL && !(o->opts->parts.degraded && (rc == 0 || rc == -ENOENT)))
		return fail(o, rc == 0 ? -ENOENT : rc, "drive %.180s: can't be opened", p->path);
	if (p->disk == NULL)
		return 0;
	p->geometry = (struct blk_geometry){
		.drive = (uint8_t)i, .drive_count = (uint8_t)o->opts->parts.drive_count,
		.shard = (uint8_t)o->opts->shard, .shard_count = (uint8_t)o->opts->shard_count,
		.block_bytes = o->opts->block_bytes, .size_bytes = o->opts->size_bytes,
		.part_bytes = disk_info(p->disk)->bytes & ~(uint64_t)(BLK_BYTES - 1),
	};
	memcpy(p->geometry.uuid, o->opts->uuid, sizeof(p->geometry.uuid));
	p->lay = blk_layout_of(&p->geometry);
	if (p->lay.chunk_count > BLK_SLOTS_MAX)
		return fail(o, -EINVAL, "a namespace of %" PRIu64 " bytes is too large",
			    o->opts->size_bytes);
	if (p->lay.slot_count == 0)
		return fail(o, -EINVAL, "drive %.180s: too small for this namespace", p->path);
	p->discards = !disk_info(p->disk)->memory && !o->opts->parts.keep_blocks;
	p->rate.bytes_per_s = o->opts->parts.drive_read_bytes_per_s;
	slow_begin(&p->slow, from->rate != NULL ? from->rate : &p->rate, o->b->loop, p->disk);
	o->b->slots += p->lay.slot_count;
	o->b->narrow |= disk_info(p->disk)->align_bytes > o->opts->block_bytes;
	return 0;
}

static uint64_t last_block(const struct block_part *p)
{
	return p->geometry.part_bytes / BLK_BYTES - 1;
}

static int super_look(struct opening *o, unsigned i)
{
	struct block_part *p = &o->b->part[i];
	const char *why[2] = {NULL, NULL};
	unsigned blank = 0;

	for (unsigned copy = 0; copy < 2; copy++) {
		uint64_t block = copy == 0 ? 0 : last_block(p);
		enum blk_super_state state = BLK_MAKING;
		struct blk_geometry is;
		int rc = disk_read_now(p->disk, o->memory, BLK_BYTES, block * BLK_BYTES);

		if (rc != 0) {
			why[copy] = "can't be read";
			continue;
		}
		why[copy] = blk_super_read(o->memory, block, &is, &state);
		if (why[copy] != NULL) {
			blank += bytes_all_zero(o->memory, BLK_BYTES);
			if (blk_lost_check(o->memory) && o->found[i] < PART_LOST)
				o->found[i] = PART_LOST;
			continue;
		}
		why[copy] = blk_geometry_differs(&is, &p->geometry);
		if (why[copy] != NULL)
			return fail(o, -EPROTO, "drive %.150s: its part %s", p->path, why[copy]);
		if (state == BLK_MADE || o->found[i] != PART_MADE)
			o->found[i] = state == BLK_MADE ? PART_MADE : PART_MAKING;
	}
	o->repair[i] = why[0] != NULL || why[1] != NULL;
	if (o->found[i] == PART_MAKING || o->found[i] == PART_MADE)
		return 0;
	if (o->found[i] == PART_LOST)
		return 0;
	o->found[i] = blank == 0 ? PART_LOST : PART_BLANK;
	if (blank == 0 && !o->opts->parts.degraded)
		return fail(o, -EPROTO, "drive %.150s: superblock of the part: %s; open degraded "
			    "to go on without it", p->path, why[0]);
	return 0;
}

static int super_put(struct opening *o, struct block_part *p, enum blk_super_state state)
{
	int rc = 0;

	for (unsigned copy = 0; copy < 2 && rc == 0; copy++) {
		uint64_t block = copy == 0 ? last_block(p) : 0;

		blk_super_write(&p->geometry, state, block, o->memory);
		rc = disk_write_now(p->disk, o->memory, BLK_BYTES, block * BLK_BYTES);
		if (rc == 0)
			rc = disk_flush_now(p->disk);
	}
	return rc == 0 ? 0 : fail(o, -EIO, "drive %.180s: superblock can't be written", p->path);
}

static int map_zero(struct opening *o, struct block_part *p)
{
	uint64_t end = blk_page_block(p->lay.page_count, 0) * BLK_BYTES;
	int rc = 0;

	memset(o->memory, 0, SCAN_BYTES);
	for (uint64_t at = BLK_BYTES; at < end && rc == 0; at += SCAN_BYTES)
		rc = disk_write_now(p->disk, o->memory, bytes_min(SCAN_BYTES, end - at), at);
	if (rc == 0)
		rc = disk_flush_now(p->disk);
	return rc == 0 ? 0 : fail(o, -EIO, "drive %.180s: the map can't be written", p->path);
}

static int parts_put(struct opening *o, enum blk_super_state state)
{
	int rc = 0;

	for (unsigned i = 0; i < o->b->part_count && rc == 0; i++)
		rc = super_put(o, &o->b->part[i], state);
	return rc;
}

/* Nothing was made so far, or not to the end. */
static int parts_make(struct opening *o)
{
	int rc = 0;

	for (unsigned i = 0; i < o->b->part_count && rc == 0; i++) {
		must(o->found[i] != PART_MISSING);
		rc = map_zero(o, &o->b->part[i]);
	}
	if (rc == 0)
		rc = parts_put(o, BLK_MAKING);
	return rc == 0 ? parts_put(o, BLK_MADE) : rc;
}

static int parts_known(struct opening *o)
{
	for (unsigned i = 0; i < o->b->part_count; i++) {
		struct block_part *p = &o->b->part[i];
		int rc = 0;

		if (o->found[i] == PART_BLANK || o->found[i] == PART_LOST) {
			log_error("block drive %s: what was on its part is lost, its chunks can't "
				  "be read", p->path);
			p->failed = true;
		} else if (o->found[i] == PART_MAKING ||
			   (o->found[i] == PART_MADE && o->repair[i])) {
			rc = super_put(o, p, BLK_MADE);
		}
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* --- the map -------------------- */

/* One page from its four places; the highest whole version is the truth. */
static void page_look(struct opening *o, struct block_part *p, uint32_t number,
		      const uint8_t *places)
{
	uint32_t slot[BLK_PAGE_ENTRIES], *map = p->map + (size_t)number * BLK_PAGE_ENTRIES;
	struct map_page *page = &p->page[number];
	unsigned blank = 0;

	for (unsigned i = 0; i < BLK_PLACES; i++) {
		const uint8_t *at = places + (size_t)i * BLK_BYTES;
		uint64_t version = 0;
		const char *why = blk_page_read(&p->geometry, &p->lay, number, i, at, &version,
						slot);

		blank += why != NULL && bytes_all_zero(at, BLK_BYTES);
		if (why != NULL || version <= page->written)
			continue;
		page->version = page->written = page->durable = version;
		page->written_place = page->durable_place = (uint8_t)i;
		memcpy(map, slot, sizeof(slot));
	}
	if (page->version > p->version)
		p->version = page->version;
	if (page->version == 0 && blank == 0) {
		page->bad = true;
		o->bad_pages++;
	}
}

static int map_read(struct opening *o, struct block_part *p)
{
	for (uint32_t page = 0; page < p->lay.page_count; page += SCAN_PAGES) {
		uint32_t n = (uint32_t)bytes_min(SCAN_PAGES, p->lay.page_count - page);
		uint64_t bytes = (uint64_t)n * BLK_PLACES * BLK_BYTES;
		int rc = disk_read_now(p->disk, o->memory, bytes,
				       blk_page_block(page, 0) * BLK_BYTES);

		o->report->metadata_bytes_read += bytes;
		if (rc != 0)
			return fail(o, -EIO, "drive %.180s: the map can't be read", p->path);
		for (uint32_t i = 0; i < n; i++)
			page_look(o, p, page + i,
				  o->memory + (size_t)i * BLK_PLACES * BLK_BYTES);
	}
	return 0;
}

/* The ring gets the slots that no chunk has; two chunks with one slot are told apart by nobody. */
static int ring_fill(struct opening *o, struct block_part *p)
{
	uint32_t *owner = calloc(p->lay.slot_count, sizeof(*owner));

	if (owner == NULL)
		return -ENOMEM;
	for (uint64_t k = 0; k < p->lay.chunk_count; k++) {
		uint32_t slot = p->map[k];

		if (slot == 0)
			continue;
		must(slot <= p->lay.slot_count);
		if (owner[slot - 1] != 0) {
			p->page[k / BLK_PAGE_ENTRIES].bad = true;
			p->page[(owner[slot - 1] - 1) / BLK_PAGE_ENTRIES].bad = true;
			o->bad_pages++;
			continue;
		}
		owner[slot - 1] = (uint32_t)k + 1;
		p->used++;
	}
	for (uint32_t s = 0; s < p->lay.slot_count; s++)
		if (owner[s] == 0)
			p->ring[p->tail++] = s;
	p->idle = p->epoch = p->tail;
	free(owner);
	must(p->used + p->tail == p->lay.slot_count);
	BLOCK_COUNT(p->block, used_chunks, p->used);
	return 0;
}

static int ios_init(struct block_part *p)
{
	bool narrow = p->block->narrow;

	list_init(&p->io_free);
	list_init(&p->flying);
	list_init(&p->op_wait);
	p->io = calloc(BLOCK_IOS, sizeof(*p->io));
	p->edge_memory = narrow ? loop_buffer_map(2 * BLOCK_IOS * BLK_BYTES) : NULL;
	if (p->io == NULL || (narrow && p->edge_memory == NULL))
		return -ENOMEM;
	for (unsigned i = 0; i < BLOCK_IOS; i++) {
		p->io[i].part = p;
		list_push_back(&p->io_free, &p->io[i].link);
	}
	return 0;
}

static int part_recover(struct opening *o, struct block_part *p)
{
	int rc = ios_init(p);

	if (rc == 0)
		rc = map_init(p);
	if (rc != 0 || p->disk == NULL || p->failed)
		return rc;
	rc = map_read(o, p);
	if (rc == 0)
		rc = ring_fill(o, p);
	/* What was read may be in a cache of the drive; from here on it counts as durable. */
	if (rc == 0 && disk_flush_now(p->disk) != 0)
		rc = fail(o, -EIO, "drive %.180s: can't be flushed", p->path);
	return rc;
}

/* --- all together -------------------- */

void block_forget(struct block **bp)
{
	struct block *b;

	OBJ_TAKE(b, bp, BLOCK_MAGIC);
	for (unsigned i = 0; i < b->part_count; i++) {
		struct block_part *p = &b->part[i];

		map_free_memory(p);
		free(p->io);
		loop_buffer_unmap(p->edge_memory, 2 * BLOCK_IOS * BLK_BYTES);
	}
	loop_buffer_unmap(b->scan_memory, BLK_CHUNK_BYTES);
	b->magic = 0;
	free(b);
}

static void block_free(struct block *b)
{
	for (unsigned i = 0; i < b->part_count; i++)
		if (b->part[i].disk != NULL)
			attach_part_close(&b->part[i].disk, b->part[i].open);
	block_forget(&b);
}

static int open_steps(struct opening *o)
{
	bool made = false;
	int rc = 0;

	for (unsigned i = 0; i < o->b->part_count; i++) {
		const struct store_drive *from = &o->opts->parts.drive[i];
		struct block_part *p = &o->b->part[i];

		p->block = o->b;
		p->index = (uint8_t)i;
		snprintf(p->path, sizeof(p->path), "%s", from->path != NULL ? from->path : "?");
		p->disk = from->disk;
		p->open = from->open;
	}
	for (unsigned i = 0; i < o->b->part_count && rc == 0; i++)
		rc = part_open(o, i);
	for (unsigned i = 0; i < o->b->part_count && rc == 0; i++) {
		if (o->b->part[i].disk != NULL)
			rc = super_look(o, i);
		/* Without one of them nothing is made anew: what is gone may have been made. */
		made |= o->found[i] == PART_MADE || o->found[i] == PART_MISSING ||
			o->found[i] == PART_LOST;
	}
	if (rc == 0)
		rc = made ? parts_known(o) : parts_make(o);
	for (unsigned i = 0; i < o->b->part_count && rc == 0; i++) {
		struct block_part *p = &o->b->part[i];

		p->failed |= p->disk == NULL;
		rc = part_recover(o, p);
		if (p->failed)
			atomic_fetch_or_explicit(&o->b->failed_parts, 1u << i,
						 memory_order_relaxed);
	}
	return rc;
}

static bool opts_right(const struct block_opts *opts)
{
	return opts->shard_count >= 1 && opts->shard_count <= STORE_SHARDS_MAX &&
	       opts->shard < opts->shard_count && opts->parts.drive_count >= 1 &&
	       opts->parts.drive_count <= STORE_DRIVES_MAX &&
	       (opts->block_bytes == 512 || opts->block_bytes == 4096) && opts->size_bytes > 0 &&
	       opts->size_bytes % opts->block_bytes == 0;
}

int block_open(const struct block_opts *opts, struct loop *loop, struct block **out,
	       struct store_report *report)
{
	struct opening o = {.opts = opts, .report = report};
	int rc;

	loop_must_own(loop);
	report->text[0] = '\0';
	o.b = calloc(1, sizeof(*o.b));
	o.memory = loop_buffer_map(SCAN_BYTES);
	must(opts_right(opts));
	if (o.b == NULL || o.memory == NULL) {
		free(o.b);
		loop_buffer_unmap(o.memory, SCAN_BYTES);
		for (unsigned i = 0; i < opts->parts.drive_count; i++) {
			struct disk *disk = opts->parts.drive[i].disk;

			if (disk != NULL)
				attach_part_close(&disk, opts->parts.drive[i].open);
		}
		return fail(&o, -ENOMEM, "no memory for a block namespace");
	}
	OBJ_INIT(o.b, BLOCK_MAGIC);
	o.b->loop = loop;
	o.b->shard = opts->shard;
	o.b->shard_count = opts->shard_count;
	o.b->part_count = opts->parts.drive_count;
	o.b->size_bytes = opts->size_bytes;
	o.b->block_bytes = opts->block_bytes;
	memcpy(o.b->uuid, opts->uuid, sizeof(o.b->uuid));
	o.b->ack_durable = opts->ack_durable;
	list_init(&o.b->scan_wait);
	o.b->scan_memory = loop_buffer_map(BLK_CHUNK_BYTES);
	rc = o.b->scan_memory == NULL ? -ENOMEM : open_steps(&o);
	loop_buffer_unmap(o.memory, SCAN_BYTES);
	if (rc == -ENOMEM)
		(void)fail(&o, rc, "no memory for a block namespace of %" PRIu64 " bytes",
			   opts->size_bytes);
	if (rc != 0) {
		block_free(o.b);
		return rc;
	}
	if (o.bad_pages > 0)
		(void)fail(&o, 0, "%u map pages of a block namespace are damaged: their chunks "
			   "can't be read", o.bad_pages);
	*out = o.b;
	return 0;
}

/* --- close -------------------- */

static void close_end(struct loop_op *soon, int res)
{
	struct block *b = container_of(soon, struct block, close_op);
	void (*done)(void *arg) = b->close_done;
	void *arg = b->close_arg;
	bool kept = false;

	loop_timer_cancel(b->loop, &b->tick);
	for (unsigned i = 0; i < b->part_count; i++)
		kept |= b->part[i].io_busy > 0 || !map_quiet(&b->part[i]);
	if (kept)
		log_error("block namespace: closed with I/O under way; its memory is kept");
	else
		block_free(b);
	done(arg);
}

static void close_flushed(struct block_flush *w, int res)
{
	struct block_part *p = container_of(w, struct block_part, epoch_flush);

	must(p->closing);
	p->closing = false;
	block_close_pump(p->block);
}

/* True: nothing of it is behind on its drive. */
static bool close_part(struct block_part *p)
{
	bool quiet = p->io_busy == 0 && map_quiet(p) && !p->closing;

	if (p->failed || p->broken)
		return quiet;
	if (!quiet || !list_empty(&p->dirty))
		return false;
	if (!map_flush_needed(p))
		return true;
	if (p->epoch_state == EPOCH_FLUSH || p->zero_state != ZERO_IDLE)
		return false;
	p->closing = true;
	map_epoch_go(p, EPOCH_CLOSE);
	p->epoch_flush = (struct block_flush){.done = close_flushed};
	map_flush(p, &p->epoch_flush);
	map_flush_start(p);
	return false;
}

void block_close_pump(struct block *b)
{
	bool done = true;

	if (!b->closing || b->closed || b->in_close_pump)
		return;
	b->in_close_pump = true;
	for (unsigned i = 0; i < b->part_count; i++)
		done &= close_part(&b->part[i]);
	b->in_close_pump = false;
	if (!done && loop_now_ns(b->loop) < b->close_deadline_ns)
		return;
	b->closed = true;
	b->close_op = (struct loop_op){.done = close_end};
	loop_soon(b->loop, &b->close_op, 0);
}

void block_close(struct block **bp, void (*done)(void *arg), void *arg)
{
	struct block *b;

	OBJ_TAKE(b, bp, BLOCK_MAGIC);
	loop_must_own(b->loop);
	must(!b->closing);
	b->closing = true;
	b->close_done = done;
	b->close_arg = arg;
	b->close_deadline_ns = loop_now_ns(b->loop) + STORE_CLOSE_LIMIT_NS;
	block_tick_set(b);
	for (unsigned i = 0; i < b->part_count; i++) {
		slow_end(&b->part[i].slow);
		if (!b->part[i].failed)
			map_pump(&b->part[i]);
	}
	block_close_pump(b);
}
