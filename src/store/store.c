/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of the store: order per key, conditions, gets with their checks, statistics, close.
 *
 * Order per key: of the puts and deletes of one key one is under way (it owns the key,
 * st->key_busy), the others wait behind it in the order of their calls. Gets do not wait: they see
 * what was answered. A condition (if absent, if present) is decided when the operation owns its
 * key, so it is atomic.
 *
 * A put is visible when it is answered; a delete when its tombstone is written and flushed, which
 * is also when it is answered: so it holds after a power cut too.
 *
 * A get takes a buffer first and pins the segment only then: no put can wait for room that
 * a get keeps while that get waits for a buffer that the put holds.
 * Runs on the store's loop; completions never run inside the call.
 */
#include "store/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "store/attach.h"
#include "store/inner.h"

static void get_ready(struct store_buf_wait *w, struct store_buf *buf);
static void reading_done(struct loop_op *io, int res);

/* --- index bookkeeping -------------------- */

static struct segment *place_segment(struct store *st, const struct index_place *p)
{
	struct drive *d = &st->drive[p->drive];

	return &d->segment[segment_of_block(d, p->block)];
}

static void entry_uncount(struct store *st, const struct index_place *p)
{
	struct segment *seg = place_segment(st, p);

	must(seg->live_count > 0 && seg->live_blocks >= fmt_record_blocks(p->value_bytes));
	seg->live_count--;
	seg->live_blocks -= fmt_record_blocks(p->value_bytes);
	evict_keep_gone(st, p, false);
	if ((p->flags & INDEX_DEAD) != 0) {
		must(st->dead_entries > 0);
		st->dead_entries--;
	} else {
		must(st->value_bytes >= stripe_value_bytes(p));
		st->value_bytes -= stripe_value_bytes(p);
	}
}

void index_entry_set(struct store *st, const struct kv_key *key, const struct index_place *place)
{
	uint32_t entry = index_find(st->index, key);
	bool fits, kept = false;

	if (entry != INDEX_NONE) {
		struct index_place old = index_place(st->index, entry);

		kept = (old.flags & INDEX_KEPT) != 0;
		entry_uncount(st, &old);
	}
	fits = index_put(st->index, key, place);
	must(fits && (place->flags & INDEX_KEPT) == 0);
	st->part_entries += entry == INDEX_NONE && key->len == FMT_KEY_PART;
	place_segment(st, place)->live_count++;
	place_segment(st, place)->live_blocks += fmt_record_blocks(place->value_bytes);
	st->value_bytes += stripe_value_bytes(place);
	if (kept)
		evict_keep_placed(st, index_find(st->index, key));
	must(index_count(st->index) >= st->dead_entries);
}

void index_entry_remove(struct store *st, uint32_t entry)
{
	struct index_place old = index_place(st->index, entry);
	struct kv_key key;

	index_key(st->index, entry, &key);
	entry_uncount(st, &old);
	index_remove(st->index, entry);
	if (key.len == FMT_KEY_PART)
		st->part_entries--;
	if ((old.flags & INDEX_STRIPED) != 0)
		stripe_forget(st, &key, &old);
}

void index_entry_drop(struct store *st, uint32_t entry)
{
	struct index_place old = index_place(st->index, entry);

	if ((old.flags & INDEX_DEAD) != 0)
		return;
	st->dead_entries++;
	st->value_bytes -= stripe_value_bytes(&old);
	evict_keep_gone(st, &old, true);
	old.flags &= (uint8_t)~(INDEX_HIT | INDEX_HOT | INDEX_KEPT);
	index_set_flags(st->index, entry, old.flags | INDEX_DEAD);
}

/* Length of an entry's value; UINT32_MAX: it can't be served. */
static uint32_t entry_bytes(struct store *st, const struct kv_key *key,
			    const struct index_place *place)
{
	uint32_t total;

	if ((place->flags & INDEX_DEAD) != 0)
		return UINT32_MAX;
	if ((place->flags & INDEX_STRIPED) == 0)
		return place->value_bytes;
	total = stripe_total(st, key, place, 0);
	return total == 0 ? UINT32_MAX : total;
}

/* The entry of a value that may be served, or INDEX_NONE. */
static uint32_t find_live(struct store *st, const struct kv_key *key)
{
	uint32_t entry = index_find(st->index, key);
	struct index_place place;

	if (entry == INDEX_NONE)
		return INDEX_NONE;
	place = index_place(st->index, entry);
	return entry_bytes(st, key, &place) == UINT32_MAX ? INDEX_NONE : entry;
}

