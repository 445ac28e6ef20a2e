/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine's streamed answer to a completion, read as it comes: server-sent events, each a line
 * "data: {...}", the last "data: [DONE]". Says when the first and the last token came, how many
 * there were, and what `usage` tells. Also an answer that is one JSON object, or an error.
 *
 * Everything here is from outside: memory is bounded by ANSWER_LINE_BYTES_MAX, what is read by
 * ANSWER_BODY_BYTES_MAX, and whatever else is wrong ends the answer with a sentence.
 */
#ifndef KVOF_PLAN_ANSWER_H
#define KVOF_PLAN_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ANSWER_LINE_BYTES_MAX (1u << 20)
#define ANSWER_BODY_BYTES_MAX (8u << 20)

struct answer {
	char *line;                      /* [room] */
	size_t used, room;
	uint64_t body_bytes;
	bool stream, done;               /* events are expected; [DONE] was seen */
	uint64_t first_ns, last_ns;      /* 0: no token came */
	uint32_t pieces;                 /* events with a token */
	uint64_t prompt_tokens, cached_tokens, output_tokens;   /* of usage; 0: not told */
	char why[160];
};

/* stream: events, else one JSON object. Give it back with answer_free(). */
void answer_begin(struct answer *a, bool stream);
void answer_free(struct answer *a);

/**
 * answer_feed() - the next bytes, which came at now_ns (not 0)
 * Return: 0; -EPROTO with a sentence in why; -ENOMEM.
 */
int answer_feed(struct answer *a, const void *bytes, size_t count, uint64_t now_ns);

/* The answer is over. Return: 0; -EPROTO with a sentence: it has no token, or is cut off. */
int answer_end(struct answer *a, uint64_t now_ns);

/* What an error says of itself, from whatever was kept of its body; one line. */
void answer_error(const struct answer *a, char out[120]);

/* data[0] of a list of models: its id, and its context length (0: not told). */
struct answer_model {
	char id[160];
	uint64_t context_tokens;
};
/* Return: 0; -EPROTO: no such list, or an id too long. */
int answer_models(const struct answer *a, struct answer_model *out);

#endif
