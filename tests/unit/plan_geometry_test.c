/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of KV caches, exact: a table of published models (tests/data/plan-models.json), the
 * mistakes that calculators make, one test each, and what is refused.
 */
#include "kt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include <kvof/plan.h>

static struct kvof_plan_model model;
static struct kvof_plan_bad bad;

static int read_text(const char *text)
{
	kt_noise(&model, sizeof(model));
	kt_noise(&bad, sizeof(bad));
	return kvof_plan_model_read(text, strlen(text), &model, &bad);
}

static void read_row(const json_t *row)
{
	char *text = json_dumps(json_object_get(row, "config"), 0);
	int rc = read_text(text);

	if (rc != 0)
		print_message("# %s: %s %s\n", json_string_value(json_object_get(row, "id")),
			      bad.field, bad.why);
	expect_int(rc, 0);
	free(text);
}

static json_t *table(void)
{
	json_t *rows = json_load_file(DATA "/plan-models.json", 0, NULL);

	expect(json_array_size(rows) >= 40);
	return rows;
}

static int split(uint32_t tp, uint32_t elem, struct kvof_plan_geometry *g)
{
	const struct kvof_plan_split s = {tp, elem};

	kt_noise(g, sizeof(*g));
	kt_noise(&bad, sizeof(bad));
	return kvof_plan_geometry(&model, &s, g, &bad);
}

static uint64_t number(const json_t *at, const char *field)
{
	const json_t *value = json_object_get(at, field);

	expect(json_is_integer(value));
	return (uint64_t)json_integer_value(value);
}

/* Bytes of one token more, of a text that must be right. */
static uint64_t token_bytes(const char *text)
{
	struct kvof_plan_geometry g;

	if (read_text(text) != 0)
		fail_msg("%s: %s", bad.field, bad.why);
	expect_int(split(1, 0, &g), 0);
	return g.token_bytes;
}

static void refused(const char *text, const char *field, const char *why)
{
	expect_int(read_text(text), -EINVAL);
	if (strcmp(bad.field, field) != 0 || strstr(bad.why, why) == NULL)
		fail_msg("%s: %s, but wanted %s: %s", bad.field, bad.why, field, why);
}

/* --- published models ------------------------------------------------------------- */

TEST(every_published_model_is_exact_in_its_first_token_and_its_growth)
{
	json_t *rows = table(), *row;
	struct kvof_plan_geometry g;
	size_t i;

	json_array_foreach(rows, i, row) {
		read_row(row);
		expect_int(split(0, 0, &g), 0);
		expect_int(g.first_bytes, number(row, "first"));
		expect_int(g.token_bytes, number(row, "growth"));
		expect(model.rule[0] != 0);
	}
	json_decref(rows);
}

TEST(every_published_model_is_exact_for_each_rank_and_illegal_splits_are_refused)
{
	json_t *rows = table(), *row, *want;
	struct kvof_plan_geometry g;
	const char *tp;
	size_t i;

	json_array_foreach(rows, i, row) {
		read_row(row);
		json_object_foreach(json_object_get(row, "growth_per_rank"), tp, want) {
			int rc = split((uint32_t)atoi(tp), 2, &g);

			expect_int(rc, json_is_null(want) ? -EINVAL : 0);
			if (rc != 0)
				expect(strstr(bad.field, "heads") != NULL && bad.why[0] != 0);
			else
				expect_int(g.rank_token_bytes, json_integer_value(want));
		}
	}
	json_decref(rows);
}

TEST(every_published_model_is_exact_at_a_length)
{
	json_t *rows = table(), *row, *want;
	struct kvof_plan_geometry g;
	const char *tokens;
	size_t i;

	json_array_foreach(rows, i, row) {
		read_row(row);
		expect_int(split(1, 2, &g), 0);
		json_object_foreach(json_object_get(row, "bytes_at"), tokens, want) {
			uint64_t bytes, rank;

			expect_int(kvof_plan_bytes_at(&model, &g, (uint64_t)atoll(tokens), &bytes,
						      &rank), 0);
			expect_int(bytes, json_integer_value(want));
			expect_int(rank, bytes);
		}
	}
	json_decref(rows);
}

