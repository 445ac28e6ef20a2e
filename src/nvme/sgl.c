/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data descriptor against the command. Invariant: an answer of NV_OK names data that lies
 * inside what was received, or that the transport moves, of exactly the command's size.
 * Pure; any thread.
 */
#include "nvme/sgl.h"

#include "base/must.h"
#include "nvme/sqe.h"

#define SGL_AT (uint16_t)offsetof(struct nv_sqe, sgl)
#define KIND_AT (uint16_t)(SGL_AT + offsetof(struct nv_sgl, kind))
#define BYTES_AT (uint16_t)(SGL_AT + offsetof(struct nv_sgl, bytes))

static nv_status check_capsule(const struct nv_sgl *sgl, const struct nv_sgl_want *want,
			       struct nv_data *out, struct bad *bad)
{
	uint64_t offset = le64_get(sgl->offset);
	uint32_t bytes = le32_get(sgl->bytes);

	if (want->dir == NV_DATA_TO_HOST)
		return nv_bad(bad, NV_SGL_BAD_TYPE, KIND_AT, "a read can't land in its capsule");
	if (offset > want->capsule_bytes)
		return nv_bad(bad, NV_SGL_BAD_OFFSET, SGL_AT, "offset lies outside the capsule");
	if (bytes > want->capsule_bytes - offset)
		return nv_bad(bad, NV_SGL_BAD_DATA_LENGTH, BYTES_AT,
			      "length lies outside the capsule");
	*out = (struct nv_data){NV_PLACE_CAPSULE, bytes, (uint32_t)offset};
	return NV_OK;
}

nv_status nv_sgl_check(const struct nv_sqe *sqe, const struct nv_sgl_want *want,
		       struct nv_data *out, struct bad *bad)
{
	const struct nv_sgl *sgl = &sqe->sgl;
	uint8_t psdt = sqe->flags & NV_SQE_PSDT;
	uint32_t bytes = le32_get(sgl->bytes);

	*out = (struct nv_data){NV_PLACE_NONE, 0, 0};
	if (psdt != NV_SQE_PSDT_SGL && psdt != NV_SQE_PSDT_SGL_MPTR)
		return nv_bad(bad, NV_INVALID_FIELD, 1, "PSDT must say SGL over fabrics");
	if (want->dir == NV_DATA_NONE)
		return NV_OK;
	if (sgl->kind != NV_SGL_IN_CAPSULE && sgl->kind != NV_SGL_TRANSPORT &&
	    !(sgl->kind == NV_SGL_ADDRESS && bytes == 0 && want->bytes == 0))
		return nv_bad(bad, NV_SGL_BAD_TYPE, KIND_AT,
			      "descriptor is neither in-capsule nor transport data");
	if (bytes != want->bytes)
		return nv_bad(bad, NV_SGL_BAD_DATA_LENGTH, BYTES_AT,
			      "length is not what the command moves");
	if (bytes == 0)
		return NV_OK;
	if (sgl->kind == NV_SGL_IN_CAPSULE)
		return check_capsule(sgl, want, out, bad);
	must(sgl->kind == NV_SGL_TRANSPORT);
	*out = (struct nv_data){NV_PLACE_TRANSPORT, bytes, 0};
	return NV_OK;
}

struct nv_sgl nv_sgl_in_capsule(uint32_t bytes)
{
	return (struct nv_sgl){.bytes = le32_of(bytes), .kind = NV_SGL_IN_CAPSULE};
}

struct nv_sgl nv_sgl_transport(uint32_t bytes)
{
	return (struct nv_sgl){.bytes = le32_of(bytes), .kind = NV_SGL_TRANSPORT};
}
