/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts, sizes and times as people write them: 4096, 64KiB, "1.5 GiB", 500ms. One table of units
 * each, for flags and for the INI file. Nothing is rounded up; what does not fit is no number.
 */
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"

struct unit {
	const char *name;
	uint64_t scale;
};

static const struct unit byte_units[] = {
	{"B", 1}, {"KiB", KiB}, {"MiB", MiB}, {"GiB", GiB}, {"TiB", TiB}, {"K", KiB}, {"M", MiB},
	{"G", GiB}, {"T", TiB}, {"kB", 1000}, {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000},
	{"TB", UINT64_C(1000000000000)}, {NULL, 0},
};

static const struct unit time_units[] = {
	{"s", NS_PER_S}, {"ms", NS_PER_MS}, {"us", 1000}, {"ns", 1}, {"m", 60 * NS_PER_S},
	{"min", 60 * NS_PER_S}, {"h", 3600 * NS_PER_S}, {NULL, 0},
};

/* Digits, perhaps a point and at most 9 more, scaled. False: not a number, or too large. */
static bool number_scale(const char *text, const char **rest, uint64_t scale, uint64_t *out)
{
	uint64_t whole = 0, part = 0, part_scale = 1;
	const char *at = text;

	for (; *at >= '0' && *at <= '9'; at++) {
		if (whole > (UINT64_MAX - 9) / 10)
			return false;
		whole = whole * 10 + (uint64_t)(*at - '0');
	}
	if (at == text)
		return false;
	if (*at == '.') {
		for (at++; *at >= '0' && *at <= '9' && part_scale < NS_PER_S; at++) {
			part = part * 10 + (uint64_t)(*at - '0');
			part_scale *= 10;
		}
	}
	*rest = at;
	if (whole > UINT64_MAX / 2 / scale)
		return false;
	*out = whole * scale + (uint64_t)((unsigned __int128)part * scale / part_scale);
	return true;
}

/* bare_scale: the unit of a number that has none; 0: only 0 may do without. */
static bool unit_parse(const char *text, const struct unit *units, uint64_t bare_scale,
		       uint64_t *out)
{
	const char *rest;
	uint64_t value;

	if (!number_scale(text, &rest, 1, &value))
		return false;
	while (*rest == ' ')
		rest++;
	if (*rest == 0 && (bare_scale != 0 || strspn(text, "0. ") == strlen(text)))
		return number_scale(text, &rest, bare_scale != 0 ? bare_scale : 1, out);
	for (; units->name != NULL; units++)
		if (strcmp(rest, units->name) == 0)
			return number_scale(text, &rest, units->scale, out);
	return false;
}

bool cmd_bytes_parse(const char *text, bool bare, uint64_t *bytes)
{
	return unit_parse(text, byte_units, bare ? 1 : 0, bytes);
}

bool cmd_time_parse(const char *text, bool bare, uint64_t *ns)
{
	return unit_parse(text, time_units, bare ? NS_PER_S : 0, ns);
}

bool cmd_count_parse(const char *text, uint64_t *count)
{
	const char *rest;

	return strchr(text, '.') == NULL && number_scale(text, &rest, 1, count) && *rest == 0;
}
