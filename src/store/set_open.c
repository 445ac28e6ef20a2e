/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: set_open(): makes a set on blank drives, or finds what is on them.
 *
 *  1. open and lock every drive, read both labels; refuse what is not one whole set of ours
 *  2. of each drive the catalog of the highest generation, of the set the highest of all; a
 *     namespace that was being made or removed is dropped, slabs of namespaces that are no more
 *     are free
 *  3. a drive that was replaced has another id than the catalog says: not believed
 *  4. a blank drive takes the place of a lost one, if asked: label "joining", slabs for each
 *     namespace with zero ends, the catalog with the new id to all, label "whole"
 *  5. the catalog goes to all drives, one generation on; three where some are missing, so that what
 *     a crash left on those alone does not win over what is done now
 *
 * A set is being made while one of its labels says so: an open makes it again.
 *
 * Thread: the one that owns the loop, or before it runs. Blocks.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "store/attach.h"
#include "store/set_inner.h"

#define SHARD_BYTES_MIN (256 * MiB)          /* of the smallest drive, for each shard */

struct opening {
	struct set *set;
	const struct set_opts *opts;
	struct store_report *report;
	struct catalog *best, *found;        /* of all drives; scratch */
	const struct member *best_of;
	bool fresh;
	uint8_t *block;                      /* scratch: FMT_BLANK_BYTES */
};

__attribute__((format(printf, 3, 4))) static int fail(struct opening *o, int rc,
						       const char *format, ...)
{
	va_list args;

	must(rc < 0);
	va_start(args, format);
	vsnprintf(o->report->text, sizeof(o->report->text), format, args);
	va_end(args);
	return rc;
}

/* --- labels -------------------- */

static uint64_t label_last(const struct member *m)
{
	return disk_info(m->disk)->bytes / FMT_BLOCK_BYTES - 1;
}

/* Reads one copy; a second look, since a read may lie once. */
static enum fmt_super_verdict label_read(struct opening *o, struct member *m, uint64_t block,
					 struct label *out, uint32_t *version)
{
	enum fmt_super_verdict verdict = FMT_SUPER_DAMAGED;

	for (int i = 0; i < 2 && verdict != FMT_SUPER_OK && verdict != FMT_SUPER_BLANK; i++) {
		if (attach_read(m->disk, o->block, FMT_BLOCK_BYTES, block << FMT_BLOCK_SHIFT) == 0)
			verdict = label_check(o->block, block, out, version);
	}
	return verdict;
}

static int labels_read(struct opening *o, struct member *m)
{
	struct label second;
	uint32_t version = 0;
	enum fmt_super_verdict verdict = label_read(o, m, label_last(m), &second, &version);

	m->verdict = label_read(o, m, 0, &m->label, &m->version);
	m->label_repair = verdict != m->verdict;
	if (verdict == FMT_SUPER_OK && version == CATALOG_VERSION &&
	    (m->verdict != FMT_SUPER_OK || m->version != CATALOG_VERSION ||
	     second.write_count > m->label.write_count)) {
		m->label_repair = true;
		m->label = second;
		m->verdict = FMT_SUPER_OK;
		m->version = version;
	} else if (m->verdict != FMT_SUPER_OK && verdict == FMT_SUPER_OK) {
		m->label = second;
		m->verdict = FMT_SUPER_OK;
		m->version = version;
	} else if (m->verdict != FMT_SUPER_OK && verdict == FMT_SUPER_NEWER) {
		m->verdict = FMT_SUPER_NEWER;
	} else if (m->verdict == FMT_SUPER_BLANK && verdict == FMT_SUPER_DAMAGED) {
		m->verdict = FMT_SUPER_DAMAGED;
	}
	if (m->verdict != FMT_SUPER_BLANK)
		return 0;
	if (attach_read(m->disk, o->block, FMT_BLANK_BYTES, 0) != 0)
		return fail(o, -EIO, "drive %s: its first %u KiB can't be read", m->path,
			    FMT_BLANK_BYTES / 1024);
	if (!bytes_all_zero(o->block, FMT_BLANK_BYTES))
		m->verdict = FMT_SUPER_FOREIGN;
	return 0;
}

