/* SPDX-License-Identifier: Apache-2.0 */
/* Building submission and completion entries from zero. Pure; any thread. */
#include "nvme/sqe.h"

#include "nvme/fabrics.h"

struct nv_sqe nv_sqe_of(uint8_t opcode, uint32_t nsid)
{
	return (struct nv_sqe){
		.opcode = opcode,
		.flags = NV_SQE_PSDT_SGL,
		.nsid = le32_of(nsid),
		.sgl = nv_sgl_transport(0),
	};
}

enum nv_data_dir nv_sqe_dir(const struct nv_sqe *sqe)
{
	uint8_t bits = sqe->opcode == NV_OPCODE_FABRICS ? nv_fctype(sqe) : sqe->opcode;

	switch (bits & 3) {
	case 1:
		return NV_DATA_TO_CONTROLLER;
	case 2:
		return NV_DATA_TO_HOST;
	default:
		return NV_DATA_NONE;
	}
}

struct nv_cqe nv_cqe_of(uint16_t cid, nv_status status)
{
	return (struct nv_cqe){
		.cid = le16_of(cid),
		.status = le16_of(nv_status_to_cqe(nv_status_for_wire(status))),
	};
}
