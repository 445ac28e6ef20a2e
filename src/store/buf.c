/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of value buffers: one piece of memory, given out in blocks of 4 KiB. A buffer is one run
 * of blocks where one is free, else up to STORE_BUF_PIECES runs. It starts with room for the
 * record's header, so a value is written and read together with it, without a copy.
 *
 * Who finds no room waits, first come first served: nobody passes a large value that waits.
 * A buffer may stand for memory of somebody else (a loan): it takes a slot and no blocks.
 * A buffer goes back when its lease is given back and no I/O holds it. The pool is its loop's; a
 * buffer in use is of those who have a part in it, counted by an atomic: the last one to leave
 * finds itself on the pool's loop, or sends the buffer there in a message of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/inner.h"

#define BUF_SLOTS_MAX 4096u
#define BUF_RUN_BLOCKS_MIN 16u               /* smaller pieces only where the value is small */

static void pool_pump(struct loop_op *op, int res);
static struct buf_slot *slot_of(struct store_buf *buf);

int buf_pool_open(struct buf_pool *p, struct loop *loop, uint64_t bytes)
{
	memset(p, 0, sizeof(*p));
	p->block_count = (uint32_t)(bytes >> FMT_BLOCK_SHIFT);
	must(p->block_count > 0 && bytes >> FMT_BLOCK_SHIFT <= UINT32_MAX);
	p->free_blocks = p->block_count;
	p->loop = loop;
	p->pump.done = pool_pump;
	list_init(&p->waiting);
	p->slot_count = p->block_count < BUF_SLOTS_MAX ? p->block_count : BUF_SLOTS_MAX;
	p->memory = loop_buffer_map((uint64_t)p->block_count << FMT_BLOCK_SHIFT);
	p->used = calloc(p->block_count / 64 + 1, sizeof(*p->used));
	p->slot = calloc(p->slot_count, sizeof(*p->slot));
	if (p->memory == NULL || p->used == NULL || p->slot == NULL) {
		buf_pool_close(p);
		return -ENOMEM;
	}
	loop_buffer_register(loop, p->memory, (uint64_t)p->block_count << FMT_BLOCK_SHIFT);
	p->registered = true;
	for (unsigned i = p->slot_count; i-- > 0;) {
		p->slot[i].pool = p;
		p->slot[i].buf.next = p->free_slots;
		p->free_slots = &p->slot[i].buf;
	}
	return 0;
}

void buf_pool_close(struct buf_pool *p)
{
	if (p->registered)
		loop_buffer_unregister(p->loop, p->memory,
				       (uint64_t)p->block_count << FMT_BLOCK_SHIFT);
	if (p->memory != NULL)
		loop_buffer_unmap(p->memory, (uint64_t)p->block_count << FMT_BLOCK_SHIFT);
	free(p->used);
	free(p->slot);
	memset(p, 0, sizeof(*p));
}

bool buf_pool_idle(const struct buf_pool *p)
{
	return p->free_blocks == p->block_count && p->loans == 0 && list_empty(&p->waiting);
}

static bool block_used(const struct buf_pool *p, uint32_t block)
{
	return p->used[block / 64] >> block % 64 & 1;
}

/* The first run of free blocks at or after *at: its length, at most `most`; 0: none. */
static uint32_t run_find(const struct buf_pool *p, uint32_t *at, uint32_t most)
{
	uint32_t first = *at, end;

	while (first < p->block_count) {
		if (first % 64 == 0 && p->used[first / 64] == UINT64_MAX)
			first += 64;
		else if (block_used(p, first))
			first++;
		else
			break;
	}
	if (first >= p->block_count)
		return 0;
	for (end = first; end < p->block_count && end - first < most && !block_used(p, end);) {
		bool word = end % 64 == 0 && p->used[end / 64] == 0 &&
			    end + 64 <= p->block_count && end - first + 64 <= most;

		end += word ? 64 : 1;
	}
	*at = first;
	return end - first;
}