static void mark_hit(struct store *st, uint32_t entry)
{
	uint8_t flags = index_place(st->index, entry).flags;

	flags |= (flags & INDEX_HIT) != 0 ? INDEX_HOT : INDEX_HIT;
	index_set_flags(st->index, entry, flags);
}

/* --- operations and keys -------------------- */

static struct list_link *key_bucket(struct store *st, const struct kv_key *key)
{
	return &st->key_busy[hash_key16(key->byte, st->id) % STORE_KEY_BUCKETS];
}

static struct op_state *op_begin(struct store *st, struct store_op *op, enum op_kind kind)
{
	struct op_state *s = op_state(op);

	OBJ_CHECK(st, STORE_MAGIC);
	loop_must_own(st->loop);
	must(!st->closing);
	*s = (struct op_state){.st = st, .kind = (uint8_t)kind};
	op->link.next = op->link.prev = NULL;
	list_init(&s->behind);
	st->ops_in_flight++;
	return s;
}

static void soon_done(struct loop_op *soon, int res)
{
	op_finish(op_of_state(container_of(soon, struct op_state, soon)), res);
}

void op_answer(struct store_op *op, int res)
{
	struct op_state *s = op_state(op);

	must(s->kind >= OP_PUT && s->kind <= OP_FLUSH && !s->placed);
	s->soon.done = soon_done;
	loop_soon(s->st->loop, &s->soon, res);
}

bool key_is_placed(struct store *st, const struct kv_key *key)
{
	LIST_FOR_EACH(link, key_bucket(st, key)) {
		struct op_state *owner = container_of(link, struct op_state, busy);

		if (kv_key_equal(&op_of_state(owner)->key, key))
			return owner->place.sequence > 0;
	}
	return false;
}

/* The key goes to the first that waits for it, and with it the others that wait. */
static void key_release(struct store *st, struct op_state *s)
{
	struct list_link *first = list_pop_front(&s->behind), *link;
	struct op_state *heir;
	struct store_op *op;

	must(s->kind == OP_PUT || s->kind == OP_DELETE);
	list_remove(&s->busy);
	if (first == NULL)
		return;
	op = container_of(first, struct store_op, link);
	heir = op_state(op);
	while ((link = list_pop_front(&s->behind)) != NULL)
		list_push_back(&heir->behind, link);
	list_push_back(key_bucket(st, &op->key), &heir->busy);
	op_dispatch(st, op);
}

void op_finish(struct store_op *op, int res)
{
	struct op_state *s = op_state(op);
	struct store *st = s->st;

	must(st->ops_in_flight > 0 && !s->placed);
	if (s->stripe != NULL)
		stripe_put_end(op, res);
	if (list_linked(&s->busy))
		key_release(st, s);
	if (res == -ENOSPC && op->key.len != FMT_KEY_PART)   /* its value counts */
		st->count.no_space++;
#ifndef KVOF_PLANT_GET_ERRORS_UNCOUNTED
	if (s->kind == OP_GET && !s->inner && res != 0 && res != -ENOENT && res != -EBUSY)
		st->count.get_errors++;       /* gets = hits + misses + get_errors */
#endif
	st->ops_in_flight--;
	op->done(op, res);
	if (st->closing)
		store_close_pump(st);
}

/* The operation runs when no earlier one of its key is under way. */
static void key_acquire(struct store *st, struct store_op *op)
{
	struct list_link *bucket = key_bucket(st, &op->key);

	LIST_FOR_EACH(link, bucket) {
		struct op_state *owner = container_of(link, struct op_state, busy);

		if (kv_key_equal(&op_of_state(owner)->key, &op->key)) {
			list_push_back(&owner->behind, &op->link);
			return;
		}
	}
	list_push_back(bucket, &op_state(op)->busy);
	op_dispatch(st, op);
}

/* --- put and delete -------------------- */

/* What a drive that was given up holds under this key is superseded elsewhere only once it is
 * written that the drive is out: later a tombstone there does not cover what lies here. */
bool put_waits(struct store *st, struct store_op *op)
{
#ifdef KVOF_PLANT_PUT_BEFORE_MARK
	return false;                                /* planted fault */
#endif
	if (!st->mark_pending || op->key.len == FMT_KEY_PART ||
	    index_find(st->index, &op->key) != INDEX_NONE)
		return false;
	list_push_back(&st->mark_wait, &op->link);
	return true;
}

