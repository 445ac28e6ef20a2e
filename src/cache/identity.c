/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identities. Every variable piece is preceded by its length (8 bytes, little-endian), so that no
 * two lists of pieces give the same bytes: "ab","c" is not "a","bc", and a field that moves from a
 * value into a name changes the identity.
 *
 * Invariants: names are sorted by bytes and unique; the same fields in another order are the same
 * domain. Nothing here depends on the process, the machine's byte order or the time.
 *
 * Any thread; an identity is not changed after identity_make().
 */
#include "cache/identity.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/must.h"

static void frame_add(struct hash_sha256 *h, const void *data, size_t bytes)
{
	le64 length = le64_of(bytes);

	hash_sha256_add(h, &length, sizeof(length));
	if (bytes > 0)
		hash_sha256_add(h, data, bytes);
}

static uint8_t *frame_put(uint8_t *at, const char *text)
{
	size_t bytes = strlen(text);
	le64 length = le64_of(bytes);

	memcpy(at, &length, sizeof(length));
	memcpy(at + sizeof(length), text, bytes);
	return at + sizeof(length) + bytes;
}

static int field_check(const char *name, const char *value, char why[256])
{
	if (name == NULL || name[0] == '\0' || value == NULL) {
		snprintf(why, 256, "a field of the model's identity has no name or no value");
		return -EINVAL;
	}
	if (strlen(name) > IDENTITY_TEXT_MAX || strlen(value) > IDENTITY_TEXT_MAX) {
		snprintf(why, 256, "field \"%.64s\" of the model's identity is longer than %d "
			 "bytes", name, IDENTITY_TEXT_MAX);
		return -EINVAL;
	}
	return 0;
}

/* Inserts in order. A field that is there already must say the same, and only implied ones may. */
static int field_add(struct identity *id, const char *name, const char *value, bool implied,
		     char why[256])
{
	uint32_t at = 0;

	while (at < id->field_count && strcmp(id->name[at], name) < 0)
		at++;
	if (at < id->field_count && strcmp(id->name[at], name) == 0) {
		if (implied && strcmp(id->value[at], value) == 0)
			return 0;
		if (implied)
			snprintf(why, 256, "field \"%s\" is \"%.60s\", the option says \"%.60s\"",
				 name, id->value[at], value);
		else
			snprintf(why, 256, "field \"%.64s\" is given twice", name);
		return -EINVAL;
	}
	for (uint32_t i = id->field_count; i > at; i--) {
		id->name[i] = id->name[i - 1];
		id->value[i] = id->value[i - 1];
	}
	id->name[at] = strdup(name);
	id->value[at] = strdup(value);
	id->field_count++;
	must(id->field_count <= KVOF_FIELDS_MAX + 2);
	return id->name[at] != NULL && id->value[at] != NULL ? 0 : -ENOMEM;
}

static int domain_frame(struct identity *id)
{
	size_t bytes = 0;
	uint8_t *at;

	for (uint32_t i = 0; i < id->field_count; i++)
		bytes += 2 * sizeof(le64) + strlen(id->name[i]) + strlen(id->value[i]);
	id->domain = malloc(bytes);
	if (id->domain == NULL)
		return -ENOMEM;
	at = id->domain;
	for (uint32_t i = 0; i < id->field_count; i++) {
		at = frame_put(at, id->name[i]);
		at = frame_put(at, id->value[i]);
	}
	id->domain_bytes = (size_t)(at - id->domain);
	must(id->domain_bytes == bytes);
	return 0;
}

