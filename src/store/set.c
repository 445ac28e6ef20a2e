/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: namespaces and subsystems of a set of drives: made, removed, opened as parts.
 *
 * Theory: what is true is in the catalog of the highest generation. A change is one new generation,
 * written to every drive: the copy at the end, a flush, the copy at the front, a flush; always into
 * the slot that does not hold the last one. A namespace is made in two generations: the first gives
 * it its slabs and says "being made" (an open drops it again), the second says it is there; between
 * the two, nothing but the ends of its parts is written, and those are zero before the first. So a
 * store or a block shard that finds its part blank may make it, and what lay there before, of a
 * namespace that is gone, is of another store id and never believed.
 *
 * Invariants: a slab has one owner, who is in the catalog; an id is given once; memory and drives
 * say the same, or the drive is broken.
 *
 * Thread: as set.h says.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "store/attach.h"
#include "store/block_format.h"
#include "store/set_inner.h"

__attribute__((format(printf, 3, 4))) static int fail(char why[256], int rc, const char *format,
						       ...)
{
	va_list args;

	must(rc < 0);
	va_start(args, format);
	vsnprintf(why, 256, format, args);
	va_end(args);
	return rc;
}

static int version_one(char why[256])
{
	return fail(why, -EPROTO, "the drives were made by version 1, which has one namespace over "
		    "whole drives; format them to have several");
}

/* --- parts that are open -------------------- */

static struct set_parts *parts_find(struct set *s, uint32_t ns)
{
	for (unsigned i = 0; i < SET_PARTS_MAX; i++) {
		if (s->parts[i].ns == ns)
			return &s->parts[i];
	}
	return NULL;
}

bool set_parts_add(struct set *s, uint32_t ns)
{
	struct set_parts *p = parts_find(s, ns);

	must(ns != 0);
	if (p == NULL)
		p = parts_find(s, 0);
	if (p != NULL)
		p->ns = ns;
	return p != NULL;
}

/* The namespace is gone; its counters are, too, unless I/O of a part has not come back. */
static void parts_drop(struct set *s, uint32_t ns)
{
	struct set_parts *p = parts_find(s, ns);
	bool open = false;

	for (unsigned i = 0; p != NULL && i < s->drive_count; i++)
		open |= atomic_load(&p->open[i]) > 0;
	if (p != NULL && !open)
		p->ns = 0;
}

/* --- the catalog, written -------------------- */

static int catalog_put(struct set *s, struct member *m, unsigned at_end)
{
	uint64_t block = label_slot_block(&m->label, at_end,
					  s->catalog.generation % CATALOG_SLOTS);
	uint64_t bytes = (uint64_t)m->label.slot_blocks << FMT_BLOCK_SHIFT;
	int rc;

	must(bytes <= s->slot_bytes && m->label.state <= LABEL_JOINING);
	catalog_write(s->slot, &m->label, block, &s->catalog, m->owner);
	rc = attach_write(m->disk, s->slot, bytes, block << FMT_BLOCK_SHIFT);
	return rc != 0 ? rc : disk_flush_now(m->disk);
}

void set_drive_break(struct member *m)
{
	if (!m->broken)
		log_error("set drive %s: its catalog can't be written; no new namespace gets a "
			  "part of it until the next start", m->path);
	m->broken = true;
}

void set_drive_failed(struct set *s, const char *path)
{
	OBJ_CHECK(s, SET_MAGIC);
	for (unsigned i = 0; i < s->drive_count; i++) {
		if (s->drive[i] != NULL && strcmp(s->drive[i]->path, path) == 0)
			set_drive_break(s->drive[i]);
	}
}

int set_commit(struct set *s)
{
	unsigned written = 0;

	must(!s->version_one);
	s->catalog.generation++;
	for (unsigned i = 0; i < s->drive_count; i++) {
		struct member *m = s->drive[i];

		if (!set_drive_live(s, i))
			continue;
		if (catalog_put(s, m, 1) != 0 || catalog_put(s, m, 0) != 0) {
			set_drive_break(m);
			continue;
		}
		m->generation = s->catalog.generation;
		written++;
	}
	return written > 0 ? 0 : -EIO;
}

/* --- what others ask -------------------- */

