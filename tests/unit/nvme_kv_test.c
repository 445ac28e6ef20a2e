/* SPDX-License-Identifier: Apache-2.0 */
#include "kt.h"

#include <errno.h>

#include "../vectors/nvme.h"
#include "base/must.h"
#include "base/prng.h"
#include "nvme/kv.h"
#include "nvme/nvm.h"

static const struct nv_kv_limits limits = {8 * MiB, 8 * MiB};

static struct nv_kv_sqe store_sqe(void)
{
	struct nv_kv_sqe sqe;

	memcpy(&sqe, vec_kv_store, sizeof(sqe));
	return sqe;
}

static nv_status parse(const struct nv_kv_sqe *sqe, struct nv_kv_cmd *cmd, struct bad *bad)
{
	kt_noise(cmd, sizeof(*cmd));
	kt_noise(bad, sizeof(*bad));
	return nv_kv_parse((const struct nv_sqe *)sqe, &limits, cmd, bad);
}

static void expect_refused(const struct nv_kv_sqe *sqe, nv_status status, size_t offset)
{
	struct nv_kv_cmd cmd;
	struct bad bad;

	expect_int(parse(sqe, &cmd, &bad).raw, status.raw);
	expect_int(bad.offset, offset);
	expect(strlen(bad.why) > 5);
}

TEST(a_store_is_read_as_the_document_has_it)
{
	struct nv_kv_sqe sqe = store_sqe();
	struct nv_kv_cmd cmd;
	struct bad bad;

	expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
	expect_int(cmd.opcode, NV_KV_STORE);
	expect_int(cmd.key.len, 16);
	for (int i = 0; i < 16; i++)
		expect_int(cmd.key.byte[i], 0x10 + i);
	expect_int(cmd.bytes, 4096);
	expect(cmd.if_absent && !cmd.if_present);
	expect_int(cmd.dir, NV_DATA_TO_CONTROLLER);
}

TEST(a_store_is_built_as_the_document_has_it)
{
	struct nv_kv_cmd cmd = {.opcode = NV_KV_STORE, .if_absent = true, .bytes = 4096,
				.key = {.len = 16}};
	struct nv_sqe sqe;

	for (uint8_t i = 0; i < 16; i++)
		cmd.key.byte[i] = 0x10 + i;
	sqe = nv_kv_build(1, &cmd);
	expect_mem(&sqe, vec_kv_store, 64);
}

TEST(the_store_of_mooncake_is_taken_as_it_comes)
{
	struct nv_kv_sqe sqe;
	struct nv_kv_cmd cmd;
	struct bad bad;

	memcpy(&sqe, vec_kv_store_mooncake, sizeof(sqe));
	expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
	expect_int(cmd.bytes, 270336);
	expect_int(cmd.key.byte[11], 0x01);
	expect_int(cmd.key.byte[10], 0xb2);
}

TEST(key_lengths_of_0_and_above_16_are_86h)
{
	static const uint8_t opcodes[] = {NV_KV_STORE, NV_KV_RETRIEVE, NV_KV_EXIST, NV_KV_DELETE};
	static const uint8_t wrong[] = {0, 17, 32, 255};
	struct nv_kv_sqe sqe = store_sqe();

	sqe.options = 0;
	for (unsigned i = 0; i < ARRAY_COUNT(opcodes); i++)
		for (unsigned j = 0; j < ARRAY_COUNT(wrong); j++) {
			sqe.opcode = opcodes[i];
			sqe.key_len = wrong[j];
			expect_refused(&sqe, NV_KV_BAD_KEY_SIZE, 44);
		}
	sqe.opcode = NV_KV_LIST;
	sqe.key_len = 17;
	expect_refused(&sqe, NV_KV_BAD_KEY_SIZE, 44);
}

TEST(list_without_a_key_starts_at_the_first)
{
	struct nv_kv_sqe sqe = store_sqe();
	struct nv_kv_cmd cmd;
	struct bad bad;

	sqe.opcode = NV_KV_LIST;
	sqe.key_len = 0;
	expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
	expect_int(cmd.key.len, 0);
	expect(bytes_all_zero(cmd.key.byte, 16));
	expect_int(cmd.dir, NV_DATA_TO_HOST);
	sqe.size_bytes = le32_of(3);
	expect_refused(&sqe, NV_KV_BAD_VALUE_SIZE, 40);
	sqe.size_bytes = le32_of(4);
	expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
}

