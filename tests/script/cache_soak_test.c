/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Minutes of mixed load with faults against real files and arrays: two `kvof serve`, three
 * processes with caches of three tiers over both, that load and save blocks, restore prefixes in
 * both modes beside an engine, and prefetch. Arrays are stopped (SIGSTOP) and go on, one is
 * killed and comes back, so are two of the processes.
 *
 * usage: cache_soak_test KVOF [SECONDS]      600 by default; prints TAP. KVOF_SEED sets the seed.
 *
 * What must hold: a hit is exactly the bytes of a save that some process submitted, and so is a
 * layer that is told and what is usable of a prefix; what was handed to the engine keeps its bytes.
 * Once a round all come to rest: nothing waits to be written, nothing is pinned, no staging is
 * taken; hits by tier and misses by reason are what the results said; and the memory and the
 * descriptors of whoever lived since the second rest, and the drives' files, are what they were.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <kvof/restore.h>

#include "base/must.h"
#include "base/prng.h"

enum { ARRAYS = 2, WORKERS = 3, SEQUENCES = 150, BLOCKS = 8, FLIGHT = 6, ASKS = 3, LAYERS = 4,
       ROUND_S = 20 };
#define BLOCK_MAX (300 * 1024)
#define DRIVE_MIB 128
#define FLASH_MIB 64
#define DRAM_BYTES (24 * MiB)
#define DEADLINE_NS (500 * NS_PER_MS)
#define MORE_BYTES (24 * MiB)              /* of memory that comes and goes */
#define MORE_FDS 4

/* What all processes see. */
struct shared {
	_Atomic uint8_t saved[SEQUENCES][BLOCKS];
	_Atomic uint64_t hits[KVOF_TIER_COUNT], reasons[KVOF_REASON_COUNT], batches, late;
	_Atomic uint64_t asks, layers, usable, computed;
	_Atomic uint32_t wrong;
};

/* A process under watch. */
struct watched {
	pid_t pid;
	unsigned rests;                    /* that it lived to see */
	uint64_t bytes;                    /* at its second rest */
	unsigned fds;
};

struct rest {                              /* what a worker says at rest */
	uint64_t behind_blocks, pinned_bytes, staging_bytes;
	int res;
	bool counted;                      /* hits and misses are what was told */
};

static struct {
	const char *kvof;
	char dir[64];
	int port[ARRAYS];
	struct shared *shared;
	struct prng p;
	struct watched array[ARRAYS], worker[WORKERS];
	int ask[WORKERS], answer[WORKERS]; /* pipes: parent's ends */
	uint64_t kills, stops;
	bool failed;
} S;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* Time between faults passes; nothing is judged by it. */
static void pass(uint64_t ns)
{
	(void)poll(NULL, 0, (int)(ns / NS_PER_MS));
}

static uint32_t block_bytes(uint32_t sequence, uint32_t n)
{
	struct prng p = prng_of((uint64_t)sequence << 32 | n);

	return (uint32_t)prng_below(&p, BLOCK_MAX);
}

static uint32_t block_make(uint32_t sequence, uint32_t n, uint8_t *out)
{
	struct prng p = prng_of((uint64_t)sequence << 32 | n);
	uint32_t bytes = (uint32_t)prng_below(&p, BLOCK_MAX);

	prng_fill(&p, out, bytes);
	return bytes;
}

/* --- a worker --------------------------------------------------------------------------------- */

struct flight {
	uint64_t batch;                    /* 0: free */
	enum kvof_op kind;
	uint32_t sequence, first, count, left, busy;
	uint8_t *at[BLOCKS];
};

/* A restore, and the engine beside it. */
struct ask {
	uint64_t request;                  /* 0: free */
	uint32_t sequence, count, layers;
	bool ends, engine, waits, done, over, busy;
	uint64_t deadline_ns, computed_ns; /* computed_ns: when it is; 0: nothing is computed */
	uint32_t first, steps, usable;
	uint8_t *at[BLOCKS];
	bool claimed[BLOCKS], doubted[BLOCKS];
};

