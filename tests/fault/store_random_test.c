/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations, many in flight, against a map. Each get must deliver a state that the key had
 * at some moment between the call and the answer: the value answered last before the call, one that
 * was put since, or nothing if it was absent or deleted meanwhile. List, exists and the counters
 * agree with the map whenever nothing is in flight. Closed and opened again, or killed, several
 * times.
 */
#include "store_rig.h"

#include <errno.h>

#define KEYS 40
#define FLIGHTS 12
#define VERSIONS 4000

struct key_state {
	uint32_t now;                /* version answered last; 0: absent */
	uint32_t started;            /* last version given to a put */
	bool may_be_absent;          /* a delete is under way */
	unsigned mutators;
};

enum what { W_NONE, W_PUT, W_IF_ABSENT, W_IF_PRESENT, W_DELETE, W_GET, W_FLUSH };

struct flight {
	struct rig_op r;
	enum what what;
	uint32_t key, version;
	uint32_t at_call;            /* get: state of the key when it was called */
	bool absent_ok;
};

struct world {
	struct rig g;
	struct prng prng;
	struct key_state key[KEYS];
	struct flight flight[FLIGHTS];
	uint32_t bytes[KEYS][VERSIONS];
	unsigned counts[W_FLUSH + 1];
};

static uint32_t size_of(struct world *w)
{
	static const uint32_t edge[] = {0, 1, 100, 3967, 3968, 3969, 9000, 40000, 130000};

	return edge[prng_below(&w->prng, ARRAY_COUNT(edge))];
}

static void get_check(struct world *w, struct flight *f)
{
	struct key_state *k = &w->key[f->key];
	bool good = false;

	if (f->r.res == -ENOENT) {
		if (f->at_call != 0 && !f->absent_ok)
			fail_msg("key %u: version %u was there, and is not found", f->key,
				 f->at_call);
		return;
	}
	expect_int(f->r.res, 0);
	for (uint32_t v = k->started; v > 0 && v >= f->at_call && !good; v--) {
		uint8_t *value = malloc(w->bytes[f->key][v] + 1);

		rig_value(f->key, v, value, w->bytes[f->key][v]);
		good = f->r.op.value_bytes == w->bytes[f->key][v] && rig_same(f->r.op.buf, value);
		free(value);
	}
	if (!good)
		fail_msg("key %u: other bytes than of versions %u to %u", f->key, f->at_call,
			 k->started);
	store_buf_give(w->g.st, &f->r.op.buf);
}

static void reap(struct world *w, struct flight *f)
{
	struct key_state *k = &w->key[f->key];

	if (f->what == W_NONE || !f->r.done)
		return;
	w->counts[f->what]++;
	switch (f->what) {
	case W_PUT:
	case W_IF_ABSENT:
	case W_IF_PRESENT:
		k->mutators--;
		expect(f->r.res == 0 || (f->what == W_IF_ABSENT && f->r.res == -EEXIST) ||
		       (f->what == W_IF_PRESENT && f->r.res == -ENOENT));
		if (f->r.res == 0)
			k->now = f->version;
		store_buf_give(w->g.st, &f->r.buf);
		break;
	case W_DELETE:
		k->mutators--;
		expect_int(f->r.res, k->now != 0 ? 0 : -ENOENT);
		k->now = 0;
		k->may_be_absent = false;
		break;
	case W_GET:
		get_check(w, f);
		break;
	default:
		expect_int(f->r.res, 0);
	}
	f->what = W_NONE;
}

