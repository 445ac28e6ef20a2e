/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of include/kvof/cache.h that ask or tell something about blocks and move no bytes:
 * match, leases, identities, counters. Any thread, through the door.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache/door.h"
#include "cache/group.h"

#define ASK_QUESTIONS_MAX 1024             /* ids that match asks at once */
#define ASK_DEADLINE_NS (2 * NS_PER_S)
#define ASK_BRIEF_IDS 1024                 /* more are not looked up in the caller's thread */

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

static uint64_t end_ns_of(const struct kvof_cache *c, uint64_t deadline_ns)
{
	if (deadline_ns == 0)
		deadline_ns = door_opts(c)->deadline_ns;
	if (deadline_ns == 0)
		deadline_ns = ASK_DEADLINE_NS;
	return ask_clock_ns() + tier_deadline_ns(deadline_ns);
}

/* Some rows of blocks are looked up at once: by the cache's thread or, where they are few and it
 * sleeps, in its place. */
struct look_ask {
	struct door_ask ask;
	struct core_look *look;            /* all of the same length */
	uint32_t look_count;
	bool deep;                         /* filled: more may be there, and can be asked for */
};

static void look_run(struct kvof_cache *c, struct door_ask *ask)
{
	struct look_ask *l = container_of(ask, struct look_ask, ask);

	for (uint32_t i = 0; i < l->look_count; i++)
		l->deep = core_look(door_core(c), &l->look[i]);
	door_answer(ask);
}

