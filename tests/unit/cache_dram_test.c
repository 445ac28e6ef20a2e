/* SPDX-License-Identifier: Apache-2.0 */
/* The DRAM tier alone: copies part by part, pins, leases, what moves up; on the seeded loop. */
#include "kt.h"

#include <errno.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/prng.h"
#include "cache/dram.h"
#include "cache/policy.h"
#include "loop/sim.h"

#define CUT 4032u
#define BLOCK_MAX (100 * KiB)

static struct loop *loop;
static struct tier *dram;
static struct dram_stat stat;
static unsigned came, went;

/* An operation of the test, with its buffer. */
struct job {
	struct tier_op op;
	struct iovec iov[3];
	uint8_t *at;
	bool done;
};

static void job_done(struct tier_op *op)
{
	struct job *j = container_of(op, struct job, op);

	expect(!j->done);
	j->done = true;
}

static void changed(void *arg, const struct kvof_id *id, bool there)
{
	came += there;
	went += !there;
}

static const struct dram_events events = {.changed = changed};

static struct kvof_id id_of(uint64_t n)
{
	struct kvof_id id;

	hash_sha256_once(&n, sizeof(n), id.byte);
	return id;
}

static void (*call)(void *arg);
static void *call_arg;

static void call_run(struct loop *here, struct msg *m)
{
	call(call_arg);
	call = NULL;
}

static bool call_over(void *arg)
{
	return call == NULL;
}

/* On the loop's own thread. */
static void here(void (*what)(void *arg), void *arg)
{
	static struct msg m;

	m.run = call_run;
	call = what;
	call_arg = arg;
	loop_post(loop, &m);
	expect(sim_run_until(call_over, NULL, NS_PER_S));
}

static const char *open_policy;
static uint64_t open_bytes;

static void open_run(void *arg)
{
	struct dram_opts opts = {.bytes = open_bytes, .cut_bytes = CUT, .policy = open_policy,
				 .events = &events};

	expect_int(dram_open(loop, &opts, &dram), 0);
}

static void begin(uint64_t bytes, const char *policy)
{
	struct sim_opts sim = {.seed = 4};
	struct loop_opts opts = {.name = "dram"};

	expect_int(sim_begin(&sim), 0);
	expect_int(loop_open(&opts, &loop), 0);
	open_bytes = bytes;
	open_policy = policy;
	came = went = 0;
	here(open_run, NULL);
}

static void seen(void)
{
	dram_stat(dram, &stat);
}

static void close_run(void *arg)
{
	seen();
	expect_int(stat.pinned_bytes, 0);
	expect_int(came - went, stat.blocks);
	dram_close(&dram);
}

static void end(void)
{
	here(close_run, NULL);
	loop_close(&loop);
	sim_end();
}

static void start_run(void *arg)
{
	struct job *j = arg;

	dram->ops->start(dram, &j->op);
}

static void cancel_run(void *arg)
{
	struct job *j = arg;

	dram->ops->cancel(dram, &j->op);
}

/* Pieces of odd sizes over one buffer. */
static void job_fill(struct job *j, enum kvof_op kind, uint64_t n, size_t bytes, uint64_t seed)
{
	struct prng p = prng_of(seed);

	*j = (struct job){.at = malloc(BLOCK_MAX + 1)};
	prng_fill(&p, j->at, kind == KVOF_SAVE ? bytes : BLOCK_MAX);
	j->iov[0] = (struct iovec){j->at, bytes / 3};
	j->iov[1] = (struct iovec){j->at + bytes / 3, 0};
	j->iov[2] = (struct iovec){j->at + bytes / 3, bytes - bytes / 3};
	j->op = (struct tier_op){.kind = kind, .id = id_of(n), .iov = j->iov, .iov_count = 3,
				 .bytes = bytes, .done = job_done};
}

static void job_make(struct job *j, enum kvof_op kind, uint64_t n, size_t bytes, uint64_t seed)
{
	job_fill(j, kind, n, bytes, seed);
	here(start_run, j);
}

static bool job_over(void *arg)
{
	return ((struct job *)arg)->done;
}

static enum kvof_reason job_end(struct job *j)
{
	expect(sim_run_until(job_over, j, NS_PER_S));
	free(j->at);
	return j->op.reason;
}

static enum kvof_reason one(enum kvof_op kind, uint64_t n, size_t bytes)
{
	struct job j;

	job_make(&j, kind, n, bytes, n);
	return job_end(&j);
}

