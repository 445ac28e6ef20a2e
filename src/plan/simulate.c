/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events in the order of their time; of one time, in the order in which they were set. What is
 * here:
 *
 *   arm      a station that loads share, and what it is told (bytes or tokens)
 *   engine   an instance: prompts in the order in which they came. One that becomes ready takes
 *            the place of a later one, which goes on afterwards: only so does an early prompt that
 *            waited for its load not wait for the prompts behind it as well
 *   live     a request between its arrival and its end
 *   line     loads that wait to begin, first come first
 *
 * Why nobody is late (SIMULATE_SOONER): computed in order, a request would have the engine for
 * itself from D - c to D. If its load ends by D - r, with r of its c left to compute, that fits
 * between D - c and D. So a schedule in which all are in time exists, and serving by D, which is by
 * order of arrival, finds it. A load begins only when bounds of its end and of all loads under way,
 * with it among them, keep that; later ones are checked against the same, so the bounds stay true.
 */
#include "plan/simulate.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/must.h"
#include "base/prng.h"
#include "plan/arm.h"
#include "plan/station.h"

#define SHARED_FROM 0.75                   /* of median_share: loads end together, not in turn */
#define LINE_TRIES 16u                     /* loads in line that are looked at */
#define SATURATED 0.9
#define WAIT_LEAST 0.05                    /* of all first tokens' time: less is no bottleneck */
#define IN_TIME_S 1e-6

struct sim;

struct event {
	struct heap_node node;
	double at_s;
	void (*run)(struct sim *s, struct event *e);
};

struct live;

struct part {                              /* of a load, from one tier */
	struct station_job job;
	struct event enter;
	struct list_link link;             /* of the arm's parts under way */
	struct live *live;
	unsigned tier;
	double units, left;                /* left: when it was last looked at */
	uint64_t blocks, tokens;
};

enum live_state {
	LIVE_NEW, LIVE_FIXED, LIVE_HELD, LIVE_LOADING, LIVE_READY, LIVE_COMPUTING, LIVE_TOKEN,
	LIVE_DECODING, LIVE_OVER, LIVE_STATES,
};

static const uint16_t live_next[LIVE_STATES] = {
	[LIVE_NEW] = 1 << LIVE_FIXED | 1 << LIVE_HELD,
	[LIVE_FIXED] = 1 << LIVE_READY,
	[LIVE_HELD] = 1 << LIVE_LOADING | 1 << LIVE_READY,
	[LIVE_LOADING] = 1 << LIVE_READY | 1 << LIVE_TOKEN,
	[LIVE_READY] = 1 << LIVE_COMPUTING | 1 << LIVE_TOKEN,
	[LIVE_COMPUTING] = 1 << LIVE_READY | 1 << LIVE_TOKEN,
	[LIVE_TOKEN] = 1 << LIVE_DECODING | 1 << LIVE_OVER,
	[LIVE_DECODING] = 1 << LIVE_OVER,
};

struct user {
	struct event event;
};

struct live {
	enum live_state state;
	const struct trace_request *request;
	struct user *user;
	struct engine *engine;
	uint32_t number;                   /* in order of arrival */
	double arrive_s, due_s, turn_s;    /* D, and D - c */
	double compute_s, rest_s;          /* c; what is left to compute once it is loaded */
	double load_s, ready_s, begun_s;   /* when those began */
	double staged_bytes;
	uint32_t load, parts;              /* blocks that are loaded; parts under way */
	uint64_t load_tokens;
	struct part part[TIERS];
	struct event timer;
	struct station_job job;            /* at an engine that is shared, then decoding */
	struct heap_node ready;
	struct list_link line, all;
	uint8_t from[];
};

struct engine {
	struct event event, decoded;
	struct heap ready;
	struct live *running;
	struct station shared, decode;
	double free_s;                     /* if all were computed in order */
	double pledged_s, busy_s, wait_s, staged_bytes;
	uint32_t most;
};

struct arm {
	struct kvof_plan_arm arm;
	struct station station;
	struct event event;
	struct list_link parts;
	double block_bytes;
};

struct sim {
	const struct trace *trace;
	const struct simulate_opts *opts;
	struct simulate_result *out;
	struct heap events;
	struct tiers tiers;
	struct arm arm[TIERS];
	struct engine *engine;
	uint32_t engines, total, arrived, tokens_out;
	struct user *user;
	struct event arrive;
	struct list_link line, all;
	struct prng prng;
	double now_s, last_arrival_s, output_tokens, held_s;
	struct part **sorted;              /* scratch of a check */
	uint32_t sorted_room;
	float *without_s;
	bool shared;                       /* engines run prompts side by side */
	int rc;
};

/* --- events ----------------------------------------------------------------------------------- */

static void event_clear(struct sim *s, struct event *e)
{
	if (e->node.index != 0)
		heap_remove(&s->events, &e->node);
}

