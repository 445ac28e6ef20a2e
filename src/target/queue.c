/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue is one connection of a host: before Connect it knows nothing, after it is the admin queue
 * or an I/O queue of a controller. Here are its life, its requests, and what they hold.
 *
 *	phase       what may arrive                      ends by
 *	NEW         Connect, within handshake_ns         Connect; timer; the host
 *	CONNECTING  the data of Connect                  its answer (LIVE or NEW); the host
 *	LIVE        commands                             Disconnect, drain, kill, the host
 *	LEAVING     nothing is run any more              the last command ends, timer, the host
 *	DEAD        done() of what was at work           the last of it; then freed
 *
 * Invariants: those of core.h. A connection is closed by us exactly once (queue_kill). Memory of a
 * queue goes in queue_done(), which every callback calls last. The queue's lane; who makes the move
 * to another one says so.
 */
#include "target/core.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"

static const uint8_t queue_next[QUEUE_STATES] = {
	[QUEUE_NEW] = 1 << QUEUE_CONNECTING | 1 << QUEUE_DEAD,
	[QUEUE_CONNECTING] = 1 << QUEUE_NEW | 1 << QUEUE_LIVE | 1 << QUEUE_DEAD,
	[QUEUE_LIVE] = 1 << QUEUE_LEAVING | 1 << QUEUE_DEAD,
	[QUEUE_LEAVING] = 1 << QUEUE_DEAD,
};

static const uint16_t req_next[REQ_STATES] = {
	[REQ_FREE] = 1 << REQ_NEW,
	[REQ_NEW] = 1 << REQ_SHARE | 1 << REQ_BUF | 1 << REQ_STORE | 1 << REQ_PAGE | 1 << REQ_AER |
		    1 << REQ_HELD | 1 << REQ_PUSH | 1 << REQ_LOOK | 1 << REQ_FREE,
	[REQ_LOOK] = 1 << REQ_NEW | 1 << REQ_FREE,
	[REQ_SHARE] = 1 << REQ_NEW | 1 << REQ_FREE,
	[REQ_BUF] = 1 << REQ_NEW | 1 << REQ_PULL | 1 << REQ_STORE | 1 << REQ_PUSH | 1 << REQ_FREE,
	[REQ_PULL] = 1 << REQ_STORE | 1 << REQ_FREE,
	[REQ_STORE] = 1 << REQ_NEW | 1 << REQ_PUSH | 1 << REQ_FREE,
	[REQ_PAGE] = 1 << REQ_PUSH | 1 << REQ_FREE,
	[REQ_AER] = 1 << REQ_FORGOTTEN | 1 << REQ_FREE,
	[REQ_FORGOTTEN] = 1 << REQ_FREE,
	[REQ_HELD] = 1 << REQ_FREE,
	[REQ_PUSH] = 1 << REQ_FREE,
};

void queue_go(struct queue *q, enum queue_state to)
{
	OBJ_CHECK(q, QUEUE_MAGIC);
	must(queue_next[q->state] & 1u << to);
	q->state = to;
}

void req_go(struct req *req, enum req_state to)
{
	must(req_next[req->state] & 1u << to);
	req->state = to;
}

uint64_t queue_bytes(unsigned entries)
{
	return sizeof(struct queue) + entries * (sizeof(struct req) + sizeof(uint16_t));
}

/* --- a connection comes and goes -------------------- */

static void queue_timer(struct loop_timer *timer)
{
	struct queue *q = container_of(timer, struct queue, timer);

	OBJ_CHECK(q, QUEUE_MAGIC);
	if (q->state == QUEUE_NEW || q->state == QUEUE_CONNECTING)
		COUNT(q->lane, connect_late, 1);
	queue_kill(q);
	queue_done(q);
}

static void queue_accepted(void *listener_arg, struct wire_conn *conn)
{
	struct target *t = listener_arg;
	struct queue *q;

	OBJ_CHECK(t, TARGET_MAGIC);
	COUNT(&t->lane[0], conns_seen, 1);
	if (t->draining || t->conns >= t->conns_max) {
		COUNT(&t->lane[0], conns_over_limit, !t->draining);
		wire_close(&conn);
		return;
	}
	q = calloc(1, sizeof(*q));
	if (q == NULL) {
		wire_close(&conn);
		return;
	}
	OBJ_INIT(q, QUEUE_MAGIC);
	q->target = t;
	q->lane = &t->lane[0];
	q->conn = conn;
	loop_timer_init(&q->timer, queue_timer);
	loop_timer_set(t->loop, &q->timer, loop_now_ns(t->loop) + t->handshake_ns);
	list_push_back(&q->lane->queues, &q->link);
	t->conns++;
	COUNT(q->lane, conns, 1);
	wire_conn_arg_set(conn, q);
}

