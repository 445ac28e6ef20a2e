/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the segments of a drive say of themselves, for an open: their first and last blocks, and the
 * footers of many while those before are applied. Control path; blocks.
 */
#ifndef KVOF_STORE_SCAN_H
#define KVOF_STORE_SCAN_H

#include "store/inner.h"

#define SCAN_AHEAD_BYTES (8 * MiB)           /* at least the largest footer of a segment */

/* A segment as its header and footer tell. */
struct scan_found {
	struct fmt_segment_info info;
	bool valid, footer;
	bool tail_read, head_read;           /* into tails and heads */
	const uint8_t *ahead;                /* the whole footer, if it was read; NULL */
};

struct scan {
	struct scan_found *found;            /* by number of the segment */
	uint32_t *order;                     /* numbers, the oldest generation first */
	uint8_t *tails, *heads;              /* last and first block of each segment */
	struct disk_read_now *reads;         /* footers, in that order */
	uint64_t frames_bytes;
};

struct fmt_place scan_place(const struct drive *d, uint32_t segment, uint32_t block);
bool scan_block_read(struct drive *d, uint64_t block, uint8_t *into);

/* One segment; block: scratch. */
void scan_segment(struct drive *d, uint32_t i, uint8_t *block, struct scan_found *out);

static inline uint8_t *scan_tail(const struct scan *s, uint32_t segment)
{
	return s->tails + ((size_t)segment << FMT_BLOCK_SHIFT);
}

/* It has a footer of more than the block in tails: scan_ahead_next() is to be asked for it. */
bool scan_reads_footer(const struct scan_found *f);

/*
 * Footers of a drive and of the one after it, in the order of their scans: some lie ready while the
 * next ones are being read.
 */
struct scan_ahead;
int scan_ahead_open(struct scan_ahead **out);
void scan_ahead_close(struct scan_ahead **ahead);
/* The next footer of those that scans ordered; it stays until the next call. NULL: it can't be
 * read. */
const uint8_t *scan_ahead_next(struct scan_ahead *a);

/* Looks at all segments of a drive and orders its footers; `look` false: nothing is there. At most
 * one drive before this one is not asked for to the end. 0, -ENOMEM. */
int scan_drive(struct drive *d, bool look, struct scan_ahead *a, struct scan *out);
void scan_free(struct scan *s);

#endif