static void put_dispatch(struct store *st, struct store_op *op)
{
	uint32_t entry = find_live(st, &op->key);
	struct drive *d;

	if (op->mode == STORE_PUT_IF_ABSENT && entry != INDEX_NONE) {
		mark_hit(st, entry);
		op_answer(op, -EEXIST);
		return;
	}
	if (op->mode == STORE_PUT_IF_PRESENT && entry == INDEX_NONE) {
		op_answer(op, -ENOENT);
		return;
	}
	if (put_waits(st, op) || stripe_put(st, op))
		return;
	d = drive_choose(st, op);
	if (d == NULL) {
		op_answer(op, st->drives_live == 0 ? -EIO : -ENOSPC);
	} else if (!drive_may_write(d, (uint64_t)op_blocks(op) << FMT_BLOCK_SHIFT)) {
		if (op->key.len == FMT_KEY_PART)
			stripe_over_budget(op);
		else
			st->count.budget_refused++;
		op_answer(op, -ENOSPC);
	} else {
		drive_queue(d, op);
	}
}

static void delete_dispatch(struct store *st, struct store_op *op)
{
	uint32_t entry = index_find(st->index, &op->key);

	/* A value of a drive that was given up is gone for good only once the others say so. */
	if (st->mark_pending) {
		list_push_back(&st->mark_wait, &op->link);
		return;
	}
	if (entry == INDEX_NONE) {
		op_answer(op, -ENOENT);
		return;
	}
	if (find_live(st, &op->key) == INDEX_NONE)
		op_state(op)->was_dead = true;
#ifdef KVOF_PLANT_DELETE_NOT_LOGGED
	index_entry_remove(st, entry);               /* planted fault */
	op_answer(op, 0);
#else
	drive_queue(&st->drive[index_place(st->index, entry).drive], op);
#endif
}

void op_dispatch(struct store *st, struct store_op *op)
{
	op->link.next = op->link.prev = NULL;
	op_state(op)->place.sequence = 0;
	if (op_state(op)->kind == OP_CARRY)
		return;                              /* of a drive that was given up */
	if (op_state(op)->stripe != NULL)
		stripe_dispatch(op);
	else if (op_state(op)->kind == OP_PUT)
		put_dispatch(st, op);
	else
		delete_dispatch(st, op);
}

void marked_release(struct store *st)
{
	struct list_link waiters, *link;

	list_init(&waiters);
	while ((link = list_pop_front(&st->mark_wait)) != NULL)
		list_push_back(&waiters, link);
	while ((link = list_pop_front(&waiters)) != NULL)
		op_dispatch(st, container_of(link, struct store_op, link));
}

static void put_visible(struct store *st, struct store_op *op)
{
	struct op_state *s = op_state(op);

	if (!st->drive[s->place.drive].failed)
		index_entry_set(st, &op->key, &s->place);
	op_finish(op, 0);
}

static void put_flushed(struct flush_wait *w, int res)
{
	struct op_state *s = container_of(w, struct op_state, flush);

	must(s->st->puts_placed > 0);
	s->st->puts_placed--;
	s->placed = false;
	if (res == 0)
		put_visible(s->st, op_of_state(s));
	else
		op_finish(op_of_state(s), -EIO);
}

static void delete_flushed(struct flush_wait *w, int res)
{
	struct op_state *s = container_of(w, struct op_state, flush);
	struct store_op *op = op_of_state(s);
	uint32_t entry = index_find(s->st->index, &op->key);

	if (res == 0 && entry != INDEX_NONE)
		index_entry_remove(s->st, entry);
	if (res == 0)
		s->st->count.deletes++;
	op_finish(op, res != 0 ? -EIO : s->was_dead ? -ENOENT : 0);
}

/* Its record and all before it in the segment are written. */
void op_written(struct store_op *op)
{
	struct op_state *s = op_state(op);
	struct store *st = s->st;
	struct drive *d = &st->drive[s->place.drive];

	if (s->kind == OP_CARRY) {
		carry_written(op);
		return;
	}
	must(list_linked(&s->busy) && s->place.sequence > 0);
	must(s->placed == (s->kind == OP_PUT));
	if (s->kind == OP_DELETE || st->opts.ack_durable) {
		s->flush.done = s->kind == OP_DELETE ? delete_flushed : put_flushed;
		drive_flush(d, &s->flush);
		return;
	}
	must(st->puts_placed > 0);
	st->puts_placed--;
	s->placed = false;
	put_visible(st, op);
}

