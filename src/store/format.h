/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store writes on a drive, and the pure functions that write and check it. docs/formats.md
 * section "Drive" is the prose, with the crash table.
 *
 *   block 0            superblock, first copy
 *   block 1..15        zero
 *   block 16 + i * n   segment i of n blocks: header, records, ..., footer, which ends with it
 *   last block         superblock, second copy
 *
 * Everything carries magic, version, the store's id, its own address and a CRC32C, so that bytes of
 * another store, of another generation of the segment or of another place are never taken for
 * these. Checks answer with a word for people: NULL is "fine". Any thread.
 */
#ifndef KVOF_STORE_FORMAT_H
#define KVOF_STORE_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/kv.h"

#define FMT_BLOCK_BYTES 4096u
#define FMT_BLOCK_SHIFT 12
#define FMT_VERSION 1
#define FMT_FIRST_SEGMENT_BLOCK 16u
#define FMT_BLANK_BYTES (128u * 1024)        /* must be zero on a drive that is not ours yet */
#define FMT_DRIVES_MAX 16
#define FMT_STRIPE_BYTES (1u << 20)
#define FMT_SEQ_MAX ((UINT64_C(1) << 52) - 1)
#define FMT_SEQ_FOUND_MAX (FMT_SEQ_MAX / 2)  /* on a drive: there must be some left to give */
#define FMT_VALUE_BYTES_MAX (64u << 20)

/* Identity of what is checked: what the reader expects at this place. */
struct fmt_place {
	uint64_t store_id;
	uint8_t drive;
	uint64_t block;                      /* from the start of the drive */
};

struct fmt_super {
	uint8_t magic[8];
	le32 crc;                            /* of the bytes that follow, to the struct's end */
	le32 version;
	uint8_t uuid[16];                    /* of the store; its first 8 bytes are the store id */
	uint8_t drive, drive_count;
	uint8_t reserved_a[2];
	le32 segment_bytes;
	le64 drive_bytes;
	le64 block;                          /* own address */
	le64 write_count;                    /* of the superblock: the higher copy is the truth */
	le32 mount;                          /* counts opens; 0: made, never opened */
	le32 value_bytes_max;
	le64 epoch;                          /* counts changes of `trusted` */
	le32 trusted;                        /* bit i: what drive i holds may be believed */
	le32 reserved_b;
	le64 generation_min;                 /* segments of this drive below it are dead */
	le64 sequence_min;                   /* sequence numbers go on above it */
	uint8_t reserved_c[152];
};
_Static_assert(sizeof(struct fmt_super) == 256, "superblock is 256 bytes");
_Static_assert(offsetof(struct fmt_super, crc) == 8, "crc follows the magic");
_Static_assert(offsetof(struct fmt_super, version) == 12, "the version keeps its place for ever");
_Static_assert(_Alignof(struct fmt_super) == 1, "read in place");

enum fmt_segment_state { FMT_SEGMENT_ERASED = 1, FMT_SEGMENT_OPEN = 2, FMT_SEGMENT_SEALED = 3 };

/* The same struct heads a segment and its footer. In the footer the records up to used_blocks are
 * listed; in state OPEN more may follow there, found by hopping over record headers. */
struct fmt_segment {
	uint8_t magic[8];                    /* differs between header and footer */
	le32 crc;
	uint8_t state, drive;
	le16 version;
	le64 store_id;
	le64 block;                          /* own address */
	le64 generation;                     /* unique in the store */
	le64 oldest_generation;              /* segments of this drive below it are dead */
	le64 sequence_base;                  /* entries count from it */
	le32 segment_bytes;
	le32 used_blocks;                    /* footer: up to here the entries tell */
	le32 entry_count;                    /* footer */
	le32 entries_crc;                    /* footer: of all entries, in order */
	le32 mount;                          /* footer: of the last record listed or later */
	le64 wall_s;                         /* when it was written; 0: without a write budget */
	le64 budget_left;                    /* of the drive, in bytes, then; signed */
	uint8_t reserved[36];
};
_Static_assert(sizeof(struct fmt_segment) == 128, "segment header is 128 bytes");
_Static_assert(_Alignof(struct fmt_segment) == 1, "read in place");

