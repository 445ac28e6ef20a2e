/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions that stay on, object tags, and the few macros that everything uses.
 *
 * must(x) is code: it is compiled in always and aborts with the place and the expression.
 * must_slow(x) is checked only where KVOF_SLOW_CHECKS is defined (simulation and audit builds).
 * Bytes from outside (peer, disk, file, user) are never asserted, only checked.
 */
#ifndef KVOF_BASE_MUST_H
#define KVOF_BASE_MUST_H

#include <stddef.h>
#include <stdint.h>

_Noreturn void must_failed(const char *file, int line, const char *what);

#define must(x) ((x) ? (void)0 : must_failed(__FILE__, __LINE__, #x))

#ifdef KVOF_SLOW_CHECKS
#define must_slow(x) must(x)
#else
#define must_slow(x) ((void)sizeof(x))
#endif

/* A long-lived object starts with `uint32_t magic`; OBJ_TAKE empties the caller's pointer. */
#define OBJ_INIT(obj, m) ((obj)->magic = (m))
#define OBJ_CHECK(obj, m) (must((obj) != NULL), must((obj)->magic == (m)))
#define OBJ_TAKE(to, from, m)                                                                      \
	do {                                                                                       \
		must((from) != NULL);                                                              \
		(to) = *(from);                                                                    \
		*(from) = NULL;                                                                    \
		OBJ_CHECK(to, m);                                                                  \
	} while (0)

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))
#define ARRAY_COUNT(a) (sizeof(a) / sizeof((a)[0]))

#define KiB (UINT64_C(1) << 10)
#define MiB (UINT64_C(1) << 20)
#define GiB (UINT64_C(1) << 30)
#define TiB (UINT64_C(1) << 40)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

#endif
