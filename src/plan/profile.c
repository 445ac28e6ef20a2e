/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiles as JSON text, both ways. The table of an arm's figures (arm.c) serves reader and writer,
 * so that what is written is what is read.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/must.h"
#include "plan/arm.h"
#include "plan/profile.h"
#include "plan/text.h"

#define COUNT_MAX 1e9

static const char *const device_names[] = {
	[PLAN_DEVICE_DRIVE] = "drive", [PLAN_DEVICE_LINK] = "link", [PLAN_DEVICE_DRAM] = "dram",
	[PLAN_DEVICE_ENGINE] = "engine"};

const char *plan_device_name(enum plan_device_kind kind)
{
	return (unsigned)kind < ARRAY_COUNT(device_names) ? device_names[kind] : "unknown";
}

bool plan_device_find(const char *text, enum plan_device_kind *kind)
{
	for (unsigned i = 0; i < ARRAY_COUNT(device_names); i++) {
		if (strcmp(text, device_names[i]) != 0)
			continue;
		*kind = (enum plan_device_kind)i;
		return true;
	}
	return false;
}

static void doubts_add(char text[KVOF_PLAN_NOTE_BYTES], const char note[][KVOF_PLAN_NOTE_BYTES],
		       uint32_t notes)
{
	for (uint32_t i = 0; i < notes; i++) {
		size_t used = strlen(text);

		if (strstr(note[i], PLAN_NOTE_LOOPBACK) != NULL ||
		    strstr(note[i], PLAN_NOTE_UNSURE) != NULL ||
		    strstr(note[i], PLAN_NOTE_NOT_DRIVE) != NULL)
			snprintf(text + used, KVOF_PLAN_NOTE_BYTES - used, "%s%s",
				 used > 0 ? "; " : "", note[i]);
	}
}

bool plan_profile_doubts(const struct plan_profile *profile, const struct kvof_plan_fit *fit,
			 char text[KVOF_PLAN_NOTE_BYTES])
{
	text[0] = 0;
#ifndef KVOF_PLANT_DOUBTS_ARE_KEPT_BACK
	for (uint32_t i = 0; i < profile->devices && fit->arm.kind == KVOF_PLAN_LOCAL; i++)
		if (profile->device[i].kind == PLAN_DEVICE_DRIVE)
			doubts_add(text, profile->device[i].notes.text,
				   profile->device[i].notes.count);
	doubts_add(text, fit->note, fit->notes);
#endif
	return text[0] != 0;
}

__attribute__((format(printf, 3, 0)))
static void note_add(char text[][KVOF_PLAN_NOTE_BYTES], uint32_t *count, const char *format,
		     va_list args)
{
	if (*count == KVOF_PLAN_NOTES_MAX)
		return;
	vsnprintf(text[*count], KVOF_PLAN_NOTE_BYTES, format, args);
	plan_text_clean(text[(*count)++]);
}

void plan_fit_note(struct kvof_plan_fit *fit, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	note_add(fit->note, &fit->notes, format, args);
	va_end(args);
}

void plan_device_note(struct plan_device *device, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	note_add(device->notes.text, &device->notes.count, format, args);
	va_end(args);
}

/* --- reading ---------------------------------------------------------------------------------- */

struct reader {
	struct kvof_plan_bad *bad;
	char where[32];                  /* "arms[2]." */
};

__attribute__((format(printf, 3, 4)))
static int wrong(const struct reader *r, const char *name, const char *format, ...)
{
	va_list args;

	snprintf(r->bad->field, sizeof(r->bad->field), "%s%s", r->where, name);
	va_start(args, format);
	vsnprintf(r->bad->why, sizeof(r->bad->why), format, args);
	va_end(args);
	return -EINVAL;
}

/* NULL: absent, or null. */
static const json_t *member(const json_t *at, const char *name)
{
	const json_t *value = json_object_get(at, name);

	return json_is_null(value) ? NULL : value;
}

/* Absent: *out is 0. */
static int number_get(const struct reader *r, const json_t *at, const char *name, bool below_zero,
		      double *out)
{
	const json_t *value = member(at, name);

	*out = 0;
	if (value == NULL)
		return 0;
	if (!json_is_number(value))
		return wrong(r, name, "is not a number");
	*out = json_number_value(value);
	if (!isfinite(*out) || fabs(*out) > PLAN_FIGURE_MAX)
		return wrong(r, name, "is too large");
	return *out < 0 && !below_zero ? wrong(r, name, "is below 0") : 0;
}

