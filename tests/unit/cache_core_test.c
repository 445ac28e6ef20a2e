/* SPDX-License-Identifier: Apache-2.0 */
/* The cache on one loop, against a host that answers what the test says. */
#include "kt.h"

#include "cache_sim_host.h"

#include "cache_core_fixture.h"

#define THREE (3 * FIX_CUT - 100)          /* bytes of a block of three parts */

static void begin(void)
{
	sim_host_reset();
	fix_begin("f16");
	expect_int(fix_open(), 0);
	sim_host.log_count = 0;
}

static uint8_t data[64 * KiB], back[64 * KiB + 512];

static void noise_back(void)
{
	kt_noise(back, sizeof(back));
}

static void expect_still_noise(size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		expect(back[i] == (uint8_t)(0xa5 ^ i * 131));
}

/* --- batches and results ---------------------------------------------------------------------- */

TEST(results_of_a_batch_carry_index_and_true_stored_length)
{
	static const size_t bytes[5] = {0, 1, FIX_CUT, FIX_CUT + 1, THREE};
	struct iovec iov[5];
	struct kvof_block b[5];
	uint64_t batch;

	begin();
	fix_fill(data, sizeof(data), 1);
	for (uint32_t i = 0; i < 5; i++)
		b[i] = fix_block(i, &iov[i], data + i, bytes[i]);
	batch = fix_submit(KVOF_SAVE, b, 5, 0);
	fix_wait();
	for (uint32_t i = 0; i < 5; i++) {
		struct kvof_result r = fix_result_of(batch, i, 0);

		expect_int(r.reason, KVOF_OK);
		expect_int(r.value_bytes, bytes[i]);
		expect_int(r.tier, 2);
	}
	noise_back();
	for (uint32_t i = 0; i < 5; i++)
		b[i] = fix_block(i, &iov[i], back + i * 16 * KiB % (48 * KiB), bytes[i]);
	for (uint32_t i = 0; i < 5; i++) {
		struct kvof_result r;

		batch = fix_submit(KVOF_LOAD, &b[i], 1, 0);
		fix_wait();
		r = fix_result_of(batch, 0, 0);
		expect_int(r.reason, KVOF_OK);
		expect_int(r.value_bytes, bytes[i]);
		expect_int(r.flags, KVOF_RESULT_LAST);
		expect_mem(iov[i].iov_base, data + i, bytes[i]);
	}
	fix_end();
}

TEST(scattered_memory_is_gathered_and_filled_piece_by_piece)
{
	struct iovec in[7] = {{data, 1}, {data + 1, 0}, {data + 1, 4000}, {data + 4001, 40},
			      {data + 4041, 4031}, {data + 8072, 3000},
			      {data + 11072, THREE - 11072}};
	struct iovec out[3] = {{back, 8000}, {back + 9000, 3}, {back + 10000, THREE - 8003}};
	struct kvof_block b;
	uint64_t batch;

	begin();
	fix_fill(data, sizeof(data), 2);
	b = (struct kvof_block){fix_id(1), in, 7, THREE};
	batch = fix_submit(KVOF_SAVE, &b, 1, 0);
	fix_wait();
	expect_int(fix_result_of(batch, 0, 0).reason, KVOF_OK);
	noise_back();
	b = (struct kvof_block){fix_id(1), out, 3, THREE};
	batch = fix_submit(KVOF_LOAD, &b, 1, 0);
	fix_wait();
	expect_int(fix_result_of(batch, 0, 0).reason, KVOF_OK);
	expect_mem(back, data, 8000);
	expect_mem(back + 9000, data + 8000, 3);
	expect_mem(back + 10000, data + 8003, THREE - 8003);
	expect_still_noise(8000, 9000);
	expect_still_noise(9003, 10000);
	expect_still_noise(10000 + THREE - 8003, sizeof(back));
	fix_end();
}

TEST(a_larger_room_works_and_tells_the_true_length)
{
	static const size_t bytes[] = {0, 1, 63, 64, 65, FIX_CUT - 1, FIX_CUT, FIX_CUT + 1, THREE};

	for (uint32_t i = 0; i < ARRAY_COUNT(bytes); i++) {
		for (size_t more = 1; more < 5 * FIX_CUT; more = more * 3 + 40) {
			struct kvof_result r;

			begin();
			fix_fill(data, bytes[i], i);
			expect_int(fix_one(KVOF_SAVE, i, data, bytes[i]).reason, KVOF_OK);
			noise_back();
			r = fix_one(KVOF_LOAD, i, back, bytes[i] + more);
			expect_int(r.reason, KVOF_OK);
			expect_int(r.value_bytes, bytes[i]);
			expect_mem(back, data, bytes[i]);
			expect_still_noise(bytes[i] + more, sizeof(back));
			fix_end();
		}
	}
}

TEST(a_smaller_room_is_short_with_the_true_length)
{
	static const size_t bytes[] = {1, 100, FIX_CUT, FIX_CUT + 1, THREE, 5 * FIX_CUT};

	begin();
	for (uint32_t i = 0; i < ARRAY_COUNT(bytes); i++) {
		fix_fill(data, bytes[i], i);
		expect_int(fix_one(KVOF_SAVE, i, data, bytes[i]).reason, KVOF_OK);
		for (size_t room = 0; room < bytes[i]; room += bytes[i] / 7 + 1) {
			struct kvof_result r;

			noise_back();
			r = fix_one(KVOF_LOAD, i, back, room);
			expect_int(r.reason, KVOF_SHORT);
			expect_int(r.value_bytes, bytes[i]);
			expect_still_noise(room, sizeof(back));
		}
	}
	fix_end();
}

TEST(a_block_that_another_host_cut_otherwise_is_read_all_the_same)
{
	static const uint32_t parts[] = {4096, 5000, 9000, 65536};

	for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
		sim_host_reset();
		fix_begin("f16");
		fix.opts.part_bytes = parts[i];
		expect_int(fix_open(), 0);
		fix_fill(data, THREE, 5);
		expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
		fix_close_core();
		loop_close(&fix.loop);
		identity_free(&fix.identity);
		fix_begin("f16");
		expect_int(fix_open(), 0);
		noise_back();
		expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_OK);
		expect_mem(back, data, THREE);
		expect_int(fix_match((uint32_t[]){1}, 1, 0), 1);
		expect_int(fix_one(KVOF_DELETE, 1, NULL, 0).reason, KVOF_OK);
		expect_int(sim_host_count(), 1);           /* the domain list */
		fix_end();
	}
}

