/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof plan simulate: a workload over the arms of a profile, event after event (docs/plan.md).
 * Options become those of the simulator here. Reads a trace, a profile, a config.json; writes
 * nothing.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan.h"
#include "cmd/traces.h"
#include "plan/simulate.h"
#include "plan/use.h"

#define NAME "plan simulate"
#define NOT_GIVEN UINT64_MAX
#define TOKENS_MAX (1u << 30)
#define SESSIONS_MAX 1000000u

static const char *const tier_names[TIERS] = {"dram", "local", "array"};
static const enum kvof_plan_arm_kind tier_kinds[TIERS] = {
	KVOF_PLAN_DRAM, KVOF_PLAN_LOCAL, KVOF_PLAN_ARRAY,
};
static const char *const arrival_names[] = {
	[SIMULATE_WAVE] = "wave", [SIMULATE_CLOSED] = "closed", [SIMULATE_POISSON] = "poisson",
	[SIMULATE_TRACE] = "trace", NULL,
};
static const char *const load_names[] = {
	[SIMULATE_SOONER] = "sooner", [SIMULATE_ALWAYS] = "always", [SIMULATE_NEVER] = "never",
	NULL,
};

struct ask {
	const char *trace_name, *profile_name, *arrivals, *load, *requests_per_s, *speed;
	const char *tier[TIERS], *warm, *second, *log;
	struct traces_kv kv;
	unsigned seed, requests, block_tokens, users, instances, ranks, tokens, sessions;
	unsigned output_tokens, prefill;
	uint64_t think_ns, staging, rate[TIERS], latency_ns[TIERS];
	bool json;
	struct plan_profile profile;
	struct kvof_plan_arm tail;
	struct simulate_opts opts;
	struct simulate_result result;
};

static int named(const char *option, const char *text, const char *const *names, int usual)
{
	const char *near;

	if (text == NULL)
		return usual;
	for (int i = 0; names[i] != NULL; i++)
		if (strcmp(names[i], text) == 0)
			return i;
	near = cmd_nearest(text, names);
	if (near != NULL)
		cmd_error(NAME, "--%s %s: no such one; did you mean %s?", option, text, near);
	else
		cmd_error(NAME, "--%s %s: no such one; --help lists them", option, text);
	return -1;
}

/* True: the list, with commas, has the name. */
static bool listed(const char *list, const char *name)
{
	size_t bytes = strlen(name);

	for (; list != NULL; list = strchr(list, ',') != NULL ? strchr(list, ',') + 1 : NULL)
		if (strncmp(list, name, bytes) == 0 && (list[bytes] == 0 || list[bytes] == ','))
			return true;
	return false;
}

static int list_check(const char *option, const char *list)
{
	char word[16];

	while (list != NULL && *list != 0) {
		size_t bytes = strcspn(list, ",");

		snprintf(word, sizeof(word), "%.*s", (int)(bytes < 15 ? bytes : 15), list);
		for (unsigned i = 0; i <= TIERS; i++) {
			if (i == TIERS) {
				cmd_error(NAME, "--%s %s: dram, local or array", option, word);
				return CMD_USAGE;
			}
			if (strcmp(word, tier_names[i]) == 0)
				break;
		}
		list += bytes + (list[bytes] == ',');
	}
	return 0;
}

/* --- arms ------------------------------------------------------------------------------------- */

static const struct kvof_plan_fit *profile_arm(const struct ask *a, enum kvof_plan_arm_kind kind)
{
	for (uint32_t i = 0; i < a->profile.arms; i++)
		if (a->profile.arm[i].arm.kind == kind)
			return &a->profile.arm[i];
	return NULL;
}

/* Loads are bytes, whoever's they are: a rate in tokens of the profile's model becomes one. */
static void arm_bytes(const struct ask *a, struct kvof_plan_arm *arm)
{
	if (a->profile.model_bytes_per_token > 0)
		plan_use_bytes(arm, a->profile.model_bytes_per_token);
}

