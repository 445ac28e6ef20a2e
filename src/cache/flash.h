/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flash tier: blocks as values of one store (store/store.h) over drives or files of this
 * machine, on the cache's own loop. It evicts, never passes its cap, and is there again after a
 * restart. Owned by one loop.
 */
#ifndef KVOF_CACHE_FLASH_H
#define KVOF_CACHE_FLASH_H

#include "cache/tier.h"

struct flash_opts {
	/* PATH[,size=S][,rate=S] each, borrowed until return. size: makes a missing file; rate: no
	 * more bytes a second are read of that drive. S has a unit: 10GiB. */
	const char *const *path;
	unsigned path_count;               /* 1 .. KVOF_FLASH_MAX */
	uint64_t cap_bytes;                /* over all, headers and padding included; 0: all */
	uint32_t part_bytes;               /* largest value, its footer included */
	bool format;                       /* take drives that hold something else */
	bool second_touch;                 /* values stay in a small part until asked for */
};

/* Opens the drives; blocks. Return: 0; -EINVAL, -EBUSY in use by another process, -ENOENT, -EPROTO
 * something else lies there, -ENOSPC, -EIO, -ENOMEM; why says which drive and what to do. */
int flash_open(struct loop *loop, const struct flash_opts *opts, char why[256], struct tier **out);
/* Every operation has ended or been canceled. Seals what is open. closed(arg) is the last call, on
 * a later turn. */
void flash_close(struct tier **t, void (*closed)(void *arg), void *arg);
/* Read amplification: device_read_bytes over delivered_bytes. */
void flash_stat(const struct tier *t, struct tier_stat *out);

#endif
