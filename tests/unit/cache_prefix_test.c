/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix tree, and the rule of the longest prefix. */
#include "kt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "cache/prefix.h"

#define BLOCKS PREFIX_BLOCKS_MIN
#define PRESENCE_NS (10 * NS_PER_S)
#define NOW (1000 * NS_PER_S)

static struct kvof_id id_of(uint32_t n)
{
	struct kvof_id id;

	hash_sha256_once(&n, sizeof(n), id.byte);
	return id;
}

static struct kvof_id *ids_of(uint32_t first, uint32_t count)
{
	static struct kvof_id ids[4096];

	must(count <= ARRAY_COUNT(ids));
	for (uint32_t i = 0; i < count; i++)
		ids[i] = id_of(first + i);
	return ids;
}

static struct prefix_ids row_of(const struct kvof_id *ids, uint32_t count)
{
	return (struct prefix_ids){ids, sizeof(*ids), count};
}

static struct prefix *tree(uint32_t blocks)
{
	struct prefix_opts opts = {.blocks = blocks, .presence_ns = PRESENCE_NS};
	struct prefix *p;

	expect_int(prefix_open(&opts, &p), 0);
	return p;
}

static void over(struct prefix *p)
{
	prefix_check(p);
	prefix_close(&p);
	expect(p == NULL);
}

static uint32_t match(struct prefix *p, const struct kvof_id *ids, uint32_t count, uint64_t now_ns)
{
	return prefix_match(p, ids, count, now_ns, 0);
}

static struct prefix_stat stat_of(const struct prefix *p)
{
	struct prefix_stat stat;

	prefix_stat(p, &stat);
	return stat;
}

TEST(leading_blocks_end_at_the_first_that_is_not_there)
{
	struct kvof_result r[4];

	kt_noise(r, sizeof(r));
	for (unsigned missing = 0; missing <= 4; missing++) {
		for (unsigned i = 0; i < 4; i++)
			r[i].reason = i == missing ? KVOF_ABSENT : KVOF_OK;
		expect_int(prefix_leading(r, 4), missing);
	}
	r[1].reason = KVOF_LATE;
	expect_int(prefix_leading(r, 4), 1);
	expect_int(prefix_leading(r, 0), 0);
}

TEST(a_match_ends_at_the_first_block_that_no_tier_is_known_to_have)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id *ids = ids_of(0, 200);

	expect_int(match(p, ids, 200, NOW), 0);
	for (uint32_t i = 0; i < 200; i++)
		prefix_seen(p, (enum kvof_tier)(1 + i % 3), &ids[i], NOW);
	expect_int(match(p, ids, 200, NOW), 200);
	expect_int(match(p, ids, 0, NOW), 0);
	for (uint32_t gap = 0; gap < 200; gap++) {
		enum kvof_tier tier = (enum kvof_tier)(1 + gap % 3);

		prefix_lost(p, tier, &ids[gap]);
		expect_int(match(p, ids, 200, NOW), gap);
		prefix_seen(p, tier, &ids[gap], NOW);
	}
	expect_int(prefix_where(p, &ids[4], NOW), 1u << KVOF_TIER_REMOTE);
	prefix_seen(p, KVOF_TIER_DRAM, &ids[4], NOW);
	expect_int(prefix_where(p, &ids[4], NOW), 1u << KVOF_TIER_REMOTE | 1u << KVOF_TIER_DRAM);
	over(p);
}

TEST(what_flash_and_arrays_have_is_believed_for_presence_ns_and_dram_for_ever)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id *ids = ids_of(0, 3);

	prefix_seen(p, KVOF_TIER_DRAM, &ids[0], NOW);
	prefix_seen(p, KVOF_TIER_REMOTE, &ids[1], NOW);
	prefix_seen(p, KVOF_TIER_FLASH, &ids[2], NOW + PRESENCE_NS / 2);
	expect_int(match(p, ids, 3, NOW + PRESENCE_NS - 20 * NS_PER_MS), 3);
	expect_int(match(p, ids, 3, NOW + PRESENCE_NS), 1);
	expect_int(match(p, ids + 2, 1, NOW + PRESENCE_NS), 1);
	expect_int(match(p, ids + 2, 1, NOW + 2 * PRESENCE_NS), 0);
	expect_int(match(p, ids, 1, NOW + 1000 * PRESENCE_NS), 1);
	/* what was not believed any more was not wrong */
	prefix_lost(p, KVOF_TIER_REMOTE, &ids[1]);
	expect_int(stat_of(p).wrong, 0);
	prefix_seen(p, KVOF_TIER_REMOTE, &ids[1], NOW + 2000 * PRESENCE_NS);
	prefix_lost(p, KVOF_TIER_REMOTE, &ids[1]);
	prefix_lost(p, KVOF_TIER_REMOTE, &ids[1]);
	expect_int(stat_of(p).wrong, 1);
	over(p);
}

