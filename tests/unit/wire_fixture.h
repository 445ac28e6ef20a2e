/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of wire/ share: a world with two nodes; an owner at each end that does the
 * plainest thing; and a raw peer that sends bytes as a script says and keeps what comes back.
 *
 * The plain controller: opcode 01h pulls CDW10 bytes into `store` and answers; 02h pushes CDW10
 * bytes of `store` and answers with DW0 = CDW10; others are answered at once. -EBADMSG is 0/22h.
 */
#ifndef KVOF_TESTS_UNIT_WIRE_FIXTURE_H
#define KVOF_TESTS_UNIT_WIRE_FIXTURE_H

#include "kt.h"

#include <errno.h>

#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "loop/sim.h"
#include "nvme/tcp_pdu.h"
#include "wire/wire.h"

#define WF_STORE_BYTES (70 * MiB)
#define WF_DEPTH 8

struct wf_ctrl;

struct wf_slot {                       /* of the plain controller */
	struct iovec iov;
	struct wf_ctrl *ctrl;
};

struct wf_ctrl {
	struct loop *loop;
	struct wire_listener *listener;
	struct wire_conn *conn;
	struct wire_opts opts;
	uint8_t *store;
	uint8_t *pull_to;              /* where stores land, store_bytes a slot; NULL: in store */
	void (*pulled)(struct wf_ctrl *c, const struct wire_cmd *cmd, const uint8_t *at);
	uint64_t store_bytes;
	unsigned accepted, commands, answered, closed;
	int closed_why, pull_res, push_res;
	bool keep;                     /* commands are kept, not answered */
	bool close_at_once;            /* accepted() refuses */
	struct wire_cmd *kept[64];
	unsigned kept_count;
	struct wf_slot slot[64];
};

struct wf_host {
	struct loop *loop;
	struct wire_conn *conn;
	struct wire_opts opts;
	unsigned connected, closed;
	int closed_why;
};

struct wf_req {
	struct wire_req req;
	unsigned done;
	int res;
};

static struct wf_ctrl wf_ctrl __attribute__((unused));
static struct wf_host wf_host __attribute__((unused));

static inline void wf_answer(struct wire_cmd *cmd, nv_status status)
{
	struct wf_ctrl *c = cmd->owner;
	struct nv_cqe cqe = nv_cqe_of(0, status);

	if (nv_status_ok(status))
		cqe.dw0 = cmd->sqe.cdw10;
	c->answered++;
	wire_respond(cmd, &cqe);
}

static inline void wf_pulled(struct wire_cmd *cmd, int res)
{
	struct wf_ctrl *c = cmd->owner;

	c->pull_res = res;
	if (res == 0 && c->pulled != NULL)
		c->pulled(c, cmd, c->slot[cmd->slot].iov.iov_base);
	wf_answer(cmd, res == 0 ? NV_OK : res == -EBADMSG ? NV_TRANSIENT_TRANSPORT
							  : NV_INTERNAL_ERROR);
}

static inline void wf_pushed(struct wire_cmd *cmd, int res)
{
	struct wf_ctrl *c = cmd->owner;

	c->push_res = res;
}

/* As any owner has to: the descriptor against what the command moves, and the room there is. */
static inline nv_status wf_check(const struct wf_ctrl *c, const struct wire_cmd *cmd)
{
	uint32_t bytes = le32_get(cmd->sqe.cdw10);
	enum nv_data_dir dir = cmd->sqe.opcode == 1 ? NV_DATA_TO_CONTROLLER
			     : cmd->sqe.opcode == 2 ? NV_DATA_TO_HOST : NV_DATA_NONE;
	struct nv_sgl_want want = {dir, bytes, cmd->inline_bytes};
	struct nv_data data;
	struct bad bad;

	if (dir != NV_DATA_NONE && bytes > c->store_bytes)
		return NV_KV_BAD_VALUE_SIZE;
	if (cmd->sqe.opcode > 2)
		return NV_INVALID_OPCODE;
	return nv_sgl_check(&cmd->sqe, &want, &data, &bad);
}

