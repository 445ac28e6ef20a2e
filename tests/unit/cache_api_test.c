/* SPDX-License-Identifier: Apache-2.0 */
/* The door: real threads, a real eventfd, a real fork, over a host that the test controls. */
#include "kt.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache_api_fixture.h"

#include "base/bytes.h"
#include "base/prng.h"

static struct kvof_cache *begin(void)
{
	sim_host_reset();
	return opened(options());
}

static struct kvof_cache *begin_dram(void)
{
	struct kvof_cache_opts opts = options();

	opts.target = NULL;
	opts.dram_bytes = 16 << 20;
	return opened(opts);
}

static struct kvof_id id_of(struct kvof_cache *cache, uint32_t n)
{
	struct kvof_id id;

	expect_int(kvof_cache_id_of(cache, &n, sizeof(n), &id), 0);
	return id;
}

static struct kvof_block block_of(struct kvof_cache *cache, uint32_t n, struct iovec *iov)
{
	return (struct kvof_block){id_of(cache, n), iov, 1, iov->iov_len};
}

/* Waits for the eventfd, drains, until n results are there. */
static void take(struct kvof_cache *cache, struct kvof_result *out, uint32_t n)
{
	uint32_t got = 0;

	while (got < n) {
		struct pollfd p = {kvof_cache_fd(cache), POLLIN, 0};
		int rc;

		expect_int(poll(&p, 1, 10000), 1);
		rc = kvof_cache_drain(cache, out + got, n - got);
		expect(rc >= 0);           /* 0: the descriptor may be early */
		got += (uint32_t)rc;
	}
}

TEST(a_batch_is_submitted_polled_and_drained)
{
	struct kvof_cache *cache = begin();
	uint8_t data[3][BYTES], back[3][BYTES];
	struct kvof_result r[4];
	struct kvof_block b[3];
	struct iovec iov[3];
	struct pollfd p = {kvof_cache_fd(cache), POLLIN, 0};
	uint64_t batch = 0, second = 0;

	expect_int(poll(&p, 1, 0), 0);
	for (uint32_t i = 0; i < 3; i++) {
		struct prng seed = prng_of(i);

		prng_fill(&seed, data[i], BYTES);
		iov[i] = (struct iovec){data[i], BYTES - i};
		b[i] = block_of(cache, i, &iov[i]);
	}
	expect_int(kvof_cache_submit(cache, KVOF_SAVE, b, 3, 0, &batch), 0);
	take(cache, r, 3);
	for (int i = 0; i < 3; i++) {
		expect_int(r[i].batch, batch);
		expect_int(r[i].reason, KVOF_OK);
	}
	expect_int(r[2].flags, KVOF_RESULT_LAST);
	expect_int(kvof_cache_drain(cache, r, 4), 0);
	expect_int(poll(&p, 1, 0), 0);
	for (uint32_t i = 0; i < 3; i++) {
		iov[i].iov_base = back[i];
		b[i] = block_of(cache, i, &iov[i]);
	}
	expect_int(kvof_cache_submit(cache, KVOF_LOAD, b, 3, 0, &second), 0);
	expect(second != batch);
	take(cache, r, 1);
	take(cache, r + 1, 2);
	for (int i = 0; i < 3; i++) {
		expect_int(r[i].value_bytes, BYTES - r[i].index);
		expect_mem(back[r[i].index], data[r[i].index], BYTES - r[i].index);
	}
	kvof_cache_close(&cache);
	expect(cache == NULL);
}

