/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof plan sla: what meets a time to the first token, for each arm of a profile: how many
 * sessions, how long a context, and from where loading is sooner than recompute (docs/plan.md).
 * Reads a profile and a config.json, writes nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan.h"
#include "plan/use.h"

#define NAME "plan sla"
#define RANKS 3
#define SATURATED 0.9
#define TOKENS_MAX (UINT64_C(1) << 30)
#define SESSIONS_MAX 1000000u

static const char *const rank_names[RANKS] = {"p50", "p90", "last"};

struct sla_ask {
	const char *model_name, *profile_name, *dtype, *tokens_text;
	uint64_t tokens, limit_ns;
	double limit_s;
	unsigned sessions, staged;
	bool json;
	struct plan_profile profile;
	struct kvof_plan_model model;
	struct kvof_plan_geometry geometry;
	struct plan_use_ask use;
};

struct answer {
	const struct kvof_plan_fit *fit;
	struct plan_use use;
	struct kvof_plan_sla sla[RANKS];
	bool has_even, has_rate;
	uint64_t longest[RANKS];         /* tokens that ask->sessions can have */
	struct kvof_plan_saturation full;
	struct kvof_plan_even_at even;   /* against the profile's recompute */
	double even_bytes_per_s;
};

/* --- work --------------------------------------------------------------------------- */

static int told_bad(const struct sla_ask *ask, const struct answer *a,
		    const struct kvof_plan_bad *bad)
{
	cmd_error(NAME, "%s: arm %s: %s %s", ask->profile_name,
		  kvof_plan_arm_name(a->fit->arm.kind), bad->field, bad->why);
	return CMD_USAGE;
}

/* Bytes of a session by its length, as the arm's own unit needs them. */
static struct kvof_plan_length length_of(const struct sla_ask *ask, const struct answer *a)
{
	struct kvof_plan_length length = {.model = ask->use.model, .geometry = ask->use.geometry};

	if (length.model == NULL && a->use.bytes > 0)
		length.token_bytes = a->use.bytes / (double)ask->tokens;
	return length;
}

/* A load moves bytes, and a model's bytes need not grow as its tokens do: counted in bytes. */
static void bytes_take(const struct sla_ask *ask, struct plan_use *use)
{
	double token_bytes = use->bytes / use->wave.tokens;

	if (use->arm.kind == KVOF_PLAN_RECOMPUTE || use->arm.tokens_per_s <= 0 || use->bytes <= 0)
		return;
	plan_use_bytes(&use->arm, token_bytes);
	use->wave.tokens = (double)ask->tokens;
}

static int arm_answer(const struct sla_ask *ask, const struct kvof_plan_fit *fit,
		      struct answer *out, struct kvof_plan_bad *bad)
{
	struct kvof_plan_length length;
	uint32_t staged;
	int rc;

	*out = (struct answer){.fit = fit};
	rc = plan_use_arm(&ask->profile, fit, &ask->use, &out->use, bad);
	if (rc != 0 || !out->use.predicted)
		return rc;
	bytes_take(ask, &out->use);
	out->use.wave.sessions = ask->sessions;
	out->use.wave.resident = 0;
	length = length_of(ask, out);
	staged = out->use.arm.kind == KVOF_PLAN_RECOMPUTE ? 0 : ask->staged;
	for (int r = 0; r < RANKS && rc == 0; r++) {
		enum kvof_plan_rank rank = (enum kvof_plan_rank)r;

		rc = kvof_plan_sla_sessions(&out->use.arm, &out->use.wave, staged, rank,
					    ask->limit_s, &out->sla[r], bad);
		if (rc == 0)
			rc = kvof_plan_sla_tokens(&out->use.arm, &length, ask->sessions, 0, rank,
						  ask->limit_s, &out->longest[r], bad);
	}
	return rc != 0 ? rc : kvof_plan_saturation_make(&out->use.arm, &out->use.wave, SATURATED,
							&out->full, bad);
}

static int even_answer(const struct sla_ask *ask, const struct answer *recompute,
		       struct answer *a, struct kvof_plan_bad *bad)
{
	const struct kvof_plan_length length = length_of(ask, a);
	int rc;

