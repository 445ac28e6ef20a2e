/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stays of a cache when room is wanted, tried on a drive of numbers: values of one block in
 * segments, moved as evict.c moves them. Figures go to the TAP comments.
 *
 * KVOF_TRACES names a folder with the public traces mooncake_conversation_trace.jsonl and
 * mooncake_synthetic_trace.jsonl (docs/sources.md); without it those two are skipped.
 */
#include "kt.h"

#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/prng.h"
#include "store/policy.h"

#define KEYS_MAX 2000000u
#define RESERVE 2u

struct mini_segment {
	uint32_t *key;
	uint32_t count;
	uint64_t turn;
	bool lucky, main, used;
};

struct mini {
	struct policy policy;
	struct mini_segment *segment;
	uint32_t segments, blocks, free, open, probation;
	uint64_t turn, stored, carried, hits, gets;
	int32_t *where;                      /* segment of a key; -1: not there */
	uint8_t *hit;
	struct policy_value *value;
	bool second_touch;
};

static void mini_open(struct mini *m, uint32_t capacity, uint32_t segments, uint32_t percent)
{
	*m = (struct mini){.policy = {.carry_percent = percent}, .segments = segments,
		.blocks = capacity / segments, .free = segments - 1};
	m->segment = calloc(segments, sizeof(*m->segment));
	m->where = malloc(KEYS_MAX * sizeof(*m->where));
	m->hit = calloc(KEYS_MAX, 1);
	m->value = calloc(m->blocks, sizeof(*m->value));
	must(m->segment != NULL && m->where != NULL && m->hit != NULL && m->value != NULL);
	memset(m->where, 0xff, KEYS_MAX * sizeof(*m->where));
	for (uint32_t i = 0; i < segments; i++)
		m->segment[i].key = calloc(m->blocks, sizeof(uint32_t));
	m->segment[0].used = true;
}

static void mini_close(struct mini *m)
{
	for (uint32_t i = 0; i < m->segments; i++)
		free(m->segment[i].key);
	free(m->segment);
	free(m->where);
	free(m->hit);
	free(m->value);
}

static void mini_append(struct mini *m, uint32_t key)
{
	struct mini_segment *s = &m->segment[m->open];

	if (s->count == m->blocks) {
		for (m->open = 0; m->segment[m->open].used; m->open++)
			must(m->open + 1 < m->segments);
		s = &m->segment[m->open];
		*s = (struct mini_segment){.key = s->key, .used = true, .turn = ++m->turn};
		must(m->free > 0);
		m->free--;
		m->probation++;
	}
	s->key[s->count++] = key;
	m->where[key] = (int32_t)m->open;
	m->hit[key] = 0;
}

static uint32_t mini_next(const struct mini *m)
{
	uint32_t best = m->segments;
	bool young = m->second_touch &&
		     m->probation * 100 > m->segments * POLICY_PROBATION_PERCENT;

	for (uint32_t i = 0; i < m->segments; i++) {
		const struct mini_segment *s = &m->segment[i];

		if (!s->used || i == m->open || (young && s->main))
			continue;
		if (best == m->segments || s->turn < m->segment[best].turn)
			best = i;
	}
	must(best < m->segments);
	return best;
}

static void mini_evict(struct mini *m)
{
	uint32_t at = mini_next(m), n = 0, keys = 0;
	struct mini_segment *s = &m->segment[at];
	struct policy_segment ps = {.blocks = m->blocks, .segments = m->segments,
		.may_stay = true, .lucky = s->lucky};
	enum policy_verdict verdict;

	for (uint32_t i = 0; i < s->count; i++) {
		if (m->where[s->key[i]] != (int32_t)at)
			continue;
		s->key[keys++] = s->key[i];
		m->value[n++] = (struct policy_value){.blocks = 1, .hits = m->hit[s->key[i]]};
	}
	s->count = keys;
	verdict = policy_turn(&m->policy, &ps, m->value, n);
	if (verdict != POLICY_GOES) {
		m->probation -= !s->main;
		s->main = true;
		s->lucky = verdict == POLICY_LUCKY_STAYS;
		s->turn = ++m->turn;
		for (uint32_t i = 0; i < keys; i++)
			m->hit[s->key[i]] = 0;
		return;
	}
	m->carried += policy_carry(&m->policy, &ps, m->value, n);
	for (uint32_t i = 0; i < keys; i++) {
		m->where[s->key[i]] = -1;
		if (m->value[i].carry)
			mini_append(m, s->key[i]);
	}
	m->probation -= !s->main;
	s->used = s->main = false;
	m->free++;
}

static bool mini_get(struct mini *m, uint32_t key)
{
	bool there = m->where[key] >= 0;

	m->gets++;
	m->hits += there;
	if (there && m->hit[key] < 2)
		m->hit[key]++;
	return there;
}

