/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Domain list: le32 count, then each domain as le32 bytes and its fields as le16 name length, le16
 * value length, name, value. The bytes come from an array, so each length is checked before use.
 *
 * Invariant: what domains_add() writes, domains_compare() reads and finds itself in. Any thread.
 */
#include "cache/domains.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/must.h"

struct view {
	const uint8_t *at;
	size_t bytes;
};

struct field_view {
	struct view name, value;
};

static bool view_take(struct view *from, size_t bytes, struct view *out)
{
	if (bytes > from->bytes)
		return false;
	*out = (struct view){from->at, bytes};
	from->at += bytes;
	from->bytes -= bytes;
	return true;
}

static bool view_le32(struct view *from, uint32_t *out)
{
	struct view v;
	le32 x;

	if (!view_take(from, sizeof(x), &v))
		return false;
	memcpy(&x, v.at, sizeof(x));
	*out = le32_get(x);
	return true;
}

static bool view_field(struct view *from, struct field_view *out)
{
	struct view v;
	le16 length[2];

	if (!view_take(from, sizeof(length), &v))
		return false;
	memcpy(length, v.at, sizeof(length));
	return view_take(from, le16_get(length[0]), &out->name) &&
	       view_take(from, le16_get(length[1]), &out->value);
}

static bool view_is(const struct view *v, const char *text)
{
	return v->bytes == strlen(text) && memcmp(v->at, text, v->bytes) == 0;
}

static bool starts_with(const char *text, const char *head)
{
	return strncmp(text, head, strlen(head)) == 0;
}

/* Fields that users of one model differ in by design, or that are secret. */
static bool field_is_own(const char *name)
{
	return strcmp(name, "shard_index") == 0 || starts_with(name, "tenant") ||
	       starts_with(name, "salt");
}

static bool find_field(struct view domain, const char *name, struct view *value)
{
	struct field_view f;

	while (domain.bytes > 0 && view_field(&domain, &f)) {
		if (view_is(&f.name, name)) {
			*value = f.value;
			return true;
		}
	}
	return false;
}

struct difference {
	unsigned fields;                   /* how many differ */
	const char *name;                  /* the first of ours that does; NULL: one of theirs */
	struct view their_name, theirs;
	const char *ours;
};

static bool has_field(const struct identity *id, const struct view *name)
{
	for (uint32_t i = 0; i < id->field_count; i++)
		if (!field_is_own(id->name[i]) && view_is(name, id->name[i]))
			return true;
	return false;
}

static void difference_of(const struct identity *id, struct view domain, struct difference *d)
{
	struct field_view f;

	*d = (struct difference){0};
	for (uint32_t i = 0; i < id->field_count; i++) {
		struct view theirs = {0};

		if (field_is_own(id->name[i]))
			continue;
		if (find_field(domain, id->name[i], &theirs) && view_is(&theirs, id->value[i]))
			continue;
		if (d->fields++ == 0) {
			d->name = id->name[i];
			d->ours = id->value[i];
			d->theirs = theirs;
		}
	}
	while (domain.bytes > 0 && view_field(&domain, &f)) {
		if (has_field(id, &f.name))
			continue;
		if (d->fields++ == 0) {
			d->their_name = f.name;
			d->theirs = f.value;
		}
	}
}

static void difference_tell(const struct difference *d, char why[256])
{
	int bytes = (int)bytes_min(d->theirs.bytes, 60);

	if (d->name == NULL)
		snprintf(why, 256, "field \"%.*s\" differs: \"%.*s\" in use on the array, not set "
			 "here", (int)bytes_min(d->their_name.bytes, 64),
			 (const char *)d->their_name.at, bytes, (const char *)d->theirs.at);
	else if (d->theirs.at == NULL)
		snprintf(why, 256, "field \"%.64s\" differs: not set on the array, \"%.60s\" here",
			 d->name, d->ours);
	else
		snprintf(why, 256, "field \"%.64s\" differs: \"%.*s\" in use on the array, "
			 "\"%.60s\" here", d->name, bytes, (const char *)d->theirs.at, d->ours);
	for (char *c = why; *c != '\0'; c++)    /* others wrote it: one line all the same */
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
}

/* A domain's fields are whole: they fill its bytes exactly. */
static bool domain_whole(struct view domain)
{
	struct field_view f;

	while (domain.bytes > 0)
		if (!view_field(&domain, &f))
			return false;
	return true;
}

enum domains_answer domains_compare(const struct identity *id, const uint8_t *list, size_t bytes,
				    char why[256])
{
	struct view all = {list, bytes};
	struct difference nearest = {0}, d;
	uint32_t count, domain_bytes;

	why[0] = '\0';
	if (bytes == 0)
		return DOMAINS_NONE;
	if (!view_le32(&all, &count) || count > DOMAINS_MAX)
		return DOMAINS_BAD;
	for (uint32_t i = 0; i < count; i++) {
		struct view domain;

		if (!view_le32(&all, &domain_bytes) || !view_take(&all, domain_bytes, &domain) ||
		    !domain_whole(domain))
			return DOMAINS_BAD;
		difference_of(id, domain, &d);
		if (d.fields == 0)
			return DOMAINS_SAME;
		if (i == 0 || d.fields < nearest.fields)
			nearest = d;
	}
	if (all.bytes != 0)
		return DOMAINS_BAD;
	if (count == 0)
		return DOMAINS_NONE;
	difference_tell(&nearest, why);
	return DOMAINS_DIFFER;
}

