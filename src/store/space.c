/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kv namespace over its shards. What an operation needs on its way lies in its own lease, so
 * nothing is allocated and nothing is looked up when it comes back:
 *
 *	caller's loop          shard's loop
 *	space_get()   -msg->   store_get() ... done
 *	done()        <-msg-
 *
 * Where the shard is on the caller's loop no message is sent. What goes over all shards (flush,
 * list, statistics) visits them one after the other and then goes home.
 *
 * Invariants: struct space is not changed between open and close, so any loop may read it; a lease
 * is written by the loop that has the operation, which is one at a time; loop_post() keeps the
 * order of a sender, so two operations of one loop on one key reach the shard in their order.
 * Any loop.
 */
#include "store/space.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/must.h"

#define SPACE_MAGIC 0x59ace000u
#define LIST_STEP 32u

struct space {
	uint32_t magic;
	unsigned shard_count;
	struct space_shard shard[STORE_SHARDS_MAX];
};

enum space_kind { SPACE_PUT = 1, SPACE_GET, SPACE_DELETE, SPACE_EXISTS, SPACE_FLUSH };

struct op_trip {
	struct msg msg;
	struct loop *home;
	struct space *space;
	void (*done)(struct store_op *op, int res);
	uint32_t shard;
	int res;
	enum space_kind kind;
};
_Static_assert(sizeof(struct op_trip) <= sizeof(((struct store_op *)0)->space_lease),
	       "the way of an operation fits what the caller lends");

struct tour {                          /* over all shards: list and statistics */
	struct msg msg;
	struct loop *home;
	struct space *space;
	uint32_t shard;
};
_Static_assert(sizeof(struct tour) <= sizeof(((struct space_list *)0)->lease) &&
	       sizeof(struct tour) <= sizeof(((struct space_stat *)0)->lease),
	       "the way of a list fits what the caller lends");

unsigned space_shard_of(const struct kv_key *key, unsigned shard_count)
{
	_Static_assert(sizeof(*key) == 1 + KV_KEY_BYTES_MAX, "length and bytes, nothing between");
	must(shard_count > 0);
	return shard_count == 1 ? 0 : (unsigned)(hash_xxh3(key, sizeof(*key)) % shard_count);
}

int space_open(const struct space_shard *shard, unsigned shard_count, struct space **out)
{
	struct space *sp = calloc(1, sizeof(*sp));

	must(shard_count >= 1 && shard_count <= STORE_SHARDS_MAX);
	if (sp == NULL)
		return -ENOMEM;
	OBJ_INIT(sp, SPACE_MAGIC);
	sp->shard_count = shard_count;
	for (unsigned i = 0; i < shard_count; i++) {
		must(shard[i].loop != NULL && shard[i].store != NULL);
		sp->shard[i] = shard[i];
	}
	*out = sp;
	return 0;
}

void space_close(struct space **spp)
{
	struct space *sp;

	OBJ_TAKE(sp, spp, SPACE_MAGIC);
	sp->magic = 0;
	free(sp);
}

/* --- one operation -------------------- */

static struct op_trip *trip_of(struct store_op *op)
{
	return (struct op_trip *)(void *)op->space_lease;
}

static struct store_op *op_of_trip(struct msg *m)
{
	return container_of((uint64_t (*)[8])(void *)container_of(m, struct op_trip, msg),
			    struct store_op, space_lease);
}

static void op_home(struct loop *here, struct msg *m)
{
	struct store_op *op = op_of_trip(m);
	struct op_trip *t = trip_of(op);

	must(t->home == here && t->done != NULL);
	op->done = t->done;
	op->done(op, t->res);
}

static void op_run(struct store_op *op);

static void op_at_shard(struct loop *here, struct msg *m)
{
	struct store_op *op = op_of_trip(m);

	must(trip_of(op)->space->shard[trip_of(op)->shard].loop == here);
	op_run(op);
}

static void op_send(struct op_trip *t, struct loop *to, void (*run)(struct loop *, struct msg *))
{
	t->msg.run = run;
	loop_post(to, &t->msg);
}

