/* SPDX-License-Identifier: Apache-2.0 */
/* The drives under a shard, seen from outside. Nothing is changed; the shard's loop. */
#include "store/look.h"

#include "store/block_inner.h"
#include "store/inner.h"

unsigned store_look(const struct store *st, struct store_look out[STORE_DRIVES_MAX])
{
	OBJ_CHECK(st, STORE_MAGIC);
	must(st->drive_count <= STORE_DRIVES_MAX);
	for (unsigned i = 0; i < st->drive_count; i++) {
		const struct drive *d = &st->drive[i];

		out[i] = (struct store_look){
			.path = d->path, .failed = d->failed, .missing = d->missing,
			.depth = d->read_depth};
		if (d->disk != NULL && !d->missing)
			out[i].counts = *disk_counts(d->disk);
	}
	return st->drive_count;
}

unsigned block_look(const struct block *b, struct store_look out[STORE_DRIVES_MAX])
{
	OBJ_CHECK(b, BLOCK_MAGIC);
	must(b->part_count <= STORE_DRIVES_MAX);
	for (unsigned i = 0; i < b->part_count; i++) {
		const struct block_part *p = &b->part[i];

		out[i] = (struct store_look){
			.path = p->path, .failed = p->failed, .missing = p->disk == NULL};
		if (p->disk != NULL)
			out[i].counts = *disk_counts(p->disk);
	}
	return b->part_count;
}