static int ask_look(struct kvof_cache *c, struct look_ask *l)
{
	l->ask.run = look_run;
	l->ask.brief = (uint64_t)l->look_count * l->look->count <= ASK_BRIEF_IDS;
	return door_ask(c, &l->ask);
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

/* How many leading ones of n are there, as the tiers say: all questions are sent at once, up to
 * what one batch may hold. */
static int ask_leading(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n, uint64_t end_ns,
		       uint32_t *leading)
{
	uint32_t found = 0, step, got;
	struct questions q;
	int rc = questions_make(&q, n);

	if (rc != 0)
		return rc;
	do {
		uint64_t now = ask_clock_ns();

		step = (uint32_t)bytes_min(n - found, q.count);
		if (step == 0 || now >= end_ns)
			break;
		for (uint32_t i = 0; i < step; i++)
			q.block[i].id = ids[found + i];
		rc = door_question(c, q.block, step, 0, end_ns - now, q.result);
		got = rc == 0 ? prefix_leading(q.result, step) : 0;
		found += got;
	} while (rc == 0 && got == step);
	free(q.block);
	*leading = found;
	return rc;
}

int kvof_cache_match(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n_ids,
		     uint64_t deadline_ns, uint32_t *n_match)
{
	struct core_look look = {.ids = ids, .count = n_ids};
	struct look_ask l = {.look = &look, .look_count = 1};
	uint32_t more = 0;
	int rc;

	if (n_match == NULL || (ids == NULL && n_ids > 0))
		return -EINVAL;
	*n_match = 0;
	rc = n_ids > 0 ? ask_look(c, &l) : door_look(c);
	if (rc != 0 || n_ids == 0)
		return rc;
	if (l.deep && look.leading < n_ids)
		rc = ask_leading(c, ids + look.leading, n_ids - look.leading,
				 end_ns_of(c, deadline_ns), &more);
	*n_match = look.leading + more;
	return rc;
}

/* --- match of groups -------------------------------------------------------------------------- */

static int groups_check(const struct kvof_group *groups, uint32_t count, uint32_t n_blocks)
{
	if (groups == NULL || count == 0 || count > KVOF_GROUPS_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < count; i++)
		if ((groups[i].ids == NULL && n_blocks > 0) || groups[i].unused != 0)
			return -EINVAL;
	return 0;
}

/* What of the rows is not known to be there, asked in batches; row by row. */
static int ask_rows(struct kvof_cache *c, const struct core_look *look, uint32_t count,
		    uint64_t end_ns)
{
	struct questions q;
	uint32_t r = 0, i = 0;
	int rc = questions_make(&q, ASK_QUESTIONS_MAX);

	while (rc == 0 && r < count) {
		uint8_t *asked[ASK_QUESTIONS_MAX];
		uint64_t now = ask_clock_ns();
		uint32_t n = 0;

		for (; r < count && n < q.count; i = 0, r++) {
			for (; i < look[r].count && n < q.count; i++) {
				if (look[r].where[i] != 0)
					continue;
				q.block[n].id = look[r].ids[i];
				asked[n++] = &look[r].where[i];
			}
			if (i < look[r].count)
				break;
		}
		if (n == 0 || now >= end_ns)
			break;
		rc = door_question(c, q.block, n, KVOF_UNORDERED, end_ns - now, q.result);
		for (uint32_t k = 0; rc == 0 && k < n; k++)
			*asked[k] = q.result[k].reason == KVOF_OK;
	}
	free(q.block);
	return rc;
}

/* look and its rows are zeroed memory of their own. */
static int groups_match(struct kvof_cache *c, const struct kvof_group *groups, uint32_t count,
			struct core_look *look, uint64_t deadline_ns, uint32_t *n_match)
{
	struct look_ask l = {.look = look, .look_count = count};
	struct group_row row[KVOF_GROUPS_MAX];
	int rc = ask_look(c, &l);

	for (uint32_t i = 0; i < count; i++)
		row[i] = (struct group_row){look[i].where, groups[i].window_blocks};
	if (rc != 0)
		return rc;
	*n_match = group_longest(row, count, look->count);
	if (*n_match == look->count || !l.deep)
		return 0;
	rc = ask_rows(c, look, count, end_ns_of(c, deadline_ns));
	*n_match = group_longest(row, count, look->count);
	return rc;
}

int kvof_cache_match_groups(struct kvof_cache *c, const struct kvof_group *groups,
			    uint32_t group_count, uint32_t n_blocks, uint64_t deadline_ns,
			    uint32_t *n_match)
{
	struct core_look look[KVOF_GROUPS_MAX];
	uint8_t *where;
	int rc = n_match != NULL ? groups_check(groups, group_count, n_blocks) : -EINVAL;

	if (rc != 0)
		return rc;
	*n_match = 0;
	rc = door_look(c);
	if (rc != 0 || n_blocks == 0)
		return rc;
	where = calloc(group_count, n_blocks);
	if (where == NULL)
		return -EBUSY;
	for (uint32_t i = 0; i < group_count; i++)
		look[i] = (struct core_look){groups[i].ids, n_blocks,
					     where + (size_t)i * n_blocks, 0};
	rc = groups_match(c, groups, group_count, look, deadline_ns, n_match);
	free(where);
	return rc;
}

/* --- what the engine wants of blocks ---------------------------------------------------------- */

struct want_ask {
	struct door_ask ask;
	const struct kvof_id *ids;
	uint32_t id_count;
	bool on;
	const struct kvof_hint *hint;      /* NULL: a pin */
	int res;
};

static void want_run(struct kvof_cache *c, struct door_ask *ask)
{
	struct want_ask *w = container_of(ask, struct want_ask, ask);

	w->res = w->hint != NULL ? core_hint(door_core(c), w->ids, w->id_count, w->hint) :
		 core_pin(door_core(c), w->ids, w->id_count, w->on);
	door_answer(ask);
}

static int want(struct kvof_cache *c, struct want_ask *w)
{
	int rc;

	if (w->ids == NULL || w->id_count > KVOF_BLOCKS_MAX)
		return -EINVAL;
	w->ask.run = want_run;
	rc = door_ask(c, &w->ask);
	return rc != 0 ? rc : w->res;
}

int kvof_cache_pin(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n_ids, int on)
{
	struct want_ask w = {.ids = ids, .id_count = n_ids, .on = on != 0};

	return want(c, &w);
}

int kvof_cache_hint(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n_ids,
		    const struct kvof_hint *hint)
{
	struct want_ask w = {.ids = ids, .id_count = n_ids, .hint = hint};

	if (hint == NULL || hint->struct_bytes != sizeof(*hint) ||
	    hint->priority < -KVOF_PRIORITY_MAX || hint->priority > KVOF_PRIORITY_MAX)
		return -EINVAL;
	return want(c, &w);
}

struct flush_ask {
	struct door_ask ask;
	struct core_flush flush;
	uint64_t deadline_ns;
	int res;
};

static void flush_done(struct core_flush *f, int res)
{
	struct flush_ask *ask = container_of(f, struct flush_ask, flush);

	ask->res = res;
	door_answer(&ask->ask);
}

static void flush_run(struct kvof_cache *c, struct door_ask *ask)
{
	struct flush_ask *f = container_of(ask, struct flush_ask, ask);

	f->flush.done = flush_done;
	f->flush.deadline_ns = loop_now_ns(door_loop(c)) + f->deadline_ns;
	core_flush(door_core(c), &f->flush);
}

int kvof_cache_flush(struct kvof_cache *c, uint64_t deadline_ns)
{
	struct flush_ask f = {.ask = {.run = flush_run}};
	int rc = door_look(c);

	if (rc != 0)
		return rc;
	f.deadline_ns = end_ns_of(c, deadline_ns) - ask_clock_ns();
	rc = door_ask(c, &f.ask);
	return rc != 0 ? rc : f.res;
}

int kvof_cache_events(struct kvof_cache *c, struct kvof_event *out, uint32_t n, uint64_t *lost)
{
	int rc;

	if ((out == NULL && n > 0) || lost == NULL)
		return -EINVAL;
	rc = door_enter(c);
	if (rc != 0)
		return rc;
	door_posted(c);
	if (door_events(c) != NULL)
		rc = (int)events_take(door_events(c), out, n > INT_MAX ? INT_MAX : n, lost);
	else
		rc = -EINVAL;
	door_leave(c);
	return rc;
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
	if (door_events(c) != NULL)
		stat->out->events_lost = events_lost(door_events(c));
	door_answer(ask);
}

int kvof_cache_stat(struct kvof_cache *c, struct kvof_cache_stat *out)
{
	struct stat_ask stat = {.ask = {.run = stat_run}, .out = out};

	return out == NULL ? -EINVAL : door_ask(c, &stat.ask);
}