static void event_set(struct sim *s, struct event *e, double at_s,
		      void (*run)(struct sim *s, struct event *e))
{
	event_clear(s, e);
	if (isinf(at_s))
		return;
	if (s->events.count == s->events.max &&
	    heap_reserve(&s->events, s->events.max * 2 + 64) != 0) {
		s->rc = -ENOMEM;
		return;
	}
	e->at_s = fmax(at_s, s->now_s);
	e->run = run;
	e->node = (struct heap_node){.at_ns = station_key(e->at_s)};
	heap_add(&s->events, &e->node);
}

static double exponential(struct sim *s, double mean)
{
	double u = (double)(prng_next(&s->prng) >> 11) * 0x1p-53;

	return -log1p(-u) * mean;
}

static void live_go(struct live *l, enum live_state to)
{
	must(live_next[l->state] & 1u << to);
	l->state = to;
}

/* --- what things take ------------------------------------------------------------------------- */

/* Seconds of the engine for the tokens from one to another. */
static double compute_s(const struct sim *s, double from, double to)
{
	const struct kvof_plan_arm *a = &s->opts->recompute;

	if (a->tokens_per_s <= 0 || to <= from)
		return 0;
	return a->session_s + (to - from) / a->tokens_per_s +
	       (to * to - from * from) * a->token2_s;
}

static uint64_t tokens_of(const struct sim *s, const struct trace_request *q, uint64_t blocks)
{
	return bytes_min(blocks * s->opts->block_tokens, q->input_tokens);
}

static double units_of(const struct arm *a, uint64_t blocks, uint64_t tokens)
{
	return a->arm.bytes_per_s > 0 ? (double)blocks * a->block_bytes : (double)tokens;
}

/* The least of those that are there. */
static double bound_of(double a, double b)
{
	return a > 0 && b > 0 ? fmin(a, b) : fmax(a, b);
}

static double share_of(const struct kvof_plan_arm *a)
{
	return a->median_share <= 0 && a->median_rank <= 0 ? 1 : a->median_share;
}

static void arm_station(struct arm *a, double token_bytes)
{
	struct station *st = &a->station;
	const struct kvof_plan_arm *is = &a->arm;

	if (is->bytes_per_s > 0) {
		st->rate = is->bytes_per_s;
		st->each = bound_of(is->session_bytes_per_s,
				    is->session_tokens_per_s * token_bytes);
	} else {
		st->rate = is->tokens_per_s;
		st->each = bound_of(is->session_tokens_per_s,
				    token_bytes > 0 ? is->session_bytes_per_s / token_bytes : 0);
	}
	st->session_s = is->session_s;
	if (share_of(is) < SHARED_FROM)
		st->limit = st->each > 0 && st->each < st->rate ?
			    (uint32_t)fmin(ceil(st->rate / st->each), 1e6) : 1;
}

/* --- first tokens ----------------------------------------------------------------------------- */

static void line_try(struct sim *s);
static void request_arrive(struct sim *s, struct user *user);

static void user_run(struct sim *s, struct event *e)
{
	request_arrive(s, container_of(e, struct user, event));
}

static void live_end(struct sim *s, struct live *l)
{
	struct user *user = l->user;

	live_go(l, LIVE_OVER);
	s->output_tokens += (double)l->request->output_tokens;
	s->out->wall_s = s->now_s;
	event_clear(s, &l->timer);
	list_remove(&l->all);
	free(l);
	if (user != NULL)
		event_set(s, &user->event, s->now_s +
			  (s->opts->think_s > 0 ? exponential(s, s->opts->think_s) : 0), user_run);
}

static void decoded_run(struct sim *s, struct event *e)
{
	struct engine *g = container_of(e, struct engine, decoded);
	struct station_job *job;

	while ((job = station_done(&g->decode, s->now_s)) != NULL)
		live_end(s, container_of(job, struct live, job));
	event_set(s, &g->decoded, station_next_s(&g->decode), decoded_run);
}

static void decode(struct sim *s, struct live *l)
{
	struct engine *g = l->engine;

	if (s->tokens_out == 0 || l->request->output_tokens == 0) {
		live_end(s, l);
		return;
	}
	live_go(l, LIVE_DECODING);
	if (station_enter(&g->decode, &l->job, (double)l->request->output_tokens / s->tokens_out,
			  s->now_s) != 0) {
		s->rc = -ENOMEM;
		return;
	}
	event_set(s, &g->decoded, station_next_s(&g->decode), decoded_run);
}

static void hits_count_in(struct sim *s, const struct live *l)
{
	s->out->hit_blocks += l->load;
	s->out->hit_tokens += l->load_tokens;
	for (unsigned i = 0; l->load > 0 && i < TIERS; i++) {
		struct simulate_tier_result *t = &s->out->tier[i];

		t->hit_blocks += l->part[i].blocks;
		t->hit_tokens += l->part[i].tokens;
		t->read_bytes += (double)l->part[i].blocks * s->arm[i].block_bytes;
	}
}

static void first_token(struct sim *s, struct live *l)
{
	const struct trace_request *q = l->request;

	live_go(l, LIVE_TOKEN);
	s->out->ttft_s[l->number] = (float)(s->now_s - l->arrive_s);
	s->out->first_token_last_s = s->now_s;
	s->out->late += s->now_s > l->due_s + IN_TIME_S * (1 + s->now_s);
	hits_count_in(s, l);
	tiers_save(&s->tiers, &s->trace->block[q->first], l->load, q->count, l->from);
	decode(s, l);
}

