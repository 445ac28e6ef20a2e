/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many requests at once over tiers that fail at random: slow, silent, away, without blocks, with
 * broken parts, with buffers that stay busy, with copies made above; engines that compute, requests
 * that are canceled, a close in the middle. From a seed; KVOF_SEEDS
 * sets how many, KVOF_SEED which one.
 *
 * Judged: every request is over by its deadline, once; what is usable has the bytes that were
 * saved; what was handed out keeps the engine's; staging is kept; all buffers come free.
 */
#include "kt.h"

#include <stdlib.h>

#include "base/prng.h"
#include "cache_restore_rig.h"

#define LAYER 2048u

static struct prng seed;
static uint32_t layers;                    /* of this seed: tiers cut by them */

static uint64_t any(uint64_t limit)
{
	return prng_below(&seed, limit);
}

static void any_tier(unsigned number)
{
	struct rig_tier *t = &rig.tier[number];

	rig_tier_set(number, (uint64_t)1 << (16 + any(16)), any(20) * NS_PER_MS / 4);
	t->knows_all = number == KVOF_TIER_DRAM || any(2) == 0;
	t->busy_ns = any(3) == 0 ? any(100 * NS_PER_MS) : 0;
	t->bad_reason = any(2) == 0 ? KVOF_CORRUPT : KVOF_IDENTITY;
	t->away = any(12) == 0;
	t->hangs = any(12) == 0;
	for (uint32_t i = 0; i < 64; i++) {
		t->has[i] = any(number == KVOF_TIER_REMOTE ? 40 : 3) != 0;
		t->bad_part[i] = any(30) == 0 ? (int32_t)any(4) + 1 : 0;
	}
}

static struct loop_timer trouble;
static uint32_t troubles;
static bool trouble_began;

/* Something happens to a tier, or a request is canceled. */
static void trouble_fire(struct loop_timer *timer)
{
	struct rig_tier *t = &rig.tier[1 + any(3)];

	if (troubles++ > 20)
		return;
	switch (any(6)) {
	case 0:
		t->bytes_per_s = t->bytes_per_s / 10 + 1000;
		break;
	case 1:
		t->bytes_per_s *= 4;
		break;
	case 2:
		t->away = !t->away;
		for (uint32_t i = 0; t->away && i < RIG_OPS; i++)
			if (t->op[i].op != NULL && !t->op[i].ended)
				rig_op_end(&t->op[i], KVOF_UNREACHABLE);
		break;
	case 3:
		t->hangs = !t->hangs;
		rig_serve(t);
		break;
	case 4:
		t->busy_ns = any(50 * NS_PER_MS);
		break;
	case 5:
		if (any(4) == 0)
			restore_cancel(rig.restore, 1 + any(RIG_REQUESTS));
		break;
	}
	loop_timer_set(rig.loop, timer, loop_now_ns(rig.loop) + any(20 * NS_PER_MS));
}

static void trouble_begin(void *arg)
{
	loop_timer_init(&trouble, trouble_fire);
	troubles = 0;
	trouble_began = true;
	loop_timer_set(rig.loop, &trouble, loop_now_ns(rig.loop) + any(20 * NS_PER_MS));
}

static bool has_begun(void *arg)
{
	return trouble_began;
}

static struct rig_request *any_request(void)
{
	struct rig_shape s = {
		.n = 1 + (uint32_t)any(48),
		.layers = layers,
		.opts = {
			.mode = (uint32_t)any(2),
			.flags = (uint32_t)any(4),
			.suffix_tokens = (uint32_t)any(100),
			.deadline_ns = 1 + any(300) * NS_PER_MS,
			.prefill_tokens_per_s = any(3) == 0 ? 0 : (double)(1 + any(1000000)),
			.priority = (int32_t)any(3),
			.step_blocks = (uint32_t)any(6),
		},
	};

	s.block_bytes = s.layers > 0 ? s.layers * LAYER : any(4 * LAYER);
	if (s.opts.mode == KVOF_RESTORE_ENDS && any(3) > 0)
		s.engine = (struct place_engine){1 + any(40) * 1000 * 1000, any(1000)};
	return rig_request(&s);
}

static void judge(struct rig_request *q, uint64_t deadline_ns)
{
	uint32_t usable = (uint32_t)q->last.value_bytes;

	expect(q->over_ns <= deadline_ns + NS_PER_MS);
	expect(usable <= q->n);
	for (uint32_t i = 0; i < q->n; i++) {
		if (q->claimed[i]) {
			const uint8_t *at = q->memory + i * q->block_bytes;

			for (uint64_t k = 0; k < q->block_bytes; k++)
				expect_int(at[k], 0xc1);
		} else if (i < usable) {
			expect(rig_good(q, i, 0, q->block_bytes));
		}
	}
}

static void one_seed(uint64_t number)
{
	struct rig_request *q[RIG_REQUESTS];
	uint32_t n;

	seed = prng_of(number);
	layers = (uint32_t)any(5) * 2;
	rig_staging_bytes = (uint64_t)LAYER << any(8);
	rig_cut_bytes = LAYER << any(2);
	rig_begin();
	for (unsigned i = 1; i < PLACE_TIERS; i++)
		if (i == KVOF_TIER_REMOTE || any(2) == 0)
			any_tier(i);
	rig.copy_ns = any(3) == 0 ? any(5 * NS_PER_MS) : 0;
	trouble_began = false;
	rig_call(trouble_begin, NULL);
	expect(sim_run_until(has_begun, NULL, NS_PER_S));
	n = 1 + (uint32_t)any(RIG_REQUESTS - 1);
	for (uint32_t i = 0; i < n; i++) {
		q[i] = any_request();
		if (any(2) == 0)
			sim_run_until(rig_over, q[i], any(50 * NS_PER_MS));
	}
	if (any(8) == 0) {                 /* closed in the middle */
		loop_timer_cancel(rig.loop, &trouble);
		rig_end();
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t most = q[i]->req->opts.deadline_ns;

		expect(sim_run_until(rig_over, q[i], 100 * NS_PER_S));
		expect(sim_run_until(rig_free, q[i], NS_PER_S));
		judge(q[i], most);
	}
	expect(rig.restore->staged_bytes == 0);
	loop_timer_cancel(rig.loop, &trouble);
	rig_end();
}

TEST(requests_over_tiers_that_fail_at_random_are_right_and_in_time)
{
	const char *text = getenv("KVOF_SEEDS");
	uint64_t seeds = text != NULL ? strtoull(text, NULL, 0) : 200;
	const char *only = getenv("KVOF_SEED");

	if (only != NULL) {
		one_seed(strtoull(only, NULL, 0));
		return;
	}
	for (uint64_t i = 0; i < seeds; i++) {
		if (i % 20 == 0 || text != NULL)
			printf("# seed %llu\n", (unsigned long long)i);
		one_seed(i);
	}
}
