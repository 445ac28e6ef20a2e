/* SPDX-License-Identifier: Apache-2.0 */
/* Restores in the simulator, over tiers that do what the test says. */
#include "kt.h"

#include "cache_restore_rig.h"

#define LAYER 4096u
#define LAYERS 8u
#define BLOCK (LAYERS * LAYER)
#define RATE (100 * MiB)

/* A remote tier, parts of one layer. */
static void begin(void)
{
	rig_staging_bytes = 0;
	rig_cut_bytes = LAYER;
	rig_begin();
	rig_tier_set(KVOF_TIER_REMOTE, RATE, 100000);
}

static struct rig_shape shape(uint32_t n, enum kvof_restore_mode mode)
{
	return (struct rig_shape){.n = n, .layers = LAYERS, .block_bytes = BLOCK,
				  .opts = {.mode = mode}};
}

static uint64_t transfer_ns(uint64_t bytes)
{
	return bytes * NS_PER_S / RATE;
}

/* --- PREFIX ----------------------------------------------------------------------------------- */

TEST(layer_0_of_the_whole_prefix_is_ready_first_then_the_next)
{
	struct rig_shape s = shape(40, KVOF_RESTORE_PREFIX);
	struct rig_request *q;

	begin();
	q = rig_request(&s);
	rig_wait(q);
	expect_int(q->last.value_bytes, 40);
	expect_int(q->last.reason, KVOF_OK);
	expect_int(q->last.busy, 0);
	expect_int(q->layer_count, LAYERS);
	for (uint32_t i = 0; i < LAYERS; i++) {
		uint64_t ideal = transfer_ns((uint64_t)(i + 1) * 40 * LAYER) + 100000;

		expect_int(q->layer_blocks[i], 40);
		expect(q->layer_ns[i] <= ideal + ideal / 10 + 100000);
	}
	for (uint32_t i = 0; i < 40; i++)
		expect(rig_good(q, i, 0, BLOCK));
	expect_int(rig.loaded, 40);
	expect_int(rig.used, 40);
	rig_end();
}

TEST(layers_of_different_size_are_told_when_their_last_byte_is_there)
{
	uint64_t layer_bytes[3] = {100, 3 * LAYER, BLOCK - 3 * LAYER - 100};
	struct request_layout layout = {.cut_bytes = LAYER, .layer_count = 3,
					.layer_bytes = layer_bytes};
	struct rig_shape s = shape(1, KVOF_RESTORE_PREFIX);
	struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts)};
	struct rig_request *q;
	struct iovec iov;
	struct kvof_block b;

	begin();
	q = rig_request(&s);
	rig_wait(q);
	/* once more with another layout */
	restore_forget(q->req);
	request_free(&q->req);
	iov = (struct iovec){q->memory, BLOCK};
	b = (struct kvof_block){rig_id(0), &iov, 1, BLOCK};
	expect_int(request_make(&b, 1, &opts, &layout, &q->req), 0);
	q->over = q->free_now = false;
	q->layer_count = 0;
	q->layers = 1 << 20;               /* no check by equal layers */
	rig.tier[KVOF_TIER_REMOTE].tier.layer_count = 0;
	rig_call(rig_request_begin, q);
	rig_wait(q);
	expect_int(q->layer_count, 3);
	/* 100 bytes are in part 0, 3 layers and 100 bytes end in part 3 */
	expect(q->layer_ns[1] > q->layer_ns[0] + transfer_ns(2 * LAYER));
	expect(q->layer_ns[2] > q->layer_ns[1] + transfer_ns(3 * LAYER));
	rig_end();
}

/* Of blocks of which nothing but `bad` was wrong: those before it came, it is told as damaged, and
 * none is told twice. */
static void expect_each_once(uint32_t bad)
{
	uint32_t told[20] = {0};

	for (uint32_t i = 0; i < rig.event_count; i++) {
		const struct kvof_result *r = &rig.event[i];

		if (r->flags != 0)
			continue;
		told[r->index]++;
		if (r->index <= bad)
			expect_int(r->reason, r->index == bad ? KVOF_CORRUPT : KVOF_OK);
	}
	for (uint32_t i = 0; i < 20; i++)
		expect(i <= bad ? told[i] == 1 : told[i] <= 1);
}