static void run_mark(struct buf_pool *p, uint32_t first, uint32_t count, bool used)
{
	must(count > 0 && first + count <= p->block_count);
	must(!used || count <= p->free_blocks);
	for (uint32_t b = first; b < first + count; b++) {
		must(block_used(p, b) != used);
		p->used[b / 64] ^= UINT64_C(1) << b % 64;
	}
	if (used)
		p->free_blocks -= count;
	else
		p->free_blocks += count;
}

/* Fills runs[] so that they hold `blocks`; false: not possible now. Marks nothing. */
static bool runs_gather(const struct buf_pool *p, uint32_t blocks, struct iovec *runs,
			unsigned *run_count)
{
	uint32_t at = 0, least;

	for (uint32_t length; (length = run_find(p, &at, blocks)) > 0; at += length) {
		if (length < blocks)
			continue;
		runs[0].iov_base = p->memory + ((uint64_t)at << FMT_BLOCK_SHIFT);
		runs[0].iov_len = (size_t)blocks << FMT_BLOCK_SHIFT;
		*run_count = 1;
		return true;
	}
	least = blocks / STORE_BUF_PIECES + 1;
	if (least < BUF_RUN_BLOCKS_MIN)
		least = BUF_RUN_BLOCKS_MIN;
	*run_count = 0;
	at = 0;
	for (uint32_t length; (length = run_find(p, &at, blocks)) > 0; at += length) {
		if (length < least && length < blocks)
			continue;
		if (*run_count == STORE_BUF_PIECES)
			return false;
		runs[*run_count].iov_base = p->memory + ((uint64_t)at << FMT_BLOCK_SHIFT);
		runs[*run_count].iov_len = (size_t)length << FMT_BLOCK_SHIFT;
		(*run_count)++;
		blocks -= length;
		if (blocks == 0)
			return true;
	}
	return false;
}

static struct buf_slot *slot_of(struct store_buf *buf)
{
	return container_of(buf, struct buf_slot, buf);
}

void buf_fit(struct store_buf *buf, uint32_t payload_bytes)
{
	size_t skip = slot_of(buf)->plain ? 0 : sizeof(struct fmt_record);
	uint32_t left = payload_bytes;

	buf->payload_bytes = payload_bytes;
	buf->piece_count = 0;
	for (unsigned i = 0; i < buf->chunk_count && left > 0; i++, skip = 0) {
		struct iovec *piece = &buf->piece[buf->piece_count++];

		piece->iov_base = (uint8_t *)buf->chunk[i].iov_base + skip;
		piece->iov_len = bytes_min(buf->chunk[i].iov_len - skip, left);
		left -= (uint32_t)piece->iov_len;
	}
	must(left == 0);
}

void buf_pad(struct store_buf *buf)
{
	uint64_t end = sizeof(struct fmt_record) + (uint64_t)buf->payload_bytes, at = 0;

	for (unsigned i = 0; i < buf->chunk_count; i++) {
		uint64_t length = buf->chunk[i].iov_len;

		if (at + length > end) {
			uint64_t from = end > at ? end - at : 0;

			memset((uint8_t *)buf->chunk[i].iov_base + from, 0, length - from);
		}
		at += length;
	}
}

uint32_t buf_blocks(const struct store_buf *buf)
{
	size_t bytes = 0;

	for (unsigned i = 0; i < buf->chunk_count; i++)
		bytes += buf->chunk[i].iov_len;
	return (uint32_t)(bytes >> FMT_BLOCK_SHIFT);
}

static uint32_t blocks_of(uint32_t payload_bytes, bool plain)
{
	if (!plain)
		return fmt_record_blocks(payload_bytes);
	return payload_bytes == 0 ? 1 :
	       (uint32_t)(bytes_round_up(payload_bytes, FMT_BLOCK_BYTES) >> FMT_BLOCK_SHIFT);
}

