/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lru`: what was used longest ago goes next. It takes no notice of prefixes: whoever uses a prefix
 * from its tail to its head keeps heads longest.
 */
#include "cache/policy_impl.h"

#define LRU_LIST POLICY_LIST_OWN

static void lru_insert(struct policy *p, uint32_t slot, bool again, uint64_t note)
{
	policy_list_push(p, LRU_LIST, slot);
}

static void lru_hit(struct policy *p, uint32_t slot)
{
	policy_list_take(p, slot);
	policy_list_push(p, LRU_LIST, slot);
}

static uint32_t lru_victim(struct policy *p, bool (*may_go)(void *, uint32_t), void *arg)
{
	return policy_list_first(p, LRU_LIST, may_go, arg);
}

const struct policy_ops policy_lru_ops = {
	.name = "lru",
	.insert = lru_insert,
	.hit = lru_hit,
	.victim = lru_victim,
};
