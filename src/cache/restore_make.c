/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request is one piece of memory: the request, its blocks, their iov arrays, and as many loads
 * with their parts as may be under way at once. Made by an engine thread, so that the loop takes
 * none; its size follows the number of blocks, not their bytes. Any thread.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache/restore_inner.h"

/* No number at all is not the same as none told: that is 0. */
static bool rate_fits(double rate)
{
	return isfinite(rate) && rate >= 0;
}

static int opts_check(const struct kvof_restore_opts *opts)
{
	if (opts->struct_bytes != sizeof(*opts) || opts->mode > KVOF_RESTORE_ENDS ||
	    (opts->flags & ~(KVOF_RESTORE_EACH | KVOF_RESTORE_LOAD_ALL)) != 0 ||
	    opts->priority < -KVOF_PRIORITY_MAX || opts->priority > KVOF_PRIORITY_MAX ||
	    !rate_fits(opts->prefill_tokens_per_s) || !rate_fits(opts->prefill_slope))
		return -EINVAL;
	return 0;
}

struct layout {
	uint32_t n, iov_count_max, layer_count, slot_count, part_slots;
	uint64_t iovs, block_bytes_max;
	size_t block_at, iov_at, slot_at, part_at, layer_at, hist_at, tier_at, bytes;
};

static size_t place_at(struct layout *l, size_t count, size_t bytes)
{
	size_t at = l->bytes;

	l->bytes = bytes_round_up(at + count * bytes, 64);
	return at;
}

static int layout_make(const struct kvof_block *blocks, uint32_t n, const struct request_layout *r,
		       struct layout *l)
{
	uint64_t parts;

	*l = (struct layout){.n = n, .layer_count = r->layer_count > 0 ? r->layer_count : 1};
	for (uint32_t i = 0; i < n; i++) {
		if (tier_block_check(&blocks[i], r->cut_bytes) != 0)
			return -EINVAL;
		l->iovs += blocks[i].iov_count;
		if (blocks[i].iov_count > l->iov_count_max)
			l->iov_count_max = blocks[i].iov_count;
		if (blocks[i].bytes > l->block_bytes_max)
			l->block_bytes_max = blocks[i].bytes;
	}
	l->slot_count = n < RESTORE_OPEN_MAX ? n : RESTORE_OPEN_MAX;
	/* parts of a large block, its head, and one more for a last part that is short */
	parts = l->block_bytes_max / tier_cut_layers(r->cut_bytes, r->layer_count,
						     l->block_bytes_max) + 2;
	parts = bytes_min(parts, RESTORE_PARTS_MAX / l->slot_count);
	l->part_slots = (uint32_t)bytes_min(parts, TIER_PARTS_MAX);
	place_at(l, 1, sizeof(struct request));
	l->block_at = place_at(l, n, sizeof(struct rblock));
	l->iov_at = place_at(l, l->iovs + (uint64_t)l->slot_count * l->part_slots *
			     (l->iov_count_max + 1u), sizeof(struct iovec));
	l->slot_at = place_at(l, l->slot_count, sizeof(struct rslot));
	l->part_at = place_at(l, (size_t)l->slot_count * l->part_slots, sizeof(struct tier_part));
	l->layer_at = place_at(l, l->layer_count, sizeof(uint64_t));
	l->hist_at = place_at(l, l->layer_count + 1, sizeof(uint32_t));
	l->tier_at = place_at(l, n, 1);
	return l->bytes <= RESTORE_REQUEST_BYTES_MAX ? 0 : -EINVAL;
}

static struct iovec *blocks_fill(struct request *req, const struct kvof_block *blocks,
				 struct iovec *iov)
{
	for (uint32_t i = 0; i < req->n; i++) {
		struct rblock *b = &req->block[i];

		b->id = blocks[i].id;
		b->iov = iov;
		b->bytes = blocks[i].bytes;
		b->iov_count = (uint16_t)blocks[i].iov_count;
		b->state = RB_WANTED;
		if (b->iov_count > 0)
			memcpy(iov, blocks[i].iov, b->iov_count * sizeof(*iov));
		iov += b->iov_count;
	}
	return iov;
}

static void slots_fill(struct request *req, const struct layout *l, struct iovec *iov)
{
	struct tier_part *part = (void *)((char *)req + l->part_at);

	for (uint32_t i = 0; i < l->slot_count; i++) {
		struct rslot *s = &req->slot[i];

		s->req = req;
		s->op.part = part;
		s->op.part_slots = l->part_slots;
		for (uint32_t k = 0; k < l->part_slots; k++) {
			part[k].iov = iov;
			iov += l->iov_count_max + 1u;
		}
		part += l->part_slots;
		list_push_back(&req->idle, &s->link);
	}
	must((char *)iov <= (char *)req + l->slot_at);
}

static void layers_fill(struct request *req, const struct layout *l, const uint64_t *layer_bytes)
{
	uint64_t *end = (void *)((char *)req + l->layer_at), bytes = 0;

	req->layer_count = l->layer_count;
	req->layer_hist = (void *)((char *)req + l->hist_at);
	memset(req->layer_hist, 0, (l->layer_count + 1) * sizeof(uint32_t));
	req->layer_hist[0] = req->n;
	if (layer_bytes == NULL)
		return;
	for (uint32_t i = 0; i < l->layer_count; i++)
		end[i] = bytes += layer_bytes[i];
	req->layer_end = end;
}

int request_make(const struct kvof_block *blocks, uint32_t n, const struct kvof_restore_opts *opts,
		 const struct request_layout *layout, struct request **out)
{
	struct kvof_restore_opts defaults = {.struct_bytes = sizeof(defaults)};
	struct request *req;
	struct layout l;
	int rc;

	if (opts == NULL)
		opts = &defaults;
	if (blocks == NULL || n == 0 || n > KVOF_RESTORE_BLOCKS_MAX)
		return -EINVAL;
	rc = opts_check(opts);
	if (rc == 0)
		rc = layout_make(blocks, n, layout, &l);
	if (rc != 0)
		return rc;
	req = malloc(l.bytes);
	if (req == NULL)
		return -EBUSY;
	memset(req, 0, sizeof(*req));
	memset((char *)req + l.block_at, 0, n * sizeof(struct rblock));
	memset((char *)req + l.slot_at, 0, l.slot_count * sizeof(struct rslot));
	memset((char *)req + l.tier_at, 0, n);
	OBJ_INIT(req, REQUEST_MAGIC);
	req->bytes = l.bytes;
	req->opts = *opts;
	req->n = req->goal = req->wanted = req->behind = n;
	req->slot_count = l.slot_count;
	req->block = (void *)((char *)req + l.block_at);
	req->slot = (void *)((char *)req + l.slot_at);
	req->tier_of = (void *)((char *)req + l.tier_at);
	list_init(&req->idle);
	list_init(&req->raise);
	slots_fill(req, &l, blocks_fill(req, blocks, (void *)((char *)req + l.iov_at)));
	layers_fill(req, &l, layout->layer_bytes);
	*out = req;
	return 0;
}

void request_free(struct request **reqp)
{
	struct request *req;

	OBJ_TAKE(req, reqp, REQUEST_MAGIC);
	must(req->state == REQ_MADE || request_free_now(req));
	req->magic = 0;
	free(req);
}

uint32_t request_event_count(const struct request *req)
{
	uint32_t each = (req->opts.flags & KVOF_RESTORE_EACH) != 0 ? req->n : 0;

	return each + (request_prefix(req) ? req->layer_count : 0) + 1;
}