/* --- store-if-absent, atomic publish ---------------------------------------------------------- */

TEST(a_second_save_changes_nothing_and_says_exists)
{
	static const size_t bytes[2] = {100, THREE};

	begin();
	for (uint32_t i = 0; i < 2; i++) {
		fix_fill(data, bytes[i], 1);
		expect_int(fix_one(KVOF_SAVE, i, data, bytes[i]).reason, KVOF_OK);
		fix_fill(data, bytes[i], 2);
		expect_int(fix_one(KVOF_SAVE, i, data, bytes[i]).reason, KVOF_EXISTS);
		expect_int(fix_one(KVOF_LOAD, i, back, bytes[i]).reason, KVOF_OK);
		fix_fill(data, bytes[i], 1);
		expect_mem(back, data, bytes[i]);
	}
	fix_end();
}

TEST(parts_are_stored_from_the_tail_and_the_head_last)
{
	struct kv_key want[5];

	begin();
	want[0] = want[4] = fix_key(1, 0, 1);
	want[1] = fix_key(1, 2, 3);
	want[2] = fix_key(1, 1, 3);
	want[3] = fix_key(1, 0, 3);
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	expect_int(sim_host.log_count, 5);
	expect_int(sim_host.log_kind[0], HOST_RETRIEVE);
	for (int i = 0; i < 5; i++)
		expect(kv_key_equal(&sim_host.log_key[i], &want[i]));
	expect_int(sim_host.flying_max, 3);
	fix_end();
}

TEST(a_block_that_lost_a_part_is_not_there_and_is_saved_anew)
{
	begin();
	fix_fill(data, sizeof(data), 6);
	for (uint32_t i = 0; i < 3; i++) {
		struct kv_key key = fix_key(1, i, 3);

		expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
		expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_EXISTS);
		sim_host_find(&key)->there = false;
		expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
		expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_OK);
		expect_mem(back, data, THREE);
		expect_int(fix_one(KVOF_DELETE, 1, NULL, 0).reason, KVOF_OK);
	}
	fix_end();
}

TEST(a_block_that_another_host_cut_otherwise_is_not_stored_twice)
{
	static const uint32_t parts[] = {5000, 9000, 65536};

	for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
		unsigned values;

		sim_host_reset();
		fix_begin("f16");
		fix.opts.part_bytes = parts[i];
		expect_int(fix_open(), 0);
		expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
		values = sim_host_count();
		fix_close_core();
		loop_close(&fix.loop);
		identity_free(&fix.identity);
		fix_begin("f16");
		expect_int(fix_open(), 0);
		expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_EXISTS);
		expect_int(sim_host_count(), values);
		fix_end();
	}
}

static struct kv_key fail_key;

static enum sim_hook hook_fail(struct host_op *op, int *res)
{
	if (op->kind != HOST_STORE || !kv_key_equal(&op->key, &fail_key))
		return SIM_HOOK_NONE;
	*res = -ENOSPC;
	return SIM_HOOK_ANSWER;
}

TEST(a_save_that_failed_anywhere_is_not_visible)
{
	struct kv_key keys[4];

	begin();
	for (uint32_t i = 0; i < 3; i++)
		keys[i] = fix_key(1, i, 3);
	keys[3] = fix_key(1, 0, 1);
	for (uint32_t i = 0; i < 4; i++) {
		fail_key = keys[i];
		sim_host.hook = hook_fail;
		expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_FULL);
		sim_host.hook = NULL;
		expect_int(fix_match((uint32_t[]){1}, 1, 0), 0);
		expect_int(fix_one(KVOF_EXISTS_OP, 1, NULL, 0).reason, KVOF_ABSENT);
		expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_ABSENT);
	}
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_OK);
	fix_end();
}

static unsigned die_at, die_seen;

static enum sim_hook hook_die(struct host_op *op, int *res)
{
	return op->bytes != 0 && die_seen++ >= die_at ? SIM_HOOK_HANG : SIM_HOOK_NONE;
}

TEST(a_writer_that_died_at_any_step_leaves_no_half_block_to_see)
{
	struct iovec iov;
	struct kvof_block b;
	bool whole = false;

	for (die_at = 0; !whole; die_at++) {
		begin();
		fix_fill(data, THREE, 1);
		die_seen = 0;
		sim_host.hook = hook_die;
		b = fix_block(1, &iov, data, THREE);
		fix_submit(KVOF_SAVE, &b, 1, 0);
		(void)sim_run_until(fix_all_over, NULL, 20 * NS_PER_MS);
		fix_close_core();
		whole = die_seen <= die_at;
		sim_host.hook = NULL;
		loop_close(&fix.loop);
		identity_free(&fix.identity);
		fix_begin("f16");
		expect_int(fix_open(), 0);
		expect_int(fix_match((uint32_t[]){1}, 1, 0), whole);
		fix_fill(data, THREE, 2);  /* another writer, with bytes of its own */
		expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason,
			   whole ? KVOF_EXISTS : KVOF_OK);
		expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_OK);
		fix_fill(data, THREE, whole ? 1 : 2);
		expect_mem(back, data, THREE);
		fix_end();
	}
	expect_int(die_at, 6);             /* a look, three parts, a head, and nobody died */
}

/* --- order per key ---------------------------------------------------------------------------- */

