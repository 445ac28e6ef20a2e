/* SPDX-License-Identifier: Apache-2.0 */
/* Block commands: check and build. Invariant: blocks named by an NV_OK lie inside the namespace. */
#include "nvme/nvm.h"

#include "base/must.h"

#define AT(member) (uint16_t)offsetof(struct nv_nvm_sqe, member)

static bool opcode_known(uint8_t opcode)
{
	return opcode == NV_NVM_FLUSH || opcode == NV_NVM_READ || opcode == NV_NVM_WRITE ||
	       opcode == NV_NVM_COMPARE || opcode == NV_NVM_WRITE_ZEROES;
}

nv_status nv_nvm_parse(const struct nv_sqe *raw, const struct nv_nvm_limits *limits,
		       struct nv_nvm_cmd *out, struct bad *bad)
{
	const struct nv_nvm_sqe *sqe = (const struct nv_nvm_sqe *)raw;
	uint64_t first = le64_get(sqe->slba);
	uint32_t count = le16_get(sqe->nlb) + 1u;
	uint64_t bytes = (uint64_t)count * limits->block_bytes;
	bool moves = sqe->opcode != NV_NVM_FLUSH && sqe->opcode != NV_NVM_WRITE_ZEROES;

	must(limits->block_bytes > 0);
	if (!opcode_known(sqe->opcode))
		return nv_bad(bad, NV_INVALID_OPCODE, AT(opcode), "no such block command");
	if ((sqe->flags & NV_SQE_FUSE) != 0)
		return nv_bad(bad, NV_INVALID_FIELD, AT(flags), "fused commands are not supported");
	*out = (struct nv_nvm_cmd){.opcode = sqe->opcode};
	if (sqe->opcode == NV_NVM_FLUSH)
		return NV_OK;
	if ((le16_get(sqe->control) & NV_NVM_PRINFO) != 0)
		return nv_bad(bad, NV_INVALID_FIELD, AT(control), "no protection information here");
	if (first >= limits->blocks || count > limits->blocks - first)
		return nv_bad(bad, NV_LBA_OUT_OF_RANGE, AT(slba), "blocks past the end");
	if (moves && limits->transfer_bytes_max != 0 && bytes > limits->transfer_bytes_max)
		return nv_bad(bad, NV_INVALID_FIELD, AT(nlb), "transfer is above MDTS");
	if (moves && bytes > UINT32_MAX)
		return nv_bad(bad, NV_INVALID_FIELD, AT(nlb), "transfer is above 4 GiB");
	out->first_block = first;
	out->block_count = count;
	out->bytes = moves ? (uint32_t)bytes : 0;
	out->force_unit_access = (le16_get(sqe->control) & NV_NVM_FUA) != 0;
	out->dir = moves ? nv_sqe_dir(raw) : NV_DATA_NONE;
	return NV_OK;
}

struct nv_sqe nv_nvm_build(uint32_t nsid, const struct nv_nvm_cmd *cmd)
{
	struct nv_sqe raw = nv_sqe_of((uint8_t)cmd->opcode, nsid);
	struct nv_nvm_sqe *sqe = (struct nv_nvm_sqe *)&raw;

	must(opcode_known((uint8_t)cmd->opcode));
	if (cmd->opcode == NV_NVM_FLUSH)
		return raw;
	must(cmd->block_count >= 1 && cmd->block_count <= 65536);
	sqe->slba = le64_of(cmd->first_block);
	sqe->nlb = le16_of((uint16_t)(cmd->block_count - 1));
	sqe->control = le16_of(cmd->force_unit_access ? NV_NVM_FUA : 0);
	sqe->sgl = nv_sgl_transport(cmd->bytes);
	return raw;
}
