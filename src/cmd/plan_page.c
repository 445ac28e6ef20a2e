/* SPDX-License-Identifier: Apache-2.0 */
/* A report as a page for the terminal: advice first, then what it rests on, arithmetic last. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan_report.h"
#include "plan/text.h"

#define WIDE 96u
#define BAR 40.0
#define FLIPS_SHOWN 8u                     /* nearest first */
#define REC KVOF_PLAN_RECOMPUTE

static const char *const quantiles[] = {"p50", "p90", "last"};

bool plan_value_idle(const struct report *r, enum plan_input_id id)
{
	if (plan_input_told(r->in, id))
		return false;
	if (id == PLAN_IN_model_bytes_per_token)
		return plan_input_has(r->in, PLAN_IN_model_config);
	return id == PLAN_IN_model_prefill &&
		r->set[0].arm[REC].arm.tokens_per_s != plan_input_number(r->in, id);
}

static const char *arm_name(unsigned i)
{
	return kvof_plan_arm_name((enum kvof_plan_arm_kind)i);
}

/* Words of text from column indent on, no line longer than WIDE. */
static void wrap(const char *first, unsigned indent, const char *text)
{
	unsigned column = indent;

	printf("%-*s", (int)indent, first);
	while (*text != 0) {
		size_t bytes = strcspn(text, " ");

		if (column > indent && column + 1 + bytes > WIDE) {
			printf("\n%*s", (int)indent, "");
			column = indent;
		} else if (column > indent) {
			putchar(' ');
			column++;
		}
		printf("%.*s", (int)bytes, text);
		column += (unsigned)bytes;
		text += bytes;
		text += strspn(text, " ");
	}
	putchar('\n');
}

/* A word of a column, as much of it as there is room for. */
static void short_put(const char *word)
{
	char text[14];

	plan_text_put(text, sizeof(text), word);
	printf("%14s", text);
}

static void head(const char *title)
{
	printf("\n%s\n", title);
}

/* --- the advice ------------------------------------------------------------------- */

static void set_line(const struct report_set *set)
{
	char text[640];

	snprintf(text, sizeof(text), "%s, %s%s%s%s%s%s%s%s%s", set->name,
		 kvof_plan_source_name(set->source), set->made[0] != 0 ? ", " : "", set->made,
		 set->machine[0] != 0 ? ", " : "", set->machine,
		 set->engine[0] != 0 ? ", " : "", set->engine,
		 set->source == KVOF_PLAN_SPEC ? ": nobody measured it" : "", "");
	wrap("  Figures", 12, text);
}

static void advice_print(const struct report *r)
{
	char text[ADVICE_TEXT_BYTES];

	head("ADVICE");
	advice_text(&r->facts, &r->advice, text);
	wrap("", 2, text);
	putchar('\n');
	for (unsigned i = 0; i < r->reasons; i++) {
		char number[16];

		snprintf(number, sizeof(number), "  %u.", i + 1);
		wrap(number, 5, r->reason[i].text);
	}
	set_line(&r->set[r->used]);
	for (unsigned i = 0; i < r->notes; i++)
		wrap("  Note", 12, r->note[i].text);
	head("IT FLIPS, with one fact changed and the rest as asked");
	for (unsigned i = 0; i < r->flips && i < FLIPS_SHOWN; i++) {
		advice_flip_text(&r->flip[i], text);
		wrap("  -", 4, text);
	}
	if (r->flips > FLIPS_SHOWN)
		printf("  and %u further off (--json has them all)\n", r->flips - FLIPS_SHOWN);
	if (r->flips == 0)
		printf("  with nothing that was tried\n");
}

/* --- one set of arms ------------------------------------------------------------------ */

static double quantile_of(const struct report *r, const struct kvof_plan_ttft *t)
{
	return r->facts.rank == KVOF_PLAN_P50 ? t->p50_s :
		r->facts.rank == KVOF_PLAN_P90 ? t->p90_s : t->last_s;
}

static void row_begin(const char *name)
{
	printf("  %-26s", name);
}

static void even_print(const struct report_arm *a)
{
	char text[32];

	switch (a->even.load) {
	case KVOF_PLAN_LOAD_NEVER:
		snprintf(text, sizeof(text), "never");
		break;
	case KVOF_PLAN_LOAD_ALWAYS:
		snprintf(text, sizeof(text), "always");
		break;
	case KVOF_PLAN_LOAD_FROM:
		snprintf(text, sizeof(text), "from %.0f", a->even.from_tokens);
		break;
	case KVOF_PLAN_LOAD_UNTIL:
		snprintf(text, sizeof(text), "to %.0f", a->even.until_tokens);
		break;
	default:
		snprintf(text, sizeof(text), "not %.0f..%.0f", a->even.until_tokens,
			 a->even.from_tokens);
	}
	printf("%14s", a->has_even ? text : "-");
}

