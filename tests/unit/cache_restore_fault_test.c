/* SPDX-License-Identifier: Apache-2.0 */
/* Restores over tiers that fail under them: slow, silent, gone; deadlines, buffers, hints. */
#include "kt.h"

#include "cache/prefetch.h"
#include "cache_restore_rig.h"

#define LAYER 65536u
#define LAYERS 8u
#define BLOCK (LAYERS * LAYER)
#define RATE (1000 * MiB)
#define DEADLINE (200 * NS_PER_MS)

static struct rig_tier *remote;

static void begin(void)
{
	rig_staging_bytes = 0;
	rig_cut_bytes = LAYER;
	rig_begin();
	rig_tier_set(KVOF_TIER_REMOTE, RATE, 200000);
	remote = &rig.tier[KVOF_TIER_REMOTE];
}

static struct rig_shape shape(uint32_t n, enum kvof_restore_mode mode)
{
	return (struct rig_shape){.n = n, .layers = LAYERS, .block_bytes = BLOCK,
				  .opts = {.mode = mode, .deadline_ns = DEADLINE}};
}

/* An engine for which a block is worth 4 ms, told so. */
static struct rig_shape shape_ends(uint32_t n)
{
	struct rig_shape s = shape(n, KVOF_RESTORE_ENDS);

	s.engine.token_ps = 4 * NS_PER_MS * 1000 / 256;
	s.opts.prefill_tokens_per_s = 1e12 / (double)s.engine.token_ps;
	return s;
}

/* A request on a tier that is well, so that its speed is known. */
static void warm(void)
{
	struct rig_shape s = shape(40, KVOF_RESTORE_PREFIX);
	struct rig_request *q = rig_request(&s);

	rig_wait(q);
	expect_int(q->last.value_bytes, 40);
}

static void (*event_run)(void);
static struct loop_timer event_timer;
static uint64_t event_in_ns;

static void event_fire(struct loop_timer *t)
{
	event_run();
}

static void event_set(void *arg)
{
	loop_timer_init(&event_timer, event_fire);
	loop_timer_set(rig.loop, &event_timer, loop_now_ns(rig.loop) + event_in_ns);
}

/* In so much time, on the cache's loop. */
static void after(uint64_t ns, void (*run)(void))
{
	event_run = run;
	event_in_ns = ns;
	rig_call(event_set, NULL);
}

/* Over by its deadline, with a prefix that is what it should be; the buffers come free. */
static void expect_valid_prefix(struct rig_request *q)
{
	expect(sim_run_until(rig_over, q, 10 * NS_PER_S));
	expect(q->over_ns <= DEADLINE + NS_PER_MS);
	for (uint32_t i = 0; i < q->last.value_bytes; i++)
		expect(q->claimed[i] || rig_good(q, i, 0, BLOCK));
	expect_int(q->free_now || q->last.busy, 1);
	expect(sim_run_until(rig_free, q, NS_PER_S));
}

static void slower(void)
{
	remote->bytes_per_s /= 10;
	remote->latency_ns *= 10;
}

static void hang(void)
{
	remote->hangs = true;
}

/* The array is lost: what was in flight ends, what comes after ends at once. */
static void lose(void)
{
	remote->away = true;
	remote->hangs = true;
	for (uint32_t i = 0; i < RIG_OPS; i++)
		if (remote->op[i].op != NULL)
			rig_op_end(&remote->op[i], KVOF_UNREACHABLE);
}

TEST(s9_a_tier_ten_times_slower_gives_a_partial_prefix_by_the_deadline)
{
	for (uint64_t at = 0; at <= 40 * NS_PER_MS; at += 20 * NS_PER_MS) {
		struct rig_shape s = shape(100, KVOF_RESTORE_PREFIX);
		struct rig_request *q;

		begin();
		warm();
		after(at, slower);
		q = rig_request(&s);
		expect_valid_prefix(q);
		/* at a tenth of the speed 20 MiB come in time: whole blocks, not layers of all */
		if (q->last.value_bytes < 100) {
			expect_int(q->last.reason, KVOF_LATE);
			expect(q->last.value_bytes >= 10);
		} else {
			expect(at > 0);
		}
		rig_end();
	}
}

