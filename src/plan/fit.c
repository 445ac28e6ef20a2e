/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arms from measured rows. Three lines an arm, one after another, each of least relative squares:
 *
 *   last    = fixed + N' X / R                     gives fixed time and rate
 *   median  = fixed + (share N' + rank) X / R      gives share and rank, with the first line's rate
 *   wall    = last + d0 + d1 N                     gives the tail; wall is N output / tokens_per_s
 *
 * Two rows are met exactly by all three. More terms of the first line (time for each session, and
 * for pairs of tokens in recompute) are taken only where rows of several lengths need them: a line
 * that misses no row by 2 % stays as it is. No term is below 0. Where rows of one length ask for a
 * fixed time a little below, as waves do of which some sessions were never read, so many loads are
 * free and the line is kept; else it goes through the origin.
 *
 * Notes say what the rows did not tell and what was taken instead.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "plan/arm.h"
#include "plan/fit.h"
#include "plan/profile.h"

#define ALIKE 1e-3
#define GOOD_ENOUGH 0.02                 /* error of a row from which a term more is tried */

static bool alike(double a, double b)
{
	return fabs(a - b) <= ALIKE * fmax(fabs(a), fabs(b));
}

/* How many different values there are; counting ends at 4. */
static uint32_t distinct(const double *value, uint32_t count)
{
	double seen[4];
	uint32_t found = 0;

	for (uint32_t i = 0; i < count && found < ARRAY_COUNT(seen); i++) {
		bool known = false;

		for (uint32_t j = 0; j < found; j++)
			known |= alike(seen[j], value[i]);
		if (!known)
			seen[found++] = value[i];
	}
	return found;
}

/* Points that lines are made of: all but the odd ones. */
static uint32_t used_points(const struct fit_arm *arm, const struct fit_point **used)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < arm->count; i++)
		if (!arm->point[i].odd)
			used[count++] = &arm->point[i];
	return count;
}

struct work {
	const struct fit_point **used;   /* [count] */
	struct line_point *point;        /* [count] */
	double *value;                   /* [count] */
	uint32_t count;
	uint32_t lengths, loads;         /* how many different ones */
	uint32_t places;                 /* different N' X */
};

/* --- last ------------------------------------------------------------------------------------- */

static double worst_error(const struct line *line, const struct work *w)
{
	double worst = 0;

	for (uint32_t i = 0; i < w->count; i++)
		worst = fmax(worst, fabs(line_at(line, w->point[i].x) / w->point[i].y - 1));
	return worst;
}

/* The rate that rows give of the device, where all that have one agree; 0: none. */
static double rate_given(const struct work *w)
{
	double sum = 0;
	uint32_t have = 0;

	for (uint32_t i = 0; i < w->count; i++) {
		sum += w->used[i]->row->bytes_per_s;
		have += w->used[i]->row->bytes_per_s > 0;
	}
	return have > 0 ? sum / have : 0;
}

/* One place on the line: what the device did is the slope, or there is none but from the origin. */
static void last_of_one(const struct fit_arm *arm, const struct work *w, struct line *line)
{
	const char *what = w->count == 1 ? "one row" : "rows of one concurrency and length";
	const double rate = arm->in_bytes ? rate_given(w) : 0;
	double fixed = 0;

	if (rate > 0) {
		for (uint32_t i = 0; i < w->count; i++)
			fixed += (w->point[i].y - w->used[i]->loads * w->used[i]->x / rate) /
				 w->count;
	}
	if (rate > 0 && fixed >= 0) {
		*line = (struct line){.term = {[TERM_FIXED] = fixed, [TERM_RATE] = 1 / rate}};
		plan_fit_note(arm->out, "%s: bytes_per_s is the rate, and what is left of the time "
			      "is fixed", what);
		return;
	}
	must(line_fit(w->point, w->count, 1u << TERM_RATE, line));
	if (rate > 0)
		plan_fit_note(arm->out, "with bytes_per_s it would have taken longer: not used");
	plan_fit_note(arm->out, "%s: a line through the origin, fixed time and rate can't be told "
		      "apart", what);
}

/* A line that starts below 0: as if so many loads cost nothing, where that is at most half of the
 * smallest wave; *line then still starts below 0. */
