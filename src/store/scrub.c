/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scrub: reads what lies in the sealed segments of each drive, slowly and for ever, so that a
 * value that went bad on the medium is known before somebody asks for it, and a footer before a
 * restart needs it.
 *
 *   FOOTER  the footer of the next segment is read and checked
 *   VALUES  each value that it lists and the index still points to is read and compared (header,
 *           place, key, checksum), one at a time. Bad twice: the entry is dropped
 *   HOP     the footer is bad: the segment's records are listed anew, from header to header
 *   REPAIR  and that list is written as its footer
 *
 * A drive is read at most at the set rate (store_opts.scrub_bytes, a second); a step waits while
 * the drive has other work, up to a second. A pass begins at the earliest SCRUB_PASS_NS after the
 * one before; where it began is not kept: a restart begins at another segment, so that an array
 * that is restarted often is read all over, too. Drives that are memory are left out.
 *
 * A segment is pinned while something of it is read, and is not evicted while its footer is
 * written. Runs on the store's loop.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "store/inner.h"

#define SCRUB_PASS_NS (24 * 3600 * NS_PER_S)
#define SCRUB_WAIT_NS (10 * NS_PER_MS)
#define SCRUB_WAITS_MAX 100u
#define SCRUB_BUSY 4u                        /* I/O of others in flight: it is not the moment */
#define SCRUB_LOOKS_MAX 4096u                /* entries looked up in one step */

static void scrub_io_done(struct loop_op *io, int res);

/* bit n set: may go to state n; each goes on to the footer of the next segment. */
static const uint8_t scrub_next[] = {
	[SCRUB_FOOTER] = 1u << SCRUB_FOOTER | 1u << SCRUB_VALUES | 1u << SCRUB_HOP,
	[SCRUB_VALUES] = 1u << SCRUB_FOOTER,
	[SCRUB_HOP] = 1u << SCRUB_REPAIR | 1u << SCRUB_FOOTER,
	[SCRUB_REPAIR] = 1u << SCRUB_FOOTER,
};

/* The only writer of s->state; never while something is read or written. */
static void scrub_go(struct scrub *s, enum scrub_state to)
{
	must(s->state < ARRAY_COUNT(scrub_next) && scrub_next[s->state] & 1u << to);
	must(!s->busy);
	s->state = (uint8_t)to;
}

static void arm(struct drive *d, uint64_t after_ns)
{
	struct store *st = d->st;

	if (!st->closing && !d->failed)
		loop_timer_set(st->loop, &d->scrub.timer, loop_now_ns(st->loop) + after_ns);
}

static struct fmt_place place_of(const struct drive *d, uint32_t block)
{
	return (struct fmt_place){
		.store_id = d->st->id,
		.drive = d->index,
		.block = fmt_segment_block(d->st->segment_bytes, d->scrub.segment) + block,
	};
}

static void io_submit(struct drive *d, const struct iovec *iov, unsigned iov_count, uint64_t block,
		      uint64_t bytes)
{
	struct scrub *s = &d->scrub;

	must(!s->busy && !d->failed && bytes > 0);
	s->io = (struct disk_io){
		.op = {.done = scrub_io_done},
		.iov = iov,
		.iov_count = iov_count,
		.offset_bytes = block << FMT_BLOCK_SHIFT,
		.bytes = bytes,
	};
	s->busy = true;
	s->bytes = bytes;
	s->started_ns = loop_now_ns(d->st->loop);
	d->segment[s->segment].reader_count++;
	drive_tick_set(d);
	if (s->state == SCRUB_REPAIR)
		disk_write(d->disk, &s->io);
	else
		disk_read(d->disk, &s->io);
}

static void page_submit(struct drive *d, uint32_t block, uint64_t bytes)
{
	d->scrub.iov = (struct iovec){.iov_base = d->scrub.memory, .iov_len = bytes};
	io_submit(d, &d->scrub.iov, 1, place_of(d, block).block, bytes);
}

/* --- from segment to segment -------------------- */

static void pass_end(struct drive *d)
{
	struct scrub *s = &d->scrub;
	uint64_t took = loop_now_ns(d->st->loop) - s->pass_began_ns;

	log_info("store drive %s: scrubbed: %" PRIu64 " MiB read in %" PRIu64 " s, %" PRIu64
		 " values and footers were bad", d->path, s->pass_bytes / MiB, took / NS_PER_S,
		 s->pass_bad);
	d->st->count.scrub_passes++;
	s->segment = s->segments_seen = 0;
	s->pass_bytes = s->pass_bad = 0;
	s->pass_began_ns += SCRUB_PASS_NS;
	if (took >= SCRUB_PASS_NS)
		s->pass_began_ns = loop_now_ns(d->st->loop);
	arm(d, s->pass_began_ns - loop_now_ns(d->st->loop));
}

