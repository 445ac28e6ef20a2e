/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying records of a segment that goes to the head of the drive's log.
 *
 *   FREE -> READING   the record comes into the store's carry memory
 *        -> READY     header, key, sequence number and checksum of the value are right
 *        -> WRITING   it has a place and a new sequence number in the open segment
 *        -> FREE      it is written, with all before it: the index points to the copy
 *
 * A copy gets a new sequence number, not that of its original: a tombstone that is older than the
 * copy may go before it does, and must not be needed any more. So the order per key is kept by one
 * rule: a copy gets its place only while the index still points to the original and no operation of
 * the key has a place that is not answered. What comes later has a higher number, whether or not it
 * is answered first; then the copy is dead when it is written.
 *
 * In a cache namespace a copy is worth nobody's wait: where its read or write fails, where no room
 * is left or hosts have waited for CARRY_LIMIT_NS, the value goes with its segment. Hosts do wait
 * for copies of what is kept (store_keep()): those have the last free segment to themselves. In an
 * object namespace the segment stays instead (carry_failed); tombstones that may still be needed
 * are carried, too.
 *
 * A batch of records goes through the memory at once, of one drive at a time. A drive that hangs
 * keeps it when it is given up, and the others get another.
 * Runs on the store's loop.
 */
#include <errno.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "store/inner.h"

#define CARRY_LIMIT_NS (200 * NS_PER_MS)

static void carry_read_done(struct loop_op *io, int res);

/* bit n set: may go to state n; a drive that is given up frees its slots from anywhere. */
static const uint8_t carry_next[] = {
	[CARRY_FREE] = 1u << CARRY_READING | 1u << CARRY_READY,      /* a tombstone is not read */
	[CARRY_READING] = 1u << CARRY_READING | 1u << CARRY_READY | 1u << CARRY_FREE,
	[CARRY_READY] = 1u << CARRY_WRITING | 1u << CARRY_FREE,
	[CARRY_WRITING] = 1u << CARRY_FREE,
};

/* The only writer of slot->state. */
static void carry_go(struct carry_slot *slot, enum carry_state to)
{
	must(slot->state < ARRAY_COUNT(carry_next) && carry_next[slot->state] & 1u << to);
	slot->state = (uint8_t)to;
}

static struct carry_slot *slot_of(struct store_op *op)
{
	struct carry_slot *slot = container_of(op, struct carry_slot, op);

	must(op_state(op)->kind == OP_CARRY && slot->state != CARRY_FREE);
	must(slot->drive->carry_busy > 0 && slot->drive->carry_busy <= CARRY_SLOTS);
	return slot;
}

static uint64_t original_sequence(const struct drive *d, uint32_t i)
{
	return d->evict_sequence_base + le32_get(d->evict_entries[i].sequence_delta);
}

static struct index_place original_place(const struct drive *d, uint32_t i)
{
	const struct fmt_entry *e = &d->evict_entries[i];

	return (struct index_place){
		.sequence = original_sequence(d, i),
		.block = (uint32_t)fmt_segment_block(d->st->segment_bytes, d->evict_segment) +
			 le32_get(e->block),
		.value_bytes = le32_get(e->value_bytes),
		.drive = d->index,
		.flags = stripe_flags(e->stripe),
	};
}

uint32_t carry_entry(const struct drive *d, uint32_t i, struct kv_key *key)
{
	const struct fmt_entry *e = &d->evict_entries[i];
	struct index_place place;
	uint32_t entry;

	must(i < d->evict_entry_count);
	*key = (struct kv_key){.len = e->key_len};
	memcpy(key->byte, e->key, sizeof(key->byte));
	entry = index_find(d->st->index, key);
	if (entry == INDEX_NONE)
		return INDEX_NONE;
	place = index_place(d->st->index, entry);
	return place.drive == d->index && place.sequence == original_sequence(d, i) ? entry
										    : INDEX_NONE;
}

/* --- memory -------------------- */

static void memory_release(struct drive *d)
{
	struct store *st = d->st;

	if (st->carry_owner != d || d->carry_io > 0)
		return;
	must(d->carry_reads == 0);
	st->carry_owner = NULL;
	d->carry_used = 0;
}

