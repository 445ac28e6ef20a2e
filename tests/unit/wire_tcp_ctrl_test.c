/* SPDX-License-Identifier: Apache-2.0 */
/* A hostile or broken host against the controller's end. Case names: [ABUSE]. */
#include "wire_fixture.h"

/* A raw host that has shaken hands, and a 64 KiB write for which R2T has come. */
static struct wf_raw *raw;

static void begin(uint8_t digest)
{
	wf_begin(100, NULL);
	wf_ctrl.opts.header_digest = wf_ctrl.opts.data_digest = true;
	wf_listen();
	raw = wf_raw_greet(digest);
	expect_int(wf_ctrl.accepted, 1);
}

static void end(void)
{
	wf_raw_free(&raw);
	wf_end();
}

/* A capsule with `data_bytes` of data, digests as agreed; wrong_digest flips the data digest. */
static void add_capsule(const struct nv_pdu_sizes *sizes, const struct nv_sqe *sqe,
			const uint8_t *data, uint32_t data_bytes, bool wrong_digest)
{
	struct nv_pdu_cmd pdu = nv_cmd_build(sizes, sqe, data_bytes);
	le32 crc = le32_of(crc32c(&pdu, sizeof(pdu)));
	le32 data_crc = le32_of(crc32c(data, data_bytes) ^ (wrong_digest ? 1 : 0));

	wf_raw_add(raw, &pdu, sizeof(pdu));
	if (sizes->header_digest)
		wf_raw_add(raw, &crc, 4);
	wf_raw_add(raw, data, data_bytes);
	if (sizes->data_digest && data_bytes > 0)
		wf_raw_add(raw, &data_crc, 4);
}

static void add_h2c(const struct nv_pdu_sizes *sizes, const struct nv_data_span *s,
		    const uint8_t *data, bool wrong_digest)
{
	struct nv_pdu_data pdu = nv_h2c_data_build(sizes, s);
	le32 crc = le32_of(crc32c(&pdu, sizeof(pdu)));
	le32 data_crc = le32_of(crc32c(data, s->bytes) ^ (wrong_digest ? 1 : 0));

	wf_raw_add(raw, &pdu, sizeof(pdu));
	if (sizes->header_digest)
		wf_raw_add(raw, &crc, 4);
	wf_raw_add(raw, data, s->bytes);
	if (sizes->data_digest)
		wf_raw_add(raw, &data_crc, 4);
}

static struct nv_sqe write_sqe(uint16_t cid, uint32_t bytes, bool in_capsule)
{
	struct nv_sqe sqe = nv_sqe_of(1, 1);

	sqe.cid = le16_of(cid);
	sqe.cdw10 = le32_of(bytes);
	sqe.sgl = in_capsule ? nv_sgl_in_capsule(bytes) : nv_sgl_transport(bytes);
	return sqe;
}

static const struct nv_pdu_sizes plain, digests = {true, true, 0};

/* Status of the n-th PDU, which must be a CapsuleResp to this command. */
static uint16_t resp_status(unsigned n, uint16_t cid)
{
	const struct nv_pdu_head *head = wf_raw_pdu(raw, n);
	struct nv_pdu_resp resp;

	if (head == NULL || head->type != NV_PDU_CAPSULE_RESP)
		fail_msg("no CapsuleResp but %s",
			 head != NULL ? nv_pdu_name(head->type) : "nothing");
	memcpy(&resp, head, sizeof(resp));
	expect_int(le16_get(resp.cqe.cid), cid);
	return nv_status_code(nv_cqe_status(&resp.cqe));
}

struct head_row {
	uint8_t head[8];
	uint16_t fes;
	uint32_t fei;
};

