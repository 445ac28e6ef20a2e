/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stays and what goes when drives are full: traces through a whole store on simulated drives.
 * Cache namespaces: a cyclic trace, scans, what counts as a hit, values that can't be carried.
 * Object namespaces: nothing goes, room comes back, cleaning has a bound. Figures go to the TAP
 * comments.
 */
#include "store_rig.h"

#include <errno.h>

#include "base/bytes.h"

#define VALUE 60000u                         /* 15 blocks with its header */

static double amplification(const struct store_stat *s)
{
	return (double)s->device_write_bytes / (double)s->stored_bytes;
}

static void cache_begin(struct rig *g, uint64_t seed, unsigned drives, uint64_t drive_bytes)
{
	rig_begin(g, seed, drives, drive_bytes);
	g->opts.segment_bytes = 1 << 20;
	g->opts.index_keys_max = 100000;
	expect_int(rig_open(g), 0);
}

/* A host that looks first, and stores what is not there. */
static bool ask(struct rig *g, uint32_t key)
{
	if (rig_exists(g, key))
		return true;
	expect_int(rig_put(g, key, 1, VALUE), 0);
	return false;
}

/* Values that the store holds at most. */
static uint32_t room(struct rig *g)
{
	return (uint32_t)(rig_stat(g).capacity_bytes / (16 * 4096));
}

TEST(a_cyclic_trace_just_over_capacity_keeps_hits_and_writes_little_more_than_is_stored)
{
	struct rig g;
	uint32_t keys, hits = 0;
	struct store_stat stat;

	cache_begin(&g, 1, 2, 32 * MiB);
	keys = room(&g) * 21 / 20;
	for (unsigned lap = 0; lap < 10; lap++) {
		hits = 0;
		for (uint32_t k = 0; k < keys; k++)
			hits += ask(&g, k);
	}
	stat = rig_stat(&g);
	printf("# %u values in room for %u: lap 10 hits %.3f, amplification %.3f, %llu segments "
	       "went, %llu stayed, %llu values carried\n", keys, room(&g), (double)hits / keys,
	       amplification(&stat), (unsigned long long)stat.evicted_segments,
	       (unsigned long long)stat.kept_segments, (unsigned long long)stat.carried_values);
	expect(hits > keys / 20);
	expect(amplification(&stat) <= 1.1);
	for (uint32_t k = 0; k < keys; k++) {
		if (rig_exists(&g, k))
			expect_int(rig_get(&g, k, 1, VALUE), 0);
	}
	rig_end(&g);
}

/* How a host shows that it still wants a value. */
enum asks { BY_GET, BY_EXIST, BY_REFUSED_STORE, BY_TOUCH, ASKS };

static void want(struct rig *g, uint32_t key, enum asks how)
{
	struct kv_key k = rig_key(key);

	if (how == BY_GET)
		(void)rig_get(g, key, 1, VALUE);
	else if (how == BY_EXIST)
		(void)rig_exists(g, key);
	else if (how == BY_REFUSED_STORE && rig_exists(g, key))
		expect_int(rig_put_mode(g, key, 1, VALUE, STORE_PUT_IF_ABSENT), -EEXIST);
	else if (how == BY_TOUCH)
		(void)store_touch(g->st, &k, 1);
}

static double after_scans(enum asks how, uint32_t hot, bool mixed, bool second_touch)
{
	struct rig g;
	uint32_t next = 100000, left = 0, turn = 0;
	struct store_stat stat;

	rig_begin(&g, 10 + how, 2, 32 * MiB);
	g.opts.segment_bytes = 1 << 20;
	g.opts.index_keys_max = 100000;
	g.opts.second_touch = second_touch;
	expect_int(rig_open(&g), 0);
	for (uint32_t k = 0; k < hot; k++) {
		expect_int(rig_put(&g, k, 1, VALUE), 0);
		for (unsigned i = 0; mixed && i < 12; i++)
			expect_int(rig_put(&g, next++, 1, VALUE), 0);
		want(&g, k, how);
	}
	for (uint32_t i = 0; i < 4 * room(&g); i++) {
		expect_int(rig_put(&g, next++, 1, VALUE), 0);
		want(&g, turn++ % hot, how);
	}
	for (uint32_t k = 0; k < hot; k++) {
		bool there = rig_exists(&g, k);

		left += there;
		expect_int(rig_get(&g, k, 1, VALUE), there ? 0 : -ENOENT);
	}
	stat = rig_stat(&g);
	printf("# hot %u of %u%s%s: %u left after two scans, amplification %.3f, %llu stayed, "
	       "%llu values carried\n", hot, room(&g), mixed ? ", lying apart" : "",
	       second_touch ? ", second touch" : "", left, amplification(&stat),
	       (unsigned long long)stat.kept_segments, (unsigned long long)stat.carried_values);
	expect(amplification(&stat) <= 1.1);
	rig_end(&g);
	return (double)left / hot;
}

