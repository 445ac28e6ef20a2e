/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier holds whole blocks: tier_dram.c in this process, tier_values.c on arrays and on flash of
 * this machine. One tier_op is one block's load, save, question or removal, ended exactly once.
 *
 * Owned by one loop; done and released run on it, never inside start().
 */
#ifndef KVOF_CACHE_TIER_H
#define KVOF_CACHE_TIER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/must.h"
#include "cache/dev_rate.h"
#include "cache/frame.h"
#include "cache/identity.h"
#include "cache/prefix.h"
#include "host/host.h"
#include "kvof/cache.h"
#include "loop/loop.h"

#define TIER_PARTS_MAX 16                  /* values of one block in flight at once */
#define TIER_FLYING_MAX 2048               /* values in flight of one array; more wait */
#define TIER_QUESTIONS_MAX 2               /* the same, for exists and delete */
#define TIER_CUT_MIN (4 * KiB - FRAME_BYTES)
#define TIER_BLOCK_BYTES_MAX (16 * GiB)
#define TIER_DEADLINE_MAX_NS (24 * 3600 * NS_PER_S)  /* from now; what is longer is taken as that */
#define DRAM_BYTES_MIN (64 * KiB)
#define DRAM_BYTES_MAX (16 * TiB)

struct tier;
struct tier_op;

/* One value in flight to or from an array. */
struct tier_part {
	struct host_op op;
	struct tier_op *owner;
	struct frame_footer footer;
	struct dev_rate_mark mark;
	struct iovec *iov;                 /* room for the block's pieces and the footer */
	uint32_t index;                    /* of count */
	bool head;                         /* (0 of 1) beside parts of a larger block */
	bool flying, busy;
	bool held;                         /* good, and lands when the head has been seen */
};

enum tier_stage {
	TIER_IDLE, TIER_FIRST, TIER_CHECK, TIER_PARTS, TIER_HEAD, TIER_OVER,
	TIER_STAGE_N
};

/* What the remote tier keeps about an operation under way. */
struct tier_run {
	enum tier_stage stage;
	enum kvof_reason worst;
	uint32_t cut_bytes, part_count;    /* of this round */
	uint32_t our_cut_bytes;            /* of the first: what allow counts */
	uint32_t lane;                     /* which device */
	uint32_t check_count;              /* parts of the block that is there already */
	uint64_t block_bytes;
	uint32_t items, next, flying, busy;
	uint32_t absent;                   /* parts that are not there */
	bool with_head, canceled, head_seen, single;
	bool odd;                          /* a good part that is cut in another way */
	bool overwrite;                    /* what is there is of no use */
	bool answering;                    /* inside an answer: pump() follows */
	bool ending;                       /* done comes on a turn of its own */
	uint32_t entry, piece;             /* DRAM: what is copied, and where */
	bool filling;                      /* DRAM: into it */
	uint64_t moved_bytes;
	unsigned rounds;
	struct frame head;                 /* when head_seen */
	uint64_t sum;                      /* over parts that are done */
	uint64_t single_bytes;             /* when single: payload of (0 of 1) */
};

struct tier_op {
	enum kvof_op kind;
	struct kvof_id id;
	const struct iovec *iov;           /* leased until done, or released if busy */
	unsigned iov_count;
	uint64_t bytes;
	uint64_t deadline_ns;              /* absolute; 0: none */
	uint64_t begin_ns;                 /* when it was asked for; 0: not told */
	struct tier_part *part;            /* tier_slots() of them, each with its iov */
	unsigned part_slots;
	/*
	 * Load, streaming. allow: parts [0, allow), counted in tier_cut() of this tier, may be
	 * started (0: all of them); raise it and call more(). landed (NULL: nobody asks): the
	 * verified bytes of that part, [part * landed_cut_bytes, ...) of value_bytes, lie in the
	 * buffer; in any order, each at most once, never inside start(), not after done. It may
	 * call more() and cancel(). A block that was cut elsewhere lands in other parts than ours.
	 */
	uint32_t allow;
	void (*landed)(struct tier_op *op, uint32_t part, uint32_t part_count);
	uint32_t landed_cut_bytes;         /* filled before landed */
	/* filled before done */
	enum kvof_reason reason;
	uint64_t value_bytes;
	uint64_t verify_ns;
	bool busy;                         /* released() follows */
	void (*done)(struct tier_op *op);
	void (*released)(struct tier_op *op);
	/* the tier's, while in flight */
	struct loop_op soon;
	struct tier *tier;
	struct list_link starved, lane;
	struct tier_run run;
};