static size_t own_bytes(const struct identity *id)
{
	size_t bytes = sizeof(le32);

	for (uint32_t i = 0; i < id->field_count; i++)
		if (!field_is_own(id->name[i]))
			bytes += 2 * sizeof(le16) + strlen(id->name[i]) + strlen(id->value[i]);
	return bytes;
}

static uint8_t *own_put(const struct identity *id, size_t bytes, uint8_t *at)
{
	le32 head = le32_of((uint32_t)(bytes - sizeof(le32)));

	memcpy(at, &head, sizeof(head));
	at += sizeof(head);
	for (uint32_t i = 0; i < id->field_count; i++) {
		size_t name = strlen(id->name[i]), value = strlen(id->value[i]);
		le16 length[2] = {le16_of((uint16_t)name), le16_of((uint16_t)value)};

		if (field_is_own(id->name[i]))
			continue;
		memcpy(at, length, sizeof(length));
		memcpy(at + sizeof(length), id->name[i], name);
		memcpy(at + sizeof(length) + name, id->value[i], value);
		at += sizeof(length) + name + value;
	}
	return at;
}

size_t domains_add(const struct identity *id, const uint8_t *list, size_t bytes, uint8_t *out)
{
	size_t own = own_bytes(id);
	char why[256];
	uint32_t count = 0, domain_bytes;
	struct view all = {list, bytes}, domain;
	le32 head;

	if (own + sizeof(le32) > DOMAINS_BYTES_MAX)
		return 0;
	if (domains_compare(id, list, bytes, why) != DOMAINS_DIFFER || !view_le32(&all, &count))
		all = (struct view){list, 0};
	/* the oldest stand first */
	while (all.bytes > 0 &&
	       (count >= DOMAINS_MAX || all.bytes + own + sizeof(le32) > DOMAINS_BYTES_MAX)) {
		must(view_le32(&all, &domain_bytes) && view_take(&all, domain_bytes, &domain));
		count--;
	}
	if (all.bytes == 0)
		count = 0;
	head = le32_of(count + 1);
	memcpy(out, &head, sizeof(head));
	if (all.bytes > 0)
		memcpy(out + sizeof(head), all.at, all.bytes);
	return (size_t)(own_put(id, own, out + sizeof(head) + all.bytes) - out);
}

/* --- for those who look at lists -------------------------------------------------------------- */

bool domains_next(const uint8_t *list, size_t bytes, size_t *at, struct domains_entry *out)
{
	struct view all = {list, bytes}, domain;
	uint32_t count, domain_bytes;

	if (!view_le32(&all, &count) || count > DOMAINS_MAX)
		return false;
	if (*at != 0) {
		must(*at <= bytes);
		all = (struct view){list + *at, bytes - *at};
	}
	if (!view_le32(&all, &domain_bytes) || !view_take(&all, domain_bytes, &domain) ||
	    !domain_whole(domain))
		return false;
	*at = (size_t)(all.at - list);
	*out = (struct domains_entry){domain.at, domain.bytes};
	return true;
}

static void text_add(char *out, size_t bytes, size_t *at, const struct view *v)
{
	for (size_t i = 0; i < v->bytes && *at + 1 < bytes; i++)
		out[(*at)++] = (char)(v->at[i] < ' ' || v->at[i] == 0x7f ? '?' : v->at[i]);
	out[*at] = '\0';
}

void domains_text(const struct domains_entry *entry, char *out, size_t bytes)
{
	const struct view comma = {(const uint8_t *)", ", 2}, is = {(const uint8_t *)"=", 1};
	struct view domain = {entry->at, entry->bytes};
	struct field_view f;
	size_t at = 0;

	must(bytes > 0);
	out[0] = '\0';
	while (domain.bytes > 0 && view_field(&domain, &f)) {
		if (at > 0)
			text_add(out, bytes, &at, &comma);
		text_add(out, bytes, &at, &f.name);
		text_add(out, bytes, &at, &is);
		text_add(out, bytes, &at, &f.value);
	}
}

bool domains_field(const struct domains_entry *entry, const char *name, char *out, size_t bytes)
{
	struct view domain = {entry->at, entry->bytes}, value;

	if (!find_field(domain, name, &value) || value.bytes >= bytes)
		return false;
	memcpy(out, value.at, value.bytes);
	out[value.bytes] = '\0';
	return true;
}

uint16_t domains_entry_tag(const struct domains_entry *entry)
{
	uint8_t digest[32];
	uint16_t tag;

	hash_sha256_once(entry->at, entry->bytes, digest);
	tag = (uint16_t)(digest[0] | digest[1] << 8);
	return tag != 0 ? tag : 1;
}

uint16_t domains_tag(const struct identity *id)
{
	size_t bytes = own_bytes(id);
	uint8_t *own = malloc(bytes);
	struct domains_entry entry = {own + sizeof(le32), bytes - sizeof(le32)};
	uint16_t tag;

	if (own == NULL)
		return 0;                  /* at open only; the values then have no tag */
	own_put(id, bytes, own);
	tag = domains_entry_tag(&entry);
	free(own);
	return tag;
}
