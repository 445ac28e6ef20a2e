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
#define BEND_SHARE 0.05          /* of the longest prompt; less of it is noise */

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
	unsigned n = series_sorted(s, v), cut = n >= TRIM_FROM ? n / 4 : 0;

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

/* --- sums of terms, none of them negative -------------------- */

#define TERMS 3u

struct terms {
	unsigned count;
	double x[MEASURED_WAVES_MAX][TERMS], y[MEASURED_WAVES_MAX];
	double weight[MEASURED_WAVES_MAX];               /* 0: of relative errors */
};

/* Gauss over the rows and columns of `bits`; the others are 0. False: they are not independent. */
static bool terms_solve(double m[TERMS][TERMS + 1], unsigned bits, double out[TERMS])
{
	double scale = 0;

	for (unsigned i = 0; i < TERMS; i++)
		scale = bits >> i & 1 && m[i][i] > scale ? m[i][i] : scale;
	for (unsigned c = 0; c < TERMS; c++) {
		if ((bits >> c & 1) == 0)
			continue;
		/* a matrix of squares is positive: its diagonal needs no search for a pivot */
		if (m[c][c] < 1e-9 * scale)
			return false;
		for (unsigned r = 0; r < TERMS; r++) {
			double f = r == c || (bits >> r & 1) == 0 ? 0 : m[r][c] / m[c][c];

			for (unsigned k = 0; f != 0 && k <= TERMS; k++)
				m[r][k] -= f * m[c][k];
		}
	}
	for (unsigned i = 0; i < TERMS; i++)
		out[i] = bits >> i & 1 ? m[i][TERMS] / m[i][i] : 0;
	return true;
}

/* Of the choices of terms within `may`, all with `needed`, that which fits best with none below 0,
 * and with the needed one above. False: there is none. */
static bool terms_fit(const struct terms *t, unsigned may, unsigned needed, double out[TERMS])
{
	double best = -1;

	for (unsigned bits = 1; bits < 1u << TERMS; bits++) {
		double m[TERMS][TERMS + 1] = {{0}}, part[TERMS], error = 0;
		bool good = (bits & ~may) == 0 && (bits & needed) != 0;

		for (unsigned i = 0; good && i < t->count; i++) {
			double w = t->weight[i] > 0 ? t->weight[i] : 1 / (t->y[i] * t->y[i]);

			for (unsigned r = 0; r < TERMS; r++) {
				for (unsigned c = 0; c < TERMS; c++)
					m[r][c] += w * t->x[i][r] * t->x[i][c];
				m[r][TERMS] += w * t->x[i][r] * t->y[i];
			}
		}
		good = good && terms_solve(m, bits, part);
		for (unsigned i = 0; good && i < TERMS; i++)
			good = part[i] >= 0 && ((needed >> i & 1) == 0 || part[i] > 0);
		for (unsigned i = 0; good && i < t->count; i++) {
			double w = t->weight[i] > 0 ? t->weight[i] : 1 / (t->y[i] * t->y[i]);
			double off = t->y[i];

			for (unsigned k = 0; k < TERMS; k++)
				off -= part[k] * t->x[i][k];
			error += w * off * off;
		}
		if (!good || (best >= 0 && error >= best))
			continue;
		best = error;
		memcpy(out, part, sizeof(part));
	}
	return best >= 0;
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

/* fixed, session and the rate of all, once more through every wave: what one session draws is taken
 * off where that is its bound. */
static void waves_refine(const struct measured_wave *wave, unsigned count,
			 struct kvof_plan_arm *arm)
{
	struct terms t = {.count = 0};
	double part[TERMS], bytes = wave[0].bytes;

	for (unsigned i = 0; i < count; i++) {
		double n = wave[i].sessions, y = wave[i].last_s, x = n * wave[i].bytes / bytes;
		double own = arm->session_bytes_per_s;

		if (own > 0 && n / arm->bytes_per_s < 1 / own) {
			y -= wave[i].bytes / own;
			x = 0;
		}
		if (y <= 0)
			continue;
		t.x[t.count][0] = 1;
		t.x[t.count][1] = n;
		t.x[t.count][2] = x;
		t.y[t.count] = y;
		/* plans ask about many sessions and are drawn on to more: their waves count more */
		t.weight[t.count++] = n / (wave[i].last_s * wave[i].last_s);
	}
	if (!terms_fit(&t, 7, 4, part))
		return;
	arm->fixed_s = part[0];
	arm->session_s = part[1];
	arm->bytes_per_s = bytes / part[2];
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
	waves_refine(wave, count, arm);
	order_find(wave, count, arm);
	return 0;
}

/* --- prompts -------------------- */

/* fixed + T / rate + T^2 token2, T in units of the longest: fewer lengths than three know no bend,
 * and one that is lost in the noise is not drawn on to prompts that are ten times as long. */
int measured_prefill(const struct measured_prompt *prompt, unsigned count,
		     struct kvof_plan_arm *arm)
{
	struct terms t = {.count = count};
	double part[TERMS], longest;
	unsigned low = 0, high = 0;
	bool fits;

	must(count <= MEASURED_WAVES_MAX);
	for (unsigned i = 0; i < count; i++) {
		if (prompt[i].tokens <= 0 || prompt[i].first_s <= 0)
			return -EINVAL;
		low = prompt[i].tokens < prompt[low].tokens ? i : low;
		high = prompt[i].tokens > prompt[high].tokens ? i : high;
	}
	longest = prompt[high].tokens;
	if (longest < 1.01 * prompt[low].tokens || prompt[high].first_s <= prompt[low].first_s)
		return -EINVAL;
	for (unsigned i = 0; i < count; i++) {
		double x = prompt[i].tokens / longest;

		t.x[i][0] = 1;
		t.x[i][1] = x;
		t.x[i][2] = x * x;
		t.y[i] = prompt[i].first_s;
	}
	fits = count >= 3 && terms_fit(&t, 7, 2, part);
	if (!fits || part[2] < BEND_SHARE * (part[0] + part[1] + part[2]))
		fits = terms_fit(&t, 3, 2, part);
	if (!fits)
		return -EINVAL;
	arm->bytes_per_s = 0;
	arm->fixed_s = part[0];
	arm->tokens_per_s = longest / part[1];
	arm->token2_s = part[2] / (longest * longest);
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
