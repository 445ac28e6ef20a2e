/* SPDX-License-Identifier: Apache-2.0 */
/* Workloads made from a seed: the same each time, and what their names say. */
#include "kt.h"

#include <errno.h>
#include <string.h>

#include "base/must.h"
#include "plan/workload.h"

static void make(const char *name, uint64_t seed, struct trace *t)
{
	struct workload_opts o = {.seed = seed, .requests = 1500, .block_tokens = 512};

	*t = (struct trace){0};
	expect_int(workload_make(name, &o, t), 0);
	expect_int(t->requests, 1500);
}

/* Part of all blocks that came before, in percent. */
static unsigned again_percent(const struct trace *t)
{
	return (unsigned)(100 * (uint64_t)(t->blocks - t->unique_blocks) / t->blocks);
}

TEST(the_same_seed_gives_the_same_trace_and_another_another)
{
	for (const char *const *name = workload_names(); *name != NULL; name++) {
		struct trace a, b, c;

		make(*name, 7, &a);
		make(*name, 7, &b);
		make(*name, 8, &c);
		expect_int(a.blocks, b.blocks);
		expect_mem(a.request, b.request, a.requests * sizeof(a.request[0]));
		expect_mem(a.block, b.block, a.blocks * sizeof(a.block[0]));
		expect(a.tokens != c.tokens);
		trace_free(&a);
		trace_free(&b);
		trace_free(&c);
	}
}

TEST(a_name_that_is_none_is_refused)
{
	struct workload_opts o = {.seed = 1, .requests = 1, .block_tokens = 512};
	struct trace t = {0};

	expect_int(workload_make("multi", &o, &t), -ENOENT);
	expect_int(t.requests, 0);
}

TEST(requests_come_in_order_and_have_the_blocks_of_their_tokens)
{
	for (const char *const *name = workload_names(); *name != NULL; name++) {
		struct trace t;

		make(*name, 3, &t);
		for (uint32_t i = 0; i < t.requests; i++) {
			const struct trace_request *q = &t.request[i];

			expect(i == 0 || q->time_ms >= t.request[i - 1].time_ms);
			expect(q->input_tokens > 0 && q->output_tokens > 0);
			expect_int(q->count, (q->input_tokens + 511) / 512);
		}
		trace_free(&t);
	}
}

/* A block that was seen follows one that was seen: an id stands for its whole prefix. */
TEST(what_comes_again_is_a_prefix)
{
	for (const char *const *name = workload_names(); *name != NULL; name++) {
		struct trace t;
		bool *seen;

		make(*name, 5, &t);
		seen = calloc(t.unique_blocks, sizeof(*seen));
		must(seen != NULL);
		for (uint32_t i = 0; i < t.requests; i++) {
			const uint32_t *block = &t.block[t.request[i].first];
			bool missed = false;

			for (uint32_t n = 0; n < t.request[i].count; n++) {
				expect(!(missed && seen[block[n]]));
				missed = missed || !seen[block[n]];
			}
			for (uint32_t n = 0; n < t.request[i].count; n++)
				seen[block[n]] = true;
		}
		free(seen);
		trace_free(&t);
	}
}

TEST(workloads_are_what_they_are_called)
{
	static const struct {
		const char *name;
		unsigned least, most;
	} rows[] = {
		{"multi-turn", 40, 90}, {"shared-prefix", 85, 99}, {"cold-long", 0, 0},
		{"mixed", 20, 80},
	};

	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		struct trace t;

		make(rows[i].name, 1, &t);
		printf("# %s: %u blocks, %u%% come again\n", rows[i].name, t.blocks,
		       again_percent(&t));
		expect(again_percent(&t) >= rows[i].least);
		expect(again_percent(&t) <= rows[i].most);
		trace_free(&t);
	}
}
