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
 * ended.
 *
 * A controller is the first loop's. Its seats on other loops are told what to do by orders (lane.c)
 * and look at io_on, edneks_off by themselves; they write heard_ns and their errors where the first
 * loop reads them. The first loop, but for what names a seat's lane.
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

static void io_on_set(struct ctrl *c)
{
	uint32_t on = (c->state == CTRL_READY ? IO_READY : 0u) |
		      ((c->cc & NV_CC_CSS) == NV_CC_CSS_IOCS ? IO_SETS : 0u);

	atomic_store_explicit(&c->io_on, on, memory_order_release);
}

static void ctrl_go(struct ctrl *c, enum ctrl_state to)
{
	OBJ_CHECK(c, CTRL_MAGIC);
	must(ctrl_may_go(c->state, to));
	must(to != CTRL_OFF || c->io_queues == 0);
	c->state = to;
	io_on_set(c);
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

/* When the host was last heard, on whatever loop. */
static uint64_t ctrl_heard_ns(struct ctrl *c)
{
	uint64_t last = 0;

	for (unsigned i = 0; i < c->target->lane_count; i++) {
		uint64_t heard = atomic_load_explicit(&c->seat[i].heard_ns, memory_order_relaxed);

		if (heard > last)
			last = heard;
#ifdef KVOF_PLANT_TARGET_LANE_UNHEARD
		break;
#endif
	}
	return last;
}

static void ctrl_alive_timer(struct loop_timer *timer)
{
	struct ctrl *c = container_of(timer, struct ctrl, alive);
	struct target *t = c->target;
	struct queue *admin = c->queue[0];

	OBJ_CHECK(c, CTRL_MAGIC);
	must(c->kato_ns > 0 && admin != NULL);
	if (loop_now_ns(t->loop) < ctrl_heard_ns(c) + c->kato_ns) {
		loop_timer_set(t->loop, timer, ctrl_heard_ns(c) + c->kato_ns);
		return;
	}
	COUNT(&t->lane[0], keep_alive_expired, 1);
	log_event(LOG_WARN, "keep_alive_expired", LOG_TEXT("host", c->hostnqn),
		  LOG_TEXT("subsystem", c->subsys->nqn), LOG_NUMBER("controller", c->cntlid),
		  LOG_NUMBER("silent_ms", c->kato_ns / NS_PER_MS));
	queue_kill(admin);
	queue_done(admin);
}

/* The seat's lane. */
void ctrl_heard(struct seat *seat)
{
	atomic_store_explicit(&seat->heard_ns, loop_now_ns(seat->lane->loop),
			      memory_order_relaxed);
}

/* Rounded up to the granularity that Identify names (KAS 1: 100 ms). 64-bit: 49 days fit. */
void ctrl_keep_alive_set(struct ctrl *c, uint32_t kato_ms)
{
	c->kato_ns = ((uint64_t)kato_ms + 99) / 100 * 100 * NS_PER_MS;
	if (kato_ms == 0 && c->subsys->discovery)
		c->kato_ns = DISCOVERY_IDLE_NS;
	ctrl_heard(&c->seat[0]);
	if (c->kato_ns == 0)
		loop_timer_cancel(c->target->loop, &c->alive);
	else
		loop_timer_set(c->target->loop, &c->alive, ctrl_heard_ns(c) + c->kato_ns);
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
	unsigned lanes = s->target->lane_count;
	struct ctrl *c = calloc(1, sizeof(*c) + lanes * sizeof(c->seat[0]));
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
	s->target->ctrls_there++;
	c->refs = 1;
	c->cntlid = cntlid_take(s);
	memcpy(c->hostnqn, connect->hostnqn, sizeof(c->hostnqn));
	memcpy(c->hostid, connect->hostid, sizeof(c->hostid));
	list_init(&c->page_wait);
	for (unsigned i = 0; i < lanes; i++) {
		c->seat[i].ctrl = c;
		c->seat[i].lane = &s->target->lane[i];
		list_init(&c->seat[i].share_wait);
	}
	features_reset(c);
	loop_timer_init(&c->alive, ctrl_alive_timer);
	list_push_back(&s->ctrls, &c->link);
	s->ctrl_count++;
	COUNT(&s->target->lane[0], ctrls, 1);
	ctrl_keep_alive_set(c, connect->kato_ms);
	if (!s->discovery)
		host_enter(c);
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
	must(c->state == CTRL_GONE && c->io_queues == 0 && c->aer_count == 0);
	must(c->page_holder == NULL && list_empty(&c->page_wait));
	for (unsigned i = 0; i < c->target->lane_count; i++) {
		struct seat *seat = &c->seat[i];

		must(seat->queues == 0 && seat->io_busy == 0 && seat->leased_bytes == 0);
		must(list_empty(&seat->share_wait) && !seat->tell_quiet);
		must(!seat->order[SEAT_STOP].out && !seat->order[SEAT_QUIET].out);
	}
	must(c->target->ctrls_there > 0);
	c->target->ctrls_there--;
	if (c->host_row != NULL)
		host_leave(c);
	subsys_put(c->subsys);
	free(c->page);
	c->magic = 0;
	free(c);
}

static void seat_unwell(struct loop *here, struct msg *m)
{
	struct seat *seat = container_of(m, struct seat, unwell_msg);
	struct subsys *s = seat->ctrl->subsys;

	must(here == seat->ctrl->target->loop);
	atomic_store(&seat->unwell, false);
	subsys_health_look(s);
}

/* The seat's lane, by a request of it: so the controller is there until the message has come. */
void ctrl_unwell(struct seat *seat)
{
	must(seat->io_busy > 0);
	if (atomic_exchange(&seat->unwell, true))
		return;
	seat->unwell_msg.run = seat_unwell;
	lane_send(seat->lane, &seat->lane->target->lane[0], &seat->unwell_msg);
}

/* The seat's lane. */
void ctrl_queues_close(struct seat *seat)
{
	LIST_FOR_EACH_SAFE(link, &seat->lane->queues) {
		struct queue *q = container_of(link, struct queue, link);

		if (q->seat != seat || q->qid == 0 || q->state == QUEUE_DEAD)
			continue;
		queue_close(q);
		queue_done(q);
	}
}

/* Has it I/O queues there, as far as the first loop knows? */
static bool seat_used(const struct seat *seat)
{
	const struct ctrl *c = seat->ctrl;

	for (unsigned i = 1; i <= TARGET_QUEUES; i++)
		if (c->queue[i] != NULL && c->queue_lane[i] == seat->lane->index)
			return true;
	return false;
}

static void ctrl_queues_stop(struct ctrl *c)
{
	for (unsigned i = 0; i < c->target->lane_count; i++)
		if (seat_used(&c->seat[i]))
			seat_order(&c->seat[i], SEAT_STOP);
}

void ctrl_kill(struct ctrl *c)
{
	OBJ_CHECK(c, CTRL_MAGIC);
	must(c->queue[0] == NULL && c->refs > 0);
	if (c->state == CTRL_GONE)
		return;
	ctrl_go(c, CTRL_GONE);
	log_event(LOG_INFO, "disconnect", LOG_TEXT("host", c->hostnqn),
		  LOG_TEXT("subsystem", c->subsys->nqn), LOG_NUMBER("controller", c->cntlid));
	loop_timer_cancel(c->target->loop, &c->alive);
	list_remove(&c->link);
	must(c->subsys->ctrl_count > 0);
	c->subsys->ctrl_count--;
	COUNT(&c->target->lane[0], ctrls, -1);
	ctrl_queues_stop(c);
}

/* --- CC -------------------- */

static void ctrl_flushed(struct store_op *op, int res);
static void ctrl_block_flushed(struct block_op *op, int res);

/* One namespace after another; false: all are done. */
static bool flush_more(struct ctrl *c)
{
	while (c->flush_next < TARGET_NAMESPACES) {
		struct ns *ns = subsys_ns(c->subsys, ++c->flush_next);

		if (ns == NULL)
			continue;
		c->flush_ns = ns;
		ns->seat[0].busy++;
		c->flush = (struct store_op){.done = ctrl_flushed};
		c->flush_block = (struct block_op){.kind = BLOCK_FLUSH, .done = ctrl_block_flushed};
		if (ns->volume != NULL)
			volume_run(ns->volume, c->target->loop, &c->flush_block);
		else
			space_flush(ns->space, c->target->loop, &c->flush);
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
	ns_unbusy(&c->flush_ns->seat[0]);
	if (flush_more(c))
		return;
	c->flushing = false;
	shutdown_ended(c);
	ctrl_put(c);
}

static void ctrl_block_flushed(struct block_op *op, int res)
{
	ctrl_flushed(&container_of(op, struct ctrl, flush_block)->flush, res);
}

static void ctrl_flush_begin(struct ctrl *c)
{
	must(c->state == CTRL_SHUTTING && c->quiet_left == 0 && !c->flushing);
	c->flush_next = 0;
	if (flush_more(c)) {
		c->flushing = true;
		c->refs++;
	} else {
		shutdown_ended(c);
	}
}

void ctrl_quiet(struct ctrl *c)
{
	must(c->quiet_left > 0);
	c->quiet_left--;
	if (c->quiet_left == 0 && c->state == CTRL_SHUTTING)
		ctrl_flush_begin(c);
}

/* I/O that is at work ends first; what comes from now on is refused. */
static void ctrl_shutdown_begin(struct ctrl *c)
{
	must(c->quiet_left == 0);
	c->quiet_left = 1;                             /* until all are asked */
	for (unsigned i = 0; i < c->target->lane_count; i++) {
		if (!seat_used(&c->seat[i]))
			continue;
		c->quiet_left++;
		seat_order(&c->seat[i], SEAT_QUIET);
	}
	ctrl_quiet(c);
}

void ctrl_idle(struct ctrl *c)
{
	if (c->state != CTRL_STOPPING || c->io_queues > 0)
		return;
	ctrl_go(c, CTRL_OFF);
	features_reset(c);
	if (c->cc & NV_CC_EN)
		ctrl_go(c, CTRL_READY);
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
	if (step.to == CTRL_SHUTTING)
		ctrl_shutdown_begin(c);
	ctrl_idle(c);
}

void ctrl_cc_write(struct ctrl *c, uint32_t cc)
{
	uint32_t cc_old = c->cc;

	OBJ_CHECK(c, CTRL_MAGIC);
	c->cc = cc;
	io_on_set(c);
	ctrl_step(c, cc_old);
}

/* --- errors -------------------- */

/* The request's lane: into the ring of its seat, where the first loop finds it. */
void ctrl_error_note(const struct req *req, nv_status status)
{
	struct seat *seat = req->queue->seat;
	uint64_t n = atomic_load_explicit(&seat->note_count, memory_order_relaxed);
	_Atomic uint64_t *note = seat->note[n % SEAT_NOTES];
	uint64_t where = req->failed ? req->bad_offset : UINT16_MAX;

	atomic_store_explicit(&note[0], (uint64_t)req->queue->qid |
			      (uint64_t)le16_get(req->cmd->sqe.cid) << 16 |
			      (uint64_t)nv_status_to_cqe(nv_status_for_wire(status)) << 32 |
			      where << 48, memory_order_relaxed);
	atomic_store_explicit(&note[1], le32_get(req->cmd->sqe.nsid), memory_order_relaxed);
	atomic_store_explicit(&seat->note_count, n + 1, memory_order_release);
}

static void error_keep(struct ctrl *c, uint64_t what, uint64_t nsid)
{
	struct nv_log_error *e = &c->error[c->errors % TARGET_ERRORS];

	c->errors++;
	*e = (struct nv_log_error){
		.error_count = le64_of(c->errors), .sqid = le16_of((uint16_t)what),
		.cid = le16_of((uint16_t)(what >> 16)), .status = le16_of((uint16_t)(what >> 32)),
		.location = le16_of((uint16_t)(what >> 48)), .nsid = le32_of((uint32_t)nsid),
		.trtype = NV_TRTYPE_TCP,
	};
}

/* Entries that were written over before they were read are counted and not kept; the ring is twice
 * as long as the log, so those are not of the log's length. One less than all: the lane may be at
 * work on the next one. */
static void seat_errors_fetch(struct ctrl *c, struct seat *seat)
{
	uint64_t count = atomic_load_explicit(&seat->note_count, memory_order_acquire);

	while (seat->notes_fetched < count) {
		_Atomic uint64_t *note = seat->note[seat->notes_fetched % SEAT_NOTES];
		uint64_t what = atomic_load_explicit(&note[0], memory_order_acquire);
		uint64_t nsid = atomic_load_explicit(&note[1], memory_order_acquire);

		count = atomic_load_explicit(&seat->note_count, memory_order_acquire);
		if (count - seat->notes_fetched < SEAT_NOTES - 1)
			error_keep(c, what, nsid);
		else
			c->errors++;
		seat->notes_fetched++;
	}
}

void ctrl_errors_fetch(struct ctrl *c)
{
	for (unsigned i = 0; i < c->target->lane_count; i++)
		seat_errors_fetch(c, &c->seat[i]);
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
