/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NVM (block) command set: Read, Write, Flush, Write Zeroes, Compare, Dataset Management,
 * Verify. Pure; any thread.
 */
#ifndef KVOF_NVME_NVM_H
#define KVOF_NVME_NVM_H

#include "nvme/sqe.h"

struct nv_nvm_sqe {                    /* [NVM 1.0] section 3.2 */
	uint8_t opcode;
	uint8_t flags;
	le16 cid;
	le32 nsid;
	uint8_t reserved8[8];
	le64 mptr;
	struct nv_sgl sgl;
	le64 slba;
	le16 nlb;                      /* 0's based */
	le16 control;                  /* enum nv_nvm_control */
	le32 dsm;
	le32 tags[2];
};
_Static_assert(sizeof(struct nv_nvm_sqe) == 64, "an SQE is 64 bytes");
_Static_assert(offsetof(struct nv_nvm_sqe, slba) == 40, "SLBA is CDW10..11");
_Static_assert(offsetof(struct nv_nvm_sqe, nlb) == 48, "NLB is CDW12 bits 15:0");

enum nv_nvm_control {
	NV_NVM_DTYPE = 0xf << 4,       /* Write: directive type */
	NV_NVM_DEAC = 1 << 9,          /* Write Zeroes: deallocate */
	NV_NVM_PRINFO = 0xf << 10,
	NV_NVM_FUA = 1 << 14,
	NV_NVM_LIMITED_RETRY = 1 << 15,
};

struct nv_dsm_sqe {                    /* [NVM 1.0] section 3.2.3, Dataset Management */
	uint8_t opcode;
	uint8_t flags;
	le16 cid;
	le32 nsid;
	uint8_t reserved8[8];
	le64 mptr;
	struct nv_sgl sgl;
	uint8_t ranges;                /* NR, CDW10 bits 7:0, 0's based */
	uint8_t reserved41[3];
	le32 attributes;               /* CDW11 */
	le32 reserved48[4];
};
_Static_assert(sizeof(struct nv_dsm_sqe) == 64, "an SQE is 64 bytes");
_Static_assert(offsetof(struct nv_dsm_sqe, attributes) == 44, "IDR, IDW and AD are CDW11");

enum nv_dsm_attributes { NV_DSM_IDR = 1 << 0, NV_DSM_IDW = 1 << 1, NV_DSM_AD = 1 << 2 };

#define NV_DSM_RANGES_MAX 256

struct nv_dsm_range {                  /* [NVM 1.0] section 3.2.3, range definition */
	le32 context;
	le32 blocks;                   /* 1's based: 0 is none */
	le64 slba;
};
_Static_assert(sizeof(struct nv_dsm_range) == 16, "a range is 16 bytes");
_Static_assert(offsetof(struct nv_dsm_range, slba) == 8, "the start follows the length");

struct nv_nvm_limits {
	uint64_t blocks;               /* size of the namespace */
	uint32_t block_bytes;
	uint64_t transfer_bytes_max;   /* MDTS in bytes; 0: no limit */
};

struct nv_nvm_cmd {
	enum nv_nvm_opcode opcode;
	uint64_t first_block;
	uint32_t block_count;          /* 1's based; 0 for Flush and Dataset Management */
	uint32_t bytes;                /* data moved */
	uint16_t ranges;               /* Dataset Management: 1's based */
	bool force_unit_access;        /* Read, Write, Write Zeroes, Compare */
	bool deallocate;               /* Write Zeroes with DEAC, Dataset Management with AD */
	enum nv_data_dir dir;
};

/**
 * nv_nvm_parse() - check one command of a block namespace
 *
 * Reserved bits are ignored; a directive type is refused since no directive is on. The length is
 * held against MDTS before the blocks are against the namespace. The ranges of Dataset Management
 * come with its data: nv_dsm_check().
 *
 * Return: NV_OK; NV_INVALID_OPCODE; NV_INVALID_FIELD (fused, protection information, directive,
 * above MDTS); NV_LBA_OUT_OF_RANGE. Namespace id and data descriptor are the caller's to check.
 */
nv_status nv_nvm_parse(const struct nv_sqe *sqe, const struct nv_nvm_limits *limits,
		       struct nv_nvm_cmd *out, struct bad *bad);
struct nv_sqe nv_nvm_build(uint32_t nsid, const struct nv_nvm_cmd *cmd);

/* All ranges lie inside the namespace. Return: NV_OK; NV_LBA_OUT_OF_RANGE. */
nv_status nv_dsm_check(const struct nv_dsm_range *range, unsigned range_count,
		       const struct nv_nvm_limits *limits, struct bad *bad);

#endif
