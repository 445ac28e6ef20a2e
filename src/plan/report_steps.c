/* SPDX-License-Identifier: Apache-2.0 */
/* A report's arithmetic in words: each result with its formula and the numbers put in. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "plan/report.h"

#define DAY_S 86400.0
#define YEAR_DAYS 365.25
#define REC KVOF_PLAN_RECOMPUTE
#define IN(name) plan_input_number(r->in, PLAN_IN_##name)
#define COUNT(name) plan_input_count(r->in, PLAN_IN_##name)
#define TEXT(name) plan_input_text(r->in, PLAN_IN_##name)
#define HAS(name) plan_input_has(r->in, PLAN_IN_##name)

/* Adds a step; its numbers follow. The result is put in by result(). */
__attribute__((format(printf, 5, 6)))
static struct report_step *step(struct report *r, const char *section, const char *what,
				const char *formula, const char *numbers, ...)
{
	struct report_step *s = &r->step[r->steps];
	va_list args;

	must(r->steps < REPORT_STEPS_MAX);
	r->steps++;
	s->section = section;
	snprintf(s->what, sizeof(s->what), "%s", what);
	snprintf(s->formula, sizeof(s->formula), "%s", formula);
	va_start(args, numbers);
	vsnprintf(s->numbers, sizeof(s->numbers), numbers, args);
	va_end(args);
	return s;
}

__attribute__((format(printf, 2, 3)))
static void result(struct report_step *s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(s->result, sizeof(s->result), format, args);
	va_end(args);
}

static void result_bytes(struct report_step *s, double bytes)
{
	if (bytes >= 1e12)
		result(s, "%.3f TB (%.3f TiB)", bytes / 1e12, bytes / 0x1p40);
	else if (bytes >= 1e9)
		result(s, "%.3f GB (%.3f GiB)", bytes / 1e9, bytes / 0x1p30);
	else if (bytes >= 1e6)
		result(s, "%.3f MB (%.3f MiB)", bytes / 1e6, bytes / 0x1p20);
	else
		result(s, "%.0f B (%.2f KiB)", bytes, bytes / 1024);
}

static void model_steps(struct report *r)
{
	struct report_step *s;
	double c = r->facts.curve.hit[r->facts.curve.points - 1];

	if (!r->has_geometry) {
		s = step(r, "geometry", "KV of a token", "told", "[model] bytes_per_token = %s",
			 TEXT(model_bytes_per_token));
		result_bytes(s, r->bytes_per_token);
	} else {
		s = step(r, "geometry", "KV of a token", "kvof plan geometry shows each layer",
			 "%s, %u ranks, %s", r->model, COUNT(model_tp), TEXT(model_kv_dtype));
		result_bytes(s, (double)r->geometry.token_bytes);
	}
	s = step(r, "geometry", "KV of a session", r->has_geometry ?
		 "sum over layers of bytes x min(T, window)" : "T x bytes per token",
		 "%.0f tokens%s x %.0f B", r->tokens, r->tokens_of_trace ? " (mean of the trace)" :
		 "", r->bytes_per_token);
	result_bytes(s, r->session_bytes);
	s = step(r, "workload", "working set", HAS(workload_trace) ? "different blocks, or kept "
		 "sessions where they are told" : "sessions kept x KV of a session",
		 "%.0f x %.3f GB", r->working_set_bytes / r->session_bytes, r->session_bytes / 1e9);
	result_bytes(s, r->working_set_bytes);
	s = step(r, "workload", "tokens that come again", "hits of LRU with any room / tokens",
		 "%s", HAS(workload_trace) ? TEXT(workload_trace) : TEXT(workload_preset));
	result(s, "%.1f %% of all prompt tokens", 100 * c);
}

