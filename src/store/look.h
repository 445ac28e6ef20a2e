/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of drives under one shard have done, for metrics. On the shard's loop; no I/O. */
#ifndef KVOF_STORE_LOOK_H
#define KVOF_STORE_LOOK_H

#include "loop/disk.h"
#include "store/block.h"

struct store_look {
	const char *path;            /* the drive's; lives as long as the shard */
	bool failed, missing;
	unsigned depth;              /* reads in flight at most; 0: not bounded here */
	struct disk_counts counts;   /* zero when missing */
};

/* Return: drives of this shard, filled in their order. */
unsigned store_look(const struct store *st, struct store_look out[STORE_DRIVES_MAX]);
unsigned block_look(const struct block *b, struct store_look out[STORE_DRIVES_MAX]);

#endif