/* --- the engine ------------------------------------------------------------------------------- */

static void engine_serve(struct sim *s, struct engine *g);

static void engine_run(struct sim *s, struct event *e)
{
	struct engine *g = container_of(e, struct engine, event);
	struct live *l = g->running;

	g->running = NULL;
	g->busy_s += s->now_s - l->begun_s;
	g->pledged_s -= s->now_s - l->begun_s;
	g->wait_s += s->now_s - l->ready_s - l->rest_s;
	first_token(s, l);
	engine_serve(s, g);
}

static void engine_yield(struct sim *s, struct engine *g)
{
	struct live *l = g->running;
	double done_s = s->now_s - l->begun_s;

	g->running = NULL;
	event_clear(s, &g->event);
	g->busy_s += done_s;
	g->pledged_s -= done_s;
	l->rest_s -= done_s;
	l->ready_s += done_s;              /* what was served is no wait */
	live_go(l, LIVE_READY);
	heap_add(&g->ready, &l->ready);
}

static void engine_serve(struct sim *s, struct engine *g)
{
	struct live *l;

	if (g->ready.count == 0)
		return;
	l = container_of(heap_first(&g->ready), struct live, ready);
	if (g->running != NULL && g->running->number < l->number)
		return;
	heap_remove(&g->ready, &l->ready);
	if (g->running != NULL)
		engine_yield(s, g);
	live_go(l, LIVE_COMPUTING);
	g->running = l;
	l->begun_s = s->now_s;
	event_set(s, &g->event, s->now_s + l->rest_s, engine_run);
}

static void shared_run(struct sim *s, struct event *e)
{
	struct engine *g = container_of(e, struct engine, event);
	struct station_job *job;

	while ((job = station_done(&g->shared, s->now_s)) != NULL) {
		struct live *l = container_of(job, struct live, job);

		g->pledged_s -= l->rest_s;
		first_token(s, l);
	}
	event_set(s, &g->event, station_next_s(&g->shared), shared_run);
}

#ifdef KVOF_PLANT_PLAN_FIFO_PARALLEL
static void parallel_run(struct sim *s, struct event *e)
{
	first_token(s, container_of(e, struct live, timer));
}
#endif

static void engine_add(struct sim *s, struct live *l)
{
	struct engine *g = l->engine;
	int rc = 0;

	live_go(l, LIVE_READY);
	l->ready_s = s->now_s;
#ifdef KVOF_PLANT_PLAN_FIFO_PARALLEL
	event_set(s, &l->timer, s->now_s + l->rest_s, parallel_run);
	return;
#endif
	if (s->shared) {
		rc = station_enter(&g->shared, &l->job, l->rest_s, s->now_s);
		if (rc == 0)
			event_set(s, &g->event, station_next_s(&g->shared), shared_run);
	} else {
		if (g->ready.count + 2 > g->ready.max)     /* and one that yields */
			rc = heap_reserve(&g->ready, g->ready.max * 2 + 16);
		if (rc == 0) {
			l->ready = (struct heap_node){.at_ns = l->number};
			heap_add(&g->ready, &l->ready);
			if (g->ready.count > g->most)
				g->most = g->ready.count;
			engine_serve(s, g);
		}
	}
	if (rc != 0)
		s->rc = rc;
}

static void fixed_run(struct sim *s, struct event *e)
{
	engine_add(s, container_of(e, struct live, timer));
}

/* --- loads under way -------------------------------------------------------------------------- */

static void load_end(struct sim *s, struct live *l)
{
	s->out->load_s += s->now_s - l->load_s;
	l->engine->staged_bytes -= l->staged_bytes;
	if (l->rest_s > 0)
		engine_add(s, l);
	else
		first_token(s, l);
	line_try(s);
}

static void arm_run(struct sim *s, struct event *e)
{
	struct arm *a = container_of(e, struct arm, event);
	struct station_job *job;

	while ((job = station_done(&a->station, s->now_s)) != NULL) {
		struct part *p = container_of(job, struct part, job);
		struct live *l = p->live;

		list_remove(&p->link);
		if (--l->parts == 0)
			load_end(s, l);
	}
	event_set(s, &a->event, station_next_s(&a->station), arm_run);
}

static void part_run(struct sim *s, struct event *e)
{
	struct part *p = container_of(e, struct part, enter);
	struct arm *a = &s->arm[p->tier];

	if (station_enter(&a->station, &p->job, p->units, s->now_s) != 0)
		s->rc = -ENOMEM;
	else
		event_set(s, &a->event, station_next_s(&a->station), arm_run);
}

static void load_begin(struct sim *s, struct live *l)
{
	live_go(l, LIVE_LOADING);
	list_remove(&l->line);
	event_clear(s, &l->timer);
	s->held_s += s->now_s - l->arrive_s;
	l->load_s = s->now_s;
	l->engine->staged_bytes += l->staged_bytes;
	for (unsigned i = 0; i < TIERS; i++) {
		struct part *p = &l->part[i];

		if (p->blocks == 0)
			continue;
		l->parts++;
		list_push_back(&s->arm[i].parts, &p->link);
		event_set(s, &p->enter, s->now_s + s->arm[i].arm.fixed_s, part_run);
	}
	must(l->parts > 0);
}

