/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of bytes.h that are not worth inlining. Pure; any thread. */
#include "base/bytes.h"

#include "base/must.h"

bool bytes_all_zero(const void *at, size_t bytes)
{
	const uint8_t *b = at;
	uint8_t any = 0;

	for (size_t i = 0; i < bytes; i++)
		any |= b[i];
	return any == 0;
}

size_t bytes_utf8(const uint8_t *at, size_t left)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t bytes = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 :
		       at[0] < 0xf5 ? 4 : 0;
	uint32_t code = bytes < 2 ? at[0] : at[0] & (0x7fu >> bytes);

	must(left >= 1 && bytes < ARRAY_COUNT(least));
	if (bytes > left)
		return 0;
	for (size_t i = 1; i < bytes; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (at[i] & 0x3fu);
	}
	return code < least[bytes] || code > 0x10ffff || code >> 11 == 0x1b ? 0 : bytes;
}