static inline void wf_command(void *arg, struct wire_cmd *cmd)
{
	struct wf_ctrl *c = arg;
	uint32_t bytes = le32_get(cmd->sqe.cdw10);
	struct wf_slot *slot = &c->slot[cmd->slot];
	nv_status s = wf_check(c, cmd);

	c->commands++;
	must(cmd->owner == NULL);
	cmd->owner = c;
	if (c->keep) {
		c->kept[c->kept_count++] = cmd;
		return;
	}
	slot->iov = (struct iovec){c->store, c->store_bytes};
	if (cmd->sqe.opcode == 1 && c->pull_to != NULL)
		slot->iov.iov_base = c->pull_to + cmd->slot * c->store_bytes;
	if (!nv_status_ok(s)) {
		wf_answer(cmd, s);
	} else if (cmd->sqe.opcode == 1 && bytes > 0) {
		wire_pull(cmd, &slot->iov, 1, bytes, wf_pulled);
	} else if (cmd->sqe.opcode == 2 && bytes > 0) {
		wire_push(cmd, &slot->iov, 1, bytes, wf_pushed);
		wf_answer(cmd, NV_OK);
	} else {
		wf_answer(cmd, NV_OK);
	}
}

static inline void wf_accepted(void *arg, struct wire_conn *conn)
{
	struct wf_ctrl *c = arg;

	c->accepted++;
	c->conn = conn;
	wire_conn_arg_set(conn, c);
	if (c->close_at_once)
		wire_close(&c->conn);
}

static inline void wf_ctrl_closed(void *arg, int why)
{
	struct wf_ctrl *c = arg;

	c->closed++;
	c->closed_why = why;
	wire_close(&c->conn);
}

static const struct wire_ctrl_events wf_ctrl_events __attribute__((unused)) = {
	wf_accepted, wf_command, wf_ctrl_closed
};

static inline void wf_host_connected(void *arg, struct wire_conn *conn)
{
	struct wf_host *h = arg;

	must(conn == h->conn);
	h->connected++;
}

static inline void wf_host_closed(void *arg, int why)
{
	struct wf_host *h = arg;

	h->closed++;
	h->closed_why = why;
	wire_close(&h->conn);
}

static const struct wire_host_events wf_host_events __attribute__((unused)) = {
	wf_host_connected, wf_host_closed
};

static inline void wf_done(struct wire_req *req, int res)
{
	struct wf_req *r = container_of(req, struct wf_req, req);

	r->done++;
	r->res = res;
}

/* --- the world -------------------------------------------------------------------------------- */

static inline void wf_begin(uint64_t seed, const struct sim_opts *more)
{
	struct sim_opts opts = more != NULL ? *more : (struct sim_opts){0};
	struct loop_opts ctrl = {.name = "ctrl"}, host = {.name = "host"};

	opts.seed = seed;
	memset(&wf_ctrl, 0, sizeof(wf_ctrl));
	memset(&wf_host, 0, sizeof(wf_host));
	expect_int(sim_begin(&opts), 0);
	expect_int(loop_open(&ctrl, &wf_ctrl.loop), 0);
	expect_int(loop_open(&host, &wf_host.loop), 0);
	wf_ctrl.store_bytes = 256 * KiB;
	wf_ctrl.store = malloc(wf_ctrl.store_bytes);
	kt_noise(wf_ctrl.store, wf_ctrl.store_bytes);
	wf_ctrl.opts = wf_host.opts = (struct wire_opts){.depth_max = WF_DEPTH,
							 .h2c_bytes_max = 16384};
}

/* The same for the transport within one process: both ends on one loop. */
static inline void wf_begin_mem(uint64_t seed)
{
	wf_begin(seed, NULL);
	loop_close(&wf_host.loop);
	wf_host.loop = wf_ctrl.loop;
	wf_ctrl.opts.ops = wf_host.opts.ops = &wire_mem;
}

static inline void wf_store_size(uint64_t bytes)
{
	free(wf_ctrl.store);
	wf_ctrl.store_bytes = bytes;
	wf_ctrl.store = malloc(bytes);
	kt_noise(wf_ctrl.store, bytes);
}

static inline struct sock_addr wf_addr(void)
{
	return (struct sock_addr){.host = "ctrl", .port = 4420};
}

