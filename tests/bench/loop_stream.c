/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast this machine moves bytes below kvof: the ratios of docs/benchmarks.md stand on these.
 *
 *   raw    TCP over loopback with plain blocking sockets, a thread for each end of each stream
 *   sock   the same bytes through loop/sock.h: one loop sends, one receives
 *   read, write   a drive through loop/disk.h, at a depth, in order or at random places
 *
 * Prints one JSON object. Thread: one for each end (raw), one for each loop (sock), else main's
 * own.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/must.h"
#include "base/prng.h"
#include "loop/disk.h"
#include "loop/loop.h"
#include "loop/sock.h"

#define STREAMS_MAX 64u
#define DEPTH_MAX 512u

struct bench {
	const char *mode, *path;
	uint64_t buffer_bytes, set_bytes, size_bytes;
	unsigned streams, depth;
	uint64_t seconds;
	int cpu_send, cpu_recv;         /* -1: not pinned */
	bool random, waitall;
	/* results */
	_Atomic uint64_t bytes;
	_Atomic bool over;
	sem_t flowing;                  /* the first bytes have arrived */
	uint64_t elapsed_ns, cpu_ns;
};

static struct bench b = {.mode = "raw", .path = "mem", .buffer_bytes = MiB, .set_bytes = 64 * MiB,
	.size_bytes = GiB, .streams = 1, .depth = 4, .seconds = 3, .cpu_send = -1, .cpu_recv = -1};

static void fail(const char *what)
{
	fprintf(stderr, "loop_stream: %s: %s\n", what, strerror(errno));
	exit(3);
}

static uint64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) != 0)
		fail("pinning");
}

/* Memory that is really there, with bytes that are not all alike. */
static uint8_t *memory(uint64_t bytes)
{
	struct prng p = prng_of(1);
	uint8_t *at = loop_buffer_map(bytes);

	if (at == NULL)
		fail("memory");
	prng_fill(&p, at, bytes);
	return at;
}

/* The n-th buffer of a working set that is walked round. */
static uint8_t *set_buffer(uint8_t *set, uint64_t n)
{
	return set + n % (b.set_bytes / b.buffer_bytes) * b.buffer_bytes;
}

/* Lets the streams run for the time asked, from their first byte on. Return: bytes received in
 * it. */
static uint64_t measure(void)
{
	struct timespec span = {.tv_sec = (time_t)b.seconds};
	uint64_t start_ns, bytes;

	sem_wait(&b.flowing);
	b.bytes = 0;
	start_ns = clock_ns(CLOCK_MONOTONIC);
	b.cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
	bytes = b.bytes;
	b.elapsed_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
	b.cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - b.cpu_ns;
	b.over = true;
	return bytes;
}

static void received(uint64_t bytes)
{
	if (atomic_fetch_add(&b.bytes, bytes) == 0)
		sem_post(&b.flowing);
}

/* ---- raw ---- */

static void *raw_sender(void *arg)
{
	int fd = (int)(intptr_t)arg;
	uint8_t *set = memory(b.set_bytes);

	pin(b.cpu_send);
	for (uint64_t n = 0; !b.over; n++) {
		const uint8_t *at = set_buffer(set, n);

		for (uint64_t done = 0; done < b.buffer_bytes;) {
			ssize_t moved = send(fd, at + done, b.buffer_bytes - done, MSG_NOSIGNAL);

			if (moved <= 0)
				goto end;
			done += (uint64_t)moved;
		}
	}
end:
	shutdown(fd, SHUT_WR);
	loop_buffer_unmap(set, b.set_bytes);
	return NULL;
}

static void *raw_receiver(void *arg)
{
	int fd = (int)(intptr_t)arg;
	uint8_t *set = memory(b.set_bytes);
	uint64_t done = 0, n = 0;

	pin(b.cpu_recv);
	for (;;) {
		ssize_t moved = recv(fd, set_buffer(set, n) + done, b.buffer_bytes - done,
				     b.waitall ? MSG_WAITALL : 0);

		if (moved <= 0)
			break;
		received((uint64_t)moved);
		done += (uint64_t)moved;
		if (done == b.buffer_bytes) {
			done = 0;
			n++;
		}
	}
	loop_buffer_unmap(set, b.set_bytes);
	return NULL;
}

