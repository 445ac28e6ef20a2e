/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of a block shard share; nobody else includes it.
 *
 *   block.c         operations: a request's chunks, their I/O, answers, deadlines
 *   block_map.c     map pages, slots and their way round, flushes
 *   block_scan.c    Compare and Verify, which need a buffer of ours
 *   block_open.c    open, format, recovery, close
 *   volume.c        from the calling loop to the shards and back
 *
 * How a write goes: for each run of its chunks an I/O is taken; a chunk without a slot gets a clean
 * one (waits for it where there is none yet) and its entry is "fresh" in memory; the data is
 * written; then, while any of the run's entries is fresh, the I/O waits for the map page; then,
 * with fua, for a flush. At any instant each answered write is found through the map on the drive.
 *
 * A slot's way, a ring of slot numbers with rising cursors:
 *
 *   used ── freed ──> [epoch .. tail)   the map says so in memory only
 *                     [idle .. epoch)   waits: the pages that no longer name them must be durable,
 *                                       and I/O started before must have ended; then discarded
 *                     [zero .. idle)    free, of any content
 *                     [clean .. zero)   being zeroed and flushed
 *   used <── given ── [take .. clean)   zero, durably
 */
#ifndef KVOF_STORE_BLOCK_INNER_H
#define KVOF_STORE_BLOCK_INNER_H

#include <stdatomic.h>

#include "loop/disk.h"
#include "store/block.h"
#include "store/block_format.h"
#include "store/buf.h"
#include "store/inner.h"

#define BLOCK_MAGIC 0xb10c0001u
#define VOLUME_MAGIC 0xb10c0002u
#define BLOCK_IOS 256u                       /* in flight, a part */
#define BLOCK_IOV 20u                        /* pieces of one I/O; > BLOCK_OP_IOV_MAX + 2 */
#define BLOCK_PAGE_WRITES 8u                 /* map pages being written, a part */
#define BLOCK_CLEAN_LOW 64u                  /* fewer clean slots: more are made */
#define BLOCK_ZERO_RUN 128u                  /* slots zeroed at once: 32 MiB */
#define BLOCK_DISCARD_MIN 64u               /* slots given back: the drive is told */
#define BLOCK_FRESH 0x80000000u              /* in the map: the page is not written yet */

/* One run of chunks that are neighbours on a drive and in their slots. */
enum block_stage {
	STAGE_FREE,
	STAGE_SLOT,                          /* waits in part->slot_wait */
	STAGE_LOCK,                          /* waits in part->lock_wait */
	STAGE_EDGE,                          /* reads the pages that it has only parts of */
	STAGE_DATA,
	STAGE_PAGE,                          /* waits in a map page */
	STAGE_FLUSH
};
struct block_flush {
	struct list_link link;
	void (*done)(struct block_flush *w, int res);
};

/* A page of 4 KiB of which a request has only a part (blocks smaller than the drive's). */
struct block_edge {
	uint8_t *page;                       /* ours */
	uint8_t *data;                       /* the request's; NULL: no edge here, or zeros */
	uint32_t from, bytes;                /* in the page; bytes 0: none */
};

struct block_io {
	struct disk_io io;
	struct list_link link;               /* free; or what the stage waits in */
	struct list_link fly;                /* part->flying, in the order of number */
	struct block_part *part;
	struct block_op *op;                 /* NULL: orphan */
	struct store_buf *buf;               /* orphan: held */
	uint64_t started_ns, number, want_version;
	uint64_t chunk, first_bytes;         /* first_bytes: within the first chunk */
	uint32_t count, slot;
	uint8_t kind, stage, edge_reads;
	unsigned iov_count;
	uint64_t at_bytes, bytes;            /* on the part: what the request asks of this run */
	struct block_flush flush;
	struct block_edge head, tail;
	struct iovec edge_iov;
	struct iovec iov[BLOCK_IOV];
};

struct map_page {
	struct list_link dirty;              /* part->dirty: version > written, not being written */
	struct list_link undurable;          /* part->undurable: written > durable */
	struct list_link waiting;            /* block_io in STAGE_PAGE */
	uint64_t version, written, durable, flush_version, epoch_version;
	uint8_t written_place, durable_place, flush_place;
	bool writing, epoch, bad;            /* bad: no copy could be read; its chunks are -EIO */
};