/* The drive hangs: its I/O keeps this memory, the others get another. */
static void memory_leave(struct drive *d)
{
	struct store *st = d->st;
	uint8_t *memory = loop_buffer_map(st->carry_bytes);

	must(d->failed && d->carry_orphan == NULL);
	if (memory == NULL)
		return;
	d->carry_orphan = st->carry_memory;
	st->carry_memory = memory;
	st->carry_owner = NULL;
	d->carry_used = 0;
}

void carry_io_done(struct drive *d)
{
	must(d->carry_io > 0);
	d->carry_io--;
	if (d->failed)
		memory_release(d);
}

static void slot_free(struct carry_slot *slot, uint64_t sequence)
{
	struct drive *d = slot->drive;

	must(d->carry_sequence[slot->entry] == CARRY_CHOSEN);
	d->carry_sequence[slot->entry] = sequence;
	carry_go(slot, CARRY_FREE);
	d->carry_busy--;
}

/* It stays where it is: in an object namespace the segment does, too. */
static void slot_fail(struct carry_slot *slot)
{
	struct drive *d = slot->drive;

	d->carry_failed = true;
	if (!slot->tombstone) {
		d->st->count.carry_lost++;
		if (!slot->kept)
			policy_uncarried(&d->policy, fmt_record_blocks(slot->op.value_bytes));
	}
	slot_free(slot, CARRY_NOT);
}

/* --- read -------------------- */

static void slot_read(struct carry_slot *slot)
{
	struct drive *d = slot->drive;

	slot->io = (struct disk_io){
		.op = {.done = carry_read_done},
		.iov = &slot->iov,
		.iov_count = 1,
		.offset_bytes = (uint64_t)original_place(d, slot->entry).block << FMT_BLOCK_SHIFT,
		.bytes = slot->iov.iov_len,
	};
	if (d->carry_reads == 0)
		d->carry_read_ns = loop_now_ns(d->st->loop);
	d->carry_reads++;
	d->carry_io++;
	must(slot->entry < d->evict_entry_count && d->st->carry_owner == d);
	carry_go(slot, CARRY_READING);
	disk_read(d->disk, &slot->io);
}

/* NULL: these are the bytes of that record. */
static const char *slot_wrong(const struct carry_slot *slot)
{
	const struct drive *d = slot->drive;
	struct index_place place = original_place(d, slot->entry);
	struct fmt_place at = {
		.store_id = d->st->id, .drive = d->index, .block = place.block};
	const uint8_t *record = slot->iov.iov_base;
	struct fmt_record_info info;
	const char *wrong;

	wrong = fmt_record_check(record, &at, fmt_record_blocks(place.value_bytes), &info);
	if (wrong != NULL)
		return wrong;
	if (info.kind != FMT_PUT || info.sequence != place.sequence ||
	    info.value_bytes != place.value_bytes || !kv_key_equal(&info.key, &slot->op.key))
		return "another record";
#ifndef KVOF_PLANT_CARRY_UNCHECKED
	if (info.payload_xxh3 != hash_xxh3(record + sizeof(struct fmt_record), info.value_bytes))
		return "checksum of the value";
#endif
	return NULL;
}

static void carry_read_done(struct loop_op *io, int res)
{
	struct carry_slot *slot = container_of(io, struct carry_slot, io.op);
	struct drive *d = slot->drive;
	const char *wrong = NULL;

	must(d->carry_reads > 0 && d->carry_io > 0);
	d->carry_reads--;
	if (d->failed) {
		carry_io_done(d);
		store_close_pump(d->st);
		return;
	}
	d->carry_io--;
	must(slot->state == CARRY_READING);
	drive_io_result(d, res);
	if (res == 0)
		wrong = slot_wrong(slot);
	if ((res != 0 || wrong != NULL) && ++slot->attempts < 2) {
		slot_read(slot);
		return;
	}
	if (wrong != NULL) {
		log_warn("store drive %s: record at block %u: %s; it is not carried forward",
			 d->path, original_place(d, slot->entry).block, wrong);
		d->st->count.corrupt++;
	}
	if (res != 0 || wrong != NULL) {
		struct kv_key key;
		uint32_t entry = carry_entry(d, slot->entry, &key);

		if (entry != INDEX_NONE)
			index_entry_drop(d->st, entry);
		slot_fail(slot);
	} else {
		const struct fmt_record *r = slot->iov.iov_base;

		op_state(&slot->op)->payload_xxh3 = le64_get(r->payload_xxh3);
		carry_go(slot, CARRY_READY);
	}
	drive_pump(d);
}