TEST(operations_on_one_key_take_effect_in_the_order_of_their_submits)
{
	struct iovec iov[3];
	struct kvof_block save, load, bare = {0}, load2;
	uint64_t b[8];

	begin();
	fix_fill(data, THREE, 3);
	save = fix_block(1, &iov[0], data, THREE);
	load = fix_block(1, &iov[1], back, THREE);
	load2 = fix_block(1, &iov[2], back + 32 * KiB, THREE);
	bare.id = save.id;
	b[0] = fix_submit(KVOF_EXISTS_OP, &bare, 1, 0);
	b[1] = fix_submit(KVOF_SAVE, &save, 1, 0);
	b[2] = fix_submit(KVOF_LOAD, &load, 1, 0);
	b[3] = fix_submit(KVOF_EXISTS_OP, &bare, 1, 0);
	b[4] = fix_submit(KVOF_DELETE, &bare, 1, 0);
	b[5] = fix_submit(KVOF_LOAD, &load2, 1, 0);
	b[6] = fix_submit(KVOF_SAVE, &save, 1, 0);
	b[7] = fix_submit(KVOF_EXISTS_OP, &bare, 1, 0);
	fix_wait();
	expect_int(fix_result_of(b[0], 0, 0).reason, KVOF_ABSENT);
	expect_int(fix_result_of(b[1], 0, 0).reason, KVOF_OK);
	expect_int(fix_result_of(b[2], 0, 0).reason, KVOF_OK);
	expect_int(fix_result_of(b[3], 0, 0).reason, KVOF_OK);
	expect_int(fix_result_of(b[4], 0, 0).reason, KVOF_OK);
	expect_int(fix_result_of(b[5], 0, 0).reason, KVOF_ABSENT);
	expect_int(fix_result_of(b[6], 0, 0).reason, KVOF_OK);
	expect_int(fix_result_of(b[7], 0, 0).reason, KVOF_OK);
	expect_mem(back, data, THREE);
	fix_end();
}

TEST(loads_of_one_key_run_side_by_side)
{
	struct iovec iov[2];
	struct kvof_block b[2];

	begin();
	expect_int(fix_one(KVOF_SAVE, 1, data, 100).reason, KVOF_OK);
	b[0] = fix_block(1, &iov[0], back, 100);
	b[1] = fix_block(1, &iov[1], back + 1000, 100);
	sim_host.flying_max = 0;
	fix_submit(KVOF_LOAD, b, 2, 0);
	fix_wait();
	expect_int(sim_host.flying_max, 2);
	fix_end();
}

/* --- deadline and cancel ---------------------------------------------------------------------- */

static enum sim_hook hook_hang(struct host_op *op, int *res)
{
	return SIM_HOOK_HANG;
}

TEST(a_load_that_hangs_ends_at_its_deadline_as_late)
{
	struct iovec iov;
	struct kvof_block b;
	uint64_t batch, begin_ns;
	struct kvof_result r;

	begin();
	sim_host.hook = hook_hang;
	b = fix_block(1, &iov, back, THREE);
	begin_ns = sim_now_ns();
	batch = fix_submit(KVOF_LOAD, &b, 1, 200 * NS_PER_MS);
	expect(sim_run_until(fix_all_over, NULL, 10 * NS_PER_S));
	r = fix_result_of(batch, 0, 0);
	expect_int(r.reason, KVOF_LATE);
	expect_int(r.busy, 0);
	expect(fix.result_at_ns[0] >= begin_ns + 200 * NS_PER_MS);
	expect(fix.result_at_ns[0] < begin_ns + 201 * NS_PER_MS);
	fix_end();
}

TEST(a_buffer_the_host_still_owns_is_busy_and_released_by_a_second_event)
{
	struct iovec iov[2];
	struct kvof_block b[2];
	uint64_t batch, begin_ns;

	begin();
	sim_host.hook = hook_hang;
	sim_host.busy_ns = 70 * NS_PER_MS;
	b[0] = fix_block(1, &iov[0], back, THREE);
	b[1] = fix_block(2, &iov[1], back + 32 * KiB, 10);
	begin_ns = sim_now_ns();
	batch = fix_submit(KVOF_LOAD, b, 2, 100 * NS_PER_MS);
	fix_wait();
	expect_int(fix.results, 4);
	for (uint32_t i = 0; i < 2; i++) {
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_LATE);
		expect_int(fix_result_of(batch, i, 0).busy, 1);
		expect_int(fix_result_of(batch, i, KVOF_RESULT_RELEASED).busy, 0);
		expect(fix.result_at_ns[i] < begin_ns + 101 * NS_PER_MS);
		expect(fix.result_at_ns[2 + i] >= begin_ns + 170 * NS_PER_MS);
	}
	expect_int(fix.result[1].flags, KVOF_RESULT_LAST);
	fix_end();
}

TEST(an_operation_that_waits_for_another_ends_by_its_own_deadline)
{
	struct iovec iov[2];
	struct kvof_block save, load;
	uint64_t a, b;

	begin();
	sim_host.hook = hook_hang;
	save = fix_block(1, &iov[0], data, 100);
	load = fix_block(1, &iov[1], back, 100);
	a = fix_submit(KVOF_SAVE, &save, 1, NS_PER_S);
	b = fix_submit(KVOF_LOAD, &load, 1, 50 * NS_PER_MS);
	fix_wait();
	expect_int(fix_result_of(b, 0, 0).reason, KVOF_LATE);
	expect_int(fix_result_of(a, 0, 0).reason, KVOF_LATE);
	expect_int(fix.result[0].batch, b);
	fix_end();
}

TEST(a_canceled_batch_says_so_and_no_byte_moves_after_its_result)
{
	struct iovec iov[3];
	struct kvof_block b[3];
	uint64_t batch;

	begin();
	fix_fill(data, THREE, 1);
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	expect_int(fix_one(KVOF_SAVE, 2, data, 100).reason, KVOF_OK);
	noise_back();
	sim_host.latency_ns = NS_PER_S;
	b[0] = fix_block(1, &iov[0], back, THREE);
	b[1] = fix_block(2, &iov[1], back + 32 * KiB, 100);
	b[2] = fix_block(2, &iov[2], back + 48 * KiB, 100);
	batch = fix_submit(KVOF_LOAD, b, 3, 0);
	fix_post(NULL, batch, NULL);
	fix_wait();
	for (uint32_t i = 0; i < 3; i++)
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_CANCELED);
	while (sim_step())
		;
	expect_still_noise(0, sizeof(back));
	expect(sim_host.canceled > 0);
	fix_post(NULL, batch, NULL);               /* over already: nothing happens */
	fix_post(NULL, 12345, NULL);
	sim_host.latency_ns = 1000;
	expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_OK);
	fix_end();
}

