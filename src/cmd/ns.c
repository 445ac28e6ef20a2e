/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof ns, kvof subsys: namespaces and subsystems of an array that runs on this machine, through
 * its control socket. What is asked is checked by the array; here only the words are.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/control.h"
#include "store/set.h"

#define PORT_STANDARD 4420

struct where {
	const char *path;
	unsigned port;
	bool json;
};
#define WHERE_OPTS(w)                                                                              \
	{"control", CMD_TEXT, &(w)->path, "PATH", "control socket of the array"},                  \
	{"port", CMD_COUNT, &(w)->port, "PORT", "or the port that it listens at (4420)"},         \
	{"json", CMD_FLAG, &(w)->json, NULL, "print JSON"}

/* A text that is not UTF-8 is no name of anything here. */
static json_t *text_json(const char *text)
{
	json_t *value = json_string(text);

	return value != NULL ? value : json_string("?");
}

static void text_set(json_t *object, const char *name, const char *text)
{
	if (text != NULL)
		json_object_set_new(object, name, text_json(text));
}

static void number_set(json_t *object, const char *name, uint64_t number)
{
	if (number > 0)
		json_object_set_new(object, name, json_integer((json_int_t)number));
}

/* Asks and hands the answer back; -1, or an exit code when the line was said. */
static int ask(const char *command, const struct where *w, json_t *request, json_t **answer)
{
	char path[CONTROL_PATH_BYTES], why[256];
	const char *error;
	int rc, code;

	json_object_set_new(request, "command", json_string(command));
	control_path_default((uint16_t)(w->port != 0 ? w->port : PORT_STANDARD), path);
	rc = control_ask(w->path != NULL ? w->path : path, request, answer, why);
	json_decref(request);
	if (rc != 0) {
		cmd_error(command, "%s", why);
		return CMD_FAILED;
	}
	if (json_is_true(json_object_get(*answer, "ok"))) {
		json_object_del(*answer, "ok");
		return -1;
	}
	error = json_string_value(json_object_get(*answer, "error"));
	cmd_error(command, "%s", error != NULL ? error : "refused without a reason");
	code = (int)json_integer_value(json_object_get(*answer, "exit"));
	json_decref(*answer);
	return code >= CMD_MISS && code <= CMD_REFUSED ? code : CMD_FAILED;
}

static const char *text_in(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text != NULL ? text : "";
}

static long long number_in(const json_t *object, const char *name)
{
	return json_integer_value(json_object_get(object, name));
}

/* "ns create" prints what was made as one line; the same object with --json. */
static int print_one(const char *command, const struct where *w, json_t *answer)
{
	if (w->json)
		return cmd_json_print(command, answer, CMD_DONE);
	if (json_object_get(answer, "nsid") != NULL)
		printf("namespace %lld of ", number_in(answer, "nsid"));
	printf("%s", text_in(answer, "subsystem"));
	if (json_object_get(answer, "uuid") != NULL)
		printf(": %s, %lld bytes, uuid %s", text_in(answer, "kind"),
		       number_in(answer, "capacity_bytes"), text_in(answer, "uuid"));
	printf("\n");
	json_decref(answer);
	return cmd_output_end(command, CMD_DONE);
}

/* --- kvof ns -------------------- */

static int ns_create(int argc, char **argv)
{
	const char *subsystem = NULL, *kind = "kv", *on_full = NULL;
	uint64_t size = 0, block = 0, value = 0;
	unsigned nsid = 0, count;
	bool stripe = false;
	struct where w = {NULL, 0, false};
	const struct cmd_opt opts[] = {
		{"kind", CMD_TEXT, &kind, "kv|block", "what it is (kv)"},
		{"size", CMD_BYTES, &size, "SIZE", "of a block namespace as hosts see it; of a KV "
		 "namespace all it may take of the drives (all that is free)"},
		{"subsystem", CMD_TEXT, &subsystem, "NQN", "where it belongs (the array's first)"},
		{"nsid", CMD_COUNT, &nsid, "N", "its number (the lowest that is free)"},
		{"block-bytes", CMD_BYTES, &block, "512|4096", "block size (4096)"},
		{"on-full", CMD_TEXT, &on_full, "evict|refuse",
		 "KV: a cache, or Store is refused (evict)"},
		{"stripe", CMD_FLAG, &stripe, NULL,
		 "KV: large values span the drives (refuse: they do)"},
		{"value-bytes-max", CMD_BYTES, &value, "SIZE", "KV: largest value (8MiB)"},
		{.name = NULL}};
	const struct cmd_opt common[] = {WHERE_OPTS(&w), {.name = NULL}};
	const struct cmd_usage u = {.name = "ns create", .args = "", .opts = opts, .common = common,
		.what = "Makes a namespace while the array serves; attached hosts are told."};
	json_t *request, *answer;
	int rc = cmd_args(&u, argc, argv, NULL, &count);

	if (rc >= 0)
		return rc;
	request = json_object();
	text_set(request, "kind", kind);
	text_set(request, "subsystem", subsystem);
	text_set(request, "on_full", on_full);
	number_set(request, "size_bytes", size);
	number_set(request, "nsid", nsid);
	number_set(request, "block_bytes", block);
	number_set(request, "value_bytes_max", value);
	if (stripe)
		json_object_set_new(request, "stripe", json_true());
	rc = ask("ns create", &w, request, &answer);
	return rc >= 0 ? rc : print_one("ns create", &w, answer);
}

