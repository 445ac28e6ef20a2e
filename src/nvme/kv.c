/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Key Value commands: check, build, and the List answer. Invariant: a struct nv_kv_cmd has a key
 * that is zero past its length, so keys compare whole. Pure; any thread.
 */
#include "nvme/kv.h"

#include <errno.h>
#include <string.h>

#include "base/must.h"

#define AT(member) (uint16_t)offsetof(struct nv_kv_sqe, member)

/* What each command is made of: one row a command, so that the checks below have no switch. */
struct kv_shape {
	uint8_t opcode;
	uint8_t key_len_min;
	uint8_t dir;
};

static const struct kv_shape shapes[] = {
	{NV_KV_STORE, 1, NV_DATA_TO_CONTROLLER},
	{NV_KV_RETRIEVE, 1, NV_DATA_TO_HOST},
	{NV_KV_LIST, 0, NV_DATA_TO_HOST},
	{NV_KV_DELETE, 1, NV_DATA_NONE},
	{NV_KV_EXIST, 1, NV_DATA_NONE},
};

static const struct kv_shape *shape_of(uint8_t opcode)
{
	for (unsigned i = 0; i < ARRAY_COUNT(shapes); i++)
		if (shapes[i].opcode == opcode)
			return &shapes[i];
	return NULL;
}

static void key_get(const struct nv_kv_sqe *sqe, struct kv_key *out)
{
	uint8_t len = sqe->key_len;

	must(len <= KV_KEY_BYTES_MAX);
	*out = (struct kv_key){.len = len};
	memcpy(out->byte, sqe->key_lo, len < 8 ? len : 8);
	if (len > 8)
		memcpy(out->byte + 8, sqe->key_hi, len - 8u);
}

static nv_status check_size(const struct nv_kv_sqe *sqe, const struct nv_kv_limits *limits,
			    struct bad *bad)
{
	uint32_t bytes = le32_get(sqe->size_bytes);

	if (sqe->opcode == NV_KV_STORE && bytes > limits->value_bytes_max)
		return nv_bad(bad, NV_KV_BAD_VALUE_SIZE, AT(size_bytes), "value is above KVVML");
	if (sqe->opcode == NV_KV_LIST && bytes < NV_KV_LIST_HEADER_BYTES)
		return nv_bad(bad, NV_KV_BAD_VALUE_SIZE, AT(size_bytes),
			      "List needs room for its count");
	if (limits->transfer_bytes_max != 0 && bytes > limits->transfer_bytes_max)
		return nv_bad(bad, NV_INVALID_FIELD, AT(size_bytes), "transfer is above MDTS");
	return NV_OK;
}

nv_status nv_kv_parse(const struct nv_sqe *raw, const struct nv_kv_limits *limits,
		      struct nv_kv_cmd *out, struct bad *bad)
{
	const struct nv_kv_sqe *sqe = (const struct nv_kv_sqe *)raw;
	const struct kv_shape *shape = shape_of(sqe->opcode);
	bool store = sqe->opcode == NV_KV_STORE;
	nv_status s;

	if (shape == NULL)
		return nv_bad(bad, NV_INVALID_OPCODE, AT(opcode), "no such Key Value command");
	if ((sqe->flags & NV_SQE_FUSE) != 0)
		return nv_bad(bad, NV_INVALID_FIELD, AT(flags), "fused commands are not supported");
	if (sqe->key_len < shape->key_len_min || sqe->key_len > KV_KEY_BYTES_MAX)
		return nv_bad(bad, NV_KV_BAD_KEY_SIZE, AT(key_len), "key length not 1..16");
	if (store && (sqe->options & NV_KV_STORE_IF_PRESENT) != 0 &&
	    (sqe->options & NV_KV_STORE_IF_ABSENT) != 0)
		return nv_bad(bad, NV_INVALID_FIELD, AT(options),
			      "both if-present and if-absent");
	if (shape->dir != NV_DATA_NONE) {
		s = check_size(sqe, limits, bad);
		if (!nv_status_ok(s))
			return s;
	}
	*out = (struct nv_kv_cmd){
		.opcode = shape->opcode,
		.if_present = store && (sqe->options & NV_KV_STORE_IF_PRESENT) != 0,
		.if_absent = store && (sqe->options & NV_KV_STORE_IF_ABSENT) != 0,
		.bytes = shape->dir != NV_DATA_NONE ? le32_get(sqe->size_bytes) : 0,
	};
	out->dir = out->bytes > 0 ? (enum nv_data_dir)shape->dir : NV_DATA_NONE;
	key_get(sqe, &out->key);
	return NV_OK;
}

