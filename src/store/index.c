/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: see index.h for its three parts.
 *
 * Invariants (index_check):
 *  - an entry is used if and only if its key length is not 0; used entries are in the table once,
 *    in the order once;
 *  - the table's probe chains have no gap: a key is found between its home slot and the first empty
 *    one;
 *  - leaves are in key order, none is empty, and two neighbours hold more than one leaf can, so
 *    that the number of leaves stays below 2 * keys / LEAF_KEYS + 2.
 *
 * Owned by one loop.
 */
#include "store/index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/hash.h"
#include "base/must.h"

#define INDEX_MAGIC 0x1d9e5u
#define LEAF_KEYS 512u
#define VALUE_BITS 27
#define SEQUENCE_SHIFT 12                    /* above key length (5 bits) and flags (7 bits) */
#define FLAGS_SHIFT 5
#define SORT_BITS_MAX 20
#define SORT_BUCKET_KEYS 8
#define SORT_INSERTION_MAX 64u
#define HASH_SEED UINT64_C(0x6b766f66)

struct entry {
	uint8_t key[KV_KEY_BYTES_MAX];
	uint64_t word;                       /* sequence << 12 | flags << 5 | key length */
	uint32_t size;                       /* drive << 27 | value bytes */
	uint32_t block;                      /* free entries: the next free one */
};
_Static_assert(sizeof(struct entry) == 32, "an entry is half a cache line");

struct leaf {
	uint32_t count;
	uint32_t slot[LEAF_KEYS];
};

/* One line of the directory: which leaf, and the first 8 bytes of its first key as a number. */
struct line {
	uint64_t head;
	uint32_t leaf;
};

struct index {
	uint32_t magic;
	uint32_t keys_max, count;
	uint32_t fresh, free;                /* first never used; chain of freed ones */
	uint32_t table_slots;
	uint32_t entry_mask;                 /* in a slot; the bits above are of the key's hash */
	bool sorted;
	struct entry *pool;
	uint32_t *table;
	struct leaf *leaf;
	struct line *line;
	uint32_t leaf_max, leaf_fresh, leaf_free, line_count;
};

static struct kv_key entry_key(const struct entry *e)
{
	struct kv_key key = {.len = (uint8_t)(e->word & 31)};

	memcpy(key.byte, e->key, sizeof(key.byte));
	return key;
}

static uint64_t key_head(const uint8_t *key)
{
	uint64_t x;

	memcpy(&x, key, sizeof(x));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	x = __builtin_bswap64(x);            /* the compiler does not see it in a loop */
#endif
	return x;
}

static int entry_compare(const struct entry *e, const struct kv_key *key)
{
	int order = memcmp(e->key, key->byte, KV_KEY_BYTES_MAX);

	return order != 0 ? order : (int)(e->word & 31) - (int)key->len;
}

/* --- memory -------------------- */

static void *take(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	(void)madvise(at, bytes, MADV_HUGEPAGE);     /* a lookup then misses one cache less */
	return at;
}

static uint64_t pool_bytes(const struct index *ix)
{
	return (uint64_t)ix->keys_max * sizeof(struct entry);
}

static uint64_t table_bytes(const struct index *ix)
{
	return (uint64_t)ix->table_slots * sizeof(uint32_t);
}

static uint64_t leaf_bytes(const struct index *ix)
{
	return (uint64_t)ix->leaf_max * sizeof(struct leaf);
}

static uint64_t line_bytes(const struct index *ix)
{
	return (uint64_t)ix->leaf_max * sizeof(struct line);
}

uint64_t index_bytes(const struct index *ix)
{
	return pool_bytes(ix) + table_bytes(ix) + leaf_bytes(ix) + line_bytes(ix);
}

