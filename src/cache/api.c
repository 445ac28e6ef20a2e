/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door for engine threads: everything of include/kvof/cache.h that is not pure. A call checks
 * its arguments, makes a message, posts it to the cache's own thread, and returns or waits for the
 * answer; it does no I/O.
 *
 *   engine threads                       the cache's thread
 *   open   pthread_create, wait          loop, core, array; says how it went
 *   submit batch_make, post       ->     core_submit ... result -> ring, eventfd | waiter
 *   drain  ring -> caller                over -> batch_free
 *   close  refuse, post, join     ->     core_close, loop_stop
 *
 * Invariants: `blocks` counts blocks that may still put an event into the ring, or have one there;
 * each can put two, so the ring of 2 * KVOF_BLOCKS_MAX never overflows. `posting` counts calls that
 * may post a message; none is posted after the one of close. `users` counts calls inside the door;
 * the memory goes after the last has left.
 *
 * The ring has one producer (the loop) and consumers behind a lock that the loop never takes.
 * signaled: the eventfd has been written for what is in the ring. drain reads the eventfd, clears
 * signaled, and only then looks; so what comes after the look writes again.
 *
 * In a forked child the thread does not exist: a counter bumped by pthread_atfork() tells.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "cache/core.h"

#define API_MAGIC 0x6b766f66u
#define API_RING (2 * KVOF_BLOCKS_MAX)
#define API_QUESTIONS_MAX 1024             /* ids that match asks at once */
#define API_LOOP_OPS (4 * KVOF_BLOCKS_MAX)

_Static_assert((API_RING & (API_RING - 1)) == 0, "the ring's index is a mask");

struct kvof_cache {
	uint32_t magic;
	uint32_t generation;               /* of the process that opened it */
	struct identity *identity;
	uint32_t cut_bytes;
	pthread_t thread;
	struct loop *loop;
	struct core *core;
	_Atomic uint32_t closing, posting, users, blocks, batches;
	_Atomic uint64_t batch_next;
	/* open */
	struct kvof_cache_opts opts;       /* strings are the caller's, until opened */
	sem_t opened;
	int open_res;
	char open_why[256];
	struct msg close_msg;
	sem_t close_posted;                /* the closer does not touch the loop any more */
	/* results */
	int fd;
	_Atomic uint32_t signaled;
	_Atomic uint64_t produced, consumed;
	pthread_mutex_t drain_lock;
	struct kvof_result ring[API_RING];
};

/* A call that waits for its batch; on the caller's stack. */
struct waiter {
	sem_t done;
	struct kvof_result *results;
	uint32_t left;
};

static _Atomic uint32_t api_generation;
static pthread_once_t api_once = PTHREAD_ONCE_INIT;

static void api_forked(void)
{
	atomic_fetch_add(&api_generation, 1);
}

static void api_begin(void)
{
	must(pthread_atfork(NULL, NULL, api_forked) == 0);
}

static bool api_is_here(const struct kvof_cache *c)
{
	return c->generation == atomic_load(&api_generation);
}

static void sem_wait_whole(sem_t *sem)
{
	while (sem_wait(sem) != 0)
		must(errno == EINTR);
}

/* --- door ------------------------------------------------------------------------------------- */

/* Return: 0, and leave() must follow; -EINVAL; -ESHUTDOWN. */
static int enter(struct kvof_cache *c)
{
	if (c == NULL || c->magic != API_MAGIC)
		return -EINVAL;
	if (!api_is_here(c))
		return -ESHUTDOWN;
	atomic_fetch_add(&c->users, 1);
	atomic_fetch_add(&c->posting, 1);
	if (atomic_load(&c->closing) == 0)
		return 0;
	atomic_fetch_sub(&c->posting, 1);
	atomic_fetch_sub(&c->users, 1);
	return -ESHUTDOWN;
}

/* No message is posted by this call any more. */
static void posted(struct kvof_cache *c)
{
	must(atomic_fetch_sub(&c->posting, 1) > 0);
}

static void leave(struct kvof_cache *c)
{
	must(atomic_fetch_sub(&c->users, 1) > 0);
}

static int count_in(_Atomic uint32_t *counter, uint32_t n, uint32_t most)
{
	if (atomic_fetch_add(counter, n) + n <= most)
		return 0;
	atomic_fetch_sub(counter, n);
	return -EBUSY;
}

