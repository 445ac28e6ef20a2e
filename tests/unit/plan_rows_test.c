/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of measured rows as people write them, and what is said of those that are wrong. */
#include "kt.h"

#include <errno.h>
#include <math.h>

#include <kvof/plan.h>

#include "base/must.h"
#include "plan/rows.h"

#define HEAD "arm,concurrency,tokens,ttft_p50_s,ttft_last_s,tokens_per_s\n"

static struct plan_rows rows;
static struct kvof_plan_bad bad;

static int read_only(const char *text, const struct plan_rows_only *only, uint32_t count)
{
	kt_noise(&rows, sizeof(rows));
	kt_noise(&bad, sizeof(bad));
	return plan_rows_read(text, strlen(text), only, count, &rows, &bad);
}

static void taken(const char *text, uint32_t count)
{
	int rc = read_only(text, NULL, 0);

	if (rc != 0)
		print_message("# %s %s\n", bad.field, bad.why);
	expect_int(rc, 0);
	expect_int(rows.count, count);
}

static void refused(const char *text, const char *field, const char *words)
{
	expect_int(read_only(text, NULL, 0), -EINVAL);
	expect_str(bad.field, field);
	if (strstr(bad.why, words) == NULL)
		print_message("# %s\n", bad.why);
	expect(strstr(bad.why, words) != NULL);
	plan_rows_free(&rows);
}

static bool is(double got, double want)
{
	return fabs(got - want) < 1e-12 * (1 + fabs(want));
}

TEST(a_plain_table_is_read_with_the_lines_of_its_rows)
{
	taken(HEAD "array,8,30208,7.53,7.54,56.6\nlocal,16,3e4,17.31,,53.6\n", 2);
	expect_int(rows.row[0].kind, KVOF_PLAN_ARRAY);
	expect_int(rows.row[0].line, 2);
	expect_int(rows.row[0].concurrency, 8);
	expect(is(rows.row[0].tokens, 30208));
	expect(is(rows.row[0].ttft_p50_s, 7.53));
	expect(is(rows.row[0].ttft_last_s, 7.54));
	expect(is(rows.row[0].tokens_per_s, 56.6));
	expect_int(rows.row[1].kind, KVOF_PLAN_LOCAL);
	expect(is(rows.row[1].tokens, 30000));
	expect(is(rows.row[1].ttft_last_s, 0));
	expect_str(rows.unused, "");
	plan_rows_free(&rows);
}

TEST(order_case_spaces_quotes_comments_and_line_ends_make_no_difference)
{
	taken("\xef\xbb\xbf# a comment, with commas\r\n\r\n"
	      " Tokens_per_s ,\"note\", ARM,ttft_LAST_s,concurrency ,tokens,ttft_p50_s\r\n"
	      "56.6,\"a \"\"cold\"\", long note\", Array , \"7.54\",8,30208,7.53\r\n"
	      "   # another\n\n"
	      "  -,x,RECOMPUTE,n/a,16,30208,149.48,,,\n"
	      "na,,dram,\xe2\x80\x94,16,30208,1.8", 3);
	expect_int(rows.row[0].line, 4);
	expect(is(rows.row[0].ttft_last_s, 7.54));
	expect(is(rows.row[0].tokens_per_s, 56.6));
	expect_int(rows.row[1].kind, KVOF_PLAN_RECOMPUTE);
	expect(is(rows.row[1].tokens_per_s, 0));
	expect_int(rows.row[1].line, 7);
	expect_int(rows.row[2].kind, KVOF_PLAN_DRAM);
	expect(is(rows.row[2].ttft_last_s, 0));
	expect_str(rows.unused, "note");
	plan_rows_free(&rows);
}

