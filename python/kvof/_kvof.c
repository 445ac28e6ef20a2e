/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python's door to libkvof: arguments in, results out, no logic. Stable ABI of Python 3.11.
 *
 * Memory: buffers come through the buffer protocol and are never copied. Exporters are held (a
 * `lease`) from submit until the last result or release of the batch has been drained, so Python
 * cannot free or resize what the cache may still touch.
 *
 * Threads: the GIL protects all fields here; it is dropped only where a call may wait (open, close,
 * wait, match, poll). `inside` counts calls that have dropped it: close() waits for them.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "kvof/cache.h"

#define DRAIN_MAX 256

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
	struct early *early;
	uint32_t block_tokens;
};

static PyObject *result_type, *refused_type;

/* --- errors ----------------------------------------------------------------------------------- */

/* errno becomes the matching subclass of OSError; -EINVAL is a ValueError. */
static PyObject *raise_errno(int rc, const char *what)
{
	PyObject *args;

	if (rc == -EINVAL) {
		PyErr_SetString(PyExc_ValueError, what);
		return NULL;
	}
	args = Py_BuildValue("(is)", -rc, what[0] != '\0' ? what : strerror(-rc));
	if (args != NULL) {
		PyErr_SetObject(PyExc_OSError, args);
		Py_DECREF(args);
	}
	return NULL;
}

static PyObject *raise_open(int rc, const char *why)
{
	PyObject *args;

	if (rc != -EINVAL)
		return raise_errno(rc, why);
	args = Py_BuildValue("(is)", EINVAL, why);
	if (args != NULL) {
		PyErr_SetObject(refused_type, args);
		Py_DECREF(args);
	}
	return NULL;
}

/* The cache, for a call; NULL with an exception when it is closed. */
static struct kvof_cache *door_cache(struct door *door)
{
	if (door->cache == NULL || door->closed) {
		raise_errno(-ESHUTDOWN, "the cache is closed");
		return NULL;
	}
	return door->cache;
}

/* --- leases ----------------------------------------------------------------------------------- */

static void lease_free(struct lease *lease)
{
	for (Py_ssize_t i = 0; i < lease->view_count; i++)
		PyBuffer_Release(&lease->view[i]);
	PyMem_Free(lease);
}

/* n blocks of a batch are not touched any more. False: the batch is not known (yet). */
static bool lease_end(struct door *door, uint64_t batch, uint32_t n)
{
	for (struct lease **at = &door->leases; *at != NULL; at = &(*at)->next) {
		struct lease *lease = *at;

		if (lease->batch != batch)
			continue;
		lease->left -= n;
		if (lease->left == 0) {
			*at = lease->next;
			lease_free(lease);
		}
		return true;
	}
	return false;
}

static void early_add(struct door *door, uint64_t batch)
{
	struct early *e = door->early;

	while (e != NULL && e->batch != batch)
		e = e->next;
	if (e == NULL) {
		e = PyMem_Calloc(1, sizeof(*e));
		if (e == NULL)
			return;            /* its lease then lasts until close() */
		e->batch = batch;
		e->next = door->early;
		door->early = e;
	}
	e->count++;
}

/* The lease becomes known; releases that came before count now. */
static void lease_add(struct door *door, struct lease *lease)
{
	lease->next = door->leases;
	door->leases = lease;
	for (struct early **at = &door->early; *at != NULL; at = &(*at)->next) {
		struct early *e = *at;

		if (e->batch != lease->batch)
			continue;
		*at = e->next;
		lease_end(door, e->batch, e->count);
		PyMem_Free(e);
		return;
	}
}

/* --- results ---------------------------------------------------------------------------------- */

