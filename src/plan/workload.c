/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each workload is a set of sources that send requests at times; the next request is that of the
 * source whose time comes first. A block's id is a hash of the sequence it is part of and its
 * place, so prefixes agree by themselves.
 */
#include "plan/workload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/prng.h"

#define SOURCES 200u                       /* conversations open at a time */
#define DOCUMENTS 40u

enum source_kind { TURNS, SHARED, COLD };

struct workload {
	const char *name;
	unsigned turns, shared, cold;      /* sources of each kind, out of SOURCES */
};

static const struct workload workloads[] = {
	{"multi-turn", SOURCES, 0, 0},
	{"shared-prefix", 0, SOURCES, 0},
	{"cold-long", 0, 0, SOURCES},
	{"mixed", SOURCES / 2, SOURCES / 3, SOURCES - SOURCES / 2 - SOURCES / 3},
};

struct source {
	uint64_t time_ms;
	uint64_t number;                   /* of the conversation, or of the prompt */
	uint64_t tokens;                   /* of the conversation so far */
	enum source_kind kind;
};

const char *const *workload_names(void)
{
	static const char *names[ARRAY_COUNT(workloads) + 1];

	for (size_t i = 0; i < ARRAY_COUNT(workloads); i++)
		names[i] = workloads[i].name;
	return names;
}

/* Around middle, with a long tail: an eighth to eight times of it, evenly in its logarithm. */
static uint64_t spread(struct prng *r, uint64_t middle)
{
	uint64_t scale = UINT64_C(1) << prng_below(r, 7);          /* 1 .. 64 */

	return middle * scale / 8 * (1000 + prng_below(r, 1000)) / 1500 + 1;
}

static uint64_t block_id(uint64_t sequence, uint64_t index)
{
	struct prng r = prng_of(sequence * UINT64_C(0x9e3779b97f4a7c15) + index);

	return prng_next(&r) >> 1;
}

static int sequence_add(struct trace *t, uint64_t sequence, uint64_t first, uint64_t blocks)
{
	int rc = 0;

	for (uint64_t i = 0; rc == 0 && i < blocks; i++)
		rc = trace_add_block(t, block_id(sequence, first + i));
	return rc;
}

/* Blocks of a prompt whose last one may be part of a block only. */
static uint64_t blocks_of(uint64_t tokens, uint32_t block_tokens)
{
	return (tokens + block_tokens - 1) / block_tokens;
}

/* A part of a block at a prompt's end is followed by other tokens in the next turn: another id. */
static int prompt_add(struct trace *t, uint64_t sequence, uint64_t tokens, uint32_t block_tokens)
{
	uint64_t whole = tokens / block_tokens;
	int rc = sequence_add(t, sequence, 0, whole);

	if (rc == 0 && whole * block_tokens < tokens)
		rc = trace_add_block(t, block_id(~sequence, tokens));
	return rc;
}

static int turn_add(struct trace *t, struct prng *r, struct source *s, uint32_t block_tokens)
{
	uint64_t output = spread(r, 300);
	int rc;

	if (s->tokens == 0 || prng_below(r, 4) == 0 || s->tokens > 100000) {
		s->number = prng_next(r);
		s->tokens = spread(r, 3000);
	} else {
		s->tokens += spread(r, 500);
	}
	rc = trace_add(t, s->time_ms, s->tokens, output);
	if (rc == 0)
		rc = prompt_add(t, s->number, s->tokens, block_tokens);
	s->tokens += output;
	s->time_ms += 30000 + spread(r, 60000);
	return rc;
}

/* The first document is asked about most, the next one half as often, the third a third. */
static uint64_t document_pick(struct prng *r)
{
	for (;;) {
		uint64_t n = prng_below(r, DOCUMENTS);

		if (prng_below(r, n + 1) == 0)
			return n;
	}
}

static int question_add(struct trace *t, struct prng *r, struct source *s, uint64_t seed,
			uint32_t block_tokens)
{
	struct prng d = prng_of(seed + document_pick(r));
	uint64_t document = prng_next(&d), whole = spread(&d, 16000) / block_tokens + 1;
	uint64_t question = spread(r, 400);
	int rc = trace_add(t, s->time_ms, whole * block_tokens + question, spread(r, 300));

	if (rc == 0)
		rc = sequence_add(t, document, 0, whole);
	if (rc == 0)
		rc = sequence_add(t, prng_next(r), 0, blocks_of(question, block_tokens));
	s->time_ms += 10000 + spread(r, 60000);
	return rc;
}

static int cold_add(struct trace *t, struct prng *r, struct source *s, uint32_t block_tokens)
{
	uint64_t tokens = 16000 + spread(r, 32000);
	int rc = trace_add(t, s->time_ms, tokens, spread(r, 300));

	if (rc == 0)
		rc = sequence_add(t, prng_next(r), 0, blocks_of(tokens, block_tokens));
	s->time_ms += 60000 + spread(r, 120000);
	return rc;
}

static int source_send(struct trace *t, struct prng *r, struct source *s,
		       const struct workload_opts *o)
{
	switch (s->kind) {
	case TURNS:
		return turn_add(t, r, s, o->block_tokens);
	case SHARED:
		return question_add(t, r, s, o->seed, o->block_tokens);
	case COLD:
		return cold_add(t, r, s, o->block_tokens);
	}
	return 0;
}

static const struct workload *workload_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_COUNT(workloads); i++)
		if (strcmp(workloads[i].name, name) == 0)
			return &workloads[i];
	return NULL;
}

int workload_make(const char *name, const struct workload_opts *o, struct trace *t)
{
	const struct workload *w = workload_find(name);
	struct source source[SOURCES];
	struct prng r = prng_of(o->seed);
	int rc = 0;

	must(o->block_tokens > 0 && o->requests <= WORKLOAD_REQUESTS_MAX);
	if (w == NULL)
		return -ENOENT;
	for (unsigned i = 0; i < SOURCES; i++)
		source[i] = (struct source){
			.time_ms = prng_below(&r, 120000),
			.kind = i < w->turns ? TURNS : i < w->turns + w->shared ? SHARED : COLD};
	for (uint32_t n = 0; rc == 0 && n < o->requests; n++) {
		struct source *next = &source[0];

		for (unsigned i = 1; i < SOURCES; i++)
			if (source[i].time_ms < next->time_ms)
				next = &source[i];
		rc = source_send(t, &r, next, o);
	}
	return rc;
}
