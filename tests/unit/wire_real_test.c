/* SPDX-License-Identifier: Apache-2.0 */
/* The same engine on the kernel's sockets: both ends on one loop, over loopback. */
#include "kt.h"

#include <errno.h>

#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "wire/wire.h"

#define DEPTH 16u
#define ROOM (9 * MiB)

static struct loop *loop;
static struct wire_listener *listener;
static struct wire_conn *ctrl, *host;
static struct wire_opts opts;
static unsigned connected, ctrl_closed, host_closed, answered;
static uint8_t *store;
static struct iovec iov[DEPTH];

static void answer(struct wire_cmd *cmd, int res)
{
	struct nv_cqe cqe = nv_cqe_of(0, res == 0 ? NV_OK : NV_TRANSIENT_TRANSPORT);

	wire_respond(cmd, &cqe);
}

static void pushed(struct wire_cmd *cmd, int res)
{
	(void)cmd;
	(void)res;
}

static void on_command(void *arg, struct wire_cmd *cmd)
{
	uint32_t bytes = le32_get(cmd->sqe.cdw10);

	(void)arg;
	iov[cmd->slot] = (struct iovec){store, ROOM};
	if (cmd->sqe.opcode == 1 && bytes > 0) {
		wire_pull(cmd, &iov[cmd->slot], 1, bytes, answer);
	} else {
		if (bytes > 0)
			wire_push(cmd, &iov[cmd->slot], 1, bytes, pushed);
		answer(cmd, 0);
	}
}

static void on_accepted(void *arg, struct wire_conn *conn)
{
	(void)arg;
	ctrl = conn;
}

static void on_ctrl_closed(void *arg, int why)
{
	(void)arg;
	expect(why < 0);
	ctrl_closed++;
	wire_close(&ctrl);
}

static void on_connected(void *arg, struct wire_conn *conn)
{
	(void)arg;
	(void)conn;
	connected++;
}

static void on_host_closed(void *arg, int why)
{
	(void)arg;
	expect(why < 0);
	host_closed++;
	wire_close(&host);
}

static const struct wire_ctrl_events ctrl_events = {on_accepted, on_command, on_ctrl_closed};
static const struct wire_host_events host_events = {on_connected, on_host_closed};

static void turn_until(const unsigned *count, unsigned want)
{
	for (unsigned i = 0; i < 100000 && *count < want; i++)
		(void)loop_turn(loop, 100 * NS_PER_MS);
	expect_int(*count, want);
}

static void begin(bool digests)
{
	struct loop_opts loop_options = {.name = "wire"};
	struct sock_addr addr = {.host = "127.0.0.1"};

	connected = ctrl_closed = host_closed = answered = 0;
	store = malloc(ROOM);
	expect_int(loop_open(&loop_options, &loop), 0);
	opts = (struct wire_opts){.header_digest = digests, .data_digest = digests,
				  .depth_max = DEPTH, .h2c_bytes_max = 128 * KiB};
	expect_int(wire_listen(loop, &addr, &opts, &ctrl_events, NULL, &listener), 0);
	addr.port = wire_listener_port(listener);
	expect_int(wire_connect(loop, &addr, &opts, &host_events, NULL, &host), 0);
	turn_until(&connected, 1);
}

static void end(void)
{
	if (host != NULL) {
		wire_close(&host);
		turn_until(&ctrl_closed, 1);
	}
	wire_listener_close(&listener);
	for (unsigned i = 0; i < 20; i++)
		(void)loop_turn(loop, NS_PER_MS);
	loop_close(&loop);
	free(store);
}

static void on_done(struct wire_req *req, int res)
{
	expect_int(res, 0);
	expect(nv_status_ok(nv_cqe_status(&req->cqe)));
	answered++;
}

static struct wire_req request(uint8_t opcode, uint16_t cid, struct iovec *at, uint32_t bytes)
{
	struct wire_req r = {.sqe = nv_sqe_of(opcode, 1), .cid = cid, .done = on_done};

	r.sqe.cdw10 = le32_of(bytes);
	if (opcode == 1) {
		r.out = at;
		r.out_count = 1;
		r.out_bytes = bytes;
	} else {
		r.in = at;
		r.in_count = 1;
		r.in_bytes = bytes;
	}
	return r;
}

TEST(values_go_there_and_back_over_loopback)
{
	static const uint32_t sizes[] = {1, 511, 4096, 8193, 131071, 1048577, 8 * MiB};
	uint8_t *out = malloc(ROOM), *in = malloc(ROOM);
	struct prng p = prng_of(5);

	prng_fill(&p, out, ROOM);
	for (int digests = 0; digests < 2; digests++) {
		begin(digests);
		expect_str(wire_digests(host), digests ? "hdgst+ddgst" : "");
		for (unsigned i = 0; i < ARRAY_COUNT(sizes); i++) {
			struct iovec from = {out + 1, sizes[i]}, to = {in + 511, sizes[i]};
			struct wire_req put = request(1, 0, &from, sizes[i]);
			struct wire_req get = request(2, 1, &to, sizes[i]);

			kt_noise(in, sizes[i] + 511);
			answered = 0;
			wire_submit(host, &put);
			turn_until(&answered, 1);
			wire_submit(host, &get);
			turn_until(&answered, 2);
			expect_int(get.in_bytes_got, sizes[i]);
			expect_mem(in + 511, out + 1, sizes[i]);
		}
		end();
	}
	free(out);
	free(in);
}

TEST(sixteen_reads_at_once_come_back_whole)
{
	struct wire_req r[DEPTH];
	struct iovec to[DEPTH];
	struct prng p = prng_of(6);

	begin(true);
	prng_fill(&p, store, ROOM);
	for (uint16_t i = 0; i < DEPTH; i++) {
		uint32_t bytes = 1000u * i * i + 1;

		to[i] = (struct iovec){malloc(bytes), bytes};
		r[i] = request(2, i, &to[i], bytes);
		wire_submit(host, &r[i]);
	}
	turn_until(&answered, DEPTH);
	for (unsigned i = 0; i < DEPTH; i++) {
		expect_mem(to[i].iov_base, store, to[i].iov_len);
		free(to[i].iov_base);
	}
	end();
}

static int lost_res;

static void on_lost(struct wire_req *req, int res)
{
	(void)req;
	lost_res = res;
	answered++;
}

TEST(a_controller_that_goes_in_the_middle_gives_requests_back)
{
	uint8_t *in = malloc(8 * MiB);
	struct iovec to = {in, 8 * MiB};
	struct wire_req r = request(2, 0, &to, 8 * MiB);

	begin(false);
	r.done = on_lost;
	wire_submit(host, &r);
	for (unsigned i = 0; i < 3; i++)
		(void)loop_turn(loop, NS_PER_MS);
	wire_close(&ctrl);
	turn_until(&host_closed, 1);
	expect_int(answered, 1);
	expect(lost_res == -ECONNRESET || lost_res == 0);
	end();
	free(in);
}

TEST(nobody_listening_is_told_by_closed)
{
	struct loop_opts loop_options = {.name = "wire"};
	struct sock_addr addr = {.host = "127.0.0.1", .port = 1};

	host_closed = connected = 0;
	store = NULL;
	opts = (struct wire_opts){.depth_max = DEPTH};
	expect_int(loop_open(&loop_options, &loop), 0);
	expect_int(wire_connect(loop, &addr, &opts, &host_events, NULL, &host), 0);
	turn_until(&host_closed, 1);
	expect_int(connected, 0);
	loop_close(&loop);
}
