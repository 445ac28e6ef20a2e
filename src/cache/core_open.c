/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open and close of the cache on one loop, and its counters. Opened are DRAM, flash, arrays, then
 * what moves between them. Closed in the other order:
 *
 *   core_close   operations are canceled; behind and touch come to their end (a quarter of a second
 *                at most)
 *   then         the tiers below close; core_close_check() ends the core when all is over
 *
 * Owned by one loop.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/core_inner.h"
#include "cache/domains.h"
#include "cache/flash.h"
#include "cache/route.h"

static void core_end(struct loop_op *end, int res);

void core_close_check(struct core *core)
{
	if (!core->closing || core->end_pending || !list_empty(&core->batches) ||
	    core->tiers_open > 0 || core->soon_pending)
		return;
	core->end_pending = true;
	core->end = (struct loop_op){.done = core_end};
	loop_soon(core->loop, &core->end, 0);
}

/* --- counters --------------------------------------------------------------------------------- */

static void stat_dram(const struct core *core, struct kvof_cache_stat *out)
{
	struct dram_stat dram;

	dram_stat(core->tier[KVOF_TIER_DRAM], &dram);
	out->dram_used_bytes = dram.used_bytes;
	out->dram_blocks = dram.blocks;
	out->dram_evicted = dram.evicted;
	out->dram_refused = dram.refused;
	out->dram_pinned_bytes = dram.pinned_bytes;
	out->promotion_refused[KVOF_TIER_DRAM] = dram.promotion_refused;
	out->promoted[KVOF_TIER_DRAM] = dram.promoted;
	out->prefetched = dram.prefetched;
	out->prefetched_hits = dram.prefetched_hits;
	out->prefetched_wasted = dram.prefetched_wasted;
}

static void stat_move(const struct core *core, struct kvof_cache_stat *out)
{
	struct behind_stat behind;
	struct touch_stat touch;

	if (core->behind != NULL) {
		behind_stat(core->behind, &behind);
		out->behind_bytes = behind.bytes;
		out->behind_blocks = behind.blocks;
		out->behind_full = behind.full;
		for (unsigned i = 0; i < KVOF_TIER_COUNT; i++) {
			out->behind_written[i] = behind.written[i];
			out->behind_dropped[i] += behind.dropped[i];
		}
	}
	if (core->touch != NULL) {
		touch_stat(core->touch, &touch);
		out->touches = touch.sent;
		out->touches_absent = touch.absent;
		out->touches_dropped = touch.dropped;
	}
}

static void stat_known(const struct core *core, struct kvof_cache_stat *out)
{
	struct prefix_stat known;

	prefix_stat(core->known, &known);
	out->index_blocks = known.blocks;
	out->index_forgotten = known.forgotten;
	out->presence_wrong = known.wrong;
	out->pinned_blocks = known.pinned;
	out->expired = known.over;
}

void core_stat(const struct core *core, struct kvof_cache_stat *out)
{
	struct tier_stat below;

	OBJ_CHECK(core, CORE_MAGIC);
	*out = core->stat;
	if (core->tier[KVOF_TIER_DRAM] != NULL)
		stat_dram(core, out);
	stat_move(core, out);
	stat_known(core, out);
	core_pins_stat(core, out);
	if (core->tier[KVOF_TIER_REMOTE] != NULL) {
		route_stat(core->tier[KVOF_TIER_REMOTE], &below);
		out->remote_reconnects = below.reconnects;
		out->remote_live = below.devs_live;
		out->remote_count = below.devs;
		out->device_bytes[KVOF_TIER_REMOTE] = below.device_read_bytes;
	}
	if (core->flash_ours && core->tier[KVOF_TIER_FLASH] != NULL) {
		flash_stat(core->tier[KVOF_TIER_FLASH], &below);
		out->flash_used_bytes = below.used_bytes;
		out->flash_blocks = below.values;
		out->flash_evicted = below.evicted;
		out->device_bytes[KVOF_TIER_FLASH] = below.device_read_bytes;
	}
}

/* --- open ------------------------------------------------------------------------------------- */

