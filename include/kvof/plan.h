/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof: what the KV cache of a model takes, from its config.json (docs/plan.md).
 *
 * Pure functions: no I/O, no state, any thread. Two steps: kvof_plan_model_read() turns the text of
 * a Hugging Face config.json into groups of layers, kvof_plan_geometry() into bytes for a data type
 * of the cache and a tensor-parallel split. What is not known is refused, never guessed.
 *
 * Errors are negative errno values; kvof_plan_bad then says which field, and why.
 */
#ifndef KVOF_PLAN_H
#define KVOF_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVOF_PLAN_CONFIG_BYTES_MAX (4u << 20)
#define KVOF_PLAN_LAYERS_MAX 1024u
#define KVOF_PLAN_GROUPS_MAX 64u
#define KVOF_PLAN_TP_MAX 4096u

struct kvof_plan_bad {
	char field[80];                  /* "layer_types[3]"; empty: the text as a whole */
	char why[240];
};

enum kvof_plan_kind {
	KVOF_PLAN_FULL,                  /* keeps every token */
	KVOF_PLAN_SLIDING,               /* the last `window` tokens */
	KVOF_PLAN_CHUNKED,               /* at most `window` tokens, of the chunk it is in */
	KVOF_PLAN_MLA,                   /* one latent of k_dim + v_dim numbers for all heads */
	KVOF_PLAN_INDEXER,               /* k_dim bytes and a scale of 4 bytes, in any KV dtype */
};

/* Layers that are alike. */
struct kvof_plan_group {
	enum kvof_plan_kind kind;
	uint32_t layers;
	uint32_t query_heads, kv_heads;  /* kv_heads 1 for MLA and indexer */
	uint32_t k_dim, v_dim;           /* MLA: kv_lora_rank and qk_rope_head_dim */
	uint64_t window;                 /* tokens; 0: all */
	bool k_is_v;                     /* an engine may keep K and V as one */
};

/* What layers without a KV cache keep for a sequence, however long it is. */
struct kvof_plan_state {
	const char *kind;                /* "mamba2", ...; NULL: the model has none */
	uint32_t layers;
	uint64_t conv_elems, recurrent_elems;    /* of all these layers */
	char missing[80];                /* the field for want of which elems are 0; or empty */
};

struct kvof_plan_model {
	char type[64];                   /* model_type whose rule holds */
	char rule[320];                  /* how layers were told apart, in words */
	char weights[64];                /* quant_method of the weights, or empty; never the KV's */
	uint32_t layers, query_heads, groups;
	struct kvof_plan_group group[KVOF_PLAN_GROUPS_MAX];
	struct kvof_plan_state state;
};

struct kvof_plan_split {
	uint32_t tp;                     /* ranks; 0 and 1: one */
	uint32_t kv_elem_bytes;          /* 1, 2 or 4; 0: 2, whatever the weights are */
};

/* Bytes of one group for one token. */
struct kvof_plan_cost {
	uint64_t token_bytes;            /* all its layers, each head once */
	uint64_t rank_token_bytes;       /* what one rank holds of it */
	uint32_t copies;                 /* ranks that hold the same bytes */
};

struct kvof_plan_geometry {
	uint32_t tp, kv_elem_bytes;
	uint64_t first_bytes, rank_first_bytes;    /* the first token: every group counts */
	uint64_t token_bytes, rank_token_bytes;    /* one token more, past every window */
	uint64_t shared_token_bytes;     /* the same where K and V are kept as one */
	uint64_t state_bytes;            /* a sequence: convolution in kv_elem_bytes but at least 2,
					  * recurrent in 4 */
	struct kvof_plan_cost group[KVOF_PLAN_GROUPS_MAX];
};

/**
 * kvof_plan_model_read() - layers of a model from the text of its config.json
 * @bad: written when the result is -EINVAL
 * Return: 0; -EINVAL: the text is wrong, a field is missing, or model_type is not known; -ENOMEM.
 */
int kvof_plan_model_read(const char *text, size_t bytes, struct kvof_plan_model *out,
			 struct kvof_plan_bad *bad);

/**
 * kvof_plan_geometry() - bytes of a model's KV cache
 * @model: as kvof_plan_model_read() wrote it
 * @bad: written when the result is -EINVAL
 * Return: 0; -EINVAL: heads can't be split over so many ranks, or no such element size.
 */
int kvof_plan_geometry(const struct kvof_plan_model *model, const struct kvof_plan_split *split,
		       struct kvof_plan_geometry *out, struct kvof_plan_bad *bad);

/**
 * kvof_plan_bytes_at() - KV cache of one sequence of so many tokens, without constant state
 * @bytes: each head once; @rank_bytes: what one rank holds
 * Return: 0; -EINVAL: more than 64 bits count.
 */
int kvof_plan_bytes_at(const struct kvof_plan_model *model,
		       const struct kvof_plan_geometry *geometry, uint64_t tokens,
		       uint64_t *bytes, uint64_t *rank_bytes);

#ifdef __cplusplus
}
#endif

#endif
