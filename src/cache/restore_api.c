/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls of include/kvof/restore.h: each checks, makes memory, and posts or asks through
 * the door; on the cache's thread a guest of the door keeps the restores and the prefetches.
 *
 * A request has an owner of its own here: who waits for it (at most one in next, one in end), and
 * how much room in the ring was counted for events that have not come yet. Events of layers, blocks
 * and the end are counted at begin, STEP when it is promised; a busy result and its release share
 * one.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cache/door.h"
#include "cache/prefetch.h"
#include "cache/restore.h"

#define RESTORE_DEADLINE_NS (2 * NS_PER_S)

struct guest {
	struct kvof_cache *cache;
	struct restore *restore;
	struct prefetch *prefetch;
	uint32_t layer_count;
	uint64_t *layer_bytes;             /* NULL: equal ones */
	_Atomic uint32_t requests, hints;
	struct list_link owners;
	void (*closed)(void *arg);
	void *closed_arg;
};

struct next_ask {
	struct door_ask ask;
	uint64_t request, wait_ns;
	struct kvof_restore_step *out;
	int rc;
	struct loop_timer timer;
	struct guest *guest;
};

struct end_ask {
	struct door_ask ask;
	uint64_t request;
	struct kvof_restore_trace *out;
	int rc;
};

/* Of one request; the cache's thread, from begin_run() on. */
struct owner {
	struct msg msg;
	struct list_link link;
	struct guest *guest;
	struct request *req;
	uint64_t id;
	uint32_t counted;                  /* events that may still come */
	bool step_due;
	struct next_ask *next;
	struct end_ask *end;
};

/* --- events ----------------------------------------------------------------------------------- */

static void owner_event(void *arg, const struct kvof_result *r)
{
	struct owner *o = arg;
	struct kvof_cache *c = o->guest->cache;

	if ((r->flags & KVOF_RESULT_RELEASED) == 0) {
		must(o->counted > 0);
		o->counted--;
	}
	door_result(c, r);
	if (r->flags == KVOF_RESULT_REQUEST && o->counted > 0) {
		door_uncount(c, o->counted);       /* layers and blocks that never came */
		o->counted = 0;
	}
}

static void next_answer(struct owner *o)
{
	struct next_ask *n = o->next;

	o->next = NULL;
	loop_timer_cancel(door_loop(o->guest->cache), &n->timer);
	door_answer(&n->ask);
}

/* Gives the request back to memory. */
static void owner_end(struct owner *o, struct end_ask *e)
{
	struct guest *g = o->guest;

	if (o->next != NULL) {
		o->next->rc = -EINVAL;
		next_answer(o);
	}
	if (o->step_due)
		door_uncount(g->cache, 1);
	if (e->out != NULL)
		request_trace(o->req, e->out);
	restore_forget(o->req);
	request_free(&o->req);
	list_remove(&o->link);
	free(o);
	atomic_fetch_sub(&g->requests, 1);
	door_answer(&e->ask);
}

static void owner_changed(void *arg)
{
	struct owner *o = arg;
	struct kvof_restore_step step;

	if (o->next != NULL) {
		restore_next(o->req, o->next->out);
		if (o->next->out->act != KVOF_STEP_WAIT)
			next_answer(o);
	}
	if (o->step_due) {
		restore_look(o->req, &step);
		if (step.act != KVOF_STEP_WAIT) {
			struct kvof_result r = {.batch = o->id, .flags = KVOF_RESULT_STEP};

			o->step_due = false;
			door_result(o->guest->cache, &r);
		}
	}
	if (o->end != NULL && request_free_now(o->req))
		owner_end(o, o->end);
}

static const struct request_events owner_events = {owner_event, owner_changed};

static struct owner *owner_find(struct guest *g, uint64_t request)
{
	struct request *req = restore_find(g->restore, request);

	return req != NULL ? request_owner(req) : NULL;
}

/* --- begin ------------------------------------------------------------------------------------ */

