/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: values that span the drives, in namespaces set to stripe.
 *
 * Theory: a value's memory (room for a record's header, then the value) is cut every STRIPE_BYTES;
 * each piece is a record of its own, a *part*, under a key that no host can name. Its header takes
 * the first 128 bytes of the piece; what lay there goes into the *head*, the record of the value's
 * own key, which is written last. So no byte is copied but these, parts go to the drives that have
 * least to do, and the value is there when its head is.
 *
 *	put      parts ─ flush of their drives ─ head ─ answer ─ flush of its drive ─ old parts go
 *	get      head ─ parts, all at once ─ displaced bytes put back ─ answer
 *	delete   tombstone of the head, flush ─ answer; its parts go
 *
 * The first flush: a head that a power cut leaves has its parts. The second: parts of the value
 * before are room for others only when its head can't come back. Parts have no tombstones: an open
 * drops those that no head has. A part's key is a digest of the value's key and of a number of two
 * bits, another than that of the value before and of all that are on their way; the head has the
 * XXH3-64 of each part, so parts of an older value are never taken for it.
 *
 * Invariants: a stripe is of one operation, from its dispatch to its last flush; while it is in use
 * its buffers are I/O's; of one key no two stripes have the same number.
 *
 * Runs on the store's loop.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "store/inner.h"

#define STRIPE_TRIES 3u
#define DISPLACED_BYTES sizeof(struct fmt_record)

enum stripe_state {
	STRIPE_FREE,
	STRIPE_PARTS,                        /* put: parts are written */
	STRIPE_FLUSH,
	STRIPE_HEAD,
	STRIPE_RETIRE,                       /* answered: until the head is durable */
	STRIPE_LOOK,                         /* get: the head is read */
	STRIPE_READ,
};

struct stripe_part {
	struct store_op op;
	struct buf_slot slot;                /* a view of the value's buffer */
	struct stripe *stripe;
};

struct stripe {
	struct store *st;
	enum stripe_state state;
	struct store_op *op;                 /* whose it is; NULL once answered */
	struct kv_key key;
	struct store_buf *value;
	uint32_t total;                      /* bytes of the value */
	unsigned count, left;                /* parts; of them not done */
	unsigned old_count;                  /* of the value that this one takes the place of */
	uint8_t number, old_number;          /* two bits */
	bool over_budget;
	int res;
	struct flush_wait flush[STORE_DRIVES_MAX], retire;
	unsigned flushes_left;
	uint8_t *memory;                     /* of the head's record */
	struct buf_slot head;
	struct store_op head_op;             /* get */
	struct stripe_part part[STRIPE_PARTS_MAX];
};

/* --- sizes and keys -------------------- */

static uint64_t record_bytes(uint32_t total)
{
	return sizeof(struct fmt_record) + (uint64_t)total;
}

/* The last one takes up to 128 bytes more: less than its header takes would be no part. */
static unsigned part_count(uint32_t total)
{
	return (unsigned)((total + STRIPE_BYTES - 1) / STRIPE_BYTES);
}

static uint32_t part_bytes(uint32_t total, unsigned i)
{
	uint64_t from = (uint64_t)i * STRIPE_BYTES;

	must(i < part_count(total) && record_bytes(total) > from + DISPLACED_BYTES);
	if (i + 1 < part_count(total))
		return (uint32_t)(STRIPE_BYTES - DISPLACED_BYTES);
	return (uint32_t)(record_bytes(total) - from - DISPLACED_BYTES);
}

bool stripe_wanted(const struct store *st, uint32_t value_bytes)
{
	return st->opts.stripe && part_count(value_bytes) > 1;
}

static uint32_t head_bytes(unsigned count)
{
	return (uint32_t)(sizeof(struct fmt_stripe) + count * sizeof(le64) +
			  (count - 1) * DISPLACED_BYTES);
}