void store_put(struct store *st, struct store_op *op)
{
	struct op_state *s = op_begin(st, op, OP_PUT);

	must(op->buf != NULL && op->key.len >= 1 && op->key.len <= KV_KEY_BYTES_MAX);
	must(op->buf->payload_bytes <= st->opts.value_bytes_max);
	op->value_bytes = op->buf->payload_bytes;
	st->count.puts++;
	if (!stripe_wanted(st, op->value_bytes))
		s->payload_xxh3 = hash_xxh3_iov(op->buf->piece, op->buf->piece_count,
						op->value_bytes);
	buf_pad(op->buf);
	key_acquire(st, op);
}

void store_put_inner(struct store *st, struct store_op *op)
{
	struct op_state *s = op_state(op);

	must(op->key.len == FMT_KEY_PART && op->mode == STORE_PUT_ANY);
	*s = (struct op_state){.st = st, .kind = OP_PUT};
	list_init(&s->behind);
	st->ops_in_flight++;
	op->value_bytes = op->buf->payload_bytes;
	s->payload_xxh3 = hash_xxh3_iov(op->buf->piece, op->buf->piece_count, op->value_bytes);
	buf_pad(op->buf);
	key_acquire(st, op);
}

void store_delete(struct store *st, struct store_op *op)
{
	op_begin(st, op, OP_DELETE);
	must(op->key.len >= 1 && op->key.len <= KV_KEY_BYTES_MAX);
	key_acquire(st, op);
}

/* --- get -------------------- */

static void reading_submit(struct reading *r)
{
	struct drive *d = r->drive;

	r->io = (struct disk_io){
		.op = {.done = reading_done},
		.iov = r->buf->chunk,
		.iov_count = r->buf->chunk_count,
		.offset_bytes = (uint64_t)r->place.block << FMT_BLOCK_SHIFT,
		.bytes = (uint64_t)buf_blocks(r->buf) << FMT_BLOCK_SHIFT,
	};
	list_push_back(&d->reads, &r->link);
	r->started_ns = slow_read(&d->slow, &r->io);
}

/* Gets of the drive that wait for a slot. */
static void get_next(struct drive *d)
{
	while (!list_empty(&d->get_wait) && !drive_reads_full(d)) {
		struct list_link *link = list_pop_front(&d->get_wait);
		struct store_op *op = container_of(link, struct store_op, link);
		struct reading *r = container_of(list_pop_front(&d->reading_free), struct reading,
						 link);

		r->op = op;
		r->buf = op->buf;
		r->place = op_state(op)->place;
		r->segment_index = segment_of_block(d, r->place.block);
		r->attempts = 0;
		store_buf_hold(r->buf);
		d->reading_busy++;
		d->reading_blocks += buf_blocks(r->buf);
		reading_submit(r);
	}
}

void get_read(struct store *st, struct store_op *op, struct index_place place)
{
	struct drive *d = &st->drive[place.drive];

	must(!d->failed && buf_blocks(op->buf) == fmt_record_blocks(place.value_bytes));
	buf_fit(op->buf, place.value_bytes);
	op->value_bytes = place.value_bytes;
	op_state(op)->place = place;
	d->segment[segment_of_block(d, place.block)].reader_count++;
	list_push_back(&d->get_wait, &op->link);
	get_next(d);
}

/* op->buf is there; of value_bytes, which of a value over several drives are not place's. */
static void get_into(struct store *st, struct store_op *op, struct index_place place)
{
	if ((place.flags & INDEX_STRIPED) != 0)
		stripe_get(st, op, place);
	else
		get_read(st, op, place);
}

/* Into the caller's own buffer. */
static void get_lent(struct store *st, struct store_op *op, struct index_place place)
{
	if (buf_blocks(op->buf) == fmt_record_blocks(op->value_bytes)) {
		get_into(st, op, place);
		return;
	}
	st->count.gets--;                              /* it is asked again, with room that fits */
	op_answer(op, -EBUSY);                         /* another size was put meanwhile */
}

static void get_in_place_done(struct loop_op *soon, int res);

/* False: the value does not lie in memory, or can't be lent now. */
static bool get_in_place(struct store *st, struct store_op *op, struct index_place place)
{
	struct op_state *s = op_state(op);
	struct store_buf *buf;

	if ((place.flags & INDEX_STRIPED) != 0)
		return false;
	buf = loan_begin(st, &place);
	if (buf == NULL)
		return false;
	op->buf = buf;
	op->value_bytes = place.value_bytes;
	s->place = place;
	s->soon.done = get_in_place_done;
	loop_soon(st->loop, &s->soon, 0);
	return true;
}