unsigned set_shards(const struct set *set)
{
	OBJ_CHECK(set, SET_MAGIC);
	return set->shards;
}

unsigned set_drives(const struct set *set)
{
	OBJ_CHECK(set, SET_MAGIC);
	return set->drive_count;
}

uint64_t set_free_bytes(const struct set *set)
{
	uint64_t bytes = 0;

	OBJ_CHECK(set, SET_MAGIC);
	for (unsigned i = 0; i < set->drive_count && !set->version_one; i++) {
		if (set_drive_live(set, i))
			bytes += set_room_free(set->drive[i]) * set->drive[i]->label.slab_bytes;
	}
	return bytes;
}

bool set_was_made(const struct set *set)
{
	OBJ_CHECK(set, SET_MAGIC);
	return !set->version_one && set->catalog.next_id == 1;
}

unsigned set_ns_list(const struct set *set, struct set_ns out[SET_NAMESPACES_MAX])
{
	OBJ_CHECK(set, SET_MAGIC);
	for (unsigned i = 0; i < set->catalog.ns_count; i++)
		out[i] = set->catalog.ns[i].ns;
	return set->catalog.ns_count;
}

unsigned set_subsys_list(const struct set *set, struct set_subsys out[SET_SUBSYSTEMS_MAX])
{
	unsigned count = 0;

	OBJ_CHECK(set, SET_MAGIC);
	for (unsigned i = 0; i < SET_SUBSYSTEMS_MAX; i++) {
		if (set->catalog.subsys_used[i])
			out[count++] = set->catalog.subsys[i];
	}
	return count;
}

static struct catalog_ns *ns_find(const struct set *s, uint32_t id)
{
	struct catalog *c = (struct catalog *)(uintptr_t)&s->catalog;

	for (unsigned i = 0; i < c->ns_count; i++) {
		if (c->ns[i].ns.id == id)
			return &c->ns[i];
	}
	return NULL;
}

/* --- namespaces -------------------- */

/* Writes s->slot over [from, from + bytes) of a part. */
static int extents_write(struct set *s, struct member *m, const struct disk_extent *e, int count,
			 uint64_t from, uint64_t bytes)
{
	uint64_t end = from + bytes, at = 0;

	for (int i = 0; i < count; i++) {
		uint64_t first = from > at ? from : at, last = bytes_min(end, at + e[i].bytes);
		int rc = 0;

		if (first < last)
			rc = attach_write(m->disk, s->slot, last - first,
					  e[i].offset_bytes + first - at);
		if (rc != 0)
			return rc;
		at += e[i].bytes;
	}
	return 0;
}

int set_parts_clear(struct set *s, struct member *m, const struct catalog_ns *n, bool lost)
{
	unsigned drive = m->label.drive;
	uint64_t bytes = n->part_bytes[drive], ends = bytes_min(bytes, SET_ENDS_BYTES);

	must(ends <= s->slot_bytes);
	for (unsigned shard = 0; shard < n->ns.shards && bytes > 0; shard++) {
		struct disk_extent *e = NULL;
		int count = set_room_extents(m, n, drive, shard, &e), rc;

		must(count != 0);
		if (count < 0)
			return -ENOMEM;
		memset(s->slot, 0, s->slot_bytes);
		rc = extents_write(s, m, e, count, 0, ends);
		if (rc == 0)
			rc = extents_write(s, m, e, count, bytes - ends, ends);
		blk_lost_write(s->slot);
		if (rc == 0 && lost && n->ns.kind == SET_BLOCK)
			rc = extents_write(s, m, e, count, 0, BLK_BYTES);
		if (rc == 0 && lost && n->ns.kind == SET_BLOCK)
			rc = extents_write(s, m, e, count, bytes - BLK_BYTES, BLK_BYTES);
		free(e);
		if (rc != 0)
			return rc;
	}
	return bytes > 0 ? disk_flush_now(m->disk) : 0;
}

