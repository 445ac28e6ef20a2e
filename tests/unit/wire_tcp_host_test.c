/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile or broken controller against the host's end. Case names: [ABUSE].
 * Around each buffer that is offered lie guard bytes; whatever the controller does, they stay.
 */
#include "wire_fixture.h"

#define GUARD 64u

static struct wf_raw *raw;
static const struct nv_pdu_sizes plain, digests = {true, true, 0};

static uint8_t guarded[2 * GUARD + 65536];
static struct iovec offered;

static void offer(uint32_t bytes)
{
	kt_noise(guarded, sizeof(guarded));
	offered = (struct iovec){guarded + GUARD, bytes};
}

/* Nothing but the offered bytes has changed; of those nothing at or after `from`. */
static void expect_untouched(uint32_t from)
{
	uint8_t want[sizeof(guarded)];

	kt_noise(want, sizeof(want));
	expect_mem(guarded, want, GUARD);
	expect_mem(guarded + GUARD + from, want + GUARD + from, sizeof(want) - GUARD - from);
}

static void begin_icresp(const struct nv_pdu_icresp *icresp, uint8_t digest)
{
	wf_begin(200, NULL);
	wf_host.opts.header_digest = digest & 1;
	wf_host.opts.data_digest = digest & 2;
	raw = wf_raw_make();
	wf_on(wf_ctrl.loop, wf_raw_do_listen, raw);
	wf_on(wf_host.loop, wf_do_connect, NULL);
	expect(sim_run_until(wf_flag, &raw->connected, NS_PER_S));
	wf_wait_ms(20);
	expect_int(raw->got, 128);
	wf_raw_put(raw, icresp, sizeof(*icresp));
}

static void begin(uint8_t digest)
{
	struct nv_pdu_icresp icresp = nv_icresp_build(0, digest, 4096);

	begin_icresp(&icresp, digest);
	expect_int(wf_host.connected, 1);
}

static void end(void)
{
	wf_raw_free(&raw);
	wf_end();
}

static void expect_refused(struct wf_req *r, unsigned pdu, uint16_t fes, uint32_t fei)
{
	wf_raw_expect_term(raw, pdu, fes, fei);
	expect_int(wf_host.closed, 1);
	expect_int(wf_host.closed_why, -EPROTO);
	if (r != NULL) {
		expect_int(r->done, 1);
		expect_int(r->res, -EPROTO);
	}
}

static void add_with_digests(const struct nv_pdu_sizes *sizes, const struct nv_pdu_head *head,
			     const uint8_t *data, uint32_t data_bytes, bool wrong_digest)
{
	le32 crc = le32_of(crc32c(head, head->hlen));
	le32 data_crc = le32_of(crc32c(data, data_bytes) ^ (wrong_digest ? 1 : 0));

	wf_raw_add(raw, head, head->hlen);
	if (sizes->header_digest)
		wf_raw_add(raw, &crc, 4);
	wf_raw_add(raw, data, data_bytes);
	if (sizes->data_digest && data_bytes > 0)
		wf_raw_add(raw, &data_crc, 4);
}

static uint8_t noise[70000];

static void c2h(const struct nv_pdu_sizes *sizes, struct nv_data_span s, uint8_t flags, bool wrong)
{
	struct nv_pdu_data pdu = nv_c2h_data_build(sizes, &s);

	pdu.head.flags |= flags;
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (uint8_t)(i * 7 + 1);
	add_with_digests(sizes, &pdu.head, noise + s.offset, s.bytes, wrong);
	wf_raw_flush(raw);
}

static void resp(const struct nv_pdu_sizes *sizes, uint16_t cid, nv_status status)
{
	struct nv_cqe cqe = nv_cqe_of(cid, status);
	struct nv_pdu_resp pdu = nv_resp_build(sizes, &cqe);

	add_with_digests(sizes, &pdu.head, NULL, 0, false);
	wf_raw_flush(raw);
}

static void r2t(struct nv_data_span s)
{
	struct nv_pdu_r2t pdu = nv_r2t_build(&plain, &s);

	add_with_digests(&plain, &pdu.head, NULL, 0, false);
	wf_raw_flush(raw);
}

static struct wf_req read_of(uint32_t bytes)
{
	struct wf_req r;

	offer(bytes);
	r = wf_req_of(2, 3, &offered, bytes);
	return r;
}

static struct wf_req write_of(uint32_t bytes)
{
	struct wf_req r;

