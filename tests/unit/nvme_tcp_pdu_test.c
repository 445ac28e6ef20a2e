/* SPDX-License-Identifier: Apache-2.0 */
/* Names of cases (T01, D03, I05, ...) are those of [ABUSE]. */
#include "kt.h"

#include "../vectors/nvme.h"
#include "base/must.h"
#include "nvme/tcp_pdu.h"

static const struct nv_pdu_rules ctrl_new = {.controller = true, .capsule_data_max = 8192};
static const struct nv_pdu_rules ctrl = {.controller = true, .connected = true,
					 .capsule_data_max = 8192};
static const struct nv_pdu_rules ctrl_digests = {.controller = true, .connected = true,
						 .header_digest = true, .data_digest = true,
						 .capsule_data_max = 8192};
static const struct nv_pdu_rules host_new = {0};
static const struct nv_pdu_rules host = {.connected = true};

#define SILENT 0xffff

struct row {
	const struct nv_pdu_rules *rules;
	uint8_t head[8];
	uint16_t fes;
	uint32_t fei;
};

static void expect_rows(const struct row *rows, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct nv_pdu_head head;
		struct nv_pdu_shape shape;
		struct nv_pdu_fault fault;

		memcpy(&head, rows[i].head, 8);
		kt_noise(&fault, sizeof(fault));
		if (nv_pdu_check(rows[i].rules, &head, &shape, &fault)) {
			fail_msg("row %zu was let through", i);
		} else if (rows[i].fes == SILENT) {
			expect(fault.silent);
		} else {
			expect(!fault.silent);
			if (fault.fes != rows[i].fes || fault.fei != rows[i].fei)
				fail_msg("row %zu: %u/%u: %s", i, fault.fes, fault.fei, fault.why);
		}
	}
}

TEST(types_that_do_not_exist_or_go_the_other_way_are_byte_0)
{
	static const struct row rows[] = {
		{&ctrl, {0x0a, 0, 0x18, 0, 0x18}, 1, 0},                /* T01 */
		{&ctrl, {0x01, 0, 0x80, 0, 0x80}, 1, 0},                /* T02 */
		{&ctrl, {0x03, 0, 0x18, 0, 0x18}, 1, 0},
		{&ctrl, {0x05, 0, 0x18, 0, 0x18}, 1, 0},
		{&ctrl, {0x07, 0, 0x18, 0, 0x18}, 1, 0},
		{&ctrl, {0x09, 0, 0x18, 0, 0x18}, 1, 0},
		{&ctrl, {0x08, 0, 0x18, 0, 0x18}, 1, 0},                /* T03 */
		{&ctrl, {0xff, 0xff, 0xff, 0xff, 0xff}, 1, 0},
		{&host, {0x04, 0, 0x48, 0, 0x48}, 1, 0},
		{&host, {0x00, 0, 0x80, 0, 0x80}, 1, 0},
	};

	expect_rows(rows, ARRAY_COUNT(rows));
}

TEST(before_icreq_only_icreq_is_taken)
{
	static const struct row rows[] = {
		{&ctrl_new, {0x00, 0, 0x7f, 0, 0x80}, 1, 2},            /* T04 */
		{&ctrl_new, {0x00, 0, 0x00, 0, 0x80}, 1, 2},
		{&ctrl_new, {0x00, 0, 0xff, 0, 0x80}, 1, 2},
		{&ctrl_new, {0x00, 1, 0x80, 0, 0x80}, 1, 1},
		{&ctrl_new, {0x00, 0, 0x80, 4, 0x80}, 1, 3},
		{&ctrl_new, {0x00, 0, 0x80, 0, 0x7f}, 1, 4},            /* T05 */
		{&ctrl_new, {0x00, 0, 0x80, 0, 0x81}, 1, 4},
		{&ctrl_new, {0x00, 0, 0x80, 0, 0x00}, 1, 4},
		{&ctrl_new, {0x00, 0, 0x80, 0, 0xff, 0xff, 0xff, 0xff}, 1, 4},
		{&ctrl_new, {0x04, 0, 0x48, 0x48, 0x48, 0x04}, 2, 0},   /* T12 */
		{&ctrl_new, {0x06, 4, 0x18, 0x18, 0x1c}, 2, 0},
		{&ctrl_new, {0x02, 0, 0x18, 0, 0x18}, SILENT, 0},       /* T33 */
		{&ctrl_new, {'G', 'E', 'T', ' ', '/', ' ', 'H', 'T'}, SILENT, 0},       /* T41 */
		{&ctrl_new, {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01}, SILENT, 0},
		{&ctrl_new, {'S', 'S', 'H', '-', '2', '.', '0', '-'}, SILENT, 0},
		{&host_new, {0x05, 0, 0x18, 0, 0x18}, 2, 0},
		{&host_new, {'H', 'T', 'T', 'P', '/', '1', '.', '1'}, SILENT, 0},
	};

	expect_rows(rows, ARRAY_COUNT(rows));
}

