/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a model weighs and what a token of a prompt costs, from its config.json: every matrix of
 * the families in the table is counted, and its bytes in the data type it is stored in. A family
 * is in the table only if its count was held to the published one (tests/unit/plan_work_test.c);
 * for any other, and for a quantisation that is not known, the figure is asked for.
 *
 * Fields are bounded, so that no product below leaves 64 bits: 2^17 wide, 2^20 inside an expert,
 * 2^12 experts, 2^10 layers is 2^59. Source of the shapes: [HFCONFIG].
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "plan/model.h"

#define WIDTH_MAX (1u << 17)
#define INNER_MAX (1u << 20)
#define VOCAB_MAX (1u << 24)
#define EXPERTS_MAX 4096u
#define FP8_SCALE_BYTES 4u
#define MXFP4_BLOCK 32u

enum work_mlp { MLP_DENSE, MLP_QWEN, MLP_MIXTRAL, MLP_DEEPSEEK, MLP_OSS };

struct work_type {
	const char *name;
	enum work_mlp mlp;
	uint32_t norms;                  /* of a layer, each as wide as the model */
	bool qkv_bias;                   /* whatever attention_bias says */
	bool out_bias;
	bool qk_norm;                    /* a norm of head_dim for queries, one for keys */
	bool sinks;                      /* a number a query head */
	bool tied;                       /* the default of tie_word_embeddings */
};

static const struct work_type types[] = {
	{"llama", MLP_DENSE, 2, false, false, false, false, false},
	{"mistral", MLP_DENSE, 2, false, false, false, false, false},
	{"mixtral", MLP_MIXTRAL, 2, false, false, false, false, false},
	{"phi3", MLP_DENSE, 2, false, false, false, false, false},
	{"qwen2", MLP_DENSE, 2, true, false, false, false, false},
	{"qwen2_moe", MLP_QWEN, 2, true, false, false, false, false},
	{"qwen3", MLP_DENSE, 2, false, false, true, false, false},
	{"qwen3_moe", MLP_QWEN, 2, false, false, true, false, false},
	{"gemma", MLP_DENSE, 2, false, false, false, false, true},
	{"gemma2", MLP_DENSE, 4, false, false, false, false, true},
	{"gemma3_text", MLP_DENSE, 4, false, false, true, false, true},
	{"deepseek_v2", MLP_DEEPSEEK, 2, false, false, false, false, false},
	{"deepseek_v3", MLP_DEEPSEEK, 2, false, false, false, false, false},
	{"kimi_k2", MLP_DEEPSEEK, 2, false, false, false, false, false},
	{"gpt_oss", MLP_OSS, 2, true, true, false, true, false},
};

enum mat_kind { MAT_PLAIN, MAT_LINEAR, MAT_EXPERT };

struct tally {
	struct model_reader *r;
	const json_t *root;
	const struct work_type *type;
	struct kvof_plan_work *out;
	uint64_t hidden, vocab, inner;
	uint32_t elem;                   /* bytes of a weight; 0: not told */
	bool fp8, mxfp4, bytes_known;
	uint32_t block_rows, block_cols; /* of FP8; 0: one scale a matrix, not counted */
	uint64_t bytes;
};

/* `count` matrices, of which a token goes through `active`. */
static void mat(struct tally *t, uint64_t rows, uint64_t cols, uint64_t count, uint64_t active,
		enum mat_kind kind)
{
	uint64_t n = rows * cols;

	must(active <= count);
#ifdef KVOF_PLANT_EXPERTS_ALL_ACTIVE
	active = count;
#endif
	t->out->params += n * count;
	t->out->active_params += n * active;
	if (kind == MAT_EXPERT && t->mxfp4) {
		t->bytes += count * (n / 2 + n / MXFP4_BLOCK);
		return;
	}
	if (kind == MAT_PLAIN || !t->fp8) {
		t->bytes += count * n * t->elem;
		return;
	}
	t->bytes += count * n;
	if (t->block_rows > 0)
		t->bytes += count * FP8_SCALE_BYTES *
			((rows + t->block_rows - 1) / t->block_rows) *
			((cols + t->block_cols - 1) / t->block_cols);
}

static void plain(struct tally *t, uint64_t n, uint64_t count)
{
	mat(t, n, 1, count, count, MAT_PLAIN);
}

/* --- data types ------------------------------------------------------------------------------- */

static const char *text_of(const struct tally *t, const char *field)
{
	const json_t *value = field_get(t->r->at, field);

	return json_string_value(value != NULL ? value : field_get(t->root, field));
}