static int nsid_choose(const struct set *s, struct set_ns *ns, char why[256])
{
	uint32_t nsid = ns->nsid == 0 ? 1 : ns->nsid;

	for (unsigned i = 0; i < s->catalog.ns_count; i++) {
		const struct set_ns *other = &s->catalog.ns[i].ns;

		if (other->subsys != ns->subsys || other->nsid != nsid)
			continue;
		if (ns->nsid != 0)
			return fail(why, -EEXIST, "namespace %u of subsystem %s is there already",
				    nsid, s->catalog.subsys[ns->subsys].nqn);
		nsid++;
		i = UINT32_MAX;                      /* from the first again */
	}
	ns->nsid = nsid;
	return 0;
}

static int ns_check(const struct set *s, const struct set_ns *ns, char why[256])
{
	if (s->version_one)
		return version_one(why);
	if (s->catalog.ns_count == SET_NAMESPACES_MAX)
		return fail(why, -ENOSPC, "there are %u namespaces already, no more are possible",
			    SET_NAMESPACES_MAX);
	if (ns->subsys >= SET_SUBSYSTEMS_MAX || !s->catalog.subsys_used[ns->subsys])
		return fail(why, -ENOENT, "there is no subsystem of number %u", ns->subsys);
	if (ns->kind != SET_KV && ns->kind != SET_BLOCK)
		return fail(why, -EINVAL, "a namespace is kv or block");
	if (ns->kind == SET_KV)
		return ns->value_bytes_max <= STORE_VALUE_BYTES_LIMIT ? 0 :
			fail(why, -EINVAL, "values are at most %" PRIu64 " bytes",
			     STORE_VALUE_BYTES_LIMIT);
	if (ns->block_bytes != 512 && ns->block_bytes != 4096)
		return fail(why, -EINVAL, "blocks are of 512 or 4096 bytes");
	if (ns->bytes == 0 || ns->bytes % ns->block_bytes != 0)
		return fail(why, -EINVAL, "the size of a block namespace is a number of blocks");
	return 0;
}

static void ns_drop(struct set *s, struct catalog_ns *n)
{
	struct catalog *c = &s->catalog;

	for (unsigned i = 0; i < s->drive_count; i++) {
		if (s->drive[i] != NULL)
			set_room_give(s->drive[i], n->ns.id);
	}
	parts_drop(s, n->ns.id);
	must(n >= c->ns && n < c->ns + c->ns_count);
	*n = c->ns[--c->ns_count];
	memset(&c->ns[c->ns_count], 0, sizeof(c->ns[0]));
}

/* Slabs are taken and the ends of the parts are zero; nothing says so yet. */
static int ns_place(struct set *s, struct catalog_ns *n, char why[256])
{
	for (unsigned i = 0; i < s->drive_count; i++) {
		struct member *m = s->drive[i];
		int rc;

		if (n->part_bytes[i] == 0)
			continue;
		must(set_drive_live(s, i));
		if (!set_room_take(m, n, i))
			return fail(why, -ENOSPC, "drive %s: has no room", m->path);
		rc = set_parts_clear(s, m, n, false);
		if (rc != 0)
			return fail(why, rc, "drive %s: can't be written: %s", m->path,
				    strerror(-rc));
	}
	return 0;
}

/* True: every drive that the namespace is on has the last catalog. */
static bool ns_written(const struct set *s, const struct catalog_ns *n)
{
	for (unsigned i = 0; i < s->drive_count; i++) {
		if (n->part_bytes[i] != 0 && !set_drive_live(s, i))
			return false;
	}
	return true;
}

static int ns_make(struct set *s, struct catalog_ns *n, char why[256])
{
	int rc = ns_place(s, n, why);

	if (rc != 0)
		return rc;
	n->making = true;
	rc = set_commit(s);
	n->making = false;
	if (rc == 0 && ns_written(s, n))
		rc = set_commit(s);
	if (rc == 0 && !ns_written(s, n))
		rc = -EIO;
	return rc == 0 ? 0 : fail(why, rc, "the catalog can't be written on every drive");
}

