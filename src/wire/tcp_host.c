/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's end of NVMe/TCP [TCP 1.0], which trusts no controller.
 *
 *	owner                      here                             peer
 *	wire_connect()             TCP, ICReq                 ->
 *	connected()           <-   checked; OPEN              <-    ICResp
 *	wire_submit()         ->   CapsuleCmd, data if it fits ->
 *	                           H2CData of what was offered <->  R2T
 *	                           straight into req->in       <-   C2HData
 *	done()                <-   when nothing is in flight   <-   CapsuleResp (or SUCCESS)
 *
 * A slot of the table stands for a command identifier:
 *
 *	FREE -> SENT -> ANSWERED -> FREE        ANSWERED: a send still holds the request's memory
 *	           \-> GHOST -> FREE            GHOST: withdrawn, and not answered yet
 *
 * What a controller may do with a command is fixed when it is sent: to `write.end` bytes out of
 * req->out and `read.end` bytes into req->in, each in order, and nothing else. R2T for a command
 * that writes nothing, C2HData for one that reads nothing or beyond the end, answers to commands
 * that are not in flight: H2CTermReq, and no byte leaves or lands.
 *
 * A request that is withdrawn is given back when no operation in flight names its memory any more;
 * what the controller still sends for it is dropped. Bytes of a write that the controller has to
 * ask for are kept for it for HOST_GRACE_NS, so that a write that is late costs nobody else the
 * connection. A controller that asks later can get none, so the connection ends.
 *
 * Thread: the loop of the connection.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/tcp.h"

#define HOST_GRACE_NS (250 * NS_PER_MS)        /* for memory of a withdrawn request to come free */

enum slot_state { SLOT_FREE, SLOT_SENT, SLOT_ANSWERED, SLOT_GHOST, SLOT_STATE_N };

static const uint8_t slot_next[SLOT_STATE_N] = {
	[SLOT_FREE] = 1 << SLOT_SENT,
	[SLOT_SENT] = 1 << SLOT_ANSWERED | 1 << SLOT_GHOST | 1 << SLOT_FREE,
	[SLOT_ANSWERED] = 1 << SLOT_FREE,
	[SLOT_GHOST] = 1 << SLOT_FREE,
};

struct host_slot {
	enum slot_state state;
	struct wire_req *req;          /* SENT, ANSWERED */
	int res;                       /* ANSWERED: what done() will say */
	bool withdrawn;                /* SENT: the owner wants it back */
	bool let_go;                   /* withdrawn, and what it may be asked for is not kept */
	bool digest_bad, last_seen;
	struct list_link leaving;      /* on host->leaving while withdrawn and not given back */
	uint64_t grace_ns;             /* withdrawn: given back by then */
	struct nv_transfer write;      /* next: up to where R2Ts have asked */
	struct nv_transfer read;       /* next: up to where data has come */
	uint32_t sent_bytes;           /* of write: in PDUs that were built */
	struct iov_at out, in;
	struct tcp_out cmd, data;
	struct { struct nv_pdu_cmd pdu; uint8_t digest[NV_PDU_DIGEST_BYTES]; } cmd_head;
	struct { struct nv_pdu_data pdu; uint8_t digest[NV_PDU_DIGEST_BYTES]; } data_head;
};

struct tcp_host {
	struct tcp t;
	const struct wire_host_events *events;
	struct sock_connect dial;
	bool dial_flying;
	uint8_t asked;                 /* digest bits of our ICReq */
	uint32_t h2c_bytes_max;        /* MAXH2CDATA */
	uint32_t inline_bytes;
	unsigned depth;
	struct host_slot *slot;        /* [depth] */
	struct host_slot *data_slot;   /* whose data is being received */
	struct list_link leaving;
	struct loop_timer grace;
	struct nv_pdu_icreq icreq;
	struct tcp_out greet;
};

static struct tcp_host *host_of(const struct tcp *t)
{
	must(!t->rules.controller);
	return wire_owner_of(t, struct tcp_host, t);
}

static void slot_go(struct host_slot *s, enum slot_state to)
{
	must(slot_next[s->state] & 1u << to);
	s->state = to;
}

/* --- giving back ------------------------------------------------------------------------------ */

/* The controller has the command, and has asked for bytes that it was not sent, or may still. */
static bool slot_is_owing(const struct host_slot *s)
{
	return s->state == SLOT_SENT && s->cmd.handed > 0 &&
	       s->sent_bytes < (s->let_go ? s->write.next : s->write.end);
}

