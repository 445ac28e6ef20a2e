/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The footer that makes a value trustworthy, and how a block is cut into values: pure functions,
 * any thread. docs/formats.md "value frame and parts" holds the bytes and the reasons.
 *
 *   block of at most one part      value (0 of 1): payload, footer
 *   block of n > 1 parts           values (0 of n) .. (n-1 of n): piece of the payload, footer
 *                                  value (0 of 1): footer alone, the "head", stored last
 */
#ifndef KVOF_CACHE_FRAME_H
#define KVOF_CACHE_FRAME_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/bytes.h"
#include "kvof/cache.h"

#define FRAME_BYTES 64
#define FRAME_MAGIC 0x46564f4bu            /* "KOVF" */
#define FRAME_VERSION 1
#define FRAME_PARTS_MAX (1u << 20)
#define FRAME_CUT_MAX ((64u << 20) - FRAME_BYTES)

struct frame_footer {
	le32 magic;
	le16 version;
	le16 tag;                          /* of the domain: domains_tag(); 0: not known */
	le64 block_bytes;                  /* payload of the whole block */
	le64 xxh3;                         /* of this value's payload; a head: frame_sum_add() */
	uint8_t identity[KVOF_ID_BYTES];   /* of this part: identity_part() */
	le32 cut_bytes;                    /* payload of each part but the last */
	le32 crc32c;                       /* of the 60 bytes before */
};
_Static_assert(sizeof(struct frame_footer) == FRAME_BYTES, "a footer is 64 bytes");
_Static_assert(_Alignof(struct frame_footer) == 1, "a footer may lie anywhere");
_Static_assert(offsetof(struct frame_footer, identity) == 24, "identity is at byte 24");
_Static_assert(offsetof(struct frame_footer, crc32c) == 60, "the checksum is last");

/* What a footer says, in host form. */
struct frame {
	struct kvof_id identity;
	uint64_t block_bytes, xxh3;
	uint32_t cut_bytes;
	uint16_t tag;
};

enum frame_verdict {
	FRAME_OK,
	FRAME_BAD_MAGIC,                   /* not a value of ours */
	FRAME_BAD_SUM,                     /* the footer's own checksum */
	FRAME_BAD_VERSION,                 /* newer than this code */
	FRAME_BAD_IDENTITY,                /* a good value of something else */
	FRAME_BAD_LENGTH,                  /* the lengths contradict each other */
	FRAME_BAD_PAYLOAD,                 /* XXH3-64 */
	FRAME_VERDICT_COUNT
};
const char *frame_verdict_name(enum frame_verdict v);
enum kvof_reason frame_reason(enum frame_verdict v);

void frame_encode(const struct frame *f, struct frame_footer *out);

/* Checks all that the footer alone can show: magic, checksum, version, identity, sane lengths. */
enum frame_verdict frame_check(const struct frame_footer *in, const struct kvof_id *identity,
			       struct frame *out);

/* What a footer says of itself, whatever it is the footer of. False: it is none, or damaged. */
bool frame_look(const struct frame_footer *in, struct frame *out);

/* How a block of block_bytes is cut. */
uint32_t frame_part_count(uint64_t block_bytes, uint32_t cut_bytes);
uint32_t frame_part_bytes(uint64_t block_bytes, uint32_t cut_bytes, uint32_t index);

/* Is a value with payload_bytes under (index of count) what this frame says it is? */
struct frame_place {
	uint32_t index, count, payload_bytes;
};
bool frame_place_fits(const struct frame *f, struct frame_place place);
/* Under (0 of 1): no payload, but the block has more than one part. */
bool frame_is_head(const struct frame *f, uint64_t payload_bytes);

/* Sum over all parts in any order; a head carries it, so parts of two saves never pass as one. */
uint64_t frame_sum_add(uint64_t sum, uint32_t index, uint64_t part_xxh3);

/* The pieces of iov that hold bytes [offset, offset + bytes); out has room for iov_count. Return:
 * number of pieces. */
struct frame_span {
	uint64_t offset, bytes;
};
unsigned frame_slice(const struct iovec *iov, unsigned iov_count, struct frame_span span,
		     struct iovec *out);
/* Copies them. */
void frame_gather(const struct iovec *iov, unsigned iov_count, struct frame_span span, void *out);

#endif
