/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `kvof plan calibrate` makes of what it measured: medians of repeats, the knee of a ladder of
 * depths, and arms (kvof/plan.h) from waves of loads and from prompts of several lengths. Pure
 * arithmetic; no unit is converted: seconds, bytes, tokens. docs/calibrate.md has the formulas.
 */
#ifndef KVOF_PLAN_MEASURED_H
#define KVOF_PLAN_MEASURED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvof/plan.h>

#define MEASURED_REPEATS_MAX 256u
#define MEASURED_WAVES_MAX 16u

/* Repeats of one measurement, in the order in which they were taken. */
struct measured_series {
	double value[MEASURED_REPEATS_MAX];
	unsigned count;
};

/* False: it is full, and the value is left out. */
bool measured_add(struct measured_series *s, double value);
/* Of an even count the mean of the middle two; 0 of none. */
double measured_median(const struct measured_series *s);
/* How far the repeats lie apart: the widest distance, of five or more that of the middle half, as a
 * share of the median. 0 of fewer than two. */
double measured_spread(const struct measured_series *s);

/* One rung of a ladder of depths. */
struct measured_step {
	unsigned depth;
	double bytes_per_s;
};

/* Index of the least depth that gives nearly (95 %) as much as the best one. count >= 1. */
unsigned measured_knee(const struct measured_step *step, unsigned count);

/* Loads that begin together: medians over repeats of when the median and the last of them ended. */
struct measured_wave {
	uint32_t sessions;
	double bytes;                    /* of one session */
	double p50_s, last_s;
};

/**
 * measured_arm_of_waves() - fixed_s, session_s, bytes_per_s, session_bytes_per_s and the order
 * (median_share, median_rank) of an arm, which keeps all else
 * @wave: [count], of one session and of several, each with two sizes or more
 *
 * One session's line over its size gives fixed cost and the most that one gets; the largest wave's
 * line gives the rate of all; then all waves count, each as often as it has sessions. Medians give
 * the order. A negative fixed cost is 0, and where noise
 * hid that more bytes take more time the line begins at zero.
 * Return: 0; -EINVAL: there is no line: fewer than two sizes, or not one and several sessions.
 */
int measured_arm_of_waves(const struct measured_wave *wave, unsigned count,
			  struct kvof_plan_arm *arm);

struct measured_prompt {
	double tokens, first_s;          /* median time to the first token of one prompt alone */
};

/**
 * measured_prefill() - fixed_s, tokens_per_s and token2_s: first_s = fixed + T / rate + T^2 token2
 * @prompt: [count], of two lengths or more; token2_s is 0 of two
 *
 * With three lengths or more a least squares of relative errors, of which no term may be negative.
 * Return: 0; -EINVAL: longer prompts took no longer, or there are not two lengths.
 */
int measured_prefill(const struct measured_prompt *prompt, unsigned count,
		     struct kvof_plan_arm *arm);

/**
 * measured_pair() - the order of an engine from two prompts of one length that came together
 * @alone_s: the first token of one alone; @first_s, @last_s: of the two
 *
 * First as soon as alone: one after another (0.5, 1). Both at the end: together (1, 0).
 * Return: how much faster two were than one after the other; about 1 of an engine with one queue.
 */
double measured_pair(const struct kvof_plan_arm *arm, double alone_s, double first_s, double last_s,
		     double *median_share, double *median_rank);

#endif
