/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of one shard of a block namespace: a request's chunks become I/Os of the parts, each
 * of which goes through the stages of block_inner.h and then gives its part of the answer.
 *
 * Order: requests in flight at once have none, as the standard has it. Only where a block is
 * smaller than what a drive takes at once (512 in 4096 bytes) do writes that touch the same 4 KiB
 * follow each other, since each reads what it must not change.
 *
 * Invariants: an I/O whose slot is known is on part->flying until the drive has answered, so a slot
 * that is given back knows when nobody can touch it; an orphan holds its buffer until then.
 *
 * The shard's loop.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "loop/iov.h"
#include "store/block_inner.h"

#define PAGE_MASK (BLK_BYTES - 1u)
#define ZEROS_BYTES (64 * KiB)

static const _Alignas(4096) uint8_t zeros[ZEROS_BYTES];

static void data_done(struct loop_op *op, int res);
static void io_flushed(struct block_flush *w, int res);
static void slot_next(struct block_io *io);
static void io_settle(struct block_io *io);

static bool kind_writes(unsigned kind)
{
	return kind == BLOCK_WRITE || kind == BLOCK_ZERO || kind == BLOCK_DEALLOCATE;
}

/* --- one I/O -------------------- */

/* bit n set: may go to state n. A run that is still gathered is in DATA or SLOT already. */
static const uint8_t stage_next[] = {
	[STAGE_FREE] = 1u << STAGE_SLOT | 1u << STAGE_DATA | 1u << STAGE_PAGE | 1u << STAGE_FLUSH,
	[STAGE_SLOT] = 1u << STAGE_SLOT | 1u << STAGE_LOCK | 1u << STAGE_EDGE | 1u << STAGE_DATA |
		       1u << STAGE_FREE,
	[STAGE_LOCK] = 1u << STAGE_LOCK | 1u << STAGE_SLOT | 1u << STAGE_EDGE | 1u << STAGE_DATA |
		       1u << STAGE_PAGE | 1u << STAGE_FLUSH | 1u << STAGE_FREE,
	[STAGE_EDGE] = 1u << STAGE_EDGE | 1u << STAGE_DATA | 1u << STAGE_FREE,
	[STAGE_DATA] = 1u << STAGE_DATA | 1u << STAGE_LOCK | 1u << STAGE_EDGE | 1u << STAGE_PAGE |
		       1u << STAGE_FLUSH | 1u << STAGE_FREE,
	[STAGE_PAGE] = 1u << STAGE_PAGE | 1u << STAGE_FLUSH | 1u << STAGE_FREE,
	[STAGE_FLUSH] = 1u << STAGE_FREE,
};

/* The only writer of io->stage. */
void block_io_go(struct block_io *io, enum block_stage to)
{
	must(io->stage < ARRAY_COUNT(stage_next) && stage_next[io->stage] & 1u << to);
	io->stage = (uint8_t)to;
}

struct block_io *block_io_take(struct block_part *p, struct block_op *op, enum block_kind kind)
{
	struct list_link *link = list_pop_front(&p->io_free);
	struct block_io *io;

	if (link == NULL)
		return NULL;
	io = container_of(link, struct block_io, link);
	must(io->stage == STAGE_FREE && io->op == NULL && !p->failed);
	io->op = op;
	io->kind = (uint8_t)kind;
	io->iov_count = 0;
	io->want_version = 0;
	io->head.bytes = io->tail.bytes = 0;
	io->edge_reads = 0;
	p->io_busy++;
	atomic_fetch_add_explicit(&op_leg(op)->pending, 1, memory_order_relaxed);
	return io;
}

static void io_free(struct block_io *io)
{
	struct block_part *p = io->part;

	must(p->io_busy > 0 && !list_linked(&io->link) && !list_linked(&io->fly));
	p->io_busy--;
	block_io_go(io, STAGE_FREE);
	io->op = NULL;
	list_push_front(&p->io_free, &io->link);       /* the one that is still in the cache */
}