static void mini_put(struct mini *m, uint32_t key)
{
	while (m->free < RESERVE)
		mini_evict(m);
	mini_append(m, key);
	m->stored++;
	policy_stored(&m->policy, m->blocks, 1);
}

static void mini_ask(struct mini *m, uint32_t key)
{
	if (!mini_get(m, key))
		mini_put(m, key);
}

static double mini_amplification(const struct mini *m)
{
	return (double)(m->stored + m->carried) / (double)m->stored;
}

/* --- cyclic ---------------------------------------------------------------------------- */

static double cyclic(uint32_t capacity, uint32_t segments, uint32_t keys, unsigned laps)
{
	struct mini m;
	double last, amplification;

	mini_open(&m, capacity, segments, POLICY_CARRY_PERCENT);
	for (unsigned lap = 0; lap < laps; lap++) {
		m.hits = m.gets = 0;
		for (uint32_t k = 0; k < keys; k++)
			mini_ask(&m, k);
	}
	last = (double)m.hits / (double)m.gets;
	amplification = mini_amplification(&m);
	printf("# cyclic, %u values in room for %u, %u segments: lap %u hits %.3f, "
	       "amplification %.3f\n", keys, capacity, segments, laps, last, amplification);
	expect(amplification <= 1.1);
	mini_close(&m);
	return last;
}

TEST(a_cyclic_trace_just_over_capacity_keeps_hits)
{
	static const uint32_t segments[] = {8, 16, 64, 256};

	for (unsigned i = 0; i < ARRAY_COUNT(segments); i++) {
		expect(cyclic(8192, segments[i], 8192 + 8192 / 50, 4) > 0.01);
		expect(cyclic(8192, segments[i], 8192 + 8192 / 20, 20) > 0.1);
	}
	expect(cyclic(8192, 64, 8192 + 8192 / 5, 20) > 0.05);
}

/* --- scans ----------------------------------------------------------------------------- */

static double scanned(uint32_t hot, bool second_touch, unsigned asks_percent)
{
	struct mini m;
	struct prng p = prng_of(7);
	uint32_t capacity = 8192, next = capacity, left = 0;
	double amplification;

	mini_open(&m, capacity, 64, POLICY_CARRY_PERCENT);
	m.second_touch = second_touch;
	for (unsigned round = 0; round < 3; round++) {
		for (uint32_t k = 0; k < hot; k++)
			mini_ask(&m, k);
	}
	m.hits = m.gets = 0;
	/* two scans, twice the capacity each */
	for (uint32_t i = 0; i < 4 * capacity; i++) {
		mini_put(&m, next++);
		if (prng_below(&p, 100) < asks_percent)
			mini_ask(&m, (uint32_t)prng_below(&p, hot));
	}
	for (uint32_t k = 0; k < hot; k++)
		left += m.where[k] >= 0;
	amplification = mini_amplification(&m);
	printf("# hot %.2f of capacity, asked for by %u %% of operations, two scans%s: %.3f of it "
	       "left, hit rate %.3f, amplification %.3f\n", (double)hot / capacity, asks_percent,
	       second_touch ? " (second touch)" : "", (double)left / hot,
	       (double)m.hits / (double)m.gets, amplification);
	expect(amplification <= 1.1);
	mini_close(&m);
	return (double)left / hot;
}

TEST(two_large_scans_do_not_flush_a_hot_set)
{
	expect(scanned(400, false, 50) > 0.95);
	expect(scanned(1600, false, 50) > 0.95);
	expect(scanned(3200, false, 50) > 0.9);
	expect(scanned(1600, true, 50) > 0.9);
	expect(scanned(3200, true, 50) > 0.5);
}

/* --- traces ---------------------------------------------------------------------------- */

/* Hits are counted as an engine counts them: the strict prefix. */
static double trace(const char *path, uint32_t capacity, uint32_t percent, double *amplification)
{
	static char line[1 << 16];
	FILE *f = fopen(path, "r");
	uint64_t hits = 0, all = 0;
	struct mini m;

	expect(f != NULL);
	mini_open(&m, capacity, 64, percent);
	while (fgets(line, sizeof(line), f) != NULL) {
		char *at = strstr(line, "\"hash_ids\": [");
		bool prefix = true;

		expect(at != NULL);
		for (at += 13; *at != ']';) {
			uint32_t key = (uint32_t)strtoul(at, &at, 10);

			expect(key < KEYS_MAX);
			all++;
			if (!mini_get(&m, key)) {
				mini_put(&m, key);
				prefix = false;
			}
			hits += prefix;
			while (*at == ',' || *at == ' ')
				at++;
		}
	}
	fclose(f);
	*amplification = mini_amplification(&m);
	mini_close(&m);
	return (double)hits / (double)all;
}

