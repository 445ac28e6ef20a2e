/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host and controller in one process on one loop: the contract of wire.h without a network.
 *
 * A link joins the two ends. Whatever an owner asks for becomes an act on the link's list, and the
 * acts are done in that order from the loop, one round a turn: commands are handed over, data is
 * copied, answers are told. So nothing is called back from within a call, as with any other
 * transport. There is no handshake to wait for, no digest, and no peer that could be wrong but our
 * own host; a push that is larger than the room offered, or more commands than slots, end the link
 * all the same.
 *
 *	NEW -> LIVE -> DEAD      DEAD: what is outstanding is given back, then closed()
 *
 * Invariants: an act is on the list at most once; out counts commands the controller's owner has;
 * the link is freed when both owners have called wire_close(), out is 0 and no round is due.
 * Thread: the loop of both ends. Listeners are found by loop and address among those of the thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "loop/iov.h"
#include "wire/impl.h"

struct mem_link;

enum act_kind { ACT_SUBMIT, ACT_WITHDRAW, ACT_PULL, ACT_PUSH, ACT_RESPOND };

struct act {
	struct list_link link;
	enum act_kind kind;
};

struct mem_end {
	struct wire_conn conn;
	struct mem_link *to;
	bool gone;                     /* its owner has called wire_close() */
	bool told;                     /* closed() was called */
};

struct mem_cmd {                       /* a slot of the controller */
	struct wire_cmd pub;
	struct list_link idle;
	bool owned, pulling, pushing;
	uint32_t bytes;
	struct iov_at at;
	void (*done)(struct wire_cmd *cmd, int res);
	struct nv_cqe cqe;
	struct act move, respond;
};

struct mem_slot {                      /* a command identifier of the host */
	struct wire_req *req;          /* NULL: free, or withdrawn */
	struct mem_cmd *cmd;           /* the controller has it */
	bool taken, withdrawn;
	struct act submit, withdraw;
};

enum mem_state { MEM_NEW, MEM_LIVE, MEM_DEAD };

struct mem_link {
	struct loop *loop;
	struct mem_end host, ctrl;
	enum mem_state state;
	int why;
	struct sock_addr addr;
	const struct wire_host_events *host_events;
	const struct wire_ctrl_events *ctrl_events;    /* NULL: never accepted */
	uint32_t inline_bytes;
	unsigned host_depth, ctrl_depth, ctrl_count, out;
	struct mem_slot *slot;
	struct mem_cmd **cmd;          /* [ctrl_count] */
	struct list_link idle, acts;
	struct loop_op round;
	bool round_due, running;
};

struct mem_listener {
	struct wire_listener base;
	struct list_link link;
	struct loop *loop;
	struct sock_addr addr;
	struct wire_opts opts;
	const struct wire_ctrl_events *events;
	void *arg;
};

static _Thread_local struct list_link listeners;

static struct mem_end *end_of(const struct wire_conn *conn)
{
	return wire_owner_of(conn, struct mem_end, conn);
}

static struct mem_link *link_of(const struct wire_conn *conn)
{
	return end_of(conn)->to;
}

static struct mem_cmd *cmd_of(struct wire_cmd *cmd)
{
	return container_of(cmd, struct mem_cmd, pub);
}

/* --- life ------------------------------------------------------------------------------------- */

static void link_maybe_free(struct mem_link *m)
{
	if (m->state != MEM_DEAD || m->running || m->round_due || m->out > 0)
		return;
	if (!m->host.gone || !m->ctrl.gone)
		return;
	must(list_empty(&m->acts));
	for (unsigned i = 0; i < m->ctrl_count; i++)
		free(m->cmd[i]);
	m->host.conn.magic = m->ctrl.conn.magic = 0;
	free(m->cmd);
	free(m->slot);
	free(m);
}

static void round_run(struct loop_op *op, int res);

static void round_ask(struct mem_link *m)
{
	if (m->round_due)
		return;
	m->round_due = true;
	m->round.done = round_run;
	loop_soon(m->loop, &m->round, 0);
}

static void act_add(struct mem_link *m, struct act *act, enum act_kind kind)
{
	act->kind = kind;
	list_push_back(&m->acts, &act->link);
	round_ask(m);
}

static void link_end(struct mem_link *m, int why)
{
	if (m->state == MEM_DEAD)
		return;
	m->state = MEM_DEAD;
	m->why = why;
	round_ask(m);
}

