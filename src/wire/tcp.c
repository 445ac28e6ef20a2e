/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVMe/TCP: the stream that both ends stand on [TCP 1.0].
 *
 * Receiving. Bytes come into a small buffer, from which headers are read in place. nv_pdu_check()
 * judges the first 8 bytes before anything is waited for; the end's header() judges the rest and
 * says where the data goes. Data that is already in the buffer is copied there; the rest is
 * received straight into its destination. So a large payload is copied once at most for its first
 * few kilobytes, and nobody's memory is written but what header() named. One receive is in flight
 * at a time; while `held`, none: that is the back-pressure.
 *
 *	HEAD -> BODY -> PAD -> DATA -> DIGEST -> HEAD        (PAD, DATA, DIGEST only with data)
 *
 * Sending. PDUs queue up; one send is in flight, made of as many of them as fit into its iovecs
 * and TCP_STEP_BYTES. It begins at the end of the turn, so that all answers of the turn are in
 * it; what queues up meanwhile goes together with the next send.
 *
 * Ending. A wrong peer is told by TermReq: PDUs of which no byte has gone are dropped, the one that
 * is half gone is finished, TermReq follows, and what still comes in is dropped until the peer
 * closes or TCP_PART_NS is over (closing at once would reset the stream and lose the TermReq).
 * Then, as in every other case: the socket is closed, each operation comes back, and only then
 * are buffers given back to their owners and events told. So no buffer is handed back while the
 * kernel may still read or write it.
 *
 *	DIALING -> GREETING -> OPEN -> PARTING -> CLOSING -> CLOSED -> (freed)
 *
 *	freed when CLOSED, and the owner has called wire_close(), and has given back every command
 *
 * Invariants
 *  - t->ops is the number of loop operations in flight; 0 in CLOSED.
 *  - an out is on queue or flying, or belongs to its command; its buffers are leased while linked.
 *  - rx.from <= rx.to <= rx.buf_bytes; a direct receive is in flight only in state DATA.
 *  - callbacks to the owner run from the loop only, never from within a call of the owner.
 *
 * Thread: the loop of the connection.
 */
#include "wire/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"

#define BIT(state) (1u << (state))

static const uint8_t tcp_next[TCP_STATE_N] = {
	[TCP_DIALING] = BIT(TCP_GREETING) | BIT(TCP_CLOSING),
	[TCP_GREETING] = BIT(TCP_OPEN) | BIT(TCP_PARTING) | BIT(TCP_CLOSING),
	[TCP_OPEN] = BIT(TCP_PARTING) | BIT(TCP_CLOSING),
	[TCP_PARTING] = BIT(TCP_CLOSING),
	[TCP_CLOSING] = BIT(TCP_CLOSED),
};

static const uint8_t zeros[4 * (NV_PDU_PDA_MAX + 1)];

static void tx_start(struct tcp *t);
static void rx_wide_give(uint32_t buf_bytes);
static void rx_run(struct tcp *t);

static void tcp_go(struct tcp *t, enum tcp_state to)
{
	must(tcp_next[t->state] & BIT(to));
	if (to == TCP_CLOSED)
		must(t->ops == 0 && t->sock == NULL);
	t->state = to;
}

/* --- beginning and ending --------------------------------------------------------------------- */

void tcp_maybe_free(struct tcp *t)
{
	if (t->state != TCP_CLOSED || !t->owner_gone || t->out > 0 || t->delivering)
		return;
	must(t->ops == 0 && list_empty(&t->tx.queue) && list_empty(&t->tx.flying));
	rx_wide_give(t->rx.buf_bytes);
	if (t->rx.buf != t->rx.first)
		free(t->rx.buf);
	if (t->tx.iov != t->tx.first)
		free(t->tx.iov);
	t->conn.magic = 0;
	t->end->free(t);
}

/* PDUs that will not go any more. */
static void tx_fail(struct tcp *t)
{
#ifdef KVOF_PLANT_WIRE_BATCH_LOST_AT_RESET
	struct list_link *lists[] = {&t->tx.queue};
#else
	struct list_link *lists[] = {&t->tx.flying, &t->tx.queue};
#endif

	for (unsigned i = 0; i < ARRAY_COUNT(lists); i++) {
		struct list_link *link;

		while ((link = list_pop_front(lists[i])) != NULL) {
			struct tcp_out *out = container_of(link, struct tcp_out, link);

			if (out->sent != NULL)
				out->sent(t, out, -ECONNRESET);
		}
	}
}

/* Every operation is back: the last act. Runs from the loop only. */
static void tcp_finish(struct tcp *t)
{
	must(t->state == TCP_CLOSING && t->ops == 0 && t->why < 0);
	tcp_go(t, TCP_CLOSED);
	WIRE_COUNT(closed, 1);
	t->delivering = true;
	tx_fail(t);
	t->end->ended(t);
	t->delivering = false;
	tcp_maybe_free(t);
}

static void tcp_op_back(struct tcp *t)
{
	must(t->ops > 0);
	t->ops--;
}

