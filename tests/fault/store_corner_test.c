/* SPDX-License-Identifier: Apache-2.0 */
/*
 * src/store: what happens where two things meet: a scrub and values over several drives, a loan and
 * an eviction, a drive that hangs just when others need something of it, a close and a put that
 * waits for room.
 */
#include "store_rig.h"

#include <errno.h>

#define DAY (24 * 3600 * NS_PER_S)
#define VALUE 200000u
#define STRIPED (2 * MiB + 300 * KiB)

static bool passed(void *arg)
{
	struct rig *g = arg;

	return rig_stat(g).scrub_passes >= g->opts.drive_count;
}

/* How many there were. */
static unsigned footers_spoil(struct rig *g)
{
	unsigned bad = 0;

	for (unsigned n = 0; n < g->opts.drive_count; n++) {
		struct drive *d = &g->st->drive[n];

		for (uint32_t i = 0; i < d->segment_count; i++) {
			uint64_t end = fmt_segment_block(g->st->segment_bytes, i + 1);

			if (d->segment[i].state != SEGMENT_SEALED)
				continue;
			sim_disk_bytes(g->path[n], NULL)[(end - 1) * FMT_BLOCK_BYTES + 16] ^= 1;
			bad++;
		}
	}
	return bad;
}

TEST(a_scrub_reads_values_over_several_drives_and_lists_them_anew)
{
	struct rig g;
	unsigned bad;

	rig_begin(&g, 1, 2, 40 * MiB);
	g.opts.value_bytes_max = 4 * MiB;
	g.opts.buffer_bytes = 32 * MiB;
	g.opts.segment_bytes = 5 * MiB;
	g.opts.stripe = true;
	g.opts.evict = false;
	g.opts.scrub_bytes = 64 * MiB;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 12; i++)
		expect_int(rig_put(&g, i, 1, STRIPED), 0);
	bad = footers_spoil(&g);
	expect(bad > 1);
	expect(sim_run_until(passed, &g, DAY));
	expect_int(rig_stat(&g).scrub_bad, bad);
	rig_crash(&g, true);
	expect_int(rig_open(&g), 0);
	expect(sim_run_until(passed, &g, DAY));
	expect_int(rig_stat(&g).scrub_bad, 0);
	for (uint32_t i = 0; i < 12; i++)
		expect_int(rig_get(&g, i, 1, STRIPED), 0);
	expect_int(rig_stat(&g).keys, 12);
	rig_end(&g);
}

/* The scrub looks at the segment whose turn to go comes next. */
static void scrub_next_victim(struct drive *d)
{
	uint32_t at = 0;

	if (d->scrub.busy)
		return;
	for (uint32_t i = 0; i < d->segment_count; i++) {
		if (d->segment[i].state == SEGMENT_SEALED &&
		    (d->segment[at].state != SEGMENT_SEALED ||
		     d->segment[i].turn < d->segment[at].turn))
			at = i;
	}
	d->scrub.segment = at;
	d->scrub.segments_seen = d->scrub.attempts = 0;
	d->scrub.state = SCRUB_FOOTER;
}

TEST(a_segment_that_goes_while_its_footer_is_made_anew_is_left_alone)
{
	struct rig g;
	unsigned hops = 0;

	rig_begin(&g, 2, 1, 16 * MiB);
	g.opts.scrub_bytes = 400 * KiB;
	g.opts.segment_bytes = 1 << 20;
	expect_int(rig_open(&g), 0);
	for (uint32_t put = 0; put < 2500; put++) {
		expect_int(rig_put(&g, put, 1, 20000), 0);
		if (put < 700)
			continue;
		if (put % 40 == 0) {
			(void)footers_spoil(&g);
			scrub_next_victim(&g.st->drive[0]);
		}
		hops += g.st->drive[0].scrub.state == SCRUB_HOP;
		(void)sim_run_until(passed, &g, 8 * NS_PER_MS);
	}
	printf("# %u times\n", hops);
	expect(hops > 100);
	expect(rig_stat(&g).evicted_segments > 20);
	expect_int(rig_stat(&g).drives_failed, 0);
	rig_end(&g);
}

