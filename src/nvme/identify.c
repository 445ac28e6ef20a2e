/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identify as a command, descriptor lists, and a host's look at what a target says of itself.
 * Invariant: facts that a check lets through are within what a host can compute with: no shift
 * past 63, no size 0, no string without an end. Pure; any thread.
 */
#include "nvme/identify.h"

#include <errno.h>
#include <string.h>

#include "base/must.h"

struct nv_identify nv_identify_parse(const struct nv_sqe *sqe)
{
	uint32_t cdw10 = le32_get(sqe->cdw10), cdw11 = le32_get(sqe->cdw11);

	return (struct nv_identify){
		.cns = (uint8_t)cdw10,
		.cntid = (uint16_t)(cdw10 >> 16),
		.csi = (uint8_t)(cdw11 >> 24),
		.cns_specific = (uint16_t)cdw11,
		.nsid = le32_get(sqe->nsid),
	};
}

struct nv_sqe nv_identify_build(const struct nv_identify *what)
{
	struct nv_sqe sqe = nv_sqe_of(NV_ADMIN_IDENTIFY, what->nsid);

	sqe.cdw10 = le32_of((uint32_t)what->cns | (uint32_t)what->cntid << 16);
	sqe.cdw11 = le32_of((uint32_t)what->cns_specific | (uint32_t)what->csi << 24);
	sqe.sgl = nv_sgl_transport(NV_IDENTIFY_BYTES);
	return sqe;
}

struct descriptor {                    /* [BASE 2.0] Figure 276: a head of 4 bytes, then NIDL */
	uint8_t type, bytes;
	uint8_t reserved2[2];
};
_Static_assert(sizeof(struct descriptor) == 4, "a descriptor's head is 4 bytes");

static size_t descriptor_write(uint8_t *at, struct descriptor head, const void *id)
{
	memcpy(at, &head, sizeof(head));
	memcpy(at + sizeof(head), id, head.bytes);
	return sizeof(head) + head.bytes;
}

void nv_ns_ids_write(const struct nv_ns_ids *ids, uint8_t out[NV_IDENTIFY_BYTES])
{
	size_t used = 0;

	memset(out, 0, NV_IDENTIFY_BYTES);
	if (!bytes_all_zero(ids->eui64, 8))
		used += descriptor_write(out + used, (struct descriptor){NV_NIDT_EUI64, 8, {0}},
					 ids->eui64);
	if (!bytes_all_zero(ids->nguid, 16))
		used += descriptor_write(out + used, (struct descriptor){NV_NIDT_NGUID, 16, {0}},
					 ids->nguid);
	if (!bytes_all_zero(ids->uuid, 16))
		used += descriptor_write(out + used, (struct descriptor){NV_NIDT_UUID, 16, {0}},
					 ids->uuid);
	used += descriptor_write(out + used, (struct descriptor){NV_NIDT_CSI, 1, {0}}, &ids->csi);
	must(used <= NV_IDENTIFY_BYTES);
}

static int identify_bad(struct bad *bad, size_t offset, const char *why)
{
	*bad = (struct bad){(uint16_t)offset, why};
	return -EPROTO;
}

/* One descriptor into *out; false: its length does not belong to its type. */
static bool descriptor_take(const uint8_t *at, struct nv_ns_ids *out)
{
	const uint8_t *id = at + sizeof(struct descriptor);
	uint8_t bytes = at[1];

	switch (at[0]) {
	case NV_NIDT_EUI64:
		if (bytes == 8)
			memcpy(out->eui64, id, 8);
		return bytes == 8;
	case NV_NIDT_NGUID:
		if (bytes == 16)
			memcpy(out->nguid, id, 16);
		return bytes == 16;
	case NV_NIDT_UUID:
		if (bytes == 16)
			memcpy(out->uuid, id, 16);
		return bytes == 16;
	case NV_NIDT_CSI:
		out->csi = id[0];
		out->csi_given = true;
		return bytes == 1;
	default:
		return true;
	}
}

int nv_ns_ids_read(const uint8_t in[NV_IDENTIFY_BYTES], struct nv_ns_ids *out, struct bad *bad)
{
	struct nv_ns_ids ids = {.csi = NV_CSI_NVM};
	size_t at = 0;

	while (at + sizeof(struct descriptor) <= NV_IDENTIFY_BYTES && in[at + 1] != 0) {
		if (at + sizeof(struct descriptor) + in[at + 1] > NV_IDENTIFY_BYTES)
			return identify_bad(bad, at, "descriptor runs past the end");
		if (!descriptor_take(in + at, &ids))
			return identify_bad(bad, at, "descriptor length is not that of its type");
		at += sizeof(struct descriptor) + in[at + 1];
	}
	*out = ids;
	return 0;
}

void nv_text_pad(uint8_t *field, size_t field_bytes, const char *text)
{
	size_t bytes = strnlen(text, field_bytes);

	memset(field, ' ', field_bytes);
	memcpy(field, text, bytes);
}

/* Text for people: anything that is not printable ASCII becomes '?'. */
static void text_unpad(const uint8_t *field, size_t field_bytes, char *out)
{
	while (field_bytes > 0 && (field[field_bytes - 1] == ' ' || field[field_bytes - 1] == '\0'))
		field_bytes--;
	for (size_t i = 0; i < field_bytes; i++)
		out[i] = field[i] >= ' ' && field[i] <= '~' ? (char)field[i] : '?';
	out[field_bytes] = '\0';
}

#define CTRL_BAD(member, why)                                                                      \
	identify_bad(bad, offsetof(struct nv_id_controller, member), why)

