/* SPDX-License-Identifier: Apache-2.0 */
/* NAME=NUMBER on the command line of a bench. */
#ifndef KVOF_TESTS_BENCH_ARGS_H
#define KVOF_TESTS_BENCH_ARGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool number(const char *arg, const char *name, uint64_t *out)
{
	size_t bytes = strlen(name);

	if (strncmp(arg, name, bytes) != 0 || arg[bytes] != '=')
		return false;
	*out = strtoull(arg + bytes + 1, NULL, 0);
	return true;
}

#endif
