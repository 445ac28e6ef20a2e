/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces made from a seed, for questions that no recorded trace answers. The same name, seed, count
 * and block size give the same trace on any machine.
 *
 *   multi-turn     conversations of several turns, each turn sends all before it again; users think
 *                  for half a minute to some minutes, and stop at any turn
 *   shared-prefix  questions about a few long documents, some asked about far more often; what
 *                  comes after the document is new
 *   cold-long      long prompts that never come again
 *   mixed          half multi-turn, a third shared-prefix, the rest cold-long
 */
#ifndef KVOF_PLAN_WORKLOAD_H
#define KVOF_PLAN_WORKLOAD_H

#include "plan/trace.h"

#define WORKLOAD_REQUESTS 4000u            /* unless told */
#define WORKLOAD_REQUESTS_MAX 1000000u

struct workload_opts {
	uint64_t seed;
	uint32_t requests;
	uint32_t block_tokens;
};

/* Ends with NULL. */
const char *const *workload_names(void);
/* Adds to an empty trace. Return: 0; -ENOENT no such name; -ENOMEM; -ENOSPC. */
int workload_make(const char *name, const struct workload_opts *o, struct trace *t);

#endif
