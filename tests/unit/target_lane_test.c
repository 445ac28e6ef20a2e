/* SPDX-License-Identifier: Apache-2.0 */
/* src/target/lane.c: what loops have to do with each other. Most of it shows in the other tests of
 * the target, which run with three loops, too. */
#include "target_fixture.h"

#define QUEUES 6

static uint8_t value[1 << 16];

static unsigned queues_on(struct fix *f, unsigned lane)
{
	unsigned n = 0;

	LIST_FOR_EACH(link, &f->target->lane[lane].queues)
		n += container_of(link, struct queue, link)->qid != 0;
	return n;
}

static void many_open(struct fix *f, struct link *admin, struct link io[QUEUES])
{
	expect_int(admin_open(f, admin, SUBNQN, HOST_A), NV_RAW_OK);
	for (unsigned i = 0; i < QUEUES; i++)
		expect_int(queue_open(f, &io[i], SUBNQN, HOST_A, (uint16_t)(i + 1), admin->cntlid),
			   NV_RAW_OK);
}

TEST(io_queues_are_spread_evenly_and_controllers_stay_on_the_first_loop)
{
	struct link admin, io[QUEUES];
	struct fix f;

	fix_open(&f, NULL, 0);
	many_open(&f, &admin, io);
	for (unsigned i = 0; i < FIX_LOOPS; i++)
		expect_int(queues_on(&f, i), QUEUES / FIX_LOOPS);
	for (unsigned i = 0; i < QUEUES; i++) {
		char key[2] = {(char)('a' + i), 0};

		expect_int(kv_put(&f, &io[i], key, value, 1000 * i, 0), NV_RAW_OK);
		expect_int(kv_get(&f, &io[(i + 1) % QUEUES], key, value, sizeof(value)), NV_RAW_OK);
		expect_int(f.dw0, 1000 * i);
	}
	expect_int(target_counts(f.target)->stores, QUEUES);
	expect_int(target_counts(f.target)->conns, QUEUES + 1);
	for (unsigned i = 0; i < QUEUES; i++)
		link_close(&f, &io[i]);
	for (unsigned i = 0; i < FIX_LOOPS; i++)
		expect_int(f.target->lane[i].queues_given, 0);
	link_close(&f, &admin);
	expect_int(target_counts(f.target)->conns, 0);
	fix_close(&f);
}

TEST(a_lost_admin_queue_takes_the_io_queues_of_every_loop_with_it)
{
	struct link admin, io[QUEUES];
	struct fix f;

	fix_open(&f, NULL, 0);
	many_open(&f, &admin, io);
	link_close(&f, &admin);
	for (unsigned i = 0; i < QUEUES; i++) {
		expect(sim_run_until(link_is_closed, &io[i], PATIENCE_NS));
		link_close(&f, &io[i]);
	}
	expect_int(target_counts(f.target)->conns, 0);
	expect_int(target_counts(f.target)->ctrls, 0);
	expect_int(f.target->ctrls_there, 0);
	fix_close(&f);
}

TEST(a_queue_that_was_lost_on_another_loop_can_be_connected_again)
{
	struct link admin, io[QUEUES];
	struct fix f;

	fix_open(&f, NULL, 0);
	many_open(&f, &admin, io);
	for (unsigned round = 0; round < 20; round++) {
		uint16_t qid = (uint16_t)(round % QUEUES + 1);
		struct link second;

		expect_int(queue_open(&f, &second, SUBNQN, HOST_A, qid, admin.cntlid),
			   nv_status_code(NV_INVALID_QID));
		link_close(&f, &second);
		link_close(&f, &io[qid - 1]);
		expect_int(queue_open(&f, &io[qid - 1], SUBNQN, HOST_A, qid, admin.cntlid),
			   NV_RAW_OK);
		expect_int(kv_put(&f, &io[qid - 1], "key", value, 100, 0), NV_RAW_OK);
	}
	for (unsigned i = 0; i < QUEUES; i++)
		link_close(&f, &io[i]);
	link_close(&f, &admin);
	fix_close(&f);
}