static int fields_add(struct identity *id, const struct kvof_cache_opts *opts, char why[256])
{
	char tokens[16];
	int rc = 0;

	if (opts->field_count > KVOF_FIELDS_MAX) {
		snprintf(why, 256, "%u fields in the model's identity, at most %u",
			 opts->field_count, KVOF_FIELDS_MAX);
		return -EINVAL;
	}
	for (uint32_t i = 0; i < opts->field_count && rc == 0; i++) {
		rc = field_check(opts->fields[i].name, opts->fields[i].value, why);
		if (rc == 0)
			rc = field_add(id, opts->fields[i].name, opts->fields[i].value, false, why);
	}
	snprintf(tokens, sizeof(tokens), "%u", id->block_tokens);
	if (rc == 0)
		rc = field_add(id, "block_tokens", tokens, true, why);
	if (rc == 0)
		rc = field_check("model_id", opts->model_id, why);
	if (rc == 0)
		rc = field_add(id, "model_id", opts->model_id, true, why);
	return rc;
}

int identity_make(const struct kvof_cache_opts *opts, char why[256], struct identity **out)
{
	struct identity *id = calloc(1, sizeof(*id));
	int rc;

	if (id == NULL)
		return -ENOMEM;
	id->block_tokens = opts->block_tokens != 0 ? opts->block_tokens : 256;
	rc = fields_add(id, opts, why);
	if (rc == 0)
		rc = domain_frame(id);
	if (rc != 0) {
		identity_free(&id);
		return rc;
	}
	*out = id;
	return 0;
}

void identity_free(struct identity **idp)
{
	struct identity *id = *idp;

	*idp = NULL;
	if (id == NULL)
		return;
	for (uint32_t i = 0; i < id->field_count; i++) {
		free(id->name[i]);
		free(id->value[i]);
	}
	free(id->domain);
	free(id);
}

void identity_block(const struct identity *id, const struct kvof_id *parent, const int32_t *tokens,
		    size_t token_count, struct kvof_id *out)
{
	static const struct kvof_id start;
	struct hash_sha256 *h = hash_sha256_begin();
	le64 length = le64_of(token_count * sizeof(le32));
	le32 word[64];

	frame_add(h, id->domain, id->domain_bytes);
	hash_sha256_add(h, parent != NULL ? parent : &start, sizeof(start));
	hash_sha256_add(h, &length, sizeof(length));
	while (token_count > 0) {
		size_t step = bytes_min(token_count, ARRAY_COUNT(word));

		for (size_t i = 0; i < step; i++)
			word[i] = le32_of((uint32_t)tokens[i]);
		hash_sha256_add(h, word, step * sizeof(le32));
		tokens += step;
		token_count -= step;
	}
	hash_sha256_end(&h, out->byte);
}

void identity_engine(const struct identity *id, const void *hash, size_t bytes,
		     struct kvof_id *out)
{
	static const char text[] = "kvof engine key";
	struct hash_sha256 *h;
	struct kvof_id parent;

	hash_sha256_once(text, sizeof(text) - 1, parent.byte);
	h = hash_sha256_begin();
	frame_add(h, id->domain, id->domain_bytes);
	hash_sha256_add(h, &parent, sizeof(parent));
	frame_add(h, hash, bytes);
	hash_sha256_end(&h, out->byte);
}

void identity_part(const struct kvof_id *block, struct part_of part, struct kvof_id *out)
{
	struct {
		le64 length;
		struct kvof_id block;
		le32 index, count;
	} text = {le64_of(sizeof(*block)), *block, le32_of(part.index), le32_of(part.count)};

	_Static_assert(sizeof(text) == 48, "a part's identity is made from 48 bytes");
	must(part.index < part.count);
	hash_sha256_once(&text, sizeof(text), out->byte);
}

void identity_domains(const char *model_id, struct kvof_id *out)
{
	static const char text[] = "kvof domains";
	struct hash_sha256 *h = hash_sha256_begin();

	frame_add(h, text, sizeof(text) - 1);
	frame_add(h, model_id, strlen(model_id));
	hash_sha256_end(&h, out->byte);
}

struct kv_key identity_key(const struct kvof_id *id)
{
	struct kv_key key = {.len = KV_KEY_BYTES_MAX};

	memcpy(key.byte, id->byte, KV_KEY_BYTES_MAX);
	return key;
}