static struct {
	struct kvof_cache *cache;
	struct prng p;
	struct flight flight[FLIGHT];
	struct ask ask[ASKS];
	unsigned flying, asking;
	uint64_t hits[KVOF_TIER_COUNT], reasons[KVOF_REASON_COUNT];
	uint8_t *want;
} W;

static void worker_open(unsigned index)
{
	char target[ARRAYS][64], flash[128], why[256];
	const char *targets[ARRAYS] = {target[0], target[1]}, *flashes[1] = {flash};
	struct kvof_field field[1] = {{"kv_dtype", "f16"}};
	struct kvof_cache_opts opts = {
		.struct_bytes = sizeof(opts), .targets = targets, .target_count = ARRAYS,
		.fields = field, .field_count = 1, .model_id = "soak", .part_bytes = 64 * 1024,
		.dram_bytes = DRAM_BYTES, .deadline_ns = DEADLINE_NS, .flash = flashes,
		.flash_count = 1, .behind_bytes = index == 1 ? 0 : 4 * MiB,
		.behind_full = index == 2, .admission = index == 2 ? KVOF_ADMIT_FLASH_SECOND : 0,
		.index_blocks = 4096, .queues = 2, .layer_count = LAYERS,
		.staging_bytes = 2 * MiB, .block_tokens = 16,
	};

	for (int i = 0; i < ARRAYS; i++)
		snprintf(target[i], sizeof(target[i]), "tcp://127.0.0.1:%d", S.port[i]);
	snprintf(flash, sizeof(flash), "%s/flash%u,size=%dMiB", S.dir, index, FLASH_MIB);
	if (kvof_cache_open(&opts, why, &W.cache) != 0) {
		fprintf(stderr, "open: %s\n", why);
		_exit(3);
	}
	for (int i = 0; i < FLIGHT; i++)
		for (int k = 0; k < BLOCKS; k++) {
			W.flight[i].at[k] = malloc(BLOCK_MAX);
			must(W.flight[i].at[k] != NULL);
		}
	for (int i = 0; i < ASKS; i++)
		for (int k = 0; k < BLOCKS; k++) {
			W.ask[i].at[k] = malloc(BLOCK_MAX);
			must(W.ask[i].at[k] != NULL);
		}
	W.want = malloc(BLOCK_MAX);
	must(W.want != NULL);
}

static struct kvof_id id_of(uint32_t sequence, uint32_t n)
{
	uint32_t name[2] = {sequence, n};
	struct kvof_id id;

	must(kvof_cache_id_of(W.cache, name, sizeof(name), &id) == 0);
	return id;
}

static void hit_judge(const struct flight *f, const struct kvof_result *r)
{
	uint32_t n = f->first + r->index, bytes = block_make(f->sequence, n, W.want);

	if (r->value_bytes == bytes && memcmp(f->at[r->index], W.want, bytes) == 0 &&
	    atomic_load(&S.shared->saved[f->sequence][n]) != 0)
		return;
	fprintf(stderr, "block %u of %u from %s: wrong bytes\n", n, f->sequence,
		kvof_tier_name(r->tier));
	atomic_fetch_add(&S.shared->wrong, 1);
}

/* The result of a load, of a batch or of a request. */
static void load_count(const struct kvof_result *r)
{
	atomic_fetch_add(&S.shared->reasons[r->reason], 1);
	W.reasons[r->reason]++;
	if (r->reason != KVOF_OK)
		return;
	atomic_fetch_add(&S.shared->hits[r->tier], 1);
	W.hits[r->tier]++;
}

/* --- a worker: restores ----------------------------------------------------------------------- */

static bool ask_good(const struct ask *a, uint32_t n, uint64_t from, uint64_t to)
{
	(void)block_make(a->sequence, n, W.want);
	return memcmp(a->at[n] + from, W.want + from, to - from) == 0 &&
	       atomic_load(&S.shared->saved[a->sequence][n]) != 0;
}

