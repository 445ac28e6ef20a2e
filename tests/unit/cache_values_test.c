/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks as values of devices that answer what the test says: parts that land, lanes, speed. */
#include "cache_tier_fixture.h"

#include "base/kv.h"
#include "cache/dev.h"
#include "cache/values.h"

#define CUT 4032
#define FIVE (5 * CUT - 100)               /* bytes of a block of five parts */
#define FAKES 4
#define FAKE_VALUES 128
#define FAKE_PENDING 4096

struct fake_value {
	struct kv_key key;
	uint8_t *at;
	uint32_t bytes;
};

/* A device: a map, and what was asked and not answered yet. */
struct fake {
	struct dev dev;
	bool live, holds;                  /* holds: answers only fake_answer() */
	struct fake_value value[FAKE_VALUES];
	struct host_op *pending[FAKE_PENDING];
	unsigned pending_count, submits, cancels;
	struct loop_timer timer;
	uint64_t latency_ns, bytes_per_s;  /* of one answer after the other */
};

static struct fake fake[FAKES];
static unsigned fakes;
static uint8_t data[64 * KiB], back[64 * KiB], keep[64 * KiB];

static struct fake_value *fake_find(struct fake *f, const struct kv_key *key)
{
	for (unsigned i = 0; i < FAKE_VALUES; i++)
		if (f->value[i].at != NULL && kv_key_equal(&f->value[i].key, key))
			return &f->value[i];
	return NULL;
}

static int fake_store(struct fake *f, struct host_op *op)
{
	struct fake_value *v = fake_find(f, &op->key);
	uint8_t *to;

	if (v != NULL && op->if_absent)
		return -EEXIST;
	for (unsigned i = 0; v == NULL; i++) {
		expect(i < FAKE_VALUES);
		if (f->value[i].at == NULL)
			v = &f->value[i];
	}
	free(v->at);
	*v = (struct fake_value){op->key, malloc(op->bytes + 1), op->bytes};
	to = v->at;
	for (unsigned i = 0; i < op->iov_count; i++) {
		memcpy(to, op->iov[i].iov_base, op->iov[i].iov_len);
		to += op->iov[i].iov_len;
	}
	return 0;
}

static int fake_carry_out(struct fake *f, struct host_op *op)
{
	struct fake_value *v = fake_find(f, &op->key);
	uint32_t left, at = 0;

	if (op->kind == HOST_STORE)
		return fake_store(f, op);
	if (v == NULL)
		return -ENOENT;
	if (op->kind == HOST_DELETE) {
		free(v->at);
		v->at = NULL;
	} else if (op->kind == HOST_RETRIEVE) {
		op->value_bytes = v->bytes;
		op->moved_bytes = left = v->bytes < op->bytes ? v->bytes : op->bytes;
		for (unsigned i = 0; i < op->iov_count && left > 0; i++) {
			size_t step = op->iov[i].iov_len < left ? op->iov[i].iov_len : left;

			memcpy(op->iov[i].iov_base, v->at + at, step);
			at += (uint32_t)step;
			left -= (uint32_t)step;
		}
	}
	return 0;
}

/* Answers the pending one at `index`; res 1: as it is carried out. */
static void fake_answer(struct fake *f, unsigned index, int res)
{
	struct host_op *op = f->pending[index];

	expect(index < f->pending_count);
	memmove(&f->pending[index], &f->pending[index + 1],
		(--f->pending_count - index) * sizeof(f->pending[0]));
	op->done(op, res == 1 ? fake_carry_out(f, op) : res);
}

static void fake_next(struct fake *f)
{
	uint64_t ns = f->latency_ns;

	if (f->holds || f->pending_count == 0 || loop_timer_is_set(&f->timer))
		return;
	if (f->bytes_per_s > 0 && f->pending[0]->kind == HOST_RETRIEVE)
		ns += f->pending[0]->bytes * NS_PER_S / f->bytes_per_s;
	loop_timer_set(tf_loop, &f->timer, loop_now_ns(tf_loop) + ns);
}

static void fake_fire(struct loop_timer *t)
{
	struct fake *f = container_of(t, struct fake, timer);

	if (f->pending_count > 0)
		fake_answer(f, 0, 1);
	fake_next(f);
}

static void fake_submit(struct dev *dev, struct host_op *op)
{
	struct fake *f = dev->self;

	expect(f->pending_count < FAKE_PENDING);
	f->submits++;
	f->pending[f->pending_count++] = op;
	fake_next(f);
}

/* The test answers it. */
static void fake_cancel(struct dev *dev, struct host_op *op)
{
	struct fake *f = dev->self;

	f->cancels++;
}

static bool fake_live(const struct dev *dev)
{
	const struct fake *f = dev->self;

	return f->live;
}

static void fake_stat(const struct dev *dev, struct dev_stat *out)
{
	*out = (struct dev_stat){.live = fake_live(dev)};
}