static void start(struct world *w, struct flight *f)
{
	uint64_t dice = prng_below(&w->prng, 100);
	struct key_state *k;

	f->key = (uint32_t)prng_below(&w->prng, KEYS);
	k = &w->key[f->key];
	f->what = dice < 30 ? W_PUT : dice < 38 ? W_IF_ABSENT : dice < 44 ? W_IF_PRESENT :
		  dice < 56 ? W_DELETE : dice < 97 ? W_GET : W_FLUSH;
	/* One mutator a key, so that the map knows what was last; order among them is another
	 * test. */
	if (f->what <= W_DELETE && k->mutators > 0)
		f->what = W_GET;
	if (f->what <= W_IF_PRESENT) {
		enum store_put_mode mode = f->what == W_PUT ? STORE_PUT_ANY :
			f->what == W_IF_ABSENT ? STORE_PUT_IF_ABSENT : STORE_PUT_IF_PRESENT;

		f->version = ++k->started;
		must(f->version < VERSIONS);
		w->bytes[f->key][f->version] = size_of(w);
		k->mutators++;
		must(rig_put_start(&w->g, &f->r, f->key, f->version, w->bytes[f->key][f->version],
				   mode));
		return;
	}
	memset(&f->r, 0, sizeof(f->r));
	f->r.op = (struct store_op){.key = rig_key(f->key), .want_bytes = UINT32_MAX,
				    .done = rig_op_done};
	if (f->what == W_GET) {
		f->at_call = k->now;
		f->absent_ok = k->may_be_absent;
		store_get(w->g.st, &f->r.op);
	} else if (f->what == W_DELETE) {
		k->mutators++;
		k->may_be_absent = true;
		/* Gets under way may see it gone from now on. */
		for (unsigned i = 0; i < FLIGHTS; i++) {
			if (w->flight[i].what == W_GET && w->flight[i].key == f->key)
				w->flight[i].absent_ok = true;
		}
		store_delete(w->g.st, &f->r.op);
	} else {
		store_flush(w->g.st, &f->r.op);
	}
}

static bool any_done(void *arg)
{
	const struct world *w = arg;

	for (unsigned i = 0; i < FLIGHTS; i++) {
		if (w->flight[i].what != W_NONE && w->flight[i].r.done)
			return true;
	}
	return false;
}

static void drain(struct world *w)
{
	for (bool busy = true; busy;) {
		busy = false;
		for (unsigned i = 0; i < FLIGHTS; i++) {
			reap(w, &w->flight[i]);
			busy |= w->flight[i].what != W_NONE;
		}
		must(!busy || sim_run_until(any_done, w, RIG_TIME_MAX));
	}
}

static void compare(struct world *w)
{
	struct kv_key from = {.len = 0}, keys[KEYS + 1];
	uint32_t bytes[KEYS + 1];
	unsigned n = store_list(w->g.st, &from, keys, bytes, KEYS + 1), present = 0;
	uint64_t total = 0;

	for (uint32_t i = 0; i < KEYS; i++) {
		struct kv_key key = rig_key(i);
		uint32_t length = 77;
		bool there = store_exists(w->g.st, &key, &length);

		expect_int(there, w->key[i].now != 0);
		if (there)
			expect_int(length, w->bytes[i][w->key[i].now]);
		present += there;
		total += there ? length : 0;
	}
	expect_int(n, present);
	for (unsigned i = 1; i < n; i++)
		expect(kv_key_compare(&keys[i - 1], &keys[i]) < 0);
	expect_int(rig_stat(&w->g).keys, present);
	expect_int(rig_stat(&w->g).value_bytes, total);
	index_check(w->g.st->index);
}

static void run(uint64_t seed, unsigned *counts)
{
	struct world *w = calloc(1, sizeof(*w));

	rig_begin(&w->g, seed, 1 + seed % 4, 48 * MiB);
	w->prng = prng_of(seed);
	expect_int(rig_open(&w->g), 0);
	for (unsigned round = 0; round < 6; round++) {
		for (unsigned step = 0; step < 150; step++) {
			struct flight *f = &w->flight[prng_below(&w->prng, FLIGHTS)];

			if (f->what != W_NONE && !f->r.done)
				(void)sim_run_until(any_done, w, RIG_TIME_MAX);
			for (unsigned i = 0; i < FLIGHTS; i++)
				reap(w, &w->flight[i]);
			if (f->what == W_NONE)
				start(w, f);
		}
		drain(w);
		compare(w);
		if (round % 2 == 0)
			rig_close(&w->g);
		else
			rig_crash(&w->g, true);
		expect_int(rig_open(&w->g), 0);
		compare(w);
	}
	for (unsigned i = 0; i <= W_FLUSH; i++)
		counts[i] += w->counts[i];
	rig_end(&w->g);
	free(w);
}

TEST(random_operations_in_flight_agree_with_a_map_across_restarts)
{
	unsigned counts[W_FLUSH + 1] = {0};

	for (uint64_t seed = 1; seed <= 60; seed++)
		run(seed, counts);
	printf("# put %u, if absent %u, if present %u, delete %u, get %u, flush %u\n",
	       counts[W_PUT], counts[W_IF_ABSENT], counts[W_IF_PRESENT], counts[W_DELETE],
	       counts[W_GET], counts[W_FLUSH]);
	for (unsigned i = W_PUT; i <= W_FLUSH; i++)
		expect(counts[i] > 100);
}
