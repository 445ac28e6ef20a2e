/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: their memory, the numbers of their blocks, and the reader that trusts nothing. */
#include "plan/trace.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <jansson.h>

#include "base/must.h"

/* Open addressing; id + 1, so that 0 is an empty place. */
struct trace_ids {
	uint64_t *id;
	uint32_t *number;
	uint32_t slots, used;
};

static uint64_t id_mix(uint64_t x)
{
	x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
	x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
	return x ^ x >> 32;
}

static uint32_t ids_place(const struct trace_ids *t, uint64_t id)
{
	uint32_t at = (uint32_t)id_mix(id) & (t->slots - 1);

	while (t->id[at] != 0 && t->id[at] != id + 1)
		at = (at + 1) & (t->slots - 1);
	return at;
}

static int ids_grow(struct trace_ids *t)
{
	struct trace_ids more = {.slots = t->slots > 0 ? t->slots * 2 : 1024};

	more.id = calloc(more.slots, sizeof(*more.id));
	more.number = calloc(more.slots, sizeof(*more.number));
	if (more.id == NULL || more.number == NULL) {
		free(more.id);
		free(more.number);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < t->slots; i++) {
		uint32_t at;

		if (t->id[i] == 0)
			continue;
		at = ids_place(&more, t->id[i] - 1);
		more.id[at] = t->id[i];
		more.number[at] = t->number[i];
	}
	more.used = t->used;
	free(t->id);
	free(t->number);
	*t = more;
	return 0;
}

void trace_free(struct trace *t)
{
	if (t->ids != NULL) {
		free(t->ids->id);
		free(t->ids->number);
	}
	free(t->ids);
	free(t->request);
	free(t->block);
	*t = (struct trace){0};
}

/* Doubles an array of elements that has no room for one more. */
static int room_grow(void *array, uint32_t *room, uint32_t used, size_t element_bytes,
		     uint32_t limit)
{
	uint32_t more = *room > 0 ? *room * 2 : 1024;
	void *moved, **at = array;

	if (used >= limit)
		return -ENOSPC;
	if (used < *room)
		return 0;
	moved = realloc(*at, more * element_bytes);
	if (moved == NULL)
		return -ENOMEM;
	*at = moved;
	*room = more;
	return 0;
}

int trace_add(struct trace *t, uint64_t time_ms, uint64_t input_tokens, uint64_t output_tokens)
{
	int rc = room_grow(&t->request, &t->request_room, t->requests, sizeof(*t->request),
			   TRACE_REQUESTS_MAX);

	if (rc != 0)
		return rc;
	t->request[t->requests++] = (struct trace_request){time_ms, input_tokens, output_tokens,
		t->blocks, 0};
	t->tokens += input_tokens;
	return 0;
}

int trace_add_block(struct trace *t, uint64_t id)
{
	uint32_t at;
	int rc = room_grow(&t->block, &t->block_room, t->blocks, sizeof(*t->block),
			   TRACE_BLOCKS_MAX);

	must(t->requests > 0 && id < UINT64_MAX);
	if (rc != 0)
		return rc;
	if (t->ids == NULL) {
		t->ids = calloc(1, sizeof(*t->ids));
		if (t->ids == NULL)
			return -ENOMEM;
	}
	if (t->ids->used >= t->ids->slots / 2) {
		rc = ids_grow(t->ids);
		if (rc != 0)
			return rc;
	}
	at = ids_place(t->ids, id);
	if (t->ids->id[at] == 0) {
		t->ids->id[at] = id + 1;
		t->ids->number[at] = t->unique_blocks++;
		t->ids->used++;
	}
	t->block[t->blocks++] = t->ids->number[at];
	t->request[t->requests - 1].count++;
	return 0;
}

/* --- one line ------------------------------------------------------------- */

