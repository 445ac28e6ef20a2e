/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hour's restores and hints: requests of both modes with deadlines, some with an engine that
 * computes beside them, some canceled in the middle.
 *
 * Judged: a layer that is told, a block that came and what is usable have the bytes that were
 * saved; what was handed out keeps the engine's; a request is over by its deadline, once; after it
 * is free no byte is written; its trace agrees with what was told.
 */
#ifndef KVOF_TESTS_SIM_CACHE_HOUR_RESTORE_H
#define KVOF_TESTS_SIM_CACHE_HOUR_RESTORE_H

#include "cache_hour.h"

enum { ASKS = 4, HINTS = 3, LAYERS = 3 };
#define COLD_NS NS_PER_S                   /* memory of a request is watched for so long */

struct ask {
	struct msg msg;
	struct list_link link;
	struct proc *proc;
	struct request *req;               /* NULL: ended, its memory is watched */
	uint64_t id, begin_ns, deadline_ns, over_ns, ended_ns;
	uint32_t sequence, count, layers;
	bool ends, engine, computing, engine_done, over, must_come;
	struct place_engine real;
	struct loop_timer timer, cancel;
	uint64_t cancel_ns;                /* 0: is not */
	uint32_t first, steps;             /* what is computed */
	struct kvof_result last;
	uint64_t hits[KVOF_TIER_COUNT], bytes[KVOF_TIER_COUNT];
	bool claimed[BLOCKS];
	uint8_t *at[BLOCKS];
};

static void ask_free(struct ask *a)
{
	list_remove(&a->link);
	for (uint32_t i = 0; i < a->count; i++)
		free(a->at[i]);
	free(a);
}

static uint64_t layer_end(uint64_t bytes, uint32_t layers)
{
	return bytes / LAYERS * layers + bytes % LAYERS * layers / LAYERS;
}

/* Bytes [from, to) of a block are those of a save that was submitted. */
static void ask_bytes_good(const struct ask *a, uint32_t index, uint64_t from, uint64_t to)
{
	size_t bytes = block_bytes(a->sequence, index);
	uint8_t *want = malloc(bytes + 1);

	if (!h.saved[a->sequence][index])
		fail_msg("a restored block that nobody saved: %u of %u", index, a->sequence);
	block_fill(want, a->sequence, index);
	expect_mem(a->at[index] + from, want + from, to - from);
	free(want);
}

static void ask_layer(struct ask *a, const struct kvof_result *r)
{
	expect(!a->ends && r->index == a->layers && r->value_bytes <= a->count);
	a->layers++;
	h.layers++;
	for (uint32_t i = 0; i < r->value_bytes; i++) {
		uint64_t bytes = block_bytes(a->sequence, i);

		ask_bytes_good(a, i, layer_end(bytes, r->index), layer_end(bytes, r->index + 1));
	}
}

static void ask_block(struct ask *a, const struct kvof_result *r)
{
	uint64_t bytes = block_bytes(a->sequence, r->index);

	if ((r->flags & KVOF_RESULT_RELEASED) != 0)
		return;
	expect(!a->claimed[r->index]);
	a->proc->reasons[r->reason]++;
	if (r->reason != KVOF_OK)
		return;
	expect_int(r->value_bytes, bytes);
	ask_bytes_good(a, r->index, 0, bytes);
	a->hits[r->tier]++;
	a->bytes[r->tier] += bytes;
	a->proc->hits[r->tier]++;
	h.restored[r->tier]++;
}

static void ask_event(void *owner, const struct kvof_result *r)
{
	struct ask *a = owner;
	uint64_t now = loop_now_ns(a->proc->loop);

	if ((r->flags & KVOF_RESULT_LAYER) != 0) {
		ask_layer(a, r);
	} else if (r->flags == KVOF_RESULT_REQUEST) {
		expect(!a->over);
		a->over = true;
		a->last = *r;
		h.reasons[r->reason] += r->reason != KVOF_OK;
		if (now > a->begin_ns + a->deadline_ns + LATE_NS)
			fail_msg("a request is %.1f ms late",
				 (double)(now - a->begin_ns - a->deadline_ns) / 1e6);
	} else if ((r->flags & KVOF_RESULT_REQUEST) == 0) {
		ask_block(a, r);
	}
}

