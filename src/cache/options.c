/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of kvof_cache_open(), checked once, and the words for reasons. Pure, any thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cache/core.h"
#include "cache/policy.h"

#define OPTIONS_PART_BYTES (4 * MiB)
#define OPTIONS_BLOCK_TOKENS_MAX (1u << 20)
#define OPTIONS_TIME_MAX (3600 * NS_PER_S)
#define OPTIONS_EVENTS_MAX (1u << 20)

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

const char *kvof_tier_name(enum kvof_tier tier)
{
	static const char *const name[KVOF_TIER_COUNT] = {"", "dram", "remote", "flash"};

	return (unsigned)tier < KVOF_TIER_COUNT ? name[tier] : "unknown";
}

uint32_t core_cut_bytes(const struct kvof_cache_opts *opts)
{
	return (opts->part_bytes != 0 ? opts->part_bytes : (uint32_t)OPTIONS_PART_BYTES) -
	       FRAME_BYTES;
}

/* 0 is the default and always fine. */
struct bound {
	const char *name, *unit;
	uint64_t value, least, most;
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

static int numbers_check(const struct kvof_cache_opts *opts, char why[256])
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
		{"digests", "as two bits", opts->digests, 0, 3},
		{"strict", "", opts->strict, 0, 1},
		{"target_count", "targets", opts->target_count, 1, KVOF_TARGETS_MAX},
		{"flash_count", "paths", opts->flash_count, 1, KVOF_FLASH_MAX},
		{"flash_bytes", "bytes", opts->flash_bytes, 1 * MiB, UINT64_MAX},
		{"flash_format", "", opts->flash_format, 0, 1},
		{"admission", "as bits", opts->admission, 0,
		 KVOF_ADMIT_FLASH_SECOND | KVOF_ADMIT_REMOTE_SECOND},
		{"behind_bytes", "bytes", opts->behind_bytes, DRAM_BYTES_MIN, DRAM_BYTES_MAX},
		{"behind_full", "", opts->behind_full, 0, 1},
		{"plain", "", opts->plain, 0, 1},
		{"staging_bytes", "bytes", opts->staging_bytes, 1 * MiB, DRAM_BYTES_MAX},
		{"presence_ns", "ns", opts->presence_ns, NS_PER_MS, OPTIONS_TIME_MAX},
		{"index_blocks", "blocks", opts->index_blocks, PREFIX_BLOCKS_MIN,
		 PREFIX_BLOCKS_MAX},
		{"layer_count", "layers", opts->layer_count, 1, KVOF_LAYERS_MAX},
		{"event_count", "events", opts->event_count, 1, OPTIONS_EVENTS_MAX},
		{"unused", "", opts->unused, 0, 0},
	};

	return bounds_check(bounds, ARRAY_COUNT(bounds), why);
}

/* Every entry of a list is a text, and there are as many as the count says. */
static int list_check(const char *name, const char *const *list, uint32_t count, char why[256])
{
	if (list == NULL && count == 0)
		return 0;
	if (list == NULL || count == 0) {
		snprintf(why, 256, "%s and %s_count disagree: there is one without the other", name,
			 name[0] == 't' ? "target" : name);
		return -EINVAL;
	}
	for (uint32_t i = 0; i < count; i++) {
		if (list[i] != NULL && list[i][0] != '\0')
			continue;
		snprintf(why, 256, "%s[%u] is empty", name, i);
		return -EINVAL;
	}
	return 0;
}

static int lists_check(const struct kvof_cache_opts *opts, char why[256])
{
	uint32_t arrays = opts->target_count + (opts->target != NULL && opts->target_count > 0);
	int rc = list_check("targets", opts->targets, opts->target_count, why);

	if (rc == 0)
		rc = list_check("flash", opts->flash, opts->flash_count, why);
	if (rc == 0 && arrays > KVOF_TARGETS_MAX) {
		snprintf(why, 256, "target and targets name %u arrays, at most %d", arrays,
			 KVOF_TARGETS_MAX);
		rc = -EINVAL;
	}
	if (rc == 0 && opts->fields == NULL && opts->field_count > 0) {
		snprintf(why, 256, "field_count is %u, but there are no fields", opts->field_count);
		rc = -EINVAL;
	}
	return rc;
}

