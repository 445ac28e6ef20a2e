/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining an array:
 *
 *   read the domain list -> ours is there: done
 *                        -> others only: strict, refuse; else warn, add ours, write
 *                        -> none, or not readable as one: write ours if absent (lost a race: read)
 *
 * Two hosts that add at the same moment may lose one entry; the loser adds it at its next start.
 * A list that can't be written is no reason to refuse work: only the warning is lost.
 *
 * Owned by one loop; one operation in flight at most.
 */
#include "cache/join.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/must.h"

static void finish(struct join *j, int res)
{
	must(j->running);
	j->running = false;
	j->done(j, res);
}

static void join_released(struct host_op *op)
{
	struct join *j = container_of(op, struct join, op);

	finish(j, -ETIMEDOUT);
}

static void join_submit(struct join *j, enum host_op_kind kind, void *at, uint32_t bytes,
			void (*done)(struct host_op *op, int res))
{
	j->iov = (struct iovec){at, bytes};
	j->op = (struct host_op){
		.kind = kind,
		.key = identity_key(&j->id),
		.iov = &j->iov,
		.iov_count = 1,
		.bytes = bytes,
		.deadline_ns = j->deadline_ns,
		.if_absent = kind == HOST_STORE && j->absent,
		.repeat_ok = true,
		.done = done,
		.released = join_released,
	};
	host_submit(j->host, &j->op);
}

static void join_read(struct join *j);

static void join_written(struct host_op *op, int res)
{
	struct join *j = container_of(op, struct join, op);

	if (op->busy)                      /* released() ends it */
		return;
	if (res == -EEXIST && ++j->rounds < JOIN_ROUNDS_MAX) {
		join_read(j);
		return;
	}
	if (res != 0 && res != -EEXIST)
		log_warn("domain list of model %s was not written: %s", j->model_id,
			 strerror(-res));
	finish(j, 0);
}

static void join_write(struct join *j, size_t list_bytes)
{
	struct frame f = {.identity = j->id};
	struct frame_footer footer;
	size_t bytes = domains_add(j->identity, j->read, list_bytes, j->write);

	if (bytes == 0) {                  /* too long to be listed */
		finish(j, 0);
		return;
	}
	f.block_bytes = bytes;
	f.cut_bytes = DOMAINS_BYTES_MAX;
	f.xxh3 = hash_xxh3(j->write, bytes);
	frame_encode(&f, &footer);
	memcpy(j->write + bytes, &footer, sizeof(footer));
	join_submit(j, HOST_STORE, j->write, (uint32_t)bytes + FRAME_BYTES, join_written);
}

/* Length of the list in a value; 0 when it can't be trusted. */
static size_t list_check(struct join *j, const struct host_op *op)
{
	struct frame_footer footer;
	struct frame f;
	uint32_t bytes = op->value_bytes;

	if (bytes < FRAME_BYTES || bytes > sizeof(j->read) || op->moved_bytes != bytes)
		return 0;
	memcpy(&footer, j->read + bytes - FRAME_BYTES, sizeof(footer));
	if (frame_check(&footer, &j->id, &f) != FRAME_OK ||
	    f.block_bytes != bytes - FRAME_BYTES || f.xxh3 != hash_xxh3(j->read, f.block_bytes))
		return 0;
	return f.block_bytes;
}

static void list_seen(struct join *j, size_t bytes)
{
	enum domains_answer answer = domains_compare(j->identity, j->read, bytes, j->why);

	if (answer == DOMAINS_SAME) {
		finish(j, 0);
	} else if (answer == DOMAINS_DIFFER && j->strict) {
		finish(j, -EINVAL);
	} else {
		if (answer == DOMAINS_DIFFER)
			log_warn("model %s: %s", j->model_id, j->why);
		join_write(j, bytes);
	}
}

static void join_have(struct host_op *op, int res)
{
	struct join *j = container_of(op, struct join, op);

	if (op->busy)                      /* released() ends it */
		return;
	j->absent = res == -ENOENT;
	if (res == 0)
		list_seen(j, list_check(j, op));
	else if (res == -ENOENT || res == -EBADMSG)
		list_seen(j, 0);
	else
		finish(j, res);
}

static void join_read(struct join *j)
{
	join_submit(j, HOST_RETRIEVE, j->read, sizeof(j->read), join_have);
}

void join_start(struct join *j)
{
	must(!j->running);
	j->running = true;
	j->rounds = 0;
	j->why[0] = '\0';
	identity_domains(j->model_id, &j->id);
	join_read(j);
}
