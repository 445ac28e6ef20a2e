/* SPDX-License-Identifier: Apache-2.0 */
/* kvof plan geometry: bytes of a KV cache (docs/plan.md). Reads one file, writes nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvof/plan.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan.h"

#define LENGTHS_MAX 64u

struct geometry_ask {
	const char *name, *dtype;
	unsigned tp;
	bool json;
	uint64_t tokens[LENGTHS_MAX];
	unsigned lengths;
	uint32_t elem_bytes;
};

static const char *const kind_names[] = {
	[KVOF_PLAN_FULL] = "full", [KVOF_PLAN_SLIDING] = "sliding",
	[KVOF_PLAN_CHUNKED] = "chunked", [KVOF_PLAN_MLA] = "mla", [KVOF_PLAN_INDEXER] = "indexer"};

/* --- as JSON ------------------------------------------------------------------- */

static json_t *number(uint64_t value)
{
	return json_integer((json_int_t)value);
}

static json_t *groups_json(const struct kvof_plan_model *m, const struct kvof_plan_geometry *g)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < m->groups; i++) {
		const struct kvof_plan_group *is = &m->group[i];
		json_t *one = json_pack("{s:s, s:o, s:o, s:o, s:o}",
			"kind", kind_names[is->kind], "layers", number(is->layers),
			"bytes_per_token", number(g->group[i].token_bytes),
			"bytes_per_token_per_rank", number(g->group[i].rank_token_bytes),
			"copies", number(g->group[i].copies));

		if (is->kind == KVOF_PLAN_MLA) {
			json_object_set_new(one, "kv_lora_rank", number(is->k_dim));
			json_object_set_new(one, "qk_rope_head_dim", number(is->v_dim));
		} else if (is->kind == KVOF_PLAN_INDEXER) {
			json_object_set_new(one, "index_head_dim", number(is->k_dim));
		} else {
			json_object_set_new(one, "kv_heads", number(is->kv_heads));
			json_object_set_new(one, "k_dim", number(is->k_dim));
			json_object_set_new(one, "v_dim", number(is->v_dim));
		}
		if (is->window > 0)
			json_object_set_new(one, "window", number(is->window));
		json_array_append_new(list, one);
	}
	return list;
}

static json_t *state_json(const struct kvof_plan_state *s)
{
	json_t *state;

	if (s->kind == NULL)
		return json_null();
	state = json_pack("{s:s, s:o, s:o, s:o}", "kind", s->kind, "layers", number(s->layers),
			  "conv_elems", number(s->conv_elems),
			  "recurrent_elems", number(s->recurrent_elems));
	if (s->missing[0] != 0)
		json_object_set_new(state, "missing", json_string(s->missing));
	return state;
}

static int geometry_json(const struct geometry_ask *ask, const struct kvof_plan_model *m,
			 const struct kvof_plan_geometry *g)
{
	json_t *at = json_object(), *rank_at = json_object(), *all;

	for (unsigned i = 0; i < ask->lengths; i++) {
		uint64_t bytes, rank;
		char key[24];

		must(kvof_plan_bytes_at(m, g, ask->tokens[i], &bytes, &rank) == 0);
		snprintf(key, sizeof(key), "%" PRIu64, ask->tokens[i]);
		json_object_set_new(at, key, number(bytes));
		json_object_set_new(rank_at, key, number(rank));
	}
	all = json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
			"s:o, s:o}",
		"model_type", m->type, "rule", m->rule, "kv_dtype", ask->dtype,
		"weights", m->weights, "kv_elem_bytes", number(g->kv_elem_bytes),
		"tp", number(g->tp), "bytes_per_token", number(g->token_bytes),
		"bytes_per_token_per_rank", number(g->rank_token_bytes),
		"bytes_per_token_first_token", number(g->first_bytes),
		"bytes_per_token_first_token_per_rank", number(g->rank_first_bytes),
		"bytes_per_token_k_is_v", number(g->shared_token_bytes),
		"bytes_at", at, "bytes_at_per_rank", rank_at, "groups", groups_json(m, g),
		"state", state_json(&m->state),
		"state_bytes", m->state.missing[0] != 0 ? json_null() : number(g->state_bytes));
	return cmd_json_print("plan geometry", all, CMD_DONE);
}

