/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof plan hits: what a cache of each size hits of a trace, and what more room and a faster device
 * bring, told apart (docs/plan.md). Reads a trace and perhaps a config.json, writes nothing.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/plan.h"
#include "cmd/replay.h"
#include "cmd/traces.h"
#include "plan/hits.h"

#define NAME "plan hits"
#define SIZES_MAX (HITS_CAPACITIES_MAX / 2)    /* twice the room of each is looked at as well */
#define BRINGS_LEAST 0.01                      /* of the mean; less is nothing */
#define NOT_GIVEN UINT64_MAX

struct size {
	uint64_t bytes, blocks;            /* bytes 0: it was given in blocks */
	uint32_t at, twice;                /* in the count's sizes */
	uint64_t worth_blocks, worth_tokens;
};

struct ask {
	const char *trace_name, *capacity, *blocks, *touch, *speed;
	struct traces_kv kv;
	unsigned seed, requests, block_tokens, prefill;
	uint64_t rate, latency_ns;
	bool json, worth;
	double block_bytes;
	struct size size[SIZES_MAX];
	uint32_t sizes;
	uint64_t capacity_blocks[HITS_CAPACITIES_MAX];
	struct hits_load load[2];          /* as told, and twice as fast */
	struct hits_opts opts;
	struct hits hits;
};

static const double shares[] = {0.5, 0.8, 0.9, 0.95, 0.99, 1};

/* --- sizes ------------------------------------------------------------------------------------ */

static int size_add(struct ask *a, const char *option, const char *text)
{
	struct size *s = &a->size[a->sizes];
	bool bytes = option[0] == 'c';

	if (a->sizes == SIZES_MAX) {
		cmd_error(NAME, "--%s: more than %u sizes", option, SIZES_MAX);
		return CMD_USAGE;
	}
	*s = (struct size){0};
	if (bytes ? !cmd_bytes_parse(text, true, &s->bytes) : !cmd_count_parse(text, &s->blocks)) {
		cmd_error(NAME, "--%s %s: not %s", option, text,
			  bytes ? "a size, as in 500GB or 2TB" : "a count of blocks");
		return CMD_USAGE;
	}
	if (bytes)
		s->blocks = (uint64_t)((double)s->bytes / a->block_bytes);
	if (s->blocks == 0) {
		cmd_error(NAME, "--%s %s: not even one block", option, text);
		return CMD_USAGE;
	}
	a->sizes++;
	return 0;
}

static int sizes_parse(struct ask *a, const char *option, const char *list)
{
	char text[64];
	int rc = 0;

	while (rc == 0 && *list != 0) {
		size_t bytes = strcspn(list, ",");

		snprintf(text, sizeof(text), "%.*s", (int)bytes_min(bytes, sizeof(text) - 1), list);
		rc = size_add(a, option, text);
		list += bytes + (list[bytes] == ',');
	}
	return rc;
}

/* 1, 2, 5, 10, 20, ... from about a hundredth of all to all. */
static int sizes_usual(struct ask *a, const struct trace *t)
{
	double all = t->unique_blocks > 0 ? t->unique_blocks : 1, unit = 1;
	static const unsigned steps[] = {1, 2, 5};
	int rc = 0;

	if (a->block_bytes > 0)
		all *= a->block_bytes;
	while (unit * 1000 < all)
		unit *= 10;
	for (unsigned i = 0; rc == 0 && i < 12; i++) {
		double value = unit * steps[i % 3] * pow(10, i / 3);
		char text[32];

		if (value >= all || value < a->block_bytes)
			continue;
		snprintf(text, sizeof(text), "%.0f", value);
		rc = size_add(a, a->block_bytes > 0 ? "capacity" : "blocks", text);
	}
	if (rc == 0 && a->sizes < SIZES_MAX)
		a->size[a->sizes++] = (struct size){(uint64_t)(a->block_bytes * t->unique_blocks),
			t->unique_blocks > 0 ? t->unique_blocks : 1, 0, 0, 0, 0};
	return rc;
}

static uint32_t capacity_place(struct ask *a, uint64_t blocks)
{
	for (uint32_t i = 0; i < a->opts.capacities; i++)
		if (a->capacity_blocks[i] == blocks)
			return i;
	a->capacity_blocks[a->opts.capacities] = blocks;
	return a->opts.capacities++;
}