int set_ns_create(struct set *s, struct set_ns *ns, char why[256])
{
	struct set_ns made = *ns;
	struct set_plan plan;
	struct catalog_ns *n;
	int rc;

	OBJ_CHECK(s, SET_MAGIC);
	why[0] = 0;
	rc = ns_check(s, &made, why);
	if (rc == 0)
		rc = nsid_choose(s, &made, why);
	if (rc == 0)
		rc = set_room_plan(s, &made, &plan, why);
	if (rc != 0)
		return rc;
	made.id = s->catalog.next_id++;
	if (!set_parts_add(s, made.id))
		return fail(why, -ENOSPC, "the drives have not answered yet for %u removed "
			    "namespaces", SET_NAMESPACES_MAX);
	made.shards = (uint8_t)plan.shards;
	made.cap_bytes = 0;
	for (unsigned i = 0; i < STORE_DRIVES_MAX; i++)
		made.cap_bytes += plan.part_bytes[i] * plan.shards;
	loop_random(made.uuid, sizeof(made.uuid));
	n = &s->catalog.ns[s->catalog.ns_count++];
	*n = (struct catalog_ns){.ns = made};
	memcpy(n->part_bytes, plan.part_bytes, sizeof(n->part_bytes));
	rc = ns_make(s, n, why);
	if (rc == 0) {
		*ns = made;
		return 0;
	}
	ns_drop(s, n);
	(void)set_commit(s);
	return rc;
}

/* A namespace's slabs on one drive go back to the drive's own care. */
static void ns_discard(struct member *m, const struct catalog_ns *n)
{
	for (unsigned shard = 0; shard < n->ns.shards; shard++) {
		struct disk_extent *e = NULL;
		int count = set_room_extents(m, n, m->label.drive, shard, &e);

		for (int i = 0; i < count; i++)
			(void)disk_discard_now(m->disk, e[i].bytes, e[i].offset_bytes);
		free(e);
	}
}

int set_ns_remove(struct set *s, uint32_t id, char why[256])
{
	struct set_parts *parts;
	struct catalog_ns *n;
	int rc;

	OBJ_CHECK(s, SET_MAGIC);
	why[0] = 0;
	if (s->version_one)
		return version_one(why);
	n = ns_find(s, id);
	if (n == NULL)
		return fail(why, -ENOENT, "there is no namespace of id %u", id);
	/* What is still on its way there may land at any time, on whatever the slabs hold then;
	 * and a write of ours might never end. So nothing more is done with that drive. */
	parts = parts_find(s, id);
	must(parts != NULL);
#ifndef KVOF_PLANT_LATE_WRITE_FORGOTTEN
	for (unsigned i = 0; i < s->drive_count; i++) {
		if (s->drive[i] != NULL && atomic_load(&parts->open[i]) > 0)
			set_drive_break(s->drive[i]);
	}
#endif
	n->making = true;                            /* an open drops it: that is the removal */
	rc = set_commit(s);
	if (rc != 0) {
		n->making = false;
		return fail(why, rc, "the catalog can't be written on any drive");
	}
	for (unsigned i = 0; i < s->drive_count; i++) {
		if (set_drive_live(s, i))
			ns_discard(s->drive[i], n);
	}
	ns_drop(s, n);
	if (set_commit(s) != 0)
		log_error("set: the catalog can't be written on any drive");
	return 0;
}

/* --- subsystems -------------------- */

int set_subsys_create(struct set *s, const char *nqn, uint8_t *number, char why[256])
{
	struct catalog *c = &s->catalog;
	unsigned at = SET_SUBSYSTEMS_MAX;

	OBJ_CHECK(s, SET_MAGIC);
	why[0] = 0;
	if (s->version_one)
		return version_one(why);
	if (nqn[0] == 0 || strlen(nqn) >= SET_NQN_BYTES)
		return fail(why, -EINVAL, "the name of a subsystem has 1 to %u bytes",
			    SET_NQN_BYTES - 1);
	for (unsigned i = SET_SUBSYSTEMS_MAX; i-- > 0;) {
		if (!c->subsys_used[i])
			at = i;
		else if (strcmp(c->subsys[i].nqn, nqn) == 0)
			return fail(why, -EEXIST, "subsystem %s is there already", nqn);
	}
	if (at == SET_SUBSYSTEMS_MAX)
		return fail(why, -ENOSPC, "there are %u subsystems already, no more are possible",
			    SET_SUBSYSTEMS_MAX);
	c->subsys[at] = (struct set_subsys){.number = (uint8_t)at};
	memcpy(c->subsys[at].nqn, nqn, strlen(nqn) + 1);
	loop_random(c->subsys[at].uuid, sizeof(c->subsys[at].uuid));
	c->subsys_used[at] = true;
	if (set_commit(s) != 0) {
		c->subsys_used[at] = false;
		return fail(why, -EIO, "the catalog can't be written on any drive");
	}
	*number = (uint8_t)at;
	return 0;
}

