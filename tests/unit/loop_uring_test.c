/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only a loop of a real machine has: threads, raw peers, files, descriptors, a kernel that
 * says no. Run twice: with the kernel's ring, and with KVOF_LOOP=plain without.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <dirent.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/must.h"
#include "base/prng.h"
#include "kt.h"
#include "loop/disk.h"
#include "loop/loop.h"
#include "loop/plain.h"
#include "loop/ring.h"
#include "loop/sock.h"

#define WAIT_NS (10 * NS_PER_S)

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNT_MALLOC 1
#endif
#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef COUNT_MALLOC
#endif
#endif

static unsigned long mallocs;           /* calls of the allocator, where they can be counted */

#ifdef COUNT_MALLOC
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *malloc(size_t bytes)
{
	__atomic_add_fetch(&mallocs, 1, __ATOMIC_RELAXED);
	return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes)
{
	__atomic_add_fetch(&mallocs, 1, __ATOMIC_RELAXED);
	return __libc_calloc(count, bytes);
}
#endif

struct sio { struct sock_io io; struct iovec iov[128]; unsigned calls; int res; };
struct dial { struct sock_connect c; unsigned calls; int res; };
struct simple { struct loop_op op; unsigned calls; int res; };

static void sio_done(struct loop_op *op, int res)
{
	struct sio *x = container_of(op, struct sio, io.op);

	x->calls++;
	x->res = res;
}

static void dial_done(struct loop_op *op, int res)
{
	struct dial *x = container_of(op, struct dial, c.op);

	x->calls++;
	x->res = res;
}

static void simple_done(struct loop_op *op, int res)
{
	struct simple *x = container_of(op, struct simple, op);

	x->calls++;
	x->res = res;
}

static struct loop *open_loop(void)
{
	struct loop *l = NULL;

	expect_int(loop_open(&(struct loop_opts){.name = "test"}, &l), 0);
	return l;
}

static int wait_for(struct loop *l, const unsigned *calls, const int *res)
{
	while (*calls == 0)
		if (loop_turn(l, WAIT_NS) == 0)
			fail_msg("nothing happened");
	expect_int(*calls, 1);
	return *res;
}

/* A plain listening socket: the other side of the stream is not ours. */
static int raw_listen(uint16_t *port, int backlog, int rcvbuf)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	expect(fd >= 0);
	if (rcvbuf > 0)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf));
	expect_int(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	expect_int(listen(fd, backlog), 0);
	expect_int(getsockname(fd, (struct sockaddr *)&at, &length), 0);
	*port = ntohs(at.sin_port);
	return fd;
}

/* A sock of ours and a plain descriptor, connected. */
static struct sock *raw_pair_near(struct loop *l, int *peer, int rcvbuf, uint32_t near_room_bytes)
{
	struct dial x = {.c = {.op.done = dial_done, .addr = {.host = "127.0.0.1"},
			       .near_room_bytes = near_room_bytes}};
	int lis = raw_listen(&x.c.addr.port, 8, rcvbuf);

	sock_connect(l, &x.c);
	expect_int(wait_for(l, &x.calls, &x.res), 0);
	*peer = accept(lis, NULL, NULL);
	expect(*peer >= 0);
	close(lis);
	return x.c.sock;
}

static struct sock *raw_pair(struct loop *l, int *peer, int rcvbuf)
{
	return raw_pair_near(l, peer, rcvbuf, 0);
}

static void sio_set(struct sio *x, uint8_t *at, uint64_t bytes, unsigned pieces)
{
	*x = (struct sio){
		.io = {.op.done = sio_done, .iov_count = pieces, .bytes = bytes, .all = true}};
	x->io.iov = x->iov;
	for (unsigned i = 0; i < pieces; i++) {
		uint64_t from = bytes * i / pieces, to = bytes * (i + 1) / pieces;

		x->iov[i] = (struct iovec){at + from, to - from};
	}
}

static unsigned fd_count(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	expect(d != NULL);
	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n;
}

/* ---- threads ---- */

enum { SENDERS = 2, NOTES = 20000 };
struct note { struct msg msg; unsigned sender, number; };
struct sender {
	pthread_t thread;
	struct loop *to;
	unsigned index, visits;
	struct note *notes;
};

static unsigned next_number[SENDERS], notes_left;
static bool order_kept;

static void note_run(struct loop *here, struct msg *m)
{
	struct note *n = container_of(m, struct note, msg);

	order_kept &= n->number == next_number[n->sender]++;
	if (--notes_left == 0)
		loop_stop(here);
}

static void *sender_main(void *arg)
{
	struct sender *s = arg;

	expect(!loop_here(s->to));
	for (unsigned i = 0; i < NOTES; i++) {
		s->notes[i] = (struct note){.msg.run = note_run, .sender = s->index, .number = i};
		loop_post(s->to, &s->notes[i].msg);
		if (i % 64 == 0)
			sched_yield();          /* let the receiver fall asleep now and then */
	}
	return NULL;
}

/* Each sender's notes arrive once and in their order. Return: how many were visits. */
static unsigned notes_arrive(void *(*sender_thread)(void *arg))
{
	static struct sender s[SENDERS];
	struct loop *l = open_loop();
	unsigned visits = 0;

	order_kept = true;
	notes_left = SENDERS * NOTES;
	memset(next_number, 0, sizeof(next_number));
	for (unsigned i = 0; i < SENDERS; i++) {
		s[i] = (struct sender){
			.to = l, .index = i, .notes = calloc(NOTES, sizeof(struct note))};
		expect_int(pthread_create(&s[i].thread, NULL, sender_thread, &s[i]), 0);
	}
	expect_int(loop_run(l), 0);
	for (unsigned i = 0; i < SENDERS; i++) {
		pthread_join(s[i].thread, NULL);
		visits += s[i].visits;
		expect_int(next_number[i], NOTES);
		free(s[i].notes);
	}
	expect(order_kept);
	loop_close(&l);
	return visits;
}

