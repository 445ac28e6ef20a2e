/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace through a real cache: DRAM of this process, a drive or file of this machine, an array. A
 * block's bytes follow from its number, and every block that a load delivers is compared with them.
 * Requests follow one another; what is not there is saved. The tiers keep what they hold: the same
 * trace again finds it there, another --seed does not.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "cmd/cmd.h"
#include "cmd/replay.h"
#include "kvof/cache.h"

#define REAL_BATCH_BLOCKS 64u
#define REAL_BATCH_BYTES (64 * MiB)
#define REAL_DEADLINE_NS (10 * NS_PER_S)
#define REAL_FLUSH_NS (60 * NS_PER_S)
#define REAL_RELEASE_MS 1000

struct real {
	struct kvof_cache *cache;
	const struct trace *trace;
	const struct replay_opts *opts;
	const struct trace_request *request; /* in hand */
	struct replay_result *out;
	struct kvof_id *id;                  /* of the request in hand */
	uint8_t *buffer;
	struct iovec iov[REAL_BATCH_BLOCKS];
	struct kvof_block block[REAL_BATCH_BLOCKS];
	struct kvof_result result[REAL_BATCH_BLOCKS];
	uint32_t batch_blocks;
	uint64_t begin_ns, written_bytes, name_hash;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* --- bytes of a block --------------------------------------------------------- */

/* What makes a block: also its identity, so nothing else can be a hit. */
struct real_source {
	uint64_t name_hash, seed, block_bytes, block;
};

static struct real_source source_of(const struct real *r, uint32_t block)
{
	return (struct real_source){r->name_hash, r->opts->seed, r->opts->block_bytes, block};
}

static struct prng bytes_of(const struct real *r, uint32_t block)
{
	struct real_source source = source_of(r, block);