int index_open(uint32_t keys_max, struct index **out)
{
	struct index *ix = calloc(1, sizeof(*ix));

	must(keys_max > 0 && keys_max <= INDEX_KEYS_LIMIT);
	if (ix == NULL)
		return -ENOMEM;
	OBJ_INIT(ix, INDEX_MAGIC);
	ix->keys_max = keys_max;
	ix->table_slots = keys_max + keys_max / 4 + 8;
	ix->leaf_max = (uint32_t)(2 * (uint64_t)keys_max / LEAF_KEYS) + 2;
	ix->free = ix->leaf_free = INDEX_NONE;
	ix->entry_mask = UINT32_MAX;
	while (ix->entry_mask >> 1 >= keys_max)      /* all ones stay out: that is an empty slot */
		ix->entry_mask >>= 1;
	ix->sorted = true;
	ix->pool = take(pool_bytes(ix));
	ix->table = take(table_bytes(ix));
	ix->leaf = take(leaf_bytes(ix));
	ix->line = take(line_bytes(ix));
	if (ix->pool == NULL || ix->table == NULL || ix->leaf == NULL || ix->line == NULL) {
		index_close(&ix);
		return -ENOMEM;
	}
	memset(ix->table, 0xff, table_bytes(ix));
	*out = ix;
	return 0;
}

void index_close(struct index **ixp)
{
	struct index *ix;

	OBJ_TAKE(ix, ixp, INDEX_MAGIC);
	if (ix->pool != NULL)
		munmap(ix->pool, pool_bytes(ix));
	if (ix->table != NULL)
		munmap(ix->table, table_bytes(ix));
	if (ix->leaf != NULL)
		munmap(ix->leaf, leaf_bytes(ix));
	if (ix->line != NULL)
		munmap(ix->line, line_bytes(ix));
	ix->magic = 0;
	free(ix);
}

uint32_t index_count(const struct index *ix)
{
	return ix->count;
}

uint32_t index_keys_max(const struct index *ix)
{
	return ix->keys_max;
}

/* --- table -------------------- */

static uint32_t hash_slot(const struct index *ix, uint64_t hash)
{
	return (uint32_t)(((hash >> 32) * ix->table_slots) >> 32);
}

static uint32_t home_slot(const struct index *ix, const uint8_t key[KV_KEY_BYTES_MAX])
{
	return hash_slot(ix, hash_key16(key, HASH_SEED));
}

/* What a slot holds of the hash beside the entry: where it differs, the entry is not looked at. */
static uint32_t hash_tag(const struct index *ix, uint64_t hash)
{
	return (uint32_t)hash & ~ix->entry_mask;
}

static uint32_t next_slot(const struct index *ix, uint32_t slot)
{
	return slot + 1 == ix->table_slots ? 0 : slot + 1;
}

/* The entry of a slot; INDEX_NONE: it is empty. */
static uint32_t slot_entry(const struct index *ix, uint32_t slot)
{
	uint32_t word = ix->table[slot];

	return word == INDEX_NONE ? INDEX_NONE : word & ix->entry_mask;
}

/* The slot of the key, or the empty one where it would go. */
static uint32_t table_find(const struct index *ix, const struct kv_key *key, uint64_t hash)
{
	uint32_t slot = hash_slot(ix, hash), tag = hash_tag(ix, hash), word;

	while ((word = ix->table[slot]) != INDEX_NONE) {
		if ((word & ~ix->entry_mask) == tag &&
		    entry_compare(&ix->pool[word & ix->entry_mask], key) == 0)
			break;
		slot = next_slot(ix, slot);
	}
	return slot;
}

/* Closes the gap at slot: what could sit there moves back, so that no chain is cut. */
static void table_remove(struct index *ix, uint32_t slot)
{
	uint32_t hole = slot;

	for (uint32_t at = next_slot(ix, hole); ix->table[at] != INDEX_NONE;
	     at = next_slot(ix, at)) {
		uint32_t home = home_slot(ix, ix->pool[slot_entry(ix, at)].key);
		uint32_t to_hole = (hole + ix->table_slots - home) % ix->table_slots;
		uint32_t to_at = (at + ix->table_slots - home) % ix->table_slots;

		if (to_hole < to_at) {
			ix->table[hole] = ix->table[at];
			hole = at;
		}
	}
	ix->table[hole] = INDEX_NONE;
}

uint32_t index_find(const struct index *ix, const struct kv_key *key)
{
	OBJ_CHECK(ix, INDEX_MAGIC);
	must(key->len >= 1 && key->len <= INDEX_KEY_LEN_MAX);
	return slot_entry(ix, table_find(ix, key, hash_key16(key->byte, HASH_SEED)));
}

/* --- order -------------------- */

static void line_refresh(struct index *ix, uint32_t at)
{
	const struct leaf *leaf = &ix->leaf[ix->line[at].leaf];

	must(leaf->count > 0);
	ix->line[at].head = key_head(ix->pool[leaf->slot[0]].key);
}