TEST(wait_gives_results_in_request_order_with_the_true_length)
{
	struct kvof_cache *cache = begin();
	static uint8_t data[4 * BYTES];
	struct kvof_result r[4];
	struct kvof_block b[4];
	struct iovec iov[4];

	for (uint32_t i = 0; i < 4; i++) {
		iov[i] = (struct iovec){data + i * BYTES, i * 3000};
		b[i] = block_of(cache, i, &iov[i]);
	}
	kt_noise(r, sizeof(r));
	expect_int(kvof_cache_wait(cache, KVOF_SAVE, b + 1, 3, 0, r), 0);
	for (uint32_t i = 0; i < 4; i++)
		iov[i] = (struct iovec){data + i * BYTES, BYTES};
	for (uint32_t i = 0; i < 4; i++)
		b[i].bytes = BYTES;
	expect_int(kvof_cache_wait(cache, KVOF_LOAD, b, 4, 0, r), 0);
	expect_int(r[0].reason, KVOF_ABSENT);
	for (uint32_t i = 0; i < 4; i++)
		expect_int(r[i].index, i);
	for (uint32_t i = 1; i < 4; i++)
		expect_int(r[i].value_bytes, i * 3000);
	kvof_cache_close(&cache);
}

TEST(a_call_that_makes_no_sense_is_einval_and_changes_nothing)
{
	struct kvof_cache *cache = begin();
	uint8_t data[10];
	struct iovec iov = {data, 10};
	struct kvof_block b = block_of(cache, 1, &iov);
	struct kvof_result r;
	uint64_t batch;
	uint32_t n;

	expect_int(kvof_cache_submit(cache, KVOF_SAVE, &b, 0, 0, &batch), -EINVAL);
	expect_int(kvof_cache_submit(cache, KVOF_SAVE, NULL, 1, 0, &batch), -EINVAL);
	expect_int(kvof_cache_submit(cache, KVOF_SAVE, &b, 1, 0, NULL), -EINVAL);
	expect_int(kvof_cache_submit(cache, KVOF_EXISTS_OP, &b, 1, 0, &batch), -EINVAL);
	expect_int(kvof_cache_submit(NULL, KVOF_SAVE, &b, 1, 0, &batch), -EINVAL);
	expect_int(kvof_cache_submit(cache, KVOF_SAVE, &b, UINT32_MAX, 0, &batch), -EINVAL);
	expect_int(kvof_cache_wait(cache, KVOF_SAVE, &b, 1, 0, NULL), -EINVAL);
	expect_int(kvof_cache_match(cache, NULL, 1, 0, &n), -EINVAL);
	expect_int(kvof_cache_match(cache, NULL, 0, 0, &n), 0);
	expect_int(kvof_cache_match(cache, &b.id, 1, 0, NULL), -EINVAL);
	expect_int(kvof_cache_drain(cache, NULL, 1), -EINVAL);
	expect_int(kvof_cache_ids(cache, NULL, 4, NULL, &b.id), -EINVAL);
	expect_int(kvof_cache_id_of(cache, NULL, 1, &b.id), -EINVAL);
	expect_int(kvof_cache_stat(cache, NULL), -EINVAL);
	expect_int(kvof_cache_unlease(cache, NULL, 1), -EINVAL);
	expect_int(kvof_cache_fd(NULL), -EINVAL);
	expect_int(kvof_cache_wait(cache, KVOF_SAVE, &b, 1, 0, &r), 0);
	kvof_cache_close(&cache);
	kvof_cache_close(&cache);
	kvof_cache_close(NULL);
}

