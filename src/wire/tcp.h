/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream under both ends of NVMe/TCP: PDUs in, PDUs out, digests, ends. Private to wire/tcp*.c.
 * Theory and invariants are at the head of tcp.c.
 */
#ifndef KVOF_WIRE_TCP_H
#define KVOF_WIRE_TCP_H

#include "base/list.h"
#include "loop/iov.h"
#include "nvme/tcp_pdu.h"
#include "wire/impl.h"

#define TCP_RX_FIRST_BYTES 144         /* holds ICReq; a silent connection costs no more */
#define TCP_RX_BYTES 4096              /* once shaken hands: headers, small data that follows */
#define TCP_RX_BUSY_BYTES 16384        /* once I/O is expected: several small PDUs a receive */
#define TCP_RX_FULL_BYTES (128 * KiB)  /* where small PDUs fill one receive after the other */
#define TCP_RX_WIDE_BYTES (64 * MiB)   /* of the process: buffers above TCP_RX_BUSY_BYTES */
#define TCP_RX_CALM 256                /* small receives in a row after which it shrinks */
#define TCP_RX_TAIL_BYTES (64 * KiB)   /* up to here a direct receive reads on into the buffer */
#define TCP_STEP_BYTES (1 * MiB)       /* most data of one receive or send: progress is seen */
#define TCP_RX_IOV 16
#define TCP_TX_FIRST_IOV 4             /* ICResp, a TermReq; a silent connection costs no more */
#define TCP_TX_IOV 192                 /* once shaken hands */
#define TCP_PART_NS (500 * NS_PER_MS)  /* a TermReq has this long to be read */

struct tcp;

enum tcp_state {
	TCP_DIALING,                   /* host: the socket is being connected */
	TCP_GREETING,                  /* ICReq and ICResp are on their way */
	TCP_OPEN,
	TCP_PARTING,                   /* the last bytes go out; what comes in is dropped */
	TCP_CLOSING,                   /* the socket is closed; operations come back */
	TCP_CLOSED,
	TCP_STATE_N
};

/* One PDU on its way out. Lives in the memory of its command; linked while queued or flying. */
struct tcp_out {
	struct list_link link;
	const void *head;              /* header and header digest; stays until sent() */
	uint8_t head_bytes, pad_bytes, tail_bytes;
	bool flying;                   /* every byte is in the send that is in flight */
	uint32_t data_bytes;
	struct iov_at data;            /* the next byte to go */
	uint64_t handed;               /* bytes given to the socket so far, all parts counted */
	uint32_t crc;
	uint8_t tail[NV_PDU_DIGEST_BYTES];
	/* res: 0, all bytes are in the socket; -ECONNRESET they never will. NULL: nobody cares. */
	void (*sent)(struct tcp *t, struct tcp_out *out, int res);
};

enum rx_state { RX_HEAD, RX_BODY, RX_PAD, RX_DATA, RX_DIGEST };

struct tcp_rx {
	uint8_t first[TCP_RX_FIRST_BYTES];
	uint8_t *buf;                  /* first, or of the heap */
	uint32_t buf_bytes, from, to;  /* unread bytes are buf[from .. to) */
	uint32_t buf_wanted;           /* it has this size once it is free to */
	uint32_t calm;                 /* receives in a row that a smaller one had done for */
	uint32_t offer;                /* most of it that one receive may fill */
	enum rx_state state;
	bool running;                  /* rx_run() is on the stack */
	bool held;                     /* the end has said: not on, until tcp_rx_go() */
	struct nv_pdu_shape shape;
	uint32_t left;                 /* of padding or data still to come */
	/* where data goes: `skip` bytes are dropped, `into_bytes` land, the rest is dropped */
	uint32_t skip, into_bytes;
	struct iov_at into;
	uint32_t crc;
	bool digest_bad;               /* of the data that has just ended */
	bool flying, direct;           /* a receive is in flight; it goes to `into` */
	bool drop;                     /* after it, the rest of the data is dropped */
	uint32_t direct_bytes;         /* of it; what follows goes to the buffer */
	struct sock_io io;
	struct iovec iov[TCP_RX_IOV + 1];
};

struct tcp_tx {
	struct list_link queue;        /* struct tcp_out, oldest first; it may be half gone */
	struct list_link flying;       /* complete with the send in flight */
	bool busy, soon_flying;
	struct loop_op soon;           /* begins a send */
	struct sock_io io;
	struct iovec first[TCP_TX_FIRST_IOV];
	struct iovec *iov;             /* first, or TCP_TX_IOV of the heap; [iov_max] */
	uint32_t iov_max;
};

/* What differs between the ends. */
struct tcp_end {
	/* A whole header, digest checked. Either takes it (and may set the sink with tcp_rx_into(),
	 * or hold), answers false to be called again after tcp_rx_go(), or ends the connection. */
	bool (*header)(struct tcp *t, const struct nv_pdu_head *head);
	/* The data of the PDU has ended; t->rx.digest_bad says how. */
	void (*data_end)(struct tcp *t);
	/* Runs once a turn after tcp_kick(). */
	void (*kicked)(struct tcp *t);
	/* Since when the peer owes data that was asked for; UINT64_MAX: it owes none. */
	uint64_t (*waits_since_ns)(const struct tcp *t);
	/* The socket is gone and nothing is in flight: give everything back, tell the owner. */
	void (*ended)(struct tcp *t);
	/* Frees the whole connection. */
	void (*free)(struct tcp *t);
};

