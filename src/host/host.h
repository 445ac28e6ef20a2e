/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator on one loop: an association with one subsystem, an admin queue and several I/O
 * queues, kept alive and reconnected. Used by cache (remote tier), by include/kvof/client.h and by
 * the program.
 *
 * Owned by one loop. Completions run on it, never inside the call; each operation ends exactly once
 * and by its deadline. No buffer is handed back while a byte of it may still move: where that takes
 * longer than the deadline, done(-ETIMEDOUT) comes at the deadline with op->busy set, and
 * released() follows (within HOST_RELEASE_NS: then the connection is closed for it).
 *
 * Order: operations on one key take effect in the order they were submitted; Retrieve and Exist of
 * one key run side by side. A Store or Delete whose answer never came keeps its place in that order
 * until the controller answers or the association ends. List has no place in any order.
 *
 * A lost connection: what was not yet sent, and Retrieve, Exist and List, are sent again after the
 * reconnect; so are Read, Flush and Compare. Store, Delete, Write and the other changes of blocks
 * may have been carried out; they are sent again only with
 * op->repeat_ok, else they end with -ECONNRESET: the outcome is not known.
 */
#ifndef KVOF_HOST_HOST_H
#define KVOF_HOST_HOST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/kv.h"
#include "base/list.h"
#include "loop/loop.h"
#include "nvme/log.h"
#include "nvme/status.h"
#include "wire/wire.h"

struct host;

#define HOST_QUEUES_MAX 64
#define HOST_DEPTH_MAX 1024
/* a buffer is busy at most this long past the deadline */
#define HOST_RELEASE_NS (250 * NS_PER_MS)
#define HOST_SILENCE_NS (10 * NS_PER_S)    /* a command withdrawn and never answered: reconnect */

struct host_opts {
	struct sock_addr addr;
	const struct wire_ops *ops;      /* NULL: tcp */
	char subnqn[224];                /* "": the only subsystem that Discovery lists */
	char hostnqn[224];               /* "": nqn.2014-08.org.nvmexpress:uuid:<of this machine> */
	uint8_t hostid[16];              /* zero: made from hostnqn */
	bool block;                      /* a block namespace, not a KV one */
	bool any;                        /* of either kind */
	uint32_t nsid;                   /* 0: the first of that kind */
	unsigned queues;                 /* I/O queues; 0: 4. The controller may grant fewer */
	unsigned depth;                  /* commands in flight a queue; 0: 32 */
	bool header_digest, data_digest;
	uint64_t connect_ns;             /* 0: 3 s for the whole attach */
	uint64_t keep_alive_ns;          /* 0: 10 s; an array that is silent so long is lost */
	uint64_t reconnect_min_ns, reconnect_max_ns; /* 0: 100 ms doubling to 5 s, with jitter */
	bool once;                       /* no reconnect: the first failure is final */
	unsigned backlog_max;            /* operations not done yet; 0: 4096. More: -EBUSY */
};

/* CONNECTING -> LIVE or DOWN; LIVE -> DOWN; DOWN -> CONNECTING (unless once); any -> CLOSED */
enum host_state { HOST_CONNECTING, HOST_LIVE, HOST_DOWN, HOST_CLOSED };

struct host_ns {                         /* what Identify said */
	uint32_t nsid;
	uint32_t value_bytes_max;        /* KVVML, or what MDTS lets through if that is less */
	uint16_t key_bytes_max;
	uint32_t block_bytes;            /* 0: a KV namespace */
	uint64_t capacity_bytes, used_bytes;
	uint64_t transfer_bytes_max;     /* MDTS; UINT64_MAX: no limit */
	uint16_t cntlid;
	unsigned queues, depth;          /* granted */
	char subnqn[NV_NQN_BYTES_MAX + 1], model[41], serial[21], firmware[9];
};

enum host_op_kind {
	HOST_STORE, HOST_RETRIEVE, HOST_EXIST, HOST_DELETE, HOST_LIST,
	/* of a block namespace; not ordered among each other */
	HOST_READ, HOST_WRITE, HOST_FLUSH, HOST_ZERO, HOST_DEALLOCATE, HOST_COMPARE
};

