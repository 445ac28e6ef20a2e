/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores over a real array in the simulator: core, initiator, NVMe/TCP, target and store, whose
 * drives, network and process fail under a request.
 */
#include "kt.h"

#include "cache_array_fixture.h"
#include "cache_core_fixture.h"

#include "cache/restore.h"

#define LAYERS 8u
#define LAYER (16 * KiB)
#define BLOCK (LAYERS * LAYER)
#define BLOCKS 60u
#define DEADLINE (200 * NS_PER_MS)

static struct restore *restore;
static struct request *request;
static struct kvof_result last;
static bool over, free_now, stopped;
static uint32_t layers;
static uint64_t begin_ns, over_ns;
static uint8_t data[BLOCKS * BLOCK], back[BLOCKS * BLOCK];
static struct iovec iov[BLOCKS];
static struct kvof_block block[BLOCKS];

static void blocks_over(uint8_t *at)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		block[i] = fix_block(i, &iov[i], at + i * BLOCK, BLOCK);
}

static void restore_up(void)
{
	struct restore_opts opts = {.loop = fix.loop, .ops = &restore_core_ops, .arg = fix.core,
				    .deadline_ns = DEADLINE, .block_tokens = 256};

	expect_int(restore_open(&opts, &restore), 0);
}

static void begin(uint64_t dram_bytes)
{
	struct sim_opts sim = {.seed = 3};
	uint64_t batch;

	fix_begin("f16");
	sim_end();
	expect_int(sim_begin(&sim), 0);
	fix.opts.target = "tcp://127.0.0.1:4420/" NQN;
	fix.opts.queues = 2;
	fix.opts.depth = 8;
	fix.opts.part_bytes = 2 * LAYER + 100;
	fix.opts.layer_count = LAYERS;
	fix.opts.dram_bytes = dram_bytes;
	array_up(true);
	expect_int(fix_open(), 0);
	fix_fill(data, sizeof(data), 5);
	blocks_over(data);
	batch = fix_submit(KVOF_SAVE, block, BLOCKS, 20 * NS_PER_S);
	fix_wait();
	for (uint32_t i = 0; i < BLOCKS; i++)
		expect_int(fix_result_of(batch, i, 0).reason, KVOF_OK);
	blocks_over(back);
	restore_up();
}

static void heard(void *owner, const struct kvof_result *r)
{
	if ((r->flags & KVOF_RESULT_LAYER) != 0) {
		expect_int(r->index, layers++);
		for (uint32_t i = 0; i < r->value_bytes; i++)
			expect_mem(back + i * BLOCK + r->index * LAYER,
				   data + i * BLOCK + r->index * LAYER, LAYER);
	}
	if (r->flags == KVOF_RESULT_REQUEST) {
		over = true;
		last = *r;
		over_ns = loop_now_ns(fix.loop) - begin_ns;
	}
}

static void changed(void *owner)
{
	free_now = request_free_now(request);
}

static const struct request_events events = {heard, changed};

static void request_run(void)
{
	begin_ns = loop_now_ns(fix.loop);
	restore_begin(restore, request, 7, &events, NULL);
}

static void request_start(uint64_t deadline_ns)
{
	struct request_layout layout = {.cut_bytes = core_cut_bytes(&fix.opts),
					.layer_count = LAYERS};
	struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts),
					 .deadline_ns = deadline_ns};

	over = free_now = false;
	layers = 0;
	memset(back, 0x5a, sizeof(back));
	expect_int(request_make(block, BLOCKS, &opts, &layout, &request), 0);
	fix_post(NULL, 0, request_run);
}

static bool is_over(void *arg)
{
	return over;
}

static bool is_free(void *arg)
{
	return free_now;
}

static void request_drop(void)
{
	restore_forget(request);
	request_free(&request);
}

static bool is_dropped(void *arg)
{
	return request == NULL;
}

/* Over by the deadline, whatever came is right, and the buffers come free. */
static void expect_valid(uint64_t deadline_ns)
{
	expect(sim_run_until(is_over, NULL, 10 * NS_PER_S));
	expect(over_ns <= deadline_ns + 2 * NS_PER_MS);
	expect_mem(back, data, last.value_bytes * BLOCK);
	expect(sim_run_until(is_free, NULL, NS_PER_S));
	fix_post(NULL, 0, request_drop);
	expect(sim_run_until(is_dropped, NULL, NS_PER_S));
}

