/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See scan.h. Two batches of memory take turns: one is asked for footer by footer, the other is
 * being filled; the drives' footers follow one another through both. A batch is of one drive.
 */
#include "store/scan.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "store/attach.h"

#define AHEAD_READS 64u

struct batch {
	uint8_t *memory;                     /* SCAN_AHEAD_BYTES */
	struct disk_read_now reads[AHEAD_READS];
	struct disk_many *many;              /* under way; NULL: over */
	unsigned count, taken;
};

struct run {
	struct disk *disk;
	const struct disk_read_now *reads;
	uint32_t count, next;
};

struct scan_ahead {
	struct batch batch[2], *now;
	struct run run[2];                   /* the second one is begun after the first */
};

static void *pages(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

/* --- segments -------------------- */

struct fmt_place scan_place(const struct drive *d, uint32_t segment, uint32_t block)
{
	return (struct fmt_place){
		.store_id = d->st->id,
		.drive = d->index,
		.block = fmt_segment_block(d->st->segment_bytes, segment) + block,
	};
}

bool scan_block_read(struct drive *d, uint64_t block, uint8_t *into)
{
	return attach_read(d->disk, into, FMT_BLOCK_BYTES, block << FMT_BLOCK_SHIFT) == 0;
}

/* A look at one of the two; again where it is neither good nor blank, since a read may lie once.
 * read: it was read already. */
static bool frame_read(struct drive *d, uint32_t i, bool footer, uint8_t *into, bool read,
		       struct fmt_segment_info *out)
{
	uint32_t bytes = d->st->segment_bytes;
	struct fmt_place at = scan_place(d, i, footer ? d->segment_blocks - 1 : 0);

	for (int tries = 0; tries < 2; tries++) {
		const char *wrong = "unread";

		if ((tries == 0 && read) || scan_block_read(d, at.block, into))
			wrong = footer ? fmt_footer_check(into, &at, bytes, out)
				       : fmt_header_check(into, &at, bytes, out);
		if (wrong == NULL)
			return out->generation >= d->generation_min;
		if (bytes_all_zero(into, FMT_BLOCK_BYTES))
			return false;
	}
	return false;
}

/* A sealed footer is enough: an eviction overwrites the footer before the header. */
static bool segment_look_tail(struct drive *d, uint32_t i, uint8_t *tail, struct scan_found *out)
{
	struct fmt_segment_info info;

	if (frame_read(d, i, true, tail, out->tail_read, &info)) {
		out->info = info;
		out->valid = out->footer = true;
	}
	return out->valid && info.state == FMT_SEGMENT_SEALED;
}

static void segment_look_head(struct drive *d, uint32_t i, uint8_t *head, struct scan_found *out)
{
	struct fmt_segment_info info;

	if (frame_read(d, i, false, head, out->head_read, &info) &&
	    (!out->valid || info.generation > out->info.generation)) {
		out->info = info;
		out->valid = true;
		out->footer = false;
	}
}

void scan_segment(struct drive *d, uint32_t i, uint8_t *block, struct scan_found *out)
{
	*out = (struct scan_found){.valid = false};
	if (!segment_look_tail(d, i, block, out))
		segment_look_head(d, i, block, out);
}

/* In order of age, so that the last one that is not sealed is the one to go on with. */
static int order_by_generation(const void *a, const void *b, void *found)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	const struct scan_found *x = (const struct scan_found *)found + i;
	const struct scan_found *y = (const struct scan_found *)found + j;

	if (x->info.generation != y->info.generation)
		return x->info.generation < y->info.generation ? -1 : 1;
	return i < j ? -1 : i > j;
}

/* The first or last blocks of all segments that are wanted, many at a time. */
static int frames_read(struct drive *d, struct scan_found *found, bool tails, uint8_t *into)
{
	struct disk_read_now *reads = calloc(d->segment_count, sizeof(*reads));
	uint32_t *who = calloc(d->segment_count, sizeof(*who));
	unsigned count = 0;

	for (uint32_t i = 0; i < d->segment_count && reads != NULL && who != NULL; i++) {
		struct fmt_place at = scan_place(d, i, tails ? d->segment_blocks - 1 : 0);

		if (!tails && found[i].valid && found[i].info.state == FMT_SEGMENT_SEALED)
			continue;
		who[count] = i;
		reads[count++] = (struct disk_read_now){into + ((size_t)i << FMT_BLOCK_SHIFT),
			FMT_BLOCK_BYTES, at.block << FMT_BLOCK_SHIFT, 0};
	}
	if (reads != NULL && who != NULL)
		disk_read_many_now(d->disk, reads, count);
	for (unsigned i = 0; i < count; i++) {
		bool good = reads[i].res == 0;

		*(tails ? &found[who[i]].tail_read : &found[who[i]].head_read) = good;
	}
	free(who);
	free(reads);
	return count > 0 || d->segment_count == 0 || !tails ? 0 : -ENOMEM;
}

static int segments_look(struct drive *d, struct scan *scan)
{
	struct scan_found *found = scan->found;
	uint64_t oldest = 0;

	if (frames_read(d, found, true, scan->tails) != 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < d->segment_count; i++)
		(void)segment_look_tail(d, i, scan_tail(scan, i), &found[i]);
	(void)frames_read(d, found, false, scan->heads);
	for (uint32_t i = 0; i < d->segment_count; i++) {
		struct scan_found *f = &found[i];

		if (!f->valid || f->info.state != FMT_SEGMENT_SEALED)
			segment_look_head(d, i, scan->heads + ((size_t)i << FMT_BLOCK_SHIFT), f);
		if (f->valid && f->info.oldest_generation > oldest)
			oldest = f->info.oldest_generation;
	}
	for (uint32_t i = 0; i < d->segment_count; i++) {
		if (found[i].valid && found[i].info.generation < oldest)
			found[i] = (struct scan_found){.valid = false};
	}
	return 0;
}

