/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One question, advice_make(), and the same question asked again with one fact changed: first in
 * steps of some percent until the answer is another, then halved until the place is known.
 *
 * What a host has for itself (memory, its drives) holds a session only if that comes back to it:
 * with H hosts and any routing one in H does, and each host's room is its H-th.
 */
#include "plan/advice.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"

#define STEP 1.04
#define HALVINGS 60u
#define DAY_S 86400.0
#define FITS 0.99                          /* of what any room hits */
#define FAR 8.0                            /* times what is now: further is another plan */
#define CHOSEN 2.0                         /* as far as that: what is chosen, or is 0 now */

#define REC KVOF_PLAN_RECOMPUTE
static const enum kvof_plan_arm_kind by_price[] = {
	KVOF_PLAN_DRAM, KVOF_PLAN_NFS, KVOF_PLAN_LOCAL, KVOF_PLAN_ARRAY};
static const enum advice_what what_of[KVOF_PLAN_ARM_KINDS] = {
	[REC] = ADVICE_NOTHING, [KVOF_PLAN_DRAM] = ADVICE_DRAM, [KVOF_PLAN_LOCAL] = ADVICE_LOCAL,
	[KVOF_PLAN_ARRAY] = ADVICE_ARRAY, [KVOF_PLAN_NFS] = ADVICE_NFS};

const char *advice_name(enum advice_what what)
{
	static const char *const names[] = {"nothing", "dram", "nfs", "local", "array"};

	return names[what];
}

const char *advice_why_name(enum advice_why why)
{
	static const char *const names[] = {
		[ADVICE_SHORT] = "too-short", [ADVICE_COLD] = "nothing-comes-again",
		[ADVICE_SLOWER] = "recompute-is-quicker", [ADVICE_MEETS] = "recompute-is-enough",
		[ADVICE_HBM] = "fits-in-gpu-memory", [ADVICE_LOSSY] = "lossy-network",
		[ADVICE_NO_ARM] = "nothing-to-load-from",
		[ADVICE_ENOUGH] = "enough", [ADVICE_RATE] = "cheaper-is-too-slow",
		[ADVICE_ROOM] = "cheaper-is-too-small", [ADVICE_SHARED] = "shared",
		[ADVICE_ONLY] = "the-only-one", [ADVICE_PAYS] = "pays-for-itself",
		[ADVICE_BEST] = "none-meets-it"};

	return names[why];
}

const char *advice_fact_name(enum advice_fact fact)
{
	static const char *const names[] = {"sessions", "tokens", "working_set_bytes", "hosts",
		"prefill_tokens_per_s", "array_bytes_per_s", "local_bytes_per_s", "loss",
		"jitter_s", "sla_s", "outlive", "sticky"};

	return names[fact];
}

enum kvof_plan_arm_kind advice_arm(enum advice_what what)
{
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
		if (what_of[i] == what)
			return (enum kvof_plan_arm_kind)i;
	return REC;
}

/* --- what is hit ----------------------------------------------------------------- */

double advice_curve_at(const struct advice_curve *c, double room)
{
	must(c->points > 0);
	for (unsigned i = 0; i < c->points; i++) {
		double part;

		if (room > c->room[i])
			continue;
		if (i == 0)
			return room < c->room[0] ? c->hit[0] * room / c->room[0] : c->hit[0];
		part = (room - c->room[i - 1]) / (c->room[i] - c->room[i - 1]);
		return c->hit[i - 1] + part * (c->hit[i] - c->hit[i - 1]);
	}
	return c->hit[c->points - 1];
}

static double ceiling_of(const struct advice_facts *f)
{
	return f->curve.hit[f->curve.points - 1];
}

bool advice_of_a_host(enum kvof_plan_arm_kind kind)
{
	return kind == REC || kind == KVOF_PLAN_DRAM || kind == KVOF_PLAN_LOCAL;
}

/* Part of the prompt tokens that are hit with so much room, in all or in parts of hosts. */
static double hit_with(const struct advice_facts *f, double bytes, bool host_own)
{
	double room = f->working_set_bytes > 0 ? bytes / f->working_set_bytes : 1;

	if (!host_own || f->sticky)
		return advice_curve_at(&f->curve, room);
	return advice_curve_at(&f->curve, room / f->hosts) / f->hosts;
}

static double hbm_hit(const struct advice_facts *f)
{
	return f->outlive == ADVICE_OUTLIVE_NOTHING ? hit_with(f, f->hbm_bytes, true) : 0;
}