/* Bytes of a weight that is not quantised. */
static void dtype_read(struct tally *t)
{
	static const struct {
		const char *name;
		uint32_t bytes;
	} dtypes[] = {{"bfloat16", 2}, {"float16", 2}, {"float32", 4}};
	const char *name = text_of(t, "torch_dtype");

	if (name == NULL)
		name = text_of(t, "dtype");
	for (size_t i = 0; name != NULL && i < ARRAY_COUNT(dtypes); i++)
		if (strcmp(name, dtypes[i].name) == 0)
			t->elem = dtypes[i].bytes;
	t->bytes_known = t->elem > 0;
	snprintf(t->out->weight_dtype, sizeof(t->out->weight_dtype), "%s",
		 t->elem > 0 ? name : "torch_dtype is missing or not known");
}

static void quant_read(struct tally *t)
{
	const json_t *q = field_get(t->root, "quantization_config"), *block;
	char *say = t->out->weight_dtype;
	const char *method;

	dtype_read(t);
	if (q == NULL)
		q = field_get(t->r->at, "quantization_config");
	if (q == NULL)
		return;
	method = json_string_value(json_object_get(q, "quant_method"));
	block = json_object_get(q, "weight_block_size");
	t->fp8 = method != NULL && strcmp(method, "fp8") == 0;
	t->mxfp4 = method != NULL && strcmp(method, "mxfp4") == 0 && t->type->mlp == MLP_OSS;
	if (t->fp8 && json_array_size(block) == 2) {
		json_int_t rows = json_integer_value(json_array_get(block, 0));
		json_int_t cols = json_integer_value(json_array_get(block, 1));

		if (rows > 0 && cols > 0 && rows <= WIDTH_MAX && cols <= WIDTH_MAX) {
			t->block_rows = (uint32_t)rows;
			t->block_cols = (uint32_t)cols;
		}
	}
	/* What is not quantised is 16 bits wide where the file does not say so. */
	if ((t->fp8 || t->mxfp4) && t->elem == 0) {
		t->elem = 2;
		t->bytes_known = true;
	}
	if (t->fp8 && t->block_rows > 0)
		snprintf(say, sizeof(t->out->weight_dtype), "fp8, a scale for %u x %u",
			 t->block_rows, t->block_cols);
	else if (t->fp8 || t->mxfp4)
		snprintf(say, sizeof(t->out->weight_dtype), "%s", t->fp8 ? "fp8" :
			 "mxfp4 experts, 4.25 bits");
	else
		snprintf(say, sizeof(t->out->weight_dtype), "%.20s: bytes are not known",
			 method != NULL ? method : "quantisation without a method");
	t->bytes_known = t->bytes_known && (t->fp8 || t->mxfp4);
}

/* --- attention -------------------------------------------------------------------------------- */

static int attention_headed(struct tally *t, const struct kvof_plan_model *m, uint64_t layers)
{
	uint64_t query, kv, dim;
	bool bias = t->type->qkv_bias, out_bias = t->type->out_bias;

	if (m->groups == 0)
		return plan_bad(t->r->bad, "num_hidden_layers", "leaves no layer with attention");
	dim = m->group[0].k_dim;
	query = m->group[0].query_heads * dim;
	kv = m->group[0].kv_heads * dim;
	if (!bias) {
		if (bool_maybe(t->r, "attention_bias", &bias) != 0)
			return -EINVAL;
		out_bias = out_bias || bias;
	}
	mat(t, query, t->hidden, layers, layers, MAT_LINEAR);
	mat(t, kv, t->hidden, 2 * layers, 2 * layers, MAT_LINEAR);
	mat(t, t->hidden, query, layers, layers, MAT_LINEAR);
	if (bias)
		plain(t, query + 2 * kv, layers);
	if (out_bias)
		plain(t, t->hidden, layers);
	if (t->type->qk_norm)
		plain(t, 2 * dim, layers);
	if (t->type->sinks)
		plain(t, m->group[0].query_heads, layers);
	return 0;
}

