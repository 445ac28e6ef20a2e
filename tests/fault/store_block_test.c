/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block namespaces under random work, kills, power cuts and failing drives, against a model of
 * every sector (block_rig.h). Each seed is a run of its own; KVOF_SEEDS says how many.
 */
#include "kt.h"

#include "block_rig.h"

static unsigned seeds(unsigned standard)
{
	const char *said = getenv("KVOF_SEEDS");

	return said != NULL ? (unsigned)atoi(said) : standard;
}

static struct rig_options options_of(uint64_t seed)
{
	struct prng p = prng_of(seed);
	struct rig_options o = {.seed = seed};

	o.drives = 1 + (unsigned)prng_below(&p, 3);
	o.shards = 1 + (unsigned)prng_below(&p, 3);
	o.loops = 1 + (unsigned)prng_below(&p, o.shards);
	o.block_bytes = prng_below(&p, 2) == 0 ? 512 : 4096;
	o.align_bytes = prng_below(&p, 2) == 0 ? 512 : 4096;
	o.size_bytes = (8 + prng_below(&p, 24)) * MiB + prng_below(&p, 64) * 4096;
	o.room_percent = prng_below(&p, 3) == 0 ? 75 : 110;
	return o;
}

static enum block_kind kind_pick(struct prng *p)
{
	static const uint8_t of[] = {BLOCK_READ, BLOCK_READ, BLOCK_READ, BLOCK_WRITE, BLOCK_WRITE,
		BLOCK_WRITE, BLOCK_WRITE, BLOCK_ZERO, BLOCK_DEALLOCATE, BLOCK_DEALLOCATE,
		BLOCK_COMPARE, BLOCK_VERIFY};

	return (enum block_kind)of[prng_below(p, sizeof(of))];
}

static uint64_t bytes_pick(struct rig *r)
{
	struct prng *p = &r->prng;
	uint64_t most = prng_below(p, 4) == 0 ? RIG_OP_BYTES : prng_below(p, 2) == 0 ? 256 * KiB :
										       16 * KiB;

	return (1 + prng_below(p, most / r->o.block_bytes)) * r->o.block_bytes;
}

/* Room in the model: history is short, so a flush comes now and then. */
static bool history_fits(const struct rig *r, uint64_t offset, uint64_t bytes)
{
	for (uint64_t s = offset / RIG_SECTOR; s < (offset + bytes) / RIG_SECTOR; s++)
		if (r->history_count[s] + 2u >= RIG_HISTORY)
			return false;
	return true;
}

static bool start_one(struct rig *r, struct rig_op *x)
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

static bool some_is_done(void *arg)
{
	struct rig *r = arg;

	for (unsigned i = 0; i < RIG_OPS; i++)
		if (!r->op[i].busy)
			return true;
	return false;
}

static bool all_are_done(void *arg)
{
	struct rig *r = arg;

	for (unsigned i = 0; i < RIG_OPS; i++)
		if (r->op[i].busy)
			return false;
	return true;
}

/* Alone, so that what it makes durable is known. False: the node has died. */
static bool flush_all(struct rig *r)
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
static bool work(struct rig *r, unsigned ops)
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

TEST(what_is_read_is_what_was_written_last)
{
	for (uint64_t seed = 1; seed <= seeds(40); seed++) {
		struct rig_options o = options_of(seed);
		struct rig r;

		rig_begin(&r, &o);
		rig_expect(&r, work(&r, 300));
		rig_expect(&r, flush_all(&r));
		rig_close(&r);
		rig_open(&r);
		rig_verify(&r, false);
		rig_expect(&r, work(&r, 100));
		rig_close(&r);
		rig_end(&r);
	}
}

static void deaths(uint64_t seed, bool power_cut)
{
	struct rig_options o = options_of(seed);
	struct rig r;

	rig_begin(&r, &o);
	for (unsigned round = 0; round < 6; round++) {
		sim_crash_at_write(1 + prng_below(&r.prng, 400));
		if (work(&r, 150) && sim_crashed() == NULL)
			(void)flush_all(&r);
		sim_crash_at_write(0);
		rig_die(&r, !power_cut);
		rig_open(&r);
		rig_verify(&r, power_cut);
	}
	rig_close(&r);
	rig_end(&r);
}

TEST(a_kill_loses_nothing_answered)
{
	for (uint64_t seed = 1000; seed < 1000 + seeds(40); seed++)
		deaths(seed, false);
}

TEST(a_power_cut_loses_nothing_flushed_and_shows_no_foreign_bytes)
{
	for (uint64_t seed = 2000; seed < 2000 + seeds(60); seed++)
		deaths(seed, true);
}