/* True when the connection is going down: the caller has nothing left to do. */
static bool tcp_is_over(struct tcp *t)
{
	if (t->state != TCP_CLOSING)
		return false;
	if (t->ops == 0)
		tcp_finish(t);
	return true;
}

/* --- to another loop -------------------------------------------------------------------------- */

static void tcp_pause(struct wire_conn *conn, void (*paused)(struct wire_conn *conn, int res))
{
	struct tcp *t = tcp_of(conn);

	must(!t->pausing && !t->rx.flying && t->rules.controller);
	must(t->state != TCP_CLOSED);
	t->pausing = true;
	t->paused = paused;
	tcp_kick(t);
}

/* Nothing is in flight: the owner decides where it goes on. */
static void tcp_pause_look(struct tcp *t)
{
	void (*paused)(struct wire_conn *conn, int res) = t->paused;

	if (paused == NULL || t->ops > 0 || t->state != TCP_OPEN)
		return;
	must(!t->tx.busy && list_empty(&t->tx.queue) && list_empty(&t->tx.flying));
	t->paused = NULL;
	paused(&t->conn, 0);          /* it may be another loop's from here on */
}

void tcp_pause_end(struct tcp *t)
{
	void (*paused)(struct wire_conn *conn, int res) = t->paused;

	t->paused = NULL;
	if (paused != NULL)
		paused(&t->conn, -ECONNRESET);
}

static void tcp_resume(struct wire_conn *conn)
{
	struct tcp *t = tcp_of(conn);

	must(t->pausing && t->paused == NULL);
	t->pausing = false;
	tcp_kick(t);
}

static void tcp_leave(struct wire_conn *conn)
{
	struct tcp *t = tcp_of(conn);

	must(t->pausing && t->paused == NULL && t->state == TCP_OPEN && t->ops == 0);
	must(!t->kick_flying && !t->tx.busy && !t->rx.flying && !t->rx.running);
	loop_timer_cancel(conn->loop, &t->timer);
	sock_leave(t->sock);
}

static void tcp_join(struct wire_conn *conn, struct loop *loop)
{
	sock_join(tcp_of(conn)->sock, loop);
	tcp_resume(conn);
}

static void tcp_kicked(struct loop_op *op, int res)
{
	struct tcp *t = container_of(op, struct tcp, kick);

	(void)res;
	t->kick_flying = false;
	tcp_op_back(t);
	if (tcp_is_over(t))
		return;
	if (t->pausing && t->state == TCP_OPEN) {
		tcp_pause_look(t);
		return;
	}
	t->delivering = true;
	t->end->kicked(t);
	t->delivering = false;
	if (tcp_is_over(t))
		return;
	if (t->state != TCP_DIALING)
		rx_run(t);
}

void tcp_kick(struct tcp *t)
{
	if (t->kick_flying || t->state == TCP_CLOSED)
		return;
	t->kick_flying = true;
	t->ops++;
	t->kick.done = tcp_kicked;
	loop_soon(t->conn.loop, &t->kick, 0);
}

void tcp_end(struct tcp *t, int why)
{
	must(why < 0);
	if (t->why == 0)
		t->why = why;
	if (t->state == TCP_CLOSING || t->state == TCP_CLOSED)
		return;
	tcp_go(t, TCP_CLOSING);
	loop_timer_cancel(t->conn.loop, &t->timer);
	if (t->sock != NULL)
		sock_close(&t->sock);
	else
		tcp_host_dial_cancel(t);
	tcp_kick(t);                  /* when nothing else is in flight, this one tells */
}

void tcp_watch(struct tcp *t)
{
	if (t->state == TCP_OPEN && !loop_timer_is_set(&t->timer))
		loop_timer_set(t->conn.loop, &t->timer, loop_now_ns(t->conn.loop) + t->stall_ns);
}

/* The peer has owed data, or not taken ours, since then. */
static uint64_t tcp_waits_since_ns(const struct tcp *t)
{
	return bytes_min(t->end->waits_since_ns(t), t->tx.busy ? t->sent_ns : UINT64_MAX);
}

static void tcp_late(struct loop_timer *timer)
{
	struct tcp *t = container_of(timer, struct tcp, timer);
	uint64_t since_ns = tcp_waits_since_ns(t);

	if (t->state == TCP_DIALING || t->state == TCP_GREETING) {
		WIRE_COUNT(handshake_late, 1);
		tcp_end(t, -ETIMEDOUT);
	} else if (t->state == TCP_PARTING) {
		tcp_end(t, -EPROTO);
	} else if (t->state == TCP_OPEN && since_ns != UINT64_MAX) {
		if (loop_now_ns(t->conn.loop) < since_ns + t->stall_ns) {
			loop_timer_set(t->conn.loop, &t->timer, since_ns + t->stall_ns);
			return;
		}
		WIRE_COUNT(data_late, 1);
		log_info("wire %s: no byte moved for %u ms; closing", t->peer,
			 (unsigned)(t->stall_ns / NS_PER_MS));
		tcp_end(t, -ETIMEDOUT);
	}
}

