/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: the simulator's network: byte streams between two nodes (or one), with the shape of TCP.
 *
 * Theory: a connection is two ends and two pipes. A pipe is a ring of bytes with room for
 * SIM_PIPE_BYTES: those on the way, then those that have arrived and are not read. A send copies
 * what fits, in segments of random size, each with its time of arrival (never before the one ahead
 * of it); it is complete when its last byte is in the pipe, and waits while the pipe is full. After
 * the segments comes the pipe's end: FIN (closed or shut down) or RESET. One event a pipe, the
 * pump, brings what is due. While the link is cut the pump stands still and nothing is lost.
 *
 * Bytes that arrive at an end that is closed or shut down are dropped and answered with a reset.
 *
 * Invariants: arrived <= used <= SIM_PIPE_BYTES; the bytes of all segments + arrived == used; at
 * most one receive per end; a conn is freed when both ends are closed, its pumps with it.
 *
 * Thread: the world's.
 */
#include "loop/sock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "loop/iov.h"
#include "loop/sim_world.h"

#define SIM_PIPE_BYTES (128 * KiB)
#define SIM_SEGMENTS_MAX 128u
#define SIM_SOCK_MAGIC 0x510c4000u
#define SIM_LISTENER_MAGIC 0x51115e00u

enum sim_end { SIM_END_NONE, SIM_END_FIN, SIM_END_RESET };

struct sim_segment {
	uint64_t at_ns;
	uint32_t bytes;
};

struct sim_conn;

struct sim_pipe {
	struct sim_conn *conn;
	unsigned from;                          /* index of the end that sends */
	uint64_t head;                          /* ring index of the first unread byte */
	uint64_t used, arrived;
	uint64_t dropped;                       /* taken by the receiver so far */
	struct sim_segment segment[SIM_SEGMENTS_MAX];
	uint32_t segment_head, segment_count;
	uint64_t last_ns;                       /* no arrival before this */
	enum sim_end end;
	uint64_t end_ns;
	/* fin: the receiver has seen the end of the stream */
	bool end_done, fin;
	struct sim_event *pump;
	uint8_t *ring;
};

/* What a sock_io's lease holds. */
struct sim_sock_lease {
	struct iov_at at;
	uint64_t done;
};

struct sock {
	uint32_t magic;
	unsigned index;                         /* which end */
	struct sim_conn *conn;
	struct list_link link;                  /* in loop.socks until closed */
	struct loop *loop;
	struct sock_io *recv;
	struct loop_op *send_first, *send_last; /* of sock_io */
	uint64_t sent_ns;                       /* no send is answered before */
	struct sock_listener *listener;         /* where it came in; NULL: it dialled */
	bool accepted;                          /* the owner knows of it */
	bool shut, broken, closed, moving;
	char peer[96];
};

struct sim_conn {
	struct list_link link;                  /* in world.conns */
	struct sock end[2];
	struct sim_pipe pipe[2];                /* pipe[i] carries what end[i] sends */
	struct sim_event *reset;                /* a fault that is about to strike */
};

struct sock_listener {
	uint32_t magic;
	struct list_link link;                  /* in loop.listeners; unlinked when closed */
	struct list_link all;                   /* in world.listeners until sim_end() */
	struct loop *loop;
	struct sock_addr addr;
	void (*accepted)(void *arg, struct sock *sock);
	void *arg;
	bool closed;
};

/* A connect in flight. */
struct sim_dial {
	struct list_link link;                  /* in loop.dials */
	struct list_link all;                   /* in world.dials */
	struct loop *loop;
	struct sock_connect *c;
	struct sim_conn *conn;                  /* the far side has accepted */
	struct sim_event *event, *deadline;
	bool parked;                            /* waits for the link */
};

_Static_assert(sizeof(struct sim_sock_lease) <= sizeof(((struct sock_io *)0)->lease),
	       "a receive or send keeps its place in its own lease");

static struct sim_sock_lease *sim_lease(struct sock_io *io)
{
	return (struct sim_sock_lease *)(void *)io->lease;
}

static struct sock_io *sim_io_of(struct loop_op *op)
{
	return container_of(op, struct sock_io, op);
}

