/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Freeing segments of a drive, one at a time, so that a free one is there before it is needed.
 *
 *   IDLE -> READ     footer of the segment whose turn it is, to learn its records; then it stays
 *                    (policy.c), or:
 *        -> CARRY    records that are kept are copied to the head of the log (carry.c)
 *        -> SETTLE   a flush: what supersedes its records, and the copies, are durable
 *        -> ERASE    footer and header are overwritten with "erased" and a new generation
 *        -> FLUSH    and that is made durable
 *        -> DRAIN    now keys that still point to it leave the index, and gets that read from it
 *        end
 *        -> DISCARD  the drive is told that what lies between is not needed, piece by piece
 *        -> IDLE     the segment is free
 *
 * A key leaves the index only when no open can find its records any more: until then the index
 * knows its drive, and whatever is put or deleted under it goes there too and is evicted later.
 *
 * Which one: a segment without a live value and without a tombstone, at any time. Else, in a
 * namespace that evicts, the segment whose turn it is; but one that is older and not clean goes
 * first. So when a segment goes, all older ones hold live records only: nothing of them is covered
 * by a tombstone or a newer value that goes, and nothing deleted comes back. In an object namespace
 * clean.c chooses, and tombstones are carried.
 *
 * A segment that can't be erased stays as it is; until all older ones are gone too, none of them
 * stays, since only then headers say that it is dead.
 * Runs on the store's loop.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "store/inner.h"

#define DISCARD_BYTES (4 * MiB)              /* at once: what a read waits for at most */

static void evict_io_done(struct loop_op *io, int res);
static void evict_flushed(struct flush_wait *w, int res);

static bool dead(const struct segment *seg)
{
	return seg->state == SEGMENT_SEALED && seg->live_count == 0 && seg->tombstone_count == 0;
}

/* Segments that have not stayed yet have more than their share; there is one to be looked at. */
static bool on_probation(const struct drive *d)
{
	uint32_t young = 0;

	if (!d->st->opts.second_touch)
		return false;
	for (uint32_t i = 0; i < d->segment_count; i++)
		young += d->segment[i].state == SEGMENT_SEALED && !d->segment[i].main;
	return young * 100 > d->segment_count * POLICY_PROBATION_PERCENT;
}

/* segment_count: none. */
static uint32_t victim_find(const struct drive *d)
{
	bool young = on_probation(d);
	uint32_t next = d->segment_count, oldest = d->segment_count;

	if (!d->st->opts.evict)
		return clean_victim(d, clean_least(d));
	for (uint32_t i = 0; i < d->segment_count; i++) {
		const struct segment *seg = &d->segment[i];

		if (dead(seg))
			return i;
		if (seg->state != SEGMENT_OPEN && seg->state != SEGMENT_SEALED)
			continue;
		if ((!segment_is_clean(seg) || seg->generation < d->stay_floor) &&
		    (oldest == d->segment_count ||
		     seg->generation < d->segment[oldest].generation))
			oldest = i;
		if (seg->state != SEGMENT_SEALED || (young && seg->main))
			continue;
		if (next == d->segment_count || seg->turn < d->segment[next].turn)
			next = i;
	}
	if (next == d->segment_count)
		return next;
#ifndef KVOF_PLANT_EVICT_OUT_OF_ORDER
	if (oldest != d->segment_count &&
	    d->segment[oldest].generation < d->segment[next].generation)
		next = oldest;
#endif
	return d->segment[next].state == SEGMENT_SEALED ? next : d->segment_count;
}

/* bit n set: may go to state n; a drive that is given up goes back to IDLE from anywhere. */
static const uint8_t evict_next[] = {
	[EVICT_IDLE] = 1u << EVICT_READ | 1u << EVICT_SETTLE,
	[EVICT_READ] = 1u << EVICT_CARRY | 1u << EVICT_IDLE,
	[EVICT_CARRY] = 1u << EVICT_SETTLE | 1u << EVICT_IDLE,
	[EVICT_SETTLE] = 1u << EVICT_ERASE | 1u << EVICT_IDLE,
	[EVICT_ERASE] = 1u << EVICT_FLUSH | 1u << EVICT_IDLE,
	[EVICT_FLUSH] = 1u << EVICT_ERASE | 1u << EVICT_DRAIN | 1u << EVICT_IDLE,
	[EVICT_DRAIN] = 1u << EVICT_DISCARD | 1u << EVICT_IDLE,
	[EVICT_DISCARD] = 1u << EVICT_IDLE,
};