TEST(wrong_headers_are_told_by_termreq_within_a_second)
{
	static const struct head_row rows[] = {
		{{0x0a, 0, 0x18, 0, 0x18}, 1, 0},                       /* T01 */
		{{0x05, 0, 0x18, 0, 0x18}, 1, 0},                       /* T02 */
		{{0xff, 0, 0x18, 0, 0x18}, 1, 0},                       /* T03 */
		{{0x00, 0, 0x80, 0, 0x80}, 2, 0},                       /* T11 */
		{{0x06, 4, 0x18, 0x18, 0x1c}, 1, 10},                   /* T16 */
		{{0x04, 0, 0x47, 0x48, 0x48, 0x04}, 1, 2},              /* T17 */
		{{0x04, 0, 0x48, 0x00, 0x08}, 1, 4},                    /* T18 */
		{{0x04, 0, 0x48, 0x48, 0xff, 0xff, 0xff, 0xff}, 5, 0},  /* T19 */
		{{0x04, 0, 0x48, 0x00, 0x48, 0x10}, 1, 3},              /* T20 */
		{{0x04, 0, 0x48, 0xc8, 0x48, 0x10}, 1, 3},              /* T21 */
		{{0x04, 2, 0x48, 0x48, 0x48, 0x10}, 1, 1},              /* T23 */
		{{0x04, 4, 0x48, 0x48, 0x48, 0x10}, 1, 1},              /* T26 */
	};

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		uint8_t pdu[128] = {0};

		begin(0);
		memcpy(pdu, rows[i].head, 8);
		wf_raw_put(raw, pdu, sizeof(pdu));
		wf_raw_expect_term(raw, 1, rows[i].fes, rows[i].fei);
		expect_int(wf_ctrl.closed, 1);
		expect_int(wf_ctrl.closed_why, -EPROTO);
		expect_int(wf_ctrl.commands, 0);
		end();
	}
}

TEST(a_termreq_holds_the_bytes_that_were_wrong)
{
	static const uint8_t pdu[8] = {0x04, 0, 0x47, 0x48, 0x48, 0x04};

	begin(0);
	wf_raw_put(raw, pdu, sizeof(pdu));
	wf_raw_expect_term(raw, 1, 1, 2);
	expect_int(le32_get(wf_raw_pdu(raw, 1)->plen), 32);
	expect_mem((const uint8_t *)wf_raw_pdu(raw, 1) + 24, pdu, 8);
	end();
}

TEST(a_wrong_icreq_is_told_by_termreq)
{
	static const struct {
		uint8_t offset, value;
		uint16_t fes;
		uint32_t fei;
	} rows[] = {
		{2, 0x7f, 1, 2}, {2, 0, 1, 2}, {2, 0xff, 1, 2},         /* T04 */
		{4, 0x7f, 1, 4}, {4, 0x81, 1, 4}, {4, 0, 1, 4}, {7, 0xff, 1, 4},       /* T05 */
		{8, 1, 1, 8}, {10, 32, 1, 10},                          /* T07 T08 */
		{0, 4, 2, 0}, {0, 1, 1, 0},                             /* T12 */
	};

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		struct nv_pdu_icreq icreq = nv_icreq_build(0, 0, 1);

		wf_begin(7, NULL);
		wf_listen();
		raw = wf_raw_make();
		wf_raw_connect(raw);
		((uint8_t *)&icreq)[rows[i].offset] = rows[i].value;
		wf_raw_put(raw, &icreq, sizeof(icreq));
		wf_raw_expect_term(raw, 0, rows[i].fes, rows[i].fei);
		expect_int(wf_ctrl.accepted, 0);
		end();
	}
}

TEST(what_is_not_nvme_tcp_is_closed_without_a_word)
{
	static const char *const bytes[] = {
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"\x02\x00\x18\x00\x18\x00\x00\x00",                     /* T33: TermReq first */
	};

	for (unsigned i = 0; i < ARRAY_COUNT(bytes); i++) {
		wf_begin(8, NULL);
		wf_listen();
		raw = wf_raw_make();
		wf_raw_connect(raw);
		wf_raw_put(raw, bytes[i], i == 3 ? 8 : i == 2 ? 11 : strlen(bytes[i]));
		wf_wait_ms(900);
		expect(raw->ended);
		expect_int(raw->got, 0);
		end();
	}
}

TEST(reserved_digest_bits_are_not_echoed)
{
	const uint8_t *icresp;

	begin(0xff & 3);
	end();
	wf_begin(9, NULL);
	wf_listen();
	raw = wf_raw_make();
	wf_raw_connect(raw);
	struct nv_pdu_icreq icreq = nv_icreq_build(0, 0, 1);

	icreq.digest = 0xfc;                                            /* T09 */
	wf_raw_put(raw, &icreq, sizeof(icreq));
	icresp = (const uint8_t *)wf_raw_pdu(raw, 0);
	expect(icresp != NULL && icresp[0] == NV_PDU_ICRESP);
	expect_int(icresp[11], 0);
	end();
}

