/* SPDX-License-Identifier: Apache-2.0 */
/* The longest prefix that several groups have together. */
#include "kt.h"

#include "base/must.h"
#include "base/prng.h"
#include "cache/group.h"

#define N 24

static uint32_t longest(const char *a, uint32_t window_a, const char *b, uint32_t window_b)
{
	uint8_t there[2][64];
	struct group_row row[2] = {{there[0], window_a}, {there[1], window_b}};
	uint32_t n = (uint32_t)strlen(a);

	must(strlen(b) == n && n <= 64);
	for (uint32_t i = 0; i < n; i++) {
		there[0][i] = a[i] == '+';
		there[1][i] = b[i] == '+';
	}
	return group_longest(row, 2, n);
}

TEST(full_attention_needs_every_block_and_all_ranks_agree)
{
	expect_int(longest("++++++", 0, "++++++", 0), 6);
	expect_int(longest("++++++", 0, "+++-++", 0), 3);
	expect_int(longest("-+++++", 0, "++++++", 0), 0);
	expect_int(longest("++-+++", 0, "++++-+", 0), 2);
	expect_int(longest("", 0, "", 0), 0);
}

TEST(a_sliding_window_needs_the_last_blocks_of_the_prefix_only)
{
	expect_int(longest("++++++", 0, "----++", 2), 6);
	expect_int(longest("++++++", 0, "-++-+-", 2), 3);
	expect_int(longest("+++++-", 0, "---+++", 2), 5);
	/* a prefix shorter than the window needs all of it */
	expect_int(longest("++++++", 0, "++-+-+", 4), 2);
	expect_int(longest("++++++", 0, "--++--", 3), 0);
}

TEST(side_data_of_the_last_block_is_there_or_the_prefix_is_shorter)
{
	expect_int(longest("++++++", 0, "-+-+--", 1), 4);
	expect_int(longest("+++---", 0, "-+-+--", 1), 2);
	expect_int(longest("++++++", 0, "------", 1), 0);
}

static bool plain_fits(const uint8_t *there, uint32_t window, uint32_t n)
{
	for (uint32_t i = window != 0 && n > window ? n - window : 0; i < n; i++)
		if (there[i] == 0)
			return false;
	return true;
}

TEST(random_rows_agree_with_a_search_from_the_longest_down)
{
	struct prng rng = prng_of(11);

	for (unsigned round = 0; round < 20000; round++) {
		uint8_t there[4][N];
		struct group_row row[4];
		uint32_t rows = 1 + (uint32_t)prng_below(&rng, 4), best = N;

		for (uint32_t r = 0; r < rows; r++) {
			row[r] = (struct group_row){there[r], (uint32_t)prng_below(&rng, 6)};
			for (uint32_t i = 0; i < N; i++)
				there[r][i] = prng_below(&rng, 8) != 0;
		}
		for (; best > 0; best--) {
			uint32_t fits = 0;

			for (uint32_t r = 0; r < rows; r++)
				fits += plain_fits(there[r], row[r].window_blocks, best);
			if (fits == rows)
				break;
		}
		expect_int(group_longest(row, rows, N), best);
	}
}
