/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks and builders of NVMe/TCP headers.
 *
 * One row of `kinds` per PDU type says what a header of that type may look like; nv_pdu_check()
 * walks the fields from the lowest byte up and stops at the first that is wrong, so that two ends
 * that follow the specification blame the same byte. Nothing is allocated and nothing is believed:
 * PLEN is checked against limits before anyone waits for that many bytes. Pure; any thread.
 */
#include "nvme/tcp_pdu.h"

#include <string.h>

#include "base/must.h"

enum data_rule { DATA_NEVER, DATA_MAY, DATA_MUST };

struct kind {
	const char *name;
	uint8_t hlen;                  /* 0: no such type */
	uint8_t flags;                 /* that may be set, digests included */
	enum data_rule data;
};

static const struct kind kinds[] = {
	[NV_PDU_ICREQ] = {"ICReq", 128, 0, DATA_NEVER},
	[NV_PDU_ICRESP] = {"ICResp", 128, 0, DATA_NEVER},
	[NV_PDU_H2C_TERMREQ] = {"H2CTermReq", 24, 0, DATA_MAY},
	[NV_PDU_C2H_TERMREQ] = {"C2HTermReq", 24, 0, DATA_MAY},
	[NV_PDU_CAPSULE_CMD] = {"CapsuleCmd", 72, NV_PDU_HDGST | NV_PDU_DDGST, DATA_MAY},
	[NV_PDU_CAPSULE_RESP] = {"CapsuleResp", 24, NV_PDU_HDGST, DATA_NEVER},
	[NV_PDU_H2C_DATA] = {"H2CData", 24, NV_PDU_HDGST | NV_PDU_DDGST | NV_PDU_LAST, DATA_MUST},
	[NV_PDU_C2H_DATA] = {"C2HData", 24, NV_PDU_HDGST | NV_PDU_DDGST | NV_PDU_LAST |
			     NV_PDU_SUCCESS, DATA_MUST},
	[NV_PDU_R2T] = {"R2T", 24, NV_PDU_HDGST, DATA_NEVER},
};

static const struct kind *kind_of(uint8_t type)
{
	return type < ARRAY_COUNT(kinds) && kinds[type].hlen != 0 ? &kinds[type] : NULL;
}

static bool is_termreq(uint8_t type)
{
	return type == NV_PDU_H2C_TERMREQ || type == NV_PDU_C2H_TERMREQ;
}

const char *nv_pdu_name(uint8_t type)
{
	const struct kind *kind = kind_of(type);

	return kind != NULL ? kind->name : "?";
}

static bool fault_at(struct nv_pdu_fault *fault, size_t offset, const char *why)
{
	*fault = (struct nv_pdu_fault){NV_FES_INVALID_HEADER, (uint32_t)offset, false, why};
	return false;
}

static bool fault_of(struct nv_pdu_fault *fault, enum nv_fes fes, const char *why)
{
	*fault = (struct nv_pdu_fault){(uint16_t)fes, 0, false, why};
	return false;
}

static bool fault_silent(struct nv_pdu_fault *fault, const char *why)
{
	*fault = (struct nv_pdu_fault){0, 0, true, why};
	return false;
}

/* Byte 0, and what may come at this point of the connection. */
static bool check_type(const struct nv_pdu_rules *rules, const struct nv_pdu_head *head,
		       struct nv_pdu_fault *fault)
{
	uint8_t type = head->type;
	uint8_t first = rules->controller ? NV_PDU_ICREQ : NV_PDU_ICRESP;
	uint32_t plen = le32_get(head->plen);

