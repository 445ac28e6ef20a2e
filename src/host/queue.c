/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots of the I/O queues, and the life of an operation between submit and its end.
 *
 *	          order says wait          slot free
 *	submit -> HELD ------------> READY ---------> FLIGHT -> done
 *	   |                           ^               |  | cancel: DYING -> done
 *	   +-> SOON -> done            +---- retry ----+  + deadline: done, BUSY -> released
 *
 * A slot is a command identifier of one queue. It is free again when the controller has answered.
 * Withdrawn: the wire gives the buffers back as soon as no byte can move; from then on the slot is
 * a GHOST until the answer comes, keeps its identifier, and, for a Store or Delete, its place in
 * the order of its key.
 *
 *	queue: free + in flight + withdrawn + ghosts = depth
 *
 * An association is given up (and a new one made) when a withdrawn buffer is not free after
 * HOST_RELEASE_NS, when a ghost is HOST_SILENCE_NS old, or when ghosts hold all slots.
 *
 * On the host's loop. done() and released() are only called from the loop's own callbacks.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/impl.h"

#define SWEEP_NS (20 * NS_PER_MS)

int queue_init(struct queue *q, struct assoc *a, uint16_t qid, uint16_t depth)
{
	must(depth >= 1 && depth <= HOST_DEPTH_MAX);
	*q = (struct queue){.assoc = a, .qid = qid, .depth = depth};
	q->slot = calloc(depth, sizeof(q->slot[0]));
	q->free_cid = calloc(depth, sizeof(q->free_cid[0]));
	if (q->slot == NULL || q->free_cid == NULL) {
		queue_free(q);
		return -ENOMEM;
	}
	for (uint16_t i = 0; i < depth; i++) {
		q->slot[i].queue = q;
		q->free_cid[q->free_count++] = (uint16_t)(depth - 1 - i);
	}
	return 0;
}

void queue_free(struct queue *q)
{
	must(q->conn == NULL);
	free(q->slot);
	free(q->free_cid);
	*q = (struct queue){0};
}

/* --- the end of an operation -------------------- */

static void op_ready(void *arg, struct host_op *op)
{
	struct host *h = arg;

	must(op != NULL && op_lease(op)->state == OP_HELD);
	list_remove(&op->link);
	op_lease(op)->state = OP_READY;
	list_push_back(&h->ready, &op->link);
}

/* Off every list of the host. */
static void op_detach(struct host *h, struct host_op *op)
{
	struct op_lease *l = op_lease(op);

	if (list_linked(&op->link))
		list_remove(&op->link);
	deadline_heap_remove(&h->deadlines, op);
	if (l->ordered) {
		l->ordered = false;
		l->order.held = false;
		order_leave(&h->order, &l->order, op_ready, h);
	}
}

static void op_over(struct host *h, struct host_op *op)
{
	must(h->ops > 0);
	h->ops--;
	op_lease(op)->state = 0;
}

static void op_done(struct host *h, struct host_op *op, int res)
{
	op_detach(h, op);
	op_over(h, op);
	if (res != 0 && res != -ENOENT && res != -EEXIST)
		h->stat.errors++;
	if (res == -ETIMEDOUT)
		h->stat.timeouts++;
	op->done(op, res);
	host_check_closed(h);
}

static void op_soon_done(struct loop_op *soon, int res)
{
	struct op_lease *l = container_of(soon, struct op_lease, soon);
	struct host_op *op = container_of((uint64_t *)(void *)l, struct host_op, lease[0]);

	(void)res;
	must(l->state == OP_SOON);
	op_done(l->host, op, l->res);
}

/* Answers in the next turn: from inside host_submit() and host_cancel() nothing is called back. */
static void op_soon(struct host *h, struct host_op *op, int res)
{
	struct op_lease *l = op_lease(op);

	op_detach(h, op);
	l->state = OP_SOON;
	l->res = res;
	l->soon.done = op_soon_done;
	loop_soon(h->loop, &l->soon, 0);
}

/* --- slots -------------------- */

