/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process dies at every write and flush of a set's life: made, namespaces created, removed,
 * created again in their place, a drive replaced. What an open then finds is what was answered, or
 * also the step under way, never a half; and no value of a namespace that is gone.
 */
#include "set_rig.h"

#include <errno.h>

#define STEPS 9u
#define KEYS 12u

struct life {
	struct set_rig r;
	unsigned done;                       /* steps that were answered */
	uint32_t id[3];
	uint64_t round;
};

static bool alive(void)
{
	return sim_crashed() == NULL;
}

/* One value a key in the namespace's store; false: the process died. */
static bool fill(struct life *l, uint32_t id, uint32_t version)
{
	struct rig *g = &l->r.g;
	bool closed = false;
	struct store *st;

	if (set_rig_store(&l->r, id, 0) != 0)
		return false;
	for (uint32_t i = 0; i < KEYS && alive(); i++) {
		struct rig_op op;

		if (!rig_put_start(g, &op, i, version, 40000, STORE_PUT_ANY))
			return false;
		if (!rig_wait(&op.done))
			return false;
		store_buf_give(g->st, &op.buf);
	}
	if (!alive())
		return false;
	st = g->st;
	store_close(&g->st, rig_closed, &closed);
	if (!rig_wait(&closed))
		store_forget(&st);
	return alive();
}

static bool make(struct life *l, unsigned which)
{
	struct set_ns ns = {.kind = SET_KV, .cap_bytes = 10 * MiB, .subsys = l->r.subsys,
			    .evict = true, .value_bytes_max = 512 * KiB};

	if (set_ns_create(l->r.set, &ns, l->r.why) != 0)
		return false;
	l->id[which] = ns.id;
	return true;
}

static bool step(struct life *l)
{
	struct set_rig *r = &l->r;

	switch (l->done) {
	case 0:
		return set_rig_open(r) == 0;
	case 1:
		return set_subsys_create(r->set, "nqn.x:test", &r->subsys, r->why) == 0;
	case 2:
		return make(l, 0);
	case 3:
		return fill(l, l->id[0], 1);
	case 4:
		return make(l, 1);
	case 5:
		return set_ns_remove(r->set, l->id[0], r->why) == 0;
	case 6:
		return make(l, 2);
	case 7:
		return fill(l, l->id[2], 2);
	default:
		return set_ns_remove(r->set, l->id[1], r->why) == 0;
	}
}

/* Bit i: namespace i is there after that many steps. */
static unsigned there_after(unsigned done)
{
	unsigned mask = 0;

	mask |= done > 2 && done <= 5 ? 1u : 0;
	mask |= done > 4 && done <= 8 ? 2u : 0;
	mask |= done > 6 ? 4u : 0;
	return mask;
}

static unsigned there_now(struct life *l, uint32_t ids[SET_NAMESPACES_MAX], unsigned *count)
{
	struct set_ns ns[SET_NAMESPACES_MAX];
	unsigned mask = 0;

	*count = set_ns_list(l->r.set, ns);
	for (unsigned i = 0; i < *count; i++) {
		ids[i] = ns[i].id;
		for (unsigned k = 0; k < 3; k++)
			mask |= ns[i].id == l->id[k] ? 1u << k : 0;
	}
	return mask;
}

/* The slabs of a namespace that is not there are free: all can be taken. */
static void room_is_whole(struct life *l)
{
	uint64_t used = 0, all = 0;
	struct set_ns ns[SET_NAMESPACES_MAX];
	unsigned count = set_ns_list(l->r.set, ns);

	for (unsigned i = 0; i < l->r.set->drive_count; i++)
		all += l->r.set->drive[i]->label.slab_count * l->r.set->drive[i]->label.slab_bytes;
	for (unsigned i = 0; i < count; i++)
		used += ns[i].cap_bytes;
	expect(set_free_bytes(l->r.set) <= all - used);
	expect(set_free_bytes(l->r.set) + used + 16 * 64 * KiB >= all);
}

static void values_are_true(struct life *l, uint32_t id, unsigned done, bool keep)
{
	struct rig *g = &l->r.g;

	if (set_rig_store(&l->r, id, 0) != 0)
		fail_msg("%s", g->report.text);
	for (uint32_t i = 0; i < KEYS; i++) {
		uint32_t version = id == l->id[0] ? 1 : 2;
		int rc = rig_get(g, i, version, 40000);

		expect(rc == 0 || rc == -ENOENT);
		if (keep && ((id == l->id[0] && done > 3) || (id == l->id[2] && done > 7)))
			expect_int(rc, 0);
		if (id == l->id[1])
			expect_int(rc, -ENOENT);
	}
	rig_close(g);
}

