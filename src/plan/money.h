/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What restored tokens cost and save. GPU time is shared out, not multiplied up: a phase that takes
 * part s of the time and becomes u times as fast makes the whole 1 / (1 - s (1 - 1/u)) as fast,
 * which is never more than 1 / (1 - s). Pure.
 */
#ifndef KVOF_PLAN_MONEY_H
#define KVOF_PLAN_MONEY_H

#include <kvof/plan.h>

/* How much more the GPUs do: 0.167 is 16.7 % more. share 0 to 1, speedup above 0. */
double plan_money_uplift(double share, double speedup);

struct plan_money_ask {
	double restored_tokens_per_day;
	double recompute_s_per_day;      /* of an instance, that these tokens would take */
	double prefill_s_per_day;        /* the same of all prompt tokens, those among them; 0: of
					  * no others */
	double load_s_per_day;           /* of an instance, that it waits for them instead; 0: it
					  * computes for others meanwhile */
	double instances, gpus;          /* gpus of one instance */
	double bought;                   /* price of what is bought */
	double running_per_day;
	double life_s;                   /* over which it is written off */
	double gpu_hour;                 /* price */
};

struct plan_money {
	double busy_share;               /* of all instances' time that prefill takes without a
					  * cache; above 1: they can't keep up */
	double share;                    /* of their time that these tokens take; at most 1 */
	double speedup;                  /* of that part; infinite: loads cost the GPU nothing */
	double gpu_hours_per_day;        /* saved, at most those that exist */
	double uplift;                   /* of what the GPUs do in a day, by time share */
	double cost_per_day;             /* bought / life + running */
	double saved_per_day;
	double per_million_tokens;       /* cost of restored ones; infinite: none are */
	double per_gpu_hour;             /* cost of one that is saved; infinite: none is */
	double payback_days;             /* infinite: never */
};

/* instances, gpus and life_s must be above 0. */
void plan_money(const struct plan_money_ask *ask, struct plan_money *out);

#endif
