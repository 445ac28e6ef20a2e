/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set-associative table of what is known about blocks: the bucket is chosen by the identity's own
 * bits (they are a SHA-256), the slot in it by age. Fixed memory, no chains, no deletion debts.
 *
 * Invariants: an id is in at most one slot; a slot with stamp 0 is free. Owned by one loop.
 */
#include "cache/known.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"

#define KNOWN_MAGIC 0x6b6e6f77u
#define KNOWN_WAYS 8

struct known_slot {
	struct kvof_id id;
	struct known_block block;
	uint64_t stamp;
};

struct known {
	uint32_t magic;
	uint32_t bucket_mask;
	uint64_t stamp;
	struct known_slot slot[];
};

int known_open(uint32_t slots, struct known **out)
{
	uint32_t buckets = 1;
	struct known *k;

	while (buckets * KNOWN_WAYS < slots)
		buckets *= 2;
	k = calloc(1, sizeof(*k) + (size_t)buckets * KNOWN_WAYS * sizeof(k->slot[0]));
	if (k == NULL)
		return -ENOMEM;
	OBJ_INIT(k, KNOWN_MAGIC);
	k->bucket_mask = buckets - 1;
	*out = k;
	return 0;
}

void known_close(struct known **kp)
{
	struct known *k;

	OBJ_TAKE(k, kp, KNOWN_MAGIC);
	free(k);
}

/* The slot of id; without one, the slot to take: free, else the oldest. */
static uint32_t slot_for(const struct known *k, const struct kvof_id *id, bool *found)
{
	uint32_t bits, first, take;

	memcpy(&bits, id->byte + KVOF_ID_BYTES - sizeof(bits), sizeof(bits));
	first = take = (bits & k->bucket_mask) * KNOWN_WAYS;
	for (uint32_t i = first; i < first + KNOWN_WAYS; i++) {
		const struct known_slot *s = &k->slot[i];

		if (s->stamp != 0 && memcmp(&s->id, id, sizeof(*id)) == 0) {
			*found = true;
			return i;
		}
		if (s->stamp < k->slot[take].stamp)
			take = i;
	}
	*found = false;
	return take;
}

bool known_find(const struct known *k, const struct kvof_id *id, struct known_block *out)
{
	bool found;
	uint32_t at;

	OBJ_CHECK(k, KNOWN_MAGIC);
	at = slot_for(k, id, &found);
	*out = found ? k->slot[at].block : (struct known_block){0};
	return found;
}

void known_set(struct known *k, const struct kvof_id *id, const struct known_block *block)
{
	bool found;
	uint32_t at;

	OBJ_CHECK(k, KNOWN_MAGIC);
	at = slot_for(k, id, &found);
	k->slot[at] = (struct known_slot){*id, *block, ++k->stamp};
}

void known_forget(struct known *k, const struct kvof_id *id)
{
	bool found;
	uint32_t at;

	OBJ_CHECK(k, KNOWN_MAGIC);
	at = slot_for(k, id, &found);
	if (found)
		k->slot[at] = (struct known_slot){0};
}
