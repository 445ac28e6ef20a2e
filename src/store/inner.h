/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the store share; nobody else includes it.
 *
 *   store.c     operations, order per key, statistics, close
 *   drive.c     one drive: placement, failure, flushes, the tick that notices a hang
 *   segment.c   appending records to the open segment of a drive, sealing it, footers
 *   evict.c     freeing segments of a drive
 *   policy.c    which values of a cache namespace stay
 *   budget.c    how much may be written to a drive in a day
 *   clean.c     which segment of an object namespace is worth cleaning
 *   carry.c     copying records of a segment that goes to the head of the log
 *   scrub.c     reading what is there, slowly, to find what went bad
 *   recover.c   store_open(): superblocks, footers, hops over record headers
 *   buf.c       the pool of value buffers
 *   slow.c      a limit of what is read from a drive
 *   loan.c      values that are sent from where they lie: a drive of memory
 *   stripe.c    values that span the drives
 *   depth.c     how many reads a drive has in flight, and what its I/O may hold of the pool
 *   look.c, where.c   what others may see of the drives, and of where a value lies
 *   index.c     key to place, and the order of keys
 *   format.c    bytes on drives
 *
 * How a put goes: op waits for its key (store.c), for its drive (drive_queue), gets a place in the
 * open segment (segment.c), is written in one write, and is answered when it and everything before
 * it in that segment is written. So at any instant what was answered is a prefix of each open
 * segment, and a restart finds it by hopping from header to header until the first one that is not
 * there.
 */
#ifndef KVOF_STORE_INNER_H
#define KVOF_STORE_INNER_H

#include <stdatomic.h>

#include "loop/disk.h"
#include "loop/loop.h"
#include "store/budget.h"
#include "store/buf.h"
#include "store/format.h"
#include "store/index.h"
#include "store/policy.h"
#include "store/slow.h"
#include "store/store.h"

#define STORE_MAGIC 0x57043u
_Static_assert(FMT_VALUE_BYTES_MAX == STORE_VALUE_BYTES_LIMIT, "a superblock's limit is ours");
_Static_assert(FMT_DRIVES_MAX == STORE_DRIVES_MAX, "a superblock can name every drive of a store");
#define STORE_READS_MAX 256u         /* in flight, a drive */
#define STORE_WRITES_MAX 64u         /* in flight, a drive */
#define STORE_LOGS 3u                /* a drive: one open, the others being sealed */
#define STORE_ERRORS_MAX 8u          /* in a row, then the drive is given up */
#define STORE_SEGMENT_FAILURES_MAX 3u
#define STORE_BUF_PIECES 16u
#define STORE_KEY_BUCKETS 1024u
#define STORE_TICK_NS (50 * NS_PER_MS)
#define STORE_IO_LIMIT_NS (10 * NS_PER_S)
#define STORE_TIGHT_NS (5 * NS_PER_S)   /* before a drive without space is tried again */
#define STORE_STALL_NS (2 * NS_PER_S)   /* without any answer: gets of the drive end */
#define STORE_CLOSE_LIMIT_NS (3 * NS_PER_S)
#define STORE_CHECKPOINT_BLOCKS_MAX 16u
/* A drive has at most this part of it written and not flushed: an open after a crash reads it again
 * to see that it is whole, and shall read less than 1 % of the data in all. */
#define STORE_WINDOW_PART 160u

/* --- buffers -------------------- */

/* Memory of somebody else that a buffer stands for; told when the last part in it is given back. */
struct buf_loan {
	void (*over)(void *owner, uint32_t what);
	void *owner;
	uint32_t what;
};

struct buf_slot {
	struct store_buf buf;
	struct buf_loan loan;                /* over NULL: blocks of the pool */
	struct iovec piece[STORE_BUF_PIECES], chunk[STORE_BUF_PIECES];
	struct buf_pool *pool;
	struct msg home;                     /* carries it to the pool's loop */
	/* the lease, and I/O that the kernel still does; any loop that has one of them */
	_Atomic unsigned refs;
	bool leased, plain;
	struct store_buf *of;                /* a view of a part of that one, or NULL */
};

