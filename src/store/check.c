/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The offline check: superblocks, headers and footers of all segments, and every record with its
 * value. It follows docs/formats.md, not recover.c: what an open would repair or pass over is told.
 * Drives are opened (and so locked) and only read. Control path; runs on the caller's loop.
 */
#include "store/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "loop/disk.h"
#include "store/format.h"

struct checker {
	void (*say)(void *arg, const char *line);
	void *arg;
	struct store_check *out;
	const char *path;
	struct disk *disk;
	struct fmt_super_info super;
	uint32_t segment_blocks;
	uint8_t *segment;                    /* one whole segment */
	struct fmt_entry *entries;
	uint64_t oldest;
};

__attribute__((format(printf, 2, 3))) static void tell(struct checker *c, const char *format, ...)
{
	char line[512];
	int n = snprintf(line, sizeof(line), "drive %.300s: ", c->path);
	va_list args;

	must(n > 0 && (size_t)n < sizeof(line));
	va_start(args, format);
	vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
	va_end(args);
	c->say(c->arg, line);
}

/* --- superblocks -------------------- */

static int supers_check(struct checker *c)
{
	static const char *const words[] = {"good", "blank", "foreign", "newer", "damaged"};
	uint64_t block[2] = {0, disk_info(c->disk)->bytes / FMT_BLOCK_BYTES - 1};
	uint8_t *bytes = loop_buffer_map(FMT_BLOCK_BYTES);
	bool any = false;

	if (bytes == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < 2; i++) {
		enum fmt_super_verdict verdict = FMT_SUPER_DAMAGED;
		struct fmt_super_info info;

		if (disk_read_now(c->disk, bytes, FMT_BLOCK_BYTES,
				  block[i] << FMT_BLOCK_SHIFT) == 0)
			verdict = fmt_super_check(bytes, block[i], &info);
		if (verdict != FMT_SUPER_OK) {
			c->out->superblocks_bad++;
			tell(c, "superblock at block %" PRIu64 ": %s", block[i], words[verdict]);
		} else if (!any || info.write_count > c->super.write_count) {
			c->super = info;
			any = true;
		}
	}
	loop_buffer_unmap(bytes, FMT_BLOCK_BYTES);
	if (!any)
		tell(c, "no superblock can be used: not a drive of a store");
	return any ? 0 : -EPROTO;
}

/* --- segments -------------------- */

static struct fmt_place place_of(const struct checker *c, uint32_t segment, uint32_t block)
{
	return (struct fmt_place){
		.store_id = c->super.store_id,
		.drive = c->super.drive,
		.block = fmt_segment_block(c->super.segment_bytes, segment) + block,
	};
}

static const uint8_t *block_at(const struct checker *c, uint32_t block)
{
	must(block < c->segment_blocks);
	return c->segment + ((size_t)block << FMT_BLOCK_SHIFT);
}

struct frame {
	struct fmt_segment_info info;
	bool listed;                         /* a footer lists records up to info.used_blocks */
	bool used;
};

/* Which generation the segment in memory is of, and whether its frames are whole. */
static struct frame frame_look(struct checker *c, uint32_t segment, bool count)
{
	uint32_t bytes = c->super.segment_bytes, last = c->segment_blocks - 1;
	struct fmt_place at = place_of(c, segment, 0), end = place_of(c, segment, last);
	struct fmt_segment_info head, foot;
	const char *head_wrong = fmt_header_check(block_at(c, 0), &at, bytes, &head);
	const char *foot_wrong = fmt_footer_check(block_at(c, last), &end, bytes, &foot);
	struct frame f = {.used = false};

	if (head_wrong != NULL && bytes_all_zero(block_at(c, 0), FMT_BLOCK_BYTES) &&
	    bytes_all_zero(block_at(c, last), FMT_BLOCK_BYTES))
		return f;
	if (count && (head_wrong != NULL || foot_wrong != NULL) &&
	    (head_wrong == NULL || foot_wrong == NULL)) {
		c->out->frames_bad++;
		tell(c, "segment %u: %s: %s", segment, head_wrong != NULL ? "header" : "footer",
		     head_wrong != NULL ? head_wrong : foot_wrong);
	}
	if (head_wrong == NULL)
		f = (struct frame){.info = head, .used = true};
	if (foot_wrong == NULL && (!f.used || foot.generation >= f.info.generation))
		f = (struct frame){.info = foot, .used = true, .listed = true};
	if (f.used && (f.info.generation < c->super.generation_min ||
		       f.info.generation < c->oldest || f.info.state == FMT_SEGMENT_ERASED))
		f.used = false;
	return f;
}

/* NULL: the record at this block is whole. */
static const char *record_wrong(const struct checker *c, uint32_t segment, uint32_t block,
				uint64_t generation, struct fmt_record_info *out)
{
	struct fmt_place at = place_of(c, segment, block);
	const uint8_t *bytes = block_at(c, block);
	const char *wrong = fmt_record_check(bytes, &at, c->segment_blocks - 1 - block, out);

	if (wrong != NULL)
		return wrong;
	if (out->generation != generation)
		return "of an earlier use of the segment";
	if (out->kind == FMT_PUT &&
	    out->payload_xxh3 != hash_xxh3(bytes + sizeof(struct fmt_record), out->value_bytes))
		return "checksum of the value";
	return NULL;
}

static void record_count(struct checker *c, enum fmt_kind kind, uint32_t value_bytes)
{
	if (kind == FMT_DELETE) {
		c->out->deletes++;
		return;
	}
	c->out->values++;
	c->out->value_bytes += value_bytes;
}

