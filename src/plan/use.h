/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arm of a profile put to use for a model and a length: what a session is in the arm's unit,
 * what may be carried over to another model than that of the profile, what lies beyond its rows.
 *
 * Loads move bytes, whoever's they are: they are carried over in bytes, and marked. Recompute is
 * the model's own: of another model, or another data type of the cache, it is not predicted. Pure.
 */
#ifndef KVOF_PLAN_USE_H
#define KVOF_PLAN_USE_H

#include "plan/profile.h"

struct plan_use_ask {
	const struct kvof_plan_model *model;             /* NULL: that of the profile */
	const struct kvof_plan_geometry *geometry;
	double tokens;                                   /* of a session's prefix; whole */
};

struct plan_use {
	bool predicted;                  /* false: the arm can't be told for this model; see note */
	bool carried;                    /* from another model, in bytes */
	struct kvof_plan_arm arm;
	struct kvof_plan_wave wave;      /* tokens in the arm's measure, bytes; sessions is 0 */
	double bytes;                    /* of a session; 0: not known */
	char note[KVOF_PLAN_NOTE_BYTES]; /* what was carried over, or why nothing is told */
};

/* What the planner calls a model's bytes per token: those of one token more, past every window. */
double plan_use_token_bytes(const struct kvof_plan_geometry *geometry);

/* True: the profile says of which model it is, and it is another. why: what differs. */
bool plan_use_other_model(const struct plan_profile *profile, const struct plan_use_ask *ask,
			  char why[KVOF_PLAN_NOTE_BYTES]);

/* A load whose rates are in tokens of so many bytes, in bytes; of two bounds of a session the lower
 * one stays. Recompute and a load in bytes stay as they are. */
void plan_use_bytes(struct kvof_plan_arm *arm, double token_bytes);

/* 0; -EINVAL with bad written: a session's bytes are needed and not known, or too many. */
int plan_use_arm(const struct plan_profile *profile, const struct kvof_plan_fit *fit,
		 const struct plan_use_ask *ask, struct plan_use *out, struct kvof_plan_bad *bad);

/* True: not within what the arm was calibrated on; why says what of it. */
bool plan_use_beyond(const struct kvof_plan_fit *fit, double tokens, uint32_t sessions,
		     char why[KVOF_PLAN_NOTE_BYTES]);

#endif
