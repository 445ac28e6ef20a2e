/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof plan report: what to buy, with the arithmetic shown. Reads the input file, a config.json, a
 * trace and profiles; what it then works out is in plan/report.h. The clock is read once, for the
 * date on which drives are worn out.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan.h"
#include "cmd/plan_report.h"
#include "cmd/traces.h"

#define NAME "plan report"
#define PATH_BYTES 4096

struct asked {
	struct plan_input in;
	const char *input, *html;
	const char *profile[REPORT_PROFILES_MAX];
	unsigned profiles;
	bool json, help, example, any;     /* any: something about the plan was told */
};

/* All that one report needs; large, so not on the stack. */
struct work {
	struct asked asked;
	struct kvof_plan_model model;
	struct kvof_plan_work weights;
	struct trace trace;
	struct plan_profile profile[REPORT_PROFILES_MAX];
	struct report report;
};

/* --- flags ------------------------------------------------------------------------- */

static void flag_of(enum plan_input_id id, char out[96])
{
	const struct plan_input_row *row = plan_input_row(id);

	snprintf(out, 96, "%s-%s", row->section, row->name);
	for (char *at = out; *at != 0; at++)
		*at = *at == '_' ? '-' : *at;
}

static int flag_unknown(const char *flag)
{
	static char names[PLAN_IN_COUNT][96];
	const char *list[PLAN_IN_COUNT + 8] = {NULL}, *near;
	static const char *const own[] = {"input", "profile", "html", "json", "example", "help"};
	unsigned count = 0;

	for (unsigned i = 0; i < PLAN_IN_COUNT; i++) {
		flag_of((enum plan_input_id)i, names[i]);
		list[count++] = names[i];
	}
	for (unsigned i = 0; i < ARRAY_COUNT(own); i++)
		list[count++] = own[i];
	near = cmd_nearest(flag, list);
	cmd_error(NAME, near != NULL ? "--%s: no such option; nearest is --%s" :
		  "--%s: no such option; --help lists them", flag, near);
	return CMD_USAGE;
}

static int flag_value(struct asked *a, const char *flag, const char *value)
{
	struct kvof_plan_bad bad;
	const char **into = strcmp(flag, "input") == 0 ? &a->input :
		strcmp(flag, "html") == 0 ? &a->html : NULL;
	int id = plan_input_find_flag(flag);

	if (into != NULL && *into != NULL) {
		cmd_error(NAME, "--%s: given twice", flag);
		return CMD_USAGE;
	}
	if (into != NULL) {
		*into = value;
		return 0;
	}
	if (strcmp(flag, "profile") == 0) {
		if (a->profiles == REPORT_PROFILES_MAX) {
			cmd_error(NAME, "--profile: more than %u", REPORT_PROFILES_MAX);
			return CMD_USAGE;
		}
		a->profile[a->profiles++] = value;
		return 0;
	}
	if (plan_input_set(&a->in, (enum plan_input_id)id, PLAN_IN_FLAG, value, &bad) == 0)
		return 0;
	cmd_error(NAME, "--%s: %s", flag, bad.why);
	return CMD_USAGE;
}

/* The flag at argv[*at]; its value may be the next word or follow '='. */
static int flag_read(struct asked *a, int argc, char **argv, int *at)
{
	const char *word = argv[*at], *equals = strchrnul(word, '=');
	char flag[96] = "";

	if (strncmp(word, "--", 2) != 0) {
		cmd_error(NAME, "%s: an argument that no option asks for; --input %s?", word,
			  word);
		return CMD_USAGE;
	}
	snprintf(flag, sizeof(flag), "%.*s", (int)(equals - word - 2), word + 2);
	if (strcmp(flag, "input") != 0 && strcmp(flag, "profile") != 0 &&
	    strcmp(flag, "html") != 0 && plan_input_find_flag(flag) < 0)
		return flag_unknown(flag);
	if (*equals != '=' && *at + 1 == argc) {
		cmd_error(NAME, "--%s: needs a value", flag);
		return CMD_USAGE;
	}
	a->any = a->any || strcmp(flag, "html") != 0;
	return flag_value(a, flag, *equals == '=' ? equals + 1 : argv[++*at]);
}

