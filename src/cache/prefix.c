/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set-associative table of what is known about blocks: the bucket is chosen by the identity's own
 * bits (they are a SHA-256), the slot in it by age. Fixed memory, no chains, no deletion debts.
 *
 * Invariants: an id is in at most one slot; a slot with stamp 0 is free. Owned by one loop.
 */
#include "cache/prefix.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"

#define PREFIX_MAGIC 0x70726678u
#define PREFIX_WAYS 8
#define PREFIX_BUCKETS (PREFIX_KNOWN_MAX / PREFIX_WAYS)

_Static_assert((PREFIX_BUCKETS & (PREFIX_BUCKETS - 1)) == 0, "the bucket is picked by a mask");

struct prefix_slot {
	struct kvof_id id;
	struct prefix_known known;
	uint64_t stamp;
};

struct prefix {
	uint32_t magic;
	uint64_t stamp;
	struct prefix_slot slot[PREFIX_KNOWN_MAX];
};

int prefix_open(struct prefix **out)
{
	struct prefix *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return -ENOMEM;
	OBJ_INIT(p, PREFIX_MAGIC);
	*out = p;
	return 0;
}

void prefix_close(struct prefix **pp)
{
	struct prefix *p;

	OBJ_TAKE(p, pp, PREFIX_MAGIC);
	free(p);
}

static uint32_t bucket_first(const struct kvof_id *id)
{
	uint32_t bits;

	memcpy(&bits, id->byte + KVOF_ID_BYTES - sizeof(bits), sizeof(bits));
	return (bits & (PREFIX_BUCKETS - 1)) * PREFIX_WAYS;
}

/* The slot of id; without one, the slot to take: free, else the oldest. */
static uint32_t slot_for(const struct prefix *p, const struct kvof_id *id, bool *found)
{
	uint32_t first = bucket_first(id), take = first;

	for (uint32_t i = first; i < first + PREFIX_WAYS; i++) {
		const struct prefix_slot *s = &p->slot[i];

		if (s->stamp != 0 && memcmp(&s->id, id, sizeof(*id)) == 0) {
			*found = true;
			return i;
		}
		if (s->stamp < p->slot[take].stamp)
			take = i;
	}
	*found = false;
	return take;
}

bool prefix_find(const struct prefix *p, const struct kvof_id *id, struct prefix_known *out)
{
	bool found;
	uint32_t at;

	OBJ_CHECK(p, PREFIX_MAGIC);
	at = slot_for(p, id, &found);
	*out = found ? p->slot[at].known : (struct prefix_known){0};
	return found;
}

void prefix_set(struct prefix *p, const struct kvof_id *id, const struct prefix_known *known)
{
	bool found;
	uint32_t at;

	OBJ_CHECK(p, PREFIX_MAGIC);
	at = slot_for(p, id, &found);
	p->slot[at] = (struct prefix_slot){*id, *known, ++p->stamp};
}

void prefix_forget(struct prefix *p, const struct kvof_id *id)
{
	bool found;
	uint32_t at;

	OBJ_CHECK(p, PREFIX_MAGIC);
	at = slot_for(p, id, &found);
	if (found)
		p->slot[at] = (struct prefix_slot){0};
}

uint32_t prefix_leading(const struct kvof_result *results, uint32_t count)
{
	uint32_t n = 0;

	while (n < count && results[n].reason == KVOF_OK)
		n++;
	return n;
}
