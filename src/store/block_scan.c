/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compare and Verify: the drive's bytes come into a buffer of the shard, a chunk at a time, one
 * request at a time. Neither is a command that anything waits for in a hurry; their buffer is one
 * chunk, bought with the shard.
 *
 * The shard's loop.
 */
#include <errno.h>
#include <string.h>

#include "loop/iov.h"
#include "store/block_inner.h"

static uint64_t range_first(const struct block_op *op, uint64_t chunk)
{
	uint64_t start = chunk << BLK_CHUNK_SHIFT;

	return op->offset_bytes > start ? op->offset_bytes : start;
}

static uint64_t range_end(const struct block_op *op, uint64_t chunk)
{
	return bytes_min(op->offset_bytes + op->bytes, (chunk + 1) << BLK_CHUNK_SHIFT);
}

/* The request's memory for the chunk against what is stored; stored NULL: zeros. */
static int compare(const struct block_op *op, uint64_t chunk, const uint8_t *stored)
{
	uint64_t first = range_first(op, chunk), left = range_end(op, chunk) - first;
	struct iov_at at = iov_at_start(op->iov, op->iov_count);

	iov_at_skip(&at, first - op->offset_bytes);
	while (left > 0) {
		uint8_t *base = NULL;
		size_t n = (size_t)bytes_min(iov_at_piece(&at, &base), left);

		must(n > 0);
		if (stored == NULL ? !bytes_all_zero(base, n) : memcmp(base, stored, n) != 0)
			return -EBADMSG;
		stored = stored == NULL ? NULL : stored + n;
		iov_at_skip(&at, n);
		left -= n;
	}
	return 0;
}

/* Reads the chunk, or answers at once: 1 when the read is on its way. */
static int scan_chunk(struct block *b, struct block_op *op, uint64_t chunk)
{
	uint64_t local = chunk / b->shard_count, first = range_first(op, chunk);
	struct block_part *p = &b->part[local % b->part_count];
	uint64_t k = local / b->part_count, into = first - (chunk << BLK_CHUNK_SHIFT);
	struct block_io *io;

	if (p->failed || map_page_of(p, k)->bad || b->scan_memory == NULL)
		return -EIO;
	if (map_slot(p, k) == 0)
		return op->kind == BLOCK_COMPARE ? compare(op, chunk, NULL) : 0;
	io = block_io_take(p, op, op->kind);
	if (io == NULL)
		return -EBUSY;
	io->chunk = k;
	io->count = 1;
	io->slot = map_slot(p, k) - 1;
	io->first_bytes = into & ~(uint64_t)(BLK_BYTES - 1);
	io->bytes = bytes_round_up(range_end(op, chunk) - (chunk << BLK_CHUNK_SHIFT), BLK_BYTES) -
		    io->first_bytes;
	io->iov[0] = (struct iovec){b->scan_memory, io->bytes};
	io->iov_count = 1;
	block_io_start(io);
	return 1;
}

static void scan_end(struct block *b, int res)
{
	struct block_op *op = b->scan_op;
	int none = 0;

	if (res != 0)
		atomic_compare_exchange_strong(&op_leg(op)->res, &none, res);
	b->scan_op = NULL;
	op_started(b, op);
}

void scan_go(struct block *b)
{
	if (b->scanning || b->scan_reading)
		return;
	b->scanning = true;
	while (b->scan_op != NULL || !list_empty(&b->scan_wait)) {
		struct block_op *op = b->scan_op;
		struct op_leg *leg;
		int res = 0;

		if (op == NULL) {
			struct list_link *link = list_pop_front(&b->scan_wait);

			op = b->scan_op = op_of_leg(container_of(link, struct op_leg, link));
		}
		leg = op_leg(op);
		while (leg->at_chunk <= (op->offset_bytes + op->bytes - 1) >> BLK_CHUNK_SHIFT) {
			res = scan_chunk(b, op, leg->at_chunk);
			if (res != 0)
				break;
			leg->at_chunk += b->shard_count;
		}
		b->scan_blocked = res == -EBUSY;
		b->scan_reading = res == 1;
		if (res == 1 || res == -EBUSY)
			break;
		scan_end(b, res);
	}
	b->scanning = false;
}

void scan_data(struct block_io *io, int res)
{
	struct block *b = io->part->block;
	struct block_op *op = io->op;
	uint64_t first;

	must(b->scan_op == op && b->scan_reading);
	b->scan_reading = false;
	first = range_first(op, op_leg(op)->at_chunk);
	if (res == 0 && op->kind == BLOCK_COMPARE)
		res = compare(op, op_leg(op)->at_chunk, b->scan_memory + (first & (BLK_BYTES - 1)));
	op_leg(op)->at_chunk += b->shard_count;
	if (res != 0)
		scan_end(b, res);
}

/* The drive won't answer and may yet write: it keeps the memory, the shard gets other. */
void scan_lost(struct block_io *io)
{
	struct block *b = io->part->block;
	struct block_op *op = io->op;

	must(b->scan_op == op && io->iov[0].iov_base == b->scan_memory);
	b->scan_memory = loop_buffer_map(BLK_CHUNK_BYTES);
	b->scan_reading = false;
	io->op = NULL;
	scan_end(b, -EIO);
	op_drop(b, op, 0);
	scan_go(b);
}

void scan_begin(struct block *b, struct block_op *op)
{
	op_leg(op)->link.next = op_leg(op)->link.prev = NULL;
	list_push_back(&b->scan_wait, &op_leg(op)->link);
	scan_go(b);
}
