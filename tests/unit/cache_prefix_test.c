/* SPDX-License-Identifier: Apache-2.0 */
/* What is known about blocks, and the rule of the longest prefix. */
#include "kt.h"

#include "base/hash.h"
#include "base/must.h"
#include "cache/prefix.h"

static struct kvof_id id_of(uint32_t n)
{
	struct kvof_id id;

	hash_sha256_once(&n, sizeof(n), id.byte);
	return id;
}

TEST(leading_blocks_end_at_the_first_that_is_not_there)
{
	struct kvof_result r[4];

	kt_noise(r, sizeof(r));
	for (unsigned missing = 0; missing <= 4; missing++) {
		for (unsigned i = 0; i < 4; i++)
			r[i].reason = i == missing ? KVOF_ABSENT : KVOF_OK;
		expect_int(prefix_leading(r, 4), missing);
	}
	r[1].reason = KVOF_LATE;
	expect_int(prefix_leading(r, 4), 1);
	expect_int(prefix_leading(r, 0), 0);
}

TEST(what_was_learned_is_found_until_forgotten)
{
	struct prefix *p;
	struct prefix_known known = {123, 45, false}, got;
	struct kvof_id a = id_of(1), b = id_of(2);

	expect_int(prefix_open(&p), 0);
	kt_noise(&got, sizeof(got));
	expect(!prefix_find(p, &a, &got));
	expect_int(got.block_bytes, 0);
	prefix_set(p, &a, &known);
	expect(prefix_find(p, &a, &got));
	expect_int(got.block_bytes, 123);
	expect_int(got.cut_bytes, 45);
	expect(!prefix_find(p, &b, &got));
	known.bad = true;
	prefix_set(p, &a, &known);
	expect(prefix_find(p, &a, &got) && got.bad);
	prefix_forget(p, &a);
	expect(!prefix_find(p, &a, &got));
	prefix_forget(p, &a);
	prefix_close(&p);
	expect(p == NULL);
}

TEST(more_than_fits_forgets_the_oldest_and_never_mixes_ids)
{
	struct prefix *p;
	struct prefix_known got;
	uint32_t count = 2 * PREFIX_KNOWN_MAX, kept = 0;

	expect_int(prefix_open(&p), 0);
	for (uint32_t i = 0; i < count; i++) {
		struct kvof_id id = id_of(i);
		struct prefix_known known = {i, 1, false};

		prefix_set(p, &id, &known);
		expect(prefix_find(p, &id, &got) && got.block_bytes == i);
	}
	for (uint32_t i = 0; i < count; i++) {
		struct kvof_id id = id_of(i);

		if (prefix_find(p, &id, &got)) {
			expect_int(got.block_bytes, i);
			kept++;
		}
	}
	expect(kept > PREFIX_KNOWN_MAX * 9 / 10 && kept <= PREFIX_KNOWN_MAX);
	prefix_close(&p);
}
