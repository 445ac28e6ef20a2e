/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capsules and data between a host and a controller, whatever carries them: tcp (NVMe/TCP), mem (in
 * one process, same loop), rdma later. One wire_conn is one queue. Everything above this header is
 * the same code for all of them.
 *
 *   controller end                                 host end
 *   accepted()   handshake is done                 connected()  handshake is done
 *   command()    a capsule arrived                 wire_submit()
 *   wire_pull()  bring the host's data here        (answers R2T from req->out by itself)
 *   wire_push()  bring data to the host            (lands in req->in by itself)
 *   wire_respond() completion; gives cmd back      req->done()
 *   closed()     no more events but pending done   closed()
 *
 * A peer's bytes are checked here, down to the last framing field; what reaches the owner is a
 * whole SQE or CQE and data of exactly the length asked for. Wrong framing ends the connection as
 * the transport says (C2HTermReq, H2CTermReq with the exact field) and disturbs no other.
 *
 * Owned by one loop at a time; events run on it, never from inside a call of the owner.
 */
#ifndef KVOF_WIRE_WIRE_H
#define KVOF_WIRE_WIRE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "loop/loop.h"
#include "loop/sock.h"
#include "nvme/sqe.h"

struct wire_conn;
struct wire_listener;
struct wire_ops;

extern const struct wire_ops wire_tcp, wire_mem;

struct wire_opts {
	const struct wire_ops *ops;      /* NULL: wire_tcp */
	bool header_digest, data_digest; /* host: ask for them; controller: agree when asked */
	uint32_t inline_bytes_max;       /* controller: in-capsule data accepted (8192) */
	/* controller: MAXH2CDATA offered; multiple of 4, >= 4096; 0: 1 MiB */
	uint32_t h2c_bytes_max;
	uint64_t handshake_ns;           /* from connect or accept to ready; 0: 5 s */
	/* data promised by R2T must move within; 0: 10 s. Then close */
	uint64_t stall_ns;
	uint16_t depth_max;              /* commands at once until wire_depth_set(); 0: 32 */
	uint32_t near_room_bytes;        /* host: see struct sock_connect; 0: the kernel's choice */
};

/* --- controller end --------------------------------------------------------------------------- */

struct wire_cmd {
	struct nv_sqe sqe;               /* as received; not judged */
	struct wire_conn *conn;
	uint32_t inline_bytes;           /* data that came in the capsule */
	/* 0 .. depth-1: owner's table index; free again after both wire_respond() and the done()
	 * of a push */
	uint16_t slot;
	void *owner;                     /* the owner's; NULL when command() is called */
};

struct wire_ctrl_events {
	/* The handshake is done. The owner may refuse with wire_close(). */
	void (*accepted)(void *listener_arg, struct wire_conn *conn);
	/* The owner gives cmd back by exactly one wire_respond(), also after closed(). While
	 * in-capsule data was neither pulled nor answered, this connection is not read: that is
	 * the back-pressure. */
	void (*command)(void *conn_arg, struct wire_cmd *cmd);
	/* The last event but for done() of pulls and pushes. conn is freed by wire_close() plus the
	 * last wire_respond(), whichever is later; the owner must still call wire_close(). */
	void (*closed)(void *conn_arg, int why);
};

/* Return: 0; -EBUSY port in use; -EINVAL address; -EIO. events and opts->ops outlive the
 * listener. */
int wire_listen(struct loop *loop, const struct sock_addr *addr, const struct wire_opts *opts,
		const struct wire_ctrl_events *events, void *listener_arg,
		struct wire_listener **out);
uint16_t wire_listener_port(const struct wire_listener *l);
void wire_listener_close(struct wire_listener **l);

/* Most commands that the host may have outstanding (SQSIZE + 1 of Connect). More is a protocol
 * error. */
int wire_depth_set(struct wire_conn *conn, uint16_t depth);

/**
 * wire_pull() - brings `bytes` of the host's data for cmd into iov (in-capsule, or R2T)
 * done's res: 0; -EBADMSG the data digest was wrong (all data is drained: answer 00h/22h);
 * -ECONNRESET the connection went. iov is leased until done. At most one pull a command; none
 * beside a push.
 */
void wire_pull(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count, uint64_t bytes,
	       void (*done)(struct wire_cmd *cmd, int res));

/* Brings data to the host. wire_respond() may follow at once; the order is kept. iov leased until
 * done, which is called also when the connection has gone (-ECONNRESET). cmd stays valid until
 * then. */
void wire_push(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count, uint64_t bytes,
	       void (*done)(struct wire_cmd *cmd, int res));

/* Sends the completion (CID filled in here from the SQE; SQHD is the owner's) and gives cmd back.
 * Never fails: without a connection it only gives back. */
void wire_respond(struct wire_cmd *cmd, const struct nv_cqe *cqe);

