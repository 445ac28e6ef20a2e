/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants: at[i] is not later than at[2i] and at[2i + 1]; at[i]->index == i; a node that is in
 * no heap has index 0.
 */
#include "base/heap.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/must.h"

int heap_reserve(struct heap *h, uint32_t max)
{
	struct heap_node **at;

	must(max > 0 && max < UINT32_MAX / 2);
	if (max <= h->max)
		return 0;
	at = realloc(h->at, ((size_t)max + 1) * sizeof(*at));
	if (at == NULL)
		return -ENOMEM;
	h->at = at;
	h->max = max;
	return 0;
}

void heap_free(struct heap *h)
{
	must(h->count == 0);
	free(h->at);
	*h = (struct heap){0};
}

static bool heap_before(const struct heap_node *a, const struct heap_node *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void heap_put(struct heap *h, uint32_t index, struct heap_node *n)
{
	must(index >= 1 && index <= h->count);
	h->at[index] = n;
	n->index = index;
}

static void heap_up(struct heap *h, uint32_t index, struct heap_node *n)
{
	for (; index > 1 && heap_before(n, h->at[index / 2]); index /= 2)
		heap_put(h, index, h->at[index / 2]);
	heap_put(h, index, n);
}

static void heap_down(struct heap *h, uint32_t index, struct heap_node *n)
{
	for (;;) {
		uint32_t child = index * 2;

		if (child > h->count)
			break;
		if (child < h->count && heap_before(h->at[child + 1], h->at[child]))
			child++;
		if (!heap_before(h->at[child], n))
			break;
		heap_put(h, index, h->at[child]);
		index = child;
	}
	heap_put(h, index, n);
}

void heap_add(struct heap *h, struct heap_node *n)
{
	must(h->count < h->max && n->index == 0);
	n->order = h->order++;
	h->count++;
	heap_up(h, h->count, n);
}

void heap_remove(struct heap *h, struct heap_node *n)
{
	uint32_t index = n->index;
	struct heap_node *last;

	if (index == 0)
		return;
	must(index <= h->count && h->at[index] == n);
	n->index = 0;
	last = h->at[h->count--];
	if (last == n)
		return;
	if (index > 1 && heap_before(last, h->at[index / 2]))
		heap_up(h, index, last);
	else
		heap_down(h, index, last);
}

struct heap_node *heap_first(const struct heap *h)
{
	return h->count > 0 ? h->at[1] : NULL;
}

void heap_rebuild(struct heap *h)
{
	must(h->count <= h->max);
	for (uint32_t i = 1; i <= h->count; i++)
		h->at[i]->index = i;
	for (uint32_t i = h->count / 2; i >= 1; i--)
		heap_down(h, i, h->at[i]);
}
