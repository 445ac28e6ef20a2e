/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller's end of NVMe/TCP [TCP 1.0].
 *
 *	peer                       here                             owner
 *	ICReq               ->     checked; ICResp; OPEN      ->    accepted()
 *	CapsuleCmd          ->     a free slot; held if data  ->    command()
 *	                    <-     R2T, tag = slot + 1        <-    wire_pull(), data not in it
 *	H2CData ...         ->     straight into its buffers  ->    done()
 *	                    <-     C2HData                    <-    wire_push()
 *	                    <-     CapsuleResp                <-    wire_respond()
 *
 * One R2T at a time for a command, for all of its data; the host cuts it by MAXH2CDATA. A data
 * digest that is wrong is no end: the rest of the command's data is drained, then done(-EBADMSG),
 * once. The SUCCESS flag is not used, since a Retrieve needs its DW0.
 *
 * A slot is given out when a capsule arrives, is the owner's until wire_respond() and the done() of
 * its push, and is free again when its CapsuleResp is in the socket too. A host that keeps to its
 * queue's depth may send the next command before we have noticed that: then reading waits.
 *
 * Who connects and says nothing is dropped at the handshake deadline, or earlier, oldest first,
 * when more than TCP_GREETING_MAX do so at once: a new host finds room at any time.
 *
 * Invariants: t->out counts slots that the owner has; owned <= slots; at most one of pulling and
 * pushing; granted implies pulling. Thread: the loop of the connection.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/tcp.h"

#define TCP_GREETING_MAX 1024u         /* a listener's connections before ICReq has come */

struct ctrl_cmd {
	struct wire_cmd pub;
	struct list_link idle;         /* on ctrl->idle while free */
	bool owned;                    /* not answered yet */
	bool given;                    /* the owner is done with it: not counted in t->out */
	bool inline_waits;             /* its in-capsule data is next in the stream */
	bool pulling, pushing, granted, digest_bad;
	bool soon_flying;
	int soon_res;
	struct nv_transfer grant;
	struct iov_at into;
	uint64_t moved_ns;             /* pulling: when its data moved last */
	void (*pull_done)(struct wire_cmd *cmd, int res);
	void (*push_done)(struct wire_cmd *cmd, int res);
	struct loop_op soon;           /* answers that must not come from within the call */
	struct tcp_out r2t, data, resp;
	struct { struct nv_pdu_r2t pdu; uint8_t digest[NV_PDU_DIGEST_BYTES]; } r2t_head;
	struct { struct nv_pdu_data pdu; uint8_t digest[NV_PDU_DIGEST_BYTES]; } data_head;
	struct { struct nv_pdu_resp pdu; uint8_t digest[NV_PDU_DIGEST_BYTES]; } resp_head;
};

struct ctrl_chunk {                    /* slots bought together */
	struct ctrl_chunk *next;
	struct ctrl_cmd cmd[];
};

struct tcp_listener;

struct tcp_ctrl {
	struct tcp t;
	struct wire_opts opts;
	const struct wire_ctrl_events *events;
	struct tcp_listener *listener; /* until accepted() */
	struct list_link greeting;     /* on the listener's list until accepted() */
	bool accepted;
	bool slot_waits;               /* a capsule waits for a slot */
	struct ctrl_cmd **slot;        /* [slot_count] */
	struct ctrl_chunk *chunks;
	unsigned slot_count, depth;
	unsigned owned, pulls;
	struct list_link idle;
	struct ctrl_cmd *data_cmd;     /* whose data is being received; NULL: it is dropped */
	struct nv_pdu_icresp icresp;
	struct tcp_out greet;
};

_Static_assert(sizeof(struct tcp_ctrl) <= 3 * KiB,
	       "a silent connection costs at most 4 KiB, its socket included");
_Static_assert(sizeof(struct tcp_ctrl) + TCP_RX_BYTES + 8 * sizeof(struct ctrl_cmd) <= 12 * KiB,
	       "before Connect, with up to 8 slots, at most 16 KiB");

struct tcp_listener {
	struct wire_listener base;
	struct loop *loop;
	struct sock_listener *sock;
	struct wire_opts opts;
	const struct wire_ctrl_events *events;
	void *arg;
	struct list_link greeting;     /* oldest first */
	unsigned greeting_count;
};

