/* SPDX-License-Identifier: Apache-2.0 */
/* What wire.c and the transports share: the table of functions behind wire.h, and the counters. */
#ifndef KVOF_WIRE_IMPL_H
#define KVOF_WIRE_IMPL_H

#include "base/must.h"
#include "wire/wire.h"

#define WIRE_CONN_MAGIC 0x77697265u
#define WIRE_LISTENER_MAGIC 0x77697272u

#define WIRE_HANDSHAKE_NS (5 * NS_PER_S)
#define WIRE_STALL_NS (10 * NS_PER_S)
#define WIRE_DEPTH_MAX 32
#define WIRE_INLINE_BYTES 8192

struct wire_ops {
	const char *name;
	int (*listen)(struct loop *loop, const struct sock_addr *addr, const struct wire_opts *opts,
		      const struct wire_ctrl_events *events, void *arg, struct wire_listener **out);
	uint16_t (*listener_port)(const struct wire_listener *l);
	void (*listener_close)(struct wire_listener *l);
	int (*connect)(struct loop *loop, const struct sock_addr *addr,
		       const struct wire_opts *opts, const struct wire_host_events *events,
		       void *arg, struct wire_conn **out);
	int (*depth_set)(struct wire_conn *conn, uint16_t depth);
	void (*pull)(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count,
		     uint64_t bytes, void (*done)(struct wire_cmd *cmd, int res));
	void (*push)(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count,
		     uint64_t bytes, void (*done)(struct wire_cmd *cmd, int res));
	void (*respond)(struct wire_cmd *cmd, const struct nv_cqe *cqe);
	void (*submit)(struct wire_conn *conn, struct wire_req *req);
	void (*inline_set)(struct wire_conn *conn, uint32_t bytes);
	void (*withdraw)(struct wire_conn *conn, struct wire_req *req);
	bool (*cid_free)(const struct wire_conn *conn, uint16_t cid);
	const char *(*peer)(const struct wire_conn *conn);
	const char *(*digests)(const struct wire_conn *conn);
	void (*close)(struct wire_conn *conn);
	void (*drop)(struct wire_conn *conn);
	bool (*waits_for_peer)(const struct wire_conn *conn);
	uint64_t (*moved_bytes)(const struct wire_conn *conn);
	/* NULL: it stays where it is; then the next three are not called */
	void (*pause)(struct wire_conn *conn, void (*paused)(struct wire_conn *conn, int res));
	void (*resume)(struct wire_conn *conn);
	void (*leave)(struct wire_conn *conn);
	void (*join)(struct wire_conn *conn, struct loop *loop);
};

struct wire_conn {                     /* first member of every transport's connection */
	uint32_t magic;
	const struct wire_ops *ops;
	struct loop *loop;
	void *arg;                     /* the owner's, given to each event */
};

struct wire_listener {
	uint32_t magic;
	const struct wire_ops *ops;
};

/* As container_of(), from a pointer that may be const: the object itself never is. */
#define wire_owner_of(ptr, type, member) ((type *)((uintptr_t)(ptr) - offsetof(type, member)))

extern struct wire_counts wire_count;
#define WIRE_COUNT(member, n) ((void)__atomic_fetch_add(&wire_count.member, (n), __ATOMIC_RELAXED))

#endif