	if (recompute == NULL || !a->use.predicted || a->use.arm.kind == KVOF_PLAN_RECOMPUTE)
		return 0;
	a->has_even = true;
	rc = kvof_plan_even_tokens(&a->use.arm, &recompute->use.arm, &length, ask->sessions,
				   &a->even, bad);
	a->has_rate = a->use.wave.bytes > 0;
	if (rc == 0 && a->has_rate)
		rc = kvof_plan_even_rate(&a->use.arm, &recompute->use.arm, &a->use.wave,
					 &a->even_bytes_per_s, bad);
	return rc;
}

static int answers_make(const struct sla_ask *ask, struct answer *at)
{
	const struct answer *recompute = NULL;
	struct kvof_plan_bad bad;

	for (uint32_t i = 0; i < ask->profile.arms; i++) {
		if (arm_answer(ask, &ask->profile.arm[i], &at[i], &bad) != 0)
			return told_bad(ask, &at[i], &bad);
		if (at[i].use.predicted && at[i].use.arm.kind == KVOF_PLAN_RECOMPUTE)
			recompute = &at[i];
	}
	for (uint32_t i = 0; i < ask->profile.arms; i++)
		if (even_answer(ask, recompute, &at[i], &bad) != 0)
			return told_bad(ask, &at[i], &bad);
	return 0;
}

/* --- what is shown ------------------------------------------------------------------ */

static const char *even_text(const struct kvof_plan_even_at *e, char out[96])
{
	switch (e->load) {
	case KVOF_PLAN_LOAD_NEVER:
		return "at no length";
	case KVOF_PLAN_LOAD_ALWAYS:
		return "at any length";
	case KVOF_PLAN_LOAD_FROM:
		snprintf(out, 96, "from %.0f tokens on", ceil(e->from_tokens));
		break;
	case KVOF_PLAN_LOAD_UNTIL:
		snprintf(out, 96, "below %.0f tokens", e->until_tokens);
		break;
	case KVOF_PLAN_LOAD_OUTSIDE:
		snprintf(out, 96, "below %.0f tokens, and from %.0f on", e->until_tokens,
			 ceil(e->from_tokens));
		break;
	}
	return out;
}

static json_t *number_or_null(double value)
{
	return value > 0 && isfinite(value) ? json_real(value) : json_null();
}

static json_t *even_json(const struct answer *a)
{
	char text[96];

	return json_pack("{s:o, s:o, s:o, s:o}",
		"load_is_sooner", a->has_even ? json_string(even_text(&a->even, text)) :
			json_null(),
		"from_tokens", number_or_null(a->even.from_tokens),
		"until_tokens", number_or_null(a->even.until_tokens),
		"bytes_per_s", a->has_rate ? number_or_null(a->even_bytes_per_s) : json_null());
}

/* Of the sessions that are told; where none meets it, of one. */
static bool beyond_tell(const struct sla_ask *ask, const struct answer *a,
			char why[KVOF_PLAN_NOTE_BYTES])
{
	uint32_t sessions = a->sla[KVOF_PLAN_LAST].sessions;

	return plan_use_beyond(a->fit, (double)ask->tokens, sessions > 0 ? sessions : 1, why);
}

static json_t *answer_json(const struct sla_ask *ask, const struct answer *a)
{
	json_t *sessions = json_object(), *longest = json_object();
	char why[KVOF_PLAN_NOTE_BYTES];
	bool beyond = beyond_tell(ask, a, why);

	for (int r = 0; r < RANKS; r++) {
		json_object_set_new(sessions, rank_names[r], json_integer(a->sla[r].sessions));
		json_object_set_new(longest, rank_names[r],
				    json_integer((json_int_t)a->longest[r]));
	}
	return json_pack("{s:s, s:f, s:I, s:I, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:s, s:o}",
		"arm", kvof_plan_arm_name(a->use.arm.kind), "limit_s", ask->limit_s,
		"tokens", (json_int_t)ask->tokens, "concurrency", (json_int_t)ask->sessions,
		"sessions", sessions, "longest_tokens", longest,
		"bottleneck", a->sla[KVOF_PLAN_LAST].bottleneck,
		"saturation_sessions", number_or_null(a->full.busy_sessions),
		"saturation_throughput_sessions", number_or_null(a->full.throughput_sessions),
		"limit_tokens_per_s", number_or_null(a->full.limit_tokens_per_s),
		"break_even", even_json(a), "source", kvof_plan_source_name(a->use.arm.source),
		"beyond", beyond ? json_string(why) : json_null());
}