static const struct dev_ops fake_ops = {
	.name = "fake", .submit = fake_submit, .cancel = fake_cancel, .live = fake_live,
	.stat = fake_stat,
};

static void begin(unsigned count)
{
	struct sim_opts sim = {.seed = 1};
	struct loop_opts loop = {.name = "cache", .ops_max = 16384};
	struct values_opts values = {.name = "remote", .cut_bytes = CUT, .known_slots = 64,
				     .owner = &fake};

	expect_int(sim_begin(&sim), 0);
	expect_int(loop_open(&loop, &tf_loop), 0);
	expect_int(values_open(tf_loop, &values, &tf_tier), 0);
	expect(values_owner(tf_tier) == &fake);
	memset(fake, 0, sizeof(fake));
	fakes = count;
	for (unsigned i = 0; i < count; i++) {
		char name[16];

		snprintf(name, sizeof(name), "fake %u", i);
		fake[i].dev = (struct dev){&fake_ops, &fake[i]};
		fake[i].live = true;
		fake[i].latency_ns = 1000;
		loop_timer_init(&fake[i].timer, fake_fire);
		expect_int(values_dev_add(tf_tier, &fake[i].dev, values_name(name)), i);
	}
}

static void end(void)
{
	expect_int(values_in_flight(tf_tier), 0);
	values_close(&tf_tier);
	for (unsigned i = 0; i < fakes; i++) {
		loop_timer_cancel(tf_loop, &fake[i].timer);
		for (unsigned k = 0; k < FAKE_VALUES; k++)
			free(fake[i].value[k].at);
	}
	loop_close(&tf_loop);
	sim_end();
}

/* A block of five parts is on fake 0; then that answers only when told. */
static void begin_with_five(void)
{
	begin(1);
	tf_fill(data, FIVE, 1);
	expect_int(tf_one(KVOF_SAVE, 1, data, FIVE), KVOF_OK);
	fake[0].holds = true;
	kt_noise(back, sizeof(back));
}

/* --- parts that land -------------------------------------------------------------------------- */

TEST(each_part_lands_once_and_holds_the_bytes_of_that_part)
{
	static const size_t bytes[] = {0, 1, CUT, CUT + 1, 2 * CUT, FIVE, 15 * CUT};

	for (unsigned i = 0; i < ARRAY_COUNT(bytes); i++) {
		uint32_t parts = bytes[i] <= CUT ? 1 : (uint32_t)((bytes[i] - 1) / CUT) + 1;
		struct tf_op t;

		begin(1);
		tf_fill(data, bytes[i], i);
		expect_int(tf_one(KVOF_SAVE, 1, data, bytes[i]), KVOF_OK);
		kt_noise(keep, sizeof(keep));
		tf_set(&t, KVOF_LOAD, 1, back, bytes[i]);
		t.op.landed = tf_landed;
		t.keep = keep;
		tf_start(&t);
		expect_int(tf_wait(&t), KVOF_OK);
		expect_int(t.landed_count, parts);
		for (unsigned k = 0; k < parts; k++)
			expect_int(t.of[k], parts);
		expect_mem(keep, data, bytes[i]);
		end();
	}
}

TEST(no_part_lands_before_the_head_has_been_seen)
{
	struct tf_op t;

	begin_with_five();
	tf_set(&t, KVOF_LOAD, 1, back, FIVE);
	t.op.landed = tf_landed;
	tf_start(&t);
	expect_int(fake[0].pending_count, 6);
	for (unsigned i = 0; i < 3; i++)
		fake_answer(&fake[0], 1, 1);       /* parts 0, 1, 2 */
	expect_int(t.landed_count, 0);
	fake_answer(&fake[0], 0, 1);               /* the head */
	expect_int(t.landed_count, 3);
	fake_answer(&fake[0], 0, 1);
	expect_int(t.landed_count, 4);
	fake_answer(&fake[0], 0, 1);
	expect_int(t.landed_count, 5);
	expect_int(t.done, 1);
	expect_int(t.op.reason, KVOF_OK);
	expect_mem(back, data, FIVE);
	end();
}

TEST(no_part_lands_before_its_bytes_are_checked)
{
	for (uint32_t bad = 0; bad < 5; bad++) {
		struct kv_key key = tf_key(1, bad, 5);
		struct tf_op t;

		begin_with_five();
		fake_find(&fake[0], &key)->at[17] ^= 1;
		tf_set(&t, KVOF_LOAD, 1, back, FIVE);
		t.op.landed = tf_landed;
		tf_start(&t);
		while (fake[0].pending_count > 0)
			fake_answer(&fake[0], 0, 1);
		expect_int(tf_wait(&t), KVOF_CORRUPT);
		expect_int(t.landed_count, bad);       /* in their order; none after a bad one */
		for (unsigned i = 0; i < t.landed_count; i++)
			expect(t.landed[i] != bad);
		end();
	}
}

