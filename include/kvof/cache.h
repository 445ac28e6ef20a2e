/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof: the cache an inference engine uses. Values are blocks of KV cache under content keys; tiers
 * are DRAM in this process, drives of this machine, and arrays over NVMe-oF.
 *
 * Any thread may call; a call posts a message to the cache's own loop and returns. Results are
 * drained by the engine; one eventfd says when. Only open, close, match, flush and wait block, and
 * each ends by a stated time; pin, hint and stat wait for the cache's thread, microseconds.
 *
 * A load delivers exactly the bytes of one completed save of the same identity, or says why not; it
 * never delivers other bytes as if they were good (a buffer whose load failed holds noise). Every
 * operation ends by its deadline.
 *
 * Limits (docs/cache.md): KVOF_BATCHES_MAX batches in flight, KVOF_BLOCKS_MAX blocks in flight or
 * with results not drained yet; more is refused with -EBUSY, never a stall. KVOF_IOV_MAX pieces a
 * block.
 *
 * In a forked child every call answers -ESHUTDOWN at once; close only forgets the handle.
 *
 * Errors are negative errno values; enum kvof_reason names why a block was not delivered.
 */
#ifndef KVOF_CACHE_H
#define KVOF_CACHE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvof_cache;

#define KVOF_ID_BYTES 32
#define KVOF_BATCHES_MAX 256
#define KVOF_BLOCKS_MAX 4096
#define KVOF_IOV_MAX 256
#define KVOF_FIELDS_MAX 64
#define KVOF_TARGETS_MAX 16
#define KVOF_FLASH_MAX 16
#define KVOF_LAYERS_MAX 2048
#define KVOF_GROUPS_MAX 16
#define KVOF_PRIORITY_MAX 100           /* priorities are -100 to 100 */

/* Identity of one block: the full SHA-256 of docs/formats.md. Its first 16 bytes are the key. */
struct kvof_id {
	uint8_t byte[KVOF_ID_BYTES];
};

/* One field of the model's identity, e.g. {"weights", "sha256:..."}; NUL-ended texts. */
struct kvof_field {
	const char *name;
	const char *value;
};

/* Everything is borrowed until kvof_cache_open() returns. 0 or NULL: the default that is named. */
struct kvof_cache_opts {
	uint32_t struct_bytes;          /* sizeof(struct kvof_cache_opts): room to grow */
	const char *target;             /* tcp://ADDR:PORT[/NQN][?nsid=N]; NULL: DRAM only */
	const struct kvof_field *fields;/* identity of the model, in any order, names unique */
	uint32_t field_count;           /* at most KVOF_FIELDS_MAX */
	const char *model_id;           /* required; names the list of this model's domains, and is
					 * part of the identity as the field "model_id" */
	uint32_t block_tokens;          /* 256; part of the identity as the field "block_tokens" */
	uint32_t part_bytes;            /* 4 MiB: largest value stored, its footer included;
					 * 4 KiB .. 64 MiB */
	uint64_t dram_bytes;            /* exact cap of the DRAM tier; 0: none */
	uint64_t deadline_ns;           /* 2 s: for operations, and to reach the array at open */
	uint32_t queues, depth;         /* of the array; 4 and 32 */
	uint32_t strict;                /* 1: refuse to open when the array is out of reach, or when
					 * the domains in use of this model all differ from ours */
	uint32_t digests;               /* bit 0 header, bit 1 data digests on the wire */
	uint64_t lease_ns;              /* 5 s: how long DRAM keeps what match found */
	const char *host_nqn;           /* name of this host for the array's allow-list; NULL: made
					 * from the machine's id */
	/* More tiers. Order of asking: DRAM, flash, arrays. */
	const char *const *targets;     /* arrays; target is the first if both are given */
	uint32_t target_count;          /* at most KVOF_TARGETS_MAX, target included */
	uint32_t flash_count;           /* at most KVOF_FLASH_MAX */
	const char *const *flash;       /* PATH[,size=S][,rate=S] each: drives or files of this
					 * machine, one store over all. rate: bytes read a second
					 * and drive at most */
	uint64_t flash_bytes;           /* cap of the flash tier; 0: all there is */
	uint32_t flash_format;          /* 1: take drives that hold something else */
	uint32_t admission;             /* KVOF_ADMIT_*: what a tier takes at once, or at the
					 * second touch only */
	/* Saves. 0: answered by the slowest tier. Else answered when they are in DRAM, and at most
	 * so many bytes wait there to be written to flash and arrays; needs dram_bytes. */
	uint64_t behind_bytes;
	uint32_t behind_full;           /* that is full: 0 answer when written, 1 drop, counted */
	uint32_t plain;                 /* 1: the plain loop though io_uring would work */
	uint64_t staging_bytes;         /* 256 MiB: of loads of restores in flight */
	uint64_t presence_ns;           /* 30 s: how long an answer of a tier is believed */
	uint32_t index_blocks;          /* how many blocks the prefix tree remembers; default:
					 * 1 Mi with flash or an array, else what DRAM can hold */
	uint32_t layer_count;           /* of a block, 1 to KVOF_LAYERS_MAX */
	const uint64_t *layer_bytes;    /* [layer_count] of a block; NULL: equal layers */
	const char *policy;             /* of DRAM: "lru", "s3fifo", ...; NULL: the default */
	uint32_t event_count;           /* room for events (kvof_cache_events()); 0: none kept */
	uint32_t unused;                /* 0 */
};