/* Looks the key up and takes a buffer for its size; true: answered or on its way. */
static void get_start(struct store *st, struct store_op *op, struct store_buf *buf)
{
	uint32_t entry = find_live(st, &op->key);
	struct op_state *s = op_state(op);
	struct index_place place;

	if (entry == INDEX_NONE) {
		if (buf != NULL)
			store_buf_return(&buf);
		st->count.misses++;
		op_answer(op, -ENOENT);
		return;
	}
	place = index_place(st->index, entry);
	op->value_bytes = entry_bytes(st, &op->key, &place);
	if (buf != NULL && buf_blocks(buf) != fmt_record_blocks(op->value_bytes))
		store_buf_return(&buf);           /* another size was put meanwhile */
	if (op->want_bytes == 0) {
		mark_hit(st, entry);
		st->count.hits++;
		op_answer(op, 0);
		return;
	}
	if (s->lent) {
		get_lent(st, op, place);
		return;
	}
	if (buf == NULL && get_in_place(st, op, place))
		return;
	if (buf == NULL)
		buf = buf_take_now(st->pool, op->value_bytes);
	if (buf == NULL) {
		s->wait = (struct store_buf_wait){.payload_bytes = op->value_bytes,
						  .ready = get_ready};
		store_pool_take(st->pool, &s->wait);
		return;
	}
	op->buf = buf;
	get_into(st, op, place);
}

void get_again(struct store_op *op)
{
	struct op_state *s = op_state(op);
	struct store_buf *buf = s->lent ? NULL : op->buf;

	must(s->kind == OP_GET && !s->inner);
	if (!s->lent)
		op->buf = NULL;
	op->link.next = op->link.prev = NULL;
	get_start(s->st, op, buf);
}

static void get_ready(struct store_buf_wait *w, struct store_buf *buf)
{
	struct op_state *s = container_of(w, struct op_state, wait);

	get_start(s->st, op_of_state(s), buf);
}

const char *store_record_wrong(const struct store *st, const struct index_place *place,
			       const struct store_buf *buf, const struct kv_key *key,
			       uint64_t *payload_xxh3)
{
	struct fmt_place at = {.store_id = st->id, .drive = place->drive, .block = place->block};
	struct fmt_record_info info;
	const char *wrong = fmt_record_check(buf->chunk[0].iov_base, &at, buf_blocks(buf), &info);

	if (wrong != NULL)
		return wrong;
	if (info.kind != FMT_PUT || info.sequence != place->sequence ||
	    info.value_bytes != place->value_bytes)
		return "another record";
#ifndef KVOF_PLANT_CHECKSUM_NOT_COMPARED
	if (info.payload_xxh3 != hash_xxh3_iov(buf->piece, buf->piece_count, info.value_bytes))
		return "checksum of the value";
#endif
	*payload_xxh3 = info.payload_xxh3;
	return kv_key_equal(&info.key, key) ? NULL : "another key";
}

static void reading_free(struct reading *r)
{
	struct drive *d = r->drive;
	struct segment *seg = &d->segment[r->segment_index];

	must(seg->reader_count > 0);
	seg->reader_count--;
	must(d->reading_blocks >= buf_blocks(r->buf));
	d->reading_blocks -= buf_blocks(r->buf);
	store_buf_drop(r->buf);
	r->op = NULL;
	r->buf = NULL;
	d->reading_busy--;
	list_push_front(&d->reading_free, &r->link);
}

static void get_failed(struct store *st, struct store_op *op, int res)
{
	uint32_t entry = index_find(st->index, &op->key);

	if (entry != INDEX_NONE &&
	    index_place(st->index, entry).sequence == op_state(op)->place.sequence)
		index_entry_drop(st, entry);
	if (res == -EBADMSG)
		st->count.corrupt++;
	get_over(st, op, res);
}

void get_over(struct store *st, struct store_op *op, int res)
{
	must(res != 0 && op_state(op)->kind == OP_GET);
	if (!op_state(op)->lent)
		store_buf_return(&op->buf);
	op_finish(op, res);
}

void get_good(struct store *st, struct store_op *op)
{
	uint32_t entry = find_live(st, &op->key);

	if (entry != INDEX_NONE)
		mark_hit(st, entry);
	st->count.hits += !op_state(op)->inner;
	if (op->want_bytes < op->value_bytes)
		buf_fit(op->buf, op->want_bytes);
	op_finish(op, 0);
}

