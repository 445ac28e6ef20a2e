/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fabrics commands: Connect on a fresh connection, then Property Get and Set on the admin queue,
 * and Disconnect. What is wrong with a Connect is told in DW0 (IPO and IATTR).
 *
 * A host that is not on a subsystem's list learns nothing: the name of a subsystem that refuses it
 * and a name that does not exist get the same answer (1/84h). A host that is refused nowhere is
 * told that the name is unknown (1/82h, IPO 256).
 *
 * Every Connect is judged on the first loop. An I/O queue that is to live on another lane is judged
 * when its connection is quiet, moves, and is answered there.
 */
#include "target/core.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"

/* for the host to read the answer and close itself */
#define DISCONNECT_LINGER_NS (1 * NS_PER_S)

#define DATA(field) ((struct nv_connect_bad){offsetof(struct nv_connect_data, field), true, ""})
#define SQE(field) ((struct nv_connect_bad){offsetof(struct nv_connect_sqe, field), false, ""})

/* --- Connect -------------------- */

static nv_status refused(uint64_t *result, struct nv_connect_bad where)
{
	*result = nv_connect_bad_dw0(&where);
	return NV_CONNECT_INVALID;
}

static nv_status connect_admin(struct queue *q, struct subsys *s, const struct nv_connect *connect,
			       uint64_t *result)
{
	struct target *t = q->target;
	struct ctrl *c;
	int rc;

	if (connect->cntlid != NV_CNTLID_DYNAMIC)
		return refused(result, DATA(cntlid));
	if (target_counts(t)->ctrls >= t->ctrls_max)
		return NV_CONNECT_BUSY;
	if (ctrl_make(s, connect, &c) != 0)
		return NV_INTERNAL_ERROR;
	rc = queue_live(q, c, connect);
	if (rc != 0)
		ctrl_kill(c);
	else
		log_event(LOG_INFO, "connect", LOG_TEXT("host", c->hostnqn),
			  LOG_TEXT("subsystem", s->nqn), LOG_NUMBER("controller", c->cntlid),
			  LOG_TEXT("peer", wire_peer(q->conn)));
	*result = rc == 0 ? nv_connect_ok_dw0(c->cntlid) : 0;
	ctrl_put(c);
	return rc == 0 ? NV_OK : NV_INTERNAL_ERROR;
}

/* *moved: it is on its way to another lane, not ours any more. */
static nv_status connect_io(struct queue *q, struct subsys *s, const struct nv_connect *connect,
			    uint64_t *result, bool *moved)
{
	struct ctrl *c = ctrl_find(s, connect->cntlid);
	struct lane *to = q->paused ? lane_choose(q->target) : q->lane;

	if (s->discovery)
		return NV_INVALID_QUEUE_TYPE;
	if (c == NULL || strcmp(c->hostnqn, connect->hostnqn) != 0 ||
	    memcmp(c->hostid, connect->hostid, sizeof(c->hostid)) != 0)
		return refused(result, DATA(cntlid));
	if (c->state != CTRL_READY)
		return NV_SEQUENCE_ERROR;
	if (connect->qid > c->queues_granted || c->queue[connect->qid] != NULL)
		return NV_INVALID_QID;
	if (to != q->lane) {
		queue_move(q, c, connect, to);
		*moved = true;
		return NV_OK;
	}
	if (queue_live(q, c, connect) != 0)
		return NV_INTERNAL_ERROR;
	*result = nv_connect_ok_dw0(c->cntlid);
	return NV_OK;
}

static nv_status connect_judge(struct queue *q, const struct nv_sqe *sqe, uint64_t *result,
			       bool *moved)
{
	struct target *t = q->target;
	struct nv_connect connect;
	struct nv_connect_bad bad;
	struct subsys *s;
	nv_status status = nv_connect_parse(sqe, q->connect_data, sizeof(*q->connect_data),
					    &connect, &bad);

	if (!nv_status_ok(status)) {
		*result = nv_connect_bad_dw0(&bad);
		return status;
	}
	s = subsys_find(t, connect.subnqn);
	if (s == NULL || !subsys_allows(s, connect.hostnqn)) {
#ifdef KVOF_PLANT_TARGET_NAME_TOLD
		if (s == NULL)
#else
		if (!subsys_hides_from(t, connect.hostnqn))
#endif
			return refused(result, DATA(subnqn));
		COUNT(&t->lane[0], hosts_refused, 1);
		log_event(LOG_WARN, "host_refused", LOG_TEXT("host", connect.hostnqn),
			  LOG_TEXT("subsystem", connect.subnqn),
			  LOG_TEXT("peer", wire_peer(q->conn)),
			  LOG_TEXT("why", "not on the list (--allow-host)"));
		return NV_CONNECT_INVALID_HOST;
	}
	if (connect.sq_entries > TARGET_QUEUE_ENTRIES)
		return refused(result, SQE(sqsize));
	return connect.qid == 0 ? connect_admin(q, s, &connect, result) :
				  connect_io(q, s, &connect, result, moved);
}

