/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: TCP streams.
 *
 * Theory: one receive and one send of a sock are in the ring at a time. Sends that are queued
 * during a turn go in together at its end, as one sendmsg of up to SOCK_IOV_MAX pieces; both
 * directions ask for MSG_WAITALL where the whole is wanted, so that the kernel itself goes on after
 * a partial transfer and one completion stands for all of it. What it answers short is asked for
 * again from the place reached.
 *
 * Closing: the descriptor is shut down and its requests are cancelled; when the last of them has
 * completed, so that the kernel holds no buffer any more, the operations are answered -ECANCELED,
 * the descriptor is closed and the sock freed.
 *
 * Invariants: recv_flying => recv != NULL; send_flying => the queue is not empty; a sock on
 * loop.sends has a queue and no send in the kernel; a sock that is closing is on no list.
 *
 * Thread: the loop's own.
 */
#include "loop/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/files.h"
#include "loop/iov.h"
#include "loop/ring.h"

#define SOCK_MAGIC 0x50c40000u
#define LISTENER_MAGIC 0x115e0000u
#define SOCK_IOV_MAX 64u
#define SOCK_IOV_WHOLE_MAX 1024u        /* the kernel takes no more at once */
/* wire asks for 17; a silent socket costs 4 KiB in all */
#define SOCK_RECV_IOV_MAX 20u
#define SOCK_GATHER_BYTES (256 * KiB)   /* no further send joins one that has so much */
#define LISTENER_TRIES 40u
#define LISTENER_PAUSE_NS (20 * NS_PER_MS)
#define SOCK_BACKLOG 1024
#define ACCEPT_MAX 64                   /* connections taken in one callback */
#define ACCEPT_PAUSE_NS (10 * NS_PER_MS) /* when there is no descriptor left for one */

struct sock {
	uint32_t magic;
	int fd;
	struct loop *loop;
	struct list_link link;                  /* in loop.sends */
	struct sock_io *recv;
	struct loop_op *send_first, *send_last; /* of sock_io */
	bool recv_flying, send_flying;
	bool recv_broken, send_broken, shut, closing;
	struct msghdr recv_msg, send_msg;
	struct iovec recv_iov[SOCK_RECV_IOV_MAX], send_iov[SOCK_IOV_MAX];
	char peer[80];
};

/* What a sock_io's lease holds. */
struct sock_lease {
	struct iov_at at;
	uint64_t done;
};

struct sock_listener {
	uint32_t magic;
	int fd;
	struct list_link link;                  /* in loop.listeners */
	struct loop *loop;
	struct ring_inner poll;
	struct loop_op op;                      /* connections are there: accept them */
	struct loop_timer pause;
	void (*accepted)(void *arg, struct sock *sock);
	void *arg;
	bool poll_flying, busy, closed;
	uint16_t port;
};

/* What a sock_connect's lease holds. */
struct connect_lease {
	struct sockaddr_storage to;
	struct sock *sock;
	struct sock_connect *c;
	struct loop_timer deadline;
	bool late, cancelled;
};

_Static_assert(sizeof(struct sock_lease) <= sizeof(((struct sock_io *)0)->lease),
	       "a receive or send keeps its place in its own lease");
_Static_assert(sizeof(struct connect_lease) <= sizeof(((struct sock_connect *)0)->lease),
	       "a connect keeps its address and timer in its own lease");

static struct sock_lease *lease_of(struct sock_io *io)
{
	return (struct sock_lease *)(void *)io->lease;
}

static struct sock_io *io_of(struct loop_op *op)
{
	return container_of(op, struct sock_io, op);
}

/* ---- addresses ---- */

static int addr_parse(const struct sock_addr *addr, struct sockaddr_storage *out, socklen_t *length)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	if (memchr(addr->host, 0, sizeof(addr->host)) == NULL)
		return -EINVAL;
	if (inet_pton(AF_INET, addr->host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(addr->port);
		*length = sizeof(*v4);
		return 0;
	}
	if (inet_pton(AF_INET6, addr->host, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(addr->port);
		*length = sizeof(*v6);
		return 0;
	}
	return -EINVAL;
}

static void addr_print(const struct sockaddr_storage *from, char *out, size_t bytes)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
	char host[INET6_ADDRSTRLEN] = "?";

	if (from->ss_family == AF_INET) {
		inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
		snprintf(out, bytes, "%s:%u", host, ntohs(v4->sin_port));
	} else {
		inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
		snprintf(out, bytes, "[%s]:%u", host, ntohs(v6->sin6_port));
	}
}