void tcp_init(struct tcp *t, struct loop *loop, const struct tcp_end *end,
	      const struct wire_opts *opts)
{
	t->conn = (struct wire_conn){WIRE_CONN_MAGIC, &wire_tcp, loop, NULL};
	t->state = TCP_DIALING;
	t->end = end;
	t->stall_ns = opts->stall_ns;
	t->rx.buf = t->rx.first;
	t->rx.buf_bytes = sizeof(t->rx.first);
	t->tx.iov = t->tx.first;
	t->tx.iov_max = TCP_TX_FIRST_IOV;
	t->rx.offer = TCP_RX_BUSY_BYTES;
	list_init(&t->tx.queue);
	list_init(&t->tx.flying);
	loop_timer_init(&t->timer, tcp_late);
}

void tcp_adopt(struct tcp *t, struct sock *sock, uint64_t deadline_ns)
{
	t->sock = sock;
	strncpy(t->peer, sock_peer(sock), sizeof(t->peer) - 1);
	tcp_go(t, TCP_GREETING);
	loop_timer_set(t->conn.loop, &t->timer, deadline_ns);
	tcp_kick(t);                  /* begins to receive, from the loop */
}

void tcp_rx_widen(struct tcp *t)
{
	if (t->rx.buf_wanted < TCP_RX_BUSY_BYTES)
		t->rx.buf_wanted = TCP_RX_BUSY_BYTES;
}

int tcp_open(struct tcp *t)
{
	uint8_t *buf = malloc(TCP_RX_BYTES);
	struct iovec *iov = malloc(TCP_TX_IOV * sizeof(*iov));

	must(!t->rx.flying && t->rx.from <= t->rx.to && t->tx.iov == t->tx.first);
	if (buf == NULL || iov == NULL) {
		free(buf);
		free(iov);
		tcp_end(t, -ENOMEM);
		return -ENOMEM;
	}
	memcpy(buf, t->rx.buf + t->rx.from, t->rx.to - t->rx.from);
	t->rx.to -= t->rx.from;
	t->rx.from = 0;
	t->rx.buf = buf;
	t->rx.buf_bytes = t->rx.buf_wanted = TCP_RX_BYTES;
	t->tx.iov = iov;              /* a send that is in flight keeps first */
	t->tx.iov_max = TCP_TX_IOV;
	loop_timer_cancel(t->conn.loop, &t->timer);
	t->rules.connected = true;
	tcp_go(t, TCP_OPEN);
	return 0;
}

/* --- parting ---------------------------------------------------------------------------------- */

static void tcp_part(struct tcp *t, int why)
{
	t->why = why;
	tcp_go(t, TCP_PARTING);
	loop_timer_set(t->conn.loop, &t->timer, loop_now_ns(t->conn.loop) +
		       (t->rules.controller ? TCP_PART_NS : TCP_PART_NS / 5));
	t->rx.held = false;
	t->rx.from = t->rx.to = 0;
	tx_start(t);
	tcp_kick(t);
}

/* PDUs of which no byte has gone leave the queue; their commands get them back at the end. */
static void tx_drop_unsent(struct tcp *t)
{
	LIST_FOR_EACH_SAFE(link, &t->tx.queue) {
		struct tcp_out *out = container_of(link, struct tcp_out, link);

		if (out->handed == 0)
			list_remove(link);
	}
}

void tcp_fault(struct tcp *t, const struct nv_pdu_fault *fault)
{
	struct nv_wrong wrong = {t->rx.buf + t->rx.from, t->rx.to - t->rx.from};
	enum nv_pdu_type type = t->rules.controller ? NV_PDU_C2H_TERMREQ : NV_PDU_H2C_TERMREQ;
	uint32_t header = t->rx.state == RX_HEAD ? 8 : t->rx.shape.header_bytes;

	must(!t->rx.flying || !t->rx.direct);
	log_info("wire %s: %s (%s %u, %u); closing", t->peer, fault->why,
		 fault->silent ? "silent" : "FES", fault->fes, fault->fei);
	if (fault->silent || !tcp_alive(t)) {
		tcp_end(t, -EPROTO);
		return;
	}
	if (wrong.bytes > header)
		wrong.bytes = header;
	WIRE_COUNT(term_sent[fault->fes & 7], 1);
#ifndef KVOF_PLANT_WIRE_BATCH_LOST_AT_FAULT
	if (t->tx.soon_flying)
		tx_start(t);                  /* answers of this turn go before it */
#endif
	tx_drop_unsent(t);
	t->term_bytes = (uint8_t)nv_termreq_build(type, fault, &wrong, t->term_pdu);
	t->term = (struct tcp_out){.head = t->term_pdu, .head_bytes = t->term_bytes};
	list_push_back(&t->tx.queue, &t->term.link);
	tcp_part(t, -EPROTO);
}