static struct tcp_ctrl *ctrl_of(struct tcp *t)
{
	must(t->rules.controller);
	return container_of(t, struct tcp_ctrl, t);
}

/* The listener has it no longer: it is accepted, or gone. */
static void greeting_leave(struct tcp_ctrl *ctrl)
{
	if (!list_linked(&ctrl->greeting))
		return;
	must(ctrl->listener != NULL && ctrl->listener->greeting_count > 0);
	ctrl->listener->greeting_count--;
	list_remove(&ctrl->greeting);
}

static struct ctrl_cmd *cmd_of(struct wire_cmd *cmd)
{
	return container_of(cmd, struct ctrl_cmd, pub);
}

static struct tcp_ctrl *cmd_ctrl(const struct ctrl_cmd *c)
{
	return ctrl_of(tcp_of(c->pub.conn));
}

/* --- slots ------------------------------------------------------------------------------------ */

/* The owner may be done with it, and its PDUs may be out: then it is free. May free all. */
static void cmd_rest(struct ctrl_cmd *c)
{
	struct tcp_ctrl *ctrl = cmd_ctrl(c);

	if (c->owned || c->pushing || c->soon_flying)
		return;
	if (!c->given) {
		c->given = true;
		must(ctrl->t.out > 0);
		ctrl->t.out--;
	}
	if (ctrl->t.state == TCP_CLOSED) {
		tcp_maybe_free(&ctrl->t);
		return;
	}
	if (tcp_out_busy(&c->r2t) || tcp_out_busy(&c->data) || tcp_out_busy(&c->resp))
		return;
	if (c->pub.slot < ctrl->depth && !list_linked(&c->idle))
		list_push_back(&ctrl->idle, &c->idle);
	if (ctrl->slot_waits) {
		ctrl->slot_waits = false;
		tcp_rx_go(&ctrl->t);
	}
}

int tcp_ctrl_depth_set(struct wire_conn *conn, uint16_t depth)
{
	struct tcp_ctrl *ctrl = ctrl_of(tcp_of(conn));
	unsigned more = depth > ctrl->slot_count ? depth - ctrl->slot_count : 0;

	if (more > 0) {
		struct ctrl_chunk *chunk = calloc(1, sizeof(*chunk) + more * sizeof(chunk->cmd[0]));
		struct ctrl_cmd **slot = realloc(ctrl->slot, depth * sizeof(struct ctrl_cmd *));

		if (slot != NULL)
			ctrl->slot = slot;
		if (chunk == NULL || slot == NULL) {
			free(chunk);
			return -ENOMEM;
		}
		chunk->next = ctrl->chunks;
		ctrl->chunks = chunk;
		for (unsigned i = 0; i < more; i++) {
			struct ctrl_cmd *c = &chunk->cmd[i];

			c->pub.conn = conn;
			c->pub.slot = (uint16_t)(ctrl->slot_count + i);
			c->given = true;
			ctrl->slot[ctrl->slot_count + i] = c;
			list_push_back(&ctrl->idle, &c->idle);
		}
		ctrl->slot_count = depth;
	}
	if (ctrl->accepted)           /* the owner sets it when it has accepted Connect */
		tcp_rx_widen(&ctrl->t);
	ctrl->depth = depth;
	LIST_FOR_EACH_SAFE(link, &ctrl->idle)
		if (container_of(link, struct ctrl_cmd, idle)->pub.slot >= depth)
			list_remove(link);
	return 0;
}

/* --- answers from the loop -------------------------------------------------------------------- */

static void cmd_soon_done(struct loop_op *op, int res)
{
	struct ctrl_cmd *c = container_of(op, struct ctrl_cmd, soon);
	struct tcp *t = &cmd_ctrl(c)->t;
	bool was = t->delivering;

	(void)res;
	t->delivering = true;         /* the owner may close within done(); not while in hand */
	if (c->pulling) {
		c->pulling = false;
		c->soon_flying = false;
		cmd_ctrl(c)->pulls--;
		c->pull_done(&c->pub, c->soon_res);
	} else {
		must(c->pushing);
		c->push_done(&c->pub, c->soon_res);
		c->pushing = false;
		c->soon_flying = false;
	}
	t->delivering = was;
	cmd_rest(c);
}