/* --- events of the core, on its thread -------------------------------------------------------- */

static void ring_put(struct kvof_cache *c, const struct kvof_result *r)
{
	uint64_t at = atomic_load_explicit(&c->produced, memory_order_relaxed), one = 1;

	must(at - atomic_load(&c->consumed) < API_RING);
	c->ring[at & (API_RING - 1)] = *r;
	atomic_store(&c->produced, at + 1);
	if (atomic_exchange(&c->signaled, 1) == 0)
		must(write(c->fd, &one, sizeof(one)) == sizeof(one));
}

static void api_result(void *arg, struct cache_batch *batch, const struct kvof_result *r)
{
	struct kvof_cache *c = arg;
	struct waiter *w = batch->waiter;

	if (w == NULL || (r->flags & KVOF_RESULT_RELEASED) != 0) {
		ring_put(c, r);
		return;
	}
	w->results[r->index] = *r;
	if (r->busy == 0)
		atomic_fetch_sub(&c->blocks, 1);
	if (--w->left == 0)
		sem_post(&w->done);        /* *w is gone from here on */
}

static void api_over(void *arg, struct cache_batch *batch)
{
	struct kvof_cache *c = arg;

	batch_free(&batch);
	atomic_fetch_sub(&c->batches, 1);
}

static void api_opened(void *arg, int res, const char *why)
{
	struct kvof_cache *c = arg;

	c->open_res = res;
	snprintf(c->open_why, sizeof(c->open_why), "%s", why);
	sem_post(&c->opened);
}

static const struct core_events api_events = {
	.opened = api_opened,
	.result = api_result,
	.over = api_over,
};

/* --- the cache's thread ----------------------------------------------------------------------- */

static void api_closed(void *arg)
{
	struct kvof_cache *c = arg;

	loop_stop(c->loop);
}

static void close_run(struct loop *here, struct msg *m)
{
	struct kvof_cache *c = container_of(m, struct kvof_cache, close_msg);

	core_close(&c->core, api_closed, c);
}

static int thread_begin(struct kvof_cache *c, char why[256])
{
	struct loop_opts loop = {.name = "kvof-cache", .ops_max = API_LOOP_OPS};
	struct core_opts core = {.cache = &c->opts, .identity = c->identity};
	int rc = loop_open(&loop, &c->loop);

	if (rc != 0) {
		snprintf(why, 256, "the loop did not start: %s", strerror(-rc));
		return rc;
	}
	rc = core_open(c->loop, &core, &api_events, c, why, &c->core);
	if (rc != 0)
		loop_close(&c->loop);
	return rc;
}

static void *thread_main(void *arg)
{
	struct kvof_cache *c = arg;
	char why[256] = "";
	int rc = thread_begin(c, why);

	if (rc != 0) {
		api_opened(c, rc, why);
		return NULL;
	}
	loop_run(c->loop);
	sem_wait_whole(&c->close_posted);
	loop_close(&c->loop);
	return NULL;
}

/* Signals are the engine's business: the thread takes none. */
static int thread_start(struct kvof_cache *c)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&c->thread, NULL, thread_main, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc == 0 ? 0 : -ENOMEM;
}

/* --- open and close --------------------------------------------------------------------------- */

static void cache_free(struct kvof_cache *c)
{
	if (c->fd >= 0)
		close(c->fd);
	identity_free(&c->identity);
	pthread_mutex_destroy(&c->drain_lock);
	sem_destroy(&c->opened);
	sem_destroy(&c->close_posted);
	c->magic = 0;
	free(c);
}

static int cache_make(const struct kvof_cache_opts *opts, char why[256], struct kvof_cache **out)
{
	struct kvof_cache *c = calloc(1, sizeof(*c));
	int rc;

	if (c == NULL)
		return -ENOMEM;
	OBJ_INIT(c, API_MAGIC);
	c->opts = *opts;
	c->generation = atomic_load(&api_generation);
	c->cut_bytes = core_cut_bytes(opts);
	atomic_store(&c->batch_next, 1);
	pthread_mutex_init(&c->drain_lock, NULL);
	sem_init(&c->opened, 0, 0);
	sem_init(&c->close_posted, 0, 0);
	c->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = c->fd < 0 ? -ENOMEM : identity_make(opts, why, &c->identity);
	if (rc != 0) {
		cache_free(c);
		return rc;
	}
	*out = c;
	return 0;
}

