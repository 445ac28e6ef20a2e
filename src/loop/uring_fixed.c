/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: files and memory that the kernel knows beforehand, so that a transfer need not look the
 * file up nor pin the pages of its buffer.
 *
 * Theory: a ring has a table of files and one of buffers, made empty. A drive takes a place in the
 * first, a piece of pool memory one in the second (in pieces of at most 1 GiB, which is the
 * kernel's limit). A transfer names the place where both are there and its bytes lie in one piece;
 * else it goes the common way. What is registered counts as locked memory: where that is refused,
 * or the kernel knows no such tables, everything goes the common way, and that is told once.
 *
 * Registering is for the ring's own thread. Taking back by another one, after the loop has stopped,
 * is refused by the kernel and harmless: the place is not used again, and goes with the ring.
 *
 * Invariants: a place that is in use here is in use in the kernel; a new ring gets all of them.
 *
 * Thread: the loop's own.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "loop/ring.h"

static atomic_bool told;

static void tell_once(const char *what, int err)
{
	if (!atomic_exchange(&told, true))
		log_notice("io_uring: %s can't be registered beforehand (%s) and are used as they "
			   "are; transfers cost a little more time. Locked memory is limited by "
			   "RLIMIT_MEMLOCK", what, strerror(err));
}

static bool file_set(struct loop *l, unsigned place, int fd)
{
	return io_uring_register_files_update(&l->ring, place, &fd, 1) == 1;
}

static int buffer_set(struct loop *l, unsigned place, const struct iovec *iov)
{
	__u64 tag = 0;
	int rc = io_uring_register_buffers_update_tag(&l->ring, place, iov, &tag, 1);

	return rc == 1 ? 0 : rc < 0 ? rc : -EINVAL;
}

/* A new ring: tables, and what was in those of the one before. */
void uring_fixed_begin(struct loop *l)
{
	struct ring_fixed *f = &l->fixed;
	int rc = io_uring_register_files_sparse(&l->ring, RING_FILES_MAX);

	f->files_on = rc == 0;
	if (rc != 0)
		tell_once("files", -rc);
	rc = io_uring_register_buffers_sparse(&l->ring, RING_BUFFERS_MAX);
	f->buffers_on = rc == 0;
	if (rc != 0)
		tell_once("buffers", -rc);
	for (unsigned i = 0; i < RING_FILES_MAX && f->files_on; i++) {
		if (f->file_used[i] && !file_set(l, i, f->file[i]))
			f->files_on = false;
	}
	for (unsigned i = 0; i < RING_BUFFERS_MAX && f->buffers_on; i++) {
		if (f->buffer[i].iov_len > 0 && buffer_set(l, i, &f->buffer[i]) != 0)
			f->buffers_on = false;
	}
}

int uring_file_add(struct loop *l, int fd)
{
	struct ring_fixed *f = &l->fixed;

	must(fd >= 0);
	for (unsigned i = 0; f->files_on && i < RING_FILES_MAX; i++) {
		if (f->file_used[i])
			continue;
		if (!file_set(l, i, fd))
			return RING_FIXED_NONE;
		f->file_used[i] = true;
		f->file[i] = fd;
		return (int)i;
	}
	return RING_FIXED_NONE;
}

void uring_file_remove(struct loop *l, int place)
{
	must(place >= 0 && (unsigned)place < RING_FILES_MAX && l->fixed.file_used[place]);
	l->fixed.file_used[place] = !file_set(l, (unsigned)place, -1);
}

/* The place of a buffer that holds all of these bytes, or RING_FIXED_NONE. */
int ring_buffer_find(const struct loop *l, const void *at, uint64_t bytes)
{
	const struct ring_fixed *f = &l->fixed;

	for (unsigned i = 0; f->buffers_on && i < f->buffers_end; i++) {
		uintptr_t base = (uintptr_t)f->buffer[i].iov_base;

		if ((uintptr_t)at >= base && bytes <= f->buffer[i].iov_len &&
		    (uintptr_t)at - base <= f->buffer[i].iov_len - bytes)
			return (int)i;
	}
	return RING_FIXED_NONE;
}

static int buffer_add(struct loop *l, struct iovec iov)
{
	struct ring_fixed *f = &l->fixed;

	for (unsigned i = 0; i < RING_BUFFERS_MAX; i++) {
		int rc;

		if (f->buffer[i].iov_len > 0)
			continue;
		rc = buffer_set(l, i, &iov);
		if (rc != 0)
			return rc;
		f->buffer[i] = iov;
		if (i >= f->buffers_end)
			f->buffers_end = i + 1;
		return 0;
	}
	return -ENOBUFS;
}

void loop_buffer_register(struct loop *loop, void *at, uint64_t bytes)
{
	uint8_t *from = at;

	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	loop_must_own(loop);
	must(at != NULL && bytes > 0);
	while (bytes > 0 && loop->fixed.buffers_on) {
		uint64_t piece = bytes_min(bytes, GiB);
		int rc = buffer_add(loop, (struct iovec){from, piece});

		if (rc != 0 && rc != -ENOBUFS)
			tell_once("buffers", -rc);
		if (rc != 0)
			return;
		from += piece;
		bytes -= piece;
	}
}

void loop_buffer_unregister(struct loop *loop, const void *at, uint64_t bytes)
{
	struct ring_fixed *f = &loop->fixed;
	struct iovec none = {NULL, 0};

	OBJ_CHECK(loop, RING_LOOP_MAGIC);
	loop_must_own(loop);
	for (unsigned i = 0; i < f->buffers_end; i++) {
		uintptr_t base = (uintptr_t)f->buffer[i].iov_base;

		if (f->buffer[i].iov_len == 0 || base < (uintptr_t)at ||
		    base - (uintptr_t)at >= bytes)
			continue;
		if (buffer_set(loop, i, &none) == 0)
			f->buffer[i] = none;
		else
			/* its place is lost, and nobody may find it */
			f->buffers_on = false;
	}
}
