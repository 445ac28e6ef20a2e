/* SPDX-License-Identifier: Apache-2.0 */
/* One model's share of a namespace: kvof stat --domains and kvof rm --domain. */
#ifndef KVOF_CMD_DOMAINS_H
#define KVOF_CMD_DOMAINS_H

#include "cmd/cmd.h"

/* Return: an exit code. */
int domains_stat(const char *target, const struct cmd_common *common);
int domains_rm(int argc, char **argv);

#endif
