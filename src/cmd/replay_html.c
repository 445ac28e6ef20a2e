/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One page that needs nothing else: three pictures as SVG, and the figures beside them. Hit rate
 * against capacity is replayed anew for each policy and size, one tier at a time.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/replay.h"

#define WIDE 720.0                         /* of the area of a picture */
#define HIGH 280.0
#define LEFT 64.0
#define SIZES 13u
#define POINTS 100u

static const char *const colors[] = {"#2563eb", "#d97706", "#059669", "#9333ea"};

static const char page_head[] =
	"<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>kvof replay</title>\n"
	"<style>\nbody{font:15px/1.5 system-ui,sans-serif;max-width:56em;margin:2em auto;"
	"padding:0 1em;color:#1f2937;background:#fff}\nh1{font-size:1.4em}h2{font-size:1.1em;"
	"margin-top:2em}\ntable{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;"
	"border-bottom:1px solid #e5e7eb}th:first-child,td:first-child{text-align:left}\n"
	"svg{max-width:100%;height:auto;display:block}svg text{font-size:12px;fill:#4b5563}\n"
	".grid{stroke:#e5e7eb}.line{fill:none;stroke-width:2}p{color:#4b5563}\n</style>\n";

static void text_put(FILE *f, const char *text)
{
	for (; *text != 0; text++) {
		if (*text == '<' || *text == '>' || *text == '&' || *text == '"')
			fprintf(f, "&#%d;", *text);
		else
			fputc(*text, f);
	}
}