TEST(the_constant_state_of_hybrid_models_is_exact_and_apart)
{
	json_t *rows = table(), *row;
	struct kvof_plan_geometry g;
	unsigned states = 0;
	size_t i;

	json_array_foreach(rows, i, row) {
		const json_t *want = json_object_get(row, "state");

		read_row(row);
		expect_int(split(1, 0, &g), 0);
		expect_int(want != NULL, model.state.kind != NULL);
		if (want == NULL)
			continue;
		states++;
		expect_str(model.state.kind, json_string_value(json_object_get(want, "kind")));
		expect_int(model.state.layers, number(want, "layers"));
		expect_int(model.state.conv_elems, number(want, "conv_elems"));
		expect_int(model.state.recurrent_elems, number(want, "recurrent_elems"));
		expect_int(g.state_bytes, number(want, "bytes"));
	}
	expect(states >= 6);
	json_decref(rows);
}

/* --- the mistakes that calculators make ---------------------------------------------- */

TEST(head_dim_of_the_file_goes_before_hidden_size_over_heads)
{
	expect_int(token_bytes("{\"model_type\": \"qwen3\", \"num_hidden_layers\": 36, "
		"\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128, "
		"\"hidden_size\": 2560}"), 147456);
	/* And where it is absent, the class's own goes before it; only some divide. */
	expect_int(token_bytes("{\"model_type\": \"qwen3\", \"num_hidden_layers\": 36, "
		"\"num_attention_heads\": 32, \"num_key_value_heads\": 8, "
		"\"hidden_size\": 2560}"), 147456);
	expect_int(token_bytes("{\"model_type\": \"llama\", \"num_hidden_layers\": 32, "
		"\"num_attention_heads\": 32, \"num_key_value_heads\": 8, "
		"\"hidden_size\": 4096}"), 131072);
	refused("{\"model_type\": \"glm4_moe\", \"num_hidden_layers\": 92, "
		"\"num_attention_heads\": 96, \"num_key_value_heads\": 8, \"hidden_size\": 5120}",
		"hidden_size", "no multiple of 96 heads");
	refused("{\"model_type\": \"minimax_m2\", \"num_hidden_layers\": 62, "
		"\"num_attention_heads\": 48, \"num_key_value_heads\": 8, \"hidden_size\": 3072}",
		"head_dim", "is missing");
}

TEST(kv_heads_count_and_query_heads_do_not)
{
	static const char llama_70b[] = "{\"model_type\": \"llama\", \"num_hidden_layers\": 80, "
		"\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"hidden_size\": 8192}";

	expect_int(token_bytes(llama_70b), 327680);      /* 8 times as much with query heads */
	refused("{\"model_type\": \"mistral\", \"num_hidden_layers\": 32, "
		"\"num_attention_heads\": 32, \"hidden_size\": 4096}", "num_key_value_heads",
		"is missing");
}

TEST(mla_keeps_one_latent_without_a_factor_of_two_and_without_heads)
{
	static const char v3[] = "{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 61, "
		"\"num_attention_heads\": 128, \"num_key_value_heads\": 128, \"head_dim\": 56, "
		"\"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64}";
	struct kvof_plan_geometry g;

	expect_int(token_bytes(v3), 70272);
	expect_int(split(8, 2, &g), 0);
	expect_int(g.rank_token_bytes, 70272);
	expect_int(g.group[0].copies, 8);
	expect_int(token_bytes("{\"model_type\": \"kimi_k25\", \"num_hidden_layers\": 61, "
		"\"num_attention_heads\": 64, \"num_key_value_heads\": 64, "
		"\"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64}"), 70272);
	refused("{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 61, "
		"\"num_attention_heads\": 128, \"kv_lora_rank\": 512}", "qk_rope_head_dim",
		"is missing");
}

TEST(layers_that_slide_count_up_to_their_window_and_full_pages_can_be_told)
{
	static const char oss[] = "{\"model_type\": \"gpt_oss\", \"num_hidden_layers\": 36, "
		"\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 64, "
		"\"sliding_window\": 128}";
	struct kvof_plan_geometry g;
	uint64_t at[3], rank;

	expect_int(token_bytes(oss), 36864);
	expect_int(split(1, 2, &g), 0);
	expect_int(g.first_bytes, 73728);                /* an engine that keeps them all */
	for (uint64_t t = 127; t < 130; t++)
		expect_int(kvof_plan_bytes_at(&model, &g, t, &at[t - 127], &rank), 0);
	expect_int(at[1] - at[0], 73728);
	expect_int(at[2] - at[1], 36864);
}

