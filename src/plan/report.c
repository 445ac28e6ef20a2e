/* SPDX-License-Identifier: Apache-2.0 */
/* One step after another from what was asked to what is advised; report.h has the rules. */
#include "plan/report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "plan/arm.h"
#include "plan/hits.h"
#include "plan/text.h"
#include "plan/use.h"
#include "plan/workload.h"

#define DAY_S 86400.0
#define CURVE_POINTS 33u
#define PRESET_REQUESTS 4000u
#define SATURATED 0.9                      /* of the rate, or of the output */
#define TCP_RTO_S 0.2
#define SAME_BYTES 1e-3

#define REC KVOF_PLAN_RECOMPUTE
#define IN(name) plan_input_number(r->in, PLAN_IN_##name)
#define COUNT(name) plan_input_count(r->in, PLAN_IN_##name)
#define TEXT(name) plan_input_text(r->in, PLAN_IN_##name)
#define HAS(name) plan_input_has(r->in, PLAN_IN_##name)
#define NOTE r->note, &r->notes
#define DIFFERENCE r->difference, &r->differences
#define TOLD(name) plan_input_told(r->in, PLAN_IN_##name)

static enum kvof_plan_arm_kind kind_of(unsigned i)
{
	must(i < KVOF_PLAN_ARM_KINDS);
	return (enum kvof_plan_arm_kind)i;
}

/* --- the model and the workload ------------------------------------------------------ */

static uint32_t elem_bytes(const char *dtype)
{
	return strcmp(dtype, "fp32") == 0 ? 4 :
		strcmp(dtype, "fp8") == 0 || strcmp(dtype, "int8") == 0 ? 1 : 2;
}

static int model_fill(struct report *r, const struct report_ask *ask, struct kvof_plan_bad *bad)
{
	const struct kvof_plan_split split = {COUNT(model_tp), elem_bytes(TEXT(model_kv_dtype))};
	struct kvof_plan_length *length = &r->facts.length;
	int rc;

	plan_text_put(r->model, sizeof(r->model), TEXT(model_name)[0] != 0 ? TEXT(model_name) :
		      ask->model != NULL ? ask->model->type : "not named");
	if (ask->model == NULL) {
		length->token_bytes = IN(model_bytes_per_token);
	} else {
		rc = kvof_plan_geometry(ask->model, &split, &r->geometry, bad);
		if (rc != 0)
			return rc;
		r->has_geometry = true;
		length->model = ask->model;
		length->geometry = &r->geometry;
		r->facts.context_tokens = ask->model->context_tokens;
	}
	return 0;
}

/* Of one session, once its tokens are known. */
static void session_fill(struct report *r, const struct report_ask *ask)
{
	uint64_t bytes, rank_bytes;

	r->session_bytes = kvof_plan_length_bytes(&r->facts.length, r->tokens);
	r->bytes_per_token = r->session_bytes / r->tokens;
	r->session_rank_bytes = r->session_bytes / COUNT(model_tp);
	if (ask->model != NULL &&
	    kvof_plan_bytes_at(ask->model, &r->geometry, (uint64_t)r->tokens, &bytes,
			       &rank_bytes) == 0)
		r->session_rank_bytes = (double)rank_bytes;
}

static void curve_fill(struct advice_curve *c, const struct hits *h)
{
	c->points = 0;
	for (unsigned i = 0; i < CURVE_POINTS; i++) {
		double room = pow(10, -3 + 3.0 * i / (CURVE_POINTS - 1));
		uint64_t blocks = (uint64_t)(room * (double)h->unique_blocks + 0.5);

		if (i == CURVE_POINTS - 1)
			blocks = h->unique_blocks;
		c->room[c->points] = room;
		c->hit[c->points++] = (double)hits_tokens_at(h, blocks) / (double)h->tokens;
	}
}

static int trace_fill(struct report *r, const struct trace *t, bool whole,
		      struct kvof_plan_bad *bad)
{
	const struct hits_opts opts = {.block_tokens = COUNT(workload_trace_block)};
	uint64_t span_ms = t->requests == 0 ? 0 :
		t->request[t->requests - 1].time_ms - t->request[0].time_ms;
	struct hits h = {0};
	int rc = hits_count(t, &opts, &h);

	if (rc == 0 && (h.tokens == 0 || h.unique_blocks == 0))
		rc = plan_bad(bad, "[workload] trace", "has no prompt with a block");
	if (rc == 0)
		curve_fill(&r->facts.curve, &h);
	if (rc == 0 && whole) {
		if (!TOLD(workload_tokens)) {
			r->tokens = ceil((double)t->tokens / t->requests);
			r->tokens_of_trace = true;
		}
		if (!TOLD(workload_requests) && span_ms > 0)
			r->requests_per_s = t->requests * 1e3 / (double)span_ms;
		r->working_set_bytes = (double)h.unique_blocks * opts.block_tokens;   /* tokens */
	}
	hits_free(&h);
	return rc;
}