/* --- may a load begin? ------------------------------------------------------------------------ */

static double part_left(struct sim *s, const struct part *p)
{
	return p->job.state == STATION_AWAY ? p->units :
	       station_job_left(&s->arm[p->tier].station, &p->job, s->now_s);
}

static int part_compare(const void *a, const void *b)
{
	const struct part *x = *(struct part *const *)a, *y = *(struct part *const *)b;

	return x->left < y->left ? -1 : x->left > y->left;
}

/* All parts of an arm under way, and p behind them; the least first where they share the arm.
 * Return: how many; 0: no memory. */
static uint32_t parts_list(struct sim *s, struct part *p)
{
	const struct arm *a = &s->arm[p->tier];
	uint32_t count = 0;

	LIST_FOR_EACH(link, &a->parts)
		count++;
	if (count + 1 > s->sorted_room) {
		struct part **more = realloc(s->sorted, (count + 1) * 2 * sizeof(struct part *));

		if (more == NULL) {
			s->rc = -ENOMEM;
			return 0;
		}
		s->sorted = more;
		s->sorted_room = (count + 1) * 2;
	}
	count = 0;
	LIST_FOR_EACH(link, &a->parts)
		s->sorted[count++] = container_of(link, struct part, link);
	s->sorted[count++] = p;
	for (uint32_t i = 0; i < count; i++)
		s->sorted[i]->left = part_left(s, s->sorted[i]);
	if (a->station.limit == 0)
		qsort(s->sorted, count, sizeof(struct part *), part_compare);
	return count;
}

/*
 * The end of a part, at the latest, from the moment on at which it is at the arm: with others
 * beside it, each receives at most as much as it does; with others in front of it, all of theirs
 * comes first. Bounds of a session make it wait for itself alone.
 */
static bool parts_in_time(struct sim *s, unsigned tier, uint32_t count)
{
	const struct arm *a = &s->arm[tier];
	const struct station *st = &a->station;
	double before = 0, each = st->each > 0 && st->each < st->rate ? st->each : st->rate;

	for (uint32_t i = 0; i < count; i++) {
		const struct part *p = s->sorted[i];
		double left = p->left, from_s = s->now_s, end_s;

		if (p->live->state != LIVE_LOADING)
			from_s += a->arm.fixed_s;
		else if (p->job.state == STATION_AWAY)
			from_s = p->enter.at_s;
		if (st->limit > 0)
			end_s = from_s + before / st->rate + left * st->limit / st->rate +
				(i + 1) * st->session_s;
		else
			end_s = from_s + left / each + (before + (count - 1 - i) * left) /
				st->rate + count * st->session_s;
		if (end_s > p->live->due_s - p->live->rest_s)
			return false;
		before += left;
	}
	return true;
}

static bool load_in_time(struct sim *s, struct live *l)
{
	if (s->opts->load != SIMULATE_SOONER || s->shared)
		return true;
#ifdef KVOF_PLANT_PLAN_SIM_LATE
	return true;
#endif
	for (unsigned i = 0; i < TIERS; i++) {
		uint32_t count;

		if (l->part[i].blocks == 0)
			continue;
		count = parts_list(s, &l->part[i]);
		if (count == 0)
			return false;
		if (!parts_in_time(s, i, count))
			return false;
	}
	return true;
}

static bool load_has_room(const struct sim *s, const struct live *l)
{
	double room_bytes = s->opts->staging_bytes;

#ifdef KVOF_PLANT_PLAN_SIM_STAGING
	return true;
#endif
	return room_bytes <= 0 || l->staged_bytes <= 0 ||
	       l->engine->staged_bytes + l->staged_bytes <= room_bytes * (1 + 1e-9);
}

/* With all to be loaded strictly in line; else those behind one that must wait may go. */
static void line_try(struct sim *s)
{
	unsigned tries = s->opts->load == SIMULATE_SOONER ? LINE_TRIES : 1;
	struct list_link *at = s->line.next;

	while (at != &s->line && tries > 0 && s->rc == 0) {
		struct live *l = container_of(at, struct live, line);

		at = at->next;
		if (load_has_room(s, l) && load_in_time(s, l))
			load_begin(s, l);
		else
			tries--;
	}
}

/* Its turn at the engine would have come: it is computed. */
static void give_up_run(struct sim *s, struct event *e)
{
	struct live *l = container_of(e, struct live, timer);

	list_remove(&l->line);
	s->out->given_up++;
	s->held_s += s->now_s - l->arrive_s;
	s->out->skipped_blocks += l->load;
	l->engine->pledged_s += l->compute_s - l->rest_s;
	l->rest_s = l->compute_s;
	l->load = 0;
	l->load_tokens = 0;
	engine_add(s, l);
}

/* --- how much to load ------------------------------------------------------------------------- */

/* What an arm has before it, at the moment of the choice. */
struct ahead {
	double left, requests_s;
	uint32_t jobs;
};

