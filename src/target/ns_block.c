/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block namespace over a volume: Read, Write, Flush, Write Zeroes, Compare, Dataset Management,
 * Verify. [NVM 1.0] section 3
 *
 *	Read      check ─ share ─ buffer ─ (flush, with FUA) ─ volume ─ push + answer
 *	                                                        NEW SHARE BUF STORE PUSH
 *	Write     check ─ share ─ buffer ─ pull ─ volume ─ answer          NEW SHARE BUF PULL STORE
 *	Compare   as Write
 *	DSM       check ─ buffer ─ pull ─ check ranges ─ volume, range after range ─ answer
 *	others    check ─ volume ─ answer                                  NEW STORE
 *
 * No copy: the pages of the buffer are filled by the wire and written by the drive, and the other
 * way round. The first byte lies in its page where its block lies in the drive's, so that a drive
 * takes whole pages of it, whatever the size of a block. A write is begun when all of its data is
 * here and the digest was right.
 *
 * Choices, also in docs/target.md: reads with FUA flush first (what they return is durable); a
 * write that overlaps another in flight is not ordered behind it; ranges of Dataset Management are
 * checked also when they are only hints. The queue's lane.
 */
#include "target/core.h"

#include <errno.h>

static void range_next(struct req *req);

static struct ns *block_ns(const struct req *req)
{
	must(req->ns != NULL && req->ns->ops == &ns_block_ops);
	return req->ns;
}

static struct nv_nvm_limits limits_of(const struct ns *ns)
{
	uint32_t block_bytes = volume_block_bytes(ns->volume);

	return (struct nv_nvm_limits){.blocks = volume_size_bytes(ns->volume) / block_bytes,
		.block_bytes = block_bytes, .transfer_bytes_max = atomic_load_explicit(
			&ns->subsys->transfer_bytes_max, memory_order_relaxed)};
}

static nv_status block_parse(struct req *req, struct bad *bad)
{
	struct nv_nvm_limits limits = limits_of(block_ns(req));
	struct nv_sgl_want want;
	struct nv_data data;
	nv_status status = nv_nvm_parse(&req->cmd->sqe, &limits, &req->nvm, bad);

	if (!nv_status_ok(status))
		return status;
	/* what the sharing of buffers looks at */
	req->kv = (struct nv_kv_cmd){.bytes = req->nvm.bytes, .dir = req->nvm.dir};
	want = (struct nv_sgl_want){req->nvm.dir, req->nvm.bytes, req->cmd->inline_bytes};
	return nv_sgl_check(&req->cmd->sqe, &want, &data, bad);
}

/* --- the volume's answer -------------------- */

static nv_status status_of(enum nv_nvm_opcode opcode, int res)
{
	switch (res) {
	case 0:
		return NV_OK;
	case -EBADMSG:
		return NV_COMPARE_FAILURE;
	case -ENOSPC:
		return NV_CAPACITY_EXCEEDED;
	default:
		break;
	}
	switch (opcode) {
	case NV_NVM_READ:
	case NV_NVM_COMPARE:
	case NV_NVM_VERIFY:
		return NV_READ_UNRECOVERED;
	case NV_NVM_FLUSH:
		return NV_INTERNAL_ERROR;
	default:
		return NV_WRITE_FAULT;
	}
}

static void block_end(struct req *req, int res)
{
	struct queue *q = req->queue;

	if (res == -EIO)
		ctrl_unwell(q->seat);
	if (res == 0 && req->nvm.opcode == NV_NVM_WRITE)
		COUNT_BYTES(q, bytes_in, req->nvm.bytes);
	if (res == 0)
		req_answer(req, NV_OK, 0);
	if (res == 0 || q->state == QUEUE_DEAD)
		req_end(req);
	else
		req_fail(req, status_of(req->nvm.opcode, res), NULL);
	queue_done(q);
}

static void block_done(struct block_op *op, int res)
{
	struct req *req = container_of(op, struct req, block);

	must(req->state == REQ_STORE);
	block_end(req, res);
}

static void block_run(struct req *req, enum block_kind kind,
		      void (*done)(struct block_op *op, int res))
{
	struct ns *ns = block_ns(req);
	uint32_t block_bytes = volume_block_bytes(ns->volume);

	must(req->state == REQ_STORE);
	req->block = (struct block_op){.kind = kind, .fua = req->nvm.force_unit_access,
		.offset_bytes = req->nvm.first_block * block_bytes,
		.bytes = (uint64_t)req->nvm.block_count * block_bytes,
		.buf = req->buf, .done = done};
	if (req->buf != NULL) {
		req->block.iov = req->buf->piece;
		req->block.iov_count = req->buf->piece_count;
	}
	volume_run(ns->volume, req->queue->lane->loop, &req->block);
}

/* --- with a buffer -------------------- */

