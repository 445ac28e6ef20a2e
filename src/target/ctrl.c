/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A controller is one association: a host's admin queue, its I/O queues, and the registers that the
 * host sees through Property Get and Set.
 *
 *	state      CSTS               leaves by
 *	OFF        0                  CC.EN
 *	READY      RDY                CC.EN clear, CC.SHN
 *	STOPPING   RDY                the last I/O queue is freed: no byte moves any more
 *	SHUTTING   RDY, SHST busy     I/O at work has ended and the namespaces are flushed
 *	SHUT       RDY, SHST done     CC.EN clear
 *	GONE       -                  the last reference (the admin queue is closed)
 *
 * What a write to CC asks for is decided by ctrl_step_of(), a pure function; ctrl_cc_write()
 * carries it out. CC may be written again while STOPPING or SHUTTING: it is looked at when that has
 * ended. The target's loop.
 */
#include "target/core.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"

/* [BASE 2.0]: FFF0h and above are reserved */
#define CNTLID_MAX 0xffef
#define DISCOVERY_IDLE_NS (120 * NS_PER_S)             /* a Discovery controller without a KATO */

static const uint8_t ctrl_next[CTRL_STATES] = {
	[CTRL_OFF] = 1 << CTRL_READY | 1 << CTRL_SHUTTING | 1 << CTRL_GONE,
	[CTRL_READY] = 1 << CTRL_STOPPING | 1 << CTRL_SHUTTING | 1 << CTRL_GONE,
	[CTRL_STOPPING] = 1 << CTRL_OFF | 1 << CTRL_GONE,
	[CTRL_SHUTTING] = 1 << CTRL_SHUT | 1 << CTRL_GONE,
	[CTRL_SHUT] = 1 << CTRL_STOPPING | 1 << CTRL_READY | 1 << CTRL_GONE,
};

bool ctrl_may_go(enum ctrl_state from, enum ctrl_state to)
{
	return ctrl_next[from] & 1u << to;
}

static void ctrl_go(struct ctrl *c, enum ctrl_state to)
{
	OBJ_CHECK(c, CTRL_MAGIC);
	must(ctrl_may_go(c->state, to));
	must(to != CTRL_OFF || c->io_queues == 0);
	c->state = to;
}

struct nv_cap ctrl_cap(void)
{
	return (struct nv_cap){.queue_entries_max = TARGET_QUEUE_ENTRIES, .contiguous_queues = true,
		.timeout_500ms = 30, .css_nvm = true, .css_iocs = true,
		.page_shift_min = 12, .page_shift_max = 12};
}

struct ctrl_step ctrl_step_of(enum ctrl_state from, uint32_t cc_old, uint32_t cc_new)
{
	bool on = cc_new & NV_CC_EN, was_on = cc_old & NV_CC_EN, shut = cc_new & NV_CC_SHN;

	switch (from) {
	case CTRL_OFF:
		if (shut)
			return (struct ctrl_step){CTRL_SHUTTING, false, true};
		return (struct ctrl_step){on ? CTRL_READY : CTRL_OFF, false, false};
	case CTRL_READY:
		if (shut)
			return (struct ctrl_step){CTRL_SHUTTING, false, true};
		return (struct ctrl_step){on ? CTRL_READY : CTRL_STOPPING, !on, false};
	case CTRL_SHUT:
		if (was_on && !on)
			return (struct ctrl_step){CTRL_STOPPING, true, false};
		if (!was_on && on && !shut)
			return (struct ctrl_step){CTRL_READY, true, false};
		return (struct ctrl_step){CTRL_SHUT, false, false};
	default:
		return (struct ctrl_step){from, false, false};
	}
}

uint32_t ctrl_csts_of(enum ctrl_state state, uint32_t cc)
{
	uint32_t on = cc & NV_CC_EN ? NV_CSTS_RDY : 0;

	switch (state) {
	case CTRL_READY:
	case CTRL_STOPPING:
		return NV_CSTS_RDY;
	case CTRL_SHUTTING:
		return on | NV_CSTS_SHST_BUSY;
	case CTRL_SHUT:
		return on | NV_CSTS_SHST_DONE;
	case CTRL_GONE:
		return NV_CSTS_CFS;
	default:
		return 0;
	}
}

/* --- life -------------------- */

static void features_reset(struct ctrl *c)
{
	c->queues_granted = c->target->queues_max;
	event_reset(c);
	c->feature_arbitration = c->feature_power = 0;
	c->feature_temperature = c->feature_recovery = 0;
	c->edneks_off = 0;
}

static void ctrl_alive_timer(struct loop_timer *timer)
{
	struct ctrl *c = container_of(timer, struct ctrl, alive);
	struct target *t = c->target;
	struct queue *admin = c->queue[0];

	OBJ_CHECK(c, CTRL_MAGIC);
	must(c->kato_ns > 0 && admin != NULL);
	if (loop_now_ns(t->loop) < c->heard_ns + c->kato_ns) {
		loop_timer_set(t->loop, timer, c->heard_ns + c->kato_ns);
		return;
	}
	t->counts.keep_alive_expired++;
	log_warn("controller %u of %s: nothing heard for %llu ms: dropped", c->cntlid, c->hostnqn,
		 (unsigned long long)(c->kato_ns / NS_PER_MS));
	queue_kill(admin);
	queue_done(admin);
}