static PyStructSequence_Field result_fields[] = {
	{"ok", "bool: delivered, stored, or there already"},
	{"bytes", "true stored length"},
	{"reason", "'ok', or why not: 'absent', 'corrupt', 'identity', 'late', 'canceled', "
		   "'unreachable', 'short', 'exists', 'full', 'error'; 'released'"},
	{"index", "of the block in its batch"},
	{"batch", "number of the batch"},
	{"busy", "bool: the buffer is not free yet; a result with .released follows"},
	{"released", "bool: not a result: the buffer of an earlier busy result is free now"},
	{"last", "bool: the last result of its batch"},
	{"wait_s", "seconds from submit to the answer"},
	{"verify_s", "seconds of it spent on checking the bytes"},
	{"tier", "'dram', 'flash', 'remote' or ''"},
	{NULL, NULL},
};

static PyStructSequence_Desc result_desc = {
	"kvof.Result", "What became of one block of a batch.", result_fields, 11,
};

static PyObject *result_make(const struct kvof_result *r)
{
	bool released = (r->flags & KVOF_RESULT_RELEASED) != 0;
	bool ok = !released && (r->reason == KVOF_OK || r->reason == KVOF_EXISTS);
	PyObject *item[11] = {
		PyBool_FromLong(ok),
		PyLong_FromUnsignedLongLong(r->value_bytes),
		PyUnicode_FromString(released ? "released" :
				     kvof_reason_name((enum kvof_reason)r->reason)),
		PyLong_FromUnsignedLong(r->index),
		PyLong_FromUnsignedLongLong(r->batch),
		PyBool_FromLong(r->busy != 0),
		PyBool_FromLong(released),
		PyBool_FromLong((r->flags & KVOF_RESULT_LAST) != 0),
		PyFloat_FromDouble((double)r->wait_ns / 1e9),
		PyFloat_FromDouble((double)r->verify_ns / 1e9),
		PyUnicode_FromString(kvof_tier_name((enum kvof_tier)r->tier)),
	};
	PyObject *out = PyStructSequence_New((PyTypeObject *)result_type);

	for (int i = 0; i < 11; i++) {
		if (out == NULL || item[i] == NULL) {
			Py_XDECREF(item[i]);
			Py_CLEAR(out);
		} else {
			PyStructSequence_SetItem(out, i, item[i]);
		}
	}
	return out;
}

static PyObject *results_make(const struct kvof_result *r, uint32_t n)
{
	PyObject *list = PyList_New((Py_ssize_t)n);

	for (uint32_t i = 0; list != NULL && i < n; i++) {
		PyObject *item = result_make(&r[i]);

		if (item == NULL)
			Py_CLEAR(list);
		else
			PyList_SetItem(list, (Py_ssize_t)i, item);
	}
	return list;
}

/* --- arguments -------------------------------------------------------------------------------- */

static int id_from(PyObject *key, struct kvof_id *out)
{
	Py_buffer view;
	bool fits;

	if (PyObject_GetBuffer(key, &view, PyBUF_SIMPLE) != 0)
		return -1;
	fits = view.len == KVOF_ID_BYTES;
	if (fits)
		memcpy(out->byte, view.buf, KVOF_ID_BYTES);
	PyBuffer_Release(&view);
	if (!fits)
		PyErr_Format(PyExc_ValueError, "a key is %d bytes; use key_of() for other names",
			     KVOF_ID_BYTES);
	return fits ? 0 : -1;
}

/*
 * Whole numbers for PyArg_ParseTuple's O&: what does not fit is an OverflowError. Its own I and K
 * would take the lowest bits, and block_tokens = 2^32 + 256 would be 256.
 */
static int number_from(PyObject *number, unsigned long long most, unsigned long long *out)
{
	PyObject *whole = PyNumber_Index(number);
	unsigned long long value;

	if (whole == NULL)
		return 0;
	value = PyLong_AsUnsignedLongLong(whole);
	Py_DECREF(whole);
	if (PyErr_Occurred())
		return 0;
	if (value > most) {
		PyErr_Format(PyExc_OverflowError, "%S is too large, at most %llu", number, most);
		return 0;
	}
	*out = value;
	return 1;
}

static int u32_from(PyObject *number, void *out)
{
	unsigned long long value;

	if (!number_from(number, UINT32_MAX, &value))
		return 0;
	*(uint32_t *)out = (uint32_t)value;
	return 1;
}

