/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU-hour is saved only if the GPU had it: where prefill would take more time than there is,
 * each token has its part of what there is. What loading costs the GPU is taken off.
 */
#include "plan/money.h"

#include <math.h>

#include "base/must.h"

#define DAY_S 86400.0

double plan_money_uplift(double share, double speedup)
{
	must(share >= 0 && share <= 1 && speedup > 0);
#ifdef KVOF_PLANT_UPLIFT_LINEAR
	return share * (speedup - 1);
#endif
	if (isinf(speedup) && share >= 1)
		return (double)INFINITY;
	return 1 / (1 - share * (1 - 1 / speedup)) - 1;
}

static double ratio(double of, double by)
{
	return by > 0 ? of / by : (double)INFINITY;
}

void plan_money(const struct plan_money_ask *ask, struct plan_money *out)
{
	double have_s = ask->instances * DAY_S, spent_s, saved_s;
	double all_s = fmax(ask->prefill_s_per_day, ask->recompute_s_per_day);

	must(ask->instances > 0 && ask->gpus > 0 && ask->life_s > 0);
	*out = (struct plan_money){.busy_share = all_s / have_s};
	spent_s = ask->recompute_s_per_day * fmin(1, ratio(have_s, all_s));
	out->share = spent_s / have_s;
	saved_s = fmax(spent_s - ask->load_s_per_day * ratio(spent_s, ask->recompute_s_per_day),
		       0);
	if (spent_s <= 0)
		saved_s = 0;
	out->speedup = spent_s > saved_s ? spent_s / (spent_s - saved_s) : (double)INFINITY;
	out->gpu_hours_per_day = saved_s * ask->gpus / 3600;
	out->uplift = spent_s > 0 ? plan_money_uplift(out->share, out->speedup) : 0;
	out->cost_per_day = ask->bought / ask->life_s * DAY_S + ask->running_per_day;
	out->saved_per_day = out->gpu_hours_per_day * ask->gpu_hour;
	out->per_million_tokens = ratio(out->cost_per_day, ask->restored_tokens_per_day) * 1e6;
	out->per_gpu_hour = ratio(out->cost_per_day, out->gpu_hours_per_day);
	out->payback_days = out->saved_per_day > ask->running_per_day ?
		ask->bought / (out->saved_per_day - ask->running_per_day) : (double)INFINITY;
}