static void ask_go(struct ask *a)
{
	struct kvof_restore_step step;
	struct place_span span;

	if (!a->engine || a->computing || a->engine_done)
		return;
	restore_next(a->req, &step);
	a->engine_done = step.act == KVOF_STEP_DONE;
	if (a->engine_done && a->ends)
		expect_int(step.usable, a->count);
	if (step.act != KVOF_STEP_COMPUTE)
		return;
	for (uint32_t i = step.first; i < step.first + step.count; i++) {
		expect(i < a->count && !a->claimed[i]);
		a->claimed[i] = true;
		memset(a->at[i], 0xc1, block_bytes(a->sequence, i));
	}
	a->computing = true;
	a->first = step.first;
	a->steps = step.count;
	h.computed += step.count;
	span = (struct place_span){(uint64_t)step.first * 4, (uint64_t)step.count * 4};
	loop_timer_set(a->proc->loop, &a->timer, loop_now_ns(a->proc->loop) +
		       place_engine_ns(&a->real, span));
}

static void ask_changed(void *owner);

static void ask_computed(struct loop_timer *timer)
{
	struct ask *a = container_of(timer, struct ask, timer);
	struct place_span span = {(uint64_t)a->first * 4, (uint64_t)a->steps * 4};

	a->computing = false;
	if (prng_below(&h.prng, 8) != 0)
		expect_int(restore_computed(a->req, a->first, a->steps,
					    place_engine_ns(&a->real, span)), 0);
	ask_changed(a);
}

static void ask_trace(const struct ask *a)
{
	struct kvof_restore_trace t = {0};
	uint32_t claimed = 0, missed = 0;

	request_trace(a->req, &t);
	for (uint32_t i = 0; i < a->count; i++)
		claimed += a->claimed[i];
	for (unsigned i = 0; i < ARRAY_COUNT(t.reasons); i++)
		missed += t.reasons[i];
	expect_int(t.blocks, a->count);
	expect_int(t.computed, claimed);
	expect(t.loaded + claimed <= a->count && t.loaded + missed <= a->count);
	expect(t.usable <= a->count && t.end_ns >= t.begin_ns);
	for (unsigned i = 0; i < KVOF_TIER_COUNT; i++) {
		expect_int(t.block_count[i], a->hits[i]);
		expect_int(t.bytes[i], a->bytes[i]);
	}
}

/* Over, free, and the engine has all it wanted. */
static void ask_end(struct ask *a)
{
	uint32_t usable = (uint32_t)a->last.value_bytes;

	expect(usable <= a->count);
	if (a->must_come)
		expect_int(usable, a->count);
	for (uint32_t i = 0; i < a->count; i++) {
		size_t bytes = block_bytes(a->sequence, i);

		if (a->claimed[i]) {
			for (size_t k = 0; k < bytes; k++)
				expect_int(a->at[i][k], 0xc1);
		} else if (i < usable || (a->engine && a->ends)) {
			/* ENDS: also what was loaded behind a block that the engine computed */
			ask_bytes_good(a, i, 0, bytes);
		} else if (a->engine) {
			fail_msg("block %u of %u is neither usable nor the engine's", i, a->count);
		}
		memset(a->at[i], 0x5a, bytes);
	}
	ask_trace(a);
	loop_timer_cancel(a->proc->loop, &a->cancel);
	restore_forget(a->req);
	request_free(&a->req);
	a->ended_ns = loop_now_ns(a->proc->loop);
	a->proc->asks--;
}

static void ask_changed(void *owner)
{
	struct ask *a = owner;

	ask_go(a);
	if (a->over && request_free_now(a->req) && !a->computing &&
	    (!a->engine || a->engine_done))
		ask_end(a);
}

static const struct request_events ask_events = {ask_event, ask_changed};

static void ask_cancel(struct loop_timer *timer)
{
	struct ask *a = container_of(timer, struct ask, cancel);

	restore_cancel(a->proc->restore, a->id);
}

static void ask_run(struct loop *loop, struct msg *m)
{
	struct ask *a = container_of(m, struct ask, msg);

	a->begin_ns = loop_now_ns(loop);
	loop_timer_init(&a->timer, ask_computed);
	loop_timer_init(&a->cancel, ask_cancel);
	if (a->cancel_ns > 0)
		loop_timer_set(loop, &a->cancel, a->begin_ns + a->cancel_ns);
	restore_begin(a->proc->restore, a->req, a->id, &ask_events, a);
}