static void limits_print(const struct report *r, const struct report_set *set)
{
	char text[48];

	snprintf(text, sizeof(text), "sessions that meet %s", plan_input_text(r->in,
									   PLAN_IN_sla_ttft));
	row_begin(text);
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
		if (set->arm[i].has)
			printf("%s%*u", set->arm[i].sla.unbounded ? ">" : "",
			       set->arm[i].sla.unbounded ? 13 : 14, set->arm[i].sla.sessions);
	putchar('\n');
	snprintf(text, sizeof(text), "longest prefix, %u at once", r->facts.sessions);
	row_begin(text);
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
		if (set->arm[i].has)
			printf("%14llu", (unsigned long long)set->arm[i].longest_tokens);
	putchar('\n');
	row_begin("rate is full from");
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
		if (set->arm[i].has && isfinite(set->arm[i].saturation.busy_sessions))
			printf("%14.0f", ceil(set->arm[i].saturation.busy_sessions));
		else if (set->arm[i].has)
			printf("%14s", "never");
	putchar('\n');
	row_begin("sooner than recompute");
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
		if (set->arm[i].has)
			even_print(&set->arm[i]);
	putchar('\n');
}

static void cell_put(double value, const char *format)
{
	if (value > 0 && isfinite(value))
		printf(format, value);
	else
		printf("%14s", "-");
}

/* All that a wave of the sessions asked for has, arm by arm. */
static void asked_print(const struct report *r, const struct report_set *set)
{
	unsigned w = 0;

	while (w + 1 < r->waves && r->sessions[w] != r->facts.sessions)
		w++;
	printf("\n  %u sessions at once%*s%14s%14s%14s%14s%14s\n", r->sessions[w],
	       r->sessions[w] < 10 ? 7 : r->sessions[w] < 100 ? 6 : 5, "", "p50", "p90", "last",
	       "output", "draws");
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++) {
		const struct kvof_plan_ttft *t = &set->arm[i].wave[w];

		if (!set->arm[i].has)
			continue;
		row_begin(arm_name(i));
		printf("%12.2f s%12.2f s%12.2f s", t->p50_s, t->p90_s, t->last_s);
		cell_put(t->tokens_per_s, "%8.1f tok/s");
		cell_put(t->bytes_per_s_needed / 1e9, "%9.2f GB/s");
		putchar('\n');
	}
	if (set->source == KVOF_PLAN_SPEC)
		printf("  output as if it were decoded in no time: a data sheet does not tell\n");
}

static void set_print(const struct report *r, const struct report_set *set, bool used)
{
	char text[64];

	printf("\nTIME TO FIRST TOKEN, %s, whole prefixes of %.0f tokens%s\n",
	       quantiles[r->facts.rank], r->tokens, used ?
	       " (the advice computes what does not hit)" : " (not what the advice is of)");
	set_line(set);
	row_begin("sessions at once");
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
		if (set->arm[i].has)
			printf("%14s", arm_name(i));
	putchar('\n');
	for (unsigned w = 0; w < r->waves; w++) {
		snprintf(text, sizeof(text), "%8u%s", r->sessions[w],
			 r->sessions[w] == r->facts.sessions ? "  asked" : "");
		row_begin(text);
		for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
			if (set->arm[i].has)
				printf("%12.2f s", quantile_of(r, &set->arm[i].wave[w]));
		putchar('\n');
	}
	row_begin("bottleneck");
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
		if (set->arm[i].has)
			short_put(set->arm[i].arm.bottleneck);
	putchar('\n');
	limits_print(r, set);
	asked_print(r, set);
}

/* --- supply, capacity --------------------------------------------------------------------- */

static void bar(double part)
{
	for (unsigned i = 0; i < (unsigned)BAR; i++)
		putchar(i + 0.5 < part * BAR ? '#' : ' ');
}

static void supply_print(const struct report *r)
{
	char size[32];

	head("SUPPLY, stage by stage, of data sheets (the smallest is the bottleneck)");
	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++) {
		const struct kvof_plan_supply_rate *rate = &r->supply[i];
		double most = 0;

		if (!r->has_supply[i])
			continue;
		for (uint32_t k = 0; k < rate->stages; k++)
			most = fmax(most, rate->stage[k].bytes_per_s);
		for (uint32_t k = 0; k < rate->stages; k++) {
			printf("  %-7s%-11s", k == 0 ? arm_name(i) : "", rate->stage[k].name);
			bar(rate->stage[k].bytes_per_s / most);
			printf(" %9s/s%s\n", plan_text_size(rate->stage[k].bytes_per_s, size),
			       strcmp(rate->stage[k].name, rate->bottleneck) == 0 ? "  <" : "");
		}
	}
}

