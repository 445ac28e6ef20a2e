/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows off the line. With three rows or more of an arm each is held to the line through the others.
 * One that lies clearly under it is a wave of which some sessions were not read: they were still in
 * memory from the wave before. How many is the whole number with which all load arms that have this
 * concurrency come nearest: what is in memory does not depend on what lies below it.
 *
 * Only the others tell what a line is, so a row is judged only where theirs is one: it starts at or
 * above 0, rises, and misses none of its own rows by half as much. And it is judged only between
 * the others, or where they are three: of three rows the first and the last also lie under a line
 * if the one between them is slow.
 *
 * Waves that are run again scatter by some percent, and a line prolonged past its rows by more. So
 * the gap has to be ODD_SURE times what rows that each scatter by ODD_NOISE would make of it: the
 * mean over the load arms that have this wave, which memory would have helped alike, grows with the
 * root of their number.
 */
#include <math.h>
#include <string.h>

#include "base/must.h"
#include "plan/fit.h"

#define ODD_SHARE 0.05                   /* nearer to the line than that, or than half a session,
					  * a row is not odd */
#define ODD_NOISE 0.02                   /* standard deviation of a wave that is run again */
#define ODD_SURE 3.0                     /* deviations */
#define ALIKE 1e-3                       /* lengths that differ by less are one */

struct judged {
	struct fit_point *point;
	struct line line;                /* of the others */
	double at_s;                     /* on it, with all sessions read */
	double short_share;              /* by which the row is under it */
	double deviations;               /* the same, in what noise alone makes of it */
	bool sound;                      /* the others lie on a line */
};

void fit_line_point(const struct fit_point *p, struct line_point *out)
{
	*out = (struct line_point){.y = p->last_s, .weight = 1 / p->last_s};
	out->x[TERM_FIXED] = 1;
	out->x[TERM_SESSION] = p->loads;
	out->x[TERM_RATE] = p->loads * p->x;
	out->x[TERM_TOKEN2] = p->loads * p->row->tokens * p->row->tokens;
}

double fit_line_at(const struct line *line, double loads, double x, double tokens)
{
	const double at[LINE_TERMS_MAX] = {[TERM_FIXED] = 1, [TERM_SESSION] = loads,
		[TERM_RATE] = loads * x, [TERM_TOKEN2] = loads * tokens * tokens};

	return line_at(line, at);
}

static bool alike(double a, double b)
{
	return fabs(a - b) <= ALIKE * fmax(a, b);
}

/* What noise of the row and of the others, as large a part of each, makes of the gap between the
 * row and a line of least relative squares. */
static double gap_noise_s(const struct line_point *point, uint32_t count, const struct fit_point *p)
{
	double weights = 0, middle = 0, spread = 0, off;

	for (uint32_t i = 0; i < count; i++) {
		double w = point[i].weight * point[i].weight;

		weights += w;
		middle += w * point[i].x[TERM_SESSION];
	}
	middle /= weights;
	for (uint32_t i = 0; i < count; i++) {
		off = point[i].weight * (point[i].x[TERM_SESSION] - middle);
		spread += off * off;
	}
	off = p->loads - middle;
	return ODD_NOISE * sqrt(p->last_s * p->last_s + 1 / weights + off * off / spread);
}

/* The line of the others: rows of the same length, at least two of them with other sessions. */
static void judge(const struct fit_arm *arm, struct fit_point *p, struct judged *out)
{
	struct line_point point[64];
	uint32_t count = 0, below = 0, above = 0;
	double worst = 0;

	*out = (struct judged){.point = p};
	for (uint32_t i = 0; i < arm->count && count < ARRAY_COUNT(point); i++) {
		const struct fit_point *q = &arm->point[i];

		if (q == p || q->odd || !alike(q->x, p->x) || alike(q->loads, p->loads))
			continue;
		fit_line_point(q, &point[count++]);
		below += q->loads < p->loads;
		above += q->loads > p->loads;
	}
	if ((below == 0 || above == 0) && count < 3)
		return;
	if (count < 2 || !line_fit(point, count, 1u << TERM_FIXED | 1u << TERM_RATE, &out->line))
		return;
	for (uint32_t i = 0; i < count; i++)
		worst = fmax(worst, fabs(line_at(&out->line, point[i].x) / point[i].y - 1));
	out->at_s = fit_line_at(&out->line, p->loads, p->x, 0);
	out->short_share = 1 - p->last_s / out->at_s;
	out->deviations = (out->at_s - p->last_s) / gap_noise_s(point, count, p);
	out->sound = out->line.term[TERM_FIXED] >= 0 && out->line.term[TERM_RATE] > 0 &&
		     worst < 0.5 * fabs(out->short_share);
}