	if (kind_of(type) == NULL)
		return rules->connected ? fault_at(fault, 0, "no such PDU type")
					: fault_silent(fault, "not NVMe/TCP");
	if (rules->controller == ((type & 1) != 0))
		return fault_at(fault, 0, "PDU type of the other direction");
	if (is_termreq(type) && rules->controller && !rules->connected)
		return fault_silent(fault, "TermReq before ICReq");
	if (is_termreq(type) && (plen < sizeof(struct nv_pdu_termreq) || plen > NV_PDU_TERMREQ_MAX))
		return fault_silent(fault, "TermReq of a wrong length");
	if (is_termreq(type))
		return true;
	if (!rules->connected && type != first)
		return fault_of(fault, NV_FES_SEQUENCE, "PDU before the connection is set up");
	if (rules->connected && type == first)
		return fault_of(fault, NV_FES_SEQUENCE, "connection is set up already");
	return true;
}

/* Byte 1. A digest is there exactly when agreed; of data only where there is data. */
static bool check_flags(const struct nv_pdu_rules *rules, const struct nv_pdu_head *head,
			const struct kind *kind, struct nv_pdu_fault *fault)
{
	uint8_t digests = NV_PDU_HDGST | NV_PDU_DDGST;
	uint8_t want = (uint8_t)((rules->header_digest ? NV_PDU_HDGST : 0) |
				 (rules->data_digest ? NV_PDU_DDGST : 0));
	uint32_t bare = kind->hlen + (rules->header_digest ? NV_PDU_DIGEST_BYTES : 0u);

	want &= kind->flags;
	if (kind->data == DATA_MAY && le32_get(head->plen) <= bare)
		want &= (uint8_t)~NV_PDU_DDGST;
	if ((head->flags & ~kind->flags) != 0)
		return fault_at(fault, 1, "flag that this PDU type does not have");
	if ((head->flags & digests) != want)
		return fault_at(fault, 1, "digest flags are not as agreed");
	if ((head->flags & (NV_PDU_SUCCESS | NV_PDU_LAST)) == NV_PDU_SUCCESS)
		return fault_at(fault, 1, "SUCCESS without LAST_PDU");
	return true;
}

/* Where data has to begin: the first aligned byte after the header and its digest. */
static uint32_t data_offset(uint32_t header_bytes, uint8_t align_dwords)
{
	uint32_t align = 4u * (align_dwords + 1u);

	must(align_dwords <= NV_PDU_PDA_MAX);
	return (header_bytes + align - 1) / align * align;
}

/* Bytes 3 and 4..7. */
static bool check_lengths(const struct nv_pdu_rules *rules, const struct nv_pdu_head *head,
			  const struct kind *kind, struct nv_pdu_fault *fault)
{
	uint32_t bare = kind->hlen + ((head->flags & NV_PDU_HDGST) != 0 ? NV_PDU_DIGEST_BYTES : 0u);
	uint32_t plen = le32_get(head->plen);
	uint32_t pdo = data_offset(bare, rules->align_dwords);
	uint32_t tail = (head->flags & NV_PDU_DDGST) != 0 ? NV_PDU_DIGEST_BYTES : 0u;

	if (is_termreq(head->type))
		return head->pdo == 0 || fault_at(fault, 3, "data offset in a TermReq");
	if (kind->data == DATA_NEVER) {
		if (head->pdo != 0)
			return fault_at(fault, 3, "data offset in a PDU without data");
		return plen == bare || fault_at(fault, 4, "length is not that of its header");
	}
	if (plen <= bare) {
		if (head->pdo != 0 && head->pdo != pdo)
			return fault_at(fault, 3, "data offset is not where data would begin");
		if (plen < bare || kind->data == DATA_MUST)
			return fault_at(fault, 4, "length is less than header and data");
		return true;
	}
	if (head->pdo != pdo)
		return fault_at(fault, 3, "data offset is not the first aligned byte");
	if (plen <= pdo + tail)
		return fault_at(fault, 4, "length leaves no data");
	return true;
}

bool nv_pdu_check(const struct nv_pdu_rules *rules, const struct nv_pdu_head *head,
		  struct nv_pdu_shape *out, struct nv_pdu_fault *fault)
{
	const struct kind *kind = kind_of(head->type);
	uint32_t plen = le32_get(head->plen), bare;

