/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submission and completion queue entries, and the opcodes we know. Pure; any thread.
 *
 * Command families lay their own names over the same 64 bytes (nvme/kv.h, nvme/fabrics.h,
 * nvme/nvm.h); all members have alignment 1, so an entry is read in place from a receive buffer.
 */
#ifndef KVOF_NVME_SQE_H
#define KVOF_NVME_SQE_H

#include "base/bytes.h"
#include "nvme/sgl.h"
#include "nvme/status.h"

enum nv_admin_opcode {                 /* [BASE 2.0] section 5, admin commands */
	NV_ADMIN_DELETE_SQ = 0x00,     /* the four queue commands do not exist over fabrics */
	NV_ADMIN_CREATE_SQ = 0x01,
	NV_ADMIN_GET_LOG_PAGE = 0x02,
	NV_ADMIN_DELETE_CQ = 0x04,
	NV_ADMIN_CREATE_CQ = 0x05,
	NV_ADMIN_IDENTIFY = 0x06,
	NV_ADMIN_ABORT = 0x08,
	NV_ADMIN_SET_FEATURES = 0x09,
	NV_ADMIN_GET_FEATURES = 0x0a,
	NV_ADMIN_ASYNC_EVENT = 0x0c,
	NV_ADMIN_KEEP_ALIVE = 0x18,
};

enum nv_nvm_opcode {                   /* [NVM 1.0] section 3 */
	NV_NVM_FLUSH = 0x00,
	NV_NVM_WRITE = 0x01,
	NV_NVM_READ = 0x02,
	NV_NVM_COMPARE = 0x05,
	NV_NVM_WRITE_ZEROES = 0x08,
	NV_NVM_DSM = 0x09,
	NV_NVM_VERIFY = 0x0c,
};

enum nv_kv_opcode {                    /* [KV 1.0c] section 3 */
	NV_KV_FLUSH = 0x00,            /* as in [BASE 2.0] section 7.1 */
	NV_KV_STORE = 0x01,
	NV_KV_RETRIEVE = 0x02,
	NV_KV_LIST = 0x06,
	NV_KV_DELETE = 0x10,
	NV_KV_EXIST = 0x14,
};

#define NV_OPCODE_FABRICS 0x7f         /* [FABRICS 1.1] section 3: fctype says which one */

enum nv_csi { NV_CSI_NVM = 0x00, NV_CSI_KV = 0x01 };

#define NV_NSID_ALL UINT32_C(0xffffffff)
#define NV_CID_NONE UINT16_C(0xffff)   /* [BASE 2.0] Figure 88: FFFFh is not a command identifier */

enum nv_sqe_flags {
	NV_SQE_FUSE = 0x03,
	NV_SQE_PSDT = 0xc0,
	NV_SQE_PSDT_SGL = 0x40,        /* over fabrics always: SGL, metadata pointer contiguous */
	NV_SQE_PSDT_SGL_MPTR = 0x80,
};

struct nv_sqe {                        /* [BASE 2.0] section 3.3.3.1, common command format */
	uint8_t opcode;
	uint8_t flags;                 /* enum nv_sqe_flags */
	le16 cid;
	le32 nsid;
	le32 cdw2;
	le32 cdw3;
	le64 mptr;
	struct nv_sgl sgl;
	le32 cdw10;
	le32 cdw11;
	le32 cdw12;
	le32 cdw13;
	le32 cdw14;
	le32 cdw15;
};
_Static_assert(sizeof(struct nv_sqe) == 64, "an SQE is 64 bytes");
_Static_assert(_Alignof(struct nv_sqe) == 1, "may be read in place from a receive buffer");
_Static_assert(offsetof(struct nv_sqe, cid) == 2, "CID is bytes 2..3");
_Static_assert(offsetof(struct nv_sqe, sgl) == 24, "SGL1 is bytes 24..39");
_Static_assert(offsetof(struct nv_sqe, cdw10) == 40, "CDW10 is byte 40");

struct nv_cqe {                        /* [BASE 2.0] section 3.3.3.2 */
	le32 dw0;
	le32 dw1;
	le16 sqhd;
	le16 sqid;                     /* reserved over fabrics */
	le16 cid;
	le16 status;                   /* nv_status_to_cqe() */
};
_Static_assert(sizeof(struct nv_cqe) == 16, "a CQE is 16 bytes");
_Static_assert(offsetof(struct nv_cqe, cid) == 12, "CID is bytes 12..13");
_Static_assert(offsetof(struct nv_cqe, status) == 14, "status is bytes 14..15");

/* A command built from zero: opcode, SGL addressing, else zero. The wire sets the CID. */
struct nv_sqe nv_sqe_of(uint8_t opcode, uint32_t nsid);

/* Direction of data as bits 1:0 of the opcode (or of fctype for fabrics) say; 11b is NONE. */
enum nv_data_dir nv_sqe_dir(const struct nv_sqe *sqe);

/* CQE with the status as it goes out (DNR as the list says); SQHD is the transport's to fill. */
struct nv_cqe nv_cqe_of(uint16_t cid, nv_status status);

static inline nv_status nv_cqe_status(const struct nv_cqe *cqe)
{
	return nv_status_of_cqe(le16_get(cqe->status));
}

/* One bit of a check: fills *bad and answers status. */
static inline nv_status nv_bad(struct bad *bad, nv_status status, uint16_t offset, const char *why)
{
	*bad = (struct bad){offset, why};
	return status;
}

#endif