TEST(presence_and_leases_outlive_the_32_bits_of_their_ticks)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id *ids = ids_of(0, 2);
	uint64_t now = NOW, day = 86400 * NS_PER_S;

	for (unsigned i = 0; i < 40; i++, now += 50 * day) {
		expect_int(match(p, ids, 2, now), 0);
		prefix_seen(p, KVOF_TIER_REMOTE, &ids[0], now);
		prefix_seen(p, KVOF_TIER_DRAM, &ids[1], now);
		expect_int(prefix_match(p, ids, 2, now, now + NS_PER_S), 2);
		expect(prefix_held(p, &ids[1], now + NS_PER_S - 1));
		expect(!prefix_held(p, &ids[1], now + 2 * NS_PER_S));
		expect_int(match(p, ids, 2, now + PRESENCE_NS / 2), 2);
		prefix_lost(p, KVOF_TIER_DRAM, &ids[1]);
	}
	over(p);
}

TEST(a_full_tree_forgets_leaves_used_longest_ago_and_never_a_head_before_its_tail)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id head[64], next[64];
	uint32_t n = 64, left;

	memcpy(head, ids_of(0, n), sizeof(head));
	prefix_link(p, row_of(head, n), true);
	for (uint32_t i = 0; i < n; i++)
		prefix_seen(p, KVOF_TIER_DRAM, &head[n - 1 - i], NOW);
	for (uint32_t turn = 1; turn <= 4 * BLOCKS / n; turn++) {
		memcpy(next, ids_of(turn * 1000, n), sizeof(next));
		prefix_link(p, row_of(next, n), true);
		for (uint32_t i = 0; i < n; i++)
			prefix_seen(p, KVOF_TIER_DRAM, &next[i], NOW);
		/* the first sequence stays as long as it is used, all of it */
		if (turn < 2 * BLOCKS / n) {
			expect_int(match(p, head, n, NOW), n);
			continue;
		}
		left = 0;
		while (left < n && prefix_where(p, &head[left], NOW) != 0)
			left++;
		for (uint32_t i = left; i < n; i++)
			expect_int(prefix_where(p, &head[i], NOW), 0);
	}
	expect_int(left, 0);
	expect_int(stat_of(p).blocks, BLOCKS);
	expect(stat_of(p).forgotten > 0);
	over(p);
}

TEST(a_head_that_two_sequences_share_is_kept_while_one_of_them_is)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id a[20], b[20];
	uint32_t n = 20;

	memcpy(a, ids_of(0, n), sizeof(a));
	memcpy(b, a, sizeof(b));
	for (uint32_t i = 10; i < n; i++)
		b[i] = id_of(500 + i);
	prefix_link(p, row_of(a, n), true);
	prefix_link(p, row_of(b, n), true);
	for (uint32_t i = 0; i < n; i++) {
		prefix_seen(p, KVOF_TIER_DRAM, &a[i], NOW);
		prefix_seen(p, KVOF_TIER_DRAM, &b[i], NOW);
	}
	for (uint32_t turn = 1; turn <= 2 * BLOCKS; turn++) {
		struct kvof_id id = id_of(10000 + turn);

		prefix_seen(p, KVOF_TIER_REMOTE, &id, NOW);
		expect_int(match(p, b, n, NOW), n);
	}
	expect_int(match(p, a, n, NOW), 10);
	over(p);
}

TEST(parents_are_linked_in_any_order_and_never_in_a_circle)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id *ids = ids_of(0, 4), up;
	struct kvof_id circle[3] = {ids[2], ids[0], ids[1]};

	kt_noise(&up, sizeof(up));
	prefix_link(p, row_of(ids, 4), false);
	expect_int(stat_of(p).blocks, 0);
	prefix_link(p, row_of(ids + 1, 2), true);
	prefix_link(p, row_of(ids, 2), true);
	expect(prefix_parent(p, &ids[2], &up) && memcmp(&up, &ids[1], sizeof(up)) == 0);
	expect(prefix_parent(p, &ids[1], &up) && memcmp(&up, &ids[0], sizeof(up)) == 0);
	prefix_link(p, row_of(circle, 3), true);
	expect(!prefix_parent(p, &ids[0], &up));
	prefix_check(p);
	circle[1] = circle[0];
	prefix_link(p, row_of(circle, 2), true);
	expect(!prefix_parent(p, &ids[3], &up));
	over(p);
}

