/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: the simulator's world: one clock, one queue of events, many loops (nodes), in one
 * thread.
 *
 * Theory: everything that takes time is an event in one heap, ordered by (time, order of adding).
 * Running the world is taking the first event, moving the clock to it and running one callback. All
 * chance comes from one generator, drawn only by events, so a seed fixes the run [SIM]. Timers live
 * in the heap of their loop and compete with the events; an event wins a tie.
 *
 * Invariants: the clock never goes back; at most one callback runs at a time; a dead loop's
 * callbacks never run again. A node that crashes keeps its struct loop until sim_end(), so that an
 * address is never used twice in a world.
 *
 * Thread: the one that called sim_begin().
 */
#include "loop/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "loop/sim_world.h"

#define SIM_EVENT_BLOCK 256
#define SIM_CLOCK_START NS_PER_S
#define SIM_MAIL_NS_MAX 2000
#define SIM_MAIL_LATE_NS 200000        /* one message in 32: the receiver was busy */

struct sim_event_block {
	struct list_link link;
	struct sim_event event[SIM_EVENT_BLOCK];
};

struct sim_world *sim_world;

static const char *const sim_fault_names[SIM_FAULT_COUNT] = {
	[SIM_DISK_READ_EIO] = "disk_read_eio",
	[SIM_DISK_READ_BAD] = "disk_read_bad",
	[SIM_DISK_READ_MISDIRECT] = "disk_read_misdirect",
	[SIM_DISK_WRITE_EIO] = "disk_write_eio",
	[SIM_DISK_WRITE_LOST] = "disk_write_lost",
	[SIM_DISK_WRITE_TORN] = "disk_write_torn",
	[SIM_DISK_WRITE_MISDIRECT] = "disk_write_misdirect",
	[SIM_DISK_ENOSPC] = "disk_enospc",
	[SIM_DISK_FLUSH_EIO] = "disk_flush_eio",
	[SIM_DISK_SLOW] = "disk_slow",
	[SIM_NET_RESET] = "net_reset",
	[SIM_NET_SPLIT] = "net_split",
	[SIM_NET_DELAY] = "net_delay",
	[SIM_NET_REFUSE] = "net_refuse",
	[SIM_NET_FLIP] = "net_flip",
};

const char *sim_fault_name(enum sim_fault kind)
{
	must(kind < SIM_FAULT_COUNT);
	return sim_fault_names[kind];
}

/* ---- the world ---- */

int sim_begin(const struct sim_opts *opts)
{
	struct sim_world *w;

	if (sim_world != NULL)
		sim_end();              /* a test that failed half way left it */
	for (int i = 0; i < SIM_FAULT_COUNT; i++)
		must(opts->fault_per_million[i] <= 1000000);
	w = calloc(1, sizeof(*w));
	if (w == NULL)
		return -ENOMEM;
	w->opts = *opts;
	if (w->opts.disk_latency_ns == 0)
		w->opts.disk_latency_ns = 100000;
	if (w->opts.net_latency_ns == 0)
		w->opts.net_latency_ns = 50000;
	if (w->opts.disk_align_bytes == 0)
		w->opts.disk_align_bytes = 4096;
	must(w->opts.disk_align_bytes == 512 || w->opts.disk_align_bytes == 4096);
	w->prng = prng_of(opts->seed);
	w->ids = prng_of(~opts->seed);
	w->now_ns = SIM_CLOCK_START;
	w->port_next = 40000;
	w->faults_on = true;
	list_init(&w->event_blocks);
	list_init(&w->loops);
	list_init(&w->media);
	list_init(&w->listeners);
	list_init(&w->conns);
	list_init(&w->dials);
	sim_world = w;
	return 0;
}

void sim_end(void)
{
	struct sim_world *w = sim_world;

	if (w == NULL)
		return;
	w->running = NULL;
	sim_sock_end();
	sim_disk_end();
	LIST_FOR_EACH_SAFE(link, &w->loops) {
		struct loop *l = container_of(link, struct loop, link);

		timers_forget(&l->timers);
		timers_close(&l->timers);
		list_remove(link);
		free(l);
	}
	LIST_FOR_EACH_SAFE(link, &w->event_blocks) {
		list_remove(link);
		free(container_of(link, struct sim_event_block, link));
	}
	w->events.count = 0;
	heap_free(&w->events);
	free(w);
	sim_world = NULL;
}

uint64_t sim_now_ns(void)
{
	must(sim_world != NULL);
	return sim_world->now_ns;
}

