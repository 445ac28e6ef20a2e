/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Depths in a list in order of use: each use of a block has a place, the last use of each block is
 * marked, and a block is as deep as there are marks from its own on. Marks are counted in a tree of
 * partial sums, O(log n) each. Places are given out upwards; when they end, what is marked moves to
 * the first ones, which costs as much as the uses that filled them.
 *
 * Invariant: after each use, `live` places are marked, one for each block that was used.
 */
#include "plan/hits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/must.h"

#define NEVER UINT32_MAX

struct order {
	uint32_t *sum;                     /* [places + 1], from 1: partial sums of marks */
	uint32_t *block;                   /* [places] whose use it is; NEVER: of none, any more */
	uint32_t *place;                   /* [unique blocks] of its last use; NEVER */
	uint32_t places, next, live;
};

struct pass {
	const struct trace *trace;
	const struct hits_opts *opts;
	struct hits *out;
	struct order order;
	uint32_t *deepest;                 /* [longest request] greatest depth up to this block */
	uint64_t first_ms, now_ms;
	uint64_t window;                   /* of HITS_PEAK_MS, and hits of each size within it */
	uint64_t window_blocks[HITS_CAPACITIES_MAX];
	double free_s[HITS_CAPACITIES_MAX][HITS_LOADS_MAX];
};

/* --- the list in order of use --------------------------------------------------------------- */

static int order_open(struct order *l, uint32_t unique_blocks)
{
	l->places = unique_blocks * 2 + 64;
	l->sum = calloc((size_t)l->places + 1, sizeof(*l->sum));
	l->block = malloc(l->places * sizeof(*l->block));
	l->place = malloc(((size_t)unique_blocks + 1) * sizeof(*l->place));
	if (l->sum == NULL || l->block == NULL || l->place == NULL)
		return -ENOMEM;
	memset(l->place, 0xff, unique_blocks * sizeof(*l->place));
	return 0;
}

static void order_close(struct order *l)
{
	free(l->sum);
	free(l->block);
	free(l->place);
}

static void order_mark(struct order *l, uint32_t place, uint32_t by)
{
	for (uint32_t i = place + 1; i <= l->places; i += i & -i)
		l->sum[i] += by;
}

static uint32_t order_before(const struct order *l, uint32_t place)
{
	uint32_t marks = 0;

	for (uint32_t i = place; i > 0; i -= i & -i)
		marks += l->sum[i];
	return marks;
}

/* From 1, the block used last, on; NEVER: it was not used. */
static uint32_t order_depth(const struct order *l, uint32_t block)
{
	if (l->place[block] == NEVER)
		return NEVER;
#ifdef KVOF_PLANT_PLAN_HITS_DISTANCE
	return l->live - order_before(l, l->place[block]) - 1;
#endif
	return l->live - order_before(l, l->place[block]);
}

static void order_pack(struct order *l)
{
	uint32_t to = 0;

	for (uint32_t i = 0; i < l->next; i++) {
		if (l->block[i] == NEVER)
			continue;
		l->block[to] = l->block[i];
		l->place[l->block[to]] = to;
		to++;
	}
	must(to == l->live);
	l->next = to;
	memset(l->sum, 0, ((size_t)l->places + 1) * sizeof(*l->sum));
	for (uint32_t i = 1; i <= l->places; i++) {
		uint32_t above = i + (i & -i);

		l->sum[i] += i <= to;
		if (above <= l->places)
			l->sum[above] += l->sum[i];
	}
}

static void order_use(struct order *l, uint32_t block)
{
	if (l->next == l->places)
		order_pack(l);
	if (l->place[block] == NEVER) {
		l->live++;
	} else {
		order_mark(l, l->place[block], UINT32_MAX);     /* one less */
		l->block[l->place[block]] = NEVER;
	}
	l->place[block] = l->next;
	l->block[l->next] = block;
	order_mark(l, l->next++, 1);
}

/* --- sizes and devices ---------------------------------------------------------------------- */

static uint64_t tokens_of(const struct pass *p, const struct trace_request *q, uint64_t blocks)
{
	return bytes_min(blocks * p->opts->block_tokens, q->input_tokens);
}

/* The first token comes when hits are there and the rest is computed; what would bring it later is
 * computed as well. Loads of a device follow one another, so of fewer blocks the end is sooner and
 * the rest later, both by as much a block: all or none is best. */
static void device_serve(struct pass *p, uint32_t size, uint32_t device,
			 const struct trace_request *q, uint32_t hits, double now_s)
{
	const struct hits_load *load = &p->opts->load[device];
	struct hits_time *t = &p->out->size[size].time[device];
	double *free_s = &p->free_s[size][device];
	double all_s = (double)q->input_tokens * p->opts->token_s;
	uint64_t tokens = tokens_of(p, q, hits);
	double wait_s = *free_s > now_s ? *free_s - now_s : 0;
	double busy_s = hits * load->block_s;
	double load_s = wait_s + load->fixed_s + busy_s;

	if (hits == 0 || load_s > (double)tokens * p->opts->token_s) {
		t->mean_s += all_s;
		return;
	}
	*free_s = now_s + wait_s + busy_s;
	t->mean_s += load_s + (double)(q->input_tokens - tokens) * p->opts->token_s;
	t->wait_s += wait_s;
	t->busy_share += busy_s;
	t->loaded_tokens += tokens;
}

static void window_end(struct pass *p)
{
	for (uint32_t i = 0; i < p->opts->capacities; i++) {
		struct hits_size *s = &p->out->size[i];

		if (p->window_blocks[i] > s->peak_blocks)
			s->peak_blocks = p->window_blocks[i];
		p->window_blocks[i] = 0;
	}
}

