/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the policies: slots, lists, links between blocks, the memory of keys. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "cache/policy_impl.h"

#define POLICY_AWAY UINT16_MAX
#define POLICY_ROW 64                      /* refused one after another, to be passed over */
#define POLICY_UP_MAX 4096u                /* ancestors looked at before a link */

static const struct policy_ops *const policies[] = {
	&policy_worth_ops, &policy_lru_ops, &policy_s3fifo_ops,
};

const char *const *policy_names(void)
{
	static const char *names[ARRAY_COUNT(policies) + 1];

	for (size_t i = 0; i < ARRAY_COUNT(policies); i++)
		names[i] = policies[i]->name;
	return names;
}

const char *policy_name(const struct policy *p)
{
	OBJ_CHECK(p, POLICY_MAGIC);
	return p->ops->name;
}

static const struct policy_ops *policy_find(const char *name)
{
	if (name == NULL)
		return policies[0];
	for (size_t i = 0; i < ARRAY_COUNT(policies); i++)
		if (strcmp(policies[i]->name, name) == 0)
			return policies[i];
	return NULL;
}

/* --- lists ---------------------------------------------------------------- */

static void list_joined(struct policy *p, unsigned list, uint32_t slot)
{
	struct policy_list *l = &p->list[list];
	struct policy_slot *s = &p->slot[slot];

	s->list = (uint16_t)list;
	l->count++;
	l->units += s->units;
}

void policy_list_push(struct policy *p, unsigned list, uint32_t slot)
{
	struct policy_list *l = &p->list[list];
	struct policy_slot *s = &p->slot[slot];

	must(s->list == POLICY_AWAY && list < POLICY_LISTS_MAX);
	s->prev = l->back;
	s->next = POLICY_NONE;
	if (l->back == POLICY_NONE)
		l->front = slot;
	else
		p->slot[l->back].next = slot;
	l->back = slot;
	list_joined(p, list, slot);
}

/* Onto the list of at, in front of it. */
static void policy_list_push_before(struct policy *p, uint32_t at, uint32_t slot)
{
	struct policy_slot *s = &p->slot[slot], *behind = &p->slot[at];

	must(s->list == POLICY_AWAY && behind->list < POLICY_LISTS_MAX);
	s->next = at;
	s->prev = behind->prev;
	if (behind->prev == POLICY_NONE)
		p->list[behind->list].front = slot;
	else
		p->slot[behind->prev].next = slot;
	behind->prev = slot;
	list_joined(p, behind->list, slot);
}

void policy_list_take(struct policy *p, uint32_t slot)
{
	struct policy_slot *s = &p->slot[slot];
	struct policy_list *l;

	must(s->list < POLICY_LISTS_MAX);
	l = &p->list[s->list];
	if (s->prev == POLICY_NONE)
		l->front = s->next;
	else
		p->slot[s->prev].next = s->next;
	if (s->next == POLICY_NONE)
		l->back = s->prev;
	else
		p->slot[s->next].prev = s->prev;
	if (l->skip == slot)
		l->skip = s->prev;
	must(l->count > 0 && l->units >= s->units);
	l->count--;
	l->units -= s->units;
	s->list = POLICY_AWAY;
}

uint32_t policy_list_first(struct policy *p, unsigned list, bool (*may_go)(void *, uint32_t),
			   void *arg)
{
	struct policy_list *l = &p->list[list];
	uint32_t refused = l->skip, at = refused != POLICY_NONE ? p->slot[refused].next : l->front;
	unsigned row = 0;

	if (may_go == NULL)
		return l->front;
	while (at != POLICY_NONE && !may_go(arg, at)) {
		refused = at;
		at = p->slot[at].next;
		row++;
	}
	if (p->skips && row >= POLICY_ROW)
		l->skip = refused;
	return at;
}

