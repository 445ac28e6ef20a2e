/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a turn go together, and receive buffers that follow what a peer sends. */
#include "wire_fixture.h"

#define DEPTH 64u

static struct wf_raw *raw;

static void begin(uint64_t seed, uint16_t depth)
{
	wf_begin(seed, NULL);
	wf_ctrl.opts.depth_max = depth;
	wf_listen();
	raw = wf_raw_greet(0);
}

static void end(void)
{
	wf_raw_free(&raw);
	wf_end();
}

/* A command without data (opcode 0) or a read of `bytes` (opcode 2). */
static void add(const struct nv_pdu_sizes *sizes, uint8_t opcode, uint16_t cid, uint32_t bytes)
{
	struct nv_sqe sqe = nv_sqe_of(opcode, 1);
	struct nv_pdu_cmd pdu;
	le32 crc;

	sqe.cid = le16_of(cid);
	sqe.cdw10 = le32_of(bytes);
	if (bytes > 0)
		sqe.sgl = nv_sgl_transport(bytes);
	pdu = nv_cmd_build(sizes, &sqe, 0);
	crc = le32_of(crc32c(&pdu, sizeof(pdu)));
	wf_raw_add(raw, &pdu, sizeof(pdu));
	if (sizes->header_digest)
		wf_raw_add(raw, &crc, 4);
}

static const struct nv_pdu_sizes plain;

static void answer_kept(void *arg)
{
	unsigned n = arg != NULL ? *(unsigned *)arg : wf_ctrl.kept_count;

	wf_ctrl.kept_count -= n;
	for (unsigned i = 0; i < n; i++)
		wf_answer(wf_ctrl.kept[i], NV_OK);
	memmove(wf_ctrl.kept, wf_ctrl.kept + n, wf_ctrl.kept_count * sizeof(wf_ctrl.kept[0]));
}

static void keep(unsigned n)
{
	wf_ctrl.keep = true;
	for (uint16_t i = 0; i < n; i++)
		add(&plain, 0, i, 0);
	wf_raw_flush(raw);
	expect_int(wf_ctrl.kept_count, n);
}

static void expect_answers(unsigned first_pdu, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct nv_pdu_resp resp;

		expect(wf_raw_pdu(raw, first_pdu + i) != NULL);
		memcpy(&resp, wf_raw_pdu(raw, first_pdu + i), sizeof(resp));
		expect_int(resp.head.type, NV_PDU_CAPSULE_RESP);
		expect_int(le16_get(resp.cqe.cid), i);
	}
	expect(wf_raw_pdu(raw, first_pdu + n) == NULL);
}

TEST(the_answers_of_one_turn_go_in_one_send)
{
	for (unsigned n = 1; n <= DEPTH; n = n * 2 + 1) {
		uint64_t sends;

		begin(40 + n, DEPTH);
		keep(n);
		sends = wire_counts()->sends;
		wf_on(wf_ctrl.loop, answer_kept, NULL);
		wf_wait_ms(20);
		expect_int(wire_counts()->sends - sends, 1);
		expect_answers(1, n);
		end();
	}
}

/* Nothing is received meanwhile, so that nothing but the answer itself wakes the connection. */
static void answer_late(struct loop_timer *t)
{
	(void)t;
	answer_kept(NULL);
}

static struct loop_timer late;

static void answer_by_timer(void *arg)
{
	(void)arg;
	loop_timer_init(&late, answer_late);
	loop_timer_set(wf_ctrl.loop, &late, loop_now_ns(wf_ctrl.loop) + 5 * NS_PER_MS);
}

TEST(an_answer_from_a_timer_or_a_message_needs_nobody_to_wake_it)
{
	unsigned one = 1;

	begin(60, DEPTH);
	keep(3);
	wf_on(wf_ctrl.loop, answer_kept, &one);
	wf_wait_ms(20);
	expect_answers(1, 1);
	wf_on(wf_ctrl.loop, answer_by_timer, NULL);
	wf_wait_ms(30);
	expect_answers(1, 3);
	end();
}

static void answer_and_drop(void *arg)
{
	(void)arg;
	answer_kept(NULL);
	wire_drop(&wf_ctrl.conn);
}

TEST(a_connection_dropped_with_answers_pending_sends_none_of_them)
{
	uint64_t sends;

	begin(61, DEPTH);
	keep(8);
	sends = wire_counts()->sends;
	wf_on(wf_ctrl.loop, answer_and_drop, NULL);
	wf_wait_ms(20);
	expect(raw->ended);
	expect_int(wire_counts()->sends, sends);
	expect_answers(1, 0);
	end();
}

