/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam of namespaces: what a command set is to the rest of the target. Private to target/.
 * Implemented by ns_kv.c; a block namespace is a second one.
 */
#ifndef KVOF_TARGET_NS_H
#define KVOF_TARGET_NS_H

#include "nvme/identify.h"
#include "nvme/log.h"
#include "nvme/stat.h"
#include "store/block.h"
#include "store/space.h"
#include "store/store.h"

struct req;
struct ns;
struct lane;

struct ns_ops {
	uint8_t csi;                         /* [BASE 2.0] command set identifier */
	/* Checks everything in the SQE but NSID, before anything is taken. */
	nv_status (*parse)(struct req *req, struct bad *bad);
	/* Runs a parsed command; answers it now or later, in all cases. */
	void (*execute)(struct req *req);
	/* CNS 05h (and 00h for block). */
	void (*identify)(const struct ns *ns, uint8_t out[NV_IDENTIFY_BYTES]);
	void (*effects)(struct nv_log_effects *out);
};

/* What one loop has to do with a namespace; that loop's. */
struct ns_seat {
	struct ns *ns;
	struct lane *lane;
	/* requests here that name it, and on the first loop what else does */
	unsigned busy;
	bool leaving;                        /* removed: what is at work ends, with 00h/0Bh */
	bool left;                           /* and has ended; the first loop was told */
	struct loop_timer leave;             /* those who wait for their host are cut off then */
	struct msg msg;                      /* it comes, it goes; and the answer */
};

/* Not changed while more than the first loop knows it, but for its seats. */
struct ns {
	const struct ns_ops *ops;
	struct subsys *subsys;
	uint32_t nsid;
	struct space *space;
	struct space *own_space;             /* over target_ns_opts.store; NULL: none */
	struct volume *volume;               /* block namespaces; space is NULL then */
	uint32_t value_bytes_max;
	uint64_t transfer_bytes_max;
	uint64_t capacity_bytes;             /* as it was opened */
	bool memory, evicts, durable;
	uint8_t nmic;
	struct nv_ns_ids ids;
	uint8_t given_uuid[16];              /* zero: none */
	/* the first loop's */
	unsigned loops_left;                 /* that have not answered yet */
	void (*added)(void *arg);            /* all know it; NULL: nobody waits for that */
	void *added_arg;
	struct space_stat asked;
	bool removed, announced;
	struct loop_timer leave;             /* the last step of removal */
	void (*left)(void *arg);
	void *left_arg;
	struct store_stat stat;              /* as it was last asked for */
	unsigned drives_failed_seen;
	struct ns_seat seat[];               /* [target->lane_count] */
};

extern const struct ns_ops ns_kv_ops, ns_block_ops;

#endif