TEST(after_icreq_another_one_is_a_sequence_error)
{
	static const struct row rows[] = {
		{&ctrl, {0x00, 0, 0x80, 0, 0x80}, 2, 0},                /* T11 */
		{&ctrl_digests, {0x00, 0, 0x80, 0, 0x80}, 2, 0},
		{&host, {0x01, 0, 0x80, 0, 0x80}, 2, 0},
	};

	expect_rows(rows, ARRAY_COUNT(rows));
}

TEST(header_fields_are_blamed_from_the_lowest_byte_up)
{
	static const struct row rows[] = {
		{&ctrl, {0x04, 0, 0x47, 0x48, 0x48, 0x04}, 1, 2},       /* T17 */
		{&ctrl, {0x04, 0, 0x00, 0x48, 0x48, 0x04}, 1, 2},
		{&ctrl, {0x04, 0, 0xff, 0x48, 0x48, 0x04}, 1, 2},
		{&ctrl, {0x04, 0, 0x48, 0x48, 0x00}, 1, 4},             /* T18 */
		{&ctrl, {0x04, 0, 0x48, 0x00, 0x08}, 1, 4},
		{&ctrl, {0x04, 0, 0x48, 0x48, 0x47}, 1, 4},
		{&ctrl, {0x04, 0, 0x48, 0x48, 0xff, 0xff, 0xff, 0xff}, 5, 0},   /* T19 */
		{&ctrl, {0x04, 0, 0x48, 0x48, 0xff, 0xff, 0xff, 0x7f}, 5, 0},
		{&ctrl, {0x04, 0, 0x48, 0x00, 0x48, 0x10}, 1, 3},       /* T20 */
		{&ctrl, {0x04, 0, 0x48, 0x04, 0x48, 0x10}, 1, 3},       /* T21 */
		{&ctrl, {0x04, 0, 0x48, 0x47, 0x48, 0x10}, 1, 3},
		{&ctrl, {0x04, 0, 0x48, 0x49, 0x48, 0x10}, 1, 3},
		{&ctrl, {0x04, 0, 0x48, 0x99, 0x48, 0x10}, 1, 3},
		{&ctrl, {0x04, 0, 0x48, 0xc8, 0x48, 0x10}, 1, 3},
		{&ctrl, {0x04, 0, 0x48, 0xff, 0x48, 0x10}, 1, 3},
		{&ctrl, {0x04, 0, 0x48, 0x60, 0x50}, 1, 3},
		{&ctrl, {0x04, 1, 0x48, 0x48, 0x48, 0x10}, 1, 1},       /* T23 */
		{&ctrl, {0x04, 2, 0x48, 0x48, 0x48, 0x10}, 1, 1},
		{&ctrl_digests, {0x04, 0, 0x48, 0x48, 0x48, 0x10}, 1, 1},
		{&ctrl_digests, {0x04, 3, 0x48, 0x00, 0x4c}, 1, 1},     /* T24 */
		{&ctrl_digests, {0x04, 3, 0x48, 0x4c, 0x50}, 1, 4},
		{&ctrl, {0x04, 4, 0x48, 0x48, 0x48, 0x10}, 1, 1},       /* T26 */
		{&ctrl, {0x04, 8, 0x48, 0x48, 0x48, 0x10}, 1, 1},
		{&ctrl, {0x06, 0x0c, 0x18, 0x18, 0x1c}, 1, 1},          /* D16 */
		{&ctrl, {0x06, 4, 0x18, 0x00, 0x18}, 1, 4},
		{&ctrl, {0x06, 4, 0x18, 0x18, 0x18}, 1, 4},
		{&host, {0x07, 8, 0x18, 0x18, 0x1c}, 1, 1},             /* SUCCESS without LAST */
		{&host, {0x07, 4, 0xff, 0x18, 0x1c}, 1, 2},             /* I05 */
		{&host, {0x05, 0, 0x18, 0x18, 0x18}, 1, 3},
		{&host, {0x05, 0, 0x18, 0x00, 0x1c}, 1, 4},
		{&host, {0x09, 0, 0x18, 0x00, 0x17}, 1, 4},
		{&ctrl, {0x04, 0xff, 0xff, 0xff, 0xff}, 1, 1},
	};

	expect_rows(rows, ARRAY_COUNT(rows));
}