/* The device that would serve a block, as measured; 0: not known yet. */
struct tier_speed {
	uint64_t latency_ns;               /* of a small read when idle; grows while it is silent */
	uint64_t bytes_per_s;              /* when busy */
	uint64_t queued_bytes;             /* asked for and not there yet */
	uint64_t samples;                  /* reads that have ended */
	uint64_t quiet_ns;                 /* since the last of them */
	/* Summed over devices; all 0: not told. Of reads under way: the second time goes on. */
	uint64_t came_bytes, came_ns, busy_ns;
	unsigned devices;                  /* that are there, and work side by side; 0: not told */
	unsigned device;                   /* of this id */
	bool live;                         /* false: it would answer KVOF_UNREACHABLE at once */
};

struct tier_ops {
	const char *name;                  /* "dram", "flash", "remote" */
	/* Memory only, no I/O. */
	bool (*has)(const struct tier *t, const struct kvof_id *id);
	void (*start)(struct tier *t, struct tier_op *op);
	/* done comes soon, with KVOF_CANCELED unless it was on its way. */
	void (*cancel)(struct tier *t, struct tier_op *op);
	/* The deadline has passed: ends what waits inside the tier. NULL: nothing does. */
	void (*late)(struct tier *t, struct tier_op *op);
	/* Takes a copy now, or not; NULL: never. For blocks that move up. */
	bool (*keep)(struct tier *t, const struct tier_op *op);
	/* Used now: later than all others; lease_ns: stays until then at least. NULL: no order. */
	void (*touch)(struct tier *t, const struct kvof_id *id, uint64_t lease_until_ns);
	/* op->allow was raised (or 0: all). Nothing of it is done inside, but what is started. */
	void (*more)(struct tier *t, struct tier_op *op);
	/* False: all would end with KVOF_UNREACHABLE at once. NULL: never. */
	bool (*live)(const struct tier *t);
	/*
	 * Pinned: not evicted for room, until told otherwise or closed. Memory only.
	 * Return: 0; -ENOENT: not there, or not known in which values it lies (a question, load or
	 * save tells); -ENOSPC: as much as may be is. NULL: the tier knows no such thing.
	 */
	int (*pin)(struct tier *t, const struct kvof_id *id, bool on);
	/* Of the device that would serve id; NULL: of all that are there, side by side. */
	void (*speed)(const struct tier *t, const struct kvof_id *id, struct tier_speed *out);
};

struct tier {
	const struct tier_ops *ops;
	void *self;                        /* struct dram, struct values */
	uint32_t cut_bytes;                /* largest payload of a part; tier_cut_set() */
	uint32_t layer_count;              /* of a block, all equal; 0: not known or not equal */
	uint16_t domain_tag;               /* for footers: domains_tag() */
};

/* Payload of a part of a block of so many bytes: the largest whole number of layers that fits
 * cut_bytes, else the largest even share of a layer. */
uint32_t tier_cut_layers(uint32_t cut_bytes, uint32_t layer_count, uint64_t block_bytes);

/* How this tier cuts a block of block_bytes that it saves, and guesses one that it loads. */
static inline uint32_t tier_cut(const struct tier *t, uint64_t block_bytes)
{
	return tier_cut_layers(t->cut_bytes, t->layer_count, block_bytes);
}

/* A time from now, as it can be added to any clock. */
static inline uint64_t tier_deadline_ns(uint64_t from_now_ns)
{
	return bytes_min(from_now_ns, TIER_DEADLINE_MAX_NS);
}

/* What an engine says of a block, before anything believes it. Return: 0; -EINVAL. */
int tier_block_check(const struct kvof_block *b, uint32_t cut_bytes);

/* From now on; also those in flight keep what they began with. */
void tier_cut_set(struct tier *t, uint32_t cut_bytes, uint32_t layer_count);

/* How many parts an operation needs room for. */
static inline unsigned tier_slots(enum kvof_op kind, uint64_t bytes, uint32_t cut_bytes)
{
	uint64_t parts = bytes / cut_bytes + 2;    /* the last one, and the head */

	if (kind == KVOF_EXISTS_OP || kind == KVOF_DELETE)
		return TIER_QUESTIONS_MAX;
	return parts <= 2 ? 1 : (unsigned)bytes_min(parts, TIER_PARTS_MAX);
}

/* --- values: route.h, flash.h ----------------------------------------------------------------- */

struct tier_stat {
	unsigned devs, devs_live;          /* arrays; flash is one */
	uint64_t asked, answered, unreachable;     /* operations; those that were late or canceled
						    * are in none of the last two */
	uint64_t present, absent;          /* answers to loads and questions */
	uint64_t delivered_bytes;          /* of loads that ended well */
	uint64_t device_read_bytes;        /* at the drives; of arrays: over the wire */
	uint64_t device_write_bytes;
	uint64_t used_bytes, capacity_bytes, values, evicted, corrupt, reconnects;
	uint64_t kept_bytes, kept_lost;    /* pinned now; values that went all the same */
	unsigned drives, drives_failed;
};

#endif
