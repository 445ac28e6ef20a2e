/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rates are believed: a tier's as it measured itself, the engine's as it was told and then
 * corrected by what it reports. Arithmetic only; one owner.
 *
 * The engine's rate is a line over the position. What is told gives its shape; each report scales
 * the whole line towards what was measured, a new report counting for half: the scale follows the
 * position, so that a slope nobody told is seen as well.
 */
#ifndef KVOF_CACHE_SPEED_H
#define KVOF_CACHE_SPEED_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/place.h"
#include "cache/tier.h"

struct speed_engine {
	struct place_engine told;          /* 0: nothing */
	uint64_t scale;                    /* thousandths of told */
	uint32_t reports;
	bool guessed;                      /* told is what the first report said */
};

/* As kvof_restore_opts has it; a rate that is no number, or not positive, is nothing told. */
void speed_engine_tell(struct speed_engine *e, double tokens_per_s, double slope);
/* These tokens took ns. Nothing told: the first report is the shape, flat, and if the
 * second one is far from it, the faster of the two. */
void speed_engine_report(struct speed_engine *e, struct place_span tokens, uint64_t ns);
/* What is believed; both 0: nothing known. */
struct place_engine speed_engine_now(const struct speed_engine *e);
/* False: told at most, and may be off by a third. */
bool speed_engine_measured(const struct speed_engine *e);

/* What a tier has measured. Return: true, known; false: *out has a rate of 0, or nothing is known
 * of it yet. */
bool speed_tier_now(const struct tier_speed *s, struct place_tier *out);

#endif
