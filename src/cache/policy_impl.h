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

/* Lists of the common part; a policy's own follow. */
enum { POLICY_LIST_LOW, POLICY_LIST_HIGH, POLICY_LIST_OWN };
#define POLICY_LISTS_MAX 40

struct policy_slot {
	uint64_t key;
	uint64_t touched;                  /* the policy's own clock */
	uint32_t prev, next;               /* on its list; POLICY_NONE ends it */
	uint32_t parent, child;            /* child: the first of its children */
	uint32_t older, younger;           /* the other children of its parent */
	uint32_t units;
	uint8_t list;                      /* 0xff: not held */
	uint8_t uses;                      /* the policy's own */
	uint8_t mark[2];                   /* the policy's own */
};

/* The front goes first. */
struct policy_list {
	uint32_t front, back;
	uint32_t count;
	uint64_t units;
};

/* Keys that were held, or asked about, and are no more: the last ones, as many as there are slots.
 * A ring with a hash table over it. */
struct policy_past {
	uint64_t *key;                     /* ring; 0: empty */
	uint64_t *note;                    /* what the policy wants to know again */
	uint32_t *bucket, *chain;
	uint32_t size, at, mask;
};

struct policy_ops {
	const char *name;
	bool tails_first;                  /* no block goes before one that comes after it */
	int (*open)(struct policy *p);     /* takes p->self; NULL: nothing to do */
	void (*close)(struct policy *p);
	/* Puts a slot that is on no list on one of the policy's own. */
	void (*insert)(struct policy *p, uint32_t slot, bool again, uint64_t note);
	void (*hit)(struct policy *p, uint32_t slot);
	uint32_t (*victim)(struct policy *p, bool (*may_go)(void *, uint32_t), void *arg);
	/* Before a victim leaves its list. Return: the note that goes with its key. NULL: none. */
	uint64_t (*leave)(struct policy *p, uint32_t slot);
	void (*linked)(struct policy *p, uint32_t slot);             /* NULL: nothing to do */
	void (*check)(const struct policy *p);
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
};

extern const struct policy_ops policy_lru_ops, policy_s3fifo_ops;

void policy_list_push(struct policy *p, unsigned list, uint32_t slot);       /* to the back */
void policy_list_push_front(struct policy *p, unsigned list, uint32_t slot);
void policy_list_take(struct policy *p, uint32_t slot);

/* The first of the list, from the front, that may go. POLICY_NONE: none. */
uint32_t policy_list_first(const struct policy *p, unsigned list,
			   bool (*may_go)(void *, uint32_t), void *arg);

void policy_past_add(struct policy *p, uint64_t key, uint64_t note);
/* Takes a key out. False: it is not remembered. */
bool policy_past_take(struct policy *p, uint64_t key, uint64_t *note);

#endif