TEST(cancel_ends_what_waits_behind_another_operation)
{
	struct iovec iov[2];
	struct kvof_block save, load;
	uint64_t a, b;

	begin();
	sim_host.hook = hook_hang;
	save = fix_block(1, &iov[0], data, 100);
	load = fix_block(1, &iov[1], back, 100);
	a = fix_submit(KVOF_SAVE, &save, 1, 100 * NS_PER_MS);
	b = fix_submit(KVOF_LOAD, &load, 1, NS_PER_S);
	fix_post(NULL, b, NULL);
	fix_wait();
	expect_int(fix_result_of(b, 0, 0).reason, KVOF_CANCELED);
	expect_int(fix_result_of(a, 0, 0).reason, KVOF_LATE);
	fix_end();
}

TEST(close_ends_everything_in_flight_as_canceled)
{
	struct iovec iov[3];
	struct kvof_block b[3];
	uint64_t batch;

	begin();
	sim_host.hook = hook_hang;
	sim_host.busy_ns = NS_PER_S;
	for (uint32_t i = 0; i < 3; i++)
		b[i] = fix_block(i / 2, &iov[i], back + i * 20 * KiB, THREE);
	batch = fix_submit(KVOF_LOAD, b, 3, 50 * NS_PER_MS);
	fix_submit(KVOF_SAVE, b, 3, 10 * NS_PER_S);
	expect(!sim_run_until(fix_all_over, NULL, 100 * NS_PER_MS));
	fix_close_core();
	expect_int(fix_result_of(batch, 0, 0).reason, KVOF_LATE);
	expect_int(fix_result_of(batch, 0, KVOF_RESULT_RELEASED).busy, 0);
	expect_int(fix_result_of(batch + 1, 0, 0).reason, KVOF_CANCELED);
	fix_end();
}

/* --- bad values ------------------------------------------------------------------------------- */

static struct sim_value *value_of(uint32_t n, uint32_t index, uint32_t count)
{
	struct kv_key key = fix_key(n, index, count);
	struct sim_value *v = sim_host_find(&key);

	expect(v != NULL);
	return v;
}

TEST(any_flipped_bit_of_a_value_is_a_miss_and_corrupt)
{
	struct sim_value *v;

	begin();
	expect_int(fix_one(KVOF_SAVE, 1, data, 300).reason, KVOF_OK);
	v = value_of(1, 0, 1);
	expect_int(v->bytes, 364);
	for (uint32_t at = 0; at < v->bytes; at += 3) {
		v->at[at] ^= 0x10;
		expect_int(fix_one(KVOF_LOAD, 1, back, 300).reason, KVOF_CORRUPT);
		v->at[at] ^= 0x10;
	}
	expect_int(fix_one(KVOF_LOAD, 1, back, 300).reason, KVOF_OK);
	fix_end();
}

TEST(a_value_of_another_block_under_this_key_is_a_miss_with_reason_identity)
{
	struct kv_key key;
	struct sim_value *v;

	begin();
	expect_int(fix_one(KVOF_SAVE, 1, data, 300).reason, KVOF_OK);
	expect_int(fix_one(KVOF_SAVE, 2, data + 1, 300).reason, KVOF_OK);
	v = value_of(1, 0, 1);
	key = fix_key(2, 0, 1);
	sim_host_put(&key, v->at, v->bytes);
	expect_int(fix_one(KVOF_LOAD, 2, back, 300).reason, KVOF_IDENTITY);
	expect_int(fix_one(KVOF_LOAD, 1, back, 300).reason, KVOF_OK);
	/* parts of one block swapped */
	expect_int(fix_one(KVOF_SAVE, 3, data, THREE).reason, KVOF_OK);
	v = value_of(3, 0, 3);
	key = fix_key(3, 1, 3);
	sim_host_put(&key, v->at, v->bytes);
	expect_int(fix_one(KVOF_LOAD, 3, back, THREE).reason, KVOF_IDENTITY);
	fix_end();
}

TEST(a_value_of_any_wrong_length_is_a_miss_and_corrupt)
{
	uint8_t whole[364];
	struct kv_key key;

	begin();
	expect_int(fix_one(KVOF_SAVE, 1, data, 300).reason, KVOF_OK);
	key = fix_key(1, 0, 1);
	memcpy(whole, value_of(1, 0, 1)->at, sizeof(whole));
	for (uint32_t bytes = 0; bytes < 364; bytes += 7) {
		sim_host_put(&key, whole, bytes);
		expect_int(fix_one(KVOF_LOAD, 1, back, 300).reason, KVOF_CORRUPT);
		if (bytes < 64)
			expect_int(fix_one(KVOF_EXISTS_OP, 1, NULL, 0).reason, KVOF_CORRUPT);
	}
	fix_end();
}

TEST(any_damage_to_a_part_or_the_head_makes_the_block_a_miss)
{
	begin();
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	for (uint32_t i = 0; i < 4; i++) {
		struct sim_value *v = i < 3 ? value_of(1, i, 3) : value_of(1, 0, 1);

		v->at[v->bytes / 2] ^= 1;
		expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_CORRUPT);
		v->at[v->bytes / 2] ^= 1;
		v->there = false;
		expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_ABSENT);
		v->there = true;
		expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_OK);
	}
	fix_end();
}

TEST(parts_of_two_saves_never_pass_as_one_block_and_a_save_heals_it)
{
	struct kv_key key;
	uint8_t part[FIX_CUT + FRAME_BYTES];

	begin();
	fix_fill(data, THREE, 1);
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	memcpy(part, value_of(1, 1, 3)->at, sizeof(part));
	expect_int(fix_one(KVOF_DELETE, 1, NULL, 0).reason, KVOF_OK);
	fix_fill(data, THREE, 2);
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	key = fix_key(1, 1, 3);
	sim_host_put(&key, part, sizeof(part));
	expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_CORRUPT);
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_OK);
	expect_mem(back, data, THREE);
	fix_end();
}

TEST(a_bad_value_of_one_part_is_overwritten_by_the_next_save)
{
	begin();
	expect_int(fix_one(KVOF_SAVE, 1, data, 300).reason, KVOF_OK);
	value_of(1, 0, 1)->at[5] ^= 1;
	expect_int(fix_one(KVOF_LOAD, 1, back, 300).reason, KVOF_CORRUPT);
	expect_int(fix_one(KVOF_SAVE, 1, data, 300).reason, KVOF_OK);
	expect_int(fix_one(KVOF_LOAD, 1, back, 300).reason, KVOF_OK);
	expect_int(fix_one(KVOF_SAVE, 1, data, 300).reason, KVOF_EXISTS);
	fix_end();
}

