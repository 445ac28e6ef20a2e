/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: see answer.h.
 *
 * A line is kept until its end has come and is then read as a whole; a body that is one object is
 * kept whole, within the same bound. A token is an event whose choice has text, or which says why
 * it ended (a last token may have none). Times are those of the bytes that ended the event's line.
 */
#include "plan/answer.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/must.h"

#define LINE_BYTES_FIRST 4096u

void answer_begin(struct answer *a, bool stream)
{
	*a = (struct answer){.stream = stream};
}

void answer_free(struct answer *a)
{
	free(a->line);
	a->line = NULL;
}

static int wrong(struct answer *a, const char *why)
{
	snprintf(a->why, sizeof(a->why), "%s", why);
	return -EPROTO;
}

static int line_add(struct answer *a, const char *bytes, size_t count)
{
	size_t room = a->room > 0 ? a->room : LINE_BYTES_FIRST;
	char *more;

	if (count > ANSWER_LINE_BYTES_MAX - a->used)
		return wrong(a, a->stream ? "a line of its answer has more than 1 MiB" :
			     "its answer has more than 1 MiB");
	while (room < a->used + count)
		room *= 2;
	if (room != a->room) {
		more = realloc(a->line, room);
		if (more == NULL)
			return -ENOMEM;
		a->line = more;
		a->room = room;
	}
	memcpy(a->line + a->used, bytes, count);
	a->used += count;
	return 0;
}

/* --- what is in an event -------------------- */

static uint64_t count_of(const json_t *object, const char *name)
{
	json_int_t n = json_integer_value(json_object_get(object, name));

	return n > 0 ? (uint64_t)n : 0;
}

static void usage_take(struct answer *a, const json_t *root)
{
	const json_t *usage = json_object_get(root, "usage");

	if (!json_is_object(usage))
		return;
	if (count_of(usage, "prompt_tokens") > 0)
		a->prompt_tokens = count_of(usage, "prompt_tokens");
	if (count_of(usage, "completion_tokens") > 0)
		a->output_tokens = count_of(usage, "completion_tokens");
	a->cached_tokens = count_of(json_object_get(usage, "prompt_tokens_details"),
				    "cached_tokens");
}

static bool choice_has_token(const json_t *root)
{
	const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
	const json_t *text = json_object_get(choice, "text");

	if (text == NULL)
		text = json_object_get(json_object_get(choice, "delta"), "content");
	return json_string_length(text) > 0 ||
	       json_is_string(json_object_get(choice, "finish_reason"));
}

static int object_take(struct answer *a, const char *text, size_t bytes, uint64_t now_ns)
{
	json_error_t err;
	json_t *root = json_loadb(text, bytes, 0, &err);

	if (!json_is_object(root)) {
		json_decref(root);
		return wrong(a, "its answer is not JSON");
	}
	if (json_object_get(root, "error") != NULL && !json_is_null(json_object_get(root, "error")))
		(void)wrong(a, "it answered with an error");
	usage_take(a, root);
	if (choice_has_token(root)) {
		a->last_ns = now_ns;
		if (a->first_ns == 0)
			a->first_ns = now_ns;
#ifdef KVOF_PLANT_FIRST_TOKEN_IS_LAST
		a->first_ns = now_ns;
#endif
		a->pieces++;
	}
	json_decref(root);
	return a->why[0] != 0 ? -EPROTO : 0;
}

static int line_take(struct answer *a, uint64_t now_ns)
{
	const char *at = a->line;
	size_t left = a->used;

	a->used = 0;
	if (left > 0 && at[left - 1] == '\r')
		left--;
	if (left < 5 || memcmp(at, "data:", 5) != 0)
		return 0;                        /* a comment, a name, an empty line */
	at += 5;
	left -= 5;
	while (left > 0 && *at == ' ') {
		at++;
		left--;
	}
	if (left == 6 && memcmp(at, "[DONE]", 6) == 0) {
		a->done = true;
		return 0;
	}
	return object_take(a, at, left, now_ns);
}

int answer_feed(struct answer *a, const void *bytes, size_t count, uint64_t now_ns)
{
	const char *at = bytes, *end = at + count;

	must(now_ns != 0);
	a->body_bytes += count;
	if (a->body_bytes > ANSWER_BODY_BYTES_MAX)
		return wrong(a, "its answer does not end (more than 8 MiB)");
	while (at < end) {
		const char *stop = a->stream ? memchr(at, '\n', (size_t)(end - at)) : NULL;
		int rc = line_add(a, at, (size_t)((stop != NULL ? stop : end) - at));

		if (rc == 0 && stop != NULL)
			rc = line_take(a, now_ns);
		if (rc != 0)
			return rc;
		at = stop != NULL ? stop + 1 : end;
	}
	return 0;
}

int answer_end(struct answer *a, uint64_t now_ns)
{
	int rc = 0;

	if (a->stream && a->used > 0 && !a->done)
		rc = line_take(a, now_ns);
	else if (!a->stream)
		rc = object_take(a, a->line != NULL ? a->line : "", a->used, now_ns);
	if (rc != 0)
		return rc;
	if (a->pieces == 0)
		return wrong(a, "its answer has no token (is it a completions engine?)");
	return 0;
}

/* --- errors and lists -------------------- */

void answer_error(const struct answer *a, char out[120])
{
	json_error_t err;
	json_t *root = a->used > 0 ? json_loadb(a->line, a->used, 0, &err) : NULL;
	json_t *error = json_object_get(root, "error"), *text;
	const char *from = NULL;
	size_t n = 0, left;

	text = json_is_object(error) ? json_object_get(error, "message") : error;
	if (!json_is_string(text))
		text = json_object_get(root, "message");
	from = json_is_string(text) ? json_string_value(text) : a->line;
	left = json_is_string(text) ? json_string_length(text) : a->used;
	for (; left > 0 && n < 119; left--, from++)
		out[n++] = isprint((unsigned char)*from) ? *from : ' ';
	while (n > 0 && out[n - 1] == ' ')
		n--;
	out[n] = 0;
	json_decref(root);
}

int answer_models(const struct answer *a, struct answer_model *out)
{
	json_error_t err;
	json_t *root = a->used > 0 ? json_loadb(a->line, a->used, 0, &err) : NULL;
	const json_t *first = json_array_get(json_object_get(root, "data"), 0);
	const char *id = json_string_value(json_object_get(first, "id"));
	int rc = -EPROTO;

	*out = (struct answer_model){.id = ""};
	if (id != NULL && id[0] != 0 && strlen(id) < sizeof(out->id)) {
		snprintf(out->id, sizeof(out->id), "%s", id);
		out->context_tokens = count_of(first, "max_model_len");
		if (out->context_tokens == 0)
			out->context_tokens = count_of(json_object_get(first, "meta"), "n_ctx");
		rc = 0;
	}
	json_decref(root);
	return rc;
}