static int tier_arm(struct ask *a, unsigned i)
{
	struct simulate_tier *t = &a->opts.tier[i];
	const struct kvof_plan_fit *fit = profile_arm(a, tier_kinds[i]);

	if (fit == NULL && i == TIERS_ARRAY)
		fit = profile_arm(a, KVOF_PLAN_NFS);
	if (fit != NULL)
		t->arm = fit->arm;
	else
		t->arm = (struct kvof_plan_arm){.kind = tier_kinds[i], .source = KVOF_PLAN_SPEC};
	arm_bytes(a, &t->arm);
	if (a->rate[i] != NOT_GIVEN) {
		t->arm.bytes_per_s = (double)a->rate[i];
		t->arm.tokens_per_s = 0;
		t->arm.source = KVOF_PLAN_SPEC;
	}
	if (a->latency_ns[i] != NOT_GIVEN)
		t->arm.fixed_s = (double)a->latency_ns[i] / 1e9;
	if (t->arm.bytes_per_s > 0 || t->arm.tokens_per_s > 0)
		return 0;
	cmd_error(NAME, "--%s: how fast? A --profile with arm %s, or --%s-rate", tier_names[i],
		  tier_names[i], tier_names[i]);
	return CMD_USAGE;
}

static int recompute_arm(struct ask *a)
{
	const struct kvof_plan_fit *fit = profile_arm(a, KVOF_PLAN_RECOMPUTE);

	if (fit != NULL)
		a->opts.recompute = fit->arm;
	if (a->prefill > 0)
		a->opts.recompute = (struct kvof_plan_arm){.kind = KVOF_PLAN_RECOMPUTE,
			.source = KVOF_PLAN_SPEC, .tokens_per_s = a->prefill, .bottleneck = "gpu",
			.median_share = 0.5, .median_rank = 1};
	if (a->opts.recompute.tokens_per_s > 0 || a->opts.load == SIMULATE_ALWAYS)
		return 0;
	cmd_error(NAME, "how fast is a prompt computed? A --profile with arm recompute, or "
		  "--prefill-tokens-per-s; or --load always");
	return CMD_USAGE;
}

/* Recompute is the model's own; of another it is not told. */
static int model_check(struct ask *a)
{
	double of = a->profile.model_bytes_per_token, is = a->kv.token_bytes;

	if (a->profile_name == NULL || of <= 0 || is <= 0 || fabs(of - is) < 0.5 ||
	    a->prefill > 0 || a->opts.load == SIMULATE_ALWAYS)
		return 0;
	cmd_error(NAME, "%s is of a model with %.0f bytes a token, this has %.0f: loads carry "
		  "over, recompute does not; give --prefill-tokens-per-s", a->profile_name, of, is);
	return CMD_REFUSED;
}

static int arms_make(struct ask *a)
{
	int rc = 0;

	if (a->profile_name != NULL)
		rc = plan_profile_load(NAME, a->profile_name, &a->profile);
	if (rc == 0)
		rc = model_check(a);
	for (unsigned i = 0; rc == 0 && i < TIERS; i++)
		if (a->opts.tier[i].present)
			rc = tier_arm(a, i);
	if (rc == 0)
		rc = recompute_arm(a);
	a->tail = a->opts.recompute;
	for (unsigned i = 0; i < TIERS; i++)
		if (a->opts.tier[i].present && a->opts.tier[i].arm.output_tokens > 0)
			a->tail = a->opts.tier[i].arm;
	a->opts.tail = a->tail.output_tokens > 0 ? &a->tail : NULL;
	return rc;
}

/* --- tiers ------------------------------------------------------------------------------------ */