/* Loads, and compares with what a save of seed n holds. */
static enum kvof_reason load(uint64_t n, size_t bytes)
{
	struct prng p = prng_of(n);
	uint8_t *want = malloc(bytes + 1);
	enum kvof_reason reason;
	struct job j;

	job_make(&j, KVOF_LOAD, n, bytes, 99);
	expect(sim_run_until(job_over, &j, NS_PER_S));
	prng_fill(&p, want, bytes);
	if (j.op.reason == KVOF_OK)
		expect_mem(j.at, want, bytes);
	free(want);
	reason = job_end(&j);
	return reason;
}

TEST(blocks_of_many_parts_are_copied_one_part_a_turn_and_come_back_whole)
{
	static const size_t bytes[] = {0, 1, 4095, 4096, 4097, CUT, CUT + 1, 50000, BLOCK_MAX};

	begin(MiB, NULL);
	for (uint64_t i = 0; i < ARRAY_COUNT(bytes); i++) {
		struct job j;

		job_make(&j, KVOF_SAVE, i, bytes[i], i);
		if (bytes[i] > CUT) {
			expect(!dram->ops->has(dram, &j.op.id));
			expect(!j.done);
		}
		expect_int(job_end(&j), KVOF_OK);
		expect_int(load(i, bytes[i]), KVOF_OK);
	}
	seen();
	expect_int(stat.blocks, ARRAY_COUNT(bytes));
	end();
}

TEST(s16_a_read_during_eviction_or_overwrite_of_its_block_gives_the_old_bytes_or_a_miss)
{
	struct prng p = prng_of(11), want = prng_of(1);
	unsigned hits = 0;
	uint8_t *old = malloc(40000);

	prng_fill(&want, old, 40000);
	for (unsigned round = 0; round < 200; round++) {
		struct job read, drop, other[4];
		unsigned turns = (unsigned)prng_below(&p, 14);

		begin(64 * KiB, "lru");
		expect_int(one(KVOF_SAVE, 1, 40000), KVOF_OK);
		job_make(&read, KVOF_LOAD, 1, 40000, 5);
		for (unsigned i = 0; i < turns; i++)
			(void)sim_step();
		/* the block goes, another one takes its name, others its room */
		if (round % 2 == 0)
			job_make(&drop, KVOF_DELETE, 1, 0, 0);
		job_make(&other[0], KVOF_SAVE, 1, 20000, 77);
		for (unsigned i = 1; i < 4; i++)
			job_make(&other[i], KVOF_SAVE, 10 + i, 15000, 77);
		expect(sim_run_until(job_over, &read, NS_PER_S));
		if (read.op.reason == KVOF_OK)
			expect_mem(read.at, old, 40000);
		else
			expect_int(read.op.reason, KVOF_ABSENT);
		hits += read.op.reason == KVOF_OK;
		(void)job_end(&read);
		if (round % 2 == 0)
			(void)job_end(&drop);
		for (unsigned i = 0; i < 4; i++)
			(void)job_end(&other[i]);
		end();
	}
	expect(hits > 100);
	free(old);
}

TEST(a_batch_larger_than_the_tier_leaves_what_was_saved_last)
{
	static struct job j[40];
	unsigned there = 0;

	begin(64 * KiB, "lru");
	for (uint64_t i = 0; i < 40; i++)
		job_make(&j[i], KVOF_SAVE, i, 8000, i);
	for (uint64_t i = 0; i < 40; i++)
		expect_int(job_end(&j[i]), KVOF_OK);
	for (uint64_t i = 0; i < 40; i++)
		there += load(i, 8000) == KVOF_OK;
	expect_int(there, 8);
	for (uint64_t i = 32; i < 40; i++)
		expect_int(load(i, 8000), KVOF_OK);
	end();
}

static struct job big, waits;

static void cancel_waiting_run(void *arg)
{
	start_run(&big);
	start_run(&waits);
	cancel_run(&waits);
}

TEST(a_save_that_waits_for_room_ends_when_it_is_canceled)
{
	begin(64 * KiB, NULL);
	job_fill(&big, KVOF_SAVE, 1, 64000, 1);
	job_fill(&waits, KVOF_SAVE, 2, 64000, 2);
	here(cancel_waiting_run, NULL);
	expect_int(job_end(&waits), KVOF_CANCELED);
	expect_int(job_end(&big), KVOF_OK);
	expect_int(load(1, 64000), KVOF_OK);
	expect_int(load(2, 64000), KVOF_ABSENT);
	end();
}