void ctrl_heard(struct ctrl *c)
{
	c->heard_ns = loop_now_ns(c->target->loop);
}

/* Rounded up to the granularity that Identify names (KAS 1: 100 ms). 64-bit: 49 days fit. */
void ctrl_keep_alive_set(struct ctrl *c, uint32_t kato_ms)
{
	c->kato_ns = ((uint64_t)kato_ms + 99) / 100 * 100 * NS_PER_MS;
	if (kato_ms == 0 && c->subsys->discovery)
		c->kato_ns = DISCOVERY_IDLE_NS;
	ctrl_heard(c);
	if (c->kato_ns == 0)
		loop_timer_cancel(c->target->loop, &c->alive);
	else
		loop_timer_set(c->target->loop, &c->alive, c->heard_ns + c->kato_ns);
}

struct ctrl *ctrl_find(struct subsys *s, uint16_t cntlid)
{
	LIST_FOR_EACH(link, &s->ctrls) {
		struct ctrl *c = container_of(link, struct ctrl, link);

		if (c->cntlid == cntlid)
			return c;
	}
	return NULL;
}

static uint16_t cntlid_take(struct subsys *s)
{
	/* Fewer controllers than identifiers, so one is free. */
	must(s->ctrl_count < CNTLID_MAX);
	while (ctrl_find(s, s->cntlid_next) != NULL)
		s->cntlid_next = (uint16_t)(s->cntlid_next % CNTLID_MAX + 1);
	uint16_t taken = s->cntlid_next;

	s->cntlid_next = (uint16_t)(s->cntlid_next % CNTLID_MAX + 1);
	return taken;
}

int ctrl_make(struct subsys *s, const struct nv_connect *connect, struct ctrl **out)
{
	struct ctrl *c = calloc(1, sizeof(*c));
	uint32_t page_bytes = s->discovery ? TARGET_DISCOVERY_BYTES : TARGET_PAGE_BYTES;

	if (c == NULL)
		return -ENOMEM;
	c->page = malloc(page_bytes);
	if (c->page == NULL) {
		free(c);
		return -ENOMEM;
	}
	OBJ_INIT(c, CTRL_MAGIC);
	c->page_bytes = page_bytes;
	c->target = s->target;
	c->subsys = s;
	s->refs++;
	c->refs = 1;
	c->cntlid = cntlid_take(s);
	memcpy(c->hostnqn, connect->hostnqn, sizeof(c->hostnqn));
	memcpy(c->hostid, connect->hostid, sizeof(c->hostid));
	list_init(&c->share_wait);
	list_init(&c->page_wait);
	features_reset(c);
	loop_timer_init(&c->alive, ctrl_alive_timer);
	list_push_back(&s->ctrls, &c->link);
	s->ctrl_count++;
	s->target->counts.ctrls++;
	ctrl_keep_alive_set(c, connect->kato_ms);
	*out = c;
	return 0;
}

void ctrl_put(struct ctrl *c)
{
	OBJ_CHECK(c, CTRL_MAGIC);
	must(c->refs > 0);
	c->refs--;
	if (c->refs > 0)
		return;
	must(c->state == CTRL_GONE && c->io_queues == 0 && c->io_busy == 0 && c->aer_count == 0);
	must(c->leased_bytes == 0 && c->page_holder == NULL);
	must(list_empty(&c->share_wait) && list_empty(&c->page_wait));
	subsys_put(c->subsys);
	free(c->page);
	c->magic = 0;
	free(c);
}

static void ctrl_queues_stop(struct ctrl *c)
{
	for (unsigned i = 1; i <= TARGET_QUEUES; i++) {
		struct queue *q = c->queue[i];

		if (q == NULL)
			continue;
		queue_close(q);
		queue_done(q);
	}
}

void ctrl_kill(struct ctrl *c)
{
	OBJ_CHECK(c, CTRL_MAGIC);
	must(c->queue[0] == NULL && c->refs > 0);
	if (c->state == CTRL_GONE)
		return;
	ctrl_go(c, CTRL_GONE);
	loop_timer_cancel(c->target->loop, &c->alive);
	list_remove(&c->link);
	must(c->subsys->ctrl_count > 0 && c->target->counts.ctrls > 0);
	c->subsys->ctrl_count--;
	c->target->counts.ctrls--;
	ctrl_queues_stop(c);
}

/* --- CC -------------------- */

static void ctrl_flushed(struct store_op *op, int res);

