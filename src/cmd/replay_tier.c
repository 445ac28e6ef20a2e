/* SPDX-License-Identifier: Apache-2.0 */
/* One tier of a replay: blocks have numbers and no bytes; a policy says which one goes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/prng.h"
#include "cmd/replay.h"

int replay_tier_open(struct replay_tier *t, const char *policy, uint64_t capacity_blocks,
		     uint32_t unique_blocks, uint64_t seed)
{
	struct policy_opts opts = {.capacity_units = capacity_blocks, .seed = seed};
	int rc;

	*t = (struct replay_tier){.keep = POLICY_NONE};
	must(capacity_blocks > 0);
	if (unique_blocks == 0)
		unique_blocks = 1;
	t->slots = capacity_blocks < unique_blocks ? (uint32_t)capacity_blocks : unique_blocks;
	opts.slots = t->slots;
	rc = policy_open(policy, &opts, &t->policy);
	if (rc != 0)
		return rc;
	t->where = malloc(unique_blocks * sizeof(*t->where));
	t->what = malloc(t->slots * sizeof(*t->what));
	t->free = malloc(t->slots * sizeof(*t->free));
	if (t->where == NULL || t->what == NULL || t->free == NULL) {
		replay_tier_close(t);
		return -ENOMEM;
	}
	memset(t->where, 0xff, unique_blocks * sizeof(*t->where));
	while (t->free_count < t->slots) {
		t->free[t->free_count] = t->slots - 1 - t->free_count;
		t->free_count++;
	}
	return 0;
}

void replay_tier_close(struct replay_tier *t)
{
	if (t->policy != NULL)
		policy_close(&t->policy);
	free(t->where);
	free(t->what);
	free(t->free);
	*t = (struct replay_tier){0};
}

bool replay_tier_has(const struct replay_tier *t, uint32_t block)
{
	return t->where[block] != POLICY_NONE;
}

void replay_tier_hit(struct replay_tier *t, uint32_t block)
{
	policy_hit(t->policy, t->where[block]);
}

/* Numbers are dense: a key of the same number on any machine. */
static uint64_t key_of(uint32_t block)
{
	struct prng r = prng_of(block);

	return prng_next(&r);
}

bool replay_tier_admits(struct replay_tier *t, uint32_t block)
{
	return policy_admit(t->policy, key_of(block), 1);
}

static bool tier_may_go(void *arg, uint32_t slot)
{
	const struct replay_tier *t = arg;

	return slot != t->keep;
}

static bool tier_room(struct replay_tier *t, uint32_t parent)
{
	uint32_t victim;

	if (t->free_count > 0)
		return true;
	t->keep = parent;
	victim = policy_victim(t->policy, tier_may_go, t);
	if (victim == POLICY_NONE)
		return false;
	policy_evict(t->policy, victim);
	t->where[t->what[victim]] = POLICY_NONE;
	t->free[t->free_count++] = victim;
	t->evicted++;
	return true;
}

static bool tier_take(struct replay_tier *t, uint32_t block, uint32_t parent)
{
	struct policy_item item = {.key = key_of(block), .parent = parent, .units = 1};
	uint32_t slot;

	if (!tier_room(t, parent))
		return false;
	slot = t->free[--t->free_count];
	t->what[slot] = block;
	t->where[block] = slot;
	policy_insert(t->policy, slot, &item);
	return true;
}

bool replay_tier_insert(struct replay_tier *t, uint32_t block, uint32_t before)
{
	uint32_t parent = before != POLICY_NONE ? t->where[before] : POLICY_NONE;

	if (before != POLICY_NONE && parent == POLICY_NONE && policy_tails_first(t->policy))
		return false;
	return tier_take(t, block, policy_tails_first(t->policy) ? parent : POLICY_NONE);
}

static void use_forward(struct replay_tier *t, const uint32_t *block, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		if (replay_tier_has(t, block[i]))
			replay_tier_hit(t, block[i]);
		else
			(void)replay_tier_insert(t, block[i], i > 0 ? block[i - 1] : POLICY_NONE);
	}
}

/* A block comes before the one it follows: links are told when both are there, and once more from
 * the head on. */
static void use_backward(struct replay_tier *t, const uint32_t *block, uint32_t count)
{
	bool links = policy_tails_first(t->policy);

	for (uint32_t i = count; i-- > 0;) {
		if (replay_tier_has(t, block[i])) {
			replay_tier_hit(t, block[i]);
			continue;
		}
		if (tier_take(t, block[i], POLICY_NONE) && links && i + 1 < count &&
		    replay_tier_has(t, block[i + 1]))
			policy_link(t->policy, t->where[block[i + 1]], t->where[block[i]]);
	}
	for (uint32_t i = 1; links && i < count; i++)
		if (replay_tier_has(t, block[i]) && replay_tier_has(t, block[i - 1]))
			policy_link(t->policy, t->where[block[i]], t->where[block[i - 1]]);
}

void replay_tier_use(struct replay_tier *t, const uint32_t *block, uint32_t count, bool rev)
{
	if (rev)
		use_backward(t, block, count);
	else
		use_forward(t, block, count);
}