static void segment_next(struct drive *d)
{
	struct scrub *s = &d->scrub;

	must(!s->busy && s->segment < d->segment_count);
	s->segment = (s->segment + 1) % d->segment_count;
	s->segments_seen++;
	scrub_go(s, SCRUB_FOOTER);
	s->attempts = 0;
}

/* It is still what it was when its footer was read. */
static bool same_segment(const struct drive *d)
{
	const struct segment *seg = &d->segment[d->scrub.segment];

	return seg->state == SEGMENT_SEALED && seg->generation == d->scrub.generation;
}

static void footer_step(struct drive *d)
{
	struct scrub *s = &d->scrub;
	const struct segment *seg;
	uint32_t blocks;

	must(s->segment < d->segment_count && s->buf == NULL);
	while (s->segments_seen < d->segment_count &&
	       d->segment[s->segment].state != SEGMENT_SEALED)
		segment_next(d);
	if (s->segments_seen >= d->segment_count) {
		pass_end(d);
		return;
	}
	seg = &d->segment[s->segment];
	s->generation = seg->generation;
	blocks = fmt_footer_blocks(seg->entry_count);
	page_submit(d, d->segment_blocks - blocks, (uint64_t)blocks << FMT_BLOCK_SHIFT);
}

static void found_bad(struct drive *d, const char *what, uint64_t block, const char *wrong)
{
	d->scrub.pass_bad++;
	d->st->count.scrub_bad++;
	log_warn("store drive %s: scrub: %s at block %" PRIu64 ": %s", d->path, what, block, wrong);
}

static void footer_read(struct drive *d, int res)
{
	struct scrub *s = &d->scrub;
	const struct segment *seg = &d->segment[s->segment];
	uint32_t blocks = fmt_footer_blocks(seg->entry_count);
	struct fmt_place at = place_of(d, d->segment_blocks - 1);
	const char *wrong = "can't be read";
	struct fmt_segment_info info;

	if (!same_segment(d)) {
		segment_next(d);
		return;
	}
	if (res == 0)
		wrong = fmt_footer_check(s->memory + ((size_t)(blocks - 1) << FMT_BLOCK_SHIFT), &at,
					 d->st->segment_bytes, &info);
	if (wrong == NULL && (info.generation != seg->generation ||
			      info.entry_count != seg->entry_count))
		wrong = "of another use of the segment";
	if (wrong == NULL)
		wrong = fmt_footer_entries(s->memory, &info, s->entries);
	if (wrong == NULL) {
		scrub_go(s, SCRUB_VALUES);
		s->entry = 0;
		s->entry_count = info.entry_count;
		s->sequence_base = info.sequence_base;
	} else if (++s->attempts >= 2) {
		found_bad(d, "footer", at.block, wrong);
		scrub_go(s, SCRUB_HOP);
		s->block = s->entry_count = s->attempts = 0;
		if (seg->untidy)                     /* its footer did not list all */
			segment_next(d);
	}
}

/* --- values -------------------- */

/* Is this entry of the footer what the index points to? */
static bool entry_counts(struct drive *d, const struct fmt_entry *e)
{
	struct scrub *s = &d->scrub;
	struct index *ix = d->st->index;
	uint32_t entry;

	must(e->key_len >= 1 && e->key_len <= FMT_KEY_PART);
	s->key = (struct kv_key){.len = e->key_len};
	memcpy(s->key.byte, e->key, sizeof(s->key.byte));
	if (e->kind != FMT_PUT)
		return false;
	entry = index_find(ix, &s->key);
	if (entry == INDEX_NONE)
		return false;
	s->place = index_place(ix, entry);
	return s->place.drive == d->index && (s->place.flags & INDEX_DEAD) == 0 &&
	       s->place.sequence == s->sequence_base + le32_get(e->sequence_delta);
}

static void values_step(struct drive *d)
{
	struct scrub *s = &d->scrub;
	unsigned looks = 0;

	must(s->entry <= s->entry_count && s->buf == NULL);
	if (!same_segment(d))
		s->entry = s->entry_count;
	while (s->entry < s->entry_count && !entry_counts(d, &s->entries[s->entry])) {
		s->entry++;
		if (++looks < SCRUB_LOOKS_MAX)
			continue;
		arm(d, 0);
		return;
	}
	if (s->entry >= s->entry_count) {
		segment_next(d);
		arm(d, 0);
		return;
	}
	s->buf = buf_take_now(d->st->pool, s->place.value_bytes);
	if (s->buf == NULL) {                        /* others are in need of them */
		arm(d, SCRUB_WAIT_NS);
		return;
	}
	io_submit(d, s->buf->chunk, s->buf->chunk_count, s->place.block,
		  (uint64_t)buf_blocks(s->buf) << FMT_BLOCK_SHIFT);
}

