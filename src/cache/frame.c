/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Value frame and parts.
 *
 * A reader does not know how a block was cut, so the value (0 of 1) always answers: it is the whole
 * block, or a head that says how long the block is and where it was cut. A reader that guesses
 * right from the length of its buffer asks for head and parts at once.
 *
 * Invariants: part_count parts of cut_bytes, the last one shorter, join to block_bytes; a block of
 * 0 bytes has one part. What fails here is an event, never an assertion: media and peers are input.
 */
#include "cache/frame.h"

#include <string.h>

#include "base/hash.h"
#include "base/must.h"
#include "loop/iov.h"

const char *frame_verdict_name(enum frame_verdict v)
{
	static const char *const name[FRAME_VERDICT_COUNT] = {
		[FRAME_OK] = "ok",
		[FRAME_BAD_MAGIC] = "no footer",
		[FRAME_BAD_SUM] = "footer checksum",
		[FRAME_BAD_VERSION] = "footer version",
		[FRAME_BAD_IDENTITY] = "identity",
		[FRAME_BAD_LENGTH] = "length",
		[FRAME_BAD_PAYLOAD] = "payload checksum",
	};

	must(v < FRAME_VERDICT_COUNT);
	return name[v];
}

enum kvof_reason frame_reason(enum frame_verdict v)
{
	if (v == FRAME_OK)
		return KVOF_OK;
	return v == FRAME_BAD_IDENTITY ? KVOF_IDENTITY : KVOF_CORRUPT;
}

void frame_encode(const struct frame *f, struct frame_footer *out)
{
	*out = (struct frame_footer){
		.magic = le32_of(FRAME_MAGIC),
		.version = le16_of(FRAME_VERSION),
		.tag = le16_of(f->tag),
		.block_bytes = le64_of(f->block_bytes),
		.xxh3 = le64_of(f->xxh3),
		.cut_bytes = le32_of(f->cut_bytes),
	};
	memcpy(out->identity, f->identity.byte, KVOF_ID_BYTES);
	out->crc32c = le32_of(crc32c(out, offsetof(struct frame_footer, crc32c)));
}

enum frame_verdict frame_check(const struct frame_footer *in, const struct kvof_id *identity,
			       struct frame *out)
{
	struct frame f = {
		.block_bytes = le64_get(in->block_bytes),
		.xxh3 = le64_get(in->xxh3),
		.cut_bytes = le32_get(in->cut_bytes),
		.tag = le16_get(in->tag),
	};

	if (le32_get(in->magic) != FRAME_MAGIC)
		return FRAME_BAD_MAGIC;
	if (le32_get(in->crc32c) != crc32c(in, offsetof(struct frame_footer, crc32c)))
		return FRAME_BAD_SUM;
	if (le16_get(in->version) != FRAME_VERSION)
		return FRAME_BAD_VERSION;
	memcpy(f.identity.byte, in->identity, KVOF_ID_BYTES);
#ifndef KVOF_PLANT_IDENTITY_NOT_COMPARED
	if (memcmp(in->identity, identity->byte, KVOF_ID_BYTES) != 0)
		return FRAME_BAD_IDENTITY;
#endif
	if (f.cut_bytes == 0 || f.cut_bytes > FRAME_CUT_MAX ||
	    f.block_bytes / f.cut_bytes >= FRAME_PARTS_MAX)
		return FRAME_BAD_LENGTH;
	*out = f;
	return FRAME_OK;
}

bool frame_look(const struct frame_footer *in, struct frame *out)
{
	struct kvof_id own;

	memcpy(own.byte, in->identity, sizeof(own.byte));
	return frame_check(in, &own, out) == FRAME_OK;
}

uint32_t frame_part_count(uint64_t block_bytes, uint32_t cut_bytes)
{
	must(cut_bytes > 0 && block_bytes / cut_bytes < FRAME_PARTS_MAX);
	return block_bytes == 0 ? 1 : (uint32_t)((block_bytes - 1) / cut_bytes) + 1;
}

uint32_t frame_part_bytes(uint64_t block_bytes, uint32_t cut_bytes, uint32_t index)
{
	uint64_t offset = (uint64_t)index * cut_bytes;

	must(offset <= block_bytes);
	return (uint32_t)bytes_min(cut_bytes, block_bytes - offset);
}

bool frame_place_fits(const struct frame *f, struct frame_place place)
{
	return place.count == frame_part_count(f->block_bytes, f->cut_bytes) &&
	       place.index < place.count &&
	       place.payload_bytes == frame_part_bytes(f->block_bytes, f->cut_bytes, place.index);
}

bool frame_is_head(const struct frame *f, uint64_t payload_bytes)
{
	return payload_bytes == 0 && frame_part_count(f->block_bytes, f->cut_bytes) > 1;
}

uint64_t frame_sum_add(uint64_t sum, uint32_t index, uint64_t part_xxh3)
{
	struct {
		le64 xxh3;
		le64 index;
	} text = {le64_of(part_xxh3), le64_of(index)};

	return sum + hash_xxh3(&text, sizeof(text));
}

unsigned frame_slice(const struct iovec *iov, unsigned iov_count, struct frame_span span,
		     struct iovec *out)
{
	unsigned n = 0;

	for (unsigned i = 0; i < iov_count && span.bytes > 0; i++) {
		uint64_t step;

		if (span.offset >= iov[i].iov_len) {
			span.offset -= iov[i].iov_len;
			continue;
		}
		step = bytes_min(iov[i].iov_len - span.offset, span.bytes);
		out[n++] = (struct iovec){(char *)iov[i].iov_base + span.offset, step};
		span.offset = 0;
		span.bytes -= step;
	}
	must(span.bytes == 0);
	return n;
}

void frame_gather(const struct iovec *iov, unsigned iov_count, struct frame_span span, void *out)
{
	struct iov_at at = iov_at_start(iov, iov_count);

	iov_at_skip(&at, span.offset);
	iov_at_take(&at, out, span.bytes);
}