	offer(bytes);
	r = wf_req_of(1, 3, &offered, bytes);
	return r;
}

TEST(a_wrong_icresp_fails_the_attach_with_the_field)
{
	static const struct {
		uint8_t offset, value;
		uint32_t fei;
	} rows[] = {                                                    /* I01 */
		{2, 0x7f, 2}, {4, 0x81, 4}, {8, 1, 8}, {10, 32, 10}, {11, 4, 11}, {11, 1, 11},
		{12, 1, 12}, {13, 0x0f, 12}, {13, 0, 12},
	};

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		struct nv_pdu_icresp icresp = nv_icresp_build(0, 0, 4096);

		((uint8_t *)&icresp)[rows[i].offset] = rows[i].value;
		begin_icresp(&icresp, 0);
		expect_refused(NULL, 1, 1, rows[i].fei);
		expect_int(wf_host.connected, 0);
		end();
	}
}

TEST(a_controller_without_digests_is_taken_and_named)
{
	struct nv_pdu_icresp icresp = nv_icresp_build(0, 1, 4096);

	begin_icresp(&icresp, 3);
	expect_int(wf_host.connected, 1);
	expect_str(wire_digests(wf_host.conn), "hdgst");
	end();
}

TEST(a_controller_that_never_answers_is_given_up_at_the_deadline)
{
	wf_begin(201, NULL);
	raw = wf_raw_make();
	wf_on(wf_ctrl.loop, wf_raw_do_listen, raw);
	wf_on(wf_host.loop, wf_do_connect, NULL);
	wf_wait_ms(4900);
	expect_int(wf_host.closed, 0);
	wf_wait_ms(200);
	expect_int(wf_host.closed, 1);
	expect_int(wf_host.closed_why, -ETIMEDOUT);
	end();
}

TEST(nobody_listening_is_told_by_closed)
{
	wf_begin(202, NULL);
	wf_on(wf_host.loop, wf_do_connect, NULL);
	wf_wait_ms(6000);
	expect_int(wf_host.closed, 1);
	expect_int(wf_host.connected, 0);
	wf_end();
}

TEST(closing_while_dialling_is_quiet)
{
	wf_begin(203, NULL);
	wf_listen();
	wf_on(wf_host.loop, wf_do_connect, NULL);
	wf_on(wf_host.loop, wf_do_host_close, NULL);
	wf_wait_ms(6000);
	expect_int(wf_host.closed, 0);
	expect_int(wf_host.connected, 0);
	wf_end();
}

TEST(r2t_for_a_read_or_an_unknown_command_gets_no_byte)
{
	struct wf_req r = read_of(4096);

	begin(0);                                                       /* I02 */
	wf_submit(&r);
	wf_wait_ms(10);
	r2t((struct nv_data_span){3, 9, 0, 4096, false});
	expect_refused(&r, 2, 1, 8);
	expect_int(raw->got, 128 + 72 + 24 + 24);
	end();
	begin(0);
	r2t((struct nv_data_span){4, 9, 0, 4096, false});
	expect_refused(NULL, 1, 1, 8);
	end();
	r = write_of(1000);
	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	r2t((struct nv_data_span){3, 9, 0, 1000, false});       /* data was in the capsule */
	expect_refused(&r, 2, 1, 8);
	end();
}

TEST(r2t_beyond_what_was_offered_gets_no_byte)
{
	static const struct nv_data_span rows[] = {
		{3, 9, 0, 65537, false}, {3, 9, 65536, 1, false}, {3, 9, 0, 0xffffffff, false},
		{3, 9, 0xffffffff, 2, false},
	};

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		struct wf_req r = write_of(65536);

		begin(0);
		wf_submit(&r);
		wf_wait_ms(10);
		r2t(rows[i]);
		expect_refused(&r, 2, 4, 0);
		expect_int(raw->got, 128 + 72 + 24 + 24);
		end();
	}
}

