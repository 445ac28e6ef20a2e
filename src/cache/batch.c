/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch is one piece of memory: the batch, its operations, the copies of the caller's iov arrays,
 * the parts that may be in flight, and the parts' own iov arrays. Made by an engine thread, so that
 * the loop allocates nothing. Any thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/core.h"

static int block_check(enum kvof_op kind, const struct kvof_block *b, uint32_t cut_bytes)
{
	if (kind == KVOF_EXISTS_OP || kind == KVOF_DELETE)
		return b->bytes == 0 && b->iov_count == 0 ? 0 : -EINVAL;
	return tier_block_check(b, cut_bytes);
}

struct layout {
	size_t ops, iovs, parts, bytes;
	size_t part_at, iov_at;
};

static void layout_add(struct layout *l, enum kvof_op kind, const struct kvof_block *b,
		       uint32_t cut_bytes)
{
	size_t slots = tier_slots(kind, b->bytes, cut_bytes);

	l->parts += slots;
	l->iovs += b->iov_count + slots * (b->iov_count + 1u);
}

/* Hands each operation its share of the memory behind the operations. */
static void batch_fill(struct cache_batch *batch, const struct kvof_block *blocks,
		       const struct layout *l, uint32_t cut_bytes)
{
	struct tier_part *part = (void *)((char *)batch + l->part_at);
	struct iovec *iov = (void *)((char *)batch + l->iov_at);

	for (uint32_t i = 0; i < batch->count; i++) {
		struct cache_op *op = &batch->op[i];
		const struct kvof_block *b = &blocks[i];

		op->batch = batch;
		op->index = i;
		op->tier_op.kind = batch->kind;
		op->tier_op.id = b->id;
		op->tier_op.iov = iov;
		op->tier_op.iov_count = b->iov_count;
		op->tier_op.bytes = b->bytes;
		op->tier_op.part = part;
		op->tier_op.part_slots = tier_slots(batch->kind, b->bytes, cut_bytes);
		if (b->iov_count > 0)
			memcpy(iov, b->iov, b->iov_count * sizeof(*iov));
		iov += b->iov_count;
		for (unsigned k = 0; k < op->tier_op.part_slots; k++) {
			part[k].iov = iov;
			iov += b->iov_count + 1u;
		}
		part += op->tier_op.part_slots;
	}
	must((char *)iov == (char *)batch + l->bytes);
}

int batch_make(enum kvof_op kind, const struct kvof_block *blocks, uint32_t count,
	       uint32_t cut_bytes, struct cache_batch **out)
{
	struct layout l = {0};
	struct cache_batch *batch;

	if (blocks == NULL || count == 0 || count > KVOF_BLOCKS_MAX || kind > KVOF_DELETE)
		return -EINVAL;
	for (uint32_t i = 0; i < count; i++) {
		if (block_check(kind, &blocks[i], cut_bytes) != 0)
			return -EINVAL;
		layout_add(&l, kind, &blocks[i], cut_bytes);
	}
	l.part_at = bytes_round_up(sizeof(*batch) + count * sizeof(struct cache_op), 64);
	l.iov_at = l.part_at + l.parts * sizeof(struct tier_part);
	l.bytes = l.iov_at + l.iovs * sizeof(struct iovec);
	if (l.bytes > CACHE_BATCH_BYTES_MAX)
		return -EINVAL;
	batch = malloc(l.bytes);
	if (batch == NULL)
		return -EBUSY;
	memset(batch, 0, l.part_at);
	batch->kind = kind;
	batch->count = batch->left = count;
	batch->bytes = l.bytes;
	batch_fill(batch, blocks, &l, cut_bytes);
	*out = batch;
	return 0;
}

void batch_free(struct cache_batch **batch)
{
	free(*batch);
	*batch = NULL;
}