TEST(more_columns_count_and_texts_are_kept)
{
	taken("arm,concurrency,bytes,ttft_last_s,ttft_p90_s,resident,output_tokens,bytes_per_s,"
	      "model,engine,precision,machine\n"
	      "nfs,4,65.5e9,691,690,0,32,1e8,32B,vLLM,bf16,box\nnfs,4,141.1e9,1399,,1,,,,,bf16,\n",
	      2);
	expect(is(rows.row[0].bytes, 65.5e9));
	expect(is(rows.row[0].ttft_p90_s, 690));
	expect_int(rows.row[0].output_tokens, 32);
	expect_int(rows.row[1].resident, 1);
	expect(is(rows.row[0].bytes_per_s, 1e8));
	expect_str(rows.text[0], "32B");
	expect_str(rows.text[1], "vLLM");
	expect_str(rows.text[2], "bf16");
	expect_str(rows.text[3], "box");
	plan_rows_free(&rows);
}

TEST(rows_that_differ_in_model_engine_precision_or_machine_are_not_mixed)
{
	static const char *const columns[] = {"model", "engine", "precision", "machine"};

	for (unsigned i = 0; i < ARRAY_COUNT(columns); i++) {
		char text[200], field[40];

		snprintf(text, sizeof(text), "arm,concurrency,tokens,ttft_last_s,%s\n"
			 "array,8,30,7,one\nlocal,8,30,7,\nlocal,8,30,7,two\n", columns[i]);
		snprintf(field, sizeof(field), "line 4, %s:", columns[i]);
		expect_int(read_only(text, NULL, 0), -EINVAL);
		expect(rows.mixed);
		expect_str(bad.field, field);
		expect(strstr(bad.why, "two here, one in line 2") != NULL);
		plan_rows_free(&rows);
		expect_int(read_only(text, (const struct plan_rows_only[]){{columns[i], "two"}}, 1),
			   0);
		expect_int(rows.count, 1);
		expect_int(rows.passed_over, 2);
		expect_str(rows.text[i], "two");
		plan_rows_free(&rows);
	}
}

TEST(a_choice_of_rows_needs_its_column_and_a_row)
{
	const struct plan_rows_only none = {"report", "R3"}, empty = {"arm", "nfs"};
	const struct plan_rows_only both[] = {{"arm", "array"}, {"Concurrency", "8"}};

	expect_int(read_only(HEAD "array,8,30,7,7,1\n", &none, 1), -EINVAL);
	expect(strstr(bad.why, "no column report") != NULL);
	plan_rows_free(&rows);
	expect_int(read_only(HEAD "array,8,30,7,7,1\n", &empty, 1), -EINVAL);
	expect(strstr(bad.why, "no row left") != NULL);
	plan_rows_free(&rows);
	expect_int(read_only(HEAD "array,8,30,7,7,1\narray,9,30,7,7,1\nlocal,8,30,7,7,1\n", both,
			     2), 0);
	expect_int(rows.count, 1);
	plan_rows_free(&rows);
	/* a row that ends before the column does not have the text of the row before it */
	expect_int(read_only("concurrency,tokens,ttft_last_s,arm\n8,30,7,array\n9,30,7\n", both, 1),
		   0);
	expect_int(rows.count, 1);
	plan_rows_free(&rows);
}

TEST(rows_without_any_time_are_counted_and_left_out)
{
	taken(HEAD "array,8,30208,7.53,7.54,56.6\narray,16,30208,,,\narray,32,30208,,,71.6\n", 1);
	expect_int(rows.empty, 2);
	expect_int(rows.empty_line, 3);
	plan_rows_free(&rows);
	refused(HEAD "array,8,30208,,,56.6\n", "", "no row with a time");
}