/* Bytes of the value itself that a head of that size holds: what its parts' headers displaced. */
static uint32_t head_value_bytes(uint32_t bytes)
{
	uint32_t fixed = (uint32_t)sizeof(struct fmt_stripe) + (uint32_t)sizeof(le64);

	return bytes < fixed ? 0 : (bytes - fixed) / (DISPLACED_BYTES + (uint32_t)sizeof(le64)) *
		DISPLACED_BYTES;
}

uint32_t stripe_value_bytes(const struct index_place *place)
{
	return (place->flags & INDEX_STRIPED) == 0 ? place->value_bytes :
		head_value_bytes(place->value_bytes);
}

/* What a head of that size is a head of; 0: of nothing. */
static unsigned head_count(uint32_t bytes)
{
	for (unsigned n = 2; n <= STRIPE_PARTS_MAX; n++) {
		if (head_bytes(n) == bytes)
			return n;
	}
	return 0;
}

static struct kv_key part_key(const struct store *st, const struct kv_key *of, uint8_t number,
			      unsigned i)
{
	struct kv_key key = {.len = FMT_KEY_PART};
	uint8_t text[32] = "kvof", digest[32];

	must(number < 4 && i < STRIPE_PARTS_MAX);
	text[5] = number;
	text[6] = of->len;
	memcpy(text + 7, of->byte, sizeof(of->byte));
	memcpy(text + 23, &st->id, sizeof(st->id));
	hash_sha256_once(text, sizeof(text), digest);
	memcpy(key.byte, digest, sizeof(key.byte));
	key.byte[sizeof(key.byte) - 1] = (uint8_t)i;
	return key;
}

/* Its keys differ in the last byte alone. */
static void part_key_turn(struct kv_key *key, unsigned i)
{
	key->byte[sizeof(key->byte) - 1] = (uint8_t)i;
}

/* --- what the index says -------------------- */

static uint8_t flags_number(uint8_t flags)
{
	return (uint8_t)(flags / INDEX_STRIPE_NUMBER & 3);
}

uint8_t stripe_flags(uint8_t on_drive)
{
	return (on_drive & FMT_STRIPE_HEAD) == 0 ? 0 :
		(uint8_t)(INDEX_STRIPED | (on_drive & 3) * INDEX_STRIPE_NUMBER);
}

static void parts_remove(struct store *st, const struct kv_key *of, uint8_t number, unsigned count)
{
	struct kv_key key;

	if (count == 0)
		return;
	key = part_key(st, of, number, 0);
	for (unsigned i = 0; i < count; i++) {
		uint32_t entry;

		part_key_turn(&key, i);
		entry = index_find(st->index, &key);
		if (entry != INDEX_NONE)
			index_entry_remove(st, entry);
	}
}

void stripe_forget(struct store *st, const struct kv_key *key, const struct index_place *place)
{
	must((place->flags & INDEX_STRIPED) != 0);
	parts_remove(st, key, flags_number(place->flags), head_count(place->value_bytes));
}

uint32_t stripe_total(struct store *st, const struct kv_key *of, const struct index_place *place,
		      uint8_t mark)
{
	unsigned count = head_count(place->value_bytes);
	struct kv_key key = part_key(st, of, flags_number(place->flags), 0);
	uint64_t total = 0;

	must((place->flags & INDEX_STRIPED) != 0);
	for (unsigned i = 0; i < count; i++) {
		struct index_place part;
		uint32_t entry;

		part_key_turn(&key, i);
		entry = index_find(st->index, &key);
		if (entry == INDEX_NONE)
			return 0;
		part = index_place(st->index, entry);
		if ((part.flags & INDEX_DEAD) != 0)
			return 0;
		total += part.value_bytes + DISPLACED_BYTES;
		if (mark != 0)
			index_set_flags(st->index, entry, part.flags | mark);
	}
	total -= total < DISPLACED_BYTES ? total : DISPLACED_BYTES;
	return total > STORE_VALUE_BYTES_LIMIT || part_count((uint32_t)total) != count ? 0 :
		(uint32_t)total;
}

/* --- stripes, taken and given -------------------- */