static void tcp_owner_close(struct tcp *t)
{
	t->owner_gone = true;
	if (t->state == TCP_CLOSED)
		tcp_maybe_free(t);
	else if (t->state == TCP_OPEN && t->rules.controller && !tcp_rx_is_direct(t) &&
#ifdef KVOF_PLANT_WIRE_BATCH_LOST_AT_CLOSE
		 t->tx.busy)
#else
		 (t->tx.busy || t->tx.soon_flying))
#endif
		tcp_part(t, -ECONNRESET);     /* answers that are queued still go */
	else if (t->state != TCP_PARTING)
		tcp_end(t, -ECONNRESET);
}

/* --- sending ---------------------------------------------------------------------------------- */

static uint64_t out_bytes(const struct tcp_out *out)
{
	return (uint64_t)out->head_bytes + out->pad_bytes + out->data_bytes + out->tail_bytes;
}

struct tx_fill {                       /* a send being put together */
	unsigned count, count_max;
	uint64_t bytes;
};

static void fill_add(struct tcp *t, struct tx_fill *f, const void *at, size_t bytes)
{
	must(f->count < f->count_max && bytes > 0);
	t->tx.iov[f->count++] = (struct iovec){(void *)(uintptr_t)at, bytes};
	f->bytes += bytes;
}

static bool fill_full(const struct tx_fill *f)
{
	return f->count == f->count_max || f->bytes >= TCP_STEP_BYTES;
}

/* A part of fixed memory: header, padding or digest, which ends at byte `end` of the PDU. */
static void fill_part(struct tcp *t, struct tx_fill *f, struct tcp_out *out, const void *part,
		      uint64_t end, uint32_t bytes)
{
	if (bytes == 0 || out->handed >= end || fill_full(f))
		return;
	must(out->handed == end - bytes);      /* a part goes whole */
	fill_add(t, f, part, bytes);
	out->handed = end;
}

static void fill_data(struct tcp *t, struct tx_fill *f, struct tcp_out *out, uint64_t end)
{
	while (out->handed < end && !fill_full(f)) {
		uint8_t *base;
		size_t piece = iov_at_piece(&out->data, &base);

		must(piece > 0);
		piece = bytes_min(piece, end - out->handed);
		piece = bytes_min(piece, TCP_STEP_BYTES - f->bytes);
		if (out->tail_bytes > 0)
			out->crc = crc32c_more(out->crc, base, piece);
		fill_add(t, f, base, piece);
		iov_at_skip(&out->data, piece);
		out->handed += piece;
	}
}

/* As much of one PDU as fits. True: all of it. */
static bool fill_out(struct tcp *t, struct tx_fill *f, struct tcp_out *out)
{
	uint64_t head = out->head_bytes, pad = head + out->pad_bytes;
	uint64_t data = pad + out->data_bytes, tail = data + out->tail_bytes;

	fill_part(t, f, out, out->head, head, out->head_bytes);
	if (out->handed >= head)
		fill_part(t, f, out, zeros, pad, out->pad_bytes);
	if (out->handed >= pad)
		fill_data(t, f, out, data);
	if (out->handed == data && out->tail_bytes > 0) {
		le32 crc = le32_of(out->crc);

		memcpy(out->tail, crc.b, sizeof(out->tail));
		fill_part(t, f, out, out->tail, tail, out->tail_bytes);
	}
	return out->handed == tail;
}

static void tx_done(struct loop_op *op, int res)
{
	struct tcp *t = container_of(op, struct tcp, tx.io.op);
	struct list_link gone, *link;

	t->tx.busy = false;
	tcp_op_back(t);
	if (res < 0)
		tcp_end(t, -ECONNRESET);
	if (tcp_is_over(t))
		return;
	WIRE_COUNT(bytes_out, t->tx.io.bytes);
	list_init(&gone);
	while ((link = list_pop_front(&t->tx.flying)) != NULL)
		list_push_back(&gone, link);
	t->ops++;                     /* callbacks may end the connection; not while in hand */
	while ((link = list_pop_front(&gone)) != NULL) {
		struct tcp_out *out = container_of(link, struct tcp_out, link);

		out->flying = false;
		if (out->sent != NULL)
			out->sent(t, out, 0);
	}
	tcp_op_back(t);
	if (tcp_is_over(t))
		return;
	tx_start(t);
	if (t->state == TCP_PARTING && !t->tx.busy && t->term_bytes == 0)
		tcp_end(t, t->why);
	else if (t->pausing)
		tcp_kick(t);
	(void)tcp_is_over(t);
}

static void tx_start(struct tcp *t)
{
	struct tx_fill f = {.count_max = t->tx.iov_max};

	if (t->tx.busy || t->sock == NULL || t->state == TCP_CLOSING)
		return;
	while (!list_empty(&t->tx.queue) && !fill_full(&f)) {
		struct tcp_out *out = container_of(t->tx.queue.next, struct tcp_out, link);

		if (!fill_out(t, &f, out))
			break;
		list_remove(&out->link);
		list_push_back(&t->tx.flying, &out->link);
		out->flying = true;
	}
	if (f.bytes == 0)
		return;
	t->tx.io = (struct sock_io){.iov = t->tx.iov, .iov_count = f.count, .bytes = f.bytes};
	t->tx.io.op.done = tx_done;
	t->tx.busy = true;
	t->ops++;
	t->sent_ns = loop_now_ns(t->conn.loop);
	WIRE_COUNT(sends, 1);
	sock_send(t->sock, &t->tx.io);
	tcp_watch(t);
}

