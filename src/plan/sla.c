/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The closed form turned round: how many sessions, how long a context, what rate, and the length
 * at which loading and computing take the same. Times grow with sessions and with tokens, so each
 * answer is searched by halving between one that holds and one that does not: it holds, and one
 * more does not.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "base/must.h"
#include "plan/arm.h"

#define HALVINGS 200

static double rank_s(const struct kvof_plan_ttft *t, enum kvof_plan_rank rank)
{
#ifdef KVOF_PLANT_SLA_OF_THE_MEDIAN
	rank = KVOF_PLAN_P50;
#endif
	return rank == KVOF_PLAN_P50 ? t->p50_s : rank == KVOF_PLAN_P90 ? t->p90_s : t->last_s;
}

static int limit_check(double limit_s, enum kvof_plan_rank rank, struct kvof_plan_bad *bad)
{
	*bad = (struct kvof_plan_bad){0};
	if (!(limit_s > 0) || limit_s > PLAN_FIGURE_MAX)
		return plan_bad(bad, "limit_s", "is no time");
	return (unsigned)rank <= KVOF_PLAN_LAST ? 0 :
	       plan_bad(bad, "rank", "%d is not p50, p90 or last", (int)rank);
}

double kvof_plan_length_bytes(const struct kvof_plan_length *length, double tokens)
{
	uint64_t whole, at, next, rank;

	if (length->model == NULL)
		return length->token_bytes * tokens;
	if (!(tokens >= 0 && tokens < 1e15))
		return PLAN_FIGURE_MAX;
	whole = (uint64_t)tokens;
	if (kvof_plan_bytes_at(length->model, length->geometry, whole, &at, &rank) != 0 ||
	    kvof_plan_bytes_at(length->model, length->geometry, whole + 1, &next, &rank) != 0)
		return PLAN_FIGURE_MAX;
	return (double)at + (double)(next - at) * (tokens - (double)whole);
}

/* --- how many sessions ------------------------------------------------------------------------ */

struct ask {
	const struct kvof_plan_arm *arm;
	struct kvof_plan_wave wave;
	uint32_t resident, staged;
	enum kvof_plan_rank rank;
	double limit_s;
};

static int sessions_s(const struct ask *a, uint32_t sessions, struct kvof_plan_ttft *t,
		      struct kvof_plan_bad *bad)
{
	struct kvof_plan_wave wave = a->wave;

	wave.sessions = sessions;
	wave.resident = a->resident < sessions ? a->resident : sessions;
	return a->staged > 0 ? kvof_plan_staged_ttft(a->arm, &wave, a->staged, t, bad) :
	       kvof_plan_ttft(a->arm, &wave, t, bad);
}

int kvof_plan_sla_sessions(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave,
			   uint32_t staged, enum kvof_plan_rank rank, double limit_s,
			   struct kvof_plan_sla *out, struct kvof_plan_bad *bad)
{
	const struct ask a = {arm, *wave, wave->resident, staged, rank, limit_s};
	uint32_t holds = 0, fails = KVOF_PLAN_SESSIONS_MAX + 1;
	struct kvof_plan_ttft t;
	int rc = limit_check(limit_s, rank, bad);

	*out = (struct kvof_plan_sla){0};
	while (rc == 0 && fails - holds > 1) {
		uint32_t middle = holds + (fails - holds) / 2;

		/* Small answers are the usual ones: found by doubling. */
		if (fails > KVOF_PLAN_SESSIONS_MAX && middle > 2 * holds + 1)
			middle = 2 * holds + 1;
		rc = sessions_s(&a, middle, &t, bad);
		if (rc == 0 && rank_s(&t, rank) <= limit_s)
			holds = middle;
		else
			fails = middle;
	}
	if (rc == 0)
		rc = sessions_s(&a, holds + 1, &t, bad);
	if (rc != 0)
		return rc;
	out->next_s = rank_s(&t, rank);
	snprintf(out->bottleneck, sizeof(out->bottleneck), "%s", t.bottleneck);
	out->sessions = holds;
	out->unbounded = holds == KVOF_PLAN_SESSIONS_MAX;
	if (holds == 0)
		return 0;
	rc = sessions_s(&a, holds, &t, bad);
	out->at_s = rank_s(&t, rank);
	return rc;
}

