/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a KV cache from groups of layers: the formulas of docs/plan.md, and nothing else. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <kvof/plan.h>

#include "base/must.h"

#define INDEX_SCALE_BYTES 4u

static int split_bad(struct kvof_plan_bad *bad, const char *field, const char *why,
		     uint32_t heads, uint32_t tp)
{
	snprintf(bad->field, sizeof(bad->field), "%s", field);
	snprintf(bad->why, sizeof(bad->why), "%u %s %u ranks", heads, why, tp);
	return -EINVAL;
}

static bool headed(const struct kvof_plan_group *g)
{
	return g->kind == KVOF_PLAN_FULL || g->kind == KVOF_PLAN_SLIDING ||
	       g->kind == KVOF_PLAN_CHUNKED;
}

/* Whole heads on each rank: several, or one that so many ranks hold alike. */
static int split_check(const struct kvof_plan_group *g, uint32_t tp, struct kvof_plan_bad *bad)
{
	if (g->query_heads % tp != 0)
		return split_bad(bad, "num_attention_heads", "query heads can't be divided by",
				 g->query_heads, tp);
	if (!headed(g))
		return 0;
	if (g->kv_heads >= tp ? g->kv_heads % tp != 0 : tp % g->kv_heads != 0)
		return split_bad(bad, "num_key_value_heads",
				 "KV heads are neither a multiple nor a divisor of",
				 g->kv_heads, tp);
	return 0;
}

static void group_cost(const struct kvof_plan_group *g, uint32_t tp, uint32_t elem,
		       struct kvof_plan_cost *out)
{
	uint64_t head = ((uint64_t)g->k_dim + g->v_dim) * elem;
	uint32_t heads = g->kv_heads;

	if (g->kind == KVOF_PLAN_INDEXER)
		head = g->k_dim + INDEX_SCALE_BYTES;
#ifdef KVOF_PLANT_MLA_TIMES_TWO
	if (g->kind == KVOF_PLAN_MLA)
		head *= 2;
#endif
	out->token_bytes = g->layers * heads * head;
	out->copies = tp;
	if (headed(g)) {
		out->copies = heads < tp ? tp / heads : 1;
#ifndef KVOF_PLANT_HEADS_NOT_DIVIDED_BY_TP
		heads = heads < tp ? 1 : heads / tp;
#endif
	}
	out->rank_token_bytes = g->layers * heads * head;
}

static uint32_t elem_default(const struct kvof_plan_model *model)
{
#ifdef KVOF_PLANT_KV_DTYPE_FROM_WEIGHTS
	if (strcmp(model->weights, "fp8") == 0)
		return 1;
#endif
	return 2;
}

int kvof_plan_geometry(const struct kvof_plan_model *model, const struct kvof_plan_split *split,
		       struct kvof_plan_geometry *out, struct kvof_plan_bad *bad)
{
	uint32_t tp = split->tp > 0 ? split->tp : 1;
	uint32_t elem = split->kv_elem_bytes > 0 ? split->kv_elem_bytes : elem_default(model);

	must(model->groups <= KVOF_PLAN_GROUPS_MAX);
	*bad = (struct kvof_plan_bad){0};
	if (tp > KVOF_PLAN_TP_MAX)
		return split_bad(bad, "tp", "ranks at most, not", KVOF_PLAN_TP_MAX, tp);
	if (elem != 1 && elem != 2 && elem != 4) {
		snprintf(bad->field, sizeof(bad->field), "kv_elem_bytes");
		snprintf(bad->why, sizeof(bad->why), "%u is not 1, 2 or 4", elem);
		return -EINVAL;
	}
	*out = (struct kvof_plan_geometry){.tp = tp, .kv_elem_bytes = elem};
	for (uint32_t i = 0; i < model->groups; i++) {
		const struct kvof_plan_group *g = &model->group[i];
		struct kvof_plan_cost *c = &out->group[i];
		int rc = split_check(g, tp, bad);

		if (rc != 0)
			return rc;
		group_cost(g, tp, elem, c);
		out->first_bytes += c->token_bytes;
		out->rank_first_bytes += c->rank_token_bytes;
		if (g->window > 0)
			continue;
		out->token_bytes += c->token_bytes;
		out->rank_token_bytes += c->rank_token_bytes;
		out->shared_token_bytes += g->k_is_v ? c->token_bytes / 2 : c->token_bytes;
	}
	out->state_bytes = model->state.conv_elems * (elem > 2 ? elem : 2) +
			   model->state.recurrent_elems * 4;
	return 0;
}

int kvof_plan_bytes_at(const struct kvof_plan_model *model,
		       const struct kvof_plan_geometry *geometry, uint64_t tokens,
		       uint64_t *bytes, uint64_t *rank_bytes)
{
	*bytes = *rank_bytes = 0;
	for (uint32_t i = 0; i < model->groups; i++) {
		const struct kvof_plan_group *g = &model->group[i];
		uint64_t held = g->window > 0 && g->window < tokens ? g->window : tokens, all, rank;

		if (__builtin_mul_overflow(geometry->group[i].token_bytes, held, &all) ||
		    __builtin_add_overflow(*bytes, all, bytes) ||
		    __builtin_mul_overflow(geometry->group[i].rank_token_bytes, held, &rank) ||
		    __builtin_add_overflow(*rank_bytes, rank, rank_bytes))
			return -EINVAL;
	}
	return 0;
}
