/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof: restoring the prefix of one request, layer by layer and by its deadline, with the split
 * between what is loaded and what the engine computes itself (docs/restore.md).
 *
 * A request is the blocks of one prefix in order, with the engine's own buffers. Two modes:
 *
 *   PREFIX  blocks [0, k) are loaded, layer 0 of all of them first; the engine computes [k, n) and
 *           its suffix behind them, layer by layer as layers become ready. kvof chooses k
 *   ENDS    blocks are loaded from the last to the first, while the engine computes from the first;
 *           they meet where that is soonest. The engine asks kvof_restore_next() for each step
 *
 * Life of a request: begin, any number of next, computed and drained events, end. Every request
 * that began is ended once, by kvof_restore_end() or by closing the cache.
 *
 * Buffers are leased from begin until the event KVOF_RESULT_REQUEST has come and was not busy, or
 * the second one, with KVOF_RESULT_RELEASED, or until kvof_restore_end() has returned; but for
 * blocks that a step hands to the engine: these are the engine's from that step on.
 *
 * Any thread may call. Errors are negative errno values.
 */
#ifndef KVOF_RESTORE_H
#define KVOF_RESTORE_H

#include <kvof/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVOF_REQUESTS_MAX 256           /* not ended yet, of one cache */
#define KVOF_RESTORE_BLOCKS_MAX (1u << 20)

enum kvof_restore_mode { KVOF_RESTORE_PREFIX, KVOF_RESTORE_ENDS };

#define KVOF_RESTORE_EACH 1u            /* an event for each block as well, as for a batch */
#define KVOF_RESTORE_LOAD_ALL 2u        /* no splitting: all that is there is loaded */

/* All 0: defaults. */
struct kvof_restore_opts {
	uint32_t struct_bytes;          /* sizeof(struct kvof_restore_opts) */
	uint32_t mode;                  /* enum kvof_restore_mode */
	uint32_t flags;                 /* KVOF_RESTORE_EACH, KVOF_RESTORE_LOAD_ALL */
	uint32_t suffix_tokens;         /* computed by the engine behind the last block */
	uint64_t deadline_ns;           /* from now; 0: of the cache */
	/* A token at position p takes (1 + prefill_slope * p) / prefill_tokens_per_s seconds of the
	 * engine. 0: what kvof_restore_computed() has taught; nothing taught: load all.
	 * Both finite and not below 0. */
	double prefill_tokens_per_s;
	double prefill_slope;           /* per token of position */
	int32_t priority;               /* -100 to 100: higher ones first, then the deadline */
	uint32_t step_blocks;           /* most blocks of one step of ENDS; 0: 1 */
};

/*
 * Events, drained as results of a batch whose number is the request's:
 *
 *   KVOF_RESULT_LAYER     layer `index` of blocks [0, value_bytes) is in their buffers, checked;
 *                         in order of layers. PREFIX only. value_bytes may fall from one layer to
 *                         the next: blocks behind were lost or given up
 *   KVOF_RESULT_STEP      kvof_restore_next() that said WAIT would say something else now
 *   KVOF_RESULT_REQUEST   over. value_bytes: usable blocks, all of their bytes checked. reason: of
 *                         the block that ended the prefix, KVOF_OK when none did. busy: 1, some
 *                         buffers are not free yet; one more event with KVOF_RESULT_RELEASED comes
 *   no flag               KVOF_RESTORE_EACH: a block, as for a batch
 */
#define KVOF_RESULT_STEP 16u

enum kvof_restore_act {
	KVOF_STEP_WAIT,                 /* nothing yet: KVOF_RESULT_STEP will tell */
	KVOF_STEP_COMPUTE,              /* blocks [first, first + count) are the engine's */
	KVOF_STEP_DONE                  /* usable is final */
};

struct kvof_restore_step {
	uint32_t act;                   /* enum kvof_restore_act */
	uint32_t first, count;          /* COMPUTE */
	uint32_t usable;                /* blocks from the first on that are loaded or handed out */
};

#define KVOF_RESTORE_MISSES 8           /* told one by one, the first ones */