TEST(messages_of_many_threads_all_arrive_each_in_its_order)
{
	expect_int(notes_arrive(sender_main), 0);
}

struct ball { struct msg msg; struct loop *side[2]; unsigned at, left; };

static void stop_run(struct loop *here, struct msg *m)
{
	loop_stop(here);
}

static struct msg stop_msg = {.run = stop_run};

static void ball_run(struct loop *here, struct msg *m)
{
	struct ball *b = container_of(m, struct ball, msg);

	must(loop_here(here) && here == b->side[b->at]);
	if (--b->left == 0) {
		loop_post(b->side[1 - b->at], &stop_msg);
		loop_stop(here);
		return;
	}
	b->at = 1 - b->at;
	loop_post(b->side[b->at], &b->msg);
}

static void *run_main(void *arg)
{
	loop_run(arg);
	return NULL;
}

TEST(two_loops_wake_each_other_thousands_of_times)
{
	struct ball b = {.msg.run = ball_run, .side = {open_loop(), open_loop()}, .left = 5001};
	pthread_t other;

	loop_post(b.side[0], &b.msg);
	expect_int(pthread_create(&other, NULL, run_main, b.side[1]), 0);
	loop_run(b.side[0]);
	pthread_join(other, NULL);
	expect_int(b.left, 0);
	loop_close(&b.side[0]);
	loop_close(&b.side[1]);
}

/* ---- visits ---- */

static uint64_t visit_ns;

static void here_run(struct loop *here, struct msg *m)
{
	must(loop_here(here));
	visit_ns = loop_now_ns(here);
}

TEST(a_loop_that_sleeps_can_be_visited_and_stays_its_threads)
{
	struct loop *l = open_loop();
	struct msg m = {.run = here_run};
	uint64_t opened_ns = loop_now_ns(l), first_ns;
	pthread_t other;

	expect(!loop_visit(l, &m));             /* it does not sleep: nobody turns it */
	expect_int(pthread_create(&other, NULL, run_main, l), 0);
	while (!loop_visit(l, &m))
		sched_yield();
	expect(!loop_here(l));
	first_ns = visit_ns;
	expect(first_ns > opened_ns);           /* a visit has the time of now */
	while (!loop_visit(l, &m))
		sched_yield();
	expect(visit_ns > first_ns);
	loop_post(l, &stop_msg);
	pthread_join(other, NULL);
	expect(!loop_visit(l, &m));
	loop_close(&l);
}

struct hold { struct msg msg; _Atomic bool held, let; };

static void hold_run(struct loop *here, struct msg *m)
{
	struct hold *h = container_of(m, struct hold, msg);

	atomic_store(&h->held, true);
	while (!atomic_load(&h->let))
		sched_yield();
}

TEST(a_loop_at_work_is_not_visited)
{
	struct hold h = {.msg.run = hold_run};
	struct msg m = {.run = here_run};
	struct loop *l = open_loop();
	bool ran = false;
	pthread_t other;

	loop_post(l, &h.msg);
	expect_int(pthread_create(&other, NULL, run_main, l), 0);
	while (!atomic_load(&h.held))
		sched_yield();
	for (unsigned i = 0; i < 1000; i++)
		ran |= loop_visit(l, &m);
	expect(!ran);
	atomic_store(&h.let, true);
	loop_post(l, &stop_msg);
	pthread_join(other, NULL);
	loop_close(&l);
}

/* In turns what only posts and what would rather visit: each in its order, each once. */
static void *visitor_main(void *arg)
{
	struct sender *s = arg;

	for (unsigned i = 0; i < NOTES; i++) {
		s->notes[i] = (struct note){.msg.run = note_run, .sender = s->index, .number = i};
		if (i % 3 != 0 && i + 1 < NOTES && loop_visit(s->to, &s->notes[i].msg))
			s->visits++;
		else
			loop_post(s->to, &s->notes[i].msg);
		if (i % 16 == 0)
			sched_yield();
	}
	return NULL;
}

TEST(visits_and_messages_of_many_threads_keep_the_order_of_each)
{
	expect(notes_arrive(visitor_main) > 0);
}

static struct sock *taken;

static void take(void *arg, struct sock *sock)
{
	taken = sock;
	if (arg != NULL)
		loop_stop(arg);
}