/* --- as a page ------------------------------------------------------------------ */

static void group_print(const struct kvof_plan_group *g, const struct kvof_plan_geometry *all,
			const struct kvof_plan_cost *c)
{
	printf("  %-9s", kind_names[g->kind]);
	if (g->kind == KVOF_PLAN_MLA)
		printf("%u layers x (%u kv_lora_rank + %u rope) x %u bytes", g->layers, g->k_dim,
		       g->v_dim, all->kv_elem_bytes);
	else if (g->kind == KVOF_PLAN_INDEXER)
		printf("%u layers x (%u bytes of index key + 4 of scale; as engines do it today)",
		       g->layers, g->k_dim);
	else
		printf("%u layers x %u KV heads x (%u K + %u V) x %u bytes", g->layers,
		       g->kv_heads, g->k_dim, g->v_dim, all->kv_elem_bytes);
	printf(" = %" PRIu64 " bytes", c->token_bytes);
	if (g->window > 0)
		printf(", of the last %" PRIu64 " tokens%s", g->window,
		       g->kind == KVOF_PLAN_CHUNKED ? " at most" : "");
	printf("\n");
	if (all->tp == 1)
		return;
	printf("           per rank %" PRIu64 " bytes", c->rank_token_bytes);
	if (c->copies == 1)
		printf(": %u of %u KV heads, held nowhere else\n", g->kv_heads / all->tp,
		       g->kv_heads);
	else
		printf(": the same bytes on %u ranks; a store needs one copy\n", c->copies);
}

static void state_print(const struct kvof_plan_model *m, const struct kvof_plan_geometry *g)
{
	const struct kvof_plan_state *s = &m->state;
	char text[64];

	if (s->kind == NULL)
		return;
	printf("state: %u layers (%s) keep the same for a sequence of any length\n", s->layers,
	       s->kind);
	if (s->missing[0] != 0)
		printf("  how much is not told: %s is missing\n", s->missing);
	else
		printf("  %" PRIu64 " numbers of convolution x %u bytes + %" PRIu64
		       " recurrent x 4 = %" PRIu64 " bytes, %s, over all ranks\n", s->conv_elems,
		       g->kv_elem_bytes > 2 ? g->kv_elem_bytes : 2, s->recurrent_elems,
		       g->state_bytes, plan_bytes_text((double)g->state_bytes, text));
}

static int geometry_print(const struct geometry_ask *ask, const struct kvof_plan_model *m,
			  const struct kvof_plan_geometry *g)
{
	char text[64], per_rank[64];

	printf("model_type %s, %u layers, %u query heads, %u rank%s\n", m->type, m->layers,
	       m->query_heads, g->tp, g->tp > 1 ? "s" : "");
	printf("rule: %s\n", m->rule);
	printf("KV cache in %s, %u byte%s a number", ask->dtype, g->kv_elem_bytes,
	       g->kv_elem_bytes > 1 ? "s" : "");
	if (m->weights[0] != 0)
		printf(" (weights are %s, which does not make the cache so)", m->weights);
	printf("\n\nfor one token\n");
	for (uint32_t i = 0; i < m->groups; i++)
		group_print(&m->group[i], g, &g->group[i]);
	printf("sum: %" PRIu64 " bytes, %s; per rank %" PRIu64 "\n", g->first_bytes,
	       plan_bytes_text((double)g->first_bytes, text), g->rank_first_bytes);
	if (g->token_bytes != g->first_bytes)
		printf("past every window one token more costs %" PRIu64 " bytes; per rank %" PRIu64
		       "\nan engine that keeps whole pages for layers that slide has the sum for "
		       "every token\n", g->token_bytes, g->rank_token_bytes);
	if (g->shared_token_bytes != g->token_bytes)
		printf("an engine that keeps K and V as one where they are equal: %" PRIu64
		       " bytes\n", g->shared_token_bytes);
	state_print(m, g);
	printf("\nfor one sequence (GB is 1e9 bytes, GiB is 2^30)\n");
	for (unsigned i = 0; i < ask->lengths; i++) {
		uint64_t bytes, rank;

		must(kvof_plan_bytes_at(m, g, ask->tokens[i], &bytes, &rank) == 0);
		printf("  %9" PRIu64 " tokens  %15" PRIu64 " bytes  %s", ask->tokens[i], bytes,
		       plan_bytes_text((double)bytes, text));
		if (g->tp > 1)
			printf(";  per rank %s", plan_bytes_text((double)rank, per_rank));
		printf("\n");
	}
	return cmd_output_end("plan geometry", CMD_DONE);
}