TEST(wrong_options_are_refused_with_the_option_named)
{
	static const struct {
		const char *name;
		size_t at;
		uint64_t value;
		size_t bytes;
	} bad[] = {
		{"struct_bytes", offsetof(struct kvof_cache_opts, struct_bytes), 8, 4},
		{"part_bytes", offsetof(struct kvof_cache_opts, part_bytes), 4095, 4},
		{"part_bytes", offsetof(struct kvof_cache_opts, part_bytes), (64 << 20) + 1, 4},
		{"block_tokens", offsetof(struct kvof_cache_opts, block_tokens), 2 << 20, 4},
		{"dram_bytes", offsetof(struct kvof_cache_opts, dram_bytes), 1, 8},
		{"deadline_ns", offsetof(struct kvof_cache_opts, deadline_ns), 5, 8},
		{"lease_ns", offsetof(struct kvof_cache_opts, lease_ns), 5, 8},
		{"queues", offsetof(struct kvof_cache_opts, queues), 1000, 4},
		{"depth", offsetof(struct kvof_cache_opts, depth), 1, 4},
		{"strict", offsetof(struct kvof_cache_opts, strict), 2, 4},
		{"digests", offsetof(struct kvof_cache_opts, digests), 4, 4},
		{"model_id", offsetof(struct kvof_cache_opts, model_id), 0, 8},
		{"fields", offsetof(struct kvof_cache_opts, fields), 0, 8},
		{"tier", offsetof(struct kvof_cache_opts, target), 0, 8},
	};

	sim_host_reset();
	for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
		struct kvof_cache_opts opts = options();
		struct kvof_cache *cache = (void *)&opts;
		char why[256];

		kt_noise(why, sizeof(why));
		memcpy((char *)&opts + bad[i].at, &bad[i].value, bad[i].bytes);
		expect_int(kvof_cache_open(&opts, why, &cache), -EINVAL);
		expect(strstr(why, bad[i].name) != NULL);
		expect(cache == NULL);
	}
}

/* S13: the name of what is wrong, or can have no effect, is told. */
static void expect_refused(struct kvof_cache_opts opts, const char *name)
{
	struct kvof_cache *cache = (void *)&opts;
	char why[256];

	kt_noise(why, sizeof(why));
	expect_int(kvof_cache_open(&opts, why, &cache), -EINVAL);
	if (strstr(why, name) == NULL)
		expect_str(why, name);
	expect(cache == NULL);
}

TEST(s13_an_option_that_is_wrong_is_refused_with_its_name)
{
	static const char *const empty[] = {""}, *const targets[] = {"tcp://a:1", NULL};
	static const uint64_t layers[] = {100, 0};
	static const struct {
		const char *name;
		size_t at;
		uint64_t value;
		size_t bytes;
	} bad[] = {
		{"flash_format", offsetof(struct kvof_cache_opts, flash_format), 2, 4},
		{"admission", offsetof(struct kvof_cache_opts, admission), 4, 4},
		{"behind_full", offsetof(struct kvof_cache_opts, behind_full), 2, 4},
		{"behind_bytes", offsetof(struct kvof_cache_opts, behind_bytes), 1, 8},
		{"plain", offsetof(struct kvof_cache_opts, plain), 2, 4},
		{"staging_bytes", offsetof(struct kvof_cache_opts, staging_bytes), 1, 8},
		{"presence_ns", offsetof(struct kvof_cache_opts, presence_ns), 1, 8},
		{"index_blocks", offsetof(struct kvof_cache_opts, index_blocks), 1, 4},
		{"layer_count", offsetof(struct kvof_cache_opts, layer_count), 5000, 4},
		{"event_count", offsetof(struct kvof_cache_opts, event_count), 2 << 20, 4},
		{"target_count", offsetof(struct kvof_cache_opts, target_count), 17, 4},
		{"targets", offsetof(struct kvof_cache_opts, target_count), 2, 4},
		{"flash", offsetof(struct kvof_cache_opts, flash_count), 1, 4},
		{"flash_count", offsetof(struct kvof_cache_opts, flash_count), 17, 4},
		{"flash_bytes", offsetof(struct kvof_cache_opts, flash_bytes), 1, 8},
		{"unused", offsetof(struct kvof_cache_opts, unused), 1, 4},
	};
	struct kvof_cache_opts opts;

	sim_host_reset();
	for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
		opts = options();
		opts.dram_bytes = 1 << 20;
		memcpy((char *)&opts + bad[i].at, &bad[i].value, bad[i].bytes);
		expect_refused(opts, bad[i].name);
	}
	opts = options();
	opts.targets = targets;
	opts.target_count = 2;
	expect_refused(opts, "targets[1] is empty");
	opts = options();
	opts.flash = empty;
	opts.flash_count = 1;
	expect_refused(opts, "flash[0] is empty");
	opts = options();
	opts.layer_bytes = layers;
	opts.layer_count = 2;
	expect_refused(opts, "layer_bytes[1]");
	opts = options();
	opts.dram_bytes = 1 << 20;
	opts.policy = "no-such";
	expect_refused(opts, "policy is 'no-such', it can be");
}

