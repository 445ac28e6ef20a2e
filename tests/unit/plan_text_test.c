/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of text that others wrote: letters stay whole, nothing drives a terminal. */
#include "kt.h"

#include <string.h>

#include "base/must.h"
#include "plan/text.h"

static void put(size_t room, const char *text, const char *want)
{
	char out[64];

	kt_noise(out, sizeof(out));
	plan_text_put(out, room, text);
	expect_str(out, want);
}

TEST(letters_of_every_length_are_kept)
{
	put(64, "", "");
	put(64, "plain text, <b> & \"c\"", "plain text, <b> & \"c\"");
	put(64, "\xc3\xb6 \xe2\x82\xac \xf0\x9d\x84\x9e", "\xc3\xb6 \xe2\x82\xac \xf0\x9d\x84\x9e");
}

TEST(a_text_is_cut_between_letters)
{
	put(1, "abc", "");
	put(3, "abc", "ab");
	put(4, "abc", "abc");
	put(3, "a\xc3\xb6", "a");
	put(4, "a\xc3\xb6", "a\xc3\xb6");
	put(4, "a\xe2\x82\xac", "a");
	put(5, "a\xf0\x9d\x84\x9e", "a");
}

TEST(what_drives_a_terminal_or_is_no_letter_is_a_question_mark)
{
	put(64, "a\x1b[31mb\nc\rd\te\x7f", "a?[31mb?c?d?e?");
	put(64, "\xc2\x9b" "31m", "??31m");
	put(64, "\xff\xfe\x80", "???");
	put(64, "\xc3(", "?" "(");
	put(64, "\xe2\x82.\xf0\x9d\x84 ", "??.??? ");
	put(64, "\xc0\xaf \xe0\x80\xaf \xed\xa0\x80 \xf4\x90\x80\x80",
	    "?? ??? ??? ????");
}

TEST(sizes_have_three_places_and_powers_of_a_thousand)
{
	static const struct {
		double bytes;
		const char *text;
	} cases[] = {{0, "0.00 B"}, {5, "5.00 B"}, {999.4, "999 B"}, {999.6, "1.00 kB"},
		     {12.5e9, "12.5 GB"}, {1.07e12, "1.07 TB"}, {3e18, "3000 PB"}};
	char text[PLAN_SIZE_BYTES];

	for (unsigned i = 0; i < ARRAY_COUNT(cases); i++)
		expect_str(plan_text_size(cases[i].bytes, text), cases[i].text);
}
