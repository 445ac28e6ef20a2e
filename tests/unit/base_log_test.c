/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the log: fields, quoting, JSON, repeats, the limit. Standard error goes into a pipe. */
#include "kt.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

static char got[65536];

/* Runs write() with standard error caught; got is what came. */
static void caught(void (*write_lines)(void))
{
	int pipe_fd[2], kept = dup(STDERR_FILENO);
	ssize_t n;

	expect_int(pipe(pipe_fd), 0);
	expect(dup2(pipe_fd[1], STDERR_FILENO) == STDERR_FILENO);
	write_lines();
	expect(dup2(kept, STDERR_FILENO) == STDERR_FILENO);
	close(kept);
	close(pipe_fd[1]);
	kt_noise(got, sizeof(got));
	n = read(pipe_fd[0], got, sizeof(got) - 1);
	got[n > 0 ? n : 0] = '\0';
	close(pipe_fd[0]);
}

static time_t second = 1000000000;

static void clock_of_test(struct timespec *now)
{
	*now = (struct timespec){.tv_sec = second, .tv_nsec = 5000000};
}

/* The limits of the tests before are past. */
static void next_second(void)
{
	second++;
	log_clock_set(clock_of_test);
	log_level_set(LOG_INFO);
	log_json_set(false);
}

static void one_event(void)
{
	log_event(LOG_WARN, "one", LOG_TEXT("host", "nqn.x:y"), LOG_NUMBER("count", 7),
		  LOG_TEXT("why", "two words \"quoted\" \x01\xff end"), LOG_TEXT("none", ""));
	log_event(LOG_DEBUG, "unseen", LOG_NUMBER("n", 1));
}

TEST(an_event_is_one_line_of_fields)
{
	next_second();
	caught(one_event);
	expect(strstr(got, " warn event=one host=nqn.x:y count=7 why=\"two words \\\"quoted\\\" "
		      "\\u0001\\u00ff end\" none=\"\"\n") != NULL);
	expect(strchr(got, '\n') == got + strlen(got) - 1);
}

static void json_lines(void)
{
	log_json_set(true);
	log_event(LOG_INFO, "two", LOG_TEXT("host", "a\nb\\"), LOG_NUMBER("n", UINT64_MAX));
	log_info("words of %s", "a \"person\"\n");
}

TEST(a_json_line_is_one_object_whatever_the_bytes)
{
	next_second();
	caught(json_lines);
	expect(strncmp(got, "{\"time\":\"2001-09-09T01:46:", 26) == 0);
	expect(strstr(got, "Z\",\"level\":\"info\",\"event\":\"two\",\"host\":\"a\\u000ab\\\\\","
		      "\"n\":18446744073709551615}\n{") != NULL);
	expect(strstr(got, "\"level\":\"info\",\"text\":\"words of a \\\"person\\\"\\u000a\"}\n") !=
	       NULL);
}

static void repeats(void)
{
	for (unsigned i = 0; i < 5; i++)
		log_event(LOG_INFO, "same", LOG_TEXT("host", "one"), LOG_TEXT("of", "x"),
			  LOG_NUMBER("n", i));
	log_event(LOG_INFO, "same", LOG_TEXT("host", "one"), LOG_TEXT("of", "y"));
}

static void repeated_again(void)
{
	log_event(LOG_INFO, "same", LOG_TEXT("host", "one"), LOG_TEXT("of", "x"),
		  LOG_NUMBER("n", 9));
}

TEST(an_event_that_repeats_is_counted_and_told_with_the_next_one)
{
	next_second();
	caught(repeats);
	expect(strstr(got, "host=one of=x n=0\n") != NULL && strstr(got, "n=1") == NULL);
	expect(strstr(got, "of=y") != NULL);
	caught(repeated_again);
	expect_str(got, "");
	next_second();
	caught(repeated_again);
	expect(strstr(got, "host=one of=x n=9 repeated=5\n") != NULL);
}

static void storm(void)
{
	for (unsigned i = 0; i < 100; i++)
		log_event(LOG_INFO, "storm", LOG_NUMBER("n", i));
}

TEST(a_storm_writes_ten_lines_a_second)
{
	unsigned lines = 0;

	next_second();
	caught(storm);
	for (const char *at = got; *at != '\0'; at++)
		lines += *at == '\n';
	expect_int(lines, LOG_LINES_PER_S);
	next_second();
	caught(one_event);
	expect(strstr(got, " warn left_out=90 event=one ") != NULL);
}

static void too_long(void)
{
	static char name[5000];

	memset(name, 'x', sizeof(name) - 1);
	log_json_set(true);
	log_event(LOG_INFO, "long", LOG_TEXT("host", name), LOG_NUMBER("n", 3));
}

TEST(a_field_that_does_not_fit_is_left_out_whole)
{
	next_second();
	caught(too_long);
	expect(strstr(got, "\"event\":\"long\",\"n\":3}\n") != NULL);
}