/* A slot whose chunks are set becomes a buffer. */
static struct store_buf *slot_take(struct buf_pool *p, uint32_t payload_bytes, bool plain)
{
	struct store_buf *buf = p->free_slots;
	struct buf_slot *slot = slot_of(buf);

	p->free_slots = buf->next;
	buf->next = NULL;
	buf->piece = slot->piece;
	buf->chunk = slot->chunk;
	atomic_store_explicit(&slot->refs, 1, memory_order_relaxed);
	slot->leased = true;
	slot->plain = plain;
	buf_fit(buf, payload_bytes);
	return buf;
}

static struct store_buf *take(struct buf_pool *p, uint32_t payload_bytes, bool plain)
{
	uint32_t blocks = blocks_of(payload_bytes, plain);
	struct store_buf *buf = p->free_slots;
	struct buf_slot *slot;

	must(blocks <= p->block_count);
	if (buf == NULL || blocks > p->free_blocks)
		return NULL;
	slot = slot_of(buf);
	if (!runs_gather(p, blocks, slot->chunk, &buf->chunk_count))
		return NULL;
	for (unsigned i = 0; i < buf->chunk_count; i++) {
		uint8_t *at = slot->chunk[i].iov_base;
		uint32_t first = (uint32_t)((at - p->memory) >> FMT_BLOCK_SHIFT);
		uint32_t count = (uint32_t)(slot->chunk[i].iov_len >> FMT_BLOCK_SHIFT);

		run_mark(p, first, count, true);
	}
	must(slot->loan.over == NULL);
	return slot_take(p, payload_bytes, plain);
}

/* Half of the slots are for those who wait for blocks. */
bool buf_may_borrow(const struct buf_pool *p)
{
	return p->free_slots != NULL && p->loans < p->slot_count / 2;
}

struct store_buf *buf_borrow(struct buf_pool *p, const struct buf_loan *loan, uint8_t *record,
			     uint32_t payload_bytes)
{
	struct store_buf *buf = p->free_slots;
	struct buf_slot *slot = slot_of(buf);

	loop_must_own(p->loop);
	must(loan->over != NULL && buf_may_borrow(p));
	slot->loan = *loan;
	slot->chunk[0] = (struct iovec){
		record, (size_t)fmt_record_blocks(payload_bytes) << FMT_BLOCK_SHIFT};
	buf->chunk_count = 1;
	p->loans++;
	return slot_take(p, payload_bytes, false);
}

struct store_buf *buf_take_now(struct buf_pool *p, uint32_t payload_bytes)
{
	return list_empty(&p->waiting) ? take(p, payload_bytes, false) : NULL;
}

static void pump_soon(struct buf_pool *p)
{
	if (p->pump_set || list_empty(&p->waiting))
		return;
	p->pump_set = true;
	loop_soon(p->loop, &p->pump, 0);
}

static void pool_pump(struct loop_op *op, int res)
{
	struct buf_pool *p = container_of(op, struct buf_pool, pump);

	p->pump_set = false;
	while (!list_empty(&p->waiting)) {
		struct list_link *first = p->waiting.next;
		struct store_buf_wait *w = container_of(first, struct store_buf_wait, link);
		struct store_buf *buf = take(p, w->payload_bytes, w->plain);

		if (buf == NULL)
			break;
		list_remove(&w->link);
		w->ready(w, buf);
	}
}

void store_pool_take(struct buf_pool *p, struct store_buf_wait *w)
{
	loop_must_own(p->loop);
	must(w->ready != NULL && blocks_of(w->payload_bytes, w->plain) <= p->block_count);
	w->link.next = w->link.prev = NULL;
	list_push_back(&p->waiting, &w->link);
	pump_soon(p);
}

bool store_pool_cancel(struct buf_pool *p, struct store_buf_wait *w)
{
	loop_must_own(p->loop);
	if (!list_linked(&w->link))
		return false;
	list_remove(&w->link);
	pump_soon(p);
	return true;
}