static int tiers_make(struct ask *a)
{
	unsigned present = 0;
	int rc = list_check("warm", a->warm);

	if (rc == 0)
		rc = list_check("second-touch", a->second);
	if (rc == 0)
		rc = list_check("log", a->log);
	for (unsigned i = 0; rc == 0 && i < TIERS; i++) {
		struct simulate_tier *t = &a->opts.tier[i];
		double block_bytes = a->kv.token_bytes * a->opts.block_tokens;
		uint64_t bytes;

		t->warm = listed(a->warm, tier_names[i]);
		t->second_touch = listed(a->second, tier_names[i]);
		t->log = listed(a->log, tier_names[i]);
		t->present = a->tier[i] != NULL;
		present += t->present;
		if ((t->warm || t->second_touch) && !t->present) {
			cmd_error(NAME, "--%s %s: --%s is not given", t->warm ? "warm" :
				  "second-touch", tier_names[i], tier_names[i]);
			return CMD_USAGE;
		}
		if (!t->present || strcmp(a->tier[i], "all") == 0)
			continue;
		if (!cmd_bytes_parse(a->tier[i], true, &bytes)) {
			cmd_error(NAME, "--%s %s: not a size, as in 2TB, or all", tier_names[i],
				  a->tier[i]);
			return CMD_USAGE;
		}
		if (block_bytes <= 0) {
			cmd_error(NAME, "--%s is in bytes: --model or --bytes-per-token is needed",
				  tier_names[i]);
			return CMD_USAGE;
		}
		t->capacity_blocks = (uint64_t)((double)bytes / block_bytes);
		if (t->capacity_blocks > 0)
			continue;
		cmd_error(NAME, "--%s %s: holds not even one block of %.0f bytes", tier_names[i],
			  a->tier[i], block_bytes);
		return CMD_USAGE;
	}
	if (rc == 0 && a->tokens > 0 && a->warm == NULL && present == 1)
		for (unsigned i = 0; i < TIERS; i++)
			a->opts.tier[i].warm = a->opts.tier[i].present;
	return rc;
}

/* What one rank stages of a session: its heads, or all where ranks hold the same. */
static int staging_make(struct ask *a)
{
	struct kvof_plan_geometry geometry;
	struct kvof_plan_model model;
	struct kvof_plan_split split = {.tp = a->ranks};
	int rc;

	a->opts.staging_bytes = (double)a->staging;
	a->opts.rank_share = 1.0 / a->ranks;
	if (a->staging == 0 || a->kv.model == NULL || a->ranks == 1)
		return 0;
	rc = plan_dtype_find(NAME, a->kv.dtype != NULL ? a->kv.dtype : "bf16",
			     &split.kv_elem_bytes);
	if (rc == 0)
		rc = plan_geometry_read(NAME, a->kv.model, &split, &model, &geometry);
	if (rc != 0)
		return rc;
	a->opts.rank_share = (double)geometry.rank_first_bytes / (double)geometry.first_bytes;
	return 0;
}

/* --- the trace -------------------------------------------------------------------------------- */

static int trace_make(struct ask *a, struct trace *t)
{
	const struct traces_ask from = {NAME, a->seed, a->requests, a->block_tokens};
	unsigned output = a->output_tokens > 0 ? a->output_tokens : a->tail.output_tokens;
	int rc = 0;

	if (a->trace_name != NULL) {
		rc = traces_take(&from, a->trace_name, t);
		for (uint32_t i = 0; rc == 0 && a->output_tokens > 0 && i < t->requests; i++)
			t->request[i].output_tokens = output;
		return rc;
	}
	if (simulate_wave_add(t, a->sessions, a->tokens, output) != 0) {
		cmd_error(NAME, "no memory for %u sessions", a->sessions);
		return CMD_FAILED;
	}
	return 0;
}

static int times_parse(struct ask *a)
{
	uint64_t ns;

	if (a->requests_per_s != NULL) {
		if (!cmd_time_parse(a->requests_per_s, true, &ns) || ns == 0) {
			cmd_error(NAME, "--requests-per-s %s: not a rate, as in 2 or 0.5",
				  a->requests_per_s);
			return CMD_USAGE;
		}
		a->opts.requests_per_s = (double)ns / 1e9;
	}
	if (a->speed != NULL && !traces_speed_parse(a->speed, &a->opts.speed)) {
		cmd_error(NAME, "--speed %s: not a factor, as in 2 or 0.5", a->speed);
		return CMD_USAGE;
	}
	return 0;
}

