/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the public calls have in common: a cache over one array that the test controls
 * (cache_sim_host.h). Included by one file a program. */
#ifndef KVOF_TESTS_UNIT_CACHE_API_FIXTURE_H
#define KVOF_TESTS_UNIT_CACHE_API_FIXTURE_H

#include "kt.h"

#include "cache_sim_host.h"

#include "kvof/cache.h"

#define BYTES 9000                         /* three parts of 4 KiB */

static struct kvof_field field = {"kv_dtype", "f16"};

static struct kvof_cache_opts options(void)
{
	return (struct kvof_cache_opts){
		.struct_bytes = sizeof(struct kvof_cache_opts),
		.target = "tcp://array:4420",
		.fields = &field,
		.field_count = 1,
		.model_id = "m",
		.block_tokens = 4,
		.part_bytes = 4096,
		.strict = 1,
	};
}

static struct kvof_cache *opened(struct kvof_cache_opts opts)
{
	struct kvof_cache *cache = NULL;
	char why[256];

	kt_noise(why, sizeof(why));
	expect_int(kvof_cache_open(&opts, why, &cache), 0);
	expect_str(why, "");
	return cache;
}

#endif
