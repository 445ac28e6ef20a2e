/* SPDX-License-Identifier: Apache-2.0 */
/* Money by hand. */
#include "kt.h"

#include <math.h>

#include "plan/money.h"

static void near(double got, double want)
{
	expect(fabs(got - want) <= 1e-9 * fabs(want));
}

TEST(half_the_time_forty_percent_faster_is_a_sixth_more_and_not_a_fifth)
{
	double uplift = plan_money_uplift(0.5, 1.4);

	near(uplift, 1 / (1 - 0.5 * (1 - 1 / 1.4)) - 1);
	expect(fabs(uplift - 0.167) < 0.0005);       /* 16.7 %; 0.5 x 0.4 would be 20 % */
}

TEST(uplift_is_nothing_of_no_share_all_of_a_whole_and_never_more_than_the_rest_allows)
{
	near(plan_money_uplift(0, 5) + 1, 1);
	near(plan_money_uplift(1, 1.4), 0.4);
	near(plan_money_uplift(0.5, (double)INFINITY), 1);
	near(plan_money_uplift(0.25, 1) + 1, 1);
	expect(plan_money_uplift(0.3, 0.5) < 0);
	expect(isinf(plan_money_uplift(1, (double)INFINITY)));
}

/* 8 GPUs, one instance; 43,200,000 restored tokens a day that take 0.25 ms each: 10,800 s, an
 * eighth of the day, 24 GPU-hours. 7,200 bought for 1,000 days, 0.8 a day to run: 8 a day. */
static const struct plan_money_ask eighth = {
	.restored_tokens_per_day = 43.2e6, .recompute_s_per_day = 10800, .instances = 1, .gpus = 8,
	.bought = 7200, .running_per_day = 0.8, .life_s = 1000 * 86400.0, .gpu_hour = 2};

TEST(cost_of_a_token_of_a_gpu_hour_and_payback_are_as_by_hand)
{
	struct plan_money m;

	plan_money(&eighth, &m);
	near(m.busy_share, 0.125);
	near(m.gpu_hours_per_day, 24);
	near(m.uplift, 1 / 0.875 - 1);
	near(m.cost_per_day, 8);
	near(m.saved_per_day, 48);
	near(m.per_million_tokens, 8 / 43.2);
	near(m.per_gpu_hour, 8.0 / 24);
	near(m.payback_days, 7200 / 47.2);
}

TEST(gpu_time_that_is_not_there_is_not_saved)
{
	struct plan_money_ask ask = eighth;
	struct plan_money m;

	ask.recompute_s_per_day = 4 * 86400.0;       /* of one instance: it can't keep up */
	plan_money(&ask, &m);
	near(m.busy_share, 4);
	near(m.gpu_hours_per_day, 8 * 24);
	ask.recompute_s_per_day = 86400;             /* half of what prefill would take in all */
	ask.prefill_s_per_day = 2 * 86400.0;
	plan_money(&ask, &m);
	near(m.busy_share, 2);
	near(m.share, 0.5);
	near(m.gpu_hours_per_day, 8 * 12);
	near(m.uplift, 1);
}

TEST(waiting_for_loads_is_taken_off)
{
	struct plan_money_ask ask = eighth;
	struct plan_money m;

	ask.load_s_per_day = 2700;                   /* four times as fast */
	plan_money(&ask, &m);
	near(m.gpu_hours_per_day, 18);
	near(m.uplift, plan_money_uplift(0.125, 4));
	ask.load_s_per_day = 20000;                  /* slower than recompute: nothing is saved */
	plan_money(&ask, &m);
	expect(m.gpu_hours_per_day == 0 && m.uplift == 0);
	expect(isinf(m.per_gpu_hour) && isinf(m.payback_days));
}

TEST(what_saves_less_than_it_takes_to_run_never_pays)
{
	struct plan_money_ask ask = eighth;
	struct plan_money m;

	ask.gpu_hour = 0.01;
	plan_money(&ask, &m);
	expect(isinf(m.payback_days));
	ask.restored_tokens_per_day = 0;
	ask.recompute_s_per_day = 0;
	plan_money(&ask, &m);
	expect(isinf(m.per_million_tokens) && m.gpu_hours_per_day == 0 && m.uplift == 0);
}