TEST(s9_an_engine_beside_a_tier_that_became_slower_goes_on_by_itself)
{
	struct rig_shape s = shape_ends(40);
	struct rig_request *q;

	begin();
	warm();
	s.opts.deadline_ns = 1000 * NS_PER_S;
	after(2 * NS_PER_MS, slower);
	q = rig_request(&s);
	rig_wait(q);
	expect(q->engine.done);
	/* no later than if it had computed all */
	expect(q->engine.done_ns <= 40 * 4 * NS_PER_MS);
	for (uint32_t i = 0; i < 40; i++)
		expect(q->claimed[i] || rig_good(q, i, 0, BLOCK));
	rig_end();
}

TEST(s8_a_tier_that_hangs_for_ever_costs_no_more_than_the_deadline)
{
	static const uint64_t busy[] = {0, 50 * NS_PER_MS};

	for (size_t b = 0; b < ARRAY_COUNT(busy); b++) {
		for (uint64_t at = 0; at <= 30 * NS_PER_MS; at += 10 * NS_PER_MS) {
			struct rig_shape s = shape(100, KVOF_RESTORE_PREFIX);
			struct rig_request *q;

			begin();
			warm();
			remote->busy_ns = busy[b];
			after(at, hang);
			q = rig_request(&s);
			expect_valid_prefix(q);
			rig_end();
		}
	}
}

TEST(s8_a_buffer_that_may_still_be_written_is_busy_and_released_once)
{
	struct rig_shape s = shape(4, KVOF_RESTORE_PREFIX);
	struct rig_request *q;
	uint32_t released = 0, busy = 0;

	begin();
	remote->hangs = true;
	remote->busy_ns = 100 * NS_PER_MS;
	s.opts.flags = KVOF_RESTORE_EACH | KVOF_RESTORE_LOAD_ALL;
	q = rig_request(&s);
	expect(sim_run_until(rig_over, q, 10 * NS_PER_S));
	expect_int(q->last.busy, 1);
	expect_int(q->last.value_bytes, 0);
	expect(!q->free_now);
	expect(sim_run_until(rig_free, q, NS_PER_S));
	for (uint32_t i = 0; i < rig.event_count; i++)
		released += rig.event[i].flags == (KVOF_RESULT_REQUEST | KVOF_RESULT_RELEASED);
	expect_int(released, 1);
	released = 0;
	for (uint32_t i = 0; i < rig.event_count; i++) {
		const struct kvof_result *r = &rig.event[i];

		released += r->flags == KVOF_RESULT_RELEASED;
		busy += r->flags == 0 && r->reason != KVOF_OK && r->busy;
	}
	expect_int(released, 4);
	expect_int(busy, 4);               /* each block told so before */
	rig_end();
}

TEST(s8_an_array_lost_under_a_request_ends_it_at_once_and_one_that_is_back_serves)
{
	struct rig_shape s = shape(100, KVOF_RESTORE_PREFIX);
	struct rig_request *q;

	begin();
	warm();
	after(10 * NS_PER_MS, lose);
	q = rig_request(&s);
	expect_valid_prefix(q);
	expect(q->over_ns < 20 * NS_PER_MS);
	expect_int(q->last.reason, KVOF_UNREACHABLE);
	q = rig_request(&s);               /* away: nothing is waited for */
	expect_valid_prefix(q);
	expect(q->over_ns < 10 * NS_PER_MS);
	expect_int(q->last.value_bytes, 0);
	remote->away = remote->hangs = false;
	q = rig_request(&s);
	expect_valid_prefix(q);
	expect_int(q->last.value_bytes, 100);
	rig_end();
}

/* Half of the blocks lie on an array of which only small values came, over a long time of faults:
 * nothing is under way there now, so it is no slower than the other. */
TEST(an_array_that_gave_small_answers_only_is_not_slow_for_the_time_they_took)
{
	struct rig_shape s = shape(40, KVOF_RESTORE_PREFIX);
	struct kvof_restore_trace trace;
	struct rig_request *q;

	begin();
	warm();
	rig.tier[KVOF_TIER_REMOTE].small_ns = 3600 * NS_PER_S;
	s.opts.flags = KVOF_RESTORE_LOAD_ALL;
	q = rig_request(&s);
	rig_wait(q);
	request_trace(q->req, &trace);
	expect_int(trace.split, 40);
	expect_int(q->last.value_bytes, 40);
	rig_end();
}