static int count_in(_Atomic uint32_t *counter, uint32_t most)
{
	if (atomic_fetch_add(counter, 1) < most)
		return 0;
	atomic_fetch_sub(counter, 1);
	return -EBUSY;
}

static void begin_run(struct loop *here, struct msg *m)
{
	struct owner *o = container_of(m, struct owner, msg);

	list_push_back(&o->guest->owners, &o->link);
	restore_begin(o->guest->restore, o->req, o->id, &owner_events, o);
}

static int owner_make(struct guest *g, const struct kvof_block *blocks, uint32_t n,
		      const struct kvof_restore_opts *opts, struct owner **out)
{
	struct request_layout layout = {door_cut_bytes(g->cache), g->layer_count, g->layer_bytes};
	struct owner *o = calloc(1, sizeof(*o));
	int rc = o == NULL ? -EBUSY : request_make(blocks, n, opts, &layout, &o->req);

	if (rc == 0) {
		o->guest = g;
		o->counted = request_event_count(o->req);
		/* more than there can ever be room for: draining would not help */
		rc = o->counted > KVOF_BLOCKS_MAX ? -EINVAL : door_count(g->cache, o->counted);
		if (rc != 0)
			request_free(&o->req);
	}
	if (rc != 0) {
		free(o);
		return rc;
	}
	*out = o;
	return 0;
}

int kvof_restore_begin(struct kvof_cache *c, const struct kvof_block *blocks, uint32_t n_blocks,
		       const struct kvof_restore_opts *opts, uint64_t *request)
{
	struct guest *g;
	struct owner *o;
	int rc;

	if (request == NULL)
		return -EINVAL;
	rc = door_enter(c);
	if (rc != 0)
		return rc;
	g = door_restore_self(c);
	rc = count_in(&g->requests, KVOF_REQUESTS_MAX);
	if (rc == 0) {
		rc = owner_make(g, blocks, n_blocks, opts, &o);
		if (rc != 0)
			atomic_fetch_sub(&g->requests, 1);
	}
	if (rc == 0) {
		*request = o->id = door_number(c);
		o->msg.run = begin_run;
		loop_post(door_loop(c), &o->msg);
	}
	door_posted(c);
	door_leave(c);
	return rc;
}

/* --- next ------------------------------------------------------------------------------------- */

static void next_late(struct loop_timer *timer)
{
	struct next_ask *n = container_of(timer, struct next_ask, timer);
	struct owner *o = owner_find(n->guest, n->request);

	must(o != NULL && o->next == n);
	next_answer(o);
}

static void next_run(struct kvof_cache *c, struct door_ask *ask)
{
	struct next_ask *n = container_of(ask, struct next_ask, ask);
	struct guest *g = door_restore_self(c);
	struct owner *o = owner_find(g, n->request);

	if (o == NULL || o->next != NULL || o->end != NULL) {
		n->rc = -EINVAL;
		door_answer(ask);
		return;
	}
	restore_next(o->req, n->out);
	if (n->out->act == KVOF_STEP_WAIT && n->wait_ns > 0) {
		o->next = n;
		n->guest = g;
		loop_timer_init(&n->timer, next_late);
		loop_timer_set(door_loop(c), &n->timer, loop_now_ns(door_loop(c)) + n->wait_ns);
		return;
	}
	if (n->out->act == KVOF_STEP_WAIT && !o->step_due) {
		n->rc = door_count(c, 1);
		o->step_due = n->rc == 0;
	}
	door_answer(ask);
}

int kvof_restore_next(struct kvof_cache *c, uint64_t request, uint64_t wait_ns,
		      struct kvof_restore_step *step)
{
	struct next_ask n = {.ask.run = next_run, .request = request, .out = step};
	int rc;

	if (step == NULL)
		return -EINVAL;
	n.wait_ns = bytes_min(wait_ns, 3600 * NS_PER_S);
	rc = door_ask(c, &n.ask);
	return rc != 0 ? rc : n.rc;
}

