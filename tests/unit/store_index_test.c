/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/index.c: find, replace, remove, order, and what a key costs. */
#include "kt.h"

#include "base/must.h"
#include "base/prng.h"
#include "store/index.h"

static struct kv_key key_of(uint64_t n, uint8_t len)
{
	struct kv_key key = {.len = len};
	struct prng p = prng_of(n);

	prng_fill(&p, key.byte, len);
	return key;
}

static struct index_place place_of(uint64_t n)
{
	return (struct index_place){.sequence = n & ((UINT64_C(1) << 52) - 1), .block = (uint32_t)n,
				    .value_bytes = (uint32_t)(n % (64 * MiB + 1)), .drive = n % 16};
}

TEST(what_was_put_is_found_with_every_field_and_nothing_else_is)
{
	struct index *ix;
	struct index_place most = {.sequence = (UINT64_C(1) << 52) - 1, .block = UINT32_MAX,
				   .value_bytes = 64 * MiB, .drive = 15, .flags = INDEX_HIT};

	expect_int(index_open(100, &ix), 0);
	for (uint8_t len = 1; len <= 16; len++) {
		struct kv_key key = key_of(7, len);
		struct index_place got;

		expect_int(index_find(ix, &key), INDEX_NONE);
		expect(index_put(ix, &key, &most));
		got = index_place(ix, index_find(ix, &key));
		expect_int(got.sequence, most.sequence);
		expect_int(got.block, most.block);
		expect_int(got.value_bytes, most.value_bytes);
		expect_int(got.drive, most.drive);
		expect_int(got.flags, most.flags);
	}
	index_check(ix);
	expect_int(index_count(ix), 16);
	index_close(&ix);
	expect(ix == NULL);
}

TEST(a_key_and_the_same_key_with_a_zero_byte_more_are_two_keys)
{
	struct index *ix;
	struct kv_key a = {.len = 1, .byte = "a"}, a0 = {.len = 2, .byte = "a"};
	struct index_place one = place_of(1), two = place_of(2);
	uint32_t entries[4];

	expect_int(index_open(4, &ix), 0);
	expect(index_put(ix, &a0, &two));
	expect(index_put(ix, &a, &one));
	expect_int(index_place(ix, index_find(ix, &a)).block, 1);
	expect_int(index_place(ix, index_find(ix, &a0)).block, 2);
	expect_int(index_list(ix, &a, entries, 4), 2);
	expect_int(index_place(ix, entries[0]).block, 1);
	index_close(&ix);
}

TEST(a_full_index_refuses_a_new_key_and_takes_a_known_one)
{
	struct index *ix;
	struct index_place p = place_of(1);

	expect_int(index_open(3, &ix), 0);
	for (unsigned i = 0; i < 3; i++) {
		struct kv_key key = key_of(i, 16);

		expect(index_put(ix, &key, &p));
	}
	for (unsigned i = 0; i < 4; i++) {
		struct kv_key key = key_of(i, 16);

		expect_int(index_put(ix, &key, &p), i < 3);
	}
	index_check(ix);
	index_close(&ix);
}

/* Against a plain array: present[n] says whether key n is in. */
static void churn(uint32_t keys_max, unsigned steps, bool dense)
{
	struct index *ix;
	struct prng p = prng_of(keys_max);
	uint32_t span = keys_max * 2;
	uint64_t *block = calloc(span, sizeof(*block));

	expect_int(index_open(keys_max, &ix), 0);
	for (unsigned i = 0; i < steps; i++) {
		uint32_t n = (uint32_t)prng_below(&p, span);
		/* Dense keys differ in their last bytes only: all in one run of the order. */
		struct kv_key key = key_of(n, 16);
		struct index_place place = place_of(i + 1);
		uint32_t entry;

		if (dense) {
			memset(key.byte, 'k', 16);
			key.byte[12] = (uint8_t)(n >> 24), key.byte[13] = (uint8_t)(n >> 16);
			key.byte[14] = (uint8_t)(n >> 8), key.byte[15] = (uint8_t)n;
		}
		entry = index_find(ix, &key);
		expect_int(entry != INDEX_NONE, block[n] != 0);
		if (entry != INDEX_NONE)
			expect_int(index_place(ix, entry).block, block[n]);
		if (prng_below(&p, 100) < (i / (steps / 4) % 2 == 0 ? 70 : 30)) {
			if (index_put(ix, &key, &place))
				block[n] = i + 1;
			else
				expect_int(index_count(ix), keys_max);
		} else if (entry != INDEX_NONE) {
			index_remove(ix, entry);
			block[n] = 0;
		}
		if (i % (steps / 8) == 0)
			index_check(ix);
	}
	index_check(ix);
	free(block);
	index_close(&ix);
}