TEST(s8_an_engine_computes_what_a_lost_or_silent_array_does_not_bring)
{
	static void (*const fault[])(void) = {hang, lose};

	for (size_t i = 0; i < ARRAY_COUNT(fault); i++) {
		for (uint64_t at = 0; at <= 12 * NS_PER_MS; at += 4 * NS_PER_MS) {
			struct rig_shape s = shape_ends(40);
			struct rig_request *q;

			begin();
			warm();
			after(at, fault[i]);
			q = rig_request(&s);
			rig_wait(q);
			expect(q->engine.done);
			for (uint32_t k = 0; k < 40; k++)
				expect(q->claimed[k] || rig_good(q, k, 0, BLOCK));
			/* computing all takes 160 ms */
			expect(q->engine.done_ns <= 180 * NS_PER_MS);
			rig_end();
		}
	}
}

TEST(s8_one_array_lost_of_several_is_not_all_of_them)
{
	struct rig_shape s = shape(40, KVOF_RESTORE_PREFIX);
	struct rig_request *q;

	begin();
	warm();
	remote->lost_devices = 3;
	s.opts.prefill_tokens_per_s = 1000;
	q = rig_request(&s);
	expect_valid_prefix(q);
	expect_int(q->last.value_bytes, 40);
	remote->lost_devices = 255;
	q = rig_request(&s);
	expect_valid_prefix(q);
	expect_int(q->last.value_bytes, 0);
	rig_end();
}

TEST(a_request_that_hangs_ends_at_its_deadline)
{
	struct rig_shape s = shape(8, KVOF_RESTORE_PREFIX);
	struct rig_request *q;

	begin();
	remote->hangs = true;
	s.opts.flags = KVOF_RESTORE_LOAD_ALL;
	q = rig_request(&s);
	expect(sim_run_until(rig_over, q, 10 * NS_PER_S));
	expect(q->over_ns >= DEADLINE / 4 && q->over_ns <= DEADLINE + NS_PER_MS);
	expect_int(q->last.reason, KVOF_LATE);
	expect(sim_run_until(rig_free, q, NS_PER_S));
	rig_end();
}

static struct rig_request *canceled;

static void cancel(void)
{
	restore_cancel(rig.restore, canceled->id);
}

TEST(a_canceled_request_is_over_at_once_and_its_buffers_stay_as_they_are)
{
	for (int mode = 0; mode < 2; mode++) {
		for (uint64_t at = 0; at <= 20 * NS_PER_MS; at += 5 * NS_PER_MS) {
			struct rig_shape s = shape(100, (enum kvof_restore_mode)mode);
			uint8_t *before;

			begin();
			canceled = rig_request(&s);
			after(at, cancel);
			expect(sim_run_until(rig_over, canceled, 10 * NS_PER_S));
			expect(canceled->over_ns <= at + 2 * NS_PER_MS);
			expect_int(canceled->last.reason, KVOF_CANCELED);
			expect(sim_run_until(rig_free, canceled, NS_PER_S));
			before = malloc(100 * BLOCK);
			memcpy(before, canceled->memory, 100 * BLOCK);
			warm();                    /* time passes, the tier works on */
			expect_mem(canceled->memory, before, 100 * BLOCK);
			free(before);
			rig_end();
		}
	}
}

TEST(a_buffer_of_which_a_copy_is_made_is_leased_until_that_is_done)
{
	struct rig_shape s = shape(20, KVOF_RESTORE_PREFIX);
	struct rig_request *q;
	struct restore_stat stat;

	begin();
	rig.copy_ns = 30 * NS_PER_MS;
	q = rig_request(&s);
	rig_wait(q);
	expect_int(q->last.value_bytes, 20);
	expect_int(q->last.busy, 0);
	expect(q->over_ns >= 30 * NS_PER_MS);
	rig_end();
	begin();
	rig.copy_ns = 2 * DEADLINE;
	q = rig_request(&s);
	expect(sim_run_until(rig_over, q, 10 * NS_PER_S));
	expect(q->over_ns <= DEADLINE + NS_PER_MS);
	expect_int(q->last.value_bytes, 20);
	expect_int(q->last.busy, 1);
	restore_stat(rig.restore, &stat);
	expect_int(stat.restores_late, 0);         /* all of it came in time */
	expect(sim_run_until(rig_free, q, NS_PER_S));
	rig_end();
}

