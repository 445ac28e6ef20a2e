/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The longest prefix that several rows of blocks have together: full attention needs all blocks of
 * a prefix, a sliding window the last few, side data the last one; the ranks of one model are rows
 * that all need all. Pure functions, any thread.
 */
#ifndef KVOF_CACHE_GROUP_H
#define KVOF_CACHE_GROUP_H

#include <stdint.h>

struct group_row {
	const uint8_t *there;              /* [block_count]; not 0: present */
	uint32_t window_blocks;            /* last blocks of a prefix that are needed; 0: all */
};

/* Return: the largest n for which each row has all it needs of a prefix of n blocks. */
uint32_t group_longest(const struct group_row *rows, uint32_t row_count, uint32_t block_count);

#endif
