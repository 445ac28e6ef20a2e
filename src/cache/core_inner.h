/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What core.c (operations, the walk), core_move.c (what moves between tiers) and core_open.c (open,
 * close, counters) share. Nobody else includes this, but for files named core_*.c.
 */
#ifndef KVOF_CACHE_CORE_INNER_H
#define KVOF_CACHE_CORE_INNER_H

#include "cache/admit.h"
#include "cache/behind.h"
#include "cache/core.h"
#include "cache/evict.h"
#include "cache/dram.h"
#include "cache/touch.h"

#define CORE_MAGIC 0x636f7265u
#define CORE_BUCKETS 1024
#define CORE_GONE 1024                     /* deleted lately */
#define CORE_GONE_NS (60 * NS_PER_S)       /* longer ago than any load began */
#define CORE_TRAIL 4096                    /* blocks that matches asked about and did not find */
#define CORE_DEADLINE_NS (2 * NS_PER_S)
#define CORE_LEASE_NS (5 * NS_PER_S)
#define CORE_PROBE_EVERY 32                /* loads: does flash answer again? */
#define CORE_GRACE_NS (250 * NS_PER_MS)    /* closing: what waits to be written may still be */

struct core {
	uint32_t magic;
	struct loop *loop;
	const struct core_events *events;
	void *arg;
	uint64_t deadline_ns, lease_ns;
	struct tier *tier[KVOF_TIER_COUNT];  /* NULL: not there */
	uint16_t domain_tag;
	struct prefix *known;
	struct evict *evict;               /* of what has a TTL */
	/* what moves */
	struct behind *behind;             /* NULL: no DRAM, or nothing below it */
	bool behind_saves, behind_drops;   /* saves are answered from DRAM; full: dropped */
	struct admit *admit;               /* NULL: every tier takes all */
	uint32_t admission;                /* KVOF_ADMIT_* */
	struct touch *touch;               /* NULL: no array, or nothing nearer */
	struct touch *flash_touch;         /* of pinned blocks; NULL: no flash that keeps them */
	struct loop_timer pins;            /* looks at some of the pinned blocks */
	uint32_t pins_at;                  /* in the tree */
	bool behind_closed, touch_closed, flash_touch_closed;
	struct { uint64_t key, at_ns; } gone[CORE_GONE];
	/* by the second one's identity: what came before it, of what a match did not find */
	struct { struct kvof_id id[2]; } trail[CORE_TRAIL];
	/* open and close */
	int open_res;
	char open_why[256];
	bool flash_ours;                   /* not a test's */
	bool opened, closing, soon_pending, end_pending;
	unsigned tiers_open;               /* that close by and by */
	struct loop_op soon, end;
	/* operations */
	struct list_link batches, ready, flushes;
	uint64_t serial;                   /* of batches */
	uint32_t probes;                   /* loads that found flash too slow */
	struct list_link bucket[CORE_BUCKETS];
	struct kvof_cache_stat stat;
	void (*closed)(void *arg);
	void *closed_arg;
};

/* core.c */
void core_cancel_all(struct core *core);
void core_flush_cancel(struct core *core);
void core_ready_run(struct core *core);
/* Something that held operations on this identity is over. */
void core_ready_find(struct core *core, const struct kvof_id *id);

/* core_open.c: ends the core when nothing of it is left in flight. */
void core_close_check(struct core *core);

/* core_match.c: links a block that is saved to the one before it, if a match told that lately. */
void core_trail_link(struct core *core, const struct kvof_id *id);

/* core_move.c */
int core_move_open(struct core *core, const struct kvof_cache_opts *opts);
/* Calls core_tiers_close() when nothing of it uses them any more. */
void core_move_close(struct core *core);
void core_move_free(struct core *core);
extern const struct dram_events core_dram_events;
void core_tiers_close(struct core *core);  /* core_open.c */

/* core_pins.c: pins below DRAM. */
int core_pins_open(struct core *core);
/* It has one pin more, or less. */
void core_pins_set(struct core *core, const struct kvof_id *id);
/* Flash has this block. */
void core_pins_seen(struct core *core, const struct kvof_id *id);
bool core_pinned(const struct core *core, const struct kvof_id *id);
/* Nothing is asked any more; gone() on a later turn. */
void core_pins_stop(struct core *core, void (*gone)(void *arg));
void core_pins_stat(const struct core *core, struct kvof_cache_stat *out);

/* Learned of a tier: it has the block, or not. */
void core_seen(struct core *core, const struct kvof_id *id, enum kvof_tier tier, bool there);
void core_changed(struct core *core, const struct kvof_id *id, enum kvof_tier tier, bool stored);
/* A touch; true: it was touched before, lately. */
bool core_second(struct core *core, const struct kvof_id *id);
/* May this tier have a block that is touched now? Counts a refusal. */
bool core_admits(struct core *core, enum kvof_tier tier, bool second);
/* DRAM holds a save. True: it is answered, the rest goes behind it. */
bool core_save_behind(struct core *core, const struct kvof_id *id, bool second);
/* A load was served from `tier`, and DRAM has a copy if it is to have one. */
void core_used(struct core *core, const struct kvof_id *id, enum kvof_tier tier);
/* Gives DRAM a copy. True: it is being made, op->done follows once more. */
bool core_promote(struct core *core, struct tier_op *op, enum kvof_tier tier, bool prefetch);
/* A write of it is under way that others on this identity are to wait for. */
bool core_writes_behind(const struct core *core, const struct kvof_id *id);
/* The tier has lost what DRAM still has: it is written there again. */
void core_save_again(struct core *core, const struct kvof_id *id, enum kvof_tier tier);
void core_gone(struct core *core, const struct kvof_id *id, bool gone);

#endif