/* The copy at the end first: whichever write is torn, the other is whole. */
static int labels_write(struct opening *o, struct member *m)
{
	int rc;

	m->label.write_count++;
	for (unsigned i = 0; i < 2; i++) {
		uint64_t block = i == 0 ? label_last(m) : 0;

		label_write(o->block, &m->label, block);
		rc = attach_write(m->disk, o->block, FMT_BLOCK_BYTES, block << FMT_BLOCK_SHIFT);
		if (rc == 0)
			rc = disk_flush_now(m->disk);
		if (rc != 0)
			return fail(o, rc, "drive %s: its label can't be written: %s", m->path,
				    strerror(-rc));
	}
	return 0;
}

/* --- drives, as they were given -------------------- */

static int member_open(struct opening *o, struct member *m, const struct store_drive *want)
{
	struct attach a = {.want = &m->want, .degraded = o->opts->degraded};
	int rc;

	snprintf(m->path, sizeof(m->path), "%s", want->path);
	m->want = (struct store_drive){.path = m->path, .bytes = want->bytes};
	m->rate.bytes_per_s = o->opts->drive_read_bytes_per_s;
	rc = attach_drive(o->set->loop, &a, o->report->text, sizeof(o->report->text));
	m->disk = a.disk;
	if (rc == -ENOENT && want->bytes == 0 && o->set->drive_count > 1) {
		size_t at = strlen(o->report->text);

		snprintf(o->report->text + at, sizeof(o->report->text) - at,
			 ", or open degraded (--degraded) to go on without it");
	}
	return rc != 0 || m->disk == NULL ? rc : labels_read(o, m);
}

