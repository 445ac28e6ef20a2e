/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives that fail: the n-th read, write or flush of a workload, for every n until none is hit; all
 * kinds at random; a drive that is gone or hangs. Never wrong bytes, nothing deleted comes back,
 * every call ends.
 */
#include "store_rig.h"

#include <errno.h>

#define KEYS 12

/* Versions of a key: dead_below as in a delete that was answered. */
struct key_model {
	uint32_t version, dead_below, acked;
	bool sure;                   /* nothing happened that may have cost it */
};

static uint32_t bytes_of(uint32_t key, uint32_t version)
{
	static const uint32_t sizes[] = {10, 4000, 30000, 100000, 0};

	return sizes[(key * 7 + version) % ARRAY_COUNT(sizes)];
}

/* The version that a get shows; 0: nothing. Wrong bytes fail the test. */
static uint32_t seen(struct rig *g, uint32_t key, const struct key_model *k, int *res)
{
	struct rig_op r = {.done = false};
	uint32_t version = 0;

	r.op = (struct store_op){.key = rig_key(key), .want_bytes = UINT32_MAX,
				 .done = rig_op_done};
	store_get(g->st, &r.op);
	must(rig_wait(&r.done));
	*res = r.res;
	if (r.res != 0) {
		must(r.res == -ENOENT || r.res == -EBADMSG || r.res == -EIO);
		return 0;
	}
	for (uint32_t v = k->version; v > 0 && version == 0; v--) {
		uint32_t bytes = bytes_of(key, v);
		uint8_t *value = malloc(bytes + 1);

		rig_value(key, v, value, bytes);
		if (r.op.value_bytes == bytes && rig_same(r.op.buf, value))
			version = v;
		free(value);
	}
	must(version != 0);
	store_buf_give(g->st, &r.op.buf);
	return version;
}

static int put_next(struct rig *g, uint32_t key, struct key_model *k)
{
	int rc;

	k->version++;
	rc = rig_put(g, key, k->version, bytes_of(key, k->version));
	if (rc == 0)
		k->acked = k->version;
	return rc;
}

/* Each get that has ended is one of the three. */
static void check_counts(struct rig *g)
{
	struct store_stat stat = rig_stat(g);

	expect_int(stat.gets, stat.hits + stat.misses + stat.get_errors);
}

static void check_all(struct rig *g, struct key_model *k, bool misses_allowed)
{
	for (uint32_t i = 0; i < KEYS; i++) {
		int res;
		uint32_t v = seen(g, i, &k[i], &res);

		if (v == 0 && (misses_allowed || k[i].acked == 0))
			continue;
		/* Zero-byte values look alike. */
		if (v != k[i].acked && bytes_of(i, v) + bytes_of(i, k[i].acked) != 0)
			fail_msg("key %u: version %u seen, %u acked (%d)", i, v, k[i].acked, res);
	}
	check_counts(g);
}

/* Puts, overwrites, deletes, gets, a flush; closed and opened again; all in a fixed order. */
static void workload(struct rig *g, struct key_model *k, enum sim_fault kind)
{
	bool lies = kind == SIM_DISK_WRITE_LOST || kind == SIM_DISK_WRITE_MISDIRECT ||
		    kind == SIM_DISK_FLUSH_EIO;

	for (unsigned round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < KEYS; i++)
			expect_int(put_next(g, i, &k[i]), 0);
		for (uint32_t i = round; i < KEYS; i += 4) {
			int rc = rig_delete(g, i);

			if (kind == SIM_DISK_FLUSH_EIO && rc == -EIO)
				rc = rig_delete(g, i);
			expect(rc == 0 || (lies && rc == -ENOENT));
			k[i].dead_below = k[i].version + 1;
			k[i].acked = 0;
		}
		check_all(g, k, lies);
		if (kind != SIM_DISK_FLUSH_EIO)
			expect_int(rig_flush(g), 0);
		else
			(void)rig_flush(g);
	}
	rig_close(g);
	if (rig_open(g) != 0) {
		/* An open that can't flush is refused, and changes nothing. */
		expect(kind == SIM_DISK_FLUSH_EIO);
		expect_int(rig_open(g), 0);
	}
	for (uint32_t i = 0; i < KEYS; i++) {
		int res;
		uint32_t v = seen(g, i, &k[i], &res);

		if (v != 0 && v < k[i].dead_below && bytes_of(i, v) != 0)
			fail_msg("key %u: version %u is back after its delete", i, v);
	}
	check_all(g, k, lies);
}