TEST(a_part_of_another_block_under_this_key_never_lands)
{
	struct kv_key mine = tf_key(1, 2, 5), other = tf_key(2, 2, 5);
	struct fake_value *a, *b, swap;
	struct tf_op t;

	begin(1);
	tf_fill(data, FIVE, 1);
	expect_int(tf_one(KVOF_SAVE, 1, data, FIVE), KVOF_OK);
	tf_fill(data, FIVE, 2);
	expect_int(tf_one(KVOF_SAVE, 2, data, FIVE), KVOF_OK);
	a = fake_find(&fake[0], &mine);
	b = fake_find(&fake[0], &other);
	swap = *a;
	a->at = b->at;
	b->at = swap.at;
	for (uint32_t n = 1; n <= 2; n++) {
		tf_set(&t, KVOF_LOAD, n, back, FIVE);
		t.op.landed = tf_landed;
		tf_start(&t);
		expect_int(tf_wait(&t), KVOF_IDENTITY);
		for (unsigned i = 0; i < t.landed_count; i++)
			expect(t.landed[i] != 2);
	}
	end();
}

TEST(parts_start_only_as_far_as_they_are_allowed)
{
	struct tf_op t;

	begin_with_five();
	tf_set(&t, KVOF_LOAD, 1, back, FIVE);
	t.op.landed = tf_landed;
	t.op.allow = 2;
	tf_start(&t);
	expect_int(fake[0].pending_count, 3);      /* the head and two */
	while (fake[0].pending_count > 0)
		fake_answer(&fake[0], 0, 1);
	expect_int(t.landed_count, 2);
	expect_int(t.done, 0);                     /* parked */
	t.op.allow = 3;
	tf_tier->ops->more(tf_tier, &t.op);
	expect_int(fake[0].pending_count, 1);
	fake_answer(&fake[0], 0, 1);
	expect_int(t.landed_count, 3);
	t.op.allow = 0;
	tf_tier->ops->more(tf_tier, &t.op);
	expect_int(fake[0].pending_count, 2);
	while (fake[0].pending_count > 0)
		fake_answer(&fake[0], 0, 1);
	expect_int(tf_wait(&t), KVOF_OK);
	expect_mem(back, data, FIVE);
	end();
}

static void allow_next(struct tf_op *t)
{
	t->op.allow++;
	tf_tier->ops->more(tf_tier, &t->op);
}

TEST(a_landed_part_may_allow_the_next)
{
	struct tf_op t;

	begin_with_five();
	fake[0].holds = false;
	tf_set(&t, KVOF_LOAD, 1, back, FIVE);
	t.op.landed = tf_landed;
	t.op.allow = 1;
	t.on_landed = allow_next;
	tf_start(&t);
	expect_int(tf_wait(&t), KVOF_OK);
	expect_int(t.landed_count, 5);
	for (unsigned i = 0; i < 5; i++)
		expect_int(t.landed[i], i);
	expect_mem(back, data, FIVE);
	end();
}

static void cancel_at_two(struct tf_op *t)
{
	if (t->landed_count == 2)
		tf_tier->ops->cancel(tf_tier, &t->op);
}

TEST(a_landed_part_may_cancel_and_no_other_lands_then)
{
	struct tf_op t;

	begin_with_five();
	tf_set(&t, KVOF_LOAD, 1, back, FIVE);
	t.op.landed = tf_landed;
	t.on_landed = cancel_at_two;
	tf_start(&t);
	for (unsigned i = 0; i < 4; i++)
		fake_answer(&fake[0], 0, 1);
	expect_int(fake[0].cancels, 3);            /* those that were still in flight */
	while (fake[0].pending_count > 0)
		fake_answer(&fake[0], 0, -ECANCELED);
	expect_int(tf_wait(&t), KVOF_CANCELED);
	expect_int(t.landed_count, 2);
	end();
}

static void cancel_at_once(struct tf_op *t)
{
	tf_tier->ops->cancel(tf_tier, &t->op);
}

TEST(a_landed_part_may_cancel_while_the_rest_waits_for_room)
{
	struct tf_op *others = calloc(TIER_FLYING_MAX, sizeof(*others)), t;

	begin_with_five();
	fake[0].holds = false;
	expect_int(tf_one(KVOF_SAVE, 2, data, CUT), KVOF_OK);
	fake[0].holds = true;
	for (unsigned i = 0; i + 1 < TIER_FLYING_MAX; i++) {
		tf_set(&others[i], KVOF_LOAD, 2, keep, CUT);
		tf_start(&others[i]);
	}
	tf_set(&t, KVOF_LOAD, 1, back, FIVE);
	t.op.landed = tf_landed;
	t.on_landed = cancel_at_once;
	tf_start(&t);
	fake_answer(&fake[0], TIER_FLYING_MAX - 1, 1);     /* the head; then its first part flies */
	expect_int(t.landed_count, 0);
	fake_answer(&fake[0], TIER_FLYING_MAX - 1, 1);
	expect_int(t.landed_count, 1);
	expect_int(tf_wait(&t), KVOF_CANCELED);
	while (fake[0].pending_count > 0)
		fake_answer(&fake[0], 0, 1);
	for (unsigned i = 0; i + 1 < TIER_FLYING_MAX; i++)
		expect_int(tf_wait(&others[i]), KVOF_OK);
	free(others);
	end();
}