#define KVOF_ADMIT_FLASH_SECOND 1u      /* flash takes a block when it is touched again */
#define KVOF_ADMIT_REMOTE_SECOND 2u     /* arrays as well */

/* Where a block was found; index of counters. */
enum kvof_tier {
	KVOF_TIER_NONE,
	KVOF_TIER_DRAM,
	KVOF_TIER_REMOTE,               /* any array */
	KVOF_TIER_FLASH,                /* drives of this machine */
	KVOF_TIER_COUNT
};

/* "", "dram", "remote", "flash"; "unknown" beyond the list. */
const char *kvof_tier_name(enum kvof_tier tier);

enum kvof_reason {
	KVOF_OK = 0,
	KVOF_ABSENT,                    /* no tier has it (whole) */
	KVOF_CORRUPT,                   /* footer, length or checksum wrong, or media error */
	KVOF_IDENTITY,                  /* another identity under the same 16-byte key */
	KVOF_LATE,                      /* deadline */
	KVOF_CANCELED,
	KVOF_UNREACHABLE,               /* the array is away */
	KVOF_SHORT,                     /* the buffer is smaller than the value: true length told */
	KVOF_EXISTS,                    /* save: it was there already (counts as saved) */
	KVOF_FULL,                      /* save: no room */
	KVOF_ERROR,
	KVOF_REASON_COUNT
};

/* "ok", "absent", "corrupt", ...; "unknown" beyond the list. */
const char *kvof_reason_name(enum kvof_reason reason);

enum kvof_op { KVOF_LOAD, KVOF_SAVE, KVOF_EXISTS_OP, KVOF_DELETE };

/*
 * One block of a batch. Load: iov is room; bytes should be the length that was saved. A larger room
 * works (what lies behind the value is noise); a smaller one is KVOF_SHORT. Save: iov is the value;
 * it is stored only if absent. Exists, delete: iov NULL, iov_count and bytes 0.
 */
struct kvof_block {
	struct kvof_id id;
	const struct iovec *iov;        /* array copied; memory leased until the block's result has
					 * come and was not busy, or its release has come */
	uint32_t iov_count;
	uint64_t bytes;                 /* sum of iov */
};

struct kvof_result {
	uint64_t batch;                 /* what kvof_cache_submit() gave */
	uint32_t index;                 /* of the block in its batch */
	uint32_t reason;                /* enum kvof_reason */
	uint64_t value_bytes;           /* load: true stored length (also with KVOF_SHORT); save: of
					 * the block; else 0 */
	uint32_t busy;                  /* 1: the buffer is not free yet; a second result of this
					 * block, with KVOF_RESULT_RELEASED, says when */
	uint32_t flags;
	uint64_t wait_ns, verify_ns;    /* submit to answer; of it, checking the bytes */
	uint32_t tier;                  /* enum kvof_tier */
	uint32_t unused;
};