static double hit_of(const struct advice_facts *f, enum kvof_plan_arm_kind kind)
{
	if (kind == REC || (kind == KVOF_PLAN_DRAM && f->outlive != ADVICE_OUTLIVE_NOTHING) ||
	    (kind == KVOF_PLAN_LOCAL && f->outlive == ADVICE_OUTLIVE_MOVE))
		return 0;
	return hit_with(f, f->capacity_bytes[kind], advice_of_a_host(kind));
}

uint32_t advice_staged(const struct advice_facts *f, enum kvof_plan_arm_kind kind)
{
	if (kind == REC || kind == KVOF_PLAN_DRAM)
		return 0;
	return advice_of_a_host(kind) ? f->staged :
		(uint32_t)fmin((double)f->staged * f->hosts, KVOF_PLAN_SESSIONS_MAX);
}

/* --- times ------------------------------------------------------------------------- */

static int wave_time(const struct advice_facts *f, const struct kvof_plan_arm *arm, double tokens,
		     uint32_t sessions, uint32_t staged, double *time_s, struct kvof_plan_bad *bad)
{
	struct kvof_plan_wave wave = {.tokens = tokens, .sessions = sessions,
		.bytes = kvof_plan_length_bytes(&f->length, tokens)};
	struct kvof_plan_ttft t;
	int rc = staged > 0 && staged < sessions ?
		kvof_plan_staged_ttft(arm, &wave, staged, &t, bad) :
		kvof_plan_ttft(arm, &wave, &t, bad);

	if (rc == 0)
		*time_s = f->rank == KVOF_PLAN_P50 ? t.p50_s :
			f->rank == KVOF_PLAN_P90 ? t.p90_s : t.last_s;
	return rc;
}

int advice_time(const struct advice_facts *f, enum kvof_plan_arm_kind kind, double *time_s,
		double *hit, struct kvof_plan_bad *bad)
{
	uint32_t host_sessions = (f->sessions + f->hosts - 1) / f->hosts;
	uint32_t sessions = advice_of_a_host(kind) ? host_sessions : f->sessions;
	uint32_t staged = advice_staged(f, kind);
	struct kvof_plan_arm arm = f->arm[kind];
	double load_s = 0, rest_s = 0, rest;
	int rc = 0;

	must(f->has[REC] && f->hosts > 0 && f->sessions > 0);
	*time_s = (double)INFINITY;
	*hit = f->has[kind] ? hit_of(f, kind) : 0;
	if (!f->has[kind])
		return 0;
	if (f->has_net && !advice_of_a_host(kind))
		rc = kvof_plan_arm_over(&f->arm[kind], &f->net,
					kvof_plan_length_bytes(&f->length, f->tokens) /
					f->tokens, &arm, bad);
	rest = f->tokens * (1 - *hit);
	if (rc == 0 && *hit > 0)
		rc = wave_time(f, &arm, f->tokens * *hit, sessions, staged, &load_s, bad);
	if (rc == 0 && rest >= 1)
		rc = wave_time(f, &f->arm[REC], rest, host_sessions, 0, &rest_s, bad);
	if (rc == 0)
		*time_s = load_s + rest_s;
	return rc;
}

int advice_sessions(const struct advice_facts *f, enum kvof_plan_arm_kind kind,
		    uint32_t *sessions, bool *unbounded, struct kvof_plan_bad *bad)
{
	struct advice_facts at = *f;
	uint32_t met = 0, missed = KVOF_PLAN_SESSIONS_MAX + 1;
	double time_s, hit;
	int rc = 0;

	while (rc == 0 && missed - met > 1) {
		at.sessions = met + (missed - met) / 2;
		rc = advice_time(&at, kind, &time_s, &hit, bad);
		if (rc == 0 && time_s <= f->sla_s)
			met = at.sessions;
		else
			missed = at.sessions;
	}
	*sessions = met;
	*unbounded = met == KVOF_PLAN_SESSIONS_MAX;
	return rc;
}

/* --- money ------------------------------------------------------------------------------ */