/* --- computed, end ---------------------------------------------------------------------------- */

struct computed {
	struct door_ask ask;
	uint64_t request, ns;
	uint32_t first, count;
	int rc;
};

static void computed_run(struct kvof_cache *c, struct door_ask *ask)
{
	struct computed *m = container_of(ask, struct computed, ask);
	struct guest *g = door_restore_self(c);
	struct request *req = restore_find(g->restore, m->request);

	m->rc = req == NULL ? -EINVAL : restore_computed(req, m->first, m->count, m->ns);
	door_answer(ask);
}

int kvof_restore_computed(struct kvof_cache *c, uint64_t request, uint32_t first, uint32_t count,
			  uint64_t ns)
{
	struct computed m = {.ask.run = computed_run, .request = request, .ns = ns,
			     .first = first, .count = count};
	int rc = door_ask(c, &m.ask);

	return rc != 0 ? rc : m.rc;
}

static void end_run(struct kvof_cache *c, struct door_ask *ask)
{
	struct end_ask *e = container_of(ask, struct end_ask, ask);
	struct guest *g = door_restore_self(c);
	struct owner *o = owner_find(g, e->request);

	if (o == NULL || o->end != NULL) {
		e->rc = -EINVAL;
		door_answer(ask);
		return;
	}
	if (request_free_now(o->req)) {
		owner_end(o, e);
		return;
	}
	o->end = e;
	restore_cancel(g->restore, e->request);
}

int kvof_restore_end(struct kvof_cache *c, uint64_t request, struct kvof_restore_trace *out)
{
	struct end_ask e = {.ask.run = end_run, .request = request, .out = out};
	int rc;

	if (out != NULL && out->struct_bytes != sizeof(*out))
		return -EINVAL;
	rc = door_ask(c, &e.ask);
	return rc != 0 ? rc : e.rc;
}

/* --- prefetch --------------------------------------------------------------------------------- */

struct hint_note {
	struct msg msg;
	struct guest *guest;
	struct hint *hint;
};

static void hint_over(struct hint *h)
{
	struct hint_note *note = h->owner;

	atomic_fetch_sub(&note->guest->hints, 1);
	hint_free(&h);
	free(note);
}

static void hint_run(struct loop *here, struct msg *m)
{
	struct hint_note *note = container_of(m, struct hint_note, msg);

	prefetch_begin(note->guest->prefetch, note->hint);
}

static int hint_post(struct guest *g, const struct kvof_id *ids, uint32_t n, uint64_t by_ns,
		     uint64_t *request)
{
	struct hint_note *note;
	struct hint *h;
	int rc = hint_make(ids, n, by_ns, &h);

	if (rc != 0)
		return rc;
	note = malloc(sizeof(*note));
	if (note == NULL) {
		hint_free(&h);
		return -EBUSY;
	}
	*note = (struct hint_note){{.run = hint_run}, g, h};
	h->owner = note;
	h->over = hint_over;
	*request = h->id = door_number(g->cache);
	loop_post(door_loop(g->cache), &note->msg);
	return 0;
}

int kvof_cache_prefetch(struct kvof_cache *c, const struct kvof_id *ids, uint32_t n_ids,
			uint64_t by_ns, uint64_t *request)
{
	struct guest *g;
	int rc;

	if (request == NULL)
		return -EINVAL;
	rc = door_enter(c);
	if (rc != 0)
		return rc;
	g = door_restore_self(c);
	rc = door_opts(c)->dram_bytes == 0 ? -EINVAL : count_in(&g->hints, KVOF_PREFETCHES_MAX);
	if (rc == 0) {
		rc = hint_post(g, ids, n_ids, by_ns, request);
		if (rc != 0)
			atomic_fetch_sub(&g->hints, 1);
	}
	door_posted(c);
	door_leave(c);
	return rc;
}

