/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments of one drive: placing records in the open one, answering them in order, sealing.
 *
 * A record is placed at log->next_block and written together with its header in one write; several
 * are in flight. Invariants:
 *  - what was answered is a prefix of the segment: a record is answered when its write and all
 *    writes before it in the segment are done. A restart finds that prefix by hopping;
 *  - a footer is written only when the records it lists are written and flushed, so it may be
 *    believed;
 *  - entries[0..entry_count) are the records below written_blocks, in order of place;
 *    durable_entries <= entry_count <= append_count, durable_blocks <= written_blocks <=
 *    next_block.
 *
 * When a write fails, the segment takes no more records; those not answered yet are placed anew
 * elsewhere, and the segment is sealed with what was answered. Runs on the store's loop.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "store/inner.h"

#define ATTEMPTS_MAX 4u
#define CHECKPOINT_ENTRIES 64u

static void append_done(struct loop_op *io, int res);
static void footer_done(struct loop_op *io, int res);
static void log_flushed(struct flush_wait *w, int res);

/* bit n set: may go to state n. An open finds its segments FREE and says what they are. */
static const uint8_t segment_next[] = {
	[SEGMENT_FREE] = 1u << SEGMENT_FREE | 1u << SEGMENT_OPEN | 1u << SEGMENT_SEALED,
	[SEGMENT_OPEN] = 1u << SEGMENT_SEALED | 1u << SEGMENT_FREE,
	[SEGMENT_SEALED] = 1u << SEGMENT_EVICTING | 1u << SEGMENT_OPEN,
	[SEGMENT_EVICTING] = 1u << SEGMENT_SEALED | 1u << SEGMENT_FREE | 1u << SEGMENT_LENT |
			     1u << SEGMENT_BAD,
	[SEGMENT_LENT] = 1u << SEGMENT_FREE | 1u << SEGMENT_BAD,
	[SEGMENT_BAD] = 0,
};

/* The only writer of seg->state. */
void segment_go(struct segment *seg, enum segment_state to)
{
	must(seg->state < ARRAY_COUNT(segment_next) && segment_next[seg->state] & 1u << to);
	seg->state = (uint8_t)to;
}

uint64_t segment_generation(struct store *st)
{
	return (uint64_t)st->mount << 32 | ++st->generation_low;
}

uint32_t segment_of_block(const struct drive *d, uint64_t block)
{
	uint64_t index = (block - FMT_FIRST_SEGMENT_BLOCK) / d->segment_blocks;

	must(block >= FMT_FIRST_SEGMENT_BLOCK && index < d->segment_count);
	return (uint32_t)index;
}

/* Generation of the oldest segment that counts: those below may be dead for ever. */
uint64_t segment_oldest(const struct drive *d)
{
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = 0; i < d->segment_count; i++) {
		const struct segment *seg = &d->segment[i];
		/* One that goes may yet be spared, until it is erased. */
		bool counts = seg->state == SEGMENT_OPEN || seg->state == SEGMENT_SEALED ||
			      (seg->state == SEGMENT_EVICTING && d->evict_state < EVICT_ERASE);

		if (counts && seg->generation < oldest)
			oldest = seg->generation;
	}
	return oldest == UINT64_MAX ? 0 : oldest;
}

static struct fmt_place place_of(const struct seg_log *log, uint32_t block)
{
	const struct drive *d = log->drive;

	return (struct fmt_place){
		.store_id = d->st->id,
		.drive = d->index,
		.block = fmt_segment_block(d->st->segment_bytes, log->segment_index) + block,
	};
}

static void log_check(const struct seg_log *log)
{
	must(log->durable_entries <= log->entry_count && log->entry_count <= log->append_count);
	must(log->durable_blocks <= log->written_blocks);
	must(log->written_blocks <= log->next_block || log->next_block == 0);
	must(log->checkpoint_entries <= log->entry_count);
}

