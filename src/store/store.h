/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flash store: values under keys of 1 to 16 bytes, appended to segments on N drives, index in
 * memory.
 *
 * Promises (docs/formats.md has the crash table): what get delivers is exactly the bytes of one
 * acknowledged put of that key, else -ENOENT or -EBADMSG; a kill loses nothing acknowledged;
 * nothing torn is served, nothing deleted comes back; bytes on drives never pass the cap; a dead
 * drive costs its own values only.
 *
 * No copy between drive and socket: a value lives in a store_buf, whose pieces the wire fills or
 * sends directly and the drive writes or reads directly (the record's header lies in front of the
 * first piece).
 *
 * Owned by one loop. Every call is made on it; completions run on it, never inside the call.
 */
#ifndef KVOF_STORE_STORE_H
#define KVOF_STORE_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/kv.h"
#include "base/list.h"
#include "base/must.h"
#include "loop/loop.h"

struct store;
struct disk;
struct buf_pool;
struct slow_rate;

#define STORE_DRIVES_MAX 16
#define STORE_SHARDS_MAX 16          /* of a namespace; loops of an array */
#define STORE_VALUE_BYTES_LIMIT (64 * MiB)
#define STORE_CARRY_NONE UINT32_MAX

struct store_drive {
	const char *path;            /* file or block device; "mem" for memory */
	uint64_t bytes;              /* size=: make a missing file; 0: must exist */
	/* an open part of a drive (store/set.h), taken by the opener; path is then for messages
	 * only. NULL: opened by path */
	struct disk *disk;
	bool missing;                /* a part of a drive that a degraded set is without */
	/* of the drive that this is a part of, shared with the others of it; NULL: its own */
	struct slow_rate *rate;
	/* counted down when the part is closed; NULL: nobody asks */
	_Atomic uint32_t *open;
};

struct store_opts {
	struct store_drive drive[STORE_DRIVES_MAX];
	unsigned drive_count;
	/* hard limit over all drives, headers and padding included; 0: all */
	uint64_t cap_bytes;
	uint32_t segment_bytes;      /* 0: chosen from drive size and value_bytes_max */
	uint32_t value_bytes_max;    /* 512 KiB .. 64 MiB; 0: 8 MiB */
	/* 0: what fits 1/256 of the drives at 48 bytes a key, at least 65536 */
	uint64_t index_keys_max;
	/* pool of value buffers; 0: 64 MiB, at least 4 values of the limit */
	uint64_t buffer_bytes;
	/* the pool of the store's loop (store/buf.h), outlives the store; NULL: one of its own */
	struct buf_pool *pool;
	/* cache namespace: oldest segments go when full; else -ENOSPC */
	bool evict;
	/* of what is stored, so much may be written once more to keep values that are asked for;
	 * 0: 7; STORE_CARRY_NONE; at most 50 */
	uint32_t carry_percent;
	/* values stay in a small part of the drives until they are asked for; see policy.h */
	bool second_touch;
	unsigned drive_depth;        /* reads in flight, a drive, at most 256; 0: measured */
	/* values and blocks are read from each drive no faster (slow.h); 0: no limit */
	uint64_t drive_read_bytes_per_s;
	uint64_t scrub_bytes;        /* read again a second and drive, at most; 0: no scrub */
	/* of its size, so much may be written to each drive in any day; 100 is one drive write a
	 * day; 0: no limit */
	uint32_t write_budget_percent;
	bool keep_blocks;            /* do not discard what is free on the drives */
	bool ack_durable;            /* put answers after a flush of its drive */
	bool format;                 /* overwrite what is there */
	bool degraded;               /* open without the drives that are missing */
	/* values above 1 MiB span the drives, in records of at most that; may change from open to
	 * open */
	bool stripe;
	/* a blank drive takes the place of one of the set that is not given; nothing else
	 * changes */
	bool replace;
	/* of a store made by this open, and expected of one that is there; all zero: any */
	uint8_t uuid[16];
};

/* Says in words which drive and field was wrong when store_open() fails, or what recovery found. */
struct store_report {
	char text[256];
	uint64_t keys, segments, dropped_records, metadata_bytes_read;
	uint64_t open_ns;
	unsigned drives;
	bool fresh;
	bool can_degrade;              /* refused; opts.degraded would open it without the drive */
};

/* What the report of a store that was opened says, or of the sum of several, in its text. */
void store_report_say(struct store_report *report);

/**
 * store_open() - opens or makes a store; control path, blocks, before loop_run()
 *
 * A drive without a superblock is formatted; one with a foreign or newer one is refused (-EPROTO)
 * unless format. Reads superblocks, segment footers, and the record headers of the segments still
 * open: no data.
 * Return: 0; -EBUSY in use elsewhere; -EINVAL (too small, a directory, mixed set); -ENOENT missing
 * drive; -EPROTO; -EIO; -ENOSPC; -ENOMEM. report->text says which and what to do.
 */
int store_open(const struct store_opts *opts, struct loop *loop, struct store **out,
	       struct store_report *report);