static int answers_json(const struct sla_ask *ask, const struct answer *at)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < ask->profile.arms; i++)
		if (at[i].use.predicted)
			json_array_append_new(list, answer_json(ask, &at[i]));
	return cmd_json_print(NAME, list, CMD_DONE);
}

static void sessions_print(const struct sla_ask *ask, const struct answer *a)
{
	printf("  rank  sessions   their time  one more has    longest context of %u\n",
	       ask->sessions);
	for (int r = 0; r < RANKS; r++) {
		const struct kvof_plan_sla *s = &a->sla[r];

		printf("  %-4s %9u", rank_names[r], s->sessions);
		if (s->sessions > 0)
			printf("  %9.3f s", s->at_s);
		else
			printf("  %11s", "-");
		printf("  %10.3f s", s->next_s);
		if (a->longest[r] >= KVOF_PLAN_TOKENS_MAX)
			printf("    any\n");
		else
			printf("    %" PRIu64 " tokens\n", a->longest[r]);
	}
}

static void answer_print(const struct sla_ask *ask, const struct answer *a)
{
	char text[96], why[KVOF_PLAN_NOTE_BYTES];

	printf("\n%s (%s)\n", kvof_plan_arm_name(a->fit->arm.kind),
	       kvof_plan_source_name(a->fit->arm.source));
	if (plan_profile_doubts(&ask->profile, a->fit, why))
		printf("  %s\n", why);
	if (a->use.note[0] != 0)
		printf("  %s\n", a->use.note);
	if (!a->use.predicted)
		return;
	sessions_print(ask, a);
	if (beyond_tell(ask, a, why))
		printf("  nobody has seen that the line holds there: %s\n", why);
	if (isinf(a->full.busy_sessions))
		printf("  its rate is never in use %.0f %% of the time: requests take longer\n",
		       100 * SATURATED);
	else
		printf("  saturated from %.1f sessions on: its rate is in use %.0f %% of the "
		       "time\n",
		       a->full.busy_sessions, 100 * SATURATED);
	if (a->full.limit_tokens_per_s > 0)
		printf("  tokens/s reach %.0f %% of their limit, %.1f, at %.1f sessions\n",
		       100 * SATURATED, a->full.limit_tokens_per_s, a->full.throughput_sessions);
	if (a->has_even)
		printf("  sooner than recompute %s, with %u at once\n", even_text(&a->even, text),
		       ask->sessions);
	if (a->has_rate && isinf(a->even_bytes_per_s))
		printf("  at %" PRIu64 " tokens no rate makes it sooner: its fixed time is "
		       "longer\n",
		       ask->tokens);
	else if (a->has_rate)
		printf("  at %" PRIu64 " tokens it must bring %.3f GB/s to be sooner\n",
		       ask->tokens, a->even_bytes_per_s / 1e9);
}

static int sla_run(struct sla_ask *ask)
{
	static struct answer answers[PLAN_PROFILE_ARMS_MAX];
	char name[PLAN_NAME_BYTES];
	uint32_t told = 0;
	int rc = answers_make(ask, answers);

	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < ask->profile.arms; i++)
		told += answers[i].use.predicted;
	if (told == 0) {
		cmd_error(NAME, "%s: %s", ask->profile_name, ask->profile.arms == 0 ?
			  "no arms in it" : answers[0].use.note);
		return CMD_REFUSED;
	}
	if (ask->json)
		return answers_json(ask, answers);
	printf("profile %s: first tokens within %.3f s, sessions of %" PRIu64 " tokens that come "
	       "at once\n", plan_name_text(ask->profile_name, name), ask->limit_s, ask->tokens);
	if (ask->staged > 0)
		printf("staging for %u sessions at a time (contexts are told without it)\n",
		       ask->staged);
	for (uint32_t i = 0; i < ask->profile.arms; i++)
		answer_print(ask, &answers[i]);
	return cmd_output_end(NAME, CMD_DONE);
}

