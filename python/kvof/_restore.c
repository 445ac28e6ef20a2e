/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores, and prefetch. The buffers of a restore are leased from its begin to its end.
 */
#include "_kvof.h"

#include <errno.h>

/* The lease of a restore, taken off the list; NULL: there is no such request (any more). */
static struct lease *restore_take(struct door *door, uint64_t request)
{
	for (struct lease **at = &door->restores; *at != NULL; at = &(*at)->next) {
		struct lease *lease = *at;

		if (lease->batch != request)
			continue;
		*at = lease->next;
		return lease;
	}
	return NULL;
}

/* (keys, buffers, mode, flags, suffix_tokens, deadline_ns, tokens_per_s, slope, priority, step) */
PyObject *door_restore_begin(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts)};
	PyObject *keys, *buffers;
	uint64_t request = 0;
	struct blocks b;
	int rc;

	if (cache == NULL ||
	    !PyArg_ParseTuple(args, "OOO&O&O&O&ddiO&", &keys, &buffers, u32_from, &opts.mode,
			      u32_from, &opts.flags, u32_from, &opts.suffix_tokens, u64_from,
			      &opts.deadline_ns, &opts.prefill_tokens_per_s, &opts.prefill_slope,
			      &opts.priority, u32_from, &opts.step_blocks))
		return NULL;
	if (blocks_from(&b, KVOF_LOAD, keys, buffers) != 0)
		return NULL;
	rc = kvof_restore_begin(cache, b.block, (uint32_t)b.count, &opts, &request);
	if (rc == 0) {
		b.lease->batch = request;
		b.lease->next = door->restores;
		door->restores = b.lease;
		b.lease = NULL;
	}
	blocks_free(&b);
	return rc == 0 ? PyLong_FromUnsignedLongLong(request) :
	       raise_errno(rc, rc == -EBUSY ? "too many requests, or too much to be drained" :
			   "no blocks, too many, or a wrong option");
}

/* (request, wait_ns): (act, first, count, usable) */
PyObject *door_restore_next(PyObject *self, PyObject *args)
{
	static const char *const act[] = {"wait", "compute", "done"};
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	struct kvof_restore_step step = {0};
	uint64_t request, wait_ns;
	int rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "O&O&", u64_from, &request, u64_from,
					       &wait_ns))
		return NULL;
	DOOR_WAIT_BEGIN(door)
	rc = kvof_restore_next(cache, request, wait_ns, &step);
	DOOR_WAIT_END(door);
	if (rc != 0)
		return raise_errno(rc, rc == -EINVAL ? "there is no such request" : "");
	return Py_BuildValue("(sIII)", act[step.act <= KVOF_STEP_DONE ? step.act : 0], step.first,
			     step.count, step.usable);
}

/* (request, first, count, ns) */
PyObject *door_restore_computed(PyObject *self, PyObject *args)
{
	struct kvof_cache *cache = door_cache((struct door *)self);
	uint64_t request, ns;
	uint32_t first, count;
	int rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "O&O&O&O&", u64_from, &request, u32_from,
					       &first, u32_from, &count, u64_from, &ns))
		return NULL;
	rc = kvof_restore_computed(cache, request, first, count, ns);
	if (rc != 0)
		return raise_errno(rc, rc == -EINVAL ? "no such request, or blocks beyond it" : "");
	Py_RETURN_NONE;
}

static int set(PyObject *dict, const char *name, PyObject *value)
{
	int rc = value != NULL ? PyDict_SetItemString(dict, name, value) : -1;

	Py_XDECREF(value);
	return rc;
}

static int set_number(PyObject *dict, const char *name, uint64_t value)
{
	return set(dict, name, PyLong_FromUnsignedLongLong(value));
}

static int set_tiers(PyObject *dict, const char *name, const uint64_t value[4])
{
	PyObject *tiers = PyDict_New();
	int rc = tiers != NULL ? 0 : -1;

	for (int i = KVOF_TIER_DRAM; rc == 0 && i < KVOF_TIER_COUNT; i++)
		rc = set_number(tiers, kvof_tier_name((enum kvof_tier)i), value[i]);
	if (rc == 0)
		rc = PyDict_SetItemString(dict, name, tiers);
	Py_XDECREF(tiers);
	return rc;
}

