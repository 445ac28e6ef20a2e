/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hosts on one namespace; one dies at a seeded point of a 4 MiB Store while the other runs
 * verified load. The other notices nothing, and the half-stored value is never visible: the key
 * holds its old value, or the whole new one, or (where there was none) nothing.
 *
 * usage: half_store_test [--points N]      200 points by default; prints TAP
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "host/host.h"
#include "loop/sim.h"
#include "store/store.h"
#include "target/target.h"

#define NQN "nqn.2026-11.io.kvof:array"
#define BIG (4 * MiB)
#define SMALL (64 * KiB)
#define SMALL_KEYS 8

static struct {
	struct loop *array, *victim_loop, *other_loop;
	struct store *store;
	struct target *target;
	struct host *victim, *other;
	struct host_op big, op;
	struct iovec big_iov, iov;
	uint8_t *old_value, *new_value, *room, *small;
	uint64_t small_hash[SMALL_KEYS];
	bool big_done, had_old;
	int op_res;
	bool op_done;
	struct prng p;
} H;

static struct counts {               /* shared with the children: one world, one process */
	unsigned seen_old, seen_new, seen_none, other_ops, before, during, failures;
	uint64_t slowest_ns;
} *C;

#define FAIL(...)                                                                                  \
	do {                                                                                       \
		C->failures++;                                                             \
		printf("# ");                                                                      \
		printf(__VA_ARGS__);                                                               \
		printf("\n");                                                                      \
	} while (0)

static void big_done(struct host_op *op, int res)
{
	(void)op;
	(void)res;
	H.big_done = true;
}

static void op_done(struct host_op *op, int res)
{
	(void)op;
	H.op_res = res;
	H.op_done = true;
}

static void released(struct host_op *op)
{
	(void)op;
}

static bool op_is_done(void *arg)
{
	(void)arg;
	return H.op_done;
}

static bool live(void *arg)
{
	return host_state(arg) == HOST_LIVE;
}

static struct host *host_up(struct loop *loop, unsigned n)
{
	struct host_opts o = {.addr = {.host = "array", .port = 4420}, .queues = 2, .depth = 8};
	struct host *h = NULL;
	char why[256] = "";

	snprintf(o.subnqn, sizeof(o.subnqn), NQN);
	snprintf(o.hostnqn, sizeof(o.hostnqn), "nqn.2014-08.org.nvmexpress:uuid:"
		 "00000000-0000-4000-8000-00000000000%u", n);
	must(host_open(loop, &o, NULL, NULL, why, &h) == 0);
	must(sim_run_until(live, h, 5 * NS_PER_S));
	return h;
}

static void array_up(void)
{
	struct store_opts so = {.drive_count = 2, .evict = true, .buffer_bytes = 64 * MiB,
		.format = true, .drive = {{.path = "h0", .bytes = 256 * MiB},
					   {.path = "h1", .bytes = 256 * MiB}}};
	struct target_ns_opts ns = {.nsid = 1, .evicts = true};
	struct target_subsys_opts subsys = {.nqn = NQN, .ns = &ns, .ns_count = 1};
	struct target_opts to = {.subsys = &subsys, .subsys_count = 1};
	struct sock_addr addr = {.host = "array", .port = 4420};
	struct store_report report;
	char why[256];
	uint16_t port;

	must(store_open(&so, H.array, &H.store, &report) == 0);
	ns.store = H.store;
	to.loop = H.array;
	must(target_open(&to, why, &H.target) == 0);
	must(target_listen(H.target, &addr, NULL, &port) == 0);
}

/* One operation of the other host, from start to end; it may never fail. */
static int other_run(enum host_op_kind kind, unsigned key, uint8_t *buffer, uint32_t bytes)
{
	uint64_t began = sim_now_ns();

	H.op = (struct host_op){.kind = kind, .done = op_done, .released = released,
		.key = {.len = 2, .byte = {'k', (uint8_t)key}}, .bytes = bytes, .iov_count = 1,
		.iov = &H.iov, .deadline_ns = began + 2 * NS_PER_S};
	H.iov = (struct iovec){buffer, bytes};
	H.op_done = false;
	host_submit(H.other, &H.op);
	if (!sim_run_until(op_is_done, NULL, 3 * NS_PER_S))
		FAIL("the other host hangs");
	if (sim_now_ns() - began > C->slowest_ns)
		C->slowest_ns = sim_now_ns() - began;
	C->other_ops++;
	return H.op_res;
}