/* --- what was asked ----------------------------------------------------------------- */

static int model_load(struct sla_ask *ask)
{
	uint32_t elem_bytes;
	int rc = plan_dtype_find(NAME, ask->dtype, &elem_bytes);

	if (rc == 0)
		rc = plan_profile_load(NAME, ask->profile_name, &ask->profile);
	if (rc != 0 || ask->model_name == NULL)
		return rc;
	rc = plan_geometry_read(NAME, ask->model_name, &(struct kvof_plan_split){1, elem_bytes},
				&ask->model, &ask->geometry);
	if (rc != 0)
		return rc;
	ask->use.model = &ask->model;
	ask->use.geometry = &ask->geometry;
	return 0;
}

static int ask_check(struct sla_ask *ask)
{
	const char *missing = ask->profile_name == NULL ? "--profile" :
		ask->tokens_text == NULL ? "--tokens" : ask->limit_ns == 0 ? "--within" : NULL;

	if (missing != NULL) {
		cmd_error(NAME, "%s is missing (usage: kvof plan sla --profile FILE --tokens N "
			  "--within TIME)", missing);
		return CMD_USAGE;
	}
	if (!cmd_count_parse(ask->tokens_text, &ask->tokens) || ask->tokens == 0 ||
	    ask->tokens > TOKENS_MAX) {
		cmd_error(NAME, "--tokens %s: not a count of tokens", ask->tokens_text);
		return CMD_USAGE;
	}
	if (ask->sessions > SESSIONS_MAX) {
		cmd_error(NAME, "--concurrency %u: more than %u", ask->sessions, SESSIONS_MAX);
		return CMD_USAGE;
	}
	ask->limit_s = (double)ask->limit_ns / 1e9;
	ask->use.tokens = (double)ask->tokens;
	return 0;
}

int plan_sla(int argc, char **argv)
{
	static struct sla_ask ask = {.dtype = "bf16", .sessions = 8};
	const struct cmd_opt opts[] = {
		{"model", CMD_TEXT, &ask.model_name, "CONFIG.json", "of Hugging Face; - is "
			"standard input"},
		{"profile", CMD_TEXT, &ask.profile_name, "FILE", "as kvof plan calibrate writes "
			"it"},
		{"tokens", CMD_TEXT, &ask.tokens_text, "N", "of each session's prefix"},
		{"within", CMD_TIME, &ask.limit_ns, "TIME", "to the first token, as 5s"},
		{"concurrency", CMD_COUNT, &ask.sessions, "C", "sessions whose longest context is "
			"told; 8"},
		{"staging", CMD_COUNT, &ask.staged, "N", "sessions that staging holds at a time"},
		{"kv-dtype", CMD_TEXT, &ask.dtype, "D", "of the cache: bf16 (default), fp8, ..."},
		{"json", CMD_FLAG, &ask.json, NULL, "print JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = NAME, .args = "--profile FILE --tokens N --within TIME", .opts = opts,
		.what = "How many sessions, how long a context, have their first token in time.",
		.more = "For p50, p90 and the last of a wave. What is told holds, and one more\n"
			"does not. Also where the arm is saturated, and from which length it is\n"
			"sooner than recompute.\n\n"
			"  kvof plan sla --model config.json --profile p.json --tokens 30208 \\\n"
			"      --within 5s\n",
	};
	unsigned none;
	int rc = cmd_args(&u, argc, argv, NULL, &none);

	if (rc >= 0)
		return rc;
	rc = ask_check(&ask);
	if (rc == 0)
		rc = model_load(&ask);
	return rc != 0 ? rc : sla_run(&ask);
}
