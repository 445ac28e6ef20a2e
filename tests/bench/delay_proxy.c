/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TCP proxy that hands bytes on a fixed time after they came, in order, at full rate: latency
 * without loss of bandwidth, for benches of what goes over a wire.
 *
 *   delay_proxy PORT DELAY_US      prints the port it listens on, then serves until it is killed
 *
 * Two threads a connection, one for each direction; each has a ring of pieces that wait.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/must.h"

#define PIECE_BYTES (256 * 1024)
#define PIECES 128

struct piece {
	uint64_t due_ns;
	uint32_t bytes, done;
	uint8_t *at;
};

struct pipe_way {
	int from, to;
	struct piece piece[PIECES];
	unsigned first, count;
};

static uint64_t delay_ns;
static uint16_t to_port;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* False: the connection is over. */
static bool take(struct pipe_way *w)
{
	struct piece *p = &w->piece[(w->first + w->count) % PIECES];
	ssize_t got = recv(w->from, p->at, PIECE_BYTES, MSG_DONTWAIT);

	if (got < 0)
		return errno == EAGAIN;
	if (got == 0)
		return false;
	p->due_ns = now_ns() + delay_ns;
	p->bytes = (uint32_t)got;
	p->done = 0;
	w->count++;
	return true;
}

static bool give(struct pipe_way *w)
{
	struct piece *p = &w->piece[w->first];
	ssize_t put = send(w->to, p->at + p->done, p->bytes - p->done,
			   MSG_DONTWAIT | MSG_NOSIGNAL);

	if (put < 0)
		return errno == EAGAIN;
	p->done += (uint32_t)put;
	if (p->done == p->bytes) {
		w->first = (w->first + 1) % PIECES;
		w->count--;
	}
	return true;
}

static void *way_run(void *arg)
{
	struct pipe_way *w = arg;
	bool open = true;

	while (open) {
		uint64_t now = now_ns(), due = w->count > 0 ? w->piece[w->first].due_ns : 0;
		bool ready = w->count > 0 && due <= now;
		struct pollfd p[2] = {
			{.fd = w->count < PIECES ? w->from : -1, .events = POLLIN},
			{.fd = ready ? w->to : -1, .events = POLLOUT},
		};
		struct timespec most = {1, 0};

		if (w->count > 0 && !ready)
			most = (struct timespec){0, (long)(due - now)};
		must(ppoll(p, 2, &most, NULL) >= 0 || errno == EINTR);
		if (ready && p[1].revents != 0)
			open = give(w);
		if (open && p[0].revents != 0)
			open = take(w);
	}
	shutdown(w->from, SHUT_RDWR);
	shutdown(w->to, SHUT_RDWR);
	return NULL;
}

static void way_start(int from, int to)
{
	struct pipe_way *w = calloc(1, sizeof(*w));
	pthread_t thread;

	must(w != NULL);
	w->from = from;
	w->to = to;
	for (unsigned i = 0; i < PIECES; i++)
		must((w->piece[i].at = malloc(PIECE_BYTES)) != NULL);
	must(pthread_create(&thread, NULL, way_run, w) == 0);
	pthread_detach(thread);
}

static struct sockaddr_in loopback(uint16_t port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port),
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

int main(int argc, char **argv)
{
	struct sockaddr_in here = loopback(0), there;
	socklen_t bytes = sizeof(here);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (argc != 3) {
		fprintf(stderr, "usage: delay_proxy PORT DELAY_US\n");
		return 2;
	}
	to_port = (uint16_t)atoi(argv[1]);
	delay_ns = strtoull(argv[2], NULL, 0) * 1000;
	must(bind(listener, (struct sockaddr *)&here, sizeof(here)) == 0);
	must(listen(listener, 64) == 0);
	must(getsockname(listener, (struct sockaddr *)&here, &bytes) == 0);
	printf("%u\n", ntohs(here.sin_port));
	fflush(stdout);
	there = loopback(to_port);
	for (;;) {
		int in = accept(listener, NULL, NULL), out;

		if (in < 0)
			continue;
		out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(out, (struct sockaddr *)&there, sizeof(there)) != 0) {
			close(in);
			close(out);
			continue;
		}
		setsockopt(in, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		way_start(in, out);
		way_start(out, in);
	}
}
