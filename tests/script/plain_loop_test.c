/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine that denies io_uring for real: a seccomp filter refuses its calls in this process and
 * in the `kvof serve` it starts, as a container's profile does. Array and cache work all the same,
 * and each says once why it is slower.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <kvof/cache.h>

#include "kt.h"
#include "serve_child.h"

enum { BLOCKS = 32, BYTES = 300000 };

static uint8_t saved[BLOCKS][BYTES], loaded[BLOCKS][BYTES];

/* False: this machine has no filters. */
static bool deny_io_uring(uint32_t err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, __NR_io_uring_setup, 0, 2),
		BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, __NR_io_uring_register, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof(code) / sizeof(code[0]), code};

	_Static_assert(__NR_io_uring_setup + 2 == __NR_io_uring_register, "three in a row");
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0 &&
	       syscall(__NR_io_uring_setup, 1, NULL) < 0 && errno == (int)err;
}

/* How many lines of a file have both. */
static unsigned lines_with(const char *path, const char *a, const char *b)
{
	FILE *f = fopen(path, "r");
	char line[1024];
	unsigned n = 0;

	expect(f != NULL);
	while (fgets(line, sizeof(line), f) != NULL)
		n += strstr(line, a) != NULL && strstr(line, b) != NULL;
	fclose(f);
	return n;
}

static void batch(struct kvof_cache *cache, enum kvof_op op, uint8_t buffer[BLOCKS][BYTES],
		  bool again)
{
	struct kvof_block block[BLOCKS] = {0};
	struct kvof_result result[BLOCKS];
	struct iovec iov[BLOCKS];

	for (unsigned i = 0; i < BLOCKS; i++) {
		iov[i] = (struct iovec){buffer[i], BYTES};
		block[i] = (struct kvof_block){.iov = &iov[i], .iov_count = 1, .bytes = BYTES};
		memset(block[i].id.byte, (int)i + 1, KVOF_ID_BYTES);
	}
	expect_int(kvof_cache_wait(cache, op, block, BLOCKS, 10000000000, result), 0);
	for (unsigned i = 0; i < BLOCKS; i++)
		expect_int(result[i].reason, op == KVOF_SAVE && again ? KVOF_EXISTS : KVOF_OK);
}

static void save_and_load(const char *target, bool again)
{
	struct kvof_cache_opts opts = {.struct_bytes = sizeof(opts), .target = target,
		.model_id = "plain", .strict = 1};
	struct kvof_cache *cache = NULL;
	char why[256] = "";

	expect_int(kvof_cache_open(&opts, why, &cache), 0);
	for (unsigned i = 0; i < BLOCKS; i++)
		for (unsigned j = 0; j < BYTES; j++)
			saved[i][j] = (uint8_t)(i * 31 + j * 7 + j / 251);
	batch(cache, KVOF_SAVE, saved, again);
	batch(cache, KVOF_LOAD, loaded, again);
	expect_mem(loaded, saved, sizeof(saved));
	kvof_cache_close(&cache);
}

TEST(where_a_seccomp_filter_denies_io_uring_array_and_cache_work_and_each_says_why_once)
{
	char folder[] = "/tmp/kvof-plain-XXXXXX", drive[2][64], lines[64];
	const char *words[] = {"--drive", drive[0], "--drive", drive[1], NULL};
	struct serve array;
	int before;

	if (!deny_io_uring(EPERM))
		skip_because("no seccomp here");
	expect(mkdtemp(folder) != NULL);
	for (unsigned i = 0; i < 2; i++)
		snprintf(drive[i], sizeof(drive[i]), "%s/d%u,size=64MiB", folder, i);
	snprintf(lines, sizeof(lines), "%s/lines", folder);
	before = dup(STDERR_FILENO);
	expect(freopen(lines, "w", stderr) != NULL);
	setenv("KVOF_LOUD", "1", 1);
	unsetenv("KVOF_LOOP");
	expect(serve_start(&array, 0, words));
	expect_int(lines_with(lines, "plain loop", "seccomp"), 1);
	save_and_load(array.target, false);
	save_and_load(array.target, true);
	expect_int(lines_with(lines, "plain loop", "seccomp"), 2);
	serve_end(&array, SIGTERM);
	fflush(stderr);
	dup2(before, STDERR_FILENO);
	close(before);
	for (unsigned i = 0; i < 2; i++) {
		*strchr(drive[i], ',') = 0;
		unlink(drive[i]);
	}
	unlink(lines);
	rmdir(folder);
}
