/* SPDX-License-Identifier: Apache-2.0 */
/* A report as JSON; docs/plan.md lists its fields. What is infinite or not known is null. */
#include <math.h>
#include <stdio.h>

#include "base/must.h"
#include "cmd/plan_report.h"
#include "plan/text.h"

#define REC KVOF_PLAN_RECOMPUTE

static const char *arm_name(unsigned i)
{
	return kvof_plan_arm_name((enum kvof_plan_arm_kind)i);
}

static void put(json_t *to, const char *name, json_t *value)
{
	json_object_set_new(to, name, value);
}

static void put_real(json_t *to, const char *name, double value)
{
	put(to, name, isfinite(value) ? json_real(value) : json_null());
}

static void put_text(json_t *to, const char *name, const char *value)
{
	char clean[PLAN_IN_TEXT_BYTES + 1];

	plan_text_put(clean, sizeof(clean), value);
	put(to, name, clean[0] != 0 ? json_string(clean) : json_null());
}

static json_t *input_json(const struct report *r)
{
	static const char *const origins[] = {"standard", "file", "flag"};
	json_t *all = json_object();

	for (unsigned i = 0; i < PLAN_IN_COUNT; i++) {
		const struct plan_input_row *row = plan_input_row((enum plan_input_id)i);
		const struct plan_input_value *v = &r->in->value[i];
		json_t *section = json_object_get(all, row->section), *one = json_object();

		if (section == NULL) {
			section = json_object();
			put(all, row->section, section);
		}
		put_text(one, "text", v->text);
		put(one, "origin", json_string(origins[v->origin]));
		if (!v->empty && row->type < PLAN_IN_CHOICE)
			put_real(one, "value", v->number);
		put(section, row->name, one);
	}
	return all;
}

static json_t *advice_json(const struct report *r)
{
	const struct advice *a = &r->advice;
	json_t *one = json_object(), *arms = json_array(), *reasons = json_array();
	char text[ADVICE_TEXT_BYTES];

	advice_text(&r->facts, a, text);
	put(one, "advice", json_string(advice_name(a->what)));
	put(one, "why", json_string(advice_why_name(a->why)));
	put(one, "buy", json_boolean(a->what == ADVICE_LOCAL || a->what == ADVICE_ARRAY));
	put(one, "meets_sla", json_boolean(a->meets));
	put(one, "text", json_string(text));
	put_real(one, "gain", a->gain);
	put_real(one, "gpu_memory_hit", a->hbm_hit);
	put(one, "figures_of", json_string(r->set[r->used].name));
	for (unsigned i = 0; i < r->reasons; i++)
		json_array_append_new(reasons, json_string(r->reason[i].text));
	put(one, "reasons", reasons);
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++) {
		json_t *arm;

		if (!r->facts.has[i])
			continue;
		arm = json_object();
		put(arm, "arm", json_string(arm_name(i)));
		put_real(arm, "ttft_s", a->time_s[i]);
		put_real(arm, "hit", a->hit[i]);
		put_real(arm, "capacity_bytes", r->facts.capacity_bytes[i]);
		put(arm, "sla_sessions", json_integer(r->sla_sessions[i]));
		put(arm, "sla_unbounded", json_boolean(r->sla_unbounded[i]));
		json_array_append_new(arms, arm);
	}
	put(one, "arms", arms);
	return one;
}

static json_t *flips_json(const struct report *r)
{
	json_t *all = json_array();

	for (unsigned i = 0; i < r->flips; i++) {
		const struct advice_flip *f = &r->flip[i];
		char text[ADVICE_TEXT_BYTES];
		json_t *one = json_object();

		advice_flip_text(f, text);
		put(one, "fact", json_string(advice_fact_name(f->fact)));
		put_real(one, "now", f->now);
		put_real(one, "at", f->at);
		put(one, "above", json_boolean(f->above));
		put(one, "advice", json_string(advice_name(f->what)));
		put(one, "why", json_string(advice_why_name(f->why)));
		put(one, "text", json_string(text));
		json_array_append_new(all, one);
	}
	return all;
}

static json_t *even_json(const struct report_arm *a)
{
	static const char *const names[] = {"never", "always", "from", "until", "outside"};
	json_t *one = json_object();

	put(one, "load", json_string(names[a->even.load]));
	put_real(one, "from_tokens", a->even.from_tokens);
	put_real(one, "until_tokens", a->even.until_tokens);
	return one;
}