static int set_misses(PyObject *dict, const struct kvof_restore_trace *t)
{
	PyObject *reasons = PyDict_New(), *list = PyList_New(0);
	int rc = reasons != NULL && list != NULL ? 0 : -1;

	for (int i = 0; rc == 0 && i < KVOF_REASON_COUNT; i++)
		if (t->reasons[i] > 0)
			rc = set_number(reasons, kvof_reason_name((enum kvof_reason)i),
					t->reasons[i]);
	for (uint32_t i = 0; rc == 0 && i < t->miss_count && i < KVOF_RESTORE_MISSES; i++) {
		PyObject *miss = Py_BuildValue("(Iss)", t->miss[i].index,
			kvof_reason_name((enum kvof_reason)t->miss[i].reason),
			kvof_tier_name((enum kvof_tier)t->miss[i].tier));

		rc = miss != NULL ? PyList_Append(list, miss) : -1;
		Py_XDECREF(miss);
	}
	if (rc == 0)
		rc = PyDict_SetItemString(dict, "reasons", reasons);
	if (rc == 0)
		rc = PyDict_SetItemString(dict, "misses", list);
	Py_XDECREF(reasons);
	Py_XDECREF(list);
	return rc;
}

static PyObject *trace_dict(const struct kvof_restore_trace *t)
{
	const struct {
		const char *name;
		uint64_t value;
	} row[] = {
		{"blocks", t->blocks}, {"usable", t->usable}, {"loaded", t->loaded},
		{"computed", t->computed}, {"late", t->late}, {"split", t->split},
		{"begin_ns", t->begin_ns}, {"end_ns", t->end_ns},
		{"first_layer_ns", t->first_layer_ns}, {"staging_ns", t->staging_ns},
		{"queue_ns", t->queue_ns}, {"device_ns", t->device_ns},
		{"verify_ns", t->verify_ns}, {"wasted_bytes", t->wasted_bytes},
	};
	PyObject *dict = PyDict_New();
	int rc = dict != NULL ? 0 : -1;

	for (size_t i = 0; rc == 0 && i < sizeof(row) / sizeof(row[0]); i++)
		rc = set_number(dict, row[i].name, row[i].value);
	if (rc == 0)
		rc = set(dict, "reason",
			 PyUnicode_FromString(kvof_reason_name((enum kvof_reason)t->reason)));
	if (rc == 0)
		rc = set_tiers(dict, "bytes", t->bytes);
	if (rc == 0)
		rc = set_tiers(dict, "tier_blocks", t->block_count);
	if (rc == 0)
		rc = set_misses(dict, t);
	if (rc != 0)
		Py_CLEAR(dict);
	return dict;
}

/* (request): the trace */
PyObject *door_restore_end(PyObject *self, PyObject *args)
{
	struct door *door = (struct door *)self;
	struct kvof_cache *cache = door_cache(door);
	struct kvof_restore_trace trace = {.struct_bytes = sizeof(trace)};
	struct lease *lease;
	uint64_t request;
	int rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "O&", u64_from, &request))
		return NULL;
	DOOR_WAIT_BEGIN(door)
	rc = kvof_restore_end(cache, request, &trace);
	DOOR_WAIT_END(door);
	if (rc != 0)
		return raise_errno(rc, rc == -EINVAL ? "there is no such request" : "");
	lease = restore_take(door, request);
	if (lease != NULL)
		lease_free(lease);
	return trace_dict(&trace);
}

/* (keys, by_ns): the request, for cancel */
PyObject *door_prefetch(PyObject *self, PyObject *args)
{
	struct kvof_cache *cache = door_cache((struct door *)self);
	uint64_t by_ns, request = 0;
	struct kvof_id *ids;
	PyObject *keys;
	Py_ssize_t n;
	int rc;

	if (cache == NULL || !PyArg_ParseTuple(args, "OO&", &keys, u64_from, &by_ns))
		return NULL;
	ids = ids_from(keys, &n);
	if (ids == NULL)
		return NULL;
	rc = kvof_cache_prefetch(cache, ids, (uint32_t)n, by_ns, &request);
	PyMem_Free(ids);
	return rc == 0 ? PyLong_FromUnsignedLongLong(request) :
	       raise_errno(rc, rc == -EBUSY ? "too many hints" : "no keys, or no DRAM tier");
}