struct seg_log *segment_log_open(const struct drive *d)
{
	for (unsigned i = 0; i < STORE_LOGS; i++) {
		if (d->log[i].state == SEGLOG_OPEN)
			return (struct seg_log *)(uintptr_t)&d->log[i];
	}
	return NULL;
}

/* --- placing -------------------- */

static struct append *append_take(struct seg_log *log, uint32_t block, uint32_t blocks)
{
	struct drive *d = log->drive;
	struct list_link *link = list_pop_front(&d->append_free);
	struct append *a = container_of(link, struct append, link);

	must(link != NULL);
	must(a->log == NULL && a->op == NULL && blocks > 0);
	a->drive = d;
	a->log = log;
	a->op = NULL;
	a->buf = NULL;
	a->done = false;
	a->block = block;
	a->blocks = blocks;
	a->bytes = (uint64_t)blocks << FMT_BLOCK_SHIFT;
	a->started_ns = loop_now_ns(d->st->loop);
	d->append_busy++;
	return a;
}

static void append_submit(struct append *a, const struct iovec *iov, unsigned iov_count,
			  uint64_t block)
{
	struct drive *d = a->drive;

	list_push_back(&a->log->appends, &a->link);
	list_push_back(&d->in_flight, &a->watch);
	a->log->in_flight++;
	d->in_flight_bytes += a->bytes;
	d->unflushed_bytes += a->bytes;
	a->io = (struct disk_io){
		.op = {.done = append_done},
		.iov = iov,
		.iov_count = iov_count,
		.offset_bytes = block << FMT_BLOCK_SHIFT,
		.bytes = a->bytes,
	};
	disk_write(d->disk, &a->io);
}

static void append_page(struct append *a, uint64_t block)
{
	a->iov = (struct iovec){.iov_base = a->page, .iov_len = FMT_BLOCK_BYTES};
	append_submit(a, &a->iov, 1, block);
}

static void append_free(struct append *a)
{
	must(a->drive->append_busy > 0 && a->buf == NULL);
	list_push_front(&a->drive->append_free, &a->link);
	a->drive->append_busy--;
	a->log = NULL;
	a->op = NULL;
}

void segment_free_add(struct drive *d, uint32_t segment_index, bool first)
{
	uint32_t at = d->free_first + d->free_count;

	must(d->free_count < d->segment_count);
	must(d->segment[segment_index].state == SEGMENT_FREE);
	if (first) {
		d->free_first = (d->free_first + d->segment_count - 1) % d->segment_count;
		at = d->free_first;
		d->tight_credit++;
	}
	d->free_ring[at % d->segment_count] = segment_index;
	d->free_count++;
}

/* Free segments that are not for this kind of record. */
static uint32_t free_kept(const struct drive *d, enum op_kind kind)
{
	if (kind == OP_CARRY)
		return 0;
	if (!d->st->opts.evict)
		return kind == OP_DELETE ? 1 : 2;
	return d->evict_state == EVICT_READ || d->evict_state == EVICT_CARRY ? 1 : 0;
}

/* Opens the next free segment: its header and an empty footer go out in front of the first
 * record. */