TEST(s13_an_option_that_can_have_no_effect_is_refused_with_its_name)
{
	static const uint64_t layers[] = {100, 200};
	static const struct {
		const char *name;
		size_t at;
		uint64_t value;
		size_t bytes;
		bool dram_only;                    /* else: an array only */
	} idle[] = {
		{"queues", offsetof(struct kvof_cache_opts, queues), 2, 4, true},
		{"depth", offsetof(struct kvof_cache_opts, depth), 8, 4, true},
		{"digests", offsetof(struct kvof_cache_opts, digests), 1, 4, true},
		{"presence_ns", offsetof(struct kvof_cache_opts, presence_ns), NS_PER_S, 8, true},
		{"behind_bytes", offsetof(struct kvof_cache_opts, behind_bytes), 1 << 20, 8, true},
		{"admission bit 1", offsetof(struct kvof_cache_opts, admission), 2, 4, true},
		{"admission bit 0", offsetof(struct kvof_cache_opts, admission), 1, 4, false},
		{"lease_ns", offsetof(struct kvof_cache_opts, lease_ns), NS_PER_S, 8, false},
		{"flash_bytes", offsetof(struct kvof_cache_opts, flash_bytes), 1 << 30, 8, false},
		{"flash_format", offsetof(struct kvof_cache_opts, flash_format), 1, 4, false},
		{"behind_bytes", offsetof(struct kvof_cache_opts, behind_bytes), 1 << 20, 8, false},
		{"behind_full", offsetof(struct kvof_cache_opts, behind_full), 1, 4, false},
	};
	struct kvof_cache_opts opts;

	sim_host_reset();
	for (size_t i = 0; i < ARRAY_COUNT(idle); i++) {
		opts = options();
		if (idle[i].dram_only) {
			opts.target = NULL;
			opts.dram_bytes = 1 << 20;
		}
		memcpy((char *)&opts + idle[i].at, &idle[i].value, idle[i].bytes);
		expect_refused(opts, idle[i].name);
	}
	opts = options();
	opts.policy = "lru";
	expect_refused(opts, "policy has no effect without dram_bytes");
	opts = options();
	opts.layer_bytes = layers;
	expect_refused(opts, "layer_bytes has no effect without layer_count");
	opts = options();
	opts.target = NULL;
	opts.dram_bytes = 1 << 20;
	opts.host_nqn = "nqn.2026-11.io.kvof:host";
	expect_refused(opts, "host_nqn");
}

TEST(a_flag_that_is_not_known_or_has_no_effect_is_refused)
{
	struct kvof_cache *cache = begin_dram();
	uint8_t data[10] = {0};
	struct iovec iov = {data, sizeof(data)};
	struct kvof_block b = {.id = id_of(cache, 1)}, save = {b.id, &iov, 1, sizeof(data)};
	struct kvof_result r;
	uint64_t batch;

	expect_int(kvof_cache_submit_flags(cache, KVOF_EXISTS_OP, &b, 1, 0, 16, &batch), -EINVAL);
	expect_int(kvof_cache_submit_flags(cache, KVOF_EXISTS_OP, &b, 1, 0, KVOF_SKIP_WRITE,
					   &batch), -EINVAL);
	expect_int(kvof_cache_submit_flags(cache, KVOF_SAVE, &save, 1, 0, KVOF_SKIP_READ, &batch),
		   -EINVAL);
	expect_int(kvof_cache_submit_flags(cache, KVOF_SAVE, &save, 1, 0,
					   KVOF_SKIP_WRITE | KVOF_WAIT_ALL, &batch), -EINVAL);
	expect_int(kvof_cache_submit_flags(cache, KVOF_SAVE, &save, 1, 0, KVOF_UNORDERED, &batch),
		   0);
	take(cache, &r, 1);
	expect_int(r.reason, KVOF_OK);
	kvof_cache_close(&cache);
}

