/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the restore share: restore.c (requests: life, deadline, events), restore_load.c
 * (blocks under way: tiers, parts, layers, staging), restore_plan.c (what to load, what to hand
 * out), restore_make.c (memory). Owned by one loop.
 */
#ifndef KVOF_CACHE_RESTORE_INNER_H
#define KVOF_CACHE_RESTORE_INNER_H

#include "cache/place.h"
#include "cache/restore.h"
#include "cache/speed.h"

#define REQUEST_MAGIC 0x72657175u
#define RESTORE_MAGIC 0x72657374u
#define RESTORE_WINDOW 64                  /* parts of a block beyond its first missing one */

enum rblock_state {
	RB_WANTED,                         /* nobody writes into its buffer */
	RB_LOADING,                        /* a tier may */
	RB_BUSY,                           /* ended without it; the kernel still may */
	RB_LOADED,                         /* whole, checked */
	RB_FAILED,                         /* ended without it; nobody writes any more */
	RB_CLAIMED,                        /* the engine's */
	RB_STATE_N
};

struct rblock {
	struct kvof_id id;
	const struct iovec *iov;
	uint64_t bytes;
	uint32_t slot;                     /* while LOADING or BUSY */
	uint32_t layers;                   /* leading ones that are there */
	uint16_t iov_count;
	uint8_t state, reason;
};

/* A block under way. */
struct rslot {
	struct tier_op op;
	struct list_link link;             /* idle, or raise: more of it may be allowed */
	struct request *req;
	uint32_t block;
	unsigned tier;
	enum kvof_reason before;           /* what an earlier tier said, if it is worth telling */
	uint64_t begin_ns, expect_ns;      /* when it should be whole, as seen at its begin; 0 */
	uint64_t queue_ns;                 /* of that, waiting for others */
	uint32_t cut_bytes, part_count;    /* as allow counts */
	uint64_t staged_bytes, landed_bytes;
	uint64_t open_bytes;               /* of this try, not landed */
	uint32_t lead;                     /* leading parts that landed */
	uint64_t mask;                     /* parts behind lead, bit 0: lead + 1 */
	bool blurred;                      /* a part landed beyond the mask: layers come at done */
	bool given_up;
	bool flash_last;                   /* asked after the arrays */
	bool copying;                      /* LOADED, and a tier above copies it */
};

enum request_state {
	REQ_MADE, REQ_SCANNING, REQ_PROBING, REQ_LOADING, REQ_ENDING, REQ_OVER, REQ_STATE_N
};

struct request {
	uint32_t magic;
	enum request_state state;
	struct list_link link;             /* the restore's, in order of priority and deadline */
	struct restore *restore;
	uint64_t id;
	const struct request_events *events;
	void *owner;
	struct kvof_restore_opts opts;
	struct loop_timer timer, wake;
	uint64_t begin_ns, deadline_ns;    /* absolute */
	bool dirty;                        /* changed() is due */
	/* blocks */
	uint32_t n, goal;                  /* [0, goal) is to be usable; ENDS: n */
	uint32_t scan_at;                  /* tiers of [0, scan_at) are looked up */
	uint32_t open_at;                  /* PREFIX: next to open; ENDS: [open_at, n) were */
	uint32_t quick_at;                 /* ENDS: the same, of blocks that DRAM has */
	uint32_t lead;                     /* leading blocks LOADED or CLAIMED */
	uint32_t wanted, open, busy, copying, loaded, claimed;
	uint64_t want_bytes[PLACE_TIERS], open_bytes[PLACE_TIERS];  /* not landed */
	uint64_t landed_bytes[PLACE_TIERS];
	uint32_t behind;                   /* PREFIX: [behind, n) is the engine's */
	uint32_t used_left;                /* over: [0, used_left) is still to be told as used */
	bool told_over, told_busy;
	enum kvof_reason ended_by;         /* of the block that ended the prefix */
	/* layers */
	uint32_t layer_count, layer_told;
	const uint64_t *layer_end;         /* [layer_count]; NULL: equal ones */
	uint32_t *layer_hist;              /* blocks of [0, goal) that have so many; + 1 entry */
	/* engine */
	struct speed_engine engine;
	bool engine_told;
	uint64_t engine_free_ns;           /* when it will have computed what it was handed */
	uint64_t probe_ns;                 /* until then an unknown tier is waited for */
	/* loads */
	uint64_t staged_bytes;
	uint64_t ahead_bytes;              /* staged of requests before this one in order */
	uint64_t ahead_left[PLACE_TIERS];  /* what they have still to load */
	uint64_t fit_ns;                   /* goal_fit() looks again then */
	uint64_t starved_ns;               /* since then nothing is staged for want of room; 0 */
	bool starved_once, budget_full;
	struct list_link idle, raise;
	uint32_t slot_count;
	struct kvof_restore_trace trace;
	size_t bytes;                      /* of this memory */
	struct rblock *block;
	uint8_t *tier_of;
	struct rslot *slot;
};

struct restore {
	uint32_t magic;
	struct restore_opts opts;
	struct list_link requests;
	struct loop_op soon;
	bool soon_pending, stopping;
	uint64_t staged_bytes, tier_staged[PLACE_TIERS];
	struct place_tier speed[PLACE_TIERS];
	bool known[PLACE_TIERS], heard[PLACE_TIERS];
	unsigned devices[PLACE_TIERS];     /* of the tier, at least 1 */
	struct speed_engine engine;        /* as the last report of any request left it */
	struct restore_stat stat;
	bool (*idle)(void *arg);
	void *idle_arg;
};

/* restore.c */
void block_go(struct rblock *b, enum rblock_state to);
void request_go(struct request *req, enum request_state to);
void request_event(struct request *req, struct kvof_result *result);
void request_dirty(struct request *req);
void request_wake_at(struct request *req, uint64_t at_ns);
uint64_t request_now(const struct request *req);
/* Leading blocks that are there or the engine's. */
void request_lead(struct request *req);
/* [goal, ...) is given up from here on. */
void request_shrink(struct request *req, uint32_t goal, enum kvof_reason why);

/* restore_load.c */
/* Starts one more part of what the plan wants. False: nothing now. */
bool load_one(struct request *req);
void load_give_up(struct rslot *slot);
void load_late(struct request *req);
/* The buffers of a block that was claimed, or never started, are out of the sums. */
void load_unwant(struct request *req, uint32_t block);
void load_layers_tell(struct request *req);
/* A block that no tier could have is a miss like any other. */
void load_unasked(struct request *req, uint32_t block);

/* restore_plan.c */
void plan_speeds(struct restore *r);
/* Once a turn, and before anything is started. */
void plan_update(struct request *req);
/* ENDS: is it of use to begin this load now? */
bool plan_begins(struct request *req, uint32_t block);
/* PREFIX: may this block be begun while its tier is not known yet? */
bool plan_probes(const struct request *req, uint32_t block);
/* Bytes of this request in flight at most. */
uint64_t plan_flight_bytes(const struct request *req);
void plan_decide(struct request *req, struct kvof_restore_step *out);
uint64_t plan_expect_ns(struct request *req, unsigned tier, uint64_t bytes, uint64_t *queue_ns);

static inline bool request_prefix(const struct request *req)
{
	return req->opts.mode == KVOF_RESTORE_PREFIX;
}

/* Loads may begin. */
static inline bool request_active(const struct request *req)
{
	return req->state == REQ_PROBING || req->state == REQ_LOADING;
}

#endif