static void listed_check(struct checker *c, uint32_t segment, const struct frame *f)
{
	for (uint32_t i = 0; i < f->info.entry_count; i++) {
		const struct fmt_entry *e = &c->entries[i];
		uint64_t sequence = f->info.sequence_base + le32_get(e->sequence_delta);
		uint32_t block = le32_get(e->block);
		struct fmt_record_info info;
		const char *wrong = record_wrong(c, segment, block, f->info.generation, &info);

		if (wrong == NULL && (info.sequence != sequence || info.key.len != e->key_len ||
				      memcmp(info.key.byte, e->key, sizeof(e->key)) != 0))
			wrong = "not the one that the footer lists";
		/* A value may be listed as deleted: after a flush that failed. */
		record_count(c, e->kind, le32_get(e->value_bytes));
		if (wrong == NULL || e->kind == FMT_DELETE)
			continue;
		c->out->records_bad++;
		tell(c, "segment %u: record at block %" PRIu64 ": %s", segment,
		     place_of(c, segment, block).block, wrong);
	}
}

/* What lies behind the last footer: up to the first that is not whole, which is no error. */
static void hop_check(struct checker *c, uint32_t segment, uint32_t block, uint64_t generation)
{
	struct fmt_record_info info;

	while (block < c->segment_blocks - 1 &&
	       record_wrong(c, segment, block, generation, &info) == NULL) {
		record_count(c, info.kind, info.value_bytes);
		block += fmt_record_blocks(info.value_bytes);
	}
}

static void segment_check(struct checker *c, uint32_t segment)
{
	struct frame f = frame_look(c, segment, true);
	uint32_t blocks, next = 1;
	const char *wrong;

	if (!f.used) {
		c->out->segments_free++;
		return;
	}
	if (f.info.state == FMT_SEGMENT_SEALED)
		c->out->segments_sealed++;
	else
		c->out->segments_open++;
	if (f.listed) {
		blocks = fmt_footer_blocks(f.info.entry_count);
		wrong = fmt_footer_entries(block_at(c, c->segment_blocks - blocks), &f.info,
					   c->entries);
		if (wrong == NULL) {
			listed_check(c, segment, &f);
			next = f.info.used_blocks;
		} else {
			c->out->frames_bad++;
			tell(c, "segment %u: footer: %s", segment, wrong);
		}
	}
	if (f.info.state != FMT_SEGMENT_SEALED || next == 1)
		hop_check(c, segment, next, f.info.generation);
}

static int segments_check(struct checker *c)
{
	uint32_t bytes = c->super.segment_bytes;
	uint32_t count = fmt_segment_count(disk_info(c->disk)->bytes, bytes);

	/* First the frames alone: the youngest of them say which others are dead. */
	for (uint32_t pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < count; i++) {
			uint64_t at = fmt_segment_block(bytes, i) << FMT_BLOCK_SHIFT;
			uint64_t last = (uint64_t)(c->segment_blocks - 1) << FMT_BLOCK_SHIFT;
			struct frame f;
			int rc;

			if (pass == 1) {
				rc = disk_read_now(c->disk, c->segment, bytes, at);
			} else {
				rc = disk_read_now(c->disk, c->segment, FMT_BLOCK_BYTES, at);
				if (rc == 0)
					rc = disk_read_now(c->disk, c->segment + last,
							   FMT_BLOCK_BYTES, at + last);
			}
			if (rc != 0 && pass == 1) {
				c->out->frames_bad++;
				tell(c, "segment %u: can't be read: %s", i, strerror(-rc));
			}
			if (rc != 0)
				continue;
			if (pass == 1) {
				segment_check(c, i);
				continue;
			}
			f = frame_look(c, i, false);
			if (f.info.oldest_generation > c->oldest)
				c->oldest = f.info.oldest_generation;
		}
	}
	return 0;
}

static int drive_check(struct checker *c, struct loop *loop)
{
	struct disk_opts opts = {.create_bytes = 0};
	int rc = disk_open(loop, c->path, &opts, &c->disk);

	if (rc != 0) {
		tell(c, "can't be opened: %s", rc == -EBUSY ? "in use" : strerror(-rc));
		return rc;
	}
	rc = supers_check(c);
	if (rc == 0) {
		uint64_t entries = fmt_entries_max(c->super.segment_bytes);

		c->segment_blocks = c->super.segment_bytes >> FMT_BLOCK_SHIFT;
		c->segment = loop_buffer_map(c->super.segment_bytes);
		c->entries = calloc(entries, sizeof(*c->entries));
		rc = c->segment == NULL || c->entries == NULL ? -ENOMEM : segments_check(c);
		loop_buffer_unmap(c->segment, c->super.segment_bytes);
		free(c->entries);
	}
	disk_close(&c->disk);
	return rc;
}

int store_check(const struct store_opts *opts, struct loop *loop,
		void (*say)(void *arg, const char *line), void *arg, struct store_check *out)
{
	*out = (struct store_check){.values = 0};
	must(opts->drive_count >= 1 && opts->drive_count <= STORE_DRIVES_MAX);
	for (unsigned i = 0; i < opts->drive_count; i++) {
		struct checker c = {.say = say, .arg = arg, .out = out,
				    .path = opts->drive[i].path};
		int rc = drive_check(&c, loop);

		if (rc != 0)
			return rc;
	}
	return 0;
}