static bool stop_idle(void *arg)
{
	stopped = true;
	return true;
}

static void stop_run(void)
{
	restore_stop(restore, stop_idle, NULL);
}

static bool is_stopped(void *arg)
{
	return stopped;
}

static void end(void)
{
	stopped = false;
	fix_post(NULL, 0, stop_run);
	expect(sim_run_until(is_stopped, NULL, 10 * NS_PER_S));
	restore_close(&restore);
	fix_close_core();
	array_down();
	loop_close(&fix.loop);
	identity_free(&fix.identity);
	sim_end();
}

TEST(a_prefix_comes_back_over_an_array_layer_by_layer)
{
	begin(0);
	request_start(10 * NS_PER_S);
	expect_valid(10 * NS_PER_S);
	expect_int(last.value_bytes, BLOCKS);
	expect_int(layers, LAYERS);
	end();
}

TEST(a_block_that_is_gone_is_where_the_prefix_ends)
{
	uint32_t n[BLOCKS];

	begin(0);
	for (uint32_t i = 0; i < BLOCKS; i++)
		n[i] = i;
	expect_int(fix_match(n, BLOCKS, 0), BLOCKS);
	expect_int(fix_one(KVOF_DELETE, 40, NULL, 0).reason, KVOF_OK);
	request_start(10 * NS_PER_S);
	expect_valid(10 * NS_PER_S);
	expect_int(last.value_bytes, 40);
	expect_int(last.reason, KVOF_ABSENT);
	end();
}

TEST(what_an_array_gave_is_in_dram_for_the_next_request)
{
	struct kvof_cache_stat stat;

	begin(2 * sizeof(data));
	request_start(10 * NS_PER_S);
	expect_valid(10 * NS_PER_S);
	core_stat(fix.core, &stat);
	expect_int(stat.hits[KVOF_TIER_DRAM] + stat.hits[KVOF_TIER_REMOTE], BLOCKS);
	request_start(10 * NS_PER_S);
	expect_valid(10 * NS_PER_S);
	expect_int(last.value_bytes, BLOCKS);
	core_stat(fix.core, &stat);
	expect(stat.hits[KVOF_TIER_DRAM] >= BLOCKS);
	expect_int(stat.misses, 0);
	end();
}

TEST(s8_an_array_lost_in_the_middle_of_a_request_leaves_a_valid_prefix)
{
	for (uint64_t at = 0; at < 8; at++) {
		begin(0);
		request_start(DEADLINE);
		sim_run_until(is_over, NULL, at * NS_PER_MS);
		array_kill();
		expect_valid(DEADLINE);
		/* it comes back, and is used without a restart of ours */
		array_up(false);
		fix_pass(5 * NS_PER_S);
		request_start(10 * NS_PER_S);
		expect_valid(10 * NS_PER_S);
		expect_int(last.value_bytes, BLOCKS);
		end();
	}
}

TEST(s8_a_link_that_is_cut_for_ever_costs_the_deadline_and_no_more)
{
	for (uint64_t at = 0; at < 8; at += 2) {
		begin(0);
		request_start(DEADLINE);
		sim_run_until(is_over, NULL, at * NS_PER_MS);
		sim_link_cut(array.loop, fix.loop, true);
		expect_valid(DEADLINE);
		sim_link_cut(array.loop, fix.loop, false);
		fix_pass(2 * NS_PER_S);
		end();
	}
}

TEST(s9_a_drive_that_hangs_costs_the_blocks_behind_its_first)
{
	begin(0);
	sim_disk_mode("a0", SIM_DISK_HANGS);
	request_start(DEADLINE);
	expect_valid(DEADLINE);
	expect(last.value_bytes < BLOCKS);
	sim_disk_mode("a0", SIM_DISK_WELL);
	fix_pass(2 * NS_PER_S);
	request_start(10 * NS_PER_S);
	expect_valid(10 * NS_PER_S);
	expect_int(last.value_bytes, BLOCKS);
	end();
}

TEST(a_core_that_closes_under_a_request_ends_it)
{
	begin(0);
	request_start(10 * NS_PER_S);
	sim_run_until(is_over, NULL, 2 * NS_PER_MS);
	end();
	expect(over);
}