TEST(public_traces_hit_more_than_first_in_first_out)
{
	static const struct {
		const char *name;
		uint32_t capacity;
		double fifo, lru;            /* facts measured beside this one */
	} row[] = {
		{"mooncake_conversation_trace.jsonl", 10000, 0.178, 0.2112},
		{"mooncake_conversation_trace.jsonl", 30000, 0.288, 0.3257},
		{"mooncake_synthetic_trace.jsonl", 20000, 0.524, 0.5715},
	};
	const char *folder = getenv("KVOF_TRACES");

	if (folder == NULL || folder[0] == '\0')
		skip_because("no public traces; KVOF_TRACES names their folder");
	for (unsigned i = 0; i < ARRAY_COUNT(row); i++) {
		char path[512];
		double amplification, rate;

		snprintf(path, sizeof(path), "%s/%s", folder, row[i].name);
		rate = trace(path, row[i].capacity, POLICY_CARRY_PERCENT, &amplification);
		printf("# %s, room for %u: hits %.4f (first in first out %.4f, LRU %.4f), "
		       "amplification %.3f\n", row[i].name, row[i].capacity, rate, row[i].fifo,
		       row[i].lru, amplification);
		expect(rate > row[i].fifo);
		expect(amplification <= 1.1);
	}
}

/* --- the parts ------------------------------------------------------------------------- */

TEST(what_is_carried_is_within_credit_and_most_asked_for_first)
{
	struct policy p = {.carry_percent = 10};
	struct policy_segment s = {.blocks = 100, .segments = 16};
	struct policy_value v[6] = {{.blocks = 5, .hits = 1}, {.blocks = 5, .hits = 2},
		{.blocks = 5}, {.blocks = 40, .hits = 2}, {.blocks = 4, .hits = 1},
		{.blocks = 4, .hits = 1}};

	expect_int(policy_carry(&p, &s, v, 6), 0);
	policy_stored(&p, 100, 100);
	expect_int(policy_carry(&p, &s, v, 6), 10);  /* 5 asked for twice, 5 once */
	expect(v[1].carry && v[0].carry && !v[2].carry && !v[3].carry && !v[4].carry);
	policy_uncarried(&p, 5);
	expect_int(policy_carry(&p, &s, v + 4, 2), 4);
	for (unsigned i = 0; i < 100; i++)
		policy_stored(&p, 100, 100);
	s.blocks = 60;
	expect_int(policy_carry(&p, &s, v + 3, 1), 0);       /* more than half a segment */
}

TEST(what_is_kept_is_carried_without_credit_and_a_segment_full_of_it_stays)
{
	struct policy p = {.carry_percent = 7};
	struct policy_segment s = {.blocks = 100, .segments = 8, .may_stay = true};
	struct policy_value v[8];
	unsigned stays = 0;

	for (unsigned i = 0; i < 8; i++)
		v[i] = (struct policy_value){.blocks = 12, .kept = i < 5, .hits = 0};
	p.turns = 1;
	expect(policy_turn(&p, &s, v, 8) == POLICY_GOES);
	expect_int(policy_carry(&p, &s, v, 8), 60);
	for (unsigned i = 0; i < 8; i++)
		expect_int(v[i].carry, i < 5);
	expect_int(p.credit, 0);
	for (unsigned i = 0; i < 8; i++)
		v[i].kept = true;
	while (policy_turn(&p, &s, v, 8) == POLICY_STAYS)
		stays++;
	expect_int(stays, 8);              /* but not for ever */
	s.may_stay = false;
	expect(policy_turn(&p, &s, v, 8) == POLICY_GOES);
}

TEST(a_segment_with_something_dead_never_stays)
{
	struct policy p = {.carry_percent = 7};
	struct policy_segment s = {.blocks = 10, .segments = 100, .may_stay = false};
	struct policy_value v = {.blocks = 10, .hits = 2};

	for (unsigned i = 0; i < 100; i++)
		expect_int(policy_turn(&p, &s, &v, 1), POLICY_GOES);
	s.may_stay = true;
	expect_int(policy_turn(&p, &s, &v, 1), POLICY_STAYS);
}

TEST(where_all_is_hot_something_goes_in_the_end)
{
	struct policy p = {.carry_percent = 7};
	struct policy_segment s = {.blocks = 10, .segments = 8, .may_stay = true};
	struct policy_value v = {.blocks = 10, .hits = 1};
	unsigned stayed = 0;

	while (policy_turn(&p, &s, &v, 1) != POLICY_GOES)
		stayed++;
	expect_int(stayed, 4);
}
