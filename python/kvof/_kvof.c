/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python's door to libkvof: arguments in, results out, no logic. _kvof.h says what holds for memory
 * and threads.
 */
#include "_kvof.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define DRAIN_MAX 256

PyObject *result_type, *refused_type;

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
	{"layer", "bool: not of a block: layer .index of .bytes blocks of a restore is there"},
	{"request", "bool: a restore is over; .bytes blocks of it are usable"},
	{"step", "bool: a restore whose next() said 'wait' has something else to say"},
	{NULL, NULL},
};

static PyStructSequence_Desc result_desc = {
	"kvof.Result", "What became of one block of a batch, or a layer or the whole of a restore.",
	result_fields, 14,
};

static PyObject *result_make(const struct kvof_result *r)
{
	bool released = (r->flags & KVOF_RESULT_RELEASED) != 0;
	bool ok = !released && (r->reason == KVOF_OK || r->reason == KVOF_EXISTS);
	PyObject *item[14] = {
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
		PyBool_FromLong((r->flags & KVOF_RESULT_LAYER) != 0),
		PyBool_FromLong((r->flags & KVOF_RESULT_REQUEST) != 0),
		PyBool_FromLong((r->flags & KVOF_RESULT_STEP) != 0),
	};
	PyObject *out = PyStructSequence_New((PyTypeObject *)result_type);

	for (int i = 0; i < 14; i++) {
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

/* --- open and close --------------------------------------------------------------------------- */

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

/* (fields, options): [(name, value), ...] of the model, and a dict */
static int door_init(PyObject *self, PyObject *args, PyObject *kw)
{
	struct door *door = (struct door *)self;
	struct kvof_cache_opts opts;
	struct options_room *room;
	PyObject *fields, *options;
	int rc;

	if (door->cache != NULL) {
		PyErr_SetString(PyExc_RuntimeError, "the cache is open already");
		return -1;
	}
	if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &fields, &PyDict_Type, &options))
		return -1;
	room = PyMem_Calloc(1, sizeof(*room));
	if (room == NULL) {
		PyErr_NoMemory();
		return -1;
	}
	rc = options_from(fields, options, room, &opts);
	if (rc == 0)
		rc = door_open(door, &opts);
	PyMem_Free(room);
	return rc;
}

static void early_drop(struct door *door)
{
	while (door->early != NULL) {
		struct early *e = door->early;

		door->early = e->next;
		PyMem_Free(e);
	}
}