static double guess_s(const struct arm *a, const struct ahead *h, double units)
{
	const struct station *st = &a->station;
	double before = st->limit > 0 ? h->left : fmin(h->left, h->jobs * units);
	double alone_s = st->each > 0 ? units / st->each : 0;

	return a->arm.fixed_s + h->requests_s + st->session_s +
	       fmax((before + units) / st->rate, alone_s);
}

static void ahead_look(struct sim *s, struct ahead ahead[TIERS])
{
	for (unsigned i = 0; i < TIERS; i++) {
		struct arm *a = &s->arm[i];

		ahead[i] = (struct ahead){0};
		if (!s->tiers.tier[i].present)
			continue;
		LIST_FOR_EACH(link, &a->parts) {
			ahead[i].left += part_left(s, container_of(link, struct part, link));
			ahead[i].jobs++;
		}
		ahead[i].requests_s = ahead[i].jobs * a->arm.session_s;
	}
}

static double pledged_s(const struct sim *s, const struct engine *g)
{
	return g->pledged_s - (g->running != NULL ? s->now_s - g->running->begun_s : 0);
}

/* When the first token would come, about. */
static double choice_s(const struct sim *s, const struct live *l, const struct ahead *ahead,
		       const double units[TIERS], uint64_t tokens)
{
	double loaded_s = tokens > 0 ? 0 : s->opts->recompute.fixed_s;

	for (unsigned i = 0; i < TIERS; i++)
		if (units[i] > 0)
			loaded_s = fmax(loaded_s, guess_s(&s->arm[i], &ahead[i], units[i]));
	return fmax(loaded_s, pledged_s(s, l->engine)) +
	       compute_s(s, (double)tokens, (double)l->request->input_tokens);
}

/* Of the hits as many as bring the first token soonest, and of several the most. */
static void load_choose(struct sim *s, struct live *l, uint32_t hits)
{
	struct ahead ahead[TIERS];
	double units[TIERS] = {0}, best_s = INFINITY, staged = 0;
	double staging = s->opts->staging_bytes > 0 ? s->opts->staging_bytes * (1 + 1e-9) :
						      INFINITY;
	double share = s->opts->rank_share > 0 ? s->opts->rank_share : 1;
	bool choice = s->opts->load == SIMULATE_SOONER;

	if (choice)
		ahead_look(s, ahead);
	for (uint32_t n = 0; n <= hits; n++) {
		uint64_t tokens = tokens_of(s, l->request, n);
		const struct arm *a;
		double at_s = choice ? choice_s(s, l, ahead, units, tokens) : -(double)n;

		if (at_s <= best_s) {
			best_s = at_s;
			l->load = n;
			l->load_tokens = tokens;
		}
		if (n == hits)
			break;
		a = &s->arm[l->from[n]];
		units[l->from[n]] += units_of(a, 1, tokens_of(s, l->request, n + 1) - tokens);
		staged += l->from[n] != TIERS_DRAM ? a->block_bytes * share : 0;
		if (staged > staging) {
			s->out->unstaged++;
			break;
		}
	}
	s->out->skipped_blocks += hits - l->load;
}

static void parts_make(struct sim *s, struct live *l)
{
	double share = s->opts->rank_share > 0 ? s->opts->rank_share : 1;

	for (uint32_t n = 0; n < l->load; n++) {
		struct part *p = &l->part[l->from[n]];

		p->blocks++;
		p->tokens += tokens_of(s, l->request, n + 1) - tokens_of(s, l->request, n);
	}
	for (unsigned i = 0; i < TIERS; i++) {
		struct part *p = &l->part[i];

		p->units = p->blocks > 0 ? units_of(&s->arm[i], p->blocks, p->tokens) : 0;
		if (i != TIERS_DRAM)
			l->staged_bytes += (double)p->blocks * s->arm[i].block_bytes * share;
	}
}

/* --- arrivals --------------------------------------------------------------------------------- */

static struct engine *engine_pick(struct sim *s)
{
	struct engine *g = &s->engine[0];

	for (uint32_t i = 1; i < s->engines; i++)
		if (s->engine[i].free_s < g->free_s)
			g = &s->engine[i];
	return g;
}

static struct live *live_new(struct sim *s, struct user *user)
{
	const struct trace_request *q = &s->trace->request[s->arrived % s->trace->requests];
	struct live *l = calloc(1, sizeof(*l) + q->count);
	struct engine *g = engine_pick(s);

	if (l == NULL)
		return NULL;
	l->request = q;
	l->user = user;
	l->engine = g;
	l->number = s->arrived++;
	l->arrive_s = s->now_s;
	l->compute_s = compute_s(s, 0, (double)q->input_tokens);
	g->free_s = fmax(g->free_s, s->now_s + s->opts->recompute.fixed_s) + l->compute_s;
	s->without_s[l->number] = (float)(g->free_s - s->now_s);
	l->due_s = s->opts->load == SIMULATE_SOONER && !s->shared ? g->free_s : INFINITY;
	l->turn_s = l->due_s - l->compute_s;
	for (unsigned i = 0; i < TIERS; i++) {
		l->part[i].live = l;
		l->part[i].tier = i;
	}
	list_push_back(&s->all, &l->all);
	s->out->blocks += q->count;
	s->out->tokens += q->input_tokens;
	s->last_arrival_s = s->now_s;
	return l;
}

