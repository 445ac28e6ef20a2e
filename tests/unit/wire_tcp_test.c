/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_fixture.h"

TEST(host_and_controller_shake_hands)
{
	wf_begin(1, NULL);
	wf_connect();
	expect_int(wf_host.connected, 1);
	expect_int(wf_ctrl.accepted, 1);
	expect_str(wire_digests(wf_host.conn), "");
	wf_end();
}

TEST(a_command_without_data_is_answered)
{
	struct wf_req r = wf_req_of(0, 3, NULL, 0);

	wf_begin(2, NULL);
	wf_connect();
	wf_run(&r);
	expect_int(r.res, 0);
	expect(nv_status_ok(nv_cqe_status(&r.req.cqe)));
	expect_int(le16_get(r.req.cqe.cid), 3);
	expect(wire_cid_free(wf_host.conn, 3));
	wf_end();
}

TEST(values_of_all_sizes_go_there_and_back_with_and_without_digests)
{
	static const uint32_t sizes[] = {0, 1, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193,
					 131071, 1048577};
	static const uint32_t offsets[] = {0, 1, 511};

	for (unsigned bits = 0; bits < 4; bits++) {
		wf_begin(10 + bits, NULL);
		wf_store_size(2 * MiB);
		wf_ctrl.opts.header_digest = wf_host.opts.header_digest = bits & 1;
		wf_ctrl.opts.data_digest = wf_host.opts.data_digest = bits & 2;
		wf_connect();
		for (unsigned i = 0; i < ARRAY_COUNT(sizes); i++)
			for (unsigned j = 0; j < ARRAY_COUNT(offsets); j++)
				wf_there_and_back(sizes[i], offsets[j]);
		wf_end();
	}
}

TEST(the_largest_values_go_there_and_back)
{
	for (unsigned bits = 0; bits < 4; bits += 3) {
		wf_begin(20 + bits, NULL);
		wf_store_size(64 * MiB);
		wf_ctrl.opts.header_digest = wf_host.opts.header_digest = bits & 1;
		wf_ctrl.opts.data_digest = wf_host.opts.data_digest = bits & 2;
		wf_ctrl.opts.h2c_bytes_max = (uint32_t)MiB;
		wf_connect();
		wf_there_and_back(8 * MiB, 511);
		wf_there_and_back(64 * MiB, 1);
		wf_end();
	}
}

/* A host that stops reading: the link is cut while 8 MiB are on their way to it. */
TEST(a_peer_that_takes_no_bytes_is_dropped_and_buffers_come_back)
{
	static uint8_t room[8 * MiB];
	struct iovec iov = {room, sizeof(room)};
	struct wf_req r = wf_req_of(2, 0, &iov, sizeof(room));

	wf_begin(31, NULL);
	wf_store_size(sizeof(room));
	wf_connect();
	wf_ctrl.push_res = 1;
	wf_submit(&r);
	wf_wait_ms(1);
	sim_link_cut(wf_ctrl.loop, wf_host.loop, true);
	wf_wait_ms(9000);
	expect_int(wf_ctrl.push_res, 1);
	expect_int(wf_ctrl.closed, 0);
	wf_wait_ms(2000);
	expect_int(wf_ctrl.push_res, -ECONNRESET);
	expect_int(wf_ctrl.closed_why, -ETIMEDOUT);
	sim_link_cut(wf_ctrl.loop, wf_host.loop, false);
	wf_wait_ms(1000);
	expect_int(r.done, 1);
	expect_int(r.res, -ECONNRESET);
	wf_end();
}

static void close_after_answer(void *arg)
{
	struct nv_cqe cqe = nv_cqe_of(0, NV_CONNECT_INVALID);

	(void)arg;
	for (unsigned i = 0; i < wf_ctrl.kept_count; i++)
		wire_respond(wf_ctrl.kept[i], &cqe);
	wire_close(&wf_ctrl.conn);
}

TEST(answers_given_right_before_the_close_arrive)
{
	struct wf_req r[4];

	wf_begin(32, NULL);
	wf_ctrl.keep = true;
	wf_connect();
	for (uint16_t i = 0; i < 4; i++) {
		r[i] = wf_req_of(0, i, NULL, 0);
		wf_submit(&r[i]);
	}
	wf_wait_ms(1);
	expect_int(wf_ctrl.kept_count, 4);
	wf_on(wf_ctrl.loop, close_after_answer, NULL);
	wf_wait_ms(20);
	for (unsigned i = 0; i < 4; i++) {
		expect_int(r[i].res, 0);
		expect(nv_status_is(nv_cqe_status(&r[i].req.cqe), NV_CONNECT_INVALID));
	}
	expect_int(wf_host.closed, 1);
	wf_end();
}