TEST(a_loop_moves_to_another_thread_with_its_listener)
{
	struct loop *l = open_loop();
	struct sock_listener *lis = NULL;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	pthread_t other;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	taken = NULL;
	expect_int(sock_listen(l, &(struct sock_addr){.host = "127.0.0.1"}, take, l, &lis), 0);
	expect_int(loop_turn(l, 0), 0);         /* the ring is this thread's now */
	expect_int(pthread_create(&other, NULL, run_main, l), 0);
	to.sin_port = htons(sock_listener_port(lis));
	expect_int(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	pthread_join(other, NULL);
	expect(taken != NULL && !loop_here(l));
	expect_int(loop_turn(l, 0), 0);         /* and back */
	expect(loop_here(l));
	sock_close(&taken);
	sock_listener_close(&lis);
	close(fd);
	loop_close(&l);
}

TEST(closing_the_loop_of_a_thread_that_ended_leaves_mine_alone)
{
	struct loop *mine = open_loop(), *its = open_loop();
	struct simple x = {.op.done = simple_done};
	pthread_t other;

	expect_int(loop_turn(mine, 0), 0);
	loop_post(its, &stop_msg);
	expect_int(pthread_create(&other, NULL, run_main, its), 0);
	pthread_join(other, NULL);
	loop_close(&its);
	loop_soon(mine, &x.op, 3);
	expect_int(wait_for(mine, &x.calls, &x.res), 3);
	expect_int(loop_turn(mine, NS_PER_MS), 0);
	loop_close(&mine);
}

/* ---- raw peers ---- */

struct reader { pthread_t thread; int fd; uint8_t *into; size_t bytes; };

static void *slow_reader(void *arg)
{
	struct reader *r = arg;
	struct prng p = prng_of(1);
	size_t got = 0;

	while (got < r->bytes) {
		ssize_t n = read(r->fd, r->into + got,
				 1 + prng_below(&p, bytes_min(r->bytes - got, 50000)));

		if (n <= 0)
			break;
		got += (size_t)n;
	}
	return NULL;
}

TEST(a_send_in_a_hundred_pieces_to_a_slow_reader_arrives_whole)
{
	enum { BYTES = 3 * 1024 * 1024 };
	struct loop *l = open_loop();
	struct reader r = {.bytes = 2 * BYTES};
	uint8_t *from = malloc(BYTES);
	struct sio x[2];
	struct sock *s = raw_pair(l, &r.fd, 4096);
	struct prng p = prng_of(9);

	r.into = malloc(2 * BYTES);
	prng_fill(&p, from, BYTES);
	memset(r.into, 0, 2 * BYTES);
	expect_int(pthread_create(&r.thread, NULL, slow_reader, &r), 0);
	for (int i = 0; i < 2; i++) {
		sio_set(&x[i], from, BYTES, 100);
		sock_send(s, &x[i].io);
	}
	for (int i = 0; i < 2; i++)
		expect_int(wait_for(l, &x[i].calls, &x[i].res), 0);
	pthread_join(r.thread, NULL);
	expect_mem(r.into, from, BYTES);
	expect_mem(r.into + BYTES, from, BYTES);
	sock_close(&s);
	close(r.fd);
	free(from);
	free(r.into);
	loop_close(&l);
}

TEST(a_receive_of_all_spans_many_segments_and_pieces)
{
	enum { BYTES = 10000 };
	struct loop *l = open_loop();
	uint8_t from[BYTES], to[BYTES];
	struct sio x;
	int peer;
	struct sock *s = raw_pair(l, &peer, 0);
	unsigned sent = 0;

	kt_noise(from, BYTES);
	memset(to, 0, BYTES);
	sio_set(&x, to, BYTES, 100);
	sock_recv(s, &x.io);
	while (sent < BYTES) {
		unsigned step = sent % 7 == 0 ? 1 : BYTES - sent < 333 ? BYTES - sent : 333;

		expect_int(write(peer, from + sent, step), step);
		sent += step;
		if (sent < BYTES) {
			loop_turn(l, 0);
			expect_int(x.calls, 0);
		}
	}
	expect_int(wait_for(l, &x.calls, &x.res), BYTES);
	expect_mem(to, from, BYTES);
	sock_close(&s);
	close(peer);
	loop_close(&l);
}

/* Writes until there is no more room on the way, or all; how much went. */
static uint64_t raw_fill(int fd, const uint8_t *from, size_t bytes)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	uint64_t all = 0;

	while (all < bytes && poll(&p, 1, 20) == 1) {
		ssize_t n = send(fd, from, bytes - all, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0)
			all += (uint64_t)n;
	}
	return all;
}

