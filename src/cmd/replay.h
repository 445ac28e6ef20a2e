/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of `kvof replay` share.
 *
 *   replay.c        options, and what is read
 *   replay_tier.c   one tier: numbers of blocks behind a policy
 *   replay_run.c    a trace through one tier, or through a model of several
 *   replay_real.c   a trace through a real cache
 *   replay_out.c    JSON and the table
 *   replay_html.c   the page with pictures
 *
 * Conventions (docs/replay.md): requests in the order of the file; a request sees the cache as it
 * was before it; hits are the blocks up to the first that is missing; then all of its blocks are
 * used. One thread.
 */
#ifndef KVOF_CMD_REPLAY_H
#define KVOF_CMD_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/policy.h"
#include "plan/trace.h"

#define REPLAY_SPANS 60                    /* of time, for the pictures */
#define REPLAY_ENGINES_MAX 4096u

/* --- one tier -------------------------------------------------------------------------------- */

struct replay_tier {
	struct policy *policy;
	uint32_t *where;                   /* [unique blocks]: slot, POLICY_NONE: not held */
	uint32_t *what;                    /* [slots]: block */
	uint32_t *free;
	uint32_t slots, free_count, keep;
	uint64_t evicted;
};

/* Return: 0; -EINVAL no such policy; -ENOMEM. */
int replay_tier_open(struct replay_tier *t, const char *policy, uint64_t capacity_blocks,
		     uint32_t unique_blocks, uint64_t seed);
void replay_tier_close(struct replay_tier *t);        /* also of a zeroed one */
bool replay_tier_has(const struct replay_tier *t, uint32_t block);
void replay_tier_hit(struct replay_tier *t, uint32_t block);
/* May a block that another tier gave come in? Remembers that it was asked. */
bool replay_tier_admits(struct replay_tier *t, uint32_t block);
/* before: the block in front of it in its sequence, POLICY_NONE: it is a head. False: not worth
 * keeping, since a tier that knows prefixes does not hold that one. */
bool replay_tier_insert(struct replay_tier *t, uint32_t block, uint32_t before);
/* Hits what is held and inserts the rest. rev: from the last one to the first. */
void replay_tier_use(struct replay_tier *t, const uint32_t *block, uint32_t count, bool rev);

/* --- runs ------------------------------------------------------------------------------------ */

enum { REPLAY_DRAM, REPLAY_FLASH, REPLAY_REMOTE, REPLAY_TIERS };

extern const char *const replay_tier_names[REPLAY_TIERS];

struct replay_device {
	uint64_t latency_ns, bytes_per_s;
};

struct replay_opts {
	const char *policy;                /* NULL: the default */
	uint64_t seed;
	uint32_t block_tokens;
	uint64_t capacity_blocks;          /* of the only tier; 0: several, or no limit */
	bool rev;
	/* several tiers */
	uint64_t tier_bytes[REPLAY_TIERS]; /* 0: there is none */
	bool second_touch[REPLAY_TIERS];   /* takes a block when it is used again */
	struct replay_device device[REPLAY_TIERS];
	uint64_t block_bytes;
	uint64_t prefill_tokens_per_s;     /* 0: no times are told */
	uint32_t engines;                  /* 0: as many as are needed */
	uint64_t speed_percent;            /* of the trace's time; 100: as it was */
	bool paced;                        /* a real cache: requests wait for their time */
};

/* Requests and what they took: sums for the line seconds = fixed + blocks * each. */
struct replay_line {
	uint64_t requests;
	double blocks, blocks2, seconds, blocks_seconds;
};

struct replay_tier_result {
	bool present;
	uint64_t capacity_blocks, hit_blocks, hit_tokens, used_blocks, evicted_blocks;
	uint64_t read_bytes, written_bytes;
	bool written_unknown;                        /* of a real tier: nobody tells */
	uint64_t promoted_blocks, refused_blocks;    /* taken from slower tiers, or not */
	uint64_t touches;                            /* heads that nearer tiers served */
	uint64_t device_bytes;                       /* read at a real device or over the wire */
	struct replay_line loads;                    /* requests that a real tier alone served */
};

struct replay_span {
	uint64_t read_bytes[REPLAY_TIERS], written_bytes[REPLAY_TIERS];
	uint64_t hit_blocks, blocks;
};

struct replay_times {                      /* seconds to the first token */
	double p50, p90, p99, mean;
};

struct replay_result {
	uint64_t requests, blocks, unique_blocks, hit_blocks, tokens, hit_tokens;
	bool tiered, real;
	struct replay_tier_result tier[REPLAY_TIERS];
	uint64_t saved_bytes;                        /* computed and offered to the tiers */
	uint64_t skipped_blocks;                     /* held, and sooner computed than loaded */
	uint64_t verified_blocks, wrong_blocks, unsaved_blocks;      /* of a real cache */
	double seconds;                              /* that a real one took */
	double load_s, miss_s;                       /* match and load; of requests with no hit */
	double save_s, check_s;                      /* and to save; and to compare bytes */
	uint64_t misses;                             /* requests with no hit */
	struct replay_line saves;
	struct replay_span span[REPLAY_SPANS];
	uint64_t span_ms;
	bool timed;
	struct replay_times with, without;           /* the cache */
	float *with_s, *without_s;                   /* [requests], in order of size */
};

/* Return: 0; -ENOMEM; -EINVAL no such policy. replay_result_free() may follow in any case. */
int replay_run(const struct trace *t, const struct replay_opts *o, struct replay_result *out);
void replay_result_free(struct replay_result *r);

struct replay_real {
	const char *name;                  /* of the trace */
	const char *target, *flash;        /* NULL: there is none */
};

#define REPLAY_REAL_BLOCK_BYTES_MAX (UINT64_C(64) << 20)

/* Return: an exit code; a line was printed unless it is 0. */
int replay_real_run(const struct trace *t, const struct replay_opts *o,
		    const struct replay_real *real, struct replay_result *out);

/* What both kinds of runs do: the empty result of a trace; the span of a request; with_s and
 * without_s become percentiles. */
void replay_result_begin(const struct trace *t, struct replay_result *out);
struct replay_span *replay_span_at(const struct trace *t, struct replay_result *out,
				   uint32_t index);
void replay_times_end(struct replay_result *out);

void replay_line_add(struct replay_line *l, uint64_t blocks, double seconds);
/* False: there is nothing to tell. */
bool replay_line_fit(const struct replay_line *l, double *fixed_s, double *block_s);

/* --- what is told ---------------------------------------------------------------------------- */

/* Return: an exit code. */
int replay_print(const struct replay_opts *o, const struct replay_result *r, bool json);
int replay_html(const char *path, const char *name, const struct trace *t,
		const struct replay_opts *o, const struct replay_result *r);

#endif
