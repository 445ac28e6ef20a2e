/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast wire/tcp.c moves values between two loops over loopback, with nothing above it: the
 * controller pushes (or pulls) from memory at once. Beside loop_stream it says what NVMe/TCP costs.
 *
 * usage: wire_stream [-w] [-g] [-G] [-b BYTES] [-d DEPTH] [-s SECONDS]
 *	-w write (default read)   -g header digest   -G data digest
 * Prints one JSON object. Threads: main is the host's loop, one more is the controller's.
 */
#include <getopt.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/must.h"
#include "wire/wire.h"

#define DEPTH_MAX 128u

struct slot {
	struct wire_req req;
	struct iovec iov;
};

static struct {
	uint32_t bytes;
	unsigned depth;
	uint64_t seconds;
	bool write;
	struct wire_opts opts;
	struct loop *ctrl, *host;
	struct wire_listener *listener;
	struct wire_conn *ctrl_conn, *conn;
	uint8_t *store;
	struct iovec store_iov[DEPTH_MAX];
	struct slot slot[DEPTH_MAX];
	uint16_t port;
	sem_t listening;
	uint64_t done, begin_ns, end_ns, latency_ns, sent_ns[DEPTH_MAX];
	unsigned flying;
	bool over;
	struct msg stop;
} b = {.bytes = (uint32_t)MiB, .depth = 4, .seconds = 2};

static uint64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* --- controller ------------------------------------------------------------------------------- */

static void answer(struct wire_cmd *cmd)
{
	struct nv_cqe cqe = nv_cqe_of(0, NV_OK);

	wire_respond(cmd, &cqe);
}

static void pulled(struct wire_cmd *cmd, int res)
{
	(void)res;
	answer(cmd);
}

static void pushed(struct wire_cmd *cmd, int res)
{
	(void)cmd;
	(void)res;
}

static void command(void *arg, struct wire_cmd *cmd)
{
	struct iovec *iov = &b.store_iov[cmd->slot];

	(void)arg;
	*iov = (struct iovec){b.store + (size_t)cmd->slot * b.bytes, b.bytes};
	if (b.write) {
		wire_pull(cmd, iov, 1, b.bytes, pulled);
	} else {
		wire_push(cmd, iov, 1, b.bytes, pushed);
		answer(cmd);
	}
}

static void accepted(void *arg, struct wire_conn *conn)
{
	(void)arg;
	b.ctrl_conn = conn;
	must(wire_depth_set(conn, (uint16_t)b.depth) == 0);
}

static void ctrl_closed(void *arg, int why)
{
	(void)arg;
	(void)why;
	wire_close(&b.ctrl_conn);
	wire_listener_close(&b.listener);
	loop_stop(b.ctrl);
}

static const struct wire_ctrl_events ctrl_events = {accepted, command, ctrl_closed};

static void *ctrl_main(void *arg)
{
	struct sock_addr addr = {.host = "127.0.0.1"};
	struct loop_opts opts = {.name = "ctrl"};

	(void)arg;
	must(loop_open(&opts, &b.ctrl) == 0);
	must(wire_listen(b.ctrl, &addr, &b.opts, &ctrl_events, NULL, &b.listener) == 0);
	b.port = wire_listener_port(b.listener);
	sem_post(&b.listening);
	loop_run(b.ctrl);
	loop_turn(b.ctrl, 0);
	loop_turn(b.ctrl, 0);
	loop_close(&b.ctrl);
	return NULL;
}

/* --- host ------------------------------------------------------------------------------------- */

static void submit(struct slot *s);

static void done(struct wire_req *req, int res)
{
	struct slot *s = container_of(req, struct slot, req);
	uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);

	must(res == 0);
	b.done++;
	b.flying--;
	b.latency_ns += now_ns - b.sent_ns[req->cid];
	if (now_ns < b.begin_ns + b.seconds * NS_PER_S) {
		submit(s);
	} else if (b.flying == 0) {
		b.end_ns = now_ns;
		b.over = true;
	}
}