TEST(what_is_wrong_is_named_by_line_and_column)
{
	refused("", "", "no line with the names");
	refused("# nothing\n", "", "no line with the names");
	refused(HEAD, "", "no row");
	refused("array,8,30208,7.53,7.54,56.6\n", "line 1, arm:", "no such column");
	refused("arm,tokens,ttft_last_s\n", "line 1, concurrency:", "no such column");
	refused("arm,concurrency,ttft_last_s\n", "line 1, tokens:", "nor bytes");
	refused("arm,concurrency,tokens\n", "line 1, ttft_last_s:", "nor ttft_p50_s");
	refused("arm,concurrency,tokens,ARM,ttft_last_s\n", "line 1, arm:", "two columns");
	refused(HEAD "tape,8,30208,7.53,7.54,56.6\n", "line 2, arm:", "array, local, recompute");
	refused(HEAD ",8,30208,7.53,7.54,56.6\n", "line 2, arm:", "is empty");
	refused(HEAD "array,,30208,7.53,7.54,56.6\n", "line 2, concurrency:", "is empty");
	refused(HEAD "array,8.5,30208,7.53,7.54,56.6\n", "line 2, concurrency:", "no whole number");
	refused(HEAD "array,2e9,30208,7.53,7.54,56.6\n", "line 2, concurrency:", "too large");
	refused(HEAD "array,0,30208,7.53,7.54,56.6\n", "line 2, concurrency:", "not above 0");
	refused(HEAD "array,8,,7.53,7.54,56.6\n", "line 2, tokens:", "is empty");
	refused(HEAD "array,8,30K,7.53,7.54,56.6\n", "line 2, tokens:", "no number");
	refused(HEAD "array,8,1e30,7.53,7.54,56.6\n", "line 2, tokens:", "too large");
	refused(HEAD "array,8,30208,7.53 s,7.54,56.6\n", "line 2, ttft_p50_s:", "no number");
	refused(HEAD "array,8,30208,-7,7.54,56.6\n", "line 2, ttft_p50_s:", "not above 0");
	refused(HEAD "array,8,30208,0x7,7.54,56.6\n", "line 2, ttft_p50_s:", "no number");
	refused(HEAD "array,8,30208,7.53,infinity,56.6\n", "line 2, ttft_last_s:", "no number");
	refused(HEAD "array,8,30208,7.53,5,56.6\n", "line 2, ttft_last_s:", "below ttft_p50_s");
	refused(HEAD "array,8,30208,7.53,7.54,0\n", "line 2, tokens_per_s:", "not above 0");
	refused(HEAD "\narray,8,30208,7,7.54,56.6,9\n", "line 3:", "more cells");
	refused(HEAD "array,8,30208,7,\"7.54,56.6\n", "line 2:", "quotes");
	refused("arm,concurrency,tokens,ttft_last_s,resident\narray,8,30,7,9\n",
		"line 2, resident:", "above concurrency");
}

TEST(times_that_rounding_turned_around_are_equal)
{
	taken(HEAD "array,8,30208,7.54,7.53,56.6\n", 1);
	expect(is(rows.row[0].ttft_last_s, 7.54));
	plan_rows_free(&rows);
}

TEST(a_byte_of_zero_and_a_text_too_long_are_no_table)
{
	static char large[PLAN_ROWS_BYTES_MAX + 1];

	expect_int(plan_rows_read("a\0b", 3, NULL, 0, &rows, &bad), -EINVAL);
	expect(strstr(bad.why, "byte of 0") != NULL);
	memset(large, '#', sizeof(large));
	expect_int(plan_rows_read(large, sizeof(large), NULL, 0, &rows, &bad), -EINVAL);
	expect(strstr(bad.why, "longer") != NULL);
}

TEST(rows_past_the_most_there_can_be_are_refused)
{
	static char text[KVOF_PLAN_ROWS_MAX * 24 + 400];
	size_t used = (size_t)snprintf(text, sizeof(text), "%s", HEAD);

	for (uint32_t i = 0; i <= KVOF_PLAN_ROWS_MAX; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "array,8,30,7,7,1\n");
	expect_int(plan_rows_read(text, used - 17, NULL, 0, &rows, &bad), 0);
	expect_int(rows.count, KVOF_PLAN_ROWS_MAX);
	plan_rows_free(&rows);
	expect_int(plan_rows_read(text, used, NULL, 0, &rows, &bad), -EINVAL);
	expect_str(bad.field, "line 4098:");
	plan_rows_free(&rows);
}
