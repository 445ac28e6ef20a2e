/* SPDX-License-Identifier: Apache-2.0 */
/* Wear by hand: bytes a day, drive writes a day, days, and the date. */
#include "kt.h"

#include <math.h>

#include "base/must.h"
#include "plan/wear.h"

static void near(double got, double want)
{
	expect(fabs(got - want) <= 1e-9 * fabs(want));
}

/* 1 TB stored a day, 2 written for 1, on 4 drives of 7.68 TB rated for 14.016 PB (1 DWPD, 5 years):
 * 0.5 TB a drive and day; 0.5 / 7.68 = 0.0651 DWPD; 14016 / 0.5 = 28032 days. */
static const struct plan_wear_ask four = {
	.stored_bytes_per_day = 1e12, .admission = 1, .write_amplification = 2, .drives = 4,
	.capacity_bytes = 7.68e12, .tbw_bytes = 14.016e15, .write_bytes_per_s = 4e9};

TEST(write_amplification_is_part_of_what_wears_a_drive_out)
{
	struct plan_wear w;

	plan_wear(&four, &w);
	near(w.drive_bytes_per_day, 0.5e12);
	near(w.drive_writes_per_day, 0.5 / 7.68);
	near(w.days, 28032);
	near(w.write_share, 0.5e12 / 4e9 / 86400);
}

TEST(half_admitted_wears_half_and_nothing_stored_wears_nothing)
{
	struct plan_wear_ask ask = four;
	struct plan_wear w;

	ask.admission = 0.5;
	plan_wear(&ask, &w);
	near(w.days, 56064);
	ask.stored_bytes_per_day = 0;
	plan_wear(&ask, &w);
	near(w.drive_bytes_per_day, 0);
	expect(isinf(w.days));
}

TEST(a_drive_whose_rating_is_not_known_has_no_date)
{
	struct plan_wear_ask ask = four;
	struct plan_wear w;

	ask.tbw_bytes = 0;
	ask.write_bytes_per_s = 0;
	plan_wear(&ask, &w);
	expect(isinf(w.days));
	near(w.drive_writes_per_day, 0.5 / 7.68);
	expect(w.write_share == 0);
}

TEST(dates_follow_the_calendar)
{
	static const struct {
		double from, days;
		const char *want;
	} rows[] = {
		{0, 0, "1970-01-01"}, {0, 31, "1970-02-01"}, {11016, 0, "2000-02-29"},
		{11016, 1, "2000-03-01"}, {20787, 0, "2026-11-30"}, {20787, 32, "2027-01-01"},
		{20787.9, 365.9, "2027-12-01"}, {0, 47540, "2100-02-28"}, {0, 47541, "2100-03-01"},
		{0, 376199, "after 2999"}, {20787, 400000, "after 2999"},
		{20787, 360000, "after 2999"}, {20787, (double)INFINITY, "never"},
	};
	char text[16];

	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		plan_wear_date(rows[i].from, rows[i].days, text);
		expect_str(text, rows[i].want);
	}
}