static void tx_soon_done(struct loop_op *op, int res)
{
	struct tcp *t = container_of(op, struct tcp, tx.soon);

	must(res == 0 && t->tx.soon_flying);
	t->tx.soon_flying = false;
	tcp_op_back(t);
	if (tcp_is_over(t))
		return;
	tx_start(t);
	if (t->pausing && !t->tx.busy)
		tcp_kick(t);
}

/* Behind what this turn has still to do, so that all of its answers go in one send. */
static void tx_soon(struct tcp *t)
{
	if (t->tx.busy || t->tx.soon_flying)
		return;
	t->tx.soon_flying = true;
	t->ops++;
	t->tx.soon.done = tx_soon_done;
	loop_soon(t->conn.loop, &t->tx.soon, 0);
}

void tcp_send(struct tcp *t, struct tcp_out *out, struct nv_pdu_head *head)
{
	uint8_t *after = (uint8_t *)head + head->hlen;

	must(!list_linked(&out->link) && tcp_alive(t));
	out->head = head;
	out->head_bytes = head->hlen;
	out->pad_bytes = nv_pdu_pad_bytes(head);
	out->tail_bytes = (head->flags & NV_PDU_DDGST) != 0 ? NV_PDU_DIGEST_BYTES : 0;
	out->handed = 0;
	out->crc = 0;
	out->flying = false;
	if ((head->flags & NV_PDU_HDGST) != 0) {
		le32 crc = le32_of(crc32c(head, head->hlen));

		memcpy(after, crc.b, sizeof(crc));
		out->head_bytes += (uint8_t)sizeof(crc);
	}
	must(out_bytes(out) == le32_get(head->plen));
#ifdef KVOF_PLANT_WIRE_BATCH_CROSSED
	list_push_front(&t->tx.queue, &out->link);
#else
	list_push_back(&t->tx.queue, &out->link);
#endif
#ifdef KVOF_PLANT_WIRE_TURN_IN_PIECES
	tx_start(t);
#else
	tx_soon(t);
#endif
}

bool tcp_unsend(struct tcp *t, struct tcp_out *out)
{
	if (!list_linked(&out->link) || out->handed > 0)
		return false;
	must(t->state != TCP_CLOSED);
	list_remove(&out->link);
	return true;
}

/* --- receiving -------------------------------------------------------------------------------- */

void tcp_rx_into(struct tcp *t, const struct iov_at *into, uint32_t bytes, uint32_t skip)
{
	must((uint64_t)skip + bytes <= t->rx.shape.data_bytes);
	t->rx.into = *into;
	t->rx.into_bytes = bytes;
	t->rx.skip = skip;
}

void tcp_rx_drop(struct tcp *t)
{
	t->rx.drop = tcp_rx_is_direct(t);
	if (t->rx.drop)
		return;
	t->rx.into_bytes = 0;
	tcp_kick(t);
}

void tcp_rx_go(struct tcp *t)
{
	t->rx.held = false;
	if (!t->rx.running)
		tcp_kick(t);
}

static uint32_t rx_have(const struct tcp_rx *rx)
{
	must(rx->from <= rx->to && rx->to <= rx->buf_bytes);
	return rx->to - rx->from;
}

/* Bytes of a direct receive: data first, then what follows it, in the buffer. */
static void rx_landed(struct tcp *t, uint32_t bytes)
{
	struct tcp_rx *rx = &t->rx;
	uint32_t data = (uint32_t)bytes_min(bytes, rx->direct_bytes), left = data;

	must(rx->state == RX_DATA && data <= rx->into_bytes && rx->from == rx->to);
	rx->from = 0;
	rx->to = bytes - data;
	must(rx->to <= rx->buf_bytes);
	for (unsigned i = 0; left > 0 && rx->shape.data_digest_bytes > 0; i++) {
		uint32_t piece = (uint32_t)bytes_min(left, rx->iov[i].iov_len);

		rx->crc = crc32c_more(rx->crc, rx->iov[i].iov_base, piece);
		left -= piece;
	}
	iov_at_skip(&rx->into, data);
	rx->into_bytes -= data;
	rx->left -= data;
}

/* A receive came back full: a peer that sends small PDUs faster than we ask for them costs one
 * receive for a few of them. Large data ends this, since it would be copied out of the buffer. */
static void rx_widen(struct tcp_rx *rx)
{
	if (rx->buf_bytes < TCP_RX_BUSY_BYTES || rx->offer >= TCP_RX_FULL_BYTES)
		return;
	rx->offer *= 2;
	if (rx->buf_wanted < rx->offer)
		rx->buf_wanted = rx->offer;
}

