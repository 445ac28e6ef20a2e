/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters, weight bytes and FLOPs of published models: the count is the number of elements that
 * the published safetensors of the model have, exact; active counts and sizes on disk as their
 * model cards round them.
 */
#include "kt.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include <kvof/plan.h>

static struct kvof_plan_work work;
static struct kvof_plan_bad bad;

static int read_text(const char *text)
{
	kt_noise(&work, sizeof(work));
	kt_noise(&bad, sizeof(bad));
	return kvof_plan_work_read(text, strlen(text), &work, &bad);
}

static void must_read(const char *text)
{
	if (read_text(text) != 0)
		fail_msg("%s: %s", bad.field, bad.why);
}

static void near(double got, double want, double share)
{
	if (!(fabs(got - want) <= share * fabs(want)))
		fail_msg("%.6g, not %.6g within %g", got, want, share);
}

static void refused(const char *text, const char *field, const char *why)
{
	expect_int(read_text(text), -EINVAL);
	if (strcmp(bad.field, field) != 0 || strstr(bad.why, why) == NULL)
		fail_msg("%s: %s, but wanted %s: %s", bad.field, bad.why, field, why);
	expect_int(work.params, 0);
	expect_int(work.weight_bytes, 0);
}

#define QWEN3_CODER_480B \
	"\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 62, \"num_attention_heads\": 96, " \
	"\"num_key_value_heads\": 8, \"head_dim\": 128, \"hidden_size\": 6144, " \
	"\"intermediate_size\": 8192, \"moe_intermediate_size\": 2560, \"num_experts\": 160, " \
	"\"num_experts_per_tok\": 8, \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], " \
	"\"vocab_size\": 151936, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\""
#define DEEPSEEK_V3 \
	"\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 61, " \
	"\"num_attention_heads\": 128, " \
	"\"num_key_value_heads\": 128, \"hidden_size\": 7168, \"intermediate_size\": 18432, " \
	"\"moe_intermediate_size\": 2048, \"n_routed_experts\": 256, \"n_shared_experts\": 1, " \
	"\"num_experts_per_tok\": 8, \"first_k_dense_replace\": 3, \"moe_layer_freq\": 1, " \
	"\"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, " \
	"\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"topk_method\": \"noaux_tc\", " \
	"\"vocab_size\": 129280, \"torch_dtype\": \"bfloat16\", \"num_nextn_predict_layers\": 1"
#define KIMI_K2 \
	"\"model_type\": \"kimi_k2\", \"num_hidden_layers\": 61, \"num_attention_heads\": 64, " \
	"\"num_key_value_heads\": 64, \"hidden_size\": 7168, \"intermediate_size\": 18432, " \
	"\"moe_intermediate_size\": 2048, \"n_routed_experts\": 384, \"n_shared_experts\": 1, " \
	"\"num_experts_per_tok\": 8, \"first_k_dense_replace\": 1, \"moe_layer_freq\": 1, " \
	"\"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, " \
	"\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"topk_method\": \"noaux_tc\", " \
	"\"vocab_size\": 163840, \"torch_dtype\": \"bfloat16\", " \
	"\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}"
#define GPT_OSS(layers, experts) \
	"{\"model_type\": \"gpt_oss\", \"num_hidden_layers\": " layers ", " \
	"\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 64, " \
	"\"hidden_size\": 2880, \"intermediate_size\": 2880, \"num_local_experts\": " experts ", " \
	"\"experts_per_token\": 4, \"sliding_window\": 128, \"vocab_size\": 201088, " \
	"\"attention_bias\": true, \"tie_word_embeddings\": false, " \
	"\"quantization_config\": {\"quant_method\": \"mxfp4\"}}"
#define LLAMA(layers, heads, kv, hidden, inner, vocab, more) \
	"{\"model_type\": \"llama\", \"num_hidden_layers\": " layers ", \"num_attention_heads\": " \
	heads ", \"num_key_value_heads\": " kv ", \"hidden_size\": " hidden \
	", \"intermediate_size\": " inner ", \"vocab_size\": " vocab \
	", \"torch_dtype\": \"bfloat16\"" more "}"
#define QWEN2(layers, heads, kv, hidden, inner, more) \
	"{\"model_type\": \"qwen2\", \"num_hidden_layers\": " layers ", \"num_attention_heads\": " \
	heads ", \"num_key_value_heads\": " kv ", \"hidden_size\": " hidden \
	", \"intermediate_size\": " inner ", \"vocab_size\": 152064, " \
	"\"torch_dtype\": \"bfloat16\"" more "}"
