/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A KV namespace over a store: Store, Retrieve, Exist, Delete, List, Flush. [KV 1.0c] section 3
 *
 *	Store     check ─ share ─ buffer ─ pull ─ put ─ answer       SHARE BUF PULL STORE
 *	Retrieve  check ─ length ─ share ─ buffer ─ get ─ push       LOOK SHARE BUF STORE PUSH
 *	List      check ─ share ─ buffer ─ keys ─ push               SHARE BUF STORE PUSH
 *	Delete    check ─ delete ─ answer                            STORE
 *	Exist     check ─ answer                                     STORE
 *
 * No copy: the pieces of a store's buffer are filled by the wire and written by the drive, and the
 * other way round. A value is handed to the store only when all of it is here and its digest was
 * right: a host that dies in the middle of a Store leaves nothing. Buffers are taken only when
 * sizes and the data descriptor have been checked.
 *
 * The length of a value is known at once where its shard is on this lane. Else it is taken to be
 * what the host has room for, as it was the last time, or that lane is asked first. Where it turns
 * out to be another one, also because it has changed meanwhile, the next buffer has the right size.
 * A namespace in memory lends what it has: there the store brings the buffer.
 *
 * Choices where readings of the command set differ are in docs/target.md. The queue's lane.
 */
#include "target/core.h"

#include <errno.h>
#include <stdlib.h>

static struct ns *kv_ns(const struct req *req)
{
	must(req->ns != NULL && req->ns->ops == &ns_kv_ops);
	return req->ns;
}

static nv_status kv_parse(struct req *req, struct bad *bad)
{
	const struct ns *ns = kv_ns(req);
	struct nv_kv_limits limits = {ns->value_bytes_max, atomic_load_explicit(
		&ns->subsys->transfer_bytes_max, memory_order_relaxed)};
	struct nv_sgl_want want;
	struct nv_data data;
	nv_status status = nv_kv_parse(&req->cmd->sqe, &limits, &req->kv, bad);

	if (!nv_status_ok(status))
		return status;
	want = (struct nv_sgl_want){req->kv.dir, req->kv.bytes, req->cmd->inline_bytes};
	return nv_sgl_check(&req->cmd->sqe, &want, &data, bad);
}

static void kv_end(struct req *req, nv_status status, uint64_t result)
{
	if (nv_status_is(status, NV_KV_UNRECOVERED))
		ctrl_unwell(req->queue->seat);
	req_answer(req, status, result);
	req_end(req);
}

/* --- Store -------------------- */

static void kv_stored(struct store_op *op, int res)
{
	struct req *req = container_of(op, struct req, op);
	struct queue *q = req->queue;

	must(req->state == REQ_STORE);
	if (res == 0)
		COUNT_BYTES(req->queue, bytes_in, req->kv.bytes);
	kv_end(req, nv_status_from_errno(res), 0);
	queue_done(q);
}

static void kv_put(struct req *req)
{
	must(req->buf != NULL && req->buf->payload_bytes == req->kv.bytes);
	must(!(req->kv.if_absent && req->kv.if_present));
	req_go(req, REQ_STORE);
	req->op = (struct store_op){.key = req->kv.key, .buf = req->buf, .done = kv_stored,
		.mode = req->kv.if_absent ? STORE_PUT_IF_ABSENT :
			req->kv.if_present ? STORE_PUT_IF_PRESENT : STORE_PUT_ANY};
	space_put(kv_ns(req)->space, req->queue->lane->loop, &req->op);
}

static void kv_pulled(struct wire_cmd *cmd, int res)
{
	struct req *req = cmd->owner;
	struct queue *q = req->queue;

	must(req->state == REQ_PULL);
	if (res == 0)
		req_moved(req);
#ifdef KVOF_PLANT_TARGET_HALF_VALUE
	if (q->state == QUEUE_DEAD || res != 0) {
		kv_put(req);
		return;
	}
#endif
	if (q->state == QUEUE_DEAD)
		req_end(req);
	else if (ns_seat(kv_ns(req), q->lane)->leaving)
		req_fail(req, NV_INVALID_NAMESPACE, NULL);
	else if (res == -EBADMSG) {
		COUNT(req->queue->lane, digest_errors, 1);
		req_fail(req, NV_TRANSIENT_TRANSPORT, NULL);
	} else if (res != 0)
		req_fail(req, NV_DATA_TRANSFER_ERROR, NULL);
	else
		kv_put(req);
	queue_done(q);
}

