/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/store.c: what each operation answers, in the simulator without faults. */
#include "../fault/store_rig.h"

#include <errno.h>

TEST(a_value_comes_back_whole_at_every_size_around_a_block)
{
	static const uint32_t sizes[] = {0, 1, 127, 128, 511, 512, 513, 3967, 3968, 3969, 4095,
					 4096, 4097, 65535, 131071, 512 * 1024 - 1, 512 * 1024};
	struct rig g;

	rig_begin(&g, 1, 2, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < ARRAY_COUNT(sizes); i++)
		expect_int(rig_put(&g, i, 1, sizes[i]), 0);
	for (uint32_t i = 0; i < ARRAY_COUNT(sizes); i++)
		expect_int(rig_get(&g, i, 1, sizes[i]), 0);
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	expect_int(g.report.keys, ARRAY_COUNT(sizes));
	for (uint32_t i = 0; i < ARRAY_COUNT(sizes); i++)
		expect_int(rig_get(&g, i, 1, sizes[i]), 0);
	rig_end(&g);
}

TEST(an_overwrite_replaces_and_a_delete_removes_also_after_reopening)
{
	struct rig g;

	rig_begin(&g, 2, 3, 16 * MiB);
	expect_int(rig_open(&g), 0);
	expect_int(rig_put(&g, 1, 1, 5000), 0);
	expect_int(rig_put(&g, 1, 2, 70), 0);
	expect_int(rig_put(&g, 2, 1, 100), 0);
	expect_int(rig_delete(&g, 2), 0);
	expect_int(rig_delete(&g, 2), -ENOENT);
	expect_int(rig_delete(&g, 3), -ENOENT);
	for (unsigned pass = 0; pass < 2; pass++) {
		expect_int(rig_get(&g, 1, 2, 70), 0);
		expect_int(rig_get(&g, 2, 1, 100), -ENOENT);
		expect(!rig_exists(&g, 2));
		expect_int(rig_stat(&g).keys, 1);
		expect_int(rig_stat(&g).value_bytes, 70);
		if (pass == 0) {
			rig_close(&g);
			expect_int(rig_open(&g), 0);
		}
	}
	rig_end(&g);
}

TEST(conditions_are_decided_by_what_is_there)
{
	struct rig g;

	rig_begin(&g, 3, 1, 16 * MiB);
	expect_int(rig_open(&g), 0);
	expect_int(rig_put_mode(&g, 1, 1, 10, STORE_PUT_IF_PRESENT), -ENOENT);
	expect(!rig_exists(&g, 1));
	expect_int(rig_put_mode(&g, 1, 2, 10, STORE_PUT_IF_ABSENT), 0);
	expect_int(rig_put_mode(&g, 1, 3, 10, STORE_PUT_IF_ABSENT), -EEXIST);
	expect_int(rig_get(&g, 1, 2, 10), 0);
	expect_int(rig_put_mode(&g, 1, 4, 10, STORE_PUT_IF_PRESENT), 0);
	expect_int(rig_get(&g, 1, 4, 10), 0);
	rig_end(&g);
}

#define RACERS 16

static bool all_done(void *arg)
{
	const struct rig_op *r = arg;

	for (unsigned i = 0; i < RACERS; i++) {
		if (!r[i].done)
			return false;
	}
	return true;
}

TEST(of_many_store_if_absent_at_once_exactly_one_succeeds_and_its_bytes_stay)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct rig g;
		struct rig_op r[RACERS];
		unsigned winners = 0;

		rig_begin(&g, seed, 2, 16 * MiB);
		expect_int(rig_open(&g), 0);
		for (unsigned i = 0; i < RACERS; i++)
			expect(rig_put_start(&g, &r[i], 9, i, 3000, STORE_PUT_IF_ABSENT));
		expect(sim_run_until(all_done, r, RIG_TIME_MAX));
		for (unsigned i = 0; i < RACERS; i++) {
			expect(r[i].res == 0 || r[i].res == -EEXIST);
			if (r[i].res == 0)
				expect_int(rig_get(&g, 9, i, 3000), 0);
			winners += r[i].res == 0;
			store_buf_give(g.st, &r[i].buf);
		}
		expect_int(winners, 1);
		rig_end(&g);
	}
}

