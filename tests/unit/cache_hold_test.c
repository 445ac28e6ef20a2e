/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine wants of blocks (leases, pins, priority, TTL), and what a match knows without
 * asking: through a whole core, with DRAM over an array that answers what the test says.
 */
#include "cache_core_fixture.h"
#include "cache_sim_host.h"

#define BYTES 4000                         /* one part; a piece of DRAM */
#define DRAM_BLOCKS 16

static uint8_t bytes_of[64][BYTES], room[BYTES];

/* A call on the core's own loop. */
static struct {
	struct kvof_id id[64];
	uint32_t count;
	bool on;
	struct kvof_hint hint;
	struct core_look look;
	struct kvof_cache_stat stat;
	int res;
	bool done, deep;
} call;

static bool call_is_done(void *arg)
{
	return call.done;
}

static int call_run(void (*run)(void))
{
	call.done = false;
	fix_post(NULL, 0, run);
	expect(sim_run_until(call_is_done, NULL, NS_PER_S));
	return call.res;
}

static void ids_set(uint32_t first, uint32_t count)
{
	call.count = count;
	for (uint32_t i = 0; i < count; i++)
		call.id[i] = fix_id(first + i);
}

static void pin_run(void)
{
	call.res = core_pin(fix.core, call.id, call.count, call.on);
	call.done = true;
}

static int pin(uint32_t first, uint32_t count, bool on)
{
	ids_set(first, count);
	call.on = on;
	return call_run(pin_run);
}

static void hint_run(void)
{
	call.res = core_hint(fix.core, call.id, call.count, &call.hint);
	call.done = true;
}

static int hint(uint32_t first, uint32_t count, int32_t priority, uint64_t ttl_ns)
{
	ids_set(first, count);
	call.hint = (struct kvof_hint){sizeof(call.hint), priority, ttl_ns};
	return call_run(hint_run);
}

static void look_run(void)
{
	call.look = (struct core_look){call.id, call.count, NULL, 0};
	call.deep = core_look(fix.core, &call.look);
	call.done = true;
}

/* Leading blocks that are known without asking. */
static uint32_t known(uint32_t first, uint32_t count)
{
	ids_set(first, count);
	call_run(look_run);
	return call.look.leading;
}

static void stat_run(void)
{
	core_stat(fix.core, &call.stat);
	call.done = true;
}

static struct kvof_cache_stat stat_of(void)
{
	call_run(stat_run);
	return call.stat;
}

static void begin(bool dram, bool array)
{
	sim_host_reset();
	fix_begin("f16");
	if (!array)
		fix.opts.target = NULL;
	fix.opts.dram_bytes = dram ? DRAM_BYTES_MIN : 0;
	expect_int(fix_open(), 0);
	for (uint32_t i = 0; i < 64; i++)
		fix_fill(bytes_of[i], BYTES, i);
}

static enum kvof_reason save(uint32_t n)
{
	return fix_one(KVOF_SAVE, n, bytes_of[n], BYTES).reason;
}

static struct kvof_result load(uint32_t n)
{
	struct kvof_result r = fix_one(KVOF_LOAD, n, room, BYTES);

	if (r.reason == KVOF_OK)
		expect(memcmp(room, bytes_of[n], BYTES) == 0);
	return r;
}

static void used_run(void)
{
	struct prefix_ids ids = {call.id, sizeof(call.id[0]), call.count};

	call.count /= 2;
	core_used_prefix(fix.core, ids, call.count);
	ids.count = call.count;
	core_used_prefix(fix.core, ids, 0);
	call.done = true;
}

static void parents_run(void)
{
	struct kvof_id parent;

	for (uint32_t i = 1; i < 8; i++) {
		expect(prefix_parent(core_tree(fix.core), &call.id[i], &parent));
		expect_mem(&parent, &call.id[i - 1], sizeof(parent));
	}
	call.done = true;
}