TEST(in_capsule_data_is_taken_up_to_the_limit)
{
	struct nv_pdu_head head = {0x04, 0, 72, 72, le32_of(72 + 8192)};
	struct nv_pdu_shape shape;
	struct nv_pdu_fault fault;

	kt_noise(&shape, sizeof(shape));
	expect(nv_pdu_check(&ctrl, &head, &shape, &fault));
	expect_int(shape.data_bytes, 8192);
	head.plen = le32_of(72 + 8196);                                 /* T40 */
	expect(!nv_pdu_check(&ctrl, &head, &shape, &fault));
	expect_int(fault.fes, NV_FES_LIMIT_EXCEEDED);
}

TEST(a_termreq_is_read_in_its_bounds_and_else_not_answered)
{
	static const struct row rows[] = {
		{&ctrl, {0x02, 0, 0x18, 0, 8}, SILENT, 0},              /* T33 */
		{&ctrl, {0x02, 0, 0x18, 0, 23}, SILENT, 0},
		{&ctrl, {0x02, 0, 0x18, 0, 153}, SILENT, 0},
		{&ctrl, {0x02, 0, 0x18, 0, 0xe8, 3}, SILENT, 0},
		{&host, {0x03, 0, 0x18, 0, 23}, SILENT, 0},
	};
	struct nv_pdu_head head = {0x02, 0, 24, 0, le32_of(152)};
	struct nv_pdu_shape shape;
	struct nv_pdu_fault fault;

	expect_rows(rows, ARRAY_COUNT(rows));
	expect(nv_pdu_check(&ctrl_digests, &head, &shape, &fault));
	expect_int(shape.data_bytes, 128);
	head.type = 0x03;
	expect(nv_pdu_check(&host_new, &head, &shape, &fault));
}

TEST(icreq_is_built_and_read_as_the_document_has_it)
{
	struct nv_pdu_icreq pdu = nv_icreq_build(0, 0, 1);
	struct nv_pdu_fault fault;

	expect_mem(&pdu, vec_icreq, 128);
	expect(nv_icreq_check(&pdu, &fault));
	pdu.pfv = le16_of(1);                                           /* T07 */
	expect(!nv_icreq_check(&pdu, &fault));
	expect_int(fault.fei, 8);
	pdu = nv_icreq_build(31, 3, 4);
	expect(nv_icreq_check(&pdu, &fault));
	pdu.hpda = 32;                                                  /* T08 */
	expect(!nv_icreq_check(&pdu, &fault));
	expect_int(fault.fei, 10);
}

