/* SPDX-License-Identifier: Apache-2.0 */
/* An operation as a command, and an answer as a result: host/kv.c. */
#include "kt.h"

#include <errno.h>

#include "host/impl.h"

static const struct host_ns ns = {.nsid = 3, .value_bytes_max = 1000, .key_bytes_max = 16};

static struct wire_req built(const struct host_op *op, int want)
{
	struct wire_req req;

	kt_noise(&req, sizeof(req));
	expect_int(kv_request_build(&ns, op, &req), want);
	return req;
}

TEST(a_store_carries_key_size_and_condition)
{
	char value[5] = "value";
	struct iovec iov = {value, 5};
	struct host_op op = {.kind = HOST_STORE, .key = {.len = 9, .byte = "abcdefghi"},
			     .if_absent = true, .iov = &iov, .iov_count = 1, .bytes = 5};
	struct wire_req req = built(&op, 0);
	const struct nv_kv_sqe *sqe = (const void *)&req.sqe;

	expect_int(sqe->opcode, NV_KV_STORE);
	expect_int(le32_get(sqe->nsid), 3);
	expect_mem(sqe->key_lo, "abcdefgh", 8);
	expect_mem(sqe->key_hi, "i\0\0\0\0\0\0\0", 8);
	expect_int(sqe->key_len, 9);
	expect_int(le32_get(sqe->size_bytes), 5);
	expect_int(sqe->options, NV_KV_STORE_IF_ABSENT);
	expect(req.out == &iov && req.out_count == 1 && req.out_bytes == 5);
	expect(req.in == NULL && req.in_bytes == 0);
	expect(bytes_all_zero(sqe->ignored48, 8));
}

TEST(a_store_of_nothing_moves_nothing)
{
	struct iovec iov = {NULL, 0};
	struct host_op op = {.kind = HOST_STORE, .key = {.len = 1, .byte = "a"}, .iov = &iov,
			     .iov_count = 1};
	struct wire_req req = built(&op, 0);

	expect_int(req.out_bytes, 0);
	expect_int(req.out_count, 0);
}

TEST(a_retrieve_never_asks_for_more_than_a_value_can_have)
{
	static char room[4000];
	struct iovec iov = {room, sizeof(room)};
	struct host_op op = {.kind = HOST_RETRIEVE, .key = {.len = 1, .byte = "a"}, .iov = &iov,
			     .iov_count = 1, .bytes = sizeof(room)};
	struct wire_req req = built(&op, 0);

	expect_int(req.in_bytes, 1000);
	expect_int(le32_get(((const struct nv_kv_sqe *)(const void *)&req.sqe)->size_bytes), 1000);
}

TEST(values_and_keys_beyond_the_namespace_are_refused_here)
{
	struct host_op op = {.kind = HOST_STORE, .key = {.len = 1}, .bytes = 1001};
	struct host_ns eight = ns;
	struct wire_req req;

	built(&op, -EINVAL);
	op.bytes = 1000;
	built(&op, 0);
	eight.key_bytes_max = 8;
	op.key.len = 9;
	expect_int(kv_request_build(&eight, &op, &req), -EINVAL);
}

static int answer(struct host_op *op, nv_status status, uint32_t dw0, uint32_t room, uint32_t got)
{
	struct wire_req req = {.in_bytes = room, .in_bytes_got = got};

	req.cqe = nv_cqe_of(1, status);
	req.cqe.dw0 = le32_of(dw0);
	return kv_answer_read(op, &req, false);
}

TEST(the_stored_length_may_exceed_what_fitted)
{
	struct host_op op = {.kind = HOST_RETRIEVE};

	expect_int(answer(&op, NV_OK, 8192, 1000, 1000), 0);
	expect_int(op.value_bytes, 8192);
	expect_int(op.moved_bytes, 1000);
	expect_int(answer(&op, NV_OK, 10, 1000, 10), 0);
	expect_int(op.value_bytes, 10);
	expect_int(answer(&op, NV_OK, 0, 1000, 0), 0);
	expect_int(op.value_bytes, 0);
}

TEST(a_length_that_disagrees_with_the_bytes_that_came_is_a_protocol_error)
{
	struct host_op op = {.kind = HOST_RETRIEVE};

	expect_int(answer(&op, NV_OK, 0, 1000, 10), -EPROTO);
	expect_int(answer(&op, NV_OK, 10, 1000, 0), -EPROTO);
	expect_int(answer(&op, NV_OK, 2000, 1000, 999), -EPROTO);
	expect_int(answer(&op, NV_OK, UINT32_MAX, 1000, 10), -EPROTO);
}

TEST(each_status_becomes_its_errno)
{
	static const struct {
		nv_status status;
		int res;
	} row[] = {
		{NV_STATUS(KV_KEY_NOT_FOUND), -ENOENT}, {NV_STATUS(KV_KEY_EXISTS), -EEXIST},
		{NV_STATUS(CAPACITY_EXCEEDED), -ENOSPC}, {NV_STATUS(KV_UNRECOVERED), -EBADMSG},
		{NV_STATUS(INTERNAL_ERROR), -EIO}, {NV_STATUS(KV_BAD_KEY_SIZE), -EINVAL},
	};
	struct host_op op = {.kind = HOST_RETRIEVE};

	for (size_t i = 0; i < ARRAY_COUNT(row); i++) {
		expect_int(answer(&op, row[i].status, 0, 10, 0), row[i].res);
		expect(nv_status_is(op.status, row[i].status));
	}
}

TEST(the_doing_of_an_earlier_sending_counts_as_success)
{
	struct host_op op = {.kind = HOST_STORE, .if_absent = true, .repeat_ok = true};
	struct wire_req req = {.cqe = nv_cqe_of(1, NV_KV_KEY_EXISTS)};

	expect_int(kv_answer_read(&op, &req, true), 0);
	expect_int(kv_answer_read(&op, &req, false), -EEXIST);
	op = (struct host_op){.kind = HOST_DELETE, .repeat_ok = true};
	req.cqe = nv_cqe_of(1, NV_KV_KEY_NOT_FOUND);
	expect_int(kv_answer_read(&op, &req, true), 0);
	op.repeat_ok = false;
	expect_int(kv_answer_read(&op, &req, true), -ENOENT);
}