uint64_t sim_trace(void)
{
	must(sim_world != NULL);
	return sim_world->trace;
}

static void sim_trace_add(const struct loop *loop, enum sim_event_kind kind, int64_t value)
{
	struct sim_world *w = sim_world;
	struct prng mix =
		prng_of(w->trace ^ w->now_ns ^ (uint64_t)value << 20 ^ (uint64_t)kind << 56 ^
			(loop == NULL ? 0 : (uint64_t)loop->index + 1) << 48);

	w->trace = prng_next(&mix);
}

/* ---- faults ---- */

void sim_faults_on(bool on)
{
	must(sim_world != NULL);
	sim_world->faults_on = on;
}

uint64_t sim_fault_hits(enum sim_fault kind)
{
	must(sim_world != NULL && kind < SIM_FAULT_COUNT);
	return sim_world->hits[kind];
}

void sim_fault_count(enum sim_fault kind)
{
	must(kind < SIM_FAULT_COUNT);
	sim_world->hits[kind]++;
}

bool sim_fault_now(enum sim_fault kind)
{
	uint32_t rate = sim_world->opts.fault_per_million[kind];

	if (sim_world->fault_at[kind] > 0 && --sim_world->fault_at[kind] == 0) {
		sim_fault_count(kind);
		return true;
	}
	if (!sim_world->faults_on || rate == 0 || !prng_chance(&sim_world->prng, rate))
		return false;
	sim_fault_count(kind);
	return true;
}

void sim_fault_at(enum sim_fault kind, uint64_t n)
{
	must(sim_world != NULL && kind < SIM_FAULT_COUNT);
	sim_world->fault_at[kind] = n;
}

uint64_t sim_latency(uint64_t mean_ns)
{
	must(mean_ns > 0);
	return mean_ns / 2 + prng_below(&sim_world->prng, mean_ns) + 1;
}

/* ---- the queue of events ---- */

static struct sim_event *sim_event_of(struct heap_node *node)
{
	return container_of(node, struct sim_event, node);
}

static struct sim_event *sim_event_get(struct sim_world *w)
{
	struct sim_event *e = w->free_events;

	if (e == NULL) {
		struct sim_event_block *block = calloc(1, sizeof(*block));

		must(block != NULL);
		list_push_back(&w->event_blocks, &block->link);
		for (unsigned i = 0; i < SIM_EVENT_BLOCK; i++) {
			block->event[i].free_next = w->free_events;
			w->free_events = &block->event[i];
		}
		e = w->free_events;
	}
	w->free_events = e->free_next;
	return e;
}

struct sim_event *sim_event_add(struct loop *loop, uint64_t at_ns, enum sim_event_kind kind,
				void (*run)(struct sim_event *e), void *arg)
{
	struct sim_world *w = sim_world;
	struct sim_event *e = sim_event_get(w);

	must(at_ns >= w->now_ns && run != NULL);
	if (w->events.count == w->events.max)
		must(heap_reserve(&w->events, w->events.max == 0 ? 1024 : w->events.max * 2) == 0);
	*e = (struct sim_event){.node.at_ns = at_ns, .loop = loop, .run = run, .arg = arg,
		.kind = kind};
	heap_add(&w->events, &e->node);
	return e;
}

void sim_event_cancel(struct sim_event *e)
{
	struct sim_world *w = sim_world;

	must(e->node.index > 0);
	heap_remove(&w->events, &e->node);
	e->free_next = w->free_events;
	w->free_events = e;
}

/* Drops all events of a loop: it is closed or dead. */
static void sim_events_drop(struct loop *loop)
{
	struct sim_world *w = sim_world;
	uint32_t kept = 0;

	for (uint32_t i = 1; i <= w->events.count; i++) {
		struct sim_event *e = sim_event_of(w->events.at[i]);

		if (e->loop != loop) {
			w->events.at[++kept] = &e->node;
			continue;
		}
		e->node.index = 0;
		e->free_next = w->free_events;
		w->free_events = e;
	}
	w->events.count = kept;
	heap_rebuild(&w->events);
}

/* The loop whose first timer is the earliest of all; NULL: none is set. */
static struct loop *sim_timer_loop(struct sim_world *w)
{
	struct loop *best = NULL;

	LIST_FOR_EACH(link, &w->loops) {
		struct loop *l = container_of(link, struct loop, link);

		if (l->dead || timers_first(&l->timers) == NULL)
			continue;
		if (best == NULL ||
		    timers_first(&l->timers)->node.at_ns <
			    timers_first(&best->timers)->node.at_ns)
			best = l;
	}
	return best;
}