struct buf_pool {
	uint8_t *memory;
	uint64_t *used;                      /* a bit a block */
	uint32_t block_count, free_blocks;
	struct buf_slot *slot;
	struct store_buf *free_slots;
	unsigned slot_count, loans;
	struct list_link waiting;
	struct loop_op pump;
	bool pump_set, registered;
	struct loop *loop;
};

int buf_pool_open(struct buf_pool *p, struct loop *loop, uint64_t bytes);
void buf_pool_close(struct buf_pool *p);
/* Now or NULL; jumps no queue: NULL also while others wait. */
struct store_buf *buf_take_now(struct buf_pool *p, uint32_t payload_bytes);
/* A buffer for a value whose record, header first, lies in whole blocks at `record`; if it may. */
bool buf_may_borrow(const struct buf_pool *p);
struct store_buf *buf_borrow(struct buf_pool *p, const struct buf_loan *loan, uint8_t *record,
			     uint32_t payload_bytes);
/* Pieces for a value of this size, no more than the buffer was taken for. */
void buf_fit(struct store_buf *buf, uint32_t payload_bytes);
/* Zeroes what lies between the payload and the end of its last block. */
void buf_pad(struct store_buf *buf);
uint32_t buf_blocks(const struct store_buf *buf);
bool buf_pool_idle(const struct buf_pool *p);

/* --- drives and segments -------------------- */

enum segment_state {
	SEGMENT_FREE,                        /* erased on the drive, or never used */
	SEGMENT_OPEN,                        /* a log appends to it or seals it */
	SEGMENT_SEALED,
	SEGMENT_EVICTING,
	SEGMENT_LENT,                        /* erased; a value of it is still being sent */
	SEGMENT_BAD,                         /* not used again in this run */
};

struct segment {
	uint64_t generation;
	uint64_t sequence_last;              /* of the records in it */
	uint32_t used_blocks;                /* header and records */
	uint32_t entry_count;
	uint32_t live_count;                 /* index entries that point into it */
	uint32_t live_blocks;                /* and the blocks of their records */
	uint32_t tombstone_count;
	uint32_t reader_count;
	uint32_t loan_count;                 /* values being sent from where they lie */
	uint64_t turn;                       /* the lowest is looked at first; see policy.h */
	uint8_t state, failures;
	bool main, lucky;                    /* has stayed; its last turn was won by lot */
	bool untidy;                         /* may hold more than its footer lists */
	bool stuck;                          /* could not be cleaned in this run */
	bool unsealed;                       /* only while a store is being recovered */
};

struct drive;
struct seg_log;

/* Waits for a flush of a drive that starts after it was asked for. */
struct flush_wait {
	struct list_link link;
	void (*done)(struct flush_wait *w, int res);
	void *owner;                         /* stripe.c */
};

/* A write of the log in flight, in the order of its place. */
struct append {
	struct list_link link;               /* log->appends, or the drive's free list */
	struct list_link watch;              /* drive->in_flight */
	struct disk_io io;
	struct drive *drive;
	struct seg_log *log;                 /* NULL: orphan, nobody waits for it any more */
	struct store_op *op;                 /* NULL: the segment's header or first footer */
	struct store_buf *buf;               /* held while in flight */
	bool carry;                          /* its bytes lie in the store's carry_memory */
	uint64_t started_ns, sequence, bytes;
	uint32_t block, blocks;              /* from the start of the segment */
	int res;
	bool done;
	struct iovec iov;
	uint8_t *page;                       /* own block, for what has no buffer */
};

/* A get in flight. */
struct reading {
	struct list_link link;               /* drive->reads, or the drive's free list */
	struct disk_io io;
	struct drive *drive;
	struct store_op *op;                 /* NULL: orphan */
	struct store_buf *buf;
	struct index_place place;
	uint64_t started_ns;
	uint32_t segment_index;
	unsigned attempts;
};