/* One record in a footer. Entries 0..FMT_TAIL_ENTRIES-1 follow the struct in the last block; the
 * others fill the blocks in front of it, in order. */
struct fmt_entry {
	uint8_t key[KV_KEY_BYTES_MAX];
	le32 block;                          /* from the start of the segment */
	le32 value_bytes;
	le32 sequence_delta;                 /* on top of the segment's sequence_base */
	uint8_t key_len;
	uint8_t kind;
	uint8_t stripe;                      /* as in the record */
	uint8_t reserved;
};
_Static_assert(sizeof(struct fmt_entry) == 32, "footer entry is 32 bytes");
_Static_assert(_Alignof(struct fmt_entry) == 1, "read in place");
#define FMT_TAIL_ENTRIES ((FMT_BLOCK_BYTES - sizeof(struct fmt_segment)) / sizeof(struct fmt_entry))
_Static_assert(FMT_TAIL_ENTRIES == 124, "a footer of one block lists 124 records");

enum fmt_kind { FMT_PUT = 1, FMT_DELETE = 2 };

/* A value that spans the drives: its parts are records under keys of this length, of 16 bytes, that
 * no host can name; its head is the record of its own key. */
#define FMT_KEY_PART 17
#define FMT_STRIPE_HEAD 0x80u

/* Value of a head. The XXH3-64 of each part and, for each but the first, the 128 bytes of the value
 * that its header took the place of, follow. */
struct fmt_stripe {
	uint8_t magic[8];
	le32 total_bytes;                    /* of the value */
	le32 part_count;
	le32 stripe_bytes;
	uint8_t reserved[44];
};
_Static_assert(sizeof(struct fmt_stripe) == 64, "a head begins with 64 bytes");
_Static_assert(_Alignof(struct fmt_stripe) == 1, "read in place");

/* Lies in front of the payload, in the same write. A delete has no payload. */
struct fmt_record {
	uint8_t magic[8];
	le32 crc;
	uint8_t kind, key_len, drive, version;
	uint8_t key[KV_KEY_BYTES_MAX];
	le64 store_id;
	le64 block;                          /* own address, from the start of the drive */
	le64 generation;                     /* of the segment */
	le64 sequence;                       /* the highest of a key is the truth */
	le32 value_bytes;
	le32 mount;                          /* never falls along a segment */
	le32 durable_blocks;                 /* the segment's records before it were flushed */
	uint8_t stripe;                      /* FMT_STRIPE_HEAD and a number of two bits, or 0 */
	uint8_t reserved_a[3];
	le64 payload_xxh3;
	uint8_t reserved_b[40];
};
_Static_assert(sizeof(struct fmt_record) == 128, "record header is 128 bytes");
_Static_assert(_Alignof(struct fmt_record) == 1, "read in place");

static inline uint32_t fmt_record_blocks(uint32_t value_bytes)
{
	uint64_t bytes = sizeof(struct fmt_record) + (uint64_t)value_bytes;

	return (uint32_t)((bytes + FMT_BLOCK_BYTES - 1) >> FMT_BLOCK_SHIFT);
}

/* Blocks of a footer that lists entry_count records. */
static inline uint32_t fmt_footer_blocks(uint32_t entry_count)
{
	uint32_t tail = (uint32_t)FMT_TAIL_ENTRIES;
	uint32_t more = entry_count > tail ? entry_count - tail : 0;
	uint32_t per_block = FMT_BLOCK_BYTES / sizeof(struct fmt_entry);

	return 1 + (more + per_block - 1) / per_block;
}

