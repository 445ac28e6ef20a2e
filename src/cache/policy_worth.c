/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `worth`, the default: what is expected to earn the fewest hits for the room it takes goes next,
 * tails before heads.
 *
 * Blocks are told apart by what is known when they are used (enum worth_kind): how often the
 * sequence they are part of was used before, whether nothing follows them, whether many sequences
 * share them. For each kind the policy counts at which age its blocks were used again, out of how
 * many that came to that age. Age is what has been used since, in units of room, and ranges of
 * ages are parts of the room: what is learned holds for any speed and size.
 *
 * From these counts comes the worth of a block of a kind at an age: the most hits for a unit of
 * room and time that keeping it for any span from now on is expected to bring. Blocks of one kind
 * and one range of ages are on one list, longest unused first. The list that is worth least gives
 * the victim; among lists worth about the same it is the block that was unused longest, so that
 * with nothing learned the policy is an lru, and it departs from that only as far as counts say.
 *
 * Hits for room and time is the measure of [LHD]; the kinds, the way to the counts and what follows
 * from prefixes are ours.
 *
 *   worth(kind, age) = max over spans of  P(used again within it) / E(room and time held in it)
 *
 * Counts are of a sample of all keys, held or not (struct worth_seen): what is learned does not
 * depend on what was evicted. The sample halves itself when it no longer reaches far enough back,
 * and counts are halved from time to time, so old habits fade. What was used more than once does
 * not grow older while a scan goes by (clocks_run()): it finds nothing to displace but itself and
 * what was used once.
 *
 * slot.uses: uses of the sequence so far; a new block takes it over from the block before it,
 * divided by the sequences that went on from there. slot.births: blocks that ever followed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "cache/policy_impl.h"

enum worth_kind {
	WORTH_TURN,                        /* used once; then twice, ... */
	WORTH_TURN_LAST = WORTH_TURN + 5,  /* six times or more */
	WORTH_TAIL,                        /* nothing ever came after it */
	WORTH_SHARED,                      /* many sequences went on from it */
	WORTH_KINDS
};

#define WORTH_AGES 56u                     /* ranges, four to a doubling */
#define WORTH_FIRST_PART 64u               /* the first one: so much of the room is used */
#define WORTH_LISTS (WORTH_KINDS * WORTH_AGES)
#define WORTH_SHARED_BIRTHS 8u
#define WORTH_SEEN_MIN 65536u              /* keys of the sample: four for each slot, */
#define WORTH_SEEN_MAX 262144u             /* within these */
#define WORTH_REACH 4u                     /* rooms of age that the sample is to reach back */
#define WORTH_RANK_EVERY 1024u             /* uses between two reckonings */
#define WORTH_HALVE_ROOMS 16u              /* counts are halved after so many blocks held, and */
#define WORTH_HALVE_MIN 131072u            /* not before so many uses */
#define WORTH_ALIKE 24u                    /* blocks of one request that fare alike, about */
#define WORTH_SHRINK 200u                  /* blocks' worth of belief in the average */
#define WORTH_SMOOTH 1000u                 /* the same, of an age in the one before it */
#define WORTH_MARGIN 2u                    /* a scan: less than half of the usual use is again */
#define WORTH_SLACK_PART 4u                /* and longer than it takes to use so much of the room */
#define WORTH_SLACK_MIN 64u
#define ONE (UINT64_C(1) << 20)            /* of a probability */

_Static_assert(POLICY_LIST_OWN + WORTH_LISTS <= POLICY_LISTS_MAX, "every list has a place");

struct worth_seen {
	uint64_t key, touched;
	uint32_t prev, next, chain;
	uint16_t list;                     /* kind * WORTH_AGES + age; UINT16_MAX: free */
};

struct worth_ends {
	uint32_t front, back;
};

