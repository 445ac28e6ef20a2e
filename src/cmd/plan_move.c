/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof plan move: how long a model takes to load and to switch, and a checkpoint to save
 * (docs/plan.md). Reads a config.json if one is given, writes nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan.h"

#define NAME "plan move"

struct move_ask {
	const char *model_name, *read, *write, *copy, *per_hour, *fixed;
	uint64_t weight_bytes, checkpoint_bytes, fixed_ns, save_fixed_ns, switch_ns, interval_ns;
	double seen_bytes[2], seen_s[2];
	unsigned seen;
	bool json;
};

struct move {
	struct kvof_plan_work work;
	double weight_bytes, checkpoint_bytes;
	bool has_line, has_switch, has_checkpoint;
	struct kvof_plan_line line;
	double load_s;
	struct kvof_plan_switch change;
	struct kvof_plan_checkpoint checkpoint;
};

/* "6.4 GB/s": bytes a second; NULL: 0. */
static int rate_read(const char *option, const char *text, double *out)
{
	char word[32];
	size_t bytes = text != NULL ? strlen(text) : 0;
	uint64_t value = 0;

	*out = 0;
	if (text == NULL)
		return 0;
	if (bytes > 2 && strcmp(text + bytes - 2, "/s") == 0)
		bytes -= 2;
	snprintf(word, sizeof(word), "%.*s", (int)(bytes < 31 ? bytes : 31), text);
	if (bytes >= sizeof(word) || !cmd_bytes_parse(word, false, &value) || value == 0) {
		cmd_error(NAME, "--%s %s: not bytes a second, as 6.4GB/s", option, text);
		return CMD_USAGE;
	}
	*out = (double)value;
	return 0;
}

/* SIZE=TIME */
static int seen_add(struct move_ask *ask, const char *text)
{
	const char *equals = text != NULL ? strchr(text, '=') : NULL;
	uint64_t bytes = 0, ns = 0;
	char size[32];

	if (equals != NULL)
		snprintf(size, sizeof(size), "%.*s", (int)(equals - text < 31 ? equals - text : 31),
			 text);
	if (equals == NULL || (size_t)(equals - text) >= sizeof(size) ||
	    !cmd_bytes_parse(size, false, &bytes) ||
	    !cmd_time_parse(equals + 1, false, &ns)) {
		cmd_error(NAME, "--seen %s: not SIZE=TIME, as 65.5GB=112s",
			  text != NULL ? text : "");
		return CMD_USAGE;
	}
	if (ask->seen == 2) {
		cmd_error(NAME, "--seen: a line goes through two loads, not more");
		return CMD_USAGE;
	}
	ask->seen_bytes[ask->seen] = (double)bytes;
	ask->seen_s[ask->seen++] = (double)ns / 1e9;
	return 0;
}

/* --seen comes twice, which options of a table can't: they are taken out. */
static int seen_take(struct move_ask *ask, int *argc, char **argv)
{
	int kept = 1, rc = 0;

	for (int i = 1; i < *argc && rc == 0; i++) {
		if (strncmp(argv[i], "--seen=", 7) == 0)
			rc = seen_add(ask, argv[i] + 7);
		else if (strcmp(argv[i], "--seen") == 0)
			rc = seen_add(ask, ++i < *argc ? argv[i] : NULL);
		else
			argv[kept++] = argv[i];
	}
	*argc = kept;
	return rc;
}

/* --- work --------------------------------------------------------------------------- */

static int refused(const struct kvof_plan_bad *bad)
{
	cmd_error(NAME, "%s: %s", bad->field, bad->why);
	return CMD_REFUSED;
}

static int weights_find(const struct move_ask *ask, struct move *m)
{
	struct kvof_plan_bad bad;
	struct cmd_value text;
	int rc;

	m->weight_bytes = (double)ask->weight_bytes;
	if (ask->model_name == NULL)
		return 0;
	rc = cmd_file_read(NAME, ask->model_name, KVOF_PLAN_CONFIG_BYTES_MAX, &text);
	if (rc != 0)
		return rc;
	rc = kvof_plan_work_read(text.at, text.bytes, &m->work, &bad);
	free(text.at);
	if (rc != 0) {
		cmd_error(NAME, "%s: %s %s", ask->model_name, rc != -EINVAL ? "no memory" :
			  bad.field[0] != 0 ? bad.field : "the text", rc != -EINVAL ? "for it" :
			  bad.why);
		return rc == -EINVAL ? CMD_USAGE : CMD_FAILED;
	}
	if (m->weight_bytes > 0)
		return 0;
	m->weight_bytes = (double)m->work.weight_bytes;
	if (m->weight_bytes > 0)
		return 0;
	cmd_error(NAME, "%s: %s; give --weights SIZE", ask->model_name, m->work.weight_dtype);
	return CMD_USAGE;
}

