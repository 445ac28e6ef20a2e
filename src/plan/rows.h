/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measured waves as comma-separated text, one a line, under a line with the names of the columns:
 *
 *   arm,concurrency,tokens,ttft_p50_s,ttft_last_s,tokens_per_s
 *   array,8,30208,7.53,7.54,56.6
 *
 * Columns may stand in any order. Besides these there are bytes (of a session's prefix),
 * ttft_p90_s, bytes_per_s (of the device while it was busy), resident (sessions that were not
 * read), output_tokens, and four texts that rows of one comparison share: model, engine, precision,
 * machine. Others are passed over. A cell that is empty, or one of - n/a na nan none null, was not
 * measured. Lines that begin with # and blank lines don't count.
 *
 * Text is not trusted: what is wrong is named by line and column. Pure, any thread.
 */
#ifndef KVOF_PLAN_ROWS_H
#define KVOF_PLAN_ROWS_H

#include <kvof/plan.h>

#define PLAN_ROWS_BYTES_MAX (4u << 20)
#define PLAN_ROWS_COLUMNS_MAX 64u
#define PLAN_ROWS_TEXTS 4u

/* Only rows whose cell of this column is this text. */
struct plan_rows_only {
	const char *column, *value;
};

struct plan_rows {
	struct kvof_plan_row *row;
	uint32_t count;
	uint32_t passed_over;            /* lines that a filter left out */
	uint32_t empty;                  /* lines without any time; their first one */
	uint32_t empty_line;
	char text[PLAN_ROWS_TEXTS][112]; /* model, engine, precision, machine; empty: not told */
	char unused[200];                /* names of columns that were passed over */
	bool mixed;                      /* -EINVAL came since rows differ in one of the texts */
};

/* 0; -EINVAL with bad written; -ENOMEM. plan_rows_free() may follow any of these. */
int plan_rows_read(const char *text, size_t bytes, const struct plan_rows_only *only,
		   uint32_t only_count, struct plan_rows *out, struct kvof_plan_bad *bad);
void plan_rows_free(struct plan_rows *rows);

#endif