static int shape_check(struct ask *a)
{
	if ((a->trace_name == NULL) == (a->tokens == 0)) {
		cmd_error(NAME, "a TRACE, or --tokens N for sessions all alike: one of them");
		return CMD_USAGE;
	}
	if (a->tokens > TOKENS_MAX || a->sessions > SESSIONS_MAX || a->block_tokens > 1u << 20) {
		cmd_error(NAME, "--%s: too many", a->tokens > TOKENS_MAX ? "tokens" :
			  a->sessions > SESSIONS_MAX ? "sessions" : "block-tokens");
		return CMD_USAGE;
	}
	if (a->opts.arrivals == SIMULATE_TRACE && a->trace_name == NULL) {
		cmd_error(NAME, "--arrivals trace needs a TRACE");
		return CMD_USAGE;
	}
	if (a->opts.arrivals == SIMULATE_CLOSED && a->users == 0) {
		cmd_error(NAME, "--arrivals closed needs --users");
		return CMD_USAGE;
	}
	if (a->opts.arrivals == SIMULATE_POISSON && a->requests_per_s == NULL) {
		cmd_error(NAME, "--arrivals poisson needs --requests-per-s");
		return CMD_USAGE;
	}
	return 0;
}

static int opts_make(struct ask *a)
{
	int arrivals = named("arrivals", a->arrivals, arrival_names, a->trace_name != NULL ?
			     SIMULATE_TRACE : SIMULATE_WAVE);
	int load = named("load", a->load, load_names, SIMULATE_SOONER), rc;

	if (arrivals < 0 || load < 0)
		return CMD_USAGE;
	a->opts = (struct simulate_opts){.seed = a->seed, .users = a->users,
		.arrivals = (enum simulate_arrivals)arrivals, .load = (enum simulate_load)load,
		.think_s = (double)a->think_ns / 1e9, .instances = a->instances,
		.block_tokens = a->tokens > 0 ? a->tokens : a->block_tokens};
	rc = shape_check(a);
	if (rc == 0)
		rc = times_parse(a);
	if (rc == 0)
		rc = traces_kv_find(NAME, &a->kv);
	a->opts.token_bytes = a->kv.token_bytes;
	if (rc == 0)
		rc = tiers_make(a);
	if (rc == 0)
		rc = staging_make(a);
	return rc == 0 ? arms_make(a) : rc;
}

/* --- what is told ----------------------------------------------------------------------------- */

static json_t *times_json(const struct simulate_times *t)
{
	return json_pack("{s:f, s:f, s:f, s:f, s:f}", "p50", t->p50_s, "p90", t->p90_s, "p99",
			 t->p99_s, "mean", t->mean_s, "last", t->last_s);
}

static json_t *tiers_json(const struct ask *a)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < TIERS; i++) {
		const struct simulate_tier_result *t = &a->result.tier[i];

		if (!a->opts.tier[i].present)
			continue;
		json_array_append_new(list, json_pack(
			"{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I}",
			"name", tier_names[i], "arm", kvof_plan_arm_name(a->opts.tier[i].arm.kind),
			"source", kvof_plan_source_name(a->opts.tier[i].arm.source),
			"capacity_blocks", (json_int_t)a->opts.tier[i].capacity_blocks,
			"hit_blocks", (json_int_t)t->hit_blocks,
			"hit_tokens", (json_int_t)t->hit_tokens,
			"evicted_blocks", (json_int_t)t->evicted, "read_bytes", t->read_bytes,
			"written_bytes", t->written_bytes, "promoted_blocks",
			(json_int_t)t->promoted, "refused_blocks", (json_int_t)t->refused,
			"touches", (json_int_t)t->touched, "carried_blocks",
			(json_int_t)t->carried));
	}
	return list;
}

static json_t *resources_json(const struct ask *a)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < a->result.resources; i++) {
		const struct simulate_resource *r = &a->result.resource[i];

		json_array_append_new(list, json_pack(
			"{s:s, s:s, s:f, s:f, s:f, s:f, s:I, s:b}", "name", r->name,
			"bottleneck", r->bottleneck, "utilisation", r->utilisation,
			"wait_mean_s", r->wait_s, "bytes_per_s", r->bytes_per_s,
			"bytes_per_s_needed", r->bytes_per_s_needed,
			"jobs_most", (json_int_t)r->jobs_most, "saturated", r->saturated));
	}
	return list;
}

