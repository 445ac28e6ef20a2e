/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: the kernel's ring under a loop.
 *
 * The ring is made disabled and enabled by the thread that first turns the loop, since the kernel
 * ties it to that thread (single issuer, deferred task work). Where another thread takes over, a
 * new ring replaces the old one; only listeners may then be in flight. Where the kernel has no file
 * or memory for it at that moment, the thread waits RENEW_NS for one, and takes a smaller one too;
 * then the process ends, for what the loop holds can't go on without.
 *
 * The bell is under a multishot poll; it is never read, its counter has room for 2^64 - 2 rings.
 *
 * Whether this machine lets us have a ring is tried once a process, by a small one that is enabled,
 * given an operation and waited for: a filter may allow one of the three calls and not another.
 *
 * Thread: the loop's own; uring_denied() any.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "loop/ring.h"

#define RING_ENTRIES_MAX 4096u
#define RING_ENTRIES_MIN 64u
#define RING_ENTRIES_TRY 4u
#define RENEW_NS (10 * NS_PER_S)
#define RENEW_PAUSE_NS (5 * NS_PER_MS)

static _Atomic int denied = URING_UNKNOWN;      /* 0: not */

/* By hand: the shared library of Debian 12 does not export io_uring_enable_rings(). */
static int ring_enable(struct io_uring *ring)
{
	return (int)syscall(__NR_io_uring_register, ring->ring_fd, IORING_REGISTER_ENABLE_RINGS,
			    NULL, 0);
}

static int ring_make(struct io_uring *ring, unsigned entries)
{
	struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER |
					     IORING_SETUP_DEFER_TASKRUN |
					     IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED |
					     IORING_SETUP_CLAMP | IORING_SETUP_SUBMIT_ALL};

	return io_uring_queue_init_params(entries, ring, &p);
}

/* ---- may we ---- */

static int denied_try(void)
{
	struct io_uring ring;
	struct io_uring_cqe *cqe;
	int rc = ring_make(&ring, RING_ENTRIES_TRY);

	if (rc != 0)
		return -rc;
	if (ring_enable(&ring) != 0) {
		rc = errno;
	} else {
		io_uring_prep_nop(io_uring_get_sqe(&ring));
		do
			rc = io_uring_submit_and_wait(&ring, 1);
		while (rc == -EINTR);
		rc = rc < 0 ? -rc : io_uring_peek_cqe(&ring, &cqe) == 0 ? 0 : EIO;
	}
	io_uring_queue_exit(&ring);
	return rc;
}

int uring_denied(void)
{
	int err = atomic_load(&denied);

	if (err == URING_UNKNOWN) {
		err = denied_try();
		uring_denied_set(err);
	}
	return err;
}

/* What is short now may be there for the next loop. */
void uring_denied_set(int err)
{
	if (err != ENOMEM && !files_ran_out(err))
		atomic_store(&denied, err);
}

static int sysctl_disabled(void)
{
	FILE *f = fopen("/proc/sys/kernel/io_uring_disabled", "re");
	int value = 0;

	if (f == NULL)
		return 0;
	if (fscanf(f, "%d", &value) != 1)
		value = 0;
	fclose(f);
	return value;
}

void uring_why(int err, char *out, size_t out_bytes)
{
	struct utsname u = {0};
	int disabled = sysctl_disabled();

	uname(&u);
	if (err == EPERM && disabled != 0)
		snprintf(out, out_bytes, "io_uring is denied by sysctl kernel.io_uring_disabled=%d",
			 disabled);
	else if (err == EPERM || err == EACCES)
		snprintf(out, out_bytes, "io_uring is denied (%s): a seccomp profile or security "
			 "module, sysctl kernel.io_uring_disabled is 0", strerror(err));
	else if (err == ENOSYS)
		snprintf(out, out_bytes, "io_uring is not there (%s): kernel %s has none or a "
			 "seccomp profile hides it", strerror(err), u.release);
	else if (err == EINVAL)
		snprintf(out, out_bytes, "io_uring of kernel %s is too old, 6.1 is needed",
			 u.release);
	else if (err == ENOMEM)
		snprintf(out, out_bytes, "io_uring gets no memory (%s): locked memory is limited "
			 "by RLIMIT_MEMLOCK", strerror(err));
	else
		snprintf(out, out_bytes, "io_uring can't be used (%s) on kernel %s", strerror(err),
			 u.release);
}