static int answer_res;

static enum sim_hook hook_answer(struct host_op *op, int *res)
{
	*res = answer_res;
	return SIM_HOOK_ANSWER;
}

TEST(every_answer_of_the_host_has_its_reason)
{
	static const struct {
		int res;
		enum kvof_reason reason;
	} want[] = {
		{-ENOENT, KVOF_ABSENT}, {-ENOSPC, KVOF_FULL}, {-EBADMSG, KVOF_CORRUPT},
		{-EIO, KVOF_ERROR}, {-EPROTO, KVOF_ERROR}, {-EINVAL, KVOF_ERROR},
		{-EBUSY, KVOF_ERROR}, {-ETIMEDOUT, KVOF_LATE}, {-ECONNRESET, KVOF_UNREACHABLE},
		{-ECANCELED, KVOF_CANCELED}, {-ESHUTDOWN, KVOF_CANCELED},
	};

	begin();
	sim_host.hook = hook_answer;
	for (size_t i = 0; i < ARRAY_COUNT(want); i++) {
		answer_res = want[i].res;
		expect_int(fix_one(KVOF_LOAD, 1, back, 300).reason, want[i].reason);
		expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, want[i].reason);
		if (answer_res != -ENOENT && answer_res != -EBADMSG) {
			expect_int(fix_one(KVOF_SAVE, 2, data, 300).reason, want[i].reason);
			expect_int(fix_one(KVOF_DELETE, 2, NULL, 0).reason, want[i].reason);
		}
	}
	fix_end();
}

/* --- match ------------------------------------------------------------------------------------ */

TEST(match_counts_leading_blocks_and_only_whole_ones)
{
	static const uint32_t n[6] = {0, 1, 2, 3, 4, 5};

	begin();
	expect_int(fix_match(n, 6, 0), 0);
	for (uint32_t i = 0; i < 5; i++)
		expect_int(fix_one(KVOF_SAVE, i, data, i % 2 ? 100 : THREE).reason, KVOF_OK);
	expect_int(fix_match(n, 6, 0), 5);
	value_of(4, 1, 3)->there = false;
	expect_int(fix_match(n, 6, 0), 4);
	value_of(1, 0, 1)->there = false;
	expect_int(fix_match(n, 6, 0), 1);
	value_of(0, 0, 1)->there = false;
	expect_int(fix_match(n, 6, 0), 0);
	fix_end();
}

TEST(match_of_a_process_that_knows_nothing_finds_the_parts_by_itself)
{
	static const uint32_t n[3] = {0, 1, 2};

	begin();
	for (uint32_t i = 0; i < 3; i++)
		expect_int(fix_one(KVOF_SAVE, i, data, i == 1 ? 0 : THREE).reason, KVOF_OK);
	fix_close_core();
	loop_close(&fix.loop);
	identity_free(&fix.identity);
	fix_begin("f16");
	expect_int(fix_open(), 0);
	expect_int(fix_match(n, 3, 0), 3);
	value_of(2, 2, 3)->there = false;
	expect_int(fix_match(n, 3, 0), 2);
	fix_end();
}

TEST(match_asks_about_all_blocks_at_once)
{
	uint32_t n[64];

	begin();
	for (uint32_t i = 0; i < 64; i++)
		n[i] = i;
	sim_host.flying_max = 0;
	expect_int(fix_match(n, 64, 0), 0);
	expect_int(sim_host.flying_max, 64);
	fix_end();
}

TEST(match_counts_what_is_not_answered_in_time_as_absent)
{
	static const uint32_t n[2] = {0, 1};
	uint64_t begin_ns;

	begin();
	expect_int(fix_one(KVOF_SAVE, 0, data, 10).reason, KVOF_OK);
	sim_host.hook = hook_hang;
	begin_ns = sim_now_ns();
	expect_int(fix_match(n, 2, 20 * NS_PER_MS), 0);
	expect(sim_now_ns() < begin_ns + 21 * NS_PER_MS);
	fix_end();
}

/* --- array lost and back ---------------------------------------------------------------------- */

TEST(an_array_that_is_away_is_told_at_once_and_used_again_when_back)
{
	uint64_t begin_ns;

	begin();
	expect_int(fix_one(KVOF_SAVE, 1, data, 300).reason, KVOF_OK);
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	begin_ns = sim_now_ns();
	expect_int(fix_one(KVOF_LOAD, 1, back, 300).reason, KVOF_UNREACHABLE);
	expect_int(fix_one(KVOF_SAVE, 2, back, 300).reason, KVOF_UNREACHABLE);
	expect_int(fix_match((uint32_t[]){1}, 1, 0), 0);
	expect(sim_now_ns() < begin_ns + 10 * NS_PER_MS);
	sim_host_state_set(HOST_LIVE, 0);
	expect_int(fix_one(KVOF_LOAD, 1, back, 300).reason, KVOF_OK);
	fix_end();
}

TEST(a_load_that_was_under_way_when_the_array_went_is_unreachable_by_its_deadline)
{
	struct iovec iov;
	struct kvof_block b;
	uint64_t batch;

	begin();
	sim_host.hook = hook_hang;
	b = fix_block(1, &iov, back, 300);
	batch = fix_submit(KVOF_LOAD, &b, 1, 100 * NS_PER_MS);
	expect(!sim_run_until(fix_all_over, NULL, 50 * NS_PER_MS));
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	fix_wait();
	expect_int(fix_result_of(batch, 0, 0).reason, KVOF_UNREACHABLE);
	fix_end();
}

/* --- limits ----------------------------------------------------------------------------------- */