/* What the network cuts off the first send is another turn, and dropped with the queue. */
TEST(answers_of_a_turn_go_before_the_termreq_of_that_turn)
{
	static const uint8_t wrong[8] = {0xff, 0, 0x18, 0, 0x18};
	unsigned whole = 0;

	for (unsigned seed = 0; seed < 16; seed++) {
		unsigned n = 1;

		begin(70 + seed, DEPTH);
		for (uint16_t i = 0; i < 5; i++)
			add(&plain, 0, i, 0);
		wf_raw_put(raw, wrong, sizeof(wrong));
		while (wf_raw_pdu(raw, n) != NULL &&
		       wf_raw_pdu(raw, n)->type == NV_PDU_CAPSULE_RESP)
			n++;
		wf_raw_expect_term(raw, n, 1, 0);
		whole += n == 6;
		end();
	}
	expect(whole >= 8);
}

/* --- slow and broken peers -------------------------------------------------------------------- */

#define READS 120u
#define READ_BYTES 6000u

static uint32_t digest_at(const uint8_t *at)
{
	le32 d;

	memcpy(d.b, at, sizeof(d.b));
	return le32_get(d);
}

/* The n-th read: data, digests, and its answer right behind. */
static void expect_read(unsigned n, bool digests)
{
	const uint8_t *data = (const uint8_t *)wf_raw_pdu(raw, 1 + 2 * n);
	const uint8_t *resp = (const uint8_t *)wf_raw_pdu(raw, 2 + 2 * n);
	struct nv_pdu_data head;
	struct nv_pdu_resp answer;

	expect(data != NULL && resp != NULL);
	memcpy(&head, data, sizeof(head));
	memcpy(&answer, resp, sizeof(answer));
	expect_int(head.head.type, NV_PDU_C2H_DATA);
	expect_int(answer.head.type, NV_PDU_CAPSULE_RESP);
	expect_int(le16_get(head.cccid), n);
	expect_int(le16_get(answer.cqe.cid), n);
	expect_mem(data + head.head.pdo, wf_ctrl.store, READ_BYTES);
	if (digests) {
		expect_int(digest_at(data + 24), crc32c(data, 24));
		expect_int(digest_at(data + head.head.pdo + READ_BYTES),
			   crc32c(wf_ctrl.store, READ_BYTES));
		expect_int(digest_at(resp + 24), crc32c(resp, 24));
	}
}

static bool all_read(void *arg)
{
	(void)arg;
	return wf_raw_pdu(raw, 2 * READS) != NULL;
}

TEST(a_peer_that_reads_slowly_gets_all_bytes_in_order)
{
	for (unsigned seed = 0; seed < 8; seed++) {
		struct nv_pdu_sizes sizes = {seed & 1, seed & 1, 0};

		wf_begin(90 + seed, NULL);
		wf_ctrl.opts.depth_max = 24;
		wf_ctrl.opts.header_digest = wf_ctrl.opts.data_digest = true;
		wf_listen();
		raw = wf_raw_greet(seed & 1 ? 3 : 0);
		raw->deaf = true;
		raw->chunk = seed & 2 ? 500 : 0;
		for (uint16_t i = 0; i < READS; i++)
			add(&sizes, 2, i, READ_BYTES);
		wf_raw_flush(raw);
		for (unsigned i = 0; i < 40; i++) {
			wf_on(wf_host.loop, wf_raw_do_hear, raw);
			raw->deaf = true;
			wf_wait_ms(3);
			if (raw->in.op.state != 0)
				break;
		}
		raw->deaf = false;
		if (raw->in.op.state == 0)
			wf_on(wf_host.loop, wf_raw_do_hear, raw);
		expect(sim_run_until(all_read, NULL, 5 * NS_PER_S));
		for (unsigned i = 0; i < READS; i++)
			expect_read(i, seed & 1);
		end();
	}
}

static unsigned pushed, push_lost;

static void batch_pushed(struct wire_cmd *cmd, int res)
{
	(void)cmd;
	pushed++;
	push_lost += res == -ECONNRESET;
}

static void push_kept(void *arg)
{
	static struct iovec iov;

	(void)arg;
	iov = (struct iovec){wf_ctrl.store, READ_BYTES};
	sim_fault_at(SIM_NET_RESET, 2);
	for (unsigned i = 0; i < wf_ctrl.kept_count; i++) {
		wire_push(wf_ctrl.kept[i], &iov, 1, READ_BYTES, batch_pushed);
		wf_answer(wf_ctrl.kept[i], NV_OK);
	}
}

