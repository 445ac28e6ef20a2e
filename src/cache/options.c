/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of kvof_cache_open(), checked once, and the words for reasons. Pure, any thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "cache/core.h"

#define OPTIONS_PART_BYTES (4 * MiB)
#define OPTIONS_BLOCK_TOKENS_MAX (1u << 20)
#define OPTIONS_TIME_MAX (3600 * NS_PER_S)

const char *kvof_reason_name(enum kvof_reason reason)
{
	static const char *const name[KVOF_REASON_COUNT] = {
		[KVOF_OK] = "ok",
		[KVOF_ABSENT] = "absent",
		[KVOF_CORRUPT] = "corrupt",
		[KVOF_IDENTITY] = "identity",
		[KVOF_LATE] = "late",
		[KVOF_CANCELED] = "canceled",
		[KVOF_UNREACHABLE] = "unreachable",
		[KVOF_SHORT] = "short",
		[KVOF_EXISTS] = "exists",
		[KVOF_FULL] = "full",
		[KVOF_ERROR] = "error",
	};

	return (unsigned)reason < KVOF_REASON_COUNT ? name[reason] : "unknown";
}

uint32_t core_cut_bytes(const struct kvof_cache_opts *opts)
{
	return (opts->part_bytes != 0 ? opts->part_bytes : (uint32_t)OPTIONS_PART_BYTES) -
	       FRAME_BYTES;
}

struct bound {
	const char *name, *unit;
	uint64_t value, least, most;       /* 0: the default, always fine */
};

static int bounds_check(const struct bound *b, unsigned count, char why[256])
{
	for (unsigned i = 0; i < count; i++) {
		if (b[i].value == 0 || (b[i].value >= b[i].least && b[i].value <= b[i].most))
			continue;
		snprintf(why, 256, "%s is %" PRIu64 " %s, it can be %" PRIu64 " to %" PRIu64,
			 b[i].name, b[i].value, b[i].unit, b[i].least, b[i].most);
		return -EINVAL;
	}
	return 0;
}

int core_opts_check(const struct kvof_cache_opts *opts, char why[256])
{
	const struct bound bounds[] = {
		{"block_tokens", "tokens", opts->block_tokens, 1, OPTIONS_BLOCK_TOKENS_MAX},
		{"part_bytes", "bytes", opts->part_bytes, TIER_CUT_MIN + FRAME_BYTES,
		 FRAME_CUT_MAX + FRAME_BYTES},
		{"dram_bytes", "bytes", opts->dram_bytes, DRAM_BYTES_MIN, DRAM_BYTES_MAX},
		{"deadline_ns", "ns", opts->deadline_ns, NS_PER_MS, OPTIONS_TIME_MAX},
		{"lease_ns", "ns", opts->lease_ns, NS_PER_MS, OPTIONS_TIME_MAX},
		{"queues", "queues", opts->queues, 1, HOST_QUEUES_MAX},
		{"depth", "commands", opts->depth, 2, HOST_DEPTH_MAX},
	};

	if (opts->struct_bytes != sizeof(*opts)) {
		snprintf(why, 256, "struct_bytes is %u, this library knows %zu: header and library "
			 "differ", opts->struct_bytes, sizeof(*opts));
		return -EINVAL;
	}
	if (opts->model_id == NULL || opts->model_id[0] == '\0') {
		snprintf(why, 256, "model_id is missing");
		return -EINVAL;
	}
	if (opts->fields == NULL && opts->field_count > 0) {
		snprintf(why, 256, "field_count is %u, but there are no fields", opts->field_count);
		return -EINVAL;
	}
	if (opts->target == NULL && opts->dram_bytes == 0) {
		snprintf(why, 256, "there is no tier: give a target, or dram_bytes, or both");
		return -EINVAL;
	}
	if (opts->host_nqn != NULL && strlen(opts->host_nqn) > NV_NQN_BYTES_MAX) {
		snprintf(why, 256, "host_nqn has %zu bytes, it can have %d", strlen(opts->host_nqn),
			 NV_NQN_BYTES_MAX);
		return -EINVAL;
	}
	if (opts->digests > 3 || opts->strict > 1) {
		snprintf(why, 256, "%s is %u, it can be 0 to %u", opts->strict > 1 ? "strict" :
			 "digests", opts->strict > 1 ? opts->strict : opts->digests,
			 opts->strict > 1 ? 1 : 3);
		return -EINVAL;
	}
	return bounds_check(bounds, ARRAY_COUNT(bounds), why);
}
