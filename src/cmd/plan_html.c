/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A report as one page that needs nothing else: three pictures as SVG, tables, the arithmetic.
 * Light or dark, as the reader's system is.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan_report.h"
#include "plan/text.h"

#define WIDE 720.0                         /* of the area of a picture */
#define HIGH 300.0
#define LEFT 72.0
#define TOP 16.0
#define POINTS 96u
#define ROW 22.0
#define REC KVOF_PLAN_RECOMPUTE

static const char page_head[] =
	"<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n"
	"<meta name=\"viewport\" content=\"width=device-width\">\n"
	"<title>kvof plan report</title>\n<style>\n"
	":root{color-scheme:light dark;--bg:#fff;--fg:#1f2937;--dim:#4b5563;--line:#e5e7eb;"
	"--box:#f3f4f6;--recompute:#6b7280;--dram:#059669;--local:#d97706;--array:#2563eb;"
	"--nfs:#9333ea;--sla:#dc2626}\n"
	"@media(prefers-color-scheme:dark){:root{--bg:#111827;--fg:#e5e7eb;--dim:#9ca3af;"
	"--line:#374151;--box:#1f2937;--recompute:#9ca3af;--dram:#34d399;--local:#fbbf24;"
	"--array:#60a5fa;--nfs:#c084fc;--sla:#f87171}}\n"
	"body{font:15px/1.5 system-ui,sans-serif;max-width:58em;margin:2em auto;padding:0 1em;"
	"color:var(--fg);background:var(--bg)}\nh1{font-size:1.4em}h2{font-size:1.1em;"
	"margin-top:2em}\n.advice{background:var(--box);border-left:4px solid var(--array);"
	"padding:.8em 1em;font-size:1.1em}\ntable{border-collapse:collapse;width:100%}"
	"td,th{padding:.2em .5em;text-align:right;border-bottom:1px solid var(--line);"
	"vertical-align:top}.times td{white-space:nowrap}\n"
	"th:first-child,td:first-child,.text td{text-align:left}"
	".asked td{font-weight:600}\nsvg{max-width:100%;height:auto;display:block}"
	"svg text{font-size:12px;fill:var(--dim)}.grid{stroke:var(--line)}"
	".curve{fill:none;stroke-width:2}p,li,small{color:var(--dim)}code{font-size:.9em}\n"
	"</style>\n";

static const char *arm_name(unsigned i)
{
	return kvof_plan_arm_name((enum kvof_plan_arm_kind)i);
}

static void text_put(FILE *f, const char *others)
{
	char clean[1024], *text = clean;

	_Static_assert(REPORT_TEXT_BYTES <= sizeof(clean) && PLAN_IN_TEXT_BYTES <= sizeof(clean),
		       "what a page shows is not cut");
	plan_text_put(clean, sizeof(clean), others);
	for (; *text != 0; text++) {
		if (*text == '<' || *text == '>' || *text == '&' || *text == '"')
			fprintf(f, "&#%d;", *text);
		else
			fputc(*text, f);
	}
}

static void picture_begin(FILE *f, const char *title, const char *what, double high)
{
	fprintf(f, "<h2>%s</h2>\n<p>%s</p>\n<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n"
		"<title>%s</title>\n", title, what, LEFT + WIDE + 24, high, title);
}

/* A line across at part of the height, from below; its text follows. */
static void grid_across(FILE *f, double part)
{
	double y = TOP + HIGH * (1 - part);

	fprintf(f, "<line class=\"grid\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>"
		"<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">", LEFT, LEFT + WIDE, y, y,
		LEFT - 6, y + 4);
}

static void grid_up(FILE *f, double part)
{
	double x = LEFT + WIDE * part;

	fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\"/>"
		"<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">", x, x, TOP, TOP + HIGH, x,
		TOP + HIGH + 18);
}

static void legend(FILE *f, unsigned place, const char *color, const char *name)
{
	double x = LEFT + 130.0 * place;

	fprintf(f, "<rect x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\" "
		"fill=\"var(--%s)\"/><text x=\"%.0f\" y=\"%.0f\">%s</text>\n", x,
		TOP + HIGH + 46, color, x + 18, TOP + HIGH + 56, name);
}