TEST(icreq_one_byte_at_a_time_is_answered)
{
	struct nv_pdu_icreq icreq = nv_icreq_build(0, 0, 1);

	wf_begin(10, NULL);
	wf_listen();
	raw = wf_raw_make();
	raw->chunk = 1;                                                 /* T15 */
	wf_raw_connect(raw);
	wf_raw_put(raw, &icreq, sizeof(icreq));
	wf_wait_ms(100);
	expect_int(wf_ctrl.accepted, 1);
	expect_int(wf_raw_pdu(raw, 0)->type, NV_PDU_ICRESP);
	end();
}

TEST(a_silent_socket_is_dropped_at_the_handshake_deadline)
{
	wf_begin(11, NULL);
	wf_listen();
	raw = wf_raw_make();
	wf_raw_connect(raw);
	wf_wait_ms(4900);
	expect(!raw->ended);
	wf_wait_ms(200);
	expect(raw->ended);
	expect_int(raw->got, 0);
	end();
}

#define SILENT 1100u

static struct sock_connect silent[SILENT];

static void silent_dialled(struct loop_op *op, int res)
{
	must(res == 0 && op != NULL);
}

static void silent_dial(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < SILENT; i++) {
		silent[i] = (struct sock_connect){.op = {.done = silent_dialled},
						  .addr = wf_addr()};
		sock_connect(wf_host.loop, &silent[i]);
	}
}

static void silent_close(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < SILENT; i++)
		sock_close(&silent[i].sock);
}

TEST(a_crowd_of_silent_sockets_keeps_no_new_host_out)
{
	uint64_t late = wire_counts()->handshake_late, begin_ns;

	wf_begin(14, NULL);                                             /* L01 */
	wf_listen();
	wf_on(wf_host.loop, silent_dial, NULL);
	wf_wait_ms(20);
	expect_int(wire_counts()->handshake_late - late, SILENT - 1024);
	begin_ns = sim_now_ns();
	raw = wf_raw_greet(0);
	expect(sim_now_ns() - begin_ns < 100 * NS_PER_MS);
	wf_wait_ms(5100);
	expect_int(wire_counts()->handshake_late - late, SILENT);
	expect(!raw->ended);
	wf_on(wf_host.loop, silent_close, NULL);
	end();
}

TEST(a_termreq_of_the_host_closes_at_once_without_reply)
{
	for (uint16_t fes = 0; fes < 8; fes++) {
		struct nv_pdu_fault fault = {fes, 0, false, "x"};
		struct nv_wrong none = {"", 0};
		uint8_t pdu[NV_PDU_TERMREQ_MAX];
		size_t bytes = nv_termreq_build(NV_PDU_H2C_TERMREQ, &fault, &none, pdu);

		begin(0);
		wf_raw_put(raw, pdu, bytes);                            /* T32 */
		wf_wait_ms(100);
		expect(raw->ended);
		expect_int(raw->got, 128);
		expect_int(wf_ctrl.closed, 1);
		end();
	}
}

TEST(a_header_digest_one_bit_off_ends_the_connection_and_runs_nothing)
{
	struct nv_sqe sqe = nv_sqe_of(0, 1);
	struct nv_pdu_cmd pdu = nv_cmd_build(&digests, &sqe, 0);
	le32 crc = le32_of(crc32c(&pdu, sizeof(pdu)) ^ 1);

	begin(3);
	wf_raw_add(raw, &pdu, sizeof(pdu));
	wf_raw_put(raw, &crc, 4);
	wf_raw_expect_term(raw, 1, 3, le32_get(crc));                   /* T27 */
	expect_int(wf_ctrl.commands, 0);
	end();
}

TEST(a_data_digest_one_bit_off_is_22h_and_the_connection_lives)
{
	uint8_t data[4096];
	struct nv_sqe sqe = write_sqe(5, sizeof(data), true);

	begin(3);
	kt_noise(data, sizeof(data));
	add_capsule(&digests, &sqe, data, sizeof(data), true);          /* T29 */
	wf_raw_flush(raw);
	expect_int(resp_status(1, 5), NV_RAW_TRANSIENT_TRANSPORT);
	expect_int(wf_ctrl.pull_res, -EBADMSG);
	add_capsule(&digests, &sqe, data, sizeof(data), false);
	wf_raw_flush(raw);
	expect_int(resp_status(2, 5), 0);
	expect_mem(wf_ctrl.store, data, sizeof(data));
	expect_int(wf_ctrl.commands, 2);
	end();
}