#define KVOF_RESULT_LAST 1u             /* the last result of its batch, releases not counted */
#define KVOF_RESULT_RELEASED 2u         /* not a result: the buffer of a busy one is free now */
#define KVOF_RESULT_LAYER 4u            /* of a restore: layer number `index` of all its blocks */
#define KVOF_RESULT_REQUEST 8u          /* a restore is over: value_bytes is its usable blocks */

/**
 * kvof_cache_open() - starts the cache's loop, takes its memory, connects, compares domains
 * @opts: every field is checked; the first wrong one is named in why
 * @why:  filled with one sentence, "" when there is nothing to say. Not strict: a domain that
 *        differs, or an array out of reach, is told here while the call succeeds
 * @out:  the cache; given back by kvof_cache_close()
 *
 * Blocks up to deadline_ns. Not strict and out of reach: opens, answers misses, and uses the array
 * once it is there.
 * Return: 0; -EINVAL a wrong option, or strict and the domain differs; -ETIMEDOUT, -ECONNRESET,
 * -EPROTO, -EIO strict and an array can't be used; of flash -EBUSY another process has the drives,
 * -ENOENT, -EPROTO something else lies there, -ENOSPC, -EIO; -ENOMEM; -EMFILE.
 */
int kvof_cache_open(const struct kvof_cache_opts *opts, char why[256], struct kvof_cache **out);

/**
 * kvof_cache_close() - ends everything in flight, then the loop; takes the handle
 *
 * Waiting calls of other threads return with KVOF_CANCELED first. When it returns no byte of a
 * leased buffer is written any more; results not drained are gone. Blocks for at most about a
 * quarter of a second beyond what is in hand.
 */
void kvof_cache_close(struct kvof_cache **cache);

/**
 * kvof_cache_ids() - identities of the full blocks of a token sequence, chained
 * @ids: filled, n_tokens / block_tokens of them
 * @parent: identity that the first block continues; NULL: the sequence starts here
 *
 * Pure; no I/O. Costs one SHA-256 of about 4 bytes a token. A tail shorter than a block has none.
 * Return: 0; -EINVAL; -ESHUTDOWN.
 */
int kvof_cache_ids(const struct kvof_cache *cache, const int32_t *tokens, size_t n_tokens,
		   const struct kvof_id *parent, struct kvof_id *ids);

/* Identity from an engine's own hash (any bytes, any length), framed into the same function; never
 * equal to one made from tokens. Return: 0; -EINVAL; -ESHUTDOWN. */
int kvof_cache_id_of(const struct kvof_cache *cache, const void *hash, size_t bytes,
		     struct kvof_id *id);

/**
 * kvof_cache_match() - how many leading blocks are present whole
 * @deadline_ns: from now; 0: default. What is not answered by then counts as absent
 *
 * Answered from memory as far as what is where is known and not older than presence_ns; all
 * questions about the rest go to flash and arrays at once. Blocks found in DRAM stay there for
 * lease_ns, so that a load after it is a hit; what only an array has may have gone meanwhile
 * (another host's delete, eviction): the load then says so, and the next match knows. Not ordered
 * after saves in flight. What is known is looked up in microseconds, in the caller's thread where
 * the cache's own sleeps.
 * Return: 0 and *n_match; -EINVAL; -EBUSY; -ESHUTDOWN.
 */
int kvof_cache_match(struct kvof_cache *cache, const struct kvof_id *ids, uint32_t n_ids,
		     uint64_t deadline_ns, uint32_t *n_match);

/* One row of blocks of a request: full attention, a sliding window, side data, a rank's share. */
struct kvof_group {
	const struct kvof_id *ids;      /* [n_blocks] */
	uint32_t window_blocks;         /* only so many last blocks of a prefix are needed: 1 for
					 * side data, the window of sliding attention; 0: all */
	uint32_t unused;                /* 0 */
};

