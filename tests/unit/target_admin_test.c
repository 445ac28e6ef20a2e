/* SPDX-License-Identifier: Apache-2.0 */
/* Admin and fabrics commands, keep alive, deadlines: over the in-process wire, simulated. */
#include "target_fixture.h"

static struct nv_id_controller id_controller;
static uint8_t page[8192];

static uint16_t identify(struct fix *f, struct link *l, uint8_t cns, uint32_t nsid, uint8_t csi)
{
	struct nv_identify what = {.cns = cns, .nsid = nsid, .csi = csi};
	struct nv_sqe sqe = nv_identify_build(&what);

	kt_noise(page, sizeof(page));
	return ask_in(f, l, &sqe, page, NV_IDENTIFY_BYTES);
}

static uint16_t get_log(struct fix *f, struct link *l, uint8_t lid, uint32_t nsid, uint64_t offset,
			uint32_t bytes)
{
	struct nv_log what = {.lid = lid, .nsid = nsid, .offset = offset, .bytes = bytes,
			      .csi = lid == NV_LOG_EFFECTS ? NV_CSI_KV : 0};
	struct nv_sqe sqe = nv_log_build(&what);

	kt_noise(page, sizeof(page));
	return ask_in(f, l, &sqe, page, bytes);
}

TEST(identify_controller_passes_the_checks_of_a_careful_host)
{
	struct nv_controller_facts facts;
	struct nv_cap cap = ctrl_cap();
	struct fix f;
	struct lk h;
	struct bad bad = {0};

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(identify(&f, &h.admin, NV_CNS_CONTROLLER, 0, 0), NV_RAW_OK);
	memcpy(&id_controller, page, sizeof(id_controller));
	expect_int(nv_id_controller_check(&id_controller, &cap, &facts, &bad), 0);
	expect_int(facts.transfer_bytes_max, 8 * MiB);
	expect_int(facts.capsule_data_bytes, 8192);
	expect_int(facts.keep_alive_unit_ms, 100);
	expect_str(facts.subnqn, SUBNQN);
	expect_int(strlen(facts.serial), 20);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(a_kv_namespace_says_what_linux_and_our_host_need)
{
	struct nv_kv_facts facts;
	struct nv_ns_ids ids;
	struct fix f;
	struct lk h;
	struct bad bad = {0};

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(identify(&f, &h.admin, NV_CNS_ACTIVE_LIST, 0, 0), NV_RAW_OK);
	expect_int(page[0], 1);
	expect(bytes_all_zero(page + 4, NV_IDENTIFY_BYTES - 4));
	expect_int(identify(&f, &h.admin, NV_CNS_DESCRIPTORS, 1, 0), NV_RAW_OK);
	expect_int(nv_ns_ids_read(page, &ids, &bad), 0);
	expect(ids.csi_given && ids.csi == NV_CSI_KV);
	expect(!bytes_all_zero(ids.uuid, 16) && !bytes_all_zero(ids.nguid, 16));
	expect_int(identify(&f, &h.admin, NV_CNS_CSI_NAMESPACE, 1, NV_CSI_KV), NV_RAW_OK);
	expect_int(nv_id_kv_namespace_check((struct nv_id_kv_namespace *)page, &facts, &bad), 0);
	expect_int(facts.value_bytes_max, 8 * MiB);
	expect_int(facts.key_bytes_max, 16);
	expect_mem(facts.nguid, ids.nguid, 16);
	expect_int(identify(&f, &h.admin, NV_CNS_INDEPENDENT, 1, 0), NV_RAW_OK);
	expect_int(page[14] & 1, 1);
	expect_int(get_log(&f, &h.admin, NV_LOG_EFFECTS, 0, 0, 4096), NV_RAW_OK);
	expect_int(((struct nv_log_effects *)page)->io[NV_KV_STORE].b[0], 3);
	expect_int(((struct nv_log_effects *)page)->io[NV_KV_EXIST].b[0], 1);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(with_multipath_a_controller_and_its_kv_namespace_say_that_they_are_not_the_only_ones)
{
	for (unsigned on = 0; on < 2; on++) {
		struct fix f;
		struct lk h;

		fix_multipath = on;
		fix_open(&f, NULL, 0);
		lk_open(&f, &h, HOST_A);
		expect_int(identify(&f, &h.admin, NV_CNS_CONTROLLER, 0, 0), NV_RAW_OK);
		expect_int(((struct nv_id_controller *)page)->cmic, on ? NV_CMIC_CONTROLLERS : 0);
		expect_int(identify(&f, &h.admin, NV_CNS_NAMESPACE, 1, 0), NV_RAW_OK);
		expect_int(((struct nv_id_namespace *)page)->nmic, on);
		expect_int(identify(&f, &h.admin, NV_CNS_CSI_NAMESPACE, 1, NV_CSI_KV), NV_RAW_OK);
		expect_int(((struct nv_id_kv_namespace *)page)->nmic, on);
		expect_int(identify(&f, &h.admin, NV_CNS_INDEPENDENT, 1, 0), NV_RAW_OK);
		expect_int(((struct nv_id_independent *)page)->nmic, on);
		lk_close(&f, &h);
		fix_close(&f);
	}
	fix_multipath = false;
}

TEST(identifiers_stay_over_a_restart_and_differ_between_arrays)
{
	struct nv_ns_ids first, again, other;
	struct fix f;
	struct lk h;
	struct bad bad = {0};

	for (unsigned i = 0; i < 3; i++) {
		struct nv_ns_ids *ids = i == 0 ? &first : i == 1 ? &again : &other;

		if (i == 1)
			fix_reopen(&f, "drive");
		else if (i == 2)
			fix_reopen(&f, "another");
		else
			fix_open(&f, NULL, 0);
		lk_open(&f, &h, HOST_A);
		expect_int(identify(&f, &h.admin, NV_CNS_DESCRIPTORS, 1, 0), NV_RAW_OK);
		expect_int(nv_ns_ids_read(page, ids, &bad), 0);
		lk_close(&f, &h);
		if (i < 2)
			fix_stop(&f);
	}
	expect_mem(first.nguid, again.nguid, 16);
	expect_mem(first.uuid, again.uuid, 16);
	expect(memcmp(first.nguid, other.nguid, 16) != 0);
	expect(memcmp(first.uuid, other.uuid, 16) != 0);
	expect(memcmp(first.eui64, other.eui64, 8) != 0);
	fix_close(&f);
}

TEST(log_pages_end_in_zeros_and_refuse_offsets_past_their_end)
{
	struct fix f;
	struct lk h;
	uint8_t whole[512];

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(get_log(&f, &h.admin, NV_LOG_SMART, NV_NSID_ALL, 0, 8192), NV_RAW_OK);
	expect(bytes_all_zero(page + 512, 8192 - 512));
	expect_int(get_log(&f, &h.admin, NV_LOG_KVOF_STAT, 1, 0, 512), NV_RAW_OK);
	memcpy(whole, page, sizeof(whole));
	expect_mem(whole, NV_KVOF_STAT_MAGIC, 8);
	expect_int(get_log(&f, &h.admin, NV_LOG_KVOF_STAT, 1, 32, 480), NV_RAW_OK);
	expect_mem(page, whole + 32, 480);
	expect_int(get_log(&f, &h.admin, NV_LOG_KVOF_STAT, 1, 516, 4), NV_RAW_INVALID_FIELD);
	expect_int(get_log(&f, &h.admin, 0x7f, 0, 0, 512), NV_RAW_INVALID_LOG_PAGE);
	expect_int(get_log(&f, &h.admin, NV_LOG_ERROR, 0, 0, 64), NV_RAW_OK);
	expect_int(le64_get(((struct nv_log_error *)page)->error_count), 2);
	expect_int(le16_get(((struct nv_log_error *)page)->location), 40);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(discovery_tells_a_host_only_what_would_accept_it)
{
	static const char *const allowed[] = {HOST_A};
	struct fix f;
	struct link l;

	fix_open(&f, allowed, 1);
	for (unsigned i = 0; i < 2; i++) {
		expect_int(admin_open(&f, &l, NV_DISCOVERY_NQN, i == 0 ? HOST_A : HOST_B),
			   NV_RAW_OK);
		expect_int(get_log(&f, &l, NV_LOG_DISCOVERY, 0, 0, 2048), NV_RAW_OK);
		expect_int(page[8], i == 0);
		expect_int(strcmp((char *)page + 1024 + 256, SUBNQN) == 0, i == 0);
		link_close(&f, &l);
	}
	fix_close(&f);
}

TEST(a_forbidden_host_and_an_unknown_name_get_the_same_answer)
{
	static const char *const allowed[] = {HOST_A};
	struct fix f;
	struct link l;

	fix_open(&f, allowed, 1);
	expect_int(admin_open(&f, &l, SUBNQN, HOST_B), NV_RAW_CONNECT_INVALID_HOST);
	expect_int(f.dw0, 0);
	link_close(&f, &l);
	expect_int(admin_open(&f, &l, "nqn.2026-11.io.kvof:none", HOST_B),
		   NV_RAW_CONNECT_INVALID_HOST);
	expect_int(f.dw0, 0);
	link_close(&f, &l);
	expect_int(target_counts(f.target)->hosts_refused, 2);
	expect_int(admin_open(&f, &l, "nqn.2026-11.io.kvof:none", HOST_A), NV_RAW_CONNECT_INVALID);
	expect_int(f.dw0, 256 | 1 << 16);
	link_close(&f, &l);
	fix_close(&f);
}

TEST(a_peer_that_never_connects_is_dropped_after_the_handshake_time)
{
	struct fix f;
	struct link l;
	uint64_t begin;

	fix_open(&f, NULL, 0);
	link_open(&f, &l);
	begin = sim_now_ns();
	expect(sim_run_until(link_is_closed, &l, 20 * NS_PER_S));
	expect(sim_now_ns() - begin >= 4900 * NS_PER_MS);
	expect(sim_now_ns() - begin <= 5500 * NS_PER_MS);
	expect_int(target_counts(f.target)->connect_late, 1);
	link_close(&f, &l);
	fix_close(&f);
}

TEST(a_silent_host_expires_between_one_and_one_and_a_half_kato)
{
	struct fix f;
	struct lk h, other;
	uint64_t begin;

	fix_open(&f, NULL, 0);
	lk_open(&f, &other, HOST_B);
	lk_open(&f, &h, HOST_A);
	expect_int(feature_to(&f, &h.admin, NV_FEAT_KEEP_ALIVE, 0, 1950), NV_RAW_OK);
	begin = sim_now_ns();
	expect(sim_run_until(link_is_closed, &h.io, 20 * NS_PER_S));
	expect(sim_now_ns() - begin >= 1950 * NS_PER_MS);
	expect(sim_now_ns() - begin <= 2925 * NS_PER_MS);
	expect(sim_run_until(link_is_closed, &h.admin, NS_PER_S));
	expect_int(target_counts(f.target)->keep_alive_expired, 1);
	expect_int(kv_one(&f, &other.io, NV_KV_EXIST, "x"), NV_RAW_KV_KEY_NOT_FOUND);
	lk_close(&f, &h);
	lk_close(&f, &other);
	fix_close(&f);
}

TEST(traffic_on_an_io_queue_keeps_a_host_alive)
{
	struct fix f;
	struct lk h;

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(feature_to(&f, &h.admin, NV_FEAT_KEEP_ALIVE, 0, 1000), NV_RAW_OK);
	for (unsigned i = 0; i < 10; i++) {
		pause_ns(&f, 600 * NS_PER_MS);
		expect_int(kv_one(&f, &h.io, NV_KV_EXIST, "x"), NV_RAW_KV_KEY_NOT_FOUND);
	}
	expect_int(target_counts(f.target)->keep_alive_expired, 0);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(features_have_their_values_defaults_and_refusals)
{
	struct fix f;
	struct lk h;

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(feature_to(&f, &h.admin, NV_FEAT_ASYNC_EVENTS, 0, 0x11f), NV_RAW_OK);
	expect_int(feature_of(&f, &h.admin, NV_FEAT_ASYNC_EVENTS, 0, NV_SEL_CURRENT), NV_RAW_OK);
	expect_int(f.dw0, 0x11f);
	expect_int(feature_of(&f, &h.admin, NV_FEAT_ASYNC_EVENTS, 0, NV_SEL_DEFAULT), NV_RAW_OK);
	expect_int(f.dw0, 0);
	expect_int(feature_of(&f, &h.admin, NV_FEAT_KV_CONFIGURATION, 1, NV_SEL_CURRENT),
		   NV_RAW_OK);
	expect_int(f.dw0, NV_KV_EDNEK);
	expect_int(feature_of(&f, &h.admin, NV_FEAT_KV_CONFIGURATION, 2, NV_SEL_CURRENT),
		   NV_RAW_INVALID_NAMESPACE);
	expect_int(feature_to(&f, &h.admin, NV_FEAT_WRITE_CACHE, 0, 0),
		   NV_RAW_FEATURE_NOT_CHANGEABLE);
	expect_int(feature_to(&f, &h.admin, NV_FEAT_QUEUES, 0, 0x00030003), NV_RAW_SEQUENCE_ERROR);
	expect_int(feature_to(&f, &h.admin, 0x7f, 0, 0), NV_RAW_INVALID_FIELD);
	expect_int(feature_to(&f, &h.admin, NV_FEAT_COMMAND_SET, 0, 0), NV_RAW_OK);
	expect_int(feature_to(&f, &h.admin, NV_FEAT_COMMAND_SET, 0, 1), NV_RAW_IOCS_REJECTED);
	lk_close(&f, &h);
	fix_close(&f);
}

/* CIDs that the array takes to be in use on the admin queue: all of them, and those near `cid`. */
static unsigned cids_in_use(struct fix *f, uint16_t cid, unsigned *near)
{
	unsigned all = 0;

	*near = 0;
	LIST_FOR_EACH(link, &f->target->lane[0].queues) {
		const struct queue *q = container_of(link, struct queue, link);

		for (unsigned i = 0; q->qid == 0 && i < QUEUE_CID_NEAR; i++)
			all += q->cid_near[i];
		*near += q->qid == 0 ? q->cid_near[cid % QUEUE_CID_NEAR] : 0;
	}
	return all;
}

TEST(a_cid_is_in_use_from_its_command_to_its_answer)
{
	struct nv_sqe aer_sqe = nv_sqe_of(NV_ADMIN_ASYNC_EVENT, 0);
	struct nv_sqe alive = nv_sqe_of(NV_ADMIN_KEEP_ALIVE, 0);
	struct ask aer = {0};
	unsigned near;
	struct fix f;
	struct lk h;

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(cids_in_use(&f, 0, &near), 0);
	ask_start(&aer, &h.admin, &aer_sqe);
	for (unsigned i = 0; i < 40; i++) {             /* no CID but the waiting one stays */
		if (h.admin.cid % 32 == aer.req.cid)
			h.admin.cid++;
		expect_int(ask_raw(&f, &h.admin, &alive), NV_RAW_OK);
		expect_int(cids_in_use(&f, aer.req.cid, &near), 1);
		expect_int(near, 1);
	}
	expect_int(abort_of(&f, &h.admin, 0, aer.req.cid), NV_RAW_OK);
	expect_int(ask_wait(&f, &aer), NV_RAW_ABORTED_BY_REQUEST);
	expect_int(cids_in_use(&f, 0, &near), 0);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(event_requests_stay_open_until_they_are_aborted)
{
	struct fix f;
	struct lk h;
	struct ask aer[TARGET_EVENTS + 1] = {0};

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	for (unsigned i = 0; i < ARRAY_COUNT(aer); i++) {
		struct nv_sqe sqe = nv_sqe_of(NV_ADMIN_ASYNC_EVENT, 0);

		ask_start(&aer[i], &h.admin, &sqe);
	}
	expect_int(ask_wait(&f, &aer[TARGET_EVENTS]), NV_RAW_AER_LIMIT);
	settle(&f);
	for (unsigned i = 0; i < TARGET_EVENTS; i++)
		expect(!aer[i].over);
	expect_int(abort_of(&f, &h.admin, 0, aer[1].req.cid), NV_RAW_OK);
	expect_int(f.dw0, 0);
	expect_int(ask_wait(&f, &aer[1]), NV_RAW_ABORTED_BY_REQUEST);
	expect_int(abort_of(&f, &h.admin, 0, 0x7777), NV_RAW_OK);
	expect_int(f.dw0, NV_ABORT_NOT_DONE);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(a_failed_drive_is_told_once_to_a_host_that_asked_for_it)
{
	struct nv_sqe aer_sqe = nv_sqe_of(NV_ADMIN_ASYNC_EVENT, 0);
	struct nv_sqe alive = nv_sqe_of(NV_ADMIN_KEEP_ALIVE, 0);
	struct ask asked[2] = {0};
	uint8_t value[9000];
	struct fix f;
	struct lk h, deaf;
	struct ask other = {0};
	char key[8];

	fix_drives = 2;
	fix_open(&f, NULL, 0);
	fix_drives = 1;
	lk_open(&f, &h, HOST_A);
	lk_open(&f, &deaf, HOST_B);
	fill(value, sizeof(value), 6);
	expect_int(feature_to(&f, &h.admin, NV_FEAT_ASYNC_EVENTS, 0, 0x04), NV_RAW_OK);
	for (unsigned i = 0; i < 2; i++)
		ask_start(&asked[i], &h.admin, &aer_sqe);
	ask_start(&other, &deaf.admin, &aer_sqe);
	sim_disk_mode("second", SIM_DISK_GONE);
	for (unsigned i = 0; i < 40; i++) {
		snprintf(key, sizeof(key), "h%u", i);
		(void)kv_put(&f, &h.io, key, value, sizeof(value), 0);
	}
	expect_int(ask_raw(&f, &h.admin, &alive), NV_RAW_OK);
	expect_int(ask_wait(&f, &asked[1]), NV_RAW_OK);
	expect_int(f.dw0, 0x00020001);
	expect_int(ask_raw(&f, &h.admin, &alive), NV_RAW_OK);
	settle(&f);
	expect(!asked[0].over && !other.over);
	expect_int(get_log(&f, &h.admin, NV_LOG_SMART, NV_NSID_ALL, 0, 512), NV_RAW_OK);
	expect_int(page[0], 1 << 2);
	lk_close(&f, &h);
	lk_close(&f, &deaf);
	fix_close(&f);
}

/* A host that has sent nothing yet holds one buffer: the other Stores wait for their share. */
TEST(abort_ends_what_waits_for_its_turn_and_is_honest_about_the_rest)
{
	static uint8_t value[4 << 20];
	static struct ask put[20];
	struct ask *last = &put[ARRAY_COUNT(put) - 1];
	struct fix f;
	struct lk h;

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	for (unsigned i = 0; i < ARRAY_COUNT(put); i++)
		ask_put(&put[i], &h.io, &put[i] == last ? "last" : "first", value, sizeof(value));
	while (target_counts(f.target)->stores < ARRAY_COUNT(put))
		expect(sim_step());
	expect_int(abort_of(&f, &h.admin, 1, last->req.cid), NV_RAW_OK);
	expect_int(f.dw0 & 1, 0);
	expect_int(ask_wait(&f, last), nv_status_code(NV_ABORTED_BY_REQUEST));
	expect_int(abort_of(&f, &h.admin, 1, last->req.cid), NV_RAW_OK);
	expect_int(f.dw0 & 1, 1);
	for (unsigned i = 0; &put[i] != last; i++)
		expect_int(ask_wait(&f, &put[i]), NV_RAW_OK);
	expect_int(kv_one(&f, &h.io, NV_KV_EXIST, "last"), nv_status_code(NV_KV_KEY_NOT_FOUND));
	expect_int(abort_of(&f, &h.admin, 7, 1), NV_RAW_OK);
	expect_int(f.dw0 & 1, 1);
	expect_int(abort_of(&f, &h.admin, 0xffff, 1), NV_RAW_OK);
	expect_int(f.dw0 & 1, 1);
	lk_close(&f, &h);
	fix_close(&f);
}
