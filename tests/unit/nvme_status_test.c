/* SPDX-License-Identifier: Apache-2.0 */
#include "kt.h"

#include <errno.h>

#include "../vectors/nvme.h"
#include "base/must.h"
#include "nvme/sqe.h"

TEST(status_goes_out_as_the_document_has_it)
{
	for (unsigned i = 0; i < ARRAY_COUNT(vec_status); i++) {
		struct nv_cqe cqe = nv_cqe_of(0, (nv_status){vec_status[i].raw});

		expect_mem(cqe.status.b, vec_status[i].bytes, 2);
		expect(nv_status_is(nv_cqe_status(&cqe), (nv_status){vec_status[i].raw}));
	}
}

TEST(every_status_is_listed_once_with_a_name_and_a_text)
{
	static const uint16_t raw[] = {
#define STATUS(name, sct, sc, again, text) (sct) << 8 | (sc),
#include "tbl/status.def"
	};

	for (unsigned i = 0; i < ARRAY_COUNT(raw); i++) {
		expect(nv_status_name((nv_status){raw[i]})[0] != '?');
		expect(strlen(nv_status_text((nv_status){raw[i]})) > 3);
		for (unsigned j = 0; j < i; j++)
			expect(raw[i] != raw[j]);
	}
	expect_str(nv_status_name((nv_status){0x7ff}), "?");
	expect_str(nv_status_name(NV_KV_KEY_EXISTS), "KV_KEY_EXISTS");
}

TEST(the_errno_vocabulary_has_its_status)
{
	static const struct {
		int err;
		uint16_t raw;
	} rows[] = {
		{0, NV_RAW_OK}, {-ENOENT, NV_RAW_KV_KEY_NOT_FOUND},
		{-EEXIST, NV_RAW_KV_KEY_EXISTS}, {-ENOSPC, NV_RAW_CAPACITY_EXCEEDED},
		{-EBADMSG, NV_RAW_KV_UNRECOVERED}, {-EIO, NV_RAW_KV_UNRECOVERED},
		{-EINVAL, NV_RAW_INVALID_FIELD}, {-ETIMEDOUT, NV_RAW_INTERNAL_ERROR},
		{-ECANCELED, NV_RAW_ABORTED_BY_REQUEST}, {-EBUSY, NV_RAW_INTERRUPTED},
		{-ENOMEM, NV_RAW_INTERRUPTED}, {-ECONNRESET, NV_RAW_TRANSIENT_TRANSPORT},
		{-EPROTO, NV_RAW_TRANSIENT_TRANSPORT}, {-ESHUTDOWN, NV_RAW_NAMESPACE_NOT_READY},
		{-12345, NV_RAW_INTERNAL_ERROR},
	};

	for (unsigned i = 0; i < ARRAY_COUNT(rows); i++)
		expect_int(nv_status_from_errno(rows[i].err).raw, rows[i].raw);
}

TEST(a_caller_is_told_miss_exists_full_damaged_wrong_or_unreachable)
{
	expect_int(nv_status_to_errno(NV_OK), 0);
	expect_int(nv_status_to_errno(nv_status_with_dnr(NV_KV_KEY_NOT_FOUND)), -ENOENT);
	expect_int(nv_status_to_errno(NV_KV_KEY_EXISTS), -EEXIST);
	expect_int(nv_status_to_errno(NV_CAPACITY_EXCEEDED), -ENOSPC);
	expect_int(nv_status_to_errno(NV_KV_UNRECOVERED), -EBADMSG);
	expect_int(nv_status_to_errno(NV_INVALID_FIELD), -EINVAL);
	expect_int(nv_status_to_errno(NV_CONNECT_INVALID_HOST), -EINVAL);
	expect_int(nv_status_to_errno(NV_TRANSIENT_TRANSPORT), -ECONNRESET);
	expect_int(nv_status_to_errno(NV_PATH_HOST), -ECONNRESET);
	expect_int(nv_status_to_errno(NV_READ_UNRECOVERED), -EIO);
	expect_int(nv_status_to_errno((nv_status){0x0f0}), -EINVAL);
}