TEST(the_first_bad_part_ends_the_usable_prefix_there)
{
	for (uint32_t bad = 0; bad < 20; bad += 3) {
		for (uint32_t part = 0; part < 8; part += 7) {
			struct rig_shape s = shape(20, KVOF_RESTORE_PREFIX);
			struct rig_request *q;

			begin();
			rig.tier[KVOF_TIER_REMOTE].bad_part[bad] = (int32_t)part + 1;
			rig.tier[KVOF_TIER_REMOTE].bad_reason = KVOF_CORRUPT;
			s.opts.flags = KVOF_RESTORE_EACH;
			q = rig_request(&s);
			rig_wait(q);
			expect_each_once(bad);
			expect_int(q->last.value_bytes, bad);
			expect_int(q->last.reason, KVOF_CORRUPT);
			for (uint32_t i = 0; i < bad; i++)
				expect(rig_good(q, i, 0, BLOCK));
			expect_int(q->layer_count, bad > 0 ? LAYERS : part);
			expect_int(rig.failed > 0, 1);
			rig_end();
		}
	}
}

TEST(an_expired_block_is_a_miss_like_any_other_in_both_modes)
{
	for (unsigned mode = 0; mode < 2; mode++) {
		struct rig_shape s = shape(10, mode);
		struct kvof_restore_trace trace;
		struct rig_request *q;
		uint32_t told = 0;

		begin();
		rig.expired[3] = 1;
		s.opts.flags = KVOF_RESTORE_EACH;
		q = rig_request(&s);
		rig_wait(q);
		for (uint32_t i = 0; i < rig.event_count; i++)
			told += rig.event[i].flags == 0 && rig.event[i].index == 3 &&
				rig.event[i].reason == KVOF_ABSENT;
		expect_int(told, 1);
		expect_int(rig.failed, 1);
		expect_int(q->last.value_bytes, 3);
		request_trace(q->req, &trace);
		expect_int(trace.reasons[KVOF_ABSENT] > 0, 1);
		rig_end();
	}
}

TEST(a_long_request_tells_what_it_used_in_steps_and_is_free_after_the_last)
{
	struct rig_shape s = shape(RESTORE_USED_STEP * 3 + 10, KVOF_RESTORE_PREFIX);
	struct rig_request *q;

	begin();
	rig.no_bytes = true;
	s.block_bytes = LAYERS;
	q = rig_request(&s);
	rig_wait(q);
	expect_int(q->last.value_bytes, s.n);
	expect_int(rig.used, s.n);
	expect_int(rig.used_most, RESTORE_USED_STEP);
	rig_end();
}

TEST(an_engine_of_a_prefix_is_handed_every_block_that_is_not_usable)
{
	for (unsigned how = 0; how < 4; how++) {
		struct rig_shape s = shape(32, KVOF_RESTORE_PREFIX);
		struct rig_request *q;
		uint32_t usable;

		begin();
		s.engine.token_ps = 1000 * transfer_ns(BLOCK) * 1000 / 256;
		s.opts.flags = KVOF_RESTORE_LOAD_ALL;
		if (how == 1) {
			rig.tier[KVOF_TIER_REMOTE].bad_part[5] = 3;
			rig.tier[KVOF_TIER_REMOTE].bad_reason = KVOF_CORRUPT;
		} else if (how >= 2) {
			rig_wait(rig_request(&(struct rig_shape){.n = 8, .layers = LAYERS,
								 .block_bytes = BLOCK}));
			rig.tier[KVOF_TIER_REMOTE].bytes_per_s /= 50;
			s.opts.deadline_ns = transfer_ns(32 * BLOCK) * 5;
			rig.tier[KVOF_TIER_REMOTE].busy_ns = how == 3 ? 20 * NS_PER_MS : 0;
		}
		q = rig_request(&s);
		rig_wait(q);
		usable = (uint32_t)q->last.value_bytes;
		expect(q->engine.done);
		expect(how == 0 ? usable == 32 : usable < 32);
		expect_int(q->engine.blocks, 32 - usable);
		for (uint32_t i = 0; i < 32; i++)
			expect_int(q->claimed[i], i >= usable);
		for (uint32_t i = 0; i < usable; i++)
			expect(rig_good(q, i, 0, BLOCK));
		rig_end();
	}
}

