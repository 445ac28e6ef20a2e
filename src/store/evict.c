/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Freeing segments of a drive, one at a time, so that a free one is there before it is needed.
 *
 *   IDLE  -> READ   footer of the victim, to learn its keys (none to learn: skipped)
 *         -> ERASE  footer and header are overwritten with "erased" and a new generation
 *         -> FLUSH  and that is made durable
 *         -> DRAIN  now its keys leave the index, and gets that read from it end
 *         -> IDLE   the segment is free
 *
 * A key leaves the index only when no open can find its records any more: until then the index
 * knows its drive, and whatever is put or deleted under it goes there too and is evicted later.
 *
 * Which one: a segment without a live value and without a tombstone, at any time; else the oldest
 * of the drive (in a namespace that evicts, or if it has no live value). Never a younger one before
 * an older one: so when a tombstone goes, every record that it covers has gone before, durably, and
 * nothing deleted comes back. Values asked for since they were written carry INDEX_HIT: the place
 * where a later version carries them forward is victim_drop(). Runs on the store's loop.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "store/inner.h"

static void evict_io_done(struct loop_op *io, int res);
static void evict_flushed(struct flush_wait *w, int res);

static bool dead(const struct segment *seg)
{
	return seg->state == SEGMENT_SEALED && seg->live_count == 0 && seg->tombstone_count == 0;
}

/* segment_count: none. */
static uint32_t victim_find(const struct drive *d)
{
	uint32_t oldest = d->segment_count;

	for (uint32_t i = 0; i < d->segment_count; i++) {
		const struct segment *seg = &d->segment[i];

		if (dead(seg))
			return i;
		if (seg->state != SEGMENT_OPEN && seg->state != SEGMENT_SEALED)
			continue;
		if (oldest == d->segment_count ||
		    seg->generation < d->segment[oldest].generation)
			oldest = i;
	}
	if (oldest == d->segment_count || d->segment[oldest].state != SEGMENT_SEALED)
		return d->segment_count;
	if (!d->st->opts.evict && d->segment[oldest].live_count > 0)
		return d->segment_count;
	return oldest;
}

/* bit n set: may go to state n; a drive that is given up goes back to IDLE from anywhere. */
static const uint8_t evict_next[] = {
	[EVICT_IDLE] = 1u << EVICT_READ | 1u << EVICT_ERASE,
	[EVICT_READ] = 1u << EVICT_ERASE | 1u << EVICT_IDLE,
	[EVICT_ERASE] = 1u << EVICT_FLUSH | 1u << EVICT_IDLE,
	[EVICT_FLUSH] = 1u << EVICT_ERASE | 1u << EVICT_DRAIN | 1u << EVICT_IDLE,
	[EVICT_DRAIN] = 1u << EVICT_IDLE,
};

/* The only writer of d->evict_state. */
void evict_go(struct drive *d, enum evict_state to)
{
	must(d->evict_state < ARRAY_COUNT(evict_next) && evict_next[d->evict_state] & 1u << to);
	if (to != EVICT_IDLE)
		must(!d->failed && d->segment[d->evict_segment].state == SEGMENT_EVICTING);
	if (to != EVICT_IDLE)
		must(!d->evict_io_busy);
	d->evict_state = (uint8_t)to;
}

/* False: waiting for a free segment is in vain as things are. */
bool evict_possible(const struct drive *d)
{
	if (d->evict_state != EVICT_IDLE || d->segments_held > 0)
		return true;
	for (unsigned i = 0; i < STORE_LOGS; i++) {
		if (d->log[i].state > SEGLOG_OPEN && d->st->opts.evict)
			return true;
	}
	return victim_find(d) != d->segment_count;
}

static bool wanted(const struct drive *d)
{
	if (d->st->closing && list_empty(&d->op_wait))
		return false;
	if (d->evict_forced)
		return true;
	if (d->st->opts.evict)
		return d->free_count < d->reserve;
	return d->free_count < 2 && !list_empty(&d->op_wait);
}

/* Until it is written that a drive is out, a tombstone may cover what that drive holds. */
static bool must_wait(const struct drive *d, const struct segment *victim)
{
	return victim->tombstone_count > 0 && d->st->mark_pending;
}

static void io_submit(struct drive *d, bool write, uint64_t block, uint64_t bytes)
{
	d->evict_iov = (struct iovec){.iov_base = d->evict_memory, .iov_len = bytes};
	d->evict_io = (struct disk_io){
		.op = {.done = evict_io_done},
		.iov = &d->evict_iov,
		.iov_count = 1,
		.offset_bytes = block << FMT_BLOCK_SHIFT,
		.bytes = bytes,
	};
	must(!d->evict_io_busy && !d->failed && bytes <= d->footer_bytes_max);
	d->evict_io_busy = true;
	d->evict_started_ns = loop_now_ns(d->st->loop);
	if (write)
		disk_write(d->disk, &d->evict_io);
	else
		disk_read(d->disk, &d->evict_io);
}

