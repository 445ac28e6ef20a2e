/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when an assertion fails: one line on standard error, then abort. Any thread. */
#include "base/must.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void must_failed(const char *file, int line, const char *what)
{
	fprintf(stderr, "kvof: %s:%d: must hold: %s\n", file, line, what);
	abort();
}