/* --- how long a context ----------------------------------------------------------------------- */

int kvof_plan_sla_tokens(const struct kvof_plan_arm *arm, const struct kvof_plan_length *length,
			 uint32_t sessions, uint32_t resident, enum kvof_plan_rank rank,
			 double limit_s, uint64_t *tokens, struct kvof_plan_bad *bad)
{
	uint64_t holds = 0, fails = KVOF_PLAN_TOKENS_MAX + 1;
	int rc = limit_check(limit_s, rank, bad);

	*tokens = 0;
	while (rc == 0 && fails - holds > 1) {
		uint64_t middle = holds + (fails - holds) / 2;
		struct kvof_plan_wave wave = {(double)middle,
			kvof_plan_length_bytes(length, (double)middle), sessions, resident};
		struct kvof_plan_ttft t;

		rc = kvof_plan_ttft(arm, &wave, &t, bad);
		if (rc == 0 && rank_s(&t, rank) <= limit_s)
			holds = middle;
		else
			fails = middle;
	}
	if (rc == 0)
		*tokens = holds;
	return rc;
}

/* --- where more sessions stop helping --------------------------------------------------------- */

int kvof_plan_saturation_make(const struct kvof_plan_arm *arm,
			      const struct kvof_plan_wave *wave, double share,
			      struct kvof_plan_saturation *out, struct kvof_plan_bad *bad)
{
	struct kvof_plan_wave one = {wave->tokens, wave->bytes, 1, 0};
	struct kvof_plan_ttft t;
	double work, alone, each, fixed, free_share;
	int rc;

	*out = (struct kvof_plan_saturation){0};
	*bad = (struct kvof_plan_bad){0};
	if (!(share > 0 && share < 1))
		return plan_bad(bad, "share", "is not between 0 and 1");
	rc = kvof_plan_ttft(arm, &one, &t, bad);
	if (rc != 0)
		return rc;
	work = plan_arm_work_s(arm, &one);
	alone = plan_arm_alone_s(arm, &one);
	if (alone > work && work > 0)
		out->ceiling_sessions = alone / work;
	/* N work / (fixed + N (session + work)) = share */
	free_share = work - share * (arm->session_s + work);
	out->busy_sessions = free_share > 0 ? share * arm->fixed_s / free_share : INFINITY;
	out->busy_sessions = fmax(out->busy_sessions, fmax(out->ceiling_sessions, 1));
	/* N / (fixed + N each) = share / each */
	each = arm->session_s + work + arm->tail_session_s;
	fixed = arm->fixed_s + arm->tail_fixed_s;
	out->throughput_sessions = 1;
	if (each <= 0)
		return 0;
	out->limit_tokens_per_s = arm->output_tokens / each;
	out->throughput_sessions = fmax(share * fixed / (each * (1 - share)),
					fmax(out->ceiling_sessions, 1));
	return 0;
}

/* --- load or recompute ------------------------------------------------------------------------ */

struct even {
	const struct kvof_plan_arm *load, *recompute;
	const struct kvof_plan_length *length;
	double sessions;
};

static double last_s(const struct kvof_plan_arm *arm, const struct even *e, double tokens)
{
	struct kvof_plan_wave w = {tokens, kvof_plan_length_bytes(e->length, tokens), 1, 0};

	return arm->fixed_s + e->sessions * arm->session_s +
	       fmax(e->sessions * plan_arm_work_s(arm, &w), plan_arm_alone_s(arm, &w));
}

/* Seconds that a load is sooner; below 0: later. */
static double gain_s(const struct even *e, double tokens)
{
	double gain = last_s(e->recompute, e, tokens) - last_s(e->load, e, tokens);

#ifdef KVOF_PLANT_BREAK_EVEN_SIGN
	gain = -gain;
#endif
	return gain;
}

