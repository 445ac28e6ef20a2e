/* SPDX-License-Identifier: Apache-2.0 */
/* Counts, sizes and times as people write them. */
#include "kt.h"

#include "base/must.h"
#include "cmd/cmd.h"

#define NOISE UINT64_C(0x6e6f697365)

struct row {
	const char *text;
	uint64_t want;
};

TEST(sizes_have_a_unit_perhaps_a_fraction_and_perhaps_blanks)
{
	static const struct row rows[] = {
		{"0", 0}, {"0B", 0}, {"0.0", 0}, {"1B", 1}, {"4096B", 4096}, {"64KiB", 64 * KiB},
		{"64 KiB", 64 * KiB}, {"1K", KiB}, {"3M", 3 * MiB}, {"1.5GiB", 1536 * MiB},
		{"1kB", 1000}, {"1KB", 1000}, {"2MB", 2000000}, {"1GB", 1000000000},
		{"1TB", UINT64_C(1000000000000)}, {"2TiB", 2048 * GiB}, {"0.3KiB", 307},
		{"8388607TiB", 8388607 * (1024 * GiB)},
	};

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		uint64_t got = NOISE;

		expect(cmd_bytes_parse(rows[i].text, false, &got));
		expect_int(got, rows[i].want);
	}
}

TEST(what_is_no_size_is_refused)
{
	static const char *const rows[] = {
		"", " ", "B", "KiB", "-1B", "+1B", "1", "00001", "1 B ", "1b", "1kib", "1KiBs",
		"0x10B", ".5KiB", "1.2.3KiB", "1,5KiB", "8388608TiB", "18446744073709551616B",
		"1e3B", "0.0000000001KiB",
	};
	uint64_t got;

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++)
		expect(!cmd_bytes_parse(rows[i], false, &got));
}

TEST(a_bare_number_is_bytes_or_seconds_only_where_asked_for)
{
	uint64_t got = NOISE;

	expect(!cmd_bytes_parse("4096", false, &got));
	expect(cmd_bytes_parse("4096", true, &got));
	expect_int(got, 4096);
	expect(!cmd_time_parse("5", false, &got));
	expect(cmd_time_parse("5", true, &got));
	expect_int(got, 5 * NS_PER_S);
	expect(cmd_time_parse("0.25", true, &got));
	expect_int(got, NS_PER_S / 4);
	expect(cmd_time_parse("0", false, &got));
	expect_int(got, 0);
}

TEST(times_have_a_unit)
{
	static const struct row rows[] = {
		{"1ns", 1}, {"2us", 2000}, {"100 ms", 100 * NS_PER_MS}, {"5s", 5 * NS_PER_S},
		{"2m", 120 * NS_PER_S}, {"2min", 120 * NS_PER_S}, {"1.5h", 5400 * NS_PER_S},
	};
	uint64_t got;

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		got = NOISE;
		expect(cmd_time_parse(rows[i].text, false, &got));
		expect_int(got, rows[i].want);
	}
	expect(!cmd_time_parse("5S", false, &got));
	expect(!cmd_time_parse("5MiB", false, &got));
	expect(!cmd_time_parse("2562048h", false, &got));
}

TEST(a_count_is_digits_and_nothing_else)
{
	uint64_t got = NOISE;

	expect(cmd_count_parse("0", &got));
	expect_int(got, 0);
	expect(cmd_count_parse("9223372036854775807", &got));
	expect_int(got, INT64_MAX);
	expect(!cmd_count_parse("", &got));
	expect(!cmd_count_parse("-1", &got));
	expect(!cmd_count_parse("+1", &got));
	expect(!cmd_count_parse("1.0", &got));
	expect(!cmd_count_parse("1K", &got));
	expect(!cmd_count_parse(" 1", &got));
	expect(!cmd_count_parse("99999999999999999999", &got));
}
