/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One drive of the set: which drive takes a value, flushes, faults, and giving a drive up.
 *
 * Placement: a key that the index knows stays on its drive, so that a record and what supersedes it
 * (a newer value, a tombstone) live and die together and are evicted in their order; a new key goes
 * where the least is queued, then where most is free, and once drives evict, to each by its size.
 *
 * Faults: an error breaks a segment (segment.c); STORE_ERRORS_MAX errors in a row, two failed
 * flushes in a row or an answer that does not come within STORE_IO_LIMIT_NS give the drive up. Its
 * values are misses from then on, what was being written goes to another drive, and the superblocks
 * of the others say that this drive is not to be believed when it comes back (`trusted`). Until
 * that is written no delete is answered, and nothing is put under a key that is on none of the
 * others: else a value that a returning drive still holds would be back after its delete.
 *
 * A drive that has not answered anything for STORE_STALL_NS ends the gets that wait for it (-EIO);
 * their entries stay, since it may only be busy with itself.
 *
 * I/O that a drive never finishes keeps its slot and its buffer (orphan); nobody waits for it.
 * drive_pump() looks at everything that may go on and starts it; it calls no user code.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/log.h"
#include "store/inner.h"

#define DRIVE_SPARE 2u                       /* more free segments: not at the point of evicting */

static void flush_done(struct loop_op *io, int res);
static void super_done(struct loop_op *io, int res);
static void marks_done(struct store *st);

/* --- memory -------------------- */