TEST(tiers_have_names)
{
	expect_str(kvof_tier_name(KVOF_TIER_NONE), "");
	expect_str(kvof_tier_name(KVOF_TIER_FLASH), "flash");
	expect_str(kvof_tier_name(9), "unknown");
}

TEST(more_than_the_limit_in_flight_is_ebusy_until_drained)
{
	static struct kvof_block b[KVOF_BLOCKS_MAX];
	static struct kvof_result r[KVOF_BLOCKS_MAX];
	struct kvof_cache *cache = begin_dram();
	uint64_t batch;

	for (uint32_t i = 0; i < KVOF_BLOCKS_MAX; i++)
		b[i] = (struct kvof_block){.id = id_of(cache, i)};
	expect_int(kvof_cache_submit(cache, KVOF_EXISTS_OP, b, KVOF_BLOCKS_MAX, 0, &batch), 0);
	expect_int(kvof_cache_submit(cache, KVOF_EXISTS_OP, b, 1, 0, &batch), -EBUSY);
	expect_int(kvof_cache_wait(cache, KVOF_EXISTS_OP, b, 1, 0, r), -EBUSY);
	take(cache, r, 1);
	expect_int(kvof_cache_submit(cache, KVOF_EXISTS_OP, b, 2, 0, &batch), -EBUSY);
	expect_int(kvof_cache_submit(cache, KVOF_EXISTS_OP, b, 1, 0, &batch), 0);
	take(cache, r, KVOF_BLOCKS_MAX);
	expect_int(kvof_cache_submit(cache, KVOF_EXISTS_OP, b, KVOF_BLOCKS_MAX, 0, &batch), 0);
	take(cache, r, KVOF_BLOCKS_MAX);
	kvof_cache_close(&cache);
}

static enum sim_hook hook_hang(struct host_op *op, int *res)
{
	return op->kind == HOST_RETRIEVE && op->bytes > 64 ? SIM_HOOK_HANG : SIM_HOOK_NONE;
}

TEST(batches_in_flight_are_limited_too)
{
	struct kvof_cache *cache = begin();
	uint8_t data[100];
	struct iovec iov = {data, 100};
	struct kvof_block b = block_of(cache, 1, &iov);
	struct kvof_result r;
	uint64_t batch;

	sim_host.hook = hook_hang;
	for (int i = 0; i < KVOF_BATCHES_MAX; i++)
		expect_int(kvof_cache_submit(cache, KVOF_LOAD, &b, 1, 60000000000, &batch), 0);
	expect_int(kvof_cache_submit(cache, KVOF_LOAD, &b, 1, 0, &batch), -EBUSY);
	expect_int(kvof_cache_cancel(cache, 0), 0);
	for (int i = 0; i < KVOF_BATCHES_MAX; i++) {
		take(cache, &r, 1);
		expect_int(r.reason, KVOF_CANCELED);
	}
	kvof_cache_close(&cache);
}

TEST(a_wait_ends_at_its_deadline_and_the_release_is_drained)
{
	struct kvof_cache *cache = begin();
	uint8_t data[100];
	struct iovec iov = {data, 100};
	struct kvof_block b = block_of(cache, 1, &iov);
	struct kvof_result r, released;

	sim_host.hook = hook_hang;
	sim_host.busy_ns = 20000000;
	expect_int(kvof_cache_wait(cache, KVOF_LOAD, &b, 1, 30000000, &r), 0);
	expect_int(r.reason, KVOF_LATE);
	expect_int(r.busy, 1);
	expect(r.wait_ns >= 30000000 && r.wait_ns < 500000000);
	take(cache, &released, 1);
	expect_int(released.flags, KVOF_RESULT_RELEASED);
	expect_int(released.batch, r.batch);
	kvof_cache_close(&cache);
}