static int print_json(const struct ask *a)
{
	const struct simulate_result *r = &a->result;
	json_t *all = json_pack("{s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:f, s:f, s:f, s:f, "
				"s:f, s:f}",
		"requests", (json_int_t)r->requests, "arrivals", arrival_names[a->opts.arrivals],
		"load", load_names[a->opts.load], "blocks", (json_int_t)r->blocks,
		"tokens", (json_int_t)r->tokens, "hit_blocks", (json_int_t)r->hit_blocks,
		"hit_tokens", (json_int_t)r->hit_tokens, "ttft_s", times_json(&r->ttft),
		"ttft_without_s", r->without_known ? times_json(&r->without) : json_null(),
		"first_token_last_s", r->first_token_last_s, "wall_s", r->wall_s,
		"load_s", r->load_s, "compute_s", r->compute_s,
		"tokens_per_s", r->output_tokens_per_s, "requests_per_s", r->requests_per_s);

	if (all != NULL)
		json_object_update_new(all, json_pack(
			"{s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "tiers", tiers_json(a),
			"resources", resources_json(a), "bottleneck", r->bottleneck,
			"late", (json_int_t)r->late, "held", (json_int_t)r->held,
			"given_up", (json_int_t)r->given_up, "unstaged", (json_int_t)r->unstaged,
			"skipped_blocks", (json_int_t)r->skipped_blocks,
			"seed", (json_int_t)a->seed));
	return cmd_json_print(NAME, all, CMD_DONE);
}

static double percent(uint64_t part, uint64_t whole)
{
	return whole > 0 ? 100 * (double)part / (double)whole : 0;
}

static void times_print(const char *name, const struct simulate_times *t)
{
	printf("%-22s%10.3f%10.3f%10.3f%10.3f%10.3f\n", name, t->p50_s, t->p90_s, t->p99_s,
	       t->mean_s, t->last_s);
}

static void head_print(const struct ask *a)
{
	const struct simulate_result *r = &a->result;

	if (a->trace_name != NULL)
		printf("%s: ", a->trace_name);
	else
		printf("sessions of %u tokens: ", a->tokens);
	printf("%llu requests, arrivals %s", (unsigned long long)r->requests,
	       arrival_names[a->opts.arrivals]);
	if (a->opts.arrivals == SIMULATE_CLOSED)
		printf(" (%u users, %.1f s of thought)", a->users, a->opts.think_s);
	if (a->opts.arrivals == SIMULATE_POISSON)
		printf(" (%.3f a second)", a->opts.requests_per_s);
	printf(", %u instance%s, load %s, seed %u\n", a->instances, a->instances > 1 ? "s" : "",
	       load_names[a->opts.load], a->seed);
	for (unsigned i = 0; i < TIERS; i++) {
		const struct kvof_plan_arm *arm = &a->opts.tier[i].arm;

		if (!a->opts.tier[i].present)
			continue;
		printf("  %-10s%.3f s + %s at %.3f %s (%s)\n", kvof_plan_arm_name(arm->kind),
		       arm->fixed_s, arm->bytes_per_s > 0 ? "bytes" : "tokens",
		       arm->bytes_per_s > 0 ? arm->bytes_per_s / 1e9 : arm->tokens_per_s,
		       arm->bytes_per_s > 0 ? "GB/s" : "tokens/s",
		       kvof_plan_source_name(arm->source));
	}
	if (a->opts.recompute.tokens_per_s > 0)
		printf("  %-10s%.3f s + tokens at %.1f tokens/s of an instance (%s)\n", "recompute",
		       a->opts.recompute.fixed_s, a->opts.recompute.tokens_per_s,
		       kvof_plan_source_name(a->opts.recompute.source));
}

static void tiers_print(const struct ask *a)
{
	const struct simulate_result *r = &a->result;

	printf("\n%-10s%12s%10s%12s%12s%12s\n", "tier", "hit blocks", "of all", "read GB",
	       "written GB", "evicted");
	for (unsigned i = 0; i < TIERS; i++) {
		const struct simulate_tier_result *t = &r->tier[i];

		if (a->opts.tier[i].present)
			printf("%-10s%12llu%8.2f %%%12.3f%12.3f%12llu\n", tier_names[i],
			       (unsigned long long)t->hit_blocks, percent(t->hit_blocks, r->blocks),
			       t->read_bytes / 1e9, t->written_bytes / 1e9,
			       (unsigned long long)t->evicted);
	}
}