static void kv_store_begin(struct req *req)
{
	if (req->kv.bytes == 0) {
		kv_put(req);
		return;
	}
	req_go(req, REQ_PULL);
	wire_pull(req->cmd, req->buf->piece, req->buf->piece_count, req->kv.bytes, kv_pulled);
}

/* --- Retrieve -------------------- */

static void kv_retrieve_take(struct req *req, int res, uint32_t value_bytes);

/* The value has another length. */
static void kv_retrieve_again(struct req *req, uint32_t value_bytes)
{
	if (req->buf != NULL)
		store_buf_return(&req->buf);
	req_share_give(req);
	req->wants_buf = req->guessed = false;
	req_go(req, REQ_NEW);
	kv_retrieve_take(req, 0, value_bytes);
}

/* The shard has answered: bytes to be moved, or the value has grown, or there is none. */
static void kv_got_what(struct req *req, struct store_op *op, int res)
{
	uint32_t moves = res == 0 ? (uint32_t)bytes_min(op->value_bytes, req->kv.bytes) : 0;

	if (req->guessed && (res == 0 || res == -EBUSY))
		req->queue->seat->fits_not = op->value_bytes != req->kv.bytes;
	if (res == -EBUSY || (moves > 0 && req->buf == NULL)) {
		kv_retrieve_again(req, op->value_bytes);
	} else if (moves > 0) {
		must(req->buf->payload_bytes >= moves);
		COUNT_BYTES(req->queue, bytes_out, moves);
		req_push(req, req->buf->piece, req->buf->piece_count, moves);
#ifdef KVOF_PLANT_TARGET_SHORT_LENGTH
		req_answer(req, NV_OK, moves);
#else
		req_answer(req, NV_OK, op->value_bytes);
#endif
	} else {
		kv_end(req, nv_status_from_errno(res), res == 0 ? op->value_bytes : 0);
	}
}

static void kv_got(struct store_op *op, int res)
{
	struct req *req = container_of(op, struct req, op);
	struct queue *q = req->queue;

	must(req->state == REQ_STORE);
	if (req->buf == NULL)
		req->buf = res == 0 ? op->buf : NULL;  /* the store's */
	if (q->state == QUEUE_DEAD)
		req_end(req);
	else
		kv_got_what(req, op, res);
	queue_done(q);
}

/* With the buffer that was taken for it; without one where nothing is to be moved. */
static void kv_retrieve_begin(struct req *req)
{
	req_go(req, REQ_STORE);
	req->op = (struct store_op){.key = req->kv.key, .buf = req->buf, .done = kv_got,
		.want_bytes = req->shared ? req->kv.bytes : 0};
	space_get(kv_ns(req)->space, req->queue->lane->loop, &req->op);
}

static void kv_retrieve_take(struct req *req, int res, uint32_t value_bytes)
{
	if (res != 0 || value_bytes == 0 || req->kv.bytes == 0)
		kv_retrieve_begin(req);
	else if (kv_ns(req)->memory)
		req_share_take(req, value_bytes, kv_retrieve_begin);
	else
		req_buf_take(req, value_bytes, kv_retrieve_begin);
}

static void kv_looked(struct store_op *op, int res)
{
	struct req *req = container_of(op, struct req, op);
	struct queue *q = req->queue;

	must(req->state == REQ_LOOK && (res == 0 || res == -ENOENT));
	if (q->state == QUEUE_DEAD) {
		req_end(req);
	} else if (ns_seat(kv_ns(req), q->lane)->leaving) {
		req_fail(req, NV_INVALID_NAMESPACE, NULL);
	} else {
		if (res == 0)
			q->seat->fits_not = op->value_bytes != req->kv.bytes;
		req_go(req, REQ_NEW);
		kv_retrieve_take(req, res, op->value_bytes);
	}
	queue_done(q);
}