/* An operation in flight names the request's memory, or the controller is still to have it. */
static bool slot_is_held(const struct tcp_host *h, const struct host_slot *s)
{
#ifdef KVOF_PLANT_WIRE_LEASE_FORGOTTEN
	return tcp_out_busy(&s->cmd);
#endif
	return tcp_out_busy(&s->cmd) || tcp_out_busy(&s->data) || slot_is_owing(s) ||
	       (h->data_slot == s && tcp_rx_is_direct(&h->t));
}

/* The request goes back to its owner; the slot is in `to` before the owner hears of it. */
static void slot_give(struct host_slot *s, enum slot_state to, int res)
{
	struct wire_req *req = s->req;

	must(req != NULL);
	if (list_linked(&s->leaving))
		list_remove(&s->leaving);
	s->req = NULL;
	slot_go(s, to);
	req->done(req, res);
}

/* Something that held the slot may have let go. */
static void slot_look(struct tcp_host *h, struct host_slot *s)
{
	if (s->req == NULL)
		return;
	if (slot_is_held(h, s))
		return;
	if (s->state == SLOT_ANSWERED)
		slot_give(s, SLOT_FREE, s->res);
	else if (s->withdrawn)
		slot_give(s, SLOT_GHOST, -ECANCELED);
}

static void host_kicked(struct tcp *t)
{
	struct tcp_host *h = host_of(t);

	LIST_FOR_EACH_SAFE(link, &h->leaving) {
		struct host_slot *s = container_of(link, struct host_slot, leaving);

		if (s->state == SLOT_SENT && s->cmd.handed == 0 && !tcp_out_busy(&s->cmd))
			slot_give(s, SLOT_FREE, -ECANCELED);   /* it never went out */
		else
			slot_look(h, s);
	}
}

static void host_grace_over(struct loop_timer *timer)
{
	struct tcp_host *h = container_of(timer, struct tcp_host, grace);

	LIST_FOR_EACH_SAFE(link, &h->leaving) {    /* the oldest first */
		struct host_slot *s = container_of(link, struct host_slot, leaving);

		if (s->grace_ns > loop_now_ns(h->t.conn.loop)) {
			loop_timer_set(h->t.conn.loop, &h->grace, s->grace_ns);
			return;
		}
		s->let_go = true;
		slot_look(h, s);
		if (s->req != NULL) {
			tcp_end(&h->t, -ETIMEDOUT);
			return;
		}
	}
}

/* --- sending ---------------------------------------------------------------------------------- */

static void cmd_sent(struct tcp *t, struct tcp_out *out, int res)
{
	struct host_slot *s = container_of(out, struct host_slot, cmd);

	if (res == 0)
		slot_look(host_of(t), s);
}

static void h2c_next(struct tcp_host *h, struct host_slot *s);

static void h2c_sent(struct tcp *t, struct tcp_out *out, int res)
{
	struct host_slot *s = container_of(out, struct host_slot, data);

	if (res != 0)
		return;
	if (t->state == TCP_OPEN && s->state == SLOT_SENT && s->sent_bytes < s->write.next)
		h2c_next(host_of(t), s);
	else
		slot_look(host_of(t), s);
}

/* The next H2CData of what the controller has asked for. */
static void h2c_next(struct tcp_host *h, struct host_slot *s)
{
	uint32_t left = s->write.next - s->sent_bytes;
	struct nv_data_span span = {
		.cid = s->write.cid,
		.ttag = s->write.ttag,
		.offset = s->sent_bytes,
		.bytes = left < h->h2c_bytes_max ? left : h->h2c_bytes_max,
	};

	must(left > 0 && s->write.next <= s->write.end);
	span.last = span.bytes == left;
	s->data_head.pdu = nv_h2c_data_build(&h->t.sizes, &span);
	s->data = (struct tcp_out){.data = s->out, .data_bytes = span.bytes, .sent = h2c_sent};
	iov_at_skip(&s->out, span.bytes);
	s->sent_bytes += span.bytes;
	tcp_send(&h->t, &s->data, &s->data_head.pdu.head);
}

static void submit_failed(struct loop_op *op, int res)
{
	struct wire_req *req = container_of((uint64_t *)(void *)op, struct wire_req, lease[0]);

	req->done(req, res);
}

