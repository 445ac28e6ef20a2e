/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins below DRAM. The tree says what is pinned; flash of this machine is told and keeps it from
 * eviction as far as it may; arrays can't be told: pinned blocks are asked about there, as heads
 * that nearer tiers serve are (touch.c), which is a use.
 *
 *   pinned, or saved or found on flash   ->  flash keeps it
 *   every PINS_LAP_NS, each of them      ->  asked about on flash and its array, once a minute
 *   absent there                         ->  written again, if DRAM has it
 *   no pin is left                       ->  flash lets it go
 *
 * A tier that does not know in which values the block lies is asked whether it has it, and then
 * knows. Flash forgets pins at its close: the next process pins anew. Owned by one loop.
 */
#include <errno.h>

#include "cache/core_inner.h"
#include "cache/flash.h"

#define PINS_STEP_NS NS_PER_S
#define PINS_LAP_NS (30 * NS_PER_S)
#define PINS_STEP_NODES 256u               /* looked at, at once; a step is several */

static bool pins_any(const struct core *core)
{
	struct prefix_stat stat;

	prefix_stat(core->known, &stat);
	return stat.pinned > 0;
}

bool core_pinned(const struct core *core, const struct kvof_id *id)
{
	return pins_any(core) && prefix_pinned(core->known, id);
}

/* Flash is told, or asked first. */
static void flash_tell(struct core *core, const struct kvof_id *id, bool on, bool ask)
{
	struct tier *flash = core->tier[KVOF_TIER_FLASH];
	int rc;

	if (core->flash_touch == NULL)
		return;
#ifdef KVOF_PLANT_PIN_ENDS_WITH_DRAM
	return;
#endif
	rc = flash->ops->pin(flash, id, on);
	core->stat.pins_refused += on && rc == -ENOSPC;
	if (rc == -ENOENT && ask)
		touch_now(core->flash_touch, id);
}

void core_pins_seen(struct core *core, const struct kvof_id *id)
{
	if (core_pinned(core, id))
		flash_tell(core, id, true, true);
}

void core_pins_set(struct core *core, const struct kvof_id *id)
{
	bool on = prefix_pinned(core->known, id);  /* pins are counted */

	flash_tell(core, id, on, true);
	if (!on)
		return;
	if (core->touch != NULL)
		touch_want(core->touch, id);
	if (!core->closing && !loop_timer_is_set(&core->pins))
		loop_timer_set(core->loop, &core->pins, loop_now_ns(core->loop) + PINS_STEP_NS);
}

/* --- flash answers ---------------------------------------------------------------------------- */

static void flash_present(void *arg, const struct kvof_id *id)
{
	flash_tell(arg, id, core_pinned(arg, id), false);
}

static void flash_absent(void *arg, const struct kvof_id *id)
{
	struct core *core = arg;
	struct tier *dram = core->tier[KVOF_TIER_DRAM];

	core_seen(core, id, KVOF_TIER_FLASH, false);
	if (core->behind == NULL || !core_pinned(core, id) || !dram->ops->has(dram, id))
		return;
	core_save_again(core, id, KVOF_TIER_FLASH);
}

static const struct touch_events flash_events = {
	.absent = flash_absent,
	.present = flash_present,
};

/* --- the walk --------------------------------------------------------------------------------- */

static void pins_look(struct core *core, const struct kvof_id *id)
{
	if (core->touch != NULL)
		touch_want(core->touch, id);
	if (core->flash_touch != NULL)
		touch_want(core->flash_touch, id);
}

static void pins_step(struct loop_timer *timer)
{
	struct core *core = container_of(timer, struct core, pins);
	uint32_t nodes = prefix_nodes(core->known) / (PINS_LAP_NS / PINS_STEP_NS) + 1;
	struct kvof_id id[PINS_STEP_NODES];

	if (core->closing || !pins_any(core))
		return;
	do {
		uint32_t some = nodes < PINS_STEP_NODES ? nodes : PINS_STEP_NODES;
		uint32_t n = prefix_pinned_some(core->known, &core->pins_at, some, id);

		for (uint32_t i = 0; i < n; i++)
			pins_look(core, &id[i]);
		nodes -= some;
	} while (nodes > 0 && core->pins_at != 0);
	loop_timer_set(core->loop, &core->pins, loop_now_ns(core->loop) + PINS_STEP_NS);
}

/* --- open and close --------------------------------------------------------------------------- */

int core_pins_open(struct core *core)
{
	struct tier *flash = core->tier[KVOF_TIER_FLASH];

	loop_timer_init(&core->pins, pins_step);
	if (flash == NULL || flash->ops->pin == NULL)
		return 0;
	return touch_open(core->loop, flash, &flash_events, core, &core->flash_touch);
}

void core_pins_stop(struct core *core, void (*gone)(void *arg))
{
	loop_timer_cancel(core->loop, &core->pins);
	core->flash_touch_closed = core->flash_touch == NULL;
	if (core->flash_touch != NULL)
		touch_stop(core->flash_touch, gone);
}

void core_pins_stat(const struct core *core, struct kvof_cache_stat *out)
{
	struct tier_stat flash;

	if (!core->flash_ours || core->tier[KVOF_TIER_FLASH] == NULL)
		return;
	flash_stat(core->tier[KVOF_TIER_FLASH], &flash);
	out->pinned_flash_bytes = flash.kept_bytes;
	out->pins_lost = flash.kept_lost;
}
