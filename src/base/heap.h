/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A binary heap of things that happen at a time, earliest first; what was added for the same
 * instant comes in the order in which it was added. Nodes lie inside the members and know their
 * place, so that any of them is removed in O(log n). One thread.
 */
#ifndef KVOF_BASE_HEAP_H
#define KVOF_BASE_HEAP_H

#include <stdint.h>

struct heap_node {
	uint64_t at_ns;                /* the caller's; not changed while in a heap */
	uint64_t order;                /* the heap's */
	uint32_t index;                /* the heap's; 0: in no heap */
};

struct heap {
	struct heap_node **at;         /* at[1] is the first; at[0] is not used */
	uint32_t count, max;
	uint64_t order;                /* given to the next node that is added */
};

/* Room for max nodes; never less than there was. Begins with a zeroed heap. Return: 0; -ENOMEM. */
int heap_reserve(struct heap *h, uint32_t max);
void heap_free(struct heap *h);                                /* must be empty */
void heap_add(struct heap *h, struct heap_node *n);            /* there must be room */
void heap_remove(struct heap *h, struct heap_node *n);         /* fine if it is in none */
struct heap_node *heap_first(const struct heap *h);            /* NULL: empty */
/* Puts at[1 .. count], of which some were taken away, in order again. O(count). */
void heap_rebuild(struct heap *h);

#endif
