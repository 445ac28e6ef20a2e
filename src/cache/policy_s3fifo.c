/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `s3fifo` [S3FIFO]: queues without an order of use in them. What is new enters `small`, a tenth
 * of the room; what was used more than once by the time it gets to its front moves to `main`, the
 * rest goes. Main's front goes unless it was used since its last turn, up to three turns of
 * credit. What comes back while its key is still remembered enters main at once. It takes no
 * notice of prefixes.
 *
 * self is not used; slot.uses is the credit, 0 to 3; the note of a key that is gone is the number
 * of keys gone before it.
 */
#include "cache/policy_impl.h"

enum { S3_SMALL = POLICY_LIST_OWN, S3_MAIN };

#define S3_SMALL_PART 10u
#define S3_CREDIT_MAX 3u

static void s3_insert(struct policy *p, uint32_t slot, bool again, uint64_t note)
{
	bool known = again && p->gone - note <= p->list[S3_MAIN].count;

	p->slot[slot].uses = 0;
	policy_list_push(p, known ? S3_MAIN : S3_SMALL, slot);
}

static void s3_hit(struct policy *p, uint32_t slot)
{
	if (p->slot[slot].uses < S3_CREDIT_MAX)
		p->slot[slot].uses++;
}

static void s3_move(struct policy *p, uint32_t slot, uint32_t credit)
{
	policy_list_take(p, slot);
	p->slot[slot].uses = credit;
	policy_list_push(p, S3_MAIN, slot);
}

/* Each step moves a block for good or takes a credit that a use has paid, so the steps are paid. */
static uint32_t s3_small_victim(struct policy *p)
{
	while (p->list[S3_SMALL].front != POLICY_NONE) {
		uint32_t slot = p->list[S3_SMALL].front;

		if (p->slot[slot].uses <= 1)
			return slot;
		s3_move(p, slot, 0);
	}
	return POLICY_NONE;
}

static uint32_t s3_main_victim(struct policy *p)
{
	while (p->list[S3_MAIN].front != POLICY_NONE) {
		uint32_t slot = p->list[S3_MAIN].front;

		if (p->slot[slot].uses == 0)
			return slot;
		s3_move(p, slot, p->slot[slot].uses - 1);
	}
	return POLICY_NONE;
}

static uint32_t s3_victim(struct policy *p, bool (*may_go)(void *, uint32_t), void *arg)
{
	uint64_t small = p->opts.capacity_units / S3_SMALL_PART;
	uint32_t slot = POLICY_NONE;

	if (p->list[S3_SMALL].units >= small)
		slot = s3_small_victim(p);
	if (slot == POLICY_NONE)
		slot = s3_main_victim(p);
	if (slot == POLICY_NONE)
		slot = s3_small_victim(p);
	if (slot == POLICY_NONE || may_go == NULL || may_go(arg, slot))
		return slot;
	slot = policy_list_first(p, S3_SMALL, may_go, arg);
	return slot != POLICY_NONE ? slot : policy_list_first(p, S3_MAIN, may_go, arg);
}

static uint64_t s3_leave(struct policy *p, uint32_t slot)
{
	return p->gone;
}

static void s3_check(const struct policy *p)
{
	for (unsigned list = S3_SMALL; list <= S3_MAIN; list++)
		for (uint32_t at = p->list[list].front; at != POLICY_NONE; at = p->slot[at].next)
			must(p->slot[at].uses <= S3_CREDIT_MAX);
}

const struct policy_ops policy_s3fifo_ops = {
	.name = "s3fifo",
	.insert = s3_insert,
	.hit = s3_hit,
	.victim = s3_victim,
	.leave = s3_leave,
	.check = s3_check,
};
