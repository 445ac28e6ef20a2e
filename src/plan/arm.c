/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the first tokens of a wave come from an arm: the closed form of plan.h, term by term. The
 * simulator (plan/simulate.c) must agree with it where both apply.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "plan/arm.h"

#define P90_SHARE 0.8                    /* p90 lies so far from p50 (0.5) to last (1) */

static const char *const kind_names[] = {
	[KVOF_PLAN_RECOMPUTE] = "recompute", [KVOF_PLAN_DRAM] = "dram", [KVOF_PLAN_LOCAL] = "local",
	[KVOF_PLAN_ARRAY] = "array", [KVOF_PLAN_NFS] = "nfs"};

static const char *const source_names[] = {
	[KVOF_PLAN_MEASURED] = "measured", [KVOF_PLAN_ROWS] = "rows", [KVOF_PLAN_SPEC] = "spec"};

#define FIGURE(member, below) {#member, offsetof(struct kvof_plan_arm, member), below}
const struct plan_arm_figure plan_arm_figures[PLAN_ARM_FIGURES] = {
	FIGURE(fixed_s, false), FIGURE(session_s, false), FIGURE(tokens_per_s, false),
	FIGURE(bytes_per_s, false), FIGURE(session_bytes_per_s, false),
	FIGURE(session_tokens_per_s, false), FIGURE(token2_s, false), FIGURE(free_loads, false),
	FIGURE(median_share, false), FIGURE(median_rank, true), FIGURE(tail_fixed_s, true),
	FIGURE(tail_session_s, true),
};

const char *kvof_plan_arm_name(enum kvof_plan_arm_kind kind)
{
	return (unsigned)kind < ARRAY_COUNT(kind_names) ? kind_names[kind] : "unknown";
}

bool kvof_plan_arm_find(const char *text, enum kvof_plan_arm_kind *kind)
{
	for (unsigned i = 0; i < ARRAY_COUNT(kind_names); i++) {
		if (strcmp(text, kind_names[i]) != 0)
			continue;
		*kind = (enum kvof_plan_arm_kind)i;
		return true;
	}
	return false;
}

const char *kvof_plan_source_name(enum kvof_plan_source source)
{
	return (unsigned)source < ARRAY_COUNT(source_names) ? source_names[source] : "unknown";
}

bool plan_source_find(const char *text, enum kvof_plan_source *source)
{
	for (unsigned i = 0; i < ARRAY_COUNT(source_names); i++) {
		if (strcmp(text, source_names[i]) != 0)
			continue;
		*source = (enum kvof_plan_source)i;
		return true;
	}
	return false;
}

int plan_bad(struct kvof_plan_bad *bad, const char *field, const char *format, ...)
{
	va_list args;

	snprintf(bad->field, sizeof(bad->field), "%s", field);
	va_start(args, format);
	vsnprintf(bad->why, sizeof(bad->why), format, args);
	va_end(args);
	return -EINVAL;
}

/* --- what is wrong with it -------------------------------------------------------------- */

int plan_arm_check(const struct kvof_plan_arm *arm, struct kvof_plan_bad *bad)
{
	struct kvof_plan_arm copy = *arm;

	if ((unsigned)arm->kind >= KVOF_PLAN_ARM_KINDS)
		return plan_bad(bad, "arm", "%d is no kind of arm", (int)arm->kind);
	for (unsigned i = 0; i < PLAN_ARM_FIGURES; i++) {
		const struct plan_arm_figure *f = &plan_arm_figures[i];
		const double value = *plan_arm_figure(&copy, i);

		if (!isfinite(value) || value > PLAN_FIGURE_MAX || value < -PLAN_FIGURE_MAX)
			return plan_bad(bad, f->name, "is no finite figure");
		if (value < 0 && !f->below_zero)
			return plan_bad(bad, f->name, "is below 0");
	}
	if ((arm->tokens_per_s > 0) == (arm->bytes_per_s > 0))
		return plan_bad(bad, "tokens_per_s", "arm %s has %s of tokens_per_s and "
				"bytes_per_s", kind_names[arm->kind],
				arm->tokens_per_s > 0 ? "both" : "none");
	if (arm->kind == KVOF_PLAN_RECOMPUTE && arm->bytes_per_s > 0)
		return plan_bad(bad, "bytes_per_s", "recompute has a rate of tokens, not of bytes");
	return 0;
}

