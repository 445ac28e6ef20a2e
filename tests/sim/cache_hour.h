/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of the hour (cache_hour_test.c): arrays, processes, blocks and what was seen of them.
 */
#ifndef KVOF_TESTS_SIM_CACHE_HOUR_H
#define KVOF_TESTS_SIM_CACHE_HOUR_H

#include "kt.h"

#include <stdlib.h>

#include "base/list.h"
#include "base/prng.h"
#include "cache/core.h"
#include "cache/place.h"
#include "cache/prefetch.h"
#include "cache/restore.h"
#include "loop/sim.h"

struct store;
struct target;

#define CUT 4032u
#define DEADLINE_NS (500 * NS_PER_MS)
#define LATE_NS (2 * NS_PER_MS)            /* past the deadline; of the simulator's own delays */

enum { PROCS = 3, ARRAYS = 2, SEQUENCES = 60, BLOCKS = 12, FLYING = 6, GRAVES = 4096 };

struct array {
	struct loop *loop;                 /* NULL: killed */
	struct store *store;
	struct target *target;
	uint64_t up_ns;                    /* when a killed one comes back */
};

struct proc {
	unsigned index;
	struct loop *loop;                 /* NULL: killed */
	struct core *core;
	struct identity *identity;
	struct kvof_cache_opts opts;
	char flash[64];
	const char *flash_list[1], *target_list[ARRAYS];
	bool opened, closed;
	int opened_res;
	unsigned flying;
	struct list_link works;
	struct restore *restore;
	struct prefetch *prefetch;
	unsigned asks, hints;
	struct list_link ask_list, hint_list;
	uint64_t hits[KVOF_TIER_COUNT], reasons[KVOF_REASON_COUNT];  /* told since it is up */
	uint64_t up_ns, next_id;
	bool cut[ARRAYS];
	bool flash_ill;
	bool pinned[SEQUENCES];            /* the first half of it, by this process */
};

static struct hour {
	struct prng prng, pins;
	struct array array[ARRAYS];
	struct proc proc[PROCS];
	bool saved[SEQUENCES][BLOCKS];     /* a save was ever submitted */
	bool faults, kills;
	uint64_t hits[KVOF_TIER_COUNT], reasons[KVOF_REASON_COUNT], batches, killed, cuts;
	uint64_t restored[KVOF_TIER_COUNT], asks, hints, layers, computed, prefetched;
	void *grave[GRAVES];               /* memory of the killed: nobody's, but reachable */
	unsigned graves;
} h;

static void bury(void *what)
{
	h.grave[h.graves++ % GRAVES] = what;
}

static size_t block_bytes(uint32_t sequence, uint32_t n)
{
	static const size_t bytes[] = {3 * CUT - 100, 700, CUT, 2 * CUT + 1, 0, 9000};

	return bytes[(sequence * 7 + n) % ARRAY_COUNT(bytes)];
}

static void block_fill(uint8_t *at, uint32_t sequence, uint32_t n)
{
	struct prng p = prng_of(sequence * UINT64_C(1000) + n + 1);

	prng_fill(&p, at, block_bytes(sequence, n));
}

static struct kvof_id block_id(const struct proc *p, uint32_t sequence, uint32_t n)
{
	uint32_t name[2] = {sequence, n};
	struct kvof_id id;

	identity_engine(p->identity, name, sizeof(name), &id);
	return id;
}

/* A call on a process's loop, waited for. */
static void (*call)(struct proc *p);
static struct proc *call_proc;

static void call_run(struct loop *here, struct msg *m)
{
	call(call_proc);
	call = NULL;
}

static bool call_over(void *arg)
{
	return call == NULL;
}

static void here(struct proc *p, void (*what)(struct proc *p))
{
	static struct msg m;

	m.run = call_run;
	call = what;
	call_proc = p;
	loop_post(p->loop, &m);
	expect(sim_run_until(call_over, NULL, NS_PER_S));
}

#endif