/* A request that waits for something of ours ends now; what wire or store have ends by itself. */
static void req_cancel(struct req *req)
{
	switch (req->state) {
	case REQ_SHARE:
	case REQ_PAGE:
	case REQ_HELD:
	case REQ_FORGOTTEN:
		req_end(req);
		break;
	case REQ_BUF:
		/* Not waiting any more: ready() is on its way and finds the queue dead. */
		if (req_buf_cancel(req))
			req_end(req);
		break;
	case REQ_AER:
		(void)event_request_abort(req->queue->ctrl, le16_get(req->cmd->sqe.cid));
		break;
	default:
		break;
	}
}

bool queue_idle(const struct queue *q)
{
	unsigned parked = 0;

	for (unsigned i = 0; q->req != NULL && i < q->entries; i++)
		parked += q->req[i].state == REQ_AER || q->req[i].state == REQ_HELD ||
			  q->req[i].state == REQ_FORGOTTEN;
	must(parked <= q->busy);
	return q->busy == parked;
}

/* What the first loop keeps of a connection goes, and the memory. */
static void queue_gone(struct loop *here, struct msg *m)
{
	struct queue *q = container_of(m, struct queue, msg);
	struct target *t = q->target;
	struct ctrl *c = q->ctrl;

	must(here == t->loop && t->conns > 0);
	t->conns--;
	COUNT(&t->lane[0], conns, -1);
	if (c != NULL && q->qid != 0) {
		must(c->io_queues > 0 && q->lane->queues_given > 0);
		q->lane->queues_given--;
		c->io_queues--;
		if (c->io_queues == 0)
			ctrl_idle(c);
	}
	free(q->connect_data);
	free(q->req);
	free(q->cid);
	q->magic = 0;
	free(q);
	if (c != NULL)
		ctrl_put(c);
	if (t->draining)
		target_drain_soon(t);
}

static void queue_free(struct queue *q)
{
	must(q->conn == NULL && q->connect_cmd == NULL && q->leased_bytes == 0);
	list_remove(&q->link);
	if (q->seat != NULL && q->qid != 0) {
		must(q->seat->queues > 0);
		q->seat->queues--;
		if (q->seat->queues == 0)
			share_seat_leave(q->seat);
	}
	if (q->lane->draining)
		lane_drain_soon(q->lane);
	q->msg.run = queue_gone;
	lane_send(q->lane, &q->target->lane[0], &q->msg);
}

void queue_done(struct queue *q)
{
	OBJ_CHECK(q, QUEUE_MAGIC);
	if (q->state == QUEUE_LEAVING && q->lane->draining && queue_idle(q))
		lane_drain_soon(q->lane);
	if (q->state == QUEUE_DEAD && q->busy == 0)
		queue_free(q);
}

/* Its number is free again. First loop; its own queue_gone() comes behind. */
static void queue_is_closed(struct loop *here, struct msg *m)
{
	struct queue *q = container_of(m, struct queue, closed_msg);

	must(here == q->target->loop && q->ctrl->queue[q->qid] == q);
	q->ctrl->queue[q->qid] = NULL;
}

static void queue_end(struct queue *q, void (*end)(struct wire_conn **conn))
{
	OBJ_CHECK(q, QUEUE_MAGIC);
	must(q->state != QUEUE_DEAD && q->conn != NULL);
	loop_timer_cancel(q->lane->loop, &q->timer);
	end(&q->conn);
	queue_go(q, QUEUE_DEAD);
	if (q->ctrl != NULL) {
		q->closed_msg.run = queue_is_closed;
		lane_send(q->lane, &q->target->lane[0], &q->closed_msg);
	}
	for (unsigned i = 0; q->req != NULL && i < q->entries; i++)
		req_cancel(&q->req[i]);
}

void queue_close(struct queue *q)
{
	queue_end(q, wire_close);
}

void queue_drop(struct queue *q)
{
	must(q->qid != 0);
	queue_end(q, wire_drop);
}

void queue_kill(struct queue *q)
{
	if (q->state == QUEUE_DEAD)
		return;
	queue_close(q);
	if (q->ctrl != NULL && q->qid == 0)
		ctrl_kill(q->ctrl);
}