TEST(bytes_of_a_hybrid_are_those_of_its_attention_and_no_slope_through_the_first_token)
{
	static const char next[] = "{\"model_type\": \"qwen3_next\", \"num_hidden_layers\": 48, "
		"\"num_attention_heads\": 16, \"num_key_value_heads\": 2, \"head_dim\": 256}";
	struct kvof_plan_geometry g;
	uint64_t bytes, rank;

	expect_int(token_bytes(next), 24576);
	expect_str(model.state.kind, "gated_delta_net");
	expect_str(model.state.missing, "linear_num_key_heads");     /* told, not guessed */
	expect_int(model.state.conv_elems + model.state.recurrent_elems, 0);
	expect_int(split(1, 2, &g), 0);
	expect_int(g.state_bytes, 0);
	expect_int(kvof_plan_bytes_at(&model, &g, 1000, &bytes, &rank), 0);
	expect_int(bytes, 24576000);
}

TEST(fp8_weights_leave_the_kv_cache_at_two_bytes)
{
	static const char m2[] = "{\"model_type\": \"minimax_m2\", \"num_hidden_layers\": 62, "
		"\"num_attention_heads\": 48, \"num_key_value_heads\": 8, \"head_dim\": 128, "
		"\"quantization_config\": {\"quant_method\": \"fp8\"}}";
	struct kvof_plan_geometry g;
	uint64_t bytes, rank;

	expect_int(token_bytes(m2), 253952);
	expect_str(model.weights, "fp8");
	expect_int(split(1, 0, &g), 0);
	expect_int(g.kv_elem_bytes, 2);
	expect_int(split(1, 1, &g), 0);
	expect_int(kvof_plan_bytes_at(&model, &g, 196608, &bytes, &rank), 0);
	expect_int(bytes, UINT64_C(24964497408));        /* only if the cache itself is fp8 */
	expect_int(split(1, 4, &g), 0);
	expect_int(g.token_bytes, 507904);
	expect_int(split(1, 3, &g), -EINVAL);
	expect_str(bad.field, "kv_elem_bytes");
}

TEST(each_kind_of_layer_has_its_own_heads_and_widths)
{
	static const char gemma4[] = "{\"model_type\": \"gemma4\", \"text_config\": {"
		"\"model_type\": \"gemma4_text\", \"num_hidden_layers\": 30, "
		"\"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": 256, "
		"\"num_global_key_value_heads\": 2, \"global_head_dim\": 512, "
		"\"sliding_window\": 1024, \"attention_k_eq_v\": true}}";
	static const char mimo[] = "{\"model_type\": \"mimo_v2_flash\", "
		"\"num_hidden_layers\": 48, \"num_attention_heads\": 64, "
		"\"num_key_value_heads\": 4, \"head_dim\": 192, \"v_head_dim\": 128, "
		"\"swa_num_key_value_heads\": 8, \"swa_head_dim\": 192, \"swa_v_head_dim\": 128, "
		"\"sliding_window\": 128}";
	struct kvof_plan_geometry g;

	expect_int(token_bytes(gemma4), 20480);
	expect_int(split(1, 2, &g), 0);
	expect_int(g.shared_token_bytes, 10240);         /* the other legal answer */
	expect_int(g.first_bytes, 225280);
	expect_int(token_bytes(mimo), 23040);            /* 192 + 128, not twice 192 */
}

TEST(more_ranks_than_kv_heads_hold_copies_and_no_less_than_a_head)
{
	static const char oss[] = "{\"model_type\": \"glm4\", \"num_hidden_layers\": 61, "
		"\"num_attention_heads\": 48, \"num_key_value_heads\": 2, \"head_dim\": 128}";
	struct kvof_plan_geometry g;

	expect_int(token_bytes(oss), 62464);
	expect_int(split(2, 2, &g), 0);
	expect_int(g.rank_token_bytes, 31232);
	expect_int(g.group[0].copies, 1);
	expect_int(split(16, 2, &g), 0);
	expect_int(g.rank_token_bytes, 31232);
	expect_int(g.group[0].copies, 8);
	expect_int(split(5, 2, &g), -EINVAL);
	expect_str(bad.field, "num_attention_heads");
	expect_int(split(3, 2, &g), -EINVAL);
	expect_str(bad.field, "num_key_value_heads");
	expect_int(split(KVOF_PLAN_TP_MAX + 1, 2, &g), -EINVAL);
	expect_str(bad.field, "tp");
}

