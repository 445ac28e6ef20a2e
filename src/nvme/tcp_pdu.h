/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVMe/TCP protocol data units: bytes, and the checks of every header that arrives. Pure; any
 * thread. The engine that moves bytes is wire/tcp.c; it decides nothing about headers itself.
 *
 *	PDU = header (HLEN bytes) | header digest | padding up to PDO | data | data digest
 *
 * Errors are told for the lowest wrong field first: type, flags, HLEN, PDO, PLEN, then the fields
 * of the type. FES and FEI are [TCP 1.0] section 3.6.2.5 (TermReq); for FES 01h and 06h the FEI is
 * the byte offset of the field, for 03h the digest received, else 0.
 */
#ifndef KVOF_NVME_TCP_PDU_H
#define KVOF_NVME_TCP_PDU_H

#include "nvme/sqe.h"

enum nv_pdu_type {                     /* [TCP 1.0] section 3.6.1; odd types go to the host */
	NV_PDU_ICREQ = 0x00,
	NV_PDU_ICRESP = 0x01,
	NV_PDU_H2C_TERMREQ = 0x02,
	NV_PDU_C2H_TERMREQ = 0x03,
	NV_PDU_CAPSULE_CMD = 0x04,
	NV_PDU_CAPSULE_RESP = 0x05,
	NV_PDU_H2C_DATA = 0x06,
	NV_PDU_C2H_DATA = 0x07,
	NV_PDU_R2T = 0x09,
};

enum nv_pdu_flags {
	NV_PDU_HDGST = 0x01,
	NV_PDU_DDGST = 0x02,
	NV_PDU_LAST = 0x04,
	NV_PDU_SUCCESS = 0x08,         /* C2HData: no CapsuleResp follows */
};

enum nv_pdu_limits {
	NV_PDU_PDA_MAX = 31,           /* HPDA, CPDA: alignment in dwords, 0's based */
	NV_PDU_HEADER_MAX = 128,       /* the longest header (ICReq, ICResp) */
	NV_PDU_DIGEST_BYTES = 4,
	NV_PDU_TERMREQ_MAX = 152,
	NV_PDU_MAXH2CDATA_MIN = 4096,
	NV_PDU_CAPSULE_DATA_ADMIN = 8192,      /* in-capsule data for admin and fabrics commands */
};

enum nv_fes {                          /* [TCP 1.0] section 3.6.2.5 */
	NV_FES_INVALID_HEADER = 0x01,
	NV_FES_SEQUENCE = 0x02,
	NV_FES_HEADER_DIGEST = 0x03,
	NV_FES_OUT_OF_RANGE = 0x04,
	NV_FES_LIMIT_EXCEEDED = 0x05,
	NV_FES_UNSUPPORTED = 0x06,
};

struct nv_pdu_head {                   /* [TCP 1.0] section 3.6.1, common header */
	uint8_t type;
	uint8_t flags;
	uint8_t hlen;
	uint8_t pdo;
	le32 plen;
};
_Static_assert(sizeof(struct nv_pdu_head) == 8, "the common header is 8 bytes");
_Static_assert(offsetof(struct nv_pdu_head, plen) == 4, "PLEN is byte 4");

struct nv_pdu_icreq {                  /* [TCP 1.0] section 3.6.2.2 */
	struct nv_pdu_head head;
	le16 pfv;
	uint8_t hpda;
	uint8_t digest;                /* bit 0 header, bit 1 data */
	le32 maxr2t;                   /* 0's based */
	uint8_t reserved16[112];
};
_Static_assert(sizeof(struct nv_pdu_icreq) == 128, "ICReq is 128 bytes");
_Static_assert(offsetof(struct nv_pdu_icreq, hpda) == 10, "HPDA is byte 10");
_Static_assert(offsetof(struct nv_pdu_icreq, maxr2t) == 12, "MAXR2T is byte 12");

struct nv_pdu_icresp {                 /* [TCP 1.0] section 3.6.2.3 */
	struct nv_pdu_head head;
	le16 pfv;
	uint8_t cpda;
	uint8_t digest;
	le32 maxh2cdata;               /* bytes, at least 4096 */
	uint8_t reserved16[112];
};
_Static_assert(sizeof(struct nv_pdu_icresp) == 128, "ICResp is 128 bytes");
_Static_assert(offsetof(struct nv_pdu_icresp, cpda) == 10, "CPDA is byte 10");
_Static_assert(offsetof(struct nv_pdu_icresp, maxh2cdata) == 12, "MAXH2CDATA is byte 12");