void policy_look_again(struct policy *p)
{
	OBJ_CHECK(p, POLICY_MAGIC);
	p->skips = true;
	for (unsigned i = 0; i < POLICY_LISTS_MAX; i++)
		p->list[i].skip = POLICY_NONE;
}

/* --- keys that are gone --------------------------------------------------- */

static uint32_t past_find(const struct policy_past *past, uint64_t key)
{
	uint32_t at = past->bucket[key & past->mask];

	while (at != POLICY_NONE && past->key[at] != key)
		at = past->chain[at];
	return at;
}

static void past_drop(struct policy_past *past, uint32_t index)
{
	uint32_t *at = &past->bucket[past->key[index] & past->mask];

	while (*at != index) {
		must(*at != POLICY_NONE);
		at = &past->chain[*at];
	}
	*at = past->chain[index];
	past->key[index] = 0;
}

static uint64_t past_key(uint64_t key)
{
	return key == 0 ? 1 : key;
}

static void past_add(struct policy *p, uint64_t key, uint64_t note)
{
	struct policy_past *past = &p->past;
	uint32_t at = past_find(past, past_key(key)), *bucket;

	if (at != POLICY_NONE)
		past_drop(past, at);
	at = past->at;
	past->at = at + 1 < past->slots ? at + 1 : 0;
	if (past->key[at] != 0)
		past_drop(past, at);
	past->key[at] = past_key(key);
	past->note[at] = note;
	bucket = &past->bucket[past->key[at] & past->mask];
	past->chain[at] = *bucket;
	*bucket = at;
}

static bool past_take(struct policy *p, uint64_t key, uint64_t *note)
{
	uint32_t at = past_find(&p->past, past_key(key));

	if (at == POLICY_NONE)
		return false;
	*note = p->past.note[at];
	past_drop(&p->past, at);
	return true;
}

/* --- open and close ------------------------------------------------------- */

/* Keys remembered: twice as many as are held, and never few. */
static uint32_t past_slots(uint32_t slots)
{
	return slots < POLICY_PAST_MIN / 2 ? POLICY_PAST_MIN : 2 * slots;
}

static uint32_t past_buckets(uint32_t slots)
{
	uint32_t n = POLICY_PAST_MIN;

	while (n < past_slots(slots))
		n *= 2;
	return n;
}

uint64_t policy_memory_bytes(const char *name, uint32_t slots)
{
	const struct policy_ops *ops = policy_find(name);

	return sizeof(struct policy) + (uint64_t)slots * sizeof(struct policy_slot) +
	       past_slots(slots) * (2 * sizeof(uint64_t) + sizeof(uint32_t)) +
	       past_buckets(slots) * sizeof(uint32_t) +
	       (ops != NULL && ops->bytes != NULL ? ops->bytes(slots) : 0);
}

static bool past_open(struct policy_past *past, uint32_t slots)
{
	uint32_t buckets = past_buckets(slots);

	past->slots = past_slots(slots);
	past->mask = buckets - 1;
	past->key = calloc(past->slots, sizeof(*past->key));
	past->note = calloc(past->slots, sizeof(*past->note));
	past->chain = calloc(past->slots, sizeof(*past->chain));
	past->bucket = malloc(buckets * sizeof(*past->bucket));
	if (past->key == NULL || past->note == NULL || past->chain == NULL || past->bucket == NULL)
		return false;
	memset(past->bucket, 0xff, buckets * sizeof(*past->bucket));
	return true;
}

static void policy_free(struct policy *p)
{
	if (p->ops->close != NULL)
		p->ops->close(p);
	free(p->slot);
	free(p->past.key);
	free(p->past.note);
	free(p->past.chain);
	free(p->past.bucket);
	p->magic = 0;
	free(p);
}

