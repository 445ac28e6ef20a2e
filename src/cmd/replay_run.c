/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace through one tier, or through a model of several.
 *
 * The model: DRAM is asked first, then flash, then the arrays, block by block. What a slower tier
 * gave moves up when the faster one's policy admits it; what is computed is saved to every tier,
 * or to those with second-touch admission once it is used again; heads that nearer tiers served are
 * touched on the arrays, each at most once a minute.
 *
 * Time: a device serves one load after another, each for its bytes at the device's rate after its
 * latency; tiers work side by side. A request loads as many of its blocks as brings the first token
 * soonest, and computes the rest. Writes are counted and take no time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/must.h"
#include "cmd/replay.h"

#define TOUCH_MS 60000u

const char *const replay_tier_names[REPLAY_TIERS] = {"dram", "flash", "remote"};

struct run {
	const struct trace *trace;
	const struct replay_opts *opts;
	struct replay_result *out;
	struct replay_tier tier[REPLAY_TIERS];
	bool has[REPLAY_TIERS];
	uint64_t free_ns[REPLAY_TIERS];      /* when a device is done with what it was given */
	uint64_t *engine_ns;                 /* a heap of when engines are free, earliest first */
	uint64_t *touched_ms;                /* [unique blocks], +1; 0: never */
	uint8_t *from;                       /* [longest request] which tier gives a block */
	bool *seen;                          /* [unique blocks] it was saved before */
};

/* --- one tier --------------------------------------------------------------- */

static uint64_t hit_tokens(const struct replay_opts *o, const struct trace_request *q,
			   uint64_t hits)
{
	return bytes_min(hits * o->block_tokens, q->input_tokens);
}

struct replay_span *replay_span_at(const struct trace *t, struct replay_result *out, uint32_t index)
{
	uint64_t begin_ms = t->request[0].time_ms, at_ms = t->request[index].time_ms;
	uint64_t at = at_ms > begin_ms ? (at_ms - begin_ms) / out->span_ms : 0;

	return &out->span[bytes_min(at, REPLAY_SPANS - 1)];
}

static uint32_t tier_hits(const struct replay_tier *t, const uint32_t *block, uint32_t count)
{
	uint32_t hits = 0;

	while (hits < count && replay_tier_has(t, block[hits]))
		hits++;
	return hits;
}

static void request_count(struct run *run, uint32_t index, uint32_t hits)
{
	const struct trace_request *q = &run->trace->request[index];
	struct replay_span *s = replay_span_at(run->trace, run->out, index);

	run->out->hit_blocks += hits;
	run->out->hit_tokens += hit_tokens(run->opts, q, hits);
	s->hit_blocks += hits;
	s->blocks += q->count;
}

static int run_single(struct run *run)
{
	const struct trace *t = run->trace;
	struct replay_tier_result *r = &run->out->tier[REPLAY_DRAM];
	uint64_t capacity = run->opts->capacity_blocks;
	int rc;

	if (capacity == 0)
		capacity = t->unique_blocks > 0 ? t->unique_blocks : 1;
	rc = replay_tier_open(&run->tier[0], run->opts->policy, capacity, t->unique_blocks,
			      run->opts->seed);
	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < t->requests; i++) {
		const struct trace_request *q = &t->request[i];
		const uint32_t *block = &t->block[q->first];

		request_count(run, i, tier_hits(&run->tier[0], block, q->count));
		replay_tier_use(&run->tier[0], block, q->count, run->opts->rev);
	}
	r->capacity_blocks = capacity;
	r->hit_blocks = run->out->hit_blocks;
	r->hit_tokens = run->out->hit_tokens;
	r->used_blocks = policy_count(run->tier[0].policy);
	r->evicted_blocks = run->tier[0].evicted;
	return 0;
}

/* --- several tiers: what is where --------------------------------------------- */

static void tier_write(struct run *run, unsigned i, uint32_t block, uint32_t before,
		       struct replay_span *s)
{
	if (!replay_tier_insert(&run->tier[i], block, before))
		return;
	run->out->tier[i].written_bytes += run->opts->block_bytes;
	s->written_bytes[i] += run->opts->block_bytes;
}

/* Which tier gives each block of the prefix. Return: how many there are. */
static uint32_t prefix_find(struct run *run, const uint32_t *block, uint32_t count)
{
	for (uint32_t n = 0; n < count; n++) {
		unsigned i = 0;

		while (i < REPLAY_TIERS &&
		       !(run->has[i] && replay_tier_has(&run->tier[i], block[n])))
			i++;
		if (i == REPLAY_TIERS)
			return n;
		run->from[n] = (uint8_t)i;
	}
	return count;
}