TEST(a_block_that_is_known_to_be_on_flash_is_planned_at_its_speed)
{
	for (unsigned known = 0; known < 2; known++) {
		struct rig_shape s = shape(40, KVOF_RESTORE_PREFIX);
		struct kvof_restore_trace trace;
		struct rig_request *q;

		begin();
		rig_tier_set(KVOF_TIER_FLASH, RATE, 100000);
		rig_wait(rig_request(&s));
		for (uint32_t i = 0; i < 40; i++)
			rig.tier[KVOF_TIER_FLASH].has[i] = 0;
		rig.tier[KVOF_TIER_REMOTE].bytes_per_s = RATE / 1000;
		s.n = 4;
		rig_wait(rig_request(&s));     /* both have been measured, the array is slow */
		memset(rig.tier[KVOF_TIER_FLASH].has, 1, RIG_BLOCKS);
		memset(rig.where, known ? 1 << KVOF_TIER_FLASH : 0, sizeof(rig.where));
		/* an engine between the two */
		s.n = 40;
		s.opts.prefill_tokens_per_s = 256e9 / (30.0 * (double)transfer_ns(BLOCK));
		q = rig_request(&s);
		rig_wait(q);
		request_trace(q->req, &trace);
		expect_int(trace.split, known ? 40 : 0);
		rig_end();
	}
}

TEST(a_block_that_one_tier_lost_comes_from_the_next)
{
	struct rig_shape s = shape(20, KVOF_RESTORE_PREFIX);
	struct kvof_restore_trace trace;
	struct rig_request *q;

	begin();
	rig_tier_set(KVOF_TIER_DRAM, 100 * RATE, 1000);
	rig_tier_set(KVOF_TIER_FLASH, 2 * RATE, 1000);
	rig.tier[KVOF_TIER_DRAM].knows_all = true;
	for (uint32_t i = 5; i < 20; i++)
		rig.tier[KVOF_TIER_DRAM].has[i] = 0;
	for (uint32_t i = 10; i < 20; i++)
		rig.tier[KVOF_TIER_FLASH].has[i] = 0;
	rig.tier[KVOF_TIER_FLASH].bad_part[7] = 3;
	rig.tier[KVOF_TIER_FLASH].bad_reason = KVOF_CORRUPT;
	q = rig_request(&s);
	rig_wait(q);
	expect_int(q->last.value_bytes, 20);
	request_trace(q->req, &trace);
	expect_int(trace.block_count[KVOF_TIER_DRAM], 5);
	expect_int(trace.block_count[KVOF_TIER_FLASH], 4);
	expect_int(trace.block_count[KVOF_TIER_REMOTE], 11);
	expect_int(trace.bytes[KVOF_TIER_REMOTE], 11 * BLOCK);
	expect_int(trace.blocks, 20);
	expect_int(trace.loaded, 20);
	expect_int(rig.missed, 11);
	expect_int(rig.failed, 0);
	rig_end();
}

TEST(a_block_that_no_tier_has_ends_the_prefix_as_absent_and_a_worse_reason_is_kept)
{
	struct rig_shape s = shape(20, KVOF_RESTORE_PREFIX);
	struct kvof_restore_trace trace;
	struct rig_request *q;

	begin();
	rig_tier_set(KVOF_TIER_FLASH, 2 * RATE, 1000);
	rig.tier[KVOF_TIER_FLASH].bad_part[9] = 1;
	rig.tier[KVOF_TIER_FLASH].bad_reason = KVOF_IDENTITY;
	rig.tier[KVOF_TIER_REMOTE].has[9] = 0;
	q = rig_request(&s);
	rig_wait(q);
	expect_int(q->last.value_bytes, 9);
	expect_int(q->last.reason, KVOF_IDENTITY);
	request_trace(q->req, &trace);
	expect_int(trace.reasons[KVOF_IDENTITY], 1);
	expect_int(trace.miss[0].index, 9);
	expect_int(trace.miss[0].tier, KVOF_TIER_REMOTE);
	rig_end();
}

TEST(a_trace_tells_what_a_request_waited_for)
{
	struct rig_shape s = shape(40, KVOF_RESTORE_PREFIX);
	struct kvof_restore_trace t;
	struct rig_request *q, *small;
	uint64_t alone;

	begin();
	rig_wait(rig_request(&s));         /* the tier has been measured */
	q = rig_request(&s);
	rig_wait(q);
	request_trace(q->req, &t);
	expect_int(t.end_ns - t.begin_ns, q->over_ns);
	expect_int(t.first_layer_ns - t.begin_ns, q->layer_ns[0]);
	expect_int(t.verify_ns, 40 * RIG_VERIFY_NS);
	expect_int(t.staging_ns, 0);
	expect_int(t.wasted_bytes, 0);
	/* all of them side by side, most of the time */
	expect(t.queue_ns + t.device_ns <= 40 * q->over_ns);
	expect(t.queue_ns + t.device_ns >= 20 * q->over_ns);
	s.n = 1;
	small = rig_request(&s);
	rig_wait(small);
	request_trace(small->req, &t);
	expect_int(t.queue_ns, 0);         /* the tier had nothing else to do */
	alone = t.device_ns;
	expect(alone >= transfer_ns(BLOCK) && alone <= small->over_ns);
	s.n = 40;
	q = rig_request(&s);
	s.n = 1;
	small = rig_request(&s);
	rig_wait(small);
	request_trace(small->req, &t);
	expect(t.queue_ns > 0);
	expect(t.queue_ns + t.device_ns > alone && t.queue_ns + t.device_ns <= small->over_ns);
	rig_wait(q);
	rig_end();
}