/* --- place and write -------------------- */

/* May a copy take effect now? False: it is settled, one way or the other, or has to wait. */
static bool slot_current(struct carry_slot *slot)
{
	struct drive *d = slot->drive;
	struct kv_key key;
	uint32_t entry = carry_entry(d, slot->entry, &key);
	bool placed;

#ifdef KVOF_PLANT_CARRY_OUT_OF_ORDER
	return true;                         /* planted fault */
#endif
	placed = key_is_placed(d->st, &key);
	if (placed && !d->st->opts.evict)
		return false;                /* how it ends decides */
	if (placed || (entry == INDEX_NONE && !slot->tombstone)) {
		slot_free(slot, CARRY_NOT);  /* overwritten or deleted */
		return false;
	}
	/* A tombstone, of a key that has a newer value: that covers what is older as well. */
	must(d->carry_sequence[slot->entry] == CARRY_CHOSEN);
	if (slot->tombstone && entry == INDEX_NONE &&
	    index_find(d->st->index, &key) != INDEX_NONE) {
		slot_free(slot, CARRY_NOT);
		return false;
	}
	return true;
}

static void slot_place(struct carry_slot *slot)
{
	struct drive *d = slot->drive;
	uint64_t bytes = (uint64_t)op_blocks(&slot->op) << FMT_BLOCK_SHIFT;

	must(slot->state == CARRY_READY);
	if (!slot_current(slot))
		return;
	if (!segment_has_room(d, op_blocks(&slot->op))) {
		slot_fail(slot);
		return;
	}
	if (segment_place(d, &slot->op) != 0)
		return;
	d->queued_bytes += bytes;
	d->carry_io++;
	carry_go(slot, CARRY_WRITING);
}

void carry_written(struct store_op *op)
{
	struct carry_slot *slot = slot_of(op);
	struct drive *d = slot->drive;
	struct store *st = d->st;
	struct op_state *s = op_state(op);
	struct kv_key key;
	uint32_t entry = carry_entry(d, slot->entry, &key);

	must(slot->state == CARRY_WRITING && s->place.sequence > 0);
	if (!slot->tombstone) {
		st->count.carried_values++;
		st->count.carried_bytes += (uint64_t)op_blocks(op) << FMT_BLOCK_SHIFT;
	}
#ifdef KVOF_PLANT_CARRY_OUT_OF_ORDER
	index_entry_set(st, &op->key, &s->place);
	slot_free(slot, s->place.sequence);
	return;
#endif
	if (entry != INDEX_NONE && !slot->tombstone)
		index_entry_set(st, &op->key, &s->place);
	else if (entry != INDEX_NONE)
		index_entry_remove(st, entry);       /* could not be read; now it is deleted */
	slot_free(slot, s->place.sequence);
}

/* What was written of it may be found by an open that comes before the segment's footer does. So
 * the key stays known, as one that can't be read: a delete of it is logged. */
void carry_lost(struct store_op *op)
{
	struct carry_slot *slot = slot_of(op);
	struct drive *d = slot->drive;
	struct store *st = d->st;
	struct kv_key key;
	uint32_t entry = carry_entry(d, slot->entry, &key);

	if (st->opts.evict && entry != INDEX_NONE && !d->failed) {
		index_entry_set(st, &op->key, &op_state(op)->place);
		index_entry_drop(st, index_find(st->index, &op->key));
	}
	slot_fail(slot);
}