#define GEMMA(type, layers, heads, kv, dim, hidden, inner, vocab) \
	"{\"model_type\": \"" type "\", \"num_hidden_layers\": " layers ", " \
	"\"num_attention_heads\": " heads ", \"num_key_value_heads\": " kv ", \"head_dim\": " dim \
	", \"hidden_size\": " hidden ", \"intermediate_size\": " inner ", \"vocab_size\": " vocab \
	", \"sliding_window\": 4096, \"torch_dtype\": \"bfloat16\"}"
#define QWEN3_MOE(layers, heads, kv, hidden, inner) \
	"{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": " layers ", " \
	"\"num_attention_heads\": " heads ", \"num_key_value_heads\": " kv ", \"head_dim\": 128, " \
	"\"hidden_size\": " hidden ", \"moe_intermediate_size\": " inner ", " \
	"\"num_experts\": 128, " \
	"\"num_experts_per_tok\": 8, \"decoder_sparse_step\": 1, \"vocab_size\": 151936}"

static const struct {
	const char *name, *config;
	uint64_t params;
} published[] = {
	{"SmolLM2-135M", LLAMA("30", "9", "3", "576", "1536", "49152",
		", \"tie_word_embeddings\": true"), 134515008},
	{"Llama-2-7B", LLAMA("32", "32", "32", "4096", "11008", "32000", ""), 6738415616},
	{"Llama-3.1-8B", LLAMA("32", "32", "8", "4096", "14336", "128256", ""), 8030261248},
	{"Llama-3.1-70B", LLAMA("80", "64", "8", "8192", "28672", "128256", ""), 70553706496},
	{"Llama-3.1-405B", LLAMA("126", "128", "8", "16384", "53248", "128256", ""), 405853388800},
	{"Mistral-7B-v0.1", "{\"model_type\": \"mistral\", \"num_hidden_layers\": 32, "
		"\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"hidden_size\": 4096, "
		"\"intermediate_size\": 14336, \"vocab_size\": 32000, \"sliding_window\": 4096, "
		"\"max_position_embeddings\": 32768}", 7241732096},
	{"Mixtral-8x7B", "{\"model_type\": \"mixtral\", \"num_hidden_layers\": 32, "
		"\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"hidden_size\": 4096, "
		"\"intermediate_size\": 14336, \"vocab_size\": 32000, \"num_local_experts\": 8, "
		"\"num_experts_per_tok\": 2}", 46702792704},
	{"Phi-3.5-mini", "{\"model_type\": \"phi3\", \"num_hidden_layers\": 32, "
		"\"num_attention_heads\": 32, \"num_key_value_heads\": 32, \"hidden_size\": 3072, "
		"\"intermediate_size\": 8192, \"vocab_size\": 32064}", 3821079552},
	{"Qwen2.5-7B", QWEN2("28", "28", "4", "3584", "18944", ""), 7615616512},
	{"Qwen2.5-32B", QWEN2("64", "40", "8", "5120", "27648", ""), 32763876352},
	{"Qwen3-8B", "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 36, "
		"\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128, "
		"\"hidden_size\": 4096, \"intermediate_size\": 12288, \"vocab_size\": 151936, "
		"\"attention_bias\": false}", 8190735360},
	{"Qwen3-30B-A3B", QWEN3_MOE("48", "32", "4", "2048", "768"), 30532122624},
	{"Qwen3-235B-A22B", QWEN3_MOE("94", "64", "4", "4096", "1536"), 235093634560},
	{"Qwen3-Coder-480B-A35B", "{" QWEN3_CODER_480B "}", 480154875392},
	{"Qwen1.5-MoE-A2.7B", "{\"model_type\": \"qwen2_moe\", \"num_hidden_layers\": 24, "
		"\"num_attention_heads\": 16, \"num_key_value_heads\": 16, \"hidden_size\": 2048, "
		"\"moe_intermediate_size\": 1408, \"shared_expert_intermediate_size\": 5632, "
		"\"num_experts\": 60, \"num_experts_per_tok\": 4, \"vocab_size\": 151936}",
		14315784192},
	{"gemma-7b", GEMMA("gemma", "28", "16", "16", "256", "3072", "24576", "256000"),
		8537680896},
	{"gemma-2-2b", GEMMA("gemma2", "26", "8", "4", "256", "2304", "9216", "256000"),
		2614341888},
	{"gemma-2-9b", GEMMA("gemma2", "42", "16", "8", "256", "3584", "14336", "256000"),
		9241705984},
	{"gemma-3-1b", GEMMA("gemma3_text", "26", "4", "1", "256", "1152", "6912", "262144"),
		999885952},
	{"DeepSeek-V2-Lite", "{\"model_type\": \"deepseek_v2\", \"num_hidden_layers\": 27, "
		"\"num_attention_heads\": 16, \"hidden_size\": 2048, \"intermediate_size\": 10944, "
		"\"moe_intermediate_size\": 1408, \"n_routed_experts\": 64, "
		"\"n_shared_experts\": 2, "
		"\"num_experts_per_tok\": 6, \"first_k_dense_replace\": 1, \"moe_layer_freq\": 1, "
		"\"q_lora_rank\": null, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, "
		"\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"vocab_size\": 102400, "
		"\"topk_method\": \"greedy\"}", 15706484224},
	{"DeepSeek-V3", "{" DEEPSEEK_V3 "}", 671026419200},
	{"Kimi-K2", "{" KIMI_K2 "}", 1026408232448},
	{"gpt-oss-20b", GPT_OSS("24", "32"), 20914757184},
	{"gpt-oss-120b", GPT_OSS("36", "128"), 116829156672},
};

