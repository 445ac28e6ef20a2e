/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/stripe.c: values over several drives, and what a crash at any write leaves of them. */
#include "store_rig.h"

#include <errno.h>

#define VALUE (2 * MiB + 300 * KiB)

static void begin(struct rig *g, uint64_t seed, unsigned drives, bool evict)
{
	rig_begin(g, seed, drives, 40 * MiB);
	g->opts.value_bytes_max = 4 * MiB;
	g->opts.buffer_bytes = 32 * MiB;
	g->opts.segment_bytes = 5 * MiB;
	g->opts.stripe = true;
	g->opts.evict = evict;
}

/* Every part in the index is of a value that is there. */
static void no_orphans(struct rig *g, unsigned parts)
{
	if (!stripes_idle(g->st)) {
		expect_int(rig_flush(g), 0);
		expect_int(rig_flush(g), 0);
	}
	expect(stripes_idle(g->st));
	expect_int(g->st->part_entries, parts);
}

TEST(a_large_value_spans_the_drives_and_comes_back_whole_whatever_its_size)
{
	static const uint32_t sizes[] = {
		MiB - 128, MiB - 127, MiB, MiB + 1, 2 * MiB - 128, 2 * MiB - 127, 2 * MiB,
		2 * MiB + 1, 3 * MiB + 4096, 4 * MiB};
	struct rig g;

	begin(&g, 1, 3, false);
	expect_int(rig_open(&g), 0);
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i < ARRAY_COUNT(sizes); i++) {
			struct kv_key key = rig_key(i);
			uint32_t bytes = 0;

			if (round == 0)
				expect_int(rig_put(&g, i, 1, sizes[i]), 0);
			expect_int(rig_get(&g, i, 1, sizes[i]), 0);
			expect(store_exists(g.st, &key, &bytes));
			expect_int(bytes, sizes[i]);
		}
		expect_int(rig_stat(&g).keys, ARRAY_COUNT(sizes));
		for (unsigned i = 0; i < 3; i++)
			expect(disk_counts(g.st->drive[i].disk)->write_bytes > 3 * MiB ||
			       round == 1);
		no_orphans(&g, 2 + 2 + 2 + 2 + 3 + 4 + 4);
		rig_close(&g);
		expect_int(rig_open(&g), 0);
	}
	rig_end(&g);
}

TEST(lists_and_counts_show_values_and_no_parts)
{
	struct kv_key from = {.len = 0}, keys[16];
	uint32_t bytes[16];
	struct rig g;
	unsigned n;

	begin(&g, 1, 2, false);
	expect_int(rig_open(&g), 0);
	for (unsigned i = 0; i < 5; i++)
		expect_int(rig_put(&g, i, 1, i % 2 == 0 ? VALUE : 1000), 0);
	n = store_list(g.st, &from, keys, bytes, 16);
	expect_int(n, 5);
	for (unsigned i = 0; i < n; i++) {
		expect(keys[i].len == 16 && (bytes[i] == VALUE || bytes[i] == 1000));
		expect(i == 0 || kv_key_compare(&keys[i - 1], &keys[i]) < 0);
	}
	expect_int(rig_stat(&g).keys, 5);
	expect_int(rig_stat(&g).puts, 5);
	expect_int(rig_get(&g, 2, 1, VALUE), 0);
	expect_int(rig_stat(&g).hits, 1);
	rig_end(&g);
}

TEST(deletes_and_overwrites_leave_no_part_behind)
{
	struct rig g;

	begin(&g, 1, 2, false);
	expect_int(rig_open(&g), 0);
	for (unsigned i = 0; i < 12; i++) {
		uint32_t bytes = i % 3 == 2 ? 500 : VALUE + i * 1000;

		expect_int(rig_put(&g, 1, i, bytes), 0);
		expect_int(rig_get(&g, 1, i, bytes), 0);
		no_orphans(&g, i % 3 == 2 ? 0 : 3);
	}
	expect_int(rig_put(&g, 2, 1, VALUE), 0);
	expect_int(rig_put_mode(&g, 2, 2, VALUE, STORE_PUT_IF_ABSENT), -EEXIST);
	expect_int(rig_get(&g, 2, 1, VALUE), 0);
	expect_int(rig_delete(&g, 2), 0);
	expect_int(rig_get(&g, 2, 1, VALUE), -ENOENT);
	expect_int(rig_delete(&g, 2), -ENOENT);
	no_orphans(&g, 0);
	for (unsigned i = 0; i < 40; i++) {         /* more than the drives hold */
		expect_int(rig_put(&g, 3, i, 4 * MiB), 0);
		expect_int(rig_delete(&g, 3), 0);
	}
	no_orphans(&g, 0);
	rig_end(&g);
}

