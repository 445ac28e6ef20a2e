/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `kvof plan report` without its I/O: what was asked (input.h), a model, perhaps a trace and
 * profiles, into everything that its page, JSON and HTML show. Pure; memory only for the trace's
 * hit curve while it runs.
 *
 * Arms come in sets. Only arms of one set are compared: those of hardware as its data sheet has it,
 * or those of one profile, which are of one machine, engine, model and precision. What sets differ
 * in is named. The advice is of one set: that of the first profile which fits what was asked, else
 * that of the data sheets.
 */
#ifndef KVOF_PLAN_REPORT_H
#define KVOF_PLAN_REPORT_H

#include <kvof/plan.h>

#include "plan/advice.h"
#include "plan/input.h"
#include "plan/money.h"
#include "plan/profile.h"
#include "plan/trace.h"
#include "plan/wear.h"

#define REPORT_PROFILES_MAX 4u
#define REPORT_SETS_MAX (REPORT_PROFILES_MAX + 1)
#define REPORT_WAVES_MAX 16u
#define REPORT_STEPS_MAX 64u
#define REPORT_LINES_MAX 24u
#define REPORT_TEXT_BYTES 480

struct report_ask {
	const struct plan_input *in;
	const struct kvof_plan_model *model;       /* NULL: [model] bytes_per_token holds */
	const struct kvof_plan_work *work;         /* of the same file; NULL: not known */
	const struct trace *trace;         /* NULL: [workload] preset */
	const struct plan_profile *profile;
	const char *profile_name[REPORT_PROFILES_MAX];
	unsigned profiles;
	double today_days;                 /* since 1970-01-01 */
};

/* One result: what it is, by which formula, with which numbers put in. */
struct report_step {
	const char *section;
	char what[64], formula[112], numbers[192], result[96];
};

struct report_line {
	char text[REPORT_TEXT_BYTES];
};

struct report_arm {
	bool has;
	struct kvof_plan_arm arm;          /* in bytes but recompute; the network is in it */
	struct kvof_plan_ttft wave[REPORT_WAVES_MAX];    /* whole prefixes, at report.sessions[] */
	struct kvof_plan_saturation saturation;
	struct kvof_plan_sla sla;          /* whole prefixes; capacity does not count here */
	uint64_t longest_tokens;           /* with which the sessions asked for meet the SLA */
	struct kvof_plan_even_at even;     /* against the set's recompute */
	bool has_even;
};

struct report_set {
	char name[120];                    /* "data sheets", or the file */
	char made[40], machine[200], engine[80], model[64], precision[32];
	double bytes_per_token;            /* 0: not told */
	enum kvof_plan_source source;
	struct report_arm arm[KVOF_PLAN_ARM_KINDS];
	bool advisable;                    /* fits what was asked, and has what to compare */
};

struct report_wear {
	bool has;
	double stored_bytes_per_day, drives;
	struct plan_wear wear;
	char worn_out[16];
};

struct report {
	const struct plan_input *in;
	char model[96];
	double bytes_per_token, session_bytes, session_rank_bytes;
	double tokens, requests_per_s, working_set_bytes;
	bool tokens_of_trace;
	struct kvof_plan_geometry geometry;
	double weight_bytes;               /* of an instance; 0: not known */
	bool has_geometry, has_spill, has_work;
	struct kvof_plan_spill spill;
	struct kvof_plan_supply_rate supply[KVOF_PLAN_ARM_KINDS];
	bool has_supply[KVOF_PLAN_ARM_KINDS];
	double link_lossy_bytes_per_s;     /* 0: no loss was told */
	struct kvof_plan_flip net_flip;
	enum kvof_plan_arm_kind net_other; /* whole prefixes come sooner from it then */
	bool has_net_flip;
	uint32_t sessions[REPORT_WAVES_MAX];
	unsigned waves;
	struct report_set set[REPORT_SETS_MAX];
	unsigned sets, used;
	struct report_line difference[REPORT_LINES_MAX];
	unsigned differences;
	struct advice_facts facts;
	struct advice advice;
	struct advice_flip flip[ADVICE_FLIPS_MAX];
	unsigned flips;
	uint32_t sla_sessions[KVOF_PLAN_ARM_KINDS];      /* with what each arm's room hits */
	bool sla_unbounded[KVOF_PLAN_ARM_KINDS];
	struct report_wear wear[KVOF_PLAN_ARM_KINDS];    /* local and array */
	struct plan_money money[KVOF_PLAN_ARM_KINDS];
	bool has_money[KVOF_PLAN_ARM_KINDS];
	struct report_line note[REPORT_LINES_MAX];       /* what the figures rest on, unasked */
	unsigned notes;
	struct report_line reason[8];      /* service level, spill, sharing, money */
	unsigned reasons;
	struct report_step step[REPORT_STEPS_MAX];
	unsigned steps;
};

/* Return: 0; -EINVAL with bad filled: what was asked does not go together; -ENOMEM. */
int report_make(const struct report_ask *ask, struct report *out, struct kvof_plan_bad *bad);

/* A wave of whole prefixes on one arm; sessions over all hosts. -EINVAL: as kvof_plan_ttft(). */
int report_wave(const struct report *r, const struct report_arm *a, uint32_t sessions,
		struct kvof_plan_ttft *out, struct kvof_plan_bad *bad);
/* Room of a tier in bytes and the share of tokens it hits, for pictures. */
double report_hit(const struct report *r, double room_bytes);

/* Steps (report_steps.c): the arithmetic of a report that is made. */
void report_steps(struct report *r);
/* Sentences for each step of the advice, in its order. */
void report_reasons(struct report *r);

#endif
