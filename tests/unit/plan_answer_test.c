/* SPDX-License-Identifier: Apache-2.0 */
/* Streamed answers of engines, cut anywhere, and those of engines that mean harm. */
#include "kt.h"

#include <errno.h>

#include "base/must.h"
#include "base/prng.h"
#include "plan/answer.h"

static const char stream[] =
	": a comment\r\n\r\n"
	"data: {\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}\r\n\r\n"
	"data: {\"choices\":[{\"text\":\" one\",\"finish_reason\":null}]}\r\n\r\n"
	"event: message\n"
	"data: {\"choices\":[{\"text\":\" two\",\"finish_reason\":null}],\"usage\":null}\n\n"
	"data:{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
	"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":3,"
	"\"prompt_tokens_details\":{\"cached_tokens\":7}}}\n\n"
	"data: [DONE]\n\n";

static int feed(struct answer *a, const char *text, uint64_t now_ns)
{
	return answer_feed(a, text, strlen(text), now_ns);
}

static void stream_expect(const struct answer *a)
{
	expect_int(a->pieces, 3);
	expect_int(a->prompt_tokens, 100);
	expect_int(a->output_tokens, 3);
	expect_int(a->cached_tokens, 7);
	expect(a->done);
}

TEST(a_stream_cut_anywhere_is_read_the_same)
{
	for (size_t cut = 0; cut <= sizeof(stream) - 1; cut++) {
		struct answer a;

		answer_begin(&a, true);
		expect_int(answer_feed(&a, stream, cut, 5), 0);
		expect_int(answer_feed(&a, stream + cut, sizeof(stream) - 1 - cut, 5), 0);
		expect_int(answer_end(&a, 5), 0);
		stream_expect(&a);
		answer_free(&a);
	}
}

TEST(the_first_token_counts_and_not_the_end_of_the_answer)
{
	struct answer a;

	answer_begin(&a, true);
	for (size_t i = 0; i < sizeof(stream) - 1; i++)
		expect_int(answer_feed(&a, stream + i, 1, i + 1), 0);
	expect_int(answer_end(&a, sizeof(stream)), 0);
	/* the line with " one" ends there; an event without a token is none */
	expect_int(a.first_ns, strstr(strstr(stream, " one"), "\n") - stream + 1);
	expect_int(a.last_ns, strstr(strstr(stream, "length"), "\n") - stream + 1);
	answer_free(&a);
}

