/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block trace: requests in the order they came, each with the blocks of its prompt. Read from
 * text in Mooncake's format [MOONCAKE], one JSON object a line:
 *
 *   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}
 *
 * timestamp in milliseconds; lengths in tokens; a hash id stands for the whole prefix up to the end
 * of its block. Ids are numbered anew, 0 .. unique_blocks-1, in the order in which they first come.
 *
 * Text is not trusted: each line is checked in one function that names the field that is wrong.
 * Memory grows with what was read, up to the limits here. One thread.
 */
#ifndef KVOF_PLAN_TRACE_H
#define KVOF_PLAN_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TRACE_LINE_BYTES_MAX (UINT32_C(16) << 20)
#define TRACE_REQUEST_BLOCKS_MAX (UINT32_C(1) << 20)
#define TRACE_REQUESTS_MAX (UINT32_C(1) << 26)
#define TRACE_BLOCKS_MAX (UINT32_C(1) << 28)         /* of all requests */
#define TRACE_TOKENS_MAX (UINT64_C(1) << 40)         /* of one request */
#define TRACE_TIME_MS_MAX (UINT64_C(1) << 43)        /* 278 years */

struct trace_request {
	uint64_t time_ms;
	uint64_t input_tokens, output_tokens;
	uint32_t first, count;             /* in trace.block */
};

struct trace_ids;

struct trace {
	struct trace_request *request;
	uint32_t requests, request_room;
	uint32_t *block;                   /* of all requests, one after another */
	uint32_t blocks, block_room;
	uint32_t unique_blocks;
	uint64_t tokens;                   /* of all inputs */
	struct trace_ids *ids;
};

/* What is wrong: "hash_ids", and a sentence. */
struct trace_bad {
	const char *field;                 /* NULL: the line as a whole */
	char why[96];
};

/* Begins with a zeroed trace; trace_free() may follow any of these. */
void trace_free(struct trace *t);

/* Adds a request without blocks. Return: 0; -ENOMEM; -ENOSPC a limit is reached. */
int trace_add(struct trace *t, uint64_t time_ms, uint64_t input_tokens, uint64_t output_tokens);
/* Adds a block to the request that was added last. Return: the same. */
int trace_add_block(struct trace *t, uint64_t id);

/* One line, without its end. Blank lines are passed over.
 * Return: 0; -EINVAL with bad filled and the trace as it was; -ENOMEM; -ENOSPC. */
int trace_add_line(struct trace *t, const char *line, size_t bytes, struct trace_bad *bad);

/* All lines of a file, or until there are so many requests (0: all); *line is the number of the one
 * that was wrong, from 1. Return: as trace_add_line(); -EIO. */
int trace_read(struct trace *t, FILE *from, uint32_t requests, uint64_t *line,
	       struct trace_bad *bad);

#endif