TEST(a_lease_holds_what_is_in_dram_until_it_ends_or_is_given_back)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id *ids = ids_of(0, 3);
	uint64_t until = NOW + 5 * NS_PER_S;

	prefix_seen(p, KVOF_TIER_DRAM, &ids[0], NOW);
	prefix_seen(p, KVOF_TIER_REMOTE, &ids[1], NOW);
	prefix_seen(p, KVOF_TIER_DRAM, &ids[2], NOW);
	expect(!prefix_held(p, &ids[0], NOW));
	expect_int(prefix_match(p, ids, 3, NOW, until), 3);
	expect(prefix_held(p, &ids[0], until - 1) && prefix_held(p, &ids[2], until - 1));
	expect(!prefix_held(p, &ids[1], NOW));
	expect(!prefix_held(p, &ids[0], until + 10 * NS_PER_MS));
	/* a shorter lease does not end a longer one */
	expect_int(prefix_match(p, ids, 3, NOW, NOW + NS_PER_S), 3);
	expect(prefix_held(p, &ids[0], until - 1));
	/* each match has its own; what is given back too often is no one else's */
	prefix_unlease(p, &ids[0]);
	expect(prefix_held(p, &ids[0], NOW));
	prefix_unlease(p, &ids[0]);
	expect(!prefix_held(p, &ids[0], NOW) && prefix_held(p, &ids[2], NOW));
	prefix_unlease(p, &ids[0]);
	expect_int(prefix_match(p, ids, 1, NOW, until), 1);
	expect(prefix_held(p, &ids[0], NOW));
	/* those that ran out are not counted */
	expect_int(prefix_match(p, ids, 1, until + NS_PER_S, until + 2 * NS_PER_S), 1);
	prefix_unlease(p, &ids[0]);
	expect(!prefix_held(p, &ids[0], until + NS_PER_S));
	/* more than can be counted end with their time only */
	for (unsigned i = 0; i < 100; i++)
		expect_int(prefix_match(p, ids, 1, until + NS_PER_S, until + 9 * NS_PER_S), 1);
	for (unsigned i = 0; i < 100; i++)
		prefix_unlease(p, &ids[0]);
	expect(prefix_held(p, &ids[0], until + 8 * NS_PER_S));
	over(p);
}

TEST(pins_are_counted_and_outlive_everything_else_that_is_known)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id pinned[2] = {id_of(1), id_of(2)};

	expect_int(prefix_pin(p, pinned, 2, true), 0);
	expect_int(prefix_pin(p, pinned, 1, true), 0);
	for (uint32_t i = 0; i < 3 * BLOCKS; i++) {
		struct kvof_id id = id_of(100 + i);

		prefix_seen(p, KVOF_TIER_DRAM, &id, NOW);
	}
	prefix_gone(p, &pinned[0]);
	expect(prefix_held(p, &pinned[0], NOW) && prefix_pinned(p, &pinned[1]));
	expect_int(stat_of(p).pinned, 2);
	expect_int(prefix_pin(p, pinned, 2, false), 0);
	expect(prefix_pinned(p, &pinned[0]) && !prefix_pinned(p, &pinned[1]));
	expect_int(prefix_pin(p, pinned, 2, false), -EINVAL);
	expect(!prefix_pinned(p, &pinned[0]));
	expect_int(stat_of(p).pinned, 0);
	over(p);
}

TEST(more_than_half_is_not_pinned_and_a_pin_that_fails_pins_nothing)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id *ids = ids_of(0, BLOCKS);
	struct kvof_hint ttl = {.ttl_ns = NS_PER_S};

	expect_int(prefix_pin(p, ids, BLOCKS / 2 + 1, true), -EBUSY);
	expect_int(stat_of(p).pinned, 0);
	expect_int(prefix_pin(p, ids, BLOCKS / 2, true), 0);
	expect_int(prefix_pin(p, ids, BLOCKS / 2, true), 0);
	expect_int(prefix_hint(p, ids + BLOCKS / 2, 1, &ttl, NOW), -EBUSY);
	expect_int(prefix_hint(p, ids, 1, &ttl, NOW), 0);
	prefix_check(p);
	expect_int(prefix_pin(p, ids, BLOCKS / 2, false), 0);
	expect_int(prefix_pin(p, ids, BLOCKS / 2, false), 0);
	expect_int(prefix_hint(p, ids + BLOCKS / 2, 1, &ttl, NOW), 0);
	for (unsigned i = 0; i <= UINT16_MAX; i++)
		expect_int(prefix_pin(p, &ids[7], 1, true), i < UINT16_MAX ? 0 : -EBUSY);
	over(p);
}