static uint64_t sweep(enum sim_fault kind)
{
	for (uint64_t n = 1;; n++) {
		struct rig g;
		struct key_model k[KEYS] = {{0}};
		uint64_t hits;

		rig_begin(&g, 42, 2, 6 * MiB);
		expect_int(rig_open(&g), 0);
		sim_fault_at(kind, n);
		workload(&g, k, kind);
		hits = sim_fault_hits(kind);
		rig_end(&g);
		if (hits == 0) {
			printf("# %s: %llu\n", sim_fault_name(kind), (unsigned long long)(n - 1));
			return n - 1;
		}
	}
}

TEST(any_single_read_that_fails_or_lies_is_read_again)
{
	expect(sweep(SIM_DISK_READ_EIO) > 50);
	expect(sweep(SIM_DISK_READ_BAD) > 50);
	expect(sweep(SIM_DISK_READ_MISDIRECT) > 50);
}

TEST(any_single_write_that_fails_is_made_up_for_elsewhere)
{
	expect(sweep(SIM_DISK_WRITE_EIO) > 50);
	expect(sweep(SIM_DISK_ENOSPC) > 50);
}

TEST(any_single_write_that_is_lost_or_misdirected_costs_entries_and_never_serves_wrong_bytes)
{
	expect(sweep(SIM_DISK_WRITE_LOST) > 50);
	expect(sweep(SIM_DISK_WRITE_MISDIRECT) > 50);
}

TEST(any_single_flush_that_fails_is_told_and_serves_nothing_wrong)
{
	expect(sweep(SIM_DISK_FLUSH_EIO) > 10);
}

TEST(any_single_slow_answer_changes_nothing)
{
	expect(sweep(SIM_DISK_SLOW) > 100);
}

/* Does the record of this key lie whole on the medium, though its write failed? */
static bool lies_whole(const char *path, uint32_t key, uint32_t bytes)
{
	uint64_t size;
	const uint8_t *medium = sim_disk_bytes(path, &size);
	struct kv_key k = rig_key(key);
	uint8_t *value = malloc(bytes);
	bool whole = false;

	rig_value(key, 1, value, bytes);
	for (uint64_t at = FMT_FIRST_SEGMENT_BLOCK * 4096; at + bytes < size && !whole; at += 4096)
		whole = memcmp(medium + at, "KVOFRECD", 8) == 0 &&
			memcmp(medium + at + 16, k.byte, 16) == 0 &&
			memcmp(medium + at + sizeof(struct fmt_record), value, bytes) == 0;
	free(value);
	return whole;
}

static unsigned drive_of(struct rig *g, uint32_t key)
{
	struct kv_key k = rig_key(key);

	return index_place(g->st->index, index_find(g->st->index, &k)).drive;
}

/* The write of key 0 fails, but lands; the value goes to another drive; the process is killed
 * before the segment of the failed write is sealed. True: it happened so. */
static bool landed_and_killed(struct rig *g, uint64_t seed)
{
	rig_begin(g, seed, 2, 6 * MiB);
	expect_int(rig_open(g), 0);
	for (uint32_t i = 1; i <= 600; i++)
		expect_int(rig_put(g, i, 1, 10000), 0);
	sim_fault_at(SIM_DISK_WRITE_EIO, 1);
	expect_int(rig_put(g, 0, 1, 10000), 0);
	if (!lies_whole(drive_of(g, 0) == 0 ? "drive1" : "drive0", 0, 10000))
		return false;
	rig_crash(g, true);
	expect_int(rig_open(g), 0);
	return true;
}

