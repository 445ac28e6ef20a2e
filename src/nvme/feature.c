/* SPDX-License-Identifier: Apache-2.0 */
/* Features and Abort: fields in and out of the command's dwords. Pure; any thread. */
#include "nvme/feature.h"

#include "base/must.h"

#define AT(member) (uint16_t)offsetof(struct nv_sqe, member)

static struct nv_feature feature_fields(const struct nv_sqe *sqe)
{
	return (struct nv_feature){
		.fid = sqe->cdw10.b[0],
		.nsid = le32_get(sqe->nsid),
		.cdw11 = le32_get(sqe->cdw11),
		.cdw12 = le32_get(sqe->cdw12),
	};
}

nv_status nv_feature_get_parse(const struct nv_sqe *sqe, struct nv_feature *out, struct bad *bad)
{
	uint8_t select = sqe->cdw10.b[1] & 7;

	if (select > NV_SEL_SUPPORTED)
		return nv_bad(bad, NV_INVALID_FIELD, AT(cdw10) + 1, "SEL is reserved");
	*out = feature_fields(sqe);
	out->select = select;
	return NV_OK;
}

struct nv_feature nv_feature_set_parse(const struct nv_sqe *sqe)
{
	struct nv_feature f = feature_fields(sqe);

	f.save = (sqe->cdw10.b[3] & 0x80) != 0;
	return f;
}

static struct nv_sqe feature_build(uint8_t opcode, const struct nv_feature *what)
{
	struct nv_sqe sqe = nv_sqe_of(opcode, what->nsid);

	must(what->select <= NV_SEL_SUPPORTED);
	sqe.cdw10 = (le32){{what->fid, what->select, 0, what->save ? 0x80 : 0}};
	sqe.cdw11 = le32_of(what->cdw11);
	sqe.cdw12 = le32_of(what->cdw12);
	return sqe;
}

struct nv_sqe nv_feature_get_build(const struct nv_feature *what)
{
	return feature_build(NV_ADMIN_GET_FEATURES, what);
}

struct nv_sqe nv_feature_set_build(const struct nv_feature *what)
{
	return feature_build(NV_ADMIN_SET_FEATURES, what);
}

nv_status nv_queue_counts_parse(uint32_t cdw11, struct nv_queue_counts *out, struct bad *bad)
{
	if ((cdw11 & 0xffff) == 0xffff || cdw11 >> 16 == 0xffff)
		return nv_bad(bad, NV_INVALID_FIELD, AT(cdw11), "65536 queues can't be asked for");
	*out = nv_queue_counts_unpack(cdw11);
	return NV_OK;
}

uint32_t nv_queue_counts_pack(struct nv_queue_counts counts)
{
	must(counts.submission >= 1 && counts.submission <= 65535);
	must(counts.completion >= 1 && counts.completion <= 65535);
	return (counts.completion - 1) << 16 | (counts.submission - 1);
}

struct nv_queue_counts nv_queue_counts_unpack(uint32_t dw0)
{
	return (struct nv_queue_counts){.submission = (dw0 & 0xffff) + 1,
					.completion = (dw0 >> 16) + 1};
}

struct nv_abort nv_abort_parse(const struct nv_sqe *sqe)
{
	uint32_t cdw10 = le32_get(sqe->cdw10);

	return (struct nv_abort){.sqid = (uint16_t)cdw10, .cid = (uint16_t)(cdw10 >> 16)};
}
