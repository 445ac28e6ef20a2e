/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rule a family of model types: which layer keeps what. A list in the file (layer_types, ...)
 * goes before the type's own pattern; both are said in `rule`. Sources: [HFCONFIG], docs/plan.md.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "plan/model.h"

static void layer_put(struct model_reader *r, uint32_t i, enum model_layer_kind kind,
		      uint64_t window)
{
	r->layer[i] = (struct model_layer){.kind = kind, .query_heads = r->heads,
		.kv_heads = r->kv_heads, .k_dim = r->dim, .v_dim = r->dim, .window = window};
}

static int window_read(struct model_reader *r, const char *field, uint64_t *window)
{
	const json_t *value = field_get(r->at, field);

	if (value == NULL)
		return plan_bad(r->bad, field, "is missing; model_type %s needs it",
				r->type->name);
	if (!json_is_integer(value) || json_integer_value(value) <= 0 ||
	    (uint64_t)json_integer_value(value) > MODEL_WINDOW_MAX)
		return plan_bad(r->bad, field, "is no count of tokens");
	*window = (uint64_t)json_integer_value(value);
	return 0;
}

/* layer_types, or what a type calls it; r->has_list says whether it was there. */
static int list_read(struct model_reader *r, const char *field)
{
	static const struct {
		const char *name;
		enum model_layer_kind kind;
	} names[] = {
		{"full_attention", LAYER_FULL}, {"attention", LAYER_FULL}, {"hybrid", LAYER_FULL},
		{"sliding_attention", LAYER_SLIDING}, {"chunked_attention", LAYER_CHUNKED},
		{"linear_attention", LAYER_STATE}, {"mamba", LAYER_STATE}, {"mamba2", LAYER_STATE},
		{"moe", LAYER_NONE}, {"mlp", LAYER_NONE},
	};
	const json_t *list;
	int rc = list_maybe(r, field, &list);

	r->has_list = rc == 0 && list != NULL;
	if (!r->has_list)
		return rc;
	for (uint32_t i = 0; i < r->layers; i++) {
		const char *is = json_string_value(json_array_get(list, i));
		char entry[64];
		size_t k = 0;

		snprintf(entry, sizeof(entry), "%s[%u]", field, i);
		if (is == NULL)
			return plan_bad(r->bad, entry, "is no text");
		while (k < ARRAY_COUNT(names) && strcmp(names[k].name, is) != 0)
			k++;
		if (k == ARRAY_COUNT(names))
			return plan_bad(r->bad, entry, "\"%.40s\" is no kind of layer that is "
					"known", is);
		layer_put(r, i, names[k].kind, 0);
	}
	rule_say(r, "%s of the file", field);
	return 0;
}

static bool layer_has(const struct model_reader *r, enum model_layer_kind kind)
{
	for (uint32_t i = 0; i < r->layers; i++)
		if (r->layer[i].kind == kind)
			return true;
	return false;
}

/* Layers that slide or are chunked get their windows; any that keep no KV are not of this rule. */
static int windows_put(struct model_reader *r)
{
	uint64_t window = 0, chunk = 0;
	int rc = 0;

	if (layer_has(r, LAYER_STATE) || layer_has(r, LAYER_NONE))
		return plan_bad(r->bad, "layer_types", "has layers without attention, which "
				"model_type %s does not have", r->type->name);
	if (layer_has(r, LAYER_SLIDING))
		rc = window_read(r, "sliding_window", &window);
	if (rc == 0 && layer_has(r, LAYER_CHUNKED))
		rc = window_read(r, "attention_chunk_size", &chunk);
	for (uint32_t i = 0; i < r->layers; i++)
		r->layer[i].window = r->layer[i].kind == LAYER_SLIDING ? window :
			r->layer[i].kind == LAYER_CHUNKED ? chunk : 0;
	return rc;
}

static int full_put(struct model_reader *r)
{
	for (uint32_t i = 0; i < r->layers; i++)
		layer_put(r, i, LAYER_FULL, 0);
	rule_say(r, "%s: every layer keeps every token", r->type->name);
	return 0;
}

/* --- heads of their own, every token --------------------------------------- */

static int rule_full(struct model_reader *r)
{
	int rc = heads_read(r);

	if (rc == 0)
		rc = list_read(r, "layer_types");
	if (rc != 0)
		return rc;
	return r->has_list ? windows_put(r) : full_put(r);
}

/* A window, if there is one and it is shorter than the context, in every layer. */
static int rule_window(struct model_reader *r)
{
	uint32_t positions = 0;
	uint64_t window;
	int rc = heads_read(r);

	if (rc == 0)
		rc = list_read(r, "layer_types");
	if (rc != 0)
		return rc;
	if (r->has_list)
		return windows_put(r);
	if (field_get(r->at, "sliding_window") == NULL)
		return full_put(r);
	rc = window_read(r, "sliding_window", &window);
	if (rc == 0)
		rc = uint_maybe(r, r->at, "max_position_embeddings", UINT32_MAX, &positions);
	if (rc != 0)
		return rc;
	if (positions > 0 && window >= positions) {
		rule_say(r, "sliding_window %llu is not below max_position_embeddings %u: no "
			 "effect", (unsigned long long)window, positions);
		return full_put(r);
	}
	for (uint32_t i = 0; i < r->layers; i++)
		layer_put(r, i, LAYER_SLIDING, window);
	rule_say(r, "%s: sliding_window in every layer", r->type->name);
	return 0;
}