static int u64_from(PyObject *number, void *out)
{
	unsigned long long value;

	if (!number_from(number, UINT64_MAX, &value))
		return 0;
	*(uint64_t *)out = value;
	return 1;
}

/* A sequence of keys. Return: ids to be freed, or NULL with an exception. */
static struct kvof_id *ids_from(PyObject *keys, Py_ssize_t *count)
{
	struct kvof_id *ids;

	*count = PySequence_Size(keys);
	if (*count < 0)
		return NULL;
	ids = PyMem_Calloc((size_t)*count + 1, sizeof(*ids));
	if (ids == NULL) {
		PyErr_NoMemory();
		return NULL;
	}
	for (Py_ssize_t i = 0; i < *count; i++) {
		PyObject *key = PySequence_GetItem(keys, i);
		int rc = key != NULL ? id_from(key, &ids[i]) : -1;

		Py_XDECREF(key);
		if (rc != 0) {
			PyMem_Free(ids);
			return NULL;
		}
	}
	return ids;
}

/* Blocks with memory of their own: the arrays that kvof_cache_submit() copies. */
struct blocks {
	Py_ssize_t count;
	struct kvof_id *ids;
	struct kvof_block *block;
	struct iovec *iov;
	Py_ssize_t pieces;                 /* room in iov and in the lease */
	struct lease *lease;               /* NULL: no buffers */
};

static void blocks_free(struct blocks *b)
{
	PyMem_Free(b->ids);
	PyMem_Free(b->block);
	PyMem_Free(b->iov);
	if (b->lease != NULL)
		lease_free(b->lease);
	*b = (struct blocks){0};
}

/* Pieces of one block: the object is a buffer, or a list or tuple of buffers. */
static Py_ssize_t pieces_of(PyObject *item)
{
	return PyList_Check(item) || PyTuple_Check(item) ? PySequence_Size(item) : 1;
}

static Py_ssize_t pieces_count(PyObject *buffers, Py_ssize_t count)
{
	Py_ssize_t sum = 0;

	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *item = PySequence_GetItem(buffers, i);

		if (item == NULL)
			return -1;
		sum += pieces_of(item);
		Py_DECREF(item);
	}
	return sum;
}

static int piece_add(struct blocks *b, struct kvof_block *block, PyObject *piece, int flags)
{
	Py_buffer *view = &b->lease->view[b->lease->view_count];
	struct iovec *iov = &b->iov[b->lease->view_count];

	if (b->lease->view_count == b->pieces) {       /* a sequence may run code of its own */
		PyErr_SetString(PyExc_ValueError, "the buffers changed while they were read");
		return -1;
	}
	if (PyObject_GetBuffer(piece, view, flags) != 0)
		return -1;
	*iov = (struct iovec){view->buf, (size_t)view->len};
	b->lease->view_count++;
	block->iov_count++;
	block->bytes += (uint64_t)view->len;
	return 0;
}

static int block_add(struct blocks *b, struct kvof_block *block, PyObject *item, int flags)
{
	Py_ssize_t pieces = pieces_of(item);
	bool many = PyList_Check(item) || PyTuple_Check(item);

	block->iov = &b->iov[b->lease->view_count];
	for (Py_ssize_t i = 0; i < pieces; i++) {
		PyObject *piece = many ? PySequence_GetItem(item, i) : item;
		int rc = piece != NULL ? piece_add(b, block, piece, flags) : -1;

		if (many)
			Py_XDECREF(piece);
		if (rc != 0)
			return -1;
	}
	return 0;
}

static int buffers_add(struct blocks *b, PyObject *buffers, int flags)
{
	if (PySequence_Size(buffers) != b->count) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError, "as many buffers as keys are needed");
		return -1;
	}
	b->pieces = pieces_count(buffers, b->count);
	if (b->pieces < 0)
		return -1;
	b->iov = PyMem_Calloc((size_t)b->pieces + 1, sizeof(*b->iov));
	b->lease = PyMem_Calloc(1, sizeof(*b->lease) + (size_t)b->pieces * sizeof(Py_buffer));
	if (b->iov == NULL || b->lease == NULL) {
		PyErr_NoMemory();
		return -1;
	}
	b->lease->left = (uint32_t)b->count;
	for (Py_ssize_t i = 0; i < b->count; i++) {
		PyObject *item = PySequence_GetItem(buffers, i);
		int rc = item != NULL ? block_add(b, &b->block[i], item, flags) : -1;

		Py_XDECREF(item);
		if (rc != 0)
			return -1;
	}
	return 0;
}

