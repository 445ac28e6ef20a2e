/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 is checked letter by letter; what is none is replaced in place, so nothing grows. */
#include "plan/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/must.h"

/* Bytes of a letter that begins so; 0: none does. */
static size_t letter_bytes(unsigned char first)
{
	if (first < 0x80)
		return 1;
	if (first < 0xc2 || first > 0xf4)
		return 0;
	return first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
}

/* Whether a letter of so many bytes is one, and drives no terminal. *cut: the text ends in it. */
static bool letter_plain(const unsigned char *text, size_t bytes, bool *cut)
{
	static const uint32_t least[5] = {0, ' ', 0xa0, 0x800, 0x10000};
	uint32_t letter = bytes == 1 ? text[0] : text[0] & (0x7fu >> bytes);

	for (size_t i = 1; i < bytes; i++) {
		if ((text[i] & 0xc0) != 0x80) {
			*cut = text[i] == 0;
			return false;
		}
		letter = letter << 6 | (text[i] & 0x3f);
	}
	return bytes > 0 && letter >= least[bytes] && letter <= 0x10ffff && letter != 127 &&
		!(letter >= 0xd800 && letter < 0xe000);
}

void plan_text_clean(char *text)
{
	while (*text != 0) {
		size_t bytes = letter_bytes((unsigned char)*text);
		bool cut = false;

		if (letter_plain((const unsigned char *)text, bytes, &cut)) {
			text += bytes;
			continue;
		}
		*text = cut ? 0 : '?';
		text += !cut;
	}
}

void plan_text_put(char *out, size_t room, const char *text)
{
	must(room > 0);
	snprintf(out, room, "%s", text);
	plan_text_clean(out);
}

const char *plan_text_size(double bytes, char out[PLAN_SIZE_BYTES])
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
	unsigned unit = 0;

	while (bytes >= 999.5 && unit + 1 < ARRAY_COUNT(units)) {
		bytes /= 1000;
		unit++;
	}
	snprintf(out, PLAN_SIZE_BYTES, bytes < 10 ? "%.2f %s" : bytes < 100 ? "%.1f %s" :
		 "%.0f %s", bytes, units[unit]);
	return out;
}
