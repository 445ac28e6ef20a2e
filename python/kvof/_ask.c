/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What asks and tells about blocks: groups, pins, hints, flush, events.
 */
#include "_kvof.h"

#include <errno.h>

/* [(keys, window_blocks), ...]: rows of equal length. Return: 0; -1 with an exception. */
static int groups_from(PyObject *list, struct kvof_group *group, uint32_t *n_blocks)
{
	Py_ssize_t n = PyList_Size(list), keys_count = 0;

	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *pair = PyList_GetItem(list, i), *keys, *window;
		Py_ssize_t count;

		keys = PyTuple_GetItem(pair, 0);
		window = keys != NULL ? PyTuple_GetItem(pair, 1) : NULL;
		if (window == NULL || !u32_from(window, &group[i].window_blocks))
			return -1;
		group[i].ids = ids_from(keys, &count);
		if (group[i].ids == NULL)
			return -1;
		if (i > 0 && count != keys_count) {
			PyErr_SetString(PyExc_ValueError, "every group has as many keys");
			return -1;
		}
		keys_count = count;
	}
	*n_blocks = (uint32_t)keys_count;
	return 0;
}

PyObject *door_match_groups(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	struct kvof_group group[KVOF_GROUPS_MAX] = {{NULL, 0, 0}};
	uint32_t n_blocks = 0, found = 0;
	uint64_t deadline_ns;
	PyObject *list;
	int rc = -1;

	if (cache == NULL || !PyArg_ParseTuple(args, "O!O&", &PyList_Type, &list, u64_from,
					       &deadline_ns))
		return NULL;
	if (PyList_Size(list) < 1 || PyList_Size(list) > KVOF_GROUPS_MAX)
		return raise_errno(-EINVAL, "there are 1 to 16 groups");
	if (groups_from(list, group, &n_blocks) == 0) {
		DOOR_WAIT_BEGIN(door)
		rc = kvof_cache_match_groups(cache, group, (uint32_t)PyList_Size(list), n_blocks,
					     deadline_ns, &found);
		DOOR_WAIT_END(door);
		if (rc != 0)
			raise_errno(rc, "");
	}
	for (int i = 0; i < KVOF_GROUPS_MAX; i++)
		PyMem_Free((void *)(uintptr_t)group[i].ids);
	return rc == 0 ? PyLong_FromUnsignedLong(found) : NULL;
}

PyObject *door_pin(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	struct kvof_id *ids;
	PyObject *keys;
	Py_ssize_t n;
	int on, rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "Op", &keys, &on))
		return NULL;
	ids = ids_from(keys, &n);
	if (ids == NULL)
		return NULL;
	DOOR_WAIT_BEGIN(door)
	rc = kvof_cache_pin(cache, ids, (uint32_t)n, on);
	DOOR_WAIT_END(door);
	PyMem_Free(ids);
	if (rc != 0)
		return raise_errno(rc, rc == -EBUSY ? "too many blocks are pinned" :
				   "too many keys, or one that is not pinned");
	Py_RETURN_NONE;
}

PyObject *door_hint(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	struct kvof_hint hint = {.struct_bytes = sizeof(hint)};
	struct kvof_id *ids;
	PyObject *keys;
	Py_ssize_t n;
	int rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "OiO&", &keys, &hint.priority, u64_from,
					       &hint.ttl_ns))
		return NULL;
	ids = ids_from(keys, &n);
	if (ids == NULL)
		return NULL;
	DOOR_WAIT_BEGIN(door)
	rc = kvof_cache_hint(cache, ids, (uint32_t)n, &hint);
	DOOR_WAIT_END(door);
	PyMem_Free(ids);
	if (rc != 0)
		return raise_errno(rc, rc == -EBUSY ? "too many blocks have an end" :
				   "too many keys, or a priority beyond -100 to 100");
	Py_RETURN_NONE;
}

PyObject *door_flush(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	uint64_t deadline_ns;
	int rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "O&", u64_from, &deadline_ns))
		return NULL;
	DOOR_WAIT_BEGIN(door)
	rc = kvof_cache_flush(cache, deadline_ns);
	DOOR_WAIT_END(door);
	if (rc != 0)
		return raise_errno(rc, "");
	Py_RETURN_NONE;
}

/* _events(): ([(key, tier, stored), ...], lost) */
PyObject *door_events_take(PyObject *self, PyObject *none)
{
	struct kvof_cache *cache = door_cache((struct door *)self);
	struct kvof_event event[256];
	PyObject *list, *out;
	uint64_t lost = 0;
	int n;

	if (cache == NULL)
		return NULL;
	n = kvof_cache_events(cache, event, 256, &lost);
	if (n < 0)
		return raise_errno(n, "no events are kept: open with events=N");
	list = PyList_New(n);
	for (int i = 0; list != NULL && i < n; i++) {
		PyObject *one = Py_BuildValue("(y#sO)", event[i].id.byte,
					      (Py_ssize_t)KVOF_ID_BYTES,
					      kvof_tier_name((enum kvof_tier)event[i].tier),
					      event[i].stored != 0 ? Py_True : Py_False);

		if (one == NULL)
			Py_CLEAR(list);
		else
			PyList_SetItem(list, i, one);
	}
	if (list == NULL)
		return NULL;
	out = Py_BuildValue("(NK)", list, (unsigned long long)lost);
	return out;
}