TEST(a_bad_data_digest_in_the_middle_is_answered_once_after_the_rest)
{
	uint8_t data[65536];
	struct nv_sqe sqe = write_sqe(5, sizeof(data), false);

	begin(3);
	kt_noise(data, sizeof(data));
	add_capsule(&digests, &sqe, data, 0, false);
	wf_raw_flush(raw);
	expect_int(wf_raw_pdu(raw, 1)->type, NV_PDU_R2T);
	for (uint32_t i = 0; i < 4; i++) {                              /* T30 */
		struct nv_data_span s = {5, 1, i * 16384, 16384, i == 3};

		expect_int(wf_ctrl.answered, 0);
		add_h2c(&digests, &s, data + i * 16384, i == 1);
		wf_raw_flush(raw);
	}
	expect_int(resp_status(2, 5), NV_RAW_TRANSIENT_TRANSPORT);
	expect_int(wf_ctrl.answered, 1);
	expect(!raw->ended);
	end();
}

TEST(a_bad_command_with_a_bad_data_digest_is_answered_once)
{
	uint8_t data[4096];
	struct nv_sqe sqe = write_sqe(6, sizeof(data), true), ok = nv_sqe_of(0, 1);

	begin(3);
	kt_noise(data, sizeof(data));
	sqe.opcode = 0x7d;                                              /* T31 */
	add_capsule(&digests, &sqe, data, sizeof(data), true);
	ok.cid = le16_of(7);
	add_capsule(&digests, &ok, data, 0, false);
	wf_raw_flush(raw);
	expect_int(resp_status(1, 6), NV_RAW_INVALID_OPCODE);
	expect_int(resp_status(2, 7), 0);
	expect_int(wf_ctrl.answered, 2);
	end();
}

TEST(a_capsule_cut_anywhere_leaves_nothing_behind)
{
	uint8_t data[4096];
	struct nv_sqe sqe = write_sqe(1, sizeof(data), true);
	struct nv_pdu_cmd pdu = nv_cmd_build(&plain, &sqe, sizeof(data));

	kt_noise(data, sizeof(data));
	for (uint32_t cut = 1; cut < 72 + 4096; cut += cut < 72 ? 7 : 257) {    /* T35 T36 */
		begin(0);
		wf_raw_add(raw, &pdu, cut < 72 ? cut : 72);
		if (cut > 72)
			wf_raw_add(raw, data, cut - 72);
		wf_raw_flush(raw);
		wf_on(raw->loop, wf_raw_do_close, raw);
		wf_wait_ms(100);
		expect_int(wf_ctrl.closed, 1);
		expect_int(wf_ctrl.commands, cut >= 72);
		if (cut >= 72)
			expect_int(wf_ctrl.pull_res, -ECONNRESET);
		end();
	}
}

TEST(commands_in_one_send_or_byte_by_byte_have_the_same_answers)
{
	for (uint32_t chunk = 0; chunk < 2; chunk++) {                  /* T37 */
		begin(0);
		raw->chunk = chunk;
		for (uint16_t cid = 0; cid < WF_DEPTH; cid++) {
			struct nv_sqe sqe = nv_sqe_of(0, 1);

			sqe.cid = le16_of(cid);
			add_capsule(&plain, &sqe, NULL, 0, false);
		}
		wf_raw_flush(raw);
		wf_wait_ms(500);
		for (uint16_t cid = 0; cid < WF_DEPTH; cid++)
			expect_int(resp_status(1u + cid, cid), 0);
		end();
	}
}

TEST(in_capsule_data_up_to_the_limit_is_taken_and_more_is_not)
{
	uint8_t data[8196];
	struct nv_sqe sqe = write_sqe(1, 8192, true);

	begin(0);
	kt_noise(data, sizeof(data));
	add_capsule(&plain, &sqe, data, 8192, false);                   /* T40 */
	wf_raw_flush(raw);
	expect_int(resp_status(1, 1), 0);
	expect_mem(wf_ctrl.store, data, 8192);
	add_capsule(&plain, &sqe, data, 8196, false);
	wf_raw_flush(raw);
	wf_raw_expect_term(raw, 2, 5, 0);
	end();
}

/* --- R2T and H2CData -------------------------------------------------------------------------- */

static uint8_t noise[70000];

