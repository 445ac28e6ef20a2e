/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `kvof plan report` share: the input file, and three ways to show a report. */
#ifndef KVOF_CMD_PLAN_REPORT_H
#define KVOF_CMD_PLAN_REPORT_H

#include <stddef.h>

#include <jansson.h>

#include "plan/report.h"

#define PLAN_INPUT_BYTES_MAX (1u << 20)

/* Text of an input file (ends with NUL; text[bytes] is it) into values of origin PLAN_IN_FILE.
 * Return: 0; -EINVAL: why says line, key and what to do; -ENOMEM. */
int plan_input_read(const char *text, size_t bytes, struct plan_input *in, char why[512]);
/* The example that `--example` prints and that a report without input is of. */
extern const char plan_input_example[];

/* On standard output. example: nothing was told, so it is of the example. Return: an exit code. */
int plan_page_print(const struct report *r, bool example);
/* NULL: no memory. */
json_t *plan_report_json(const struct report *r, bool example);
/* "-" is standard output. Return: an exit code. */
int plan_html_write(const char *path, const struct report *r, bool example);

/* A standard value that something else stands in for: it is not shown. */
bool plan_value_idle(const struct report *r, enum plan_input_id id);

#endif