TEST(a_cache_that_closes_ends_all_requests)
{
	for (uint64_t busy = 0; busy <= 20 * NS_PER_MS; busy += 20 * NS_PER_MS) {
		struct rig_shape s = shape(50, KVOF_RESTORE_PREFIX), e = shape_ends(50);

		begin();
		remote->busy_ns = busy;
		remote->hangs = busy > 0;
		for (int i = 0; i < 3; i++) {
			rig_request(&s);
			rig_request(&e);
		}
		rig_end();
	}
}

TEST(requests_beyond_staging_get_what_they_can_by_their_deadline)
{
	struct rig_shape s = shape(60, KVOF_RESTORE_PREFIX);
	struct rig_request *q[8];
	uint32_t whole = 0;

	begin();
	warm();
	rig.restore->opts.staging_bytes = 4 * BLOCK;
	for (int i = 0; i < 8; i++) {
		s.opts.deadline_ns = (uint64_t)(i + 1) * 25 * NS_PER_MS;
		q[i] = rig_request(&s);
	}
	for (int i = 0; i < 8; i++) {
		expect(sim_run_until(rig_over, q[i], 10 * NS_PER_S));
		expect(q[i]->over_ns <= (uint64_t)(i + 1) * 25 * NS_PER_MS + NS_PER_MS);
		for (uint32_t k = 0; k < q[i]->last.value_bytes; k++)
			expect(rig_good(q[i], k, 0, BLOCK));
		whole += (uint32_t)q[i]->last.value_bytes;
	}
	/* 200 ms at 1000 MiB/s: most of it came to use */
	expect(whole >= 250);
	rig_end();
}

/* --- hints ------------------------------------------------------------------------------------ */

static struct prefetch *prefetch;
static bool hint_gone;
static struct hint *hint;

static void hint_over(struct hint *h)
{
	hint_gone = true;
	hint_free(&h);
}

static bool is_hint_gone(void *arg)
{
	return hint_gone;
}

static void hint_start(void *arg)
{
	prefetch_begin(prefetch, hint);
}

static void begin_hints(uint64_t by_ns, uint32_t n)
{
	struct prefetch_opts opts = {.ops = &rig_ops, .bytes_max = 64 * MiB,
				     .deadline_ns = NS_PER_S};
	struct kvof_id ids[64];

	begin();
	rig_tier_set(KVOF_TIER_DRAM, 10 * RATE, 1000);
	rig.tier[KVOF_TIER_DRAM].knows_all = true;
	memset(rig.tier[KVOF_TIER_DRAM].has, 0, RIG_BLOCKS);
	remote->block_bytes = BLOCK;
	opts.loop = rig.loop;
	opts.restore = rig.restore;
	expect_int(prefetch_open(&opts, &prefetch), 0);
	for (uint32_t i = 0; i < n; i++)
		ids[i] = rig_id(i);
	hint_gone = false;
	expect_int(hint_make(ids, n, by_ns, &hint), 0);
	hint->over = hint_over;
	hint->id = 99;
	rig_call(hint_start, NULL);
}

static bool hints_stopped;

static bool is_prefetch_idle(void *arg)
{
	return hints_stopped && prefetch_idle(prefetch);
}

static void hints_stop(void *arg)
{
	prefetch_stop(prefetch);
	hints_stopped = true;
}

static void end_hints(void)
{
	hints_stopped = false;
	rig_call(hints_stop, NULL);
	expect(sim_run_until(is_hint_gone, NULL, 10 * NS_PER_S));
	expect(sim_run_until(is_prefetch_idle, NULL, 10 * NS_PER_S));
	prefetch_close(&prefetch);
	rig_end();
}

TEST(a_hint_brings_blocks_into_dram_and_leaves_those_that_are_there)
{
	begin_hints(0, 20);
	rig.tier[KVOF_TIER_DRAM].has[3] = 1;
	rig.expired[5] = 1;
	expect(sim_run_until(is_hint_gone, NULL, 10 * NS_PER_S));
	expect_int(rig.prefetched, 18);
	expect_int(rig.loaded, 0);
	for (uint32_t i = 0; i < 20; i++)
		expect_int(rig.tier[KVOF_TIER_DRAM].has[i], i != 5);
	end_hints();
}

TEST(what_a_hint_did_not_bring_by_its_time_is_left)
{
	begin_hints(10 * NS_PER_MS, 64);
	remote->bytes_per_s = 100 * MiB;
	expect(sim_run_until(is_hint_gone, NULL, 10 * NS_PER_S));
	expect(rig.prefetched < 10);
	end_hints();
}

