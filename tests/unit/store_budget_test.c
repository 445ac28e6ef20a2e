/* SPDX-License-Identifier: Apache-2.0 */
/* The daily write budget of a drive: never more than it in 24 hours, and what is left after a
 * restart. */
#include "kt.h"

#include "base/bytes.h"
#include "base/must.h"
#include "store/budget.h"

#define HOUR (UINT64_C(3600) * NS_PER_S)

TEST(within_any_day_no_more_than_the_budget_is_written_and_all_of_it_can_be)
{
	struct budget b;
	uint64_t now = 5 * HOUR, written = 0, day_began;

	budget_open(&b, 100 * GiB, now);
	for (unsigned day = 0; day < 3; day++) {
		day_began = written;
		for (unsigned step = 0; step < 24 * 60; step++) {
			now += HOUR / 60;
			budget_update(&b, written, now);
			while (budget_allows(&b, 16 * MiB)) {
				written += 16 * MiB;
				budget_update(&b, written, now);
			}
		}
		expect(written - day_began <= 100 * GiB);
		expect(written - day_began >= 74 * GiB);
	}
	/* A quiet day does not save up more than the bucket. */
	now += 48 * HOUR;
	budget_update(&b, written, now);
	expect(b.left_bytes == (int64_t)(25 * GiB));
}

TEST(carrying_ends_at_half_of_the_bucket_and_puts_when_it_is_empty)
{
	struct budget b;

	budget_open(&b, 8 * GiB, 0);
	expect(budget_allows_carry(&b) && budget_allows(&b, 2 * GiB) &&
	       !budget_allows(&b, 2 * GiB + 1));
	budget_update(&b, GiB, 0);
	expect(!budget_allows_carry(&b) && budget_allows(&b, GiB));
	budget_update(&b, 2 * GiB + MiB, 0);         /* footers and deletes overdraw */
	expect(!budget_allows(&b, 0));
	budget_open(&b, 0, 0);
	budget_update(&b, UINT64_MAX, 0);
	expect(budget_allows(&b, UINT64_MAX / 2) && budget_allows_carry(&b));
}

TEST(a_restart_goes_on_with_what_was_left)
{
	struct budget b;

	budget_open(&b, 96 * GiB, 77);
	budget_restore(&b, 1 * GiB, 0);
	expect(b.left_bytes == (int64_t)GiB);
	budget_restore(&b, 1 * GiB, 3600);           /* 3 GiB come in in an hour */
	expect(b.left_bytes > (int64_t)(4 * GiB - MiB) && b.left_bytes <= (int64_t)(4 * GiB));
	budget_restore(&b, 1 * GiB, UINT64_MAX);
	expect(b.left_bytes == (int64_t)(24 * GiB));
	budget_restore(&b, INT64_MIN, 0);            /* from a drive: any number */
	expect(b.left_bytes < 0);
	budget_restore(&b, INT64_MAX, 3600);
	expect(b.left_bytes == (int64_t)(24 * GiB));
}
