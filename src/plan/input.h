/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan is asked about: values by one table (tbl/plan_input.def), each with its origin, in SI
 * units whatever unit they were written in. GB is 1e9, GiB is 2^30; a number whose unit could be
 * meant either way (G, K, a bare number of bytes) is refused. Pure: no I/O, one thread.
 *
 * Invariant: a value that is not empty is one of its type and within its bounds.
 */
#ifndef KVOF_PLAN_INPUT_H
#define KVOF_PLAN_INPUT_H

#include <stdbool.h>

#include <kvof/plan.h>

enum plan_input_id {
#define PLAN_INPUT(section, name, type, least, most, standard, choices, text)                      \
	PLAN_IN_##section##_##name,
#include "tbl/plan_input.def"
	PLAN_IN_COUNT
};

enum plan_input_type {
	PLAN_IN_SIZE, PLAN_IN_RATE, PLAN_IN_TIME, PLAN_IN_TOKEN_RATE, PLAN_IN_OFTEN, PLAN_IN_SHARE,
	PLAN_IN_COUNT_TYPE, PLAN_IN_TOKENS, PLAN_IN_FACTOR, PLAN_IN_MONEY,
	PLAN_IN_FLOPS,
	PLAN_IN_CHOICE, PLAN_IN_PATH, PLAN_IN_TEXT,
};

enum plan_input_origin { PLAN_IN_STANDARD, PLAN_IN_FILE, PLAN_IN_FLAG };

#define PLAN_IN_TEXT_BYTES 256

struct plan_input_row {
	const char *section, *name;
	enum plan_input_type type;
	double least, most;
	const char *standard, *choices, *text;
};

struct plan_input_value {
	enum plan_input_origin origin;
	bool empty;
	double number;                   /* bytes, bytes a second, seconds, ...; a choice's place */
	char text[PLAN_IN_TEXT_BYTES];   /* as it was written */
};

struct plan_input {
	struct plan_input_value value[PLAN_IN_COUNT];
};

const struct plan_input_row *plan_input_row(enum plan_input_id id);
/* A unit as it is written, for help: "a size with a unit, such as 64 GiB". */
const char *plan_input_form(enum plan_input_type type);

/* All values as the table has them. */
void plan_input_begin(struct plan_input *in);

/* -1: there is no such key. name may have dashes for underscores. */
int plan_input_find(const char *section, const char *name);
/* "array-drives", of a flag without its dashes in front. */
int plan_input_find_flag(const char *flag);

/**
 * plan_input_set() - one value
 * @origin: a flag beats the file, the file beats the standard
 * @bad:    written when the result is -EINVAL; field is "[section] name"
 * Return: 0; -EINVAL: not of its type, out of bounds, or given twice.
 */
int plan_input_set(struct plan_input *in, enum plan_input_id id, enum plan_input_origin origin,
		   const char *text, struct kvof_plan_bad *bad);

/* What holds between values. Return: 0; -EINVAL with bad filled. */
int plan_input_check(const struct plan_input *in, struct kvof_plan_bad *bad);

bool plan_input_has(const struct plan_input *in, enum plan_input_id id);        /* not empty */
bool plan_input_told(const struct plan_input *in, enum plan_input_id id);  /* by file or flag */
double plan_input_number(const struct plan_input *in, enum plan_input_id id);
/* 0 when empty; it must be a whole number by its type. */
uint32_t plan_input_count(const struct plan_input *in, enum plan_input_id id);
const char *plan_input_text(const struct plan_input *in, enum plan_input_id id);

#endif