static int load_make(const struct move_ask *ask, double read, struct move *m)
{
	struct kvof_plan_bad bad;

	m->has_line = ask->seen == 2 || read > 0;
	if (ask->seen == 2 && read > 0) {
		cmd_error(NAME, "--seen and --read: a rate is seen or given, not both");
		return CMD_USAGE;
	}
	if (ask->seen == 1) {
		cmd_error(NAME, "--seen: a line goes through two loads; give another one");
		return CMD_USAGE;
	}
	if (ask->seen == 2 && kvof_plan_line_fit(ask->seen_bytes, ask->seen_s, &m->line, &bad) != 0)
		return refused(&bad);
	if (ask->seen == 0)
		m->line = (struct kvof_plan_line){(double)ask->fixed_ns / 1e9, read};
	if (m->has_line && m->weight_bytes > 0)
		m->load_s = kvof_plan_line_s(&m->line, m->weight_bytes);
	return 0;
}

static int switch_make(const struct move_ask *ask, struct move *m)
{
	uint64_t per_hour = 0;

	m->has_switch = ask->per_hour != NULL;
	if (!m->has_switch)
		return 0;
	if (!cmd_count_parse(ask->per_hour, &per_hour)) {
		cmd_error(NAME, "--per-hour %s: not a count", ask->per_hour);
		return CMD_USAGE;
	}
	m->change.per_hour = (double)per_hour;
	m->change.switch_s = ask->switch_ns > 0 ? (double)ask->switch_ns / 1e9 : m->load_s;
	if (m->change.switch_s > 0)
		return 0;
	cmd_error(NAME, "--per-hour: how long a switch takes is missing; give --switch, or a model "
		  "and how fast it loads");
	return CMD_USAGE;
}

static int checkpoint_make(const struct move_ask *ask, double write, double copy, struct move *m)
{
	struct kvof_plan_checkpoint_ask c = {.bytes = (double)ask->checkpoint_bytes,
		.fixed_s = (double)ask->save_fixed_ns / 1e9, .write_bytes_per_s = write,
		.copy_bytes_per_s = copy, .interval_s = (double)ask->interval_ns / 1e9};
	struct kvof_plan_bad bad;

	m->has_checkpoint = write > 0;
	if (!m->has_checkpoint) {
		if (c.bytes <= 0)
			return 0;
		cmd_error(NAME, "--checkpoint: the rate of writes is missing; give --write");
		return CMD_USAGE;
	}
	if (c.bytes <= 0)
		c.bytes = m->weight_bytes;
	m->checkpoint_bytes = c.bytes;
	return kvof_plan_checkpoint_make(&c, &m->checkpoint, &bad) != 0 ? refused(&bad) : 0;
}

/* --- what is shown ------------------------------------------------------------------ */

static int move_json(const struct move *m)
{
	json_t *all = json_object();

	json_object_set_new(all, "weight_bytes", m->weight_bytes > 0 ?
			    json_integer((json_int_t)m->weight_bytes) : json_null());
	json_object_set_new(all, "params", m->work.params > 0 ?
			    json_integer((json_int_t)m->work.params) : json_null());
	json_object_set_new(all, "load", !m->has_line ? json_null() :
		json_pack("{s:f, s:f, s:o}", "fixed_s", m->line.fixed_s,
			"bytes_per_s", m->line.bytes_per_s,
			"load_s", m->load_s > 0 ? json_real(m->load_s) : json_null()));
	json_object_set_new(all, "switch", !m->has_switch ? json_null() :
		json_pack("{s:f, s:f, s:f}", "per_hour", m->change.per_hour,
			"switch_s", m->change.switch_s,
			"use", kvof_plan_switch_use(&m->change)));
	json_object_set_new(all, "checkpoint", !m->has_checkpoint ? json_null() :
		json_pack("{s:f, s:f, s:f, s:f, s:o}", "bytes", m->checkpoint_bytes,
			"total_s", m->checkpoint.total_s, "blocked_s", m->checkpoint.blocked_s,
			"least_interval_s", m->checkpoint.least_interval_s,
			"use", m->checkpoint.use > 0 ? json_real(m->checkpoint.use) : json_null()));
	return cmd_json_print(NAME, all, CMD_DONE);
}

