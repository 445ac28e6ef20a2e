/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: the loop on the kernel's ring: turn, timers, mailbox.
 *
 * Theory of a turn: one system call hands in what was queued and waits (not at all where something
 * is due already); completions are linked into a list; then timers, messages and callbacks run, a
 * bounded number of each. What they queue goes in with the next turn's call.
 *
 * The ring is made disabled and enabled by the thread that first turns the loop, since the kernel
 * ties it to that thread (single issuer, deferred task work). Where another thread takes over, a
 * new ring replaces the old one; only listeners may then be in flight.
 *
 * Mailbox: senders push onto a list (newest first), the receiver takes the whole list and turns it
 * round, so the order of each sender is kept. `asleep` is set before the receiver waits and looked
 * at by the sender after its push; both orders are sequentially consistent, so one of the two sees
 * the other: the receiver does not sleep, or the sender writes the bell. The bell is an eventfd
 * under a multishot poll; it is never read, its counter has room for 2^64 - 2 rings.
 *
 * Invariants: a loop_op is in the ring, in the ready list, or the caller's; ops_flying counts the
 * first two. No callback runs from inside a call that starts an operation.
 *
 * Lifetime:  loop_open -> (sock_listen, disk_open, loop_post ...) -> loop_turn | loop_run ->
 * loop_close Thread: the loop's own, but for loop_post().
 */
#include "loop/loop.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "loop/ring.h"

#define RING_ENTRIES_MAX 4096u
#define TURN_TIMERS_MAX 16u
#define TURN_MSGS_MAX 16u
/* Requests go in after so many callbacks and not only at the end of the turn: a drive that stands
 * still while a whole batch is prepared read 4 KiB at depth 32 by 12 % slower (virtio, 6.18).
 * Sends wait for the end. */
#define TURN_SUBMIT_EACH 8u

_Static_assert(TURN_TIMERS_MAX + TURN_MSGS_MAX < LOOP_TURN_DONE_MAX,
	       "completions always get their share of a turn");

static _Thread_local char ring_thread;

static uint64_t clock_ns(void)
{
	struct timespec ts;

	must(clock_gettime(CLOCK_MONOTONIC, &ts) == 0);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* ---- the ring ---- */

/* Why there is no ring, for a person to act on. */
static void ring_denied(int err)
{
	struct utsname u = {0};
	char sysctl[16] = "absent";
	FILE *f = fopen("/proc/sys/kernel/io_uring_disabled", "re");

	if (f != NULL) {
		if (fgets(sysctl, sizeof(sysctl), f) != NULL)
			sysctl[strcspn(sysctl, "\n")] = 0;
		fclose(f);
	}
	uname(&u);
	log_error("io_uring: %s on kernel %s; needs 6.1 or newer, sysctl kernel.io_uring_disabled "
		  "= 0 (is "
		  "%s) and a seccomp profile that allows io_uring_setup",
		  strerror(err), u.release, sysctl);
}

static int ring_open(struct loop *l)
{
	unsigned entries = 64;
	struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER |
					     IORING_SETUP_DEFER_TASKRUN |
					     IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED |
					     IORING_SETUP_CLAMP | IORING_SETUP_SUBMIT_ALL};
	int rc;

	while (entries < l->ops_max && entries < RING_ENTRIES_MAX)
		entries *= 2;
	rc = io_uring_queue_init_params(entries, &l->ring, &p);
	if (rc == 0) {
		ring_fixed_begin(l);
		return 0;
	}
	if (rc == -ENOMEM)
		return -ENOMEM;
	ring_denied(-rc);
	return -EINVAL;
}

static void ring_take(struct loop *l);

struct io_uring_sqe *ring_sqe(struct loop *l)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&l->ring);

	if (sqe != NULL)
		return sqe;
	ring_take(l);                   /* so much before the first turn: it begins now */
	io_uring_submit_and_get_events(&l->ring);
	sqe = io_uring_get_sqe(&l->ring);
	must(sqe != NULL);
	return sqe;
}

void ring_tag_set(struct io_uring_sqe *sqe, void *at, enum ring_tag tag)
{
	must(((uintptr_t)at & 7) == 0);
	io_uring_sqe_set_data64(sqe, (uint64_t)(uintptr_t)at | tag);
}

void ring_cancel(struct loop *l, void *at, enum ring_tag tag)
{
	struct io_uring_sqe *sqe = ring_sqe(l);

	io_uring_prep_cancel64(sqe, (uint64_t)(uintptr_t)at | tag, 0);
	ring_tag_set(sqe, NULL, RING_NONE);
}