static void below_zero(const struct fit_arm *arm, const struct work *w, struct line *line)
{
	struct kvof_plan_arm *out = &arm->out->arm;
	double fewest = INFINITY, loads;
	struct line whole;

	if (!line_fit(w->point, w->count, 1u << TERM_FIXED | 1u << TERM_RATE, &whole) ||
	    whole.term[TERM_FIXED] > -1e-9)
		return;
	for (uint32_t i = 0; i < w->count; i++)
		fewest = fmin(fewest, w->used[i]->loads);
	loads = -whole.term[TERM_FIXED] / (whole.term[TERM_RATE] * w->used[0]->x);
	if (w->lengths > 1 || loads > 0.5 * fewest) {
		plan_fit_note(arm->out, "the fixed time would be %.3f s: it is 0, and the line "
			      "goes through the origin", whole.term[TERM_FIXED]);
		return;
	}
	plan_fit_note(arm->out, "the fixed time would be %.3f s: it is 0, and %.2f loads of each "
		      "wave cost nothing (sessions in memory?)", whole.term[TERM_FIXED], loads);
	out->free_loads = loads;
	*line = whole;
}

static int last_fit(const struct fit_arm *arm, struct work *w, struct line *line,
		    struct kvof_plan_bad *bad)
{
	const unsigned rate = 1u << TERM_RATE, simple = rate | 1u << TERM_FIXED;
	const bool recompute = arm->out->arm.kind == KVOF_PLAN_RECOMPUTE;
	unsigned more = simple, terms;
	struct line better;

	for (uint32_t i = 0; i < w->count; i++)
		fit_line_point(w->used[i], &w->point[i]);
	if (w->places == 1) {
		last_of_one(arm, w, line);
		return 0;
	}
	terms = line_fit_positive(w->point, w->count, simple, rate, line);
	if (w->count >= 4 && w->lengths >= 2 && w->loads >= 2)
		more |= 1u << TERM_SESSION;
	if (w->count >= 4 && w->lengths >= 3 && recompute)
		more |= 1u << TERM_TOKEN2;
	if (more != simple && terms != 0 && worst_error(line, w) > GOOD_ENOUGH) {
		unsigned found = line_fit_positive(w->point, w->count, more, rate, &better);

		if (found != 0 && better.square < line->square) {
			*line = better;
			terms = found;
		}
	}
	if (terms == 0 || line->term[TERM_RATE] <= 0)
		return plan_bad(bad, "", "the rows of %s do not take longer with more sessions: no "
				"rate can be told", kvof_plan_arm_name(arm->out->arm.kind));
	if ((terms & 1u << TERM_FIXED) == 0)
		below_zero(arm, w, line);
	if ((terms & 1u << TERM_SESSION) != 0)
		plan_fit_note(arm->out, "rows of several lengths need a time for each session "
			      "besides the rate");
	return 0;
}

/* --- median ----------------------------------------------------------------------------------- */

/* What the median waits for: (p50 - fixed) over what one load takes, a line in N'. */
static void median_fit(const struct fit_arm *arm, struct work *w, const struct line *last)
{
	struct kvof_plan_arm *out = &arm->out->arm;
	const bool recompute = out->kind == KVOF_PLAN_RECOMPUTE;
	struct line line;
	uint32_t count = 0, places;

	out->median_share = recompute ? 0.5 : 1;
	out->median_rank = recompute ? 1 : 0;
	for (uint32_t i = 0; i < w->count; i++) {
		const struct fit_point *p = w->used[i];
		double each = fit_line_at(last, 1, p->x, p->row->tokens) - last->term[TERM_FIXED];

		if (p->p50_s <= 0 || p->loads <= 0)
			continue;
		w->point[count] = (struct line_point){.x = {p->loads, 1},
			.y = (p->p50_s - out->fixed_s) / each,
			.weight = each / p->p50_s};
		w->value[count++] = p->loads;
	}
	places = distinct(w->value, count);
	if (count == 0) {
		plan_fit_note(arm->out, recompute ? "no ttft_p50_s: the median is the "
			      "floor(N/2)+1st of N, one prompt after another" :
			      "no ttft_p50_s: the median is told as the last");
	} else if (places >= 2 && line_fit(w->point, count, 3, &line) && line.term[0] >= 0) {
		out->median_share = line.term[0];
		out->median_rank = line.term[1];
	} else if (recompute) {
		double sum = 0;

		for (uint32_t i = 0; i < count; i++)
			sum += w->point[i].y - 0.5 * w->value[i];
		out->median_rank = sum / count;
		plan_fit_note(arm->out, "the median is taken as half of the wave and %.2f prompts, "
			      "one after another", out->median_rank);
	} else if (line_fit(w->point, count, 1, &line) && line.term[0] > 0) {
		out->median_share = line.term[0];
	}
}

/* --- tail ------------------------------------------------------------------------------------- */

/* The output of a session is only assumed: never so few tokens that waves end before their last
 * first token. What is told is the same with any number. */
