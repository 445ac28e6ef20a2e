/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that dies at every write of a workload, and is opened again (promises P1, P4).
 *
 * The workload: puts of sizes from 0 to 100 KiB, overwrites, conditional puts, deletes and flushes,
 * several in flight, over two small drives, so that segments are sealed, evicted and used again
 * many times. At the n-th write or flush the process dies: by kill (completed writes stay, those in
 * flight are torn, whole or absent) or by power cut (each sector written since the last flush is
 * kept or lost). Then:
 *  - a get delivers one put of that key whole, or nothing: never other bytes, never a mixture;
 *  - kill: a key whose last operation was answered has that value (or was evicted); one whose
 *    operation was under way has the old or the new one;
 *  - power cut: what was answered before the last answered flush is there, or something newer of
 *    that key;
 *  - a deleted key is not back.
 * The model keeps, for each key, which versions may be seen. Eviction is told apart from loss by
 * the size of the set: the runs `without eviction` hold everything and allow no miss.
 */
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
	uint32_t dead_below;         /* versions below it were deleted: they must not be back */
	uint32_t bytes[OPS + 1];
};

struct run {
	struct rig g;
	struct prng prng;
	struct model_key key[KEYS];
	struct flight {
		struct rig_op r;
		uint32_t key, version;
		enum { F_NONE, F_PUT, F_DELETE, F_FLUSH } kind;
		uint32_t flush_acked[KEYS];  /* at the call of the flush */
	} flight[OPS_IN_FLIGHT];
	unsigned done_ops;
	bool may_evict, faults, durable;
	uint64_t hits, misses;
};

static uint64_t evicted;             /* segments, over all lives of a test */

static uint32_t op_bytes(struct run *run)
{
	static const uint32_t edge[] = {0, 1, 3968, 3969, 4096, 20000, 70000, 100000};

	return edge[prng_below(&run->prng, ARRAY_COUNT(edge))];
}

static void flight_reap(struct run *run, struct flight *f)
{
	struct model_key *k = &run->key[f->key];

	if (f->kind == F_NONE || !f->r.done)
		return;
	run->done_ops++;
	switch (f->kind) {
	case F_PUT:
		must(f->r.res == 0 || run->faults);
		if (f->r.res == 0)
			k->acked = f->version;
		k->pending = 0;
		store_buf_give(run->g.st, &f->r.buf);
		break;
	case F_DELETE:
		must(f->r.res == 0 || f->r.res == -ENOENT || run->faults);
		k->deleting = false;
		if (f->r.res != 0 && f->r.res != -ENOENT)
			break;
		k->acked = 0;
		k->flushed = 0;
		if (f->r.res == 0 || !run->faults)
			k->dead_below = k->version + 1;
		break;
	case F_FLUSH:
		must(f->r.res == 0 || run->faults);
		for (unsigned i = 0; i < KEYS && f->r.res == 0; i++) {
			if (f->flush_acked[i] >= run->key[i].dead_below &&
			    f->flush_acked[i] > run->key[i].flushed)
				run->key[i].flushed = f->flush_acked[i];
		}
		break;
	default:
		break;
	}
	f->kind = F_NONE;
}

static bool key_busy(const struct run *run, uint32_t key)
{
	return run->key[key].pending != 0 || run->key[key].deleting;
}

static bool one_is_done(void *arg)
{
	struct run *run = arg;

	for (unsigned i = 0; i < OPS_IN_FLIGHT; i++) {
		if (run->flight[i].kind != F_NONE && run->flight[i].r.done)
			return true;
	}
	return false;
}

static void op_start(struct run *run, struct flight *f)
{
	uint32_t key = (uint32_t)prng_below(&run->prng, KEYS);
	uint64_t what = prng_below(&run->prng, 100);
	struct model_key *k = &run->key[key];

	for (uint32_t tries = 0; key_busy(run, key) && tries < KEYS; tries++)
		key = (key + 1) % KEYS;
	k = &run->key[key];
	f->key = key;
	if (what < 8) {
		f->kind = F_FLUSH;
		memset(&f->r, 0, sizeof(f->r));
		for (unsigned i = 0; i < KEYS; i++)
			f->flush_acked[i] = run->key[i].acked;
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
		if (!rig_put_start(&run->g, &f->r, key, f->version, bytes, STORE_PUT_ANY))
			f->kind = F_NONE;
	}
}

/* Runs until the crash (true) or the end of the workload (false). */
static bool work(struct run *run)
{
	for (unsigned started = 0; sim_crashed() == NULL;) {
		bool any = false;

		for (unsigned i = 0; i < OPS_IN_FLIGHT; i++)
			flight_reap(run, &run->flight[i]);
		for (unsigned i = 0; i < OPS_IN_FLIGHT && sim_crashed() == NULL; i++) {
			if (run->flight[i].kind == F_NONE && started < OPS) {
				op_start(run, &run->flight[i]);
				started++;
			}
			any |= run->flight[i].kind != F_NONE;
		}
		if (!any)
			return sim_crashed() != NULL;
		if (!sim_run_until(one_is_done, run, RIG_TIME_MAX))
			break;
	}
	/* Answers that came in the same instant as the crash count. */
	for (unsigned i = 0; i < OPS_IN_FLIGHT; i++) {
		struct flight *f = &run->flight[i];
		struct store *st = run->g.st;

		if (f->kind == F_PUT && f->r.done)
			run->key[f->key].acked = f->version, run->key[f->key].pending = 0;
		else if (f->kind != F_NONE && f->kind != F_PUT && st != NULL)
			flight_reap(run, f);
	}
	return sim_crashed() != NULL;
}

