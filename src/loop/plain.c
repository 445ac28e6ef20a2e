/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: what a ring does, by system calls of our own.
 *
 * Theory: an operation is prepared in a slot, begun with the next submission, and its slot goes to
 * the list of what is done; reaping empties that. A file operation goes to its drive's lane and
 * comes back through a list that the lane's threads push onto (as mail is); they ring the bell
 * where the loop sleeps. A socket operation is tried at once, unless the socket is known to have
 * nothing, and else waits for the descriptor.
 *
 * Descriptors are watched edge-triggered, both ways, from the first wait on: `in` and `out` say
 * whether a try may find something. A try that moves less than asked, or nothing, takes the word
 * back; the next edge gives it again. After a hang-up or error it is not taken back any more, since
 * an end that came together with bytes has no edge of its own. A descriptor that is only polled is
 * watched while it is, since its owner may close it afterwards; a socket tells (plain_fd_forget).
 *
 * Invariants: a slot is free, queued, with a lane, on one descriptor's list, or done. No slot waits
 * on a descriptor that is not watched.
 *
 * Memory: slots for the most operations that the loop was opened for; more are bought should a
 * caller have more in flight, and then there must be memory. The table of descriptors grows with
 * the highest one; where it can't, the operation fails with -ENOMEM.
 *
 * Thread: the loop's own, but for slot_ended().
 */
#include "loop/plain.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/files.h"
#include "loop/lane.h"

#define EVENTS_MAX 128
#define SLOTS_MORE 256u
#define FDS_FIRST 64u
#define BELL UINT32_MAX                 /* in an event: not a descriptor of the table */

struct slot {
	struct lane_job job;            /* next, sqe and res are of use in every list */
	struct loop *loop;
};

struct slots {
	struct slot *first, *last;
};

struct chunk {
	struct chunk *next;
	unsigned used, count;           /* slots from `used` on were never taken */
	struct slot slot[];
};

struct watched {
	struct slots in_wait, out_wait;
	bool on;                        /* epoll has it */
	bool sock;                      /* stays there until forgotten */
	bool in, out;                   /* a try may move something */
	bool in_ended, out_ended;       /* and always will */
};

struct plain {
	int epoll_fd;
	bool no_pwait2;                 /* the machine knows only milliseconds */
	struct slots queued, done;
	struct slot *free;
	struct chunk *chunks;
	struct watched *fds;
	unsigned fd_count;
	struct lane **lanes;            /* by place; NULL: free */
	unsigned lane_count;
	struct epoll_event event[EVENTS_MAX];
	/* The lanes' threads write it; newest first. */
	_Alignas(64) _Atomic(struct lane_job *) ended;
};

/* ---- slots ---- */

static struct slot *slot_of(struct lane_job *job)
{
	return container_of(job, struct slot, job);
}

static void slots_push(struct slots *list, struct slot *s)
{
	s->job.next = NULL;
	if (list->last == NULL)
		list->first = s;
	else
		list->last->job.next = &s->job;
	list->last = s;
}

static struct slot *slot_next(const struct slot *s)
{
	return s->job.next == NULL ? NULL : slot_of(s->job.next);
}

static struct slot *slots_pop(struct slots *list)
{
	struct slot *s = list->first;

	if (s == NULL)
		return NULL;
	list->first = slot_next(s);
	if (list->first == NULL)
		list->last = NULL;
	return s;
}

static struct chunk *chunk_make(unsigned count)
{
	struct chunk *c = calloc(1, sizeof(*c) + count * sizeof(c->slot[0]));

	if (c != NULL)
		c->count = count;
	return c;
}

/* Pages of the chunk that were never needed stay untouched. */
static struct slot *slot_take(struct plain *p)
{
	struct slot *s = p->free;

	if (s != NULL) {
		p->free = slot_next(s);
		return s;
	}
	if (p->chunks->used == p->chunks->count) {
		struct chunk *c = chunk_make(SLOTS_MORE);

		must(c != NULL);
		c->next = p->chunks;
		p->chunks = c;
	}
	return &p->chunks->slot[p->chunks->used++];
}

static void slot_give(struct plain *p, struct slot *s)
{
	s->job.next = p->free == NULL ? NULL : &p->free->job;
	p->free = s;
}

