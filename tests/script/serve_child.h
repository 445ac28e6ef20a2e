/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A `kvof serve` of a test's own, on a free port. The program is named by KVOF in the environment.
 * It dies with the test (PR_SET_PDEATHSIG). KVOF_LOUD lets its lines through.
 */
#ifndef KVOF_TESTS_SCRIPT_SERVE_CHILD_H
#define KVOF_TESTS_SCRIPT_SERVE_CHILD_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVE_WORDS_MAX 16

struct serve {
	pid_t pid;
	int port;
	char target[64];
};

/* words: further options, ends with NULL; port 0: any. False: it did not get ready. */
static inline bool serve_start(struct serve *s, int port, const char *const *words)
{
	char listen[64], line[256] = "";
	char *argv[SERVE_WORDS_MAX + 5] = {getenv("KVOF"), strdup("serve"), strdup("--listen"),
					   listen};
	int out[2], n = 4;
	FILE *f;

	if (argv[0] == NULL || pipe(out) != 0)
		return false;
	snprintf(listen, sizeof(listen), "tcp://127.0.0.1:%d", port);
	for (; *words != NULL && n < SERVE_WORDS_MAX + 4; words++)
		argv[n++] = strdup(*words);
	s->pid = fork();
	if (s->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(out[1], 1);
		close(out[0]);
		close(out[1]);
		if (getenv("KVOF_LOUD") == NULL)
			(void)!freopen("/dev/null", "w", stderr);
		execv(argv[0], argv);
		_exit(127);
	}
	close(out[1]);
	f = fdopen(out[0], "r");
	if (f == NULL || fgets(line, sizeof(line), f) == NULL)
		line[0] = 0;
	if (f != NULL)
		fclose(f);
	for (int i = 1; i < n; i++)
		if (i != 3)
			free(argv[i]);
	if (sscanf(line, "ready tcp://127.0.0.1:%d ", &s->port) != 1)
		return false;
	snprintf(s->target, sizeof(s->target), "tcp://127.0.0.1:%d", s->port);
	return true;
}

static inline void serve_end(struct serve *s, int sig)
{
	int status;

	kill(s->pid, SIGCONT);
	kill(s->pid, sig);
	while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR)
		;
	s->pid = 0;
}

#endif
