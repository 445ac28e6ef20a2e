/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tier of values: whole blocks as values of devices. Used twice: by route.c over arrays, by
 * tier_flash.c over the drives of this machine. A block lies whole on one device, chosen by
 * rendezvous hashing over the devices' names. Owned by one loop.
 */
#ifndef KVOF_CACHE_VALUES_H
#define KVOF_CACHE_VALUES_H

#include "cache/dev.h"
#include "cache/tier.h"

#define VALUES_DEVS_MAX 16
#define VALUES_GRACE_NS (250 * NS_PER_MS)

struct values_opts {
	const char *name;                  /* "remote", "flash" */
	uint32_t cut_bytes;
	uint32_t known_slots;              /* blocks whose length is remembered */
	void *owner;                       /* values_owner() */
};

/* Return: 0; -ENOMEM. Without a device every operation ends with KVOF_UNREACHABLE. */
int values_open(struct loop *loop, const struct values_opts *opts, struct tier **out);
/* No operation is in flight. The devices are the caller's. */
void values_close(struct tier **t);
void *values_owner(const struct tier *t);

/* name: stays the same from start to start and from host to host. Return: its number. */
unsigned values_dev_add(struct tier *t, struct dev *dev, uint64_t name);
/* The device has gone or come: what only looks and is in flight ends when it stays away longer
 * than VALUES_GRACE_NS. */
void values_dev_changed(struct tier *t, unsigned dev_index);
/* Values of that device are at most so large; 0: it can't be used at all. */
void values_dev_limit(struct tier *t, unsigned dev_index, uint32_t value_bytes_max);
/* Operations that are not over. */
uint64_t values_in_flight(const struct tier *t);
void values_dev_stat(const struct tier *t, unsigned dev_index, struct tier_stat *out);
/* Of all devices together. */
void values_stat(const struct tier *t, struct tier_stat *out);

/* Rendezvous: which of the names has the block. Pure; docs/formats.md holds it. */
unsigned values_pick(const uint64_t *names, unsigned count, const struct kvof_id *id);
/* Of a device's name as text. */
uint64_t values_name(const char *text);

#endif