	if (!check_type(rules, head, fault))
		return false;
	must(kind != NULL);
	if (!check_flags(rules, head, kind, fault))
		return false;
	if (head->hlen != kind->hlen)
		return fault_at(fault, 2, "header length is not that of its type");
	if (!check_lengths(rules, head, kind, fault))
		return false;
	*out = (struct nv_pdu_shape){
		.type = head->type,
		.flags = head->flags,
		.header_bytes = kind->hlen,
		.header_digest_bytes = (head->flags & NV_PDU_HDGST) != 0 ? NV_PDU_DIGEST_BYTES : 0,
		.data_digest_bytes = (head->flags & NV_PDU_DDGST) != 0 ? NV_PDU_DIGEST_BYTES : 0,
	};
	bare = out->header_bytes + (uint32_t)out->header_digest_bytes;
	if (plen > bare && is_termreq(head->type)) {
		out->data_bytes = plen - bare;
	} else if (plen > bare) {
		out->pad_bytes = (uint8_t)(head->pdo - bare);
		out->data_bytes = plen - head->pdo - out->data_digest_bytes;
	}
	if (head->type == NV_PDU_CAPSULE_CMD && out->data_bytes > rules->capsule_data_max)
		return fault_of(fault, NV_FES_LIMIT_EXCEEDED, "more in-capsule data than offered");
	must(bare + out->pad_bytes + out->data_bytes + out->data_digest_bytes == plen);
	return true;
}

bool nv_icreq_check(const struct nv_pdu_icreq *pdu, struct nv_pdu_fault *fault)
{
	if (le16_get(pdu->pfv) != 0)
		return fault_at(fault, offsetof(struct nv_pdu_icreq, pfv), "PDU format is not 0");
	if (pdu->hpda > NV_PDU_PDA_MAX)
		return fault_at(fault, offsetof(struct nv_pdu_icreq, hpda), "HPDA is above 31");
	return true;
}

bool nv_icresp_check(const struct nv_pdu_icresp *pdu, uint8_t asked, struct nv_pdu_fault *fault)
{
	uint32_t most = le32_get(pdu->maxh2cdata);

	if (le16_get(pdu->pfv) != 0)
		return fault_at(fault, offsetof(struct nv_pdu_icresp, pfv), "PDU format is not 0");
	if (pdu->cpda > NV_PDU_PDA_MAX)
		return fault_at(fault, offsetof(struct nv_pdu_icresp, cpda), "CPDA is above 31");
	if ((pdu->digest & ~asked) != 0)
		return fault_at(fault, offsetof(struct nv_pdu_icresp, digest),
				"digest that was not asked for");
	if (most < NV_PDU_MAXH2CDATA_MIN || most % 4 != 0)
		return fault_at(fault, offsetof(struct nv_pdu_icresp, maxh2cdata),
				"MAXH2CDATA is below 4096 or no multiple of 4");
	return true;
}

/* What H2CData and C2HData have in common: DATAL, range, order, LAST. */
static bool check_span(const struct nv_pdu_data *pdu, const struct nv_pdu_shape *shape,
		       const struct nv_transfer *t, struct nv_pdu_fault *fault)
{
	uint32_t offset = le32_get(pdu->datao), bytes = le32_get(pdu->datal);

	must(t->start <= t->next && t->next < t->end);
	if (bytes == 0 || bytes != shape->data_bytes)
		return fault_at(fault, offsetof(struct nv_pdu_data, datal),
				"DATAL is not the data that PLEN leaves");
#ifndef KVOF_PLANT_WIRE_RANGE_UNCHECKED
	if (offset < t->start || offset >= t->end || bytes > t->end - offset)
		return fault_of(fault, NV_FES_OUT_OF_RANGE, "data outside of what was asked for");
#endif
	if (offset != t->next)
		return fault_of(fault, NV_FES_SEQUENCE, "data out of order");
	if (t->pdu_data_max != 0 && bytes > t->pdu_data_max)
		return fault_of(fault, NV_FES_LIMIT_EXCEEDED, "more data than MAXH2CDATA");
	return true;
}