static int layers_check(const struct kvof_cache_opts *opts, char why[256])
{
	uint64_t sum = 0;

	for (uint32_t i = 0; opts->layer_bytes != NULL && i < opts->layer_count; i++) {
		if (opts->layer_bytes[i] == 0 || opts->layer_bytes[i] > TIER_BLOCK_BYTES_MAX) {
			snprintf(why, 256, "layer_bytes[%u] is %" PRIu64 " bytes, it can be 1 to %"
				 PRIu64, i, opts->layer_bytes[i], (uint64_t)TIER_BLOCK_BYTES_MAX);
			return -EINVAL;
		}
		sum += opts->layer_bytes[i];
	}
	if (sum > TIER_BLOCK_BYTES_MAX) {
		snprintf(why, 256, "layer_bytes sum to %" PRIu64 " bytes, a block has at most %"
			 PRIu64, sum, (uint64_t)TIER_BLOCK_BYTES_MAX);
		return -EINVAL;
	}
	return 0;
}

/* An option that can have no effect is a mistake of whoever gave it. */
struct need {
	const char *name;
	bool given, met;
	const char *what;
};

static int needs_check(const struct kvof_cache_opts *opts, char why[256])
{
	bool dram = opts->dram_bytes > 0, flash = opts->flash_count > 0;
	bool remote = opts->target != NULL || opts->target_count > 0;
	const struct need need[] = {
		{"queues", opts->queues > 0, remote, "a target"},
		{"depth", opts->depth > 0, remote, "a target"},
		{"digests", opts->digests > 0, remote, "a target"},
		{"host_nqn", opts->host_nqn != NULL, remote, "a target"},
		{"lease_ns", opts->lease_ns > 0, dram, "dram_bytes"},
		{"flash_bytes", opts->flash_bytes > 0, flash, "flash"},
		{"flash_format", opts->flash_format > 0, flash, "flash"},
		{"admission bit 0", (opts->admission & KVOF_ADMIT_FLASH_SECOND) != 0, flash,
		 "flash"},
		{"admission bit 1", (opts->admission & KVOF_ADMIT_REMOTE_SECOND) != 0, remote,
		 "a target"},
		{"behind_bytes", opts->behind_bytes > 0, dram, "dram_bytes"},
		{"behind_bytes", opts->behind_bytes > 0, remote || flash, "flash or a target"},
		{"behind_full", opts->behind_full > 0, opts->behind_bytes > 0, "behind_bytes"},
		{"presence_ns", opts->presence_ns > 0, remote || flash, "flash or a target"},
		{"policy", opts->policy != NULL, dram, "dram_bytes"},
		{"layer_bytes", opts->layer_bytes != NULL, opts->layer_count > 0, "layer_count"},
	};

	if (!dram && !flash && !remote) {
		snprintf(why, 256, "there is no tier: give a target, flash or dram_bytes, or all");
		return -EINVAL;
	}
	for (unsigned i = 0; i < ARRAY_COUNT(need); i++) {
		if (!need[i].given || need[i].met)
			continue;
		snprintf(why, 256, "%s has no effect without %s", need[i].name, need[i].what);
		return -EINVAL;
	}
	return 0;
}

static int policy_name_check(const char *policy, char why[256])
{
	const char *const *name = policy_names();
	size_t at = 0;

	if (policy == NULL)
		return 0;
	for (unsigned i = 0; name[i] != NULL; i++)
		if (strcmp(name[i], policy) == 0)
			return 0;
	at = (size_t)snprintf(why, 256, "policy is '%.80s', it can be", policy);
	for (unsigned i = 0; name[i] != NULL && at < 256; i++)
		at += (size_t)snprintf(why + at, 256 - at, "%s %s", i > 0 ? "," : "", name[i]);
	return -EINVAL;
}

int core_opts_check(const struct kvof_cache_opts *opts, char why[256])
{
	int rc;

	if (opts->struct_bytes != sizeof(*opts)) {
		snprintf(why, 256, "struct_bytes is %u, this library knows %zu: header and library "
			 "differ", opts->struct_bytes, sizeof(*opts));
		return -EINVAL;
	}
	if (opts->model_id == NULL || opts->model_id[0] == '\0') {
		snprintf(why, 256, "model_id is missing");
		return -EINVAL;
	}
	if (opts->host_nqn != NULL && strlen(opts->host_nqn) > NV_NQN_BYTES_MAX) {
		snprintf(why, 256, "host_nqn has %zu bytes, it can have %d", strlen(opts->host_nqn),
			 NV_NQN_BYTES_MAX);
		return -EINVAL;
	}
	rc = numbers_check(opts, why);
	if (rc == 0)
		rc = lists_check(opts, why);
	if (rc == 0)
		rc = layers_check(opts, why);
	if (rc == 0)
		rc = needs_check(opts, why);
	return rc != 0 ? rc : policy_name_check(opts->policy, why);
}