/* How far a sender that has a buffer of 64 KiB can be ahead of a receiver that was quick so far. */
static uint64_t run_ahead(uint32_t near_room_bytes)
{
	enum { BYTES = 4 * 1024 * 1024, ROUNDS = 16, SENDER = 65536 };
	struct loop *l = open_loop();
	uint8_t *at = calloc(1, BYTES);
	int peer = -1, room = SENDER;
	struct sock *s = raw_pair_near(l, &peer, 0, near_room_bytes);
	uint64_t ahead;
	struct sio x;

	setsockopt(peer, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	for (unsigned i = 0; i < ROUNDS; i++) {
		sio_set(&x, at, raw_fill(peer, at, BYTES), 1);
		sock_recv(s, &x.io);
		expect_int(wait_for(l, &x.calls, &x.res), (int)x.io.bytes);
	}
	ahead = raw_fill(peer, at, BYTES);
	sock_close(&s);
	loop_close(&l);
	close(peer);
	free(at);
	return ahead;
}

TEST(on_one_machine_a_sender_runs_ahead_by_no_more_than_was_asked)
{
	uint64_t asked = run_ahead(96 * KiB), free_ride = run_ahead(0);

	printf("# ahead: %llu bytes with 96 KiB asked, %llu without\n", (unsigned long long)asked,
	       (unsigned long long)free_ride);
	expect(asked >= 96 * KiB && asked <= 512 * KiB);
	expect(free_ride >= asked);          /* a machine under load may leave it at that, too */
}

TEST(after_a_cancel_no_byte_is_written)
{
	struct loop *l = open_loop();
	uint8_t to[64], noise[64];
	struct sio x;
	int peer;
	struct sock *s = raw_pair(l, &peer, 0);

	kt_noise(to, 64);
	kt_noise(noise, 64);
	sio_set(&x, to, 64, 1);
	sock_recv(s, &x.io);
	loop_turn(l, 0);
	sock_close(&s);
	expect_int(wait_for(l, &x.calls, &x.res), -ECANCELED);
	(void)!send(peer, "hello", 5, MSG_NOSIGNAL);
	loop_turn(l, NS_PER_MS);
	expect_mem(to, noise, 64);
	close(peer);
	loop_close(&l);
}

TEST(a_reset_by_the_peer_comes_after_the_bytes_before_it)
{
	struct linger hard = {.l_onoff = 1};
	struct loop *l = open_loop();
	uint8_t to[64], from[5] = "hello";
	struct sio x;
	int peer;
	struct sock *s = raw_pair(l, &peer, 0);

	expect_int(write(peer, from, 5), 5);
	setsockopt(peer, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	close(peer);
	sio_set(&x, to, 5, 1);
	sock_recv(s, &x.io);
	expect_int(wait_for(l, &x.calls, &x.res), 5);
	expect_mem(to, from, 5);
	for (int i = 0; i < 2; i++) {
		sio_set(&x, to, 64, 1);
		sock_recv(s, &x.io);
		expect_int(wait_for(l, &x.calls, &x.res), -ECONNRESET);
	}
	sio_set(&x, to, 64, 1);
	sock_send(s, &x.io);
	expect_int(wait_for(l, &x.calls, &x.res), -ECONNRESET);
	sock_close(&s);
	loop_close(&l);
}

TEST(a_connect_nobody_answers_ends_at_its_deadline)
{
	struct loop *l = open_loop();
	struct dial x[8];
	unsigned late = 0;
	uint16_t port;
	int lis = raw_listen(&port, 0, 0);      /* room for one; the kernel drops the others' SYN */

	for (int i = 0; i < 8; i++) {
		x[i] = (struct dial){.c = {.op.done = dial_done, .addr = {"127.0.0.1", port}}};
		x[i].c.deadline_ns = loop_now_ns(l) + 50 * NS_PER_MS;
		sock_connect(l, &x[i].c);
	}
	for (int i = 0; i < 8; i++) {
		int res = wait_for(l, &x[i].calls, &x[i].res);

		expect(res == 0 || res == -ETIMEDOUT);
		late += res == -ETIMEDOUT;
		if (res == 0)
			sock_close(&x[i].c.sock);
		else
			expect(x[i].c.sock == NULL && loop_now_ns(l) >= x[i].c.deadline_ns);
	}
	expect(late >= 4);
	close(lis);
	loop_close(&l);
}

TEST(a_connect_taken_back_before_an_answer_is_ecanceled)
{
	struct loop *l = open_loop();
	struct dial x[8];
	unsigned cancelled = 0;
	uint16_t port;
	int lis = raw_listen(&port, 0, 0);

	for (int i = 0; i < 8; i++) {
		x[i] = (struct dial){.c = {.op.done = dial_done, .addr = {"127.0.0.1", port}}};
		sock_connect(l, &x[i].c);
	}
	loop_turn(l, NS_PER_MS);
	for (int i = 0; i < 8; i++) {
		int res;

		if (x[i].calls == 0)
			sock_connect_cancel(l, &x[i].c);
		res = wait_for(l, &x[i].calls, &x[i].res);
		expect(res == 0 || res == -ECANCELED);
		cancelled += res == -ECANCELED;
		if (res == 0)
			sock_close(&x[i].c.sock);
	}
	expect(cancelled >= 4);
	close(lis);
	loop_close(&l);
}

TEST(a_closed_listener_refuses_at_once)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct loop *l = open_loop();
	struct sock_listener *lis = NULL;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	expect_int(sock_listen(l, &(struct sock_addr){.host = "127.0.0.1"}, take, NULL, &lis), 0);
	loop_turn(l, 0);
	to.sin_port = htons(sock_listener_port(lis));
	sock_listener_close(&lis);
	expect_int(connect(fd, (struct sockaddr *)&to, sizeof(to)), -1);
	expect_int(errno, ECONNREFUSED);
	close(fd);
	loop_close(&l);
}

TEST(an_address_that_is_none_is_einval)
{
	struct loop *l = open_loop();
	struct dial x = {.c = {.op.done = dial_done, .addr = {.host = "localhost.", .port = 1}}};

	sock_connect(l, &x.c);
	expect_int(wait_for(l, &x.calls, &x.res), -EINVAL);
	loop_close(&l);
}

TEST(ipv6_streams_work_and_name_their_peer)
{
	struct loop *l = open_loop();
	struct sock_listener *lis = NULL;
	struct dial x = {.c = {.op.done = dial_done, .addr = {.host = "::1"}}};

	taken = NULL;
	if (sock_listen(l, &(struct sock_addr){.host = "::1"}, take, NULL, &lis) != 0) {
		loop_close(&l);
		skip_because("no IPv6 on loopback");
	}
	x.c.addr.port = sock_listener_port(lis);
	sock_connect(l, &x.c);
	expect_int(wait_for(l, &x.calls, &x.res), 0);
	while (taken == NULL)
		expect(loop_turn(l, WAIT_NS) > 0);
	expect(strncmp(sock_peer(taken), "[::1]:", 6) == 0);
	sock_close(&taken);
	sock_close(&x.c.sock);
	sock_listener_close(&lis);
	loop_close(&l);
}

TEST(more_operations_than_the_ring_has_room_for_all_complete)
{
	enum { N = 600 };
	struct loop *l = NULL;
	static struct simple soon[N];
	static struct dial x[N];
	static struct sio in[N];
	uint16_t port;
	uint8_t to[N];
	int lis = raw_listen(&port, 1024, 0), peer[N];

	expect_int(loop_open(&(struct loop_opts){.ops_max = 1}, &l), 0);
	for (int i = 0; i < N; i++) {
		x[i] = (struct dial){.c = {.op.done = dial_done, .addr = {"127.0.0.1", port}}};
		sock_connect(l, &x[i].c);       /* before the first turn */
		soon[i] = (struct simple){.op.done = simple_done};
	}
	for (int i = 0; i < N; i++) {
		expect_int(wait_for(l, &x[i].calls, &x[i].res), 0);
		peer[i] = accept(lis, NULL, NULL);
	}
	for (int i = 0; i < N; i++) {
		sio_set(&in[i], &to[i], 1, 1);
		sock_recv(x[i].c.sock, &in[i].io);
		loop_soon(l, &soon[i].op, i);
	}
	for (int i = 0; i < N; i++)
		expect_int(write(peer[i], "x", 1), 1);
	for (int i = 0; i < N; i++) {
		expect_int(wait_for(l, &soon[i].calls, &soon[i].res), i);
		expect_int(wait_for(l, &in[i].calls, &in[i].res), 1);
		close(peer[i]);
		sock_close(&x[i].c.sock);
	}
	close(lis);
	loop_close(&l);
}

/* ---- descriptors and memory ---- */

TEST(no_descriptor_is_left_behind)
{
	unsigned before = fd_count();

	for (int round = 0; round < 3; round++) {
		struct loop *l = open_loop();
		struct sock *s[8];
		struct sio x[8];
		uint8_t to[8];
		int peer[8];

		for (int i = 0; i < 8; i++) {
			s[i] = raw_pair(l, &peer[i], 0);
			sio_set(&x[i], to, 8, 1);
			sock_recv(s[i], &x[i].io);
		}
		for (int i = 0; i < 8; i++)
			sock_close(&s[i]);
		for (int i = 0; i < 8; i++) {
			expect_int(wait_for(l, &x[i].calls, &x[i].res), -ECANCELED);
			close(peer[i]);
		}
		loop_close(&l);
	}
	expect_int(fd_count(), before);
}

TEST(the_data_path_allocates_nothing)
{
	struct loop *l = open_loop();
	struct simple soon = {.op.done = simple_done};
	struct disk *d = NULL;
	static uint8_t from[100000], to[100000];
	struct sio out, in;
	struct dial x = {.c = {.op.done = dial_done, .addr = {.host = "127.0.0.1"}}};
	struct sock_listener *lis = NULL;
	struct loop_timer t;
	unsigned long before;

	taken = NULL;
	expect_int(
		disk_open(l, "mem", &(struct disk_opts){.create_bytes = MiB, .memory = true}, &d),
		0);
	expect_int(sock_listen(l, &(struct sock_addr){.host = "127.0.0.1"}, take, NULL, &lis), 0);
	x.c.addr.port = sock_listener_port(lis);
	sock_connect(l, &x.c);
	expect_int(wait_for(l, &x.calls, &x.res), 0);
	while (taken == NULL)
		expect(loop_turn(l, WAIT_NS) > 0);
	before = mallocs;
	loop_timer_init(&t, (void (*)(struct loop_timer *))abort);
	for (int i = 0; i < 100; i++) {
		sio_set(&in, to, sizeof(to), 3);
		sio_set(&out, from, sizeof(from), 2);
		sock_recv(taken, &in.io);
		sock_send(x.c.sock, &out.io);
		loop_timer_set(l, &t, loop_now_ns(l) + WAIT_NS);
		expect_int(wait_for(l, &in.calls, &in.res), sizeof(to));
		expect_int(wait_for(l, &out.calls, &out.res), 0);
		soon.calls = 0;
		loop_soon(l, &soon.op, 0);
		expect_int(wait_for(l, &soon.calls, &soon.res), 0);
	}
	expect_int(mallocs, before);
	loop_timer_cancel(l, &t);
	sock_close(&taken);
	sock_close(&x.c.sock);
	sock_listener_close(&lis);
	disk_close(&d);
	loop_close(&l);
#ifndef COUNT_MALLOC
	skip_because("a sanitizer owns the allocator");
#endif
}

TEST(poll_completes_when_readable_and_can_be_taken_back)
{
	struct loop *l = open_loop();
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct simple x = {.op.done = simple_done};

	loop_poll(l, fd, &x.op);
	expect_int(loop_turn(l, NS_PER_MS), 0);
	expect_int(eventfd_write(fd, 1), 0);
	expect(wait_for(l, &x.calls, &x.res) >= 0);
	x = (struct simple){.op.done = simple_done};
	expect_int(eventfd_read(fd, &(eventfd_t){0}), 0);
	loop_poll(l, fd, &x.op);
	expect_int(loop_turn(l, NS_PER_MS), 0);
	loop_poll_cancel(l, &x.op);
	expect_int(wait_for(l, &x.calls, &x.res), -ECANCELED);
	close(fd);
	loop_close(&l);
}

/* ---- files ---- */

TEST(what_is_no_drive_is_einval)
{
	struct loop *l = open_loop();
	struct disk *d = NULL;

	expect_int(disk_open(l, "/tmp", &(struct disk_opts){.create_bytes = MiB}, &d), -EINVAL);
	expect_int(disk_open(l, "/dev/null", &(struct disk_opts){.create_bytes = MiB}, &d),
		   -EINVAL);
	expect_int(disk_open(l, "/nowhere/at/all", &(struct disk_opts){.create_bytes = MiB}, &d),
		   -ENOENT);
	expect(d == NULL);
	loop_close(&l);
}

TEST(a_file_has_its_blocks_from_the_start_and_never_grows)
{
	char path[64];
	struct loop *l = open_loop();
	struct disk *d = NULL;
	struct stat st;
	void *at = NULL;

	snprintf(path, sizeof(path), "/tmp/kvof-uring-test-%d", (int)getpid());
	unlink(path);
	expect_int(posix_memalign(&at, 4096, MiB), 0);
	memset(at, 1, MiB);
	expect_int(disk_open(l, path, &(struct disk_opts){.create_bytes = 3 * MiB + 100}, &d), 0);
	expect_int(disk_info(d)->bytes, 3 * MiB);
	expect_int(stat(path, &st), 0);
	expect_int(st.st_size, 3 * MiB);
	expect((uint64_t)st.st_blocks * 512 >= 3 * MiB);
	expect_int(disk_write_now(d, at, MiB, 2 * MiB), 0);
	expect_int(stat(path, &st), 0);
	expect_int(st.st_size, 3 * MiB);
	disk_close(&d);
	unlink(path);
	free(at);
	loop_close(&l);
}

static unsigned interrupted;            /* calls of fallocate that a signal is to end */

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
	if (interrupted > 0) {
		interrupted--;
		errno = EINTR;
		return -1;
	}
	return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}