/* What is used of the prefix counts as used where it lies, from its tail to its head. */
static void prefix_use(struct run *run, const uint32_t *block, uint32_t hits, uint64_t now_ms)
{
	for (uint32_t n = hits; n-- > 0;) {
		struct replay_tier *remote = &run->tier[REPLAY_REMOTE];
		uint64_t *touched = &run->touched_ms[block[n]];

		replay_tier_hit(&run->tier[run->from[n]], block[n]);
		if (run->from[n] == REPLAY_REMOTE || !run->has[REPLAY_REMOTE] ||
		    !replay_tier_has(remote, block[n]) ||
		    (*touched != 0 && now_ms + 1 - *touched < TOUCH_MS))
			continue;
		*touched = now_ms + 1;
		replay_tier_hit(remote, block[n]);
		run->out->tier[REPLAY_REMOTE].touches++;
	}
}

/* A block that a slower tier gave moves up, from the head on. */
static void prefix_promote(struct run *run, const uint32_t *block, uint32_t hits,
			   struct replay_span *s)
{
	for (uint32_t n = 0; n < hits; n++) {
		for (unsigned i = 0; i < run->from[n]; i++) {
			struct replay_tier_result *r = &run->out->tier[i];

			if (!run->has[i] || replay_tier_has(&run->tier[i], block[n]))
				continue;
			if (!replay_tier_admits(&run->tier[i], block[n])) {
				r->refused_blocks++;
				continue;
			}
			r->promoted_blocks++;
			tier_write(run, i, block[n], n > 0 ? block[n - 1] : POLICY_NONE, s);
		}
	}
}

static void rest_save(struct run *run, const uint32_t *block, uint32_t from, uint32_t count,
		      struct replay_span *s)
{
	for (uint32_t n = from; n < count; n++) {
		run->out->saved_bytes += run->opts->block_bytes;
		for (unsigned i = 0; i < REPLAY_TIERS; i++) {
			if (!run->has[i])
				continue;
			if (replay_tier_has(&run->tier[i], block[n]))
				replay_tier_hit(&run->tier[i], block[n]);
			else if (run->opts->second_touch[i] && !run->seen[block[n]])
				run->out->tier[i].refused_blocks++;
			else
				tier_write(run, i, block[n], n > 0 ? block[n - 1] : POLICY_NONE, s);
		}
		run->seen[block[n]] = true;
	}
}

/* --- several tiers: when --------------------------------------------------------- */

/* Sums of a few stay far from overflow. */
static uint64_t ns_of(unsigned __int128 ns)
{
	return ns < (UINT64_C(1) << 60) ? (uint64_t)ns : UINT64_C(1) << 60;
}

static uint64_t device_ns(const struct replay_device *d, uint64_t bytes)
{
	return ns_of((unsigned __int128)bytes * NS_PER_S / d->bytes_per_s);
}

static uint64_t prefill_ns(const struct replay_opts *o, uint64_t tokens)
{
	return ns_of((unsigned __int128)tokens * NS_PER_S / o->prefill_tokens_per_s);
}

/* When the first load blocks of the prefix are there. */
static uint64_t loaded_ns(const struct run *run, const uint64_t bytes[REPLAY_TIERS],
			  uint64_t now_ns)
{
	uint64_t at_ns = now_ns;

	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		const struct replay_device *d = &run->opts->device[i];
		uint64_t begin_ns = run->free_ns[i] > now_ns ? run->free_ns[i] : now_ns;
		uint64_t end_ns = begin_ns + d->latency_ns + device_ns(d, bytes[i]);

		if (bytes[i] > 0 && end_ns > at_ns)
			at_ns = end_ns;
	}
	return at_ns;
}

/* How many of the blocks that are there are worth loading: first token soonest, and of several the
 * most. */
static uint32_t prefix_choose(const struct run *run, const struct trace_request *q, uint32_t hits,
			      uint64_t now_ns, uint64_t *first_ns)
{
	uint64_t engine_ns = run->engine_ns != NULL ? run->engine_ns[0] : 0;
	uint64_t bytes[REPLAY_TIERS] = {0};
	uint32_t best = 0;

	*first_ns = UINT64_MAX;
	for (uint32_t n = 0; n <= hits; n++) {
		uint64_t at_ns = loaded_ns(run, bytes, now_ns);

		if (at_ns < engine_ns)
			at_ns = engine_ns;
		at_ns += prefill_ns(run->opts, q->input_tokens - hit_tokens(run->opts, q, n));
		if (at_ns <= *first_ns) {
			*first_ns = at_ns;
			best = n;
		}
		if (n < hits)
			bytes[run->from[n]] += run->opts->block_bytes;
	}
	return best;
}

