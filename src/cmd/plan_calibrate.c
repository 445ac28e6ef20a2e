/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof plan calibrate: a profile, from rows that somebody measured (--rows) or from this machine
 * (plan_measure.c). Reads a table and perhaps a config.json, writes the profile; the lines that
 * were fitted, each row beside its line, and what was assumed are shown.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan.h"
#include "cmd/plan_measure.h"
#include "plan/rows.h"
#include "plan/text.h"
#include "plan/use.h"

#define NAME "plan calibrate"
#define ONLY_MAX 8u

struct calibrate {
	const char *rows_name, *profile_name, *model_name, *dtype;
	const char *machine, *engine, *precision;
	unsigned output_tokens;
	bool json, keep_odd;
	struct plan_rows_only only[ONLY_MAX];
	uint32_t only_count;
	struct plan_rows rows;
	struct kvof_plan_fit_out fit;
	struct plan_profile profile;
};

/* --- as a page -------------------------------------------------------------------------------- */

static void rate_print(const struct calibrate *c, const struct kvof_plan_fit *fit)
{
	const struct kvof_plan_arm *arm = &fit->arm;
	const struct kvof_plan_row *row = NULL;
	char text[64];

	for (uint32_t i = 0; i < c->rows.count && row == NULL; i++)
		if (c->rows.row[i].kind == arm->kind)
			row = &c->rows.row[i];
	must(row != NULL);
	if (arm->free_loads > 0)
		printf("  sessions below: less %.2f that cost nothing\n", arm->free_loads);
	printf("  last   = %.3f s", arm->fixed_s);
	if (arm->session_s > 0)
		printf(" + %.4f s x sessions", arm->session_s);
	if (arm->bytes_per_s > 0) {
		printf(" + sessions x bytes / %.4g bytes/s (%.3f GB/s, %.3f GiB/s)\n",
		       arm->bytes_per_s, arm->bytes_per_s / 1e9, arm->bytes_per_s / 1073741824);
		printf("           with %s: %.3f s + sessions x %.4f s\n",
		       plan_bytes_text(row->bytes, text), arm->fixed_s,
		       arm->session_s + row->bytes / arm->bytes_per_s);
		return;
	}
	printf(" + sessions x tokens / %.1f tokens/s", arm->tokens_per_s);
	if (arm->token2_s > 0)
		printf(" + sessions x tokens^2 x %.3g s", arm->token2_s);
	printf("\n           with %.0f tokens: %.3f s + sessions x %.4f s\n", row->tokens,
	       arm->fixed_s, arm->session_s + row->tokens / arm->tokens_per_s +
	       row->tokens * row->tokens * arm->token2_s);
}

static void cell_print(double measured, double line)
{
	if (measured > 0 && line > 0)
		printf("  %9.2f %9.2f %+6.1f %%", measured, line, 100 * (line / measured - 1));
	else if (line > 0)
		printf("  %9s %9.2f %8s", "-", line, "");
	else
		printf("  %9s %9s %8s", "-", "-", "");
}

static const struct kvof_plan_odd *odd_find(const struct calibrate *c, uint32_t row)
{
	for (uint32_t i = 0; i < c->fit.odd; i++)
		if (c->fit.odd_row[i].row == row)
			return &c->fit.odd_row[i];
	return NULL;
}

static void rows_print(const struct calibrate *c, const struct kvof_plan_fit *fit)
{
	printf("\n   line sessions  tokens  %28s  %28s  %28s\n", "last s: row, fit, error",
	       "median s: row, fit, error", "tokens/s: row, fit, error");
	for (uint32_t i = 0; i < c->rows.count; i++) {
		const struct kvof_plan_row *row = &c->rows.row[i];
		const struct kvof_plan_wave wave = {.tokens = row->tokens, .bytes = row->bytes,
			.sessions = row->concurrency, .resident = row->resident};
		struct kvof_plan_ttft ttft;
		struct kvof_plan_bad bad;

		if (row->kind != fit->arm.kind ||
		    kvof_plan_ttft(&fit->arm, &wave, &ttft, &bad) != 0)
			continue;
		printf("  %5u %8u %7.0f", row->line, row->concurrency, row->tokens);
		cell_print(row->ttft_last_s, ttft.last_s);
		cell_print(row->ttft_p50_s, ttft.p50_s);
		cell_print(row->tokens_per_s, ttft.tokens_per_s);
		printf("%s\n", odd_find(c, i) == NULL ? "" :
		       c->keep_odd ? "  odd" : "  odd, not used");
	}
}