/* Days in which what an arm costs has paid for itself by recompute that is saved. */
static double payback(const struct advice_facts *f, enum kvof_plan_arm_kind kind, double more_hit)
{
	const struct advice_money *m = &f->money;
	const struct kvof_plan_arm *rec = &f->arm[REC];
	double all_s = m->requests_per_day * f->tokens *
		(1 / rec->tokens_per_s + rec->token2_s * f->tokens);
	double saved;

	if (!m->told || !m->has_price[kind] || !f->has[kind])
		return (double)INFINITY;
	saved = fmin(all_s, f->hosts * DAY_S) * fmax(more_hit, 0) / 3600 * m->gpus * m->gpu_hour;
	if (kind == KVOF_PLAN_ARRAY)
		saved -= m->running_per_day;
	if (m->price[kind] <= 0)
		return saved >= 0 ? 0 : (double)INFINITY;
	return saved > 0 ? m->price[kind] / saved : (double)INFINITY;
}

/* --- the advice -------------------------------------------------------------------------- */

static bool meets(const struct advice_facts *f, const struct advice *a,
		  enum kvof_plan_arm_kind kind)
{
	return a->time_s[kind] <= f->sla_s;
}

/* The arm would meet it with one fact changed. */
static bool would_meet(const struct advice_facts *f, enum kvof_plan_arm_kind kind,
		       struct kvof_plan_bad *bad)
{
	double time_s, hit;

	return advice_time(f, kind, &time_s, &hit, bad) == 0 && time_s <= f->sla_s;
}

/* Why the arm that is cheaper than the one that was taken doesn't do. */
static enum advice_why why_not(const struct advice_facts *f, enum kvof_plan_arm_kind cheaper,
			       struct kvof_plan_bad *bad)
{
	struct advice_facts other = *f;

	if (!f->has[cheaper])
		return ADVICE_ONLY;
	other.sticky = true;
	other.outlive = ADVICE_OUTLIVE_NOTHING;
	if ((f->hosts > 1 || f->outlive != ADVICE_OUTLIVE_NOTHING) &&
	    would_meet(&other, cheaper, bad))
		return ADVICE_SHARED;
	other.capacity_bytes[cheaper] = f->working_set_bytes;
	return would_meet(&other, cheaper, bad) ? ADVICE_ROOM : ADVICE_RATE;
}

static int times_fill(const struct advice_facts *f, struct advice *a, struct kvof_plan_bad *bad)
{
	int rc = 0;

	a->hbm_hit = hbm_hit(f);
	a->gain = -(double)INFINITY;
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS && rc == 0; i++) {
		enum kvof_plan_arm_kind kind = (enum kvof_plan_arm_kind)i;

		rc = advice_time(f, kind, &a->time_s[i], &a->hit[i], bad);
		a->payback_days[i] = kind == REC ? (double)INFINITY :
			payback(f, kind, a->hit[i] - a->hbm_hit);
		if (kind != REC && a->hit[i] > 0)
			a->gain = fmax(a->gain, 1 - a->time_s[i] / a->time_s[REC]);
	}
	if (rc == 0 && isinf(a->gain))
		a->gain = 0;
	return rc;
}

static double gain_of(const struct advice *a, enum kvof_plan_arm_kind kind)
{
	return 1 - a->time_s[kind] / a->time_s[REC];
}

/* Reasons to buy nothing. False: there is none. */
static bool nothing(const struct advice_facts *f, struct advice *a)
{
	bool pays = false, loads = false;

	for (unsigned i = 0; i < ARRAY_COUNT(by_price); i++) {
		loads = loads || a->hit[by_price[i]] > 0;
		pays = pays || (a->payback_days[by_price[i]] <= f->money.payback_days &&
				a->hit[by_price[i]] > 0 &&
				gain_of(a, by_price[i]) >= f->least_gain);
	}
	a->what = ADVICE_NOTHING;
	a->meets = meets(f, a, REC);
	if (f->tokens < f->block_tokens)
		a->why = ADVICE_SHORT;
	else if (ceiling_of(f) < f->least_gain)
		a->why = ADVICE_COLD;
#ifndef KVOF_PLANT_ADVICE_RECOMPUTE_IGNORED
	else if (loads && a->gain < f->least_gain)
		a->why = ADVICE_SLOWER;
	else if (meets(f, a, REC) && !pays)
		a->why = ADVICE_MEETS;
#endif
	else if (a->hbm_hit >= FITS * ceiling_of(f))
		a->why = ADVICE_HBM;
	else if (!loads)
		a->why = ADVICE_NO_ARM;
	else
		return false;
	if (a->why == ADVICE_HBM)
		a->meets = true;
	return true;
}

/* The cheapest that meets it; where recompute does too, the one that pays soonest. */
static void choose_meeting(const struct advice_facts *f, struct advice *a,
			   struct kvof_plan_bad *bad)
{
	int at = -1;