static void request_arrive(struct sim *s, struct user *user)
{
	const uint32_t *block;
	uint32_t hits;
	struct live *l;

	if (s->arrived == s->total)
		return;
	l = live_new(s, user);
	if (l == NULL) {
		s->rc = -ENOMEM;
		return;
	}
	block = &s->trace->block[l->request->first];
	hits = s->opts->load == SIMULATE_NEVER ? 0 :
	       tiers_find(&s->tiers, block, l->request->count, l->from);
	load_choose(s, l, hits);
	parts_make(s, l);
	tiers_use(&s->tiers, block, l->load, l->from, s->now_s);
	l->rest_s = compute_s(s, (double)l->load_tokens, (double)l->request->input_tokens);
	s->out->compute_s += l->rest_s;
	l->engine->pledged_s += l->rest_s;
	if (l->load == 0) {
		live_go(l, LIVE_FIXED);
		event_set(s, &l->timer, s->now_s + s->opts->recompute.fixed_s, fixed_run);
		return;
	}
	live_go(l, LIVE_HELD);
	list_push_back(&s->line, &l->line);
	line_try(s);
	if (l->state == LIVE_HELD) {
		s->out->held++;
		event_set(s, &l->timer, l->turn_s, give_up_run);
	}
}

static void arrive_run(struct sim *s, struct event *e)
{
	const struct trace *t = s->trace;
	double next_s = s->now_s, speed = s->opts->speed > 0 ? s->opts->speed : 1;

	request_arrive(s, NULL);
	if (s->arrived == s->total)
		return;
	if (s->opts->arrivals == SIMULATE_POISSON) {
		next_s += exponential(s, 1 / s->opts->requests_per_s);
	} else if (s->opts->arrivals == SIMULATE_TRACE) {
		uint64_t at_ms = t->request[s->arrived].time_ms, begin_ms = t->request[0].time_ms;

		next_s = at_ms > begin_ms ? (double)(at_ms - begin_ms) / 1000 / speed : 0;
	}
	event_set(s, e, next_s, arrive_run);
}

static void arrivals_begin(struct sim *s)
{
	if (s->opts->arrivals != SIMULATE_CLOSED) {
		event_set(s, &s->arrive, 0, arrive_run);
		return;
	}
	for (uint32_t i = 0; i < s->opts->users; i++)
		event_set(s, &s->user[i].event, i == 0 || s->opts->think_s <= 0 ? 0 :
			  exponential(s, s->opts->think_s), user_run);
}

/* --- what came of it -------------------------------------------------------------------------- */

static int float_compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return x < y ? -1 : x > y;
}

static double quantile(const float *sorted, uint32_t count, double q)
{
	uint32_t at = (uint32_t)((double)count * q);

	return (double)sorted[at < count ? at : count - 1];
}

static int times_make(const float *s, uint32_t count, struct simulate_times *t)
{
	float *sorted = malloc(((size_t)count + 1) * sizeof(*sorted));
	double sum = 0;

	if (sorted == NULL)
		return -ENOMEM;
	if (count > 0) {
		memcpy(sorted, s, count * sizeof(*sorted));
		qsort(sorted, count, sizeof(*sorted), float_compare);
		for (uint32_t i = 0; i < count; i++)
			sum += (double)sorted[i];
		*t = (struct simulate_times){quantile(sorted, count, 0.5),
			quantile(sorted, count, 0.9), quantile(sorted, count, 0.99),
			sum / count, (double)sorted[count - 1]};
	}
	free(sorted);
	return 0;
}

static struct simulate_resource *resource_add(struct sim *s, const char *name,
					      const char *bottleneck)
{
	struct simulate_resource *r = &s->out->resource[s->out->resources++];

	*r = (struct simulate_resource){.name = name};
	snprintf(r->bottleneck, sizeof(r->bottleneck), "%s", bottleneck);
	return r;
}

static void engines_tell(struct sim *s)
{
	struct simulate_resource *r = resource_add(s, "engine", s->opts->recompute.bottleneck);
	double busy_s = 0;

	for (uint32_t i = 0; i < s->engines; i++) {
		const struct engine *g = &s->engine[i];
		uint32_t most = s->shared ? g->shared.jobs_most : g->most;

		busy_s += s->shared ? g->shared.units : g->busy_s;
		r->wait_s += (s->shared ? g->shared.wait_s : g->wait_s) / s->total;
		if (most > r->jobs_most)
			r->jobs_most = most;
	}
	if (s->out->first_token_last_s > 0)
		r->utilisation = busy_s / s->engines / s->out->first_token_last_s;
}