bool carry_take_back(struct drive *d, const struct kv_key *key, uint64_t sequence, uint8_t kind)
{
	struct store *st = d->st;
	uint32_t entry = index_find(st->index, key);

	if (d->evict_state != EVICT_CARRY && d->evict_state != EVICT_SETTLE)
		return false;
	must(sequence != CARRY_NOT && sequence != CARRY_CHOSEN);
	for (uint32_t i = 0; i < d->evict_entry_count; i++) {
		if (d->carry_sequence[i] != sequence)
			continue;
		d->carry_sequence[i] = CARRY_NOT;
		d->carry_failed = true;
		/* What could not be read was written off, and that is lost: it is known again, so
		 * that a delete of it is logged. */
		if (kind == FMT_DELETE && d->evict_entries[i].kind == FMT_PUT &&
		    entry == INDEX_NONE && store_index_has_room(st)) {
			struct index_place place = original_place(d, i);

			index_entry_set(st, key, &place);
			index_entry_drop(st, index_find(st->index, key));
		}
		if (entry != INDEX_NONE && index_place(st->index, entry).drive == d->index &&
		    index_place(st->index, entry).sequence == sequence) {
			struct index_place place = original_place(d, i);

			index_entry_set(st, key, &place);
		}
		return true;
	}
	return false;
}

/* --- the batch -------------------- */

static void slot_start(struct carry_slot *slot, uint32_t i)
{
	struct drive *d = slot->drive;
	const struct fmt_entry *e = &d->evict_entries[i];
	struct kv_key key;
	uint32_t entry = carry_entry(d, i, &key);
	bool dead = entry != INDEX_NONE &&
		    (index_place(d->st->index, entry).flags & INDEX_DEAD) != 0;

	must(slot->state == CARRY_FREE && d->carry_sequence[i] == CARRY_CHOSEN);
	must(d->carry_left > 0);
	d->carry_left--;
	slot->tombstone = e->kind == FMT_DELETE || dead;
	slot->kept = d->st->opts.evict && d->evict_values[i].kept;
	slot->entry = i;
	slot->attempts = 0;
	slot->op = (struct store_op){.key = key};
	*op_state(&slot->op) = (struct op_state){.st = d->st, .kind = OP_CARRY,
		.stripe_byte = slot->tombstone ? 0 : e->stripe};
	if (!slot->tombstone && entry == INDEX_NONE) {
		d->carry_sequence[i] = CARRY_NOT;
		return;
	}
	d->carry_busy++;
	slot->op.value_bytes = slot->tombstone ? 0 : le32_get(e->value_bytes);
	slot->iov = (struct iovec){
		.iov_base = d->st->carry_memory + d->carry_used,
		.iov_len = (size_t)op_blocks(&slot->op) << FMT_BLOCK_SHIFT,
	};
	d->carry_used += slot->iov.iov_len;
	must(d->carry_used <= d->st->carry_bytes);
	if (!slot->tombstone) {
		slot_read(slot);
		return;
	}
	memset(slot->iov.iov_base, 0, slot->iov.iov_len);
	carry_go(slot, CARRY_READY);
}

static void batch_fill(struct drive *d)
{
	unsigned at = 0;

	for (; d->carry_next < d->evict_entry_count; d->carry_next++) {
		uint32_t bytes = le32_get(d->evict_entries[d->carry_next].value_bytes);
		uint64_t length = (uint64_t)fmt_record_blocks(bytes) << FMT_BLOCK_SHIFT;

		if (d->carry_sequence[d->carry_next] != CARRY_CHOSEN)
			continue;
		while (at < CARRY_SLOTS && d->carry[at].state != CARRY_FREE)
			at++;
		if (at == CARRY_SLOTS || length > d->st->carry_bytes - d->carry_used)
			return;
		slot_start(&d->carry[at], d->carry_next);
	}
}

/* The store closes, or the memory does not come back. */
static bool carry_ends(const struct drive *d)
{
	const struct store *st = d->st;

	return drive_ends(d) || (st->carry_owner != NULL && st->carry_owner->failed);
}

