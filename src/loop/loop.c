/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: a loop of a real machine: turn, timers, mailbox.
 *
 * Theory of a turn: one system call hands in what was queued and waits (not at all where something
 * is due already); completions are linked into a list; then timers, messages and callbacks run, a
 * bounded number of each. What they queue goes in with the next turn's call.
 *
 * Who carries operations out is chosen at open: the kernel's ring (uring.c) where it may be had,
 * else the plain loop (plain.c: epoll and threads for drives). That one is in use is said once.
 *
 * Mailbox: senders push onto a list (newest first), the receiver takes the whole list and turns it
 * round, so the order of each sender is kept. `asleep` is set before the receiver waits and looked
 * at by the sender after its push; both orders are sequentially consistent, so one of the two sees
 * the other: the receiver does not sleep, or the sender writes the bell, an eventfd.
 *
 * Invariants: a loop_op is in the ring, in the ready list, or the caller's; ops_flying counts the
 * first two. No callback runs from inside a call that starts an operation.
 *
 * Lifetime: loop_open -> (sock_listen, disk_open, loop_post ...) -> loop_turn | loop_run ->
 * loop_close.
 *
 * Visits: before it sleeps the loop says that it is lent, and when it has woken it takes that back
 * under the lock that a visitor holds, so it waits for the visit to end. Mail is looked at by the
 * visitor, since what it has posted itself was to be run before.
 *
 * Thread: the loop's own, but for loop_post() and loop_visit().
 */
#include "loop/loop.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/files.h"
#include "base/log.h"
#include "loop/lane.h"
#include "loop/plain.h"
#include "loop/ring.h"

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

/* ---- prepared operations ---- */