/* Work that must run on a node's own loop. */
struct wf_call {
	struct msg msg;
	void (*run)(void *arg);
	void *arg;
	bool done;
};

static inline void wf_call_run(struct loop *here, struct msg *m)
{
	struct wf_call *call = container_of(m, struct wf_call, msg);

	(void)here;
	call->run(call->arg);
	call->done = true;
}

static inline bool wf_flag(void *arg)
{
	return *(bool *)arg;
}

static inline void wf_on(struct loop *loop, void (*run)(void *arg), void *arg)
{
	struct wf_call call = {.msg = {.run = wf_call_run}, .run = run, .arg = arg};

	loop_post(loop, &call.msg);
	expect(sim_run_until(wf_flag, &call.done, NS_PER_S));
}

static inline void wf_do_listen(void *arg)
{
	struct sock_addr addr = wf_addr();

	(void)arg;
	expect_int(wire_listen(wf_ctrl.loop, &addr, &wf_ctrl.opts, &wf_ctrl_events, &wf_ctrl,
			       &wf_ctrl.listener), 0);
}

static inline void wf_do_connect(void *arg)
{
	struct sock_addr addr = wf_addr();

	(void)arg;
	expect_int(wire_connect(wf_host.loop, &addr, &wf_host.opts, &wf_host_events, &wf_host,
				&wf_host.conn), 0);
}

static inline bool wf_never(void *arg)
{
	(void)arg;
	return false;
}

static inline void wf_wait_ms(uint64_t ms)
{
	(void)sim_run_until(wf_never, NULL, ms * NS_PER_MS);
}

static inline bool wf_is_connected(void *arg)
{
	(void)arg;
	return wf_host.connected > 0 && wf_ctrl.accepted > 0;
}

static inline void wf_listen(void)
{
	wf_on(wf_ctrl.loop, wf_do_listen, NULL);
}

static inline void wf_connect(void)
{
	wf_listen();
	wf_on(wf_host.loop, wf_do_connect, NULL);
	expect(sim_run_until(wf_is_connected, NULL, NS_PER_S));
}

static inline void wf_do_host_close(void *arg)
{
	(void)arg;
	if (wf_host.conn != NULL)
		wire_close(&wf_host.conn);
}

static inline void wf_do_ctrl_close(void *arg)
{
	(void)arg;
	if (wf_ctrl.listener != NULL)
		wire_listener_close(&wf_ctrl.listener);
	if (wf_ctrl.conn != NULL)
		wire_close(&wf_ctrl.conn);
}

static inline void wf_end(void)
{
	wf_on(wf_host.loop, wf_do_host_close, NULL);
	wf_on(wf_ctrl.loop, wf_do_ctrl_close, NULL);
	wf_wait_ms(2000);
	if (wf_host.loop != wf_ctrl.loop)
		loop_close(&wf_host.loop);
	loop_close(&wf_ctrl.loop);
	sim_end();
	free(wf_ctrl.store);
}

/* --- requests --------------------------------------------------------------------------------- */

static inline void wf_do_submit(void *arg)
{
	struct wf_req *r = arg;

	wire_submit(wf_host.conn, &r->req);
}

static inline struct wf_req wf_req_of(uint8_t opcode, uint16_t cid, const struct iovec *iov,
				      uint32_t bytes)
{
	struct wf_req r = {.req = {.sqe = nv_sqe_of(opcode, 1), .cid = cid, .done = wf_done}};

	r.req.sqe.cdw10 = le32_of(bytes);
	if (opcode == 1) {
		r.req.out = iov;
		r.req.out_count = bytes > 0;
		r.req.out_bytes = bytes;
	} else if (opcode == 2) {
		r.req.in = iov;
		r.req.in_count = bytes > 0;
		r.req.in_bytes = bytes;
	}
	return r;
}

static inline bool wf_req_done(void *arg)
{
	return ((struct wf_req *)arg)->done > 0;
}

static inline void wf_submit(struct wf_req *r)
{
	wf_on(wf_host.loop, wf_do_submit, r);
}

static inline void wf_run(struct wf_req *r)
{
	wf_submit(r);
	expect(sim_run_until(wf_req_done, r, 60 * NS_PER_S));
	expect_int(r->done, 1);
}