/* ---- pipes ---- */

static void sim_pipe_pump(struct sim_event *e);
static void sim_sock_break(struct sock *s);

static struct sock *sim_pipe_sender(struct sim_pipe *p)
{
	return &p->conn->end[p->from];
}

static struct sock *sim_pipe_receiver(struct sim_pipe *p)
{
	return &p->conn->end[1 - p->from];
}

static void sim_pipe_check(const struct sim_pipe *p)
{
	must(p->arrived <= p->used && p->used <= SIM_PIPE_BYTES);
	must(p->segment_count <= SIM_SEGMENTS_MAX && p->head < SIM_PIPE_BYTES);
}

/* Makes sure that the pump runs when the next thing is due, unless the link is cut. */
static void sim_pipe_schedule(struct sim_pipe *p)
{
	uint64_t at_ns;

	sim_pipe_check(p);
	if (p->pump != NULL)
		return;
	if (p->segment_count > 0)
		at_ns = p->segment[p->segment_head].at_ns;
	else if (p->end != SIM_END_NONE && !p->end_done)
		at_ns = p->end_ns;
	else
		return;
	if (sim_cut_between(sim_pipe_sender(p)->loop, sim_pipe_receiver(p)->loop))
		return;
	if (at_ns < sim_world->now_ns)
		at_ns = sim_world->now_ns;
	p->pump = sim_event_add(NULL, at_ns, SIM_EVENT_PIPE, sim_pipe_pump, p);
}

static uint64_t sim_pipe_arrival_ns(struct sim_pipe *p)
{
	uint64_t delay_ns = sim_latency(sim_world->opts.net_latency_ns);

	if (sim_fault_now(SIM_NET_DELAY))
		delay_ns *= 10 + prng_below(&sim_world->prng, 1000);
	if (sim_world->now_ns + delay_ns > p->last_ns)
		p->last_ns = sim_world->now_ns + delay_ns;
	return p->last_ns;
}

/* The stream ends after what is in it. A reset may follow a FIN, never the other way round. */
static void sim_pipe_finish(struct sim_pipe *p, enum sim_end end)
{
	if (p->end >= end)
		return;
	p->end = end;
	p->end_done = false;
	p->end_ns = sim_pipe_arrival_ns(p);
	sim_pipe_schedule(p);
}

static void sim_ring_put(struct sim_pipe *p, struct iov_at *at, uint64_t bytes)
{
	uint64_t tail = (p->head + p->used) % SIM_PIPE_BYTES;
	uint64_t first = bytes_min(bytes, SIM_PIPE_BYTES - tail);

	must(bytes <= SIM_PIPE_BYTES - p->used);
	iov_at_take(at, p->ring + tail, first);
	iov_at_take(at, p->ring, bytes - first);
	if (sim_fault_now(SIM_NET_FLIP)) {
		uint64_t where = (tail + prng_below(&sim_world->prng, bytes)) % SIM_PIPE_BYTES;

		p->ring[where] ^= (uint8_t)(1u << prng_below(&sim_world->prng, 8));
	}
	p->used += bytes;
}

static void sim_ring_drop(struct sim_pipe *p, uint64_t bytes)
{
	must(bytes <= p->arrived);
	p->head = (p->head + bytes) % SIM_PIPE_BYTES;
	p->dropped += bytes;
	p->used -= bytes;
	p->arrived -= bytes;
}

static void sim_ring_get(struct sim_pipe *p, struct iov_at *at, uint64_t bytes)
{
	uint64_t first = bytes_min(bytes, SIM_PIPE_BYTES - p->head);

	iov_at_put(at, p->ring + p->head, first);
	iov_at_put(at, p->ring, bytes - first);
	sim_ring_drop(p, bytes);
}

/* Mostly all that there is, often a small piece. */
static uint64_t sim_split(uint64_t bytes)
{
	struct prng *p = &sim_world->prng;
	uint64_t how = prng_below(p, 8), part = bytes;

	if (how == 0)
		part = 1 + prng_below(p, 16);
	else if (how == 1)
		part = 1 + prng_below(p, 1460);
	else if (how == 2)
		part = 1 + prng_below(p, bytes);
	if (part >= bytes)
		return bytes;
	sim_fault_count(SIM_NET_SPLIT);
	return part;
}

