/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a set writes on its drives, and the pure functions that write and check it. docs/formats.md
 * sections "Label", "Catalog" and "Part" are the prose, with the crash table.
 *
 *   block 0              label, first copy
 *   + catalog slot 0, 1  of slot_blocks each; written in turn
 *   ...                  zero up to slabs_block
 *   slabs                slab_count of slab_bytes each
 *   + catalog slot 0, 1  a second time
 *   last block           label, second copy
 *
 * The label never changes but for its state. The catalog says what the set is for; its global half
 * is the same on every drive, its local half says who has which slab of this drive. Any thread.
 */
#ifndef KVOF_STORE_CATALOG_H
#define KVOF_STORE_CATALOG_H

#include "store/format.h"
#include "store/set.h"

#define CATALOG_VERSION 2
#define CATALOG_SLABS_MAX 4096u
#define CATALOG_SLOTS 2u             /* at either end of the drive */

enum label_state {
	LABEL_WHOLE = 0,
	LABEL_MAKING = 1,            /* its set is being made: nothing is on it */
	LABEL_JOINING = 2,           /* it takes the place of a lost drive, not done */
};

/* Magic, crc and version lie as in struct fmt_super, so that each version refuses the other. */
struct label_disk {
	uint8_t magic[8];
	le32 crc;                    /* of the bytes that follow, to the struct's end */
	le32 version;
	uint8_t uuid[16];            /* of the set */
	uint8_t drive, drive_count, shard_count, state;
	uint8_t reserved_a[4];
	le64 block;                  /* own address */
	le64 write_count;            /* the higher copy is the truth */
	le64 drive_id;               /* of this drive in its place; the catalog has it, too */
	le64 drive_bytes;
	le64 slab_bytes;
	le64 slabs_block;            /* where slab 0 begins */
	le32 slab_count;
	le32 slot_blocks;            /* of one catalog */
	uint8_t reserved_b[160];
};
_Static_assert(sizeof(struct label_disk) == 256, "a label is 256 bytes");
_Static_assert(offsetof(struct label_disk, version) == 12, "the version keeps its place for ever");
_Static_assert(_Alignof(struct label_disk) == 1, "read in place");

struct label {
	uint8_t uuid[16];
	uint8_t drive, drive_count, shard_count;
	enum label_state state;
	uint32_t slab_count, slot_blocks;
	uint64_t write_count, drive_id, drive_bytes, slab_bytes, slabs_block;
	uint32_t value_bytes_max;            /* of a superblock of version 1 */
};

/* Fills the geometry from drive_bytes. False: there is no room for a slab. */
bool label_lay_out(struct label *l);
/* out: one block, zeroed past the struct. */
void label_write(uint8_t out[FMT_BLOCK_BYTES], const struct label *in, uint64_t block);
/* FMT_SUPER_OK also for a superblock of version 1: then *version is 1 and *out has no more than
 * value_bytes_max. */
enum fmt_super_verdict label_check(const uint8_t in[FMT_BLOCK_BYTES], uint64_t block,
				   struct label *out, uint32_t *version);
/* First block of a slot: at_end 0 before the slabs, 1 behind them. */
uint64_t label_slot_block(const struct label *l, unsigned at_end, unsigned slot);

struct catalog_ns_disk {
	le32 id, nsid;
	uint8_t uuid[16];
	uint8_t kind, subsys, shards, flags; /* bit 0 evict, 1 stripe, 7 being made */
	le32 block_bytes, value_bytes_max;
	le64 bytes, cap_bytes;
	uint8_t reserved[76];
	le64 part_bytes[STORE_DRIVES_MAX];   /* of each shard's part on drive i; 0: none there */
};
_Static_assert(sizeof(struct catalog_ns_disk) == 256, "a namespace is 256 bytes");

