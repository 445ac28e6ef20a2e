/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers of the simulator: lists in order of use, and the rules by which blocks come in. */
#include "plan/tiers.h"

#include <errno.h>
#include <stdlib.h>

#include "base/must.h"

#define TOUCH_S 60.0                       /* a head that nearer tiers serve is touched so often */
#define HELD 1
#define ASKED 2
#define USED 4                             /* since it was written, of a log */
#define CARRY_SHARE 0.07                   /* of what is written: the store's usual --carry */

int tiers_open(struct tiers *t, uint32_t unique_blocks)
{
	t->unique_blocks = unique_blocks;
	t->touched_s = calloc((size_t)unique_blocks + 1, sizeof(*t->touched_s));
	t->saved = calloc((size_t)unique_blocks + 1, 1);
	if (t->touched_s == NULL || t->saved == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < TIERS; i++) {
		struct tiers_tier *at = &t->tier[i];

		if (!at->present)
			continue;
		if (at->capacity_blocks == 0 || at->capacity_blocks > unique_blocks)
			at->capacity_blocks = unique_blocks > 0 ? unique_blocks : 1;
		at->newer = malloc(((size_t)unique_blocks + 1) * sizeof(*at->newer));
		at->older = malloc(((size_t)unique_blocks + 1) * sizeof(*at->older));
		at->known = calloc((size_t)unique_blocks + 1, 1);
		if (at->newer == NULL || at->older == NULL || at->known == NULL)
			return -ENOMEM;
		at->newer[unique_blocks] = at->older[unique_blocks] = unique_blocks;
	}
	return 0;
}

void tiers_close(struct tiers *t)
{
	for (unsigned i = 0; i < TIERS; i++) {
		free(t->tier[i].newer);
		free(t->tier[i].older);
		free(t->tier[i].known);
	}
	free(t->touched_s);
	free(t->saved);
	*t = (struct tiers){0};
}

/* --- one tier --------------------------------------------------------------------------------- */

static bool has(const struct tiers_tier *at, uint32_t block)
{
	return at->present && (at->known[block] & HELD) != 0;
}

static void list_take(struct tiers_tier *at, uint32_t block)
{
	at->newer[at->older[block]] = at->newer[block];
	at->older[at->newer[block]] = at->older[block];
}

/* end is the list's own place: older[end] was used last, newer[end] longest ago. */
static void list_put(struct tiers_tier *at, uint32_t end, uint32_t block)
{
	at->older[block] = at->older[end];
	at->newer[block] = end;
	at->newer[at->older[end]] = block;
	at->older[end] = block;
}

static void hit(struct tiers *t, struct tiers_tier *at, uint32_t block)
{
	if (at->log) {
		at->known[block] |= USED;
		return;
	}
	list_take(at, block);
	list_put(at, t->unique_blocks, block);
}

static void evict(struct tiers *t, struct tiers_tier *at)
{
	uint32_t oldest = at->newer[t->unique_blocks];

	while ((at->known[oldest] & USED) != 0 && at->may_carry >= 1) {
		at->may_carry--;
		at->carried++;
		at->written++;
		at->known[oldest] &= (uint8_t)~USED;
		list_take(at, oldest);
		list_put(at, t->unique_blocks, oldest);
		oldest = at->newer[t->unique_blocks];
	}
	list_take(at, oldest);
	at->known[oldest] = ASKED;
	at->count--;
	at->evicted++;
}

static void insert(struct tiers *t, struct tiers_tier *at, uint32_t block)
{
	at->may_carry += CARRY_SHARE;
	if (at->count == at->capacity_blocks)
		evict(t, at);
	list_put(at, t->unique_blocks, block);
	at->known[block] = HELD | ASKED;
	at->count++;
	must_slow(at->count <= at->capacity_blocks);
}

/* What a slower tier gave comes in while there is room, or if it was held or asked about before. */
static bool admits(struct tiers_tier *at, uint32_t block)
{
	bool known = (at->known[block] & ASKED) != 0;

	at->known[block] |= ASKED;
	return known || at->count < at->capacity_blocks;
}

/* --- all of them ------------------------------------------------------------------------------ */

uint32_t tiers_find(const struct tiers *t, const uint32_t *block, uint32_t count, uint8_t *from)
{
	for (uint32_t n = 0; n < count; n++) {
		unsigned i = 0;

		while (i < TIERS && !has(&t->tier[i], block[n]))
			i++;
		if (i == TIERS)
			return n;
		from[n] = (uint8_t)i;
	}
	return count;
}

void tiers_use(struct tiers *t, const uint32_t *block, uint32_t hits, const uint8_t *from,
	       double now_s)
{
	struct tiers_tier *array = &t->tier[TIERS_ARRAY];

	for (uint32_t n = hits; n-- > 0;) {
		double *touched_s = &t->touched_s[block[n]];

		hit(t, &t->tier[from[n]], block[n]);
		if (from[n] == TIERS_ARRAY || !has(array, block[n]) ||
		    (*touched_s > 0 && now_s + 1 - *touched_s < TOUCH_S))
			continue;
		*touched_s = now_s + 1;
		hit(t, array, block[n]);
		array->touched++;
	}
}

void tiers_save(struct tiers *t, const uint32_t *block, uint32_t hits, uint32_t count,
		const uint8_t *from)
{
	for (uint32_t n = 0; n < hits; n++) {
		for (unsigned i = 0; i < from[n]; i++) {
			struct tiers_tier *at = &t->tier[i];

			if (!at->present || has(at, block[n]))
				continue;
			if (!admits(at, block[n])) {
				at->refused++;
				continue;
			}
			at->promoted++;
			at->written++;
			insert(t, at, block[n]);
		}
	}
	for (uint32_t n = hits; n < count; n++) {
		for (unsigned i = 0; i < TIERS; i++) {
			struct tiers_tier *at = &t->tier[i];

			if (!at->present)
				continue;
			if (has(at, block[n])) {
				hit(t, at, block[n]);
			} else if (at->second_touch && !t->saved[block[n]]) {
				at->refused++;
			} else {
				insert(t, at, block[n]);
				at->written++;
			}
		}
		t->saved[block[n]] = 1;
	}
}

void tiers_warm(struct tiers *t, unsigned tier, uint32_t block)
{
	must(tier < TIERS && t->tier[tier].present);
	if (has(&t->tier[tier], block))
		hit(t, &t->tier[tier], block);
	else
		insert(t, &t->tier[tier], block);
	t->saved[block] = 1;
}