static struct fmt_place place_of(const struct drive *d, uint32_t block)
{
	return (struct fmt_place){
		.store_id = d->st->id,
		.drive = d->index,
		.block = fmt_segment_block(d->st->segment_bytes, d->evict_segment) + block,
	};
}

/* --- dropping keys -------------------- */

static void key_drop(struct drive *d, uint32_t entry)
{
	struct store *st = d->st;

	if ((index_place(st->index, entry).flags & INDEX_DEAD) == 0)
		st->count.evicted_keys++;
	index_entry_remove(st, entry);
}

/* The footer could not be read: look at every key there is. */
static void victim_sweep(struct drive *d)
{
	struct index *ix = d->st->index;

	for (uint32_t e = index_next(ix, 0); e != INDEX_NONE; e = index_next(ix, e + 1)) {
		struct index_place p = index_place(ix, e);

		if (p.drive == d->index && segment_of_block(d, p.block) == d->evict_segment)
			key_drop(d, e);
	}
}

/* What the footer says: evict_entries, evict_entry_count of them; none if it can't be read. */
static void victim_learn(struct drive *d, int res)
{
	struct store *st = d->st;
	struct segment *seg = &d->segment[d->evict_segment];
	struct fmt_place at = place_of(d, d->segment_blocks - 1);
	uint32_t blocks = fmt_footer_blocks(seg->entry_count);
	const uint8_t *tail = d->evict_memory + ((uint64_t)(blocks - 1) << FMT_BLOCK_SHIFT);
	struct fmt_segment_info info;

	if (res != 0 || fmt_footer_check(tail, &at, st->segment_bytes, &info) != NULL ||
	    info.generation != seg->generation || info.entry_count != seg->entry_count ||
	    fmt_footer_entries(d->evict_memory, &info, d->evict_entries) != NULL)
		return;
	d->evict_entry_count = info.entry_count;
	d->evict_sequence_base = info.sequence_base;
}

/* Its keys leave the index, but for those that were put again meanwhile. */
static void victim_drop(struct drive *d)
{
	struct store *st = d->st;
	struct segment *seg = &d->segment[d->evict_segment];

	for (uint32_t i = 0; i < d->evict_entry_count && seg->live_count > 0; i++) {
		const struct fmt_entry *e = &d->evict_entries[i];
		struct kv_key key = {.len = e->key_len};
		uint64_t sequence = d->evict_sequence_base + le32_get(e->sequence_delta);
		uint32_t entry;

		memcpy(key.byte, e->key, sizeof(key.byte));
		entry = index_find(st->index, &key);
		if (entry == INDEX_NONE || index_place(st->index, entry).drive != d->index)
			continue;
		if (index_place(st->index, entry).sequence == sequence)
			key_drop(d, entry);
	}
	if (seg->live_count > 0)
		victim_sweep(d);
	must(seg->live_count == 0);
}

/* --- steps -------------------- */

static void victim_start(struct drive *d, uint32_t victim)
{
	struct segment *seg = &d->segment[victim];
	uint64_t bytes = (uint64_t)fmt_footer_blocks(seg->entry_count) << FMT_BLOCK_SHIFT;
	struct fmt_place at;

	must(seg->state == SEGMENT_SEALED && d->evict_state == EVICT_IDLE);
	seg->state = SEGMENT_EVICTING;
	d->evict_segment = victim;
	d->evict_entry_count = 0;
	d->evict_step = 0;
	d->evict_forced = false;
	d->st->evictions++;
	if (seg->live_count == 0) {
		evict_go(d, EVICT_ERASE);
		return;
	}
	evict_go(d, EVICT_READ);
	at = place_of(d, d->segment_blocks);
	io_submit(d, false, at.block - (bytes >> FMT_BLOCK_SHIFT), bytes);
}

static void erase_step(struct drive *d)
{
	struct store *st = d->st;
	struct segment *seg = &d->segment[d->evict_segment];
	struct fmt_place at = place_of(d, d->evict_step == 0 ? d->segment_blocks - 1 : 0);
	struct fmt_segment_info info = {
		.state = FMT_SEGMENT_ERASED,
		.oldest_generation = segment_oldest(d),
		.sequence_base = st->sequence,
		.used_blocks = 1,
		.mount = st->mount,
	};

	must(seg->state == SEGMENT_EVICTING && d->evict_step < 2);
	if (d->evict_step == 0)
		seg->generation = segment_generation(st);
	info.generation = seg->generation;
	if (info.oldest_generation == 0)
		info.oldest_generation = info.generation;
	/* The footer first: so one that says "sealed" may be believed without a look at the
	 * header. */
	if (d->evict_step == 0)
		fmt_footer_write(d->evict_memory, &at, st->segment_bytes, &info, NULL);
	else
		fmt_header_write(d->evict_memory, &at, st->segment_bytes, &info);
	io_submit(d, true, at.block, FMT_BLOCK_BYTES);
}

