/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A config.json, which may be anything at all, into groups of layers: the text, its fields, the
 * object they are in, and what the rule of the type (rules.c) said of each layer, put together.
 */
#include "plan/model.h"
#include "plan/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"

void rule_say(struct model_reader *r, const char *format, ...)
{
	size_t used = strlen(r->out->rule);
	va_list args;

	va_start(args, format);
	if (used > 0 && used + 2 < sizeof(r->out->rule))
		used += (size_t)snprintf(r->out->rule + used, sizeof(r->out->rule) - used, "; ");
	vsnprintf(r->out->rule + used, sizeof(r->out->rule) - used, format, args);
	va_end(args);
}

/* --- fields --------------------------------------------------------------- */

const json_t *field_get(const json_t *at, const char *field)
{
	const json_t *value = json_object_get(at, field);

	return json_is_null(value) ? NULL : value;
}

static int uint_take(struct model_reader *r, const json_t *value, const char *field, uint64_t most,
		     uint32_t *out)
{
	json_int_t got;

	if (!json_is_integer(value))
		return plan_bad(r->bad, field, "is no whole number");
	got = json_integer_value(value);
	if (got < 0 || (uint64_t)got > most)
		return plan_bad(r->bad, field, "is %lld, not 0 to %llu", (long long)got,
				(unsigned long long)most);
	*out = (uint32_t)got;
	return 0;
}

int uint_maybe(struct model_reader *r, const json_t *at, const char *field, uint64_t most,
	       uint32_t *out)
{
	const json_t *value = field_get(at, field);

	must(most <= UINT32_MAX);
	return value == NULL ? 0 : uint_take(r, value, field, most, out);
}

int uint_field(struct model_reader *r, const json_t *at, const char *field, uint64_t most,
	       uint32_t *out)
{
	*out = 0;
	if (field_get(at, field) == NULL)
		return plan_bad(r->bad, field, "is missing; model_type %s needs it",
				r->type->name);
	if (uint_maybe(r, at, field, most, out) != 0)
		return -EINVAL;
	return *out > 0 ? 0 : plan_bad(r->bad, field, "is 0");
}

int bool_maybe(struct model_reader *r, const char *field, bool *out)
{
	const json_t *value = field_get(r->at, field);

	if (value == NULL)
		return 0;
	if (!json_is_boolean(value))
		return plan_bad(r->bad, field, "is neither true nor false");
	*out = json_is_true(value);
	return 0;
}

int list_maybe(struct model_reader *r, const char *field, const json_t **out)
{
	*out = field_get(r->at, field);
	if (*out == NULL)
		return 0;
	if (!json_is_array(*out))
		return plan_bad(r->bad, field, "is no array");
	if (json_array_size(*out) != r->layers)
		return plan_bad(r->bad, field, "has %zu entries for %u layers",
				json_array_size(*out), r->layers);
	return 0;
}

/* The first of these names (ends with NULL) that is there; else the first, which is missing. */
static const char *name_of(const json_t *at, const char *const *names)
{
	for (const char *const *n = names; *n != NULL; n++)
		if (field_get(at, *n) != NULL)
			return *n;
	return names[0];
}

static const char *const layers_names[] = {
	"num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_transformer_layers", NULL};
static const char *const heads_names[] = {"num_attention_heads", "n_head", "n_heads", NULL};
static const char *const kv_names[] = {
	"num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", NULL};
static const char *const hidden_names[] = {"hidden_size", "n_embd", "d_model", NULL};
static const char *const dim_names[] = {"head_dim", "attention_head_dim", "kv_channels", NULL};

int layers_read(struct model_reader *r)
{
	const char *heads = name_of(r->at, heads_names);
	int rc = uint_field(r, r->at, name_of(r->at, layers_names), KVOF_PLAN_LAYERS_MAX,
			    &r->layers);

	if (rc != 0)
		return rc;
	if (field_get(r->at, heads) == NULL && r->type->heads > 0) {
		r->heads = r->type->heads;
		rule_say(r, "%s is absent: %u, as the type has it", heads, r->heads);
	} else {
		rc = uint_field(r, r->at, heads, MODEL_HEADS_MAX, &r->heads);
	}
	r->out->query_heads = r->heads;
	r->out->layers = r->layers;
	return rc;
}

