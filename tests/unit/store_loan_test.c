/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/loan.c: values of a drive of memory are sent from where they lie. */
#include "../fault/store_rig.h"

#include <errno.h>

#include "store/inner.h"

#define VALUE 200000u

static void begin(struct rig *g, uint64_t seed, uint64_t drive_bytes)
{
	rig_begin(g, seed, 1, drive_bytes);
	g->opts.drive[0] = (struct store_drive){.path = "mem", .bytes = drive_bytes};
	expect_int(rig_open(g), 0);
}

static void get_begin(struct rig *g, struct rig_op *r, uint32_t key)
{
	memset(r, 0, sizeof(*r));
	r->op = (struct store_op){.key = rig_key(key), .want_bytes = UINT32_MAX,
				  .done = rig_op_done};
	store_get(g->st, &r->op);
	must(!r->done);
	expect(rig_wait(&r->done));
}

static bool holds(const struct rig_op *r, uint32_t key, uint32_t bytes)
{
	static uint8_t value[VALUE];

	must(bytes <= VALUE);
	rig_value(key, 1, value, bytes);
	return r->op.value_bytes == bytes && rig_same(r->op.buf, value);
}

TEST(a_large_value_in_memory_is_lent_and_a_small_one_copied)
{
	struct rig g;
	struct rig_op large, small;
	uint64_t before;

	begin(&g, 1, 32 * MiB);
	expect_int(rig_put(&g, 1, 1, VALUE), 0);
	expect_int(rig_put(&g, 2, 1, 5000), 0);
	before = rig_stat(&g).device_read_bytes;
	get_begin(&g, &large, 1);
	expect_int(large.res, 0);
	expect(holds(&large, 1, VALUE));
	expect_int(g.st->loans, 1);
	expect_int(g.st->pool->free_blocks, g.st->pool->block_count);
	expect_int(rig_stat(&g).device_read_bytes - before, 53 * 4096 - 4 * 4096);
	get_begin(&g, &small, 2);
	expect_int(small.res, 0);
	expect(holds(&small, 2, 5000));
	expect_int(g.st->loans, 1);
	store_buf_give(g.st, &small.op.buf);
	store_buf_give(g.st, &large.op.buf);
	expect_int(g.st->loans, 0);
	expect(buf_pool_idle(g.st->pool));
	rig_end(&g);
}

TEST(of_less_room_the_head_is_lent_and_no_room_reads_nothing)
{
	struct rig g;
	struct rig_op r = {.done = false};
	uint8_t value[VALUE];

	begin(&g, 2, 32 * MiB);
	expect_int(rig_put(&g, 1, 1, VALUE), 0);
	r.op = (struct store_op){.key = rig_key(1), .want_bytes = 70000, .done = rig_op_done};
	store_get(g.st, &r.op);
	expect(rig_wait(&r.done));
	expect_int(r.res, 0);
	expect_int(r.op.value_bytes, VALUE);
	expect_int(r.op.buf->payload_bytes, 70000);
	rig_value(1, 1, value, VALUE);
	expect(rig_same(r.op.buf, value));
	store_buf_give(g.st, &r.op.buf);
	memset(&r, 0, sizeof(r));
	r.op = (struct store_op){.key = rig_key(1), .done = rig_op_done};
	store_get(g.st, &r.op);
	expect(rig_wait(&r.done));
	expect_int(r.res, 0);
	expect(r.op.buf == NULL && r.op.value_bytes == VALUE);
	rig_end(&g);
}