static void evict_end(struct drive *d, bool good)
{
	struct segment *seg = &d->segment[d->evict_segment];

	must(d->st->evictions > 0 && seg->state == SEGMENT_EVICTING);
	evict_go(d, EVICT_IDLE);
	d->st->evictions--;
	if (good) {
		evict_free(d, d->evict_segment);
		d->st->count.evicted_segments++;
	} else {
		/* Its values stay as long as this run lasts. */
		log_warn("store drive %s: segment %u can't be overwritten; it is left alone",
			 d->path, d->evict_segment);
		seg->state = SEGMENT_BAD;
	}
	d->st->index_pressure = false;
	store_pump(d->st);
}

/* Hands a segment that holds nothing to the writers. */
void evict_free(struct drive *d, uint32_t segment_index)
{
	struct segment *seg = &d->segment[segment_index];

	must(d->free_count < d->segment_count && seg->live_count == 0 && seg->reader_count == 0);
	if (seg->failures >= STORE_SEGMENT_FAILURES_MAX) {
		seg->state = SEGMENT_BAD;
		return;
	}
	if (seg->loan_count > 0) {
		seg->state = SEGMENT_LENT;             /* loan.c brings it back */
		d->segments_held++;
		return;
	}
	seg->state = SEGMENT_FREE;
	seg->used_blocks = seg->entry_count = seg->tombstone_count = 0;
	segment_free_add(d, segment_index, drive_is_tight(d));
}

static void evict_io_done(struct loop_op *io, int res)
{
	struct drive *d = container_of(io, struct drive, evict_io.op);

	d->evict_io_busy = false;
	if (d->failed) {
		store_close_pump(d->st);
		return;
	}
	drive_io_result(d, res);
	if (d->evict_state == EVICT_READ) {
		victim_learn(d, res);
#ifdef KVOF_PLANT_EVICT_DROPS_EARLY
		victim_drop(d);                      /* planted fault */
#endif
		evict_go(d, EVICT_ERASE);
		drive_pump(d);
		return;
	}
	must(d->evict_state == EVICT_ERASE);
	if (res == 0) {
		d->evict_step++;
	} else if (++d->segment[d->evict_segment].failures >= STORE_SEGMENT_FAILURES_MAX) {
		evict_end(d, false);
		return;
	}
	drive_pump(d);
}

static void evict_flushed(struct flush_wait *w, int res)
{
	struct drive *d = container_of(w, struct drive, evict_flush);

	if (d->failed)
		return;
	must(d->evict_state == EVICT_FLUSH);
	if (res != 0) {
		evict_go(d, EVICT_ERASE);
		d->evict_step = 0;
		return;
	}
	victim_drop(d);
	evict_go(d, EVICT_DRAIN);
	store_pump(d->st);                   /* others may have waited for room in the index */
}

/* The index is full: the drive with the oldest segment of all gives it away. */
static void pressure(struct store *st)
{
	struct drive *oldest = NULL;
	uint64_t generation = UINT64_MAX;

	if (!st->index_pressure || !st->opts.evict || st->evictions > 0)
		return;
	for (unsigned i = 0; i < st->drive_count; i++) {
		struct drive *d = &st->drive[i];
		uint64_t g = d->failed ? 0 : segment_oldest(d);

		if (g != 0 && g < generation) {
			generation = g;
			oldest = d;
		}
	}
	if (oldest == NULL)
		return;
	oldest->evict_forced = true;
	if (victim_find(oldest) == oldest->segment_count && segment_log_open(oldest) != NULL)
		segment_log_close(segment_log_open(oldest));
}

void evict_pump(struct drive *d)
{
	pressure(d->st);
	if (d->evict_io_busy)
		return;
	if (d->evict_state == EVICT_IDLE && wanted(d)) {
		uint32_t victim = victim_find(d);

		if (victim == d->segment_count || must_wait(d, &d->segment[victim]))
			return;
		victim_start(d, victim);
	}
	if (d->evict_state == EVICT_DRAIN && d->segment[d->evict_segment].reader_count == 0) {
		evict_end(d, true);
		return;
	}
	if (d->evict_state != EVICT_ERASE || d->evict_io_busy)
		return;
	if (d->evict_step < 2) {
		erase_step(d);
		return;
	}
	evict_go(d, EVICT_FLUSH);
	d->evict_flush.done = evict_flushed;
	drive_flush(d, &d->evict_flush);
}