/* --- slots ------------------------------------------------------------------------------------ */

static int mem_depth_set(struct wire_conn *conn, uint16_t depth)
{
	struct mem_link *m = link_of(conn);

	if (depth > m->ctrl_count) {
		struct mem_cmd **cmd = realloc(m->cmd, depth * sizeof(struct mem_cmd *));

		if (cmd == NULL)
			return -ENOMEM;
		m->cmd = cmd;
	}
	while (m->ctrl_count < depth) {
		struct mem_cmd *c = calloc(1, sizeof(*c));

		if (c == NULL)
			return -ENOMEM;
		c->pub.conn = conn;
		c->pub.slot = (uint16_t)m->ctrl_count;
		m->cmd[m->ctrl_count++] = c;
		list_push_back(&m->idle, &c->idle);
	}
	m->ctrl_depth = depth;
	LIST_FOR_EACH_SAFE(link, &m->idle)
		if (container_of(link, struct mem_cmd, idle)->pub.slot >= depth)
			list_remove(link);
	return 0;
}

/* The owner of the controller's end is done with it. */
static void cmd_rest(struct mem_link *m, struct mem_cmd *c)
{
	if (c->owned || c->pushing || list_linked(&c->respond.link))
		return;
	must(m->out > 0 && !c->pulling);
	m->out--;
	if (c->pub.slot < m->ctrl_depth)
		list_push_back(&m->idle, &c->idle);
}

static struct mem_slot *slot_of(struct mem_link *m, const struct mem_cmd *c)
{
	struct mem_slot *s = &m->slot[le16_get(c->pub.sqe.cid)];

	must(s->cmd == c);
	return s;
}

static void slot_give(struct mem_slot *s, int res)
{
	struct wire_req *req = s->req;

	s->req = NULL;
	req->done(req, res);
}

/* --- acts ------------------------------------------------------------------------------------- */

static void act_submit(struct mem_link *m, struct mem_slot *s)
{
	struct list_link *link = list_pop_front(&m->idle);
	struct wire_req *req = s->req;
	bool inside = req->out_bytes > 0 && req->out_bytes <=
		      (req->sqe.opcode == NV_OPCODE_FABRICS ? WIRE_INLINE_BYTES : m->inline_bytes);
	struct mem_cmd *c;

	if (link == NULL) {
		link_end(m, -EPROTO);
		return;
	}
	c = container_of(link, struct mem_cmd, idle);
	req->sqe.cid = le16_of(req->cid);
	req->sqe.flags = (uint8_t)((req->sqe.flags & ~NV_SQE_PSDT) | NV_SQE_PSDT_SGL);
	req->sqe.sgl = inside ? nv_sgl_in_capsule(req->out_bytes)
			      : nv_sgl_transport(req->out_bytes + req->in_bytes);
	c->pub.sqe = req->sqe;
	c->pub.inline_bytes = inside ? req->out_bytes : 0;
	c->pub.owner = NULL;
	c->owned = true;
	s->cmd = c;
	m->out++;
	m->ctrl_events->command(m->ctrl.conn.arg, &c->pub);
}

static void act_withdraw(struct mem_link *m, struct mem_slot *s)
{
	(void)m;
	if (s->req == NULL)
		return;
	if (s->cmd == NULL)
		s->taken = false;     /* it never went out */
	slot_give(s, -ECANCELED);
}

static void move_done(struct mem_link *m, struct mem_cmd *c, int res)
{
	if (c->pulling) {
		c->pulling = false;
		c->done(&c->pub, res);
		return;
	}
	must(c->pushing);
	c->done(&c->pub, res);
	c->pushing = false;
	cmd_rest(m, c);
}