static void connect_answer(struct queue *q, struct wire_cmd *cmd, nv_status status, uint64_t result)
{
	struct nv_cqe cqe = queue_cqe(q, cmd, status, result);

	if (!nv_status_ok(status))
		COUNT(q->lane, connects_refused, 1);
	wire_respond(cmd, &cqe);
}

void connect_end(struct queue *q, nv_status status, uint64_t result)
{
	struct wire_cmd *cmd = q->connect_cmd;

	must(cmd != NULL && q->busy > 0);
	q->connect_cmd = NULL;
	connect_answer(q, cmd, status, result);
	free(q->connect_data);
	q->connect_data = NULL;
	q->busy--;
	COUNT(q->lane, connects, nv_status_ok(status));
	if (q->state == QUEUE_CONNECTING)
		queue_go(q, QUEUE_NEW);
}

static void connect_decide(struct queue *q)
{
	uint64_t result = 0;
	bool moved = false;
	nv_status status = connect_judge(q, &q->connect_cmd->sqe, &result, &moved);

	if (moved)
		return;
	if (q->paused)
		wire_resume(q->conn);
	q->paused = false;
	connect_end(q, status, result);
	queue_done(q);
}

/* Nothing of the connection is in flight: it may move. */
static void connect_paused(struct wire_conn *conn, int res)
{
	struct queue *q = wire_conn_arg(conn);

	OBJ_CHECK(q, QUEUE_MAGIC);
	must(q->connect_cmd != NULL && !q->paused);
	if (q->state == QUEUE_DEAD || res != 0) {
		connect_end(q, NV_ABORTED_SQ_DELETED, 0);
		queue_done(q);
		return;
	}
	q->paused = true;
	connect_decide(q);
}

static void connect_pulled(struct wire_cmd *cmd, int res)
{
	struct queue *q = cmd->owner;
	bool io = le16_get(((const struct nv_connect_sqe *)&cmd->sqe)->qid) != 0;

	OBJ_CHECK(q, QUEUE_MAGIC);
	must(q->connect_cmd == cmd && q->busy > 0);
	if (q->state != QUEUE_DEAD && res == 0) {
		if (io && q->target->lane_count > 1 && wire_can_move(q->conn))
			wire_pause(q->conn, connect_paused);
		else
			connect_decide(q);
		return;
	}
	connect_end(q, q->state == QUEUE_DEAD ? NV_ABORTED_SQ_DELETED :
		    res == -EBADMSG ? NV_TRANSIENT_TRANSPORT : nv_status_from_errno(res), 0);
	queue_done(q);
}

static nv_status connect_begin(struct queue *q, struct wire_cmd *cmd, uint64_t *result)
{
	struct nv_sgl_want want = {NV_DATA_TO_CONTROLLER, sizeof(struct nv_connect_data),
				   cmd->inline_bytes};
	struct nv_data data;
	struct bad bad;
	nv_status status;

	if (le32_get(cmd->sqe.sgl.bytes) != sizeof(struct nv_connect_data))
		return refused(result, (struct nv_connect_bad){
			offsetof(struct nv_sqe, sgl) + offsetof(struct nv_sgl, bytes), false, ""});
	status = nv_sgl_check(&cmd->sqe, &want, &data, &bad);
	if (!nv_status_ok(status))
		return status;
	q->connect_data = calloc(1, sizeof(*q->connect_data));
	if (q->connect_data == NULL)
		return NV_INTERNAL_ERROR;
	queue_go(q, QUEUE_CONNECTING);
	q->busy++;
	q->connect_cmd = cmd;
	cmd->owner = q;
	q->connect_iov = (struct iovec){q->connect_data, sizeof(*q->connect_data)};
	wire_pull(cmd, &q->connect_iov, 1, sizeof(*q->connect_data), connect_pulled);
	return NV_OK;
}

/* Which fabrics commands there are; the others are 00h/01h wherever they come. */
static bool fctype_known(uint8_t fctype)
{
	return fctype == NV_FABRICS_CONNECT || fctype == NV_FABRICS_PROPERTY_GET ||
	       fctype == NV_FABRICS_PROPERTY_SET || fctype == NV_FABRICS_DISCONNECT;
}

