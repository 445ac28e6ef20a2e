/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation as a command, built from zero each time, and its answer as a result. Pure but for
 * the operation itself; on the host's loop.
 *
 * The answer comes from a peer: the length it names is believed only as far as it agrees with the
 * bytes that came.
 */
#include <errno.h>

#include "host/impl.h"

static const enum nv_kv_opcode kv_opcode[] = {
	[HOST_STORE] = NV_KV_STORE, [HOST_RETRIEVE] = NV_KV_RETRIEVE, [HOST_EXIST] = NV_KV_EXIST,
	[HOST_DELETE] = NV_KV_DELETE, [HOST_LIST] = NV_KV_LIST,
};

int kv_request_build(const struct host_ns *ns, const struct host_op *op, struct wire_req *req)
{
	struct nv_kv_cmd cmd = {.opcode = kv_opcode[op->kind], .key = op->key};
	uint32_t in_bytes;

	if (op->key.len > ns->key_bytes_max ||
	    (op->kind == HOST_STORE && op->bytes > ns->value_bytes_max))
		return -EINVAL;
	*req = (struct wire_req){0};
	switch (op->kind) {
	case HOST_STORE:
		cmd.if_absent = op->if_absent;
		cmd.if_present = op->if_present;
		cmd.bytes = op->bytes;
		cmd.dir = op->bytes > 0 ? NV_DATA_TO_CONTROLLER : NV_DATA_NONE;
		req->out = op->iov;
		req->out_count = op->bytes > 0 ? op->iov_count : 0;
		req->out_bytes = op->bytes;
		break;
	case HOST_RETRIEVE:
	case HOST_LIST:
		/* No answer is longer than a value; asking for more would run into MDTS. */
		in_bytes = (uint32_t)bytes_min(op->bytes, ns->value_bytes_max);
		cmd.bytes = in_bytes;
		cmd.dir = in_bytes > 0 ? NV_DATA_TO_HOST : NV_DATA_NONE;
		req->in = op->iov;
		req->in_count = in_bytes > 0 ? op->iov_count : 0;
		req->in_bytes = in_bytes;
		break;
	case HOST_EXIST:
	case HOST_DELETE:
		break;
	default:
		must(false);                           /* an operation on blocks */
	}
	req->sqe = nv_kv_build(ns->nsid, &cmd);
	return 0;
}

int kv_answer_read(struct host_op *op, const struct wire_req *req, bool repeated)
{
	int res;

	op->status = nv_cqe_status(&req->cqe);
	res = nv_status_to_errno(op->status);
	if (nv_status_is(op->status, NV_TRANSIENT_TRANSPORT))
		res = -EBADMSG;        /* seen only when sending it again did not help */
	if (repeated && op->repeat_ok) {
		if (op->kind == HOST_STORE && op->if_absent && res == -EEXIST)
			res = 0;
		if (op->kind == HOST_DELETE && res == -ENOENT)
			res = 0;
	}
	if (res != 0)
		return res;
	if (op->kind == HOST_STORE)
		op->value_bytes = op->moved_bytes = op->bytes;
	if (op->kind == HOST_LIST)
		op->moved_bytes = req->in_bytes_got;
	if (op->kind == HOST_RETRIEVE) {
		op->value_bytes = le32_get(req->cqe.dw0);
		op->moved_bytes = req->in_bytes_got;
		/* What moved is the value's head: as long as the value, or as the room for it. */
#ifndef KVOF_PLANT_HOST_LENGTH_BELIEVED
		if (op->moved_bytes != bytes_min(req->in_bytes, op->value_bytes))
			return -EPROTO;
#endif
	}
	return 0;
}