/* When the next thing happens; UINT64_MAX: never. */
static uint64_t sim_next_ns(struct sim_world *w)
{
	struct loop *timer_loop = sim_timer_loop(w);
	uint64_t at_ns = w->events.count > 0 ? heap_first(&w->events)->at_ns : UINT64_MAX;

	if (timer_loop != NULL)
		at_ns = bytes_min(at_ns, timers_first(&timer_loop->timers)->node.at_ns);
	return at_ns == UINT64_MAX || at_ns > w->now_ns ? at_ns : w->now_ns;
}

static void sim_run_timer(struct sim_world *w, struct loop *l)
{
	struct loop_timer *t = timers_first(&l->timers);

	if (t->node.at_ns > w->now_ns)
		w->now_ns = t->node.at_ns;
	timers_cancel(&l->timers, t);
	sim_trace_add(l, SIM_EVENT_TIMER, 0);
	l->callbacks++;
	w->running = l;
	t->fire(t);
	w->running = NULL;
}

static void sim_run_event(struct sim_world *w)
{
	struct sim_event *e = sim_event_of(heap_first(&w->events));
	struct loop *l = e->loop;

	must(e->node.at_ns >= w->now_ns && (l == NULL || !l->dead));
	w->now_ns = e->node.at_ns;
	heap_remove(&w->events, &e->node);
	sim_trace_add(l, e->kind, e->value);
	if (l != NULL)
		l->callbacks++;
	w->running = l;
	e->run(e);
	w->running = NULL;
	e->free_next = w->free_events;
	w->free_events = e;
}

bool sim_step(void)
{
	struct sim_world *w = sim_world;
	struct loop *timer_loop;

	must(w != NULL && w->running == NULL);
	if (w->crashed != NULL)
		return false;
	timer_loop = sim_timer_loop(w);
	if (timer_loop == NULL && w->events.count == 0)
		return false;
	if (timer_loop != NULL && (w->events.count == 0 ||
	    timers_first(&timer_loop->timers)->node.at_ns < heap_first(&w->events)->at_ns))
		sim_run_timer(w, timer_loop);
	else
		sim_run_event(w);
	return w->crashed == NULL;
}

bool sim_run_until(bool (*until)(void *arg), void *arg, uint64_t ns_max)
{
	struct sim_world *w = sim_world;
	uint64_t end_ns = ns_max > UINT64_MAX - w->now_ns ? UINT64_MAX : w->now_ns + ns_max;

	while (!until(arg)) {
		uint64_t next_ns = sim_next_ns(w);

		if (next_ns == UINT64_MAX || next_ns > end_ns) {
			if (end_ns != UINT64_MAX && w->crashed == NULL)
				w->now_ns = end_ns;
			return until(arg);
		}
		if (!sim_step())
			return until(arg);
	}
	return true;
}

/* ---- crashes and links ---- */

bool sim_write_crashes(struct loop *loop)
{
	struct sim_world *w = sim_world;

	must(w->crashed == NULL);
	w->writes++;
	if (w->crash_at_write == 0 || w->writes < w->crash_at_write)
		return false;
	w->crashed = loop->node;
	w->crash_at_write = 0;
	return true;
}

void sim_crash_at_write(uint64_t n)
{
	must(sim_world != NULL);
	sim_world->crash_at_write = n == 0 ? 0 : sim_world->writes + n;
}

struct loop *sim_crashed(void)
{
	must(sim_world != NULL);
	return sim_world->crashed;
}

uint64_t sim_writes(void)
{
	must(sim_world != NULL);
	return sim_world->writes;
}

void sim_join(struct loop *loop, struct loop *with)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	OBJ_CHECK(with, SIM_LOOP_MAGIC);
	must(!loop->dead && !with->dead && loop->node == loop);
	must(list_empty(&loop->disks) && list_empty(&loop->socks) && list_empty(&loop->listeners));
	loop->node = with->node;
}

static void sim_loop_crash(struct loop *l, bool keep_unflushed)
{
	sim_disk_crash(l, keep_unflushed);
	sim_sock_crash(l);
	sim_events_drop(l);
	timers_forget(&l->timers);
	l->dead = true;
	l->ops_flying = 0;
}

