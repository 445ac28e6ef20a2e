/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixed workload on a store of the rig, several operations in flight, and its model: which
 * versions of a key may be seen after a death. Shared by the tests that kill and cut.
 */
#ifndef KVOF_TESTS_FAULT_STORE_WORK_H
#define KVOF_TESTS_FAULT_STORE_WORK_H

#include "store_rig.h"

#include <errno.h>

#define KEYS 24
#define OPS_IN_FLIGHT 4
#define OPS 160

/* What may be seen of a key: versions are numbers of its puts; 0 is "nothing". */
struct model_key {
	uint32_t version;            /* last one given */
	uint32_t acked;              /* of the last put or delete (0) answered */
	uint32_t flushed;            /* acked at the last answered flush */
	uint32_t pending;            /* version under way; 0: none */
	bool deleting;               /* a delete is under way */
	bool lost;                   /* its drive was given up */
	uint32_t dead_below;         /* versions below it were deleted: they must not be back */
	uint32_t bytes[OPS + 1];
};

struct flight {
	struct rig_op r;
	uint32_t key, version;
	enum { F_NONE, F_PUT, F_DELETE, F_FLUSH } kind;
	bool may_refuse;                     /* an object namespace may be full */
	uint32_t flush_acked[KEYS];          /* at the call of the flush */
};

struct run {
	struct rig g;
	struct prng prng;
	struct model_key key[KEYS];
	struct flight flight[OPS_IN_FLIGHT];
	unsigned done_ops;
	bool may_evict, faults, durable;
	uint64_t hits, misses;
};

static inline uint32_t op_bytes(struct run *run)
{
	static const uint32_t edge[] = {0, 1, 3968, 3969, 4096, 20000, 70000, 100000};

	return edge[prng_below(&run->prng, ARRAY_COUNT(edge))];
}

/* What the end of an operation means for the model. */
static inline void model_take(struct model_key *key, const struct flight *f, bool faults)
{
	struct model_key *k = &key[f->key];

	switch (f->kind) {
	case F_PUT:
		must(f->r.res == 0 || faults || (f->r.res == -ENOSPC && f->may_refuse));
		if (f->r.res == 0) {
			k->acked = f->version;
			k->lost = false;
		}
		k->pending = 0;
		break;
	case F_DELETE:
		must(f->r.res == 0 || f->r.res == -ENOENT || faults);
		k->deleting = false;
		if (f->r.res != 0 && f->r.res != -ENOENT)
			break;
		k->acked = 0;
		k->flushed = 0;
		if (f->r.res == 0 || !faults)
			k->dead_below = k->version + 1;
		break;
	case F_FLUSH:
		must(f->r.res == 0 || faults);
		for (unsigned i = 0; i < KEYS && f->r.res == 0; i++) {
			if (f->flush_acked[i] >= key[i].dead_below && !key[i].lost &&
			    f->flush_acked[i] > key[i].flushed)
				key[i].flushed = f->flush_acked[i];
		}
		break;
	default:
		break;
	}
}

static inline void flight_reap(struct run *run, struct flight *f)
{
	if (f->kind == F_NONE || !f->r.done)
		return;
	run->done_ops++;
	model_take(run->key, f, run->faults);
	if (f->kind == F_PUT)
		store_buf_give(run->g.st, &f->r.buf);
	f->kind = F_NONE;
}

static inline bool key_busy(const struct run *run, uint32_t key)
{
	return run->key[key].pending != 0 || run->key[key].deleting;
}

static inline bool one_is_done(void *arg)
{
	struct run *run = arg;

	for (unsigned i = 0; i < OPS_IN_FLIGHT; i++) {
		if (run->flight[i].kind != F_NONE && run->flight[i].r.done)
			return true;
	}
	return false;
}

static inline void op_start(struct run *run, struct flight *f)
{
	uint32_t key = (uint32_t)prng_below(&run->prng, KEYS);
	uint64_t what = prng_below(&run->prng, 100);
	struct model_key *k = &run->key[key];

	/* Half of the keys are asked for more than they are written: worth to be carried. */
	if (key < KEYS / 2 && prng_below(&run->prng, 3) > 0)
		key += KEYS / 2;
	for (unsigned i = 0; i < 4; i++)
		(void)rig_exists(&run->g, (uint32_t)prng_below(&run->prng, KEYS / 2));
	for (uint32_t tries = 0; key_busy(run, key) && tries < KEYS; tries++)
		key = (key + 1) % KEYS;
	k = &run->key[key];
	f->key = key;
	if (what < 8) {
		f->kind = F_FLUSH;
		memset(&f->r, 0, sizeof(f->r));
		for (unsigned i = 0; i < KEYS; i++)
			f->flush_acked[i] = run->key[i].lost ? 0 : run->key[i].acked;
		f->r.op = (struct store_op){.done = rig_op_done};
		store_flush(run->g.st, &f->r.op);
	} else if (what < 25) {
		f->kind = F_DELETE;
		k->deleting = true;
		memset(&f->r, 0, sizeof(f->r));
		f->r.op = (struct store_op){.key = rig_key(key), .done = rig_op_done};
		store_delete(run->g.st, &f->r.op);
	} else {
		uint32_t bytes = op_bytes(run);

		f->version = ++k->version;
		k->bytes[f->version] = bytes;
		k->pending = f->version;
		f->kind = F_PUT;
		f->may_refuse = !run->g.opts.evict;
		if (!rig_put_start(&run->g, &f->r, key, f->version, bytes, STORE_PUT_ANY))
			f->kind = F_NONE;
	}
}

static inline bool may_be(const struct run *run, const struct model_key *k, uint32_t version,
			  bool kill)
{
	if (version != 0 && version < k->dead_below)
		return false;                        /* deleted, and back */
	if (run->faults)
		return true;                         /* what a fault cost is not known here */
	if (version == k->acked || (k->pending != 0 && version == k->pending))
		return true;
	if (version == 0)
		return run->may_evict || k->deleting || k->lost || (!kill && k->flushed == 0);
	if (kill)
		return false;
	return version >= k->flushed && version < k->acked;
}

/* Which version a key holds now: the one whose bytes come back. */
static inline uint32_t seen(struct run *run, uint32_t key)
{
	struct rig_op r = {.done = false};
	uint32_t version = 0;

	r.op = (struct store_op){.key = rig_key(key), .want_bytes = UINT32_MAX,
				 .done = rig_op_done};
	store_get(run->g.st, &r.op);
	must(rig_wait(&r.done));
	if (r.res != 0) {
		/* Torn ones are found at open, not served as corrupt. */
		must(r.res == -ENOENT || run->faults);
		must(!rig_exists(&run->g, key));
		run->misses++;
		return 0;
	}
	for (uint32_t v = run->key[key].version; v > 0 && version == 0; v--) {
		uint8_t *value = malloc(run->key[key].bytes[v] + 1);

		rig_value(key, v, value, run->key[key].bytes[v]);
		if (r.op.value_bytes == run->key[key].bytes[v] && rig_same(r.op.buf, value))
			version = v;
		free(value);
	}
	must(version != 0);                          /* bytes of no put */
	store_buf_give(run->g.st, &r.op.buf);
	run->hits++;
	return version;
}

#endif
