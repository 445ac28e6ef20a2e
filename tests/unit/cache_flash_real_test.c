/* SPDX-License-Identifier: Apache-2.0 */
/* The flash tier through the public calls, over real files: restarts, kills, damage by hand. */
#include "kt.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/prng.h"
#include "kvof/cache.h"
#include "loop/loop.h"

#define PART (64 << 10)
#define BYTES (3 * PART + 1000)            /* four parts and a head */
#define BLOCKS 40
#define DRIVE_BYTES (64 << 20)

static char folder[64], path[2][96], text[2][128];
static const char *flash[2] = {text[0], text[1]};
static uint8_t data[BYTES], back[BYTES];

static struct kvof_field field = {"kv_dtype", "f16"};

static struct kvof_cache_opts options(void)
{
	return (struct kvof_cache_opts){
		.struct_bytes = sizeof(struct kvof_cache_opts), .fields = &field, .field_count = 1,
		.model_id = "m", .block_tokens = 4, .part_bytes = PART,
		.flash = flash, .flash_count = 2, .deadline_ns = UINT64_C(20000000000),
	};
}

static void begin(void)
{
	snprintf(folder, sizeof(folder), "/var/tmp/kvof-flash-XXXXXX");
	expect(mkdtemp(folder) != NULL);
	for (int i = 0; i < 2; i++) {
		snprintf(path[i], sizeof(path[i]), "%s/f%d", folder, i);
		snprintf(text[i], sizeof(text[i]), "%s,size=64MiB", path[i]);
	}
}

static void end(void)
{
	unlink(path[0]);
	unlink(path[1]);
	expect_int(rmdir(folder), 0);
}

static struct kvof_cache *opened(void)
{
	struct kvof_cache_opts opts = options();
	struct kvof_cache *cache = NULL;
	char why[256] = "";

	if (kvof_cache_open(&opts, why, &cache) != 0)
		fail_msg("%s", why);
	return cache;
}

static uint32_t one(struct kvof_cache *cache, enum kvof_op op, uint32_t n, void *at)
{
	struct iovec iov = {at, at != NULL ? BYTES - n : 0};
	struct kvof_block b = {.iov = &iov, .iov_count = at != NULL, .bytes = iov.iov_len};
	struct kvof_result r;

	expect_int(kvof_cache_id_of(cache, &n, sizeof(n), &b.id), 0);
	kt_noise(&r, sizeof(r));
	expect_int(kvof_cache_wait(cache, op, &b, 1, 0, &r), 0);
	expect_int(r.busy, 0);
	return r.reason;
}

static uint32_t save(struct kvof_cache *cache, uint32_t n)
{
	struct prng p = prng_of(n);

	prng_fill(&p, data, BYTES);
	return one(cache, KVOF_SAVE, n, data);
}

static uint32_t load(struct kvof_cache *cache, uint32_t n)
{
	struct prng p = prng_of(n);
	uint32_t reason;

	kt_noise(back, sizeof(back));
	reason = one(cache, KVOF_LOAD, n, back);
	prng_fill(&p, data, BYTES);
	if (reason == KVOF_OK)
		expect_mem(back, data, BYTES - n);
	return reason;
}

static void saved(void)
{
	struct kvof_cache *cache = opened();

	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(save(cache, n), KVOF_OK);
	kvof_cache_close(&cache);
}

/* Misses have a reason, the others are right, and all can be saved anew. Return: misses. */
static unsigned misses(struct kvof_cache *cache)
{
	unsigned lost = 0;

	for (uint32_t n = 0; n < BLOCKS; n++) {
		uint32_t reason = load(cache, n);

		expect(reason == KVOF_OK || reason == KVOF_CORRUPT || reason == KVOF_IDENTITY ||
		       reason == KVOF_ABSENT || reason == KVOF_ERROR);
		lost += reason != KVOF_OK;
	}
	for (uint32_t n = 0; n < BLOCKS; n++) {
		uint32_t reason = save(cache, n);

		expect(reason == KVOF_OK || reason == KVOF_EXISTS);
		expect_int(load(cache, n), KVOF_OK);
	}
	return lost;
}

TEST(blocks_are_there_in_the_next_process)
{
	struct kvof_cache *cache;

	begin();
	saved();
	cache = opened();
	expect_int(misses(cache), 0);
	for (uint32_t n = 0; n < BLOCKS; n++)
		expect_int(one(cache, KVOF_EXISTS_OP, n, NULL), KVOF_OK);
	kvof_cache_close(&cache);
	end();
}

TEST(s3_blocks_outlive_a_process_that_is_killed)
{
	struct kvof_cache *cache;
	int status, told[2];
	uint32_t n;
	pid_t pid;

	begin();
	expect_int(pipe(told), 0);
	pid = fork();
	if (pid == 0) {
		cache = opened();
		for (n = 0; n < BLOCKS; n++)
			if (save(cache, n) != KVOF_OK || write(told[1], &n, sizeof(n)) < 0)
				_exit(1);
		pause();
	}
	do
		expect_int(read(told[0], &n, sizeof(n)), sizeof(n));
	while (n < BLOCKS - 1);
	expect_int(kill(pid, SIGKILL), 0);
	expect_int(waitpid(pid, &status, 0), pid);
	cache = opened();
	expect_int(misses(cache), 0);
	kvof_cache_close(&cache);
	close(told[0]);
	close(told[1]);
	end();
}

