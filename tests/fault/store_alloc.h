/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator of a store or a cache that is built to be refused its n-th request for memory. */
#ifndef KVOF_TESTS_FAULT_STORE_ALLOC_H
#define KVOF_TESTS_FAULT_STORE_ALLOC_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "loop/loop.h"

static unsigned long fail_at, asked;                 /* fail_at 0: never */

void *fault_malloc(size_t bytes);
void *fault_calloc(size_t n, size_t bytes);
void *fault_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *fault_buffer_map(uint64_t bytes);

static bool refuse(void)
{
	return ++asked == fail_at;
}

void *fault_malloc(size_t bytes)
{
	return refuse() ? NULL : malloc(bytes);
}

void *fault_calloc(size_t n, size_t bytes)
{
	return refuse() ? NULL : calloc(n, bytes);
}

void *fault_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	return refuse() ? MAP_FAILED : mmap(at, bytes, protection, flags, fd, offset);
}

void *fault_buffer_map(uint64_t bytes)
{
	return refuse() ? NULL : loop_buffer_map(bytes);
}

#endif