static void io_end(struct block_io *io, int res)
{
	struct block_part *p = io->part;
	struct block_op *op = io->op;

	io_free(io);
	op_drop(p->block, op, res);
	if (!list_empty(&p->op_wait))
		block_ops_resume(p);
	if (p->block->scan_blocked)
		scan_go(p->block);
	if (p->block->closing)
		block_close_pump(p->block);
}

/* The pages of 4 KiB that it changes, on the part. */
static bool io_overlaps(const struct block_io *a, const struct block_io *b)
{
	uint64_t a_first = a->at_bytes / BLK_BYTES, b_first = b->at_bytes / BLK_BYTES;
	uint64_t a_last = (a->at_bytes + a->bytes - 1) / BLK_BYTES;
	uint64_t b_last = (b->at_bytes + b->bytes - 1) / BLK_BYTES;

	return a_first <= b_last && b_first <= a_last;
}

static bool io_locked_out(const struct block_io *io)
{
	LIST_FOR_EACH(link, &io->part->flying) {
		const struct block_io *other = container_of(link, struct block_io, fly);

		if (kind_writes(other->kind) && io_overlaps(io, other))
			return true;
	}
	return false;
}

static void edges_copy(struct block_io *io)
{
	struct block_edge *edge[2] = {&io->head, &io->tail};

	for (unsigned i = 0; i < 2; i++) {
		if (edge[i]->bytes == 0)
			continue;
		if (io->kind == BLOCK_READ)
			memcpy(edge[i]->data, edge[i]->page + edge[i]->from, edge[i]->bytes);
		else
			memcpy(edge[i]->page + edge[i]->from, edge[i]->data, edge[i]->bytes);
	}
}

/* The next page that a write must know before it changes a part of it; false: there is none. */
static bool edge_read(struct block_io *io)
{
	struct block_edge *edge;
	uint64_t page_bytes;

	if (io->kind != BLOCK_WRITE)
		return false;
	if (io->edge_reads == 0 && io->head.bytes == 0)
		io->edge_reads = 1;
	if (io->edge_reads == 1 && io->tail.bytes == 0)
		io->edge_reads = 2;
	if (io->edge_reads >= 2)
		return false;
	edge = io->edge_reads++ == 0 ? &io->head : &io->tail;
	page_bytes = edge == &io->head ? io->at_bytes : io->at_bytes + io->bytes;
	block_io_go(io, STAGE_EDGE);
	io->edge_iov = (struct iovec){edge->page, BLK_BYTES};
	io->io = (struct disk_io){.op = {.done = data_done}, .iov = &io->edge_iov, .iov_count = 1,
		.offset_bytes = page_bytes & ~(uint64_t)PAGE_MASK, .bytes = BLK_BYTES};
	BLOCK_COUNT(io->part->block, device_reads, 1);
	BLOCK_COUNT(io->part->block, device_read_bytes, BLK_BYTES);
	io->started_ns = slow_read(&io->part->slow, &io->io);
	return true;
}

static void io_issue(struct block_io *io)
{
	struct block *b = io->part->block;
	struct disk *disk = io->part->disk;
	uint64_t first = io->at_bytes, end = io->at_bytes + io->bytes;

	if (b->narrow) {
		if (edge_read(io))
			return;
		if (io->kind == BLOCK_WRITE)
			edges_copy(io);
		if (io->kind != BLOCK_ZERO) {
			first &= ~(uint64_t)PAGE_MASK;
			end = bytes_round_up(end, BLK_BYTES);
		}
	}
	block_io_go(io, STAGE_DATA);
	io->io.op.done = data_done;
	io->io.iov = io->iov;
	io->io.iov_count = io->iov_count;
	io->io.offset_bytes = first;
	io->io.bytes = end - first;
	if (io->kind == BLOCK_WRITE) {
		BLOCK_COUNT(b, device_writes, 1);
		BLOCK_COUNT(b, device_write_bytes, end - first);
		disk_write(disk, &io->io);
	} else if (io->kind == BLOCK_ZERO) {
#ifdef KVOF_PLANT_BLOCK_ZERO_LONG
		if (io->first_bytes + io->bytes < BLK_CHUNK_BYTES)
			io->io.bytes += BLK_BYTES;     /* planted fault */
#endif
		disk_zero(disk, &io->io);
	} else {
		BLOCK_COUNT(b, device_reads, 1);
		BLOCK_COUNT(b, device_read_bytes, end - first);
		io->started_ns = slow_read(&io->part->slow, &io->io);
	}
}

