/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The deadlines of a host's operations: a binary heap, so that the host needs one timer of the
 * loop. at[i]'s deadline is not after those of at[2i] and at[2i+1]; each operation knows its place.
 * On the host's loop.
 */
#include <errno.h>
#include <stdlib.h>

#include "host/impl.h"

int deadline_heap_init(struct deadline_heap *heap, uint32_t max)
{
	*heap = (struct deadline_heap){.max = max};
	heap->at = calloc((size_t)max + 1, sizeof(heap->at[0]));
	return heap->at != NULL ? 0 : -ENOMEM;
}

void deadline_heap_free(struct deadline_heap *heap)
{
	must(heap->count == 0);
	free(heap->at);
	heap->at = NULL;
}

static void deadline_put(struct deadline_heap *heap, uint32_t index, struct host_op *op)
{
	heap->at[index] = op;
	op_lease(op)->heap_index = index;
}

static void deadline_up(struct deadline_heap *heap, uint32_t index, struct host_op *op)
{
	for (; index > 1 && heap->at[index / 2]->deadline_ns > op->deadline_ns; index /= 2)
		deadline_put(heap, index, heap->at[index / 2]);
	deadline_put(heap, index, op);
}

static void deadline_down(struct deadline_heap *heap, uint32_t index, struct host_op *op)
{
	for (;;) {
		uint32_t child = index * 2;

		if (child < heap->count &&
		    heap->at[child + 1]->deadline_ns < heap->at[child]->deadline_ns)
			child++;
		if (child > heap->count || heap->at[child]->deadline_ns >= op->deadline_ns)
			break;
		deadline_put(heap, index, heap->at[child]);
		index = child;
	}
	deadline_put(heap, index, op);
}

void deadline_heap_add(struct deadline_heap *heap, struct host_op *op)
{
	must(heap->count < heap->max);
	must(op->deadline_ns > 0 && op_lease(op)->heap_index == 0);
	deadline_up(heap, ++heap->count, op);
}

void deadline_heap_remove(struct deadline_heap *heap, struct host_op *op)
{
	uint32_t index = op_lease(op)->heap_index;
	struct host_op *last;

	if (index == 0)
		return;
	must(index <= heap->count && heap->at[index] == op);
	op_lease(op)->heap_index = 0;
	last = heap->at[heap->count--];
	if (last == op)
		return;
	if (index > 1 && heap->at[index / 2]->deadline_ns > last->deadline_ns)
		deadline_up(heap, index, last);
	else
		deadline_down(heap, index, last);
}

struct host_op *deadline_heap_first(const struct deadline_heap *heap)
{
	return heap->count > 0 ? heap->at[1] : NULL;
}