static int log_start(struct drive *d, enum op_kind kind)
{
	struct store *st = d->st;
	uint32_t keep = free_kept(d, kind);
	struct seg_log *log = NULL;
	struct segment *seg;
	struct fmt_segment_info info;
	struct fmt_place at;
	struct append *a;

	for (unsigned i = 0; i < STORE_LOGS && log == NULL; i++) {
		if (d->log[i].state == SEGLOG_NONE)
			log = &d->log[i];
	}
	if (log == NULL || STORE_WRITES_MAX - d->append_busy < 3)
		return -EAGAIN;
	if (drive_is_tight(d) && d->tight_credit <= keep) {
		d->evict_forced = evict_possible(d);
		return d->evict_forced ? -EAGAIN : -ENOSPC;
	}
	if (d->free_count <= keep)
		return evict_possible(d) ? -EAGAIN : -ENOSPC;
	if (drive_is_tight(d))
		d->tight_credit--;
	*log = (struct seg_log){
		.drive = d,
		.segment_index = d->free_ring[d->free_first],
		.state = SEGLOG_OPEN,
		.next_block = 1,
		.sequence_base = st->sequence,
		.entries = log->entries,
	};
	list_init(&log->appends);
	d->free_first = (d->free_first + 1) % d->segment_count;
	d->free_count--;
	seg = &d->segment[log->segment_index];
	must(seg->state == SEGMENT_FREE && seg->live_count == 0 && seg->reader_count == 0);
	must(seg->loan_count == 0);
	segment_go(seg, SEGMENT_OPEN);
	seg->main = seg->lucky = seg->untidy = seg->stuck = false;
	seg->turn = ++d->turn;
	seg->generation = segment_generation(st);
	seg->used_blocks = 1;
	seg->entry_count = seg->tombstone_count = 0;
	seg->sequence_last = st->sequence;
	info = (struct fmt_segment_info){
		.state = FMT_SEGMENT_OPEN,
		.generation = seg->generation,
		.oldest_generation = segment_oldest(d),
		.sequence_base = log->sequence_base,
		.used_blocks = 1,
		.mount = st->mount,
	};
	drive_budget_note(d, &info);
	at = place_of(log, 0);
	a = append_take(log, 0, 1);
	fmt_header_write(a->page, &at, st->segment_bytes, &info);
	append_page(a, at.block);
	at = place_of(log, d->segment_blocks - 1);
	a = append_take(log, 0, 1);
	fmt_footer_write(a->page, &at, st->segment_bytes, &info, NULL);
	append_page(a, at.block);
	return 0;
}

static bool log_fits(const struct seg_log *log, uint32_t blocks)
{
	uint32_t end = log->next_block + blocks + fmt_footer_blocks(log->append_count + 1);

	return end <= log->drive->segment_blocks &&
	       log->drive->st->sequence - log->sequence_base < UINT32_MAX / 2;
}

bool segment_has_room(const struct drive *d, uint32_t blocks)
{
	const struct seg_log *log = segment_log_open(d);

	if (log != NULL && log_fits(log, blocks))
		return true;
	return drive_is_tight(d) ? d->tight_credit > 0 : d->free_count > 0;
}

void segment_log_close(struct seg_log *log)
{
	must(log->state != SEGLOG_NONE);
	if (log->state == SEGLOG_OPEN)
		log->state = SEGLOG_DRAIN;
}

static enum fmt_kind record_kind(struct store_op *op)
{
	enum op_kind kind = (enum op_kind)op_state(op)->kind;

	if (kind == OP_CARRY)
		return container_of(op, struct carry_slot, op)->tombstone ? FMT_DELETE : FMT_PUT;
	return kind == OP_PUT ? FMT_PUT : FMT_DELETE;
}

static void record_submit(struct seg_log *log, struct store_op *op, uint32_t blocks)
{
	struct op_state *s = op_state(op);
	struct drive *d = log->drive;
	struct store *st = d->st;
	struct fmt_place at = place_of(log, log->next_block);
	struct append *a = append_take(log, log->next_block, blocks);
	struct fmt_record_info info = {
		.key = op->key,
		.kind = record_kind(op),
		.generation = d->segment[log->segment_index].generation,
		.sequence = ++st->sequence,
		.payload_xxh3 = s->payload_xxh3,
		.value_bytes = s->kind == OP_DELETE ? 0 : op->value_bytes,
		.stripe = s->stripe_byte,
		.mount = st->mount,
		.durable_blocks = log->durable_blocks,
	};

	a->op = op;
	a->sequence = info.sequence;
	must(log->state == SEGLOG_OPEN && info.sequence <= FMT_SEQ_MAX);
	log->next_block += blocks;
	log->append_count++;
	d->segment[log->segment_index].used_blocks = log->next_block;
	s->place = (struct index_place){
		.sequence = info.sequence,
		.block = (uint32_t)at.block,
		.value_bytes = info.value_bytes,
		.drive = d->index,
		.flags = stripe_flags(s->stripe_byte),
	};
	if (s->kind == OP_PUT) {
		must(buf_blocks(op->buf) == blocks);
		s->placed = true;
		st->puts_placed++;
		a->buf = op->buf;
		store_buf_hold(a->buf);
		fmt_record_write(op->buf->chunk[0].iov_base, &at, &info);
		append_submit(a, op->buf->chunk, op->buf->chunk_count, at.block);
	} else if (s->kind == OP_CARRY) {
		a->iov = container_of(op, struct carry_slot, op)->iov;
		a->carry = true;
		must(a->iov.iov_len == a->bytes);
		fmt_record_write(a->iov.iov_base, &at, &info);
		append_submit(a, &a->iov, 1, at.block);
	} else {
		memset(a->page, 0, FMT_BLOCK_BYTES);
		fmt_record_write(a->page, &at, &info);
		append_page(a, at.block);
	}
}