int policy_open(const char *name, const struct policy_opts *opts, struct policy **out)
{
	const struct policy_ops *ops = policy_find(name);
	struct policy *p;
	int rc;

	if (ops == NULL || opts->slots == 0 || opts->slots > POLICY_SLOTS_MAX ||
	    opts->capacity_units == 0)
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		return -ENOMEM;
	OBJ_INIT(p, POLICY_MAGIC);
	p->ops = ops;
	p->opts = *opts;
	p->slot = calloc(opts->slots, sizeof(*p->slot));
	for (unsigned i = 0; i < POLICY_LISTS_MAX; i++)
		p->list[i] = (struct policy_list){POLICY_NONE, POLICY_NONE, POLICY_NONE, 0, 0};
	rc = p->slot == NULL || !past_open(&p->past, opts->slots) ? -ENOMEM : 0;
	if (rc == 0 && ops->open != NULL)
		rc = ops->open(p);
	if (rc != 0) {
		policy_free(p);
		return rc;
	}
	for (uint32_t i = 0; i < opts->slots; i++)
		p->slot[i].list = POLICY_AWAY;
	*out = p;
	return 0;
}

void policy_close(struct policy **policy)
{
	struct policy *p;

	OBJ_TAKE(p, policy, POLICY_MAGIC);
	policy_free(p);
}

/* --- links ---------------------------------------------------------------- */

static struct policy_slot *slot_held(const struct policy *p, uint32_t slot)
{
	OBJ_CHECK(p, POLICY_MAGIC);
	must(slot < p->opts.slots && p->slot[slot].list != POLICY_AWAY);
	return &p->slot[slot];
}

/* True also when it would take too long to find out. */
static bool link_circles(const struct policy *p, uint32_t slot, uint32_t parent)
{
	if (p->slot[slot].child == POLICY_NONE)
		return slot == parent;
	for (unsigned i = 0; i < POLICY_UP_MAX; i++) {
		if (parent == POLICY_NONE)
			return false;
		if (parent == slot)
			return true;
		parent = p->slot[parent].parent;
	}
	return true;
}

static void link_cut(struct policy *p, uint32_t slot)
{
	struct policy_slot *s = &p->slot[slot];

	if (s->parent == POLICY_NONE)
		return;
	if (s->older == POLICY_NONE)
		p->slot[s->parent].child = s->younger;
	else
		p->slot[s->older].younger = s->younger;
	if (s->younger != POLICY_NONE)
		p->slot[s->younger].older = s->older;
	s->parent = s->older = s->younger = POLICY_NONE;
}

/* Its children become heads of their own. */
static void links_cut(struct policy *p, uint32_t slot)
{
	link_cut(p, slot);
	while (p->slot[slot].child != POLICY_NONE)
		link_cut(p, p->slot[slot].child);
}

static bool link_set(struct policy *p, uint32_t slot, uint32_t parent)
{
	struct policy_slot *s = &p->slot[slot], *above;

	if (s->parent == parent || parent == POLICY_NONE || link_circles(p, slot, parent))
		return false;
	above = slot_held(p, parent);
	link_cut(p, slot);
	s->parent = parent;
	s->older = POLICY_NONE;
	s->younger = above->child;
	if (above->child != POLICY_NONE)
		p->slot[above->child].older = slot;
	above->child = slot;
	return true;
}

/* What is before a block that goes after others goes after them too. */
static void heads_raise(struct policy *p, uint32_t slot)
{
	uint32_t at = p->slot[slot].parent;

	if (!p->ops->tails_first || p->slot[slot].list != POLICY_LIST_HIGH)
		return;
	while (at != POLICY_NONE && p->slot[at].list != POLICY_LIST_HIGH) {
		policy_list_take(p, at);
		policy_list_push(p, POLICY_LIST_HIGH, at);
		at = p->slot[at].parent;
	}
}

static void link_tell(struct policy *p, uint32_t slot, bool fresh)
{
	heads_raise(p, slot);
	if (p->ops->linked != NULL && p->slot[slot].parent != POLICY_NONE)
		p->ops->linked(p, slot, fresh);
}