static double output_raise(const struct fit_arm *arm, const struct work *w,
			   const struct line *last)
{
	struct kvof_plan_arm *out = &arm->out->arm;
	double most = 1, scale;

	for (uint32_t i = 0; i < w->count; i++) {
		const struct fit_point *p = w->used[i];

		if (p->wall_s > 0)
			most = fmax(most, fit_line_at(last, p->loads, p->x, p->row->tokens) /
				    p->wall_s);
	}
	if (most <= 1 + GOOD_ENOUGH || most > 1e4)
		return 1;
	scale = ceil(out->output_tokens * most) / out->output_tokens;
	out->output_tokens = (uint32_t)lrint(out->output_tokens * scale);
	plan_fit_note(arm->out, "tokens_per_s of the rows ask for at least %u output tokens of a "
		      "session, which are assumed", out->output_tokens);
	return scale;
}

static void tail_fit(const struct fit_arm *arm, struct work *w, const struct line *last)
{
	struct kvof_plan_arm *out = &arm->out->arm;
	struct line line = {.square = 0};
	double scale = 1;
	uint32_t count = 0;

	out->output_tokens = arm->output_tokens;
	if (arm->output_assumed)
		scale = output_raise(arm, w, last);
	for (uint32_t i = 0; i < w->count; i++) {
		const struct fit_point *p = w->used[i];

		if (p->wall_s <= 0)
			continue;
		w->point[count] = (struct line_point){.x = {1, p->row->concurrency},
			.y = (scale * p->wall_s -
			      fit_line_at(last, p->loads, p->x, p->row->tokens)) *
			     out->output_tokens / (scale * p->output_tokens),
			.weight = 1 / p->wall_s};
		w->value[count++] = p->row->concurrency;
	}
	if (count == 0) {
		out->output_tokens = 0;
		plan_fit_note(arm->out, "no tokens_per_s: none is told");
		return;
	}
	if (distinct(w->value, count) < 2 || !line_fit(w->point, count, 3, &line)) {
		must(line_fit(w->point, count, 1, &line));
		line.term[0] = fmax(line.term[0], 0);
	}
	out->tail_fixed_s = line.term[0];
	out->tail_session_s = line.term[1];
	if (arm->output_assumed && scale <= 1)
		plan_fit_note(arm->out, "%u output tokens of a session are assumed; they part the "
			      "wave into last and tail and change no tokens/s",
			      out->output_tokens);
}

/* --- an arm ----------------------------------------------------------------------------------- */

static void range_of(const struct work *w, struct kvof_plan_fit *out)
{
	out->rows = w->count;
	out->concurrency_min = UINT32_MAX;
	for (uint32_t i = 0; i < w->count; i++) {
		const struct kvof_plan_row *row = w->used[i]->row;

		if (row->concurrency < out->concurrency_min)
			out->concurrency_min = row->concurrency;
		if (row->concurrency > out->concurrency_max)
			out->concurrency_max = row->concurrency;
		out->tokens_max = fmax(out->tokens_max, row->tokens);
		if (i == 0 || row->tokens < out->tokens_min)
			out->tokens_min = row->tokens;
	}
}

static void error_of(const struct work *w, struct kvof_plan_fit *out)
{
	struct kvof_plan_ttft ttft;
	struct kvof_plan_bad bad;

	for (uint32_t i = 0; i < w->count; i++) {
		const struct kvof_plan_row *row = w->used[i]->row;
		const struct kvof_plan_wave wave = {.tokens = row->tokens, .bytes = row->bytes,
			.sessions = row->concurrency, .resident = row->resident};

		if (kvof_plan_ttft(&out->arm, &wave, &ttft, &bad) != 0)
			continue;
		if (row->ttft_p50_s > 0)
			out->worst_row_error = fmax(out->worst_row_error,
				fabs(ttft.p50_s / row->ttft_p50_s - 1));
		if (row->ttft_last_s > 0)
			out->worst_row_error = fmax(out->worst_row_error,
				fabs(ttft.last_s / row->ttft_last_s - 1));
		if (row->tokens_per_s > 0 && ttft.tokens_per_s > 0)
			out->worst_row_error = fmax(out->worst_row_error,
				fabs(ttft.tokens_per_s / row->tokens_per_s - 1));
	}
}

static void count_places(struct work *w)
{
	for (uint32_t i = 0; i < w->count; i++)
		w->value[i] = w->used[i]->x;
	w->lengths = distinct(w->value, w->count);
	for (uint32_t i = 0; i < w->count; i++)
		w->value[i] = w->used[i]->loads;
	w->loads = distinct(w->value, w->count);
	for (uint32_t i = 0; i < w->count; i++)
		w->value[i] = w->used[i]->loads * w->used[i]->x;
	w->places = distinct(w->value, w->count);
}