struct worth {
	uint64_t clock[2];                 /* units used so far; the same without scans */
	uint64_t pace[2];                  /* units used, and used again; old ones count less */
	uint64_t budget;                   /* by which clock[1] may run on */
	uint64_t uses, ranked_uses, halved_uses;
	uint64_t advanced[2];              /* clocks when ages were looked at last */
	uint64_t limit[WORTH_AGES];        /* an age is below it */
	uint64_t width[WORTH_AGES];        /* of the range, in 256ths of the first one's */
	uint64_t came[WORTH_LISTS];        /* to this age */
	uint64_t again[WORTH_LISTS];       /* used again at this age */
	uint32_t level[WORTH_LISTS];       /* worth, as a logarithm */
	uint16_t order[WORTH_LISTS];       /* lists by level */
	struct worth_seen *seen;
	struct worth_ends ends[WORTH_LISTS];
	uint32_t *bucket;
	uint32_t seen_slots, seen_free, seen_count;
	uint64_t sample_mask;
};

static unsigned list_of(unsigned kind, unsigned age)
{
	return kind * WORTH_AGES + age;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* By which clock blocks of a kind grow old: what was used once by all use, what was used again by
 * what is used again, so that a scan does not age it. */
static unsigned clock_of(unsigned kind)
{
	return kind == WORTH_TURN || kind == WORTH_TAIL ? 0 : 1;
}

/* --- the sample ----------------------------------------------------------- */

static uint32_t *seen_bucket(struct worth *w, uint64_t key)
{
	return &w->bucket[(key >> 20) & (w->seen_slots - 1)];
}

static uint32_t seen_find(struct worth *w, uint64_t key)
{
	uint32_t at = *seen_bucket(w, key);

	while (at != POLICY_NONE && w->seen[at].key != key)
		at = w->seen[at].chain;
	return at;
}

static void seen_push(struct worth *w, unsigned list, uint32_t at)
{
	struct worth_ends *e = &w->ends[list];
	struct worth_seen *s = &w->seen[at];

	s->list = (uint16_t)list;
	s->prev = e->back;
	s->next = POLICY_NONE;
	if (e->back == POLICY_NONE)
		e->front = at;
	else
		w->seen[e->back].next = at;
	e->back = at;
}

static void seen_take(struct worth *w, uint32_t at)
{
	struct worth_seen *s = &w->seen[at];
	struct worth_ends *e = &w->ends[s->list];

	if (s->prev == POLICY_NONE)
		e->front = s->next;
	else
		w->seen[s->prev].next = s->next;
	if (s->next == POLICY_NONE)
		e->back = s->prev;
	else
		w->seen[s->next].prev = s->prev;
}

static void seen_drop(struct worth *w, uint32_t at)
{
	uint32_t *link = seen_bucket(w, w->seen[at].key);

	while (*link != at) {
		must(*link != POLICY_NONE);
		link = &w->seen[*link].chain;
	}
	*link = w->seen[at].chain;
	seen_take(w, at);
	w->seen[at].list = UINT16_MAX;
	w->seen[at].chain = w->seen_free;
	w->seen_free = at;
	w->seen_count--;
}

/* Half of the keys, and half of the counts that they made. */
static void sample_halve(struct worth *w)
{
	w->sample_mask = w->sample_mask * 2 + 1;
	for (uint32_t i = 0; i < w->seen_slots; i++)
		if (w->seen[i].list != UINT16_MAX && (w->seen[i].key & w->sample_mask) != 0)
			seen_drop(w, i);
	for (unsigned i = 0; i < WORTH_LISTS; i++) {
		w->came[i] /= 2;
		w->again[i] /= 2;
	}
}

static uint64_t seen_age(const struct worth *w, uint32_t at)
{
	return w->clock[clock_of(w->seen[at].list / WORTH_AGES)] - w->seen[at].touched;
}

static uint32_t seen_oldest(const struct worth *w)
{
	for (unsigned age = WORTH_AGES; age-- > 0;) {
		uint32_t oldest = POLICY_NONE;

		for (unsigned kind = 0; kind < WORTH_KINDS; kind++) {
			uint32_t at = w->ends[list_of(kind, age)].front;

			if (at != POLICY_NONE && (oldest == POLICY_NONE ||
			    seen_age(w, at) > seen_age(w, oldest)))
				oldest = at;
		}
		if (oldest != POLICY_NONE)
			return oldest;
	}
	return POLICY_NONE;
}

/* A key of the sample was used and is of that kind from now on. */
static void sample_use(struct policy *p, uint64_t key, unsigned kind)
{
	struct worth *w = p->self;
	uint32_t at, *bucket;

	if ((key & w->sample_mask) != 0)
		return;
	at = seen_find(w, key);
	if (at != POLICY_NONE) {
		w->again[w->seen[at].list]++;
		seen_take(w, at);
	} else {
		while (w->seen_count == w->seen_slots) {
			at = seen_oldest(w);
			if (seen_age(w, at) >= WORTH_REACH * p->opts.capacity_units)
				seen_drop(w, at);
			else
				sample_halve(w);
		}
		if ((key & w->sample_mask) != 0)
			return;
		at = w->seen_free;
		w->seen_free = w->seen[at].chain;
		w->seen_count++;
		bucket = seen_bucket(w, key);
		w->seen[at].key = key;
		w->seen[at].chain = *bucket;
		*bucket = at;
	}
	w->seen[at].touched = w->clock[clock_of(kind)];
	w->came[list_of(kind, 0)]++;
	seen_push(w, list_of(kind, 0), at);
}

/* It turns out, soon after its use, to be of another kind. */
static void sample_kind(struct worth *w, uint64_t key, unsigned kind)
{
	uint32_t at = (key & w->sample_mask) == 0 ? seen_find(w, key) : POLICY_NONE;
	unsigned age;

	if (at == POLICY_NONE)
		return;
	age = w->seen[at].list % WORTH_AGES;
	for (unsigned i = 0; i <= age; i++) {
		uint64_t *was = &w->came[w->seen[at].list - age + i];

		*was -= *was > 0;
		w->came[list_of(kind, i)]++;
	}
	w->seen[at].touched += w->clock[clock_of(kind)] -
			       w->clock[clock_of(w->seen[at].list / WORTH_AGES)];
	seen_take(w, at);
	seen_push(w, list_of(kind, age), at);
}

/* --- ages ----------------------------------------------------------------- */

static void ages_held(struct policy *p, unsigned list, uint64_t limit)
{
	struct worth *w = p->self;
	uint64_t clock = w->clock[clock_of(list / WORTH_AGES)];
	unsigned from = POLICY_LIST_OWN + list;

	while (p->list[from].front != POLICY_NONE &&
	       clock - p->slot[p->list[from].front].touched >= limit) {
		uint32_t slot = p->list[from].front;

		policy_list_take(p, slot);
		policy_list_push(p, from + 1, slot);
	}
}

static void ages_seen(struct worth *w, unsigned list, uint64_t limit)
{
	while (w->ends[list].front != POLICY_NONE && seen_age(w, w->ends[list].front) >= limit) {
		uint32_t at = w->ends[list].front;

		seen_take(w, at);
		seen_push(w, list + 1, at);
		w->came[list + 1]++;
	}
}

/* Moves what has grown older to the next range, from the oldest range down, so that each block
 * moves on by as much as it has to in a few calls. */
static void ages_advance(struct policy *p)
{
	struct worth *w = p->self;

	bool due[2];

	for (unsigned i = 0; i < 2; i++) {
		due[i] = w->clock[i] - w->advanced[i] >= w->limit[0] / 4;
		if (due[i])
			w->advanced[i] = w->clock[i];
	}
	for (unsigned kind = 0; kind < WORTH_KINDS; kind++)
		for (unsigned age = WORTH_AGES - 1; due[clock_of(kind)] && age-- > 0;) {
			ages_held(p, list_of(kind, age), w->limit[age]);
			ages_seen(w, list_of(kind, age), w->limit[age]);
		}
}

/* --- worth ---------------------------------------------------------------- */

static uint64_t root(uint64_t x)
{
	uint64_t r = 0;

	for (uint64_t bit = UINT64_C(1) << 31; bit > 0; bit >>= 1)
		if ((r + bit) * (r + bit) <= x)
			r += bit;
	return r;
}

/* Of all kinds together: the chance of being used within a range for those that come to it. What
 * few came to is taken from the range before. */
static void chance_average(const struct worth *w, uint64_t average[WORTH_AGES])
{
	for (unsigned age = 0; age < WORTH_AGES; age++) {
		uint64_t came = 0, again = 0, before = age > 0 ? average[age - 1] * 9 / 10 : 0;

		for (unsigned kind = WORTH_TURN; kind <= WORTH_TURN_LAST; kind++) {
			came += w->came[list_of(kind, age)];
			again += w->again[list_of(kind, age)];
		}
		average[age] = (again * ONE + WORTH_SMOOTH * before) / (came + WORTH_SMOOTH);
	}
}

/* Of one kind: as counted, drawn to the average by half of what chance alone explains. */
static uint64_t chance_of(const struct worth *w, unsigned kind, unsigned age, uint64_t average)
{
	uint64_t came = w->came[list_of(kind, age)], again = w->again[list_of(kind, age)];
	uint64_t alike = larger(WORTH_ALIKE / (w->sample_mask + 1), 1), chance, noise;

	if (kind > WORTH_TURN_LAST) {
		chance = (again * ONE + WORTH_SHRINK * average) / (came + WORTH_SHRINK);
	} else {
		chance = came > 0 ? again * ONE / came : average;
		noise = larger(average, ONE >> 13);
		noise = root(noise * (ONE - bytes_min(noise, ONE - 1)) / (came + 1) * alike);
		if (chance > average)
			chance = chance - average > noise ? chance - noise : average;
		else
			chance = average - chance > noise ? chance + noise : average;
	}
	return bytes_min(chance, ONE - ONE / 1024);
}

/* Four steps to a doubling. */
static uint32_t level_of(uint64_t hits, uint64_t room)
{
	uint64_t ratio = room > 0 ? (uint64_t)(((unsigned __int128)hits << 40) / room) : 0;
	unsigned top;

	if (ratio < 4)
		return 0;
	top = 63 - (unsigned)__builtin_clzll(ratio);
	return top * 4 + (uint32_t)(ratio >> (top - 2) & 3);
}

static uint32_t worth_at(const struct worth *w, const uint64_t chance[WORTH_AGES], unsigned age)
{
	uint64_t left = ONE, hits = 0, room = 0, best_hits = 0, best_room = 1;

	for (unsigned i = age; i < WORTH_AGES; i++) {
		uint64_t used = left * chance[i] / ONE;

		hits += used;
		room += (left - used / 2) * w->width[i] / 256;
		left -= used;
		if ((unsigned __int128)hits * best_room > (unsigned __int128)best_hits * room) {
			best_hits = hits;
			best_room = room;
		}
	}
	return level_of(best_hits, best_room);
}

static int order_compare(const void *a, const void *b, void *arg)
{
	const struct worth *w = arg;
	uint16_t i = *(const uint16_t *)a, j = *(const uint16_t *)b;

	return w->level[i] != w->level[j] ? (w->level[i] < w->level[j] ? -1 : 1) : i - j;
}

static void worth_reckon(struct worth *w)
{
	uint64_t average[WORTH_AGES], chance[WORTH_AGES];

	chance_average(w, average);
	for (unsigned kind = 0; kind < WORTH_KINDS; kind++) {
		for (unsigned age = 0; age < WORTH_AGES; age++)
			chance[age] = chance_of(w, kind, age, average[age]);
		for (unsigned age = 0; age < WORTH_AGES; age++)
			w->level[list_of(kind, age)] = worth_at(w, chance, age);
	}
	for (unsigned i = 0; i < WORTH_LISTS; i++)
		w->order[i] = (uint16_t)i;
	qsort_r(w->order, WORTH_LISTS, sizeof(w->order[0]), order_compare, w);
	w->ranked_uses = w->uses;
}

static void counts_halve(struct policy *p)
{
	struct worth *w = p->self;
	uint64_t every = larger(WORTH_HALVE_ROOMS * (uint64_t)p->count, WORTH_HALVE_MIN);

	if (w->uses - w->halved_uses < every)
		return;
	w->halved_uses = w->uses;
	w->pace[0] /= 2;
	w->pace[1] /= 2;
	for (unsigned i = 0; i < WORTH_LISTS; i++) {
		w->came[i] /= 2;
		w->again[i] /= 2;
	}
}

/* --- the policy ----------------------------------------------------------- */

static unsigned kind_of(const struct policy_slot *s)
{
	if (s->births > WORTH_SHARED_BIRTHS)
		return WORTH_SHARED;
	if (s->births == 0 && s->hits == 0)
		return WORTH_TAIL;
	return WORTH_TURN + (unsigned)bytes_min(s->uses, WORTH_TURN_LAST - WORTH_TURN + 1) - 1;
}

/*
 * What was used before ages by what is used, but not by a scan: while less is used again than is
 * usual, by a margin, its clock stands still.
 */
static void clocks_run(struct policy *p, uint64_t units, bool again)
{
	struct worth *w = p->self;
	uint64_t most = p->opts.capacity_units / WORTH_SLACK_PART + WORTH_SLACK_MIN, step;

	w->clock[0] += units;
	w->pace[0] += units;
	if (again) {
		w->pace[1] += units;
		w->budget += WORTH_MARGIN * units * w->pace[0] / w->pace[1];
		w->budget = bytes_min(w->budget, most);
	}
	step = bytes_min(units, w->budget);
	w->budget -= step;
	w->clock[1] += step;
}

/* On no list: it is used now. */
static void worth_use(struct policy *p, uint32_t slot, bool again)
{
	struct worth *w = p->self;
	struct policy_slot *s = &p->slot[slot];

	clocks_run(p, s->units, again);
	w->uses++;
	ages_advance(p);
	counts_halve(p);
	s->kind = (uint16_t)kind_of(s);
	s->touched = w->clock[clock_of(s->kind)];
	policy_list_push(p, POLICY_LIST_OWN + list_of(s->kind, 0), slot);
	sample_use(p, s->key, s->kind);
}

/* It may be of another kind now; its age is the same. */
static void worth_kind(struct policy *p, uint32_t slot)
{
	const struct worth *w = p->self;
	struct policy_slot *s = &p->slot[slot];
	unsigned kind = kind_of(s), age;

	if (!policy_slot_own(p, slot) || kind == s->kind)
		return;
	age = (s->list - POLICY_LIST_OWN) % WORTH_AGES;
	s->touched += w->clock[clock_of(kind)] - w->clock[clock_of(s->kind)];
	s->kind = (uint16_t)kind;
	policy_list_take(p, slot);
	policy_list_push(p, POLICY_LIST_OWN + list_of(kind, age), slot);
	sample_kind(p->self, s->key, kind);
}

static void worth_insert(struct policy *p, uint32_t slot, bool again, uint64_t note)
{
	struct policy_slot *s = &p->slot[slot];

	if (s->uses == 0)
		s->uses = (uint32_t)note;
	if (s->births == 0)
		s->births = (uint32_t)(note >> 32);
	s->uses += s->uses < UINT32_MAX;
	worth_use(p, slot, again && note != 0);
}

static void worth_hit(struct policy *p, uint32_t slot)
{
	struct policy_slot *s = &p->slot[slot];

	s->uses += s->uses < UINT32_MAX;
	s->hits += s->hits < UINT32_MAX;
	policy_list_take(p, slot);
	worth_use(p, slot, true);
}

static void worth_linked(struct policy *p, uint32_t slot, bool fresh)
{
	struct policy_slot *s = &p->slot[slot], *above = &p->slot[s->parent];
	uint32_t uses;

	if (fresh && above->births < UINT32_MAX) {
		above->births++;
		worth_kind(p, s->parent);
	}
	uses = above->births > 2 ? above->uses / (above->births - 1) : above->uses;
	if (uses > s->uses) {
		s->uses = uses;
		worth_kind(p, slot);
	}
}

static uint64_t worth_leave(struct policy *p, uint32_t slot)
{
	return (uint64_t)p->slot[slot].births << 32 | p->slot[slot].uses;
}

static void worth_removed(struct policy *p, uint32_t slot)
{
	struct worth *w = p->self;
	uint32_t at = seen_find(w, p->slot[slot].key);

	if (at != POLICY_NONE)
		seen_drop(w, at);
}

static uint64_t slot_age(const struct policy *p, uint32_t slot)
{
	const struct worth *w = p->self;

	return w->clock[clock_of((p->slot[slot].list - POLICY_LIST_OWN) / WORTH_AGES)] -
	       p->slot[slot].touched;
}

static uint32_t worth_victim(struct policy *p, bool (*may_go)(void *, uint32_t), void *arg)
{
	struct worth *w = p->self;
	uint32_t victim = POLICY_NONE, level = 0;

	if (w->uses - w->ranked_uses >= WORTH_RANK_EVERY || w->ranked_uses == 0)
		worth_reckon(w);
	for (unsigned i = 0; i < WORTH_LISTS; i++) {
		uint16_t list = w->order[i];
		uint32_t slot;

		if (victim != POLICY_NONE && w->level[list] > level)
			break;
		slot = policy_list_first(p, POLICY_LIST_OWN + list, may_go, arg);
		if (slot == POLICY_NONE || (victim != POLICY_NONE &&
		    slot_age(p, slot) <= slot_age(p, victim)))
			continue;
		victim = slot;
		level = w->level[list];
	}
	return victim;
}

static void worth_limits(struct policy *p)
{
	struct worth *w = p->self;
	/* 256 times the quarters of a doubling */
	static const uint32_t quarter[4] = {256, 304, 362, 431};
	uint64_t first = larger(p->opts.capacity_units / WORTH_FIRST_PART, 1), before = 0;

	for (unsigned age = 0; age < WORTH_AGES; age++) {
		uint64_t end = (uint64_t)quarter[age % 4] << (age / 4);

		w->width[age] = end - before;
		/* ranges that are no unit wide get one each */
		w->limit[age] = first * end / 256 + age;
		before = end;
	}
	w->width[WORTH_AGES - 1] = before;
}

static uint32_t seen_slots(uint32_t slots)
{
	uint32_t n = WORTH_SEEN_MIN;

	while (n < WORTH_SEEN_MAX && n / 4 < slots)
		n *= 2;
	return n;
}

static uint64_t worth_bytes(uint32_t slots)
{
	return sizeof(struct worth) +
	       (uint64_t)seen_slots(slots) * (sizeof(struct worth_seen) + sizeof(uint32_t));
}

static int worth_open(struct policy *p)
{
	struct worth *w = calloc(1, sizeof(*w));

	if (w == NULL)
		return -ENOMEM;
	p->self = w;
	w->seen_slots = seen_slots(p->opts.slots);
	w->seen = calloc(w->seen_slots, sizeof(*w->seen));
	w->bucket = malloc(w->seen_slots * sizeof(*w->bucket));
	if (w->seen == NULL || w->bucket == NULL)
		return -ENOMEM;
	memset(w->bucket, 0xff, w->seen_slots * sizeof(*w->bucket));
	memset(w->ends, 0xff, sizeof(w->ends));
	for (uint32_t i = 0; i < w->seen_slots; i++) {
		w->seen[i].list = UINT16_MAX;
		w->seen[i].chain = i + 1 < w->seen_slots ? i + 1 : POLICY_NONE;
	}
	worth_limits(p);
	return 0;
}

static void worth_close(struct policy *p)
{
	struct worth *w = p->self;

	if (w == NULL)
		return;
	free(w->seen);
	free(w->bucket);
	free(w);
}

static void worth_check(const struct policy *p)
{
	const struct worth *w = p->self;
	uint32_t seen = 0;

	for (unsigned i = 0; i < WORTH_LISTS; i++) {
		uint32_t before = POLICY_NONE;

		for (uint32_t at = w->ends[i].front; at != POLICY_NONE; at = w->seen[at].next) {
			must(w->seen[at].list == i && w->seen[at].prev == before);
			must((w->seen[at].key & w->sample_mask) == 0);
			before = at;
			seen++;
		}
		must(w->ends[i].back == before);
	}
	must(seen == w->seen_count && seen <= w->seen_slots);
}

const struct policy_ops policy_worth_ops = {
	.name = "worth",
	.tails_first = true,
	.open = worth_open,
	.close = worth_close,
	.insert = worth_insert,
	.hit = worth_hit,
	.victim = worth_victim,
	.leave = worth_leave,
	.removed = worth_removed,
	.linked = worth_linked,
	.check = worth_check,
	.bytes = worth_bytes,
};
