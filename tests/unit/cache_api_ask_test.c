/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that ask and tell about blocks, from engine threads on a real loop: match and groups,
 * pins, hints, flush, events, flags; and blocks whose bytes lie in many places.
 */
#include "kt.h"

#include "cache_api_fixture.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/prng.h"

/* No deadline of these tests is meant to pass but where one is named: a machine that gives this
 * process no time for two seconds changes nothing. */
static struct kvof_cache_opts unhurried(void)
{
	struct kvof_cache_opts opts = options();

	opts.deadline_ns = 60 * NS_PER_S;
	return opts;
}

static struct kvof_cache *begin(uint64_t dram_bytes)
{
	struct kvof_cache_opts opts = unhurried();

	sim_host_reset();
	opts.dram_bytes = dram_bytes;
	opts.event_count = 100;
	return opened(opts);
}

static void ids_fill(struct kvof_cache *cache, uint32_t first, uint32_t count, struct kvof_id *ids)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t n = first + i;

		expect_int(kvof_cache_id_of(cache, &n, sizeof(n), &ids[i]), 0);
	}
}

static void save_all(struct kvof_cache *cache, const struct kvof_id *ids, uint32_t count)
{
	static uint8_t data[BYTES];
	struct iovec iov = {data, sizeof(data)};
	struct kvof_block b[64];
	struct kvof_result r[64];

	for (uint32_t i = 0; i < count; i++)
		b[i] = (struct kvof_block){ids[i], &iov, 1, sizeof(data)};
	expect_int(kvof_cache_wait(cache, KVOF_SAVE, b, count, 0, r), 0);
	for (uint32_t i = 0; i < count; i++)
		expect_int(r[i].reason, KVOF_OK);
}

static uint32_t matched(struct kvof_cache *cache, const struct kvof_id *ids, uint32_t count)
{
	uint32_t n = 77;

	expect_int(kvof_cache_match(cache, ids, count, 0, &n), 0);
	return n;
}

static uint32_t matched_groups(struct kvof_cache *cache, const struct kvof_group *groups,
			       uint32_t count, uint32_t n_blocks)
{
	uint32_t n = 77;

	expect_int(kvof_cache_match_groups(cache, groups, count, n_blocks, 0, &n), 0);
	return n;
}

static void delete_one(struct kvof_cache *cache, const struct kvof_id *id)
{
	struct kvof_block b = {.id = *id};
	struct kvof_result r;

	expect_int(kvof_cache_wait(cache, KVOF_DELETE, &b, 1, 0, &r), 0);
	expect_int(r.reason, KVOF_OK);
}

static struct kvof_cache_stat stat_of(struct kvof_cache *cache)
{
	struct kvof_cache_stat stat;

	expect_int(kvof_cache_stat(cache, &stat), 0);
	return stat;
}

TEST(groups_are_present_together_or_the_prefix_is_shorter)
{
	struct kvof_cache *cache = begin(0);
	struct kvof_id full[8], window[8], side[8];
	struct kvof_group groups[3] = {{full, 0, 0}, {window, 2, 0}, {side, 1, 0}};

	ids_fill(cache, 0, 8, full);
	ids_fill(cache, 100, 8, window);
	ids_fill(cache, 200, 8, side);
	save_all(cache, full, 8);
	save_all(cache, window + 3, 3);            /* blocks 3, 4, 5 */
	expect_int(matched_groups(cache, groups, 1, 8), 8);
	expect_int(matched_groups(cache, groups, 2, 8), 6);
	expect_int(matched_groups(cache, groups, 3, 8), 0);
	save_all(cache, side + 4, 1);
	expect_int(matched_groups(cache, groups, 3, 8), 5);
	save_all(cache, side + 5, 1);
	expect_int(matched_groups(cache, groups, 3, 8), 6);
	delete_one(cache, &window[4]);
	expect_int(matched_groups(cache, groups, 3, 8), 0);
	expect_int(matched_groups(cache, groups, 3, 0), 0);
	kvof_cache_close(&cache);
}