static int wave_check(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave,
		      struct kvof_plan_bad *bad)
{
	if (wave->sessions == 0)
		return plan_bad(bad, "sessions", "a wave has at least one");
	if (wave->resident > wave->sessions)
		return plan_bad(bad, "resident", "%u of %u sessions", wave->resident,
				wave->sessions);
	if (!(wave->tokens >= 0) || !(wave->bytes >= 0) || wave->tokens > PLAN_FIGURE_MAX ||
	    wave->bytes > PLAN_FIGURE_MAX)
		return plan_bad(bad, "tokens", "or bytes of a session are no finite figure");
	if (wave->bytes <= 0 && (arm->bytes_per_s > 0 || arm->session_bytes_per_s > 0))
		return plan_bad(bad, "bytes", "arm %s has a rate in bytes, and a session's are not "
				"known (a model tells them)", kind_names[arm->kind]);
	if (wave->tokens <= 0 && (arm->tokens_per_s > 0 || arm->session_tokens_per_s > 0))
		return plan_bad(bad, "tokens", "arm %s has a rate in tokens",
				kind_names[arm->kind]);
	return 0;
}

/* --- the terms ---------------------------------------------------------------------------- */

double plan_arm_work_s(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave)
{
	if (arm->bytes_per_s > 0)
		return wave->bytes / arm->bytes_per_s;
	return wave->tokens / arm->tokens_per_s + wave->tokens * wave->tokens * arm->token2_s;
}

double plan_arm_alone_s(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave)
{
	double bytes_s = 0, tokens_s = 0;

	if (arm->session_bytes_per_s > 0)
		bytes_s = wave->bytes / arm->session_bytes_per_s;
	if (arm->session_tokens_per_s > 0)
		tokens_s = wave->tokens / arm->session_tokens_per_s +
			   wave->tokens * wave->tokens * arm->token2_s;
	return fmax(bytes_s, tokens_s);
}

/* Until so many loads, not always a whole number of them, are there. */
static double loads_s(const struct kvof_plan_arm *arm, double loads, double work_s, double alone_s)
{
	double shared_s = loads * work_s;

	if (loads <= 0)
		return arm->fixed_s;
	return arm->fixed_s + loads * arm->session_s + fmax(shared_s, alone_s);
}

static void bottleneck_name(const struct kvof_plan_arm *arm, double loads, double work_s,
			    double alone_s, char out[48])
{
	double shared_s = loads * work_s, requests_s = loads * arm->session_s;
	double most = fmax(fmax(shared_s, alone_s), requests_s);
	const char *name = arm->bottleneck[0] != 0 ? arm->bottleneck : "unknown";

	if (arm->fixed_s > most)
		name = "fixed time";
	else if (requests_s >= most && requests_s > 0)
		name = "requests";
	else if (alone_s > shared_s)
		name = "session";
	snprintf(out, 48, "%s", name);
}

int kvof_plan_ttft(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave,
		   struct kvof_plan_ttft *out, struct kvof_plan_bad *bad)
{
	double loads, moved, waited, work_s, alone_s, share;
	int rc = plan_arm_check(arm, bad);

	rc = rc != 0 ? rc : wave_check(arm, wave, bad);
	if (rc != 0)
		return rc;
	loads = wave->sessions;
#ifndef KVOF_PLANT_RESIDENT_IGNORED
	if (arm->kind != KVOF_PLAN_RECOMPUTE)
		loads -= wave->resident;
#endif
	share = arm->median_share <= 0 && arm->median_rank <= 0 ? 1 : arm->median_share;
	waited = share * loads + arm->median_rank;
#ifdef KVOF_PLANT_SHARE_IGNORED
	waited = loads;
#endif
	moved = fmax(loads - arm->free_loads, 0.5 * loads);
#ifdef KVOF_PLANT_FREE_LOADS_IGNORED
	moved = loads;
#endif
	work_s = plan_arm_work_s(arm, wave);
	alone_s = plan_arm_alone_s(arm, wave);
	*out = (struct kvof_plan_ttft){.last_s = loads_s(arm, moved, work_s, alone_s)};
	out->p50_s = fmin(loads_s(arm, waited, work_s, alone_s), out->last_s);
#ifdef KVOF_PLANT_MEDIAN_FOR_LAST
	out->last_s = out->p50_s;
#endif
	out->p90_s = out->p50_s + P90_SHARE * (out->last_s - out->p50_s);
	out->wall_s = out->last_s;
#ifndef KVOF_PLANT_TAIL_IGNORED
	out->wall_s += fmax(arm->tail_fixed_s + arm->tail_session_s * wave->sessions, 0);
#endif
	if (out->wall_s > 0)
		out->tokens_per_s = (double)wave->sessions * arm->output_tokens / out->wall_s;
	if (arm->kind != KVOF_PLAN_RECOMPUTE && out->last_s > arm->fixed_s)
		out->bytes_per_s_needed = moved * wave->bytes / (out->last_s - arm->fixed_s);
	bottleneck_name(arm, moved, work_s, alone_s, out->bottleneck);
	return 0;
}