static void look(struct life *l, bool keep)
{
	uint32_t ids[SET_NAMESPACES_MAX];
	unsigned count, mask, before = there_after(l->done), after = there_after(l->done + 1);
	struct set_ns more;

	if (set_rig_open(&l->r) != 0)
		fail_msg("after step %u, write %llu: %s", l->done, (unsigned long long)l->round,
			 l->r.report.text);
	mask = there_now(l, ids, &count);
	/* One that was created but not answered has an id that the test does not know. */
	if (count != (unsigned)__builtin_popcount(mask))
		mask |= after & ~before;
	if (mask != before && mask != after)
		fail_msg("after step %u, write %llu: namespaces %x", l->done,
			 (unsigned long long)l->round, mask);
	room_is_whole(l);
	for (unsigned i = 0; i < count; i++)
		values_are_true(l, ids[i], l->done, keep);
	if (l->done > 1) {
		more = (struct set_ns){.kind = SET_KV, .cap_bytes = 5 * MiB,
				       .subsys = l->r.subsys, .value_bytes_max = 512 * KiB};
		expect_int(set_ns_create(l->r.set, &more, l->r.why), 0);
		for (unsigned k = 0; k < 3; k++)
			expect(more.id != l->id[k]);
		expect_int(set_rig_store(&l->r, more.id, 0), 0);
		expect_int(rig_stat(&l->r.g).keys, 0);
		rig_close(&l->r.g);
	}
	set_rig_end(&l->r);
}

/* Lives until the n-th write; true: it was reached. */
static bool die_at(uint64_t n, unsigned drives, bool keep)
{
	struct life l = {.round = n};
	bool died;

	set_rig_begin(&l.r, n * 2 + keep, drives, 32 * MiB);
	l.r.opts.shards = 1;
	sim_crash_at_write(n);
	while (l.done < STEPS && step(&l) && alive())
		l.done++;
	died = !alive();
	if (l.r.g.st != NULL)
		store_forget(&l.r.g.st);
	if (l.r.set != NULL)
		set_forget(&l.r.set);
	if (l.r.g.loop != NULL)
		sim_crash(&l.r.g.loop, keep);
	sim_crash_at_write(0);
	look(&l, keep);
	return died;
}

TEST(a_kill_at_every_write_leaves_what_was_answered_or_the_step_under_way)
{
	uint64_t n = 1;

	while (die_at(n, 2, true))
		n++;
	expect(n > 60);
}

TEST(a_power_cut_at_every_write_leaves_no_half_of_a_namespace)
{
	uint64_t n = 1;

	while (die_at(n, 2, false))
		n++;
	expect(n > 60);
}

/* --- a drive that is replaced -------------------- */

static bool replace_dies_at(uint64_t n, bool keep, bool old_comes_back)
{
	struct set_rig r;
	uint32_t id;
	bool died;

	set_rig_begin(&r, n, 2, 32 * MiB);
	r.opts.shards = 1;
	expect_int(set_rig_open(&r), 0);
	id = set_rig_kv(&r, 0);
	expect_int(set_rig_store(&r, id, 0), 0);
	for (uint32_t i = 0; i < KEYS; i++)
		expect_int(rig_put(&r.g, i, 1, 5000), 0);
	rig_close(&r.g);
	set_rig_close(&r);
	r.opts.drive[1] = (struct store_drive){.path = "fresh", .bytes = 32 * MiB};
	r.opts.replace = true;
	sim_crash_at_write(n);
	(void)set_rig_open(&r);
	died = !alive();
	if (r.set != NULL)
		set_forget(&r.set);
	sim_crash(&r.g.loop, keep);
	sim_crash_at_write(0);
	if (old_comes_back) {
		r.opts.drive[1] = (struct store_drive){.path = r.g.path[1]};
		r.opts.replace = false;
	}
	if (set_rig_open(&r) != 0) {
		expect(old_comes_back && strstr(r.report.text, "given to another") != NULL);
	} else {
		expect_int(set_rig_store(&r, id, 0), 0);
		for (uint32_t i = 0; i < KEYS; i++) {
			int rc = rig_get(&r.g, i, 1, 5000);

			expect(rc == 0 || (rc == -ENOENT && !old_comes_back));
		}
		rig_close(&r.g);
	}
	set_rig_end(&r);
	return died;
}

TEST(a_crash_while_a_drive_takes_a_place_leaves_the_old_one_or_the_new)
{
	for (unsigned how = 0; how < 4; how++) {
		uint64_t n = 1;

		while (replace_dies_at(n, (how & 1) != 0, (how & 2) != 0))
			n++;
		expect(n > 10);
	}
}