struct closer {
	struct kvof_cache *cache;
	struct kvof_result result;
	struct kvof_block block;
	int rc;
};

static void *wait_for_ever(void *arg)
{
	struct closer *c = arg;

	c->rc = kvof_cache_wait(c->cache, KVOF_LOAD, &c->block, 1, 600000000000, &c->result);
	return NULL;
}

TEST(close_wakes_who_waits_and_no_byte_moves_afterwards)
{
	struct kvof_cache *cache = begin();
	uint8_t data[100];
	struct iovec iov = {data, 100};
	struct closer c = {.cache = cache, .block = block_of(cache, 1, &iov), .rc = 1};
	pthread_t thread;

	kt_noise(data, sizeof(data));
	sim_host.hook = hook_hang;
	pthread_create(&thread, NULL, wait_for_ever, &c);
	while (atomic_load(&sim_host.flying) == 0)
		sched_yield();
	kvof_cache_close(&cache);
	pthread_join(thread, NULL);
	expect_int(c.rc, 0);
	expect_int(c.result.reason, KVOF_CANCELED);
	for (size_t i = 0; i < sizeof(data); i++)
		expect(data[i] == (uint8_t)(0xa5 ^ i * 131));
}

/* Runs in the child; its exit status says which call was wrong. */
static int child(struct kvof_cache *cache, struct kvof_id *id, struct kvof_block *b)
{
	struct kvof_cache_stat stat;
	struct kvof_result r;
	uint64_t batch;
	uint32_t n;
	int32_t tokens[4] = {0};

	if (kvof_cache_submit(cache, KVOF_SAVE, b, 1, 0, &batch) != -ESHUTDOWN)
		return 1;
	if (kvof_cache_wait(cache, KVOF_SAVE, b, 1, 0, &r) != -ESHUTDOWN)
		return 2;
	if (kvof_cache_match(cache, id, 1, 0, &n) != -ESHUTDOWN)
		return 3;
	if (kvof_cache_drain(cache, &r, 1) != -ESHUTDOWN)
		return 4;
	if (kvof_cache_fd(cache) != -ESHUTDOWN)
		return 5;
	if (kvof_cache_cancel(cache, 1) != -ESHUTDOWN)
		return 6;
	if (kvof_cache_stat(cache, &stat) != -ESHUTDOWN)
		return 7;
	if (kvof_cache_ids(cache, tokens, 4, NULL, id) != -ESHUTDOWN)
		return 8;
	if (kvof_cache_id_of(cache, "a", 1, id) != -ESHUTDOWN)
		return 9;
	if (kvof_cache_unlease(cache, id, 1) != -ESHUTDOWN)
		return 10;
	kvof_cache_close(&cache);
	return cache == NULL ? 0 : 11;
}

TEST(in_a_forked_child_every_call_answers_eshutdown_and_the_parent_goes_on)
{
	struct kvof_cache *cache = begin_dram();
	uint8_t data[100];
	struct iovec iov = {data, 100};
	struct kvof_block b = block_of(cache, 1, &iov);
	struct kvof_id id = b.id;
	struct kvof_result r;
	int status = -1;
	pid_t pid;

	expect_int(kvof_cache_wait(cache, KVOF_SAVE, &b, 1, 0, &r), 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		alarm(10);                 /* a hang is a failure */
		_exit(child(cache, &id, &b));
	}
	expect(pid > 0);
	expect_int(waitpid(pid, &status, 0), pid);
	expect(WIFEXITED(status));
	expect_int(WEXITSTATUS(status), 0);
	expect_int(kvof_cache_wait(cache, KVOF_LOAD, &b, 1, 0, &r), 0);
	expect_int(r.reason, KVOF_OK);
	kvof_cache_close(&cache);
}

