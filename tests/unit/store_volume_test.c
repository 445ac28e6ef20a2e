/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume of three shards on three real loops, each in a thread of its own, called from all three
 * at once: what the simulator runs in one thread, here on files and for the thread sanitizer, too.
 */
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/must.h"
#include "base/prng.h"
#include "kt.h"
#include "store/block.h"

#define LOOPS 3
#define DRIVES 2
#define FLIGHT 4
#define ROUNDS 60
#define REGION (6 * MiB)
#define OP_BYTES_MAX (3 * MiB)

/* A caller on one loop, with a region of the namespace and its own copy of what is there. */
struct caller;

struct work {
	struct block_op op;
	struct caller *caller;
	struct iovec iov;
	uint8_t *memory;
};

struct caller {
	struct msg msg;
	struct loop *loop;
	struct block *block;
	unsigned index, rounds, flying;
	struct prng prng;
	uint8_t *copy;                 /* [REGION] */
	struct work work[FLIGHT];
	bool changes;                  /* this round writes; else it reads */
	uint64_t at[FLIGHT], bytes[FLIGHT];
};

static struct caller caller[LOOPS];
static struct volume *volume;
static sem_t over;
static char dir[] = "/tmp/kvof-volume-XXXXXX";

static void round_begin(struct caller *c);

static void work_done(struct block_op *op, int res)
{
	struct work *w = container_of(op, struct work, op);
	struct caller *c = w->caller;

	must(res == 0 && loop_here(c->loop));
	if (op->kind == BLOCK_READ)
		must(memcmp(w->memory, c->copy + op->offset_bytes - c->index * REGION,
			    op->bytes) == 0);
	if (--c->flying > 0)
		return;
	if (c->rounds-- > 0)
		round_begin(c);
	else
		sem_post(&over);
}

/* Pieces of the region that do not overlap, one after another. */
static void places_choose(struct caller *c)
{
	uint64_t from = 0;

	for (unsigned i = 0; i < FLIGHT; i++) {
		uint64_t room = REGION / FLIGHT * (i + 1) - from;

		c->at[i] = from + prng_below(&c->prng, room / 4096) * 4096;
		room = REGION / FLIGHT * (i + 1) - c->at[i];
		room = bytes_min(room, OP_BYTES_MAX) / 4096;
		c->bytes[i] = (1 + prng_below(&c->prng, room)) * 4096;
		from = c->at[i] + c->bytes[i];
	}
}

static enum block_kind kind_of(struct caller *c)
{
	static const enum block_kind kinds[] = {
		BLOCK_WRITE, BLOCK_WRITE, BLOCK_WRITE, BLOCK_ZERO, BLOCK_DEALLOCATE};

	return c->changes ? kinds[prng_below(&c->prng, ARRAY_COUNT(kinds))] : BLOCK_READ;
}

static void round_begin(struct caller *c)
{
	places_choose(c);
	c->changes = !c->changes;
	c->flying = FLIGHT;
	for (unsigned i = 0; i < FLIGHT; i++) {
		struct work *w = &c->work[i];
		uint8_t *copy = c->copy + c->at[i];

		w->op = (struct block_op){.kind = kind_of(c), .done = work_done,
			.fua = prng_below(&c->prng, 8) == 0,
			.offset_bytes = c->index * REGION + c->at[i], .bytes = c->bytes[i],
			.iov = &w->iov, .iov_count = 1};
		w->iov = (struct iovec){w->memory, c->bytes[i]};
		if (w->op.kind == BLOCK_WRITE) {
			prng_fill(&c->prng, w->memory, c->bytes[i]);
			memcpy(copy, w->memory, c->bytes[i]);
		} else if (c->changes) {
			memset(copy, 0, c->bytes[i]);
			w->op.iov_count = 0;
		}
		volume_run(volume, c->loop, &w->op);
	}
}