/* --- options ---------------------------------------------------------------------- */

static int length_add(struct geometry_ask *ask, const char *text)
{
	uint64_t tokens;

	if (text == NULL || !cmd_count_parse(text, &tokens) || tokens == 0 ||
	    tokens > UINT64_C(1) << 40) {
		cmd_error("plan geometry", "--tokens %s: not a count of tokens",
			  text != NULL ? text : "");
		return CMD_USAGE;
	}
	if (ask->lengths == LENGTHS_MAX) {
		cmd_error("plan geometry", "--tokens: more than %u", LENGTHS_MAX);
		return CMD_USAGE;
	}
	ask->tokens[ask->lengths++] = tokens;
	return 0;
}

/* --tokens may come more than once, which options of a table can't: they are taken out. */
static int lengths_take(struct geometry_ask *ask, int *argc, char **argv)
{
	int kept = 1, rc = 0;

	for (int i = 1; i < *argc && rc == 0; i++) {
		if (strncmp(argv[i], "--tokens=", 9) == 0)
			rc = length_add(ask, argv[i] + 9);
		else if (strcmp(argv[i], "--tokens") == 0)
			rc = length_add(ask, ++i < *argc ? argv[i] : NULL);
		else
			argv[kept++] = argv[i];
	}
	*argc = kept;
	return rc;
}

static int geometry_run(struct geometry_ask *ask)
{
	static const uint64_t usual[] = {1024, 8192, 32768, 131072};
	struct kvof_plan_geometry geometry;
	struct kvof_plan_model model;
	int rc = plan_geometry_read("plan geometry", ask->name,
				    &(struct kvof_plan_split){ask->tp, ask->elem_bytes}, &model,
				    &geometry);

	if (rc != 0)
		return rc;
	if (ask->lengths == 0) {
		memcpy(ask->tokens, usual, sizeof(usual));
		ask->lengths = ARRAY_COUNT(usual);
	}
	for (unsigned i = 0; i < ask->lengths; i++) {
		uint64_t bytes, rank;

		if (kvof_plan_bytes_at(&model, &geometry, ask->tokens[i], &bytes, &rank) == 0 &&
		    bytes <= INT64_MAX)
			continue;
		cmd_error("plan geometry", "--tokens %" PRIu64 ": too many bytes to count",
			  ask->tokens[i]);
		return CMD_USAGE;
	}
	return ask->json ? geometry_json(ask, &model, &geometry) :
	       geometry_print(ask, &model, &geometry);
}

int plan_geometry(int argc, char **argv)
{
	struct geometry_ask ask = {.tp = 1, .dtype = "bf16"};
	const struct cmd_opt opts[] = {
		{"tp", CMD_COUNT, &ask.tp, "N", "ranks that share the heads; 1"},
		{"kv-dtype", CMD_TEXT, &ask.dtype, "D",
			"of the cache: bf16 (default), fp16, fp8, int8, fp32"},
		{"json", CMD_FLAG, &ask.json, NULL, "print JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = "plan geometry", .args = "CONFIG.json [--tokens N]...", .least = 1,
		.most = 1, .opts = opts,
		.what = "Bytes of a model's KV cache, from its Hugging Face config.json.",
		.more = "--tokens N: also for a sequence of N tokens; may come several times.\n\n"
			"The data type of the cache is never taken from that of the weights. A\n"
			"split that heads can't follow is refused (exit code 4), and so is a\n"
			"model_type whose rule is not known (2). Formulas are in docs/plan.md.\n\n"
			"  kvof plan geometry config.json --tp 8 --tokens 32768\n",
	};
	unsigned count;
	int rc = lengths_take(&ask, &argc, argv);

	if (rc != 0)
		return rc;
	rc = cmd_args(&u, argc, argv, &ask.name, &count);
	if (rc >= 0)
		return rc;
	rc = plan_dtype_find("plan geometry", ask.dtype, &ask.elem_bytes);
	return rc != 0 ? rc : geometry_run(&ask);
}