/* The only writer of d->evict_state. */
void evict_go(struct drive *d, enum evict_state to)
{
	must(d->evict_state < ARRAY_COUNT(evict_next) && evict_next[d->evict_state] & 1u << to);
	if (to != EVICT_IDLE)
		must(!d->failed && d->segment[d->evict_segment].state == SEGMENT_EVICTING);
	if (to != EVICT_IDLE)
		must(!d->evict_io_busy);
	must(to == EVICT_CARRY || d->carry_busy == 0);
	d->evict_state = (uint8_t)to;
}

void evict_abandon(struct drive *d)
{
	struct store *st = d->st;

	carry_abandon(d);
	if (d->evict_state == EVICT_IDLE)
		return;
	must(st->evictions > 0);
	st->evictions--;
	evict_go(d, EVICT_IDLE);
}

/* False: waiting for a free segment is in vain as things are. */
bool evict_possible(const struct drive *d)
{
	if (d->evict_state != EVICT_IDLE || d->segments_held > 0 || scrub_repairs(d))
		return true;
	for (unsigned i = 0; i < STORE_LOGS; i++) {
		if (d->log[i].state > SEGLOG_OPEN && d->st->opts.evict)
			return true;
	}
	if (!d->st->opts.evict && d->cleaned_in_vain > CLEANED_IN_VAIN_MAX)
		return false;
	return victim_find(d) != d->segment_count;
}

