/* SPDX-License-Identifier: Apache-2.0 */
/* Restores through the door, on a real loop, over DRAM. */
#include "kt.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include "base/must.h"
#include "base/prng.h"
#include "kvof/restore.h"

#define BLOCKS 32u
#define LAYERS 8u
#define BLOCK (LAYERS * 4096u)

static uint8_t data[BLOCKS * BLOCK], back[BLOCKS * BLOCK];
static struct kvof_cache *cache;
static struct kvof_id ids[BLOCKS];
static struct iovec iov[BLOCKS];
static struct kvof_block block[BLOCKS];

static void blocks_over(uint8_t *at)
{
	for (uint32_t i = 0; i < BLOCKS; i++) {
		iov[i] = (struct iovec){at + i * BLOCK, BLOCK};
		block[i] = (struct kvof_block){ids[i], &iov[i], 1, BLOCK};
	}
}

static void begin(uint32_t saved)
{
	struct kvof_cache_opts opts = {
		.struct_bytes = sizeof(opts),
		.model_id = "m",
		.block_tokens = 4,
		.dram_bytes = 16 * MiB,
		.layer_count = LAYERS,
	};
	struct kvof_result r[BLOCKS];
	int32_t tokens[BLOCKS * 4];
	struct prng p = prng_of(7);
	char why[256];

	for (uint32_t i = 0; i < BLOCKS * 4; i++)
		tokens[i] = (int32_t)i;
	prng_fill(&p, data, sizeof(data));
	expect_int(kvof_cache_open(&opts, why, &cache), 0);
	expect_int(kvof_cache_ids(cache, tokens, BLOCKS * 4, NULL, ids), 0);
	blocks_over(data);
	if (saved > 0)
		expect_int(kvof_cache_wait(cache, KVOF_SAVE, block, saved, 0, r), 0);
	memset(back, 0, sizeof(back));
	blocks_over(back);
}

/* The next result, waited for. */
static struct kvof_result drain_one(void)
{
	struct kvof_result r;
	int n = 0;

	while ((n = kvof_cache_drain(cache, &r, 1)) == 0) {
		struct pollfd p = {.fd = kvof_cache_fd(cache), .events = POLLIN};

		expect(poll(&p, 1, 10000) >= 0);
	}
	expect_int(n, 1);
	return r;
}

TEST(layers_come_in_order_then_the_request_and_the_bytes_are_there)
{
	struct kvof_restore_trace trace = {.struct_bytes = sizeof(trace)};
	uint64_t request;

	begin(BLOCKS);
	expect_int(kvof_restore_begin(cache, block, BLOCKS, NULL, &request), 0);
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		struct kvof_result r = drain_one();

		expect_int(r.batch, request);
		expect_int(r.flags, KVOF_RESULT_LAYER);
		expect_int(r.index, layer);
		expect_int(r.value_bytes, BLOCKS);
	}
	expect_int(drain_one().flags & KVOF_RESULT_REQUEST, KVOF_RESULT_REQUEST);
	expect_mem(back, data, sizeof(data));
	expect_int(kvof_restore_end(cache, request, &trace), 0);
	expect_int(trace.usable, BLOCKS);
	expect_int(trace.loaded, BLOCKS);
	expect_int(trace.bytes[KVOF_TIER_DRAM], sizeof(data));
	expect_int(kvof_restore_end(cache, request, NULL), -EINVAL);
	kvof_cache_close(&cache);
}

TEST(what_is_not_there_ends_the_prefix_and_each_block_is_told_when_asked_for)
{
	struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts),
					 .flags = KVOF_RESTORE_EACH};
	uint64_t request;
	uint32_t good = 0;
	struct kvof_result r;

	begin(20);
	expect_int(kvof_restore_begin(cache, block, BLOCKS, &opts, &request), 0);
	do {
		r = drain_one();
		good += r.flags == 0 && r.reason == KVOF_OK;
	} while ((r.flags & KVOF_RESULT_REQUEST) == 0);
	expect_int(r.value_bytes, 20);
	expect_int(r.reason, KVOF_ABSENT);
	expect_int(good, 20);
	expect_mem(back, data, 20 * BLOCK);
	expect_int(kvof_restore_end(cache, request, NULL), 0);
	kvof_cache_close(&cache);
}