/* One namespace after another; false: all are done. */
static bool flush_more(struct ctrl *c)
{
	while (c->flush_next < TARGET_NAMESPACES) {
		struct ns *ns = subsys_ns(c->subsys, ++c->flush_next);

		if (ns == NULL)
			continue;
		c->flush_ns = ns;
		ns->busy++;
		c->flush = (struct store_op){.done = ctrl_flushed};
		store_flush(ns->store, &c->flush);
		return true;
	}
	return false;
}

static void ctrl_step(struct ctrl *c, uint32_t cc_old);

static void shutdown_ended(struct ctrl *c)
{
	if (c->state != CTRL_SHUTTING)
		return;
	ctrl_go(c, CTRL_SHUT);
	if (c->cc != c->cc_shut)
		ctrl_step(c, c->cc_shut);
}

static void ctrl_flushed(struct store_op *op, int res)
{
	struct ctrl *c = container_of(op, struct ctrl, flush);

	OBJ_CHECK(c, CTRL_MAGIC);
	if (res != 0)
		log_error("controller %u: flush at shutdown: %d", c->cntlid, res);
	subsys_ns_unbusy(c->flush_ns);
	if (flush_more(c))
		return;
	c->flushing = false;
	shutdown_ended(c);
	ctrl_put(c);
}

void ctrl_idle(struct ctrl *c)
{
	if (c->state == CTRL_STOPPING && c->io_queues == 0) {
		ctrl_go(c, CTRL_OFF);
		features_reset(c);
		if (c->cc & NV_CC_EN)
			ctrl_go(c, CTRL_READY);
	}
	if (c->state != CTRL_SHUTTING || c->io_busy > 0 || c->flushing)
		return;
	c->flush_next = 0;
	if (flush_more(c)) {
		c->flushing = true;
		c->refs++;
	} else {
		shutdown_ended(c);
	}
}

/* Carries out what the change from cc_old to c->cc asks for. */
static void ctrl_step(struct ctrl *c, uint32_t cc_old)
{
	struct ctrl_step step = ctrl_step_of(c->state, cc_old, c->cc);

	if (step.to == c->state)
		return;
	ctrl_go(c, step.to);
	if (step.flush)
		c->cc_shut = c->cc;
	if (step.stop_queues) {
		event_requests_drop(c);
		ctrl_queues_stop(c);
	}
	ctrl_idle(c);
}

void ctrl_cc_write(struct ctrl *c, uint32_t cc)
{
	uint32_t cc_old = c->cc;

	OBJ_CHECK(c, CTRL_MAGIC);
	c->cc = cc;
	ctrl_step(c, cc_old);
}

/* --- errors -------------------- */

void ctrl_error_note(struct ctrl *c, const struct req *req, nv_status status)
{
	struct nv_log_error *e = &c->error[c->errors % TARGET_ERRORS];

	c->errors++;
	*e = (struct nv_log_error){
		.error_count = le64_of(c->errors), .sqid = le16_of(req->queue->qid),
		.cid = req->cmd->sqe.cid,
		.status = le16_of(nv_status_to_cqe(nv_status_for_wire(status))),
		.location = le16_of(req->failed ? req->bad_offset : UINT16_MAX),
		.nsid = req->cmd->sqe.nsid, .trtype = NV_TRTYPE_TCP,
	};
}

/* --- the page -------------------- */

static uint8_t page_zeros[65536];

/* Nothing of an earlier answer may leave: the page is zeroed for each holder. */
static void page_start(struct ctrl *c, struct req *req)
{
	c->page_holder = req;
	memset(c->page, 0, c->page_bytes);
	req->page(req);
}

void ctrl_page_take(struct ctrl *c, struct req *req, void (*page)(struct req *req))
{
	req->page = page;
	if (c->page_holder == NULL) {
		must(list_empty(&c->page_wait));
		page_start(c, req);
		return;
	}
	req_go(req, REQ_PAGE);
	list_push_back(&c->page_wait, &req->link);
}

void ctrl_page_give(struct ctrl *c)
{
	struct list_link *next;

	c->page_holder = NULL;
	if (c->state == CTRL_GONE)
		return;                                /* those who wait are being cancelled */
	next = list_pop_front(&c->page_wait);
	if (next != NULL)
		page_start(c, container_of(next, struct req, link));
}

void ctrl_page_send(struct ctrl *c, struct req *req, uint32_t filled, uint32_t bytes)
{
	unsigned n = 0;
	uint32_t put = filled < bytes ? filled : bytes;

	must(c->page_holder == req && filled <= c->page_bytes && bytes > 0);
	must(bytes <= TARGET_LOG_BYTES);
	if (put > 0)
		c->page_iov[n++] = (struct iovec){c->page, put};
	for (uint32_t left = bytes - put; left > 0; left -= (uint32_t)c->page_iov[n - 1].iov_len) {
		must(n < ARRAY_COUNT(c->page_iov));
		c->page_iov[n++] = (struct iovec){page_zeros,
						  bytes_min(left, sizeof(page_zeros))};
	}
	req_push(req, c->page_iov, n, bytes);
	req_answer(req, NV_OK, 0);
}