/* --- lent memory ------------------------------------------------------------------------------ */

static uint32_t slot;
static uint64_t pinned_bytes;

static void pin_run(void *arg)
{
	slot = dram_pin(dram, arg, &pinned_bytes);
}

static void unpin_run(void *arg)
{
	dram_unpin(dram, slot);
}

static uint64_t hash_of_pin(void)
{
	struct iovec iov[32];
	unsigned n = dram_iov(dram, slot, iov, ARRAY_COUNT(iov));

	expect(n <= ARRAY_COUNT(iov));
	return hash_xxh3_iov(iov, n, pinned_bytes);
}

TEST(a_block_that_is_lent_stays_where_it_is_also_when_it_is_deleted)
{
	struct kvof_id id;
	uint64_t before;

	begin(64 * KiB, "lru");
	for (uint64_t i = 0; i < 4; i++)
		expect_int(one(KVOF_SAVE, i, 16000), KVOF_OK);
	id = id_of(0);
	here(pin_run, &id);
	expect_int(pinned_bytes, 16000);
	before = hash_of_pin();
	for (uint64_t i = 10; i < 20; i++)
		expect_int(one(KVOF_SAVE, i, 16000), KVOF_OK);
	expect_int(load(0, 16000), KVOF_OK);
	expect_int(one(KVOF_DELETE, 0, 0), KVOF_OK);
	expect_int(load(0, 16000), KVOF_ABSENT);
	for (uint64_t i = 20; i < 30; i++)
		expect_int(one(KVOF_SAVE, i, 16000), KVOF_OK);
	expect(hash_of_pin() == before);
	seen();
	expect_int(stat.used_bytes, 64 * KiB);
	expect_int(stat.pinned_bytes, 16 * KiB);
	here(unpin_run, NULL);
	seen();
	expect_int(stat.used_bytes, 48 * KiB);
	id = id_of(1000);
	here(pin_run, &id);
	expect_int(slot, DRAM_SLOT_NONE);
	end();
}

TEST(all_bytes_of_the_tier_hold_blocks_and_not_one_more)
{
	enum { COUNT = 8 * MiB / 16384 };

	begin(8 * MiB, "lru");
	for (uint64_t i = 0; i < COUNT; i++)
		expect_int(one(KVOF_SAVE, i, 16000), KVOF_OK);
	seen();
	expect_int(stat.used_bytes, 8 * MiB);
	expect_int(stat.evicted, 0);
	/* one page more: a block has to go */
	expect_int(one(KVOF_SAVE, COUNT, 4000), KVOF_OK);
	seen();
	expect_int(stat.used_bytes, 8 * MiB - 12 * KiB);
	expect_int(stat.evicted, 1);
	end();
}

static void lease_run(void *arg)
{
	dram->ops->touch(dram, arg, loop_now_ns(loop) + NS_PER_S);
}

static void unlease_run(void *arg)
{
	dram_unlease(dram, arg);
}

TEST(when_all_is_lent_or_leased_a_save_finds_no_room_and_drops_nothing)
{
	struct kvof_id id;

	begin(64 * KiB, "lru");
	for (uint64_t i = 0; i < 4; i++) {
		expect_int(one(KVOF_SAVE, i, 16000), KVOF_OK);
		id = id_of(i);
		here(i == 0 ? pin_run : lease_run, &id);
	}
	expect_int(one(KVOF_SAVE, 10, 100), KVOF_FULL);
	expect_int(one(KVOF_SAVE, 11, 70000), KVOF_FULL);
	for (uint64_t i = 0; i < 4; i++)
		expect_int(load(i, 16000), KVOF_OK);
	id = id_of(2);
	here(unlease_run, &id);
	expect_int(one(KVOF_SAVE, 10, 20000), KVOF_FULL);
	expect_int(load(2, 16000), KVOF_OK);
	expect_int(one(KVOF_SAVE, 10, 100), KVOF_OK);
	expect_int(load(2, 16000), KVOF_ABSENT);
	seen();
	expect_int(stat.refused, 3);
	here(unpin_run, NULL);
	end();
}

/* --- moving up -------------------------------------------------------------------------------- */

static bool promote_prefetch;
static enum dram_kept promoted;

static void promote_run(void *arg)
{
	struct job *j = arg;

	promoted = dram_promote(dram, &j->op, promote_prefetch, 0);
}

static enum dram_kept promote(uint64_t n, size_t bytes, bool prefetch)
{
	struct prng p = prng_of(n);
	struct job j = {.at = malloc(bytes + 1)};