TEST(all_ranks_of_a_block_agree_before_it_counts)
{
	struct kvof_cache *cache = begin(1 << 20), *other;
	struct kvof_id rank[4][16];
	struct kvof_group groups[4];

	for (uint32_t r = 0; r < 4; r++) {
		ids_fill(cache, 100 * r, 16, rank[r]);
		groups[r] = (struct kvof_group){rank[r], 0, 0};
		save_all(cache, rank[r], 16 - 3 * r);
	}
	expect_int(matched_groups(cache, groups, 4, 16), 7);
	expect_int(matched_groups(cache, groups, 3, 16), 10);
	kvof_cache_close(&cache);
	/* and what only the array has is asked for: all at once */
	other = opened(unhurried());
	sim_host.flying_max = 0;
	expect_int(matched_groups(other, groups, 4, 16), 7);
	expect(sim_host.flying_max >= 64);
	expect_int(matched_groups(other, groups, 4, 7), 7);
	kvof_cache_close(&other);
}

TEST(wrong_groups_pins_and_hints_are_refused)
{
	struct kvof_cache *cache = begin(0);
	struct kvof_id id[1];
	struct kvof_group group[KVOF_GROUPS_MAX + 1] = {{id, 0, 0}}, odd = {id, 0, 5},
		none = {NULL, 0, 0};
	struct kvof_hint hint = {.struct_bytes = sizeof(hint)};
	struct kvof_event event;
	uint64_t lost;
	uint32_t n;

	ids_fill(cache, 0, 1, id);
	expect_int(kvof_cache_match_groups(cache, group, 0, 1, 0, &n), -EINVAL);
	expect_int(kvof_cache_match_groups(cache, group, KVOF_GROUPS_MAX + 1, 1, 0, &n), -EINVAL);
	expect_int(kvof_cache_match_groups(cache, group, 1, 1, 0, NULL), -EINVAL);
	expect_int(kvof_cache_match_groups(cache, &odd, 1, 1, 0, &n), -EINVAL);
	expect_int(kvof_cache_match_groups(cache, &none, 1, 1, 0, &n), -EINVAL);
	expect_int(kvof_cache_match_groups(cache, NULL, 1, 1, 0, &n), -EINVAL);
	expect_int(kvof_cache_pin(cache, NULL, 1, 1), -EINVAL);
	expect_int(kvof_cache_pin(cache, id, KVOF_BLOCKS_MAX + 1, 1), -EINVAL);
	expect_int(kvof_cache_pin(cache, id, 1, 0), -EINVAL);
	expect_int(kvof_cache_hint(cache, id, 1, NULL), -EINVAL);
	hint.priority = KVOF_PRIORITY_MAX + 1;
	expect_int(kvof_cache_hint(cache, id, 1, &hint), -EINVAL);
	hint = (struct kvof_hint){.struct_bytes = 4};
	expect_int(kvof_cache_hint(cache, id, 1, &hint), -EINVAL);
	expect_int(kvof_cache_events(cache, NULL, 1, &lost), -EINVAL);
	expect_int(kvof_cache_events(cache, &event, 1, NULL), -EINVAL);
	kvof_cache_close(&cache);
	expect_int(kvof_cache_flush(NULL, 0), -EINVAL);
	expect_int(kvof_cache_pin(NULL, id, 1, 1), -EINVAL);
}

static bool removed_from_array(struct kvof_cache *cache, const struct kvof_id *id)
{
	struct kvof_event event;
	uint64_t lost;

	while (kvof_cache_events(cache, &event, 1, &lost) == 1)
		if (event.tier == KVOF_TIER_REMOTE && event.stored == 0 &&
		    memcmp(&event.id, id, sizeof(*id)) == 0)
			return true;
	return false;
}