static bool erasing(void *arg)
{
	const struct rig *g = arg;

	return g->st->drive[0].evict_state == EVICT_ERASE;
}

TEST(a_value_in_memory_is_served_while_its_segment_goes)
{
	struct rig g;
	unsigned met = 0;

	rig_begin(&g, 3, 1, 32 * MiB);
	g.opts.drive[0] = (struct store_drive){.path = "mem", .bytes = 32 * MiB};
	expect_int(rig_open(&g), 0);
	for (uint32_t put = 0; put < 600; put++) {
		struct drive *d = &g.st->drive[0];
		struct rig_op r, got = {.done = false};

		expect(rig_put_start(&g, &r, put, 1, VALUE, STORE_PUT_ANY));
		if (sim_run_until(erasing, &g, 300000)) {
			uint32_t key = 0;
			struct kv_key k = {.len = 0};

			for (; key < put; key++) {
				uint32_t entry;

				k = rig_key(key);
				entry = index_find(g.st->index, &k);
				if (entry != INDEX_NONE &&
				    segment_of_block(d, index_place(g.st->index, entry).block) ==
					    d->evict_segment)
					break;
			}
			if (key < put) {
				met++;
				got.op = (struct store_op){.key = k, .want_bytes = UINT32_MAX,
							   .done = rig_op_done};
				store_get(g.st, &got.op);
			}
		}
		expect(rig_wait(&r.done));
		expect_int(r.res, 0);
		store_buf_give(g.st, &r.buf);
		if (got.op.done == NULL)
			continue;
		expect(rig_wait(&got.done));
		expect_int(got.res, 0);
		store_buf_give(g.st, &got.op.buf);
	}
	expect(met > 3);
	rig_end(&g);
}

/* --- drives that hang -------------------- */

TEST(a_drive_that_hangs_while_it_is_told_of_another_holds_no_delete_up)
{
	struct rig g;

	rig_begin(&g, 4, 3, 16 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 60; i++)
		expect_int(rig_put(&g, i, 1, 20000), 0);
	expect_int(rig_flush(&g), 0);
	store_drive_retire(g.st, 0);
	sim_disk_mode("drive1", SIM_DISK_HANGS);
	for (uint32_t i = 0; i < 60; i++) {
		int rc = rig_delete(&g, i);

		expect(rc == 0 || rc == -ENOENT || rc == -EIO);
	}
	expect_int(rig_stat(&g).drives_failed, 2);
	expect_int(rig_put(&g, 100, 1, 20000), 0);
	expect_int(rig_delete(&g, 100), 0);
	expect_int(rig_get(&g, 100, 1, 20000), -ENOENT);
	sim_disk_mode("drive1", SIM_DISK_WELL);
	expect_int(rig_put(&g, 101, 1, 20000), 0);
	expect_int(rig_delete(&g, 101), 0);
	rig_end(&g);
}

TEST(what_another_drive_took_over_is_answered_once_the_old_one_is_not_believed)
{
	for (unsigned n = 0; n < 40; n++) {
		struct rig g;
		struct kv_key k;
		uint32_t on[60], count = 0;

		rig_begin(&g, 30 + n, 3, 16 * MiB);
		expect_int(rig_open(&g), 0);
		for (uint32_t i = 0; i < 60; i++)
			expect_int(rig_put(&g, i, 1, 20000), 0);
		expect_int(rig_flush(&g), 0);
		for (uint32_t i = 0; i < 60; i++) {
			k = rig_key(i);
			if (index_place(g.st->index, index_find(g.st->index, &k)).drive == 0)
				on[count++] = i;
		}
		expect(count > 2);
		store_drive_retire(g.st, 0);
		expect_int(rig_put(&g, on[0], 2, 20000), 0);
		expect_int(rig_stat(&g).drives_failed, 1);
		rig_crash(&g, n % 2 == 0);
		expect_int(rig_open(&g), 0);
		if (rig_get(&g, on[0], 2, 20000) == 0)
			expect_int(rig_get(&g, on[1], 1, 20000), -ENOENT);
		rig_end(&g);
	}
}