static void ask_judge(const struct ask *a, uint32_t n)
{
	if (!a->doubted[n] && ask_good(a, n, 0, block_bytes(a->sequence, n)))
		return;
	fprintf(stderr, "block %u of %u: wrong bytes restored%s\n", n, a->sequence,
		a->doubted[n] ? ", since a layer of it was told" : "");
	atomic_fetch_add(&S.shared->wrong, 1);
}

static uint64_t layer_end(uint64_t bytes, uint32_t layers)
{
	return bytes / LAYERS * layers + bytes % LAYERS * layers / LAYERS;
}

static void ask_layer(struct ask *a, const struct kvof_result *r)
{
	must(!a->ends && r->index == a->layers && r->value_bytes <= a->count);
	a->layers++;
	atomic_fetch_add(&S.shared->layers, 1);
	for (uint32_t i = 0; i < r->value_bytes; i++) {
		uint64_t bytes = block_bytes(a->sequence, i);

		/* the event lay in the ring: its block may have been lost since, and its buffer be
		 * another tier's; then it must not be usable */
		if (!a->claimed[i] && !ask_good(a, i, layer_end(bytes, r->index),
						layer_end(bytes, r->index + 1)))
			a->doubted[i] = true;
	}
}

/* What the engine does now, if it has nothing to compute. */
static void ask_go(struct ask *a)
{
	struct kvof_restore_step step;

	if (!a->engine || a->done || a->waits || a->computed_ns != 0)
		return;
	must(kvof_restore_next(W.cache, a->request, 0, &step) == 0);
	a->waits = step.act == KVOF_STEP_WAIT;
	a->done = step.act == KVOF_STEP_DONE;
	if (step.act != KVOF_STEP_COMPUTE)
		return;
	for (uint32_t i = step.first; i < step.first + step.count; i++) {
		must(i < a->count && !a->claimed[i]);
		a->claimed[i] = true;
		memset(a->at[i], 0xc1, block_bytes(a->sequence, i));
	}
	a->first = step.first;
	a->steps = step.count;
	a->computed_ns = now_ns() + 1 + step.count * prng_below(&W.p, 20 * NS_PER_MS);
	atomic_fetch_add(&S.shared->computed, step.count);
}

static void ask_end(struct ask *a)
{
	struct kvof_restore_trace t = {.struct_bytes = sizeof(t)};

	for (uint32_t i = 0; i < a->count; i++) {
		uint32_t bytes = block_bytes(a->sequence, i);

		if (!a->claimed[i] && i < a->usable)
			ask_judge(a, i);
		for (uint32_t k = 0; a->claimed[i] && k < bytes; k++)
			if (a->at[i][k] != 0xc1) {
				fprintf(stderr, "block %u of %u: written under the engine\n", i,
					a->sequence);
				atomic_fetch_add(&S.shared->wrong, 1);
				break;
			}
	}
	must(kvof_restore_end(W.cache, a->request, &t) == 0);
	must(t.blocks == a->count && t.usable <= t.blocks);
	atomic_fetch_add(&S.shared->usable, t.usable);
	a->request = 0;
	W.asking--;
}

/* Ends it if it is over, the buffers are free and the engine has all it wanted. */
static void ask_check(struct ask *a)
{
	uint64_t took = a->computed_ns;

	if (took != 0 && now_ns() >= took) {
		a->computed_ns = 0;
		must(kvof_restore_computed(W.cache, a->request, a->first, a->steps,
					   1 + a->steps * 10 * NS_PER_MS) == 0);
	}
	ask_go(a);
	if (a->over && !a->busy && a->computed_ns == 0 && (!a->engine || a->done))
		ask_end(a);
}

static void ask_result(struct ask *a, const struct kvof_result *r)
{
	if ((r->flags & KVOF_RESULT_STEP) != 0) {
		a->waits = false;
	} else if ((r->flags & KVOF_RESULT_LAYER) != 0) {
		ask_layer(a, r);
	} else if ((r->flags & KVOF_RESULT_REQUEST) != 0) {
		a->busy = r->flags == KVOF_RESULT_REQUEST && r->busy;
		a->over = true;
		if (r->flags != KVOF_RESULT_REQUEST)
			return;
		a->usable = (uint32_t)r->value_bytes;
		if (r->wait_ns > a->deadline_ns + DEADLINE_NS / 5)
			atomic_fetch_add(&S.shared->late, 1);
	} else if ((r->flags & KVOF_RESULT_RELEASED) == 0 && r->reason == KVOF_OK) {
		must(r->value_bytes == block_bytes(a->sequence, r->index));
		if (!a->claimed[r->index])
			ask_judge(a, r->index);
	}
}