static int flags_read(struct asked *a, int argc, char **argv)
{
	int rc = 0;

	plan_input_begin(&a->in);
	for (int i = 1; i < argc && rc == 0; i++) {
		bool *flag = strcmp(argv[i], "--json") == 0 ? &a->json :
			strcmp(argv[i], "--example") == 0 ? &a->example :
			strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0 ? &a->help :
			NULL;

		if (flag != NULL)
			*flag = true;
		else
			rc = flag_read(a, argc, argv, &i);
	}
	return rc;
}

static int help(void)
{
	const char *section = "";
	char flag[96];

	printf("usage: kvof plan report [--input FILE] [OPTIONS]\n\n"
	       "Local NVMe, an array, memory, or nothing: what to buy, with the arithmetic.\n\n"
	       "  --input FILE    INI file with the keys below; - is standard input\n"
	       "  --profile FILE  of kvof plan calibrate; may come %u times\n"
	       "  --html FILE     one page with pictures, needs nothing else\n"
	       "  --json          print JSON\n"
	       "  --example       print an input file\n\n"
	       "Without input the report is of that example. Each key of the file is a flag, a\n"
	       "flag beats the file. GB is 1e9, GiB 2^30; sizes, rates and times need a unit.\n",
	       REPORT_PROFILES_MAX);
	for (unsigned i = 0; i < PLAN_IN_COUNT; i++) {
		const struct plan_input_row *row = plan_input_row((enum plan_input_id)i);

		flag_of((enum plan_input_id)i, flag);
		if (strcmp(section, row->section) != 0)
			printf("\n[%s]\n", row->section);
		section = row->section;
		printf("  --%-26s %s%s%s%s%s%s\n", flag, row->text,
		       row->choices[0] != 0 ? " " : "", row->choices,
		       row->standard[0] != 0 ? " (" : "", row->standard,
		       row->standard[0] != 0 ? ")" : "");
	}
	printf("\n  kvof plan report --example > plan.ini; kvof plan report --input plan.ini\n"
	       "\ndocs/plan.md has the model, its assumptions and where it fails.\n");
	return cmd_output_end(NAME, CMD_DONE);
}

/* --- files ---------------------------------------------------------------------------- */

static int input_load(struct asked *a)
{
	const char *name = a->input != NULL ? a->input : "the example";
	struct cmd_value file = {NULL, 0};
	struct kvof_plan_bad bad;
	char why[512], *text;
	int rc = 0;

	if (a->input != NULL)
		rc = cmd_file_read(NAME, a->input, PLAN_INPUT_BYTES_MAX, &file);
	if (rc != 0)
		return rc;
	text = a->input == NULL ? strdup(a->any ? "" : plan_input_example) :
		calloc(1, file.bytes + 1);
	if (text != NULL && a->input != NULL && file.bytes > 0)
		memcpy(text, file.at, file.bytes);
	free(file.at);
	if (text == NULL) {
		cmd_error(NAME, "no memory for %s", name);
		return CMD_FAILED;
	}
	rc = plan_input_read(text, a->input != NULL ? file.bytes : strlen(text), &a->in, why);
	free(text);
	if (rc != 0) {
		cmd_error(NAME, "%s:%s", name, why);
		return rc == -EINVAL ? CMD_USAGE : CMD_FAILED;
	}
	if (plan_input_check(&a->in, &bad) == 0)
		return 0;
	cmd_error(NAME, "%s: %s", bad.field, bad.why);
	return CMD_USAGE;
}

/* A path of the input file is beside it; one of a flag is as it is. */
static void path_of(const struct asked *a, enum plan_input_id id, char out[PATH_BYTES])
{
	const char *path = plan_input_text(&a->in, id), *slash;

	slash = a->input != NULL ? strrchr(a->input, '/') : NULL;
	if (a->in.value[id].origin != PLAN_IN_FILE || slash == NULL || path[0] == '/')
		snprintf(out, PATH_BYTES, "%s", path);
	else
		snprintf(out, PATH_BYTES, "%.*s/%s", (int)(slash - a->input), a->input, path);
}