static void begin_run(struct loop *here, struct msg *m)
{
	round_begin(container_of(m, struct caller, msg));
}

static void block_closed(void *arg)
{
	loop_stop(((struct caller *)arg)->loop);
}

static void close_run(struct loop *here, struct msg *m)
{
	struct caller *c = container_of(m, struct caller, msg);

	block_close(&c->block, block_closed, c);
}

static void *thread_main(void *arg)
{
	loop_run(((struct caller *)arg)->loop);
	return NULL;
}

static void open_all(void)
{
	struct volume_shard shard[LOOPS];
	static char path[LOOPS][DRIVES][64];

	for (unsigned i = 0; i < LOOPS; i++) {
		struct block_opts o = {.size_bytes = LOOPS * REGION, .block_bytes = 4096,
			.shard = i, .shard_count = LOOPS, .uuid = "volume",
			.parts = {.drive_count = DRIVES}};
		struct store_report report;

		for (unsigned d = 0; d < DRIVES; d++) {
			snprintf(path[i][d], sizeof(path[i][d]), "%s/%u-%u", dir, i, d);
			o.parts.drive[d] = (struct store_drive){.path = path[i][d],
				.bytes = block_part_bytes(o.size_bytes, LOOPS, DRIVES)};
		}
		expect_int(loop_open(&(struct loop_opts){.name = "volume"}, &caller[i].loop), 0);
		if (block_open(&o, caller[i].loop, &caller[i].block, &report) != 0)
			fail_msg("open: %s", report.text);
		shard[i] = (struct volume_shard){caller[i].loop, caller[i].block};
	}
	expect_int(volume_open(shard, LOOPS, &volume), 0);
}

static void all_send(void (*run)(struct loop *here, struct msg *m))
{
	for (unsigned i = 0; i < LOOPS; i++) {
		caller[i].msg = (struct msg){.run = run};
		loop_post(caller[i].loop, &caller[i].msg);
	}
}

static void memory(void)
{
	for (unsigned i = 0; i < LOOPS; i++) {
		struct caller *c = &caller[i];

		c->index = i;
		c->rounds = ROUNDS;
		c->prng = prng_of(i + 1);
		c->copy = calloc(1, REGION);
		for (unsigned k = 0; k < FLIGHT; k++) {
			c->work[k].caller = c;
			c->work[k].memory = loop_buffer_map(OP_BYTES_MAX);
		}
	}
}

TEST(three_threads_call_a_volume_whose_shards_are_theirs)
{
	pthread_t thread[LOOPS];
	struct block_stat stat;
	char command[128];

	expect(mkdtemp(dir) != NULL);
	sem_init(&over, 0, 0);
	memory();
	for (unsigned pass = 0; pass < 2; pass++) {    /* the second finds what the first left */
		open_all();
		for (unsigned i = 0; i < LOOPS; i++)
			expect_int(pthread_create(&thread[i], NULL, thread_main, &caller[i]), 0);
		all_send(begin_run);
		for (unsigned i = 0; i < LOOPS; i++)
			sem_wait(&over);
		volume_stat(volume, &stat);
		expect(stat.writes > 0 && stat.reads > 0 && stat.io_errors == 0);
		expect_int(stat.drives, DRIVES);
		all_send(close_run);
		for (unsigned i = 0; i < LOOPS; i++)
			pthread_join(thread[i], NULL);
		for (unsigned i = 0; i < LOOPS; i++) {     /* none is left that rings a bell */
			loop_close(&caller[i].loop);
			caller[i].rounds = ROUNDS;
		}
		volume_close(&volume);
	}
	for (unsigned i = 0; i < LOOPS; i++) {
		for (unsigned k = 0; k < FLIGHT; k++)
			loop_buffer_unmap(caller[i].work[k].memory, OP_BYTES_MAX);
		free(caller[i].copy);
	}
	snprintf(command, sizeof(command), "rm -r %s", dir);
	expect_int(system(command), 0);
}