static void ask_begin(void)
{
	struct ask *a = W.ask;
	struct kvof_restore_opts opts = {
		.struct_bytes = sizeof(opts), .mode = (uint32_t)prng_below(&W.p, 2),
		.flags = KVOF_RESTORE_EACH, .suffix_tokens = 8,
		.deadline_ns = 10 * NS_PER_MS + prng_below(&W.p, DEADLINE_NS),
		.prefill_tokens_per_s = prng_below(&W.p, 2) == 0 ? 0 :
					(double)(100 + prng_below(&W.p, 100000)),
		.step_blocks = (uint32_t)prng_below(&W.p, 3),
	};
	struct kvof_block b[BLOCKS];
	struct iovec iov[BLOCKS];

	while (a->request != 0)
		a++;
	a->sequence = (uint32_t)prng_below(&W.p, 1 + prng_below(&W.p, SEQUENCES));
	a->count = 1 + (uint32_t)prng_below(&W.p, BLOCKS);
	a->layers = a->usable = 0;
	a->ends = opts.mode == KVOF_RESTORE_ENDS;
	a->engine = prng_below(&W.p, 4) != 0;
	a->waits = a->done = a->over = a->busy = false;
	a->deadline_ns = opts.deadline_ns;
	a->computed_ns = 0;
	memset(a->claimed, 0, sizeof(a->claimed));
	memset(a->doubted, 0, sizeof(a->doubted));
	for (uint32_t i = 0; i < a->count; i++) {
		iov[i] = (struct iovec){a->at[i], block_bytes(a->sequence, i)};
		b[i] = (struct kvof_block){id_of(a->sequence, i), &iov[i], 1, iov[i].iov_len};
	}
	must(kvof_restore_begin(W.cache, b, a->count, &opts, &a->request) == 0);
	W.asking++;
	atomic_fetch_add(&S.shared->asks, 1);
	ask_go(a);
	if (prng_below(&W.p, 20) == 0) {   /* the engine has changed its mind */
		must(kvof_restore_end(W.cache, a->request, NULL) == 0);
		a->request = 0;
		W.asking--;
	}
}

static void hint(void)
{
	uint32_t sequence = (uint32_t)prng_below(&W.p, SEQUENCES);
	struct kvof_id ids[BLOCKS];
	uint64_t number;
	int rc;

	for (uint32_t i = 0; i < BLOCKS; i++)
		ids[i] = id_of(sequence, i);
	rc = kvof_cache_prefetch(W.cache, ids, BLOCKS, prng_below(&W.p, DEADLINE_NS), &number);
	must(rc == 0 || rc == -EBUSY);
	if (rc == 0 && prng_below(&W.p, 10) == 0)
		must(kvof_cache_cancel(W.cache, number) == 0);
}

/* --- a worker: batches ------------------------------------------------------------------------ */

static struct ask *ask_find(uint64_t request)
{
	for (struct ask *a = W.ask; a < W.ask + ASKS; a++)
		if (a->request == request)
			return a;
	return NULL;
}

/* Of a request; one that was ended in the middle is told of what came until then. */
static void request_take(const struct kvof_result *r)
{
	struct ask *a = ask_find(r->batch);

	if (r->flags == 0)
		load_count(r);
	if (a != NULL)
		ask_result(a, r);
}

