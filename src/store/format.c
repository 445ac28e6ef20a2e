/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes and checks the store's drive format. Pure functions; bytes from a drive are input, so each
 * check looks at every field once and answers in words. Any thread.
 */
#include "store/format.h"

#include <string.h>

#include "base/hash.h"
#include "base/must.h"

static const uint8_t super_magic[8] = {'K', 'V', 'O', 'F', 'S', 'U', 'P', 'R'};
static const uint8_t header_magic[8] = {'K', 'V', 'O', 'F', 'S', 'E', 'G', 'H'};
static const uint8_t footer_magic[8] = {'K', 'V', 'O', 'F', 'S', 'E', 'G', 'F'};
static const uint8_t stripe_magic[8] = {'K', 'V', 'O', 'F', 'S', 'T', 'R', 'P'};
static const uint8_t record_magic[8] = {'K', 'V', 'O', 'F', 'R', 'E', 'C', 'D'};

#define CRC_FROM 12                          /* magic and the crc itself are not covered by it */
#define MOUNT_MAX (UINT32_MAX - 16)          /* an open counts up a few times */

static le32 struct_crc(const void *at, size_t bytes)
{
	return le32_of(crc32c((const uint8_t *)at + CRC_FROM, bytes - CRC_FROM));
}

static bool le32_same(le32 a, le32 b)
{
	return memcmp(a.b, b.b, sizeof(a.b)) == 0;
}

uint64_t fmt_store_id(const uint8_t uuid[16])
{
	le64 id;

	memcpy(id.b, uuid, sizeof(id.b));
	return le64_get(id);
}

uint32_t fmt_segment_count(uint64_t drive_bytes, uint32_t segment_bytes)
{
	uint64_t frame = (uint64_t)(FMT_FIRST_SEGMENT_BLOCK + 1) * FMT_BLOCK_BYTES;
	uint64_t count, most;

	must(segment_bytes >= 4 * FMT_BLOCK_BYTES && segment_bytes % FMT_BLOCK_BYTES == 0);
	if (drive_bytes <= frame)
		return 0;
	count = (drive_bytes - frame) / segment_bytes;
	/* A place is a number of blocks in 32 bits. */
	most = (UINT32_MAX - FMT_FIRST_SEGMENT_BLOCK) / (segment_bytes >> FMT_BLOCK_SHIFT);
	most = bytes_min(most, 1u << 24);
	return (uint32_t)bytes_min(count, most);
}

void fmt_super_write(uint8_t out[FMT_BLOCK_BYTES], const struct fmt_super_info *in, uint64_t block)
{
	struct fmt_super s = {
		.version = le32_of(FMT_VERSION),
		.drive = in->drive,
		.drive_count = in->drive_count,
		.segment_bytes = le32_of(in->segment_bytes),
		.drive_bytes = le64_of(in->drive_bytes),
		.block = le64_of(block),
		.write_count = le64_of(in->write_count),
		.mount = le32_of(in->mount),
		.value_bytes_max = le32_of(in->value_bytes_max),
		.epoch = le64_of(in->epoch),
		.trusted = le32_of(in->trusted),
		.generation_min = le64_of(in->generation_min),
		.sequence_min = le64_of(in->sequence_min),
	};

	must(in->drive < in->drive_count && in->drive_count <= FMT_DRIVES_MAX);
	memcpy(s.magic, super_magic, sizeof(s.magic));
	memcpy(s.uuid, in->uuid, sizeof(s.uuid));
	s.crc = struct_crc(&s, sizeof(s));
	memset(out, 0, FMT_BLOCK_BYTES);
	memcpy(out, &s, sizeof(s));
}

enum fmt_super_verdict fmt_super_check(const uint8_t in[FMT_BLOCK_BYTES], uint64_t block,
				       struct fmt_super_info *out)
{
	struct fmt_super s;