TEST(an_error_on_any_loop_stands_in_the_error_log)
{
	static struct nv_log_error log[TARGET_ERRORS];
	struct link admin, io[QUEUES];
	struct nv_log what = {.lid = NV_LOG_ERROR, .bytes = sizeof(log)};
	struct nv_sqe sqe = nv_log_build(&what);
	struct fix f;

	fix_open(&f, NULL, 0);
	many_open(&f, &admin, io);
	for (unsigned i = 0; i < QUEUES; i++)
		expect_int(kv_one(&f, &io[i], NV_KV_DELETE, "absent"),
			   nv_status_code(NV_KV_KEY_NOT_FOUND));
	kt_noise(log, sizeof(log));
	expect_int(ask_in(&f, &admin, &sqe, log, sizeof(log)), NV_RAW_OK);
	for (unsigned i = 0, seen = 0; i < QUEUES; i++) {
		unsigned qid = le16_get(log[i].sqid);

		expect_int(le64_get(log[i].error_count), QUEUES - i);
		expect(qid >= 1 && qid <= QUEUES && (seen >> qid & 1) == 0);
		seen |= 1u << qid;
	}
	expect(bytes_all_zero(&log[QUEUES], sizeof(log[0])));
	/* many more than the log holds: the number is right, the last ones are there */
	for (unsigned i = 0; i < 50; i++)
		expect_int(kv_one(&f, &io[3], NV_KV_DELETE, "absent"),
			   nv_status_code(NV_KV_KEY_NOT_FOUND));
	expect_int(ask_in(&f, &admin, &sqe, log, sizeof(log)), NV_RAW_OK);
	expect_int(le64_get(log[0].error_count), QUEUES + 50);
	for (unsigned i = 0; i < TARGET_ERRORS; i++)
		expect_int(le16_get(log[i].sqid), 4);
	for (unsigned i = 0; i < QUEUES; i++)
		link_close(&f, &io[i]);
	link_close(&f, &admin);
	fix_close(&f);
}

TEST(an_array_that_stops_drains_every_loop)
{
	static struct ask ask[QUEUES];
	struct link admin, io[QUEUES];
	struct fix f;

	for (unsigned after = 0; after < 200; after += 5) {
		char key[2] = "a";

		fix_open(&f, NULL, 0);
		many_open(&f, &admin, io);
		for (unsigned i = 0; i < QUEUES; i++, key[0]++)
			ask_put(&ask[i], &io[i], key, value, sizeof(value));
		steps(&f, after);
		target_shut(&f);
		for (unsigned i = 0; i < QUEUES; i++) {
			uint16_t status = ask_wait(&f, &ask[i]);

			/* carried out, held back by the drain, or the connection went */
			expect(status == NV_RAW_OK || status == 0xffff ||
			       status == nv_status_code(NV_ABORTED_SQ_DELETED));
			wire_close(&io[i].conn);
		}
		wire_close(&admin.conn);
		settle(&f);
		fix_close(&f);
	}
}

TEST(a_connect_that_meets_the_end_of_its_controller_is_answered_or_cut)
{
	for (unsigned after = 0; after < 60; after++) {
		struct nv_connect in = {.qid = 1, .sq_entries = 32, .hostid = {1, 2, 3}};
		struct nv_connect_data data;
		struct link admin, io;
		struct nv_sqe sqe;
		struct ask a = {.iov = {&data, sizeof(data)}};
		struct fix f;

		fix_open(&f, NULL, 0);
		expect_int(admin_open(&f, &admin, SUBNQN, HOST_A), NV_RAW_OK);
		link_open(&f, &io);
		in.cntlid = admin.cntlid;
		snprintf(in.subnqn, sizeof(in.subnqn), SUBNQN);
		snprintf(in.hostnqn, sizeof(in.hostnqn), HOST_A);
		expect_int(nv_connect_build(&in, &sqe, &data), 0);
		a.req.out = &a.iov;
		a.req.out_count = 1;
		a.req.out_bytes = sizeof(data);
		ask_start(&a, &io, &sqe);
		steps(&f, after);
		wire_close(&admin.conn);
		(void)ask_wait(&f, &a);
		settle(&f);
		link_close(&f, &io);
		expect_int(target_counts(f.target)->conns, 0);
		expect_int(f.target->ctrls_there, 0);
		fix_close(&f);
	}
}