TEST(two_large_scans_do_not_flush_a_hot_set_however_it_was_asked_for)
{
	for (enum asks how = BY_GET; how < ASKS; how++)
		expect(after_scans(how, 200, false, false) > 0.9);
	expect(after_scans(BY_EXIST, 40, true, false) > 0.9);
	expect(after_scans(BY_EXIST, 200, false, true) > 0.9);
}

TEST(second_touch_on_few_segments_all_of_them_hot_refuses_nothing)
{
	struct rig g;

	for (uint64_t mib = 5; mib < 12; mib++) {
		rig_begin(&g, mib, 1, mib * MiB);
		g.opts.segment_bytes = 1 << 20;
		g.opts.second_touch = true;
		expect_int(rig_open(&g), 0);
		for (uint32_t i = 0; i < 600; i++) {
			expect_int(rig_put(&g, i, 1, VALUE), 0);
			for (uint32_t k = i < 200 ? 0 : i - 200; k <= i; k++)
				(void)rig_exists(&g, k);
		}
		expect(rig_stat(&g).kept_segments > 20 && rig_stat(&g).evicted_segments > 20);
		rig_end(&g);
	}
}

/* --- what is kept ----------------------------------------------------------------------------- */

static int keep(struct rig *g, uint32_t key, bool on)
{
	struct kv_key k = rig_key(key);

	return store_keep(g->st, &k, on);
}

static uint32_t readable(struct rig *g, uint32_t count)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < count; k++)
		n += rig_get(g, k, 1, VALUE) == 0;
	return n;
}

TEST(what_is_kept_outlives_scans_of_several_times_the_drives_though_nobody_asks_for_it)
{
	uint32_t next = 100000;
	struct store_kept kept;
	struct store_stat stat;
	struct rig g;

	cache_begin(&g, 21, 2, 32 * MiB);
	for (uint32_t k = 0; k < 100; k++) {
		for (unsigned i = 0; i < 3; i++)
			expect_int(rig_put(&g, next++, 1, VALUE), 0);
		expect_int(rig_put(&g, k, 1, VALUE), 0);
		expect_int(keep(&g, k, true), 0);
		expect_int(keep(&g, k, true), 0);
	}
	expect_int(keep(&g, 99999, true), -ENOENT);
	for (uint32_t i = 0; i < 6 * room(&g); i++)
		expect_int(rig_put(&g, next++, 1, VALUE), 0);
	store_kept(g.st, &kept);
	stat = rig_stat(&g);
	printf("# kept %llu of at most %llu bytes, amplification %.3f, %llu values carried, %llu "
	       "segments stayed\n", (unsigned long long)kept.bytes,
	       (unsigned long long)kept.most_bytes, amplification(&stat),
	       (unsigned long long)stat.carried_values, (unsigned long long)stat.kept_segments);
	expect_int(kept.lost, 0);
	expect_int(kept.bytes, 100 * 15 * 4096);
	/* what was overwritten stays kept, too */
	expect_int(rig_put(&g, 7, 1, VALUE), 0);
	for (uint32_t i = 0; i < 2 * room(&g); i++)
		expect_int(rig_put(&g, next++, 1, VALUE), 0);
	expect_int(readable(&g, 100), 100);
	for (uint32_t k = 0; k < 100; k++)
		expect_int(keep(&g, k, false), 0);
	for (uint32_t i = 0; i < 4 * room(&g); i++)
		expect_int(rig_put(&g, next++, 1, VALUE), 0);
	expect(readable(&g, 100) == 0);
	store_kept(g.st, &kept);
	expect_int(kept.bytes + kept.lost, 0);
	rig_end(&g);
}

