/* SPDX-License-Identifier: Apache-2.0 */
/* One tier on one loop of the simulator, its operations in plain sight. Included once. */
#ifndef KVOF_TESTS_UNIT_CACHE_TIER_FIXTURE_H
#define KVOF_TESTS_UNIT_CACHE_TIER_FIXTURE_H

#include "kt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/prng.h"
#include "cache/tier.h"
#include "loop/sim.h"

#define TF_PARTS 16
#define TF_IOV 8
#define TF_LANDED 64

__attribute__((unused)) static struct loop *tf_loop;     /* each test makes its own */
static struct tier *tf_tier;

struct tf_op {
	struct tier_op op;
	struct tier_part part[TF_PARTS];
	struct iovec iov[TF_IOV];
	struct iovec part_iov[TF_PARTS][TF_IOV + 1];
	unsigned done, released;
	uint64_t done_ns;
	unsigned landed_count;
	uint32_t landed[TF_LANDED], of[TF_LANDED];
	uint8_t *keep;                     /* what a landed part held when it landed */
	void (*on_landed)(struct tf_op *t);
};

static void tf_done(struct tier_op *op)
{
	struct tf_op *t = container_of(op, struct tf_op, op);

	expect_int(t->done, 0);
	t->done++;
	t->done_ns = sim_now_ns();
}

static void tf_released(struct tier_op *op)
{
	struct tf_op *t = container_of(op, struct tf_op, op);

	expect_int(t->done, 1);
	expect(op->busy);
	t->released++;
}

static inline void tf_landed(struct tier_op *op, uint32_t part, uint32_t part_count)
{
	struct tf_op *t = container_of(op, struct tf_op, op);

	expect_int(t->done, 0);
	expect(t->landed_count < TF_LANDED && part < part_count);
	for (unsigned i = 0; i < t->landed_count; i++)
		expect(t->landed[i] != part);
	t->landed[t->landed_count] = part;
	t->of[t->landed_count++] = part_count;
	if (t->keep != NULL && op->iov_count == 1) {
		uint64_t from = (uint64_t)part * op->landed_cut_bytes;
		uint64_t left = op->value_bytes - from;

		memcpy(t->keep + from, (char *)op->iov[0].iov_base + from,
		       left < op->landed_cut_bytes ? left : op->landed_cut_bytes);
	}
	if (t->on_landed != NULL)
		t->on_landed(t);
}

static struct kvof_id tf_id(uint32_t n)
{
	struct kvof_id id;

	hash_sha256_once(&n, sizeof(n), id.byte);
	return id;
}

static void tf_fill(void *at, size_t bytes, uint64_t seed)
{
	struct prng p = prng_of(seed);

	prng_fill(&p, at, bytes);
}

/* Sets an operation up; the test may change it before it starts. */
static void tf_set(struct tf_op *t, enum kvof_op kind, uint32_t n, void *at, size_t bytes)
{
	memset(t, 0, sizeof(*t));
	t->iov[0] = (struct iovec){at, bytes};
	t->op = (struct tier_op){
		.kind = kind, .id = tf_id(n), .iov = t->iov, .iov_count = at != NULL,
		.bytes = bytes, .part = t->part, .done = tf_done, .released = tf_released,
		.part_slots = tier_slots(kind, bytes, tf_tier->cut_bytes),
	};
	expect(t->op.part_slots <= TF_PARTS);
	memset(t->part, 0xee, sizeof(t->part));    /* nobody clears it for the tier */
	for (unsigned i = 0; i < TF_PARTS; i++)
		t->part[i].iov = t->part_iov[i];
}

static void tf_start(struct tf_op *t)
{
	tf_tier->ops->start(tf_tier, &t->op);
	expect_int(t->done, 0);
}

static inline bool tf_is_done(void *arg)
{
	const struct tf_op *t = arg;

	return t->done > 0;
}

static bool tf_is_free(void *arg)
{
	const struct tf_op *t = arg;

	return t->done > 0 && (!t->op.busy || t->released > 0);
}

static inline enum kvof_reason tf_wait(struct tf_op *t)
{
	expect(sim_run_until(tf_is_free, t, 600 * NS_PER_S));
	return t->op.reason;
}

/* One operation from start to end. */
static inline enum kvof_reason tf_one(enum kvof_op kind, uint32_t n, void *at, size_t bytes)
{
	static struct tf_op t;

	tf_set(&t, kind, n, at, bytes);
	tf_start(&t);
	return tf_wait(&t);
}

static bool tf_never(void *arg)
{
	return false;
}

/* Time passes. Of a world where nothing is left to happen it does not. */
static inline void tf_pass(uint64_t ns)
{
	sim_run_until(tf_never, NULL, ns);
}

/* Key of one value of a block, as it lies on a device. */
static inline struct kv_key tf_key(uint32_t n, uint32_t index, uint32_t count)
{
	struct kvof_id block = tf_id(n), part;

	identity_part(&block, (struct part_of){index, count}, &part);
	return identity_key(&part);
}

static unsigned tf_ends;

static inline void tf_end_one(void *arg)
{
	tf_ends++;
}

static inline bool tf_has_ended(void *arg)
{
	return tf_ends >= *(unsigned *)arg;
}

#endif