/* Qwen: a window only where it is switched on, and from max_window_layers on. */
static int rule_qwen(struct model_reader *r)
{
	uint32_t first = NEEDED;
	uint64_t window;
	bool on = false;
	int rc = heads_read(r);

	if (rc == 0)
		rc = bool_maybe(r, "use_sliding_window", &on);
	if (rc == 0)
		rc = list_read(r, "layer_types");
	if (rc != 0)
		return rc;
	if (r->has_list)
		return windows_put(r);
	if (!on) {
		if (field_get(r->at, "sliding_window") != NULL)
			rule_say(r, "use_sliding_window is not on: sliding_window has no effect");
		return full_put(r);
	}
	rc = window_read(r, "sliding_window", &window);
	if (rc == 0)
		rc = uint_maybe(r, r->at, "max_window_layers", UINT32_MAX - 1, &first);
	if (rc == 0 && first == NEEDED)
		rc = plan_bad(r->bad, "max_window_layers", "is missing, with use_sliding_window");
	for (uint32_t i = 0; rc == 0 && i < r->layers; i++)
		layer_put(r, i, i >= first ? LAYER_SLIDING : LAYER_FULL, i >= first ? window : 0);
	if (rc == 0)
		rule_say(r, "%s: layers from max_window_layers %u on slide", r->type->name, first);
	return rc;
}

/* Every n-th layer keeps all, the others slide: gemma, gpt_oss, cohere2, olmo3. */
static int alternate_put(struct model_reader *r)
{
	uint32_t every = r->type->every;
	int rc = list_read(r, "layer_types");

	if (rc != 0 || r->has_list)
		return rc;
	rc = uint_maybe(r, r->at, "sliding_window_pattern", KVOF_PLAN_LAYERS_MAX, &every);
	if (rc != 0)
		return rc;
	if (every == 0)
		return plan_bad(r->bad, "sliding_window_pattern", "is 0");
	for (uint32_t i = 0; i < r->layers; i++)
		layer_put(r, i, (i + 1) % every == 0 ? LAYER_FULL : LAYER_SLIDING, 0);
	rule_say(r, "%s: one layer in %u keeps every token, the others slide", r->type->name,
		 every);
	return 0;
}

static int rule_alternate(struct model_reader *r)
{
	int rc = heads_read(r);

	if (rc == 0)
		rc = alternate_put(r);
	return rc == 0 ? windows_put(r) : rc;
}

/* The last num_kv_shared_layers use the KV of layers before them. */
static int shared_drop(struct model_reader *r, uint32_t shared)
{
	int rc = uint_maybe(r, r->at, "num_kv_shared_layers", KVOF_PLAN_LAYERS_MAX, &shared);

	if (rc != 0 || shared == 0)
		return rc;
	if (shared >= r->layers)
		return plan_bad(r->bad, "num_kv_shared_layers", "is %u of %u layers", shared,
				r->layers);
	for (uint32_t i = r->layers - shared; i < r->layers; i++)
		r->layer[i].kind = LAYER_NONE;
	rule_say(r, "the last %u layers use the KV of earlier ones", shared);
	return 0;
}

static int rule_gemma3n(struct model_reader *r)
{
	int rc = rule_alternate(r);

	if (rc == 0 && field_get(r->at, "num_kv_shared_layers") == NULL)
		return plan_bad(r->bad, "num_kv_shared_layers", "is missing; model_type %s needs "
				"it", r->type->name);
	return rc == 0 ? shared_drop(r, 0) : rc;
}

/* Layers that keep all have heads of their own count and width; V may be K. */
static int rule_gemma4(struct model_reader *r)
{
	uint32_t heads, dim = 0;
	bool same = false;
	int rc = heads_read(r);

	if (rc == 0)
		rc = alternate_put(r);
	if (rc != 0)
		return rc;
	if (!r->has_list)
		r->layer[r->layers - 1].kind = LAYER_FULL;
	heads = r->kv_heads;
	rc = windows_put(r);
	if (rc == 0)
		rc = uint_maybe(r, r->at, "num_global_key_value_heads", r->heads, &heads);
	if (rc == 0)
		rc = uint_field(r, r->at, "global_head_dim", MODEL_DIM_MAX, &dim);
	if (rc == 0)
		rc = bool_maybe(r, "attention_k_eq_v", &same);
	if (rc == 0 && heads == 0)
		rc = plan_bad(r->bad, "num_global_key_value_heads", "is 0");
	for (uint32_t i = 0; rc == 0 && i < r->layers; i++) {
		if (r->layer[i].kind != LAYER_FULL)
			continue;
		r->layer[i].kv_heads = heads;
		r->layer[i].k_dim = r->layer[i].v_dim = dim;
		r->layer[i].k_is_v = same;
	}
	if (rc == 0 && same)
		rule_say(r, "attention_k_eq_v: an engine may keep K and V of full layers as one");
	return rc == 0 ? shared_drop(r, 0) : rc;
}

