/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fabrics commands (Connect, Property Get/Set, Disconnect), the properties they reach, and names
 * (NQN). Pure; any thread. Error places in Connect's answer are [FABRICS 1.1] section 3.3: IPO is
 * a byte offset in the data when IATTR is 1, in the SQE when it is 0.
 */
#ifndef KVOF_NVME_FABRICS_H
#define KVOF_NVME_FABRICS_H

#include "nvme/sqe.h"

enum nv_fctype {
	NV_FABRICS_PROPERTY_SET = 0x00,
	NV_FABRICS_CONNECT = 0x01,
	NV_FABRICS_PROPERTY_GET = 0x04,
	NV_FABRICS_AUTH_SEND = 0x05,
	NV_FABRICS_AUTH_RECEIVE = 0x06,
	NV_FABRICS_DISCONNECT = 0x08,
};

struct nv_fabrics_sqe {                /* [FABRICS 1.1] section 3, common part */
	uint8_t opcode;
	uint8_t flags;
	le16 cid;
	uint8_t fctype;
	uint8_t reserved5[19];
	struct nv_sgl sgl;
	uint8_t specific[24];
};
_Static_assert(sizeof(struct nv_fabrics_sqe) == 64, "an SQE is 64 bytes");
_Static_assert(offsetof(struct nv_fabrics_sqe, fctype) == 4, "FCTYPE is byte 4");

struct nv_connect_sqe {                /* [FABRICS 1.1] section 3.3 */
	uint8_t opcode;
	uint8_t flags;
	le16 cid;
	uint8_t fctype;
	uint8_t reserved5[19];
	struct nv_sgl sgl;
	le16 recfmt;
	le16 qid;
	le16 sqsize;                   /* 0's based */
	uint8_t cattr;
	uint8_t reserved47;
	le32 kato_ms;
	uint8_t reserved52[12];
};
_Static_assert(sizeof(struct nv_connect_sqe) == 64, "an SQE is 64 bytes");
_Static_assert(offsetof(struct nv_connect_sqe, recfmt) == 40, "RECFMT is byte 40");
_Static_assert(offsetof(struct nv_connect_sqe, cattr) == 46, "CATTR is byte 46");
_Static_assert(offsetof(struct nv_connect_sqe, kato_ms) == 48, "KATO is byte 48");

#define NV_CATTR_NO_SQ_FLOW 0x04       /* host asks to do without SQHD */

#define NV_NQN_FIELD_BYTES 256
#define NV_NQN_BYTES_MAX 223           /* without the NUL */
#define NV_DISCOVERY_NQN "nqn.2014-08.org.nvmexpress.discovery"
#define NV_CNTLID_DYNAMIC 0xffff       /* the controller chooses (static: FFFEh) */
#define NV_CNTLID_STATIC 0xfffe

struct nv_connect_data {               /* [FABRICS 1.1] section 3.3, Connect data */
	uint8_t hostid[16];
	le16 cntlid;
	uint8_t reserved18[238];
	uint8_t subnqn[NV_NQN_FIELD_BYTES];
	uint8_t hostnqn[NV_NQN_FIELD_BYTES];
	uint8_t reserved768[256];
};
_Static_assert(sizeof(struct nv_connect_data) == 1024, "Connect data is 1024 bytes");
_Static_assert(offsetof(struct nv_connect_data, cntlid) == 16, "CNTLID is byte 16");
_Static_assert(offsetof(struct nv_connect_data, subnqn) == 256, "SUBNQN is byte 256");
_Static_assert(offsetof(struct nv_connect_data, hostnqn) == 512, "HOSTNQN is byte 512");

/* Connect, checked. Strings are NUL ended and at most NV_NQN_BYTES_MAX long. */
struct nv_connect {
	uint16_t qid;
	uint16_t sq_entries;           /* 1's based: SQSIZE + 1 */
	bool no_sq_flow;
	uint32_t kato_ms;
	uint16_t cntlid;
	uint8_t hostid[16];
	char subnqn[NV_NQN_BYTES_MAX + 1];
	char hostnqn[NV_NQN_BYTES_MAX + 1];
};

/* Where a refused Connect was wrong: DW0 of its completion. */
struct nv_connect_bad {
	uint16_t offset;               /* IPO */
	bool in_data;                  /* IATTR bit 0 */
	const char *why;
};

/**
 * nv_connect_parse() - check a Connect command and its data
 * @sqe:  the command as received; opcode and FCTYPE were looked at by the caller
 * @data: what came as data, @data_bytes long
 * @out:  filled on NV_OK
 * @bad:  filled otherwise
 *
 * Whether queue, subsystem and host exist is the target's to decide; here: record format, size of
 * the data, host id not zero, names that end within their field and begin like an NQN.
 *
 * Return: NV_OK; NV_CONNECT_FORMAT; NV_INVALID_QUEUE_SIZE never (SQSIZE 0 is NV_CONNECT_INVALID);
 * NV_CONNECT_INVALID.
 */
nv_status nv_connect_parse(const struct nv_sqe *sqe, const void *data, uint32_t data_bytes,
			   struct nv_connect *out, struct nv_connect_bad *bad);

/* DW0 of the completion of a refused, and of an accepted Connect. */
uint32_t nv_connect_bad_dw0(const struct nv_connect_bad *bad);
uint32_t nv_connect_ok_dw0(uint16_t cntlid);

/* The host's side: command and data from the same struct. -EINVAL: a name is no NQN. */
int nv_connect_build(const struct nv_connect *in, struct nv_sqe *sqe,
		     struct nv_connect_data *data);