static void door_drop_leases(struct door *door)
{
	while (door->restores != NULL) {
		struct lease *lease = door->restores;

		door->restores = lease->next;
		lease_free(lease);
	}
	while (door->leases != NULL) {
		struct lease *lease = door->leases;

		door->leases = lease->next;
		lease_free(lease);
	}
	early_drop(door);
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

/* One name of an engine: str (as UTF-8) or bytes. */
static int name_id(struct kvof_cache *cache, PyObject *name, struct kvof_id *out)
{
	const char *text;
	Py_ssize_t bytes;
	Py_buffer view;
	int rc;

	if (PyUnicode_Check(name)) {
		text = PyUnicode_AsUTF8AndSize(name, &bytes);
		if (text == NULL)
			return -1;
		rc = kvof_cache_id_of(cache, text, (size_t)bytes, out);
	} else {
		if (PyObject_GetBuffer(name, &view, PyBUF_SIMPLE) != 0)
			return -1;
		rc = kvof_cache_id_of(cache, view.buf, (size_t)view.len, out);
		PyBuffer_Release(&view);
	}
	if (rc != 0)
		raise_errno(rc, "");
	return rc;
}

static PyObject *door_keys_of(PyObject *self, PyObject *names)
{
	struct kvof_cache *cache = door_cache((struct door *)self);
	Py_ssize_t n = cache != NULL ? PySequence_Size(names) : -1;
	PyObject *list = n >= 0 ? PyList_New(n) : NULL;

	for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
		PyObject *name = PySequence_GetItem(names, i), *key = NULL;
		struct kvof_id id;

		if (name != NULL && name_id(cache, name, &id) == 0)
			key = PyBytes_FromStringAndSize((const char *)id.byte, KVOF_ID_BYTES);
		Py_XDECREF(name);
		if (key == NULL)
			Py_CLEAR(list);
		else
			PyList_SetItem(list, i, key);
	}
	return list;
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

/* _submit(op, keys, buffers or None, deadline_ns, flags) */
static PyObject *door_submit(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	uint64_t deadline_ns;
	PyObject *keys, *buffers;
	uint64_t batch = 0;
	uint32_t flags = 0;
	struct blocks b;
	int op, rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "iOOO&|O&", &op, &keys, &buffers, u64_from,
					       &deadline_ns, u32_from, &flags))
		return NULL;
	if (blocks_from(&b, op, keys, buffers) != 0)
		return NULL;
	/* never waits: the GIL stays, so no result is drained before the lease is known */
	rc = flags == 0 ? kvof_cache_submit(cache, (enum kvof_op)op, b.block, (uint32_t)b.count,
					    deadline_ns, &batch) :
	     kvof_cache_submit_flags(cache, (enum kvof_op)op, b.block, (uint32_t)b.count,
				     deadline_ns, flags, &batch);
	if (rc == 0 && b.lease != NULL) {
		b.lease->batch = batch;
		lease_add(door, b.lease);
		b.lease = NULL;
	}
	blocks_free(&b);
	return rc == 0 ? PyLong_FromUnsignedLongLong(batch) :
	       raise_errno(rc, rc == -EBUSY ? "too much in flight: drain() first" :
			   rc == -EINVAL ? "no blocks, too many, or an idle flag" : "");
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
	door->waiting++;
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
	if (--door->waiting == 0)
		early_drop(door);          /* nobody is left whose they could be */
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
		if (!lease_end(door, results[i].batch, 1) && door->waiting > 0 &&
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

/* One number a tier: name_dram, name_remote, name_flash. */
static int tiers_set(PyObject *dict, const char *name, const uint64_t value[KVOF_TIER_COUNT])
{
	char text[64];

	for (int i = KVOF_TIER_DRAM; i < KVOF_TIER_COUNT; i++) {
		snprintf(text, sizeof(text), "%s_%s", name, kvof_tier_name((enum kvof_tier)i));
		if (dict_set(dict, text, value[i]) != 0)
			return -1;
	}
	return 0;
}

static int reasons_set(PyObject *dict, const char *name, const uint64_t value[16])
{
	PyObject *reasons = PyDict_New();
	int rc = reasons != NULL ? 0 : -1;

	for (int i = 0; rc == 0 && i < KVOF_REASON_COUNT; i++)
		rc = dict_set(reasons, kvof_reason_name((enum kvof_reason)i), value[i]);
	if (rc == 0)
		rc = PyDict_SetItemString(dict, name, reasons);
	Py_XDECREF(reasons);
	return rc;
}

#define ROW(name) {#name, offsetof(struct kvof_cache_stat, name)}

static PyObject *stat_dict(const struct kvof_cache_stat *s)
{
	static const struct {
		const char *name;
		size_t at;
	} one[] = {
		ROW(misses), ROW(saved_bytes), ROW(dram_used_bytes), ROW(dram_blocks),
		ROW(dram_pinned_bytes), ROW(wait_ns), ROW(verify_ns), ROW(remote_reconnects),
		ROW(remote_live), ROW(remote_count), ROW(late_releases), ROW(dram_evicted),
		ROW(dram_refused), ROW(flash_used_bytes), ROW(flash_blocks), ROW(flash_evicted),
		ROW(behind_bytes), ROW(behind_blocks), ROW(behind_full), ROW(touches),
		ROW(touches_absent), ROW(touches_dropped), ROW(prefetched), ROW(prefetched_hits),
		ROW(prefetched_wasted), ROW(staging_bytes), ROW(staging_waits), ROW(restores),
		ROW(restores_late), ROW(index_blocks), ROW(index_forgotten), ROW(match_known),
		ROW(match_asked), ROW(presence_wrong), ROW(pinned_blocks), ROW(expired),
		ROW(events_lost), ROW(pinned_flash_bytes), ROW(pins_refused), ROW(pins_lost),
	}, each[] = {
		ROW(hits), ROW(loaded_bytes), ROW(device_bytes), ROW(promoted),
		ROW(promotion_refused), ROW(admission_refused), ROW(behind_written),
		ROW(behind_dropped),
	};
	PyObject *dict = PyDict_New();
	bool fine = dict != NULL;
	char text[64];

	for (size_t i = 0; fine && i < sizeof(one) / sizeof(one[0]); i++)
		fine = dict_set(dict, one[i].name,
				*(const uint64_t *)((const char *)s + one[i].at)) == 0;
	for (size_t i = 0; fine && i < sizeof(each) / sizeof(each[0]); i++)
		fine = tiers_set(dict, each[i].name,
				 (const uint64_t *)((const char *)s + each[i].at)) == 0;
	fine = fine && reasons_set(dict, "reasons", s->reason) == 0;
	for (int i = KVOF_TIER_DRAM; fine && i < KVOF_TIER_COUNT; i++) {
		snprintf(text, sizeof(text), "reasons_%s", kvof_tier_name((enum kvof_tier)i));
		fine = reasons_set(dict, text, s->tier_reason[i]) == 0;
	}
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
	{"keys_of", door_keys_of, METH_O,
	 "key_of() of each name in a sequence: str (as UTF-8) or bytes. Returns a list."},
	{"_match", door_match, METH_VARARGS, "(keys, deadline_ns) -> int"},
	{"_match_groups", door_match_groups, METH_VARARGS,
	 "([(keys, window_blocks), ...], deadline_ns) -> int"},
	{"_pin", door_pin, METH_VARARGS, "(keys, on)"},
	{"_hint", door_hint, METH_VARARGS, "(keys, priority, ttl_ns)"},
	{"_flush", door_flush, METH_VARARGS, "(deadline_ns)"},
	{"_events", door_events_take, METH_NOARGS, "() -> ([(key, tier, stored), ...], lost)"},
	{"_restore_begin", door_restore_begin, METH_VARARGS,
	 "(keys, buffers, mode, flags, suffix_tokens, deadline_ns, tokens_per_s, slope, priority, "
	 "step_blocks) -> request"},
	{"_restore_next", door_restore_next, METH_VARARGS,
	 "(request, wait_ns) -> (act, first, count, usable)"},
	{"_restore_computed", door_restore_computed, METH_VARARGS, "(request, first, count, ns)"},
	{"_restore_end", door_restore_end, METH_VARARGS, "(request) -> dict"},
	{"_prefetch", door_prefetch, METH_VARARGS, "(keys, by_ns) -> request"},
	{"unlease", door_unlease, METH_O, "Gives the lease of match() back early."},
	{"_submit", door_submit, METH_VARARGS,
	 "(op, keys, buffers, deadline_ns, flags=0) -> batch"},
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

static int numbers_add(PyObject *module)
{
	static const struct {
		const char *name;
		long value;
	} row[] = {
		{"LOAD", KVOF_LOAD}, {"SAVE", KVOF_SAVE}, {"EXISTS", KVOF_EXISTS_OP},
		{"DELETE", KVOF_DELETE}, {"UNORDERED", KVOF_UNORDERED},
		{"SKIP_READ", KVOF_SKIP_READ}, {"SKIP_WRITE", KVOF_SKIP_WRITE},
		{"WAIT_ALL", KVOF_WAIT_ALL}, {"RESTORE_PREFIX", KVOF_RESTORE_PREFIX},
		{"RESTORE_ENDS", KVOF_RESTORE_ENDS},
		{"RESTORE_LOAD_ALL", KVOF_RESTORE_LOAD_ALL},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		if (PyModule_AddIntConstant(module, row[i].name, row[i].value) != 0)
			return -1;
	return 0;
}

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
	return numbers_add(module);
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