void policy_link(struct policy *p, uint32_t slot, uint32_t parent)
{
	(void)slot_held(p, slot);
	if (parent == POLICY_NONE)
		link_cut(p, slot);
	else
		link_tell(p, slot, link_set(p, slot, parent));
}

/* --- blocks come and go --------------------------------------------------- */

bool policy_admit(struct policy *p, uint64_t key, uint32_t units)
{
	OBJ_CHECK(p, POLICY_MAGIC);
	if (p->used_units + units <= p->opts.capacity_units ||
	    past_find(&p->past, past_key(key)) != POLICY_NONE)
		return true;
	past_add(p, key, 0);
#ifdef KVOF_PLANT_POLICY_ADMITS_ALL
	return true;
#endif
	return false;
}

void policy_insert(struct policy *p, uint32_t slot, const struct policy_item *item)
{
	struct policy_slot *s = &p->slot[slot];
	uint64_t note = 0;
	bool again;

	OBJ_CHECK(p, POLICY_MAGIC);
	must(slot < p->opts.slots && s->list == POLICY_AWAY && item->units > 0);
	*s = (struct policy_slot){.key = item->key, .units = item->units, .list = POLICY_AWAY,
		.prev = POLICY_NONE, .next = POLICY_NONE, .parent = POLICY_NONE,
		.child = POLICY_NONE, .older = POLICY_NONE, .younger = POLICY_NONE};
	again = past_take(p, item->key, &note);
	if (item->priority != 0)
		policy_list_push(p, item->priority < 0 ? POLICY_LIST_LOW : POLICY_LIST_HIGH, slot);
	else
		p->ops->insert(p, slot, again, note);
	must(s->list != POLICY_AWAY);
	if (item->parent != POLICY_NONE)
		link_tell(p, slot, link_set(p, slot, item->parent));
	p->count++;
	p->used_units += s->units;
}

void policy_hit(struct policy *p, uint32_t slot)
{
	unsigned list = slot_held(p, slot)->list;

	if (list >= POLICY_LIST_OWN) {
		p->ops->hit(p, slot);
		return;
	}
	policy_list_take(p, slot);
	policy_list_push(p, list, slot);
}

void policy_priority(struct policy *p, uint32_t slot, int32_t priority)
{
	unsigned list = slot_held(p, slot)->list, wanted = priority < 0 ? POLICY_LIST_LOW :
		priority > 0 ? POLICY_LIST_HIGH : POLICY_LIST_OWN;

	if (wanted == (list < POLICY_LIST_OWN ? list : POLICY_LIST_OWN))
		return;
	policy_list_take(p, slot);
	if (wanted == POLICY_LIST_OWN)
		p->ops->insert(p, slot, true, 0);
	else
		policy_list_push(p, wanted, slot);
	heads_raise(p, slot);
}

/*
 * The last block of a sequence through slot, as far as blocks may go. The blocks on the way come
 * before slot on its list, last one first: they are worth nothing without it, and the way is not
 * walked again for each of them.
 */
static uint32_t victim_tail(struct policy *p, uint32_t slot, bool (*may_go)(void *, uint32_t),
			    void *arg)
{
	unsigned list = p->slot[slot].list;

#ifdef KVOF_PLANT_POLICY_HEAD_FIRST
	while (p->slot[slot].parent != POLICY_NONE &&
	       (may_go == NULL || may_go(arg, p->slot[slot].parent)))
		slot = p->slot[slot].parent;
	return slot;
#endif
	for (;;) {
		uint32_t at = p->slot[slot].child;

		while (at != POLICY_NONE && may_go != NULL && !may_go(arg, at))
			at = p->slot[at].younger;
		if (at == POLICY_NONE)
			return slot;
		if (p->slot[slot].prev != at) {
			policy_list_take(p, at);
			policy_list_push_before(p, slot, at);
		}
		must(p->slot[at].list == list);
		slot = at;
	}
}