TEST(an_engine_that_waits_is_handed_what_is_not_there)
{
	struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts), .step_blocks = 5,
					 .mode = KVOF_RESTORE_ENDS, .prefill_tokens_per_s = 10};
	struct kvof_restore_step step = {0};
	uint32_t computed = 0, next = 20;
	uint64_t request;

	begin(20);
	expect_int(kvof_restore_begin(cache, block, BLOCKS, &opts, &request), 0);
	while (step.act != KVOF_STEP_DONE) {
		expect_int(kvof_restore_next(cache, request, 10 * NS_PER_S, &step), 0);
		if (step.act != KVOF_STEP_COMPUTE)
			continue;
		expect_int(step.first, next);
		next += step.count;
		computed += step.count;
		expect_int(kvof_restore_computed(cache, request, step.first, step.count, 1000), 0);
	}
	expect_int(step.usable, BLOCKS);
	expect_int(computed, 12);
	expect_mem(back, data, 20 * BLOCK);
	expect_int(kvof_restore_computed(cache, request, BLOCKS, 1, 1000), -EINVAL);
	expect_int(kvof_restore_end(cache, request, NULL), 0);
	kvof_cache_close(&cache);
}

TEST(an_engine_that_was_told_to_wait_is_woken_by_an_event)
{
	struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts),
					 .mode = KVOF_RESTORE_ENDS, .prefill_tokens_per_s = 10};
	struct kvof_restore_step step = {0};
	uint64_t request;

	begin(BLOCKS);
	expect_int(kvof_restore_begin(cache, block, BLOCKS, &opts, &request), 0);
	while (step.act != KVOF_STEP_DONE) {
		struct kvof_result r = {0};

		expect_int(kvof_restore_next(cache, request, 0, &step), 0);
		while (step.act == KVOF_STEP_WAIT && (r.flags & KVOF_RESULT_STEP) == 0)
			r = drain_one();
	}
	expect_int(step.usable, BLOCKS);
	expect_mem(back, data, sizeof(data));
	expect_int(kvof_restore_end(cache, request, NULL), 0);
	kvof_cache_close(&cache);
}

TEST(wrong_calls_are_refused)
{
	struct kvof_restore_trace trace = {.struct_bytes = 1};
	struct kvof_restore_opts opts = {.struct_bytes = 1};
	struct kvof_restore_step step;
	uint64_t request;

	begin(0);
	expect_int(kvof_restore_begin(NULL, block, 1, NULL, &request), -EINVAL);
	expect_int(kvof_restore_begin(cache, block, 1, NULL, NULL), -EINVAL);
	expect_int(kvof_restore_begin(cache, block, 0, NULL, &request), -EINVAL);
	expect_int(kvof_restore_begin(cache, block, 1, &opts, &request), -EINVAL);
	expect_int(kvof_restore_next(cache, 1234, 0, &step), -EINVAL);
	expect_int(kvof_restore_next(cache, 1234, 0, NULL), -EINVAL);
	expect_int(kvof_restore_computed(cache, 1234, 0, 1, 1), -EINVAL);
	expect_int(kvof_restore_end(cache, 1234, NULL), -EINVAL);
	expect_int(kvof_restore_end(cache, 1234, &trace), -EINVAL);
	expect_int(kvof_cache_prefetch(cache, ids, 0, 0, &request), -EINVAL);
	expect_int(kvof_cache_prefetch(cache, NULL, 1, 0, &request), -EINVAL);
	expect_int(kvof_cache_prefetch(cache, ids, 1, 0, NULL), -EINVAL);
	kvof_cache_close(&cache);
}

