/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and checkpoints: how long a load, a switch and a save take, and what a GPU loses. */
#include <errno.h>
#include <math.h>

#include "base/must.h"
#include "plan/arm.h"

#define HOUR_S 3600.0

int kvof_plan_line_fit(const double bytes[2], const double seconds[2],
		       struct kvof_plan_line *out, struct kvof_plan_bad *bad)
{
	double more_bytes = bytes[1] - bytes[0], more_s = seconds[1] - seconds[0];

	*out = (struct kvof_plan_line){0};
	*bad = (struct kvof_plan_bad){0};
	for (int i = 0; i < 2; i++)
		if (!(bytes[i] > 0 && bytes[i] < PLAN_FIGURE_MAX && seconds[i] > 0 &&
		      seconds[i] < PLAN_FIGURE_MAX))
			return plan_bad(bad, "bytes", "or seconds are missing, or no figure");
	if (more_bytes == 0)
		return plan_bad(bad, "bytes", "of both points are the same: no line");
	if (!(more_s / more_bytes > 0))
		return plan_bad(bad, "seconds", "do not grow with bytes: no rate");
	out->bytes_per_s = more_bytes / more_s;
	out->fixed_s = seconds[0] - bytes[0] / out->bytes_per_s;
	return 0;
}

double kvof_plan_line_s(const struct kvof_plan_line *line, double bytes)
{
	return line->fixed_s + bytes / line->bytes_per_s;
}

double kvof_plan_switch_use(const struct kvof_plan_switch *s)
{
	return fmax(1 - s->per_hour * s->switch_s / HOUR_S, 0);
}

double kvof_plan_switch_s(double per_hour, double use)
{
	return per_hour > 0 ? (1 - use) * HOUR_S / per_hour : 0;
}

int kvof_plan_checkpoint_make(const struct kvof_plan_checkpoint_ask *ask,
			      struct kvof_plan_checkpoint *out, struct kvof_plan_bad *bad)
{
	*out = (struct kvof_plan_checkpoint){0};
	*bad = (struct kvof_plan_bad){0};
	if (!(ask->bytes > 0 && ask->bytes < PLAN_FIGURE_MAX))
		return plan_bad(bad, "bytes", "of a checkpoint are missing");
	if (!(ask->write_bytes_per_s > 0 && ask->write_bytes_per_s < PLAN_FIGURE_MAX))
		return plan_bad(bad, "write_bytes_per_s", "is missing");
	if (!(ask->fixed_s >= 0 && ask->copy_bytes_per_s >= 0 && ask->interval_s >= 0 &&
	      isfinite(ask->fixed_s + ask->copy_bytes_per_s + ask->interval_s)))
		return plan_bad(bad, "fixed_s", "or another figure is below 0");
	out->total_s = ask->fixed_s + ask->bytes / ask->write_bytes_per_s;
#ifdef KVOF_PLANT_CHECKPOINT_WITHOUT_FIXED
	out->total_s -= ask->fixed_s;
#endif
	out->blocked_s = out->total_s;
	out->least_interval_s = 0;
	if (ask->copy_bytes_per_s > 0) {
		/* A copy in host memory is written while training goes on; the next one waits
		 * for it. */
		out->blocked_s = ask->fixed_s + ask->bytes / ask->copy_bytes_per_s;
		out->total_s = out->blocked_s + ask->bytes / ask->write_bytes_per_s;
		out->least_interval_s = out->total_s - out->blocked_s;
	}
	if (ask->interval_s > 0)
		out->use = ask->interval_s /
			   (fmax(ask->interval_s, out->least_interval_s) + out->blocked_s);
	return 0;
}
