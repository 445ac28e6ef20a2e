/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The offline check. Of each drive both copies of its label and of the newest catalog; then the
 * set is opened to be looked at, and of each namespace's parts the superblocks, headers and footers
 * of all segments, and every record with its value (of block namespaces: block_check.c). It follows
 * docs/formats.md, not recover.c: what an open would repair or pass over is told.
 * Drives are opened (and so locked) and only read. Control path; runs on the caller's loop.
 */
#include "store/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "loop/disk.h"
#include "store/catalog.h"
#include "store/format.h"
#include "store/set.h"

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

/* --- what the drive is -------------------- */

static const char *const verdicts[] = {"good", "blank", "foreign", "newer", "damaged"};

/* Which of the drive's copies of the catalog has the highest generation; both ends have it. */
static void catalogs_check(struct checker *c, const struct label *label)
{
	uint64_t bytes = (uint64_t)label->slot_blocks << FMT_BLOCK_SHIFT, best = 0, at_end[2] = {0};
	uint8_t *slot = loop_buffer_map(bytes);
	struct catalog *catalog = calloc(1, sizeof(*catalog));
	struct catalog_owner *owners = calloc(label->slab_count, sizeof(*owners));

	must(c->disk != NULL && label->slot_blocks > 0 && label->slab_count > 0);
	for (unsigned i = 0; i < 4 && slot != NULL && catalog != NULL && owners != NULL; i++) {
		uint64_t block = label_slot_block(label, i / 2, i % 2);

		if (block + label->slot_blocks > disk_info(c->disk)->bytes >> FMT_BLOCK_SHIFT)
			continue;                    /* the drive was larger when it was made */
		if (disk_read_now(c->disk, slot, bytes, block << FMT_BLOCK_SHIFT) != 0 ||
		    catalog_check(slot, label, block, catalog, owners) != NULL)
			continue;
		if (catalog->generation > at_end[i / 2])
			at_end[i / 2] = catalog->generation;
		if (catalog->generation > best)
			best = catalog->generation;
	}
	for (unsigned i = 0; i < 2; i++) {
		if (at_end[i] == best && best > 0)
			continue;
		c->out->superblocks_bad++;
		tell(c, "catalog at its %s: %s", i == 0 ? "beginning" : "end",
		     at_end[i] == 0 ? "none is whole" : "an older one than at the other end");
	}
	loop_buffer_unmap(slot, bytes);
	free(catalog);
	free(owners);
}

static void labels_check(struct checker *c)
{
	uint64_t block[2] = {0, disk_info(c->disk)->bytes / FMT_BLOCK_BYTES - 1};
	uint8_t *bytes = loop_buffer_map(FMT_BLOCK_BYTES);
	enum fmt_super_verdict verdict[2];
	struct label label, good;
	bool any = false;

	must(c->disk != NULL && block[1] > block[0]);
	for (unsigned i = 0; i < 2 && bytes != NULL; i++) {
		uint32_t version = 0;

		verdict[i] = FMT_SUPER_DAMAGED;
		if (disk_read_now(c->disk, bytes, FMT_BLOCK_BYTES,
				  block[i] << FMT_BLOCK_SHIFT) == 0)
			verdict[i] = label_check(bytes, block[i], &label, &version);
		if (verdict[i] == FMT_SUPER_OK && version == 1)
			break;                       /* no label: looked at as a part */
		if (verdict[i] == FMT_SUPER_OK)
			good = label;
		any |= verdict[i] == FMT_SUPER_OK;
	}
	for (unsigned i = 0; i < 2 && any; i++) {
		if (verdict[i] == FMT_SUPER_OK)
			continue;
		c->out->superblocks_bad++;
		tell(c, "label at block %" PRIu64 ": %s", block[i], verdicts[verdict[i]]);
	}
	if (any)
		catalogs_check(c, &good);
	loop_buffer_unmap(bytes, FMT_BLOCK_BYTES);
}