static void hosts_forget(struct catalog *c, uint8_t number)
{
	must(number < SET_SUBSYSTEMS_MAX);
	for (unsigned i = 0; i < SET_HOSTS_MAX; i++) {
		c->host[i].subsys_mask &= (uint8_t)~(1u << number);
		if (c->host[i].subsys_mask == 0)
			memset(&c->host[i], 0, sizeof(c->host[i]));
	}
}

/* False: there is no room for another name. */
static bool host_add(struct catalog *c, uint8_t number, const char *nqn)
{
	struct catalog_host *at = NULL;

	for (unsigned i = SET_HOSTS_MAX; i-- > 0;) {
		if (c->host[i].nqn[0] == 0 && (at == NULL || at->nqn[0] == 0))
			at = &c->host[i];
		else if (strcmp(c->host[i].nqn, nqn) == 0)
			at = &c->host[i];
	}
	if (at == NULL)
		return false;
	memcpy(at->nqn, nqn, strlen(nqn) + 1);
	at->subsys_mask |= (uint8_t)(1u << number);
	return true;
}

static int hosts_set(struct set *s, uint8_t number, const char *const *host, unsigned count,
		     char why[256])
{
	struct catalog *c = &s->catalog;

	hosts_forget(c, number);
	for (unsigned i = 0; i < count; i++) {
		if (host[i][0] == 0 || strlen(host[i]) >= SET_NQN_BYTES)
			return fail(why, -EINVAL, "the name of a host has 1 to %u bytes",
				    SET_NQN_BYTES - 1);
		if (!host_add(c, number, host[i]))
			return fail(why, -ENOSPC, "there are %u hosts already, no more are "
				    "possible", SET_HOSTS_MAX);
	}
	return set_commit(s) == 0 ? 0 :
		fail(why, -EIO, "the catalog can't be written on any drive");
}

int set_subsys_hosts(struct set *s, uint8_t number, const char *const *host, unsigned count,
		     char why[256])
{
	struct catalog_host before[SET_HOSTS_MAX];
	int rc;

	OBJ_CHECK(s, SET_MAGIC);
	why[0] = 0;
	if (s->version_one)
		return version_one(why);
	if (number >= SET_SUBSYSTEMS_MAX || !s->catalog.subsys_used[number])
		return fail(why, -ENOENT, "there is no subsystem of number %u", number);
	memcpy(before, s->catalog.host, sizeof(before));
	rc = hosts_set(s, number, host, count, why);
	if (rc != 0)
		memcpy(s->catalog.host, before, sizeof(before));
	return rc;
}

unsigned set_subsys_hosts_list(const struct set *s, uint8_t number,
			       char out[SET_HOSTS_MAX][SET_NQN_BYTES])
{
	unsigned count = 0;

	OBJ_CHECK(s, SET_MAGIC);
	must(number < SET_SUBSYSTEMS_MAX);
	for (unsigned i = 0; i < SET_HOSTS_MAX; i++) {
		if ((s->catalog.host[i].subsys_mask >> number & 1) != 0)
			memcpy(out[count++], s->catalog.host[i].nqn, SET_NQN_BYTES);
	}
	return count;
}

int set_subsys_remove(struct set *s, uint8_t number, char why[256])
{
	struct catalog *c = &s->catalog;
	struct catalog_host before[SET_HOSTS_MAX];

	OBJ_CHECK(s, SET_MAGIC);
	why[0] = 0;
	if (s->version_one)
		return version_one(why);
	if (number >= SET_SUBSYSTEMS_MAX || !c->subsys_used[number])
		return fail(why, -ENOENT, "there is no subsystem of number %u", number);
	for (unsigned i = 0; i < c->ns_count; i++) {
		if (c->ns[i].ns.subsys == number)
			return fail(why, -EBUSY, "subsystem %s has namespaces",
				    c->subsys[number].nqn);
	}
	memcpy(before, c->host, sizeof(before));
	hosts_forget(c, number);
	c->subsys_used[number] = false;
	if (set_commit(s) == 0)
		return 0;
	c->subsys_used[number] = true;
	memcpy(c->host, before, sizeof(before));
	return fail(why, -EIO, "the catalog can't be written on any drive");
}