static void reading_done(struct loop_op *io, int res)
{
	struct reading *r = container_of(io, struct reading, io.op);
	struct drive *d = r->drive;
	struct store *st = d->st;
	struct store_op *op = r->op;
	const char *wrong = NULL;

	list_remove(&r->link);
	if (op == NULL || d->failed) {
		reading_free(r);
		if (!d->failed)
			get_next(d);
		if (op != NULL) {
			if (!op_state(op)->lent)
				store_buf_return(&op->buf);
			op_finish(op, -EIO);
		}
		store_close_pump(st);
		return;
	}
	drive_io_result(d, res);
	if (res == 0)
		wrong = store_record_wrong(st, &r->place, r->buf, &op->key,
					   &op_state(op)->payload_xxh3);
	if ((res != 0 || wrong != NULL) && ++r->attempts < 2) {
		reading_submit(r);
		return;
	}
	reading_free(r);
	get_next(d);                       /* before the answer, which may start more */
	if (wrong != NULL)
		log_warn("store drive %s: record at block %u: %s; the entry is dropped", d->path,
			 op_state(op)->place.block, wrong);
	if (res != 0 || wrong != NULL)
		get_failed(st, op, res != 0 ? -EIO : -EBADMSG);
	else
		get_good(st, op);
	drive_pump(d);
}

static void get_in_place_done(struct loop_op *soon, int res)
{
	struct op_state *s = container_of(soon, struct op_state, soon);
	struct store_op *op = op_of_state(s);
	struct drive *d = &s->st->drive[s->place.drive];
	const char *wrong = store_record_wrong(s->st, &s->place, op->buf, &op->key,
					       &s->payload_xxh3);

	if (wrong == NULL && !d->failed) {
		get_good(s->st, op);
		return;
	}
	if (wrong != NULL)
		log_warn("store drive %s: record at block %u: %s; the entry is dropped", d->path,
			 s->place.block, wrong);
	get_failed(s->st, op, wrong != NULL ? -EBADMSG : -EIO);
}

void store_get(struct store *st, struct store_op *op)
{
	op_begin(st, op, OP_GET)->lent = op->buf != NULL;
	must(op->key.len >= 1 && op->key.len <= KV_KEY_BYTES_MAX);
	op->value_bytes = 0;
	st->count.gets++;
	get_start(st, op, NULL);
}

bool store_exists(struct store *st, const struct kv_key *key, uint32_t *value_bytes)
{
	struct index_place place;
	uint32_t entry;

	OBJ_CHECK(st, STORE_MAGIC);
	loop_must_own(st->loop);
	entry = find_live(st, key);
	if (entry == INDEX_NONE)
		return false;
	mark_hit(st, entry);
	place = index_place(st->index, entry);
	if ((place.flags & INDEX_STRIPED) != 0)
		(void)stripe_total(st, key, &place, INDEX_HIT);
	if (value_bytes != NULL)
		*value_bytes = entry_bytes(st, key, &place);
	return true;
}

unsigned store_touch(struct store *st, const struct kv_key *keys, unsigned key_count)
{
	unsigned there = 0;

	for (unsigned i = 0; i < key_count; i++)
		there += store_exists(st, &keys[i], NULL);
	return there;
}

unsigned store_list(struct store *st, const struct kv_key *from, struct kv_key *keys,
		    uint32_t *value_bytes, unsigned key_count)
{
	struct kv_key last = *from;
	uint32_t entries[64];
	unsigned n = 0, got;
	bool skip_first = false;

	OBJ_CHECK(st, STORE_MAGIC);
	loop_must_own(st->loop);
	do {
		got = index_list(st->index, &last, entries, ARRAY_COUNT(entries));
		for (unsigned i = 0; i < got && n < key_count; i++) {
			struct index_place place = index_place(st->index, entries[i]);
			struct kv_key key;

			index_key(st->index, entries[i], &key);
			if (skip_first && kv_key_equal(&key, &last))
				continue;
			skip_first = true;
			last = key;
			if (key.len == FMT_KEY_PART ||
			    entry_bytes(st, &key, &place) == UINT32_MAX)
				continue;
			keys[n] = key;
			value_bytes[n++] = entry_bytes(st, &key, &place);
		}
	} while (n < key_count && got == ARRAY_COUNT(entries));
	return n;
}

/* --- flush -------------------- */

