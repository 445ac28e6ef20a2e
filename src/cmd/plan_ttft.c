/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof plan ttft: when the first tokens of a wave come, for every arm of a profile, side by side
 * (docs/plan.md). Reads a profile and a config.json, writes nothing.
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
#include "plan/arm.h"
#include "plan/use.h"

#define NAME "plan ttft"
#define WAVES_MAX 256u
#define SESSIONS_MAX 1000000u
#define TOKENS_MAX (UINT64_C(1) << 40)

struct ttft_ask {
	const char *model_name, *profile_name, *dtype, *tokens_text;
	unsigned resident;
	bool json;
	uint64_t tokens, sessions[WAVES_MAX];
	struct plan_list waves;
	struct plan_profile profile;
	struct kvof_plan_model model;
	struct kvof_plan_geometry geometry;
	struct plan_use_ask use;
};

struct answer {
	const struct kvof_plan_fit *fit;
	struct plan_use use;
	struct kvof_plan_ttft ttft[WAVES_MAX];
};

/* --- as JSON ---------------------------------------------------------------------------------- */

static json_t *text_or_null(const char *text)
{
	return text[0] != 0 ? json_string(text) : json_null();
}

static json_t *number_or_null(double value)
{
	return value > 0 ? json_real(value) : json_null();
}

static json_t *wave_json(const struct ttft_ask *ask, const struct answer *a, uint32_t wave)
{
	const struct kvof_plan_ttft *t = &a->ttft[wave];
	const uint32_t sessions = (uint32_t)ask->sessions[wave];
	char why[KVOF_PLAN_NOTE_BYTES];

	plan_use_beyond(a->fit, (double)ask->tokens, sessions, why);
	return json_pack("{s:s, s:I, s:f, s:f, s:f, s:o, s:s, s:I, s:I, s:o, s:f, s:f, s:o, s:s, "
			 "s:o, s:o}",
		"arm", kvof_plan_arm_name(a->fit->arm.kind), "concurrency", (json_int_t)sessions,
		"ttft_p50_s", t->p50_s, "ttft_p90_s", t->p90_s, "ttft_last_s", t->last_s,
		"tokens_per_s", number_or_null(t->tokens_per_s), "bottleneck", t->bottleneck,
		"tokens", (json_int_t)ask->tokens, "resident", (json_int_t)(
			a->fit->arm.kind == KVOF_PLAN_RECOMPUTE ? 0 : ask->resident),
		"session_bytes", number_or_null(a->use.bytes), "fixed_s", a->use.arm.fixed_s,
		"wall_s", t->wall_s, "bytes_per_s_needed", number_or_null(t->bytes_per_s_needed),
		"source", kvof_plan_source_name(a->use.arm.source), "beyond", text_or_null(why),
		"carried_over", text_or_null(a->use.carried ? a->use.note : ""));
}

static int answers_json(const struct ttft_ask *ask, const struct answer *at, uint32_t count)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < count; i++)
		for (uint32_t w = 0; at[i].use.predicted && w < ask->waves.count; w++)
			json_array_append_new(list, wave_json(ask, &at[i], w));
	for (uint32_t i = 0; i < count; i++)
		if (!at[i].use.predicted)
			cmd_error(NAME, "%s: arm %s: %s", ask->profile_name,
				  kvof_plan_arm_name(at[i].fit->arm.kind), at[i].use.note);
	return cmd_json_print(NAME, list, CMD_DONE);
}

/* --- as a page -------------------------------------------------------------------------------- */

static void head_print(const struct ttft_ask *ask)
{
	const struct plan_profile *p = &ask->profile;
	char text[64], name[PLAN_NAME_BYTES];

	printf("profile %s: %s", plan_name_text(ask->profile_name, name),
	       kvof_plan_source_name(p->source));
	printf("%s%s%s%s%s%s\n", p->made[0] != 0 ? ", made " : "", p->made,
	       p->machine[0] != 0 ? ", machine " : "", p->machine,
	       p->engine[0] != 0 ? ", engine " : "", p->engine);
	if (ask->use.model != NULL) {
		uint64_t bytes, rank;

		must(kvof_plan_bytes_at(&ask->model, &ask->geometry, ask->tokens, &bytes,
					&rank) == 0);
		printf("model %s, KV cache in %s: %" PRIu64 " tokens are %" PRIu64 " bytes, %s\n",
		       ask->model.type, ask->dtype, ask->tokens, bytes,
		       plan_bytes_text((double)bytes, text));
		if (p->model_type[0] == 0)
			printf("the profile does not say of which model its rows are: taken as of "
			       "this one\n");
	}
	printf("a wave: N sessions come at once, each with %" PRIu64 " tokens of prefix",
	       ask->tokens);
	if (ask->resident > 0)
		printf("; %u of them are in memory and not loaded", ask->resident);
	printf("\n");
}

