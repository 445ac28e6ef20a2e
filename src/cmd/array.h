/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The array behind `kvof serve`: the set of drives, its namespaces open on the loops, and how they
 * come and go. Private to cmd/.
 *
 *	phase      who calls                      what
 *	opening    the main thread, no loop runs  array_open(), array_target()
 *	serving    control threads                array_ns_create(), _remove(), array_subsys_*(),
 *	                                          array_know()
 *	           the first loop                 array_collect()
 *	closing    one thread, the loops run      array_close(), when the target is closed
 *	closed     the main thread                array_free()
 */
#ifndef KVOF_CMD_ARRAY_H
#define KVOF_CMD_ARRAY_H

#include "store/block.h"
#include "store/look.h"
#include "store/set.h"
#include "store/space.h"
#include "target/target.h"

#define ARRAY_LOOPS_MAX STORE_SHARDS_MAX

struct array;

/* What a namespace of the first start is made of, and what a later start may say again. */
struct array_want {
	bool kv_given, block_given, block_bytes_given, evict_given, value_given, nqn_given;
	uint64_t kv_bytes, block_size;
	uint32_t block_bytes, value_bytes_max;
	bool evict;
	const char *nqn;
};

struct array_opts {
	struct set_opts set;
	struct loop *const *loop;    /* [loop_count]; the first is the target's */
	unsigned loop_count;
	enum loop_kind loop_kind;    /* of one more, that the drives are opened with */
	struct array_want want;
	const char *const *host;     /* allowed at subsystems that have no list of their own */
	unsigned host_count;
	bool ack_durable, second_touch, keep_blocks;
	uint32_t carry_percent;      /* STORE_CARRY_NONE */
	unsigned drive_depth;        /* 0: measured */
	uint64_t scrub_bytes;        /* a second and drive */
	uint32_t write_budget_percent;
	uint32_t segment_bytes;      /* 0: worked out */
	/* of all shards and loops together; 0: the same */
	uint64_t index_keys, buffer_bytes;
};

/* Exit codes of cmd.h; why says what and what to do. */
int array_open(const struct array_opts *opts, struct array **out, char why[512]);
/* Stores and pools; array_free() the rest, on the thread that opened it. */
void array_close(struct array *a);
/* After array_close(): the drive that never answered; NULL: none, array_free() may be called. */
const char *array_busy_drive(const struct array *a);
void array_free(struct array **a);

/* Opens the target over what is there; `opts` brings the limits. */
int array_target(struct array *a, const struct target_opts *opts, char why[256],
		 struct target **out);
/* No namespace is given to the target, nor taken from it, any more. */
void array_target_gone(struct array *a);

/* What was found at opening: calls say() for each line. */
void array_reports(const struct array *a, void (*say)(void *arg, const char *text), void *arg);

struct array_memory {
	uint64_t buffer_bytes, index_bytes, index_keys;
	bool memory;                 /* a drive is memory */
};
struct array_memory array_memory(const struct array *a);

/* --- while serving, on any of the control threads -------------------- */

/* What set_ns_create() asks for is filled, but for the subsystem; the rest is filled on success.
 * These four wait for one another where they write to the drives; a removal that waits for a drive
 * keeps no list waiting. */
int array_ns_create(struct array *a, const char *nqn, struct set_ns *ns, char why[512]);
int array_ns_remove(struct array *a, const char *nqn, uint32_t nsid, char why[512]);
int array_subsys_create(struct array *a, const char *nqn, const char *const *host,
			unsigned host_count, char why[512]);
int array_subsys_remove(struct array *a, const char *nqn, char why[512]);
const char *array_first_nqn(const struct array *a);

/* What there is, after the last of those changes. */
struct array_known {
	struct set_ns ns[SET_NAMESPACES_MAX];
	struct set_subsys subsys[SET_SUBSYSTEMS_MAX];        /* with the name that hosts use */
	char host[SET_SUBSYSTEMS_MAX][SET_HOSTS_MAX][SET_NQN_BYTES];
	unsigned host_count[SET_SUBSYSTEMS_MAX], ns_count, subsys_count;
	uint64_t free_bytes;
};

/* These wait for nothing. */
void array_know(struct array *a, struct array_known *out);
bool array_subsys_known(struct array *a, const char *nqn);
uint64_t array_free_bytes(struct array *a);

/* --- what it has done, gathered on the first loop -------------------- */

struct array_row {                   /* one namespace */
	struct set_ns ns;
	char nqn[SET_NQN_BYTES];
	struct store_stat kv;        /* of a kv namespace */
	struct block_stat block;     /* of a block namespace */
};

struct array_drive {                 /* one drive, all parts of it together */
	char path[256];
	bool failed, missing;        /* a part of it is */
	struct disk_counts counts;
};

struct array_rows {
	struct array_row row[SET_NAMESPACES_MAX];
	unsigned count;
	struct array_drive drive[STORE_DRIVES_MAX];
	unsigned drive_count;
	struct target_host host[TARGET_HOST_ROWS];
	unsigned host_count;
	struct target_counts target;
	void (*done)(struct array_rows *r);
	/* the array's, while in flight */
	struct msg msg;
	struct array *array;
	struct space_stat stat;
	unsigned next, next_loop;
};

/* From any thread, one at a time for each `r`; done() runs on the first loop. */
void array_collect(struct array *a, struct array_rows *r);

#endif
