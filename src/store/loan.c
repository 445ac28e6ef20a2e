/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values that are sent from where they lie: on a drive of memory a get needs no copy. The buffer it
 * answers with is a slot of the pool whose one piece points into the drive.
 *
 * What is lent must not change. Bytes of a record are never overwritten before its segment is used
 * again, and that waits for the loans: eviction takes the keys out, erases header and footer (where
 * no value lies) and goes on to the next; the segment is held back (SEGMENT_LENT) until the last
 * loan is over. A host that reads slowly thus costs room and never time, and little room: loans lie
 * in one segment of LOAN_SEGMENTS_PART and one more, and small values are copied. Gets that find no
 * room for a loan are served by a copy, as from any other drive.
 *
 * Runs on the store's loop; a loan ends there, whoever gave the buffer back.
 */
#include "store/inner.h"

#define LOAN_BYTES_MIN (64u * 1024)          /* below, a copy is cheap and a segment is dear */
#define LOAN_SEGMENTS_PART 8u

static void loan_over(void *owner, uint32_t segment_index)
{
	struct drive *d = owner;
	struct store *st = d->st;
	struct segment *seg = &d->segment[segment_index];

	must(segment_index < d->segment_count && seg->loan_count > 0 && st->loans > 0);
	st->loans--;
	if (--seg->loan_count == 0) {
		must(d->segments_lent > 0);
		d->segments_lent--;
		if (seg->state == SEGMENT_LENT) {
			must(d->segments_held > 0);
			d->segments_held--;
			evict_free(d, segment_index);
			drive_pump(d);
		}
	}
	if (st->closing)
		store_close_pump(st);
}

/* NULL: the value is not in memory, or is not to be lent now. */
struct store_buf *loan_begin(struct store *st, const struct index_place *place)
{
	struct drive *d = &st->drive[place->drive];
	uint64_t at = (uint64_t)place->block << FMT_BLOCK_SHIFT;
	uint64_t bytes = (uint64_t)fmt_record_blocks(place->value_bytes) << FMT_BLOCK_SHIFT;
	uint32_t segment_index = segment_of_block(d, place->block);
	struct segment *seg = &d->segment[segment_index];
	struct buf_loan loan = {.over = loan_over, .owner = d, .what = segment_index};
	uint8_t *record;

	must(!d->failed);
	if (!disk_info(d->disk)->memory || slow_limits(&d->slow) ||
	    place->value_bytes < LOAN_BYTES_MIN)
		return NULL;
	if (seg->loan_count == 0 && d->segments_lent > d->segment_count / LOAN_SEGMENTS_PART)
		return NULL;
	if (!buf_may_borrow(st->pool))
		return NULL;
	record = disk_lend(d->disk, at, bytes);
	if (record == NULL)
		return NULL;
	must(seg->state != SEGMENT_FREE && seg->state != SEGMENT_LENT);
	d->segments_lent += seg->loan_count++ == 0;
	st->loans++;
	return buf_borrow(st->pool, &loan, record, place->value_bytes);
}
