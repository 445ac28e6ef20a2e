/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: see policy.h. The figures behind its constants are those of
 * tests/unit/store_policy_test.c, which replays public traces and prints the hit rates.
 *
 * Invariants: credit never passes half a segment, so a segment that goes always gives more room
 * than it takes (one with much that is kept: a little); a segment is lucky once, then it has to be
 * asked for.
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

/* It is nearly all of what is kept anyway: carrying it would give next to no room. Not for ever:
 * each time costs a look at a footer, and there is less of it than half of the drive. */
static bool kept_stays(struct policy *p, const struct policy_segment *s,
		       const struct policy_value *v, uint32_t count)
{
	uint64_t kept = 0;

	for (uint32_t i = 0; i < count; i++)
		kept += v[i].kept ? v[i].blocks : 0;
	if (kept * 100 < (uint64_t)s->blocks * POLICY_KEPT_STAY_PERCENT ||
	    p->kept_in_a_row >= s->segments) {
		p->kept_in_a_row = 0;
		return false;
	}
	p->kept_in_a_row++;
	return true;
}

enum policy_verdict policy_turn(struct policy *p, const struct policy_segment *s,
				const struct policy_value *v, uint32_t count)
{
	uint64_t hit = 0;

	must(s->blocks > 0 && s->segments > 0);
	for (uint32_t i = 0; i < count; i++)
		hit += v[i].hits > 0 ? v[i].blocks : 0;
	if (s->may_stay && kept_stays(p, s, v, count))
		return POLICY_STAYS;
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
	uint32_t blocks = 0, kept = 0;

	must(s->blocks > 0 && p->carry_percent <= POLICY_CARRY_PERCENT_MAX);
	for (uint32_t i = 0; i < count; i++) {
#ifdef KVOF_PLANT_KEPT_NOT_CARRIED
		v[i].kept = false;
#endif
		v[i].carry = v[i].kept;
		kept += v[i].kept ? v[i].blocks : 0;
	}
	if (left > s->blocks / 2)
		left = s->blocks / 2;
	left = left > kept ? left - kept : 0;      /* room has to come of it */
	for (uint8_t hits = 2; hits > 0; hits--) {
		for (uint32_t i = 0; i < count; i++) {
			if (v[i].carry || v[i].hits != hits || v[i].blocks > left)
				continue;
			v[i].carry = true;
			left -= v[i].blocks;
			blocks += v[i].blocks;
		}
	}
	must((uint64_t)blocks * 100 <= p->credit);
	p->credit -= (uint64_t)blocks * 100;
	return blocks + kept;
}

void policy_uncarried(struct policy *p, uint32_t blocks)
{
	must(p->credit <= UINT64_MAX / 2);
	p->credit += (uint64_t)blocks * 100;
}
