/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Get Log Page as a command, and discovery entries. Invariant: strings of a struct nv_discovered
 * end within their arrays, whatever the peer sent. Pure; any thread.
 */
#include "nvme/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"

#define AT(member) (uint16_t)offsetof(struct nv_sqe, member)

nv_status nv_log_parse(const struct nv_sqe *sqe, struct nv_log *out, struct bad *bad)
{
	uint32_t cdw10 = le32_get(sqe->cdw10), cdw11 = le32_get(sqe->cdw11);
	uint32_t cdw14 = le32_get(sqe->cdw14);
	uint64_t dwords = ((uint64_t)(cdw11 & 0xffff) << 16 | cdw10 >> 16) + 1;
	uint64_t offset = (uint64_t)le32_get(sqe->cdw13) << 32 | le32_get(sqe->cdw12);

	if ((offset & 3) != 0)
		return nv_bad(bad, NV_INVALID_FIELD, AT(cdw12), "offset is not a multiple of 4");
	if ((cdw14 & 1u << 23) != 0)
		return nv_bad(bad, NV_INVALID_FIELD, AT(cdw14) + 2, "no index offsets here");
	if (offset > UINT64_MAX - dwords * 4)
		return nv_bad(bad, NV_INVALID_FIELD, AT(cdw12), "offset is past any log");
	*out = (struct nv_log){
		.lid = (uint8_t)cdw10,
		.lsp = (uint8_t)(cdw10 >> 8 & 0x7f),
		.retain_event = (cdw10 & 1u << 15) != 0,
		.csi = (uint8_t)(cdw14 >> 24),
		.offset = offset,
		.bytes = dwords * 4,
		.nsid = le32_get(sqe->nsid),
	};
	return NV_OK;
}

struct nv_sqe nv_log_build(const struct nv_log *what)
{
	struct nv_sqe sqe = nv_sqe_of(NV_ADMIN_GET_LOG_PAGE, what->nsid);
	uint64_t dwords = what->bytes / 4 - 1;

	must(what->bytes >= 4 && what->bytes % 4 == 0 && what->bytes <= UINT32_MAX);
	must(what->offset % 4 == 0 && what->lsp <= 0x7f);
	sqe.cdw10 = le32_of((uint32_t)what->lid | (uint32_t)what->lsp << 8 |
			    (what->retain_event ? 1u << 15 : 0) | (uint32_t)(dwords << 16));
	sqe.cdw11 = le32_of((uint32_t)(dwords >> 16));
	sqe.cdw12 = le32_of((uint32_t)what->offset);
	sqe.cdw13 = le32_of((uint32_t)(what->offset >> 32));
	sqe.cdw14 = le32_of((uint32_t)what->csi << 24);
	sqe.sgl = nv_sgl_transport((uint32_t)what->bytes);
	return sqe;
}

/* A field padded with NUL or spaces becomes a C string; false: bytes that no address has. */
static bool text_of_field(const uint8_t *field, size_t field_bytes, char *out)
{
	size_t n = 0;

	while (n < field_bytes && field[n] != '\0')
		n++;
	while (n > 0 && field[n - 1] == ' ')
		n--;
	for (size_t i = 0; i < n; i++)
		if (field[i] <= ' ' || field[i] > '~')
			return false;
	memcpy(out, field, n);
	out[n] = '\0';
	return true;
}

static int entry_bad(struct bad *bad, size_t offset, const char *why)
{
	*bad = (struct bad){(uint16_t)offset, why};
	return -EPROTO;
}

int nv_discovery_entry_check(const struct nv_discovery_entry *entry, struct nv_discovered *out,
			     struct bad *bad)
{
	struct nv_discovered d = {
		.trtype = entry->trtype,
		.adrfam = entry->adrfam,
		.subtype = entry->subtype,
		.portid = le16_get(entry->portid),
		.cntlid = le16_get(entry->cntlid),
	};

	_Static_assert(sizeof(d.traddr) == sizeof(entry->traddr) + 1, "room for the NUL");
	_Static_assert(sizeof(d.trsvcid) == sizeof(entry->trsvcid) + 1, "room for the NUL");
	if (!text_of_field(entry->trsvcid, sizeof(entry->trsvcid), d.trsvcid))
		return entry_bad(bad, offsetof(struct nv_discovery_entry, trsvcid),
				 "service id has bytes that are no text");
	if (!nv_nqn_of_field(entry->subnqn, d.subnqn))
		return entry_bad(bad, offsetof(struct nv_discovery_entry, subnqn), "not an NQN");
	if (!text_of_field(entry->traddr, sizeof(entry->traddr), d.traddr))
		return entry_bad(bad, offsetof(struct nv_discovery_entry, traddr),
				 "address has bytes that are no text");
	*out = d;
	return 0;
}

void nv_discovery_entry_write(const struct nv_discovered *in, struct nv_discovery_entry *out)
{
	must(strlen(in->trsvcid) <= sizeof(out->trsvcid));
	must(strlen(in->traddr) <= sizeof(out->traddr));
	must(nv_nqn_check(in->subnqn));
	*out = (struct nv_discovery_entry){
		.trtype = in->trtype,
		.adrfam = in->adrfam,
		.subtype = in->subtype,
		.treq = NV_TREQ_NOT_REQUIRED,
		.portid = le16_of(in->portid),
		.cntlid = le16_of(in->cntlid),
		.asqsz = le16_of(32),
	};
	memcpy(out->trsvcid, in->trsvcid, strlen(in->trsvcid));
	memcpy(out->subnqn, in->subnqn, strlen(in->subnqn));
	memcpy(out->traddr, in->traddr, strlen(in->traddr));
}
