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
#include "store/store.h"

struct req;
struct ns;

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

struct ns {
	const struct ns_ops *ops;
	struct subsys *subsys;
	uint32_t nsid;
	/* who names it: it is freed when nobody does any more */
	unsigned busy;
	bool leaving;                        /* removed: what is at work ends, with 00h/0Bh */
	struct loop_timer leave;             /* those who wait for their host are cut off then */
	void (*left)(void *arg);
	void *left_arg;
	struct store *store;
	uint64_t buffer_bytes;
	uint32_t value_bytes_max;
	uint64_t transfer_bytes_max;
	uint64_t capacity_bytes;             /* as it was opened */
	unsigned drives_failed_seen;
	uint64_t unproven_bytes;             /* of the pool, held by hosts that are not proven */
	bool memory, evicts, durable;
	struct nv_ns_ids ids;
};

extern const struct ns_ops ns_kv_ops;

#endif
