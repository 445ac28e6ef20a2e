/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop without io_uring: prepared operations are carried out by epoll and by the threads of a
 * drive's lane. What a ring does for loop.c, disk.c and sock.c, this does; own thread only.
 */
#ifndef KVOF_LOOP_PLAIN_H
#define KVOF_LOOP_PLAIN_H

#include "loop/ring.h"

int plain_open(struct loop *l);              /* 0 or -ENOMEM */
void plain_close(struct loop *l);

struct io_uring_sqe *plain_sqe(struct loop *l);
/* The one prepared last, not begun yet; for tests. */
struct io_uring_sqe *plain_sqe_last(struct loop *l);
void plain_submit(struct loop *l);
/* Begins what is queued; waits until something has completed or wait_ns have passed. */
void plain_enter(struct loop *l, uint64_t wait_ns);
void plain_reap(struct loop *l);

int plain_file_add(struct loop *l, int fd, int *place);    /* 0 or -ENOMEM */
void plain_file_remove(struct loop *l, int place);
struct lane *plain_lane(struct loop *l, int place);
void plain_fd_forget(struct loop *l, int fd);

#endif