TEST(puts_and_deletes_of_one_key_take_effect_in_the_order_of_the_calls)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct rig g;
		struct rig_op r[RACERS];
		bool kept = seed % 2 == 0;

		rig_begin(&g, seed, 2, 16 * MiB);
		expect_int(rig_open(&g), 0);
		memset(r, 0, sizeof(r));
		for (unsigned i = 0; i < RACERS; i++) {
			bool put = i % 3 != 2 && (kept || i + 1 < RACERS);

			if (put) {
				expect(rig_put_start(&g, &r[i], 4, i, 100 + i, STORE_PUT_ANY));
				continue;
			}
			r[i].op = (struct store_op){.key = rig_key(4), .done = rig_op_done};
			store_delete(g.st, &r[i].op);
		}
		expect(sim_run_until(all_done, r, RIG_TIME_MAX));
		for (unsigned i = 0; i < RACERS; i++) {
			bool there = i > 0 && r[i - 1].buf != NULL;

			expect_int(r[i].res, r[i].buf != NULL || there ? 0 : -ENOENT);
		}
		for (unsigned i = 0; i < RACERS; i++) {
			if (r[i].buf != NULL)
				store_buf_give(g.st, &r[i].buf);
		}
		expect_int(rig_get(&g, 4, RACERS - 1, 100 + RACERS - 1), kept ? 0 : -ENOENT);
		rig_end(&g);
	}
}

TEST(a_get_into_less_room_gives_the_head_of_the_value_and_its_true_length)
{
	struct rig g;
	struct rig_op r = {.done = false};
	uint8_t value[9000];

	rig_begin(&g, 5, 1, 16 * MiB);
	expect_int(rig_open(&g), 0);
	expect_int(rig_put(&g, 1, 1, sizeof(value)), 0);
	rig_value(1, 1, value, sizeof(value));
	r.op = (struct store_op){.key = rig_key(1), .want_bytes = 1000, .done = rig_op_done};
	store_get(g.st, &r.op);
	expect(rig_wait(&r.done));
	expect_int(r.res, 0);
	expect_int(r.op.value_bytes, sizeof(value));
	expect_int(r.op.buf->payload_bytes, 1000);
	expect(rig_same(r.op.buf, value));
	store_buf_give(g.st, &r.op.buf);
	rig_end(&g);
}

TEST(a_get_of_no_bytes_tells_the_length_and_reads_no_drive)
{
	struct rig g;
	struct rig_op r = {.done = false};
	uint64_t before;

	rig_begin(&g, 6, 1, 16 * MiB);
	expect_int(rig_open(&g), 0);
	expect_int(rig_put(&g, 1, 1, 9000), 0);
	before = rig_stat(&g).device_read_bytes;
	r.op = (struct store_op){.key = rig_key(1), .want_bytes = 0, .done = rig_op_done};
	store_get(g.st, &r.op);
	expect(rig_wait(&r.done));
	expect_int(r.res, 0);
	expect_int(r.op.value_bytes, 9000);
	expect(r.op.buf == NULL);
	expect_int(rig_stat(&g).device_read_bytes, before);
	rig_end(&g);
}

TEST(a_list_in_pages_is_in_order_whole_and_reads_no_drive)
{
	struct rig g;
	struct kv_key from = {.len = 0}, keys[7], last = {.len = 0};
	uint32_t bytes[7];
	unsigned n, seen = 0;
	uint64_t before;

	rig_begin(&g, 7, 2, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 200; i++)
		expect_int(rig_put(&g, i, 1, i), 0);
	for (uint32_t i = 0; i < 200; i += 10)
		expect_int(rig_delete(&g, i), 0);
	before = rig_stat(&g).device_read_bytes;
	do {
		kt_noise(keys, sizeof(keys));
		n = store_list(g.st, &from, keys, bytes, 7);
		for (unsigned i = 0; i < n; i++) {
			uint32_t number;

			if (i == 0 && last.len != 0 && kv_key_equal(&keys[0], &last))
				continue;
			expect(last.len == 0 || kv_key_compare(&last, &keys[i]) < 0);
			last = keys[i];
			memcpy(&number, keys[i].byte + 8, sizeof(number));
			expect(number % 10 != 0);
			expect_int(bytes[i], number);
			seen++;
		}
		from = last;
	} while (n == 7);
	expect_int(seen, 180);
	expect_int(rig_stat(&g).device_read_bytes, before);
	rig_end(&g);
}

TEST(values_spread_over_the_drives_and_an_overwrite_stays_on_its_drive)
{
	struct rig g;
	uint64_t bytes;

	rig_begin(&g, 8, 4, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 40; i++)
		expect_int(rig_put(&g, i, 1, 100000), 0);
	for (unsigned d = 0; d < 4; d++)
		expect_int(sim_disk_bytes(g.path[d], &bytes) != NULL, 1);
	for (uint32_t i = 0; i < 40; i++) {
		struct kv_key key = rig_key(i);
		uint8_t drive = index_place(g.st->index, index_find(g.st->index, &key)).drive;

		expect_int(rig_put(&g, i, 2, 100), 0);
		expect_int(index_place(g.st->index, index_find(g.st->index, &key)).drive, drive);
	}
	for (unsigned d = 0; d < 4; d++)
		expect(segment_log_open(&g.st->drive[d])->entry_count >= 10);
	rig_end(&g);
}

