/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When flash that holds a cache is worn out: what is computed anew is written, so the misses, what
 * admission lets through and write amplification make the days a drive has. Pure.
 */
#ifndef KVOF_PLAN_WEAR_H
#define KVOF_PLAN_WEAR_H

#include <kvof/plan.h>

struct plan_wear_ask {
	double stored_bytes_per_day;     /* computed anew, of all hosts that write here */
	double admission;                /* part of it that is written, 0 to 1 */
	double write_amplification;      /* bytes on the drives for one that is stored, 1 or more */
	double drives, capacity_bytes;   /* how many, of one */
	double tbw_bytes;                /* rated for one drive; 0: not known */
	double write_bytes_per_s;        /* of one drive; 0: not known */
};

struct plan_wear {
	double drive_bytes_per_day;
	double drive_writes_per_day;     /* DWPD: of its capacity */
	double days;                     /* until rated writes are used up; infinite: never */
	double write_share;              /* of the time that a drive writes, 0 if not known */
};

/* What is asked must be positive where it divides. */
void plan_wear(const struct plan_wear_ask *ask, struct plan_wear *out);

/* "2031-04-07", so many days after the day that is days_of_epoch after 1970-01-01; "after 2999" and
 * "never" where no date says more. */
void plan_wear_date(double days_of_epoch, double days, char out[16]);

#endif
