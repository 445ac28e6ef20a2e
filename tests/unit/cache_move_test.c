/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moves between the tiers of a core while restores, saves and deletes meet: admission, copies
 * for DRAM, ends of life, leases; over a host and a flash that answer what the test says.
 */
#include "kt.h"

#include "cache_sim_host.h"

#include "cache_core_fixture.h"
#include "cache_core_tier.h"

#include "cache/restore.h"

#define BLOCK (512 * KiB)
#define BLOCKS 12u
#define THREE (3 * FIX_CUT - 100)          /* bytes of a block of three parts */

static uint8_t data[BLOCK], back[BLOCKS][BLOCK];
static struct kvof_cache_stat stat;

static void seen(void)
{
	core_stat(fix.core, &stat);
}

/* --- a restore on the core -------------------------------------------------------------------- */

struct want {
	struct request *req;
	struct kvof_result last;
	bool over, free_now;
};

static struct restore *restore;
static uint64_t staging_bytes;
static struct want want[2];
static struct want *starts;                /* the next to begin */
static uint64_t stopped_ns;
static uint32_t delete_at_each;            /* block that is deleted when one is loaded; 0: none */

static void heard(void *owner, const struct kvof_result *r)
{
	struct want *w = owner;
	struct cache_batch *batch;

	if (r->flags == KVOF_RESULT_REQUEST) {
		w->over = true;
		w->last = *r;
	} else if (r->flags == 0 && r->reason == KVOF_OK && delete_at_each != 0) {
		struct kvof_block b = {.id = fix_id(delete_at_each)};

		delete_at_each = 0;
		fix.submits++;
		expect_int(batch_make(KVOF_DELETE, &b, 1, FIX_CUT, &batch), 0);
		batch->id = fix.next_id++;
		core_submit(fix.core, batch);
	}
}

static void changed(void *owner)
{
	struct want *w = owner;

	w->free_now = request_free_now(w->req);
}

static const struct request_events events = {heard, changed};

static void restore_up(void)
{
	struct restore_opts opts = {.loop = fix.loop, .ops = &restore_core_ops, .arg = fix.core,
				    .deadline_ns = NS_PER_S, .block_tokens = 4,
				    .staging_bytes = staging_bytes};

	expect_int(restore_open(&opts, &restore), 0);
}

static void want_run(void)
{
	restore_begin(restore, starts->req, 100 + (uint64_t)(starts - want), &events, starts);
}

static bool want_has_begun(void *arg)
{
	return ((struct want *)arg)->req != NULL && starts == NULL;
}

static void want_begin_run(void)
{
	want_run();
	starts = NULL;
}

/* Blocks [first, first + count) of so many bytes, to back[]. */
static void want_begin(struct want *w, uint32_t first, uint32_t count, uint64_t bytes,
		       uint64_t deadline_ns)
{
	struct request_layout layout = {.cut_bytes = core_cut_bytes(&fix.opts)};
	struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts), .flags = KVOF_RESTORE_EACH,
					 .deadline_ns = deadline_ns};
	struct kvof_block block[BLOCKS];
	struct iovec iov[BLOCKS];

	*w = (struct want){0};
	kt_noise(back, sizeof(back));
	for (uint32_t i = 0; i < count; i++)
		block[i] = fix_block(first + i, &iov[i], back[i], bytes);
	expect_int(request_make(block, count, &opts, &layout, &w->req), 0);
	starts = w;
	fix_post(NULL, 0, want_begin_run);
	expect(sim_run_until(want_has_begun, w, NS_PER_S));
}

static bool want_is_free(void *arg)
{
	const struct want *w = arg;

	return w->over && w->free_now;
}

static bool restore_idle(void *arg)
{
	stopped_ns = loop_now_ns(fix.loop) + 1;
	return true;
}

static void restore_stop_run(void)
{
	restore_stop(restore, restore_idle, NULL);
}

static bool restore_has_stopped(void *arg)
{
	return stopped_ns != 0;
}

