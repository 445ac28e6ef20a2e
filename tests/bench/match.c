/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long it takes to find a prefix of N blocks among a million: the tree alone, and the public
 * call with its way to the cache's thread and back. Hashing the tokens is measured apart.
 *
 *   match [blocks=1000000] [ids=128] [rounds=2000] [tokens=256]
 *
 * Sequences of `ids` blocks are asked for in random order, and their nodes lie apart, so that
 * nothing of them is in the processor's caches but by chance. Prints one JSON object; times in
 * microseconds.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/must.h"
#include "base/prng.h"
#include "cache/door.h"

struct plan {
	uint32_t blocks, ids, rounds, tokens;
	struct kvof_id *id;
	uint64_t *took_ns;
	struct prng rng;
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static int by_time(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void print_times(const char *name, struct plan *plan, const char *end)
{
	uint64_t *t = plan->took_ns;

	qsort(t, plan->rounds, sizeof(*t), by_time);
	printf("\"%s_p50_us\": %.2f, \"%s_p99_us\": %.2f%s", name,
	       (double)t[plan->rounds / 2] / 1e3, name, (double)t[plan->rounds * 99ull / 100] / 1e3,
	       end);
}

static const struct kvof_id *sequence(struct plan *plan)
{
	return &plan->id[prng_below(&plan->rng, plan->blocks / plan->ids) * plan->ids];
}

static void fill(struct prefix *tree, const struct plan *plan)
{
	struct prefix_ids row = {NULL, sizeof(*plan->id), plan->ids};
	uint32_t step = plan->blocks / 3 | 1;

	/* blocks become known far from those that come before them */
	for (uint64_t i = 0, at = 0; i < plan->blocks; i++, at = (at + step) % plan->blocks)
		prefix_seen(tree, KVOF_TIER_DRAM, &plan->id[at], 1);
	for (uint32_t i = 0; i + plan->ids <= plan->blocks; i += plan->ids) {
		row.first = &plan->id[i];
		prefix_link(tree, row, true);
	}
	for (uint32_t i = 0; i < plan->blocks; i++)    /* where step and blocks share a factor */
		prefix_seen(tree, KVOF_TIER_DRAM, &plan->id[i], 1);
}

static void bench_tree(struct plan *plan)
{
	struct prefix_opts opts = {.blocks = plan->blocks, .presence_ns = NS_PER_S};
	struct prefix *tree;

	must(prefix_open(&opts, &tree) == 0);
	fill(tree, plan);
	for (uint32_t i = 0; i < plan->rounds; i++) {
		const struct kvof_id *ids = sequence(plan);
		uint64_t begin = now_ns();

		must(prefix_match(tree, ids, plan->ids, 1, NS_PER_S) == plan->ids);
		plan->took_ns[i] = now_ns() - begin;
	}
	prefix_close(&tree);
	print_times("tree", plan, ", ");
}

struct filling {
	struct door_ask ask;
	const struct plan *plan;
};

static void fill_run(struct kvof_cache *c, struct door_ask *ask)
{
	fill(core_tree(door_core(c)), container_of(ask, struct filling, ask)->plan);
	door_answer(ask);
}

static void bench_hash(struct plan *plan, struct kvof_cache *cache)
{
	size_t n = (size_t)plan->ids * plan->tokens;
	struct kvof_id *ids = calloc(plan->ids, sizeof(*ids));
	int32_t *tokens = calloc(n, sizeof(*tokens));

	must(ids != NULL && tokens != NULL);
	for (uint32_t i = 0; i < plan->rounds; i++) {
		uint64_t begin;

		tokens[0] = (int32_t)i;
		begin = now_ns();
		must(kvof_cache_ids(cache, tokens, n, NULL, ids) == 0);
		plan->took_ns[i] = now_ns() - begin;
	}
	print_times("hash", plan, "}\n");
	free(ids);
	free(tokens);
}

static void bench_cache(struct plan *plan)
{
	struct kvof_cache_opts opts = {.struct_bytes = sizeof(opts), .model_id = "bench",
		.dram_bytes = 64 * MiB, .index_blocks = plan->blocks,
		.block_tokens = plan->tokens};
	struct filling filling = {.ask = {.run = fill_run}, .plan = plan};
	struct kvof_cache *cache;
	char why[256];

	if (kvof_cache_open(&opts, why, &cache) != 0) {
		fprintf(stderr, "match: %s\n", why);
		exit(1);
	}
	must(door_ask(cache, &filling.ask) == 0);
	for (uint32_t i = 0; i < plan->rounds; i++) {
		const struct kvof_id *ids = sequence(plan);
		uint64_t begin = now_ns();
		uint32_t n = 0;

		must(kvof_cache_match(cache, ids, plan->ids, 0, &n) == 0 && n == plan->ids);
		plan->took_ns[i] = now_ns() - begin;
	}
	print_times("call", plan, ", ");
	bench_hash(plan, cache);
	kvof_cache_close(&cache);
}

static void argument(struct plan *plan, const char *text)
{
	if (sscanf(text, "blocks=%u", &plan->blocks) == 1 ||
	    sscanf(text, "ids=%u", &plan->ids) == 1 ||
	    sscanf(text, "rounds=%u", &plan->rounds) == 1 ||
	    sscanf(text, "tokens=%u", &plan->tokens) == 1)
		return;
	fprintf(stderr, "match: '%s' is none of blocks=, ids=, rounds=, tokens=\n", text);
	exit(2);
}

int main(int argc, char **argv)
{
	struct plan plan = {.blocks = 1000000, .ids = 128, .rounds = 2000, .tokens = 256};

	for (int i = 1; i < argc; i++)
		argument(&plan, argv[i]);
	if (plan.blocks < PREFIX_BLOCKS_MIN || plan.ids == 0 || plan.ids > plan.blocks ||
	    plan.rounds == 0 || plan.tokens == 0) {
		fprintf(stderr, "match: at least %d blocks, and one of the rest\n",
			PREFIX_BLOCKS_MIN);
		return 2;
	}
	plan.rng = prng_of(1);
	plan.id = calloc(plan.blocks, sizeof(*plan.id));
	plan.took_ns = calloc(plan.rounds, sizeof(*plan.took_ns));
	must(plan.id != NULL && plan.took_ns != NULL);
	prng_fill(&plan.rng, plan.id, plan.blocks * sizeof(*plan.id));
	printf("{\"blocks\": %u, \"ids\": %u, \"block_tokens\": %u, \"memory_bytes\": %" PRIu64
	       ", ", plan.blocks, plan.ids, plan.tokens, prefix_memory_bytes(plan.blocks));
	bench_tree(&plan);
	bench_cache(&plan);
	free(plan.id);
	free(plan.took_ns);
	return 0;
}
