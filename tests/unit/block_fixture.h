/* SPDX-License-Identifier: Apache-2.0 */
/* A block namespace, number 2, beside the one of target_fixture.h. */
#ifndef KVOF_TESTS_UNIT_BLOCK_FIXTURE_H
#define KVOF_TESTS_UNIT_BLOCK_FIXTURE_H

#include "target_fixture.h"

#define BLOCK_NSID 2u

/* A block namespace beside the fixture's own. */
struct blocks {
	struct block *block;
	struct volume *volume;
	bool there, left, closed;
	uint32_t block_bytes;
};

struct blocks_opts {
	uint64_t size_bytes, drive_bytes;
	uint32_t block_bytes;
	bool ack_durable;
};

static inline void blocks_open(struct fix *f, struct blocks *b, const struct blocks_opts *o)
{
	struct block_opts opts = {.size_bytes = o->size_bytes, .block_bytes = o->block_bytes,
		.shard_count = 1, .uuid = "0123456789abcde", .ack_durable = o->ack_durable,
		.parts = {.drive = {{.path = "blocks", .bytes = o->drive_bytes}},
			  .drive_count = 1}};
	struct target_ns_opts ns = {.nsid = BLOCK_NSID};
	struct volume_shard shard = {.loop = f->loop};
	struct store_report report;
	char why[256];

	*b = (struct blocks){.block_bytes = o->block_bytes};
	if (block_open(&opts, f->loop, &b->block, &report) != 0)
		fail_msg("block: %s", report.text);
	shard.block = b->block;
	expect_int(volume_open(&shard, 1, &b->volume), 0);
	ns.volume = b->volume;
	expect_int(target_ns_add(f->target, SUBNQN, &ns, why, set_flag, &b->there), 0);
	expect(sim_run_until(flag_is_set, &b->there, PATIENCE_NS));
}

static inline void blocks_close(struct fix *f, struct blocks *b)
{
	expect_int(target_ns_remove(f->target, SUBNQN, BLOCK_NSID, set_flag, &b->left), 0);
	expect(sim_run_until(flag_is_set, &b->left, PATIENCE_NS));
	volume_close(&b->volume);
	block_close(&b->block, set_flag, &b->closed);
	expect(sim_run_until(flag_is_set, &b->closed, PATIENCE_NS));
}

#endif
