/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which block of a tier goes next when room is wanted. Arithmetic only: no clock, no I/O, no
 * randomness but from a seed, so that a tier and `kvof replay` drive the same objects and get the
 * same answers. docs/policies.md says what each policy does and why the default is the default.
 *
 * The owner numbers what it holds, 0 .. slots-1, and counts room itself. For each block:
 *
 *   policy_admit()    before a block that a slower tier gave is kept: is it worth it?
 *   policy_insert()   it is held now
 *   policy_link()     the block before it in its sequence is held as well
 *   policy_hit()      it was used; of a prefix the tail first, the head last. One call a use: what
 *                     is looked up and then loaded was used once.
 *   policy_victim()   room is wanted: who goes? Then policy_evict(), and so on until there is room.
 *   policy_remove()   it was deleted
 *
 * A policy that knows prefixes (the default) never names a block as victim while a block that comes
 * after it is held, unless that one may not go.
 *
 * All memory is taken at open. Every call is O(1), amortised, but for slots that may not go, which
 * policy_victim() passes over one by one. Owned by one loop.
 */
#ifndef KVOF_CACHE_POLICY_H
#define KVOF_CACHE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define POLICY_NONE UINT32_MAX
#define POLICY_SLOTS_MAX (UINT32_C(1) << 30)

struct policy;

struct policy_opts {
	uint32_t slots;                    /* 1 .. POLICY_SLOTS_MAX */
	uint64_t capacity_units;           /* what the owner's room is, in the units of its items */
	uint64_t seed;
};

struct policy_item {
	uint64_t key;                      /* of the block's identity, well mixed */
	uint32_t parent;                   /* slot of the block before it; POLICY_NONE: not held */
	uint32_t units;                    /* of room; 1 or more */
	int32_t priority;                  /* below 0: goes before others; above 0: after */
};

/* name: one of policy_names(); NULL: the default. Return: 0; -EINVAL no such policy, or an option
 * beyond its limits; -ENOMEM. */
int policy_open(const char *name, const struct policy_opts *opts, struct policy **out);
void policy_close(struct policy **p);
/* Ends with NULL; the first one is the default. */
const char *const *policy_names(void);
const char *policy_name(const struct policy *p);
/* Bytes that policy_open() takes for so many slots. */
uint64_t policy_memory_bytes(const char *name, uint32_t slots);
/* Does it know prefixes? Then a block whose parent is gone is not worth keeping. */
bool policy_tails_first(const struct policy *p);

/* May a block that is not held displace others? Yes while there is room; else when it was held or
 * asked about before, as far back as is remembered: so a scan displaces nothing. Remembers that it
 * was asked. A block that the engine saves needs no such question. */
bool policy_admit(struct policy *p, uint64_t key, uint32_t units);
void policy_insert(struct policy *p, uint32_t slot, const struct policy_item *item);
/* parent: held; POLICY_NONE: it has none. A link that would close a circle is left out. May be
 * told again: where blocks were inserted before the one they follow, each is linked when that one
 * comes, and all once more from the head on when all are there, so that each learns from the one
 * before. Inserting from the head on, with parents given, is better. */
void policy_link(struct policy *p, uint32_t slot, uint32_t parent);
void policy_hit(struct policy *p, uint32_t slot);
void policy_priority(struct policy *p, uint32_t slot, int32_t priority);

/* The slot that is to go; it stays until policy_evict(). may_go NULL: all may. Return: POLICY_NONE
 * if none may, or only such as were refused since policy_look_again(). */
uint32_t policy_victim(struct policy *p, bool (*may_go)(void *arg, uint32_t slot), void *arg);
/* Long rows of slots that were refused are not asked about again until the next call of this; who
 * never calls it has all asked each time. */
void policy_look_again(struct policy *p);
/* It went for want of room, and its key is remembered for a while. */
void policy_evict(struct policy *p, uint32_t slot);
/* It was deleted, and is forgotten. */
void policy_remove(struct policy *p, uint32_t slot);

bool policy_held(const struct policy *p, uint32_t slot);
/* The block before it, POLICY_NONE: none is held. */
uint32_t policy_parent(const struct policy *p, uint32_t slot);
uint32_t policy_count(const struct policy *p);
/* Asserts every invariant; walks everything. For tests. */
void policy_check(const struct policy *p);

#endif