/* no_rope_layers: 1 is a chunked layer, 0 a full one; by default every 4th is full. */
static int rule_llama4(struct model_reader *r)
{
	const json_t *list = field_get(r->at, "no_rope_layers");
	uint32_t every = r->type->every;
	int rc = heads_read(r);

	if (rc == 0)
		rc = list_read(r, "layer_types");
	if (rc != 0)
		return rc;
	if (r->has_list)
		return windows_put(r);
	rc = uint_maybe(r, r->at, "no_rope_layer_interval", KVOF_PLAN_LAYERS_MAX, &every);
	if (rc == 0 && every == 0)
		rc = plan_bad(r->bad, "no_rope_layer_interval", "is 0");
	if (rc == 0 && list != NULL && !(json_is_array(list) && json_array_size(list) == 0))
		rc = list_maybe(r, "no_rope_layers", &list);
	else
		list = NULL;
	for (uint32_t i = 0; rc == 0 && i < r->layers; i++) {
		uint32_t roped = (i + 1) % every != 0;

		if (list != NULL) {
			const json_t *is = json_array_get(list, i);

			if (!json_is_integer(is))
				return plan_bad(r->bad, "no_rope_layers", "entry %u is no number",
						i);
			roped = json_integer_value(is) != 0;
		}
		layer_put(r, i, roped ? LAYER_CHUNKED : LAYER_FULL, 0);
	}
	if (rc == 0 && list != NULL)
		rule_say(r, "no_rope_layers of the file: 0 keeps every token, 1 a chunk");
	else if (rc == 0)
		rule_say(r, "%s: one layer in %u keeps every token, the others a chunk",
			 r->type->name, every);
	return rc == 0 ? windows_put(r) : rc;
}

/* The pattern of MiMo: 1 slides. Without a list: the first, and every 6th, keep all. */
static int mimo_pattern(struct model_reader *r, uint64_t window)
{
	const json_t *list;
	int rc = list_maybe(r, "hybrid_layer_pattern", &list);

	for (uint32_t i = 0; rc == 0 && i < r->layers; i++) {
		const json_t *is = json_array_get(list, i);
		bool slides = list != NULL ? json_integer_value(is) != 0 :
			      i > 0 && (i + 1) % r->type->every != 0;

		if (list != NULL && !json_is_integer(is))
			return plan_bad(r->bad, "hybrid_layer_pattern", "entry %u is no number",
					i);
		layer_put(r, i, slides ? LAYER_SLIDING : LAYER_FULL, slides ? window : 0);
	}
	if (rc == 0 && list != NULL)
		rule_say(r, "hybrid_layer_pattern of the file: 1 slides");
	else if (rc == 0)
		rule_say(r, "%s: the first and one layer in %u keep every token, the others "
			 "slide", r->type->name, r->type->every);
	return rc;
}

static int rule_mimo(struct model_reader *r)
{
	uint32_t v_dim, q_heads, kv_heads, k_dim, swa_v_dim;
	uint64_t window = 0;
	int rc = heads_read(r);

	q_heads = r->heads;
	if (rc == 0)
		rc = window_read(r, "sliding_window", &window);
	if (rc == 0)
		rc = uint_field(r, r->at, "v_head_dim", MODEL_DIM_MAX, &v_dim);
	if (rc == 0)
		rc = uint_field(r, r->at, "swa_num_key_value_heads", MODEL_HEADS_MAX, &kv_heads);
	if (rc == 0)
		rc = uint_field(r, r->at, "swa_head_dim", MODEL_DIM_MAX, &k_dim);
	if (rc == 0)
		rc = uint_field(r, r->at, "swa_v_head_dim", MODEL_DIM_MAX, &swa_v_dim);
	if (rc == 0)
		rc = uint_maybe(r, r->at, "swa_num_attention_heads", MODEL_HEADS_MAX, &q_heads);
	if (rc == 0 && q_heads == 0)
		rc = plan_bad(r->bad, "swa_num_attention_heads", "is 0");
	if (rc == 0)
		rc = mimo_pattern(r, window);
	for (uint32_t i = 0; rc == 0 && i < r->layers; i++) {
		struct model_layer *l = &r->layer[i];

		l->v_dim = v_dim;
		if (l->kind != LAYER_SLIDING)
			continue;
		l->query_heads = q_heads;
		l->kv_heads = kv_heads;
		l->k_dim = k_dim;
		l->v_dim = swa_v_dim;
	}
	return rc;
}

/* multi_query makes one KV head of any number, unless the architecture is the new one. */
static int rule_falcon(struct model_reader *r)
{
	bool one = true, renewed = false;
	int rc = heads_read(r);

	if (rc == 0)
		rc = bool_maybe(r, "multi_query", &one);
	if (rc == 0)
		rc = bool_maybe(r, "new_decoder_architecture", &renewed);
	if (rc != 0)
		return rc;
	if (one && !renewed && strcmp(r->type->name, "RefinedWeb") != 0) {
		r->kv_heads = 1;
		rule_say(r, "multi_query and not new_decoder_architecture: one KV head");
	}
	return full_put(r);
}

