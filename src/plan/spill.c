/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of the KV cache fits where: GPU memory after weights and activations, host memory, drives;
 * and the staging that loads need on each rank. A rank is the bound everywhere: what is told of
 * staging, and of resident sessions, is for the rank that holds most.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "base/must.h"
#include "plan/arm.h"

static int ask_check(const struct kvof_plan_spill_ask *a, struct kvof_plan_bad *bad)
{
	const struct {
		const char *name;
		double value;
		bool needed;
	} figures[] = {
		{"gpu_bytes", a->gpu_bytes, true}, {"weight_bytes", a->weight_bytes, true},
		{"session_bytes", a->session_bytes, true},
		{"session_rank_bytes", a->session_rank_bytes, true},
		{"gpu_share", a->gpu_share, false},
		{"activation_share", a->activation_share, false},
		{"sessions", a->sessions, false}, {"turns_per_s", a->turns_per_s, false},
		{"new_bytes_per_s", a->new_bytes_per_s, false},
		{"horizon_s", a->horizon_s, false},
		{"staging_rank_bytes", a->staging_rank_bytes, false},
		{"dram_bytes", a->dram_bytes, false}, {"store_bytes", a->store_bytes, false},
	};

	for (size_t i = 0; i < ARRAY_COUNT(figures); i++) {
		if (!(figures[i].value >= 0) || figures[i].value > PLAN_FIGURE_MAX)
			return plan_bad(bad, figures[i].name, "is below 0 or no figure");
		if (figures[i].needed && figures[i].value == 0)
			return plan_bad(bad, figures[i].name, "is missing");
	}
	if (a->gpus == 0)
		return plan_bad(bad, "gpus", "is missing");
	if (a->gpu_share > 1 || a->activation_share >= 1)
		return plan_bad(bad, a->gpu_share > 1 ? "gpu_share" : "activation_share",
				"is a share, below 1");
	if (a->session_rank_bytes > a->session_bytes)
		return plan_bad(bad, "session_rank_bytes", "a rank holds more than the session");
	return 0;
}

/* Room for KV on one rank. */
static int room_make(const struct kvof_plan_spill_ask *a, struct kvof_plan_spill *out,
		     struct kvof_plan_bad *bad)
{
	double share = a->gpu_share > 0 ? a->gpu_share : 1, gpu = a->gpu_bytes, weights;

#ifdef KVOF_PLANT_GIB_FOR_GB
	gpu *= 1.073741824;
#endif
	gpu *= share * (1 - a->activation_share);
	weights = a->weight_bytes / a->gpus;
	if (weights >= gpu)
		return plan_bad(bad, "weight_bytes", "%.1f GB of a rank's share do not fit its "
				"%.1f GB", weights / 1e9, gpu / 1e9);
	out->rank_kv_bytes = gpu - weights;
	out->kv_bytes = out->rank_kv_bytes * a->gpus;
	out->resident = out->rank_kv_bytes / a->session_rank_bytes;
	return 0;
}

static void staging_make(const struct kvof_plan_spill_ask *a, struct kvof_plan_spill *out)
{
	double fit = a->staging_rank_bytes / a->session_rank_bytes;

	out->staging_need_rank_bytes = a->wave * a->session_rank_bytes;
	out->staged_sessions = fit;
	if (a->wave == 0 || fit < 1)
		return;
	/* Whole sessions: one of which a part is staged holds what it has and waits. */
	fit = fmin(floor(fit), a->wave);
#ifdef KVOF_PLANT_STAGING_IGNORED
	fit = a->wave;
#endif
	out->staged_waves = (uint32_t)ceil(a->wave / fit);
}

int kvof_plan_spill_make(const struct kvof_plan_spill_ask *ask, struct kvof_plan_spill *out,
			 struct kvof_plan_bad *bad)
{
	double instances = ask->instances > 0 ? ask->instances : 1, whole;
	int rc;

	*out = (struct kvof_plan_spill){0};
	*bad = (struct kvof_plan_bad){0};
	rc = ask_check(ask, bad);
	if (rc == 0)
		rc = room_make(ask, out, bad);
	if (rc != 0)
		return rc;
	whole = fmin(floor(out->resident) * instances, UINT32_MAX);
	out->resident_sessions = (uint32_t)whole;
	out->dram_sessions = instances * ask->dram_bytes / ask->session_bytes;
	out->store_sessions = ask->store_bytes / ask->session_bytes;
	out->spilled_sessions = fmax(ask->sessions - whole, 0);
	out->spilled_bytes = out->spilled_sessions * ask->session_bytes;
	out->below_dram_bytes = fmax(out->spilled_sessions - floor(out->dram_sessions), 0) *
				ask->session_bytes;
	out->horizon_bytes = ask->new_bytes_per_s * ask->horizon_s;
	if (ask->sessions > 0)
		out->read_bytes_per_s = ask->turns_per_s * ask->session_bytes *
					out->spilled_sessions / ask->sessions;
	out->spills = out->spilled_sessions > 0;
	staging_make(ask, out);
	return 0;
}

/* When the k-th (from 1) of the wave has its first token: whole waves before its own, and then
 * all of its own. */
static int kth_s(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave,
		 uint32_t staged, uint32_t k, double *out, struct kvof_plan_bad *bad)
{
	uint32_t loaded = wave->sessions - wave->resident, before = (k - 1) / staged;
	uint32_t rest = loaded - before * staged;
	struct kvof_plan_wave w = {wave->tokens, wave->bytes, staged, 0};
	struct kvof_plan_ttft t;
	int rc;

	must(k >= 1 && k <= loaded);
	rc = kvof_plan_ttft(arm, &w, &t, bad);
	*out = before * t.last_s;
	w.sessions = rest < staged ? rest : staged;
	if (rc == 0)
		rc = kvof_plan_ttft(arm, &w, &t, bad);
	*out += t.last_s;
	return rc;
}

int kvof_plan_staged_ttft(const struct kvof_plan_arm *arm, const struct kvof_plan_wave *wave,
			  uint32_t staged, struct kvof_plan_ttft *out,
			  struct kvof_plan_bad *bad)
{
	double p50, p90, last, tail;
	uint32_t loaded;
	int rc = kvof_plan_ttft(arm, wave, out, bad);

	if (rc != 0)
		return rc;
	if (staged == 0)
		return plan_bad(bad, "staging", "does not hold one session: nothing is loaded "
				"whole");
	loaded = wave->sessions - wave->resident;
	/* Nothing is staged for recompute. */
	if (staged >= loaded || arm->kind == KVOF_PLAN_RECOMPUTE)
		return 0;
	/* Those of a[int(n q)], as if all of a wave ended together. */
	rc = kth_s(arm, wave, staged, loaded / 2 + 1, &p50, bad);
	if (rc == 0)
		rc = kth_s(arm, wave, staged, (uint32_t)(loaded * UINT64_C(9) / 10) + 1, &p90,
			   bad);
	if (rc == 0)
		rc = kth_s(arm, wave, staged, loaded, &last, bad);
	if (rc != 0)
		return rc;
	tail = out->wall_s - out->last_s;
	out->p50_s = p50;
	out->p90_s = p90;
	out->last_s = last;
	out->tokens_per_s = out->tokens_per_s * out->wall_s / (last + tail);
	out->wall_s = last + tail;
	if (last > 0)
		out->bytes_per_s_needed = wave->bytes * loaded / last;
	snprintf(out->bottleneck, sizeof(out->bottleneck), "staging: %u of %u at a time", staged,
		 loaded);
	return 0;
}
