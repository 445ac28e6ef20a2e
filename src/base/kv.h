/* SPDX-License-Identifier: Apache-2.0 */
/* The key of a KV namespace: 1 to 16 opaque bytes. Unused bytes are zero, so that keys compare
 * whole. */
#ifndef KVOF_BASE_KV_H
#define KVOF_BASE_KV_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define KV_KEY_BYTES_MAX 16

struct kv_key {
	uint8_t len;                       /* 1..16; 0 only as "before the first key" in a List */
	uint8_t byte[KV_KEY_BYTES_MAX];    /* bytes past len are zero */
};

/* Length is part of the key: "a" and "a\0" are two keys. */
static inline bool kv_key_equal(const struct kv_key *a, const struct kv_key *b)
{
	return a->len == b->len && memcmp(a->byte, b->byte, KV_KEY_BYTES_MAX) == 0;
}

/* List order: by bytes, a prefix before its extensions. */
static inline int kv_key_compare(const struct kv_key *a, const struct kv_key *b)
{
	int order = memcmp(a->byte, b->byte, KV_KEY_BYTES_MAX);

	return order != 0 ? order : (int)a->len - (int)b->len;
}

#endif