static void begin_write(void)
{
	struct nv_sqe sqe = write_sqe(5, 65536, false);
	struct nv_pdu_r2t r2t;

	begin(0);
	kt_noise(noise, sizeof(noise));
	add_capsule(&plain, &sqe, NULL, 0, false);
	wf_raw_flush(raw);
	memcpy(&r2t, wf_raw_pdu(raw, 1), sizeof(r2t));
	expect_int(r2t.head.type, NV_PDU_R2T);
	expect_int(le16_get(r2t.cccid), 5);
	expect_int(le16_get(r2t.ttag), 1);
	expect_int(le32_get(r2t.r2to), 0);
	expect_int(le32_get(r2t.r2tl), 65536);
}

static void h2c(struct nv_data_span s)
{
	add_h2c(&plain, &s, noise, false);
	wf_raw_flush(raw);
}

TEST(h2c_data_as_asked_is_stored)
{
	begin_write();
	for (uint32_t i = 0; i < 4; i++)
		h2c((struct nv_data_span){5, 1, i * 16384, 16384, i == 3});
	expect_int(resp_status(2, 5), 0);
	for (uint32_t i = 0; i < 4; i++)
		expect_mem(wf_ctrl.store + i * 16384, noise, 16384);
	end();
}

TEST(h2c_data_that_was_not_asked_for_ends_the_connection)
{
	static const struct {
		struct nv_data_span s;
		uint16_t fes;
		uint32_t fei;
	} rows[] = {
		{{5, 0, 0, 4096, false}, 1, 10}, {{5, 2, 0, 4096, false}, 1, 10},       /* D01 */
		{{5, 0x80, 0, 4096, false}, 1, 10}, {{5, 0xffff, 0, 4096, false}, 1, 10},
		{{6, 1, 0, 4096, false}, 1, 8},                         /* D02 */
		{{5, 1, 65536, 4096, false}, 4, 0},                     /* D03 */
		{{5, 1, 0, 65540, false}, 4, 0},                        /* D05 */
		{{5, 1, 0, 16388, false}, 5, 0},
		{{5, 1, 4096, 4096, false}, 2, 0},                      /* D07: a gap */
		{{5, 1, 0, 16384, true}, 2, 0},                         /* D10 */
	};

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		begin_write();
		h2c(rows[i].s);
		wf_raw_expect_term(raw, 2, rows[i].fes, rows[i].fei);
		expect_int(wf_ctrl.pull_res, -ECONNRESET);
		end();
	}
}

TEST(h2c_data_that_overlaps_comes_twice_or_after_the_answer_is_refused)
{
	begin_write();
	h2c((struct nv_data_span){5, 1, 0, 8192, false});
	h2c((struct nv_data_span){5, 1, 4096, 4096, false});            /* D07 */
	wf_raw_expect_term(raw, 2, 2, 0);
	end();
	begin_write();
	for (uint32_t i = 0; i < 4; i++)
		h2c((struct nv_data_span){5, 1, i * 16384, 16384, i == 3});
	expect_int(resp_status(2, 5), 0);
	h2c((struct nv_data_span){5, 1, 49152, 16384, true});           /* D11 D12 */
	wf_raw_expect_term(raw, 3, 1, 10);
	end();
	begin_write();
	for (uint32_t i = 0; i < 3; i++)
		h2c((struct nv_data_span){5, 1, i * 16384, 16384, false});
	h2c((struct nv_data_span){5, 1, 49152, 16384, false});          /* D10: LAST is missing */
	wf_raw_expect_term(raw, 2, 2, 0);
	end();
}

TEST(h2c_data_whose_plen_and_datal_differ_is_refused)
{
	static const int32_t more[] = {4, -4};

	for (unsigned i = 0; i < 2; i++) {                              /* D09 */
		struct nv_data_span s = {5, 1, 0, 4096, false};
		struct nv_pdu_data pdu = nv_h2c_data_build(&plain, &s);

		begin_write();
		pdu.head.plen = le32_of(24 + 4096 + (uint32_t)more[i]);
		wf_raw_add(raw, &pdu, sizeof(pdu));
		wf_raw_put(raw, noise, 4100);
		wf_raw_expect_term(raw, 2, 1, 16);
		end();
	}
}

TEST(h2c_data_for_a_read_is_refused)
{
	struct nv_sqe sqe = write_sqe(5, 4096, true);

	begin(0);
	wf_ctrl.keep = true;
	sqe.opcode = 2;
	add_capsule(&plain, &sqe, NULL, 0, false);
	wf_raw_flush(raw);
	expect_int(wf_ctrl.kept_count, 1);
	h2c((struct nv_data_span){5, 1, 0, 4096, true});                /* D13 */
	wf_raw_expect_term(raw, 1, 1, 10);
	struct nv_cqe cqe = nv_cqe_of(0, NV_OK);

	wire_respond(wf_ctrl.kept[0], &cqe);
	end();
}