static int members_open(struct opening *o)
{
	struct set *s = o->set;

	for (unsigned i = 0; i < s->drive_count; i++) {
		const struct store_drive *want = &o->opts->drive[i];
		int rc;

		for (unsigned j = 0; j < i; j++) {
			if (strcmp(want->path, "mem") != 0 &&
			    strcmp(want->path, s->member[j].path) == 0)
				return fail(o, -EINVAL, "drive %s: given twice", want->path);
		}
		rc = member_open(o, &s->member[i], want);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Another drive that is good: then to format is not the way out, all of it would be lost. */
static bool others_good(const struct set *s, const struct member *m)
{
	bool good = false;

	for (unsigned i = 0; i < s->drive_count; i++)
		good |= &s->member[i] != m && s->member[i].disk != NULL &&
			s->member[i].verdict == FMT_SUPER_OK;
	return good;
}

static int member_refuse(struct opening *o, const struct member *m)
{
	bool good = others_good(o->set, m);

	switch (m->verdict) {
	case FMT_SUPER_FOREIGN:
		return fail(o, -EPROTO, "drive %s: holds data that is not kvof's (first 128 KiB "
			    "not zero); %s", m->path, good ? "give the drive of the set" :
			    "format to overwrite it (--format)");
	case FMT_SUPER_NEWER:
		return fail(o, -EPROTO, "drive %s: superblock version is newer than %u; use a "
			    "newer kvof%s", m->path, CATALOG_VERSION,
			    good ? "" : ", or format (--format)");
	case FMT_SUPER_DAMAGED:
		return fail(o, -EPROTO, "drive %s: both superblocks are damaged (checksum); %s",
			    m->path, good ? "open degraded (--degraded) to go on without it" :
			    "format to start anew (--format)");
	default:
		return 0;
	}
}

static void member_leave(struct member *m)
{
	must(m->disk != NULL);
	disk_close(&m->disk);
	m->verdict = FMT_SUPER_BLANK;
}

/* What there is: whole labels of this version, superblocks of version 1, blanks. */
struct census {
	unsigned labels, old, blanks;
	bool making;
	const struct member *label, *old_one, *blank;
};

static int census_take(struct opening *o, struct census *c)
{
	for (unsigned i = 0; i < o->set->drive_count; i++) {
		struct member *m = &o->set->member[i];
		int rc;

		if (m->disk != NULL && o->opts->degraded && !o->opts->format &&
		    m->verdict == FMT_SUPER_DAMAGED) {
			log_warn("set drive %s: no label can be read; opened without it", m->path);
			member_leave(m);
		}
		if (m->disk == NULL)
			continue;
		rc = o->opts->format ? 0 : member_refuse(o, m);
		if (rc != 0)
			return rc;
		if (m->verdict == FMT_SUPER_OK && m->version == CATALOG_VERSION) {
			m->blank = m->label.state == LABEL_JOINING;
			c->making |= m->label.state == LABEL_MAKING;
			c->labels += !m->blank;
			c->label = m->blank ? c->label : m;
		} else if (m->verdict == FMT_SUPER_OK) {
			c->old++;
			c->old_one = m;
		} else {
			m->blank = true;
		}
		c->blanks += m->blank;
		c->blank = m->blank ? m : c->blank;
	}
	return 0;
}

static unsigned members_there(const struct set *s)
{
	unsigned count = 0;

	for (unsigned i = 0; i < s->drive_count; i++)
		count += s->member[i].disk != NULL;
	return count;
}

/* Which drive is which; labels of one set, none twice. */
static int members_place(struct opening *o, const struct member *first)
{
	struct set *s = o->set;

	for (unsigned i = 0; i < s->drive_count; i++) {
		struct member *m = &s->member[i];

		if (m->disk == NULL || m->blank)
			continue;
		if (memcmp(m->label.uuid, first->label.uuid, 16) != 0 ||
		    m->label.drive_count != s->drive_count ||
		    m->label.shard_count != first->label.shard_count)
			return fail(o, -EINVAL, "drive %s: of another set than %s (set id "
				    "differs)", m->path, first->path);
		if (disk_info(m->disk)->bytes < m->label.drive_bytes)
			return fail(o, -EINVAL, "drive %s: %" PRIu64 " bytes, but it had %" PRIu64
				    " when it was made", m->path, disk_info(m->disk)->bytes,
				    m->label.drive_bytes);
		if (s->drive[m->label.drive] != NULL)
			return fail(o, -EINVAL, "drive %s: is drive %u of its set, and so is %s",
				    m->path, m->label.drive, s->drive[m->label.drive]->path);
		s->drive[m->label.drive] = m;
	}
	memcpy(s->uuid, first->label.uuid, sizeof(s->uuid));
	s->shards = first->label.shard_count;
	return 0;
}

/* Sets o->fresh, s->version_one, or the places of the drives. */
static int census_judge(struct opening *o, const struct census *c)
{
	struct set *s = o->set;
	unsigned n = s->drive_count;

	o->fresh = o->opts->format || c->labels + c->old == 0 || c->making;
	if (c->making && !o->opts->format) {
		for (unsigned i = 0; i < n; i++) {
			const struct member *m = &s->member[i];

			if (m->disk != NULL && m->verdict == FMT_SUPER_OK &&
			    (m->version != CATALOG_VERSION ||
			     memcmp(m->label.uuid, c->label->label.uuid, 16) != 0))
				return fail(o, -EINVAL, "drive %s: of another set than %s, which "
					    "was never made to its end", m->path, c->label->path);
		}
	}
	if (o->fresh && o->opts->look)
		return fail(o, -EPROTO, "drive %s: %s", s->member[0].path, c->making ?
			    "its set was never made to its end" : "blank: not a drive of a set");
	if (o->fresh && members_there(s) < n)
		return fail(o, -ENOENT, "a new store needs all of its %u drives", n);
	if (o->fresh)
		return 0;
	if (c->old > 0 && c->labels > 0)
		return fail(o, -EINVAL, "drive %s: of another set than %s (version 1)",
			    c->label->path, c->old_one->path);
	s->version_one = c->old > 0;
	if (s->version_one)
		return 0;
	if (c->blanks > 0 && !o->opts->replace)
		return fail(o, -EINVAL, "drive %s: blank, but %s belongs to a store of %u drives; "
			    "give the drive of the set, --replace to take this one in its place, "
			    "or format", c->blank->path, c->label->path,
			    c->label->label.drive_count);
	if (c->blanks > 0 && members_there(s) < n)
		return fail(o, -ENOENT, "drive %s: blank, and others are missing: it can't be "
			    "known whose place it takes; give all of the others, or a blank one "
			    "for each that is gone", c->blank->path);
	if (c->label->label.drive_count != n)
		return fail(o, c->label->label.drive_count > n ? -ENOENT : -EINVAL,
			    "drive %s: belongs to a store of %u drives, %u are given",
			    c->label->path, c->label->label.drive_count, n);
	return members_place(o, c->label);
}

/* --- catalogs -------------------- */

static int slot_reserve(struct set *s, const struct label *l)
{
	uint64_t bytes = (uint64_t)l->slot_blocks << FMT_BLOCK_SHIFT;

	if (bytes < SET_ENDS_BYTES)
		bytes = SET_ENDS_BYTES;
	if (bytes <= s->slot_bytes)
		return 0;
	loop_buffer_unmap(s->slot, s->slot_bytes);
	s->slot_bytes = bytes;
	s->slot = loop_buffer_map(bytes);
	if (s->slot == NULL)
		s->slot_bytes = 0;
	return s->slot == NULL ? -ENOMEM : 0;
}

/* One of the four; o->found and owners have it if it is whole. */
static bool catalog_look(struct opening *o, struct member *m, unsigned which,
			 struct catalog_owner *owners)
{
	uint64_t block = label_slot_block(&m->label, which / CATALOG_SLOTS, which % CATALOG_SLOTS);
	uint64_t bytes = (uint64_t)m->label.slot_blocks << FMT_BLOCK_SHIFT;

	for (int i = 0; i < 2; i++) {
		if (attach_read(m->disk, o->set->slot, bytes, block << FMT_BLOCK_SHIFT) == 0 &&
		    catalog_check(o->set->slot, &m->label, block, o->found, owners) == NULL)
			return true;
	}
	return false;
}

/* Takes the newest of the drive's, and makes it the set's if it is newer than that. */
static int catalog_read(struct opening *o, struct member *m)
{
	struct catalog_owner *owners = calloc(m->label.slab_count, sizeof(*owners));

	m->owner = calloc(m->label.slab_count, sizeof(*m->owner));
	if (owners == NULL || m->owner == NULL || slot_reserve(o->set, &m->label) != 0) {
		free(owners);
		return fail(o, -ENOMEM, "no memory");
	}
	for (unsigned which = 0; which < 2 * CATALOG_SLOTS; which++) {
		struct catalog_owner *other = m->owner;

		if (!catalog_look(o, m, which, owners) || o->found->generation <= m->generation)
			continue;
		m->owner = owners;
		owners = other;
		m->generation = o->found->generation;
		m->global_crc = o->found->global_crc;
#ifdef KVOF_PLANT_STALE_CATALOG_WINS
		if (o->best_of == NULL || m->generation < o->best->generation) { /* planted fault */
#else
		if (o->best_of == NULL || m->generation > o->best->generation) {
#endif
			*o->best = *o->found;
			o->best_of = m;
		}
	}
	free(owners);
	return 0;
}

static int catalogs_read(struct opening *o)
{
	struct set *s = o->set;

	for (unsigned i = 0; i < s->drive_count; i++) {
		struct member *m = s->drive[i];
		int rc = m == NULL ? 0 : catalog_read(o, m);

		if (rc != 0)
			return rc;
		if (m == NULL || m->generation > 0)
			continue;
		if (!o->opts->degraded)
			return fail(o, -EPROTO, "drive %s: all of its catalogs are damaged "
				    "(checksum); %s", m->path, others_good(s, m) ?
				    "open degraded (--degraded) to go on without it" :
				    "format to start anew (--format)");
		log_warn("set drive %s: no catalog can be read; opened without it", m->path);
		member_leave(m);
		s->drive[i] = NULL;
	}
	if (o->best_of == NULL)
		return fail(o, -EPROTO, "no catalog of the set can be read; format to start "
			    "anew (--format)");
	s->catalog = *o->best;
	return 0;
}

static bool ns_keeps(const struct catalog *c, uint32_t id)
{
	for (unsigned i = 0; i < c->ns_count; i++) {
		if (c->ns[i].ns.id == id)
			return true;
	}
	return false;
}

/* The drive has the slabs of every namespace that it should have a part of. */
static bool slabs_agree(const struct set *s, const struct member *m)
{
	unsigned drive = m->label.drive;

	for (unsigned i = 0; i < s->catalog.ns_count; i++) {
		const struct catalog_ns *n = &s->catalog.ns[i];
		uint64_t count = (n->part_bytes[drive] + m->label.slab_bytes - 1) /
				 m->label.slab_bytes;
		uint64_t of[STORE_SHARDS_MAX] = {0};

		for (uint32_t k = 0; k < m->label.slab_count; k++)
			of[m->owner[k].shard] += m->owner[k].ns == n->ns.id;
		for (unsigned k = 0; k < STORE_SHARDS_MAX; k++) {
			if (of[k] != (k < n->ns.shards ? count : 0))
				return false;
		}
	}
	return true;
}

/* A drive that can't be believed: left out where that is allowed, else told. */
static int drive_distrust(struct opening *o, struct member *m, const char *what)
{
	if (!o->opts->degraded)
		return fail(o, -EPROTO, "drive %s: %s; open degraded (--degraded) to go on "
			    "without it, or give a blank one in its place (--replace)", m->path,
			    what);
	log_warn("set drive %s: %s; opened without it", m->path, what);
	o->set->drive[m->label.drive] = NULL;
	member_leave(m);
	return 0;
}

static int drive_merge(struct opening *o, struct member *m)
{
	struct set *s = o->set;
	const struct catalog *c = &s->catalog;

	if (m->label.drive_id != c->drive_id[m->label.drive])
		return drive_distrust(o, m, "its place in the set was given to another drive");
	if (m->generation == c->generation && m->global_crc != c->global_crc)
		return drive_distrust(o, m, "it and the others were used apart, each without the "
				      "other");
	if (m->generation < c->generation)
		log_warn("set drive %s: its catalog is older than that of the others", m->path);
	for (uint32_t i = 0; i < m->label.slab_count; i++) {
		if (m->owner[i].ns != 0 && !ns_keeps(c, m->owner[i].ns))
			m->owner[i] = (struct catalog_owner){.ns = 0};
	}
	if (!slabs_agree(s, m))
		return drive_distrust(o, m, "an older copy of it: its catalog lacks a part of a "
				      "namespace");
	return 0;
}

static int catalogs_merge(struct opening *o)
{
	struct set *s = o->set;
	struct catalog *c = &s->catalog;
	int rc = 0;

	for (unsigned i = 0; i < c->ns_count;) {
		if (!c->ns[i].making) {
			i++;
			continue;
		}
		c->ns[i] = c->ns[--c->ns_count];
		memset(&c->ns[c->ns_count], 0, sizeof(c->ns[0]));
	}
	for (unsigned i = 0; i < c->ns_count; i++)
		must(set_parts_add(s, c->ns[i].ns.id));
	for (unsigned i = 0; i < s->drive_count && rc == 0; i++)
		rc = s->drive[i] == NULL ? 0 : drive_merge(o, s->drive[i]);
	return rc;
}

/* --- a blank drive takes a place -------------------- */

static int member_join(struct opening *o, struct member *m, unsigned drive)
{
	struct set *s = o->set;
	struct catalog *c = &s->catalog;
	int rc;

	m->label = (struct label){.drive = (uint8_t)drive, .drive_count = (uint8_t)s->drive_count,
		.shard_count = (uint8_t)s->shards, .state = LABEL_JOINING,
		.write_count = m->label.write_count,
		.drive_bytes = disk_info(m->disk)->bytes & ~(uint64_t)(FMT_BLOCK_BYTES - 1)};
	memcpy(m->label.uuid, s->uuid, sizeof(s->uuid));
	loop_random(&m->label.drive_id, sizeof(m->label.drive_id));
	if (!label_lay_out(&m->label))
		return fail(o, -EINVAL, "drive %s: too small", m->path);
	free(m->owner);
	m->owner = calloc(m->label.slab_count, sizeof(*m->owner));
	if (m->owner == NULL || slot_reserve(s, &m->label) != 0)
		return fail(o, -ENOMEM, "no memory");
	for (unsigned i = 0; i < c->ns_count; i++) {
		if (!set_room_take(m, &c->ns[i], drive))
			return fail(o, -EINVAL, "drive %s: too small to take the place of drive "
				    "%u: it has no room for its namespaces", m->path, drive);
	}
	rc = labels_write(o, m);
	for (unsigned i = 0; i < c->ns_count && rc == 0; i++) {
		rc = set_parts_clear(s, m, &c->ns[i], true);
		if (rc != 0)
			rc = fail(o, rc, "drive %s: can't be written: %s", m->path, strerror(-rc));
	}
	c->drive_id[drive] = m->label.drive_id;
	s->drive[drive] = m;
	log_warn("set drive %s: blank; takes the place of drive %u, whose values are gone", m->path,
		 drive);
	return rc;
}

static int blanks_join(struct opening *o)
{
	struct set *s = o->set;
	unsigned drive = 0;

	for (unsigned i = 0; i < s->drive_count; i++) {
		struct member *m = &s->member[i];
		int rc;

		if (m->disk == NULL || !m->blank)
			continue;
		while (drive < s->drive_count && s->drive[drive] != NULL)
			drive++;
		must(drive < s->drive_count);
		rc = member_join(o, m, drive);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Labels that say something else than that all is well, or stand there once only. */
static int labels_settle(struct opening *o)
{
	struct set *s = o->set;

	for (unsigned i = 0; i < s->drive_count; i++) {
		struct member *m = s->drive[i];
		int rc = 0;

		if (m == NULL || (m->label.state == LABEL_WHOLE && !m->label_repair))
			continue;
		m->label.state = LABEL_WHOLE;
		rc = labels_write(o, m);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* --- a new set -------------------- */

static unsigned shards_choose(const struct opening *o)
{
	const struct set *s = o->set;
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t least = UINT64_MAX, shards = cores < 1 ? 1 : (uint64_t)cores;

	if (o->opts->shards != 0)
		return o->opts->shards;
	for (unsigned i = 0; i < s->drive_count; i++)
		least = bytes_min(least, disk_info(s->member[i].disk)->bytes);
	shards = bytes_min(bytes_min(shards, STORE_SHARDS_MAX), least / SHARD_BYTES_MIN);
	return shards < 1 ? 1 : (unsigned)shards;
}

static int member_make(struct opening *o, struct member *m, unsigned drive)
{
	struct set *s = o->set;

	m->label = (struct label){.drive = (uint8_t)drive, .drive_count = (uint8_t)s->drive_count,
		.shard_count = (uint8_t)s->shards, .state = LABEL_MAKING,
		.drive_bytes = disk_info(m->disk)->bytes & ~(uint64_t)(FMT_BLOCK_BYTES - 1)};
	memcpy(m->label.uuid, s->uuid, sizeof(s->uuid));
	loop_random(&m->label.drive_id, sizeof(m->label.drive_id));
	s->catalog.drive_id[drive] = m->label.drive_id;
	if (!label_lay_out(&m->label))
		return fail(o, -EINVAL, "drive %s: too small", m->path);
	m->owner = calloc(m->label.slab_count, sizeof(*m->owner));
	if (m->owner == NULL || slot_reserve(s, &m->label) != 0)
		return fail(o, -ENOMEM, "no memory");
	s->drive[drive] = m;
	return 0;
}

/* Labels say "being made" until the catalog is on every drive. */
static int set_make(struct opening *o)
{
	struct set *s = o->set;
	int rc = 0;

	s->shards = shards_choose(o);
	loop_random(s->uuid, sizeof(s->uuid));
	s->catalog = (struct catalog){.next_id = 1};
	for (unsigned i = 0; i < s->drive_count && rc == 0; i++)
		rc = member_make(o, &s->member[i], i);
	for (unsigned i = 0; i < s->drive_count && rc == 0; i++)
		rc = labels_write(o, s->drive[i]);
	if (rc == 0)
		rc = set_commit(s);
	for (unsigned i = 0; i < s->drive_count && rc == 0; i++) {
		if (s->drive[i]->broken)
			rc = fail(o, -EIO, "drive %s: its catalog can't be written",
				  s->drive[i]->path);
	}
	return rc != 0 ? rc : labels_settle(o);
}

/* --- the whole -------------------- */

/* One namespace over whole drives; what it is called, and how large, is asked for at each start. */
static void version_one_show(struct set *s, const struct set_old *old)
{
	struct catalog *c = &s->catalog;
	struct set_ns *ns = &c->ns[0].ns;

	s->shards = 1;
	c->next_id = 1;
	c->ns_count = 1;
	*ns = (struct set_ns){.nsid = 1, .kind = SET_KV, .shards = 1, .evict = !old->keep,
		.value_bytes_max = old->value_bytes_max};
	c->subsys_used[0] = true;
	for (unsigned i = 0; i < s->drive_count; i++) {
		const struct member *m = &s->member[i];

		if (m->disk == NULL)
			continue;
		ns->cap_bytes += disk_info(m->disk)->bytes;
		if (old->value_bytes_max == 0 && m->label.value_bytes_max > ns->value_bytes_max)
			ns->value_bytes_max = m->label.value_bytes_max;
	}
	s->old_cap_bytes = old->cap_bytes;
	if (old->cap_bytes != 0)
		ns->cap_bytes = bytes_min(ns->cap_bytes, old->cap_bytes);
	must(ns->value_bytes_max <= STORE_VALUE_BYTES_LIMIT);
}

static int open_known(struct opening *o)
{
	struct set *s = o->set;
	bool missing = false;
	int rc = catalogs_read(o);

	if (rc == 0)
		rc = catalogs_merge(o);
	if (rc == 0 && !o->opts->look)
		rc = blanks_join(o);
	if (rc != 0)
		return rc;
	if (o->opts->look)
		return 0;
	for (unsigned i = 0; i < s->drive_count; i++)
		missing |= s->drive[i] == NULL;
	if (missing)
		s->catalog.generation += 2;
	rc = set_commit(s);
	if (rc != 0)
		return fail(o, rc, "the catalog can't be written on any drive");
	/* Its label says "joining" until it has a catalog: the next open takes it for blank. */
#ifndef KVOF_PLANT_HALF_JOINED
	for (unsigned i = 0; i < s->drive_count; i++) {
		if (s->drive[i] != NULL && s->drive[i]->broken && s->drive[i]->blank)
			return fail(o, -EIO, "drive %s: can't take the place of drive %u: its "
				    "catalog can't be written", s->drive[i]->path, i);
	}
#endif
	return labels_settle(o);
}

static int open_steps(struct opening *o)
{
	struct census c = {.labels = 0};
	int rc = members_open(o);

	if (rc == 0)
		rc = census_take(o, &c);
	if (rc == 0)
		rc = census_judge(o, &c);
	if (rc != 0)
		return rc;
	if (o->fresh)
		return set_make(o);
	if (!o->set->version_one)
		return open_known(o);
	version_one_show(o->set, &o->opts->old);
	return 0;
}

static void set_free(struct set *s)
{
	for (unsigned i = 0; i < s->drive_count; i++)
		free(s->member[i].owner);
	loop_buffer_unmap(s->slot, s->slot_bytes);
	s->magic = 0;
	free(s);
}

static void members_close(struct set *s, bool undo)
{
	for (unsigned i = 0; i < s->drive_count; i++) {
		struct member *m = &s->member[i];

		if (undo)
			attach_undo(m->disk);
		if (m->disk != NULL)
			disk_close(&m->disk);
	}
}

int set_open(const struct set_opts *opts, struct loop *loop, struct set **out,
	     struct store_report *report)
{
	struct set *s = calloc(1, sizeof(*s));
	struct opening o = {.set = s, .opts = opts, .report = report};
	int rc = -ENOMEM;

	must(opts->drive_count >= 1 && opts->drive_count <= STORE_DRIVES_MAX);
	must(opts->shards <= STORE_SHARDS_MAX);
	*report = (struct store_report){.text = "no memory"};
	o.best = calloc(2, sizeof(*o.best));
	o.block = loop_buffer_map(FMT_BLANK_BYTES);
	if (s != NULL && o.best != NULL && o.block != NULL) {
		OBJ_INIT(s, SET_MAGIC);
		o.found = o.best + 1;
		s->loop = loop;
		s->drive_count = opts->drive_count;
		s->degraded = opts->degraded;
		s->replace = opts->replace;
		rc = open_steps(&o);
	}
	if (rc == 0) {
		snprintf(report->text, sizeof(report->text), "%u namespaces on %u drives%s",
			 s->catalog.ns_count, s->drive_count,
			 o.fresh ? ", new" : s->version_one ? ", version 1" : "");
		*out = s;
	} else if (s != NULL) {
		members_close(s, true);
		set_free(s);
	}
	free(o.best);
	loop_buffer_unmap(o.block, FMT_BLANK_BYTES);
	return rc;
}

const char *set_busy_drive(const struct set *s)
{
	OBJ_CHECK(s, SET_MAGIC);
	for (unsigned i = 0; i < s->drive_count; i++)
		if (s->drive[i] != NULL && s->drive[i]->disk != NULL &&
		    disk_parts(s->drive[i]->disk) > 0)
			return s->drive[i]->path;
	return NULL;
}

void set_close(struct set **set)
{
	struct set *s;

	OBJ_TAKE(s, set, SET_MAGIC);
	members_close(s, false);
	set_free(s);
}

void set_forget(struct set **set)
{
	struct set *s;

	OBJ_TAKE(s, set, SET_MAGIC);
	set_free(s);
}