TEST(many_puts_and_gets_of_one_key_at_once_end_in_their_order)
{
	enum { N = 12 };
	static struct rig_op put[N], get[N];
	struct rig g;

	begin(&g, 7, 3, false);
	g.opts.buffer_bytes = 64 * MiB;
	expect_int(rig_open(&g), 0);
	expect_int(rig_put(&g, 1, 100, VALUE), 0);
	for (unsigned i = 0; i < N; i++) {
		expect(rig_put_start(&g, &put[i], 1, i, VALUE, STORE_PUT_ANY));
		memset(&get[i], 0, sizeof(get[i]));
		get[i].op = (struct store_op){.key = rig_key(1), .want_bytes = UINT32_MAX,
					      .done = rig_op_done};
		store_get(g.st, &get[i].op);
	}
	for (unsigned i = 0; i < N; i++) {
		expect(rig_wait(&put[i].done));
		expect_int(put[i].res, 0);
		store_buf_give(g.st, &put[i].buf);
	}
	for (unsigned i = 0; i < N; i++) {
		uint8_t *value = malloc(VALUE);
		bool found = false;

		expect(rig_wait(&get[i].done));
		expect_int(get[i].res, 0);
		for (unsigned v = 0; v <= N && !found; v++) {
			rig_value(1, v == N ? 100 : v, value, VALUE);
			found = rig_same(get[i].op.buf, value);
		}
		expect(found);
		store_buf_give(g.st, &get[i].op.buf);
		free(value);
	}
	expect_int(rig_get(&g, 1, N - 1, VALUE), 0);
	no_orphans(&g, 3);
	rig_end(&g);
}

TEST(a_drive_that_is_lost_costs_its_values_and_hangs_nobody)
{
	struct rig g;
	unsigned whole = 0;

	begin(&g, 3, 3, true);
	expect_int(rig_open(&g), 0);
	for (unsigned i = 0; i < 10; i++)
		expect_int(rig_put(&g, i, 1, i < 5 ? VALUE : 100000), 0);
	expect_int(rig_flush(&g), 0);
	store_drive_retire(g.st, 1);
	sim_run_until(rig_is_done, &(bool){false}, 200 * NS_PER_MS);
	for (unsigned i = 0; i < 10; i++) {
		uint32_t bytes = i < 5 ? VALUE : 100000;
		int rc = rig_get(&g, i, 1, bytes);

		expect(rc == 0 || rc == -ENOENT);
		expect(rig_exists(&g, i) == (rc == 0));
		whole += rc == 0;
		expect_int(rig_put(&g, i, 2, bytes), 0);
		expect_int(rig_get(&g, i, 2, bytes), 0);
	}
	expect(whole > 0 && whole < 10);
	rig_end(&g);
}

TEST(a_full_cache_drops_whole_values)
{
	struct rig g;
	unsigned there = 0;

	begin(&g, 5, 2, true);
	expect_int(rig_open(&g), 0);
	for (unsigned i = 0; i < 60; i++)
		expect_int(rig_put(&g, i, 1, VALUE), 0);
	for (unsigned i = 0; i < 60; i++) {
		int rc = rig_get(&g, i, 1, VALUE);

		expect(rc == 0 || rc == -ENOENT);
		there += rc == 0;
	}
	expect(there >= 10 && there < 40);
	expect_int(rig_get(&g, 59, 1, VALUE), 0);
	rig_end(&g);
}

/* --- a crash at every write -------------------- */

#define STEPS 7u

