/* SPDX-License-Identifier: Apache-2.0 */
/* Which rates are believed. */
#include "kt.h"

#include <math.h>

#include "cache/speed.h"

static uint64_t ns_of(const struct speed_engine *e, uint64_t first, uint64_t count)
{
	struct place_engine now = speed_engine_now(e);

	return place_engine_ns(&now, (struct place_span){first, count});
}

TEST(a_rate_that_is_told_is_a_line_over_the_position)
{
	struct speed_engine e;

	speed_engine_tell(&e, 10000, 0.001);
	expect_int(ns_of(&e, 0, 1), 100000);
	expect_int(ns_of(&e, 1000, 1), 200000);
	expect(!speed_engine_measured(&e));
}

TEST(a_rate_that_is_no_rate_tells_nothing)
{
	const double none[] = {0, -1, NAN, INFINITY, -INFINITY};
	struct speed_engine e;

	for (size_t i = 0; i < ARRAY_COUNT(none); i++) {
		speed_engine_tell(&e, none[i], 1);
		expect_int(ns_of(&e, 0, 1000), 0);
	}
	speed_engine_tell(&e, 1000, NAN);
	expect_int(ns_of(&e, 1000, 1), NS_PER_MS);
	speed_engine_tell(&e, 1e-300, 0);
	expect(ns_of(&e, 0, 1) > 0);
	speed_engine_tell(&e, 1e300, 0);
	expect(speed_engine_now(&e).token_ps > 0);
}

TEST(reports_scale_what_was_told)
{
	struct speed_engine e;

	speed_engine_tell(&e, 10000, 0.001);
	speed_engine_report(&e, (struct place_span){0, 1}, 130000);
	expect(speed_engine_measured(&e));
	expect_int(ns_of(&e, 0, 1), 130000);
	expect_int(ns_of(&e, 1000, 1), 260000);
	for (int i = 0; i < 10; i++)
		speed_engine_report(&e, (struct place_span){0, 1}, 70000);
	expect(ns_of(&e, 0, 1) < 71000);
}

TEST(a_slope_that_nobody_told_is_followed_as_the_position_grows)
{
	struct place_engine real = {100 * 1000 * 1000, 10 * 1000};
	struct speed_engine e;

	speed_engine_tell(&e, 10000, 0);
	for (uint64_t at = 0; at < 30720; at += 256) {
		struct place_span s = {at, 256}, next = {at + 256, 256};

		speed_engine_report(&e, s, place_engine_ns(&real, s));
		expect(ns_of(&e, next.first, 256) <= place_engine_ns(&real, next));
		expect(ns_of(&e, next.first, 256) * 100 >= place_engine_ns(&real, next) * 93);
	}
}

TEST(an_engine_that_told_nothing_is_known_after_its_first_report)
{
	struct speed_engine e = {0};

	expect_int(ns_of(&e, 0, 1000), 0);
	speed_engine_report(&e, (struct place_span){5, 0}, 100);
	speed_engine_report(&e, (struct place_span){5, 10}, 0);
	speed_engine_report(&e, (struct place_span){5, 10}, UINT64_MAX);
	expect(!speed_engine_measured(&e));
	speed_engine_report(&e, (struct place_span){512, 256}, 256000);
	expect_int(ns_of(&e, 0, 100), 100000);
}

TEST(a_first_report_far_from_what_was_told_is_believed_in_part)
{
	struct place_span block = {0, 256};
	struct speed_engine e;
	uint64_t now;

	speed_engine_tell(&e, 1000, 0);
	speed_engine_report(&e, block, 3600 * NS_PER_S);   /* the process was stopped */
	now = ns_of(&e, 0, 256);
	expect(now > 256 * NS_PER_MS && now <= 4 * 256 * NS_PER_MS);
	speed_engine_tell(&e, 1000, 0);
	speed_engine_report(&e, block, 1000);              /* it only queued the work */
	now = ns_of(&e, 0, 256);
	expect(now >= 256 * NS_PER_MS / 4);
	speed_engine_tell(&e, 1000, 0);
	speed_engine_report(&e, block, 330 * NS_PER_MS);   /* near: taken as it is */
	now = ns_of(&e, 0, 256);
	expect(now > 329 * NS_PER_MS && now <= 330 * NS_PER_MS);
}

/* Nothing was told, so nothing bounds the first report; the second one does. */
TEST(of_two_first_reports_far_apart_the_faster_is_believed_when_nothing_was_told)
{
	struct place_span block = {0, 256};

	for (unsigned first = 0; first < 2; first++) {
		struct speed_engine e = {0};
		uint64_t now;

		for (unsigned i = 0; i < 2; i++)
			speed_engine_report(&e, block, i == first ? 3600 * NS_PER_S :
					    256 * NS_PER_MS);
		now = ns_of(&e, 0, 256);
		expect(now > 250 * NS_PER_MS && now <= 256 * NS_PER_MS);
	}
}

TEST(a_tier_without_samples_is_not_known_and_one_that_is_away_never_loads)
{
	struct tier_speed s = {.latency_ns = 5, .bytes_per_s = 7, .queued_bytes = 9, .live = true};
	struct place_tier t;

	expect(!speed_tier_now(&s, &t));
	s.samples = 1;
	expect(speed_tier_now(&s, &t));
	expect_int(t.latency_ns, 5);
	expect_int(t.bytes_per_s, 7);
	expect_int(t.queued_bytes, 9);
	s.live = false;
	expect(speed_tier_now(&s, &t));
	expect_int(t.bytes_per_s, 0);
}

TEST(one_report_beside_the_others_changes_little_and_the_next_ones_mend_it)
{
	struct place_span block = {0, 256};
	struct speed_engine e;
	uint64_t before, now;

	speed_engine_tell(&e, 1000, 0);
	speed_engine_report(&e, block, 256 * NS_PER_MS);
	before = speed_engine_now(&e).token_ps;
	speed_engine_report(&e, block, 3600 * NS_PER_S);   /* the process was stopped */
	now = speed_engine_now(&e).token_ps;
	expect(now > before && now <= 3 * before);
	for (int i = 0; i < 8; i++)
		speed_engine_report(&e, block, 256 * NS_PER_MS);
	now = speed_engine_now(&e).token_ps;
	expect(now >= before && now <= before + before / 50);
	for (int i = 0; i < 8; i++)                        /* it is slower from now on */
		speed_engine_report(&e, block, 25600 * NS_PER_MS);
	expect(speed_engine_now(&e).token_ps > 80 * before);
}