TEST(a_write_that_failed_and_landed_all_the_same_does_not_come_back_after_a_delete)
{
	unsigned done = 0;

	for (uint64_t seed = 1; seed < 100; seed++) {
		struct rig g;
		struct prng p = prng_of(seed);
		unsigned drive;

		if (landed_and_killed(&g, seed)) {
			expect_int(rig_get(&g, 0, 1, 10000), 0);
			drive = drive_of(&g, 0);
			expect_int(rig_delete(&g, 0), 0);
			/* Overwrites stay on their drive: it gets rid of the tombstone. */
			for (uint32_t i = 0; i < 3000; i++) {
				uint32_t key = 1 + (uint32_t)prng_below(&p, 600);

				if (rig_exists(&g, key) && drive_of(&g, key) == drive)
					expect_int(rig_put(&g, key, i, 10000), 0);
			}
			expect(g.st->count.evicted_segments > 10);
			rig_crash(&g, true);
			expect_int(rig_open(&g), 0);
			expect_int(rig_get(&g, 0, 1, 10000), -ENOENT);
			done++;
		}
		rig_end(&g);
	}
	printf("# %u of 99 failed writes had landed\n", done);
	expect(done > 3);
}

/* --- all kinds at random, with crashes -------------------- */

static uint64_t hits_of[SIM_FAULT_COUNT];

static void storm(uint64_t seed, bool lies)
{
	struct rig g;
	struct prng p = prng_of(seed);
	struct key_model k[KEYS] = {{0}};
	struct sim_opts sim = {.seed = seed};
	static const enum sim_fault honest[] = {SIM_DISK_READ_EIO, SIM_DISK_READ_BAD,
						SIM_DISK_READ_MISDIRECT, SIM_DISK_WRITE_EIO,
						SIM_DISK_ENOSPC, SIM_DISK_FLUSH_EIO, SIM_DISK_SLOW};

	rig_begin(&g, seed, 3, 6 * MiB);
	sim_end();
	for (unsigned i = 0; i < ARRAY_COUNT(honest); i++)
		sim.fault_per_million[honest[i]] = 30000;
	if (lies)
		sim.fault_per_million[SIM_DISK_WRITE_LOST] =
			sim.fault_per_million[SIM_DISK_WRITE_MISDIRECT] = 30000;
	expect_int(sim_begin(&sim), 0);
	sim_faults_on(false);
	expect_int(rig_open(&g), 0);
	for (unsigned step = 0; step < 200; step++) {
		uint32_t key = (uint32_t)prng_below(&p, KEYS);
		uint64_t what = prng_below(&p, 100);
		int res;

		sim_faults_on(true);
		if (what < 45) {
			(void)put_next(&g, key, &k[key]);
		} else if (what < 60) {
			res = rig_delete(&g, key);
			if (res == 0)
				k[key].dead_below = k[key].version + 1;
		} else if (what < 90) {
			uint32_t v = seen(&g, key, &k[key], &res);

			if (v != 0 && v < k[key].dead_below && bytes_of(key, v) != 0 && !lies)
				fail_msg("seed %llu step %u: key %u version %u is back",
					 (unsigned long long)seed, step, key, v);
		} else if (what < 94) {
			(void)rig_flush(&g);
		} else {
			sim_faults_on(false);
			if (what == 94)
				rig_close(&g);
			else
				rig_crash(&g, what < 98);
			if (rig_open(&g) != 0) {
				/* Lost and misdirected writes may have hit both superblocks. */
				expect(lies);
				break;
			}
		}
	}
	sim_faults_on(false);
	for (unsigned i = 0; i < SIM_FAULT_COUNT; i++)
		hits_of[i] += sim_fault_hits(i);
	rig_end(&g);
}

TEST(a_storm_of_all_faults_with_crashes_never_serves_wrong_bytes_nor_anything_deleted)
{
	memset(hits_of, 0, sizeof(hits_of));
	for (uint64_t seed = 1; seed <= 60; seed++)
		storm(seed, false);
	for (uint64_t seed = 1001; seed <= 1040; seed++)
		storm(seed, true);
	for (unsigned i = 0; i < SIM_NET_RESET; i++) {
		printf("# %s: %llu\n", sim_fault_name(i), (unsigned long long)hits_of[i]);
		if (i != SIM_DISK_WRITE_TORN)
			expect(hits_of[i] > 10);
	}
}

/* --- a drive that is gone or hangs -------------------- */