static void kv_retrieve_look(struct req *req)
{
	struct space *space = kv_ns(req)->space;
	struct loop *here = req->queue->lane->loop;
	uint32_t value_bytes = 0;
	int res = space_exists_now(space, here, &req->kv.key, &value_bytes);

	if (res != -EBUSY) {
		kv_retrieve_take(req, res, value_bytes);
		return;
	}
	if (!req->queue->seat->fits_not && req->kv.bytes <= kv_ns(req)->value_bytes_max) {
		req->guessed = true;
		kv_retrieve_take(req, 0, req->kv.bytes);
		return;
	}
	req_go(req, REQ_LOOK);
	req->op = (struct store_op){.key = req->kv.key, .done = kv_looked};
	space_exists(space, here, &req->op);
}

/* --- List -------------------- */

/* What a List needs while shards are asked: bounded by the share that it has taken. */
struct kv_list {
	struct space_list list;
	struct req *req;
	struct nv_kv_list_out out;
	struct kv_key key[64];
	uint32_t value_bytes[64];
	bool again;                            /* list.from was written by the round before */
	uint8_t page[];
};

static void pieces_fill(const struct store_buf *buf, const uint8_t *from, uint32_t bytes)
{
	for (unsigned i = 0; i < buf->piece_count && bytes > 0; i++) {
		uint32_t part = (uint32_t)bytes_min(buf->piece[i].iov_len, bytes);

		memcpy(buf->piece[i].iov_base, from, part);
		from += part;
		bytes -= part;
	}
	must(bytes == 0);
}

static uint32_t kv_list_room(const struct req *req)
{
	return (uint32_t)bytes_min(req->kv.bytes, TARGET_LIST_BYTES);
}

static void kv_list_end(struct req *req, struct kv_list *l)
{
	uint32_t used = l->out.used_bytes;

	must(used >= NV_KV_LIST_HEADER_BYTES && used <= req->buf->payload_bytes);
	pieces_fill(req->buf, l->page, used);
	req_push(req, req->buf->piece, req->buf->piece_count, used);
	req_answer(req, NV_OK, 0);
}

/* Keys that have come go into the page; true: more are wanted. */
static bool kv_list_add(struct kv_list *l)
{
	unsigned n = l->list.filled;

	for (unsigned i = l->again && n > 0 && kv_key_equal(&l->key[0], &l->list.from); i < n; i++)
		if (!nv_kv_list_add(&l->out, &l->key[i]))
			return false;
	if (n > 0)
		l->list.from = l->key[n - 1];
	l->again = true;
	return n == ARRAY_COUNT(l->key);
}

static void kv_listed(struct space_list *list)
{
	struct kv_list *l = container_of(list, struct kv_list, list);
	struct req *req = l->req;
	struct queue *q = req->queue;
	bool dead = q->state == QUEUE_DEAD;

	must(req->state == REQ_STORE && req->scratch == l);
	if (!dead && kv_list_add(l)) {
		space_list(kv_ns(req)->space, q->lane->loop, list);
		return;
	}
	req->scratch = NULL;
	if (dead)
		req_end(req);
	else
		kv_list_end(req, l);
	free(l);
	queue_done(q);
}

static void kv_list_begin(struct req *req)
{
	uint32_t room = kv_list_room(req);
	struct kv_list *l = calloc(1, sizeof(*l) + room);

	if (l == NULL) {
		req_fail(req, NV_INTERNAL_ERROR, NULL);
		return;
	}
	req_go(req, REQ_STORE);
	req->scratch = l;
	l->req = req;
	l->list = (struct space_list){.from = req->kv.key, .keys = l->key,
		.value_bytes = l->value_bytes, .key_count = ARRAY_COUNT(l->key),
		.done = kv_listed};
	nv_kv_list_begin(&l->out, l->page, room);
	space_list(kv_ns(req)->space, req->queue->lane->loop, &l->list);
}

/* --- the others -------------------- */

static void kv_deleted(struct store_op *op, int res)
{
	struct req *req = container_of(op, struct req, op);
	struct queue *q = req->queue;
	bool forgives = atomic_load(&q->ctrl->edneks_off) >> (req->ns->nsid - 1) & 1;

	must(req->state == REQ_STORE);
	kv_end(req, res == -ENOENT && forgives ? NV_OK : nv_status_from_errno(res), 0);
	queue_done(q);
}

static void kv_flushed(struct store_op *op, int res)
{
	struct req *req = container_of(op, struct req, op);
	struct queue *q = req->queue;

	must(req->state == REQ_STORE);
	kv_end(req, res == 0 ? NV_OK : NV_INTERNAL_ERROR, 0);
	queue_done(q);
}