static bool carrying(void *arg)
{
	const struct rig *g = arg;

	return g->st->carry_owner == &g->st->drive[0] && g->st->drive[0].carry_io > 0;
}

TEST(a_drive_that_hangs_in_a_cleaning_holds_no_other_up)
{
	struct rig g;
	uint32_t keys = 0;
	bool met = false;

	rig_begin(&g, 5, 2, 16 * MiB);
	g.opts.evict = false;
	expect_int(rig_open(&g), 0);
	while (keys < 700 && rig_put(&g, keys, 1, 20000) == 0)
		keys++;
	expect(keys > 300);
	for (uint32_t i = 0; i < keys; i += 3)
		expect_int(rig_delete(&g, i), 0);
	for (uint32_t i = 0; i < 4 * keys; i++) {
		struct rig_op r;

		expect(rig_put_start(&g, &r, i % keys, 2, 20000, STORE_PUT_ANY));
		if (!met && sim_run_until(carrying, &g, 2 * NS_PER_MS)) {
			met = true;
			sim_disk_mode("drive0", SIM_DISK_HANGS);
		}
		expect(rig_wait(&r.done));
		expect(r.res == 0 || r.res == -ENOSPC || r.res == -EIO);
		store_buf_give(g.st, &r.buf);
	}
	expect(met);
	expect_int(rig_stat(&g).drives_failed, 1);
	expect(rig_stat(&g).cleaned_segments > 10);
	sim_disk_mode("drive0", SIM_DISK_WELL);
	rig_end(&g);
}

/* --- ends -------------------- */

TEST(a_close_while_a_put_waits_for_a_cleaning_ends)
{
	unsigned waited = 0;

	for (unsigned n = 0; n < 6; n++) {
		struct rig g;
		struct rig_op r[4];
		uint32_t keys = 0;
		bool closed = false;

		rig_begin(&g, 6 + n, 1, 16 * MiB);
		g.opts.evict = false;
		g.opts.segment_bytes = 1 << 20;
		expect_int(rig_open(&g), 0);
		while (rig_put(&g, keys, 1, 20000) == 0)
			keys++;
		for (uint32_t i = 0; i < keys; i += 3)
			expect_int(rig_delete(&g, i), 0);
		for (uint32_t i = 0; i < 40 * n; i++)
			expect_int(rig_put(&g, 3 * (i % (keys / 3)), 2, 20000), 0);
		for (unsigned i = 0; i < 4; i++)
			expect(rig_put_start(&g, &r[i], 1 + 3 * i, 2, 500000, STORE_PUT_ANY));
		waited += !list_empty(&g.st->drive[0].op_wait);
		store_close(&g.st, rig_closed, &closed);
		for (unsigned i = 0; i < 4; i++) {
			expect(rig_wait(&r[i].done));
			expect(r[i].res == 0 || r[i].res == -ENOSPC);
			store_buf_return(&r[i].buf);
		}
		expect(sim_run_until(rig_is_done, &closed, 5 * NS_PER_S));
		rig_end(&g);
	}
	expect(waited > 0);
}

TEST(an_index_full_of_deletes_costs_no_value_at_the_next_open)
{
	struct rig g;

	rig_begin(&g, 20, 2, 16 * MiB);
	g.opts.evict = false;
	g.opts.index_keys_max = 100;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 100; i++)
		expect_int(rig_put(&g, i, 1, 3000), 0);
	for (uint32_t i = 0; i < 50; i++)
		expect_int(rig_delete(&g, i), 0);
	for (uint32_t i = 100; i < 150; i++)
		expect_int(rig_put(&g, i, 1, 3000), 0);
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 150; i++)
		expect_int(rig_get(&g, i, 1, 3000), i < 50 ? -ENOENT : 0);
	expect_int(g.report.dropped_records, 0);
	rig_end(&g);
}

