/* SPDX-License-Identifier: Apache-2.0 */
/* The footer and the cut: every byte counts, each refusal has its reason. */
#include "kt.h"

#include "base/hash.h"
#include "base/must.h"
#include "cache/frame.h"

static struct frame sample(void)
{
	struct frame f = {.block_bytes = 10000, .xxh3 = UINT64_C(0x1122334455667788),
			  .cut_bytes = 4032};

	for (int i = 0; i < KVOF_ID_BYTES; i++)
		f.identity.byte[i] = (uint8_t)(i + 1);
	return f;
}

/* Sets a byte and makes the footer's own checksum right again. */
static void forge(struct frame_footer *f, size_t at, uint8_t value)
{
	memcpy((uint8_t *)f + at, &value, 1);
	f->crc32c = le32_of(crc32c(f, 60));
}

TEST(footer_bytes_are_where_the_format_says)
{
	struct frame f = sample();
	struct frame_footer footer;
	const uint8_t *b = (const uint8_t *)&footer;

	kt_noise(&footer, sizeof(footer));
	frame_encode(&f, &footer);
	expect_mem(b, "KOVF\1\0\0\0\x10\x27\0\0\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11", 24);
	expect_mem(b + 24, f.identity.byte, 32);
	expect_mem(b + 56, "\xc0\x0f\0\0", 4);
	expect_int(le32_get(footer.crc32c), crc32c(b, 60));
}

TEST(what_was_encoded_is_accepted)
{
	struct frame f = sample(), got;
	struct frame_footer footer;

	kt_noise(&got, sizeof(got));
	frame_encode(&f, &footer);
	expect_int(frame_check(&footer, &f.identity, &got), FRAME_OK);
	expect_int(got.block_bytes, 10000);
	expect_int(got.cut_bytes, 4032);
	expect(got.xxh3 == f.xxh3);
	expect_mem(&got.identity, &f.identity, 32);
}

TEST(every_flipped_bit_of_a_footer_is_refused)
{
	struct frame f = sample(), got;
	struct frame_footer good, bad;

	frame_encode(&f, &good);
	for (size_t bit = 0; bit < 8 * sizeof(good); bit++) {
		enum frame_verdict want = bit / 8 < 4 ? FRAME_BAD_MAGIC : FRAME_BAD_SUM;

		bad = good;
		((uint8_t *)&bad)[bit / 8] ^= (uint8_t)(1u << bit % 8);
		expect_int(frame_check(&bad, &f.identity, &got), want);
	}
}

TEST(a_footer_with_a_right_sum_but_wrong_contents_has_its_own_reason)
{
	struct frame f = sample(), got;
	struct frame_footer footer;

	frame_encode(&f, &footer);
	forge(&footer, 4, 2);
	expect_int(frame_check(&footer, &f.identity, &got), FRAME_BAD_VERSION);
	frame_encode(&f, &footer);
	forge(&footer, 6, 1);              /* a tag: 0 in values of older versions */
	expect_int(frame_check(&footer, &f.identity, &got), FRAME_OK);
	expect_int(got.tag, 1);
	for (size_t i = 0; i < 32; i++) {
		frame_encode(&f, &footer);
		forge(&footer, 24 + i, 0xee);
		expect_int(frame_check(&footer, &f.identity, &got), FRAME_BAD_IDENTITY);
	}
	f.cut_bytes = 0;
	frame_encode(&f, &footer);
	expect_int(frame_check(&footer, &f.identity, &got), FRAME_BAD_LENGTH);
	f.cut_bytes = FRAME_CUT_MAX + 1;
	frame_encode(&f, &footer);
	expect_int(frame_check(&footer, &f.identity, &got), FRAME_BAD_LENGTH);
	f.cut_bytes = 1;
	f.block_bytes = FRAME_PARTS_MAX;
	frame_encode(&f, &footer);
	expect_int(frame_check(&footer, &f.identity, &got), FRAME_BAD_LENGTH);
	f.block_bytes = UINT64_MAX;
	frame_encode(&f, &footer);
	expect_int(frame_check(&footer, &f.identity, &got), FRAME_BAD_LENGTH);
}