static int arm_fit(const struct fit_arm *arm, struct work *w, struct kvof_plan_bad *bad)
{
	struct kvof_plan_arm *out = &arm->out->arm;
	struct line last;
	int rc;

	w->count = used_points(arm, w->used);
	count_places(w);
	rc = last_fit(arm, w, &last, bad);
	if (rc != 0)
		return rc;
	out->source = KVOF_PLAN_ROWS;
	snprintf(out->bottleneck, sizeof(out->bottleneck), "%s",
		 out->kind == KVOF_PLAN_RECOMPUTE ? "gpu" : "unknown");
#ifndef KVOF_PLANT_FIXED_TIME_LOST
	out->fixed_s = fmax(last.term[TERM_FIXED], 0);
#endif
	out->session_s = last.term[TERM_SESSION];
	out->token2_s = last.term[TERM_TOKEN2];
#ifdef KVOF_PLANT_RATE_IN_GIB
	last.term[TERM_RATE] *= 1e9 / 1073741824;
#endif
	*(arm->in_bytes ? &out->bytes_per_s : &out->tokens_per_s) = 1 / last.term[TERM_RATE];
	median_fit(arm, w, &last);
	tail_fit(arm, w, &last);
	range_of(w, arm->out);
	rc = plan_arm_check(out, bad);
	if (rc == 0)
		error_of(w, arm->out);
	return rc;
}

static int row_check(const struct kvof_plan_row *row, struct kvof_plan_bad *bad)
{
	const double figures[] = {row->tokens, row->bytes, row->ttft_p50_s, row->ttft_p90_s,
		row->ttft_last_s, row->tokens_per_s, row->bytes_per_s};
	char field[32];

	snprintf(field, sizeof(field), "line %u:", row->line);
	for (unsigned i = 0; i < ARRAY_COUNT(figures); i++)
		if (!(figures[i] >= 0) || figures[i] > 1e18)
			return plan_bad(bad, field, "a figure is below 0 or not finite");
	if ((unsigned)row->kind >= KVOF_PLAN_ARM_KINDS || row->concurrency == 0 ||
	    (row->tokens <= 0 && row->bytes <= 0))
		return plan_bad(bad, field, "has no arm, no sessions, or no tokens");
	if (row->ttft_p50_s <= 0 && row->ttft_p90_s <= 0 && row->ttft_last_s <= 0)
		return plan_bad(bad, field, "has no time");
	if (row->kind != KVOF_PLAN_RECOMPUTE && row->resident >= row->concurrency)
		return plan_bad(bad, field, "all its sessions are resident: nothing was read");
	return 0;
}

static int arms_make(const struct kvof_plan_row *rows, size_t count,
		     const struct kvof_plan_fit_ask *ask, struct fit_point *points,
		     struct fit_arm *arm, struct kvof_plan_fit_out *out, struct kvof_plan_bad *bad)
{
	for (unsigned kind = 0; kind < KVOF_PLAN_ARM_KINDS; kind++) {
		struct fit_arm *one = &arm[out->arms];
		int rc;

		*one = (struct fit_arm){.point = points, .out = &out->arm[out->arms]};
		one->out->arm.kind = (enum kvof_plan_arm_kind)kind;
		rc = fit_points(rows, count, (enum kvof_plan_arm_kind)kind, ask->output_tokens,
				one, bad);
		if (rc != 0)
			return rc;
		points += one->count;
		out->arms += one->count > 0;
	}
	return 0;
}

int kvof_plan_fit(const struct kvof_plan_row *rows, size_t count,
		  const struct kvof_plan_fit_ask *ask, struct kvof_plan_fit_out *out,
		  struct kvof_plan_bad *bad)
{
	struct fit_arm arm[KVOF_PLAN_ARM_KINDS + 1];
	struct fit_point *points;
	struct work w = {.count = 0};
	int rc = 0;

	memset(out, 0, sizeof(*out));
	if (count == 0 || count > KVOF_PLAN_ROWS_MAX)
		return plan_bad(bad, "", "%zu rows: there are none, or too many", count);
	for (size_t i = 0; rc == 0 && i < count; i++)
		rc = row_check(&rows[i], bad);
	if (rc != 0)
		return rc;
	points = calloc(count, sizeof(*points));
	w.used = calloc(count, sizeof(*w.used));
	w.point = calloc(count, sizeof(*w.point));
	w.value = calloc(count, sizeof(*w.value));
	if (points == NULL || w.used == NULL || w.point == NULL || w.value == NULL)
		rc = -ENOMEM;
	rc = rc != 0 ? rc : arms_make(rows, count, ask, points, arm, out, bad);
	if (rc == 0)
		fit_odd(arm, out->arms, out);
	for (uint32_t i = 0; rc == 0 && i < out->arms; i++) {
		for (uint32_t j = 0; ask->keep_odd && j < arm[i].count; j++)
			arm[i].point[j].odd = false;
		rc = arm_fit(&arm[i], &w, bad);
	}
	free(points);
	free(w.used);
	free(w.point);
	free(w.value);
	return rc;
}