/* The arm's line with its figures put in. */
static void line_print(const struct answer *a)
{
	const struct kvof_plan_arm *arm = &a->use.arm;
	double each = plan_arm_work_s(arm, &a->use.wave);
	double alone = plan_arm_alone_s(arm, &a->use.wave);
	const char *loads = a->use.arm.kind == KVOF_PLAN_RECOMPUTE ? "N" : "loads";

	if (arm->free_loads > 0)
		printf("  last: %.2f %s of a wave cost nothing, half of it at most\n",
		       arm->free_loads, loads);
	printf("  last = %.3f s fixed", arm->fixed_s);
	if (arm->session_s > 0)
		printf(" + %s x %.4f s", loads, arm->session_s);
	if (alone > 0)
		printf(" + max(%s x %.4f s, %.4f s)\n", loads, each, alone);
	else
		printf(" + %s x %.4f s\n", loads, each);
	if (arm->bytes_per_s > 0)
		printf("         %.4f s = %.0f bytes / %.4g bytes/s (%.3f GB/s)\n", each,
		       a->use.wave.bytes, arm->bytes_per_s, arm->bytes_per_s / 1e9);
	else
		printf("         %.4f s = %.0f tokens / %.1f tokens/s%s\n", each,
		       a->use.wave.tokens, arm->tokens_per_s,
		       arm->token2_s > 0 ? " + tokens^2 x attention" : "");
	if (arm->bytes_per_s <= 0 && a->use.bytes > 0 && arm->kind != KVOF_PLAN_RECOMPUTE)
		printf("         which is %.3f GB/s of this model's cache\n",
		       a->use.bytes / each / 1e9);
	if (alone > 0)
		printf("         %.4f s: most that one session gets is bounded\n", alone);
	printf("  p50  = the same for %.3f x %s %c %.2f, never more than last; p90 = p50 + 0.8 "
	       "(last - p50)\n", arm->median_share, loads, arm->median_rank < 0 ? '-' : '+',
	       fabs(arm->median_rank));
	if (arm->output_tokens > 0)
		printf("  wall = last %c %.3f s %c %.4f s x N; tokens/s = N x %u / wall\n",
		       arm->tail_fixed_s < 0 ? '-' : '+', fabs(arm->tail_fixed_s),
		       arm->tail_session_s < 0 ? '-' : '+', fabs(arm->tail_session_s),
		       arm->output_tokens);
}

static void arm_print(const struct ttft_ask *ask, const struct answer *a)
{
	const struct kvof_plan_arm *arm = &a->use.arm;
	char why[KVOF_PLAN_NOTE_BYTES];

	printf("\n%s (%s%s)\n", kvof_plan_arm_name(arm->kind), kvof_plan_source_name(arm->source),
	       arm->source == KVOF_PLAN_SPEC ? ": of a data sheet, not measured" : "");
	if (a->use.note[0] != 0)
		printf("  %s\n", a->use.note);
	if (!a->use.predicted)
		return;
	line_print(a);
	printf("\n         N     p50 s     p90 s    last s    wall s  tokens/s  needs GB/s  "
	       "bottleneck\n");
	for (uint32_t w = 0; w < ask->waves.count; w++) {
		const struct kvof_plan_ttft *t = &a->ttft[w];
		bool beyond = plan_use_beyond(a->fit, (double)ask->tokens,
					      (uint32_t)ask->sessions[w], why);

		printf("  %8" PRIu64 " %9.2f %9.2f %9.2f %9.2f", ask->sessions[w], t->p50_s,
		       t->p90_s, t->last_s, t->wall_s);
		if (t->tokens_per_s > 0)
			printf(" %9.1f", t->tokens_per_s);
		else
			printf(" %9s", "-");
		if (t->bytes_per_s_needed > 0)
			printf("  %10.3f", t->bytes_per_s_needed / 1e9);
		else
			printf("  %10s", "-");
		printf("  %s%s%s\n", t->bottleneck, beyond ? "   * " : "", beyond ? why : "");
	}
	if (arm->kind == KVOF_PLAN_RECOMPUTE && ask->resident > 0)
		printf("  computed anew: sessions in memory make no difference here\n");
	for (uint32_t i = 0; i < a->fit->notes; i++)
		printf("  note: %s\n", a->fit->note[i]);
}