int stripes_open(struct store *st)
{
	if (st->stripe != NULL)
		return 0;
	st->stripe = calloc(STRIPES, sizeof(*st->stripe));
	st->stripe_memory = loop_buffer_map((uint64_t)STRIPES * STRIPE_HEAD_BYTES_MAX);
	if (st->stripe == NULL || st->stripe_memory == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < STRIPES; i++) {
		struct stripe *s = &st->stripe[i];

		s->st = st;
		s->memory = st->stripe_memory + (size_t)i * STRIPE_HEAD_BYTES_MAX;
		atomic_store(&s->head.refs, 1);
		for (unsigned k = 0; k < STRIPE_PARTS_MAX; k++) {
			s->part[k].stripe = s;
			atomic_store(&s->part[k].slot.refs, 1);
		}
	}
	return 0;
}

void stripes_close(struct store *st)
{
	free(st->stripe);
	loop_buffer_unmap(st->stripe_memory, (uint64_t)STRIPES * STRIPE_HEAD_BYTES_MAX);
	st->stripe = NULL;
}

bool stripes_idle(const struct store *st)
{
	for (unsigned i = 0; st->stripe != NULL && i < STRIPES; i++) {
		if (st->stripe[i].state != STRIPE_FREE)
			return false;
	}
	return true;
}

/* No I/O of a drive that was given up still reads or writes through it. */
static bool unheld(const struct stripe *s)
{
	bool held = atomic_load(&s->head.refs) != 1;

	for (unsigned i = 0; i < STRIPE_PARTS_MAX; i++)
		held |= atomic_load(&s->part[i].slot.refs) != 1;
	return !held;
}

/* bit n set: may go to state n */
static const uint8_t stripe_next[] = {
	[STRIPE_FREE] = 1u << STRIPE_PARTS | 1u << STRIPE_HEAD | 1u << STRIPE_LOOK,
	[STRIPE_PARTS] = 1u << STRIPE_FLUSH | 1u << STRIPE_HEAD,
	[STRIPE_FLUSH] = 1u << STRIPE_HEAD,
	[STRIPE_HEAD] = 1u << STRIPE_RETIRE,
	[STRIPE_RETIRE] = 1u << STRIPE_FREE,
	[STRIPE_LOOK] = 1u << STRIPE_READ | 1u << STRIPE_FREE,
	[STRIPE_READ] = 1u << STRIPE_FREE,
};

/* The only writer of s->state. */
static void stripe_go(struct stripe *s, enum stripe_state to)
{
	must(s->state < ARRAY_COUNT(stripe_next) && stripe_next[s->state] & 1u << to);
	must(s->op != NULL || to == STRIPE_RETIRE || to == STRIPE_FREE);
	s->state = to;
}

/* NULL: all are in use, or another one is at this key; the operation waits. */
static struct stripe *stripe_take(struct store *st, struct store_op *op)
{
	for (unsigned i = 0; i < STRIPES; i++) {
		struct stripe *s = &st->stripe[i];

		if (s->state != STRIPE_FREE || !unheld(s))
			continue;
		s->op = op;
		s->key = op->key;
		s->count = s->old_count = s->left = 0;
		s->res = 0;
		s->over_budget = false;
		s->value = op->buf;
		return s;
	}
	if (stripes_idle(st))
		op_answer(op, -EIO);         /* what holds them does not end */
	else
		list_push_back(&st->stripe_wait, &op->link);
	return NULL;
}

static void stripe_give(struct stripe *s)
{
	struct store *st = s->st;
	struct list_link waiters, *link;

	must(s->state != STRIPE_FREE);
	stripe_go(s, STRIPE_FREE);
	s->op = NULL;
	list_init(&waiters);
	while ((link = list_pop_front(&st->stripe_wait)) != NULL)
		list_push_back(&waiters, link);
	while ((link = list_pop_front(&waiters)) != NULL) {
		struct store_op *op = container_of(link, struct store_op, link);

		if (op_state(op)->kind == OP_GET)
			get_again(op);
		else
			op_dispatch(st, op);
	}
}

