/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: what the target has on each of its loops, and the messages between them. core.h has the
 * table of messages. Each is embedded in what it is about, so that none is ever allocated, and is
 * out at most once: its receiver sends it back before it is used again.
 *
 * Lifetime: a controller's memory stays while one of its queues has it, on whatever lane, and while
 * an order to a seat is out (ctrl->refs, the first loop's). A namespace's memory stays until every
 * lane has told that its last request ended.
 *
 * The first loop's, where it does not say "the lane's".
 */
#include "target/core.h"

#include <errno.h>
#include <stdlib.h>

#define LEAVE_LOOK_NS (50 * NS_PER_MS)
#define DRAIN_LOOK_NS (10 * NS_PER_MS)

static void lane_drain_timer(struct loop_timer *timer);

int lanes_open(struct target *t, const struct target_opts *opts)
{
	t->lane_count = opts->loop_count > 0 ? opts->loop_count : 1;
	t->lane = calloc(t->lane_count, sizeof(*t->lane));
	if (t->lane == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < t->lane_count; i++) {
		struct lane *lane = &t->lane[i];

		lane->target = t;
		lane->index = i;
		lane->loop = opts->loop_count > 0 ? opts->loops[i] : opts->loop;
		lane->pool = opts->loop_count > 0 ? opts->pools[i] : NULL;
		must(lane->loop != NULL && (opts->loop_count == 0 || lane->pool != NULL));
		list_init(&lane->queues);
		loop_timer_init(&lane->drain, lane_drain_timer);
		share_lane_open(lane);
	}
	return 0;
}

void lanes_free(struct target *t)
{
	free(t->lane);
	t->lane = NULL;
}

void lane_send(struct lane *from, struct lane *to, struct msg *m)
{
	if (from == to)
		m->run(to->loop, m);
	else
		loop_post(to->loop, m);
}

struct lane *lane_choose(struct target *t)
{
	struct lane *best = &t->lane[0];

	for (unsigned i = 1; i < t->lane_count; i++)   /* the first has the controllers, too */
		if (t->lane[i].queues_given <= best->queues_given)
			best = &t->lane[i];
	return best;
}

const struct target_counts *target_counts(const struct target *t)
{
	struct target_counts *sum = &((struct target *)(uintptr_t)t)->sum;
	uint64_t *to = (uint64_t *)sum;

	_Static_assert(sizeof(*sum) % sizeof(*to) == 0, "all of them are numbers of 64 bits");
	OBJ_CHECK(t, TARGET_MAGIC);
	memset(sum, 0, sizeof(*sum));
	for (unsigned i = 0; i < t->lane_count; i++) {
		const uint64_t *from = (const uint64_t *)&t->lane[i].counts;

		for (unsigned n = 0; n < sizeof(*sum) / sizeof(*to); n++)
			to[n] += __atomic_load_n(&from[n], __ATOMIC_RELAXED);
	}
	return sum;
}

/* --- orders to a seat -------------------- */

static void seat_order_send(struct seat_order *o);

/* It is carried out; for SEAT_QUIET, the lane has nothing at work. */
static void seat_order_back(struct loop *here, struct msg *m)
{
	struct seat_order *o = container_of(m, struct seat_order, msg);
	struct ctrl *c = o->seat->ctrl;

	must(here == c->target->loop && o->out);
	o->out = false;
	if (o->again)
		seat_order_send(o);
	if (o == &o->seat->order[SEAT_QUIET])
		ctrl_quiet(c);
	ctrl_put(c);
}

/* The lane's. */
static void seat_order_done(struct seat_order *o)
{
	struct lane *lane = o->seat->lane;

	o->msg.run = seat_order_back;
	lane_send(lane, &lane->target->lane[0], &o->msg);
}

/* The lane's. */
void seat_quiet_look(struct seat *seat)
{
	if (!seat->tell_quiet || seat->io_busy > 0)
		return;
	seat->tell_quiet = false;
	seat_order_done(&seat->order[SEAT_QUIET]);
}

/* The lane's. */
static void seat_order_run(struct loop *here, struct msg *m)
{
	struct seat_order *o = container_of(m, struct seat_order, msg);
	struct seat *seat = o->seat;

	must(here == seat->lane->loop);
	if (o == &seat->order[SEAT_STOP]) {
		ctrl_queues_close(seat);
		seat_order_done(o);
		return;
	}
	must(!seat->tell_quiet);
	seat->tell_quiet = true;
	seat_quiet_look(seat);
}

static void seat_order_send(struct seat_order *o)
{
	struct seat *seat = o->seat;

	must(!o->out);
	o->out = true;
	o->again = false;
	seat->ctrl->refs++;
	o->msg.run = seat_order_run;
	lane_send(&seat->lane->target->lane[0], seat->lane, &o->msg);
}

void seat_order(struct seat *seat, enum seat_wish wish)
{
	struct seat_order *o = &seat->order[wish];

	must(wish != SEAT_QUIET || !o->out);
	o->seat = seat;
	if (o->out)
		o->again = true;
	else
		seat_order_send(o);
}

/* --- namespaces come and go -------------------- */

static void ns_seat_answered(struct loop *here, struct msg *m)
{
	struct ns *ns = container_of(m, struct ns_seat, msg)->ns;

	must(here == ns->subsys->target->loop && ns->loops_left > 0);
	ns->loops_left--;
	if (ns->loops_left > 0)
		return;
	must(ns->subsys->target->telling > 0);
	ns->subsys->target->telling--;
	ns_all_told(ns);
}

/* The lane's. */
static void ns_seat_answer(struct ns_seat *seat)
{
	seat->msg.run = ns_seat_answered;
	lane_send(seat->lane, &seat->lane->target->lane[0], &seat->msg);
}

/* The lane's. */
static void ns_seat_come(struct loop *here, struct msg *m)
{
	struct ns_seat *seat = container_of(m, struct ns_seat, msg);
	struct subsys *s = seat->ns->subsys;

	must(here == seat->lane->loop && !seat->leaving);
	s->view[seat->lane->index].ns[seat->ns->nsid - 1] = seat->ns;
	ns_seat_answer(seat);
}

/* Ends those requests of a queue that wait for us; true: one waits for its host. The lane's. */
static bool queue_ns_leave(struct queue *q, struct ns *ns)
{
	bool waits = false;

	for (unsigned i = 0; q->req != NULL && i < q->entries; i++) {
		struct req *req = &q->req[i];

		if (req->state == REQ_FREE || req->ns != ns)
			continue;
		waits |= req->state == REQ_PULL || req->state == REQ_PUSH;
		(void)req_recall(req, NV_INVALID_NAMESPACE);
	}
	return waits;
}

/* Its last request has ended: once. The lane's, with nothing of the namespace on the stack. */
static void ns_seat_left(struct ns_seat *seat)
{
	must(seat->leaving && seat->busy == 0 && !seat->left);
	seat->left = true;
	loop_timer_cancel(seat->lane->loop, &seat->leave);
	ns_seat_answer(seat);
}

/* Those that still wait for their host have had their time: their connections are closed. */
static void ns_leave_timer(struct loop_timer *timer)
{
	struct ns_seat *seat = container_of(timer, struct ns_seat, leave);
	struct loop *loop = seat->lane->loop;

	must(seat->leaving && !seat->left);
	if (seat->busy == 0) {
		ns_seat_left(seat);
		return;
	}
	loop_timer_set(loop, timer, loop_now_ns(loop) + LEAVE_LOOK_NS);
	LIST_FOR_EACH_SAFE(link, &seat->lane->queues) {
		struct queue *q = container_of(link, struct queue, link);

		if (q->state == QUEUE_DEAD || q->qid == 0 || !queue_ns_leave(q, seat->ns))
			continue;
		queue_drop(q);
		queue_done(q);
	}
}

/* The lane's. */
static void ns_seat_go(struct loop *here, struct msg *m)
{
	struct ns_seat *seat = container_of(m, struct ns_seat, msg);
	struct ns *ns = seat->ns;

	must(here == seat->lane->loop && !seat->leaving);
	ns->subsys->view[seat->lane->index].ns[ns->nsid - 1] = NULL;
	seat->leaving = true;
	loop_timer_set(here, &seat->leave,
		       seat->busy > 0 ? loop_now_ns(here) + TARGET_LEAVE_NS : 0);
	LIST_FOR_EACH_SAFE(link, &seat->lane->queues) {
		struct queue *q = container_of(link, struct queue, link);

		if (q->state != QUEUE_DEAD)
			(void)queue_ns_leave(q, ns);
	}
}

void ns_unbusy(struct ns_seat *seat)
{
	must(seat->busy > 0);
	seat->busy--;
	if (seat->leaving && seat->busy == 0)          /* on a turn of its own, nobody in between */
		loop_timer_set(seat->lane->loop, &seat->leave, 0);
}

static void ns_tell(struct ns *ns, void (*run)(struct loop *here, struct msg *m))
{
	struct target *t = ns->subsys->target;

	must(ns->loops_left == 0);
	t->telling++;
	ns->loops_left = t->lane_count;
	for (unsigned i = 0; i < t->lane_count; i++) {
		ns->seat[i].msg.run = run;
		lane_send(&t->lane[0], &t->lane[i], &ns->seat[i].msg);
	}
}

void ns_publish(struct ns *ns)
{
	struct target *t = ns->subsys->target;

	for (unsigned i = 0; i < t->lane_count; i++) {
		ns->seat[i].ns = ns;
		ns->seat[i].lane = &t->lane[i];
		loop_timer_init(&ns->seat[i].leave, ns_leave_timer);
	}
	ns_tell(ns, ns_seat_come);
}

void ns_retire(struct ns *ns)
{
	ns_tell(ns, ns_seat_go);
}

/* --- closing -------------------- */

static bool may_close(const struct queue *q, bool late)
{
	if (q->state == QUEUE_DEAD)
		return false;
	if (late || q->state == QUEUE_NEW || q->state == QUEUE_CONNECTING)
		return true;
	if (q->state != QUEUE_LEAVING || !queue_idle(q))
		return false;
	return q->qid != 0 || q->ctrl == NULL || q->ctrl->io_queues == 0;
}

/* The first queue that can be closed now; closing one may free others: the list is begun anew. */
static struct queue *drain_next(struct lane *lane, bool late)
{
	LIST_FOR_EACH(link, &lane->queues) {
		struct queue *q = container_of(link, struct queue, link);

		if (may_close(q, late))
			return q;
	}
	return NULL;
}

static void lane_drained(struct loop *here, struct msg *m)
{
	struct lane *lane = container_of(m, struct lane, drain_msg);

	must(here == lane->target->loop && !lane->drained);
	lane->drained = true;
	target_drain_soon(lane->target);
}

/* The lane's. */
static void lane_drain_timer(struct loop_timer *timer)
{
	struct lane *lane = container_of(timer, struct lane, drain);
	bool late = loop_now_ns(lane->loop) >= lane->drain_until_ns;
	struct queue *q;

	must(lane->draining);
	while ((q = drain_next(lane, late)) != NULL) {
		queue_kill(q);
		queue_done(q);
	}
	if (!list_empty(&lane->queues)) {
		loop_timer_set(lane->loop, timer, loop_now_ns(lane->loop) + DRAIN_LOOK_NS);
		return;
	}
	loop_timer_cancel(lane->loop, timer);
	share_lane_close(lane);
	lane->drain_msg.run = lane_drained;
	loop_post(lane->target->loop, &lane->drain_msg);
}

void lane_drain_soon(struct lane *lane)
{
	must(lane->draining);
	loop_timer_set(lane->loop, &lane->drain, loop_now_ns(lane->loop));
}

/* The lane's. */
static void lane_drain_run(struct loop *here, struct msg *m)
{
	struct lane *lane = container_of(m, struct lane, drain_msg);

	must(here == lane->loop && !lane->draining);
	lane->draining = true;
	LIST_FOR_EACH_SAFE(link, &lane->queues) {
		struct queue *q = container_of(link, struct queue, link);

		if (q->state == QUEUE_LIVE)
			queue_go(q, QUEUE_LEAVING);
	}
	lane_drain_soon(lane);
}

void lane_drain(struct lane *lane)
{
	lane->drain_until_ns = lane->target->drain_until_ns;
	lane->drain_msg.run = lane_drain_run;
	lane_send(&lane->target->lane[0], lane, &lane->drain_msg);
}

bool lanes_drained(const struct target *t)
{
	for (unsigned i = 0; i < t->lane_count; i++)
		if (!t->lane[i].drained)
			return false;
	return true;
}
