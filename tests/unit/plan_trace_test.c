/* SPDX-License-Identifier: Apache-2.0 */
/* What is read from a trace, and how it is told what is wrong with one. */
#include "kt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "plan/trace.h"

static int add(struct trace *t, const char *line, struct trace_bad *bad)
{
	return trace_add_line(t, line, strlen(line), bad);
}

TEST(a_line_gives_a_request_and_ids_are_numbered_as_they_come)
{
	struct trace t = {0};
	struct trace_bad bad;

	expect_int(add(&t, "{\"timestamp\": 27482, \"input_length\": 1100, \"output_length\": 52, "
		       "\"hash_ids\": [46, 9000000000000000000, 0]}\n", &bad), 0);
	expect_int(add(&t, " \r\n", &bad), 0);
	expect_int(add(&t, "{\"hash_ids\": [46, 7], \"output_length\": 0, \"input_length\": 600, "
		       "\"timestamp\": 27483, \"more\": null}", &bad), 0);
	expect_int(t.requests, 2);
	expect_int(t.blocks, 5);
	expect_int(t.unique_blocks, 4);
	expect_int(t.tokens, 1700);
	expect_int(t.request[0].time_ms, 27482);
	expect_int(t.request[0].output_tokens, 52);
	expect_int(t.request[1].first, 3);
	expect_int(t.request[1].count, 2);
	for (unsigned i = 0; i < 3; i++)
		expect_int(t.block[i], i);
	expect_int(t.block[3], 0);
	expect_int(t.block[4], 3);
	trace_free(&t);
}

TEST(what_is_wrong_with_a_line_is_told_with_its_field)
{
	static const struct {
		const char *line, *field, *why;
	} rows[] = {
		{"hello", NULL, "is no JSON at column"},
		{"[1, 2]", NULL, "is no JSON object"},
		{"{\"timestamp\": 1", NULL, "is no JSON at column"},
		{"{\"timestamp\": 1} x", NULL, "is no JSON at column"},
		{"{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}", "timestamp",
			"is missing"},
		{"{\"timestamp\": 1, \"output_length\": 1, \"hash_ids\": []}", "input_length",
			"is missing"},
		{"{\"timestamp\": 1, \"input_length\": 1, \"hash_ids\": []}", "output_length",
			"is missing"},
		{"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}", "hash_ids",
			"is missing"},
		{"{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}",
			"timestamp", "is negative"},
		{"{\"timestamp\": 1, \"input_length\": -5, \"output_length\": 1, \"hash_ids\": []}",
			"input_length", "is negative"},
		{"{\"timestamp\": 1, \"input_length\": 1.5, \"output_length\": 1, "
			"\"hash_ids\": []}", "input_length", "is no whole number"},
		{"{\"timestamp\": 1, \"input_length\": 9000000000000000000, \"output_length\": 1, "
			"\"hash_ids\": []}", "input_length", "is more than"},
		{"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": \"1\", "
			"\"hash_ids\": []}", "output_length", "is no whole number"},
		{"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 7}",
			"hash_ids", "is no array"},
		{"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, "
			"\"hash_ids\": [1, -2]}", "hash_ids", "entry 1 is negative"},
		{"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, "
			"\"hash_ids\": [\"1\"]}", "hash_ids", "entry 0 is no whole number"},
		{"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, "
			"\"hash_ids\": [99999999999999999999]}", NULL, "is no JSON at column"},
	};
	struct trace t = {0};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct trace_bad bad;

		kt_noise(&bad, sizeof(bad));
		expect_int(add(&t, rows[i].line, &bad), -EINVAL);
		if (rows[i].field == NULL)
			expect(bad.field == NULL);
		else
			expect_str(bad.field, rows[i].field);
		expect(strstr(bad.why, rows[i].why) == bad.why);
		expect_int(t.requests, 0);
		expect_int(t.blocks, 0);
	}
	trace_free(&t);
}

TEST(an_array_that_is_too_long_is_refused)
{
	size_t count = TRACE_REQUEST_BLOCKS_MAX + 1, used;
	char *line = malloc(count * 2 + 200);
	struct trace t = {0};
	struct trace_bad bad;

	expect(line != NULL);
	used = (size_t)sprintf(line, "{\"timestamp\": 1, \"input_length\": 1, "
			       "\"output_length\": 1, \"hash_ids\": [");
	for (size_t i = 0; i < count; i++) {
		line[used++] = '7';
		line[used++] = i + 1 < count ? ',' : ']';
	}
	line[used++] = '}';
	expect_int(trace_add_line(&t, line, used, &bad), -EINVAL);
	expect_str(bad.field, "hash_ids");
	expect_int(t.requests, 0);
	free(line);
	trace_free(&t);
}

static FILE *file_of(const void *text, size_t bytes)
{
	FILE *f = tmpfile();

	expect(f != NULL);
	expect_int(fwrite(text, 1, bytes, f), bytes);
	rewind(f);
	return f;
}

TEST(reading_a_file_tells_the_line_that_is_wrong)
{
	static const char text[] =
		"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [5]}\n"
		"\n"
		"{\"timestamp\": 1, \"input_length\": 1, \"hash_ids\": [5]}\n";
	FILE *f = file_of(text, sizeof(text) - 1);
	struct trace t = {0};
	struct trace_bad bad;
	uint64_t line;

	expect_int(trace_read(&t, f, 0, &line, &bad), -EINVAL);
	expect_int(line, 3);
	expect_str(bad.field, "output_length");
	expect_int(t.requests, 1);
	trace_free(&t);
	rewind(f);
	expect_int(trace_read(&t, f, 1, &line, &bad), 0);       /* what is behind is not read */
	expect_int(t.requests, 1);
	expect_int(line, 1);
	trace_free(&t);
	fclose(f);
}

TEST(a_line_without_an_end_is_refused_within_its_limit)
{
	size_t bytes = TRACE_LINE_BYTES_MAX + 4096;
	char *text = calloc(1, bytes);
	struct trace t = {0};
	struct trace_bad bad;
	uint64_t line;
	FILE *f;

	expect(text != NULL);
	f = file_of(text, bytes);
	expect_int(trace_read(&t, f, 0, &line, &bad), -EINVAL);
	expect_int(line, 1);
	expect(strstr(bad.why, "is longer than") == bad.why);
	free(text);
	trace_free(&t);
	fclose(f);
}

TEST(many_ids_keep_their_numbers)
{
	struct trace t = {0};

	expect_int(trace_add(&t, 1, 1, 1), 0);
	for (uint64_t i = 0; i < 30000; i++)
		expect_int(trace_add_block(&t, i * 4096), 0);
	for (uint64_t i = 0; i < 30000; i++)
		expect_int(trace_add_block(&t, i * 4096), 0);
	expect_int(t.unique_blocks, 30000);
	for (uint32_t i = 0; i < 60000; i++)
		expect_int(t.block[i], i % 30000);
	trace_free(&t);
}
