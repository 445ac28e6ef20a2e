/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input: a byte that picks, then a domain list or a footer as an array may give them. What is
 * accepted must keep the invariants that the cache asserts later.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/must.h"
#include "cache/domains.h"
#include "cache/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct identity *ours(void)
{
	static struct identity *id;
	struct kvof_field field[2] = {{"kv_dtype", "f16"}, {"layout", "kv"}};
	struct kvof_cache_opts opts = {.fields = field, .field_count = 2, .model_id = "m"};
	char why[256];

	if (id == NULL)
		must(identity_make(&opts, why, &id) == 0);
	return id;
}

static void list(const uint8_t *data, size_t size)
{
	static uint8_t out[DOMAINS_BYTES_MAX];
	char why[256];
	enum domains_answer answer = domains_compare(ours(), data, size, why);
	size_t bytes;

	must(memchr(why, '\0', sizeof(why)) != NULL);
	must((why[0] != '\0') == (answer == DOMAINS_DIFFER));
	bytes = domains_add(ours(), data, size, out);
	must(bytes > 0 && bytes <= DOMAINS_BYTES_MAX);
	must(domains_compare(ours(), out, bytes, why) == DOMAINS_SAME);
}

/* Whoever looks at a list gets whole entries, text that ends, and an end. */
static void look(const uint8_t *data, size_t size)
{
	struct domains_entry entry;
	char text[64], field[16];
	size_t at = 0, before = 0;

	while (domains_next(data, size, &at, &entry)) {
		must(at > before && at <= size);
		must(entry.at + entry.bytes == data + at);
		domains_text(&entry, text, sizeof(text));
		must(memchr(text, '\0', sizeof(text)) != NULL);
		if (domains_field(&entry, "model_id", field, sizeof(field)))
			must(memchr(field, '\0', sizeof(field)) != NULL);
		must(domains_entry_tag(&entry) != 0);
		before = at;
	}
}

/* The identity that the footer claims is the one asked for; its sum is made right at times. */
static void footer(const uint8_t *data, size_t size, bool sum_right)
{
	struct frame_footer in = {0};
	struct kvof_id identity;
	struct frame f;
	uint32_t count;
	uint64_t sum = 0;

	memcpy(&in, data, size < sizeof(in) ? size : sizeof(in));
	memcpy(identity.byte, in.identity, sizeof(identity.byte));
	if (sum_right)
		in.crc32c = le32_of(crc32c(&in, offsetof(struct frame_footer, crc32c)));
	if (frame_check(&in, &identity, &f) != FRAME_OK)
		return;
	count = frame_part_count(f.block_bytes, f.cut_bytes);
	must(count >= 1 && count <= FRAME_PARTS_MAX);
	must(frame_is_head(&f, 0) == (count > 1));
	for (uint32_t i = 0; i < count; i++) {
		uint32_t bytes = frame_part_bytes(f.block_bytes, f.cut_bytes, i);

		must(bytes <= FRAME_CUT_MAX);
		must(frame_place_fits(&f, (struct frame_place){i, count, bytes}));
		must(!frame_place_fits(&f, (struct frame_place){i, count, bytes + 1}));
		sum += bytes;
		if (count > 1000 && i == 500)      /* the middle ones are alike */
			break;
	}
	must(count > 1000 || sum == f.block_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] % 3 == 0) {
		list(data + 1, size - 1);
		look(data + 1, size - 1);
	} else {
		footer(data + 1, size - 1, data[0] % 3 == 1);
	}
	return 0;
}