static int preset_fill(struct report *r, struct kvof_plan_bad *bad)
{
	const struct workload_opts opts = {.seed = 1, .requests = PRESET_REQUESTS,
		.block_tokens = COUNT(workload_trace_block)};
	struct trace t = {0};
	int rc;

	if (strcmp(TEXT(workload_preset), "all-again") == 0) {
		r->facts.curve = (struct advice_curve){.points = 2, .room = {0, 1}, .hit = {0, 1}};
		return 0;
	}
	rc = workload_make(TEXT(workload_preset), &opts, &t);
	if (rc == 0)
		rc = trace_fill(r, &t, false, bad);
	trace_free(&t);
	return rc;
}

static int workload_fill(struct report *r, const struct report_ask *ask,
			 struct kvof_plan_bad *bad)
{
	int rc;

	r->tokens = IN(workload_tokens);
	r->requests_per_s = IN(workload_requests);
	rc = ask->trace != NULL ? trace_fill(r, ask->trace, true, bad) : preset_fill(r, bad);
	if (rc != 0)
		return rc;
	session_fill(r, ask);
	if (ask->trace != NULL && !TOLD(workload_kept))
		r->working_set_bytes *= r->bytes_per_token;
	else
		r->working_set_bytes = COUNT(workload_kept) * r->session_bytes;
	return 0;
}

/* --- memory ------------------------------------------------------------------------------ */

static int spill_fill(struct report *r, const struct report_ask *ask, struct kvof_plan_bad *bad)
{
	uint32_t hosts = COUNT(workload_hosts), sessions = COUNT(workload_sessions);
	const struct advice_curve *c = &r->facts.curve;
	double new_tokens = r->tokens * (1 - c->hit[c->points - 1]) + IN(workload_output);
	struct kvof_plan_spill_ask s = {
		.gpus = COUNT(gpu_count), .instances = hosts, .gpu_bytes = IN(gpu_memory),
		.gpu_share = IN(gpu_usable), .weight_bytes = IN(model_weights),
		.activation_share = IN(gpu_activations), .session_bytes = r->session_bytes,
		.session_rank_bytes = COUNT(gpu_count) == COUNT(model_tp) ?
			r->session_rank_bytes : r->session_bytes / COUNT(gpu_count),
		.sessions = COUNT(workload_kept), .turns_per_s = r->requests_per_s,
		.new_bytes_per_s = r->requests_per_s * new_tokens * r->bytes_per_token,
		.horizon_s = DAY_S, .wave = (sessions + hosts - 1) / hosts,
		.staging_rank_bytes = HAS(dram_staging) ? IN(dram_staging) / COUNT(model_tp) : 0,
		.dram_bytes = IN(dram_size),
		.store_bytes = IN(local_drives) * IN(drives_capacity) * hosts,
	};
	int rc;

	if (!HAS(model_weights) && ask->work != NULL)
		s.weight_bytes = (double)ask->work->weight_bytes;
	r->has_work = !HAS(model_weights) && s.weight_bytes > 0;
	r->has_spill = s.weight_bytes > 0;
	r->weight_bytes = s.weight_bytes;
	rc = r->has_spill ? kvof_plan_spill_make(&s, &r->spill, bad) : 0;
	if (rc == 0 && r->has_spill)
		r->facts.hbm_bytes = r->spill.resident * r->session_bytes * hosts;
	r->facts.hosts = hosts;
	if (rc != 0 || !HAS(dram_staging))
		return rc;
	r->facts.staged = (uint32_t)fmin(IN(dram_staging) / COUNT(model_tp) /
					 r->session_rank_bytes, 1e6);
	r->facts.staging_bytes = IN(dram_staging) / COUNT(model_tp) * r->session_bytes /
				 r->session_rank_bytes;
	return r->facts.staged > 0 ? 0 : plan_bad(bad, "[dram] staging",
		"not even one session fits in it: nothing can be loaded whole");
}

/* --- arms -------------------------------------------------------------------------------- */

static void supply_of(const struct report *r, enum kvof_plan_arm_kind kind,
		      struct kvof_plan_supply *s)
{
	bool over_link = kind == KVOF_PLAN_ARRAY || kind == KVOF_PLAN_NFS;
	uint32_t hosts = over_link ? COUNT(workload_hosts) : 1;