	for (int i = 0; i < (int)ARRAY_COUNT(by_price); i++) {
		enum kvof_plan_arm_kind kind = by_price[i];

		if (!meets(f, a, kind) || gain_of(a, kind) < f->least_gain)
			continue;
		if (at < 0 || (meets(f, a, REC) &&
			       a->payback_days[kind] < a->payback_days[by_price[at]]))
			at = i;
	}
	if (at < 0)
		return;
	a->what = what_of[by_price[at]];
	a->meets = true;
	if (meets(f, a, REC))
		a->why = ADVICE_PAYS;
	else if (a->what == ADVICE_ARRAY)
		a->why = why_not(f, KVOF_PLAN_LOCAL, bad);
	else
		a->why = ADVICE_ENOUGH;
}

static void choose_best(const struct advice_facts *f, struct advice *a)
{
	double best_s = (double)INFINITY;

	a->why = ADVICE_BEST;
	a->meets = false;
	for (unsigned i = 0; i < ARRAY_COUNT(by_price); i++)
		if (a->hit[by_price[i]] > 0)
			best_s = fmin(best_s, a->time_s[by_price[i]]);
	for (unsigned i = 0; i < ARRAY_COUNT(by_price); i++) {
		if (a->hit[by_price[i]] <= 0 ||
		    a->time_s[by_price[i]] > ADVICE_QUICK * best_s)
			continue;
		a->what = what_of[by_price[i]];
		return;
	}
}

static int advice_once(const struct advice_facts *f, struct advice *out,
		       struct kvof_plan_bad *bad)
{
	int rc;

	*out = (struct advice){0};
	rc = times_fill(f, out, bad);
	if (rc != 0 || nothing(f, out))
		return rc;
	choose_meeting(f, out, bad);
	if (out->what == ADVICE_NOTHING)
		choose_best(f, out);
	return 0;
}

int advice_make(const struct advice_facts *f, struct advice *out, struct kvof_plan_bad *bad)
{
	struct advice_facts clean = *f;
	struct advice other;
	int rc = advice_once(f, out, bad);

	if (rc != 0 || !f->has_net || f->net.loss <= 0 || out->what == ADVICE_ARRAY)
		return rc;
	clean.net.loss = 0;
	rc = advice_once(&clean, &other, bad);
	if (rc == 0 && other.what == ADVICE_ARRAY && other.why != ADVICE_PAYS)
		out->why = out->what == ADVICE_NOTHING || out->why == ADVICE_BEST ?
			ADVICE_LOSSY : out->why;
	return rc;
}

/* --- where it flips ------------------------------------------------------------------------ */

static const struct {
	double least, most;
	bool whole;
} ranges[ADVICE_FACTS] = {
	[ADVICE_SESSIONS] = {1, 1e5, true}, [ADVICE_TOKENS] = {1, 1 << 24, true},
	[ADVICE_WORKING_SET] = {1e6, 1e17, false}, [ADVICE_HOSTS] = {1, 1e4, true},
	[ADVICE_PREFILL] = {1, 1e8, false}, [ADVICE_ARRAY_RATE] = {1e6, 1e13, false},
	[ADVICE_LOCAL_RATE] = {1e6, 1e13, false}, [ADVICE_LOSS] = {1e-7, 0.1, false},
	[ADVICE_JITTER] = {1e-6, 10, false}, [ADVICE_SLA] = {1e-3, 1e5, false},
	[ADVICE_OUTLIVE] = {0, 2, true}, [ADVICE_ROUTING] = {0, 1, true},
};

static double fact_now(const struct advice_facts *f, enum advice_fact fact)
{
	switch (fact) {
	case ADVICE_SESSIONS:
		return f->sessions;
	case ADVICE_TOKENS:
		return f->tokens;
	case ADVICE_WORKING_SET:
		return f->working_set_bytes;
	case ADVICE_HOSTS:
		return f->hosts;
	case ADVICE_PREFILL:
		return f->arm[REC].tokens_per_s;
	case ADVICE_ARRAY_RATE:
		return f->arm[KVOF_PLAN_ARRAY].bytes_per_s;
	case ADVICE_LOCAL_RATE:
		return f->arm[KVOF_PLAN_LOCAL].bytes_per_s;
	case ADVICE_LOSS:
		return f->net.loss;
	case ADVICE_JITTER:
		return f->net.jitter_s;
	case ADVICE_SLA:
		return f->sla_s;
	case ADVICE_OUTLIVE:
		return f->outlive;
	case ADVICE_ROUTING:
	case ADVICE_FACTS:
		return f->sticky;
	}
	return 0;
}

