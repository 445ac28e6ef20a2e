/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test is a sentence: TEST(append_to_a_full_segment_returns_enospc) { ... }. Tests register
 * themselves and run under cmocka in the order of the file; output is TAP, one line a test.
 */
#ifndef KVOF_TESTS_UNIT_KT_H
#define KVOF_TESTS_UNIT_KT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void kt_register(const char *name, void (*run)(void **state));

#define TEST(name)                                                                                 \
	static void name(void **state);                                                            \
	__attribute__((constructor)) static void kt_reg_##name(void)                               \
	{                                                                                          \
		kt_register(#name, name);                                                          \
	}                                                                                          \
	static void name(__attribute__((unused)) void **state)

/* Fills outputs with noise before a call, so that an answer left unwritten shows. */
static inline void kt_noise(void *out, size_t bytes)
{
	unsigned char *at = out;

	for (size_t i = 0; i < bytes; i++)
		at[i] = (unsigned char)(0xa5 ^ i * 131);
}

#define expect(x) assert_true(x)
#define expect_int(got, want) assert_int_equal((long long)(got), (long long)(want))
#define expect_mem(got, want, bytes) assert_memory_equal(got, want, bytes)
#define expect_str(got, want) assert_string_equal(got, want)
#define skip_because(...)                                                                          \
	do {                                                                                       \
		printf("# skip: " __VA_ARGS__);                                                    \
		printf("\n");                                                                      \
		skip();                                                                            \
	} while (0)

#endif