TEST(a_drive_that_is_gone_costs_its_own_values_and_the_store_goes_on)
{
	struct rig g;
	unsigned drive[60];

	rig_begin(&g, 5, 3, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 60; i++) {
		expect_int(rig_put(&g, i, 1, 20000), 0);
		drive[i] = drive_of(&g, i);
	}
	sim_disk_mode("drive1", SIM_DISK_GONE);
	for (uint32_t i = 100; i < 160; i++)
		expect_int(rig_put(&g, i, 1, 20000), 0);
	for (uint32_t i = 0; i < 60; i++) {
		int rc = rig_get(&g, i, 1, 20000);

		expect(drive[i] == 1 ? rc == -ENOENT || rc == -EIO : rc == 0);
	}
	for (uint32_t i = 100; i < 160; i++)
		expect_int(rig_get(&g, i, 1, 20000), 0);
	expect_int(rig_stat(&g).drives_failed, 1);
	for (uint32_t i = 0; i < 60; i++)
		expect_int(rig_delete(&g, i), drive[i] == 1 ? -ENOENT : 0);
	/* It comes back with all its old values: none of them may be seen. */
	rig_crash(&g, true);
	sim_disk_mode("drive1", SIM_DISK_WELL);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 60; i++)
		expect_int(rig_get(&g, i, 1, 20000), -ENOENT);
	for (uint32_t i = 100; i < 160; i++)
		expect_int(rig_get(&g, i, 1, 20000), 0);
	rig_end(&g);
}

static bool erasing(void *arg)
{
	struct rig *g = arg;

	return g->st->drive[0].evict_state == EVICT_ERASE && g->st->drive[0].evict_step == 0;
}

/* Random overwrites of what is on one drive: it evicts, the other has nothing to do. */
static void overwrite_on(struct rig *g, unsigned drive, unsigned count)
{
	struct prng p = prng_of(count);

	for (uint32_t i = 0; i < count; i++) {
		uint32_t key = (uint32_t)prng_below(&p, 2000);

		if (rig_exists(g, key) && drive_of(g, key) == drive)
			expect_int(rig_put(g, key, i, 10000), 0);
	}
}

/* Fills the store until drive 0 is in the middle of an eviction, and stops it there for ever.
 * Return: keys of its victim. */
static unsigned stopped_in_eviction(struct rig *g, uint32_t *keys, unsigned max)
{
	static struct index_place was[2000];
	static struct rig_op r;              /* still under way when it stops */
	uint32_t key = 0;
	unsigned n = 0;

	for (; key < 1500 && g->st->count.evicted_segments < 10; key++)
		expect_int(rig_put(g, key, 1, 10000), 0);
	for (uint32_t k = 0; k < key; k++) {
		struct kv_key name = rig_key(k);

		was[k] = (struct index_place){.drive = 9};
		if (rig_exists(g, k))
			was[k] = index_place(g->st->index, index_find(g->st->index, &name));
	}
	for (uint32_t more = key; !erasing(g) && more < 2000; more++) {
		expect(rig_put_start(g, &r, more, 1, 10000, STORE_PUT_ANY));
		while (!r.done && !erasing(g))
			expect(sim_step());
	}
	expect(erasing(g));
	sim_disk_mode("drive0", SIM_DISK_HANGS);
	for (uint32_t k = 0; k < key && n < max; k++) {
		struct drive *d = &g->st->drive[0];

		if (was[k].drive == 0 && segment_of_block(d, was[k].block) == d->evict_segment)
			keys[n++] = k;
	}
	return n;
}

TEST(what_an_eviction_cut_short_left_behind_does_not_come_back_after_a_delete)
{
	struct rig g;
	static struct rig_op r[8];
	uint32_t key[8];
	bool deleted[8] = {false};
	uint64_t began;

	rig_begin(&g, 9, 2, 6 * MiB);
	expect_int(rig_open(&g), 0);
	expect_int(stopped_in_eviction(&g, key, 8), 8);
	for (unsigned i = 0; i < 8; i++)
		expect(rig_put_start(&g, &r[i], key[i], 2, 10000, STORE_PUT_ANY));
	began = sim_now_ns();
	while (sim_now_ns() - began < NS_PER_S && sim_step())
		;
	expect(erasing(&g));
	/* It hangs again at once: what is deleted on the other drive is all that is deleted. */
	rig_crash(&g, true);
	sim_disk_mode("drive0", SIM_DISK_WELL);
	expect_int(rig_open(&g), 0);
	sim_disk_mode("drive0", SIM_DISK_HANGS);
	for (unsigned i = 0; i < 8; i++) {
		if (!rig_exists(&g, key[i]))
			deleted[i] = rig_delete(&g, key[i]) == -ENOENT;
		else if (drive_of(&g, key[i]) == 1)
			deleted[i] = rig_delete(&g, key[i]) == 0;
	}
	overwrite_on(&g, 1, 20000);
	expect(g.st->count.evicted_segments > 20 && !g.st->drive[0].failed);
	rig_crash(&g, true);
	sim_disk_mode("drive0", SIM_DISK_WELL);
	expect_int(rig_open(&g), 0);
	for (unsigned i = 0; i < 8; i++) {
		if (deleted[i] && rig_exists(&g, key[i]))
			fail_msg("key %u is back: %d", key[i], rig_get(&g, key[i], 1, 10000));
	}
	rig_end(&g);
}