void block_io_start(struct block_io *io)
{
	struct block_part *p = io->part;

	must(io->slot < p->lay.slot_count && io->bytes > 0 && !list_linked(&io->fly));
	io->at_bytes = p->lay.first_slot_bytes + ((uint64_t)io->slot << BLK_CHUNK_SHIFT) +
		       io->first_bytes;
	if (p->block->narrow && kind_writes(io->kind) && io_locked_out(io)) {
		block_io_go(io, STAGE_LOCK);
		list_push_back(&p->lock_wait, &io->link);
		return;
	}
	io->number = ++p->block->io_number;
	io->started_ns = loop_now_ns(p->block->loop);
	list_push_back(&p->flying, &io->fly);
	block_tick_set(p->block);
	io_issue(io);
}

/* Its chunk may have been given back meanwhile, and its slot to another. */
static void lock_resume(struct block_io *io)
{
	uint32_t slot = map_slot(io->part, io->chunk);

	must(io->count == 1);
	if (slot == 0 && io->kind == BLOCK_ZERO) {
		io_settle(io);
	} else if (slot == 0) {
		slot_next(io);
	} else {
		io->slot = slot - 1;
		block_io_start(io);
	}
}

/* Writes that waited for their 4 KiB, in their order. */
static void locks_resume(struct block_part *p)
{
	struct list_link all, *link;

	list_init(&all);
	while ((link = list_pop_front(&p->lock_wait)) != NULL)
		list_push_back(&all, link);
	while ((link = list_pop_front(&all)) != NULL)
		lock_resume(container_of(link, struct block_io, link));
}

static void data_done(struct loop_op *op, int res)
{
	struct block_io *io = container_of(op, struct block_io, io.op);
	struct block_part *p = io->part;

	must(io->stage == STAGE_DATA || io->stage == STAGE_EDGE);
	if (io->op != NULL && res == 0 && io->stage == STAGE_EDGE) {
		io_issue(io);
		return;
	}
	list_remove(&io->fly);
	if (!list_empty(&p->lock_wait))
		locks_resume(p);
	if (io->op == NULL) {                          /* an orphan: it was answered for before */
		if (block_kind_scans(io->kind))
			loop_buffer_unmap(io->iov[0].iov_base, BLK_CHUNK_BYTES);
		else
			store_buf_drop(io->buf);
		io->buf = NULL;
		io_free(io);
		block_close_pump(p->block);
		return;
	}
	if (res != 0)
		BLOCK_COUNT(p->block, io_errors, 1);
	/* A write that finds no space below a sparse drive: the namespace is full for now. */
	if (res != 0 && (res != -ENOSPC || !kind_writes(io->kind)))
		res = -EIO;
	block_io_next(io, res);
	if (p->epoch_state == EPOCH_IO)
		map_pump(p);
}

/* A new chunk's write has a slot, or still none. */
static void slot_next(struct block_io *io)
{
	struct block_part *p = io->part;

	must(io->count == 1);
	if (map_slot(p, io->chunk) == 0 && !map_give(p, io->chunk)) {
		if (p->take == p->tail || map_tight(p)) {
			BLOCK_COUNT(p->block, no_space, 1);
			io_end(io, -ENOSPC);
			return;
		}
		block_io_go(io, STAGE_SLOT);
		list_push_back(&p->slot_wait, &io->link);
		map_pump(p);
		return;
	}
	io->slot = map_slot(p, io->chunk) - 1;
	block_io_start(io);
}

