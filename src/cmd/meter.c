/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring of the benches. Latency runs from submit to done; CPU time is this process's, user and
 * system, between begin and end. The thread of the bench.
 */
#include "cmd/meter.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/must.h"
#include "cmd/cmd.h"
#include "loop/loop.h"

uint64_t cmd_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static double cpu_s(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
	       (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

bool cmd_meter_op(struct cmd_meter *m)
{
	static const char *const names[] = {
		[CMD_BENCH_STORE] = "store",
		[CMD_BENCH_RETRIEVE] = "retrieve",
		[CMD_BENCH_EXIST] = "exist",
		[CMD_BENCH_READ] = "read",
		[CMD_BENCH_WRITE] = "write",
	};

	for (unsigned i = 0; i < ARRAY_COUNT(names); i++) {
		m->op = (enum cmd_bench_op)i;
		if (strcmp(names[i], m->op_name) == 0)
			return true;
	}
	cmd_error("bench", "--op %s: store, retrieve or exist; read or write for blocks",
		  m->op_name);
	return false;
}

void cmd_meter_begin(struct cmd_meter *m)
{
	must(m->ops == 0);
	m->cpu_s = cpu_s();
	m->begun_ns = cmd_now_ns();
}

void cmd_meter_end(struct cmd_meter *m)
{
	m->seconds = (double)(cmd_now_ns() - m->begun_ns) / 1e9;
	m->cpu_s = cpu_s() - m->cpu_s;
}

/* --- latency -------------------- */

static unsigned meter_bucket(uint64_t ns)
{
	unsigned shift = 0;

	while (ns >> shift >= 2 * CMD_METER_STEPS)
		shift++;
	return shift * CMD_METER_STEPS + (unsigned)(ns >> shift);
}

void cmd_meter_add(struct cmd_meter *m, uint64_t latency_ns)
{
	m->histogram[meter_bucket(latency_ns)]++;
	m->ops++;
}

double cmd_meter_us(const struct cmd_meter *m, double share)
{
	uint64_t want = (uint64_t)(share * (double)m->ops), seen = 0;

	for (unsigned i = 0; i < CMD_METER_BUCKETS; i++) {
		unsigned shift = i < 2 * CMD_METER_STEPS ? 0 : i / CMD_METER_STEPS - 1;

		seen += m->histogram[i];
		if (seen > want || (seen == m->ops && seen > 0))
			return (double)((uint64_t)(i - shift * CMD_METER_STEPS + 1) << shift) / 1e3;
	}
	return 0;
}

/* --- result -------------------- */

static double meter_bytes_per_s(const struct cmd_meter *m)
{
	if (m->op == CMD_BENCH_EXIST)
		return 0;
	return (double)m->ops / m->seconds * (double)m->value_bytes;
}

json_t *cmd_meter_json(const struct cmd_meter *m, const char *loop)
{
	return json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:s}",
		"op", m->op_name, "value_bytes", (json_int_t)m->value_bytes,
		"depth", (json_int_t)m->depth, "queues", (json_int_t)m->queues,
		"seconds", m->seconds, "ops_per_s", (double)m->ops / m->seconds,
		"bytes_per_s", meter_bytes_per_s(m), "p50_us", cmd_meter_us(m, 0.50),
		"p99_us", cmd_meter_us(m, 0.99), "cpu_s", m->cpu_s,
		"keys", (json_int_t)m->keys, "ops", (json_int_t)m->ops, "loop", loop);
}

void cmd_meter_print(const struct cmd_meter *m)
{
	printf("  %.0f operations/s", (double)m->ops / m->seconds);
	if (m->op != CMD_BENCH_EXIST)
		printf(", %.3f GB/s", meter_bytes_per_s(m) / 1e9);
	printf("; latency p50 %.0f us, p99 %.0f us; CPU %.2f s", cmd_meter_us(m, 0.50),
	       cmd_meter_us(m, 0.99), m->cpu_s);
}
