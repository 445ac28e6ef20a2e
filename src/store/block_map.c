/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map of one part: chunk to slot in memory, its pages on the drive, the way of the slots round
 * their ring, and flushes, which all of these wait for.
 *
 * Invariants:
 *  - take <= clean <= zero <= idle <= epoch <= tail, and used + (tail - take) + lost == slot_count;
 *  - a slot between take and clean is zero, durably; nothing on the drive names it that a power cut
 *    could fall back to, and no I/O for its last owner is in flight;
 *  - a page is never written to the place of its last durable, its last written or its being
 *    flushed content.
 *
 * The shard's loop.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "store/block_inner.h"

static void page_written(struct loop_op *op, int res);
static void flush_done(struct loop_op *op, int res);
static void zero_done(struct loop_op *op, int res);
static void zero_flushed(struct block_flush *w, int res);
static void epoch_flushed(struct block_flush *w, int res);
static void discard_done(struct loop_op *op, int res);

/* bit n set: may go to state n; a flush that fails leaves the part broken, and there. */
static const uint8_t epoch_next[] = {
	[EPOCH_IDLE] = 1u << EPOCH_PAGES | 1u << EPOCH_CLOSE,
	[EPOCH_PAGES] = 1u << EPOCH_FLUSH | 1u << EPOCH_CLOSE,
	[EPOCH_FLUSH] = 1u << EPOCH_IO,
	[EPOCH_IO] = 1u << EPOCH_DISCARD | 1u << EPOCH_CLOSE,
	[EPOCH_DISCARD] = 1u << EPOCH_IDLE,
	[EPOCH_CLOSE] = 1u << EPOCH_CLOSE,
};
static const uint8_t zero_next[] = {
	[ZERO_IDLE] = 1u << ZERO_ZEROING,
	[ZERO_ZEROING] = 1u << ZERO_FLUSHING | 1u << ZERO_IDLE,
	[ZERO_FLUSHING] = 1u << ZERO_IDLE,
};

/* The only writer of p->epoch_state. */
void map_epoch_go(struct block_part *p, enum epoch_state to)
{
	must(p->epoch_state < ARRAY_COUNT(epoch_next) && epoch_next[p->epoch_state] & 1u << to);
	p->epoch_state = (uint8_t)to;
}

/* The only writer of p->zero_state. */
static void zero_go(struct block_part *p, enum zero_state to)
{
	must(p->zero_state < ARRAY_COUNT(zero_next) && zero_next[p->zero_state] & 1u << to);
	p->zero_state = (uint8_t)to;
}

/* What holds for a part whenever no function of it runs. */
static void part_check(const struct block_part *p)
{
	must(p->take <= p->clean && p->clean <= p->zero && p->zero <= p->idle);
	must(p->idle <= p->epoch && p->epoch <= p->tail);
	must(p->used + (p->tail - p->take) + p->lost == p->lay.slot_count);
	must(p->flushed <= p->changes);
	must(p->zero_state != ZERO_IDLE || p->zero == p->clean);
	must(p->epoch_state != EPOCH_IDLE || p->idle == p->epoch);
	must(p->epoch_state != EPOCH_CLOSE || p->block->closing);
}

/* --- pages -------------------- */

static void page_change(struct block_part *p, struct map_page *page)
{
	page->version = ++p->version;
	if (!page->writing && !list_linked(&page->dirty))
		list_push_back(&p->dirty, &page->dirty);
}

bool map_give(struct block_part *p, uint64_t chunk)
{
	uint32_t slot;

	must(chunk < p->lay.chunk_count && p->map[chunk] == 0 && !p->broken);
	if (p->take == p->clean)
		return false;
	slot = p->ring[p->take++ % p->lay.slot_count];
	p->map[chunk] = (slot + 1) | BLOCK_FRESH;
	p->used++;
	BLOCK_COUNT(p->block, used_chunks, 1);
	page_change(p, map_page_of(p, chunk));
	return true;
}

void map_free(struct block_part *p, uint64_t chunk)
{
	uint32_t slot = map_slot(p, chunk);

	must(slot > 0 && p->used > 0);
	p->map[chunk] = 0;
	p->used--;
	BLOCK_COUNT(p->block, used_chunks, UINT64_MAX);        /* minus one */
	p->ring[p->tail++ % p->lay.slot_count] = slot - 1;
	page_change(p, map_page_of(p, chunk));
}

