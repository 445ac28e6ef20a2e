/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof plan: what to buy, by arithmetic that is shown. Here its parts are chosen, and what they
 * share stands: files that several read, lists on the command line.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan.h"
#include "plan/text.h"

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *what;
} parts[] = {
	{"calibrate", plan_calibrate, "measures this machine, or fits measured rows: a profile"},
	{"geometry", plan_geometry, "bytes for a token, a rank and a sequence, from a config.json"},
	{"hits", plan_hits, "what a cache of each size hits of a trace: room and rate, told apart"},
	{"move", plan_move, "time of a model's load and switch, and of a checkpoint"},
	{"sla", plan_sla, "sessions and contexts that have their first token in time"},
	{"report", plan_report, "what to buy: local NVMe, an array, memory, or nothing"},
	{"simulate", plan_simulate, "a workload over the arms of a profile, event after event"},
	{"ttft", plan_ttft, "first tokens of a wave of sessions, for each arm of a profile"},
};

static const struct {
	const char *name;
	uint32_t bytes;
} dtypes[] = {{"bf16", 2}, {"fp16", 2}, {"fp8", 1}, {"fp8_e4m3", 1}, {"fp8_e5m2", 1}, {"int8", 1},
	      {"fp32", 4}};

/* --- files ------------------------------------------------------------------------------------ */

/* The line for what a reader of text refused. */
static int text_refused(const char *command, const char *name, int rc,
			const struct kvof_plan_bad *bad)
{
	if (rc == -EINVAL) {
		cmd_error(command, "%s: %s %s", name, bad->field[0] != 0 ? bad->field : "the text",
			  bad->why);
		return CMD_USAGE;
	}
	if (rc != 0)
		cmd_error(command, "%s: no memory for it", name);
	return rc == 0 ? 0 : CMD_FAILED;
}

int plan_config_read(const char *command, const char *name, struct kvof_plan_model *model)
{
	struct kvof_plan_bad bad;
	struct cmd_value text;
	int rc = cmd_file_read(command, name, KVOF_PLAN_CONFIG_BYTES_MAX, &text);

	if (rc != 0)
		return rc;
	rc = kvof_plan_model_read(text.at, text.bytes, model, &bad);
	free(text.at);
	return text_refused(command, name, rc, &bad);
}

int plan_geometry_read(const char *command, const char *name, const struct kvof_plan_split *split,
		       struct kvof_plan_model *model, struct kvof_plan_geometry *geometry)
{
	struct kvof_plan_bad bad;
	int rc = plan_config_read(command, name, model);

	if (rc != 0 || kvof_plan_geometry(model, split, geometry, &bad) == 0)
		return rc;
	cmd_error(command, "%s: %s: %s", name, bad.field, bad.why);
	return CMD_REFUSED;
}

int plan_profile_load(const char *command, const char *name, struct plan_profile *profile)
{
	struct kvof_plan_bad bad;
	struct cmd_value text;
	int rc = cmd_file_read(command, name, PLAN_PROFILE_BYTES_MAX, &text);

	if (rc != 0)
		return rc;
	rc = plan_profile_read(text.at, text.bytes, profile, &bad);
	free(text.at);
	return text_refused(command, name, rc, &bad);
}

/* --- the command line ------------------------------------------------------------------------- */

int plan_dtype_find(const char *command, const char *text, uint32_t *elem_bytes)
{
	const char *names[ARRAY_COUNT(dtypes) + 1] = {NULL}, *near;

	for (size_t i = 0; i < ARRAY_COUNT(dtypes); i++) {
		names[i] = dtypes[i].name;
		if (strcmp(dtypes[i].name, text) != 0)
			continue;
		*elem_bytes = dtypes[i].bytes;
		return 0;
	}
	near = cmd_nearest(text, names);
	cmd_error(command, near != NULL ? "--kv-dtype %s: not known; did you mean %s?" :
		  "--kv-dtype %s: not known; there are bf16, fp16, fp8, fp8_e4m3, fp8_e5m2, int8, "
		  "fp32", text, near);
	return CMD_USAGE;
}