/* The engine that was free first is busy until then. */
static void engine_take(uint64_t *heap, uint32_t count, uint64_t until_ns)
{
	uint32_t at = 0, child;

	while ((child = 2 * at + 1) < count) {
		child += child + 1 < count && heap[child + 1] < heap[child];
		if (heap[child] >= until_ns)
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = until_ns;
}

/* What the same request takes without a cache, on engines of its own. */
static uint64_t without_ns(const struct run *run, const struct trace_request *q, uint64_t *heap,
			   uint64_t now_ns)
{
	uint64_t at_ns = heap != NULL && heap[0] > now_ns ? heap[0] : now_ns;

	at_ns += prefill_ns(run->opts, q->input_tokens);
	if (heap != NULL)
		engine_take(heap, run->opts->engines, at_ns);
	return at_ns - now_ns;
}

/* --- several tiers: requests ------------------------------------------------------- */

static void devices_load(struct run *run, uint32_t blocks, uint64_t now_ns, struct replay_span *s)
{
	uint64_t bytes[REPLAY_TIERS] = {0};

	for (uint32_t n = 0; n < blocks; n++)
		bytes[run->from[n]] += run->opts->block_bytes;
	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		if (bytes[i] == 0)
			continue;
		if (run->free_ns[i] < now_ns)
			run->free_ns[i] = now_ns;
		run->free_ns[i] += device_ns(&run->opts->device[i], bytes[i]);
		run->out->tier[i].read_bytes += bytes[i];
		s->read_bytes[i] += bytes[i];
	}
}

static void request_tiered(struct run *run, uint32_t index, uint64_t now_ms, uint64_t *bare_ns)
{
	const struct trace_request *q = &run->trace->request[index];
	const uint32_t *block = &run->trace->block[q->first];
	uint64_t now_ns = ns_of((unsigned __int128)(now_ms - run->trace->request[0].time_ms) *
				NS_PER_MS * 100 / run->opts->speed_percent);
	struct replay_span *s = replay_span_at(run->trace, run->out, index);
	uint32_t hits = prefix_find(run, block, q->count), load = hits;
	uint64_t first_ns = now_ns;

	if (run->out->timed) {
		load = prefix_choose(run, q, hits, now_ns, &first_ns);
		run->out->with_s[index] = (float)(first_ns - now_ns) / (float)NS_PER_S;
		run->out->without_s[index] =
			(float)without_ns(run, q, bare_ns, now_ns) / (float)NS_PER_S;
		if (run->engine_ns != NULL)
			engine_take(run->engine_ns, run->opts->engines, first_ns);
	}
	run->out->skipped_blocks += hits - load;
	for (uint32_t n = 0; n < load; n++) {
		struct replay_tier_result *r = &run->out->tier[run->from[n]];

		r->hit_blocks++;
		r->hit_tokens += hit_tokens(run->opts, q, n + 1) - hit_tokens(run->opts, q, n);
	}
	request_count(run, index, load);
	devices_load(run, load, now_ns, s);
	prefix_use(run, block, load, now_ms);
	prefix_promote(run, block, load, s);
	rest_save(run, block, load, q->count, s);
}

static int float_compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return x < y ? -1 : x > y;
}

static struct replay_times times_of(float *s, uint64_t count)
{
	struct replay_times t = {0};

	qsort(s, count, sizeof(*s), float_compare);
	for (uint64_t i = 0; i < count; i++)
		t.mean += (double)s[i] / (double)count;
	t.p50 = (double)s[(count - 1) * 50 / 100];
	t.p90 = (double)s[(count - 1) * 90 / 100];
	t.p99 = (double)s[(count - 1) * 99 / 100];
	return t;
}

void replay_times_end(struct replay_result *out)
{
	out->timed = true;
	out->with = times_of(out->with_s, out->requests);
	out->without = times_of(out->without_s, out->requests);
}

static int tiers_open(struct run *run)
{
	const struct replay_opts *o = run->opts;

	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		uint64_t blocks = o->tier_bytes[i] / o->block_bytes;
		int rc;

		run->has[i] = run->out->tier[i].present = blocks > 0;
		run->out->tier[i].capacity_blocks = blocks;
		if (!run->has[i])
			continue;
		rc = replay_tier_open(&run->tier[i], o->policy, blocks, run->trace->unique_blocks,
				      o->seed);
		if (rc != 0)
			return rc;
	}
	return 0;
}