void sim_crash(struct loop **loop, bool keep_unflushed)
{
	struct sim_world *w = sim_world;
	struct loop *l;

	OBJ_TAKE(l, loop, SIM_LOOP_MAGIC);
	must(w->running == NULL && !l->dead);
	w->crashed = NULL;
	LIST_FOR_EACH(link, &w->loops) {
		struct loop *other = container_of(link, struct loop, link);

		if (other->node == l->node && !other->dead)
			sim_loop_crash(other, keep_unflushed);
	}
}

static bool sim_cut_is(struct sim_cut c, const struct loop *a, const struct loop *b)
{
	uint32_t x = a->node->index, y = b->node->index;

	return (c.a == x && c.b == y) || (c.a == y && c.b == x);
}

void sim_link_cut(const struct loop *a, const struct loop *b, bool cut)
{
	struct sim_world *w = sim_world;
	unsigned kept = 0;

	must(w != NULL && a->node != b->node);
	for (unsigned i = 0; i < w->cut_count; i++) {
		struct sim_cut c = w->cuts[i];

		if (!sim_cut_is(c, a, b))
			w->cuts[kept++] = c;
	}
	w->cut_count = kept;
	if (cut) {
		must(w->cut_count < ARRAY_COUNT(w->cuts));
		w->cuts[w->cut_count++] = (struct sim_cut){a->node->index, b->node->index};
	} else {
		sim_sock_uncut();
	}
}

bool sim_cut_between(const struct loop *a, const struct loop *b)
{
	struct sim_world *w = sim_world;

	for (unsigned i = 0; i < w->cut_count; i++) {
		struct sim_cut c = w->cuts[i];

		if (sim_cut_is(c, a, b))
			return true;
	}
	return false;
}

/* ---- operations ---- */

void sim_op_begin(struct loop *loop, struct loop_op *op, void *owner)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	loop_must_own(loop);
	must(op->done != NULL && op->state != SIM_OP_FLYING);
	op->state = SIM_OP_FLYING;
	op->owner = owner;
	op->next = NULL;
	loop->ops_flying++;
}

void sim_op_end(struct loop *loop, struct loop_op *op, int res)
{
	must(op->state == SIM_OP_FLYING && loop->ops_flying > 0 && sim_world->running == loop);
	loop->ops_flying--;
	op->state = 0;
	op->res = res;
	sim_trace_add(loop, SIM_EVENT_OP, res);
	op->done(op, res);
}

static void sim_op_event(struct sim_event *e)
{
	sim_op_end(e->loop, e->arg, (int)e->value);
}

void sim_op_end_soon(struct loop *loop, struct loop_op *op, int res, uint64_t delay_ns)
{
	must(op->state == SIM_OP_FLYING);
	sim_event_add(loop, sim_world->now_ns + delay_ns, SIM_EVENT_OP, sim_op_event, op)->value =
		res;
}

/* ---- loop.h ---- */

void *loop_buffer_map(uint64_t bytes)
{
	must(bytes > 0);
	return aligned_alloc(4096, bytes_round_up(bytes, 4096));
}

void loop_buffer_unmap(void *at, uint64_t bytes)
{
	must(at == NULL || bytes > 0);
	free(at);
}

void loop_buffer_register(struct loop *loop, void *at, uint64_t bytes)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	must(at != NULL && bytes > 0);
}

void loop_buffer_unregister(struct loop *loop, const void *at, uint64_t bytes)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	must(at != NULL && bytes > 0);
}

const char *loop_kind(const struct loop *loop)
{
	return "simulator";
}

int loop_open(const struct loop_opts *opts, struct loop **out)
{
	struct sim_world *w = sim_world;
	struct loop *l;

	must(w != NULL);                /* sim_begin() comes first */
	l = calloc(1, sizeof(*l));
	if (l == NULL)
		return -ENOMEM;
	if (timers_open(&l->timers, opts->timers_max == 0 ? 4096 : opts->timers_max) != 0) {
		free(l);
		return -ENOMEM;
	}
	OBJ_INIT(l, SIM_LOOP_MAGIC);
	l->index = w->loop_count++;
	l->node = l;
	l->name = opts->name == NULL ? "loop" : opts->name;
	list_init(&l->disks);
	list_init(&l->socks);
	list_init(&l->listeners);
	list_init(&l->dials);
	list_push_back(&w->loops, &l->link);
	*out = l;
	return 0;
}