/* A record of its own over the i-th piece of the value's memory. */
static void part_view(struct stripe *s, unsigned i)
{
	struct buf_slot *slot = &s->part[i].slot;
	uint64_t from = (uint64_t)i * STRIPE_BYTES, at = 0;
	uint64_t end = from + ((uint64_t)fmt_record_blocks(part_bytes(s->total, i))
			       << FMT_BLOCK_SHIFT);
	struct store_buf *buf = &slot->buf;

	slot->of = s->value;
	buf->piece = slot->piece;
	buf->chunk = slot->chunk;
	buf->chunk_count = 0;
	for (unsigned k = 0; k < s->value->chunk_count && at < end; k++) {
		const struct iovec *chunk = &s->value->chunk[k];
		uint64_t first = from > at ? from - at : 0;
		uint64_t last = bytes_min(chunk->iov_len, end - at);

		at += chunk->iov_len;
		if (first >= last)
			continue;
		must(buf->chunk_count < STORE_BUF_PIECES);
		slot->chunk[buf->chunk_count++] = (struct iovec){
			(uint8_t *)chunk->iov_base + first, last - first};
	}
	buf_fit(buf, part_bytes(s->total, i));
}

static void head_view(struct stripe *s)
{
	uint32_t bytes = head_bytes(s->count);

	s->head.buf.piece = s->head.piece;
	s->head.buf.chunk = s->head.chunk;
	s->head.buf.chunk_count = 1;
	s->head.chunk[0] = (struct iovec){
		s->memory, (size_t)fmt_record_blocks(bytes) << FMT_BLOCK_SHIFT};
	must(s->head.chunk[0].iov_len <= STRIPE_HEAD_BYTES_MAX);
	buf_fit(&s->head.buf, bytes);
}

static uint8_t *displaced(struct stripe *s, unsigned i)
{
	must(i >= 1 && i < s->count);
	return s->memory + sizeof(struct fmt_record) + sizeof(struct fmt_stripe) +
	       s->count * sizeof(le64) + (i - 1) * DISPLACED_BYTES;
}

static le64 *part_sum(struct stripe *s, unsigned i)
{
	return (le64 *)(void *)(s->memory + sizeof(struct fmt_record) +
				sizeof(struct fmt_stripe) + i * sizeof(le64));
}

/* --- put -------------------- */

static void part_put_done(struct store_op *op, int res);

/* A number that no value of this key has: neither the one there is, nor those on their way. */
static int number_choose(const struct stripe *s, uint8_t *number)
{
	unsigned taken = s->old_count > 0 ? 1u << s->old_number : 0;

	for (unsigned i = 0; i < STRIPES; i++) {
		const struct stripe *other = &s->st->stripe[i];

		if (other == s || other->state == STRIPE_FREE || other->state >= STRIPE_LOOK ||
		    !kv_key_equal(&other->key, &s->key))
			continue;
		taken |= other->count > 0 ? 1u << other->number : 0;
		taken |= other->old_count > 0 ? 1u << other->old_number : 0;
	}
	for (uint8_t n = 0; n < 4; n++) {
		if ((taken >> n & 1) == 0) {
			*number = n;
			return 0;
		}
	}
	return -EAGAIN;
}

static void parts_start(struct stripe *s)
{
	struct kv_key key = part_key(s->st, &s->key, s->number, 0);

	stripe_go(s, STRIPE_PARTS);
	s->left = s->count;
	s->res = 0;
	for (unsigned i = 0; i < s->count; i++)
		part_view(s, i);
	for (unsigned i = 0; i < s->count; i++) {
		struct store_op *op = &s->part[i].op;

		part_key_turn(&key, i);
		*op = (struct store_op){.key = key, .buf = &s->part[i].slot.buf,
					.done = part_put_done};
		store_put_inner(s->st, op);
		*part_sum(s, i) = le64_of(op_state(op)->payload_xxh3);
	}
}

