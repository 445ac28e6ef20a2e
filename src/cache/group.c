/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row after the other shortens the prefix until all agree. What a row refuses stays refused, so
 * the length only falls, and the first length on which all rows agree is the longest.
 */
#include "cache/group.h"

/* The largest m <= n of which the row has all it needs. */
static uint32_t row_longest(const struct group_row *row, uint32_t n)
{
	while (n > 0) {
		uint32_t window = row->window_blocks != 0 ? row->window_blocks : n;
		uint32_t low = n > window ? n - window : 0, at = n;

		while (at > low && row->there[at - 1] != 0)
			at--;
		if (at == low)
			break;
		n = at - 1;                /* every longer prefix up to n needs this block too */
	}
	return n;
}

uint32_t group_longest(const struct group_row *rows, uint32_t row_count, uint32_t block_count)
{
	uint32_t n = block_count, agreed = 0;

	for (uint32_t i = 0; agreed < row_count; i = (i + 1) % row_count) {
		uint32_t m = row_longest(&rows[i], n);

		agreed = m == n ? agreed + 1 : 1;
		n = m;
	}
	return n;
}