/* Somebody between the two ends: both see a reset, and half of the time not even what has
 * arrived. */
static void sim_conn_reset(struct sim_event *e)
{
	struct sim_conn *conn = e->arg;

	conn->reset = NULL;
	for (int i = 0; i < 2; i++)
		if (prng_below(&sim_world->prng, 2) == 0)
			sim_ring_drop(&conn->pipe[i], conn->pipe[i].arrived);
	sim_sock_break(&conn->end[0]);
	sim_sock_break(&conn->end[1]);
}

/* Sends are answered in the order in which they were queued. */
static void sim_send_end(struct sock *s, struct loop_op *op, int res, uint64_t delay_ns)
{
	if (s->sent_ns < sim_world->now_ns + delay_ns)
		s->sent_ns = sim_world->now_ns + delay_ns;
	sim_op_end_soon(s->loop, op, res, s->sent_ns - sim_world->now_ns);
}

/* Moves what fits from the sender's queue into the pipe. Runs no callback. */
static void sim_pipe_fill(struct sim_pipe *p)
{
	struct sock *s = sim_pipe_sender(p);

	sim_pipe_check(p);
	while (s->send_first != NULL && p->used < SIM_PIPE_BYTES &&
	       p->segment_count < SIM_SEGMENTS_MAX && p->conn->reset == NULL) {
		struct sock_io *io = sim_io_of(s->send_first);
		struct sim_sock_lease *lease = sim_lease(io);
		uint64_t bytes =
			sim_split(bytes_min(SIM_PIPE_BYTES - p->used, io->bytes - lease->done));
		uint32_t tail = (p->segment_head + p->segment_count) % SIM_SEGMENTS_MAX;

		if (sim_fault_now(SIM_NET_RESET)) {
			p->conn->reset = sim_event_add(NULL, sim_world->now_ns, SIM_EVENT_PIPE,
						       sim_conn_reset, p->conn);
			break;
		}
		sim_ring_put(p, &lease->at, bytes);
		p->segment[tail] = (struct sim_segment){sim_pipe_arrival_ns(p), (uint32_t)bytes};
		p->segment_count++;
		lease->done += bytes;
		if (lease->done < io->bytes)
			continue;
		s->send_first = io->op.next;
		if (s->send_first == NULL)
			s->send_last = NULL;
		sim_send_end(s, &io->op, 0, 1 + prng_below(&sim_world->prng, 2000));
	}
	sim_pipe_schedule(p);
}

static void sim_recv_end(struct sock *s, int res)
{
	struct sock_io *io = s->recv;

	s->recv = NULL;
	sim_op_end_soon(s->loop, &io->op, res, 0);
}

/* Gives a waiting receive what has arrived. Runs no callback. */
static void sim_recv_try(struct sock *s)
{
	struct sim_pipe *p = &s->conn->pipe[1 - s->index];
	struct sock_io *io = s->recv;
	struct sim_sock_lease *lease;
	uint64_t bytes;

	if (io == NULL)
		return;
	lease = sim_lease(io);
	if (s->shut) {
		sim_recv_end(s, (int)lease->done);
		return;
	}
	bytes = bytes_min(p->arrived, io->bytes - lease->done);
	if (bytes > 0 && !io->all)
		bytes = sim_split(bytes);
	if (bytes > 0) {
		sim_ring_get(p, &lease->at, bytes);
		lease->done += bytes;
	}
	if (lease->done == io->bytes || (lease->done > 0 && !io->all))
		sim_recv_end(s, (int)lease->done);
	else if (s->broken)
		sim_recv_end(s, -ECONNRESET);
	else if (p->fin && p->arrived == 0)
		sim_recv_end(s, (int)lease->done);
	if (bytes > 0)
		sim_pipe_fill(p);       /* there is room again */
}