/* Taken for "not told" they would have all be loaded, at whatever price. */
TEST(a_rate_of_the_engine_that_is_no_number_or_below_nothing_is_refused)
{
	static const double wrong[] = {NAN, -NAN, INFINITY, -INFINITY, -1, -1e-300, -1e308};
	uint64_t request;

	begin(0);
	for (unsigned i = 0; i < ARRAY_COUNT(wrong); i++) {
		struct kvof_restore_opts rate = {.struct_bytes = sizeof(rate),
						 .prefill_tokens_per_s = wrong[i]};
		struct kvof_restore_opts slope = {.struct_bytes = sizeof(slope),
						  .prefill_tokens_per_s = 1000,
						  .prefill_slope = wrong[i]};

		expect_int(kvof_restore_begin(cache, block, 1, &rate, &request), -EINVAL);
		expect_int(kvof_restore_begin(cache, block, 1, &slope, &request), -EINVAL);
	}
	for (double rate = 1e-308; rate < 1e308; rate *= 1e44) {
		struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts),
						 .prefill_tokens_per_s = rate,
						 .prefill_slope = rate};

		expect_int(kvof_restore_begin(cache, block, 1, &opts, &request), 0);
		expect_int(kvof_restore_end(cache, request, NULL), 0);
	}
	kvof_cache_close(&cache);
}

TEST(requests_that_nobody_ends_are_refused_beyond_the_limit_and_go_with_the_cache)
{
	uint64_t request;
	int rc = 0;
	uint32_t n = 0;

	begin(BLOCKS);
	while (rc == 0) {
		rc = kvof_restore_begin(cache, block, 1, NULL, &request);
		n += rc == 0;
	}
	expect_int(rc, -EBUSY);
	expect_int(n, KVOF_REQUESTS_MAX);
	kvof_cache_close(&cache);
}

TEST(a_hint_ends_without_a_trace)
{
	struct kvof_cache_stat stat;
	uint64_t request;
	struct kvof_result r;

	begin(4);
	for (int i = 0; i < 1000; i++) {
		int rc = kvof_cache_prefetch(cache, ids, BLOCKS, NS_PER_S, &request);

		expect(rc == 0 || rc == -EBUSY);
		if (rc == 0 && i % 2 == 0)
			expect_int(kvof_cache_cancel(cache, request), 0);
	}
	expect_int(kvof_cache_stat(cache, &stat), 0);
	expect_int(stat.misses, 0);
	expect_int(kvof_cache_drain(cache, &r, 1), 0);
	kvof_cache_close(&cache);
}

static void *wait_forever(void *arg)
{
	uint64_t *request = arg;
	struct kvof_restore_step step = {0};
	int rc = 0;

	while (rc == 0 && step.act == KVOF_STEP_WAIT)
		rc = kvof_restore_next(cache, *request, 60 * NS_PER_S, &step);
	return NULL;
}

TEST(who_waits_for_a_step_is_answered_when_another_thread_ends_the_request)
{
	struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts)};
	uint64_t request;
	pthread_t thread;

	for (int i = 0; i < 50; i++) {
		begin(BLOCKS);
		expect_int(kvof_restore_begin(cache, block, BLOCKS, &opts, &request), 0);
		expect_int(pthread_create(&thread, NULL, wait_forever, &request), 0);
		expect_int(kvof_restore_end(cache, request, NULL), 0);
		pthread_join(thread, NULL);
		kvof_cache_close(&cache);
	}
}

/* --- with drives below ------------------------------------------------------------------------ */

static char folder[] = "/var/tmp/kvof-restore-XXXXXX";
static char drive[256], fresh[300];

static void begin_flash(const char *path, uint64_t dram_bytes)
{
	const char *paths[1] = {path};
	struct kvof_cache_opts opts = {
		.struct_bytes = sizeof(opts),
		.model_id = "m",
		.block_tokens = 4,
		.dram_bytes = dram_bytes,
		.layer_count = LAYERS,
		.flash = paths,
		.flash_count = 1,
		.part_bytes = 16384,
	};
	int32_t tokens[BLOCKS * 4];
	char why[256];

	for (uint32_t i = 0; i < BLOCKS * 4; i++)
		tokens[i] = (int32_t)i;
	if (kvof_cache_open(&opts, why, &cache) != 0)
		fail_msg("%s", why);
	expect_int(kvof_cache_ids(cache, tokens, BLOCKS * 4, NULL, ids), 0);
}