static void ring_bell_arm(struct loop *l)
{
	struct io_uring_sqe *sqe = ring_sqe(l);

	io_uring_prep_poll_multishot(sqe, l->bell_fd, POLLIN);
	ring_tag_set(sqe, &l->bell, RING_INNER);
}

static void ring_bell_reap(struct loop *l, struct ring_inner *r, int res, unsigned flags)
{
	must(r == &l->bell);
	if (!(flags & IORING_CQE_F_MORE))
		ring_bell_arm(l);
}

static void ring_reap_one(struct loop *l, const struct io_uring_cqe *cqe)
{
	uint64_t data = cqe->user_data;
	void *at = (void *)(uintptr_t)(data & ~UINT64_C(7));
	struct ring_inner *inner = at;

	switch ((enum ring_tag)(data & 7)) {
	case RING_OP:
		ring_op_ready(l, at, cqe->res);
		break;
	case RING_DISK:
		ring_disk_reap(l, at, cqe->res);
		break;
	case RING_SOCK_RECV:
		ring_recv_reap(l, at, cqe->res);
		break;
	case RING_SOCK_SEND:
		ring_send_reap(l, at, cqe->res);
		break;
	case RING_CONNECT:
		ring_connect_reap(l, at, cqe->res);
		break;
	case RING_INNER:
		inner->reap(l, inner, cqe->res, cqe->flags);
		break;
	case RING_NONE:
		break;
	}
}

/* Links what has completed; runs no callback. */
static void ring_reap(struct loop *l)
{
	struct io_uring_cqe *cqe;
	unsigned head, count = 0;

	io_uring_for_each_cqe(&l->ring, head, cqe) {
		ring_reap_one(l, cqe);
		count++;
	}
	io_uring_cq_advance(&l->ring, count);
}

/* Hands in what is queued; waits until something has completed or wait_ns have passed. */
static void ring_enter(struct loop *l, uint64_t wait_ns)
{
	struct io_uring_cqe *cqe = NULL;
	struct __kernel_timespec ts;
	int rc;

	ring_sends_submit(l);
	if (wait_ns == 0) {
		unsigned flags = IO_URING_READ_ONCE(*l->ring.sq.kflags);

		if (io_uring_sq_ready(&l->ring) == 0 &&
		    !(flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)))
			return;
		rc = io_uring_submit_and_get_events(&l->ring);
	} else {
		ts = (struct __kernel_timespec){.tv_sec = (int64_t)(wait_ns / NS_PER_S),
			.tv_nsec = (long long)(wait_ns % NS_PER_S)};
		rc = io_uring_submit_and_wait_timeout(&l->ring, &cqe, 1,
						      wait_ns == UINT64_MAX ? NULL : &ts, NULL);
	}
	must(rc >= 0 || rc == -ETIME || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
}

/* The calling thread takes the loop: at its first turn, or when another one has finished with
 * it. */
static void ring_take(struct loop *l)
{
	if (l->owner != &ring_thread) {
		must(!l->running);
		l->owner = &ring_thread;
		if (l->ring_on) {
			must(l->ops_flying == 0);
			io_uring_queue_exit(&l->ring);
			must(ring_open(l) == 0);
			l->ring_on = false;
			ring_bell_arm(l);
			ring_listeners_arm(l);
		}
	}
	if (l->ring_on)
		return;
	/* By hand: the shared library of Debian 12 does not export io_uring_enable_rings(). */
	must(syscall(__NR_io_uring_register, l->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL,
		     0) == 0);
	l->ring_on = true;
}

/* ---- operations ---- */

void ring_op_begin(struct loop *l, struct loop_op *op, void *owner)
{
	OBJ_CHECK(l, RING_LOOP_MAGIC);
	loop_must_own(l);
	must(op->done != NULL && op->state != RING_OP_FLYING);
	op->state = RING_OP_FLYING;
	op->owner = owner;
	op->next = NULL;
	l->ops_flying++;
}

void ring_op_ready(struct loop *l, struct loop_op *op, int res)
{
	must(op->state == RING_OP_FLYING);
	op->res = res;
	op->next = NULL;
	if (l->ready_last == NULL)
		l->ready_first = op;
	else
		l->ready_last->next = op;
	l->ready_last = op;
}

void ring_op_forget(struct loop *l, struct loop_op *op)
{
	struct loop_op *before = NULL;

	for (struct loop_op *at = l->ready_first; at != op; at = at->next) {
		must(at != NULL);
		before = at;
	}
	if (before == NULL)
		l->ready_first = op->next;
	else
		before->next = op->next;
	if (l->ready_last == op)
		l->ready_last = before;
	op->state = 0;
	l->ops_flying--;
}