	memcpy(&s, in, sizeof(s));
	if (memcmp(s.magic, super_magic, sizeof(s.magic)) != 0)
		return bytes_all_zero(in, FMT_BLOCK_BYTES) ? FMT_SUPER_BLANK : FMT_SUPER_FOREIGN;
	if (le32_get(s.version) > FMT_VERSION)
		return FMT_SUPER_NEWER;
	if (!le32_same(s.crc, struct_crc(&s, sizeof(s))) || le64_get(s.block) != block)
		return FMT_SUPER_DAMAGED;
	*out = (struct fmt_super_info){
		.store_id = fmt_store_id(s.uuid),
		.drive = s.drive,
		.drive_count = s.drive_count,
		.segment_bytes = le32_get(s.segment_bytes),
		.value_bytes_max = le32_get(s.value_bytes_max),
		.mount = le32_get(s.mount),
		.trusted = le32_get(s.trusted),
		.drive_bytes = le64_get(s.drive_bytes),
		.write_count = le64_get(s.write_count),
		.epoch = le64_get(s.epoch),
		.generation_min = le64_get(s.generation_min),
		.sequence_min = le64_get(s.sequence_min),
	};
	memcpy(out->uuid, s.uuid, sizeof(out->uuid));
	if (s.drive_count < 1 || s.drive_count > FMT_DRIVES_MAX || s.drive >= s.drive_count)
		return FMT_SUPER_DAMAGED;
	if (out->segment_bytes < 4 * FMT_BLOCK_BYTES || out->segment_bytes % FMT_BLOCK_BYTES != 0 ||
	    out->value_bytes_max > out->segment_bytes || out->mount > MOUNT_MAX ||
	    out->sequence_min > FMT_SEQ_FOUND_MAX || out->value_bytes_max > FMT_VALUE_BYTES_MAX)
		return FMT_SUPER_DAMAGED;
	return FMT_SUPER_OK;
}

static struct fmt_segment segment_of(const uint8_t magic[8], const struct fmt_place *at,
				     uint32_t segment_bytes, const struct fmt_segment_info *in)
{
	struct fmt_segment s = {
		.state = (uint8_t)in->state,
		.drive = at->drive,
		.version = le16_of(FMT_VERSION),
		.store_id = le64_of(at->store_id),
		.block = le64_of(at->block),
		.generation = le64_of(in->generation),
		.oldest_generation = le64_of(in->oldest_generation),
		.sequence_base = le64_of(in->sequence_base),
		.segment_bytes = le32_of(segment_bytes),
		.used_blocks = le32_of(in->used_blocks),
		.entry_count = le32_of(in->entry_count),
		.entries_crc = le32_of(in->entries_crc),
		.mount = le32_of(in->mount),
		.wall_s = le64_of(in->wall_s),
		.budget_left = le64_of((uint64_t)in->budget_left),
	};

	memcpy(s.magic, magic, sizeof(s.magic));
	s.crc = struct_crc(&s, sizeof(s));
	return s;
}

static const char *segment_check(const uint8_t *in, const uint8_t magic[8],
				 const struct fmt_place *at, uint32_t segment_bytes,
				 struct fmt_segment_info *out)
{
	struct fmt_segment s;
	uint32_t blocks = segment_bytes >> FMT_BLOCK_SHIFT;

	memcpy(&s, in, sizeof(s));
	if (memcmp(s.magic, magic, sizeof(s.magic)) != 0)
		return "no magic";
	if (!le32_same(s.crc, struct_crc(&s, sizeof(s))))
		return "checksum";
	if (le16_get(s.version) != FMT_VERSION)
		return "version";
	if (le64_get(s.store_id) != at->store_id)
		return "of another store";
	if (s.drive != at->drive || le64_get(s.block) != at->block)
		return "of another place";
	if (le32_get(s.segment_bytes) != segment_bytes)
		return "segment size";
	*out = (struct fmt_segment_info){
		.state = (enum fmt_segment_state)s.state,
		.generation = le64_get(s.generation),
		.oldest_generation = le64_get(s.oldest_generation),
		.sequence_base = le64_get(s.sequence_base),
		.used_blocks = le32_get(s.used_blocks),
		.entry_count = le32_get(s.entry_count),
		.entries_crc = le32_get(s.entries_crc),
		.mount = le32_get(s.mount),
		.wall_s = le64_get(s.wall_s),
		.budget_left = (int64_t)le64_get(s.budget_left),
	};
	if (s.state < FMT_SEGMENT_ERASED || s.state > FMT_SEGMENT_SEALED)
		return "state";
	if (out->sequence_base > FMT_SEQ_FOUND_MAX)
		return "sequence";
	if (out->used_blocks < 1 || out->used_blocks >= blocks ||
	    out->entry_count > fmt_entries_max(segment_bytes) ||
	    out->entry_count >= out->used_blocks ||
	    fmt_footer_blocks(out->entry_count) > blocks - out->used_blocks)
		return "size";
	return NULL;
}