static int blocks_from(struct blocks *b, int op, PyObject *keys, PyObject *buffers)
{
	int flags = op == KVOF_LOAD ? PyBUF_WRITABLE : PyBUF_SIMPLE;

	*b = (struct blocks){0};
	b->ids = ids_from(keys, &b->count);
	if (b->ids == NULL)
		return -1;
	b->block = PyMem_Calloc((size_t)b->count + 1, sizeof(*b->block));
	if (b->block == NULL) {
		PyErr_NoMemory();
		blocks_free(b);
		return -1;
	}
	for (Py_ssize_t i = 0; i < b->count; i++)
		b->block[i].id = b->ids[i];
	if ((op == KVOF_LOAD || op == KVOF_SAVE) && buffers_add(b, buffers, flags) != 0) {
		blocks_free(b);
		return -1;
	}
	return 0;
}

/* --- methods ---------------------------------------------------------------------------------- */

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

static int door_open(struct door *door, const struct kvof_cache_opts *opts)
{
	char why[256] = "";
	int rc;

	Py_BEGIN_ALLOW_THREADS
	rc = kvof_cache_open(opts, why, &door->cache);
	Py_END_ALLOW_THREADS
	if (rc != 0) {
		raise_open(rc, why);
		return -1;
	}
	door->closed = false;
	door->block_tokens = opts->block_tokens != 0 ? opts->block_tokens : 256;
	if (why[0] != '\0' && PyErr_WarnEx(PyExc_RuntimeWarning, why, 2) != 0) {
		Py_BEGIN_ALLOW_THREADS
		kvof_cache_close(&door->cache);
		Py_END_ALLOW_THREADS
		return -1;
	}
	return 0;
}

static int door_init(PyObject *self, PyObject *args, PyObject *kw)
{
	struct door *door = (struct door *)self;
	struct kvof_field field[KVOF_FIELDS_MAX];
	struct kvof_cache_opts opts = {.struct_bytes = sizeof(opts)};
	const char *target, *model_id;
	PyObject *fields;
	int strict = 1;

	if (door->cache != NULL) {
		PyErr_SetString(PyExc_RuntimeError, "the cache is open already");
		return -1;
	}
	if (!PyArg_ParseTuple(args, "zO!sO&O&O&O&O&O&O&pO&z", &target, &PyList_Type, &fields,
			      &model_id, u32_from, &opts.block_tokens, u32_from, &opts.part_bytes,
			      u64_from, &opts.dram_bytes, u64_from, &opts.deadline_ns, u64_from,
			      &opts.lease_ns, u32_from, &opts.queues, u32_from, &opts.depth,
			      &strict, u32_from, &opts.digests, &opts.host_nqn))
		return -1;
	if (fields_from(fields, field, &opts.field_count) != 0)
		return -1;
	opts.target = target;
	opts.fields = field;
	opts.model_id = model_id;
	opts.strict = strict != 0;
	return door_open(door, &opts);
}

static void door_drop_leases(struct door *door)
{
	while (door->leases != NULL) {
		struct lease *lease = door->leases;

		door->leases = lease->next;
		lease_free(lease);
	}
	while (door->early != NULL) {
		struct early *e = door->early;

		door->early = e->next;
		PyMem_Free(e);
	}
}

static void nap(void)
{
	struct timespec ms = {0, 1000000};

	nanosleep(&ms, NULL);
}