TEST(one_family_name_is_not_one_geometry)
{
	/* falcon: one KV head, or as many as num_kv_heads says. */
	expect_int(token_bytes("{\"model_type\": \"falcon\", \"num_hidden_layers\": 32, "
		"\"num_attention_heads\": 71, \"hidden_size\": 4544, \"multi_query\": true}"),
		8192);
	expect_int(token_bytes("{\"model_type\": \"falcon\", \"num_hidden_layers\": 60, "
		"\"num_attention_heads\": 128, \"num_kv_heads\": 8, \"hidden_size\": 8192, "
		"\"new_decoder_architecture\": true, \"multi_query\": true}"), 122880);
	expect_int(token_bytes("{\"model_type\": \"gpt_bigcode\", \"n_layer\": 24, "
		"\"n_head\": 16, \"n_embd\": 2048, \"multi_query\": false}"), 196608);
	/* Qwen2.5-14B has 8 KV heads. */
	expect_int(token_bytes("{\"model_type\": \"qwen2\", \"num_hidden_layers\": 48, "
		"\"num_attention_heads\": 40, \"num_key_value_heads\": 8, "
		"\"hidden_size\": 5120}"), 196608);
}

TEST(heads_in_a_group_are_a_divisor_of_heads_and_no_count_of_kv_heads)
{
	expect_int(token_bytes("{\"model_type\": \"nemotron-nas\", \"num_hidden_layers\": 3, "
		"\"num_attention_heads\": 64, \"num_key_value_heads\": null, "
		"\"hidden_size\": 8192, \"block_configs\": ["
		"{\"attention\": {\"no_op\": false, \"n_heads_in_group\": 16, "
		"\"window_length\": null, \"num_sink_tokens\": null, \"unshifted_sink\": false, "
		"\"replace_with_linear\": false, \"sparsify\": null}}, "
		"{\"attention\": {\"no_op\": true, \"n_heads_in_group\": null}}, "
		"{\"attention\": {\"no_op\": false, \"n_heads_in_group\": 8}}]}"),
		(4 + 8) * 2 * 128 * 2);
}

/* --- rules ----------------------------------------------------------------------------- */

#define DENSE "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 64"
#define DENSE_BYTES 512u                         /* one layer: 2 heads, K and V of 64, 2 bytes */

TEST(a_window_has_an_effect_only_where_it_is_on_and_shorter_than_the_context)
{
	expect_int(token_bytes("{\"model_type\": \"mistral\", \"num_hidden_layers\": 4, " DENSE
		", \"sliding_window\": 4096, \"max_position_embeddings\": 32768}"), 0);
	expect_int(token_bytes("{\"model_type\": \"mistral\", \"num_hidden_layers\": 4, " DENSE
		", \"sliding_window\": null}"), 4 * DENSE_BYTES);
	expect_int(token_bytes("{\"model_type\": \"phi3\", \"num_hidden_layers\": 4, " DENSE
		", \"sliding_window\": 262144, \"max_position_embeddings\": 131072}"),
		4 * DENSE_BYTES);
	expect_int(token_bytes("{\"model_type\": \"qwen2\", \"num_hidden_layers\": 4, " DENSE
		", \"sliding_window\": 4096, \"max_window_layers\": 1, "
		"\"use_sliding_window\": false}"), 4 * DENSE_BYTES);
	expect(strstr(model.rule, "no effect") != NULL);
	expect_int(token_bytes("{\"model_type\": \"qwen2\", \"num_hidden_layers\": 4, " DENSE
		", \"sliding_window\": 4096, \"max_window_layers\": 1, "
		"\"use_sliding_window\": true}"), DENSE_BYTES);
	expect_int(token_bytes("{\"model_type\": \"cohere2\", \"num_hidden_layers\": 8, " DENSE
		", \"sliding_window\": 4096}"), 2 * DENSE_BYTES);
	expect(strstr(model.rule, "one layer in 4") != NULL);
}