/* `bytes` came into the buffer. One that has been larger than needed for long is given back. */
static void rx_calm(struct tcp_rx *rx, uint64_t bytes)
{
	if (rx->buf_bytes <= TCP_RX_BUSY_BYTES || bytes >= TCP_RX_BUSY_BYTES)
		rx->calm = 0;
#ifndef KVOF_PLANT_WIRE_WIDE_FOR_EVER
	else if (++rx->calm == TCP_RX_CALM)
		rx->offer = rx->buf_wanted = TCP_RX_BUSY_BYTES;
#endif
}

static void rx_done(struct loop_op *op, int res)
{
	struct tcp *t = container_of(op, struct tcp, rx.io.op);
	struct tcp_rx *rx = &t->rx;

	rx->flying = false;
	tcp_op_back(t);
	if (res <= 0 || (rx->io.all && (uint64_t)res < rx->io.bytes))
		tcp_end(t, -ECONNRESET);
	if (tcp_is_over(t))
		return;
	WIRE_COUNT(bytes_in, (uint64_t)res);
	if ((uint64_t)res == rx->io.bytes && !rx->io.all)
		rx_widen(rx);
	if (!rx->io.all)
		rx_calm(rx, (uint64_t)res - bytes_min((uint64_t)res,
						      rx->direct ? rx->direct_bytes : 0));
	if (rx->direct)
		rx_landed(t, (uint32_t)res);
	else
		rx->to += (uint32_t)res;
	if (rx->drop)
		tcp_rx_drop(t);
	rx_run(t);
}

static void rx_receive(struct tcp *t, struct sock_io io, bool direct)
{
	struct tcp_rx *rx = &t->rx;

	must(!rx->flying && io.bytes > 0);
	rx->io = io;
	rx->io.iov = rx->iov;
	rx->io.op.done = rx_done;
	rx->direct = direct;
	rx->flying = true;
	t->ops++;
	WIRE_COUNT(receives, 1);
	sock_recv(t->sock, &rx->io);
}

static uint32_t rx_wide_bytes(uint32_t buf_bytes)
{
	return buf_bytes > TCP_RX_BUSY_BYTES ? buf_bytes : 0;
}

/* All wide buffers of the process together are bounded, however many connections there are. */
static bool rx_wide_take(uint32_t buf_bytes)
{
	uint64_t bytes = rx_wide_bytes(buf_bytes);

	WIRE_COUNT(wide_bytes, bytes);
#ifdef KVOF_PLANT_WIRE_WIDE_UNBOUNDED
	return true;
#endif
	if (__atomic_load_n(&wire_count.wide_bytes, __ATOMIC_RELAXED) <= TCP_RX_WIDE_BYTES)
		return true;
	WIRE_COUNT(wide_bytes, -bytes);
	return bytes == 0;
}

static void rx_wide_give(uint32_t buf_bytes)
{
	WIRE_COUNT(wide_bytes, -(uint64_t)rx_wide_bytes(buf_bytes));
}

/* Where memory is short the buffer stays as it is. What it holds fits into any size. */
static void rx_resize(struct tcp_rx *rx)
{
	uint32_t have = rx_have(rx);
	uint8_t *buf = NULL;

	must(!rx->flying && rx->buf != rx->first && have < rx->buf_wanted);
	if (rx_wide_take(rx->buf_wanted)) {
		buf = malloc(rx->buf_wanted);
		if (buf == NULL)
			rx_wide_give(rx->buf_wanted);
	}
	rx->calm = 0;
	if (buf == NULL) {
		rx->buf_wanted = rx->buf_bytes;
		if (rx->buf_bytes >= TCP_RX_BUSY_BYTES)
			rx->offer = rx->buf_bytes;
		return;
	}
#ifdef KVOF_PLANT_WIRE_WIDE_MIXED
	memcpy(buf, rx->buf, have);
#else
	memcpy(buf, rx->buf + rx->from, have);
#endif
	rx_wide_give(rx->buf_bytes);
	free(rx->buf);
	rx->buf = buf;
	rx->buf_bytes = rx->buf_wanted;
	rx->from = 0;
	rx->to = have;
}

/* More bytes into the buffer, behind those that are there. */
static void rx_more(struct tcp *t)
{
	struct tcp_rx *rx = &t->rx;
	uint32_t have = rx_have(rx);
	uint64_t room;

	if (rx->buf_wanted != rx->buf_bytes && rx->buf != rx->first)
		rx_resize(rx);
	if (rx->from > 0) {
		memmove(rx->buf, rx->buf + rx->from, have);
		rx->from = 0;
		rx->to = have;
	}
	must(rx->to < rx->buf_bytes);
	room = bytes_min(rx->buf_bytes - rx->to, rx->offer);
	rx->iov[0] = (struct iovec){rx->buf + rx->to, room};
	rx_receive(t, (struct sock_io){.iov_count = 1, .bytes = room}, false);
}

