/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates of tiers and of the engine. The public options are in floating point; from here on all is
 * integers. Pure functions on their own struct.
 */
#include "cache/speed.h"

#include <math.h>

#include "base/bytes.h"

#define SPEED_ONE 1000u                    /* thousandths */
#define SPEED_SCALE_MAX (SPEED_ONE * 1000 * 1000)
#define SPEED_STEP_MAX 4u                  /* times: one report against those before it */
#define SPEED_PS_MAX 1e15                  /* a token in a quarter of an hour */

static uint64_t picoseconds(double ps)
{
	if (isnan(ps) || ps <= 0)
		return 0;
	return ps < 1 ? 1 : ps > SPEED_PS_MAX ? (uint64_t)SPEED_PS_MAX : (uint64_t)ps;
}

void speed_engine_tell(struct speed_engine *e, double tokens_per_s, double slope)
{
	uint64_t token_ps = picoseconds(1e12 / tokens_per_s);

	*e = (struct speed_engine){.scale = SPEED_ONE};
	if (!isfinite(tokens_per_s) || tokens_per_s <= 0)
		return;
	e->told.token_ps = token_ps > 0 ? token_ps : 1;
	e->told.slope_ps = picoseconds(1e12 / tokens_per_s * slope);
}

static bool told(const struct speed_engine *e)
{
	return e->told.token_ps > 0 || e->told.slope_ps > 0;
}

/* A thread that was stopped for a minute is no engine that is slow: believed, all would be loaded
 * from then on, and no report would ever come to correct it. */
static uint64_t step_bounded(uint64_t scale, uint64_t from)
{
	scale = bytes_min(scale, from * SPEED_STEP_MAX);
	return scale < from / SPEED_STEP_MAX ? from / SPEED_STEP_MAX : scale;
}

static uint64_t scale_after(const struct speed_engine *e, uint64_t scale)
{
	uint64_t near = step_bounded(scale, e->scale);

	if (e->guessed && e->reports == 0)
		return scale;              /* it is what is told */
	if (e->reports == 0)
		return near;
	if (e->guessed && e->reports == 1 && near != scale)
		return e->scale;           /* the first one was faster, see below */
	return (e->scale + near) / 2;
}

/* The first report was all that was known, and the second one is much faster. */
static bool guessed_slow(const struct speed_engine *e, struct place_span tokens, uint64_t ns)
{
	return e->guessed && e->reports == 1 &&
	       ns < place_engine_ns(&e->told, tokens) / SPEED_STEP_MAX;
}

void speed_engine_report(struct speed_engine *e, struct place_span tokens, uint64_t ns)
{
	uint64_t expected, scale;
	double ratio;

	if (tokens.count == 0 || ns == 0 || ns >= PLACE_NEVER_NS)
		return;
	if (!told(e) || guessed_slow(e, tokens, ns)) {
		uint32_t reports = e->reports;

		speed_engine_tell(e, (double)tokens.count * 1e9 / (double)ns, 0);
		e->guessed = true;
		e->reports = reports;
	}
	expected = place_engine_ns(&e->told, tokens);
	if (expected == 0)
		return;
	ratio = (double)ns / (double)expected * SPEED_ONE;
	scale = ratio < 1 ? 1 : ratio < SPEED_SCALE_MAX ? (uint64_t)ratio : SPEED_SCALE_MAX;
	e->scale = scale_after(e, scale);
	e->reports += e->reports < UINT32_MAX;
}

struct place_engine speed_engine_now(const struct speed_engine *e)
{
	struct place_engine now = e->told;

	if (e->reports > 0) {
		now.token_ps = now.token_ps * e->scale / SPEED_ONE;
		now.slope_ps = now.slope_ps * e->scale / SPEED_ONE;
		if (now.token_ps == 0 && now.slope_ps == 0)
			now.token_ps = 1;
	}
	return now;
}

bool speed_engine_measured(const struct speed_engine *e)
{
	return e->reports > 0;
}

bool speed_tier_now(const struct tier_speed *s, struct place_tier *out)
{
	*out = (struct place_tier){s->latency_ns, 0, s->queued_bytes};
	if (!s->live)
		return true;
	out->bytes_per_s = s->bytes_per_s;
	return s->samples > 0 && s->bytes_per_s > 0;
}