/* 1234567 as 1.2M; of_bytes: as 1.2 MiB. */
static void number_put(FILE *f, double value, bool of_bytes)
{
	static const char *const plain[] = {"", "k", "M", "G", "T", "P"};
	static const char *const bytes[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
	double step = of_bytes ? 1024 : 1000;
	unsigned unit = 0;

	while (value >= step && unit + 1 < ARRAY_COUNT(plain)) {
		value /= step;
		unit++;
	}
	fprintf(f, value < 10 && value != floor(value) ? "%.1f%s" : "%.0f%s", value,
		of_bytes ? bytes[unit] : plain[unit]);
}

static void picture_begin(FILE *f, const char *title, const char *what)
{
	fprintf(f, "<h2>%s</h2>\n<p>%s</p>\n<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n"
		"<title>%s</title>\n", title, what, LEFT + WIDE + 48, HIGH + 70, title);
}

/* A line across at part of the height, with its value. */
static void grid_across(FILE *f, double part)
{
	double y = 10 + HIGH * (1 - part);

	fprintf(f, "<line class=\"grid\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>"
		"<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">", LEFT, LEFT + WIDE, y, y,
		LEFT - 6, y + 4);
}

static void label_below(FILE *f, double part)
{
	fprintf(f, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">", LEFT + WIDE * part,
		HIGH + 28);
}

static void legend(FILE *f, unsigned index, const char *name)
{
	double x = LEFT + 150.0 * index;

	fprintf(f, "<rect x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\" fill=\"%s\"/>"
		"<text x=\"%.0f\" y=\"%.0f\">%s</text>\n", x, HIGH + 46, colors[index], x + 18,
		HIGH + 56, name);
}

/* --- hit rate against capacity ------------------------------------------------ */

static uint64_t size_of(const struct trace *t, unsigned i)
{
	double least = t->unique_blocks / 1000.0, size;

	if (least < 1)
		least = 1;
	size = least * pow(t->unique_blocks / least, (double)i / (SIZES - 1));
	return size < 1 ? 1 : (uint64_t)(size + 0.5);
}

/* Of all blocks those that come again, and a little more. */
static double rate_top(const struct trace *t)
{
	double most = (double)(t->blocks - t->unique_blocks) / (double)(t->blocks + !t->blocks);

	return most > 0.95 ? 1 : ceil(most * 10 + 0.5) / 10;
}

static int curve(FILE *f, const struct trace *t, const struct replay_opts *o, const char *policy,
		 unsigned color)
{
	struct replay_opts one = {.policy = policy, .seed = o->seed, .speed_percent = 100,
		.block_tokens = o->block_tokens, .rev = o->rev};
	struct replay_result r;

	fprintf(f, "<polyline class=\"line\" stroke=\"%s\" points=\"", colors[color]);
	for (unsigned i = 0; i < SIZES; i++) {
		int rc;

		one.capacity_blocks = size_of(t, i);
		rc = replay_run(t, &one, &r);
		replay_result_free(&r);
		if (rc != 0)
			return rc;
		fprintf(f, "%.1f,%.1f ", LEFT + WIDE * i / (SIZES - 1),
			10 + HIGH * (1 - (double)r.hit_blocks /
				     (double)(t->blocks + !t->blocks) / rate_top(t)));
	}
	fputs("\"/>\n", f);
	return 0;
}

static int picture_rates(FILE *f, const struct trace *t, const struct replay_opts *o)
{
	int rc = 0;

	picture_begin(f, "Hit rate against capacity",
		      "Blocks that one tier of this size would have hit, by policy.");
	for (unsigned i = 0; i <= 4; i++) {
		grid_across(f, i / 4.0);
		fprintf(f, "%.3g%%</text>\n", rate_top(t) * i * 25);
	}
	for (unsigned i = 0; i < SIZES; i += 3) {
		double size = (double)size_of(t, i);

		label_below(f, (double)i / (SIZES - 1));
		number_put(f, o->block_bytes > 0 ? size * (double)o->block_bytes : size,
			   o->block_bytes > 0);
		fprintf(f, "%s</text>\n", o->block_bytes > 0 ? "" : " blocks");
	}
	for (unsigned i = 0; rc == 0 && policy_names()[i] != NULL && i < ARRAY_COUNT(colors); i++) {
		rc = curve(f, t, o, policy_names()[i], i);
		legend(f, i, policy_names()[i]);
	}
	fputs("</svg>\n", f);
	return rc;
}

/* --- time to first token ------------------------------------------------------- */

static void quantiles(FILE *f, const float *s, uint64_t count, double least, double most,
		      unsigned color)
{
	fprintf(f, "<polyline class=\"line\" stroke=\"%s\" points=\"", colors[color]);
	for (unsigned i = 0; i <= POINTS; i++) {
		double at = (double)s[(count - 1) * i / POINTS];

		at = at < least ? least : at;
		fprintf(f, "%.1f,%.1f ", LEFT + WIDE * log(at / least) / log(most / least),
			10 + HIGH * (1 - (double)i / POINTS));
	}
	fputs("\"/>\n", f);
}

static void picture_times(FILE *f, const struct replay_result *r)
{
	double least = 0.001, most = 0.01;

	while (most < (double)r->without_s[r->requests - 1] ||
	       most < (double)r->with_s[r->requests - 1])
		most *= 10;
	picture_begin(f, "Time to first token",
		      "Part of all requests whose first token came within so many seconds.");
	for (unsigned i = 0; i <= 4; i++) {
		grid_across(f, i / 4.0);
		fprintf(f, "%u%%</text>\n", i * 25);
	}
	for (double at = least; at < most * 1.1; at *= 10) {
		label_below(f, log(at / least) / log(most / least));
		fprintf(f, "%g s</text>\n", at);
	}
	quantiles(f, r->with_s, r->requests, least, most, 0);
	quantiles(f, r->without_s, r->requests, least, most, 1);
	legend(f, 0, "with the tiers");
	legend(f, 1, "without");
	fputs("</svg>\n<table><tr><th></th><th>p50</th><th>p90</th><th>p99</th><th>mean</th>"
	      "</tr>", f);
	fprintf(f, "<tr><td>with the tiers</td><td>%.3f s</td><td>%.3f s</td><td>%.3f s</td>"
		"<td>%.3f s</td></tr>", r->with.p50, r->with.p90, r->with.p99, r->with.mean);
	fprintf(f, "<tr><td>without</td><td>%.3f s</td><td>%.3f s</td><td>%.3f s</td>"
		"<td>%.3f s</td></tr></table>\n", r->without.p50, r->without.p90, r->without.p99,
		r->without.mean);
}

/* --- over time ------------------------------------------------------------------ */

static double span_value(const struct replay_result *r, unsigned span, unsigned i)
{
	const struct replay_span *s = &r->span[span];

	if (r->tiered)
		return (double)s->read_bytes[i];
	return i == 0 ? (double)s->hit_blocks : i == 1 ? (double)(s->blocks - s->hit_blocks) : 0;
}

static void picture_spans(FILE *f, const struct replay_result *r)
{
	const char *const *names = replay_tier_names;
	static const char *const blocks[] = {"hit", "missed"};
	unsigned rows = r->tiered ? REPLAY_TIERS : 2;
	double most = 1, wide = WIDE / REPLAY_SPANS;

	for (unsigned n = 0; n < REPLAY_SPANS; n++) {
		double sum = 0;

		for (unsigned i = 0; i < rows; i++)
			sum += span_value(r, n, i);
		most = sum > most ? sum : most;
	}
	picture_begin(f, r->tiered ? "Bytes per tier over time" : "Blocks over time",
		      r->tiered ? "Bytes that requests loaded from each tier." :
		      "Blocks of requests that were hit, and those that were not.");
	for (unsigned i = 0; i <= 4; i++) {
		grid_across(f, i / 4.0);
		number_put(f, most * i / 4, r->tiered);
		fputs("</text>\n", f);
	}
	for (unsigned n = 0; n < REPLAY_SPANS; n++) {
		double base = 0;

		for (unsigned i = 0; i < rows; i++) {
			double high = HIGH * span_value(r, n, i) / most;

			fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
				"fill=\"%s\"/>", LEFT + wide * n, 10 + HIGH - base - high, wide - 1,
				high, colors[i]);
			base += high;
		}
		if (n % 10 == 0) {
			label_below(f, (double)n / REPLAY_SPANS);
			fprintf(f, "%llu s</text>\n",
				(unsigned long long)(r->span_ms * n / 1000));
		}
	}
	for (unsigned i = 0; i < rows; i++)
		legend(f, i, r->tiered ? names[i] : blocks[i]);
	fputs("</svg>\n", f);
}