TEST(bytes_past_the_key_are_ignored)
{
	struct nv_kv_sqe sqe = store_sqe();
	struct nv_kv_cmd cmd;
	struct bad bad;

	for (uint8_t len = 1; len <= 16; len++) {
		sqe.key_len = len;
		expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
		expect_int(cmd.key.byte[len - 1], 0x10 + len - 1);
		expect(bytes_all_zero(cmd.key.byte + len, 16u - len));
	}
}

TEST(store_above_the_value_limit_is_85h)
{
	struct nv_kv_sqe sqe = store_sqe();
	struct nv_kv_cmd cmd;
	struct bad bad;

	sqe.size_bytes = le32_of(limits.value_bytes_max);
	expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
	sqe.size_bytes = le32_of(limits.value_bytes_max + 1);
	expect_refused(&sqe, NV_KV_BAD_VALUE_SIZE, 40);
	sqe.size_bytes = le32_of(UINT32_MAX);
	expect_refused(&sqe, NV_KV_BAD_VALUE_SIZE, 40);
	sqe.opcode = NV_KV_RETRIEVE;
	expect_refused(&sqe, NV_INVALID_FIELD, 40);
}

TEST(values_and_buffers_of_0_bytes_move_nothing)
{
	struct nv_kv_sqe sqe = store_sqe();
	struct nv_kv_cmd cmd;
	struct bad bad;

	sqe.size_bytes = le32_of(0);
	expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
	expect_int(cmd.dir, NV_DATA_NONE);
	sqe.opcode = NV_KV_RETRIEVE;
	expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
	expect_int(cmd.dir, NV_DATA_NONE);
	sqe.opcode = NV_KV_EXIST;
	sqe.size_bytes = le32_of(77);
	expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
	expect_int(cmd.bytes, 0);
}

TEST(options_that_contradict_are_refused_and_compression_is_not)
{
	struct nv_kv_sqe sqe = store_sqe();
	struct nv_kv_cmd cmd;
	struct bad bad;

	sqe.options = 3;
	expect_refused(&sqe, NV_INVALID_FIELD, 45);
	sqe.options = 0x04;
	expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
	expect(!cmd.if_absent && !cmd.if_present);
	sqe.opcode = NV_KV_RETRIEVE;
	sqe.options = NV_KV_RETRIEVE_RAW;
	expect(nv_status_ok(parse(&sqe, &cmd, &bad)));
	expect(!cmd.if_absent && !cmd.if_present);
}

TEST(only_the_five_opcodes_are_kv_commands)
{
	struct nv_kv_sqe sqe = store_sqe();
	struct nv_kv_cmd cmd;
	struct bad bad;
	unsigned known = 0;

	for (unsigned opcode = 0; opcode < 256; opcode++) {
		nv_status s;

		sqe.opcode = (uint8_t)opcode;
		s = parse(&sqe, &cmd, &bad);
		known += nv_status_ok(s);
		if (!nv_status_ok(s))
			expect_int(s.raw, NV_RAW_INVALID_OPCODE);
	}
	expect_int(known, 5);
	sqe = store_sqe();
	sqe.flags |= 1;
	expect_refused(&sqe, NV_INVALID_FIELD, 1);
}

TEST(a_list_answer_is_laid_out_in_records_of_4)
{
	struct kv_key a = {.len = 1, .byte = "a"}, b = {.len = 6, .byte = {1, 2, 3, 4, 5, 6}};
	struct kv_key long_key = {.len = 3, .byte = "xyz"};
	uint8_t buffer[16];
	struct nv_kv_list_out out;

	kt_noise(buffer, sizeof(buffer));
	nv_kv_list_begin(&out, buffer, sizeof(buffer));
	expect(nv_kv_list_add(&out, &a));
	expect(nv_kv_list_add(&out, &b));
	expect(!nv_kv_list_add(&out, &long_key));
	expect_int(out.count, 2);
	expect_int(out.used_bytes, 16);
	expect_mem(buffer, vec_kv_list, 16);
}

