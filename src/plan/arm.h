/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the planner share about arms: checks, names, the terms of the closed form. */
#ifndef KVOF_PLAN_ARM_H
#define KVOF_PLAN_ARM_H

#include <stddef.h>

#include <kvof/plan.h>

#define PLAN_FIGURE_MAX 1e24             /* no figure of an arm or a wave is above it */

/* Writes field and why. Return: -EINVAL. */
int plan_bad(struct kvof_plan_bad *bad, const char *field, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The figures of an arm, each a double: the only list of them. */
struct plan_arm_figure {
	const char *name;
	size_t offset;                   /* in struct kvof_plan_arm */
	bool below_zero;                 /* it may be */
};
#define PLAN_ARM_FIGURES 12u
extern const struct plan_arm_figure plan_arm_figures[PLAN_ARM_FIGURES];

static inline double *plan_arm_figure(struct kvof_plan_arm *arm, unsigned i)
{
	return (double *)(void *)((char *)arm + plan_arm_figures[i].offset);
}

/* 0; -EINVAL: the arm has no rate or two, or a figure that can't be. */
int plan_arm_check(const struct kvof_plan_arm *arm, struct kvof_plan_bad *bad);
bool plan_source_find(const char *text, enum kvof_plan_source *source);

/* X / R: seconds that the arm as a whole works for one session. */
double plan_arm_work_s(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave);
/* X / Rs: seconds that one session takes with nobody beside it; 0: no bound. */
double plan_arm_alone_s(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave);

#endif
