/* SPDX-License-Identifier: Apache-2.0 */
/* Purpose: see measured.h. */
#include "plan/measured.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"

#define KNEE_SHARE 0.95
#define CEILING_SHARE 0.95       /* one session below this share of all: it has a ceiling */
#define TRIM_FROM 5u

/* --- repeats -------------------- */

bool measured_add(struct measured_series *s, double value)
{
	if (s->count == MEASURED_REPEATS_MAX)
		return false;
	s->value[s->count++] = value;
	return true;
}

static int value_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static unsigned series_sorted(const struct measured_series *s, double out[MEASURED_REPEATS_MAX])
{
	memcpy(out, s->value, s->count * sizeof(out[0]));
	qsort(out, s->count, sizeof(out[0]), value_order);
	return s->count;
}

double measured_median(const struct measured_series *s)
{
	double v[MEASURED_REPEATS_MAX];
	unsigned n = series_sorted(s, v);

	if (n == 0)
		return 0;
#ifdef KVOF_PLANT_BEST_FOR_MEDIAN
	return v[0];
#endif
	return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double measured_spread(const struct measured_series *s)
{
	double v[MEASURED_REPEATS_MAX], median = measured_median(s);
	unsigned n = series_sorted(s, v), cut = n >= TRIM_FROM;

	return n < 2 || median <= 0 ? 0 : (v[n - 1 - cut] - v[cut]) / median;
}

unsigned measured_knee(const struct measured_step *step, unsigned count)
{
	double best = 0;
	unsigned at = 0;

	must(count > 0);
	for (unsigned i = 0; i < count; i++)
		if (step[i].bytes_per_s > best)
			best = step[i].bytes_per_s;
#ifdef KVOF_PLANT_KNEE_IS_TOP
	return count - 1;
#endif
	while (at + 1 < count && step[at].bytes_per_s < KNEE_SHARE * best)
		at++;
	return at;
}

/* --- lines -------------------- */

struct line {
	double at_zero, slope;
};

/* Least squares of relative errors, neither part negative. False: there is none with a slope. */
static bool line_of(const double *x, const double *y, unsigned n, struct line *out)
{
	double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0, det;

	for (unsigned i = 0; i < n; i++) {
		double u = 1 / (y[i] * y[i]);

		w += u;
		wx += u * x[i];
		wy += u * y[i];
		wxx += u * x[i] * x[i];
		wxy += u * x[i] * y[i];
	}
	det = w * wxx - wx * wx;
	if (n < 2 || det <= 1e-9 * w * wxx)
		return false;
	out->slope = (w * wxy - wx * wy) / det;
	out->at_zero = (wy - out->slope * wx) / w;
	if (out->at_zero < 0)
		*out = (struct line){0, wxy / wxx};
	return out->slope > 0;
}

static uint32_t sessions_most(const struct measured_wave *wave, unsigned count)
{
	uint32_t most = 0;

	for (unsigned i = 0; i < count; i++)
		if (wave[i].sessions > most)
			most = wave[i].sessions;
	return most;
}

/* False: there are not two sizes. Where larger ones took no longer the line is one through zero. */
static bool sessions_line(const struct measured_wave *wave, unsigned count, uint32_t sessions,
			  struct line *out)
{
	double x[MEASURED_WAVES_MAX], y[MEASURED_WAVES_MAX], mean = 0;
	unsigned n = 0, sizes = 0;

	for (unsigned i = 0; i < count; i++) {
		if (wave[i].sessions != sessions || wave[i].last_s <= 0)
			continue;
		x[n] = wave[i].bytes;
		y[n] = wave[i].last_s;
		mean += y[n] / x[n];
		sizes += n > 0 && x[n] > 1.01 * x[0];
		sizes += n > 0 && x[n] < 0.99 * x[0];
		n++;
	}
	if (sizes == 0)
		return false;
	if (!line_of(x, y, n, out))
		*out = (struct line){0, mean / n};
	return true;
}

/* --- waves -------------------- */

/* For how many loads the median waited, as a line over the sessions of the wave. */
static void order_find(const struct measured_wave *wave, unsigned count, struct kvof_plan_arm *arm)
{
	double n = 0, sum = 0, waits = 0, sum2 = 0, mixed = 0, det;

	for (unsigned i = 0; i < count; i++) {
		double x = wave[i].sessions, y;

		if (wave[i].sessions < 2)
			continue;
		y = (wave[i].p50_s - arm->fixed_s) /
		    (arm->session_s + wave[i].bytes / arm->bytes_per_s);
#ifdef KVOF_PLANT_LAST_FOR_MEDIAN
		y = (wave[i].last_s - arm->fixed_s) /
		    (arm->session_s + wave[i].bytes / arm->bytes_per_s);
#endif
		y = y < 0 ? 0 : y > x ? x : y;
		n++;
		sum += x;
		waits += y;
		sum2 += x * x;
		mixed += x * y;
	}
	arm->median_share = 1;
	arm->median_rank = 0;
	if (n == 0)
		return;
	det = n * sum2 - sum * sum;
	arm->median_share = det > 0 ? (n * mixed - sum * waits) / det : (waits - n) / sum;
	if (arm->median_share < 0)
		arm->median_share = 0;
	if (arm->median_share > 1)
		arm->median_share = 1;
	arm->median_rank = (waits - arm->median_share * sum) / n;
	if (arm->median_rank >= 0)
		return;
	arm->median_rank = 0;
	arm->median_share = waits / sum;
}

int measured_arm_of_waves(const struct measured_wave *wave, unsigned count,
			  struct kvof_plan_arm *arm)
{
	uint32_t most = sessions_most(wave, count);
	struct line one, all;

	must(count <= MEASURED_WAVES_MAX);
	if (most < 2 || !sessions_line(wave, count, 1, &one) ||
	    !sessions_line(wave, count, most, &all))
		return -EINVAL;
	arm->session_s = (all.at_zero - one.at_zero) / (most - 1);
	if (arm->session_s < 0)
		arm->session_s = 0;
	if (arm->session_s > one.at_zero)
		arm->session_s = one.at_zero;
	arm->fixed_s = one.at_zero - arm->session_s;
	arm->bytes_per_s = most / all.slope;
	arm->session_bytes_per_s = 0;
	if (1 / one.slope < CEILING_SHARE * arm->bytes_per_s)
		arm->session_bytes_per_s = 1 / one.slope;
#ifdef KVOF_PLANT_CEILING_FORGOTTEN
	arm->session_bytes_per_s = 0;
#endif
	arm->tokens_per_s = 0;
	order_find(wave, count, arm);
	return 0;
}

/* --- prompts -------------------- */

/* Solves three normal equations; false: they are not independent. */
static bool solve3(double m[3][4])
{
	for (unsigned c = 0; c < 3; c++) {
		unsigned best = c;

		for (unsigned r = c + 1; r < 3; r++)
			if (m[r][c] * m[r][c] > m[best][c] * m[best][c])
				best = r;
		if (m[best][c] * m[best][c] < 1e-24)
			return false;
		for (unsigned k = 0; k < 4; k++) {
			double keep = m[c][k];

			m[c][k] = m[best][k];
			m[best][k] = keep;
		}
		for (unsigned r = 0; r < 3; r++) {
			double f = r == c ? 0 : m[r][c] / m[c][c];

			for (unsigned k = c; k < 4; k++)
				m[r][k] -= f * m[c][k];
		}
	}
	return true;
}

/* fixed + rate T + token2 T^2, T in units of the longest. False: no such curve without a negative
 * part. */
static bool curve_of(const struct measured_prompt *p, unsigned count, double longest,
		     double out[3])
{
	double m[3][4] = {{0}};

	memset(out, 0, 3 * sizeof(out[0]));
	for (unsigned i = 0; i < count; i++) {
		double t = p[i].tokens / longest, w = 1 / (p[i].first_s * p[i].first_s);
		const double x[3] = {1, t, t * t};

		for (unsigned r = 0; r < 3; r++) {
			for (unsigned c = 0; c < 3; c++)
				m[r][c] += w * x[r] * x[c];
			m[r][3] += w * x[r] * p[i].first_s;
		}
	}
	if (!solve3(m))
		return false;
	for (unsigned r = 0; r < 3; r++)
		out[r] = m[r][3] / m[r][r];
	return out[0] >= 0 && out[1] > 0 && out[2] >= 0;
}

/* The same without fixed cost: seconds a token are a line over tokens. */
static bool bend_of(const double *tokens, const double *first_s, unsigned count, struct line *out)
{
	double each[MEASURED_WAVES_MAX];

	for (unsigned i = 0; i < count; i++)
		each[i] = first_s[i] / tokens[i];
	return line_of(tokens, each, count, out) && out->at_zero > 0;
}

int measured_prefill(const struct measured_prompt *prompt, unsigned count,
		     struct kvof_plan_arm *arm)
{
	double x[MEASURED_WAVES_MAX], y[MEASURED_WAVES_MAX], longest = 0, curve[3] = {0};
	struct line line;

	must(count <= MEASURED_WAVES_MAX);
	for (unsigned i = 0; i < count; i++) {
		if (prompt[i].tokens <= 0 || prompt[i].first_s <= 0)
			return -EINVAL;
		x[i] = prompt[i].tokens;
		y[i] = prompt[i].first_s;
		if (x[i] > longest)
			longest = x[i];
	}
	arm->token2_s = 0;
	arm->fixed_s = 0;
	arm->bytes_per_s = 0;
	if (count >= 3 && curve_of(prompt, count, longest, curve)) {
		arm->fixed_s = curve[0];
		arm->tokens_per_s = longest / curve[1];
		arm->token2_s = curve[2] / (longest * longest);
		return 0;
	}
	if (count >= 3 && curve[0] < 0 && bend_of(x, y, count, &line)) {
		arm->tokens_per_s = 1 / line.at_zero;
		arm->token2_s = line.slope;
		return 0;
	}
	if (!line_of(x, y, count, &line))
		return -EINVAL;
	arm->fixed_s = line.at_zero;
	arm->tokens_per_s = 1 / line.slope;
	return 0;
}

double measured_pair(const struct kvof_plan_arm *arm, double alone_s, double first_s, double last_s,
		     double *median_share, double *median_rank)
{
	double span = last_s - alone_s, together = span > 0 ? (first_s - alone_s) / span : 1;

	together = together < 0 ? 0 : together > 1 ? 1 : together;
	*median_share = 0.5 + 0.5 * together;
	*median_rank = 1 - together;
	return last_s > arm->fixed_s ? 2 * (alone_s - arm->fixed_s) / (last_s - arm->fixed_s) : 1;
}