/* The next bytes of data straight to where they belong. */
static void rx_direct(struct tcp *t)
{
	struct tcp_rx *rx = &t->rx;
	struct iov_at at = rx->into;
	uint64_t most = bytes_min(rx->into_bytes, TCP_STEP_BYTES), bytes = 0;
	unsigned n = 0;

	while (bytes < most && n < TCP_RX_IOV) {
		uint8_t *base;
		size_t piece = iov_at_piece(&at, &base);

		must(piece > 0);
		piece = bytes_min(piece, most - bytes);
		rx->iov[n++] = (struct iovec){base, piece};
		iov_at_skip(&at, piece);
		bytes += piece;
	}
	rx->direct_bytes = (uint32_t)bytes;
	if (bytes == rx->left && bytes <= TCP_RX_TAIL_BYTES) {
		uint64_t room;

		must(rx_have(rx) == 0);
		if (rx->buf_wanted != rx->buf_bytes)
			rx_resize(rx);
		room = bytes_min(rx->buf_bytes, rx->offer);
		rx->iov[n++] = (struct iovec){rx->buf, room};
		rx_receive(t, (struct sock_io){.iov_count = n, .bytes = bytes + room}, true);
		return;
	}
	rx_receive(t, (struct sock_io){.iov_count = n, .bytes = bytes, .all = true}, true);
}

/* Uses up data that is in the buffer; false: more has to come first. */
static bool rx_data(struct tcp *t)
{
	struct tcp_rx *rx = &t->rx;

	while (rx->left > 0) {
		uint32_t n = (uint32_t)bytes_min(rx_have(rx), rx->left);
		const uint8_t *from = rx->buf + rx->from;

		if (rx->skip > 0)
			n = (uint32_t)bytes_min(n, rx->skip);
		else if (rx->into_bytes > 0)
			n = (uint32_t)bytes_min(n, rx->into_bytes);
		if (n == 0) {
			if (rx->skip == 0 && rx->into_bytes > 0)
				rx_direct(t);
			else
				rx_more(t);
			return false;
		}
		if (rx->shape.data_digest_bytes > 0)
			rx->crc = crc32c_more(rx->crc, from, n);
		if (rx->skip > 0) {
			rx->skip -= n;
		} else if (rx->into_bytes > 0) {
			iov_at_put(&rx->into, from, n);
			rx->into_bytes -= n;
		}
		rx->from += n;
		rx->left -= n;
	}
	return true;
}

static bool rx_pad(struct tcp *t)
{
	struct tcp_rx *rx = &t->rx;
	uint32_t n = (uint32_t)bytes_min(rx_have(rx), rx->left);

	rx->from += n;
	rx->left -= n;
	if (rx->left > 0) {
		rx_more(t);
		return false;
	}
	rx->left = rx->shape.data_bytes;
	rx->state = RX_DATA;
	return true;
}

static void rx_data_over(struct tcp *t, bool bad)
{
	t->rx.digest_bad = bad;
	t->rx.state = RX_HEAD;
	if (bad)
		WIRE_COUNT(data_digest_bad, 1);
	if (t->state == TCP_OPEN)
		t->end->data_end(t);
}

static bool rx_digest(struct tcp *t)
{
	struct tcp_rx *rx = &t->rx;
	le32 got;

	if (rx_have(rx) < NV_PDU_DIGEST_BYTES) {
		rx_more(t);
		return false;
	}
	memcpy(got.b, rx->buf + rx->from, sizeof(got));
	rx->from += NV_PDU_DIGEST_BYTES;
	rx_data_over(t, le32_get(got) != rx->crc);
	return true;
}

/* A TermReq of the peer: it has given up; nothing is answered. */
static void rx_termreq(struct tcp *t)
{
	struct nv_pdu_termreq pdu;

	memcpy(&pdu, t->rx.buf + t->rx.from, sizeof(pdu));
	WIRE_COUNT(term_received, 1);
	log_info("wire %s: peer ends the connection: FES %u, FEI %u", t->peer, le16_get(pdu.fes),
		 le32_get(pdu.fei));
	tcp_end(t, -EPROTO);
}

static bool rx_header_digest_ok(struct tcp *t)
{
	struct tcp_rx *rx = &t->rx;
	const uint8_t *head = rx->buf + rx->from;
	struct nv_pdu_fault fault;
	le32 got;

	if (rx->shape.header_digest_bytes == 0)
		return true;
	memcpy(got.b, head + rx->shape.header_bytes, sizeof(got));
	if (le32_get(got) == crc32c(head, rx->shape.header_bytes))
		return true;
	WIRE_COUNT(header_digest_bad, 1);
	fault = (struct nv_pdu_fault){NV_FES_HEADER_DIGEST, le32_get(got), false,
				      "header digest is wrong"};
	tcp_fault(t, &fault);
	return false;
}