TEST(a_parked_load_ends_when_it_is_late_or_canceled)
{
	for (unsigned late = 0; late < 2; late++) {
		struct tf_op t;

		begin_with_five();
		tf_set(&t, KVOF_LOAD, 1, back, FIVE);
		t.op.landed = tf_landed;
		t.op.allow = 1;
		tf_start(&t);
		while (fake[0].pending_count > 0)
			fake_answer(&fake[0], 0, 1);
		if (late == 1)
			tf_tier->ops->late(tf_tier, &t.op);
		else
			tf_tier->ops->cancel(tf_tier, &t.op);
		t.op.allow = 0;
		tf_tier->ops->more(tf_tier, &t.op);    /* too late for that */
		expect_int(fake[0].pending_count, 0);
		expect_int(tf_wait(&t), late == 1 ? KVOF_LATE : KVOF_CANCELED);
		expect_int(t.landed_count, 1);
		end();
	}
}

static void allow_what_follows(struct tf_op *t)
{
	uint64_t bytes = (uint64_t)(t->landed[t->landed_count - 1] + 2) * t->op.landed_cut_bytes;

	t->op.allow = (uint32_t)(bytes / CUT) + 1;
	tf_tier->ops->more(tf_tier, &t->op);
}

TEST(a_block_that_was_cut_elsewhere_lands_in_its_own_parts)
{
	static const uint32_t cuts[] = {4096, 5000, 7777, 60000};

	for (unsigned i = 0; i < ARRAY_COUNT(cuts); i++) {
		uint32_t parts = (uint32_t)((FIVE - 1) / cuts[i]) + 1;
		struct tf_op t;

		begin(1);
		tier_cut_set(tf_tier, cuts[i], 0);
		tf_fill(data, FIVE, 3);
		expect_int(tf_one(KVOF_SAVE, 1, data, FIVE), KVOF_OK);
		tier_cut_set(tf_tier, CUT, 0);
		kt_noise(keep, sizeof(keep));
		tf_set(&t, KVOF_LOAD, 1, back, FIVE);
		t.op.landed = tf_landed;
		t.op.allow = 1;
		t.keep = keep;
		t.on_landed = allow_what_follows;
		tf_start(&t);
		expect_int(tf_wait(&t), KVOF_OK);
		expect_int(t.landed_count, parts);
		expect_mem(keep, data, FIVE);
		end();
	}
}

TEST(parts_are_cut_at_whole_layers_where_layers_are_equal)
{
	static const struct {
		uint32_t cut_bytes, layers;
		uint64_t block_bytes;
		uint32_t want;
	} row[] = {
		{4 * MiB - 64, 0, 32 * MiB, 4 * MiB - 64},
		{4 * MiB - 64, 32, 32 * MiB, 3 * MiB},
		{4 * MiB - 64, 32, 16 * MiB, 7 * (MiB / 2)},
		{4 * MiB - 64, 32, 2 * MiB, 4 * MiB - 64},       /* one part */
		{4 * MiB - 64, 4, 32 * MiB, 8 * MiB / 3 + 1},    /* not even: see below */
		{4 * MiB, 4, 32 * MiB, 4 * MiB},
		{4 * MiB, 4, 4 * 9 * MiB, 3 * MiB},
		{4 * MiB - 64, 7, 32 * MiB, 4 * MiB - 64},       /* layers are not equal */
	};

	for (unsigned i = 0; i < ARRAY_COUNT(row); i++) {
		uint32_t cut = tier_cut_layers(row[i].cut_bytes, row[i].layers, row[i].block_bytes);
		uint64_t layer = row[i].layers == 0 ? 0 : row[i].block_bytes / row[i].layers;

		expect(cut <= row[i].cut_bytes);
		if (i != 4)
			expect_int(cut, row[i].want);
		else
			expect_int(layer % cut, 0);    /* whatever it is, it divides a layer */
	}
}

/* --- which device ----------------------------------------------------------------------------- */

TEST(blocks_spread_over_names_and_stay_when_another_name_goes)
{
	uint64_t names[5], fewer[4], turned[5];
	unsigned count[5] = {0}, moved = 0;

	for (unsigned i = 0; i < 5; i++) {
		char text[64];

		snprintf(text, sizeof(text), "10.0.0.%u:4420/?nsid=0", i);
		names[i] = turned[4 - i] = values_name(text);
	}
	memcpy(fewer, names, sizeof(fewer));       /* the last is gone */
	for (uint32_t n = 0; n < 20000; n++) {
		struct kvof_id id = tf_id(n);
		unsigned at = values_pick(names, 5, &id), then = values_pick(fewer, 4, &id);

		count[at]++;
		expect_int(values_pick(turned, 5, &id), 4 - at);
		if (at == 4)
			moved++;
		else
			expect_int(then, at);
	}
	expect_int(moved, count[4]);
	for (unsigned i = 0; i < 5; i++)
		expect(count[i] > 3800 && count[i] < 4200);
}

