/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop is one thread with one ring, one clock and one mailbox. What it owns is touched by no
 * other thread; others post a message.
 *
 * The seam: loop/loop.c with its neighbours (a real machine) or loop/sim*.c (seeded simulator)
 * implement this header, disk.h and sock.h; which one is chosen at link time. On a real machine
 * the kernel's ring carries operations out or, where that is denied, epoll and threads for drives:
 * the same rules, chosen at loop_open().
 *
 * Rules that every implementation keeps and every user may rely on:
 *  - A turn reaps completions into a list, then runs at most LOOP_TURN_DONE_MAX callbacks, then
 *    submits what they queued. A callback never runs from inside the call that started the
 *    operation.
 *  - Each started operation is completed exactly once, also when it fails, is cancelled, or its
 *    owner is closed (-ECANCELED). Until then its memory and its buffers belong to the loop.
 *  - Results are 0 or a count, or a negative errno of the closed list in docs/errors.md.
 *  - After loop_open() nothing is allocated on a data path.
 */
#ifndef KVOF_LOOP_LOOP_H
#define KVOF_LOOP_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/heap.h"

#define LOOP_TURN_DONE_MAX 64

struct loop;

/* One operation in flight. Embed it, zeroed before its first use; in done() find the owner with
 * container_of(). Starting one that is in flight is a fault of the caller and asserted. */
struct loop_op {
	struct loop_op *next;                           /* the loop's, while in flight */
	void (*done)(struct loop_op *op, int res);
	int res;
	uint32_t state;                                 /* the loop's */
	void *owner;                                    /* the loop's: disk, sock, ... */
	uint64_t scratch[2];                            /* the loop's */
};

struct loop_timer {
	void (*fire)(struct loop_timer *t);
	struct heap_node node;                          /* the loop's; of its heap of timers */
};

/* A message and all it points to belong to the receiver from loop_post() until it answers. */
struct msg {
	struct msg *next;
	void (*run)(struct loop *here, struct msg *m);
};

/* Who carries a loop's operations out. */
enum loop_kind {
	LOOP_AUTO,                   /* the ring where the machine allows it, else plain */
	LOOP_IO_URING,               /* or fail */
	LOOP_PLAIN,
};

struct loop_opts {
	/* for logs and the thread's name; borrowed for the loop's life */
	const char *name;
	unsigned ops_max;            /* most operations in flight; 0: 4096 */
	unsigned timers_max;         /* most timers set at once; 0: 4096 */
	/* after the last work it looks again and again for so long before it sleeps: answers come
	 * sooner, and a core is busy meanwhile */
	uint64_t spin_ns;
	enum loop_kind kind;         /* LOOP_AUTO: KVOF_LOOP=plain|io_uring may say (for tests) */
};

/**
 * loop_open() - makes a loop; the calling thread owns it until loop_run() is entered by another
 *
 * Where the machine has no io_uring for us, one line a process says why, and the loop is a plain
 * one. Return: 0; -ENOMEM; -EMFILE; -EINVAL: io_uring was asked for and is denied (a line says
 * why).
 */
int loop_open(const struct loop_opts *opts, struct loop **out);

/* All disks, socks and timers of the loop are closed before, and nobody posts any more: who may
 * still post has been stopped and waited for. Completions still on their way, of cancelled
 * operations, run in here (in the simulator other nodes' events too). A drive that does not answer
 * keeps its disk open: the loop's memory is then kept with it, and a line says so (in the simulator
 * asserted). */
void loop_close(struct loop **loop);

/* Turns until loop_stop() has been called. Return: 0. */
int loop_run(struct loop *loop);

/* Own thread only; another thread posts a message that calls it. */
void loop_stop(struct loop *loop);

/**
 * loop_turn() - one turn; waits for something to do, at most wait_ns_max
 * Return: number of callbacks run (timers, completions and messages counted).
 */
unsigned loop_turn(struct loop *loop, uint64_t wait_ns_max);

/* Monotonic time, read once a turn. Costs a load. */
uint64_t loop_now_ns(const struct loop *loop);

/* Reads it anew, outside a turn: after something long, before a deadline is set. Own thread. */
void loop_now_take(struct loop *loop);

/* For identifiers nobody else has: from the kernel; in the simulator from its seed. Any thread. */
void loop_random(void *out, size_t bytes);

/* From any thread; wakes the receiver if it sleeps. Never blocks, never allocates. FIFO per
 * sender. */
void loop_post(struct loop *to, struct msg *m);

/**
 * loop_visit() - runs a message here and now if the loop sleeps and has no mail; any thread
 *
 * For a question that is answered in microseconds, which waking the loop's thread would take. What
 * was posted before by the same thread has been run. The loop can't wake meanwhile, so run() begins
 * no operation and sets no timer (asserted); loop_here() is true in it.
 * Return: whether it was run; if not, nothing has happened: post it. (In the simulator: never.)
 */
bool loop_visit(struct loop *loop, struct msg *m);

/* True on the loop's own thread and in a visit (in the simulator while an event of that loop
 * runs). */
bool loop_here(const struct loop *loop);
#define loop_must_own(loop) must(loop_here(loop))

/* Completes op with res on the next turn: for answers that are known at once. */
void loop_soon(struct loop *loop, struct loop_op *op, int res);

/* Timers fire at or after at_ns, once. Setting a set timer moves it. Cancelling one not set is
 * fine. */
void loop_timer_init(struct loop_timer *t, void (*fire)(struct loop_timer *t));
void loop_timer_set(struct loop *loop, struct loop_timer *t, uint64_t at_ns);
void loop_timer_cancel(struct loop *loop, struct loop_timer *t);
bool loop_timer_is_set(const struct loop_timer *t);

/* Completes op when fd is readable (eventfd, signalfd). Not in the simulator: -EINVAL. */
void loop_poll(struct loop *loop, int fd, struct loop_op *op);

/* Takes back a loop_poll() in flight; its op still completes, with -ECANCELED. */
void loop_poll_cancel(struct loop *loop, struct loop_op *op);

/**
 * loop_buffer_map() - memory for transfers, bought at start; any thread, control path
 *
 * Aligned to 2 MiB where it is as large, else to 4096, on huge pages where the kernel has them, all
 * of it there. A transfer from small pages has a segment each: a virtio drive moved 1 MiB from huge
 * pages 2.5 times as fast. In the simulator from the heap, so that a sanitizer sees its bounds.
 * Return: the memory, bytes of any content; NULL: there is not so much.
 */
void *loop_buffer_map(uint64_t bytes);
void loop_buffer_unmap(void *at, uint64_t bytes);

/* Tells the kernel beforehand of memory that transfers of this loop use much; saves time in each.
 * A hint: where it is refused nothing changes. Taken back before the memory goes. */
void loop_buffer_register(struct loop *loop, void *at, uint64_t bytes);
void loop_buffer_unregister(struct loop *loop, const void *at, uint64_t bytes);

/* Who carries out this loop's operations, for people: "io_uring", "plain", "simulator". */
const char *loop_kind(const struct loop *loop);

#endif
