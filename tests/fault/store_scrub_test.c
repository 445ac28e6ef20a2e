/* SPDX-License-Identifier: Apache-2.0 */
/*
 * src/store/scrub.c: what went bad on a drive is found before anybody asks for it; the entry is
 * dropped, a footer is written anew; it keeps its pace, gives way, and disturbs nobody.
 */
#include "store_rig.h"

#include <errno.h>

#define KEYS 120u
#define DAY (24 * 3600 * NS_PER_S)

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static bool passed(void *arg)
{
	struct rig *g = arg;

	return rig_stat(g).scrub_passes >= g->opts.drive_count;
}

static void filled(struct rig *g, uint64_t seed, uint64_t rate)
{
	rig_begin(g, seed, 2, 16 * MiB);
	g->opts.scrub_bytes = rate;
	g->opts.segment_bytes = 1 << 20;
	expect_int(rig_open(g), 0);
	for (uint32_t i = 0; i < KEYS; i++)
		expect_int(rig_put(g, i, 1, 60000 + i), 0);
	expect_int(rig_delete(g, 7), 0);
	expect_int(rig_put(g, 8, 2, 60008), 0);
}

static struct index_place place_of(struct rig *g, uint32_t key)
{
	struct kv_key k = rig_key(key);

	return index_place(g->st->index, index_find(g->st->index, &k));
}

static uint8_t *medium_of(struct rig *g, const struct index_place *p)
{
	return sim_disk_bytes(g->path[p->drive], NULL);
}

static bool is_sealed(struct rig *g, uint32_t key)
{
	struct index_place p = place_of(g, key);
	struct drive *d = &g->st->drive[p.drive];

	return d->segment[segment_of_block(d, p.block)].state == SEGMENT_SEALED;
}

TEST(a_pass_reads_all_that_is_sealed_at_its_pace_and_finds_nothing_on_good_drives)
{
	struct rig g;
	uint64_t sealed = 0, began;
	struct store_stat s;

	filled(&g, 1, 1 << 20);
	for (uint32_t i = 0; i < KEYS; i++)
		sealed += i != 7 && is_sealed(&g, i) ? 60000 : 0;
	began = sim_now_ns();
	expect(sim_run_until(passed, &g, DAY));
	s = rig_stat(&g);
	printf("# %llu bytes read, %llu sealed, in %llu s\n", (unsigned long long)s.scrub_bytes,
	       (unsigned long long)sealed, (unsigned long long)((sim_now_ns() - began) / NS_PER_S));
	expect(s.scrub_bytes > sealed && s.scrub_bytes < sealed * 11 / 10 + (2 << 20));
	/* Two drives at 1 MiB a second each. */
	expect(sim_now_ns() - began > s.scrub_bytes / (2 << 20) * NS_PER_S * 9 / 10);
	expect_int(s.scrub_bad, 0);
	expect_int(s.keys, KEYS - 1);
	/* The next pass is a day later. */
	expect(!sim_run_until(never, NULL, DAY / 2));
	expect_int(rig_stat(&g).scrub_passes, 2);
	expect(!sim_run_until(never, NULL, DAY));
	expect_int(rig_stat(&g).scrub_passes, 4);
	rig_end(&g);
}

TEST(values_that_went_bad_are_found_and_dropped_and_no_others)
{
	struct rig g;
	unsigned bad = 0;
	bool hurt[KEYS] = {false};

	filled(&g, 2, 8 << 20);
	for (uint32_t i = 10; i < KEYS; i += 9) {
		struct index_place p = place_of(&g, i);
		uint64_t at = (uint64_t)p.block << FMT_BLOCK_SHIFT;

		if (!is_sealed(&g, i))
			continue;
		hurt[i] = true;
		if (bad % 3 == 0)
			sim_disk_rot(g.path[p.drive], at + 4096, 4096);
		else
			medium_of(&g, &p)[at + (bad % 3 == 1 ? 20 : 30000)] ^= 4;
		bad++;
	}
	expect(bad > 5);
	expect(sim_run_until(passed, &g, DAY));
	expect_int(rig_stat(&g).scrub_bad, bad);
	expect_int(rig_stat(&g).keys, KEYS - 1 - bad);
	expect_int(rig_stat(&g).drives_failed, 0);
	for (uint32_t i = 0; i < KEYS; i++)
		expect_int(rig_get(&g, i, i == 8 ? 2 : 1, i == 8 ? 60008 : 60000 + i),
			   hurt[i] || i == 7 ? -ENOENT : 0);
	/* What is put again is there again. */
	for (uint32_t i = 0; i < KEYS; i++) {
		if (hurt[i])
			expect_int(rig_put(&g, i, 3, 1000), 0);
	}
	rig_crash(&g, true);
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < KEYS; i++) {
		if (hurt[i])
			expect_int(rig_get(&g, i, 3, 1000), 0);
	}
	rig_end(&g);
}