static int rule_bigcode(struct model_reader *r)
{
	bool one = true;
	int rc = heads_read(r);

	if (rc == 0)
		rc = bool_maybe(r, "multi_query", &one);
	if (rc != 0)
		return rc;
	r->kv_heads = one ? 1 : r->heads;
	rule_say(r, one ? "multi_query: one KV head" : "multi_query is off: as many as heads");
	return full_put(r);
}

/* --- latents --------------------------------------------------------------- */

static int mla_read(struct model_reader *r)
{
	uint32_t rank, rope;
	int rc = layers_read(r);

	if (rc == 0)
		rc = uint_field(r, r->at, "kv_lora_rank", MODEL_DIM_MAX, &rank);
	if (rc == 0)
		rc = uint_field(r, r->at, "qk_rope_head_dim", MODEL_DIM_MAX, &rope);
	for (uint32_t i = 0; rc == 0 && i < r->layers; i++)
		r->layer[i] = (struct model_layer){.kind = LAYER_MLA, .query_heads = r->heads,
			.kv_heads = 1, .k_dim = rank, .v_dim = rope};
	return rc;
}

static int rule_mla(struct model_reader *r)
{
	uint32_t dim = 0;
	int rc = mla_read(r);

	if (rc == 0)
		rc = uint_maybe(r, r->at, "index_head_dim", MODEL_DIM_MAX, &dim);
	if (rc == 0)
		rule_say(r, "%s: every layer keeps one latent for all heads; num_key_value_heads "
			 "and head_dim play no part", r->type->name);
	if (rc == 0 && dim > 0)
		rule_say(r, "an index key of index_head_dim bytes and a scale of 4 beside it");
	r->index_dim = dim;
	return rc;
}

static int rule_dsa(struct model_reader *r)
{
	int rc = rule_mla(r);

	if (rc == 0 && r->index_dim == 0)
		rc = plan_bad(r->bad, "index_head_dim", "is missing; model_type %s needs it",
			      r->type->name);
	return rc;
}

/* --- layers with constant state --------------------------------------------- */

struct state_field {
	const char *name;
	uint32_t *into;
};

