/* SPDX-License-Identifier: Apache-2.0 */
/* The list of domains in use: the field that differs is named; an array's bytes are not trusted. */
#include "kt.h"

#include "base/must.h"
#include "base/prng.h"
#include "cache/domains.h"

static struct identity *made(const char *dtype, const char *layout, const char *shard)
{
	struct kvof_field field[4] = {{"kv_dtype", dtype}, {"layout", layout},
				      {"shard_index", shard}, {"tenant_salt", "secret"}};
	struct kvof_cache_opts opts = {.fields = field, .field_count = 4, .model_id = "m"};
	struct identity *id = NULL;
	char why[256];

	expect_int(identity_make(&opts, why, &id), 0);
	return id;
}

TEST(a_list_that_was_written_is_read_and_ours_is_found)
{
	struct identity *id = made("f16", "kv", "0");
	uint8_t list[DOMAINS_BYTES_MAX];
	char why[256];
	size_t bytes;

	expect_int(domains_compare(id, NULL, 0, why), DOMAINS_NONE);
	kt_noise(list, sizeof(list));
	bytes = domains_add(id, NULL, 0, list);
	expect(bytes > 0);
	kt_noise(why, sizeof(why));
	expect_int(domains_compare(id, list, bytes, why), DOMAINS_SAME);
	expect_str(why, "");
	identity_free(&id);
}

TEST(the_field_that_differs_is_named_with_both_values)
{
	struct identity *a = made("f16", "kv", "0"), *b = made("q8_0", "kv", "0");
	uint8_t list[DOMAINS_BYTES_MAX];
	char why[256];
	size_t bytes = domains_add(a, NULL, 0, list);

	expect_int(domains_compare(b, list, bytes, why), DOMAINS_DIFFER);
	expect(strstr(why, "kv_dtype") != NULL);
	expect(strstr(why, "\"f16\" in use") != NULL && strstr(why, "\"q8_0\" here") != NULL);
	identity_free(&a);
	identity_free(&b);
}

TEST(the_nearest_domain_is_compared)
{
	struct identity *far = made("f32", "other", "0"), *near = made("f16", "kv2", "0");
	struct identity *ours = made("f16", "kv", "0");
	uint8_t one[DOMAINS_BYTES_MAX], two[DOMAINS_BYTES_MAX];
	char why[256];
	size_t bytes = domains_add(far, NULL, 0, one);

	bytes = domains_add(near, one, bytes, two);
	expect_int(domains_compare(ours, two, bytes, why), DOMAINS_DIFFER);
	expect(strstr(why, "\"layout\"") != NULL);
	bytes = domains_add(ours, two, bytes, one);
	expect_int(domains_compare(ours, one, bytes, why), DOMAINS_SAME);
	expect_int(domains_compare(far, one, bytes, why), DOMAINS_SAME);
	identity_free(&far);
	identity_free(&near);
	identity_free(&ours);
}

TEST(a_missing_field_is_named_on_either_side)
{
	struct kvof_cache_opts opts = {.model_id = "m"};
	struct identity *with = made("f16", "kv", "0"), *without = NULL;
	uint8_t list[DOMAINS_BYTES_MAX];
	char why[256];
	size_t bytes = domains_add(with, NULL, 0, list);

	expect_int(identity_make(&opts, why, &without), 0);
	expect_int(domains_compare(without, list, bytes, why), DOMAINS_DIFFER);
	expect(strstr(why, "kv_dtype") != NULL && strstr(why, "not set here") != NULL);
	bytes = domains_add(without, NULL, 0, list);
	expect_int(domains_compare(with, list, bytes, why), DOMAINS_DIFFER);
	expect(strstr(why, "kv_dtype") != NULL && strstr(why, "not set on the array") != NULL);
	identity_free(&with);
	identity_free(&without);
}

TEST(shards_and_tenants_of_one_model_do_not_differ_and_no_salt_is_listed)
{
	struct identity *a = made("f16", "kv", "0"), *b = made("f16", "kv", "1");
	uint8_t list[DOMAINS_BYTES_MAX];
	char why[256];
	size_t bytes = domains_add(a, NULL, 0, list);

	expect_int(domains_compare(b, list, bytes, why), DOMAINS_SAME);
	expect(memmem(list, bytes, "secret", 6) == NULL);
	identity_free(&a);
	identity_free(&b);
}

