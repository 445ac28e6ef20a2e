/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive: a block device, a file opened O_DIRECT, or memory. All offsets, lengths and buffer
 * addresses are multiples of disk_info.align_bytes (512 or 4096); asserted, since callers are ours.
 *
 * Implemented by loop/disk.c and loop/sim_disk.c (seam of loop.h). Owned by one loop.
 */
#ifndef KVOF_LOOP_DISK_H
#define KVOF_LOOP_DISK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "loop/loop.h"

struct disk;

struct disk_opts {
	/* make the file with this size where it is missing; 0: must exist */
	uint64_t create_bytes;
	bool memory;                 /* path is "mem": create_bytes of memory, gone at close */
};

struct disk_info {
	uint64_t bytes;              /* usable size, multiple of align_bytes */
	uint32_t align_bytes;
	bool memory, block_device;
	bool made;                   /* the file was missing; disk_open() made it */
	char path[256];
};

/* What the drive really moved, counted at this door (promise P10). */
struct disk_counts {
	uint64_t reads, writes, flushes, discards, zeroes;
	uint64_t read_bytes, write_bytes;
	uint64_t errors;
	uint64_t discards_refused;   /* of the discards: the drive does not take them */
};

struct disk_io {
	struct loop_op op;
	const struct iovec *iov;     /* leased until op.done */
	unsigned iov_count;          /* 1..1024 */
	uint64_t offset_bytes;
	uint64_t bytes;              /* sum of iov; for discard the length */
	uint64_t lease[4];           /* the loop's, while in flight */
};

/**
 * disk_open() - opens and locks a drive; control path, may block
 * Return: 0; -ENOENT no such path and create_bytes is 0; -EBUSY another opener holds it;
 * -EINVAL a directory or other odd file, or smaller than 1 MiB; -ENOSPC; -EIO.
 */
int disk_open(struct loop *loop, const char *path, const struct disk_opts *opts, struct disk **out);

struct disk_extent {
	uint64_t offset_bytes, bytes;
};

/**
 * disk_open_part() - a part of an open drive as a disk of its own, on any loop
 * @whole:   from disk_open(); stays open, locked and unused by others until all parts are closed
 * @extents: [extent_count], in order, copied; multiples of 4096; the part begins with the first
 *
 * Called on the thread that owns @loop, or before it runs. disk_info() tells the part's size;
 * disk_counts() counts what this part moved.
 * Return: 0; -EINVAL; -ENOMEM.
 */
int disk_open_part(struct loop *loop, struct disk *whole, const struct disk_extent *extents,
		   unsigned extent_count, struct disk **out);

/* No I/O may be in flight; a whole's parts are closed before. */
void disk_close(struct disk **disk);
/* Parts of a whole that are open; any thread. */
unsigned disk_parts(const struct disk *whole);

const struct disk_info *disk_info(const struct disk *disk);
const struct disk_counts *disk_counts(const struct disk *disk);

/* Asynchronous. done's res: 0, all bytes moved; -EIO (also after a short transfer that did not go
 * on); -ENOSPC; -ECANCELED. Flush: all writes completed before it was submitted are durable
 * (fdatasync). */
void disk_read(struct disk *disk, struct disk_io *io);
void disk_write(struct disk *disk, struct disk_io *io);
void disk_flush(struct disk *disk, struct disk_io *io);
void disk_discard(struct disk *disk, struct disk_io *io);
/* Reads as zeros when done, durable after a flush; the drive keeps the room. Zeros are written
 * where the drive has no better way. */
void disk_zero(struct disk *disk, struct disk_io *io);

/**
 * disk_lend() - a place of a drive that is memory, to read from without a copy
 * Counts as a read. The caller sees to it that nobody writes there meanwhile. Return: NULL where
 * the drive is no memory, or the bytes do not lie in one run: disk_read() then.
 */
uint8_t *disk_lend(struct disk *disk, uint64_t offset_bytes, uint64_t bytes);

/* The transfers, blocking: only at open and close of a store, before or after loop_run(); of a loop
 * that does not turn, from any one thread at a time. */
int disk_read_now(struct disk *disk, void *into, uint64_t bytes, uint64_t offset_bytes);
struct disk_read_now {
	void *into;
	uint64_t bytes, offset_bytes;
	int res;                     /* out, as disk_read_now() */
};
/* Many at once, as many in flight as the drive takes; returns when all have ended. */
void disk_read_many_now(struct disk *disk, struct disk_read_now *reads, unsigned count);
/* The same in two steps: what is done in between does not wait for the drive. `reads` stays the
 * caller's and stays where it is until the end. NULL: they are over already, or memory is short and
 * they were done one by one. */
struct disk_many;
struct disk_many *disk_read_many_begin(struct disk *disk, struct disk_read_now *reads,
				       unsigned count);
void disk_read_many_end(struct disk_many **many);
#define DISK_RATES_MAX 4
struct disk_rate {
	unsigned depth;              /* reads in flight, rising */
	uint64_t bytes_per_s;
};
struct disk_probe {
	struct disk *disk;
	uint64_t offset_bytes, bytes;        /* where it may read */
	struct disk_rate rate[DISK_RATES_MAX];       /* out */
	unsigned rate_count;         /* out; 0: nothing to measure (memory, a simulated drive, a
				      * loop without a ring) or a read failed */
};
/* How fast reads of 128 KiB from these places of the drives are, at rising depths, all drives at
 * once, as they work later; takes budget_ns and one batch more. */
void disk_rates_now(struct disk_probe *probe, unsigned count, uint64_t budget_ns);
int disk_write_now(struct disk *disk, const void *from, uint64_t bytes, uint64_t offset_bytes);
int disk_flush_now(struct disk *disk);
int disk_discard_now(struct disk *disk, uint64_t bytes, uint64_t offset_bytes);

#endif
