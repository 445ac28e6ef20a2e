/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Purpose: writes and checks labels and catalogs. Pure functions; bytes from a drive are input, so
 * each check looks at every field once and answers in words.
 *
 * Invariant: what a check lets through keeps every bound that the set's code asserts later.
 *
 * Any thread.
 */
#include "store/catalog.h"

#include <string.h>

#include "base/hash.h"
#include "base/must.h"

static const uint8_t label_magic[8] = {'K', 'V', 'O', 'F', 'S', 'U', 'P', 'R'};
static const uint8_t catalog_magic[8] = {'K', 'V', 'O', 'F', 'C', 'A', 'T', 'L'};

#define CRC_FROM 12                          /* magic and the crc itself are not covered by it */
#define SLAB_BYTES_MIN (64 * KiB)
#define SLAB_ALIGN_MAX (2 * MiB)
#define HEAD_BYTES offsetof(struct catalog_disk, drive_id)
#define GLOBAL_BLOCKS (CATALOG_NS_BLOCKS + CATALOG_HOST_BLOCKS)  /* behind the first */
#define NS_EVICT 1u
#define NS_STRIPE 2u
#define NS_MAKING 0x80u
#define DRIVE_BYTES_MAX (UINT64_C(1) << 56)

static le32 bytes_crc(const void *at, size_t bytes)
{
	return le32_of(crc32c((const uint8_t *)at + CRC_FROM, bytes - CRC_FROM));
}

static bool le32_same(le32 a, le32 b)
{
	return memcmp(a.b, b.b, sizeof(a.b)) == 0;
}

/* --- label -------------------- */

bool label_lay_out(struct label *l)
{
	uint64_t slab = SLAB_BYTES_MIN, head, tail;

	must(l->drive_bytes % FMT_BLOCK_BYTES == 0 && l->drive_bytes < DRIVE_BYTES_MAX);
	while (l->drive_bytes / slab > CATALOG_SLABS_MAX)
		slab *= 2;
	l->slab_bytes = slab;
	l->slot_blocks = catalog_slot_blocks((uint32_t)(l->drive_bytes / slab));
	tail = (uint64_t)(CATALOG_SLOTS * l->slot_blocks + 1) * FMT_BLOCK_BYTES;
	head = bytes_round_up(tail, bytes_min(slab, SLAB_ALIGN_MAX));
	l->slabs_block = head / FMT_BLOCK_BYTES;
	l->slab_count = 0;
	if (l->drive_bytes < head + tail + slab)
		return false;
	l->slab_count = (uint32_t)((l->drive_bytes - head - tail) / slab);
	must(l->slab_count <= CATALOG_SLABS_MAX);
	return true;
}

void label_write(uint8_t out[FMT_BLOCK_BYTES], const struct label *in, uint64_t block)
{
	struct label_disk l = {
		.version = le32_of(CATALOG_VERSION),
		.drive = in->drive,
		.drive_count = in->drive_count,
		.shard_count = in->shard_count,
		.state = (uint8_t)in->state,
		.block = le64_of(block),
		.write_count = le64_of(in->write_count),
		.drive_id = le64_of(in->drive_id),
		.drive_bytes = le64_of(in->drive_bytes),
		.slab_bytes = le64_of(in->slab_bytes),
		.slabs_block = le64_of(in->slabs_block),
		.slab_count = le32_of(in->slab_count),
		.slot_blocks = le32_of(in->slot_blocks),
	};

	must(in->drive < in->drive_count && in->drive_count <= STORE_DRIVES_MAX);
	must(in->shard_count >= 1 && in->shard_count <= STORE_SHARDS_MAX);
	memcpy(l.magic, label_magic, sizeof(l.magic));
	memcpy(l.uuid, in->uuid, sizeof(l.uuid));
	l.crc = bytes_crc(&l, sizeof(l));
	memset(out, 0, FMT_BLOCK_BYTES);
	memcpy(out, &l, sizeof(l));
}

/* The fields agree with each other and with what fits the drive. */
static bool label_sound(const struct label *l)
{
	uint64_t blocks = l->drive_bytes / FMT_BLOCK_BYTES, slab = l->slab_bytes / FMT_BLOCK_BYTES;
	uint64_t ends = CATALOG_SLOTS * (uint64_t)l->slot_blocks + 1;

	if (l->drive_count < 1 || l->drive_count > STORE_DRIVES_MAX || l->drive >= l->drive_count)
		return false;
	if (l->shard_count < 1 || l->shard_count > STORE_SHARDS_MAX || l->state > LABEL_JOINING)
		return false;
	if (l->drive_bytes % FMT_BLOCK_BYTES != 0 || l->drive_bytes >= DRIVE_BYTES_MAX ||
	    l->slab_bytes < FMT_BLOCK_BYTES || (l->slab_bytes & (l->slab_bytes - 1)) != 0)
		return false;
	if (l->slab_count < 1 || l->slab_count > CATALOG_SLABS_MAX || slab > blocks ||
	    l->slot_blocks < catalog_slot_blocks(l->slab_count) || l->slot_blocks > 1u << 16)
		return false;
	return l->slabs_block >= ends && l->slabs_block <= blocks &&
	       slab * l->slab_count + ends <= blocks - l->slabs_block;
}