static unsigned lane_of_block(uint32_t n)
{
	uint64_t names[FAKES];
	struct kvof_id id = tf_id(n);

	for (unsigned i = 0; i < fakes; i++) {
		char text[16];

		snprintf(text, sizeof(text), "fake %u", i);
		names[i] = values_name(text);
	}
	return values_pick(names, fakes, &id);
}

/* The k-th block that lies on a device. */
static uint32_t block_on(unsigned dev, unsigned k)
{
	for (uint32_t n = 0;; n++)
		if (lane_of_block(n) == dev && k-- == 0)
			return n;
}

TEST(a_block_lies_whole_on_one_device)
{
	begin(3);
	for (uint32_t n = 0; n < 12; n++) {
		unsigned dev = lane_of_block(n);

		tf_fill(data, FIVE, n);
		expect_int(tf_one(KVOF_SAVE, n, data, FIVE), KVOF_OK);
		for (uint32_t i = 0; i < 6; i++) {
			struct kv_key key = i == 5 ? tf_key(n, 0, 1) : tf_key(n, i, 5);

			for (unsigned d = 0; d < 3; d++)
				expect_int(fake_find(&fake[d], &key) != NULL, d == dev);
		}
		expect_int(tf_one(KVOF_LOAD, n, back, FIVE), KVOF_OK);
		expect_mem(back, data, FIVE);
		expect_int(tf_one(KVOF_EXISTS_OP, n, NULL, 0), KVOF_OK);
		expect_int(tf_one(KVOF_DELETE, n, NULL, 0), KVOF_OK);
		expect_int(tf_one(KVOF_LOAD, n, back, FIVE), KVOF_ABSENT);
	}
	end();
}

TEST(a_lost_device_is_misses_at_once_and_the_others_serve)
{
	begin(3);
	for (uint32_t n = 0; n < 12; n++) {
		tf_fill(data, CUT, n);
		expect_int(tf_one(KVOF_SAVE, n, data, CUT), KVOF_OK);
	}
	fake[1].live = false;
	values_dev_changed(tf_tier, 1);
	fake[1].submits = 0;
	for (unsigned pass = 0; pass < 2; pass++) {        /* within the grace, and long after */
		for (uint32_t n = 0; n < 12; n++) {
			uint64_t begin_ns = sim_now_ns();
			bool lost = lane_of_block(n) == 1;

			tf_fill(data, CUT, n);
			expect_int(tf_one(KVOF_LOAD, n, back, CUT),
				   lost ? KVOF_UNREACHABLE : KVOF_OK);
			expect(sim_now_ns() - begin_ns < NS_PER_MS);
			if (!lost)
				expect_mem(back, data, CUT);
		}
		tf_pass(VALUES_GRACE_NS * 2);
	}
	expect_int(fake[1].submits, 0);
	fake[1].live = true;
	values_dev_changed(tf_tier, 1);
	for (uint32_t n = 0; n < 12; n++)
		expect_int(tf_one(KVOF_LOAD, n, back, CUT), KVOF_OK);
	end();
}

TEST(what_waits_for_a_lost_device_ends_after_the_grace_but_a_save_waits)
{
	uint32_t a = block_on(1, 0), b = block_on(1, 1);
	struct tf_op load, save, ask;
	uint64_t lost_ns;

	begin(2);
	a = block_on(1, 0);
	b = block_on(1, 1);
	expect_int(tf_one(KVOF_SAVE, a, data, FIVE), KVOF_OK);
	fake[1].holds = true;
	tf_set(&load, KVOF_LOAD, a, back, FIVE);
	tf_set(&ask, KVOF_EXISTS_OP, a, NULL, 0);
	tf_set(&save, KVOF_SAVE, b, data, CUT);
	tf_start(&load);
	tf_start(&ask);
	tf_start(&save);
	fake[1].live = false;
	values_dev_changed(tf_tier, 1);
	lost_ns = sim_now_ns();
	fake[0].live = false;              /* something has to happen, for time to pass */
	values_dev_changed(tf_tier, 0);
	tf_pass(VALUES_GRACE_NS + NS_PER_MS);
	expect(sim_now_ns() - lost_ns >= VALUES_GRACE_NS);
	expect_int(fake[1].cancels, 7);
	for (unsigned i = 0; i < 7; i++)
		fake_answer(&fake[1], 0, -ECANCELED);
	expect_int(tf_wait(&load), KVOF_UNREACHABLE);
	expect_int(tf_wait(&ask), KVOF_UNREACHABLE);
	expect_int(save.done, 0);
	fake[1].live = true;
	values_dev_changed(tf_tier, 1);
	fake_answer(&fake[1], 0, 1);
	expect_int(tf_wait(&save), KVOF_OK);
	end();
}