TEST(h2c_data_for_an_in_capsule_write_is_refused)
{
	struct nv_sqe sqe = write_sqe(5, 4096, true);

	begin(0);
	kt_noise(noise, sizeof(noise));
	add_capsule(&plain, &sqe, noise, 4096, false);
	wf_raw_flush(raw);
	expect_int(resp_status(1, 5), 0);
	h2c((struct nv_data_span){5, 1, 0, 4096, true});                /* D14 */
	wf_raw_expect_term(raw, 2, 1, 10);
	end();
}

TEST(r2t_is_out_only_once_for_a_command)
{
	begin_write();                                                  /* D21 */
	wf_wait_ms(2000);
	expect(wf_raw_pdu(raw, 2) == NULL);
	h2c((struct nv_data_span){5, 1, 0, 16384, false});
	wf_wait_ms(2000);
	expect(wf_raw_pdu(raw, 2) == NULL);
	end();
}

TEST(data_that_was_promised_and_does_not_come_ends_the_connection)
{
	begin_write();                                                  /* D18 */
	wf_wait_ms(8000);
	h2c((struct nv_data_span){5, 1, 0, 16384, false});
	wf_wait_ms(9000);
	expect(!raw->ended);
	wf_wait_ms(2000);
	expect(raw->ended);
	expect_int(wf_ctrl.pull_res, -ECONNRESET);
	expect_int(wf_ctrl.closed_why, -ETIMEDOUT);
	end();
}

TEST(other_traffic_does_not_excuse_data_that_does_not_come)
{
	begin_write();
	for (uint16_t i = 0; i < 12; i++) {
		struct nv_sqe sqe = nv_sqe_of(0, 1);

		sqe.cid = le16_of(100);
		add_capsule(&plain, &sqe, NULL, 0, false);
		wf_raw_flush(raw);
		wf_wait_ms(1000);
	}
	expect(raw->ended);
	end();
}

TEST(half_the_data_and_a_disconnect_store_nothing)
{
	begin_write();                                                  /* D20 */
	h2c((struct nv_data_span){5, 1, 0, 16384, false});
	wf_on(raw->loop, wf_raw_do_close, raw);
	wf_wait_ms(100);
	expect_int(wf_ctrl.pull_res, -ECONNRESET);
	expect_int(wf_ctrl.closed, 1);
	end();
}

TEST(more_commands_than_the_queue_is_deep_end_the_connection)
{
	struct nv_cqe cqe = nv_cqe_of(0, NV_OK);

	begin(0);
	wf_ctrl.keep = true;
	for (uint16_t cid = 0; cid <= WF_DEPTH; cid++) {
		struct nv_sqe sqe = nv_sqe_of(0, 1);

		sqe.cid = le16_of(cid);
		add_capsule(&plain, &sqe, NULL, 0, false);
	}
	wf_raw_flush(raw);
	expect_int(wf_ctrl.kept_count, WF_DEPTH);
	wf_raw_expect_term(raw, 1, 5, 0);
	expect_int(wf_ctrl.closed, 1);
	for (unsigned i = 0; i < WF_DEPTH; i++)
		wire_respond(wf_ctrl.kept[i], &cqe);
	end();
}

/* --- the owner's side ------------------------------------------------------------------------- */

static void answer_kept(void *arg)
{
	struct nv_cqe cqe = nv_cqe_of(0, NV_OK);

	wire_respond(arg, &cqe);
}

static void grow(void *arg)
{
	(void)arg;
	expect_int(wire_depth_set(wf_ctrl.conn, 40), 0);
}

TEST(the_queue_grows_while_a_command_is_at_work)
{
	begin(0);
	wf_ctrl.keep = true;
	for (uint16_t cid = 0; cid < 40; cid++) {
		struct nv_sqe sqe = nv_sqe_of(0, 1);

		sqe.cid = le16_of(cid);
		add_capsule(&plain, &sqe, NULL, 0, false);
		wf_raw_flush(raw);
		if (cid == 0)
			wf_on(wf_ctrl.loop, grow, NULL);
	}
	expect_int(wf_ctrl.kept_count, 40);
	for (unsigned i = 0; i < 40; i++) {
		for (unsigned j = 0; j < i; j++)
			expect(wf_ctrl.kept[i]->slot != wf_ctrl.kept[j]->slot);
		wf_on(wf_ctrl.loop, answer_kept, wf_ctrl.kept[i]);
	}
	wf_wait_ms(50);
	for (uint16_t i = 0; i < 40; i++)
		expect_int(resp_status(1u + i, i), 0);
	end();
}