/* Arms of one profile are of one model, machine and engine, so that they may stand side by side. */
static void side_print(const struct ttft_ask *ask, const struct answer *at, uint32_t count)
{
	printf("\nlast first token, side by side\n         N");
	for (uint32_t i = 0; i < count; i++)
		if (at[i].use.predicted)
			printf("  %18s", kvof_plan_arm_name(at[i].fit->arm.kind));
	printf("  soonest\n");
	for (uint32_t w = 0; w < ask->waves.count; w++) {
		const struct answer *best = NULL;

		for (uint32_t i = 0; i < count; i++)
			if (at[i].use.predicted &&
			    (best == NULL || at[i].ttft[w].last_s < best->ttft[w].last_s))
				best = &at[i];
		printf("  %8" PRIu64, ask->sessions[w]);
		for (uint32_t i = 0; i < count; i++) {
			if (!at[i].use.predicted)
				continue;
			printf("  %8.2f s", at[i].ttft[w].last_s);
			if (&at[i] == best)
				printf("        ");
			else
				printf(" %+5.0f %%", 100 * (at[i].ttft[w].last_s /
				       fmax(best->ttft[w].last_s, 1e-9) - 1));
		}
		printf("  %s\n", kvof_plan_arm_name(best->fit->arm.kind));
	}
}

static int answers_print(const struct ttft_ask *ask, const struct answer *at, uint32_t count)
{
	uint32_t told = 0;
	bool beyond = false;
	char why[KVOF_PLAN_NOTE_BYTES];

	head_print(ask);
	for (uint32_t i = 0; i < count; i++) {
		arm_print(ask, &at[i]);
		told += at[i].use.predicted;
		for (uint32_t w = 0; at[i].use.predicted && w < ask->waves.count; w++)
			beyond |= plan_use_beyond(at[i].fit, (double)ask->tokens,
						  (uint32_t)ask->sessions[w], why);
	}
	if (told > 1)
		side_print(ask, at, count);
	if (beyond)
		printf("\n* the line goes on beyond what was measured: nobody has seen that it "
		       "holds there\n");
	return cmd_output_end(NAME, CMD_DONE);
}

/* --- work ------------------------------------------------------------------------------------- */

static int model_load(struct ttft_ask *ask)
{
	uint32_t elem_bytes;
	uint64_t bytes, rank;
	int rc = plan_dtype_find(NAME, ask->dtype, &elem_bytes);

	if (rc != 0 || ask->model_name == NULL)
		return rc;
	rc = plan_geometry_read(NAME, ask->model_name, &(struct kvof_plan_split){1, elem_bytes},
				&ask->model, &ask->geometry);
	if (rc != 0)
		return rc;
	if (kvof_plan_bytes_at(&ask->model, &ask->geometry, ask->tokens, &bytes, &rank) != 0) {
		cmd_error(NAME, "--tokens %" PRIu64 ": too many bytes to count", ask->tokens);
		return CMD_USAGE;
	}
	ask->use.model = &ask->model;
	ask->use.geometry = &ask->geometry;
	return 0;
}

static int arm_answer(const struct ttft_ask *ask, const struct kvof_plan_fit *fit,
		      struct answer *out)
{
	struct kvof_plan_bad bad;
	int rc;

	*out = (struct answer){.fit = fit};
	rc = plan_use_arm(&ask->profile, fit, &ask->use, &out->use, &bad);
	for (uint32_t w = 0; rc == 0 && out->use.predicted && w < ask->waves.count; w++) {
		struct kvof_plan_wave wave = out->use.wave;

		wave.sessions = (uint32_t)ask->sessions[w];
		wave.resident = ask->resident;
		rc = kvof_plan_ttft(&out->use.arm, &wave, &out->ttft[w], &bad);
	}
	if (rc == 0)
		return 0;
	cmd_error(NAME, "%s: arm %s: %s %s", ask->profile_name, kvof_plan_arm_name(fit->arm.kind),
		  bad.field, bad.why);
	return CMD_USAGE;
}