TEST(a_flush_tells_of_what_an_earlier_one_lost_that_nobody_asked_for)
{
	struct rig g;
	bool done = false;

	rig_begin(&g, 21, 1, 16 * MiB);
	g.opts.evict = false;
	expect_int(rig_open(&g), 0);
	expect_int(rig_put(&g, 1, 1, 20000), 0);
	sim_fault_at(SIM_DISK_FLUSH_EIO, 1);
	(void)sim_run_until(rig_is_done, &done, NS_PER_S);      /* the drive is quiet: a flush */
	expect_int(sim_fault_hits(SIM_DISK_FLUSH_EIO), 1);
	expect_int(rig_get(&g, 1, 1, 20000), -ENOENT);
	expect_int(rig_flush(&g), -EIO);
	expect_int(rig_put(&g, 1, 1, 20000), 0);
	expect_int(rig_flush(&g), 0);
	expect_int(rig_get(&g, 1, 1, 20000), 0);
	rig_end(&g);
}

TEST(a_refused_store_over_several_drives_counts_once)
{
	struct rig g;
	unsigned refused = 0;

	rig_begin(&g, 22, 2, 40 * MiB);
	g.opts.value_bytes_max = 4 * MiB;
	g.opts.buffer_bytes = 32 * MiB;
	g.opts.segment_bytes = 5 * MiB;
	g.opts.stripe = true;
	g.opts.evict = false;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 60; i++)
		refused += rig_put(&g, i, 1, 4 * MiB) == -ENOSPC;
	expect(refused > 30);
	expect_int(rig_stat(&g).no_space, refused);
	rig_end(&g);
}

static bool flush_failed(void *arg)
{
	return sim_fault_hits(SIM_DISK_FLUSH_EIO) > 0;
}

TEST(a_store_over_several_drives_refused_for_want_of_budget_counts_once)
{
	struct rig g;
	unsigned refused = 0, puts = 0;

	rig_begin(&g, 23, 2, 40 * MiB);
	g.opts.value_bytes_max = 4 * MiB;
	g.opts.buffer_bytes = 32 * MiB;
	g.opts.segment_bytes = 5 * MiB;
	g.opts.stripe = true;
	g.opts.write_budget_percent = 100;           /* a quarter of it at once */
	expect_int(rig_open(&g), 0);
	for (; puts < 20; puts++)
		refused += rig_put(&g, puts, 1, 4 * MiB) == -ENOSPC;
	expect(refused > 5 && refused < 20);
	expect_int(rig_stat(&g).budget_refused, refused);
	rig_end(&g);
}

TEST(the_bytes_of_values_over_several_drives_are_those_that_hosts_stored)
{
	static const uint32_t bytes[] = {100, 1 << 20, (1 << 20) + 1, 2500000, 4 * MiB,
					 4 * MiB - 63};
	uint64_t all = 0;
	struct rig g;

	rig_begin(&g, 24, 2, 64 * MiB);
	g.opts.value_bytes_max = 4 * MiB;
	g.opts.buffer_bytes = 32 * MiB;
	g.opts.segment_bytes = 5 * MiB;
	g.opts.stripe = true;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < ARRAY_COUNT(bytes); i++) {
		expect_int(rig_put(&g, i, 1, bytes[i]), 0);
		all += bytes[i];
		expect_int(rig_stat(&g).value_bytes, all);
	}
	rig_close(&g);
	expect_int(rig_open(&g), 0);
	expect_int(rig_stat(&g).value_bytes, all);
	for (uint32_t i = 0; i < ARRAY_COUNT(bytes); i++)
		expect_int(i % 2 == 0 ? rig_delete(&g, i) : rig_put(&g, i, 2, 10), 0);
	expect_int(rig_flush(&g), 0);                /* then the old parts go */
	expect(!sim_run_until(flush_failed, NULL, NS_PER_S));
	expect_int(rig_stat(&g).value_bytes, ARRAY_COUNT(bytes) / 2 * 10);
	rig_end(&g);
}

