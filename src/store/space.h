/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One kv namespace as the whole array sees it: its shards, each a struct store on its own loop,
 * called from any loop of the array.
 *
 * A key belongs to one shard (hash of the key, not of the process; docs/formats.md). An operation
 * on a shard of another loop goes there as a message and its answer comes back as one; what it
 * points to belongs to the shard's loop meanwhile, and the value's bytes do not move: a store_buf
 * may be filled, written and sent by any loop, and is given back to the pool of the loop that it
 * came from (store/buf.h).
 *
 * Calls of one loop on one key take effect in their order. done() runs on the loop that called,
 * never inside the call.
 */
#ifndef KVOF_STORE_SPACE_H
#define KVOF_STORE_SPACE_H

#include "store/buf.h"
#include "store/store.h"

struct space;

struct space_shard {
	struct loop *loop;
	struct store *store;
};

/* Borrows the stores until space_close(); no operation may be in flight then. Return: 0;
 * -ENOMEM. */
int space_open(const struct space_shard *shard, unsigned shard_count, struct space **out);
void space_close(struct space **sp);

/* Which shard has the key: a fact of the format. Pure. */
unsigned space_shard_of(const struct kv_key *key, unsigned shard_count);

void space_put(struct space *sp, struct loop *here, struct store_op *op);
/* With op->buf NULL the value comes in a buffer of the shard's loop. */
void space_get(struct space *sp, struct loop *here, struct store_op *op);
void space_delete(struct space *sp, struct loop *here, struct store_op *op);
/* res: 0, value_bytes is filled; -ENOENT. Counts as a hit. No device is read. */
void space_exists(struct space *sp, struct loop *here, struct store_op *op);
/* The same at once where the key's shard is on this loop. Return: 0; -ENOENT; -EBUSY: it is
 * elsewhere, ask with space_exists(). */
int space_exists_now(struct space *sp, struct loop *here, const struct kv_key *key,
		     uint32_t *value_bytes);
/* All shards; the first error is the answer. */
void space_flush(struct space *sp, struct loop *here, struct store_op *op);

struct space_list {
	struct kv_key from;
	struct kv_key *keys;         /* [key_count], filled */
	uint32_t *value_bytes;       /* [key_count], filled */
	unsigned key_count, filled;
	void (*done)(struct space_list *l);
	uint64_t lease[16];          /* the space's, while in flight */
};
/* Keys of all shards in one order, as store_list(): fewer than key_count means the end. Shards are
 * asked one after the other; a key that lives through a whole scan is seen exactly once. */
void space_list(struct space *sp, struct loop *here, struct space_list *l);

struct space_stat {
	/* summed over the shards; value_bytes_max, segment_bytes and uuid are the first one's,
	 * drives and drives_failed the largest of a shard (each shard has a part of each drive) */
	struct store_stat stat;
	void (*done)(struct space_stat *s);
	uint64_t lease[16];
};
void space_stat(struct space *sp, struct loop *here, struct space_stat *s);
/* The same at once: while none of the loops runs. */
void space_stat_still(struct space *sp, struct store_stat *out);

#endif