static int bad_is(struct trace_bad *bad, const char *field, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static int bad_is(struct trace_bad *bad, const char *field, const char *format, ...)
{
	va_list args;

	bad->field = field;
	va_start(args, format);
	vsnprintf(bad->why, sizeof(bad->why), format, args);
	va_end(args);
	return -EINVAL;
}

static int number_read(const json_t *line, const char *field, uint64_t most, uint64_t *out,
		       struct trace_bad *bad)
{
	const json_t *value = json_object_get(line, field);

	if (value == NULL)
		return bad_is(bad, field, "is missing");
	if (!json_is_integer(value))
		return bad_is(bad, field, "is no whole number");
	if (json_integer_value(value) < 0)
		return bad_is(bad, field, "is negative");
	*out = (uint64_t)json_integer_value(value);
	if (*out > most)
		return bad_is(bad, field, "is more than %llu", (unsigned long long)most);
	return 0;
}

static int ids_check(const json_t *line, struct trace_bad *bad)
{
	const json_t *ids = json_object_get(line, "hash_ids"), *id;
	size_t i;

	if (ids == NULL)
		return bad_is(bad, "hash_ids", "is missing");
	if (!json_is_array(ids))
		return bad_is(bad, "hash_ids", "is no array");
	if (json_array_size(ids) > TRACE_REQUEST_BLOCKS_MAX)
		return bad_is(bad, "hash_ids", "has %zu entries, more than %u",
			      json_array_size(ids), TRACE_REQUEST_BLOCKS_MAX);
	json_array_foreach(ids, i, id) {
		if (!json_is_integer(id))
			return bad_is(bad, "hash_ids", "entry %zu is no whole number", i);
		if (json_integer_value(id) < 0)
			return bad_is(bad, "hash_ids", "entry %zu is negative", i);
	}
	return 0;
}

static int line_take(struct trace *t, const json_t *line, struct trace_bad *bad)
{
	uint64_t time_ms, input, output;
	const json_t *ids, *id;
	size_t i;
	int rc;

	if (!json_is_object(line))
		return bad_is(bad, NULL, "is no JSON object");
	rc = number_read(line, "timestamp", TRACE_TIME_MS_MAX, &time_ms, bad);
	if (rc == 0)
		rc = number_read(line, "input_length", TRACE_TOKENS_MAX, &input, bad);
	if (rc == 0)
		rc = number_read(line, "output_length", TRACE_TOKENS_MAX, &output, bad);
	if (rc == 0)
		rc = ids_check(line, bad);
	if (rc == 0)
		rc = trace_add(t, time_ms, input, output);
	if (rc != 0)
		return rc;
	ids = json_object_get(line, "hash_ids");
	json_array_foreach(ids, i, id) {
		rc = trace_add_block(t, (uint64_t)json_integer_value(id));
		if (rc != 0)
			return rc;
	}
	return 0;
}

static bool line_blank(const char *line, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (strchr(" \t\r\n", line[i]) == NULL || line[i] == 0)
			return false;
	return true;
}

int trace_add_line(struct trace *t, const char *line, size_t bytes, struct trace_bad *bad)
{
	json_error_t error;
	json_t *object;
	int rc;

	if (line_blank(line, bytes))
		return 0;
	if (bytes > TRACE_LINE_BYTES_MAX)
		return bad_is(bad, NULL, "is longer than %u bytes", TRACE_LINE_BYTES_MAX);
	object = json_loadb(line, bytes, 0, &error);
	if (object == NULL)
		return bad_is(bad, NULL, "is no JSON at column %d: %.60s", error.column,
			      error.text);
	rc = line_take(t, object, bad);
	json_decref(object);
	return rc;
}

/* A line of any bytes into a buffer that grows up to the limit; more of it is left. Return: its
 * length with its end, 0 at the end of the file; -ENOMEM. */
static ssize_t line_read(FILE *from, char **text, size_t *room)
{
	size_t bytes = 0;
	int c;

	while (bytes <= TRACE_LINE_BYTES_MAX && (c = getc_unlocked(from)) != EOF) {
		if (bytes == *room) {
			size_t more = *room > 0 ? *room * 2 : 4096;
			char *moved = realloc(*text, more);

			if (moved == NULL)
				return -ENOMEM;
			*text = moved;
			*room = more;
		}
		(*text)[bytes++] = (char)c;
		if (c == '\n')
			break;
	}
	return (ssize_t)bytes;
}

int trace_read(struct trace *t, FILE *from, uint32_t requests, uint64_t *line,
	       struct trace_bad *bad)
{
	char *text = NULL;
	size_t room = 0;
	ssize_t bytes;
	int rc = 0;

	*line = 0;
	while (rc == 0 && (requests == 0 || t->requests < requests) &&
	       (bytes = line_read(from, &text, &room)) != 0) {
		++*line;
		rc = bytes < 0 ? (int)bytes : trace_add_line(t, text, (size_t)bytes, bad);
	}
	free(text);
	return rc == 0 && ferror(from) ? -EIO : rc;
}
