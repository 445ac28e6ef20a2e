/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input file of `kvof plan report`: `key = value` under `[section]`, by the table of
 * tbl/plan_input.def. Unknown keys are errors that name the nearest known one. And the example.
 */
#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan_report.h"

#define INI_LINE_MAX 198u                  /* what inih reads whole */

/* What nobody has told anything about is shown this one. Prices are made up. */
const char plan_input_example[] =
	"# kvof plan report --input FILE. Every key is also a flag: --array-drives 24.\n"
	"# GB is 1e9 bytes, GiB is 2^30; every size, rate and time has its unit. What is left out\n"
	"# has a standard value, which the report says.\n"
	"\n"
	"[model]\n"
	"name = Qwen3-Coder-480B\n"
	"# config = config.json          ; instead of the next line\n"
	"bytes_per_token = 248 KiB\n"
	"weights = 450 GB\n"
	"tp = 8\n"
	"prefill = 3700 tokens/s\n"
	"\n"
	"[workload]\n"
	"preset = multi-turn\n"
	"# trace = trace.jsonl           ; instead of the preset\n"
	"hosts = 2\n"
	"sessions = 12\n"
	"tokens = 30208\n"
	"output = 500\n"
	"requests = 1200 /h\n"
	"kept = 3000\n"
	"\n"
	"[gpu]\n"
	"count = 8\n"
	"memory = 192 GB\n"
	"\n"
	"[dram]\n"
	"size = 512 GiB\n"
	"\n"
	"[local]\n"
	"drives = 1\n"
	"\n"
	"[array]\n"
	"drives = 8\n"
	"ports = 4\n"
	"\n"
	"[drives]\n"
	"capacity = 7.68 TB\n"
	"read = 6.9 GB/s\n"
	"write = 4 GB/s\n"
	"tbw = 14 PB\n"
	"\n"
	"[link]\n"
	"port = 100 Gbit/s\n"
	"ports = 1\n"
	"\n"
	"[sla]\n"
	"ttft = 30 s\n"
	"quantile = p90\n"
	"\n"
	"# made up; put in your own\n"
	"[prices]\n"
	"gpu_hour = 2.5\n"
	"local_drive = 1200\n"
	"array = 60000\n"
	"running_per_day = 20\n";

struct reading {
	struct plan_input *in;
	char *why;
	int rc;
};

static bool section_known(const char *section)
{
	for (unsigned i = 0; i < PLAN_IN_COUNT; i++)
		if (strcmp(plan_input_row((enum plan_input_id)i)->section, section) == 0)
			return true;
	return false;
}

/* "such a key is in [other]", or the nearest name of the section; empty: nothing is near. */
static void hint_find(const char *section, const char *name, char hint[160])
{
	const char *names[PLAN_IN_COUNT + 1] = {NULL}, *near;
	unsigned count = 0;
	bool by_section = section_known(section);

	hint[0] = 0;
	for (unsigned i = 0; i < PLAN_IN_COUNT; i++) {
		const struct plan_input_row *row = plan_input_row((enum plan_input_id)i);

		if (!by_section)
			names[count++] = row->section;
		else if (strcmp(row->section, section) == 0)
			names[count++] = row->name;
		if (strcmp(row->name, name) == 0 && hint[0] == 0)
			snprintf(hint, 160, "; [%s] has one", row->section);
	}
	near = cmd_nearest(by_section ? name : section, names);
	if (near != NULL)
		snprintf(hint, 160, by_section ? "; nearest is %s" : "; nearest is [%s]", near);
}

static int pair(void *user, const char *section, const char *name, const char *value)
{
	struct reading *r = user;
	int id = plan_input_find(section, name);
	struct kvof_plan_bad bad;
	char hint[160];

	if (r->rc != 0)
		return 1;                        /* the first error is told */
	if (id < 0) {
		hint_find(section, name, hint);
		snprintf(r->why, 400, "[%.60s] %.60s: no such key%s", section, name, hint);
		r->rc = -EINVAL;
	} else if (plan_input_set(r->in, (enum plan_input_id)id, PLAN_IN_FILE, value, &bad) != 0) {
		snprintf(r->why, 400, "%s: %s", bad.field, bad.why);
		r->rc = -EINVAL;
	}
	return r->rc == 0;
}

static int lines_check(const char *text, size_t bytes, char why[512])
{
	unsigned line = 1, width = 0;

	for (size_t i = 0; i < bytes; i++) {
		width = text[i] == '\n' ? 0 : width + 1;
		line += text[i] == '\n';
		if (text[i] != 0 && width <= INI_LINE_MAX)
			continue;
		snprintf(why, 512, "%u: %s", line, text[i] == 0 ? "a NUL byte: not a text file" :
			 "line too long");
		return -EINVAL;
	}
	return 0;
}

int plan_input_read(const char *text, size_t bytes, struct plan_input *in, char why[512])
{
	char inner[400] = "not `key = value` or `[section]`";
	struct reading r = {in, inner, 0};
	int line;

	must(text[bytes] == 0);
	if (lines_check(text, bytes, why) != 0)
		return -EINVAL;
	line = ini_parse_string(text, pair, &r);
	if (line == 0)
		return 0;
	snprintf(why, 512, line < 0 ? "no memory" : "%d: %s", line, inner);
	for (char *at = why; *at != 0; at++)       /* one line, whatever was in the file */
		if ((unsigned char)*at < ' ' || *at == 127)
			*at = '?';
	return line < 0 ? -ENOMEM : -EINVAL;
}
