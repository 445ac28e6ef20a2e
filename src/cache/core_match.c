/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a match can be told at once: the tree's word for flash and arrays while that is believed and
 * the array is there, and for DRAM the truth. A block that the tree has forgotten and DRAM has is
 * asked of DRAM itself, which costs one more lookup where a match ends anyway.
 */
#include <string.h>

#include "cache/core_inner.h"
#include "cache/route.h"

#define LOOK_STEP 128

struct prefix *core_tree(struct core *core)
{
	OBJ_CHECK(core, CORE_MAGIC);
	return core->known;
}

unsigned core_where(const struct core *core, const struct kvof_id *id)
{
	return prefix_where(core->known, id, loop_now_ns(core->loop));
}

bool core_over(const struct core *core, const struct kvof_id *id)
{
	return prefix_over(core->known, id, loop_now_ns(core->loop));
}

/* The tree learns again what it has forgotten. */
static bool dram_has(struct core *core, const struct kvof_id *id, uint64_t lease_until_ns)
{
	struct tier *dram = core->tier[KVOF_TIER_DRAM];
	uint64_t now = loop_now_ns(core->loop);

	if (dram == NULL || !dram->ops->has(dram, id) || prefix_over(core->known, id, now))
		return false;
	prefix_seen(core->known, KVOF_TIER_DRAM, id, now);
	dram->ops->touch(dram, id, lease_until_ns);
	return true;
}

static void look_leading(struct core *core, struct core_look *look, uint64_t lease_until_ns)
{
	uint64_t now = loop_now_ns(core->loop);

	for (look->leading = 0;; look->leading++) {
		look->leading += prefix_match(core->known, look->ids + look->leading,
					      look->count - look->leading, now, lease_until_ns);
		if (look->leading == look->count ||
		    !dram_has(core, &look->ids[look->leading], lease_until_ns))
			break;
	}
	core->stat.match_known += look->leading;
}

/* An array is away: what it has is not there now, though it will be again. */
static bool remote_gap(const struct core *core)
{
	struct tier_stat stat;

	if (core->tier[KVOF_TIER_REMOTE] == NULL)
		return false;
	route_stat(core->tier[KVOF_TIER_REMOTE], &stat);
	return stat.devs_live < stat.devs;
}

static uint8_t without_gap(const struct core *core, const struct kvof_id *id, uint8_t where)
{
	const struct tier *remote = core->tier[KVOF_TIER_REMOTE];
	struct tier_speed speed;

	if ((where & 1u << KVOF_TIER_REMOTE) == 0)
		return where;
	remote->ops->speed(remote, id, &speed);
#ifdef KVOF_PLANT_LOST_ARRAY_BELIEVED
	return where;
#endif
	return speed.live ? where : (uint8_t)(where & ~(1u << KVOF_TIER_REMOTE));
}

/* where[i] of a few blocks. Return: those from the first on that are somewhere. */
static uint32_t look_some(struct core *core, const struct kvof_id *ids, uint32_t count,
			  uint64_t lease_until_ns, uint8_t *where)
{
	bool gap = remote_gap(core);
	uint32_t leading = 0;

	prefix_look(core->known, ids, count, loop_now_ns(core->loop), lease_until_ns, where);
	for (uint32_t i = 0; i < count; i++) {
		if (gap)
			where[i] = without_gap(core, &ids[i], where[i]);
		if (where[i] == 0 && dram_has(core, &ids[i], lease_until_ns))
			where[i] = 1u << KVOF_TIER_DRAM;
		core->stat.match_known += where[i] != 0;
		leading += leading == i && where[i] != 0;
	}
	return leading;
}

static void look_leading_with_gap(struct core *core, struct core_look *look,
				  uint64_t lease_until_ns)
{
	uint8_t where[LOOK_STEP];
	uint32_t step, got;

	look->leading = 0;
	do {
		step = (uint32_t)bytes_min(look->count - look->leading, LOOK_STEP);
		got = look_some(core, look->ids + look->leading, step, lease_until_ns, where);
		look->leading += got;
	} while (got == step && step > 0);
}

static struct kvof_id *trail_of(struct core *core, const struct kvof_id *id)
{
	uint64_t key;

	memcpy(&key, id->byte, sizeof(key));
	return core->trail[key % CORE_TRAIL].id;
}

/* What was not found is computed and saved, in several batches often: each is to be known as what
 * follows the one before. The tree has no nodes for what may never come; this remembers a while. */
static void trail_lay(struct core *core, const struct core_look *look, uint32_t from)
{
	for (uint32_t i = from; i < look->count && i - from < CORE_TRAIL; i++)
		memcpy(trail_of(core, &look->ids[i]), &look->ids[i - 1],
		       2 * sizeof(struct kvof_id));
}

void core_trail_link(struct core *core, const struct kvof_id *id)
{
	struct kvof_id *pair = trail_of(core, id), up;

	if (memcmp(&pair[1], id, sizeof(*id)) == 0 && !prefix_parent(core->known, id, &up))
		prefix_link(core->known, (struct prefix_ids){pair, sizeof(*pair), 2}, true);
}

/* A save that continues what was matched is a batch of its own: its first block's parent is known
 * from here on. */
static void look_link(struct core *core, const struct core_look *look)
{
	struct prefix_ids ids = {NULL, sizeof(look->ids[0]), 2};

	trail_lay(core, look, look->leading + 1);
	if (look->leading == 0 || look->leading == look->count)
		return;
	ids.first = &look->ids[look->leading - 1];
	prefix_link(core->known, ids, true);
}

bool core_look(struct core *core, struct core_look *look)
{
	uint64_t until = loop_now_ns(core->loop) + core->lease_ns;

	OBJ_CHECK(core, CORE_MAGIC);
	loop_must_own(core->loop);
	if (look->where != NULL)
		look->leading = look_some(core, look->ids, look->count, until, look->where);
	else if (remote_gap(core))
		look_leading_with_gap(core, look, until);
	else
		look_leading(core, look, until);
	look_link(core, look);
	return !core->closing && (core->tier[KVOF_TIER_FLASH] != NULL ||
				  core->tier[KVOF_TIER_REMOTE] != NULL);
}