/* One value there and back, at an odd offset of its buffer. */
static inline void wf_there_and_back(uint32_t bytes, uint32_t offset)
{
	uint8_t *out = malloc(bytes + offset + 1), *in = malloc(bytes + offset + 1);
	struct iovec out_iov = {out + offset, bytes}, in_iov = {in + offset, bytes};
	struct wf_req put = wf_req_of(1, 0, &out_iov, bytes), get = wf_req_of(2, 1, &in_iov, bytes);
	struct prng p = prng_of(bytes + offset);

	prng_fill(&p, out, bytes + offset + 1);
	kt_noise(in, bytes + offset + 1);
	wf_run(&put);
	expect_int(put.res, 0);
	expect(nv_status_ok(nv_cqe_status(&put.req.cqe)));
	expect_mem(wf_ctrl.store, out + offset, bytes);
	wf_run(&get);
	expect_int(get.res, 0);
	expect_int(get.req.in_bytes_got, bytes);
	expect_int(le32_get(get.req.cqe.dw0), bytes);
	expect_mem(in + offset, out + offset, bytes);
	free(out);
	free(in);
}

/* --- a raw peer ------------------------------------------------------------------------------- */

struct wf_raw {
	struct loop *loop;
	struct sock *sock;
	struct sock_listener *listener;
	struct sock_connect dial;
	struct sock_io out, in;
	struct iovec out_iov, in_iov;
	uint8_t out_buf[1 << 18], in_buf[1 << 21];
	uint32_t got, chunk;           /* chunk: most bytes of one send; 0: all */
	uint32_t sent, to_send;
	bool out_busy, ended;          /* ended: the peer closed or reset */
	bool deaf;                     /* does not read on, until wf_raw_hear() */
	bool connected;
};

static inline void wf_raw_recv(struct wf_raw *r);

static inline void wf_raw_in(struct loop_op *op, int res)
{
	struct wf_raw *r = container_of(op, struct wf_raw, in.op);

	if (res <= 0) {
		r->ended = true;
		return;
	}
	r->got += (uint32_t)res;
	if (!r->deaf)
		wf_raw_recv(r);
}

static inline void wf_raw_recv(struct wf_raw *r)
{
	must(r->got < sizeof(r->in_buf));
	r->in_iov = (struct iovec){r->in_buf + r->got, sizeof(r->in_buf) - r->got};
	r->in = (struct sock_io){.op = {.done = wf_raw_in}, .iov = &r->in_iov, .iov_count = 1,
				 .bytes = r->in_iov.iov_len};
	sock_recv(r->sock, &r->in);
}

static inline void wf_raw_send(struct wf_raw *r);

static inline void wf_raw_out(struct loop_op *op, int res)
{
	struct wf_raw *r = container_of(op, struct wf_raw, out.op);

	r->out_busy = false;
	if (res == 0 && r->sent < r->to_send)
		wf_raw_send(r);
}

static inline void wf_raw_send(struct wf_raw *r)
{
	uint32_t n = r->to_send - r->sent;

	if (r->chunk != 0 && n > r->chunk)
		n = r->chunk;
	r->out_iov = (struct iovec){r->out_buf + r->sent, n};
	r->out = (struct sock_io){.op = {.done = wf_raw_out}, .iov = &r->out_iov, .iov_count = 1,
				  .bytes = n};
	r->sent += n;
	r->out_busy = true;
	sock_send(r->sock, &r->out);
}

static inline void wf_raw_dialled(struct loop_op *op, int res)
{
	struct wf_raw *r = container_of(op, struct wf_raw, dial.op);

	must(res == 0);
	r->sock = r->dial.sock;
	r->connected = true;
	wf_raw_recv(r);
}

static inline void wf_raw_accepted(void *arg, struct sock *sock)
{
	struct wf_raw *r = arg;

	r->sock = sock;
	r->connected = true;
	wf_raw_recv(r);
}

static inline void wf_raw_do_dial(void *arg)
{
	struct wf_raw *r = arg;

	r->loop = wf_host.loop;
	r->dial = (struct sock_connect){.op = {.done = wf_raw_dialled}, .addr = wf_addr()};
	sock_connect(r->loop, &r->dial);
}