bool stripe_put(struct store *st, struct store_op *op)
{
	uint32_t entry = index_find(st->index, &op->key);
	struct index_place old = {.flags = 0};
	struct stripe *s;

	must(op_state(op)->stripe == NULL);
	if (st->stripe == NULL || op->key.len == FMT_KEY_PART)
		return false;
	if (entry != INDEX_NONE)
		old = index_place(st->index, entry);
	if (!stripe_wanted(st, op->value_bytes) && (old.flags & INDEX_STRIPED) == 0)
		return false;
	s = stripe_take(st, op);
	if (s == NULL)
		return true;
	if ((old.flags & INDEX_STRIPED) != 0) {
		s->old_count = head_count(old.value_bytes);
		s->old_number = flags_number(old.flags);
	}
	s->total = op->value_bytes;
	op_state(op)->stripe = s;
	if (!stripe_wanted(st, op->value_bytes)) {
		stripe_go(s, STRIPE_HEAD);
		stripe_dispatch(op);
		return true;
	}
	if (number_choose(s, &s->number) != 0) {
		op_state(op)->stripe = NULL;         /* one of them will end */
		list_push_back(&st->stripe_wait, &op->link);
		return true;
	}
	s->count = part_count(s->total);
	memset(s->memory, 0, STRIPE_HEAD_BYTES_MAX);
	head_view(s);
	fmt_stripe_write(s->memory + sizeof(struct fmt_record), s->total, s->count);
	for (unsigned i = 1; i < s->count; i++) {
		part_view(s, i);
		memcpy(displaced(s, i), s->part[i].slot.chunk[0].iov_base, DISPLACED_BYTES);
	}
	parts_start(s);
	return true;
}

void stripe_over_budget(struct store_op *part)
{
	container_of(part, struct stripe_part, op)->stripe->over_budget = true;
}

/* Only from a completion. */
static void put_failed(struct stripe *s, int res)
{
	s->st->count.budget_refused += res == -ENOSPC && s->over_budget;
	parts_remove(s->st, &s->key, s->number, s->count);
	s->count = 0;
	stripe_go(s, STRIPE_HEAD);                   /* as if the head had failed */
	op_finish(s->op, res);
}

static void head_start(struct stripe *s)
{
	struct store_op *op = s->op;
	struct op_state *state = op_state(op);

	stripe_go(s, STRIPE_HEAD);
	op->buf = &s->head.buf;
	op->value_bytes = head_bytes(s->count);
	state->stripe_byte = (uint8_t)(FMT_STRIPE_HEAD | s->number);
	state->payload_xxh3 = hash_xxh3_iov(op->buf->piece, op->buf->piece_count, op->value_bytes);
	stripe_dispatch(op);
}

static void flush_step(struct stripe *s, int res)
{
	must(s->state == STRIPE_FLUSH && s->flushes_left > 0);
	s->res = res != 0 ? -EIO : s->res;
	if (--s->flushes_left > 0)
		return;
	if (s->res != 0)
		put_failed(s, s->res);
	else
		head_start(s);
}

static void part_flushed(struct flush_wait *w, int res)
{
	struct stripe *s = w->owner;

	flush_step(s, res);
}

static void parts_flush(struct stripe *s)
{
	struct store *st = s->st;
	struct kv_key key = part_key(st, &s->key, s->number, 0);
	uint32_t drives = 0;

	for (unsigned i = 0; i < s->count; i++) {
		uint32_t entry;

		part_key_turn(&key, i);
		entry = index_find(st->index, &key);
		if (entry == INDEX_NONE) {           /* its drive was given up meanwhile */
			put_failed(s, -EIO);
			return;
		}
		drives |= 1u << index_place(st->index, entry).drive;
	}
	stripe_go(s, STRIPE_FLUSH);
	s->flushes_left = 1;
#ifdef KVOF_PLANT_HEAD_BEFORE_PARTS
	drives = 0;                                  /* planted fault */
#endif
	for (unsigned i = 0; i < st->drive_count; i++) {
		if ((drives >> i & 1) == 0)
			continue;
		s->flushes_left++;
		s->flush[i] = (struct flush_wait){.done = part_flushed, .owner = s};
		drive_flush(&st->drive[i], &s->flush[i]);
	}
	store_pump(st);
	flush_step(s, 0);
}

