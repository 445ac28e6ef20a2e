/* SPDX-License-Identifier: Apache-2.0 */
/* Identities: vectors made by hand from docs/formats.md, framing, every field counts. */
#include "kt.h"

#include <errno.h>

#include "base/hash.h"
#include "base/must.h"
#include "cache/identity.h"

static struct identity *made(const struct kvof_field *fields, uint32_t count, uint32_t tokens)
{
	struct kvof_cache_opts opts = {.fields = fields, .field_count = count,
				       .model_id = "m", .block_tokens = tokens};
	struct identity *id = NULL;
	char why[256];

	kt_noise(why, sizeof(why));
	expect_int(identity_make(&opts, why, &id), 0);
	return id;
}

static struct kvof_id first_block(struct identity *id)
{
	static const int32_t tokens[4] = {1, 2, 3, 4};
	struct kvof_id out;

	kt_noise(&out, sizeof(out));
	identity_block(id, NULL, tokens, 4, &out);
	return out;
}

static bool same(const struct kvof_id *a, const struct kvof_id *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/* One field {"a", "b"}: the domain is built here byte by byte. */
TEST(block_identity_is_the_digest_of_framed_domain_parent_and_framed_tokens)
{
	struct kvof_field field = {"a", "b"};
	struct identity *id = made(&field, 1, 2);
	static const char domain[] =
		"\1\0\0\0\0\0\0\0" "a" "\1\0\0\0\0\0\0\0" "b"
		"\14\0\0\0\0\0\0\0" "block_tokens" "\1\0\0\0\0\0\0\0" "2"
		"\10\0\0\0\0\0\0\0" "model_id" "\1\0\0\0\0\0\0\0" "m";
	static const char tokens[] = "\10\0\0\0\0\0\0\0" "\7\0\0\0" "\377\377\377\377";
	int32_t token[2] = {7, -1};
	uint8_t text[8 + sizeof(domain) - 1 + 32 + sizeof(tokens) - 1] = {0}, want[32];
	struct kvof_id got, next;

	text[0] = sizeof(domain) - 1;
	memcpy(text + 8, domain, sizeof(domain) - 1);
	memcpy(text + 8 + sizeof(domain) - 1 + 32, tokens, sizeof(tokens) - 1);
	hash_sha256_once(text, sizeof(text), want);
	identity_block(id, NULL, token, 2, &got);
	expect_mem(got.byte, want, 32);
	memcpy(text + 8 + sizeof(domain) - 1, want, 32);
	hash_sha256_once(text, sizeof(text), want);
	identity_block(id, &got, token, 2, &next);
	expect_mem(next.byte, want, 32);
	identity_free(&id);
}

/* The 48 bytes are laid out by hand. */
TEST(part_identity_is_the_digest_of_framed_block_index_and_count)
{
	struct kvof_id block, part, other;
	uint8_t text[48] = {32}, want[32];

	memset(&block, 0x5a, sizeof(block));
	memset(text + 8, 0x5a, 32);
	text[40] = 3;
	text[44] = 7;
	hash_sha256_once(text, sizeof(text), want);
	identity_part(&block, (struct part_of){3, 7}, &part);
	expect_mem(part.byte, want, 32);
	identity_part(&block, (struct part_of){3, 8}, &other);
	expect(!same(&part, &other));
	identity_part(&block, (struct part_of){2, 7}, &other);
	expect(!same(&part, &other));
}

TEST(key_is_the_first_sixteen_bytes)
{
	struct kvof_id id;
	struct kv_key key;

	for (int i = 0; i < 32; i++)
		id.byte[i] = (uint8_t)i;
	kt_noise(&key, sizeof(key));
	key = identity_key(&id);
	expect_int(key.len, 16);
	expect_mem(key.byte, id.byte, 16);
}

TEST(s5_ab_c_is_not_a_bc_in_any_place)
{
	static const struct kvof_field sets[][2] = {
		{{"ab", "c"}, {"d", "e"}},
		{{"a", "bc"}, {"d", "e"}},
		{{"ab", "c"}, {"de", ""}},
		{{"ab", "cd"}, {"e", "x"}},
		{{"abc", ""}, {"d", "e"}},
	};
	struct kvof_id id[ARRAY_COUNT(sets)];

	for (size_t i = 0; i < ARRAY_COUNT(sets); i++) {
		struct identity *made_id = made(sets[i], 2, 4);

		id[i] = first_block(made_id);
		for (size_t k = 0; k < i; k++)
			expect(!same(&id[i], &id[k]));
		identity_free(&made_id);
	}
}

TEST(order_of_the_fields_does_not_matter)
{
	struct kvof_field one[3] = {{"a", "1"}, {"b", "2"}, {"c", "3"}};
	struct kvof_field two[3] = {{"c", "3"}, {"a", "1"}, {"b", "2"}};
	struct identity *a = made(one, 3, 4), *b = made(two, 3, 4);
	struct kvof_id x = first_block(a), y = first_block(b);

	expect(same(&x, &y));
	identity_free(&a);
	identity_free(&b);
}

TEST(s5_every_field_matters)
{
	struct kvof_field field[4] = {{"dtype", "f16"}, {"layout", "kv"}, {"salt", "s"},
				      {"w", "1"}};
	struct identity *id = made(field, 4, 4), *bigger = made(field, 4, 8);
	struct kvof_id base = first_block(id), other = first_block(bigger);

	expect(!same(&base, &other));
	identity_free(&bigger);
	for (int i = 0; i < 4; i++) {
		struct kvof_field changed[4];
		struct identity *b;

		memcpy(changed, field, sizeof(field));
		changed[i].value = "x";
		b = made(changed, 4, 4);
		other = first_block(b);
		expect(!same(&base, &other));
		identity_free(&b);
		changed[i] = field[3];
		b = made(changed, 3, 4);
		other = first_block(b);
		expect(!same(&base, &other));
		identity_free(&b);
	}
	identity_free(&id);
}

TEST(every_token_and_the_parent_matter)
{
	struct identity *id = made(NULL, 0, 100);
	int32_t token[100];
	struct kvof_id base, other;

	for (int i = 0; i < 100; i++)
		token[i] = i;
	identity_block(id, NULL, token, 100, &base);
	for (int i = 0; i < 100; i++) {
		token[i] ^= 1 << 30;
		identity_block(id, NULL, token, 100, &other);
		expect(!same(&base, &other));
		token[i] ^= 1 << 30;
	}
	identity_block(id, NULL, token, 99, &other);
	expect(!same(&base, &other));
	identity_block(id, &base, token, 100, &other);
	expect(!same(&base, &other));
	identity_free(&id);
}

TEST(an_engine_key_is_never_a_token_key)
{
	struct identity *id = made(NULL, 0, 2);
	int32_t token[2] = {5, 6};
	struct kvof_id a, b, c;

	identity_block(id, NULL, token, 2, &a);
	identity_engine(id, token, sizeof(token), &b);
	expect(!same(&a, &b));
	identity_engine(id, token, sizeof(token) - 1, &c);
	expect(!same(&b, &c));
	identity_engine(id, "", 0, &a);
	expect(!same(&a, &c));
	identity_free(&id);
}

TEST(a_field_twice_or_against_an_option_is_refused_by_name)
{
	struct kvof_field twice[2] = {{"a", "1"}, {"a", "1"}};
	struct kvof_field against[1] = {{"block_tokens", "17"}};
	struct kvof_field agrees[1] = {{"block_tokens", "16"}};
	struct kvof_field empty[1] = {{"", "1"}};
	struct kvof_cache_opts opts = {.fields = twice, .field_count = 2, .model_id = "m",
				       .block_tokens = 16};
	struct identity *id = NULL;
	char why[256];

	expect_int(identity_make(&opts, why, &id), -EINVAL);
	expect(strstr(why, "\"a\"") != NULL);
	opts.field_count = 1;
	opts.fields = against;
	expect_int(identity_make(&opts, why, &id), -EINVAL);
	expect(strstr(why, "block_tokens") != NULL && strstr(why, "17") != NULL);
	opts.fields = empty;
	expect_int(identity_make(&opts, why, &id), -EINVAL);
	opts.fields = agrees;
	expect_int(identity_make(&opts, why, &id), 0);
	expect_int(id->field_count, 2);
	identity_free(&id);
	expect(id == NULL);
}

TEST(domain_list_key_depends_on_the_model_only)
{
	struct kvof_id a, b;

	identity_domains("m1", &a);
	identity_domains("m2", &b);
	expect(!same(&a, &b));
	identity_domains("m1", &b);
	expect(same(&a, &b));
}