TEST(every_get_counts_as_a_hit_a_miss_or_an_error)
{
	static const uint32_t bytes[] = {10, 20000, 500000};
	static const enum sim_disk_mode modes[] = {SIM_DISK_GONE, SIM_DISK_HANGS};

	for (unsigned i = 0; i < ARRAY_COUNT(bytes) * ARRAY_COUNT(modes); i++) {
		struct rig g;
		unsigned failed = 0;

		rig_begin(&g, 20 + i, 2, 64 * MiB);
		expect_int(rig_open(&g), 0);
		for (uint32_t k = 0; k < 8; k++)
			expect_int(rig_put(&g, k, 1, bytes[i / 2]), 0);
		expect_int(rig_flush(&g), 0);
		expect_int(rig_get(&g, 3, 1, bytes[i / 2]), 0);
		sim_disk_mode("drive1", modes[i % 2]);
		for (uint32_t k = 0; k < 12; k++) {
			int rc = rig_get(&g, k, 1, bytes[i / 2]);

			expect(rc == 0 || rc == -ENOENT || rc == -EIO);
			failed += rc == -EIO;
		}
		expect(failed > 0);
		expect_int(rig_stat(&g).gets, 13);
		expect_int(rig_stat(&g).get_errors, failed);
		check_counts(&g);
		sim_disk_mode("drive1", SIM_DISK_WELL);
		rig_end(&g);
	}
}

TEST(a_drive_told_to_be_left_out_is_left_out_at_once)
{
	struct rig g;

	rig_begin(&g, 6, 2, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig_put(&g, i, 1, 20000), 0);
	store_drive_retire(g.st, 0);
	while (rig_stat(&g).drives_failed == 0)
		expect(sim_step());
	expect(rig_stat(&g).keys > 0 && rig_stat(&g).keys < 20);
	expect_int(rig_put(&g, 50, 1, 20000), 0);
	expect_int(rig_get(&g, 50, 1, 20000), 0);
	store_drive_retire(g.st, 1);
	while (rig_stat(&g).drives_failed < 2)
		expect(sim_step());
	expect_int(rig_put(&g, 51, 1, 10), -EIO);
	expect_int(rig_get(&g, 50, 1, 20000), -ENOENT);
	expect_int(rig_delete(&g, 50), -ENOENT);
	rig_end(&g);
}

static bool any_done(void *arg)
{
	const struct rig_op *r = arg;

	for (unsigned i = 0; i < 40; i++) {
		if (!r[i].done)
			return false;
	}
	return true;
}

