/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: see policy.h. The figures behind its constants are those of
 * tests/unit/store_policy_test.c, which replays public traces and prints the hit rates.
 *
 * Invariants: credit never passes half a segment, so a segment that goes always gives more room
 * than it takes; a segment is lucky once, then it has to be asked for.
 * Any thread.
 */
#include "store/policy.h"

#include "base/must.h"

void policy_stored(struct policy *p, uint32_t segment_blocks, uint32_t blocks)
{
	uint64_t most = (uint64_t)segment_blocks * 50;

	must(p->carry_percent <= POLICY_CARRY_PERCENT_MAX && segment_blocks > 0);
	p->credit += (uint64_t)blocks * p->carry_percent;
	if (p->credit > most)
		p->credit = most;
}

enum policy_verdict policy_turn(struct policy *p, const struct policy_segment *s,
				const struct policy_value *v, uint32_t count)
{
	uint64_t hit = 0;

	must(s->blocks > 0 && s->segments > 0);
	for (uint32_t i = 0; i < count; i++)
		hit += v[i].hits > 0 ? v[i].blocks : 0;
	/* Each stay costs a look at a footer: where all is hot, something must go in the end. */
	if (!s->may_stay || p->stays_in_a_row >= s->segments / 2) {
		p->stays_in_a_row = 0;
		return POLICY_GOES;
	}
	p->stays_in_a_row++;
	if (hit * 100 >= (uint64_t)s->blocks * POLICY_STAY_PERCENT)
		return POLICY_STAYS;
	if (p->turns++ % POLICY_LUCKY == 0 && !s->lucky)
		return POLICY_LUCKY_STAYS;
	p->stays_in_a_row = 0;
	return POLICY_GOES;
}

uint32_t policy_carry(struct policy *p, const struct policy_segment *s, struct policy_value *v,
		      uint32_t count)
{
	uint64_t left = p->credit / 100;
	uint32_t blocks = 0;

	must(s->blocks > 0 && p->carry_percent <= POLICY_CARRY_PERCENT_MAX);
	if (left > s->blocks / 2)
		left = s->blocks / 2;
	for (uint32_t i = 0; i < count; i++)
		v[i].carry = false;
	for (uint8_t hits = 2; hits > 0; hits--) {
		for (uint32_t i = 0; i < count; i++) {
			if (v[i].hits != hits || v[i].blocks > left)
				continue;
			v[i].carry = true;
			left -= v[i].blocks;
			blocks += v[i].blocks;
		}
	}
	must((uint64_t)blocks * 100 <= p->credit);
	p->credit -= (uint64_t)blocks * 100;
	return blocks;
}

void policy_uncarried(struct policy *p, uint32_t blocks)
{
	must(p->credit <= UINT64_MAX / 2);
	p->credit += (uint64_t)blocks * 100;
}