static void spill_steps(struct report *r)
{
	const struct kvof_plan_spill *p = &r->spill;
	double taken = COUNT(gpu_count) * IN(gpu_memory) * IN(gpu_usable);
	double act = taken * IN(gpu_activations);
	struct report_step *s;

	if (!r->has_spill) {
		s = step(r, "spill", "room for KV in GPU memory", "GPUs x memory x usable - ...",
			 "[model] weights is not told");
		result(s, "not known; taken as 0");
		return;
	}
	s = step(r, "spill", "room for KV in GPU memory",
		 "GPUs x memory x usable x (1 - activations) - weights",
		 "%u x %.0f GB x %.0f %% - %.1f GB - %.1f GB%s", COUNT(gpu_count),
		 IN(gpu_memory) / 1e9, 100 * IN(gpu_usable), act / 1e9,
		 (taken - act - p->kv_bytes) / 1e9, r->has_work ? " (from config.json)" : "");
	result_bytes(s, p->kv_bytes);
	s = step(r, "spill", "sessions resident in an instance", "room / KV of a session",
		 "%.1f GB / %.3f GB", p->kv_bytes / 1e9, r->session_bytes / 1e9);
	result(s, "%.1f sessions", p->resident);
	s = step(r, "spill", "spilled", "(sessions kept - resident) x KV of a session",
		 "%.0f x %.3f GB", p->spilled_sessions, r->session_bytes / 1e9);
	result_bytes(s, p->spilled_bytes);
	s = step(r, "spill", "new KV in a day", "requests x tokens computed anew x bytes per token",
		 "%.0f /day x %.0f tokens x %.0f B", r->requests_per_s * DAY_S,
		 p->horizon_bytes / (r->requests_per_s * DAY_S * r->bytes_per_token),
		 r->bytes_per_token);
	result_bytes(s, p->horizon_bytes);
	s = step(r, "spill", "staging a rank needs", "sessions at once x KV of a session per rank",
		 "%.0f x %.3f GB", p->staging_need_rank_bytes / r->session_rank_bytes,
		 r->session_rank_bytes / 1e9);
	result_bytes(s, p->staging_need_rank_bytes);
}

static void supply_steps(struct report *r)
{
	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++) {
		const struct kvof_plan_supply_rate *rate = &r->supply[i];
		char numbers[160] = "", what[64];
		size_t used = 0;

		if (!r->has_supply[i])
			continue;
		for (uint32_t k = 0; k < rate->stages && used < sizeof(numbers); k++)
			used += (size_t)snprintf(numbers + used, sizeof(numbers) - used,
				"%s%s %.2f GB/s", k > 0 ? ", " : "", rate->stage[k].name,
				rate->stage[k].bytes_per_s / 1e9);
		snprintf(what, sizeof(what), "supply of %s",
			 kvof_plan_arm_name((enum kvof_plan_arm_kind)i));
		result(step(r, "supply", what, "the smallest of its stages", "%s", numbers),
		       "%.2f GB/s, by %s", rate->bytes_per_s / 1e9, rate->bottleneck);
	}
	if (r->link_lossy_bytes_per_s > 0)
		result(step(r, "supply", "link with loss and delay", "docs/plan.md, network",
			    "%.4g %% lost, %.3g ms there and back, %.0f flows",
			    100 * r->facts.net.loss, 1e3 * r->facts.net.rtt_s,
			    r->facts.net.flows),
		       "%.2f GB/s", r->link_lossy_bytes_per_s / 1e9);
}

/* Weights into the GPUs of all hosts at once, through the same stages. */
static void load_steps(struct report *r)
{
	for (unsigned i = KVOF_PLAN_LOCAL; i < KVOF_PLAN_ARM_KINDS && r->weight_bytes > 0; i++) {
		uint32_t hosts = i == KVOF_PLAN_LOCAL ? 1 : COUNT(workload_hosts);
		char what[64];

		if (!r->has_supply[i])
			continue;
		snprintf(what, sizeof(what), "load of the model, %s",
			 kvof_plan_arm_name((enum kvof_plan_arm_kind)i));
		result(step(r, "model load", what, "hosts that share it x weights / supply",
			    "%u x %.1f GB / %.2f GB/s", hosts, r->weight_bytes / 1e9,
			    r->supply[i].bytes_per_s / 1e9),
		       "%.1f s", hosts * r->weight_bytes / r->supply[i].bytes_per_s);
	}
}