/* --- first tokens against sessions ----------------------------------------------------- */

struct scale {
	double most_sessions, least_s, most_s;
};

static double time_of(const struct report *r, const struct report_arm *a, double sessions)
{
	struct kvof_plan_ttft t;
	struct kvof_plan_bad bad;

	if (report_wave(r, a, (uint32_t)sessions, &t, &bad) != 0)
		return (double)NAN;
	return r->facts.rank == KVOF_PLAN_P50 ? t.p50_s :
		r->facts.rank == KVOF_PLAN_P90 ? t.p90_s : t.last_s;
}

static double x_of(const struct scale *s, double sessions)
{
	return LEFT + WIDE * log(sessions) / log(s->most_sessions);
}

static double y_of(const struct scale *s, double seconds)
{
	double part = log(fmax(seconds, s->least_s) / s->least_s) / log(s->most_s / s->least_s);

	return TOP + HIGH * (1 - fmin(part, 1));
}

static struct scale scale_of(const struct report *r, const struct report_set *set)
{
	struct scale s = {.most_sessions = r->sessions[r->waves - 1],
		.least_s = r->facts.sla_s, .most_s = r->facts.sla_s};

	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++) {
		if (!set->arm[i].has)
			continue;
		s.least_s = fmin(s.least_s, time_of(r, &set->arm[i], 1));
		s.most_s = fmax(s.most_s, time_of(r, &set->arm[i], s.most_sessions));
	}
	s.least_s = pow(10, floor(log10(fmax(s.least_s, 1e-6))));
	s.most_s = pow(10, ceil(log10(s.most_s)));
	s.most_s = fmax(s.most_s, 10 * s.least_s);
	return s;
}

static void times_curve(FILE *f, const struct report *r, const struct report_arm *a,
			const struct scale *s)
{
	const char *name = kvof_plan_arm_name(a->arm.kind);
	double full = a->saturation.busy_sessions, last = 0;

	fprintf(f, "<polyline class=\"curve\" stroke=\"var(--%s)\"%s points=\"", name,
		a->arm.kind == REC ? " stroke-dasharray=\"5 4\"" : "");
	for (unsigned i = 0; i <= POINTS; i++) {
		double n = round(pow(s->most_sessions, (double)i / POINTS));

		if (n > last)
			fprintf(f, "%.1f,%.1f ", x_of(s, n), y_of(s, time_of(r, a, n)));
		last = n;
	}
	fputs("\"/>\n", f);
	if (!(full >= 1 && ceil(full) <= s->most_sessions) || a->arm.kind == REC)
		return;
	full = ceil(full);
	fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"var(--%s)\"><title>%s: its rate "
		"is in use 90 %% of the time from %.0f sessions on</title></circle>\n",
		x_of(s, full), y_of(s, time_of(r, a, full)), name, name, full);
}

static void sla_line(FILE *f, const struct report *r, const struct scale *s)
{
	double y = y_of(s, r->facts.sla_s), x = x_of(s, r->facts.sessions);

	fprintf(f, "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"var(--sla)\" "
		"stroke-width=\"1.5\" stroke-dasharray=\"8 3\"/><text x=\"%.0f\" y=\"%.1f\" "
		"style=\"fill:var(--sla)\">asked for: %.3g s</text>\n", LEFT, LEFT + WIDE, y, y,
		LEFT + 6, y - 5, r->facts.sla_s);
	fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\" stroke=\"var(--sla)\" "
		"stroke-dasharray=\"2 4\"/><text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\" "
		"style=\"fill:var(--sla)\">%u asked</text>\n", x, x, TOP, TOP + HIGH, x, TOP - 4,
		r->facts.sessions);
}