/* --- the page --------------------------------------------------------------------- */

static void tiers_table(FILE *f, const struct replay_opts *o, const struct replay_result *r)
{
	fputs("<table><tr><th>tier</th><th>size</th><th>hits</th><th>read</th><th>written</th>"
	      "<th>moved up to it</th></tr>\n", f);
	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		const struct replay_tier_result *t = &r->tier[i];

		if (!t->present)
			continue;
		fprintf(f, "<tr><td>%s</td><td>", replay_tier_names[i]);
		number_put(f, (double)o->tier_bytes[i], true);
		fprintf(f, "</td><td>%.2f%%</td><td>",
			100.0 * (double)t->hit_blocks / (double)(r->blocks + !r->blocks));
		number_put(f, (double)t->read_bytes, true);
		fputs("</td><td>", f);
		if (t->written_unknown)
			fputs("-", f);
		else
			number_put(f, (double)t->written_bytes, true);
		fprintf(f, "</td><td>%llu blocks</td></tr>\n",
			(unsigned long long)t->promoted_blocks);
	}
	fputs("</table>\n", f);
}

static int page(FILE *f, const char *name, const struct trace *t, const struct replay_opts *o,
		const struct replay_result *r)
{
	int rc;

	fputs(page_head, f);
	fputs("<h1>kvof replay: ", f);
	text_put(f, name);
	fprintf(f, "</h1>\n<p>%llu requests, %llu blocks of %u tokens, %llu of them different. "
		"Policy %s: %llu blocks hit (%.2f%%), %llu of %llu tokens (%.2f%%).</p>\n",
		(unsigned long long)r->requests, (unsigned long long)r->blocks, o->block_tokens,
		(unsigned long long)r->unique_blocks, o->policy, (unsigned long long)r->hit_blocks,
		100.0 * (double)r->hit_blocks / (double)(r->blocks + !r->blocks),
		(unsigned long long)r->hit_tokens, (unsigned long long)r->tokens,
		100.0 * (double)r->hit_tokens / (double)(r->tokens + !r->tokens));
	if (r->tiered)
		tiers_table(f, o, r);
	rc = t->unique_blocks > 0 ? picture_rates(f, t, o) : 0;
	if (rc == 0 && r->timed)
		picture_times(f, r);
	if (rc == 0)
		picture_spans(f, r);
	fputs("</html>\n", f);
	return rc;
}

int replay_html(const char *path, const char *name, const struct trace *t,
		const struct replay_opts *o, const struct replay_result *r)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&text, &bytes);
	int rc = f != NULL ? page(f, name, t, o, r) : -ENOMEM;

	if (f != NULL && fclose(f) != 0)
		rc = -ENOMEM;
	if (rc == 0)
		rc = cmd_value_write("replay", path, text, bytes);
	else
		cmd_error("replay", "no memory for the page");
	free(text);
	return rc < 0 ? CMD_FAILED : rc;
}