/* There is no connection (any more): told in the next turn, from the request's own memory. */
static void submit_refuse(struct tcp *t, struct wire_req *req)
{
	struct loop_op *op = (struct loop_op *)(void *)req->lease;

	_Static_assert(sizeof(*op) <= sizeof(req->lease), "an operation fits the lease");
	memset(op, 0, sizeof(*op));
	op->done = submit_failed;
	loop_soon(t->conn.loop, op, -ECONNRESET);
}

void tcp_host_submit(struct wire_conn *conn, struct wire_req *req)
{
	struct tcp_host *h = host_of(tcp_of(conn));
	struct host_slot *s = &h->slot[req->cid];
	uint32_t most = req->sqe.opcode == NV_OPCODE_FABRICS ? WIRE_INLINE_BYTES : h->inline_bytes;
	bool inside = req->out_bytes > 0 && req->out_bytes <= most;

	must(req->cid < h->depth);
	must(iov_bytes(req->out, req->out_count) >= req->out_bytes);
	must(iov_bytes(req->in, req->in_count) >= req->in_bytes);
	req->in_bytes_got = 0;
	if (h->t.state != TCP_OPEN) {
		submit_refuse(&h->t, req);
		return;
	}
	must(s->state == SLOT_FREE && !tcp_out_busy(&s->cmd) && !tcp_out_busy(&s->data));
	req->sqe.cid = le16_of(req->cid);
	req->sqe.flags = (uint8_t)((req->sqe.flags & ~NV_SQE_PSDT) | NV_SQE_PSDT_SGL);
	req->sqe.sgl = inside ? nv_sgl_in_capsule(req->out_bytes)
			      : nv_sgl_transport(req->out_bytes + req->in_bytes);
	*s = (struct host_slot){
		.req = req,
		.write = {.cid = req->cid, .end = inside ? 0 : req->out_bytes},
		.read = {.cid = req->cid, .end = req->in_bytes},
		.out = iov_at_start(req->out, req->out_count),
		.in = iov_at_start(req->in, req->in_count),
	};
	slot_go(s, SLOT_SENT);
	s->cmd_head.pdu = nv_cmd_build(&h->t.sizes, &req->sqe, inside ? req->out_bytes : 0);
	s->cmd = (struct tcp_out){.data = s->out, .data_bytes = inside ? req->out_bytes : 0,
				  .sent = cmd_sent};
	tcp_send(&h->t, &s->cmd, &s->cmd_head.pdu.head);
}

void tcp_host_inline_set(struct wire_conn *conn, uint32_t bytes)
{
	host_of(tcp_of(conn))->inline_bytes = bytes;
}

bool tcp_host_cid_free(const struct wire_conn *conn, uint16_t cid)
{
	const struct tcp_host *h = host_of(tcp_of(conn));

	must(cid < h->depth);
	return h->slot[cid].state == SLOT_FREE;
}

void tcp_host_withdraw(struct wire_conn *conn, struct wire_req *req)
{
	struct tcp *t = tcp_of(conn);
	struct tcp_host *h = host_of(t);
	struct host_slot *s = &h->slot[req->cid];

	must(req->cid < h->depth);
	if (s->req != req || s->withdrawn)
		return;               /* its done() is on the way */
	s->withdrawn = true;
	list_push_back(&h->leaving, &s->leaving);
	(void)tcp_unsend(t, &s->cmd);
	if (h->data_slot == s)
		tcp_rx_drop(t);
	s->grace_ns = loop_now_ns(t->conn.loop) + HOST_GRACE_NS;
	if (!loop_timer_is_set(&h->grace))
		loop_timer_set(t->conn.loop, &h->grace, s->grace_ns);
	tcp_kick(t);
}

/* --- what arrives ----------------------------------------------------------------------------- */

/* A command that the controller has seen and not answered; NULL: there is none of that id. */
static struct host_slot *slot_of(struct tcp_host *h, le16 wire_cid)
{
	uint16_t cid = le16_get(wire_cid);
	struct host_slot *s = cid < h->depth ? &h->slot[cid] : NULL;

	if (s == NULL || (s->state != SLOT_SENT && s->state != SLOT_GHOST))
		return NULL;
	return s->cmd.handed >= sizeof(struct nv_pdu_cmd) ? s : NULL;
}

static void host_fault(struct tcp_host *h, enum nv_fes fes, uint32_t fei, const char *why)
{
	struct nv_pdu_fault fault = {(uint16_t)fes, fei, false, why};

	tcp_fault(&h->t, &fault);
}