TEST(close_completes_what_is_under_way_and_loses_none_of_it)
{
	struct rig g;
	struct rig_op r[RACERS];
	bool closed = false;

	rig_begin(&g, 9, 2, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < RACERS; i++)
		expect(rig_put_start(&g, &r[i], i, 1, 50000, STORE_PUT_ANY));
	{
		struct store *st = g.st;

		store_close(&g.st, rig_closed, &closed);
		expect(sim_run_until(all_done, r, RIG_TIME_MAX));
		expect(!closed);
		for (unsigned i = 0; i < RACERS; i++) {
			expect_int(r[i].res, 0);
			store_buf_give(st, &r[i].buf);
		}
	}
	expect(rig_wait(&closed));
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < RACERS; i++)
		expect_int(rig_get(&g, i, 1, 50000), 0);
	rig_end(&g);
}

TEST(counters_tell_hits_misses_and_what_moved)
{
	struct rig g;
	struct store_stat s;

	rig_begin(&g, 10, 1, 16 * MiB);
	expect_int(rig_open(&g), 0);
	expect_int(rig_put(&g, 1, 1, 10000), 0);
	expect_int(rig_get(&g, 1, 1, 10000), 0);
	expect_int(rig_get(&g, 2, 1, 1), -ENOENT);
	expect_int(rig_delete(&g, 1), 0);
	expect_int(rig_flush(&g), 0);
	s = rig_stat(&g);
	expect_int(s.puts, 1);
	expect_int(s.gets, 2);
	expect_int(s.hits, 1);
	expect_int(s.misses, 1);
	expect_int(s.deletes, 1);
	expect_int(s.drives, 1);
	expect(s.device_write_bytes >= 10000 && s.used_bytes <= s.capacity_bytes);
	rig_end(&g);
}

TEST(values_of_the_highest_limit_come_back)
{
	struct rig g;

	rig_begin(&g, 11, 2, 600 * MiB);
	g.opts.value_bytes_max = STORE_VALUE_BYTES_LIMIT;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 3; i++)
		expect_int(rig_put(&g, i, 1, STORE_VALUE_BYTES_LIMIT - i), 0);
	rig_crash(&g, true);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 3; i++)
		expect_int(rig_get(&g, i, 1, STORE_VALUE_BYTES_LIMIT - i), 0);
	rig_end(&g);
}

TEST(a_full_index_of_a_namespace_that_does_not_evict_refuses_and_holds_up_nobody)
{
	struct rig g;
	struct rig_op r[RACERS];
	unsigned good = 0;

	rig_begin(&g, 12, 3, 16 * MiB);
	g.opts.evict = false;
	g.opts.index_keys_max = RACERS / 2;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < RACERS; i++)
		expect(rig_put_start(&g, &r[i], i, 1, 3000, STORE_PUT_ANY));
	expect(sim_run_until(all_done, r, RIG_TIME_MAX));
	for (unsigned i = 0; i < RACERS; i++) {
		expect(r[i].res == 0 || r[i].res == -ENOSPC);
		good += r[i].res == 0;
		store_buf_give(g.st, &r[i].buf);
	}
	expect_int(good, RACERS / 2);
	rig_end(&g);
}

static struct rig *chain_rig;
static struct rig_op chain_put;

static void get_then_put(struct store_op *op, int res)
{
	rig_op_done(op, res);
	store_put(chain_rig->st, &chain_put.op);
}

TEST(an_answer_that_starts_the_next_operation_does_not_disturb_gets_that_wait)
{
	struct rig g;
	struct rig_op get[4] = {0};

	rig_begin(&g, 4, 1, 16 * MiB);
	g.opts.drive_depth = 1;            /* one get reads, three wait */
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 4; i++)
		expect_int(rig_put(&g, i, 1, 20000), 0);
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	chain_rig = &g;
	chain_put = (struct rig_op){.wait = {.payload_bytes = 100, .ready = rig_buf_ready}};
	store_buf_take(g.st, &chain_put.wait);
	expect(rig_wait(&chain_put.done));
	chain_put.done = false;
	chain_put.op = (struct store_op){.key = rig_key(9), .buf = chain_put.buf,
					 .done = rig_op_done};
	for (uint32_t i = 0; i < 4; i++) {
		get[i].op = (struct store_op){.key = rig_key(i), .want_bytes = UINT32_MAX,
					      .done = i == 0 ? get_then_put : rig_op_done};
		store_get(g.st, &get[i].op);
	}
	for (uint32_t i = 0; i < 4; i++) {
		expect(rig_wait(&get[i].done));
		expect_int(get[i].res, 0);
		store_buf_give(g.st, &get[i].op.buf);
	}
	expect(rig_wait(&chain_put.done));
	expect_int(chain_put.res, 0);
	store_buf_give(g.st, &chain_put.buf);
	rig_end(&g);
}