TEST(a_trace_tells_what_staging_and_bad_bytes_cost)
{
	struct rig_shape s = shape(20, KVOF_RESTORE_PREFIX);
	struct rig_request *first, *second;
	struct kvof_restore_trace t;
	struct restore_stat stat;

	begin();
	rig.restore->opts.staging_bytes = LAYER;
	s.opts.deadline_ns = 100 * NS_PER_S;
	first = rig_request(&s);
	s.opts.deadline_ns = 200 * NS_PER_S;
	second = rig_request(&s);
	rig_wait(first);
	rig_wait(second);
	request_trace(second->req, &t);
	expect(t.staging_ns >= first->over_ns / 2 && t.staging_ns <= second->over_ns);
	restore_stat(rig.restore, &stat);
	expect(stat.staging_waits > 0);
	rig_end();
	begin();
	rig.tier[KVOF_TIER_REMOTE].bad_part[19] = LAYERS;
	rig.tier[KVOF_TIER_REMOTE].bad_reason = KVOF_CORRUPT;
	first = rig_request(&s);
	rig_wait(first);
	expect_int(first->last.value_bytes, 19);
	request_trace(first->req, &t);
	expect_int(t.wasted_bytes, (LAYERS - 1) * LAYER);
	expect_int(t.bytes[KVOF_TIER_REMOTE], 19 * BLOCK);
	rig_end();
}

/* --- staging and order ------------------------------------------------------------------------ */

TEST(bytes_in_flight_stay_within_staging_whatever_is_asked)
{
	static const uint64_t staging[] = {LAYER, 5 * LAYER, 64 * LAYER, 1 << 30};

	for (size_t i = 0; i < ARRAY_COUNT(staging); i++) {
		struct rig_shape s = shape(100, KVOF_RESTORE_PREFIX);
		struct rig_request *q[4];

		begin();
		rig.restore->opts.staging_bytes = staging[i];
		for (int k = 0; k < 4; k++) {
			s.opts.mode = k % 2 == 0 ? KVOF_RESTORE_PREFIX : KVOF_RESTORE_ENDS;
			q[k] = rig_request(&s);
		}
		for (int k = 0; k < 4; k++) {
			rig_wait(q[k]);
			expect_int(q[k]->last.value_bytes, 100);
		}
		expect(rig.tier[KVOF_TIER_REMOTE].in_flight_max <= staging[i]);
		rig_end();
	}
}

TEST(a_part_larger_than_all_staging_goes_alone)
{
	struct rig_shape s = shape(3, KVOF_RESTORE_PREFIX);
	struct rig_request *q;

	begin();
	rig.restore->opts.staging_bytes = 100;
	q = rig_request(&s);
	rig_wait(q);
	expect_int(q->last.value_bytes, 3);
	expect_int(rig.tier[KVOF_TIER_REMOTE].in_flight_max, LAYER);
	rig_end();
}

TEST(requests_wait_for_staging_in_order_of_their_deadline)
{
	struct rig_shape s = shape(50, KVOF_RESTORE_PREFIX);
	struct rig_request *late, *soon, *urgent;

	begin();
	rig.restore->opts.staging_bytes = 16 * LAYER;
	s.opts.deadline_ns = 500 * NS_PER_S;
	late = rig_request(&s);
	s.opts.deadline_ns = 100 * NS_PER_S;
	soon = rig_request(&s);
	s.opts.deadline_ns = 900 * NS_PER_S;
	s.opts.priority = 1;
	urgent = rig_request(&s);
	rig_wait(late);
	rig_wait(soon);
	rig_wait(urgent);
	expect(urgent->over_ns < soon->over_ns);
	expect(soon->over_ns < late->over_ns);
	rig_end();
}