TEST(icresp_is_built_and_read_as_the_document_has_it)
{
	static const uint32_t wrong[] = {0, 4095, 4097, 4098};          /* I01 */
	struct nv_pdu_icresp pdu = nv_icresp_build(0, 3, 131072);
	struct nv_pdu_fault fault;

	expect_mem(&pdu, vec_icresp, 128);
	expect(nv_icresp_check(&pdu, 3, &fault));
	expect(!nv_icresp_check(&pdu, 1, &fault));
	expect_int(fault.fei, 11);
	for (unsigned i = 0; i < ARRAY_COUNT(wrong); i++) {
		pdu.maxh2cdata = le32_of(wrong[i]);
		expect(!nv_icresp_check(&pdu, 3, &fault));
		expect_int(fault.fei, 12);
	}
	pdu.maxh2cdata = le32_of(4096);
	pdu.cpda = 32;
	expect(!nv_icresp_check(&pdu, 3, &fault));
	expect_int(fault.fei, 10);
	pdu.cpda = 31;
	pdu.pfv = le16_of(256);
	expect(!nv_icresp_check(&pdu, 3, &fault));
	expect_int(fault.fei, 8);
}

TEST(capsules_data_and_r2t_are_built_as_the_document_has_them)
{
	struct nv_pdu_sizes plain = {0}, digests = {true, true, 0}, header = {true, false, 0};
	struct nv_pdu_sizes padded = {false, false, 15};
	struct nv_cqe cqe = nv_cqe_of(5, NV_OK);
	struct nv_data_span span = {.cid = 5, .ttag = 9, .offset = 4096, .bytes = 4096,
				    .last = true};
	struct nv_data_span first = {.cid = 5, .bytes = 512}, ask = {5, 9, 65536, 131072, false};
	struct nv_pdu_data data = nv_h2c_data_build(&digests, &span);
	struct nv_pdu_r2t r2t = nv_r2t_build(&header, &ask);
	struct nv_pdu_cmd cmd;
	struct nv_pdu_resp resp;
	struct nv_sqe sqe;

	memcpy(&sqe, vec_connect + 8, 64);
	cmd = nv_cmd_build(&plain, &sqe, 1024);
	expect_mem(&cmd, vec_connect, 72);
	expect_mem(&data, vec_h2c_data, 24);
	expect_int(nv_pdu_pad_bytes(&data.head), 0);
	data = nv_c2h_data_build(&padded, &first);
	expect_mem(&data, vec_c2h_data_padded, 24);
	expect_int(nv_pdu_pad_bytes(&data.head), 40);
	expect_mem(&r2t, vec_r2t, 24);
	cqe.dw0 = le32_of(8192);
	cqe.sqhd = le16_of(3);
	resp = nv_resp_build(&plain, &cqe);
	expect_mem(&resp, vec_resp, 24);
}

TEST(what_is_built_passes_the_check_of_the_other_end)
{
	for (unsigned bits = 0; bits < 4; bits++)
		for (uint8_t align = 0; align <= 31; align++) {
			struct nv_pdu_sizes sizes = {bits & 1, bits & 2, align};
			struct nv_pdu_rules to_ctrl = {true, true, bits & 1, bits & 2, align, 8192};
			struct nv_pdu_rules to_host = {false, true, bits & 1, bits & 2, align, 0};
			struct nv_data_span span = {.cid = 1, .bytes = 513, .last = true};
			struct nv_sqe sqe = nv_sqe_of(1, 1);
			struct nv_pdu_cmd cmd = nv_cmd_build(&sizes, &sqe, 513);
			struct nv_pdu_cmd bare = nv_cmd_build(&sizes, &sqe, 0);
			struct nv_pdu_data data = nv_c2h_data_build(&sizes, &span);
			struct nv_pdu_shape shape;
			struct nv_pdu_fault fault;

			expect(nv_pdu_check(&to_ctrl, &cmd.head, &shape, &fault));
			expect_int(shape.data_bytes, 513);
			expect_int(shape.pad_bytes, nv_pdu_pad_bytes(&cmd.head));
			expect(nv_pdu_check(&to_ctrl, &bare.head, &shape, &fault));
			expect_int(shape.data_bytes + shape.pad_bytes, 0);
			expect(nv_pdu_check(&to_host, &data.head, &shape, &fault));
			expect_int(shape.data_bytes, 513);
			expect_int(shape.data_digest_bytes, bits & 2 ? 4 : 0);
			expect_int((shape.header_bytes + shape.header_digest_bytes +
				    shape.pad_bytes) % (4 * (align + 1)), 0);
		}
}