static void value_read(struct drive *d, int res)
{
	struct scrub *s = &d->scrub;
	const char *wrong = "can't be read";
	uint64_t payload_xxh3;
	uint32_t entry;

	must(s->buf != NULL && s->entry < s->entry_count);
	if (res == 0)
		wrong = store_record_wrong(d->st, &s->place, s->buf, &s->key, &payload_xxh3);
	store_buf_return(&s->buf);
	if (wrong != NULL && ++s->attempts < 2)
		return;
	s->attempts = 0;
	s->entry++;
#ifdef KVOF_PLANT_SCRUB_BLIND
	wrong = NULL;                                /* planted fault */
#endif
	if (wrong == NULL)
		return;
	found_bad(d, "value", s->place.block, wrong);
	entry = index_find(d->st->index, &s->key);
	if (entry != INDEX_NONE &&
	    index_place(d->st->index, entry).sequence == s->place.sequence)
		index_entry_drop(d->st, entry);
}

/* --- a footer anew -------------------- */

static void hop_end(struct drive *d)
{
	struct scrub *s = &d->scrub;

	must(s->state == SCRUB_HOP && !s->busy);
	if (s->entry_count == d->segment[s->segment].entry_count && same_segment(d)) {
		scrub_go(s, SCRUB_REPAIR);
		return;
	}
	log_warn("store drive %s: scrub: segment %u can't be listed anew", d->path, s->segment);
	segment_next(d);
}

/* A value that is not believed any more was listed as deleted. */
static uint8_t kind_of(struct drive *d, const struct fmt_record_info *r)
{
	uint32_t entry = index_find(d->st->index, &r->key);
	struct index_place p;

	if (entry == INDEX_NONE || r->kind == FMT_DELETE)
		return (uint8_t)r->kind;
	p = index_place(d->st->index, entry);
	return p.sequence == r->sequence && (p.flags & INDEX_DEAD) != 0 ? FMT_DELETE : FMT_PUT;
}

static void hop_step(struct drive *d)
{
	must(d->scrub.block < d->segment_blocks && d->scrub.buf == NULL);
	if (same_segment(d)) {
		page_submit(d, d->scrub.block, FMT_BLOCK_BYTES);
		return;
	}
	segment_next(d);                             /* it goes, or is gone */
	arm(d, 0);
}

/* Block 0 is the segment's header; then each record's. */
static void hop_read(struct drive *d, int res)
{
	struct scrub *s = &d->scrub;
	const struct segment *seg = &d->segment[s->segment];
	struct fmt_place at = place_of(d, s->block);
	struct fmt_segment_info head;
	struct fmt_record_info r;
	const char *wrong = "unread";

	must(s->block < d->segment_blocks && s->entry_count <= seg->entry_count);
	if (res == 0 && s->block == 0)
		wrong = fmt_header_check(s->memory, &at, d->st->segment_bytes, &head);
	else if (res == 0)
		wrong = fmt_record_check(s->memory, &at, d->segment_blocks - s->block, &r);
	if (wrong == NULL && (s->block == 0 ? head.generation : r.generation) != seg->generation)
		wrong = "of another use";
	if (wrong == NULL && s->block > 0 &&
	    (r.sequence < s->sequence_base || r.sequence - s->sequence_base > UINT32_MAX))
		wrong = "sequence";
	if (wrong != NULL && ++s->attempts < 2)
		return;
	s->attempts = 0;
	if (wrong != NULL || !same_segment(d)) {
		hop_end(d);
		return;
	}
	if (s->block == 0) {
		s->sequence_base = head.sequence_base;
		s->block = 1;
	} else {
		struct fmt_entry *e = &s->entries[s->entry_count++];
		uint8_t kind = kind_of(d, &r);

		*e = (struct fmt_entry){
			.block = le32_of(s->block),
			.value_bytes = le32_of(kind == FMT_PUT ? r.value_bytes : 0),
			.sequence_delta = le32_of((uint32_t)(r.sequence - s->sequence_base)),
			.key_len = r.key.len,
			.kind = kind,
			.stripe = kind == FMT_PUT ? r.stripe : 0,
		};
		memcpy(e->key, r.key.byte, sizeof(e->key));
		s->block += fmt_record_blocks(r.value_bytes);
	}
	if (s->block >= seg->used_blocks || s->entry_count == seg->entry_count)
		hop_end(d);
}