enum fmt_super_verdict label_check(const uint8_t in[FMT_BLOCK_BYTES], uint64_t block,
				   struct label *out, uint32_t *version)
{
	struct fmt_super_info old;
	struct label_disk l;
	struct label found;

	memcpy(&l, in, sizeof(l));
	*version = le32_get(l.version);
	if (memcmp(l.magic, label_magic, sizeof(l.magic)) != 0)
		return bytes_all_zero(in, FMT_BLOCK_BYTES) ? FMT_SUPER_BLANK : FMT_SUPER_FOREIGN;
	if (*version > CATALOG_VERSION)
		return FMT_SUPER_NEWER;
	if (*version < CATALOG_VERSION) {
		enum fmt_super_verdict verdict = fmt_super_check(in, block, &old);

		if (verdict == FMT_SUPER_OK)
			*out = (struct label){.value_bytes_max = old.value_bytes_max};
		return verdict;
	}
	if (!le32_same(l.crc, bytes_crc(&l, sizeof(l))) || le64_get(l.block) != block)
		return FMT_SUPER_DAMAGED;
	found = (struct label){
		.drive = l.drive,
		.drive_count = l.drive_count,
		.shard_count = l.shard_count,
		.state = (enum label_state)l.state,
		.slab_count = le32_get(l.slab_count),
		.slot_blocks = le32_get(l.slot_blocks),
		.write_count = le64_get(l.write_count),
		.drive_id = le64_get(l.drive_id),
		.drive_bytes = le64_get(l.drive_bytes),
		.slab_bytes = le64_get(l.slab_bytes),
		.slabs_block = le64_get(l.slabs_block),
	};
	memcpy(found.uuid, l.uuid, sizeof(found.uuid));
	if (!label_sound(&found))
		return FMT_SUPER_DAMAGED;
	*out = found;
	return FMT_SUPER_OK;
}

uint64_t label_slot_block(const struct label *l, unsigned at_end, unsigned slot)
{
	uint64_t first = 1;

	must(at_end < 2 && slot < CATALOG_SLOTS);
	if (at_end != 0)
		first = l->slabs_block + l->slab_bytes / FMT_BLOCK_BYTES * l->slab_count;
	return first + (uint64_t)slot * l->slot_blocks;
}

/* --- catalog, written -------------------- */

static struct catalog_ns_disk ns_pack(const struct catalog_ns *n)
{
	struct catalog_ns_disk d = {
		.id = le32_of(n->ns.id),
		.nsid = le32_of(n->ns.nsid),
		.kind = (uint8_t)n->ns.kind,
		.subsys = n->ns.subsys,
		.shards = n->ns.shards,
		.flags = (uint8_t)((n->ns.evict ? NS_EVICT : 0) | (n->ns.stripe ? NS_STRIPE : 0) |
				   (n->making ? NS_MAKING : 0)),
		.block_bytes = le32_of(n->ns.block_bytes),
		.value_bytes_max = le32_of(n->ns.value_bytes_max),
		.bytes = le64_of(n->ns.bytes),
		.cap_bytes = le64_of(n->ns.cap_bytes),
	};

	must(n->ns.id != 0 && n->ns.shards >= 1);
	memcpy(d.uuid, n->ns.uuid, sizeof(d.uuid));
	for (unsigned i = 0; i < STORE_DRIVES_MAX; i++)
		d.part_bytes[i] = le64_of(n->part_bytes[i]);
	return d;
}