void fmt_header_write(uint8_t out[FMT_BLOCK_BYTES], const struct fmt_place *at,
		      uint32_t segment_bytes, const struct fmt_segment_info *in)
{
	struct fmt_segment_info info = *in;
	struct fmt_segment s;

	info.used_blocks = 1;
	info.entry_count = info.entries_crc = 0;
	s = segment_of(header_magic, at, segment_bytes, &info);
	memset(out, 0, FMT_BLOCK_BYTES);
	memcpy(out, &s, sizeof(s));
}

const char *fmt_header_check(const uint8_t in[FMT_BLOCK_BYTES], const struct fmt_place *at,
			     uint32_t segment_bytes, struct fmt_segment_info *out)
{
	return segment_check(in, header_magic, at, segment_bytes, out);
}

void fmt_footer_write(uint8_t *out, const struct fmt_place *at, uint32_t segment_bytes,
		      const struct fmt_segment_info *in, const struct fmt_entry *entries)
{
	uint32_t blocks = fmt_footer_blocks(in->entry_count);
	uint8_t *tail = out + (size_t)(blocks - 1) * FMT_BLOCK_BYTES;
	size_t in_tail = in->entry_count < FMT_TAIL_ENTRIES ? in->entry_count : FMT_TAIL_ENTRIES;
	struct fmt_segment_info info = *in;
	struct fmt_segment s;

	must(in->entry_count <= fmt_entries_max(segment_bytes) && in->used_blocks >= 1);
	info.entries_crc = crc32c(entries, in->entry_count * sizeof(*entries));
	s = segment_of(footer_magic, at, segment_bytes, &info);
	memset(out, 0, (size_t)blocks * FMT_BLOCK_BYTES);
	memcpy(tail, &s, sizeof(s));
	if (in_tail > 0)
		memcpy(tail + sizeof(s), entries, in_tail * sizeof(*entries));
	if (in->entry_count > in_tail)
		memcpy(out, entries + in_tail, (in->entry_count - in_tail) * sizeof(*entries));
}

const char *fmt_footer_check(const uint8_t tail[FMT_BLOCK_BYTES], const struct fmt_place *at,
			     uint32_t segment_bytes, struct fmt_segment_info *out)
{
	return segment_check(tail, footer_magic, at, segment_bytes, out);
}

/* A part's key has 16 bytes and a length of its own. */
static bool key_is_sound(const uint8_t key[KV_KEY_BYTES_MAX], uint8_t len)
{
	return len == FMT_KEY_PART ||
	       (len >= 1 && len <= KV_KEY_BYTES_MAX &&
		bytes_all_zero(key + len, (size_t)KV_KEY_BYTES_MAX - len));
}

static bool stripe_is_sound(uint8_t stripe)
{
	return stripe == 0 || (stripe & ~3u) == FMT_STRIPE_HEAD;
}

void fmt_stripe_write(uint8_t *out, uint32_t total_bytes, uint32_t part_count)
{
	struct fmt_stripe s = {
		.total_bytes = le32_of(total_bytes),
		.part_count = le32_of(part_count),
		.stripe_bytes = le32_of(FMT_STRIPE_BYTES),
	};

	must(part_count >= 2);
	memcpy(s.magic, stripe_magic, sizeof(s.magic));
	memcpy(out, &s, sizeof(s));
}

bool fmt_stripe_check(const uint8_t *in, uint32_t total_bytes, uint32_t part_count)
{
	struct fmt_stripe s;

	memcpy(&s, in, sizeof(s));
	return memcmp(s.magic, stripe_magic, sizeof(s.magic)) == 0 &&
	       le32_get(s.total_bytes) == total_bytes && le32_get(s.part_count) == part_count &&
	       le32_get(s.stripe_bytes) == FMT_STRIPE_BYTES;
}

