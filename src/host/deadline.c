/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The deadlines of a host's operations in a heap, so that the host needs one timer of the loop. An
 * operation's node lies in its lease. On the host's loop.
 */
#include "host/impl.h"

int deadline_heap_init(struct deadline_heap *heap, uint32_t max)
{
	*heap = (struct deadline_heap){0};
	return heap_reserve(&heap->heap, max);
}

void deadline_heap_free(struct deadline_heap *heap)
{
	heap_free(&heap->heap);
}

void deadline_heap_add(struct deadline_heap *heap, struct host_op *op)
{
	struct heap_node *node = &op_lease(op)->deadline;

	must(op->deadline_ns > 0 && node->index == 0);
	node->at_ns = op->deadline_ns;
	heap_add(&heap->heap, node);
}

void deadline_heap_remove(struct deadline_heap *heap, struct host_op *op)
{
	heap_remove(&heap->heap, &op_lease(op)->deadline);
}

struct host_op *deadline_heap_first(const struct deadline_heap *heap)
{
	struct heap_node *first = heap_first(&heap->heap);
	struct op_lease *lease;

	if (first == NULL)
		return NULL;
	lease = container_of(first, struct op_lease, deadline);
	return container_of((uint64_t *)(void *)lease, struct host_op, lease[0]);
}
