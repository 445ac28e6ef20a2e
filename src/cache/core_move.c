/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moves between tiers: a load's copy up into DRAM, saves and second touches down to flash and
 * arrays, touches that keep heads on the arrays; and what is learned of where a block is.
 *
 *   saved, behind     DRAM -> flash, arrays         as admission says
 *   loaded from       DRAM, flash: touch the array; DRAM -> who should have it and has not
 *                     flash, arrays: -> DRAM if the policy says so, -> flash as admission says
 *   touched, absent   DRAM -> array again, if DRAM still has it
 *
 * What goes down goes through behind.c, from DRAM's own memory; so without DRAM nothing does.
 * Owned by one loop.
 */
#include <errno.h>
#include <string.h>

#include "cache/core_inner.h"

#define MOVE_SPARE_BYTES (256 * MiB)       /* of the queue, when saves do not use it */
#define MOVE_TOUCHES 65536                 /* that admission remembers, at least */
#define MOVE_TOUCH_BYTES (1 * MiB)         /* one for each so many bytes of DRAM and flash */
#define BELOW (1u << KVOF_TIER_FLASH | 1u << KVOF_TIER_REMOTE)
#define STAYS (1u << KVOF_TIER_NONE)       /* the engine wants it in DRAM only */

/* --- what is learned -------------------------------------------------------------------------- */

void core_changed(struct core *core, const struct kvof_id *id, enum kvof_tier tier, bool stored)
{
	if (core->events->changed != NULL)
		core->events->changed(core->arg, id, tier, stored);
}

void core_seen(struct core *core, const struct kvof_id *id, enum kvof_tier tier, bool there)
{
	struct tier *dram = core->tier[KVOF_TIER_DRAM];

	if (there)
		prefix_seen(core->known, tier, id, loop_now_ns(core->loop));
	else
		prefix_lost(core->known, tier, id);
	if (dram != NULL && tier != KVOF_TIER_DRAM)
		dram_below_set(dram, id, 1u << tier, there);
	if (there && tier == KVOF_TIER_FLASH)
		core_pins_seen(core, id);
}

static int32_t dram_wants(void *arg, const struct kvof_id *id)
{
	const struct core *core = arg;

	return prefix_priority(core->known, id);
}

static bool dram_parent(void *arg, const struct kvof_id *id, struct kvof_id *out)
{
	const struct core *core = arg;

	return prefix_parent(core->known, id, out);
}

static bool dram_held(void *arg, const struct kvof_id *id)
{
	const struct core *core = arg;

	return prefix_held(core->known, id, loop_now_ns(core->loop));
}

static void dram_changed(void *arg, const struct kvof_id *id, bool there)
{
	struct core *core = arg;

	core_seen(core, id, KVOF_TIER_DRAM, there);
	core_changed(core, id, KVOF_TIER_DRAM, there);
}

const struct dram_events core_dram_events = {
	.priority = dram_wants,
	.parent = dram_parent,
	.held = dram_held,
	.changed = dram_changed,
};

static uint64_t key_of(const struct kvof_id *id)
{
	uint64_t key;

	memcpy(&key, id->byte, sizeof(key));
	return key;
}

/* A load that began before a delete must not bring the block back. begin_ns 0: not known, but less
 * than CORE_GONE_NS ago. */
void core_gone(struct core *core, const struct kvof_id *id, bool gone)
{
	uint64_t key = key_of(id);
	unsigned at = key % CORE_GONE;

	if (gone) {
		core->gone[at].key = key;
		core->gone[at].at_ns = loop_now_ns(core->loop) + 1;
		prefix_gone(core->known, id);
	} else if (core->gone[at].key == key) {
		core->gone[at].at_ns = 0;
	}
}

static bool was_deleted(const struct core *core, const struct kvof_id *id, uint64_t begin_ns)
{
	uint64_t key = key_of(id);
	unsigned at = key % CORE_GONE;

	if (core->gone[at].at_ns == 0 || core->gone[at].key != key)
		return false;
	return begin_ns != 0 ? core->gone[at].at_ns > begin_ns :
	       loop_now_ns(core->loop) < core->gone[at].at_ns + CORE_GONE_NS;
}

/* --- admission -------------------------------------------------------------------------------- */

bool core_second(struct core *core, const struct kvof_id *id)
{
	return core->admit == NULL || admit_touch(core->admit, id) || core_pinned(core, id);
}

