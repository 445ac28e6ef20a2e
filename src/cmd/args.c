/* SPDX-License-Identifier: Apache-2.0 */
/* Options and arguments of the subcommands, and the nearest known word to an unknown one. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"

/* One line whatever is in it: names of files and words of users may have line ends, and escapes
 * that a terminal would obey. */
void cmd_error(const char *command, const char *format, ...)
{
	char *text = NULL;
	va_list args;
	int rc;

	va_start(args, format);
	rc = vasprintf(&text, format, args);
	va_end(args);
	if (rc < 0)
		text = NULL;
	for (char *at = text; at != NULL && *at != 0; at++)
		if ((unsigned char)*at < ' ' || *at == 127)
			*at = '?';
	fflush(stdout);
	fprintf(stderr, "kvof %s: %s\n", command, text != NULL ? text : "no memory");
	free(text);
}

/* Insertions, deletions and changes from a to b; long strings are all far. */
static unsigned word_distance(const char *a, const char *b)
{
	unsigned row[33], before, keep;
	size_t n = strlen(a), m = strlen(b);

	if (n >= ARRAY_COUNT(row) || m >= ARRAY_COUNT(row))
		return UINT32_MAX;
	for (unsigned j = 0; j <= m; j++)
		row[j] = j;
	for (unsigned i = 1; i <= n; i++) {
		before = row[0];
		row[0] = i;
		for (unsigned j = 1; j <= m; j++) {
			keep = row[j];
			row[j] = before + (a[i - 1] != b[j - 1]);
			if (keep + 1 < row[j])
				row[j] = keep + 1;
			if (row[j - 1] + 1 < row[j])
				row[j] = row[j - 1] + 1;
			before = keep;
		}
	}
	return row[m];
}

const char *cmd_nearest(const char *text, const char *const *names)
{
	const char *best = NULL;
	unsigned best_distance = 4;

	for (; *names != NULL; names++) {
		unsigned distance = word_distance(text, *names);

		if (distance < best_distance && distance < strlen(*names)) {
			best = *names;
			best_distance = distance;
		}
	}
	return best;
}

/* --- reading -------------------- */

static const struct cmd_opt *opt_find(const struct cmd_opt *opts, const char *name, size_t bytes)
{
	for (; opts != NULL && opts->name != NULL; opts++)
		if (strlen(opts->name) == bytes && strncmp(opts->name, name, bytes) == 0)
			return opts;
	return NULL;
}

static unsigned opt_names(const struct cmd_opt *opts, const char **names, unsigned count)
{
	for (; opts != NULL && opts->name != NULL && count < 2 * CMD_OPTS_MAX; opts++)
		names[count++] = opts->name;
	return count;
}

static int opt_unknown(const struct cmd_usage *u, const char *arg)
{
	const char *names[2 * CMD_OPTS_MAX + 2] = {NULL}, *near;
	unsigned count = opt_names(u->common, names, opt_names(u->opts, names, 0));
	char name[64];

	names[count] = "help";
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
	near = cmd_nearest(name, names);
	if (near != NULL)
		cmd_error(u->name, "unknown option --%s; did you mean --%s?", name, near);
	else
		cmd_error(u->name, "unknown option --%s; kvof %s --help lists them", name, u->name);
	return CMD_USAGE;
}

#define PLAIN_BYTES_MIN (1 << 20)          /* a plain number below that means something else */

/* A plain number is bytes, as scripts write them; `--dram 256` was meant otherwise. An option whose
 * name says bytes has its unit. */
static const char *bytes_set(const struct cmd_opt *o, const char *value)
{
	static char say[96];
	uint64_t bytes, *into = o->into;

	if (!cmd_bytes_parse(value, true, &bytes))
		return "a size, as in 4096 or 64KiB";
	if (strstr(o->name, "bytes") == NULL && bytes != 0 && bytes < PLAIN_BYTES_MIN &&
	    !cmd_bytes_parse(value, false, &bytes)) {
		snprintf(say, sizeof(say), "clear: say %.16sB, %.16sKiB or %.16sMiB", value, value,
			 value);
		return say;
	}
	*into = bytes;
	return NULL;
}