TEST(a_full_index_of_an_object_namespace_refuses_new_keys_and_takes_known_ones)
{
	uint32_t keys = 0;
	struct rig g;

	rig_begin(&g, 21, 2, 16 * MiB);
	g.opts.evict = false;
	g.opts.index_keys_max = 200;
	expect_int(rig_open(&g), 0);
	while (rig_put(&g, keys, 1, 1000) == 0)
		keys++;
	expect(keys >= 150 && keys <= 300);
	for (uint32_t i = 0; i < keys; i += 7)
		expect_int(rig_put(&g, i, 2, 2000), 0);
	expect_int(rig_put(&g, keys, 1, 1000), -ENOSPC);
	for (uint32_t i = 0; i < keys; i++)
		expect_int(rig_get(&g, i, i % 7 == 0 ? 2 : 1, i % 7 == 0 ? 2000 : 1000), 0);
	expect_int(rig_delete(&g, 3), 0);
	expect_int(rig_put(&g, keys, 1, 1000), 0);
	expect_int(rig_put(&g, keys + 1, 1, 1000), -ENOSPC);
	rig_end(&g);
}

static uint32_t entry_of(struct rig *g, uint32_t key)
{
	struct kv_key k = rig_key(key);
	uint32_t entry = index_find(g->st->index, &k);

	expect(entry != INDEX_NONE);
	return entry;
}

struct gone {
	struct rig *g;
	struct rig_op *op;
};

static bool gone_or_done(void *arg)
{
	struct gone *w = arg;
	struct kv_key k = rig_key(5);

	return w->op->done || index_find(w->g->st->index, &k) == INDEX_NONE;
}

/* A record that could not be read is written off; when it can be read again it must not be what an
 * open finds after a delete. Here the flush fails that would have made the writing off durable. */
TEST(a_delete_of_what_could_not_be_read_lasts_although_a_flush_fails)
{
	unsigned seen = 0;

	for (uint64_t n = 1; n <= 60; n++) {
		struct index_place p;
		struct rig_op op;
		struct rig g;
		struct gone w = {&g, &op};
		struct prng dice = prng_of(n);
		uint8_t *at;
		int rc;

		rig_begin(&g, n, 1, 12 * MiB);
		g.opts.segment_bytes = 1 << 20;
		g.opts.evict = false;
		expect_int(rig_open(&g), 0);
		for (uint32_t i = 0; i < 120; i++)
			expect_int(rig_put(&g, i, 1, 60000), 0);
		p = index_place(g.st->index, entry_of(&g, 5));
		at = sim_disk_bytes(g.path[0], NULL) + ((uint64_t)p.block << FMT_BLOCK_SHIFT);
		at[30000] ^= 1;
		expect_int(rig_get(&g, 5, 1, 60000), -EBADMSG);
		at[30000] ^= 1;
		for (uint32_t i = 0; i < 400; i++) {
			uint32_t key = 6 + (uint32_t)prng_below(&dice, 114);

			expect(rig_put_start(&g, &op, key, 2 + i, 60000, STORE_PUT_ANY));
			expect(sim_run_until(gone_or_done, &w, RIG_TIME_MAX));
			if (!op.done)
				sim_fault_at(SIM_DISK_FLUSH_EIO, 1);
			rc = op.done;
			expect(rig_wait(&op.done));
			store_buf_give(g.st, &op.buf);
			if (rc == 0)
				break;
		}
		if (!sim_run_until(flush_failed, NULL, NS_PER_S)) {
			rig_end(&g);
			continue;
		}
		seen++;
		rc = rig_delete(&g, 5);
		expect(rc == 0 || rc == -ENOENT);
		rc = rig_flush(&g);
		rig_crash(&g, n % 4 < 2);
		expect_int(rig_open(&g), 0);
		if (rc == 0 && rig_get(&g, 5, 1, 60000) != -ENOENT)
			fail_msg("seed %u: it came back", (unsigned)n);
		rig_end(&g);
	}
	printf("# %u of 60\n", seen);
	expect(seen > 5);
}