/* A segment that is being written. */
struct seg_log {
	struct drive *drive;
	uint32_t segment_index;
	uint8_t state;                       /* enum seglog_state */
	bool broken;                         /* a write failed: the rest goes elsewhere */
	bool no_space;                       /* ... for want of space */
	bool checkpoint_due;
	uint32_t next_block;                 /* where the next record goes */
	uint32_t append_count;               /* records placed, answered or not */
	uint32_t written_blocks;             /* up to here everything is written */
	uint32_t durable_blocks;             /* ... and flushed */
	uint32_t entry_count;                /* records below written_blocks */
	uint32_t durable_entries;
	uint32_t flush_blocks, flush_entries;/* what the flush in flight will make durable */
	uint32_t checkpoint_entries;         /* what the footer on the drive lists */
	uint64_t sequence_base;
	unsigned in_flight;
	struct flush_wait flush;
	struct list_link appends;
	struct fmt_entry *entries;           /* [fmt_entries_max] */
};

enum seglog_state {
	SEGLOG_NONE,
	SEGLOG_OPEN,
	SEGLOG_DRAIN,                           /* full or broken: waits for its writes */
	SEGLOG_FLUSH,                           /* waits for a flush of the drive */
	SEGLOG_FOOTER,                          /* the footer wants to be written, or is */
};

enum evict_state {
	EVICT_IDLE,
	EVICT_READ,
	EVICT_CARRY,
	EVICT_SETTLE,
	EVICT_ERASE,
	EVICT_FLUSH,
	EVICT_DRAIN,
	EVICT_DISCARD,
};

/* A record on its way from a segment that goes to the head of the log. */
enum carry_state { CARRY_FREE, CARRY_READING, CARRY_READY, CARRY_WRITING };

#define CLEANED_IN_VAIN_MAX 64u              /* an object namespace is full then */
#define CARRY_SLOTS 16u
#define CARRY_BYTES_MIN (1 * MiB)
#define CARRY_NOT UINT64_C(0)                /* in drive.carry_sequence: it is not carried */
#define CARRY_CHOSEN UINT64_MAX              /* it is to be; else the number of its copy */

enum scrub_state { SCRUB_FOOTER, SCRUB_VALUES, SCRUB_HOP, SCRUB_REPAIR };

struct scrub {
	struct loop_timer timer;
	struct disk_io io;
	struct iovec iov;
	struct store_buf *buf;
	struct index_place place;            /* of the value that is being read */
	struct kv_key key;
	uint8_t *memory;                     /* a footer */
	struct fmt_entry *entries;
	uint32_t segment, segments_seen, block, entry, entry_count;
	uint64_t generation, sequence_base, bytes, started_ns;
	uint64_t pass_began_ns, pass_bytes, pass_bad;
	uint8_t state, attempts, waits;
	bool busy;
};

struct drive {
	struct store *st;
	struct disk *disk;
	_Atomic uint32_t *open;              /* of its struct store_drive */
	uint8_t index;
	bool failed, missing;
	const char *fail_why;                /* set: to be given up at the next pump */
	char path[256];
	uint32_t segment_count, segment_blocks;
	struct segment *segment;
	uint32_t *free_ring;                 /* segment numbers, in the order they were erased */
	uint32_t free_first, free_count;
	uint32_t reserve;                    /* free segments to keep by eviction */
	/* ENOSPC below the cap: until then only what was freed since is used */
	uint64_t tight_until_ns, no_space_ns;
	uint32_t tight_credit;               /* segments, at the front of the free ring */
	uint64_t window_bytes;               /* most that may be written and not flushed */

	struct seg_log log[STORE_LOGS];
	struct list_link op_wait;            /* puts and deletes that wait for a place */
	uint64_t queued_bytes;               /* of op_wait and of writes in flight */
	uint64_t in_flight_bytes;            /* of writes */
	uint64_t writing_bytes_max;          /* of them, then puts wait */
	uint64_t placed_bytes;               /* given to this drive since the open */

