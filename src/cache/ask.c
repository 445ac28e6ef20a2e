/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of include/kvof/cache.h that ask or tell something about blocks and move no bytes:
 * match, leases, identities, counters. Any thread, through the door.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache/door.h"

#define ASK_QUESTIONS_MAX 1024             /* ids that match asks at once */
#define ASK_DEADLINE_NS (2 * NS_PER_S)

/* A message that carries its own memory: for calls that do not wait. */
struct note {
	struct msg msg;
	struct kvof_cache *cache;
	uint32_t id_count;
	struct kvof_id id[];
};

static void unlease_run(struct loop *here, struct msg *m)
{
	struct note *note = container_of(m, struct note, msg);

	core_unlease(door_core(note->cache), note->id, note->id_count);
	free(note);
}

int kvof_cache_unlease(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n_ids)
{
	struct note *note;
	int rc;

	if (ids == NULL || n_ids > KVOF_BLOCKS_MAX)
		return -EINVAL;
	rc = door_enter(c);
	if (rc != 0)
		return rc;
	note = malloc(sizeof(*note) + n_ids * sizeof(*ids));
	if (note != NULL) {
		*note = (struct note){.msg = {.run = unlease_run}, .cache = c, .id_count = n_ids};
		memcpy(note->id, ids, n_ids * sizeof(*ids));
		loop_post(door_loop(c), &note->msg);
	}
	door_posted(c);
	door_leave(c);
	return note != NULL ? 0 : -EBUSY;
}

/* --- match ------------------------------------------------------------------------------------ */

static uint64_t ask_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Memory for the questions of one batch. */
struct questions {
	struct kvof_block *block;
	struct kvof_result *result;
	uint32_t count;
};

static int questions_make(struct questions *q, uint32_t n_ids)
{
	q->count = (uint32_t)bytes_min(n_ids, ASK_QUESTIONS_MAX);
	q->block = calloc(q->count, sizeof(*q->block) + sizeof(*q->result));
	if (q->block == NULL)
		return -EBUSY;
	q->result = (struct kvof_result *)(void *)(q->block + q->count);
	return 0;
}

/* How many leading ones of n <= q->count are there. */
static int match_some(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n,
		      uint64_t deadline_ns, const struct questions *q, uint32_t *n_match)
{
	int rc;

	for (uint32_t i = 0; i < n; i++)
		q->block[i].id = ids[i];
	rc = door_question(c, q->block, n, deadline_ns, q->result);
	*n_match = rc == 0 ? prefix_leading(q->result, n) : 0;
	return rc;
}

static int match_all(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n_ids,
		     uint64_t end_ns, uint32_t *n_match)
{
	uint32_t found = 0, step, got = 0;
	struct questions q;
	int rc = questions_make(&q, n_ids);

	if (rc != 0)
		return rc;
	do {
		uint64_t now = ask_clock_ns();

		step = (uint32_t)bytes_min(n_ids - found, q.count);
		if (step == 0 || now >= end_ns)
			break;
		rc = match_some(c, ids + found, step, end_ns - now, &q, &got);
		found += got;
	} while (rc == 0 && got == step);
	free(q.block);
	*n_match = found;
	return rc;
}

int kvof_cache_match(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n_ids,
		     uint64_t deadline_ns, uint32_t *n_match)
{
	int rc;

	if (n_match == NULL || (ids == NULL && n_ids > 0))
		return -EINVAL;
	*n_match = 0;
	rc = door_look(c);
	if (rc != 0 || n_ids == 0)
		return rc;
	if (deadline_ns == 0)
		deadline_ns = door_opts(c)->deadline_ns;
	if (deadline_ns == 0)
		deadline_ns = ASK_DEADLINE_NS;
	return match_all(c, ids, n_ids, ask_clock_ns() + deadline_ns, n_match);
}

/* --- identities and counters ------------------------------------------------------------------ */

int kvof_cache_ids(const struct kvof_cache *c, const int32_t *tokens, size_t n_tokens,
		   const struct kvof_id *parent, struct kvof_id *ids)
{
	int rc = door_look(c);
	const struct identity *id = rc == 0 ? door_identity(c) : NULL;
	size_t step, n;

	if (rc != 0)
		return rc;
	step = id->block_tokens;
	n = n_tokens / step;
	if (n > 0 && (tokens == NULL || ids == NULL))
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		identity_block(id, parent, tokens + i * step, step, &ids[i]);
		parent = &ids[i];
	}
	return 0;
}

int kvof_cache_id_of(const struct kvof_cache *c, const void *hash, size_t bytes,
		     struct kvof_id *id)
{
	int rc = door_look(c);

	if (rc == 0 && (id == NULL || (hash == NULL && bytes > 0)))
		rc = -EINVAL;
	if (rc == 0)
		identity_engine(door_identity(c), hash, bytes, id);
	return rc;
}

struct stat_ask {
	struct door_ask ask;
	struct kvof_cache_stat *out;
};

static void stat_run(struct kvof_cache *c, struct door_ask *ask)
{
	struct stat_ask *stat = container_of(ask, struct stat_ask, ask);
	void *restore = door_restore_self(c);

	core_stat(door_core(c), stat->out);
	if (restore != NULL)
		door_restore.stat(restore, stat->out);
	door_answer(ask);
}

int kvof_cache_stat(struct kvof_cache *c, struct kvof_cache_stat *out)
{
	struct stat_ask stat = {.ask = {.run = stat_run}, .out = out};

	return out == NULL ? -EINVAL : door_ask(c, &stat.ask);
}
