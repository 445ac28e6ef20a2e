/* SPDX-License-Identifier: Apache-2.0 */
/* The heap of what happens at a time, against a plain search. */
#include "kt.h"

#include <stdlib.h>

#include "base/heap.h"
#include "base/must.h"
#include "base/prng.h"

#define NODES 300

static const struct heap_node *earliest(const struct heap_node *node, unsigned count)
{
	const struct heap_node *best = NULL;

	for (unsigned i = 0; i < count; i++) {
		const struct heap_node *n = &node[i];

		if (n->index != 0 && (best == NULL || n->at_ns < best->at_ns ||
				      (n->at_ns == best->at_ns && n->order < best->order)))
			best = n;
	}
	return best;
}

TEST(the_first_is_the_earliest_and_of_the_same_instant_the_first_added)
{
	struct heap_node node[NODES] = {0};
	struct heap heap = {0};
	struct prng p = prng_of(5);

	expect_int(heap_reserve(&heap, NODES), 0);
	for (unsigned round = 0; round < 30000; round++) {
		struct heap_node *n = &node[prng_below(&p, NODES)];

		if (n->index != 0) {
			heap_remove(&heap, n);
		} else {
			n->at_ns = prng_below(&p, 40);
			n->order = UINT64_MAX;
			heap_add(&heap, n);
		}
		expect(heap_first(&heap) == earliest(node, NODES));
	}
	for (unsigned i = 0; i < NODES; i++)
		heap_remove(&heap, &node[i]);
	expect(heap_first(&heap) == NULL);
	heap_free(&heap);
}

TEST(equal_times_come_out_in_the_order_of_adding)
{
	struct heap_node node[NODES] = {0};
	struct heap heap = {0};

	expect_int(heap_reserve(&heap, NODES), 0);
	for (unsigned i = 0; i < NODES; i++) {
		node[i].at_ns = 7;
		heap_add(&heap, &node[i]);
	}
	for (unsigned i = 0; i < NODES; i++) {
		expect(heap_first(&heap) == &node[i]);
		heap_remove(&heap, &node[i]);
	}
	heap_free(&heap);
}

TEST(more_room_keeps_what_is_there)
{
	struct heap_node node[NODES] = {0};
	struct heap heap = {0};

	for (unsigned i = 0; i < NODES; i++) {
		if (heap.count == heap.max)
			expect_int(heap_reserve(&heap, heap.max + 1), 0);
		node[i].at_ns = NODES - i;
		heap_add(&heap, &node[i]);
		expect(heap_first(&heap) == &node[i]);
	}
	expect_int(heap_reserve(&heap, 1), 0);
	expect_int(heap.max, NODES);
	for (unsigned i = NODES; i > 0; i--)
		heap_remove(&heap, heap_first(&heap));
	expect_int(heap.count, 0);
	heap_free(&heap);
}

TEST(what_some_nodes_were_taken_from_is_a_heap_again_after_a_rebuild)
{
	struct heap_node node[NODES] = {0};
	struct heap heap = {0};
	struct prng p = prng_of(6);
	uint32_t kept = 0;

	expect_int(heap_reserve(&heap, NODES), 0);
	for (unsigned i = 0; i < NODES; i++) {
		node[i].at_ns = prng_below(&p, 100);
		heap_add(&heap, &node[i]);
	}
	for (uint32_t i = 1; i <= heap.count; i++) {
		if (i % 3 != 0)
			heap.at[++kept] = heap.at[i];
		else
			heap.at[i]->index = 0;
	}
	heap.count = kept;
	heap_rebuild(&heap);
	while (heap.count > 0) {
		expect(heap_first(&heap) == earliest(node, NODES));
		heap_remove(&heap, heap_first(&heap));
	}
	heap_free(&heap);
}