static void door_shut(struct door *door)
{
	struct kvof_cache *cache = door->cache;
	/* in a forked child those that are inside do not exist */
	bool here = cache != NULL && kvof_cache_fd(cache) >= 0;

	if (cache == NULL || door->closed)
		return;
	door->closed = true;
	while (here && door->inside > 0) {
		kvof_cache_cancel(cache, 0);
		Py_BEGIN_ALLOW_THREADS
		nap();
		Py_END_ALLOW_THREADS
	}
	door->cache = NULL;
	Py_BEGIN_ALLOW_THREADS
	kvof_cache_close(&cache);
	Py_END_ALLOW_THREADS
	door_drop_leases(door);
}

static PyObject *door_close(PyObject *self, PyObject *none)
{
	door_shut((struct door *)self);
	Py_RETURN_NONE;
}

static void door_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	door_shut((struct door *)self);
	release(self);
	Py_DECREF(type);
}

static PyObject *ids_list(const struct kvof_id *ids, Py_ssize_t n)
{
	PyObject *list = PyList_New(n);

	for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
		PyObject *id = PyBytes_FromStringAndSize((const char *)ids[i].byte, KVOF_ID_BYTES);

		if (id == NULL)
			Py_CLEAR(list);
		else
			PyList_SetItem(list, i, id);
	}
	return list;
}

/* _keys(int32 buffer, parent or None) */
static PyObject *door_keys(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	struct kvof_id parent, *ids;
	PyObject *tokens, *parent_obj, *list = NULL;
	Py_buffer view;
	Py_ssize_t n;
	int rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "OO", &tokens, &parent_obj))
		return NULL;
	if (parent_obj != Py_None && id_from(parent_obj, &parent) != 0)
		return NULL;
	if (PyObject_GetBuffer(tokens, &view, PyBUF_SIMPLE) != 0)
		return NULL;
	n = view.len / 4 / (Py_ssize_t)door->block_tokens;
	ids = PyMem_Calloc((size_t)n + 1, sizeof(*ids));
	if (ids == NULL || view.len % 4 != 0 || (view.len > 0 && (uintptr_t)view.buf % 4 != 0)) {
		PyErr_SetString(PyExc_ValueError, "tokens are 32-bit numbers");
	} else {
		rc = kvof_cache_ids(cache, view.buf, (size_t)view.len / 4,
				    parent_obj != Py_None ? &parent : NULL, ids);
		list = rc == 0 ? ids_list(ids, n) : raise_errno(rc, "");
	}
	PyMem_Free(ids);
	PyBuffer_Release(&view);
	return list;
}

static PyObject *door_key_of(PyObject *self, PyObject *hash)
{
	struct kvof_cache *cache = door_cache((struct door *)self);
	struct kvof_id id;
	Py_buffer view;
	int rc;

	if (cache == NULL || PyObject_GetBuffer(hash, &view, PyBUF_SIMPLE) != 0)
		return NULL;
	rc = kvof_cache_id_of(cache, view.buf, (size_t)view.len, &id);
	PyBuffer_Release(&view);
	if (rc != 0)
		return raise_errno(rc, "");
	return PyBytes_FromStringAndSize((const char *)id.byte, KVOF_ID_BYTES);
}

/* _match(keys, deadline_ns) */
static PyObject *door_match(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	uint64_t deadline_ns;
	struct kvof_id *ids;
	PyObject *keys;
	Py_ssize_t n;
	uint32_t found = 0;
	int rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "OO&", &keys, u64_from, &deadline_ns))
		return NULL;
	ids = ids_from(keys, &n);
	if (ids == NULL)
		return NULL;
	door->inside++;
	Py_BEGIN_ALLOW_THREADS
	rc = kvof_cache_match(cache, ids, (uint32_t)n, deadline_ns, &found);
	Py_END_ALLOW_THREADS
	door->inside--;
	PyMem_Free(ids);
	return rc == 0 ? PyLong_FromUnsignedLong(found) : raise_errno(rc, "");
}