/* The host's memory into the controller's: no bytes of a request that was withdrawn. */
static void act_pull(struct mem_link *m, struct mem_cmd *c)
{
	struct wire_req *req = slot_of(m, c)->req;
	struct iov_at from;
	bool inside = c->pub.inline_bytes > 0;
	uint64_t offset = inside ? le64_get(c->pub.sqe.sgl.offset) : 0;
	uint32_t left = c->bytes;

	if (left > 0 && (req == NULL || offset + left > req->out_bytes)) {
		link_end(m, req == NULL ? -ECONNRESET : -EPROTO);
		move_done(m, c, -ECONNRESET);
		return;
	}
	from = left > 0 ? iov_at_start(req->out, req->out_count) : iov_at_start(NULL, 0);
	iov_at_skip(&from, offset);
	while (left > 0) {
		uint8_t *base;
		uint32_t n = (uint32_t)bytes_min(iov_at_piece(&from, &base), left);

		iov_at_put(&c->at, base, n);
		iov_at_skip(&from, n);
		left -= n;
	}
	WIRE_COUNT(bytes_in, c->bytes);
	move_done(m, c, 0);
}

static void act_push(struct mem_link *m, struct mem_cmd *c)
{
	struct mem_slot *s = slot_of(m, c);
	struct wire_req *req = s->req;
	struct iov_at to;
	uint32_t left = c->bytes;

	if (req != NULL && left > req->in_bytes) {
		link_end(m, -EPROTO);
		move_done(m, c, -ECONNRESET);
		return;
	}
	to = req != NULL ? iov_at_start(req->in, req->in_count) : iov_at_start(NULL, 0);
	while (req != NULL && left > 0) {
		uint8_t *base;
		uint32_t n = (uint32_t)bytes_min(iov_at_piece(&c->at, &base), left);

		iov_at_put(&to, base, n);
		iov_at_skip(&c->at, n);
		left -= n;
	}
	if (req != NULL)
		req->in_bytes_got = c->bytes;
	WIRE_COUNT(bytes_out, c->bytes);
	move_done(m, c, 0);
}

static void act_respond(struct mem_link *m, struct mem_cmd *c)
{
	struct mem_slot *s = slot_of(m, c);

	c->cqe.cid = c->pub.sqe.cid;
	s->cmd = NULL;
	s->taken = false;
	if (list_linked(&s->withdraw.link))
		list_remove(&s->withdraw.link);
	cmd_rest(m, c);
	if (s->req == NULL)
		return;
	s->req->cqe = c->cqe;
	slot_give(s, 0);
}

static void act_run(struct mem_link *m, struct act *act)
{
	switch (act->kind) {
	case ACT_SUBMIT:
		act_submit(m, container_of(act, struct mem_slot, submit));
		break;
	case ACT_WITHDRAW:
		act_withdraw(m, container_of(act, struct mem_slot, withdraw));
		break;
	case ACT_PULL:
		act_pull(m, container_of(act, struct mem_cmd, move));
		break;
	case ACT_PUSH:
		act_push(m, container_of(act, struct mem_cmd, move));
		break;
	default:
		act_respond(m, container_of(act, struct mem_cmd, respond));
		break;
	}
}

/* --- rounds ----------------------------------------------------------------------------------- */

static void link_accept(struct mem_link *m)
{
	LIST_FOR_EACH(link, &listeners) {
		struct mem_listener *l = container_of(link, struct mem_listener, link);

		if (l->loop != m->loop || l->addr.port != m->addr.port ||
		    strcmp(l->addr.host, m->addr.host) != 0)
			continue;
		m->ctrl_events = l->events;
		m->ctrl.gone = false;
		m->state = MEM_LIVE;
		if (mem_depth_set(&m->ctrl.conn, l->opts.depth_max) != 0) {
			m->ctrl.gone = true;
			link_end(m, -ENOMEM);
			return;
		}
		WIRE_COUNT(accepted, 1);
		m->ctrl_events->accepted(l->arg, &m->ctrl.conn);
		if (m->state == MEM_LIVE && !m->host.gone)
			m->host_events->connected(m->host.conn.arg, &m->host.conn);
		return;
	}
	link_end(m, -ECONNRESET);
}

/* Everything goes back to its owner; then each is told. */
static void link_bury(struct mem_link *m)
{
	struct list_link *link;

	while ((link = list_pop_front(&m->acts)) != NULL) {
		struct act *act = container_of(link, struct act, link);

		if (act->kind == ACT_PULL || act->kind == ACT_PUSH)
			move_done(m, container_of(act, struct mem_cmd, move), -ECONNRESET);
		else if (act->kind == ACT_RESPOND)
			cmd_rest(m, container_of(act, struct mem_cmd, respond));
	}
	for (unsigned i = 0; i < m->host_depth; i++)
		if (m->slot[i].req != NULL)
			slot_give(&m->slot[i], m->slot[i].withdrawn ? -ECANCELED : m->why);
	if (!m->ctrl.gone && !m->ctrl.told) {
		m->ctrl.told = true;
		m->ctrl_events->closed(m->ctrl.conn.arg, m->why);
	}
	if (!m->host.gone && !m->host.told) {
		m->host.told = true;
		m->host_events->closed(m->host.conn.arg, m->why);
	}
}