	*s = (struct kvof_plan_supply){.ranks = COUNT(model_tp) * hosts,
		.rank_bytes_per_s = IN(link_rank)};
	if (kind == KVOF_PLAN_DRAM) {
		s->dram_bytes_per_s = IN(dram_rate);
		s->fixed_s = IN(dram_fixed);
		return;
	}
	if (kind == KVOF_PLAN_LOCAL || kind == KVOF_PLAN_ARRAY) {
		s->drives = kind == KVOF_PLAN_LOCAL ? COUNT(local_drives) : COUNT(array_drives);
		s->drive_read_bytes_per_s = IN(drives_read);
		s->drive_write_bytes_per_s = IN(drives_write);
		s->stripe_efficiency = s->drives > 1 ? IN(drives_stripe) : 1;
		s->fixed_s = kind == KVOF_PLAN_LOCAL ? IN(local_fixed) : IN(array_fixed);
	}
	if (!over_link)
		return;
	s->ports = COUNT(link_ports) * hosts;
	s->port_bytes_per_s = IN(link_port);
	s->link_efficiency = IN(link_efficiency);
	if (kind == KVOF_PLAN_ARRAY) {
		s->pcie_bytes_per_s = IN(array_pcie);
		s->ports = s->ports < COUNT(array_ports) ? s->ports : COUNT(array_ports);
	} else {
		s->server_bytes_per_s = IN(nfs_rate);
		s->fixed_s = IN(nfs_fixed);
	}
}

/* The hardware is there, or is asked about. */
static bool hardware_has(const struct report *r, enum kvof_plan_arm_kind kind)
{
	switch (kind) {
	case KVOF_PLAN_RECOMPUTE:
		return true;
	case KVOF_PLAN_DRAM:
		return IN(dram_size) > 0;
	case KVOF_PLAN_LOCAL:
		return COUNT(local_drives) > 0;
	case KVOF_PLAN_ARRAY:
		return COUNT(array_drives) > 0;
	case KVOF_PLAN_NFS:
		return HAS(nfs_rate);
	}
	return false;
}

/* Room for all that can be: of a profile two lines and a note an arm, of two sets one line. */
_Static_assert(REPORT_PROFILES_MAX * KVOF_PLAN_ARM_KINDS + 1 <= REPORT_LINES_MAX &&
	       2 * REPORT_PROFILES_MAX + REPORT_SETS_MAX * (REPORT_SETS_MAX - 1) / 2 <=
	       REPORT_LINES_MAX, "no line of a report is left out");

__attribute__((format(printf, 3, 4)))
static void line_say(struct report_line line[REPORT_LINES_MAX], unsigned *lines,
		     const char *format, ...)
{
	char *text = line[*lines].text;
	va_list args;

	must(*lines < REPORT_LINES_MAX);
	va_start(args, format);
	vsnprintf(text, REPORT_TEXT_BYTES, format, args);
	va_end(args);
	plan_text_clean(text);
	(*lines)++;
}

static bool prefill_by_work(const struct report *r, const struct report_ask *ask)
{
	return !TOLD(model_prefill) && HAS(gpu_flops) && ask->work != NULL;
}

/* Prefill as it was told, or by the work of a prompt, or the standard. */
static int recompute_fill(struct report *r, const struct report_ask *ask,
			  struct kvof_plan_arm *arm, struct kvof_plan_bad *bad)
{
	int rc = 0;

	*arm = (struct kvof_plan_arm){.tokens_per_s = IN(model_prefill)};
	if (prefill_by_work(r, ask))
		rc = kvof_plan_arm_of_work(ask->work, COUNT(gpu_count) * IN(gpu_flops),
					   IN(gpu_flops_used), arm, bad);
	arm->kind = REC;
	arm->source = KVOF_PLAN_SPEC;
	snprintf(arm->bottleneck, sizeof(arm->bottleneck), "gpu");
	arm->median_share = 0.5;
	arm->median_rank = 1;
	arm->output_tokens = COUNT(workload_output);
	return rc;
}

/* Where the prefill is from that the advice rests on, unless it was told or is a profile's. */
static void prefill_note(struct report *r, const struct report_ask *ask)
{
	if (r->used != 0 || TOLD(model_prefill))
		return;
	if (prefill_by_work(r, ask))
		line_say(NOTE, "Prefill of %.0f tokens/s is %.3g TFLOP/s x %s over the work of a "
			 "token; measure it.", r->set[0].arm[REC].arm.tokens_per_s,
			 COUNT(gpu_count) * IN(gpu_flops) / 1e12, TEXT(gpu_flops_used));
	else
		line_say(NOTE, "Prefill of %s is a standard value, not this model's on these GPUs: "
			 "all that is compared with recompute rests on it. Tell [model] prefill%s.",
			 TEXT(model_prefill), ask->work != NULL ? " or [gpu] flops" : "");
}