static PyObject *door_unlease(PyObject *self, PyObject *keys)
{
	struct kvof_cache *cache = door_cache((struct door *)self);
	struct kvof_id *ids;
	Py_ssize_t n;
	int rc;

	if (cache == NULL)
		return NULL;
	ids = ids_from(keys, &n);
	if (ids == NULL)
		return NULL;
	rc = kvof_cache_unlease(cache, ids, (uint32_t)n);
	PyMem_Free(ids);
	if (rc != 0)
		return raise_errno(rc, "");
	Py_RETURN_NONE;
}

/* _submit(op, keys, buffers or None, deadline_ns) */
static PyObject *door_submit(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	uint64_t deadline_ns;
	PyObject *keys, *buffers;
	uint64_t batch = 0;
	struct blocks b;
	int op, rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "iOOO&", &op, &keys, &buffers, u64_from,
					       &deadline_ns))
		return NULL;
	if (blocks_from(&b, op, keys, buffers) != 0)
		return NULL;
	/* never waits: the GIL stays, so no result is drained before the lease is known */
	rc = kvof_cache_submit(cache, (enum kvof_op)op, b.block, (uint32_t)b.count, deadline_ns,
			       &batch);
	if (rc == 0 && b.lease != NULL) {
		b.lease->batch = batch;
		lease_add(door, b.lease);
		b.lease = NULL;
	}
	blocks_free(&b);
	return rc == 0 ? PyLong_FromUnsignedLongLong(batch) :
	       raise_errno(rc, rc == -EBUSY ? "too much in flight: drain() first" :
			   rc == -EINVAL ? "no blocks, or too many" : "");
}

/* What stays busy after wait() keeps its exporters until the release is drained. */
static void wait_leases(struct door *door, struct blocks *b, const struct kvof_result *r)
{
	uint32_t busy = 0;

	for (Py_ssize_t i = 0; i < b->count; i++)
		busy += r[i].busy != 0;
	if (busy == 0 || b->lease == NULL)
		return;
	b->lease->left = busy;
	b->lease->batch = r[0].batch;
	lease_add(door, b->lease);
	b->lease = NULL;
}

/* _wait(op, keys, buffers or None, deadline_ns) */
static PyObject *door_wait(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	uint64_t deadline_ns;
	PyObject *keys, *buffers, *list = NULL;
	struct kvof_result *results;
	struct blocks b;
	int op, rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "iOOO&", &op, &keys, &buffers, u64_from,
					       &deadline_ns))
		return NULL;
	if (blocks_from(&b, op, keys, buffers) != 0)
		return NULL;
	results = PyMem_Calloc((size_t)b.count + 1, sizeof(*results));
	if (results == NULL) {
		blocks_free(&b);
		return PyErr_NoMemory();
	}
	if (b.count > 0) {
		door->inside++;
		Py_BEGIN_ALLOW_THREADS
		rc = kvof_cache_wait(cache, (enum kvof_op)op, b.block, (uint32_t)b.count,
				     deadline_ns, results);
		Py_END_ALLOW_THREADS
		door->inside--;
	} else {
		rc = 0;
	}
	if (rc == 0) {
		wait_leases(door, &b, results);
		list = results_make(results, (uint32_t)b.count);
	} else {
		raise_errno(rc, rc == -EBUSY ? "too much in flight: drain() first" :
			    rc == -EINVAL ? "too many blocks" : "");
	}
	PyMem_Free(results);
	blocks_free(&b);
	return list;
}

static int64_t clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for the descriptor, at most step_ms. Return: 0; -1 with an exception. */
static int fd_wait(struct door *door, int64_t step_ms)
{
	struct pollfd p = {kvof_cache_fd(door->cache), POLLIN, 0};

	door->inside++;
	Py_BEGIN_ALLOW_THREADS
	poll(&p, 1, (int)step_ms);
	Py_END_ALLOW_THREADS
	door->inside--;
	return PyErr_CheckSignals();
}

/* Drains, and waits up to timeout_ms (-1: for ever) while there is nothing. Return: number of
 * results; -1 with an exception. */