TEST(s17_a_finished_request_never_waits_behind_an_unfinished_one)
{
	struct rig_shape s = shape(200, KVOF_RESTORE_PREFIX);
	struct rig_request *stuck[3], *quick;

	begin();
	rig_tier_set(KVOF_TIER_FLASH, RATE, 1000);
	rig.restore->opts.staging_bytes = 64 * LAYER;
	for (uint32_t i = 0; i < 200; i++)
		rig.tier[KVOF_TIER_FLASH].has[i] = i < 10;
	for (uint32_t i = 0; i < 10; i++)
		rig.tier[KVOF_TIER_REMOTE].has[i] = 0;
	rig.tier[KVOF_TIER_REMOTE].hangs = true;
	s.opts.deadline_ns = 2 * NS_PER_S;
	for (int i = 0; i < 3; i++)
		stuck[i] = rig_request(&s);
	s.n = 10;
	s.opts.deadline_ns = 100 * NS_PER_S;
	quick = rig_request(&s);           /* due last, and there first */
	rig_wait(quick);
	expect_int(quick->last.value_bytes, 10);
	for (int i = 0; i < 3; i++)
		expect(!stuck[i]->over);
	for (int i = 0; i < 3; i++) {
		rig_wait(stuck[i]);
		expect(stuck[i]->over_ns <= 2 * NS_PER_S + NS_PER_MS);
		expect_int(stuck[i]->last.value_bytes, 10);
	}
	rig_end();
}

TEST(what_memory_a_request_takes_follows_its_blocks_and_not_their_bytes)
{
	struct request_layout layout = {.cut_bytes = 4 * MiB - FRAME_BYTES, .layer_count = 32};
	struct kvof_restore_opts opts = {.struct_bytes = sizeof(opts)};
	struct kvof_block *b = calloc(KVOF_RESTORE_BLOCKS_MAX, sizeof(*b));
	struct iovec small = {b, 16}, large = {b, 16 * GiB};
	struct request *req;

	for (uint32_t i = 0; i < KVOF_RESTORE_BLOCKS_MAX; i++)
		b[i] = (struct kvof_block){rig_id(i), &small, 1, 16};
	expect_int(request_make(b, KVOF_RESTORE_BLOCKS_MAX, &opts, &layout, &req), 0);
	expect(req->bytes < 128 * MiB);
	request_free(&req);
	b[0] = (struct kvof_block){rig_id(0), &large, 1, 16 * GiB};
	expect_int(request_make(b, 1, &opts, &layout, &req), 0);
	expect(req->bytes < 64 * KiB);
	request_free(&req);
	free(b);
}

TEST(wrong_blocks_and_options_are_refused)
{
	struct request_layout layout = {.cut_bytes = 4032};
	struct kvof_restore_opts good = {.struct_bytes = sizeof(good)}, opts;
	struct iovec iov = {&good, 10}, null = {NULL, 10};
	struct kvof_block b = {rig_id(0), &iov, 1, 10};
	struct request *req;

	expect_int(request_make(NULL, 1, &good, &layout, &req), -EINVAL);
	expect_int(request_make(&b, 0, &good, &layout, &req), -EINVAL);
	b.bytes = 11;
	expect_int(request_make(&b, 1, &good, &layout, &req), -EINVAL);
	b.bytes = 10;
	b.iov = &null;
	expect_int(request_make(&b, 1, &good, &layout, &req), -EINVAL);
	b.iov = &iov;
	opts = good;
	opts.struct_bytes--;
	expect_int(request_make(&b, 1, &opts, &layout, &req), -EINVAL);
	opts = good;
	opts.mode = 2;
	expect_int(request_make(&b, 1, &opts, &layout, &req), -EINVAL);
	opts = good;
	opts.flags = 4;
	expect_int(request_make(&b, 1, &opts, &layout, &req), -EINVAL);
	opts = good;
	opts.priority = 101;
	expect_int(request_make(&b, 1, &opts, &layout, &req), -EINVAL);
	expect_int(request_make(&b, 1, NULL, &layout, &req), 0);
	request_free(&req);
}

/* --- ENDS ------------------------------------------------------------------------------------- */

