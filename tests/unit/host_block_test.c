/* SPDX-License-Identifier: Apache-2.0 */
/* The initiator's block operations against a target with a block namespace, in the simulator. */
#include "block_fixture.h"

#include <errno.h>

#include "host/host.h"

struct end {
	struct fix f;
	struct blocks b;
	struct host *host;
	bool closed;
};

struct op {
	struct host_op op;
	struct iovec iov;
	bool over;
	int res;
};

static void op_over(struct host_op *op, int res)
{
	struct op *o = container_of(op, struct op, op);

	must(!o->over);
	o->over = true;
	o->res = res;
}

static void op_released(struct host_op *op)
{
}

static bool is_settled(void *arg)
{
	struct end *e = arg;

	return host_state(e->host) == HOST_LIVE || host_state(e->host) == HOST_DOWN;
}

static void end_open(struct end *e, const struct blocks_opts *o, uint32_t nsid, bool block)
{
	struct host_opts opts = {.addr = {.host = "array"}, .subnqn = SUBNQN, .hostnqn = HOST_A,
		.block = block, .nsid = nsid, .once = true};
	char why[256];

	*e = (struct end){0};
	fix_open(&e->f, NULL, 0);
	blocks_open(&e->f, &e->b, o);
	opts.addr.port = e->f.port;
	expect_int(host_open(e->f.loop, &opts, NULL, NULL, why, &e->host), 0);
	expect(sim_run_until(is_settled, e, PATIENCE_NS));
}

static void end_close(struct end *e)
{
	host_close(&e->host, set_flag, &e->closed);
	expect(sim_run_until(flag_is_set, &e->closed, PATIENCE_NS));
	settle(&e->f);
	blocks_close(&e->f, &e->b);
	fix_close(&e->f);
}

static int run(struct end *e, struct op *o, enum host_op_kind kind, uint64_t offset, uint64_t range,
	       void *data)
{
	bool fua = o->op.fua;

	*o = (struct op){.iov = {data, range}};
	o->op = (struct host_op){.kind = kind, .offset_bytes = offset, .range_bytes = range,
		.fua = fua, .done = op_over, .released = op_released,
		.deadline_ns = sim_now_ns() + 5 * NS_PER_S};
	if (data != NULL) {
		o->op.iov = &o->iov;
		o->op.iov_count = 1;
		o->op.bytes = (uint32_t)range;
	}
	host_submit(e->host, &o->op);
	expect(sim_run_until(flag_is_set, &o->over, PATIENCE_NS));
	return o->res;
}

static const struct blocks_opts usual = {64 * MiB, 128 * MiB, 4096, false};

TEST(a_host_finds_the_namespace_of_the_kind_it_wants)
{
	struct end e;

	end_open(&e, &usual, 0, true);
	expect_int(host_state(e.host), HOST_LIVE);
	expect_int(host_ns(e.host)->nsid, BLOCK_NSID);
	expect_int(host_ns(e.host)->block_bytes, 4096);
	expect_int(host_ns(e.host)->capacity_bytes, 64 * MiB);
	end_close(&e);
	end_open(&e, &usual, 0, false);
	expect_int(host_ns(e.host)->nsid, 1);
	expect_int(host_ns(e.host)->block_bytes, 0);
	end_close(&e);
	end_open(&e, &usual, BLOCK_NSID, false);
	expect_int(host_state(e.host), HOST_DOWN);
	expect(strstr(host_last_error(e.host), "no KV namespace") != NULL);
	end_close(&e);
	end_open(&e, &usual, 1, true);
	expect_int(host_state(e.host), HOST_DOWN);
	expect(strstr(host_last_error(e.host), "no block namespace") != NULL);
	end_close(&e);
}