bool map_settled(struct block_io *io)
{
	struct block_part *p = io->part;
	struct map_page *page;

	for (uint64_t k = io->chunk; k < io->chunk + io->count; k++) {
		page = map_page_of(p, k);
		if (page->written < io->want_version || (p->map[k] & BLOCK_FRESH)) {
			block_io_go(io, STAGE_PAGE);
			list_push_back(&page->waiting, &io->link);
			return false;
		}
	}
	return true;
}

/* The place that holds nothing which may be needed again. */
static unsigned page_place(const struct block_part *p, const struct map_page *page)
{
	unsigned taken = 0, place = 0;

	if (page->durable > 0)
		taken |= 1u << page->durable_place;
	if (page->written > 0)
		taken |= 1u << page->written_place;
	if (p->flush_busy && page->flush_version > 0)
		taken |= 1u << page->flush_place;
	while (taken >> place & 1)
		place++;
	must(place < BLK_PLACES);
	return place;
}

static void page_write(struct block_part *p, struct map_page *page, struct page_write *w)
{
	uint32_t number = (uint32_t)(page - p->page), slot[BLK_PAGE_ENTRIES];
	const uint32_t *map = p->map + (size_t)number * BLK_PAGE_ENTRIES;

	must(!page->writing && page->version > page->written && !page->bad);
	for (unsigned i = 0; i < BLK_PAGE_ENTRIES; i++)
		slot[i] = map[i] & ~BLOCK_FRESH;
	page->writing = true;
	w->page = number;
	w->version = page->version;
	w->place = (uint8_t)page_place(p, page);
	w->busy = true;
	w->started_ns = loop_now_ns(p->block->loop);
	blk_page_write(&p->geometry, number, w->place, w->version, slot, w->image);
	w->iov = (struct iovec){w->image, BLK_BYTES};
	w->io = (struct disk_io){.op = {.done = page_written}, .iov = &w->iov, .iov_count = 1,
		.offset_bytes = blk_page_block(number, w->place) * BLK_BYTES, .bytes = BLK_BYTES};
	BLOCK_COUNT(p->block, map_writes, 1);
	BLOCK_COUNT(p->block, device_writes, 1);
	BLOCK_COUNT(p->block, device_write_bytes, BLK_BYTES);
	disk_write(p->disk, &w->io);
}

static void pages_pump(struct block_part *p)
{
	while (!p->broken && !p->page_retry && !list_empty(&p->dirty) &&
	       !list_empty(&p->page_free)) {
		struct list_link *page = list_pop_front(&p->dirty);
		struct list_link *w = list_pop_front(&p->page_free);

		page_write(p, container_of(page, struct map_page, dirty),
			   container_of(w, struct page_write, link));
	}
}

static void page_waiters(struct map_page *page, int res);

/* Nothing more is written: what the drive has of it can't be told any more. */
static void part_break(struct block_part *p, const char *why)
{
	log_error("block drive %s: %s; no more writes into this namespace there", p->path, why);
	p->broken = true;
	map_abandon(p);
}

static void page_waiters(struct map_page *page, int res)
{
	struct list_link all, *link;

	list_init(&all);
	while ((link = list_pop_front(&page->waiting)) != NULL)
		list_push_back(&all, link);
	while ((link = list_pop_front(&all)) != NULL)
		block_io_next(container_of(link, struct block_io, link), res);
}

/* What the written page says is no news any more. */
static void page_unfresh(struct block_part *p, const struct page_write *w)
{
	const struct blk_page *image = (const struct blk_page *)w->image;
	uint32_t *map = p->map + (size_t)w->page * BLK_PAGE_ENTRIES;

	for (unsigned i = 0; i < BLK_PAGE_ENTRIES; i++)
		if (map[i] & BLOCK_FRESH && (map[i] & ~BLOCK_FRESH) == le32_get(image->slot[i]))
			map[i] &= ~BLOCK_FRESH;
}

static void page_written(struct loop_op *op, int res)
{
	struct page_write *w = container_of(op, struct page_write, io.op);
	struct block_part *p = w->part;
	struct map_page *page = &p->page[w->page];

	must(w->busy && page->writing);
	w->busy = false;
	page->writing = false;
	list_push_back(&p->page_free, &w->link);
	if (p->failed) {
		block_close_pump(p->block);
		return;
	}
	if (res == 0) {
		must(w->version > page->written);
		p->changes++;
		p->page_errors = 0;
		page->written = w->version;
		page->written_place = w->place;
		page_unfresh(p, w);
		if (!list_linked(&page->undurable))
			list_push_back(&p->undurable, &page->undurable);
		if (page->epoch && page->written >= page->epoch_version) {
			must(p->epoch_pages > 0);
			page->epoch = false;
			p->epoch_pages--;
		}
	} else {
		BLOCK_COUNT(p->block, io_errors, 1);
		p->page_retry = true;
		p->page_errors += res != -ENOSPC;
	}
	if (page->version > page->written)
		list_push_back(&p->dirty, &page->dirty);
	page_waiters(page, res == 0 || res == -ENOSPC ? res : -EIO);
	if (p->page_errors >= STORE_ERRORS_MAX && !p->broken)
		part_break(p, "its map can't be written");
	map_pump(p);
}

