/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which values of a cache namespace stay when room is wanted. Arithmetic only, no I/O, so it can be
 * tried on traces alone. One a drive; any thread, one at a time.
 *
 * Segments are looked at in the order of their turn, oldest first, like the hand of a clock:
 *
 *   stays      a segment of which at least POLICY_STAY_PERCENT was asked for since its last turn
 *              gets another turn as it is: nothing is written. So a hot set outlives scans whatever
 *              its size, as long as it lies together.
 *   lucky      one turn in POLICY_LUCKY is won by lot. In a cyclic trace a bit larger than the
 *              drive every value goes just before it is asked for again; those that won are asked
 *              for, and stay from then on because of it: the hit rate rises from lap to lap.
 *   goes       else; of its values those asked for are carried forward, most asked for first, as
 *              far as credit goes. Credit is earned by what hosts store: carry_percent of it. So
 *              for each byte stored at most 1 + carry_percent / 100 bytes are written.
 *
 *   kept       values that are to stay whatever is asked for are carried whatever the credit; they
 *              are at most half of a drive. A segment that is nearly all of them stays as it is, so
 *              they are written again only until they lie together.
 *
 * With second-touch admission a segment is on probation until it has stayed once, and while the
 * segments on probation hold more than POLICY_PROBATION_PERCENT of the drive the oldest of them is
 * the next to be looked at: a scan then displaces nothing but values that nobody asked for again.
 */
#ifndef KVOF_STORE_POLICY_H
#define KVOF_STORE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define POLICY_STAY_PERCENT 30u
#define POLICY_KEPT_STAY_PERCENT 75u
#define POLICY_LUCKY 16u
#define POLICY_PROBATION_PERCENT 10u
#define POLICY_CARRY_PERCENT 7u              /* standard; 1 / (1 - 0.07) is less than 1.1 */
#define POLICY_CARRY_PERCENT_MAX 50u

struct policy {
	uint32_t carry_percent;
	uint32_t turns;                      /* of segments that were not asked for enough */
	uint32_t stays_in_a_row, kept_in_a_row;
	uint64_t credit;                     /* in hundredths of a block */
};

/* A value of the segment that is looked at. */
struct policy_value {
	uint32_t blocks;
	/* 0, 1, 2: not, once, more often since its last turn */
	uint8_t hits;
	bool kept;
	bool carry;                          /* out */
};

struct policy_segment {
	uint32_t blocks;                     /* size of any segment */
	uint32_t segments;                   /* of the drive */
	bool may_stay;                       /* nothing in it is dead, see docs/formats.md */
	bool lucky;                          /* its last turn was won by lot */
};

enum policy_verdict { POLICY_GOES, POLICY_STAYS, POLICY_LUCKY_STAYS };

/* Hosts stored so many blocks, headers included. */
void policy_stored(struct policy *p, uint32_t segment_blocks, uint32_t blocks);

enum policy_verdict policy_turn(struct policy *p, const struct policy_segment *s,
				const struct policy_value *v, uint32_t count);

/* For a segment that goes: marks what is carried, in no order. Return: blocks of it; those that are
 * not kept are taken off the credit. */
uint32_t policy_carry(struct policy *p, const struct policy_segment *s, struct policy_value *v,
		      uint32_t count);
/* Part of that was not written after all. */
void policy_uncarried(struct policy *p, uint32_t blocks);

#endif
