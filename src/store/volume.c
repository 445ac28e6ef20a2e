/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block namespace as callers on any loop see it. A request visits the shards that have chunks of
 * it one after another: each begins what is its own and sends the request on; the I/Os of all run
 * at the same time. What the request waits for is counted in the request itself (pending); whoever
 * takes the last of it sends the request home.
 *
 * Invariant: while shards are still to be visited, pending is above zero, so the request's message
 * has one use at a time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/block_inner.h"

int volume_open(const struct volume_shard *shard, unsigned shard_count, struct volume **out)
{
	struct volume *v = calloc(1, sizeof(*v));

	must(shard_count >= 1 && shard_count <= STORE_SHARDS_MAX);
	if (v == NULL)
		return -ENOMEM;
	OBJ_INIT(v, VOLUME_MAGIC);
	v->shard_count = shard_count;
	for (unsigned i = 0; i < shard_count; i++) {
		v->shard[i] = shard[i];
		must(shard[i].block->shard == i && shard[i].block->shard_count == shard_count);
		must(shard[i].block->size_bytes == shard[0].block->size_bytes);
	}
	*out = v;
	return 0;
}

void volume_close(struct volume **vp)
{
	struct volume *v;

	OBJ_TAKE(v, vp, VOLUME_MAGIC);
	v->magic = 0;
	free(v);
}

uint64_t volume_size_bytes(const struct volume *v)
{
	OBJ_CHECK(v, VOLUME_MAGIC);
	return v->shard[0].block->size_bytes;
}

uint32_t volume_block_bytes(const struct volume *v)
{
	OBJ_CHECK(v, VOLUME_MAGIC);
	return v->shard[0].block->block_bytes;
}

void volume_uuid(const struct volume *v, uint8_t out[16])
{
	OBJ_CHECK(v, VOLUME_MAGIC);
	memcpy(out, v->shard[0].block->uuid, 16);
}

/* --- there and back -------------------- */

static void op_end(struct block_op *op)
{
	struct op_leg *leg = op_leg(op);

	must(atomic_load_explicit(&leg->pending, memory_order_acquire) == 0);
	op->done(op, atomic_load_explicit(&leg->res, memory_order_relaxed));
}

static void op_home(struct loop *here, struct msg *m)
{
	struct op_leg *leg = container_of(m, struct op_leg, msg);

	must(leg->home == here);
	op_end(op_of_leg(leg));
}

static void op_soon(struct loop_op *soon, int res)
{
	op_end(op_of_leg(container_of(soon, struct op_leg, soon)));
}

void op_drop(struct block *b, struct block_op *op, int res)
{
	struct op_leg *leg = op_leg(op);
	int none = 0;

	if (res != 0)
		atomic_compare_exchange_strong(&leg->res, &none, res);
	if (atomic_fetch_sub_explicit(&leg->pending, 1, memory_order_acq_rel) != 1)
		return;
	if (leg->home != b->loop) {
		leg->msg = (struct msg){.run = op_home};
		loop_post(leg->home, &leg->msg);
	} else if (b->in_call == op) {
		leg->soon = (struct loop_op){.done = op_soon};
		loop_soon(leg->home, &leg->soon, 0);
	} else {
		op_end(op);
	}
}

static void op_arrive(struct loop *here, struct msg *m)
{
	struct op_leg *leg = container_of(m, struct op_leg, msg);
	struct block *b = leg->volume->shard[leg->shard].block;

	must(b->loop == here);
	block_begin(b, op_of_leg(leg));
}

static void op_send(struct op_leg *leg)
{
	leg->msg = (struct msg){.run = op_arrive};
	loop_post(leg->volume->shard[leg->shard].loop, &leg->msg);
}

void op_started(struct block *b, struct block_op *op)
{
	struct op_leg *leg = op_leg(op);

	must(leg->shards_left > 0 && leg->shard == b->shard);
	if (--leg->shards_left == 0) {
		op_drop(b, op, 0);
		return;
	}
	leg->shard = (uint8_t)((leg->shard + 1u) % leg->volume->shard_count);
	op_send(leg);
}

void volume_run(struct volume *v, struct loop *here, struct block_op *op)
{
	struct op_leg *leg = op_leg(op);
	uint64_t first = op->offset_bytes >> BLK_CHUNK_SHIFT, chunks = UINT64_MAX;
	struct block_op *outer;
	struct block *b;

	OBJ_CHECK(v, VOLUME_MAGIC);
	loop_must_own(here);
	memset(leg, 0, sizeof(*leg));
	if (op->kind == BLOCK_FLUSH) {
		first = 0;
	} else {
		must(op->bytes > 0 && (op->offset_bytes | op->bytes) %
					      volume_block_bytes(v) == 0);
		must(op->bytes <= volume_size_bytes(v) &&
		     op->offset_bytes <= volume_size_bytes(v) - op->bytes);
		must(op->iov_count <= BLOCK_OP_IOV_MAX);
		chunks = ((op->offset_bytes + op->bytes - 1) >> BLK_CHUNK_SHIFT) - first + 1;
	}
	leg->volume = v;
	leg->home = here;
	leg->shard = (uint8_t)(first % v->shard_count);
	leg->shards_left = (uint16_t)bytes_min(chunks, v->shard_count);
	atomic_store_explicit(&leg->pending, 1, memory_order_relaxed);
	if (v->shard[leg->shard].loop != here) {
		op_send(leg);
		return;
	}
	b = v->shard[leg->shard].block;
	outer = b->in_call;                            /* we may be in the done() of another */
	b->in_call = op;
	block_begin(b, op);
	b->in_call = outer;
}

void volume_stat(const struct volume *v, struct block_stat *out)
{
	uint32_t failed = 0;

	OBJ_CHECK(v, VOLUME_MAGIC);
	*out = (struct block_stat){.size_bytes = volume_size_bytes(v),
		.drives = v->shard[0].block->part_count};
	for (unsigned i = 0; i < v->shard_count; i++) {
		const struct block *b = v->shard[i].block;

		out->cap_bytes += b->slots << BLK_CHUNK_SHIFT;
		out->used_bytes += atomic_load_explicit(&b->used_chunks, memory_order_relaxed)
				   << BLK_CHUNK_SHIFT;
		failed |= atomic_load_explicit(&b->failed_parts, memory_order_relaxed);
#define X(name) out->name += atomic_load_explicit(&b->name, memory_order_relaxed);
		BLOCK_STATS(X)
#undef X
	}
	out->drives_failed = (unsigned)__builtin_popcount(failed);
}
