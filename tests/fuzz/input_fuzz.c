/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input: a file of `kvof plan report`. What is refused is told in one line; what is taken makes a
 * report whose advice is one there is, or is refused with a field.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "cmd/plan_report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void value_check(const struct plan_input *in, enum plan_input_id id)
{
	const struct plan_input_row *row = plan_input_row(id);
	const struct plan_input_value *v = &in->value[id];

	must(memchr(v->text, 0, sizeof(v->text)) != NULL);
	if (!v->empty && row->type < PLAN_IN_CHOICE)
		must(v->number >= row->least && v->number <= row->most);
}

static void report_check(struct plan_input *in)
{
	static struct report r;
	const struct report_ask ask = {.in = in};
	char text[ADVICE_TEXT_BYTES];
	struct kvof_plan_bad bad = {.why = ""};
	int rc;

	/* a made workload takes milliseconds; files are not read here */
	strcpy(in->value[PLAN_IN_workload_preset].text, "all-again");
	in->value[PLAN_IN_model_config].empty = true;
	in->value[PLAN_IN_workload_trace].empty = true;
	rc = report_make(&ask, &r, &bad);
	must(rc == 0 || rc == -EINVAL);
	if (rc != 0) {
		must(bad.why[0] != 0 && memchr(bad.why, 0, sizeof(bad.why)) != NULL);
		return;
	}
	must(r.advice.what <= ADVICE_ARRAY && r.advice.why <= ADVICE_BEST);
	must(r.advice.what == ADVICE_NOTHING || r.facts.has[advice_arm(r.advice.what)]);
	must(!isnan(r.advice.gain) && r.flips <= ADVICE_FLIPS_MAX);
	for (unsigned i = 0; i < r.flips; i++) {
		must(r.flip[i].what != r.advice.what);
		must(r.flip[i].above ? r.flip[i].at > r.flip[i].now :
		     r.flip[i].at < r.flip[i].now);
	}
	advice_text(&r.facts, &r.advice, text);
	must(memchr(text, 0, sizeof(text)) != NULL);
	must(r.steps > 0 && r.reasons > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct plan_input in;
	struct kvof_plan_bad bad;
	char *text = malloc(size + 1), why[512] = "";
	int rc;

	must(text != NULL);
	if (size > 0)
		memcpy(text, data, size);
	text[size] = 0;
	plan_input_begin(&in);
	rc = plan_input_read(text, size, &in, why);
	free(text);
	must(rc == 0 || rc == -EINVAL);
	if (rc != 0)
		must(why[0] != 0 && strchr(why, '\n') == NULL);
	for (unsigned i = 0; i < PLAN_IN_COUNT; i++)
		value_check(&in, (enum plan_input_id)i);
	if (rc == 0 && plan_input_check(&in, &bad) == 0)
		report_check(&in);
	return 0;
}
