/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One array in the simulator: a target over a store on two drives, on a loop of its own. It can be
 * killed and come back. Included by one file a program.
 */
#ifndef KVOF_TESTS_UNIT_CACHE_ARRAY_FIXTURE_H
#define KVOF_TESTS_UNIT_CACHE_ARRAY_FIXTURE_H

#include "kt.h"

#include "base/bytes.h"
#include "base/must.h"
#include "loop/sim.h"
#include "store/store.h"
#include "target/target.h"

#define NQN "nqn.2026-11.io.kvof:array"

static struct array {
	struct loop *loop;
	struct store *store;
	struct target *target;
	unsigned ends;
} array;

static void array_up(bool format)
{
	struct loop_opts loop = {.name = "array"};
	struct store_opts so = {.drive_count = 2, .evict = true, .buffer_bytes = 64 * MiB,
		.format = format, .drive = {{.path = "a0", .bytes = 256 * MiB},
					    {.path = "a1", .bytes = 256 * MiB}}};
	struct target_ns_opts ns = {.nsid = 1, .evicts = true};
	struct target_subsys_opts subsys = {.nqn = NQN, .ns = &ns, .ns_count = 1};
	struct target_opts to = {.subsys = &subsys, .subsys_count = 1};
	struct sock_addr addr = {.host = "127.0.0.1", .port = 4420};
	struct store_report report;
	char why[256] = "";
	uint16_t port;

	expect_int(loop_open(&loop, &array.loop), 0);
	if (store_open(&so, array.loop, &array.store, &report) != 0)
		fail_msg("store: %s", report.text);
	ns.store = array.store;
	to.loop = array.loop;
	if (target_open(&to, why, &array.target) != 0)
		fail_msg("target: %s", why);
	expect_int(target_listen(array.target, &addr, NULL, &port), 0);
}

/* What a killed process had: its memory is nobody's, but still reachable for the leak checker. */
static void *grave[256];
static unsigned graves;

static void array_kill(void)
{
	sim_crash(&array.loop, true);
	if (graves + 2 > ARRAY_COUNT(grave))
		graves = 0;
	grave[graves++] = array.store;
	grave[graves++] = array.target;
}

static void array_end(void *arg)
{
	array.ends++;
}

static bool array_has_ended(void *arg)
{
	return array.ends == *(unsigned *)arg;
}

/* In order; the hosts are closed, or lost. */
static void array_down(void)
{
	unsigned want = 1;

	array.ends = 0;
	target_close(&array.target, 0, array_end, NULL);
	expect(sim_run_until(array_has_ended, &want, 60 * NS_PER_S));
	want = 2;
	store_close(&array.store, array_end, NULL);
	expect(sim_run_until(array_has_ended, &want, 60 * NS_PER_S));
	loop_close(&array.loop);
}

#endif