/* A host that does not read on: what it was lent stays, and everybody else goes on. */
TEST(a_lent_value_outlives_many_turns_of_the_drive_and_holds_nobody_up)
{
	struct rig g;
	struct rig_op r[40];
	uint64_t lent;
	uint32_t held;

	begin(&g, 3, 64 * MiB);
	for (uint32_t i = 0; i < ARRAY_COUNT(r); i++)
		expect_int(rig_put(&g, i, 1, VALUE), 0);
	for (uint32_t i = 0; i < ARRAY_COUNT(r); i++)
		get_begin(&g, &r[i], i);
	lent = g.st->loans;
	expect(lent > 0);
	for (uint32_t i = 1000; i < 2200; i++)         /* three times the drive */
		expect_int(rig_put(&g, i, 1, VALUE), 0);
	expect_int(g.st->loans, lent);
	held = g.st->drive[0].segments_held;
	expect(held > 0 && held <= g.st->drive[0].segment_count / 8 + 1);
	for (uint32_t i = 0; i < ARRAY_COUNT(r); i++) {
		expect_int(r[i].res, 0);
		expect(holds(&r[i], i, VALUE));
		expect(!rig_exists(&g, i));
		store_buf_give(g.st, &r[i].op.buf);
	}
	expect_int(g.st->loans, 0);
	expect_int(g.st->drive[0].segments_held, 0);
	expect_int(g.st->drive[0].segments_lent, 0);
	for (uint32_t i = 3000; i < 3600; i++)
		expect_int(rig_put(&g, i, 1, VALUE), 0);
	expect_int(rig_get(&g, 3599, 1, VALUE), 0);
	rig_end(&g);
}

TEST(loans_lie_in_few_segments_and_what_is_not_lent_is_copied)
{
	struct rig g;
	struct rig_op r[30];
	const struct drive *d;
	uint32_t most;

	begin(&g, 4, 64 * MiB);
	d = &g.st->drive[0];
	most = d->segment_count / 8 + 1;
	for (uint32_t i = 0; i < 260; i++)
		expect_int(rig_put(&g, i, 1, VALUE), 0);
	for (uint32_t i = 0; i < ARRAY_COUNT(r); i++) {
		get_begin(&g, &r[i], i * 8);
		expect_int(r[i].res, 0);
		expect(holds(&r[i], i * 8, VALUE));
		expect(d->segments_lent <= most);
	}
	expect_int(d->segments_lent, most);
	expect(g.st->loans < ARRAY_COUNT(r));
	for (uint32_t i = 0; i < ARRAY_COUNT(r); i++)
		store_buf_give(g.st, &r[i].op.buf);
	expect(buf_pool_idle(g.st->pool));
	rig_end(&g);
}

TEST(a_flipped_bit_in_memory_is_told_and_nothing_is_lent)
{
	struct rig g;
	struct rig_op r;
	uint8_t *at;

	begin(&g, 5, 32 * MiB);
	expect_int(rig_put(&g, 1, 1, VALUE), 0);
	get_begin(&g, &r, 1);
	expect_int(r.res, 0);
	at = (uint8_t *)r.op.buf->piece[0].iov_base + 123456;
	store_buf_give(g.st, &r.op.buf);
	*at ^= 4;
	get_begin(&g, &r, 1);
	expect_int(r.res, -EBADMSG);
	expect(r.op.buf == NULL);
	expect_int(g.st->loans, 0);
	expect_int(rig_stat(&g).corrupt, 1);
	get_begin(&g, &r, 1);
	expect_int(r.res, -ENOENT);
	rig_end(&g);
}

TEST(a_store_closes_when_its_loans_are_over)
{
	struct rig g;
	struct rig_op r;
	bool closed = false;

	begin(&g, 6, 32 * MiB);
	expect_int(rig_put(&g, 1, 1, VALUE), 0);
	get_begin(&g, &r, 1);
	expect_int(r.res, 0);
	store_close(&g.st, rig_closed, &closed);
	sim_run_until(rig_is_done, &closed, NS_PER_S);
	expect(!closed);
	expect(holds(&r, 1, VALUE));
	store_buf_return(&r.op.buf);
	expect(sim_run_until(rig_is_done, &closed, RIG_TIME_MAX));
	rig_end(&g);
}
