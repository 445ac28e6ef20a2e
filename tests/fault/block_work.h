/* SPDX-License-Identifier: Apache-2.0 */
/* Random work on a block namespace: several operations at once that never overlap. */
#ifndef KVOF_TESTS_FAULT_BLOCK_WORK_H
#define KVOF_TESTS_FAULT_BLOCK_WORK_H

#include "block_rig.h"

static inline enum block_kind kind_pick(struct prng *p)
{
	static const uint8_t of[] = {BLOCK_READ, BLOCK_READ, BLOCK_READ, BLOCK_WRITE, BLOCK_WRITE,
		BLOCK_WRITE, BLOCK_WRITE, BLOCK_ZERO, BLOCK_DEALLOCATE, BLOCK_DEALLOCATE,
		BLOCK_COMPARE, BLOCK_VERIFY};

	return (enum block_kind)of[prng_below(p, sizeof(of))];
}

static inline uint64_t bytes_pick(struct rig *r)
{
	struct prng *p = &r->prng;
	uint64_t most = prng_below(p, 2) == 0 ? 256 * KiB : 16 * KiB;

	if (prng_below(p, 4) == 0)
		most = r->op_bytes_max;
	return (1 + prng_below(p, most / r->o.block_bytes)) * r->o.block_bytes;
}

/* Room in the model: history is short, so a flush comes now and then. */
static inline bool history_fits(const struct rig *r, uint64_t offset, uint64_t bytes)
{
	for (uint64_t s = offset / RIG_SECTOR; s < (offset + bytes) / RIG_SECTOR; s++)
		if (r->history_count[s] + 2u >= RIG_HISTORY)
			return false;
	return true;
}

static inline bool start_one(struct rig *r, struct rig_op *x)
{
	enum block_kind kind = kind_pick(&r->prng);
	uint64_t bytes = bytes_pick(r), blocks, offset;

	bytes = bytes_min(bytes, r->o.size_bytes);
	blocks = (r->o.size_bytes - bytes) / r->o.block_bytes + 1;
	offset = prng_below(&r->prng, blocks) * r->o.block_bytes;
	if (kind == BLOCK_DEALLOCATE && prng_below(&r->prng, 2) == 0) {        /* whole chunks */
		offset &= ~(uint64_t)(256 * KiB - 1);
		bytes = bytes_min(MiB, r->o.size_bytes - offset);
	}
	if (rig_overlaps(r, offset, bytes) || !history_fits(r, offset, bytes))
		return false;
	rig_start(r, x, kind, offset, bytes, prng_below(&r->prng, 8) == 0);
	return true;
}

static inline bool some_is_done(void *arg)
{
	struct rig *r = arg;

	for (unsigned i = 0; i < RIG_OPS; i++)
		if (!r->op[i].busy)
			return true;
	return false;
}

static inline bool all_are_done(void *arg)
{
	struct rig *r = arg;

	for (unsigned i = 0; i < RIG_OPS; i++)
		if (r->op[i].busy)
			return false;
	return true;
}

/* Alone, so that what it makes durable is known. False: the node has died. */
static inline bool flush_all(struct rig *r)
{
	if (!sim_run_until(all_are_done, r, 60 * NS_PER_S))
		return false;
	rig_start(r, &r->op[0], BLOCK_FLUSH, 0, 0, false);
	if (!rig_wait(r, &r->op[0]))
		return false;
	rig_expect(r, r->op[0].res == 0);
	for (uint32_t s = 0; s < r->sectors; s++) {
		if (!r->unsure[s])
			model_durable(r, s);
	}
	return true;
}

/* False: the node has died. */
static inline bool work(struct rig *r, unsigned ops)
{
	for (unsigned n = 0; n < ops; n++) {
		unsigned tries = 0;
		bool started = false;

		if (!sim_run_until(some_is_done, r, 60 * NS_PER_S))
			return false;
		for (unsigned i = 0; i < RIG_OPS && !started; i++)
			while (!r->op[i].busy && !started && tries++ < 20)
				started = start_one(r, &r->op[i]);
		if ((!started || prng_below(&r->prng, 40) == 0) && !flush_all(r))
			return false;
	}
	return sim_run_until(all_are_done, r, 60 * NS_PER_S);
}

#endif