/* The thread runs a core that did not open, or it has ended by itself. */
static void thread_end(struct kvof_cache *c)
{
	if (c->core != NULL) {
		c->close_msg.run = close_run;
		loop_post(c->loop, &c->close_msg);
		sem_post(&c->close_posted);
	}
	pthread_join(c->thread, NULL);
}

int kvof_cache_open(const struct kvof_cache_opts *opts, char why[256], struct kvof_cache **out)
{
	char room[256];
	struct kvof_cache *c;
	int rc;

	if (why == NULL)
		why = room;
	why[0] = '\0';
	if (opts == NULL || out == NULL)
		return -EINVAL;
	*out = NULL;
	rc = core_opts_check(opts, why);
	if (rc != 0)
		return rc;
	pthread_once(&api_once, api_begin);
	rc = cache_make(opts, why, &c);
	if (rc != 0)
		return rc;
	rc = thread_start(c);
	if (rc != 0) {
		cache_free(c);
		return rc;
	}
	sem_wait_whole(&c->opened);
	memcpy(why, c->open_why, 256);
	rc = c->open_res;
	if (rc != 0) {
		thread_end(c);
		cache_free(c);
		return rc;
	}
	*out = c;
	return 0;
}

void kvof_cache_close(struct kvof_cache **cp)
{
	struct kvof_cache *c;

	if (cp == NULL || *cp == NULL || (*cp)->magic != API_MAGIC)
		return;
	c = *cp;
	*cp = NULL;
	if (!api_is_here(c))
		return;                    /* the parent's: its thread and array live on there */
	if (atomic_exchange(&c->closing, 1) != 0)
		return;
	while (atomic_load(&c->posting) > 0)
		sched_yield();             /* microseconds: a post, no wait, no I/O */
	thread_end(c);
	while (atomic_load(&c->users) > 0)
		sched_yield();             /* they have their answers and are leaving */
	cache_free(c);
}

/* --- batches ---------------------------------------------------------------------------------- */

static void submit_run(struct loop *here, struct msg *m)
{
	struct cache_batch *batch = container_of(m, struct cache_batch, msg);
	struct kvof_cache *c = batch->owner;

	core_submit(c->core, batch);
}

/* What a batch is besides its blocks. */
struct order {
	enum kvof_op op;
	uint64_t deadline_ns;
	bool question;
	struct waiter *waiter;
};

/* Inside the door. Return: 0 and *id; -EINVAL, -EBUSY. */
static int batch_post(struct kvof_cache *c, const struct order *order,
		      const struct kvof_block *blocks, uint32_t n, uint64_t *id)
{
	struct cache_batch *batch;
	int rc;

	if (n == 0 || n > KVOF_BLOCKS_MAX)
		return -EINVAL;
	rc = count_in(&c->blocks, n, KVOF_BLOCKS_MAX);
	if (rc != 0)
		return rc;
	rc = count_in(&c->batches, 1, KVOF_BATCHES_MAX);
	if (rc == 0) {
		rc = batch_make(order->op, blocks, n, c->cut_bytes, &batch);
		if (rc != 0)
			atomic_fetch_sub(&c->batches, 1);
	}
	if (rc != 0) {
		atomic_fetch_sub(&c->blocks, n);
		return rc;
	}
	batch->deadline_ns = order->deadline_ns;
	batch->question = order->question;
	batch->waiter = order->waiter;
	batch->owner = c;
	batch->id = atomic_fetch_add(&c->batch_next, 1);
	if (id != NULL)
		*id = batch->id;
	batch->msg.run = submit_run;
	loop_post(c->loop, &batch->msg);
	return 0;
}

int kvof_cache_submit(struct kvof_cache *c, enum kvof_op op, const struct kvof_block *blocks,
		      uint32_t n_blocks, uint64_t deadline_ns, uint64_t *batch)
{
	struct order order = {.op = op, .deadline_ns = deadline_ns};
	int rc;

	if (batch == NULL)
		return -EINVAL;
	rc = enter(c);
	if (rc != 0)
		return rc;
	rc = batch_post(c, &order, blocks, n_blocks, batch);
	posted(c);
	leave(c);
	return rc;
}

