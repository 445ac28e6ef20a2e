/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvof: raw values in a Key Value namespace, or blocks in a block namespace, over NVMe-oF. For what
 * an inference engine wants (identity, tiers, checksums) see cache.h; here keys are 1 to 16 opaque
 * bytes and values are moved as they are.
 *
 * Threads: any thread may call; a handle has one thread of its own that does all input and output.
 * Calls of one handle may run side by side, but for kvof_client_close(), which must be the last.
 * Fork: the child's copy of a handle answers -ESHUTDOWN to everything, at once; kvof_client_close()
 * in the child frees what it can. The parent is not disturbed.
 *
 * Deadlines are relative, in nanoseconds from the call; 0 is the handle's default. Every operation
 * ends by its deadline. Data moves straight between the caller's buffers and the socket, any size
 * from 0 to the namespace's limit, any alignment. A buffer belongs to the library from the call to
 * the result; where a result says `busy`, until the event KVOF_CLIENT_RELEASED. The blocking calls
 * wait for that too: they return at most 250 ms after the deadline then.
 *
 * Order: operations on one key take effect in the order they were submitted. List has no order, and
 * operations on blocks have none: wait for one before another on the same blocks.
 *
 * A lost connection is made again, in the background, until the handle is closed; meanwhile
 * operations wait, until their deadline. Retrieve, Exist and List in flight are sent again by
 * themselves, as are Read, Flush and Compare. What changes something and was sent ends with
 * -ECONNRESET (not known whether they took effect), or, with KVOF_CLIENT_REPEAT_OK, are sent again
 * too.
 *
 * Errors: see error.h. No call aborts for a bad argument.
 */
#ifndef KVOF_CLIENT_H
#define KVOF_CLIENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <kvof/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvof_client;

#define KVOF_KEY_BYTES_MAX 16

struct kvof_key {
	uint8_t bytes;                  /* 1..16; 0 only as "from the first key" of a List */
	uint8_t byte[KVOF_KEY_BYTES_MAX];
};

enum kvof_client_digest { KVOF_DIGEST_HEADER = 1, KVOF_DIGEST_DATA = 2 };

struct kvof_client_opts {
	uint32_t struct_bytes;          /* sizeof(struct kvof_client_opts): room to grow */
	uint32_t digests;               /* enum kvof_client_digest: CRC32C on the wire */
	const char *target;             /* tcp://ADDR:PORT[/NQN][?nsid=N] */
	const char *host_nqn;           /* NULL: made from the machine's id */
	uint32_t queues;                /* TCP connections for data; 0: 4 */
	uint32_t depth;                 /* commands in flight on each; 0: 32 */
	uint32_t in_flight_max;         /* operations submitted and not drained; 0: 4096 */
	uint32_t background;            /* 1: open returns at once, also while the array is away */
	uint64_t connect_ns;            /* 0: 3 s */
	uint64_t deadline_ns;           /* default of the operations; 0: 5 s */
	uint32_t block;                 /* 1: a block namespace, not a Key Value one */
	uint32_t reserved;              /* 0 */
};

/**
 * kvof_client_open() - connects to a namespace
 * @opts: borrowed until return; zero means default
 * @why:  a sentence of at most 255 bytes when it fails; may be NULL
 * @out:  the handle
 *
 * Starts one thread. Without `background` it returns when the namespace is usable, or with the
 * failure of the first try, after connect_ns at most.
 *
 * Return: 0; -EINVAL (also: not a target string); -ECONNRESET; -ETIMEDOUT; -EPROTO; -EIO refused by
 * the array; -ENOENT no such subsystem or KV namespace; -ENOMEM; -EMFILE.
 */
int kvof_client_open(const struct kvof_client_opts *opts, char why[256], struct kvof_client **out);

/* Ends all in flight with -ESHUTDOWN, waits for it, frees the handle; *client becomes NULL. */
void kvof_client_close(struct kvof_client **client);

/* What the namespace is; from the last time it was connected. */
struct kvof_client_info {
	uint32_t nsid;
	uint32_t value_bytes_max;       /* longest value */
	uint32_t key_bytes_max;
	uint32_t live;                  /* 1: connected now */
	uint64_t capacity_bytes, used_bytes;    /* as the array reported when it was connected */
	char subnqn[224];
	char last_error[256];           /* sentence about the last lost connection; "" */
	uint32_t block_bytes;           /* of a block namespace; 0: Key Value */
	uint32_t transfer_bytes_max;    /* of one operation on blocks */
};
/* Return: 0; -EINVAL; -ESHUTDOWN. Cheap; any thread. */
int kvof_client_info(struct kvof_client *client, struct kvof_client_info *out);

