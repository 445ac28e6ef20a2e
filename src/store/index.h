/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of one shard: which record holds the value of a key, and all keys in order. Memory
 * only.
 *
 *   pool    32 bytes an entry; an entry keeps its number for life, free ones are chained
 *   table   entry numbers by hash, open addressing, at most 4/5 full: 5 bytes a key; what the
 *           number leaves of 32 bits is of the hash, so that others' entries are not looked at
 *   order   entry numbers in key order, in leaves of 256 to 512: 8 bytes a key at worst
 *
 * So a key costs at most 32 + 5 + 8 + 0.1 = 45.1 bytes when the index is full (bound of the design:
 * 48). A lookup touches two cache lines; an insert adds the ordered list (about 10 probes).
 *
 * All memory is taken by index_open(). Owned by one loop; no locks.
 */
#ifndef KVOF_STORE_INDEX_H
#define KVOF_STORE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/kv.h"

#define INDEX_NONE UINT32_MAX
#define INDEX_KEYS_LIMIT (1u << 31)
#define INDEX_KEY_BYTES_MAX 48
#define INDEX_KEY_LEN_MAX (KV_KEY_BYTES_MAX + 1)     /* 17: 16 bytes, a key of the store's own */

enum index_flag {
	INDEX_HIT = 1,               /* asked for since it was written or carried forward */
	INDEX_DEAD = 2,              /* its record can't be read: a miss with a place */
	INDEX_HOT = 8,               /* ... more than once */
	INDEX_TOMBSTONE = 4,         /* only while a store is being recovered */
	INDEX_KEPT = 4,              /* from then on: it is not evicted for room */
	INDEX_STRIPED = 16,          /* the head of a value that spans the drives */
	INDEX_STRIPE_NUMBER = 32,    /* times 0..3: which of its parts' keys */
};

/* Where a value lies. */
struct index_place {
	uint64_t sequence;           /* below 2^52 */
	uint32_t block;              /* of the drive; 4 KiB each, so a drive has at most 16 TiB */
	uint32_t value_bytes;        /* at most 64 MiB */
	uint8_t drive;               /* below 16 */
	uint8_t flags;
};

struct index;

/* Return: 0; -ENOMEM. */
int index_open(uint32_t keys_max, struct index **out);
void index_close(struct index **ix);

/* Number of the entry, or INDEX_NONE. Valid until that key is removed. */
uint32_t index_find(const struct index *ix, const struct kv_key *key);
struct index_place index_place(const struct index *ix, uint32_t entry);
void index_key(const struct index *ix, uint32_t entry, struct kv_key *out);
void index_set_flags(struct index *ix, uint32_t entry, uint8_t flags);

/* Writes a new place for a key. False: the key is new and the index is full. */
bool index_put(struct index *ix, const struct kv_key *key, const struct index_place *place);
/* The same, unless the key has a place of the same or a higher sequence: for recovery. */
bool index_put_newer(struct index *ix, const struct kv_key *key, const struct index_place *place);
/* Has the memory fetched that a lookup of this key (zeros behind it) begins with. */
void index_warm(const struct index *ix, const uint8_t key[KV_KEY_BYTES_MAX]);
void index_remove(struct index *ix, uint32_t entry);

/* Entries now, and the most there may be. */
uint32_t index_count(const struct index *ix);
uint32_t index_keys_max(const struct index *ix);
/* Bytes bought at open. */
uint64_t index_bytes(const struct index *ix);

/* Fills entries in key order from `from` (inclusive; len 0: from the first). Return: number
 * filled. */
unsigned index_list(const struct index *ix, const struct kv_key *from, uint32_t *entries,
		    unsigned count);

/* Recovery inserts in no order and builds the order once, at the end: until index_sort() has run,
 * index_list() must not be called. A fresh index is sorted. */
void index_unsort(struct index *ix);
int index_sort(struct index *ix);

/* The pool in its own order, for sweeps: next used entry at or after `entry`, or INDEX_NONE. */
uint32_t index_next(const struct index *ix, uint32_t entry);

/* Checks every invariant; for tests and audit builds. O(n). */
void index_check(const struct index *ix);

#endif