TEST(a_list_of_the_file_goes_before_the_pattern_of_the_type)
{
	expect_int(token_bytes("{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 3, " DENSE
		", \"sliding_window\": 512, \"layer_types\": [\"full_attention\", "
		"\"sliding_attention\", \"full_attention\"]}"), 2 * DENSE_BYTES);
	expect_str(model.rule, "layer_types of the file");
	expect_int(token_bytes("{\"model_type\": \"llama4_text\", \"num_hidden_layers\": 3, " DENSE
		", \"attention_chunk_size\": 512, \"no_rope_layers\": [1, 1, 0]}"), DENSE_BYTES);
	refused("{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 2, " DENSE
		", \"sliding_window\": 512, \"layer_types\": [\"full_attention\", \"new\"]}",
		"layer_types[1]", "\"new\" is no kind of layer");
}

TEST(layers_that_share_the_kv_of_others_do_not_count)
{
	expect_int(token_bytes("{\"model_type\": \"hunyuan\", \"num_hidden_layers\": 8, " DENSE
		", \"use_cla\": true, \"cla_share_factor\": 2}"), 4 * DENSE_BYTES);
	expect_int(token_bytes("{\"model_type\": \"hunyuan\", \"num_hidden_layers\": 8, " DENSE
		", \"use_cla\": false, \"cla_share_factor\": 2}"), 8 * DENSE_BYTES);
	expect_int(token_bytes("{\"model_type\": \"gemma3n_text\", \"num_hidden_layers\": 10, "
		DENSE ", \"sliding_window\": 512, \"num_kv_shared_layers\": 5}"), DENSE_BYTES);
}

TEST(hybrids_count_the_layers_with_attention)
{
	expect_int(token_bytes("{\"model_type\": \"bamba\", \"num_hidden_layers\": 8, " DENSE
		", \"attn_layer_indices\": [1, 7], \"mamba_n_heads\": 16, \"mamba_d_head\": 8, "
		"\"mamba_n_groups\": 2, \"mamba_d_state\": 32, \"mamba_d_conv\": 4}"),
		2 * DENSE_BYTES);
	expect_int(model.state.layers, 6);
	expect_int(model.state.conv_elems, 6 * (16 * 8 + 2 * 2 * 32) * 3);
	expect_int(model.state.recurrent_elems, 6 * 16 * 8 * 32);
	expect_int(token_bytes("{\"model_type\": \"granitemoehybrid\", \"num_hidden_layers\": 2, "
		DENSE ", \"layer_types\": [\"mamba\", \"attention\"]}"), DENSE_BYTES);
	expect_int(token_bytes("{\"model_type\": \"zamba2\", \"num_hidden_layers\": 4, "
		"\"num_attention_heads\": 8, \"hidden_size\": 256, \"hybrid_layer_ids\": [1], "
		"\"n_mamba_heads\": 16, \"mamba_headdim\": 8, \"mamba_ngroups\": 2, "
		"\"mamba_d_state\": 32, \"mamba_d_conv\": 4}"), 8 * 2 * 64 * 2);
	expect_int(model.state.layers, 4);
	expect_int(token_bytes("{\"model_type\": \"minimax_text_01\", \"num_hidden_layers\": 4, "
		DENSE ", \"attn_type_list\": [0, 0, 0, 1]}"), DENSE_BYTES);
	expect_int(model.state.recurrent_elems, 3 * 8 * 64 * 64);
	expect_int(token_bytes("{\"model_type\": \"openelm\", \"num_transformer_layers\": 3, "
		"\"head_dim\": 64, \"num_query_heads\": [12, 12, 16], "
		"\"num_kv_heads\": [3, 3, 4]}"), 10 * 2 * 64 * 2);
	expect_int(model.groups, 2);
}

/* --- what is refused -------------------------------------------------------------------- */

