/* SPDX-License-Identifier: Apache-2.0 */
/* Traces from a name: a workload that is made, a file, standard input. */
#include "cmd/traces.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan.h"
#include "plan/workload.h"

static int read_failed(const char *command, const char *name, uint64_t line,
		       const struct trace_bad *bad, int rc)
{
	if (rc == -EINVAL)
		cmd_error(command, "%s:%llu: %s%s%s", name, (unsigned long long)line,
			  bad->field != NULL ? bad->field : "the line", " ", bad->why);
	else if (rc == -ENOSPC)
		cmd_error(command, "%s:%llu: more requests or blocks than a replay takes", name,
			  (unsigned long long)line);
	else
		cmd_error(command, "%s: %s", name,
			  rc == -ENOMEM ? "no memory for it" : "can't be read");
	return rc == -EINVAL ? CMD_USAGE : CMD_FAILED;
}

static int file_read(const char *command, const char *name, unsigned requests, FILE *from,
		     struct trace *t)
{
	struct trace_bad bad = {NULL, ""};
	uint64_t line = 0;
	int rc = trace_read(t, from, requests, &line, &bad);

	return rc == 0 ? 0 : read_failed(command, name, line, &bad, rc);
}

int traces_read(const char *command, const char *name, unsigned requests, struct trace *t)
{
	FILE *from;
	int rc;

	if (strcmp(name, "-") == 0)
		return file_read(command, name, requests, stdin, t);
	from = fopen(name, "r");
	if (from == NULL) {
		cmd_error(command, "%s: %s", name, strerror(errno));
		return CMD_FAILED;
	}
	rc = file_read(command, name, requests, from, t);
	fclose(from);
	return rc;
}

int traces_take(const struct traces_ask *ask, const char *name, struct trace *t)
{
	const struct workload_opts o = {ask->seed,
		ask->requests > 0 ? ask->requests : WORKLOAD_REQUESTS, ask->block_tokens};
	const struct trace_bad none = {NULL, ""};
	int rc;

	if (ask->requests > WORKLOAD_REQUESTS_MAX) {
		cmd_error(ask->command, "--requests %u: not 1 to %u", ask->requests,
			  WORKLOAD_REQUESTS_MAX);
		return CMD_USAGE;
	}
	rc = workload_make(name, &o, t);
	if (rc == 0)
		return 0;
	if (rc != -ENOENT)
		return read_failed(ask->command, name, 0, &none, rc);
	if (strcmp(name, "-") != 0 && access(name, F_OK) != 0) {
		const char *near = cmd_nearest(name, workload_names());

		cmd_error(ask->command, near != NULL ? "%s: %s; did you mean the workload %s?" :
			  "%s: %s", name, strerror(errno), near);
		return CMD_FAILED;
	}
	return traces_read(ask->command, name, ask->requests, t);
}

int traces_kv_find(const char *command, struct traces_kv *kv)
{
	struct kvof_plan_geometry geometry;
	struct kvof_plan_model model;
	struct kvof_plan_split split = {.tp = 1};
	int rc;

	if (kv->model != NULL && kv->bytes_per_token > 0) {
		cmd_error(command, "--bytes-per-token and --model: which of them?");
		return CMD_USAGE;
	}
	kv->token_bytes = (double)kv->bytes_per_token;
	if (kv->model == NULL)
		return 0;
	rc = plan_dtype_find(command, kv->dtype != NULL ? kv->dtype : "bf16",
			     &split.kv_elem_bytes);
	if (rc == 0)
		rc = plan_geometry_read(command, kv->model, &split, &model, &geometry);
	if (rc != 0)
		return rc;
	kv->token_bytes = (double)geometry.first_bytes;
	kv->windows = geometry.first_bytes != geometry.token_bytes;
	return 0;
}

bool traces_speed_parse(const char *text, double *speed)
{
	char number[32];
	size_t bytes = strlen(text);
	uint64_t ns;

	if (bytes > 0 && text[bytes - 1] == 'x')
		bytes--;
	if (bytes == 0 || bytes >= sizeof(number))
		return false;
	memcpy(number, text, bytes);
	number[bytes] = 0;
	if (strspn(number, "0123456789.") != bytes || !cmd_time_parse(number, true, &ns))
		return false;
	*speed = (double)(ns / (NS_PER_S / 100)) / 100;      /* in hundredths */
	return *speed >= 0.01 && *speed <= 1000000;
}
