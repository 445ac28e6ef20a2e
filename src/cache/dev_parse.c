/* SPDX-License-Identifier: Apache-2.0 */
/* PATH[,size=S][,rate=S]: a drive of the flash tier as people write it. Pure, any thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cache/dev.h"

static const struct {
	const char *name;
	uint64_t scale;
} units[] = {
	{"B", 1}, {"KiB", KiB}, {"MiB", MiB}, {"GiB", GiB}, {"TiB", TiB}, {"K", KiB}, {"M", MiB},
	{"G", GiB}, {"T", TiB}, {"kB", 1000}, {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000},
	{"TB", UINT64_C(1000000000000)},
};

/* A whole number and a unit; 0: not one, or too large. */
static uint64_t size_parse(const char *text, size_t bytes)
{
	uint64_t n = 0;
	size_t at = 0;

	for (; at < bytes && text[at] >= '0' && text[at] <= '9'; at++) {
		if (n > UINT64_MAX / 2 / 10)
			return 0;
		n = n * 10 + (uint64_t)(text[at] - '0');
	}
	for (unsigned i = 0; i < ARRAY_COUNT(units); i++)
		if (strlen(units[i].name) == bytes - at &&
		    memcmp(units[i].name, text + at, bytes - at) == 0)
			return n > UINT64_MAX / 2 / units[i].scale ? 0 : n * units[i].scale;
	return 0;
}

static int wrong(char why[256], const char *text, const char *what)
{
	snprintf(why, 256, "flash \"%.150s\": %s", text, what);
	return -EINVAL;
}

int dev_store_parse(const char *text, struct dev_store_drive *out, char why[256])
{
	const char *at = strchrnul(text, ','), *end;

	*out = (struct dev_store_drive){0};
	if (at == text)
		return wrong(why, text, "the path is empty");
	if ((size_t)(at - text) >= sizeof(out->path))
		return wrong(why, text, "the path is longer than 255 bytes");
	memcpy(out->path, text, (size_t)(at - text));
	for (; *at == ','; at = end) {
		uint64_t *value = strncmp(at, ",size=", 6) == 0 ? &out->bytes :
				  strncmp(at, ",rate=", 6) == 0 ? &out->rate_bytes_per_s : NULL;

		end = strchrnul(at + 1, ',');
		if (value == NULL)
			return wrong(why, text, "only size= and rate= may follow the path");
		if (*value != 0)
			return wrong(why, text, "it says one thing twice");
		*value = size_parse(at + 6, (size_t)(end - at - 6));
		if (*value == 0)
			return wrong(why, text, "size= and rate= need a number with a unit, such "
				     "as 10GiB");
	}
	return 0;
}
