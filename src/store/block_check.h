/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at a part of a block namespace that is not open, and changes nothing. */
#ifndef KVOF_STORE_BLOCK_CHECK_H
#define KVOF_STORE_BLOCK_CHECK_H

#include <stdint.h>

struct disk;

struct block_check {
	uint64_t chunks, used;               /* of the part; with a slot */
	uint64_t pages, places_torn;         /* torn: no error, a write may have been under way */
	/* What is wrong: */
	uint64_t superblocks_bad;            /* a copy; the other one is enough */
	uint64_t pages_bad;                  /* no place can be used: the chunks are lost */
	uint64_t slots_twice;                /* named by two chunks: both are lost */
};

/**
 * block_check() - checks the superblocks and the map of one part; control path, blocks
 * @part: an open disk of its own; nobody else uses it
 * @say:  called with one line, without a newline, for each thing found
 *
 * The blocks themselves have no checksum: what they hold is the hosts'. Counts add to *out.
 * Return: 0, also when something is wrong, or the part is blank; -EPROTO no superblock of ours;
 * -EIO; -ENOMEM. In these cases too a line is said.
 */
int block_check(struct disk *part, void (*say)(void *arg, const char *line), void *arg,
		struct block_check *out);

#endif
