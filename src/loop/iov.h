/* SPDX-License-Identifier: Apache-2.0 */
/* A place in a list of buffers that are not changed: how both loops walk what the caller leased. */
#ifndef KVOF_LOOP_IOV_H
#define KVOF_LOOP_IOV_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "base/must.h"

struct iov_at {
	const struct iovec *iov;     /* the piece the place is in */
	unsigned count;              /* pieces from there on */
	uint32_t pad;
	size_t into;                 /* bytes of the first piece that are behind */
};

static inline struct iov_at iov_at_start(const struct iovec *iov, unsigned count)
{
	return (struct iov_at){.iov = iov, .count = count};
}

static inline uint64_t iov_bytes(const struct iovec *iov, unsigned count)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < count; i++)
		bytes += iov[i].iov_len;
	return bytes;
}

/* The bytes at hand without a gap; skips empty pieces. *base is their address. */
static inline size_t iov_at_piece(struct iov_at *at, uint8_t **base)
{
	while (at->count > 0 && at->into == at->iov->iov_len) {
		at->iov++;
		at->count--;
		at->into = 0;
	}
	if (at->count == 0)
		return 0;
	*base = (uint8_t *)at->iov->iov_base + at->into;
	return at->iov->iov_len - at->into;
}

static inline void iov_at_skip(struct iov_at *at, size_t bytes)
{
	uint8_t *base;

	while (bytes > 0) {
		size_t piece = iov_at_piece(at, &base);
		size_t step = piece < bytes ? piece : bytes;

		must(piece > 0);
		at->into += step;
		bytes -= step;
	}
}

static inline void iov_at_put(struct iov_at *at, const void *from, size_t bytes)
{
	const uint8_t *src = from;
	uint8_t *base;

	while (bytes > 0) {
		size_t piece = iov_at_piece(at, &base);
		size_t step = piece < bytes ? piece : bytes;

		must(piece > 0);
		memcpy(base, src, step);
		at->into += step;
		src += step;
		bytes -= step;
	}
}

static inline void iov_at_take(struct iov_at *at, void *to, size_t bytes)
{
	uint8_t *dst = to, *base;

	while (bytes > 0) {
		size_t piece = iov_at_piece(at, &base);
		size_t step = piece < bytes ? piece : bytes;

		must(piece > 0);
		memcpy(dst, base, step);
		at->into += step;
		dst += step;
		bytes -= step;
	}
}

#endif