/* --- the work --------------------------------------------------------------------------------- */

/* What the policy that kvof uses hits: a replay of its own for each size. */
static int worth_count(struct ask *a, const struct trace *t)
{
	for (uint32_t i = 0; i < a->sizes; i++) {
		const struct replay_opts o = {.policy = "worth", .seed = 1, .rev = a->opts.rev,
			.block_tokens = a->block_tokens, .capacity_blocks = a->size[i].blocks,
			.speed_percent = 100};
		struct replay_result r = {0};
		int rc = replay_run(t, &o, &r);

		a->size[i].worth_blocks = r.hit_blocks;
		a->size[i].worth_tokens = r.hit_tokens;
		replay_result_free(&r);
		if (rc != 0) {
			cmd_error(NAME, "no memory for a replay of %u blocks", t->unique_blocks);
			return CMD_FAILED;
		}
	}
	return 0;
}

static void devices_set(struct ask *a)
{
	if (a->prefill == 0 || a->rate == NOT_GIVEN)
		return;
	for (unsigned i = 0; i < 2; i++)
		a->load[i] = (struct hits_load){
			a->latency_ns != NOT_GIVEN ? (double)a->latency_ns / 1e9 : 0,
			a->block_bytes / ((double)a->rate * (i + 1))};
	a->opts.load = a->load;
	a->opts.loads = 2;
	a->opts.token_s = 1 / (double)a->prefill;
}

static int hits_make(struct ask *a, const struct trace *t)
{
	int rc = 0;

	if (a->capacity != NULL)
		rc = sizes_parse(a, "capacity", a->capacity);
	if (rc == 0 && a->blocks != NULL)
		rc = sizes_parse(a, "blocks", a->blocks);
	if (rc == 0 && a->sizes == 0)
		rc = sizes_usual(a, t);
	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < a->sizes; i++) {
		a->size[i].at = capacity_place(a, a->size[i].blocks);
		a->size[i].twice = capacity_place(a, a->size[i].blocks * 2);
	}
	a->opts.capacity_blocks = a->capacity_blocks;
	a->opts.block_tokens = a->block_tokens;
	devices_set(a);
	if (hits_count(t, &a->opts, &a->hits) != 0) {
		cmd_error(NAME, "no memory for %u blocks", t->unique_blocks);
		return CMD_FAILED;
	}
	return a->worth ? worth_count(a, t) : 0;
}

/* --- what is told ----------------------------------------------------------------------------- */

static double part(uint64_t of, uint64_t whole)
{
	return whole > 0 ? (double)of / (double)whole : 0;
}

static const struct hits_time *time_at(const struct ask *a, uint32_t size, unsigned load)
{
	return &a->hits.size[size].time[load];
}

static const char *brings_more(const struct ask *a, const struct size *s)
{
	double now = time_at(a, s->at, 0)->mean_s;
	double room = now - time_at(a, s->twice, 0)->mean_s;
	double rate = now - time_at(a, s->at, 1)->mean_s;

	if (fmax(room, rate) < BRINGS_LEAST * now)
		return "neither";
	return room > rate ? "room" : "rate";
}

static json_t *size_json(const struct ask *a, const struct size *s)
{
	const struct hits *h = &a->hits;
	const struct hits_size *at = &h->size[s->at];
	json_t *one = json_pack("{s:I, s:I, s:I, s:f, s:f, s:f}",
		"capacity_blocks", (json_int_t)s->blocks, "hit_blocks", (json_int_t)at->hit_blocks,
		"hit_tokens", (json_int_t)at->hit_tokens, "block_rate",
		part(at->hit_blocks, h->blocks), "token_rate", part(at->hit_tokens, h->tokens),
		"of_ideal", part(at->hit_tokens, h->hit_tokens[h->unique_blocks]));

	if (a->block_bytes > 0) {
		double bytes = a->block_bytes * (double)at->hit_blocks;

		json_object_set_new(one, "capacity_bytes", json_integer((json_int_t)(
			s->bytes > 0 ? (double)s->bytes : a->block_bytes * (double)s->blocks)));
		json_object_set_new(one, "load_bytes_per_s",
				    json_real(h->span_s > 0 ? bytes / h->span_s : 0));
		json_object_set_new(one, "load_bytes_per_s_peak", json_real(
			a->block_bytes * (double)at->peak_blocks * 1000 / HITS_PEAK_MS));
	}
	if (a->opts.loads > 0) {
		const struct hits_time *t = time_at(a, s->at, 0);

		json_object_update_new(one, json_pack("{s:f, s:f, s:f, s:I, s:f, s:f, s:s}",
			"ttft_mean_s", t->mean_s, "wait_mean_s", t->wait_s,
			"device_busy", t->busy_share, "loaded_tokens", (json_int_t)t->loaded_tokens,
			"ttft_mean_twice_room_s", time_at(a, s->twice, 0)->mean_s,
			"ttft_mean_twice_rate_s", time_at(a, s->at, 1)->mean_s,
			"brings_more", brings_more(a, s)));
	}
	if (a->worth) {
		json_object_set_new(one, "worth_hit_blocks",
				    json_integer((json_int_t)s->worth_blocks));
		json_object_set_new(one, "worth_hit_tokens",
				    json_integer((json_int_t)s->worth_tokens));
		json_object_set_new(one, "worth_token_rate",
				    json_real(part(s->worth_tokens, h->tokens)));
	}
	return one;
}