static void io_settle(struct block_io *io)
{
	struct block_part *p = io->part;

	if (!map_settled(io)) {
		map_pump(p);
		return;
	}
#ifndef KVOF_PLANT_BLOCK_FUA_UNFLUSHED
	if (io->op->fua || p->block->ack_durable) {
		block_io_go(io, STAGE_FLUSH);
		io->flush = (struct block_flush){.done = io_flushed};
		map_flush(p, &io->flush);
		map_pump(p);
		return;
	}
#endif
	io_end(io, 0);
}

static void io_flushed(struct block_flush *w, int res)
{
	struct block_io *io = container_of(w, struct block_io, flush);

	must(io->stage == STAGE_FLUSH);
	io_end(io, res != 0 ? -EIO : 0);
}

void block_io_next(struct block_io *io, int res)
{
	struct block_part *p = io->part;
	bool writes = kind_writes(io->kind);

	must(io->op != NULL && !list_linked(&io->link));
	if (block_kind_scans(io->kind)) {
		scan_data(io, p->failed ? -EIO : res);
		io_end(io, 0);
		scan_go(p->block);
		return;
	}
	if (res == 0 && (p->failed || (p->broken && writes)))
		res = -EIO;
	if (res != 0) {
		if (res == -ENOSPC)
			BLOCK_COUNT(p->block, no_space, 1);
		io_end(io, res);
		return;
	}
	switch (io->stage) {
	case STAGE_SLOT:
		slot_next(io);
		break;
	case STAGE_DATA:
		if (!writes) {
			if (p->block->narrow)
				edges_copy(io);
			io_end(io, 0);
			break;
		}
		p->changes++;
		io_settle(io);
		break;
	case STAGE_PAGE:
		io_settle(io);
		break;
	default:
		must(false);                           /* a stage that nothing ends */
	}
}

/* --- a request becomes I/Os -------------------- */

/* What a request asks of one chunk. */
struct run {
	struct block_part *part;
	uint64_t chunk, first_bytes, bytes;  /* chunk of the part; bytes within it */
	uint64_t at_bytes;                   /* from the start of the request */
};

static struct run run_of(struct block *b, const struct block_op *op, uint64_t chunk)
{
	uint64_t local = chunk / b->shard_count, start = chunk << BLK_CHUNK_SHIFT;
	uint64_t first = op->offset_bytes > start ? op->offset_bytes : start;
	uint64_t end = bytes_min(op->offset_bytes + op->bytes, start + BLK_CHUNK_BYTES);

	must(chunk % b->shard_count == b->shard && first < end);
	return (struct run){
		.part = &b->part[local % b->part_count], .chunk = local / b->part_count,
		.first_bytes = first - start, .bytes = end - first,
		.at_bytes = first - op->offset_bytes,
	};
}

static void op_error(struct block_op *op, int res)
{
	int none = 0;

	must(res < 0);
	atomic_compare_exchange_strong(&op_leg(op)->res, &none, res);
}

static void run_zero_fill(struct block_op *op, const struct run *r)
{
	struct iov_at at = iov_at_start(op->iov, op->iov_count);

	iov_at_skip(&at, r->at_bytes);
	for (uint64_t left = r->bytes; left > 0;) {
		uint8_t *base = NULL;
		size_t n = (size_t)bytes_min(iov_at_piece(&at, &base), left);

		memset(base, 0, n);
		iov_at_skip(&at, n);
		left -= n;
	}
}

static void iov_add(struct block_io *io, uint8_t *base, size_t bytes)
{
	struct iovec *last = io->iov_count > 0 ? &io->iov[io->iov_count - 1] : NULL;

	if (bytes == 0)
		return;
	if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == base) {
		last->iov_len += bytes;
		return;
	}
	must(io->iov_count < BLOCK_IOV);
	io->iov[io->iov_count++] = (struct iovec){base, bytes};
}