void fabrics_first(struct queue *q, struct wire_cmd *cmd)
{
	bool fabrics = cmd->sqe.opcode == NV_OPCODE_FABRICS;
	uint64_t result = 0;
	nv_status status;

	if (fabrics && !fctype_known(nv_fctype(&cmd->sqe)))
		status = NV_INVALID_OPCODE;
	else if (!fabrics || nv_fctype(&cmd->sqe) != NV_FABRICS_CONNECT || q->state != QUEUE_NEW)
		status = NV_SEQUENCE_ERROR;
	else if (cmd->sqe.flags & NV_SQE_FUSE)
		status = NV_INVALID_FIELD;
	else
		status = connect_begin(q, cmd, &result);
	if (!nv_status_ok(status))
		connect_answer(q, cmd, status, result);
}

/* --- after Connect -------------------- */

static void property_get(struct req *req)
{
	struct ctrl *c = req->queue->ctrl;
	struct nv_cap cap = ctrl_cap();
	struct nv_property p;
	struct bad bad;
	nv_status status = nv_property_parse(&req->cmd->sqe, &p, &bad);
	uint64_t value = 0;

	if (!nv_status_ok(status)) {
		req_fail(req, status, &bad);
		return;
	}
	switch (p.offset) {
	case NV_PROP_CAP:
		value = nv_cap_pack(&cap);
		break;
	case NV_PROP_VS:
		value = NV_VS(2, 0, 0);
		break;
	case NV_PROP_CC:
		value = c->cc;
		break;
	case NV_PROP_CSTS:
		value = ctrl_csts_of(c->state, c->cc);
		break;
	case NV_PROP_NSSR:
	case NV_PROP_CRTO:
		break;                                 /* there, without a function: zero */
	default:
		req_fail(req, NV_CONNECT_INVALID,
			 &(struct bad){offsetof(struct nv_property_sqe, offset), "no property"});
		return;
	}
	req_answer(req, NV_OK, value);
	req_end(req);
}

static void property_set(struct req *req)
{
	struct nv_cap cap = ctrl_cap();
	struct nv_property p;
	struct bad bad;
	nv_status status = nv_property_parse(&req->cmd->sqe, &p, &bad);

	must(req->queue->qid == 0);
	if (nv_status_ok(status) && p.offset != NV_PROP_CC)
		status = nv_bad(&bad, NV_CONNECT_INVALID, offsetof(struct nv_property_sqe, offset),
				"not a property that can be set");
	if (nv_status_ok(status))
		status = nv_cc_check((uint32_t)p.value, &cap, &bad);
	if (!nv_status_ok(status)) {
		req_fail(req, status, &bad);
		return;
	}
	ctrl_cc_write(req->queue->ctrl, (uint32_t)p.value);
	req_answer(req, NV_OK, 0);
	req_end(req);
}

/* [FABRICS 1.1] section 3.4: for an I/O queue only; the host closes when it has the answer. */
static void disconnect(struct req *req)
{
	const struct nv_connect_sqe *sqe = (const struct nv_connect_sqe *)&req->cmd->sqe;
	struct queue *q = req->queue;

	if (le16_get(sqe->recfmt) != 0) {
		req_fail(req, NV_CONNECT_FORMAT,
			 &(struct bad){offsetof(struct nv_connect_sqe, recfmt), "record format"});
		return;
	}
	if (q->qid == 0) {
		req_fail(req, NV_INVALID_QUEUE_TYPE, NULL);
		return;
	}
	COUNT(q->lane, disconnects, 1);
	queue_go(q, QUEUE_LEAVING);
	loop_timer_set(q->lane->loop, &q->timer, loop_now_ns(q->lane->loop) + DISCONNECT_LINGER_NS);
	req_answer(req, NV_OK, 0);
	req_end(req);
}

void fabrics_command(struct req *req)
{
	uint8_t fctype = nv_fctype(&req->cmd->sqe);
	bool admin = req->queue->qid == 0;

	if (fctype == NV_FABRICS_CONNECT)
		req_fail(req, NV_SEQUENCE_ERROR, NULL);
	else if (fctype == NV_FABRICS_DISCONNECT)
		disconnect(req);
	else if (fctype == NV_FABRICS_PROPERTY_GET && admin)
		property_get(req);
	else if (fctype == NV_FABRICS_PROPERTY_SET && admin)
		property_set(req);
	else
		req_fail(req, NV_INVALID_OPCODE,
			 &(struct bad){offsetof(struct nv_fabrics_sqe, fctype), "not here"});
}
