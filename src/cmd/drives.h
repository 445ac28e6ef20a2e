/* SPDX-License-Identifier: Apache-2.0 */
/* --drive PATH[,size=S], many times, for the commands that work on drives without a server. */
#ifndef KVOF_CMD_DRIVES_H
#define KVOF_CMD_DRIVES_H

#include "store/store.h"

struct cmd_drives {
	char path[STORE_DRIVES_MAX][256];
	struct store_drive drive[STORE_DRIVES_MAX];  /* points into path */
	unsigned count;
};

/**
 * cmd_drives_take() - takes every --drive out of the arguments, before cmd_args() reads the others
 * Return: -1 go on; else the exit code, the line is said (also when there is none).
 */
int cmd_drives_take(const char *command, int *argc, char **argv, struct cmd_drives *out);

#endif