/* The closed form of kvof_plan_ttft(), as far as this arm has its terms. */
static void wave_formula(const struct report *r, const struct kvof_plan_arm *a, uint32_t sessions,
			 char formula[112])
{
	uint32_t staged = advice_staged(&r->facts, a->kind);
	bool waves = staged > 0 && staged < sessions;

	snprintf(formula, 112, "%s%s + %s%s", waves ? "waves x fixed" : "fixed",
		 a->session_s > 0 ? " + N x requests" : "", a->kind != REC ?
		 "N x S / rate" : a->token2_s > 0 ? "N x (T / rate + T x T x attention)" :
		 "N x T / rate",
		 a->session_bytes_per_s > 0 || a->session_tokens_per_s > 0 ?
		 ", at least a session at its own rate" : a->free_loads > 0 ?
		 "; as its rows have it, some of N are free" : "");
}

static void wave_numbers(const struct report *r, const struct kvof_plan_arm *a, uint32_t sessions,
			 char numbers[160])
{
	uint32_t staged = advice_staged(&r->facts, a->kind);
	double n = fmax(sessions - a->free_loads, sessions / 2.0);
	char first[64];

	if (staged > 0 && staged < sessions)
		snprintf(first, sizeof(first), "%u x %.2f s", (sessions + staged - 1) / staged,
			 a->fixed_s);
	else
		snprintf(first, sizeof(first), "%.2f s", a->fixed_s);
	if (a->kind == REC)
		snprintf(numbers, 160, "%s + %.4g x %.0f tokens / %.0f tokens/s", first, n,
			 r->tokens, a->tokens_per_s);
	else
		snprintf(numbers, 160, "%s + %.4g x %.3f GB / %.2f GB/s", first, n,
			 r->session_bytes / 1e9, a->bytes_per_s / 1e9);
}

static void ttft_steps(struct report *r)
{
	const struct report_set *set = &r->set[r->used];
	unsigned at = 0;

	while (at + 1 < r->waves && r->sessions[at] != COUNT(workload_sessions))
		at++;
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++) {
		const struct report_arm *a = &set->arm[i];
		bool own = advice_of_a_host((enum kvof_plan_arm_kind)i);
		uint32_t hosts = own ? COUNT(workload_hosts) : 1;
		uint32_t here = (r->sessions[at] + hosts - 1) / hosts;
		char formula[112], numbers[160], what[64];

		if (!a->has)
			continue;
		snprintf(what, sizeof(what), "last first token, %s",
			 kvof_plan_arm_name(a->arm.kind));
		wave_formula(r, &a->arm, here, formula);
		wave_numbers(r, &a->arm, here, numbers);
		result(step(r, "ttft", what, formula, "%s", numbers),
		       "%.2f s", a->wave[at].last_s);
	}
}

static void hit_steps(struct report *r)
{
	const struct advice_facts *f = &r->facts;
	static const char *const quantiles[] = {"p50", "p90", "last"};

	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++) {
		char what[64];

		if (!f->has[i])
			continue;
		snprintf(what, sizeof(what), "tokens hit in %s",
			 kvof_plan_arm_name((enum kvof_plan_arm_kind)i));
		result(step(r, "capacity", what,
			    "curve(room / working set), a host's own over hosts",
			    "%.2f TB / %.2f TB, %u host%s", f->capacity_bytes[i] / 1e12,
			    f->working_set_bytes / 1e12, f->hosts, f->hosts > 1 ? "s" : ""),
		       "%.1f %%", 100 * r->advice.hit[i]);
		snprintf(what, sizeof(what), "%s of %u sessions with these hits, %s",
			 quantiles[f->rank], f->sessions,
			 kvof_plan_arm_name((enum kvof_plan_arm_kind)i));
		result(step(r, "capacity", what, "load of h T + recompute of (1 - h) T",
			    "h T = %.0f, (1 - h) T = %.0f", r->tokens * r->advice.hit[i],
			    r->tokens * (1 - r->advice.hit[i])),
		       "%.2f s", r->advice.time_s[i]);
	}
}

static void wear_steps(struct report *r)
{
	for (unsigned i = KVOF_PLAN_LOCAL; i <= KVOF_PLAN_ARRAY; i++) {
		const struct report_wear *w = &r->wear[i];
		const char *arm = kvof_plan_arm_name((enum kvof_plan_arm_kind)i);
		char what[64];

		if (!w->has)
			continue;
		snprintf(what, sizeof(what), "written to a drive in a day, %s", arm);
		result(step(r, "wear", what, "computed anew x admitted x amplification / drives",
			    "%.3f TB x %.0f %% x %.2f / %.0f", w->stored_bytes_per_day / 1e12,
			    100 * IN(drives_admission), IN(drives_write_amplification), w->drives),
		       "%.3f TB, %.3f DWPD", w->wear.drive_bytes_per_day / 1e12,
		       w->wear.drive_writes_per_day);
		snprintf(what, sizeof(what), "worn out, %s", arm);
		result(step(r, "wear", what, "TBW / written in a day",
			    "%.0f TB / %.3f TB", IN(drives_tbw) / 1e12,
			    w->wear.drive_bytes_per_day / 1e12),
		       isinf(w->wear.days) ? "%s" : "%s, in %.1f years", w->worn_out,
		       w->wear.days / YEAR_DAYS);
	}
}

