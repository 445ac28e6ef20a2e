/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner's simulator: requests of a trace, one event after another, over the arms that the
 * closed form knows (kvof_plan_ttft()). It answers what that can't: users that come back, arrivals
 * at random or as they were, tiers that evict, a choice between loading and computing.
 *
 *   a request comes -> which tier has which block of its prefix -> how much of it to load
 *     -> the arm's fixed time -> the arm, shared with other loads -> the instance's engine computes
 *        the rest, prompts in the order in which they came -> first token -> the blocks are saved
 *     -> decoding, which takes a tail -> in a closed loop its user thinks and comes again
 *
 * Loads of an arm whose median waits for most of the loads share it; others follow one another.
 * Each takes at most the arm's bound of a session. With staging told, a load begins when there is
 * room for all of it.
 *
 * Load or compute (SIMULATE_SOONER): no request's first token is later than if all of the
 * instance's prompts were computed in the order in which they came. A request has the moment D at
 * which it would then end; it loads what seems to bring its first token soonest, but only begins
 * when neither it nor a load under way can thereby end too late for its own D, and computes if that
 * moment does not come by when its turn at the engine would have been. Engines that run prompts
 * side by side give no such promise: there it is a guess.
 *
 * Pure arithmetic, seeded; no clock but its own. One thread.
 */
#ifndef KVOF_PLAN_SIMULATE_H
#define KVOF_PLAN_SIMULATE_H

#include <stdbool.h>
#include <stdint.h>

#include <kvof/plan.h>

#include "plan/tiers.h"
#include "plan/trace.h"

#define SIMULATE_USERS_MAX 1000000u
#define SIMULATE_INSTANCES_MAX 4096u

enum simulate_arrivals {
	SIMULATE_WAVE,                     /* all at once */
	SIMULATE_CLOSED,                   /* users that wait for an answer, think, and ask again */
	SIMULATE_POISSON,
	SIMULATE_TRACE,                    /* at the trace's times */
};

enum simulate_load {
	SIMULATE_SOONER,                   /* what brings the first token sooner, and never late */
	SIMULATE_ALWAYS,                   /* what is there is loaded, as the closed form has it */
	SIMULATE_NEVER,                    /* all is computed */
};

struct simulate_tier {
	bool present, second_touch;
	bool log;                          /* evicts as kvof's store does (plan/tiers.h) */
	bool warm;                         /* has all blocks of the trace at the start that fit */
	uint64_t capacity_blocks;          /* 0: room for all */
	struct kvof_plan_arm arm;
};

struct simulate_opts {
	uint64_t seed;
	enum simulate_arrivals arrivals;
	enum simulate_load load;
	uint32_t requests;                 /* of the trace; 0: all of it */
	uint32_t users;                    /* closed */
	double think_s;                    /* closed: mean, exponential; 0: none */
	double requests_per_s;             /* poisson */
	double speed;                      /* of the trace's clock; 0 and 1: as it was */
	uint32_t instances;                /* of the engine, a queue each; 0: one */
	struct kvof_plan_arm recompute;    /* of one instance; tokens_per_s 0: takes no time */
	struct simulate_tier tier[TIERS];
	uint32_t block_tokens;             /* 1 or more */
	double token_bytes;                /* of KV; 0 only if no arm counts bytes */
	double staging_bytes;              /* of one rank of an instance; 0: no bound */
	double rank_share;                 /* of a session's bytes, on one rank; 0: all */
	const struct kvof_plan_arm *tail;  /* decoding is as after this arm's waves; NULL: none */
};

struct simulate_times {
	double p50_s, p90_s, p99_s, mean_s, last_s;    /* as a[int(n q)] counts; last: most */
};

/* What requests wait for. */
struct simulate_resource {
	const char *name;                  /* "engine", "dram", "local", "array", "staging" */
	char bottleneck[48];               /* the arm's own name for it */
	double utilisation;                /* work done over work possible, until the last token */
	double wait_s;                     /* mean of a request, beyond what it takes alone */
	double bytes_per_s;                /* while it is busy */
	double bytes_per_s_needed;         /* of loads while requests come; wave: while it loads */
	uint32_t jobs_most;
	bool saturated;
};

struct simulate_result {
	uint64_t requests, blocks, tokens, hit_blocks, hit_tokens;
	struct simulate_tier_result {
		uint64_t hit_blocks, hit_tokens, evicted, promoted, refused, touched, carried;
		double read_bytes, written_bytes;
	} tier[TIERS];
	struct simulate_times ttft;
	struct simulate_times without;     /* all computed in order; not told for shared engines */
	bool without_known;
	double first_token_last_s, wall_s; /* since the first request */
	double load_s, compute_s;          /* sums of requests: from begin to end of their load */
	double output_tokens_per_s, requests_per_s;
	uint64_t late;                     /* requests later than computed in order */
	uint64_t skipped_blocks;           /* there, and sooner computed */
	uint64_t held, given_up;           /* loads that waited to begin; that never began */
	uint64_t unstaged;                 /* requests larger than the staging */
	struct simulate_resource resource[TIERS + 2];
	unsigned resources;
	char bottleneck[48];               /* where requests waited most; "none" */
	float *ttft_s;                     /* [requests], in order of arrival */
};

/* Adds sessions of so many tokens, each one block that no other has: what the closed form's waves
 * are. block_tokens of the options is then `tokens`. Return: as trace_add(). */
int simulate_wave_add(struct trace *t, uint32_t sessions, uint32_t tokens, uint32_t output_tokens);

/* simulate_free() may follow in any case. Return: 0; -EINVAL with bad filled; -ENOMEM. */
int simulate(const struct trace *t, const struct simulate_opts *o, struct simulate_result *out,
	     struct kvof_plan_bad *bad);
void simulate_free(struct simulate_result *r);

#endif
