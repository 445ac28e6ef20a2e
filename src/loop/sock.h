/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte streams: TCP with no delay, or the simulator's network. Owned by one loop.
 *
 * Closing: sock_close() takes the sock; every operation in flight still completes (-ECANCELED), and
 * only then are its buffers the caller's again. The sock's memory goes after the last completion.
 */
#ifndef KVOF_LOOP_SOCK_H
#define KVOF_LOOP_SOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "loop/loop.h"

struct sock;
struct sock_listener;

struct sock_addr {
	char host[64];               /* numeric IPv4 or IPv6; in the simulator any name */
	uint16_t port;               /* 0 on listen: any; sock_listener_port() tells */
};

struct sock_io {
	struct loop_op op;
	const struct iovec *iov;     /* leased until op.done; not changed by the loop */
	unsigned iov_count;
	uint64_t bytes;              /* sum of iov, at least 1 */
	/* receive: complete only when every byte is there (or the end) */
	bool all;
	uint64_t lease[8];           /* the loop's, while in flight */
};

struct sock_connect {
	/* res: 0, -ECONNRESET (refused, unreachable), -EMFILE, -ETIMEDOUT, -ECANCELED */
	struct loop_op op;
	struct sock_addr addr;
	struct sock *sock;           /* filled when res is 0 */
	uint64_t deadline_ns;        /* absolute; 0: the kernel's own limit */
	/* on loopback: receive at most about twice so much ahead of sock_recv(); 0: the kernel's
	 * choice. The simulator takes no notice. */
	uint32_t near_room_bytes;
	uint64_t lease[24];          /* the loop's, while in flight */
};

/**
 * sock_listen() - accepts connections until closed; each is handed to accepted() on this loop
 * Return: 0; -EBUSY the port is in use; -EINVAL the address is not one; -EIO.
 */
int sock_listen(struct loop *loop, const struct sock_addr *addr,
		void (*accepted)(void *arg, struct sock *sock), void *arg,
		struct sock_listener **out);
/* Whether sock_listen() would succeed now: the same results, nothing kept. Control path. */
int sock_listen_try(const struct sock_addr *addr);
uint16_t sock_listener_port(const struct sock_listener *l);
void sock_listener_close(struct sock_listener **l);

/* Asynchronous. Cancelled by sock_connect_cancel(); done is called all the same. */
void sock_connect(struct loop *loop, struct sock_connect *c);
void sock_connect_cancel(struct loop *loop, struct sock_connect *c);

/* One receive in flight at most. res: bytes received; 0 at the end of the stream (with `all`: fewer
 * than asked means the end came first); -ECONNRESET; -ECANCELED. */
void sock_recv(struct sock *sock, struct sock_io *io);

/* Any number queued; sent whole and in order. res: 0, every byte was taken by the transport and the
 * buffers are the caller's again; -ECONNRESET; -ECANCELED. */
void sock_send(struct sock *sock, struct sock_io *io);

/* Wakes a receive with 0 and sends with -ECONNRESET, and tells the peer. The sock stays until
 * closed. */
void sock_shutdown(struct sock *sock);
void sock_close(struct sock **sock);

/**
 * sock_leave(), sock_join() - a sock goes to another loop of this process
 *
 * Leave is called on its loop, with no operation in flight, and join on the other one, which learns
 * of it by a message. In between nobody has it and nothing else may be called.
 */
void sock_leave(struct sock *sock);
void sock_join(struct sock *sock, struct loop *loop);

/* Bytes that have moved both ways so far, as far as the peer's side has acknowledged them: a stream
 * on which this stands still moves nothing. Costs a system call. */
uint64_t sock_moved_bytes(const struct sock *sock);

/* "127.0.0.1:4420" of the peer, for logs; valid while the sock is. */
const char *sock_peer(const struct sock *sock);

#endif