static void opened(void *arg, int res, const char *why)
{
	struct core *core = arg;

	if (core->opened)
		return;                    /* it failed, and the arrays came all the same */
	core->opened = true;
	if (core->open_res != 0)
		core->events->opened(core->arg, core->open_res, core->open_why);
	else
		core->events->opened(core->arg, res, why);
}

static void opened_soon(struct loop_op *soon, int res)
{
	struct core *core = container_of(soon, struct core, soon);

	core->soon_pending = false;
	if (core->closing)
		core_close_check(core);
	else
		opened(core, 0, "");
}

static void core_free(struct core *core)
{
	core_move_free(core);
	if (core->evict != NULL)
		evict_close(&core->evict);
	if (core->tier[KVOF_TIER_DRAM] != NULL)
		dram_close(&core->tier[KVOF_TIER_DRAM]);
	if (core->known != NULL)
		prefix_close(&core->known);
	core->magic = 0;
	free(core);
}

static const char *model_of(const struct identity *id)
{
	uint32_t at = 0;

	while (strcmp(id->name[at], "model_id") != 0)
		must(++at < id->field_count);      /* identity_make() added it */
	return id->value[at];
}

/* Layers that a cut can follow are equal ones. */
static uint32_t layers_equal(const struct kvof_cache_opts *c)
{
	for (uint32_t i = 1; c->layer_bytes != NULL && i < c->layer_count; i++)
		if (c->layer_bytes[i] != c->layer_bytes[0])
			return 0;
	return c->layer_count;
}

/* More than the machine has would be granted, and end in the kernel's killer. */
static int dram_fits(uint64_t bytes, char why[256])
{
	uint64_t most = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	if (bytes <= most)
		return 0;
	snprintf(why, 256, "dram_bytes is %" PRIu64 " bytes, this machine has %" PRIu64, bytes,
		 most);
	return -ENOMEM;
}

static int dram_make(struct core *core, const struct kvof_cache_opts *c, char why[256])
{
	int rc = dram_fits(c->dram_bytes, why);
	struct dram_opts dram = {
		.bytes = c->dram_bytes,
		.cut_bytes = core_cut_bytes(c),
		.layer_count = layers_equal(c),
		.policy = c->policy,
		.events = &core_dram_events,
		.arg = core,
		.drives = c->flash_count > 0,
	};

	if (rc != 0)
		return rc;
	return dram_open(core->loop, &dram, &core->tier[KVOF_TIER_DRAM]);
}

static int remote_make(struct core *core, const struct core_opts *opts, char why[256])
{
	struct route_opts route = {
		.cache = opts->cache,
		.identity = opts->identity,
		.wire = opts->wire,
		.model_id = model_of(opts->identity),
		.deadline_ns = core->deadline_ns,
	};
	int rc = route_open(core->loop, &route, opened, core, why, &core->tier[KVOF_TIER_REMOTE]);

	if (rc != 0)
		return rc;
	tier_cut_set(core->tier[KVOF_TIER_REMOTE], core_cut_bytes(opts->cache),
		     layers_equal(opts->cache));
	core->tier[KVOF_TIER_REMOTE]->domain_tag = core->domain_tag;
	core->tiers_open++;
	return 0;
}

static int flash_make(struct core *core, const struct kvof_cache_opts *c, char why[256])
{
	struct flash_opts flash = {
		.path = c->flash,
		.path_count = c->flash_count,
		.cap_bytes = c->flash_bytes,
		.format = c->flash_format == 1,
		.part_bytes = core_cut_bytes(c) + FRAME_BYTES,
	};
	struct tier *tier;
	int rc = flash_open(core->loop, &flash, why, &tier);

	if (rc != 0)
		return rc;
	core->tier[KVOF_TIER_FLASH] = tier;
	tier_cut_set(tier, core_cut_bytes(c), layers_equal(c));
	core->tier[KVOF_TIER_FLASH]->domain_tag = core->domain_tag;
	core->flash_ours = true;
	core->tiers_open++;
	return 0;
}