static int controller_limits_check(const struct nv_id_controller *id, const struct nv_cap *cap,
				   struct bad *bad)
{
	uint32_t ioccsz = le32_get(id->ioccsz), iorcsz = le32_get(id->iorcsz);
	bool io = id->cntrltype != NV_CNTRLTYPE_DISCOVERY;

	if (id->mdts != 0 && cap->page_shift_min + id->mdts > 63)
		return CTRL_BAD(mdts, "MDTS is more than 2^63 bytes");
	if ((le32_get(id->sgls) & 3) == 0)
		return CTRL_BAD(sgls, "no SGL support, which fabrics need");
	if (!io)
		return 0;
	if ((id->sqes & 0xf) > 6 || id->sqes >> 4 < 6)
		return CTRL_BAD(sqes, "64-byte submission entries are not offered");
	if ((id->cqes & 0xf) > 4 || id->cqes >> 4 < 4)
		return CTRL_BAD(cqes, "16-byte completion entries are not offered");
	if (le32_get(id->nn) == 0)
		return CTRL_BAD(nn, "no namespaces at all");
	if (ioccsz < 4 || ioccsz > MiB)
		return CTRL_BAD(ioccsz, "command capsules below 64 bytes or above 16 MiB");
	if (iorcsz < 1)
		return CTRL_BAD(iorcsz, "response capsules below 16 bytes");
	if (le16_get(id->icdoff) != 0)
		return CTRL_BAD(icdoff, "in-capsule data does not follow the command");
	return 0;
}

int nv_id_controller_check(const struct nv_id_controller *id, const struct nv_cap *cap,
			   struct nv_controller_facts *out, struct bad *bad)
{
	uint32_t ioccsz = le32_get(id->ioccsz);
	int rc = controller_limits_check(id, cap, bad);

	if (rc != 0)
		return rc;
	*out = (struct nv_controller_facts){
		.cntlid = le16_get(id->cntlid),
		.cntrltype = id->cntrltype,
		.transfer_bytes_max = id->mdts == 0
			? UINT64_MAX : UINT64_C(1) << (cap->page_shift_min + id->mdts),
		.namespaces_max = le32_get(id->nn),
		.capsule_data_bytes = ioccsz > 4 && ioccsz <= MiB ? (ioccsz - 4) * 16 : 0,
		.keep_alive_unit_ms = le16_get(id->kas) * 100u,
		.queue_commands_max = le16_get(id->maxcmd),
		.version = le32_get(id->ver),
	};
	if ((le32_get(id->sgls) & NV_SGLS_OFFSET) == 0)
		out->capsule_data_bytes = 0;
	text_unpad(id->sn, sizeof(id->sn), out->serial);
	text_unpad(id->mn, sizeof(id->mn), out->model);
	text_unpad(id->fr, sizeof(id->fr), out->firmware);
	if (!nv_nqn_of_field(id->subnqn, out->subnqn))
		out->subnqn[0] = '\0';
	return 0;
}

#define KV_BAD(member, why)                                                                        \
	identify_bad(bad, offsetof(struct nv_id_kv_namespace, member), why)

int nv_id_kv_namespace_check(const struct nv_id_kv_namespace *id, struct nv_kv_facts *out,
			     struct bad *bad)
{
	uint8_t index = id->kvfc & 0xf;
	const struct nv_kv_format *format = &id->kvf[index];
	uint16_t key_bytes_max = le16_get(format->key_bytes_max);

	if (index > id->nkvf)
		return KV_BAD(kvfc, "format in use is past the formats there are");
	if (le64_get(id->nsze) == 0)
		return KV_BAD(nsze, "capacity is zero");
	if (key_bytes_max < 1 || key_bytes_max > KV_FORMAT_KEY_BYTES_MAX)
		return KV_BAD(kvf, "KVKML is not 1..16");
	if (le32_get(format->value_bytes_max) == 0)
		return KV_BAD(kvf, "KVVML is zero");
	*out = (struct nv_kv_facts){
		.capacity_bytes = le64_get(id->nsze),
		.used_bytes = le64_get(id->nuse),
		.value_bytes_max = le32_get(format->value_bytes_max),
		.key_bytes_max = key_bytes_max,
		.keys_max = le32_get(format->keys_max),
		.granularity_bytes = le32_get(id->novg),
	};
	memcpy(out->nguid, id->nguid, sizeof(out->nguid));
	return 0;
}

#define NS_BAD(member, why)                                                                        \
	identify_bad(bad, offsetof(struct nv_id_namespace, member), why)

int nv_id_namespace_check(const struct nv_id_namespace *id, struct nv_block_facts *out,
			  struct bad *bad)
{
	uint8_t index = (uint8_t)((id->flbas & 0xf) | (id->nlbaf > 16 ? id->flbas >> 1 & 0x30 : 0));
	const struct nv_lba_format *format = &id->lbaf[index];
	uint64_t blocks = le64_get(id->nsze);

	must(index < ARRAY_COUNT(id->lbaf));
	if (blocks == 0)
		return NS_BAD(nsze, "size is zero");
	if (index > id->nlbaf)
		return NS_BAD(flbas, "format in use is past the formats there are");
	if (format->data_shift < 9 || format->data_shift > 16)
		return NS_BAD(lbaf, "LBADS is not 9..16");
	if (le16_get(format->metadata_bytes) != 0)
		return NS_BAD(lbaf, "metadata is not supported");
	if (blocks > (UINT64_C(1) << 63) >> format->data_shift)
		return NS_BAD(nsze, "more than 2^63 bytes");
	*out = (struct nv_block_facts){.blocks = blocks,
				       .block_bytes = UINT32_C(1) << format->data_shift};
	memcpy(out->nguid, id->nguid, sizeof(out->nguid));
	return 0;
}
