/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block namespaces: logical blocks on parts of the drives, thin, updated in place.
 *
 *   volume   the namespace as the array sees it, called from any loop; sends a request to the
 *            shards that have chunks of it, one after another
 *   block    one shard of it, on its own loop: the chunks c with c mod shards == shard
 *   chunk    BLK_CHUNK_BYTES of the namespace, whole on one drive (chunk of the shard mod drives),
 *            in a slot of that drive's part once it was written; reads as zeros before
 *
 * Each part keeps the map of its own chunks in pages of 4 KiB with checksum, address and version,
 * each page in four places (store/block_format.h says why): a torn page leaves what it should have
 * replaced. A write is answered when its bytes and, for a new chunk, its map page are on the drive:
 * a kill loses nothing answered. With fua, or after a flush, it is durable: a power cut loses
 * nothing. A slot is zero, and durably so, before it is given to a chunk; so what a power cut loses
 * of a new chunk reads as zeros and never as another chunk's old bytes, and writes into new chunks
 * need no flush in between. A drive that fails costs its own chunks (-EIO) and no others. After a
 * flush that failed, a part takes no more writes: what the kernel dropped then can't be known.
 *
 * done() runs on the calling loop, never inside the call.
 */
#ifndef KVOF_STORE_BLOCK_H
#define KVOF_STORE_BLOCK_H

#include "store/store.h"

struct block;
struct volume;

struct block_opts {
	/* drive[], drive_count, degraded as set_ns_parts() fills them; or paths, for tests */
	struct store_opts parts;
	uint8_t uuid[16];            /* of the namespace */
	uint64_t size_bytes;         /* of the whole namespace; multiple of block_bytes */
	uint32_t block_bytes;        /* 512 or 4096 */
	unsigned shard, shard_count;
	bool ack_durable;            /* each write is answered when it is durable */
};

/* Bytes that each part needs to hold its share whole: blocks, map and superblocks. */
uint64_t block_part_bytes(uint64_t size_bytes, unsigned shard_count, unsigned drive_count);

/**
 * block_open() - opens one shard; control path, blocks, before its loop runs or on it
 *
 * Makes the maps on parts that are blank at their first 4 KiB; reads superblocks and map pages. The
 * disks of opts are taken, also when it fails.
 * Return: 0; -EINVAL too small, or not the parts of this namespace; -EPROTO foreign or newer; -EIO;
 * -ENOENT a part is missing and degraded is not set; -ENOMEM. report->text says which and what.
 */
int block_open(const struct block_opts *opts, struct loop *loop, struct block **out,
	       struct store_report *report);
/* On its loop, when no operation is in flight. Writes and flushes what is left; done(arg) once,
 * within STORE_CLOSE_LIMIT_NS whatever the drives do. The pointer is taken at once. */
void block_close(struct block **b, void (*done)(void *arg), void *arg);

enum block_kind {
	BLOCK_READ, BLOCK_WRITE, BLOCK_ZERO, BLOCK_DEALLOCATE, BLOCK_COMPARE, BLOCK_VERIFY,
	BLOCK_FLUSH
};

#define BLOCK_OP_IOV_MAX 16u

struct block_op {
	enum block_kind kind;
	bool fua;
	uint64_t offset_bytes, bytes;        /* multiples of block_bytes; flush: not looked at */
	/* Read, write, compare: leased until done, `bytes` long, at most BLOCK_OP_IOV_MAX pieces.
	 * A byte's address and its offset are equal modulo 4096; only the first piece begins and
	 * only the last ends inside a page. */
	const struct iovec *iov;
	unsigned iov_count;
	/* The buffer that iov lies in, or NULL. A drive that hangs is answered for after
	 * STORE_IO_LIMIT_NS while the kernel still has the buffer: it is held until the drive lets
	 * go. Without a buffer the answer waits for the drive. */
	struct store_buf *buf;
	/* res: 0; -EIO; -EBADMSG compare differs; -ENOSPC the cap is reached. Of a request that
	 * fails, any part may have been done. */
	void (*done)(struct block_op *op, int res);
	uint64_t lease[24];                  /* the volume's, while in flight */
};

struct volume_shard {
	struct loop *loop;
	struct block *block;
};
/* Borrows the shards until volume_close(); no operation may be in flight then. -ENOMEM. */
int volume_open(const struct volume_shard *shard, unsigned shard_count, struct volume **out);
void volume_close(struct volume **v);
/* A request may lie over any number of chunks and shards; no length limit but that of memory.
 * Requests in flight at once have no order among each other; each 4 KiB (block_bytes where that is
 * smaller) of a write is on the drive whole or not at all, as far as the drive keeps that. */
void volume_run(struct volume *v, struct loop *here, struct block_op *op);

uint64_t volume_size_bytes(const struct volume *v);
uint32_t volume_block_bytes(const struct volume *v);
void volume_uuid(const struct volume *v, uint8_t out[16]);

#define BLOCK_STATS(X)                                                                             \
	X(reads) X(writes) X(flushes) X(zeroes) X(deallocates) X(compares) X(verifies)             \
	X(read_bytes) X(write_bytes) X(device_reads) X(device_writes) X(device_read_bytes)         \
	X(device_write_bytes) X(device_flushes) X(map_writes) X(io_errors) X(no_space)

struct block_stat {
	uint64_t size_bytes, cap_bytes, used_bytes;  /* used: chunks that have a slot */
#define X(name) uint64_t name;
	BLOCK_STATS(X)
#undef X
	unsigned drives, drives_failed;      /* failed: for at least one shard */
};
/* Sums what the shards last published; any thread; no I/O. */
void volume_stat(const struct volume *v, struct block_stat *out);

/* For tests: the process has died; its memory goes, its drives are not touched. */
void block_forget(struct block **b);

#endif