void catalog_write(uint8_t *out, const struct label *at, uint64_t block, const struct catalog *c,
		   const struct catalog_owner *owners)
{
	struct catalog_ns_disk *ns = (void *)(out + FMT_BLOCK_BYTES);
	struct catalog_host_disk *host = (void *)(ns + SET_NAMESPACES_MAX);
	struct catalog_slab_disk *slab = (void *)(host + SET_HOSTS_MAX);
	struct catalog_disk *h = (void *)out;
	uint32_t crc;

	must(c->ns_count <= SET_NAMESPACES_MAX && c->generation > 0);
	memset(out, 0, (size_t)at->slot_blocks * FMT_BLOCK_BYTES);
	for (unsigned i = 0; i < STORE_DRIVES_MAX; i++)
		h->drive_id[i] = le64_of(c->drive_id[i]);
	for (unsigned i = 0; i < SET_SUBSYSTEMS_MAX; i++) {
		if (!c->subsys_used[i])
			continue;
		memcpy(h->subsys[i].nqn, c->subsys[i].nqn, sizeof(h->subsys[i].nqn));
		memcpy(h->subsys[i].uuid, c->subsys[i].uuid, sizeof(h->subsys[i].uuid));
		h->subsys[i].used = 1;
	}
	for (unsigned i = 0; i < c->ns_count; i++)
		ns[i] = ns_pack(&c->ns[i]);
	for (unsigned i = 0; i < SET_HOSTS_MAX; i++) {
		memcpy(host[i].nqn, c->host[i].nqn, sizeof(host[i].nqn));
		host[i].subsys_mask = c->host[i].subsys_mask;
	}
	for (unsigned i = 0; i < at->slab_count; i++) {
		slab[i].ns = le32_of(owners[i].ns);
		slab[i].shard = owners[i].shard;
	}
	crc = crc32c(out + HEAD_BYTES, FMT_BLOCK_BYTES - HEAD_BYTES);
	crc = crc32c_more(crc, ns, GLOBAL_BLOCKS * FMT_BLOCK_BYTES);
	memcpy(h->magic, catalog_magic, sizeof(h->magic));
	memcpy(h->uuid, at->uuid, sizeof(h->uuid));
	h->version = le32_of(CATALOG_VERSION);
	h->block = le64_of(block);
	h->generation = le64_of(c->generation);
	h->drive = at->drive;
	h->shard_count = at->shard_count;
	h->slab_count = le32_of(at->slab_count);
	h->next_id = le32_of(c->next_id);
	h->ns_count = le32_of(c->ns_count);
	h->global_crc = le32_of(crc);
	h->slabs_crc = le32_of(crc32c(slab, at->slab_count * sizeof(*slab)));
	h->crc = bytes_crc(h, HEAD_BYTES);
}

/* --- catalog, read -------------------- */

static const char *ns_unpack(const struct catalog_ns_disk *d, const struct catalog *c,
			     struct catalog_ns *out)
{
	*out = (struct catalog_ns){
		.ns = {
			.id = le32_get(d->id),
			.nsid = le32_get(d->nsid),
			.kind = (enum set_kind)d->kind,
			.subsys = d->subsys,
			.shards = d->shards,
			.evict = (d->flags & NS_EVICT) != 0,
			.stripe = (d->flags & NS_STRIPE) != 0,
			.block_bytes = le32_get(d->block_bytes),
			.value_bytes_max = le32_get(d->value_bytes_max),
			.bytes = le64_get(d->bytes),
			.cap_bytes = le64_get(d->cap_bytes),
		},
		.making = (d->flags & NS_MAKING) != 0,
	};
	memcpy(out->ns.uuid, d->uuid, sizeof(out->ns.uuid));
	for (unsigned i = 0; i < STORE_DRIVES_MAX; i++) {
		out->part_bytes[i] = le64_get(d->part_bytes[i]);
		if (out->part_bytes[i] % FMT_BLOCK_BYTES != 0)
			return "size of a namespace's part";
	}
	if (out->ns.id == 0 || out->ns.id >= c->next_id || out->ns.nsid == 0)
		return "number of a namespace";
	if (out->ns.kind != SET_KV && out->ns.kind != SET_BLOCK)
		return "kind of a namespace";
	if (d->subsys >= SET_SUBSYSTEMS_MAX || !c->subsys_used[d->subsys])
		return "subsystem of a namespace";
	if (d->shards < 1 || d->shards > STORE_SHARDS_MAX)
		return "shards of a namespace";
	if (out->ns.kind == SET_BLOCK && out->ns.block_bytes != 512 && out->ns.block_bytes != 4096)
		return "block size of a namespace";
	if (out->ns.value_bytes_max > STORE_VALUE_BYTES_LIMIT)
		return "value size of a namespace";
	for (unsigned i = 0; i < c->ns_count; i++) {
		const struct set_ns *other = &c->ns[i].ns;

		if (other->id == out->ns.id || (other->subsys == out->ns.subsys &&
						 other->nsid == out->ns.nsid))
			return "two namespaces of one number";
	}
	return NULL;
}

static const char *subsys_unpack(const struct catalog_subsys_disk *d, unsigned number,
				 struct catalog *out)
{
	struct set_subsys *s = &out->subsys[number];

