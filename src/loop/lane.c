/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: the threads of lane.h.
 *
 * Theory: a queue under a lock and a few threads that take from its head. A job's end is told under
 * the same lock, so that who takes the lock afterwards knows the thread to have left what belongs
 * to the job's owner. Threads are made with the lane: none on a data path.
 *
 * A lane belongs to the process that made it: in a forked child the threads are not there, and the
 * descriptor may stand for another file.
 *
 * Invariants: a job is queued, with one thread, or its owner's. The threads take no signals.
 *
 * Thread: any; the list of lanes has a lock of its own, taken before a lane's.
 */
#include "loop/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/list.h"
#include "base/must.h"

#define LANE_MAGIC 0x1a9e0000u
#define LANE_STACK_BYTES (256 * KiB)

struct lane {
	uint32_t magic;
	int fd;
	pid_t pid;
	unsigned holders;
	struct list_link link;               /* in lanes */
	pthread_mutex_t lock;
	pthread_cond_t wake, all_ended;
	struct lane_job *first, *last;
	unsigned running_all;                /* jobs of lane_run_all() that have not ended */
	bool stop;
	unsigned thread_count;
	pthread_t thread[LANE_THREADS];
};

static pthread_mutex_t lanes_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list_link lanes = {&lanes, &lanes};
static pthread_once_t lanes_once = PTHREAD_ONCE_INIT;

/* A child is not born while the list is held: nobody would ever let go of it there. */
static void lanes_hold(void)
{
	must(pthread_mutex_lock(&lanes_lock) == 0);
}

static void lanes_let_go(void)
{
	must(pthread_mutex_unlock(&lanes_lock) == 0);
}

static void lanes_begin(void)
{
	(void)pthread_atfork(lanes_hold, lanes_let_go, lanes_let_go);
}

/* ---- the threads ---- */

static void *sqe_addr(const struct io_uring_sqe *sqe)
{
	return (void *)(uintptr_t)sqe->addr;
}

static ssize_t job_try(int fd, const struct io_uring_sqe *sqe)
{
	off_t off = (off_t)sqe->off;

	switch (sqe->opcode) {
	case IORING_OP_READ:
		return pread(fd, sqe_addr(sqe), sqe->len, off);
	case IORING_OP_WRITE:
		return pwrite(fd, sqe_addr(sqe), sqe->len, off);
	case IORING_OP_READV:
		return preadv(fd, sqe_addr(sqe), (int)sqe->len, off);
	case IORING_OP_WRITEV:
		return pwritev(fd, sqe_addr(sqe), (int)sqe->len, off);
	case IORING_OP_FSYNC:
		must(sqe->fsync_flags == IORING_FSYNC_DATASYNC);
		return fdatasync(fd);
	case IORING_OP_FALLOCATE:
		return fallocate(fd, (int)sqe->len, off, (off_t)sqe->addr);
	default:
		must(false);
	}
}

static void job_run(int fd, struct lane_job *job)
{
	ssize_t n;

	do
		n = job_try(fd, &job->sqe);
	while (n < 0 && errno == EINTR);
	job->res = n < 0 ? -errno : (int)n;
}

static void *lane_main(void *arg)
{
	struct lane *lane = arg;

	(void)prctl(PR_SET_NAME, "kvof-drive");
	must(pthread_mutex_lock(&lane->lock) == 0);
	for (;;) {
		struct lane_job *job = lane->first;

		if (job == NULL && lane->stop)
			break;
		if (job == NULL) {
			must(pthread_cond_wait(&lane->wake, &lane->lock) == 0);
			continue;
		}
		lane->first = job->next;
		if (lane->first == NULL)
			lane->last = NULL;
		job->next = NULL;
		must(pthread_mutex_unlock(&lane->lock) == 0);
		job_run(lane->fd, job);
		must(pthread_mutex_lock(&lane->lock) == 0);
		job->ended(job);
	}
	must(pthread_mutex_unlock(&lane->lock) == 0);
	return NULL;
}

/* ---- life ---- */