/* The same wave in all load arms where it can be judged, the given one first. */
static uint32_t wave_judge(const struct fit_arm *arm, uint32_t arms, const struct judged *of,
			   struct judged same[KVOF_PLAN_ARM_KINDS])
{
	const struct fit_point *p = of->point;
	uint32_t count = 1;

	same[0] = *of;
	for (uint32_t a = 0; a < arms; a++)
		for (uint32_t i = 0; i < arm[a].count; i++) {
			struct fit_point *q = &arm[a].point[i];
			struct judged one;

			if (q == p || q->row->kind == p->row->kind || !alike(q->loads, p->loads) ||
			    !alike(q->x, p->x) || arm[a].out->arm.kind == KVOF_PLAN_RECOMPUTE)
				continue;
			judge(&arm[a], q, &one);
			if (one.sound && count < KVOF_PLAN_ARM_KINDS)
				same[count++] = one;
			break;
		}
	return count;
}

/* More than noise would make of it, in this arm and the others together. */
static bool is_sure(const struct fit_arm *arm, uint32_t arms, const struct judged *of)
{
	struct judged same[KVOF_PLAN_ARM_KINDS];
	uint32_t count = wave_judge(arm, arms, of, same);
	double sum = 0;

	for (uint32_t i = 0; i < count; i++)
		sum += same[i].deviations;
#ifdef KVOF_PLANT_NOISE_IS_ODD
	return true;
#endif
	return sum >= ODD_SURE * sqrt(count);
}

/* The row of the arm that is under the line of the others by most. */
static bool oddest(const struct fit_arm *arm, uint32_t arms, const struct fit_arm *in,
		   struct judged *out)
{
	out->point = NULL;
	for (uint32_t i = 0; i < in->count; i++) {
		struct judged one;

		if (in->point[i].odd || !(in->point[i].loads >= 2))
			continue;
		judge(in, &in->point[i], &one);
		if (!one.sound || one.short_share < ODD_SHARE ||
		    one.at_s - one.point->last_s < 0.5 * one.line.term[TERM_RATE] * one.point->x ||
		    !is_sure(arm, arms, &one))
			continue;
		if (out->point == NULL || one.short_share > out->short_share)
			*out = one;
	}
	return out->point != NULL;
}

/* Squares of relative errors if so many sessions of the judged waves were not read. */
static double unread_square(const struct judged *at, uint32_t count, double unread)
{
	double square = 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct fit_point *p = at[i].point;
		double s = fit_line_at(&at[i].line, p->loads - unread, p->x, 0) / p->last_s - 1;

		square += s * s;
	}
	return square;
}

/* Whole sessions that explain a wave best, over all load arms that have it. */
static uint32_t unread_find(const struct fit_arm *arm, uint32_t arms, const struct judged *odd)
{
	struct judged same[KVOF_PLAN_ARM_KINDS];
	uint32_t count, best = 1;

#ifdef KVOF_PLANT_ODD_EACH_FOR_ITSELF
	arms = 0;
#endif
	count = wave_judge(arm, arms, odd, same);
	for (uint32_t k = 2; k < odd->point->loads; k++)
		if (unread_square(same, count, k) < unread_square(same, count, best))
			best = k;
	return best;
}

void fit_odd(struct fit_arm *arm, uint32_t arms, struct kvof_plan_fit_out *out)
{
	struct judged odd;

	out->odd = 0;
	for (uint32_t a = 0; a < arms; a++) {
		if (arm[a].out->arm.kind == KVOF_PLAN_RECOMPUTE)
			continue;
		while (out->odd < KVOF_PLAN_NOTES_MAX && oddest(arm, arms, &arm[a], &odd)) {
			uint32_t unread = unread_find(arm, arms, &odd);
			const struct fit_point *p = odd.point;

			out->odd_row[out->odd++] = (struct kvof_plan_odd){.row = p->index,
				.unread = unread, .measured_s = p->last_s, .line_s = odd.at_s,
				.unread_s = fit_line_at(&odd.line, p->loads - unread, p->x, 0)};
			odd.point->odd = true;
		}
	}
}