/* The request's memory for this run; with zeros where it has none. */
static void io_data_add(struct block_io *io, const struct block_op *op, const struct run *r,
			uint64_t skip, uint64_t bytes)
{
	struct iov_at at = iov_at_start(op->iov, op->iov_count);
	uint8_t *base = NULL;
	size_t n;

	if (op->kind != BLOCK_WRITE && op->kind != BLOCK_READ) {
		for (; bytes > 0; bytes -= n) {
			n = (size_t)bytes_min(bytes, ZEROS_BYTES);
			iov_add(io, (uint8_t *)(uintptr_t)zeros, n);
		}
		return;
	}
	iov_at_skip(&at, r->at_bytes + skip);
	for (; bytes > 0; bytes -= n) {
		n = (size_t)bytes_min(iov_at_piece(&at, &base), bytes);
		iov_add(io, base, n);
		iov_at_skip(&at, n);
	}
}

static uint8_t *run_memory(const struct block_op *op, const struct run *r, uint64_t skip)
{
	struct iov_at at = iov_at_start(op->iov, op->iov_count);
	uint8_t *base = NULL;

	if (op->kind != BLOCK_WRITE && op->kind != BLOCK_READ)
		return (uint8_t *)(uintptr_t)zeros;
	iov_at_skip(&at, r->at_bytes + skip);
	must(iov_at_piece(&at, &base) > 0);
	return base;
}

/* Memory for a run whose ends may lie inside a page of the drive. */
static void io_data_narrow(struct block_io *io, const struct block_op *op, const struct run *r)
{
	uint32_t into = (uint32_t)(r->first_bytes & PAGE_MASK), head = 0, tail;
	uint8_t *pages = io->part->edge_memory +
			 (size_t)(io - io->part->io) * 2 * BLK_BYTES;

	must(io->iov_count == 0);
	if (into != 0 || r->bytes < BLK_BYTES) {
		head = (uint32_t)bytes_min(BLK_BYTES - into, r->bytes);
		io->head = (struct block_edge){pages, run_memory(op, r, 0), into, head};
		iov_add(io, pages, BLK_BYTES);
	}
	tail = (uint32_t)((r->bytes - head) & PAGE_MASK);
	io_data_add(io, op, r, head, r->bytes - head - tail);
	if (tail != 0) {
		io->tail = (struct block_edge){pages + BLK_BYTES,
			run_memory(op, r, r->bytes - tail), 0, tail};
		must(io->iov_count < BLOCK_IOV);
		io->iov[io->iov_count++] = (struct iovec){pages + BLK_BYTES, BLK_BYTES};
	}
}

static void io_fill(struct block_io *io, const struct block_op *op, const struct run *r)
{
	io->chunk = r->chunk;
	io->count = 1;
	io->first_bytes = r->first_bytes;
	io->bytes = r->bytes;
	if (io->kind != BLOCK_READ && io->kind != BLOCK_WRITE)
		return;
	if (io->part->block->narrow)
		io_data_narrow(io, op, r);
	else
		io_data_add(io, op, r, 0, r->bytes);
}

/* The chunk after an I/O's, in the slot after an I/O's: one I/O moves both. */
static bool io_extend(struct block_io *io, const struct block_op *op, const struct run *r,
		      uint32_t slot)
{
	must(io->op == op);
	if (io->kind == BLOCK_DEALLOCATE || io->chunk + io->count != r->chunk ||
	    io->slot + io->count != slot || io->part->block->narrow)
		return false;
	if (io->kind != BLOCK_ZERO && io->iov_count + op->iov_count > BLOCK_IOV)
		return false;
	must(r->first_bytes == 0);
	if (io->kind != BLOCK_ZERO)
		io_data_add(io, op, r, 0, r->bytes);
	io->count++;
	io->bytes += r->bytes;
	return true;
}

/* How the blocks of this run are to be treated, which depends on what of the chunk they are. */
static enum block_kind run_kind(const struct block_op *op, struct run *r)
{
	uint32_t edge;

	if (op->kind == BLOCK_READ || op->kind == BLOCK_WRITE || !r->part->block->narrow)
		return op->kind == BLOCK_DEALLOCATE && r->bytes < BLK_CHUNK_BYTES ? BLOCK_ZERO :
										  op->kind;
	edge = (uint32_t)((r->first_bytes | r->bytes) & PAGE_MASK);
	if (edge != 0)
		return BLOCK_WRITE;                    /* of zeros */
	return op->kind == BLOCK_DEALLOCATE && r->bytes < BLK_CHUNK_BYTES ? BLOCK_ZERO : op->kind;
}

