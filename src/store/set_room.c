/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: how much of each drive a namespace takes, and which slabs its parts are made of.
 *
 * A namespace's size is spread evenly: over the drives (one that has less gives what it has), then
 * over the shards. A part is cut to its share, so its last slab may be used in part; that rest is
 * nobody's until the namespace goes. A small namespace has fewer shards, so that each part holds a
 * few segments.
 *
 * Invariants: a slab has one owner; a part of n slabs is longer than n - 1 slabs.
 *
 * Thread: as set.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/must.h"
#include "store/block.h"
#include "store/set_inner.h"

#define PARTS_GOOD 4u                        /* a part holds so many times the least */
#define BLOCK_SHARD_BYTES (64 * MiB)         /* a block namespace's shard is not smaller */

/* What each drive could give to each of `shards` parts, and where they are too small, nothing. */
struct room {
	uint64_t most[STORE_DRIVES_MAX];
	unsigned drives;                     /* with room */
};

uint32_t set_room_free(const struct member *m)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < m->label.slab_count; i++)
		count += m->owner[i].ns == 0;
	return count;
}

static struct room room_of(const struct set *s, unsigned shards, uint64_t least)
{
	struct room r = {.drives = 0};

	must(shards >= 1);
	for (unsigned i = 0; i < s->drive_count; i++) {
		if (!set_drive_live(s, i))
			continue;
		r.most[i] = set_room_free(s->drive[i]) / shards * s->drive[i]->label.slab_bytes;
		if (r.most[i] < least)
			r.most[i] = 0;
		r.drives += r.most[i] > 0;
	}
	return r;
}

/* What rounding to whole slabs for each shard takes away: asked for, it is given up. */
static uint64_t room_slack(const struct set *s, unsigned shards)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < s->drive_count; i++) {
		if (set_drive_live(s, i))
			bytes += s->drive[i]->label.slab_bytes * shards;
	}
	return bytes;
}

/* Evenly; who has less gives all. Return: what is missing. */
static uint64_t spread(const struct room *r, uint64_t bytes, uint64_t part[STORE_DRIVES_MAX])
{
	bool full[STORE_DRIVES_MAX] = {false};
	unsigned left = r->drives;
	uint64_t share;
	bool again = true;

	while (again && left > 0) {
		share = bytes / left;
		again = false;
		for (unsigned i = 0; i < STORE_DRIVES_MAX; i++) {
			if (full[i] || r->most[i] == 0 || r->most[i] > share)
				continue;
			full[i] = again = true;
			part[i] = r->most[i];
			bytes -= bytes < part[i] ? bytes : part[i];
			left--;
		}
	}
	for (unsigned i = 0; i < STORE_DRIVES_MAX; i++) {
		if (r->most[i] > 0 && !full[i])
			part[i] = bytes / left & ~(uint64_t)(FMT_BLOCK_BYTES - 1);
	}
	return left > 0 ? 0 : bytes;
}

static int too_large(const struct set *s, uint64_t asked, char why[256])
{
	uint64_t free_bytes = set_free_bytes(s);

	if (free_bytes == 0)
		snprintf(why, 256, "the drives have nothing free: namespaces have all of it");
	else
		snprintf(why, 256, "a size of %" PRIu64 " bytes is asked for, but the drives have %"
			 PRIu64 " free; leave it out to use all", asked, free_bytes);
	return -ENOSPC;
}

static int too_small(uint64_t asked, uint64_t least, uint32_t value_bytes_max, char why[256])
{
	snprintf(why, 256, "too small: %" PRIu64 " bytes usable, at least %" PRIu64
		 " with values of up to %u bytes", asked, least, value_bytes_max);
	return -EINVAL;
}

static unsigned shards_for(const struct set *s, uint64_t bytes, uint64_t each)
{
	uint64_t shards = bytes / each;

	return shards < 1 ? 1 : shards > s->shards ? s->shards : (unsigned)shards;
}

static void room_drop_one(struct room *r)
{
	unsigned smallest = STORE_DRIVES_MAX;

	for (unsigned i = 0; i < STORE_DRIVES_MAX; i++) {
		if (r->most[i] > 0 &&
		    (smallest == STORE_DRIVES_MAX || r->most[i] <= r->most[smallest]))
			smallest = i;
	}
	must(smallest < STORE_DRIVES_MAX);
	r->most[smallest] = 0;
	r->drives--;
}

