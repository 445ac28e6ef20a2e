/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive's threads on a machine without io_uring: they do what the kernel's ring would do by
 * itself. One lane a file, shared by all loops of the process; a drive that hangs holds its own
 * threads and no others.
 */
#ifndef KVOF_LOOP_LANE_H
#define KVOF_LOOP_LANE_H

#include <liburing.h>

#define LANE_THREADS 8u                 /* so many operations of a drive at once */

struct lane;

struct lane_job {
	struct lane_job *next;               /* its holder's */
	struct io_uring_sqe sqe;             /* a file operation; its fd is not looked at */
	int res;                             /* as a ring tells it */
	/* On a thread of the lane, which holds the lane's lock: short, and takes no lock. */
	void (*ended)(struct lane_job *job);
};

/* The lane of an open file, made where there is none yet. Return: 0 or -ENOMEM. */
int lane_take(int fd, struct lane **out);
/* Before the file is closed; no job of the caller is in it. When it returns, no thread is inside
 * ended() of one of them; the last one to drop it waits for its threads. */
void lane_drop(struct lane **lane);

void lane_submit(struct lane *lane, struct lane_job *job);
/* Does all of them, several at once, and returns when the last has ended; uses their ended(). */
void lane_run_all(struct lane *lane, struct lane_job *jobs, unsigned count);

#endif