TEST(a_device_that_is_back_in_time_costs_nobody_a_block)
{
	struct tf_op t;
	uint32_t n;

	begin(2);
	n = block_on(1, 0);
	tf_fill(data, FIVE, 1);
	expect_int(tf_one(KVOF_SAVE, n, data, FIVE), KVOF_OK);
	fake[1].holds = true;
	tf_set(&t, KVOF_LOAD, n, back, FIVE);
	t.op.part_slots = 2;
	tf_start(&t);
	fake[1].live = false;
	values_dev_changed(tf_tier, 1);
	fake_answer(&fake[1], 0, 1);       /* what follows is asked for as well */
	fake[1].live = true;
	values_dev_changed(tf_tier, 1);
	while (fake[1].pending_count > 0)
		fake_answer(&fake[1], 0, 1);
	expect_int(tf_wait(&t), KVOF_OK);
	expect_int(fake[1].cancels, 0);
	expect_mem(back, data, FIVE);
	end();
}

TEST(a_device_that_answers_nothing_holds_nobody_up_at_the_others)
{
	unsigned count = TIER_FLYING_MAX + 50;
	struct tf_op *t = calloc(count, sizeof(*t));
	struct tf_op other;
	uint32_t slow, well;

	begin(2);
	slow = block_on(0, 0);
	well = block_on(1, 0);
	tf_fill(data, CUT, 7);
	expect_int(tf_one(KVOF_SAVE, slow, data, CUT), KVOF_OK);
	expect_int(tf_one(KVOF_SAVE, well, data, CUT), KVOF_OK);
	fake[0].holds = true;
	for (unsigned i = 0; i < count; i++) {
		tf_set(&t[i], KVOF_LOAD, slow, back, CUT);
		tf_start(&t[i]);
	}
	expect_int(fake[0].pending_count, TIER_FLYING_MAX);
	tf_set(&other, KVOF_LOAD, well, back, CUT);
	tf_start(&other);
	expect_int(tf_wait(&other), KVOF_OK);
	expect_int(fake[0].pending_count, TIER_FLYING_MAX);
	for (unsigned i = 0; i < 20; i++)          /* those that wait for room can be late */
		tf_tier->ops->late(tf_tier, &t[count - 1 - i].op);
	for (unsigned i = 0; i < 20; i++)
		expect_int(tf_wait(&t[count - 1 - i]), KVOF_LATE);
	while (fake[0].pending_count > 0)
		fake_answer(&fake[0], 0, 1);
	for (unsigned i = 0; i < count; i++)
		expect_int(tf_wait(&t[i]), i < count - 20 ? KVOF_OK : KVOF_LATE);
	free(t);
	end();
}

TEST(a_device_with_small_values_is_cut_for_and_an_unfit_one_is_not_asked)
{
	uint32_t small, well;
	struct kv_key key;

	begin(2);
	small = block_on(0, 0);
	well = block_on(1, 0);
	tier_cut_set(tf_tier, 2 * CUT, 0);
	values_dev_limit(tf_tier, 0, CUT + FRAME_BYTES);
	tf_fill(data, FIVE, 1);
	expect_int(tf_one(KVOF_SAVE, small, data, FIVE), KVOF_OK);
	expect_int(tf_one(KVOF_SAVE, well, data, FIVE), KVOF_OK);
	key = tf_key(small, 4, 5);
	expect(fake_find(&fake[0], &key) != NULL);
	key = tf_key(well, 2, 3);
	expect(fake_find(&fake[1], &key) != NULL);
	expect_int(tf_one(KVOF_LOAD, small, back, FIVE), KVOF_OK);
	expect_mem(back, data, FIVE);
	values_dev_limit(tf_tier, 0, 0);
	fake[0].submits = 0;
	expect_int(tf_one(KVOF_LOAD, small, back, FIVE), KVOF_UNREACHABLE);
	expect_int(tf_one(KVOF_SAVE, small, data, FIVE), KVOF_UNREACHABLE);
	expect_int(fake[0].submits, 0);
	expect_int(tf_one(KVOF_LOAD, well, back, FIVE), KVOF_OK);
	end();
}