TEST(no_more_than_its_share_of_a_drive_is_kept_and_stores_go_on)
{
	for (uint64_t mib = 8; mib <= 32; mib += 4) {
		uint32_t next = 100000, count = 0;
		struct store_kept kept;
		struct store_stat stat;
		struct rig g;

		cache_begin(&g, 30 + mib, 1, mib * MiB);
		for (;; count++) {
			expect(count < 1000);
			expect_int(rig_put(&g, count, 1, VALUE), 0);
			if (keep(&g, count, true) != 0)
				break;
			expect_int(rig_put(&g, next++, 1, VALUE), 0);
		}
		expect_int(keep(&g, count, true), -ENOSPC);
		store_kept(g.st, &kept);
		expect(kept.bytes <= kept.most_bytes && kept.bytes + 16 * 4096 > kept.most_bytes);
		expect(kept.most_bytes <= mib * MiB / 2);
		for (uint32_t i = 0; i < 8 * room(&g); i++)
			expect_int(rig_put(&g, next++, 1, VALUE), 0);
		stat = rig_stat(&g);
		printf("# %llu MiB: %u values kept, amplification %.3f\n", (unsigned long long)mib,
		       count, amplification(&stat));
		expect_int(readable(&g, count), count);
		store_kept(g.st, &kept);
		expect_int(kept.lost, 0);
		/* with it gone there is room for others */
		expect_int(rig_delete(&g, 0), 0);
		expect_int(rig_put(&g, count, 1, VALUE), 0);
		expect_int(keep(&g, count, true), 0);
		rig_end(&g);
	}
}

static void put_kept(struct rig *g, uint32_t count)
{
	for (uint32_t k = 0; k < count; k++) {
		expect_int(rig_put(g, k, 1, VALUE), 0);
		expect_int(keep(g, k, true), 0);
	}
}

TEST(after_an_open_nothing_is_kept_and_what_is_there_can_be_kept_again)
{
	uint32_t next = 100000;
	struct store_kept kept;
	struct rig g;

	cache_begin(&g, 41, 1, 16 * MiB);
	put_kept(&g, 10);
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	store_kept(g.st, &kept);
	expect_int(kept.bytes, 0);
	for (uint32_t k = 0; k < 10; k++)
		expect_int(keep(&g, k, true), 0);
	for (uint32_t i = 0; i < 4 * room(&g); i++)
		expect_int(rig_put(&g, next++, 1, VALUE), 0);
	expect_int(readable(&g, 10), 10);
	rig_end(&g);
}

/* Puts values until the next ones make the first go. */
static uint32_t fill(struct rig *g, uint32_t first)
{
	uint32_t n = first;

	while (rig_stat(g).evicted_segments + rig_stat(g).kept_segments == 0)
		expect_int(rig_put(g, n++, 1, VALUE), 0);
	return n;
}

struct going {
	struct drive *drive;
	enum evict_state state;
	const bool *done;
};

static bool has_come(void *arg)
{
	const struct going *w = arg;

	return *w->done || w->drive->evict_state == w->state;
}

/* Puts values until the drive's eviction is there. Return: the next key. */
static uint32_t put_until(struct rig *g, uint32_t next, enum evict_state state)
{
	for (;; next++) {
		struct going w = {&g->st->drive[0], state, NULL};
		struct rig_op r;

		expect(next < 200000);
		expect(rig_put_start(g, &r, next, 1, VALUE, STORE_PUT_ANY));
		w.done = &r.done;
		expect(sim_run_until(has_come, &w, RIG_TIME_MAX));
		if (w.drive->evict_state != state) {
			store_buf_give(g->st, &r.buf);
			continue;
		}
		/* those of the segment that are there: three are to be kept */
		for (uint32_t k = 0, n = 0; k < next && n < 3; k++) {
			struct kv_key key = rig_key(k);
			uint32_t entry = index_find(g->st->index, &key);

			if (entry == INDEX_NONE || segment_of_block(w.drive,
			    index_place(g->st->index, entry).block) != w.drive->evict_segment)
				continue;
			expect_int(keep(g, k, true), state < EVICT_SETTLE ? 0 : -ENOENT);
			n++;
		}
		expect(rig_wait(&r.done));
		store_buf_give(g->st, &r.buf);
		return next + 1;
	}
}