static int dim_read(struct model_reader *r)
{
	const char *name = name_of(r->at, dim_names);
	uint32_t hidden;

#ifndef KVOF_PLANT_HEAD_DIM_FROM_HIDDEN
	if (field_get(r->at, name) != NULL)
		return uint_field(r, r->at, name, MODEL_DIM_MAX, &r->dim);
#endif
	if (r->type->dim == NEEDED)
		return plan_bad(r->bad, name, "is missing; model_type %s has no default",
				r->type->name);
#ifndef KVOF_PLANT_HEAD_DIM_FROM_HIDDEN
	if (r->type->dim > 0) {
		r->dim = r->type->dim;
		rule_say(r, "head_dim is absent: %u, as the type has it", r->dim);
		return 0;
	}
#endif
	name = name_of(r->at, hidden_names);
	if (uint_field(r, r->at, name, 1u << 24, &hidden) != 0)
		return -EINVAL;
	if (hidden % r->heads != 0)
		return plan_bad(r->bad, name, "is %u, no multiple of %u heads, and head_dim is "
				"missing", hidden, r->heads);
	r->dim = hidden / r->heads;
	if (r->dim > MODEL_DIM_MAX)
		return plan_bad(r->bad, name, "gives heads of %u numbers", r->dim);
	rule_say(r, "head_dim is %s %u / %u heads", name, hidden, r->heads);
	return 0;
}

int heads_read(struct model_reader *r)
{
	const char *name = name_of(r->at, kv_names);
	int rc = layers_read(r);

	if (rc != 0)
		return rc;
	if (field_get(r->at, name) != NULL) {
		rc = uint_field(r, r->at, name, MODEL_HEADS_MAX, &r->kv_heads);
	} else if (r->type->kv_heads == NEEDED) {
		rc = plan_bad(r->bad, name, "is missing; model_type %s has no default",
			      r->type->name);
	} else {
		r->kv_heads = r->type->kv_heads > 0 ? r->type->kv_heads : r->heads;
		rule_say(r, "%s is absent: %u, as the type has it", name, r->kv_heads);
	}
	if (rc == 0 && r->kv_heads > r->heads)
		rc = plan_bad(r->bad, name, "is %u, more than %u query heads", r->kv_heads,
			      r->heads);
	return rc == 0 ? dim_read(r) : rc;
}

/* --- groups --------------------------------------------------------------- */

static bool alike(const struct kvof_plan_group *a, const struct kvof_plan_group *b)
{
	return a->kind == b->kind && a->query_heads == b->query_heads &&
	       a->kv_heads == b->kv_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim &&
	       a->window == b->window && a->k_is_v == b->k_is_v;
}

static int group_add(struct model_reader *r, const struct kvof_plan_group *one)
{
	struct kvof_plan_model *m = r->out;

	for (uint32_t i = 0; i < m->groups; i++) {
		if (!alike(&m->group[i], one))
			continue;
		m->group[i].layers++;
		return 0;
	}
	if (m->groups == KVOF_PLAN_GROUPS_MAX)
		return plan_bad(r->bad, "", "has more than %u kinds of layers",
				KVOF_PLAN_GROUPS_MAX);
	m->group[m->groups++] = *one;
	return 0;
}

static int groups_make(struct model_reader *r)
{
	static const enum kvof_plan_kind kinds[] = {KVOF_PLAN_FULL, KVOF_PLAN_SLIDING,
		KVOF_PLAN_CHUNKED, KVOF_PLAN_MLA};

	for (uint32_t i = 0; i < r->layers; i++) {
		const struct model_layer *l = &r->layer[i];
		struct kvof_plan_group g = {.layers = 1, .query_heads = l->query_heads,
			.kv_heads = l->kv_heads, .k_dim = l->k_dim, .v_dim = l->v_dim,
			.window = l->window, .k_is_v = l->k_is_v};
		int rc;

		if (l->kind == LAYER_STATE || l->kind == LAYER_NONE)
			continue;
		g.kind = kinds[l->kind];
		must(g.query_heads > 0 && g.kv_heads > 0 && g.k_dim > 0 && g.v_dim > 0);
		rc = group_add(r, &g);
		if (rc != 0)
			return rc;
	}
	for (uint32_t i = 0, n = r->out->groups; r->index_dim > 0 && i < n; i++) {
		struct kvof_plan_group g = r->out->group[i];

		if (g.kind != KVOF_PLAN_MLA || r->out->groups == KVOF_PLAN_GROUPS_MAX)
			continue;
		g.kind = KVOF_PLAN_INDEXER;
		g.k_dim = r->index_dim;
		g.v_dim = 0;
		r->out->group[r->out->groups++] = g;
	}
	return 0;
}