/* One round at a time over all drives; flushes called meanwhile share the next round. */
static void round_start(struct store *st)
{
	struct list_link *link;

	if (st->round_left > 0 || list_empty(&st->flush_next))
		return;
	while ((link = list_pop_front(&st->flush_next)) != NULL)
		list_push_back(&st->flush_running, link);
	st->round_failed = st->drives_live == 0 || st->flush_lost;
	st->flush_lost = false;
	st->round_left = 1;
	for (unsigned i = 0; i < st->drive_count; i++) {
		struct drive *d = &st->drive[i];

		if (d->failed || (d->unflushed_bytes == 0 && !d->flush_busy))
			continue;
		st->round_left++;
		drive_flush(d, &d->round);
	}
	store_pump(st);
	store_round_done(st, 0);
}

static void round_soon(struct loop_op *soon, int res)
{
	struct store *st = container_of(soon, struct store, round_op);
	struct list_link done, *link;
	int rc = st->round_failed ? -EIO : 0;

	list_init(&done);
	while ((link = list_pop_front(&st->flush_running)) != NULL)
		list_push_back(&done, link);
	st->round_left = 0;
	round_start(st);
	while ((link = list_pop_front(&done)) != NULL)
		op_finish(container_of(link, struct store_op, link), rc);
}

void store_round_done(struct store *st, int res)
{
	must(st->round_left > 0);
	if (res != 0)
		st->round_failed = true;
	if (st->round_left > 1) {
		st->round_left--;
		return;
	}
	st->round_op.done = round_soon;              /* round_left stays 1 until then */
	loop_soon(st->loop, &st->round_op, 0);
}

static void round_part(struct flush_wait *w, int res)
{
	store_round_done(container_of(w, struct drive, round)->st, res);
}

void store_flush(struct store *st, struct store_op *op)
{
	op_begin(st, op, OP_FLUSH);
	for (unsigned i = 0; i < st->drive_count; i++)
		st->drive[i].round.done = round_part;
	list_push_back(&st->flush_next, &op->link);
	round_start(st);
}

/* --- the whole -------------------- */

void store_stat(const struct store *st, struct store_stat *out)
{
	OBJ_CHECK(st, STORE_MAGIC);
	*out = st->count;
	out->keys = index_count(st->index) - st->dead_entries - st->part_entries;
	out->value_bytes = st->value_bytes;
	out->drives = st->drive_count;
	out->drives_failed = st->drive_count - st->drives_live;
	out->value_bytes_max = st->opts.value_bytes_max;
	out->segment_bytes = st->segment_bytes;
	out->index_keys_max = index_keys_max(st->index);
	out->index_bytes = index_bytes(st->index);
	memcpy(out->uuid, st->uuid, sizeof(out->uuid));
	for (unsigned i = 0; i < st->drive_count; i++) {
		const struct drive *d = &st->drive[i];
		uint64_t blocks = FMT_FIRST_SEGMENT_BLOCK + 1;

		if (d->missing)
			continue;
		out->device_read_bytes += disk_counts(d->disk)->read_bytes;
		out->device_write_bytes += disk_counts(d->disk)->write_bytes;
		if (d->failed)
			continue;
		if (d->budget.left_bytes > 0)
			out->budget_left_bytes += (uint64_t)d->budget.left_bytes;
		out->capacity_bytes += (blocks << FMT_BLOCK_SHIFT) +
				       (uint64_t)d->segment_count * st->segment_bytes;
		for (uint32_t s = 0; s < d->segment_count; s++) {
			const struct segment *seg = &d->segment[s];

			if (seg->state != SEGMENT_FREE && seg->state != SEGMENT_BAD)
				blocks += seg->used_blocks + fmt_footer_blocks(seg->entry_count);
		}
		out->used_bytes += blocks << FMT_BLOCK_SHIFT;
	}
}

void store_drive_retire(struct store *st, unsigned drive_index)
{
	OBJ_CHECK(st, STORE_MAGIC);
	loop_must_own(st->loop);
	must(drive_index < st->drive_count);
	if (st->drive[drive_index].failed)
		return;
	st->drive[drive_index].fail_why = "told to";
	loop_timer_set(st->loop, &st->tick, loop_now_ns(st->loop));
}

struct buf_pool *store_pool_of(struct store *st)
{
	OBJ_CHECK(st, STORE_MAGIC);
	return st->pool;
}

void store_buf_take(struct store *st, struct store_buf_wait *w)
{
	OBJ_CHECK(st, STORE_MAGIC);
	must(w->payload_bytes <= st->opts.value_bytes_max);
	store_pool_take(st->pool, w);
}

bool store_buf_wait_cancel(struct store *st, struct store_buf_wait *w)
{
	OBJ_CHECK(st, STORE_MAGIC);
	return store_pool_cancel(st->pool, w);
}