TEST(a_child_may_open_a_cache_of_its_own)
{
	struct kvof_cache *cache;
	int status = -1;
	pid_t pid;

#ifdef __SANITIZE_THREAD__
	skip_because("the thread sanitizer ends a forked child that starts a thread");
#endif
	cache = begin_dram();

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		struct kvof_cache_opts opts = options();
		struct kvof_cache *own = NULL;
		uint8_t data[100] = {0};
		struct iovec iov = {data, 100};
		struct kvof_block b = {.iov = &iov, .iov_count = 1, .bytes = 100};
		struct kvof_result r;

		alarm(10);
		opts.target = NULL;
		opts.dram_bytes = 1 << 20;
		if (kvof_cache_open(&opts, NULL, &own) != 0 ||
		    kvof_cache_wait(own, KVOF_SAVE, &b, 1, 0, &r) != 0 || r.reason != KVOF_OK)
			_exit(1);
		kvof_cache_close(&own);
		_exit(0);
	}
	expect_int(waitpid(pid, &status, 0), pid);
	expect(WIFEXITED(status));
	expect_int(WEXITSTATUS(status), 0);
	kvof_cache_close(&cache);
}

#define WORKERS 4
#define ROUNDS 150

struct worker {
	pthread_t thread;
	struct kvof_cache *cache;
	uint32_t first;
	unsigned wrong, busy;
};

/* Saves, loads, matches and deletes its own blocks, and looks at those of all. */
static void *work(void *arg)
{
	struct worker *w = arg;
	uint8_t data[3000], back[3000];

	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct prng p = prng_of(w->first + i);
		struct iovec iov = {data, 1 + (w->first + i) * 7 % 3000};
		struct kvof_block b = {.iov = &iov, .iov_count = 1, .bytes = iov.iov_len};
		struct kvof_result r;
		uint32_t n = w->first + i, found = 9;

		prng_fill(&p, data, sizeof(data));
		kvof_cache_id_of(w->cache, &n, sizeof(n), &b.id);
		w->wrong += kvof_cache_wait(w->cache, KVOF_SAVE, &b, 1, 0, &r) != 0 ||
			    r.reason != KVOF_OK;
		iov.iov_base = back;
		w->wrong += kvof_cache_wait(w->cache, KVOF_LOAD, &b, 1, 0, &r) != 0 ||
			    r.reason != KVOF_OK || memcmp(data, back, iov.iov_len) != 0;
		w->wrong += kvof_cache_match(w->cache, &b.id, 1, 0, &found) != 0 || found != 1;
		b.iov = NULL;
		b.iov_count = 0;
		b.bytes = 0;
		if (i % 3 == 0)
			w->wrong += kvof_cache_wait(w->cache, KVOF_DELETE, &b, 1, 0, &r) != 0 ||
				    r.reason != KVOF_OK;
	}
	return NULL;
}

