/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process has learned about blocks of the array (how long they are and how they were cut;
 * which were found bad), and the rule of the longest prefix. A hint, never a promise: the array
 * forgets without telling. Owned by one loop.
 */
#ifndef KVOF_CACHE_PREFIX_H
#define KVOF_CACHE_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

#include "kvof/cache.h"

#define PREFIX_KNOWN_MAX 65536             /* ids remembered; the oldest of a bucket goes */
#define PREFIX_BLOCKS_MIN 1024
#define PREFIX_BLOCKS_MAX (1u << 28)

struct prefix;

struct prefix_known {
	uint64_t block_bytes;
	uint32_t cut_bytes;                /* 0: the length is not known */
	bool bad;                          /* what lies there can't be used: a save overwrites it */
};

/* Takes all its memory. Return: 0; -ENOMEM. */
int prefix_open(struct prefix **out);
void prefix_close(struct prefix **p);

/* Return: false, and *out all zero, when nothing is known. */
bool prefix_find(const struct prefix *p, const struct kvof_id *id, struct prefix_known *out);
void prefix_set(struct prefix *p, const struct kvof_id *id, const struct prefix_known *known);
void prefix_forget(struct prefix *p, const struct kvof_id *id);

/* Blocks from the first on that are present whole (KVOF_OK); the first other one ends it. */
uint32_t prefix_leading(const struct kvof_result *results, uint32_t count);

#endif
