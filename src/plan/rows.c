/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of rows.h: lines into cells, cells into a row, each checked where it is read. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/must.h"
#include "plan/arm.h"
#include "plan/rows.h"
#include "plan/text.h"

#define CELL_BYTES 112u
#define CONCURRENCY_MAX 1000000.0
#define OUTPUT_MAX 1e8
#define FIGURE_MAX 1e18
#define FIGURE_MIN 1e-12

enum column {
	ARM, CONCURRENCY, TOKENS, BYTES, P50, P90, LAST, TOKENS_PER_S, BYTES_PER_S, RESIDENT,
	OUTPUT, MODEL, ENGINE, PRECISION, MACHINE, COLUMNS, UNUSED = COLUMNS,
};

static const char *const column_names[COLUMNS] = {
	[ARM] = "arm", [CONCURRENCY] = "concurrency", [TOKENS] = "tokens", [BYTES] = "bytes",
	[P50] = "ttft_p50_s", [P90] = "ttft_p90_s", [LAST] = "ttft_last_s",
	[TOKENS_PER_S] = "tokens_per_s", [BYTES_PER_S] = "bytes_per_s", [RESIDENT] = "resident",
	[OUTPUT] = "output_tokens", [MODEL] = "model", [ENGINE] = "engine",
	[PRECISION] = "precision", [MACHINE] = "machine"};

struct table {
	struct plan_rows *out;
	struct kvof_plan_bad *bad;
	const struct plan_rows_only *only;
	uint32_t only_count, line, columns, room;
	uint32_t text_line[PLAN_ROWS_TEXTS];     /* where each of the texts came first */
	enum column is[PLAN_ROWS_COLUMNS_MAX];
	int filter[PLAN_ROWS_COLUMNS_MAX];       /* index in only; -1: none */
	char cell[PLAN_ROWS_COLUMNS_MAX][CELL_BYTES];
};

static int cell_wrong(struct table *t, enum column column, const char *why)
{
	snprintf(t->bad->field, sizeof(t->bad->field), "line %u, %s:", t->line,
		 column_names[column]);
	snprintf(t->bad->why, sizeof(t->bad->why), "%s", why);
	return -EINVAL;
}

static int line_wrong(struct table *t, const char *why)
{
	snprintf(t->bad->field, sizeof(t->bad->field), "line %u:", t->line);
	snprintf(t->bad->why, sizeof(t->bad->why), "%s", why);
	return -EINVAL;
}

/* --- cells ------------------------------------------------------------------------------------ */

/* One cell from at, without quotes and without spaces around it, cut where it is longer than any
 * that counts. Return: behind it, at its comma or end; NULL: a quote is not closed there. */
static const char *cell_read(const char *at, const char *end, char out[CELL_BYTES])
{
	size_t used = 0;
	bool quoted;

	while (at < end && (*at == ' ' || *at == '\t'))
		at++;
	quoted = at < end && *at == '"';
	at += quoted;
	for (;; at++) {
		if (at == end || (!quoted && *at == ',')) {
			if (quoted)
				return NULL;
			break;
		}
		if (quoted && *at == '"') {
			if (at + 1 == end || at[1] != '"') {
				at++;
				break;
			}
			at++;
		}
		if (used < CELL_BYTES - 1)
			out[used++] = *at;
	}
	while (used > 0 && strchr(" \t", out[used - 1]) != NULL)
		used--;
	out[used] = 0;
	plan_text_clean(out);
	while (at < end && (*at == ' ' || *at == '\t'))
		at++;
	return at == end || *at == ',' ? at : NULL;
}

/* All cells of a line. Return: how many; -EINVAL. */
static int line_split(struct table *t, const char *at, const char *end)
{
	uint32_t count = 0;

	for (;; at++) {
		char cell[CELL_BYTES];

		at = cell_read(at, end, cell);
		if (at == NULL)
			return line_wrong(t, "the quotes of a cell don't close");
		if (count < PLAN_ROWS_COLUMNS_MAX)
			memcpy(t->cell[count], cell, CELL_BYTES);
		else if (cell[0] != 0)
			return line_wrong(t, "has more cells than there can be columns");
		count++;
		if (at == end)
			return (int)(count < PLAN_ROWS_COLUMNS_MAX ? count : PLAN_ROWS_COLUMNS_MAX);
	}
}