static void slot_done(struct plain *p, struct slot *s, int res)
{
	s->job.res = res;
	slots_push(&p->done, s);
}

struct io_uring_sqe *plain_sqe(struct loop *l)
{
	struct slot *s = slot_take(l->plain);

	s->loop = l;
	slots_push(&l->plain->queued, s);
	return &s->job.sqe;
}

struct io_uring_sqe *plain_sqe_last(struct loop *l)
{
	return l->plain->queued.last == NULL ? NULL : &l->plain->queued.last->job.sqe;
}

/* ---- drives ---- */

/* On a thread of the lane, under its lock; the loop stays until the lane is dropped. */
static void slot_ended(struct lane_job *job)
{
	struct loop *l = slot_of(job)->loop;
	struct lane_job *head = atomic_load(&l->plain->ended);

	do
		job->next = head;
	while (!atomic_compare_exchange_weak(&l->plain->ended, &head, job));
	ring_ring(l);
}

/* What the lanes have ended, oldest first, goes to what is done. */
static void ended_take(struct plain *p)
{
	struct lane_job *newest, *oldest = NULL;

	if (atomic_load_explicit(&p->ended, memory_order_relaxed) == NULL)
		return;
	newest = atomic_exchange(&p->ended, NULL);
	while (newest != NULL) {
		struct lane_job *next = newest->next;

		newest->next = oldest;
		oldest = newest;
		newest = next;
	}
	while (oldest != NULL) {
		struct slot *s = slot_of(oldest);

		oldest = oldest->next;
		slots_push(&p->done, s);
	}
}

int plain_file_add(struct loop *l, int fd, int *place)
{
	struct plain *p = l->plain;
	unsigned at = 0;

	while (at < p->lane_count && p->lanes[at] != NULL)
		at++;
	if (at == p->lane_count) {
		struct lane **more = realloc(p->lanes, (at + 8) * sizeof(*more));

		if (more == NULL)
			return -ENOMEM;
		memset(more + at, 0, 8 * sizeof(*more));
		p->lanes = more;
		p->lane_count += 8;
	}
	*place = (int)at;
	return lane_take(fd, &p->lanes[at]);
}

struct lane *plain_lane(struct loop *l, int place)
{
	must(place >= 0 && (unsigned)place < l->plain->lane_count);
	must(l->plain->lanes[place] != NULL);
	return l->plain->lanes[place];
}

void plain_file_remove(struct loop *l, int place)
{
	must(plain_lane(l, place) != NULL);
	lane_drop(&l->plain->lanes[place]);
}

/* ---- descriptors ---- */

/* NULL: no memory. */
static struct watched *watched_of(struct plain *p, int fd)
{
	unsigned count = p->fd_count == 0 ? FDS_FIRST : p->fd_count;
	struct watched *more;

	must(fd >= 0);
	if ((unsigned)fd < p->fd_count)
		return &p->fds[fd];
	while (count <= (unsigned)fd)
		count *= 2;
	more = realloc(p->fds, count * sizeof(*more));
	if (more == NULL)
		return NULL;
	memset(more + p->fd_count, 0, (count - p->fd_count) * sizeof(*more));
	p->fds = more;
	p->fd_count = count;
	return &p->fds[fd];
}

/* From now on its edges come, the first one at once where it is ready. Return: 0 or an errno. */
static int watch(struct plain *p, struct watched *w, int fd)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
		.data.u32 = (uint32_t)fd};

	if (w->on)
		return 0;
	if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0)
		return errno;
	w->on = true;
	return 0;
}

static void unwatch(struct plain *p, struct watched *w, int fd)
{
	struct epoll_event none = {0};

	must(w->in_wait.first == NULL && w->out_wait.first == NULL);
	if (w->on)
		(void)epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, fd, &none);
	*w = (struct watched){0};
}

void plain_fd_forget(struct loop *l, int fd)
{
#ifdef KVOF_PLANT_PLAIN_NUMBER_KEPT
	return;
#endif
	if ((unsigned)fd < l->plain->fd_count)
		unwatch(l->plain, &l->plain->fds[fd], fd);
}

/* ---- operations on sockets ---- */

static int flags_plain(const struct io_uring_sqe *sqe)
{
	return (int)((sqe->msg_flags & ~(unsigned)MSG_WAITALL) | MSG_DONTWAIT);
}