static int plan_kv(const struct set *s, const struct set_ns *want, struct set_plan *plan,
		   char why[256])
{
	uint64_t least = store_part_bytes_min(want->value_bytes_max), short_by = 0;
	uint64_t bytes = want->cap_bytes == 0 ? set_free_bytes(s) : want->cap_bytes;
	uint64_t slack;
	unsigned drives;
	struct room r;

	if (want->cap_bytes != 0 && want->cap_bytes < least)
		return too_small(bytes, least, want->value_bytes_max, why);
	r = room_of(s, 1, least);
	if (r.drives == 0 && want->cap_bytes == 0)
		return too_small(bytes, least, want->value_bytes_max, why);
	if (r.drives == 0)
		return too_large(s, bytes, why);
	drives = r.drives;
	plan->shards = shards_for(s, bytes, drives * PARTS_GOOD * least) + 1;
	do {
		r = room_of(s, --plan->shards, least);
	} while (r.drives < drives && plan->shards > 1);
	slack = room_slack(s, plan->shards);
	if (want->cap_bytes == 0)
		bytes = UINT64_MAX / 2;
	while (r.drives > 1 && bytes / plan->shards / r.drives < least)
		room_drop_one(&r);
	must(r.drives > 0);
	short_by = spread(&r, bytes / plan->shards, plan->part_bytes) * plan->shards;
	if (want->cap_bytes == 0 || short_by <= slack)
		return 0;
	if (r.drives == drives)
		return too_large(s, bytes, why);
	snprintf(why, 256, "too small for %u drives: with values of up to %u bytes a part takes %"
		 PRIu64 " bytes at least, and one drive alone has not %" PRIu64
		 " free; ask for more, or for smaller values", drives, want->value_bytes_max, least,
		 bytes);
	return -ENOSPC;
}

/* Each part holds its share of the blocks and the map of it. */
static uint64_t block_part(const struct set_ns *want, unsigned shards, unsigned drives)
{
	if (want->cap_bytes != 0)
		return want->cap_bytes / shards / drives & ~(uint64_t)(FMT_BLOCK_BYTES - 1);
	return block_part_bytes(want->bytes, shards, drives);
}

/* Chunks go round the drives, so each part is as large as the others. */
static int plan_block(const struct set *s, const struct set_ns *want, struct set_plan *plan,
		      char why[256])
{
	uint64_t part = 0;
	struct room r;

	plan->shards = shards_for(s, want->bytes, BLOCK_SHARD_BYTES);
	for (unsigned drives = s->drive_count; drives > 0; drives--) {
		part = block_part(want, plan->shards, drives);
		r = room_of(s, plan->shards, part);
		if (r.drives < drives)
			continue;
		while (r.drives > drives)
			room_drop_one(&r);
		for (unsigned i = 0; i < s->drive_count; i++)
			plan->part_bytes[i] = r.most[i] > 0 ? part : 0;
		return 0;
	}
	return too_large(s, part * plan->shards, why);
}

int set_room_plan(const struct set *s, const struct set_ns *want, struct set_plan *plan,
		  char why[256])
{
	*plan = (struct set_plan){.shards = 0};
	return want->kind == SET_KV ? plan_kv(s, want, plan, why) : plan_block(s, want, plan, why);
}

/* --- slabs -------------------- */

/* First of a run of free slabs, or slab_count. */
static uint32_t run_find(const struct member *m, uint32_t count)
{
	uint32_t run = 0;

	must(count > 0);
	for (uint32_t i = 0; i < m->label.slab_count; i++) {
		run = m->owner[i].ns == 0 ? run + 1 : 0;
		if (run == count)
			return i + 1 - count;
	}
	return m->label.slab_count;
}

bool set_room_take(struct member *m, const struct catalog_ns *n, unsigned drive)
{
	uint64_t slab = m->label.slab_bytes;
	uint32_t count = (uint32_t)((n->part_bytes[drive] + slab - 1) / slab);

	if (count == 0)
		return true;
	if ((uint64_t)count * n->ns.shards > set_room_free(m))
		return false;
	for (unsigned shard = 0; shard < n->ns.shards; shard++) {
		uint32_t first = run_find(m, count), left = count;

		if (first == m->label.slab_count)
			first = 0;                   /* in pieces, from the lowest on */
		for (uint32_t i = first; left > 0; i++) {
			must(i < m->label.slab_count);
			if (m->owner[i].ns != 0)
				continue;
			m->owner[i] = (struct catalog_owner){n->ns.id, (uint8_t)shard};
			left--;
		}
	}
	return true;
}

void set_room_give(struct member *m, uint32_t ns)
{
	must(ns != 0);
	for (uint32_t i = 0; i < m->label.slab_count; i++) {
		if (m->owner[i].ns == ns)
			m->owner[i] = (struct catalog_owner){.ns = 0};
	}
}

int set_room_extents(const struct member *m, const struct catalog_ns *n, unsigned drive,
		     unsigned shard, struct disk_extent **out)
{
	uint64_t left = n->part_bytes[drive], slab = m->label.slab_bytes;
	uint64_t at = m->label.slabs_block * FMT_BLOCK_BYTES;
	struct disk_extent *e = calloc(m->label.slab_count, sizeof(*e));
	int count = 0;

	if (e == NULL)
		return -1;
	for (uint32_t i = 0; i < m->label.slab_count && left > 0; i++, at += slab) {
		uint64_t bytes = bytes_min(slab, left);

		if (m->owner[i].ns != n->ns.id || m->owner[i].shard != shard)
			continue;
		left -= bytes;
		if (count > 0 && e[count - 1].offset_bytes + e[count - 1].bytes == at)
			e[count - 1].bytes += bytes;
		else
			e[count++] = (struct disk_extent){at, bytes};
	}
	if (count == 0 || left > 0) {
		free(e);
		return 0;
	}
	*out = e;
	return count;
}
