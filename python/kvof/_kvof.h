/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the extension share. Stable ABI of Python 3.11.
 *
 * Memory: buffers come through the buffer protocol and are never copied. Exporters are held (a
 * `lease`) from submit until the last result or release of the batch has been drained, of a restore
 * until its end, so Python cannot free or resize what the cache may still touch.
 *
 * Threads: the GIL protects all fields here; it is dropped only where a call may wait (open, close,
 * wait, match, poll, ...). `inside` counts calls that have dropped it: close() waits for them.
 */
#ifndef KVOF_PYTHON_H
#define KVOF_PYTHON_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "kvof/cache.h"
#include "kvof/restore.h"

struct lease {
	struct lease *next;
	uint64_t batch;
	uint32_t left;                     /* blocks whose memory may still be touched */
	Py_ssize_t view_count;
	Py_buffer view[];
};

/* Releases that were drained before wait() came to tell whose they are. */
struct early {
	struct early *next;
	uint64_t batch;
	uint32_t count;
};

struct door {
	PyObject_HEAD
	struct kvof_cache *cache;
	bool closed;
	uint32_t inside;
	struct lease *leases;
	struct lease *restores;            /* their batch is the request */
	struct early *early;
	uint32_t waiting;                  /* calls of wait(), whose releases may come early */
	uint32_t block_tokens;
};

/* Blocks with memory of their own: the arrays that kvof_cache_submit() copies. */
struct blocks {
	Py_ssize_t count;
	struct kvof_id *ids;
	struct kvof_block *block;
	struct iovec *iov;
	Py_ssize_t pieces;                 /* room in iov and in the lease */
	struct lease *lease;               /* NULL: no buffers */
};

/* _ask.c, _restore.c: methods. */
PyObject *door_match_groups(PyObject *self, PyObject *args);
PyObject *door_pin(PyObject *self, PyObject *args);
PyObject *door_hint(PyObject *self, PyObject *args);
PyObject *door_flush(PyObject *self, PyObject *args);
PyObject *door_events_take(PyObject *self, PyObject *none);
PyObject *door_restore_begin(PyObject *self, PyObject *args);
PyObject *door_restore_next(PyObject *self, PyObject *args);
PyObject *door_restore_computed(PyObject *self, PyObject *args);
PyObject *door_restore_end(PyObject *self, PyObject *args);
PyObject *door_prefetch(PyObject *self, PyObject *args);

/* Between these two the GIL is dropped, and close() waits. */
#define DOOR_WAIT_BEGIN(door) (door)->inside++; Py_BEGIN_ALLOW_THREADS
#define DOOR_WAIT_END(door) Py_END_ALLOW_THREADS (door)->inside--

extern PyObject *result_type, *refused_type;

/* _args.c: each NULL, -1, or false with an exception; the O& ones 0. */
PyObject *raise_errno(int rc, const char *what);
PyObject *raise_open(int rc, const char *why);
/* The cache, for a call; NULL with an exception when it is closed. */
struct kvof_cache *door_cache(struct door *door);
void lease_free(struct lease *lease);
bool lease_end(struct door *door, uint64_t batch, uint32_t n);
void lease_add(struct door *door, struct lease *lease);
void early_add(struct door *door, uint64_t batch);
int id_from(PyObject *key, struct kvof_id *out);
int u32_from(PyObject *number, void *out);
int u64_from(PyObject *number, void *out);
struct kvof_id *ids_from(PyObject *keys, Py_ssize_t *count);
int blocks_from(struct blocks *b, int op, PyObject *keys, PyObject *buffers);
void blocks_free(struct blocks *b);

/* _options.c: the texts and lists live in room until options_free(). */
struct options_room {
	const char *text[KVOF_TARGETS_MAX + KVOF_FLASH_MAX];
	struct kvof_field field[KVOF_FIELDS_MAX];
	uint64_t layer_bytes[KVOF_LAYERS_MAX];
};
int options_from(PyObject *fields, PyObject *options, struct options_room *room,
		 struct kvof_cache_opts *opts);

#endif