static uint32_t longest(const struct trace *t)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < t->requests; i++)
		if (t->request[i].count > most)
			most = t->request[i].count;
	return most;
}

static int run_tiered(struct run *run)
{
	const struct trace *t = run->trace;
	uint64_t now_ms = t->request[0].time_ms, *bare_ns = NULL;
	int rc = tiers_open(run);

	run->out->timed = run->opts->prefill_tokens_per_s > 0;
	run->from = malloc((size_t)longest(t) + 1);
	run->seen = calloc((size_t)t->unique_blocks + 1, sizeof(bool));
	run->touched_ms = calloc((size_t)t->unique_blocks + 1, sizeof(uint64_t));
	run->out->with_s = calloc(t->requests, sizeof(float));
	run->out->without_s = calloc(t->requests, sizeof(float));
	if (run->opts->engines > 0) {
		run->engine_ns = calloc(run->opts->engines, sizeof(uint64_t));
		bare_ns = calloc(run->opts->engines, sizeof(uint64_t));
	}
	if (rc == 0 && (run->from == NULL || run->seen == NULL || run->touched_ms == NULL ||
	    run->out->with_s == NULL || run->out->without_s == NULL ||
	    (run->opts->engines > 0 && (run->engine_ns == NULL || bare_ns == NULL))))
		rc = -ENOMEM;
	for (uint32_t i = 0; rc == 0 && i < t->requests; i++) {
		if (t->request[i].time_ms > now_ms)
			now_ms = t->request[i].time_ms;
		request_tiered(run, i, now_ms, bare_ns);
	}
	free(bare_ns);
	if (rc != 0)
		return rc;
	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		if (!run->has[i])
			continue;
		run->out->tier[i].used_blocks = policy_count(run->tier[i].policy);
		run->out->tier[i].evicted_blocks = run->tier[i].evicted;
	}
	if (run->out->timed)
		replay_times_end(run->out);
	return 0;
}

void replay_line_add(struct replay_line *l, uint64_t blocks, double seconds)
{
	double n = (double)blocks;

	l->requests++;
	l->blocks += n;
	l->blocks2 += n * n;
	l->seconds += seconds;
	l->blocks_seconds += n * seconds;
}

/* Least squares; never below the origin, and through it where all have as many blocks. */
bool replay_line_fit(const struct replay_line *l, double *fixed_s, double *block_s)
{
	double n = (double)l->requests, wide = n * l->blocks2 - l->blocks * l->blocks;

	*fixed_s = 0;
	if (l->blocks <= 0)
		return false;
	if (wide > 0) {
		*block_s = (n * l->blocks_seconds - l->blocks * l->seconds) / wide;
		*fixed_s = (l->seconds - *block_s * l->blocks) / n;
	}
	if (wide > 0 && *fixed_s >= 0 && *block_s > 0)
		return true;
	*fixed_s = 0;
	*block_s = l->seconds / l->blocks;
	return true;
}

void replay_result_begin(const struct trace *t, struct replay_result *out)
{
	uint64_t last_ms = 0;

	*out = (struct replay_result){.requests = t->requests, .blocks = t->blocks,
		.unique_blocks = t->unique_blocks, .tokens = t->tokens, .span_ms = 1};
	for (uint32_t i = 0; i < t->requests; i++)
		if (t->request[i].time_ms > last_ms)
			last_ms = t->request[i].time_ms;
	if (t->requests > 0)
		out->span_ms = (last_ms - t->request[0].time_ms) / REPLAY_SPANS + 1;
}

int replay_run(const struct trace *t, const struct replay_opts *o, struct replay_result *out)
{
	struct run run = {.trace = t, .opts = o, .out = out};
	int rc;

	replay_result_begin(t, out);
	if (t->requests == 0)
		return 0;
	for (unsigned i = 0; i < REPLAY_TIERS; i++)
		out->tiered = out->tiered || o->tier_bytes[i] > 0;
	rc = out->tiered ? run_tiered(&run) : run_single(&run);
	for (unsigned i = 0; i < REPLAY_TIERS; i++)
		replay_tier_close(&run.tier[i]);
	free(run.engine_ns);
	free(run.touched_ms);
	free(run.seen);
	free(run.from);
	return rc;
}

void replay_result_free(struct replay_result *r)
{
	free(r->with_s);
	free(r->without_s);
	r->with_s = r->without_s = NULL;
}
