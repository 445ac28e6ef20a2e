/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of an arm as points, and what stands in for a last first token that nobody wrote down:
 *
 *   loads share the way and end close together: the median, times what last is of it in rows of the
 *     arm that have both;
 *   recompute goes one after another: the median is the floor(N/2)+1st of N, p90 the
 *     floor(0.9 N)+1st (as a[int(n q)] counts), so last follows; the end of the wave is nearer
 *     where it is known and does not contradict.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "plan/arm.h"
#include "plan/fit.h"
#include "plan/profile.h"

#define STAND_IN_NOTES 4u

/* What last is of the median, on average over rows that have both; 0: none has. */
static double last_of_median(const struct fit_arm *arm)
{
	double sum = 0;
	uint32_t both = 0;

	for (uint32_t i = 0; i < arm->count; i++) {
		const struct kvof_plan_row *row = arm->point[i].row;

		if (row->ttft_last_s <= 0 || row->ttft_p50_s <= 0)
			continue;
		sum += row->ttft_last_s / row->ttft_p50_s;
		both++;
	}
	return both > 0 ? sum / both : 0;
}

/* A note for a row; notes are few, so of many such rows the first ones have one. */
__attribute__((format(printf, 2, 3)))
static void stand_in_note(struct fit_arm *arm, const char *format, ...)
{
	char text[KVOF_PLAN_NOTE_BYTES];
	va_list args;

	if (arm->stood_in++ >= STAND_IN_NOTES)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	plan_fit_note(arm->out, "%s", text);
}

static void load_last(struct fit_arm *arm, struct fit_point *p, double ratio)
{
	const struct kvof_plan_row *row = p->row;

	if (row->ttft_p90_s > 0 && (ratio <= 0 || row->ttft_p50_s <= 0)) {
		p->last_s = row->ttft_p90_s;
		stand_in_note(arm, "line %u has no ttft_last_s: ttft_p90_s stands in for it",
			      row->line);
	} else if (ratio > 0) {
		p->last_s = fmax(row->ttft_p50_s * ratio, row->ttft_p90_s);
		stand_in_note(arm, "line %u has no ttft_last_s: %.3f times the median stands in "
			      "for it, as in the rows that have both", row->line, ratio);
	} else {
		p->last_s = row->ttft_p50_s;
		stand_in_note(arm, "line %u has no ttft_last_s, and no row tells what it is of "
			      "the median: ttft_p50_s stands in for it", row->line);
	}
}

static void recompute_last(struct fit_arm *arm, struct fit_point *p)
{
	const struct kvof_plan_row *row = p->row;
	const double n = row->concurrency;
	const double rank50 = fmin(floor(0.5 * n) + 1, n), rank90 = fmin(floor(0.9 * n) + 1, n);
	const char *from;

	if (row->ttft_p50_s > 0 && row->ttft_p90_s > 0 && rank90 > rank50) {
		double each = (row->ttft_p90_s - row->ttft_p50_s) / (rank90 - rank50);

		p->last_s = row->ttft_p90_s + (n - rank90) * each;
		from = "the median and p90, one prompt after another";
	} else if (row->ttft_p90_s > 0) {
		p->last_s = row->ttft_p90_s * n / rank90;
		from = "p90, one prompt after another";
	} else {
		p->last_s = row->ttft_p50_s * n / rank50;
		from = "the median, one prompt after another";
		if (p->wall_s > 0.6 * p->last_s && p->wall_s < 1.5 * p->last_s &&
		    p->wall_s >= row->ttft_p50_s) {
			p->last_s = p->wall_s;
			from = "the end of the wave that tokens_per_s tells";
		}
	}
	stand_in_note(arm, "line %u has no ttft_last_s: %.2f s stands in for it, from %s",
		      row->line, p->last_s, from);
}

static int unit_choose(struct fit_arm *arm, enum kvof_plan_arm_kind kind,
		       struct kvof_plan_bad *bad)
{
	uint32_t bytes = 0, tokens = 0;

	for (uint32_t i = 0; i < arm->count; i++) {
		bytes += arm->point[i].row->bytes > 0;
		tokens += arm->point[i].row->tokens > 0;
	}
	arm->in_bytes = kind != KVOF_PLAN_RECOMPUTE && bytes == arm->count;
	if (arm->in_bytes || tokens == arm->count)
		return 0;
	for (uint32_t i = 0; i < arm->count; i++)
		if (arm->point[i].row->tokens <= 0) {
			char field[32];

			snprintf(field, sizeof(field), "line %u, tokens:", arm->point[i].row->line);
			return plan_bad(bad, field, "is empty, and the other rows of %s do not all "
					"have bytes", kvof_plan_arm_name(kind));
		}
	return 0;
}

int fit_points(const struct kvof_plan_row *rows, size_t count, enum kvof_plan_arm_kind kind,
	       uint32_t output_tokens, struct fit_arm *arm, struct kvof_plan_bad *bad)
{
	double ratio;
	int rc;

	arm->count = 0;
	arm->output_tokens = output_tokens;
	for (size_t i = 0; i < count; i++) {
		if (rows[i].kind != kind)
			continue;
		arm->point[arm->count++] = (struct fit_point){.row = &rows[i],
			.index = (uint32_t)i, .p50_s = rows[i].ttft_p50_s};
		if (arm->output_tokens == 0)
			arm->output_tokens = rows[i].output_tokens;
	}
	arm->output_assumed = arm->output_tokens == 0;
	if (arm->output_assumed)
		arm->output_tokens = FIT_OUTPUT_TOKENS;
	rc = unit_choose(arm, kind, bad);
	if (rc != 0 || arm->count == 0)
		return rc;
	ratio = last_of_median(arm);
	for (uint32_t i = 0; i < arm->count; i++) {
		struct fit_point *p = &arm->point[i];
		const struct kvof_plan_row *row = p->row;

		p->output_tokens = row->output_tokens > 0 ? row->output_tokens : arm->output_tokens;
		p->loads = row->concurrency;
		if (kind != KVOF_PLAN_RECOMPUTE)
			p->loads -= row->resident;
		p->x = arm->in_bytes ? row->bytes : row->tokens;
		if (row->tokens_per_s > 0)
			p->wall_s = (double)row->concurrency * p->output_tokens / row->tokens_per_s;
		p->last_s = row->ttft_last_s;
		p->last_is_measured = row->ttft_last_s > 0;
		if (!p->last_is_measured && kind == KVOF_PLAN_RECOMPUTE)
			recompute_last(arm, p);
		else if (!p->last_is_measured)
			load_last(arm, p, ratio);
	}
	if (arm->stood_in > STAND_IN_NOTES)
		plan_fit_note(arm->out, "and so it is in %u rows more",
			      arm->stood_in - STAND_IN_NOTES);
	return 0;
}