	struct append *append;               /* [STORE_WRITES_MAX] */
	struct list_link append_free, in_flight;
	unsigned append_busy;
	uint8_t *append_pages;

	struct reading *reading;             /* [STORE_READS_MAX] */
	struct list_link reading_free, reads, get_wait;
	struct slow slow;
	struct slow_rate rate, *shared_rate; /* ours, where the drive brings none */
	unsigned reading_busy, read_depth;   /* depth: most of them; depth.h */
	/* of their buffers; and the most, since those of a drive that never answers stay taken */
	uint32_t reading_blocks, reading_blocks_max;
	/* segments with loans; and of those the erased ones, which can't be used before the end */
	uint32_t segments_lent, segments_held;

	struct disk_io flush_io;
	bool flush_busy, flush_wanted;
	uint64_t flush_started_ns, unflushed_bytes, flush_bytes;
	unsigned flush_failures;
	struct list_link flush_next, flush_running;
	struct flush_wait evict_flush, round;
	bool close_listed;

	struct disk_io footer_io;
	struct iovec footer_iov;
	struct seg_log *footer_log;          /* whose footer is being written; NULL: idle */
	bool footer_busy, footer_seals;
	uint32_t footer_entries;
	uint64_t footer_started_ns;
	uint8_t *footer_memory;

	uint8_t evict_state, evict_step;
	bool evict_io_busy, evict_forced;
	uint32_t evict_segment, evict_entry_count;
	uint64_t evict_sequence_base, evict_started_ns;
	uint64_t evict_generation, evict_discarded;
	uint64_t stay_floor;                 /* segments older than it may not stay */
	uint64_t turn;
	bool no_discard;                     /* it was told, or the drive does not take them */
	struct disk_io evict_io;
	struct iovec evict_iov;
	uint8_t *evict_memory;               /* footer of the segment, then the erased header */
	struct fmt_entry *evict_entries;
	struct policy policy;
	uint64_t kept_blocks;                /* of records with INDEX_KEPT */
	bool carry_kept;                     /* of the segment that goes some are to be carried */
	bool kept_late;                      /* of it more are to be kept since that was chosen */
	struct budget budget;
	struct policy_value *evict_values;   /* [fmt_entries_max], as the two that follow */
	uint64_t *carry_sequence;
	struct carry_slot *carry;            /* [CARRY_SLOTS] */
	/* entry that is next; entries to come; slots that are not free */
	uint32_t carry_next, carry_left, carry_busy;
	unsigned carry_reads, carry_io;      /* in flight; and all that use carry_memory */
	uint64_t carry_used, carry_began_ns, carry_read_ns;
	bool carry_failed, carry_covers;     /* covers: tombstones are still needed */
	uint8_t *carry_orphan;               /* given up: what its I/O may still use */
	unsigned cleaned_in_vain;            /* since the last record was placed */

	uint64_t footer_bytes_max;
	unsigned errors_in_a_row;
	uint64_t answered_ns;                /* when the drive last answered anything */
	uint64_t generation_min;             /* segments below it are dead */
	uint64_t writes_at_tick;
	struct disk_io super_io;
	struct iovec super_iov;
	uint8_t *super_memory;
	unsigned super_step;                 /* 0: idle; 1..: which write or flush is on */
	uint64_t super_started_ns;
	bool super_bad, super_orphan;        /* orphan: nobody waits for its end any more */
	struct scrub scrub;
};