/* A whole chunk is given back, or was not there: the map must say so on the drive. */
static void run_deallocate(struct block_io *io, const struct run *r)
{
	struct block_part *p = r->part;

	io->chunk = r->chunk;
	io->count = 1;
	io->bytes = 0;
	if (map_slot(p, r->chunk) != 0)
		map_free(p, r->chunk);
	io->want_version = map_page_of(p, r->chunk)->version;
	block_io_go(io, STAGE_PAGE);
}

/* True: nothing is left to do for the run. */
static bool run_at_once(struct block_op *op, const struct run *r)
{
	struct block_part *p = r->part;
	bool writes = kind_writes(op->kind);

	if (p->failed || (p->broken && writes) || map_page_of(p, r->chunk)->bad) {
		op_error(op, -EIO);
		return true;
	}
	if (map_slot(p, r->chunk) != 0 || op->kind == BLOCK_WRITE)
		return false;
	if (op->kind == BLOCK_READ) {
		run_zero_fill(op, r);
		return true;
	}
	/* Zeros already; but a kill must not bring back what was deallocated just now. */
	return map_page_of(p, r->chunk)->written == map_page_of(p, r->chunk)->version;
}

/* The deallocations of a request that follow each other in one page wait as one. */
static bool deallocate_extend(struct block_io *io, const struct run *r)
{
	struct block_part *p = r->part;

	if (io->kind != BLOCK_DEALLOCATE || io->chunk + io->count != r->chunk ||
	    map_page_of(p, io->chunk) != map_page_of(p, r->chunk))
		return false;
	if (map_slot(p, r->chunk) != 0)
		map_free(p, r->chunk);
	io->count++;
	io->want_version = map_page_of(p, r->chunk)->version;
	return true;
}

static void io_go(struct block_io *io)
{
	if (io->stage == STAGE_PAGE)
		io_settle(io);
	else if (io->stage == STAGE_SLOT)
		slot_next(io);
	else
		block_io_start(io);
}

/* False: no I/O is free; the request waits for one. */
static bool run_go(struct block_op *op, struct run *r, struct block_io **openp)
{
	struct block_part *p = r->part;
	enum block_kind kind = run_kind(op, r);
	struct block_io *io = *openp;
	uint32_t slot;

	if (run_at_once(op, r))
		return true;
	if (kind != BLOCK_WRITE && kind != BLOCK_READ && map_slot(p, r->chunk) == 0)
		kind = BLOCK_DEALLOCATE;               /* only waits for the map */
	if (kind == BLOCK_WRITE && op->kind != BLOCK_WRITE && map_slot(p, r->chunk) == 0)
		kind = BLOCK_DEALLOCATE;
	if (io != NULL && kind == BLOCK_DEALLOCATE && deallocate_extend(io, r))
		return true;
	if (kind == BLOCK_WRITE && map_slot(p, r->chunk) == 0)
		(void)map_give(p, r->chunk);
	slot = map_slot(p, r->chunk);
	if (io != NULL && io->kind == kind && slot != 0 && io_extend(io, op, r, slot - 1))
		return true;
	if (io != NULL) {
		*openp = NULL;
		io_go(io);
		if (p->failed)
			return run_at_once(op, r);
	}
	io = block_io_take(p, op, kind);
	if (io == NULL) {
		op_leg(op)->link.next = op_leg(op)->link.prev = NULL;
		list_push_back(&p->op_wait, &op_leg(op)->link);
		return false;
	}
	*openp = io;
	if (kind == BLOCK_DEALLOCATE) {
		run_deallocate(io, r);
		return true;
	}
	io_fill(io, op, r);
	block_io_go(io, slot != 0 ? STAGE_DATA : STAGE_SLOT);
	io->slot = slot - 1;
	return true;
}

