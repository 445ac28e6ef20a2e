/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a block's node says about its stay: leases and pins (it stays), priority (how long), the end
 * of its life (it goes). The heap holds what has an end of life, in order of that time.
 *
 *   no TTL    prefix_hint()           TTL: served until at_ns
 *   TTL       prefix_over_take()      over: not served; the caller deletes it everywhere
 *   over      prefix_over_done()      no TTL, nothing known
 *   over      prefix_over_again()     over, and on the heap to be taken again
 *   over      prefix_renew()          no TTL: somebody saves it anew
 */
#include "cache/prefix_inner.h"

#include <errno.h>

#include "base/bytes.h"

void prefix_ttl_end(struct prefix *p, uint32_t at)
{
	bool held = node_held(&p->node[at]);

	if ((p->node[at].flags & PREFIX_TTL) != 0)
		heap_remove(&p->over, &p->rest[at].over);
	p->node[at].flags = 0;
	node_hold(p, at, held);
}

/* May one more block be held for good? */
static bool room_for(const struct prefix *p, uint32_t at)
{
	return (at != 0 && node_held(&p->node[at])) || p->held < p->blocks / 2;
}

/* --- pins ------------------------------------------------------------------------------------- */

static int pin_one(struct prefix *p, const struct kvof_id *id)
{
	uint32_t at = prefix_at(p, id);
	struct node *n;
	bool held;

	if (!room_for(p, at))
		return -EBUSY;
	at = prefix_make(p, id);
	if (at == 0 || p->node[at].pins == UINT16_MAX)
		return -EBUSY;
	n = &p->node[at];
	held = node_held(n);
	p->stat.pinned += n->pins++ == 0;
	node_hold(p, at, held);
	return 0;
}

static int unpin_one(struct prefix *p, const struct kvof_id *id)
{
	uint32_t at = prefix_at(p, id);
	struct node *n = &p->node[at];

	if (at == 0 || n->pins == 0)
		return -EINVAL;
	p->stat.pinned -= --n->pins == 0;
	node_hold(p, at, true);
	return 0;
}

int prefix_pin(struct prefix *p, const struct kvof_id *ids, uint32_t count, bool on)
{
	int rc = 0;

	for (uint32_t i = 0; i < count; i++) {
		int one = on ? pin_one(p, &ids[i]) : unpin_one(p, &ids[i]);

		if (one == 0)
			continue;
		rc = one;
		if (!on)
			continue;
		while (i-- > 0)
			must(unpin_one(p, &ids[i]) == 0);
		break;
	}
	return rc;
}

bool prefix_pinned(const struct prefix *p, const struct kvof_id *id)
{
	uint32_t at = prefix_at(p, id);

	return at != 0 && p->node[at].pins > 0;
}

uint32_t prefix_pinned_some(const struct prefix *p, uint32_t *at, uint32_t nodes,
			    struct kvof_id *out)
{
	uint32_t n = 0, i = *at + 1;

	for (; i < p->fresh && nodes > 0; i++, nodes--)
		if (p->node[i].pins > 0)
			out[n++] = p->node[i].id;
	*at = i < p->fresh ? i - 1 : 0;
	return n;
}

uint32_t prefix_nodes(const struct prefix *p)
{
	return p->fresh;
}

/* --- leases ----------------------------------------------------------------------------------- */

void prefix_unlease(struct prefix *p, const struct kvof_id *id)
{
	uint32_t at = prefix_at(p, id);

	if (at == 0 || p->node[at].leases == 0 || p->node[at].leases == PREFIX_LEASES)
		return;
	if (--p->node[at].leases == 0)
		p->node[at].lease = 0;
}

bool prefix_held(const struct prefix *p, const struct kvof_id *id, uint64_t now_ns)
{
	uint32_t at = prefix_at(p, id);

	if (at == 0)
		return false;
#ifdef KVOF_PLANT_LEASE_NOT_HONOURED
	return p->node[at].pins > 0;
#endif
#ifdef KVOF_PLANT_PIN_NOT_HONOURED
	return p->node[at].lease > prefix_tick_of(p, now_ns);
#endif
	return p->node[at].pins > 0 || p->node[at].lease > prefix_tick_of(p, now_ns);
}

/* --- hints ------------------------------------------------------------------------------------ */

static uint64_t end_ns(uint64_t now_ns, uint64_t ttl_ns)
{
	return ttl_ns > UINT64_MAX - 1 - now_ns ? UINT64_MAX - 1 : now_ns + ttl_ns;
}

static void ttl_set(struct prefix *p, uint32_t at, uint64_t at_ns, bool over)
{
	bool held = node_held(&p->node[at]);

	if ((p->node[at].flags & PREFIX_TTL) != 0)
		heap_remove(&p->over, &p->rest[at].over);
	p->rest[at].over.at_ns = at_ns;
	heap_add(&p->over, &p->rest[at].over);
	p->node[at].flags = over ? PREFIX_TTL | PREFIX_OVER : PREFIX_TTL;
	node_hold(p, at, held);
}