struct kvof_client_stat {
	uint64_t ops, errors, timeouts, reconnects, digest_retries, repeats, bytes_in, bytes_out;
};
/* Counters since open. Return: 0; -EINVAL; -ESHUTDOWN. */
int kvof_client_stat(struct kvof_client *client, struct kvof_client_stat *out);

/* --- one at a time, blocking -------------------- */

enum kvof_client_flag {
	KVOF_CLIENT_IF_ABSENT = 1,      /* Store: only if there is no such key, else -EEXIST */
	KVOF_CLIENT_IF_PRESENT = 2,     /* Store: only if there is, else -ENOENT */
	KVOF_CLIENT_REPEAT_OK = 4,      /* Store, Delete: may be carried out twice after a lost
					 * connection, for values that are a function of the key */
	KVOF_CLIENT_FUA = 8,            /* Write, Zero: on stable media when it is done */
};

/**
 * kvof_client_store() - puts one value, replacing what was there; all or nothing
 * @value, @bytes: 0 to info.value_bytes_max bytes; value may be NULL for 0 bytes
 * @flags: enum kvof_client_flag
 *
 * When 0 is returned the value is on the array's drives.
 * Return: 0; -EEXIST or -ENOENT by the flags; -ENOSPC; or another value of error.h.
 */
int kvof_client_store(struct kvof_client *client, const struct kvof_key *key, const void *value,
		      size_t bytes, uint32_t flags, uint64_t deadline_ns);

/**
 * kvof_client_retrieve() - gets one value, or its first bytes
 * @room, @bytes: the head of the value that fits is put there; 0 asks for the length alone
 * @value_bytes: the length of the stored value, which may be more than @bytes; may be NULL
 *
 * When it fails, nothing is said about the bytes in @room.
 * Return: 0; -ENOENT; -EBADMSG the stored value is damaged; or another value of error.h.
 */
int kvof_client_retrieve(struct kvof_client *client, const struct kvof_key *key, void *room,
			 size_t bytes, uint64_t deadline_ns, uint32_t *value_bytes);

/* Return: 0 there is such a key; -ENOENT; or another value of error.h. */
int kvof_client_exist(struct kvof_client *client, const struct kvof_key *key, uint64_t deadline_ns);

/* Return: 0 deleted; -ENOENT; or another value of error.h. */
int kvof_client_delete(struct kvof_client *client, const struct kvof_key *key,
		       uint64_t deadline_ns);

/**
 * kvof_client_list() - keys in ascending order of bytes, one page
 * @from: the first key wanted, if it exists, else the next one; NULL or 0 bytes: from the first
 * @keys, @n_max: room, at least 2 (to go on, ask from the last key, and skip it)
 * @n: how many were found; less than n_max does not mean the end. No key beyond @from does.
 *
 * Allocates 20 bytes for each of n_max. Return: 0; or a value of error.h.
 */
int kvof_client_list(struct kvof_client *client, const struct kvof_key *from,
		     struct kvof_key *keys, size_t n_max, uint64_t deadline_ns, size_t *n);

/* --- blocks, one at a time, blocking -------------------- */

/**
 * kvof_client_read() - reads blocks
 * @offset, @bytes: whole blocks of the namespace, of any number; room for them
 *
 * What was never written, or was deallocated, reads as zeros. Larger than transfer_bytes_max is
 * done in pieces, several at a time. When it fails, nothing is said about the bytes in @room.
 * Return: 0; -EINVAL (also: beyond the end); -EIO; or another value of error.h.
 */
int kvof_client_read(struct kvof_client *client, uint64_t offset, void *room, size_t bytes,
		     uint64_t deadline_ns);

/**
 * kvof_client_write() - writes blocks, as kvof_client_read()
 * @flags: KVOF_CLIENT_FUA, KVOF_CLIENT_REPEAT_OK
 *
 * When 0 is returned the blocks are on the array's drives, with KVOF_CLIENT_FUA on stable media.
 * Return: 0; -EINVAL; -ENOSPC a thin namespace has no room left; -EIO; ... When it fails, any of
 * the blocks may have been written.
 */