/* Goes on with a request's chunks; true: all of this shard are begun. */
static bool data_go(struct block *b, struct block_op *op)
{
	uint64_t last = (op->offset_bytes + op->bytes - 1) >> BLK_CHUNK_SHIFT;
	struct block_io *open[STORE_DRIVES_MAX] = {0};
	struct op_leg *leg = op_leg(op);
	bool all = true;

	for (; all && leg->at_chunk <= last; leg->at_chunk += all ? b->shard_count : 0) {
		struct run r = run_of(b, op, leg->at_chunk);
		struct block_io **at = &open[r.part->index];

		all = run_go(op, &r, at);
		/* one that waits for a slot is of one chunk: it goes its own way */
		if (*at != NULL && (*at)->stage == STAGE_SLOT) {
			struct block_io *io = *at;

			*at = NULL;
			slot_next(io);
		}
	}
	for (unsigned i = 0; i < b->part_count; i++)
		if (open[i] != NULL)
			io_go(open[i]);
	/* Pages that name new slots need not wait for the data: the slots are zero. */
	for (unsigned i = 0; i < b->part_count; i++)
		if (!b->part[i].failed && !list_empty(&b->part[i].dirty))
			map_pump(&b->part[i]);
	return all;
}

/* A part that lost something since its last flush can't promise. */
static bool flush_go(struct block *b, struct block_op *op)
{
	struct op_leg *leg = op_leg(op);

	for (; leg->at_chunk < b->part_count; leg->at_chunk++) {
		struct block_part *p = &b->part[leg->at_chunk];
		struct block_io *io;

		if (p->disk == NULL)
			continue;
		if (p->failed || p->broken) {
			op_error(op, -EIO);
			continue;
		}
		if (!map_flush_needed(p))
			continue;
		io = block_io_take(p, op, BLOCK_FLUSH);
		if (io == NULL) {
			leg->link.next = leg->link.prev = NULL;
			list_push_back(&p->op_wait, &leg->link);
			return false;
		}
		block_io_go(io, STAGE_FLUSH);
		io->flush = (struct block_flush){.done = io_flushed};
		map_flush(p, &io->flush);
		map_pump(p);
	}
	return true;
}

static void op_go(struct block *b, struct block_op *op)
{
	bool all = op->kind == BLOCK_FLUSH ? flush_go(b, op) : data_go(b, op);

	if (all)
		op_started(b, op);
}

void block_ops_resume(struct block_part *p)
{
	if (p->resuming)
		return;                                /* from inside an op_go() below */
	p->resuming = true;
	while (!list_empty(&p->op_wait) && (p->failed || !list_empty(&p->io_free))) {
		struct list_link *link = list_pop_front(&p->op_wait);

		op_go(p->block, op_of_leg(container_of(link, struct op_leg, link)));
	}
	p->resuming = false;
}

static void op_count(struct block *b, const struct block_op *op)
{
	switch (op->kind) {
	case BLOCK_READ:
		BLOCK_COUNT(b, reads, 1);
		BLOCK_COUNT(b, read_bytes, op->bytes);
		break;
	case BLOCK_WRITE:
		BLOCK_COUNT(b, writes, 1);
		BLOCK_COUNT(b, write_bytes, op->bytes);
		break;
	case BLOCK_ZERO:
		BLOCK_COUNT(b, zeroes, 1);
		break;
	case BLOCK_DEALLOCATE:
		BLOCK_COUNT(b, deallocates, 1);
		break;
	case BLOCK_COMPARE:
		BLOCK_COUNT(b, compares, 1);
		break;
	case BLOCK_VERIFY:
		BLOCK_COUNT(b, verifies, 1);
		break;
	case BLOCK_FLUSH:
		BLOCK_COUNT(b, flushes, 1);
		break;
	}
}

