/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of kvof_plan_fit(): rows of one arm as points of its lines, what stands in for cells that
 * are missing (points.c), and rows that lie off the line of the others (odd.c).
 */
#ifndef KVOF_PLAN_FIT_H
#define KVOF_PLAN_FIT_H

#include <kvof/plan.h>

#include "plan/line.h"

#define FIT_OUTPUT_TOKENS 64u            /* of a session, where nobody says */

enum fit_term {
	TERM_FIXED, TERM_SESSION, TERM_RATE, TERM_TOKEN2,
};

struct fit_point {
	const struct kvof_plan_row *row;
	uint32_t index;                  /* in the caller's rows */
	double loads;                    /* N' */
	double x;                        /* bytes or tokens of a session */
	double p50_s, last_s, wall_s;    /* 0: not known */
	uint32_t output_tokens;          /* of each session, also where they are assumed */
	bool last_is_measured;
	bool odd;                        /* off the line of the others */
};

struct fit_arm {
	struct fit_point *point;         /* [count], by the order of the rows */
	uint32_t count;
	bool in_bytes;
	uint32_t output_tokens;          /* of a session of the wave */
	bool output_assumed;             /* nobody said */
	uint32_t stood_in;               /* rows whose last is another figure */
	struct kvof_plan_fit *out;
};

/* Points of the rows of one kind; point has room for all rows. output_tokens: 0 if not told.
 * -EINVAL: neither bytes nor tokens are known of all of them. */
int fit_points(const struct kvof_plan_row *rows, size_t count, enum kvof_plan_arm_kind kind,
	       uint32_t output_tokens, struct fit_arm *arm, struct kvof_plan_bad *bad);

/* Seconds at the end of `loads` of session x on a line of last. */
double fit_line_at(const struct line *line, double loads, double x, double tokens);
void fit_line_point(const struct fit_point *point, struct line_point *out);

/* Marks rows that lie under the line of the others of their arm by whole sessions, and tells how
 * many sessions that would be, the same for all arms of a concurrency. */
void fit_odd(struct fit_arm *arm, uint32_t arms, struct kvof_plan_fit_out *out);

#endif