/* tmpfs takes no block while a signal waits, and gives back those that the call had. */
TEST(a_file_has_all_of_its_blocks_though_signals_come)
{
	char path[64];
	struct loop *l = open_loop();
	struct disk *d = NULL;
	struct stat st;

	snprintf(path, sizeof(path), "/tmp/kvof-uring-test-%d", (int)getpid());
	unlink(path);
	interrupted = 3;
	expect_int(disk_open(l, path, &(struct disk_opts){.create_bytes = 9 * MiB}, &d), 0);
	expect_int(interrupted, 0);
	expect_int(stat(path, &st), 0);
	expect((uint64_t)st.st_blocks * 512 >= 9 * MiB);
	disk_close(&d);
	unlink(path);
	loop_close(&l);
}

struct dio { struct disk_io io; struct iovec iov[4]; unsigned calls; int res; };

static void dio_done(struct loop_op *op, int res)
{
	struct dio *x = container_of(op, struct dio, io.op);

	x->calls++;
	x->res = res;
}

static void dio_set(struct dio *x, uint8_t *at, unsigned pieces, uint64_t bytes)
{
	*x = (struct dio){
		.io = {.op.done = dio_done, .iov_count = pieces, .bytes = pieces * bytes}};
	x->io.iov = x->iov;
	for (unsigned i = 0; i < pieces; i++)
		x->iov[i] = (struct iovec){at + i * bytes, bytes};
}