static int attention_mla(struct tally *t, const struct kvof_plan_model *m, uint64_t layers)
{
	struct model_reader *r = t->r;
	uint32_t q_rank = 0, nope, v_dim;
	uint64_t heads = m->query_heads, rank, rope, query;

	must(m->groups > 0);
	rank = m->group[0].k_dim;
	rope = m->group[0].v_dim;
	if (uint_maybe(r, r->at, "q_lora_rank", WIDTH_MAX, &q_rank) != 0 ||
	    uint_field(r, r->at, "qk_nope_head_dim", MODEL_DIM_MAX, &nope) != 0 ||
	    uint_field(r, r->at, "v_head_dim", MODEL_DIM_MAX, &v_dim) != 0)
		return -EINVAL;
	query = heads * (nope + rope);
	if (q_rank > 0) {
		mat(t, q_rank, t->hidden, layers, layers, MAT_LINEAR);
		plain(t, q_rank, layers);
		mat(t, query, q_rank, layers, layers, MAT_LINEAR);
	} else {
		mat(t, query, t->hidden, layers, layers, MAT_LINEAR);
	}
	mat(t, rank + rope, t->hidden, layers, layers, MAT_LINEAR);
	plain(t, rank, layers);
	mat(t, heads * ((uint64_t)nope + v_dim), rank, layers, layers, MAT_LINEAR);
	mat(t, t->hidden, heads * v_dim, layers, layers, MAT_LINEAR);
	t->out->pair_flops = 2.0 * (double)heads * ((double)nope + (double)rope + v_dim) *
			     (double)layers;
	return 0;
}

/* Scores and their sum of values: two operations for each number of K and of V, a head. */
static void pairs_count(struct tally *t, const struct kvof_plan_model *m)
{
	for (uint32_t i = 0; i < m->groups; i++) {
		const struct kvof_plan_group *g = &m->group[i];
		double flops = 2.0 * g->layers * g->query_heads * ((double)g->k_dim + g->v_dim);

		if (g->kind == KVOF_PLAN_MLA || g->kind == KVOF_PLAN_INDEXER)
			continue;
		if (g->window == 0) {
			t->out->pair_flops += flops;
			continue;
		}
		t->out->window_pair_flops += flops;
		t->out->window = (double)g->window;
	}
}

/* --- what is between attentions --------------------------------------------------------------- */

/* Gate, up and down of one MLP; experts are counted n times. */
static void gated(struct tally *t, uint64_t inner, uint64_t count, uint64_t active,
		  enum mat_kind kind)
{
	mat(t, inner, t->hidden, 2 * count, 2 * active, kind);
	mat(t, t->hidden, inner, count, active, kind);
}

static int experts_read(struct tally *t, const char *all_name, const char *some_name,
			uint32_t *all, uint32_t *some)
{
	if (uint_field(t->r, t->r->at, all_name, EXPERTS_MAX, all) != 0 ||
	    uint_field(t->r, t->r->at, some_name, EXPERTS_MAX, some) != 0)
		return -EINVAL;
	return *some <= *all ? 0 : plan_bad(t->r->bad, some_name, "is %u of %u experts", *some,
					    *all);
}

static int mlp_dense(struct tally *t, uint64_t layers)
{
	bool bias = false;

	if (strcmp(t->type->name, "llama") == 0 && bool_maybe(t->r, "mlp_bias", &bias) != 0)
		return -EINVAL;
	gated(t, t->inner, layers, layers, MAT_LINEAR);
	if (bias)
		plain(t, 2 * t->inner + t->hidden, layers);
	return 0;
}

static int mlp_mixtral(struct tally *t, uint64_t layers)
{
	uint32_t all, some;

	if (experts_read(t, "num_local_experts", "num_experts_per_tok", &all, &some) != 0)
		return -EINVAL;
	mat(t, all, t->hidden, layers, layers, MAT_PLAIN);
	gated(t, t->inner, layers * all, layers * some, MAT_EXPERT);
	return 0;
}

static bool in_list(const json_t *list, uint64_t layer)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if ((uint64_t)json_integer_value(json_array_get(list, i)) == layer)
			return true;
	return false;
}

static int mlp_qwen(struct tally *t, uint64_t layers)
{
	const json_t *only = field_get(t->r->at, "mlp_only_layers");
	uint32_t all, some, inner, step = 1, shared = 0;
	uint64_t sparse = 0;

	if (experts_read(t, "num_experts", "num_experts_per_tok", &all, &some) != 0 ||
	    uint_field(t->r, t->r->at, "moe_intermediate_size", INNER_MAX, &inner) != 0 ||
	    uint_maybe(t->r, t->r->at, "decoder_sparse_step", KVOF_PLAN_LAYERS_MAX, &step) != 0)
		return -EINVAL;
	if (strcmp(t->type->name, "qwen2_moe") == 0 &&
	    uint_field(t->r, t->r->at, "shared_expert_intermediate_size", INNER_MAX, &shared) != 0)
		return -EINVAL;
	for (uint64_t i = 0; step > 0 && i < layers; i++)
		sparse += (i + 1) % step == 0 && !in_list(only, i);
	mat(t, all, t->hidden, sparse, sparse, MAT_PLAIN);
	gated(t, inner, sparse * all, sparse * some, MAT_EXPERT);
	if (shared > 0) {
		gated(t, shared, sparse, sparse, MAT_LINEAR);
		plain(t, t->hidden, sparse);
	}
	if (sparse < layers)
		gated(t, t->inner, layers - sparse, layers - sparse, MAT_LINEAR);
	return 0;
}