/* What one request did. Times in ns, of the monotonic clock. */
struct kvof_restore_trace {
	uint32_t struct_bytes;          /* in: sizeof(struct kvof_restore_trace) */
	uint32_t reason;                /* as in the event KVOF_RESULT_REQUEST */
	uint32_t blocks, usable;
	uint32_t loaded, computed;      /* of these blocks; computed: handed to the engine */
	uint32_t late;                  /* 1: the deadline ended it */
	uint32_t split;                 /* PREFIX: k as chosen; ENDS: the block where they met: all
					 * before it were computed, or all of them loaded */
	uint64_t bytes[4];              /* delivered, by tier */
	uint64_t block_count[4];        /* the same, blocks */
	uint64_t begin_ns, end_ns;
	uint64_t first_layer_ns;        /* layer 0 of the prefix was ready; 0: never */
	uint64_t staging_ns;            /* waited for staging: not a byte of it in flight */
	uint64_t queue_ns, device_ns;   /* summed over loads: waiting behind what the tier was
					 * asked before, as predicted; the rest of their time */
	uint64_t verify_ns;             /* summed over loads: checking bytes */
	uint64_t wasted_bytes;          /* arrived, not used: given up, behind a hole, late */
	uint32_t reasons[16];           /* blocks that were to be loaded and were not, by enum
					 * kvof_reason; the engine may have computed them since */
	uint32_t miss_count;            /* of them in miss[] */
	struct {
		uint32_t index, reason, tier;       /* tier: that answered last */
	} miss[KVOF_RESTORE_MISSES];
};

/**
 * kvof_restore_begin() - starts restoring a prefix
 * @blocks: in order, as for a load; copied. Memory as in kvof_block
 * @opts:   NULL: mode PREFIX, all defaults
 *
 * Costs a copy of the list, about 100 bytes a block and a fixed amount for loads in flight,
 * whatever the number of blocks: at most 256 MiB. Returns before any byte has moved.
 * Return: 0 and *request; -EINVAL wrong opts or blocks, or the limit of memory passed; -EBUSY too
 * many requests or events not drained yet, or no memory; -ESHUTDOWN.
 */
int kvof_restore_begin(struct kvof_cache *cache, const struct kvof_block *blocks, uint32_t n_blocks,
		       const struct kvof_restore_opts *opts, uint64_t *request);

/**
 * kvof_restore_next() - what the engine has to do now
 * @wait_ns: 0: answers at once, and WAIT is followed by an event KVOF_RESULT_STEP; else waits for
 *           something other than WAIT, at most so long
 *
 * PREFIX: COMPUTE [k, n) once k is chosen (the engine may begin, and needs layer l of [0, k) for
 * its layer l); once the request is over, COMPUTE [usable, k) if not all of it came and its buffers
 * are free; then DONE: each block is usable or was handed out. ENDS: COMPUTE some blocks from the
 * front; their buffers are free and no byte of them is written any more. The engine computes in the
 * order of the steps; asking for the next one says that it has. A block that could not be loaded is
 * handed out when all before it are there. After the deadline it still answers, without waiting for
 * loads. One caller at a time for each request.
 * Return: 0 and *step; -EINVAL, also for a request that is not there; -EBUSY no room for the event:
 * drain first; -ESHUTDOWN.
 */
int kvof_restore_next(struct kvof_cache *cache, uint64_t request, uint64_t wait_ns,
		      struct kvof_restore_step *step);

/**
 * kvof_restore_computed() - blocks [first, first + count) took the engine ns nanoseconds
 *
 * Teaches the rate, for this request and later ones. Costs a message.
 * Return: 0; -EINVAL; -EBUSY no memory; -ESHUTDOWN.
 */
int kvof_restore_computed(struct kvof_cache *cache, uint64_t request, uint32_t first,
			  uint32_t count, uint64_t ns);

/**
 * kvof_restore_end() - the engine is done with the request
 * @out: NULL, or filled with what it did
 *
 * Not over yet: cancels it first. Blocks until its buffers are free: no time when it is over and
 * not busy, else at most about a quarter of a second. Its events not drained yet stay.
 * Return: 0; -EINVAL, also for a request that is not there; -ESHUTDOWN.
 */
int kvof_restore_end(struct kvof_cache *cache, uint64_t request, struct kvof_restore_trace *out);

/**
 * kvof_cache_prefetch() - these blocks will be wanted in DRAM in by_ns nanoseconds
 * @by_ns: 0: as soon as there is nothing better to do
 *
 * A hint: brings them from flash and arrays into DRAM, first to last, while no request wants to
 * load; those not there by then are left. No event, no result; kvof_cache_cancel() with *request
 * ends it without a trace. Needs dram_bytes.
 * Return: 0 and *request; -EINVAL; -EBUSY too many hints (KVOF_PREFETCHES_MAX) or no memory;
 * -ESHUTDOWN.
 */
#define KVOF_PREFETCHES_MAX 64
int kvof_cache_prefetch(struct kvof_cache *cache, const struct kvof_id *ids, uint32_t n_ids,
			uint64_t by_ns, uint64_t *request);

#ifdef __cplusplus
}
#endif

#endif