struct model {
	uint32_t version[2];                 /* of keys 0 and 1; 0: absent */
	uint32_t flushed[2];
};

static uint32_t size_of(uint32_t version)
{
	return version % 6 == 0 ? 3000 : VALUE + version * 5000;
}

static bool put(struct rig *g, uint32_t key, uint32_t version)
{
	struct rig_op r;

	if (!rig_put_start(g, &r, key, version, size_of(version), STORE_PUT_ANY) ||
	    !rig_wait(&r.done) || r.res != 0)
		return false;
	store_buf_give(g->st, &r.buf);
	return true;
}

/* Flush, or a delete. */
static bool ask(struct rig *g, void (*call)(struct store *st, struct store_op *op), uint32_t key)
{
	struct rig_op r = {.done = false};

	r.op = (struct store_op){.key = rig_key(key), .done = rig_op_done};
	call(g->st, &r.op);
	return rig_wait(&r.done) && r.res == 0;
}

/* False: the process died; *next says what was under way. */
static bool live(struct rig *g, struct model *m, struct model *next)
{
	for (unsigned step = 0; step < STEPS; step++) {
		bool alive = true;

		*next = *m;
		switch (step) {
		case 0:
		case 2:
		case 5:
			next->version[0] = step + 1;
			alive = put(g, 0, step + 1);
			break;
		case 1:
		case 4:
			memcpy(next->flushed, m->version, sizeof(m->version));
			alive = ask(g, store_flush, 0);
			break;
		case 3:
			next->version[1] = step + 1;
			alive = put(g, 1, step + 1);
			break;
		default:
			next->version[1] = next->flushed[1] = 0;
			alive = ask(g, store_delete, 1);
			break;
		}
		if (!alive)
			return false;
		*m = *next;
	}
	return true;
}

static bool reads(struct rig *g, uint32_t key, uint32_t version)
{
	int rc = version == 0 ? rig_get(g, key, 1, 10) : rig_get(g, key, version,
								   size_of(version));

	return version == 0 ? rc == -ENOENT : rc == 0;
}

static bool die_at(uint64_t n, uint64_t seed, bool keep)
{
	struct model m = {.version = {0}}, next = m;
	unsigned parts = 0;
	struct rig g;
	bool died;

	begin(&g, n * 100 + seed, 3, false);
	expect_int(rig_open(&g), 0);
	sim_crash_at_write(n);
	(void)live(&g, &m, &next);
	died = sim_crashed() != NULL;
	rig_crash(&g, keep);
	sim_crash_at_write(0);
	if (rig_open(&g) != 0)
		fail_msg("write %llu: %s", (unsigned long long)n, g.report.text);
	for (uint32_t key = 0; key < 2; key++) {
		bool good = reads(&g, key, m.version[key]) || reads(&g, key, next.version[key]);

		if (!keep && !good)                  /* what was flushed, or anything since */
			for (uint32_t v = m.flushed[key]; v <= STEPS && !good; v++)
				good = reads(&g, key, v);
		if (!good)
			fail_msg("write %llu, key %u: neither old (%u) nor new (%u)",
				 (unsigned long long)n, key, m.version[key], next.version[key]);
	}
	for (uint32_t key = 0; key < 2; key++) {
		struct kv_key k = rig_key(key);
		uint32_t bytes = 0;

		if (store_exists(g.st, &k, &bytes) && bytes > MiB)
			parts += 3;
	}
	no_orphans(&g, parts);
	expect(put(&g, 0, 8) && put(&g, 1, 9) && reads(&g, 0, 8) && reads(&g, 1, 9));
	rig_end(&g);
	return died;
}

TEST(a_kill_at_every_write_leaves_the_old_value_or_the_new)
{
	uint64_t n = 1;

	while (die_at(n, 1, true))
		n++;
	expect(n > 30);
}

TEST(a_power_cut_at_every_write_leaves_the_old_value_or_the_new)
{
	for (uint64_t seed = 1; seed <= 12; seed++) {
		uint64_t n = 1;

		while (die_at(n, seed, false))
			n++;
		expect(n > 30);
	}
}