struct nv_pdu_termreq {                /* [TCP 1.0] sections 3.6.2.4 and 3.6.2.5 */
	struct nv_pdu_head head;
	le16 fes;
	le32 fei;
	uint8_t reserved14[10];
	/* up to 128 bytes of the PDU that was wrong */
};
_Static_assert(sizeof(struct nv_pdu_termreq) == 24, "a TermReq header is 24 bytes");
_Static_assert(offsetof(struct nv_pdu_termreq, fei) == 10, "FEI is byte 10, not aligned");

struct nv_pdu_cmd {                    /* [TCP 1.0] section 3.6.2.6, CapsuleCmd */
	struct nv_pdu_head head;
	struct nv_sqe sqe;
};
_Static_assert(sizeof(struct nv_pdu_cmd) == 72, "a CapsuleCmd header is 72 bytes");
_Static_assert(offsetof(struct nv_pdu_cmd, sqe) == 8, "the SQE is byte 8");

struct nv_pdu_resp {                   /* [TCP 1.0] section 3.6.2.7, CapsuleResp */
	struct nv_pdu_head head;
	struct nv_cqe cqe;
};
_Static_assert(sizeof(struct nv_pdu_resp) == 24, "a CapsuleResp header is 24 bytes");
_Static_assert(offsetof(struct nv_pdu_resp, cqe) == 8, "the CQE is byte 8");

struct nv_pdu_data {                   /* [TCP 1.0] sections 3.6.2.8, 3.6.2.9: H2CData, C2HData */
	struct nv_pdu_head head;
	le16 cccid;
	le16 ttag;                     /* H2CData only */
	le32 datao;
	le32 datal;
	uint8_t reserved20[4];
};
_Static_assert(sizeof(struct nv_pdu_data) == 24, "a data PDU header is 24 bytes");
_Static_assert(offsetof(struct nv_pdu_data, cccid) == 8, "CCCID is byte 8");
_Static_assert(offsetof(struct nv_pdu_data, ttag) == 10, "TTAG is byte 10");
_Static_assert(offsetof(struct nv_pdu_data, datao) == 12, "DATAO is byte 12");
_Static_assert(offsetof(struct nv_pdu_data, datal) == 16, "DATAL is byte 16");

struct nv_pdu_r2t {                    /* [TCP 1.0] section 3.6.2.10 */
	struct nv_pdu_head head;
	le16 cccid;
	le16 ttag;
	le32 r2to;
	le32 r2tl;
	uint8_t reserved20[4];
};
_Static_assert(sizeof(struct nv_pdu_r2t) == 24, "an R2T header is 24 bytes");
_Static_assert(offsetof(struct nv_pdu_r2t, r2to) == 12, "R2TO is byte 12");
_Static_assert(offsetof(struct nv_pdu_r2t, r2tl) == 16, "R2TL is byte 16");

/* Why a peer is told to go: what a TermReq says, or nothing at all when silent. */
struct nv_pdu_fault {
	uint16_t fes;                  /* enum nv_fes */
	uint32_t fei;
	bool silent;                   /* close without a word: no NVMe/TCP, or a bad TermReq */
	const char *why;
};

/* What this end knows when a header arrives. */
struct nv_pdu_rules {
	bool controller;               /* this end is the controller */
	bool connected;                /* ICReq and ICResp have been exchanged */
	bool header_digest, data_digest;       /* as agreed */
	uint8_t align_dwords;          /* alignment this end asked for, 0's based (CPDA, HPDA) */
	uint32_t capsule_data_max;     /* controller: most in-capsule data that is taken */
};

/* How the PDU goes on after its header. */
struct nv_pdu_shape {
	uint8_t type, flags;
	uint8_t header_bytes;          /* HLEN */
	uint8_t header_digest_bytes;   /* 0 or 4 */
	uint8_t pad_bytes;
	uint8_t data_digest_bytes;     /* 0 or 4 */
	uint32_t data_bytes;           /* without digest; TermReq: the copy of the wrong header */
};

/**
 * nv_pdu_check() - the first 8 bytes of every PDU
 * @rules: of the receiving end
 * @head:  as received, borrowed
 * @out:   filled when true: how many bytes follow, and what they are
 * @fault: filled when false
 *
 * Before the connection is set up only ICReq (at the controller) or ICResp, or a TermReq at the
 * host, is let through. Padding must be the least that the alignment asks for.
 *
 * Return: true when the PDU may be read on.
 */