struct nv_sqe nv_kv_build(uint32_t nsid, const struct nv_kv_cmd *cmd)
{
	const struct kv_shape *shape = shape_of((uint8_t)cmd->opcode);
	struct nv_sqe raw = nv_sqe_of((uint8_t)cmd->opcode, nsid);
	struct nv_kv_sqe *sqe = (struct nv_kv_sqe *)&raw;

	must(shape != NULL && cmd->key.len >= shape->key_len_min);
	must(cmd->key.len <= KV_KEY_BYTES_MAX);
	must(shape->dir != NV_DATA_NONE || cmd->bytes == 0);
	must(!(cmd->if_present && cmd->if_absent));
	memcpy(sqe->key_lo, cmd->key.byte, 8);
	memcpy(sqe->key_hi, cmd->key.byte + 8, 8);
	sqe->key_len = cmd->key.len;
	sqe->options = (uint8_t)((cmd->if_present ? NV_KV_STORE_IF_PRESENT : 0) |
				 (cmd->if_absent ? NV_KV_STORE_IF_ABSENT : 0));
	sqe->size_bytes = le32_of(cmd->bytes);
	sqe->sgl = nv_sgl_transport(cmd->bytes);
	return raw;
}

void nv_kv_list_begin(struct nv_kv_list_out *out, void *buffer, uint32_t bytes)
{
	must(bytes >= NV_KV_LIST_HEADER_BYTES);
	memset(buffer, 0, bytes);
	*out = (struct nv_kv_list_out){.at = buffer, .bytes = bytes,
				       .used_bytes = NV_KV_LIST_HEADER_BYTES};
}

bool nv_kv_list_add(struct nv_kv_list_out *out, const struct kv_key *key)
{
	uint32_t record = (uint32_t)bytes_round_up(2u + key->len, 4);
	uint8_t *at = out->at + out->used_bytes;
	le16 len = le16_of(key->len);
	le32 count;

	must(key->len >= 1 && key->len <= KV_KEY_BYTES_MAX);
	must(out->used_bytes <= out->bytes);
	if (record > out->bytes - out->used_bytes)
		return false;
	memcpy(at, &len, 2);
	memcpy(at + 2, key->byte, key->len);
	out->used_bytes += record;
	count = le32_of(++out->count);
	memcpy(out->at, &count, 4);
	return true;
}

int nv_kv_list_open(struct nv_kv_list_in *in, const void *buffer, uint32_t bytes)
{
	le32 count;

	if (bytes < NV_KV_LIST_HEADER_BYTES)
		return -EPROTO;
	memcpy(&count, buffer, 4);
	*in = (struct nv_kv_list_in){
		.at = buffer,
		.bytes = bytes,
		.used_bytes = NV_KV_LIST_HEADER_BYTES,
		.left = le32_get(count),
	};
	/* Each record is at least 4 bytes, so a count that can't fit is known at once. */
	return in->left > (bytes - NV_KV_LIST_HEADER_BYTES) / 4 ? -EPROTO : 0;
}

int nv_kv_list_next(struct nv_kv_list_in *in, struct kv_key *out)
{
	const uint8_t *at = in->at + in->used_bytes;
	uint32_t room = in->bytes - in->used_bytes;
	uint32_t len, record;

	must(in->used_bytes <= in->bytes);
	if (in->left == 0)
		return 0;
	if (room < 4)
		return -EPROTO;
	len = (uint32_t)at[0] | (uint32_t)at[1] << 8;
	if (len < 1 || len > KV_KEY_BYTES_MAX || 2 + len > room)
		return -EPROTO;
	*out = (struct kv_key){.len = (uint8_t)len};
	memcpy(out->byte, at + 2, len);
	record = (uint32_t)bytes_round_up(2 + len, 4);
	in->used_bytes += record < room ? record : room;
	in->left--;
	return 1;
}