TEST(a_long_run_of_puts_and_removes_agrees_with_an_array)
{
	churn(1, 400, false);
	churn(50, 4000, false);
	churn(3000, 60000, false);
	churn(3000, 60000, true);
}

TEST(a_scan_in_pages_sees_every_key_that_stays_exactly_once_while_others_come_and_go)
{
	struct index *ix;
	struct prng p = prng_of(5);
	struct kv_key last = {.len = 0};
	unsigned seen = 0, stay = 5000, got;
	uint32_t entries[37];
	uint8_t *count = calloc(stay, 1);

	expect_int(index_open(20000, &ix), 0);
	for (unsigned i = 0; i < stay; i++) {
		struct kv_key key = key_of(i, 16);
		struct index_place place = {.block = i, .drive = 1, .value_bytes = 1};

		expect(index_put(ix, &key, &place));
	}
	do {
		got = index_list(ix, &last, entries, ARRAY_COUNT(entries));
		for (unsigned i = 0; i < got; i++) {
			struct index_place place = index_place(ix, entries[i]);
			struct kv_key key;

			index_key(ix, entries[i], &key);
			if (last.len != 0 && i == 0 && kv_key_equal(&key, &last))
				continue;
			expect(last.len == 0 || kv_key_compare(&last, &key) < 0);
			last = key;
			if (place.drive == 1) {
				count[place.block]++;
				seen++;
			}
		}
		for (unsigned i = 0; i < 20; i++) {
			struct kv_key key = key_of(stay + prng_below(&p, 5000), 16);
			struct index_place place = {.drive = 2, .value_bytes = 1};
			uint32_t entry = index_find(ix, &key);

			if (entry != INDEX_NONE && !kv_key_equal(&key, &last))
				index_remove(ix, entry);
			else
				expect(index_put(ix, &key, &place));
		}
	} while (got == ARRAY_COUNT(entries));
	expect_int(seen, stay);
	for (unsigned i = 0; i < stay; i++)
		expect_int(count[i], 1);
	index_check(ix);
	free(count);
	index_close(&ix);
}

TEST(sorting_once_gives_the_same_order_as_inserting_in_order)
{
	struct index *a, *b;
	uint32_t one[2000], two[2000];
	struct kv_key first = {.len = 0};

	expect_int(index_open(2000, &a), 0);
	expect_int(index_open(2000, &b), 0);
	index_unsort(b);
	for (unsigned i = 0; i < 2000; i++) {
		struct kv_key key = key_of(i, (uint8_t)(1 + i % 16));
		struct index_place place = place_of(i);

		expect(index_put(a, &key, &place) && index_put(b, &key, &place));
	}
	expect_int(index_sort(b), 0);
	index_check(b);
	expect_int(index_list(a, &first, one, 2000), index_count(a));
	expect_int(index_list(b, &first, two, 2000), index_count(a));
	expect_mem(one, two, index_count(a) * sizeof(one[0]));
	index_close(&a);
	index_close(&b);
}

TEST(a_key_costs_at_most_48_bytes)
{
	static const uint32_t sizes[] = {65536, 1000000, 10000000};

	for (unsigned i = 0; i < ARRAY_COUNT(sizes); i++) {
		struct index *ix;

		expect_int(index_open(sizes[i], &ix), 0);
		printf("# %u keys: %.2f bytes a key\n", sizes[i],
		       (double)index_bytes(ix) / sizes[i]);
		expect(index_bytes(ix) <= (uint64_t)sizes[i] * INDEX_KEY_BYTES_MAX);
		index_close(&ix);
	}
}

TEST(leaves_suffice_when_an_index_is_filled_in_falling_and_in_rising_order)
{
	for (unsigned rising = 0; rising < 2; rising++) {
		struct index *ix;

		expect_int(index_open(100000, &ix), 0);
		for (uint32_t i = 0; i < 100000; i++) {
			uint32_t n = rising ? i : 100000 - i;
			struct kv_key key = {
				.len = 4, .byte = {(uint8_t)(n >> 24), (uint8_t)(n >> 16),
						   (uint8_t)(n >> 8), (uint8_t)n}};
			struct index_place place = place_of(1);

			expect(index_put(ix, &key, &place));
		}
		index_check(ix);
		index_close(&ix);
	}
}