TEST(a_list_answer_is_read_back_key_by_key)
{
	struct nv_kv_list_in in;
	struct kv_key key;

	expect_int(nv_kv_list_open(&in, vec_kv_list, 16), 0);
	kt_noise(&key, sizeof(key));
	expect_int(nv_kv_list_next(&in, &key), 1);
	expect_int(key.len, 1);
	expect_int(key.byte[0], 'a');
	expect(bytes_all_zero(key.byte + 1, 15));
	expect_int(nv_kv_list_next(&in, &key), 1);
	expect_int(key.len, 6);
	expect_int(nv_kv_list_next(&in, &key), 0);
}

TEST(a_list_answer_that_lies_is_a_protocol_error)
{
	uint8_t bytes[16];
	struct nv_kv_list_in in;
	struct kv_key key;

	memcpy(bytes, vec_kv_list, 16);
	expect_int(nv_kv_list_open(&in, bytes, 3), -EPROTO);
	bytes[0] = 4;
	expect_int(nv_kv_list_open(&in, bytes, 16), -EPROTO);
	bytes[0] = 3;
	expect_int(nv_kv_list_open(&in, bytes, 16), 0);
	expect_int(nv_kv_list_next(&in, &key), 1);
	expect_int(nv_kv_list_next(&in, &key), 1);
	expect_int(nv_kv_list_next(&in, &key), -EPROTO);
	memcpy(bytes, vec_kv_list, 16);
	bytes[4] = 17;
	expect_int(nv_kv_list_open(&in, bytes, 16), 0);
	expect_int(nv_kv_list_next(&in, &key), -EPROTO);
	bytes[4] = 0;
	expect_int(nv_kv_list_open(&in, bytes, 16), 0);
	expect_int(nv_kv_list_next(&in, &key), -EPROTO);
	memcpy(bytes, vec_kv_list, 16);
	bytes[8] = 7;
	expect_int(nv_kv_list_open(&in, bytes, 16), 0);
	expect_int(nv_kv_list_next(&in, &key), 1);
	expect_int(nv_kv_list_next(&in, &key), -EPROTO);
}

TEST(a_block_write_is_read_and_built_as_the_document_has_it)
{
	struct nv_nvm_limits of = {0x2000, 512, 1 * MiB};
	struct nv_nvm_cmd cmd;
	struct nv_sqe sqe;
	struct bad bad;

	memcpy(&sqe, vec_nvm_write, 64);
	kt_noise(&cmd, sizeof(cmd));
	expect(nv_status_ok(nv_nvm_parse(&sqe, &of, &cmd, &bad)));
	expect_int(cmd.first_block, 0x1122);
	expect_int(cmd.block_count, 8);
	expect_int(cmd.bytes, 4096);
	expect(cmd.force_unit_access);
	expect_int(cmd.dir, NV_DATA_TO_CONTROLLER);
	sqe = nv_nvm_build(2, &cmd);
	expect_mem(&sqe, vec_nvm_write, 64);
}

TEST(blocks_past_the_end_are_out_of_range_even_when_they_wrap)
{
	struct nv_nvm_limits of = {0x1129, 512, 1 * MiB};
	struct nv_nvm_cmd cmd;
	struct nv_sqe raw;
	struct nv_nvm_sqe *sqe = (struct nv_nvm_sqe *)&raw;
	struct bad bad;

	memcpy(&raw, vec_nvm_write, 64);
	expect_int(nv_nvm_parse(&raw, &of, &cmd, &bad).raw, NV_RAW_LBA_OUT_OF_RANGE);
	expect_int(bad.offset, 40);
	of.blocks++;
	expect(nv_status_ok(nv_nvm_parse(&raw, &of, &cmd, &bad)));
	sqe->slba = le64_of(UINT64_MAX);
	expect_int(nv_nvm_parse(&raw, &of, &cmd, &bad).raw, NV_RAW_LBA_OUT_OF_RANGE);
	of.transfer_bytes_max = 4095;
	sqe->slba = le64_of(0);
	expect_int(nv_nvm_parse(&raw, &of, &cmd, &bad).raw, NV_RAW_INVALID_FIELD);
	expect_int(bad.offset, 48);
	sqe->opcode = 0x19;
	expect_int(nv_nvm_parse(&raw, &of, &cmd, &bad).raw, NV_RAW_INVALID_OPCODE);
}
