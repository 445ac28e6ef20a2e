/* SPDX-License-Identifier: Apache-2.0 */
/* What `kvof replay` and the parts of `kvof plan` that take a trace share: where it comes from. */
#ifndef KVOF_CMD_TRACES_H
#define KVOF_CMD_TRACES_H

#include <stdbool.h>
#include <stdint.h>

#include "plan/trace.h"

struct traces_ask {
	const char *command;
	unsigned seed, requests;           /* requests 0: all of a file, or the usual number */
	uint32_t block_tokens;             /* of a made workload */
};

/* A workload's name, a file, or "-". Begins with a zeroed trace. Return: 0; else the exit code, the
 * line is said. */
int traces_take(const struct traces_ask *ask, const char *name, struct trace *t);

/* The same of a file alone; "-" is standard input. requests 0: all of it. */
int traces_read(const char *command, const char *name, unsigned requests, struct trace *t);

struct traces_kv {                         /* as flags give it; what is NULL or 0 was not given */
	const char *model, *dtype;
	uint64_t bytes_per_token;
	/* found */
	double token_bytes;                /* 0: nothing was given */
	bool windows;                      /* layers that slide count as whole, as in blocks */
};

/* KV bytes of a token in a cache of blocks. Return: the same. */
int traces_kv_find(const char *command, struct traces_kv *kv);

/* A factor from 0.01 to a million: 2, 0.5, 10x. */
bool traces_speed_parse(const char *text, double *speed);

#endif
