/* SPDX-License-Identifier: Apache-2.0 */
/* What a session is in an arm's unit (use.h), and which arms another model can have. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/arm.h"
#include "plan/text.h"
#include "plan/use.h"

#define ALIKE 1e-3

double plan_use_token_bytes(const struct kvof_plan_geometry *geometry)
{
	return (double)(geometry->token_bytes > 0 ? geometry->token_bytes : geometry->first_bytes);
}

bool plan_use_other_model(const struct plan_profile *profile, const struct plan_use_ask *ask,
			  char why[KVOF_PLAN_NOTE_BYTES])
{
	double bytes;

	why[0] = 0;
	if (ask->model == NULL || profile->model_type[0] == 0)
		return false;
	bytes = plan_use_token_bytes(ask->geometry);
	if (strcmp(profile->model_type, ask->model->type) != 0)
		snprintf(why, KVOF_PLAN_NOTE_BYTES, "the profile is of model_type %.50s with %.0f "
			 "bytes a token, this is %.50s with %.0f", profile->model_type,
			 profile->model_bytes_per_token, ask->model->type, bytes);
	else if (fabs(bytes - profile->model_bytes_per_token) > 0.5)
		snprintf(why, KVOF_PLAN_NOTE_BYTES, "the profile is of a %.50s with %.0f bytes a "
			 "token, this one has %.0f", profile->model_type,
			 profile->model_bytes_per_token, bytes);
	plan_text_clean(why);
	return why[0] != 0;
}

void plan_use_bytes(struct kvof_plan_arm *arm, double token_bytes)
{
	double bound = arm->session_tokens_per_s * token_bytes;

	if (arm->kind == KVOF_PLAN_RECOMPUTE || arm->tokens_per_s <= 0)
		return;
	arm->bytes_per_s = arm->tokens_per_s * token_bytes;
	if (bound > 0 && (arm->session_bytes_per_s <= 0 || bound < arm->session_bytes_per_s))
		arm->session_bytes_per_s = bound;
	arm->tokens_per_s = arm->session_tokens_per_s = 0;
}

/* Bytes of a session of so many tokens; 0: nobody says. */
static int bytes_of(const struct plan_profile *profile, const struct plan_use_ask *ask,
		    double tokens, double *bytes, struct kvof_plan_bad *bad)
{
	uint64_t all, rank;

	*bytes = profile->model_bytes_per_token * tokens;
	if (ask->model == NULL)
		return 0;
	if (!(tokens >= 0 && tokens < 1e15) ||
	    kvof_plan_bytes_at(ask->model, ask->geometry, (uint64_t)llrint(tokens), &all,
			       &rank) != 0)
		return plan_bad(bad, "tokens", "too many bytes to count");
	*bytes = (double)all;
	return 0;
}

/* Loads in tokens, of a model whose bytes do not grow with tokens alone (windows): as many tokens
 * of the rows' length as have the same bytes. */
static int tokens_alike(const struct plan_profile *profile, const struct kvof_plan_fit *fit,
			const struct plan_use_ask *ask, double bytes, double *tokens,
			struct kvof_plan_bad *bad)
{
	const double rows = fit->tokens_max;
	double rows_bytes;
	int rc;

	if (ask->model == NULL || rows < 1 || bytes <= 0)
		return 0;
	rc = bytes_of(profile, ask, rows, &rows_bytes, bad);
#ifdef KVOF_PLANT_WINDOWS_IGNORED
	rows_bytes = 0;
#endif
	if (rc == 0 && rows_bytes > 0)
		*tokens = rows * bytes / rows_bytes;
	return rc;
}

int plan_use_arm(const struct plan_profile *profile, const struct kvof_plan_fit *fit,
		 const struct plan_use_ask *ask, struct plan_use *out, struct kvof_plan_bad *bad)
{
	const char *name = kvof_plan_arm_name(fit->arm.kind);
	char why[KVOF_PLAN_NOTE_BYTES];
	bool other = plan_use_other_model(profile, ask, why);
	int rc;

	memset(out, 0, sizeof(*out));
	out->arm = fit->arm;
	out->wave.tokens = ask->tokens;
	rc = bytes_of(profile, ask, ask->tokens, &out->bytes, bad);
	if (rc != 0)
		return rc;
	out->wave.bytes = out->bytes;
	out->predicted = true;
	if (fit->arm.kind == KVOF_PLAN_RECOMPUTE) {
#ifndef KVOF_PLANT_RECOMPUTE_OF_ANOTHER_MODEL
		out->predicted = !other;
#endif
		if (other)
			snprintf(out->note, sizeof(out->note), "not told: %.220s", why);
		return 0;
	}
	if (other) {
		out->carried = true;
		snprintf(out->note, sizeof(out->note), "carried over in bytes: %.200s", why);
		plan_use_bytes(&out->arm, profile->model_bytes_per_token);
	} else if (out->arm.tokens_per_s > 0) {
		return tokens_alike(profile, fit, ask, out->bytes, &out->wave.tokens, bad);
	}
	if (out->bytes <= 0 && (out->arm.bytes_per_s > 0 || out->arm.session_bytes_per_s > 0))
		return plan_bad(bad, "model", "is needed: arm %s has a rate in bytes, and the "
				"profile does not say what a token has", name);
	return 0;
}

bool plan_use_beyond(const struct kvof_plan_fit *fit, double tokens, uint32_t sessions,
		     char why[KVOF_PLAN_NOTE_BYTES])
{
	char length[100] = "";

	why[0] = 0;
	if (fit->tokens_max > 0 && (tokens < fit->tokens_min * (1 - ALIKE) ||
				    tokens > fit->tokens_max * (1 + ALIKE)))
		snprintf(length, sizeof(length), "%.0f tokens are beyond the calibrated %.0f to "
			 "%.0f", tokens, fit->tokens_min, fit->tokens_max);
	if (fit->concurrency_max > 0 && (sessions < fit->concurrency_min ||
					 sessions > fit->concurrency_max))
		snprintf(why, KVOF_PLAN_NOTE_BYTES, "%u sessions are beyond the calibrated %u to "
			 "%u%s%s", sessions, fit->concurrency_min, fit->concurrency_max,
			 length[0] != 0 ? "; " : "", length);
	else
		snprintf(why, KVOF_PLAN_NOTE_BYTES, "%s", length);
	return why[0] != 0;
}