TEST(what_is_to_be_kept_while_its_segment_goes_does_not_go_with_it_or_is_told_so)
{
	for (enum evict_state at = EVICT_READ; at <= EVICT_FLUSH; at++) {
		uint32_t next, kept_keys = 0;
		struct store_kept kept;
		struct rig g;

		cache_begin(&g, 51, 1, 16 * MiB);
		next = fill(&g, 0);
		for (uint32_t k = 0; k < next; k += 8)
			(void)rig_exists(&g, k);
		next = put_until(&g, next, at);
		for (uint32_t k = 0; k < next; k++) {
			struct kv_key key = rig_key(k);
			uint32_t entry = index_find(g.st->index, &key);

			kept_keys += entry != INDEX_NONE &&
				(index_place(g.st->index, entry).flags & INDEX_KEPT) != 0;
		}
		expect_int(kept_keys, at < EVICT_SETTLE ? 3 : 0);
		for (uint32_t i = 0; i < 3 * room(&g); i++)
			expect_int(rig_put(&g, 300000 + i, 1, VALUE), 0);
		store_kept(g.st, &kept);
		expect_int(kept.lost, 0);
		expect_int(kept.bytes, kept_keys * 15 * 4096);
		expect_int(readable(&g, next), kept_keys);
		rig_end(&g);
	}
}

TEST(what_was_kept_on_a_drive_that_fails_is_counted_as_lost)
{
	uint32_t next = 100000, there;
	struct store_kept kept;
	struct rig g;

	cache_begin(&g, 61, 2, 16 * MiB);
	put_kept(&g, 20);
	sim_disk_mode(g.path[0], SIM_DISK_HANGS);
	while (rig_stat(&g).drives_failed == 0)
		expect_int(rig_put(&g, next++, 1, VALUE), 0);
	there = readable(&g, 20);
	store_kept(g.st, &kept);
	expect(there > 0 && there < 20);
	expect_int(kept.lost, 20 - there);
	expect_int(kept.bytes, there * 15 * 4096);
	rig_crash(&g, true);
	rig_end(&g);
}

TEST(a_store_that_is_asked_for_nothing_is_first_in_first_out)
{
	struct rig g;
	uint32_t n;

	cache_begin(&g, 3, 2, 16 * MiB);
	n = room(&g);
	for (uint32_t k = 0; k < 4 * n; k++)
		expect_int(rig_put(&g, k, 1, VALUE), 0);
	expect_int(rig_stat(&g).carried_values, 0);
	for (uint32_t k = 4 * n - n / 2; k < 4 * n; k++)
		expect_int(rig_get(&g, k, 1, VALUE), 0);
	rig_end(&g);
}

TEST(a_value_that_is_damaged_is_not_carried_and_costs_no_other)
{
	struct rig g;
	uint32_t n, lost = 0;
	uint64_t bytes;
	uint8_t *medium;

	cache_begin(&g, 4, 1, 16 * MiB);
	n = fill(&g, 0);
	/* Values 0, 16, 32, ... are wanted, one a segment; each second of them rots. */
	medium = sim_disk_bytes(g.path[0], &bytes);
	for (uint32_t k = 0; k < n; k += 16) {
		struct kv_key key = rig_key(k);
		uint32_t entry = index_find(g.st->index, &key);

		(void)rig_exists(&g, k);
		if (entry != INDEX_NONE && k % 32 == 0)
			medium[((uint64_t)index_place(g.st->index, entry).block << 12) + 30000]
				^= 4;
	}
	for (uint32_t k = 0; k < 3 * room(&g); k++)
		expect_int(rig_put(&g, 50000 + k, 1, VALUE), 0);
	expect(rig_stat(&g).corrupt > 0);
	expect(rig_stat(&g).carry_lost >= rig_stat(&g).corrupt);
	for (uint32_t k = 0; k < n; k++) {
		int rc = rig_get(&g, k, 1, VALUE);

		expect(rc == 0 || rc == -ENOENT);    /* never other bytes */
		lost += rc != 0;
	}
	expect(lost > 0);
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	for (uint32_t k = 0; k < n; k++)
		expect(rig_get(&g, k, 1, VALUE) != 1);
	rig_end(&g);
}