/* --- footers, ahead -------------------- */

bool scan_reads_footer(const struct scan_found *f)
{
	return f->valid && f->footer && fmt_footer_blocks(f->info.entry_count) > 1;
}

static bool used_up(const struct batch *b)
{
	return b->taken == b->count;
}

static struct batch *other(struct scan_ahead *a)
{
	return a->now == &a->batch[0] ? &a->batch[1] : &a->batch[0];
}

static void runs_shift(struct scan_ahead *a)
{
	if (a->run[0].next < a->run[0].count)
		return;
	a->run[0] = a->run[1];
	a->run[1] = (struct run){.disk = NULL};
}

/* As many of the next ones as there is room for. */
static void batch_fill(struct scan_ahead *a, struct batch *b)
{
	struct run *run = &a->run[0];
	uint64_t used = 0;

	must(used_up(b) && b->many == NULL);
	b->count = b->taken = 0;
	runs_shift(a);
	for (; run->next < run->count && b->count < AHEAD_READS; run->next++) {
		struct disk_read_now *r = &b->reads[b->count];

		*r = run->reads[run->next];
		if (r->bytes > SCAN_AHEAD_BYTES - used)
			break;
		r->into = b->memory + used;
		used += r->bytes;
		b->count++;
	}
	if (b->count > 0)
		b->many = disk_read_many_begin(run->disk, b->reads, b->count);
}

static void batches_fill(struct scan_ahead *a)
{
	if (used_up(a->now)) {
		a->now = other(a);
		if (used_up(a->now))
			batch_fill(a, a->now);
	}
	if (used_up(other(a)))
		batch_fill(a, other(a));
}

int scan_ahead_open(struct scan_ahead **out)
{
	struct scan_ahead *a = calloc(1, sizeof(*a));

	*out = a;
	if (a == NULL)
		return -ENOMEM;
	a->now = &a->batch[0];
	for (unsigned i = 0; i < 2; i++) {
		a->batch[i].memory = loop_buffer_map(SCAN_AHEAD_BYTES);
		if (a->batch[i].memory == NULL) {
			scan_ahead_close(out);
			return -ENOMEM;
		}
	}
	return 0;
}

void scan_ahead_close(struct scan_ahead **ahead)
{
	struct scan_ahead *a = *ahead;

	*ahead = NULL;
	for (unsigned i = 0; a != NULL && i < 2; i++) {
		disk_read_many_end(&a->batch[i].many);
		if (a->batch[i].memory != NULL)
			loop_buffer_unmap(a->batch[i].memory, SCAN_AHEAD_BYTES);
	}
	free(a);
}

const uint8_t *scan_ahead_next(struct scan_ahead *a)
{
	struct disk_read_now *r;

	batches_fill(a);
	must(!used_up(a->now));
	disk_read_many_end(&a->now->many);
	r = &a->now->reads[a->now->taken++];
	return r->res == 0 ? r->into : NULL;
}

/* --- a drive -------------------- */

static void footers_order(struct drive *d, struct scan *s, struct scan_ahead *a)
{
	struct run *run;

	runs_shift(a);
	run = a->run[0].next == a->run[0].count ? &a->run[0] : &a->run[1];
	must(run->next == run->count);
	*run = (struct run){.disk = d->disk, .reads = s->reads};
	for (uint32_t n = 0; n < d->segment_count; n++) {
		const struct scan_found *f = &s->found[s->order[n]];
		uint64_t bytes = (uint64_t)fmt_footer_blocks(f->info.entry_count)
				 << FMT_BLOCK_SHIFT;
		uint64_t end = scan_place(d, s->order[n], d->segment_blocks).block
			       << FMT_BLOCK_SHIFT;

		if (scan_reads_footer(f))
			s->reads[run->count++] = (struct disk_read_now){
				.bytes = bytes, .offset_bytes = end - bytes};
	}
	batches_fill(a);
}

int scan_drive(struct drive *d, bool look, struct scan_ahead *a, struct scan *out)
{
	uint64_t bytes = (uint64_t)d->segment_count << FMT_BLOCK_SHIFT;

	must(d->segment_count > 0 && out->found == NULL);
	*out = (struct scan){
		.found = calloc(d->segment_count, sizeof(*out->found)),
		.order = calloc(d->segment_count, sizeof(*out->order)),
		.reads = calloc(d->segment_count, sizeof(*out->reads)),
		.tails = pages(bytes),
		.heads = pages(bytes),
		.frames_bytes = bytes,
	};
	if (out->found == NULL || out->order == NULL || out->reads == NULL || out->tails == NULL ||
	    out->heads == NULL || (look && segments_look(d, out) != 0)) {
		scan_free(out);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < d->segment_count; i++)
		out->order[i] = i;
	qsort_r(out->order, d->segment_count, sizeof(*out->order), order_by_generation, out->found);
	footers_order(d, out, a);
	return 0;
}

void scan_free(struct scan *s)
{
	if (s->tails != NULL)
		munmap(s->tails, s->frames_bytes);
	if (s->heads != NULL)
		munmap(s->heads, s->frames_bytes);
	free(s->found);
	free(s->order);
	free(s->reads);
	*s = (struct scan){.found = NULL};
}