static inline void wf_raw_do_listen(void *arg)
{
	struct wf_raw *r = arg;
	struct sock_addr addr = wf_addr();

	r->loop = wf_ctrl.loop;
	expect_int(sock_listen(r->loop, &addr, wf_raw_accepted, r, &r->listener), 0);
}

static inline void wf_raw_do_hear(void *arg)
{
	struct wf_raw *r = arg;

	r->deaf = false;
	wf_raw_recv(r);
}

static inline void wf_raw_do_flush(void *arg)
{
	struct wf_raw *r = arg;

	if (!r->out_busy && r->sent < r->to_send)
		wf_raw_send(r);
}

static inline void wf_raw_do_close(void *arg)
{
	struct wf_raw *r = arg;

	if (r->listener != NULL)
		sock_listener_close(&r->listener);
	if (r->sock != NULL)
		sock_close(&r->sock);
}

static inline struct wf_raw *wf_raw_make(void)
{
	struct wf_raw *r = calloc(1, sizeof(*r));

	must(r != NULL);
	return r;
}

/* Closes and forgets; the world has to run on a little for it. */
static inline void wf_raw_free(struct wf_raw **rp)
{
	struct wf_raw *r = *rp;

	*rp = NULL;
	wf_on(r->loop, wf_raw_do_close, r);
	wf_wait_ms(100);
	free(r);
}

static inline void wf_raw_add(struct wf_raw *r, const void *bytes, size_t count)
{
	must(r->to_send + count <= sizeof(r->out_buf));
	if (count > 0)
		memcpy(r->out_buf + r->to_send, bytes, count);
	r->to_send += (uint32_t)count;
}

static inline void wf_raw_flush(struct wf_raw *r)
{
	wf_on(r->loop, wf_raw_do_flush, r);
	wf_wait_ms(20);
}

static inline void wf_raw_put(struct wf_raw *r, const void *bytes, size_t count)
{
	wf_raw_add(r, bytes, count);
	wf_raw_flush(r);
}

/* The n-th PDU that came back, from 0; NULL: there is none. */
static inline const struct nv_pdu_head *wf_raw_pdu(const struct wf_raw *r, unsigned n)
{
	uint32_t at = 0;

	while (at + 8 <= r->got) {
		const struct nv_pdu_head *head = (const struct nv_pdu_head *)(r->in_buf + at);
		uint32_t plen = le32_get(head->plen);

		if (plen < 8 || at + plen > r->got)
			return NULL;
		if (n-- == 0)
			return head;
		at += plen;
	}
	return NULL;
}

/* The n-th PDU is a TermReq with this FES and FEI, and the connection ends. */
static inline void wf_raw_expect_term(struct wf_raw *r, unsigned n, uint16_t fes, uint32_t fei)
{
	const struct nv_pdu_head *head;
	struct nv_pdu_termreq term;

	wf_wait_ms(900);
	head = wf_raw_pdu(r, n);
	if (head == NULL || (head->type != NV_PDU_C2H_TERMREQ && head->type != NV_PDU_H2C_TERMREQ))
		fail_msg("no TermReq but %s", head != NULL ? nv_pdu_name(head->type) : "nothing");
	memcpy(&term, head, sizeof(term));
	if (le16_get(term.fes) != fes || le32_get(term.fei) != fei)
		fail_msg("TermReq %u/%u, not %u/%u", le16_get(term.fes), le32_get(term.fei), fes,
			 fei);
	expect(r->ended);
}

static inline void wf_raw_connect(struct wf_raw *r)
{
	wf_on(wf_host.loop, wf_raw_do_dial, r);
	expect(sim_run_until(wf_flag, &r->connected, NS_PER_S));
}

/* Raw host: TCP, ICReq, ICResp. */
static inline struct wf_raw *wf_raw_greet(uint8_t digest)
{
	struct wf_raw *r = wf_raw_make();
	struct nv_pdu_icreq icreq = nv_icreq_build(0, digest, 1);

	wf_raw_connect(r);
	wf_raw_put(r, &icreq, sizeof(icreq));
	expect(wf_raw_pdu(r, 0) != NULL);
	expect_int(wf_raw_pdu(r, 0)->type, NV_PDU_ICRESP);
	return r;
}

#endif
