/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input: a table of measured rows as a file may give it. What is refused is told in a sentence;
 * what is taken is fitted, or that is refused too; an arm that comes out tells times in their
 * order, and its profile is read again.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "plan/profile.h"
#include "plan/rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct kvof_plan_fit_out out;
static struct plan_profile profile, again;

static void bad_check(const struct kvof_plan_bad *bad)
{
	must(bad->why[0] != 0 && memchr(bad->why, 0, sizeof(bad->why)) != NULL);
	must(memchr(bad->field, 0, sizeof(bad->field)) != NULL);
}

static void arm_check(const struct kvof_plan_fit *fit, const struct kvof_plan_row *row)
{
	const struct kvof_plan_wave wave = {.tokens = row->tokens, .bytes = row->bytes,
		.sessions = row->concurrency, .resident = row->resident};
	struct kvof_plan_ttft t;
	struct kvof_plan_bad bad;

	must(fit->notes <= KVOF_PLAN_NOTES_MAX && fit->worst_row_error >= 0);
	if (kvof_plan_ttft(&fit->arm, &wave, &t, &bad) != 0)
		return;
	must(isfinite(t.last_s) && isfinite(t.wall_s) && isfinite(t.tokens_per_s));
	must(t.p50_s >= 0 && t.p50_s <= t.p90_s && t.p90_s <= t.last_s * (1 + 1e-12));
	must(t.last_s <= t.wall_s);
}

static void profile_check(void)
{
	struct kvof_plan_bad bad;
	char *text;

	memset(&profile, 0, sizeof(profile));
	profile.arms = out.arms;
	memcpy(profile.arm, out.arm, sizeof(out.arm));
	text = plan_profile_write(&profile);
	must(text != NULL);
	must(plan_profile_read(text, strlen(text), &again, &bad) == 0);
	must(again.arms == out.arms);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct plan_rows_only only = {"arm", "array"};
	struct plan_rows rows;
	struct kvof_plan_bad bad;
	int rc = plan_rows_read((const char *)data, size, &only, size % 2, &rows, &bad);

	must(rc == 0 || rc == -EINVAL);
	if (rc != 0)
		bad_check(&bad);
	must(rows.count <= KVOF_PLAN_ROWS_MAX);
	if (rc == 0) {
		must(rows.count > 0);
		rc = kvof_plan_fit(rows.row, rows.count, &(struct kvof_plan_fit_ask){
			.keep_odd = size % 3 == 0}, &out, &bad);
		must(rc == 0 || rc == -EINVAL);
		if (rc != 0)
			bad_check(&bad);
	}
	for (uint32_t i = 0; rc == 0 && i < out.arms; i++)
		for (uint32_t j = 0; j < rows.count; j++)
			if (rows.row[j].kind == out.arm[i].arm.kind)
				arm_check(&out.arm[i], &rows.row[j]);
	if (rc == 0)
		profile_check();
	plan_rows_free(&rows);
	return 0;
}