TEST(identity_is_the_only_verdict_that_is_not_corrupt)
{
	for (unsigned v = 0; v < FRAME_VERDICT_COUNT; v++) {
		enum kvof_reason want = v == FRAME_OK ? KVOF_OK :
					v == FRAME_BAD_IDENTITY ? KVOF_IDENTITY : KVOF_CORRUPT;

		expect_int(frame_reason(v), want);
		expect(frame_verdict_name(v)[0] != '\0');
	}
}

TEST(a_block_is_cut_into_parts_that_join_to_it)
{
	static const uint64_t bytes[] = {0, 1, 99, 100, 101, 199, 200, 201, 1000, 12345};

	for (size_t i = 0; i < ARRAY_COUNT(bytes); i++) {
		uint32_t n = frame_part_count(bytes[i], 100);
		uint64_t sum = 0;

		expect_int(n, bytes[i] == 0 ? 1 : (bytes[i] + 99) / 100);
		for (uint32_t k = 0; k < n; k++) {
			uint32_t part = frame_part_bytes(bytes[i], 100, k);

			expect(k + 1 == n || part == 100);
			expect(bytes[i] == 0 || part > 0);
			sum += part;
		}
		expect_int(sum, bytes[i]);
	}
}

TEST(a_part_fits_only_its_own_place)
{
	struct frame f = sample();

	expect(frame_place_fits(&f, (struct frame_place){0, 3, 4032}));
	expect(frame_place_fits(&f, (struct frame_place){2, 3, 10000 - 2 * 4032}));
	expect(!frame_place_fits(&f, (struct frame_place){2, 3, 4032}));
	expect(!frame_place_fits(&f, (struct frame_place){0, 2, 4032}));
	expect(!frame_place_fits(&f, (struct frame_place){3, 3, 0}));
	expect(!frame_place_fits(&f, (struct frame_place){0, 1, 0}));
	expect(frame_is_head(&f, 0));
	expect(!frame_is_head(&f, 1));
	f.block_bytes = 0;
	expect(!frame_is_head(&f, 0));
	expect(frame_place_fits(&f, (struct frame_place){0, 1, 0}));
}

TEST(sum_of_parts_is_free_of_order_but_not_of_places)
{
	uint64_t a = frame_sum_add(frame_sum_add(0, 0, 11), 1, 22);
	uint64_t b = frame_sum_add(frame_sum_add(0, 1, 22), 0, 11);
	uint64_t c = frame_sum_add(frame_sum_add(0, 1, 11), 0, 22);

	expect(a == b);
	expect(a != c);
}

TEST(slices_are_the_bytes_asked_for_over_any_pieces)
{
	char data[100], got[100];
	struct iovec iov[5] = {{data, 10}, {data + 10, 0}, {data + 10, 1}, {data + 11, 50},
			       {data + 61, 39}}, out[5];

	for (int i = 0; i < 100; i++)
		data[i] = (char)i;
	for (uint64_t from = 0; from <= 100; from++) {
		for (uint64_t n = 0; from + n <= 100; n++) {
			struct frame_span span = {from, n};
			unsigned pieces;
			char *at = got;

			kt_noise(got, sizeof(got));
			frame_gather(iov, 5, span, got);
			expect_mem(got, data + from, n);
			pieces = frame_slice(iov, 5, span, out);
			for (unsigned i = 0; i < pieces; i++) {
				expect(out[i].iov_len > 0);
				memcpy(at, out[i].iov_base, out[i].iov_len);
				at += out[i].iov_len;
			}
			expect_int(at - got, n);
			expect_mem(got, data + from, n);
		}
	}
}