static json_t *arm_json(const struct report *r, const struct report_arm *a)
{
	json_t *one = json_object(), *waves = json_array();

	put(one, "arm", json_string(kvof_plan_arm_name(a->arm.kind)));
	put(one, "source", json_string(kvof_plan_source_name(a->arm.source)));
	put(one, "bottleneck", json_string(a->arm.bottleneck));
	put_real(one, "fixed_s", a->arm.fixed_s);
	put_real(one, "bytes_per_s", a->arm.bytes_per_s);
	put_real(one, "tokens_per_s", a->arm.tokens_per_s);
	for (unsigned w = 0; w < r->waves; w++) {
		const struct kvof_plan_ttft *t = &a->wave[w];
		json_t *wave = json_object();

		put(wave, "concurrency", json_integer(r->sessions[w]));
		put_real(wave, "ttft_p50_s", t->p50_s);
		put_real(wave, "ttft_p90_s", t->p90_s);
		put_real(wave, "ttft_last_s", t->last_s);
		put_real(wave, "tokens_per_s", t->tokens_per_s);
		put_real(wave, "bytes_per_s_needed", t->bytes_per_s_needed);
		put(wave, "bottleneck", json_string(t->bottleneck));
		json_array_append_new(waves, wave);
	}
	put(one, "waves", waves);
	put_real(one, "saturation_sessions", a->saturation.busy_sessions);
	put_real(one, "throughput_sessions", a->saturation.throughput_sessions);
	put(one, "sla_sessions", json_integer(a->sla.sessions));
	put(one, "sla_unbounded", json_boolean(a->sla.unbounded));
	put(one, "sla_tokens", json_integer((json_int_t)a->longest_tokens));
	put(one, "sooner_than_recompute", a->has_even ? even_json(a) : json_null());
	return one;
}

static json_t *sets_json(const struct report *r)
{
	json_t *all = json_array();

	for (unsigned s = 0; s < r->sets; s++) {
		const struct report_set *set = &r->set[s];
		json_t *one = json_object(), *arms = json_array();

		put(one, "name", json_string(set->name));
		put(one, "source", json_string(kvof_plan_source_name(set->source)));
		put_text(one, "made", set->made);
		put_text(one, "machine", set->machine);
		put_text(one, "engine", set->engine);
		put_text(one, "model", set->model);
		put_text(one, "precision", set->precision);
		put(one, "advised_by", json_boolean(s == r->used));
		for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
			if (set->arm[i].has)
				json_array_append_new(arms, arm_json(r, &set->arm[i]));
		put(one, "arms", arms);
		json_array_append_new(all, one);
	}
	return all;
}

static json_t *sizes_json(const struct report *r)
{
	json_t *one = json_object();

	put(one, "model", json_string(r->model));
	put_real(one, "bytes_per_token", r->bytes_per_token);
	put_real(one, "tokens", r->tokens);
	put_real(one, "session_bytes", r->session_bytes);
	put_real(one, "session_rank_bytes", r->session_rank_bytes);
	put_real(one, "working_set_bytes", r->working_set_bytes);
	put_real(one, "requests_per_s", r->requests_per_s);
	return one;
}

static json_t *spill_json(const struct report *r)
{
	const struct kvof_plan_spill *s = &r->spill;
	json_t *one = json_object();

	if (!r->has_spill) {
		json_decref(one);
		return json_null();
	}
	put_real(one, "kv_bytes", s->kv_bytes);
	put_real(one, "resident_sessions", s->resident);
	put_real(one, "spilled_bytes", s->spilled_bytes);
	put_real(one, "new_bytes_per_day", s->horizon_bytes);
	put_real(one, "staging_rank_bytes", s->staging_need_rank_bytes);
	put(one, "spills", json_boolean(s->spills));
	return one;
}

static json_t *supply_json(const struct report *r)
{
	json_t *all = json_object();

	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++) {
		const struct kvof_plan_supply_rate *rate = &r->supply[i];
		json_t *one, *stages;

		if (!r->has_supply[i])
			continue;
		one = json_object();
		stages = json_array();
		for (uint32_t k = 0; k < rate->stages; k++)
			json_array_append_new(stages, json_pack("{s:s, s:f}", "stage",
				rate->stage[k].name, "bytes_per_s", rate->stage[k].bytes_per_s));
		put(one, "stages", stages);
		put(one, "bottleneck", json_string(rate->bottleneck));
		put_real(one, "bytes_per_s", rate->bytes_per_s);
		put(all, arm_name(i), one);
	}
	return all;
}

