/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof: the cache an inference engine uses. Values are blocks of KV cache under content keys; tiers
 * are DRAM in this process and arrays over NVMe-oF.
 *
 * Any thread may call; a call posts a message to the cache's own loop and returns. Completions are
 * drained by the engine from one eventfd. No call blocks but open, close and the _wait forms.
 *
 * A load delivers exactly the bytes of one completed save of the same identity, or says why not; it
 * never delivers other bytes. Every operation ends by its deadline.
 *
 * Errors are negative errno values; kvof_reason names why a block was not delivered.
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

/* Identity of one block: the full SHA-256 of docs/formats.md (design D3). Its first 16 bytes
 * make the key. */
struct kvof_id {
	uint8_t byte[KVOF_ID_BYTES];
};

/* One field of the model's identity, e.g. {"weights", "sha256:..."}; both NUL-ended, framed by
 * length. */
struct kvof_field {
	const char *name;
	const char *value;
};

struct kvof_cache_opts {
	uint32_t struct_bytes;          /* sizeof(struct kvof_cache_opts): room to grow */
	const char *target;             /* tcp://ADDR:PORT[/NQN][?nsid=N]; NULL: DRAM only */
	/* identity of the model, in any order (sorted by name inside) */
	const struct kvof_field *fields;
	uint32_t field_count;
	/* also one of the fields: names the domain list of this model */
	const char *model_id;
	uint32_t block_tokens;          /* 0: 256 */
	uint32_t part_bytes;            /* largest part with its footer; 0: 4 MiB */
	uint64_t dram_bytes;            /* exact cap of the DRAM tier; 0: none */
	uint64_t deadline_ns;           /* default for operations; 0: 2 s */
	uint32_t queues, depth;         /* of each array; 0: 4 and 32 */
	/* 1: refuse to open when another domain of this model differs */
	uint32_t strict;
	uint32_t digests;               /* bit 0 header, bit 1 data digests on the wire */
};

enum kvof_reason {
	KVOF_OK = 0,
	KVOF_ABSENT,                    /* no tier has it (whole) */
	KVOF_CORRUPT,                   /* footer, length or checksum wrong, or media error */
	KVOF_IDENTITY,                  /* another identity under the same 16-byte key */
	KVOF_LATE,                      /* deadline */
	KVOF_CANCELED,
	KVOF_UNREACHABLE,               /* the array is away */
	/* the buffer is smaller than the value: true length is reported */
	KVOF_SHORT,
	KVOF_EXISTS,                    /* save: it was there already (counts as saved) */
	KVOF_FULL,                      /* save: no room */
	KVOF_ERROR,
	KVOF_REASON_COUNT
};

const char *kvof_reason_name(enum kvof_reason reason);   /* "ok", "absent", "corrupt", ... */

enum kvof_op { KVOF_LOAD, KVOF_SAVE, KVOF_EXISTS_OP, KVOF_DELETE };

/* One block of a batch. */
struct kvof_block {
	struct kvof_id id;
	/* caller's memory, leased until the block's result is drained and not busy */
	const struct iovec *iov;
	uint32_t iov_count;
	uint64_t bytes;                 /* sum of iov: save, the value; load, the room */
};

struct kvof_result {
	uint64_t batch;                 /* what kvof_cache_submit() returned */
	uint32_t index;                 /* of the block in its batch */
	uint32_t reason;                /* enum kvof_reason */
	uint64_t value_bytes;           /* true stored length */
	/* 1: the buffer is not free yet; a second result with KVOF_RELEASED follows */
	uint32_t busy;
	/* bit 0: last result of its batch; bit 1: this is the release event */
	uint32_t flags;
	uint64_t wait_ns, verify_ns;    /* time from submit to data, and checking */
	uint32_t tier;                  /* 0 none, 1 DRAM, 2 remote */
	uint32_t unused;
};

#define KVOF_RESULT_LAST 1u
#define KVOF_RESULT_RELEASED 2u

/* See src/cache/api.c for costs. why: sentence of at most 255 bytes, also names a differing
 * field. */
int kvof_cache_open(const struct kvof_cache_opts *opts, char why[256], struct kvof_cache **out);
void kvof_cache_close(struct kvof_cache **cache);

/* Identities of the full blocks of a token sequence: ids[n_tokens / block_tokens], chained.
 * parent NULL: start. */
int kvof_cache_ids(const struct kvof_cache *cache, const int32_t *tokens, size_t n_tokens,
		   const struct kvof_id *parent, struct kvof_id *ids);
/* Identity from an engine's own hash (any bytes), framed into the same function. */
int kvof_cache_id_of(const struct kvof_cache *cache, const void *hash, size_t bytes,
		     struct kvof_id *id);

/* How many leading ids are present whole. Asks DRAM, then one pipelined batch of Exist. Blocks
 * till deadline. */
int kvof_cache_match(struct kvof_cache *cache, const struct kvof_id *ids, uint32_t n_ids,
		     uint64_t deadline_ns, uint32_t *n_match);

/* Starts a batch; blocks and iov arrays are copied, buffers are leased. deadline_ns: relative; 0:
 * default. Return: 0 and *batch; -EINVAL; -ESHUTDOWN; -EBUSY more than the stated limit in
 * flight. */
int kvof_cache_submit(struct kvof_cache *cache, enum kvof_op op, const struct kvof_block *blocks,
		      uint32_t n_blocks, uint64_t deadline_ns, uint64_t *batch);
/* Every block of the batch not done yet ends with KVOF_CANCELED; after its result (and release)
 * no byte moves. */
int kvof_cache_cancel(struct kvof_cache *cache, uint64_t batch);
/* Readable while results wait. Owned by the cache. */
int kvof_cache_fd(const struct kvof_cache *cache);
/* Takes up to n results, never blocks. Return: number. Results of one batch come in the order
 * they finish. */
int kvof_cache_drain(struct kvof_cache *cache, struct kvof_result *out, uint32_t n);
/* Starts a batch and waits for all of it: results in request order. For engines without an event
 * loop. */
int kvof_cache_wait(struct kvof_cache *cache, enum kvof_op op, const struct kvof_block *blocks,
		    uint32_t n_blocks, uint64_t deadline_ns, struct kvof_result *results);

struct kvof_cache_stat {
	uint64_t hits[3], misses, reason[16];
	uint64_t loaded_bytes[3], saved_bytes, dram_used_bytes;
	uint64_t wait_ns, verify_ns;
	uint64_t remote_reconnects;
};
int kvof_cache_stat(struct kvof_cache *cache, struct kvof_cache_stat *out);

#ifdef __cplusplus
}
#endif

#endif