/**
 * kvof_cache_match_groups() - the longest prefix, in blocks, that every group has
 * @n_blocks: of each group's row
 *
 * Of a prefix of n blocks a group needs [0, n), or the last window_blocks of it: those are present
 * together or the prefix does not count. Else as kvof_cache_match().
 * Return: as kvof_cache_match(); -EINVAL also no group, or more than KVOF_GROUPS_MAX.
 */
int kvof_cache_match_groups(struct kvof_cache *cache, const struct kvof_group *groups,
			    uint32_t group_count, uint32_t n_blocks, uint64_t deadline_ns,
			    uint32_t *n_match);

/* DRAM never evicts a pinned block, nor does flash up to half of it, whether it is there already or
 * comes later. Arrays know no pins: there it is asked about once a minute, which is a use. A pin
 * ends with the cache. Pins are counted. At most half of index_blocks can be pinned.
 * Return: 0; -EBUSY too many (none of these is pinned); -EINVAL, also off without on;
 * -ESHUTDOWN. */
int kvof_cache_pin(struct kvof_cache *cache, const struct kvof_id *ids, uint32_t n_ids, int on);

struct kvof_hint {
	uint32_t struct_bytes;          /* sizeof(struct kvof_hint): room to grow */
	int32_t priority;               /* -100 goes first, 0 as all do, 100 stays longest */
	uint64_t ttl_ns;                /* from now on; then it is served no more, and deleted from
					 * every tier. 0: no end */
};

/* Sets both for each block, also for blocks that come later.
 * Return: 0; -EBUSY too many with an end; -EINVAL; -ESHUTDOWN. */
int kvof_cache_hint(struct kvof_cache *cache, const struct kvof_id *ids, uint32_t n_ids,
		    const struct kvof_hint *hint);

/* Gives the lease of one match back early, not that of another. Return: 0; -EINVAL; -ESHUTDOWN. */
int kvof_cache_unlease(struct kvof_cache *cache, const struct kvof_id *ids, uint32_t n_ids);

/**
 * kvof_cache_submit() - starts a batch; its results are drained
 * @deadline_ns: from now; 0: default
 *
 * Operations on one identity take effect in the order of their submits (what ended late or canceled
 * may still take effect, or not). A batch of saves starts with its last block, so that a head is
 * never there without having been offered its tail.
 * Return: 0 and *batch; -EINVAL; -EBUSY a limit of this header is reached: drain first;
 * -ESHUTDOWN.
 */
int kvof_cache_submit(struct kvof_cache *cache, enum kvof_op op, const struct kvof_block *blocks,
		      uint32_t n_blocks, uint64_t deadline_ns, uint64_t *batch);

/* What one batch does otherwise. */
#define KVOF_UNORDERED 1u               /* its blocks are not consecutive ones of one sequence */
#define KVOF_SKIP_READ 2u               /* loads and questions ask no tier: absent */
#define KVOF_SKIP_WRITE 4u              /* saves go to DRAM only */
#define KVOF_WAIT_ALL 8u                /* saves are answered by the slowest tier, whatever
					 * behind_bytes is */
#define KVOF_FLAGS_ALL 15u

/* kvof_cache_submit() with flags. Return: the same; -EINVAL also for a flag that is not known or
 * has no effect on this kind of batch. */
int kvof_cache_submit_flags(struct kvof_cache *cache, enum kvof_op op,
			    const struct kvof_block *blocks, uint32_t n_blocks,
			    uint64_t deadline_ns, uint32_t flags, uint64_t *batch);

/* Every block of the batch (0: of all batches) without a result ends with KVOF_CANCELED, soon;
 * after its result (and release, if busy) no byte moves. A batch that is over is left alone.
 * Return: 0; -EBUSY no memory; -ESHUTDOWN. */
int kvof_cache_cancel(struct kvof_cache *cache, uint64_t batch);

/* Readable while results wait (and now and then a moment too long: a drain then gives 0). Owned by
 * the cache; never read or closed by the caller.
 * Return: the descriptor; -ESHUTDOWN. */
int kvof_cache_fd(const struct kvof_cache *cache);

/* Takes up to n results, in the order in which they came; never blocks. Return: how many;
 * -EINVAL; -ESHUTDOWN. */