TEST(any_thread_may_call_at_any_time)
{
	struct kvof_cache *cache = begin_dram();
	struct worker w[WORKERS] = {0};
	struct kvof_cache_stat stat;

	for (uint32_t i = 0; i < WORKERS; i++) {
		w[i].cache = cache;
		w[i].first = i * 1000;
		expect_int(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (uint32_t i = 0; i < WORKERS; i++) {
		pthread_join(w[i].thread, NULL);
		expect_int(w[i].wrong, 0);
	}
	expect_int(kvof_cache_stat(cache, &stat), 0);
	expect_int(stat.hits[1], WORKERS * ROUNDS);
	expect_int(stat.dram_blocks, WORKERS * (ROUNDS - ROUNDS / 3));
	kvof_cache_close(&cache);
}

struct drainer {
	pthread_t thread;
	struct kvof_cache *cache;
	_Atomic unsigned *got;
	unsigned want;
};

static void *drain_some(void *arg)
{
	struct drainer *d = arg;

	while (atomic_load(d->got) < d->want) {
		struct pollfd p = {kvof_cache_fd(d->cache), POLLIN, 0};
		struct kvof_result r[7];
		int n;

		poll(&p, 1, 10);
		n = kvof_cache_drain(d->cache, r, 7);
		if (n > 0)
			atomic_fetch_add(d->got, (unsigned)n);
	}
	return NULL;
}

TEST(several_threads_drain_and_each_result_comes_once)
{
	static struct kvof_block b[64];
	struct kvof_cache *cache = begin_dram();
	_Atomic unsigned got = 0;
	struct drainer d[3];
	uint64_t batch;

	for (uint32_t i = 0; i < 64; i++)
		b[i] = (struct kvof_block){.id = id_of(cache, i)};
	for (int i = 0; i < 3; i++) {
		d[i] = (struct drainer){.cache = cache, .got = &got, .want = 100 * 64};
		expect_int(pthread_create(&d[i].thread, NULL, drain_some, &d[i]), 0);
	}
	for (int i = 0; i < 100;) {
		int rc = kvof_cache_submit(cache, KVOF_EXISTS_OP, b, 64, 0, &batch);

		expect(rc == 0 || rc == -EBUSY);
		i += rc == 0;
	}
	for (int i = 0; i < 3; i++)
		pthread_join(d[i].thread, NULL);
	expect_int(atomic_load(&got), 100 * 64);
	kvof_cache_close(&cache);
}

TEST(ids_are_chained_and_a_tail_has_none)
{
	struct kvof_cache *cache = begin_dram();
	int32_t tokens[11];
	struct kvof_id ids[4], more[2];

	for (int i = 0; i < 11; i++)
		tokens[i] = i;
	kt_noise(ids, sizeof(ids));
	ids[2] = (struct kvof_id){{1}};
	expect_int(kvof_cache_ids(cache, tokens, 11, NULL, ids), 0);
	expect_int(ids[2].byte[0], 1);             /* not written: two whole blocks */
	expect_int(kvof_cache_ids(cache, tokens + 4, 4, &ids[0], more), 0);
	expect_mem(&more[0], &ids[1], sizeof(more[0]));
	expect_int(kvof_cache_ids(cache, tokens + 4, 4, NULL, more), 0);
	expect(memcmp(&more[0], &ids[1], sizeof(more[0])) != 0);
	kvof_cache_close(&cache);
}

static unsigned open_descriptors(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

TEST(opening_and_closing_leaves_no_descriptor_behind)
{
	struct kvof_cache *cache = begin_dram();
	unsigned before;

	kvof_cache_close(&cache);
	before = open_descriptors();
	for (int i = 0; i < 20; i++) {
		cache = begin_dram();
		kvof_cache_close(&cache);
	}
	expect_int(open_descriptors(), before);
}

TEST(more_dram_than_the_machine_has_is_refused_before_any_of_it_is_taken)
{
	struct kvof_cache_opts opts = {
		.struct_bytes = sizeof(opts),
		.model_id = "m",
		.dram_bytes = 16 * TiB,
	};
	struct kvof_cache *none;
	char why[256];

	kt_noise(why, sizeof(why));
	expect_int(kvof_cache_open(&opts, why, &none), -ENOMEM);
	expect(strstr(why, "dram_bytes") != NULL);
}

TEST(every_reason_has_a_name)
{
	expect_str(kvof_reason_name(KVOF_OK), "ok");
	expect_str(kvof_reason_name(KVOF_UNREACHABLE), "unreachable");
	for (unsigned i = 0; i < KVOF_REASON_COUNT; i++) {
		expect(strlen(kvof_reason_name((enum kvof_reason)i)) > 1);
		for (unsigned k = 0; k < i; k++)
			expect(strcmp(kvof_reason_name((enum kvof_reason)i),
				      kvof_reason_name((enum kvof_reason)k)) != 0);
	}
	expect_str(kvof_reason_name(KVOF_REASON_COUNT), "unknown");
}