static const char *entry_check(const struct fmt_entry *e, const struct fmt_segment_info *info)
{
	uint32_t block = le32_get(e->block), bytes = le32_get(e->value_bytes);

	if (!key_is_sound(e->key, e->key_len) || !stripe_is_sound(e->stripe))
		return "key of an entry";
	if (e->kind != FMT_PUT && (e->kind != FMT_DELETE || bytes != 0))
		return "kind of an entry";
	if (block < 1 || block >= info->used_blocks ||
	    fmt_record_blocks(bytes) > info->used_blocks - block)
		return "place of an entry";
	if (info->sequence_base + le32_get(e->sequence_delta) > FMT_SEQ_FOUND_MAX)
		return "sequence of an entry";
	return NULL;
}

const char *fmt_footer_entries(const uint8_t *footer, const struct fmt_segment_info *info,
			       struct fmt_entry *entries)
{
	const uint8_t *tail = footer + (size_t)(fmt_footer_blocks(info->entry_count) - 1) *
					       FMT_BLOCK_BYTES;
	size_t count = info->entry_count;
	size_t in_tail = count < FMT_TAIL_ENTRIES ? count : FMT_TAIL_ENTRIES;

	if (in_tail > 0)
		memcpy(entries, tail + sizeof(struct fmt_segment), in_tail * sizeof(*entries));
	if (count > in_tail)
		memcpy(entries + in_tail, footer, (count - in_tail) * sizeof(*entries));
	if (crc32c(entries, count * sizeof(*entries)) != info->entries_crc)
		return "checksum of the entries";
	for (size_t i = 0; i < count; i++) {
		const char *wrong = entry_check(&entries[i], info);

		if (wrong != NULL)
			return wrong;
	}
	return NULL;
}

void fmt_record_write(uint8_t out[sizeof(struct fmt_record)], const struct fmt_place *at,
		      const struct fmt_record_info *in)
{
	struct fmt_record r = {
		.kind = (uint8_t)in->kind,
		.key_len = in->key.len,
		.drive = at->drive,
		.version = FMT_VERSION,
		.stripe = in->stripe,
		.store_id = le64_of(at->store_id),
		.block = le64_of(at->block),
		.generation = le64_of(in->generation),
		.sequence = le64_of(in->sequence),
		.value_bytes = le32_of(in->value_bytes),
		.mount = le32_of(in->mount),
		.durable_blocks = le32_of(in->durable_blocks),
		.payload_xxh3 = le64_of(in->payload_xxh3),
	};

	must(in->sequence <= FMT_SEQ_MAX && key_is_sound(in->key.byte, in->key.len));
	must(in->kind == FMT_PUT || in->value_bytes == 0);
	memcpy(r.magic, record_magic, sizeof(r.magic));
	memcpy(r.key, in->key.byte, sizeof(r.key));
	r.crc = struct_crc(&r, sizeof(r));
	memcpy(out, &r, sizeof(r));
}

const char *fmt_record_check(const uint8_t in[sizeof(struct fmt_record)],
			     const struct fmt_place *at, uint32_t room_blocks,
			     struct fmt_record_info *out)
{
	struct fmt_record r;

	memcpy(&r, in, sizeof(r));
	if (memcmp(r.magic, record_magic, sizeof(r.magic)) != 0)
		return "no magic";
	if (!le32_same(r.crc, struct_crc(&r, sizeof(r))))
		return "checksum";
	if (r.version != FMT_VERSION)
		return "version";
	if (le64_get(r.store_id) != at->store_id)
		return "of another store";
	if (r.drive != at->drive || le64_get(r.block) != at->block)
		return "of another place";
	if (r.kind != FMT_PUT && r.kind != FMT_DELETE)
		return "kind";
	if (!key_is_sound(r.key, r.key_len) || !stripe_is_sound(r.stripe))
		return "key";
	*out = (struct fmt_record_info){
		.kind = (enum fmt_kind)r.kind,
		.stripe = r.stripe,
		.key = {.len = r.key_len},
		.generation = le64_get(r.generation),
		.sequence = le64_get(r.sequence),
		.value_bytes = le32_get(r.value_bytes),
		.mount = le32_get(r.mount),
		.durable_blocks = le32_get(r.durable_blocks),
		.payload_xxh3 = le64_get(r.payload_xxh3),
	};
	memcpy(out->key.byte, r.key, sizeof(r.key));
	if (out->sequence > FMT_SEQ_FOUND_MAX)
		return "sequence";
	if (fmt_record_blocks(out->value_bytes) > room_blocks ||
	    (r.kind == FMT_DELETE && out->value_bytes != 0))
		return "size";
	return NULL;
}