static void queue_closed(void *conn_arg, int why)
{
	struct queue *q = conn_arg;

	OBJ_CHECK(q, QUEUE_MAGIC);
	if (q->ctrl != NULL)
		log_debug("controller %u queue %u: host is gone: %d", q->ctrl->cntlid, q->qid, why);
	queue_kill(q);
	queue_done(q);
}

/* The controller has one queue more. First loop. */
static void queue_count(struct queue *q, struct ctrl *c, uint16_t qid, struct lane *to)
{
	must(c->queue[qid] == NULL);
	q->ctrl = c;
	q->qid = qid;
	q->seat = &c->seat[to->index];
	c->queue[qid] = q;
	c->queue_lane[qid] = (uint8_t)to->index;
	c->refs++;
	c->io_queues += qid != 0;
	to->queues_given += qid != 0;
}

/* It gets its requests and lives here. */
static int queue_begin(struct queue *q, const struct nv_connect *connect)
{
	must(q->state == QUEUE_CONNECTING && q->req == NULL);
	q->req = calloc(connect->sq_entries, sizeof(*q->req));
	q->cid = calloc(connect->sq_entries, sizeof(*q->cid));
	if (q->req == NULL || q->cid == NULL ||
	    wire_depth_set(q->conn, connect->sq_entries) != 0) {
		free(q->req);
		free(q->cid);
		q->req = NULL;
		q->cid = NULL;
		return -ENOMEM;
	}
	q->entries = connect->sq_entries;
	q->no_sq_flow = connect->no_sq_flow;
	return 0;
}

static void queue_seat(struct queue *q)
{
	struct seat *seat = q->seat;

	if (q->qid != 0) {
		if (seat->queues == 0) {
			list_push_back(&seat->lane->seats, &seat->link);
			seat->lane->seat_count++;
		}
		seat->queues++;
	}
	ctrl_heard(seat);
	queue_go(q, QUEUE_LIVE);
	loop_timer_cancel(q->lane->loop, &q->timer);
}

int queue_live(struct queue *q, struct ctrl *c, const struct nv_connect *connect)
{
	int rc = queue_begin(q, connect);

	must(q->ctrl == NULL);
	if (rc != 0)
		return rc;
	queue_count(q, c, connect->qid, q->lane);
	queue_seat(q);
	return 0;
}

/* On the new lane. */
static void queue_arrive(struct loop *here, struct msg *m)
{
	struct queue *q = container_of(m, struct queue, msg);
	int rc;

	OBJ_CHECK(q, QUEUE_MAGIC);
	must(here == q->lane->loop && !q->lane->draining);
	list_push_back(&q->lane->queues, &q->link);
	wire_join(q->conn, here);
	rc = queue_begin(q, &q->connect);
	queue_seat(q);
	connect_end(q, rc == 0 ? NV_OK : NV_INTERNAL_ERROR,
		    rc == 0 ? nv_connect_ok_dw0(q->ctrl->cntlid) : 0);
	if (rc != 0)
		queue_close(q);
	queue_done(q);
}

void queue_move(struct queue *q, struct ctrl *c, const struct nv_connect *connect,
		struct lane *to)
{
	must(q->state == QUEUE_CONNECTING && q->ctrl == NULL && to != q->lane && q->busy == 1);
	loop_timer_cancel(q->lane->loop, &q->timer);
	q->connect = *connect;
	queue_count(q, c, connect->qid, to);
	list_remove(&q->link);
	wire_leave(q->conn);
	q->lane = to;
	q->paused = false;
	q->msg.run = queue_arrive;
	loop_post(to->loop, &q->msg);
}

/* --- requests -------------------- */

struct nv_cqe queue_cqe(struct queue *q, const struct wire_cmd *cmd, nv_status status,
			uint64_t result)
{
	struct nv_cqe cqe = nv_cqe_of(le16_get(cmd->sqe.cid), status);

	cqe.dw0 = le32_of((uint32_t)result);
	cqe.dw1 = le32_of((uint32_t)(result >> 32));
	must(q->sqhd < q->entries || q->entries == 0);
	/* The head moves when a command ends, not when it is taken: so the host never has more than
	 * `entries` of them outstanding, which is what the tables here are made for. */
	if (q->entries > 0)
		q->sqhd = (uint16_t)((q->sqhd + 1u) % q->entries);
	cqe.sqhd = le16_of(q->no_sq_flow ? 0xffff : q->sqhd);
	return cqe;
}

static uint8_t *cid_near(struct req *req)
{
	return &req->queue->cid_near[le16_get(req->cmd->sqe.cid) % QUEUE_CID_NEAR];
}