static bool cell_missing(const char *cell)
{
	static const char *const words[] = {"", "-", "--", "\xe2\x80\x94", "\xe2\x80\x93", "n/a",
		"na", "nan", "none", "null"};

	for (unsigned i = 0; i < ARRAY_COUNT(words); i++)
		if (strcasecmp(cell, words[i]) == 0)
			return true;
	return false;
}

/* Digits with perhaps a point and an exponent, in no locale's way but C's. */
static bool number_read(const char *cell, double *out)
{
	char *rest;

	if (strspn(cell, "+-.0123456789eE") != strlen(cell))
		return false;
	*out = strtod(cell, &rest);
	return rest != cell && *rest == 0 && isfinite(*out);
}

/* --- the line with the names ------------------------------------------------------------------ */

static int header_column(struct table *t, uint32_t index)
{
	const char *name = t->cell[index];
	size_t used = strlen(t->out->unused);

	t->filter[index] = -1;
	for (uint32_t i = 0; i < t->only_count; i++)
		if (strcasecmp(t->only[i].column, name) == 0)
			t->filter[index] = (int)i;
	t->is[index] = UNUSED;
	for (unsigned i = 0; i < COLUMNS; i++)
		if (strcasecmp(name, column_names[i]) == 0)
			t->is[index] = (enum column)i;
	for (uint32_t i = 0; i < index; i++)
		if (t->is[i] != UNUSED && t->is[i] == t->is[index])
			return cell_wrong(t, t->is[index], "there are two columns of this name");
	if (t->is[index] == UNUSED && name[0] != 0)
		snprintf(t->out->unused + used, sizeof(t->out->unused) - used, "%s%s",
			 used > 0 ? ", " : "", name);
	plan_text_clean(t->out->unused);
	return 0;
}

static bool header_has(const struct table *t, enum column column)
{
	for (uint32_t i = 0; i < t->columns; i++)
		if (t->is[i] == column)
			return true;
	return false;
}

static int header_read(struct table *t)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < t->columns; i++)
		rc = header_column(t, i);
	if (rc != 0)
		return rc;
	if (!header_has(t, ARM) || !header_has(t, CONCURRENCY))
		return cell_wrong(t, header_has(t, ARM) ? CONCURRENCY : ARM, "no such column: the "
				  "first line has the names, arm,concurrency,tokens,ttft_p50_s,"
				  "ttft_last_s,tokens_per_s");
	if (!header_has(t, TOKENS) && !header_has(t, BYTES))
		return cell_wrong(t, TOKENS, "no such column, nor bytes");
	if (!header_has(t, P50) && !header_has(t, P90) && !header_has(t, LAST))
		return cell_wrong(t, LAST, "no such column, nor ttft_p50_s");
	for (uint32_t i = 0; i < t->only_count; i++) {
		bool found = false;

		for (uint32_t j = 0; j < t->columns; j++)
			found |= t->filter[j] == (int)i;
		if (found)
			continue;
		plan_bad(t->bad, "", "has no column %s to choose rows by", t->only[i].column);
		return -EINVAL;
	}
	return 0;
}

/* --- a row ------------------------------------------------------------------------------------ */

static int figure_set(struct table *t, enum column column, const char *cell, double *out)
{
	if (!number_read(cell, out))
		return cell_wrong(t, column, "is no number (a cell that was not measured is "
				  "empty)");
	if (*out < 0 || (*out <= 0 && column != RESIDENT))
		return cell_wrong(t, column, "is not above 0 (a cell that was not measured is "
				  "empty)");
	if (*out > FIGURE_MAX)
		return cell_wrong(t, column, "is too large");
	if (*out > 0 && *out < FIGURE_MIN)
		return cell_wrong(t, column, "is too small");
	return 0;
}

