/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fair use of a namespace's buffers. A buffer that waits for a host's data (R2T) is the one thing
 * that a host can hold without doing anything, so:
 *
 *  - a controller holds at most pool / (controllers + 1), but always one request whatever its size;
 *  - one that has not yet sent what it promised ("unproven") holds one such buffer at a time, and
 *    all unproven controllers together half of the pool;
 *  - data that came in the capsule is here already and waits for nothing but the store's own queue.
 *
 * So hosts that ask for buffers and move nothing leave half of the pool to those that work, until
 * the wire's stall timer closes them. Not a limit on buffers by count: a host with small values
 * would be held back for nothing.
 *
 * Order: first come, first served among the requests of one controller. The target's loop.
 */
#include "target/core.h"

static bool share_has_room(const struct req *req)
{
	const struct ctrl *c = req->queue->ctrl;
	const struct ns *ns = req->ns;

	if (req->pulls && !c->proven)
		return c->pulling == 0 &&
		       (ns->unproven_bytes == 0 ||
			ns->unproven_bytes + req->share_bytes <= ns->buffer_bytes / 2);
	return c->leased_bytes == 0 ||
	       c->leased_bytes + req->share_bytes <= subsys_share_bytes(c->subsys, ns);
}

static void share_admit(struct req *req)
{
	struct ctrl *c = req->queue->ctrl;

	must(!req->shared && req->state == REQ_NEW && !list_linked(&req->link));
	req->shared = true;
	c->leased_bytes += req->share_bytes;
	c->pulling += req->pulls;
	if (req->pulls && !c->proven) {
		req->unproven = true;
		req->ns->unproven_bytes += req->share_bytes;
	}
	if (req->wants_buf) {
		req_go(req, REQ_BUF);
		store_buf_take(req->ns->store, &req->wait);
	} else {
		req->ready(req);
	}
}

/* Admits those of a controller's waiting requests that fit now. */
static void share_wake(struct ctrl *c)
{
	LIST_FOR_EACH_SAFE(link, &c->share_wait) {
		struct req *next = container_of(link, struct req, link);

		if (next->queue->state == QUEUE_DEAD)
			continue;                      /* its req_cancel() is on its way */
		if (!share_has_room(next))
			return;
		list_remove(&next->link);
		req_go(next, REQ_NEW);
		share_admit(next);
	}
}

static void share_wake_all(struct subsys *s)
{
	LIST_FOR_EACH(link, &s->ctrls)
		share_wake(container_of(link, struct ctrl, link));
}

void req_share_take(struct req *req, uint32_t bytes, void (*ready)(struct req *req))
{
	struct ctrl *c = req->queue->ctrl;

	must(!req->shared && req->state == REQ_NEW);
	req->share_bytes = bytes;
	req->ready = ready;
	if (list_empty(&c->share_wait) && share_has_room(req)) {
		share_admit(req);
		return;
	}
	req_go(req, REQ_SHARE);
	list_push_back(&c->share_wait, &req->link);
}

static void req_buf_ready(struct store_buf_wait *wait, struct store_buf *buf)
{
	struct req *req = container_of(wait, struct req, wait);
	struct queue *q = req->queue;

	must(req->state == REQ_BUF && req->buf == NULL);
	req->buf = buf;
	if (q->state == QUEUE_DEAD)
		req_end(req);
	else if (req->ns->leaving)
		req_fail(req, NV_INVALID_NAMESPACE, NULL);
	else
		req->ready(req);
	queue_done(q);
}

void req_buf_take(struct req *req, uint32_t bytes, void (*ready)(struct req *req))
{
	must(req->buf == NULL && bytes <= req->ns->value_bytes_max);
	req->wants_buf = true;
	req->wait = (struct store_buf_wait){.payload_bytes = bytes, .ready = req_buf_ready};
	req->pulls = req->kv.dir == NV_DATA_TO_CONTROLLER && req->cmd->inline_bytes == 0;
	if (req->kv.dir == NV_DATA_TO_HOST || req->pulls) {
		req_share_take(req, bytes, ready);
		return;
	}
	req->ready = ready;
	req_go(req, REQ_BUF);
	store_buf_take(req->ns->store, &req->wait);
}

static bool unproven_end(struct req *req)
{
	if (!req->unproven)
		return false;
	must(req->ns->unproven_bytes >= req->share_bytes);
	req->ns->unproven_bytes -= req->share_bytes;
	req->unproven = false;
	return true;
}

static void pulling_end(struct req *req)
{
	struct ctrl *c = req->queue->ctrl;

	if (!req->pulls)
		return;
	must(c->pulling > 0);
	c->pulling--;
	req->pulls = false;
}

void req_pull_came(struct req *req)
{
	struct ctrl *c = req->queue->ctrl;

	if (!req->shared || !req->pulls)
		return;
	c->proven = true;
	pulling_end(req);
	if (unproven_end(req))
		share_wake_all(c->subsys);
	else
		share_wake(c);
}

void req_share_give(struct req *req, uint32_t keep_bytes)
{
	struct ctrl *c = req->queue->ctrl;
	bool all = false;

	if (!req->shared || (keep_bytes > 0 && keep_bytes >= req->share_bytes))
		return;
	if (keep_bytes == 0) {
		pulling_end(req);
		all = unproven_end(req);
		req->shared = false;
	}
	must(c->leased_bytes >= req->share_bytes - keep_bytes);
	c->leased_bytes -= req->share_bytes - keep_bytes;
	req->share_bytes = keep_bytes;
	if (all)
		share_wake_all(c->subsys);
	share_wake(c);
}