/* --- the guest, on the cache's thread --------------------------------------------------------- */

static void guest_spare(void *arg)
{
	struct guest *g = arg;

	prefetch_run(g->prefetch);
}

static void guest_free(struct guest *g)
{
	if (g->prefetch != NULL)
		prefetch_close(&g->prefetch);
	if (g->restore != NULL)
		restore_close(&g->restore);
	free(g->layer_bytes);
	free(g);
}

static int layers_copy(struct guest *g, const struct kvof_cache_opts *c)
{
	size_t bytes = c->layer_count * sizeof(uint64_t);

	g->layer_count = c->layer_count;
	if (c->layer_bytes == NULL || bytes == 0)
		return 0;
	g->layer_bytes = malloc(bytes);
	if (g->layer_bytes == NULL)
		return -ENOMEM;
	memcpy(g->layer_bytes, c->layer_bytes, bytes);
	return 0;
}

static int guest_open(struct kvof_cache *c, void **self)
{
	const struct kvof_cache_opts *opts = door_opts(c);
	struct guest *g = calloc(1, sizeof(*g));
	struct restore_opts restore = {
		.loop = door_loop(c),
		.ops = &restore_core_ops,
		.arg = door_core(c),
		.spare = guest_spare,
		.spare_arg = g,
		.staging_bytes = opts->staging_bytes,
		.deadline_ns = opts->deadline_ns != 0 ? opts->deadline_ns : RESTORE_DEADLINE_NS,
		.block_tokens = door_identity(c)->block_tokens,
	};
	struct prefetch_opts prefetch = {
		.loop = door_loop(c),
		.ops = &restore_core_ops,
		.arg = door_core(c),
		.cut_bytes = door_cut_bytes(c),
		.bytes_max = opts->staging_bytes != 0 ? opts->staging_bytes :
			     RESTORE_STAGING_BYTES,
		.deadline_ns = restore.deadline_ns,
	};
	int rc;

	if (g == NULL)
		return -ENOMEM;
	g->cache = c;
	list_init(&g->owners);
	rc = layers_copy(g, opts);
	if (rc == 0)
		rc = restore_open(&restore, &g->restore);
	prefetch.restore = g->restore;
	if (rc == 0)
		rc = prefetch_open(&prefetch, &g->prefetch);
	if (rc != 0) {
		guest_free(g);
		return rc;
	}
	*self = g;
	return 0;
}

static void guest_cancel(void *self, uint64_t request)
{
	struct guest *g = self;

	restore_cancel(g->restore, request);
	prefetch_cancel(g->prefetch, request);
}

static void guest_stat(void *self, struct kvof_cache_stat *out)
{
	const struct guest *g = self;
	struct restore_stat stat;

	restore_stat(g->restore, &stat);
	out->staging_bytes = stat.staging_bytes;
	out->staging_waits = stat.staging_waits;
	out->restores = stat.restores;
	out->restores_late = stat.restores_late;
}

/* Requests that nobody ended go with the cache; all who waited have been answered. */
static bool guest_idle(void *arg)
{
	struct guest *g = arg;
	void (*closed)(void *arg) = g->closed;
	void *closed_arg = g->closed_arg;
	struct list_link *link;

	if (!prefetch_idle(g->prefetch))
		return false;
	while ((link = list_pop_front(&g->owners)) != NULL) {
		struct owner *o = container_of(link, struct owner, link);

		must(o->next == NULL && o->end == NULL);
		free(o);
	}
	guest_free(g);
	closed(closed_arg);
	return true;
}

static void guest_close(void *self, void (*closed)(void *arg), void *arg)
{
	struct guest *g = self;

	g->closed = closed;
	g->closed_arg = arg;
	prefetch_stop(g->prefetch);
	restore_stop(g->restore, guest_idle, g);
}

const struct door_guest door_restore = {
	.open = guest_open,
	.cancel = guest_cancel,
	.stat = guest_stat,
	.close = guest_close,
};