/* The store has done its part; on the shard's loop, from a completion or a message. */
static void op_there(struct store_op *op, int res)
{
	struct op_trip *t = trip_of(op);
	struct space *sp = t->space;

	must(t->kind >= SPACE_PUT && t->kind <= SPACE_FLUSH && t->shard < sp->shard_count);
	if (t->kind != SPACE_FLUSH || t->res == 0)
		t->res = res;
	if (t->kind == SPACE_FLUSH && t->shard + 1 < sp->shard_count) {
		t->shard++;
		op_send(t, sp->shard[t->shard].loop, op_at_shard);
		return;
	}
#ifdef KVOF_PLANT_SPACE_ANSWERED_THERE
	op->done = t->done;
	op->done(op, t->res);
	return;
#endif
	op_send(t, t->home, op_home);
}

static void op_run(struct store_op *op)
{
	struct op_trip *t = trip_of(op);
	struct store *st = t->space->shard[t->shard].store;

	switch (t->kind) {
	case SPACE_PUT:
		store_put(st, op);
		break;
	case SPACE_GET:
		store_get(st, op);
		break;
	case SPACE_DELETE:
		store_delete(st, op);
		break;
	case SPACE_EXISTS:
		op_there(op, store_exists(st, &op->key, &op->value_bytes) ? 0 : -ENOENT);
		break;
	case SPACE_FLUSH:
		store_flush(st, op);
		break;
	}
}

/* The way to the shard that has the key. */
static void op_go(struct space *sp, struct loop *here, struct store_op *op, enum space_kind kind)
{
	struct op_trip *t = trip_of(op);

	OBJ_CHECK(sp, SPACE_MAGIC);
	loop_must_own(here);
	must(op->done != NULL && op->done != op_there);        /* not one that is on its way */
	*t = (struct op_trip){.home = here, .space = sp, .done = op->done, .kind = kind};
	if (kind != SPACE_FLUSH)
		t->shard = space_shard_of(&op->key, sp->shard_count);
	if (sp->shard[t->shard].loop == here && kind <= SPACE_DELETE) {
		op_run(op);                            /* it answers by itself on a later turn */
		return;
	}
	op->done = op_there;
	op_send(t, sp->shard[t->shard].loop, op_at_shard);
}

void space_put(struct space *sp, struct loop *here, struct store_op *op)
{
	op_go(sp, here, op, SPACE_PUT);
}

void space_get(struct space *sp, struct loop *here, struct store_op *op)
{
	op_go(sp, here, op, SPACE_GET);
}

void space_delete(struct space *sp, struct loop *here, struct store_op *op)
{
	op_go(sp, here, op, SPACE_DELETE);
}

void space_exists(struct space *sp, struct loop *here, struct store_op *op)
{
	op_go(sp, here, op, SPACE_EXISTS);
}

void space_flush(struct space *sp, struct loop *here, struct store_op *op)
{
	op_go(sp, here, op, SPACE_FLUSH);
}

int space_exists_now(struct space *sp, struct loop *here, const struct kv_key *key,
		     uint32_t *value_bytes)
{
	const struct space_shard *s;

	OBJ_CHECK(sp, SPACE_MAGIC);
	s = &sp->shard[space_shard_of(key, sp->shard_count)];
	if (s->loop != here)
		return -EBUSY;
	return store_exists(s->store, key, value_bytes) ? 0 : -ENOENT;
}

/* --- a tour of all shards -------------------- */

static void tour_start(struct tour *t, struct space *sp, struct loop *here,
		       void (*run)(struct loop *, struct msg *))
{
	OBJ_CHECK(sp, SPACE_MAGIC);
	loop_must_own(here);
	*t = (struct tour){.home = here, .space = sp, .msg = {.run = run}};
	loop_post(sp->shard[0].loop, &t->msg);
}

/* To the next shard, or home. */
static void tour_on(struct tour *t, void (*home)(struct loop *, struct msg *))
{
	struct space *sp = t->space;

	must(t->shard < sp->shard_count);
	if (++t->shard < sp->shard_count) {
		loop_post(sp->shard[t->shard].loop, &t->msg);
		return;
	}
	t->msg.run = home;
	loop_post(t->home, &t->msg);
}

static struct space_list *list_of(struct msg *m)
{
	return container_of((uint64_t (*)[16])(void *)container_of(m, struct tour, msg),
			    struct space_list, lease);
}