static uint64_t msg_bytes(const struct msghdr *m)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < m->msg_iovlen; i++)
		bytes += m->msg_iov[i].iov_len;
	return bytes;
}

/* Return: bytes moved or -errno; *asked: how many could have been. */
static int64_t move_try(const struct io_uring_sqe *sqe, uint64_t *asked)
{
	void *at = (void *)(uintptr_t)sqe->addr;
	int flags = flags_plain(sqe);
	ssize_t n;

	*asked = sqe->opcode == IORING_OP_RECV || sqe->opcode == IORING_OP_SEND ? sqe->len :
		msg_bytes(at);
	switch (sqe->opcode) {
	case IORING_OP_RECV:
		n = recv(sqe->fd, at, sqe->len, flags);
		break;
	case IORING_OP_RECVMSG:
		n = recvmsg(sqe->fd, at, flags);
		break;
	case IORING_OP_SEND:
		n = send(sqe->fd, at, sqe->len, flags);
		break;
	case IORING_OP_SENDMSG:
		n = sendmsg(sqe->fd, at, flags);
		break;
	default:
		must(false);
	}
	return n < 0 ? -errno : n;
}

static bool is_in(const struct io_uring_sqe *sqe)
{
	return sqe->opcode == IORING_OP_RECV || sqe->opcode == IORING_OP_RECVMSG ||
	       sqe->opcode == IORING_OP_POLL_ADD;
}

/* The connect has been answered, well or not. */
static int connect_result(int fd)
{
	int err = 0;
	socklen_t length = sizeof(err);

	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &length) != 0 ? -errno : -err;
}

/* While it connects a socket does not block; its other calls say so each by themselves. */
static void blocking_set(int fd, bool blocking)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags >= 0)
		(void)fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

/* Tries what waits first, when an edge says that it may go on. False: it waits on. */
static bool wait_try(struct plain *p, struct watched *w, struct slot *s)
{
	const struct io_uring_sqe *sqe = &s->job.sqe;
	bool in = is_in(sqe);
	uint64_t asked = 0;
	int64_t n;

	if (sqe->opcode == IORING_OP_POLL_ADD) {
		slot_done(p, s, POLLIN);
		return true;
	}
	if (sqe->opcode == IORING_OP_CONNECT) {
		blocking_set(sqe->fd, true);
		slot_done(p, s, connect_result(sqe->fd));
		return true;
	}
	n = move_try(sqe, &asked);
	if (n < 0 || (uint64_t)n < asked) {
#ifdef KVOF_PLANT_PLAIN_END_LOST
		w->in_ended = w->out_ended = false;
#endif
		if (in)
			w->in = w->in_ended;
		else
			w->out = w->out_ended;
	}
	if (n == -EAGAIN)
		return false;
	slot_done(p, s, (int)n);
	return true;
}

/* All that waits one way, as long as there is something to move. */
static void wait_run(struct plain *p, struct watched *w, struct slots *wait, const bool *may)
{
	while (wait->first != NULL && *may) {
		struct slot *s = slots_pop(wait);

		if (!wait_try(p, w, s)) {
			s->job.next = wait->first == NULL ? NULL : &wait->first->job;
			wait->first = s;
			if (wait->last == NULL)
				wait->last = s;
			return;
		}
	}
}

static void watched_settle(struct plain *p, struct watched *w, int fd)
{
	if (!w->sock && w->in_wait.first == NULL && w->out_wait.first == NULL)
		unwatch(p, w, fd);
}