int segment_place(struct drive *d, struct store_op *op)
{
	struct op_state *s = op_state(op);
	struct store *st = d->st;
	uint32_t blocks = op_blocks(op);
	uint64_t bytes = (uint64_t)blocks << FMT_BLOCK_SHIFT;
	struct seg_log *log = segment_log_open(d);

	/* What is alive in a segment that is cleaned fits the last free one, if that is left to
	 * it. */
	if ((!st->opts.evict || d->carry_kept) && s->kind != OP_CARRY &&
	    d->evict_state == EVICT_CARRY && d->free_count == 0)
		return -EAGAIN;
	/* A key that is known needs no room; should its entry go meanwhile, it leaves its own. */
	if (s->kind == OP_PUT && !store_index_has_room(st) &&
	    index_find(st->index, &op->key) == INDEX_NONE) {
		if (!st->opts.evict && st->puts_placed == 0)
			return -ENOSPC;
		st->index_pressure = true;           /* a put that fails, a delete or an eviction */
		return -EAGAIN;
	}
	if (list_empty(&d->append_free) ||
	    (s->kind == OP_PUT && d->in_flight_bytes >= d->writing_bytes_max))
		return -EAGAIN;
	if (d->unflushed_bytes > 0 && d->unflushed_bytes + bytes > d->window_bytes) {
		if (d->unflushed_bytes > d->in_flight_bytes)
			d->flush_wanted = true;
		return -EAGAIN;
	}
	if (log != NULL && !log_fits(log, blocks)) {
		segment_log_close(log);
		log = NULL;
	}
	if (log == NULL) {
		int rc = log_start(d, (enum op_kind)s->kind);

		if (rc != 0)
			return rc;
		log = segment_log_open(d);
		must(log_fits(log, blocks));
	}
	record_submit(log, op, blocks);
	if (s->kind == OP_CARRY)
		return 0;
	d->cleaned_in_vain = 0;
	st->count.stored_bytes += bytes;
	policy_stored(&d->policy, d->segment_blocks, blocks);
	return 0;
}

/* A key that the index does not know may find a place on another drive. */
static void op_again(struct store_op *op, int res)
{
	struct op_state *s = op_state(op);
	unsigned most = res == -ENOSPC ? ATTEMPTS_MAX + s->st->drive_count : ATTEMPTS_MAX;

	if (++s->attempts >= most)
		op_answer(op, res == -ENOSPC ? -ENOSPC : -EIO);
	else
		op_dispatch(s->st, op);
}

void segment_append_pump(struct drive *d)
{
	while (!list_empty(&d->op_wait)) {
		struct store_op *op = container_of(d->op_wait.next, struct store_op, link);
		int rc = segment_place(d, op);

		if (rc == -EAGAIN)
			break;
		list_remove(&op->link);
		if (rc != 0) {
			d->queued_bytes -= (uint64_t)op_blocks(op) << FMT_BLOCK_SHIFT;
			if (drive_is_tight(d))
				op_again(op, rc);
			else
				op_answer(op, rc);
		}
	}
	if (d->unflushed_bytes - d->in_flight_bytes > d->window_bytes / 2)
		d->flush_wanted = true;
}