static void result_take(const struct kvof_result *r)
{
	struct flight *f = W.flight;

	while (f < W.flight + FLIGHT && f->batch != r->batch)
		f++;
	if (f == W.flight + FLIGHT) {
		request_take(r);
		return;
	}
	if ((r->flags & KVOF_RESULT_RELEASED) != 0) {
		must(f->busy > 0);
		f->busy--;
	} else {
		if (r->wait_ns > DEADLINE_NS + DEADLINE_NS / 5)
			atomic_fetch_add(&S.shared->late, 1);
		must(f->left > 0);
		f->left--;
		f->busy += r->busy;
		if (f->kind == KVOF_LOAD) {
			load_count(r);
			if (r->reason == KVOF_OK)
				hit_judge(f, r);
		}
	}
	if (f->left == 0 && f->busy == 0) {
		f->batch = 0;
		W.flying--;
	}
}

static void drain(int wait_ms)
{
	struct kvof_result r[64];
	struct pollfd p = {.fd = kvof_cache_fd(W.cache), .events = POLLIN};
	int n;

	(void)poll(&p, 1, wait_ms);
	while ((n = kvof_cache_drain(W.cache, r, 64)) > 0)
		for (int i = 0; i < n; i++)
			result_take(&r[i]);
	for (struct ask *a = W.ask; a < W.ask + ASKS; a++)
		if (a->request != 0)
			ask_check(a);
}

static void submit(enum kvof_op kind)
{
	struct flight *f = W.flight;
	uint32_t sequence = (uint32_t)prng_below(&W.p, 1 + prng_below(&W.p, SEQUENCES));
	struct kvof_block b[BLOCKS];
	struct iovec iov[BLOCKS];
	bool moves = kind == KVOF_LOAD || kind == KVOF_SAVE;

	while (f->batch != 0)
		f++;
	f->kind = kind;
	f->sequence = sequence;
	f->first = kind == KVOF_LOAD ? 0 : (uint32_t)prng_below(&W.p, BLOCKS);
	f->count = f->left = 1 + (uint32_t)prng_below(&W.p, BLOCKS - f->first);
	f->busy = 0;
	for (uint32_t i = 0; i < f->count; i++) {
		uint32_t n = f->first + i, bytes = block_bytes(sequence, n);

		if (kind == KVOF_SAVE) {
			block_make(sequence, n, f->at[i]);
			atomic_store(&S.shared->saved[sequence][n], 1);
		}
		iov[i] = (struct iovec){f->at[i], bytes};
		b[i] = (struct kvof_block){id_of(sequence, n), moves ? &iov[i] : NULL, moves,
					   moves ? bytes : 0};
	}
	must(kvof_cache_submit(W.cache, kind, b, f->count, 0, &f->batch) == 0);
	W.flying++;
	atomic_fetch_add(&S.shared->batches, 1);
}

static void step(void)
{
	static const enum kvof_op kinds[16] = {
		KVOF_SAVE, KVOF_SAVE, KVOF_SAVE, KVOF_SAVE, KVOF_EXISTS_OP, KVOF_DELETE, KVOF_LOAD,
		KVOF_LOAD, KVOF_LOAD, KVOF_LOAD, KVOF_LOAD, KVOF_LOAD, KVOF_LOAD, KVOF_LOAD,
		KVOF_LOAD, KVOF_LOAD};

	if (W.flying < FLIGHT)
		submit(kinds[prng_below(&W.p, 16)]);
	if (W.asking < ASKS && prng_below(&W.p, 3) == 0)
		ask_begin();
	if (prng_below(&W.p, 50) == 0)
		hint();
	if (prng_below(&W.p, 100) == 0)
		(void)kvof_cache_cancel(W.cache, 0);
	drain(W.flying == FLIGHT ? 100 : (int)prng_below(&W.p, 10));
}

static bool counters_close(const struct kvof_cache_stat *stat)
{
	for (int i = 0; i < KVOF_TIER_COUNT; i++)
		if (stat->hits[i] != W.hits[i])
			return false;
	for (int i = 0; i < KVOF_REASON_COUNT; i++)
		if (stat->reason[i] != W.reasons[i])
			return false;
	return true;
}

/* Comes to rest and says how it stands. */
static struct rest worker_rest(void)
{
	uint64_t until = now_ns() + 20 * NS_PER_S;
	struct kvof_cache_stat stat;
	struct rest rest;