static void event_take(struct plain *p, const struct epoll_event *e)
{
	int fd = (int)e->data.u32;
	struct watched *w;

	if (e->data.u32 == BELL)
		return;
	must((unsigned)fd < p->fd_count);
	w = &p->fds[fd];
	if ((e->events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0)
		w->in = w->in_ended = true;
	if ((e->events & (EPOLLHUP | EPOLLERR)) != 0)
		w->out = w->out_ended = true;
	w->in |= (e->events & EPOLLIN) != 0;
	w->out |= (e->events & EPOLLOUT) != 0;
	wait_run(p, w, &w->in_wait, &w->in);
	wait_run(p, w, &w->out_wait, &w->out);
	watched_settle(p, w, fd);
}

/* ---- beginning ---- */

/* A receive or send. What is not known to wait in vain is tried before it is watched for. */
static void move_begin(struct plain *p, struct slot *s)
{
	bool in = is_in(&s->job.sqe);
	int fd = s->job.sqe.fd, err;
	struct watched *w = watched_of(p, fd);
	struct slots *wait;

	if (w == NULL) {
		slot_done(p, s, -ENOMEM);
		return;
	}
	if (!w->sock)
		w->sock = w->in = w->out = true;
	wait = in ? &w->in_wait : &w->out_wait;
	slots_push(wait, s);
	wait_run(p, w, wait, in ? &w->in : &w->out);
	if (wait->first == NULL)
		return;
	err = watch(p, w, fd);
	if (err != 0)
		slot_done(p, slots_pop(wait), -err);
}

static void poll_begin(struct plain *p, struct slot *s)
{
	int fd = s->job.sqe.fd, err;
	struct watched *w = watched_of(p, fd);
	struct pollfd now = {.fd = fd, .events = POLLIN};

	if (w == NULL) {
		slot_done(p, s, -ENOMEM);
		return;
	}
	err = poll(&now, 1, 0) > 0 ? 0 : watch(p, w, fd);
	if (now.revents != 0)
		slot_done(p, s, now.revents);
	else if (err != 0)
		slot_done(p, s, -err);
	else
		slots_push(&w->in_wait, s);
}

static void connect_begin(struct plain *p, struct slot *s)
{
	const struct io_uring_sqe *sqe = &s->job.sqe;
	struct watched *w = watched_of(p, sqe->fd);
	int err;

	if (w == NULL) {
		slot_done(p, s, -ENOMEM);
		return;
	}
	must(w->out_wait.first == NULL);
	w->sock = true;
	blocking_set(sqe->fd, false);
	if (connect(sqe->fd, (const struct sockaddr *)(uintptr_t)sqe->addr,
		    (socklen_t)sqe->off) == 0)
		err = 0;
	else
		err = errno == EINTR ? EINPROGRESS : errno;
	if (err == EINPROGRESS)
		err = watch(p, w, sqe->fd);
	else
		goto ended;
	if (err == 0) {
		w->out = false;
		slots_push(&w->out_wait, s);
		return;
	}
ended:
	blocking_set(sqe->fd, true);
	slot_done(p, s, -err);
}

static bool cancel_meets(const struct io_uring_sqe *cancel, const struct io_uring_sqe *sqe)
{
	if ((cancel->cancel_flags & IORING_ASYNC_CANCEL_FD) != 0)
		return sqe->fd == cancel->fd;
	return sqe->user_data == cancel->addr;
}

/* Takes those that are meant off a list. */
static void cancel_list(struct plain *p, struct slots *wait, const struct io_uring_sqe *cancel)
{
	struct slots keep = {NULL, NULL};
	struct slot *s;

	while ((s = slots_pop(wait)) != NULL) {
		if (cancel_meets(cancel, &s->job.sqe)) {
			slot_done(p, s, -ECANCELED);
		} else {
			slots_push(&keep, s);
		}
	}
	*wait = keep;
}

/* Sockets and polls; a file operation ends by itself. By descriptor one place is looked at, by name
 * all: polls and connects, which are rare. */
static void cancel_begin(struct plain *p, struct slot *s)
{
	const struct io_uring_sqe *cancel = &s->job.sqe;
	bool one = (cancel->cancel_flags & IORING_ASYNC_CANCEL_FD) != 0;
	unsigned first = one ? (unsigned)cancel->fd : 0;
	unsigned end = one ? first + 1 : p->fd_count;

#ifdef KVOF_PLANT_PLAIN_CANCEL_UNHEARD
	end = first;
#endif
	for (unsigned i = first; i < end && i < p->fd_count; i++) {
		cancel_list(p, &p->fds[i].in_wait, cancel);
		cancel_list(p, &p->fds[i].out_wait, cancel);
		watched_settle(p, &p->fds[i], (int)i);
	}
	slot_done(p, s, 0);
}

static void slot_begin(struct plain *p, struct slot *s)
{
	const struct io_uring_sqe *sqe = &s->job.sqe;

	switch (sqe->opcode) {
	case IORING_OP_READ:
	case IORING_OP_WRITE:
	case IORING_OP_READV:
	case IORING_OP_WRITEV:
	case IORING_OP_FSYNC:
	case IORING_OP_FALLOCATE:
		must((sqe->flags & IOSQE_FIXED_FILE) != 0);
		s->job.ended = slot_ended;
		lane_submit(plain_lane(s->loop, sqe->fd), &s->job);
		break;
	case IORING_OP_RECV:
	case IORING_OP_RECVMSG:
	case IORING_OP_SEND:
	case IORING_OP_SENDMSG:
		move_begin(p, s);
		break;
	case IORING_OP_CONNECT:
		connect_begin(p, s);
		break;
	case IORING_OP_POLL_ADD:
		poll_begin(p, s);
		break;
	case IORING_OP_ASYNC_CANCEL:
		cancel_begin(p, s);
		break;
	default:
		must(false);
	}
}

void plain_submit(struct loop *l)
{
	struct slot *s;

	while ((s = slots_pop(&l->plain->queued)) != NULL)
		slot_begin(l->plain, s);
}

/* ---- waiting ---- */

/* epoll with nanoseconds where the machine has that. */
static int events_wait(struct plain *p, uint64_t wait_ns)
{
	struct timespec ts = {.tv_sec = (time_t)(wait_ns / NS_PER_S),
		.tv_nsec = (long)(wait_ns % NS_PER_S)};
	uint64_t ms = wait_ns / NS_PER_MS + (wait_ns % NS_PER_MS != 0);
	int n;

	if (wait_ns == 0 || wait_ns == UINT64_MAX)
		return epoll_wait(p->epoll_fd, p->event, EVENTS_MAX, wait_ns == 0 ? 0 : -1);
	if (!p->no_pwait2) {
		n = (int)syscall(SYS_epoll_pwait2, p->epoll_fd, p->event, EVENTS_MAX, &ts, NULL, 0);
		if (n >= 0 || errno == EINTR)
			return n;
		p->no_pwait2 = true;    /* older than 5.11, or a filter that does not know it */
	}
	return epoll_wait(p->epoll_fd, p->event, EVENTS_MAX, (int)bytes_min(ms, INT_MAX));
}

void plain_enter(struct loop *l, uint64_t wait_ns)
{
	struct plain *p = l->plain;
	int n;

	plain_submit(l);
	/* `asleep` is set where wait_ns is not 0: what ends after this look rings the bell */
	if (p->done.first != NULL || atomic_load(&p->ended) != NULL)
		wait_ns = 0;
	n = events_wait(p, wait_ns);
	must(n >= 0 || errno == EINTR);
	for (int i = 0; i < n; i++)
		event_take(p, &p->event[i]);
}

void plain_reap(struct loop *l)
{
	struct plain *p = l->plain;
	struct slot *s;

	ended_take(p);
	while ((s = slots_pop(&p->done)) != NULL) {
		uint64_t user_data = s->job.sqe.user_data;
		int res = s->job.res;

		slot_give(p, s);
		ring_reap_one(l, user_data, res, 0);
	}
}

/* ---- life ---- */

int plain_open(struct loop *l)
{
	struct plain *p = aligned_alloc(_Alignof(struct plain), sizeof(*p));
	struct epoll_event bell = {.events = EPOLLIN | EPOLLET, .data.u32 = BELL};
	int rc = -ENOMEM;

	if (p == NULL)
		return -ENOMEM;
	memset(p, 0, sizeof(*p));
	p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (p->epoll_fd < 0)
		rc = files_errno(errno);
	p->chunks = chunk_make(l->ops_max);
	if (p->epoll_fd >= 0 && p->chunks != NULL && watched_of(p, 0) != NULL &&
	    epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, l->bell_fd, &bell) == 0) {
		l->plain = p;
		return 0;
	}
	if (p->epoll_fd >= 0)
		close(p->epoll_fd);
	free(p->fds);
	free(p->chunks);
	free(p);
	return rc;
}

void plain_close(struct loop *l)
{
	struct plain *p = l->plain;

	must(atomic_load(&p->ended) == NULL);
	for (unsigned i = 0; i < p->lane_count; i++)
		must(p->lanes[i] == NULL);
	while (p->chunks != NULL) {
		struct chunk *c = p->chunks;

		p->chunks = c->next;
		free(c);
	}
	close(p->epoll_fd);
	free(p->lanes);
	free(p->fds);
	l->plain = NULL;
	free(p);
}