/* --- written -------------------- */

static void entry_add(struct seg_log *log, const struct append *a)
{
	struct segment *seg = &log->drive->segment[log->segment_index];
	struct op_state *s = op_state(a->op);

	must(a->sequence >= log->sequence_base && a->block == log->written_blocks);
	must(log->entry_count < fmt_entries_max(log->drive->st->segment_bytes));
	log->entries[log->entry_count++] = (struct fmt_entry){
		.block = le32_of(a->block),
		.value_bytes = le32_of(s->place.value_bytes),
		.sequence_delta = le32_of((uint32_t)(a->sequence - log->sequence_base)),
		.key_len = a->op->key.len,
		.kind = (uint8_t)record_kind(a->op),
		.stripe = s->stripe_byte,
	};
	memcpy(log->entries[log->entry_count - 1].key, a->op->key.byte, KV_KEY_BYTES_MAX);
	seg->entry_count = log->entry_count;
	if (a->sequence > seg->sequence_last)
		seg->sequence_last = a->sequence;
	if (record_kind(a->op) == FMT_DELETE)
		seg->tombstone_count++;
}

/* The log is broken and quiet: what was not answered is placed anew. */
static void log_scatter(struct seg_log *log)
{
	struct store *st = log->drive->st;
	struct list_link *link;

	while ((link = list_pop_front(&log->appends)) != NULL) {
		struct append *a = container_of(link, struct append, link);
		struct store_op *op = a->op;
		int res = a->res;

		append_free(a);
		if (op == NULL)
			continue;
		if (op_state(op)->kind == OP_CARRY) {
			carry_lost(op);
			continue;
		}
		if (op_state(op)->placed)
			st->puts_placed--;
		op_state(op)->placed = false;
		op_again(op, res);
	}
}

static void log_advance(struct seg_log *log)
{
	while (!list_empty(&log->appends)) {
		struct append *a = container_of(log->appends.next, struct append, link);
		struct store_op *op = a->op;

		if (log->broken || !a->done)
			break;
		if (a->res != 0) {
			struct segment *seg = &log->drive->segment[log->segment_index];

			log->broken = seg->untidy = true;
			log->no_space = a->res == -ENOSPC;
			seg->failures += !log->no_space;
			segment_log_close(log);
			break;
		}
		list_remove(&a->link);
		if (op != NULL)
			entry_add(log, a);
		if (a->block + a->blocks > log->written_blocks)
			log->written_blocks = a->block + a->blocks;
		log_check(log);
		append_free(a);
		if (op != NULL)
			op_written(op);
	}
	if (log->broken && log->in_flight == 0)
		log_scatter(log);
}

static void append_done(struct loop_op *io, int res)
{
	struct append *a = container_of(io, struct append, io.op);
	struct drive *d = a->drive;
	struct seg_log *log = a->log;

	must(d->in_flight_bytes >= a->bytes);
	list_remove(&a->watch);
	d->in_flight_bytes -= a->bytes;
	if (log != NULL && a->op != NULL) {
		must(d->queued_bytes >= a->bytes);
		d->queued_bytes -= a->bytes;
	}
	if (a->buf != NULL)
		store_buf_drop(a->buf);
	a->buf = NULL;
	if (a->carry)
		carry_io_done(d);
	a->carry = false;
	if (log == NULL) {
		append_free(a);
		store_close_pump(d->st);
		return;
	}
	drive_io_result(d, res);
	a->done = true;
	a->res = res;
	must(log->in_flight > 0);
	log->in_flight--;
	log_advance(log);
	drive_pump_after(d);
}

/* --- flushed -------------------- */