static void odd_print(const struct calibrate *c, enum kvof_plan_arm_kind kind)
{
	for (uint32_t i = 0; i < c->fit.odd; i++) {
		const struct kvof_plan_odd *odd = &c->fit.odd_row[i];
		const struct kvof_plan_row *row = &c->rows.row[odd->row];

		if (row->kind != kind)
			continue;
		printf("  odd: line %u, %u sessions: %.2f s where the line of the other rows has "
		       "%.2f s;\n       %.2f s if %u of %u sessions were read and %u were in "
		       "memory already (--resident %u)\n", row->line, row->concurrency,
		       odd->measured_s, odd->line_s, odd->unread_s, row->concurrency - odd->unread,
		       row->concurrency, odd->unread, odd->unread);
	}
}

static void arm_print(const struct calibrate *c, const struct kvof_plan_fit *fit)
{
	const struct kvof_plan_arm *arm = &fit->arm;

	printf("\n%s: %u row%s\n", kvof_plan_arm_name(arm->kind), fit->rows,
	       fit->rows == 1 ? "" : "s");
	rate_print(c, fit);
	printf("  median = the same for %.3f x sessions %c %.2f\n", arm->median_share,
	       arm->median_rank < 0 ? '-' : '+', fabs(arm->median_rank));
	if (arm->output_tokens > 0)
		printf("  wall   = last %c %.3f s %c %.4f s x sessions;  "
		       "tokens/s = sessions x %u / wall\n",
		       arm->tail_fixed_s < 0 ? '-' : '+', fabs(arm->tail_fixed_s),
		       arm->tail_session_s < 0 ? '-' : '+', fabs(arm->tail_session_s),
		       arm->output_tokens);
	rows_print(c, fit);
	odd_print(c, arm->kind);
	for (uint32_t i = 0; i < fit->notes; i++)
		printf("  note: %s\n", fit->note[i]);
}

static int page_print(const struct calibrate *c)
{
	static const char *const texts[] = {"model", "engine", "precision", "machine"};
	char name[PLAN_NAME_BYTES];

	printf("%s: %u rows", plan_name_text(c->rows_name, name), c->rows.count);
	if (c->rows.passed_over > 0)
		printf(", %u passed over by --where", c->rows.passed_over);
	if (c->rows.empty > 0)
		printf(", %u without any time (the first is line %u)", c->rows.empty,
		       c->rows.empty_line);
	printf("\n");
	for (unsigned i = 0; i < PLAN_ROWS_TEXTS; i++)
		if (c->rows.text[i][0] != 0)
			printf("%s: %s\n", texts[i], c->rows.text[i]);
	if (c->rows.unused[0] != 0)
		printf("columns that say nothing here: %s\n", c->rows.unused);
	if (c->profile.model_type[0] != 0)
		printf("model: %s, %.0f bytes a token of KV cache in %s\n", c->profile.model_type,
		       c->profile.model_bytes_per_token, c->dtype);
	for (uint32_t i = 0; i < c->fit.arms; i++)
		arm_print(c, &c->fit.arm[i]);
	if (c->profile_name != NULL)
		printf("\nwritten to %s\n", plan_name_text(c->profile_name, name));
	else
		printf("\nnothing written: --profile OUT keeps it for the other parts\n");
	return cmd_output_end(NAME, CMD_DONE);
}

/* --- as JSON ---------------------------------------------------------------------------------- */

static int result_json(const struct calibrate *c, const char *text)
{
	json_t *all = json_loads(text, 0, NULL), *list = json_array();

	for (uint32_t i = 0; i < c->fit.odd; i++) {
		const struct kvof_plan_odd *odd = &c->fit.odd_row[i];
		const struct kvof_plan_row *row = &c->rows.row[odd->row];

		json_array_append_new(list, json_pack(
			"{s:s, s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:b}",
			"arm", kvof_plan_arm_name(row->kind), "line", (json_int_t)row->line,
			"concurrency", (json_int_t)row->concurrency, "tokens", row->tokens,
			"ttft_last_s", odd->measured_s, "line_s", odd->line_s,
			"unread", (json_int_t)odd->unread, "unread_s", odd->unread_s,
			"used", c->keep_odd));
	}
	json_object_set_new(all, "odd_rows", list);
	json_object_set_new(all, "columns_unused", json_string(c->rows.unused));
	return cmd_json_print(NAME, all, CMD_DONE);
}

/* --- work ------------------------------------------------------------------------------------- */