/* deepest[] rises, so that a size hits the blocks up to the first that lies deeper. */
static void sizes_serve(struct pass *p, const struct trace_request *q, uint32_t held)
{
	double speed = p->opts->speed > 0 ? p->opts->speed : 1;
	double now_s = (double)(p->now_ms - p->first_ms) / 1000 / speed;
	uint64_t window = (uint64_t)(now_s * 1000 / HITS_PEAK_MS);

	if (window != p->window)
		window_end(p);
	p->window = window;
	for (uint32_t i = 0; i < p->opts->capacities; i++) {
		uint32_t below = 0, above = held;

		while (below < above) {
			uint32_t at = below + (above - below) / 2;

			if (p->deepest[at] <= p->opts->capacity_blocks[i])
				below = at + 1;
			else
				above = at;
		}
		p->out->size[i].hit_blocks += below;
		p->out->size[i].hit_tokens += tokens_of(p, q, below);
		p->window_blocks[i] += below;
		for (uint32_t d = 0; p->opts->token_s > 0 && d < p->opts->loads; d++)
			device_serve(p, i, d, q, below, now_s);
	}
}

/* --- the trace ------------------------------------------------------------------------------ */

static void request_count(struct pass *p, const struct trace_request *q)
{
	const uint32_t *block = &p->trace->block[q->first];
	uint32_t deepest = 0, held = 0;

	while (held < q->count) {
		uint32_t depth = order_depth(&p->order, block[held]);

		if (depth == NEVER)
			break;
		if (depth > deepest)
			deepest = depth;
		p->deepest[held++] = deepest;
		p->out->hit_blocks[deepest]++;
		p->out->hit_tokens[deepest] += tokens_of(p, q, held) - tokens_of(p, q, held - 1);
	}
	if (q->time_ms > p->now_ms)
		p->now_ms = q->time_ms;
	sizes_serve(p, q, held);
	for (uint32_t i = 0; i < q->count; i++)
		order_use(&p->order, block[p->opts->rev ? q->count - 1 - i : i]);
}

static int pass_open(struct pass *p)
{
	const struct trace *t = p->trace;
	uint32_t longest = 0;

	for (uint32_t i = 0; i < t->requests; i++)
		if (t->request[i].count > longest)
			longest = t->request[i].count;
	p->deepest = malloc(((size_t)longest + 1) * sizeof(*p->deepest));
	p->out->hit_blocks = calloc((size_t)t->unique_blocks + 1, sizeof(uint64_t));
	p->out->hit_tokens = calloc((size_t)t->unique_blocks + 1, sizeof(uint64_t));
	if (p->deepest == NULL || p->out->hit_blocks == NULL || p->out->hit_tokens == NULL)
		return -ENOMEM;
	return order_open(&p->order, t->unique_blocks);
}

/* What was counted at each depth becomes what each size hits; sums become means. */
static void pass_end(struct pass *p)
{
	struct hits *h = p->out;
	double speed = p->opts->speed > 0 ? p->opts->speed : 1;

	window_end(p);
	for (uint64_t i = 1; i <= h->unique_blocks; i++) {
		h->hit_blocks[i] += h->hit_blocks[i - 1];
		h->hit_tokens[i] += h->hit_tokens[i - 1];
	}
	if (h->requests == 0)
		return;
	h->span_s = (double)(p->now_ms - p->first_ms) / 1000 / speed;
	h->compute_s = (double)h->tokens * p->opts->token_s / (double)h->requests;
	for (uint32_t i = 0; i < p->opts->capacities; i++) {
		for (uint32_t d = 0; d < p->opts->loads; d++) {
			struct hits_time *t = &h->size[i].time[d];

			t->mean_s /= (double)h->requests;
			t->wait_s /= (double)h->requests;
			t->busy_share = h->span_s > 0 ? t->busy_share / h->span_s : 0;
		}
	}
}

int hits_count(const struct trace *t, const struct hits_opts *o, struct hits *out)
{
	struct pass p = {.trace = t, .opts = o, .out = out};
	int rc;

	must(o->block_tokens > 0 && o->capacities <= HITS_CAPACITIES_MAX &&
	     o->loads <= HITS_LOADS_MAX);
	*out = (struct hits){.requests = t->requests, .blocks = t->blocks,
		.unique_blocks = t->unique_blocks, .tokens = t->tokens};
	for (uint32_t i = 0; i < o->capacities; i++)
		out->size[i].capacity_blocks = o->capacity_blocks[i];
	rc = pass_open(&p);
	if (t->requests > 0)
		p.first_ms = p.now_ms = t->request[0].time_ms;
	for (uint32_t i = 0; rc == 0 && i < t->requests; i++)
		request_count(&p, &t->request[i]);
	if (rc == 0)
		pass_end(&p);
	order_close(&p.order);
	free(p.deepest);
	return rc;
}

void hits_free(struct hits *h)
{
	free(h->hit_blocks);
	free(h->hit_tokens);
	h->hit_blocks = h->hit_tokens = NULL;
}

uint64_t hits_blocks_at(const struct hits *h, uint64_t capacity_blocks)
{
	return h->hit_blocks[bytes_min(capacity_blocks, h->unique_blocks)];
}

uint64_t hits_tokens_at(const struct hits *h, uint64_t capacity_blocks)
{
	return h->hit_tokens[bytes_min(capacity_blocks, h->unique_blocks)];
}

uint64_t hits_capacity_of(const struct hits *h, double share)
{
	uint64_t below = 0, above = h->unique_blocks;
	double wanted = share * (double)h->hit_tokens[above];

	while (below < above) {
		uint64_t at = below + (above - below) / 2;

		if ((double)h->hit_tokens[at] < wanted)
			below = at + 1;
		else
			above = at;
	}
	return below;
}
