/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/slow.c: reads that begin no faster than a rate; they wait and never fail. */
#include "set_rig.h"

#include "loop/sim.h"

#define VALUES 32u
#define VALUE_BYTES 500000u

static void put_all(struct rig *g, uint32_t first)
{
	for (uint32_t i = 0; i < VALUES; i++)
		expect_int(rig_put(g, first + i, 1, VALUE_BYTES), 0);
}

struct gets {
	struct rig_op op[VALUES];
	unsigned left;
};

static void got(struct store_op *op, int res)
{
	struct rig_op *r = container_of(op, struct rig_op, op);

	rig_op_done(op, res);
	r->buf = op->buf;
}

/* All at once, of which no more than fit the pool are in flight. Return: ns that they took. */
static uint64_t get_all(struct rig *g, uint32_t first)
{
	struct gets *all = calloc(1, sizeof(*all));
	uint64_t began = sim_now_ns();

	for (uint32_t i = 0; i < VALUES; i++) {
		all->op[i].op = (struct store_op){.key = rig_key(first + i),
			.want_bytes = UINT32_MAX, .done = got};
		store_get(g->st, &all->op[i].op);
	}
	for (uint32_t i = 0; i < VALUES; i++) {
		uint8_t *value = malloc(VALUE_BYTES);

		expect(rig_wait(&all->op[i].done));
		expect_int(all->op[i].res, 0);
		rig_value(first + i, 1, value, VALUE_BYTES);
		expect(rig_same(all->op[i].buf, value));
		store_buf_give(g->st, &all->op[i].buf);
		free(value);
	}
	free(all);
	return sim_now_ns() - began;
}

TEST(values_are_read_as_fast_as_the_limit_lets_them_and_none_fails)
{
	static const struct { uint64_t bytes_per_s, least_ms, most_ms; } row[] = {
		{0, 0, 60}, {100000000, 140, 200}, {2000000, 7700, 8600}, {1000000, 15500, 17000},
	};

	for (unsigned i = 0; i < ARRAY_COUNT(row); i++) {
		struct rig g;
		uint64_t ms;

		rig_begin(&g, i + 1, 1, 64 * MiB);
		g.opts.drive_read_bytes_per_s = row[i].bytes_per_s;
		expect_int(rig_open(&g), 0);
		put_all(&g, 0);
		ms = get_all(&g, 0) / NS_PER_MS;
		if (ms < row[i].least_ms || ms > row[i].most_ms)
			fail_msg("%u: %u ms", i, (unsigned)ms);
		expect_int(rig_stat(&g).drives_failed, 0);
		rig_end(&g);
	}
}

TEST(each_drive_has_a_limit_of_its_own)
{
	struct rig g;
	uint64_t ms;

	rig_begin(&g, 1, 4, 64 * MiB);
	g.opts.drive_read_bytes_per_s = 10000000;
	expect_int(rig_open(&g), 0);
	put_all(&g, 0);
	ms = get_all(&g, 0) / NS_PER_MS;
	if (ms < 300 || ms > 1200)               /* one alone takes 1,600 */
		fail_msg("%u ms", (unsigned)ms);
	rig_end(&g);
}

TEST(namespaces_on_one_drive_share_its_limit)
{
	struct set_rig r;
	struct store *first;
	uint64_t began;
	uint32_t id[2];

	set_rig_begin(&r, 1, 1, 128 * MiB);
	r.opts.drive_read_bytes_per_s = 20000000;
	expect_int(set_rig_open(&r), 0);
	for (unsigned i = 0; i < 2; i++)
		id[i] = set_rig_kv(&r, 40 * MiB);
	expect_int(set_rig_store(&r, id[0], 0), 0);
	put_all(&r.g, 0);
	first = r.g.st;
	expect_int(set_rig_store(&r, id[1], 0), 0);
	put_all(&r.g, 1000);
	began = sim_now_ns();
	for (unsigned i = 0; i < 8; i++) {               /* in turns: 16 values in all */
		struct store *second = r.g.st;

		expect_int(rig_get(&r.g, 1000 + i, 1, VALUE_BYTES), 0);
		r.g.st = first;
		expect_int(rig_get(&r.g, i, 1, VALUE_BYTES), 0);
		r.g.st = second;
	}
	expect((sim_now_ns() - began) / NS_PER_MS >= 360);
	rig_close(&r.g);
	r.g.st = first;
	set_rig_end(&r);
}

static bool never(void *arg)
{
	return false;
}

TEST(a_store_that_is_closed_waits_for_no_limit)
{
	struct rig_op op[2] = {{.done = false}};
	bool closed = false;
	uint64_t began;
	struct rig g;

	rig_begin(&g, 1, 1, 64 * MiB);
	g.opts.drive_read_bytes_per_s = 1000;
	expect_int(rig_open(&g), 0);
	put_all(&g, 0);
	began = sim_now_ns();
	for (unsigned i = 0; i < 2; i++) {
		op[i].op = (struct store_op){.key = rig_key(i), .want_bytes = UINT32_MAX,
			.done = got};
		store_get(g.st, &op[i].op);
	}
	(void)sim_run_until(never, NULL, 10 * NS_PER_MS);
	expect(!op[0].done && !op[1].done);
	store_close(&g.st, rig_closed, &closed);
	for (unsigned i = 0; i < 2; i++)
		expect(rig_wait(&op[i].done));
	expect(sim_now_ns() - began < NS_PER_S);
	for (unsigned i = 0; i < 2; i++)
		store_buf_return(&op[i].buf);
	expect(rig_wait(&closed));
	rig_end(&g);
}
