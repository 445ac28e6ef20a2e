/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of bytes.h that are not worth inlining. Pure; any thread. */
#include "base/bytes.h"

bool bytes_all_zero(const void *at, size_t bytes)
{
	const uint8_t *b = at;
	uint8_t any = 0;

	for (size_t i = 0; i < bytes; i++)
		any |= b[i];
	return any == 0;
}