/* --- flushes -------------------- */

bool map_flush_needed(const struct block_part *p)
{
	return p->changes > p->flushed;
}

void map_flush(struct block_part *p, struct block_flush *w)
{
	w->link.next = w->link.prev = NULL;
	list_push_back(&p->flush_next, &w->link);
}

void map_flush_start(struct block_part *p)
{
	if (p->flush_busy || p->broken || list_empty(&p->flush_next))
		return;
	must(list_empty(&p->flush_running));
	for (struct list_link *link; (link = list_pop_front(&p->flush_next)) != NULL;)
		list_push_back(&p->flush_running, link);
	p->flush_mark = p->changes;
	LIST_FOR_EACH(link, &p->undurable) {
		struct map_page *page = container_of(link, struct map_page, undurable);

		page->flush_version = page->written;
		page->flush_place = page->written_place;
	}
	p->flush_busy = true;
	p->flush_started_ns = loop_now_ns(p->block->loop);
	p->flush_io = (struct disk_io){.op = {.done = flush_done}};
	BLOCK_COUNT(p->block, device_flushes, 1);
#ifdef KVOF_PLANT_BLOCK_FLUSH_LEFT_OUT
	loop_soon(p->block->loop, &p->flush_io.op, 0); /* planted fault */
#else
	disk_flush(p->disk, &p->flush_io);
#endif
}

static void waiters_end(struct list_link *head, int res)
{
	struct list_link all, *link;

	list_init(&all);
	while ((link = list_pop_front(head)) != NULL)
		list_push_back(&all, link);
	while ((link = list_pop_front(&all)) != NULL) {
		struct block_flush *w = container_of(link, struct block_flush, link);

		w->done(w, res);
	}
}

static void ios_end(struct list_link *head, int res)
{
	struct list_link all, *link;

	list_init(&all);
	while ((link = list_pop_front(head)) != NULL)
		list_push_back(&all, link);
	while ((link = list_pop_front(&all)) != NULL)
		block_io_next(container_of(link, struct block_io, link), res);
}

/* All that waits for the map of a part that takes no more writes. */
void map_abandon(struct block_part *p)
{
	for (uint32_t i = 0; i < p->lay.page_count; i++)
		if (!list_empty(&p->page[i].waiting))
			page_waiters(&p->page[i], -EIO);
	ios_end(&p->slot_wait, -EIO);
	waiters_end(&p->flush_next, -EIO);
	waiters_end(&p->flush_running, -EIO);
}

static void pages_durable(struct block_part *p)
{
	LIST_FOR_EACH_SAFE(link, &p->undurable) {
		struct map_page *page = container_of(link, struct map_page, undurable);

		if (page->flush_version > page->durable) {
			page->durable = page->flush_version;
			page->durable_place = page->flush_place;
		}
		page->flush_version = 0;
		if (page->durable == page->written)
			list_remove(&page->undurable);
	}
}

static void flush_done(struct loop_op *op, int res)
{
	struct block_part *p = container_of(op, struct block_part, flush_io.op);

	must(p->flush_busy);
	p->flush_busy = false;
	if (p->failed) {
		block_close_pump(p->block);
		return;
	}
	if (res != 0) {
		BLOCK_COUNT(p->block, io_errors, 1);
		part_break(p, "a flush failed");
		map_pump(p);
		return;
	}
	p->flushed = p->flush_mark;
	pages_durable(p);
	waiters_end(&p->flush_running, 0);
	map_pump(p);
}

/* --- slots -------------------- */

/* What lies below the drive was full a moment ago: new slots are not asked for. */
bool map_tight(const struct block_part *p)
{
	return loop_now_ns(p->block->loop) < p->tight_until_ns;
}

static bool slots_low(const struct block_part *p)
{
	return p->clean - p->take < BLOCK_CLEAN_LOW || !list_empty(&p->slot_wait);
}