/* Where in its page the first byte of the command lies. */
static uint32_t lead_of(const struct req *req)
{
	return (uint32_t)(req->nvm.first_block * volume_block_bytes(block_ns(req)->volume) & 4095);
}

static void buffer_take(struct req *req, void (*ready)(struct req *req))
{
	req_buf_take_plain(req, lead_of(req) + req->nvm.bytes, ready);
}

static void buffer_lead(struct req *req)
{
	struct iovec *first = &req->buf->piece[0];
	uint32_t lead = lead_of(req);

	must(req->buf->payload_bytes == lead + req->nvm.bytes && lead < first->iov_len);
	first->iov_base = (uint8_t *)first->iov_base + lead;
	first->iov_len -= lead;
}

static void block_got(struct block_op *op, int res)
{
	struct req *req = container_of(op, struct req, block);
	struct queue *q = req->queue;

	must(req->state == REQ_STORE);
	if (res != 0 || q->state == QUEUE_DEAD) {
		block_end(req, res != 0 ? res : -ECONNRESET);
		return;
	}
	COUNT_BYTES(q, bytes_out, req->nvm.bytes);
	req_push(req, req->buf->piece, req->buf->piece_count, req->nvm.bytes);
	req_answer(req, NV_OK, 0);
	queue_done(q);
}

static void read_flushed(struct block_op *op, int res)
{
	struct req *req = container_of(op, struct req, block);

	if (res != 0)
		block_end(req, -EIO);
	else
		block_run(req, BLOCK_READ, block_got);
}

static void read_begin(struct req *req)
{
	buffer_lead(req);
	req_go(req, REQ_STORE);
	if (req->nvm.force_unit_access)
		block_run(req, BLOCK_FLUSH, read_flushed);
	else
		block_run(req, BLOCK_READ, block_got);
}

/* The command's data is here. */
static void data_came(struct req *req)
{
	req_go(req, REQ_STORE);
	if (req->nvm.opcode == NV_NVM_DSM)
		range_next(req);
	else
		block_run(req, req->nvm.opcode == NV_NVM_WRITE ? BLOCK_WRITE : BLOCK_COMPARE,
			  block_done);
}

static nv_status ranges_check(struct req *req, struct bad *bad)
{
	struct nv_nvm_limits limits = limits_of(block_ns(req));

	must(req->buf->piece[0].iov_len >= req->nvm.bytes);
	return nv_dsm_check(req->buf->piece[0].iov_base, req->nvm.ranges, &limits, bad);
}

static void block_pulled(struct wire_cmd *cmd, int res)
{
	struct req *req = cmd->owner;
	struct queue *q = req->queue;
	struct bad bad = {0};
	nv_status status = NV_OK;

	must(req->state == REQ_PULL);
	if (res == 0)
		req_moved(req);
	if (res == 0 && req->nvm.opcode == NV_NVM_DSM)
		status = ranges_check(req, &bad);
	if (q->state == QUEUE_DEAD)
		req_end(req);
	else if (ns_seat(block_ns(req), q->lane)->leaving)
		req_fail(req, NV_INVALID_NAMESPACE, NULL);
	else if (res == -EBADMSG) {
		COUNT(q->lane, digest_errors, 1);
		req_fail(req, NV_TRANSIENT_TRANSPORT, NULL);
	} else if (res != 0)
		req_fail(req, NV_DATA_TRANSFER_ERROR, NULL);
	else if (!nv_status_ok(status))
		req_fail(req, status, &bad);
	else
		data_came(req);
	queue_done(q);
}

static void pull_begin(struct req *req)
{
	if (req->nvm.opcode != NV_NVM_DSM)
		buffer_lead(req);
	req_go(req, REQ_PULL);
	wire_pull(req->cmd, req->buf->piece, req->buf->piece_count, req->nvm.bytes, block_pulled);
}

/* --- Dataset Management -------------------- */

static void range_done(struct block_op *op, int res)
{
	struct req *req = container_of(op, struct req, block);

	must(req->state == REQ_STORE);
	if (res != 0)
		block_end(req, res);
	else
		range_next(req);
}

/*
 * The next piece of at most TARGET_DEALLOCATE_BLOCKS, so that a long range keeps nobody else from
 * the loop. req->nvm.block_count counts the ranges that are behind, first_block the blocks of this
 * one.
 */
static void range_next(struct req *req)
{
	struct ns *ns = block_ns(req);
	const struct nv_dsm_range *range = req->buf->piece[0].iov_base;
	uint32_t block_bytes = volume_block_bytes(ns->volume);
	uint64_t first, blocks = 0;

	for (; req->nvm.deallocate && req->nvm.block_count < req->nvm.ranges;
	     req->nvm.block_count++, req->nvm.first_block = 0) {
		blocks = le32_get(range[req->nvm.block_count].blocks) - req->nvm.first_block;
		if (blocks > 0)
			break;
	}
	if (blocks == 0) {
		block_end(req, 0);
		return;
	}
	first = le64_get(range[req->nvm.block_count].slba) + req->nvm.first_block;
	blocks = bytes_min(blocks, TARGET_DEALLOCATE_BLOCKS);
	req->nvm.first_block += blocks;
	req->block = (struct block_op){.kind = BLOCK_DEALLOCATE,
		.offset_bytes = first * block_bytes, .bytes = blocks * block_bytes,
		.done = range_done};
	volume_run(ns->volume, req->queue->lane->loop, &req->block);
}