static int print_json(const struct ask *a)
{
	const struct hits *h = &a->hits;
	uint64_t ideal_blocks = h->hit_blocks[h->unique_blocks];
	uint64_t ideal_tokens = h->hit_tokens[h->unique_blocks];
	json_t *sizes = json_array(), *least = json_array(), *all;

	for (uint32_t i = 0; i < a->sizes; i++)
		json_array_append_new(sizes, size_json(a, &a->size[i]));
	for (size_t i = 0; i < ARRAY_COUNT(shares); i++) {
		uint64_t blocks = hits_capacity_of(h, shares[i]);

		json_array_append_new(least, json_pack("{s:f, s:I, s:o}", "of_ideal", shares[i],
			"capacity_blocks", (json_int_t)blocks, "capacity_bytes",
			a->block_bytes > 0 ? json_integer((json_int_t)((double)blocks *
							  a->block_bytes)) : json_null()));
	}
	all = json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:o, s:o, s:o, s:o, "
			"s:{s:I, s:I, s:f, s:f}, s:f}",
		"requests", (json_int_t)h->requests, "blocks", (json_int_t)h->blocks,
		"unique_blocks", (json_int_t)h->unique_blocks, "tokens", (json_int_t)h->tokens,
		"block_tokens", (json_int_t)a->block_tokens, "policy", "lru",
		"touch", a->opts.rev ? "rev" : "fwd",
		"bytes_per_token", a->kv.token_bytes > 0 ? json_real(a->kv.token_bytes) :
							   json_null(),
		"unique_bytes", a->block_bytes > 0 ? json_integer((json_int_t)(
			a->block_bytes * (double)h->unique_blocks)) : json_null(),
		"capacities", sizes, "least_capacity", least,
		"ideal", "hit_blocks", (json_int_t)ideal_blocks, "hit_tokens",
		(json_int_t)ideal_tokens, "block_rate", part(ideal_blocks, h->blocks),
		"token_rate", part(ideal_tokens, h->tokens), "span_s", h->span_s);
	if (all != NULL && a->opts.loads > 0)
		json_object_set_new(all, "ttft_mean_computed_s", json_real(h->compute_s));
	return cmd_json_print(NAME, all, CMD_DONE);
}

static const char *size_text(const struct ask *a, uint64_t blocks, char out[64])
{
	double bytes = (double)blocks * a->block_bytes;

	if (a->block_bytes <= 0)
		snprintf(out, 64, "%llu blocks", (unsigned long long)blocks);
	else if (bytes >= 1e12)
		snprintf(out, 64, "%.2f TB", bytes / 1e12);
	else
		snprintf(out, 64, "%.2f GB", bytes / 1e9);
	return out;
}

