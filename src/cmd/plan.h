/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `kvof plan` share: their entries, files that several of them read, lists on the
 * command line. A part is one function with argv[0] its name; it returns an exit code (cmd.h).
 */
#ifndef KVOF_CMD_PLAN_H
#define KVOF_CMD_PLAN_H

#include <kvof/plan.h>

#include "plan/profile.h"

int plan_geometry(int argc, char **argv);
int plan_calibrate(int argc, char **argv);
int plan_hits(int argc, char **argv);
int plan_move(int argc, char **argv);
int plan_sla(int argc, char **argv);
int plan_report(int argc, char **argv);
int plan_simulate(int argc, char **argv);
int plan_ttft(int argc, char **argv);

/* A config.json, "-" for standard input. Return: 0; else the exit code, the line is said. */
int plan_config_read(const char *command, const char *name, struct kvof_plan_model *model);
/* The same, and what its cache takes in such a split; CMD_REFUSED: heads can't follow it. */
int plan_geometry_read(const char *command, const char *name, const struct kvof_plan_split *split,
		       struct kvof_plan_model *model, struct kvof_plan_geometry *geometry);
/* bf16, fp8, ...: bytes of a number in the cache. The same. */
int plan_dtype_find(const char *command, const char *text, uint32_t *elem_bytes);
/* A profile as `kvof plan calibrate` writes it. The same. */
int plan_profile_load(const char *command, const char *name, struct plan_profile *profile);

struct plan_list {
	uint64_t *value;
	uint32_t count, most;
	uint64_t least, largest;         /* of a value */
};

/**
 * plan_list_take() - takes every --option with whole numbers out of argv
 *
 * Options of a table (cmd_args()) have one value, and the last one counts. Here all do: `--o 8 16
 * 32`, `--o 8,16 --o 32` and `--o=8` add to the list, in this order. Values end at the next word
 * that begins with a dash.
 * Return: 0; else the exit code, the line is said.
 */
int plan_list_take(const char *command, const char *option, struct plan_list *list, int *argc,
		   char **argv);

/* "7.671 GB (7.145 GiB)", "256.00 KiB". Return: out. */
const char *plan_bytes_text(double bytes, char out[64]);

#define PLAN_NAME_BYTES 256
/* The name of a file as a page can show it. Return: out. */
const char *plan_name_text(const char *name, char out[PLAN_NAME_BYTES]);

#endif