/* Hosts have waited long enough. */
static bool carry_hurried(const struct drive *d)
{
	const struct store *st = d->st;

	return st->opts.evict && !list_empty(&d->op_wait) &&
	       loop_now_ns(st->loop) - d->carry_began_ns > CARRY_LIMIT_NS;
}

/* But what is kept, unless all is to go. */
static void give_up_rest(struct drive *d, bool all)
{
	must(d->evict_state == EVICT_CARRY && d->carry_next <= d->evict_entry_count);
	for (unsigned i = 0; i < CARRY_SLOTS; i++) {
		if (d->carry[i].state == CARRY_READY && (all || !d->carry[i].kept))
			slot_fail(&d->carry[i]);
	}
	for (uint32_t i = d->carry_next; i < d->evict_entry_count; i++) {
		if (d->carry_sequence[i] != CARRY_CHOSEN || (!all && d->evict_values[i].kept))
			continue;
		d->carry_sequence[i] = CARRY_NOT;
		d->carry_left--;
		d->carry_failed = true;
		d->st->count.carry_lost += d->evict_entries[i].kind == FMT_PUT;
	}
	if (all)
		d->carry_next = d->evict_entry_count;
}

void carry_late(struct drive *d, uint32_t entry)
{
	must(d->evict_state == EVICT_CARRY);
	d->carry_kept = d->kept_late = true;
	for (uint32_t i = 0; i < d->evict_entry_count; i++) {
		struct kv_key key;

		if (carry_entry(d, i, &key) != entry)
			continue;
		d->evict_values[i].kept = true;
		for (unsigned k = 0; k < CARRY_SLOTS && d->carry != NULL; k++)
			if (d->carry[k].state != CARRY_FREE && d->carry[k].entry == i)
				d->carry[k].kept = true;
		return;
	}
}

/* What is to be kept since the others were chosen is carried after them. */
static void late_choose(struct drive *d)
{
	must(d->carry_busy == 0 && d->carry_left == 0);
	d->kept_late = false;
	for (uint32_t i = 0; i < d->evict_entry_count; i++) {
		struct kv_key key;

		if (d->carry_sequence[i] != CARRY_NOT || !d->evict_values[i].kept ||
		    carry_entry(d, i, &key) == INDEX_NONE)
			continue;
		d->carry_sequence[i] = CARRY_CHOSEN;
		d->carry_left++;
	}
	d->carry_next = 0;
}

void carry_begin(struct drive *d)
{
	must(d->carry_busy == 0 && d->carry_reads == 0 && d->carry_io == 0);
	d->carry_next = 0;
	d->carry_failed = false;
	d->carry_began_ns = loop_now_ns(d->st->loop);
}

static void batch_pump(struct drive *d)
{
	struct store *st = d->st;

	if (st->carry_owner == NULL && d->carry_left > 0)
		st->carry_owner = d;
	if (st->carry_owner != d)
		return;
	for (unsigned i = 0; i < CARRY_SLOTS; i++) {
		if (d->carry[i].state == CARRY_READY)
			slot_place(&d->carry[i]);
	}
	if (d->carry_busy == 0 && d->carry_io == 0)
		d->carry_used = 0;
	batch_fill(d);
}

bool carry_pump(struct drive *d)
{
	must(d->evict_state == EVICT_CARRY && !d->failed);
	if (carry_ends(d) || carry_hurried(d))
		give_up_rest(d, carry_ends(d) || !d->carry_kept);
	batch_pump(d);
	if (d->kept_late && d->carry_busy == 0 && d->carry_left == 0 && !carry_ends(d)) {
		late_choose(d);
		batch_pump(d);
	}
	if (d->carry_busy > 0 || d->carry_left > 0 || d->carry_io > 0)
		return false;
	memory_release(d);
	return true;
}

void carry_abandon(struct drive *d)
{
	for (unsigned i = 0; i < CARRY_SLOTS && d->carry != NULL; i++) {
		if (d->carry[i].state != CARRY_FREE)
			carry_go(&d->carry[i], CARRY_FREE);
	}
	d->carry_busy = 0;
	memory_release(d);
	if (d->st->carry_owner == d)
		memory_leave(d);
}
