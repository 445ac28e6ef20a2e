/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/buf.c: the pool of value buffers. */
#include "../fault/store_rig.h"

struct waiter {
	struct store_buf_wait wait;
	struct store_buf *buf;
	unsigned order;
};

static unsigned order_next;

static void ready(struct store_buf_wait *wait, struct store_buf *buf)
{
	struct waiter *w = container_of(wait, struct waiter, wait);

	w->buf = buf;
	w->order = ++order_next;
}

static void pool_begin(struct loop **loop, struct buf_pool *pool, uint64_t bytes)
{
	struct sim_opts sim = {.seed = 1};
	struct loop_opts lo = {.name = "pool"};

	order_next = 0;
	expect_int(sim_begin(&sim), 0);
	expect_int(loop_open(&lo, loop), 0);
	expect_int(buf_pool_open(pool, *loop, bytes), 0);
}

static void pool_end(struct loop **loop, struct buf_pool *pool)
{
	expect(buf_pool_idle(pool));
	buf_pool_close(pool);
	loop_close(loop);
	sim_end();
}

TEST(pieces_are_exactly_the_payload_and_chunks_are_whole_blocks)
{
	static const uint32_t sizes[] = {0, 1, 3968, 3969, 100000, 512 * 1024};
	struct loop *loop;
	struct buf_pool pool;

	pool_begin(&loop, &pool, 4 * MiB);
	for (unsigned i = 0; i < ARRAY_COUNT(sizes); i++) {
		struct store_buf *buf = buf_take_now(&pool, sizes[i]);
		size_t bytes = 0;

		expect(buf != NULL);
		for (unsigned p = 0; p < buf->piece_count; p++)
			bytes += buf->piece[p].iov_len;
		expect_int(bytes, sizes[i]);
		expect_int(buf->payload_bytes, sizes[i]);
		expect_int(buf_blocks(buf), fmt_record_blocks(sizes[i]));
		expect_int((uintptr_t)buf->chunk[0].iov_base % FMT_BLOCK_BYTES, 0);
		store_buf_return(&buf);
		expect(buf == NULL);
	}
	pool_end(&loop, &pool);
}

TEST(padding_behind_the_payload_is_zeroed_and_the_payload_is_not)
{
	struct loop *loop;
	struct buf_pool pool;
	struct store_buf *buf;
	const uint8_t *at;

	pool_begin(&loop, &pool, 64 * KiB);
	buf = buf_take_now(&pool, 5000);
	memset(buf->chunk[0].iov_base, 0xee, buf->chunk[0].iov_len);
	buf_pad(buf);
	at = buf->chunk[0].iov_base;
	expect_int(at[127 + 5000], 0xee);
	for (unsigned i = 128 + 5000; i < 8192; i++)
		expect_int(at[i], 0);
	store_buf_return(&buf);
	pool_end(&loop, &pool);
}

TEST(those_who_wait_are_served_in_their_order_on_a_later_turn)
{
	struct loop *loop;
	struct buf_pool pool;
	struct store_buf *all;
	struct waiter big = {.wait = {.payload_bytes = 40000, .ready = ready}};
	struct waiter small = {.wait = {.payload_bytes = 10, .ready = ready}};

	pool_begin(&loop, &pool, 64 * KiB);
	all = buf_take_now(&pool, 50000);
	store_pool_take(&pool, &big.wait);
	store_pool_take(&pool, &small.wait);
	while (sim_step())
		;
	expect(big.buf == NULL && small.buf == NULL);    /* the small one passes nobody */
	expect(buf_take_now(&pool, 10) == NULL);
	store_buf_return(&all);
	expect(big.buf == NULL);
	while (sim_step())
		;
	expect_int(big.order, 1);
	expect_int(small.order, 2);
	store_buf_return(&big.buf);
	store_buf_return(&small.buf);
	pool_end(&loop, &pool);
}

TEST(who_gives_up_waiting_is_not_served_and_holds_up_nobody)
{
	struct loop *loop;
	struct buf_pool pool;
	struct store_buf *all;
	struct waiter big = {.wait = {.payload_bytes = 40000, .ready = ready}};
	struct waiter small = {.wait = {.payload_bytes = 10, .ready = ready}};

	pool_begin(&loop, &pool, 64 * KiB);
	all = buf_take_now(&pool, 50000);
	store_pool_take(&pool, &big.wait);
	store_pool_take(&pool, &small.wait);
	expect(store_pool_cancel(&pool, &big.wait));
	expect(!store_pool_cancel(&pool, &big.wait));
	while (sim_step())
		;
	expect(big.buf == NULL && small.buf != NULL);
	store_buf_return(&all);
	store_buf_return(&small.buf);
	pool_end(&loop, &pool);
}

TEST(a_buffer_that_the_kernel_still_has_is_not_given_to_another)
{
	struct loop *loop;
	struct buf_pool pool;
	struct store_buf *buf, *held, *other;

	pool_begin(&loop, &pool, 64 * KiB);
	buf = held = buf_take_now(&pool, 50000);
	store_buf_hold(buf);
	store_buf_return(&buf);
	expect(buf_take_now(&pool, 50000) == NULL);
	store_buf_drop(held);
	other = buf_take_now(&pool, 50000);
	expect(other != NULL);
	store_buf_return(&other);
	pool_end(&loop, &pool);
}

TEST(a_value_fits_a_pool_in_pieces_when_no_run_is_long_enough)
{
	struct loop *loop;
	struct buf_pool pool;
	struct store_buf *part[8], *buf;

	pool_begin(&loop, &pool, 8 * 128 * KiB);
	for (unsigned i = 0; i < 8; i++)
		part[i] = buf_take_now(&pool, 128 * 1024 - 128);
	for (unsigned i = 0; i < 8; i += 2)
		store_buf_return(&part[i]);
	buf = buf_take_now(&pool, 400 * 1024);
	expect(buf != NULL);
	expect_int(buf->chunk_count, 4);
	store_buf_return(&buf);
	for (unsigned i = 1; i < 8; i += 2)
		store_buf_return(&part[i]);
	pool_end(&loop, &pool);
}

TEST(a_long_run_of_takes_and_gives_never_hands_out_a_block_twice)
{
	struct loop *loop;
	struct buf_pool pool;
	struct store_buf *buf[64] = {NULL};
	struct prng p = prng_of(4);
	unsigned taken = 0;

	pool_begin(&loop, &pool, 2 * MiB);
	for (unsigned i = 0; i < 20000; i++) {
		unsigned n = (unsigned)prng_below(&p, 64);

		if (buf[n] != NULL) {
			bool empty = buf[n]->piece_count == 0;
			const uint8_t *at = empty ? NULL : buf[n]->piece[0].iov_base;

			expect(at == NULL || *at == n);
			store_buf_return(&buf[n]);
			continue;
		}
		buf[n] = buf_take_now(&pool, (uint32_t)prng_below(&p, i % 7 == 0 ? 300000 : 9000));
		if (buf[n] == NULL)
			continue;
		taken++;
		for (unsigned c = 0; c < buf[n]->piece_count; c++)
			memset(buf[n]->piece[c].iov_base, (int)n, buf[n]->piece[c].iov_len);
	}
	expect(taken > 5000);
	for (unsigned n = 0; n < 64; n++) {
		if (buf[n] != NULL)
			store_buf_return(&buf[n]);
	}
	pool_end(&loop, &pool);
}