/* The gain is convex: attention makes recompute so, and a load's bytes never grow faster. */
static double least_at(const struct even *e)
{
	double low = 0, high = (double)KVOF_PLAN_TOKENS_MAX;

	for (int i = 0; i < HALVINGS; i++) {
		double a = low + (high - low) / 3, b = high - (high - low) / 3;

		if (gain_s(e, a) <= gain_s(e, b))
			high = b;
		else
			low = a;
	}
	return low;
}

/* Between a length with a gain and one without. */
static double root(const struct even *e, double gains, double loses)
{
	for (int i = 0; i < HALVINGS; i++) {
		double middle = gains + (loses - gains) / 2;

		if (gain_s(e, middle) > 0)
			gains = middle;
		else
			loses = middle;
	}
	return gains;
}

/* Whether both arms can be asked at this length at all. */
static int even_check(const struct even *e, double tokens, struct kvof_plan_bad *bad)
{
	struct kvof_plan_wave w = {tokens, kvof_plan_length_bytes(e->length, tokens), 1, 0};
	struct kvof_plan_ttft t;
	int rc;

	*bad = (struct kvof_plan_bad){0};
	if (!(e->sessions >= 1))
		return plan_bad(bad, "sessions", "a wave has at least one");
	if (e->recompute->kind != KVOF_PLAN_RECOMPUTE)
		return plan_bad(bad, "recompute", "is an arm %s",
				kvof_plan_arm_name(e->recompute->kind));
	rc = kvof_plan_ttft(e->load, &w, &t, bad);
	return rc != 0 ? rc : kvof_plan_ttft(e->recompute, &w, &t, bad);
}

int kvof_plan_even_tokens(const struct kvof_plan_arm *load, const struct kvof_plan_arm *recompute,
			  const struct kvof_plan_length *length, uint32_t sessions,
			  struct kvof_plan_even_at *out, struct kvof_plan_bad *bad)
{
	const struct even e = {load, recompute, length, sessions};
	const double most = (double)KVOF_PLAN_TOKENS_MAX;
	double least;
	bool at_once, in_the_end;
	int rc = even_check(&e, 1, bad);

	*out = (struct kvof_plan_even_at){0};
	if (rc != 0)
		return rc;
	least = fmax(least_at(&e), 1);
	at_once = gain_s(&e, 1) > 0;
	in_the_end = gain_s(&e, most) > 0;
	if (at_once && in_the_end && gain_s(&e, least) > 0) {
		out->load = KVOF_PLAN_LOAD_ALWAYS;
	} else if (!at_once && !in_the_end) {
		out->load = KVOF_PLAN_LOAD_NEVER;
	} else if (!at_once) {
		out->load = KVOF_PLAN_LOAD_FROM;
		out->from_tokens = root(&e, most, least);
	} else if (!in_the_end) {
		out->load = KVOF_PLAN_LOAD_UNTIL;
		out->until_tokens = root(&e, 1, most);
	} else {
		out->load = KVOF_PLAN_LOAD_OUTSIDE;
		out->until_tokens = root(&e, 1, least);
		out->from_tokens = root(&e, most, least);
	}
	return 0;
}

int kvof_plan_even_rate(const struct kvof_plan_arm *load, const struct kvof_plan_arm *recompute,
			const struct kvof_plan_wave *wave, double *bytes_per_s,
			struct kvof_plan_bad *bad)
{
	struct kvof_plan_wave all = *wave;
	struct kvof_plan_ttft t;
	double loaded = wave->sessions - wave->resident, left;
	int rc = kvof_plan_ttft(load, wave, &t, bad);

	*bytes_per_s = 0;
	all.resident = 0;
	if (rc == 0)
		rc = kvof_plan_ttft(recompute, &all, &t, bad);
	if (rc == 0 && !(wave->bytes > 0))
		rc = plan_bad(bad, "bytes", "of a session are not known");
	if (rc != 0)
		return rc;
	left = t.last_s - load->fixed_s - loaded * load->session_s;
	*bytes_per_s = left > 0 && plan_arm_alone_s(load, wave) <= left ?
		       loaded * wave->bytes / left : INFINITY;
	return 0;
}