/*
 * "nqn." and a date or the uuid form, at most 223 bytes, no control bytes. nv_nqn_check() wants a C
 * string of at most NV_NQN_FIELD_BYTES; both answer false for anything else.
 */
bool nv_nqn_check(const char *nqn);
/* Copies a field of 256 bytes to out[224]; false if it has no NUL within 224 bytes or is no NQN. */
bool nv_nqn_of_field(const uint8_t field[NV_NQN_FIELD_BYTES], char out[NV_NQN_BYTES_MAX + 1]);

struct nv_property_sqe {               /* [FABRICS 1.1] sections 3.5 and 3.6 */
	uint8_t opcode;
	uint8_t flags;
	le16 cid;
	uint8_t fctype;
	uint8_t reserved5[35];
	uint8_t attrib;                /* bits 2:0: 0 is 4 bytes, 1 is 8 bytes */
	uint8_t reserved41[3];
	le32 offset;
	le64 value;                    /* Set only */
	uint8_t reserved56[8];
};
_Static_assert(sizeof(struct nv_property_sqe) == 64, "an SQE is 64 bytes");
_Static_assert(offsetof(struct nv_property_sqe, attrib) == 40, "ATTRIB is byte 40");
_Static_assert(offsetof(struct nv_property_sqe, offset) == 44, "OFST is byte 44");
_Static_assert(offsetof(struct nv_property_sqe, value) == 48, "VALUE is byte 48");

enum nv_property_offset {              /* [BASE 2.0] section 3.1.3 */
	NV_PROP_CAP = 0x00,            /* 8 bytes */
	NV_PROP_VS = 0x08,
	NV_PROP_CC = 0x14,
	NV_PROP_CSTS = 0x1c,
	NV_PROP_NSSR = 0x20,
	NV_PROP_CRTO = 0x68,
};

struct nv_property {
	uint32_t offset;
	uint8_t size_bytes;            /* 4 or 8 */
	uint64_t value;                /* Set: to write, upper half zero for 4 bytes */
};

/* Checks ATTRIB and the size of the property; NV_CONNECT_INVALID (1/82h) when they disagree. */
nv_status nv_property_parse(const struct nv_sqe *sqe, struct nv_property *out, struct bad *bad);
struct nv_sqe nv_property_get_build(const struct nv_property *what);
struct nv_sqe nv_property_set_build(const struct nv_property *what);

struct nv_sqe nv_disconnect_build(void);

static inline uint8_t nv_fctype(const struct nv_sqe *sqe)
{
	return sqe->nsid.b[0];
}

/* CAP [BASE 2.0] section 3.1.3.1 */
struct nv_cap {
	uint16_t queue_entries_max;    /* 1's based (MQES + 1) */
	bool contiguous_queues;        /* CQR */
	uint8_t timeout_500ms;         /* TO */
	bool subsystem_reset;          /* NSSRS */
	bool css_nvm, css_iocs, css_admin_only;    /* CSS bits 0, 6, 7 (CAP bits 37, 43, 44) */
	uint8_t page_shift_min, page_shift_max;    /* MPSMIN, MPSMAX as 12 + n */
};
uint64_t nv_cap_pack(const struct nv_cap *cap);
struct nv_cap nv_cap_unpack(uint64_t cap);

#define NV_VS(major, minor, tertiary)                                                              \
	((uint32_t)(major) << 16 | (uint32_t)(minor) << 8 | (uint32_t)(tertiary))

enum nv_cc_bits {                      /* CC [BASE 2.0] section 3.1.3.5 */
	NV_CC_EN = 1 << 0,
	NV_CC_CSS = 7 << 4,
	NV_CC_CSS_NVM = 0 << 4,
	NV_CC_CSS_IOCS = 6 << 4,       /* all command sets: needed for KV */
	NV_CC_CSS_ADMIN = 7 << 4,
	NV_CC_MPS = 0xf << 7,
	NV_CC_AMS = 7 << 11,
	NV_CC_SHN = 3 << 14,
	NV_CC_SHN_NORMAL = 1 << 14,
	NV_CC_SHN_ABRUPT = 2 << 14,
	NV_CC_IOSQES = 0xf << 16,      /* 6: 64 bytes */
	NV_CC_IOCQES = 0xf << 20,      /* 4: 16 bytes */
	NV_CC_CRIME = 1 << 24,
	NV_CC_KNOWN = 0x01fffff1,
};
#define NV_CC_QUEUE_SIZES (6u << 16 | 4u << 20)

enum nv_csts_bits {                    /* CSTS [BASE 2.0] section 3.1.3.6 */
	NV_CSTS_RDY = 1 << 0,
	NV_CSTS_CFS = 1 << 1,
	NV_CSTS_SHST = 3 << 2,
	NV_CSTS_SHST_BUSY = 1 << 2,
	NV_CSTS_SHST_DONE = 2 << 2,
	NV_CSTS_NSSRO = 1 << 4,
};

/**
 * nv_cc_check() - may the host write this to CC?
 *
 * Refuses reserved bits, page size above @cap's, an arbitration other than round robin, a command
 * set that @cap doesn't have, and entry sizes other than 64 and 16 while EN is set (0 is fine with
 * EN clear). Return: NV_OK, or NV_CONNECT_INVALID with *bad (offset of VALUE in the SQE).
 */
nv_status nv_cc_check(uint32_t cc, const struct nv_cap *cap, struct bad *bad);

#endif