/* --- host end --------------------------------------------------------------------------------- */

struct wire_req {
	struct nv_sqe sqe;               /* all but CID and SGL1, which wire fills; PSDT too */
	/* unique among those in flight, chosen by the owner; < depth */
	uint16_t cid;
	const struct iovec *out;         /* data to the controller, leased until done */
	unsigned out_count;
	uint32_t out_bytes;
	const struct iovec *in;          /* room for the controller's data, leased until done */
	unsigned in_count;
	uint32_t in_bytes;
	/* filled before done */
	struct nv_cqe cqe;
	uint32_t in_bytes_got;
	/* res: 0, cqe is the controller's; -EBADMSG data digest wrong (nothing of `in` may be
	 * used); -ECONNRESET, -EPROTO, -ETIMEDOUT the connection went; -ECANCELED after
	 * wire_withdraw().
	 * Once called, neither `out` nor `in` is touched again. */
	void (*done)(struct wire_req *req, int res);
	uint64_t lease[8];               /* the wire's, while in flight */
};

struct wire_host_events {
	void (*connected)(void *conn_arg, struct wire_conn *conn);
	/* why: -ECONNRESET, -EPROTO (we or the peer broke off for a wrong PDU), -ETIMEDOUT
	 * handshake. All requests have been done() before. The owner must still call
	 * wire_close(). */
	void (*closed)(void *conn_arg, int why);
};

int wire_connect(struct loop *loop, const struct sock_addr *addr, const struct wire_opts *opts,
		 const struct wire_host_events *events, void *conn_arg, struct wire_conn **out);

/* Queues or sends; the owner keeps no more in flight than the queue's depth. Without a connection
 * done(-ECONNRESET) comes in the next turn. in_bytes may be less than the sum of `in`. */
void wire_submit(struct wire_conn *conn, struct wire_req *req);

/* In-capsule data that the controller takes (from IOCCSZ): less or equal goes inline, more waits
 * for R2T. */
void wire_inline_set(struct wire_conn *conn, uint32_t bytes);

/* Takes a request's buffers back: done(-ECANCELED) comes as soon as no byte can move any more,
 * which may need the rest of a PDU to pass or the connection to be closed. The CID stays taken
 * until the controller answers or the connection ends; wire_cid_free() tells. */
void wire_withdraw(struct wire_conn *conn, struct wire_req *req);
bool wire_cid_free(const struct wire_conn *conn, uint16_t cid);

/* --- both ends -------------------------------------------------------------------------------- */

void wire_conn_arg_set(struct wire_conn *conn, void *conn_arg);
void *wire_conn_arg(const struct wire_conn *conn);

/*
 * A connection goes to another loop of this process. Controller end, by the owner of a command
 * whose data is here, with no other at work:
 *
 *	loop it is on                                  loop it goes to
 *	wire_pause() ... paused(0)
 *	wire_leave(), then a message                   wire_join(); events come there from now on
 *
 * A paused connection is not read. wire_resume() instead of wire_leave() lets it go on where it is.
 * paused() comes once, on a later turn; -ECONNRESET: the connection has ended meanwhile.
 */
/* It is the peer's turn: it owes data, or has not taken all of ours. */
bool wire_waits_for_peer(const struct wire_conn *conn);
/* Bytes that have moved on it so far, as far as the transport below knows: does it stand still?
 * Costs a system call. */
uint64_t wire_moved_bytes(const struct wire_conn *conn);

bool wire_can_move(const struct wire_conn *conn);
void wire_pause(struct wire_conn *conn, void (*paused)(struct wire_conn *conn, int res));
void wire_resume(struct wire_conn *conn);
void wire_leave(struct wire_conn *conn);
void wire_join(struct wire_conn *conn, struct loop *loop);

const char *wire_peer(const struct wire_conn *conn);
/* "", "hdgst", "ddgst", "hdgst+ddgst": what was agreed. */
const char *wire_digests(const struct wire_conn *conn);

/* Ends the connection without further events (pending done()s still come) and takes the pointer.
 * Completions that were given before still go out, within half a second. */
void wire_close(struct wire_conn **conn);
/* The same at once: nothing more goes out, and buffers come back as soon as the loop has them. */
void wire_drop(struct wire_conn **conn);

/* Why connections were ended, counted for metrics: one per reason of the transport's FES plus
 * the rest. */
struct wire_counts {
	uint64_t accepted, closed, term_sent[8], term_received, handshake_late, data_late;
	uint64_t header_digest_bad, data_digest_bad;
	uint64_t bytes_in, bytes_out;
	uint64_t sends, receives;      /* given to sockets */
	uint64_t wide_bytes;           /* receive buffers beyond the usual size have now */
};
const struct wire_counts *wire_counts(void);

#endif