static void money_step(struct report *r, enum kvof_plan_arm_kind kind)
{
	const struct plan_money *m = &r->money[kind];
	const char *arm = kvof_plan_arm_name(kind), *unit = TEXT(prices_currency);
	double tokens = r->facts.money.requests_per_day * r->tokens *
		fmax(r->advice.hit[kind] - r->advice.hbm_hit, 0);
	double life = r->facts.money.life_s / DAY_S;
	struct report_step *s;
	char what[64];

	if (r->wear[kind].has)
		life = fmin(life, r->wear[kind].wear.days);
	snprintf(what, sizeof(what), "GPU-hours saved in a day, %s", arm);
	s = step(r, "money", what, "tokens restored / prefill x GPUs x their part of the time",
		 "%.0f / %.0f tokens/s x %.0f x %.3f", tokens, r->facts.arm[REC].tokens_per_s,
		 r->facts.money.gpus, 1 / fmax(m->busy_share, 1));
	result(s, "%.1f (prefill without a cache takes %.0f %% of the time)",
	       m->gpu_hours_per_day, 100 * m->busy_share);
	snprintf(what, sizeof(what), "what the GPUs do more, %s", arm);
	s = step(r, "money", what, "1 / (1 - s (1 - 1/u)) - 1, s the share of time, u the speed-up",
		 isinf(m->speedup) ? "s = %.3f, loads overlap with computing" :
		 "s = %.3f, u = %.3f", m->share, m->speedup);
	if (isinf(m->uplift))
		result(s, "no bound: recompute takes all the time there is");
	else
		result(s, "%.1f %%", 100 * m->uplift);
	snprintf(what, sizeof(what), "cost of a million restored tokens, %s", arm);
	s = step(r, "money", what, "(bought / life + running) / tokens restored",
		 "%.0f %s / %.0f days%s + %.2f %s a day", r->facts.money.price[kind], unit, life,
		 life < r->facts.money.life_s / DAY_S ? " (then the drives are worn out)" : "",
		 kind == KVOF_PLAN_ARRAY ? r->facts.money.running_per_day : 0, unit);
	if (isinf(m->per_million_tokens))
		result(s, "none are restored");
	else if (isinf(m->per_gpu_hour))
		result(s, "%.3f %s; no GPU time is saved", m->per_million_tokens, unit);
	else
		result(s, "%.3f %s; a GPU-hour saved costs %.3f %s", m->per_million_tokens, unit,
		       m->per_gpu_hour, unit);
	snprintf(what, sizeof(what), "paid for itself, %s", arm);
	s = step(r, "money", what, "bought / (saved in a day - running)", "%.0f %s / %.2f %s",
		 r->facts.money.price[kind], unit, m->saved_per_day, unit);
	if (isinf(m->payback_days))
		result(s, "never");
	else
		result(s, "after %.0f days", m->payback_days);
}

void report_steps(struct report *r)
{
	model_steps(r);
	spill_steps(r);
	supply_steps(r);
	load_steps(r);
	ttft_steps(r);
	hit_steps(r);
	wear_steps(r);
	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++)
		if (r->has_money[i] && r->facts.money.price[i] > 0)
			money_step(r, (enum kvof_plan_arm_kind)i);
}

/* --- the steps of the advice ---------------------------------------------------------------- */

__attribute__((format(printf, 2, 3)))
static void reason(struct report *r, const char *format, ...)
{
	va_list args;

	must(r->reasons < ARRAY_COUNT(r->reason));
	va_start(args, format);
	vsnprintf(r->reason[r->reasons++].text, REPORT_TEXT_BYTES, format, args);
	va_end(args);
}

