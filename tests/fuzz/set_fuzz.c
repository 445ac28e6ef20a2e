/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input: what a drive of a set may hold, one kind byte and a label or a catalog, zeros behind it.
 * The checksums are made right first, so that every field is reached; what is accepted must be
 * within the bounds that the set relies on, and comes out the same when it is written again.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/must.h"
#include "store/catalog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SLABS 64u
#define SLOT_BYTES ((size_t)16 * FMT_BLOCK_BYTES)
#define CRC_AT 8u
#define BLOCK 7u

static void seal(uint8_t *at, size_t bytes)
{
	le32 crc = le32_of(crc32c(at + CRC_AT + 4, bytes - CRC_AT - 4));

	memcpy(at + CRC_AT, &crc, sizeof(crc));
}

static void label(uint8_t *block)
{
	uint8_t again[FMT_BLOCK_BYTES];
	struct label l, same;
	uint32_t version;

	seal(block, sizeof(struct label_disk));
	if (label_check(block, BLOCK, &l, &version) != FMT_SUPER_OK || version != CATALOG_VERSION)
		return;
	must(l.drive < l.drive_count && l.drive_count <= STORE_DRIVES_MAX);
	must(l.shard_count >= 1 && l.shard_count <= STORE_SHARDS_MAX && l.slab_count >= 1);
	must(l.slab_count <= CATALOG_SLABS_MAX && l.slab_bytes % FMT_BLOCK_BYTES == 0);
	for (unsigned i = 0; i < 2 * CATALOG_SLOTS; i++)
		must((label_slot_block(&l, i / 2, i % 2) + l.slot_blocks) * FMT_BLOCK_BYTES <
		     l.drive_bytes);
	must(l.slabs_block * FMT_BLOCK_BYTES + l.slab_count * l.slab_bytes < l.drive_bytes);
	label_write(again, &l, BLOCK);
	must(label_check(again, BLOCK, &same, &version) == FMT_SUPER_OK);
	must(same.slab_count == l.slab_count && same.drive_id == l.drive_id);
}

static void catalog(uint8_t *slot)
{
	static struct catalog c, same;
	static uint8_t again[SLOT_BYTES];
	static struct catalog_owner owners[SLABS], owners_again[SLABS];
	struct label at = {.drive = 1, .drive_count = 2, .shard_count = 2, .slab_count = SLABS,
			   .slot_blocks = catalog_slot_blocks(SLABS)};
	struct catalog_disk *h = (void *)slot;
	const uint8_t *slabs = slot + (size_t)CATALOG_SLABS_BLOCK * FMT_BLOCK_BYTES;
	size_t head = offsetof(struct catalog_disk, drive_id);

	must(at.slot_blocks * (size_t)FMT_BLOCK_BYTES <= SLOT_BYTES);
	memcpy(at.uuid, h->uuid, sizeof(at.uuid));
	h->global_crc = le32_of(crc32c(slot + head, (size_t)(slabs - slot) - head));
	h->slabs_crc = le32_of(crc32c(slabs, SLABS * sizeof(struct catalog_slab_disk)));
	seal(slot, head);
	if (catalog_check(slot, &at, BLOCK, &c, owners) != NULL)
		return;
	must(c.generation > 0 && c.ns_count <= SET_NAMESPACES_MAX);
	for (unsigned i = 0; i < c.ns_count; i++) {
		const struct set_ns *ns = &c.ns[i].ns;

		must(ns->id > 0 && ns->id < c.next_id && ns->shards >= 1);
		must(ns->shards <= STORE_SHARDS_MAX && ns->subsys < SET_SUBSYSTEMS_MAX);
		must(c.subsys_used[ns->subsys] && ns->nsid > 0);
	}
	for (unsigned i = 0; i < SET_SUBSYSTEMS_MAX; i++)
		must(!c.subsys_used[i] || memchr(c.subsys[i].nqn, 0, SET_NQN_BYTES) != NULL);
	for (unsigned i = 0; i < SLABS; i++)
		must(owners[i].shard < STORE_SHARDS_MAX && owners[i].ns < c.next_id);
	catalog_write(again, &at, BLOCK, &c, owners);
	must(catalog_check(again, &at, BLOCK, &same, owners_again) == NULL);
	must(same.ns_count == c.ns_count && memcmp(owners, owners_again, sizeof(owners)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t bytes[SLOT_BYTES];

	if (size < 1)
		return 0;
	memset(bytes, 0, sizeof(bytes));
	memcpy(bytes, data + 1, size - 1 < sizeof(bytes) ? size - 1 : sizeof(bytes));
	if (data[0] % 2 == 0)
		label(bytes);
	else
		catalog(bytes);
	return 0;
}