/* ---- life ---- */

static void bell_arm(struct loop *l)
{
	struct io_uring_sqe *sqe = uring_sqe(l);

	io_uring_prep_poll_multishot(sqe, l->bell_fd, POLLIN);
	ring_tag_set(sqe, &l->bell, RING_INNER);
}

static void bell_reap(struct loop *l, struct ring_inner *r, int res, unsigned flags)
{
	must(r == &l->bell);
	if (!(flags & IORING_CQE_F_MORE))
		bell_arm(l);
}

static unsigned entries_wanted(const struct loop *l)
{
	unsigned entries = RING_ENTRIES_MIN;

	while (entries < l->ops_max && entries < RING_ENTRIES_MAX)
		entries *= 2;
	return entries;
}

static int open_with(struct loop *l, unsigned entries)
{
	int rc = ring_make(&l->ring, entries);

	if (rc != 0)
		return rc;
	uring_fixed_begin(l);
	l->ring_on = false;
	l->bell.reap = bell_reap;
	bell_arm(l);
	return 0;
}

int uring_open(struct loop *l)
{
	return open_with(l, entries_wanted(l));
}

void uring_close(struct loop *l)
{
	io_uring_queue_exit(&l->ring);
}

void uring_renew(struct loop *l)
{
	struct timespec pause = {.tv_nsec = (long)RENEW_PAUSE_NS};
	unsigned entries = entries_wanted(l), tries = 0;
	char why[160];
	int rc;

	must(l->ops_flying == 0);
	io_uring_queue_exit(&l->ring);
	while ((rc = open_with(l, entries)) != 0 && tries++ < RENEW_NS / RENEW_PAUSE_NS) {
		if (tries == 1) {
			uring_why(-rc, why, sizeof(why));
			log_error("loop %s: its new thread waits for a ring: %s",
				  l->name == NULL ? "" : l->name, why);
		}
#ifdef KVOF_PLANT_RENEW_ONCE
		break;                               /* planted fault */
#endif
		if (rc == -ENOMEM && entries > RING_ENTRIES_MIN)
			entries /= 2;
		nanosleep(&pause, NULL);
	}
	must(rc == 0);
	ring_listeners_arm(l);
}

void uring_enable(struct loop *l)
{
	must(ring_enable(&l->ring) == 0);
	l->ring_on = true;
}

/* ---- in and out ---- */

struct io_uring_sqe *uring_sqe(struct loop *l)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&l->ring);

	if (sqe != NULL)
		return sqe;
	ring_take(l);                   /* so much before the first turn: it begins now */
	io_uring_submit_and_get_events(&l->ring);
	sqe = io_uring_get_sqe(&l->ring);
	must(sqe != NULL);
	return sqe;
}

void uring_submit(struct loop *l)
{
	if (io_uring_sq_ready(&l->ring) > 0)
		io_uring_submit(&l->ring);
}

/* Links what has completed; runs no callback. */
void uring_reap(struct loop *l)
{
	struct io_uring_cqe *cqe;
	unsigned head, count = 0;

	io_uring_for_each_cqe(&l->ring, head, cqe) {
		ring_reap_one(l, cqe->user_data, cqe->res, cqe->flags);
		count++;
	}
	io_uring_cq_advance(&l->ring, count);
}

/* Hands in what is queued; waits until something has completed or wait_ns have passed. */
void uring_enter(struct loop *l, uint64_t wait_ns)
{
	struct io_uring_cqe *cqe = NULL;
	struct __kernel_timespec ts;
	int rc;

	if (wait_ns == 0) {
		unsigned flags = IO_URING_READ_ONCE(*l->ring.sq.kflags);

		if (io_uring_sq_ready(&l->ring) == 0 &&
		    !(flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)))
			return;
		rc = io_uring_submit_and_get_events(&l->ring);
	} else {
		ts = (struct __kernel_timespec){.tv_sec = (int64_t)(wait_ns / NS_PER_S),
			.tv_nsec = (long long)(wait_ns % NS_PER_S)};
		rc = io_uring_submit_and_wait_timeout(&l->ring, &cqe, 1,
						      wait_ns == UINT64_MAX ? NULL : &ts, NULL);
	}
	must(rc >= 0 || rc == -ETIME || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
}