/* Weights where the family is known; where it isn't, they are simply not told. */
static int config_load(struct work *w, bool *has_work)
{
	struct kvof_plan_bad bad;
	struct cmd_value text;
	char path[PATH_BYTES];
	int rc;

	path_of(&w->asked, PLAN_IN_model_config, path);
	rc = plan_config_read(NAME, path, &w->model);
	if (rc != 0 || strcmp(path, "-") == 0)
		return rc;
	rc = cmd_file_read(NAME, path, KVOF_PLAN_CONFIG_BYTES_MAX, &text);
	if (rc != 0)
		return rc;
	*has_work = kvof_plan_work_read(text.at, text.bytes, &w->weights, &bad) == 0;
	free(text.at);
	return 0;
}

static int trace_load(struct work *w)
{
	char path[PATH_BYTES];

	path_of(&w->asked, PLAN_IN_workload_trace, path);
	return traces_read(NAME, path, 0, &w->trace);
}

/* --- the report -------------------------------------------------------------------------- */

static int report_run(struct work *w)
{
	struct asked *a = &w->asked;
	struct report_ask ask = {.in = &a->in, .profile = w->profile, .profiles = a->profiles,
		.today_days = (double)time(NULL) / 86400};
	struct kvof_plan_bad bad;
	bool has_work = false;
	int rc = 0;

	if (plan_input_has(&a->in, PLAN_IN_model_config)) {
		rc = config_load(w, &has_work);
		ask.model = &w->model;
		ask.work = has_work ? &w->weights : NULL;
	}
	if (rc == 0 && plan_input_has(&a->in, PLAN_IN_workload_trace)) {
		rc = trace_load(w);
		ask.trace = &w->trace;
	}
	for (unsigned i = 0; i < a->profiles && rc == 0; i++) {
		rc = plan_profile_load(NAME, a->profile[i], &w->profile[i]);
		ask.profile_name[i] = a->profile[i];
	}
	if (rc != 0)
		return rc;
	rc = report_make(&ask, &w->report, &bad);
	if (rc == -EINVAL)
		cmd_error(NAME, "%s: %s", bad.field[0] != 0 ? bad.field : "what was asked",
			  bad.why);
	else if (rc != 0)
		cmd_error(NAME, "no memory");
	return rc == 0 ? 0 : rc == -EINVAL ? CMD_REFUSED : CMD_FAILED;
}

static int report_show(const struct work *w)
{
	const struct asked *a = &w->asked;
	json_t *all;

	if (a->html != NULL) {
		int rc = plan_html_write(a->html, &w->report, !a->any);

		if (rc != 0 || strcmp(a->html, "-") == 0)
			return rc;
	}
	if (!a->json)
		return plan_page_print(&w->report, !a->any);
	all = plan_report_json(&w->report, !a->any);
	if (all != NULL)
		return cmd_json_print(NAME, all, CMD_DONE);
	cmd_error(NAME, "no memory");
	return CMD_FAILED;
}

int plan_report(int argc, char **argv)
{
	struct work *w = calloc(1, sizeof(*w));
	int rc;

	if (w == NULL) {
		cmd_error(NAME, "no memory");
		return CMD_FAILED;
	}
	rc = flags_read(&w->asked, argc, argv);
	if (rc == 0 && w->asked.help) {
		rc = help();
	} else if (rc == 0 && w->asked.example) {
		fputs(plan_input_example, stdout);
		rc = cmd_output_end(NAME, CMD_DONE);
	} else if (rc == 0) {
		rc = input_load(&w->asked);
		if (rc == 0)
			rc = report_run(w);
		if (rc == 0)
			rc = report_show(w);
	}
	trace_free(&w->trace);
	free(w);
	return rc;
}