static bool rx_head(struct tcp *t)
{
	struct tcp_rx *rx = &t->rx;
	struct nv_pdu_fault fault;
	const struct nv_pdu_head *head;

	if (rx_have(rx) < sizeof(*head)) {
		rx_more(t);
		return false;
	}
	head = (const struct nv_pdu_head *)(rx->buf + rx->from);
	if (!nv_pdu_check(&t->rules, head, &rx->shape, &fault)) {
		tcp_fault(t, &fault);
		return false;
	}
	if (rx->shape.data_bytes > TCP_RX_BUSY_BYTES)
		rx->offer = TCP_RX_BUSY_BYTES;
	rx->state = RX_BODY;
	return true;
}

static bool rx_body(struct tcp *t)
{
	struct tcp_rx *rx = &t->rx;
	uint32_t bare = rx->shape.header_bytes + (uint32_t)rx->shape.header_digest_bytes;
	const struct nv_pdu_head *head;

	if (rx_have(rx) < bare) {
		rx_more(t);
		return false;
	}
	head = (const struct nv_pdu_head *)(rx->buf + rx->from);
	if (rx->shape.type == NV_PDU_H2C_TERMREQ || rx->shape.type == NV_PDU_C2H_TERMREQ) {
		rx_termreq(t);
		return false;
	}
	if (!rx_header_digest_ok(t))
		return false;
	rx->skip = rx->into_bytes = 0;
	rx->crc = 0;
	if (!t->end->header(t, head)) {
		rx->held = true;
		return false;
	}
	if (t->state != TCP_OPEN)
		return false;
	rx->from += bare;
	rx->left = rx->shape.pad_bytes;
	rx->state = rx->shape.data_bytes > 0 ? RX_PAD : RX_HEAD;
	return true;
}

static bool rx_step(struct tcp *t)
{
	switch (t->rx.state) {
	case RX_HEAD:
		return rx_head(t);
	case RX_BODY:
		return rx_body(t);
	case RX_PAD:
		return rx_pad(t);
	case RX_DATA:
		if (!rx_data(t))
			return false;
		if (t->rx.shape.data_digest_bytes > 0)
			t->rx.state = RX_DIGEST;
		else
			rx_data_over(t, false);
		return true;
	default:
		return rx_digest(t);
	}
}

/* Goes as far as the bytes at hand lead; leaves with a receive in flight, held, or ended. */
static void rx_run(struct tcp *t)
{
	struct tcp_rx *rx = &t->rx;

	must(!rx->running);
	rx->running = true;
	t->ops++;                     /* what is called may end the connection; not while in hand */
	while (tcp_alive(t) && !rx->flying && !rx->held && !t->pausing && rx_step(t))
		;
	if (t->state == TCP_PARTING && !rx->flying) {
		rx->from = rx->to = 0;
		rx_more(t);
	}
	rx->running = false;
	tcp_op_back(t);
	(void)tcp_is_over(t);
}

/* --- the transport ---------------------------------------------------------------------------- */

static const char *tcp_digests(const struct wire_conn *conn)
{
	static const char *const names[] = {"", "hdgst", "ddgst", "hdgst+ddgst"};
	const struct tcp *t = tcp_of(conn);

	return names[(t->rules.header_digest ? 1 : 0) | (t->rules.data_digest ? 2 : 0)];
}

static const char *tcp_peer(const struct wire_conn *conn)
{
	return tcp_of(conn)->peer;
}

static void tcp_drop(struct wire_conn *conn)
{
	struct tcp *t = tcp_of(conn);

	t->owner_gone = true;
	if (t->state == TCP_CLOSED)
		tcp_maybe_free(t);
	else
		tcp_end(t, -ETIMEDOUT);
}

static bool tcp_waits_for_peer(const struct wire_conn *conn)
{
	return tcp_waits_since_ns(tcp_of(conn)) != UINT64_MAX;
}

static uint64_t tcp_moved_bytes(const struct wire_conn *conn)
{
	const struct tcp *t = tcp_of(conn);

	return t->sock != NULL ? sock_moved_bytes(t->sock) : 0;
}

static void tcp_close(struct wire_conn *conn)
{
	tcp_owner_close(tcp_of(conn));
}

const struct wire_ops wire_tcp = {
	.name = "tcp",
	.listen = tcp_listen,
	.listener_port = tcp_listener_port,
	.listener_close = tcp_listener_close,
	.connect = tcp_connect,
	.depth_set = tcp_ctrl_depth_set,
	.pull = tcp_ctrl_pull,
	.push = tcp_ctrl_push,
	.respond = tcp_ctrl_respond,
	.submit = tcp_host_submit,
	.inline_set = tcp_host_inline_set,
	.withdraw = tcp_host_withdraw,
	.cid_free = tcp_host_cid_free,
	.peer = tcp_peer,
	.digests = tcp_digests,
	.close = tcp_close,
	.drop = tcp_drop,
	.waits_for_peer = tcp_waits_for_peer,
	.moved_bytes = tcp_moved_bytes,
	.pause = tcp_pause,
	.resume = tcp_resume,
	.leave = tcp_leave,
	.join = tcp_join,
};