static void carry_fault(enum sim_fault kind, uint64_t nth)
{
	struct rig g;
	uint32_t n;
	uint64_t began;

	cache_begin(&g, 5, 2, 16 * MiB);
	n = fill(&g, 0);
	for (uint32_t k = 0; k < n; k += 8)
		(void)rig_exists(&g, k);
	sim_fault_at(kind, nth);
	for (uint32_t k = 0; k < room(&g); k++) {
		began = sim_now_ns();
		expect_int(rig_put(&g, 50000 + k, 1, VALUE), 0);
		expect(sim_now_ns() - began < 2 * NS_PER_S);
	}
	for (uint32_t k = 0; k < n; k++)
		expect(rig_get(&g, k, 1, VALUE) != 1);
	expect_int(rig_stat(&g).drives_failed, 0);
	index_check(g.st->index);
	rig_end(&g);
}

TEST(an_error_while_carrying_costs_a_value_and_stalls_no_put)
{
	for (uint64_t n = 1; n < 40; n += 4) {
		carry_fault(SIM_DISK_READ_EIO, n);
		carry_fault(SIM_DISK_READ_BAD, n);
		carry_fault(SIM_DISK_SLOW, 3 * n);
		carry_fault(SIM_DISK_FLUSH_EIO, n);
	}
	for (uint64_t n = 1; n < 200; n += 11) {
		carry_fault(SIM_DISK_WRITE_EIO, n);
		carry_fault(SIM_DISK_ENOSPC, n);
	}
}

TEST(a_drive_that_hangs_while_it_carries_holds_up_no_other)
{
	struct rig g;
	uint32_t n, there = 0;

	cache_begin(&g, 6, 3, 16 * MiB);
	n = fill(&g, 0);
	for (uint32_t k = 0; k < n; k += 4)
		(void)rig_exists(&g, k);
	for (uint32_t k = 0; g.st->carry_owner == NULL && k < 3 * n; k++)
		expect_int(rig_put(&g, 50000 + k, 1, VALUE), 0);
	expect(g.st->carry_owner != NULL);
	sim_disk_mode(g.st->carry_owner->path, SIM_DISK_HANGS);
	for (uint32_t k = 0; k < 3 * room(&g); k++)
		expect_int(rig_put(&g, 90000 + k, 1, VALUE), 0);
	expect_int(rig_stat(&g).drives_failed, 1);
	for (uint32_t k = 0; k < 3 * room(&g); k++) {
		int rc = rig_get(&g, 90000 + k, 1, VALUE);

		expect(rc == 0 || rc == -ENOENT);
		there += rc == 0;
	}
	expect(there > room(&g) / 3);
	rig_crash(&g, true);
	rig_end(&g);
}

/* Key 3 lies in a segment that has just stayed; its tombstone in one that is younger, but has its
 * turn before. */
static void deleted_from_a_stayer(uint32_t puts, bool kill, uint64_t *stayed)
{
	struct rig g;
	uint32_t next = 100;

	cache_begin(&g, 7, 1, 16 * MiB);
	for (uint32_t k = 0; k < 15; k++)
		expect_int(rig_put(&g, k, 1, VALUE), 0);
	while (rig_stat(&g).kept_segments == 0) {
		for (uint32_t k = 0; k < 15; k++)
			(void)rig_exists(&g, k);
		expect_int(rig_put(&g, next++, 1, VALUE), 0);
	}
	expect(rig_exists(&g, 3));
	expect_int(rig_delete(&g, 3), 0);
	for (uint32_t i = 0; i < puts; i++) {
		for (uint32_t k = 0; k < 15; k++)
			(void)rig_exists(&g, k);
		expect_int(rig_put(&g, next++, 1, VALUE), 0);
	}
	*stayed += rig_exists(&g, 4);
	rig_crash(&g, kill);
	expect_int(rig_open(&g), 0);
	expect_int(rig_get(&g, 3, 1, VALUE), -ENOENT);
	rig_end(&g);
}

TEST(what_is_deleted_in_a_segment_that_stays_outlives_no_tombstone)
{
	uint64_t stayed = 0;

	for (uint32_t puts = 0; puts < 500; puts += 9)
		deleted_from_a_stayer(puts, puts % 2 == 0, &stayed);
	expect(stayed > 0);
}

/* --- object namespaces ----------------------------------------------------------------- */

static void object_begin(struct rig *g, uint64_t seed, unsigned drives, uint64_t drive_bytes)
{
	rig_begin(g, seed, drives, drive_bytes);
	g->opts.evict = false;
	g->opts.segment_bytes = 1 << 20;
	g->opts.index_keys_max = 20000;
	expect_int(rig_open(g), 0);
}

