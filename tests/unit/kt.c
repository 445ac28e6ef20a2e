/* SPDX-License-Identifier: Apache-2.0 */
/* The main of every unit test program. An argument picks the tests whose name contains it. */
#include "kt.h"

#include <sys/wait.h>
#include <unistd.h>

#define KT_TESTS_MAX 512

static struct CMUnitTest kt_tests[KT_TESTS_MAX];
static size_t kt_count;

void kt_register(const char *name, void (*run)(void **state))
{
	if (kt_count == KT_TESTS_MAX)
		abort();
	kt_tests[kt_count++] = (struct CMUnitTest){.name = name, .test_func = run};
}

/* cmocka says `not ok N # SKIP name`, TAP `ok N - name # SKIP why`. One line in, one line out. */
static void filter_line(const char *line, char *why, size_t why_bytes)
{
	const char *tag = " # SKIP ";
	const char *at = strstr(line, tag);

	if (strncmp(line, "# skip: ", 8) == 0)
		snprintf(why, why_bytes, "%.*s", (int)strcspn(line + 8, "\n"), line + 8);
	if (strncmp(line, "not ok ", 7) == 0 && at != NULL)
		printf("ok %.*s - %.*s # SKIP %s\n", (int)(at - line - 7), line + 7,
		       (int)strcspn(at + strlen(tag), "\n"), at + strlen(tag), why);
	else
		fputs(line, stdout);
}

/* From here on a child rewrites what this process prints; it ends with the pipe. */
static pid_t filter_start(void)
{
	int fds[2];
	char line[4096], why[256] = "no reason given";
	FILE *in;
	pid_t pid;

	if (pipe(fds) != 0 || (pid = fork()) < 0)
		abort();
	if (pid > 0) {
		dup2(fds[1], STDOUT_FILENO);
		close(fds[0]);
		close(fds[1]);
		return pid;
	}
	close(fds[1]);
	in = fdopen(fds[0], "r");
	while (in != NULL && fgets(line, sizeof(line), in) != NULL)
		filter_line(line, why, sizeof(why));
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	size_t kept = 0;
	pid_t filter;
	int failed;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < kt_count; i++)
		if (argc < 2 || strstr(kt_tests[i].name, argv[1]) != NULL)
			kt_tests[kept++] = kt_tests[i];
	if (kept == 0)
		return 1;
	cmocka_set_message_output(CM_OUTPUT_TAP);
	filter = filter_start();
	failed = _cmocka_run_group_tests("kt", kt_tests, kept, NULL, NULL);
	fclose(stdout);
	waitpid(filter, NULL, 0);
	return failed;
}