/* Fields of the state; one that is absent leaves the state untold, not the KV cache. 1: untold. */
static int state_fields(struct model_reader *r, const json_t *at, const struct state_field *f,
			size_t count)
{
	for (size_t i = 0; i < count; i++) {
		int rc;

		if (field_get(at, f[i].name) == NULL) {
			snprintf(r->out->state.missing, sizeof(r->out->state.missing), "%s",
				 f[i].name);
			return 1;
		}
		rc = uint_field(r, at, f[i].name, MODEL_DIM_MAX, f[i].into);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Counts are bounded by 2^16 each and layers by 2^10: three factors and a layer stay in 64 bits. */
static void state_put(struct model_reader *r, const char *kind, uint64_t conv, uint64_t recurrent)
{
	struct kvof_plan_state *s = &r->out->state;

	s->kind = kind;
	s->layers = 0;
	for (uint32_t i = 0; i < r->layers; i++)
		s->layers += r->layer[i].kind == LAYER_STATE;
	s->conv_elems = conv * s->layers;
	s->recurrent_elems = recurrent * s->layers;
}

static int rule_gdn(struct model_reader *r)
{
	uint32_t hk = 0, dk = 0, hv = 0, dv = 0, kernel = 1, every = r->type->every;
	const struct state_field f[] = {{"linear_num_key_heads", &hk}, {"linear_key_head_dim", &dk},
		{"linear_num_value_heads", &hv}, {"linear_value_head_dim", &dv},
		{"linear_conv_kernel_dim", &kernel}};
	int rc = heads_read(r);

	if (rc == 0)
		rc = list_read(r, "layer_types");
	if (rc == 0)
		rc = uint_maybe(r, r->at, "full_attention_interval", KVOF_PLAN_LAYERS_MAX, &every);
	if (rc == 0 && every == 0)
		rc = plan_bad(r->bad, "full_attention_interval", "is 0");
	if (rc != 0)
		return rc;
	for (uint32_t i = 0; !r->has_list && i < r->layers; i++)
		layer_put(r, i, (i + 1) % every == 0 ? LAYER_FULL : LAYER_STATE, 0);
	if (!r->has_list)
		rule_say(r, "%s: one layer in %u has a KV cache, the others a constant state",
			 r->type->name, every);
	rc = state_fields(r, r->at, f, ARRAY_COUNT(f));
	if (rc < 0)
		return rc;
	if (rc > 0)
		hk = hv = 0;
	state_put(r, "gated_delta_net", (2ull * hk * dk + (uint64_t)hv * dv) * (kernel - 1),
		  (uint64_t)hv * dk * dv);
	return 0;
}

static int rule_kda(struct model_reader *r)
{
	const json_t *linear = field_get(r->at, "linear_attn_config"), *full, *one;
	uint32_t heads = 0, dim = 0, kernel = 1;
	const struct state_field f[] = {{"num_heads", &heads}, {"head_dim", &dim},
		{"short_conv_kernel_size", &kernel}};
	int rc = mla_read(r);
	size_t i;

	if (rc != 0)
		return rc;
	full = json_object_get(linear, "full_attn_layers");
	if (!json_is_array(full))
		return plan_bad(r->bad, "linear_attn_config.full_attn_layers",
				full == NULL ? "is missing" : "is no array");
	for (uint32_t l = 0; l < r->layers; l++)
		r->layer[l].kind = LAYER_STATE;
	json_array_foreach(full, i, one) {
		json_int_t at = json_integer_value(one);

		if (!json_is_integer(one) || at < 1 || at > r->layers ||
		    r->layer[at - 1].kind == LAYER_MLA)
			return plan_bad(r->bad, "linear_attn_config.full_attn_layers",
					"entry %zu is no layer from 1 to %u, or one twice", i,
					r->layers);
		r->layer[at - 1].kind = LAYER_MLA;
	}
	rule_say(r, "full_attn_layers of the file (from 1) keep a latent, the others a constant "
		 "state");
	rc = state_fields(r, linear, f, ARRAY_COUNT(f));
	if (rc < 0)
		return rc;
	if (rc > 0)
		heads = 0;
	state_put(r, "kda", 3ull * heads * dim * (kernel - 1), (uint64_t)heads * dim * dim);
	return 0;
}

struct mamba2_names {
	const char *heads, *dim, *groups, *state, *kernel;
};

static int mamba2_put(struct model_reader *r, const struct mamba2_names *n)
{
	uint32_t h = 0, d = 0, g = 0, s = 0, kernel = 1;
	const struct state_field f[] = {{n->heads, &h}, {n->dim, &d}, {n->groups, &g},
		{n->state, &s}, {n->kernel, &kernel}};
	int rc = state_fields(r, r->at, f, ARRAY_COUNT(f));

	if (rc < 0)
		return rc;
	if (rc > 0)
		h = g = 0;
	state_put(r, "mamba2", ((uint64_t)h * d + 2ull * g * s) * (kernel - 1),
		  (uint64_t)h * d * s);
	return 0;
}

static int nemotron_pattern(struct model_reader *r)
{
	const json_t *pattern = field_get(r->at, "hybrid_override_pattern");
	const char *text = json_string_value(pattern);

	if (pattern == NULL) {
		int rc = list_read(r, "layers_block_type");

		if (rc == 0 && !r->has_list)
			rc = plan_bad(r->bad, "hybrid_override_pattern", "is missing; model_type "
				      "%s needs it", r->type->name);
		return rc;
	}
	if (text == NULL || strlen(text) != r->layers)
		return plan_bad(r->bad, "hybrid_override_pattern", "is not one letter for each of "
				"%u layers", r->layers);
	for (uint32_t i = 0; i < r->layers; i++) {
		if (strchr("*M-E", text[i]) == NULL)
			return plan_bad(r->bad, "hybrid_override_pattern", "letter %u is none of "
					"* M - E", i);
		layer_put(r, i, text[i] == '*' ? LAYER_FULL :
			  text[i] == 'M' ? LAYER_STATE : LAYER_NONE, 0);
	}
	rule_say(r, "hybrid_override_pattern of the file: * has a KV cache, M a constant state");
	return 0;
}

static int rule_nemotron_h(struct model_reader *r)
{
	static const struct mamba2_names n = {"mamba_num_heads", "mamba_head_dim", "n_groups",
		"ssm_state_size", "conv_kernel"};
	int rc = heads_read(r);

	if (rc == 0)
		rc = nemotron_pattern(r);
	return rc == 0 ? mamba2_put(r, &n) : rc;
}

/* Indices of layers, from 0, that have attention. */
static int indices_read(struct model_reader *r, const char *field)
{
	const json_t *list = field_get(r->at, field), *one;
	size_t i;

	if (!json_is_array(list))
		return plan_bad(r->bad, field, list == NULL ? "is missing" : "is no array");
	for (uint32_t l = 0; l < r->layers; l++)
		layer_put(r, l, LAYER_STATE, 0);
	json_array_foreach(list, i, one) {
		json_int_t at = json_integer_value(one);

		if (!json_is_integer(one) || at < 0 || at >= r->layers)
			return plan_bad(r->bad, field, "entry %zu is no layer from 0 to %u", i,
					r->layers - 1);
		r->layer[at].kind = LAYER_FULL;
	}
	rule_say(r, "%s of the file have a KV cache, the others a constant state", field);
	return 0;
}

static int rule_bamba(struct model_reader *r)
{
	static const struct mamba2_names n = {"mamba_n_heads", "mamba_d_head", "mamba_n_groups",
		"mamba_d_state", "mamba_d_conv"};
	int rc = heads_read(r);

	if (rc == 0)
		rc = list_read(r, "layer_types");
	if (rc == 0 && !r->has_list)
		rc = indices_read(r, "attn_layer_indices");
	return rc == 0 ? mamba2_put(r, &n) : rc;
}

/* A shared attention block over twice the width; a hybrid layer has it and a Mamba layer. */
static int rule_zamba2(struct model_reader *r)
{
	static const struct mamba2_names n = {"n_mamba_heads", "mamba_headdim", "mamba_ngroups",
		"mamba_d_state", "mamba_d_conv"};
	uint32_t hidden = 0;
	int rc = layers_read(r);

	if (rc == 0)
		rc = uint_field(r, r->at, "hidden_size", MODEL_DIM_MAX, &hidden);
	r->kv_heads = r->heads;
	if (rc == 0)
		rc = uint_maybe(r, r->at, "num_key_value_heads", r->heads, &r->kv_heads);
	if (rc == 0 && r->kv_heads == 0)
		rc = plan_bad(r->bad, "num_key_value_heads", "is 0");
	if (rc == 0 && 2 * hidden % r->heads != 0)
		rc = plan_bad(r->bad, "hidden_size", "twice %u is no multiple of %u heads", hidden,
			      r->heads);
	if (rc != 0)
		return rc;
	r->dim = 2 * hidden / r->heads;
	rule_say(r, "zamba2: heads of 2 * hidden_size / heads = %u", r->dim);
	if (r->dim == 0)
		return plan_bad(r->bad, "hidden_size", "is less than heads");
	rc = list_read(r, "layers_block_type");
	if (rc == 0 && !r->has_list)
		rc = indices_read(r, "hybrid_layer_ids");
	if (rc == 0)
		rc = mamba2_put(r, &n);
	if (rc != 0 || r->out->state.layers == 0)
		return rc;
	/* The state is that of every layer, also of hybrid ones. */
	r->out->state.conv_elems = r->out->state.conv_elems / r->out->state.layers * r->layers;
	r->out->state.recurrent_elems =
		r->out->state.recurrent_elems / r->out->state.layers * r->layers;
	r->out->state.layers = r->layers;
	return 0;
}

static int rule_jamba(struct model_reader *r)
{
	uint32_t period, offset = NEEDED, expand = 0, hidden = 0, kernel = 1, state = 0;
	const struct state_field f[] = {{"hidden_size", &hidden}, {"mamba_expand", &expand},
		{"mamba_d_state", &state}, {"mamba_d_conv", &kernel}};
	int rc = heads_read(r);

	if (rc == 0)
		rc = uint_field(r, r->at, "attn_layer_period", KVOF_PLAN_LAYERS_MAX, &period);
	if (rc == 0)
		rc = uint_maybe(r, r->at, "attn_layer_offset", KVOF_PLAN_LAYERS_MAX, &offset);
	if (rc == 0 && (offset == NEEDED || offset >= period))
		rc = plan_bad(r->bad, "attn_layer_offset", offset == NEEDED ? "is missing" :
			      "is not below attn_layer_period");
	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < r->layers; i++)
		layer_put(r, i, i % period == offset ? LAYER_FULL : LAYER_STATE, 0);
	rule_say(r, "jamba: layers %u, %u, ... have a KV cache, the others a constant state",
		 offset, offset + period);
	rc = state_fields(r, r->at, f, ARRAY_COUNT(f));
	if (rc < 0)
		return rc;
	if (rc > 0)
		expand = 0;
	if (expand > 64)
		return plan_bad(r->bad, "mamba_expand", "is %u, more than 64", expand);
	state_put(r, "mamba1", (uint64_t)expand * hidden * (kernel - 1),
		  (uint64_t)expand * hidden * state);
	return 0;
}

static int rule_lightning(struct model_reader *r)
{
	const json_t *list;
	int rc = heads_read(r);

	if (rc == 0)
		rc = list_read(r, "layer_types");
	if (rc == 0 && !r->has_list) {
		rc = list_maybe(r, "attn_type_list", &list);
		if (rc == 0 && list == NULL)
			rc = plan_bad(r->bad, "attn_type_list", "is missing; model_type %s needs "
				      "it", r->type->name);
		for (uint32_t i = 0; rc == 0 && i < r->layers; i++) {
			const json_t *is = json_array_get(list, i);

			if (!json_is_integer(is) || (json_integer_value(is) | 1) != 1)
				return plan_bad(r->bad, "attn_type_list", "entry %u is neither 0 "
						"nor 1", i);
			layer_put(r, i, json_integer_value(is) == 1 ? LAYER_FULL : LAYER_STATE, 0);
		}
		if (rc == 0)
			rule_say(r, "attn_type_list of the file: 1 has a KV cache, 0 a constant "
				 "state");
	}
	if (rc == 0)
		state_put(r, "lightning", 0, (uint64_t)r->heads * r->dim * r->dim);
	return rc;
}

/* --- layer by layer --------------------------------------------------------- */

static int nas_layer(struct model_reader *r, const json_t *block, uint32_t i)
{
	const json_t *a = json_object_get(block, "attention");
	uint32_t share = 0;
	char entry[64];

	snprintf(entry, sizeof(entry), "block_configs[%u].attention", i);
	if (!json_is_object(a))
		return plan_bad(r->bad, entry, a == NULL ? "is missing" : "is no object");
	layer_put(r, i, LAYER_NONE, 0);
	if (json_is_true(json_object_get(a, "no_op")) ||
	    json_is_true(json_object_get(a, "replace_with_linear")))
		return 0;
	if (field_get(a, "window_length") != NULL || field_get(a, "num_sink_tokens") != NULL)
		return plan_bad(r->bad, entry, "has a window_length or a sink, which is not "
				"known");
	if (uint_field(r, a, "n_heads_in_group", MODEL_HEADS_MAX, &share) != 0)
		return plan_bad(r->bad, entry, "n_heads_in_group is missing or no number above 0");
	if (r->heads % share != 0)
		return plan_bad(r->bad, entry, "n_heads_in_group %u is no divisor of %u heads",
				share, r->heads);
	layer_put(r, i, LAYER_FULL, 0);
	r->layer[i].kv_heads = r->heads / share;
	return 0;
}

static int rule_nas(struct model_reader *r)
{
	const json_t *list;
	int rc = heads_read(r);

	if (rc == 0)
		rc = list_maybe(r, "block_configs", &list);
	if (rc == 0 && list == NULL)
		rc = plan_bad(r->bad, "block_configs", "is missing; model_type %s needs it",
			      r->type->name);
	for (uint32_t i = 0; rc == 0 && i < r->layers; i++)
		rc = nas_layer(r, json_array_get(list, i), i);
	if (rc == 0)
		rule_say(r, "block_configs of the file: heads / n_heads_in_group KV heads, none "
			 "where no_op");
	return rc;
}

static int rule_openelm(struct model_reader *r)
{
	const json_t *query, *kv;
	int rc = uint_field(r, r->at, "num_transformer_layers", KVOF_PLAN_LAYERS_MAX, &r->layers);

	if (rc == 0)
		rc = uint_field(r, r->at, "head_dim", MODEL_DIM_MAX, &r->dim);
	if (rc == 0)
		rc = list_maybe(r, "num_query_heads", &query);
	if (rc == 0)
		rc = list_maybe(r, "num_kv_heads", &kv);
	if (rc == 0 && (query == NULL || kv == NULL))
		rc = plan_bad(r->bad, query == NULL ? "num_query_heads" : "num_kv_heads",
			      "is missing");
	r->out->layers = r->layers;
	for (uint32_t i = 0; rc == 0 && i < r->layers; i++) {
		json_int_t q = json_integer_value(json_array_get(query, i));
		json_int_t k = json_integer_value(json_array_get(kv, i));

		if (q < 1 || q > MODEL_HEADS_MAX || k < 1 || k > q)
			return plan_bad(r->bad, "num_kv_heads", "of layer %u: %lld KV and %lld "
					"query heads", i, (long long)k, (long long)q);
		layer_put(r, i, LAYER_FULL, 0);
		r->layer[i].query_heads = (uint32_t)q;
		r->layer[i].kv_heads = (uint32_t)k;
		r->out->query_heads = (uint32_t)q;
	}
	if (rc == 0)
		rule_say(r, "num_kv_heads of the file, one a layer");
	return rc;
}

/* Groups of cla_share_factor layers use the KV of their first. */
static int rule_hunyuan(struct model_reader *r)
{
	uint32_t factor = 1;
	bool on = field_get(r->at, "cla_share_factor") != NULL;
	int rc = rule_full(r);

	if (rc == 0)
		rc = bool_maybe(r, "use_cla", &on);
	if (rc == 0 && on)
		rc = uint_field(r, r->at, "cla_share_factor", KVOF_PLAN_LAYERS_MAX, &factor);
	for (uint32_t i = 0; rc == 0 && i < r->layers; i++)
		if (i % factor != 0)
			r->layer[i].kind = LAYER_NONE;
	if (rc == 0 && factor > 1)
		rule_say(r, "cla_share_factor: of %u layers the first alone has a KV cache",
			 factor);
	return rc;
}

/* --- the table ---------------------------------------------------------------- */

static const struct model_type types[] = {
	/* name, rule, head_dim, KV heads and heads of the class, every n-th layer */
	{"llama", rule_full, 0, 0, 0, 0},
	{"gpt2", rule_full, 0, 0, 0, 0},
	{"gpt_neox", rule_full, 0, 0, 0, 0},
	{"gptj", rule_full, 0, 0, 0, 0},
	{"opt", rule_full, 0, 0, 0, 0},
	{"bloom", rule_full, 0, 0, 0, 0},
	{"phi", rule_full, 0, 0, 0, 0},
	{"cohere", rule_full, 0, 0, 0, 0},
	{"gemma", rule_full, 256, NEEDED, 0, 0},
	{"granite", rule_full, 0, 0, 0, 0},
	{"granitemoe", rule_full, 0, 0, 0, 0},
	{"olmo", rule_full, 0, 0, 0, 0},
	{"olmo2", rule_full, 0, 0, 0, 0},
	{"internlm2", rule_full, 0, NEEDED, 0, 0},
	{"glm", rule_full, 128, NEEDED, 0, 0},
	{"glm4", rule_full, 128, NEEDED, 0, 0},
	{"glm4_moe", rule_full, 0, NEEDED, 0, 0},
	{"glm4v_moe_text", rule_full, 0, NEEDED, 0, 0},
	{"chatglm", rule_full, NEEDED, NEEDED, 0, 0},
	{"minimax_m2", rule_full, NEEDED, NEEDED, 0, 0},
	{"mistral", rule_window, 0, NEEDED, 0, 0},
	{"mistral3", rule_window, 0, NEEDED, 0, 0},
	{"ministral", rule_window, 0, NEEDED, 0, 0},
	{"mixtral", rule_window, 0, NEEDED, 0, 0},
	{"phi3", rule_window, 0, 0, 0, 0},
	{"phimoe", rule_window, 0, NEEDED, 0, 0},
	{"starcoder2", rule_window, 0, NEEDED, 0, 0},
	{"qwen2", rule_qwen, 0, NEEDED, 0, 0},
	{"qwen2_moe", rule_qwen, 0, NEEDED, 0, 0},
	{"qwen2_vl", rule_qwen, 0, NEEDED, 0, 0},
	{"qwen2_vl_text", rule_qwen, 0, NEEDED, 0, 0},
	{"qwen2_5_vl", rule_qwen, 0, NEEDED, 0, 0},
	{"qwen2_5_vl_text", rule_qwen, 0, NEEDED, 0, 0},
	{"qwen3", rule_qwen, 128, NEEDED, 0, 0},
	{"qwen3_moe", rule_qwen, 0, NEEDED, 0, 0},
	{"qwen3_vl_text", rule_full, 128, NEEDED, 0, 0},
	{"qwen3_vl_moe_text", rule_full, NEEDED, NEEDED, 0, 0},
	{"gemma2", rule_alternate, 256, NEEDED, 0, 2},
	{"gemma3", rule_alternate, 256, 4, 8, 6},
	{"gemma3_text", rule_alternate, 256, 4, 8, 6},
	{"gemma3n", rule_gemma3n, 256, NEEDED, 0, 5},
	{"gemma3n_text", rule_gemma3n, 256, NEEDED, 0, 5},
	{"gemma4", rule_gemma4, NEEDED, NEEDED, 0, 6},
	{"gemma4_text", rule_gemma4, NEEDED, NEEDED, 0, 6},
	{"gpt_oss", rule_alternate, 64, NEEDED, 0, 2},
	{"cohere2", rule_alternate, 0, 0, 0, 4},
	{"olmo3", rule_alternate, 0, 0, 0, 4},
	{"llama4", rule_llama4, 0, NEEDED, 0, 4},
	{"llama4_text", rule_llama4, 0, NEEDED, 0, 4},
	{"mimo_v2_flash", rule_mimo, NEEDED, NEEDED, 0, 6},
	{"falcon", rule_falcon, 0, 0, 0, 0},
	{"RefinedWeb", rule_falcon, 0, NEEDED, 0, 0},
	{"RefinedWebModel", rule_falcon, 0, 0, 0, 0},
	{"gpt_bigcode", rule_bigcode, 0, 0, 0, 0},
	{"deepseek_v2", rule_mla, 0, 0, 0, 0},
	{"deepseek_v3", rule_mla, 0, 0, 0, 0},
	{"kimi_k2", rule_mla, 0, 0, 0, 0},
	{"kimi_k25", rule_mla, 0, 0, 0, 0},
	{"glm4_moe_lite", rule_mla, 0, 0, 0, 0},
	{"minicpm3", rule_mla, 0, 0, 0, 0},
	{"deepseek_v32", rule_dsa, 0, 0, 0, 0},
	{"glm_moe_dsa", rule_dsa, 0, 0, 0, 0},
	{"qwen3_next", rule_gdn, 256, NEEDED, 0, 4},
	{"qwen3_5", rule_gdn, 256, NEEDED, 0, 4},
	{"qwen3_5_text", rule_gdn, 256, NEEDED, 0, 4},
	{"qwen3_5_moe", rule_gdn, 256, NEEDED, 0, 4},
	{"qwen3_5_moe_text", rule_gdn, 256, NEEDED, 0, 4},
	{"kimi_linear", rule_kda, 0, 0, 0, 0},
	{"kimi_k3", rule_kda, 0, 0, 0, 0},
	{"nemotron_h", rule_nemotron_h, NEEDED, NEEDED, 0, 0},
	{"bamba", rule_bamba, 0, NEEDED, 0, 0},
	{"granitemoehybrid", rule_bamba, 0, 0, 0, 0},
	{"zamba2", rule_zamba2, 0, 0, 0, 0},
	{"jamba", rule_jamba, 0, NEEDED, 0, 0},
	{"minimax", rule_lightning, 0, NEEDED, 0, 0},
	{"minimax_m1", rule_lightning, 0, NEEDED, 0, 0},
	{"minimax_text_01", rule_lightning, 0, NEEDED, 0, 0},
	{"nemotron-nas", rule_nas, 0, 0, 0, 0},
	{"openelm", rule_openelm, NEEDED, NEEDED, 0, 0},
	{"hunyuan", rule_hunyuan, 0, NEEDED, 0, 0},
	{"hunyuan_v1_moe", rule_hunyuan, 0, NEEDED, 0, 0},
};

const struct model_type *model_type_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_COUNT(types); i++)
		if (strcmp(types[i].name, name) == 0)
			return &types[i];
	return NULL;
}
