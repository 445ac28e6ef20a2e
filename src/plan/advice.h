/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to buy, if anything. In this order, each step with the figures that decide it:
 *
 *   1. service level and concurrency: is recompute quick enough, is a load quicker than it?
 *   2. spill: does what should be found again fit in GPU memory, in memory of the host?
 *   3. sharing: do other hosts, or an engine that was restarted, want the same KV?
 *   4. the cheapest arm that then meets the service level: memory, a file server that is there,
 *      local drives, an array; if none does, the cheapest of those that are as quick as any.
 *
 * Where the advice flips is solved for by asking the same question again with one fact changed, so
 * it can't differ from the advice itself. Pure, any thread.
 *
 * Of a prefix of T tokens the part h that a tier's room hits is loaded, and then the rest computed:
 * time(arm) = load of h T tokens of N sessions + recompute of (1 - h) T of those of one host.
 */
#ifndef KVOF_PLAN_ADVICE_H
#define KVOF_PLAN_ADVICE_H

#include <stdbool.h>

#include <kvof/plan.h>

#define ADVICE_POINTS_MAX 64u
#define ADVICE_FLIPS_MAX 32u
#define ADVICE_TEXT_BYTES 320
#define ADVICE_QUICK 1.1                   /* as quick: at most a tenth slower */

/* What part of all prompt tokens is hit with room for so much of the working set. */
struct advice_curve {
	unsigned points;
	double room[ADVICE_POINTS_MAX];    /* 0 to 1, rising */
	double hit[ADVICE_POINTS_MAX];     /* 0 to 1, never falling */
};

struct advice_money {
	bool told;
	double gpus, gpu_hour, life_s, payback_days, requests_per_day, running_per_day;
	double price[KVOF_PLAN_ARM_KINDS]; /* of all that an arm needs, over all hosts; 0: there */
	bool has_price[KVOF_PLAN_ARM_KINDS];
};

/* What KV has to outlive: GPU memory and memory of a host don't outlive a restart of the engine, a
 * host's own drives no move to another host. */
enum advice_outlive { ADVICE_OUTLIVE_NOTHING, ADVICE_OUTLIVE_RESTART, ADVICE_OUTLIVE_MOVE };

struct advice_facts {
	struct kvof_plan_arm arm[KVOF_PLAN_ARM_KINDS];   /* in bytes/s but recompute; no loss yet */
	bool has[KVOF_PLAN_ARM_KINDS];     /* recompute always */
	struct kvof_plan_net net;          /* to the array and the file server */
	bool has_net;
	struct kvof_plan_length length;
	struct advice_curve curve;
	double capacity_bytes[KVOF_PLAN_ARM_KINDS];      /* over all hosts */
	double hbm_bytes;                  /* room for KV in GPU memory, over all hosts */
	double working_set_bytes;
	double tokens;                     /* of a session's prefix */
	double block_tokens;
	double context_tokens;             /* longest that the model takes; 0: not told */
	uint32_t sessions, hosts;          /* sessions over all hosts */
	uint32_t staged;                   /* sessions that staging of a host holds; 0: enough */
	double staging_bytes;              /* the same in bytes of KV, for other lengths */
	bool sticky;
	enum advice_outlive outlive;
	enum kvof_plan_rank rank;
	double sla_s, least_gain;
	struct advice_money money;
};

enum advice_what {
	ADVICE_NOTHING, ADVICE_DRAM, ADVICE_NFS, ADVICE_LOCAL, ADVICE_ARRAY,
};

enum advice_why {
	ADVICE_SHORT, ADVICE_COLD, ADVICE_SLOWER, ADVICE_MEETS, ADVICE_HBM, ADVICE_LOSSY,
	ADVICE_NO_ARM,                     /* that hits anything */
	ADVICE_ENOUGH,                     /* the cheapest arm that meets the service level */
	ADVICE_RATE, ADVICE_ROOM, ADVICE_SHARED, ADVICE_ONLY,    /* why no cheaper one does */
	ADVICE_PAYS,                       /* not needed for the service level, but pays */
	ADVICE_BEST,                       /* none meets it; this one is the best there is */
};

struct advice {
	enum advice_what what;
	enum advice_why why;
	bool meets;                        /* the service level, with what is advised */
	double time_s[KVOF_PLAN_ARM_KINDS];    /* of the quantile asked; INFINITY: no such arm */
	double hit[KVOF_PLAN_ARM_KINDS];
	double hbm_hit;
	double gain;                       /* of the quickest arm: 1 - its time / recompute's */
	double payback_days[KVOF_PLAN_ARM_KINDS];        /* INFINITY: never, or no prices */
};

enum advice_fact {
	ADVICE_SESSIONS, ADVICE_TOKENS, ADVICE_WORKING_SET, ADVICE_HOSTS, ADVICE_PREFILL,
	ADVICE_ARRAY_RATE, ADVICE_LOCAL_RATE, ADVICE_LOSS, ADVICE_JITTER, ADVICE_SLA,
	ADVICE_OUTLIVE, ADVICE_ROUTING, ADVICE_FACTS,
};

struct advice_flip {
	enum advice_fact fact;
	double now, at;                    /* OUTLIVE: advice_outlive; ROUTING: 1 is sticky */
	bool above;                        /* the other advice holds from `at` up; else down */
	enum advice_what what;
	enum advice_why why;
};

/* Return: 0; -EINVAL with bad filled: an arm is not one that kvof_plan_ttft() takes. */
int advice_make(const struct advice_facts *f, struct advice *out, struct kvof_plan_bad *bad);
/* The nearest value of each fact, up and down, at which the advice is another; at most 8 times what
 * it is now, or an eighth of it. Nearest first. */
int advice_flips(const struct advice_facts *f, struct advice_flip flip[ADVICE_FLIPS_MAX],
		 unsigned *count, struct kvof_plan_bad *bad);

/* Time of the quantile asked with so many sessions, of a tier with that room; and what it hits. */
int advice_time(const struct advice_facts *f, enum kvof_plan_arm_kind kind, double *time_s,
		double *hit, struct kvof_plan_bad *bad);
/* Most sessions at once with which an arm meets the service level. 0: none; *unbounded: no limit
 * was found. */
int advice_sessions(const struct advice_facts *f, enum kvof_plan_arm_kind kind,
		    uint32_t *sessions, bool *unbounded, struct kvof_plan_bad *bad);

/* Each host has its own, sessions of one host alone: all but the array and the file server. */
bool advice_of_a_host(enum kvof_plan_arm_kind kind);
/* Sessions whose loads staging holds at once, of a host or of all where it is an arm of all; 0:
 * enough for any number. */
uint32_t advice_staged(const struct advice_facts *f, enum kvof_plan_arm_kind kind);
double advice_curve_at(const struct advice_curve *curve, double room);

const char *advice_name(enum advice_what what);          /* "nothing", "dram", ... */
const char *advice_why_name(enum advice_why why);        /* "too-short", ... */
const char *advice_fact_name(enum advice_fact fact);     /* "sessions", ... */
/* The arm that is advised; RECOMPUTE of ADVICE_NOTHING. */
enum kvof_plan_arm_kind advice_arm(enum advice_what what);
/* A sentence with the figures that decide. */
void advice_text(const struct advice_facts *f, const struct advice *a,
		 char out[ADVICE_TEXT_BYTES]);
/* "an array with 9 sessions at once or more; now 8 sessions at once". */
void advice_flip_text(const struct advice_flip *flip, char out[ADVICE_TEXT_BYTES]);

#endif