static const char *opt_set(const struct cmd_opt *o, const char *value)
{
	uint64_t number;

	switch (o->kind) {
	case CMD_FLAG:
		*(bool *)o->into = true;
		return NULL;
	case CMD_TEXT:
		*(const char **)o->into = value;
		return NULL;
	case CMD_COUNT:
		if (!cmd_count_parse(value, &number) || number < 1 || number > UINT32_MAX)
			return "a whole number from 1";
		*(unsigned *)o->into = (unsigned)number;
		return NULL;
	case CMD_BYTES:
		return bytes_set(o, value);
	case CMD_TIME:
		return cmd_time_parse(value, false, o->into) ? NULL :
							       "a time with its unit, as in 5s";
	case CMD_SECONDS:
		return cmd_time_parse(value, true, o->into) ? NULL : "seconds, as in 5 or 0.5";
	}
	return "something else";
}

static void help_opts(const struct cmd_opt *opts)
{
	char head[64];

	for (; opts != NULL && opts->name != NULL; opts++) {
		snprintf(head, sizeof(head), "--%s%s%s", opts->name, opts->value ? " " : "",
			 opts->value ? opts->value : "");
		printf("  %-26s%s\n", head, opts->help);
	}
}

static int help_show(const struct cmd_usage *u)
{
	printf("usage: kvof %s [OPTIONS]%s%s\n\n%s\n\n", u->name, *u->args != 0 ? " " : "",
	       u->args, u->what);
	help_opts(u->opts);
	help_opts(u->common);
	printf("  %-26s%s\n", "--help", "show this");
	if (u->more != NULL)
		printf("\n%s", u->more);
	return cmd_output_end(u->name, CMD_DONE);
}

/* One option at argv[*i]; -1 or an exit code. */
static int opt_read(const struct cmd_usage *u, int argc, char **argv, int *i)
{
	const char *arg = argv[*i], *equal = strchr(arg, '='), *value, *wrong;
	size_t bytes = equal != NULL ? (size_t)(equal - arg - 2) : strlen(arg) - 2;
	const struct cmd_opt *o = opt_find(u->opts, arg + 2, bytes);

	if (o == NULL)
		o = opt_find(u->common, arg + 2, bytes);
	if (o == NULL)
		return opt_unknown(u, arg);
	value = equal != NULL ? equal + 1 : NULL;
	if (o->kind == CMD_FLAG && value != NULL) {
		cmd_error(u->name, "--%s takes no value", o->name);
		return CMD_USAGE;
	}
	if (o->kind != CMD_FLAG && value == NULL) {
		if (*i + 1 == argc) {
			cmd_error(u->name, "--%s needs a value (%s)", o->name, o->value);
			return CMD_USAGE;
		}
		value = argv[++*i];
	}
	wrong = opt_set(o, value);
	if (wrong == NULL)
		return -1;
	cmd_error(u->name, "--%s %s: not %s", o->name, value, wrong);
	return CMD_USAGE;
}

int cmd_args(const struct cmd_usage *u, int argc, char **argv, const char **positional,
	     unsigned *count)
{
	bool options = true;
	int rc;

	*count = 0;
	for (int i = 1; i < argc; i++) {
		if (options && strcmp(argv[i], "--") == 0) {
			options = false;
		} else if (options && (strcmp(argv[i], "--help") == 0 ||
				       strcmp(argv[i], "-h") == 0)) {
			return help_show(u);
		} else if (options && argv[i][0] == '-' && argv[i][1] == '-') {
			rc = opt_read(u, argc, argv, &i);
			if (rc >= 0)
				return rc;
		} else if (options && argv[i][0] == '-' && argv[i][1] != 0) {
			cmd_error(u->name, "unknown option %s; options begin with two dashes",
				  argv[i]);
			return CMD_USAGE;
		} else if (*count == u->most) {
			cmd_error(u->name, "one argument too many: %s (usage: kvof %s %s)", argv[i],
				  u->name, u->args);
			return CMD_USAGE;
		} else {
			positional[(*count)++] = argv[i];
		}
	}
	if (*count >= u->least)
		return -1;
	cmd_error(u->name, "usage: kvof %s [OPTIONS]%s%s (--help says more)", u->name,
		  *u->args != 0 ? " " : "", u->args);
	return CMD_USAGE;
}