static json_t *curve_json(const struct report *r)
{
	const struct advice_curve *c = &r->facts.curve;
	json_t *all = json_array();

	for (unsigned i = 0; i < c->points; i++)
		json_array_append_new(all, json_pack("{s:f, s:f}", "capacity_bytes",
			c->room[i] * r->working_set_bytes, "hit", c->hit[i]));
	return all;
}

static json_t *wear_json(const struct report *r)
{
	json_t *all = json_object();

	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++) {
		const struct report_wear *w = &r->wear[i];
		json_t *one;

		if (!w->has)
			continue;
		one = json_object();
		put_real(one, "stored_bytes_per_day", w->stored_bytes_per_day);
		put_real(one, "drive_bytes_per_day", w->wear.drive_bytes_per_day);
		put_real(one, "drive_writes_per_day", w->wear.drive_writes_per_day);
		put_real(one, "days", w->wear.days);
		put(one, "worn_out", json_string(w->worn_out));
		put(all, arm_name(i), one);
	}
	return all;
}

static json_t *money_json(const struct report *r)
{
	json_t *all = json_object();

	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++) {
		const struct plan_money *m = &r->money[i];
		json_t *one;

		if (!r->has_money[i])
			continue;
		one = json_object();
		put_real(one, "bought", r->facts.money.price[i]);
		put_real(one, "prefill_share_of_time", m->busy_share);
		put_real(one, "restored_share_of_time", m->share);
		put_real(one, "speedup", m->speedup);
		put_real(one, "gpu_hours_per_day", m->gpu_hours_per_day);
		put_real(one, "uplift", m->uplift);
		put_real(one, "cost_per_day", m->cost_per_day);
		put_real(one, "saved_per_day", m->saved_per_day);
		put_real(one, "per_million_tokens", m->per_million_tokens);
		put_real(one, "per_gpu_hour", m->per_gpu_hour);
		put_real(one, "payback_days", m->payback_days);
		put(all, arm_name(i), one);
	}
	return all;
}

static json_t *steps_json(const struct report *r)
{
	json_t *all = json_array();

	for (unsigned i = 0; i < r->steps; i++)
		json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s, s:s}",
			"section", r->step[i].section, "what", r->step[i].what,
			"formula", r->step[i].formula, "numbers", r->step[i].numbers,
			"result", r->step[i].result));
	return all;
}

static json_t *network_json(const struct report *r)
{
	json_t *one;

	if (!r->has_net_flip)
		return json_null();
	one = json_object();
	put_real(one, "loss", r->facts.net.loss);
	put_real(one, "link_bytes_per_s", r->link_lossy_bytes_per_s > 0 ?
		 r->link_lossy_bytes_per_s : r->facts.net.link_bytes_per_s);
	put_real(one, "flips_at_loss", r->net_flip.loss);
	put_real(one, "flips_at_jitter_s", r->net_flip.jitter_s);
	return one;
}

json_t *plan_report_json(const struct report *r, bool example)
{
	json_t *all = json_object(), *differences = json_array(), *notes = json_array();

	for (unsigned i = 0; i < r->differences; i++)
		json_array_append_new(differences, json_string(r->difference[i].text));
	for (unsigned i = 0; i < r->notes; i++)
		json_array_append_new(notes, json_string(r->note[i].text));
	put(all, "notes", notes);
	put(all, "example", json_boolean(example));
	put(all, "advice", advice_json(r));
	put(all, "flips", flips_json(r));
	put(all, "sizes", sizes_json(r));
	put(all, "spill", spill_json(r));
	put(all, "supply", supply_json(r));
	put(all, "network", network_json(r));
	put(all, "sets", sets_json(r));
	put(all, "differences", differences);
	put(all, "hits", curve_json(r));
	put(all, "wear", wear_json(r));
	put(all, "money", money_json(r));
	put(all, "steps", steps_json(r));
	put(all, "input", input_json(r));
	return all;
}