struct io_uring_sqe *ring_sqe(struct loop *l)
{
	return l->plain != NULL ? plain_sqe(l) : uring_sqe(l);
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

void ring_reap_one(struct loop *l, uint64_t user_data, int res, unsigned flags)
{
	void *at = (void *)(uintptr_t)(user_data & ~UINT64_C(7));
	struct ring_inner *inner = at;

	switch ((enum ring_tag)(user_data & 7)) {
	case RING_OP:
		ring_op_ready(l, at, res);
		break;
	case RING_DISK:
		ring_disk_reap(l, at, res);
		break;
	case RING_SOCK_RECV:
		ring_recv_reap(l, at, res);
		break;
	case RING_SOCK_SEND:
		ring_send_reap(l, at, res);
		break;
	case RING_CONNECT:
		ring_connect_reap(l, at, res);
		break;
	case RING_INNER:
		inner->reap(l, inner, res, flags);
		break;
	case RING_NONE:
		break;
	}
}

static void ring_submit(struct loop *l)
{
	if (l->plain != NULL)
		plain_submit(l);
	else
		uring_submit(l);
}

static void ring_enter(struct loop *l, uint64_t wait_ns)
{
	ring_sends_submit(l);
	if (l->plain != NULL)
		plain_enter(l, wait_ns);
	else
		uring_enter(l, wait_ns);
}

/* At the first turn, or when another thread has finished with it. */
void ring_take(struct loop *l)
{
	if (l->owner != &ring_thread) {
		must(!l->running);
		l->owner = &ring_thread;
		if (l->ring_on)
			uring_renew(l);
	}
	if (l->plain == NULL && !l->ring_on)
		uring_enable(l);
}

int ring_file_add(struct loop *l, int fd, int *place)
{
	if (l->plain != NULL)
		return plain_file_add(l, fd, place);
	*place = uring_file_add(l, fd);
	return 0;
}

void ring_file_remove(struct loop *l, int place)
{
	if (place == RING_FIXED_NONE)
		return;
	if (l->plain != NULL)
		plain_file_remove(l, place);
	else
		uring_file_remove(l, place);
}

void ring_fd_forget(struct loop *l, int fd)
{
	if (l->plain != NULL)
		plain_fd_forget(l, fd);
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
		if (++n % TURN_SUBMIT_EACH == 0)
			ring_submit(l);
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

void ring_ring(struct loop *l)
{
	uint64_t one = 1;

	if (atomic_load(&l->asleep) == 0 || atomic_exchange(&l->asleep, 0) == 0)
		return;
	if (write(l->bell_fd, &one, sizeof(one)) != (ssize_t)sizeof(one))
		must(errno == EAGAIN);          /* full: the receiver has rings to hear */
}

void loop_post(struct loop *to, struct msg *m)
{
	struct msg *head = atomic_load(&to->mail);

	OBJ_CHECK(to, RING_LOOP_MAGIC);
	must(m->run != NULL);
	do {
		m->next = head;
	} while (!atomic_compare_exchange_weak(&to->mail, &head, m));
	ring_ring(to);
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

/* ---- visits ---- */

static void visits_end(struct loop *l)
{
	must(pthread_mutex_lock(&l->visit_lock) == 0);
	atomic_store(&l->lent, false);
	must(pthread_mutex_unlock(&l->visit_lock) == 0);
}

static void visit_run(struct loop *l, struct msg *m)
{
	struct loop_timer *t = timers_first(&l->timers);
	uint64_t ops_flying = l->ops_flying, at_ns = t != NULL ? t->node.at_ns : UINT64_MAX;

	atomic_store_explicit(&l->visitor, &ring_thread, memory_order_relaxed);
	l->now_ns = clock_ns();
	m->run(l, m);
	atomic_store_explicit(&l->visitor, NULL, memory_order_relaxed);
	t = timers_first(&l->timers);
	must(l->ops_flying == ops_flying && l->ready_first == NULL);
	must(t == NULL || t->node.at_ns >= at_ns);
}

/* Under the lock. */
static bool visit_may(const struct loop *l)
{
#ifdef KVOF_PLANT_VISIT_AWAKE
	return true;
#endif
#ifdef KVOF_PLANT_VISIT_BEFORE_MAIL
	return atomic_load(&l->lent);
#endif
	return atomic_load(&l->lent) && atomic_load(&l->mail) == NULL;
}

bool loop_visit(struct loop *loop, struct msg *m)
{
	bool may;

	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	if (pthread_mutex_trylock(&loop->visit_lock) != 0)
		return false;
	may = visit_may(loop);
	if (may)
		visit_run(loop, m);
	must(pthread_mutex_unlock(&loop->visit_lock) == 0);
	return may;
}

/* ---- the turn ---- */

static void spin_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* How long the kernel may keep us. Sets `asleep` where the answer is not 0. */
static uint64_t turn_wait_ns(struct loop *l, uint64_t wait_ns)
{
	struct loop_timer *t = timers_first(&l->timers);

	if (wait_ns == 0 || l->ready_first != NULL || l->inbox != NULL)
		return 0;
	if (l->spin_ns > 0 && l->now_ns - l->worked_ns < l->spin_ns) {
		spin_pause();
		return 0;
	}
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
	if (wait_ns > 0)
		atomic_store(&l->lent, true);
	ring_enter(l, wait_ns);
	if (wait_ns > 0) {
		visits_end(l);
		atomic_store(&l->asleep, 0);
	}
	l->now_ns = clock_ns();
	if (l->plain != NULL)
		plain_reap(l);
	else
		uring_reap(l);
	n = turn_timers(l);
	n += turn_msgs(l);
	n += turn_ops(l, LOOP_TURN_DONE_MAX - n);
	must(n <= LOOP_TURN_DONE_MAX);
	if (n > 0)
		l->worked_ns = l->now_ns;
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
	if (loop->plain == NULL)
		(void)io_uring_register_ring_fd(&loop->ring);
	loop->running = true;
	loop->stop = false;
	while (!loop->stop)
		turn_once(loop, UINT64_MAX);
	ring_enter(loop, 0);
	loop->running = false;
	if (loop->plain == NULL)
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

void loop_now_take(struct loop *loop)
{
	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	loop_must_own(loop);
	loop->now_ns = clock_ns();
}

void loop_random(void *out, size_t bytes)
{
	must(getrandom(out, bytes, 0) == (ssize_t)bytes);
}

bool loop_here(const struct loop *loop)
{
	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	return loop->owner == &ring_thread ||
	       atomic_load_explicit(&loop->visitor, memory_order_relaxed) == &ring_thread;
}

const char *loop_kind(const struct loop *loop)
{
	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	return loop->plain != NULL ? "plain" : "io_uring";
}

/* ---- which one ---- */

static atomic_bool told_denied, told_asked;

/* One line a process, seen at any level where nobody asked for the plain loop. */
static int plain_begin(struct loop *l, int err)
{
	char why[160];

	if (err == 0 && !atomic_exchange(&told_asked, true))
		log_info("plain loop (epoll, %u I/O threads a drive), as asked", LANE_THREADS);
	if (err != 0 && !atomic_exchange(&told_denied, true)) {
		uring_why(err, why, sizeof(why));
		log_notice("plain loop (epoll, %u I/O threads a drive): %s", LANE_THREADS, why);
	}
	return plain_open(l);
}

/* What was asked for, or where nothing was what KVOF_LOOP says (for tests). */
static int kind_wanted(const struct loop_opts *opts, enum loop_kind *out)
{
	const char *text = getenv("KVOF_LOOP");

	*out = opts->kind;
	if (opts->kind != LOOP_AUTO || text == NULL || *text == 0 || strcmp(text, "auto") == 0)
		return 0;
	*out = strcmp(text, "plain") == 0 ? LOOP_PLAIN : LOOP_IO_URING;
	if (*out == LOOP_PLAIN || strcmp(text, "io_uring") == 0)
		return 0;
	log_error("KVOF_LOOP=%.20s: no loop; auto, io_uring or plain", text);
	return -EINVAL;
}

static int backend_open(struct loop *l, const struct loop_opts *opts)
{
	enum loop_kind kind;
	char why[160];
	int rc = kind_wanted(opts, &kind);

	if (rc != 0)
		return rc;
	if (kind == LOOP_PLAIN)
		return plain_begin(l, 0);
	rc = -uring_denied();
	if (rc == 0)
		rc = uring_open(l);
	if (rc == 0)
		return 0;
	if (kind == LOOP_AUTO) {
		uring_denied_set(-rc);
		return plain_begin(l, -rc);
	}
	uring_why(-rc, why, sizeof(why));
	log_error("%s", why);
	return rc == -ENOMEM ? -ENOMEM : files_ran_out(-rc) ? -EMFILE : -EINVAL;
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
	l->spin_ns = opts->spin_ns;
	l->owner = &ring_thread;
	l->now_ns = clock_ns();
	list_init(&l->listeners);
	list_init(&l->sends);
	rc = timers_open(&l->timers, opts->timers_max == 0 ? 4096 : opts->timers_max);
	l->bell_fd = rc != 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (rc == 0 && l->bell_fd < 0)
		rc = files_errno(errno);
	if (rc == 0)
		rc = backend_open(l, opts);
	if (rc == 0) {
		pthread_mutex_init(&l->visit_lock, NULL);
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

#define CLOSE_NS (5 * NS_PER_S)
#define CLOSE_DISKS_NS NS_PER_S         /* a drive that was given up will not answer now */

/* Completions of what was closed a moment ago, cancelled socket I/O above all, come in here. */
static void ring_drain(struct loop *l)
{
	uint64_t end_ns = clock_ns() + (l->disks > 0 ? CLOSE_DISKS_NS : CLOSE_NS);

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
	if (l->ops_flying > 0 && l->disks > 0) {
		log_error("loop %s: a drive has not answered %" PRIu64 " requests; their memory "
			  "is kept", l->name == NULL ? "" : l->name, l->ops_flying);
		return;
	}
	must(l->ops_flying == 0 && l->ready_first == NULL);
	must(l->disks == 0 && l->socks == 0);
	if (l->plain == NULL)
		uring_close(l);
	ring_listeners_free(l);
	if (l->plain != NULL)
		plain_close(l);
	timers_close(&l->timers);
	close(l->bell_fd);
	pthread_mutex_destroy(&l->visit_lock);
	l->magic = 0;
	free(l);
}