static int count_get(const struct reader *r, const json_t *at, const char *name, uint32_t *out)
{
	double value;
	int rc = number_get(r, at, name, false, &value);

	if (rc == 0 && (value > COUNT_MAX || value != floor(value)))
		rc = wrong(r, name, "is not a count");
	*out = rc == 0 ? (uint32_t)value : 0;
	return rc;
}

/* Cut to its room; absent: empty. */
static int text_get(const struct reader *r, const json_t *at, const char *name, char *out,
		    size_t room)
{
	const json_t *value = member(at, name);

	out[0] = 0;
	if (value != NULL && !json_is_string(value))
		return wrong(r, name, "is not a text");
	if (value != NULL)
		plan_text_put(out, room, json_string_value(value));
	return 0;
}

static int source_get(const struct reader *r, const json_t *at, enum kvof_plan_source *out)
{
	const json_t *value = member(at, "source");

	if (value == NULL)
		return wrong(r, "source", "is missing (measured, rows or spec)");
	if (!json_is_string(value) || !plan_source_find(json_string_value(value), out))
		return wrong(r, "source", "is none of measured, rows, spec");
	return 0;
}

static int list_get(const struct reader *r, const json_t *at, const char *name, size_t most,
		    const json_t **out)
{
	*out = member(at, name);
	if (*out != NULL && !json_is_array(*out))
		return wrong(r, name, "is not a list");
	if (json_array_size(*out) > most)
		return wrong(r, name, "has %zu entries; %zu are the most", json_array_size(*out),
			     most);
	return 0;
}

static int notes_get(const struct reader *r, const json_t *at, uint32_t *count,
		     char text[][KVOF_PLAN_NOTE_BYTES])
{
	const json_t *list;
	int rc = list_get(r, at, "notes", KVOF_PLAN_NOTES_MAX, &list);

	*count = 0;
	for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
		const json_t *note = json_array_get(list, i);

		if (!json_is_string(note))
			return wrong(r, "notes", "are not all texts");
		plan_text_put(text[(*count)++], KVOF_PLAN_NOTE_BYTES, json_string_value(note));
	}
	return rc;
}

static int range_get(const struct reader *r, const json_t *at, struct kvof_plan_fit *fit)
{
	int rc = count_get(r, at, "rows", &fit->rows);

	rc = rc != 0 ? rc : number_get(r, at, "tokens_min", false, &fit->tokens_min);
	rc = rc != 0 ? rc : number_get(r, at, "tokens_max", false, &fit->tokens_max);
	rc = rc != 0 ? rc : count_get(r, at, "concurrency_min", &fit->concurrency_min);
	rc = rc != 0 ? rc : count_get(r, at, "concurrency_max", &fit->concurrency_max);
	rc = rc != 0 ? rc : number_get(r, at, "worst_row_error", false, &fit->worst_row_error);
	if (rc == 0 && fit->tokens_min > fit->tokens_max)
		rc = wrong(r, "tokens_min", "is above tokens_max");
	if (rc == 0 && fit->concurrency_min > fit->concurrency_max)
		rc = wrong(r, "concurrency_min", "is above concurrency_max");
	return rc;
}

static int arm_get(const struct reader *r, const json_t *at, struct kvof_plan_fit *fit)
{
	struct kvof_plan_arm *arm = &fit->arm;
	const json_t *kind = member(at, "arm");
	struct kvof_plan_bad bad;
	int rc;

	*fit = (struct kvof_plan_fit){.rows = 0};
	if (!json_is_object(at))
		return wrong(r, "", "is not an object");
	if (kind == NULL)
		return wrong(r, "arm", "is missing");
	if (!json_is_string(kind) || !kvof_plan_arm_find(json_string_value(kind), &arm->kind))
		return wrong(r, "arm", "is none of recompute, dram, local, array, nfs");
	rc = source_get(r, at, &arm->source);
	rc = rc != 0 ? rc : text_get(r, at, "bottleneck", arm->bottleneck, sizeof(arm->bottleneck));
	for (unsigned i = 0; rc == 0 && i < PLAN_ARM_FIGURES; i++)
		rc = number_get(r, at, plan_arm_figures[i].name, plan_arm_figures[i].below_zero,
				plan_arm_figure(arm, i));
	rc = rc != 0 ? rc : count_get(r, at, "output_tokens", &arm->output_tokens);
	rc = rc != 0 ? rc : range_get(r, at, fit);
	rc = rc != 0 ? rc : notes_get(r, at, &fit->notes, fit->note);
	if (rc == 0 && plan_arm_check(arm, &bad) != 0)
		rc = wrong(r, bad.field, "%s", bad.why);
	return rc;
}