TEST(r2t_is_answered_in_pieces_of_maxh2cdata_and_in_order)
{
	struct wf_req r = write_of(65536);
	uint32_t at = 0;

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	r2t((struct nv_data_span){3, 9, 0, 10000, false});
	r2t((struct nv_data_span){3, 7, 10000, 55536, false});
	wf_wait_ms(100);
	for (unsigned n = 2; at < 65536; n++) {
		const struct nv_pdu_head *head = wf_raw_pdu(raw, n);
		struct nv_pdu_data pdu;
		uint32_t bytes, end_at = at < 10000 ? 10000 : 65536;

		expect(head != NULL);
		memcpy(&pdu, head, sizeof(pdu));
		bytes = le32_get(pdu.datal);
		expect_int(head->type, NV_PDU_H2C_DATA);
		expect_int(le16_get(pdu.ttag), at < 10000 ? 9 : 7);
		expect_int(le32_get(pdu.datao), at);
		expect(bytes <= 4096 && bytes > 0);
		expect_int((head->flags & NV_PDU_LAST) != 0, at + bytes == end_at);
		expect_mem((const uint8_t *)head + head->pdo, guarded + GUARD + at, bytes);
		at += bytes;
	}
	expect_int(at, 65536);
	expect_int(r.done, 0);
	resp(&plain, 3, NV_OK);
	expect_int(r.done, 1);
	expect_int(r.res, 0);
	end();
}

TEST(r2t_again_for_the_same_bytes_is_refused)
{
	struct wf_req r = write_of(65536);

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	r2t((struct nv_data_span){3, 9, 0, 65536, false});
	wf_wait_ms(100);
	r2t((struct nv_data_span){3, 9, 0, 65536, false});
	wf_wait_ms(900);
	expect_int(wf_host.closed_why, -EPROTO);
	expect_int(r.res, -EPROTO);
	expect_int(r.done, 1);
	end();
}

TEST(data_for_a_command_that_reads_nothing_lands_nowhere)
{
	struct wf_req r = write_of(65536), flush = wf_req_of(0, 5, NULL, 0);

	begin(0);                                                       /* I04 */
	wf_submit(&r);
	wf_wait_ms(10);
	c2h(&plain, (struct nv_data_span){3, 0, 0, 4096, true}, 0, false);
	expect_refused(&r, 2, 1, 8);
	expect_untouched(0);
	end();
	begin(0);
	wf_submit(&flush);
	wf_wait_ms(10);
	c2h(&plain, (struct nv_data_span){5, 0, 0, 512, true}, 0, false);
	expect_refused(&flush, 2, 1, 8);
	end();
	begin(0);
	c2h(&plain, (struct nv_data_span){7, 0, 0, 512, true}, 0, false);
	expect_refused(NULL, 1, 1, 8);
	end();
}

TEST(data_past_the_buffer_with_a_gap_or_twice_lands_nowhere)
{
	static const struct {
		struct nv_data_span s;
		uint16_t fes;
	} rows[] = {                                                    /* I05 */
		{{3, 0, 4096, 1, false}, 4}, {{3, 0, 0, 4097, false}, 4},
		{{3, 0, 1, 100, false}, 2}, {{3, 0, 4095, 2, false}, 4},
		{{3, 0, 0xffff0000, 0x1000, false}, 4},
	};
	struct wf_req r;

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		struct nv_data_span s = rows[i].s;
		struct nv_pdu_data pdu = nv_c2h_data_build(&plain, &s);

		r = read_of(4096);
		begin(0);
		wf_submit(&r);
		wf_wait_ms(10);
		wf_raw_add(raw, &pdu, sizeof(pdu));
		wf_raw_put(raw, noise, s.bytes);
		expect_refused(&r, 2, rows[i].fes, 0);
		expect_untouched(0);
		end();
	}
	r = read_of(4096);
	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	c2h(&plain, (struct nv_data_span){3, 0, 0, 2048, false}, 0, false);
	c2h(&plain, (struct nv_data_span){3, 0, 1024, 1024, false}, 0, false);
	expect_refused(&r, 2, 2, 0);
	expect_untouched(2048);
	end();
}

TEST(data_whose_lengths_disagree_lands_nowhere)
{
	static const struct {
		uint8_t offset, value;
		uint32_t fei;
	} rows[] = {
		{2, 255, 2}, {3, 28, 3}, {4, 25, 16}, {16, 1, 16}, {17, 0, 16}, {1, 8, 1},
		{1, 1, 1},
	};

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		struct nv_data_span s = {3, 0, 0, 4096, false};
		struct nv_pdu_data pdu = nv_c2h_data_build(&plain, &s);
		struct wf_req r = read_of(4096);

		begin(0);
		wf_submit(&r);
		wf_wait_ms(10);
		((uint8_t *)&pdu)[rows[i].offset] = rows[i].value;
		wf_raw_add(raw, &pdu, sizeof(pdu));
		wf_raw_put(raw, noise, 4096);
		expect_refused(&r, 2, 1, rows[i].fei);
		expect_untouched(0);
		end();
	}
}