bool nv_h2c_data_check(const struct nv_pdu_data *pdu, const struct nv_pdu_shape *shape,
		       const struct nv_transfer *grant, struct nv_pdu_fault *fault)
{
	bool last = (shape->flags & NV_PDU_LAST) != 0;

	if (grant == NULL)
		return fault_at(fault, offsetof(struct nv_pdu_data, ttag), "no R2T with this tag");
	must(grant->ttag == le16_get(pdu->ttag));
	if (le16_get(pdu->cccid) != grant->cid)
		return fault_at(fault, offsetof(struct nv_pdu_data, cccid),
				"not the command of this R2T");
	if (!check_span(pdu, shape, grant, fault))
		return false;
	if (last != (le32_get(pdu->datao) + shape->data_bytes == grant->end))
		return fault_of(fault, NV_FES_SEQUENCE, "LAST_PDU is not on the last data");
	return true;
}

bool nv_c2h_data_check(const struct nv_pdu_data *pdu, const struct nv_pdu_shape *shape,
		       const struct nv_transfer *read, struct nv_pdu_fault *fault)
{
	if (read == NULL)
		return fault_at(fault, offsetof(struct nv_pdu_data, cccid),
				"no command that reads has this id");
	must(read->cid == le16_get(pdu->cccid));
	if (read->next == read->end)
		return fault_of(fault, NV_FES_OUT_OF_RANGE, "data past the end of the buffer");
	return check_span(pdu, shape, read, fault);
}

bool nv_r2t_check(const struct nv_pdu_r2t *pdu, const struct nv_transfer *write, bool busy,
		  struct nv_pdu_fault *fault)
{
	uint32_t offset = le32_get(pdu->r2to), bytes = le32_get(pdu->r2tl);

	if (write == NULL)
		return fault_at(fault, offsetof(struct nv_pdu_r2t, cccid),
				"no command that writes has this id");
	must(write->cid == le16_get(pdu->cccid));
	if (busy)
		return fault_of(fault, NV_FES_SEQUENCE, "R2T before the last one was served");
	if (bytes == 0)
		return fault_at(fault, offsetof(struct nv_pdu_r2t, r2tl), "R2T for nothing");
	if (offset >= write->end || bytes > write->end - offset)
		return fault_of(fault, NV_FES_OUT_OF_RANGE, "R2T past the end of the data");
	if (offset != write->next)
		return fault_of(fault, NV_FES_SEQUENCE, "R2T out of order");
	return true;
}

struct nv_pdu_icreq nv_icreq_build(uint8_t hpda, uint8_t digest, uint32_t maxr2t)
{
	must(hpda <= NV_PDU_PDA_MAX && digest <= 3 && maxr2t >= 1);
	return (struct nv_pdu_icreq){
		.head = {NV_PDU_ICREQ, 0, 128, 0, le32_of(128)},
		.hpda = hpda,
		.digest = digest,
		.maxr2t = le32_of(maxr2t - 1),
	};
}

struct nv_pdu_icresp nv_icresp_build(uint8_t cpda, uint8_t digest, uint32_t maxh2cdata)
{
	must(cpda <= NV_PDU_PDA_MAX && digest <= 3);
	must(maxh2cdata >= NV_PDU_MAXH2CDATA_MIN && maxh2cdata % 4 == 0);
	return (struct nv_pdu_icresp){
		.head = {NV_PDU_ICRESP, 0, 128, 0, le32_of(128)},
		.cpda = cpda,
		.digest = digest,
		.maxh2cdata = le32_of(maxh2cdata),
	};
}