static void sim_pipe_pump(struct sim_event *e)
{
	struct sim_pipe *p = e->arg;
	struct sock *to = sim_pipe_receiver(p);
	uint64_t now_ns = sim_world->now_ns;

	p->pump = NULL;
	if (sim_cut_between(sim_pipe_sender(p)->loop, to->loop))
		return;
	while (p->segment_count > 0 && p->segment[p->segment_head].at_ns <= now_ns) {
		p->arrived += p->segment[p->segment_head].bytes;
		p->segment_head = (p->segment_head + 1) % SIM_SEGMENTS_MAX;
		p->segment_count--;
	}
	if (to->closed || to->shut) {
		if (p->arrived > 0 && !to->broken)
			sim_pipe_finish(&p->conn->pipe[to->index], SIM_END_RESET);
		sim_ring_drop(p, p->arrived);
	}
	if (p->segment_count == 0 && p->end != SIM_END_NONE && !p->end_done &&
	    p->end_ns <= now_ns) {
		p->end_done = true;
		if (p->end == SIM_END_FIN)
			p->fin = true;
		else if (!to->closed)
			sim_sock_break(to);
	}
	if (!to->closed)
		sim_recv_try(to);
	sim_pipe_fill(p);
}

/* ---- ends ---- */

static void sim_sends_end(struct sock *s, int res)
{
	struct loop_op *op = s->send_first;

	s->send_first = s->send_last = NULL;
	while (op != NULL) {
		struct loop_op *next = op->next;

		sim_send_end(s, op, res, 0);
		op = next;
	}
}

/* The connection is reset as this end sees it; the sock stays until its owner closes it. What has
 * arrived can still be read, as with Linux. */
static void sim_sock_break(struct sock *s)
{
	struct sim_pipe *in = &s->conn->pipe[1 - s->index];

	if (s->closed || s->broken)
		return;
	s->broken = true;
	in->used = in->arrived;
	in->segment_count = 0;
	sim_sends_end(s, -ECONNRESET);
	sim_recv_try(s);
}

static void sim_conn_free(struct sim_conn *conn)
{
	for (int i = 0; i < 2; i++) {
		if (conn->pipe[i].pump != NULL)
			sim_event_cancel(conn->pipe[i].pump);
		free(conn->pipe[i].ring);
		conn->end[i].magic = 0;
	}
	if (conn->reset != NULL)
		sim_event_cancel(conn->reset);
	list_remove(&conn->link);
	free(conn);
}

static struct sim_conn *sim_conn_make(struct loop *from, struct loop *to,
				      const struct sock_addr *addr)
{
	struct sim_conn *conn = calloc(1, sizeof(*conn));

	must(conn != NULL);
	for (unsigned i = 0; i < 2; i++) {
		struct sock *s = &conn->end[i];

		OBJ_INIT(s, SIM_SOCK_MAGIC);
		s->index = i;
		s->conn = conn;
		s->loop = i == 0 ? from : to;
		list_push_back(&s->loop->socks, &s->link);
		conn->pipe[i].conn = conn;
		conn->pipe[i].from = i;
		conn->pipe[i].ring = malloc(SIM_PIPE_BYTES);
		must(conn->pipe[i].ring != NULL);
	}
	snprintf(conn->end[0].peer, sizeof(conn->end[0].peer), "%s:%u", addr->host, addr->port);
	snprintf(conn->end[1].peer, sizeof(conn->end[1].peer), "%.80s", from->name);
	list_push_back(&sim_world->conns, &conn->link);
	return conn;
}

/* The end goes. What it sent still arrives; bytes that it did not read turn the end into a
 * reset. */
static void sim_sock_gone(struct sock *s, enum sim_end end)
{
	struct sim_conn *conn = s->conn;
	struct sim_pipe *in = &conn->pipe[1 - s->index];

	must(!s->closed && s->recv == NULL && s->send_first == NULL);
	s->closed = true;
	list_remove(&s->link);
	if (conn->end[1 - s->index].closed) {
		sim_conn_free(conn);
		return;
	}
	if (s->broken)
		return;
	if (in->arrived > 0)
		end = SIM_END_RESET;
	sim_ring_drop(in, in->arrived);
	sim_pipe_finish(&conn->pipe[s->index], end);
	sim_pipe_fill(in);              /* the peer goes on sending, into the void */
}