static void slot_release(struct host *h, struct slot *s)
{
	struct queue *q = s->queue;

	must(s->state != SLOT_FREE);
	if (list_linked(&s->age))
		list_remove(&s->age);
	if (s->ordered) {
		s->ordered = false;
		order_leave(&h->order, &s->order, op_ready, h);
	}
	if (s->state == SLOT_GHOST)
		q->ghost_count--;
	s->state = SLOT_FREE;
	q->free_cid[q->free_count++] = (uint16_t)(s - q->slot);
	must(q->free_count + q->ghost_count <= q->depth);
}

static void slot_ghost(struct slot *s, struct host_op *op)
{
	struct op_lease *l = op_lease(op);

	must(s->state == SLOT_WITHDRAWN && list_linked(&s->age));
	s->state = SLOT_GHOST;
	s->queue->ghost_count++;
#ifdef KVOF_PLANT_HOST_GHOST_FORGOTTEN
	return;
#endif
	if (l->ordered && l->order.changes) {
		order_bequeath(&l->order, &s->order);
		l->ordered = false;
		s->ordered = true;
	}
}

static void slot_withdraw(struct host *h, struct slot *s)
{
	must(s->state == SLOT_FLIGHT);
	s->state = SLOT_WITHDRAWN;
	s->since_ns = loop_now_ns(h->loop);
	list_push_back(&h->old, &s->age);
	if (!loop_timer_is_set(&h->sweep))
		loop_timer_set(h->loop, &h->sweep, s->since_ns + SWEEP_NS);
	if (s->queue->conn != NULL)
		wire_withdraw(s->queue->conn, &s->req);
}

static void ghosts_reap(struct host *h)
{
	LIST_FOR_EACH_SAFE(at, &h->old) {
		struct slot *s = container_of(at, struct slot, age);

		if (s->state == SLOT_GHOST &&
		    wire_cid_free(s->queue->conn, (uint16_t)(s - s->queue->slot)))
			slot_release(h, s);
	}
}

void queue_forget(struct host *h, struct assoc *a)
{
	LIST_FOR_EACH_SAFE(at, &h->old) {
		struct slot *s = container_of(at, struct slot, age);

		if (s->queue->assoc == a && s->state == SLOT_GHOST)
			slot_release(h, s);
	}
}

void queue_sweep_fire(struct loop_timer *t)
{
	struct host *h = container_of(t, struct host, sweep);
	uint64_t now = loop_now_ns(h->loop);

	ghosts_reap(h);
	LIST_FOR_EACH(at, &h->old) {
		struct slot *s = container_of(at, struct slot, age);
		struct assoc *a = s->queue->assoc;

		if (s->state == SLOT_WITHDRAWN && now - s->since_ns >= HOST_RELEASE_NS)
			assoc_fail(a, -ETIMEDOUT,
				   "%s port %u: data of a withdrawn command stopped on its way",
				   a->opts.addr.host, a->opts.addr.port);
		if (s->state == SLOT_GHOST && now - s->since_ns >= HOST_SILENCE_NS)
			assoc_fail(a, -ETIMEDOUT, "%s port %u: a command was never answered",
				   a->opts.addr.host, a->opts.addr.port);
	}
	if (!list_empty(&h->old))
		loop_timer_set(h->loop, t, now + SWEEP_NS);
	queue_kick(h);
}

/* --- a command came back -------------------- */

static int op_result(struct host *h, struct host_op *op, const struct wire_req *req, int res,
		     enum retry *again)
{
	struct op_lease *l = op_lease(op);
	struct retry_facts f = {
		.kind = op->kind,
		.repeat_ok = op->repeat_ok,
		.once = h->opts.once,
		.digest_tries = l->digest_tries,
		.reset_tries = l->reset_tries,
	};
	int out = res;

	if (res == 0) {
		out = op_is_block(op) ? block_answer_read(op, req) :
					kv_answer_read(op, req, l->maybe_done);
		if (h->assoc != NULL)
			h->assoc->answered = true;
	}
	f.res = res;
	f.status = op->status;
	*again = h->closing ? RETRY_NO : retry_decide(&f);
	h->stat.bytes_in += req->in_bytes_got;
	h->stat.bytes_out += res == 0 ? req->out_bytes : 0;
	if (retry_is_lost(res))
		out = h->closing ? -ESHUTDOWN : res == -EPROTO ? -EPROTO : -ECONNRESET;
	return out;
}