/* The request that was queued last, before the kernel sees it. */
static struct io_uring_sqe *last_sqe(struct loop *l)
{
	if (l->plain != NULL)
		return plain_sqe_last(l);
	return &l->ring.sq.sqes[(l->ring.sq.sqe_tail - 1) & *l->ring.sq.kring_mask];
}

TEST(a_short_transfer_goes_on_where_it_stopped)
{
	enum { BYTES = 4 * 8192 };
	struct loop *l = open_loop();
	struct disk *d = NULL;
	uint8_t *out = loop_buffer_map(BYTES), *in = loop_buffer_map(BYTES);
	char path[64];

	snprintf(path, sizeof(path), "/tmp/kvof-uring-test-%d", (int)getpid());
	unlink(path);
	expect_int(disk_open(l, path, &(struct disk_opts){.create_bytes = MiB}, &d), 0);
	for (unsigned pieces = 1; pieces <= 4; pieces *= 4) {
		for (int write = 1; write >= 0; write--) {
			struct dio x;

			kt_noise(out, BYTES);
			memset(in, 0, BYTES);
			dio_set(&x, write ? out : in, pieces, BYTES / pieces);
			(write ? disk_write : disk_read)(d, &x.io);
			/* One piece: a quarter of its bytes. Four: the first only. */
			last_sqe(l)->len = pieces == 1 ? BYTES / 4 : 1;
			expect_int(wait_for(l, &x.calls, &x.res), 0);
		}
		expect_mem(in, out, BYTES);
		memset(out, 0, BYTES);
		expect_int(disk_write_now(d, out, BYTES, 0), 0);
	}
	expect_int(disk_counts(d)->reads, 2);
	expect_int(disk_counts(d)->read_bytes, 2 * BYTES);
	disk_close(&d);
	unlink(path);
	loop_buffer_unmap(out, BYTES);
	loop_buffer_unmap(in, BYTES);
	loop_close(&l);
}

TEST(a_file_cut_short_behind_our_back_is_eio)
{
	struct loop *l = open_loop();
	struct disk *d = NULL;
	uint8_t *in = loop_buffer_map(2 * 65536);
	struct dio x;
	char path[64];

	snprintf(path, sizeof(path), "/tmp/kvof-uring-test-%d", (int)getpid());
	unlink(path);
	expect_int(disk_open(l, path, &(struct disk_opts){.create_bytes = MiB}, &d), 0);
	expect_int(truncate(path, 65536), 0);
	dio_set(&x, in, 2, 65536);
	disk_read(d, &x.io);
	expect_int(wait_for(l, &x.calls, &x.res), -EIO);
	expect_int(disk_read_now(d, in, 2 * 65536, 0), -EIO);
	expect_int(disk_counts(d)->errors, 2);
	expect_int(disk_counts(d)->reads, 0);
	disk_close(&d);
	unlink(path);
	loop_buffer_unmap(in, 2 * 65536);
	loop_close(&l);
}

TEST(a_failing_file_system_is_told_as_enospc_and_leaves_no_file)
{
	char path[64];
	struct loop *l = open_loop();
	struct disk *d = NULL;

	snprintf(path, sizeof(path), "/tmp/kvof-uring-test-%d", (int)getpid());
	unlink(path);
	expect_int(disk_open(l, path, &(struct disk_opts){.create_bytes = UINT64_C(1) << 50}, &d),
		   -ENOSPC);
	expect(d == NULL && access(path, F_OK) != 0);
	loop_close(&l);
}

/* ---- what is registered beforehand ---- */

enum { POOL = 1 << 20 };

/* Through a disk, in four pieces and one; the operation of the last submission. */
static uint8_t io_round(struct loop *l, struct disk *d, uint8_t *out, uint8_t *in, unsigned pieces)
{
	uint8_t opcode = 0;
	struct dio x;

	kt_noise(out, POOL / 4);
	memset(in, 0, POOL / 4);
	for (int write = 1; write >= 0; write--) {
		dio_set(&x, write ? out : in, pieces, POOL / 4 / pieces);
		(write ? disk_write : disk_read)(d, &x.io);
		opcode = last_sqe(l)->opcode;
		expect_int(wait_for(l, &x.calls, &x.res), 0);
	}
	expect_mem(in, out, POOL / 4);
	return opcode;
}

static struct disk *registered_drive(struct loop *l, char path[64])
{
	struct disk *d = NULL;