	while (W.flying + W.asking > 0)
		drain(10);
	drain(0);                          /* of requests that were ended in the middle */
	rest.res = kvof_cache_flush(W.cache, 20 * NS_PER_S);
	do {                               /* what is released late is still pinned */
		must(kvof_cache_stat(W.cache, &stat) == 0);
		pass(50 * NS_PER_MS);
	} while ((stat.behind_blocks > 0 || stat.dram_pinned_bytes > 0 || stat.staging_bytes > 0) &&
		 now_ns() < until);
	rest.staging_bytes = stat.staging_bytes;
	rest.counted = counters_close(&stat);
	rest.behind_blocks = stat.behind_blocks;
	rest.pinned_bytes = stat.dram_pinned_bytes;
	return rest;
}

/* Until the parent says 'e'; at 'r' it rests, and goes on at the next word. */
static void worker_run(unsigned index, int ask, int answer)
{
	struct pollfd p = {.fd = ask, .events = POLLIN};
	char word;

	W.p = prng_of(now_ns() ^ (uint64_t)index << 56);
	worker_open(index);
	for (;;) {
		if (poll(&p, 1, 0) == 0) {
			step();
			continue;
		}
		if (read(ask, &word, 1) != 1 || word == 'e')
			break;
		if (word == 'r') {
			struct rest rest = worker_rest();

			must(write(answer, &rest, sizeof(rest)) == sizeof(rest));
			must(read(ask, &word, 1) == 1);
		}
	}
	(void)worker_rest();
	kvof_cache_close(&W.cache);
	_exit(0);
}

static void worker_start(unsigned index)
{
	int ask[2], answer[2];
	struct watched *w = &S.worker[index];

	must(pipe2(ask, O_CLOEXEC) == 0 && pipe2(answer, O_CLOEXEC) == 0);
	fflush(stdout);
	*w = (struct watched){.pid = fork()};
	must(w->pid >= 0);
	if (w->pid == 0) {
		close(ask[1]);
		close(answer[0]);
		worker_run(index, ask[0], answer[1]);
	}
	close(ask[0]);
	close(answer[1]);
	S.ask[index] = ask[1];
	S.answer[index] = answer[0];
}

static void worker_kill(unsigned index)
{
	int status;

	kill(S.worker[index].pid, SIGKILL);
	must(waitpid(S.worker[index].pid, &status, 0) == S.worker[index].pid);
	close(S.ask[index]);
	close(S.answer[index]);
	worker_start(index);
	S.kills++;
}

/* --- arrays ----------------------------------------------------------------------------------- */

static int free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	must(fd >= 0 && bind(fd, (struct sockaddr *)&a, bytes) == 0);
	must(getsockname(fd, (struct sockaddr *)&a, &bytes) == 0);
	close(fd);
	return ntohs(a.sin_port);
}

static void array_start(unsigned index)
{
	char listen[64], drive[2][128], line[256];
	const char *argv[] = {S.kvof, "serve", "--listen", listen, "--drive", drive[0], "--drive",
			      drive[1], NULL};
	int out[2];
	FILE *f;

	snprintf(listen, sizeof(listen), "tcp://127.0.0.1:%d", S.port[index]);
	for (int i = 0; i < 2; i++)
		snprintf(drive[i], sizeof(drive[i]), "%s/a%u-%d,size=%dMiB", S.dir, index, i,
			 DRIVE_MIB);
	must(pipe2(out, O_CLOEXEC) == 0);
	fflush(stdout);
	S.array[index] = (struct watched){.pid = fork()};
	must(S.array[index].pid >= 0);
	if (S.array[index].pid == 0) {
		dup2(out[1], 1);
		execv(S.kvof, (char **)(uintptr_t)argv);
		_exit(127);
	}
	close(out[1]);
	f = fdopen(out[0], "r");
	must(f != NULL);
	if (fgets(line, sizeof(line), f) == NULL || strncmp(line, "ready ", 6) != 0) {
		printf("Bail out! no ready line of array %u\n", index);
		exit(1);
	}
	fclose(f);
}