TEST(a_chat_stream_has_its_tokens_in_the_delta)
{
	struct answer a;

	answer_begin(&a, true);
	expect_int(feed(&a, "data: {\"choices\":[{\"delta\":{\"role\":\"a\"}}]}\n\n", 1), 0);
	expect_int(feed(&a, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n", 2), 0);
	expect_int(answer_end(&a, 3), 0);
	expect_int(a.first_ns, 2);
	answer_free(&a);
}

TEST(an_answer_without_a_token_or_without_sense_is_refused)
{
	static const char *const bad[] = {"", "\n\n\n", "data: \n\n", "data: {\n\n", "data: 5\n\n",
		"data: [1]\n\n", "<html>no</html>\n", "data: [DONE]\n\n", "{\"choices\":3}\n",
		"data: {\"error\":{\"message\":\"no\"}}\n\n",
		"data: {\"choices\":[{\"text\":5}]}\n"};

	for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
		struct answer a;
		int rc;

		answer_begin(&a, true);
		rc = feed(&a, bad[i], 1);
		if (rc == 0)
			rc = answer_end(&a, 2);
		expect_int(rc, -EPROTO);
		expect(a.why[0] != 0);
		answer_free(&a);
	}
}

TEST(a_line_without_end_stops_at_its_bound)
{
	char piece[65536];
	struct answer a;
	uint64_t fed = 0;
	int rc = 0;

	memset(piece, 'x', sizeof(piece));
	answer_begin(&a, true);
	while (rc == 0) {
		rc = answer_feed(&a, piece, sizeof(piece), 1);
		fed += sizeof(piece);
		expect(a.room <= 2 * ANSWER_LINE_BYTES_MAX);
	}
	expect_int(rc, -EPROTO);
	expect(fed <= ANSWER_LINE_BYTES_MAX + sizeof(piece));
	expect(strstr(a.why, "1 MiB") != NULL);
	answer_free(&a);
}

TEST(a_body_without_end_stops_at_its_bound)
{
	static const char event[] = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";
	struct answer a;
	uint64_t fed = 0;
	int rc = 0;

	answer_begin(&a, true);
	while (rc == 0) {
		rc = feed(&a, event, 1);
		fed += strlen(event);
	}
	expect_int(rc, -EPROTO);
	expect(fed <= ANSWER_BODY_BYTES_MAX + strlen(event));
	expect(strstr(a.why, "does not end") != NULL);
	answer_free(&a);
}

TEST(noise_is_never_more_than_refused)
{
	static const char alphabet[] = "data: {}[]\"choicestext:,\n\r\\u0000e1";
	struct prng prng = prng_of(7);

	for (unsigned n = 0; n < 2000; n++) {
		struct answer a;
		int rc = 0;

		answer_begin(&a, n % 2 == 0);
		for (unsigned i = 0; i < 60 && rc == 0; i++) {
			char text[8];
			size_t count = prng_below(&prng, sizeof(text));

			for (size_t k = 0; k < count; k++)
				text[k] = n % 3 == 0 ? (char)prng_below(&prng, 256) :
					  alphabet[prng_below(&prng, sizeof(alphabet) - 1)];
			rc = answer_feed(&a, text, count, 1);
		}
		if (rc == 0)
			rc = answer_end(&a, 1);
		expect(rc == 0 || rc == -EPROTO);
		answer_free(&a);
	}
}

TEST(errors_are_told_on_one_line_of_printable_text)
{
	static const struct {
		const char *body, *want;
	} rows[] = {
		{"{\"error\":{\"message\":\"too long\"}}", "too long"},
		{"{\"error\":\"gone\\nhere\"}", "gone here"},
		{"{\"object\":\"error\",\"message\":\"no model\"}", "no model"},
		{"<html>\n<b>404</b>\x1b[31m", "<html> <b>404</b> [31m"},
		{"", ""},
	};

	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		struct answer a;
		char text[120];

		answer_begin(&a, false);
		expect_int(feed(&a, rows[i].body, 1), 0);
		kt_noise(text, sizeof(text));
		answer_error(&a, text);
		expect_str(text, rows[i].want);
		answer_free(&a);
	}
}

TEST(a_list_of_models_gives_its_first_one_and_its_context)
{
	static const struct {
		const char *body, *id;
		uint64_t context;
		int rc;
	} rows[] = {
		{"{\"data\":[{\"id\":\"m\",\"max_model_len\":8192},{\"id\":\"n\"}]}", "m", 8192, 0},
		{"{\"data\":[{\"id\":\"g\",\"meta\":{\"n_ctx\":2048}}]}", "g", 2048, 0},
		{"{\"data\":[{\"id\":\"x\"}]}", "x", 0, 0},
		{"{\"data\":[]}", "", 0, -EPROTO}, {"{\"data\":[{\"id\":\"\"}]}", "", 0, -EPROTO},
		{"[]", "", 0, -EPROTO}, {"", "", 0, -EPROTO}, {"no", "", 0, -EPROTO},
	};

	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		struct answer_model model;
		struct answer a;

		answer_begin(&a, false);
		expect_int(feed(&a, rows[i].body, 1), 0);
		kt_noise(&model, sizeof(model));
		expect_int(answer_models(&a, &model), rows[i].rc);
		expect_str(model.id, rows[i].id);
		expect_int(model.context_tokens, rows[i].context);
		answer_free(&a);
	}
}