TEST(a_short_read_is_told_with_its_length)
{
	struct wf_req r = read_of(4096);

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	c2h(&plain, (struct nv_data_span){3, 0, 0, 1000, true}, 0, false);
	expect_int(r.done, 0);
	resp(&plain, 3, NV_OK);
	expect_int(r.done, 1);
	expect_int(r.res, 0);
	expect_int(r.req.in_bytes_got, 1000);
	expect_mem(guarded + GUARD, noise, 1000);
	expect_untouched(1000);
	end();
}

TEST(success_ends_a_whole_read_and_no_answer_may_follow)
{
	struct wf_req r = read_of(4096), cut = read_of(4096);

	begin(0);                                                       /* I06 */
	wf_submit(&r);
	wf_wait_ms(10);
	c2h(&plain, (struct nv_data_span){3, 0, 0, 4096, true}, NV_PDU_SUCCESS, false);
	expect_int(r.done, 1);
	expect_int(r.res, 0);
	expect(nv_status_ok(nv_cqe_status(&r.req.cqe)));
	resp(&plain, 3, NV_OK);
	expect_refused(NULL, 2, 2, 0);
	expect_int(r.done, 1);
	end();
	begin(0);
	wf_submit(&cut);
	wf_wait_ms(10);
	c2h(&plain, (struct nv_data_span){3, 0, 0, 1000, true}, NV_PDU_SUCCESS, false);
	expect_refused(&cut, 2, 1, 1);
	end();
}

TEST(data_after_the_last_data_is_refused)
{
	struct wf_req r = read_of(4096);

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	c2h(&plain, (struct nv_data_span){3, 0, 0, 1000, true}, 0, false);
	c2h(&plain, (struct nv_data_span){3, 0, 1000, 1000, true}, 0, false);
	expect_refused(&r, 2, 2, 0);
	expect_untouched(1000);
	end();
}

TEST(an_answer_to_nothing_or_twice_ends_the_connection)
{
	struct wf_req r = wf_req_of(0, 3, NULL, 0);

	begin(0);                                                       /* I08 */
	resp(&plain, 3, NV_OK);
	expect_refused(NULL, 1, 2, 0);
	end();
	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	resp(&plain, 3, NV_OK);
	expect_int(r.done, 1);
	resp(&plain, 3, NV_OK);
	expect_refused(NULL, 2, 2, 0);
	expect_int(r.done, 1);
	end();
	begin(0);
	resp(&plain, 0xffff, NV_OK);
	expect_refused(NULL, 1, 2, 0);
	end();
}

/* A write is half in the socket, a second command is still queued, and gets an answer. */
TEST(an_answer_to_a_command_not_sent_yet_is_refused_and_framing_is_kept)
{
	static uint8_t big[1500000];    /* more than one send takes */
	struct iovec iov = {big, sizeof(big)};
	struct nv_pdu_icresp icresp = nv_icresp_build(0, 0, 4 * (uint32_t)MiB);
	struct wf_req r = wf_req_of(1, 3, &iov, sizeof(big)), next = wf_req_of(0, 4, NULL, 0);
	const struct nv_pdu_head *data;

	kt_noise(big, sizeof(big));
	begin_icresp(&icresp, 0);
	wf_submit(&r);
	wf_wait_ms(10);
	raw->deaf = true;
	r2t((struct nv_data_span){3, 9, 0, sizeof(big), false});
	wf_submit(&next);
	resp(&plain, 4, NV_OK);
	expect_int(next.done, 0);
	wf_on(raw->loop, wf_raw_do_hear, raw);
	expect_refused(&r, 3, 2, 0);
	data = wf_raw_pdu(raw, 2);
	expect_int(data->type, NV_PDU_H2C_DATA);
	expect_mem((const uint8_t *)data + data->pdo, big, sizeof(big));
	expect_int(next.done, 1);
	expect_int(next.res, -EPROTO);
	end();
}