static void array_kill(unsigned index)
{
	int status;

	kill(S.array[index].pid, SIGKILL);
	must(waitpid(S.array[index].pid, &status, 0) == S.array[index].pid);
	pass(prng_below(&S.p, 3 * NS_PER_S));
	array_start(index);
	S.kills++;
}

/* --- rest ------------------------------------------------------------------------------------- */

static void fail(const char *what, unsigned index, const char *why)
{
	printf("# %s %u: %s\n", what, index, why);
	S.failed = true;
}

static uint64_t rss_bytes(pid_t pid)
{
	char path[64];
	unsigned long size = 0, resident = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
	f = fopen(path, "re");
	if (f == NULL || fscanf(f, "%lu %lu", &size, &resident) != 2)
		resident = 0;
	if (f != NULL)
		fclose(f);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static unsigned fd_count(pid_t pid)
{
	char path[64];
	unsigned n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	while (d != NULL && readdir(d) != NULL)
		n++;
	if (d != NULL)
		closedir(d);
	return n;
}

static void watch(struct watched *w, const char *what, unsigned index)
{
	uint64_t bytes = rss_bytes(w->pid);
	unsigned fds = fd_count(w->pid);
	char why[128];

	if (++w->rests <= 2) {
		w->bytes = bytes;
		w->fds = fds;
	}
	printf("# %s %u: %llu MiB, %u descriptors\n", what, index,
	       (unsigned long long)(bytes / MiB), fds);
	snprintf(why, sizeof(why), "%llu MiB were %llu, %u descriptors were %u",
		 (unsigned long long)(bytes / MiB), (unsigned long long)(w->bytes / MiB), fds,
		 w->fds);
	if (bytes > w->bytes + MORE_BYTES || fds > w->fds + MORE_FDS || bytes == 0)
		fail(what, index, why);
}

static void files_watch(void)
{
	struct dirent *e;
	DIR *d = opendir(S.dir);

	must(d != NULL);
	while ((e = readdir(d)) != NULL) {
		uint64_t most = (e->d_name[0] == 'f' ? FLASH_MIB : DRIVE_MIB) * MiB;
		struct stat st;

		if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0) != 0)
			continue;
		if ((uint64_t)st.st_size > most || (uint64_t)st.st_blocks * 512 > most + MiB)
			fail(e->d_name, 0, "larger than it may be");
	}
	closedir(d);
}

static void rest(void)
{
	for (unsigned i = 0; i < WORKERS; i++)
		must(write(S.ask[i], "r", 1) == 1);
	for (unsigned i = 0; i < WORKERS; i++) {
		struct rest r;

		if (read(S.answer[i], &r, sizeof(r)) != sizeof(r)) {
			fail("worker", i, "is dead");
			continue;
		}
		if (r.res != 0 || r.behind_blocks > 0 || r.pinned_bytes > 0 || r.staging_bytes > 0)
			fail("worker", i, "something is left at rest");
		if (!r.counted)
			fail("worker", i, "counters are not what was told");
		watch(&S.worker[i], "worker", i);
	}
	for (unsigned i = 0; i < ARRAYS; i++)
		watch(&S.array[i], "array", i);
	files_watch();
	for (unsigned i = 0; i < WORKERS; i++)
		must(write(S.ask[i], "g", 1) == 1);
}

static void fault(void)
{
	unsigned a = (unsigned)prng_below(&S.p, ARRAYS);

	switch (prng_below(&S.p, 6)) {
	case 0:
	case 1:
	case 2:
		kill(S.array[a].pid, SIGSTOP);
		pass(prng_below(&S.p, 2 * NS_PER_S));
		kill(S.array[a].pid, SIGCONT);
		S.stops++;
		break;
	case 3:
	case 4:
		array_kill(1);             /* the other one is watched from end to end */
		break;
	default:
		worker_kill(1 + (unsigned)prng_below(&S.p, WORKERS - 1));
		break;
	}
}

/* --- all of it -------------------------------------------------------------------------------- */