static bool admits(const struct core *core, enum kvof_tier tier, bool second)
{
	uint32_t bit = tier == KVOF_TIER_FLASH ? KVOF_ADMIT_FLASH_SECOND : KVOF_ADMIT_REMOTE_SECOND;

	return second || (core->admission & bit) == 0;
}

bool core_admits(struct core *core, enum kvof_tier tier, bool second)
{
	if (admits(core, tier, second))
		return true;
	core->stat.admission_refused[tier]++;
	return false;
}

/* --- down ------------------------------------------------------------------------------------- */

bool core_writes_behind(const struct core *core, const struct kvof_id *id)
{
	return core->behind != NULL && behind_flies(core->behind, id);
}

/* Tiers below that are to have the block and are not known to. */
static unsigned tiers_wanted(struct core *core, const struct kvof_id *id, bool second, bool count)
{
	unsigned below = dram_below(core->tier[KVOF_TIER_DRAM], id), wanted = 0;

	if ((below & STAYS) != 0)
		return 0;
	for (enum kvof_tier t = KVOF_TIER_REMOTE; t < KVOF_TIER_COUNT; t++) {
		if (core->tier[t] == NULL || (below & 1u << t) != 0)
			continue;
		if (count ? core_admits(core, t, second) : admits(core, t, second))
			wanted |= 1u << t;
	}
	return wanted & BELOW;
}

bool core_save_behind(struct core *core, const struct kvof_id *id, bool second)
{
	struct tier *dram = core->tier[KVOF_TIER_DRAM];
	unsigned wanted;

	if (!core->behind_saves)
		return false;
	/* saved without a wish to keep it here: from now on it goes down as others do */
	dram_below_set(dram, id, STAYS, false);
	wanted = tiers_wanted(core, id, second, true);
	if (core->touch != NULL && (dram_below(dram, id) & 1u << KVOF_TIER_REMOTE) != 0)
		touch_want(core->touch, id);
	if (behind_push(core->behind, id, wanted, false))
		return true;
	for (enum kvof_tier t = KVOF_TIER_REMOTE; t < KVOF_TIER_COUNT && core->behind_drops; t++)
		core->stat.behind_dropped[t] += (wanted & 1u << t) != 0;
	return core->behind_drops;
}

static void behind_written(void *arg, const struct kvof_id *id, enum kvof_tier tier,
			   enum kvof_reason reason)
{
	struct core *core = arg;

	if (reason != KVOF_OK && reason != KVOF_EXISTS)
		return;
	core_seen(core, id, tier, true);
	if (reason == KVOF_OK)
		core_changed(core, id, tier, true);
}

static void behind_landed(void *arg, const struct kvof_id *id)
{
	struct core *core = arg;

	core_ready_find(core, id);
	core_ready_run(core);
}

static const struct behind_events move_behind_events = {
	.written = behind_written,
	.landed = behind_landed,
	.parent = dram_parent,
};

/* --- up, and use ------------------------------------------------------------------------------ */

bool core_promote(struct core *core, struct tier_op *op, enum kvof_tier tier, bool prefetch)
{
	struct tier *dram = core->tier[KVOF_TIER_DRAM];
	unsigned below = core->behind != NULL ? 1u << tier : 0;

	if (dram == NULL || core->closing || op->busy || was_deleted(core, &op->id, op->begin_ns))
		return false;
	return dram_promote(dram, op, prefetch, below) == DRAM_KEEPING;
}

void core_used(struct core *core, const struct kvof_id *id, enum kvof_tier tier)
{
	struct tier *dram = core->tier[KVOF_TIER_DRAM];
	bool second = core_second(core, id);
	unsigned wanted;

	if (core->touch != NULL && tier != KVOF_TIER_REMOTE)
		touch_want(core->touch, id);
	if (core->behind == NULL || core->closing)
		return;
	if (tier != KVOF_TIER_DRAM)
		dram_below_set(dram, id, 1u << tier, true);
	wanted = tiers_wanted(core, id, second, tier == KVOF_TIER_REMOTE);
	if (wanted == 0 || !dram->ops->has(dram, id) ||
	    !behind_push(core->behind, id, wanted, true))
		return;
	if (tier == KVOF_TIER_REMOTE && (wanted & 1u << KVOF_TIER_FLASH) != 0)
		core->stat.promoted[KVOF_TIER_FLASH]++;
}

void core_save_again(struct core *core, const struct kvof_id *id, enum kvof_tier tier)
{
	unsigned below = dram_below(core->tier[KVOF_TIER_DRAM], id);

	if (!was_deleted(core, id, 0) && (below & STAYS) == 0)
		(void)behind_push(core->behind, id, 1u << tier, true);
}