TEST(a_footer_that_went_bad_is_written_anew_and_a_restart_finds_all)
{
	struct rig g;
	unsigned bad = 0;

	filled(&g, 3, 8 << 20);
	for (unsigned n = 0; n < 2; n++) {
		struct drive *d = &g.st->drive[n];

		for (uint32_t i = 0; i < d->segment_count; i++) {
			uint64_t end = fmt_segment_block(g.st->segment_bytes, i + 1);
			uint8_t *tail = sim_disk_bytes(g.path[n], NULL) + (end - 1) * 4096;

			if (d->segment[i].state != SEGMENT_SEALED)
				continue;
			tail[bad % 2 == 0 ? 16 : sizeof(struct fmt_segment) + 40] ^= 1;
			bad++;
		}
	}
	expect(bad > 3);
	expect(sim_run_until(passed, &g, DAY));
	expect_int(rig_stat(&g).scrub_bad, bad);
	rig_crash(&g, true);
	expect_int(rig_open(&g), 0);
	expect_int(rig_stat(&g).keys, KEYS - 1);
	expect(sim_run_until(passed, &g, DAY));
	expect_int(rig_stat(&g).scrub_bad, 0);
	for (uint32_t i = 0; i < KEYS; i++)
		expect_int(rig_get(&g, i, i == 8 ? 2 : 1, i == 8 ? 60008 : 60000 + i),
			   i == 7 ? -ENOENT : 0);
	rig_end(&g);
}

TEST(values_that_span_the_drives_are_scrubbed_and_their_footers_written_anew)
{
	struct rig g;
	unsigned sealed = 0;

	rig_begin(&g, 6, 2, 64 * MiB);
	g.opts.value_bytes_max = 4 * MiB;
	g.opts.buffer_bytes = 32 * MiB;
	g.opts.segment_bytes = 5 * MiB;
	g.opts.scrub_bytes = 64 << 20;
	g.opts.stripe = true;
	expect_int(rig_open(&g), 0);
	for (uint32_t i = 0; i < 24; i++)
		expect_int(rig_put(&g, i, 1, i % 3 == 0 ? 5000 : 3 * MiB + i), 0);
	for (unsigned n = 0; n < 2; n++) {
		struct drive *d = &g.st->drive[n];

		for (uint32_t i = 0; i < d->segment_count; i++) {
			uint64_t end = fmt_segment_block(g.st->segment_bytes, i + 1);

			if (d->segment[i].state != SEGMENT_SEALED)
				continue;
			sim_disk_bytes(g.path[n], NULL)[(end - 1) * 4096 + 16] ^= (sealed++ & 1);
		}
	}
	expect(sealed > 6);
	expect(sim_run_until(passed, &g, DAY));
	expect_int(rig_stat(&g).scrub_bad, sealed / 2);
	rig_crash(&g, true);
	expect_int(rig_open(&g), 0);
	expect(sim_run_until(passed, &g, DAY));
	expect_int(rig_stat(&g).scrub_bad, 0);
	expect_int(rig_stat(&g).keys, 24);
	for (uint32_t i = 0; i < 24; i++)
		expect_int(rig_get(&g, i, 1, i % 3 == 0 ? 5000 : 3 * MiB + i), 0);
	rig_end(&g);
}

