/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_fixture.h"

static void begin(void)
{
	wf_begin_mem(300);
	wf_store_size(2 * MiB);
	wf_connect();
}

TEST(values_of_all_sizes_go_there_and_back)
{
	static const uint32_t sizes[] = {0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 8193, 131071,
					 1048577};

	begin();
	for (unsigned i = 0; i < ARRAY_COUNT(sizes); i++) {
		wf_there_and_back(sizes[i], 0);
		wf_there_and_back(sizes[i], 511);
	}
	expect_str(wire_digests(wf_host.conn), "");
	wf_end();
}

TEST(nobody_listening_is_told_by_closed)
{
	wf_begin_mem(301);
	wf_on(wf_host.loop, wf_do_connect, NULL);
	wf_wait_ms(1);
	expect_int(wf_host.closed, 1);
	expect_int(wf_host.closed_why, -ECONNRESET);
	expect_int(wf_host.connected, 0);
	wf_end();
}

TEST(an_address_is_listened_on_once)
{
	struct sock_addr addr = wf_addr();
	struct wire_listener *second = NULL;

	wf_begin_mem(302);
	wf_listen();
	expect_int(wire_listen(wf_ctrl.loop, &addr, &wf_ctrl.opts, &wf_ctrl_events, &wf_ctrl,
			       &second), -EBUSY);
	expect_int(wire_listener_port(wf_ctrl.listener), 4420);
	wf_end();
}

TEST(an_owner_may_refuse_a_connection)
{
	wf_begin_mem(303);
	wf_ctrl.close_at_once = true;
	wf_listen();
	wf_on(wf_host.loop, wf_do_connect, NULL);
	wf_wait_ms(1);
	expect_int(wf_host.connected, 0);
	expect_int(wf_host.closed, 1);
	wf_end();
}

static void withdraw(void *arg)
{
	struct wf_req *r = arg;

	wire_withdraw(wf_host.conn, &r->req);
	expect_int(r->done, 0);
}

static void answer_kept(void *arg)
{
	struct nv_cqe cqe = nv_cqe_of(0, NV_OK);

	(void)arg;
	wire_respond(wf_ctrl.kept[0], &cqe);
}

static void pull_kept(void *arg)
{
	struct wf_slot *slot = &wf_ctrl.slot[0];

	(void)arg;
	slot->iov = (struct iovec){wf_ctrl.store, wf_ctrl.store_bytes};
	wire_pull(wf_ctrl.kept[0], &slot->iov, 1, 4096, wf_pulled);
}

TEST(a_withdrawn_request_comes_back_before_its_answer)
{
	struct wf_req r = wf_req_of(0, 3, NULL, 0);

	begin();
	wf_ctrl.keep = true;
	wf_submit(&r);
	wf_wait_ms(1);
	expect_int(wf_ctrl.kept_count, 1);
	wf_on(wf_host.loop, withdraw, &r);
	wf_wait_ms(1);
	expect_int(r.done, 1);
	expect_int(r.res, -ECANCELED);
	expect(!wire_cid_free(wf_host.conn, 3));
	wf_on(wf_ctrl.loop, answer_kept, NULL);
	wf_wait_ms(1);
	expect(wire_cid_free(wf_host.conn, 3));
	expect_int(r.done, 1);
	wf_end();
}

TEST(data_of_a_withdrawn_write_can_not_be_had)
{
	uint8_t data[4096];
	struct iovec iov = {data, sizeof(data)};
	struct wf_req r = wf_req_of(1, 3, &iov, sizeof(data));

	begin();
	wf_ctrl.keep = true;
	kt_noise(data, sizeof(data));
	wf_submit(&r);
	wf_wait_ms(1);
	wf_on(wf_host.loop, withdraw, &r);
	wf_wait_ms(1);
	memset(wf_ctrl.store, 0, 4096);
	wf_on(wf_ctrl.loop, pull_kept, NULL);
	wf_wait_ms(1);
	expect_int(wf_ctrl.pull_res, -ECONNRESET);
	expect(bytes_all_zero(wf_ctrl.store, 4096));
	expect_int(wf_host.closed, 1);
	wf_end();
}

TEST(either_end_may_close_and_each_request_comes_back_once)
{
	for (int end = 0; end < 2; end++) {
		struct wf_req r[4];

		begin();
		wf_ctrl.keep = true;
		for (uint16_t i = 0; i < 4; i++) {
			r[i] = wf_req_of(0, i, NULL, 0);
			wf_submit(&r[i]);
		}
		wf_wait_ms(1);
		wf_on(wf_host.loop, end == 0 ? wf_do_host_close : wf_do_ctrl_close, NULL);
		wf_wait_ms(1);
		for (unsigned i = 0; i < 4; i++) {
			expect_int(r[i].done, 1);
			expect_int(r[i].res, -ECONNRESET);
		}
		expect_int(wf_ctrl.closed, end == 0);
		expect_int(wf_host.closed, end == 1);
		for (unsigned i = 0; i < 4; i++) {
			wf_ctrl.kept[0] = wf_ctrl.kept[i];
			wf_on(wf_ctrl.loop, answer_kept, NULL);
		}
		wf_end();
	}
}

static void push_kept(void *arg)
{
	struct wf_slot *slot = &wf_ctrl.slot[0];

	(void)arg;
	slot->iov = (struct iovec){wf_ctrl.store, wf_ctrl.store_bytes};
	wire_push(wf_ctrl.kept[0], &slot->iov, 1, 51, wf_pushed);
	wf_answer(wf_ctrl.kept[0], NV_OK);
}

TEST(a_push_larger_than_the_room_ends_the_link)
{
	uint8_t room[100];
	struct iovec iov = {room, 50};
	struct wf_req r = wf_req_of(2, 0, &iov, 50);

	begin();
	kt_noise(room, sizeof(room));
	wf_ctrl.keep = true;
	wf_submit(&r);
	wf_wait_ms(1);
	wf_on(wf_ctrl.loop, push_kept, NULL);
	wf_wait_ms(1);
	expect_int(r.done, 1);
	expect_int(r.res, -EPROTO);
	expect_int(wf_ctrl.push_res, -ECONNRESET);
	wf_end();
}

TEST(more_commands_than_slots_end_the_link)
{
	struct wf_req r[WF_DEPTH];

	wf_begin_mem(304);
	wf_ctrl.opts.depth_max = 4;
	wf_ctrl.keep = true;
	wf_connect();
	for (uint16_t i = 0; i < 5; i++) {
		r[i] = wf_req_of(0, i, NULL, 0);
		wf_submit(&r[i]);
	}
	wf_wait_ms(1);
	expect_int(wf_ctrl.kept_count, 4);
	expect_int(wf_host.closed_why, -EPROTO);
	expect_int(r[4].res, -EPROTO);
	for (unsigned i = 0; i < 4; i++) {
		wf_ctrl.kept[0] = wf_ctrl.kept[i];
		wf_on(wf_ctrl.loop, answer_kept, NULL);
	}
	wf_end();
}

TEST(submitting_without_a_link_is_answered_from_the_loop)
{
	struct wf_req r = wf_req_of(0, 3, NULL, 0);

	wf_begin_mem(305);
	wf_listen();
	wf_on(wf_host.loop, wf_do_connect, NULL);
	wire_submit(wf_host.conn, &r.req);
	expect_int(r.done, 0);
	wf_wait_ms(1);
	expect_int(r.done, 1);
	expect_int(r.res, -ECONNRESET);
	wf_end();
}