struct store {
	uint32_t magic;
	struct loop *loop;
	struct store_opts opts;
	uint8_t uuid[16];
	uint64_t id;
	uint64_t sequence;                   /* last one given */
	uint32_t mount, generation_low;      /* a generation is mount << 32 | generation_low */
	uint64_t epoch, super_write_count;
	uint32_t trusted;
	uint32_t segment_bytes, value_bytes_stored_max;
	unsigned drive_count, drives_live;
	struct drive *drive;
	struct index *index;
	struct buf_pool *pool, own_pool;     /* its loop's, or its own */
	struct list_link key_busy[STORE_KEY_BUCKETS];
	uint64_t ops_in_flight;
	uint64_t loans;
	uint32_t puts_placed;                /* each may yet need an entry of the index */
	uint32_t dead_entries;               /* entries with INDEX_DEAD */
	bool index_pressure;
	uint8_t *carry_memory;               /* one drive at a time copies through it */
	uint64_t carry_bytes;
	struct drive *carry_owner;
	bool mark_pending, mark_again;       /* survivors are being told that a drive is out */
	bool mark_written;                   /* one of them has it */
	bool flush_lost;                     /* a flush failed, and no store_flush() was told */
	unsigned marks_left, evictions;
	struct list_link mark_wait;          /* deletes and puts until they all know */
	struct stripe *stripe;               /* [STRIPES]; NULL: not set to stripe */
	uint8_t *stripe_memory;
	struct list_link stripe_wait;        /* operations that wait for one */
	uint32_t part_entries;               /* of the index: parts of values */
	struct list_link flush_next, flush_running;
	unsigned round_left;                 /* drives that the round of flushes waits for */
	bool round_failed, in_close_pump;
	struct loop_op round_op;
	struct loop_timer tick;
	unsigned place_next;                 /* ties of placement go round */
	bool closing, closed;
	uint64_t close_deadline_ns;
	void (*close_done)(void *arg);
	void *close_arg;
	struct loop_op close_op;
	uint64_t kept_lost;                  /* values that were to be kept, evicted all the same */
	struct store_stat count;             /* the counters of it */
	uint64_t value_bytes;
};

/* What the store keeps in an operation while it is in flight. */
enum op_kind { OP_PUT = 1, OP_GET, OP_DELETE, OP_FLUSH, OP_CARRY };

struct op_state {
	struct loop_op soon;
	struct store *st;
	struct list_link busy;               /* st->key_busy; linked: this operation owns its key */
	struct list_link behind;             /* operations of the same key that wait */
	struct store_buf_wait wait;
	struct flush_wait flush;
	struct index_place place;            /* get: what is read; put, delete: what was written */
	uint64_t payload_xxh3;
	uint8_t kind, attempts;
	bool placed, was_dead, lent;         /* lent: the buffer is the caller's */
	bool inner;                          /* stripe.c's own get: counted as nothing */
	uint8_t stripe_byte;                 /* fmt_record.stripe */
	struct stripe *stripe;               /* put: that it is carried out by */
};
_Static_assert(sizeof(struct op_state) <= sizeof(((struct store_op *)0)->lease),
	       "an operation's state fits what the caller lends");

static inline struct op_state *op_state(struct store_op *op)
{
	return (struct op_state *)(void *)op->lease;
}

/* The store closes, and no operation waits for room of this drive. */
/* For an entry more than there are and than puts on their way may yet need. */
static inline bool store_index_has_room(const struct store *st)
{
	return index_count(st->index) + st->puts_placed < index_keys_max(st->index);
}

static inline bool drive_reads_full(const struct drive *d)
{
	return d->reading_busy >= d->read_depth || d->reading_blocks >= d->reading_blocks_max;
}

static inline bool drive_ends(const struct drive *d)
{
	return d->st->closing && list_empty(&d->op_wait);
}

/* Blocks that the operation's record takes. */
static inline uint32_t op_blocks(struct store_op *op)
{
	return op_state(op)->kind == OP_DELETE ? 1 : fmt_record_blocks(op->value_bytes);
}

static inline struct store_op *op_of_state(struct op_state *s)
{
	return container_of((uint64_t (*)[26])(void *)s, struct store_op, lease);
}

/* An operation of the store's own, as if it were a put or a delete: OP_CARRY. */
struct carry_slot {
	struct store_op op;
	struct disk_io io;
	struct iovec iov;
	struct drive *drive;
	uint32_t entry;                      /* of drive.evict_entries */
	uint8_t state, attempts;
	bool tombstone, kept;
};