static void core_init(struct core *core, struct loop *loop, const struct core_opts *opts,
		      const struct core_events *events, void *arg)
{
	const struct kvof_cache_opts *c = opts->cache;

	OBJ_INIT(core, CORE_MAGIC);
	core->loop = loop;
	core->events = events;
	core->arg = arg;
	core->deadline_ns = c->deadline_ns != 0 ? c->deadline_ns : CORE_DEADLINE_NS;
	core->lease_ns = c->lease_ns != 0 ? c->lease_ns : CORE_LEASE_NS;
	core->tier[KVOF_TIER_FLASH] = opts->flash;
	core->domain_tag = domains_tag(opts->identity);
	list_init(&core->batches);
	list_init(&core->ready);
	list_init(&core->flushes);
	for (unsigned i = 0; i < CORE_BUCKETS; i++)
		list_init(&core->bucket[i]);
}

int core_open(struct loop *loop, const struct core_opts *opts, const struct core_events *events,
	      void *arg, char why[256], struct core **out)
{
	const struct kvof_cache_opts *c = opts->cache;
	struct prefix_opts known = prefix_opts_of(c);
	struct core *core = calloc(1, sizeof(*core));
	int rc;

	why[0] = '\0';
	if (core == NULL)
		return -ENOMEM;
	core_init(core, loop, opts, events, arg);
	rc = prefix_open(&known, &core->known);
	if (rc == 0)
		rc = evict_open(loop, core, core->known, &core->evict);
	if (rc == 0 && c->dram_bytes > 0)
		rc = dram_make(core, c, why);
	if (rc == 0 && c->flash_count > 0)
		rc = flash_make(core, c, why);
	loop_now_take(loop);               /* pages made, drives opened: seconds, perhaps */
	if (rc == 0 && (c->target != NULL || c->target_count > 0))
		rc = remote_make(core, opts, why);
	if (rc != 0 && !core->flash_ours) {
		core_free(core);
		return rc;
	}
	/* what is open closes by and by: a failure from here on is told by opened() */
	core->open_res = rc;
	if (rc == 0)
		core->open_res = core_move_open(core, c);
	snprintf(core->open_why, sizeof(core->open_why), "%s",
		 core->open_res == -ENOMEM && why[0] == '\0' ? "there is not enough memory" : why);
	*out = core;
	if (core->tier[KVOF_TIER_REMOTE] == NULL || core->open_res != 0) {
		core->soon_pending = true;
		core->soon = (struct loop_op){.done = opened_soon};
		loop_soon(loop, &core->soon, 0);
	}
	return 0;
}

/* --- close ------------------------------------------------------------------------------------ */

static void core_end(struct loop_op *end, int res)
{
	struct core *core = container_of(end, struct core, end);
	void (*closed)(void *arg) = core->closed;
	void *arg = core->closed_arg;

	core_free(core);
	closed(arg);
}

static void flash_gone(void *arg)
{
	struct core *core = arg;

	core->tier[KVOF_TIER_FLASH] = NULL;
	core->tiers_open--;
	core_close_check(core);
}

static void remote_gone(void *arg)
{
	struct core *core = arg;

	core->tier[KVOF_TIER_REMOTE] = NULL;
	core->tiers_open--;
	core_close_check(core);
}

void core_tiers_close(struct core *core)
{
	struct tier *remote = core->tier[KVOF_TIER_REMOTE], *flash = core->tier[KVOF_TIER_FLASH];

	/* operations know their tier until it is closed */
	if (remote != NULL)
		route_close(&remote, remote_gone, core);
	if (core->flash_ours)
		flash_close(&flash, flash_gone, core);
	core_close_check(core);
}

void core_close(struct core **corep, void (*closed)(void *arg), void *arg)
{
	struct core *core;

	OBJ_TAKE(core, corep, CORE_MAGIC);
	loop_must_own(core->loop);
	must(!core->closing);
	core->closing = true;
	evict_stop(core->evict);
	core->closed = closed;
	core->closed_arg = arg;
	core_cancel_all(core);
	core_ready_run(core);
	core_flush_cancel(core);
	core_move_close(core);
}