void sock_close(struct sock **sock)
{
	struct sock *s;

	OBJ_TAKE(s, sock, SIM_SOCK_MAGIC);
	if (sim_is_ghost(s->loop))
		return;                 /* sim_crash() takes it away */
	loop_must_own(s->loop);
	must(!s->closed && s->accepted);
	sim_sends_end(s, -ECANCELED);
	if (s->recv != NULL)
		sim_recv_end(s, -ECANCELED);
	sim_sock_gone(s, SIM_END_FIN);
}

void sock_shutdown(struct sock *sock)
{
	OBJ_CHECK(sock, SIM_SOCK_MAGIC);
	loop_must_own(sock->loop);
	must(!sock->closed);
	if (sock->shut || sock->broken || sim_is_ghost(sock->loop))
		return;
	sock->shut = true;
	sim_sends_end(sock, -ECONNRESET);
	sim_recv_try(sock);
	sim_pipe_finish(&sock->conn->pipe[sock->index], SIM_END_FIN);
}

/* In between it stays with the old loop, whose process is the same one. */
void sock_leave(struct sock *sock)
{
	OBJ_CHECK(sock, SIM_SOCK_MAGIC);
	loop_must_own(sock->loop);
	must(!sock->closed && sock->recv == NULL && sock->send_first == NULL && !sock->moving);
	sock->moving = true;
}

void sock_join(struct sock *sock, struct loop *loop)
{
	OBJ_CHECK(sock, SIM_SOCK_MAGIC);
	loop_must_own(loop);
	must(sock->moving && sock->loop->node == loop->node);
	sock->moving = false;
	if (sim_is_ghost(loop))
		return;
	list_remove(&sock->link);
	list_push_back(&loop->socks, &sock->link);
	sock->loop = loop;
}

uint64_t sock_moved_bytes(const struct sock *sock)
{
	const struct sim_pipe *out = &sock->conn->pipe[sock->index];
	const struct sim_pipe *in = &sock->conn->pipe[1 - sock->index];

	OBJ_CHECK(sock, SIM_SOCK_MAGIC);
	return out->dropped + in->dropped + in->arrived;
}

const char *sock_peer(const struct sock *sock)
{
	OBJ_CHECK(sock, SIM_SOCK_MAGIC);
	return sock->peer;
}

static void sim_io_begin(struct sock *s, struct sock_io *io)
{
	OBJ_CHECK(s, SIM_SOCK_MAGIC);
	must(!s->closed && !s->moving && io->bytes > 0 && io->bytes <= INT32_MAX);
	must(iov_bytes(io->iov, io->iov_count) == io->bytes);
	sim_op_begin(s->loop, &io->op, s);
	*sim_lease(io) = (struct sim_sock_lease){.at = iov_at_start(io->iov, io->iov_count)};
}

void sock_recv(struct sock *sock, struct sock_io *io)
{
	sim_io_begin(sock, io);
	must(sock->recv == NULL);
	if (sim_is_ghost(sock->loop))
		return;
	sock->recv = io;
	sim_recv_try(sock);
}

void sock_send(struct sock *sock, struct sock_io *io)
{
	sim_io_begin(sock, io);
	if (sim_is_ghost(sock->loop))
		return;
	if (sock->broken || sock->shut) {
		sim_send_end(sock, &io->op, -ECONNRESET, 0);
		return;
	}
	if (sock->send_last == NULL)
		sock->send_first = &io->op;
	else
		sock->send_last->next = &io->op;
	sock->send_last = &io->op;
	sim_pipe_fill(&sock->conn->pipe[sock->index]);
}

/* ---- listening ---- */

static struct sock_listener *sim_listener_find(const struct sock_addr *addr)
{
	LIST_FOR_EACH(link, &sim_world->listeners) {
		struct sock_listener *l = container_of(link, struct sock_listener, all);
		bool any = strcmp(l->addr.host, "0.0.0.0") == 0 || strcmp(l->addr.host, "::") == 0;

		if (!l->closed && l->addr.port == addr->port &&
		    (any || strcmp(l->addr.host, addr->host) == 0))
			return l;
	}
	return NULL;
}

