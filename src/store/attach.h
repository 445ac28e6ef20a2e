/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a real drive for a store or a set, and saying in words why one can't be. */
#ifndef KVOF_STORE_ATTACH_H
#define KVOF_STORE_ATTACH_H

#include <stdbool.h>
#include <stdint.h>

#include "loop/disk.h"
#include "store/store.h"

struct attach {
	const struct store_drive *want;
	bool degraded;               /* a drive that is not there is left out, with a warning */
	struct disk *disk;           /* out; NULL: left out */
};

/* Control path, blocks. Return: 0; an errno of store_open(), and why[] says which drive and what to
 * do. */
int attach_drive(struct loop *loop, struct attach *a, char *why, size_t why_bytes);

/* An open that fails leaves no file behind that was not there before. */
void attach_undo(const struct disk *disk);

/* A part that store/set.c may have handed out is closed: `open` of its struct store_drive. */
void attach_part_close(struct disk **disk, _Atomic uint32_t *open);

/* A read or write that may fail once: tried again, at most three times in all. */
int attach_read(struct disk *disk, void *into, uint64_t bytes, uint64_t offset_bytes);
int attach_write(struct disk *disk, const void *from, uint64_t bytes, uint64_t offset_bytes);

#endif