TEST(a_bad_data_digest_gives_no_bytes_up_and_the_connection_lives)
{
	struct wf_req r = read_of(8192), again;

	begin(3);                                                       /* I09 */
	wf_submit(&r);
	wf_wait_ms(10);
	c2h(&digests, (struct nv_data_span){3, 0, 0, 4096, false}, 0, true);
	c2h(&digests, (struct nv_data_span){3, 0, 4096, 4096, true}, 0, false);
	resp(&digests, 3, NV_OK);
	expect_int(r.done, 1);
	expect_int(r.res, -EBADMSG);
	again = read_of(8192);
	wf_submit(&again);
	wf_wait_ms(10);
	c2h(&digests, (struct nv_data_span){3, 0, 0, 8192, true}, 0, false);
	resp(&digests, 3, NV_OK);
	expect_int(again.res, 0);
	expect_mem(guarded + GUARD, noise, 8192);
	end();
}

TEST(a_bad_header_digest_ends_the_connection)
{
	struct wf_req r = wf_req_of(0, 3, NULL, 0);
	struct nv_cqe cqe = nv_cqe_of(3, NV_OK);
	struct nv_pdu_resp pdu = nv_resp_build(&digests, &cqe);
	le32 crc = le32_of(crc32c(&pdu, sizeof(pdu)) ^ 0x80);

	begin(3);                                                       /* I10 */
	wf_submit(&r);
	wf_wait_ms(10);
	wf_raw_add(raw, &pdu, sizeof(pdu));
	wf_raw_put(raw, &crc, 4);
	expect_refused(&r, 2, 3, le32_get(crc));
	end();
}

TEST(a_termreq_of_the_controller_ends_the_connection)
{
	struct wf_req r = wf_req_of(0, 3, NULL, 0);
	struct nv_pdu_fault fault = {1, 2, false, "x"};
	struct nv_wrong none = {"", 0};
	uint8_t pdu[NV_PDU_TERMREQ_MAX];
	size_t bytes = nv_termreq_build(NV_PDU_C2H_TERMREQ, &fault, &none, pdu);

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	wf_raw_put(raw, pdu, bytes);
	wf_wait_ms(10);
	expect_int(r.done, 1);
	expect_int(r.res, -EPROTO);
	expect_int(wf_host.closed, 1);
	end();
}

TEST(sqhd_out_of_range_is_of_no_account)
{
	struct wf_req r = wf_req_of(0, 3, NULL, 0);
	struct nv_cqe cqe = nv_cqe_of(3, NV_OK);
	struct nv_pdu_resp pdu;

	begin(0);                                                       /* I14 */
	wf_submit(&r);
	wf_wait_ms(10);
	cqe.sqhd = le16_of(0xffff);
	pdu = nv_resp_build(&plain, &cqe);
	wf_raw_put(raw, &pdu, sizeof(pdu));
	expect_int(r.res, 0);
	expect_int(r.done, 1);
	end();
}

TEST(a_connection_lost_gives_each_request_back_once)
{
	struct wf_req r[WF_DEPTH];

	begin(0);
	for (uint16_t i = 0; i < WF_DEPTH; i++) {
		r[i] = wf_req_of(0, i, NULL, 0);
		wf_submit(&r[i]);
	}
	wf_on(raw->loop, wf_raw_do_close, raw);
	wf_wait_ms(50);
	for (unsigned i = 0; i < WF_DEPTH; i++) {
		expect_int(r[i].done, 1);
		expect_int(r[i].res, -ECONNRESET);
	}
	expect_int(wf_host.closed, 1);
	end();
}

/* --- withdrawing ------------------------------------------------------------------------------ */

static void withdraw(void *arg)
{
	struct wf_req *r = arg;

	wire_withdraw(wf_host.conn, &r->req);
	expect_int(r->done, 0);       /* never from within the call */
}

TEST(a_withdrawn_read_comes_back_and_its_late_data_lands_nowhere)
{
	struct wf_req r = read_of(4096);

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	wf_on(wf_host.loop, withdraw, &r);
	wf_wait_ms(1);
	expect_int(r.done, 1);
	expect_int(r.res, -ECANCELED);
	expect(!wire_cid_free(wf_host.conn, 3));
	c2h(&plain, (struct nv_data_span){3, 0, 0, 4096, true}, 0, false);
	expect_untouched(0);
	expect(!wire_cid_free(wf_host.conn, 3));
	resp(&plain, 3, NV_OK);
	expect(wire_cid_free(wf_host.conn, 3));
	expect_int(r.done, 1);
	expect_int(wf_host.closed, 0);
	end();
}

