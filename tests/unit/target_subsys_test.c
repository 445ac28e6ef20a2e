/* SPDX-License-Identifier: Apache-2.0 */
/* Subsystems and namespaces that come and go while the array serves. Simulated. */
#include <errno.h>

#include "target_fixture.h"

#define OTHER_NQN "nqn.2026-11.io.kvof:other"
#define EVENTS_ON (NV_ASYNC_NAMESPACE | 4)

static uint8_t page[4096];
static uint8_t large[1 << 20];

static uint16_t changed_log(struct fix *f, struct link *l, bool retain)
{
	struct nv_log what = {
		.lid = NV_LOG_CHANGED_NAMESPACES, .bytes = 4096, .retain_event = retain};
	struct nv_sqe sqe = nv_log_build(&what);

	kt_noise(page, sizeof(page));
	return ask_in(f, l, &sqe, page, sizeof(page));
}

static uint32_t changed(unsigned i)
{
	return le32_get(((struct nv_log_changed *)page)->nsid[i]);
}

static void event_ask(struct ask *a, struct link *l)
{
	struct nv_sqe sqe = nv_sqe_of(NV_ADMIN_ASYNC_EVENT, 0);

	*a = (struct ask){0};
	ask_start(a, l, &sqe);
}

static int ns_add(struct fix *f, const char *nqn, uint32_t nsid)
{
	struct target_ns_opts opts = {
		.nsid = nsid, .space = f->space, .evicts = true};
	char why[256] = "";
	bool known = false;
	int rc = target_ns_add(f->target, nqn, &opts, why, set_flag, &known);

	expect(rc != 0 || sim_run_until(flag_is_set, &known, NS_PER_S));
	return rc;
}

static uint16_t exists_in(struct fix *f, struct link *l, uint32_t nsid)
{
	struct nv_sqe sqe = kv_sqe(NV_KV_EXIST, "key", 0, 0);

	sqe.nsid = le32_of(nsid);
	return ask_raw(f, l, &sqe);
}