/* As many as there can be; one is enough. */
static void threads_make(struct lane *lane)
{
	pthread_attr_t attr;
	sigset_t all, before;

	if (pthread_attr_init(&attr) != 0)
		return;
	(void)pthread_attr_setstacksize(&attr, LANE_STACK_BYTES);
	sigfillset(&all);
	must(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
	while (lane->thread_count < LANE_THREADS &&
	       pthread_create(&lane->thread[lane->thread_count], &attr, lane_main, lane) == 0)
		lane->thread_count++;
	must(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	pthread_attr_destroy(&attr);
}

static void lane_free(struct lane *lane)
{
	must(lane->first == NULL && lane->running_all == 0);
	pthread_cond_destroy(&lane->all_ended);
	pthread_cond_destroy(&lane->wake);
	pthread_mutex_destroy(&lane->lock);
	lane->magic = 0;
	free(lane);
}

static struct lane *lane_make(int fd)
{
	struct lane *lane = calloc(1, sizeof(*lane));

	if (lane == NULL)
		return NULL;
	OBJ_INIT(lane, LANE_MAGIC);
	lane->fd = fd;
	lane->pid = getpid();
	must(pthread_mutex_init(&lane->lock, NULL) == 0);
	must(pthread_cond_init(&lane->wake, NULL) == 0);
	must(pthread_cond_init(&lane->all_ended, NULL) == 0);
	threads_make(lane);
	if (lane->thread_count > 0)
		return lane;
	lane_free(lane);
	return NULL;
}

static struct lane *lane_find(int fd)
{
	pid_t pid = getpid();

	for (struct list_link *at = lanes.next; at != &lanes; at = at->next) {
		struct lane *lane = container_of(at, struct lane, link);

		if (lane->fd == fd && lane->pid == pid)
			return lane;
	}
	return NULL;
}

int lane_take(int fd, struct lane **out)
{
	struct lane *lane;

	must(fd >= 0 && pthread_once(&lanes_once, lanes_begin) == 0);
	lanes_hold();
	lane = lane_find(fd);
	if (lane == NULL) {
		lane = lane_make(fd);
		if (lane != NULL)
			list_push_back(&lanes, &lane->link);
	}
	if (lane != NULL)
		lane->holders++;
	lanes_let_go();
	*out = lane;
	return lane == NULL ? -ENOMEM : 0;
}

void lane_drop(struct lane **taken)
{
	struct lane *lane;
	bool last;

	OBJ_TAKE(lane, taken, LANE_MAGIC);
	lanes_hold();
	must(lane->holders > 0 && lane->pid == getpid());
	last = --lane->holders == 0;
	if (last)
		list_remove(&lane->link);
	must(pthread_mutex_lock(&lane->lock) == 0);
	lane->stop = last;
	must(pthread_cond_broadcast(&lane->wake) == 0);
	must(pthread_mutex_unlock(&lane->lock) == 0);
	lanes_let_go();
	if (!last)
		return;
	for (unsigned i = 0; i < lane->thread_count; i++)
		must(pthread_join(lane->thread[i], NULL) == 0);
	lane_free(lane);
}

/* ---- jobs ---- */

static void lane_push(struct lane *lane, struct lane_job *job)
{
	job->next = NULL;
	if (lane->last == NULL)
		lane->first = job;
	else
		lane->last->next = job;
	lane->last = job;
	must(pthread_cond_signal(&lane->wake) == 0);
}

void lane_submit(struct lane *lane, struct lane_job *job)
{
	OBJ_CHECK(lane, LANE_MAGIC);
	must(job->ended != NULL && pthread_mutex_lock(&lane->lock) == 0);
	lane_push(lane, job);
	must(pthread_mutex_unlock(&lane->lock) == 0);
}

/* The job is one of an array; the lane behind it was left in user_data. */
static void all_one_ended(struct lane_job *job)
{
	struct lane *lane = (struct lane *)(uintptr_t)job->sqe.user_data;

	must(lane->running_all > 0);
	if (--lane->running_all == 0)
		must(pthread_cond_broadcast(&lane->all_ended) == 0);
}

void lane_run_all(struct lane *lane, struct lane_job *jobs, unsigned count)
{
	OBJ_CHECK(lane, LANE_MAGIC);
	must(pthread_mutex_lock(&lane->lock) == 0);
	for (unsigned i = 0; i < count; i++) {
		jobs[i].sqe.user_data = (uintptr_t)lane;
		jobs[i].ended = all_one_ended;
		lane->running_all++;
		lane_push(lane, &jobs[i]);
	}
	/* those of others, where several do this at once, are waited for as well */
	while (lane->running_all > 0)
		must(pthread_cond_wait(&lane->all_ended, &lane->lock) == 0);
	must(pthread_mutex_unlock(&lane->lock) == 0);
}