static void op_came_back(struct host *h, struct host_op *op, const struct wire_req *req, int res)
{
	struct op_lease *l = op_lease(op);
	enum retry again;
	int out = op_result(h, op, req, res, &again);

	l->slot = NULL;
	if (l->state == OP_BUSY) {
		op_detach(h, op);
		op_over(h, op);
		op->released(op);
		host_check_closed(h);
		return;
	}
	if (l->state == OP_DYING) {
		op_done(h, op, res == 0 && again == RETRY_NO ? out :
			       h->closing ? -ESHUTDOWN : -ECANCELED);
		return;
	}
	must(l->state == OP_FLIGHT);
	if (again == RETRY_NO) {
		op_done(h, op, out);
		return;
	}
	if (again == RETRY_NOW) {
		l->digest_tries++;
		h->stat.digest_retries++;
	} else {
		l->reset_tries++;
		l->maybe_done = true;
		h->stat.repeats++;
	}
	l->state = OP_READY;
	list_push_front(&h->ready, &op->link);
}

static void slot_done(struct wire_req *req, int res)
{
	struct slot *s = container_of(req, struct slot, req);
	struct queue *q = s->queue;
	struct assoc *a = q->assoc;
	struct host *h = a->arg;
	struct host_op *op = s->op;

	OBJ_CHECK(h, HOST_MAGIC);
	must(op != NULL && op_lease(op)->slot == s);
	if (a->step != STEP_DEAD && retry_is_lost(res))
		assoc_lost(a, res);
	q->load -= s->load;
	s->op = NULL;
	if (res == -ECANCELED && a->step == STEP_LIVE && s->state == SLOT_WITHDRAWN &&
	    !wire_cid_free(q->conn, req->cid))
		slot_ghost(s, op);
	else
		slot_release(h, s);
	/* req is the slot's own and is read before a callback may use the slot again. */
	op_came_back(h, op, req, res);
	assoc_returned(a);
	queue_kick(h);
}

/* --- sending -------------------- */

static struct queue *queue_least_loaded(struct assoc *a)
{
	struct queue *best = NULL;

	for (unsigned i = 0; i < a->queue_count; i++) {
		struct queue *q = &a->queue[i];

		if (q->free_count > 0 && (best == NULL || q->load < best->load))
			best = q;
	}
	return best;
}

static bool queue_all_ghosts(const struct assoc *a)
{
	for (unsigned i = 0; i < a->queue_count; i++)
		if (a->queue[i].ghost_count < a->queue[i].depth)
			return false;
	return true;
}

static void op_send(struct host *h, struct queue *q, struct host_op *op)
{
	struct op_lease *l = op_lease(op);
	uint16_t cid = q->free_cid[q->free_count - 1];
	struct slot *s = &q->slot[cid];

	must(s->state == SLOT_FREE && l->state == OP_READY);
	if (op_is_block(op) != (h->ns.block_bytes != 0) ||
	    (op_is_block(op) ? block_request_build(&h->ns, op, &s->req) :
			       kv_request_build(&h->ns, op, &s->req)) < 0) {
		op_soon(h, op, -EINVAL);
		return;
	}
	q->free_count--;
	list_remove(&op->link);
	s->req.cid = cid;
	s->req.done = slot_done;
	s->op = op;
	s->state = SLOT_FLIGHT;
	s->load = (uint32_t)bytes_min((uint64_t)op->bytes + HOST_LOAD_COMMAND, UINT32_MAX);
	q->load += s->load;
	l->slot = s;
	l->state = OP_FLIGHT;
	q->assoc->out++;
	wire_submit(q->conn, &s->req);
}

void queue_kick(struct host *h)
{
	struct assoc *a = h->assoc;

	if (a == NULL || a->step != STEP_LIVE || a->opts.discovery)
		return;
	while (!list_empty(&h->ready) && a->step == STEP_LIVE) {
		struct queue *q = queue_least_loaded(a);

		if (q == NULL && !list_empty(&h->old)) {
			ghosts_reap(h);
			q = queue_least_loaded(a);
		}
		if (q == NULL) {
			if (queue_all_ghosts(a))
				assoc_fail(a, -ETIMEDOUT,
					   "%s port %u: no command is answered any more",
					   a->opts.addr.host, a->opts.addr.port);
			break;
		}
		op_send(h, q, container_of(h->ready.next, struct host_op, link));
	}
}