/* For lists: zero, and there only where touched. */
static void *pages(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

static uint64_t footer_bytes_max(const struct drive *d)
{
	uint32_t entries = fmt_entries_max(d->st->segment_bytes);

	return (uint64_t)(fmt_footer_blocks(entries) + 1) << FMT_BLOCK_SHIFT;
}

/* segment_count, segment_blocks and index are set. */
int drive_init(struct drive *d)
{
	uint64_t entries = fmt_entries_max(d->st->segment_bytes);

	d->footer_bytes_max = footer_bytes_max(d);
	d->segment = calloc(d->segment_count, sizeof(*d->segment));
	d->free_ring = calloc(d->segment_count, sizeof(*d->free_ring));
	d->append = calloc(STORE_WRITES_MAX, sizeof(*d->append));
	d->reading = calloc(STORE_READS_MAX, sizeof(*d->reading));
	d->append_pages = loop_buffer_map((uint64_t)STORE_WRITES_MAX * FMT_BLOCK_BYTES);
	d->footer_memory = loop_buffer_map(d->footer_bytes_max);
	d->evict_memory = loop_buffer_map(d->footer_bytes_max);
	d->super_memory = loop_buffer_map(FMT_BLOCK_BYTES);
	d->evict_entries = pages(entries * sizeof(struct fmt_entry));
	d->evict_values = pages(entries * sizeof(*d->evict_values));
	d->carry_sequence = pages(entries * sizeof(*d->carry_sequence));
	d->carry = calloc(CARRY_SLOTS, sizeof(*d->carry));
	if (d->segment == NULL || d->free_ring == NULL || d->append == NULL || d->reading == NULL ||
	    d->append_pages == NULL || d->footer_memory == NULL || d->evict_memory == NULL ||
	    d->super_memory == NULL || d->evict_entries == NULL || d->evict_values == NULL ||
	    d->carry_sequence == NULL || d->carry == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < CARRY_SLOTS; i++)
		d->carry[i].drive = d;
	d->policy.carry_percent = d->st->opts.carry_percent == 0 ? POLICY_CARRY_PERCENT
				  : d->st->opts.carry_percent == STORE_CARRY_NONE
					  ? 0
					  : d->st->opts.carry_percent;
	d->no_discard = d->st->opts.keep_blocks;
	budget_open(&d->budget, (uint64_t)d->segment_count * d->st->segment_bytes / 100 *
		    d->st->opts.write_budget_percent, loop_now_ns(d->st->loop));
	for (unsigned i = 0; i < STORE_LOGS; i++) {
		d->log[i].drive = d;
		list_init(&d->log[i].appends);
		d->log[i].entries = pages(entries * sizeof(struct fmt_entry));
		if (d->log[i].entries == NULL)
			return -ENOMEM;
	}
	for (unsigned i = 0; i < STORE_WRITES_MAX; i++) {
		d->append[i].drive = d;
		d->append[i].page = d->append_pages + (size_t)i * FMT_BLOCK_BYTES;
		list_push_back(&d->append_free, &d->append[i].link);
	}
	for (unsigned i = 0; i < STORE_READS_MAX; i++) {
		d->reading[i].drive = d;
		list_push_back(&d->reading_free, &d->reading[i].link);
	}
	d->reserve = d->segment_count >= 8 ? 2 : 1;
	d->window_bytes = (uint64_t)d->segment_count * d->st->segment_bytes /
			  STORE_WINDOW_PART;
	return 0;
}

static void pages_free(void *at, uint64_t bytes)
{
	if (at != NULL)
		munmap(at, bytes);
}

void drive_free(struct drive *d)
{
	uint64_t entries = fmt_entries_max(d->st->segment_bytes);
	uint64_t entries_bytes = entries * sizeof(struct fmt_entry);

	scrub_free(d);
	for (unsigned i = 0; i < STORE_LOGS; i++)
		pages_free(d->log[i].entries, entries_bytes);
	loop_buffer_unmap(d->append_pages, (uint64_t)STORE_WRITES_MAX * FMT_BLOCK_BYTES);
	loop_buffer_unmap(d->footer_memory, d->footer_bytes_max);
	loop_buffer_unmap(d->evict_memory, d->footer_bytes_max);
	loop_buffer_unmap(d->super_memory, FMT_BLOCK_BYTES);
	loop_buffer_unmap(d->carry_orphan, d->st->carry_bytes);
	pages_free(d->evict_entries, entries_bytes);
	pages_free(d->evict_values, entries * sizeof(*d->evict_values));
	pages_free(d->carry_sequence, entries * sizeof(*d->carry_sequence));
	free(d->carry);
	free(d->segment);
	free(d->free_ring);
	free(d->append);
	free(d->reading);
}

/* --- placement -------------------- */

static uint64_t drive_free_bytes(const struct drive *d)
{
	const struct seg_log *log = segment_log_open(d);
	uint64_t blocks = (uint64_t)d->free_count * d->segment_blocks;

	if (log != NULL)
		blocks += d->segment_blocks - log->next_block;
	return blocks << FMT_BLOCK_SHIFT;
}

bool drive_is_tight(const struct drive *d)
{
	return d->tight_until_ns != 0 && loop_now_ns(d->st->loop) < d->tight_until_ns;
}

/* Once may be chance; twice in short order is a file system that is full. */
static void space_lacks(struct drive *d)
{
	uint64_t now = loop_now_ns(d->st->loop), last = d->no_space_ns;

	must(!d->failed && now >= last);
	d->no_space_ns = now;
#ifdef KVOF_PLANT_FULL_DRIVE_CHOSEN
	last = 0;                                    /* planted fault */
#endif
	if (last == 0 || now - last > STORE_TIGHT_NS)
		return;
	if (d->tight_until_ns == 0)
		log_warn("store drive %s: no space, though its size is not used up: is its file "
			 "system full? New values go to other drives, or where old ones were",
			 d->path);
	d->tight_until_ns = now + STORE_TIGHT_NS;
	d->tight_credit = 0;
}

/* For namespaces that do not evict: is there a place without freeing anything? */
static bool has_room(const struct drive *d, struct store_op *op)
{
	const struct seg_log *log = segment_log_open(d);
	uint32_t blocks = op_blocks(op);

	if (!drive_is_tight(d) ? d->free_count > 2 : d->tight_credit > 2)
		return true;
	if (evict_possible(d))
		return true;
	return log != NULL && d->segment_blocks - log->next_block >
				      blocks + fmt_footer_blocks(log->append_count + 1);
}

/* A drive that evicts takes its share by size, else the one that evicts most would look the
 * emptiest. */
static bool better(const struct drive *a, const struct drive *b)
{
	bool spare_a = a->free_count > DRIVE_SPARE, spare_b;

	if (b != NULL && drive_is_tight(a) != drive_is_tight(b))
		return drive_is_tight(b);
	if (b == NULL || a->queued_bytes != b->queued_bytes)
		return b == NULL || a->queued_bytes < b->queued_bytes;
	spare_b = b->free_count > DRIVE_SPARE;
	if (spare_a != spare_b)
		return spare_a;
	if (spare_a)
		return drive_free_bytes(a) > drive_free_bytes(b);
	return a->placed_bytes / a->segment_count < b->placed_bytes / b->segment_count;
}

bool drive_may_write(struct drive *d, uint64_t bytes)
{
	if (d->budget.day_bytes == 0)
		return true;
	budget_update(&d->budget, disk_counts(d->disk)->write_bytes, loop_now_ns(d->st->loop));
	return budget_allows(&d->budget, d->queued_bytes + bytes);
}

void drive_budget_note(const struct drive *d, struct fmt_segment_info *info)
{
	if (d->budget.day_bytes == 0)
		return;
	info->wall_s = (uint64_t)time(NULL);
	info->budget_left = d->budget.left_bytes;
}

/* NULL: no drive is left, or none has room. */
struct drive *drive_choose(struct store *st, struct store_op *op)
{
	uint32_t entry = index_find(st->index, &op->key);
	struct drive *best = NULL;
	bool best_may = false, may;

	if (entry != INDEX_NONE) {
		struct drive *d = &st->drive[index_place(st->index, entry).drive];

		must(!d->failed);
		return d;
	}
	for (unsigned i = 0; i < st->drive_count; i++) {
		struct drive *d = &st->drive[(st->place_next + i) % st->drive_count];

		if (d->failed || (!st->opts.evict && !has_room(d, op)))
			continue;
		may = drive_may_write(d, (uint64_t)op_blocks(op) << FMT_BLOCK_SHIFT);
		if (best == NULL || (may == best_may ? better(d, best) : may)) {
			best = d;
			best_may = may;
		}
	}
	st->place_next++;
	return best;
}

void drive_queue(struct drive *d, struct store_op *op)
{
	must(!d->failed);
	op->link.next = op->link.prev = NULL;
	list_push_back(&d->op_wait, &op->link);
	d->queued_bytes += (uint64_t)op_blocks(op) << FMT_BLOCK_SHIFT;
	d->placed_bytes += (uint64_t)op_blocks(op) << FMT_BLOCK_SHIFT;
	drive_pump(d);
}

/* --- flushes -------------------- */

void drive_flush(struct drive *d, struct flush_wait *w)
{
	must(!d->failed && w->done != NULL);
	w->link.next = w->link.prev = NULL;
	list_push_back(&d->flush_next, &w->link);
}

static void flush_pump(struct drive *d)
{
	if (d->flush_busy || (list_empty(&d->flush_next) && !d->flush_wanted))
		return;
	must(list_empty(&d->flush_running));
	for (struct list_link *link; (link = list_pop_front(&d->flush_next)) != NULL;)
		list_push_back(&d->flush_running, link);
	for (unsigned i = 0; i < STORE_LOGS; i++) {
		d->log[i].flush_blocks = d->log[i].written_blocks;
		d->log[i].flush_entries = d->log[i].entry_count;
	}
	d->flush_bytes = d->unflushed_bytes - d->in_flight_bytes;
	d->flush_wanted = false;
	d->flush_busy = true;
	d->flush_started_ns = loop_now_ns(d->st->loop);
	d->flush_io = (struct disk_io){.op = {.done = flush_done}};
#ifdef KVOF_PLANT_FLUSH_LEFT_OUT
	loop_soon(d->st->loop, &d->flush_io.op, 0);  /* planted fault */
#else
	disk_flush(d->disk, &d->flush_io);
#endif
}

static void flush_done(struct loop_op *io, int res)
{
	struct drive *d = container_of(io, struct drive, flush_io.op);
	struct list_link waiters, *link;

	d->flush_busy = false;
	if (d->failed) {
		store_close_pump(d->st);
		return;
	}
	drive_io_result(d, res);
	must(d->flush_bytes <= d->unflushed_bytes);
	d->unflushed_bytes -= d->flush_bytes;
	d->flush_failures = res == 0 ? 0 : d->flush_failures + 1;
	if (res != 0)
		log_warn("store drive %s: flush failed; %" PRIu64
			 " bytes written since the last one are not believed any more",
			 d->path, d->flush_bytes);
	if (res != 0 && d->flush_bytes > 0 &&
	    (!list_linked(&d->round.link) || d->unflushed_bytes > 0))
		d->st->flush_lost = true;            /* the next store_flush() is told */
	if (d->flush_failures >= 2)
		d->fail_why = "two flushes in a row failed";
	segment_flushed(d, res);
	list_init(&waiters);
	while ((link = list_pop_front(&d->flush_running)) != NULL)
		list_push_back(&waiters, link);
	while (res != 0 && (link = list_pop_front(&d->flush_next)) != NULL)
		list_push_back(&waiters, link);
	while ((link = list_pop_front(&waiters)) != NULL) {
		struct flush_wait *w = container_of(link, struct flush_wait, link);

		w->done(w, res);
	}
	if (!d->failed)
		segment_checkpoint_pump(d, false);
	drive_pump_after(d);
}

/* --- faults -------------------- */

void drive_io_result(struct drive *d, int res)
{
	d->answered_ns = loop_now_ns(d->st->loop);
	if (res == 0) {
		d->errors_in_a_row = 0;
		return;
	}
	d->st->count.io_errors++;
	if (res == -ENOSPC)
		space_lacks(d);
	if (res == -ENOSPC || res == -ECANCELED)
		return;
	if (++d->errors_in_a_row >= STORE_ERRORS_MAX && d->fail_why == NULL)
		d->fail_why = "too many errors in a row";
}

static void log_abandon(struct seg_log *log)
{
	struct list_link *link;

	while ((link = list_pop_front(&log->appends)) != NULL) {
		struct append *a = container_of(link, struct append, link);
		struct store_op *op = a->op;

		a->op = NULL;
		a->log = NULL;
		if (a->done) {
			list_push_front(&log->drive->append_free, &a->link);
			log->drive->append_busy--;
		}
		if (op == NULL)
			continue;
		if (op_state(op)->placed)
			log->drive->st->puts_placed--;
		op_state(op)->placed = false;
		op->link.next = op->link.prev = NULL;
		list_push_back(&log->drive->op_wait, &op->link);
	}
	log->state = SEGLOG_NONE;
	log->in_flight = 0;
}

static void readings_abandon(struct drive *d)
{
	LIST_FOR_EACH(link, &d->reads) {
		struct reading *r = container_of(link, struct reading, link);
		struct store_op *op = r->op;

		if (op == NULL)
			continue;
		r->op = NULL;
		if (!op_state(op)->lent)
			store_buf_return(&op->buf);
		op_answer(op, -EIO);
	}
	for (struct list_link *link; (link = list_pop_front(&d->get_wait)) != NULL;) {
		struct store_op *op = container_of(link, struct store_op, link);

		d->segment[segment_of_block(d, op_state(op)->place.block)].reader_count--;
		if (!op_state(op)->lent)
			store_buf_return(&op->buf);
		op_answer(op, -EIO);
	}
}

static void flushes_abandon(struct drive *d, struct list_link *list)
{
	for (struct list_link *link; (link = list_pop_front(list)) != NULL;) {
		struct flush_wait *w = container_of(link, struct flush_wait, link);

		if (w == &d->evict_flush)
			continue;
		for (unsigned i = 0; i < STORE_LOGS && w != NULL; i++) {
			if (w == &d->log[i].flush)
				w = NULL;
		}
		if (w != NULL)
			w->done(w, -EIO);
	}
}

static void values_forget(struct drive *d)
{
	struct index *ix = d->st->index;

	for (uint32_t e = index_next(ix, 0); e != INDEX_NONE; e = index_next(ix, e + 1)) {
		struct index_place p = index_place(ix, e);

		if (p.drive != d->index)
			continue;
		d->st->kept_lost += (p.flags & INDEX_KEPT) != 0;
		index_entry_remove(d->st, e);
	}
}

/* Nothing on it is believed from here on; what was on its way goes to the others. */
static void give_up(struct drive *d)
{
	struct store *st = d->st;
	struct list_link ops, *link;

	log_event(LOG_ERROR, "drive_failed", LOG_TEXT("drive", d->path),
		  LOG_TEXT("why", d->fail_why), LOG_TEXT("lost", "its values of one kv shard"),
		  LOG_NUMBER("drives_left", st->drives_live - 1),
		  LOG_NUMBER("drives", st->drive_count));
	must(!d->failed && st->drives_live > 0);
	d->failed = true;
	st->drives_live--;
	st->trusted &= ~(1u << d->index);
	values_forget(d);
	for (unsigned i = 0; i < STORE_LOGS; i++) {
		if (d->log[i].state != SEGLOG_NONE)
			log_abandon(&d->log[i]);
	}
	readings_abandon(d);
	list_init(&ops);
	while ((link = list_pop_front(&d->op_wait)) != NULL)
		list_push_back(&ops, link);
	d->queued_bytes = 0;
	evict_abandon(d);
	store_mark(st);
	flushes_abandon(d, &d->flush_next);
	flushes_abandon(d, &d->flush_running);
	while ((link = list_pop_front(&ops)) != NULL)
		op_dispatch(st, container_of(link, struct store_op, link));
	if (d->super_step > 0 && !d->super_orphan) {
		d->super_orphan = true;
		marks_done(st);
	}
	store_close_pump(st);
}

bool drive_quiet(const struct drive *d)
{
	return d->append_busy == 0 && d->reading_busy == 0 && !d->flush_busy && !d->footer_busy &&
	       !d->evict_io_busy && !d->scrub.busy && d->super_step == 0 && d->carry_io == 0;
}

/* --- superblocks -------------------- */

void drive_super_fill(const struct drive *d, struct fmt_super_info *out)
{
	const struct store *st = d->st;

	*out = (struct fmt_super_info){
		.drive = d->index,
		.drive_count = (uint8_t)st->drive_count,
		.segment_bytes = st->segment_bytes,
		.value_bytes_max = st->value_bytes_stored_max,
		.mount = st->mount,
		.trusted = st->trusted,
		.drive_bytes = disk_info(d->disk)->bytes,
		.write_count = st->super_write_count,
		.epoch = st->epoch,
		.generation_min = d->generation_min,
		.sequence_min = st->sequence,
	};
	memcpy(out->uuid, st->uuid, sizeof(out->uuid));
}

/* The second copy goes first: whichever write is torn, the other copy is whole. */
static void super_step(struct drive *d)
{
	uint64_t last = disk_info(d->disk)->bytes / FMT_BLOCK_BYTES - 1;
	uint64_t block = d->super_step == 1 ? last : 0;
	struct fmt_super_info info;

	d->super_io = (struct disk_io){.op = {.done = super_done}};
	d->super_started_ns = loop_now_ns(d->st->loop);
	drive_tick_set(d);
	if (d->super_step == 2 || d->super_step == 4) {
		disk_flush(d->disk, &d->super_io);
		return;
	}
	drive_super_fill(d, &info);
	fmt_super_write(d->super_memory, &info, block);
	d->super_iov = (struct iovec){.iov_base = d->super_memory, .iov_len = FMT_BLOCK_BYTES};
	d->super_io.iov = &d->super_iov;
	d->super_io.iov_count = 1;
	d->super_io.offset_bytes = block << FMT_BLOCK_SHIFT;
	d->super_io.bytes = FMT_BLOCK_BYTES;
	disk_write(d->disk, &d->super_io);
}

static void marks_done(struct store *st)
{
	must(st->mark_pending && st->marks_left > 0);
	if (--st->marks_left > 0)
		return;
	st->mark_pending = false;
	/* Where nobody has it the drive would be believed when it comes back. */
	if (st->mark_again || (!st->mark_written && st->drives_live > 0)) {
		st->mark_again = false;
		store_mark(st);
		return;
	}
	marked_release(st);
}

static void super_done(struct loop_op *io, int res)
{
	struct drive *d = container_of(io, struct drive, super_io.op);
	struct store *st = d->st;

	if (!d->failed)
		drive_io_result(d, res);
	d->super_bad |= res != 0;
	if (++d->super_step <= 4 && !d->failed) {
		super_step(d);
		return;
	}
	d->super_step = 0;
	st->mark_written |= !d->super_bad && !d->failed;
	if (!d->super_orphan)
		marks_done(st);
	d->super_orphan = false;
	store_close_pump(st);
	drive_pump(d);
}

/* Tells the drives that are left which of them may be believed. */
void store_mark(struct store *st)
{
	if (st->mark_pending) {
		st->mark_again = true;
		return;
	}
	st->mark_pending = true;
	st->mark_written = false;
	st->epoch++;
	st->super_write_count++;
	st->marks_left = 1;
	for (unsigned i = 0; i < st->drive_count; i++) {
		struct drive *d = &st->drive[i];

		if (d->failed)
			continue;
		must(d->super_step == 0);
		st->marks_left++;
		d->super_bad = false;
		d->super_step = 1;
		super_step(d);
	}
	marks_done(st);
}

/* --- the pump -------------------- */

void drive_tick_set(struct drive *d)
{
	struct store *st = d->st;

	if (!loop_timer_is_set(&st->tick) && !st->closed)
		loop_timer_set(st->loop, &st->tick, loop_now_ns(st->loop) + STORE_TICK_NS);
}

/* What holds for a drive whenever no function of it runs. */
static void drive_check(const struct drive *d)
{
	unsigned open = 0;

	must(d->disk != NULL && d->index < d->st->drive_count);
	must(d->free_count <= d->segment_count && d->free_first < d->segment_count);
	must(d->append_busy <= STORE_WRITES_MAX && d->reading_busy <= STORE_READS_MAX);
	must(d->in_flight_bytes <= d->unflushed_bytes);
	must(d->flush_busy || list_empty(&d->flush_running));
	must(d->footer_busy == (d->footer_log != NULL));
	must(d->super_step <= 4);
	must(d->evict_state <= EVICT_DISCARD && d->evict_step <= 2);
	must(!d->evict_io_busy || d->evict_state == EVICT_READ || d->evict_state == EVICT_ERASE ||
	     d->evict_state == EVICT_DISCARD);
	must(d->carry_busy == 0 || d->evict_state == EVICT_CARRY);
	must(d->carry_reads <= d->carry_io && d->carry_used <= d->st->carry_bytes);
	must(list_empty(&d->get_wait) || drive_reads_full(d));
	for (unsigned i = 0; i < STORE_LOGS; i++) {
		const struct seg_log *log = &d->log[i];

		if (log->state == SEGLOG_NONE)
			continue;
		open += log->state == SEGLOG_OPEN;
		must(log->segment_index < d->segment_count);
		must(d->segment[log->segment_index].state == SEGMENT_OPEN);
		must(log->next_block < d->segment_blocks && log->in_flight <= d->append_busy);
		must(log->in_flight == 0 || !list_empty(&log->appends));
	}
	must(open <= 1);
}

void drive_pump(struct drive *d)
{
	if (d->failed || d->st->closed)
		return;
	drive_check(d);
	if (d->fail_why != NULL) {
		give_up(d);
		return;
	}
	segment_append_pump(d);
	segment_seal_pump(d);
	evict_pump(d);
	flush_pump(d);
	if (!drive_quiet(d) || d->unflushed_bytes > 0 || d->evict_state != EVICT_IDLE)
		drive_tick_set(d);
	if (d->st->closing)
		store_close_pump(d->st);
}

/* After operations ended: where the index was full, others may go on too. */
void drive_pump_after(struct drive *d)
{
	if (!d->st->index_pressure) {
		drive_pump(d);
		return;
	}
	d->st->index_pressure = false;
	store_pump(d->st);
}

void store_pump(struct store *st)
{
	for (unsigned i = 0; i < st->drive_count; i++)
		drive_pump(&st->drive[i]);
}

static uint64_t oldest_started(const struct drive *d)
{
	uint64_t oldest = UINT64_MAX;

	if (d->in_flight.next != &d->in_flight)
		oldest = container_of(d->in_flight.next, struct append, watch)->started_ns;
	if (d->reads.next != &d->reads)
		oldest = bytes_min(oldest,
				   container_of(d->reads.next, struct reading, link)->started_ns);
	if (d->flush_busy)
		oldest = bytes_min(oldest, d->flush_started_ns);
	if (d->footer_busy)
		oldest = bytes_min(oldest, d->footer_started_ns);
	if (d->evict_io_busy)
		oldest = bytes_min(oldest, d->evict_started_ns);
	if (d->super_step > 0)
		oldest = bytes_min(oldest, d->super_started_ns);
	oldest = bytes_min(oldest, scrub_started_ns(d));
	if (d->carry_reads > 0)
		oldest = bytes_min(oldest, d->carry_read_ns);
	return oldest;
}

static bool tick_drive(struct drive *d, uint64_t now)
{
	uint64_t oldest = oldest_started(d), placed = d->st->sequence;
	bool idle;

	if (d->failed)
		return false;
	if (oldest != UINT64_MAX && now > oldest && now - oldest > STORE_IO_LIMIT_NS)
		d->fail_why = "no answer within 10 s";
	else if (d->st->closing && oldest != UINT64_MAX && now > oldest + STORE_CLOSE_LIMIT_NS &&
		 now > d->answered_ns + STORE_CLOSE_LIMIT_NS)
		d->fail_why = "no answer within 3 s, while it closes";
#ifndef KVOF_PLANT_STALL_ENDURED
	if (oldest != UINT64_MAX && now > oldest + STORE_STALL_NS &&
	    now > d->answered_ns + STORE_STALL_NS)
		readings_abandon(d);
#endif
	/* Quiet since the last tick: flush, and list what is there, so that a restart verifies
	 * nothing. */
	idle = d->append_busy == 0 && d->writes_at_tick == placed;
	d->writes_at_tick = placed;
	if (idle && d->unflushed_bytes > 0)
		d->flush_wanted = true;
	if (idle && d->unflushed_bytes == 0)
		segment_checkpoint_pump(d, true);
	return oldest != UINT64_MAX || d->unflushed_bytes > 0 || !idle ||
	       d->evict_state != EVICT_IDLE;
}

void drive_tick(struct loop_timer *t)
{
	struct store *st = container_of(t, struct store, tick);
	uint64_t now = loop_now_ns(st->loop);
	bool more = false;

	for (unsigned i = 0; i < st->drive_count; i++)
		more |= tick_drive(&st->drive[i], now);
	if (more && !st->closed)
		loop_timer_set(st->loop, &st->tick, now + STORE_TICK_NS);
	store_pump(st);
	if (st->closing)
		store_close_pump(st);
}