static int arms_get(struct reader *r, const json_t *root, struct plan_profile *out)
{
	const json_t *list;
	int rc = list_get(r, root, "arms", PLAN_PROFILE_ARMS_MAX, &list);

	for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
		snprintf(r->where, sizeof(r->where), "arms[%zu].", i);
		rc = arm_get(r, json_array_get(list, i), &out->arm[i]);
		for (size_t j = 0; rc == 0 && j < i; j++)
			if (out->arm[j].arm.kind == out->arm[i].arm.kind)
				rc = wrong(r, "arm", "is the second %s",
					   kvof_plan_arm_name(out->arm[i].arm.kind));
		out->arms++;
	}
	r->where[0] = 0;
	return rc;
}

static int device_get(const struct reader *r, const json_t *at, struct plan_device *out)
{
	const json_t *kind = member(at, "kind");
	double value_bytes;
	int rc;

	*out = (struct plan_device){.depth = 0};
	if (!json_is_object(at))
		return wrong(r, "", "is not an object");
	if (!json_is_string(kind) || !plan_device_find(json_string_value(kind), &out->kind))
		return wrong(r, "kind", "is none of drive, link, dram, engine");
	rc = text_get(r, at, "name", out->name, sizeof(out->name));
	rc = rc != 0 ? rc : number_get(r, at, "read_bytes_per_s", false, &out->read_bytes_per_s);
	rc = rc != 0 ? rc : number_get(r, at, "write_bytes_per_s", false, &out->write_bytes_per_s);
	rc = rc != 0 ? rc : number_get(r, at, "latency_s", false, &out->latency_s);
	rc = rc != 0 ? rc : count_get(r, at, "depth", &out->depth);
	rc = rc != 0 ? rc : number_get(r, at, "value_bytes", false, &value_bytes);
	if (rc == 0 && value_bytes > 1e15)
		rc = wrong(r, "value_bytes", "is too large");
	out->value_bytes = rc == 0 ? (uint64_t)value_bytes : 0;
	return rc != 0 ? rc : notes_get(r, at, &out->notes.count, out->notes.text);
}

static int devices_get(struct reader *r, const json_t *root, struct plan_profile *out)
{
	const json_t *list;
	int rc = list_get(r, root, "devices", PLAN_PROFILE_DEVICES_MAX, &list);

	for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
		snprintf(r->where, sizeof(r->where), "devices[%zu].", i);
		rc = device_get(r, json_array_get(list, i), &out->device[i]);
		out->devices++;
	}
	r->where[0] = 0;
	return rc;
}

static int model_get(struct reader *r, const json_t *root, struct plan_profile *out)
{
	const json_t *model = member(root, "model");
	int rc;

	if (model == NULL)
		return 0;
	if (!json_is_object(model))
		return wrong(r, "model", "is not an object");
	snprintf(r->where, sizeof(r->where), "model.");
	rc = text_get(r, model, "type", out->model_type, sizeof(out->model_type));
	rc = rc != 0 ? rc : number_get(r, model, "bytes_per_token", false,
				       &out->model_bytes_per_token);
	if (rc == 0 && (out->model_type[0] == 0 || out->model_bytes_per_token <= 0))
		rc = wrong(r, out->model_type[0] == 0 ? "type" : "bytes_per_token", "is missing");
	r->where[0] = 0;
	return rc;
}

static int profile_get(struct reader *r, const json_t *root, struct plan_profile *out)
{
	const json_t *version = member(root, "kvof_profile");
	int rc;

	if (!json_is_object(root) || version == NULL)
		return wrong(r, "", "is not a profile: it has no kvof_profile (`kvof plan "
			     "calibrate` writes one)");
	if (!json_is_integer(version) || json_integer_value(version) != 1)
		return wrong(r, "kvof_profile", "is another version than 1, the one that is known");
	rc = text_get(r, root, "made", out->made, sizeof(out->made));
	rc = rc != 0 ? rc : text_get(r, root, "machine", out->machine, sizeof(out->machine));
	rc = rc != 0 ? rc : source_get(r, root, &out->source);
	rc = rc != 0 ? rc : text_get(r, root, "engine", out->engine, sizeof(out->engine));
	rc = rc != 0 ? rc : text_get(r, root, "precision", out->precision,
				     sizeof(out->precision));
	rc = rc != 0 ? rc : model_get(r, root, out);
	rc = rc != 0 ? rc : arms_get(r, root, out);
	return rc != 0 ? rc : devices_get(r, root, out);
}

int plan_profile_read(const char *text, size_t bytes, struct plan_profile *out,
		      struct kvof_plan_bad *bad)
{
	struct reader r = {.bad = bad};
	json_error_t error;
	json_t *root;
	int rc;