/* --- the text ------------------------------------------------------------- */

/* Which of the fields that every geometry needs are there, for a type that nobody knows. */
static int type_unknown(struct kvof_plan_bad *bad, const json_t *at, const char *type)
{
	static const char *const *const needed[] = {layers_names, heads_names, kv_names, dim_names};
	char there[100] = "", missing[100] = "";

	for (size_t i = 0; i < ARRAY_COUNT(needed); i++) {
		const char *name = name_of(at, needed[i]);
		char *list = field_get(at, name) != NULL ? there : missing;
		size_t used = strlen(list);

		snprintf(list + used, 100 - used, "%s%s", used > 0 ? ", " : "", name);
	}
	return plan_bad(bad, "model_type", "\"%.40s\" is not known, and with it which layers keep "
			"what; missing: %s%s; there: %s", type,
			missing[0] != 0 ? missing : "only its rule", "",
			there[0] != 0 ? there : "none");
}

int text_find(struct model_reader *r, const json_t *root)
{
	static const char *const nested[] = {
		"text_config", "language_config", "llm_config", NULL};
	const char *name = name_of(root, nested), *outer, *type;

	outer = json_string_value(json_object_get(root, "model_type"));
	r->at = field_get(root, name) != NULL ? field_get(root, name) : root;
	if (!json_is_object(r->at))
		return plan_bad(r->bad, name, "is no object");
	type = json_string_value(json_object_get(r->at, "model_type"));
	if (type == NULL)
		type = outer;
	if (type == NULL)
		return plan_bad(r->bad, "model_type", "%s", json_object_get(root, "model_type") ==
				NULL ? "is missing" : "is no text");
	r->type = model_type_find(type);
	if (r->type == NULL)
		return type_unknown(r->bad, r->at, type);
	snprintf(r->out->type, sizeof(r->out->type), "%s", type);
	if (r->at != root)
		rule_say(r, "fields of %s", name);
	return 0;
}

static void weights_note(struct model_reader *r, const json_t *root)
{
	const json_t *q = field_get(root, "quantization_config");
	const char *method;

	if (q == NULL)
		q = field_get(r->at, "quantization_config");
	method = json_string_value(json_object_get(q, "quant_method"));
	if (method != NULL)
		plan_text_put(r->out->weights, sizeof(r->out->weights), method);
}

/* Only what a plan warns with, so a value that makes no sense is none. */
static void context_note(struct model_reader *r)
{
	static const char *const names[] = {"max_position_embeddings", "n_positions", NULL};
	json_int_t tokens = json_integer_value(field_get(r->at, name_of(r->at, names)));

	if (tokens > 0 && tokens <= UINT32_MAX)
		r->out->context_tokens = (uint32_t)tokens;
}

static int root_read(struct model_reader *r, const json_t *root)
{
	int rc;

	if (!json_is_object(root))
		return plan_bad(r->bad, "", "is no JSON object");
	rc = text_find(r, root);
	if (rc == 0)
		rc = r->type->rule(r);
	if (rc == 0)
		rc = groups_make(r);
	if (rc == 0) {
		weights_note(r, root);
		context_note(r);
	}
	return rc;
}

int kvof_plan_model_read(const char *text, size_t bytes, struct kvof_plan_model *out,
			 struct kvof_plan_bad *bad)
{
	struct model_reader *r;
	json_error_t error;
	json_t *root;
	int rc;

	*out = (struct kvof_plan_model){0};
	*bad = (struct kvof_plan_bad){0};
	if (bytes > KVOF_PLAN_CONFIG_BYTES_MAX)
		return plan_bad(bad, "", "is longer than %u bytes", KVOF_PLAN_CONFIG_BYTES_MAX);
	root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
	if (root == NULL && json_error_code(&error) == json_error_out_of_memory)
		return -ENOMEM;
	if (root == NULL)
		return plan_bad(bad, "", "is no JSON at line %d: %.80s", error.line, error.text);
	r = calloc(1, sizeof(*r));
	rc = -ENOMEM;
	if (r != NULL) {
		r->out = out;
		r->bad = bad;
		rc = root_read(r, root);
	}
	free(r);
	json_decref(root);
	return rc;
}