TEST(in_capsule_data_that_is_not_taken_holds_the_stream)
{
	uint8_t data[8192];
	struct nv_sqe sqe = write_sqe(1, sizeof(data), true), next = nv_sqe_of(0, 1);

	begin(0);
	kt_noise(data, sizeof(data));
	wf_ctrl.keep = true;
	add_capsule(&plain, &sqe, data, sizeof(data), false);
	next.cid = le16_of(2);
	add_capsule(&plain, &next, NULL, 0, false);
	wf_raw_flush(raw);
	wf_wait_ms(20000);
	expect_int(wf_ctrl.kept_count, 1);
	expect_int(wf_ctrl.kept[0]->inline_bytes, 8192);
	expect(!raw->ended);
	wf_on(wf_ctrl.loop, answer_kept, wf_ctrl.kept[0]);
	wf_wait_ms(20);
	expect_int(wf_ctrl.kept_count, 2);
	expect_int(resp_status(1, 1), 0);
	wf_on(wf_ctrl.loop, answer_kept, wf_ctrl.kept[1]);
	end();
}

TEST(an_owner_may_refuse_a_connection)
{
	struct nv_pdu_icreq icreq = nv_icreq_build(0, 0, 1);

	wf_begin(12, NULL);
	wf_ctrl.close_at_once = true;
	wf_listen();
	raw = wf_raw_make();
	wf_raw_connect(raw);
	wf_raw_put(raw, &icreq, sizeof(icreq));
	wf_wait_ms(1000);
	expect(raw->ended);
	expect_int(wf_ctrl.closed, 0);
	end();
}

static void late_push(void *arg)
{
	struct wf_slot *slot = &wf_ctrl.slot[0];
	struct wire_cmd *cmd = arg;

	slot->iov = (struct iovec){wf_ctrl.store, wf_ctrl.store_bytes};
	wf_ctrl.push_res = 1;
	wire_push(cmd, &slot->iov, 1, 4096, wf_pushed);
	expect_int(wf_ctrl.push_res, 1);
	wf_answer(cmd, NV_OK);
}

TEST(a_command_may_be_worked_on_after_its_connection_has_gone)
{
	struct nv_sqe sqe = nv_sqe_of(2, 1);

	begin(0);
	wf_ctrl.keep = true;
	sqe.cdw10 = le32_of(4096);
	add_capsule(&plain, &sqe, NULL, 0, false);
	wf_raw_flush(raw);
	wf_on(raw->loop, wf_raw_do_close, raw);
	wf_wait_ms(100);
	expect_int(wf_ctrl.closed, 1);
	expect(wf_ctrl.conn == NULL);
	wf_on(wf_ctrl.loop, late_push, wf_ctrl.kept[0]);
	wf_wait_ms(10);
	expect_int(wf_ctrl.push_res, -ECONNRESET);
	end();
}

TEST(data_is_padded_as_the_host_asks)
{
	for (uint8_t hpda = 0; hpda <= 31; hpda += 5) {
		struct nv_pdu_icreq icreq = nv_icreq_build(hpda, 3, 1);
		struct nv_pdu_rules rules = {false, true, true, true, hpda, 0};
		struct nv_sqe sqe = nv_sqe_of(2, 1);
		struct nv_pdu_shape shape;
		struct nv_pdu_fault fault;
		const uint8_t *pdu;
		le32 crc;

		wf_begin(13, NULL);
		wf_ctrl.opts.header_digest = wf_ctrl.opts.data_digest = true;
		wf_listen();
		raw = wf_raw_make();
		wf_raw_connect(raw);
		wf_raw_put(raw, &icreq, sizeof(icreq));
		sqe.cdw10 = le32_of(513);
		sqe.sgl = nv_sgl_transport(513);
		add_capsule(&digests, &sqe, NULL, 0, false);
		wf_raw_flush(raw);
		pdu = (const uint8_t *)wf_raw_pdu(raw, 1);
		expect(nv_pdu_check(&rules, (const struct nv_pdu_head *)pdu, &shape, &fault));
		expect_int(shape.data_bytes, 513);
		memcpy(&crc, pdu + 24, 4);
		expect_int(le32_get(crc), crc32c(pdu, 24));
		expect(bytes_all_zero(pdu + 28, shape.pad_bytes));
		expect_mem(pdu + pdu[3], wf_ctrl.store, 513);
		memcpy(&crc, pdu + pdu[3] + 513, 4);
		expect_int(le32_get(crc), crc32c(wf_ctrl.store, 513));
		end();
	}
}