static void cid_mark(struct req *req)
{
	(*cid_near(req))++;
	req->cid_marked = true;
}

static void cid_unmark(struct req *req)
{
	if (!req->cid_marked)
		return;
	must(*cid_near(req) > 0);
	(*cid_near(req))--;
	req->cid_marked = false;
}

void req_answer(struct req *req, nv_status status, uint64_t result)
{
	struct queue *q = req->queue;
	struct nv_cqe cqe;

	must(!req->answered && req->state != REQ_FREE && req->cmd != NULL);
	req->answered = true;
	cid_unmark(req);
	cqe = queue_cqe(q, req->cmd, status, result);
	if (q->qid != 0) {
		count_add(&q->seat->counts.commands, 1);
		count_add(&q->seat->counts.failed, !nv_status_ok(status));
	}
	if (!nv_status_ok(status) && q->state != QUEUE_DEAD) {
		COUNT(q->lane, commands_failed, 1);
		ctrl_error_note(req, status);
	}
	wire_respond(req->cmd, &cqe);
}

void req_end(struct req *req)
{
	struct queue *q = req->queue;
	struct seat *seat = q->seat;

	must(req->state != REQ_FREE && q->busy > 0);
	if (!req->answered) {
		must(q->state == QUEUE_DEAD);
		req_answer(req, NV_ABORTED_SQ_DELETED, 0);
	}
	req_share_leave(req);
	if (list_linked(&req->link))
		list_remove(&req->link);
	if (req->buf != NULL)
		store_buf_return(&req->buf);
	must(req->scratch == NULL);
	req_go(req, REQ_FREE);
	req->cmd = NULL;
	q->busy--;
	COUNT(q->lane, busy, -1);
	if (q->qid == 0 && q->ctrl->page_holder == req)
		ctrl_page_give(q->ctrl);
	req_share_give(req);
	if (req->ns != NULL)
		ns_unbusy(ns_seat(req->ns, q->lane));  /* may free it */
	req->ns = NULL;
	if (q->qid == 0)
		return;
	must(seat->io_busy > 0);
	seat->io_busy--;
	if (seat->io_busy == 0)
		seat_quiet_look(seat);
}

void req_fail(struct req *req, nv_status status, const struct bad *bad)
{
	must(!nv_status_ok(status));
	req->failed = true;
	req->bad_offset = bad != NULL ? bad->offset : UINT16_MAX;
	req_answer(req, status, 0);
	req_end(req);
}

bool req_recall(struct req *req, nv_status status)
{
	switch (req->state) {
	case REQ_SHARE:
	case REQ_PAGE:
	case REQ_HELD:
		break;
	case REQ_BUF:
		if (req_buf_cancel(req))
			break;
		return false;
	default:                                       /* what wire or store have ends by itself */
		return false;
	}
	req_fail(req, status, NULL);
	return true;
}

bool req_data_check(struct req *req, enum nv_data_dir dir, uint32_t bytes)
{
	struct nv_sgl_want want = {dir, bytes, req->cmd->inline_bytes};
	struct nv_data data;
	struct bad bad;
	nv_status status = nv_sgl_check(&req->cmd->sqe, &want, &data, &bad);

	if (nv_status_ok(status))
		return true;
	req_fail(req, status, &bad);
	return false;
}

static void req_pushed(struct wire_cmd *cmd, int res)
{
	struct req *req = cmd->owner;
	struct queue *q = req->queue;

	must(req->state == REQ_PUSH && req->answered);
	if (res == 0)
		req_moved(req);
	req_end(req);
	queue_done(q);
}

void req_push(struct req *req, const struct iovec *iov, unsigned iov_count, uint32_t bytes)
{
	must(bytes > 0 && iov_count > 0 && !req->answered);
	req_go(req, REQ_PUSH);
	wire_push(req->cmd, iov, iov_count, bytes, req_pushed);
}

/* --- a command arrives -------------------- */

/* Does another request, not answered yet, have this CID? Mostly none has even one near it. */
static bool queue_cid_taken(const struct queue *q, uint16_t slot, uint16_t cid)
{
	if (q->cid_near[cid % QUEUE_CID_NEAR] == 0)
		return false;
	/* A scan of at most 128 adjacent words costs less than keeping a table of 64 Ki bits. */
	for (unsigned i = 0; i < q->entries; i++)
		if (q->cid[i] == cid && i != slot && q->req[i].state != REQ_FREE &&
		    q->req[i].state != REQ_FORGOTTEN && !q->req[i].answered)
			return true;
	return false;
}