static void round_run(struct loop_op *op, int res)
{
	struct mem_link *m = container_of(op, struct mem_link, round);
	struct list_link last;

	(void)res;
	m->round_due = false;
	m->running = true;
	if (m->state == MEM_NEW)
		link_accept(m);
	/* What these acts lead to is for the next round. */
	last = (struct list_link){NULL, NULL};
	list_push_back(&m->acts, &last);
	while (m->state == MEM_LIVE && m->acts.next != &last)
		act_run(m, container_of(list_pop_front(&m->acts), struct act, link));
	list_remove(&last);
	if (m->state == MEM_DEAD)
		link_bury(m);
	else if (!list_empty(&m->acts))
		round_ask(m);
	m->running = false;
	link_maybe_free(m);
}

/* --- the transport ---------------------------------------------------------------------------- */

static int mem_listen(struct loop *loop, const struct sock_addr *addr,
		      const struct wire_opts *opts, const struct wire_ctrl_events *events,
		      void *arg, struct wire_listener **out)
{
	struct mem_listener *l;

	if (listeners.next == NULL)
		list_init(&listeners);
	LIST_FOR_EACH(link, &listeners) {
		l = container_of(link, struct mem_listener, link);
		if (l->loop == loop && l->addr.port == addr->port &&
		    strcmp(l->addr.host, addr->host) == 0)
			return -EBUSY;
	}
	l = calloc(1, sizeof(*l));
	if (l == NULL)
		return -ENOMEM;
	l->base = (struct wire_listener){WIRE_LISTENER_MAGIC, &wire_mem};
	l->loop = loop;
	l->addr = *addr;
	l->opts = *opts;
	l->events = events;
	l->arg = arg;
	list_push_back(&listeners, &l->link);
	*out = &l->base;
	return 0;
}

static uint16_t mem_listener_port(const struct wire_listener *l)
{
	return wire_owner_of(l, struct mem_listener, base)->addr.port;
}

static void mem_listener_close(struct wire_listener *base)
{
	struct mem_listener *l = container_of(base, struct mem_listener, base);

	list_remove(&l->link);
	l->base.magic = 0;
	free(l);
}

static int mem_connect(struct loop *loop, const struct sock_addr *addr,
		       const struct wire_opts *opts, const struct wire_host_events *events,
		       void *arg, struct wire_conn **out)
{
	struct mem_link *m = calloc(1, sizeof(*m));

	if (m == NULL)
		return -ENOMEM;
	if (listeners.next == NULL)
		list_init(&listeners);
	m->slot = calloc(opts->depth_max, sizeof(m->slot[0]));
	if (m->slot == NULL) {
		free(m);
		return -ENOMEM;
	}
	m->loop = loop;
	m->host = (struct mem_end){.conn = {WIRE_CONN_MAGIC, &wire_mem, loop, arg}, .to = m};
	m->ctrl = (struct mem_end){.conn = {WIRE_CONN_MAGIC, &wire_mem, loop, NULL}, .to = m,
				   .gone = true};
	m->addr = *addr;
	m->host_events = events;
	m->host_depth = opts->depth_max;
	m->inline_bytes = WIRE_INLINE_BYTES;
	list_init(&m->idle);
	list_init(&m->acts);
	*out = &m->host.conn;
	round_ask(m);
	return 0;
}

static void move_begin(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count,
		       uint64_t bytes, void (*done)(struct wire_cmd *cmd, int res))
{
	struct mem_cmd *c = cmd_of(cmd);

	must(c->owned && !c->pulling && !c->pushing);
	must(iov_bytes(iov, iov_count) >= bytes);
	c->at = iov_at_start(iov, iov_count);
	c->bytes = (uint32_t)bytes;
	c->done = done;
}

static void mem_pull(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count,
		     uint64_t bytes, void (*done)(struct wire_cmd *cmd, int res))
{
	struct mem_cmd *c = cmd_of(cmd);

	move_begin(cmd, iov, iov_count, bytes, done);
	c->pulling = true;
	act_add(link_of(cmd->conn), &c->move, ACT_PULL);
}