/* Waits for it. Return: blocks that are usable. */
static uint32_t want_end(struct want *w)
{
	expect(sim_run_until(want_is_free, w, 600 * NS_PER_S));
	return (uint32_t)w->last.value_bytes;
}

static void end(void)
{
	if (restore != NULL) {
		stopped_ns = 0;
		fix_post(NULL, 0, restore_stop_run);
		expect(sim_run_until(restore_has_stopped, NULL, NS_PER_S));
		restore_close(&restore);
	}
	fix_end();
}

/* Blocks that only the array has, in parts of part_bytes. */
static void put_on_array(uint32_t first, uint32_t count, size_t bytes, uint32_t part_bytes)
{
	sim_host_reset();
	fix_begin("f16");
	fix.opts.part_bytes = part_bytes;
	expect_int(fix_open(), 0);
	for (uint32_t i = 0; i < count; i++) {
		fix_fill(data, bytes, first + i);
		expect_int(fix_one(KVOF_SAVE, first + i, data, bytes).reason, KVOF_OK);
	}
	fix_end();
}

static void begin(uint64_t dram_bytes)
{
	fix_begin("f16");
	fix.opts.dram_bytes = dram_bytes;
	staging_bytes = 0;
	restore = NULL;
	delete_at_each = 0;
}

static void request_done_run(void)
{
	restore_forget(starts->req);
	request_free(&starts->req);
	starts = NULL;
}

static bool request_is_done(void *arg)
{
	return starts == NULL;
}

static void request_done(struct want *w)
{
	starts = w;
	fix_post(NULL, 0, request_done_run);
	expect(sim_run_until(request_is_done, NULL, NS_PER_S));
}

static void sim_host_reset_values(void)
{
	for (unsigned i = 0; i < SIM_HOST_VALUES; i++)
		sim_host.value[i].there = false;
}

/* --- tests ------------------------------------------------------------------------------------ */

TEST(a_restore_of_blocks_that_were_cut_larger_elsewhere_does_not_wait_for_its_deadline)
{
	put_on_array(1, 2, BLOCK, 64 * KiB);
	begin(0);
	expect_int(fix_open(), 0);
	restore_up();
	want_begin(&want[0], 1, 2, BLOCK, NS_PER_S);
	expect_int(want_end(&want[0]), 2);
	expect_int(want[0].last.reason, KVOF_OK);
	for (uint32_t i = 0; i < 2; i++) {
		fix_fill(data, BLOCK, 1 + i);
		expect_mem(back[i], data, BLOCK);
	}
	end();
}

TEST(a_block_deleted_while_dram_takes_its_copy_does_not_come_back)
{
	put_on_array(1, 1, BLOCK, FIX_CUT + FRAME_BYTES);
	begin(4 * MiB);
	expect_int(fix_open(), 0);
	restore_up();
	delete_at_each = 1;
	want_begin(&want[0], 1, 1, BLOCK, NS_PER_S);
	expect_int(want_end(&want[0]), 1);
	fix_wait();
	expect_int(delete_at_each, 0);
	seen();
	expect_int(stat.dram_blocks, 0);
	expect_int(fix_match((uint32_t[]){1}, 1, 0), 0);
	expect_int(fix_one(KVOF_LOAD, 1, back[0], BLOCK).reason, KVOF_ABSENT);
	end();
}

TEST(a_restored_block_of_several_parts_is_not_written_back_to_where_it_came_from)
{
	put_on_array(1, 1, THREE, FIX_CUT + FRAME_BYTES);
	begin(MiB);
	fix.opts.behind_bytes = 256 * KiB;
	fix.opts.part_bytes = FIX_CUT + FRAME_BYTES;
	expect_int(fix_open(), 0);
	restore_up();
	want_begin(&want[0], 1, 1, THREE, NS_PER_S);
	expect_int(want_end(&want[0]), 1);
	expect_int(fix_one(KVOF_LOAD, 1, back[0], THREE).tier, KVOF_TIER_DRAM);
	fix_pass(NS_PER_S);
	seen();
	expect_int(stat.behind_written[KVOF_TIER_REMOTE], 0);
	end();
}