static void cmd_soon(struct ctrl_cmd *c, int res)
{
	must(!c->soon_flying);
	c->soon_flying = true;
	c->soon_res = res;
	c->soon.done = cmd_soon_done;
	loop_soon(c->pub.conn->loop, &c->soon, 0);
}

static void pull_end(struct ctrl_cmd *c, int res)
{
	must(c->pulling && !c->soon_flying);
	c->pulling = c->granted = false;
	cmd_ctrl(c)->pulls--;
	c->pull_done(&c->pub, res);
}

static void push_sent(struct tcp *t, struct tcp_out *out, int res)
{
	struct ctrl_cmd *c = container_of(out, struct ctrl_cmd, data);

	(void)t;
	must(c->pushing);
	c->push_done(&c->pub, res);
	c->pushing = false;
	cmd_rest(c);
}

static void r2t_sent(struct tcp *t, struct tcp_out *out, int res)
{
	(void)t;
	(void)res;
	cmd_rest(container_of(out, struct ctrl_cmd, r2t));
}

static void resp_sent(struct tcp *t, struct tcp_out *out, int res)
{
	(void)t;
	(void)res;
	cmd_rest(container_of(out, struct ctrl_cmd, resp));
}

/* --- calls of the owner ----------------------------------------------------------------------- */

/* In-capsule data that nobody wants is dropped as it comes. */
static void inline_drop(struct ctrl_cmd *c)
{
	struct tcp_ctrl *ctrl = cmd_ctrl(c);

	if (!c->inline_waits)
		return;
	must(ctrl->data_cmd == c);
	c->inline_waits = false;
	ctrl->data_cmd = NULL;
	tcp_rx_go(&ctrl->t);
}

static void pull_inline(struct ctrl_cmd *c, uint32_t bytes)
{
	struct tcp *t = &cmd_ctrl(c)->t;
	uint64_t offset = le64_get(c->pub.sqe.sgl.offset);

	must(c->inline_waits && offset <= c->pub.inline_bytes);
	must(bytes <= c->pub.inline_bytes - offset);
	c->inline_waits = false;
	tcp_rx_into(t, &c->into, bytes, (uint32_t)offset);
	tcp_rx_go(t);
}

static void pull_grant(struct ctrl_cmd *c, uint32_t bytes)
{
	struct tcp_ctrl *ctrl = cmd_ctrl(c);
	struct nv_data_span span = {
		.cid = le16_get(c->pub.sqe.cid),
		.ttag = (uint16_t)(c->pub.slot + 1),
		.bytes = bytes,
	};

	inline_drop(c);
	c->grant = (struct nv_transfer){
		.cid = span.cid,
		.ttag = span.ttag,
		.end = bytes,
		.pdu_data_max = ctrl->opts.h2c_bytes_max,
	};
	c->granted = true;
	c->r2t_head.pdu = nv_r2t_build(&ctrl->t.sizes, &span);
	c->r2t = (struct tcp_out){.sent = r2t_sent};
	tcp_send(&ctrl->t, &c->r2t, &c->r2t_head.pdu.head);
}

void tcp_ctrl_pull(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count,
		   uint64_t bytes, void (*done)(struct wire_cmd *cmd, int res))
{
	struct ctrl_cmd *c = cmd_of(cmd);
	struct tcp_ctrl *ctrl = cmd_ctrl(c);

	must(c->owned && !c->pulling && !c->pushing);
	must(iov_bytes(iov, iov_count) >= bytes);
	c->pulling = true;
	c->digest_bad = false;
	c->pull_done = done;
	c->into = iov_at_start(iov, iov_count);
	c->moved_ns = loop_now_ns(ctrl->t.conn.loop);
#ifdef KVOF_PLANT_WIRE_HOARD_ENDURED
	c->moved_ns = UINT64_MAX;
#endif
	ctrl->pulls++;
	if (ctrl->t.state != TCP_OPEN) {
		cmd_soon(c, -ECONNRESET);
	} else if (bytes == 0) {
		inline_drop(c);
		cmd_soon(c, 0);
	} else if (cmd->sqe.sgl.kind == NV_SGL_IN_CAPSULE) {
		pull_inline(c, (uint32_t)bytes);
	} else {
		pull_grant(c, (uint32_t)bytes);
	}
	tcp_watch(&ctrl->t);
}

