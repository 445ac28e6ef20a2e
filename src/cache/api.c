/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door for engine threads: open, close, batches and results of include/kvof/cache.h; ask.c and
 * restore_api.c hold the calls that need no more than door.h. A call checks its arguments, makes a
 * message, posts it to the cache's own thread, and returns or waits for the answer; it does no I/O.
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
#include <unistd.h>

#include <kvof/error.h>

#include "base/files.h"
#include "base/log.h"
#include "cache/door.h"

#define API_MAGIC 0x6b766f66u
#define API_RING (2 * KVOF_BLOCKS_MAX)
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
	void *restore;                     /* door_restore's */
	struct events *events;             /* NULL: none are kept */
	bool told;                         /* how open went; the cache's thread */
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

int door_look(const struct kvof_cache *c)
{
	if (c == NULL || c->magic != API_MAGIC)
		return -EINVAL;
	return api_is_here(c) ? 0 : -ESHUTDOWN;
}

int door_enter(struct kvof_cache *c)
{
	int rc = door_look(c);

	if (rc != 0)
		return rc;
	atomic_fetch_add(&c->users, 1);
	atomic_fetch_add(&c->posting, 1);
	if (atomic_load(&c->closing) == 0)
		return 0;
	atomic_fetch_sub(&c->posting, 1);
	atomic_fetch_sub(&c->users, 1);
	return -ESHUTDOWN;
}

void door_posted(struct kvof_cache *c)
{
	must(atomic_fetch_sub(&c->posting, 1) > 0);
}

void door_leave(struct kvof_cache *c)
{
	must(atomic_fetch_sub(&c->users, 1) > 0);
}

struct loop *door_loop(const struct kvof_cache *c)
{
	return c->loop;
}

struct core *door_core(const struct kvof_cache *c)
{
	return c->core;
}

void *door_restore_self(const struct kvof_cache *c)
{
	return c->restore;
}

const struct identity *door_identity(const struct kvof_cache *c)
{
	return c->identity;
}

const struct kvof_cache_opts *door_opts(const struct kvof_cache *c)
{
	return &c->opts;
}

uint32_t door_cut_bytes(const struct kvof_cache *c)
{
	return c->cut_bytes;
}

struct events *door_events(const struct kvof_cache *c)
{
	return c->events;
}

uint64_t door_number(struct kvof_cache *c)
{
	return atomic_fetch_add(&c->batch_next, 1);
}

static int count_in(_Atomic uint32_t *counter, uint32_t n, uint32_t most)
{
	if (atomic_fetch_add(counter, n) + n <= most)
		return 0;
	atomic_fetch_sub(counter, n);
	return -EBUSY;
}

int door_count(struct kvof_cache *c, uint32_t n)
{
	return n > KVOF_BLOCKS_MAX ? -EBUSY : count_in(&c->blocks, n, KVOF_BLOCKS_MAX);
}

void door_uncount(struct kvof_cache *c, uint32_t n)
{
	must(atomic_fetch_sub(&c->blocks, n) >= n);
}

static void ask_run(struct loop *here, struct msg *m)
{
	struct door_ask *ask = container_of(m, struct door_ask, msg);

	ask->run(ask->cache, ask);
}

int door_ask(struct kvof_cache *c, struct door_ask *ask)
{
	int rc = door_enter(c);

	if (rc != 0)
		return rc;
	ask->cache = c;
	ask->msg.run = ask_run;
	sem_init(&ask->answered, 0, 0);
	if (!ask->brief || !loop_visit(c->loop, &ask->msg))
		loop_post(c->loop, &ask->msg);
	door_posted(c);
	sem_wait_whole(&ask->answered);
	sem_destroy(&ask->answered);
	door_leave(c);
	return 0;
}

void door_answer(struct door_ask *ask)
{
	sem_post(&ask->answered);
}

/* --- events of the core, on its thread -------------------------------------------------------- */

void door_result(struct kvof_cache *c, const struct kvof_result *r)
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

	if (batch->question && (r->flags & KVOF_RESULT_RELEASED) != 0) {
		door_uncount(c, 1);        /* of match's own: nobody knows its number */
		return;
	}
	if (w == NULL || (r->flags & KVOF_RESULT_RELEASED) != 0) {
		door_result(c, r);
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

	if (c->told)
		return;
	c->told = true;
	c->open_res = res;
	snprintf(c->open_why, sizeof(c->open_why), "%s", why);
	sem_post(&c->opened);
}