static void arms_tell(struct sim *s)
{
	bool wave = s->opts->arrivals == SIMULATE_WAVE;

	for (unsigned i = 0; i < TIERS; i++) {
		const struct arm *a = &s->arm[i];
		struct simulate_resource *r;
		double span_s;

		if (!s->tiers.tier[i].present)
			continue;
		r = resource_add(s, kvof_plan_arm_name(a->arm.kind), a->arm.bottleneck);
		r->wait_s = a->station.wait_s / s->total;
		r->jobs_most = a->station.jobs_most;
		if (s->out->first_token_last_s > 0)
			r->utilisation = a->station.units / a->station.rate /
					 s->out->first_token_last_s;
		if (a->station.busy_s > 0)
			r->bytes_per_s = s->out->tier[i].read_bytes / a->station.busy_s;
		span_s = wave ? a->station.busy_s : s->last_arrival_s;
		if (span_s > 0)
			r->bytes_per_s_needed = s->out->tier[i].read_bytes / span_s;
	}
}

/* Loads that wait to begin wait for an arm if one has all it can do, else for staging. */
static void bottleneck_tell(struct sim *s)
{
	struct simulate_result *out = s->out;
	struct simulate_resource *most = &out->resource[0], *held;

	held = resource_add(s, "staging", "");
	held->wait_s = s->held_s / s->total;
	for (unsigned i = 0; i < out->resources; i++) {
		struct simulate_resource *r = &out->resource[i];

		r->saturated = r->utilisation >= SATURATED;
		if (r->wait_s > most->wait_s)
			most = r;
	}
	for (unsigned i = 1; most == held && i + 1 < out->resources; i++)
		if (out->resource[i].saturated)
			most = &out->resource[i];
	if (most->wait_s < WAIT_LEAST * out->ttft.mean_s && held->wait_s <= most->wait_s)
		snprintf(out->bottleneck, sizeof(out->bottleneck), "none");
	else
		snprintf(out->bottleneck, sizeof(out->bottleneck), "%s", most->name);
}

static int result_make(struct sim *s)
{
	struct simulate_result *out = s->out;
	int rc = times_make(out->ttft_s, s->total, &out->ttft);

	if (rc == 0)
		rc = times_make(s->without_s, s->total, &out->without);
	if (rc != 0 || s->total == 0)
		return rc;
	out->without_known = !s->shared && s->opts->recompute.tokens_per_s > 0;
	if (out->wall_s > 0) {
		out->output_tokens_per_s = s->output_tokens / out->wall_s;
		out->requests_per_s = s->total / out->wall_s;
	}
	for (unsigned i = 0; i < TIERS; i++) {
		const struct tiers_tier *t = &s->tiers.tier[i];

		out->tier[i].evicted = t->evicted;
		out->tier[i].promoted = t->promoted;
		out->tier[i].refused = t->refused;
		out->tier[i].touched = t->touched;
		out->tier[i].carried = t->carried;
		out->tier[i].written_bytes = (double)t->written * s->arm[i].block_bytes;
	}
	engines_tell(s);
	arms_tell(s);
	bottleneck_tell(s);
	return 0;
}

/* --- the whole -------------------------------------------------------------------------------- */

static int opts_check(const struct trace *t, const struct simulate_opts *o,
		      struct kvof_plan_bad *bad)
{
	int rc = 0;

	if (o->recompute.tokens_per_s != 0 || o->recompute.bytes_per_s != 0)
		rc = plan_arm_check(&o->recompute, bad);
	if (rc == 0 && o->load == SIMULATE_SOONER && o->recompute.tokens_per_s <= 0)
		rc = plan_bad(bad, "recompute", "has no rate: nothing to choose from");
	for (unsigned i = 0; rc == 0 && i < TIERS; i++) {
		const struct simulate_tier *at = &o->tier[i];

		if (!at->present)
			continue;
		rc = plan_arm_check(&at->arm, bad);
		if (rc == 0 && at->arm.bytes_per_s > 0 && o->token_bytes <= 0)
			rc = plan_bad(bad, "bytes_per_token", "arm %s counts bytes",
				      kvof_plan_arm_name(at->arm.kind));
	}
	if (rc == 0 && o->staging_bytes > 0 && o->token_bytes <= 0)
		rc = plan_bad(bad, "bytes_per_token", "staging is bytes");
	if (rc == 0 && o->arrivals == SIMULATE_CLOSED &&
	    (o->users == 0 || o->users > SIMULATE_USERS_MAX))
		rc = plan_bad(bad, "users", "%u: not 1 to %u", o->users, SIMULATE_USERS_MAX);
	if (rc == 0 && o->arrivals == SIMULATE_POISSON && !(o->requests_per_s > 0))
		rc = plan_bad(bad, "requests_per_s", "is no rate");
	if (rc == 0 && o->instances > SIMULATE_INSTANCES_MAX)
		rc = plan_bad(bad, "instances", "%u: more than %u", o->instances,
			      SIMULATE_INSTANCES_MAX);
	if (rc == 0 && (o->block_tokens == 0 || o->requests > t->requests))
		rc = plan_bad(bad, "requests", "more than the trace has");
	return rc;
}