TEST(a_drive_that_hangs_holds_up_only_its_own_operations_and_those_not_for_ever)
{
	struct rig g;
	struct rig_op r[40];
	unsigned drive[40];
	uint64_t began;
	bool closed = false;
	struct store *kept;

	rig_begin(&g, 7, 2, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 40; i++) {
		expect_int(rig_put(&g, i, 1, 20000), 0);
		drive[i] = drive_of(&g, i);
	}
	sim_disk_mode("drive0", SIM_DISK_HANGS);
	memset(r, 0, sizeof(r));
	for (uint32_t i = 0; i < 40; i++) {
		r[i].op = (struct store_op){.key = rig_key(i), .want_bytes = UINT32_MAX,
					    .done = rig_op_done};
		store_get(g.st, &r[i].op);
	}
	began = sim_now_ns();
	while (sim_now_ns() - began < NS_PER_S && sim_step())
		;
	for (uint32_t i = 0; i < 40; i++)
		expect_int(r[i].done, drive[i] == 1);
	expect(sim_run_until(any_done, r, 30 * NS_PER_S));
	expect(sim_now_ns() - began < 11 * NS_PER_S);
	for (uint32_t i = 0; i < 40; i++) {
		expect_int(r[i].res, drive[i] == 1 ? 0 : -EIO);
		if (r[i].res == 0)
			store_buf_give(g.st, &r[i].op.buf);
	}
	for (uint32_t i = 100; i < 120; i++)
		expect_int(rig_put(&g, i, 1, 20000), 0);
	expect_int(rig_stat(&g).drives_failed, 1);
	began = sim_now_ns();
	kept = g.st;                                 /* left to the drive that never answered */
	store_close(&g.st, rig_closed, &closed);
	expect(rig_wait(&closed));
	expect(sim_now_ns() - began < 5 * NS_PER_S);
	sim_crash(&g.loop, true);
	store_forget(&kept);
	sim_end();
}

#define STALLED 600u                 /* more than a drive takes at once */

static bool all_done(void *arg)
{
	const struct rig_op *r = arg;

	for (unsigned i = 0; i < STALLED; i++) {
		if (!r[i].done)
			return false;
	}
	return true;
}

TEST(a_drive_that_stalls_ends_its_gets_in_time_and_loses_nothing_when_it_goes_on)
{
	struct rig g;
	static struct rig_op r[STALLED];
	uint64_t began;

	rig_begin(&g, 17, 2, 16 * MiB);
	g.opts.buffer_bytes = 32 << 20;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 40; i++)
		expect_int(rig_put(&g, i, 1, 20000), 0);
	for (unsigned life = 0; life < 3; life++) {
		sim_disk_mode("drive0", SIM_DISK_HANGS);
		memset(r, 0, sizeof(r));
		began = sim_now_ns();
		for (uint32_t i = 0; i < STALLED; i++) {
			r[i].op = (struct store_op){.key = rig_key(i % 40),
						    .want_bytes = UINT32_MAX,
						    .done = rig_op_done};
			store_get(g.st, &r[i].op);
		}
		expect(sim_run_until(all_done, r, 30 * NS_PER_S));
		expect(sim_now_ns() - began < STORE_STALL_NS + 200 * NS_PER_MS);
		for (uint32_t i = 0; i < STALLED; i++) {
			expect_int(r[i].res, drive_of(&g, i % 40) == 1 ? 0 : -EIO);
			expect((r[i].op.buf != NULL) == (r[i].res == 0));
			if (r[i].res == 0)
				store_buf_give(g.st, &r[i].op.buf);
		}
		sim_disk_mode("drive0", SIM_DISK_WELL);
		for (uint32_t i = 0; i < 40; i++)
			expect_int(rig_get(&g, i, 1, 20000), 0);
		expect_int(rig_stat(&g).drives_failed, 0);
		for (uint32_t i = 0; i < g.st->drive[0].segment_count; i++)
			expect_int(g.st->drive[0].segment[i].reader_count, 0);
	}
	rig_end(&g);
}

TEST(puts_under_way_on_a_drive_that_hangs_end_on_another)
{
	struct rig g;
	struct rig_op r[40];

	rig_begin(&g, 8, 2, 16 * MiB);
	expect_int(rig_open(&g), 0);
	sim_disk_mode("drive0", SIM_DISK_HANGS);
	for (uint32_t i = 0; i < 40; i++)
		expect(rig_put_start(&g, &r[i], i, 1, 20000, STORE_PUT_ANY));
	expect(sim_run_until(any_done, r, 30 * NS_PER_S));
	for (uint32_t i = 0; i < 40; i++) {
		expect_int(r[i].res, 0);
		store_buf_give(g.st, &r[i].buf);
		expect_int(rig_get(&g, i, 1, 20000), 0);
	}
	/* What the drive never answered comes late: nothing of it is taken for anything. */
	sim_disk_mode("drive0", SIM_DISK_WELL);
	while (sim_step())
		;
	for (uint32_t i = 0; i < 40; i++)
		expect_int(rig_get(&g, i, 1, 20000), 0);
	rig_end(&g);
}
