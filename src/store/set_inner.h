/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the set share; nobody else includes it.
 *
 *   set.c         namespaces and subsystems made and removed, parts opened
 *   set_open.c    set_open(): labels, catalogs, what is refused
 *   set_room.c    how large parts are, and which slabs they get
 *   catalog.c     bytes on drives
 */
#ifndef KVOF_STORE_SET_INNER_H
#define KVOF_STORE_SET_INNER_H

#include "loop/disk.h"
#include "store/catalog.h"
#include "store/set.h"
#include "store/slow.h"

#define SET_MAGIC 0x5e70c0deu
#define SET_ENDS_BYTES ((uint64_t)FMT_BLANK_BYTES)   /* zero at either end of a fresh part */

/* A drive as it was given. */
struct member {
	char path[256];
	struct store_drive want;
	struct slow_rate rate;               /* of all that read from it */
	struct disk *disk;                   /* NULL: missing, or left out */
	enum fmt_super_verdict verdict;
	uint32_t version;                    /* of the label found */
	struct label label;
	bool label_repair;                   /* one copy is not good */
	bool blank;                          /* takes the place of a lost one */
	bool broken;                         /* a catalog could not be written; no more are */
	uint64_t generation;                 /* of the catalog found */
	uint32_t global_crc;
	struct catalog_owner *owner;         /* [label.slab_count] */
};

/* Parts of a namespace that are open, and those of one that is gone whose I/O has not come back. */
struct set_parts {
	uint32_t ns;                         /* id; 0: not in use */
	_Atomic uint32_t open[STORE_DRIVES_MAX];
};
#define SET_PARTS_MAX (2 * SET_NAMESPACES_MAX)

struct set {
	uint32_t magic;
	bool version_one, degraded, replace;
	struct loop *loop;
	unsigned shards, drive_count;
	uint64_t old_cap_bytes;              /* version 1: as asked for at this start; 0: all */
	uint8_t uuid[16];
	struct member member[STORE_DRIVES_MAX];      /* as given */
	struct member *drive[STORE_DRIVES_MAX];      /* in their places; NULL: missing */
	struct catalog catalog;
	struct set_parts parts[SET_PARTS_MAX];       /* of the catalog's, and of gone ones */
	uint8_t *slot;                       /* scratch: a catalog, or ends of parts */
	uint64_t slot_bytes;
};

/* A part's size on each drive; 0: none there. */
struct set_plan {
	unsigned shards;
	uint64_t part_bytes[STORE_DRIVES_MAX];
};

/* set.c */
/* Writes the catalog, one generation on, to all drives. Return: 0; -EIO: no drive has it. */
int set_commit(struct set *s);
/* Zeroes the ends of every part that the namespace has on the drive, and flushes; with lost, those
 * of blocks say that what was there is lost. */
int set_parts_clear(struct set *s, struct member *m, const struct catalog_ns *n, bool lost);
static inline bool set_drive_live(const struct set *s, unsigned drive)
{
	return s->drive[drive] != NULL && !s->drive[drive]->broken;
}

/* Counters for a namespace of this id; false: none is left, too much I/O has not come back. */
bool set_parts_add(struct set *s, uint32_t ns);
void set_drive_break(struct member *m);

/* set_room.c */
uint32_t set_room_free(const struct member *m);      /* slabs */
/* Return: 0; -ENOSPC, -EINVAL, with why. */
int set_room_plan(const struct set *s, const struct set_ns *want, struct set_plan *plan,
		  char why[256]);
/* False: there are not so many slabs; none is taken. */
bool set_room_take(struct member *m, const struct catalog_ns *n, unsigned drive);
void set_room_give(struct member *m, uint32_t ns);
/* The extents of a part, neighbours as one. Return: their number, 0: none; -1: no memory. */
int set_room_extents(const struct member *m, const struct catalog_ns *n, unsigned drive,
		     unsigned shard, struct disk_extent **out);

#endif