static void picture_times(FILE *f, const struct report *r, const struct report_set *set)
{
	struct scale s = scale_of(r, set);
	char what[512];
	unsigned place = 0;

	snprintf(what, sizeof(what), "%s of a wave of sessions, each with a whole prefix of %.0f "
		 "tokens that is loaded (or computed). A dot: from here on the arm's rate is in "
		 "use 90 %% of the time, more sessions only wait. The advice's time is another: "
		 "what does not hit is computed after the load.",
		 r->facts.rank == KVOF_PLAN_P50 ? "Median" : r->facts.rank == KVOF_PLAN_P90 ?
		 "90th percentile" : "Last", r->tokens);
	picture_begin(f, "Time to first token against sessions at once", what, TOP + HIGH + 66);
	for (double at = s.least_s; at < s.most_s * 1.01; at *= 10) {
		grid_across(f, log(at / s.least_s) / log(s.most_s / s.least_s));
		fprintf(f, "%g s</text>\n", at);
	}
	for (double n = 1; n <= s.most_sessions; n *= 2) {
		grid_up(f, log(n) / log(s.most_sessions));
		fprintf(f, "%.0f</text>\n", n);
	}
	sla_line(f, r, &s);
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++) {
		if (!set->arm[i].has)
			continue;
		times_curve(f, r, &set->arm[i], &s);
		legend(f, place++, arm_name(i), arm_name(i));
	}
	fputs("</svg>\n", f);
}

/* --- hit rate against capacity ----------------------------------------------------------- */

static double room_x(double part)
{
	return LEFT + WIDE * fmin(fmax(log10(fmax(part, 1e-9)) + 2, 0) / 3, 1);
}

static void room_mark(FILE *f, const struct report *r, double bytes, const char *color,
		      const char *name, unsigned place)
{
	double x = room_x(bytes / r->working_set_bytes), hit = report_hit(r, bytes);
	double y = TOP + HIGH * (1 - hit);
	char size[32];

	if (bytes <= 0)
		return;
	fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.0f\" "
		"stroke=\"var(--%s)\" stroke-width=\"1.5\"/><circle cx=\"%.1f\" cy=\"%.1f\" "
		"r=\"4\" fill=\"var(--%s)\"/>", x, x, y, TOP + HIGH, color, x, y, color);
	fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" style=\"fill:var(--%s)\">%s "
		"%s</text>\n", x + (x > LEFT + WIDE / 2 ? -5 : 5), TOP + HIGH - 8 - 15.0 * place,
		x > LEFT + WIDE / 2 ? "end" : "start", color, name, plan_text_size(bytes, size));
}

static void picture_hits(FILE *f, const struct report *r)
{
	char size[32];

	picture_begin(f, "Hit rate against capacity", "Part of all prompt tokens that are found, "
		      "with room for so much of what comes, over all hosts; what was used longest "
		      "ago goes first. A tier's room is marked. What a host has for itself hits "
		      "less when sessions may come back to any host: the table below has that "
		      "in it.", TOP + HIGH + 30);
	for (unsigned i = 0; i <= 4; i++) {
		grid_across(f, i / 4.0);
		fprintf(f, "%u %%</text>\n", i * 25);
	}
	for (unsigned i = 0; i <= 3; i++) {
		grid_up(f, i / 3.0);
		fprintf(f, "%s</text>\n",
			plan_text_size(r->working_set_bytes * pow(10, i - 2.0), size));
	}
	fputs("<polyline class=\"curve\" stroke=\"var(--fg)\" points=\"", f);
	for (unsigned i = 0; i <= POINTS; i++) {
		double part = pow(10, -2 + 3.0 * i / POINTS);

		fprintf(f, "%.1f,%.1f ", room_x(part),
			TOP + HIGH * (1 - report_hit(r, part * r->working_set_bytes)));
	}
	fputs("\"/>\n", f);
	room_mark(f, r, r->facts.hbm_bytes, "recompute", "GPU memory", 0);
	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++)
		if (r->facts.has[i])
			room_mark(f, r, r->facts.capacity_bytes[i], arm_name(i), arm_name(i), i);
	fputs("</svg>\n<table><tr><th>arm</th><th>room</th><th>hit</th><th>first token</th>"
	      "<th>sessions that meet it</th></tr>\n", f);
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
		if (r->facts.has[i])
			fprintf(f, "<tr><td>%s</td><td>%s</td><td>%.1f %%</td><td>%.2f s</td>"
				"<td>%s%u</td></tr>\n", arm_name(i), i == REC ? "-" :
				plan_text_size(r->facts.capacity_bytes[i], size),
				100 * r->advice.hit[i], r->advice.time_s[i],
				r->sla_unbounded[i] ? "over " : "", r->sla_sessions[i]);
	fputs("</table>\n", f);
}