/* store.c */
void op_answer(struct store_op *op, int res);        /* on a later turn */
void op_finish(struct store_op *op, int res);        /* now: only from a completion */
void op_dispatch(struct store *st, struct store_op *op);
void op_written(struct store_op *op);
void marked_release(struct store *st);
/* True: it waits until the other drives know that one is out. */
bool put_waits(struct store *st, struct store_op *op);
void get_done(struct reading *r, int res);
/* Its record can't be believed: a miss from now on, but the key keeps its drive. */
void index_entry_drop(struct store *st, uint32_t entry);
void index_entry_remove(struct store *st, uint32_t entry);
void index_entry_set(struct store *st, const struct kv_key *key, const struct index_place *place);
/* An operation of that key has its place in the log, but is not answered yet. */
bool key_is_placed(struct store *st, const struct kv_key *key);
void store_close_pump(struct store *st);
void store_round_done(struct store *st, int res);
void store_free(struct store **st);
/* For tests: the process has died; its memory goes, its drives are not touched. */
void store_forget(struct store **st);

/* loan.c */
struct store_buf *loan_begin(struct store *st, const struct index_place *place);

/* The operation goes to its key, and on its way, as a put of a host does. */
void store_put_inner(struct store *st, struct store_op *op);
void get_read(struct store *st, struct store_op *op, struct index_place place);
void get_again(struct store_op *op);                 /* looks its key up again */
void get_good(struct store *st, struct store_op *op);
void get_over(struct store *st, struct store_op *op, int res);

/* stripe.c */
#define STRIPES 8u                           /* values on their way at once */
#define STRIPE_BYTES ((uint64_t)FMT_STRIPE_BYTES)
#define STRIPE_PARTS_MAX (STORE_VALUE_BYTES_LIMIT / FMT_STRIPE_BYTES)
#define STRIPE_HEAD_BYTES_MAX (4 * FMT_BLOCK_BYTES)
int stripes_open(struct store *st);
void stripes_close(struct store *st);
bool stripes_idle(const struct store *st);
void stripes_settle(struct store *st);
bool stripe_wanted(const struct store *st, uint32_t value_bytes);
/* Index flags of what stands in a record or an entry. */
uint8_t stripe_flags(uint8_t on_drive);
/* True: it is carried out here, or waits; false: it is a put like any other. */
bool stripe_put(struct store *st, struct store_op *op);
void stripe_dispatch(struct store_op *op);
void stripe_put_end(struct store_op *op, int res);
/* op->value_bytes is the value's, op->buf has room for it. */
void stripe_get(struct store *st, struct store_op *op, struct index_place place);
/* Bytes of the value; 0: a part is missing. mark: flags that its parts get. */
uint32_t stripe_total(struct store *st, const struct kv_key *of, const struct index_place *place,
		      uint8_t mark);
/* Its head has left the index: its parts go, too. */
void stripe_forget(struct store *st, const struct kv_key *key, const struct index_place *place);
/* Of the values of hosts, what lies in this record: all of it, but for a head. */
uint32_t stripe_value_bytes(const struct index_place *place);
/* A part was refused for want of write budget: its value counts once. */
void stripe_over_budget(struct store_op *part);

/* NULL: these are the bytes of that put of that key. */
const char *store_record_wrong(const struct store *st, const struct index_place *place,
			       const struct store_buf *buf, const struct kv_key *key,
			       uint64_t *payload_xxh3);

/* scrub.c */
int scrub_open(struct drive *d);             /* once the drive is recovered */
void scrub_stop(struct drive *d);
void scrub_free(struct drive *d);
uint64_t scrub_started_ns(const struct drive *d);
/* A footer is being written anew: its segment is back soon. */
bool scrub_repairs(const struct drive *d);

