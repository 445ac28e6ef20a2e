/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process has learned about blocks of one tier: how long they are and how they were cut;
 * which were found bad. A hint, never a promise: what holds the values forgets without telling.
 * Owned by one loop.
 */
#ifndef KVOF_CACHE_KNOWN_H
#define KVOF_CACHE_KNOWN_H

#include <stdbool.h>
#include <stdint.h>

#include "kvof/cache.h"

struct known;

struct known_block {
	uint64_t block_bytes;
	uint32_t cut_bytes;                /* 0: the length is not known */
	bool bad;                          /* what lies there can't be used: a save overwrites it */
};

/* slots: ids remembered, rounded up to a power of two; of those that share a bucket the oldest
 * goes. Takes all its memory. Return: 0; -ENOMEM. */
int known_open(uint32_t slots, struct known **out);
void known_close(struct known **k);

/* Return: false, and *out all zero, when nothing is known. */
bool known_find(const struct known *k, const struct kvof_id *id, struct known_block *out);
void known_set(struct known *k, const struct kvof_id *id, const struct known_block *block);
void known_forget(struct known *k, const struct kvof_id *id);

#endif