TEST(a_scrub_gives_way_to_hosts_and_agrees_with_eviction)
{
	struct rig g;
	struct rig_op r[8];
	uint32_t put = 1000, busy;
	uint64_t before;

	filled(&g, 4, 16 << 20);
	expect(!sim_run_until(never, NULL, NS_PER_S));
	for (unsigned round = 0; round < 120; round++) {
		for (unsigned i = 0; i < 8; i++)
			expect(rig_put_start(&g, &r[i], put++, 1, 60000, STORE_PUT_ANY));
		for (unsigned i = 0; i < 8; i++) {
			expect(rig_wait(&r[i].done));
			expect_int(r[i].res, 0);
			store_buf_give(g.st, &r[i].buf);
		}
		expect(!sim_run_until(never, NULL, 5 * NS_PER_MS));
	}
	printf("# %llu segments evicted, %llu bytes read again\n",
	       (unsigned long long)rig_stat(&g).evicted_segments,
	       (unsigned long long)rig_stat(&g).scrub_bytes);
	expect(rig_stat(&g).evicted_segments > 20 && rig_stat(&g).scrub_bytes > 4 * MiB);
	expect_int(rig_stat(&g).scrub_bad, 0);
	/* While a drive has its hands full nothing is read again. */
	busy = g.st->drive[0].reading_busy;
	expect_int(busy, 0);
	before = rig_stat(&g).scrub_bytes;
	g.st->drive[0].reading_busy += 5;
	g.st->drive[1].reading_busy += 5;
	expect(!sim_run_until(never, NULL, 500 * NS_PER_MS));
	expect(rig_stat(&g).scrub_bytes - before < MiB);
	g.st->drive[0].reading_busy -= 5;
	g.st->drive[1].reading_busy -= 5;
	index_check(g.st->index);
	rig_end(&g);
}

static bool repairs(void *arg)
{
	struct drive *d = &((struct rig *)arg)->st->drive[0];

	return d->scrub.state == SCRUB_REPAIR && !d->scrub.busy;
}

static bool repairs_now(void *arg)
{
	return scrub_repairs(&((struct rig *)arg)->st->drive[0]);
}

TEST(no_put_is_refused_while_the_segment_to_clean_gets_its_footer_anew)
{
	uint32_t keys = 0, segment, victim[64], victims = 0;
	unsigned began_in = 0, refused = 0;
	struct rig_op del[64], put;
	struct rig g;
	uint8_t *tail;

	rig_begin(&g, 9, 1, 8 * MiB);
	g.opts.evict = false;
	g.opts.segment_bytes = 1 << 20;
	g.opts.scrub_bytes = 64 << 20;
	expect_int(rig_open(&g), 0);
	while (rig_put(&g, keys, 1, 60000) == 0)
		keys++;
	expect(is_sealed(&g, 0));
	segment = segment_of_block(&g.st->drive[0], place_of(&g, 0).block);
	tail = sim_disk_bytes(g.path[0], NULL) +
	       ((fmt_segment_block(1 << 20, segment + 1) - 1) << FMT_BLOCK_SHIFT);
	tail[16] ^= 1;
	expect(sim_run_until(repairs, &g, DAY));
	sim_fault_at(SIM_DISK_SLOW, 1);
	expect(sim_run_until(repairs_now, &g, NS_PER_S));
	for (uint32_t i = 0; i < keys && victims < 64; i++) {
		if (segment_of_block(&g.st->drive[0], place_of(&g, i).block) == segment)
			victim[victims++] = i;
	}
	expect(victims > 4);
	memset(del, 0, sizeof(del));
	for (uint32_t i = 0; i < victims; i++) {
		del[i].op = (struct store_op){.key = rig_key(victim[i]), .done = rig_op_done};
		store_delete(g.st, &del[i].op);
	}
	for (uint32_t i = 0; i < victims; i++) {
		expect(rig_wait(&del[i].done));
		expect_int(del[i].res, 0);
	}
	/* What is left of the open segment is filled, then a put needs the one that is mended. */
	for (unsigned i = 0; i < 18; i++) {
		began_in += repairs_now(&g);
		expect(rig_put_start(&g, &put, keys + i, 1, 60000, STORE_PUT_ANY));
		expect(rig_wait(&put.done));
		/* Whether there is room is known when it is back. */
		expect(put.res == 0 || (put.res == -ENOSPC && !repairs_now(&g)));
		refused += put.res != 0;
		store_buf_give(g.st, &put.buf);
	}
	expect(began_in > refused && refused > 0);
	rig_end(&g);
}

TEST(a_drive_that_dies_or_hangs_in_a_scrub_is_given_up_and_the_store_closes)
{
	for (unsigned how = 0; how < 3; how++) {
		struct rig g;

		filled(&g, 5 + how, 32 << 20);
		expect(!sim_run_until(never, NULL, 1010 * NS_PER_MS));
		expect(rig_stat(&g).scrub_bytes > 0);
		if (how < 2) {
			sim_disk_mode("drive0", how == 0 ? SIM_DISK_GONE : SIM_DISK_HANGS);
			expect(!sim_run_until(never, NULL, 20 * NS_PER_S));
			expect_int(rig_stat(&g).drives_failed, 1);
			sim_disk_mode("drive0", SIM_DISK_WELL);
			expect(!sim_run_until(never, NULL, NS_PER_S));
		}
		rig_end(&g);
	}
}