/* Saved by a cache that is closed again: what follows finds it on the drive only. */
static void flash_fill(void)
{
	struct kvof_result r[BLOCKS];
	struct prng p = prng_of(7);

	expect(mkdtemp(folder) != NULL);
	snprintf(drive, sizeof(drive), "%s/drive", folder);
	snprintf(fresh, sizeof(fresh), "%s,size=256MiB", drive);
	begin_flash(fresh, 0);
	prng_fill(&p, data, sizeof(data));
	blocks_over(data);
	expect_int(kvof_cache_wait(cache, KVOF_SAVE, block, BLOCKS, 0, r), 0);
	for (uint32_t i = 0; i < BLOCKS; i++)
		expect_int(r[i].reason, KVOF_OK);
	kvof_cache_close(&cache);
	memset(back, 0, sizeof(back));
	blocks_over(back);
}

static void flash_remove(void)
{
	remove(drive);
	remove(folder);
	strcpy(folder, "/var/tmp/kvof-restore-XXXXXX");
}

static uint64_t stat_prefetched(void)
{
	struct kvof_cache_stat stat;

	expect_int(kvof_cache_stat(cache, &stat), 0);
	return stat.prefetched;
}

TEST(s18_what_a_hint_brought_is_counted_apart_from_what_was_there)
{
	struct kvof_restore_trace trace = {.struct_bytes = sizeof(trace)};
	struct kvof_cache_stat stat;
	uint64_t request, hint;

	flash_fill();
	begin_flash(drive, 64 * MiB);
	expect_int(kvof_cache_prefetch(cache, ids, 20, 0, &hint), 0);
	while (stat_prefetched() < 20)
		sched_yield();
	expect_int(kvof_restore_begin(cache, block, BLOCKS, NULL, &request), 0);
	while ((drain_one().flags & KVOF_RESULT_REQUEST) == 0)
		;
	expect_int(kvof_restore_end(cache, request, &trace), 0);
	expect_int(trace.usable, BLOCKS);
	expect_mem(back, data, sizeof(data));
	expect_int(trace.block_count[KVOF_TIER_DRAM], 20);
	expect_int(trace.block_count[KVOF_TIER_FLASH], BLOCKS - 20);
	expect_int(kvof_cache_stat(cache, &stat), 0);
	expect_int(stat.prefetched, 20);
	expect_int(stat.prefetched_hits, 20);
	expect_int(stat.hits[KVOF_TIER_DRAM], 20);
	expect_int(stat.hits[KVOF_TIER_FLASH], BLOCKS - 20);
	expect_int(stat.misses, 0);
	kvof_cache_close(&cache);
	flash_remove();
}

TEST(a_cache_closes_in_the_middle_of_restores_and_hints_over_drives)
{
	flash_fill();
	for (int i = 0; i < 20; i++) {
		uint64_t request;

		begin_flash(drive, 64 * MiB);
		expect_int(kvof_cache_prefetch(cache, ids, BLOCKS, 0, &request), 0);
		if (i % 2 == 0)
			expect_int(kvof_restore_begin(cache, block, BLOCKS, NULL, &request), 0);
		if (i % 4 == 0)
			expect_int(kvof_restore_end(cache, request, NULL), 0);
		kvof_cache_close(&cache);
	}
	flash_remove();
}

TEST(a_request_with_more_events_than_there_is_ever_room_for_is_wrong_and_the_most_layers_fit)
{
	struct kvof_restore_opts each = {.struct_bytes = sizeof(each),
					 .flags = KVOF_RESTORE_EACH};
	struct kvof_cache_opts opts = {
		.struct_bytes = sizeof(opts),
		.model_id = "m",
		.dram_bytes = 1 * MiB,
		.layer_count = KVOF_LAYERS_MAX,
	};
	static struct kvof_block empty[KVOF_BLOCKS_MAX];
	char why[256];
	uint64_t request;

	expect_int(kvof_cache_open(&opts, why, &cache), 0);
	expect_int(kvof_restore_begin(cache, empty, KVOF_BLOCKS_MAX, &each, &request), -EINVAL);
	expect_int(kvof_restore_begin(cache, empty, 1, NULL, &request), 0);
	expect_int(kvof_restore_end(cache, request, NULL), 0);
	kvof_cache_close(&cache);
}