TEST(more_values_than_may_fly_wait_and_are_all_answered)
{
	static struct kvof_block b[KVOF_BLOCKS_MAX];
	static struct iovec iov[KVOF_BLOCKS_MAX];
	uint64_t batch;

	begin();
	for (uint32_t i = 0; i < KVOF_BLOCKS_MAX; i++)
		b[i] = fix_block(i, &iov[i], back, 2 * FIX_CUT);
	batch = fix_submit(KVOF_LOAD, b, KVOF_BLOCKS_MAX, 10 * NS_PER_S);
	fix_wait();
	for (uint32_t i = 0; i < KVOF_BLOCKS_MAX; i += 100)
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_ABSENT);
	expect_int(fix.results, KVOF_BLOCKS_MAX);
	expect_int(sim_host.flying_max, TIER_FLYING_MAX);
	/* and when nothing ever comes back, each ends by its deadline */
	fix.results = 0;
	sim_host.hook = hook_hang;
	batch = fix_submit(KVOF_LOAD, b, KVOF_BLOCKS_MAX, 10 * NS_PER_MS);
	expect(sim_run_until(fix_all_over, NULL, 12 * NS_PER_MS));
	for (uint32_t i = 0; i < KVOF_BLOCKS_MAX; i += 100)
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_LATE);
	fix_end();
}

TEST(a_canceled_batch_that_waits_for_room_ends_too)
{
	static struct kvof_block b[KVOF_BLOCKS_MAX];
	static struct iovec iov[KVOF_BLOCKS_MAX];
	uint64_t batch;

	begin();
	sim_host.hook = hook_hang;
	for (uint32_t i = 0; i < KVOF_BLOCKS_MAX; i++)
		b[i] = fix_block(i, &iov[i], back, 2 * FIX_CUT);
	batch = fix_submit(KVOF_LOAD, b, KVOF_BLOCKS_MAX, 0);
	fix_post(NULL, batch, NULL);
	expect(sim_run_until(fix_all_over, NULL, 10 * NS_PER_MS));
	for (uint32_t i = 0; i < KVOF_BLOCKS_MAX; i += 100)
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_CANCELED);
	fix_end();
}

TEST(a_batch_that_makes_no_sense_is_refused)
{
	struct iovec iov = {data, 10}, null = {NULL, 10};
	struct kvof_block b = {.iov = &iov, .iov_count = 1, .bytes = 10};
	struct cache_batch *batch = NULL;

	expect_int(batch_make(KVOF_LOAD, &b, 0, FIX_CUT, &batch), -EINVAL);
	expect_int(batch_make(KVOF_LOAD, NULL, 1, FIX_CUT, &batch), -EINVAL);
	expect_int(batch_make(KVOF_LOAD, &b, KVOF_BLOCKS_MAX + 1, FIX_CUT, &batch), -EINVAL);
	expect_int(batch_make((enum kvof_op)4, &b, 1, FIX_CUT, &batch), -EINVAL);
	b.bytes = 11;
	expect_int(batch_make(KVOF_LOAD, &b, 1, FIX_CUT, &batch), -EINVAL);
	b.bytes = 10;
	b.iov = NULL;
	expect_int(batch_make(KVOF_SAVE, &b, 1, FIX_CUT, &batch), -EINVAL);
	b.iov = &null;
	expect_int(batch_make(KVOF_SAVE, &b, 1, FIX_CUT, &batch), -EINVAL);
	b.iov = &iov;
	expect_int(batch_make(KVOF_DELETE, &b, 1, FIX_CUT, &batch), -EINVAL);
	b.iov_count = KVOF_IOV_MAX + 1;
	expect_int(batch_make(KVOF_SAVE, &b, 1, FIX_CUT, &batch), -EINVAL);
	iov.iov_len = SIZE_MAX;
	b = (struct kvof_block){.iov = &iov, .iov_count = 1, .bytes = SIZE_MAX};
	expect_int(batch_make(KVOF_SAVE, &b, 1, FIX_CUT, &batch), -EINVAL);
	expect(batch == NULL);
}

/* --- domains ---------------------------------------------------------------------------------- */

static void domains_seed(const char *dtype)
{
	fix_begin(dtype);
	expect_int(fix_open(), 0);
	fix_end();
}

TEST(strict_open_refuses_another_domain_and_names_the_field)
{
	sim_host_reset();
	domains_seed("f16");
	expect_int(sim_host_count(), 1);
	fix_begin("f16");
	expect_int(fix_open(), 0);
	expect_str(fix.why, "");
	fix_end();
	fix_begin("q8_0");
	expect_int(fix_open(), -EINVAL);
	expect(strstr(fix.why, "kv_dtype") != NULL && strstr(fix.why, "f16") != NULL);
	fix_end();
}

TEST(an_open_that_is_not_strict_warns_and_adds_its_domain)
{
	sim_host_reset();
	domains_seed("f16");
	fix_begin("q8_0");
	fix.opts.strict = 0;
	expect_int(fix_open(), 0);
	expect(strstr(fix.why, "kv_dtype") != NULL);
	fix_end();
	domains_seed("q8_0");              /* strict, and in the list now */
	domains_seed("f16");
}

TEST(a_domain_list_that_is_garbage_is_written_anew)
{
	struct kvof_id id;
	struct kv_key key;

	sim_host_reset();
	identity_domains("m", &id);
	key = identity_key(&id);
	sim_host_put(&key, "garbage", 7);
	domains_seed("f16");
	expect(sim_host_find(&key)->bytes > 64);
	sim_host_find(&key)->at[3] ^= 1;   /* a flipped bit */
	domains_seed("f32");
	fix_begin("f16");
	expect_int(fix_open(), -EINVAL);
	fix_end();
}

static unsigned hook_races;

/* Another host was faster: its list is there before our first Store. */
static enum sim_hook hook_race(struct host_op *op, int *res)
{
	if (op->kind != HOST_STORE || hook_races++ > 0)
		return SIM_HOOK_NONE;
	*res = -EEXIST;
	return SIM_HOOK_ANSWER;
}

TEST(a_lost_race_for_the_list_reads_it_again)
{
	sim_host_reset();
	hook_races = 0;
	sim_host.hook = hook_race;
	domains_seed("f16");
	expect_int(hook_races, 2);
	expect_int(sim_host_count(), 1);
}

