/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantities as people write them ("7.68 TB", "100 Gbit/s", "3700 tokens/s", "85 %") into one
 * number of the unit the planner counts in. The number is digits with perhaps a point: no sign, no
 * exponent, no locale.
 */
#include "plan/input.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "plan/text.h"

#define NAME_BYTES 64
#define DIGITS_MAX 18
#define VALUE_BYTES sizeof(((struct plan_input_value *)NULL)->text)

struct unit {
	const char *name;
	double scale;
};

static const struct unit sizes[] = {
	{"B", 1}, {"bytes", 1}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"PB", 1e15}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
	{"PiB", 0x1p50}, {NULL, 0}};
static const struct unit rates[] = {
	{"B/s", 1}, {"kB/s", 1e3}, {"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12},
	{"KiB/s", 0x1p10}, {"MiB/s", 0x1p20}, {"GiB/s", 0x1p30}, {"TiB/s", 0x1p40},
	{"kbit/s", 125}, {"Mbit/s", 125e3}, {"Gbit/s", 125e6}, {"Tbit/s", 125e9}, {NULL, 0}};
static const struct unit times[] = {
	{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"min", 60}, {"h", 3600},
	{"day", 86400}, {"days", 86400}, {"year", 365.25 * 86400}, {"years", 365.25 * 86400},
	{NULL, 0}};
static const struct unit token_rates[] = {
	{"tokens/s", 1}, {"token/s", 1}, {"tok/s", 1}, {"tokens/min", 1.0 / 60}, {NULL, 0}};
static const struct unit often[] = {
	{"/s", 1}, {"/min", 1.0 / 60}, {"/h", 1.0 / 3600}, {"/day", 1.0 / 86400}, {NULL, 0}};
static const struct unit shares[] = {{"%", 0.01}, {NULL, 0}};
static const struct unit tokens[] = {{"", 1}, {"tokens", 1}, {"token", 1}, {NULL, 0}};
static const struct unit flops[] = {{"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}, {NULL, 0}};
static const struct unit bare[] = {{"", 1}, {NULL, 0}};

static const struct {
	const struct unit *units;        /* NULL: a word */
	bool whole;
	const char *form;
} types[] = {
	[PLAN_IN_SIZE] = {sizes, false,
		"a size with its unit, such as 64 GiB (2^30) or 64 GB (1e9)"},
	[PLAN_IN_RATE] = {rates, false,
		"a rate with its unit, such as 6.9 GB/s, 6 GiB/s or 100 Gbit/s"},
	[PLAN_IN_TIME] = {times, false,
		"a time with its unit, such as 5 s, 300 ms, 2 days or 4 years"},
	[PLAN_IN_TOKEN_RATE] = {token_rates, false, "such as 3700 tokens/s"},
	[PLAN_IN_OFTEN] = {often, false, "how often, such as 600 /h or 2 /s"},
	[PLAN_IN_SHARE] = {shares, false, "a share in percent, such as 85 %"},
	[PLAN_IN_COUNT_TYPE] = {bare, true, "a whole number"},
	[PLAN_IN_TOKENS] = {tokens, true, "a whole number of tokens"},
	[PLAN_IN_FACTOR] = {bare, false, "a number without a unit, such as 1.1"},
	[PLAN_IN_MONEY] = {bare, false,
		"a number without a unit; [prices] currency has the unit"},
	[PLAN_IN_FLOPS] = {flops, false, "such as 990 TFLOP/s or 1.3 PFLOP/s"},
	[PLAN_IN_CHOICE] = {NULL, false, "one of its words"},
	[PLAN_IN_PATH] = {NULL, false, "a path"},
	[PLAN_IN_TEXT] = {NULL, false, "words"},
};

#define SIZE PLAN_IN_SIZE
#define RATE PLAN_IN_RATE
#define TIME PLAN_IN_TIME
#define TOKEN_RATE PLAN_IN_TOKEN_RATE
#define OFTEN PLAN_IN_OFTEN
#define SHARE PLAN_IN_SHARE
#define COUNT PLAN_IN_COUNT_TYPE
#define TOKENS PLAN_IN_TOKENS
#define FACTOR PLAN_IN_FACTOR
#define MONEY PLAN_IN_MONEY
#define FLOPS PLAN_IN_FLOPS
#define CHOICE PLAN_IN_CHOICE
#define PATH PLAN_IN_PATH
#define TEXT PLAN_IN_TEXT
static const struct plan_input_row rows[PLAN_IN_COUNT] = {
#define PLAN_INPUT(section, name, type, least, most, standard, choices, text)                      \
	{#section, #name, type, least, most, standard, choices, text},
#include "tbl/plan_input.def"
};

const struct plan_input_row *plan_input_row(enum plan_input_id id)
{
	must(id < PLAN_IN_COUNT);
	return &rows[id];
}

const char *plan_input_form(enum plan_input_type type)
{
	return types[type].form;
}

/* --- quantities ------------------------------------------------------------- */

/* Digits, perhaps a point and more of them; *rest is past them and what spaces follow. */
static bool number_parse(const char *text, double *out, const char **rest)
{
	double value = 0, scale = 1;
	unsigned digits = 0;
	bool point = false;

	for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point && digits > 0); text++) {
		if (*text == '.') {
			point = true;
			continue;
		}
		if (++digits > DIGITS_MAX)
			return false;
		value = value * 10 + (*text - '0');
		if (point)
			scale *= 10;
	}
	while (*text == ' ')
		text++;
	*out = value / scale;
	*rest = text;
	return digits > 0;
}

static bool quantity_parse(enum plan_input_type type, const char *text, double *out)
{
	const char *rest;
	double value;

	if (!number_parse(text, &value, &rest))
		return false;
	for (const struct unit *u = types[type].units; u->name != NULL; u++) {
		if (strcmp(rest, u->name) != 0)
			continue;
		*out = value * u->scale;
		return !types[type].whole || strchr(text, '.') == NULL;
	}
	return false;
}

/* The place of word in "one|two"; -1: it is none of them. */
static int choice_find(const char *choices, const char *word)
{
	size_t bytes = strlen(word);

	for (int place = 0; *word != 0; place++) {
		const char *end = strchrnul(choices, '|');

		if ((size_t)(end - choices) == bytes && memcmp(choices, word, bytes) == 0)
			return place;
		if (*end == 0)
			return -1;
		choices = end + 1;
	}
	return -1;
}

/* Nothing that a terminal would obey, and UTF-8; a name of a file may be any bytes. */
static bool plain_text(const char *text, bool path)
{
	char clean[VALUE_BYTES];

	if (path) {
		while ((unsigned char)*text >= ' ' && *text != 127)
			text++;
		return *text == 0;
	}
	plan_text_put(clean, sizeof(clean), text);
	return strcmp(clean, text) == 0;
}

static int bad_value(struct kvof_plan_bad *bad, const struct plan_input_row *row,
		     const char *text, const char *why, const char *more)
{
	snprintf(bad->field, sizeof(bad->field), "[%s] %s", row->section, row->name);
	snprintf(bad->why, sizeof(bad->why), "%.60s: %s%s",
		 plain_text(text, false) ? text : "?", why, more);
	return -EINVAL;
}

/* --- names ------------------------------------------------------------------ */

static bool name_same(const char *have, const char *word)
{
	for (; *have != 0 && *word != 0; have++, word++)
		if (*have != *word && !(*have == '_' && *word == '-'))
			return false;
	return *have == *word;
}

int plan_input_find(const char *section, const char *name)
{
	for (int i = 0; i < PLAN_IN_COUNT; i++)
		if (strcmp(rows[i].section, section) == 0 && name_same(rows[i].name, name))
			return i;
	return -1;
}

int plan_input_find_flag(const char *flag)
{
	const char *dash = strchr(flag, '-');
	char section[NAME_BYTES];

	if (dash == NULL || (size_t)(dash - flag) >= sizeof(section))
		return -1;
	memcpy(section, flag, (size_t)(dash - flag));
	section[dash - flag] = 0;
	return plan_input_find(section, dash + 1);
}

/* --- values ----------------------------------------------------------------- */

static int value_read(const struct plan_input_row *row, const char *text,
		      struct plan_input_value *v, struct kvof_plan_bad *bad)
{
	double number = 0;

	if (strlen(text) >= sizeof(v->text) || !plain_text(text, row->type == PLAN_IN_PATH))
		return bad_value(bad, row, "", "too long, or no plain text", "");
	if (text[0] == 0 && row->standard[0] != 0)
		return bad_value(bad, row, text, "empty", "");
	if (text[0] == 0) {
		number = 0;                      /* not told */
	} else if (row->type == PLAN_IN_CHOICE) {
		number = choice_find(row->choices, text);
		if (number < 0)
			return bad_value(bad, row, text, "not one of ", row->choices);
	} else if (types[row->type].units != NULL) {
		if (!quantity_parse(row->type, text, &number))
			return bad_value(bad, row, text, "not ", types[row->type].form);
		if (number < row->least || number > row->most)
			return bad_value(bad, row, text, "out of range", "");
	}
	v->number = number;
	v->empty = text[0] == 0;
	memcpy(v->text, text, strlen(text) + 1);
	return 0;
}

void plan_input_begin(struct plan_input *in)
{
	struct kvof_plan_bad bad;

	*in = (struct plan_input){0};
	for (unsigned i = 0; i < PLAN_IN_COUNT; i++) {
		in->value[i].empty = true;
		if (rows[i].standard[0] != 0)
			must(value_read(&rows[i], rows[i].standard, &in->value[i], &bad) == 0);
	}
}

int plan_input_set(struct plan_input *in, enum plan_input_id id, enum plan_input_origin origin,
		   const char *text, struct kvof_plan_bad *bad)
{
	struct plan_input_value *v, next = {.origin = origin};
	int rc;

	must(id < PLAN_IN_COUNT);
	v = &in->value[id];
	rc = value_read(&rows[id], text, &next, bad);
	if (rc != 0)
		return rc;
	if (v->origin > origin)
		return 0;                        /* a flag beats the file */
	if (v->origin == origin && origin != PLAN_IN_STANDARD)
		return bad_value(bad, &rows[id], text, "given twice", "");
	*v = next;
	return 0;
}

bool plan_input_has(const struct plan_input *in, enum plan_input_id id)
{
	return !in->value[id].empty;
}

bool plan_input_told(const struct plan_input *in, enum plan_input_id id)
{
	return in->value[id].origin != PLAN_IN_STANDARD && !in->value[id].empty;
}

double plan_input_number(const struct plan_input *in, enum plan_input_id id)
{
	return in->value[id].empty ? 0 : in->value[id].number;
}

uint32_t plan_input_count(const struct plan_input *in, enum plan_input_id id)
{
	must(types[rows[id].type].whole || rows[id].type == PLAN_IN_CHOICE);
	return (uint32_t)plan_input_number(in, id);
}

const char *plan_input_text(const struct plan_input *in, enum plan_input_id id)
{
	return in->value[id].text;
}

/* --- what holds between values ------------------------------------------------ */

int plan_input_check(const struct plan_input *in, struct kvof_plan_bad *bad)
{
	const struct plan_input_row *row = &rows[PLAN_IN_model_bytes_per_token];
	double taken = plan_input_number(in, PLAN_IN_gpu_count) *
		plan_input_number(in, PLAN_IN_gpu_memory) *
		plan_input_number(in, PLAN_IN_gpu_usable);

	if (plan_input_has(in, PLAN_IN_model_config) &&
	    plan_input_told(in, PLAN_IN_model_bytes_per_token))
		return bad_value(bad, row, plan_input_text(in, PLAN_IN_model_bytes_per_token),
				 "config says it already; tell one of the two", "");
	if (plan_input_has(in, PLAN_IN_workload_trace) &&
	    plan_input_told(in, PLAN_IN_workload_preset))
		return bad_value(bad, &rows[PLAN_IN_workload_preset],
				 plan_input_text(in, PLAN_IN_workload_preset),
				 "there is a trace too; tell one of the two", "");
	if (!plan_input_has(in, PLAN_IN_workload_trace) &&
	    plan_input_told(in, PLAN_IN_workload_trace_block))
		return bad_value(bad, &rows[PLAN_IN_workload_trace_block],
				 plan_input_text(in, PLAN_IN_workload_trace_block),
				 "there is no trace with such blocks; tell [workload] trace", "");
	if (plan_input_number(in, PLAN_IN_model_weights) >= taken)
		return bad_value(bad, &rows[PLAN_IN_model_weights],
				 plan_input_text(in, PLAN_IN_model_weights),
				 "more than the GPUs' memory that may be used", "");
	if (plan_input_number(in, PLAN_IN_workload_kept) <
	    plan_input_number(in, PLAN_IN_workload_sessions))
		return bad_value(bad, &rows[PLAN_IN_workload_kept],
				 plan_input_text(in, PLAN_IN_workload_kept),
				 "fewer than [workload] sessions", "");
	return 0;
}