TEST(a_full_object_namespace_refuses_and_keeps_the_old_value_also_after_a_restart)
{
	struct rig g;
	uint32_t n = 0;

	object_begin(&g, 20, 2, 16 * MiB);
	while (rig_put(&g, n, 1, VALUE) == 0)
		n++;
	expect(n > room(&g) * 7 / 10);
	for (uint32_t k = 0; k < n; k++)
		(void)rig_put(&g, k % 3, 2, 3 * VALUE);      /* until nothing fits any more */
	expect_int(rig_put(&g, 5, 2, 3 * VALUE), -ENOSPC);
	expect_int(rig_put_mode(&g, 5, 2, 3 * VALUE, STORE_PUT_IF_PRESENT), -ENOSPC);
	for (unsigned round = 0; round < 3; round++) {
		for (uint32_t k = 3; k < n; k++)
			expect_int(rig_get(&g, k, 1, VALUE), 0);
		if (round == 0)
			rig_close(&g);
		else
			rig_crash(&g, round == 1);
		expect_int(rig_open(&g), 0);
	}
	expect_int(rig_stat(&g).evicted_keys, 0);
	rig_end(&g);
}

TEST(deletes_and_overwrites_give_room_back_for_ever)
{
	struct rig g;
	uint32_t n = 0, keys;
	struct prng p = prng_of(3);
	struct store_stat stat;
	uint32_t *version;

	object_begin(&g, 21, 2, 32 * MiB);
	while (rig_put(&g, n, 1, VALUE) == 0)
		n++;
	keys = n * 3 / 4;
	version = calloc(n, sizeof(*version));
	for (uint32_t k = keys; k < n; k++)
		expect_int(rig_delete(&g, k), 0);
	for (uint32_t k = 0; k < keys; k++)
		version[k] = 1;
	for (uint32_t i = 0; i < 4 * n; i++) {
		uint32_t k = (uint32_t)prng_below(&p, keys);

		if (prng_below(&p, 4) == 0) {
			expect_int(rig_delete(&g, k), version[k] != 0 ? 0 : -ENOENT);
			version[k] = 0;
			continue;
		}
		version[k] = i + 2;
		expect_int(rig_put(&g, k, version[k], VALUE), 0);
		if (i % n == n / 2) {
			rig_crash(&g, i % 2 == 0 || rig_flush(&g) == 0);
			expect_int(rig_open(&g), 0);
		}
	}
	stat = rig_stat(&g);
	printf("# object namespace, 3/4 full, overwrites at random: amplification %.2f, %llu "
	       "segments cleaned\n", amplification(&stat),
	       (unsigned long long)stat.cleaned_segments);
	expect(amplification(&stat) < 6);
	for (uint32_t k = 0; k < keys; k++)
		expect_int(rig_get(&g, k, version[k], VALUE), version[k] != 0 ? 0 : -ENOENT);
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	for (uint32_t k = 0; k < keys; k++)
		expect_int(rig_get(&g, k, version[k], VALUE), version[k] != 0 ? 0 : -ENOENT);
	free(version);
	rig_end(&g);
}

TEST(a_full_object_namespace_of_small_values_can_be_emptied_in_any_order_and_filled_again)
{
	struct rig g;
	uint32_t n = 0;

	object_begin(&g, 22, 1, 6 * MiB);
	while (rig_put(&g, n, 1, 100) == 0)
		n++;
	expect(n > 500 && n % 379 != 0);
	for (uint32_t i = 0; i < n; i++)             /* spread over all segments */
		expect_int(rig_delete(&g, (uint32_t)((uint64_t)i * 379 % n)), 0);
	expect_int(rig_stat(&g).keys, 0);
	for (uint32_t k = 0; k < n * 9 / 10; k++)
		expect_int(rig_put(&g, k, 2, 100), 0);
	rig_crash(&g, true);
	expect_int(rig_open(&g), 0);
	for (uint32_t k = 0; k < n; k++)
		expect_int(rig_get(&g, k, 2, 100), k < n * 9 / 10 ? 0 : -ENOENT);
	rig_end(&g);
}

