/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any size and any alignment, end to end: Store and Retrieve of every odd size at every odd buffer
 * offset, with and without digests, over TCP to a real `kvof serve`, up to the longest value at its
 * default and at its limit. Bytes around the buffers are watched.
 */
#include "kt.h"

#include <kvof/client.h>

#include "base/must.h"
#include "base/prng.h"
#include "serve_child.h"

#define GUARD 4096

static const uint32_t sizes[] = {0, 1, 511, 512, 513, 4095, 4096, 4097, 131071, 131072, 131073,
				 MiB + 1};
static const uint32_t offsets[] = {0, 1, 511};

struct sizes {
	struct serve serve;
	struct kvof_client *client;
	uint8_t *out, *in;
	size_t room;
};

static void sizes_begin(struct sizes *t, const char *value_max, uint32_t digests)
{
	const char *words[] = {"--drive", "mem,size=768MiB", "--value-bytes-max", value_max, NULL};
	struct kvof_client_opts opts = {.struct_bytes = sizeof(opts), .digests = digests,
					.deadline_ns = 60 * NS_PER_S};
	struct kvof_client_info info;
	struct prng p = prng_of(digests + 1);
	char why[256] = "";

	expect(serve_start(&t->serve, 0, words));
	opts.target = t->serve.target;
	if (kvof_client_open(&opts, why, &t->client) != 0)
		fail_msg("%s", why);
	expect_int(kvof_client_info(t->client, &info), 0);
	t->room = (size_t)info.value_bytes_max + 3 * GUARD;
	t->out = aligned_alloc(4096, t->room);
	t->in = aligned_alloc(4096, t->room);
	expect(t->out != NULL && t->in != NULL);
	prng_fill(&p, t->out, t->room);
}

static void sizes_end(struct sizes *t)
{
	kvof_client_close(&t->client);
	serve_end(&t->serve, SIGTERM);
	free(t->out);
	free(t->in);
}

/* One value out from offset, and back to another offset; the rest of the buffer stays noise. */
static void round_trip(struct sizes *t, uint32_t bytes, uint32_t offset)
{
	struct kvof_key key = {.bytes = 8};
	uint8_t *from = t->out + offset, *to = t->in + GUARD + (offset == 0 ? 0 : 512 - offset);
	uint32_t got = UINT32_MAX;

	memcpy(key.byte, &bytes, 4);
	memcpy(key.byte + 4, &offset, 4);
	memset(t->in, 0x5a, bytes + 3 * GUARD);
	expect_int(kvof_client_store(t->client, &key, from, bytes, 0, 0), 0);
	expect_int(kvof_client_retrieve(t->client, &key, to, bytes, 0, &got), 0);
	expect_int(got, bytes);
	if (memcmp(to, from, bytes) != 0)
		fail_msg("%u bytes at offset %u came back wrong", bytes, offset);
	for (unsigned i = 1; i <= GUARD / 2; i++)
		if (to[-(int)i] != 0x5a || to[bytes + i - 1] != 0x5a)
			fail_msg("%u bytes at offset %u: written outside the room", bytes, offset);
	/* The same into less room than there are bytes. */
	if (bytes > 1) {
		memset(to, 0xa5, bytes);
		expect_int(kvof_client_retrieve(t->client, &key, to, bytes / 2, 0, &got), 0);
		expect_int(got, bytes);
		expect(memcmp(to, from, bytes / 2) == 0 && to[bytes / 2] == 0xa5);
	}
	expect_int(kvof_client_delete(t->client, &key, 0), 0);
}

static void matrix(const char *value_max, uint32_t value_bytes_max, uint32_t digests)
{
	struct sizes t;
	struct kvof_key key = {.bytes = 1, .byte = {'x'}};

	sizes_begin(&t, value_max, digests);
	for (size_t i = 0; i < ARRAY_COUNT(sizes); i++)
		for (size_t j = 0; j < ARRAY_COUNT(offsets); j++)
			round_trip(&t, sizes[i], offsets[j]);
	for (size_t j = 0; j < ARRAY_COUNT(offsets); j++)
		round_trip(&t, value_bytes_max, offsets[j]);
	round_trip(&t, value_bytes_max - 1, 1);
	expect_int(kvof_client_store(t.client, &key, t.out, value_bytes_max + 1u, 0, 0), -EINVAL);
	expect_int(kvof_client_exist(t.client, &key, 0), -ENOENT);
	sizes_end(&t);
}

TEST(s10_every_size_and_offset_at_the_default_limit)
{
	matrix("8MiB", 8 * MiB, 0);
}

TEST(s10_every_size_and_offset_at_the_default_limit_with_digests)
{
	matrix("8MiB", 8 * MiB, KVOF_DIGEST_HEADER | KVOF_DIGEST_DATA);
}

TEST(s10_every_size_and_offset_at_the_highest_limit)
{
	matrix("64MiB", 64 * MiB, 0);
}

TEST(s10_every_size_and_offset_at_the_highest_limit_with_digests)
{
	matrix("64MiB", 64 * MiB, KVOF_DIGEST_HEADER | KVOF_DIGEST_DATA);
}

TEST(s10_one_digest_without_the_other)
{
	static const uint32_t one[] = {KVOF_DIGEST_HEADER, KVOF_DIGEST_DATA};

	for (size_t i = 0; i < ARRAY_COUNT(one); i++) {
		struct sizes t;

		sizes_begin(&t, "512KiB", one[i]);
		for (size_t j = 0; j + 1 < ARRAY_COUNT(sizes); j++)
			round_trip(&t, sizes[j], offsets[j % 3]);
		round_trip(&t, 512 * KiB, 511);
		sizes_end(&t);
	}
}