void tcp_ctrl_push(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count,
		   uint64_t bytes, void (*done)(struct wire_cmd *cmd, int res))
{
	struct ctrl_cmd *c = cmd_of(cmd);
	struct tcp_ctrl *ctrl = cmd_ctrl(c);
	struct nv_data_span span = {.cid = le16_get(cmd->sqe.cid), .bytes = (uint32_t)bytes,
				    .last = true};

	must(c->owned && !c->pulling && !c->pushing);
	must(iov_bytes(iov, iov_count) >= bytes);
	c->pushing = true;
	c->push_done = done;
	if (ctrl->t.state != TCP_OPEN || bytes == 0) {
		cmd_soon(c, bytes == 0 ? 0 : -ECONNRESET);
		return;
	}
	c->data_head.pdu = nv_c2h_data_build(&ctrl->t.sizes, &span);
	c->data = (struct tcp_out){.data = iov_at_start(iov, iov_count),
				   .data_bytes = (uint32_t)bytes, .sent = push_sent};
	tcp_send(&ctrl->t, &c->data, &c->data_head.pdu.head);
}

void tcp_ctrl_respond(struct wire_cmd *cmd, const struct nv_cqe *cqe)
{
	struct ctrl_cmd *c = cmd_of(cmd);
	struct tcp_ctrl *ctrl = cmd_ctrl(c);

	must(c->owned && !c->pulling);
	inline_drop(c);
	c->owned = false;
	must(ctrl->owned > 0);
	ctrl->owned--;
	if (ctrl->t.state == TCP_OPEN) {
		c->resp_head.pdu = nv_resp_build(&ctrl->t.sizes, cqe);
		c->resp_head.pdu.cqe.cid = cmd->sqe.cid;
		c->resp = (struct tcp_out){.sent = resp_sent};
		tcp_send(&ctrl->t, &c->resp, &c->resp_head.pdu.head);
	}
	cmd_rest(c);
}

/* --- what arrives ----------------------------------------------------------------------------- */

static void ctrl_greet(struct tcp_ctrl *ctrl, const struct nv_pdu_icreq *icreq)
{
	struct tcp *t = &ctrl->t;
	struct nv_pdu_fault fault;
	uint8_t agreed = icreq->digest & (uint8_t)((ctrl->opts.header_digest ? 1 : 0) |
						   (ctrl->opts.data_digest ? 2 : 0));

	if (!nv_icreq_check(icreq, &fault)) {
		tcp_fault(t, &fault);
		return;
	}
	t->sizes = (struct nv_pdu_sizes){agreed & 1, agreed & 2, icreq->hpda};
	t->rules.header_digest = agreed & 1;
	t->rules.data_digest = agreed & 2;
	ctrl->icresp = nv_icresp_build(0, agreed, ctrl->opts.h2c_bytes_max);
	tcp_send(t, &ctrl->greet, &ctrl->icresp.head);
	if (tcp_open(t) != 0)
		return;
	if (tcp_ctrl_depth_set(&t->conn, ctrl->opts.depth_max) != 0) {
		tcp_end(t, -ENOMEM);
		return;
	}
	greeting_leave(ctrl);
	ctrl->accepted = true;
	WIRE_COUNT(accepted, 1);
	ctrl->events->accepted(ctrl->listener->arg, &t->conn);
	ctrl->listener = NULL;
}