static void ask_make(struct ask *a, const struct kvof_restore_opts *opts)
{
	struct request_layout layout = {.cut_bytes = CUT, .layer_count = LAYERS};
	struct proc *p = a->proc;
	struct kvof_block b[BLOCKS];
	struct iovec iov[BLOCKS][2];

	for (uint32_t i = 0; i < a->count; i++) {
		size_t bytes = block_bytes(a->sequence, i), half = bytes / 2;

		a->at[i] = malloc(bytes + 1);
		memset(a->at[i], 0x33, bytes);
		iov[i][0] = (struct iovec){a->at[i], half};
		iov[i][1] = (struct iovec){a->at[i] + half, bytes - half};
		b[i] = (struct kvof_block){block_id(p, a->sequence, i), iov[i], 2, bytes};
	}
	expect_int(request_make(b, a->count, opts, &layout, &a->req), 0);
	a->msg.run = ask_run;
	a->id = p->next_id++;
	p->asks++;
	h.asks++;
	list_push_back(&p->ask_list, &a->link);
	loop_post(p->loop, &a->msg);
}

static void restore_some(void)
{
	struct proc *p = &h.proc[prng_below(&h.prng, PROCS)];
	struct ask *a;
	struct kvof_restore_opts opts = {
		.struct_bytes = sizeof(opts),
		.mode = (uint32_t)prng_below(&h.prng, 2),
		.flags = KVOF_RESTORE_EACH |
			 (prng_below(&h.prng, 4) == 0 ? KVOF_RESTORE_LOAD_ALL : 0),
		.suffix_tokens = (uint32_t)prng_below(&h.prng, 16),
		.deadline_ns = 1 + prng_below(&h.prng, DEADLINE_NS),
		.prefill_tokens_per_s = prng_below(&h.prng, 3) == 0 ? 0 :
					(double)(1 + prng_below(&h.prng, 100000)),
		.priority = (int32_t)prng_below(&h.prng, 3),
		.step_blocks = (uint32_t)prng_below(&h.prng, 4),
	};

	if (p->loop == NULL || p->asks >= ASKS)
		return;
	a = calloc(1, sizeof(*a));
	*a = (struct ask){
		.proc = p,
		.sequence = (uint32_t)prng_below(&h.prng, 1 + prng_below(&h.prng, SEQUENCES)),
		.count = 1 + (uint32_t)prng_below(&h.prng, BLOCKS),
		.deadline_ns = opts.deadline_ns,
		.ends = opts.mode == KVOF_RESTORE_ENDS,
		.engine = prng_below(&h.prng, 4) != 0,
		.real = {1 + prng_below(&h.prng, 5000) * 1000 * 1000, prng_below(&h.prng, 1000)},
		.cancel_ns = prng_below(&h.prng, 10) == 0 ? 1 + prng_below(&h.prng, DEADLINE_NS) :
			     0,
	};
	ask_make(a, &opts);
}

/* What the engine got back stays as it is. */
static void asks_watch(struct proc *p)
{
	LIST_FOR_EACH_SAFE(link, &p->ask_list) {
		struct ask *a = container_of(link, struct ask, link);

		if (a->req != NULL || sim_now_ns() < a->ended_ns + COLD_NS)
			continue;
		for (uint32_t i = 0; i < a->count; i++)
			for (size_t k = 0; k < block_bytes(a->sequence, i); k++)
				if (a->at[i][k] != 0x5a)
					fail_msg("a byte was written after a request was free");
		ask_free(a);
	}
}

/* All that was saved everywhere, by a process that may have none of it. */
static bool asks_idle(void *arg)
{
	return ((struct proc *)arg)->asks == 0;
}

static void restore_quiet(struct proc *p, uint32_t sequence)
{
	struct kvof_restore_opts opts = {
		.struct_bytes = sizeof(opts),
		.flags = KVOF_RESTORE_EACH | KVOF_RESTORE_LOAD_ALL,
		.mode = (uint32_t)prng_below(&h.prng, 2),
		.deadline_ns = 5 * NS_PER_S,
	};
	struct ask *a = calloc(1, sizeof(*a));

	*a = (struct ask){.proc = p, .sequence = sequence, .count = BLOCKS, .must_come = true,
			  .deadline_ns = opts.deadline_ns,
			  .ends = opts.mode == KVOF_RESTORE_ENDS};
	ask_make(a, &opts);
	expect(sim_run_until(asks_idle, p, 10 * NS_PER_S));
}

/* --- hints ------------------------------------------------------------------------------------ */

struct hint_msg {
	struct msg msg;
	struct list_link link;
	struct proc *proc;
	struct hint *hint;
};