TEST(what_is_under_lease_is_not_forgotten_and_a_tree_full_of_leases_learns_nothing)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id *ids = ids_of(0, BLOCKS), more = id_of(5000);

	for (uint32_t i = 0; i < BLOCKS; i++)
		prefix_seen(p, KVOF_TIER_DRAM, &ids[i], NOW);
	expect_int(prefix_match(p, ids, BLOCKS, NOW, NOW + NS_PER_S), BLOCKS);
	prefix_seen(p, KVOF_TIER_DRAM, &more, NOW);
	expect_int(prefix_where(p, &more, NOW), 0);
	expect_int(prefix_pin(p, &more, 1, true), -EBUSY);
	expect_int(match(p, ids, BLOCKS, NOW), BLOCKS);
	prefix_seen(p, KVOF_TIER_DRAM, &more, NOW + 2 * NS_PER_S);
	expect(prefix_where(p, &more, NOW + 2 * NS_PER_S) != 0);
	over(p);
}

TEST(a_block_whose_ttl_is_over_is_not_there_until_it_is_saved_anew)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id *ids = ids_of(0, 3), got;
	struct kvof_hint hint = {.priority = -7, .ttl_ns = NS_PER_S};
	uint64_t end = NOW + NS_PER_S;

	for (uint32_t i = 0; i < 3; i++)
		prefix_seen(p, KVOF_TIER_DRAM, &ids[i], NOW);
	expect_int(prefix_over_at(p) == UINT64_MAX, 1);
	expect_int(prefix_hint(p, &ids[1], 1, &hint, NOW), 0);
	expect_int(prefix_priority(p, &ids[1]), -7);
	expect(prefix_over_at(p) == end);
	expect_int(match(p, ids, 3, end - 1), 3);
	expect(!prefix_over_take(p, end - 1, &got));
	expect_int(match(p, ids, 3, end), 1);
	expect(prefix_over(p, &ids[1], end) && !prefix_over(p, &ids[0], end));
	expect(prefix_over_take(p, end, &got) && memcmp(&got, &ids[1], sizeof(got)) == 0);
	expect(!prefix_over_take(p, end, &got));
	expect_int(match(p, ids, 3, end), 1);
	/* the deletion failed: again later, and not served meanwhile */
	prefix_over_again(p, &got, end + NS_PER_S);
	prefix_over_again(p, &got, end + NS_PER_S);
	expect(prefix_over(p, &ids[1], end) && prefix_over_at(p) == end + NS_PER_S);
	expect(prefix_over_take(p, end + NS_PER_S, &got));
	prefix_gone(p, &got);
	expect(prefix_over(p, &ids[1], end));
	prefix_over_done(p, &got);
	prefix_over_done(p, &got);
	expect_int(stat_of(p).over, 1);
	expect(!prefix_over(p, &ids[1], end));
	expect_int(match(p, ids, 3, end), 1);
	prefix_seen(p, KVOF_TIER_DRAM, &ids[1], end);
	expect_int(match(p, ids, 3, end + 100 * NS_PER_S), 3);
	over(p);
}

TEST(a_save_ends_a_deletion_that_was_to_be_tried_again)
{
	struct prefix *p = tree(BLOCKS);
	struct kvof_id *ids = ids_of(0, 1), got;
	struct kvof_hint hint = {.ttl_ns = 1}, none = {0};

	expect_int(prefix_hint(p, ids, 1, &hint, NOW), 0);
	expect_int(prefix_hint(p, ids, 1, &none, NOW), 0);
	expect(!prefix_over_take(p, NOW + 1, &got));
	expect_int(prefix_hint(p, ids, 1, &hint, NOW), 0);
	expect(prefix_over_take(p, NOW + 1, &got));
	prefix_over_again(p, ids, NOW + NS_PER_S);
	prefix_seen(p, KVOF_TIER_REMOTE, ids, NOW);
	expect(prefix_over(p, ids, NOW) && prefix_where(p, ids, NOW) == 0);
	prefix_renew(p, ids, NOW);
	expect(!prefix_over(p, ids, NOW) && prefix_where(p, ids, NOW) != 0);
	expect(prefix_over_at(p) == UINT64_MAX);
	prefix_over_again(p, ids, NOW + NS_PER_S);
	expect(prefix_over_at(p) == UINT64_MAX);
	expect_int(prefix_hint(p, ids, 1, &hint, NOW), 0);
	prefix_renew(p, ids, NOW);
	expect(prefix_over(p, ids, NOW + 1));
	prefix_renew(p, ids, NOW + 1);
	expect(!prefix_over(p, ids, NOW + 1) && prefix_over_at(p) == UINT64_MAX);
	hint.ttl_ns = UINT64_MAX;
	expect_int(prefix_hint(p, ids, 1, &hint, NOW), 0);
	expect(!prefix_over(p, ids, UINT64_MAX - 2));
	over(p);
}