static void mem_push(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count,
		     uint64_t bytes, void (*done)(struct wire_cmd *cmd, int res))
{
	struct mem_cmd *c = cmd_of(cmd);

	move_begin(cmd, iov, iov_count, bytes, done);
	c->pushing = true;
	act_add(link_of(cmd->conn), &c->move, ACT_PUSH);
}

static void mem_respond(struct wire_cmd *cmd, const struct nv_cqe *cqe)
{
	struct mem_cmd *c = cmd_of(cmd);
	struct mem_link *m = link_of(cmd->conn);

	must(c->owned && !c->pulling);
	c->owned = false;
	c->cqe = *cqe;
	if (m->state == MEM_LIVE) {
		act_add(m, &c->respond, ACT_RESPOND);
		return;
	}
	cmd_rest(m, c);
	link_maybe_free(m);
}

static void submit_failed(struct loop_op *op, int res)
{
	struct wire_req *req = container_of((uint64_t *)(void *)op, struct wire_req, lease[0]);

	req->done(req, res);
}

static void mem_submit(struct wire_conn *conn, struct wire_req *req)
{
	struct mem_link *m = link_of(conn);
	struct loop_op *op = (struct loop_op *)(void *)req->lease;
	struct mem_slot *s = &m->slot[req->cid];

	must(req->cid < m->host_depth);
	req->in_bytes_got = 0;
	if (m->state != MEM_LIVE) {
		_Static_assert(sizeof(*op) <= sizeof(req->lease), "an operation fits the lease");
		memset(op, 0, sizeof(*op));
		op->done = submit_failed;
		loop_soon(m->loop, op, -ECONNRESET);
		return;
	}
	must(!s->taken);
	*s = (struct mem_slot){.req = req, .taken = true};
	act_add(m, &s->submit, ACT_SUBMIT);
}

static void mem_inline_set(struct wire_conn *conn, uint32_t bytes)
{
	link_of(conn)->inline_bytes = bytes;
}

static void mem_withdraw(struct wire_conn *conn, struct wire_req *req)
{
	struct mem_link *m = link_of(conn);
	struct mem_slot *s = &m->slot[req->cid];

	if (m->state != MEM_LIVE || s->req != req || s->withdrawn)
		return;
	s->withdrawn = true;
	if (list_linked(&s->submit.link))
		list_remove(&s->submit.link);
	act_add(m, &s->withdraw, ACT_WITHDRAW);
}

static bool mem_cid_free(const struct wire_conn *conn, uint16_t cid)
{
	const struct mem_link *m = link_of(conn);

	must(cid < m->host_depth);
	return !m->slot[cid].taken && !list_linked(&m->slot[cid].withdraw.link);
}

static const char *mem_peer(const struct wire_conn *conn)
{
	return link_of(conn)->addr.host;
}

static const char *mem_digests(const struct wire_conn *conn)
{
	(void)conn;
	return "";
}

static void mem_close(struct wire_conn *conn)
{
	struct mem_link *m = link_of(conn);

	must(!end_of(conn)->gone);
	end_of(conn)->gone = true;
	link_end(m, -ECONNRESET);
	link_maybe_free(m);
}

/* Acts are done in the turn in which they are asked for: nobody ever waits. */
static bool mem_waits_for_peer(const struct wire_conn *conn)
{
	(void)conn;
	return false;
}

static uint64_t mem_moved_bytes(const struct wire_conn *conn)
{
	(void)conn;
	return 0;
}

const struct wire_ops wire_mem = {
	.name = "mem",
	.listen = mem_listen,
	.listener_port = mem_listener_port,
	.listener_close = mem_listener_close,
	.connect = mem_connect,
	.depth_set = mem_depth_set,
	.pull = mem_pull,
	.push = mem_push,
	.respond = mem_respond,
	.submit = mem_submit,
	.inline_set = mem_inline_set,
	.withdraw = mem_withdraw,
	.cid_free = mem_cid_free,
	.peer = mem_peer,
	.digests = mem_digests,
	.close = mem_close,
	.drop = mem_close,
	.waits_for_peer = mem_waits_for_peer,
	.moved_bytes = mem_moved_bytes,
};