static void submit(struct slot *s)
{
	struct wire_req *req = &s->req;
	uint16_t cid = (uint16_t)(s - b.slot);

	*req = (struct wire_req){.sqe = nv_sqe_of(b.write ? 1 : 2, 1), .cid = cid, .done = done};
	if (b.write) {
		req->out = &s->iov;
		req->out_count = 1;
		req->out_bytes = b.bytes;
	} else {
		req->in = &s->iov;
		req->in_count = 1;
		req->in_bytes = b.bytes;
	}
	b.flying++;
	b.sent_ns[cid] = clock_ns(CLOCK_MONOTONIC);
	wire_submit(b.conn, req);
}

static void connected(void *arg, struct wire_conn *conn)
{
	(void)arg;
	(void)conn;
	b.begin_ns = clock_ns(CLOCK_MONOTONIC);
	for (unsigned i = 0; i < b.depth; i++)
		submit(&b.slot[i]);
}

static void host_closed(void *arg, int why)
{
	(void)arg;
	fprintf(stderr, "wire_stream: connection lost: %s\n", strerror(-why));
	exit(3);
}

static const struct wire_host_events host_events = {connected, host_closed};

static void options(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "wgGb:d:s:")) != -1) {
		switch (c) {
		case 'w':
			b.write = true;
			break;
		case 'g':
			b.opts.header_digest = true;
			break;
		case 'G':
			b.opts.data_digest = true;
			break;
		case 'b':
			b.bytes = (uint32_t)strtoul(optarg, NULL, 0);
			break;
		case 'd':
			b.depth = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case 's':
			b.seconds = strtoul(optarg, NULL, 0);
			break;
		default:
			exit(2);
		}
	}
	if (b.bytes == 0 || b.depth == 0 || b.depth > DEPTH_MAX)
		exit(2);
	b.opts.depth_max = (uint16_t)b.depth;
}

int main(int argc, char **argv)
{
	struct sock_addr addr = {.host = "127.0.0.1"};
	struct loop_opts opts = {.name = "host"};
	double seconds, cpu;
	pthread_t thread;

	options(argc, argv);
	log_level_set(LOG_WARN);
	b.store = malloc((size_t)b.bytes * b.depth);
	memset(b.store, 0x5a, (size_t)b.bytes * b.depth);
	for (unsigned i = 0; i < b.depth; i++)
		b.slot[i].iov = (struct iovec){calloc(1, b.bytes), b.bytes};
	sem_init(&b.listening, 0, 0);
	must(pthread_create(&thread, NULL, ctrl_main, NULL) == 0);
	sem_wait(&b.listening);
	addr.port = b.port;
	must(loop_open(&opts, &b.host) == 0);
	must(wire_connect(b.host, &addr, &b.opts, &host_events, NULL, &b.conn) == 0);
	while (!b.over)
		loop_turn(b.host, NS_PER_S);
	wire_close(&b.conn);
	pthread_join(thread, NULL);
	seconds = (double)(b.end_ns - b.begin_ns) / 1e9;
	cpu = (double)clock_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e9;
	printf("{\"bench\": \"wire_stream\", \"loop\": \"%s\", \"op\": \"%s\", "
	       "\"value_bytes\": %u, \"depth\": %u, \"header_digest\": %s, \"data_digest\": %s, "
	       "\"seconds\": %.3f, "
	       "\"ops_per_s\": %.0f, \"bytes_per_s\": %.0f, \"mean_us\": %.1f, \"cpu_s\": %.3f, "
	       "\"cpu_ns_per_kib\": %.1f}\n",
	       loop_kind(b.host), b.write ? "write" : "read", b.bytes, b.depth,
	       b.opts.header_digest ? "true" : "false", b.opts.data_digest ? "true" : "false",
	       seconds, (double)b.done / seconds, (double)b.done * b.bytes / seconds,
	       (double)b.latency_ns / (double)b.done / 1e3, cpu,
	       cpu * 1e9 / ((double)b.done * b.bytes / 1024));
	return 0;
}
