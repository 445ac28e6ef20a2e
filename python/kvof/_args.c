/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments of the extension's methods, and the leases of the memory they name.
 */
#include "_kvof.h"

#include <errno.h>
#include <string.h>

/* --- errors ----------------------------------------------------------------------------------- */

/* errno becomes the matching subclass of OSError; -EINVAL is a ValueError. */
PyObject *raise_errno(int rc, const char *what)
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

PyObject *raise_open(int rc, const char *why)
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
struct kvof_cache *door_cache(struct door *door)
{
	if (door->cache == NULL || door->closed) {
		raise_errno(-ESHUTDOWN, "the cache is closed");
		return NULL;
	}
	return door->cache;
}

/* --- leases ----------------------------------------------------------------------------------- */

void lease_free(struct lease *lease)
{
	for (Py_ssize_t i = 0; i < lease->view_count; i++)
		PyBuffer_Release(&lease->view[i]);
	PyMem_Free(lease);
}

/* n blocks of a batch are not touched any more. False: the batch is not known (yet). */
bool lease_end(struct door *door, uint64_t batch, uint32_t n)
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

void early_add(struct door *door, uint64_t batch)
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
void lease_add(struct door *door, struct lease *lease)
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

/* --- arguments -------------------------------------------------------------------------------- */

int id_from(PyObject *key, struct kvof_id *out)
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

int u32_from(PyObject *number, void *out)
{
	unsigned long long value;

	if (!number_from(number, UINT32_MAX, &value))
		return 0;
	*(uint32_t *)out = (uint32_t)value;
	return 1;
}

int u64_from(PyObject *number, void *out)
{
	unsigned long long value;

	if (!number_from(number, UINT64_MAX, &value))
		return 0;
	*(uint64_t *)out = value;
	return 1;
}

/* A sequence of keys. Return: ids to be freed, or NULL with an exception. */
struct kvof_id *ids_from(PyObject *keys, Py_ssize_t *count)
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

void blocks_free(struct blocks *b)
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

int blocks_from(struct blocks *b, int op, PyObject *keys, PyObject *buffers)
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