static bool op_well_formed(const struct host_op *op)
{
	if ((unsigned)op->kind > HOST_COMPARE || op->key.len > KV_KEY_BYTES_MAX)
		return false;
	if (op_is_block(op))
		return !op->if_absent && !op->if_present;
	if (op->key.len == 0 && op->kind != HOST_LIST)
		return false;
	if (op->kind == HOST_LIST && op->bytes < NV_KV_LIST_HEADER_BYTES)
		return false;
	return !(op->if_absent && op->if_present);
}

static int op_refusal(const struct host *h, const struct host_op *op)
{
	if (h->closing)
		return -ESHUTDOWN;
	if (!op_well_formed(op))
		return -EINVAL;
	if (h->opts.once && h->state == HOST_DOWN)
		return -ECONNRESET;
	if (h->ops > h->opts.backlog_max)
		return -EBUSY;
	if (op->deadline_ns != 0 && op->deadline_ns <= loop_now_ns(h->loop))
		return -ETIMEDOUT;
	return 0;
}

void host_submit(struct host *h, struct host_op *op)
{
	struct op_lease *l = op_lease(op);
	bool now = true;
	int rc;

	OBJ_CHECK(h, HOST_MAGIC);
	loop_must_own(h->loop);
	must(op->done != NULL);
	memset(l, 0, sizeof(*l));
	op->link = (struct list_link){0};
	op->value_bytes = op->moved_bytes = 0;
	op->status = NV_OK;
	op->busy = false;
	l->host = h;
	h->ops++;
	h->stat.ops++;
	rc = op_refusal(h, op);
	if (rc < 0) {
		op_soon(h, op, rc);
		return;
	}
	if (op->deadline_ns != 0) {
		must(op->released != NULL);
		deadline_heap_add(&h->deadlines, op);
		if (deadline_heap_first(&h->deadlines) == op)
			loop_timer_set(h->loop, &h->deadline, op->deadline_ns);
	}
	if (op->kind != HOST_LIST && !op_is_block(op)) {
		l->order.key = op->key;
		l->order.changes = kv_op_changes(op);
		l->order.op = op;
		l->ordered = true;
		now = order_enter(&h->order, &l->order);
	}
	l->state = now ? OP_READY : OP_HELD;
	list_push_back(now ? &h->ready : &h->held, &op->link);
	if (now)
		queue_kick(h);
}

void host_cancel(struct host *h, struct host_op *op)
{
	struct op_lease *l = op_lease(op);

	OBJ_CHECK(h, HOST_MAGIC);
	loop_must_own(h->loop);
	switch (l->state) {
	case OP_HELD:
	case OP_READY:
		op_soon(h, op, -ECANCELED);
		queue_kick(h);
		break;
	case OP_FLIGHT:
		l->state = OP_DYING;
		slot_withdraw(h, l->slot);
		break;
	default:
		break;                 /* over, or on its way */
	}
}

/* --- deadlines -------------------- */

static void op_late(struct host *h, struct host_op *op)
{
	struct op_lease *l = op_lease(op);
	bool canceled = l->state == OP_DYING;

	if (l->state == OP_HELD || l->state == OP_READY) {
		op_done(h, op, -ETIMEDOUT);
		return;
	}
	must(l->state == OP_FLIGHT || l->state == OP_DYING);
	deadline_heap_remove(&h->deadlines, op);
	l->state = OP_BUSY;
	op->busy = true;
	if (!canceled)
		slot_withdraw(h, l->slot);
	h->stat.errors++;
	h->stat.timeouts += !canceled;
	op->done(op, canceled ? -ECANCELED : -ETIMEDOUT);
}

void queue_deadline_fire(struct loop_timer *t)
{
	struct host *h = container_of(t, struct host, deadline);
	struct host_op *op;

	while ((op = deadline_heap_first(&h->deadlines)) != NULL &&
	       op->deadline_ns <= loop_now_ns(h->loop))
		op_late(h, op);
	if (op != NULL)
		loop_timer_set(h->loop, t, op->deadline_ns);
	queue_kick(h);
}

void queue_refuse_waiting(struct host *h, int res)
{
	while (!list_empty(&h->held))
		op_soon(h, container_of(h->held.next, struct host_op, link), res);
	while (!list_empty(&h->ready))
		op_soon(h, container_of(h->ready.next, struct host_op, link), res);
}
