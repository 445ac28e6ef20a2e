/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands of `kvof` share: options, quantities, keys, a connection, exit codes, JSON.
 *
 * A subcommand is one function, int cmd_x(int argc, char **argv) with argv[0] its name, that
 * returns an exit code. Messages are one line on standard error: what, which object, what to do.
 */
#ifndef KVOF_CMD_CMD_H
#define KVOF_CMD_CMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/kv.h"
#include "host/host.h"

enum cmd_exit {                          /* the contract of the command line */
	CMD_DONE = 0,
	CMD_MISS = 1,                    /* no such key */
	CMD_USAGE = 2,
	CMD_FAILED = 3,                  /* I/O or protocol */
	CMD_REFUSED = 4,                 /* a condition: --if-absent on a key that exists, ... */
};

int cmd_serve(int argc, char **argv);
int cmd_put(int argc, char **argv);
int cmd_get(int argc, char **argv);
int cmd_exists(int argc, char **argv);
int cmd_rm(int argc, char **argv);
int cmd_ls(int argc, char **argv);
int cmd_stat(int argc, char **argv);
int cmd_discover(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_bench_store(int argc, char **argv);
int cmd_config(int argc, char **argv);
int cmd_fsck(int argc, char **argv);
int cmd_ns(int argc, char **argv);
int cmd_subsys(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_plan(int argc, char **argv);

/* --- options (args.c) -------------------- */

enum cmd_opt_kind {
	CMD_FLAG,                        /* bool */
	CMD_TEXT,                        /* const char * */
	CMD_COUNT,                       /* unsigned, 1 or more */
	CMD_BYTES,                       /* uint64_t: 4096, 64KiB, "8 MiB" */
	CMD_TIME,                        /* uint64_t in ns: 500ms, 5s, 2m; the unit is needed */
	CMD_SECONDS,                     /* uint64_t in ns: 5, 0.5; the unit may be left out */
};

struct cmd_opt {
	const char *name;                /* without the dashes */
	enum cmd_opt_kind kind;
	void *into;
	const char *value;               /* how help calls its value; NULL for a flag */
	const char *help;
};

#define CMD_OPTS_MAX 24

struct cmd_usage {
	const char *name;                /* "get" */
	const char *args;                /* "TARGET KEY [FILE]" */
	const char *what;                /* one sentence */
	const char *more;                /* paragraphs after the options; may be NULL */
	unsigned least, most;            /* positional arguments */
	const struct cmd_opt *opts;      /* ends with name NULL */
	const struct cmd_opt *common;    /* the same; may be NULL */
};

/**
 * cmd_args() - reads options (--name value, --name=value, anywhere before --) and arguments
 * @positional: room for u->most pointers into argv
 * Return: -1 go on, with *count arguments; else the exit code: help was shown, or usage was wrong
 * and one line said so (for an unknown option it names the nearest known one).
 */
int cmd_args(const struct cmd_usage *u, int argc, char **argv, const char **positional,
	     unsigned *count);

/* The entry of names[] (ends with NULL) that text was probably meant to be; NULL: none is near. */
const char *cmd_nearest(const char *text, const char *const *names);

/* One line: "kvof get: ..." */
void cmd_error(const char *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* --- quantities (unit.c) -------------------- */

/* False: not such a thing, or too large. bare: a number without a unit is bytes, or seconds; 0
 * needs no unit anyway. */
bool cmd_bytes_parse(const char *text, bool bare, uint64_t *bytes);
bool cmd_time_parse(const char *text, bool bare, uint64_t *ns);
bool cmd_count_parse(const char *text, uint64_t *count);     /* digits and nothing else */

/* --- keys and values (value.c) -------------------- */

/* 1 to 16 bytes as hex, or text:abc. False with a sentence in why. */
bool cmd_key_parse(const char *text, struct kv_key *key, char why[128]);
void cmd_key_hex(const struct kv_key *key, char out[2 * KV_KEY_BYTES_MAX + 1]);

struct cmd_value {
	void *at;
	size_t bytes;
};
/* path NULL or "-": standard input. More than bytes_max is an error, said on one line. */
int cmd_value_read(const char *command, const char *path, uint64_t bytes_max,
		   struct cmd_value *out);
/* The same of a file from which nothing is stored: a config, a profile, a table. */
int cmd_file_read(const char *command, const char *path, uint64_t bytes_max,
		  struct cmd_value *out);
/* path NULL or "-": standard output; else a temporary file beside it that takes its place when
 * whole. */
int cmd_value_write(const char *command, const char *path, const void *at, size_t bytes);

/* Prints the object as one line and drops it. Return: an exit code: code, or 3 if it can't be
 * written. */
int cmd_json_print(const char *command, json_t *object, int code);
/* Flushes standard output; code, or 3 with a line. */
int cmd_output_end(const char *command, int code);

/* --- a connection (link.c) -------------------- */

struct cmd_common {                      /* options of every command that connects */
	bool json, header_digest, data_digest;
	bool block, any_kind;            /* wants a block namespace, or either kind */
	const char *host_nqn;
	unsigned queues, depth;
	uint64_t timeout_ns, connect_ns;
};
#define CMD_COMMON_OPTS(c)                                                                         \
	{"json", CMD_FLAG, &(c)->json, NULL, "print JSON"},                                        \
	{"host-nqn", CMD_TEXT, &(c)->host_nqn, "NQN", "name of this host (from its machine id)"},  \
	{"header-digest", CMD_FLAG, &(c)->header_digest, NULL, "CRC32C over headers on the wire"}, \
	{"data-digest", CMD_FLAG, &(c)->data_digest, NULL, "CRC32C over data on the wire"},        \
	{"timeout", CMD_TIME, &(c)->timeout_ns, "TIME", "for one operation (30s)"},                \
	{"connect-timeout", CMD_TIME, &(c)->connect_ns, "TIME", "to connect and attach (3s)"}

struct cmd_link {
	const char *command, *target;
	struct cmd_common common;
	struct loop *loop;
	struct host *host;
	bool closed;
	bool live, down;
	int why;
};

/* 0, or CMD_USAGE and the line: text is no target. */
int cmd_target_check(const char *command, const char *text);
/* Connects and waits until the namespace is usable. Return: 0; else the exit code, the line is
 * said. */
int cmd_link_open(const char *command, const char *target, const struct cmd_common *common,
		  struct cmd_link *link);
void cmd_link_close(struct cmd_link *link);
/* One operation, its deadline from the options; turns the loop until it is over. Return: its
 * res. */
int cmd_link_op(struct cmd_link *link, struct host_op *op);
int cmd_link_admin(struct cmd_link *link, struct host_admin *admin);
/* What --timeout says, or its default. */
uint64_t cmd_link_timeout_ns(const struct cmd_link *link);
/* The exit code that belongs to a res, and the line for it (none for 0). */
int cmd_link_result(const struct cmd_link *link, const char *key, int res);
/* Length of a value, asked without moving it. Return: res. */
int cmd_link_length(struct cmd_link *link, const struct kv_key *key, uint32_t *bytes);

#endif