TEST(an_unknown_type_is_refused_with_the_fields_that_are_missing)
{
	refused("{\"model_type\": \"novel\", \"num_hidden_layers\": 4, \"head_dim\": 64}",
		"model_type", "\"novel\" is not known");
	expect(strstr(bad.why, "missing: num_attention_heads, num_key_value_heads; there: "
		      "num_hidden_layers, head_dim") != NULL);
	refused("{\"model_type\": \"novel\", \"num_hidden_layers\": 4, " DENSE "}", "model_type",
		"missing: only its rule");
	refused("{\"num_hidden_layers\": 4}", "model_type", "is missing");
	refused("{\"model_type\": 7}", "model_type", "is no text");
}

TEST(what_is_wrong_with_a_config_is_told_with_its_field)
{
	static const struct {
		const char *text, *field, *why;
	} rows[] = {
		{"", "", "is no JSON"},
		{"[1]", "", "is no JSON object"},
		{"{\"model_type\": \"llama\", \"model_type\": \"llama\"}", "", "is no JSON"},
		{"{\"model_type\": \"llama\"}", "num_hidden_layers", "is missing"},
		{"{\"model_type\": \"llama\", \"num_hidden_layers\": 0}", "num_hidden_layers",
			"is 0"},
		{"{\"model_type\": \"llama\", \"num_hidden_layers\": -1}", "num_hidden_layers",
			"is -1"},
		{"{\"model_type\": \"llama\", \"num_hidden_layers\": 1e9}", "num_hidden_layers",
			"is no whole number"},
		{"{\"model_type\": \"llama\", \"num_hidden_layers\": 100000}", "num_hidden_layers",
			"is 100000"},
		{"{\"model_type\": \"llama\", \"num_hidden_layers\": 2, "
			"\"num_attention_heads\": 8, \"num_key_value_heads\": 9}",
			"num_key_value_heads", "more than 8 query heads"},
		{"{\"model_type\": \"llama\", \"text_config\": 3}", "text_config", "is no object"},
		{"{\"model_type\": \"gemma2\", \"num_hidden_layers\": 2, " DENSE "}",
			"sliding_window", "is missing"},
		{"{\"model_type\": \"gemma2\", \"num_hidden_layers\": 2, " DENSE
			", \"sliding_window\": 0}", "sliding_window", "is no count"},
		{"{\"model_type\": \"gemma2\", \"num_hidden_layers\": 2, " DENSE
			", \"sliding_window\": 5, \"sliding_window_pattern\": 0}",
			"sliding_window_pattern", "is 0"},
		{"{\"model_type\": \"gemma2\", \"num_hidden_layers\": 2, " DENSE
			", \"layer_types\": [\"full_attention\"]}", "layer_types",
			"has 1 entries for 2 layers"},
		{"{\"model_type\": \"qwen2\", \"num_hidden_layers\": 2, " DENSE
			", \"use_sliding_window\": 1}", "use_sliding_window", "is neither"},
		{"{\"model_type\": \"jamba\", \"num_hidden_layers\": 2, " DENSE
			", \"attn_layer_period\": 2, \"attn_layer_offset\": 2}",
			"attn_layer_offset", "is not below"},
		{"{\"model_type\": \"nemotron_h\", \"num_hidden_layers\": 2, " DENSE
			", \"hybrid_override_pattern\": \"*X\"}", "hybrid_override_pattern",
			"letter 1"},
		{"{\"model_type\": \"nemotron_h\", \"num_hidden_layers\": 2, " DENSE
			", \"hybrid_override_pattern\": \"*\"}", "hybrid_override_pattern",
			"one letter"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		refused(rows[i].text, rows[i].field, rows[i].why);
}

TEST(a_text_without_an_end_and_more_bytes_than_64_bits_count_are_refused)
{
	static const char llama[] = "{\"model_type\": \"llama\", \"num_hidden_layers\": 80, "
		"\"num_attention_heads\": 64, \"hidden_size\": 8192}";
	struct kvof_plan_geometry g;
	uint64_t bytes, rank;

	expect_int(kvof_plan_model_read(llama, KVOF_PLAN_CONFIG_BYTES_MAX + 1u, &model, &bad),
		   -EINVAL);
	expect(strstr(bad.why, "is longer than") != NULL);
	expect_int(token_bytes(llama), 2621440);
	expect_int(split(1, 2, &g), 0);
	expect_int(kvof_plan_bytes_at(&model, &g, UINT64_MAX / 2, &bytes, &rank), -EINVAL);
}