static void kv_exist_answer(struct req *req, int res)
{
	kv_end(req, res == 0 ? NV_OK : NV_KV_KEY_NOT_FOUND, 0);
}

static void kv_existed(struct store_op *op, int res)
{
	struct req *req = container_of(op, struct req, op);
	struct queue *q = req->queue;

	must(req->state == REQ_STORE && (res == 0 || res == -ENOENT));
	kv_exist_answer(req, res);
	queue_done(q);
}

static void kv_exist(struct req *req)
{
	struct space *space = kv_ns(req)->space;
	struct loop *here = req->queue->lane->loop;
	uint32_t value_bytes = 0;
	int res = space_exists_now(space, here, &req->kv.key, &value_bytes);

	if (res != -EBUSY) {
		kv_exist_answer(req, res);
		return;
	}
	req_go(req, REQ_STORE);
	req->op = (struct store_op){.key = req->kv.key, .done = kv_existed};
	space_exists(space, here, &req->op);
}

static void kv_execute(struct req *req)
{
	struct ns *ns = kv_ns(req);

	switch (req->kv.opcode) {
	case NV_KV_STORE:
		COUNT(req->queue->lane, stores, 1);
		count_add(&req->queue->seat->counts.writes, 1);
		req_buf_take(req, req->kv.bytes, kv_store_begin);
		break;
	case NV_KV_RETRIEVE:
		COUNT(req->queue->lane, retrieves, 1);
		count_add(&req->queue->seat->counts.reads, 1);
		kv_retrieve_look(req);
		break;
	case NV_KV_LIST:
		COUNT(req->queue->lane, lists, 1);
		req_buf_take(req, kv_list_room(req), kv_list_begin);
		break;
	case NV_KV_EXIST:
		COUNT(req->queue->lane, exists, 1);
		kv_exist(req);
		break;
	case NV_KV_DELETE:
		COUNT(req->queue->lane, deletes, 1);
		req_go(req, REQ_STORE);
		req->op = (struct store_op){.key = req->kv.key, .done = kv_deleted};
		space_delete(ns->space, req->queue->lane->loop, &req->op);
		break;
	case NV_KV_FLUSH:
		req_go(req, REQ_STORE);
		req->op = (struct store_op){.done = kv_flushed};
		space_flush(ns->space, req->queue->lane->loop, &req->op);
		break;
	}
}

/* --- what the namespace says of itself -------------------- */

static void kv_identify(const struct ns *ns, uint8_t out[NV_IDENTIFY_BYTES])
{
	struct nv_id_kv_namespace *id = (struct nv_id_kv_namespace *)out;
	const struct store_stat *stat = &ns->stat;     /* as it was asked for just now */

	/* With no drive left it keeps its size: hosts take 0 for nonsense, and could not even ask
	 * what has failed. */
	id->nsze = le64_of(stat->capacity_bytes > 0 ? stat->capacity_bytes : ns->capacity_bytes);
	id->nuse = le64_of(stat->used_bytes);
	id->nmic = ns->nmic;
	memcpy(id->nguid, ns->ids.nguid, sizeof(id->nguid));
	memcpy(id->eui64, ns->ids.eui64, sizeof(id->eui64));
	id->kvf[0].key_bytes_max = le16_of(KV_KEY_BYTES_MAX);
	id->kvf[0].value_bytes_max = le32_of(ns->value_bytes_max);
}

static void kv_effects(struct nv_log_effects *out)
{
	out->io[NV_KV_FLUSH] = le32_of(NV_EFFECT_SUPPORTED);
	out->io[NV_KV_STORE] = le32_of(NV_EFFECT_SUPPORTED | NV_EFFECT_CONTENT);
	out->io[NV_KV_RETRIEVE] = le32_of(NV_EFFECT_SUPPORTED);
	out->io[NV_KV_LIST] = le32_of(NV_EFFECT_SUPPORTED);
	out->io[NV_KV_DELETE] = le32_of(NV_EFFECT_SUPPORTED | NV_EFFECT_CONTENT);
	out->io[NV_KV_EXIST] = le32_of(NV_EFFECT_SUPPORTED);
}

const struct ns_ops ns_kv_ops = {
	.csi = NV_CSI_KV, .parse = kv_parse, .execute = kv_execute, .identify = kv_identify,
	.effects = kv_effects,
};