/* --- all commands -------------------- */

static void without_data(struct req *req, enum block_kind kind)
{
	req_go(req, REQ_STORE);
	block_run(req, kind, block_done);
}

static void block_execute(struct req *req)
{
	switch (req->nvm.opcode) {
	case NV_NVM_READ:
		COUNT(req->queue->lane, block_reads, 1);
		count_add(&req->queue->seat->counts.reads, 1);
		buffer_take(req, read_begin);
		break;
	case NV_NVM_WRITE:
		COUNT(req->queue->lane, block_writes, 1);
		count_add(&req->queue->seat->counts.writes, 1);
		buffer_take(req, pull_begin);
		break;
	case NV_NVM_COMPARE:
		buffer_take(req, pull_begin);
		break;
	case NV_NVM_DSM:
		req_buf_take_plain(req, req->nvm.bytes, pull_begin);
		break;
	case NV_NVM_FLUSH:
		without_data(req, BLOCK_FLUSH);
		break;
	case NV_NVM_WRITE_ZEROES:
		without_data(req, req->nvm.deallocate ? BLOCK_DEALLOCATE : BLOCK_ZERO);
		break;
	case NV_NVM_VERIFY:
		without_data(req, BLOCK_VERIFY);
		break;
	}
}

/* --- what the namespace says of itself -------------------- */

#define NSFEAT_THIN 0x01
#define NSFEAT_NO_REUSE 0x08                 /* NGUID and EUI64 are not given to another one */
#define NSFEAT_OPTIMAL 0x10                  /* NPWG, NPWA, NPDG, NPDA, NOWS are there */
#define DLFEAT_ZEROS 0x01                    /* what is deallocated reads as zeros */
#define DLFEAT_WRITE_ZEROES 0x08             /* Write Zeroes may deallocate */
#define DEALLOCATE_BYTES (256 * KiB)         /* whole chunks give their room back */

static void block_identify(const struct ns *ns, uint8_t out[NV_IDENTIFY_BYTES])
{
	struct nv_id_namespace *id = (struct nv_id_namespace *)out;
	struct nv_nvm_limits limits = limits_of(ns);
	uint16_t page = (uint16_t)(4096 / limits.block_bytes - 1);
	uint16_t chunk = (uint16_t)(DEALLOCATE_BYTES / limits.block_bytes - 1);
	struct block_stat stat;

	volume_stat(ns->volume, &stat);
	id->nsze = le64_of(limits.blocks);
	id->ncap = le64_of(limits.blocks);
	id->nuse = le64_of(bytes_min(stat.used_bytes / limits.block_bytes, limits.blocks));
	id->nsfeat = NSFEAT_THIN | NSFEAT_NO_REUSE | NSFEAT_OPTIMAL;
	id->dlfeat = DLFEAT_ZEROS | DLFEAT_WRITE_ZEROES;
	id->npwg = id->npwa = le16_of(page);
	id->npdg = id->npda = id->nows = le16_of(chunk);
	id->lbaf[0].data_shift = limits.block_bytes == 512 ? 9 : 12;
	id->nmic = ns->nmic;
	memcpy(id->nguid, ns->ids.nguid, sizeof(id->nguid));
	memcpy(id->eui64, ns->ids.eui64, sizeof(id->eui64));
}

static void block_effects(struct nv_log_effects *out)
{
	out->io[NV_NVM_FLUSH] = le32_of(NV_EFFECT_SUPPORTED);
	out->io[NV_NVM_WRITE] = le32_of(NV_EFFECT_SUPPORTED | NV_EFFECT_CONTENT);
	out->io[NV_NVM_READ] = le32_of(NV_EFFECT_SUPPORTED);
	out->io[NV_NVM_COMPARE] = le32_of(NV_EFFECT_SUPPORTED);
	out->io[NV_NVM_WRITE_ZEROES] = le32_of(NV_EFFECT_SUPPORTED | NV_EFFECT_CONTENT);
	out->io[NV_NVM_DSM] = le32_of(NV_EFFECT_SUPPORTED | NV_EFFECT_CONTENT);
	out->io[NV_NVM_VERIFY] = le32_of(NV_EFFECT_SUPPORTED);
}

const struct ns_ops ns_block_ops = {
	.csi = NV_CSI_NVM, .parse = block_parse, .execute = block_execute,
	.identify = block_identify, .effects = block_effects,
};