	prng_fill(&p, j.at, bytes);
	j.iov[0] = (struct iovec){j.at, bytes};
	j.op = (struct tier_op){.kind = KVOF_LOAD, .id = id_of(n), .iov = j.iov, .iov_count = 1,
				.bytes = bytes, .value_bytes = bytes, .done = job_done};
	promote_prefetch = prefetch;
	here(promote_run, &j);
	if (promoted == DRAM_KEEPING)
		expect_int(job_end(&j), KVOF_OK);
	else
		free(j.at);
	return promoted;
}

TEST(what_moves_up_is_copied_at_once_or_part_by_part_and_a_scan_is_refused)
{
	begin(64 * KiB, NULL);
	expect_int(promote(1, 4000, false), DRAM_KEPT);
	expect_int(promote(1, 4000, false), DRAM_THERE);
	expect_int(load(1, 4000), KVOF_OK);
	expect_int(promote(2, 30000, false), DRAM_KEEPING);
	expect_int(load(2, 30000), KVOF_OK);
	for (uint64_t i = 10; i < 17; i++)
		expect_int(one(KVOF_SAVE, i, 4000), KVOF_OK);
	seen();
	expect_int(stat.used_bytes, 64 * KiB);
	for (uint64_t i = 100; i < 150; i++)
		expect_int(promote(i, 4000, false), DRAM_REFUSED);
	expect_int(load(1, 4000), KVOF_OK);
	expect_int(load(2, 30000), KVOF_OK);
	seen();
	expect_int(stat.promotion_refused, 50);
	expect_int(stat.evicted, 0);
	/* what is asked for again is taken, and so is what an engine has asked for beforehand */
	expect_int(promote(149, 4000, false), DRAM_KEPT);
	expect_int(promote(200, 4000, true), DRAM_KEPT);
	seen();
	expect_int(stat.evicted, 2);
	expect_int(stat.prefetched, 1);
	end();
}

static struct job rising, drop;

static void delete_while_rising_run(void *arg)
{
	promoted = dram_promote(dram, &rising.op, false, 0);
	start_run(&drop);
}

TEST(what_is_deleted_while_its_copy_is_made_does_not_come_back)
{
	begin(64 * KiB, NULL);
	job_fill(&rising, KVOF_LOAD, 1, 30000, 1);
	rising.op.value_bytes = 30000;
	job_fill(&drop, KVOF_DELETE, 1, 0, 1);
	here(delete_while_rising_run, NULL);
	expect_int(promoted, DRAM_KEEPING);
	expect_int(job_end(&drop), KVOF_ABSENT);
	expect_int(job_end(&rising), KVOF_CANCELED);
	expect_int(load(1, 30000), KVOF_ABSENT);
	seen();
	expect_int(stat.used_bytes, 0);
	expect_int(stat.promoted, 0);
	end();
}

/* --- any mix ---------------------------------------------------------------------------------- */

/* Many at once of every kind, with every policy: bytes are right, the cap holds. */
TEST(random_work_with_every_policy_keeps_the_cap_and_the_bytes)
{
	for (const char *const *name = policy_names(); *name != NULL; name++) {
		static struct job j[16];
		struct prng p = prng_of(21);
		unsigned hits = 0;

		begin(128 * KiB, *name);
		for (unsigned round = 0; round < 400; round++) {
			unsigned count = 1 + (unsigned)prng_below(&p, ARRAY_COUNT(j));

			for (unsigned i = 0; i < count; i++) {
				/* one after the other on one identity, as the core does it */
				uint64_t n = i + ARRAY_COUNT(j) * prng_below(&p, 3);
				unsigned what = (unsigned)prng_below(&p, 8);

				job_make(&j[i], what == 0 ? KVOF_DELETE : what < 4 ? KVOF_SAVE :
					 KVOF_LOAD, n, n * 701 % 20000, n);
				if (prng_below(&p, 20) == 0)
					here(cancel_run, &j[i]);
			}
			for (unsigned i = 0; i < count; i++)
				hits += job_end(&j[i]) == KVOF_OK && j[i].op.kind == KVOF_LOAD;
			seen();
			expect(stat.used_bytes <= 128 * KiB);
			expect_int(stat.pinned_bytes, 0);
		}
		for (uint64_t n = 0; n < 48; n++) {
			enum kvof_reason reason = load(n, n * 701 % 20000);

			expect(reason == KVOF_OK || reason == KVOF_ABSENT);
		}
		expect(hits > 100);
		end();
	}
}
