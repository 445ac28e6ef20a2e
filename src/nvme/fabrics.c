/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connect, properties, names. Invariant: names of a struct nv_connect end within their arrays and
 * are NQNs, whatever the peer sent. Pure; any thread.
 */
#include "nvme/fabrics.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/must.h"

/* Names go into logs and metrics, whose readers give up at what is not UTF-8. */
static bool nqn_bytes_ok(const uint8_t *nqn, size_t bytes)
{
	static const char shape[] = "nqn.dddd-dd.";      /* d stands for a digit */
	size_t head = sizeof(shape) - 1;

	if (bytes <= head || bytes > NV_NQN_BYTES_MAX)
		return false;
	for (size_t i = 0; i < head; i++) {
		bool digit = nqn[i] >= '0' && nqn[i] <= '9';

		if (i >= 4 && shape[i] == 'd' ? !digit : nqn[i] != (uint8_t)shape[i])
			return false;
	}
	for (size_t i = head, step; i < bytes; i += step) {
		step = bytes_utf8(nqn + i, bytes - i);
		if (step == 0 || nqn[i] <= ' ' || nqn[i] == 0x7f)
			return false;
	}
	return true;
}

bool nv_nqn_check(const char *nqn)
{
	size_t bytes = strnlen(nqn, NV_NQN_FIELD_BYTES);

	return nqn_bytes_ok((const uint8_t *)nqn, bytes);
}

bool nv_nqn_of_field(const uint8_t field[NV_NQN_FIELD_BYTES], char out[NV_NQN_BYTES_MAX + 1])
{
	size_t bytes = 0;

	while (bytes <= NV_NQN_BYTES_MAX && field[bytes] != '\0')
		bytes++;
	if (!nqn_bytes_ok(field, bytes))
		return false;
	memcpy(out, field, bytes);
	out[bytes] = '\0';
	return true;
}

static nv_status connect_bad(struct nv_connect_bad *bad, nv_status status,
			     struct nv_connect_bad what)
{
	*bad = what;
	return status;
}

#define BAD_SQE(member, text)                                                                      \
	connect_bad(bad, NV_CONNECT_INVALID,                                                       \
		    (struct nv_connect_bad){offsetof(struct nv_connect_sqe, member), false, text})
#define BAD_DATA(member, text)                                                                     \
	connect_bad(bad, NV_CONNECT_INVALID,                                                       \
		    (struct nv_connect_bad){offsetof(struct nv_connect_data, member), true, text})

nv_status nv_connect_parse(const struct nv_sqe *raw, const void *bytes, uint32_t data_bytes,
			   struct nv_connect *out, struct nv_connect_bad *bad)
{
	const struct nv_connect_sqe *sqe = (const struct nv_connect_sqe *)raw;
	const struct nv_connect_data *data = bytes;

	if (le16_get(sqe->recfmt) != 0)
		return connect_bad(bad, NV_CONNECT_FORMAT,
				   (struct nv_connect_bad){40, false, "record format is not 0"});
	if (data_bytes != sizeof(*data))
		return BAD_SQE(sgl.bytes, "Connect data is not 1024 bytes");
	if (le16_get(sqe->sqsize) == 0)
		return BAD_SQE(sqsize, "a queue has at least two entries");
	if (bytes_all_zero(data->hostid, sizeof(data->hostid)))
		return BAD_DATA(hostid, "host identifier is zero");
	*out = (struct nv_connect){
		.qid = le16_get(sqe->qid),
		.sq_entries = (uint16_t)(le16_get(sqe->sqsize) < 0xffff
					 ? le16_get(sqe->sqsize) + 1u : 0xffffu),
		.no_sq_flow = (sqe->cattr & NV_CATTR_NO_SQ_FLOW) != 0,
		.kato_ms = le32_get(sqe->kato_ms),
		.cntlid = le16_get(data->cntlid),
	};
	memcpy(out->hostid, data->hostid, sizeof(out->hostid));
	if (!nv_nqn_of_field(data->subnqn, out->subnqn))
		return BAD_DATA(subnqn, "subsystem name is no NQN");
	if (!nv_nqn_of_field(data->hostnqn, out->hostnqn))
		return BAD_DATA(hostnqn, "host name is no NQN");
	return NV_OK;
}

uint32_t nv_connect_bad_dw0(const struct nv_connect_bad *bad)
{
	return (uint32_t)bad->offset | (bad->in_data ? 1u << 16 : 0);
}

uint32_t nv_connect_ok_dw0(uint16_t cntlid)
{
	return cntlid;
}

int nv_connect_build(const struct nv_connect *in, struct nv_sqe *raw, struct nv_connect_data *data)
{
	struct nv_connect_sqe *sqe = (struct nv_connect_sqe *)raw;

	if (!nv_nqn_check(in->subnqn) || !nv_nqn_check(in->hostnqn))
		return -EINVAL;
	must(in->sq_entries >= 2);
	*raw = nv_sqe_of(NV_OPCODE_FABRICS, 0);
	sqe->fctype = NV_FABRICS_CONNECT;
	sqe->sgl = nv_sgl_in_capsule(sizeof(*data));
	sqe->qid = le16_of(in->qid);
	sqe->sqsize = le16_of((uint16_t)(in->sq_entries - 1));
	sqe->cattr = in->no_sq_flow ? NV_CATTR_NO_SQ_FLOW : 0;
	sqe->kato_ms = le32_of(in->kato_ms);
	*data = (struct nv_connect_data){.cntlid = le16_of(in->cntlid)};
	memcpy(data->hostid, in->hostid, sizeof(data->hostid));
	memcpy(data->subnqn, in->subnqn, strlen(in->subnqn));
	memcpy(data->hostnqn, in->hostnqn, strlen(in->hostnqn));
	return 0;
}