static bool wanted(const struct drive *d)
{
	if (drive_ends(d))
		return false;
	if (d->evict_forced || d->stay_floor > 0)
		return true;
	if (d->st->opts.evict)
		return d->free_count < d->reserve;
	return d->free_count <= 2 && d->cleaned_in_vain <= CLEANED_IN_VAIN_MAX;
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

/* --- what is kept -------------------- */

/* Half of the segments that are neither open, being sealed nor to be free. */
static uint64_t kept_blocks_max(const struct drive *d)
{
	uint32_t not_used = d->reserve + STORE_LOGS - 1;

	if (d->failed || d->segment_count <= not_used)
		return 0;
	return (uint64_t)(d->segment_count - not_used) * d->segment_blocks / 2;
}

/* False: its drive keeps as much as it may. */
static bool entry_keep(struct store *st, uint32_t entry)
{
	struct index_place p = index_place(st->index, entry);
	struct drive *d = &st->drive[p.drive];
	uint32_t blocks = fmt_record_blocks(p.value_bytes);

	must((p.flags & (INDEX_KEPT | INDEX_DEAD)) == 0);
#ifndef KVOF_PLANT_KEPT_WITHOUT_BOUND
	if (d->kept_blocks + blocks > kept_blocks_max(d))
		return false;
#endif
	d->kept_blocks += blocks;
	index_set_flags(st->index, entry, p.flags | INDEX_KEPT);
	return true;
}

void evict_keep_placed(struct store *st, uint32_t entry)
{
	if (!entry_keep(st, entry))
		st->kept_lost++;
}

void evict_keep_gone(struct store *st, const struct index_place *place, bool lost)
{
	struct drive *d = &st->drive[place->drive];
	uint32_t blocks = fmt_record_blocks(place->value_bytes);

	if ((place->flags & INDEX_KEPT) == 0)
		return;
	must(d->kept_blocks >= blocks);
	d->kept_blocks -= blocks;
	st->kept_lost += lost;
}

/* Its segment may be the one that goes: as long as there is room for copies it is carried, too. */
static int keep_now(struct store *st, uint32_t entry)
{
	struct index_place p = index_place(st->index, entry);
	struct drive *d = &st->drive[p.drive];
	bool goes = d->evict_state >= EVICT_CARRY && d->evict_state <= EVICT_FLUSH &&
		    segment_of_block(d, p.block) == d->evict_segment;

	if (goes && (d->evict_state != EVICT_CARRY || d->free_count == 0))
		return -ENOENT;
	if (!entry_keep(st, entry))
		return -ENOSPC;
#ifndef KVOF_PLANT_KEPT_LATE_GOES
	if (goes)
		carry_late(d, entry);
#endif
	return 0;
}

int store_keep(struct store *st, const struct kv_key *key, bool on)
{
	uint32_t entry = index_find(st->index, key);
	struct index_place p;

	OBJ_CHECK(st, STORE_MAGIC);
	loop_must_own(st->loop);
	must(st->opts.evict && !st->opts.stripe);
	if (entry == INDEX_NONE)
		return -ENOENT;
	p = index_place(st->index, entry);
	if ((p.flags & INDEX_DEAD) != 0)
		return -ENOENT;
	if (((p.flags & INDEX_KEPT) != 0) == on)
		return 0;
	if (on)
		return keep_now(st, entry);
	evict_keep_gone(st, &p, false);
	index_set_flags(st->index, entry, p.flags & (uint8_t)~INDEX_KEPT);
	return 0;
}

void store_kept(const struct store *st, struct store_kept *out)
{
	OBJ_CHECK(st, STORE_MAGIC);
	*out = (struct store_kept){.lost = st->kept_lost};
	for (unsigned i = 0; i < st->drive_count; i++) {
		out->bytes += st->drive[i].kept_blocks << FMT_BLOCK_SHIFT;
		out->most_bytes += kept_blocks_max(&st->drive[i]) << FMT_BLOCK_SHIFT;
	}
}

/* --- dropping keys -------------------- */

static void key_drop(struct drive *d, uint32_t entry)
{
	struct store *st = d->st;
	uint8_t flags = index_place(st->index, entry).flags;

	st->count.evicted_keys += (flags & INDEX_DEAD) == 0;
	st->kept_lost += (flags & INDEX_KEPT) != 0;
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

/* What was not carried or put again meanwhile goes. */
static void victim_drop(struct drive *d)
{
	struct segment *seg = &d->segment[d->evict_segment];

	must(d->st->opts.evict || seg->live_count == 0);
	for (uint32_t i = 0; i < d->evict_entry_count && seg->live_count > 0; i++) {
		struct kv_key key;
		uint32_t entry = carry_entry(d, i, &key);

		if (entry != INDEX_NONE)
			key_drop(d, entry);
	}
	if (seg->live_count > 0)
		victim_sweep(d);
	must(seg->live_count == 0 && seg->live_blocks == 0);
}

/* --- what stays -------------------- */

/* The segment is left as it is; in an object namespace it is not tried again. */
static void victim_spare(struct drive *d)
{
	struct segment *seg = &d->segment[d->evict_segment];

	must(seg->state == SEGMENT_EVICTING && d->evict_state < EVICT_ERASE);
	segment_go(seg, SEGMENT_SEALED);
	evict_go(d, EVICT_IDLE);
	must(d->st->evictions > 0);
	d->st->evictions--;
	if (d->st->opts.evict || drive_ends(d))
		return;
	seg->stuck = d->carry_failed;
	d->cleaned_in_vain += !list_empty(&d->op_wait);
}

/* Another turn, in which its values have to be asked for again. */
static void victim_stays(struct drive *d, bool lucky)
{
	struct segment *seg = &d->segment[d->evict_segment];

	must(d->evict_state == EVICT_READ && segment_is_clean(seg));
	seg->main = true;
	seg->lucky = lucky;
	seg->turn = ++d->turn;
	d->st->count.kept_segments++;
	for (uint32_t i = 0; i < d->evict_entry_count; i++) {
		struct kv_key key;
		uint32_t entry = carry_entry(d, i, &key);
		uint8_t flags;

		if (entry == INDEX_NONE)
			continue;
		flags = index_place(d->st->index, entry).flags;
		flags &= (uint8_t)~(INDEX_HIT | INDEX_HOT);
		index_set_flags(d->st->index, entry, flags);
	}
	victim_spare(d);
}

/* Fills evict_values, an item an entry; of what is not alive nothing. */
static void values_look(struct drive *d)
{
	for (uint32_t i = 0; i < d->evict_entry_count; i++) {
		struct policy_value *v = &d->evict_values[i];
		struct kv_key key;
		uint32_t entry = carry_entry(d, i, &key);
		uint8_t flags;

		*v = (struct policy_value){.blocks = 0};
		d->carry_sequence[i] = CARRY_NOT;
		if (entry == INDEX_NONE)
			continue;
		flags = index_place(d->st->index, entry).flags;
		if ((flags & INDEX_DEAD) != 0)
			continue;
		v->blocks = fmt_record_blocks(le32_get(d->evict_entries[i].value_bytes));
		v->hits = (flags & INDEX_HOT) != 0 ? 2 : (flags & INDEX_HIT) != 0;
		v->kept = (flags & INDEX_KEPT) != 0;
	}
}

/* Cache namespace. False: the segment stays. */
static bool values_choose(struct drive *d)
{
	const struct segment *seg = &d->segment[d->evict_segment];
	struct policy_segment ps = {
		.blocks = d->segment_blocks,
		.segments = d->segment_count,
		.may_stay = segment_is_clean(seg) && seg->generation >= d->stay_floor &&
			    !d->evict_forced && !d->st->closing,
		.lucky = seg->lucky,
	};
	enum policy_verdict verdict;

	values_look(d);
	verdict = policy_turn(&d->policy, &ps, d->evict_values, d->evict_entry_count);
	if (verdict != POLICY_GOES) {
		victim_stays(d, verdict == POLICY_LUCKY_STAYS);
		return false;
	}
	(void)policy_carry(&d->policy, &ps, d->evict_values, d->evict_entry_count);
	for (uint32_t i = 0; i < d->evict_entry_count; i++) {
		const struct policy_value *v = &d->evict_values[i];

		if (v->carry && (v->kept || budget_allows_carry(&d->budget)))
			d->carry_sequence[i] = CARRY_CHOSEN;
		else if (v->carry)
			policy_uncarried(&d->policy, v->blocks);
		d->carry_kept |= v->kept && v->carry;
	}
	return true;
}

/* Object namespace: what is alive, and tombstones that may be needed. */
static void records_choose(struct drive *d)
{
	bool covers = clean_older_unclean(d, d->segment[d->evict_segment].generation);

#ifdef KVOF_PLANT_TOMBSTONE_FORGOTTEN
	covers = false;                      /* planted fault */
#endif
	for (uint32_t i = 0; i < d->evict_entry_count; i++) {
		struct kv_key key;
		bool alive = carry_entry(d, i, &key) != INDEX_NONE;
		bool tombstone = d->evict_entries[i].kind == FMT_DELETE && covers;

		d->carry_sequence[i] = alive || tombstone ? CARRY_CHOSEN : CARRY_NOT;
	}
}

static bool footer_learn(struct drive *d)
{
	const struct segment *seg = &d->segment[d->evict_segment];
	struct fmt_place at = place_of(d, d->segment_blocks - 1);
	uint32_t blocks = fmt_footer_blocks(seg->entry_count);
	const uint8_t *tail = d->evict_memory + ((uint64_t)(blocks - 1) << FMT_BLOCK_SHIFT);
	struct fmt_segment_info info;

	if (fmt_footer_check(tail, &at, d->st->segment_bytes, &info) != NULL ||
	    info.generation != seg->generation || info.entry_count != seg->entry_count ||
	    fmt_footer_entries(d->evict_memory, &info, d->evict_entries) != NULL)
		return false;
	d->evict_entry_count = info.entry_count;
	d->evict_sequence_base = info.sequence_base;
	return true;
}

static void victim_read(struct drive *d, int res)
{
	bool learnt = res == 0 && footer_learn(d);

	must(d->evict_state == EVICT_READ && d->carry_busy == 0);
	d->carry_left = 0;
	d->carry_kept = d->kept_late = false;
	if (!learnt && !d->st->opts.evict) {
		d->carry_failed = true;
		victim_spare(d);
		return;
	}
	if (learnt && d->st->opts.evict && !values_choose(d))
		return;
	if (learnt && !d->st->opts.evict)
		records_choose(d);
	for (uint32_t i = 0; i < d->evict_entry_count; i++)
		d->carry_left += d->carry_sequence[i] == CARRY_CHOSEN;
	evict_go(d, EVICT_CARRY);
	carry_begin(d);
}

/* --- steps -------------------- */

static void settled(struct drive *d, int res)
{
	if (res != 0 || drive_ends(d) || (d->carry_failed && !d->st->opts.evict)) {
		victim_spare(d);             /* at once again, if the drive still lives */
		return;
	}
	d->evict_forced = false;
	d->evict_step = 0;
	evict_go(d, EVICT_ERASE);
}

static void settle(struct drive *d)
{
	evict_go(d, EVICT_SETTLE);
	if (d->unflushed_bytes == 0) {
		settled(d, 0);
		return;
	}
	d->evict_flush.done = evict_flushed;
	drive_flush(d, &d->evict_flush);
}

static void victim_start(struct drive *d, uint32_t victim)
{
	struct segment *seg = &d->segment[victim];
	uint64_t bytes = (uint64_t)fmt_footer_blocks(seg->entry_count) << FMT_BLOCK_SHIFT;
	struct fmt_place at;

	must(seg->state == SEGMENT_SEALED && d->evict_state == EVICT_IDLE);
	segment_go(seg, SEGMENT_EVICTING);
	d->evict_segment = victim;
	d->evict_entry_count = 0;
	d->evict_step = 0;
	d->carry_failed = false;
	d->st->evictions++;
	if (seg->live_count == 0 && (d->st->opts.evict || seg->tombstone_count == 0)) {
		settle(d);
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
	must(d->carry_busy == 0 && d->carry_left == 0);
	if (d->evict_step == 0)
		d->evict_generation = segment_generation(st);
	info.generation = d->evict_generation;
	if (info.oldest_generation == 0)
		info.oldest_generation = info.generation;
	drive_budget_note(d, &info);
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
	struct store *st = d->st;
	struct segment *seg = &d->segment[d->evict_segment];

	must(st->evictions > 0 && seg->state == SEGMENT_EVICTING);
	evict_go(d, EVICT_IDLE);
	st->evictions--;
	if (good) {
		evict_free(d, d->evict_segment);
		if (st->opts.evict)
			st->count.evicted_segments++;
		else
			st->count.cleaned_segments++;
		d->cleaned_in_vain += !list_empty(&d->op_wait);
	} else {
		/* Its values stay as long as this run lasts. */
		log_warn("store drive %s: segment %u can't be overwritten; it is left alone",
			 d->path, d->evict_segment);
		segment_go(seg, SEGMENT_BAD);
		if (st->opts.evict && seg->generation > d->stay_floor)
			d->stay_floor = seg->generation;
	}
	if (segment_oldest(d) > d->stay_floor)
		d->stay_floor = 0;
	st->index_pressure = false;
	store_pump(st);
}

/* Hands a segment that holds nothing to the writers. */
void evict_free(struct drive *d, uint32_t segment_index)
{
	struct segment *seg = &d->segment[segment_index];

	must(d->free_count < d->segment_count && seg->live_count == 0 && seg->reader_count == 0);
	seg->generation = 0;
	if (seg->failures >= STORE_SEGMENT_FAILURES_MAX) {
		segment_go(seg, SEGMENT_BAD);
		return;
	}
#ifndef KVOF_PLANT_LOAN_FORGOTTEN
	if (seg->loan_count > 0) {
		segment_go(seg, SEGMENT_LENT);         /* loan.c brings it back */
		d->segments_held++;
		return;
	}
#endif
	segment_go(seg, SEGMENT_FREE);
	seg->used_blocks = seg->entry_count = seg->tombstone_count = 0;
	segment_free_add(d, segment_index, drive_is_tight(d));
}

/* --- discard -------------------- */

/* The next piece between header and footer. False: all is told, or there is nobody to tell, or
 * hosts want the segment now. */
static bool discard_step(struct drive *d)
{
	uint64_t all = (uint64_t)(d->segment_blocks - 2) << FMT_BLOCK_SHIFT;
	bool hurry = d->free_count == 0 && !list_empty(&d->op_wait);

	/* Where the file system is full what is given back may be gone for good. */
	hurry |= drive_is_tight(d);
	if (d->no_discard || disk_info(d->disk)->memory || hurry || d->evict_discarded >= all)
		return false;
	d->evict_io = (struct disk_io){
		.op = {.done = evict_io_done},
		.offset_bytes = (place_of(d, 1).block << FMT_BLOCK_SHIFT) + d->evict_discarded,
		.bytes = bytes_min(all - d->evict_discarded, DISCARD_BYTES),
	};
#ifdef KVOF_PLANT_DISCARD_LIVE
	d->evict_io.offset_bytes += (uint64_t)d->st->segment_bytes / 2;      /* planted fault */
#endif
	must(!d->evict_io_busy && d->segment[d->evict_segment].reader_count == 0);
	d->evict_io_busy = true;
	d->evict_started_ns = loop_now_ns(d->st->loop);
	disk_discard(d->disk, &d->evict_io);
	return true;
}

/* A hint: where it fails the segment is as good as before. */
static void discard_done(struct drive *d, int res)
{
	must(d->evict_io.bytes > 0 && d->evict_io.bytes <= DISCARD_BYTES);
	d->evict_discarded += d->evict_io.bytes;
	if (res == 0 && disk_counts(d->disk)->discards_refused == 0) {
		d->st->count.discarded_bytes += d->evict_io.bytes;
		return;
	}
	d->no_discard = true;
	log_info("store drive %s: takes no discards; free segments keep their blocks", d->path);
}

/* --- I/O -------------------- */

static void evict_io_done(struct loop_op *io, int res)
{
	struct drive *d = container_of(io, struct drive, evict_io.op);

	d->evict_io_busy = false;
	if (d->failed) {
		store_close_pump(d->st);
		return;
	}
	if (d->evict_state == EVICT_DISCARD) {
		discard_done(d, res);
		drive_pump(d);
		return;
	}
	drive_io_result(d, res);
	if (d->evict_state == EVICT_READ) {
		victim_read(d, res);
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

static void evict_ended(struct loop_op *soon, int res)
{
	struct drive *d = container_of(soon, struct drive, evict_io.op);

	d->evict_io_busy = false;
	if (d->failed)
		store_close_pump(d->st);
	else
		evict_end(d, true);
}

static void evict_flushed(struct flush_wait *w, int res)
{
	struct drive *d = container_of(w, struct drive, evict_flush);

	if (d->failed)
		return;
	if (d->evict_state == EVICT_SETTLE) {
		settled(d, res);
		return;
	}
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

		if (!d->failed && d->evict_forced)
			return;
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

/* Goes from state to state until one waits for something. */
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
	if (d->evict_state == EVICT_CARRY && carry_pump(d))
		settle(d);
	if (d->evict_state == EVICT_DRAIN && d->segment[d->evict_segment].reader_count == 0) {
		evict_go(d, EVICT_DISCARD);
		d->evict_discarded = 0;
	}
	if (d->evict_state == EVICT_DISCARD && !discard_step(d)) {
		d->evict_io.op = (struct loop_op){.done = evict_ended};
		d->evict_io_busy = true;
		d->evict_started_ns = loop_now_ns(d->st->loop);
		loop_soon(d->st->loop, &d->evict_io.op, 0);
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