struct catalog_subsys_disk {
	char nqn[SET_NQN_BYTES];             /* ends with a zero byte */
	uint8_t uuid[16];
	uint8_t used;
	uint8_t reserved[15];
};
_Static_assert(sizeof(struct catalog_subsys_disk) == 256, "a subsystem is 256 bytes");

struct catalog_host_disk {
	char nqn[SET_NQN_BYTES];             /* ends with a zero byte; empty: not in use */
	uint8_t subsys_mask;                 /* bit i: may connect to subsystem i */
	uint8_t reserved[31];
};
_Static_assert(sizeof(struct catalog_host_disk) == 256, "a host is 256 bytes");

struct catalog_slab_disk {
	le32 ns;                             /* id; 0: free */
	uint8_t shard;
	uint8_t reserved[3];
};
_Static_assert(sizeof(struct catalog_slab_disk) == 8, "an owner is 8 bytes");

/* First block of a slot. Namespaces follow in the next ones, then hosts, then owners of slabs. */
struct catalog_disk {
	uint8_t magic[8];
	le32 crc;                            /* of the bytes that follow, up to drive_id */
	le32 version;
	uint8_t uuid[16];
	le64 block;                          /* own address */
	le64 generation;
	uint8_t drive, shard_count;
	uint8_t reserved_a[2];
	le32 slab_count, next_id, ns_count;
	le32 global_crc;                     /* of drive_id, subsystems, namespaces and hosts */
	le32 slabs_crc;
	uint8_t reserved_b[184];
	le64 drive_id[STORE_DRIVES_MAX];     /* of the drives of the set, in their places */
	uint8_t reserved_c[1664];
	struct catalog_subsys_disk subsys[SET_SUBSYSTEMS_MAX];
};
_Static_assert(offsetof(struct catalog_disk, drive_id) == 256, "a catalog's head is 256 bytes");
_Static_assert(sizeof(struct catalog_disk) == FMT_BLOCK_BYTES, "it fills a block");
_Static_assert(_Alignof(struct catalog_disk) == 1, "read in place");

#define CATALOG_NS_BLOCKS (SET_NAMESPACES_MAX * 256u / FMT_BLOCK_BYTES)
#define CATALOG_HOST_BLOCKS (SET_HOSTS_MAX * 256u / FMT_BLOCK_BYTES)
#define CATALOG_SLABS_BLOCK (1 + CATALOG_NS_BLOCKS + CATALOG_HOST_BLOCKS)

static inline uint32_t catalog_slot_blocks(uint32_t slab_count)
{
	return CATALOG_SLABS_BLOCK + (slab_count * 8u + FMT_BLOCK_BYTES - 1) / FMT_BLOCK_BYTES;
}

struct catalog_ns {
	struct set_ns ns;
	bool making;                         /* a crash now undoes it */
	uint64_t part_bytes[STORE_DRIVES_MAX];
};

/* A host that some subsystems let in. */
struct catalog_host {
	char nqn[SET_NQN_BYTES];             /* empty: not in use */
	uint8_t subsys_mask;
};

struct catalog_owner {
	uint32_t ns;                         /* 0: free */
	uint8_t shard;
};

struct catalog {
	uint64_t generation;
	uint32_t next_id, ns_count, global_crc;
	uint64_t drive_id[STORE_DRIVES_MAX];
	bool subsys_used[SET_SUBSYSTEMS_MAX];
	struct set_subsys subsys[SET_SUBSYSTEMS_MAX];
	struct catalog_ns ns[SET_NAMESPACES_MAX];
	struct catalog_host host[SET_HOSTS_MAX];
};

/* out: slot_blocks of the label. c->global_crc is not looked at. */
void catalog_write(uint8_t *out, const struct label *at, uint64_t block, const struct catalog *c,
		   const struct catalog_owner *owners);
/* NULL: it is whole, and *out and owners [slab_count] are filled; else what is wrong. */
const char *catalog_check(const uint8_t *in, const struct label *at, uint64_t block,
			  struct catalog *out, struct catalog_owner *owners);

#endif