/* Numbers between commas. */
static int list_add(const char *command, const char *option, struct plan_list *list,
		    const char *text)
{
	char word[24];
	uint64_t value;

	for (;;) {
		size_t bytes = strcspn(text, ",");

		snprintf(word, sizeof(word), "%.*s", (int)(bytes < 23 ? bytes : 23), text);
		if (bytes >= sizeof(word) || !cmd_count_parse(word, &value) ||
		    value < list->least || value > list->largest) {
			cmd_error(command, "--%s %s: not whole numbers from %" PRIu64 " to %"
				  PRIu64, option, text, list->least, list->largest);
			return CMD_USAGE;
		}
		if (list->count == list->most) {
			cmd_error(command, "--%s: more than %u", option, list->most);
			return CMD_USAGE;
		}
		list->value[list->count++] = value;
		if (text[bytes] == 0)
			return 0;
		text += bytes + 1;
	}
}

int plan_list_take(const char *command, const char *option, struct plan_list *list, int *argc,
		   char **argv)
{
	size_t bytes = strlen(option);
	int kept = 1, rc = 0;

	for (int i = 1; i < *argc && rc == 0; i++) {
		bool is = strncmp(argv[i], "--", 2) == 0 &&
			  strncmp(argv[i] + 2, option, bytes) == 0;

		if (is && argv[i][2 + bytes] == '=') {
			rc = list_add(command, option, list, argv[i] + 3 + bytes);
		} else if (is && argv[i][2 + bytes] == 0) {
			if (i + 1 == *argc || argv[i + 1][0] == '-') {
				cmd_error(command, "--%s needs a value", option);
				return CMD_USAGE;
			}
			while (rc == 0 && i + 1 < *argc && argv[i + 1][0] != '-')
				rc = list_add(command, option, list, argv[++i]);
		} else {
			argv[kept++] = argv[i];
		}
	}
	*argc = kept;
	return rc;
}

const char *plan_name_text(const char *name, char out[PLAN_NAME_BYTES])
{
	plan_text_put(out, PLAN_NAME_BYTES, name);
	return out;
}

const char *plan_bytes_text(double bytes, char out[64])
{
	if (bytes >= 1e8)
		snprintf(out, 64, "%.3f GB (%.3f GiB)", bytes / 1e9, bytes / 1073741824);
	else if (bytes >= 1e5)
		snprintf(out, 64, "%.3f MB (%.3f MiB)", bytes / 1e6, bytes / 1048576);
	else
		snprintf(out, 64, "%.2f KiB", bytes / 1024);
	return out;
}

static int plan_help(void)
{
	printf("usage: kvof plan PART [OPTIONS]\n\n"
	       "Local flash or an array, how much, how fast: with the arithmetic shown.\n\n");
	for (size_t i = 0; i < ARRAY_COUNT(parts); i++)
		printf("  %-10s%s\n", parts[i].name, parts[i].what);
	printf("\n`kvof plan PART --help` says more; docs/plan.md has the model and its limits.\n");
	return cmd_output_end("plan", CMD_DONE);
}

int cmd_plan(int argc, char **argv)
{
	const char *names[ARRAY_COUNT(parts) + 1] = {NULL}, *near;
	char all[160] = "";

	for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
		names[i] = parts[i].name;
		snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", i > 0 ? ", " : "",
			 names[i]);
		if (argc >= 2 && strcmp(argv[1], names[i]) == 0)
			return parts[i].run(argc - 1, argv + 1);
	}
	if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
		return plan_help();
	if (argc < 2) {
		cmd_error("plan", "usage: kvof plan PART (one of: %s; --help says more)", all);
		return CMD_USAGE;
	}
	near = cmd_nearest(argv[1], names);
	cmd_error("plan", near != NULL ? "%s: no such part; did you mean %s?" :
		  "%s: no such part; there are %s", argv[1], near != NULL ? near : all);
	return CMD_USAGE;
}