/* Longer prefixes leave staging for fewer of them; a part of one is staged like one. */
static void staging_share(struct advice_facts *f)
{
	double session = kvof_plan_length_bytes(&f->length, f->tokens);

	if (f->staged > 0 && f->staging_bytes > 0 && session > 0)
		f->staged = (uint32_t)fmax(fmin(f->staging_bytes / session, 1e6), 1);
}

/* Longer prefixes and more sessions than were to be found again make the working set larger. */
static void working_set_grow(struct advice_facts *f, const struct advice_facts *from)
{
	double session = kvof_plan_length_bytes(&f->length, f->tokens);
	double was = kvof_plan_length_bytes(&from->length, from->tokens);

	if (was > 0)
		f->working_set_bytes = from->working_set_bytes * session / was;
	f->working_set_bytes = fmax(f->working_set_bytes, f->sessions * session);
}

/* A host more brings its own memory and drives. */
static void hosts_set(struct advice_facts *f, uint32_t hosts)
{
	double more = (double)hosts / f->hosts;

	f->hosts = hosts;
	f->hbm_bytes *= more;
	f->capacity_bytes[KVOF_PLAN_DRAM] *= more;
	f->capacity_bytes[KVOF_PLAN_LOCAL] *= more;
	f->money.price[KVOF_PLAN_DRAM] *= more;
	f->money.price[KVOF_PLAN_LOCAL] *= more;
	f->money.requests_per_day *= more;
}

static void fact_set(struct advice_facts *f, enum advice_fact fact, double value)
{
	struct advice_facts from = *f;

	switch (fact) {
	case ADVICE_SESSIONS:
		f->sessions = (uint32_t)value;
		working_set_grow(f, &from);
		break;
	case ADVICE_TOKENS:
		f->tokens = value;
		working_set_grow(f, &from);
		staging_share(f);
		break;
	case ADVICE_WORKING_SET:
		f->working_set_bytes = value;
		break;
	case ADVICE_HOSTS:
		hosts_set(f, (uint32_t)value);
		break;
	case ADVICE_PREFILL:
		f->arm[REC].token2_s *= f->arm[REC].tokens_per_s / value;
		f->arm[REC].tokens_per_s = value;
		break;
	case ADVICE_ARRAY_RATE:
		f->arm[KVOF_PLAN_ARRAY].bytes_per_s = value;
		f->net.link_bytes_per_s = fmax(f->net.link_bytes_per_s, value);
		break;
	case ADVICE_LOCAL_RATE:
		f->arm[KVOF_PLAN_LOCAL].bytes_per_s = value;
		break;
	case ADVICE_LOSS:
		f->net.loss = value;
		break;
	case ADVICE_JITTER:
		f->net.jitter_s = value;
		break;
	case ADVICE_SLA:
		f->sla_s = value;
		break;
	case ADVICE_OUTLIVE:
		f->outlive = (enum advice_outlive)value;
		break;
	case ADVICE_ROUTING:
	case ADVICE_FACTS:
		f->sticky = value > 0;
		break;
	}
}

static bool fact_moves(const struct advice_facts *f, enum advice_fact fact)
{
	if (fact == ADVICE_LOSS || fact == ADVICE_JITTER)
		return f->has_net && f->net.rtt_s > 0 &&
		       (f->has[KVOF_PLAN_ARRAY] || f->has[KVOF_PLAN_NFS]);
	if (fact == ADVICE_ARRAY_RATE)
		return f->has[KVOF_PLAN_ARRAY];
	if (fact == ADVICE_LOCAL_RATE)
		return f->has[KVOF_PLAN_LOCAL];
	return fact != ADVICE_ROUTING || f->hosts > 1;
}

static int ask_at(const struct advice_facts *f, enum advice_fact fact, double value,
		  struct advice *a, struct kvof_plan_bad *bad)
{
	struct advice_facts at = *f;

	fact_set(&at, fact, value);
	return advice_make(&at, a, bad);
}

static double next_value(enum advice_fact fact, double value, bool up)
{
	double next;

	if (up && value < ranges[fact].least && !ranges[fact].whole)
		return ranges[fact].least;
	next = up ? value * STEP : value / STEP;
	if (!ranges[fact].whole)
		return next;
	next = up ? ceil(next) : floor(next);
	return up ? fmax(next, value + 1) : fmin(next, value - 1);
}

