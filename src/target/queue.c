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
 * queue goes in queue_done(), which every callback calls last. The target's loop.
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
		    1 << REQ_HELD | 1 << REQ_PUSH | 1 << REQ_FREE,
	[REQ_SHARE] = 1 << REQ_NEW | 1 << REQ_FREE,
	[REQ_BUF] = 1 << REQ_NEW | 1 << REQ_PULL | 1 << REQ_STORE | 1 << REQ_PUSH | 1 << REQ_FREE,
	[REQ_PULL] = 1 << REQ_STORE | 1 << REQ_FREE,
	[REQ_STORE] = 1 << REQ_PUSH | 1 << REQ_FREE,
	[REQ_PAGE] = 1 << REQ_PUSH | 1 << REQ_FREE,
	[REQ_AER] = 1 << REQ_FREE,
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
		q->target->counts.connect_late++;
	queue_kill(q);
	queue_done(q);
}

static void queue_accepted(void *listener_arg, struct wire_conn *conn)
{
	struct target *t = listener_arg;
	struct queue *q;

	OBJ_CHECK(t, TARGET_MAGIC);
	t->counts.conns_seen++;
	if (t->draining || t->counts.conns >= t->conns_max) {
		t->counts.conns_over_limit += !t->draining;
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
	q->conn = conn;
	loop_timer_init(&q->timer, queue_timer);
	loop_timer_set(t->loop, &q->timer, loop_now_ns(t->loop) + t->handshake_ns);
	list_push_back(&t->queues, &q->link);
	t->counts.conns++;
	wire_conn_arg_set(conn, q);
}

/* A request that waits for something of ours ends now; what wire or store have ends by itself. */
static void req_cancel(struct req *req)
{
	switch (req->state) {
	case REQ_SHARE:
	case REQ_PAGE:
	case REQ_HELD:
		req_end(req);
		break;
	case REQ_BUF:
		/* Not waiting any more: ready() is on its way and finds the queue dead. */
		if (store_buf_wait_cancel(req->ns->store, &req->wait))
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
		parked += q->req[i].state == REQ_AER || q->req[i].state == REQ_HELD;
	must(parked <= q->busy);
	return q->busy == parked;
}

static void queue_free(struct queue *q)
{
	struct target *t = q->target;
	struct ctrl *c = q->ctrl;

	must(q->conn == NULL && q->connect_cmd == NULL && t->counts.conns > 0);
	list_remove(&q->link);
	t->counts.conns--;
	if (c != NULL && q->qid != 0) {
		must(c->io_queues > 0);
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

void queue_done(struct queue *q)
{
	OBJ_CHECK(q, QUEUE_MAGIC);
	if (q->state == QUEUE_LEAVING && q->target->draining && queue_idle(q))
		target_drain_soon(q->target);
	if (q->state == QUEUE_DEAD && q->busy == 0)
		queue_free(q);
}

void queue_close(struct queue *q)
{
	OBJ_CHECK(q, QUEUE_MAGIC);
	must(q->state != QUEUE_DEAD && q->conn != NULL);
	loop_timer_cancel(q->target->loop, &q->timer);
	wire_close(&q->conn);
	queue_go(q, QUEUE_DEAD);
	if (q->ctrl != NULL) {
		must(q->ctrl->queue[q->qid] == q);
		q->ctrl->queue[q->qid] = NULL;
	}
	for (unsigned i = 0; q->req != NULL && i < q->entries; i++)
		req_cancel(&q->req[i]);
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

/* Connect has succeeded: the queue gets its requests and its place in the controller. */
int queue_live(struct queue *q, struct ctrl *c, const struct nv_connect *connect)
{
	must(q->state == QUEUE_CONNECTING && q->ctrl == NULL && c->queue[connect->qid] == NULL);
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
	q->qid = connect->qid;
	q->no_sq_flow = connect->no_sq_flow;
	q->ctrl = c;
	c->queue[q->qid] = q;
	c->refs++;
	c->io_queues += q->qid != 0;
	queue_go(q, QUEUE_LIVE);
	loop_timer_cancel(q->target->loop, &q->timer);
	return 0;
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

void req_answer(struct req *req, nv_status status, uint64_t result)
{
	struct queue *q = req->queue;
	struct nv_cqe cqe;

	must(!req->answered && req->state != REQ_FREE && req->cmd != NULL);
	req->answered = true;
	cqe = queue_cqe(q, req->cmd, status, result);
	if (!nv_status_ok(status) && q->state != QUEUE_DEAD) {
		q->target->counts.commands_failed++;
		ctrl_error_note(q->ctrl, req, status);
	}
	wire_respond(req->cmd, &cqe);
}

void req_end(struct req *req)
{
	struct queue *q = req->queue;
	struct ctrl *c = q->ctrl;

	must(req->state != REQ_FREE && q->busy > 0 && q->target->counts.busy > 0);
	if (!req->answered) {
		must(q->state == QUEUE_DEAD);
		req_answer(req, NV_ABORTED_SQ_DELETED, 0);
	}
	if (list_linked(&req->link))
		list_remove(&req->link);
	if (req->buf != NULL)
		store_buf_give(req->ns->store, &req->buf);
	req_go(req, REQ_FREE);
	req->cmd = NULL;
	q->busy--;
	q->target->counts.busy--;
	if (c->page_holder == req)
		ctrl_page_give(c);
	req_share_give(req, 0);
	if (req->ns != NULL)
		subsys_ns_unbusy(req->ns);     /* may free it */
	req->ns = NULL;
	if (q->qid == 0)
		return;
	must(c->io_busy > 0);
	c->io_busy--;
	if (c->io_busy == 0)
		ctrl_idle(c);
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
		if (store_buf_wait_cancel(req->ns->store, &req->wait))
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

/* Does another request, not answered yet, have this CID? */
static bool queue_cid_taken(const struct queue *q, uint16_t slot, uint16_t cid)
{
	/* A scan of at most 128 adjacent words costs less than keeping a table of 64 Ki bits. */
	for (unsigned i = 0; i < q->entries; i++)
		if (q->cid[i] == cid && i != slot && q->req[i].state != REQ_FREE &&
		    !q->req[i].answered)
			return true;
	return false;
}

static void io_command(struct req *req)
{
	const struct nv_sqe *sqe = &req->cmd->sqe;
	struct ctrl *c = req->queue->ctrl;
	struct bad bad = {0};
	nv_status status;

	must(req->queue->qid != 0 && c->io_busy > 0);
	if (c->state != CTRL_READY) {
		req_fail(req, NV_SEQUENCE_ERROR, NULL);
		return;
	}
	req->ns = subsys_ns(c->subsys, le32_get(sqe->nsid));
	if (req->ns == NULL) {
		req_fail(req, NV_INVALID_NAMESPACE,
			 &(struct bad){offsetof(struct nv_sqe, nsid), "no such namespace"});
		return;
	}
	req->ns->busy++;
	if (req->ns->ops->csi != NV_CSI_NVM && (c->cc & NV_CC_CSS) != NV_CC_CSS_IOCS) {
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
	if (queue_cid_taken(q, req->cmd->slot, cid)) {
		q->target->counts.duplicate_cids++;
		req_fail(req, NV_CID_CONFLICT,
			 &(struct bad){offsetof(struct nv_sqe, cid), "CID is in use"});
		return;
	}
	q->cid[req->cmd->slot] = cid;
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
	q->target->counts.commands++;
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
	q->target->counts.busy++;
	q->ctrl->io_busy += q->qid != 0;
#ifdef KVOF_PLANT_TARGET_TRAFFIC_UNHEARD
	if (cmd->sqe.opcode == NV_ADMIN_KEEP_ALIVE)
#endif
		ctrl_heard(q->ctrl);
	if (q->state == QUEUE_LEAVING)
		req_go(req, REQ_HELD);
	else
		req_run(req);
	queue_done(q);
}

const struct wire_ctrl_events queue_events = {
	.accepted = queue_accepted, .command = queue_command, .closed = queue_closed,
};