static void repair_step(struct drive *d)
{
	struct scrub *s = &d->scrub;
	struct segment *seg = &d->segment[s->segment];
	uint32_t blocks = fmt_footer_blocks(s->entry_count);
	struct fmt_place at = place_of(d, d->segment_blocks - 1);
	struct fmt_segment_info info = {
		.state = FMT_SEGMENT_SEALED,
		.generation = seg->generation,
		.oldest_generation = segment_oldest(d),
		.sequence_base = s->sequence_base,
		.used_blocks = seg->used_blocks,
		.entry_count = s->entry_count,
		.mount = d->st->mount,
	};

	if (!same_segment(d) || d->evict_state != EVICT_IDLE) {
		if (!same_segment(d))
			segment_next(d);
		arm(d, SCRUB_WAIT_NS);
		return;
	}
	must(s->entry_count == seg->entry_count && s->entry_count < seg->used_blocks);
	segment_go(seg, SEGMENT_OPEN);               /* nobody evicts it meanwhile */
	fmt_footer_write(s->memory, &at, d->st->segment_bytes, &info, s->entries);
	page_submit(d, d->segment_blocks - blocks, (uint64_t)blocks << FMT_BLOCK_SHIFT);
}

bool scrub_repairs(const struct drive *d)
{
	return d->scrub.state == SCRUB_REPAIR && d->scrub.busy;
}

static void repaired(struct drive *d, int res)
{
	struct segment *seg = &d->segment[d->scrub.segment];

	must(seg->state == SEGMENT_OPEN && d->scrub.state == SCRUB_REPAIR);
	must(seg->generation == d->scrub.generation);
	segment_go(seg, SEGMENT_SEALED);
	if (res == 0)
		log_warn("store drive %s: scrub: the footer of segment %u is written anew",
			 d->path, d->scrub.segment);
	segment_next(d);
}

/* --- steps and their pace -------------------- */

static void scrub_step(struct drive *d)
{
	switch (d->scrub.state) {
	case SCRUB_FOOTER:
		footer_step(d);
		break;
	case SCRUB_VALUES:
		values_step(d);
		break;
	case SCRUB_HOP:
		hop_step(d);
		break;
	case SCRUB_REPAIR:
		repair_step(d);
		break;
	}
}

static void scrub_fire(struct loop_timer *t)
{
	struct drive *d = container_of(t, struct drive, scrub.timer);
	struct scrub *s = &d->scrub;
	bool others = d->reading_busy + d->append_busy > SCRUB_BUSY || !list_empty(&d->get_wait);

	if (d->failed || d->st->closing)
		return;
	must(!s->busy);
	if (others && ++s->waits < SCRUB_WAITS_MAX) {
		arm(d, SCRUB_WAIT_NS);
		return;
	}
	s->waits = 0;
	scrub_step(d);
}

static void scrub_io_done(struct loop_op *io, int res)
{
	struct drive *d = container_of(io, struct drive, scrub.io.op);
	struct scrub *s = &d->scrub;
	struct store *st = d->st;

	must(s->busy && d->segment[s->segment].reader_count > 0);
	s->busy = false;
	d->segment[s->segment].reader_count--;
	if (d->failed) {
		if (s->buf != NULL)
			store_buf_return(&s->buf);
		store_close_pump(st);
		return;
	}
	drive_io_result(d, res);
	s->pass_bytes += s->bytes;
	st->count.scrub_bytes += s->bytes;
	if (s->state == SCRUB_FOOTER)
		footer_read(d, res);
	else if (s->state == SCRUB_VALUES)
		value_read(d, res);
	else if (s->state == SCRUB_HOP)
		hop_read(d, res);
	else
		repaired(d, res);
	arm(d, s->bytes * NS_PER_S / st->opts.scrub_bytes);
	drive_pump(d);
}

uint64_t scrub_started_ns(const struct drive *d)
{
	return d->scrub.busy ? d->scrub.started_ns : UINT64_MAX;
}

int scrub_open(struct drive *d)
{
	struct scrub *s = &d->scrub;
	uint64_t entries = fmt_entries_max(d->st->segment_bytes);

	loop_timer_init(&s->timer, scrub_fire);
	if (d->st->opts.scrub_bytes == 0 || d->failed || disk_info(d->disk)->memory)
		return 0;
	s->memory = loop_buffer_map(d->footer_bytes_max);
	s->entries = calloc(entries, sizeof(*s->entries));
	if (s->memory == NULL || s->entries == NULL)
		return -ENOMEM;
	s->segment = (uint32_t)((uint64_t)d->st->mount * 2654435761u % d->segment_count);
	s->pass_began_ns = loop_now_ns(d->st->loop);
	arm(d, NS_PER_S);
	return 0;
}

void scrub_stop(struct drive *d)
{
	if (loop_timer_is_set(&d->scrub.timer))
		loop_timer_cancel(d->st->loop, &d->scrub.timer);
}

void scrub_free(struct drive *d)
{
	loop_buffer_unmap(d->scrub.memory, d->footer_bytes_max);
	free(d->scrub.entries);
}