/* Between same (advice as now) and other. */
static int place_halve(const struct advice_facts *f, enum advice_what now, double same,
		       double other, struct advice_flip *flip, struct kvof_plan_bad *bad)
{
	struct advice a;
	int rc = 0;

	for (unsigned i = 0; i < HALVINGS && rc == 0; i++) {
		double middle = (same + other) / 2;

		if (ranges[flip->fact].whole)
			middle = floor(middle);
		if (middle == same || middle == other)
			break;
		rc = ask_at(f, flip->fact, middle, &a, bad);
		if (rc == 0 && a.what == now)
			same = middle;
		else
			other = middle;
	}
	if (rc == 0)
		rc = ask_at(f, flip->fact, other, &a, bad);
	flip->at = other;
	flip->what = a.what;
	flip->why = a.why;
	return rc;
}

/* The longest prefix up to `most` of which staging holds one whole. */
static double staged_tokens(const struct advice_facts *f, double most)
{
	double fits = 0;

	if (f->staged == 0 || f->staging_bytes <= 0 ||
	    kvof_plan_length_bytes(&f->length, most) <= f->staging_bytes)
		return most;
	while (most - fits > 1) {
		double middle = floor((fits + most) / 2);

		*(kvof_plan_length_bytes(&f->length, middle) <= f->staging_bytes ? &fits : &most) =
			middle;
	}
	return fits;
}

/* The last value of a fact that is asked about. */
static double limit_of(const struct advice_facts *f, enum advice_fact fact, double now, bool up)
{
	double limit = up ? ranges[fact].most : ranges[fact].least;

	if (fact == ADVICE_OUTLIVE || fact == ADVICE_ROUTING)
		return limit;
	if (now > 0)
		limit = up ? fmin(limit, now * FAR) : fmax(limit, now / FAR);
	if (fact == ADVICE_TOKENS && up && f->context_tokens > 0)
		limit = fmin(limit, f->context_tokens);
	if (fact == ADVICE_TOKENS && up)
		limit = staged_tokens(f, limit);
	if (!ranges[fact].whole)
		return limit;
	return up ? floor(limit) : ceil(limit);
}

/* Return: 1 there is one, 0 there is none, or an error. */
static int flip_find(const struct advice_facts *f, enum advice_what now, enum advice_fact fact,
		     bool up, struct advice_flip *flip, struct kvof_plan_bad *bad)
{
	double value = fact_now(f, fact), same = value;
	const double limit = limit_of(f, fact, value, up);
	struct advice a;
	int rc;

	*flip = (struct advice_flip){.fact = fact, .now = value, .above = up};
	for (;;) {
		if (up ? same >= limit : same <= limit)
			return 0;
		value = next_value(fact, same, up);
		value = up ? fmin(value, limit) : fmax(value, limit);
		rc = ask_at(f, fact, value, &a, bad);
		if (rc != 0)
			return rc;
		if (a.what != now)
			break;
		same = value;
	}
	rc = place_halve(f, now, same, value, flip, bad);
	return rc == 0 ? 1 : rc;
}

/* How far a flip is from what is now, as a factor. */
static double flip_far(const struct advice_flip *flip)
{
	if (flip->fact == ADVICE_OUTLIVE || flip->fact == ADVICE_ROUTING || flip->now <= 0)
		return CHOSEN;
	return flip->above ? flip->at / flip->now : flip->now / flip->at;
}

static void flips_sort(struct advice_flip *flip, unsigned count)
{
	for (unsigned i = 1; i < count; i++)
		for (unsigned k = i; k > 0 && flip_far(&flip[k]) < flip_far(&flip[k - 1]); k--) {
			struct advice_flip keep = flip[k];

			flip[k] = flip[k - 1];
			flip[k - 1] = keep;
		}
}

int advice_flips(const struct advice_facts *f, struct advice_flip flip[ADVICE_FLIPS_MAX],
		 unsigned *count, struct kvof_plan_bad *bad)
{
	struct advice now;
	int rc = advice_make(f, &now, bad);

	*count = 0;
	for (int i = 0; rc == 0 && i < 2 * ADVICE_FACTS; i++) {
		enum advice_fact fact = (enum advice_fact)(i / 2);

		if (!fact_moves(f, fact))
			continue;
		rc = flip_find(f, now.what, fact, i % 2 == 0, &flip[*count], bad);
		if (rc > 0) {
			must(*count < ADVICE_FLIPS_MAX - 1);
			(*count)++;
			rc = 0;
		}
	}
	flips_sort(flip, *count);
	return rc;
}