static unsigned turn_ops(struct loop *l, unsigned most)
{
	unsigned n = 0;

	while (n < most && l->ready_first != NULL) {
		struct loop_op *op = l->ready_first;

		l->ready_first = op->next;
		if (l->ready_first == NULL)
			l->ready_last = NULL;
		must(op->state == RING_OP_FLYING && l->ops_flying > 0);
		op->state = 0;
		op->next = NULL;
		l->ops_flying--;
		op->done(op, op->res);
		if (++n % TURN_SUBMIT_EACH == 0 && io_uring_sq_ready(&l->ring) > 0)
			io_uring_submit(&l->ring);
	}
	return n;
}

void loop_soon(struct loop *loop, struct loop_op *op, int res)
{
	ring_op_begin(loop, op, NULL);
	ring_op_ready(loop, op, res);
}

void loop_poll(struct loop *loop, int fd, struct loop_op *op)
{
	struct io_uring_sqe *sqe;

	ring_op_begin(loop, op, NULL);
	sqe = ring_sqe(loop);
	io_uring_prep_poll_add(sqe, fd, POLLIN);
	ring_tag_set(sqe, op, RING_OP);
}

void loop_poll_cancel(struct loop *loop, struct loop_op *op)
{
	loop_must_own(loop);
	must(op->state == RING_OP_FLYING);
	ring_cancel(loop, op, RING_OP);
}

/* ---- timers ---- */

void loop_timer_set(struct loop *loop, struct loop_timer *t, uint64_t at_ns)
{
	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	loop_must_own(loop);
	timers_set(&loop->timers, t, at_ns);
}

void loop_timer_cancel(struct loop *loop, struct loop_timer *t)
{
	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	loop_must_own(loop);
	timers_cancel(&loop->timers, t);
}

static unsigned turn_timers(struct loop *l)
{
	unsigned n = 0;

	for (; n < TURN_TIMERS_MAX; n++) {
		struct loop_timer *t = timers_first(&l->timers);

		if (t == NULL || t->node.at_ns > l->now_ns)
			break;
		timers_cancel(&l->timers, t);
		t->fire(t);
	}
	return n;
}

/* ---- mailbox ---- */

void loop_post(struct loop *to, struct msg *m)
{
	struct msg *head = atomic_load(&to->mail);
	uint64_t one = 1;

	OBJ_CHECK(to, RING_LOOP_MAGIC);
	must(m->run != NULL);
	do {
		m->next = head;
	} while (!atomic_compare_exchange_weak(&to->mail, &head, m));
	if (atomic_load(&to->asleep) == 0 || atomic_exchange(&to->asleep, 0) == 0)
		return;
	if (write(to->bell_fd, &one, sizeof(one)) != (ssize_t)sizeof(one))
		must(errno == EAGAIN);          /* full: the receiver has rings to hear */
}

/* Takes all mail behind what is in the inbox, oldest first. */
static void mail_take(struct loop *l)
{
	struct msg *newest, *oldest = NULL, **tail = &l->inbox;

	if (l->inbox != NULL || atomic_load_explicit(&l->mail, memory_order_relaxed) == NULL)
		return;
	newest = atomic_exchange(&l->mail, NULL);
	while (newest != NULL) {
		struct msg *next = newest->next;

		newest->next = oldest;
		oldest = newest;
		newest = next;
	}
	*tail = oldest;
}

static unsigned turn_msgs(struct loop *l)
{
	unsigned n = 0;

	for (; n < TURN_MSGS_MAX; n++) {
		struct msg *m;

		mail_take(l);
		m = l->inbox;
		if (m == NULL)
			break;
		l->inbox = m->next;
		m->next = NULL;
		m->run(l, m);
	}
	return n;
}

/* ---- the turn ---- */

/* How long the kernel may keep us. Sets `asleep` where the answer is not 0. */
static uint64_t turn_wait_ns(struct loop *l, uint64_t wait_ns)
{
	struct loop_timer *t = timers_first(&l->timers);

	if (wait_ns == 0 || l->ready_first != NULL || l->inbox != NULL)
		return 0;
	if (t != NULL) {
		uint64_t now_ns = clock_ns();

		if (t->node.at_ns <= now_ns)
			return 0;
		wait_ns = bytes_min(wait_ns, t->node.at_ns - now_ns);
	}
	atomic_store(&l->asleep, 1);
	if (atomic_load(&l->mail) == NULL)
		return wait_ns;
	atomic_store(&l->asleep, 0);
	return 0;
}