static int sheets_fill(struct report *r, const struct report_ask *ask, struct kvof_plan_bad *bad)
{
	struct report_set *set = &r->set[r->sets++];
	int rc = 0;

	snprintf(set->name, sizeof(set->name), "data sheets");
	set->source = KVOF_PLAN_SPEC;
	set->bytes_per_token = r->bytes_per_token;
	plan_text_put(set->model, sizeof(set->model), r->model);
	plan_text_put(set->precision, sizeof(set->precision), TEXT(model_kv_dtype));
	plan_text_put(set->engine, sizeof(set->engine), TEXT(model_engine));
	set->advisable = true;
	set->arm[REC].has = true;
	rc = recompute_fill(r, ask, &set->arm[REC].arm, bad);
	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS && rc == 0; i++) {
		struct report_arm *a = &set->arm[i];
		struct kvof_plan_supply s;

		a->has = r->has_supply[i] = hardware_has(r, kind_of(i));
		if (!a->has)
			continue;
		supply_of(r, kind_of(i), &s);
		rc = kvof_plan_supply_rate(&s, kind_of(i), &r->supply[i], bad);
		if (rc == 0)
			rc = kvof_plan_arm_of_supply(&s, kind_of(i), &a->arm, bad);
		a->arm.output_tokens = COUNT(workload_output);
	}
	return rc;
}

static void differ_add(char *to, size_t bytes, const char *what, const char *a, const char *b)
{
	size_t used = strlen(to);

	if (a[0] != 0 && b[0] != 0 && strcmp(a, b) != 0)
		snprintf(to + used, bytes - used, "%s%s (%.60s | %.60s)", used > 0 ? ", " : "",
			 what, a, b);
}

static void differ(const struct report_set *a, const struct report_set *b, char *to, size_t bytes)
{
	char a_bytes[32] = "", b_bytes[32] = "";

	to[0] = 0;
	differ_add(to, bytes, "machine", a->machine, b->machine);
	differ_add(to, bytes, "engine", a->engine, b->engine);
	differ_add(to, bytes, "model", a->model, b->model);
	differ_add(to, bytes, "precision", a->precision, b->precision);
	if (a->bytes_per_token <= 0 || b->bytes_per_token <= 0 ||
	    fabs(a->bytes_per_token / b->bytes_per_token - 1) <= SAME_BYTES)
		return;
	snprintf(a_bytes, sizeof(a_bytes), "%.0f", a->bytes_per_token);
	snprintf(b_bytes, sizeof(b_bytes), "%.0f", b->bytes_per_token);
	differ_add(to, bytes, "bytes per token", a_bytes, b_bytes);
}

/* What was asked, as far as a profile could differ from it. */
static void asked_fill(const struct report *r, struct report_set *asked)
{
	*asked = (struct report_set){.bytes_per_token = r->bytes_per_token};
	if (r->facts.length.model != NULL)
		plan_text_put(asked->model, sizeof(asked->model), r->facts.length.model->type);
	else if (TOLD(model_name))
		plan_text_put(asked->model, sizeof(asked->model), TEXT(model_name));
	plan_text_put(asked->engine, sizeof(asked->engine), TEXT(model_engine));
	if (r->has_geometry || TOLD(model_kv_dtype))
		plan_text_put(asked->precision, sizeof(asked->precision), TEXT(model_kv_dtype));
}

static void profile_fill(struct report *r, const struct plan_profile *p, const char *name)
{
	struct report_set *set = &r->set[r->sets++], asked;
	double token_bytes = p->model_bytes_per_token > 0 ? p->model_bytes_per_token :
		r->bytes_per_token;
	char text[REPORT_TEXT_BYTES - 180], why[KVOF_PLAN_NOTE_BYTES], doubts[KVOF_PLAN_NOTE_BYTES];
	bool loads = false, doubt, beyond;

	*set = (struct report_set){.source = p->source,
		.bytes_per_token = p->model_bytes_per_token};
	plan_text_put(set->name, sizeof(set->name), name);
	plan_text_put(set->made, sizeof(set->made), p->made);
	plan_text_put(set->machine, sizeof(set->machine), p->machine);
	plan_text_put(set->engine, sizeof(set->engine), p->engine);
	plan_text_put(set->model, sizeof(set->model), p->model_type);
	plan_text_put(set->precision, sizeof(set->precision), p->precision);
	asked_fill(r, &asked);
	differ(&asked, set, text, sizeof(text));
#ifdef KVOF_PLANT_ANY_PROFILE_FITS
	text[0] = 0;
#endif
	for (uint32_t i = 0; i < p->arms; i++) {
		struct report_arm *a = &set->arm[p->arm[i].arm.kind];

		a->has = text[0] == 0 || p->arm[i].arm.kind != REC;
		a->arm = p->arm[i].arm;
		/* networks and other lengths of prefix count in bytes */
		plan_use_bytes(&a->arm, token_bytes);
		loads = loads || (a->arm.kind != REC && hardware_has(r, a->arm.kind));
		doubt = plan_profile_doubts(p, &p->arm[i], doubts);
		beyond = text[0] == 0 && plan_use_beyond(&p->arm[i], r->tokens,
							 COUNT(workload_sessions), why);
		if (doubt || beyond)
			line_say(NOTE, "%s of %.100s: %s%s%s", kvof_plan_arm_name(a->arm.kind),
				 set->name, doubt ? doubts : "", doubt && beyond ? "; " : "",
				 beyond ? why : "");
	}
	if (text[0] != 0)
		line_say(DIFFERENCE, "%s is shown but not advised by; what was asked differs from "
			 "it in %s. Its loads are carried over in bytes, its recompute is not",
			 set->name, text);
	if (!set->arm[REC].has && TOLD(model_prefill) && text[0] == 0) {
		set->arm[REC] = r->set[0].arm[REC];
		line_say(DIFFERENCE, "recompute of %s is the prefill that was told (%s), not "
			 "measured", set->name, TEXT(model_prefill));
	}
	if (text[0] == 0 && (!loads || !set->arm[REC].has))
		line_say(DIFFERENCE, "%s is shown but not advised by; it has no %s", set->name,
			 loads ? "recompute; tell [model] prefill" :
			 "arm of the hardware asked about");
	set->advisable = text[0] == 0 && loads && set->arm[REC].has;
}