void store_buf_give(struct store *st, struct store_buf **buf)
{
	OBJ_CHECK(st, STORE_MAGIC);
	store_buf_return(buf);
}

/* Buffers of its own pool, and loans, that are not back keep a store from being freed. */
static bool buffers_out(const struct store *st)
{
	return st->loans > 0 || (st->pool == &st->own_pool && !buf_pool_idle(st->pool));
}

/* --- close -------------------- */

static void close_end(struct loop_op *soon, int res)
{
	struct store *st = container_of(soon, struct store, close_op);
	void (*done)(void *arg) = st->close_done;
	void *arg = st->close_arg;
	bool kept = buffers_out(st);

	loop_timer_cancel(st->loop, &st->tick);
	for (unsigned i = 0; i < st->drive_count; i++) {
		struct drive *d = &st->drive[i];

		scrub_stop(d);
		if (!drive_quiet(d))
			kept = true;
		else if (d->disk != NULL && st->loans == 0)
			attach_part_close(&d->disk, d->open);
	}
	/* The kernel may still write into its memory, or somebody still has a buffer. */
	if (kept)
		log_error("store: closed with I/O or buffers under way; their memory is kept");
	else
		store_free(&st);
	done(arg);
}

/* What is open is flushed and listed in a footer; then nothing has to be hopped over at the next
 * open. */
static bool close_drive(struct drive *d)
{
	const struct seg_log *log = segment_log_open(d);

	if (d->failed)
		return d->missing || drive_quiet(d);
	if (!drive_quiet(d) || d->evict_state != EVICT_IDLE)
		return false;
	for (unsigned i = 0; i < STORE_LOGS; i++) {
		if (d->log[i].state > SEGLOG_OPEN)
			return false;
	}
	if (d->unflushed_bytes > 0) {
		d->flush_wanted = true;
		drive_pump(d);
		return false;
	}
	if (log != NULL && log->durable_entries > log->checkpoint_entries && !d->close_listed) {
		d->close_listed = true;
		segment_checkpoint_pump(d, true);
		return false;
	}
	return true;
}

void store_close_pump(struct store *st)
{
	uint64_t now = loop_now_ns(st->loop);
	bool done = true;

	if (!st->closing || st->closed || st->in_close_pump)
		return;
	st->in_close_pump = true;
	if (st->ops_in_flight > 0 || buffers_out(st) || !stripes_idle(st))
		done = false;
	for (unsigned i = 0; done && i < st->drive_count; i++)
		done = close_drive(&st->drive[i]);
	if (!done && now >= st->close_deadline_ns && st->ops_in_flight == 0)
		done = true;
	if (done) {
		st->closed = true;
		st->close_op.done = close_end;
		loop_soon(st->loop, &st->close_op, 0);
	} else if (!loop_timer_is_set(&st->tick)) {
		loop_timer_set(st->loop, &st->tick, now + STORE_TICK_NS);
	}
	st->in_close_pump = false;
}

void store_close(struct store **stp, void (*done)(void *arg), void *arg)
{
	struct store *st;

	OBJ_TAKE(st, stp, STORE_MAGIC);
	loop_must_own(st->loop);
	must(!st->closing);
	st->closing = true;
	st->close_done = done;
	st->close_arg = arg;
	st->close_deadline_ns = loop_now_ns(st->loop) + STORE_CLOSE_LIMIT_NS;
	for (unsigned i = 0; i < st->drive_count; i++)
		slow_end(&st->drive[i].slow);
	store_close_pump(st);
}

void store_free(struct store **stp)
{
	struct store *st = *stp;

	*stp = NULL;
	for (unsigned i = 0; st->drive != NULL && i < st->drive_count; i++) {
		if (st->drive[i].disk != NULL)
			attach_part_close(&st->drive[i].disk, st->drive[i].open);
		drive_free(&st->drive[i]);
	}
	if (st->index != NULL)
		index_close(&st->index);
	if (st->pool == &st->own_pool)
		buf_pool_close(st->pool);
	loop_buffer_unmap(st->carry_memory, st->carry_bytes);
	stripes_close(st);
	free(st->drive);
	st->magic = 0;
	free(st);
}

void store_forget(struct store **stp)
{
	for (unsigned i = 0; i < (*stp)->drive_count; i++)
		(*stp)->drive[i].disk = NULL;
	store_free(stp);
}

void store_report_say(struct store_report *report)
{
	snprintf(report->text, sizeof(report->text), "%" PRIu64 " keys on %u drives%s",
		 report->keys, report->drives, report->fresh ? ", new" : "");
}