int prefix_hint(struct prefix *p, const struct kvof_id *ids, uint32_t count,
		const struct kvof_hint *hint, uint64_t now_ns)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t at = prefix_at(p, &ids[i]);

		if (hint->ttl_ns != 0 && !room_for(p, at))
			return -EBUSY;
		if (at == 0 && hint->ttl_ns == 0 && hint->priority == 0)
			continue;
		at = prefix_make(p, &ids[i]);
		if (at == 0)
			return -EBUSY;
		p->rest[at].priority = (int8_t)hint->priority;
		/* what is over stays over: its deletion is under way */
		if ((p->node[at].flags & PREFIX_OVER) != 0)
			continue;
		if (hint->ttl_ns != 0)
			ttl_set(p, at, end_ns(now_ns, hint->ttl_ns), false);
		else
			prefix_ttl_end(p, at);
	}
	return 0;
}

int32_t prefix_priority(const struct prefix *p, const struct kvof_id *id)
{
	uint32_t at = prefix_at(p, id);

	return at != 0 ? p->rest[at].priority : 0;
}

/* --- ends of life ----------------------------------------------------------------------------- */

bool prefix_over(const struct prefix *p, const struct kvof_id *id, uint64_t now_ns)
{
	uint32_t at = prefix_at(p, id);

#ifdef KVOF_PLANT_TTL_SERVED
	return false;
#endif
	return at != 0 && node_over(p, at, now_ns);
}

void prefix_renew(struct prefix *p, const struct kvof_id *id, uint64_t now_ns)
{
	uint32_t at = prefix_at(p, id);

	if (at != 0 && node_over(p, at, now_ns))
		prefix_ttl_end(p, at);
}

uint64_t prefix_over_at(const struct prefix *p)
{
	const struct heap_node *n = heap_first(&p->over);

	return n != NULL ? n->at_ns : UINT64_MAX;
}

static uint32_t over_owner(const struct prefix *p, struct heap_node *n)
{
	return (uint32_t)(container_of(n, struct node_rest, over) - p->rest);
}

bool prefix_over_take(struct prefix *p, uint64_t now_ns, struct kvof_id *out)
{
	struct heap_node *n = heap_first(&p->over);
	uint32_t at;

	if (n == NULL || n->at_ns > now_ns)
		return false;
	at = over_owner(p, n);
	must((p->node[at].flags & PREFIX_TTL) != 0);
	heap_remove(&p->over, n);
	p->stat.over += (p->node[at].flags & PREFIX_OVER) == 0;
	p->node[at].flags = PREFIX_OVER;
	*out = p->node[at].id;
	return true;
}

void prefix_over_done(struct prefix *p, const struct kvof_id *id)
{
	uint32_t at = prefix_at(p, id);

	if (at == 0 || (p->node[at].flags & (PREFIX_OVER | PREFIX_TTL)) != PREFIX_OVER)
		return;
	prefix_ttl_end(p, at);
	prefix_gone(p, id);
}

void prefix_over_again(struct prefix *p, const struct kvof_id *id, uint64_t at_ns)
{
	uint32_t at = prefix_at(p, id);

	if (at != 0 && (p->node[at].flags & (PREFIX_OVER | PREFIX_TTL)) == PREFIX_OVER)
		ttl_set(p, at, at_ns, true);
}

/* --- for tests -------------------------------------------------------------------------------- */

static uint32_t check_leaves(const struct prefix *p)
{
	uint32_t n = 0, before = 0;

	for (uint32_t at = p->leaf_first; at != 0; at = p->rest[at].next) {
		must(p->rest[at].prev == before && p->node[at].children == 0);
		before = at;
		must(++n <= p->count);
	}
	must(p->leaf_last == before);
	return n;
}

static void check_node(const struct prefix *p, uint32_t at)
{
	const struct node *n = &p->node[at];
	uint32_t steps = 0;

	must(prefix_at(p, &n->id) == at);
	must((p->rest[at].over.index != 0) == ((n->flags & PREFIX_TTL) != 0));
	for (uint32_t up = n->parent; up != 0; up = p->node[up].parent) {
		must(p->node[up].children > 0);
		must(++steps <= p->count);
	}
}

void prefix_check(const struct prefix *p)
{
	uint32_t nodes = 0, leaves = 0, held = 0, pinned = 0;
	uint64_t children = 0, links = 0;

	for (uint32_t b = 0; b <= p->bucket_mask; b++) {
		for (uint32_t at = p->bucket[b]; at != 0; at = p->node[at].chain) {
			const struct node *n = &p->node[at];

			check_node(p, at);
			leaves += n->children == 0;
			children += n->children;
			links += n->parent != 0;
			held += node_held(n);
			pinned += n->pins > 0;
			must(++nodes <= p->count);
		}
	}
	must(nodes == p->count && children == links);
	must(leaves == check_leaves(p));
	must(held == p->held && pinned == p->stat.pinned);
	must(held <= p->blocks / 2 && p->over.count <= held);
}