static void raw_connect(int out[2])
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);
	int lis = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	out[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (lis < 0 || out[0] < 0 || bind(lis, (struct sockaddr *)&at, length) != 0 ||
	    listen(lis, 1) != 0 || getsockname(lis, (struct sockaddr *)&at, &length) != 0 ||
	    connect(out[0], (struct sockaddr *)&at, length) != 0)
		fail("connecting");
	out[1] = accept(lis, NULL, NULL);
	if (out[1] < 0)
		fail("accepting");
	setsockopt(out[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	close(lis);
}

static void bench_raw(void)
{
	pthread_t thread[2 * STREAMS_MAX];
	int fd[STREAMS_MAX][2];
	uint64_t bytes;

	for (unsigned i = 0; i < b.streams; i++)
		raw_connect(fd[i]);
	for (unsigned i = 0; i < b.streams; i++)
		pthread_create(&thread[i], NULL, raw_receiver, (void *)(intptr_t)fd[i][1]);
	for (unsigned i = 0; i < b.streams; i++)
		pthread_create(&thread[b.streams + i], NULL, raw_sender,
			       (void *)(intptr_t)fd[i][0]);
	bytes = measure();
	for (unsigned i = 0; i < 2 * b.streams; i++)
		pthread_join(thread[i], NULL);
	b.bytes = bytes;
}

/* ---- sock ---- */

struct end;

struct slot {
	struct sock_io io;
	struct iovec iov;
	struct end *end;
};

/* One end of one stream. */
struct end {
	struct sock *sock;
	struct side *side;
	struct sock_connect connect;
	struct slot slot[DEPTH_MAX];
	uint64_t n;
	unsigned flying;
};

struct side {
	struct loop *loop;
	bool send;
	uint8_t *set;
	struct end end[STREAMS_MAX];
	unsigned open, closed;
	struct sock_listener *listener;
	uint16_t port;
	sem_t ready;
};

static struct side side[2];     /* 0 sends, 1 receives */

static void slot_start(struct slot *s)
{
	struct end *e = s->end;

	s->iov = (struct iovec){set_buffer(e->side->set, e->n++), b.buffer_bytes};
	s->io.iov = &s->iov;
	s->io.iov_count = 1;
	s->io.bytes = b.buffer_bytes;
	s->io.all = true;
	e->flying++;
	if (e->side->send)
		sock_send(e->sock, &s->io);
	else
		sock_recv(e->sock, &s->io);
}

static void slot_done(struct loop_op *op, int res)
{
	struct slot *s = container_of(op, struct slot, io.op);
	struct end *e = s->end;

	e->flying--;
	if (!e->side->send && res > 0)
		received((uint64_t)res);
	if ((e->side->send ? res == 0 : res == (int)b.buffer_bytes) && !b.over) {
		slot_start(s);
		return;
	}
	if (e->flying > 0)
		return;
	sock_close(&e->sock);
	if (++e->side->closed == b.streams)
		loop_stop(e->side->loop);
}

static void end_start(struct end *e)
{
	unsigned depth = e->side->send ? b.depth : 1;

	for (unsigned i = 0; i < depth; i++) {
		e->slot[i].end = e;
		e->slot[i].io.op.done = slot_done;
		slot_start(&e->slot[i]);
	}
}

static void side_accepted(void *arg, struct sock *sock)
{
	struct side *s = arg;
	struct end *e = &s->end[s->open++];

	e->side = s;
	e->sock = sock;
	end_start(e);
}

static void side_connected(struct loop_op *op, int res)
{
	struct end *e = container_of(op, struct end, connect.op);

	errno = -res;
	if (res != 0)
		fail("connecting");
	e->sock = e->connect.sock;
	end_start(e);
}

static void *side_main(void *arg)
{
	struct side *s = arg;

	s->send = s == &side[0];
	s->set = memory(b.set_bytes);
	pin(s->send ? b.cpu_send : b.cpu_recv);
	if (loop_open(&(struct loop_opts){.name = s->send ? "send" : "recv"}, &s->loop) != 0)
		fail("loop");
	if (!s->send) {
		if (sock_listen(s->loop, &(struct sock_addr){.host = "127.0.0.1"}, side_accepted, s,
				&s->listener) != 0)
			fail("listening");
		s->port = sock_listener_port(s->listener);
		sem_post(&s->ready);
	} else {
		for (unsigned i = 0; i < b.streams; i++) {
			struct end *e = &s->end[i];

			e->side = s;
			e->connect.op.done = side_connected;
			e->connect.addr = (struct sock_addr){"127.0.0.1", side[1].port};
			sock_connect(s->loop, &e->connect);
		}
	}
	loop_run(s->loop);
	if (s->listener != NULL)
		sock_listener_close(&s->listener);
	while (loop_turn(s->loop, NS_PER_MS) > 0)
		;
	loop_close(&s->loop);
	loop_buffer_unmap(s->set, b.set_bytes);
	return NULL;
}

static void bench_sock(void)
{
	pthread_t thread[2];
	uint64_t bytes;

	sem_init(&side[1].ready, 0, 0);
	pthread_create(&thread[1], NULL, side_main, &side[1]);
	sem_wait(&side[1].ready);
	pthread_create(&thread[0], NULL, side_main, &side[0]);
	bytes = measure();
	pthread_join(thread[0], NULL);
	pthread_join(thread[1], NULL);
	b.bytes = bytes;
}

/* ---- read, write ---- */

struct transfer {
	struct disk_io io;
	struct iovec iov;
};

static struct {
	struct loop *loop;
	struct disk *disk;
	struct transfer transfer[DEPTH_MAX];
	struct prng prng;
	uint64_t next, places, end_ns;
	unsigned flying;
	bool write;
} dsk;

static void transfer_start(struct transfer *t)
{
	uint64_t place = b.random ? prng_below(&dsk.prng, dsk.places) : dsk.next++ % dsk.places;

	t->io.offset_bytes = place * b.buffer_bytes;
	dsk.flying++;
	if (dsk.write)
		disk_write(dsk.disk, &t->io);
	else
		disk_read(dsk.disk, &t->io);
}

static void transfer_done(struct loop_op *op, int res)
{
	struct transfer *t = container_of(op, struct transfer, io.op);

	errno = -res;
	if (res != 0)
		fail("transfer");
	dsk.flying--;
	b.bytes += b.buffer_bytes;
	if (loop_now_ns(dsk.loop) < dsk.end_ns)
		transfer_start(t);
	else if (dsk.flying == 0)
		loop_stop(dsk.loop);
}

static void bench_disk(void)
{
	struct disk_opts opts = {.create_bytes = b.size_bytes,
				 .memory = strcmp(b.path, "mem") == 0};
	uint8_t *set;
	uint64_t start_ns;
	int rc;

	b.set_bytes = b.depth * b.buffer_bytes;
	set = memory(b.set_bytes);
	pin(b.cpu_send);
	dsk.write = strcmp(b.mode, "write") == 0;
	dsk.prng = prng_of((uint64_t)getpid());
	rc = loop_open(&(struct loop_opts){.name = "disk"}, &dsk.loop);
	if (rc == 0)
		rc = disk_open(dsk.loop, b.path, &opts, &dsk.disk);
	errno = -rc;
	if (rc != 0)
		fail(b.path);
	dsk.places = disk_info(dsk.disk)->bytes / b.buffer_bytes;
	start_ns = clock_ns(CLOCK_MONOTONIC);
	b.cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	dsk.end_ns = start_ns + b.seconds * NS_PER_S;
	for (unsigned i = 0; i < b.depth; i++) {
		struct transfer *t = &dsk.transfer[i];

		t->iov = (struct iovec){set + i * b.buffer_bytes, b.buffer_bytes};
		t->io = (struct disk_io){.op.done = transfer_done, .iov = &t->iov, .iov_count = 1,
			.bytes = b.buffer_bytes};
		transfer_start(t);
	}
	loop_run(dsk.loop);
	b.elapsed_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
	b.cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - b.cpu_ns;
	disk_close(&dsk.disk);
	loop_close(&dsk.loop);
	loop_buffer_unmap(set, b.set_bytes);
}

/* ---- the command line ---- */

static const struct option options[] = {
	{"mode", required_argument, NULL, 'm'},     {"buffer-bytes", required_argument, NULL, 'b'},
	{"set-bytes", required_argument, NULL, 'w'}, {"size-bytes", required_argument, NULL, 'z'},
	{"streams", required_argument, NULL, 's'},  {"depth", required_argument, NULL, 'd'},
	{"seconds", required_argument, NULL, 't'},  {"cpu-send", required_argument, NULL, 'x'},
	{"cpu-recv", required_argument, NULL, 'y'}, {"path", required_argument, NULL, 'p'},
	{"random", no_argument, NULL, 'r'},         {"waitall", no_argument, NULL, 'a'},
	{0},
};

static uint64_t number(const char *text)
{
	char *end = NULL;
	uint64_t n = strtoull(text, &end, 10);

	if (end == text || *end != 0) {
		fprintf(stderr, "loop_stream: %s is not a number\n", text);
		exit(2);
	}
	return n;
}

static bool option(int letter)
{
	switch (letter) {
	case 'm': b.mode = optarg; return true;
	case 'p': b.path = optarg; return true;
	case 'b': b.buffer_bytes = number(optarg); return true;
	case 'w': b.set_bytes = number(optarg); return true;
	case 'z': b.size_bytes = number(optarg); return true;
	case 's': b.streams = (unsigned)number(optarg); return true;
	case 'd': b.depth = (unsigned)number(optarg); return true;
	case 't': b.seconds = number(optarg); return true;
	case 'x': b.cpu_send = (int)number(optarg); return true;
	case 'y': b.cpu_recv = (int)number(optarg); return true;
	case 'r': b.random = true; return true;
	case 'a': b.waitall = true; return true;
	default: return false;
	}
}

int main(int argc, char **argv)
{
	int letter;

	while ((letter = getopt_long(argc, argv, "", options, NULL)) != -1)
		if (!option(letter))
			return 2;
	if (b.buffer_bytes == 0 || b.set_bytes < b.buffer_bytes || b.streams == 0 ||
	    b.streams > STREAMS_MAX || b.depth == 0 || b.depth > DEPTH_MAX || b.seconds == 0) {
		fprintf(stderr, "loop_stream: a number is out of range\n");
		return 2;
	}
	sem_init(&b.flowing, 0, 0);
	if (strcmp(b.mode, "raw") == 0)
		bench_raw();
	else if (strcmp(b.mode, "sock") == 0)
		bench_sock();
	else if (strcmp(b.mode, "read") == 0 || strcmp(b.mode, "write") == 0)
		bench_disk();
	else
		return 2;
	printf("{\"bench\": \"loop_stream\", \"mode\": \"%s\", \"path\": \"%s\", \"buffer_bytes\": "
	       "%llu, "
	       "\"set_bytes\": %llu, \"streams\": %u, \"depth\": %u, \"cpu_send\": %d, "
	       "\"cpu_recv\": %d, "
	       "\"seconds\": %.3f, \"bytes\": %llu, \"bytes_per_s\": %.0f, \"cpu_s\": %.3f, "
	       "\"cpu_s_per_gb\": %.4f}\n",
	       b.mode, b.path, (unsigned long long)b.buffer_bytes, (unsigned long long)b.set_bytes,
	       b.streams, b.depth, b.cpu_send, b.cpu_recv, (double)b.elapsed_ns / 1e9,
	       (unsigned long long)b.bytes, (double)b.bytes * 1e9 / (double)b.elapsed_ns,
	       (double)b.cpu_ns / 1e9, (double)b.cpu_ns / (double)b.bytes);
	return 0;
}