	return prng_of(hash_xxh3(&source, sizeof(source)));
}

static void block_fill(const struct real *r, uint32_t block, uint8_t *at)
{
	struct prng p = bytes_of(r, block);

	prng_fill(&p, at, r->opts->block_bytes);
}

static bool block_right(const struct real *r, uint32_t block, const uint8_t *at)
{
	struct prng p = bytes_of(r, block);
	uint64_t bytes = r->opts->block_bytes;
	uint8_t want[4096];

	while (bytes > 0) {
		uint64_t step = bytes_min(bytes, sizeof(want));

		prng_fill(&p, want, step);
		if (memcmp(at, want, step) != 0)
			return false;
		at += step;
		bytes -= step;
	}
	return true;
}

/* --- the cache ---------------------------------------------------------------- */

static int real_open(struct real *r, const struct replay_real *real)
{
	const struct replay_opts *o = r->opts;
	const struct kvof_field fields[] = {{"purpose", "replay of traces"}};
	char why[256] = "";
	struct kvof_cache_opts opts = {
		.struct_bytes = sizeof(opts), .model_id = "kvof replay", .fields = fields,
		.field_count = ARRAY_COUNT(fields), .block_tokens = o->block_tokens,
		.target = real->target, .dram_bytes = o->tier_bytes[REPLAY_DRAM],
		.deadline_ns = REAL_DEADLINE_NS, .policy = o->policy,
		.strict = real->target != NULL,  /* what was asked for is there, or nothing runs */
		.flash = real->flash != NULL ? &real->flash : NULL,
		.flash_count = real->flash != NULL,
		.admission = (o->second_touch[REPLAY_FLASH] ? KVOF_ADMIT_FLASH_SECOND : 0) |
			     (o->second_touch[REPLAY_REMOTE] ? KVOF_ADMIT_REMOTE_SECOND : 0),
	};
	int rc;

	if (opts.dram_bytes == 0)
		opts.policy = NULL;
	rc = kvof_cache_open(&opts, why, &r->cache);
	if (rc != 0)
		cmd_error("replay", "the cache can't be opened: %s",
			  why[0] != 0 ? why : strerror(-rc));
	else if (why[0] != 0)
		cmd_error("replay", "%s", why);
	return rc == 0 ? 0 : rc == -EINVAL ? CMD_USAGE : CMD_FAILED;
}

/* Until the kernel has let go of every buffer of the batch. False: it did not in good time. */
static bool real_released(struct real *r, uint32_t busy)
{
	struct pollfd p = {kvof_cache_fd(r->cache), POLLIN, 0};
	struct kvof_result result;

	while (busy > 0) {
		int n = kvof_cache_drain(r->cache, &result, 1);

		if (n < 0 || (n == 0 && poll(&p, 1, REAL_RELEASE_MS) <= 0))
			return false;
		busy -= n == 1 && (result.flags & KVOF_RESULT_RELEASED) != 0;
	}
	return true;
}

/* Return: 0; an exit code after a line. */
static int real_batch(struct real *r, enum kvof_op op, const uint32_t *block, uint32_t first,
		      uint32_t count)
{
	uint32_t busy = 0;
	int rc;

	must(count <= r->batch_blocks);
	for (uint32_t i = 0; i < count; i++) {
		r->iov[i] = (struct iovec){r->buffer + i * r->opts->block_bytes,
			r->opts->block_bytes};
		r->block[i] = (struct kvof_block){r->id[first + i], &r->iov[i], 1,
			r->opts->block_bytes};
		if (op == KVOF_SAVE)
			block_fill(r, block[first + i], r->iov[i].iov_base);
	}
	rc = kvof_cache_wait(r->cache, op, r->block, count, REAL_DEADLINE_NS, r->result);
	if (rc != 0) {
		cmd_error("replay", "a batch of %u blocks was refused: %s", count, strerror(-rc));
		return CMD_FAILED;
	}
	for (uint32_t i = 0; i < count; i++)
		busy += r->result[i].busy != 0;
	if (real_released(r, busy))
		return 0;
	cmd_error("replay", "a buffer was not given back");
	return CMD_FAILED;
}

/* Bytes that this process wrote to drives so far. False: the kernel does not tell. */
static bool drives_written(uint64_t *bytes)
{
	FILE *f = fopen("/proc/self/io", "r");
	char line[128];
	bool told = false;

	*bytes = 0;
	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (strncmp(line, "write_bytes: ", 13) == 0) {
			*bytes = strtoull(line + 13, NULL, 10);
			told = true;
		}
	if (f != NULL)
		fclose(f);
	return told;
}

/* --- one request -------------------------------------------------------------- */

static unsigned tier_of(uint32_t tier)
{
	return tier == KVOF_TIER_DRAM ? REPLAY_DRAM :
	       tier == KVOF_TIER_FLASH ? REPLAY_FLASH : REPLAY_REMOTE;
}

/* The last block of a request may be a part of one. */
static uint64_t block_tokens(const struct real *r, uint32_t index)
{
	uint64_t before = (uint64_t)index * r->opts->block_tokens;

	return before < r->request->input_tokens ?
	       bytes_min(r->request->input_tokens - before, r->opts->block_tokens) : 0;
}

/* Blocks of the batch up to the first that did not come. Wrong bytes are counted. */
static uint32_t batch_count(struct real *r, const uint32_t *block, uint32_t first, uint32_t count,
			    struct replay_span *s)
{
	for (uint32_t i = 0; i < count; i++) {
		struct replay_tier_result *t;
		unsigned tier = tier_of(r->result[i].tier);

		if (r->result[i].reason != KVOF_OK)
			return i;
		if (r->result[i].value_bytes != r->opts->block_bytes ||
		    !block_right(r, block[first + i], r->iov[i].iov_base))
			r->out->wrong_blocks++;
		t = &r->out->tier[tier];
		t->hit_blocks++;
		t->hit_tokens += block_tokens(r, first + i);
		t->read_bytes += r->opts->block_bytes;
		s->read_bytes[tier] += r->opts->block_bytes;
		r->out->verified_blocks++;
	}
	return count;
}

static int request_load(struct real *r, const uint32_t *block, uint32_t n, uint32_t *hits,
			struct replay_span *s, uint64_t *took_ns)
{
	*hits = 0;
	while (*hits < n) {
		uint32_t count = (uint32_t)bytes_min(n - *hits, r->batch_blocks), got;
		uint64_t before_ns = now_ns();
		int rc = real_batch(r, KVOF_LOAD, block, *hits, count);

		if (rc != 0)
			return rc;
		*took_ns += now_ns() - before_ns;
		got = batch_count(r, block, *hits, count, s);
		*hits += got;
		if (got < count)
			break;
	}
	return 0;
}

static int request_save(struct real *r, const uint32_t *block, uint32_t from, uint32_t n)
{
	int rc = 0;

	for (uint32_t at = from; rc == 0 && at < n; at += r->batch_blocks) {
		uint32_t count = (uint32_t)bytes_min(n - at, r->batch_blocks);

		rc = real_batch(r, KVOF_SAVE, block, at, count);
		r->out->saved_bytes += count * r->opts->block_bytes;
		for (uint32_t i = 0; rc == 0 && i < count; i++)
			r->out->unsaved_blocks += r->result[i].reason != KVOF_OK &&
						  r->result[i].reason != KVOF_EXISTS;
	}
	return rc;
}

static void request_await(const struct real *r, const struct trace_request *q)
{
	uint64_t at_ns, passed_ns = now_ns() - r->begin_ns;
	struct timespec t;

	if (!r->opts->paced || q->time_ms <= r->trace->request[0].time_ms)
		return;
	at_ns = (uint64_t)((unsigned __int128)(q->time_ms - r->trace->request[0].time_ms) *
			   NS_PER_MS * 100 / r->opts->speed_percent);
	if (at_ns <= passed_ns)
		return;
	at_ns -= passed_ns;
	t = (struct timespec){(time_t)(at_ns / NS_PER_S), (long)(at_ns % NS_PER_S)};
	nanosleep(&t, NULL);
}

static void hits_of_tiers(const struct real *r, uint64_t hits[REPLAY_TIERS])
{
	for (unsigned i = 0; i < REPLAY_TIERS; i++)
		hits[i] = r->out->tier[i].hit_blocks;
}

/* A request that one tier served alone is a point of that tier's line. */
static void request_time(struct real *r, const uint64_t before[REPLAY_TIERS], uint32_t hits,
			 uint64_t load_ns)
{
	double load_s = (double)load_ns / (double)NS_PER_S;

	r->out->misses += hits == 0;
	if (hits == 0)
		r->out->miss_s += load_s;
	else
		r->out->load_s += load_s;
	for (unsigned i = 0; i < REPLAY_TIERS; i++)
		if (hits > 0 && r->out->tier[i].hit_blocks - before[i] == hits)
			replay_line_add(&r->out->tier[i].loads, hits, load_s);
}

static int request_replay(struct real *r, uint32_t index)
{
	const struct trace_request *q = &r->trace->request[index];
	const uint32_t *block = &r->trace->block[q->first];
	struct replay_span *s = replay_span_at(r->trace, r->out, index);
	uint64_t prefill = r->opts->prefill_tokens_per_s, before_ns, took_ns = 0, tokens;
	uint64_t before[REPLAY_TIERS];
	double save_s;
	uint32_t n = 0, hits = 0;
	int rc = 0;

	r->request = q;
	request_await(r, q);
	for (uint32_t i = 0; i < q->count; i++) {
		struct real_source source = source_of(r, block[i]);

		must(kvof_cache_id_of(r->cache, &source, sizeof(source), &r->id[i]) == 0);
	}
	before_ns = now_ns();
	for (uint32_t at = 0; at < q->count && n == at; at += KVOF_BLOCKS_MAX) {
		uint32_t found = 0;

		rc = kvof_cache_match(r->cache, r->id + at,
				      (uint32_t)bytes_min(q->count - at, KVOF_BLOCKS_MAX), 0,
				      &found);
		if (rc != 0) {
			cmd_error("replay", "a match was refused: %s", strerror(-rc));
			return CMD_FAILED;
		}
		n += found;
	}
	took_ns = now_ns() - before_ns;
	hits_of_tiers(r, before);
	rc = request_load(r, block, n, &hits, s, &took_ns);
	r->out->check_s += (double)(now_ns() - before_ns - took_ns) / (double)NS_PER_S;
	request_time(r, before, hits, took_ns);
	/* a lease of seconds would be one of many requests here */
	for (uint32_t at = 0; at < q->count; at += KVOF_BLOCKS_MAX)
		(void)kvof_cache_unlease(r->cache, r->id + at,
					 (uint32_t)bytes_min(q->count - at, KVOF_BLOCKS_MAX));
	before_ns = now_ns();
	if (rc == 0)
		rc = request_save(r, block, hits, q->count);
	save_s = (double)(now_ns() - before_ns) / (double)NS_PER_S;
	r->out->save_s += save_s;
	if (q->count > hits)
		replay_line_add(&r->out->saves, q->count - hits, save_s);
	tokens = bytes_min((uint64_t)hits * r->opts->block_tokens, q->input_tokens);
	r->out->hit_blocks += hits;
	r->out->hit_tokens += tokens;
	s->hit_blocks += hits;
	s->blocks += q->count;
	if (prefill > 0) {
		r->out->with_s[index] = (float)took_ns / (float)NS_PER_S +
			(float)(q->input_tokens - tokens) / (float)prefill;
		r->out->without_s[index] = (float)q->input_tokens / (float)prefill;
	}
	return rc;
}

/* --- the whole trace ------------------------------------------------------------ */

static int real_stat(struct real *r)
{
	static const enum kvof_tier tier[REPLAY_TIERS] = {
		KVOF_TIER_DRAM, KVOF_TIER_FLASH, KVOF_TIER_REMOTE,
	};
	struct replay_tier_result *flash = &r->out->tier[REPLAY_FLASH];
	struct kvof_cache_stat stat;
	uint64_t written_bytes;

	if (kvof_cache_flush(r->cache, REAL_FLUSH_NS) != 0 ||
	    kvof_cache_stat(r->cache, &stat) != 0) {
		cmd_error("replay", "the cache does not say what it did");
		return CMD_FAILED;
	}
	for (unsigned i = 0; i < REPLAY_TIERS; i++) {
		struct replay_tier_result *t = &r->out->tier[i];

		t->written_unknown = true;
		t->device_bytes = stat.device_bytes[tier[i]];
		t->promoted_blocks = stat.promoted[tier[i]];
		t->refused_blocks = stat.promotion_refused[tier[i]] +
				    stat.admission_refused[tier[i]];
	}
	r->out->tier[REPLAY_DRAM].used_blocks = stat.dram_blocks;
	r->out->tier[REPLAY_DRAM].evicted_blocks = stat.dram_evicted;
	flash->written_unknown = !drives_written(&written_bytes);
	flash->written_bytes = flash->written_unknown ? 0 : written_bytes - r->written_bytes;
	flash->used_blocks = stat.flash_blocks;
	flash->evicted_blocks = stat.flash_evicted;
	r->out->tier[REPLAY_REMOTE].touches = stat.touches;
	return 0;
}

static int real_memory(struct real *r)
{
	uint32_t most = 1;

	for (uint32_t i = 0; i < r->trace->requests; i++)
		if (r->trace->request[i].count > most)
			most = r->trace->request[i].count;
	r->batch_blocks = (uint32_t)bytes_min(REAL_BATCH_BYTES / r->opts->block_bytes,
					      REAL_BATCH_BLOCKS);
	must(r->batch_blocks > 0);
	r->id = malloc(most * sizeof(*r->id));
	r->buffer = malloc(r->batch_blocks * r->opts->block_bytes);
	r->out->with_s = calloc(r->trace->requests + 1, sizeof(float));
	r->out->without_s = calloc(r->trace->requests + 1, sizeof(float));
	if (r->id != NULL && r->buffer != NULL && r->out->with_s != NULL &&
	    r->out->without_s != NULL)
		return 0;
	cmd_error("replay", "no memory");
	return CMD_FAILED;
}

int replay_real_run(const struct trace *t, const struct replay_opts *o,
		    const struct replay_real *real, struct replay_result *out)
{
	struct real r = {.trace = t, .opts = o, .out = out,
		.name_hash = hash_xxh3(real->name, strlen(real->name))};
	int rc;

	replay_result_begin(t, out);
	out->tiered = out->real = true;
	out->tier[REPLAY_DRAM].present = o->tier_bytes[REPLAY_DRAM] > 0;
	out->tier[REPLAY_FLASH].present = real->flash != NULL;
	out->tier[REPLAY_REMOTE].present = real->target != NULL;
	rc = real_memory(&r);
	if (rc == 0)
		rc = real_open(&r, real);
	r.begin_ns = now_ns();
	(void)drives_written(&r.written_bytes);
	for (uint32_t i = 0; rc == 0 && i < t->requests; i++)
		rc = request_replay(&r, i);
	if (rc == 0)
		rc = real_stat(&r);
	if (r.cache != NULL)
		kvof_cache_close(&r.cache);
	out->seconds = (double)(now_ns() - r.begin_ns) / (double)NS_PER_S;
	free(r.id);
	free(r.buffer);
	if (rc == 0 && o->prefill_tokens_per_s > 0 && t->requests > 0)
		replay_times_end(out);
	if (rc == 0 && out->wrong_blocks > 0) {
		cmd_error("replay", "%llu blocks came with wrong bytes",
			  (unsigned long long)out->wrong_blocks);
		rc = CMD_FAILED;
	}
	return rc;
}
