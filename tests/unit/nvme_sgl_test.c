/* SPDX-License-Identifier: Apache-2.0 */
#include "kt.h"

#include "base/must.h"
#include "nvme/sqe.h"

static struct nv_sqe with_sgl(uint8_t kind, uint64_t offset, uint32_t bytes)
{
	struct nv_sqe sqe = nv_sqe_of(NV_NVM_WRITE, 1);

	sqe.sgl = (struct nv_sgl){.offset = le64_of(offset), .bytes = le32_of(bytes), .kind = kind};
	return sqe;
}

static nv_status check(const struct nv_sqe *sqe, struct nv_sgl_want want, struct nv_data *out)
{
	struct bad bad;
	nv_status s;

	kt_noise(out, sizeof(*out));
	kt_noise(&bad, sizeof(bad));
	s = nv_sgl_check(sqe, &want, out, &bad);
	if (!nv_status_ok(s)) {
		expect(bad.offset == 1 || (bad.offset >= 24 && bad.offset < 40));
		expect(strlen(bad.why) > 5);
	}
	return s;
}

static const struct nv_sgl_want write_4k = {NV_DATA_TO_CONTROLLER, 4096, 0};
static const struct nv_sgl_want inline_4k = {NV_DATA_TO_CONTROLLER, 4096, 4096};
static const struct nv_sgl_want read_4k = {NV_DATA_TO_HOST, 4096, 0};

TEST(transport_data_of_the_right_size_is_moved)
{
	struct nv_sqe sqe = with_sgl(NV_SGL_TRANSPORT, 0, 4096);
	struct nv_data out;

	expect(nv_status_ok(check(&sqe, write_4k, &out)));
	expect_int(out.place, NV_PLACE_TRANSPORT);
	expect_int(out.bytes, 4096);
	expect(nv_status_ok(check(&sqe, read_4k, &out)));
}

TEST(in_capsule_data_is_found_at_its_offset)
{
	struct nv_sqe sqe = with_sgl(NV_SGL_IN_CAPSULE, 0, 4096);
	struct nv_sgl_want want = inline_4k;
	struct nv_data out;

	expect(nv_status_ok(check(&sqe, want, &out)));
	expect_int(out.place, NV_PLACE_CAPSULE);
	expect_int(out.capsule_offset, 0);
	sqe = with_sgl(NV_SGL_IN_CAPSULE, 512, 4096);
	want.capsule_bytes = 4096 + 512;
	expect(nv_status_ok(check(&sqe, want, &out)));
	expect_int(out.capsule_offset, 512);
}

TEST(in_capsule_data_outside_the_capsule_is_16h_or_0fh)
{
	struct nv_sqe sqe = with_sgl(NV_SGL_IN_CAPSULE, 4097, 4096);
	struct nv_data out;

	expect_int(check(&sqe, inline_4k, &out).raw, NV_RAW_SGL_BAD_OFFSET);
	sqe = with_sgl(NV_SGL_IN_CAPSULE, UINT64_MAX, 4096);
	expect_int(check(&sqe, inline_4k, &out).raw, NV_RAW_SGL_BAD_OFFSET);
	sqe = with_sgl(NV_SGL_IN_CAPSULE, 1, 4096);
	expect_int(check(&sqe, inline_4k, &out).raw, NV_RAW_SGL_BAD_DATA_LENGTH);
}

TEST(a_length_that_the_command_does_not_move_is_0fh)
{
	static const uint32_t wrong[] = {0, 4095, 4097, UINT32_MAX};
	struct nv_data out;

	for (unsigned i = 0; i < ARRAY_COUNT(wrong); i++) {
		struct nv_sqe sqe = with_sgl(NV_SGL_TRANSPORT, 0, wrong[i]);

		expect_int(check(&sqe, write_4k, &out).raw, NV_RAW_SGL_BAD_DATA_LENGTH);
		expect_int(check(&sqe, read_4k, &out).raw, NV_RAW_SGL_BAD_DATA_LENGTH);
	}
}

TEST(every_other_descriptor_is_11h)
{
	struct nv_data out;

	for (unsigned kind = 0; kind < 256; kind++) {
		struct nv_sqe sqe = with_sgl((uint8_t)kind, 0, 4096);
		nv_status s = check(&sqe, inline_4k, &out);

		if (kind == NV_SGL_TRANSPORT || kind == NV_SGL_IN_CAPSULE)
			expect(nv_status_ok(s));
		else
			expect_int(s.raw, NV_RAW_SGL_BAD_TYPE);
	}
	struct nv_sqe read = with_sgl(NV_SGL_IN_CAPSULE, 0, 4096);
	struct nv_sgl_want want = {NV_DATA_TO_HOST, 4096, 4096};

	expect_int(check(&read, want, &out).raw, NV_RAW_SGL_BAD_TYPE);
}

TEST(prp_and_reserved_addressing_are_an_invalid_field)
{
	struct nv_sqe sqe = with_sgl(NV_SGL_TRANSPORT, 0, 4096);
	struct nv_data out;

	sqe.flags = 0x00;
	expect_int(check(&sqe, write_4k, &out).raw, NV_RAW_INVALID_FIELD);
	sqe.flags = 0xc0;
	expect_int(check(&sqe, write_4k, &out).raw, NV_RAW_INVALID_FIELD);
	sqe.flags = 0x80;
	expect(nv_status_ok(check(&sqe, write_4k, &out)));
}

TEST(a_command_without_data_is_not_refused_for_its_descriptor)
{
	struct nv_sqe sqe = with_sgl(NV_SGL_TRANSPORT, 0, 4096);
	struct nv_sgl_want none = {NV_DATA_NONE, 0, 0}, empty = {NV_DATA_TO_CONTROLLER, 0, 0};
	struct nv_data out;

	expect(nv_status_ok(check(&sqe, none, &out)));
	expect_int(out.place, NV_PLACE_NONE);
	sqe = with_sgl(NV_SGL_ADDRESS, 0, 0);
	expect(nv_status_ok(check(&sqe, empty, &out)));
	sqe = with_sgl(NV_SGL_TRANSPORT, 0, 0);
	expect(nv_status_ok(check(&sqe, empty, &out)));
	expect_int(out.place, NV_PLACE_NONE);
}

TEST(the_opcode_says_which_way_data_goes)
{
	struct nv_sqe sqe = nv_sqe_of(NV_KV_STORE, 1);

	expect_int(nv_sqe_dir(&sqe), NV_DATA_TO_CONTROLLER);
	sqe.opcode = NV_KV_LIST;
	expect_int(nv_sqe_dir(&sqe), NV_DATA_TO_HOST);
	sqe.opcode = NV_KV_EXIST;
	expect_int(nv_sqe_dir(&sqe), NV_DATA_NONE);
	sqe = nv_sqe_of(NV_OPCODE_FABRICS, 1);
	expect_int(nv_sqe_dir(&sqe), NV_DATA_TO_CONTROLLER);
	sqe = nv_sqe_of(NV_OPCODE_FABRICS, 4);
	expect_int(nv_sqe_dir(&sqe), NV_DATA_NONE);
}
