/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benches share: a clock, CPU time, a histogram of latencies, and the result as a line or
 * as JSON. The fields of the JSON object are the command line's contract.
 */
#ifndef KVOF_CMD_METER_H
#define KVOF_CMD_METER_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

enum cmd_bench_op {
	CMD_BENCH_STORE, CMD_BENCH_RETRIEVE, CMD_BENCH_EXIST, CMD_BENCH_READ, CMD_BENCH_WRITE
};

#define CMD_METER_STEPS 32               /* a bucket is 1/32 of its value wide */
#define CMD_METER_BUCKETS (64 * CMD_METER_STEPS)

struct cmd_meter {
	const char *op_name;
	enum cmd_bench_op op;
	uint64_t value_bytes;
	unsigned depth, queues, keys;

	uint64_t ops;
	uint64_t begun_ns;
	double seconds, cpu_s;           /* until cmd_meter_end(): what they were at the begin */
	uint64_t histogram[CMD_METER_BUCKETS];
};

uint64_t cmd_now_ns(void);

/* Finds op by op_name. False: the line is said. */
bool cmd_meter_op(struct cmd_meter *m);
void cmd_meter_begin(struct cmd_meter *m);
void cmd_meter_add(struct cmd_meter *m, uint64_t latency_ns);
void cmd_meter_end(struct cmd_meter *m);

/* Upper end, in microseconds, of the bucket in which that share (0 .. 1) of all operations lies. */
double cmd_meter_us(const struct cmd_meter *m, double share);
/* A new object with the fields that every bench has. loop: loop_kind() of the one that ran it. */
json_t *cmd_meter_json(const struct cmd_meter *m, const char *loop);
/* "123 operations/s, 1.2 GB/s; latency ...; CPU ..." without an end of line. */
void cmd_meter_print(const struct cmd_meter *m);

#endif
