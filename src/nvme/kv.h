/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Key Value command set: Store, Retrieve, Exist, Delete, List as bytes and as checked commands.
 * Pure; any thread. Choices where readings differ are in docs (design D14): a key length of 0 or
 * above 16 is 86h (List takes 0), CDW12 and CDW13 are ignored, compression options are accepted
 * and ignored, key bytes past the key's length are ignored.
 */
#ifndef KVOF_NVME_KV_H
#define KVOF_NVME_KV_H

#include "base/kv.h"
#include "nvme/sqe.h"

struct nv_kv_sqe {                     /* [KV 1.0c] section 3 */
	uint8_t opcode;
	uint8_t flags;
	le16 cid;
	le32 nsid;
	uint8_t key_lo[8];             /* CDW2..3: key bytes 0..7 */
	le64 mptr;
	struct nv_sgl sgl;
	le32 size_bytes;               /* CDW10: value size (Store) or host buffer size */
	uint8_t key_len;               /* CDW11 bits 7:0 */
	uint8_t options;               /* CDW11 bits 15:8 */
	uint8_t reserved46[2];
	uint8_t ignored48[8];          /* CDW12..13: reserved, but some hosts set them */
	uint8_t key_hi[8];             /* CDW14..15: key bytes 8..15 */
};
_Static_assert(sizeof(struct nv_kv_sqe) == 64, "an SQE is 64 bytes");
_Static_assert(_Alignof(struct nv_kv_sqe) == 1, "may be read in place from a receive buffer");
_Static_assert(offsetof(struct nv_kv_sqe, key_lo) == 8, "key bytes 0..7 are CDW2..3");
_Static_assert(offsetof(struct nv_kv_sqe, size_bytes) == 40, "size is CDW10");
_Static_assert(offsetof(struct nv_kv_sqe, key_len) == 44, "key length is CDW11 byte 0");
_Static_assert(offsetof(struct nv_kv_sqe, key_hi) == 56, "key bytes 8..15 are CDW14..15");

enum nv_kv_option {
	NV_KV_STORE_IF_PRESENT = 0x01,     /* store only if the key exists, else 87h */
	NV_KV_STORE_IF_ABSENT = 0x02,      /* store only if it does not, else 89h */
	NV_KV_STORE_NO_COMPRESSION = 0x04, /* accepted, without effect */
	NV_KV_RETRIEVE_RAW = 0x01,         /* accepted, without effect */
};

struct nv_kv_limits {
	uint32_t value_bytes_max;      /* KVVML of the namespace's format */
	uint64_t transfer_bytes_max;   /* MDTS in bytes; 0: no limit */
};

struct nv_kv_cmd {
	enum nv_kv_opcode opcode;
	bool if_present, if_absent;    /* Store */
	struct kv_key key;             /* List: the key to start from; len 0 is the first one */
	uint32_t bytes;                /* value or host buffer; 0 for Exist, Delete */
	enum nv_data_dir dir;          /* NONE also when bytes is 0 */
};

/**
 * nv_kv_parse() - check one command of a KV namespace
 * @sqe:    the 64 bytes as received, borrowed
 * @limits: of the namespace and the controller
 * @out:    filled on NV_OK
 * @bad:    filled otherwise: byte offset in the SQE and a sentence
 *
 * The namespace id and the data descriptor are not looked at: the owner of namespaces checks the
 * first, nv_sgl_check() the second. Nothing is allocated, so a size over the limit is refused
 * before a buffer is taken.
 *
 * Return: NV_OK; NV_INVALID_OPCODE; NV_INVALID_FIELD (fused, both conditions at once, transfer
 * above MDTS); NV_KV_BAD_KEY_SIZE; NV_KV_BAD_VALUE_SIZE (Store above KVVML; List into less than
 * its 4-byte count).
 */
nv_status nv_kv_parse(const struct nv_sqe *sqe, const struct nv_kv_limits *limits,
		      struct nv_kv_cmd *out, struct bad *bad);

/* The command as bytes; the descriptor says transport data unless the wire changes it. */
struct nv_sqe nv_kv_build(uint32_t nsid, const struct nv_kv_cmd *cmd);

/*
 * What a List returns [KV 1.0c] section 3.3: le32 count, then for each key a le16 length and the
 * bytes, each record padded to a multiple of 4.
 */
#define NV_KV_LIST_HEADER_BYTES 4

struct nv_kv_list_out {                /* a List answer being written */
	uint8_t *at;
	uint32_t bytes, used_bytes;
	uint32_t count;
};

/* Needs at least NV_KV_LIST_HEADER_BYTES; the whole buffer is zeroed, so nothing old leaves. */
void nv_kv_list_begin(struct nv_kv_list_out *out, void *buffer, uint32_t bytes);
/* False: no room for this key; the buffer is as before. */
bool nv_kv_list_add(struct nv_kv_list_out *out, const struct kv_key *key);

struct nv_kv_list_in {                 /* a List answer being read */
	const uint8_t *at;
	uint32_t bytes, used_bytes;
	uint32_t left;                 /* keys not read yet */
};

/* -EPROTO when the answer is too short for its count. */
int nv_kv_list_open(struct nv_kv_list_in *in, const void *buffer, uint32_t bytes);
/* 1: *out is the next key; 0: no more; -EPROTO: a record is longer than the answer or no key. */
int nv_kv_list_next(struct nv_kv_list_in *in, struct kv_key *out);

#endif