	memset(out, 0, sizeof(*out));
	if (bytes > PLAN_PROFILE_BYTES_MAX)
		return wrong(&r, "", "is longer than a profile can be");
	root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
	if (root == NULL && json_error_code(&error) == json_error_out_of_memory)
		return -ENOMEM;
	if (root == NULL)
		return wrong(&r, "", "is no JSON: line %d: %s", error.line, error.text);
	rc = profile_get(&r, root, out);
	json_decref(root);
	return rc;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Text that may have been cut within a letter: what is no UTF-8 is left out at its end. */
static json_t *text_json(const char *text)
{
	json_t *value = NULL;

	for (size_t bytes = strlen(text) + 1; value == NULL && bytes-- > 0;)
		value = json_stringn(text, bytes);
	return value;
}

static json_t *notes_json(uint32_t count, const char text[][KVOF_PLAN_NOTE_BYTES])
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < count; i++)
		json_array_append_new(list, text_json(text[i]));
	return list;
}

static json_t *arm_json(const struct kvof_plan_fit *fit)
{
	struct kvof_plan_arm arm = fit->arm;
	json_t *one = json_object();

	json_object_set_new(one, "arm", json_string(kvof_plan_arm_name(arm.kind)));
	json_object_set_new(one, "source", json_string(kvof_plan_source_name(arm.source)));
	json_object_set_new(one, "bottleneck", text_json(arm.bottleneck));
	for (unsigned i = 0; i < PLAN_ARM_FIGURES; i++)
		json_object_set_new(one, plan_arm_figures[i].name,
				    json_real(*plan_arm_figure(&arm, i)));
	json_object_set_new(one, "output_tokens", json_integer(arm.output_tokens));
	json_object_set_new(one, "rows", json_integer(fit->rows));
	json_object_set_new(one, "tokens_min", json_real(fit->tokens_min));
	json_object_set_new(one, "tokens_max", json_real(fit->tokens_max));
	json_object_set_new(one, "concurrency_min", json_integer(fit->concurrency_min));
	json_object_set_new(one, "concurrency_max", json_integer(fit->concurrency_max));
	json_object_set_new(one, "worst_row_error", json_real(fit->worst_row_error));
	json_object_set_new(one, "notes", notes_json(fit->notes, fit->note));
	return one;
}

static json_t *device_json(const struct plan_device *device)
{
	return json_pack("{s:o, s:s, s:f, s:f, s:f, s:I, s:I, s:o}", "name",
		text_json(device->name), "kind", plan_device_name(device->kind),
		"read_bytes_per_s", device->read_bytes_per_s,
		"write_bytes_per_s", device->write_bytes_per_s, "latency_s", device->latency_s,
		"depth", (json_int_t)device->depth, "value_bytes", (json_int_t)device->value_bytes,
		"notes", notes_json(device->notes.count, device->notes.text));
}

char *plan_profile_write(const struct plan_profile *profile)
{
	json_t *root = json_object(), *arms = json_array(), *devices = json_array();
	char *text, *whole;

	must(profile->arms <= PLAN_PROFILE_ARMS_MAX);
	must(profile->devices <= PLAN_PROFILE_DEVICES_MAX);
	for (uint32_t i = 0; i < profile->arms; i++)
		json_array_append_new(arms, arm_json(&profile->arm[i]));
	for (uint32_t i = 0; i < profile->devices; i++)
		json_array_append_new(devices, device_json(&profile->device[i]));
	json_object_set_new(root, "kvof_profile", json_integer(1));
	json_object_set_new(root, "made", text_json(profile->made));
	json_object_set_new(root, "machine", text_json(profile->machine));
	json_object_set_new(root, "source", json_string(kvof_plan_source_name(profile->source)));
	if (profile->model_type[0] != 0)
		json_object_set_new(root, "model", json_pack("{s:o, s:f}", "type",
			text_json(profile->model_type), "bytes_per_token",
			profile->model_bytes_per_token));
	if (profile->engine[0] != 0)
		json_object_set_new(root, "engine", text_json(profile->engine));
	if (profile->precision[0] != 0)
		json_object_set_new(root, "precision", text_json(profile->precision));
	json_object_set_new(root, "arms", arms);
	json_object_set_new(root, "devices", devices);
	text = json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
	json_decref(root);
	if (text == NULL)
		return NULL;
	whole = realloc(text, strlen(text) + 2);
	if (whole == NULL) {
		free(text);
		return NULL;
	}
	strcat(whole, "\n");
	return whole;
}