/* ---- life of a sock ---- */

static bool addr_loopback(const struct sockaddr_storage *addr)
{
	const struct sockaddr_in *v4 = (const void *)addr;
	const struct sockaddr_in6 *v6 = (const void *)addr;

	if (addr->ss_family == AF_INET)
		return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

/*
 * A system whose default paces what it sends (bbr) does so on loopback too, where nothing can be
 * lost or wait: its timers cost two fifths of the bytes a second. What crosses a network keeps the
 * default.
 */
static void sock_tune(int fd, const struct sockaddr_storage *peer)
{
	int one = 1;

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (addr_loopback(peer))
		(void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

/* As asked, for a stream that stays on this machine: how far its sender can run ahead. */
static void sock_room_set(struct sock *s, const struct sock_connect *c,
			  const struct sockaddr_storage *peer)
{
	int room = (int)c->near_room_bytes;

	must(room >= 0);
	if (room > 0 && addr_loopback(peer))
		(void)setsockopt(s->fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
}

static struct sock *sock_make(struct loop *l, int fd, const struct sockaddr_storage *peer)
{
	struct sock *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	OBJ_INIT(s, SOCK_MAGIC);
	s->fd = fd;
	s->loop = l;
	addr_print(peer, s->peer, sizeof(s->peer));
	sock_tune(fd, peer);
	l->socks++;
	return s;
}

static void sock_free(struct sock *s)
{
	must(!s->recv_flying && !s->send_flying && s->recv == NULL && s->send_first == NULL);
	must(!list_linked(&s->link) && s->loop->socks > 0);
	s->loop->socks--;
	ring_fd_forget(s->loop, s->fd);
	close(s->fd);
	s->magic = 0;
	free(s);
}

static void recv_end(struct sock *s, int res)
{
	struct sock_io *io = s->recv;

	must(!s->recv_flying);
	s->recv = NULL;
	ring_op_ready(s->loop, &io->op, res);
}

static void sends_end(struct sock *s, int res)
{
	struct loop_op *op = s->send_first;

	must(!s->send_flying);
	s->send_first = s->send_last = NULL;
	if (list_linked(&s->link))
		list_remove(&s->link);
	while (op != NULL) {
		struct loop_op *next = op->next;

		ring_op_ready(s->loop, op, res);
		op = next;
	}
}

static void sock_close_step(struct sock *s)
{
	must(s->closing);
	if (!s->recv_flying && s->recv != NULL)
		recv_end(s, -ECANCELED);
	if (!s->send_flying)
		sends_end(s, -ECANCELED);
	if (!s->recv_flying && !s->send_flying)
		sock_free(s);
}

void sock_close(struct sock **sock)
{
	struct io_uring_sqe *sqe;
	struct sock *s;

	OBJ_TAKE(s, sock, SOCK_MAGIC);
	loop_must_own(s->loop);
	must(!s->closing);
	s->closing = true;
	if (s->recv_flying || s->send_flying) {
		(void)shutdown(s->fd, SHUT_RDWR);
		sqe = ring_sqe(s->loop);
		io_uring_prep_cancel_fd(sqe, s->fd, IORING_ASYNC_CANCEL_ALL);
		ring_tag_set(sqe, NULL, RING_NONE);
	}
	if (list_linked(&s->link))
		list_remove(&s->link);
	sock_close_step(s);
}

void sock_shutdown(struct sock *sock)
{
	OBJ_CHECK(sock, SOCK_MAGIC);
	loop_must_own(sock->loop);
	must(!sock->closing);
	if (sock->shut)
		return;
	sock->shut = true;
	(void)shutdown(sock->fd, SHUT_RDWR);
	if (!sock->send_flying)
		sends_end(sock, -ECONNRESET);
}

void sock_leave(struct sock *sock)
{
	OBJ_CHECK(sock, SOCK_MAGIC);
	loop_must_own(sock->loop);
	must(!sock->closing && sock->recv == NULL && sock->send_first == NULL);
	must(!sock->recv_flying && !sock->send_flying && !list_linked(&sock->link));
	must(sock->loop->socks > 0);
	sock->loop->socks--;
	ring_fd_forget(sock->loop, sock->fd);
	sock->loop = NULL;
}

void sock_join(struct sock *sock, struct loop *loop)
{
	OBJ_CHECK(sock, SOCK_MAGIC);
	loop_must_own(loop);
	must(sock->loop == NULL);
	sock->loop = loop;
	loop->socks++;
}

/* struct tcp_info as the kernel has had it since 4.1; the C library's is shorter. */
struct tcp_moved {
	uint8_t before[120];
	uint64_t bytes_acked, bytes_received;
};

uint64_t sock_moved_bytes(const struct sock *sock)
{
	struct tcp_moved info;
	socklen_t length = sizeof(info);

	OBJ_CHECK(sock, SOCK_MAGIC);
	memset(&info, 0, sizeof(info));
	if (getsockopt(sock->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
		return 0;
	return info.bytes_acked + info.bytes_received;
}

const char *sock_peer(const struct sock *sock)
{
	OBJ_CHECK(sock, SOCK_MAGIC);
	return sock->peer;
}

static void io_begin(struct sock *s, struct sock_io *io)
{
	OBJ_CHECK(s, SOCK_MAGIC);
	must(!s->closing && io->bytes > 0 && io->bytes <= INT32_MAX);
	must(iov_bytes(io->iov, io->iov_count) == io->bytes);
	ring_op_begin(s->loop, &io->op, s);
	*lease_of(io) = (struct sock_lease){.at = iov_at_start(io->iov, io->iov_count)};
}

/* ---- receiving ---- */

/* The next pieces of a transfer as an array the kernel may read; the caller's stays as it is. */
static unsigned iov_fill(struct iov_at at, struct iovec *out, unsigned most, uint64_t *bytes)
{
	unsigned count = 0;
	uint8_t *base = NULL;
	size_t piece;

	while (count < most && (piece = iov_at_piece(&at, &base)) > 0) {
		out[count++] = (struct iovec){base, piece};
		*bytes += piece;
		at.into += piece;
	}
	return count;
}

static void recv_submit(struct sock *s)
{
	struct io_uring_sqe *sqe = ring_sqe(s->loop);
	uint64_t bytes = 0;
	unsigned count = iov_fill(lease_of(s->recv)->at, s->recv_iov, SOCK_RECV_IOV_MAX, &bytes);
	int flags = s->recv->all ? MSG_WAITALL : 0;

	must(count > 0 && !s->recv_flying);
	if (count == 1) {
		io_uring_prep_recv(sqe, s->fd, s->recv_iov[0].iov_base, bytes, flags);
	} else {
		s->recv_msg = (struct msghdr){.msg_iov = s->recv_iov, .msg_iovlen = count};
		io_uring_prep_recvmsg(sqe, s->fd, &s->recv_msg, (unsigned)flags);
	}
	ring_tag_set(sqe, s, RING_SOCK_RECV);
	s->recv_flying = true;
}

void ring_recv_reap(struct loop *l, struct sock *s, int res)
{
	struct sock_lease *lease;

	OBJ_CHECK(s, SOCK_MAGIC);
	must(s->loop == l && s->recv_flying && s->recv != NULL);
	s->recv_flying = false;
	if (s->closing) {
		sock_close_step(s);
		return;
	}
	if (res == -EAGAIN || res == -EINTR) {
		recv_submit(s);
		return;
	}
	lease = lease_of(s->recv);
	if (res < 0) {
		s->recv_broken = true;
		recv_end(s, -ECONNRESET);
		return;
	}
	must((uint64_t)res <= s->recv->bytes - lease->done);
	lease->done += (uint64_t)res;
	iov_at_skip(&lease->at, (size_t)res);
	if (res == 0 || !s->recv->all || lease->done == s->recv->bytes)
		recv_end(s, (int)lease->done);
	else
		recv_submit(s);
}

void sock_recv(struct sock *sock, struct sock_io *io)
{
	io_begin(sock, io);
	must(sock->recv == NULL);
	sock->recv = io;
	if (sock->recv_broken)
		recv_end(sock, -ECONNRESET);
	else
		recv_submit(sock);
}

/* ---- sending ---- */

/* One send alone, of many pieces, goes as its owner has laid it out; false: it does not. */
static bool send_whole(struct sock *s, struct io_uring_sqe *sqe)
{
	const struct iov_at *at = &lease_of(io_of(s->send_first))->at;

#ifndef KVOF_PLANT_SEND_PIECE_AGAIN
	if (at->into != 0)
		return false;
#endif
	if (s->send_first->next != NULL || at->count < 2 || at->count > SOCK_IOV_WHOLE_MAX)
		return false;
	s->send_msg = (struct msghdr){.msg_iov = (struct iovec *)(uintptr_t)at->iov,
				      .msg_iovlen = at->count};
	io_uring_prep_sendmsg(sqe, s->fd, &s->send_msg, MSG_NOSIGNAL | MSG_WAITALL);
	ring_tag_set(sqe, s, RING_SOCK_SEND);
	s->send_flying = true;
	return true;
}

static void send_submit(struct sock *s)
{
	struct io_uring_sqe *sqe = ring_sqe(s->loop);
	uint64_t bytes = 0;
	unsigned count = 0;

	must(!s->send_flying && !s->closing && s->send_first != NULL);
	if (send_whole(s, sqe))
		return;
	for (struct loop_op *op = s->send_first; op != NULL; op = op->next) {
		if (count == SOCK_IOV_MAX || bytes >= SOCK_GATHER_BYTES)
			break;
		count += iov_fill(lease_of(io_of(op))->at, s->send_iov + count,
				  SOCK_IOV_MAX - count, &bytes);
	}
	must(count > 0);
	if (count == 1) {
		io_uring_prep_send(sqe, s->fd, s->send_iov[0].iov_base, bytes,
				   MSG_NOSIGNAL | MSG_WAITALL);
	} else {
		s->send_msg = (struct msghdr){.msg_iov = s->send_iov, .msg_iovlen = count};
		io_uring_prep_sendmsg(sqe, s->fd, &s->send_msg, MSG_NOSIGNAL | MSG_WAITALL);
	}
	ring_tag_set(sqe, s, RING_SOCK_SEND);
	s->send_flying = true;
}

void ring_sends_submit(struct loop *l)
{
	struct list_link *link;

	while ((link = list_pop_front(&l->sends)) != NULL)
		send_submit(container_of(link, struct sock, link));
}

static void sends_advance(struct sock *s, uint64_t bytes)
{
	while (bytes > 0) {
		struct sock_io *io = io_of(s->send_first);
		struct sock_lease *lease = lease_of(io);
		uint64_t step = bytes_min(bytes, io->bytes - lease->done);

		lease->done += step;
		iov_at_skip(&lease->at, step);
		bytes -= step;
		if (lease->done < io->bytes)
			break;
		s->send_first = io->op.next;
		if (s->send_first == NULL)
			s->send_last = NULL;
		ring_op_ready(s->loop, &io->op, 0);
	}
	must(bytes == 0);
}

void ring_send_reap(struct loop *l, struct sock *s, int res)
{
	OBJ_CHECK(s, SOCK_MAGIC);
	must(s->loop == l && s->send_flying && s->send_first != NULL);
	s->send_flying = false;
	if (res > 0)
		sends_advance(s, (uint64_t)res);
	else if (res != -EAGAIN && res != -EINTR)
		s->send_broken = true;
	if (s->closing)
		sock_close_step(s);
	else if (s->send_broken || s->shut)
		sends_end(s, -ECONNRESET);
	else if (s->send_first != NULL)
		list_push_back(&l->sends, &s->link);
}

void sock_send(struct sock *sock, struct sock_io *io)
{
	io_begin(sock, io);
	if (sock->send_broken || sock->shut) {
		if (sock->send_first == NULL) {
			ring_op_ready(sock->loop, &io->op, -ECONNRESET);
			return;
		}
	}
	if (sock->send_last == NULL)
		sock->send_first = &io->op;
	else
		sock->send_last->next = &io->op;
	sock->send_last = &io->op;
	if (!sock->send_flying && !list_linked(&sock->link))
		list_push_back(&sock->loop->sends, &sock->link);
}

/* ---- listening ---- */

static void listener_arm(struct sock_listener *l)
{
	struct io_uring_sqe *sqe = ring_sqe(l->loop);

	must(!l->poll_flying && !l->closed);
	io_uring_prep_poll_add(sqe, l->fd, POLLIN);
	ring_tag_set(sqe, &l->poll, RING_INNER);
	l->poll_flying = true;
}

static void listener_free(struct sock_listener *l)
{
	list_remove(&l->link);
	close(l->fd);
	l->magic = 0;
	free(l);
}

static void listener_reap(struct loop *loop, struct ring_inner *r, int res, unsigned flags)
{
	struct sock_listener *l = container_of(r, struct sock_listener, poll);

	OBJ_CHECK(l, LISTENER_MAGIC);
	l->poll_flying = false;
	if (l->closed) {
		listener_free(l);
		return;
	}
	ring_op_begin(loop, &l->op, l);
	ring_op_ready(loop, &l->op, res);
}

static void listener_resume(struct loop_timer *t)
{
	listener_arm(container_of(t, struct sock_listener, pause));
}

/* One connection of those that wait. Return: 0 or an errno. */
static int listener_accept_one(struct sock_listener *l)
{
	struct sockaddr_storage from = {0};
	socklen_t length = sizeof(from);
	int fd = accept4(l->fd, (struct sockaddr *)&from, &length, SOCK_CLOEXEC);
	struct sock *s;

	if (fd < 0)
		return errno;
	s = sock_make(l->loop, fd, &from);
	if (s == NULL) {
		close(fd);
		return ENOMEM;
	}
	l->accepted(l->arg, s);
	return 0;
}

static void listener_ready(struct loop_op *op, int res)
{
	struct sock_listener *l = container_of(op, struct sock_listener, op);
	int err = 0;

	OBJ_CHECK(l, LISTENER_MAGIC);
	l->busy = true;
	for (int i = 0; i < ACCEPT_MAX && !l->closed; i++) {
		err = listener_accept_one(l);
		if (err != 0 && err != ECONNABORTED && err != EINTR)
			break;
	}
	l->busy = false;
	if (l->closed)
		listener_free(l);
	else if (files_ran_out(err) || err == ENOMEM || err == ENOBUFS)
		loop_timer_set(l->loop, &l->pause, loop_now_ns(l->loop) + ACCEPT_PAUSE_NS);
	else
		listener_arm(l);
}

static int listener_errno(int err)
{
	switch (err) {
	case EADDRINUSE:
		return -EBUSY;
	case EADDRNOTAVAIL:
	case EACCES:
	case EAFNOSUPPORT:
	case EINVAL:
		return -EINVAL;
	default:
		return -EIO;
	}
}

static int listener_socket_once(const struct sock_addr *addr, uint16_t *port)
{
	struct sockaddr_storage at;
	socklen_t length;
	int fd, one = 1;
	int rc = addr_parse(addr, &at, &length);

	if (rc != 0)
		return rc;
	fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return listener_errno(errno);
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&at, length) != 0 || listen(fd, SOCK_BACKLOG) != 0 ||
	    getsockname(fd, (struct sockaddr *)&at, &length) != 0) {
		rc = listener_errno(errno);
		close(fd);
		return rc;
	}
	*port = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port :
		      ((struct sockaddr_in6 *)&at)->sin6_port);
	return fd;
}

/*
 * A socket that listens at the address; *port: where. Return: descriptor or negative errno.
 * A process that was killed keeps its port until the kernel has ended its accept, a little after it
 * was reaped: an array that is restarted at once waits for that, within the second in which a port
 * in use is to be told.
 */
static int listener_socket(const struct sock_addr *addr, uint16_t *port)
{
	struct timespec pause = {.tv_nsec = (long)LISTENER_PAUSE_NS};
	int fd = listener_socket_once(addr, port);

	for (unsigned i = 0; fd == -EBUSY && i < LISTENER_TRIES; i++) {
		nanosleep(&pause, NULL);
		fd = listener_socket_once(addr, port);
	}
	return fd;
}

int sock_listen_try(const struct sock_addr *addr)
{
	uint16_t port = 0;
	int fd = listener_socket(addr, &port);

	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

int sock_listen(struct loop *loop, const struct sock_addr *addr,
		void (*accepted)(void *arg, struct sock *sock), void *arg,
		struct sock_listener **out)
{
	struct sock_listener *l;
	uint16_t port = 0;
	int fd;

	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	loop_must_own(loop);
	must(accepted != NULL);
	fd = listener_socket(addr, &port);
	if (fd < 0)
		return fd;
	l = calloc(1, sizeof(*l));
	if (l == NULL) {
		close(fd);
		return -ENOMEM;
	}
	OBJ_INIT(l, LISTENER_MAGIC);
	l->fd = fd;
	l->port = port;
	l->loop = loop;
	l->accepted = accepted;
	l->arg = arg;
	l->poll.reap = listener_reap;
	l->op.done = listener_ready;
	loop_timer_init(&l->pause, listener_resume);
	list_push_back(&loop->listeners, &l->link);
	listener_arm(l);
	*out = l;
	return 0;
}

uint16_t sock_listener_port(const struct sock_listener *l)
{
	OBJ_CHECK(l, LISTENER_MAGIC);
	return l->port;
}

void sock_listener_close(struct sock_listener **listener)
{
	struct sock_listener *l;

	OBJ_TAKE(l, listener, LISTENER_MAGIC);
	loop_must_own(l->loop);
	must(!l->closed);
	l->closed = true;
	(void)shutdown(l->fd, SHUT_RDWR);       /* from now on nobody can connect */
	loop_timer_cancel(l->loop, &l->pause);
	if (l->op.state == RING_OP_FLYING)
		ring_op_forget(l->loop, &l->op);
	if (l->poll_flying)
		ring_cancel(l->loop, &l->poll, RING_INNER);
	else if (!l->busy)
		listener_free(l);
}

void ring_listeners_free(struct loop *l)
{
	LIST_FOR_EACH_SAFE(link, &l->listeners) {
		struct sock_listener *s = container_of(link, struct sock_listener, link);

		must(s->closed);
		listener_free(s);
	}
}

void ring_listeners_arm(struct loop *l)
{
	LIST_FOR_EACH_SAFE(link, &l->listeners) {
		struct sock_listener *s = container_of(link, struct sock_listener, link);

		if (s->closed) {
			listener_free(s);
		} else if (s->poll_flying) {
			s->poll_flying = false;
			listener_arm(s);
		}
	}
}

/* ---- connecting ---- */

static struct connect_lease *connect_of(struct sock_connect *c)
{
	return (struct connect_lease *)(void *)c->lease;
}

static void connect_late(struct loop_timer *t)
{
	struct connect_lease *lease = container_of(t, struct connect_lease, deadline);

	lease->late = true;
	ring_cancel(lease->sock->loop, lease->c, RING_CONNECT);
}

/* A connect from a port to itself meets nobody: the kernel calls it connected. */
static bool connect_is_self(int fd)
{
	struct sockaddr_storage a = {0}, b = {0};
	socklen_t a_bytes = sizeof(a), b_bytes = sizeof(b);

	return getsockname(fd, (struct sockaddr *)&a, &a_bytes) == 0 &&
	       getpeername(fd, (struct sockaddr *)&b, &b_bytes) == 0 && a_bytes == b_bytes &&
	       memcmp(&a, &b, a_bytes) == 0;
}

void ring_connect_reap(struct loop *l, struct sock_connect *c, int res)
{
	struct connect_lease *lease = connect_of(c);
	struct sock *s = lease->sock;

	OBJ_CHECK(s, SOCK_MAGIC);
	must(s->loop == l && c->op.state == RING_OP_FLYING);
	loop_timer_cancel(l, &lease->deadline);
	if (res == 0 && connect_is_self(s->fd))
		res = -ECONNREFUSED;
	if (res == 0)
		c->sock = s;
	else
		sock_free(s);
	if (res != 0)
		res = lease->cancelled ? -ECANCELED :
		      lease->late || res == -ETIMEDOUT ? -ETIMEDOUT : -ECONNRESET;
	ring_op_ready(l, &c->op, res);
}

void sock_connect(struct loop *loop, struct sock_connect *c)
{
	struct connect_lease *lease = connect_of(c);
	struct io_uring_sqe *sqe;
	socklen_t length;
	int fd;

	ring_op_begin(loop, &c->op, NULL);
	c->sock = NULL;
	*lease = (struct connect_lease){.c = c};
	loop_timer_init(&lease->deadline, connect_late);
	if (addr_parse(&c->addr, &lease->to, &length) != 0) {
		ring_op_ready(loop, &c->op, -EINVAL);
		return;
	}
	fd = socket(lease->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	lease->sock = fd < 0 ? NULL : sock_make(loop, fd, &lease->to);
	if (lease->sock == NULL) {
		bool files = fd < 0 && files_ran_out(errno);

		if (fd >= 0)
			close(fd);
		ring_op_ready(loop, &c->op, files ? -EMFILE : -ECONNRESET);
		return;
	}
	sock_room_set(lease->sock, c, &lease->to);
	sqe = ring_sqe(loop);
	io_uring_prep_connect(sqe, fd, (struct sockaddr *)&lease->to, length);
	ring_tag_set(sqe, c, RING_CONNECT);
	if (c->deadline_ns != 0)
		loop_timer_set(loop, &lease->deadline, c->deadline_ns);
}

void sock_connect_cancel(struct loop *loop, struct sock_connect *c)
{
	loop_must_own(loop);
	must(c->op.state == RING_OP_FLYING);
	connect_of(c)->cancelled = true;
	ring_cancel(loop, c, RING_CONNECT);
}
