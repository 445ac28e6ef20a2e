/* SPDX-License-Identifier: Apache-2.0 */
/* What include/kvof/client.h promises of blocks, held against a real `kvof serve`. */
#include "kt.h"

#include <errno.h>

#include <kvof/client.h>

#include "base/must.h"
#include "base/prng.h"
#include "serve_child.h"

struct fixture {
	struct serve serve;
	struct kvof_client *client;
};

static void begin(struct fixture *t)
{
	static const char *const words[] = {
		"--drive", "mem,size=256MiB", "--kv", "64MiB", "--block", "96MiB", NULL};
	struct kvof_client_opts opts = {.struct_bytes = sizeof(opts), .block = 1};
	char why[256] = "";

	*t = (struct fixture){0};
	expect(serve_start(&t->serve, 0, words));
	opts.target = t->serve.target;
	if (kvof_client_open(&opts, why, &t->client) != 0)
		fail_msg("open: %s", why);
}

static void end(struct fixture *t)
{
	kvof_client_close(&t->client);
	serve_end(&t->serve, SIGTERM);
}

TEST(blocks_of_any_length_come_back)
{
	struct kvof_client_info info;
	size_t bytes = 40 * MiB;
	uint8_t *out = malloc(bytes), *in = malloc(bytes);
	struct prng p = prng_of(1);
	struct fixture t;

	begin(&t);
	expect_int(kvof_client_info(t.client, &info), 0);
	expect_int(info.block_bytes, 4096);
	expect_int(info.capacity_bytes, 96 * MiB);
	expect_int(info.transfer_bytes_max, 8 * MiB);
	prng_fill(&p, out, bytes);
	expect_int(kvof_client_write(t.client, 8192, out, bytes, 0, 0), 0);
	kt_noise(in, bytes);
	expect_int(kvof_client_read(t.client, 8192, in, bytes, 0), 0);
	expect_mem(in, out, bytes);
	expect_int(kvof_client_compare(t.client, 8192, out, bytes, 0), 0);
	out[bytes - 1] ^= 1;
	expect_int(kvof_client_compare(t.client, 8192, out, bytes, 0), -EBADMSG);
	out[bytes - 1] ^= 1;
	expect_int(kvof_client_flush(t.client, 0), 0);
	expect_int(kvof_client_zero(t.client, 12288, MiB, KVOF_CLIENT_FUA, 0), 0);
	expect_int(kvof_client_deallocate(t.client, 16 * MiB, 4 * MiB, 0), 0);
	memset(out + 4096, 0, MiB);
	memset(out + 16 * MiB - 8192, 0, 4 * MiB);
	expect_int(kvof_client_read(t.client, 8192, in, bytes, 0), 0);
	expect_mem(in, out, bytes);
	end(&t);
	free(out);
	free(in);
}

TEST(what_is_no_block_is_refused)
{
	struct kvof_key key = {.bytes = 1};
	uint8_t page[4096];
	struct fixture t;

	begin(&t);
	expect_int(kvof_client_read(t.client, 1, page, 4096, 0), -EINVAL);
	expect_int(kvof_client_read(t.client, 0, page, 4095, 0), -EINVAL);
	expect_int(kvof_client_read(t.client, 0, NULL, 4096, 0), -EINVAL);
	expect_int(kvof_client_read(t.client, 96 * MiB, page, 4096, 0), -EINVAL);
	expect_int(kvof_client_write(t.client, 0, page, 4096, KVOF_CLIENT_IF_ABSENT, 0), -EINVAL);
	expect_int(kvof_client_zero(t.client, 0, 0, 0, 0), -EINVAL);
	expect_int(kvof_client_exist(t.client, &key, 0), -EINVAL);
	expect_int(kvof_client_read(t.client, 96 * MiB - 4096, page, 4096, 0), 0);
	end(&t);
}