/* Takes out what was zeroed. */
static void entries_pack(struct seg_log *log)
{
	struct segment *seg = &log->drive->segment[log->segment_index];
	uint32_t kept = log->durable_entries;

	for (uint32_t i = kept; i < log->entry_count; i++) {
		if (log->entries[i].key_len > 0)
			log->entries[kept++] = log->entries[i];
	}
	must(kept <= log->entry_count && kept >= log->checkpoint_entries);
	log->entry_count = seg->entry_count = kept;
}

/* After a failed flush nobody knows what of it is on the medium: it is not believed any more. In
 * the footer such a value is listed as deleted, so that no older one of its key takes its place at
 * the next open. Those who wait for a later flush get the error too: what they wrote may be among
 * what was lost. */
static void log_take_back(struct seg_log *log)
{
	struct store *st = log->drive->st;
	struct segment *seg = &log->drive->segment[log->segment_index];

	for (uint32_t i = log->durable_entries; i < log->entry_count; i++) {
		struct fmt_entry *e = &log->entries[i];
		struct kv_key key = {.len = e->key_len};
		uint64_t sequence = log->sequence_base + le32_get(e->sequence_delta);
		uint32_t entry;

		memcpy(key.byte, e->key, sizeof(key.byte));
		if (carry_take_back(log->drive, &key, sequence, e->kind)) {
			memset(e, 0, sizeof(*e));    /* the original is as good as before */
			continue;
		}
		if (e->kind == FMT_DELETE)
			continue;
		entry = index_find(st->index, &key);
		if (entry != INDEX_NONE && index_place(st->index, entry).sequence == sequence)
			index_entry_drop(st, entry);
		e->kind = FMT_DELETE;
		e->stripe = 0;
		e->value_bytes = le32_of(0);
		seg->tombstone_count++;
	}
	entries_pack(log);
	log->broken = seg->untidy = true;
	log->durable_entries = log->entry_count;
	log->durable_blocks = log->written_blocks;
	segment_log_close(log);
	if (log->in_flight == 0)
		log_scatter(log);
}

void segment_flushed(struct drive *d, int res)
{
	for (unsigned i = 0; i < STORE_LOGS; i++) {
		struct seg_log *log = &d->log[i];

		if (log->state == SEGLOG_NONE)
			continue;
		if (res != 0) {
			if (log->entry_count > log->durable_entries)
				log_take_back(log);
			continue;
		}
		if (log->flush_blocks > log->durable_blocks) {
			log->durable_blocks = log->flush_blocks;
			log->durable_entries = log->flush_entries;
		}
		log_check(log);
	}
}

static void log_flushed(struct flush_wait *w, int res)
{
	struct seg_log *log = container_of(w, struct seg_log, flush);

	if (log->drive->failed)
		return;
	must(log->state == SEGLOG_FLUSH);
	log->state = res == 0 ? SEGLOG_FOOTER : SEGLOG_DRAIN;
	drive_pump(log->drive);
}

/* --- footers -------------------- */

void segment_footer_build(struct seg_log *log, uint32_t entries, uint32_t blocks,
			  enum fmt_segment_state state, uint8_t *out)
{
	struct drive *d = log->drive;
	struct fmt_place at = place_of(log, d->segment_blocks - 1);
	struct fmt_segment_info info = {
		.state = state,
		.generation = d->segment[log->segment_index].generation,
		.oldest_generation = segment_oldest(d),
		.sequence_base = log->sequence_base,
		.used_blocks = blocks > 0 ? blocks : 1,
		.entry_count = entries,
		.mount = d->st->mount,
	};

	drive_budget_note(d, &info);
	fmt_footer_write(out, &at, d->st->segment_bytes, &info, log->entries);
}

static void footer_submit(struct seg_log *log, uint32_t entries, uint32_t blocks,
			  enum fmt_segment_state state)
{
	struct drive *d = log->drive;
	uint64_t bytes = (uint64_t)fmt_footer_blocks(entries) << FMT_BLOCK_SHIFT;
	uint64_t end = fmt_segment_block(d->st->segment_bytes, log->segment_index) +
		       d->segment_blocks;