static int mlp_deepseek(struct tally *t, uint64_t layers)
{
	struct model_reader *r = t->r;
	uint32_t all, some, inner, shared = 0, first = 0, every = 1;
	const char *method = text_of(t, "topk_method");
	uint64_t sparse = 0;

	if (experts_read(t, "n_routed_experts", "num_experts_per_tok", &all, &some) != 0 ||
	    uint_field(r, r->at, "moe_intermediate_size", INNER_MAX, &inner) != 0 ||
	    uint_maybe(r, r->at, "n_shared_experts", 64, &shared) != 0 ||
	    uint_maybe(r, r->at, "first_k_dense_replace", KVOF_PLAN_LAYERS_MAX, &first) != 0 ||
	    uint_maybe(r, r->at, "moe_layer_freq", KVOF_PLAN_LAYERS_MAX, &every) != 0)
		return -EINVAL;
	for (uint64_t i = first; every > 0 && i < layers; i++)
		sparse += i % every == 0;
	mat(t, all, t->hidden, sparse, sparse, MAT_PLAIN);
	if (method != NULL && strcmp(method, "noaux_tc") == 0)
		plain(t, all, sparse);
	gated(t, inner, sparse * all, sparse * some, MAT_EXPERT);
	if (shared > 0)
		gated(t, (uint64_t)shared * inner, sparse, sparse, MAT_LINEAR);
	if (sparse < layers)
		gated(t, t->inner, layers - sparse, layers - sparse, MAT_LINEAR);
	return 0;
}

/* Experts and their router have biases. */
static int mlp_oss(struct tally *t, uint64_t layers)
{
	const char *some_name = field_get(t->r->at, "experts_per_token") != NULL ?
		"experts_per_token" : "num_experts_per_tok";
	uint32_t all, some;

	if (experts_read(t, "num_local_experts", some_name, &all, &some) != 0)
		return -EINVAL;
	mat(t, all, t->hidden + 1, layers, layers, MAT_PLAIN);
	gated(t, t->inner, layers * all, layers * some, MAT_EXPERT);
	mat(t, 2 * t->inner + t->hidden, 1, layers * all, layers * some, MAT_PLAIN);
	return 0;
}

/* --- all of it -------------------------------------------------------------------------------- */

static const struct work_type *work_type_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_COUNT(types); i++)
		if (strcmp(types[i].name, name) == 0)
			return &types[i];
	return NULL;
}

static int sizes_read(struct tally *t)
{
	struct model_reader *r = t->r;
	uint32_t hidden, vocab, inner = 0;
	bool needs_inner = t->type->mlp != MLP_QWEN && t->type->mlp != MLP_DEEPSEEK;

	if (uint_field(r, r->at, "hidden_size", WIDTH_MAX, &hidden) != 0 ||
	    uint_field(r, r->at, "vocab_size", VOCAB_MAX, &vocab) != 0 ||
	    (needs_inner ? uint_field : uint_maybe)(r, r->at, "intermediate_size", INNER_MAX,
						    &inner) != 0)
		return -EINVAL;
	t->hidden = hidden;
	t->vocab = vocab;
	t->inner = inner;
	return 0;
}

static int tied_read(struct tally *t, bool *tied)
{
	const json_t *value = field_get(t->r->at, "tie_word_embeddings");

	if (value == NULL)
		value = field_get(t->root, "tie_word_embeddings");
	*tied = value != NULL ? json_is_true(value) : t->type->tied;
	return value == NULL || json_is_boolean(value) ? 0 :
	       plan_bad(t->r->bad, "tie_word_embeddings", "is neither true nor false");
}