TEST(a_block_that_two_requests_load_at_once_is_promoted_once)
{
	put_on_array(1, 1, 500, FIX_CUT + FRAME_BYTES);
	begin(MiB);
	expect_int(fix_open(), 0);
	restore_up();
	want_begin(&want[0], 1, 1, 500, NS_PER_S);
	want_begin(&want[1], 1, 1, 500, NS_PER_S);
	expect_int(want_end(&want[0]), 1);
	expect_int(want_end(&want[1]), 1);
	seen();
	expect_int(stat.hits[KVOF_TIER_REMOTE], 2);
	expect_int(stat.promoted[KVOF_TIER_DRAM], 1);
	end();
}

static enum sim_tier_hook hook_hangs(struct tier_op *op, enum kvof_reason *reason)
{
	return SIM_TIER_HANG;
}

TEST(a_restore_asks_a_flash_that_hardly_answers_after_the_array)
{
	for (unsigned with_dram = 0; with_dram < 2; with_dram++) {
		put_on_array(1, BLOCKS, 500, FIX_CUT + FRAME_BYTES);
		begin(with_dram * DRAM_BYTES_MIN);
		fix.flash = sim_tier_reset(&fix.loop);
		expect_int(fix_open(), 0);
		sim_tier.hook = hook_hangs;
		sim_tier.speed_ns = 500 * NS_PER_MS;
		restore_up();
		for (unsigned i = 0; i < 8; i++) {
			want_begin(&want[0], 1, BLOCKS, 500, 200 * NS_PER_MS);
			expect(want_end(&want[0]) >= BLOCKS - 1);
			request_done(&want[0]);
		}
		/* what the array has not is asked of flash all the same */
		sim_tier.hook = NULL;
		fix_fill(data, 500, 9);
		fix.flags = KVOF_UNORDERED;
		expect_int(fix_one(KVOF_SAVE, 99, data, 500).reason, KVOF_OK);
		sim_host_reset_values();
		want_begin(&want[1], 99, 1, 500, 200 * NS_PER_MS);
		expect_int(want_end(&want[1]), 1);
		expect_mem(back[0], data, 500);
		end();
	}
}

static void ttl_run(void)
{
	struct kvof_hint hint = {sizeof(hint), 0, 400000};
	struct kvof_id id = fix_id(10);

	expect_int(core_hint(fix.core, &id, 1, &hint), 0);
}

static enum sim_hook hook_no_delete(struct host_op *op, int *res)
{
	if (op->kind != HOST_DELETE)
		return SIM_HOOK_NONE;
	*res = -EIO;
	return SIM_HOOK_ANSWER;
}

TEST(a_block_whose_ttl_ends_before_its_load_begins_is_not_served)
{
	put_on_array(1, 10, 500, FIX_CUT + FRAME_BYTES);
	begin(0);
	expect_int(fix_open(), 0);
	sim_host.hook = hook_no_delete;
	staging_bytes = 500;               /* one after the other */
	restore_up();
	fix_post(NULL, 0, ttl_run);
	want_begin(&want[0], 1, 10, 500, NS_PER_S);
	expect_int(want_end(&want[0]), 9);
	end();
}

TEST(a_deadline_as_far_as_a_number_goes_is_a_far_one)
{
	put_on_array(1, 1, 500, FIX_CUT + FRAME_BYTES);
	begin(0);
	expect_int(fix_open(), 0);
	restore_up();
	for (unsigned i = 0; i < 2; i++) {
		struct iovec iov;
		struct kvof_block b = fix_block(1, &iov, back[0], 500);
		uint64_t batch = fix_submit(KVOF_LOAD, &b, 1, UINT64_MAX - i);

		fix_wait();
		expect_int(fix_result_of(batch, 0, 0).reason, KVOF_OK);
		want_begin(&want[0], 1, 1, 500, UINT64_MAX - i);
		expect_int(want_end(&want[0]), 1);
	}
	end();
}

