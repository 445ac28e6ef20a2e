/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier holds whole blocks: tier_dram.c in this process, tier_remote.c on an array. One tier_op is
 * one block's load, save, question or removal, ended exactly once.
 *
 * Owned by one loop; done and released run on it, never inside start().
 */
#ifndef KVOF_CACHE_TIER_H
#define KVOF_CACHE_TIER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/must.h"
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
#define DRAM_BYTES_MIN (64 * KiB)
#define DRAM_BYTES_MAX (16 * TiB)

struct tier;
struct tier_op;

/* One value in flight to or from an array. */
struct tier_part {
	struct host_op op;
	struct tier_op *owner;
	struct frame_footer footer;
	struct iovec *iov;                 /* room for the block's pieces and the footer */
	uint32_t index;                    /* of count */
	bool head;                         /* (0 of 1) beside parts of a larger block */
	bool flying, busy;
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
	uint32_t check_count;              /* parts of the block that is there already */
	uint64_t block_bytes;
	uint32_t items, next, flying, busy;
	uint32_t absent;                   /* parts that are not there */
	bool with_head, canceled, head_seen, single;
	bool odd;                          /* a good part that is cut in another way */
	bool overwrite;                    /* what is there is of no use */
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
	struct tier_part *part;            /* tier_slots() of them, each with its iov */
	unsigned part_slots;
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
	struct list_link starved;
	struct tier_run run;
};

struct tier_ops {
	const char *name;                  /* "dram", "remote" */
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
};

struct tier {
	const struct tier_ops *ops;
	void *self;                        /* struct dram, struct remote */
};

/* How many parts an operation needs room for. */
static inline unsigned tier_slots(enum kvof_op kind, uint64_t bytes, uint32_t cut_bytes)
{
	uint64_t parts = bytes / cut_bytes + 2;    /* the last one, and the head */

	if (kind == KVOF_EXISTS_OP || kind == KVOF_DELETE)
		return TIER_QUESTIONS_MAX;
	return parts <= 2 ? 1 : (unsigned)bytes_min(parts, TIER_PARTS_MAX);
}

/* --- DRAM ------------------------------------------------------------------------------------- */

struct dram_stat {
	uint64_t used_bytes, blocks, evicted, refused;
};

/* bytes: exact cap, rounded down to whole pieces. Return: 0; -EINVAL less than 64 KiB; -ENOMEM. */
int dram_open(struct loop *loop, uint64_t bytes, struct tier **out);
void dram_close(struct tier **t);
void dram_stat(const struct tier *t, struct dram_stat *out);
/* Ends a lease of touch(). */
void dram_unlease(struct tier *t, const struct kvof_id *id);

/* --- remote ----------------------------------------------------------------------------------- */

/* known is borrowed. Until it has a host, every operation ends with KVOF_UNREACHABLE. */
int remote_open(struct loop *loop, struct prefix *known, uint32_t cut_bytes, struct tier **out);
void remote_host_set(struct tier *t, struct host *host);
/* Largest payload of a part from now on. */
void remote_cut_set(struct tier *t, uint32_t cut_bytes);
/* No operation is in flight. */
void remote_close(struct tier **t);

#endif