static void begin(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(S.dir, sizeof(S.dir), "%.40s/kvof-soak-XXXXXX", tmp != NULL ? tmp : "/tmp");
	must(mkdtemp(S.dir) != NULL);
	S.shared = mmap(NULL, sizeof(*S.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	must(S.shared != MAP_FAILED);
	for (unsigned i = 0; i < ARRAYS; i++) {
		S.port[i] = free_port();
		array_start(i);
	}
	for (unsigned i = 0; i < WORKERS; i++)
		worker_start(i);
}

static void end(void)
{
	int status;
	DIR *d;
	struct dirent *e;

	for (unsigned i = 0; i < WORKERS; i++) {
		must(write(S.ask[i], "e", 1) == 1);
		must(waitpid(S.worker[i].pid, &status, 0) == S.worker[i].pid);
		if (status != 0)
			fail("worker", i, "did not end well");
	}
	for (unsigned i = 0; i < ARRAYS; i++) {
		kill(S.array[i].pid, SIGTERM);
		must(waitpid(S.array[i].pid, &status, 0) == S.array[i].pid);
		if (status != 0)
			fail("array", i, "did not end well");
	}
	d = opendir(S.dir);
	while (d != NULL && (e = readdir(d)) != NULL)
		if (e->d_name[0] != '.')
			(void)unlinkat(dirfd(d), e->d_name, 0);
	if (d != NULL)
		closedir(d);
	rmdir(S.dir);
}

static void report(void)
{
	struct shared *s = S.shared;

	printf("# %llu batches; hits dram %llu, flash %llu, remote %llu; absent %llu, late %llu, "
	       "unreachable %llu; %llu kills, %llu stops; %llu results more than a fifth past "
	       "their deadline\n", (unsigned long long)s->batches,
	       (unsigned long long)s->hits[KVOF_TIER_DRAM],
	       (unsigned long long)s->hits[KVOF_TIER_FLASH],
	       (unsigned long long)s->hits[KVOF_TIER_REMOTE],
	       (unsigned long long)s->reasons[KVOF_ABSENT],
	       (unsigned long long)s->reasons[KVOF_LATE],
	       (unsigned long long)s->reasons[KVOF_UNREACHABLE], (unsigned long long)S.kills,
	       (unsigned long long)S.stops, (unsigned long long)s->late);
	printf("# %llu restores, %llu layers, %llu blocks usable, %llu computed\n",
	       (unsigned long long)s->asks, (unsigned long long)s->layers,
	       (unsigned long long)s->usable, (unsigned long long)s->computed);
}

int main(int argc, char **argv)
{
	uint64_t seconds = argc > 2 ? strtoull(argv[2], NULL, 10) : 600, until;
	const char *seed = getenv("KVOF_SEED");

	if (argc < 2) {
		fprintf(stderr, "usage: %s KVOF [SECONDS]\n", argv[0]);
		return 2;
	}
	S.kvof = argv[1];
	S.p = prng_of(seed != NULL ? strtoull(seed, NULL, 10) : 1);
	signal(SIGPIPE, SIG_IGN);
	printf("1..1\n");
	begin();
	until = now_ns() + seconds * NS_PER_S;
	while (now_ns() < until && !S.failed) {
		uint64_t round = now_ns() + ROUND_S * NS_PER_S;

		while (now_ns() < round && now_ns() < until) {
			pass(prng_below(&S.p, 4 * NS_PER_S));
			fault();
		}
		pass(8 * NS_PER_S);    /* the arrays are back, the clients have found them */
		rest();
	}
	end();
	report();
	if (S.shared->wrong > 0 || S.shared->hits[KVOF_TIER_DRAM] == 0 ||
	    S.shared->hits[KVOF_TIER_FLASH] == 0 || S.shared->hits[KVOF_TIER_REMOTE] == 0 ||
	    S.shared->layers == 0 || S.shared->usable == 0 || S.shared->computed == 0)
		S.failed = true;
	printf("%sok 1 - minutes of load with faults leave no wrong byte and nothing behind\n",
	       S.failed ? "not " : "");
	return S.failed;
}