uint32_t policy_victim(struct policy *p, bool (*may_go)(void *arg, uint32_t slot), void *arg)
{
	uint32_t slot;

	OBJ_CHECK(p, POLICY_MAGIC);
	slot = policy_list_first(p, POLICY_LIST_LOW, may_go, arg);
	if (slot == POLICY_NONE)
		slot = p->ops->victim(p, may_go, arg);
	if (slot == POLICY_NONE)
		slot = policy_list_first(p, POLICY_LIST_HIGH, may_go, arg);
	if (slot != POLICY_NONE && p->ops->tails_first)
		slot = victim_tail(p, slot, may_go, arg);
	must(slot == POLICY_NONE || may_go == NULL || may_go(arg, slot));
	return slot;
}

static void policy_leave(struct policy *p, uint32_t slot)
{
	struct policy_slot *s = &p->slot[slot];

	links_cut(p, slot);
	policy_list_take(p, slot);
	must(p->count > 0 && p->used_units >= s->units);
	p->count--;
	p->used_units -= s->units;
}

void policy_evict(struct policy *p, uint32_t slot)
{
	struct policy_slot *s = slot_held(p, slot);
	uint64_t note = 0;

	if (p->ops->leave != NULL && policy_slot_own(p, slot))
		note = p->ops->leave(p, slot);
	past_add(p, s->key, note);
	p->gone++;
	policy_leave(p, slot);
}

void policy_remove(struct policy *p, uint32_t slot)
{
	(void)slot_held(p, slot);
	if (p->ops->removed != NULL && policy_slot_own(p, slot))
		p->ops->removed(p, slot);
	policy_leave(p, slot);
}

/* --- questions ------------------------------------------------------------ */

bool policy_held(const struct policy *p, uint32_t slot)
{
	OBJ_CHECK(p, POLICY_MAGIC);
	must(slot < p->opts.slots);
	return p->slot[slot].list != POLICY_AWAY;
}

uint32_t policy_parent(const struct policy *p, uint32_t slot)
{
	return slot_held(p, slot)->parent;
}

bool policy_tails_first(const struct policy *p)
{
	OBJ_CHECK(p, POLICY_MAGIC);
	return p->ops->tails_first;
}

uint32_t policy_count(const struct policy *p)
{
	OBJ_CHECK(p, POLICY_MAGIC);
	return p->count;
}

static void check_links(const struct policy *p, uint32_t slot)
{
	const struct policy_slot *s = &p->slot[slot];
	uint32_t at = s->child, before = POLICY_NONE;

	must(s->parent != slot);
	if (s->parent != POLICY_NONE) {
		must(p->slot[s->parent].list != POLICY_AWAY);
		must(s->older != POLICY_NONE || p->slot[s->parent].child == slot);
	}
	while (at != POLICY_NONE) {
		must(p->slot[at].parent == slot && p->slot[at].older == before);
		must(p->slot[at].list != POLICY_AWAY);
		before = at;
		at = p->slot[at].younger;
	}
}

void policy_check(const struct policy *p)
{
	uint64_t units = 0;
	uint32_t count = 0, held = 0;

	OBJ_CHECK(p, POLICY_MAGIC);
	for (unsigned i = 0; i < POLICY_LISTS_MAX; i++) {
		const struct policy_list *l = &p->list[i];
		uint64_t list_units = 0;
		uint32_t list_count = 0, before = POLICY_NONE;

		for (uint32_t at = l->front; at != POLICY_NONE; at = p->slot[at].next) {
			must(p->slot[at].list == i && p->slot[at].prev == before);
			check_links(p, at);
			list_units += p->slot[at].units;
			list_count++;
			before = at;
		}
		must(l->back == before && l->count == list_count && l->units == list_units);
		count += list_count;
		units += list_units;
	}
	for (uint32_t i = 0; i < p->opts.slots; i++)
		held += p->slot[i].list != POLICY_AWAY;
	must(count == p->count && held == count && units == p->used_units);
	if (p->ops->check != NULL)
		p->ops->check(p);
}