TEST(every_family_has_the_published_count_of_parameters_exactly)
{
	for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++) {
		must_read(published[i].config);
		if (work.params != published[i].params)
			fail_msg("%s: %llu, not %llu", published[i].name,
				 (unsigned long long)work.params,
				 (unsigned long long)published[i].params);
		expect(work.active_params <= work.params && work.rule[0] != 0);
	}
}

TEST(active_parameters_are_what_model_cards_round)
{
	must_read("{" QWEN3_CODER_480B "}");
	near((double)work.active_params, 35.5e9, 0.005);         /* A35B */
	must_read(published[11].config);
	near((double)work.active_params, 3.35e9, 0.005);         /* A3B: "3.3B activated" */
	must_read(published[6].config);
	near((double)work.active_params, 12.9e9, 0.005);
	must_read("{" DEEPSEEK_V3 "}");
	near((double)work.active_params, 37.55e9, 0.001);
	/* This card does not count the table that tokens are looked up in. */
	must_read(GPT_OSS("36", "128"));
	near((double)(work.active_params - work.embed_params), 5.13e9, 0.002);
	must_read(GPT_OSS("24", "32"));
	near((double)(work.active_params - work.embed_params), 3.61e9, 0.002);
}

TEST(weight_bytes_follow_the_type_of_the_weights)
{
	must_read("{" QWEN3_CODER_480B "}");
	expect_int(work.weight_bytes, 2 * UINT64_C(480154875392));
	/* FP8 in blocks of 128 x 128: the safetensors hold 480,184,064,000 numbers, of which the
	 * difference are scales. Tables, routers and norms stay at 16 bits. */
	must_read("{" QWEN3_CODER_480B ", \"quantization_config\": {\"quant_method\": \"fp8\", "
		  "\"weight_block_size\": [128, 128]}}");
	expect_int(work.weight_bytes, UINT64_C(480154875392) + 4 * UINT64_C(29188608) +
		   (UINT64_C(2) * 151936 * 6144 + 62 * UINT64_C(160) * 6144 +
		    62 * (2 * UINT64_C(6144) + 256) + 6144));
	/* The reports' "450 GB" is 449.1 GiB. */
	near((double)work.weight_bytes / 1073741824, 449.1, 0.0005);
	/* 1,029,173,256,720 bytes of tensors: 53 kB of biases and tables in 32 bits are more. */
	must_read("{" KIMI_K2 "}");
	near((double)work.weight_bytes, 1029173256720.0, 1e-7);
	/* Sizes of the published checkpoints: 60.8 and 12.8 GiB. */
	must_read(GPT_OSS("36", "128"));
	near((double)work.weight_bytes / 1073741824, 60.8, 0.002);
	must_read(GPT_OSS("24", "32"));
	near((double)work.weight_bytes / 1073741824, 12.8, 0.002);
	expect_str(work.weight_dtype, "mxfp4 experts, 4.25 bits");
	/* 32B in bf16 is the 65.6 GB of a checkpoint, 70B the 141 GB of a load. */
	must_read(published[9].config);
	near((double)work.weight_bytes, 65.6e9, 0.002);
}

TEST(a_type_of_weights_that_is_not_known_leaves_their_bytes_untold)
{
	must_read("{" QWEN3_CODER_480B ", \"quantization_config\": {\"quant_method\": \"awq\", "
		  "\"bits\": 4}}");
	expect_int(work.params, UINT64_C(480154875392));
	expect_int(work.weight_bytes, 0);
	expect(strstr(work.weight_dtype, "awq") != NULL);
	must_read(published[11].config);
	expect_int(work.weight_bytes, 0);
	expect(strstr(work.weight_dtype, "torch_dtype") != NULL);
}

