/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of a cache from Python: a dict by the names of struct kvof_cache_opts. Texts are borrowed
 * from their str objects, which the dict keeps.
 */
#include "_kvof.h"

#include <stddef.h>
#include <string.h>

static const char *text_of(PyObject *text, Py_ssize_t *bytes)
{
	return PyUnicode_AsUTF8AndSize(text, bytes);
}

/* [(name, value), ...] of str. Return: 0; -1 with an exception. */
static int fields_from(PyObject *list, struct kvof_field *field, uint32_t *count)
{
	Py_ssize_t n = PyList_Size(list);

	if (n < 0)
		return -1;
	if (n > KVOF_FIELDS_MAX) {
		PyErr_Format(PyExc_ValueError, "model has %zd fields, at most %d", n,
			     KVOF_FIELDS_MAX);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *pair = PyList_GetItem(list, i);     /* borrowed, as what is in it */
		const char *text[2] = {NULL, NULL};

		for (int k = 0; k < 2; k++) {
			PyObject *item = PyTuple_GetItem(pair, k);
			Py_ssize_t bytes = 0;

			text[k] = item != NULL ? text_of(item, &bytes) : NULL;
			if (text[k] == NULL)
				return -1;
			if (strlen(text[k]) != (size_t)bytes) {
				PyErr_SetString(PyExc_ValueError, "model has a NUL character");
				return -1;
			}
		}
		field[i] = (struct kvof_field){text[0], text[1]};
	}
	*count = (uint32_t)n;
	return 0;
}

#define NUMBER(name) {#name, offsetof(struct kvof_cache_opts, name), \
	sizeof(((struct kvof_cache_opts *)0)->name)}

static const struct number {
	const char *name;
	size_t at, bytes;
} numbers[] = {
	NUMBER(block_tokens), NUMBER(part_bytes), NUMBER(dram_bytes), NUMBER(deadline_ns),
	NUMBER(queues), NUMBER(depth), NUMBER(strict), NUMBER(digests), NUMBER(lease_ns),
	NUMBER(flash_bytes), NUMBER(flash_format), NUMBER(admission), NUMBER(behind_bytes),
	NUMBER(behind_full), NUMBER(plain), NUMBER(staging_bytes), NUMBER(presence_ns),
	NUMBER(index_blocks), NUMBER(layer_count), NUMBER(event_count),
};

/* Return: 1 it was a number; 0 no such name; -1 with an exception. */
static int number_set(const char *name, PyObject *value, struct kvof_cache_opts *opts)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		char *at = (char *)opts + numbers[i].at;

		if (strcmp(numbers[i].name, name) != 0)
			continue;
		if (numbers[i].bytes == 4)
			return u32_from(value, at) ? 1 : -1;
		return u64_from(value, at) ? 1 : -1;
	}
	return 0;
}

/* One text without NUL. Return: NULL with an exception. */
static const char *text_whole(PyObject *text, const char *name)
{
	Py_ssize_t bytes = 0;
	const char *out = text_of(text, &bytes);

	if (out != NULL && strlen(out) != (size_t)bytes) {
		PyErr_Format(PyExc_ValueError, "%s has a NUL character", name);
		return NULL;
	}
	return out;
}

static int texts_set(PyObject *list, const char *name, const char **out, uint32_t most,
		     uint32_t *count)
{
	Py_ssize_t n = PyList_Size(list);

	if (n < 0)
		return -1;
	if ((size_t)n > most) {
		PyErr_Format(PyExc_ValueError, "%s has %zd entries, at most %u", name, n, most);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		out[i] = text_whole(PyList_GetItem(list, i), name);
		if (out[i] == NULL)
			return -1;
	}
	*count = (uint32_t)n;
	return 0;
}

static int layers_set(PyObject *list, uint64_t *out, uint32_t *count)
{
	Py_ssize_t n = PyList_Size(list);

	if (n < 0)
		return -1;
	if (n > KVOF_LAYERS_MAX) {
		PyErr_Format(PyExc_ValueError, "layer_bytes has %zd layers, at most %d", n,
			     KVOF_LAYERS_MAX);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++)
		if (!u64_from(PyList_GetItem(list, i), &out[i]))
			return -1;
	*count = (uint32_t)n;
	return 0;
}

static int option_set(const char *name, PyObject *value, struct options_room *room,
		      struct kvof_cache_opts *opts)
{
	int rc = number_set(name, value, opts);

	if (rc != 0)
		return rc < 0 ? -1 : 0;
	if (strcmp(name, "model_id") == 0)
		return (opts->model_id = text_whole(value, name)) != NULL ? 0 : -1;
	if (strcmp(name, "target") == 0)
		return (opts->target = text_whole(value, name)) != NULL ? 0 : -1;
	if (strcmp(name, "host_nqn") == 0)
		return (opts->host_nqn = text_whole(value, name)) != NULL ? 0 : -1;
	if (strcmp(name, "policy") == 0)
		return (opts->policy = text_whole(value, name)) != NULL ? 0 : -1;
	if (strcmp(name, "targets") == 0) {
		opts->targets = room->text;
		return texts_set(value, name, room->text, KVOF_TARGETS_MAX, &opts->target_count);
	}
	if (strcmp(name, "flash") == 0) {
		opts->flash = room->text + KVOF_TARGETS_MAX;
		return texts_set(value, name, room->text + KVOF_TARGETS_MAX, KVOF_FLASH_MAX,
				 &opts->flash_count);
	}
	if (strcmp(name, "layer_bytes") == 0) {
		opts->layer_bytes = room->layer_bytes;
		return layers_set(value, room->layer_bytes, &opts->layer_count);
	}
	PyErr_Format(PyExc_TypeError, "there is no option %s", name);
	return -1;
}

int options_from(PyObject *fields, PyObject *options, struct options_room *room,
		 struct kvof_cache_opts *opts)
{
	PyObject *key, *value;
	Py_ssize_t at = 0;

	*opts = (struct kvof_cache_opts){.struct_bytes = sizeof(*opts), .fields = room->field};
	if (fields_from(fields, room->field, &opts->field_count) != 0)
		return -1;
	while (PyDict_Next(options, &at, &key, &value)) {
		Py_ssize_t bytes;
		const char *name = text_of(key, &bytes);

		if (name == NULL || option_set(name, value, room, opts) != 0)
			return -1;
	}
	return 0;
}