/*
 * SPDK's host forgets its event requests when it detaches and uses their CIDs again, to read CC and
 * to write it. Refused, it would leave without a shutdown each time: so a Fabrics command takes the
 * CID from an event request, which then is never answered. Any other use of a CID twice is 0/03h.
 */
static bool cid_handed_over(struct queue *q, const struct nv_sqe *sqe)
{
	return q->qid == 0 && sqe->opcode == NV_OPCODE_FABRICS &&
	       event_request_forget(q->ctrl, le16_get(sqe->cid));
}

static void io_command(struct req *req)
{
	const struct nv_sqe *sqe = &req->cmd->sqe;
	struct lane *lane = req->queue->lane;
	struct ctrl *c = req->queue->ctrl;
	uint32_t on = atomic_load_explicit(&c->io_on, memory_order_acquire);
	uint32_t nsid = le32_get(sqe->nsid);
	struct bad bad = {0};
	nv_status status;

	must(req->queue->qid != 0 && req->queue->seat->io_busy > 0);
	if ((on & IO_READY) == 0) {
		req_fail(req, NV_SEQUENCE_ERROR, NULL);
		return;
	}
	if (nsid >= 1 && nsid <= TARGET_NAMESPACES)
		req->ns = c->subsys->view[lane->index].ns[nsid - 1];
	if (req->ns == NULL) {
		req_fail(req, NV_INVALID_NAMESPACE,
			 &(struct bad){offsetof(struct nv_sqe, nsid), "no such namespace"});
		return;
	}
	ns_seat(req->ns, lane)->busy++;
	if (req->ns->ops->csi != NV_CSI_NVM && (on & IO_SETS) == 0) {
		req_fail(req, NV_IOCS_NOT_ENABLED, NULL);
		return;
	}
	status = req->ns->ops->parse(req, &bad);
	if (!nv_status_ok(status))
		req_fail(req, status, &bad);
	else
		req->ns->ops->execute(req);
}

static void req_run(struct req *req)
{
	const struct nv_sqe *sqe = &req->cmd->sqe;
	struct queue *q = req->queue;
	uint16_t cid = le16_get(sqe->cid);

	must(req->state == REQ_NEW && q->state == QUEUE_LIVE);
	if (queue_cid_taken(q, req->cmd->slot, cid) && !cid_handed_over(q, sqe)) {
		COUNT(q->lane, duplicate_cids, 1);
		req_fail(req, NV_CID_CONFLICT,
			 &(struct bad){offsetof(struct nv_sqe, cid), "CID is in use"});
		return;
	}
	q->cid[req->cmd->slot] = cid;
#ifndef KVOF_PLANT_CID_UNMARKED
	cid_mark(req);
#endif
	if (sqe->flags & NV_SQE_FUSE)
		req_fail(req, NV_INVALID_FIELD,
			 &(struct bad){offsetof(struct nv_sqe, flags), "fused commands"});
	else if (sqe->opcode == NV_OPCODE_FABRICS)
		fabrics_command(req);
	else if (q->qid == 0)
		admin_command(req);
	else
		io_command(req);
}

static void queue_command(void *conn_arg, struct wire_cmd *cmd)
{
	struct queue *q = conn_arg;
	struct req *req;

	OBJ_CHECK(q, QUEUE_MAGIC);
	must(q->state != QUEUE_DEAD);
	COUNT(q->lane, commands, 1);
	if (q->state == QUEUE_NEW || q->state == QUEUE_CONNECTING) {
		fabrics_first(q, cmd);
		queue_done(q);
		return;
	}
	must(cmd->slot < q->entries && q->req[cmd->slot].state == REQ_FREE);
	req = &q->req[cmd->slot];
	memset(req, 0, sizeof(*req));
	req->cmd = cmd;
	req->queue = q;
	cmd->owner = req;
	req_go(req, REQ_NEW);
	q->busy++;
	COUNT(q->lane, busy, 1);
	q->seat->io_busy += q->qid != 0;
#ifdef KVOF_PLANT_TARGET_TRAFFIC_UNHEARD
	if (cmd->sqe.opcode == NV_ADMIN_KEEP_ALIVE)
#endif
		ctrl_heard(q->seat);
	if (q->state == QUEUE_LEAVING)
		req_go(req, REQ_HELD);
	else
		req_run(req);
	queue_done(q);
}

const struct wire_ctrl_events queue_events = {
	.accepted = queue_accepted, .command = queue_command, .closed = queue_closed,
};