struct tcp {
	struct wire_conn conn;
	enum tcp_state state;
	const struct tcp_end *end;
	struct sock *sock;
	struct nv_pdu_rules rules;     /* of what is received */
	struct nv_pdu_sizes sizes;     /* of what is sent */
	uint64_t stall_ns;
	uint64_t sent_ns;              /* when the send in flight began */
	int why;                       /* why it ended: negative errno; 0 while it lives */
	bool owner_gone;               /* wire_close() was called: no event any more */
	bool delivering;               /* ended() is on the stack */
	uint8_t term_bytes;            /* a TermReq is queued or sent; 0: none */
	unsigned ops;                  /* operations in flight */
	unsigned out;                  /* commands the owner has not given back */
	struct loop_op kick;
	bool kick_flying;
	bool pausing;                  /* nothing is received any more, until it goes on */
	void (*paused)(struct wire_conn *conn, int res);     /* to be called when all is quiet */
	struct loop_timer timer;       /* handshake, stall, or the end of parting */
	struct tcp_rx rx;
	struct tcp_tx tx;
	struct tcp_out term;
	uint8_t term_pdu[NV_PDU_TERMREQ_MAX];
	char peer[96];
};

/* The connection's first lines; state DIALING. The end calls tcp_adopt() when it has a socket. */
void tcp_init(struct tcp *t, struct loop *loop, const struct tcp_end *end,
	      const struct wire_opts *opts);
/* Takes the socket and begins to receive; the handshake has until deadline_ns. */
void tcp_adopt(struct tcp *t, struct sock *sock, uint64_t deadline_ns);
/* Header formats are agreed: OPEN, with the larger buffer. -ENOMEM: ended. */
int tcp_open(struct tcp *t);

/* Data of the PDU whose header is in hand goes there: at most `bytes`, after `skip`. */
void tcp_rx_into(struct tcp *t, const struct iov_at *into, uint32_t bytes, uint32_t skip);
/* What is left of the data in hand is dropped; a direct receive ends first, then kicked(). */
void tcp_rx_drop(struct tcp *t);
/* From now on small PDUs are expected in numbers: the buffer grows with the next receive. */
void tcp_rx_widen(struct tcp *t);
/* Goes on after a hold, or after header() answered false. */
void tcp_rx_go(struct tcp *t);
/* True when a receive is in flight that writes into caller's memory. */
static inline bool tcp_rx_is_direct(const struct tcp *t)
{
	return t->rx.flying && t->rx.direct;
}

/*
 * Queues a PDU. `out` has head, data, data_bytes and sent filled in by the caller; digests and
 * padding are put on here. The header's buffer has room for NV_PDU_DIGEST_BYTES more.
 */
void tcp_send(struct tcp *t, struct tcp_out *out, struct nv_pdu_head *head);
/* Takes back a PDU of which no byte has gone; false: too late. */
bool tcp_unsend(struct tcp *t, struct tcp_out *out);
static inline bool tcp_out_busy(const struct tcp_out *out)
{
	return list_linked(&out->link);
}

/* The peer was wrong: TermReq as the fault says, with the header in hand, and the end. */
void tcp_fault(struct tcp *t, const struct nv_pdu_fault *fault);
/* The end without words; what is in flight comes back first. Does nothing when it has ended. */
void tcp_end(struct tcp *t, int why);
/* kicked() runs in the next turn. */
void tcp_kick(struct tcp *t);
/* Who waits for it to be quiet learns that it has ended. */
void tcp_pause_end(struct tcp *t);
/* The end of a command that kept the connection's memory alive. */
void tcp_maybe_free(struct tcp *t);
/* Something is waited for: from now on the peer is watched. */
void tcp_watch(struct tcp *t);

static inline struct tcp *tcp_of(const struct wire_conn *conn)
{
	return wire_owner_of(conn, struct tcp, conn);
}

static inline bool tcp_alive(const struct tcp *t)
{
	return t->state == TCP_GREETING || t->state == TCP_OPEN;
}

/* tcp_ctrl.c and tcp_host.c, put together in tcp.c */
int tcp_listen(struct loop *loop, const struct sock_addr *addr, const struct wire_opts *opts,
	       const struct wire_ctrl_events *events, void *arg, struct wire_listener **out);
uint16_t tcp_listener_port(const struct wire_listener *l);
void tcp_listener_close(struct wire_listener *l);
int tcp_ctrl_depth_set(struct wire_conn *conn, uint16_t depth);
void tcp_ctrl_pull(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count,
		   uint64_t bytes, void (*done)(struct wire_cmd *cmd, int res));
void tcp_ctrl_push(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count,
		   uint64_t bytes, void (*done)(struct wire_cmd *cmd, int res));
void tcp_ctrl_respond(struct wire_cmd *cmd, const struct nv_cqe *cqe);
int tcp_connect(struct loop *loop, const struct sock_addr *addr, const struct wire_opts *opts,
		const struct wire_host_events *events, void *arg, struct wire_conn **out);
void tcp_host_submit(struct wire_conn *conn, struct wire_req *req);
void tcp_host_inline_set(struct wire_conn *conn, uint32_t bytes);
void tcp_host_withdraw(struct wire_conn *conn, struct wire_req *req);
bool tcp_host_cid_free(const struct wire_conn *conn, uint16_t cid);
void tcp_host_dial_cancel(struct tcp *t);

#endif