static void sets_differ(struct report *r)
{
	for (unsigned i = 0; i < r->sets; i++) {
		for (unsigned k = i + 1; k < r->sets; k++) {
			char text[REPORT_TEXT_BYTES - 100], both[200];

			snprintf(both, sizeof(both), "%.90s and %.90s", r->set[i].name,
				 r->set[k].name);
			differ(&r->set[i], &r->set[k], text, sizeof(text));
			if (i == 0)
				line_say(DIFFERENCE, "%s are not compared: the first nobody "
					 "measured, the second is of %s", both,
					 r->set[k].machine[0] != 0 ? r->set[k].machine :
					 "a machine that is not told");
			else
				line_say(DIFFERENCE, "%s are not compared: %s", both,
					 text[0] != 0 ? text : "nothing tells that they are alike");
		}
	}
}

/* --- waves, saturation, service level ----------------------------------------------------- */

static void sessions_fill(struct report *r)
{
	uint32_t asked = COUNT(workload_sessions), most = asked > 32 ? 2 * asked : 64;
	bool there = false;

	for (uint32_t n = 1; n <= most && r->waves + 1 < REPORT_WAVES_MAX; n *= 2) {
		if (n > asked && !there)
			r->sessions[r->waves++] = asked;
		there = there || n >= asked;
		r->sessions[r->waves++] = n;
	}
	if (!there)
		r->sessions[r->waves - 1] = asked;
}

int report_wave(const struct report *r, const struct report_arm *a, uint32_t sessions,
		struct kvof_plan_ttft *out, struct kvof_plan_bad *bad)
{
	bool own = advice_of_a_host(a->arm.kind);
	uint32_t hosts = COUNT(workload_hosts), here = own ? (sessions + hosts - 1) / hosts :
		sessions;
	uint32_t staged = advice_staged(&r->facts, a->arm.kind);
	const struct kvof_plan_wave wave = {.tokens = r->tokens, .bytes = r->session_bytes,
		.sessions = here};
	int rc = staged > 0 && staged < here ?
		kvof_plan_staged_ttft(&a->arm, &wave, staged, out, bad) :
		kvof_plan_ttft(&a->arm, &wave, out, bad);

	if (rc == 0 && own) {
		out->tokens_per_s *= (double)sessions / here;
		out->bytes_per_s_needed *= (double)sessions / here;
	}
	return rc;
}

/* What is to be compared with an arm that has the sessions of all hosts: they compute their parts
 * of the wave side by side. */
static struct kvof_plan_arm recompute_of_all(const struct report *r, const struct report_arm *a)
{
	uint32_t hosts = COUNT(workload_hosts), all = COUNT(workload_sessions);
	struct kvof_plan_arm arm = a->arm;
	double more = (double)all / ((all + hosts - 1) / hosts);

#ifdef KVOF_PLANT_ONE_HOST_COMPUTES_ALL
	more = 1;
#endif
	arm.tokens_per_s *= more;
	arm.token2_s /= more;
	return arm;
}

