/* SPDX-License-Identifier: Apache-2.0 */
/* The program `kvof`: finds the subcommand and hands it its arguments. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/must.h"
#include "cmd/cmd.h"

struct cmd {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *what;
};

static const struct cmd cmds[] = {
	{"serve", cmd_serve, "run an array: namespaces on drives, over NVMe/TCP"},
	{"ns", cmd_ns, "make, remove and list the namespaces of an array that runs here"},
	{"subsys", cmd_subsys, "the same for its subsystems: namespaces with hosts of their own"},
	{"put", cmd_put, "store a value under a key"},
	{"get", cmd_get, "retrieve a value"},
	{"exists", cmd_exists, "tell whether a key is there"},
	{"rm", cmd_rm, "delete a key"},
	{"ls", cmd_ls, "list keys and the sizes of their values"},
	{"stat", cmd_stat, "show how full a namespace is and what it has done"},
	{"discover", cmd_discover, "list the subsystems that an address offers"},
	{"bench", cmd_bench, "measure a namespace over the fabric, or drives directly"},
	{"replay", cmd_replay, "replay a trace of prompts: what a cache of some size would hit"},
	{"plan", cmd_plan, "what to buy for a workload, and when its first tokens come"},
	{"fsck", cmd_fsck, "check the drives of an array that is not running"},
	{"config", cmd_config, "show every option of an array, its value and where it is from"},
};

static const char main_help[] =
	"\nTARGET is tcp://ADDR:PORT[/NQN][?nsid=N]; without NQN the only subsystem there is\n"
	"used. "
	"KEY is 1 to 16 bytes as hex (6b6579), or text:abc.\n\n"
	"Exit codes: 0 done, 1 no such key, 2 wrong usage, 3 I/O or protocol error,\n"
	"4 a condition refused (put --if-absent on a key that exists).\n\n"
	"Start an array of 1 GiB in a file, and use it from another terminal:\n"
	"  kvof serve --drive /tmp/kvof.drive,size=1GiB\n"
	"  echo hello | kvof put tcp://127.0.0.1:4420 text:greeting\n"
	"  kvof get tcp://127.0.0.1:4420 text:greeting\n\n"
	"`kvof COMMAND --help` says more.\n";

static int main_usage(FILE *to)
{
	fprintf(to, "usage: kvof COMMAND [OPTIONS] ...\n\n"
		"KV cache of language models on flash that many hosts share over NVMe-oF.\n\n");
	for (size_t i = 0; i < ARRAY_COUNT(cmds); i++)
		fprintf(to, "  %-10s%s\n", cmds[i].name, cmds[i].what);
	fputs(main_help, to);
	return to == stdout ? cmd_output_end("--help", CMD_DONE) : CMD_USAGE;
}

static const struct cmd *main_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_COUNT(cmds); i++)
		if (strcmp(cmds[i].name, name) == 0)
			return &cmds[i];
	return NULL;
}

static int main_unknown(const char *name)
{
	const char *names[ARRAY_COUNT(cmds) + 1] = {NULL};
	const char *near;

	for (size_t i = 0; i < ARRAY_COUNT(cmds); i++)
		names[i] = cmds[i].name;
	near = cmd_nearest(name, names);
	if (near != NULL)
		fprintf(stderr, "kvof: no command \"%s\"; did you mean %s?\n", name, near);
	else
		fprintf(stderr, "kvof: no command \"%s\"; kvof --help lists them\n", name);
	return CMD_USAGE;
}

/*
 * A standard descriptor that the caller closed would be the number of the next file opened: a drive
 * then, with the log written into it. It becomes one that can't be used for what it is for.
 */
static void main_descriptors(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			must(open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) == fd);
}

int main(int argc, char **argv)
{
	const struct cmd *cmd;

	main_descriptors();
	log_level_set(LOG_WARN);
	if (argc < 2)
		return main_usage(stderr);
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
		printf("kvof %s\n", KVOF_VERSION);
		return cmd_output_end("--version", CMD_DONE);
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
		return main_usage(stdout);
	if (strcmp(argv[1], "help") == 0) {
		char help[] = "--help", *args[] = {NULL, help, NULL};

		if (argc < 3)
			return main_usage(stdout);
		cmd = main_find(argv[2]);
		args[0] = argv[2];
		return cmd != NULL ? cmd->run(2, args) : main_unknown(argv[2]);
	}
	cmd = main_find(argv[1]);
	return cmd != NULL ? cmd->run(argc - 1, argv + 1) : main_unknown(argv[1]);
}