int kvof_cache_drain(struct kvof_cache *cache, struct kvof_result *out, uint32_t n);

/* Waits until all that was saved before is written to every tier that is to have it, or was counted
 * as dropped (behind_dropped). deadline_ns: from now; 0: default.
 * Return: 0; -ETIMEDOUT; -EINVAL; -ESHUTDOWN. */
int kvof_cache_flush(struct kvof_cache *cache, uint64_t deadline_ns);

/* A tier has taken a block, or has it no more. */
struct kvof_event {
	struct kvof_id id;
	uint32_t tier;                  /* enum kvof_tier */
	uint32_t stored;                /* 1: has it now; 0: removed */
};

/**
 * kvof_cache_events() - takes up to n events, in the order in which they came; never blocks
 * @lost: those since the last call that found no room: what is where is to be asked anew
 *
 * Of this process's doing and learning: DRAM and flash tell of each block; an array forgets and
 * takes from other hosts without telling. The cache's descriptor does not speak of events.
 * Return: how many; -EINVAL, also with event_count 0; -ESHUTDOWN.
 */
int kvof_cache_events(struct kvof_cache *cache, struct kvof_event *out, uint32_t n,
		      uint64_t *lost);

/* Starts a batch and waits for all of it: results[i] is that of blocks[i]. A busy buffer's release
 * is drained like any other, with the batch number that the results carry. For engines without an
 * event loop. Return: as kvof_cache_submit(). */
int kvof_cache_wait(struct kvof_cache *cache, enum kvof_op op, const struct kvof_block *blocks,
		    uint32_t n_blocks, uint64_t deadline_ns, struct kvof_result *results);

/* Counters since open; what is said to be "now" is a level. Index [4]: enum kvof_tier; of reason:
 * enum kvof_reason, of loads only. misses: loads that delivered nothing. */
struct kvof_cache_stat {
	uint64_t hits[4], misses, reason[16];
	uint64_t tier_reason[4][16];    /* what each tier answered to loads: a damaged block that
					 * the next tier served is seen here */
	uint64_t loaded_bytes[4];       /* delivered */
	uint64_t device_bytes[4];       /* read at the device or over the wire for it */
	uint64_t saved_bytes, dram_used_bytes, dram_blocks, dram_pinned_bytes;
	uint64_t wait_ns, verify_ns;
	uint64_t remote_reconnects, remote_live, remote_count, late_releases;
	uint64_t dram_evicted, dram_refused;
	uint64_t flash_used_bytes, flash_blocks, flash_evicted;
	uint64_t promoted[4], promotion_refused[4]; /* by the tier that took a copy, or did not */
	uint64_t admission_refused[4];  /* first touches that were not written */
	uint64_t behind_bytes, behind_blocks;       /* waiting to be written, now */
	uint64_t behind_written[4], behind_dropped[4];
	uint64_t behind_full;           /* saves that had to wait, or were dropped, for room */
	uint64_t touches, touches_absent, touches_dropped;  /* heads kept on the arrays */
	uint64_t prefetched, prefetched_hits, prefetched_wasted;
	uint64_t staging_bytes, staging_waits;      /* now; requests that had to wait */
	uint64_t restores, restores_late;
	uint64_t index_blocks, index_forgotten;     /* of the prefix tree; now, and since open */
	uint64_t match_known, match_asked;          /* blocks answered from the tree; asked */
	uint64_t presence_wrong;        /* believed present and absent when loaded */
	uint64_t pinned_blocks, expired;            /* now; TTLs that ended */
	uint64_t events_lost;
	uint64_t pinned_flash_bytes;    /* kept there, now, with headers and padding */
	uint64_t pins_refused;          /* times that flash was told to keep more than it may */
	uint64_t pins_lost;             /* values of pinned blocks that flash lost all the same */
};
/* Asks the cache's loop, any thread. Return: 0; -EINVAL; -ESHUTDOWN. */
int kvof_cache_stat(struct kvof_cache *cache, struct kvof_cache_stat *out);

#ifdef __cplusplus
}
#endif

#endif
