/* SPDX-License-Identifier: Apache-2.0 */
/* Purpose: see measured.h. */
#include "plan/measured.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "plan/line.h"

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

/* --- waves -------------------- */

static uint32_t sessions_most(const struct measured_wave *wave, unsigned count)
{
	uint32_t most = 0;

	for (unsigned i = 0; i < count; i++)
		if (wave[i].sessions > most)
			most = wave[i].sessions;
	return most;
}

enum load_term { LOAD_FIXED, LOAD_BYTES };

/* Last over the bytes of a session. False: there are not two sizes. Where larger ones took no
 * longer the line is one through zero. */
static bool sessions_line(const struct measured_wave *wave, unsigned count, uint32_t sessions,
			  struct line *out)
{
	struct line_point point[MEASURED_WAVES_MAX];
	unsigned n = 0, sizes = 0;

	for (unsigned i = 0; i < count; i++) {
		if (wave[i].sessions != sessions || wave[i].last_s <= 0)
			continue;
		point[n] = (struct line_point){.y = wave[i].last_s, .weight = 1 / wave[i].last_s,
			.x = {[LOAD_FIXED] = 1, [LOAD_BYTES] = wave[i].bytes}};
		sizes += fabs(wave[i].bytes / point[0].x[LOAD_BYTES] - 1) > 0.01;
		n++;
	}
	return sizes > 0 && line_fit_positive(point, n, 1u << LOAD_FIXED | 1u << LOAD_BYTES,
					      1u << LOAD_BYTES, out) != 0;
}

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
	enum { FIXED, SESSION, BYTES, TERMS };
	struct line_point point[MEASURED_WAVES_MAX];
	double bytes = wave[0].bytes;
	struct line line;
	unsigned used = 0;

	for (unsigned i = 0; i < count; i++) {
		double n = wave[i].sessions, y = wave[i].last_s, x = n * wave[i].bytes / bytes;
		double own = arm->session_bytes_per_s;

		if (own > 0 && n / arm->bytes_per_s < 1 / own) {
			y -= wave[i].bytes / own;
			x = 0;
		}
		if (y <= 0)
			continue;
		/* plans ask about many sessions and are drawn on to more: their waves count more */
		point[used++] = (struct line_point){.y = y, .weight = sqrt(n) / wave[i].last_s,
			.x = {[FIXED] = 1, [SESSION] = n, [BYTES] = x}};
	}
	if (line_fit_positive(point, used, (1u << TERMS) - 1, 1u << BYTES, &line) == 0 ||
	    line.term[BYTES] <= 0)
		return;
	arm->fixed_s = line.term[FIXED];
	arm->session_s = line.term[SESSION];
	arm->bytes_per_s = bytes / line.term[BYTES];
}

int measured_arm_of_waves(const struct measured_wave *wave, unsigned count,
			  struct kvof_plan_arm *arm)
{
	uint32_t most = sessions_most(wave, count);
	struct line one, all;
	double one_s, slope;

	must(count <= MEASURED_WAVES_MAX);
	if (most < 2 || !sessions_line(wave, count, 1, &one) ||
	    !sessions_line(wave, count, most, &all))
		return -EINVAL;
	one_s = one.term[LOAD_FIXED];
	slope = one.term[LOAD_BYTES];
	arm->session_s = fmin(fmax((all.term[LOAD_FIXED] - one_s) / (most - 1), 0), one_s);
	arm->fixed_s = one_s - arm->session_s;
	arm->bytes_per_s = most / all.term[LOAD_BYTES];
	arm->session_bytes_per_s = 0;
	if (1 / slope < CEILING_SHARE * arm->bytes_per_s)
		arm->session_bytes_per_s = 1 / slope;
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
	enum { FIXED, RATE, BEND };
	const unsigned straight = 1u << FIXED | 1u << RATE;
	struct line_point point[MEASURED_WAVES_MAX];
	unsigned low = 0, high = 0, terms = 0;
	struct line line;
	double longest;

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

		point[i] = (struct line_point){.y = prompt[i].first_s,
			.x = {[FIXED] = 1, [RATE] = x, [BEND] = x * x},
			.weight = 1 / prompt[i].first_s};
	}
	if (count >= 3)
		terms = line_fit_positive(point, count, straight | 1u << BEND, 1u << RATE, &line);
	if (terms == 0 || line.term[BEND] < BEND_SHARE * (line.term[FIXED] + line.term[RATE] +
							  line.term[BEND]))
		terms = line_fit_positive(point, count, straight, 1u << RATE, &line);
	if (terms == 0 || line.term[RATE] <= 0)
		return -EINVAL;
	arm->bytes_per_s = 0;
	arm->fixed_s = line.term[FIXED];
	arm->tokens_per_s = longest / line.term[RATE];
	arm->token2_s = line.term[BEND] / (longest * longest);
	return 0;
}

double measured_pair(const struct kvof_plan_arm *arm, double alone_s, double first_s, double last_s,
		     double *median_share, double *median_rank)
{
	double span = last_s - alone_s, together = span > 0 ? (first_s - alone_s) / span : 1;

	together = together < 0 ? 0 : together > 1 ? 1 : together;
	*median_share = 0.5 + 0.5 * together;
	*median_rank = 1 - together;
	if (last_s <= alone_s)           /* neither waited for the other at all */
		return 2;
	return alone_s > arm->fixed_s ? 2 * (alone_s - arm->fixed_s) / (last_s - arm->fixed_s) : 1;
}