/* The last line whose first key is not above key, or line 0. */
static uint32_t line_find(const struct index *ix, const struct kv_key *key)
{
	uint64_t head = key_head(key->byte);
	uint32_t low = 0, high = ix->line_count;     /* answer + 1 lies in [low, high] */

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		bool above = ix->line[mid].head > head;

		if (ix->line[mid].head == head) {
			const struct leaf *leaf = &ix->leaf[ix->line[mid].leaf];

			above = entry_compare(&ix->pool[leaf->slot[0]], key) > 0;
		}
		if (above)
			high = mid;
		else
			low = mid + 1;
	}
	return low == 0 ? 0 : low - 1;
}

/* First position in the leaf whose key is not below key. */
static uint32_t leaf_find(const struct index *ix, const struct leaf *leaf, const struct kv_key *key)
{
	uint32_t low = 0, high = leaf->count;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (entry_compare(&ix->pool[leaf->slot[mid]], key) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static uint32_t leaf_take(struct index *ix)
{
	uint32_t leaf = ix->leaf_free;

	if (leaf != INDEX_NONE) {
		ix->leaf_free = ix->leaf[leaf].slot[0];
	} else {
		must(ix->leaf_fresh < ix->leaf_max);
		leaf = ix->leaf_fresh++;
	}
	ix->leaf[leaf].count = 0;
	return leaf;
}

static void leaf_give(struct index *ix, uint32_t leaf)
{
	ix->leaf[leaf].count = 0;
	ix->leaf[leaf].slot[0] = ix->leaf_free;
	ix->leaf_free = leaf;
}

static void line_insert(struct index *ix, uint32_t at, uint32_t leaf)
{
	must(ix->line_count < ix->leaf_max);
	memmove(&ix->line[at + 1], &ix->line[at], (ix->line_count - at) * sizeof(*ix->line));
	ix->line[at].leaf = leaf;
	ix->line_count++;
}

static void line_remove(struct index *ix, uint32_t at)
{
	leaf_give(ix, ix->line[at].leaf);
	ix->line_count--;
	memmove(&ix->line[at], &ix->line[at + 1], (ix->line_count - at) * sizeof(*ix->line));
}

/* Makes the leaf of line `at` and the next one share their keys evenly, or become one. */
static void lines_merge(struct index *ix, uint32_t at)
{
	struct leaf *a, *b;

	if (at + 1 >= ix->line_count)
		return;
	a = &ix->leaf[ix->line[at].leaf];
	b = &ix->leaf[ix->line[at + 1].leaf];
	if (a->count + b->count > LEAF_KEYS)
		return;
	memcpy(&a->slot[a->count], b->slot, b->count * sizeof(b->slot[0]));
	a->count += b->count;
	line_remove(ix, at + 1);
}

static void order_insert(struct index *ix, uint32_t entry)
{
	struct kv_key key = entry_key(&ix->pool[entry]);
	uint32_t at, slot, split = INDEX_NONE;
	struct leaf *leaf;

	if (ix->line_count == 0) {
		line_insert(ix, 0, leaf_take(ix));
		ix->leaf[ix->line[0].leaf].slot[ix->leaf[ix->line[0].leaf].count++] = entry;
		line_refresh(ix, 0);
		return;
	}
	at = line_find(ix, &key);
	leaf = &ix->leaf[ix->line[at].leaf];
	if (leaf->count == LEAF_KEYS) {
		uint32_t right = leaf_take(ix);
		struct leaf *half = &ix->leaf[right];
		uint32_t stay = LEAF_KEYS / 2;

		/* Keys that come in rising order leave full leaves behind. */
		if (at + 1 == ix->line_count &&
		    entry_compare(&ix->pool[leaf->slot[LEAF_KEYS - 1]], &key) < 0)
			stay = LEAF_KEYS - 1;
		half->count = LEAF_KEYS - stay;
		memcpy(half->slot, &leaf->slot[stay], half->count * sizeof(half->slot[0]));
		leaf->count = stay;
		line_insert(ix, at + 1, right);
		line_refresh(ix, at + 1);
		split = at;
		if (entry_compare(&ix->pool[half->slot[0]], &key) < 0) {
			at++;
			leaf = half;
		}
	}
	slot = leaf_find(ix, leaf, &key);
	memmove(&leaf->slot[slot + 1], &leaf->slot[slot],
		(leaf->count - slot) * sizeof(leaf->slot[0]));
	leaf->slot[slot] = entry;
	leaf->count++;
	line_refresh(ix, at);
	if (split != INDEX_NONE) {
		lines_merge(ix, split + 1);
		if (split > 0)
			lines_merge(ix, split - 1);
	}
}

static void order_remove(struct index *ix, uint32_t entry)
{
	struct kv_key key = entry_key(&ix->pool[entry]);
	uint32_t at = line_find(ix, &key);
	struct leaf *leaf = &ix->leaf[ix->line[at].leaf];
	uint32_t slot = leaf_find(ix, leaf, &key);

	must(slot < leaf->count && leaf->slot[slot] == entry);
	leaf->count--;
	memmove(&leaf->slot[slot], &leaf->slot[slot + 1],
		(leaf->count - slot) * sizeof(leaf->slot[0]));
	if (leaf->count == 0) {
		line_remove(ix, at);
		if (at > 0)
			lines_merge(ix, at - 1);
		return;
	}
	line_refresh(ix, at);
	lines_merge(ix, at);
	if (at > 0)
		lines_merge(ix, at - 1);
}

void index_unsort(struct index *ix)
{
	ix->sorted = false;
	ix->line_count = ix->leaf_fresh = 0;
	ix->leaf_free = INDEX_NONE;
}

/* While they are sorted: of the key what a bucket leaves open, its first 32 bits, and the entry. */
struct sort_item {
	uint32_t rest, entry;
};

static int item_compare(const void *a, const void *b, void *pool)
{
	const struct sort_item *x = a, *y = b;
	struct kv_key key;

	if (x->rest != y->rest)
		return x->rest < y->rest ? -1 : 1;
	key = entry_key((const struct entry *)pool + y->entry);
	return entry_compare((const struct entry *)pool + x->entry, &key);
}

/* How keys spread between the lowest and the highest head: `1 << bits` buckets of equal width, a
 * handful of keys each where keys are digests. */
struct spread {
	uint64_t low;
	unsigned shift, bits;
};

static struct spread spread_of(const struct index *ix)
{
	uint64_t low = UINT64_MAX, high = 0;
	struct spread s = {.bits = 1};

	for (uint32_t e = index_next(ix, 0); e != INDEX_NONE; e = index_next(ix, e + 1)) {
		uint64_t head = key_head(ix->pool[e].key);

		low = head < low ? head : low;
		high = head > high ? head : high;
	}
	s.low = low;
	while (s.bits < SORT_BITS_MAX && ix->count >> s.bits > SORT_BUCKET_KEYS)
		s.bits++;
	for (uint64_t width = high - low; ix->count > 0 && width >> s.shift >> s.bits > 0;)
		s.shift++;
	return s;
}

static uint32_t bucket_of(const struct spread *s, uint64_t head)
{
	return (uint32_t)((head - s->low) >> s->shift);
}

/* Rises with the head within a bucket; equal where 32 bits do not tell. */
static uint32_t rest_of(const struct spread *s, uint64_t head)
{
	return (uint32_t)((head - s->low) >> (s->shift > 32 ? s->shift - 32 : 0));
}

/* Few at a time: by insertion; more, where keys have long beginnings in common, by the library. */
static void bucket_sort(const struct index *ix, struct sort_item *item, uint32_t n)
{
	if (n > SORT_INSERTION_MAX) {
		qsort_r(item, n, sizeof(*item), item_compare, ix->pool);
		return;
	}
	for (uint32_t i = 1; i < n; i++) {
		struct sort_item x = item[i];
		uint32_t at = i;

		for (; at > 0 && item_compare(&item[at - 1], &x, ix->pool) > 0; at--)
			item[at] = item[at - 1];
		item[at] = x;
	}
}

/* Into buckets, then each bucket: a sort of ten million by the library alone takes seconds. */
static int items_sort(const struct index *ix, struct sort_item *item)
{
	struct spread s = spread_of(ix);
	uint32_t buckets = 1u << s.bits, at = 0;
	uint32_t *end = calloc(buckets, sizeof(*end));

	if (end == NULL)
		return -ENOMEM;
	for (uint32_t e = index_next(ix, 0); e != INDEX_NONE; e = index_next(ix, e + 1))
		end[bucket_of(&s, key_head(ix->pool[e].key))]++;
	for (uint32_t b = 0; b < buckets; b++) {
		uint32_t count = end[b];

		end[b] = at;
		at += count;
	}
	must(at == ix->count);
	for (uint32_t e = index_next(ix, 0); e != INDEX_NONE; e = index_next(ix, e + 1)) {
		uint64_t head = key_head(ix->pool[e].key);

		item[end[bucket_of(&s, head)]++] = (struct sort_item){rest_of(&s, head), e};
	}
	for (uint32_t b = 0; b < buckets; b++) {
		uint32_t first = b == 0 ? 0 : end[b - 1];

		if (end[b] - first > 1)
			bucket_sort(ix, item + first, end[b] - first);
	}
	free(end);
	return 0;
}

int index_sort(struct index *ix)
{
	struct sort_item *item = take(((uint64_t)ix->count + 1) * sizeof(*item));
	uint32_t n = ix->count;

	if (item == NULL)
		return -ENOMEM;
	if (items_sort(ix, item) != 0) {
		munmap(item, ((uint64_t)ix->count + 1) * sizeof(*item));
		return -ENOMEM;
	}
	index_unsort(ix);
	for (uint32_t i = 0; i < n; i++) {
		struct leaf *leaf;

		/* Three quarters full, so that the next inserts do not split every leaf. */
		if (i % (LEAF_KEYS * 3 / 4) == 0)
			line_insert(ix, ix->line_count, leaf_take(ix));
		leaf = &ix->leaf[ix->line[ix->line_count - 1].leaf];
		leaf->slot[leaf->count++] = item[i].entry;
		if (leaf->count == 1)
			line_refresh(ix, ix->line_count - 1);
	}
	munmap(item, ((uint64_t)ix->count + 1) * sizeof(*item));
	if (ix->line_count > 1)
		lines_merge(ix, ix->line_count - 2);
	ix->sorted = true;
	return 0;
}

unsigned index_list(const struct index *ix, const struct kv_key *from, uint32_t *entries,
		    unsigned count)
{
	uint32_t at, slot;
	unsigned n = 0;

	OBJ_CHECK(ix, INDEX_MAGIC);
	must(ix->sorted && from->len <= INDEX_KEY_LEN_MAX);
	if (ix->line_count == 0)
		return 0;
	at = line_find(ix, from);
	slot = leaf_find(ix, &ix->leaf[ix->line[at].leaf], from);
	for (; n < count && at < ix->line_count; at++, slot = 0) {
		const struct leaf *leaf = &ix->leaf[ix->line[at].leaf];

		for (; n < count && slot < leaf->count; slot++)
			entries[n++] = leaf->slot[slot];
	}
	return n;
}

/* --- entries -------------------- */

struct index_place index_place(const struct index *ix, uint32_t entry)
{
	const struct entry *e = &ix->pool[entry];

	must(entry < ix->fresh && (e->word & 31) != 0);
	return (struct index_place){
		.sequence = e->word >> SEQUENCE_SHIFT,
		.block = e->block,
		.value_bytes = e->size & ((1u << VALUE_BITS) - 1),
		.drive = (uint8_t)(e->size >> VALUE_BITS),
		.flags = (uint8_t)(e->word >> FLAGS_SHIFT & 127),
	};
}

void index_key(const struct index *ix, uint32_t entry, struct kv_key *out)
{
	must(entry < ix->fresh && (ix->pool[entry].word & 31) != 0);
	*out = entry_key(&ix->pool[entry]);
}

void index_set_flags(struct index *ix, uint32_t entry, uint8_t flags)
{
	struct entry *e = &ix->pool[entry];

	must(entry < ix->fresh && (e->word & 31) != 0 && flags < 128);
	e->word = (e->word & ~(UINT64_C(127) << FLAGS_SHIFT)) | (uint64_t)flags << FLAGS_SHIFT;
}

static void entry_write(struct entry *e, const struct kv_key *key, const struct index_place *p)
{
	must(p->sequence < UINT64_C(1) << 52 && p->value_bytes < 1u << VALUE_BITS);
	must(p->drive < 16 && p->flags < 128);
	memcpy(e->key, key->byte, sizeof(e->key));
	e->word = p->sequence << SEQUENCE_SHIFT | (uint64_t)p->flags << FLAGS_SHIFT | key->len;
	e->size = (uint32_t)p->drive << VALUE_BITS | p->value_bytes;
	e->block = p->block;
}

static bool put(struct index *ix, const struct kv_key *key, const struct index_place *place,
		bool newer)
{
	uint64_t hash = hash_key16(key->byte, HASH_SEED);
	uint32_t slot = table_find(ix, key, hash), entry = slot_entry(ix, slot);

	if (entry != INDEX_NONE) {
		if (!newer || ix->pool[entry].word >> SEQUENCE_SHIFT < place->sequence)
			entry_write(&ix->pool[entry], key, place);
		return true;
	}
	if (ix->count == ix->keys_max)
		return false;
	if (ix->free != INDEX_NONE) {
		entry = ix->free;
		ix->free = ix->pool[entry].block;
	} else {
		entry = ix->fresh++;
	}
	must(entry < ix->keys_max);
	entry_write(&ix->pool[entry], key, place);
	ix->table[slot] = entry | hash_tag(ix, hash);
	ix->count++;
	if (ix->sorted)
		order_insert(ix, entry);
	return true;
}

bool index_put(struct index *ix, const struct kv_key *key, const struct index_place *place)
{
	OBJ_CHECK(ix, INDEX_MAGIC);
	must(key->len >= 1 && key->len <= INDEX_KEY_LEN_MAX);
	return put(ix, key, place, false);
}

bool index_put_newer(struct index *ix, const struct kv_key *key, const struct index_place *place)
{
	OBJ_CHECK(ix, INDEX_MAGIC);
	must(key->len >= 1 && key->len <= INDEX_KEY_LEN_MAX);
	return put(ix, key, place, true);
}

void index_warm(const struct index *ix, const uint8_t key[KV_KEY_BYTES_MAX])
{
	__builtin_prefetch(&ix->table[home_slot(ix, key)]);
}

void index_remove(struct index *ix, uint32_t entry)
{
	struct entry *e = &ix->pool[entry];
	struct kv_key key;
	uint32_t slot;

	OBJ_CHECK(ix, INDEX_MAGIC);
	must(entry < ix->fresh && (e->word & 31) != 0);
	key = entry_key(e);
	slot = table_find(ix, &key, hash_key16(key.byte, HASH_SEED));
	must(slot_entry(ix, slot) == entry);
	if (ix->sorted)
		order_remove(ix, entry);
	table_remove(ix, slot);
	memset(e, 0, sizeof(*e));
	e->block = ix->free;
	ix->free = entry;
	ix->count--;
}

uint32_t index_next(const struct index *ix, uint32_t entry)
{
	while (entry < ix->fresh && (ix->pool[entry].word & 31) == 0)
		entry++;
	return entry < ix->fresh ? entry : INDEX_NONE;
}

void index_check(const struct index *ix)
{
	uint32_t used = 0, ordered = 0;
	const struct entry *last = NULL;

	OBJ_CHECK(ix, INDEX_MAGIC);
	for (uint32_t e = index_next(ix, 0); e != INDEX_NONE; e = index_next(ix, e + 1)) {
		struct kv_key key = entry_key(&ix->pool[e]);

		must(index_find(ix, &key) == e);
		used++;
	}
	must(used == ix->count && used <= ix->keys_max);
	if (!ix->sorted)
		return;
	for (uint32_t at = 0; at < ix->line_count; at++) {
		const struct leaf *leaf = &ix->leaf[ix->line[at].leaf];

		must(leaf->count > 0 && leaf->count <= LEAF_KEYS);
		must(ix->line[at].head == key_head(ix->pool[leaf->slot[0]].key));
		if (at > 0)
			must(ix->leaf[ix->line[at - 1].leaf].count + leaf->count > LEAF_KEYS);
		for (uint32_t i = 0; i < leaf->count; i++, ordered++) {
			const struct entry *e = &ix->pool[leaf->slot[i]];
			struct kv_key key = entry_key(e);

			if (last != NULL)
				must(entry_compare(last, &key) < 0);
			last = e;
		}
	}
	must(ordered == used);
}
