/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What restores and prefetches stand on in a cache: the core's tiers, and what it wants to hear of
 * loads. Owned by the core's loop.
 */
#include "cache/core.h"
#include "cache/restore.h"

static struct tier *ops_tier(void *core, unsigned number)
{
	return core_tier(core, (enum kvof_tier)number);
}

static unsigned ops_tier_next(void *core, unsigned number)
{
	return core_tier_next(core, (enum kvof_tier)number);
}

static bool ops_loaded(void *core, struct tier_op *op, unsigned number)
{
	return core_loaded(core, op, (enum kvof_tier)number, false);
}

static bool ops_prefetched(void *core, struct tier_op *op, unsigned number)
{
	return core_loaded(core, op, (enum kvof_tier)number, true);
}

static void ops_missed(void *core, const struct tier_op *op, unsigned number)
{
	core_missed(core, op, (enum kvof_tier)number);
}

static void ops_failed(void *core, enum kvof_reason reason)
{
	core_load_failed(core, reason);
}

static bool ops_expired(void *core, const struct kvof_id *id)
{
	return core_over(core, id);
}

static void ops_used(void *core, struct prefix_ids ids, uint32_t from)
{
	core_used_prefix(core, ids, from);
}

static unsigned ops_where(void *core, const struct kvof_id *id)
{
	return core_where(core, id);
}

static bool ops_flash_last(void *core, const struct kvof_id *id, uint64_t left_ns, bool may_try)
{
	return core_flash_slow(core, id, left_ns) && !(may_try && core_flash_try(core));
}

const struct restore_ops restore_core_ops = {
	.tier = ops_tier,
	.tier_next = ops_tier_next,
	.loaded = ops_loaded,
	.prefetched = ops_prefetched,
	.missed = ops_missed,
	.failed = ops_failed,
	.expired = ops_expired,
	.used = ops_used,
	.flash_last = ops_flash_last,
	.where = ops_where,
};