int sock_listen_try(const struct sock_addr *addr)
{
	if (addr->host[0] == 0 || memchr(addr->host, 0, sizeof(addr->host)) == NULL)
		return -EINVAL;
	return addr->port != 0 && sim_listener_find(addr) != NULL ? -EBUSY : 0;
}

int sock_listen(struct loop *loop, const struct sock_addr *addr,
		void (*accepted)(void *arg, struct sock *sock), void *arg,
		struct sock_listener **out)
{
	struct sock_listener *l;
	int rc = sock_listen_try(addr);

	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	loop_must_own(loop);
	must(accepted != NULL);
	if (rc != 0)
		return rc;
	l = calloc(1, sizeof(*l));
	if (l == NULL)
		return -ENOMEM;
	OBJ_INIT(l, SIM_LISTENER_MAGIC);
	l->loop = loop;
	l->addr = *addr;
	if (addr->port == 0)
		l->addr.port = sim_world->port_next++;
	l->accepted = accepted;
	l->arg = arg;
	list_push_back(&loop->listeners, &l->link);
	list_push_back(&sim_world->listeners, &l->all);
	*out = l;
	return 0;
}

uint16_t sock_listener_port(const struct sock_listener *l)
{
	OBJ_CHECK(l, SIM_LISTENER_MAGIC);
	return l->addr.port;
}

/* The memory stays with the world: a connect on its way may still look at it. */
void sock_listener_close(struct sock_listener **listener)
{
	struct sock_listener *l;

	OBJ_TAKE(l, listener, SIM_LISTENER_MAGIC);
	if (l->closed)
		return;
	loop_must_own(l->loop);
	l->closed = true;
	list_remove(&l->link);
}

static void sim_accept_event(struct sim_event *e)
{
	struct sock *s = e->arg;
	struct sock_listener *l = s->listener;

	OBJ_CHECK(s, SIM_SOCK_MAGIC);
	OBJ_CHECK(l, SIM_LISTENER_MAGIC);
	s->accepted = true;
	if (l->closed)
		sock_close(&s);
	else
		l->accepted(l->arg, s);
}

/* ---- connecting ---- */

static void sim_dial_free(struct sim_dial *d)
{
	if (d->event != NULL)
		sim_event_cancel(d->event);
	if (d->deadline != NULL)
		sim_event_cancel(d->deadline);
	list_remove(&d->link);
	list_remove(&d->all);
	free(d);
}

static void sim_dial_end(struct sim_dial *d, int res)
{
	struct sock_connect *c = d->c;
	struct loop *loop = d->loop;

	if (d->conn != NULL) {
		if (res == 0) {
			d->conn->end[0].accepted = true;
			c->sock = &d->conn->end[0];
		} else {
			sim_sock_gone(&d->conn->end[0], SIM_END_FIN);
		}
	}
	sim_dial_free(d);
	sim_op_end_soon(loop, &c->op, res, 0);
}

static void sim_dial_deadline(struct sim_event *e)
{
	struct sim_dial *d = e->arg;

	d->deadline = NULL;
	sim_dial_end(d, -ETIMEDOUT);
}

static void sim_dial_answer(struct sim_event *e)
{
	struct sim_dial *d = e->arg;

	d->event = NULL;
	sim_dial_end(d, d->conn == NULL ? -ECONNRESET : 0);
}

/* The request reaches the other side. */
static void sim_dial_arrive(struct sim_event *e)
{
	struct sim_dial *d = e->arg;
	struct sock_listener *l = sim_listener_find(&d->c->addr);
	uint64_t back_ns = sim_latency(sim_world->opts.net_latency_ns);

	d->event = NULL;
	if (l != NULL && sim_cut_between(d->loop, l->loop)) {
		d->parked = true;
		return;
	}
	if (l != NULL && !sim_fault_now(SIM_NET_REFUSE)) {
		d->conn = sim_conn_make(d->loop, l->loop, &d->c->addr);
		d->conn->end[1].listener = l;
		sim_event_add(l->loop, sim_world->now_ns, SIM_EVENT_ACCEPT, sim_accept_event,
			      &d->conn->end[1]);
	}
	d->event = sim_event_add(NULL, sim_world->now_ns + back_ns, SIM_EVENT_DIAL, sim_dial_answer,
				 d);
}

