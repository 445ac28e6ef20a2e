/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The set: the real drives of an array, and who has which part of them.
 *
 *   drive   head (label, catalog) - slabs - tail (catalog, label)
 *   slab    belongs to nobody or to one (namespace, shard); the slabs that one has of a drive, in
 *           rising order, are its part of that drive: a disk of its own (disk_open_part())
 *
 * A namespace's shard is a struct store (kv) or a struct block over one part a drive. Parts are
 * never shared, so a cap is a size, and what a namespace held goes with its parts. The catalog is
 * on every drive, twice at each end, with a generation; the highest whole one is the truth. Drives
 * made by version 1 (one store over the whole drive) are shown as one kv namespace of one shard, in
 * a subsystem of number 0 and no name, and can't take more.
 *
 * Control path: every call blocks on small I/O and may run on any one thread at a time (the caller
 * serializes), but for set_open() and set_close(), which run on the thread that owns the loop, and
 * set_ns_parts(), which several loops may call at once for themselves.
 */
#ifndef KVOF_STORE_SET_H
#define KVOF_STORE_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "loop/loop.h"
#include "store/store.h"

#define SET_NAMESPACES_MAX 64
#define SET_SUBSYSTEMS_MAX 8
#define SET_HOSTS_MAX 64             /* different ones, over all subsystems */
#define SET_NQN_BYTES 224

struct set;

enum set_kind { SET_KV = 1, SET_BLOCK = 2 };

/* A namespace as the catalog has it. Settings that may differ from start to start are not here. */
struct set_ns {
	uint32_t id;                 /* given by the set, never used again */
	uint32_t nsid;               /* in its subsystem; 0 when asked to create: lowest free */
	uint8_t uuid[16];            /* given by the set */
	enum set_kind kind;
	uint8_t subsys;              /* number of its subsystem */
	/* given by the set: at most set_shards(), fewer where the parts would be too small */
	uint8_t shards;
	uint64_t bytes;              /* block: the size that hosts see */
	/* what it takes of the drives, all parts together; 0 when asked: kv all that is free, block
	 * what holds all its bytes */
	uint64_t cap_bytes;
	uint32_t block_bytes;        /* block: 512 or 4096 */
	bool evict;                  /* kv: cache namespace; else object namespace */
	bool stripe;                 /* kv: large values span the drives */
	uint32_t value_bytes_max;    /* kv */
};

struct set_subsys {
	uint8_t number;
	char nqn[SET_NQN_BYTES];
	uint8_t uuid[16];            /* serial number and the like are made from it */
};

struct set_opts {
	struct store_drive drive[STORE_DRIVES_MAX];
	unsigned drive_count;
	/* at format only; 0: one a core, fewer where drives are small, at most STORE_SHARDS_MAX */
	unsigned shards;
	bool format, degraded;
	/* values and blocks are read from each drive no faster, all namespaces together;
	 * 0: no limit */
	uint64_t drive_read_bytes_per_s;
	/* a blank drive takes the place of one that is lost */
	bool replace;
	/* nothing is written, nothing is made: for a check. No namespace may be created or removed;
	 * parts are as they lie there */
	bool look;
	/* what the namespace of drives of version 1 is at this start: keep (no eviction),
	 * value_bytes_max (0: as it was), cap_bytes (0: all) */
	struct set_old {
		bool keep;
		uint32_t value_bytes_max;
		uint64_t cap_bytes;
	} old;
};

/**
 * set_open() - opens and locks the drives, reads or makes labels and catalog
 * @loop:   where the whole drives' disks live; nothing runs on it
 * @report: words for people when it fails, or what was found
 * Return: 0; -EBUSY; -EINVAL; -ENOENT; -EPROTO; -EIO; -ENOSPC; -ENOMEM as store_open().
 */
int set_open(const struct set_opts *opts, struct loop *loop, struct set **out,
	     struct store_report *report);
/* The drive of which a part is still open, since its I/O has not come back; NULL: none. Any
 * thread. */
const char *set_busy_drive(const struct set *set);
/* All parts are closed before. */
void set_close(struct set **set);
/* For tests: the process has died; its memory goes, its drives are not touched. */
void set_forget(struct set **set);

unsigned set_shards(const struct set *set);
unsigned set_drives(const struct set *set);
uint64_t set_free_bytes(const struct set *set);
/* No namespace was ever made: what a first start makes is to be made. */
bool set_was_made(const struct set *set);

unsigned set_ns_list(const struct set *set, struct set_ns out[SET_NAMESPACES_MAX]);
/* Fills what the set gives. The parts are zero in their first and last 128 KiB and of any content
 * between; the catalog is durable. A drive that is missing or failed gets no part. A crash leaves
 * all of it or nothing. Return: 0; -ENOSPC (why says how much is free); -EEXIST nsid is taken;
 * -ENOENT no such subsystem; -EINVAL; -EPROTO drives of version 1; -EIO. */
int set_ns_create(struct set *set, struct set_ns *ns, char why[256]);
/* No store takes an answer from it any more: nothing is written to it from here on, since that
 * might never end. */
void set_drive_failed(struct set *set, const char *path);
/* All its parts are closed, or were given up: then their drive counts as failed until the next
 * start. Its slabs are free at once and discarded. Return: 0; -ENOENT; -EPROTO
 * drives of version 1; -EIO. */
int set_ns_remove(struct set *set, uint32_t id, char why[256]);

unsigned set_subsys_list(const struct set *set, struct set_subsys out[SET_SUBSYSTEMS_MAX]);
/* Return: 0; -EEXIST the name is taken; -ENOSPC; -EINVAL; -EPROTO drives of version 1; -EIO. */
int set_subsys_create(struct set *set, const char *nqn, uint8_t *number, char why[256]);
/* Return: 0; -EBUSY has namespaces; -ENOENT; -EPROTO; -EIO. */
int set_subsys_remove(struct set *set, uint8_t number, char why[256]);
/* The hosts that may connect, in place of those it had; none: any.
 * Return: 0; -ENOENT; -EINVAL a name; -ENOSPC too many; -EPROTO; -EIO. */
int set_subsys_hosts(struct set *set, uint8_t number, const char *const *host, unsigned count,
		     char why[256]);
unsigned set_subsys_hosts_list(const struct set *set, uint8_t number,
			       char out[SET_HOSTS_MAX][SET_NQN_BYTES]);

/**
 * set_ns_parts() - opens the parts of one shard of a namespace as disks on @loop
 * @opts: filled: drive[] (an open part and the drive's path for messages, or missing in a degraded
 *        set), drive_count (drives that the namespace has parts on), degraded, replace, uuid (of
 *        the store on these parts), evict, value_bytes_max. store_open() or block_open() take the
 *        disks.
 *
 * On the thread that owns @loop, or before it runs. Return: 0; -ENOENT no such namespace or shard;
 * -ENOMEM.
 */
int set_ns_parts(struct set *set, uint32_t id, unsigned shard, struct loop *loop,
		 struct store_opts *opts);

#endif