static void part_put_done(struct store_op *op, int res)
{
	struct stripe *s = container_of(op, struct stripe_part, op)->stripe;

	must(s->state == STRIPE_PARTS && s->left > 0);
	if (res != 0)
		s->res = res;
	if (--s->left > 0)
		return;
	if (s->res != 0)
		put_failed(s, s->res);
	else
		parts_flush(s);
}

void stripe_dispatch(struct store_op *op)
{
	struct stripe *s = op_state(op)->stripe;
	struct drive *d;

	must(s != NULL && s->state == STRIPE_HEAD && s->op == op);
	if (put_waits(s->st, op))
		return;
	d = drive_choose(s->st, op);
	if (d == NULL)
		op_answer(op, s->st->drives_live == 0 ? -EIO : -ENOSPC);
	else
		drive_queue(d, op);
}

static void retired(struct flush_wait *w, int res)
{
	struct stripe *s = w->owner;

	must(s->state == STRIPE_RETIRE);
	parts_remove(s->st, &s->key, s->old_number, s->old_count);
	stripe_give(s);
	store_close_pump(s->st);
}

/* The operation ends, well or not: its buffer is its own again. */
void stripe_put_end(struct store_op *op, int res)
{
	struct stripe *s = op_state(op)->stripe;
	struct drive *d;

	must(s != NULL && s->state == STRIPE_HEAD && s->op == op);
	d = &s->st->drive[op_state(op)->place.drive];
	op->buf = s->value;
	op->value_bytes = s->total;
	op_state(op)->stripe = NULL;
	s->op = NULL;
	if (res != 0 || d->failed) {
		parts_remove(s->st, &s->key, s->number, s->count);
		s->old_count = 0;
	}
	stripe_go(s, STRIPE_RETIRE);
	if (s->old_count == 0) {
		retired(&(struct flush_wait){.owner = s}, 0);
		return;
	}
	s->retire = (struct flush_wait){.done = retired, .owner = s};
	drive_flush(d, &s->retire);
	d->flush_wanted = true;
}

/* --- get -------------------- */

static void look_done(struct store_op *op, int res);
static void part_got(struct store_op *op, int res);

static void inner_get(struct store *st, struct store_op *op, const struct kv_key *key,
		      struct store_buf *buf, void (*done)(struct store_op *op, int res))
{
	*op = (struct store_op){.key = *key, .buf = buf, .done = done, .want_bytes = UINT32_MAX};
	*op_state(op) = (struct op_state){.st = st, .kind = OP_GET, .lent = true, .inner = true};
	list_init(&op_state(op)->behind);
	st->ops_in_flight++;
}

void stripe_get(struct store *st, struct store_op *op, struct index_place place)
{
	struct stripe *s = stripe_take(st, op);

	if (s == NULL)
		return;
	must(head_count(place.value_bytes) > 0 && op->value_bytes > 0);
	stripe_go(s, STRIPE_LOOK);
	s->count = head_count(place.value_bytes);
	s->number = flags_number(place.flags);
	s->total = op->value_bytes;
	head_view(s);
	inner_get(st, &s->head_op, &s->key, &s->head.buf, look_done);
	get_read(st, &s->head_op, place);
}

/* Only from a completion. */
static void get_end(struct stripe *s, int res)
{
	struct store_op *op = s->op;
	struct store *st = s->st;

	stripe_give(s);
	if (res == 0)
		get_good(st, op);
	else
		get_over(st, op, res);
}

static void get_once_more(struct stripe *s)
{
	struct store_op *op = s->op;

	if (++op_state(op)->attempts > STRIPE_TRIES) {
		get_end(s, -EIO);
		return;
	}
	stripe_give(s);
	get_again(op);
}