TEST(a_prefix_that_is_told_as_used_in_two_steps_is_one_sequence)
{
	begin(true, false);
	for (uint32_t n = 0; n < 8; n++)
		expect_int(save(n), KVOF_OK);
	ids_set(0, 8);
	call_run(used_run);
	call_run(parents_run);
	/* its tail goes first, as if it had been told at once */
	for (uint32_t n = 20; n < 20 + DRAM_BLOCKS - 4; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(load(0).reason, KVOF_OK);
	expect_int(load(7).reason, KVOF_ABSENT);
	fix_end();
}

TEST(a_pinned_block_is_never_evicted_whether_it_was_there_or_came_later)
{
	begin(true, false);
	expect_int(pin(1, 1, true), 0);
	for (uint32_t n = 0; n < 4; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(pin(2, 1, true), 0);
	for (uint32_t n = 4; n < 60; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(load(1).reason, KVOF_OK);
	expect_int(load(2).reason, KVOF_OK);
	expect_int(load(3).reason, KVOF_ABSENT);
	expect_int(stat_of().pinned_blocks, 2);
	expect_int(pin(1, 2, false), 0);
	for (uint32_t n = 4; n < 60; n++)
		save(n);
	expect_int(load(1).reason, KVOF_ABSENT);
	expect_int(pin(1, 1, false), -EINVAL);
	fix_end();
}

TEST(when_all_of_dram_is_pinned_a_save_is_refused_there_and_pins_stay)
{
	begin(true, true);
	expect_int(pin(0, DRAM_BLOCKS, true), 0);
	for (uint32_t n = 0; n < DRAM_BLOCKS; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(save(40), KVOF_OK);     /* on the array */
	expect_int(load(40).tier, KVOF_TIER_REMOTE);
	for (uint32_t n = 0; n < DRAM_BLOCKS; n++)
		expect_int(load(n).tier, KVOF_TIER_DRAM);
	expect(stat_of().dram_refused > 0);
	fix_end();
}

TEST(a_lease_between_match_and_load_makes_the_load_a_hit)
{
	begin(true, false);
	for (uint32_t n = 0; n < 4; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(known(0, 4), 4);
	for (uint32_t n = 4; n < 60; n++)
		expect_int(save(n), KVOF_OK);
	for (uint32_t n = 0; n < 4; n++)
		expect_int(load(n).reason, KVOF_OK);
	fix_pass(6 * NS_PER_S);
	for (uint32_t n = 4; n < 60; n++)
		save(n);
	expect_int(known(0, 4), 0);
	fix_end();
}

TEST(a_block_whose_ttl_is_over_is_not_served_and_deleted_from_every_tier)
{
	begin(true, true);
	for (uint32_t n = 0; n < 3; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(hint(1, 1, 0, 2 * NS_PER_S), 0);
	fix_pass(NS_PER_S);
	expect_int(load(1).reason, KVOF_OK);
	expect_int(known(0, 3), 3);
	fix_pass(2 * NS_PER_S);
	expect_int(load(1).reason, KVOF_ABSENT);
	expect_int(known(0, 3), 1);
	expect_int(sim_host_count(), 3);   /* two values, and the list of domains */
	expect_int(stat_of().dram_blocks, 2);
	expect_int(stat_of().expired, 1);
	/* saved anew it has no end */
	expect_int(save(1), KVOF_OK);
	fix_pass(60 * NS_PER_S);
	expect_int(load(1).reason, KVOF_OK);
	fix_end();
}

static bool deletes_fail;

static enum sim_hook hook_delete(struct host_op *op, int *res)
{
	if (op->kind != HOST_DELETE || !deletes_fail)
		return SIM_HOOK_NONE;
	*res = -EIO;
	return SIM_HOOK_ANSWER;
}

TEST(what_could_not_be_deleted_in_time_is_not_served_and_tried_again)
{
	begin(false, true);
	expect_int(save(1), KVOF_OK);
	deletes_fail = true;
	sim_host.hook = hook_delete;
	expect_int(hint(1, 1, 0, NS_PER_MS), 0);
	fix_pass(5 * NS_PER_S);
	expect_int(sim_host_count(), 2);
	expect_int(load(1).reason, KVOF_ABSENT);
	deletes_fail = false;
	fix_pass(2 * NS_PER_S);
	expect_int(sim_host_count(), 1);
	expect_int(load(1).reason, KVOF_ABSENT);
	expect_int(save(1), KVOF_OK);
	expect_int(load(1).reason, KVOF_OK);
	expect_int(stat_of().expired, 1);
	fix_end();
}

TEST(many_ends_at_once_are_deleted_in_batches_and_a_save_meanwhile_stays)
{
	begin(true, true);
	for (uint32_t n = 0; n < 60; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(hint(0, 60, 0, NS_PER_S), 0);
	fix_pass(NS_PER_S);
	expect_int(save(7), KVOF_OK);      /* after its deletion, in order */
	fix_pass(NS_PER_S);
	expect_int(load(7).reason, KVOF_OK);
	expect_int(sim_host_count(), 2);
	expect_int(stat_of().expired, 60);
	fix_end();
}

TEST(a_lower_priority_goes_first_and_a_higher_one_last)
{
	begin(true, false);
	for (uint32_t n = 0; n < 8; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(hint(0, 1, 50, 0), 0);
	expect_int(hint(7, 1, -50, 0), 0);
	for (uint32_t n = 8; n < DRAM_BLOCKS + 1; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(load(7).reason, KVOF_ABSENT);
	for (uint32_t n = 20; n < 30; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(load(0).reason, KVOF_OK);
	fix_end();
}

/* --- what a match knows ----------------------------------------------------------------------- */

TEST(presence_is_learned_by_one_batch_of_questions_and_believed_until_it_is_old)
{
	uint32_t n[32], before;

	begin(false, true);
	for (uint32_t i = 0; i < 32; i++) {
		n[i] = i;
		if (i < 30)
			expect_int(save(i), KVOF_OK);
	}
	fix_close_core();
	fix_end();
	/* another process, another day */
	fix_begin("f16");
	fix.opts.presence_ns = 10 * NS_PER_S;
	expect_int(fix_open(), 0);
	expect_int(known(0, 32), 0);
	expect(call.deep);
	sim_host.flying_max = 0;
	expect_int(fix_match(n, 32, 0), 30);
	expect(sim_host.flying_max >= 32); /* all at once */
	before = sim_host.log_count;
	expect_int(known(0, 32), 30);
	expect_int(sim_host.log_count, before);
	fix_pass(11 * NS_PER_S);
	expect_int(known(0, 32), 0);
	fix_end();
}

TEST(presence_that_a_load_shows_to_be_wrong_is_corrected)
{
	begin(false, true);
	for (uint32_t n = 0; n < 4; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(known(0, 4), 4);
	for (unsigned i = 0; i < SIM_HOST_VALUES; i++)
		sim_host.value[i].there = false;       /* another host, or eviction */
	expect_int(known(0, 4), 4);
	expect_int(load(2).reason, KVOF_ABSENT);
	expect_int(known(0, 4), 2);
	expect_int(stat_of().presence_wrong, 1);
	fix_end();
}

static void array_down_run(void)
{
	sim_host_state_set(HOST_DOWN, -ECONNRESET);
	call.done = true;
}

static void array_live_run(void)
{
	sim_host_state_set(HOST_LIVE, 0);
	call.done = true;
}

TEST(what_an_array_has_that_is_away_is_not_known_to_be_there)
{
	begin(true, true);
	for (uint32_t n = 0; n < DRAM_BLOCKS + 4; n++)
		expect_int(save(n), KVOF_OK);
	expect_int(known(0, DRAM_BLOCKS + 4), DRAM_BLOCKS + 4);
	call_run(array_down_run);
	expect(known(0, DRAM_BLOCKS + 4) <= DRAM_BLOCKS);
	call_run(array_live_run);
	expect_int(known(0, DRAM_BLOCKS + 4), DRAM_BLOCKS + 4);
	expect_int(stat_of().presence_wrong, 0);
	fix_end();
}

TEST(what_dram_has_is_known_though_the_tree_has_forgotten_it)
{
	begin(true, false);
	fix_close_core();
	fix_end();
	fix_begin("f16");
	fix.opts.target = NULL;
	fix.opts.dram_bytes = 8 * MiB;
	fix.opts.index_blocks = PREFIX_BLOCKS_MIN;
	expect_int(fix_open(), 0);
	for (uint32_t n = 0; n < 1500; n++)
		expect_int(fix_one(KVOF_SAVE, n, bytes_of[n % 64], BYTES).reason, KVOF_OK);
	expect(stat_of().index_forgotten > 0);
	for (uint32_t n = 0; n < 1500; n += 50)
		expect_int(known(n, 50), 50);
	expect(!call.deep);
	fix_end();
}
