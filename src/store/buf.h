/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of value buffers of one loop, shared by all namespaces and shards there: what values in
 * transit cost is bought at start, however many namespaces come.
 *
 * A buffer is taken on the pool's loop. It may then be filled, written and sent by any loop, and is
 * returned from any loop: the last who has a part in it (the lease, or I/O that the kernel still
 * does) sends it home by a message.
 */
#ifndef KVOF_STORE_BUF_H
#define KVOF_STORE_BUF_H

#include "store/store.h"

/* Control path; before the loop runs or on it. Return: 0; -ENOMEM. */
int store_pool_open(struct loop *loop, uint64_t bytes, struct buf_pool **out);
/* On its loop, when that has run what is in its mailbox. With a buffer still out its memory is
 * kept, since the kernel may yet write into it; answered false. */
bool store_pool_close(struct buf_pool **pool);
uint64_t store_pool_bytes(const struct buf_pool *pool);
/* The one that a store takes its buffers from: its own, or its loop's. */
struct buf_pool *store_pool_of(struct store *st);

/* Room for w->payload_bytes, now or later: ready() comes on a later turn, first come first served.
 * w->plain: pieces are whole blocks of 4 KiB, as drives want them, without room for a record's
 * header in front. At most what the pool has. */
void store_pool_take(struct buf_pool *pool, struct store_buf_wait *w);
/* Gives up waiting; true: ready() will not come. False: it was not waiting. */
bool store_pool_cancel(struct buf_pool *pool, struct store_buf_wait *w);

/* From any loop. */
void store_buf_return(struct store_buf **buf);

/* One more that has a part in it beside the lease: I/O that may outlive the operation it is for.
 * From a loop that has a part; dropped from any. */
void store_buf_hold(struct store_buf *buf);
void store_buf_drop(struct store_buf *buf);

#endif