static int count(struct tally *t, const struct kvof_plan_model *m)
{
	static int (*const mlp[])(struct tally *t, uint64_t layers) = {
		[MLP_DENSE] = mlp_dense, [MLP_QWEN] = mlp_qwen, [MLP_MIXTRAL] = mlp_mixtral,
		[MLP_DEEPSEEK] = mlp_deepseek, [MLP_OSS] = mlp_oss};
	struct kvof_plan_work *out = t->out;
	uint64_t layers = m->layers, looked_up;
	bool tied;
	int rc = sizes_read(t);

	if (rc == 0)
		rc = tied_read(t, &tied);
	if (rc != 0)
		return rc;
	quant_read(t);
	rc = t->type->mlp == MLP_DEEPSEEK ? attention_mla(t, m, layers) :
	     attention_headed(t, m, layers);
	if (rc == 0)
		rc = mlp[t->type->mlp](t, layers);
	if (rc != 0)
		return rc;
	plain(t, t->hidden, t->type->norms * layers + 1);
	looked_up = t->vocab * t->hidden;
	out->token_flops = 2.0 * (double)out->active_params;
	out->embed_params = looked_up;
	mat(t, t->vocab, t->hidden, tied ? 1 : 2, tied ? 1 : 2, MAT_PLAIN);
	pairs_count(t, m);
	out->weight_bytes = t->bytes_known ? t->bytes : 0;
	snprintf(out->rule, sizeof(out->rule), "%s: matrices of %u layers%s, %s", t->type->name,
		 m->layers, tied ? ", one table for tokens in and out" :
		 ", tables for tokens in and out", out->weight_dtype);
	return 0;
}

static int root_count(struct tally *t, const struct kvof_plan_model *m, const json_t *root)
{
	int rc = text_find(t->r, root);

	if (rc != 0)
		return rc;
	t->root = root;
	t->type = work_type_find(m->type);
	if (t->type == NULL)
		return plan_bad(t->r->bad, "model_type", "%.40s: its matrices are not known; "
				"give the parameters or the bytes of its weights", m->type);
	snprintf(t->out->type, sizeof(t->out->type), "%s", m->type);
	return count(t, m);
}

int kvof_plan_work_read(const char *text, size_t bytes, struct kvof_plan_work *out,
			struct kvof_plan_bad *bad)
{
	struct kvof_plan_model *model = calloc(2, sizeof(*model));
	struct model_reader *r = calloc(1, sizeof(*r));
	struct tally t = {.r = r, .out = out};
	json_t *root = NULL;
	int rc = -ENOMEM;

	*out = (struct kvof_plan_work){0};
	*bad = (struct kvof_plan_bad){0};
	if (model != NULL && r != NULL)
		rc = kvof_plan_model_read(text, bytes, model, bad);
	if (rc == 0) {
		root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
		rc = root != NULL ? 0 : -ENOMEM;
	}
	if (rc == 0) {
		r->out = &model[1];
		r->bad = bad;
		rc = root_count(&t, model, root);
	}
	if (rc != 0)
		*out = (struct kvof_plan_work){0};
	json_decref(root);
	free(r);
	free(model);
	return rc;
}

static bool sane(double x)
{
	return isfinite(x) && x >= 0;
}

int kvof_plan_work_given(double params, double active_params, double weight_bytes,
			 double elem_bytes, struct kvof_plan_work *out,
			 struct kvof_plan_bad *bad)
{
	*out = (struct kvof_plan_work){0};
	*bad = (struct kvof_plan_bad){0};
	if (!sane(params) || !sane(active_params) || !sane(weight_bytes) || !sane(elem_bytes) ||
	    params > 1e16 || weight_bytes > 1e17)
		return plan_bad(bad, "params", "are no count, or the weights no size");
	if (params == 0 && weight_bytes == 0)
		return plan_bad(bad, "params", "are missing, and the bytes of the weights too");
	if (active_params > params)
		return plan_bad(bad, "active_params", "are %.0f of %.0f", active_params, params);
	if (weight_bytes == 0 && (elem_bytes <= 0 || elem_bytes > 8))
		return plan_bad(bad, "elem_bytes", "of a weight are missing: %g", elem_bytes);
	out->params = (uint64_t)params;
	out->active_params = (uint64_t)(active_params > 0 ? active_params : params);
	out->weight_bytes = (uint64_t)(weight_bytes > 0 ? weight_bytes : params * elem_bytes);
	out->token_flops = 2.0 * (double)out->active_params;
	snprintf(out->rule, sizeof(out->rule), "given by hand; attention is not counted");
	snprintf(out->weight_dtype, sizeof(out->weight_dtype), "given by hand");
	return 0;
}

double kvof_plan_work_flops(const struct kvof_plan_work *work, double tokens)
{
	double seen = work->window > 0 && work->window < tokens ? work->window : tokens;
	double slid = seen * (seen + 1) / 2 + (tokens - seen) * seen;

	return tokens * work->token_flops + work->pair_flops * tokens * (tokens + 1) / 2 +
	       work->window_pair_flops * slid;
}
