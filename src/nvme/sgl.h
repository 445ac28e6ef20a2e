/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one SGL descriptor of a command over fabrics, and the check of it against what the command
 * needs. NVMe/TCP knows two forms: data inside the capsule (type 0, subtype 1, "offset") and data
 * that the transport moves (type 5, subtype Ah). Pure; any thread.
 */
#ifndef KVOF_NVME_SGL_H
#define KVOF_NVME_SGL_H

#include "base/bytes.h"
#include "nvme/status.h"

enum nv_sgl_kind {                     /* type in bits 7:4, subtype in bits 3:0 */
	NV_SGL_ADDRESS = 0x00,         /* memory address: never over TCP but for "no data" */
	NV_SGL_IN_CAPSULE = 0x01,      /* data block at an offset inside the capsule */
	NV_SGL_BIT_BUCKET = 0x10,
	NV_SGL_SEGMENT = 0x20,
	NV_SGL_LAST_SEGMENT = 0x30,
	NV_SGL_KEYED = 0x40,           /* RDMA */
	NV_SGL_TRANSPORT = 0x5a,       /* R2T and H2CData, or C2HData */
};

struct nv_sgl {                        /* [BASE 2.0] section 4.1.2.1, SGL descriptor */
	le64 offset;                   /* address, or offset inside the capsule */
	le32 bytes;
	uint8_t reserved[3];
	uint8_t kind;                  /* enum nv_sgl_kind */
};
_Static_assert(sizeof(struct nv_sgl) == 16, "an SGL descriptor is 16 bytes");
_Static_assert(offsetof(struct nv_sgl, bytes) == 8, "length follows the address");
_Static_assert(offsetof(struct nv_sgl, kind) == 15, "type and subtype are the last byte");

/* Where in the SQE an error is, for the error log and for a test; why is a constant string. */
struct bad {
	uint16_t offset;
	const char *why;
};

enum nv_data_dir {
	NV_DATA_NONE,
	NV_DATA_TO_CONTROLLER,         /* opcode bits 1:0 = 01b */
	NV_DATA_TO_HOST,               /* opcode bits 1:0 = 10b */
};

struct nv_sgl_want {
	enum nv_data_dir dir;
	uint32_t bytes;                /* what the command says it moves */
	uint32_t capsule_bytes;        /* in-capsule data that came with the PDU */
};

enum nv_data_place { NV_PLACE_NONE, NV_PLACE_CAPSULE, NV_PLACE_TRANSPORT };

struct nv_data {
	enum nv_data_place place;      /* NONE when bytes is 0 */
	uint32_t bytes;
	uint32_t capsule_offset;       /* PLACE_CAPSULE: where in the capsule's data it starts */
};

struct nv_sqe;

/**
 * nv_sgl_check() - the data descriptor of a command against what the command moves
 * @sqe:  the command, borrowed
 * @want: direction and size as the command's own fields say, and what the capsule carried
 * @out:  filled on NV_OK
 * @bad:  filled otherwise: byte offset in the SQE and a sentence
 *
 * A command without data (dir NONE) is not refused for its descriptor. Size 0 is fine with any
 * descriptor of length 0 that names an address, the capsule or the transport.
 *
 * Return: NV_OK; NV_INVALID_FIELD (PSDT is PRP or reserved); NV_SGL_BAD_TYPE; NV_SGL_BAD_OFFSET;
 * NV_SGL_BAD_DATA_LENGTH (length is not what the command moves, or lies outside the capsule).
 */
nv_status nv_sgl_check(const struct nv_sqe *sqe, const struct nv_sgl_want *want,
		       struct nv_data *out, struct bad *bad);

struct nv_sgl nv_sgl_in_capsule(uint32_t bytes);
struct nv_sgl nv_sgl_transport(uint32_t bytes);

#endif