static void host_greeted(struct tcp_host *h, const struct nv_pdu_icresp *icresp)
{
	struct tcp *t = &h->t;
	struct nv_pdu_fault fault;

	if (!nv_icresp_check(icresp, h->asked, &fault)) {
		tcp_fault(t, &fault);
		return;
	}
	t->sizes = (struct nv_pdu_sizes){icresp->digest & 1, icresp->digest & 2, icresp->cpda};
	t->rules.header_digest = icresp->digest & 1;
	t->rules.data_digest = icresp->digest & 2;
	h->h2c_bytes_max = le32_get(icresp->maxh2cdata);
	if (tcp_open(t) != 0)
		return;
	tcp_rx_widen(t);
	h->events->connected(t->conn.arg, &t->conn);
}

/* The controller is done with a command. May give the request back at once. */
static void slot_answer(struct tcp_host *h, struct host_slot *s, const struct nv_cqe *cqe)
{
	if (s->state == SLOT_GHOST) {
		slot_go(s, SLOT_FREE);
		return;
	}
	s->req->cqe = *cqe;
	s->req->in_bytes_got = s->read.next;
	s->res = s->digest_bad ? -EBADMSG : 0;
	(void)tcp_unsend(&h->t, &s->data);
	slot_go(s, SLOT_ANSWERED);
	slot_look(h, s);
}

static void host_resp(struct tcp_host *h, const struct nv_pdu_resp *pdu)
{
	struct host_slot *s = slot_of(h, pdu->cqe.cid);

	if (s == NULL)
		host_fault(h, NV_FES_SEQUENCE, 0, "answer to a command that is not in flight");
	else
		slot_answer(h, s, &pdu->cqe);
}

static void host_c2h_data(struct tcp_host *h, const struct nv_pdu_data *pdu)
{
	struct tcp *t = &h->t;
	struct host_slot *s = slot_of(h, pdu->cccid);
	struct nv_pdu_fault fault;
	bool success = (t->rx.shape.flags & NV_PDU_SUCCESS) != 0;

	if (s != NULL && s->read.end == 0)
		s = NULL;
	if (!nv_c2h_data_check(pdu, &t->rx.shape, s != NULL ? &s->read : NULL, &fault)) {
		tcp_fault(t, &fault);
		return;
	}
	if (s->last_seen) {
		host_fault(h, NV_FES_SEQUENCE, 0, "data after the last data");
		return;
	}
	if (success && s->read.next + t->rx.shape.data_bytes != s->read.end) {
		host_fault(h, NV_FES_INVALID_HEADER, offsetof(struct nv_pdu_head, flags),
			   "SUCCESS before all data has come");
		return;
	}
	s->last_seen = (t->rx.shape.flags & NV_PDU_LAST) != 0;
	h->data_slot = s;
	if (s->state == SLOT_SENT && !s->withdrawn)
		tcp_rx_into(t, &s->in, t->rx.shape.data_bytes, 0);
}

static void host_r2t(struct tcp_host *h, const struct nv_pdu_r2t *pdu)
{
	struct host_slot *s = slot_of(h, pdu->cccid);
	struct nv_pdu_fault fault;
	bool busy = s != NULL && (s->sent_bytes < s->write.next ||
				  (tcp_out_busy(&s->data) && !s->data.flying));

#ifndef KVOF_PLANT_WIRE_R2T_UNASKED
	if (s != NULL && s->write.end == 0)
		s = NULL;
#endif
	if (!nv_r2t_check(pdu, s != NULL ? &s->write : NULL, busy, &fault)) {
		tcp_fault(&h->t, &fault);
		return;
	}
	if (s->state == SLOT_GHOST) {         /* asks for bytes that are gone */
		tcp_end(&h->t, -ECONNRESET);
		return;
	}
	s->write.ttag = le16_get(pdu->ttag);
	s->write.next = le32_get(pdu->r2to) + le32_get(pdu->r2tl);
	if (!tcp_out_busy(&s->data))
		h2c_next(h, s);
}

static bool host_header(struct tcp *t, const struct nv_pdu_head *head)
{
	struct tcp_host *h = host_of(t);

	h->data_slot = NULL;
	switch (head->type) {
	case NV_PDU_ICRESP:
		host_greeted(h, (const struct nv_pdu_icresp *)head);
		return true;
	case NV_PDU_CAPSULE_RESP:
		host_resp(h, (const struct nv_pdu_resp *)head);
		return true;
	case NV_PDU_R2T:
		host_r2t(h, (const struct nv_pdu_r2t *)head);
		return true;
	default:
		must(head->type == NV_PDU_C2H_DATA);
		host_c2h_data(h, (const struct nv_pdu_data *)head);
		return true;
	}
}

