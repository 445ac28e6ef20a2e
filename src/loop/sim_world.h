/* SPDX-License-Identifier: Apache-2.0 */
/* What sim.c, sim_disk.c and sim_sock.c share: the world, its events, and a node's inside. */
#ifndef KVOF_LOOP_SIM_WORLD_H
#define KVOF_LOOP_SIM_WORLD_H

#include "base/list.h"
#include "base/must.h"
#include "base/prng.h"
#include "loop/sim.h"
#include "loop/timer.h"

#define SIM_OP_FLYING 0xf17e0b1du       /* loop_op.state while the loop has it */
#define SIM_LOOP_MAGIC 0x510091feu
#define SIM_SENDERS_MAX 32u             /* of messages to one loop */

/* What an event was, for the trace. */
enum sim_event_kind {
	SIM_EVENT_OP = 1,
	SIM_EVENT_MSG,
	SIM_EVENT_TIMER,
	SIM_EVENT_DISK,
	SIM_EVENT_PIPE,
	SIM_EVENT_DIAL,
	SIM_EVENT_ACCEPT
};

struct sim_event {
	struct heap_node node;
	struct loop *loop;                      /* whose callback it runs; NULL: the world's own */
	void (*run)(struct sim_event *e);
	void *arg;
	int64_t value;
	enum sim_event_kind kind;
	struct sim_event *free_next;
};

struct loop {
	uint32_t magic;
	uint32_t index;
	const char *name;
	/* in world.loops, also when dead, until sim_end() */
	struct list_link link;
	bool stop, dead;
	struct timers timers;
	struct loop *node;                      /* the first loop of its process */
	/* no message of one sender may overtake the one before */
	struct sim_sender { const struct loop *from; uint64_t at_ns; } sender[SIM_SENDERS_MAX];
	unsigned sender_count;
	uint64_t ops_flying;
	uint64_t callbacks;                     /* run so far */
	struct list_link disks, socks, listeners, dials;
};

struct sim_cut {
	uint32_t a, b;
};

struct sim_world {
	struct sim_opts opts;
	struct prng prng;
	struct prng ids;                        /* its own: what it gives changes no schedule */
	uint64_t now_ns, trace;
	struct heap events;
	struct sim_event *free_events;
	struct list_link event_blocks;
	struct list_link loops, media, listeners, conns, dials;
	uint32_t loop_count;
	uint16_t port_next;
	struct loop *running;                   /* NULL: top-level code, or the world itself */
	struct loop *crashed;
	bool faults_on;
	uint64_t hits[SIM_FAULT_COUNT];
	uint64_t fault_at[SIM_FAULT_COUNT];     /* chances left until the one to hit; 0: none */
	uint64_t writes, crash_at_write;        /* 0: off */
	void (*watch)(void *arg, const struct sim_disk_event *e);
	void *watch_arg;
	struct sim_cut cuts[64];
	unsigned cut_count;
};

extern struct sim_world *sim_world;

/* True with the rate of that kind, and counted. */
bool sim_fault_now(enum sim_fault kind);
void sim_fault_count(enum sim_fault kind);
uint64_t sim_latency(uint64_t mean_ns);         /* 1/2 to 3/2 of the mean */

struct sim_event *sim_event_add(struct loop *loop, uint64_t at_ns, enum sim_event_kind kind,
				void (*run)(struct sim_event *e), void *arg);
void sim_event_cancel(struct sim_event *e);

/* An operation begins; its callback will run as an event of the loop. */
void sim_op_begin(struct loop *loop, struct loop_op *op, void *owner);
/* runs the callback, inside an event */
void sim_op_end(struct loop *loop, struct loop_op *op, int res);
void sim_op_end_soon(struct loop *loop, struct loop_op *op, int res, uint64_t delay_ns);

/* The process that does this is dead already: what it still starts has no effect. */
static inline bool sim_is_ghost(const struct loop *loop)
{
	return loop->dead || sim_world->crashed == loop->node;
}

/* Counts a write or flush; true: the node dies at this instant. */
bool sim_write_crashes(struct loop *loop);

bool sim_cut_between(const struct loop *a, const struct loop *b);

void sim_disk_crash(struct loop *loop, bool keep_unflushed);
void sim_disk_end(void);
void sim_sock_crash(struct loop *loop);
void sim_sock_uncut(void);                      /* what waited for a link goes on */
void sim_sock_loop_close(struct loop *loop);
void sim_sock_end(void);

#endif