int kvof_client_write(struct kvof_client *client, uint64_t offset, const void *from, size_t bytes,
		      uint32_t flags, uint64_t deadline_ns);

/* All blocks that were written before are on stable media. Return: 0; -EIO; ... */
int kvof_client_flush(struct kvof_client *client, uint64_t deadline_ns);

/* Blocks become zeros (flags as kvof_client_write()). Return: as kvof_client_write(). */
int kvof_client_zero(struct kvof_client *client, uint64_t offset, uint64_t bytes, uint32_t flags,
		     uint64_t deadline_ns);

/* Blocks become zeros and their room may be used for others. Return: as kvof_client_write(). */
int kvof_client_deallocate(struct kvof_client *client, uint64_t offset, uint64_t bytes,
			   uint64_t deadline_ns);

/* Return: 0 the blocks are equal to the bytes; -EBADMSG they differ; -EINVAL; -EIO; ... */
int kvof_client_compare(struct kvof_client *client, uint64_t offset, const void *with, size_t bytes,
			uint64_t deadline_ns);

/* --- batches -------------------- */

enum kvof_client_op {
	KVOF_CLIENT_STORE, KVOF_CLIENT_RETRIEVE, KVOF_CLIENT_EXIST, KVOF_CLIENT_DELETE,
	/* of a block namespace; key is not looked at */
	KVOF_CLIENT_READ, KVOF_CLIENT_WRITE, KVOF_CLIENT_FLUSH, KVOF_CLIENT_ZERO,
	KVOF_CLIENT_DEALLOCATE, KVOF_CLIENT_COMPARE,
};

struct kvof_client_req {
	uint32_t op;                    /* enum kvof_client_op */
	uint32_t flags;                 /* enum kvof_client_flag */
	struct kvof_key key;
	uint32_t iov_count;             /* at most 1024 */
	const struct iovec *iov;        /* the value, or room for it; the array itself is copied */
	/* Blocks, in bytes and whole blocks: where; how much (Zero, Deallocate; else as iov
	 * says) */
	uint64_t offset, range;
};

enum kvof_client_result_flag {
	KVOF_CLIENT_LAST = 1,           /* no further event of this batch */
	KVOF_CLIENT_RELEASED = 2,       /* not a result: the buffer of a busy one is free */
};

struct kvof_client_result {
	uint64_t batch;                 /* what kvof_client_submit() gave */
	uint32_t index;                 /* of the operation in its batch */
	int32_t res;                    /* error.h */
	uint32_t value_bytes;           /* Retrieve: true stored length */
	uint32_t moved_bytes;           /* Retrieve: bytes put into the room */
	uint32_t busy;                  /* 1: buffer not free yet, an event RELEASED follows */
	uint32_t flags;                 /* enum kvof_client_result_flag */
};

/**
 * kvof_client_submit() - starts a batch; its results are drained in the order they finish
 * @reqs: [n] copied with their iov arrays; the buffers they name are leased until the results
 * @batch: its number, never 0 and never used again
 *
 * Return: 0, and every operation gets exactly one result; -EINVAL (nothing was started); -EBUSY
 * more than in_flight_max would be in flight; -ESHUTDOWN; -ENOMEM.
 */
int kvof_client_submit(struct kvof_client *client, const struct kvof_client_req *reqs, size_t n,
		       uint64_t deadline_ns, uint64_t *batch);

/* What of the batch is not done yet ends with -ECANCELED; once that result (or its release) is
 * there, no byte of its buffers moves any more. Return: 0, also when there is no such batch any
 * more; -ESHUTDOWN. */
int kvof_client_cancel(struct kvof_client *client, uint64_t batch);

/* A descriptor that is readable while results wait; for poll() only, the library's own.
 * -ESHUTDOWN, -EINVAL. */
int kvof_client_fd(struct kvof_client *client);

/* Takes up to n results; never blocks. Return: how many, or -ESHUTDOWN, -EINVAL. */
int kvof_client_drain(struct kvof_client *client, struct kvof_client_result *out, size_t n);

/**
 * kvof_client_wait() - starts a batch and waits for all of it
 * @results: [n] in the order of the requests; busy is never set: releases are waited for
 *
 * Return: 0 (each result has its own res); or as kvof_client_submit().
 */
int kvof_client_wait(struct kvof_client *client, const struct kvof_client_req *reqs, size_t n,
		     uint64_t deadline_ns, struct kvof_client_result *results);

#ifdef __cplusplus
}
#endif

#endif