static void resources_print(const struct simulate_result *r)
{
	printf("\n%-10s%14s%16s%14s%16s%8s\n", "resource", "utilisation", "mean wait s",
	       "busy GB/s", "needed GB/s", "most");
	for (unsigned i = 0; i < r->resources; i++) {
		const struct simulate_resource *s = &r->resource[i];

		printf("%-10s%12.1f %%%16.3f%14.3f%16.3f%8u%s\n", s->name, 100 * s->utilisation,
		       s->wait_s, s->bytes_per_s / 1e9, s->bytes_per_s_needed / 1e9, s->jobs_most,
		       s->saturated ? "  saturated" : "");
	}
	printf("bottleneck: %s\n", r->bottleneck);
}

static int print_page(const struct ask *a)
{
	const struct simulate_result *r = &a->result;

	head_print(a);
	printf("\n%-22s%10s%10s%10s%10s%10s\n", "first token after, s", "p50", "p90", "p99", "mean",
	       "last");
	times_print("with the tiers", &r->ttft);
	if (r->without_known)
		times_print(a->opts.arrivals == SIMULATE_CLOSED ? "same arrivals computed" :
			    "computed in order", &r->without);
	tiers_print(a);
	resources_print(r);
	printf("\n%.1f s in all; %.3f requests/s", r->wall_s, r->requests_per_s);
	if (a->opts.tail != NULL)
		printf(", %.1f tokens/s of output", r->output_tokens_per_s);
	printf("\n%llu blocks were there and sooner computed; %llu loads waited to begin, %llu of "
	       "them never did\n", (unsigned long long)r->skipped_blocks,
	       (unsigned long long)r->held, (unsigned long long)r->given_up);
	if (r->unstaged > 0)
		printf("%llu requests were larger than the staging: the rest was computed\n",
		       (unsigned long long)r->unstaged);
	if (r->late > 0)
		printf("%llu requests came later than computed in order\n",
		       (unsigned long long)r->late);
	return cmd_output_end(NAME, CMD_DONE);
}

/* --- options ---------------------------------------------------------------------------------- */

static int simulate_run(struct ask *a)
{
	struct kvof_plan_bad bad = {"", ""};
	struct trace t = {0};
	int rc = opts_make(a), failed;

	if (rc == 0)
		rc = trace_make(a, &t);
	if (rc == 0) {
		failed = simulate(&t, &a->opts, &a->result, &bad);
		if (failed == -EINVAL) {
			cmd_error(NAME, "%s: %s", bad.field, bad.why);
			rc = CMD_USAGE;
		} else if (failed != 0) {
			cmd_error(NAME, "no memory for %u requests", t.requests);
			rc = CMD_FAILED;
		}
	}
	if (rc == 0)
		rc = a->json ? print_json(a) : print_page(a);
	simulate_free(&a->result);
	trace_free(&t);
	return rc;
}

static const char simulate_more[] =
	"TRACE is a file in Mooncake's format, - for standard input, or a workload: multi-turn,\n"
	"shared-prefix, cold-long, mixed. Or, with --tokens, --sessions that are all alike.\n\n"
	"Arms are those of the profile; --*-rate, --*-fixed and --prefill-tokens-per-s are told\n"
	"instead, and marked as such. Requests come as a wave, as users that wait, think and ask\n"
	"again (closed), at random (poisson), or at the trace's times (trace). With --load sooner\n"
	"no first token is later than if the instance computed all its prompts in their order.\n\n"
	"  kvof plan simulate mixed --profile p.json --model config.json --dram 1TB \\\n"
	"      --array 14TB --arrivals closed --users 64 --think 20s\n"
	"  kvof plan simulate --tokens 30208 --sessions 32 --profile p.json --array all \\\n"
	"      --model config.json --load always\n";