	snprintf(path, 64, "/tmp/kvof-uring-test-%d", (int)getpid());
	unlink(path);
	expect_int(disk_open(l, path, &(struct disk_opts){.create_bytes = MiB}, &d), 0);
	return d;
}

TEST(registered_memory_is_used_where_a_transfer_lies_in_it)
{
	struct loop *l = open_loop();
	uint8_t *pool = loop_buffer_map(POOL), *other = loop_buffer_map(POOL);
	char path[64];
	struct disk *d = registered_drive(l, path);
	bool files = l->fixed.files_on, buffers = l->fixed.buffers_on;

	loop_buffer_register(l, pool, POOL / 2);
	buffers &= l->fixed.buffers_end > 0;
	expect_int(io_round(l, d, pool, pool + POOL / 4, 1),
		   buffers ? IORING_OP_READ_FIXED : IORING_OP_READ);
	expect_int(io_round(l, d, pool, pool + POOL / 4, 4), IORING_OP_READV);
	expect_int(io_round(l, d, pool, pool + POOL / 4 + 4096, 1), IORING_OP_READ);
	expect_int(io_round(l, d, other, other + POOL / 4, 1), IORING_OP_READ);
	loop_buffer_unregister(l, pool, POOL);
	expect_int(io_round(l, d, pool, pool + POOL / 4, 1), IORING_OP_READ);
	loop_buffer_unmap(pool, POOL);
	expect_int(io_round(l, d, other, other + POOL / 4, 1), IORING_OP_READ);
	expect_int(l->fixed.file_used[0], files);
	disk_close(&d);
	expect(!l->fixed.file_used[0]);
	unlink(path);
	loop_buffer_unmap(other, POOL);
	loop_close(&l);
}

static void *round_main(void *arg)
{
	void **a = arg;

	expect_int(loop_turn(a[0], 0), 0);      /* a new ring: it gets what the old one had */
	io_round(a[0], a[1], a[2], (uint8_t *)a[2] + POOL / 4, 1);
	return NULL;
}

TEST(what_is_registered_goes_with_the_loop_to_another_thread)
{
	struct loop *l = open_loop();
	uint8_t *pool = loop_buffer_map(POOL);
	char path[64];
	struct disk *d = registered_drive(l, path);
	void *arg[] = {l, d, pool};
	bool buffers = l->fixed.buffers_on;
	pthread_t other;

	loop_buffer_register(l, pool, POOL);
	io_round(l, d, pool, pool + POOL / 4, 1);
	expect_int(pthread_create(&other, NULL, round_main, arg), 0);
	pthread_join(other, NULL);
	expect_int(loop_turn(l, 0), 0);         /* and back */
	expect_int(io_round(l, d, pool, pool + POOL / 4, 1),
		   buffers ? IORING_OP_READ_FIXED : IORING_OP_READ);
	disk_close(&d);
	loop_buffer_unregister(l, pool, POOL);
	loop_buffer_unmap(pool, POOL);
	unlink(path);
	loop_close(&l);
}

TEST(more_drives_and_pools_than_there_are_places_work_all_the_same)
{
	struct loop *l = open_loop();
	uint8_t *pool = loop_buffer_map(POOL);
	char path[64];
	struct disk *d = registered_drive(l, path), *part[RING_FILES_MAX + 2];

	for (unsigned i = 0; i < ARRAY_COUNT(part); i++)
		expect_int(disk_open_part(l, d, &(struct disk_extent){0, MiB}, 1, &part[i]), 0);
	for (unsigned i = 0; i < RING_BUFFERS_MAX + 2; i++)
		loop_buffer_register(l, pool + (size_t)i * 4096, 4096);
	for (unsigned i = 0; i < ARRAY_COUNT(part); i++)
		io_round(l, part[i], pool, pool + POOL / 4, 1);
	for (unsigned i = 0; i < ARRAY_COUNT(part); i++)
		disk_close(&part[i]);
	loop_buffer_unregister(l, pool, POOL);
	expect(ring_buffer_find(l, pool, 4096) == RING_FIXED_NONE);
	disk_close(&d);
	d = NULL;
	/* the lock is free at once */
	expect_int(disk_open(l, path, &(struct disk_opts){0}, &d), 0);
	disk_close(&d);
	loop_buffer_unmap(pool, POOL);
	unlink(path);
	loop_close(&l);
}

/* ---- a kernel that says no ---- */

static void deny_registering(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_register, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IORING_REGISTER_FILES2, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IORING_REGISTER_BUFFERS2, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof(code) / sizeof(code[0]), code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, 2, &prog) != 0)
		_exit(77);
}

/* Return: how often `what` is in `text`. */
static unsigned count_of(const char *text, const char *what)
{
	unsigned n = 0;

	for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what))
		n++;
	return n;
}

