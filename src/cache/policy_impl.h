/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the policies share: slots with their links, lists by index, a memory of keys.
 *
 * Invariants: a held slot is on exactly one list; used_units is the sum over held slots; child
 * lists and parent links agree; no slot is its own ancestor.
 */
#ifndef KVOF_CACHE_POLICY_IMPL_H
#define KVOF_CACHE_POLICY_IMPL_H

#include "base/must.h"
#include "cache/policy.h"

#define POLICY_MAGIC 0x706f6c69u
#define POLICY_PAST_MIN 65536u             /* keys remembered at least */

/* Lists of the common part; a policy's own follow. */
enum { POLICY_LIST_LOW, POLICY_LIST_HIGH, POLICY_LIST_OWN };
#define POLICY_LISTS_MAX 512

struct policy_slot {
	uint64_t key;
	uint64_t touched;                  /* p->clock of its last use */
	uint32_t prev, next;               /* on its list; POLICY_NONE ends it */
	uint32_t parent, child;            /* child: the first of its children */
	uint32_t older, younger;           /* the other children of its parent */
	uint32_t units;
	uint32_t uses, births, hits;       /* the policy's own */
	uint16_t list;                     /* UINT16_MAX: not held */
	uint16_t kind;                     /* the policy's own */
};

/* The front goes first. */
struct policy_list {
	uint32_t front, back;
	uint32_t skip;                     /* up to this one all were refused lately */
	uint32_t count;
	uint64_t units;
};

/* Keys that were held, or asked about, and are no more: the last ones. A ring with a hash table
 * over it. */
struct policy_past {
	uint64_t *key;                     /* 0: empty */
	uint64_t *note;                    /* what the policy wants to know again */
	uint32_t *bucket, *chain;
	uint32_t slots, at, mask;
};

struct policy_ops {
	const char *name;
	bool tails_first;                  /* no block goes before one that comes after it */
	int (*open)(struct policy *p);     /* makes p->self; NULL: nothing to do */
	void (*close)(struct policy *p);   /* p->self may be NULL, or half made */
	/* Puts a slot that is on no list on one of the policy's own. again: its key is remembered,
	 * with that note. */
	void (*insert)(struct policy *p, uint32_t slot, bool again, uint64_t note);
	void (*hit)(struct policy *p, uint32_t slot);
	uint32_t (*victim)(struct policy *p, bool (*may_go)(void *, uint32_t), void *arg);
	/* Before a slot goes for want of room. Return: the note that goes with its key. NULL: 0. */
	uint64_t (*leave)(struct policy *p, uint32_t slot);
	void (*removed)(struct policy *p, uint32_t slot);            /* before; NULL: nothing */
	/* Its parent was told, maybe once more. fresh: for the first time. NULL: nothing to do. */
	void (*linked)(struct policy *p, uint32_t slot, bool fresh);
	void (*check)(const struct policy *p);                       /* NULL: nothing to check */
	uint64_t (*bytes)(uint32_t slots);                           /* of self; NULL: 0 */
};

struct policy {
	uint32_t magic;
	const struct policy_ops *ops;
	void *self;
	struct policy_opts opts;
	struct policy_slot *slot;
	struct policy_list list[POLICY_LISTS_MAX];
	struct policy_past past;
	uint32_t count;
	uint64_t used_units;
	uint64_t gone;                     /* evicted so far */
	bool skips;                        /* policy_look_again() is called */
};

extern const struct policy_ops policy_worth_ops, policy_lru_ops, policy_s3fifo_ops;

void policy_list_push(struct policy *p, unsigned list, uint32_t slot);       /* to the back */
void policy_list_take(struct policy *p, uint32_t slot);

/* The first of the list, from the front, that may go. POLICY_NONE: none. */
uint32_t policy_list_first(struct policy *p, unsigned list, bool (*may_go)(void *, uint32_t),
			   void *arg);

/* Is this one of the policy's own, or has it a priority? */
static inline bool policy_slot_own(const struct policy *p, uint32_t slot)
{
	return p->slot[slot].list >= POLICY_LIST_OWN && p->slot[slot].list < POLICY_LISTS_MAX;
}

#endif