static void hint_over(struct hint *hint)
{
	struct hint_msg *m = hint->owner;

	list_remove(&m->link);
	m->proc->hints--;
	hint_free(&hint);
	free(m);
}

static void hint_run(struct loop *loop, struct msg *msg)
{
	struct hint_msg *m = container_of(msg, struct hint_msg, msg);

	prefetch_begin(m->proc->prefetch, m->hint);
}

static uint64_t hint_cancel_id;

static void hint_cancel(struct proc *p)
{
	prefetch_cancel(p->prefetch, hint_cancel_id);
}

static void hint_some(void)
{
	struct proc *p = &h.proc[prng_below(&h.prng, PROCS)];
	uint32_t sequence = (uint32_t)prng_below(&h.prng, SEQUENCES);
	uint32_t count = 1 + (uint32_t)prng_below(&h.prng, BLOCKS);
	uint64_t by_ns = prng_below(&h.prng, 2) * prng_below(&h.prng, DEADLINE_NS);
	struct kvof_id ids[BLOCKS];
	struct hint_msg *m;

	if (p->loop == NULL || p->hints >= HINTS)
		return;
	m = calloc(1, sizeof(*m));
	for (uint32_t i = 0; i < count; i++)
		ids[i] = block_id(p, sequence, i);
	expect_int(hint_make(ids, count, by_ns, &m->hint), 0);
	m->hint->owner = m;
	m->hint->over = hint_over;
	m->hint->id = p->next_id++;
	m->msg.run = hint_run;
	m->proc = p;
	list_push_back(&p->hint_list, &m->link);
	p->hints++;
	h.hints++;
	hint_cancel_id = m->hint->id;
	loop_post(p->loop, &m->msg);
	if (prng_below(&h.prng, 10) == 0)
		here(p, hint_cancel);
}

/* --- with the process ------------------------------------------------------------------------- */

static void restore_spare(void *arg)
{
	prefetch_run(((struct proc *)arg)->prefetch);
}

/* Beside the core, as restore_api.c does it. */
static void restores_up(struct proc *p)
{
	struct restore_opts restore = {
		.loop = p->loop, .ops = &restore_core_ops, .arg = p->core, .spare = restore_spare,
		.spare_arg = p, .staging_bytes = 64 * KiB, .deadline_ns = DEADLINE_NS,
		.block_tokens = 4,
	};
	struct prefetch_opts prefetch = {
		.loop = p->loop, .ops = &restore_core_ops, .arg = p->core, .cut_bytes = CUT,
		.bytes_max = 64 * KiB, .deadline_ns = DEADLINE_NS,
	};

	expect_int(restore_open(&restore, &p->restore), 0);
	prefetch.restore = p->restore;
	expect_int(prefetch_open(&prefetch, &p->prefetch), 0);
}

static bool restores_idle(void *arg)
{
	struct proc *p = arg;

	if (!prefetch_idle(p->prefetch))
		return false;
	prefetch_close(&p->prefetch);
	restore_close(&p->restore);
	return true;
}

static void restores_stop(struct proc *p)
{
	prefetch_stop(p->prefetch);
	restore_stop(p->restore, restores_idle, p);
}

static bool restores_gone(void *arg)
{
	return ((struct proc *)arg)->restore == NULL;
}

/* In the middle of whatever they do. */
static void restores_down(struct proc *p)
{
	here(p, restores_stop);
	expect(sim_run_until(restores_gone, p, 10 * NS_PER_S));
	expect_int(p->hints, 0);
	while (!list_empty(&p->ask_list)) {
		struct ask *a = container_of(p->ask_list.next, struct ask, link);

		if (a->req != NULL) {
			loop_timer_cancel(p->loop, &a->timer);
			loop_timer_cancel(p->loop, &a->cancel);
		}
		ask_free(a);
	}
	p->asks = 0;
}

/* Its loop is gone, and all that it knew. */
static void restores_kill(struct proc *p)
{
	bury(p->restore);
	bury(p->prefetch);
	while (!list_empty(&p->ask_list)) {
		struct ask *a = container_of(p->ask_list.next, struct ask, link);

		free(a->req);
		ask_free(a);
	}
	while (!list_empty(&p->hint_list)) {
		struct hint_msg *m = container_of(p->hint_list.next, struct hint_msg, link);

		list_remove(&m->link);
		hint_free(&m->hint);
		free(m);
	}
	p->asks = p->hints = 0;
}

#endif