static int drain_wait(struct door *door, struct kvof_result *results, int64_t timeout_ms)
{
	int64_t end_ms = clock_ms() + timeout_ms;

	for (;;) {
		struct kvof_cache *cache = door_cache(door);
		int got = cache != NULL ? kvof_cache_drain(cache, results, DRAIN_MAX) : -1;
		int64_t left_ms = timeout_ms < 0 ? 100 : end_ms - clock_ms();

		if (cache == NULL)
			return -1;
		if (got < 0)
			raise_errno(got, "");
		if (got != 0 || timeout_ms == 0 || left_ms <= 0)
			return got < 0 ? -1 : got;
		/* in steps, so that close() of another thread is seen */
		if (fd_wait(door, left_ms < 100 ? left_ms : 100) != 0)
			return -1;
	}
}

/* _drain(timeout_ms): results; an empty list when the time is up */
static PyObject *door_drain(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_result results[DRAIN_MAX];
	int timeout_ms, got;

	if (!PyArg_ParseTuple(args, "i", &timeout_ms))
		return NULL;
	got = drain_wait(door, results, timeout_ms);
	if (got < 0)
		return NULL;
	for (int i = 0; i < got; i++) {
		if (results[i].busy != 0)
			continue;
		if (!lease_end(door, results[i].batch, 1) &&
		    (results[i].flags & KVOF_RESULT_RELEASED) != 0)
			early_add(door, results[i].batch);
	}
	return results_make(results, (uint32_t)got);
}

static PyObject *door_cancel(PyObject *self, PyObject *args)
{
	struct kvof_cache *cache = door_cache((struct door *)self);
	uint64_t batch;
	int rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "O&", u64_from, &batch))
		return NULL;
	rc = kvof_cache_cancel(cache, batch);
	if (rc != 0)
		return raise_errno(rc, "");
	Py_RETURN_NONE;
}

static int dict_set(PyObject *dict, const char *name, uint64_t value)
{
	PyObject *number = PyLong_FromUnsignedLongLong(value);
	int rc = number != NULL ? PyDict_SetItemString(dict, name, number) : -1;

	Py_XDECREF(number);
	return rc;
}

static PyObject *stat_dict(const struct kvof_cache_stat *s)
{
	const struct {
		const char *name;
		uint64_t value;
	} row[] = {
		{"hits_dram", s->hits[1]}, {"hits_remote", s->hits[2]}, {"misses", s->misses},
		{"loaded_bytes_dram", s->loaded_bytes[1]},
		{"loaded_bytes_remote", s->loaded_bytes[2]}, {"saved_bytes", s->saved_bytes},
		{"dram_used_bytes", s->dram_used_bytes}, {"dram_blocks", s->dram_blocks},
		{"dram_evicted", s->dram_evicted}, {"dram_refused", s->dram_refused},
		{"promoted", s->promoted[1]}, {"wait_ns", s->wait_ns}, {"verify_ns", s->verify_ns},
		{"remote_reconnects", s->remote_reconnects}, {"remote_live", s->remote_live},
		{"late_releases", s->late_releases},
	};
	PyObject *dict = PyDict_New(), *reasons = PyDict_New();
	bool fine = dict != NULL && reasons != NULL;

	for (size_t i = 0; fine && i < sizeof(row) / sizeof(row[0]); i++)
		fine = dict_set(dict, row[i].name, row[i].value) == 0;
	for (int i = 0; fine && i < KVOF_REASON_COUNT; i++)
		fine = dict_set(reasons, kvof_reason_name((enum kvof_reason)i), s->reason[i]) == 0;
	fine = fine && PyDict_SetItemString(dict, "reasons", reasons) == 0;
	Py_XDECREF(reasons);
	if (!fine)
		Py_CLEAR(dict);
	return dict;
}

static PyObject *door_stats(PyObject *self, PyObject *none)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	struct kvof_cache_stat stat;
	int rc;

	if (cache == NULL)
		return NULL;
	door->inside++;
	Py_BEGIN_ALLOW_THREADS
	rc = kvof_cache_stat(cache, &stat);
	Py_END_ALLOW_THREADS
	door->inside--;
	return rc == 0 ? stat_dict(&stat) : raise_errno(rc, "");
}

