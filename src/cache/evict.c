/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One batch of deletions at a time. Its memory is made here, on the loop: once for many blocks, and
 * none of them waits for it. Invariant: `flying` is NULL or the batch in flight; while it is, no
 * timer is set.
 */
#include "cache/evict.h"

#include <errno.h>
#include <stdlib.h>

#include "base/must.h"

#define EVICT_MAGIC 0x65766963u
#define EVICT_CUT_BYTES 4096               /* of no meaning to a deletion */

struct evict {
	uint32_t magic;
	struct loop *loop;
	struct core *core;
	struct prefix *tree;
	struct loop_timer timer;
	struct cache_batch *flying;
	bool stopped;
};

static void evict_quiet(struct cache_batch *batch, const struct kvof_result *r)
{
	struct evict *ev = batch->owner;
	const struct kvof_id *id;

	OBJ_CHECK(ev, EVICT_MAGIC);
	if (r == NULL) {
		batch_free(&ev->flying);
		evict_set(ev);
		return;
	}
	id = &batch->op[r->index].tier_op.id;
	if (r->reason == KVOF_OK || r->reason == KVOF_ABSENT)
		prefix_over_done(ev->tree, id);
	else
		prefix_over_again(ev->tree, id, loop_now_ns(ev->loop) + EVICT_AGAIN_NS);
}

static void evict_begin(struct evict *ev, const struct kvof_block *block, uint32_t count)
{
	uint64_t now = loop_now_ns(ev->loop);

	if (batch_make(KVOF_DELETE, block, count, EVICT_CUT_BYTES, &ev->flying) == 0) {
		ev->flying->flags = KVOF_UNORDERED;
		ev->flying->quiet = evict_quiet;
		ev->flying->owner = ev;
		core_submit(ev->core, ev->flying);
		return;
	}
	for (uint32_t i = 0; i < count; i++)
		prefix_over_again(ev->tree, &block[i].id, now + EVICT_AGAIN_NS);
	evict_set(ev);
}

static void evict_fire(struct loop_timer *t)
{
	struct evict *ev = container_of(t, struct evict, timer);
	struct kvof_block block[EVICT_BATCH] = {0};
	uint64_t now = loop_now_ns(ev->loop);
	uint32_t n = 0;

	must(ev->flying == NULL && !ev->stopped);
	while (n < EVICT_BATCH && prefix_over_take(ev->tree, now, &block[n].id))
		n++;
	if (n > 0)
		evict_begin(ev, block, n);
	else
		evict_set(ev);
}

void evict_set(struct evict *ev)
{
	uint64_t at = prefix_over_at(ev->tree);

	OBJ_CHECK(ev, EVICT_MAGIC);
	if (ev->stopped || ev->flying != NULL)
		return;
	if (at == UINT64_MAX)
		loop_timer_cancel(ev->loop, &ev->timer);
	else
		loop_timer_set(ev->loop, &ev->timer, at);
}

int evict_open(struct loop *loop, struct core *core, struct prefix *tree, struct evict **out)
{
	struct evict *ev = calloc(1, sizeof(*ev));

	if (ev == NULL)
		return -ENOMEM;
	OBJ_INIT(ev, EVICT_MAGIC);
	ev->loop = loop;
	ev->core = core;
	ev->tree = tree;
	loop_timer_init(&ev->timer, evict_fire);
	*out = ev;
	return 0;
}

void evict_stop(struct evict *ev)
{
	OBJ_CHECK(ev, EVICT_MAGIC);
	ev->stopped = true;
	loop_timer_cancel(ev->loop, &ev->timer);
}

void evict_close(struct evict **evp)
{
	struct evict *ev;

	OBJ_TAKE(ev, evp, EVICT_MAGIC);
	must(ev->flying == NULL);
	free(ev);
}
