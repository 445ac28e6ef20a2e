/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input: a config.json as a file may give it. What is refused is told in a sentence; what is taken
 * has groups within their bounds, and bytes that are the same however they are added up. Its
 * weights are counted, or refused in a sentence too.
 */
#include <errno.h>
#include <string.h>

#include <kvof/plan.h>

#include "base/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void bad_check(const struct kvof_plan_bad *bad)
{
	must(bad->why[0] != 0 && memchr(bad->why, 0, sizeof(bad->why)) != NULL);
	must(memchr(bad->field, 0, sizeof(bad->field)) != NULL);
}

static void geometry_check(const struct kvof_plan_model *m)
{
	struct kvof_plan_geometry g;
	struct kvof_plan_bad bad;
	uint64_t one, rank, all = 0;

	for (uint32_t tp = 1; tp <= 16; tp *= 2) {
		const struct kvof_plan_split split = {tp, 0};
		int rc = kvof_plan_geometry(m, &split, &g, &bad);

		must(rc == 0 || (rc == -EINVAL && tp > 1));
		if (rc != 0) {
			bad_check(&bad);
			continue;
		}
		must(g.kv_elem_bytes == 2 && g.rank_first_bytes <= g.first_bytes);
		must(g.rank_first_bytes * tp >= g.first_bytes);
		must(g.token_bytes <= g.first_bytes && g.shared_token_bytes <= g.token_bytes);
		must(kvof_plan_bytes_at(m, &g, 1, &one, &rank) == 0);
		must(one == g.first_bytes && rank == g.rank_first_bytes);
		all = all == 0 ? one : all;
		must(all == one);
	}
}

static void work_check(const uint8_t *data, size_t size, bool known)
{
	struct kvof_plan_work w;
	struct kvof_plan_bad bad;
	int rc = kvof_plan_work_read((const char *)data, size, &w, &bad);

	must(rc == 0 || rc == -EINVAL);
	must(known || rc != 0);
	if (rc != 0) {
		bad_check(&bad);
		return;
	}
	must(w.active_params <= w.params && w.embed_params <= w.params && w.params < 1ull << 63);
	must(w.rule[0] != 0 && memchr(w.rule, 0, sizeof(w.rule)) != NULL);
	must(memchr(w.weight_dtype, 0, sizeof(w.weight_dtype)) != NULL);
	must(w.token_flops >= 0 && kvof_plan_work_flops(&w, 1000) >= 1000 * w.token_flops);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct kvof_plan_model m;
	struct kvof_plan_bad bad;
	uint32_t layers = 0;
	int rc = kvof_plan_model_read((const char *)data, size, &m, &bad);

	must(rc == 0 || rc == -EINVAL);
	work_check(data, size, rc == 0);
	if (rc != 0) {
		bad_check(&bad);
		return 0;
	}
	must(m.rule[0] != 0 && memchr(m.rule, 0, sizeof(m.rule)) != NULL);
	must(m.groups <= KVOF_PLAN_GROUPS_MAX && m.layers <= KVOF_PLAN_LAYERS_MAX);
	for (uint32_t i = 0; i < m.groups; i++) {
		must(m.group[i].layers > 0 && m.group[i].kv_heads > 0);
		layers += m.group[i].kind == KVOF_PLAN_INDEXER ? 0 : m.group[i].layers;
	}
	must(layers <= m.layers);
	geometry_check(&m);
	return 0;
}