static void capacity_print(const struct report *r)
{
	char room[32], set[32], name[PLAN_IN_TEXT_BYTES];

	plan_text_put(name, sizeof(name), plan_input_text(r->in,
		      plan_input_has(r->in, PLAN_IN_workload_trace) ? PLAN_IN_workload_trace :
		      PLAN_IN_workload_preset));
	printf("\nHIT RATE AGAINST CAPACITY, of all prompt tokens; working set %s, %s\n",
	       plan_text_size(r->working_set_bytes, set), name);
	for (double part = 1.0 / 64; part < 1.5; part *= 2) {
		double hit = report_hit(r, part * r->working_set_bytes);

		printf("  %10s  ", plan_text_size(part * r->working_set_bytes, room));
		bar(hit);
		printf(" %5.1f %%\n", 100 * hit);
	}
	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++)
		if (r->facts.has[i])
			printf("  %-7s has room for %s and hits %.1f %%: %s %.2f s with %u "
			       "sessions\n", arm_name(i),
			       plan_text_size(r->facts.capacity_bytes[i], room),
			       100 * r->advice.hit[i], quantiles[r->facts.rank],
			       r->advice.time_s[i], r->facts.sessions);
}

/* --- what it rests on ------------------------------------------------------------------------ */

static void differences_print(const struct report *r)
{
	if (r->differences == 0)
		return;
	head("NOT COMPARED");
	for (unsigned i = 0; i < r->differences; i++)
		wrap("  -", 4, r->difference[i].text);
}

static void network_print(const struct report *r)
{
	const char *other = r->net_other == REC ? "by recompute" : "from local NVMe";
	double jitter_s = r->net_flip.jitter_s;
	char jitter[96] = "no jitter below 10 s does that";

	if (!r->has_net_flip)
		return;
	if (jitter_s <= 10)
		snprintf(jitter, sizeof(jitter), "so it is with jitter of %.3g %s or more",
			 jitter_s < 1 ? 1e3 * jitter_s : jitter_s, jitter_s < 1 ? "ms" : "s");
	head("NETWORK");
	if (r->net_flip.loss <= 0 && jitter_s <= 0)
		printf("  whole prefixes come later from the array than %s even without loss and "
		       "jitter\n", other);
	else if (r->net_flip.loss >= 1)
		printf("  no loss of packets makes whole prefixes come later from the array than "
		       "%s;\n  %s\n", other, jitter);
	else
		printf("  whole prefixes come later from the array than %s with %.3g %% of packets "
		       "lost or more;\n  %s\n", other, 100 * r->net_flip.loss, jitter);
}

static void steps_print(const struct report *r)
{
	const char *section = "";

	head("ARITHMETIC (GB is 1e9 bytes, GiB is 2^30)");
	for (unsigned i = 0; i < r->steps; i++) {
		const struct report_step *s = &r->step[i];
		char line[256];

		if (strcmp(section, s->section) != 0)
			printf("  %s\n", s->section);
		section = s->section;
		snprintf(line, sizeof(line), "%s = %s", s->what, s->result);
		wrap("", 4, line);
		wrap("", 8, s->formula);
		wrap("", 8, s->numbers);
	}
}

static void input_print(const struct report *r)
{
	char text[PLAN_IN_TEXT_BYTES];
	const char *section = "";

	head("WHAT WAS ASKED (* is a standard value that nobody told)");
	for (unsigned i = 0; i < PLAN_IN_COUNT; i++) {
		const struct plan_input_row *row = plan_input_row((enum plan_input_id)i);
		const struct plan_input_value *v = &r->in->value[i];

		if (v->empty || plan_value_idle(r, (enum plan_input_id)i))
			continue;
		if (strcmp(section, row->section) != 0)
			printf("%s  [%s]", section[0] != 0 ? "\n" : "", row->section);
		section = row->section;
		plan_text_put(text, sizeof(text), v->text);
		printf(" %s=%s%s", row->name, text, v->origin == PLAN_IN_STANDARD ? "*" : "");
	}
	printf("\n");
}

int plan_page_print(const struct report *r, bool example)
{
	printf("kvof plan report: %s, %u host%s, %u sessions at once, prefixes of %.0f tokens\n",
	       r->model, r->facts.hosts, r->facts.hosts > 1 ? "s" : "", r->facts.sessions,
	       r->tokens);
	if (example)
		printf("This is the built-in example, with made-up prices. Your own: kvof plan "
		       "report --example > plan.ini,\nedit it, kvof plan report --input plan.ini "
		       "(--html plan.html for pictures).\n");
	advice_print(r);
	set_print(r, &r->set[r->used], true);
	for (unsigned i = 0; i < r->sets; i++)
		if (i != r->used)
			set_print(r, &r->set[i], false);
	differences_print(r);
	network_print(r);
	supply_print(r);
	capacity_print(r);
	steps_print(r);
	input_print(r);
	return cmd_output_end("plan report", CMD_DONE);
}