struct data_row {
	struct nv_data_span span;
	int32_t plen_more;             /* added to the length of data that PLEN leaves */
	uint16_t fes;                  /* 0: let through */
	uint32_t fei;
};

static void expect_h2c_rows(const struct nv_transfer *grant, const struct data_row *rows, size_t n)
{
	struct nv_pdu_sizes plain = {0};

	for (size_t i = 0; i < n; i++) {
		struct nv_pdu_data pdu = nv_h2c_data_build(&plain, &rows[i].span);
		struct nv_pdu_shape shape = {.type = NV_PDU_H2C_DATA, .flags = pdu.head.flags,
					     .data_bytes = rows[i].span.bytes +
							   (uint32_t)rows[i].plen_more};
		struct nv_pdu_fault fault = {0};
		const struct nv_transfer *found = rows[i].span.ttag == grant->ttag ? grant : NULL;
		bool ok = nv_h2c_data_check(&pdu, &shape, found, &fault);

		if (ok != (rows[i].fes == 0) || fault.fes != rows[i].fes ||
		    fault.fei != rows[i].fei)
			fail_msg("row %zu: %u/%u %s", i, fault.fes, fault.fei,
				 ok ? "let through" : fault.why);
	}
}

TEST(h2c_data_is_taken_only_as_the_r2t_asked)
{
	static const struct nv_transfer grant = {.cid = 5, .ttag = 9, .start = 65536,
						 .next = 65536 + 8192, .end = 131072,
						 .pdu_data_max = 16384};
	static const struct data_row rows[] = {
		{{5, 9, 73728, 8192, false}, 0, 0, 0},
		{{5, 0, 73728, 8192, false}, 0, 1, 10},         /* D01 */
		{{5, 10, 73728, 8192, false}, 0, 1, 10},
		{{5, 0xffff, 73728, 8192, false}, 0, 1, 10},
		{{6, 9, 73728, 8192, false}, 0, 1, 8},          /* D02 */
		{{5, 9, 131072, 8192, false}, 0, 4, 0},         /* D03 */
		{{5, 9, 65532, 4, false}, 0, 4, 0},
		{{5, 9, 73728, 65536, false}, 0, 4, 0},         /* D05 */
		{{5, 9, 73728, 16388, false}, 0, 5, 0},
		{{5, 9, 0xfffffffc, 0xffff, false}, 0, 4, 0},
		{{5, 9, 69632, 4096, false}, 0, 2, 0},          /* D07 */
		{{5, 9, 77824, 4096, false}, 0, 2, 0},
		{{5, 9, 73728, 8192, false}, 4, 1, 16},         /* D09 */
		{{5, 9, 73728, 8192, false}, -4, 1, 16},
		{{5, 9, 73728, 8192, true}, 0, 2, 0},           /* D10 */
	};
	static const struct nv_transfer nearly = {.cid = 5, .ttag = 9, .next = 122880,
						  .end = 131072};
	static const struct data_row last[] = {
		{{5, 9, 122880, 8192, true}, 0, 0, 0},
		{{5, 9, 122880, 8192, false}, 0, 2, 0},         /* D10 */
	};

	expect_h2c_rows(&grant, rows, ARRAY_COUNT(rows));
	expect_h2c_rows(&nearly, last, ARRAY_COUNT(last));
}