TEST(a_pin_keeps_a_block_and_a_ttl_ends_it)
{
	struct kvof_cache *cache = begin(1 << 20);
	struct kvof_id ids[3];
	struct kvof_hint hint = {.struct_bytes = sizeof(hint), .priority = 5, .ttl_ns = 1};

	ids_fill(cache, 0, 3, ids);
	save_all(cache, ids, 3);
	expect_int(kvof_cache_pin(cache, ids, 2, 1), 0);
	expect_int(stat_of(cache).pinned_blocks, 2);
	expect_int(kvof_cache_pin(cache, ids, 2, 0), 0);
	expect_int(matched(cache, ids, 3), 3);
	expect_int(kvof_cache_hint(cache, &ids[1], 1, &hint), 0);
	expect_int(kvof_cache_flush(cache, 0), 0);
	while (matched(cache, ids, 3) != 1)
		;                          /* time is read once a turn of the cache's loop */
	while (!removed_from_array(cache, &ids[1]))
		;
	expect_int(stat_of(cache).dram_blocks, 2);
	expect_int(stat_of(cache).expired, 1);
	expect_int(matched(cache, ids, 3), 1);
	kvof_cache_close(&cache);
	expect_int(sim_host_count(), 9);   /* two blocks of four values, and the list */
}

TEST(events_tell_what_was_stored_and_removed_and_how_many_were_lost)
{
	struct kvof_cache *cache = begin(1 << 20);
	struct kvof_id ids[60];
	struct kvof_event event[100];
	uint64_t lost = 77;
	int n;

	ids_fill(cache, 0, 60, ids);
	expect_int(kvof_cache_events(cache, event, 100, &lost), 0);
	save_all(cache, ids, 1);
	delete_one(cache, ids);
	n = kvof_cache_events(cache, event, 100, &lost);
	expect_int(n, 4);
	expect_int(lost, 0);
	for (int i = 0; i < n; i++) {
		expect(memcmp(&event[i].id, ids, sizeof(ids[0])) == 0);
		expect_int(event[i].stored, i < 2);
	}
	expect_int(event[0].tier + event[1].tier, KVOF_TIER_DRAM + KVOF_TIER_REMOTE);
	save_all(cache, ids, 60);
	expect_int(kvof_cache_events(cache, event, 60, &lost), 60);
	expect_int(lost, 20);
	expect_int(kvof_cache_events(cache, event, 100, &lost), 40);
	expect_int(lost, 0);
	expect_int(stat_of(cache).events_lost, 20);
	kvof_cache_close(&cache);
}

TEST(a_match_of_many_is_answered_from_memory_the_second_time)
{
	struct kvof_cache *cache = begin(0);
	struct kvof_id ids[40];
	unsigned asked;

	ids_fill(cache, 0, 40, ids);
	save_all(cache, ids, 40);
	kvof_cache_close(&cache);
	cache = opened(unhurried());
	expect_int(matched(cache, ids, 40), 40);
	expect_int(stat_of(cache).match_asked, 40);
	asked = sim_host.log_count;
	for (unsigned i = 0; i < 10; i++)
		expect_int(matched(cache, ids, 40), 40);
	expect_int(sim_host.log_count, asked);
	expect_int(stat_of(cache).match_known, 400);
	kvof_cache_close(&cache);
}

/* A match may be answered in its caller's thread, in the middle of what others do. */
struct asker { pthread_t thread; struct kvof_cache *cache; struct kvof_id id[4]; unsigned wrong; };

static unsigned whole(struct asker *a, enum kvof_op op, uint32_t from, uint32_t count)
{
	static uint8_t data[BYTES];
	struct iovec iov = {data, sizeof(data)};
	struct kvof_block b[4];
	struct kvof_result r[4];
	unsigned good = 0;

	for (uint32_t i = 0; i < count; i++)
		b[i] = op == KVOF_SAVE ?
			(struct kvof_block){a->id[from + i], &iov, 1, sizeof(data)} :
			(struct kvof_block){.id = a->id[from + i]};
	if (kvof_cache_wait(a->cache, op, b, count, 0, r) == 0)
		for (uint32_t i = 0; i < count; i++)
			good += r[i].reason == KVOF_OK;
	return good == count ? 0 : 1;
}

static unsigned told(struct asker *a, uint32_t count, uint32_t want)
{
	uint32_t n = 77;

	return kvof_cache_match(a->cache, a->id, count, 0, &n) != 0 || n != want;
}

