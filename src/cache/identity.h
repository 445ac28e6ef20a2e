/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identities of domains, blocks, parts and domain lists: pure functions, any thread.
 * docs/formats.md "identity" holds the bytes.
 */
#ifndef KVOF_CACHE_IDENTITY_H
#define KVOF_CACHE_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/kv.h"
#include "kvof/cache.h"

#define IDENTITY_TEXT_MAX 4096             /* longest name or value of a field */

/* The fields of one domain, sorted by name, and the bytes that are hashed. */
struct identity {
	uint32_t field_count;
	char *name[KVOF_FIELDS_MAX + 2];
	char *value[KVOF_FIELDS_MAX + 2];
	uint32_t block_tokens;
	uint8_t *domain;                   /* frame(frame(name) frame(value) ...) */
	size_t domain_bytes;
};

/**
 * identity_make() - copies, sorts and frames; "model_id" and "block_tokens" are added
 * Return: 0; -EINVAL with a sentence in why (a name twice, empty or too long; a field
 * "block_tokens" or "model_id" that says otherwise); -ENOMEM.
 */
int identity_make(const struct kvof_cache_opts *opts, char why[256], struct identity **out);
void identity_free(struct identity **id);

/* SHA-256(frame(domain) parent frame(token ids as le32)); parent NULL: 32 zero bytes. */
void identity_block(const struct identity *id, const struct kvof_id *parent, const int32_t *tokens,
		    size_t token_count, struct kvof_id *out);

/* The same with the engine's hash in place of the tokens, and a parent that no chain can have. */
void identity_engine(const struct identity *id, const void *hash, size_t bytes,
		     struct kvof_id *out);

/* SHA-256(frame(block identity) le32 index le32 count). 1 of 1 is the block's first value. */
struct part_of {
	uint32_t index, count;
};
void identity_part(const struct kvof_id *block, struct part_of part, struct kvof_id *out);

/* Where the list of a model's domains lies: SHA-256(frame("kvof domains") frame(model id)). */
void identity_domains(const char *model_id, struct kvof_id *out);

static inline bool identity_same(const struct kvof_id *a, const struct kvof_id *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/* The first 16 bytes of an identity. */
struct kv_key identity_key(const struct kvof_id *id);

#endif