/* --- the stages of supply ------------------------------------------------------------------- */

static void picture_supply(FILE *f, const struct report *r)
{
	unsigned rows = 0, row = 0;
	double most = 0;
	char size[32];

	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++)
		for (uint32_t k = 0; r->has_supply[i] && k < r->supply[i].stages; k++, rows++)
			most = fmax(most, r->supply[i].stage[k].bytes_per_s);
	if (rows == 0)
		return;
	picture_begin(f, "What bounds each arm", "Bytes a second that each stage gives, of data "
		      "sheets. The smallest, in full colour, is what the arm gives.",
		      TOP + ROW * rows);
	for (unsigned i = REC + 1; i < KVOF_PLAN_ARM_KINDS; i++) {
		const struct kvof_plan_supply_rate *rate = &r->supply[i];

		for (uint32_t k = 0; r->has_supply[i] && k < rate->stages; k++, row++) {
			double y = TOP + ROW * row, part = rate->stage[k].bytes_per_s / most;
			bool least = strcmp(rate->stage[k].name, rate->bottleneck) == 0;

			fprintf(f, "<text x=\"0\" y=\"%.1f\">%s</text><text x=\"%.0f\" y=\"%.1f\">"
				"%s</text>", y + 13, k == 0 ? arm_name(i) : "", LEFT - 16, y + 13,
				rate->stage[k].name);
			fprintf(f, "<rect x=\"%.0f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\" "
				"fill=\"var(--%s)\" opacity=\"%s\"/><text x=\"%.1f\" y=\"%.1f\">"
				"%s/s%s</text>\n", LEFT + 60, y, (WIDE - 200) * part, ROW - 6,
				arm_name(i), least ? "1" : ".35", LEFT + 66 + (WIDE - 200) * part,
				y + 13, plan_text_size(rate->stage[k].bytes_per_s, size),
				least ? ", the bottleneck" : "");
		}
	}
	fputs("</svg>\n", f);
}

/* --- tables --------------------------------------------------------------------------------- */

static void set_table(FILE *f, const struct report *r, const struct report_set *set, bool used)
{
	fputs("<h2>Time to first token: ", f);
	text_put(f, set->name);
	fprintf(f, "%s</h2>\n<p>%s", used ? "" : " (not what the advice is of)",
		kvof_plan_source_name(set->source));
	for (unsigned i = 0; i < 5; i++) {
		const char *const told[] = {set->made, set->machine, set->engine, set->model,
			set->precision};

		if (told[i][0] != 0) {
			fputs(", ", f);
			text_put(f, told[i]);
		}
	}
	fprintf(f, "%s. Seconds.</p>\n<table class=\"times\"><tr><th>sessions</th>",
		set->source == KVOF_PLAN_SPEC ? "; nobody measured it" : "");
	for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++)
		if (set->arm[i].has)
			fprintf(f, "<th>%s p50</th><th>p90</th><th>last</th>", arm_name(i));
	fputs("</tr>\n", f);
	for (unsigned w = 0; w < r->waves; w++) {
		fprintf(f, "<tr%s><td>%u</td>", r->sessions[w] == r->facts.sessions ?
			" class=\"asked\"" : "", r->sessions[w]);
		for (unsigned i = 0; i < KVOF_PLAN_ARM_KINDS; i++) {
			const struct kvof_plan_ttft *t = &set->arm[i].wave[w];

			if (set->arm[i].has)
				fprintf(f, "<td>%.2f</td><td>%.2f</td><td>%.2f</td>",
					t->p50_s, t->p90_s, t->last_s);
		}
		fputs("</tr>\n", f);
	}
	fputs("</table>\n", f);
}