/* --- to another loop -------------------------------------------------------------------------- */

static struct loop *second;
static unsigned paused_count;
static int paused_res;
static bool drop_at_once;

static void move_paused(struct wire_conn *conn, int res)
{
	expect(conn == wf_ctrl.kept[0]->conn);
	paused_count++;
	paused_res = res;
	if (res != 0)
		wf_answer(wf_ctrl.kept[0], NV_OK);     /* gives it back; nobody hears it */
}

static void move_pulled(struct wire_cmd *cmd, int res)
{
	expect_int(res, 0);
	wire_pause(cmd->conn, move_paused);
	expect_int(paused_count, 0);                   /* never from inside the call */
	if (drop_at_once)
		wire_drop(&wf_ctrl.conn);
}

static void move_pull(void *arg)
{
	struct wire_cmd *cmd = arg;
	struct wf_slot *slot = &wf_ctrl.slot[cmd->slot];

	cmd->owner = &wf_ctrl;
	slot->iov = (struct iovec){wf_ctrl.store, wf_ctrl.store_bytes};
	wire_pull(cmd, &slot->iov, 1, le32_get(cmd->sqe.cdw10), move_pulled);
}

static void move_leave(void *arg)
{
	expect(wire_can_move(wf_ctrl.conn));
	wire_leave(wf_ctrl.conn);
}

static void move_join(void *arg)
{
	wire_join(wf_ctrl.conn, second);
	wf_ctrl.keep = false;
	wf_answer(wf_ctrl.kept[0], NV_OK);
}

static void move_begin(bool in_capsule)
{
	static uint8_t data[1024];
	struct nv_sqe sqe = write_sqe(1, sizeof(data), in_capsule);

	begin(0);
	expect_int(loop_open(&(struct loop_opts){.name = "second"}, &second), 0);
	sim_join(second, wf_ctrl.loop);
	paused_count = 0;
	kt_noise(data, sizeof(data));
	wf_ctrl.keep = true;
	add_capsule(&plain, &sqe, data, in_capsule ? sizeof(data) : 0, false);
	wf_raw_flush(raw);
	expect_int(wf_ctrl.kept_count, 1);
	wf_on(wf_ctrl.loop, move_pull, wf_ctrl.kept[0]);
	if (!in_capsule) {
		struct nv_data_span s = {1, 1, 0, sizeof(data), true};

		wf_wait_ms(1);
		add_h2c(&plain, &s, data, false);
		wf_raw_flush(raw);
	}
	wf_wait_ms(5);
	expect_int(paused_count, 1);
}

TEST(a_connection_goes_on_on_another_loop_with_what_came_meanwhile)
{
	for (unsigned how = 0; how < 2; how++) {
		struct nv_sqe next = nv_sqe_of(0, 1);

		drop_at_once = false;
		move_begin(how == 0);
		expect_int(paused_res, 0);
		next.cid = le16_of(2);
		add_capsule(&plain, &next, NULL, 0, false);
		wf_raw_flush(raw);
		wf_wait_ms(30000);                     /* nothing is read, no timer strikes */
		expect_int(wf_ctrl.commands, 1);
		wf_on(wf_ctrl.loop, move_leave, NULL);
		wf_wait_ms(10);
		wf_on(second, move_join, NULL);
		wf_wait_ms(10);
		expect_int(wf_ctrl.commands, 2);
		expect_int(resp_status(how == 0 ? 1 : 2, 1), 0);
		expect_int(resp_status(how == 0 ? 2 : 3, 2), 0);
		wf_on(raw->loop, wf_raw_do_close, raw);
		wf_wait_ms(20);
		expect_int(wf_ctrl.closed, 1);         /* told on the new loop */
		loop_close(&second);
		end();
	}
}

TEST(a_connection_that_is_dropped_while_it_pauses_tells_so_once)
{
	drop_at_once = true;
	move_begin(true);
	expect_int(paused_res, -ECONNRESET);
	wf_wait_ms(1000);
	expect_int(paused_count, 1);
	loop_close(&second);
	end();
	drop_at_once = false;
}