static void zero_pump(struct block_part *p)
{
	uint32_t count = p->lay.slot_count, n = 1;
	uint32_t slot;

	if (p->zero_state != ZERO_IDLE || p->broken || p->block->closing || p->clean == p->idle ||
	    map_tight(p) || !slots_low(p))
		return;
	slot = p->ring[p->clean % count];
	while (n < BLOCK_ZERO_RUN && p->clean + n < p->idle &&
	       p->ring[(p->clean + n) % count] == slot + n)
		n++;
	p->zero = p->clean + n;
	zero_go(p, ZERO_ZEROING);
	p->zero_started_ns = loop_now_ns(p->block->loop);
	p->zero_io = (struct disk_io){.op = {.done = zero_done},
		.offset_bytes = p->lay.first_slot_bytes + ((uint64_t)slot << BLK_CHUNK_SHIFT),
		.bytes = (uint64_t)n << BLK_CHUNK_SHIFT};
#ifdef KVOF_PLANT_BLOCK_SLOT_STALE
	loop_soon(p->block->loop, &p->zero_io.op, 0);  /* planted fault */
#else
	disk_zero(p->disk, &p->zero_io);
#endif
}

/* Slots that can't be zeroed are not used again in this run. */
static void zero_drop(struct block_part *p)
{
	uint32_t count = p->lay.slot_count;
	uint64_t n = p->zero - p->clean;

	log_warn("block drive %s: %" PRIu64 " KiB can't be zeroed and are left out", p->path,
		 n << (BLK_CHUNK_SHIFT - 10));
	for (uint64_t i = p->clean; i-- > p->take;)
		p->ring[(i + n) % count] = p->ring[i % count];
	p->take += n;
	p->clean += n;
	p->lost += (uint32_t)n;
	zero_go(p, ZERO_IDLE);
}

static void zero_done(struct loop_op *op, int res)
{
	struct block_part *p = container_of(op, struct block_part, zero_io.op);

	must(p->zero_state == ZERO_ZEROING);
	if (p->failed) {
		zero_go(p, ZERO_IDLE);
		p->zero = p->clean;
		block_close_pump(p->block);
		return;
	}
	if (res == -ENOSPC) {
		BLOCK_COUNT(p->block, io_errors, 1);
		p->tight_until_ns = loop_now_ns(p->block->loop) + STORE_TIGHT_NS;
		zero_go(p, ZERO_IDLE);
		p->zero = p->clean;
		ios_end(&p->slot_wait, -ENOSPC);
	} else if (res != 0) {
		BLOCK_COUNT(p->block, io_errors, 1);
		zero_drop(p);
	} else {
		p->changes++;
		zero_go(p, ZERO_FLUSHING);
		p->zero_flush = (struct block_flush){.done = zero_flushed};
		map_flush(p, &p->zero_flush);
	}
	map_pump(p);
}

static void zero_flushed(struct block_flush *w, int res)
{
	struct block_part *p = container_of(w, struct block_part, zero_flush);

	must(p->zero_state == ZERO_FLUSHING);
	zero_go(p, ZERO_IDLE);
	if (res == 0)
		p->clean = p->zero;
	else
		p->zero = p->clean;
}

static void slots_pump(struct block_part *p)
{
	while (!list_empty(&p->slot_wait) && (p->take < p->clean || p->take == p->tail)) {
		struct list_link *link = list_pop_front(&p->slot_wait);

		block_io_next(container_of(link, struct block_io, link), 0);
	}
}

/* --- what was freed comes round -------------------- */

static void epoch_page(struct block_part *p, struct map_page *page)
{
	must(!page->epoch && page->version > page->written);
	page->epoch = true;
	page->epoch_version = page->version;
	p->epoch_pages++;
}

static void epoch_begin(struct block_part *p)
{
	must(p->epoch_pages == 0);
	p->epoch = p->tail;
	p->epoch_number = p->block->io_number;
	map_epoch_go(p, EPOCH_PAGES);
	LIST_FOR_EACH(link, &p->dirty)
		epoch_page(p, container_of(link, struct map_page, dirty));
	for (unsigned i = 0; i < BLOCK_PAGE_WRITES; i++)
		if (p->write[i].busy)
			epoch_page(p, &p->page[p->write[i].page]);
}

static void epoch_flushed(struct block_flush *w, int res)
{
	struct block_part *p = container_of(w, struct block_part, epoch_flush);

	must(p->epoch_state == EPOCH_FLUSH);
	if (res == 0)
		map_epoch_go(p, EPOCH_IO);
}

