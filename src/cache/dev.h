/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device holds values under keys of 16 bytes: an array (dev_host.c, over host/) or drives of this
 * machine (dev_store.c, over store/). The tier of values talks to devices only.
 *
 * struct host_op is the operation of every device: Store, Retrieve, Exist, Delete; ended exactly
 * once, by its deadline, never inside submit(); busy and released() as host.h says. Less is
 * asked of a device than of an array: a Retrieve with less room than the value may say its length
 * and move nothing (moved_bytes 0).
 *
 * Owned by one loop.
 */
#ifndef KVOF_CACHE_DEV_H
#define KVOF_CACHE_DEV_H

#include <stdbool.h>
#include <stdint.h>

#include "host/host.h"
#include "loop/loop.h"

struct dev;

struct dev_stat {
	bool live;
	uint64_t device_read_bytes;        /* at the drive; of an array: over the wire */
	uint64_t device_write_bytes;
	uint64_t used_bytes, capacity_bytes, values, evicted, corrupt;   /* 0: not known */
	uint64_t kept_bytes, kept_lost;    /* keep(): now; values that went all the same */
	uint64_t reconnects;
	unsigned drives, drives_failed;
};

struct dev_ops {
	const char *name;                  /* "array", "flash" */
	void (*submit)(struct dev *dev, struct host_op *op);
	/* done comes soon, with -ECANCELED unless it was on its way. */
	void (*cancel)(struct dev *dev, struct host_op *op);
	/* False: what is started now could only wait. */
	bool (*live)(const struct dev *dev);
	void (*stat)(const struct dev *dev, struct dev_stat *out);
	/* Not evicted for room, until told otherwise or closed. Return: 0; -ENOENT; -ENOSPC as much
	 * as may be is kept. NULL: the device knows no such thing. */
	int (*keep)(struct dev *dev, const struct kv_key *key, bool on);
};

struct dev {
	const struct dev_ops *ops;
	void *self;
};

/* Over an initiator, the caller's; without one (NULL) it is not live. Return: 0; -ENOMEM. */
int dev_host_make(struct dev **out);
void dev_host_set(struct dev *dev, struct host *host);
/* Nothing is in flight. */
void dev_host_free(struct dev **dev);

struct dev_store_opts {
	const char *const *path;           /* PATH[,size=S][,rate=S], see flash.h */
	unsigned path_count;
	uint64_t cap_bytes;                /* over all; 0: all they have */
	uint32_t value_bytes_max;
	unsigned flying_max;               /* operations in flight */
	bool format, second_touch;
};

/* Opens the drives: control path, blocks. Return: 0; as store_open(), why says which drive. */
int dev_store_open(struct loop *loop, const struct dev_store_opts *opts, char why[256],
		   struct dev **out);
/* Ends what is in flight (-ESHUTDOWN), seals what is open; then closed(arg), on a later turn. The
 * device itself stays, not live, until it is freed. */
void dev_store_close(struct dev *dev, void (*closed)(void *arg), void *arg);
void dev_store_free(struct dev **dev);
/* Checks and takes apart one text of drives. Return: 0; -EINVAL with a sentence that quotes it. */
struct dev_store_drive {
	char path[256];
	uint64_t bytes, rate_bytes_per_s;  /* 0: not given */
};
int dev_store_parse(const char *text, struct dev_store_drive *out, char why[256]);

#endif