static int rows_load(struct calibrate *c)
{
	struct kvof_plan_bad bad;
	struct cmd_value text;
	int rc = cmd_file_read(NAME, c->rows_name, PLAN_ROWS_BYTES_MAX, &text);

	if (rc != 0)
		return rc;
	rc = plan_rows_read(text.at, text.bytes, c->only, c->only_count, &c->rows, &bad);
	free(text.at);
	if (rc == 0)
		return 0;
	if (rc == -ENOMEM)
		cmd_error(NAME, "%s: no memory for it", c->rows_name);
	else
		cmd_error(NAME, "%s: %s%s%s", c->rows_name, bad.field,
			  bad.field[0] != 0 ? " " : "", bad.why);
	return rc == -ENOMEM ? CMD_FAILED : c->rows.mixed ? CMD_REFUSED : CMD_USAGE;
}

/* With a model the rows of loads have bytes, and the profile says whose they are. */
static int model_apply(struct calibrate *c)
{
	struct kvof_plan_geometry geometry;
	struct kvof_plan_model model;
	uint32_t elem_bytes;
	uint64_t bytes, rank;
	int rc = plan_dtype_find(NAME, c->dtype, &elem_bytes);

	if (rc == 0)
		rc = plan_geometry_read(NAME, c->model_name,
					&(struct kvof_plan_split){1, elem_bytes}, &model,
					&geometry);
	if (rc != 0)
		return rc;
	snprintf(c->profile.model_type, sizeof(c->profile.model_type), "%s", model.type);
	c->profile.model_bytes_per_token = plan_use_token_bytes(&geometry);
	if (c->profile.model_bytes_per_token <= 0) {
		cmd_error(NAME, "%s: a model without a KV cache has nothing to load",
			  c->model_name);
		return CMD_USAGE;
	}
	for (uint32_t i = 0; i < c->rows.count; i++) {
		struct kvof_plan_row *row = &c->rows.row[i];

		if (row->bytes > 0 || row->tokens < 1)
			continue;
		if (row->tokens > 1e12 || kvof_plan_bytes_at(&model, &geometry,
			(uint64_t)llrint(row->tokens), &bytes, &rank) != 0) {
			cmd_error(NAME, "%s: line %u, tokens: too many bytes to count",
				  c->rows_name, row->line);
			return CMD_USAGE;
		}
		row->bytes = (double)bytes;
	}
	return 0;
}

static int fit_make(struct calibrate *c)
{
	const struct kvof_plan_fit_ask ask = {.output_tokens = c->output_tokens,
		.keep_odd = c->keep_odd};
	struct kvof_plan_bad bad;
	int rc = kvof_plan_fit(c->rows.row, c->rows.count, &ask, &c->fit, &bad);

	if (rc == 0)
		return 0;
	if (rc == -ENOMEM)
		cmd_error(NAME, "%s: no memory for it", c->rows_name);
	else
		cmd_error(NAME, "%s: %s%s%s", c->rows_name, bad.field,
			  bad.field[0] != 0 ? " " : "", bad.why);
	return rc == -ENOMEM ? CMD_FAILED : CMD_USAGE;
}

static void profile_text(char *out, size_t room, const char *option, const char *column)
{
	plan_text_put(out, room, option != NULL ? option : column);
}

static void profile_make(struct calibrate *c)
{
	struct plan_profile *p = &c->profile;
	time_t now = time(NULL);
	struct tm tm;

	p->source = KVOF_PLAN_ROWS;
	if (gmtime_r(&now, &tm) != NULL)
		strftime(p->made, sizeof(p->made), "%Y-%m-%dT%H:%M:%SZ", &tm);
	profile_text(p->engine, sizeof(p->engine), c->engine, c->rows.text[1]);
	profile_text(p->precision, sizeof(p->precision), c->precision, c->rows.text[2]);
	profile_text(p->machine, sizeof(p->machine), c->machine, c->rows.text[3]);
	p->arms = c->fit.arms;
	memcpy(p->arm, c->fit.arm, sizeof(c->fit.arm));
	for (uint32_t i = 0; i < c->fit.odd; i++) {
		const struct kvof_plan_odd *odd = &c->fit.odd_row[i];
		const struct kvof_plan_row *row = &c->rows.row[odd->row];

		for (uint32_t a = 0; a < p->arms; a++)
			if (p->arm[a].arm.kind == row->kind)
				plan_fit_note(&p->arm[a], "line %u, %u sessions, %s: %.2f s, on "
					"the line of the others %.2f s; %.2f s if %u were not read",
					row->line, row->concurrency, c->keep_odd ? "odd" :
					"odd and not used", odd->measured_s, odd->line_s,
					odd->unread_s, odd->unread);
	}
}

