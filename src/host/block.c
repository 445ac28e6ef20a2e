/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation on blocks as a command, built from zero each time, and its answer as a result. Pure
 * but for the operation itself; on the host's loop.
 */
#include <errno.h>

#include "host/impl.h"

static const enum nv_nvm_opcode nvm_opcode[] = {
	[HOST_READ] = NV_NVM_READ, [HOST_WRITE] = NV_NVM_WRITE, [HOST_FLUSH] = NV_NVM_FLUSH,
	[HOST_ZERO] = NV_NVM_WRITE_ZEROES, [HOST_DEALLOCATE] = NV_NVM_DSM,
	[HOST_COMPARE] = NV_NVM_COMPARE,
};

static bool moves(const struct host_op *op)
{
	return op->kind == HOST_READ || op->kind == HOST_WRITE || op->kind == HOST_COMPARE;
}

/* Inside the namespace, in whole blocks, and no more than one command can say. */
static bool range_is_right(const struct host_ns *ns, const struct host_op *op)
{
	uint64_t most = op->kind == HOST_DEALLOCATE ? UINT32_MAX : 65536;

	if (op->kind == HOST_FLUSH)
		return op->bytes == 0;
	if ((op->offset_bytes | op->range_bytes) % ns->block_bytes != 0 || op->range_bytes == 0)
		return false;
	if (op->range_bytes > ns->capacity_bytes ||
	    op->offset_bytes > ns->capacity_bytes - op->range_bytes)
		return false;
	if (op->range_bytes / ns->block_bytes > most)
		return false;
	return moves(op) ? op->bytes == op->range_bytes && op->bytes <= ns->transfer_bytes_max :
			   op->bytes == 0;
}

int block_request_build(const struct host_ns *ns, struct host_op *op, struct wire_req *req)
{
	struct nv_nvm_cmd cmd = {.opcode = nvm_opcode[op->kind]};
	struct op_lease *l = op_lease(op);

	if (!range_is_right(ns, op))
		return -EINVAL;
	*req = (struct wire_req){0};
	cmd.first_block = op->offset_bytes / ns->block_bytes;
	cmd.block_count = (uint32_t)(op->range_bytes / ns->block_bytes);
	cmd.force_unit_access = op->fua;
	if (op->kind == HOST_READ) {
		req->in = op->iov;
		req->in_count = op->iov_count;
		req->in_bytes = cmd.bytes = op->bytes;
	} else if (moves(op)) {
		req->out = op->iov;
		req->out_count = op->iov_count;
		req->out_bytes = cmd.bytes = op->bytes;
	} else if (op->kind == HOST_DEALLOCATE) {
		l->range = (struct nv_dsm_range){.blocks = le32_of(cmd.block_count),
			.slba = le64_of(cmd.first_block)};
		l->range_iov = (struct iovec){&l->range, sizeof(l->range)};
		req->out = &l->range_iov;
		req->out_count = 1;
		req->out_bytes = cmd.bytes = sizeof(l->range);
		cmd.ranges = 1;
		cmd.deallocate = true;
	}
	req->sqe = nv_nvm_build(ns->nsid, &cmd);
	return 0;
}

int block_answer_read(struct host_op *op, const struct wire_req *req)
{
	op->status = nv_cqe_status(&req->cqe);
	if (nv_status_is(op->status, NV_TRANSIENT_TRANSPORT) ||
	    nv_status_is(op->status, NV_COMPARE_FAILURE))
		return -EBADMSG;
	if (!nv_status_ok(op->status))
		return nv_status_to_errno(op->status);
	if (op->kind == HOST_READ && req->in_bytes_got != op->bytes)
		return -EPROTO;
	op->moved_bytes = op->bytes;
	return 0;
}