/* Inside the door, which it leaves. */
static int batch_wait(struct kvof_cache *c, struct order *order, const struct kvof_block *blocks,
		      uint32_t n, struct kvof_result *results)
{
	struct waiter w = {.results = results, .left = n};
	int rc;

	sem_init(&w.done, 0, 0);
	order->waiter = &w;
	rc = batch_post(c, order, blocks, n, NULL);
	posted(c);
	if (rc == 0)
		sem_wait_whole(&w.done);
	sem_destroy(&w.done);
	leave(c);
	return rc;
}

int kvof_cache_wait(struct kvof_cache *c, enum kvof_op op, const struct kvof_block *blocks,
		    uint32_t n_blocks, uint64_t deadline_ns, struct kvof_result *results)
{
	struct order order = {.op = op, .deadline_ns = deadline_ns};
	int rc;

	if (results == NULL)
		return -EINVAL;
	rc = enter(c);
	return rc != 0 ? rc : batch_wait(c, &order, blocks, n_blocks, results);
}

/* Small messages that carry their own memory. */
struct note {
	struct msg msg;
	struct kvof_cache *cache;
	uint64_t batch;
	uint32_t id_count;
	struct kvof_id id[];
};

static int note_post(struct kvof_cache *c, void (*run)(struct loop *here, struct msg *m),
		     uint64_t batch, const struct kvof_id *ids, uint32_t n)
{
	struct note *note = malloc(sizeof(*note) + n * sizeof(*ids));

	if (note == NULL)
		return -EBUSY;
	*note = (struct note){.msg = {.run = run}, .cache = c, .batch = batch, .id_count = n};
	if (n > 0)
		memcpy(note->id, ids, n * sizeof(*ids));
	loop_post(c->loop, &note->msg);
	return 0;
}

static void cancel_run(struct loop *here, struct msg *m)
{
	struct note *note = container_of(m, struct note, msg);

	core_cancel(note->cache->core, note->batch);
	free(note);
}

int kvof_cache_cancel(struct kvof_cache *c, uint64_t batch)
{
	int rc = enter(c);

	if (rc != 0)
		return rc;
	rc = note_post(c, cancel_run, batch, NULL, 0);
	posted(c);
	leave(c);
	return rc;
}

static void unlease_run(struct loop *here, struct msg *m)
{
	struct note *note = container_of(m, struct note, msg);

	core_unlease(note->cache->core, note->id, note->id_count);
	free(note);
}

int kvof_cache_unlease(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n_ids)
{
	int rc;

	if (ids == NULL || n_ids > KVOF_BLOCKS_MAX)
		return -EINVAL;
	rc = enter(c);
	if (rc != 0)
		return rc;
	rc = note_post(c, unlease_run, 0, ids, n_ids);
	posted(c);
	leave(c);
	return rc;
}

static uint64_t api_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Memory for the questions of one batch. */
struct questions {
	struct kvof_block *block;
	struct kvof_result *result;
	uint32_t count;
};

static int questions_make(struct questions *q, uint32_t n_ids)
{
	q->count = (uint32_t)bytes_min(n_ids, API_QUESTIONS_MAX);
	q->block = calloc(q->count, sizeof(*q->block) + sizeof(*q->result));
	if (q->block == NULL)
		return -EBUSY;
	q->result = (struct kvof_result *)(void *)(q->block + q->count);
	return 0;
}

/* How many leading ones of n <= q->count are there. */
static int match_some(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n,
		      uint64_t deadline_ns, const struct questions *q, uint32_t *n_match)
{
	struct order order = {.op = KVOF_EXISTS_OP, .deadline_ns = deadline_ns, .question = true};
	int rc = enter(c);

	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < n; i++)
		q->block[i].id = ids[i];
	rc = batch_wait(c, &order, q->block, n, q->result);
	*n_match = rc == 0 ? prefix_leading(q->result, n) : 0;
	return rc;
}

static int match_all(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n_ids,
		     uint64_t end_ns, uint32_t *n_match)
{
	uint32_t found = 0, step, got = 0;
	struct questions q;
	int rc = questions_make(&q, n_ids);

	if (rc != 0)
		return rc;
	do {
		uint64_t now = api_clock_ns();

		step = (uint32_t)bytes_min(n_ids - found, q.count);
		if (step == 0 || now >= end_ns)
			break;
		rc = match_some(c, ids + found, step, end_ns - now, &q, &got);
		found += got;
	} while (rc == 0 && got == step);
	free(q.block);
	*n_match = found;
	return rc;
}