TEST(the_oldest_domain_leaves_a_full_list)
{
	uint8_t list[2][DOMAINS_BYTES_MAX];
	struct identity *id[DOMAINS_MAX + 3];
	char why[256], name[16];
	size_t bytes = 0;

	for (unsigned i = 0; i < ARRAY_COUNT(id); i++) {
		snprintf(name, sizeof(name), "t%u", i);
		id[i] = made(name, "kv", "0");
		bytes = domains_add(id[i], list[i % 2], bytes, list[(i + 1) % 2]);
	}
	for (unsigned i = 0; i < ARRAY_COUNT(id); i++) {
		expect_int(domains_compare(id[i], list[ARRAY_COUNT(id) % 2], bytes, why),
			   i < 3 ? DOMAINS_DIFFER : DOMAINS_SAME);
		identity_free(&id[i]);
	}
}

/* Cut at every place and with every byte changed: an answer, never a read beyond the end (ASan). */
TEST(a_broken_list_is_bad_or_different_but_harmless)
{
	struct identity *a = made("f16", "kv", "0"), *b = made("f32", "vk", "0");
	uint8_t list[DOMAINS_BYTES_MAX], out[DOMAINS_BYTES_MAX];
	char why[256];
	size_t bytes = domains_add(a, NULL, 0, list);

	for (size_t cut = 1; cut < bytes; cut++) {
		uint8_t *copy = malloc(cut);

		memcpy(copy, list, cut);
		expect_int(domains_compare(b, copy, cut, why), DOMAINS_BAD);
		expect(domains_add(b, copy, cut, out) > 0);
		expect_int(domains_compare(b, out, domains_add(b, copy, cut, out), why),
			   DOMAINS_SAME);
		free(copy);
	}
	for (size_t at = 0; at < bytes; at++) {
		list[at] ^= 0x81;
		expect(domains_compare(b, list, bytes, why) != DOMAINS_SAME);
		expect(strlen(why) < 256);
		expect(domains_add(b, list, bytes, out) > 0);
		list[at] ^= 0x81;
	}
	identity_free(&a);
	identity_free(&b);
}

TEST(each_entry_of_a_list_is_seen_with_the_tag_that_its_values_carry)
{
	struct identity *a = made("f16", "kv", "0"), *b = made("q8_0", "kv", "1");
	struct identity *shard = made("f16", "kv", "7");
	uint8_t one[DOMAINS_BYTES_MAX], list[DOMAINS_BYTES_MAX];
	struct domains_entry entry;
	size_t bytes = domains_add(a, NULL, 0, one), at = 0;
	char text[200];

	bytes = domains_add(b, one, bytes, list);
	expect(domains_next(list, bytes, &at, &entry));
	expect_int(domains_entry_tag(&entry), domains_tag(a));
	domains_text(&entry, text, sizeof(text));
	expect_str(text, "block_tokens=256, kv_dtype=f16, layout=kv, model_id=m");
	domains_text(&entry, text, 20);
	expect_str(text, "block_tokens=256, k");
	expect(domains_field(&entry, "model_id", text, sizeof(text)));
	expect_str(text, "m");
	expect(!domains_field(&entry, "model_id", text, 1));
	expect(!domains_field(&entry, "tenant_salt", text, sizeof(text)));
	expect(domains_next(list, bytes, &at, &entry));
	expect_int(domains_entry_tag(&entry), domains_tag(b));
	expect(!domains_next(list, bytes, &at, &entry));
	/* ranks of one model are one domain to whoever looks */
	expect_int(domains_tag(shard), domains_tag(a));
	expect(domains_tag(a) != domains_tag(b) && domains_tag(a) != 0);
	at = 0;
	expect(!domains_next(list, 3, &at, &entry));
	identity_free(&a);
	identity_free(&b);
	identity_free(&shard);
}