static int ns_remove(int argc, char **argv)
{
	const char *subsystem = NULL, *arg[1];
	struct where w = {NULL, 0, false};
	const struct cmd_opt opts[] = {
		{"subsystem", CMD_TEXT, &subsystem, "NQN", "where it is (the array's first)"},
		{.name = NULL}};
	const struct cmd_opt common[] = {WHERE_OPTS(&w), {.name = NULL}};
	const struct cmd_usage u = {.name = "ns rm", .args = "NSID", .least = 1, .most = 1,
		.opts = opts, .common = common,
		.what = "Removes a namespace and all that is in it. Hosts' commands for it end "
			"with an error."};
	json_t *request, *answer;
	uint64_t nsid = 0;
	unsigned count;
	int rc = cmd_args(&u, argc, argv, arg, &count);

	if (rc >= 0)
		return rc;
	if (!cmd_count_parse(arg[0], &nsid) || nsid < 1 || nsid > UINT32_MAX) {
		cmd_error("ns rm", "%s: not the number of a namespace", arg[0]);
		return CMD_USAGE;
	}
	request = json_object();
	number_set(request, "nsid", nsid);
	text_set(request, "subsystem", subsystem);
	rc = ask("ns rm", &w, request, &answer);
	return rc >= 0 ? rc : print_one("ns rm", &w, answer);
}

static int ns_list(int argc, char **argv)
{
	const char *subsystem = NULL;
	struct where w = {NULL, 0, false};
	const struct cmd_opt opts[] = {
		{"subsystem", CMD_TEXT, &subsystem, "NQN", "of this subsystem alone"},
		{.name = NULL}};
	const struct cmd_opt common[] = {WHERE_OPTS(&w), {.name = NULL}};
	const struct cmd_usage u = {.name = "ns ls", .args = "", .opts = opts, .common = common,
		.what = "Lists the namespaces of an array that runs here."};
	json_t *request = json_object(), *answer, *row;
	unsigned count;
	size_t i;
	int rc = cmd_args(&u, argc, argv, NULL, &count);

	if (rc < 0)
		text_set(request, "subsystem", subsystem);
	if (rc >= 0)
		json_decref(request);
	else
		rc = ask("ns ls", &w, request, &answer);
	if (rc >= 0)
		return rc;
	if (w.json)
		return cmd_json_print("ns ls", answer, CMD_DONE);
	printf("%4s %-5s %16s %16s %10s  %-36s  %s\n", "nsid", "kind", "capacity bytes",
	       "used bytes", "keys", "uuid", "subsystem");
	json_array_foreach(json_object_get(answer, "namespaces"), i, row) {
		printf("%4lld %-5s %16lld %16lld ", number_in(row, "nsid"), text_in(row, "kind"),
		       number_in(row, "capacity_bytes"), number_in(row, "used_bytes"));
		if (json_object_get(row, "keys") != NULL)
			printf("%10lld", number_in(row, "keys"));
		else
			printf("%10s", "-");
		printf("  %-36s  %s\n", text_in(row, "uuid"), text_in(row, "subsystem"));
	}
	printf("%lld bytes are free\n", number_in(answer, "free_bytes"));
	json_decref(answer);
	return cmd_output_end("ns ls", CMD_DONE);
}

/* --- kvof subsys -------------------- */

/* Takes every --allow-host out of the arguments, since cmd_args() knows none that is repeated. */
static int hosts_take(int *argc, char **argv, json_t *hosts)
{
	int kept = 1;

	for (int i = 1; i < *argc; i++) {
		const char *text = NULL;

		if (strncmp(argv[i], "--allow-host=", 13) == 0)
			text = argv[i] + 13;
		else if (strcmp(argv[i], "--allow-host") == 0 && i + 1 < *argc)
			text = argv[++i];
		if (text != NULL)
			json_array_append_new(hosts, text_json(text));
		else
			argv[kept++] = argv[i];
	}
	*argc = kept;
	argv[kept] = NULL;
	if (json_array_size(hosts) <= SET_HOSTS_MAX)
		return -1;
	cmd_error("subsys create", "--allow-host: at most %d names", SET_HOSTS_MAX);
	return CMD_USAGE;
}