bool nv_pdu_check(const struct nv_pdu_rules *rules, const struct nv_pdu_head *head,
		  struct nv_pdu_shape *out, struct nv_pdu_fault *fault);

/* The bodies of ICReq and ICResp; their heads have passed nv_pdu_check(). */
bool nv_icreq_check(const struct nv_pdu_icreq *pdu, struct nv_pdu_fault *fault);
/* @asked: digest bits of our ICReq; a controller may agree to fewer, never to others. */
bool nv_icresp_check(const struct nv_pdu_icresp *pdu, uint8_t asked, struct nv_pdu_fault *fault);

/* A transfer the receiver asked for (R2T sent, or read command sent): what may come next. */
struct nv_transfer {
	uint16_t cid, ttag;
	uint32_t next, end;            /* bytes: what must come next, and where the transfer ends */
	uint32_t start;                /* where this grant began (R2TO); 0 for C2HData */
	uint32_t pdu_data_max;         /* MAXH2CDATA; 0: no limit */
};

/*
 * H2CData for the grant that TTAG names. The caller has looked the grant up: NULL when there is
 * none. *out_data_bytes of the shape must equal DATAL.
 */
bool nv_h2c_data_check(const struct nv_pdu_data *pdu, const struct nv_pdu_shape *shape,
		       const struct nv_transfer *grant, struct nv_pdu_fault *fault);
/*
 * C2HData for the command that CCCID names; NULL when there is none or it reads nothing. Data comes
 * in order, without gaps, never past the end of the buffer.
 */
bool nv_c2h_data_check(const struct nv_pdu_data *pdu, const struct nv_pdu_shape *shape,
		       const struct nv_transfer *read, struct nv_pdu_fault *fault);
/*
 * R2T for the command that CCCID names; NULL when there is none or it writes nothing. @next is
 * where the last R2T ended. @busy: bytes of the last R2T have not gone to the socket yet.
 */
bool nv_r2t_check(const struct nv_pdu_r2t *pdu, const struct nv_transfer *write, bool busy,
		  struct nv_pdu_fault *fault);

/*
 * Builders: from zero, digest flags and PDO and PLEN set. The digests themselves are the sender's
 * to compute (base/hash.h), since the data lies in pieces.
 */
struct nv_pdu_sizes {
	bool header_digest, data_digest;
	uint8_t align_dwords;          /* as the receiving end asked, 0's based */
};
struct nv_pdu_icreq nv_icreq_build(uint8_t hpda, uint8_t digest, uint32_t maxr2t);
struct nv_pdu_icresp nv_icresp_build(uint8_t cpda, uint8_t digest, uint32_t maxh2cdata);
struct nv_pdu_cmd nv_cmd_build(const struct nv_pdu_sizes *sizes, const struct nv_sqe *sqe,
			       uint32_t data_bytes);
struct nv_pdu_resp nv_resp_build(const struct nv_pdu_sizes *sizes, const struct nv_cqe *cqe);

struct nv_data_span {
	uint16_t cid, ttag;
	uint32_t offset, bytes;
	bool last;
};
struct nv_pdu_data nv_h2c_data_build(const struct nv_pdu_sizes *sizes,
				     const struct nv_data_span *s);
struct nv_pdu_data nv_c2h_data_build(const struct nv_pdu_sizes *sizes,
				     const struct nv_data_span *s);
struct nv_pdu_r2t nv_r2t_build(const struct nv_pdu_sizes *sizes, const struct nv_data_span *s);

/* Bytes of padding between header (with its digest) and data; 0 without data. */
uint8_t nv_pdu_pad_bytes(const struct nv_pdu_head *head);

/*
 * A TermReq with a copy of the first bytes of what was wrong (at most 128 are copied).
 * Return: bytes written to out.
 */
struct nv_wrong {
	const void *at;
	size_t bytes;
};
size_t nv_termreq_build(enum nv_pdu_type type, const struct nv_pdu_fault *fault,
			const struct nv_wrong *wrong, uint8_t out[NV_PDU_TERMREQ_MAX]);

/* "CapsuleCmd", ...; "?" for a type there is none of. */
const char *nv_pdu_name(uint8_t type);

#endif
