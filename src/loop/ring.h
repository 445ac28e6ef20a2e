/* SPDX-License-Identifier: Apache-2.0 */
/* What uring.c, uring_disk.c and uring_sock.c share: a loop's inside, and how completions find
 * home. */
#ifndef KVOF_LOOP_RING_H
#define KVOF_LOOP_RING_H

#include <liburing.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/must.h"
#include "loop/loop.h"
#include "loop/timer.h"

#define RING_LOOP_MAGIC 0x10099100u
#define RING_OP_FLYING 0xf17e0b1du      /* loop_op.state while the loop has it */

/* A completion's user_data is a pointer with one of these in its low three bits. */
enum ring_tag {
	RING_OP,        /* struct loop_op, complete as it is */
	RING_DISK,      /* struct disk_io */
	RING_SOCK_RECV, /* struct sock */
	RING_SOCK_SEND, /* struct sock */
	RING_CONNECT,   /* struct sock_connect */
	RING_INNER,     /* struct ring_inner */
	RING_NONE       /* nobody waits: a cancel's own completion */
};

struct ring_inner {
	void (*reap)(struct loop *l, struct ring_inner *r, int res, unsigned flags);
};

#define RING_FILES_MAX 64u
#define RING_BUFFERS_MAX 64u
#define RING_FIXED_NONE (-1)

/* What the kernel knows beforehand: uring_fixed.c. */
struct ring_fixed {
	bool files_on, buffers_on;
	bool file_used[RING_FILES_MAX];
	int file[RING_FILES_MAX];
	struct iovec buffer[RING_BUFFERS_MAX];   /* iov_len 0: free */
	unsigned buffers_end;                    /* from here on all are free */
};

struct loop {
	uint32_t magic;
	bool ring_on;                           /* enabled: by the thread that turns it */
	bool running, stop;
	const char *name;
	unsigned ops_max;
	const void *owner;                      /* of the thread: address of its ring_thread */
	struct io_uring ring;
	struct timers timers;
	uint64_t now_ns;
	struct loop_op *ready_first, *ready_last; /* completed, callback not run */
	uint64_t ops_flying;
	struct msg *inbox;                      /* taken from mail, in order */
	uint64_t disks, socks;                  /* open */
	struct list_link listeners;
	/* socks with sends to hand in at the end of the turn */
	struct list_link sends;
	int bell_fd;
	struct ring_inner bell;
	struct ring_fixed fixed;
	/* Other threads write these two; on their own cache line. */
	_Alignas(64) _Atomic(struct msg *) mail; /* newest first */
	_Atomic uint32_t asleep;
};

struct io_uring_sqe *ring_sqe(struct loop *l);
void ring_tag_set(struct io_uring_sqe *sqe, void *at, enum ring_tag tag);
void ring_cancel(struct loop *l, void *at, enum ring_tag tag);

void ring_fixed_begin(struct loop *l);
/* A place of the table, or RING_FIXED_NONE: the descriptor does. */
int ring_file_add(struct loop *l, int fd);
void ring_file_remove(struct loop *l, int place);
int ring_buffer_find(const struct loop *l, const void *at, uint64_t bytes);

/* An operation begins; later it is ready, and its callback runs in this turn or the next. */
void ring_op_begin(struct loop *l, struct loop_op *op, void *owner);
void ring_op_ready(struct loop *l, struct loop_op *op, int res);
void ring_op_forget(struct loop *l, struct loop_op *op);   /* ready, and to be run no more */

struct disk_io;
struct sock;
struct sock_connect;
void ring_disk_reap(struct loop *l, struct disk_io *io, int res);
void ring_recv_reap(struct loop *l, struct sock *s, int res);
void ring_send_reap(struct loop *l, struct sock *s, int res);
void ring_connect_reap(struct loop *l, struct sock_connect *c, int res);
void ring_sends_submit(struct loop *l);
void ring_listeners_free(struct loop *l);
void ring_listeners_arm(struct loop *l);        /* again, on a new ring */

#endif