/* Puts a key in its place among those found so far; the last one falls out where all are taken.
 * False: it comes after all of them and there is no room. */
static bool list_insert(struct space_list *l, const struct kv_key *key, uint32_t value_bytes)
{
	unsigned low = 0, high = l->filled;

	must(l->filled <= l->key_count && key->len >= 1);
	while (low < high) {
		unsigned mid = (low + high) / 2;

		if (kv_key_compare(&l->keys[mid], key) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	if (low == l->key_count)
		return false;
	if (l->filled < l->key_count)
		l->filled++;
	memmove(&l->keys[low + 1], &l->keys[low], (l->filled - low - 1) * sizeof(*l->keys));
	memmove(&l->value_bytes[low + 1], &l->value_bytes[low],
		(l->filled - low - 1) * sizeof(*l->value_bytes));
	l->keys[low] = *key;
	l->value_bytes[low] = value_bytes;
	return true;
}

static void list_merge(struct space_list *l, struct store *st)
{
	struct kv_key from = l->from, key[LIST_STEP];
	uint32_t bytes[LIST_STEP];
	bool again = false;
	unsigned n;

	do {
		n = store_list(st, &from, key, bytes, LIST_STEP);
		for (unsigned i = again && n > 0 && kv_key_equal(&key[0], &from); i < n; i++)
			if (!list_insert(l, &key[i], bytes[i]))
				return;
		if (n > 0)
			from = key[n - 1];
		again = true;
	} while (n == LIST_STEP);
}

static void list_home(struct loop *here, struct msg *m)
{
	struct space_list *l = list_of(m);

	must(container_of(m, struct tour, msg)->home == here && l->filled <= l->key_count);
	l->done(l);
}

static void list_at_shard(struct loop *here, struct msg *m)
{
	struct tour *t = container_of(m, struct tour, msg);

	must(t->space->shard[t->shard].loop == here);
	list_merge(list_of(m), t->space->shard[t->shard].store);
	tour_on(t, list_home);
}

void space_list(struct space *sp, struct loop *here, struct space_list *l)
{
	must(l->key_count > 0 && l->done != NULL);
	l->filled = 0;
	tour_start((struct tour *)(void *)l->lease, sp, here, list_at_shard);
}

static struct space_stat *stat_of(struct msg *m)
{
	return container_of((uint64_t (*)[16])(void *)container_of(m, struct tour, msg),
			    struct space_stat, lease);
}

static void stat_add(struct store_stat *sum, const struct store_stat *one, bool first)
{
	struct store_stat was = *sum;

	if (first) {
		*sum = *one;
		return;
	}
#define STAT(name, is_bytes, text) sum->name = was.name + one->name;
#include "tbl/stat.def"
	sum->index_keys_max = was.index_keys_max + one->index_keys_max;
	sum->index_bytes = was.index_bytes + one->index_bytes;
	if (one->drives > sum->drives)
		sum->drives = one->drives;
	if (one->drives_failed > sum->drives_failed)
		sum->drives_failed = one->drives_failed;
}

static void stat_home(struct loop *here, struct msg *m)
{
	struct space_stat *s = stat_of(m);

	must(container_of(m, struct tour, msg)->home == here);
	must(s->stat.drives_failed <= s->stat.drives);
	s->done(s);
}

static void stat_at_shard(struct loop *here, struct msg *m)
{
	struct tour *t = container_of(m, struct tour, msg);
	struct store_stat one;

	must(t->space->shard[t->shard].loop == here);
	store_stat(t->space->shard[t->shard].store, &one);
	stat_add(&stat_of(m)->stat, &one, t->shard == 0);
	tour_on(t, stat_home);
}

void space_stat(struct space *sp, struct loop *here, struct space_stat *s)
{
	must(s->done != NULL);
	tour_start((struct tour *)(void *)s->lease, sp, here, stat_at_shard);
}

void space_stat_still(struct space *sp, struct store_stat *out)
{
	OBJ_CHECK(sp, SPACE_MAGIC);
	for (unsigned i = 0; i < sp->shard_count; i++) {
		struct store_stat one;

		store_stat(sp->shard[i].store, &one);
		stat_add(out, &one, i == 0);
	}
}