static int move_print(const struct move *m)
{
	char text[64];

	if (m->work.params > 0)
		printf("%s: %.3f e9 parameters, %.3f e9 of them active for a token (%s)\n",
		       m->work.type, (double)m->work.params / 1e9,
		       (double)m->work.active_params / 1e9, m->work.weight_dtype);
	if (m->weight_bytes > 0)
		printf("weights  %s\n", plan_bytes_text(m->weight_bytes, text));
	if (m->has_line) {
		printf("load     %.1f s fixed + bytes / %.4g bytes/s (%.3f GB/s)", m->line.fixed_s,
		       m->line.bytes_per_s, m->line.bytes_per_s / 1e9);
		printf(m->load_s > 0 ? " = %.1f s\n" : "\n", m->load_s);
	}
	if (m->has_switch)
		printf("switch   1 - %.0f an hour x %.1f s / 3600 s = %.1f %% of the time serves\n",
		       m->change.per_hour, m->change.switch_s,
		       100 * kvof_plan_switch_use(&m->change));
	if (m->has_checkpoint) {
		printf("save     %s until it is safe: %.1f s, of which training waits %.1f s\n",
		       plan_bytes_text(m->checkpoint_bytes, text), m->checkpoint.total_s,
		       m->checkpoint.blocked_s);
		if (m->checkpoint.use > 0)
			printf("         %.1f %% of the time trains\n", 100 * m->checkpoint.use);
	}
	return cmd_output_end(NAME, CMD_DONE);
}

static int move_run(const struct move_ask *ask)
{
	struct move m = {0};
	double read, write, copy;
	int rc = rate_read("read", ask->read, &read);

	if (rc == 0)
		rc = rate_read("write", ask->write, &write);
	if (rc == 0)
		rc = rate_read("copy", ask->copy, &copy);
	if (rc == 0)
		rc = weights_find(ask, &m);
	if (rc == 0)
		rc = load_make(ask, read, &m);
	if (rc == 0)
		rc = switch_make(ask, &m);
	if (rc == 0)
		rc = checkpoint_make(ask, write, copy, &m);
	if (rc != 0)
		return rc;
	if (m.weight_bytes == 0 && !m.has_line && !m.has_switch && !m.has_checkpoint) {
		cmd_error(NAME, "nothing is asked: give --model or --weights, and --read, --seen, "
			  "--per-hour or --write (--help says more)");
		return CMD_USAGE;
	}
	return ask->json ? move_json(&m) : move_print(&m);
}

int plan_move(int argc, char **argv)
{
	struct move_ask ask = {0};
	const struct cmd_opt opts[] = {
		{"model", CMD_TEXT, &ask.model_name, "CONFIG.json", "of Hugging Face; - is "
			"standard input"},
		{"weights", CMD_BYTES, &ask.weight_bytes, "SIZE", "instead, or for a type that is "
			"not known"},
		{"read", CMD_TEXT, &ask.read, "RATE", "at which weights come, as 6.4GB/s"},
		{"fixed", CMD_TIME, &ask.fixed_ns, "TIME", "of a load that bytes don't take; 0"},
		{"per-hour", CMD_TEXT, &ask.per_hour, "N", "model switches"},
		{"switch", CMD_TIME, &ask.switch_ns, "TIME", "one takes; else the load"},
		{"write", CMD_TEXT, &ask.write, "RATE", "at which a checkpoint goes"},
		{"checkpoint", CMD_BYTES, &ask.checkpoint_bytes, "SIZE", "of all ranks; else the "
			"weights"},
		{"save-fixed", CMD_TIME, &ask.save_fixed_ns, "TIME", "of a save that bytes don't "
			"take; 0"},
		{"copy", CMD_TEXT, &ask.copy, "RATE", "to host memory, if training goes on after"},
		{"interval", CMD_TIME, &ask.interval_ns, "TIME", "of training between two saves"},
		{"json", CMD_FLAG, &ask.json, NULL, "print JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = NAME, .args = "[--seen SIZE=TIME --seen SIZE=TIME]", .opts = opts,
		.what = "How long a model takes to load and to switch, and a checkpoint to save.",
		.more = "--seen SIZE=TIME, twice: two loads that were measured. The line through\n"
			"them tells the rate and what does not depend on bytes.\n\n"
			"  kvof plan move --seen 65.5GB=112s --seen 141.1GB=150s --weights 482GB\n"
			"  kvof plan move --model config.json --read 6.4GB/s --per-hour 20\n",
	};
	unsigned none;
	int rc = seen_take(&ask, &argc, argv);

	if (rc != 0)
		return rc;
	rc = cmd_args(&u, argc, argv, NULL, &none);
	return rc >= 0 ? rc : move_run(&ask);
}