TEST(loads_from_the_tail_meet_an_engine_that_computes_from_the_head)
{
	struct rig_shape s = shape(64, KVOF_RESTORE_ENDS);
	struct kvof_restore_trace trace;
	struct rig_request *q;

	begin();
	/* break-even: a block takes as long either way */
	s.engine.token_ps = transfer_ns(BLOCK) * 1000 / 256;
	s.opts.prefill_tokens_per_s = 1e12 / (double)s.engine.token_ps;
	q = rig_request(&s);
	rig_wait(q);
	request_trace(q->req, &trace);
	expect_int(trace.usable, 64);
	expect(trace.computed >= 30 && trace.computed <= 34);
	expect_int(trace.computed + trace.loaded, 64);
	expect_int(trace.split, trace.computed);
	for (uint32_t i = 0; i < 64; i++) {
		if (q->claimed[i])
			expect(i < trace.computed);
		else
			expect(rig_good(q, i, 0, BLOCK));
	}
	/* all together in little more than half of the time that either would have taken */
	expect(q->engine.done_ns <= transfer_ns(64 * BLOCK) * 55 / 100);
	rig_end();
}

TEST(a_last_block_is_loaded_or_computed_whichever_rate_is_told)
{
	for (uint64_t percent = 50; percent <= 300; percent += 10) {
		struct rig_shape s = shape(128, KVOF_RESTORE_ENDS);
		struct rig_request *q;

		begin();
		rig_wait(rig_request(&s));     /* the tier has been measured */
		s.n = 1;
		s.engine.token_ps = transfer_ns(BLOCK) * percent * 10 / 256;
		s.opts.prefill_tokens_per_s = 1e12 / (double)s.engine.token_ps;
		q = rig_request(&s);
		rig_wait(q);
		expect(q->engine.done_ns <= transfer_ns(BLOCK) * 4);
		rig_end();
	}
}

TEST(a_block_that_could_not_be_loaded_is_computed_when_its_turn_comes)
{
	struct rig_shape s = shape(40, KVOF_RESTORE_ENDS);
	struct kvof_restore_trace trace;
	struct rig_request *q;

	begin();
	rig.tier[KVOF_TIER_REMOTE].has[33] = 0;
	rig.tier[KVOF_TIER_REMOTE].bad_part[36] = 2;
	rig.tier[KVOF_TIER_REMOTE].bad_reason = KVOF_CORRUPT;
	s.engine.token_ps = 10 * transfer_ns(BLOCK) * 1000 / 256;
	s.opts.prefill_tokens_per_s = 1e12 / (double)s.engine.token_ps;
	q = rig_request(&s);
	rig_wait(q);
	expect(q->engine.done);
	expect(q->claimed[33] && q->claimed[36]);
	request_trace(q->req, &trace);
	expect_int(trace.miss_count, 2);
	expect_int(trace.reasons[KVOF_ABSENT], 1);
	expect_int(trace.reasons[KVOF_CORRUPT], 1);
	expect(!q->claimed[34] && !q->claimed[35] && !q->claimed[39]);
	for (uint32_t i = 0; i < 40; i++)
		expect(q->claimed[i] || rig_good(q, i, 0, BLOCK));
	rig_end();
}

/* What is handed out is never written again: the engine's mark stays on it. */
static void expect_marks(const struct rig_request *q)
{
	for (uint32_t i = 0; i < q->n; i++) {
		const uint8_t *at = q->memory + i * q->block_bytes;

		for (uint64_t k = 0; q->claimed[i] && k < q->block_bytes; k++)
			expect_int(at[k], 0xc1);
	}
}

TEST(no_block_is_handed_out_while_its_buffer_may_be_written)
{
	for (uint64_t busy = 0; busy <= 50 * NS_PER_MS; busy += 25 * NS_PER_MS) {
		for (uint64_t slower = 1; slower <= 64; slower *= 4) {
			struct rig_shape s = shape(32, KVOF_RESTORE_ENDS);
			struct rig_request *q;

			begin();
			rig.tier[KVOF_TIER_REMOTE].busy_ns = busy;
			rig.tier[KVOF_TIER_REMOTE].bytes_per_s = 32 * RATE;
			s.engine.token_ps = transfer_ns(BLOCK) * 1000 / 256;
			s.opts.prefill_tokens_per_s = 1e12 / (double)s.engine.token_ps;
			s.opts.step_blocks = 3;
			q = rig_request(&s);
			rig_wait(q);
			/* again, by a tier that has become slower than it is known to be */
			rig.tier[KVOF_TIER_REMOTE].bytes_per_s /= slower * 8;
			q = rig_request(&s);
			rig_wait(q);
			expect(q->engine.done);
			expect_marks(q);
			for (uint32_t i = 0; i < 32; i++)
				expect(q->claimed[i] || rig_good(q, i, 0, BLOCK));
			rig_end();
		}
	}
}