nv_status nv_property_parse(const struct nv_sqe *raw, struct nv_property *out, struct bad *bad)
{
	const struct nv_property_sqe *sqe = (const struct nv_property_sqe *)raw;
	uint8_t size = sqe->attrib & 7;
	uint32_t offset = le32_get(sqe->offset);
	bool wide = offset == NV_PROP_CAP;

	if (size > 1)
		return nv_bad(bad, NV_CONNECT_INVALID, offsetof(struct nv_property_sqe, attrib),
			      "size is neither 4 nor 8 bytes");
	if (wide != (size == 1))
		return nv_bad(bad, NV_CONNECT_INVALID, offsetof(struct nv_property_sqe, attrib),
			      "size is not that of the property");
	*out = (struct nv_property){
		.offset = offset,
		.size_bytes = wide ? 8 : 4,
		.value = le64_get(sqe->value) & (wide ? UINT64_MAX : UINT32_MAX),
	};
	return NV_OK;
}

static struct nv_sqe property_build(enum nv_fctype fctype, const struct nv_property *what)
{
	struct nv_sqe raw = nv_sqe_of(NV_OPCODE_FABRICS, 0);
	struct nv_property_sqe *sqe = (struct nv_property_sqe *)&raw;

	must(what->size_bytes == 4 || what->size_bytes == 8);
	sqe->fctype = (uint8_t)fctype;
	sqe->attrib = what->size_bytes == 8 ? 1 : 0;
	sqe->offset = le32_of(what->offset);
	sqe->value = le64_of(what->value);
	return raw;
}

struct nv_sqe nv_property_get_build(const struct nv_property *what)
{
	struct nv_property get = *what;

	get.value = 0;
	return property_build(NV_FABRICS_PROPERTY_GET, &get);
}

struct nv_sqe nv_property_set_build(const struct nv_property *what)
{
	return property_build(NV_FABRICS_PROPERTY_SET, what);
}

struct nv_sqe nv_disconnect_build(void)
{
	struct nv_sqe sqe = nv_sqe_of(NV_OPCODE_FABRICS, NV_FABRICS_DISCONNECT);

	must(nv_fctype(&sqe) == NV_FABRICS_DISCONNECT);
	return sqe;
}

uint64_t nv_cap_pack(const struct nv_cap *cap)
{
	must(cap->queue_entries_max >= 2);
	must(cap->page_shift_min >= 12 && cap->page_shift_min <= cap->page_shift_max);
	must(cap->page_shift_max <= 27);
	return (uint64_t)(cap->queue_entries_max - 1u) |
	       (uint64_t)cap->contiguous_queues << 16 |
	       (uint64_t)cap->timeout_500ms << 24 |
	       (uint64_t)cap->subsystem_reset << 36 |
	       (uint64_t)cap->css_nvm << 37 |
	       (uint64_t)cap->css_iocs << 43 |
	       (uint64_t)cap->css_admin_only << 44 |
	       (uint64_t)(cap->page_shift_min - 12u) << 48 |
	       (uint64_t)(cap->page_shift_max - 12u) << 52;
}

struct nv_cap nv_cap_unpack(uint64_t cap)
{
	uint32_t mqes = (uint32_t)(cap & 0xffff);

	return (struct nv_cap){
		.queue_entries_max = (uint16_t)(mqes < 0xffff ? mqes + 1 : 0xffff),
		.contiguous_queues = (cap >> 16 & 1) != 0,
		.timeout_500ms = (uint8_t)(cap >> 24),
		.subsystem_reset = (cap >> 36 & 1) != 0,
		.css_nvm = (cap >> 37 & 1) != 0,
		.css_iocs = (cap >> 43 & 1) != 0,
		.css_admin_only = (cap >> 44 & 1) != 0,
		.page_shift_min = (uint8_t)(12 + (cap >> 48 & 0xf)),
		.page_shift_max = (uint8_t)(12 + (cap >> 52 & 0xf)),
	};
}

static bool cc_css_ok(uint32_t css, const struct nv_cap *cap)
{
	return (css == NV_CC_CSS_NVM && (cap->css_nvm || cap->css_iocs)) ||
	       (css == NV_CC_CSS_IOCS && cap->css_iocs) ||
	       (css == NV_CC_CSS_ADMIN && cap->css_admin_only);
}

nv_status nv_cc_check(uint32_t cc, const struct nv_cap *cap, struct bad *bad)
{
	uint16_t at = offsetof(struct nv_property_sqe, value);
	uint32_t shift = 12 + ((cc & NV_CC_MPS) >> 7);
	bool enable = (cc & NV_CC_EN) != 0;

	if ((cc & ~(uint32_t)NV_CC_KNOWN) != 0)
		return nv_bad(bad, NV_CONNECT_INVALID, at, "reserved bits of CC");
	if (shift < cap->page_shift_min || shift > cap->page_shift_max)
		return nv_bad(bad, NV_CONNECT_INVALID, at, "CC.MPS is outside CAP");
	if ((cc & NV_CC_AMS) != 0)
		return nv_bad(bad, NV_CONNECT_INVALID, at, "CC.AMS is not round robin");
	if ((cc & NV_CC_SHN) == NV_CC_SHN)
		return nv_bad(bad, NV_CONNECT_INVALID, at, "CC.SHN is reserved");
	if (enable && !cc_css_ok(cc & NV_CC_CSS, cap))
		return nv_bad(bad, NV_CONNECT_INVALID, at, "CC.CSS is not offered by CAP");
	if (enable && (cc & (NV_CC_IOSQES | NV_CC_IOCQES)) != NV_CC_QUEUE_SIZES)
		return nv_bad(bad, NV_CONNECT_INVALID, at, "entries are 64 and 16 bytes");
	return NV_OK;
}