TEST(strict_open_fails_when_the_array_is_out_of_reach_the_other_serves_misses)
{
	sim_host_reset();
	sim_host.stays_down = true;
	fix_begin("f16");
	expect_int(fix_open(), -ECONNRESET);
	expect(strstr(fix.why, "out of reach") != NULL && strstr(fix.why, "refused") != NULL);
	fix_end();
	fix_begin("f16");
	fix.opts.strict = 0;
	expect_int(fix_open(), 0);
	expect(strstr(fix.why, "out of reach") != NULL);
	expect_int(fix_one(KVOF_LOAD, 1, back, 10).reason, KVOF_UNREACHABLE);
	sim_host_state_set(HOST_LIVE, 0);
	expect_int(fix_one(KVOF_SAVE, 1, data, 10).reason, KVOF_OK);
	while (sim_step())
		;
	expect_int(sim_host_count(), 2);   /* the list was written when it came */
	fix_end();
}

TEST(strict_open_ends_by_its_deadline_when_the_list_does_not_come)
{
	uint64_t begin_ns;

	sim_host_reset();
	sim_host.hook = hook_hang;
	fix_begin("f16");
	begin_ns = sim_now_ns();
	expect_int(fix_open(), -ETIMEDOUT);
	expect(sim_now_ns() < begin_ns + 3 * NS_PER_S);
	fix_end();
}

TEST(parts_larger_than_the_namespace_takes_are_refused_or_made_smaller_by_default)
{
	sim_host_reset();
	sim_host.value_bytes_max = 8192;
	fix_begin("f16");
	fix.opts.part_bytes = 8193;
	expect_int(fix_open(), -EINVAL);
	expect(strstr(fix.why, "8193") != NULL && strstr(fix.why, "8192") != NULL);
	fix_end();
	fix_begin("f16");
	fix.opts.part_bytes = 0;
	expect_int(fix_open(), 0);
	fix_fill(data, sizeof(data), 9);
	expect_int(fix_one(KVOF_SAVE, 1, data, 3 * 8192).reason, KVOF_OK);
	expect_int(value_of(1, 0, 4)->bytes, 8192);
	expect_int(fix_one(KVOF_LOAD, 1, back, 3 * 8192).reason, KVOF_OK);
	expect_mem(back, data, 3 * 8192);
	fix_end();
}

/* --- DRAM before the array -------------------------------------------------------------------- */

static void begin_dram(uint64_t bytes)
{
	sim_host_reset();
	fix_begin("f16");
	fix.opts.dram_bytes = bytes;
	expect_int(fix_open(), 0);
	sim_host.log_count = 0;
}

static void seen(struct kvof_cache_stat *stat)
{
	core_stat(fix.core, stat);
}

TEST(a_saved_block_comes_back_from_dram_without_asking_the_array)
{
	struct kvof_cache_stat stat;

	begin_dram(MiB);
	fix_fill(data, THREE, 4);
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	expect(sim_host_count() > 1);
	sim_host.log_count = 0;
	expect_int(fix_one(KVOF_LOAD, 1, back, THREE).tier, 1);
	expect_mem(back, data, THREE);
	expect_int(fix_match((uint32_t[]){1}, 1, 0), 1);
	expect_int(sim_host.log_count, 0);
	seen(&stat);
	expect_int(stat.hits[1], 1);
	expect_int(stat.hits[2], 0);
	expect_int(stat.loaded_bytes[1], THREE);
	fix_end();
}

TEST(a_block_loaded_from_the_array_moves_up)
{
	struct kvof_cache_stat stat;

	begin();
	fix_fill(data, THREE, 4);
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	fix_close_core();
	loop_close(&fix.loop);
	identity_free(&fix.identity);
	fix_begin("f16");
	fix.opts.dram_bytes = MiB;
	expect_int(fix_open(), 0);
	expect_int(fix_one(KVOF_LOAD, 1, back, THREE).tier, 2);
	noise_back();
	expect_int(fix_one(KVOF_LOAD, 1, back, THREE).tier, 1);
	expect_mem(back, data, THREE);
	seen(&stat);
	expect_int(stat.promoted[KVOF_TIER_DRAM], 1);
	expect_int(stat.dram_blocks, 1);
	fix_end();
}

TEST(delete_removes_a_block_from_every_tier)
{
	begin_dram(MiB);
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_OK);
	expect_int(fix_one(KVOF_DELETE, 1, NULL, 0).reason, KVOF_OK);
	expect_int(sim_host_count(), 1);
	expect_int(fix_one(KVOF_LOAD, 1, back, THREE).reason, KVOF_ABSENT);
	expect_int(fix_one(KVOF_DELETE, 1, NULL, 0).reason, KVOF_ABSENT);
	fix_end();
}

TEST(a_save_that_the_array_refused_says_so_though_dram_has_it)
{
	begin_dram(MiB);
	sim_host.hook = hook_answer;
	answer_res = -ENOSPC;
	expect_int(fix_one(KVOF_SAVE, 1, data, THREE).reason, KVOF_FULL);
	expect_int(fix_one(KVOF_LOAD, 1, back, THREE).tier, 1);
	fix_end();
}

static void begin_dram_only(uint64_t bytes)
{
	fix_begin("f16");
	fix.opts.target = NULL;
	fix.opts.dram_bytes = bytes;
	fix.opts.policy = "lru";           /* the order of use alone decides */
	expect_int(fix_open(), 0);
}

TEST(dram_never_passes_its_cap_and_the_tail_of_a_prefix_goes_first)
{
	struct kvof_block b[8];
	struct iovec iov[8];
	struct kvof_cache_stat stat;
	uint64_t batch;

	begin_dram_only(64 * KiB);         /* 16 pieces of 4 KiB */
	for (uint32_t i = 0; i < 8; i++)
		b[i] = fix_block(i, &iov[i], data + i, 8192);
	batch = fix_submit(KVOF_SAVE, b, 8, 0);
	fix_wait();
	for (uint32_t i = 0; i < 8; i++)
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_OK);
	seen(&stat);
	expect_int(stat.dram_used_bytes, 64 * KiB);
	expect_int(fix_one(KVOF_SAVE, 100, data, 3 * 8192).reason, KVOF_OK);
	seen(&stat);
	expect_int(stat.dram_used_bytes, 64 * KiB);
	expect_int(stat.dram_evicted, 3);
	expect_int(fix_match((uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7}, 8, 0), 5);
	expect_int(fix_one(KVOF_SAVE, 101, data, 64 * KiB + 1).reason, KVOF_FULL);
	fix_end();
}