TEST(a_first_touch_does_not_reach_an_array_that_takes_second_ones)
{
	sim_host_reset();
	begin(MiB);
	fix.flash = sim_tier_reset(&fix.loop);
	fix.opts.behind_bytes = 256 * KiB;
	fix.admission = KVOF_ADMIT_REMOTE_SECOND;
	expect_int(fix_open(), 0);
	fix_fill(data, 500, 1);
	expect_int(fix_one(KVOF_SAVE, 7, data, 500).reason, KVOF_OK);
	fix_pass(NS_PER_S);
	expect_int(sim_host_count(), 1);           /* the domain list */
	expect_int(fix_one(KVOF_SAVE, 7, data, 500).reason, KVOF_EXISTS);
	fix_pass(NS_PER_S);
	expect_int(sim_host_count(), 2);
	end();
}

TEST(a_save_without_the_wish_to_skip_writes_ends_that_wish_whoever_answers_it)
{
	sim_host_reset();
	begin(MiB);
	expect_int(fix_open(), 0);
	fix_fill(data, 500, 1);
	fix.flags = KVOF_SKIP_WRITE;
	expect_int(fix_one(KVOF_SAVE, 7, data, 500).reason, KVOF_OK);
	fix.flags = 0;
	expect_int(fix_one(KVOF_SAVE, 7, data, 500).reason, KVOF_OK);
	expect_int(sim_host_count(), 2);
	for (unsigned i = 0; i < SIM_HOST_VALUES; i++)
		if (sim_host.value[i].there && sim_host.value[i].bytes == 500 + FRAME_BYTES)
			sim_host.value[i].there = false;   /* the array lost it */
	expect_int(fix_one(KVOF_LOAD, 7, back[0], 500).tier, KVOF_TIER_DRAM);
	fix_pass(NS_PER_S);
	expect_int(sim_host_count(), 2);           /* and gets it again */
	end();
}

static struct core_look look;

static void look_run(void)
{
	static struct kvof_id id;

	id = fix_id(1);
	look = (struct core_look){&id, 1, NULL, 0};
	core_look(fix.core, &look);
}

static void unlease_run(void)
{
	struct kvof_id id = fix_id(1);

	core_unlease(fix.core, &id, 1);
}

TEST(a_lease_given_back_leaves_the_one_that_another_match_took)
{
	sim_host_reset();
	begin(DRAM_BYTES_MIN);
	fix.opts.policy = "lru";
	expect_int(fix_open(), 0);
	expect_int(fix_one(KVOF_SAVE, 1, data, 4000).reason, KVOF_OK);
	fix_post(NULL, 0, look_run);
	fix_post(NULL, 0, look_run);
	fix_post(NULL, 0, unlease_run);
	for (uint32_t i = 2; i < 30; i++)
		expect_int(fix_one(KVOF_SAVE, i, data, 4000).reason, KVOF_OK);
	expect_int(look.leading, 1);
	expect_int(fix_one(KVOF_LOAD, 1, back[0], 4000).tier, KVOF_TIER_DRAM);
	fix_post(NULL, 0, unlease_run);
	for (uint32_t i = 30; i < 60; i++)
		expect_int(fix_one(KVOF_SAVE, i, data, 4000).reason, KVOF_OK);
	expect_int(fix_one(KVOF_LOAD, 1, back[0], 4000).tier, KVOF_TIER_REMOTE);
	end();
}

TEST(a_block_deleted_here_and_saved_elsewhere_moves_up_again)
{
	static struct sim_value kept[SIM_HOST_VALUES];

	put_on_array(1, 1, 500, FIX_CUT + FRAME_BYTES);
	begin(MiB);
	expect_int(fix_open(), 0);
	memcpy(kept, sim_host.value, sizeof(kept));
	expect_int(fix_one(KVOF_DELETE, 1, NULL, 0).reason, KVOF_OK);
	fix_pass(10 * NS_PER_S);
	for (unsigned i = 0; i < SIM_HOST_VALUES; i++)
		sim_host.value[i].there = kept[i].there;
	expect_int(fix_one(KVOF_LOAD, 1, back[0], 500).tier, KVOF_TIER_REMOTE);
	expect_int(fix_one(KVOF_LOAD, 1, back[0], 500).tier, KVOF_TIER_DRAM);
	end();
}
