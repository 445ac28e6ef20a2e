/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator on one loop: an association with one subsystem, an admin queue and several I/O
 * queues, kept alive and reconnected, used by cache (remote tier), by include/kvof/client.h and by
 * the program.
 *
 * Owned by one loop. Completions run on it, never inside the call; each operation ends exactly once
 * and by its deadline. No buffer is handed back while a byte of it may still move: where that takes
 * longer than the deadline, done(-ETIMEDOUT) comes at the deadline with op->busy set, and
 * released() follows.
 */
#ifndef KVOF_HOST_HOST_H
#define KVOF_HOST_HOST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/kv.h"
#include "base/list.h"
#include "loop/loop.h"
#include "nvme/status.h"
#include "wire/wire.h"

struct host;

struct host_opts {
	struct sock_addr addr;
	const struct wire_ops *ops;      /* NULL: tcp */
	char subnqn[224];                /* "": the only subsystem that Discovery lists */
	char hostnqn[224];               /* "": nqn.2014-08.org.nvmexpress:uuid:<from machine id> */
	uint8_t hostid[16];              /* zero: made from hostnqn */
	uint32_t nsid;                   /* 0: the first KV namespace */
	unsigned queues;                 /* I/O queues; 0: 4. The controller may grant fewer */
	unsigned depth;                  /* a queue; 0: 32 */
	bool header_digest, data_digest;
	uint64_t connect_ns;             /* 0: 3 s for the whole attach */
	uint64_t keep_alive_ns;          /* 0: 10 s */
	uint64_t reconnect_min_ns, reconnect_max_ns; /* 0: 100 ms doubling to 5 s, with jitter */
	bool once;                       /* no reconnect: the first failure is final */
	unsigned backlog_max;            /* operations waiting for a slot; 0: 4096. More: -EBUSY */
};

enum host_state { HOST_CONNECTING, HOST_LIVE, HOST_DOWN, HOST_CLOSED };

struct host_ns {                         /* what Identify said */
	uint32_t nsid;
	uint32_t value_bytes_max;        /* KVVML */
	uint16_t key_bytes_max;
	uint64_t capacity_bytes, used_bytes;
	uint32_t transfer_bytes_max;     /* MDTS */
};

enum host_op_kind { HOST_STORE, HOST_RETRIEVE, HOST_EXIST, HOST_DELETE, HOST_LIST };

struct host_op {
	struct list_link link;           /* the host's */
	enum host_op_kind kind;
	struct kv_key key;               /* List: from (len 0: first) */
	bool if_absent, if_present;      /* Store */
	const struct iovec *iov;         /* Store: the value; Retrieve, List: room */
	unsigned iov_count;
	uint32_t bytes;                  /* sum of iov */
	uint64_t deadline_ns;            /* absolute, loop time; 0: none */
	/* filled */
	uint32_t value_bytes;            /* Retrieve: the true stored length, may exceed bytes */
	uint32_t moved_bytes;
	nv_status status;                /* the controller's word when res is from it */
	/* with -ETIMEDOUT or -ECANCELED: buffers not free yet, released() follows */
	bool busy;
	/* res: 0; -ENOENT no such key; -EEXIST; -ENOSPC; -EBADMSG media (88h) or digest; -EIO other
	 * status; -ETIMEDOUT;
	 * -ECONNRESET no association and once; -EBUSY backlog full; -EPROTO; -ESHUTDOWN;
	 * -ECANCELED;
	 * -EINVAL value or key beyond the namespace's limits */
	void (*done)(struct host_op *op, int res);
	void (*released)(struct host_op *op);
	uint64_t lease[48];              /* the host's, while in flight */
};

struct host_events {
	/* each change; why: 0 or errno */
	void (*state)(void *arg, enum host_state state, int why);
};

/* Return: 0 or -EINVAL with a sentence in why (256 bytes). Connects in the background. */
int host_open(struct loop *loop, const struct host_opts *opts, const struct host_events *events,
	      void *arg, char why[256], struct host **out);
/* Everything in flight ends with -ESHUTDOWN (released() before closed). closed(arg) is the last
 * call. */
void host_close(struct host **h, void (*closed)(void *arg), void *arg);

enum host_state host_state(const struct host *h);
const struct host_ns *host_ns(const struct host *h);     /* valid once HOST_LIVE was seen */
const char *host_last_error(const struct host *h);       /* sentence about the last failure; "" */

/* While not live, operations wait for the reconnect until their deadline (with `once`:
 * -ECONNRESET). */
void host_submit(struct host *h, struct host_op *op);
/* done comes (once) with -ECANCELED unless it was already on its way. */
void host_cancel(struct host *h, struct host_op *op);

struct host_stat {
	uint64_t ops, errors, timeouts, reconnects, digest_retries, bytes_in, bytes_out;
	unsigned queues_live;
};
void host_stat(const struct host *h, struct host_stat *out);

#endif