/* Bytes of the smallest part (or drive) that a store with values up to this size opens on. */
uint64_t store_part_bytes_min(uint32_t value_bytes_max);

/* Completes after all operations in flight; seals what is open, marks a clean stop. done(arg) once.
 * The pointer is taken at once. In-flight operations started before still complete normally. */
void store_close(struct store **st, void (*done)(void *arg), void *arg);

/* --- buffers -------------------- */

/* A leased buffer for one value. piece[0..piece_count) are exactly payload_bytes. */
struct store_buf {
	struct iovec *piece;
	unsigned piece_count;
	uint32_t payload_bytes;
	/* the store's */
	struct iovec *chunk;
	unsigned chunk_count;
	struct store_buf *next;
};

struct store_buf_wait {
	struct list_link link;
	uint32_t payload_bytes;
	bool plain;                                  /* store/buf.h */
	void (*ready)(struct store_buf_wait *w, struct store_buf *buf);
};

/* store/buf.h for the pool that this store uses. Room for payload_bytes, now or later: ready()
 * comes on a later turn, first come first served. */
void store_buf_take(struct store *st, struct store_buf_wait *w);
/* Gives up waiting; true: ready() will not come. False: it was not waiting. */
bool store_buf_wait_cancel(struct store *st, struct store_buf_wait *w);
void store_buf_give(struct store *st, struct store_buf **buf);

/* --- operations -------------------- */

enum store_put_mode { STORE_PUT_ANY, STORE_PUT_IF_ABSENT, STORE_PUT_IF_PRESENT };

struct store_op {
	struct list_link link;                       /* the store's, while in flight */
	struct kv_key key;
	enum store_put_mode mode;                    /* put */
	/* put: the value, leased. get: NULL, then filled, caller gives back; or the caller's,
	 * leased: the value is read into it, and it stays the caller's whatever comes */
	struct store_buf *buf;
	uint32_t value_bytes;                        /* get, exists: true stored length */
	/* get: no more than this is needed (short Retrieve) */
	uint32_t want_bytes;
	void (*done)(struct store_op *op, int res);
	uint64_t lease[26];                          /* the store's, while in flight */
	uint64_t space_lease[8];                     /* the space's, while in flight */
};

/* res: 0; -EEXIST (if absent); -ENOENT (if present); -ENOSPC (full, or no write budget left); -EIO.
 * Puts of one key take effect in the order of the calls; a get sees every put acknowledged before
 * it was called. Zero bytes are a value. */
void store_put(struct store *st, struct store_op *op);
/* res: 0, buf holds min(want_bytes, value_bytes); -ENOENT; -EBADMSG (checksum: the entry is
 * dropped); -EIO; -EBUSY: the value takes another number of blocks than the caller's buffer, and
 * value_bytes says how long it is. With want_bytes 0 no device is read and buf is NULL. */
void store_get(struct store *st, struct store_op *op);
/* res: 0; -ENOENT; -EIO. Logged before it is answered. */
void store_delete(struct store *st, struct store_op *op);
/* res: 0; -EIO. What was acknowledged before is durable. */
void store_flush(struct store *st, struct store_op *op);

/* Memory only. True when present; counts as a hit for eviction. */
bool store_exists(struct store *st, const struct kv_key *key, uint32_t *value_bytes);

/* store_exists() of many keys: what nearer caches served stays here as well. Return: how many are
 * there. */
unsigned store_touch(struct store *st, const struct kv_key *keys, unsigned key_count);

/*
 * Until it is told otherwise the value of this key does not go for room, however long nobody asks
 * for it; overwritten or carried forward, it stays so. Memory only: after an open nothing is kept.
 * A store that evicts, and does not stripe. Return: 0, also when nothing changes; -ENOENT no such
 * value, or its segment goes just now; -ENOSPC a drive would keep more than it may
 * (store_kept.most_bytes, over all drives).
 */
int store_keep(struct store *st, const struct kv_key *key, bool on);

struct store_kept {
	uint64_t bytes, most_bytes;          /* with headers and padding */
	uint64_t lost;                       /* values: drives that failed, damage, no room */
};
void store_kept(const struct store *st, struct store_kept *out);

/* Keys in order, from `from` (inclusive; len 0: from the first), at most key_count. Each key that
 * lives through a whole scan is seen exactly once. Return: number filled. No device is read. */
unsigned store_list(struct store *st, const struct kv_key *from, struct kv_key *keys,
		    uint32_t *value_bytes, unsigned key_count);

struct store_stat {
#define STAT(name, is_bytes, text) uint64_t name;
#include "tbl/stat.def"
	unsigned drives, drives_failed;
	uint32_t value_bytes_max, segment_bytes;
	uint64_t index_keys_max, index_bytes;    /* room for keys, and what it costs */
	uint8_t uuid[16];            /* of the set of drives; made at format, never changed */
};
void store_stat(const struct store *st, struct store_stat *out);

/* The host was told not to trust a drive any more (tests, operator): its values become misses. */
void store_drive_retire(struct store *st, unsigned drive_index);

#endif