static int subsys_create(int argc, char **argv)
{
	struct where w = {NULL, 0, false};
	const char *unused = NULL, *arg[1];
	const struct cmd_opt opts[] = {
		{"allow-host", CMD_TEXT, &unused, "NQN", "host that may connect, may be repeated "
		 "(those of kvof serve)"}, {.name = NULL}};
	const struct cmd_opt common[] = {WHERE_OPTS(&w), {.name = NULL}};
	const struct cmd_usage u = {.name = "subsys create", .args = "NQN", .least = 1, .most = 1,
		.opts = opts, .common = common,
		.what = "Makes a subsystem: namespaces with a list of hosts of their own."};
	json_t *request, *answer, *hosts = json_array();
	unsigned count;
	int rc = hosts_take(&argc, argv, hosts);

	if (rc < 0)
		rc = cmd_args(&u, argc, argv, arg, &count);
	if (rc >= 0) {
		json_decref(hosts);
		return rc;
	}
	request = json_object();
	text_set(request, "subsystem", arg[0]);
	json_object_set_new(request, "hosts", hosts);
	rc = ask("subsys create", &w, request, &answer);
	return rc >= 0 ? rc : print_one("subsys create", &w, answer);
}

static int subsys_remove(int argc, char **argv)
{
	struct where w = {NULL, 0, false};
	const struct cmd_opt common[] = {WHERE_OPTS(&w), {.name = NULL}};
	const struct cmd_usage u = {.name = "subsys rm", .args = "NQN", .least = 1, .most = 1,
		.common = common,
		.what = "Removes a subsystem without namespaces; its hosts are disconnected."};
	const char *arg[1];
	json_t *request, *answer;
	unsigned count;
	int rc = cmd_args(&u, argc, argv, arg, &count);

	if (rc >= 0)
		return rc;
	request = json_object();
	text_set(request, "subsystem", arg[0]);
	rc = ask("subsys rm", &w, request, &answer);
	return rc >= 0 ? rc : print_one("subsys rm", &w, answer);
}

static int subsys_list(int argc, char **argv)
{
	struct where w = {NULL, 0, false};
	const struct cmd_opt common[] = {WHERE_OPTS(&w), {.name = NULL}};
	const struct cmd_usage u = {.name = "subsys ls", .args = "", .common = common,
		.what = "Lists the subsystems of an array that runs here."};
	json_t *answer, *row;
	unsigned count;
	size_t i;
	int rc = cmd_args(&u, argc, argv, NULL, &count);

	if (rc < 0)
		rc = ask("subsys ls", &w, json_object(), &answer);
	if (rc >= 0)
		return rc;
	if (w.json)
		return cmd_json_print("subsys ls", answer, CMD_DONE);
	json_array_foreach(json_object_get(answer, "subsystems"), i, row) {
		size_t hosts = json_array_size(json_object_get(row, "hosts"));

		printf("%s: %zu namespaces, ", text_in(row, "subsystem"),
		       json_array_size(json_object_get(row, "namespaces")));
		if (hosts > 0)
			printf("%zu hosts\n", hosts);
		else
			printf("the hosts of kvof serve\n");
	}
	json_decref(answer);
	return cmd_output_end("subsys ls", CMD_DONE);
}

/* --- the two commands -------------------- */

struct verb {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *what;
};

static int verb_run(const char *noun, const struct verb verbs[3], int argc, char **argv)
{
	const char *names[] = {verbs[0].name, verbs[1].name, verbs[2].name, NULL}, *near;

	for (unsigned i = 0; argc > 1 && i < 3; i++)
		if (strcmp(argv[1], verbs[i].name) == 0)
			return verbs[i].run(argc - 1, argv + 1);
	if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		printf("usage: kvof %s create|rm|ls ...\n\n", noun);
		for (unsigned i = 0; i < 3; i++)
			printf("  %-8s%s\n", verbs[i].name, verbs[i].what);
		printf("\n`kvof %s create --help` says more.\n", noun);
		return cmd_output_end(noun, CMD_DONE);
	}
	near = argc > 1 ? cmd_nearest(argv[1], names) : NULL;
	if (near != NULL)
		cmd_error(noun, "no \"%s\"; did you mean %s?", argv[1], near);
	else
		cmd_error(noun, "usage: kvof %s create|rm|ls (--help says more)", noun);
	return CMD_USAGE;
}

int cmd_ns(int argc, char **argv)
{
	static const struct verb verbs[3] = {
		{"create", ns_create, "make a namespace while the array serves"},
		{"rm", ns_remove, "remove one, and all that is in it"},
		{"ls", ns_list, "list kind, size, use and identifiers"},
	};

	return verb_run("ns", verbs, argc, argv);
}

int cmd_subsys(int argc, char **argv)
{
	static const struct verb verbs[3] = {
		{"create", subsys_create, "make a subsystem with hosts of its own"},
		{"rm", subsys_remove, "remove one that has no namespaces"},
		{"ls", subsys_list, "list subsystems, their namespaces and hosts"},
	};

	return verb_run("subsys", verbs, argc, argv);
}
