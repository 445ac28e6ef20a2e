/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at the drives of a store that is not open, reads every record, and changes nothing. */
#ifndef KVOF_STORE_CHECK_H
#define KVOF_STORE_CHECK_H

#include <stdint.h>

#include "loop/loop.h"
#include "store/block_check.h"
#include "store/store.h"

struct store_check {
	uint64_t namespaces;
	uint64_t segments_sealed, segments_open, segments_free;
	uint64_t values, deletes, value_bytes;       /* in records, superseded too */
	/* What is wrong: */
	/* a copy of a label, catalog or superblock; the other one is enough */
	uint64_t superblocks_bad;
	uint64_t frames_bad;                         /* header or footer of a segment */
	uint64_t records_bad;                        /* header, place or checksum of a record */
	struct block_check block;                    /* of all block namespaces */
};

/**
 * store_check() - checks an image offline; control path, blocks, reads everything
 * @opts: the drives, all of one set; nothing else of it is used
 * @say:  called with one line, without a newline, for each thing found
 *
 * A record behind the last footer that is not whole is not an error: a write was under way.
 * Return: 0, also when something is wrong (see the counts); -EBUSY the store is open; -ENOENT;
 * -EPROTO no label or superblock of ours on a drive; -EINVAL a directory, or drives of two sets;
 * -EIO; -ENOMEM. In these cases too a line is said.
 */
int store_check(const struct store_opts *opts, struct loop *loop,
		void (*say)(void *arg, const char *line), void *arg, struct store_check *out);

#endif
