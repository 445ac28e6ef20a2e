/* SPDX-License-Identifier: Apache-2.0 */
/* Set Features, Get Features, and the other small admin commands. Pure; any thread. */
#ifndef KVOF_NVME_FEATURE_H
#define KVOF_NVME_FEATURE_H

#include "nvme/sqe.h"

enum nv_fid {                          /* [BASE 2.0] section 5.27.1 */
	NV_FEAT_ARBITRATION = 0x01,
	NV_FEAT_POWER = 0x02,
	NV_FEAT_TEMPERATURE = 0x04,
	NV_FEAT_ERROR_RECOVERY = 0x05,
	NV_FEAT_WRITE_CACHE = 0x06,
	NV_FEAT_QUEUES = 0x07,
	NV_FEAT_WRITE_ATOMICITY = 0x0a,
	NV_FEAT_ASYNC_EVENTS = 0x0b,
	NV_FEAT_TIMESTAMP = 0x0e,
	NV_FEAT_KEEP_ALIVE = 0x0f,
	NV_FEAT_HOST_BEHAVIOR = 0x16,  /* 512 bytes of data */
	NV_FEAT_COMMAND_SET = 0x19,    /* I/O command set profile */
	NV_FEAT_KV_CONFIGURATION = 0x20,       /* [KV 1.0c]: bit 0 EDNEK */
	NV_FEAT_HOST_ID = 0x81,
};

enum nv_feature_select { NV_SEL_CURRENT, NV_SEL_DEFAULT, NV_SEL_SAVED, NV_SEL_SUPPORTED };

#define NV_KV_EDNEK 0x01               /* Delete of an absent key is 87h (else success) */

struct nv_feature {
	uint8_t fid;
	uint8_t select;                /* Get: enum nv_feature_select */
	bool save;                     /* Set: SV */
	uint32_t nsid;
	uint32_t cdw11, cdw12;
};

/* NV_INVALID_FIELD: SEL above 3. Which features exist, and SV, are the target's to decide. */
nv_status nv_feature_get_parse(const struct nv_sqe *sqe, struct nv_feature *out, struct bad *bad);
struct nv_feature nv_feature_set_parse(const struct nv_sqe *sqe);
struct nv_sqe nv_feature_get_build(const struct nv_feature *what);
struct nv_sqe nv_feature_set_build(const struct nv_feature *what);

/* Number of Queues (07h): both counts as the wire has them in 0's based halves, here 1's based. */
struct nv_queue_counts {
	uint32_t submission, completion;       /* 1..65535 */
};
/* NV_INVALID_FIELD: a count of FFFFh. */
nv_status nv_queue_counts_parse(uint32_t cdw11, struct nv_queue_counts *out, struct bad *bad);
uint32_t nv_queue_counts_pack(struct nv_queue_counts counts);
/* What a target granted: DW0. Never fails: FFFFh is read as 65536. */
struct nv_queue_counts nv_queue_counts_unpack(uint32_t dw0);

/* Async Event Configuration (0Bh) */
enum nv_async_event_bits {
	NV_ASYNC_SMART = 0xff,
	NV_ASYNC_NAMESPACE = 1 << 8,
	NV_ASYNC_FIRMWARE = 1 << 9,
};
#define NV_ASYNC_DISCOVERY (UINT32_C(1) << 31)

struct nv_abort {
	uint16_t sqid, cid;
};
struct nv_abort nv_abort_parse(const struct nv_sqe *sqe);
#define NV_ABORT_NOT_DONE 0x01         /* DW0 bit 0: the command was not aborted */

#endif