static bool ctrl_command(struct tcp_ctrl *ctrl, const struct nv_pdu_cmd *pdu)
{
	struct tcp *t = &ctrl->t;
	struct list_link *link = list_pop_front(&ctrl->idle);
	struct ctrl_cmd *c;

	if (link == NULL && ctrl->owned >= ctrl->depth) {
		struct nv_pdu_fault fault = {NV_FES_LIMIT_EXCEEDED, 0, false,
					     "more commands than the queue is deep"};

		tcp_fault(t, &fault);
		return true;
	}
	if (link == NULL) {
		ctrl->slot_waits = true;      /* one is on its way out */
		return false;
	}
	c = container_of(link, struct ctrl_cmd, idle);
	must(!c->owned && !c->pulling && !c->pushing && c->given);
	c->pub.sqe = pdu->sqe;
	c->pub.inline_bytes = t->rx.shape.data_bytes;
	c->pub.owner = NULL;
	c->owned = true;
	c->given = false;
	c->granted = false;
	t->out++;
	ctrl->owned++;
	ctrl->data_cmd = NULL;
	if (c->pub.inline_bytes > 0) {
		c->inline_waits = true;
		ctrl->data_cmd = c;
		t->rx.held = true;
	}
	ctrl->events->command(t->conn.arg, &c->pub);
	return true;
}

static void ctrl_h2c_data(struct tcp_ctrl *ctrl, const struct nv_pdu_data *pdu)
{
	struct tcp *t = &ctrl->t;
	uint16_t ttag = le16_get(pdu->ttag);
	struct ctrl_cmd *c = ttag >= 1 && ttag <= ctrl->slot_count ? ctrl->slot[ttag - 1] : NULL;
	struct nv_pdu_fault fault;

	if (c != NULL && !c->granted)
		c = NULL;
	if (!nv_h2c_data_check(pdu, &t->rx.shape, c != NULL ? &c->grant : NULL, &fault)) {
		tcp_fault(t, &fault);
		return;
	}
	must(c->pulling);
	ctrl->data_cmd = c;
	tcp_rx_into(t, &c->into, t->rx.shape.data_bytes, 0);
}

static bool ctrl_header(struct tcp *t, const struct nv_pdu_head *head)
{
	struct tcp_ctrl *ctrl = ctrl_of(t);

	switch (head->type) {
	case NV_PDU_ICREQ:
		ctrl_greet(ctrl, (const struct nv_pdu_icreq *)head);
		return true;
	case NV_PDU_CAPSULE_CMD:
		return ctrl_command(ctrl, (const struct nv_pdu_cmd *)head);
	default:
		must(head->type == NV_PDU_H2C_DATA);
		ctrl_h2c_data(ctrl, (const struct nv_pdu_data *)head);
		return true;
	}
}

static void ctrl_data_end(struct tcp *t)
{
	struct tcp_ctrl *ctrl = ctrl_of(t);
	struct ctrl_cmd *c = ctrl->data_cmd;

	ctrl->data_cmd = NULL;
	if (c == NULL)
		return;
	must(c->pulling && t->rx.into_bytes == 0);
#ifdef KVOF_PLANT_WIRE_DIGEST_FORGIVEN
	c->digest_bad = false;         /* the last PDU alone decides */
#endif
	c->digest_bad |= t->rx.digest_bad;
	if (c->granted) {
		c->into = t->rx.into;
		c->grant.next += t->rx.shape.data_bytes;
		must(c->grant.next <= c->grant.end);
		c->moved_ns = loop_now_ns(t->conn.loop);
		if (c->grant.next < c->grant.end)
			return;
	}
	pull_end(c, c->digest_bad ? -EBADMSG : 0);
}

/* --- ending ----------------------------------------------------------------------------------- */

static uint64_t ctrl_waits_since_ns(const struct tcp *t)
{
	const struct tcp_ctrl *ctrl = wire_owner_of(t, struct tcp_ctrl, t);
	uint64_t since_ns = UINT64_MAX;

	for (unsigned i = 0; ctrl->pulls > 0 && i < ctrl->slot_count; i++)
		if (ctrl->slot[i]->pulling)
			since_ns = bytes_min(since_ns, ctrl->slot[i]->moved_ns);
	return since_ns;
}

static void ctrl_kicked(struct tcp *t)
{
	(void)t;
}