/* Sessions of so many tokens meet the service level though staging holds only some of them. */
static int staged_meets(const struct report *r, const struct report_arm *a, uint32_t sessions,
			uint64_t tokens, bool *meets, struct kvof_plan_bad *bad)
{
	enum kvof_plan_rank rank = (enum kvof_plan_rank)COUNT(sla_quantile);
	const struct kvof_plan_wave wave = {.tokens = (double)tokens, .sessions = sessions,
		.bytes = kvof_plan_length_bytes(&r->facts.length, (double)tokens)};
	double room = r->facts.staging_bytes *
		(advice_of_a_host(a->arm.kind) ? 1 : COUNT(workload_hosts));
	double staged = floor(fmin(room / wave.bytes, sessions));
	struct kvof_plan_ttft t;
	int rc;

	*meets = false;
	if (staged < 1)
		return 0;
	rc = kvof_plan_staged_ttft(&a->arm, &wave, (uint32_t)staged, &t, bad);
	*meets = rc == 0 && (rank == KVOF_PLAN_P50 ? t.p50_s : rank == KVOF_PLAN_P90 ? t.p90_s :
			     t.last_s) <= IN(sla_ttft);
	return rc;
}

/* The longest prefix that the sessions of a wave can have. */
static int longest_fill(const struct report *r, struct report_arm *a, uint32_t sessions,
			struct kvof_plan_bad *bad)
{
	uint64_t least = 0, most;
	int rc = kvof_plan_sla_tokens(&a->arm, &r->facts.length, sessions, 0,
				      (enum kvof_plan_rank)COUNT(sla_quantile), IN(sla_ttft),
				      &a->longest_tokens, bad);

	if (r->facts.staging_bytes <= 0 || advice_staged(&r->facts, a->arm.kind) == 0)
		return rc;
	for (most = a->longest_tokens + 1; rc == 0 && most - least > 1;) {
		uint64_t middle = least + (most - least) / 2;
		bool meets;

		rc = staged_meets(r, a, sessions, middle, &meets, bad);
		*(meets ? &least : &most) = middle;
	}
	a->longest_tokens = least;
	return rc;
}

/* One arm of a set, on whole prefixes: what the hardware does, whatever the room hits. */
static int arm_fill(struct report *r, struct report_set *set, enum kvof_plan_arm_kind kind,
		    struct kvof_plan_bad *bad)
{
	struct report_arm *a = &set->arm[kind];
	struct kvof_plan_arm recompute;
	struct kvof_plan_wave wave = {.tokens = r->tokens, .bytes = r->session_bytes};
	enum kvof_plan_rank rank = (enum kvof_plan_rank)COUNT(sla_quantile);
	uint32_t hosts = advice_of_a_host(kind) ? COUNT(workload_hosts) : 1, sessions;
	uint32_t staged = advice_staged(&r->facts, kind);
	int rc = 0;

	if (r->facts.has_net && !advice_of_a_host(kind))
		rc = kvof_plan_arm_over(&a->arm, &r->facts.net, r->bytes_per_token, &a->arm, bad);
	for (unsigned i = 0; i < r->waves && rc == 0; i++)
		rc = report_wave(r, a, r->sessions[i], &a->wave[i], bad);
	sessions = (COUNT(workload_sessions) + hosts - 1) / hosts;
	wave.sessions = sessions;
	if (rc == 0)
		rc = kvof_plan_saturation_make(&a->arm, &wave, SATURATED, &a->saturation, bad);
	if (rc == 0)
		rc = kvof_plan_sla_sessions(&a->arm, &wave, staged, rank, IN(sla_ttft), &a->sla,
					    bad);
	if (rc == 0)
		rc = longest_fill(r, a, sessions, bad);
	a->saturation.busy_sessions *= hosts;
	a->saturation.throughput_sessions *= hosts;
	a->sla.sessions = a->sla.unbounded ? a->sla.sessions : a->sla.sessions * hosts;
	if (rc != 0 || kind == REC || !set->arm[REC].has)
		return rc;
	a->has_even = true;
	recompute = advice_of_a_host(kind) ? set->arm[REC].arm :
		recompute_of_all(r, &set->arm[REC]);
	return kvof_plan_even_tokens(&a->arm, &recompute, &r->facts.length, sessions,
				     &a->even, bad);
}

static int arms_fill(struct report *r, struct kvof_plan_bad *bad)
{
	int rc = 0;

	sessions_fill(r);
	for (unsigned s = 0; s < r->sets; s++)
		for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS && rc == 0; i++)
			if (r->set[s].arm[i].has)
				rc = arm_fill(r, &r->set[s], kind_of(i), bad);
	return rc;
}

/* --- the advice ------------------------------------------------------------------------------ */

