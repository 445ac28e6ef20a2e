/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The target over the real store, with the in-process wire, on the simulator: a host made of raw
 * commands connects, asks, stores and leaves at bad moments.
 */
#include "target_fixture.h"

TEST(a_value_stored_comes_back_whole_with_its_length)
{
	struct fix f;
	struct lk h;
	uint8_t value[20000], got[20000];

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	fill(value, sizeof(value), 1);
	for (uint32_t bytes = 0; bytes <= sizeof(value); bytes = bytes * 3 + 511) {
		expect_int(kv_put(&f, &h.io, "k", value, bytes, 0), NV_RAW_OK);
		kt_noise(got, sizeof(got));
		expect_int(kv_get(&f, &h.io, "k", got, sizeof(got)), NV_RAW_OK);
		expect_int(f.dw0, bytes);
		expect_int(f.moved, bytes);
		expect_mem(got, value, bytes);
	}
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(a_retrieve_into_a_smaller_buffer_moves_what_fits)
{
	struct fix f;
	struct lk h;
	uint8_t value[9000], got[9000], before[9000];

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	fill(value, sizeof(value), 2);
	expect_int(kv_put(&f, &h.io, "short", value, sizeof(value), 0), NV_RAW_OK);
	kt_noise(got, sizeof(got));
	kt_noise(before, sizeof(before));
	expect_int(kv_get(&f, &h.io, "short", got, 1000), NV_RAW_OK);
	expect_int(f.dw0, sizeof(value));
	expect_int(f.moved, 1000);
	expect_mem(got, value, 1000);
	expect_mem(got + 1000, before + 1000, sizeof(got) - 1000);
	expect_int(kv_get(&f, &h.io, "short", got, 0), NV_RAW_OK);
	expect_int(f.dw0, sizeof(value));
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(conditions_of_store_are_judged_by_what_is_there)
{
	struct fix f;
	struct lk h;
	uint8_t got[8];

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(kv_put(&f, &h.io, "c", "x", 1, NV_KV_STORE_IF_PRESENT), NV_RAW_KV_KEY_NOT_FOUND);
	expect_int(kv_put(&f, &h.io, "c", "a", 1, NV_KV_STORE_IF_ABSENT), NV_RAW_OK);
	expect_int(kv_put(&f, &h.io, "c", "b", 1, NV_KV_STORE_IF_ABSENT), NV_RAW_KV_KEY_EXISTS);
	expect_int(kv_get(&f, &h.io, "c", got, 8), NV_RAW_OK);
	expect_int(got[0], 'a');
	expect_int(kv_put(&f, &h.io, "c", "d", 1, NV_KV_STORE_IF_PRESENT), NV_RAW_OK);
	expect_int(kv_get(&f, &h.io, "c", got, 8), NV_RAW_OK);
	expect_int(got[0], 'd');
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(exist_and_delete_answer_87h_for_an_absent_key)
{
	struct fix f;
	struct lk h;
	uint8_t got[8];

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	expect_int(kv_one(&f, &h.io, NV_KV_EXIST, "e"), NV_RAW_KV_KEY_NOT_FOUND);
	expect_int(kv_one(&f, &h.io, NV_KV_DELETE, "e"), NV_RAW_KV_KEY_NOT_FOUND);
	expect_int(kv_get(&f, &h.io, "e", got, 8), NV_RAW_KV_KEY_NOT_FOUND);
	expect_int(kv_put(&f, &h.io, "e", "v", 1, 0), NV_RAW_OK);
	expect_int(kv_one(&f, &h.io, NV_KV_EXIST, "e"), NV_RAW_OK);
	expect_int(kv_one(&f, &h.io, NV_KV_DELETE, "e"), NV_RAW_OK);
	expect_int(kv_one(&f, &h.io, NV_KV_EXIST, "e"), NV_RAW_KV_KEY_NOT_FOUND);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(edneks_of_one_host_are_not_those_of_another)
{
	struct fix f;
	struct lk a, b;

	fix_open(&f, NULL, 0);
	lk_open(&f, &a, HOST_A);
	lk_open(&f, &b, HOST_B);
	expect_int(feature_to(&f, &a.admin, NV_FEAT_KV_CONFIGURATION, 1, 0), NV_RAW_OK);
	expect_int(kv_one(&f, &a.io, NV_KV_DELETE, "none"), NV_RAW_OK);
	expect_int(kv_one(&f, &b.io, NV_KV_DELETE, "none"), NV_RAW_KV_KEY_NOT_FOUND);
	lk_close(&f, &a);
	lk_close(&f, &b);
	fix_close(&f);
}

TEST(a_list_tells_every_key_once_in_order_over_many_pages)
{
	struct fix f;
	struct lk h;
	uint8_t page[512];
	struct kv_key start = {0};
	unsigned seen = 0;

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	for (unsigned i = 0; i < 200; i++) {
		char key[8];

		snprintf(key, sizeof(key), "k%03u", i);
		expect_int(kv_put(&f, &h.io, key, "v", 1, 0), NV_RAW_OK);
	}
	for (unsigned pages = 0; pages < 100; pages++) {
		struct nv_kv_list_in in;
		struct kv_key key, last = start;
		unsigned fresh = 0;

		kt_noise(page, sizeof(page));
		expect_int(kv_list(&f, &h.io, &start, page, sizeof(page)), NV_RAW_OK);
		expect_int(nv_kv_list_open(&in, page, f.moved), 0);
		while (nv_kv_list_next(&in, &key) == 1) {
			if (kv_key_equal(&key, &start))
				continue;
			expect(kv_key_compare(&key, &last) > 0);
			last = key;
			fresh++;
		}
		seen += fresh;
		if (fresh == 0)
			break;
		start = last;
	}
	expect_int(seen, 200);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(sizes_are_judged_before_a_buffer_is_taken)
{
	struct fix f;
	struct lk h;
	struct nv_sqe sqe;
	static const struct { uint32_t size, sgl; uint16_t want; } rows[] = {
		{(8u << 20) + 1, (8u << 20) + 1, NV_RAW_KV_BAD_VALUE_SIZE},
		{UINT32_MAX, UINT32_MAX, NV_RAW_KV_BAD_VALUE_SIZE},
		{4096, 4095, NV_RAW_SGL_BAD_DATA_LENGTH},
		{4096, 8192, NV_RAW_SGL_BAD_DATA_LENGTH},
		{4096, 0, NV_RAW_SGL_BAD_DATA_LENGTH},
	};

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++) {
		sqe = kv_sqe(NV_KV_STORE, "size", rows[i].size, 0);
		sqe.sgl = nv_sgl_transport(rows[i].sgl);
		expect_int(ask_raw(&f, &h.io, &sqe), rows[i].want);
	}
	expect_int(kv_one(&f, &h.io, NV_KV_EXIST, "size"), NV_RAW_KV_KEY_NOT_FOUND);
	lk_close(&f, &h);
	fix_close(&f);
}

TEST(a_host_that_leaves_in_the_middle_of_a_store_leaves_the_old_value_whole)
{
	static uint8_t value[300000], got[300000];
	struct fix f;
	struct lk h, other;

	fix_open(&f, NULL, 0);
	lk_open(&f, &other, HOST_B);
	fill(value, sizeof(value), 3);
	expect_int(kv_put(&f, &other.io, "torn", value, sizeof(value), 0), NV_RAW_OK);
	for (unsigned steps = 0; steps < 60; steps++) {
		lk_open(&f, &h, HOST_A);
		put_and_leave(&f, &h, "torn", sizeof(value), steps);
		expect_int(kv_get(&f, &other.io, "torn", got, sizeof(got)), NV_RAW_OK);
		expect(all_one_of(got, value, sizeof(value)));
		expect_int(kv_put(&f, &other.io, "torn", value, sizeof(value), 0), NV_RAW_OK);
		lk_close(&f, &h);
	}
	settle(&f);
	expect_int(target_counts(f.target)->busy, 0);
	expect_int(target_counts(f.target)->conns, 2);
	lk_close(&f, &other);
	fix_close(&f);
}

TEST(a_host_with_more_stores_than_its_share_of_buffers_is_served_all_the_same)
{
	enum { N = 24, BYTES = 1 << 20 };
	static uint8_t value[BYTES];
	struct fix f;
	struct lk h, other;
	struct ask many[N];

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	lk_open(&f, &other, HOST_B);
	fill(value, sizeof(value), 4);
	for (unsigned i = 0; i < N; i++) {
		char key[8];

		snprintf(key, sizeof(key), "s%u", i);
		ask_put(&many[i], &h.io, key, value, BYTES);
	}
	expect_int(kv_put(&f, &other.io, "small", value, 100, 0), NV_RAW_OK);
	for (unsigned i = 0; i < N; i++)
		expect_int(ask_wait(&f, &many[i]), NV_RAW_OK);
	lk_close(&f, &h);
	lk_close(&f, &other);
	fix_close(&f);
}

static bool target_is_busy(void *arg)
{
	return target_counts(((struct fix *)arg)->target)->busy > 0;
}

TEST(closing_the_target_lets_commands_at_work_end)
{
	static uint8_t value[200000];
	struct fix f;
	struct lk h;
	struct ask put;

	fix_open(&f, NULL, 0);
	lk_open(&f, &h, HOST_A);
	fill(value, sizeof(value), 5);
	ask_put(&put, &h.io, "last", value, sizeof(value));
	expect(sim_run_until(target_is_busy, &f, PATIENCE_NS));
	target_shut(&f);
	settle(&f);
	expect(put.over);
	expect_int(put.res, 0);
	expect_int(nv_status_code(nv_cqe_status(&put.req.cqe)), NV_RAW_OK);
	lk_close(&f, &h);
	fix_close(&f);
}
