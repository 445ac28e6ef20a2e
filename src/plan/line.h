/* SPDX-License-Identifier: Apache-2.0 */
/* Least squares of relative errors in a few terms, none of them below 0. */
#ifndef KVOF_PLAN_LINE_H
#define KVOF_PLAN_LINE_H

#include <stdbool.h>
#include <stdint.h>

#define LINE_TERMS_MAX 4u

struct line_point {
	double y;                        /* above 0 */
	double x[LINE_TERMS_MAX];        /* what each term is multiplied with */
	double weight;                   /* of y's error; 1 / y makes it relative */
};

struct line {
	double term[LINE_TERMS_MAX];
	double square;                   /* sum of squares of weighted errors */
};

/* y = sum of term[i] x[i] over the terms in the mask `terms`; the others are 0. False: the points
 * do not tell these terms apart. Terms may come out below 0. */
bool line_fit(const struct line_point *point, uint32_t count, unsigned terms, struct line *out);

/* The best of all subsets of `terms` that have `needed` and no term below 0; of equals the one with
 * the fewest terms. Return: the mask; 0: there is none. */
unsigned line_fit_positive(const struct line_point *point, uint32_t count, unsigned terms,
			   unsigned needed, struct line *out);

double line_at(const struct line *line, const double x[LINE_TERMS_MAX]);

#endif
