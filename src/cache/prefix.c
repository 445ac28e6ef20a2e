/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix tree: a table of nodes by identity, the tree over them, and what each knows about its
 * block. prefix_inner.h has the layout and the invariants.
 *
 * The table is an array of buckets with chains through the nodes: identities are SHA-256, so any of
 * their bits choose the bucket; at two buckets a node a chain has 1.25 nodes. A lookup is two cache
 * lines far apart, so 128 of them one after another would be 256 waits for memory; prefix_at_many()
 * fetches those of 32 identities before it looks at the first.
 *
 * Forgetting takes leaves only, from the end of a list in order of use. Only the last block of a
 * sequence moves on that list: those before it are no leaves, and get their place when they become
 * leaves, by the stamp that says whether they were used as a last block since.
 */
#include "cache/prefix_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "cache/tier.h"

#define PREFIX_TRIES 64                    /* held leaves passed over to find one to forget */

/* --- memory ----------------------------------------------------------------------------------- */

static uint32_t buckets_for(uint32_t blocks)
{
	uint32_t n = 64;

	while (n < blocks)
		n *= 2;
	return n * 2;
}

static uint64_t huge_up(uint64_t bytes)
{
	return bytes_round_up(bytes, 2 * MiB);
}

uint64_t prefix_memory_bytes(uint32_t blocks)
{
	uint64_t nodes = (uint64_t)blocks + 1;

	return huge_up(buckets_for(blocks) * sizeof(uint32_t)) +
	       huge_up(nodes * sizeof(struct node)) +
	       huge_up(nodes * sizeof(struct node_rest)) +
	       blocks * sizeof(struct heap_node *);
}

struct prefix_opts prefix_opts_of(const struct kvof_cache_opts *c)
{
	bool deep = c->target != NULL || c->target_count > 0 || c->flash_count > 0;
	struct prefix_opts opts = {
		.blocks = PREFIX_BLOCKS,
		.presence_ns = c->presence_ns != 0 ? c->presence_ns : 30 * NS_PER_S,
	};
	uint64_t most = c->dram_bytes / (4 * KiB);     /* no block takes less of DRAM */

	if (!deep && most < PREFIX_BLOCKS)
		opts.blocks = most < PREFIX_BLOCKS_MIN ? PREFIX_BLOCKS_MIN : (uint32_t)most;
	if (c->index_blocks != 0)
		opts.blocks = c->index_blocks;
	return opts;
}

/* One mapping, each table from a huge page on: a match touches memory all over, and with small
 * pages each line would cost a walk through the page tables as well. */