static struct nv_pdu_head head_build(const struct nv_pdu_sizes *sizes, enum nv_pdu_type type,
				     uint32_t data_bytes)
{
	const struct kind *kind = kind_of((uint8_t)type);
	struct nv_pdu_head head = {.type = (uint8_t)type, .hlen = kind->hlen};
	uint32_t plen = kind->hlen;

	if (sizes->header_digest) {
		head.flags |= NV_PDU_HDGST;
		plen += NV_PDU_DIGEST_BYTES;
	}
	if (data_bytes > 0) {
		must(kind->data != DATA_NEVER);
		plen = data_offset(plen, sizes->align_dwords);
		must(plen <= UINT8_MAX && data_bytes <= UINT32_MAX - plen - NV_PDU_DIGEST_BYTES);
		head.pdo = (uint8_t)plen;
		plen += data_bytes;
		if (sizes->data_digest) {
			head.flags |= NV_PDU_DDGST;
			plen += NV_PDU_DIGEST_BYTES;
		}
	}
	head.plen = le32_of(plen);
	return head;
}

struct nv_pdu_cmd nv_cmd_build(const struct nv_pdu_sizes *sizes, const struct nv_sqe *sqe,
			       uint32_t data_bytes)
{
	return (struct nv_pdu_cmd){head_build(sizes, NV_PDU_CAPSULE_CMD, data_bytes), *sqe};
}

struct nv_pdu_resp nv_resp_build(const struct nv_pdu_sizes *sizes, const struct nv_cqe *cqe)
{
	return (struct nv_pdu_resp){head_build(sizes, NV_PDU_CAPSULE_RESP, 0), *cqe};
}

static struct nv_pdu_data data_build(const struct nv_pdu_sizes *sizes, enum nv_pdu_type type,
				     const struct nv_data_span *s)
{
	struct nv_pdu_data pdu = {
		.head = head_build(sizes, type, s->bytes),
		.cccid = le16_of(s->cid),
		.ttag = le16_of(s->ttag),
		.datao = le32_of(s->offset),
		.datal = le32_of(s->bytes),
	};

	must(s->bytes > 0);
	if (s->last)
		pdu.head.flags |= NV_PDU_LAST;
	return pdu;
}

struct nv_pdu_data nv_h2c_data_build(const struct nv_pdu_sizes *sizes,
				     const struct nv_data_span *s)
{
	return data_build(sizes, NV_PDU_H2C_DATA, s);
}

struct nv_pdu_data nv_c2h_data_build(const struct nv_pdu_sizes *sizes,
				     const struct nv_data_span *s)
{
	must(s->ttag == 0);
	return data_build(sizes, NV_PDU_C2H_DATA, s);
}

struct nv_pdu_r2t nv_r2t_build(const struct nv_pdu_sizes *sizes, const struct nv_data_span *s)
{
	must(s->bytes > 0 && !s->last);
	return (struct nv_pdu_r2t){
		.head = head_build(sizes, NV_PDU_R2T, 0),
		.cccid = le16_of(s->cid),
		.ttag = le16_of(s->ttag),
		.r2to = le32_of(s->offset),
		.r2tl = le32_of(s->bytes),
	};
}

uint8_t nv_pdu_pad_bytes(const struct nv_pdu_head *head)
{
	uint32_t bare = head->hlen + ((head->flags & NV_PDU_HDGST) != 0 ? NV_PDU_DIGEST_BYTES : 0u);

	return head->pdo > bare ? (uint8_t)(head->pdo - bare) : 0;
}

size_t nv_termreq_build(enum nv_pdu_type type, const struct nv_pdu_fault *fault,
			const struct nv_wrong *wrong, uint8_t out[NV_PDU_TERMREQ_MAX])
{
	size_t room = NV_PDU_TERMREQ_MAX - sizeof(struct nv_pdu_termreq);
	size_t copied = wrong->bytes < room ? wrong->bytes : room;
	size_t plen = sizeof(struct nv_pdu_termreq) + copied;
	struct nv_pdu_termreq pdu = {
		.head = {(uint8_t)type, 0, sizeof(pdu), 0, le32_of((uint32_t)plen)},
		.fes = le16_of(fault->fes),
		.fei = le32_of(fault->fei),
	};

	must(is_termreq((uint8_t)type) && !fault->silent);
	memset(out, 0, NV_PDU_TERMREQ_MAX);
	memcpy(out, &pdu, sizeof(pdu));
	memcpy(out + sizeof(pdu), wrong->at, copied);
	return plen;
}
