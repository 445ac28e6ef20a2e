/* SPDX-License-Identifier: Apache-2.0 */
/* A look into the index that leaves no mark. The store's loop. */
#include "store/where.h"

#include <errno.h>

#include "store/inner.h"

int store_where(const struct store *st, const struct kv_key *key, uint32_t *value_bytes)
{
	struct index_place place;
	uint32_t entry;

	OBJ_CHECK(st, STORE_MAGIC);
	loop_must_own(st->loop);
	entry = index_find(st->index, key);
	if (entry == INDEX_NONE)
		return -ENOENT;
	place = index_place(st->index, entry);
	if ((place.flags & INDEX_DEAD) != 0)
		return -ENOENT;
	*value_bytes = place.value_bytes;
	return place.drive;
}