int kvof_cache_match(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n_ids,
		     uint64_t deadline_ns, uint32_t *n_match)
{
	if (n_match == NULL || (ids == NULL && n_ids > 0))
		return -EINVAL;
	*n_match = 0;
	if (c == NULL || c->magic != API_MAGIC)
		return -EINVAL;
	if (!api_is_here(c))
		return -ESHUTDOWN;
	if (n_ids == 0)
		return 0;
	if (deadline_ns == 0)
		deadline_ns = c->opts.deadline_ns != 0 ? c->opts.deadline_ns : 2 * NS_PER_S;
	return match_all(c, ids, n_ids, api_clock_ns() + deadline_ns, n_match);
}

/* --- results ---------------------------------------------------------------------------------- */

int kvof_cache_fd(const struct kvof_cache *c)
{
	if (c == NULL || c->magic != API_MAGIC)
		return -EINVAL;
	return api_is_here(c) ? c->fd : -ESHUTDOWN;
}

static uint32_t ring_take(struct kvof_cache *c, struct kvof_result *out, uint32_t n)
{
	uint64_t at = atomic_load(&c->consumed), end = atomic_load(&c->produced);
	uint32_t got = 0, over = 0;

	while (at < end && got < n) {
		out[got] = c->ring[at++ & (API_RING - 1)];
		over += out[got].busy == 0;
		got++;
	}
	atomic_store(&c->consumed, at);
	atomic_fetch_sub(&c->blocks, over);
	return got;
}

int kvof_cache_drain(struct kvof_cache *c, struct kvof_result *out, uint32_t n)
{
	uint64_t count, one = 1;
	uint32_t got;
	int rc;

	if (out == NULL && n > 0)
		return -EINVAL;
	rc = enter(c);
	if (rc != 0)
		return rc;
	posted(c);
	pthread_mutex_lock(&c->drain_lock);
	if (read(c->fd, &count, sizeof(count)) < 0)
		must(errno == EAGAIN);
	atomic_store(&c->signaled, 0);
	got = ring_take(c, out, n);
	if (atomic_load(&c->consumed) != atomic_load(&c->produced) &&
	    atomic_exchange(&c->signaled, 1) == 0)
		must(write(c->fd, &one, sizeof(one)) == sizeof(one));
	pthread_mutex_unlock(&c->drain_lock);
	leave(c);
	return (int)got;
}

/* --- identities and counters ------------------------------------------------------------------ */

int kvof_cache_ids(const struct kvof_cache *c, const int32_t *tokens, size_t n_tokens,
		   const struct kvof_id *parent, struct kvof_id *ids)
{
	size_t step, n;

	if (c == NULL || c->magic != API_MAGIC)
		return -EINVAL;
	if (!api_is_here(c))
		return -ESHUTDOWN;
	step = c->identity->block_tokens;
	n = n_tokens / step;
	if (n > 0 && (tokens == NULL || ids == NULL))
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		identity_block(c->identity, parent, tokens + i * step, step, &ids[i]);
		parent = &ids[i];
	}
	return 0;
}

int kvof_cache_id_of(const struct kvof_cache *c, const void *hash, size_t bytes,
		     struct kvof_id *id)
{
	if (c == NULL || c->magic != API_MAGIC || id == NULL || (hash == NULL && bytes > 0))
		return -EINVAL;
	if (!api_is_here(c))
		return -ESHUTDOWN;
	identity_engine(c->identity, hash, bytes, id);
	return 0;
}

struct stat_note {
	struct msg msg;
	struct kvof_cache *cache;
	struct kvof_cache_stat *out;
	sem_t done;
};

static void stat_run(struct loop *here, struct msg *m)
{
	struct stat_note *note = container_of(m, struct stat_note, msg);

	core_stat(note->cache->core, note->out);
	sem_post(&note->done);
}

int kvof_cache_stat(struct kvof_cache *c, struct kvof_cache_stat *out)
{
	struct stat_note note = {.msg = {.run = stat_run}, .cache = c, .out = out};
	int rc;

	if (out == NULL)
		return -EINVAL;
	rc = enter(c);
	if (rc != 0)
		return rc;
	sem_init(&note.done, 0, 0);
	loop_post(c->loop, &note.msg);
	posted(c);
	sem_wait_whole(&note.done);
	sem_destroy(&note.done);
	leave(c);
	return 0;
}