/* A page on its way to the drive. */
struct page_write {
	struct disk_io io;
	struct list_link link;               /* part->page_free */
	struct block_part *part;
	struct iovec iov;
	uint8_t *image;
	uint32_t page;
	uint64_t version, started_ns;
	uint8_t place;
	bool busy;
};

enum zero_state { ZERO_IDLE, ZERO_ZEROING, ZERO_FLUSHING };
enum epoch_state {
	EPOCH_IDLE, EPOCH_PAGES, EPOCH_FLUSH, EPOCH_IO, EPOCH_DISCARD, EPOCH_CLOSE
};

struct block_part {
	struct block *block;
	struct disk *disk;                   /* NULL: missing */
	_Atomic uint32_t *open;              /* of its struct store_drive */
	uint8_t index;
	bool failed;                         /* all its chunks are -EIO */
	bool broken;                         /* a flush failed: no more writes */
	char path[256];
	struct blk_geometry geometry;
	struct blk_layout lay;

	uint32_t *map;                       /* [page_count * BLK_PAGE_ENTRIES] slot + 1, FRESH */
	struct map_page *page;               /* [page_count] */
	uint64_t version;                    /* last given to a page */
	uint64_t used;                       /* chunks with a slot */
	struct list_link dirty, undurable;
	struct page_write write[BLOCK_PAGE_WRITES];
	struct list_link page_free;
	uint8_t *page_memory;

	uint32_t *ring;                      /* [slot_count] */
	uint64_t take, clean, zero, idle, epoch, tail;       /* see above */
	uint32_t lost;                       /* slots that could not be zeroed */
	struct list_link slot_wait, lock_wait;       /* block_io in STAGE_SLOT, STAGE_LOCK */
	uint8_t zero_state, epoch_state;
	struct disk_io zero_io;
	uint64_t zero_started_ns, epoch_number;
	uint64_t tight_until_ns;             /* ENOSPC below the drive: until then no new slots */
	struct disk_io discard_io;           /* in flight while EPOCH_DISCARD */
	uint64_t discard_next, discard_started_ns;
	bool discards;                       /* the drive is told what is free */
	struct block_flush zero_flush, epoch_flush;
	unsigned epoch_pages;
	bool resuming, closing;
	unsigned page_errors;                /* in a row */
	bool page_retry;                     /* a page failed: the next tick tries again */

	struct block_io *io;                 /* [BLOCK_IOS] */
	struct list_link io_free, flying;
	struct slow slow;
	struct slow_rate rate;               /* ours, where the drive brings none */
	unsigned io_busy;
	struct list_link op_wait;            /* operations that wait for an I/O */
	uint8_t *edge_memory;                /* two pages an I/O; only where blocks are smaller */

	struct disk_io flush_io;
	bool flush_busy;
	uint64_t flush_started_ns;
	/* writes done; durable; of the flush on its way */
	uint64_t changes, flushed, flush_mark;
	struct list_link flush_next, flush_running;
};

struct block {
	uint32_t magic;
	struct loop *loop;
	unsigned shard, shard_count, part_count;
	uint64_t size_bytes;
	uint32_t block_bytes;
	uint8_t uuid[16];
	bool warm;                           /* there was a request */
	struct block_op *in_call;            /* whose volume_run() is under way here */
	bool ack_durable, narrow;            /* narrow: blocks are smaller than a drive's */
	uint64_t io_number, slots;           /* slots: of all parts */
	struct loop_timer tick;
	struct block_part part[STORE_DRIVES_MAX];
	/* block_scan.c */
	struct list_link scan_wait;
	struct block_op *scan_op;
	uint8_t *scan_memory;                /* of a chunk; NULL: a drive that hangs has it */
	bool scanning, scan_reading;         /* inside scan_go(); a read is on its way */
	bool scan_blocked;                   /* it waits for a free I/O */