TEST(a_store_whose_mounts_are_nearly_used_up_serves_until_they_are)
{
	struct fmt_super_info super;
	uint64_t bytes;
	uint8_t *medium;
	struct rig g;
	int rc = 0;

	rig_begin(&g, 31, 1, 8 * MiB);
	expect_int(rig_open(&g), 0);
	rig_close(&g);
	medium = sim_disk_bytes(g.path[0], &bytes);
	expect(fmt_super_check(medium, 0, &super) == FMT_SUPER_OK);
	super.mount = UINT32_MAX - 16;
	super.write_count++;
	fmt_super_write(medium, &super, 0);
	fmt_super_write(medium + bytes - FMT_BLOCK_BYTES, &super, bytes / FMT_BLOCK_BYTES - 1);
	for (unsigned i = 0; i < 20 && rc == 0; i++) {
		rc = rig_open(&g);
		if (rc != 0)
			break;
		expect_int(rig_put(&g, i, 1, 1000), 0);
		expect_int(rig_get(&g, i, 1, 1000), 0);
		rig_close(&g);
	}
	expect_int(rc, -EPROTO);
	rig_end(&g);
}

static void got_or_not(struct store_op *op, int res)
{
	struct rig_op *r = container_of(op, struct rig_op, op);

	rig_op_done(op, res);
	r->buf = op->buf;
}

/* Reads that a drive never answers keep their buffers: not all that there are. */
TEST(a_drive_that_hangs_leaves_buffers_to_the_others)
{
	struct rig_op *op = calloc(200, sizeof(*op));
	unsigned good = 0, all = 0;
	struct rig g;

	rig_begin(&g, 33, 2, 128 * MiB);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 200; i++)
		expect_int(rig_put(&g, i, 1, 500000), 0);
	sim_disk_mode("drive0", SIM_DISK_HANGS);
	for (unsigned round = 0; round < 3; round++) {
		memset(op, 0, 200 * sizeof(*op));
		good = all = 0;
		for (uint32_t i = 0; i < 200; i++) {
			op[i].op = (struct store_op){.key = rig_key(i), .want_bytes = UINT32_MAX,
				.done = got_or_not};
			all += index_place(g.st->index, entry_of(&g, i)).drive == 1;
			store_get(g.st, &op[i].op);
		}
		for (uint32_t i = 0; i < 200; i++) {
			expect(rig_wait(&op[i].done));
			good += op[i].res == 0;
			if (op[i].res == 0)
				store_buf_give(g.st, &op[i].buf);
		}
		if (rig_stat(&g).drives_failed > 0)
			break;
		expect_int(good, all);
	}
	expect(all > 50);
	free(op);
	sim_disk_mode("drive0", SIM_DISK_WELL);
	rig_end(&g);
}

TEST(writes_that_a_drive_never_answers_leave_buffers_to_the_others)
{
	uint32_t key[15], count = 0;
	struct rig_op op[15];
	struct rig g;

	rig_begin(&g, 34, 2, 8 * GiB);               /* much may be written and not flushed */
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; count < ARRAY_COUNT(key); i++) {
		expect_int(rig_put(&g, i, 1, 500000), 0);
		if (index_place(g.st->index, entry_of(&g, i)).drive == 0)
			key[count++] = i;            /* written again, it goes to the same drive */
	}
	sim_disk_mode("drive0", SIM_DISK_HANGS);
	for (unsigned round = 0; round < 4; round++) {
		uint32_t n = round == 0 ? 15 : 9;    /* what was lost is lost */

		for (uint32_t i = 0; i < n; i++)
			expect(rig_put_start(&g, &op[i], key[i], 2 + round, 500000,
					     STORE_PUT_ANY));
		for (uint32_t i = 0; i < n; i++) {
			expect(rig_wait(&op[i].done));
			expect_int(op[i].res, 0);
			store_buf_give(g.st, &op[i].buf);
		}
	}
	expect_int(rig_stat(&g).drives_failed, 1);
	for (uint32_t i = 0; i < ARRAY_COUNT(key); i++)
		expect_int(rig_get(&g, key[i], i < 9 ? 5 : 2, 500000), 0);
	sim_disk_mode("drive0", SIM_DISK_WELL);
	rig_end(&g);
}
