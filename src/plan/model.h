/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of kvof_plan_model_read(): the reader that fields go through, and the table of types.
 * A rule (rules.c) fills one entry a layer; model.c makes groups of them.
 */
#ifndef KVOF_PLAN_MODEL_H
#define KVOF_PLAN_MODEL_H

#include <jansson.h>

#include <kvof/plan.h>

#include "plan/arm.h"

#define MODEL_HEADS_MAX 4096u
#define MODEL_DIM_MAX 65536u
#define MODEL_WINDOW_MAX (UINT64_C(1) << 40)

enum model_layer_kind {
	LAYER_FULL, LAYER_SLIDING, LAYER_CHUNKED, LAYER_MLA,
	LAYER_STATE,                     /* no KV cache, a constant state */
	LAYER_NONE,
};

struct model_layer {
	enum model_layer_kind kind;
	uint32_t query_heads, kv_heads, k_dim, v_dim;
	uint64_t window;
	bool k_is_v;
};

struct model_reader;

struct model_type {
	const char *name;
	int (*rule)(struct model_reader *r);
	/* Of the type's class, for a field that is absent; 0: hidden_size / heads, and as many KV
	 * heads as query heads; NEEDED: there is none. */
	uint32_t dim, kv_heads, heads;
	uint32_t every;                  /* the default of a pattern, for rules that have one */
};
#define NEEDED UINT32_MAX

struct model_reader {
	const json_t *at;                /* the object with the text model's fields */
	const struct model_type *type;
	struct kvof_plan_model *out;
	struct kvof_plan_bad *bad;
	struct model_layer layer[KVOF_PLAN_LAYERS_MAX];
	uint32_t layers, heads, kv_heads, dim;
	uint32_t index_dim;              /* of an indexer beside each MLA layer; 0: none */
	bool has_list;                   /* a list of the file told the layers apart */
};

const struct model_type *model_type_find(const char *name);

/* NULL: absent, or null, which means the same in these files. */
const json_t *field_get(const json_t *at, const char *field);
/* 0 or -EINVAL; an absent field leaves *out as it is (uint_maybe), or is wrong (uint_field). */
int uint_maybe(struct model_reader *r, const json_t *at, const char *field, uint64_t most,
	       uint32_t *out);
int uint_field(struct model_reader *r, const json_t *at, const char *field, uint64_t most,
	       uint32_t *out);
int bool_maybe(struct model_reader *r, const char *field, bool *out);
/* An array of exactly r->layers entries, else -EINVAL; NULL in *out: absent. */
int list_maybe(struct model_reader *r, const char *field, const json_t **out);
/* The object of the text model, and the type whose rule holds: r->at, r->type. */
int text_find(struct model_reader *r, const json_t *root);
/* num_hidden_layers and num_attention_heads under any of their names. */
int layers_read(struct model_reader *r);
/* These, and KV heads and head_dim as the type's class has them. */
int heads_read(struct model_reader *r);
void rule_say(struct model_reader *r, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