TEST(what_is_not_known_is_refused_by_the_name_of_what_is_missing)
{
	refused("{\"model_type\": \"falcon\", \"num_hidden_layers\": 32, "
		"\"num_attention_heads\": 71, \"hidden_size\": 4544}", "model_type",
		"give the parameters");
	refused("{\"model_type\": \"nobody\"}", "model_type", "not known");
	refused("{\"model_type\": \"llama\", \"num_hidden_layers\": 32, "
		"\"num_attention_heads\": 32, \"hidden_size\": 4096}", "vocab_size", "missing");
	refused("{\"model_type\": \"llama\", \"num_hidden_layers\": 32, "
		"\"num_attention_heads\": 32, \"hidden_size\": 4096, \"vocab_size\": 32000}",
		"intermediate_size", "missing");
	refused("{\"model_type\": \"mixtral\", \"num_hidden_layers\": 32, "
		"\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"hidden_size\": 4096, "
		"\"intermediate_size\": 14336, \"vocab_size\": 32000, \"num_local_experts\": 8, "
		"\"num_experts_per_tok\": 9}", "num_experts_per_tok", "9 of 8");
	refused("not json", "", "JSON");
}

TEST(given_figures_take_the_place_of_a_config)
{
	expect_int(kvof_plan_work_given(70e9, 0, 0, 2, &work, &bad), 0);
	expect_int(work.weight_bytes, 140000000000);
	expect_int(work.active_params, 70000000000);
	expect(work.pair_flops == 0);
	expect_int(kvof_plan_work_given(0, 0, 450e9, 0, &work, &bad), 0);
	expect_int(work.weight_bytes, 450000000000);
	expect_int(kvof_plan_work_given(0, 0, 0, 2, &work, &bad), -EINVAL);
	expect_int(kvof_plan_work_given(1e9, 2e9, 0, 2, &work, &bad), -EINVAL);
	expect_int(kvof_plan_work_given(1e9, 0, 0, 0, &work, &bad), -EINVAL);
	expect_int(kvof_plan_work_given(NAN, 0, 0, 2, &work, &bad), -EINVAL);
	expect_int(kvof_plan_work_given(1e9, 0, -1, 2, &work, &bad), -EINVAL);
}

TEST(a_prompt_costs_two_flops_a_matrix_element_and_attention_by_pairs)
{
	/* Llama-3.1-8B: 8,030,261,248 - 2 x 525,336,576 of the tables = 6,979,588,096 a token;
	 * attention 4 x 32 heads x 128 x 32 layers = 524,288 a pair. */
	must_read(published[2].config);
	near(work.token_flops, 2 * 6979588096.0, 1e-12);
	near(work.pair_flops, 524288, 1e-12);
	near(kvof_plan_work_flops(&work, 1000), 1000 * 2 * 6979588096.0 + 524288 * 500500.0, 1e-12);
	/* MLA computes the keys and values of its heads: 128 x (192 + 128) x 2 x 61. */
	must_read("{" DEEPSEEK_V3 "}");
	near(work.pair_flops, 2.0 * 128 * 320 * 61, 1e-12);
}

TEST(layers_that_slide_stop_growing_at_their_window)
{
	double at_window, longer;

	must_read(GPT_OSS("24", "32"));
	near(work.window, 128, 0);
	near(work.pair_flops, 12 * 4.0 * 64 * 64, 1e-12);        /* half of the layers see all */
	near(work.window_pair_flops, work.pair_flops, 1e-12);
	at_window = kvof_plan_work_flops(&work, 128);
	near(at_window, 128 * work.token_flops + 2 * work.pair_flops * 128 * 129 / 2, 1e-12);
	longer = kvof_plan_work_flops(&work, 228);
	near(longer, 228 * work.token_flops + work.pair_flops * 228 * 229 / 2 +
	     work.window_pair_flops * (128 * 129 / 2 + 100 * 128), 1e-12);
}

TEST(no_text_makes_it_fall)
{
	static const char whole[] = "{" DEEPSEEK_V3 "}";
	char text[sizeof(whole)];

	for (size_t n = 0; n < sizeof(whole) - 1; n++) {
		expect_int(kvof_plan_work_read(whole, n, &work, &bad), -EINVAL);
		memcpy(text, whole, sizeof(whole));
		text[n] = '9';
		if (kvof_plan_work_read(text, sizeof(whole) - 1, &work, &bad) == 0)
			expect(work.params > 0 && work.active_params <= work.params);
	}
}
