/* SPDX-License-Identifier: Apache-2.0 */
/* A set on simulated drives; one store of it at a time is open in `g`, on the same loop. */
#ifndef KVOF_TESTS_UNIT_SET_RIG_H
#define KVOF_TESTS_UNIT_SET_RIG_H

#include "../fault/store_rig.h"
#include "store/set_inner.h"

struct set_rig {
	struct rig g;
	struct set *set;
	struct set_opts opts;
	struct store_report report;
	uint8_t subsys;
	char why[256];
};

static inline void set_rig_begin(struct set_rig *r, uint64_t seed, unsigned drives, uint64_t bytes)
{
	memset(r, 0, sizeof(*r));
	rig_begin(&r->g, seed, drives, bytes);
	r->opts = (struct set_opts){.drive_count = drives};
	memcpy(r->opts.drive, r->g.opts.drive, sizeof(r->opts.drive));
}

static inline int set_rig_open(struct set_rig *r)
{
	struct loop_opts lo = {.name = "set"};

	if (r->g.loop == NULL)
		expect_int(loop_open(&lo, &r->g.loop), 0);
	kt_noise(&r->report, sizeof(r->report));
	return set_open(&r->opts, r->g.loop, &r->set, &r->report);
}

static inline void set_rig_close(struct set_rig *r)
{
	set_close(&r->set);
	expect(r->set == NULL);
}

/* A kv namespace; makes the subsystem if there is none. Return: its id. */
static inline uint32_t set_rig_kv(struct set_rig *r, uint64_t cap_bytes)
{
	struct set_subsys sub[SET_SUBSYSTEMS_MAX];
	struct set_ns ns = {.kind = SET_KV, .cap_bytes = cap_bytes, .evict = true,
			    .value_bytes_max = 512 * KiB};

	if (set_subsys_list(r->set, sub) == 0)
		expect_int(set_subsys_create(r->set, "nqn.x:test", &r->subsys, r->why), 0);
	else
		r->subsys = sub[0].number;
	ns.subsys = r->subsys;
	if (set_ns_create(r->set, &ns, r->why) != 0)
		fail_msg("%s", r->why);
	return ns.id;
}

static inline int set_rig_store(struct set_rig *r, uint32_t id, unsigned shard)
{
	struct rig *g = &r->g;
	struct store_opts opts = g->opts;

	expect_int(set_ns_parts(r->set, id, shard, g->loop, &opts), 0);
	return store_open(&opts, g->loop, &g->st, &g->report);
}

static inline void set_rig_end(struct set_rig *r)
{
	if (r->g.st != NULL)
		rig_close(&r->g);
	if (r->set != NULL)
		set_rig_close(r);
	rig_end(&r->g);
}

#endif