static int rows_run(struct calibrate *c)
{
	char *text;
	int rc = rows_load(c);

	if (rc == 0 && c->model_name != NULL)
		rc = model_apply(c);
	rc = rc != 0 ? rc : fit_make(c);
	if (rc != 0)
		return rc;
	profile_make(c);
	text = plan_profile_write(&c->profile);
	if (text == NULL) {
		cmd_error(NAME, "%s: no memory for the profile", c->rows_name);
		return CMD_FAILED;
	}
	if (c->profile_name != NULL)
		rc = cmd_value_write(NAME, c->profile_name, text, strlen(text));
	if (rc == 0 && (c->profile_name == NULL || strcmp(c->profile_name, "-") != 0))
		rc = c->json ? result_json(c, text) : page_print(c);
	free(text);
	return rc;
}

/* --- options ---------------------------------------------------------------------------------- */

/* --where COLUMN=VALUE, which may come more than once. */
static int only_take(struct calibrate *c, int *argc, char **argv)
{
	int kept = 1;

	for (int i = 1; i < *argc; i++) {
		char *text = NULL, *equal;

		if (strncmp(argv[i], "--where=", 8) == 0)
			text = argv[i] + 8;
		else if (strcmp(argv[i], "--where") == 0)
			text = i + 1 < *argc ? argv[++i] : argv[i] + 7;
		if (text == NULL) {
			argv[kept++] = argv[i];
			continue;
		}
		equal = strchr(text, '=');
		if (equal == NULL || equal == text || c->only_count == ONLY_MAX) {
			cmd_error(NAME, "--where %s: not COLUMN=VALUE, or more than %u of them",
				  text, ONLY_MAX);
			return CMD_USAGE;
		}
		*equal = 0;
		c->only[c->only_count++] = (struct plan_rows_only){text, equal + 1};
	}
	*argc = kept;
	return 0;
}

static bool rows_asked(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--rows") == 0 || strncmp(argv[i], "--rows=", 7) == 0)
			return true;
	return false;
}

int plan_calibrate(int argc, char **argv)
{
	static struct calibrate c = {.dtype = "bf16"};
	const struct cmd_opt opts[] = {
		{"rows", CMD_TEXT, &c.rows_name, "FILE.csv", "measured rows; - is standard input"},
		{"profile", CMD_TEXT, &c.profile_name, "OUT", "the profile to write"},
		{"model", CMD_TEXT, &c.model_name, "CONFIG.json", "the model the rows are of"},
		{"kv-dtype", CMD_TEXT, &c.dtype, "D", "of its cache: bf16 (default), fp8, ..."},
		{"output-tokens", CMD_COUNT, &c.output_tokens, "N", "of each session; 64"},
		{"keep-odd", CMD_FLAG, &c.keep_odd, NULL, "rows off the line are used too"},
		{"machine", CMD_TEXT, &c.machine, "TEXT", "that the rows were measured on"},
		{"engine", CMD_TEXT, &c.engine, "TEXT", "that they were measured with"},
		{"precision", CMD_TEXT, &c.precision, "TEXT", "of the weights"},
		{"json", CMD_FLAG, &c.json, NULL, "print JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = NAME, .args = "--rows FILE.csv --profile OUT", .opts = opts,
		.what = "Fits a profile to measured rows. Without --rows this machine is measured.",
		.more = "The file has a line with the names of columns, then one row a line:\n\n"
			"  arm,concurrency,tokens,ttft_p50_s,ttft_last_s,tokens_per_s\n\n"
			"arm is array, local, recompute, dram or nfs. More columns that count:\n"
			"bytes, ttft_p90_s, bytes_per_s (of the device while busy), resident,\n"
			"output_tokens, and model, engine, precision, machine, in which rows may\n"
			"not differ (exit code 4). --where COLUMN=VALUE takes only such rows; it\n"
			"may come several times.\n"
			"What is measured without --rows: docs/calibrate.md.\n",
	};
	unsigned count;
	int rc;

	if (!rows_asked(argc, argv))
		return plan_measure_run(argc, argv);
	rc = only_take(&c, &argc, argv);
	if (rc != 0)
		return rc;
	rc = cmd_args(&u, argc, argv, NULL, &count);
	if (rc >= 0)
		return rc;
	rc = rows_run(&c);
	plan_rows_free(&c.rows);
	return rc;
}
