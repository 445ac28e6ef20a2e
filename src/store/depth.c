/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many reads a drive has in flight at most: more than it takes with profit only makes each of
 * them wait longer, and those who come later wait for all. Chosen at open by a short measurement
 * that reads where the store's own values are, or set (store_opts.drive_depth). Control path.
 */
#include "store/depth.h"

#include <inttypes.h>

#include "base/log.h"
#include "base/must.h"
#include "store/inner.h"

#define DEPTH_BUDGET_NS (8 * NS_PER_MS)      /* all drives; it is part of the time of an open */
#define DEPTH_LEAST 16u                      /* values may be small, too */
#define DEPTH_FACTOR 4u                      /* ... than what was measured with */
#define GOOD_PERCENT 95u

unsigned depth_choose(const struct disk_rate *rate, unsigned count)
{
	uint64_t best = 0;
	unsigned depth = 0;

	must(count <= DISK_RATES_MAX);
	for (unsigned i = 0; i < count; i++) {
		must(rate[i].depth > depth);
		depth = rate[i].depth;
		if (rate[i].bytes_per_s > best)
			best = rate[i].bytes_per_s;
	}
	for (unsigned i = 0; i < count; i++) {
		if (rate[i].bytes_per_s < best / 100 * GOOD_PERCENT)
			continue;
		depth = rate[i].depth * DEPTH_FACTOR;
		return depth < DEPTH_LEAST ? DEPTH_LEAST :
		       depth > STORE_READS_MAX ? STORE_READS_MAX : depth;
	}
	return STORE_READS_MAX;
}

/* The first and last segment that holds something. */
static bool used_span(const struct drive *d, uint64_t *offset, uint64_t *bytes)
{
	uint32_t first = d->segment_count, last = 0;

	for (uint32_t i = 0; i < d->segment_count; i++) {
		if (d->segment[i].state != SEGMENT_SEALED)
			continue;
		first = first == d->segment_count ? i : first;
		last = i;
	}
	if (first == d->segment_count)
		return false;
	must(first <= last && last < d->segment_count);
	*offset = fmt_segment_block(d->st->segment_bytes, first) << FMT_BLOCK_SHIFT;
	*bytes = (uint64_t)(last + 1 - first) * d->st->segment_bytes;
	return true;
}

static void limits_set(struct drive *d)
{
	d->read_depth = d->st->opts.drive_depth > 0 ? d->st->opts.drive_depth : STORE_READS_MAX;
	d->reading_blocks_max = UINT32_MAX;
	d->writing_bytes_max = UINT64_MAX;
#ifndef KVOF_PLANT_HUNG_DRIVE_TAKES_ALL
	/* A buffer is not back before the drive has answered. Should it never, then a quarter of
	 * the pool, at least, is left to the others. */
	if (d->st->drive_count > 1) {
		d->reading_blocks_max = d->st->pool->block_count * 3 / 8;
		d->writing_bytes_max = (uint64_t)d->reading_blocks_max << FMT_BLOCK_SHIFT;
	}
#endif
	d->rate.bytes_per_s = d->st->opts.drive_read_bytes_per_s;
	if (d->disk != NULL)
		slow_begin(&d->slow, d->shared_rate != NULL ? d->shared_rate : &d->rate,
			   d->st->loop, d->disk);
}

void depth_open(struct store *st)
{
	struct disk_probe probe[STORE_DRIVES_MAX];
	struct drive *of[STORE_DRIVES_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < st->drive_count; i++) {
		struct drive *d = &st->drive[i];
		struct disk_probe *p = &probe[count];

		limits_set(d);
		must(d->read_depth >= 1 && d->read_depth <= STORE_READS_MAX);
		if (d->failed || st->opts.drive_depth > 0 ||
		    !used_span(d, &p->offset_bytes, &p->bytes))
			continue;
		p->disk = d->disk;
		of[count++] = d;
	}
	disk_rates_now(probe, count, DEPTH_BUDGET_NS);
	for (unsigned i = 0; i < count; i++) {
		const struct disk_rate *rate = probe[i].rate;
		unsigned n = probe[i].rate_count;

		if (n == 0)
			continue;
		of[i]->read_depth = depth_choose(rate, n);
		log_info("store drive %s: %u reads in flight at most; measured %" PRIu64 " MB/s "
			 "with %u, %" PRIu64 " MB/s with %u", of[i]->path, of[i]->read_depth,
			 rate[0].bytes_per_s / 1000000, rate[0].depth,
			 rate[n - 1].bytes_per_s / 1000000, rate[n - 1].depth);
	}
}