static void *save_match_delete(void *arg)
{
	struct asker *a = arg;

	for (unsigned round = 0; round < 200; round++) {
		a->wrong += whole(a, KVOF_SAVE, 0, 4);
		a->wrong += told(a, 4, 4);
		a->wrong += kvof_cache_unlease(a->cache, a->id, 4) != 0;
		a->wrong += told(a, 3, 3);
		a->wrong += whole(a, KVOF_DELETE, 2, 1);
		a->wrong += told(a, 4, 2);
		a->wrong += whole(a, KVOF_DELETE, 0, 1);
		a->wrong += told(a, 2, 0);
		a->wrong += whole(a, KVOF_DELETE, 1, 1) + whole(a, KVOF_DELETE, 3, 1);
	}
	return NULL;
}

TEST(each_thread_is_told_by_match_what_it_has_done_while_others_do_the_same)
{
	struct kvof_cache *cache = begin(8 * MiB);
	struct asker a[3];

	for (uint32_t i = 0; i < 3; i++) {
		a[i] = (struct asker){.cache = cache};
		ids_fill(cache, 100 * i, 4, a[i].id);
		expect_int(pthread_create(&a[i].thread, NULL, save_match_delete, &a[i]), 0);
	}
	for (uint32_t i = 0; i < 3; i++) {
		expect_int(pthread_join(a[i].thread, NULL), 0);
		expect_int(a[i].wrong, 0);
	}
	kvof_cache_close(&cache);
}

TEST(skip_read_asks_nobody_and_skip_write_leaves_the_array_alone)
{
	struct kvof_cache *cache = begin(1 << 20);
	static uint8_t data[BYTES];
	struct iovec iov = {data, sizeof(data)};
	struct kvof_id ids[2];
	struct kvof_block b[2];
	struct kvof_result r[2];
	unsigned before;
	uint64_t batch;

	ids_fill(cache, 0, 2, ids);
	for (uint32_t i = 0; i < 2; i++)
		b[i] = (struct kvof_block){ids[i], &iov, 1, sizeof(data)};
	before = sim_host.log_count;
	expect_int(kvof_cache_submit_flags(cache, KVOF_SAVE, b, 2, 0, KVOF_SKIP_WRITE, &batch), 0);
	for (uint32_t n = 0; n < 2;) {
		struct pollfd p = {kvof_cache_fd(cache), POLLIN, 0};

		expect_int(poll(&p, 1, 10000), 1);
		n += (uint32_t)kvof_cache_drain(cache, r, 2 - n);
	}
	expect_int(sim_host.log_count, before);
	expect_int(stat_of(cache).dram_blocks, 2);
	expect_int(kvof_cache_submit_flags(cache, KVOF_LOAD, b, 1, 0, KVOF_SKIP_READ, &batch), 0);
	for (int got = 0; got == 0;) {
		struct pollfd p = {kvof_cache_fd(cache), POLLIN, 0};

		expect_int(poll(&p, 1, 10000), 1);
		got = kvof_cache_drain(cache, r, 1);
	}
	expect_int(r[0].reason, KVOF_ABSENT);
	kvof_cache_close(&cache);
}

/* --- layouts ---------------------------------------------------------------------------------- */

/* K and V of a layer lie apart, and the rows of each in pieces of odd sizes and places. */
static void scatter(uint8_t *memory, size_t bytes, struct prng *rng, struct iovec *iov,
		    uint32_t pieces, uint64_t *sum)
{
	size_t step = bytes / pieces;

	*sum = 0;
	for (uint32_t i = 0; i < pieces; i++) {
		size_t len = 1 + prng_below(rng, step - 1), at = prng_below(rng, step - len + 1);

		/* from the end to the front, so that order in memory and in the value differ */
		iov[i] = (struct iovec){memory + (pieces - 1 - i) * step + at, len};
		*sum += len;
	}
}

static void gather(const struct iovec *iov, uint32_t pieces, uint8_t *out)
{
	for (uint32_t i = 0; i < pieces; i++) {
		memcpy(out, iov[i].iov_base, iov[i].iov_len);
		out += iov[i].iov_len;
	}
}