static void ctrl_ended(struct tcp *t)
{
	struct tcp_ctrl *ctrl = ctrl_of(t);

	ctrl->data_cmd = NULL;
	tcp_pause_end(t);
	if (!ctrl->accepted) {
		greeting_leave(ctrl);
		t->owner_gone = true;
		return;
	}
	for (unsigned i = 0; i < ctrl->slot_count; i++) {
		struct ctrl_cmd *c = ctrl->slot[i];

		c->inline_waits = false;
		if (c->soon_flying)
			continue;
		if (c->pulling) {
			pull_end(c, -ECONNRESET);
		} else if (c->pushing) {
			c->push_done(&c->pub, -ECONNRESET);
			c->pushing = false;
			cmd_rest(c);
		}
	}
	if (!t->owner_gone)
		ctrl->events->closed(t->conn.arg, t->why);
}

static void ctrl_free(struct tcp *t)
{
	struct tcp_ctrl *ctrl = ctrl_of(t);

	while (ctrl->chunks != NULL) {
		struct ctrl_chunk *chunk = ctrl->chunks;

		ctrl->chunks = chunk->next;
		free(chunk);
	}
	free(ctrl->slot);
	free(ctrl);
}

static const struct tcp_end ctrl_end = {
	.header = ctrl_header,
	.data_end = ctrl_data_end,
	.kicked = ctrl_kicked,
	.waits_since_ns = ctrl_waits_since_ns,
	.ended = ctrl_ended,
	.free = ctrl_free,
};

/* --- the listener ----------------------------------------------------------------------------- */

static void greeting_drop(struct tcp_listener *l)
{
	struct tcp_ctrl *oldest = container_of(l->greeting.next, struct tcp_ctrl, greeting);

	greeting_leave(oldest);
	WIRE_COUNT(handshake_late, 1);
	tcp_end(&oldest->t, -ETIMEDOUT);
}

static void ctrl_accepted(void *arg, struct sock *sock)
{
	struct tcp_listener *l = arg;
	struct tcp_ctrl *ctrl = calloc(1, sizeof(*ctrl));

	if (ctrl == NULL) {
		sock_close(&sock);
		return;
	}
	tcp_init(&ctrl->t, l->loop, &ctrl_end, &l->opts);
	ctrl->t.rules.controller = true;
	ctrl->t.rules.capsule_data_max = l->opts.inline_bytes_max;
	ctrl->opts = l->opts;
	ctrl->events = l->events;
	ctrl->listener = l;
	list_init(&ctrl->idle);
	if (l->greeting_count == TCP_GREETING_MAX)
		greeting_drop(l);
	l->greeting_count++;
	list_push_back(&l->greeting, &ctrl->greeting);
	tcp_adopt(&ctrl->t, sock, loop_now_ns(l->loop) + l->opts.handshake_ns);
}

int tcp_listen(struct loop *loop, const struct sock_addr *addr, const struct wire_opts *opts,
	       const struct wire_ctrl_events *events, void *arg, struct wire_listener **out)
{
	struct tcp_listener *l = calloc(1, sizeof(*l));
	int rc;

	if (l == NULL)
		return -ENOMEM;
	l->base = (struct wire_listener){WIRE_LISTENER_MAGIC, &wire_tcp};
	l->loop = loop;
	l->opts = *opts;
	l->events = events;
	l->arg = arg;
	list_init(&l->greeting);
	rc = sock_listen(loop, addr, ctrl_accepted, l, &l->sock);
	if (rc != 0) {
		free(l);
		return rc;
	}
	*out = &l->base;
	return 0;
}

static struct tcp_listener *listener_of(const struct wire_listener *l)
{
	return wire_owner_of(l, struct tcp_listener, base);
}

uint16_t tcp_listener_port(const struct wire_listener *l)
{
	return sock_listener_port(listener_of(l)->sock);
}

void tcp_listener_close(struct wire_listener *base)
{
	struct tcp_listener *l = listener_of(base);

	sock_listener_close(&l->sock);
	while (!list_empty(&l->greeting)) {
		struct tcp_ctrl *ctrl = container_of(l->greeting.next, struct tcp_ctrl, greeting);

		greeting_leave(ctrl);
		ctrl->t.owner_gone = true;
		tcp_end(&ctrl->t, -ECANCELED);
	}
	l->base.magic = 0;
	free(l);
}