/* The head is of a value that is not the one its parts are of, or is none: a miss from now on. */
static void head_bad(struct stripe *s)
{
	uint32_t entry = index_find(s->st->index, &s->key);

	log_warn("store: the head of a value over several drives does not fit its parts; the entry "
		 "is dropped");
	if (entry != INDEX_NONE && (index_place(s->st->index, entry).flags & INDEX_STRIPED) != 0)
		index_entry_drop(s->st, entry);
	s->st->count.corrupt++;
	get_end(s, -EBADMSG);
}

static void look_done(struct store_op *head, int res)
{
	struct stripe *s = container_of(head, struct stripe, head_op);
	struct kv_key key = part_key(s->st, &s->key, s->number, 0);
	struct index_place place[STRIPE_PARTS_MAX];

	must(s->state == STRIPE_LOOK);
	if (res != 0) {
		get_end(s, res);
		return;
	}
	if (!fmt_stripe_check(s->memory + sizeof(struct fmt_record), s->total, s->count)) {
		head_bad(s);
		return;
	}
	for (unsigned i = 0; i < s->count; i++) {
		uint32_t entry;

		part_key_turn(&key, i);
		entry = index_find(s->st->index, &key);
		if (entry != INDEX_NONE)
			place[i] = index_place(s->st->index, entry);
		if (entry == INDEX_NONE || (place[i].flags & INDEX_DEAD) != 0 ||
		    place[i].value_bytes != part_bytes(s->total, i)) {
			get_once_more(s);            /* overwritten, or evicted */
			return;
		}
	}
	stripe_go(s, STRIPE_READ);
	s->left = s->count;
	for (unsigned i = 0; i < s->count; i++) {
		part_key_turn(&key, i);
		part_view(s, i);
		inner_get(s->st, &s->part[i].op, &key, &s->part[i].slot.buf, part_got);
	}
	for (unsigned i = 0; i < s->count; i++)
		get_read(s->st, &s->part[i].op, place[i]);
}

static void part_got(struct store_op *op, int res)
{
	struct stripe_part *p = container_of(op, struct stripe_part, op);
	struct stripe *s = p->stripe;
	unsigned i = (unsigned)(p - s->part);

	must(s->state == STRIPE_READ && s->left > 0);
	if (res != 0)
		s->res = res;
	else if (op_state(op)->payload_xxh3 != le64_get(*part_sum(s, i)) && s->res == 0)
		s->res = 1;                          /* of another value */
	if (--s->left > 0)
		return;
	if (s->res == 1) {
		head_bad(s);
		return;
	}
	for (unsigned k = 1; k < s->count && s->res == 0; k++)
		memcpy(s->part[k].slot.chunk[0].iov_base, displaced(s, k), DISPLACED_BYTES);
	get_end(s, s->res);
}

/* --- open -------------------- */

/* Parts that no head has are dropped; a head without all its parts is a miss. */
void stripes_settle(struct store *st)
{
	struct index *ix = st->index;

	for (uint32_t e = index_next(ix, 0); e != INDEX_NONE; e = index_next(ix, e + 1)) {
		struct index_place p = index_place(ix, e);
		struct kv_key key;

		if ((p.flags & INDEX_STRIPED) == 0)
			continue;
		index_key(ix, e, &key);
		if (stripe_total(st, &key, &p, 0) == 0)
			index_entry_drop(st, e);
		else
			(void)stripe_total(st, &key, &p, INDEX_TOMBSTONE);  /* as a mark */
	}
	for (uint32_t e = index_next(ix, 0); e != INDEX_NONE; e = index_next(ix, e + 1)) {
		struct index_place p = index_place(ix, e);
		struct kv_key key;

		index_key(ix, e, &key);
		if (key.len != FMT_KEY_PART)
			continue;
		if ((p.flags & INDEX_TOMBSTONE) != 0)
			index_set_flags(ix, e, p.flags & (uint8_t)~INDEX_TOMBSTONE);
#ifndef KVOF_PLANT_ORPHANS_KEPT
		else
			index_entry_remove(st, e);
#endif
	}
}
