/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which segment of an object namespace is worth cleaning: its live values go to the head of the
 * log, what was deleted or overwritten in it is room again.
 *
 * Worth it is a segment that gives at least 1 / CLEAN_GAIN_PART of its size when a put waits, so
 * for each byte stored at most CLEAN_GAIN_PART are written; twice that much is asked for while
 * there is still room. A delete may clean for a single block: a full namespace can always be
 * emptied.
 *
 * A tombstone is needed as long as an older segment may hold what it covers, so it is carried
 * unless all older segments are clean. Where tombstones are what fills the drive, the oldest
 * segment that is not clean goes first: with it those of the next are not needed any more. That is
 * done where all that is not clean gives the asked part of itself.
 *
 * Room: puts leave two free segments, deletes one, a cleaning may take the last. What is alive in
 * a segment fits in one, so a cleaning that has begun can end, and gives one back.
 * Pure looks at the drive's state. Runs on the store's loop.
 */
#include "store/inner.h"

#define CLEAN_GAIN_PART 16u

bool segment_is_clean(const struct segment *seg)
{
	return seg->live_count == seg->entry_count && seg->tombstone_count == 0 && !seg->untidy;
}

static bool counts(const struct segment *seg)
{
	return seg->state != SEGMENT_FREE && seg->generation != 0;
}

static uint64_t oldest_unclean(const struct drive *d)
{
	uint64_t oldest = UINT64_MAX;

	must(!d->failed);
	for (uint32_t i = 0; i < d->segment_count; i++) {
		const struct segment *seg = &d->segment[i];

		if (counts(seg) && seg->generation < oldest && !segment_is_clean(seg))
			oldest = seg->generation;
	}
	return oldest;
}

bool clean_older_unclean(const struct drive *d, uint64_t generation)
{
	return oldest_unclean(d) < generation;
}

uint32_t clean_least(const struct drive *d)
{
	const struct store_op *op;

	if (list_empty(&d->op_wait))
		return d->segment_blocks * 2 / CLEAN_GAIN_PART;
	op = container_of(d->op_wait.next, struct store_op, link);
	return op_state((struct store_op *)(uintptr_t)op)->kind == OP_DELETE
		       ? 1
		       : d->segment_blocks / CLEAN_GAIN_PART;
}

/* Blocks that are room again when what is alive in it is copied. What was left over at its end
 * since the next record did not fit will be left over again. */
static uint32_t gain_of(const struct drive *d, const struct segment *seg)
{
	uint32_t tail = d->segment_blocks - 1 - seg->used_blocks;
	uint32_t record = fmt_record_blocks(d->st->opts.value_bytes_max);
	uint32_t dead = seg->used_blocks - 1 > seg->live_blocks
				? seg->used_blocks - 1 - seg->live_blocks
				: 0;

	must(seg->used_blocks < d->segment_blocks);
	return dead + (tail > record ? tail - record : 0);
}

uint32_t clean_victim(const struct drive *d, uint32_t least_blocks)
{
	uint64_t oldest = oldest_unclean(d), gain_all = 0, blocks_all = 0;
	uint32_t best = d->segment_count, best_gain = 0, first = d->segment_count;

	must(least_blocks > 0 && !d->st->opts.evict);
	for (uint32_t i = 0; i < d->segment_count; i++) {
		const struct segment *seg = &d->segment[i];
		uint32_t gain, kept;

		if (seg->state != SEGMENT_SEALED || seg->stuck)
			continue;
		if (seg->live_count == 0 && seg->tombstone_count == 0)
			return i;
		gain = gain_of(d, seg);
		if (gain == 0)
			continue;
		gain_all += gain;
		blocks_all += d->segment_blocks;
		if (seg->generation == oldest)
			first = i;
		kept = seg->generation > oldest ? seg->tombstone_count : 0;
		gain = gain > kept ? gain - kept : 0;
		if (gain > best_gain) {
			best = i;
			best_gain = gain;
		}
	}
	if (best_gain >= least_blocks)
		return best;
	if (gain_all * d->segment_blocks >= blocks_all * least_blocks && gain_all > 0)
		return first;
	return d->segment_count;
}