static int count_set(struct table *t, enum column column, const char *cell, double most,
		     uint32_t *out)
{
	double value;
	int rc = figure_set(t, column, cell, &value);

	if (rc != 0)
		return rc;
	if (value > most || value != floor(value))
		return cell_wrong(t, column, value > most ? "is too large" : "is no whole number");
	*out = (uint32_t)value;
	return 0;
}

static int arm_set(struct table *t, char *cell, struct kvof_plan_row *row)
{
	for (char *c = cell; *c != 0; c++)
		*c = (char)(*c >= 'A' && *c <= 'Z' ? *c + 'a' - 'A' : *c);
	if (kvof_plan_arm_find(cell, &row->kind))
		return 0;
	return cell_wrong(t, ARM, "is none of array, local, recompute, dram, nfs");
}

/* Texts are the same in all rows, or are in none. */
static int text_set(struct table *t, enum column column, const char *cell)
{
	unsigned index = (unsigned)column - MODEL;
	char why[sizeof(t->bad->why)];

	if (t->text_line[index] == 0) {
		snprintf(t->out->text[index], sizeof(t->out->text[index]), "%s", cell);
		t->text_line[index] = t->line;
	}
#ifndef KVOF_PLANT_ROWS_MIXED
	if (strcmp(t->out->text[index], cell) == 0)
#endif
		return 0;
	t->out->mixed = true;
	snprintf(why, sizeof(why), "%.60s here, %.60s in line %u: rows that differ in it are not "
		 "compared (--where %s=... chooses)", cell, t->out->text[index],
		 t->text_line[index], column_names[column]);
	return cell_wrong(t, column, why);
}

static int cell_set(struct table *t, enum column column, char *cell, struct kvof_plan_row *row)
{
	switch (column) {
	case ARM:
		return arm_set(t, cell, row);
	case CONCURRENCY:
		return count_set(t, column, cell, CONCURRENCY_MAX, &row->concurrency);
	case RESIDENT:
		return count_set(t, column, cell, CONCURRENCY_MAX, &row->resident);
	case OUTPUT:
		return count_set(t, column, cell, OUTPUT_MAX, &row->output_tokens);
	case TOKENS:
		return figure_set(t, column, cell, &row->tokens);
	case BYTES:
		return figure_set(t, column, cell, &row->bytes);
	case P50:
		return figure_set(t, column, cell, &row->ttft_p50_s);
	case P90:
		return figure_set(t, column, cell, &row->ttft_p90_s);
	case LAST:
		return figure_set(t, column, cell, &row->ttft_last_s);
	case TOKENS_PER_S:
		return figure_set(t, column, cell, &row->tokens_per_s);
	case BYTES_PER_S:
		return figure_set(t, column, cell, &row->bytes_per_s);
	case MODEL:
	case ENGINE:
	case PRECISION:
	case MACHINE:
		return text_set(t, column, cell);
	case COLUMNS:
		return 0;
	}
	return 0;
}

/* Times in their order; rounding of what was published may turn equal ones around. */
static int row_check(struct table *t, struct kvof_plan_row *row, bool has_arm)
{
	if (!has_arm)
		return cell_wrong(t, ARM, "is empty");
	if (row->concurrency == 0)
		return cell_wrong(t, CONCURRENCY, "is empty");
	if (row->tokens <= 0 && row->bytes <= 0)
		return cell_wrong(t, TOKENS, "is empty, and there are no bytes");
	if (row->resident > row->concurrency)
		return cell_wrong(t, RESIDENT, "is above concurrency");
	if (row->ttft_last_s > 0 && row->ttft_last_s < 0.99 * row->ttft_p50_s)
		return cell_wrong(t, LAST, "is below ttft_p50_s");
	if (row->ttft_last_s > 0 && row->ttft_last_s < 0.99 * row->ttft_p90_s)
		return cell_wrong(t, LAST, "is below ttft_p90_s");
	if (row->ttft_p90_s > 0 && row->ttft_p90_s < 0.99 * row->ttft_p50_s)
		return cell_wrong(t, P90, "is below ttft_p50_s");
	if (row->ttft_last_s > 0)
		row->ttft_last_s = fmax(row->ttft_last_s, fmax(row->ttft_p50_s, row->ttft_p90_s));
	return 0;
}