static void hint_cancel(void)
{
	prefetch_cancel(prefetch, 99);
}

TEST(a_canceled_hint_ends_without_a_trace_also_when_buffers_are_busy)
{
	for (uint64_t busy = 0; busy <= 20 * NS_PER_MS; busy += 20 * NS_PER_MS) {
		begin_hints(0, 64);
		remote->busy_ns = busy;
		after(2 * NS_PER_MS, hint_cancel);
		expect(sim_run_until(is_hint_gone, NULL, 10 * NS_PER_S));
		expect(rig.prefetched < 30);
		expect_int(rig.event_count, 0);
		end_hints();
	}
}

static struct hint *more_hints[2];
static unsigned more_gone;

static void more_over(struct hint *h)
{
	more_gone++;
	hint_free(&h);
}

static void more_start(void *arg)
{
	for (unsigned i = 0; i < ARRAY_COUNT(more_hints); i++)
		prefetch_begin(prefetch, more_hints[i]);
}

static bool is_more_gone(void *arg)
{
	return more_gone == ARRAY_COUNT(more_hints);
}

TEST(hints_are_served_in_order_of_the_time_by_which_they_are_wanted)
{
	static const uint64_t by_ns[] = {900 * NS_PER_MS, 800 * NS_PER_MS};
	struct kvof_id ids[8];

	begin_hints(0, 8);                 /* no time: last, but for what is under way */
	more_gone = 0;
	for (uint32_t i = 0; i < ARRAY_COUNT(more_hints); i++) {
		for (uint32_t k = 0; k < 8; k++)
			ids[k] = rig_id(8 * (i + 1) + k);
		expect_int(hint_make(ids, 8, by_ns[i], &more_hints[i]), 0);
		more_hints[i]->over = more_over;
		more_hints[i]->id = 100 + i;
	}
	rig_call(more_start, NULL);
	expect(sim_run_until(is_more_gone, NULL, 10 * NS_PER_S));
	expect(sim_run_until(is_hint_gone, NULL, 10 * NS_PER_S));
	expect_int(rig.prefetched, 24);
	for (uint32_t i = 0; i < 24; i++) {
		uint32_t timed = i - PREFETCH_FLYING_MAX;

		expect_int(rig.hinted[i] / 8, timed < 16 ? 2 - timed / 8 : 0);
	}
	end_hints();
}

TEST(what_flash_can_not_give_to_a_hint_comes_from_the_array)
{
	static const enum kvof_reason why[] = {KVOF_CORRUPT, KVOF_IDENTITY, KVOF_ERROR};

	for (size_t i = 0; i <= ARRAY_COUNT(why); i++) {
		struct rig_tier *flash = &rig.tier[KVOF_TIER_FLASH];

		begin_hints(0, 10);
		rig_tier_set(KVOF_TIER_FLASH, RATE, 100000);
		flash->block_bytes = BLOCK;
		flash->away = i == ARRAY_COUNT(why);
		for (uint32_t k = 0; k < 10 && !flash->away; k += 3) {
			flash->bad_part[k] = 2;
			flash->bad_reason = why[i];
		}
		expect(sim_run_until(is_hint_gone, NULL, 10 * NS_PER_S));
		expect_int(rig.prefetched, 10);
		end_hints();
	}
}

TEST(a_request_that_wants_to_load_goes_before_any_hint)
{
	struct rig_shape s = shape(64, KVOF_RESTORE_PREFIX);
	struct rig_request *q;

	begin_hints(0, 64);
	q = rig_request(&s);
	rig_wait(q);
	/* what was under way when it came, and no more */
	expect(rig.prefetched <= PREFETCH_FLYING_MAX);
	end_hints();
}

TEST(a_block_that_no_tier_has_and_one_that_is_too_large_are_left_by_a_hint)
{
	begin_hints(0, 10);
	remote->has[4] = 0;
	expect(sim_run_until(is_hint_gone, NULL, 10 * NS_PER_S));
	expect_int(rig.prefetched, 9);
	end_hints();
	begin_hints(0, 10);
	remote->block_bytes = 32 * MiB;
	expect(sim_run_until(is_hint_gone, NULL, 10 * NS_PER_S));
	expect_int(rig.prefetched, 0);
	end_hints();
}