	must(!d->footer_busy && bytes <= d->footer_bytes_max);
	segment_footer_build(log, entries, blocks, state, d->footer_memory);
	d->footer_busy = true;
	d->footer_seals = state == FMT_SEGMENT_SEALED;
	d->footer_log = log;
	d->footer_entries = entries;
	d->footer_started_ns = loop_now_ns(d->st->loop);
	d->footer_iov = (struct iovec){.iov_base = d->footer_memory, .iov_len = bytes};
	d->footer_io = (struct disk_io){
		.op = {.done = footer_done},
		.iov = &d->footer_iov,
		.iov_count = 1,
		.offset_bytes = (end << FMT_BLOCK_SHIFT) - bytes,
		.bytes = bytes,
	};
	disk_write(d->disk, &d->footer_io);
}

static void log_sealed(struct seg_log *log)
{
	struct segment *seg = &log->drive->segment[log->segment_index];

	must(log->in_flight == 0 && list_empty(&log->appends));
	must(seg->state == SEGMENT_OPEN && seg->generation != 0);
	segment_go(seg, SEGMENT_SEALED);
	seg->used_blocks = log->written_blocks > 0 ? log->written_blocks : 1;
	seg->entry_count = log->entry_count;
	log->state = SEGLOG_NONE;
}

static void footer_done(struct loop_op *io, int res)
{
	struct drive *d = container_of(io, struct drive, footer_io.op);
	struct seg_log *log = d->footer_log;

	d->footer_busy = false;
	d->footer_log = NULL;
	if (d->failed) {
		store_close_pump(d->st);
		return;
	}
	drive_io_result(d, res);
	if (d->footer_seals) {
		must(log->state == SEGLOG_FOOTER);
		/* Without a footer a restart hops over the record headers. */
		d->segment[log->segment_index].untidy |= res != 0;
		log_sealed(log);
	} else if (res == 0) {
		log->checkpoint_entries = d->footer_entries;
	}
	drive_pump(d);
}

static void log_seal_step(struct seg_log *log)
{
	struct drive *d = log->drive;

	if (log->state == SEGLOG_DRAIN && log->in_flight == 0 && list_empty(&log->appends)) {
		if (log->no_space && log->append_count == 0) {
			log->state = SEGLOG_NONE;    /* for later, when there is space again */
			segment_go(&d->segment[log->segment_index], SEGMENT_FREE);
			segment_free_add(d, log->segment_index, false);
			return;
		}
		log->state = SEGLOG_FLUSH;
		log->flush.done = log_flushed;
#ifdef KVOF_PLANT_FOOTER_BEFORE_DATA
		log->state = SEGLOG_FOOTER;          /* planted fault: what it lists may not last */
#else
		drive_flush(d, &log->flush);
#endif
	}
	if (log->state == SEGLOG_FOOTER && !d->footer_busy)
		footer_submit(log, log->entry_count, log->written_blocks, FMT_SEGMENT_SEALED);
}

void segment_seal_pump(struct drive *d)
{
	for (unsigned i = 0; i < STORE_LOGS; i++) {
		if (d->log[i].state != SEGLOG_NONE && d->log[i].state != SEGLOG_OPEN)
			log_seal_step(&d->log[i]);
	}
}

/* A footer in state OPEN lists the durable records, so that a restart hops over fewer headers. */
void segment_checkpoint_pump(struct drive *d, bool idle)
{
	struct seg_log *log = segment_log_open(d);
	uint32_t entries;

	if (log == NULL || d->footer_busy || log->durable_entries <= log->checkpoint_entries)
		return;
	entries = log->durable_entries;
	if (!idle && (entries - log->checkpoint_entries < CHECKPOINT_ENTRIES ||
		      fmt_footer_blocks(entries) > STORE_CHECKPOINT_BLOCKS_MAX))
		return;
	footer_submit(log, entries, log->durable_blocks, FMT_SEGMENT_OPEN);
}