static int ttft_run(struct ttft_ask *ask)
{
	static struct answer answers[PLAN_PROFILE_ARMS_MAX];
	uint32_t told = 0;
	int rc = plan_profile_load(NAME, ask->profile_name, &ask->profile);

	rc = rc != 0 ? rc : model_load(ask);
	if (rc != 0)
		return rc;
	ask->use.tokens = (double)ask->tokens;
	for (uint32_t i = 0; rc == 0 && i < ask->profile.arms; i++) {
		rc = arm_answer(ask, &ask->profile.arm[i], &answers[i]);
		told += answers[i].use.predicted;
	}
	if (rc != 0)
		return rc;
	if (told == 0) {
		cmd_error(NAME, "%s: %s", ask->profile_name,
			  ask->profile.arms == 0 ? "no arms in it" : answers[0].use.note);
		return CMD_REFUSED;
	}
	return ask->json ? answers_json(ask, answers, ask->profile.arms) :
			   answers_print(ask, answers, ask->profile.arms);
}

static int ask_check(struct ttft_ask *ask)
{
	if (ask->profile_name == NULL || ask->tokens_text == NULL || ask->waves.count == 0) {
		cmd_error(NAME, "%s is missing (usage: kvof plan ttft --model CONFIG.json "
			  "--profile FILE --tokens N --concurrency C...)",
			  ask->profile_name == NULL ? "--profile" :
			  ask->tokens_text == NULL ? "--tokens" : "--concurrency");
		return CMD_USAGE;
	}
	if (!cmd_count_parse(ask->tokens_text, &ask->tokens) || ask->tokens == 0 ||
	    ask->tokens > TOKENS_MAX) {
		cmd_error(NAME, "--tokens %s: not a count of tokens", ask->tokens_text);
		return CMD_USAGE;
	}
	for (uint32_t w = 0; w < ask->waves.count; w++) {
		if (ask->resident <= ask->sessions[w])
			continue;
		cmd_error(NAME, "--resident %u: more than the %" PRIu64 " sessions of "
			  "--concurrency", ask->resident, ask->sessions[w]);
		return CMD_USAGE;
	}
	return 0;
}

int plan_ttft(int argc, char **argv)
{
	static struct ttft_ask ask = {.dtype = "bf16"};
	const char *resident = "0";
	const struct cmd_opt opts[] = {
		{"model", CMD_TEXT, &ask.model_name, "CONFIG.json",
			"of Hugging Face; - is standard input"},
		{"profile", CMD_TEXT, &ask.profile_name, "FILE",
			"as kvof plan calibrate writes it"},
		{"tokens", CMD_TEXT, &ask.tokens_text, "N", "of each session's prefix"},
		{"resident", CMD_TEXT, &resident, "R", "sessions of a wave already in memory; 0"},
		{"kv-dtype", CMD_TEXT, &ask.dtype, "D", "of the cache: bf16 (default), fp8, ..."},
		{"json", CMD_FLAG, &ask.json, NULL, "print JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = NAME, .args = "--profile FILE --tokens N --concurrency C...", .opts = opts,
		.what = "When first tokens of a wave of sessions come, for each arm of a profile.",
		.more = "--concurrency C...: sessions that come at once; `8 16 32`, `8,16,32`, or\n"
			"the option several times.\n\n"
			"If the profile says of which model it is and --model is another, loads\n"
			"are carried over in bytes and marked, and recompute is not told. What\n"
			"lies beyond the calibrated sessions or tokens is marked. The formulas\n"
			"are in docs/plan.md.\n\n"
			"  kvof plan ttft --model config.json --profile p.json --tokens 30208 \\\n"
			"      --concurrency 8 16 32\n",
	};
	uint64_t count;
	unsigned none;
	int rc;

	ask.waves = (struct plan_list){.value = ask.sessions, .most = WAVES_MAX, .least = 1,
		.largest = SESSIONS_MAX};
	rc = plan_list_take(NAME, "concurrency", &ask.waves, &argc, argv);
	if (rc != 0)
		return rc;
	rc = cmd_args(&u, argc, argv, NULL, &none);
	if (rc >= 0)
		return rc;
	if (!cmd_count_parse(resident, &count) || count > SESSIONS_MAX) {
		cmd_error(NAME, "--resident %s: not a count of sessions", resident);
		return CMD_USAGE;
	}
	ask.resident = (unsigned)count;
	rc = ask_check(&ask);
	return rc != 0 ? rc : ttft_run(&ask);
}
