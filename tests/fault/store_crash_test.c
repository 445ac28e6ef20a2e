/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that dies at every write of a workload, and is opened again (promises P1, P4).
 *
 * The workload: puts of sizes from 0 to 100 KiB, overwrites, conditional puts, deletes and flushes,
 * several in flight, over two small drives, so that segments are sealed, evicted (with values that
 * were asked for carried forward) or cleaned, discarded and used again many times. At the n-th
 * write or flush the process dies: by kill (completed writes stay, those in flight are torn, whole
 * or absent) or by power cut (each sector written since the last flush is kept or lost). Then:
 *  - a get delivers one put of that key whole, or nothing: never other bytes, never a mixture;
 *  - kill: a key whose last operation was answered has that value (or was evicted); one whose
 *    operation was under way has the old or the new one;
 *  - power cut: what was answered before the last answered flush is there, or something newer of
 *    that key;
 *  - a deleted key is not back.
 * The model keeps, for each key, which versions may be seen. Eviction is told apart from loss by
 * the size of the set: the runs `without eviction` hold everything and allow no miss.
 */
#include "store_work.h"

#include <errno.h>

/* How much room the drives have for what is put. */
enum room { ROOMY, EVICTS, CLEANS };

/* Over all lives of a test. */
static uint64_t evicted, cleaned, carried, kept, discarded;

static void counts_add(struct rig *g)
{
	struct store_stat stat = rig_stat(g);

	evicted += stat.evicted_segments;
	cleaned += stat.cleaned_segments;
	carried += stat.carried_values;
	kept += stat.kept_segments;
	discarded += stat.discarded_bytes;
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
			model_take(run->key, f, run->faults);
		else if (f->kind != F_NONE && f->kind != F_PUT && st != NULL)
			flight_reap(run, f);
	}
	return sim_crashed() != NULL;
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

static void run_begin(struct run *run, uint64_t seed, enum room room, bool faults, bool durable)
{
	static const uint64_t bytes[] = {24 * MiB, 1664 * KiB, 1664 * KiB};
	struct sim_opts sim = {.seed = seed};

	memset(run, 0, sizeof(*run));
	rig_begin(&run->g, seed, 2, bytes[room]);
	run->g.opts.evict = room != CLEANS;
	run->g.opts.carry_percent = 50;
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
	run->may_evict = room == EVICTS;
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
	counts_add(&run->g);
	rig_crash(&run->g, kill);
	expect_int(rig_open(&run->g), 0);
	verify(run, n, kill || run->durable);
	memset(run->flight, 0, sizeof(run->flight));
	sim_faults_on(run->faults);
}

/* One life: dies at write n, comes back, is checked, works on, dies again, is checked again. */
static bool life(uint64_t n, bool kill, enum room room, bool faults, bool durable)
{
	struct run *run = malloc(sizeof(*run));
	bool crashed;

	run_begin(run, n, room, faults, durable);
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
	counts_add(&run->g);
	rig_end(&run->g);
	free(run);
	return crashed;
}

static void every_write(bool kill, enum room room, bool durable)
{
	uint64_t n = 1;

	evicted = cleaned = carried = kept = discarded = 0;
	while (life(n, kill, room, false, durable))
		n++;
	printf("# died at %llu writes: %llu segments evicted, %llu stayed, %llu cleaned, %llu "
	       "values carried, %llu KiB discarded\n", (unsigned long long)(n - 1),
	       (unsigned long long)evicted, (unsigned long long)kept, (unsigned long long)cleaned,
	       (unsigned long long)carried, (unsigned long long)discarded / 1024);
	expect(n > 100);
	expect((evicted > 0) == (room == EVICTS) && (kept > 0) == (room == EVICTS));
	expect((cleaned > 0) == (room == CLEANS));
	expect((carried > 0 && discarded > 0) == (room != ROOMY));
}

TEST(a_kill_at_every_write_loses_nothing_that_was_answered)
{
	every_write(true, ROOMY, false);
}

TEST(a_power_cut_at_every_write_loses_nothing_that_was_flushed)
{
	every_write(false, ROOMY, false);
}

TEST(a_kill_at_every_write_with_eviction_brings_nothing_wrong_and_nothing_deleted)
{
	every_write(true, EVICTS, false);
}

TEST(a_power_cut_at_every_write_with_eviction_brings_nothing_wrong_and_nothing_deleted)
{
	every_write(false, EVICTS, false);
}

TEST(a_kill_at_every_write_with_cleaning_loses_nothing_and_brings_nothing_back)
{
	every_write(true, CLEANS, false);
}

TEST(a_power_cut_at_every_write_with_cleaning_loses_nothing_and_brings_nothing_back)
{
	every_write(false, CLEANS, false);
}

TEST(a_power_cut_at_every_write_loses_nothing_that_was_answered_when_answers_are_durable)
{
	every_write(false, ROOMY, true);
}

TEST(deaths_among_faults_of_the_drives_bring_nothing_wrong_and_nothing_deleted)
{
	for (uint64_t n = 1; n <= 250; n++) {
		(void)life(n, n % 2 == 0, n % 3 != 0 ? EVICTS : ROOMY, true, false);
		(void)life(n + 1000, n % 2 == 0, n % 3 == 0 ? EVICTS : ROOMY, true, n % 5 == 0);
		(void)life(n + 2000, n % 2 == 0, CLEANS, true, n % 5 == 0);
	}
}
