/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous events: what a host is told of by completing one of its Event Requests. [BASE 2.0]
 * section 5.2
 *
 *	due ─ told: enabled, and a request is there ─ the log was read, RAE clear ─ may be due again
 *
 * An event that was told is masked until the host has read its log, which tells what came in
 * between: so nothing is lost and nothing is told twice. The list of changed
 * namespaces is kept whether or not the host asked for the event. The controller's loop.
 */
#include "target/core.h"

static const struct event_row {
	uint32_t enabled_by;                           /* bit of feature 0Bh */
	uint32_t dw0;
} event_rows[EVENTS] = {
	/* SMART event 00h, reliability; critical warning bit 2 in feature 0Bh */
	[EVENT_HEALTH] = {UINT32_C(1) << 2, UINT32_C(1) | 0x00 << 8 | NV_LOG_SMART << 16},
	[EVENT_NAMESPACE] = {NV_ASYNC_NAMESPACE, NV_EVENT_NAMESPACE_CHANGED},
	[EVENT_DISCOVERY] = {NV_ASYNC_DISCOVERY, NV_EVENT_DISCOVERY_CHANGED},
};

static void event_tell(struct ctrl *c)
{
	for (unsigned i = 0; i < EVENTS && c->aer_count > 0; i++) {
		struct req *req;

		if ((c->events_due & 1u << i) == 0 || (c->events_told & 1u << i) != 0)
			continue;
		must(event_rows[i].dw0 != 0);
		c->events_due &= ~(1u << i);
		c->events_told |= 1u << i;
		req = c->aer[--c->aer_count];
		req_answer(req, NV_OK, event_rows[i].dw0);
		req_end(req);
	}
}

void event_come(struct ctrl *c, enum event event)
{
	OBJ_CHECK(c, CTRL_MAGIC);
	must(event < EVENTS);
	if ((c->events_on & event_rows[event].enabled_by) == 0)
		return;
	c->events_due |= 1u << event;
	event_tell(c);
}

void event_log_read(struct ctrl *c, enum event event)
{
	must(event < EVENTS);
	c->events_told &= ~(1u << event);
	c->events_due &= ~(1u << event);               /* the log has just told it */
	event_tell(c);
}

void event_reset(struct ctrl *c)
{
	c->events_on = 0;
	c->events_due = c->events_told = 0;
	c->changed = 0;
}

void event_request(struct req *req)
{
	struct ctrl *c = req->queue->ctrl;

	if (c->aer_count == TARGET_EVENTS) {
		req_fail(req, NV_AER_LIMIT, NULL);
		return;
	}
	req_go(req, REQ_AER);
	c->aer[c->aer_count++] = req;
	event_tell(c);
}

/* Takes the request of that CID off the list; NULL: it is none of these. */
static struct req *request_take(struct ctrl *c, uint16_t cid)
{
	must(c->aer_count <= TARGET_EVENTS);
	for (unsigned i = 0; i < c->aer_count; i++) {
		struct req *req = c->aer[i];

		if (le16_get(req->cmd->sqe.cid) != cid)
			continue;
		c->aer[i] = c->aer[--c->aer_count];
		return req;
	}
	return NULL;
}

bool event_request_abort(struct ctrl *c, uint16_t cid)
{
	struct req *req = request_take(c, cid);

	if (req == NULL)
		return false;
	req_answer(req, NV_ABORTED_BY_REQUEST, 0);
	req_end(req);
	return true;
}

bool event_request_forget(struct ctrl *c, uint16_t cid)
{
	struct req *req = request_take(c, cid);

	if (req == NULL)
		return false;
	req_go(req, REQ_FORGOTTEN);                    /* ends with the connection */
	return true;
}

void event_requests_drop(struct ctrl *c)
{
	while (c->aer_count > 0)
		(void)event_request_abort(c, le16_get(c->aer[0]->cmd->sqe.cid));
}