	out->subsys_used[number] = d->used == 1;
	if (d->used == 0)
		return NULL;
	if (d->used != 1 || d->nqn[0] == 0 || memchr(d->nqn, 0, sizeof(d->nqn)) == NULL)
		return "name of a subsystem";
	memcpy(s->nqn, d->nqn, sizeof(s->nqn));
	memcpy(s->uuid, d->uuid, sizeof(s->uuid));
	s->number = (uint8_t)number;
	return NULL;
}

static const char *host_unpack(const struct catalog_host_disk *d, struct catalog_host *out)
{
	if (memchr(d->nqn, 0, sizeof(d->nqn)) == NULL)
		return "name of a host";
	memcpy(out->nqn, d->nqn, sizeof(out->nqn));
	out->subsys_mask = d->nqn[0] == 0 ? 0 : d->subsys_mask;
	return NULL;
}

static const char *head_check(const struct catalog_disk *h, const struct label *at, uint64_t block)
{
	if (memcmp(h->magic, catalog_magic, sizeof(h->magic)) != 0)
		return "no magic";
#ifndef KVOF_PLANT_CATALOG_CHECKSUM_IGNORED
	if (!le32_same(h->crc, bytes_crc(h, HEAD_BYTES)))
		return "checksum";
#endif
	if (le32_get(h->version) != CATALOG_VERSION)
		return "version";
	if (memcmp(h->uuid, at->uuid, sizeof(h->uuid)) != 0)
		return "of another set";
	if (h->drive != at->drive || le64_get(h->block) != block)
		return "of another place";
	if (le32_get(h->slab_count) != at->slab_count || h->shard_count != at->shard_count)
		return "geometry";
	if (le32_get(h->ns_count) > SET_NAMESPACES_MAX || le64_get(h->generation) == 0)
		return "count";
	return NULL;
}

static const char *slabs_unpack(const struct catalog_disk *h, const struct catalog_slab_disk *slab,
				uint32_t slab_count, struct catalog_owner *owners)
{
#ifndef KVOF_PLANT_CATALOG_CHECKSUM_IGNORED
	if (le32_get(h->slabs_crc) != crc32c(slab, slab_count * sizeof(*slab)))
		return "checksum of the slabs";
#endif
	for (unsigned i = 0; i < slab_count; i++) {
		owners[i] = (struct catalog_owner){le32_get(slab[i].ns), slab[i].shard};
		if (slab[i].shard >= STORE_SHARDS_MAX || owners[i].ns >= le32_get(h->next_id))
			return "owner of a slab";
	}
	return NULL;
}

const char *catalog_check(const uint8_t *in, const struct label *at, uint64_t block,
			  struct catalog *out, struct catalog_owner *owners)
{
	const struct catalog_ns_disk *ns = (const void *)(in + FMT_BLOCK_BYTES);
	const struct catalog_host_disk *host = (const void *)(ns + SET_NAMESPACES_MAX);
	const struct catalog_disk *h = (const void *)in;
	const char *wrong = head_check(h, at, block);
	uint32_t crc = crc32c(in + HEAD_BYTES, FMT_BLOCK_BYTES - HEAD_BYTES);

	if (wrong != NULL)
		return wrong;
	crc = crc32c_more(crc, ns, GLOBAL_BLOCKS * FMT_BLOCK_BYTES);
#ifndef KVOF_PLANT_CATALOG_CHECKSUM_IGNORED
	if (le32_get(h->global_crc) != crc)
		return "checksum of the namespaces";
#endif
	memset(out, 0, sizeof(*out));
	out->generation = le64_get(h->generation);
	out->next_id = le32_get(h->next_id);
	out->global_crc = crc;
	for (unsigned i = 0; i < STORE_DRIVES_MAX; i++)
		out->drive_id[i] = le64_get(h->drive_id[i]);
	for (unsigned i = 0; i < SET_SUBSYSTEMS_MAX && wrong == NULL; i++)
		wrong = subsys_unpack(&h->subsys[i], i, out);
	for (unsigned i = 0; i < le32_get(h->ns_count) && wrong == NULL; i++) {
		wrong = ns_unpack(&ns[i], out, &out->ns[i]);
		out->ns_count++;
	}
	for (unsigned i = 0; i < SET_HOSTS_MAX && wrong == NULL; i++)
		wrong = host_unpack(&host[i], &out->host[i]);
	if (wrong == NULL)
		wrong = slabs_unpack(h, (const void *)(host + SET_HOSTS_MAX), at->slab_count,
				     owners);
	return wrong;
}