TEST(a_block_is_gathered_from_many_places_and_scattered_to_as_many_others)
{
	static uint8_t from[40000], to[40000], a[40000], b[40000];
	struct prng rng = prng_of(5);
	struct kvof_cache *cache = begin(0);

	for (uint32_t round = 0; round < 40; round++) {
		uint32_t pieces = 1 + (uint32_t)prng_below(&rng, KVOF_IOV_MAX);
		struct iovec iov[KVOF_IOV_MAX], back[KVOF_IOV_MAX];
		struct kvof_block block = {.iov = iov, .iov_count = pieces};
		struct kvof_result r;
		uint64_t bytes, room;

		prng_fill(&rng, from, sizeof(from));
		scatter(from, sizeof(from), &rng, iov, pieces, &bytes);
		scatter(to, sizeof(to), &rng, back, pieces, &room);
		ids_fill(cache, round, 1, &block.id);
		block.bytes = bytes;
		expect_int(kvof_cache_wait(cache, KVOF_SAVE, &block, 1, 0, &r), 0);
		expect_int(r.reason, KVOF_OK);
		block.iov = back;
		block.bytes = room;
		expect_int(kvof_cache_wait(cache, KVOF_LOAD, &block, 1, 0, &r), 0);
		expect_int(r.value_bytes, bytes);
		expect_int(r.reason, room < bytes ? KVOF_SHORT : KVOF_OK);
		gather(iov, pieces, a);
		gather(back, pieces, b);
		if (room >= bytes)
			expect(memcmp(a, b, bytes) == 0);
	}
	kvof_cache_close(&cache);
}

TEST(k_and_v_that_lie_apart_are_one_value_in_the_order_of_the_list)
{
	static uint8_t k[2][3000], v[2][1500], flat[9000];
	struct kvof_cache *cache = begin(0);
	struct iovec iov[4] = {{k[0], 3000}, {v[0], 1500}, {k[1], 3000}, {v[1], 1500}};
	struct iovec one = {flat, sizeof(flat)};
	struct kvof_block block = {.iov = iov, .iov_count = 4, .bytes = 9000};
	struct prng rng = prng_of(6);
	struct kvof_result r;

	prng_fill(&rng, k, sizeof(k));
	prng_fill(&rng, v, sizeof(v));
	ids_fill(cache, 1, 1, &block.id);
	expect_int(kvof_cache_wait(cache, KVOF_SAVE, &block, 1, 0, &r), 0);
	block.iov = &one;
	block.iov_count = 1;
	expect_int(kvof_cache_wait(cache, KVOF_LOAD, &block, 1, 0, &r), 0);
	expect_int(r.reason, KVOF_OK);
	expect(memcmp(flat, k[0], 3000) == 0 && memcmp(flat + 3000, v[0], 1500) == 0);
	expect(memcmp(flat + 4500, k[1], 3000) == 0 && memcmp(flat + 7500, v[1], 1500) == 0);
	kvof_cache_close(&cache);
}

static enum sim_hook hook_hang_all(struct host_op *op, int *res)
{
	return SIM_HOOK_HANG;
}

static unsigned flying_now(void)
{
	return atomic_load(&sim_host.flying);
}

TEST(a_match_that_an_array_leaves_hanging_leaves_nothing_to_drain)
{
	struct kvof_cache *cache = begin(0);
	struct kvof_id ids[4];
	struct kvof_result r;
	uint32_t n = 9;

	ids_fill(cache, 1, 4, ids);
	sim_host.hook = hook_hang_all;
	sim_host.busy_ns = 5 * NS_PER_MS;
	expect_int(kvof_cache_match(cache, ids, 4, 20 * NS_PER_MS, &n), 0);
	expect_int(n, 0);
	while (flying_now() > 0)
		sched_yield();
	sim_host.hook = NULL;
	/* the thread has handled the releases when it answers this */
	expect_int(kvof_cache_match(cache, ids, 4, NS_PER_S, &n), 0);
	expect_int(kvof_cache_drain(cache, &r, 1), 0);
	kvof_cache_close(&cache);
}