static int row_add(struct table *t, const struct kvof_plan_row *row)
{
	if (t->out->count == KVOF_PLAN_ROWS_MAX)
		return line_wrong(t, "is one row too many (4096 are the most)");
	if (t->out->count == t->room) {
		uint32_t room = t->room > 0 ? 2 * t->room : 16;
		struct kvof_plan_row *more = realloc(t->out->row, room * sizeof(*more));

		if (more == NULL)
			return -ENOMEM;
		t->out->row = more;
		t->room = room;
	}
	t->out->row[t->out->count++] = *row;
	return 0;
}

static int row_read(struct table *t, uint32_t cells)
{
	struct kvof_plan_row row = {.line = t->line};
	bool has_arm = false;
	int rc = 0;

	for (uint32_t i = 0; i < t->columns; i++) {
		const char *cell = i < cells ? t->cell[i] : "";

		if (t->filter[i] < 0 || strcasecmp(cell, t->only[t->filter[i]].value) == 0)
			continue;
		t->out->passed_over++;
		return 0;
	}
	for (uint32_t i = 0; rc == 0 && i < cells; i++) {
		if (i >= t->columns && t->cell[i][0] != 0)
			return line_wrong(t, "has more cells than there are columns");
		if (i >= t->columns || cell_missing(t->cell[i]))
			continue;
		has_arm |= t->is[i] == ARM;
		rc = cell_set(t, t->is[i], t->cell[i], &row);
	}
	rc = rc != 0 ? rc : row_check(t, &row, has_arm);
	if (rc != 0)
		return rc;
	if (row.ttft_p50_s <= 0 && row.ttft_p90_s <= 0 && row.ttft_last_s <= 0) {
		t->out->empty_line = t->out->empty++ == 0 ? t->line : t->out->empty_line;
		return 0;
	}
	return row_add(t, &row);
}

static int line_read(struct table *t, const char *at, const char *end)
{
	int cells;

	if (end > at && end[-1] == '\r')
		end--;
	while (at < end && (*at == ' ' || *at == '\t'))
		at++;
	if (at == end || *at == '#')
		return 0;
	cells = line_split(t, at, end);
	if (cells < 0)
		return cells;
	if (t->columns > 0)
		return row_read(t, (uint32_t)cells);
	t->columns = (uint32_t)cells;
	return header_read(t);
}

int plan_rows_read(const char *text, size_t bytes, const struct plan_rows_only *only,
		   uint32_t only_count, struct plan_rows *out, struct kvof_plan_bad *bad)
{
	const char *at = text, *end = text + bytes;
	struct table *t;
	int rc = 0;

	*out = (struct plan_rows){0};
	if (bytes > PLAN_ROWS_BYTES_MAX)
		return plan_bad(bad, "", "is longer than a table of rows can be");
	if (memchr(text, 0, bytes) != NULL)
		return plan_bad(bad, "", "is no text: it has a byte of 0");
	t = calloc(1, sizeof(*t));
	if (t == NULL)
		return -ENOMEM;
	t->out = out;
	t->bad = bad;
	t->only = only;
	t->only_count = only_count;
	if (bytes >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0)
		at += 3;
	while (rc == 0 && at < end) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));

		t->line++;
		stop = stop != NULL ? stop : end;
		rc = line_read(t, at, stop);
		at = stop < end ? stop + 1 : end;
	}
	if (rc == 0 && out->count == 0)
		rc = plan_bad(bad, "", t->columns == 0 ? "has no line with the names of columns" :
			      out->passed_over > 0 ? "has no row left after --where" :
			      "has no row with a time");
	free(t);
	return rc;
}

void plan_rows_free(struct plan_rows *rows)
{
	free(rows->row);
	*rows = (struct plan_rows){0};
}
