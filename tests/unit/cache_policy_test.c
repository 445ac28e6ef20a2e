/* SPDX-License-Identifier: Apache-2.0 */
/* Which block goes next: each policy against what it promises, lru against a naive list. */
#include "kt.h"

#include <errno.h>
#include <string.h>

#include "base/must.h"
#include "base/prng.h"
#include "cache/policy.h"

static struct policy *opened(const char *name, uint32_t slots)
{
	struct policy_opts opts = {.slots = slots, .capacity_units = slots, .seed = 1};
	struct policy *p = NULL;

	expect_int(policy_open(name, &opts, &p), 0);
	return p;
}

static void put(struct policy *p, uint32_t slot, uint64_t key, uint32_t parent)
{
	policy_insert(p, slot, &(struct policy_item){.key = key, .parent = parent, .units = 1});
}

TEST(a_policy_that_is_not_known_is_refused)
{
	struct policy_opts opts = {.slots = 4, .capacity_units = 4};
	struct policy *p = NULL;

	expect_int(policy_open("mru", &opts, &p), -EINVAL);
	opts.slots = 0;
	expect_int(policy_open("lru", &opts, &p), -EINVAL);
	opts = (struct policy_opts){.slots = 4};
	expect_int(policy_open(NULL, &opts, &p), -EINVAL);
	expect(p == NULL);
}

TEST(every_policy_names_itself_and_takes_what_it_says)
{
	for (const char *const *name = policy_names(); *name != NULL; name++) {
		struct policy *p = opened(*name, 100);

		expect_str(policy_name(p), *name);
		expect(policy_memory_bytes(100) > 100 * 64);
		expect_int(policy_victim(p, NULL, NULL), POLICY_NONE);
		policy_check(p);
		policy_close(&p);
	}
}

/* --- lru -------------------------------------------------------------------- */

#define NAIVE_SLOTS 40

struct naive {
	uint32_t slot[NAIVE_SLOTS];
	uint32_t count;
	bool stays[NAIVE_SLOTS];
};

static void naive_take(struct naive *n, uint32_t slot)
{
	uint32_t at = 0;

	while (n->slot[at] != slot)
		at++;
	n->count--;
	memmove(&n->slot[at], &n->slot[at + 1], (n->count - at) * sizeof(n->slot[0]));
}

static bool naive_has(const struct naive *n, uint32_t slot)
{
	for (uint32_t i = 0; i < n->count; i++)
		if (n->slot[i] == slot)
			return true;
	return false;
}

static bool naive_may_go(void *arg, uint32_t slot)
{
	const struct naive *n = arg;

	return !n->stays[slot];
}

static uint32_t naive_victim(const struct naive *n)
{
	for (uint32_t i = 0; i < n->count; i++)
		if (!n->stays[n->slot[i]])
			return n->slot[i];
	return POLICY_NONE;
}

TEST(lru_does_what_a_naive_list_does)
{
	struct policy *p = opened("lru", NAIVE_SLOTS);
	struct prng r = prng_of(7);
	struct naive n = {.count = 0};

	for (unsigned step = 0; step < 20000; step++) {
		uint32_t slot = (uint32_t)prng_below(&r, NAIVE_SLOTS), victim;

		switch (prng_below(&r, 4)) {
		case 0:
			n.stays[slot] = !n.stays[slot];
			break;
		case 1:
			victim = policy_victim(p, naive_may_go, &n);
			expect_int(victim, naive_victim(&n));
			if (victim != POLICY_NONE && n.count > NAIVE_SLOTS / 2) {
				policy_evict(p, victim);
				naive_take(&n, victim);
			}
			break;
		default:
			if (!naive_has(&n, slot)) {
				put(p, slot, prng_next(&r), POLICY_NONE);
			} else if (prng_below(&r, 8) == 0) {
				policy_remove(p, slot);
				naive_take(&n, slot);
				break;
			} else {
				policy_hit(p, slot);
				naive_take(&n, slot);
			}
			n.slot[n.count++] = slot;
		}
		expect_int(policy_count(p), n.count);
		if (step % 64 == 0)
			policy_check(p);
	}
	policy_close(&p);
}