static void engines_open(struct sim *s)
{
	const struct simulate_opts *o = s->opts;
	const struct kvof_plan_arm *a = &o->recompute;
	double each = a->session_tokens_per_s;

	s->shared = a->tokens_per_s > 0 && (share_of(a) >= SHARED_FROM ||
					    (each > 0 && each < a->tokens_per_s));
	if (o->tail != NULL)
		s->tokens_out = o->tail->output_tokens;
	for (uint32_t i = 0; i < s->engines; i++) {
		struct engine *g = &s->engine[i];

		station_begin(&g->shared);
		station_begin(&g->decode);
		g->shared.rate = 1;                /* a second of the engine a second */
		if (s->shared && each > 0)
			g->shared.each = each / a->tokens_per_s;
		if (o->tail != NULL) {
			g->decode.step_s = o->tail->tail_fixed_s;
			g->decode.step_job_s = o->tail->tail_session_s;
		}
	}
}

static int tiers_begin(struct sim *s)
{
	const struct simulate_opts *o = s->opts;
	const struct trace *t = s->trace;
	int rc;

	for (unsigned i = 0; i < TIERS; i++) {
		struct tiers_tier *at = &s->tiers.tier[i];

		at->present = o->tier[i].present;
		at->second_touch = o->tier[i].second_touch;
		at->log = o->tier[i].log;
		at->capacity_blocks = o->tier[i].capacity_blocks;
		s->arm[i].arm = o->tier[i].arm;
		s->arm[i].block_bytes = o->token_bytes * o->block_tokens;
		list_init(&s->arm[i].parts);
		station_begin(&s->arm[i].station);
		if (at->present)
			arm_station(&s->arm[i], o->token_bytes);
	}
	rc = tiers_open(&s->tiers, t->unique_blocks);
	for (unsigned i = 0; rc == 0 && i < TIERS; i++)
		for (uint32_t n = 0; o->tier[i].warm && o->tier[i].present && n < t->blocks; n++)
			tiers_warm(&s->tiers, i, t->block[n]);
	for (unsigned i = 0; i < TIERS; i++)
		s->tiers.tier[i].evicted = 0;
	return rc;
}

static int sim_open(struct sim *s)
{
	const struct simulate_opts *o = s->opts;

	s->total = o->requests > 0 ? o->requests : s->trace->requests;
	s->engines = o->instances > 0 ? o->instances : 1;
	s->prng = prng_of(o->seed);
	list_init(&s->line);
	list_init(&s->all);
	s->engine = calloc(s->engines, sizeof(*s->engine));
	s->user = o->arrivals == SIMULATE_CLOSED ? calloc(o->users, sizeof(*s->user)) : NULL;
	s->out->ttft_s = calloc((size_t)s->total + 1, sizeof(float));
	s->without_s = calloc((size_t)s->total + 1, sizeof(float));
	if (s->engine == NULL || (o->arrivals == SIMULATE_CLOSED && s->user == NULL) ||
	    s->out->ttft_s == NULL || s->without_s == NULL) {
		s->engines = s->engine != NULL ? s->engines : 0;
		return -ENOMEM;
	}
	engines_open(s);
	return tiers_begin(s);
}

/* All is over, or there was no memory: then things lie in heaps and in service still. */
static void sim_close(struct sim *s)
{
	LIST_FOR_EACH_SAFE(link, &s->all)
		free(container_of(link, struct live, all));
	for (unsigned i = 0; i < TIERS; i++) {
		free(s->arm[i].station.request.at);
		free(s->arm[i].station.served.at);
	}
	for (uint32_t i = 0; i < s->engines; i++) {
		struct engine *g = &s->engine[i];

		free(g->ready.at);
		free(g->shared.request.at);
		free(g->shared.served.at);
		free(g->decode.request.at);
		free(g->decode.served.at);
	}
	free(s->events.at);
	free(s->engine);
	free(s->user);
	free(s->sorted);
	free(s->without_s);
	tiers_close(&s->tiers);
}

int simulate(const struct trace *t, const struct simulate_opts *o, struct simulate_result *out,
	     struct kvof_plan_bad *bad)
{
	struct sim s = {.trace = t, .opts = o, .out = out};
	int rc = opts_check(t, o, bad);

	*out = (struct simulate_result){.bottleneck = "none"};
	if (rc != 0)
		return rc;
	s.rc = sim_open(&s);
	out->requests = s.total;
	if (s.rc == 0 && s.total > 0)
		arrivals_begin(&s);
	while (s.rc == 0 && s.events.count > 0) {
		struct event *e = container_of(heap_first(&s.events), struct event, node);

		heap_remove(&s.events, &e->node);
		must_slow(e->at_s >= s.now_s);
		s.now_s = e->at_s;
		e->run(&s, e);
	}
	must(s.rc != 0 || (s.arrived == s.total && list_empty(&s.all)));
	if (s.rc == 0)
		s.rc = result_make(&s);
	sim_close(&s);
	return s.rc;
}

void simulate_free(struct simulate_result *r)
{
	free(r->ttft_s);
	r->ttft_s = NULL;
}

int simulate_wave_add(struct trace *t, uint32_t sessions, uint32_t tokens, uint32_t output_tokens)
{
	uint64_t first = t->blocks;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < sessions; i++) {
		rc = trace_add(t, 0, tokens, output_tokens);
		if (rc == 0)
			rc = trace_add_block(t, first + i);
	}
	return rc;
}