TEST(counters_tell_what_each_device_was_asked_and_gave)
{
	struct tier_stat s;

	begin(2);
	for (uint32_t n = 0; n < 10; n++)
		expect_int(tf_one(KVOF_SAVE, n, data, FIVE), KVOF_OK);
	for (uint32_t n = 0; n < 10; n++)
		expect_int(tf_one(KVOF_LOAD, n, back, FIVE), KVOF_OK);
	expect_int(tf_one(KVOF_LOAD, 11, back, FIVE), KVOF_ABSENT);
	values_stat(tf_tier, &s);
	expect_int(s.devs, 2);
	expect_int(s.devs_live, 2);
	expect_int(s.asked, 21);
	expect_int(s.answered, 21);
	expect_int(s.present, 10);
	expect_int(s.absent, 1);
	expect_int(s.delivered_bytes, 10 * FIVE);
	fake[0].live = false;
	expect_int(tf_one(KVOF_LOAD, block_on(0, 0), back, FIVE), KVOF_UNREACHABLE);
	values_dev_stat(tf_tier, 0, &s);
	expect_int(s.devs_live, 0);
	expect_int(s.unreachable, 1);
	expect(tf_tier->ops->live(tf_tier));
	fake[1].live = false;
	expect(!tf_tier->ops->live(tf_tier));
	end();
}

/* --- speed ------------------------------------------------------------------------------------ */

static struct tier_speed speed_of(uint32_t n)
{
	struct kvof_id id = tf_id(n);
	struct tier_speed s;

	kt_noise(&s, sizeof(s));
	tf_tier->ops->speed(tf_tier, &id, &s);
	return s;
}

static void load_times(uint32_t n, unsigned times)
{
	for (unsigned i = 0; i < times; i++)
		expect_int(tf_one(KVOF_LOAD, n, back, FIVE), KVOF_OK);
}

TEST(speed_is_measured_and_a_slower_device_shows_within_a_few_reads)
{
	struct tier_speed s;

	begin(2);
	expect_int(speed_of(block_on(0, 0)).samples, 0);
	expect_int(speed_of(block_on(0, 0)).bytes_per_s, 0);
	expect(speed_of(block_on(0, 0)).live);
	tier_cut_set(tf_tier, 60000, 0);           /* values of one part */
	fake[0].latency_ns = 100 * 1000;
	fake[0].bytes_per_s = 100 * 1000 * 1000;
	expect_int(tf_one(KVOF_SAVE, block_on(0, 0), data, FIVE), KVOF_OK);
	expect_int(tf_one(KVOF_EXISTS_OP, block_on(0, 1), NULL, 0), KVOF_ABSENT);
	load_times(block_on(0, 0), 600);
	s = speed_of(block_on(0, 0));
	expect(s.samples >= 600);
	/* one value at a time: latency and bandwidth together are the time that a read takes */
	expect(s.latency_ns > 90 * 1000 && s.latency_ns < 350 * 1000);
	expect(s.bytes_per_s > 60 * 1000 * 1000 && s.bytes_per_s < 140 * 1000 * 1000);
	expect_int(speed_of(block_on(1, 0)).samples, 0);
	fake[0].latency_ns *= 10;
	fake[0].bytes_per_s /= 10;
	load_times(block_on(0, 0), 300);
	expect(speed_of(block_on(0, 0)).bytes_per_s < 20 * 1000 * 1000);
	end();
}

TEST(a_silent_device_looks_as_slow_as_it_is_silent)
{
	uint32_t n;
	struct tf_op t;

	begin(1);
	n = block_on(0, 0);
	expect_int(tf_one(KVOF_SAVE, n, data, FIVE), KVOF_OK);
	load_times(n, 3);
	expect(speed_of(n).latency_ns < NS_PER_MS);
	fake[0].holds = true;
	tf_set(&t, KVOF_LOAD, n, back, FIVE);
	tf_start(&t);
	expect_int(speed_of(n).queued_bytes, FIVE + 6 * FRAME_BYTES);
	values_dev_changed(tf_tier, 0);
	fake[0].holds = false;
	loop_timer_set(tf_loop, &fake[0].timer, sim_now_ns() + NS_PER_S);
	tf_pass(NS_PER_S - NS_PER_MS);
	loop_turn(tf_loop, 0);
	expect(speed_of(n).latency_ns > NS_PER_S / 2);
	expect_int(tf_wait(&t), KVOF_OK);
	expect_int(speed_of(n).queued_bytes, 0);
	end();
}

TEST(a_parked_load_ends_when_its_device_is_lost)
{
	struct tf_op t, other;

	begin_with_five();
	tf_set(&t, KVOF_LOAD, 1, back, FIVE);
	t.op.landed = tf_landed;
	t.op.allow = 1;
	tf_start(&t);
	while (fake[0].pending_count > 0)
		fake_answer(&fake[0], 0, 1);
	expect_int(t.done, 0);
	fake[0].live = false;
	values_dev_changed(tf_tier, 0);
	tf_pass(2 * VALUES_GRACE_NS);
	expect_int(tf_wait(&t), KVOF_UNREACHABLE);
	expect_int(t.landed_count, 1);
	fake[0].live = true;
	values_dev_changed(tf_tier, 0);
	fake[0].holds = false;
	tf_set(&other, KVOF_LOAD, 1, back, FIVE);
	tf_start(&other);
	expect_int(tf_wait(&other), KVOF_OK);
	end();
}