TEST(a_read_withdrawn_in_the_middle_of_its_data_drops_the_rest)
{
	struct nv_data_span s = {3, 0, 0, 60000, true};
	struct nv_pdu_data pdu = nv_c2h_data_build(&plain, &s);
	struct wf_req r = read_of(60000), next;

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	wf_raw_add(raw, &pdu, sizeof(pdu));
	wf_raw_put(raw, noise, 30000);
	wf_on(wf_host.loop, withdraw, &r);
	wf_wait_ms(10);
	expect_int(r.done, 0);        /* the socket still writes there */
	wf_raw_put(raw, noise, 30000);
	expect_int(r.done, 1);
	expect_int(r.res, -ECANCELED);
	resp(&plain, 3, NV_OK);
	next = wf_req_of(0, 3, NULL, 0);
	wf_submit(&next);
	wf_wait_ms(10);
	resp(&plain, 3, NV_OK);
	expect_int(next.res, 0);
	expect_int(next.done, 1);
	end();
}

TEST(a_controller_that_stops_in_the_middle_of_data_cannot_keep_a_withdrawn_buffer)
{
	struct nv_data_span s = {3, 0, 0, 60000, true};
	struct nv_pdu_data pdu = nv_c2h_data_build(&plain, &s);
	struct wf_req r = read_of(60000);

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	wf_raw_add(raw, &pdu, sizeof(pdu));
	wf_raw_put(raw, noise, 30000);
	wf_on(wf_host.loop, withdraw, &r);
	wf_wait_ms(300);
	expect_int(r.done, 1);
	expect_int(r.res, -ECANCELED);
	expect_int(wf_host.closed, 1);
	kt_noise(guarded, sizeof(guarded));
	wf_raw_put(raw, noise, 30000);
	expect_untouched(0);
	end();
}

TEST(a_withdrawn_write_that_is_asked_for_soon_is_sent_and_costs_nobody_the_connection)
{
	struct wf_req r = write_of(65536), next;

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	wf_on(wf_host.loop, withdraw, &r);
	wf_wait_ms(1);
	expect_int(r.done, 0);
	r2t((struct nv_data_span){3, 9, 0, 65536, false});
	wf_wait_ms(10);
	expect(raw->got > 128 + 72 + 65536);
	expect_int(r.done, 1);
	expect_int(r.res, -ECANCELED);
	resp(&plain, 3, NV_OK);
	next = wf_req_of(0, 3, NULL, 0);
	wf_submit(&next);
	wf_wait_ms(10);
	resp(&plain, 3, NV_OK);
	expect_int(next.done, 1);
	wf_wait_ms(400);
	expect_int(wf_host.closed, 0);
	end();
}

TEST(a_withdrawn_write_that_nobody_asks_for_in_time_is_given_back_and_sends_nothing_more)
{
	struct wf_req r = write_of(65536);

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	wf_on(wf_host.loop, withdraw, &r);
	wf_wait_ms(300);
	expect_int(r.done, 1);
	expect_int(r.res, -ECANCELED);
	expect_int(wf_host.closed, 0);
	r2t((struct nv_data_span){3, 9, 0, 65536, false});
	wf_wait_ms(10);
	expect_int(raw->got, 128 + 72);
	expect_int(wf_host.closed, 1);
	expect_int(wf_host.closed_why, -ECONNRESET);
	end();
}

TEST(withdrawing_twice_or_after_the_answer_does_nothing)
{
	struct wf_req r = wf_req_of(0, 3, NULL, 0);

	begin(0);
	wf_submit(&r);
	wf_wait_ms(10);
	wf_on(wf_host.loop, withdraw, &r);
	wf_wait_ms(1);
	expect_int(r.done, 1);
	wire_withdraw(wf_host.conn, &r.req);
	wf_wait_ms(10);
	expect_int(r.done, 1);
	resp(&plain, 3, NV_OK);
	wf_wait_ms(400);
	expect_int(wf_host.closed, 0);
	end();
}

TEST(submitting_without_a_connection_is_answered_from_the_loop)
{
	struct wf_req r = wf_req_of(0, 3, NULL, 0);

	wf_begin(204, NULL);
	wf_listen();
	wf_on(wf_host.loop, wf_do_connect, NULL);
	wire_submit(wf_host.conn, &r.req);
	expect_int(r.done, 0);
	wf_wait_ms(1);
	expect_int(r.done, 1);
	expect_int(r.res, -ECONNRESET);
	wf_end();
}