TEST(a_tombstone_is_carried_while_an_older_segment_holds_what_it_covers)
{
	struct rig g;
	struct prng p = prng_of(5);
	uint32_t n = 0;

	object_begin(&g, 23, 1, 16 * MiB);
	while (n < room(&g) / 2) {
		expect_int(rig_put(&g, n, 1, VALUE), 0);
		n++;
	}
	for (uint32_t v = 2; v < 24; v++)
		expect_int(rig_put(&g, n - 1, v, VALUE), 0);
	expect_int(rig_delete(&g, 0), 0);            /* too little in its segment to clean that */
	for (uint32_t v = 24; v < 1500; v++) {
		uint32_t key = n - 1 - (uint32_t)prng_below(&p, 60);

		expect_int(rig_put(&g, key, v, VALUE), 0);
		if (v % 100 != 0)
			continue;
		rig_crash(&g, v % 200 == 0);
		expect_int(rig_open(&g), 0);
		expect_int(rig_get(&g, 0, 1, VALUE), -ENOENT);
		for (uint32_t k = 1; k < n - 1; k++)
			expect(rig_exists(&g, k));
	}
	expect(rig_stat(&g).cleaned_segments > 2);
	rig_end(&g);
}

/* --- the daily write budget ------------------------------------------------------------ */

static bool never(void *arg)
{
	return false;
}

static uint32_t puts_until_refused(struct rig *g, uint32_t *next)
{
	uint32_t n = 0;

	while (rig_put(g, *next, 1, VALUE) == 0) {
		(*next)++;
		n++;
	}
	return n;
}

TEST(a_spent_write_budget_refuses_stores_serves_the_rest_and_survives_a_restart)
{
	struct rig g;
	uint32_t next = 0, n;
	struct store_stat stat;

	rig_begin(&g, 40, 2, 16 * MiB);
	g.opts.segment_bytes = 1 << 20;
	g.opts.index_keys_max = 10000;
	g.opts.write_budget_percent = 800;           /* 120 MiB a day each, 30 MiB at once */
	expect_int(rig_open(&g), 0);
	n = puts_until_refused(&g, &next);
	stat = rig_stat(&g);
	printf("# %u values of %u bytes until %llu were refused, %llu KiB of budget left\n", n,
	       VALUE, (unsigned long long)stat.budget_refused,
	       (unsigned long long)stat.budget_left_bytes / 1024);
	expect(stat.device_write_bytes <= 61 * MiB && stat.device_write_bytes > 55 * MiB);
	expect_int(stat.budget_refused, 1);
	expect_int(stat.no_space, 1);
	expect_int(rig_put(&g, next - 1, 2, VALUE), -ENOSPC);        /* the old value stays */
	expect_int(rig_get(&g, next - 1, 1, VALUE), 0);
	expect_int(rig_delete(&g, next - 2), 0);
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	expect(puts_until_refused(&g, &next) < n / 20);
	expect_int(rig_get(&g, next - 10, 1, VALUE), 0);
	(void)sim_run_until(never, NULL, UINT64_C(3600) * NS_PER_S);
	n = puts_until_refused(&g, &next);           /* 2 * 90 MiB / 24 came in */
	expect(n > 100 && n < 140);
	rig_end(&g);
}

/* --- discard --------------------------------------------------------------------------- */

TEST(what_is_free_is_discarded_and_nothing_else)
{
	struct rig g;
	uint64_t bytes;
	uint8_t *medium;
	unsigned free_segments = 0;

	cache_begin(&g, 30, 1, 16 * MiB);
	for (uint32_t k = 0; k < 3 * room(&g); k++)
		expect_int(rig_put(&g, k, 1, VALUE), 0);
	while (sim_step())
		;
	expect(rig_stat(&g).discarded_bytes >= rig_stat(&g).evicted_segments * (1016u << 10));
	medium = sim_disk_bytes(g.path[0], &bytes);
	for (uint32_t i = 0; i < g.st->drive[0].segment_count; i++) {
		const struct segment *seg = &g.st->drive[0].segment[i];
		uint64_t at = fmt_segment_block(1 << 20, i) << 12;

		if (seg->state != SEGMENT_FREE)
			continue;
		free_segments++;
		expect(bytes_all_zero(medium + at + 4096, (1 << 20) - 2 * 4096));
		expect(!bytes_all_zero(medium + at, 4096));          /* "erased", in words */
	}
	expect(free_segments > 0);
	for (uint32_t k = 0; k < 3 * room(&g); k++)
		expect(rig_get(&g, k, 1, VALUE) != 1);
	for (uint32_t k = 3 * room(&g) - room(&g) / 2; k < 3 * room(&g); k++)
		expect_int(rig_get(&g, k, 1, VALUE), 0);
	rig_end(&g);
}
