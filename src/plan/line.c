/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Normal equations, columns scaled to 1 and solved with pivots; at most four terms, so every subset
 * of them is tried and no descent is needed.
 */
#include <math.h>
#include <string.h>

#include "base/must.h"
#include "plan/line.h"

#define PIVOT_MIN 1e-10                  /* of columns scaled to 1: below it they are alike */
#define GAIN_MIN 1e-12                   /* of a term more, in squares of relative errors */

struct system {
	double row[LINE_TERMS_MAX][LINE_TERMS_MAX + 1];
	unsigned size;
};

double line_at(const struct line *line, const double x[LINE_TERMS_MAX])
{
	double y = 0;

	for (unsigned i = 0; i < LINE_TERMS_MAX; i++)
		y += line->term[i] * x[i];
	return y;
}

static bool system_solve(struct system *s, double out[LINE_TERMS_MAX])
{
	for (unsigned i = 0; i < s->size; i++) {
		unsigned best = i;

		for (unsigned j = i + 1; j < s->size; j++)
			if (fabs(s->row[j][i]) > fabs(s->row[best][i]))
				best = j;
		if (fabs(s->row[best][i]) < PIVOT_MIN)
			return false;
		for (unsigned k = 0; k <= s->size; k++) {
			double keep = s->row[i][k];

			s->row[i][k] = s->row[best][k];
			s->row[best][k] = keep;
		}
		for (unsigned j = 0; j < s->size; j++) {
			double factor = s->row[j][i] / s->row[i][i];

			for (unsigned k = i; j != i && k <= s->size; k++)
				s->row[j][k] -= factor * s->row[i][k];
		}
	}
	for (unsigned i = 0; i < s->size; i++)
		out[i] = s->row[i][s->size] / s->row[i][i];
	return true;
}

/* Length of each column, so that terms of any unit weigh alike. */
static bool scales_of(const struct line_point *point, uint32_t count, const unsigned *term,
		      unsigned size, double scale[LINE_TERMS_MAX])
{
	for (unsigned i = 0; i < size; i++) {
		scale[i] = 0;
		for (uint32_t p = 0; p < count; p++) {
			double v = point[p].weight * point[p].x[term[i]];

			scale[i] += v * v;
		}
		scale[i] = sqrt(scale[i]);
		if (!(scale[i] > 0) || !isfinite(scale[i]))
			return false;
	}
	return true;
}

bool line_fit(const struct line_point *point, uint32_t count, unsigned terms, struct line *out)
{
	double scale[LINE_TERMS_MAX] = {0}, solved[LINE_TERMS_MAX] = {0};
	unsigned term[LINE_TERMS_MAX] = {0};
	struct system s = {.size = 0};

	*out = (struct line){.square = 0};
	for (unsigned i = 0; i < LINE_TERMS_MAX; i++)
		if ((terms & 1u << i) != 0)
			term[s.size++] = i;
	if (s.size == 0 || s.size > count || !scales_of(point, count, term, s.size, scale))
		return false;
	for (uint32_t p = 0; p < count; p++)
		for (unsigned i = 0; i < s.size; i++) {
			double v = point[p].weight * point[p].x[term[i]] / scale[i];

			for (unsigned j = 0; j < s.size; j++)
				s.row[i][j] += v * point[p].weight * point[p].x[term[j]] / scale[j];
			s.row[i][s.size] += v * point[p].weight * point[p].y;
		}
	if (!system_solve(&s, solved))
		return false;
	for (unsigned i = 0; i < s.size; i++)
		out->term[term[i]] = solved[i] / scale[i];
	for (uint32_t p = 0; p < count; p++) {
		double error = point[p].weight * (line_at(out, point[p].x) - point[p].y);

		out->square += error * error;
	}
	return isfinite(out->square);
}

unsigned line_fit_positive(const struct line_point *point, uint32_t count, unsigned terms,
			   unsigned needed, struct line *out)
{
	unsigned found = 0;

	/* In the order of their number: with a term more, the gain must be worth it. */
	for (int size = 1; size <= (int)LINE_TERMS_MAX; size++)
		for (unsigned mask = 1; mask < 1u << LINE_TERMS_MAX; mask++) {
			struct line line;
			bool good;

			if (__builtin_popcount(mask) != size || (mask & ~terms) != 0 ||
			    (mask & needed) != needed || !line_fit(point, count, mask, &line))
				continue;
			good = true;
			for (unsigned i = 0; i < LINE_TERMS_MAX; i++)
				good &= line.term[i] >= 0;
			if (!good || (found != 0 && line.square + GAIN_MIN > out->square))
				continue;
			*out = line;
			found = mask;
		}
	return found;
}