static void net_fill(struct report *r, const struct report_set *set)
{
	struct kvof_plan_net *net = &r->facts.net;
	uint32_t hosts = COUNT(workload_hosts), ports = COUNT(link_ports) * hosts;

	ports = ports < COUNT(array_ports) ? ports : COUNT(array_ports);
	*net = (struct kvof_plan_net){.transport = COUNT(link_transport) == 0 ? KVOF_PLAN_TCP :
		KVOF_PLAN_RDMA, .link_bytes_per_s = ports * IN(link_port) * IN(link_efficiency),
		.loss = IN(link_loss), .rtt_s = IN(link_rtt), .jitter_s = IN(link_jitter),
		.flows = IN(link_flows) * hosts, .rto_s = TCP_RTO_S};
	for (unsigned i = KVOF_PLAN_ARRAY; i <= KVOF_PLAN_NFS; i++) {
		if (!set->arm[i].has)
			continue;
		r->facts.has_net = true;         /* what was measured had no less than it had */
		net->link_bytes_per_s = fmax(net->link_bytes_per_s, set->arm[i].arm.bytes_per_s);
	}
}

static void money_facts(struct report *r)
{
	struct advice_money *m = &r->facts.money;
	double hosts = COUNT(workload_hosts);

	m->told = HAS(prices_gpu_hour);
	m->gpus = COUNT(gpu_count);
	m->gpu_hour = IN(prices_gpu_hour);
	m->life_s = IN(prices_life);
	m->payback_days = IN(prices_payback) / DAY_S;
	m->requests_per_day = r->requests_per_s * DAY_S;
	m->running_per_day = IN(prices_running_per_day);
	m->has_price[KVOF_PLAN_DRAM] = m->has_price[KVOF_PLAN_NFS] = true;
	m->price[KVOF_PLAN_DRAM] = IN(prices_dram_per_gib) * IN(dram_size) / (double)GiB * hosts;
	m->has_price[KVOF_PLAN_LOCAL] = HAS(prices_local_drive);
	m->price[KVOF_PLAN_LOCAL] = IN(prices_local_drive) * COUNT(local_drives) * hosts;
	m->has_price[KVOF_PLAN_ARRAY] = HAS(prices_array);
	m->price[KVOF_PLAN_ARRAY] = IN(prices_array);
}

static void facts_fill(struct report *r)
{
	struct advice_facts *f = &r->facts;
	double hosts = COUNT(workload_hosts);

	for (unsigned i = r->sets - 1; i > 0; i--)
		if (r->set[i].advisable)
			r->used = i;             /* the first profile that fits */
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++) {
		f->has[i] = r->set[r->used].arm[i].has && hardware_has(r, kind_of(i));
		f->arm[i] = r->set[r->used].arm[i].arm;
	}
	net_fill(r, &r->set[r->used]);
	f->capacity_bytes[KVOF_PLAN_DRAM] = IN(dram_size) * hosts;
	f->capacity_bytes[KVOF_PLAN_LOCAL] = IN(drives_capacity) * COUNT(local_drives) * hosts;
	f->capacity_bytes[KVOF_PLAN_ARRAY] = IN(drives_capacity) * COUNT(array_drives);
	f->capacity_bytes[KVOF_PLAN_NFS] = IN(nfs_size);
	f->working_set_bytes = r->working_set_bytes;
	f->tokens = r->tokens;
	f->block_tokens = IN(workload_block);
	f->sessions = COUNT(workload_sessions);
	f->hosts = COUNT(workload_hosts);
	f->sticky = COUNT(workload_routing) == 1;
	f->outlive = (enum advice_outlive)COUNT(workload_outlive);
	f->rank = (enum kvof_plan_rank)COUNT(sla_quantile);
	f->sla_s = IN(sla_ttft);
	f->least_gain = IN(workload_least_gain);
	money_facts(r);
}

static int net_tell(struct report *r, struct kvof_plan_bad *bad)
{
	const struct advice_facts *f = &r->facts;
	enum kvof_plan_arm_kind other = f->has[KVOF_PLAN_LOCAL] && f->hosts == 1 ?
		KVOF_PLAN_LOCAL : REC;
	const struct kvof_plan_wave wave = {.tokens = r->tokens, .bytes = r->session_bytes,
		.sessions = f->sessions};
	struct kvof_plan_arm without = other == REC ?
		recompute_of_all(r, &r->set[r->used].arm[REC]) : f->arm[other];
	int rc = 0;

	if (!f->has_net || !f->has[KVOF_PLAN_ARRAY])
		return 0;
	if (f->net.loss > 0)
		rc = kvof_plan_net_rate(&f->net, &r->link_lossy_bytes_per_s, bad);
	if (rc == 0)
		rc = kvof_plan_net_flip(&f->arm[KVOF_PLAN_ARRAY], &without, &wave, &f->net,
					&r->net_flip, bad);
	r->net_other = other;
	r->has_net_flip = rc == 0;
	return rc;
}

