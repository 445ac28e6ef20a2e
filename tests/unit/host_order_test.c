/* SPDX-License-Identifier: Apache-2.0 */
/* Which operations on one key may run: order_enter(), order_leave(), order_bequeath(). */
#include "kt.h"

#include "host/impl.h"

#define NODES 8

struct fixture {
	struct order order;
	struct order_node node[NODES];
	struct host_op op[NODES];
	unsigned let_go;               /* bit n: op n may run now */
};

static void let_go(void *arg, struct host_op *op)
{
	struct fixture *f = arg;

	f->let_go |= 1u << (op - f->op);
}

static struct fixture *fixture_new(void)
{
	struct fixture *f = calloc(1, sizeof(*f));

	expect(f != NULL);
	order_init(&f->order);
	return f;
}

static bool enter(struct fixture *f, unsigned i, uint8_t key, bool changes)
{
	f->node[i] = (struct order_node){
		.key = {.len = 1, .byte = {key}}, .changes = changes, .op = &f->op[i],
	};
	return order_enter(&f->order, &f->node[i]);
}

static unsigned leave(struct fixture *f, unsigned i)
{
	f->let_go = 0;
	order_leave(&f->order, &f->node[i], let_go, f);
	return f->let_go;
}

TEST(reads_of_one_key_run_side_by_side)
{
	struct fixture *f = fixture_new();

	expect(enter(f, 0, 7, false));
	expect(enter(f, 1, 7, false));
	expect_int(leave(f, 0), 0);
	expect_int(leave(f, 1), 0);
	free(f);
}

TEST(a_change_waits_for_all_older_reads_and_holds_all_younger_ones)
{
	struct fixture *f = fixture_new();

	expect(enter(f, 0, 7, false));
	expect(enter(f, 1, 7, false));
	expect(!enter(f, 2, 7, true));
	expect(!enter(f, 3, 7, false));
	expect(!enter(f, 4, 7, false));
	expect_int(leave(f, 1), 0);
	expect_int(leave(f, 0), 1 << 2);
	expect_int(leave(f, 2), 1 << 3 | 1 << 4);
	free(f);
}

TEST(changes_of_one_key_run_one_after_another)
{
	struct fixture *f = fixture_new();

	expect(enter(f, 0, 7, true));
	expect(!enter(f, 1, 7, true));
	expect(!enter(f, 2, 7, true));
	expect_int(leave(f, 0), 1 << 1);
	expect_int(leave(f, 1), 1 << 2);
	free(f);
}

TEST(other_keys_do_not_wait)
{
	struct fixture *f = fixture_new();

	expect(enter(f, 0, 7, true));
	for (unsigned i = 1; i < NODES; i++)
		expect(enter(f, i, (uint8_t)(7 + i), true));
	free(f);
}

TEST(length_is_part_of_the_key)
{
	struct fixture *f = fixture_new();

	expect(enter(f, 0, 0, true));
	f->node[1] = (struct order_node){.key = {.len = 2}, .changes = true, .op = &f->op[1]};
	expect(order_enter(&f->order, &f->node[1]));
	free(f);
}

TEST(one_that_waits_can_leave_and_lets_those_behind_it_go)
{
	struct fixture *f = fixture_new();

	expect(enter(f, 0, 7, false));
	expect(!enter(f, 1, 7, true));
	expect(!enter(f, 2, 7, false));
	expect_int(leave(f, 1), 1 << 2);
	free(f);
}

TEST(a_command_without_owner_keeps_the_place_of_its_operation)
{
	struct fixture *f = fixture_new();
	struct order_node ghost;

	expect(enter(f, 0, 7, true));
	expect(!enter(f, 1, 7, false));
	kt_noise(&ghost, sizeof(ghost));
	order_bequeath(&f->node[0], &ghost);
	expect(!list_linked(&f->node[0].link));
	expect(!enter(f, 2, 7, true));
	f->let_go = 0;
	order_leave(&f->order, &ghost, let_go, f);
	expect_int(f->let_go, 1 << 1);
	free(f);
}