static const char *open_words(const char *path, int rc)
{
	struct stat st;

	if (rc == -EBUSY)
		return "in use; stop the array first";
	if (rc == -EINVAL && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return "a directory; a drive is a file or a block device";
	if (rc == -EINVAL && access(path, R_OK | W_OK) != 0 && (errno == EACCES || errno == EROFS))
		return "no permission to read and write it";
	return rc == -EINVAL ? "not a drive: too small, or no file or block device" : strerror(-rc);
}

static int whole_check(struct checker *c, struct loop *loop)
{
	struct disk_opts opts = {.create_bytes = 0};
	int rc = disk_open(loop, c->path, &opts, &c->disk);

	if (rc != 0) {
		tell(c, "can't be opened: %s", open_words(c->path, rc));
		return rc;
	}
	labels_check(c);
	disk_close(&c->disk);
	return 0;
}

/* --- superblocks -------------------- */

static int supers_check(struct checker *c)
{
	uint64_t block[2] = {0, disk_info(c->disk)->bytes / FMT_BLOCK_BYTES - 1};
	uint8_t *bytes = loop_buffer_map(FMT_BLOCK_BYTES);
	enum fmt_super_verdict verdict[2] = {FMT_SUPER_DAMAGED, FMT_SUPER_DAMAGED};
	bool any = false;

	must(c->disk != NULL && block[1] > FMT_FIRST_SEGMENT_BLOCK);
	if (bytes == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < 2; i++) {
		struct fmt_super_info info;

		if (disk_read_now(c->disk, bytes, FMT_BLOCK_BYTES,
				  block[i] << FMT_BLOCK_SHIFT) == 0)
			verdict[i] = fmt_super_check(bytes, block[i], &info);
		if (verdict[i] != FMT_SUPER_OK)
			continue;
		if (!any || info.write_count > c->super.write_count) {
			c->super = info;
			any = true;
		}
	}
	loop_buffer_unmap(bytes, FMT_BLOCK_BYTES);
	if (verdict[0] == FMT_SUPER_BLANK && verdict[1] == FMT_SUPER_BLANK)
		return 0;                            /* a part that was never opened */
	for (unsigned i = 0; i < 2; i++) {
		if (verdict[i] == FMT_SUPER_OK)
			continue;
		c->out->superblocks_bad++;
		tell(c, "superblock at block %" PRIu64 ": %s", block[i],
		     verdicts[verdict[i]]);
	}
	return any ? 1 : 0;
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
		if (wrong == NULL && e->kind == FMT_PUT &&
		    (info.kind != FMT_PUT || info.value_bytes != le32_get(e->value_bytes) ||
		     info.stripe != e->stripe))
			wrong = "the footer lists it with another length, or as another part";
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

	must(c->segment != NULL && c->entries != NULL && c->segment_blocks >= 4);
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

static int part_check(struct checker *c)
{
	int rc = supers_check(c);
	uint64_t entries;

	must(c->disk != NULL && c->segment == NULL);
	if (rc <= 0)
		return rc;
	entries = fmt_entries_max(c->super.segment_bytes);
	c->segment_blocks = c->super.segment_bytes >> FMT_BLOCK_SHIFT;
	c->segment = loop_buffer_map(c->super.segment_bytes);
	c->entries = calloc(entries, sizeof(*c->entries));
	rc = c->segment == NULL || c->entries == NULL ? -ENOMEM : segments_check(c);
	loop_buffer_unmap(c->segment, c->super.segment_bytes);
	free(c->entries);
	return rc;
}

/* --- the set -------------------- */

struct checking {
	struct set *set;
	struct loop *loop;
	struct checker c;
	struct store_opts parts;
	struct set_ns ns[SET_NAMESPACES_MAX];
	struct store_report report;
};

static int shard_check(struct checking *k, const struct set_ns *ns, unsigned shard)
{
	int rc;

	must(k->set != NULL && shard < ns->shards);
	k->parts = (struct store_opts){.drive_count = 0};
	rc = set_ns_parts(k->set, ns->id, shard, k->loop, &k->parts);
	for (unsigned i = 0; i < k->parts.drive_count; i++) {
		struct store_drive *d = &k->parts.drive[i];
		struct checker c = k->c;

		if (d->disk == NULL)
			continue;
		c.path = d->path;
		c.disk = d->disk;
		c.segment = NULL;
		c.oldest = 0;
		if (rc == 0 && ns->kind == SET_KV)
			rc = part_check(&c);
		else if (rc == 0)
			rc = block_check(d->disk, c.say, c.arg, &c.out->block);
		if (rc == -EPROTO)
			rc = 0;                      /* told and counted */
		disk_close(&d->disk);
	}
	return rc;
}

static int set_look(struct checking *k, const struct store_opts *opts)
{
	struct set_opts so = {.drive_count = opts->drive_count, .look = true};
	unsigned count;
	int rc;

	must(k->set == NULL && opts->drive_count <= STORE_DRIVES_MAX);
	memcpy(so.drive, opts->drive, sizeof(so.drive));
	rc = set_open(&so, k->loop, &k->set, &k->report);
	if (rc != 0) {
		k->c.say(k->c.arg, k->report.text);
		return rc;
	}
	count = set_ns_list(k->set, k->ns);
	k->c.out->namespaces = count;
	for (unsigned n = 0; n < count && rc == 0; n++) {
		for (unsigned s = 0; s < k->ns[n].shards && rc == 0; s++)
			rc = shard_check(k, &k->ns[n], s);
	}
	set_close(&k->set);
	return rc;
}

int store_check(const struct store_opts *opts, struct loop *loop,
		void (*say)(void *arg, const char *line), void *arg, struct store_check *out)
{
	struct checking *k = calloc(1, sizeof(*k));
	int rc = 0;

	*out = (struct store_check){.values = 0};
	must(opts->drive_count >= 1 && opts->drive_count <= STORE_DRIVES_MAX);
	if (k == NULL)
		return -ENOMEM;
	k->loop = loop;
	k->c = (struct checker){.say = say, .arg = arg, .out = out};
	for (unsigned i = 0; i < opts->drive_count && rc == 0; i++) {
		k->c.path = opts->drive[i].path;
		rc = whole_check(&k->c, loop);
	}
	if (rc == 0)
		rc = set_look(k, opts);
	free(k);
	return rc;
}