/* A view holds what it is a view of as well. */
void store_buf_hold(struct store_buf *buf)
{
	for (; buf != NULL; buf = slot_of(buf)->of) {
		unsigned before = atomic_fetch_add_explicit(&slot_of(buf)->refs, 1,
							    memory_order_relaxed);

		must(before > 0);
	}
}

/* Nobody has a part in it any more: its blocks are free. On the pool's loop. */
static void slot_home(struct buf_pool *p, struct store_buf *buf)
{
	struct buf_loan loan = slot_of(buf)->loan;

	loop_must_own(p->loop);
	must(buf->chunk_count > 0 && !slot_of(buf)->leased);
	for (unsigned i = 0; loan.over == NULL && i < buf->chunk_count; i++) {
		uint8_t *at = buf->chunk[i].iov_base;

		run_mark(p, (uint32_t)((at - p->memory) >> FMT_BLOCK_SHIFT),
			 (uint32_t)(buf->chunk[i].iov_len >> FMT_BLOCK_SHIFT), false);
	}
	buf->chunk_count = buf->piece_count = 0;
	buf->next = p->free_slots;
	p->free_slots = buf;
	pump_soon(p);
	if (loan.over == NULL)
		return;
	must(p->loans > 0);
	p->loans--;
	slot_of(buf)->loan.over = NULL;
	loan.over(loan.owner, loan.what);
}

static void slot_home_msg(struct loop *here, struct msg *m)
{
	struct buf_slot *slot = container_of(m, struct buf_slot, home);

	must(slot->pool->loop == here);
	slot_home(slot->pool, &slot->buf);
}

static void drop_one(struct store_buf *buf)
{
	struct buf_slot *slot = slot_of(buf);
	struct buf_pool *p = slot->pool;
	unsigned before = atomic_fetch_sub_explicit(&slot->refs, 1, memory_order_acq_rel);

	must(before > 0);
	if (before > 1)
		return;
	if (loop_here(p->loop)) {
		slot_home(p, buf);
		return;
	}
	slot->home.run = slot_home_msg;
	loop_post(p->loop, &slot->home);
}

void store_buf_drop(struct store_buf *buf)
{
	while (buf != NULL) {
		struct store_buf *of = slot_of(buf)->of;

		drop_one(buf);
		buf = of;
	}
}

void store_buf_return(struct store_buf **bufp)
{
	struct store_buf *buf = *bufp;

	must(buf != NULL && slot_of(buf)->leased);
	*bufp = NULL;
	slot_of(buf)->leased = false;
#ifdef KVOF_PLANT_BUFFER_RETURNED_TWICE
	if (!loop_here(slot_of(buf)->pool->loop))
		store_buf_drop(buf);              /* planted fault */
#endif
	store_buf_drop(buf);
}

/* --- one for all stores of a loop -------------------- */

int store_pool_open(struct loop *loop, uint64_t bytes, struct buf_pool **out)
{
	struct buf_pool *p = calloc(1, sizeof(*p));
	int rc;

	if (p == NULL)
		return -ENOMEM;
	rc = buf_pool_open(p, loop, bytes);
	if (rc == 0)
		*out = p;
	else
		free(p);
	return rc;
}

bool store_pool_close(struct buf_pool **pool)
{
	struct buf_pool *p = *pool;

	must(p != NULL && p->memory != NULL);
	*pool = NULL;
	if (!buf_pool_idle(p))
		return false;                          /* leaked on purpose: store/buf.h */
	buf_pool_close(p);
	free(p);
	return true;
}

uint64_t store_pool_bytes(const struct buf_pool *p)
{
	must(p->block_count > 0 && p->free_blocks <= p->block_count);
	return (uint64_t)p->block_count << FMT_BLOCK_SHIFT;
}