TEST(a_namespace_that_comes_is_told_once_and_listed_until_the_list_is_read)
{
	struct ask event, second;
	struct fix f;
	struct lk h;

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(feature_to(&f, &h.admin, NV_FEAT_ASYNC_EVENTS, 0, EVENTS_ON), NV_RAW_OK);
	event_ask(&event, &h.admin);
	event_ask(&second, &h.admin);
	settle(&f);
	expect(!event.over);
	expect_int(exists_in(&f, &h.io, 5), nv_status_code(NV_INVALID_NAMESPACE));
	expect_int(ns_add(&f, SUBNQN, 5), 0);
	expect_int(ns_add(&f, SUBNQN, 7), 0);
	settle(&f);
	expect(event.over != second.over);             /* one event, until the log has been read */
	expect_int(ask_wait(&f, event.over ? &event : &second), NV_RAW_OK);
	expect_int(f.dw0, NV_EVENT_NAMESPACE_CHANGED);
	expect_int(exists_in(&f, &h.io, 5), nv_status_code(NV_KV_KEY_NOT_FOUND));
	expect_int(changed_log(&f, &h.admin, true), NV_RAW_OK);
	expect(changed(0) == 5 && changed(1) == 7 && changed(2) == 0);
	settle(&f);
	expect(event.over != second.over);
	expect_int(changed_log(&f, &h.admin, false), NV_RAW_OK);
	expect(changed(0) == 5 && changed(1) == 7 && changed(2) == 0);
	expect_int(changed_log(&f, &h.admin, false), NV_RAW_OK);
	expect_int(changed(0), 0);
	expect_int(ns_add(&f, SUBNQN, 9), 0);
	settle(&f);
	expect(event.over && second.over);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(a_host_that_did_not_ask_is_told_nothing_and_finds_the_list_all_the_same)
{
	struct ask event;
	struct fix f;
	struct lk h;

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	event_ask(&event, &h.admin);
	expect_int(ns_add(&f, SUBNQN, 64), 0);
	settle(&f);
	expect(!event.over);
	expect_int(changed_log(&f, &h.admin, false), NV_RAW_OK);
	expect(changed(0) == 64 && changed(1) == 0);
	lk_close(&f, &h);
	expect(event.over);
	fix_close(&f);
}

TEST(an_event_that_comes_while_the_first_is_unread_is_told_by_the_log_and_the_next_by_an_event)
{
	struct ask one, two;
	struct fix f;
	struct lk h;

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(feature_to(&f, &h.admin, NV_FEAT_ASYNC_EVENTS, 0, EVENTS_ON), NV_RAW_OK);
	expect_int(ns_add(&f, SUBNQN, 2), 0);          /* before there is a request for it */
	event_ask(&one, &h.admin);
	expect_int(ask_wait(&f, &one), NV_RAW_OK);
	event_ask(&two, &h.admin);
	expect_int(ns_add(&f, SUBNQN, 3), 0);
	settle(&f);
	expect(!two.over);
	expect_int(changed_log(&f, &h.admin, false), NV_RAW_OK);
	expect(changed(0) == 2 && changed(1) == 3 && changed(2) == 0);
	settle(&f);
	expect(!two.over);
	expect_int(ns_add(&f, SUBNQN, 4), 0);
	expect_int(ask_wait(&f, &two), NV_RAW_OK);
	expect_int(f.dw0, NV_EVENT_NAMESPACE_CHANGED);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(a_namespace_that_goes_answers_0bh_and_is_left_when_its_work_has_ended)
{
	struct fix f;
	struct lk h;
	bool left = false;

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(ns_add(&f, SUBNQN, 2), 0);
	expect_int(target_ns_remove(f.target, SUBNQN, 3, set_flag, &left), -ENOENT);
	expect_int(target_ns_remove(f.target, OTHER_NQN, 2, set_flag, &left), -ENOENT);
	expect_int(target_ns_remove(f.target, SUBNQN, 2, set_flag, &left), 0);
	expect(!left);
	expect(sim_run_until(flag_is_set, &left, PATIENCE_NS));
	expect_int(exists_in(&f, &h.io, 2), nv_status_code(NV_INVALID_NAMESPACE));
	expect_int(target_ns_remove(f.target, SUBNQN, 2, set_flag, &left), -ENOENT);
	expect_int(changed_log(&f, &h.admin, false), NV_RAW_OK);
	expect(changed(0) == 2 && changed(1) == 0);
	lk_close(&f, &h);
	fix_close(&f);
}

/* Many large Stores and Retrieves: some wait for the host, some for their share, some for
 * drives. */
TEST(commands_at_work_end_when_their_namespace_goes_whenever_that_is)
{
	enum { COUNT = 24 };
	static struct ask ask[COUNT];
	static uint8_t into[COUNT / 2][1 << 18];

	for (unsigned after = 0; after < 600; after += 7) {
		struct fix f;
		struct lk h;
		bool left = false;

		fix_open(&f, NULL, 0);
		lk_open(&f, &h, HOST_A);
		expect_int(kv_put(&f, &h.io, "there", large, sizeof(into[0]), 0), NV_RAW_OK);
		for (unsigned i = 0; i < COUNT; i++) {
			struct nv_sqe get = kv_sqe(NV_KV_RETRIEVE, "there", sizeof(into[0]), 0);

			if (i % 2 == 0) {
				ask_put(&ask[i], &h.io, i % 4 == 0 ? "a" : "b", large,
					i % 4 == 0 ? sizeof(large) : 4096);
				continue;
			}
			ask[i] = (struct ask){.iov = {into[i / 2], sizeof(into[0])}};
			ask[i].req.in = &ask[i].iov;
			ask[i].req.in_count = 1;
			ask[i].req.in_bytes = sizeof(into[0]);
			ask_start(&ask[i], &h.io, &get);
		}
		steps(&f, after);
		expect_int(target_ns_remove(f.target, SUBNQN, 1, set_flag, &left), 0);
		expect(sim_run_until(flag_is_set, &left, NS_PER_S));
		for (unsigned i = 0; i < COUNT; i++) {
			uint16_t status = ask_wait(&f, &ask[i]);

			expect(status == NV_RAW_OK ||
			       status == nv_status_code(NV_INVALID_NAMESPACE));
		}
		expect_int(target_counts(f.target)->busy, 0);
		expect_int(ns_add(&f, SUBNQN, 1), 0);
		expect_int(kv_put(&f, &h.io, "again", large, sizeof(large), 0), NV_RAW_OK);
		lk_close(&f, &h);
		fix_close(&f);
	}
}

TEST(a_subsystem_that_comes_is_told_to_discovery_and_one_that_goes_drops_its_hosts)
{
	struct target_subsys_opts opts = {.nqn = OTHER_NQN};
	struct ask event;
	struct link discovery, admin;
	struct fix f;
	char why[256] = "";

	fix_open(&f, NULL, 0);
	expect_int(admin_open(&f, &discovery, NV_DISCOVERY_NQN, HOST_A), NV_RAW_OK);
	expect_int(feature_to(&f, &discovery, NV_FEAT_ASYNC_EVENTS, 0, NV_ASYNC_DISCOVERY),
		   NV_RAW_OK);
	event_ask(&event, &discovery);
	expect_int(target_subsys_add(f.target, &opts, why), 0);
	expect_int(ask_wait(&f, &event), NV_RAW_OK);
	expect_int(f.dw0, NV_EVENT_DISCOVERY_CHANGED);
	expect_int(target_subsys_add(f.target, &opts, why), -EINVAL);
	expect(strstr(why, OTHER_NQN) != NULL);
	expect_int(ns_add(&f, OTHER_NQN, 1), 0);
	expect_int(admin_open(&f, &admin, OTHER_NQN, HOST_A), NV_RAW_OK);
	expect_int(target_subsys_remove(f.target, OTHER_NQN), -EBUSY);
	bool left = false;

	expect_int(target_ns_remove(f.target, OTHER_NQN, 1, set_flag, &left), 0);
	expect_int(target_subsys_remove(f.target, OTHER_NQN), 0);
	expect_int(target_subsys_remove(f.target, OTHER_NQN), -ENOENT);
	expect_int(target_subsys_remove(f.target, NV_DISCOVERY_NQN), -ENOENT);
	expect(sim_run_until(flag_is_set, &left, PATIENCE_NS));
	expect(sim_run_until(link_is_closed, &admin, PATIENCE_NS));
	link_close(&f, &admin);
	expect(queue_open(&f, &admin, OTHER_NQN, HOST_A, 0, NV_CNTLID_DYNAMIC) != NV_RAW_OK);
	link_close(&f, &admin);
	link_close(&f, &discovery);
	fix_close(&f);
}

TEST(there_are_as_many_subsystems_as_the_limit_says_and_no_more)
{
	struct target_subsys_opts opts = {0};
	struct fix f;
	char why[256] = "";

	fix_open(&f, NULL, 0);
	for (unsigned i = 1; i <= TARGET_SUBSYSTEMS; i++) {
		snprintf(opts.nqn, sizeof(opts.nqn), "nqn.2026-11.io.kvof:n%u", i);
		expect_int(target_subsys_add(f.target, &opts, why),
			   i < TARGET_SUBSYSTEMS ? 0 : -EINVAL);
	}
	expect_int(target_subsys_remove(f.target, "nqn.2026-11.io.kvof:n3"), 0);
	expect_int(target_subsys_add(f.target, &opts, why), 0);
	fix_close(&f);
}

TEST(a_host_is_counted_over_all_its_controllers_also_when_they_have_gone)
{
	static struct target_host row[TARGET_HOST_ROWS];
	struct fix f;
	struct lk one, two, other;

	fix_open(&f, NULL, 0);
	lk_open(&f, &one, HOST_A);
	lk_open(&f, &two, HOST_A);
	lk_open(&f, &other, HOST_B);
	expect_int(kv_put(&f, &one.io, "key", large, 1000, 0), NV_RAW_OK);
	expect_int(kv_put(&f, &two.io, "key", large, 3000, 0), NV_RAW_OK);
	expect_int(kv_one(&f, &other.io, NV_KV_EXIST, "none"),
		   nv_status_code(NV_KV_KEY_NOT_FOUND));
	lk_close(&f, &one);
	expect_int(target_hosts(f.target, row, TARGET_HOST_ROWS), 2);
	expect_str(row[0].nqn, HOST_A);
	expect(row[0].ctrls == 1 && row[0].counts.commands == 2 && row[0].counts.failed == 0);
	expect(row[0].counts.bytes_in == 4000 && row[0].counts.writes == 2);
	expect(row[1].ctrls == 1 && row[1].counts.commands == 1 && row[1].counts.failed == 1);
	lk_close(&f, &two);
	expect_int(target_hosts(f.target, row, TARGET_HOST_ROWS), 2);
	expect(row[0].ctrls == 0 && row[0].counts.bytes_in == 4000);
	lk_close(&f, &other);
	fix_close(&f);
}

TEST(when_all_rows_of_hosts_are_taken_the_rest_is_counted_together)
{
	static struct target_host row[TARGET_HOST_ROWS];
	static struct link admin[TARGET_HOST_ROWS + 3];
	struct fix f;
	char name[64];

	fix_open(&f, NULL, 0);
	for (unsigned i = 0; i < ARRAY_COUNT(admin); i++) {
		snprintf(name, sizeof(name), "nqn.2026-11.io.kvof:many%u", i);
		expect_int(admin_open(&f, &admin[i], SUBNQN, name), NV_RAW_OK);
	}
	expect_int(target_hosts(f.target, row, TARGET_HOST_ROWS), TARGET_HOST_ROWS);
	expect_str(row[TARGET_HOST_ROWS - 1].nqn, "other");
	expect_int(row[TARGET_HOST_ROWS - 1].ctrls, 4);
	link_close(&f, &admin[0]);
	link_close(&f, &admin[5]);
	expect_int(admin_open(&f, &admin[0], SUBNQN, HOST_A), NV_RAW_OK);
	expect_int(target_hosts(f.target, row, TARGET_HOST_ROWS), TARGET_HOST_ROWS);
	expect(strcmp(row[0].nqn, HOST_A) == 0 || strcmp(row[5].nqn, HOST_A) == 0);
	for (unsigned i = 0; i < ARRAY_COUNT(admin); i++)
		if (i != 5)
			link_close(&f, &admin[i]);
	fix_close(&f);
}