TEST(c2h_data_lands_only_inside_the_buffer_and_in_order)
{
	static const struct data_row rows[] = {
		{{5, 0, 4096, 4096, false}, 0, 0, 0},
		{{5, 0, 4096, 4096, true}, 0, 0, 0},            /* short: fine */
		{{5, 0, 8192, 1, false}, 0, 4, 0},              /* I05 */
		{{5, 0, 4096, 4097, false}, 0, 4, 0},
		{{5, 0, 0, 4096, false}, 0, 2, 0},
		{{5, 0, 4100, 4, false}, 0, 2, 0},
		{{5, 0, 4096, 4096, false}, -1, 1, 16},
		{{6, 0, 4096, 4096, false}, 0, 1, 8},           /* I04 */
	};
	struct nv_transfer read = {.cid = 5, .next = 4096, .end = 8192};
	struct nv_pdu_sizes plain = {0};

	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		struct nv_pdu_data pdu = nv_c2h_data_build(&plain, &rows[i].span);
		struct nv_pdu_shape shape = {.flags = pdu.head.flags,
					     .data_bytes = rows[i].span.bytes +
							   (uint32_t)rows[i].plen_more};
		struct nv_pdu_fault fault = {0};
		bool ok = nv_c2h_data_check(&pdu, &shape, rows[i].span.cid == 5 ? &read : NULL,
					    &fault);

		if (ok != (rows[i].fes == 0) || fault.fes != rows[i].fes ||
		    fault.fei != rows[i].fei)
			fail_msg("row %zu: %u/%u", i, fault.fes, fault.fei);
	}
	read.next = read.end;
	struct nv_pdu_data pdu = nv_c2h_data_build(&plain, &rows[0].span);
	struct nv_pdu_shape shape = {.data_bytes = 4096};
	struct nv_pdu_fault fault;

	expect(!nv_c2h_data_check(&pdu, &shape, &read, &fault));
	expect_int(fault.fes, NV_FES_OUT_OF_RANGE);
}

TEST(r2t_is_served_only_for_data_that_was_offered)
{
	static const struct {
		struct nv_data_span span;
		bool busy;
		uint16_t fes;
		uint32_t fei;
	} rows[] = {
		{{5, 9, 4096, 4096, false}, false, 0, 0},
		{{5, 9, 4096, 4096, false}, true, 2, 0},        /* I02 */
		{{6, 9, 4096, 4096, false}, false, 1, 8},
		{{5, 9, 0, 4096, false}, false, 2, 0},
		{{5, 9, 4100, 4, false}, false, 2, 0},
		{{5, 9, 8192, 4, false}, false, 4, 0},
		{{5, 9, 4096, 4097, false}, false, 4, 0},
		{{5, 9, 4096, 0xffffffff, false}, false, 4, 0},
	};
	struct nv_transfer write = {.cid = 5, .next = 4096, .end = 8192};
	struct nv_pdu_sizes plain = {0};
	struct nv_pdu_r2t pdu;
	struct nv_pdu_fault fault;

	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		bool ok;

		pdu = nv_r2t_build(&plain, &rows[i].span);
		fault = (struct nv_pdu_fault){0};
		ok = nv_r2t_check(&pdu, rows[i].span.cid == 5 ? &write : NULL, rows[i].busy,
				  &fault);
		if (ok != (rows[i].fes == 0) || fault.fes != rows[i].fes ||
		    fault.fei != rows[i].fei)
			fail_msg("row %zu: %u/%u", i, fault.fes, fault.fei);
	}
	pdu = nv_r2t_build(&plain, &rows[0].span);
	pdu.r2tl = le32_of(0);
	expect(!nv_r2t_check(&pdu, &write, false, &fault));
	expect_int(fault.fei, 16);
}

TEST(a_termreq_carries_the_first_bytes_of_what_was_wrong)
{
	static const uint8_t wrong[8] = {0x04, 0, 0x47, 0x48, 0x48, 0x04};
	struct nv_pdu_fault fault = {NV_FES_INVALID_HEADER, 2, false, "x"};
	struct nv_wrong all = {wrong, 8};
	uint8_t out[NV_PDU_TERMREQ_MAX], big[500];

	kt_noise(out, sizeof(out));
	expect_int(nv_termreq_build(NV_PDU_C2H_TERMREQ, &fault, &all, out), 32);
	expect_mem(out, vec_termreq, 32);
	kt_noise(big, sizeof(big));
	all = (struct nv_wrong){big, sizeof(big)};
	expect_int(nv_termreq_build(NV_PDU_H2C_TERMREQ, &fault, &all, out), 152);
	expect_int(out[4], 152);
	expect_mem(out + 24, big, 128);
	expect_str(nv_pdu_name(NV_PDU_R2T), "R2T");
	expect_str(nv_pdu_name(8), "?");
	expect_str(nv_pdu_name(255), "?");
}