void sock_connect(struct loop *loop, struct sock_connect *c)
{
	struct sim_world *w = sim_world;
	struct sim_dial *d;

	sim_op_begin(loop, &c->op, NULL);
	c->sock = NULL;
	if (sim_is_ghost(loop))
		return;
	d = calloc(1, sizeof(*d));
	must(d != NULL);
	d->loop = loop;
	d->c = c;
	c->lease[0] = (uint64_t)(uintptr_t)d;
	list_push_back(&loop->dials, &d->link);
	list_push_back(&w->dials, &d->all);
	d->event = sim_event_add(NULL, w->now_ns + sim_latency(w->opts.net_latency_ns),
				 SIM_EVENT_DIAL, sim_dial_arrive, d);
	if (c->deadline_ns != 0)
		d->deadline =
			sim_event_add(NULL, c->deadline_ns < w->now_ns ? w->now_ns : c->deadline_ns,
				      SIM_EVENT_DIAL, sim_dial_deadline, d);
}

void sock_connect_cancel(struct loop *loop, struct sock_connect *c)
{
	loop_must_own(loop);
	must(c->op.state == SIM_OP_FLYING);
	if (sim_is_ghost(loop))
		return;
	LIST_FOR_EACH_SAFE(link, &loop->dials) {
		struct sim_dial *d = container_of(link, struct sim_dial, link);

		if (d->c == c) {
			sim_dial_end(d, -ECANCELED);
			return;
		}
	}
	/* Its answer is on the way already; the caller gets a sock and closes it. */
}

/* ---- the world's side ---- */

void sim_sock_uncut(void)
{
	LIST_FOR_EACH(link, &sim_world->conns) {
		struct sim_conn *conn = container_of(link, struct sim_conn, link);

		sim_pipe_schedule(&conn->pipe[0]);
		sim_pipe_schedule(&conn->pipe[1]);
	}
	LIST_FOR_EACH(link, &sim_world->dials) {
		struct sim_dial *d = container_of(link, struct sim_dial, all);

		if (!d->parked)
			continue;
		d->parked = false;
		d->event = sim_event_add(NULL, sim_world->now_ns + sim_latency(
					 sim_world->opts.net_latency_ns), SIM_EVENT_DIAL,
					 sim_dial_arrive, d);
	}
}

/* Ends that the owner never got to see: accepted behind a listener that is closed by now. */
void sim_sock_loop_close(struct loop *loop)
{
	LIST_FOR_EACH_SAFE(link, &loop->socks) {
		struct sock *s = container_of(link, struct sock, link);

		must(!s->accepted && s->index == 1);
		sim_sock_gone(s, SIM_END_FIN);
	}
	must(list_empty(&loop->dials));
}

void sim_sock_crash(struct loop *loop)
{
	LIST_FOR_EACH_SAFE(link, &loop->listeners) {
		struct sock_listener *l = container_of(link, struct sock_listener, link);

		l->closed = true;
		list_remove(link);
	}
	while (!list_empty(&loop->dials)) {
		struct sim_dial *d = container_of(loop->dials.next, struct sim_dial, link);

		sim_dial_free(d);       /* its end, if any, is on the list of socks */
	}
	while (!list_empty(&loop->socks)) {
		struct sock *s = container_of(loop->socks.next, struct sock, link);

		s->recv = NULL;
		s->send_first = s->send_last = NULL;
		sim_sock_gone(s, SIM_END_RESET);
	}
}

void sim_sock_end(void)
{
	while (!list_empty(&sim_world->dials))
		sim_dial_free(container_of(sim_world->dials.next, struct sim_dial, all));
	LIST_FOR_EACH_SAFE(link, &sim_world->conns)
		sim_conn_free(container_of(link, struct sim_conn, link));
	LIST_FOR_EACH_SAFE(link, &sim_world->listeners) {
		list_remove(link);
		free(container_of(link, struct sock_listener, all));
	}
}
