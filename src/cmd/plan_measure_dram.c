/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast this machine copies in memory: one thread, then one on each core. Repeats are short, so
 * that a thread that loses its core spoils one of them, and walk through a set of which source and
 * destination are together four times the largest cache where there is memory for it, so that no
 * cache answers for the memory. A rate counts each byte once.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cmd/cmd.h"
#include "cmd/meter.h"
#include "cmd/plan_measure_inner.h"
#include "loop/loop.h"

#define COPY_THREADS_MAX 64u
#define COPY_PIECE (1 * MiB)
#define COPY_STEP (16 * MiB)                /* of a thread, in one repeat */
#define COPY_REPEATS_LEAST 15u           /* they are short */
#define COPY_BYTES_LEAST (64 * MiB)
#define COPY_BYTES_MOST (512 * MiB)

enum copy_gate { COPY_WAIT, COPY_GO, COPY_LEAVE };

struct copier {
	pthread_t thread;
	_Atomic int *gate;
	const uint8_t *from;
	uint8_t *to;
	uint64_t bytes;
	uint64_t begun_ns, ended_ns;
};

static void *copier_run(void *arg)
{
	struct copier *c = arg;

	while (atomic_load(c->gate) == COPY_WAIT)
		sched_yield();
	if (atomic_load(c->gate) == COPY_LEAVE)
		return NULL;
	c->begun_ns = cmd_now_ns();
	for (uint64_t at = 0; at < c->bytes; at += COPY_PIECE)
		memcpy(c->to + at, c->from + at, bytes_min(COPY_PIECE, c->bytes - at));
	c->ended_ns = cmd_now_ns();
	return NULL;
}

/* Bytes a second of all threads together, from the first to begin to the last to end; 0: threads
 * could not be had. */
static double copy_once(uint8_t *to, const uint8_t *from, uint64_t bytes, unsigned threads)
{
	struct copier c[COPY_THREADS_MAX];
	uint64_t each = bytes / threads / COPY_PIECE * COPY_PIECE, first = UINT64_MAX, last = 0;
	_Atomic int gate = COPY_WAIT;
	unsigned made = 1;

	for (unsigned i = 0; i < threads; i++)
		c[i] = (struct copier){.gate = &gate, .from = from + i * each, .to = to + i * each,
				       .bytes = each};
	while (made < threads &&
	       pthread_create(&c[made].thread, NULL, copier_run, &c[made]) == 0)
		made++;
	atomic_store(&gate, made == threads ? COPY_GO : COPY_LEAVE);
	copier_run(&c[0]);
	for (unsigned i = 1; i < made; i++)
		pthread_join(c[i].thread, NULL);
	if (made < threads)
		return 0;
	for (unsigned i = 0; i < threads; i++) {
		first = bytes_min(first, c[i].begun_ns);
		last = c[i].ended_ns > last ? c[i].ended_ns : last;
	}
	return (double)(each * threads) / (double)(last - first) * 1e9;
}

static int copy_report(struct measure *m, const struct measured_series *s, unsigned threads,
		       uint64_t bytes)
{
	struct plan_device *d = measure_device(m, PLAN_DEVICE_DRAM, "copy, %u thread%s", threads,
					       threads > 1 ? "s" : "");

	if (s->count == 0)
		return measure_failed("%u threads to copy with can't be had", threads);
	d->read_bytes_per_s = d->write_bytes_per_s = measured_median(s);
	d->depth = threads;
	d->value_bytes = COPY_PIECE;
	plan_device_note(d, "each byte counts once though it is read and written; a set of 2 x "
			 "%llu MiB, %u repeats", (unsigned long long)(bytes / MiB), s->count);
	if (bytes < measure_cache_bytes())
		plan_device_note(d, "memory was too small to leave a cache of %llu MiB out",
				 (unsigned long long)(measure_cache_bytes() / MiB));
	measure_device_noisy(d, s, "");
	return 0;
}

int measure_dram(struct measure *m)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned threads[2] = {1, cores > 1 ? (unsigned)bytes_min((uint64_t)cores,
								  COPY_THREADS_MAX) : 1};
	struct measured_series series[2] = {{.count = 0}};
	uint64_t bytes = bytes_min(2 * measure_cache_bytes(), COPY_BYTES_MOST);
	uint64_t place = 0;
	uint8_t *at;
	int rc = 0;

	bytes = bytes < COPY_BYTES_LEAST ? COPY_BYTES_LEAST : bytes;
	if (bytes > measure_memory_bytes() / 4)
		bytes = measure_memory_bytes() / 4 / MiB * MiB;
	at = bytes > 0 ? loop_buffer_map(2 * bytes) : NULL;
	if (at == NULL)
		return measure_failed("no memory to copy: %llu MiB are needed",
				      (unsigned long long)(2 * COPY_BYTES_LEAST / MiB));
	memset(at, 1, 2 * bytes);
	for (unsigned r = 0; r < MEASURED_REPEATS_MAX && !measure_stopped(); r++) {
		if (r >= COPY_REPEATS_LEAST && measure_over(m))
			break;
		for (unsigned i = 0; i < 1u + (threads[1] > 1); i++) {
			uint64_t step = bytes_min(COPY_STEP * threads[i], bytes);
			double rate;

			if (place + step > bytes)
				place = 0;
			rate = copy_once(at + bytes + place, at + place, step, threads[i]);
			place += step;
			measure_progress(m, "%u threads, %.1f GB/s", threads[i], rate / 1e9);
			if (rate > 0)
				measured_add(&series[i], rate);
		}
	}
	loop_buffer_unmap(at, 2 * bytes);
	for (unsigned i = 0; rc == 0 && !measure_stopped() && i < 1u + (threads[1] > 1); i++)
		rc = copy_report(m, &series[i], threads[i], bytes);
	return rc;
}
