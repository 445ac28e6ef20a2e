/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rated writes (TBW) count what a host sends to a drive, so the amplification here is the store's:
 * values carried forward and footers. What the drive does inside is in its rating; a log that
 * writes whole segments in order and discards them wears it less than the rating's workload.
 */
#include "plan/wear.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/must.h"

#define DAY_S 86400
#define LAST_DAY 376199.0                  /* 2999-12-31 */

void plan_wear(const struct plan_wear_ask *ask, struct plan_wear *out)
{
	double written;

	must(ask->drives > 0 && ask->capacity_bytes > 0 && ask->write_amplification >= 1);
	must(ask->stored_bytes_per_day >= 0 && ask->admission >= 0 && ask->admission <= 1);
	written = ask->stored_bytes_per_day * ask->admission;
#ifndef KVOF_PLANT_WEAR_UNAMPLIFIED
	written *= ask->write_amplification;
#endif
	*out = (struct plan_wear){.drive_bytes_per_day = written / ask->drives};
	out->drive_writes_per_day = out->drive_bytes_per_day / ask->capacity_bytes;
	out->days = ask->tbw_bytes > 0 && out->drive_bytes_per_day > 0 ?
		ask->tbw_bytes / out->drive_bytes_per_day : (double)INFINITY;
	if (ask->write_bytes_per_s > 0)
		out->write_share = out->drive_bytes_per_day / ask->write_bytes_per_s / DAY_S;
}

void plan_wear_date(double days_of_epoch, double days, char out[16])
{
	struct tm date;
	time_t at;

	if (!(days < LAST_DAY && days_of_epoch + days <= LAST_DAY)) {
		snprintf(out, 16, "%s", isinf(days) ? "never" : "after 2999");
		return;
	}
	at = (time_t)(days_of_epoch + days) * DAY_S;
	must(gmtime_r(&at, &date) != NULL && strftime(out, 16, "%Y-%m-%d", &date) > 0);
}
