/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seeded simulator: many loops (nodes), one clock, disks and a network, in one thread. One
 * seed, one run. Only tests include this header.
 *
 * A world is made before the first loop_open(); each loop_open() then adds a node to it: a process,
 * which has more loops after sim_join(). Disks live
 * in the world under their path and outlive a node that crashes. Time passes only from event to
 * event.
 */
#ifndef KVOF_LOOP_SIM_H
#define KVOF_LOOP_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "loop/disk.h"
#include "loop/loop.h"
#include "loop/sock.h"

/* Kinds of fault; the counters say how often each was really hit. */
enum sim_fault {
	SIM_DISK_READ_EIO,           /* a read fails once */
	SIM_DISK_READ_BAD,           /* a read returns a flipped bit */
	SIM_DISK_READ_MISDIRECT,     /* a read returns another place's bytes */
	SIM_DISK_WRITE_EIO,          /* a write fails; some prefix may be on the medium */
	SIM_DISK_WRITE_LOST,         /* acknowledged, not there */
	SIM_DISK_WRITE_TORN,         /* at a crash: part of the sectors of an unfinished write */
	SIM_DISK_WRITE_MISDIRECT,    /* lands at another place */
	SIM_DISK_ENOSPC,
	SIM_DISK_FLUSH_EIO,
	SIM_DISK_SLOW,               /* completes much later */
	SIM_NET_RESET,               /* the connection is reset */
	/* bytes arrive in pieces of random size (harmless, always on) */
	SIM_NET_SPLIT,
	SIM_NET_DELAY,               /* bytes arrive much later */
	SIM_NET_REFUSE,              /* a connect is refused */
	SIM_NET_FLIP,                /* a bit flips on the way */
	SIM_FAULT_COUNT
};

struct sim_opts {
	uint64_t seed;
	uint32_t fault_per_million[SIM_FAULT_COUNT];
	uint64_t disk_latency_ns;    /* mean; 0: 100 us */
	uint64_t net_latency_ns;     /* mean; 0: 50 us */
	uint32_t disk_align_bytes;   /* 512 or 4096; 0: 4096 */
};

/* From now on the loop is another one of the process that `with` is of: they die together, and no
 * link is between them. Before anything is opened on it. */
void sim_join(struct loop *loop, struct loop *with);

int sim_begin(const struct sim_opts *opts);       /* one world at a time */
void sim_end(void);                               /* frees all that is left, disks too */

/* Runs the next event of the world, whichever node it is for. False: nothing is left to happen. */
bool sim_step(void);
/* Steps until until(arg) is true or the clock passes now + ns_max. Return: until's last answer. */
bool sim_run_until(bool (*until)(void *arg), void *arg, uint64_t ns_max);
uint64_t sim_now_ns(void);

/* A digest of every event so far (when, which node, what, with which result): equal for equal
 * seeds. */
uint64_t sim_trace(void);

/* Faults on or off (all rates), and how often a kind was hit since sim_begin(). */
void sim_faults_on(bool on);
uint64_t sim_fault_hits(enum sim_fault kind);
/* The n-th (1, 2, ...) chance of that kind from now on is hit, once, also while faults are off. */
void sim_fault_at(enum sim_fault kind, uint64_t n);
const char *sim_fault_name(enum sim_fault kind);

/* Buffers in flight must still be there when this is called; not those of sim_crash_at_write(),
 * whose crash settles them on the spot.
 *
 * The node's process dies at this instant, with all its loops (the caller's pointers to the others
 * are then to be forgotten): its timers, sockets (peers see a reset) and unfinished
 * I/O are gone, no callback of it runs again, its memory is the caller's to forget (the world keeps
 * and frees what it allocated for the loop). keep_unflushed: a kill (the page cache or drive keeps
 * completed writes; writes in flight may be torn, whole or absent); otherwise a power cut (each
 * write since the last flush is kept or lost at random, sector by sector). */
void sim_crash(struct loop **loop, bool keep_unflushed);

/* The n-th (1, 2, ...) write or flush of the world from now on crashes: sim_step() returns false
 * and sim_crashed() the first loop of the process that did it; the caller then calls
 * sim_crash(). 0: off. */
void sim_crash_at_write(uint64_t n);
struct loop *sim_crashed(void);
uint64_t sim_writes(void);                        /* writes and flushes so far */

/* Direct sight of a disk for tests: bytes as the medium has them now (with completed writes). */
uint8_t *sim_disk_bytes(const char *path, uint64_t *bytes);
/* No answer ever again until revived (hang), or every I/O fails with -EIO (gone). */
enum sim_disk_mode { SIM_DISK_WELL, SIM_DISK_HANGS, SIM_DISK_GONE };
void sim_disk_mode(const char *path, enum sim_disk_mode mode);

/* What reached a medium, told as it completes: for tests that make images of their own. NULL ends
 * it; so does the end of the world. */
struct sim_disk_event {
	const char *path;
	bool flush;                  /* the writes of this medium up to `number` are durable */
	uint32_t number;             /* of the write; counts per medium */
	uint64_t offset_bytes, bytes;
	const uint8_t *data;
};
void sim_disk_watch(void (*seen)(void *arg, const struct sim_disk_event *e), void *arg);

/* The medium there is bad: each read that touches it fails with -EIO until it is written over. */
void sim_disk_rot(const char *path, uint64_t offset_bytes, uint64_t bytes);

/* A file with holes on a full file system: so many bytes more can be written where nothing was
 * written yet, then -ENOSPC; what is discarded is free again. UINT64_MAX: no limit. */
void sim_disk_space(const char *path, uint64_t bytes_left);

/* The link between two nodes: while cut, bytes wait (no reset). */
void sim_link_cut(const struct loop *a, const struct loop *b, bool cut);

#endif