int plan_simulate(int argc, char **argv)
{
	static struct ask a = {.seed = 1, .block_tokens = 512, .sessions = 16, .instances = 1,
		.ranks = 1, .rate = {NOT_GIVEN, NOT_GIVEN, NOT_GIVEN},
		.latency_ns = {NOT_GIVEN, NOT_GIVEN, NOT_GIVEN}};
	const struct cmd_opt common[] = {
		{"dram", CMD_TEXT, &a.tier[0], "SIZE|all", "a tier of DRAM"},
		{"local", CMD_TEXT, &a.tier[1], "SIZE|all", "of local flash"},
		{"array", CMD_TEXT, &a.tier[2], "SIZE|all", "and of the array"},
		{"warm", CMD_TEXT, &a.warm, "TIER,...", "has all blocks at the start"},
		{"second-touch", CMD_TEXT, &a.second, "TIER,...",
			"takes a block when it is saved again"},
		{"log", CMD_TEXT, &a.log, "TIER,...", "evicts as kvof's store does, not as lru"},
		{"dram-rate", CMD_BYTES, &a.rate[0], "SIZE", "bytes a second of DRAM"},
		{"local-rate", CMD_BYTES, &a.rate[1], "SIZE", "of local flash"},
		{"array-rate", CMD_BYTES, &a.rate[2], "SIZE", "of the array"},
		{"dram-fixed", CMD_TIME, &a.latency_ns[0], "TIME", "of a load, beside its bytes"},
		{"local-fixed", CMD_TIME, &a.latency_ns[1], "TIME", "the same of local flash"},
		{"array-fixed", CMD_TIME, &a.latency_ns[2], "TIME", "and of the array"},
		{"prefill-tokens-per-s", CMD_COUNT, &a.prefill, "N", "of one instance"},
		{"output-tokens", CMD_COUNT, &a.output_tokens, "N", "of each request, instead"},
		{.name = NULL},
	};
	const struct cmd_opt opts[] = {
		{"profile", CMD_TEXT, &a.profile_name, "FILE", "as kvof plan calibrate writes it"},
		{"model", CMD_TEXT, &a.kv.model, "CONFIG.json", "whose KV it is"},
		{"kv-dtype", CMD_TEXT, &a.kv.dtype, "D", "of the cache: bf16 (default), fp8, ..."},
		{"bytes-per-token", CMD_BYTES, &a.kv.bytes_per_token, "SIZE", "of KV, instead"},
		{"block-tokens", CMD_COUNT, &a.block_tokens, "N", "tokens of a block; 512"},
		{"tokens", CMD_COUNT, &a.tokens, "N", "sessions of N tokens, no trace"},
		{"sessions", CMD_COUNT, &a.sessions, "N", "how many; 16"},
		{"arrivals", CMD_TEXT, &a.arrivals, "A", "wave, closed, poisson, trace"},
		{"users", CMD_COUNT, &a.users, "N", "closed: how many"},
		{"think", CMD_TIME, &a.think_ns, "TIME", "closed: between answer and next; 0s"},
		{"requests-per-s", CMD_TEXT, &a.requests_per_s, "X", "poisson: on average"},
		{"speed", CMD_TEXT, &a.speed, "X", "trace: so many times as fast; 1"},
		{"instances", CMD_COUNT, &a.instances, "N", "of the engine, a queue each; 1"},
		{"load", CMD_TEXT, &a.load, "L", "sooner (default), always, never"},
		{"staging", CMD_BYTES, &a.staging, "SIZE", "of one rank: loads wait for room"},
		{"ranks", CMD_COUNT, &a.ranks, "N", "that share a session's bytes; 1"},
		{"seed", CMD_COUNT, &a.seed, "N", "of workload and arrivals; 1"},
		{"requests", CMD_COUNT, &a.requests, "N",
			"of a made workload (4000), or only the first of a file"},
		{"json", CMD_FLAG, &a.json, NULL, "print JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = NAME, .args = "[TRACE]", .most = 1, .opts = opts, .common = common,
		.what = "Runs a workload over the arms of a profile, one event after another.",
		.more = simulate_more,
	};
	const char *name[1] = {NULL};
	unsigned count;
	int rc = cmd_args(&u, argc, argv, name, &count);

	if (rc >= 0)
		return rc;
	a.trace_name = count > 0 ? name[0] : NULL;
	return simulate_run(&a);
}