/* --- parts -------------------- */

/* Whoever has the slabs later has another id: what is left there is foreign to it. */
static void part_uuid(const struct set_ns *ns, unsigned shard, uint8_t out[16])
{
	uint8_t text[32] = "kvof part", digest[32];

	must(shard < STORE_SHARDS_MAX);
#ifdef KVOF_PLANT_PART_ID_OF_ITS_NUMBER
	text[16] = (uint8_t)ns->nsid;                /* planted fault */
#else
	memcpy(text + 12, ns->uuid, 16);
#endif
	text[28] = (uint8_t)shard;
	hash_sha256_once(text, sizeof(text), digest);
	memcpy(out, digest, 16);
}

static int part_open(const struct member *m, const struct catalog_ns *n, unsigned drive,
		     unsigned shard, struct loop *loop, struct disk **out)
{
	struct disk_extent *e = NULL;
	int count = set_room_extents(m, n, drive, shard, &e), rc;

	must(count != 0);
	if (count < 0)
		return -ENOMEM;
	rc = disk_open_part(loop, m->disk, e, (unsigned)count, out);
	must(rc == 0 || rc == -ENOMEM);
	free(e);
	return rc;
}

static int whole_open(const struct member *m, struct loop *loop, struct disk **out)
{
	struct disk_extent all = {.bytes = disk_info(m->disk)->bytes &
		~(uint64_t)(FMT_BLOCK_BYTES - 1)};

	return disk_open_part(loop, m->disk, &all, 1, out);
}

static int parts_open(struct set *s, const struct catalog_ns *n, unsigned shard, struct loop *loop,
		      struct store_opts *opts)
{
	struct set_parts *parts = s->version_one ? NULL : parts_find(s, n->ns.id);

	for (unsigned i = 0; i < s->drive_count; i++) {
		struct member *m = s->version_one ? &s->member[i] : s->drive[i];
		struct store_drive *d = &opts->drive[opts->drive_count];
		int rc = 0;

		if (!s->version_one && n->part_bytes[i] == 0)
			continue;
		*d = (struct store_drive){.path = m == NULL ? "(missing)" : m->path,
			.rate = m == NULL ? NULL : &m->rate};
		if (m == NULL || m->disk == NULL)
			d->missing = true;
		else if (s->version_one)
			rc = whole_open(m, loop, &d->disk);
		else
			rc = part_open(m, n, i, shard, loop, &d->disk);
		if (rc != 0)
			return rc;
		if (d->disk != NULL && parts != NULL) {
			d->open = &parts->open[i];
			atomic_fetch_add(d->open, 1);
		}
		opts->drive_count++;
	}
	must(opts->drive_count > 0);
	return 0;
}

int set_ns_parts(struct set *s, uint32_t id, unsigned shard, struct loop *loop,
		 struct store_opts *opts)
{
	const struct catalog_ns *n = ns_find(s, id);
	int rc;

	OBJ_CHECK(s, SET_MAGIC);
	if (n == NULL || shard >= n->ns.shards)
		return -ENOENT;
	opts->drive_count = 0;
	opts->degraded = s->degraded;
	opts->replace = s->replace || !s->version_one;
	opts->format = false;
	opts->cap_bytes = s->old_cap_bytes;
	opts->evict = n->ns.evict;
	opts->stripe = n->ns.stripe;
	if (n->ns.value_bytes_max != 0)
		opts->value_bytes_max = n->ns.value_bytes_max;
	memset(opts->uuid, 0, sizeof(opts->uuid));
	if (!s->version_one)
		part_uuid(&n->ns, shard, opts->uuid);
	rc = parts_open(s, n, shard, loop, opts);
	for (unsigned i = 0; i < opts->drive_count && rc != 0; i++) {
		if (opts->drive[i].disk != NULL)
			attach_part_close(&opts->drive[i].disk, opts->drive[i].open);
	}
	return rc;
}
