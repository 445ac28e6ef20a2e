/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The array's NVMe-oF side: subsystems over stores, a Discovery subsystem, listeners.
 *
 *	phase      legal calls
 *	opened     target_listen(), target_counts()
 *	serving    the same, target_subsys_*(), target_ns_*(); the loop runs
 *	closing    none; closed(arg) ends it
 *
 * It spreads over several loops; every call is made on the first one, or before any loop runs.
 */
#ifndef KVOF_TARGET_TARGET_H
#define KVOF_TARGET_TARGET_H

#include "loop/loop.h"
#include "loop/sock.h"
#include "nvme/fabrics.h"
#include "store/space.h"
#include "store/store.h"
#include "wire/wire.h"

#define LIMIT(name, value, unit, text) TARGET_##name = (value),
enum target_limit {
#include "tbl/limits.def"
};

struct target;
struct volume;

struct target_ns_opts {
	uint32_t nsid;               /* 1 .. TARGET_NAMESPACES, each once */
	uint8_t uuid[16];            /* what hosts see; zero: made from that of the store */
	/* one of these, borrowed until it has left; a store is on the first loop */
	struct space *space;
	struct volume *volume;
	struct store *store;
	bool memory;                 /* a drive is memory; the statistics log says so */
	bool evicts, durable;        /* as the store was opened */
};

struct target_subsys_opts {
	char nqn[NV_NQN_BYTES_MAX + 1];
	uint8_t uuid[16];            /* its serial number comes from it; zero: from a namespace's */
	const char *const *host;     /* names of the hosts allowed, [host_count] */
	unsigned host_count;         /* 0: any host */
	const struct target_ns_opts *ns;
	unsigned ns_count;
};

struct target_opts {
	/* [loop_count], each with its pool (store/buf.h): I/O queues are spread over all of them;
	 * every call is made on the first */
	struct loop *const *loops;
	struct buf_pool *const *pools;
	unsigned loop_count;
	struct loop *loop;           /* or one, with the pool of the first store given */
	const struct target_subsys_opts *subsys;     /* borrowed during the call */
	unsigned subsys_count;
	const struct wire_ops *wire; /* NULL: tcp */
	uint64_t handshake_ns;       /* for ICReq, and again for Connect; 0: 5 s */
	uint64_t stall_ns;           /* data promised by R2T must move within; 0: 10 s */
	uint32_t h2c_bytes_max;      /* MAXH2CDATA; 0: 128 KiB */
	unsigned queues;             /* I/O queues granted to a controller; 0: TARGET_QUEUES */
	unsigned conns_max, ctrls_max;               /* 0: TARGET_CONNS, TARGET_CTRLS */
	bool multipath;              /* hosts may make one device of controllers: CMIC, NMIC */
};

/**
 * target_open() - makes a target; nothing listens yet; before the loops run
 * @opts: borrowed
 * @why:  a sentence when it fails
 * Return: 0; -EINVAL; -ENOMEM.
 */
int target_open(const struct target_opts *opts, char why[256], struct target **out);

/**
 * target_listen() - accepts hosts at an address
 * @addr:      port 0 takes any; *port tells which
 * @advertise: what the discovery log says instead of addr (for an address such as 0.0.0.0), or NULL
 * Return: 0; -EBUSY the port is in use; -EINVAL not an address, or TARGET_LISTENERS reached; -EIO.
 */
int target_listen(struct target *t, const struct sock_addr *addr, const char *advertise,
		  uint16_t *port);

/**
 * target_subsys_add() - makes a subsystem while the array serves; Discovery controllers are told
 * Return: 0; -EINVAL with a sentence in why (name, or TARGET_SUBSYSTEMS reached); -ENOMEM.
 */
int target_subsys_add(struct target *t, const struct target_subsys_opts *opts, char why[256]);

/* Its hosts are disconnected. Return: 0; -ENOENT; -EBUSY it has namespaces. */
int target_subsys_remove(struct target *t, const char *nqn);

/**
 * target_ns_add() - gives a subsystem a namespace while the array serves; its hosts are told
 * @done: called once, never from inside, when it is known on every loop; NULL: nobody waits
 * Return: 0; -ENOENT no such subsystem; -EINVAL with a sentence in why; -ENOMEM.
 */
int target_ns_add(struct target *t, const char *nqn, const struct target_ns_opts *opts,
		  char why[256], void (*done)(void *arg), void *arg);

/**
 * target_ns_remove() - takes a namespace away: its hosts are told, commands for it are answered
 * 00h/0Bh from now on
 * @left: called once, never from inside, when nothing of the target uses its store any more: within
 *        TARGET_LEAVE_NS and what the store needs for what it has at work
 * Return: 0; -ENOENT (left() is not called).
 */
int target_ns_remove(struct target *t, const char *nqn, uint32_t nsid, void (*left)(void *arg),
		     void *arg);
#define TARGET_LEAVE_NS (700 * NS_PER_MS)

/**
 * target_close() - no new hosts; commands at work end or are dropped within @drain_ns; then every
 * connection is closed and closed(arg) is called, once. The pointer is taken at once.
 */
void target_close(struct target **t, uint64_t drain_ns, void (*closed)(void *arg), void *arg);

/* Why hosts were refused or dropped, and what was served. Grow only, but for the gauges. */
struct target_counts {
	uint64_t conns, ctrls, busy;                 /* gauges: now */
	uint64_t conns_seen, conns_over_limit, connect_late;
	uint64_t connects, connects_refused, hosts_refused;
	uint64_t keep_alive_expired, disconnects;
	uint64_t pressed;            /* connections closed: they held buffers and moved nothing */
	uint64_t commands, commands_failed, digest_errors, duplicate_cids;
	uint64_t stores, retrieves, exists, deletes, lists;
	uint64_t block_reads, block_writes;
	uint64_t bytes_in, bytes_out;                /* values */
};
const struct target_counts *target_counts(const struct target *t);

/* What a host did on its I/O queues, over all its controllers since the array was started. */
struct target_host_counts {
	uint64_t commands, failed;                   /* failed: a status other than success */
	uint64_t reads, writes;                      /* Retrieves and Stores, too */
	uint64_t bytes_in, bytes_out;                /* values and blocks */
};
struct target_host {
	char nqn[NV_NQN_BYTES_MAX + 1];              /* "other": all that found no row */
	unsigned ctrls;                              /* now */
	struct target_host_counts counts;
};
/* Return: rows filled; TARGET_HOST_ROWS is enough. */
unsigned target_hosts(const struct target *t, struct target_host *out, unsigned out_count);

/* Memory that the limits ask for, in bytes, for the plan printed at start. */
struct target_memory {
	uint64_t conn_bytes;         /* a connection before Connect */
	uint64_t queue_bytes;        /* an I/O queue of TARGET_QUEUE_ENTRIES */
	uint64_t ctrl_bytes;         /* a controller with its admin queue */
};
struct target_memory target_memory(void);

#endif