static PyObject *door_fd(PyObject *self, void *closure)
{
	struct kvof_cache *cache = door_cache((struct door *)self);
	int fd;

	if (cache == NULL)
		return NULL;
	fd = kvof_cache_fd(cache);
	return fd >= 0 ? PyLong_FromLong(fd) : raise_errno(fd, "");
}

static PyObject *door_closed(PyObject *self, void *closure)
{
	struct door *door = (struct door *)self;

	return PyBool_FromLong(door->cache == NULL || door->closed);
}

/* --- the module ------------------------------------------------------------------------------- */

static PyMethodDef door_methods[] = {
	{"_keys", door_keys, METH_VARARGS, "(int32 buffer, parent or None) -> list of bytes"},
	{"key_of", door_key_of, METH_O,
	 "Key (32 bytes) from an engine's own hash: any bytes, framed with the model's identity."},
	{"_match", door_match, METH_VARARGS, "(keys, deadline_ns) -> int"},
	{"unlease", door_unlease, METH_O, "Gives the lease of match() back early."},
	{"_submit", door_submit, METH_VARARGS, "(op, keys, buffers, deadline_ns) -> batch"},
	{"_wait", door_wait, METH_VARARGS, "(op, keys, buffers, deadline_ns) -> list of Result"},
	{"_drain", door_drain, METH_VARARGS, "(timeout_ms) -> list of Result"},
	{"cancel", door_cancel, METH_VARARGS,
	 "Ends every block of the batch (0: of all) without a result with reason 'canceled'."},
	{"stats", door_stats, METH_NOARGS, "Counters since open, as a dict."},
	{"close", door_close, METH_NOARGS,
	 "Ends everything in flight. Afterwards no leased buffer is touched. Twice is fine."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef door_getset[] = {
	{"fd", door_fd, NULL, "Descriptor that is readable while results wait for drain().", NULL},
	{"closed", door_closed, NULL, "bool", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot door_slots[] = {
	{Py_tp_init, door_init},
	{Py_tp_dealloc, door_dealloc},
	{Py_tp_methods, door_methods},
	{Py_tp_getset, door_getset},
	{0, NULL},
};

static PyType_Spec door_spec = {
	.name = "kvof._kvof.Cache",
	.basicsize = sizeof(struct door),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = door_slots,
};

static int module_fill(PyObject *module)
{
	PyObject *bases = PyTuple_Pack(2, PyExc_OSError, PyExc_ValueError);
	PyObject *type = PyType_FromSpec(&door_spec);

	result_type = (PyObject *)PyStructSequence_NewType(&result_desc);
	if (bases != NULL)
		refused_type = PyErr_NewExceptionWithDoc("kvof.Refused",
			"The options, the model or the domains in use do not fit; the text says "
			"what differs.", bases, NULL);
	Py_XDECREF(bases);
	if (type == NULL || result_type == NULL || refused_type == NULL)
		return -1;
	if (PyModule_AddObjectRef(module, "Cache", type) != 0 ||
	    PyModule_AddObjectRef(module, "Result", result_type) != 0 ||
	    PyModule_AddObjectRef(module, "Refused", refused_type) != 0)
		return -1;
	Py_DECREF(type);
	return PyModule_AddIntConstant(module, "LOAD", KVOF_LOAD) != 0 ||
	       PyModule_AddIntConstant(module, "SAVE", KVOF_SAVE) != 0 ||
	       PyModule_AddIntConstant(module, "EXISTS", KVOF_EXISTS_OP) != 0 ||
	       PyModule_AddIntConstant(module, "DELETE", KVOF_DELETE) != 0 ? -1 : 0;
}

static struct PyModuleDef module_def = {
	PyModuleDef_HEAD_INIT, "_kvof", "libkvof, without logic; use kvof.Cache.", -1,
	NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kvof(void);
PyMODINIT_FUNC PyInit__kvof(void)
{
	PyObject *module = PyModule_Create(&module_def);

	if (module != NULL && module_fill(module) != 0)
		Py_CLEAR(module);
	return module;
}