static void host_data_end(struct tcp *t)
{
	struct tcp_host *h = host_of(t);
	struct host_slot *s = h->data_slot;

	must(s != NULL);
	h->data_slot = NULL;
	s->digest_bad |= t->rx.digest_bad;
	s->read.next += t->rx.shape.data_bytes;
	must(s->read.next <= s->read.end);
	if (s->state == SLOT_SENT && !s->withdrawn)
		s->in = t->rx.into;
	if ((t->rx.shape.flags & NV_PDU_SUCCESS) != 0) {
		struct nv_cqe cqe = nv_cqe_of(s->read.cid, NV_OK);

		slot_answer(h, s, &cqe);
	}
}

/* --- ending ----------------------------------------------------------------------------------- */

static uint64_t host_waits_since_ns(const struct tcp *t)
{
	(void)t;
	return UINT64_MAX;            /* answers have the deadlines of the requests */
}

static void host_ended(struct tcp *t)
{
	struct tcp_host *h = host_of(t);

	loop_timer_cancel(t->conn.loop, &h->grace);
	h->data_slot = NULL;
	for (unsigned i = 0; i < h->depth; i++) {
		struct host_slot *s = &h->slot[i];

		if (s->req != NULL)
			slot_give(s, SLOT_FREE, s->withdrawn ? -ECANCELED : t->why);
		else if (s->state == SLOT_GHOST)
			slot_go(s, SLOT_FREE);
	}
	must(list_empty(&h->leaving));
	if (!t->owner_gone)
		h->events->closed(t->conn.arg, t->why);
}

static void host_free(struct tcp *t)
{
	struct tcp_host *h = host_of(t);

	free(h->slot);
	free(h);
}

static const struct tcp_end host_end = {
	.header = host_header,
	.data_end = host_data_end,
	.kicked = host_kicked,
	.waits_since_ns = host_waits_since_ns,
	.ended = host_ended,
	.free = host_free,
};

/* --- dialling --------------------------------------------------------------------------------- */

static void dial_done(struct loop_op *op, int res)
{
	struct tcp_host *h = container_of(op, struct tcp_host, dial.op);
	struct tcp *t = &h->t;

	h->dial_flying = false;
	t->ops--;
	if (res == 0 && t->state != TCP_DIALING)
		sock_close(&h->dial.sock);    /* it came through although it was cancelled */
	if (t->state == TCP_CLOSING) {
		tcp_kick(t);
		return;
	}
	if (res != 0) {
		tcp_end(t, res == -ETIMEDOUT || res == -EMFILE ? res : -ECONNRESET);
		return;
	}
	h->icreq = nv_icreq_build(0, h->asked, 1);
	tcp_adopt(t, h->dial.sock, h->dial.deadline_ns);
	tcp_send(t, &h->greet, &h->icreq.head);
}

void tcp_host_dial_cancel(struct tcp *t)
{
	struct tcp_host *h = host_of(t);

	if (h->dial_flying)
		sock_connect_cancel(t->conn.loop, &h->dial);
}

int tcp_connect(struct loop *loop, const struct sock_addr *addr, const struct wire_opts *opts,
		const struct wire_host_events *events, void *arg, struct wire_conn **out)
{
	struct tcp_host *h = calloc(1, sizeof(*h));

	if (h == NULL)
		return -ENOMEM;
	h->slot = calloc(opts->depth_max, sizeof(h->slot[0]));
	if (h->slot == NULL) {
		free(h);
		return -ENOMEM;
	}
	tcp_init(&h->t, loop, &host_end, opts);
	h->t.conn.arg = arg;
	h->events = events;
	h->depth = opts->depth_max;
	h->asked = (uint8_t)((opts->header_digest ? 1 : 0) | (opts->data_digest ? 2 : 0));
	h->inline_bytes = WIRE_INLINE_BYTES;
	list_init(&h->leaving);
	loop_timer_init(&h->grace, host_grace_over);
	h->dial.addr = *addr;
	h->dial.near_room_bytes = opts->near_room_bytes;
	h->dial.deadline_ns = loop_now_ns(loop) + opts->handshake_ns;
	h->dial.op.done = dial_done;
	h->dial_flying = true;
	h->t.ops++;
	*out = &h->t.conn;
	sock_connect(loop, &h->dial);
	return 0;
}