struct host_op {
	struct list_link link;           /* the host's */
	enum host_op_kind kind;
	struct kv_key key;               /* List: from (len 0: first) */
	bool if_absent, if_present;      /* Store */
	/* Store, Delete: harmless when carried out twice, e.g. because the value is a function
	 * of the key. -EEXIST or -ENOENT of a repetition, which may be its own doing, then is 0 */
	bool repeat_ok;
	const struct iovec *iov;         /* Store: the value; Retrieve, List: room. Leased */
	unsigned iov_count;
	uint32_t bytes;                  /* sum of iov */
	/* Blocks: where, and how much (Read, Write and Compare: as iov). Multiples of
	 * block_bytes */
	uint64_t offset_bytes, range_bytes;
	bool fua;                        /* Write, Zero: durable when done */
	uint64_t deadline_ns;            /* absolute, loop time; 0: none */
	/* filled */
	uint32_t value_bytes;            /* Retrieve: the true stored length, may exceed bytes */
	uint32_t moved_bytes;
	nv_status status;                /* the controller's word when res is from it */
	bool busy;                       /* with -ETIMEDOUT or -ECANCELED: buffers not free yet,
					  * released() follows */
	/* res: 0; -ENOENT no such key; -EEXIST; -ENOSPC; -EBADMSG media (88h) or digest; -EIO other
	 * status; -ETIMEDOUT; -ECONNRESET no association and once, or outcome not known; -EBUSY
	 * backlog full; -EPROTO; -ESHUTDOWN; -ECANCELED; -EINVAL value or key beyond the
	 * namespace's limits, or refused as invalid by the controller */
	void (*done)(struct host_op *op, int res);
	void (*released)(struct host_op *op);
	uint64_t lease[48];              /* the host's, while in flight */
};

struct host_events {
	/* each change; why: 0 or errno */
	void (*state)(void *arg, enum host_state state, int why);
};

/**
 * host_open() - starts to connect, in the background
 * @opts: borrowed until return; every limit is checked
 * @events, @arg: outlive the host; events may be NULL
 * @why: sentence for people when -EINVAL is returned
 *
 * Memory for all operations in flight is taken here and at each attach, none later.
 * Return: 0; -EINVAL; -ENOMEM.
 */
int host_open(struct loop *loop, const struct host_opts *opts, const struct host_events *events,
	      void *arg, char why[256], struct host **out);

/* Everything in flight ends with -ESHUTDOWN (released() before closed). closed(arg) is the last
 * call, never inside this one. */
void host_close(struct host **h, void (*closed)(void *arg), void *arg);

enum host_state host_state(const struct host *h);
const struct host_ns *host_ns(const struct host *h);     /* valid once HOST_LIVE was seen */
const char *host_last_error(const struct host *h);       /* sentence about the last failure; "" */
/* The errno of that failure: -ETIMEDOUT, -ECONNRESET, -EPROTO, ... 0: none. */
int host_last_errno(const struct host *h);

/* While not live, operations wait for the reconnect until their deadline (`once`: -ECONNRESET). */
void host_submit(struct host *h, struct host_op *op);

/* done comes (once) with -ECANCELED unless it was already on its way. With a deadline that passes
 * before the buffers are free: then, and busy. */
void host_cancel(struct host *h, struct host_op *op);

struct host_stat {
	uint64_t ops, errors, timeouts, reconnects, digest_retries, repeats, bytes_in, bytes_out;
	unsigned queues_live;
};
void host_stat(const struct host *h, struct host_stat *out);

/* An admin command that brings data here: Get Log Page, Identify. Built by the caller. */
struct host_admin {
	struct nv_sqe sqe;
	void *into;                      /* leased until done */
	uint32_t bytes;                  /* 0: no data */
	uint64_t deadline_ns;            /* absolute; 0: 10 s. Then the association is given up */
	uint32_t moved_bytes;            /* filled */
	struct nv_cqe cqe;               /* filled when res is 0 */
	/* res: 0, cqe is the controller's; -EBUSY one is in flight; -ECONNRESET not live, or
	 * lost */
	void (*done)(struct host_admin *admin, int res);
	uint64_t lease[12];
};
void host_admin(struct host *h, struct host_admin *admin);

/* --- without an association -------------------- */

#define HOST_DISCOVER_MAX 64

struct host_discover {                   /* one reading of a discovery log */
	struct nv_discovered entry[HOST_DISCOVER_MAX];
	unsigned count, left_out;        /* entries beyond the maximum, or that can't be used */
	char why[256];
	/* res: 0; -ECONNRESET, -ETIMEDOUT, -EPROTO, -EIO with a sentence in why */
	void (*done)(struct host_discover *d, int res);
	void *arg;                       /* the caller's */
	void *assoc;                     /* the host's */
	int res;                         /* the host's */
};
/* opts: addr, ops, hostnqn, hostid, digests and connect_ns count. d is leased until done. */
int host_discover(struct loop *loop, const struct host_opts *opts, struct host_discover *d);

/**
 * host_target_parse() - tcp://ADDR:PORT[/NQN][?nsid=N]; IPv6 in brackets
 * Fills addr, subnqn ("" when not given) and nsid (0) of opts, leaves the rest.
 * Return: 0; -EINVAL with a sentence that quotes the wrong part.
 */
int host_target_parse(const char *text, struct host_opts *opts, char why[256]);

#endif