/* A plain list of what was said, and the tree beside it. */
struct model {
	uint8_t tiers[512];
	uint16_t pins[512];
	uint64_t end_ns[512];
};

static void random_step(struct prefix *p, struct model *m, struct prng *rng, uint64_t now)
{
	uint32_t i = (uint32_t)prng_below(rng, 512);
	struct kvof_id id = id_of(i);
	enum kvof_tier tier = (enum kvof_tier)(1 + prng_below(rng, 3));
	struct kvof_hint hint = {.ttl_ns = 1 + prng_below(rng, NS_PER_S)};
	struct kvof_id row[8];

	switch (prng_below(rng, 7)) {
	case 0:
		prefix_seen(p, tier, &id, now);
		m->tiers[i] |= (uint8_t)(1u << tier);
		break;
	case 1:
		prefix_lost(p, tier, &id);
		m->tiers[i] &= (uint8_t)~(1u << tier);
		break;
	case 2:
		if (prefix_pin(p, &id, 1, true) == 0)
			m->pins[i]++;
		break;
	case 3:
		expect_int(prefix_pin(p, &id, 1, false), m->pins[i] > 0 ? 0 : -EINVAL);
		if (m->pins[i] > 0)
			m->pins[i]--;
		break;
	case 4:
		if (prefix_hint(p, &id, 1, &hint, now) == 0)
			m->end_ns[i] = now + hint.ttl_ns;
		break;
	case 5:
		prefix_gone(p, &id);
		m->tiers[i] = 0;
		m->end_ns[i] = 0;
		break;
	default:
		for (uint32_t k = 0; k < 8; k++)
			row[k] = id_of((uint32_t)prng_below(rng, 512));
		prefix_link(p, row_of(row, 8), prng_below(rng, 2) == 0);
	}
}

TEST(random_calls_keep_the_tree_and_a_plain_list_of_the_same_opinion)
{
	struct prefix *p = tree(BLOCKS);
	struct prng rng = prng_of(7);
	static struct model m;
	uint64_t now = NOW;

	memset(&m, 0, sizeof(m));
	for (unsigned step = 0; step < 20000; step++) {
		struct kvof_id got;
		uint32_t i = (uint32_t)prng_below(&rng, 512);

		random_step(p, &m, &rng, now);
		now += prng_below(&rng, NS_PER_MS / 10);
		while (prefix_over_take(p, now, &got))
			prefix_over_done(p, &got);
		for (uint32_t k = 0; k < 512; k++) {
			if (m.end_ns[k] == 0 || m.end_ns[k] > now)
				continue;
			m.end_ns[k] = 0;
			m.tiers[k] = 0;
		}
		got = id_of(i);
		expect_int(prefix_where(p, &got, now), m.tiers[i]);
		expect_int(prefix_pinned(p, &got), m.pins[i] > 0);
		if (step % 500 == 0)
			prefix_check(p);
	}
	over(p);
}

TEST(the_options_choose_a_size_that_fits_the_tiers)
{
	struct kvof_cache_opts opts = {.dram_bytes = 64 * MiB};

	expect_int(prefix_opts_of(&opts).blocks, 16384);
	opts.dram_bytes = 64 * KiB;
	expect_int(prefix_opts_of(&opts).blocks, PREFIX_BLOCKS_MIN);
	opts.target = "tcp://a:1";
	expect_int(prefix_opts_of(&opts).blocks, PREFIX_BLOCKS);
	opts.index_blocks = 5000;
	opts.presence_ns = 7 * NS_PER_S;
	expect_int(prefix_opts_of(&opts).blocks, 5000);
	expect(prefix_opts_of(&opts).presence_ns == 7 * NS_PER_S);
	expect(prefix_memory_bytes(PREFIX_BLOCKS) < 200 * MiB);
}
