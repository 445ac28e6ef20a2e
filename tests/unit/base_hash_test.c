/* SPDX-License-Identifier: Apache-2.0 */
#include "kt.h"

#include "base/bytes.h"
#include "base/hash.h"
#include "base/prng.h"

TEST(crc32c_of_the_check_string_is_the_published_value)
{
	expect_int(crc32c("123456789", 9), 0xe3069283u);
	expect_int(crc32c("", 0), 0);
}

TEST(crc32c_continues_over_pieces)
{
	char text[] = "123456789";
	struct iovec iov[3] = {{text, 2}, {text + 2, 0}, {text + 2, 7}};

	expect_int(crc32c_more(crc32c("1234", 4), "56789", 5), 0xe3069283u);
	expect_int(crc32c_iov(iov, 3, 9), 0xe3069283u);
}

TEST(xxh3_over_pieces_equals_xxh3_of_the_whole)
{
	uint8_t data[1000];
	struct prng p = prng_of(7);
	struct iovec iov[4] = {{data, 1}, {data + 1, 240}, {data + 241, 0}, {data + 241, 759}};

	prng_fill(&p, data, sizeof(data));
	expect(hash_xxh3_iov(iov, 4, 1000) == hash_xxh3(data, 1000));
	expect(hash_xxh3(data, 999) != hash_xxh3(data, 1000));
}

TEST(sha256_of_abc_is_the_published_value)
{
	static const uint8_t want[4] = {0xba, 0x78, 0x16, 0xbf};
	uint8_t whole[32], pieces[32];
	struct hash_sha256 *h = hash_sha256_begin();

	hash_sha256_once("abc", 3, whole);
	hash_sha256_add(h, "a", 1);
	hash_sha256_add(h, "bc", 2);
	hash_sha256_end(&h, pieces);
	expect_mem(whole, want, 4);
	expect_mem(whole, pieces, 32);
	expect(h == NULL);
}

TEST(little_endian_types_put_the_low_byte_first)
{
	le32 v = le32_of(0x01020304);
	le64 w = le64_of(UINT64_C(0x0102030405060708));

	expect_int(v.b[0], 4);
	expect_int(le32_get(v), 0x01020304);
	expect_int(w.b[0], 8);
	expect(le64_get(w) == UINT64_C(0x0102030405060708));
	expect_int(le16_get(le16_of(0xff01)), 0xff01);
}
