/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block namespaces: logical blocks on parts of the drives, thin, updated in place.
 *
 *	volume   the namespace as the array sees it, called from any loop; cuts a request at chunks
 *	block    one shard of it, on its own loop: the chunks c with c mod shards == shard
 *        chunk    STORE_CHUNK bytes of the namespace, whole on one drive (chunk of the shard mod
 *drives), in 	         a slot of that drive's part once it was written; reads as zeros before
 *
 * Each part keeps the map of its own chunks in pages of 4 KiB with checksum, address and sequence,
 * each page in two places written in turn: a torn page write leaves the older one. A write is
 * answered when its bytes and, for a new chunk, its map page are on the drive; with fua, or after
 * block_flush(), they are durable. A slot that is given back is zeroed and made durable before it
 * is used again, so nothing deleted is ever read, also after a power cut. A dead drive fails its
 * own chunks (-EIO), no others.
 *
 * done() runs on the calling loop (volume) or on the shard's (block), never inside the call.
 */
#ifndef KVOF_STORE_BLOCK_H
#define KVOF_STORE_BLOCK_H

#include "store/store.h"

struct block;
struct volume;

struct block_opts {
	/* drive[], drive_count, degraded as set_ns_parts() fills them */
	struct store_opts parts;
	uint8_t uuid[16];            /* of the namespace */
	uint64_t size_bytes;         /* of the whole namespace */
	uint32_t block_bytes;        /* 512 or 4096 */
	unsigned shard, shard_count;
	bool ack_durable;
};

/* As store_open(): blocks; makes the maps on parts that are blank. */
int block_open(const struct block_opts *opts, struct loop *loop, struct block **out,
	       struct store_report *report);
void block_close(struct block **b, void (*done)(void *arg), void *arg);

enum block_kind {
	BLOCK_READ, BLOCK_WRITE, BLOCK_ZERO, BLOCK_DEALLOCATE, BLOCK_COMPARE, BLOCK_VERIFY,
	BLOCK_FLUSH
};

struct block_op {
	enum block_kind kind;
	bool fua;
	uint64_t offset_bytes, bytes;        /* multiples of block_bytes */
	const struct iovec *iov;             /* read, write, compare: leased until done */
	unsigned iov_count;
	/* res: 0; -EIO; -EBADMSG compare differs; -ENOSPC the cap is reached; -ECANCELED. */
	void (*done)(struct block_op *op, int res);
	uint64_t lease[48];                  /* the volume's, while in flight */
};

struct volume_shard {
	struct loop *loop;
	struct block *block;
};
int volume_open(const struct volume_shard *shard, unsigned shard_count, struct volume **out);
void volume_close(struct volume **v);
void volume_run(struct volume *v, struct loop *here, struct block_op *op);

struct block_stat {
	uint64_t size_bytes, cap_bytes, used_bytes;  /* used: chunks that have a slot */
	uint64_t reads, writes, flushes, zeroes, deallocates, compares, read_bytes, write_bytes;
	uint64_t device_read_bytes, device_write_bytes, device_flushes, io_errors;
	unsigned drives, drives_failed;
};
/* Sums what the shards last published; any thread; no I/O. */
void volume_stat(const struct volume *v, struct block_stat *out);

#endif