void loop_close(struct loop **loop)
{
	uint64_t end_ns = sim_world->now_ns + 5 * NS_PER_S;
	struct loop *l;

	OBJ_TAKE(l, loop, SIM_LOOP_MAGIC);
	must(sim_world->running == NULL);
	while (l->ops_flying > 0 && sim_next_ns(sim_world) < end_ns && sim_step())
		;                       /* what was cancelled a moment ago comes in */
	sim_sock_loop_close(l);
	must(list_empty(&l->disks) && list_empty(&l->socks) && list_empty(&l->listeners));
	must(l->ops_flying == 0 && l->timers.heap.count == 0);
	sim_events_drop(l);
	l->dead = true;
}

unsigned loop_turn(struct loop *loop, uint64_t wait_ns_max)
{
	struct sim_world *w = sim_world;
	uint64_t end_ns, before = loop->callbacks;

	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	must(w->running == NULL && !loop->dead);
	end_ns = wait_ns_max > UINT64_MAX - w->now_ns ? UINT64_MAX : w->now_ns + wait_ns_max;
	while (loop->callbacks == before) {
		uint64_t next_ns = sim_next_ns(w);

		if (next_ns == UINT64_MAX || next_ns > end_ns) {
			if (end_ns != UINT64_MAX && w->crashed == NULL)
				w->now_ns = end_ns;
			break;
		}
		if (!sim_step())
			break;
	}
	return (unsigned)(loop->callbacks - before);
}

int loop_run(struct loop *loop)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	loop->stop = false;
	while (!loop->stop)
		if (!sim_step())
			break;          /* crashed, or nothing can ever happen again */
	return 0;
}

void loop_stop(struct loop *loop)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	loop_must_own(loop);
	loop->stop = true;
}

uint64_t loop_now_ns(const struct loop *loop)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	return sim_world->now_ns;
}

void loop_now_take(struct loop *loop)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	loop_must_own(loop);       /* what happens outside a turn takes no time */
}

void loop_random(void *out, size_t bytes)
{
	prng_fill(&sim_world->ids, out, bytes);
}

bool loop_visit(struct loop *loop, struct msg *m)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	return false;              /* events of a loop run in their order alone */
}

bool loop_here(const struct loop *loop)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	return sim_world->running == NULL || sim_world->running == loop;
}

static void sim_msg_event(struct sim_event *e)
{
	struct msg *m = e->arg;

	m->run(e->loop, m);
}

/* Where it is kept until when the last message of this sender to that loop arrives. */
static struct sim_sender *sim_sender_of(struct loop *to, const struct loop *from)
{
	for (unsigned i = 0; i < to->sender_count; i++)
		if (to->sender[i].from == from)
			return &to->sender[i];
	must(to->sender_count < SIM_SENDERS_MAX);
	to->sender[to->sender_count] = (struct sim_sender){.from = from};
	return &to->sender[to->sender_count++];
}

/* Messages of different senders overtake each other as chance will have it. */
void loop_post(struct loop *to, struct msg *m)
{
	struct sim_world *w = sim_world;
	uint64_t at_ns = w->now_ns + prng_below(&w->prng, SIM_MAIL_NS_MAX);
	struct sim_sender *s;

	OBJ_CHECK(to, SIM_LOOP_MAGIC);
	must(m->run != NULL);
	if (to->dead || (w->running != NULL && sim_is_ghost(w->running)))
		return;
	if (prng_below(&w->prng, 32) == 0)
		at_ns += prng_below(&w->prng, SIM_MAIL_LATE_NS);
	s = sim_sender_of(to, w->running);
	if (at_ns < s->at_ns)
		at_ns = s->at_ns;
	s->at_ns = at_ns;
	sim_event_add(to, at_ns, SIM_EVENT_MSG, sim_msg_event, m);
}

void loop_soon(struct loop *loop, struct loop_op *op, int res)
{
	sim_op_begin(loop, op, NULL);
	sim_op_end_soon(loop, op, res, 0);
}

void loop_timer_set(struct loop *loop, struct loop_timer *t, uint64_t at_ns)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	loop_must_own(loop);
	if (!loop->dead)
		timers_set(&loop->timers, t, at_ns);
}

void loop_timer_cancel(struct loop *loop, struct loop_timer *t)
{
	OBJ_CHECK(loop, SIM_LOOP_MAGIC);
	loop_must_own(loop);
	if (!loop->dead)
		timers_cancel(&loop->timers, t);
}

void loop_poll(struct loop *loop, int fd, struct loop_op *op)
{
	loop_soon(loop, op, -EINVAL);
}

void loop_poll_cancel(struct loop *loop, struct loop_op *op)
{
	loop_must_own(loop);
	must(op->state == SIM_OP_FLYING);
}
