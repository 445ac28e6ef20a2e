/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On a real file: segments that go give their blocks back to the file system, and what is there
 * stays readable. Skipped where the file system can't punch holes.
 */
#include "kt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "loop/loop.h"
#include "store/store.h"

#define FILE_BYTES (48 * MiB)
#define VALUE (256u * 1024)

static struct loop *loop;
static struct store *store;
static uint32_t put_count, put_target;
static struct store_op op;
static struct store_buf_wait buf_wait;
static int failed;

static uint64_t file_blocks(const char *path)
{
	struct stat st;

	must(stat(path, &st) == 0 && st.st_size == FILE_BYTES);
	return (uint64_t)st.st_blocks * 512;
}

static void next(void);

static void got(struct store_op *o, int res)
{
	if (res != 0 || o->value_bytes != VALUE)
		failed = -1;
	if (res == 0)
		store_buf_give(store, &o->buf);
	loop_stop(loop);
}

static void put_done(struct store_op *o, int res)
{
	struct store_buf *buf = o->buf;

	failed = failed != 0 ? failed : res;
	store_buf_give(store, &buf);
	if (++put_count < put_target) {
		next();
		return;
	}
	op = (struct store_op){.key = o->key, .want_bytes = UINT32_MAX, .done = got};
	store_get(store, &op);
}

static void put_ready(struct store_buf_wait *w, struct store_buf *buf)
{
	for (unsigned i = 0; i < buf->piece_count; i++)
		memset(buf->piece[i].iov_base, (int)put_count, buf->piece[i].iov_len);
	op = (struct store_op){.key = {.len = 4}, .buf = buf, .done = put_done};
	memcpy(op.key.byte, &put_count, sizeof(put_count));
	store_put(store, &op);
}

static void next(void)
{
	buf_wait = (struct store_buf_wait){.payload_bytes = VALUE, .ready = put_ready};
	store_buf_take(store, &buf_wait);
}

static void closed(void *arg)
{
	loop_stop(arg);
}

static bool punches_holes(const char *path)
{
	int fd = open(path, O_RDWR), rc;

	must(fd >= 0);
	rc = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 32 * MiB, 4096);
	close(fd);
	return rc == 0;
}

/* Blocks of the file when the store is full, and after it went through its size four times. */
static void fill(const char *path, bool keep_blocks, uint64_t blocks[2], struct store_stat *stat)
{
	struct loop_opts lo = {.name = "discard"};
	struct store_opts so = {.drive[0] = {.path = path, .bytes = FILE_BYTES}, .drive_count = 1,
		.value_bytes_max = 512 * KiB, .segment_bytes = 3 * MiB, .evict = true,
		.format = true, .keep_blocks = keep_blocks};
	struct store_report report;

	put_count = 0;
	expect_int(loop_open(&lo, &loop), 0);
	expect_int(store_open(&so, loop, &store, &report), 0);
	blocks[0] = file_blocks(path);
	put_target = 4 * FILE_BYTES / VALUE;
	next();
	loop_run(loop);
	expect_int(failed, 0);
	store_stat(store, stat);
	store_close(&store, closed, loop);
	loop_run(loop);
	blocks[1] = file_blocks(path);
	loop_close(&loop);
}

TEST(blocks_of_a_file_go_back_to_the_file_system_when_segments_go)
{
	char path[] = "/tmp/kvof-discard-XXXXXX";
	uint64_t blocks[2];
	struct store_stat stat;
	int fd = mkstemp(path);

	expect(fd >= 0);
	close(fd);
	unlink(path);
	fill(path, true, blocks, &stat);
	expect(stat.evicted_segments > 8 && stat.discarded_bytes == 0);
	expect(blocks[1] >= blocks[0]);
	if (!punches_holes(path)) {
		unlink(path);
		skip_because("the file system of /tmp punches no holes");
	}
	unlink(path);
	fill(path, false, blocks, &stat);
	printf("# %llu of %llu KiB of the file have blocks, %llu KiB were discarded\n",
	       (unsigned long long)blocks[1] / 1024, (unsigned long long)FILE_BYTES / 1024,
	       (unsigned long long)stat.discarded_bytes / 1024);
	expect(stat.discarded_bytes >= 8 * 2 * MiB);
	expect(blocks[1] + 2 * MiB <= blocks[0]);
	unlink(path);
}