/* drive.c */
int drive_init(struct drive *d);
void drive_free(struct drive *d);
void drive_queue(struct drive *d, struct store_op *op);
struct drive *drive_choose(struct store *st, struct store_op *op);
void drive_pump(struct drive *d);
void drive_pump_after(struct drive *d);
void store_pump(struct store *st);
void drive_io_result(struct drive *d, int res);
/* Its file system is full: segments that were never written have no place there. */
bool drive_is_tight(const struct drive *d);
void drive_flush(struct drive *d, struct flush_wait *w);
bool drive_quiet(const struct drive *d);
/* Within its daily budget, with what is queued. */
bool drive_may_write(struct drive *d, uint64_t bytes);
/* Remembers the budget in what is written anyway. */
void drive_budget_note(const struct drive *d, struct fmt_segment_info *info);
void drive_tick(struct loop_timer *t);
void drive_tick_set(struct drive *d);        /* something of it is in flight */
void drive_super_fill(const struct drive *d, struct fmt_super_info *out);
void store_mark(struct store *st);

/* segment.c */
uint64_t segment_generation(struct store *st);
uint32_t segment_of_block(const struct drive *d, uint64_t block);
uint64_t segment_oldest(const struct drive *d);
void segment_append_pump(struct drive *d);
/* Return: 0 placed; -EAGAIN later; -ENOSPC never as things are. */
int segment_place(struct drive *d, struct store_op *op);
/* False: no record of that size can be placed before a segment is free. */
bool segment_has_room(const struct drive *d, uint32_t blocks);
/* What a restart finds in it is just what the index points to. */
bool segment_is_clean(const struct segment *seg);
void segment_seal_pump(struct drive *d);
void segment_log_close(struct seg_log *log);
void segment_go(struct segment *seg, enum segment_state to);
/* Into the ring of free ones; first: it has its place on the drive and is used next. */
void segment_free_add(struct drive *d, uint32_t segment_index, bool first);
void segment_flushed(struct drive *d, int res);
void segment_checkpoint_pump(struct drive *d, bool idle);
struct seg_log *segment_log_open(const struct drive *d);
void segment_footer_build(struct seg_log *log, uint32_t entries, uint32_t blocks,
			  enum fmt_segment_state state, uint8_t *out);

/* clean.c */
/* segment_count: none gives least_blocks. */
uint32_t clean_victim(const struct drive *d, uint32_t least_blocks);
/* Blocks that a cleaning must give for the operation that waits first. */
uint32_t clean_least(const struct drive *d);
/* Some older segment may hold records that this one's tombstones cover. */
bool clean_older_unclean(const struct drive *d, uint64_t generation);

/* carry.c */
void carry_begin(struct drive *d);
/* An entry of the segment that goes is to be kept from now on. In EVICT_CARRY. */
void carry_late(struct drive *d, uint32_t entry);
/* True: all that was chosen is carried, or given up. */
bool carry_pump(struct drive *d);
void carry_written(struct store_op *op);
/* Its write failed. */
void carry_lost(struct store_op *op);
void carry_io_done(struct drive *d);
/* After a failed flush: true if that record (kind: enum fmt_kind) is a copy; the old place counts
 * again. */
bool carry_take_back(struct drive *d, const struct kv_key *key, uint64_t sequence, uint8_t kind);
/* The entry of the index whose record is entry i of the segment that goes, or INDEX_NONE. A value
 * that a failed flush took back is listed as deleted, but known as one that can't be read. */
uint32_t carry_entry(const struct drive *d, uint32_t i, struct kv_key *key);
/* The drive is given up. */
void carry_abandon(struct drive *d);

/* evict.c */
void evict_go(struct drive *d, enum evict_state to);
void evict_abandon(struct drive *d);
void evict_pump(struct drive *d);
bool evict_possible(const struct drive *d);
/* An entry has a new place, or none that is kept any more. */
void evict_keep_placed(struct store *st, uint32_t entry);
void evict_keep_gone(struct store *st, const struct index_place *place, bool lost);
void evict_free(struct drive *d, uint32_t segment_index);

#endif