	bool closing, closed, in_close_pump;
	uint64_t close_deadline_ns;
	void (*close_done)(void *arg);
	void *close_arg;
	struct loop_op close_op;
#define X(name) _Atomic uint64_t name;
	BLOCK_STATS(X)
#undef X
	_Atomic uint64_t used_chunks;
	_Atomic uint32_t failed_parts;       /* a bit each */
};

/* What a request is while in flight. The calling loop and the shards have it in turn; pending
 * and res are the only members that two loops touch at once. */
struct op_leg {
	struct msg msg;
	struct loop_op soon;
	struct list_link link;               /* waits for an I/O or the scan */
	struct volume *volume;
	struct loop *home;
	uint64_t at_chunk;                   /* of the namespace: next to look at on this shard */
	uint16_t shards_left;
	uint8_t shard;
	bool begun;
	_Atomic uint32_t pending;            /* I/Os, and one while shards are being started */
	_Atomic int res;
};
_Static_assert(sizeof(struct op_leg) <= sizeof(((struct block_op *)0)->lease),
	       "a request's state fits what the caller lends");

static inline struct op_leg *op_leg(struct block_op *op)
{
	return (struct op_leg *)(void *)op->lease;
}

static inline struct block_op *op_of_leg(struct op_leg *leg)
{
	return container_of((uint64_t (*)[24])(void *)leg, struct block_op, lease);
}

static inline bool block_kind_scans(unsigned kind)
{
	return kind == BLOCK_COMPARE || kind == BLOCK_VERIFY;
}

/* Counters are written by the shard's loop alone, and read by any. */
#define BLOCK_COUNT(b, name, n)                                                                    \
	atomic_store_explicit(&(b)->name,                                                          \
			      atomic_load_explicit(&(b)->name, memory_order_relaxed) + (n),        \
			      memory_order_relaxed)

struct volume {
	uint32_t magic;
	unsigned shard_count;
	struct volume_shard shard[STORE_SHARDS_MAX];
};

/* block.c */
void block_begin(struct block *b, struct block_op *op);      /* on the shard's loop */
void block_io_go(struct block_io *io, enum block_stage to);
void block_io_next(struct block_io *io, int res);            /* its stage has ended */
void block_io_start(struct block_io *io);                    /* its slot is known */
void block_ops_resume(struct block_part *p);
void block_part_fail(struct block_part *p, const char *why);
void block_tick_set(struct block *b);
struct block_io *block_io_take(struct block_part *p, struct block_op *op, enum block_kind kind);

/* volume.c */
void op_started(struct block *b, struct block_op *op);       /* this shard has begun all of it */
/* One thing less that the request waits for; the last answers. */
void op_drop(struct block *b, struct block_op *op, int res);

/* block_map.c */
static inline uint32_t map_slot(const struct block_part *p, uint64_t chunk)
{
	return p->map[chunk] & ~BLOCK_FRESH;
}
static inline struct map_page *map_page_of(const struct block_part *p, uint64_t chunk)
{
	return &p->page[chunk / BLK_PAGE_ENTRIES];
}
/* Gives the chunk a clean slot; false: none is clean now. */
bool map_give(struct block_part *p, uint64_t chunk);
void map_free(struct block_part *p, uint64_t chunk);
/* True: the run's entries are on the drive. False: io waits in its page. */
bool map_settled(struct block_io *io);
void map_flush(struct block_part *p, struct block_flush *w);
bool map_flush_needed(const struct block_part *p);
void map_pump(struct block_part *p);
void map_flush_start(struct block_part *p);
void map_epoch_go(struct block_part *p, enum epoch_state to);
void map_abandon(struct block_part *p);              /* the part has failed */
bool map_quiet(const struct block_part *p);
bool map_tight(const struct block_part *p);
int map_init(struct block_part *p);
void map_free_memory(struct block_part *p);

/* block_scan.c */
void scan_begin(struct block *b, struct block_op *op);
void scan_data(struct block_io *io, int res);        /* a chunk was read */
void scan_lost(struct block_io *io);                 /* its drive hangs */
void scan_go(struct block *b);

/* block_open.c */
void block_close_pump(struct block *b);

#endif