/* True: a run of the slots that came round is on its way to the drive, which need not keep them. */
static bool discard_more(struct block_part *p)
{
	uint32_t count = p->lay.slot_count, slot, n = 1;

	if (!p->discards || p->discard_next == p->epoch || p->block->closing)
		return false;
	slot = p->ring[p->discard_next % count];
	while (n < BLOCK_ZERO_RUN && p->discard_next + n < p->epoch &&
	       p->ring[(p->discard_next + n) % count] == slot + n)
		n++;
	p->discard_next += n;
	p->discard_started_ns = loop_now_ns(p->block->loop);
	p->discard_io = (struct disk_io){.op = {.done = discard_done},
		.offset_bytes = p->lay.first_slot_bytes + ((uint64_t)slot << BLK_CHUNK_SHIFT),
		.bytes = (uint64_t)n << BLK_CHUNK_SHIFT};
	disk_discard(p->disk, &p->discard_io);
	return true;
}

static void epoch_end(struct block_part *p)
{
	p->idle = p->epoch;
	map_epoch_go(p, EPOCH_IDLE);
}

/* A drive that doesn't want to know is no worse for it. */
static void discard_done(struct loop_op *op, int res)
{
	struct block_part *p = container_of(op, struct block_part, discard_io.op);

	must(p->epoch_state == EPOCH_DISCARD);
	if (p->failed || !discard_more(p))
		epoch_end(p);
	map_pump(p);
}

static bool epoch_is_due(const struct block_part *p)
{
	if (p->epoch_state != EPOCH_IDLE || p->epoch == p->tail || p->broken || p->block->closing)
		return false;
	return (slots_low(p) && p->idle - p->clean < BLOCK_CLEAN_LOW) ||
	       (p->discards && p->tail - p->epoch >= BLOCK_DISCARD_MIN);
}

static void epoch_pump(struct block_part *p)
{
	struct list_link *first = p->flying.next;

	if (epoch_is_due(p))
		epoch_begin(p);
	if (p->epoch_state == EPOCH_PAGES && p->epoch_pages == 0) {
		map_epoch_go(p, EPOCH_FLUSH);
		p->epoch_flush = (struct block_flush){.done = epoch_flushed};
		map_flush(p, &p->epoch_flush);
	}
	if (p->epoch_state == EPOCH_IO &&
	    (list_empty(&p->flying) ||
	     container_of(first, struct block_io, fly)->number > p->epoch_number)) {
		p->discard_next = p->idle;
		map_epoch_go(p, EPOCH_DISCARD);
		if (!discard_more(p))
			epoch_end(p);
	}
}

/* --- all together -------------------- */

void map_pump(struct block_part *p)
{
	if (p->failed || p->disk == NULL || p->block->closed) {
		block_close_pump(p->block);
		return;
	}
	part_check(p);
	slots_pump(p);
	epoch_pump(p);
	zero_pump(p);
	pages_pump(p);
	map_flush_start(p);
	part_check(p);
	if (!map_quiet(p) || p->page_retry)
		block_tick_set(p->block);
	block_close_pump(p->block);
}

/* Nothing of it is on its way to the drive. */
bool map_quiet(const struct block_part *p)
{
	if (p->flush_busy || p->zero_state == ZERO_ZEROING || p->epoch_state == EPOCH_DISCARD)
		return false;
	for (unsigned i = 0; i < BLOCK_PAGE_WRITES; i++)
		if (p->write[i].busy)
			return false;
	return true;
}

int map_init(struct block_part *p)
{
	uint64_t entries = (uint64_t)p->lay.page_count * BLK_PAGE_ENTRIES;

	list_init(&p->dirty);
	list_init(&p->undurable);
	list_init(&p->page_free);
	list_init(&p->slot_wait);
	list_init(&p->lock_wait);
	list_init(&p->flush_next);
	list_init(&p->flush_running);
	p->map = calloc(entries, sizeof(*p->map));
	p->page = calloc(p->lay.page_count, sizeof(*p->page));
	p->ring = calloc(p->lay.slot_count, sizeof(*p->ring));
	p->page_memory = loop_buffer_map(BLOCK_PAGE_WRITES * BLK_BYTES);
	if (p->map == NULL || p->page == NULL || p->ring == NULL || p->page_memory == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->lay.page_count; i++)
		list_init(&p->page[i].waiting);
	for (unsigned i = 0; i < BLOCK_PAGE_WRITES; i++) {
		p->write[i].part = p;
		p->write[i].image = p->page_memory + (size_t)i * BLK_BYTES;
		list_push_back(&p->page_free, &p->write[i].link);
	}
	return 0;
}

void map_free_memory(struct block_part *p)
{
	free(p->map);
	free(p->page);
	free(p->ring);
	loop_buffer_unmap(p->page_memory, BLOCK_PAGE_WRITES * BLK_BYTES);
}