static void print_sizes(const struct ask *a)
{
	const struct hits *h = &a->hits;
	char text[64];

	printf("\n%14s%12s%10s%10s%10s%s%s\n", "room", "blocks", "blocks", "tokens", "of most",
	       a->block_bytes > 0 ? "   loads GB/s   busiest 10 s" : "",
	       a->worth ? "   worth: tokens" : "");
	for (uint32_t i = 0; i < a->sizes; i++) {
		const struct size *s = &a->size[i];
		const struct hits_size *at = &h->size[s->at];

		printf("%14s%12llu%8.2f %%%8.2f %%%8.1f %%", size_text(a, s->blocks, text),
		       (unsigned long long)s->blocks, 100 * part(at->hit_blocks, h->blocks),
		       100 * part(at->hit_tokens, h->tokens),
		       100 * part(at->hit_tokens, h->hit_tokens[h->unique_blocks]));
		if (a->block_bytes > 0)
			printf("%13.3f%15.3f", h->span_s > 0 ? a->block_bytes *
			       (double)at->hit_blocks / h->span_s / 1e9 : 0, a->block_bytes *
			       (double)at->peak_blocks * 1000 / HITS_PEAK_MS / 1e9);
		if (a->worth)
			printf("%14.2f %%", 100 * part(s->worth_tokens, h->tokens));
		printf("\n");
	}
}

static void print_times(const struct ask *a)
{
	char text[64];

	printf("\nroom or rate: mean time to the first token, all computed %.3f s\n",
	       a->hits.compute_s);
	printf("%14s%12s%14s%14s%12s  %s\n", "room", "mean s", "twice room s", "twice rate s",
	       "busy", "brings more");
	for (uint32_t i = 0; i < a->sizes; i++) {
		const struct size *s = &a->size[i];
		const struct hits_time *t = time_at(a, s->at, 0);

		printf("%14s%12.3f%14.3f%14.3f%10.1f %%  %s\n", size_text(a, s->blocks, text),
		       t->mean_s, time_at(a, s->twice, 0)->mean_s, time_at(a, s->at, 1)->mean_s,
		       100 * t->busy_share, brings_more(a, s));
	}
	printf("one device of %.3f GB/s, %.6f s a load; engines as many as needed, %u tokens/s "
	       "each; what is\nsooner computed is not loaded. The simulator counts engines as "
	       "well.\n", (double)a->rate / 1e9, a->load[0].fixed_s, a->prefill);
}

static int print_page(const struct ask *a)
{
	const struct hits *h = &a->hits;
	uint64_t most = h->hit_tokens[h->unique_blocks];
	char text[64];

	printf("%s: %llu requests in %.0f s, %llu blocks of %u tokens, %llu different (%s)\n",
	       a->trace_name, (unsigned long long)h->requests, h->span_s,
	       (unsigned long long)h->blocks, a->block_tokens,
	       (unsigned long long)h->unique_blocks, size_text(a, h->unique_blocks, text));
	if (a->kv.token_bytes > 0)
		printf("a token's KV is %.0f bytes, a block's %.0f%s\n", a->kv.token_bytes,
		       a->block_bytes, a->kv.windows ? "; layers that slide count as whole, as a "
		       "cache of blocks keeps them" : "");
	printf("with room for all, %.2f %% of blocks and %.2f %% of tokens come again\n",
	       100 * part(h->hit_blocks[h->unique_blocks], h->blocks), 100 * part(most, h->tokens));
	print_sizes(a);
	if (a->opts.loads > 0)
		print_times(a);
	printf("\nleast room for a part of that:");
	for (size_t i = 0; i < ARRAY_COUNT(shares); i++)
		printf(" %.0f %% %s%s", 100 * shares[i],
		       size_text(a, hits_capacity_of(h, shares[i]), text),
		       i + 1 < ARRAY_COUNT(shares) ? "," : "\n");
	if (!a->worth)
		printf("Policy is lru, for which one pass answers for all sizes. kvof's own, "
		       "worth, hits more\nwhere room is short: --worth replays it for these "
		       "sizes.\n");
	return cmd_output_end(NAME, CMD_DONE);
}

/* --- options ---------------------------------------------------------------------------------- */