static void other_load(unsigned rounds)
{
	for (unsigned i = 0; i < rounds; i++) {
		unsigned k = (unsigned)prng_below(&H.p, SMALL_KEYS);

		if (H.small_hash[k] == 0 || prng_chance(&H.p, 400000)) {
			prng_fill(&H.p, H.small, SMALL);
			if (other_run(HOST_STORE, k, H.small, SMALL) != 0)
				FAIL("the other host's Store failed: %d", H.op_res);
			H.small_hash[k] = hash_xxh3(H.small, SMALL);
		}
		memset(H.small, 0xa5, SMALL);
		if (other_run(HOST_RETRIEVE, k, H.small, SMALL) != 0 ||
		    hash_xxh3(H.small, SMALL) != H.small_hash[k])
			FAIL("the other host read wrong bytes or failed: %d", H.op_res);
	}
}

/* What the big key holds must be whole. */
static void look(void)
{
	int res;

	memset(H.room, 0xa5, BIG);
	res = other_run(HOST_RETRIEVE, 255, H.room, BIG);
	if (res == -ENOENT && !H.had_old)
		C->seen_none++;
	else if (res == 0 && H.op.value_bytes == BIG && memcmp(H.room, H.new_value, BIG) == 0)
		C->seen_new++;
	else if (res == 0 && H.had_old && H.op.value_bytes == BIG &&
		 memcmp(H.room, H.old_value, BIG) == 0)
		C->seen_old++;
	else
		FAIL("half a value is visible: res %d, %u bytes", res, H.op.value_bytes);
	res = other_run(HOST_EXIST, 255, H.room, 0);
	if (res != 0 && res != -ENOENT)
		FAIL("Exist failed: %d", res);
}

static void point(uint64_t seed)
{
	struct sim_opts o = {.seed = seed};
	struct loop_opts lo = {.name = "half"};
	unsigned steps;

	H.p = prng_of(seed);
	memset(H.small_hash, 0, sizeof(H.small_hash));
	must(sim_begin(&o) == 0);
	must(loop_open(&lo, &H.array) == 0 && loop_open(&lo, &H.victim_loop) == 0 &&
	     loop_open(&lo, &H.other_loop) == 0);
	array_up();
	H.victim = host_up(H.victim_loop, 1);
	H.other = host_up(H.other_loop, 2);
	H.had_old = seed % 2 == 0;
	if (H.had_old && other_run(HOST_STORE, 255, H.old_value, BIG) != 0)
		FAIL("the old value could not be stored");
	other_load(2);
	H.big = (struct host_op){.kind = HOST_STORE, .done = big_done, .released = released,
		.key = {.len = 2, .byte = {'k', 255}}, .bytes = BIG, .iov_count = 1,
		.iov = &H.big_iov, .deadline_ns = sim_now_ns() + 5 * NS_PER_S};
	H.big_iov = (struct iovec){H.new_value, BIG};
	H.big_done = false;
	host_submit(H.victim, &H.big);
	steps = (unsigned)prng_below(&H.p, 240);   /* a Store takes 170 to 240 events here */
	for (unsigned i = 0; i < steps && !H.big_done; i++)
		sim_step();
	C->during += !H.big_done;
	C->before += H.big_done;
	sim_crash(&H.victim_loop, true);
	look();
	other_load(6);
	look();
	look();
	sim_end();
}

int main(int argc, char **argv)
{
	static const struct option option[] = {{"points", 1, NULL, 'p'}, {0}};
	unsigned points = 200;
	struct prng fill = prng_of(42);

	while (getopt_long(argc, argv, "", option, NULL) == 'p')
		points = (unsigned)atoi(optarg);
	C = mmap(NULL, sizeof(*C), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(C != MAP_FAILED);
	H.old_value = malloc(BIG);
	H.new_value = malloc(BIG);
	H.room = malloc(BIG);
	H.small = malloc(SMALL);
	must(H.old_value != NULL && H.new_value != NULL && H.room != NULL && H.small != NULL);
	prng_fill(&fill, H.old_value, BIG);
	prng_fill(&fill, H.new_value, BIG);
	alarm(300);
	for (unsigned i = 1; i <= points; i++) {
		int status = 1;
		pid_t pid;

		fflush(stdout);
		pid = fork();
		must(pid >= 0);
		if (pid == 0) {
			point(i);
			fflush(stdout);
			_exit(0);
		}
		waitpid(pid, &status, 0);
		if (status != 0)
			FAIL("point %u ended with status %d", i, status);
	}
	printf("# %u points: %u during the Store, %u after it; seen: old %u, new %u, none %u; the "
	       "other host: %u operations, slowest %.3f ms\n", points, C->during, C->before,
	       C->seen_old, C->seen_new, C->seen_none, C->other_ops, (double)C->slowest_ns / 1e6);
	printf("1..2\n");
	printf("%s 1 - a host killed in the middle of a 4 MiB Store leaves no half value, and the "
	       "other host notices nothing\n", C->failures == 0 ? "ok" : "not ok");
	printf("%s 2 - most points lay inside the Store, and both outcomes were seen\n",
	       C->during > points / 2 && C->seen_old > 0 && C->seen_none > 0 ? "ok" : "not ok");
	return C->failures != 0;
}