TEST(a_send_that_breaks_in_the_middle_gives_each_buffer_back_once)
{
	unsigned lost = 0;

	for (unsigned seed = 0; seed < 16; seed++) {
		begin(110 + seed, DEPTH);
		wf_ctrl.keep = true;
		for (uint16_t i = 0; i < 12; i++)
			add(&plain, 2, i, READ_BYTES);
		wf_raw_flush(raw);
		expect_int(wf_ctrl.kept_count, 12);
		pushed = push_lost = 0;
		wf_on(wf_ctrl.loop, push_kept, NULL);
		wf_wait_ms(100);
		if (wf_ctrl.closed > 0)
			expect_int(wf_ctrl.closed_why, -ECONNRESET);
		expect_int(pushed, 12);
		lost += push_lost;
		end();
	}
	expect(lost >= 12);
}

/* --- wide receives ---------------------------------------------------------------------------- */

#define SMALL 3400u

static bool all_answered(void *arg)
{
	return wf_raw_pdu(raw, *(unsigned *)arg) != NULL;
}

static unsigned in_order;

static void command_in_order(void *arg, struct wire_cmd *cmd)
{
	struct nv_cqe cqe = nv_cqe_of(0, NV_OK);

	(void)arg;
	must(le16_get(cmd->sqe.cid) == (uint16_t)in_order);
	in_order++;
	wire_respond(cmd, &cqe);
}

static void listen_in_order(void *arg)
{
	static struct wire_ctrl_events events;
	struct sock_addr addr = wf_addr();

	(void)arg;
	events = wf_ctrl_events;
	events.command = command_in_order;
	expect_int(wire_listen(wf_ctrl.loop, &addr, &wf_ctrl.opts, &events, &wf_ctrl,
			       &wf_ctrl.listener), 0);
}

static void depth_set(void *arg)
{
	(void)arg;
	expect_int(wire_depth_set(wf_ctrl.conn, 256), 0);
}

static void begin_wide(uint64_t seed)
{
	unsigned last = SMALL;

	wf_begin(seed, NULL);
	wf_ctrl.opts.depth_max = 256;
	wf_on(wf_ctrl.loop, listen_in_order, NULL);
	raw = wf_raw_greet(0);
	wf_on(wf_ctrl.loop, depth_set, NULL);
	in_order = 0;
	for (unsigned i = 0; i < SMALL; i++)
		add(&plain, 0, (uint16_t)i, 0);
	wf_raw_flush(raw);
	expect(sim_run_until(all_answered, &last, 5 * NS_PER_S));
	expect_int(in_order, SMALL);
}

TEST(small_pdus_that_fill_receive_after_receive_widen_the_buffer)
{
	unsigned widened = 0;

	for (unsigned seed = 0; seed < 8; seed++) {
		uint64_t receives = wire_counts()->receives;

		begin_wide(140 + seed);
		widened += wire_counts()->wide_bytes > 0;
		expect(wire_counts()->wide_bytes <= 128 * KiB);
		expect(wire_counts()->receives - receives < SMALL / 20);
		end();
		expect_int(wire_counts()->wide_bytes, 0);
	}
	expect(widened >= 4);
}

TEST(a_buffer_that_has_been_too_wide_for_long_is_given_back)
{
	unsigned shrunk = 0;

	for (unsigned seed = 0; seed < 4; seed++) {
		begin_wide(150 + seed);
		shrunk += wire_counts()->wide_bytes > 0;
		raw->to_send = raw->sent = 0;
		for (unsigned i = 0; i < 300; i++) {
			add(&plain, 0, (uint16_t)in_order, 0);
			wf_raw_flush(raw);
		}
		expect_int(in_order, SMALL + 300);
		expect_int(wire_counts()->wide_bytes, 0);
		end();
	}
	expect(shrunk > 0);
}

/* --- a crowd ---------------------------------------------------------------------------------- */

#define CROWD 1000u

struct fan {                           /* a host that sends one script and counts what comes */
	struct sock_connect dial;
	struct sock_io out, in;
	struct iovec out_iov, in_iov;
	struct wire_conn *conn;        /* the controller's end */
	uint16_t next;                 /* cid that is due */
	uint64_t got;
};

static struct fan *fan;
static unsigned fans;                  /* accepted */
static uint8_t *fan_bytes, fan_sink[4096];
static uint64_t fan_bytes_count, most_wide;

static void fan_accepted(void *arg, struct wire_conn *conn)
{
	(void)arg;
	fan[fans].conn = conn;
	wire_conn_arg_set(conn, &fan[fans++]);
	expect_int(wire_depth_set(conn, 32), 0);
}