static int ask_check(struct ask *a)
{
	int rc = traces_kv_find(NAME, &a->kv);

	if (rc != 0)
		return rc;
	a->block_bytes = a->kv.token_bytes * a->block_tokens;
	if (a->touch != NULL && strcmp(a->touch, "fwd") != 0 && strcmp(a->touch, "rev") != 0) {
		cmd_error(NAME, "--touch %s: fwd or rev", a->touch);
		return CMD_USAGE;
	}
	a->opts.rev = a->touch != NULL && strcmp(a->touch, "rev") == 0;
	if (a->block_tokens > 1u << 20) {
		cmd_error(NAME, "--block-tokens %u: not 1 to 1048576", a->block_tokens);
		return CMD_USAGE;
	}
	if (a->block_bytes <= 0 && (a->capacity != NULL || a->rate != NOT_GIVEN)) {
		cmd_error(NAME, "--%s is in bytes: --model or --bytes-per-token is needed",
			  a->capacity != NULL ? "capacity" : "rate");
		return CMD_USAGE;
	}
	if ((a->prefill > 0) != (a->rate != NOT_GIVEN)) {
		cmd_error(NAME, "--rate and --prefill-tokens-per-s go together: %s is missing",
			  a->prefill > 0 ? "--rate" : "--prefill-tokens-per-s");
		return CMD_USAGE;
	}
	if (a->rate == 0) {
		cmd_error(NAME, "--rate 0: not a rate");
		return CMD_USAGE;
	}
	if (a->speed != NULL && !traces_speed_parse(a->speed, &a->opts.speed)) {
		cmd_error(NAME, "--speed %s: not a factor, as in 2 or 0.5", a->speed);
		return CMD_USAGE;
	}
	return 0;
}

static int hits_run(struct ask *a)
{
	const struct traces_ask from = {NAME, a->seed, a->requests, a->block_tokens};
	struct trace t = {0};
	int rc = ask_check(a);

	if (rc == 0)
		rc = traces_take(&from, a->trace_name, &t);
	if (rc == 0)
		rc = hits_make(a, &t);
	if (rc == 0)
		rc = a->json ? print_json(a) : print_page(a);
	hits_free(&a->hits);
	trace_free(&t);
	return rc;
}

int plan_hits(int argc, char **argv)
{
	static struct ask a = {.block_tokens = 512, .seed = 1, .rate = NOT_GIVEN,
		.latency_ns = NOT_GIVEN};
	const struct cmd_opt opts[] = {
		{"capacity", CMD_TEXT, &a.capacity, "SIZE,...", "rooms to tell about: 500GB,2TB"},
		{"blocks", CMD_TEXT, &a.blocks, "N,...", "the same in blocks"},
		{"model", CMD_TEXT, &a.kv.model, "CONFIG.json", "whose KV it is"},
		{"kv-dtype", CMD_TEXT, &a.kv.dtype, "D", "of the cache: bf16 (default), fp8, ..."},
		{"bytes-per-token", CMD_BYTES, &a.kv.bytes_per_token, "SIZE", "of KV, instead"},
		{"block-tokens", CMD_COUNT, &a.block_tokens, "N", "tokens of a block; 512"},
		{"touch", CMD_TEXT, &a.touch, "fwd|rev",
			"use a request's blocks from the first (default) or the last"},
		{"rate", CMD_BYTES, &a.rate, "SIZE", "bytes a second of the device: 10GB"},
		{"latency", CMD_TIME, &a.latency_ns, "TIME", "of a load, beside its bytes; 0"},
		{"prefill-tokens-per-s", CMD_COUNT, &a.prefill, "N", "of one engine"},
		{"speed", CMD_TEXT, &a.speed, "X", "so many times as fast as in the trace; 1"},
		{"worth", CMD_FLAG, &a.worth, NULL, "also what policy worth hits: a replay each"},
		{"seed", CMD_COUNT, &a.seed, "N", "of a made workload; 1"},
		{"requests", CMD_COUNT, &a.requests, "N",
			"of a made workload (4000), or only the first of a file"},
		{"json", CMD_FLAG, &a.json, NULL, "print JSON"},
		{.name = NULL},
	};
	const struct cmd_usage u = {
		.name = NAME, .args = "TRACE", .least = 1, .most = 1, .opts = opts,
		.what = "What a cache of each size hits of a trace: room and rate, told apart.",
		.more = "TRACE is a file in Mooncake's format, - for standard input, or a\n"
			"workload: multi-turn, shared-prefix, cold-long, mixed (docs/replay.md).\n"
			"\n"
			"With --rate and --prefill-tokens-per-s: what twice the room and what\n"
			"twice the rate bring to the mean first token.\n\n"
			"  kvof plan hits trace.jsonl --model config.json --capacity 1TB,14TB \\\n"
			"      --rate 10GB --prefill-tokens-per-s 3200\n",
	};
	unsigned count;
	int rc = cmd_args(&u, argc, argv, &a.trace_name, &count);

	return rc >= 0 ? rc : hits_run(&a);
}