static unsigned turn_once(struct loop *l, uint64_t wait_ns)
{
	unsigned n;

	wait_ns = turn_wait_ns(l, wait_ns);
	ring_enter(l, wait_ns);
	if (wait_ns > 0)
		atomic_store(&l->asleep, 0);
	l->now_ns = clock_ns();
	ring_reap(l);
	n = turn_timers(l);
	n += turn_msgs(l);
	n += turn_ops(l, LOOP_TURN_DONE_MAX - n);
	must(n <= LOOP_TURN_DONE_MAX);
	return n;
}

unsigned loop_turn(struct loop *loop, uint64_t wait_ns_max)
{
	uint64_t start_ns;
	unsigned n;

	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	must(!loop->running);
	ring_take(loop);
	loop->running = true;
	start_ns = clock_ns();
	for (;;) {
		uint64_t past_ns = clock_ns() - start_ns;

		n = turn_once(loop, wait_ns_max == UINT64_MAX ? UINT64_MAX :
			      wait_ns_max > past_ns ? wait_ns_max - past_ns : 0);
		if (n > 0 || (wait_ns_max != UINT64_MAX && loop->now_ns - start_ns >= wait_ns_max))
			break;
	}
	ring_enter(loop, 0);
	loop->running = false;
	return n;
}

int loop_run(struct loop *loop)
{
	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	must(!loop->running);
	ring_take(loop);
	if (gettid() != getpid() && loop->name != NULL)
		(void)prctl(PR_SET_NAME, loop->name);
	/* Saves a lookup a call; may be refused. The thread that registers a ring must unregister
	 * it, or it keeps the ring alive, and what the ring polls, when another thread has taken
	 * the loop. */
	(void)io_uring_register_ring_fd(&loop->ring);
	loop->running = true;
	loop->stop = false;
	while (!loop->stop)
		turn_once(loop, UINT64_MAX);
	ring_enter(loop, 0);
	loop->running = false;
	(void)io_uring_unregister_ring_fd(&loop->ring);
	return 0;
}

void loop_stop(struct loop *loop)
{
	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	loop_must_own(loop);
	loop->stop = true;
}

uint64_t loop_now_ns(const struct loop *loop)
{
	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	return loop->now_ns;
}

bool loop_here(const struct loop *loop)
{
	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	return loop->owner == &ring_thread;
}

const char *loop_kind(void)
{
	return "io_uring";
}

int loop_open(const struct loop_opts *opts, struct loop **out)
{
	struct loop *l = aligned_alloc(_Alignof(struct loop), sizeof(*l));
	int rc;

	if (l == NULL)
		return -ENOMEM;
	memset(l, 0, sizeof(*l));
	OBJ_INIT(l, RING_LOOP_MAGIC);
	l->name = opts->name;
	l->ops_max = opts->ops_max == 0 ? 4096 : opts->ops_max;
	l->owner = &ring_thread;
	l->now_ns = clock_ns();
	l->bell.reap = ring_bell_reap;
	list_init(&l->listeners);
	list_init(&l->sends);
	rc = timers_open(&l->timers, opts->timers_max == 0 ? 4096 : opts->timers_max);
	l->bell_fd = rc != 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (rc == 0 && l->bell_fd < 0)
		rc = -ENOMEM;
	if (rc == 0)
		rc = ring_open(l);
	if (rc == 0) {
		ring_bell_arm(l);
		*out = l;
		return 0;
	}
	if (l->bell_fd >= 0)
		close(l->bell_fd);
	if (l->timers.heap.at != NULL)
		timers_close(&l->timers);
	free(l);
	return rc;
}

/* Completions of what was closed a moment ago, cancelled socket I/O above all, come in here. */
static void ring_drain(struct loop *l)
{
	uint64_t end_ns = clock_ns() + 5 * NS_PER_S;

	while ((l->ops_flying > 0 || l->ready_first != NULL || l->socks > 0) &&
	       clock_ns() < end_ns)
		loop_turn(l, 10 * NS_PER_MS);
}

void loop_close(struct loop **loop)
{
	struct loop *l;

	OBJ_TAKE(l, loop, RING_LOOP_MAGIC);
	must(!l->running);
	ring_drain(l);
	must(l->ops_flying == 0 && l->ready_first == NULL);
	must(l->disks == 0 && l->socks == 0);
	io_uring_queue_exit(&l->ring);
	ring_listeners_free(l);
	timers_close(&l->timers);
	close(l->bell_fd);
	l->magic = 0;
	free(l);
}
