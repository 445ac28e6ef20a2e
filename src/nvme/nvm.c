/* SPDX-License-Identifier: Apache-2.0 */
/* Block commands: check and build. Invariant: blocks named by an NV_OK lie inside the namespace. */
#include "nvme/nvm.h"

#include "base/must.h"

#define AT(member) (uint16_t)offsetof(struct nv_nvm_sqe, member)

/* What each command is made of: one row a command, so that the checks below have no switch. */
struct nvm_shape {
	uint8_t opcode;
	bool blocks;                   /* names blocks in CDW10..12 */
	bool moves;                    /* and moves them */
	bool fua;
	uint16_t refused;              /* bits of control that ask for what there is not */
};

static const struct nvm_shape shapes[] = {
	{NV_NVM_FLUSH, false, false, false, 0},
	{NV_NVM_WRITE, true, true, true, NV_NVM_PRINFO | NV_NVM_DTYPE},
	{NV_NVM_READ, true, true, true, NV_NVM_PRINFO},
	{NV_NVM_COMPARE, true, true, true, NV_NVM_PRINFO},
	{NV_NVM_WRITE_ZEROES, true, false, true, NV_NVM_PRINFO},
	{NV_NVM_DSM, false, true, false, 0},
	{NV_NVM_VERIFY, true, false, true, NV_NVM_PRINFO},
};

static const struct nvm_shape *shape_of(uint8_t opcode)
{
	for (unsigned i = 0; i < ARRAY_COUNT(shapes); i++)
		if (shapes[i].opcode == opcode)
			return &shapes[i];
	return NULL;
}

static bool inside(uint64_t first, uint64_t count, const struct nv_nvm_limits *limits)
{
	return first < limits->blocks && count <= limits->blocks - first;
}

static nv_status check_blocks(const struct nv_nvm_sqe *sqe, const struct nvm_shape *shape,
			      const struct nv_nvm_limits *limits, struct bad *bad)
{
	uint32_t count = le16_get(sqe->nlb) + 1u;
	uint64_t bytes = (uint64_t)count * limits->block_bytes;

	if ((le16_get(sqe->control) & shape->refused & NV_NVM_PRINFO) != 0)
		return nv_bad(bad, NV_INVALID_FIELD, AT(control) + 1,
			      "no protection information here");
	if ((le16_get(sqe->control) & shape->refused & NV_NVM_DTYPE) != 0)
		return nv_bad(bad, NV_INVALID_FIELD, AT(control), "no directives here");
	if (shape->moves && limits->transfer_bytes_max != 0 && bytes > limits->transfer_bytes_max)
		return nv_bad(bad, NV_INVALID_FIELD, AT(nlb), "transfer is above MDTS");
	if (shape->moves && bytes > UINT32_MAX)
		return nv_bad(bad, NV_INVALID_FIELD, AT(nlb), "transfer is above 4 GiB");
	if (!inside(le64_get(sqe->slba), count, limits))
		return nv_bad(bad, NV_LBA_OUT_OF_RANGE, AT(slba), "blocks past the end");
	return NV_OK;
}

/*
 * Bytes of a Dataset Management command. Linux sends room for 256 ranges however few there are: a
 * descriptor may be longer than the ranges, but not than 256 of them.
 */
static uint32_t dsm_bytes(const struct nv_sqe *raw, unsigned ranges)
{
	uint32_t least = ranges * (uint32_t)sizeof(struct nv_dsm_range);
	uint32_t given = le32_get(raw->sgl.bytes);

	if (given > least && given <= NV_DSM_RANGES_MAX * sizeof(struct nv_dsm_range))
		return given;
	return least;
}

nv_status nv_nvm_parse(const struct nv_sqe *raw, const struct nv_nvm_limits *limits,
		       struct nv_nvm_cmd *out, struct bad *bad)
{
	const struct nv_nvm_sqe *sqe = (const struct nv_nvm_sqe *)raw;
	const struct nv_dsm_sqe *dsm = (const struct nv_dsm_sqe *)raw;
	const struct nvm_shape *shape = shape_of(sqe->opcode);
	uint16_t control = le16_get(sqe->control);

	must(limits->block_bytes > 0);
	if (shape == NULL)
		return nv_bad(bad, NV_INVALID_OPCODE, AT(opcode), "no such block command");
	if ((sqe->flags & NV_SQE_FUSE) != 0)
		return nv_bad(bad, NV_INVALID_FIELD, AT(flags), "fused commands are not supported");
	*out = (struct nv_nvm_cmd){.opcode = sqe->opcode, .dir = NV_DATA_NONE};
	if (shape->blocks) {
		nv_status status = check_blocks(sqe, shape, limits, bad);

		if (!nv_status_ok(status))
			return status;
		out->first_block = le64_get(sqe->slba);
		out->block_count = le16_get(sqe->nlb) + 1u;
		out->force_unit_access = shape->fua && (control & NV_NVM_FUA) != 0;
		out->deallocate = sqe->opcode == NV_NVM_WRITE_ZEROES && (control & NV_NVM_DEAC);
	}
	if (sqe->opcode == NV_NVM_DSM) {
		out->ranges = (uint16_t)(dsm->ranges + 1u);
		out->deallocate = (le32_get(dsm->attributes) & NV_DSM_AD) != 0;
		out->bytes = dsm_bytes(raw, out->ranges);
	} else if (shape->moves) {
		out->bytes = out->block_count * limits->block_bytes;
	}
	if (shape->moves)
		out->dir = nv_sqe_dir(raw);
	return NV_OK;
}

struct nv_sqe nv_nvm_build(uint32_t nsid, const struct nv_nvm_cmd *cmd)
{
	const struct nvm_shape *shape = shape_of((uint8_t)cmd->opcode);
	struct nv_sqe raw = nv_sqe_of((uint8_t)cmd->opcode, nsid);
	struct nv_nvm_sqe *sqe = (struct nv_nvm_sqe *)&raw;
	struct nv_dsm_sqe *dsm = (struct nv_dsm_sqe *)&raw;

	must(shape != NULL);
	if (shape->blocks) {
		must(cmd->block_count >= 1 && cmd->block_count <= 65536);
		sqe->slba = le64_of(cmd->first_block);
		sqe->nlb = le16_of((uint16_t)(cmd->block_count - 1));
		sqe->control = le16_of((uint16_t)((cmd->force_unit_access ? NV_NVM_FUA : 0) |
						  (cmd->deallocate ? NV_NVM_DEAC : 0)));
	}
	if (cmd->opcode == NV_NVM_DSM) {
		must(cmd->ranges >= 1 && cmd->ranges <= NV_DSM_RANGES_MAX);
		dsm->ranges = (uint8_t)(cmd->ranges - 1);
		dsm->attributes = le32_of(cmd->deallocate ? NV_DSM_AD : 0);
	}
	if (shape->moves)
		sqe->sgl = nv_sgl_transport(cmd->bytes);
	return raw;
}

nv_status nv_dsm_check(const struct nv_dsm_range *range, unsigned range_count,
		       const struct nv_nvm_limits *limits, struct bad *bad)
{
	must(range_count >= 1 && range_count <= NV_DSM_RANGES_MAX);
	for (unsigned i = 0; i < range_count; i++)
		if (le32_get(range[i].blocks) > 0 &&
		    !inside(le64_get(range[i].slba), le32_get(range[i].blocks), limits))
			return nv_bad(bad, NV_LBA_OUT_OF_RANGE,
				      offsetof(struct nv_dsm_sqe, ranges),
				      "a range lies past the end");
	return NV_OK;
}