static bool may_be(const struct run *run, const struct model_key *k, uint32_t version, bool kill)
{
	if (version != 0 && version < k->dead_below)
		return false;                        /* deleted, and back */
	if (run->faults)
		return true;                         /* what a fault cost is not known here */
	if (version == k->acked || (k->pending != 0 && version == k->pending))
		return true;
	if (version == 0)
		return run->may_evict || k->deleting || (!kill && k->flushed == 0);
	if (kill)
		return false;
	return version >= k->flushed && version < k->acked;
}

/* Which version a key holds now: the one whose bytes come back. */
static uint32_t seen(struct run *run, uint32_t key)
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

/* Zero-byte values of two versions look the same: the model takes the one that is allowed. */
static void verify(struct run *run, uint64_t n, bool kill)
{
	for (uint32_t i = 0; i < KEYS; i++) {
		struct model_key *k = &run->key[i];
		uint32_t version = seen(run, i);
		bool good = may_be(run, k, version, kill);

		for (uint32_t v = 1; v <= k->version && !good && version != 0; v++)
			good = k->bytes[v] == 0 && k->bytes[version] == 0 &&
			       may_be(run, k, v, kill);
		if (!good)
			fail_msg("write %llu (%s): key %u shows version %u; acked %u pending %u "
				 "flushed %u deleted below %u%s", (unsigned long long)n,
				 kill ? "kill" : "power cut", i, version, k->acked, k->pending,
				 k->flushed,
				 k->dead_below, k->deleting ? " deleting" : "");
		k->acked = version;
		k->pending = 0;
		k->deleting = false;
		k->flushed = version;                /* an open makes durable what it found */
	}
}

static const enum sim_fault fault_kinds[] = {SIM_DISK_READ_EIO, SIM_DISK_READ_BAD,
					     SIM_DISK_READ_MISDIRECT, SIM_DISK_WRITE_EIO,
					     SIM_DISK_ENOSPC, SIM_DISK_FLUSH_EIO, SIM_DISK_SLOW};

static void run_begin(struct run *run, uint64_t seed, bool may_evict, bool faults, bool durable)
{
	struct sim_opts sim = {.seed = seed};

	memset(run, 0, sizeof(*run));
	rig_begin(&run->g, seed, 2, may_evict ? 1280 * KiB : 24 * MiB);
	if (faults) {
		sim_end();
		for (unsigned i = 0; i < ARRAY_COUNT(fault_kinds); i++)
			sim.fault_per_million[fault_kinds[i]] = 20000;
		expect_int(sim_begin(&sim), 0);
		sim_faults_on(false);
	}
	/* Small segments: sealed often, with much of them not flushed yet where the drive is
	 * large. */
	run->g.opts.value_bytes_max = 100000;
	run->g.opts.segment_bytes = 192 * 1024;
	run->g.opts.buffer_bytes = 1 << 20;
	run->g.opts.index_keys_max = 256;
	run->may_evict = may_evict;
	run->faults = faults;
	run->durable = run->g.opts.ack_durable = durable;
	run->prng = prng_of(seed);
	expect_int(rig_open(&run->g), 0);
	sim_faults_on(faults);
}

/* The process dies and comes back; the drives are well while it looks around. */
static void die_and_check(struct run *run, uint64_t n, bool kill)
{
	sim_faults_on(false);
	evicted += rig_stat(&run->g).evicted_segments;
	rig_crash(&run->g, kill);
	expect_int(rig_open(&run->g), 0);
	verify(run, n, kill || run->durable);
	memset(run->flight, 0, sizeof(run->flight));
	sim_faults_on(run->faults);
}

/* One life: dies at write n, comes back, is checked, works on, dies again, is checked again. */
static bool life(uint64_t n, bool kill, bool may_evict, bool faults, bool durable)
{
	struct run *run = malloc(sizeof(*run));
	bool crashed;

	run_begin(run, n, may_evict, faults, durable);
	sim_crash_at_write(n);
	crashed = work(run);
	if (crashed) {
		die_and_check(run, n, kill);
		sim_crash_at_write(1 + n % 7 * 20);
		if (work(run))
			die_and_check(run, n, !kill);
	}
	sim_crash_at_write(0);
	sim_faults_on(false);
	for (unsigned i = 0; i < OPS_IN_FLIGHT; i++)
		flight_reap(run, &run->flight[i]);
	evicted += rig_stat(&run->g).evicted_segments;
	rig_end(&run->g);
	free(run);
	return crashed;
}

static void every_write(bool kill, bool may_evict, bool durable)
{
	uint64_t n = 1;

	evicted = 0;
	while (life(n, kill, may_evict, false, durable))
		n++;
	printf("# died at %llu writes, %llu segments evicted\n", (unsigned long long)(n - 1),
	       (unsigned long long)evicted);
	expect(n > 100);
	expect((evicted > 0) == may_evict);
}

TEST(a_kill_at_every_write_loses_nothing_that_was_answered)
{
	every_write(true, false, false);
}

TEST(a_power_cut_at_every_write_loses_nothing_that_was_flushed)
{
	every_write(false, false, false);
}

TEST(a_kill_at_every_write_with_eviction_brings_nothing_wrong_and_nothing_deleted)
{
	every_write(true, true, false);
}

TEST(a_power_cut_at_every_write_with_eviction_brings_nothing_wrong_and_nothing_deleted)
{
	every_write(false, true, false);
}

TEST(a_power_cut_at_every_write_loses_nothing_that_was_answered_when_answers_are_durable)
{
	every_write(false, false, true);
}

TEST(deaths_among_faults_of_the_drives_bring_nothing_wrong_and_nothing_deleted)
{
	for (uint64_t n = 1; n <= 250; n++) {
		(void)life(n, n % 2 == 0, n % 3 != 0, true, false);
		(void)life(n + 1000, n % 2 == 0, n % 3 == 0, true, n % 5 == 0);
	}
}
