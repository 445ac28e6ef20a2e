/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop's inside, shared by loop.c, disk.c and sock.c and by the two that carry their operations
 * out: the kernel's ring (uring.c) and the plain one (plain.c).
 *
 * The seam between them is the prepared operation itself, struct io_uring_sqe: a ring hands it to
 * the kernel, the plain loop reads it and does the same with system calls of its own. Both give
 * back what was in user_data, a result, and nothing else; all above is the same code for both.
 */
#ifndef KVOF_LOOP_RING_H
#define KVOF_LOOP_RING_H

#include <liburing.h>
#include <pthread.h>
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

struct plain;

struct loop {
	uint32_t magic;
	bool ring_on;                           /* enabled: by the thread that turns it */
	bool running, stop;
	const char *name;
	unsigned ops_max;
	const void *owner;                      /* of the thread: address of its ring_thread */
	struct plain *plain;                    /* NULL: the kernel's ring */
	struct io_uring ring;
	struct timers timers;
	uint64_t now_ns;
	uint64_t spin_ns, worked_ns;            /* of loop_opts; when there was work last */
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
	/* Other threads write these; on their own cache line. */
	_Alignas(64) _Atomic(struct msg *) mail; /* newest first */
	_Atomic uint32_t asleep;
	_Atomic bool lent;                      /* asleep: a visit may begin */
	_Atomic(const void *) visitor;          /* address of its ring_thread; NULL: none */
	pthread_mutex_t visit_lock;             /* held during a visit, and to end lent */
};

/* The next operation to be filled in; it begins with the next submission, in order. */
struct io_uring_sqe *ring_sqe(struct loop *l);
void ring_tag_set(struct io_uring_sqe *sqe, void *at, enum ring_tag tag);
void ring_cancel(struct loop *l, void *at, enum ring_tag tag);
/* A completion finds home; runs no callback, but may prepare the next operation. */
void ring_reap_one(struct loop *l, uint64_t user_data, int res, unsigned flags);
/* The calling thread takes the loop. */
void ring_take(struct loop *l);
/* Wakes the loop where it sleeps; any thread. */
void ring_ring(struct loop *l);

/* A file that operations will name, by *place (with IOSQE_FIXED_FILE) or, where that is
 * RING_FIXED_NONE, by its descriptor. Return: 0 or -ENOMEM. */
int ring_file_add(struct loop *l, int fd, int *place);
void ring_file_remove(struct loop *l, int place);
/* A socket is about to be closed, or leaves the loop; nothing of it is in flight. */
void ring_fd_forget(struct loop *l, int fd);
/* The place of a registered buffer that holds all of these bytes, or RING_FIXED_NONE. */
int ring_buffer_find(const struct loop *l, const void *at, uint64_t bytes);

/* ---- uring.c, uring_fixed.c ---- */

/* Return: 0, or the kernel's negative errno. */
int uring_open(struct loop *l);
void uring_close(struct loop *l);
/* Whether a ring can be made and used here: 0, or the errno that says why not. Tried once. */
int uring_denied(void);
#define URING_UNKNOWN (-1)               /* try again */
void uring_denied_set(int err);
/* The reason of such an errno, for a person to act on. */
void uring_why(int err, char *out, size_t out_bytes);
void uring_enable(struct loop *l);
void uring_renew(struct loop *l);               /* on a new thread; not enabled yet */
struct io_uring_sqe *uring_sqe(struct loop *l);
void uring_submit(struct loop *l);
void uring_enter(struct loop *l, uint64_t wait_ns);
void uring_reap(struct loop *l);
void uring_fixed_begin(struct loop *l);
int uring_file_add(struct loop *l, int fd);
void uring_file_remove(struct loop *l, int place);

/* ---- loop.c ---- */

/* An operation begins; later it is ready, and its callback runs in this turn or the next. */
void ring_op_begin(struct loop *l, struct loop_op *op, void *owner);
void ring_op_ready(struct loop *l, struct loop_op *op, int res);
void ring_op_forget(struct loop *l, struct loop_op *op);   /* ready, and to be run no more */

/* ---- disk.c, sock.c ---- */

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
