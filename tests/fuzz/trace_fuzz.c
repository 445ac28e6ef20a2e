/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input: a trace as a file may give it. What is refused is told in a sentence and changes nothing;
 * what is taken is numbered without a gap.
 */
#include <errno.h>
#include <string.h>

#include "base/must.h"
#include "plan/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void trace_check(const struct trace *t)
{
	uint32_t blocks = 0, next = 0;

	for (uint32_t i = 0; i < t->requests; i++) {
		must(t->request[i].first == blocks);
		must(t->request[i].input_tokens <= TRACE_TOKENS_MAX);
		must(t->request[i].time_ms <= TRACE_TIME_MS_MAX);
		blocks += t->request[i].count;
	}
	must(blocks == t->blocks);
	for (uint32_t i = 0; i < blocks; i++) {
		must(t->block[i] <= next);
		next += t->block[i] == next;
	}
	must(next == t->unique_blocks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *at = (const char *)data, *end = at + size;
	struct trace t = {0};

	while (at < end) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		size_t bytes = (size_t)((stop != NULL ? stop + 1 : end) - at);
		struct trace_bad bad = {"x", ""};
		uint32_t requests = t.requests, blocks = t.blocks;
		int rc = trace_add_line(&t, at, bytes, &bad);

		must(rc == 0 || rc == -EINVAL);
		if (rc != 0) {
			must(bad.why[0] != 0 && memchr(bad.why, 0, sizeof(bad.why)) != NULL);
			must(t.requests == requests && t.blocks == blocks);
		}
		at += bytes;
	}
	trace_check(&t);
	trace_free(&t);
	return 0;
}