/* --- anything, in any order ------------------------------------------------------------------- */

#define STREAMS 24
#define STREAM_BLOCKS 8

static struct tf_op stream[STREAMS];
static uint8_t stream_back[STREAMS][32 * KiB], stream_keep[STREAMS][32 * KiB];
static uint32_t stream_block[STREAMS];

static size_t stream_bytes(uint32_t n)
{
	return n % 4 == 0 ? 1000 : n % 4 * 2 * CUT - n;
}

/* What landed is the block's own, whatever became of the load. */
static void stream_check(unsigned i)
{
	const struct tf_op *t = &stream[i];

	tf_fill(data, stream_bytes(stream_block[i]), stream_block[i]);
	for (unsigned k = 0; k < t->landed_count; k++) {
		uint64_t from = (uint64_t)t->landed[k] * t->op.landed_cut_bytes;
		uint64_t left = stream_bytes(stream_block[i]) - from;

		if (left > t->op.landed_cut_bytes)
			left = t->op.landed_cut_bytes;
		expect_mem(stream_keep[i] + from, data + from, left);
	}
	if (t->op.reason == KVOF_OK) {
		expect_int(t->landed_count, t->of[0]);
		expect_mem(stream_back[i], data, stream_bytes(stream_block[i]));
	}
}

static void stream_start(struct prng *p, unsigned i)
{
	struct tf_op *t = &stream[i];

	stream_block[i] = (uint32_t)prng_below(p, STREAM_BLOCKS);
	tf_set(t, KVOF_LOAD, stream_block[i], stream_back[i], stream_bytes(stream_block[i]));
	t->op.part_slots = 1 + (unsigned)prng_below(p, TF_PARTS);
	t->op.allow = (uint32_t)prng_below(p, 3);
	t->op.landed = tf_landed;
	t->keep = stream_keep[i];
	tf_start(t);
}

static void stream_push(struct prng *p, unsigned i)
{
	struct tf_op *t = &stream[i];

	switch (prng_below(p, 12)) {
	case 0:
		tf_tier->ops->cancel(tf_tier, &t->op);
		break;
	case 1:
		tf_tier->ops->late(tf_tier, &t->op);
		break;
	default:
		if (t->op.allow > 0)
			t->op.allow = prng_below(p, 4) == 0 ? 0 : t->op.allow + 1;
		tf_tier->ops->more(tf_tier, &t->op);
	}
}

static void device_change(struct prng *p)
{
	struct fake *f = &fake[prng_below(p, fakes)];
	struct fake_value *v = &f->value[prng_below(p, FAKE_VALUES)];

	switch (prng_below(p, 4)) {
	case 0:
		f->live = !f->live;
		values_dev_changed(tf_tier, (unsigned)(f - fake));
		break;
	case 1:
		if (v->at != NULL)
			v->at[prng_below(p, v->bytes)] ^= 4;
		break;
	case 2:
		f->latency_ns = prng_below(p, 100000);
		break;
	default:
		if (v->at != NULL && prng_below(p, 8) == 0) {
			free(v->at);
			v->at = NULL;
		}
	}
}

TEST(streams_of_any_order_end_once_and_what_landed_is_right)
{
	struct prng p = prng_of(77);
	unsigned ended = 0, good = 0, landed = 0;

	begin(FAKES);
	for (unsigned step = 0; step < 30000; step++) {
		unsigned i = (unsigned)prng_below(&p, STREAMS);
		uint32_t n = (uint32_t)prng_below(&p, STREAM_BLOCKS);

		if (step % 500 == 0) {             /* what was damaged is there again */
			for (unsigned f = 0; f < FAKES; f++) {
				fake[f].live = true;
				values_dev_changed(tf_tier, f);
			}
			tf_fill(data, stream_bytes(n), n);
			tf_one(KVOF_SAVE, n, data, stream_bytes(n));
		}
		if (stream[i].op.part_slots == 0 || stream[i].done > 0) {
			if (stream[i].done > 0) {
				stream_check(i);
				ended++;
				good += stream[i].op.reason == KVOF_OK;
				landed += stream[i].landed_count;
			}
			stream_start(&p, i);
		} else if (prng_below(&p, 3) == 0) {
			stream_push(&p, i);
		}
		if (prng_below(&p, 40) == 0)
			device_change(&p);
		if (prng_below(&p, 2) == 0)
			sim_step();
	}
	for (unsigned i = 0; i < STREAMS; i++) {
		stream[i].op.allow = 0;
		if (stream[i].done == 0)
			tf_tier->ops->more(tf_tier, &stream[i].op);
		tf_wait(&stream[i]);
		stream_check(i);
	}
	printf("# %u ended, %u good, %u parts landed\n", ended, good, landed);
	expect(ended > 1000 && good > 200 && landed > good);
	end();
}