static int advice_fill(struct report *r, struct kvof_plan_bad *bad)
{
	int rc = advice_make(&r->facts, &r->advice, bad);

	if (rc == 0)
		rc = advice_flips(&r->facts, r->flip, &r->flips, bad);
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS && rc == 0; i++)
		if (r->facts.has[i])
			rc = advice_sessions(&r->facts, kind_of(i), &r->sla_sessions[i],
					     &r->sla_unbounded[i], bad);
	return rc;
}

/* --- wear and money ------------------------------------------------------------------- */

static void wear_fill(struct report *r, enum kvof_plan_arm_kind kind, double today_days)
{
	struct report_wear *w = &r->wear[kind];
	uint32_t hosts = kind == KVOF_PLAN_LOCAL ? COUNT(workload_hosts) : 1;
	double new_tokens = r->tokens * (1 - r->advice.hit[kind]) + IN(workload_output);
	struct plan_wear_ask ask = {
		.stored_bytes_per_day = r->requests_per_s * DAY_S * new_tokens *
			r->bytes_per_token / hosts,
		.admission = IN(drives_admission),
		.write_amplification = IN(drives_write_amplification),
		.drives = kind == KVOF_PLAN_LOCAL ? COUNT(local_drives) : COUNT(array_drives),
		.capacity_bytes = IN(drives_capacity), .tbw_bytes = IN(drives_tbw),
		.write_bytes_per_s = IN(drives_write)};

	if (!r->facts.has[kind])
		return;
	w->has = true;
	w->stored_bytes_per_day = ask.stored_bytes_per_day;
	w->drives = ask.drives;
	plan_wear(&ask, &w->wear);
	plan_wear_date(today_days, w->wear.days, w->worn_out);
}

/* Seconds a day in which an instance waits for loads of these tokens, one session after another. */
static double waits_s(const struct report *r, enum kvof_plan_arm_kind kind, double tokens_per_day)
{
	const struct kvof_plan_arm *a = &r->facts.arm[kind];

	if (COUNT(workload_overlap) == 0 || tokens_per_day <= 0)
		return 0;
	return r->facts.money.requests_per_day * a->fixed_s +
		tokens_per_day * r->bytes_per_token / a->bytes_per_s;
}

static void money_fill(struct report *r, enum kvof_plan_arm_kind kind)
{
	const struct advice_money *m = &r->facts.money;
	const struct kvof_plan_arm *rec = &r->facts.arm[REC];
	double all = m->requests_per_day * r->tokens;
	double tokens = all * fmax(r->advice.hit[kind] - r->advice.hbm_hit, 0);
	double token_s = 1 / rec->tokens_per_s + rec->token2_s * r->tokens;
	const struct plan_money_ask ask = {.restored_tokens_per_day = tokens,
		.recompute_s_per_day = tokens * token_s, .prefill_s_per_day = all * token_s,
		.load_s_per_day = waits_s(r, kind, tokens),
		.instances = r->facts.hosts, .gpus = m->gpus, .bought = m->price[kind],
		.running_per_day = kind == KVOF_PLAN_ARRAY ? m->running_per_day : 0,
		.life_s = r->wear[kind].has ?
			fmin(m->life_s, r->wear[kind].wear.days * DAY_S) : m->life_s,
		.gpu_hour = m->gpu_hour};

	r->has_money[kind] = m->told && m->has_price[kind] && r->facts.has[kind];
	if (r->has_money[kind])
		plan_money(&ask, &r->money[kind]);
}

double report_hit(const struct report *r, double room_bytes)
{
	return advice_curve_at(&r->facts.curve, room_bytes / r->working_set_bytes);
}

int report_make(const struct report_ask *ask, struct report *out, struct kvof_plan_bad *bad)
{
	int rc;

	must(ask->profiles <= REPORT_PROFILES_MAX);
	*out = (struct report){.in = ask->in};
	rc = model_fill(out, ask, bad);
	if (rc == 0)
		rc = workload_fill(out, ask, bad);
	if (rc == 0)
		rc = spill_fill(out, ask, bad);
	if (rc == 0)
		rc = sheets_fill(out, ask, bad);
	for (unsigned i = 0; i < ask->profiles && rc == 0; i++)
		profile_fill(out, &ask->profile[i], ask->profile_name[i]);
	if (rc != 0)
		return rc;
	sets_differ(out);
	facts_fill(out);
	prefill_note(out, ask);
	rc = net_tell(out, bad);
	if (rc == 0)
		rc = advice_fill(out, bad);
	if (rc == 0)
		rc = arms_fill(out, bad);
	if (rc != 0)
		return rc;
	wear_fill(out, KVOF_PLAN_LOCAL, ask->today_days);
	wear_fill(out, KVOF_PLAN_ARRAY, ask->today_days);
	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++)
		money_fill(out, kind_of(i));
	report_steps(out);
	report_reasons(out);
	return 0;
}