void block_begin(struct block *b, struct block_op *op)
{
	struct op_leg *leg = op_leg(op);
	uint64_t first = op->offset_bytes >> BLK_CHUNK_SHIFT;

	OBJ_CHECK(b, BLOCK_MAGIC);
	loop_must_own(b->loop);
	must(!b->closing && leg->shard == b->shard);
	if (!leg->begun)
		op_count(b, op);
	leg->begun = true;
	if (!b->warm) {                                /* not at open: the loop may move */
		b->warm = true;
		for (unsigned i = 0; i < b->part_count; i++)
			if (!b->part[i].failed)
				map_pump(&b->part[i]); /* the first slots are zeroed */
	}
	leg->at_chunk = first + (b->shard + b->shard_count - first % b->shard_count) %
				b->shard_count;
	if (op->kind == BLOCK_FLUSH)
		leg->at_chunk = 0;
	if (block_kind_scans(op->kind))
		scan_begin(b, op);
	else
		op_go(b, op);
}

/* --- drives that hang -------------------- */

/* Its answers won't be waited for; what the drive still has stays with it. */
void block_part_fail(struct block_part *p, const char *why)
{
	struct block *b = p->block;

	must(!p->failed && p->disk != NULL);
	log_event(LOG_ERROR, "drive_failed", LOG_TEXT("drive", p->path), LOG_TEXT("why", why),
		  LOG_TEXT("lost", "its chunks of one block shard"));
	p->failed = true;
	atomic_fetch_or_explicit(&b->failed_parts, 1u << p->index, memory_order_relaxed);
	LIST_FOR_EACH_SAFE(link, &p->flying) {
		struct block_io *io = container_of(link, struct block_io, fly);
		struct block_op *op = io->op;

		if (op != NULL && block_kind_scans(io->kind)) {
			scan_lost(io);
			continue;
		}
		if (op == NULL || op->buf == NULL)
			continue;                      /* nobody could keep the memory: it waits */
		store_buf_hold(op->buf);
		io->buf = op->buf;
		io->op = NULL;
		op_drop(b, op, -EIO);
	}
	while (!list_empty(&p->lock_wait))
		block_io_next(container_of(list_pop_front(&p->lock_wait), struct block_io, link),
			      -EIO);
	map_abandon(p);
	block_ops_resume(p);
	block_close_pump(b);
}

static bool part_hangs(const struct block_part *p, uint64_t now_ns)
{
	uint64_t oldest = now_ns;

	if (!list_empty(&p->flying))
		oldest = container_of(p->flying.next, struct block_io, fly)->started_ns;
	if (p->flush_busy)
		oldest = bytes_min(oldest, p->flush_started_ns);
	if (p->zero_state == ZERO_ZEROING)
		oldest = bytes_min(oldest, p->zero_started_ns);
	if (p->epoch_state == EPOCH_DISCARD)
		oldest = bytes_min(oldest, p->discard_started_ns);
	for (unsigned i = 0; i < BLOCK_PAGE_WRITES; i++)
		if (p->write[i].busy)
			oldest = bytes_min(oldest, p->write[i].started_ns);
	return now_ns > oldest && now_ns - oldest > STORE_IO_LIMIT_NS;
}

static void block_tick(struct loop_timer *t)
{
	struct block *b = container_of(t, struct block, tick);
	uint64_t now_ns = loop_now_ns(b->loop);
	bool busy = b->closing;

	for (unsigned i = 0; i < b->part_count; i++) {
		struct block_part *p = &b->part[i];

		if (p->disk == NULL || p->failed)
			continue;
		busy |= p->io_busy > 0 || !map_quiet(p) || p->page_retry;
		if (part_hangs(p, now_ns)) {
			block_part_fail(p, "an answer does not come");
			continue;
		}
		if (p->page_retry) {
			p->page_retry = false;
			map_pump(p);
		}
	}
	if (busy && !b->closed)
		block_tick_set(b);
	block_close_pump(b);
}

void block_tick_set(struct block *b)
{
	if (loop_timer_is_set(&b->tick))
		return;
	if (b->tick.fire == NULL)
		loop_timer_init(&b->tick, block_tick);
	loop_timer_set(b->loop, &b->tick, loop_now_ns(b->loop) + STORE_TICK_NS);
}