static void api_changed(void *arg, const struct kvof_id *id, enum kvof_tier tier, bool stored)
{
	struct kvof_cache *c = arg;
	struct kvof_event event = {*id, tier, stored};

	if (c->events != NULL)
		events_put(c->events, &event);
}

static const struct core_events api_events = {
	.opened = api_opened,
	.result = api_result,
	.over = api_over,
	.changed = api_changed,
};

/* --- the cache's thread ----------------------------------------------------------------------- */

static void api_closed(void *arg)
{
	struct kvof_cache *c = arg;

	loop_stop(c->loop);
}

static void guest_closed(void *arg)
{
	struct kvof_cache *c = arg;

	c->restore = NULL;
	core_close(&c->core, api_closed, c);
}

static void close_run(struct loop *here, struct msg *m)
{
	struct kvof_cache *c = container_of(m, struct kvof_cache, close_msg);

	if (c->restore != NULL)
		door_restore.close(c->restore, guest_closed, c);
	else
		guest_closed(c);
}

static int thread_begin(struct kvof_cache *c, char why[256])
{
	struct loop_opts loop = {.name = "kvof-cache", .ops_max = API_LOOP_OPS,
		.kind = c->opts.plain != 0 ? LOOP_PLAIN : LOOP_AUTO};
	struct core_opts core = {.cache = &c->opts, .identity = c->identity};
	int rc = loop_open(&loop, &c->loop);

	if (rc != 0) {
		snprintf(why, 256, "the loop did not start: %s", kvof_error_text(rc));
		return rc;
	}
	rc = core_open(c->loop, &core, &api_events, c, why, &c->core);
	if (rc != 0) {
		loop_close(&c->loop);
		return rc;
	}
	if (door_restore.open != NULL && door_restore.open(c, &c->restore) != 0) {
		c->restore = NULL;
		api_opened(c, -ENOMEM, "no memory for restores");
	}
	return 0;
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
	if (c->events != NULL)
		events_close(&c->events);
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
	rc = c->fd < 0 ? files_errno(errno) :
		identity_make(opts, why, &c->identity);
	if (rc == 0 && opts->event_count > 0)
		rc = events_open(opts->event_count, &c->events);
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

/* Nobody but memory fails without a sentence. */
static int open_failed(int rc, char why[256])
{
	if (why[0] == '\0')
		snprintf(why, 256, "%s", rc == -ENOMEM ?
			 "there is not enough memory, or no thread is left" : kvof_error_text(rc));
	return rc;
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
		return open_failed(rc, why);
	rc = thread_start(c);
	if (rc != 0) {
		cache_free(c);
		return open_failed(rc, why);
	}
	sem_wait_whole(&c->opened);
	memcpy(why, c->open_why, 256);
	rc = c->open_res;
	if (rc != 0) {
		thread_end(c);
		cache_free(c);
		return open_failed(rc, why);
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
	uint32_t flags;                    /* KVOF_UNORDERED, ... */
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
	rc = door_count(c, n);
	if (rc != 0)
		return rc;
	rc = count_in(&c->batches, 1, KVOF_BATCHES_MAX);
	if (rc == 0) {
		rc = batch_make(order->op, blocks, n, c->cut_bytes, &batch);
		if (rc != 0)
			atomic_fetch_sub(&c->batches, 1);
	}
	if (rc != 0) {
		door_uncount(c, n);
		return rc;
	}
	batch->deadline_ns = order->deadline_ns;
	batch->flags = order->flags;
	batch->question = order->question;
	batch->waiter = order->waiter;
	batch->owner = c;
	batch->id = door_number(c);
	if (id != NULL)
		*id = batch->id;
	batch->msg.run = submit_run;
	loop_post(c->loop, &batch->msg);
	return 0;
}

/* A flag without effect is a mistake of whoever gave it. */
static int flags_check(enum kvof_op op, uint32_t flags)
{
	static const uint32_t fine[] = {
		[KVOF_LOAD] = KVOF_UNORDERED | KVOF_SKIP_READ,
		[KVOF_SAVE] = KVOF_UNORDERED | KVOF_SKIP_WRITE | KVOF_WAIT_ALL,
		[KVOF_EXISTS_OP] = KVOF_UNORDERED | KVOF_SKIP_READ,
		[KVOF_DELETE] = KVOF_UNORDERED,
	};

	if (op > KVOF_DELETE || (flags & ~fine[op]) != 0)
		return -EINVAL;
	return (flags & KVOF_SKIP_WRITE) != 0 && (flags & KVOF_WAIT_ALL) != 0 ? -EINVAL : 0;
}

int kvof_cache_submit_flags(struct kvof_cache *c, enum kvof_op op, const struct kvof_block *blocks,
			    uint32_t n_blocks, uint64_t deadline_ns, uint32_t flags,
			    uint64_t *batch)
{
	struct order order = {.op = op, .deadline_ns = deadline_ns, .flags = flags};
	int rc;

	if (batch == NULL || flags_check(op, flags) != 0)
		return -EINVAL;
	rc = door_enter(c);
	if (rc != 0)
		return rc;
	rc = batch_post(c, &order, blocks, n_blocks, batch);
	door_posted(c);
	door_leave(c);
	return rc;
}

int kvof_cache_submit(struct kvof_cache *c, enum kvof_op op, const struct kvof_block *blocks,
		      uint32_t n_blocks, uint64_t deadline_ns, uint64_t *batch)
{
	return kvof_cache_submit_flags(c, op, blocks, n_blocks, deadline_ns, 0, batch);
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
	door_posted(c);
	if (rc == 0)
		sem_wait_whole(&w.done);
	sem_destroy(&w.done);
	door_leave(c);
	return rc;
}

int kvof_cache_wait(struct kvof_cache *c, enum kvof_op op, const struct kvof_block *blocks,
		    uint32_t n_blocks, uint64_t deadline_ns, struct kvof_result *results)
{
	struct order order = {.op = op, .deadline_ns = deadline_ns};
	int rc;

	if (results == NULL)
		return -EINVAL;
	rc = door_enter(c);
	return rc != 0 ? rc : batch_wait(c, &order, blocks, n_blocks, results);
}

int door_question(struct kvof_cache *c, const struct kvof_block *blocks, uint32_t n_blocks,
		  uint32_t flags, uint64_t deadline_ns, struct kvof_result *results)
{
	struct order order = {.op = KVOF_EXISTS_OP, .deadline_ns = deadline_ns, .flags = flags,
		.question = true};
	int rc = door_enter(c);

	return rc != 0 ? rc : batch_wait(c, &order, blocks, n_blocks, results);
}

struct cancel {
	struct msg msg;
	struct kvof_cache *cache;
	uint64_t number;
};

static void cancel_run(struct loop *here, struct msg *m)
{
	struct cancel *cancel = container_of(m, struct cancel, msg);
	struct kvof_cache *c = cancel->cache;

	core_cancel(c->core, cancel->number);
	if (c->restore != NULL)
		door_restore.cancel(c->restore, cancel->number);
	free(cancel);
}

int kvof_cache_cancel(struct kvof_cache *c, uint64_t batch)
{
	struct cancel *cancel;
	int rc = door_enter(c);

	if (rc != 0)
		return rc;
	cancel = malloc(sizeof(*cancel));
	if (cancel != NULL) {
		*cancel = (struct cancel){{.run = cancel_run}, c, batch};
		loop_post(c->loop, &cancel->msg);
	}
	door_posted(c);
	door_leave(c);
	return cancel != NULL ? 0 : -EBUSY;
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
	rc = door_enter(c);
	if (rc != 0)
		return rc;
	door_posted(c);
	pthread_mutex_lock(&c->drain_lock);
	if (read(c->fd, &count, sizeof(count)) < 0)
		must(errno == EAGAIN);
	atomic_store(&c->signaled, 0);
	got = ring_take(c, out, n);
	if (atomic_load(&c->consumed) != atomic_load(&c->produced) &&
	    atomic_exchange(&c->signaled, 1) == 0)
		must(write(c->fd, &one, sizeof(one)) == sizeof(one));
	pthread_mutex_unlock(&c->drain_lock);
	door_leave(c);
	return (int)got;
}