/* The array lost what a nearer tier still serves: it gets it again, if DRAM has it. What it was
 * never given waits for its second touch, where the options say so. */
static void touch_absent(void *arg, const struct kvof_id *id)
{
	struct core *core = arg;
	struct tier *dram = core->tier[KVOF_TIER_DRAM];
	unsigned below = dram != NULL ? dram_below(dram, id) : 0;
	bool had = (below & 1u << KVOF_TIER_REMOTE) != 0;

	core_seen(core, id, KVOF_TIER_REMOTE, false);
	if (core->behind == NULL || was_deleted(core, id, 0) || (below & STAYS) != 0 ||
	    !dram->ops->has(dram, id))
		return;
	if (had || admits(core, KVOF_TIER_REMOTE, core_pinned(core, id)))
		(void)behind_push(core->behind, id, 1u << KVOF_TIER_REMOTE, true);
}

static const struct touch_events move_touch_events = {.absent = touch_absent};

/* --- open and close --------------------------------------------------------------------------- */

static int behind_make(struct core *core, const struct kvof_cache_opts *opts)
{
	struct behind_opts b = {
		.dram = core->tier[KVOF_TIER_DRAM],
		.flash = core->tier[KVOF_TIER_FLASH],
		.remote = core->tier[KVOF_TIER_REMOTE],
		.bytes = opts->behind_bytes,
		.deadline_ns = core->deadline_ns,
		.cut_bytes = core_cut_bytes(opts),
		.events = &move_behind_events,
		.arg = core,
	};

	core->behind_saves = opts->behind_bytes > 0;
	core->behind_drops = opts->behind_full == 1;
	if (!core->behind_saves)
		b.bytes = bytes_min(dram_bytes(b.dram) / 4, MOVE_SPARE_BYTES);
	return behind_open(core->loop, &b, &core->behind);
}

static int admit_make(struct core *core, const struct kvof_cache_opts *opts)
{
	uint64_t touches = (opts->dram_bytes + opts->flash_bytes) / MOVE_TOUCH_BYTES;

	core->admission = opts->admission;
	if (touches < MOVE_TOUCHES)
		touches = MOVE_TOUCHES;
	return admit_open((uint32_t)bytes_min(touches, ADMIT_TOUCHES_MAX), &core->admit);
}

int core_move_open(struct core *core, const struct kvof_cache_opts *opts)
{
	bool dram = core->tier[KVOF_TIER_DRAM] != NULL, flash = core->tier[KVOF_TIER_FLASH] != NULL;
	bool remote = core->tier[KVOF_TIER_REMOTE] != NULL;
	int rc = 0;

	if (dram && (flash || remote))
		rc = behind_make(core, opts);
	if (rc == 0 && opts->admission != 0)
		rc = admit_make(core, opts);
	if (rc == 0 && remote && (dram || flash))
		rc = touch_open(core->loop, core->tier[KVOF_TIER_REMOTE], &move_touch_events, core,
				&core->touch);
	if (rc == 0)
		rc = core_pins_open(core);
	return rc;
}

static void move_close_check(struct core *core)
{
	if (core->behind_closed && core->touch_closed && core->flash_touch_closed)
		core_tiers_close(core);
}

static void behind_gone(void *arg)
{
	struct core *core = arg;

	core->behind_closed = true;
	move_close_check(core);
}

static void touch_gone(void *arg)
{
	struct core *core = arg;

	core->touch_closed = true;
	move_close_check(core);
}

static void flash_touch_gone(void *arg)
{
	struct core *core = arg;

	core->flash_touch_closed = true;
	move_close_check(core);
}

void core_move_close(struct core *core)
{
	core->behind_closed = core->behind == NULL;
	core->touch_closed = core->touch == NULL;
	if (core->behind != NULL)
		behind_stop(core->behind, CORE_GRACE_NS, behind_gone);
	if (core->touch != NULL)
		touch_stop(core->touch, touch_gone);
	core_pins_stop(core, flash_touch_gone);
	move_close_check(core);
}

void core_move_free(struct core *core)
{
	if (core->behind != NULL)
		behind_free(&core->behind);
	if (core->touch != NULL)
		touch_free(&core->touch);
	if (core->flash_touch != NULL)
		touch_free(&core->flash_touch);
	if (core->admit != NULL)
		admit_close(&core->admit);
}