TEST(blocks_are_written_read_compared_and_zeroed)
{
	uint8_t *out = malloc(MiB), *in = malloc(MiB);
	struct op o = {0};
	struct end e;

	end_open(&e, &usual, 0, true);
	fill(out, MiB, 5);
	expect_int(run(&e, &o, HOST_WRITE, 40960, MiB, out), 0);
	expect_int(run(&e, &o, HOST_READ, 40960, MiB, in), 0);
	expect_int(o.op.moved_bytes, MiB);
	expect_mem(in, out, MiB);
	expect_int(run(&e, &o, HOST_COMPARE, 40960, MiB, out), 0);
	in[77] ^= 1;
	expect_int(run(&e, &o, HOST_COMPARE, 40960, MiB, in), -EBADMSG);
	expect_int(run(&e, &o, HOST_FLUSH, 0, 0, NULL), 0);
	expect_int(run(&e, &o, HOST_ZERO, 45056, 8192, NULL), 0);
	memset(out + 4096, 0, 8192);
	expect_int(run(&e, &o, HOST_DEALLOCATE, 512 * KiB, 256 * KiB, NULL), 0);
	memset(out + 512 * KiB - 40960, 0, 256 * KiB);
	expect_int(run(&e, &o, HOST_READ, 40960, MiB, in), 0);
	expect_mem(in, out, MiB);
	end_close(&e);
	free(out);
	free(in);
}

TEST(what_a_namespace_cant_do_is_refused_before_it_is_sent)
{
	static uint8_t page[8192];
	struct op o = {0};
	struct end e;
	struct host_op kv = {.kind = HOST_EXIST, .key = {.len = 1}, .done = op_over};

	end_open(&e, &usual, 0, true);
	expect_int(run(&e, &o, HOST_READ, 1, 4096, page), -EINVAL);
	expect_int(run(&e, &o, HOST_READ, 4096, 100, page), -EINVAL);
	expect_int(run(&e, &o, HOST_READ, 64 * MiB - 4096, 8192, page), -EINVAL);
	expect_int(run(&e, &o, HOST_READ, UINT64_MAX & ~UINT64_C(4095), 8192, page), -EINVAL);
	expect_int(run(&e, &o, HOST_WRITE, 0, 0, NULL), -EINVAL);
	o = (struct op){.op = kv};
	host_submit(e.host, &o.op);
	expect(sim_run_until(flag_is_set, &o.over, PATIENCE_NS));
	expect_int(o.res, -EINVAL);
	expect_int(run(&e, &o, HOST_READ, 64 * MiB - 4096, 4096, page), 0);
	end_close(&e);
}

TEST(a_failing_drive_is_an_error_and_a_full_namespace_says_so)
{
	static const struct blocks_opts small = {64 * MiB, 4 * MiB, 4096, false};
	static uint8_t page[4096];
	struct op o = {0};
	struct end e;
	int rc = 0;

	end_open(&e, &small, 0, true);
	expect_int(run(&e, &o, HOST_WRITE, 0, 4096, page), 0);
	sim_fault_at(SIM_DISK_READ_EIO, 1);
	expect_int(run(&e, &o, HOST_READ, 0, 4096, page), -EIO);
	for (unsigned i = 1; rc == 0 && i < 20; i++)
		rc = run(&e, &o, HOST_WRITE, i * 256 * KiB, 4096, page);
	expect_int(rc, -ENOSPC);
	end_close(&e);
}

TEST(a_write_whose_answer_is_lost_is_not_sent_again_but_a_read_is)
{
	static uint8_t page[4096];
	struct host_opts opts = {.addr = {.host = "array"}, .subnqn = SUBNQN, .hostnqn = HOST_A,
		.block = true};
	struct op o = {0};
	struct end e;
	char why[256];

	for (unsigned write = 0; write < 2; write++) {
		end_open(&e, &usual, 0, true);
		host_close(&e.host, set_flag, &e.closed);
		expect(sim_run_until(flag_is_set, &e.closed, PATIENCE_NS));
		e.closed = false;
		opts.addr.port = e.f.port;
		expect_int(host_open(e.f.loop, &opts, NULL, NULL, why, &e.host), 0);
		expect(sim_run_until(is_settled, &e, PATIENCE_NS));
		sim_fault_at(SIM_NET_RESET, 2);
		expect_int(run(&e, &o, write ? HOST_WRITE : HOST_READ, 0, 4096, page),
			   write ? -ECONNRESET : 0);
		end_close(&e);
	}
}