TEST(a_load_of_a_prefix_keeps_its_head_longest_whatever_order_it_came_in)
{
	struct kvof_block b[4];
	struct iovec iov[4];

	begin_dram_only(64 * KiB);
	for (uint32_t i = 0; i < 4; i++)   /* the tail is saved last, alone */
		expect_int(fix_one(KVOF_SAVE, i, data, 4 * 4096).reason, KVOF_OK);
	for (uint32_t i = 0; i < 4; i++)
		b[i] = fix_block(i, &iov[i], back, 4 * 4096);
	fix_submit(KVOF_LOAD, b, 4, 0);
	fix_wait();
	expect_int(fix_one(KVOF_SAVE, 50, data, 4096).reason, KVOF_OK);
	expect_int(fix_match((uint32_t[]){0, 1, 2, 3}, 4, 0), 3);
	fix_end();
}

TEST(what_match_found_in_dram_stays_until_the_lease_ends)
{
	begin_dram_only(64 * KiB);
	for (uint32_t i = 0; i < 2; i++)
		expect_int(fix_one(KVOF_SAVE, i, data, 32 * KiB).reason, KVOF_OK);
	expect_int(fix_match((uint32_t[]){0}, 1, 0), 1);
	/* takes the place of 1 */
	expect_int(fix_one(KVOF_SAVE, 2, data, 32 * KiB).reason, KVOF_OK);
	expect_int(fix_match((uint32_t[]){2}, 1, 0), 1);
	expect_int(fix_one(KVOF_SAVE, 3, data, 32 * KiB).reason, KVOF_FULL);
	expect_int(fix_one(KVOF_LOAD, 0, back, 32 * KiB).reason, KVOF_OK);
	fix_pass(5 * NS_PER_S - NS_PER_MS);
	expect_int(fix_one(KVOF_SAVE, 3, data, 32 * KiB).reason, KVOF_FULL);
	fix_pass(2 * NS_PER_MS);
	expect_int(fix_one(KVOF_SAVE, 3, data, 32 * KiB).reason, KVOF_OK);
	expect_int(fix_one(KVOF_LOAD, 2, back, 32 * KiB).reason, KVOF_ABSENT);
	expect_int(fix_one(KVOF_LOAD, 0, back, 32 * KiB).reason, KVOF_OK);
	fix_end();
}

static void unlease_run(void)
{
	struct kvof_id id = fix_id(0);

	core_unlease(fix.core, &id, 1);
}

TEST(a_lease_given_back_ends_at_once)
{
	begin_dram_only(64 * KiB);
	expect_int(fix_one(KVOF_SAVE, 0, data, 64 * KiB).reason, KVOF_OK);
	expect_int(fix_match((uint32_t[]){0}, 1, 0), 1);
	expect_int(fix_one(KVOF_SAVE, 1, data, 10).reason, KVOF_FULL);
	fix_post(NULL, 0, unlease_run);
	expect_int(fix_one(KVOF_SAVE, 1, data, 10).reason, KVOF_OK);
	fix_end();
}

/* A map is the judge: any mix of sizes, ids and evictions gives whole right blocks or none. */
TEST(random_saves_loads_and_deletes_in_a_small_dram_are_right_or_absent)
{
	struct prng p = prng_of(77);
	unsigned hits = 0, misses = 0;

	begin_dram_only(256 * KiB);
	for (unsigned i = 0; i < 4000; i++) {
		uint32_t n = (uint32_t)prng_below(&p, 40);
		size_t bytes = n * 1111 % 40000;
		enum kvof_reason reason;

		fix_fill(data, bytes, n);
		fix.results = 0;
		switch (prng_below(&p, 4)) {
		case 0:
			fix_one(KVOF_DELETE, n, NULL, 0);
			break;
		case 1:
			reason = fix_one(KVOF_SAVE, n, data, bytes).reason;
			expect(reason == KVOF_OK || reason == KVOF_EXISTS);
			break;
		default:
			noise_back();
			reason = fix_one(KVOF_LOAD, n, back, bytes).reason;
			if (reason == KVOF_OK)
				expect_mem(back, data, bytes);
			else
				expect_int(reason, KVOF_ABSENT);
			hits += reason == KVOF_OK;
			misses += reason != KVOF_OK;
		}
	}
	expect(hits > 500 && misses > 200);
	fix_end();
}

/* The same over the array, with values that are damaged, lost and hung in between. */
static struct prng hook_prng;

static enum sim_hook hook_mix(struct host_op *op, int *res)
{
	static const int answer[] = {-ENOSPC, -EIO, -EBADMSG, -ECONNRESET, -ENOENT};

	if (prng_chance(&hook_prng, 30000)) {
		*res = answer[prng_below(&hook_prng, ARRAY_COUNT(answer))];
		return SIM_HOOK_ANSWER;
	}
	return prng_chance(&hook_prng, 20000) ? SIM_HOOK_HANG : SIM_HOOK_NONE;
}

TEST(random_work_over_a_faulty_array_never_delivers_wrong_bytes)
{
	unsigned hits = 0, late = 0;

	begin_dram(128 * KiB);
	hook_prng = prng_of(5);
	sim_host.hook = hook_mix;
	sim_host.busy_ns = NS_PER_MS;
	for (unsigned i = 0; i < 6000; i++) {
		uint32_t n = (uint32_t)prng_below(&hook_prng, 30);
		size_t bytes = n * 1501 % 30000;
		uint64_t begin_ns = sim_now_ns();
		struct kvof_result r = {0};

		fix_fill(data, bytes, n);
		fix.results = 0;
		switch (prng_below(&hook_prng, 5)) {
		case 0:
			fix_one(KVOF_DELETE, n, NULL, 0);
			break;
		case 1:
		case 2:
			fix_one(KVOF_SAVE, n, data, bytes);
			break;
		default:
			r = fix_one(KVOF_LOAD, n, back, bytes);
			if (r.reason == KVOF_OK)
				expect_mem(back, data, bytes);
			hits += r.reason == KVOF_OK;
			late += r.reason == KVOF_LATE;
			expect(r.reason != KVOF_IDENTITY && r.reason != KVOF_CANCELED);
		}
		expect(sim_now_ns() < begin_ns + 2003 * NS_PER_MS);
	}
	expect(hits > 1000 && late > 10);
	fix_end();
}