static void fan_command(void *arg, struct wire_cmd *cmd)
{
	struct nv_cqe cqe = nv_cqe_of(0, NV_OK);
	struct fan *f = arg;

	must(le16_get(cmd->sqe.cid) == f->next);
	f->next++;
	if (most_wide < wire_counts()->wide_bytes)
		most_wide = wire_counts()->wide_bytes;
	wire_respond(cmd, &cqe);
}

static void fan_closed(void *arg, int why)
{
	struct fan *f = arg;

	(void)why;
	wire_close(&f->conn);
}

static void fan_listen(void *arg)
{
	static const struct wire_ctrl_events events = {fan_accepted, fan_command, fan_closed};
	struct sock_addr addr = wf_addr();

	(void)arg;
	expect_int(wire_listen(wf_ctrl.loop, &addr, &wf_ctrl.opts, &events, NULL,
			       &wf_ctrl.listener), 0);
}

static void fan_recv(struct fan *f);

static void fan_in(struct loop_op *op, int res)
{
	struct fan *f = container_of(op, struct fan, in.op);

	if (res <= 0)
		return;
	f->got += (uint64_t)res;
	fan_recv(f);
}

static void fan_recv(struct fan *f)
{
	f->in_iov = (struct iovec){fan_sink, sizeof(fan_sink)};
	f->in = (struct sock_io){.op = {.done = fan_in}, .iov = &f->in_iov, .iov_count = 1,
				 .bytes = sizeof(fan_sink)};
	sock_recv(f->dial.sock, &f->in);
}

static void fan_out(struct loop_op *op, int res)
{
	must(op != NULL && (res == 0 || res == -ECANCELED));
}

static void fan_dialled(struct loop_op *op, int res)
{
	struct fan *f = container_of(op, struct fan, dial.op);

	must(res == 0);
	f->out_iov = (struct iovec){fan_bytes, fan_bytes_count};
	f->out = (struct sock_io){.op = {.done = fan_out}, .iov = &f->out_iov, .iov_count = 1,
				  .bytes = fan_bytes_count};
	sock_send(f->dial.sock, &f->out);
	fan_recv(f);
}

static void fan_dial(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < CROWD; i++) {
		fan[i].dial = (struct sock_connect){.op = {.done = fan_dialled},
						    .addr = wf_addr()};
		sock_connect(wf_host.loop, &fan[i].dial);
	}
}

static void fan_close(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < CROWD; i++)
		sock_close(&fan[i].dial.sock);
}

#define FAN_COMMANDS 24u
#define FAN_DATA_BYTES 8192u

/* ICReq and commands with 8 KiB of data each, which is dropped. */
static void fan_script(void)
{
	struct nv_pdu_icreq icreq = nv_icreq_build(0, 0, 1);
	struct nv_sqe sqe = nv_sqe_of(1, 1);
	uint8_t *at;

	fan_bytes_count = sizeof(icreq) + FAN_COMMANDS * (sizeof(struct nv_pdu_cmd) +
							  FAN_DATA_BYTES);
	at = fan_bytes = calloc(1, fan_bytes_count);
	memcpy(at, &icreq, sizeof(icreq));
	at += sizeof(icreq);
	sqe.sgl = nv_sgl_in_capsule(FAN_DATA_BYTES);
	for (uint16_t i = 0; i < FAN_COMMANDS; i++) {
		struct nv_pdu_cmd pdu;

		sqe.cid = le16_of(i);
		pdu = nv_cmd_build(&plain, &sqe, FAN_DATA_BYTES);
		memcpy(at, &pdu, sizeof(pdu));
		at += sizeof(pdu) + FAN_DATA_BYTES;
	}
}

static bool fans_done(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < CROWD; i++)
		if (fan[i].got != 128 + FAN_COMMANDS * 24)
			return false;
	return true;
}

TEST(wide_buffers_of_a_thousand_connections_stay_within_64_mib)
{
	wf_begin(160, NULL);
	wf_ctrl.opts.depth_max = 8;
	fan = calloc(CROWD, sizeof(*fan));
	fans = 0;
	most_wide = 0;
	fan_script();
	wf_on(wf_ctrl.loop, fan_listen, NULL);
	wf_on(wf_host.loop, fan_dial, NULL);
	expect(sim_run_until(fans_done, NULL, 10 * NS_PER_S));
	expect_int(fans, CROWD);
	expect(most_wide > 60 * MiB && most_wide <= 64 * MiB);
	wf_on(wf_host.loop, fan_close, NULL);
	wf_wait_ms(200);
	expect_int(wire_counts()->wide_bytes, 0);
	wf_end();
	free(fan_bytes);
	free(fan);
}