static void steps_table(FILE *f, const struct report *r)
{
	fputs("<h2>Arithmetic</h2>\n<p>GB is 1e9 bytes, GiB is 2^30.</p>\n<table class=\"text\">"
	      "<tr><th></th><th>result</th><th>formula and numbers</th></tr>\n", f);
	for (unsigned i = 0; i < r->steps; i++) {
		fputs("<tr><td>", f);
		text_put(f, r->step[i].what);
		fputs("</td><td>", f);
		text_put(f, r->step[i].result);
		fputs("</td><td><small>", f);
		text_put(f, r->step[i].formula);
		fputs("<br>", f);
		text_put(f, r->step[i].numbers);
		fputs("</small></td></tr>\n", f);
	}
	fputs("</table>\n", f);
}

static void input_table(FILE *f, const struct report *r)
{
	fputs("<h2>What was asked</h2>\n<table class=\"text\"><tr><th>key</th><th>value</th>"
	      "<th></th></tr>\n", f);
	for (unsigned i = 0; i < PLAN_IN_COUNT; i++) {
		const struct plan_input_row *row = plan_input_row((enum plan_input_id)i);
		const struct plan_input_value *v = &r->in->value[i];

		if (v->empty || plan_value_idle(r, (enum plan_input_id)i))
			continue;
		fprintf(f, "<tr><td>[%s] %s</td><td>", row->section, row->name);
		text_put(f, v->text);
		fprintf(f, "%s</td><td><small>", v->origin == PLAN_IN_STANDARD ?
			" <small>(standard)</small>" : "");
		text_put(f, row->text);
		fputs("</small></td></tr>\n", f);
	}
	fputs("</table>\n", f);
}

static void list_begin(FILE *f, const char *title)
{
	fprintf(f, "<h2>%s</h2>\n<ul>\n", title);
}

static void list_item(FILE *f, const char *text)
{
	fputs("<li>", f);
	text_put(f, text);
	fputs("</li>\n", f);
}

static void advice_put(FILE *f, const struct report *r, bool example)
{
	char text[ADVICE_TEXT_BYTES];

	fputs("<h1>kvof plan report: ", f);
	text_put(f, r->model);
	fprintf(f, "</h1>\n<p>%u host%s, %u sessions at once, prefixes of %.0f tokens.%s</p>\n",
		r->facts.hosts, r->facts.hosts > 1 ? "s" : "", r->facts.sessions, r->tokens,
		example ? " This is the built-in example, with made-up prices." : "");
	advice_text(&r->facts, &r->advice, text);
	fputs("<p class=\"advice\">", f);
	text_put(f, text);
	fputs("</p>\n<ol>\n", f);
	for (unsigned i = 0; i < r->reasons; i++)
		list_item(f, r->reason[i].text);
	fputs("</ol>\n", f);
	for (unsigned i = 0; i < r->notes; i++) {
		fputs("<p>Note: ", f);
		text_put(f, r->note[i].text);
		fputs("</p>\n", f);
	}
	list_begin(f, "It flips, with one fact changed and the rest as asked");
	for (unsigned i = 0; i < r->flips; i++) {
		advice_flip_text(&r->flip[i], text);
		list_item(f, text);
	}
	fputs("</ul>\n", f);
}

static void page(FILE *f, const struct report *r, bool example)
{
	fputs(page_head, f);
	advice_put(f, r, example);
	picture_times(f, r, &r->set[r->used]);
	picture_hits(f, r);
	picture_supply(f, r);
	set_table(f, r, &r->set[r->used], true);
	for (unsigned i = 0; i < r->sets; i++)
		if (i != r->used)
			set_table(f, r, &r->set[i], false);
	if (r->differences > 0) {
		list_begin(f, "Not compared");
		for (unsigned i = 0; i < r->differences; i++)
			list_item(f, r->difference[i].text);
		fputs("</ul>\n", f);
	}
	steps_table(f, r);
	input_table(f, r);
	fputs("</html>\n", f);
}

int plan_html_write(const char *path, const struct report *r, bool example)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&text, &bytes);
	int rc = -ENOMEM;

	if (f != NULL) {
		page(f, r, example);
		rc = fclose(f) != 0 ? -ENOMEM : 0;
	}
	if (rc == 0)
		rc = cmd_value_write("plan report", path, text, bytes);
	else
		cmd_error("plan report", "no memory for the page");
	free(text);
	return rc < 0 ? CMD_FAILED : rc;
}
