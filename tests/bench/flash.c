/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast blocks come back from the flash tier: saves blocks, then loads them in a random order,
 * so many in flight, each into memory of its own, verified.
 *
 *   flash DRIVE... [block=BYTES] [part=BYTES] [blocks=N] [flying=N] [rounds=N] [seconds=S]
 *
 * A drive is PATH[,size=S][,rate=S]. One thread. Prints one JSON object: bytes a second of each
 * round, and what was read at the drives for each byte delivered.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "args.h"

#include "base/hash.h"
#include "base/prng.h"
#include "cache/flash.h"

#define DRIVES_MAX KVOF_FLASH_MAX
#define FLYING_MAX 256

static struct loop *loop;
static struct tier *tier;
static uint64_t block_bytes = 32 * MiB, part_bytes = 4 * MiB, blocks = 64, flying = 8, rounds = 3;
static const char *drive[DRIVES_MAX];
static unsigned drives;

static struct slot {
	struct tier_op op;
	struct tier_part part[TIER_PARTS_MAX];
	struct iovec iov, part_iov[TIER_PARTS_MAX][2];
	uint8_t *at;
	uint64_t number;
	bool busy;
} slot[FLYING_MAX];
static uint64_t next, done, total, failed;
static uint32_t *order;
static enum kvof_op kind;

static uint64_t clock_of(clockid_t which)
{
	struct timespec now;

	clock_gettime(which, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void slot_start(struct slot *s);

static void slot_done(struct tier_op *op)
{
	struct slot *s = container_of(op, struct slot, op);

	must(!op->busy);
	if (op->reason != KVOF_OK && op->reason != KVOF_EXISTS) {
		if (failed++ == 0)
			fprintf(stderr, "block %" PRIu64 ": %s\n", s->number,
				kvof_reason_name(op->reason));
	} else if (kind == KVOF_LOAD && *(uint64_t *)(void *)s->at != s->number) {
		fprintf(stderr, "block %" PRIu64 ": wrong bytes\n", s->number);
		exit(1);
	}
	done++;
	s->busy = false;
	slot_start(s);
}

static void slot_start(struct slot *s)
{
	if (next == total)
		return;
	s->number = order[next++];
	s->op = (struct tier_op){.kind = kind, .iov = &s->iov, .iov_count = 1,
		.bytes = block_bytes, .part = s->part, .done = slot_done,
		.part_slots = tier_slots(kind, block_bytes, tier->cut_bytes)};
	hash_sha256_once(&s->number, sizeof(s->number), s->op.id.byte);
	s->iov = (struct iovec){s->at, block_bytes};
	for (unsigned i = 0; i < TIER_PARTS_MAX; i++)
		s->part[i].iov = s->part_iov[i];
	if (kind == KVOF_SAVE)
		memcpy(s->at, &s->number, sizeof(s->number));
	s->busy = true;
	tier->ops->start(tier, &s->op);
}

/* Return: bytes a second. */
static uint64_t run(enum kvof_op what, uint64_t *cpu_ns)
{
	uint64_t begin = clock_of(CLOCK_MONOTONIC), cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID);

	kind = what;
	next = done = 0;
	total = blocks;
	for (unsigned i = 0; i < flying; i++)
		slot_start(&slot[i]);
	while (done < total)
		loop_turn(loop, NS_PER_S);
	*cpu_ns = clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	return (uint64_t)((double)(total * block_bytes) * 1e9 /
			  (double)(clock_of(CLOCK_MONOTONIC) - begin));
}

static void closed(void *arg)
{
	*(bool *)arg = true;
}

static void args_take(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (number(argv[i], "block", &block_bytes) ||
		    number(argv[i], "part", &part_bytes) || number(argv[i], "blocks", &blocks) ||
		    number(argv[i], "flying", &flying) || number(argv[i], "rounds", &rounds))
			continue;
		must(drives < DRIVES_MAX);
		drive[drives++] = argv[i];
	}
	if (drives == 0 || flying == 0 || flying > FLYING_MAX || blocks == 0 ||
	    block_bytes < sizeof(uint64_t)) {
		fprintf(stderr, "usage: flash DRIVE... [block=BYTES] [part=BYTES] [blocks=N] "
			"[flying=N] [rounds=N]\n");
		exit(2);
	}
}

static void prepare(struct prng *p)
{
	order = calloc(blocks, sizeof(*order));
	must(order != NULL);
	for (uint64_t i = 0; i < blocks; i++)
		order[i] = (uint32_t)i;
	for (unsigned i = 0; i < flying; i++) {
		slot[i].at = loop_buffer_map(block_bytes);
		must(slot[i].at != NULL);
		prng_fill(p, slot[i].at, block_bytes);
	}
}

int main(int argc, char **argv)
{
	struct loop_opts lo = {.name = "flash", .ops_max = 16384};
	struct flash_opts fo = {.path = drive, .format = true};
	struct prng p = prng_of(1);
	struct tier_stat before, after;
	uint64_t cpu_ns, rate;
	bool over = false;
	char why[256];

	args_take(argc, argv);
	fo.path_count = drives;
	fo.part_bytes = (uint32_t)part_bytes;
	if (loop_open(&lo, &loop) != 0 || flash_open(loop, &fo, why, &tier) != 0) {
		fprintf(stderr, "%s\n", why);
		return 3;
	}
	prepare(&p);
	rate = run(KVOF_SAVE, &cpu_ns);
	printf("{\"block_bytes\": %" PRIu64 ", \"part_bytes\": %" PRIu64 ", \"blocks\": %" PRIu64
	       ", \"flying\": %" PRIu64 ", \"save_bytes_per_s\": %" PRIu64
	       ", \"load_bytes_per_s\": [", block_bytes, part_bytes, blocks, flying, rate);
	flash_stat(tier, &before);
	for (uint64_t r = 0; r < rounds; r++) {
		for (uint64_t i = blocks - 1; i > 0; i--) {
			uint64_t k = prng_below(&p, i + 1);
			uint32_t swap = order[i];

			order[i] = order[k];
			order[k] = swap;
		}
		rate = run(KVOF_LOAD, &cpu_ns);
		printf("%s%" PRIu64, r > 0 ? ", " : "", rate);
		fflush(stdout);
	}
	flash_stat(tier, &after);
	printf("], \"cpu_s_per_gb\": %.3f, \"read_per_delivered\": %.4f, \"failed\": %" PRIu64
	       "}\n", (double)cpu_ns / (double)(blocks * block_bytes),
	       (double)(after.device_read_bytes - before.device_read_bytes) /
	       (double)(after.delivered_bytes - before.delivered_bytes), failed);
	flash_close(&tier, closed, &over);
	while (!over)
		loop_turn(loop, NS_PER_S);
	loop_close(&loop);
	return failed > 0;
}
