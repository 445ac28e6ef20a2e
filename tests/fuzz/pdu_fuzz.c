/* SPDX-License-Identifier: Apache-2.0 */
/* Input: rules (3 bytes), then a PDU header. What passes adds up, what does not has a reason. */
#include <string.h>

#include "base/must.h"
#include "nvme/tcp_pdu.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_body(const uint8_t *pdu, const struct nv_pdu_shape *shape)
{
	struct nv_transfer t = {.cid = 1, .ttag = 1, .start = 4096, .next = 8192, .end = 65536,
				.pdu_data_max = 16384};
	struct nv_pdu_fault fault = {0};
	const struct nv_pdu_data *d = (const struct nv_pdu_data *)pdu;
	const struct nv_pdu_r2t *r = (const struct nv_pdu_r2t *)pdu;

	switch (shape->type) {
	case NV_PDU_ICREQ:
		(void)nv_icreq_check((const struct nv_pdu_icreq *)pdu, &fault);
		break;
	case NV_PDU_ICRESP:
		if (nv_icresp_check((const struct nv_pdu_icresp *)pdu, 3, &fault))
			must(le32_get(((const struct nv_pdu_icresp *)pdu)->maxh2cdata) >= 4096);
		break;
	case NV_PDU_H2C_DATA:
		if (nv_h2c_data_check(d, shape, le16_get(d->ttag) == 1 ? &t : NULL, &fault))
			must(le32_get(d->datao) == t.next &&
			     shape->data_bytes <= t.end - t.next);
		break;
	case NV_PDU_C2H_DATA:
		if (nv_c2h_data_check(d, shape, le16_get(d->cccid) == 1 ? &t : NULL, &fault))
			must(le32_get(d->datao) == t.next &&
			     shape->data_bytes <= t.end - t.next);
		break;
	case NV_PDU_R2T:
		if (nv_r2t_check(r, le16_get(r->cccid) == 1 ? &t : NULL, false, &fault))
			must(le32_get(r->r2to) == t.next &&
			     le32_get(r->r2tl) <= t.end - t.next);
		break;
	default:
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t pdu[NV_PDU_HEADER_MAX] = {0};
	struct nv_pdu_rules rules;
	struct nv_pdu_shape shape;
	struct nv_pdu_fault fault = {0};

	if (size < 3)
		return 0;
	rules = (struct nv_pdu_rules){
		.controller = data[0] & 1, .connected = data[0] & 2, .header_digest = data[0] & 4,
		.data_digest = data[0] & 8, .align_dwords = data[1] % (NV_PDU_PDA_MAX + 1),
		.capsule_data_max = data[2] * 64u,
	};
	memcpy(pdu, data + 3, size - 3 < sizeof(pdu) ? size - 3 : sizeof(pdu));
	if (nv_pdu_check(&rules, (const struct nv_pdu_head *)pdu, &shape, &fault)) {
		must(((shape.type & 1) == 0) == rules.controller);
		must(shape.header_bytes <= NV_PDU_HEADER_MAX);
		must(shape.type != NV_PDU_CAPSULE_CMD ||
		     shape.data_bytes <= rules.capsule_data_max);
		must(shape.data_digest_bytes == 0 || shape.data_bytes > 0);
		check_body(pdu, &shape);
	} else {
		must(fault.why != NULL && (fault.silent || (fault.fes >= 1 && fault.fes <= 6)));
		must(fault.silent || fault.fes != NV_FES_INVALID_HEADER || fault.fei < 128);
	}
	return 0;
}