TEST(a_second_process_on_the_same_files_is_refused_with_a_sentence)
{
	struct kvof_cache *cache;
	int status;
	pid_t pid;

	begin();
	cache = opened();
	pid = fork();
	if (pid == 0) {
		struct kvof_cache_opts opts = options();
		struct kvof_cache *second = NULL;
		char why[256] = "";
		int rc = kvof_cache_open(&opts, why, &second);

		_exit(rc == -EBUSY && strstr(why, path[0]) != NULL &&
		      strstr(why, "in use by another process") != NULL ? 0 : 1);
	}
	expect_int(waitpid(pid, &status, 0), pid);
	expect(WIFEXITED(status));
	expect_int(WEXITSTATUS(status), 0);
	expect_int(save(cache, 1), KVOF_OK);       /* the first is not disturbed */
	expect_int(load(cache, 1), KVOF_OK);
	kvof_cache_close(&cache);
	end();
}

TEST(s1_bytes_flipped_in_a_file_are_misses_with_a_reason)
{
	struct prng p = prng_of(5);
	struct kvof_cache *cache;
	unsigned lost;

	begin();
	saved();
	for (int i = 0; i < 2; i++) {
		int fd = open(path[i], O_RDWR);

		expect(fd >= 0);
		for (int k = 0; k < 40; k++) {         /* in the first MiBs, where values are */
			off_t at = (1 << 20) + (off_t)prng_below(&p, 4 << 20);
			uint8_t byte;

			expect_int(pread(fd, &byte, 1, at), 1);
			byte ^= 0x40;
			expect_int(pwrite(fd, &byte, 1, at), 1);
		}
		close(fd);
	}
	cache = opened();
	lost = misses(cache);
	printf("# %u of %d lost\n", lost, BLOCKS);
	expect(lost > 0 && lost < BLOCKS);
	kvof_cache_close(&cache);
	end();
}

TEST(s1_a_file_that_was_cut_is_refused_in_words_or_its_blocks_are_misses)
{
	struct kvof_cache_opts opts = options();
	struct kvof_cache *cache = NULL;
	char why[256] = "";

	begin();
	saved();
	expect_int(truncate(path[1], DRIVE_BYTES / 2), 0);
	opts = options();
	snprintf(text[1], sizeof(text[1]), "%s", path[1]);
	if (kvof_cache_open(&opts, why, &cache) == 0) {
		misses(cache);
		kvof_cache_close(&cache);
	} else {
		expect(strstr(why, path[1]) != NULL);
		opts.flash_format = 1;             /* and then it can be had anew */
		expect_int(kvof_cache_open(&opts, why, &cache), 0);
		expect_int(misses(cache), BLOCKS);
		kvof_cache_close(&cache);
	}
	end();
}

TEST(s1_two_files_swapped_are_told_apart)
{
	struct kvof_cache_opts opts;
	struct kvof_cache *cache = NULL;
	char third[128], why[256] = "";

	begin();
	saved();
	snprintf(third, sizeof(third), "%s/f2", folder);
	expect_int(rename(path[0], third), 0);
	expect_int(rename(path[1], path[0]), 0);
	expect_int(rename(third, path[1]), 0);
	opts = options();
	if (kvof_cache_open(&opts, why, &cache) == 0) {
		expect_int(misses(cache), 0);
		kvof_cache_close(&cache);
	} else {
		expect(why[0] != '\0');
	}
	end();
}

TEST(s12_a_cap_beyond_the_files_and_a_size_beyond_the_disk_are_refused)
{
	struct kvof_cache_opts opts;
	struct kvof_cache *cache = NULL;
	char why[256] = "";
	struct stat st;

	begin();
	opts = options();
	opts.flash_bytes = UINT64_C(1) << 40;
	expect_int(kvof_cache_open(&opts, why, &cache), -EINVAL);
	expect(strstr(why, "1099511627776") != NULL);
	opts.flash_bytes = 0;
	snprintf(text[1], sizeof(text[1]), "%s,size=900TiB", path[1]);
	expect(kvof_cache_open(&opts, why, &cache) < 0);
	expect(strstr(why, path[1]) != NULL);
	expect(stat(path[1], &st) != 0);           /* nothing is left of it */
	unlink(path[0]);
	expect_int(rmdir(folder), 0);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* The flags of the mapping of `at`, as the kernel tells them. False: this kernel tells none. */
static bool mapping_flags(const void *at, char *flags, size_t room)
{
	uintptr_t from, to, want = (uintptr_t)at;
	char line[512];
	bool in = false, told = false;
	FILE *f = fopen("/proc/self/smaps", "re");

	while (f != NULL && !told && fgets(line, sizeof(line), f) != NULL) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
			in = from <= want && want < to;
		told = in && strncmp(line, "VmFlags:", 8) == 0;
	}
	if (f != NULL)
		fclose(f);
	snprintf(flags, room, "%s", told ? line : "");
	return told;
}

TEST(memory_for_dram_and_transfers_asks_for_huge_pages)
{
	char flags[512];
	uint8_t *at;

	if (access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) != 0)
		skip_because("this kernel has no huge pages");
	at = loop_buffer_map(UINT64_C(8) << 20);
	expect(at != NULL);
	if (!mapping_flags(at, flags, sizeof(flags)))
		skip_because("this kernel does not tell how memory is mapped");
	expect_int((uintptr_t)at % (2 << 20), 0);
	expect(strstr(flags, " hg") != NULL);
	loop_buffer_unmap(at, UINT64_C(8) << 20);
}