/* Most records that a segment can list: all of one block. */
static inline uint32_t fmt_entries_max(uint32_t segment_bytes)
{
	return (segment_bytes >> FMT_BLOCK_SHIFT) - 2;
}

static inline uint64_t fmt_segment_block(uint32_t segment_bytes, uint32_t segment_index)
{
	uint64_t segment_blocks = segment_bytes >> FMT_BLOCK_SHIFT;

	return FMT_FIRST_SEGMENT_BLOCK + segment_blocks * segment_index;
}

/* Number of segments that fit a drive. */
uint32_t fmt_segment_count(uint64_t drive_bytes, uint32_t segment_bytes);

struct fmt_super_info {
	uint8_t uuid[16];
	uint64_t store_id;
	uint8_t drive, drive_count;
	uint32_t segment_bytes, value_bytes_max, mount, trusted;
	uint64_t drive_bytes, write_count, epoch, generation_min, sequence_min;
};

enum fmt_super_verdict {
	FMT_SUPER_OK,
	FMT_SUPER_BLANK,                     /* all zero */
	FMT_SUPER_FOREIGN,                   /* not ours */
	FMT_SUPER_NEWER,                     /* ours, of a later version */
	FMT_SUPER_DAMAGED,                   /* ours, but the checksum or a field is wrong */
};

/* out: one block, zeroed past the struct. */
void fmt_super_write(uint8_t out[FMT_BLOCK_BYTES], const struct fmt_super_info *in, uint64_t block);
enum fmt_super_verdict fmt_super_check(const uint8_t in[FMT_BLOCK_BYTES], uint64_t block,
				       struct fmt_super_info *out);
uint64_t fmt_store_id(const uint8_t uuid[16]);

struct fmt_segment_info {
	enum fmt_segment_state state;
	uint64_t generation, oldest_generation, sequence_base;
	uint32_t used_blocks, entry_count, entries_crc, mount;
	uint64_t wall_s;
	int64_t budget_left;
};

void fmt_header_write(uint8_t out[FMT_BLOCK_BYTES], const struct fmt_place *at,
		      uint32_t segment_bytes, const struct fmt_segment_info *in);
const char *fmt_header_check(const uint8_t in[FMT_BLOCK_BYTES], const struct fmt_place *at,
			     uint32_t segment_bytes, struct fmt_segment_info *out);

/* Writes all blocks of a footer; at: of the segment's last block. in->entries_crc is computed. */
void fmt_footer_write(uint8_t *out, const struct fmt_place *at, uint32_t segment_bytes,
		      const struct fmt_segment_info *in, const struct fmt_entry *entries);
/* The last block alone; the entries are then checked by fmt_footer_entries(). */
const char *fmt_footer_check(const uint8_t tail[FMT_BLOCK_BYTES], const struct fmt_place *at,
			     uint32_t segment_bytes, struct fmt_segment_info *out);
/* footer: all its blocks. Copies the entries out once each is known to lie inside the segment. */
const char *fmt_footer_entries(const uint8_t *footer, const struct fmt_segment_info *info,
			       struct fmt_entry *entries);

void fmt_stripe_write(uint8_t *out, uint32_t total_bytes, uint32_t part_count);
bool fmt_stripe_check(const uint8_t *in, uint32_t total_bytes, uint32_t part_count);

struct fmt_record_info {
	struct kv_key key;                   /* len FMT_KEY_PART: a part */
	enum fmt_kind kind;
	uint8_t stripe;
	uint64_t generation, sequence, payload_xxh3;
	uint32_t value_bytes, mount, durable_blocks;
};

void fmt_record_write(uint8_t out[sizeof(struct fmt_record)], const struct fmt_place *at,
		      const struct fmt_record_info *in);
/* room_blocks: blocks from here to the end of what the record may take. */
const char *fmt_record_check(const uint8_t in[sizeof(struct fmt_record)],
			     const struct fmt_place *at, uint32_t room_blocks,
			     struct fmt_record_info *out);

#endif