/* What a child says on its standard error; its exit status comes out. */
static int child_run(void (*body)(int arg), int arg, char *text, size_t text_bytes)
{
	int status, out[2];
	size_t at = 0;
	pid_t child;

	expect_int(pipe(out), 0);
	child = fork();
	expect(child >= 0);
	if (child == 0) {
		dup2(out[1], STDERR_FILENO);
		close(out[0]);
		close(out[1]);
		body(arg);
		_exit(0);
	}
	close(out[1]);
	while (at < text_bytes - 1) {
		ssize_t n = read(out[0], text + at, text_bytes - 1 - at);

		if (n <= 0)
			break;
		at += (size_t)n;
	}
	text[at] = 0;
	close(out[0]);
	expect_int(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip_because("no seccomp here");
	return status;
}

/* Twice a loop with a drive and a pool, all of it used. */
static void use_loops(const char *kind)
{
	for (unsigned i = 0; i < 2; i++) {
		uint8_t *pool = loop_buffer_map(POOL);
		struct loop *l = open_loop();
		char path[64];
		struct disk *d = registered_drive(l, path);
		uint8_t to[5] = {0};
		struct sio x;
		int peer;
		struct sock *s = raw_pair(l, &peer, 0);

		if (kind != NULL && strcmp(loop_kind(l), kind) != 0)
			_exit(3);
		loop_buffer_register(l, pool, POOL);
		io_round(l, d, pool, pool + POOL / 4, 1);
		loop_buffer_unregister(l, pool, POOL);
		sio_set(&x, to, 5, 1);
		sock_recv(s, &x.io);
		loop_turn(l, 0);
		expect_int(write(peer, "hello", 5), 5);
		expect_int(wait_for(l, &x.calls, &x.res), 5);
		expect_mem(to, "hello", 5);
		sock_close(&s);
		close(peer);
		disk_close(&d);
		unlink(path);
		loop_close(&l);
		loop_buffer_unmap(pool, POOL);
	}
}

static void without_registering(int arg)
{
	deny_registering();
	use_loops(NULL);
}

TEST(where_nothing_can_be_registered_all_works_and_that_is_told_once)
{
	struct loop *l = open_loop();
	bool ring = strcmp(loop_kind(l), "io_uring") == 0;
	char text[1024];

	loop_close(&l);
	expect_int(child_run(without_registering, 0, text, sizeof(text)), 0);
	expect_int(count_of(text, "registered beforehand"), ring);
}

static void deny(int call, int err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof(code) / sizeof(code[0]), code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, 2, &prog) != 0)
		_exit(77);
	unsetenv("KVOF_LOOP");
	uring_denied_set(URING_UNKNOWN);        /* as a process that starts so */
}

/* A loop moves to a thread while no file is left; they come back when its old ring is closed. */
static void renewed_late(int arg)
{
	struct loop *l = open_loop();
	int ring_fd = l->ring.ring_fd;
	struct rlimit was, none;
	pthread_t other;

	if (strcmp(loop_kind(l), "io_uring") != 0)
		_exit(0);
	expect_int(loop_turn(l, 0), 0);
	expect_int(getrlimit(RLIMIT_NOFILE, &was), 0);
	none = was;
	none.rlim_cur = 0;
	loop_post(l, &stop_msg);
	expect_int(setrlimit(RLIMIT_NOFILE, &none), 0);
	expect_int(pthread_create(&other, NULL, run_main, l), 0);
	while (fcntl(ring_fd, F_GETFD) >= 0)
		sched_yield();
	if (arg != 0)
		expect_int(poll(NULL, 0, arg), 0);     /* so long at least it has to wait */
	expect_int(setrlimit(RLIMIT_NOFILE, &was), 0);
	pthread_join(other, NULL);
	loop_close(&l);
}

TEST(a_thread_that_takes_a_loop_over_waits_for_files_that_are_short)
{
	char text[1024];

	expect_int(child_run(renewed_late, 100, text, sizeof(text)), 0);
}

static void asked_for_a_ring(int err)
{
	struct loop *l = NULL;
	int rc;

	deny(__NR_io_uring_setup, err);
	rc = loop_open(&(struct loop_opts){.kind = LOOP_IO_URING}, &l);
	_exit(rc == -EINVAL && l == NULL ? 0 : 1);
}

TEST(where_the_kernel_denies_the_ring_that_was_asked_for_open_says_so_and_is_einval)
{
	char text[512];

	expect_int(child_run(asked_for_a_ring, EPERM, text, sizeof(text)), 0);
	expect_int(count_of(text, "io_uring is denied"), 1);
	expect_int(count_of(text, "kernel.io_uring_disabled"), 1);
}

static void without_setup(int err)
{
	deny(__NR_io_uring_setup, err);
	use_loops("plain");
}

static void without_enter(int err)
{
	deny(__NR_io_uring_enter, err);
	use_loops("plain");
}

static void without_register(int err)
{
	deny(__NR_io_uring_register, err);
	use_loops("plain");
}

TEST(where_the_kernel_denies_the_ring_all_works_without_and_one_line_says_why)
{
	static const struct {
		void (*body)(int err);
		int err;
		const char *says;
	} rows[] = {
		{without_setup, EPERM, "seccomp"},
		{without_setup, ENOSYS, "seccomp"},
		{without_setup, EINVAL, "6.1 is needed"},
		{without_setup, ENOMEM, "RLIMIT_MEMLOCK"},
		{without_enter, EPERM, "seccomp"},
		{without_register, EPERM, "seccomp"},
	};

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		char text[1024];

		expect_int(child_run(rows[i].body, rows[i].err, text, sizeof(text)), 0);
		expect_int(count_of(text, "plain loop"), 1);
		expect_int(count_of(text, rows[i].says), 1);
		expect_int(count_of(text, "\n"), 1);
	}
}

TEST(the_environment_chooses_only_where_nobody_else_did_and_nonsense_is_refused)
{
	char before[16] = "";
	struct loop *l = NULL;

	snprintf(before, sizeof(before), "%s", getenv("KVOF_LOOP") == NULL ? "" :
		 getenv("KVOF_LOOP"));
	setenv("KVOF_LOOP", "plain", 1);
	l = open_loop();
	expect_str(loop_kind(l), "plain");
	loop_close(&l);
	setenv("KVOF_LOOP", "io_uring", 1);
	expect_int(loop_open(&(struct loop_opts){.kind = LOOP_PLAIN}, &l), 0);
	expect_str(loop_kind(l), "plain");
	loop_close(&l);
	setenv("KVOF_LOOP", "fast", 1);
	expect_int(loop_open(&(struct loop_opts){0}, &l), -EINVAL);
	expect(l == NULL);
	if (*before == 0)
		unsetenv("KVOF_LOOP");
	else
		setenv("KVOF_LOOP", before, 1);
}
