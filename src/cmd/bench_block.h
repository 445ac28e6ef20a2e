/* SPDX-License-Identifier: Apache-2.0 */
/* The part of `kvof bench fabric` for block namespaces. */
#ifndef KVOF_CMD_BENCH_BLOCK_H
#define KVOF_CMD_BENCH_BLOCK_H

#include "cmd/cmd.h"
#include "cmd/meter.h"

struct bench_block_opts {
	uint64_t seconds_ns;
	uint64_t span_bytes;           /* of the namespace, from its start; 0: all */
	bool sequential, overwrite;
};

/* meter says op (read or write), value_bytes and depth. Return: the exit code, lines are said. */
int cmd_bench_block(struct cmd_link *link, struct cmd_meter *meter,
		    const struct bench_block_opts *opts);

#endif