static void level_reason(struct report *r)
{
	const struct advice_facts *f = &r->facts;
	char text[REPORT_TEXT_BYTES - 100] = "";
	size_t used = 0;

	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS && used < sizeof(text); i++) {
		if (!f->has[i])
			continue;
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s %.2f s (%s%u)",
			used > 0 ? ", " : "", kvof_plan_arm_name((enum kvof_plan_arm_kind)i),
			r->advice.time_s[i], r->sla_unbounded[i] ? "over " : "",
			r->sla_sessions[i]);
	}
	reason(r, "Service level: %s within %s with %u sessions at once. Time, and how many "
	       "sessions meet it: %s.", TEXT(sla_quantile), TEXT(sla_ttft), f->sessions, text);
}

static void spill_reason(struct report *r)
{
	const struct advice_facts *f = &r->facts;
	bool small = f->working_set_bytes < 1e12;
	double unit = small ? 1e9 : 1e12;
	const char *name = small ? "GB" : "TB";

	if (r->has_spill)
		reason(r, "Spill: %.2f %s should be found again, GPU memory has room for %.2f %s "
		       "of it, memory of the host for %.2f %s.", f->working_set_bytes / unit, name,
		       f->hbm_bytes / unit, name, f->capacity_bytes[KVOF_PLAN_DRAM] / unit, name);
	else
		reason(r, "Spill: %.2f %s should be found again; what GPU memory holds is not "
		       "known ([model] weights), so nothing is taken off.",
		       f->working_set_bytes / unit, name);
}

static void sharing_reason(struct report *r)
{
	static const char *const outlive[] = {
		"Nothing has to outlive the engine.", "KV has to outlive a restart of the engine.",
		"KV has to outlive a move to another host."};
	const struct advice_facts *f = &r->facts;

	if (f->hosts == 1)
		reason(r, "Sharing: one host. %s", outlive[f->outlive]);
	else
		reason(r, "Sharing: %u hosts, %s%s", f->hosts, f->sticky ?
		       "sessions come back to the same one. " : "sessions come back to any: what a "
		       "host has for itself is found by one request in as many. ",
		       outlive[f->outlive]);
}

static void money_reason(struct report *r)
{
	char text[REPORT_TEXT_BYTES - 80] = "";
	size_t used = 0;

	if (!r->facts.money.told) {
		reason(r, "Money: no price of a GPU-hour was told, so nothing is said about it.");
		return;
	}
	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS && used < sizeof(text); i++) {
		double days = r->advice.payback_days[i];

		if (!r->has_money[i] || r->facts.money.price[i] <= 0)
			continue;
		used += (size_t)snprintf(text + used, sizeof(text) - used, isinf(days) ?
			"%s%s never" : "%s%s after %.0f days", used > 0 ? ", " : "",
			kvof_plan_arm_name((enum kvof_plan_arm_kind)i), days);
	}
	reason(r, "Money: paid for itself by GPU time saved: %s.", used > 0 ? text :
	       "nothing that is bought has a price");
}

static void wear_reason(struct report *r)
{
	char text[REPORT_TEXT_BYTES - 80] = "";
	double life = IN(prices_life) / DAY_S;
	size_t used = 0;

	for (unsigned i = KVOF_PLAN_LOCAL; i <= KVOF_PLAN_ARRAY; i++) {
		const struct report_wear *w = &r->wear[i];
		char early[112] = "";

		if (!w->has || used >= sizeof(text))
			continue;
		if (w->wear.days < life)
			snprintf(early, sizeof(early), " (before they are written off%s; admission "
				 "of %.2g %% would do)", w->wear.write_share > 1 ?
				 ", could they write so much" : "",
				 100 * IN(drives_admission) * w->wear.days / life);
		used += (size_t)snprintf(text + used, sizeof(text) - used,
			"%sdrives of %s have %.2f DWPD and last until %s%s", used > 0 ? ", " : "",
			kvof_plan_arm_name((enum kvof_plan_arm_kind)i),
			w->wear.drive_writes_per_day, w->worn_out, early);
	}
	if (used > 0)
		reason(r, "Wear: %s.", text);
}

void report_reasons(struct report *r)
{
	level_reason(r);
	spill_reason(r);
	sharing_reason(r);
	money_reason(r);
	wear_reason(r);
}