static int tables_map(struct prefix *p)
{
	uint64_t buckets = (uint64_t)buckets_for(p->blocks), nodes = (uint64_t)p->blocks + 1;
	uint64_t node_at = huge_up(buckets * sizeof(uint32_t));
	uint64_t rest_at = node_at + huge_up(nodes * sizeof(struct node));
	uint64_t bytes = rest_at + huge_up(nodes * sizeof(struct node_rest));
	uint8_t *base;

	p->map_bytes = bytes + 2 * MiB;
	p->map = mmap(NULL, p->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	if (p->map == MAP_FAILED)
		return -ENOMEM;
	madvise(p->map, p->map_bytes, MADV_HUGEPAGE);  /* small pages work as well, slower */
	base = (uint8_t *)p->map + (huge_up((uintptr_t)p->map) - (uintptr_t)p->map);
	p->bucket_mask = (uint32_t)(buckets - 1);
	p->bucket = (void *)base;
	p->node = (void *)(base + node_at);
	p->rest = (void *)(base + rest_at);
	return 0;
}

int prefix_open(const struct prefix_opts *opts, struct prefix **out)
{
	struct prefix *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return -ENOMEM;
	must(opts->blocks >= PREFIX_BLOCKS_MIN && opts->blocks <= PREFIX_BLOCKS_MAX);
	OBJ_INIT(p, PREFIX_MAGIC);
	p->blocks = opts->blocks;
	p->presence_ns = opts->presence_ns;
	p->fresh = 1;
	p->map = MAP_FAILED;
	if (tables_map(p) != 0 || heap_reserve(&p->over, p->blocks / 2) != 0) {
		prefix_close(&p);
		return -ENOMEM;
	}
	*out = p;
	return 0;
}

void prefix_close(struct prefix **pp)
{
	struct prefix *p;
	struct heap_node *n;

	OBJ_TAKE(p, pp, PREFIX_MAGIC);
	while ((n = heap_first(&p->over)) != NULL)
		heap_remove(&p->over, n);
	heap_free(&p->over);
	if (p->map != MAP_FAILED)
		munmap(p->map, p->map_bytes);
	free(p);
}

/* --- time ------------------------------------------------------------------------------------- */

uint32_t prefix_tick_of(const struct prefix *p, uint64_t now_ns)
{
	uint64_t t = now_ns <= p->base_ns ? 0 : (now_ns - p->base_ns) >> PREFIX_TICK_SHIFT;

	return t < UINT32_MAX ? (uint32_t)t : UINT32_MAX;
}

static uint32_t tick_less(uint32_t tick, uint32_t by)
{
	return tick > by ? tick - by : 0;
}

static void ticks_move(struct prefix *p, uint32_t by)
{
	for (uint32_t at = 1; at < p->fresh; at++) {
		struct node *n = &p->node[at];

		n->until[0] = tick_less(n->until[0], by);
		n->until[1] = tick_less(n->until[1], by);
		n->lease = tick_less(n->lease, by);
	}
	p->now_tick = tick_less(p->now_tick, by);
	p->base_ns += (uint64_t)by << PREFIX_TICK_SHIFT;
}

/* The newest tick; moves all of them when they run out. */
static uint32_t prefix_tick(struct prefix *p, uint64_t now_ns)
{
	uint32_t t;

	OBJ_CHECK(p, PREFIX_MAGIC);
	if (!p->begun) {
		p->begun = true;
		p->base_ns = now_ns;
	}
	t = prefix_tick_of(p, now_ns);
	if (t >= PREFIX_TICK_MOVE) {
		ticks_move(p, t - 1);
		t = prefix_tick_of(p, now_ns);
	}
	if (t > p->now_tick)
		p->now_tick = t;
	return t;
}

/* --- table ------------------------------------------------------------------------------------ */

static uint32_t *bucket_of(const struct prefix *p, const struct kvof_id *id)
{
	uint32_t bits;

	memcpy(&bits, id->byte + KVOF_ID_BYTES - sizeof(bits), sizeof(bits));
	return &p->bucket[bits & p->bucket_mask];
}

static bool id_is(const struct node *n, const struct kvof_id *id)
{
	return memcmp(&n->id, id, sizeof(*id)) == 0;
}

uint32_t prefix_at(const struct prefix *p, const struct kvof_id *id)
{
	uint32_t at;

	OBJ_CHECK(p, PREFIX_MAGIC);
	at = *bucket_of(p, id);
	while (at != 0 && !id_is(&p->node[at], id))
		at = p->node[at].chain;
	return at;
}

/* Of up to PREFIX_BATCH identities at once: their lines are on the way before one is looked at. */
static void at_many(const struct prefix *p, const struct kvof_id *ids, uint32_t count, uint32_t *at)
{
	must(count <= PREFIX_BATCH);
	for (uint32_t i = 0; i < count; i++)
		__builtin_prefetch(bucket_of(p, &ids[i]));
	for (uint32_t i = 0; i < count; i++) {
		at[i] = *bucket_of(p, &ids[i]);
		__builtin_prefetch(&p->node[at[i]]);
	}
	for (uint32_t i = 0; i < count; i++)
		while (at[i] != 0 && !id_is(&p->node[at[i]], &ids[i]))
			at[i] = p->node[at[i]].chain;
}

/* --- leaves in order of use ------------------------------------------------------------------- */

static void leaf_out(struct prefix *p, uint32_t at)
{
	struct node_rest *r = &p->rest[at];

	*(r->prev != 0 ? &p->rest[r->prev].next : &p->leaf_first) = r->next;
	*(r->next != 0 ? &p->rest[r->next].prev : &p->leaf_last) = r->prev;
	r->prev = r->next = 0;
}

static void leaf_in_last(struct prefix *p, uint32_t at)
{
	p->rest[at].prev = p->leaf_last;
	p->rest[at].next = 0;
	*(p->leaf_last != 0 ? &p->rest[p->leaf_last].next : &p->leaf_first) = at;
	p->leaf_last = at;
}

static void leaf_in_first(struct prefix *p, uint32_t at)
{
	p->rest[at].prev = 0;
	p->rest[at].next = p->leaf_first;
	*(p->leaf_first != 0 ? &p->rest[p->leaf_first].prev : &p->leaf_last) = at;
	p->leaf_first = at;
}

/* Used now; what comes after it is used as well, and is on the list in its place. */
static void leaf_use(struct prefix *p, uint32_t at)
{
	if (p->node[at].children > 0)
		return;
	p->node[at].stamp = ++p->clock;
	if (p->leaf_last == at)
		return;
	leaf_out(p, at);
	leaf_in_last(p, at);
}

/* Used now as the last block of a sequence, whatever comes after it. */
static void node_use(struct prefix *p, uint32_t at)
{
	p->node[at].stamp = ++p->clock;
	leaf_use(p, at);
}

/* Nothing is known of it any more: it is the first to be forgotten. */
static void node_idle(struct prefix *p, uint32_t at)
{
	if (p->node[at].children > 0 || p->leaf_first == at)
		return;
	leaf_out(p, at);
	leaf_in_first(p, at);
}

/* --- nodes ------------------------------------------------------------------------------------ */

static void parent_leave(struct prefix *p, uint32_t at)
{
	uint32_t up = p->node[at].parent;

	p->node[at].parent = 0;
	if (up == 0)
		return;
	must(p->node[up].children > 0);
	if (--p->node[up].children > 0)
		return;
	if ((int32_t)(p->node[up].stamp - p->node[at].stamp) > 0)
		leaf_in_last(p, up);
	else
		leaf_in_first(p, up);
}

static void node_drop(struct prefix *p, uint32_t at)
{
	struct node *n = &p->node[at];
	uint32_t *link = bucket_of(p, &n->id);

	must(n->children == 0 && !node_held(n));
	while (*link != at) {
		must(*link != 0);
		link = &p->node[*link].chain;
	}
	*link = n->chain;
	leaf_out(p, at);
	parent_leave(p, at);
	*n = (struct node){.chain = p->free_first};
	p->rest[at] = (struct node_rest){0};
	p->free_first = at;
	p->count--;
}

/* Makes room for one by forgetting the leaf used longest ago that nothing holds. */
static bool node_forget(struct prefix *p)
{
	for (unsigned i = 0; i < PREFIX_TRIES && p->leaf_first != 0; i++) {
		uint32_t at = p->leaf_first;

		if (!node_held(&p->node[at]) && p->node[at].lease <= p->now_tick) {
			node_drop(p, at);
			p->stat.forgotten++;
			return true;
		}
		leaf_out(p, at);
		leaf_in_last(p, at);
	}
	return false;
}

static uint32_t node_take(struct prefix *p)
{
	uint32_t at = p->free_first;

	if (at == 0 && p->fresh <= p->blocks)
		return p->fresh++;
	if (at == 0) {
		if (!node_forget(p))
			return 0;
		at = p->free_first;
	}
	p->free_first = p->node[at].chain;
	return at;
}

uint32_t prefix_make(struct prefix *p, const struct kvof_id *id)
{
	uint32_t at = prefix_at(p, id), *bucket;

	if (at != 0)
		return at;
	at = node_take(p);
	if (at == 0)
		return 0;
	bucket = bucket_of(p, id);
	p->node[at] = (struct node){.id = *id, .chain = *bucket, .stamp = ++p->clock};
	*bucket = at;
	p->count++;
	leaf_in_last(p, at);
	return at;
}

/* --- sequence --------------------------------------------------------------------------------- */

/* Does `above` come, however far, before `at`? Only asked of a node that has children and gets a
 * parent late. */
static bool comes_after(const struct prefix *p, uint32_t at, uint32_t above)
{
	for (uint32_t steps = 0; at != 0; at = p->node[at].parent) {
		if (at == above || ++steps > p->blocks)
			return true;
	}
	return false;
}

static void node_link(struct prefix *p, uint32_t at, uint32_t up)
{
	struct node *n = &p->node[at];

	if (n->parent != 0 || up == at || up == 0)
		return;
	if (n->children > 0 && comes_after(p, up, at))
		return;
	n->parent = up;
	if (p->node[up].children++ == 0)
		leaf_out(p, up);
}

void prefix_link(struct prefix *p, struct prefix_ids ids, bool make)
{
	uint32_t up = 0;

	OBJ_CHECK(p, PREFIX_MAGIC);
	for (uint32_t i = 0; i < ids.count; i++) {
		const struct kvof_id *id = (const void *)((const char *)ids.first +
							  i * ids.stride_bytes);
		uint32_t at = make ? prefix_make(p, id) : prefix_at(p, id);

		if (at == 0)
			break;
		/* the block before may be the leaf that was forgotten to make room */
		if (up != 0 && !id_is(&p->node[up], (const void *)((const char *)id -
								   ids.stride_bytes)))
			up = 0;
		node_link(p, at, up);
		up = at;
	}
	if (up != 0)
		node_use(p, up);
}

bool prefix_parent(const struct prefix *p, const struct kvof_id *id, struct kvof_id *out)
{
	uint32_t at = prefix_at(p, id), up = at != 0 ? p->node[at].parent : 0;

	*out = up != 0 ? p->node[up].id : (struct kvof_id){{0}};
	return up != 0;
}

/* --- presence --------------------------------------------------------------------------------- */

/* Which of until[]. */
static unsigned deep_of(enum kvof_tier tier)
{
	must(tier == KVOF_TIER_REMOTE || tier == KVOF_TIER_FLASH);
	return tier == KVOF_TIER_FLASH;
}

static uint32_t node_where(const struct prefix *p, uint32_t at, uint32_t tick, uint64_t now_ns)
{
	const struct node *n = &p->node[at];
	uint32_t where = n->tiers;

	if (where == 0 || node_over(p, at, now_ns))
		return 0;
#ifdef KVOF_PLANT_PRESENCE_FOR_EVER
	return where;
#endif
	if (n->until[0] <= tick)
		where &= ~(1u << KVOF_TIER_REMOTE);
	if (n->until[1] <= tick)
		where &= ~(1u << KVOF_TIER_FLASH);
	return where;
}

void prefix_seen(struct prefix *p, enum kvof_tier tier, const struct kvof_id *id, uint64_t now_ns)
{
	struct node *n;
	uint32_t at;

	must(tier > KVOF_TIER_NONE && tier < KVOF_TIER_COUNT);
	prefix_tick(p, now_ns);
	at = prefix_make(p, id);
	if (at == 0)
		return;
	n = &p->node[at];
	n->tiers |= (uint8_t)(1u << tier);
	if (tier != KVOF_TIER_DRAM)
		n->until[deep_of(tier)] = prefix_tick_of(p, now_ns + p->presence_ns);
	leaf_use(p, at);
}

static void tier_lost(struct prefix *p, uint32_t at, enum kvof_tier tier)
{
	p->node[at].tiers &= (uint8_t)~(1u << tier);
	if (tier != KVOF_TIER_DRAM)
		p->node[at].until[deep_of(tier)] = 0;
	if (p->node[at].tiers == 0)
		node_idle(p, at);
}

void prefix_lost(struct prefix *p, enum kvof_tier tier, const struct kvof_id *id)
{
	uint32_t at = prefix_at(p, id);

	if (at == 0)
		return;
	if (tier != KVOF_TIER_DRAM && (p->node[at].tiers & 1u << tier) != 0 &&
	    p->node[at].until[deep_of(tier)] > p->now_tick)
		p->stat.wrong++;
	tier_lost(p, at, tier);
}

void prefix_gone(struct prefix *p, const struct kvof_id *id)
{
	uint32_t at = prefix_at(p, id);

	if (at == 0)
		return;
	if ((p->node[at].flags & PREFIX_OVER) == 0)
		prefix_ttl_end(p, at);
	tier_lost(p, at, KVOF_TIER_DRAM);
	tier_lost(p, at, KVOF_TIER_REMOTE);
	tier_lost(p, at, KVOF_TIER_FLASH);
}

uint32_t prefix_where(const struct prefix *p, const struct kvof_id *id, uint64_t now_ns)
{
	uint32_t at = prefix_at(p, id);

	return at != 0 ? node_where(p, at, prefix_tick_of(p, now_ns), now_ns) : 0;
}

/* Rounded up: a lease is never shorter than was promised. */
static void node_lease(struct prefix *p, uint32_t at, uint64_t until_ns)
{
	uint32_t tick = until_ns != 0 ? prefix_tick_of(p, until_ns) + 1 : 0;
	struct node *n = &p->node[at];

	if (tick == 0)
		return;
	if (n->lease <= p->now_tick)
		n->leases = 0;             /* those before have run out */
	if (n->leases < PREFIX_LEASES)
		n->leases++;
	if (tick > n->lease)
		n->lease = tick;
}

uint32_t prefix_match(struct prefix *p, const struct kvof_id *ids, uint32_t count, uint64_t now_ns,
		      uint64_t lease_until_ns)
{
	uint32_t tick = prefix_tick(p, now_ns), last = 0;

	for (uint32_t from = 0; from < count; from += PREFIX_BATCH) {
		uint32_t n = (uint32_t)bytes_min(count - from, PREFIX_BATCH), at[PREFIX_BATCH];

		at_many(p, ids + from, n, at);
		for (uint32_t i = 0; i < n; i++) {
			uint32_t where = at[i] != 0 ? node_where(p, at[i], tick, now_ns) : 0;

			if (where == 0) {
				count = from + i;
				break;
			}
			if ((where & 1u << KVOF_TIER_DRAM) != 0)
				node_lease(p, at[i], lease_until_ns);
			last = at[i];
		}
	}
	if (last != 0)
		node_use(p, last);
	return count;
}

void prefix_look(struct prefix *p, const struct kvof_id *ids, uint32_t count, uint64_t now_ns,
		 uint64_t lease_until_ns, uint8_t *where)
{
	uint32_t tick = prefix_tick(p, now_ns);

	for (uint32_t from = 0; from < count; from += PREFIX_BATCH) {
		uint32_t n = (uint32_t)bytes_min(count - from, PREFIX_BATCH), at[PREFIX_BATCH];

		at_many(p, ids + from, n, at);
		for (uint32_t i = 0; i < n; i++) {
			uint32_t is = at[i] != 0 ? node_where(p, at[i], tick, now_ns) : 0;

			where[from + i] = (uint8_t)is;
			if ((is & 1u << KVOF_TIER_DRAM) != 0)
				node_lease(p, at[i], lease_until_ns);
			if (is != 0)
				leaf_use(p, at[i]);
		}
	}
}

uint32_t prefix_leading(const struct kvof_result *results, uint32_t count)
{
	uint32_t n = 0;

	while (n < count && results[n].reason == KVOF_OK)
		n++;
	return n;
}

/* --- counters --------------------------------------------------------------------------------- */

void prefix_stat(const struct prefix *p, struct prefix_stat *out)
{
	OBJ_CHECK(p, PREFIX_MAGIC);
	*out = p->stat;
	out->blocks = p->count;
}
