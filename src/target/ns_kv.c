/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A KV namespace over a store: Store, Retrieve, Exist, Delete, List, Flush. [KV 1.0c] section 3
 *
 *	Store     check ─ share ─ buffer ─ pull ─ put ─ answer          NEW SHARE BUF PULL STORE
 *	Retrieve  check ─ share ─ get ─ push + answer ─ give back       NEW SHARE     STORE PUSH
 *	List      check ─ share ─ buffer ─ fill ─ push + answer         NEW SHARE BUF       PUSH
 *	Delete    check ─ delete ─ answer                               NEW           STORE
 *	Exist     check ─ answer                                        NEW
 *
 * No copy: the pieces of a store's buffer are filled by the wire and written by the drive, and the
 * other way round. A value is handed to the store only when all of it is here and its digest was
 * right: a host that dies in the middle of a Store leaves nothing. Buffers are taken only when
 * sizes and the data descriptor have been checked.
 *
 * Choices where readings of the command set differ are in docs/target.md. The target's loop.
 */
#include "target/core.h"

#include <errno.h>

static struct ns *kv_ns(const struct req *req)
{
	must(req->ns != NULL && req->ns->ops == &ns_kv_ops);
	return req->ns;
}

static struct target_counts *counts(const struct req *req)
{
	return &req->queue->target->counts;
}

static nv_status kv_parse(struct req *req, struct bad *bad)
{
	const struct ns *ns = kv_ns(req);
	struct nv_kv_limits limits = {ns->value_bytes_max, ns->transfer_bytes_max};
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
		subsys_health_look(req->queue->ctrl->subsys);
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
		counts(req)->bytes_in += req->kv.bytes;
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
	store_put(kv_ns(req)->store, &req->op);
}

static void kv_pulled(struct wire_cmd *cmd, int res)
{
	struct req *req = cmd->owner;
	struct queue *q = req->queue;

	must(req->state == REQ_PULL);
	if (res == 0)
		req_pull_came(req);
#ifdef KVOF_PLANT_TARGET_HALF_VALUE
	if (q->state == QUEUE_DEAD || res != 0) {
		kv_put(req);
		return;
	}
#endif
	if (q->state == QUEUE_DEAD)
		req_end(req);
	else if (kv_ns(req)->leaving)
		req_fail(req, NV_INVALID_NAMESPACE, NULL);
	else if (res == -EBADMSG) {
		counts(req)->digest_errors++;
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

static void kv_got(struct store_op *op, int res)
{
	struct req *req = container_of(op, struct req, op);
	struct queue *q = req->queue;
	uint32_t moves;

	must(req->state == REQ_STORE);
	req->buf = res == 0 ? op->buf : NULL;
	if (q->state == QUEUE_DEAD) {
		req_end(req);
		queue_done(q);
		return;
	}
	moves = res == 0 ? (uint32_t)bytes_min(op->value_bytes, req->kv.bytes) : 0;
	req_share_give(req, moves);
	if (res == 0 && moves > 0) {
		must(req->buf != NULL && req->buf->payload_bytes >= moves);
		counts(req)->bytes_out += moves;
		req_push(req, req->buf->piece, req->buf->piece_count, moves);
#ifdef KVOF_PLANT_TARGET_SHORT_LENGTH
		req_answer(req, NV_OK, moves);
#else
		req_answer(req, NV_OK, op->value_bytes);
#endif
	} else {
		kv_end(req, nv_status_from_errno(res), res == 0 ? op->value_bytes : 0);
	}
	queue_done(q);
}

/* What the store will probably take: hosts offer room for the largest and fetch small values. */
static uint32_t kv_retrieve_room(struct req *req)
{
	uint32_t value_bytes = 0;

	if (!store_exists(kv_ns(req)->store, &req->kv.key, &value_bytes))
		return 0;
	return (uint32_t)bytes_min(value_bytes, req->kv.bytes);
}

static void kv_retrieve_begin(struct req *req)
{
	req_go(req, REQ_STORE);
	req->op = (struct store_op){
		.key = req->kv.key, .want_bytes = req->kv.bytes, .done = kv_got};
	store_get(kv_ns(req)->store, &req->op);
}

/* --- List -------------------- */

/* Keys from `from` on, as many as fit; returns the length of the answer. */
static uint32_t kv_list_write(struct ns *ns, const struct kv_key *first, uint8_t *page,
			      uint32_t bytes)
{
	struct nv_kv_list_out out;
	struct kv_key from = *first, key[64];
	uint32_t value_bytes[64];
	bool again = false;                            /* from was written by the round before */
	unsigned n;

	nv_kv_list_begin(&out, page, bytes);
	do {
		n = store_list(ns->store, &from, key, value_bytes, ARRAY_COUNT(key));
		must(n <= ARRAY_COUNT(key));
		for (unsigned i = again && n > 0 && kv_key_equal(&key[0], &from); i < n; i++)
			if (!nv_kv_list_add(&out, &key[i]))
				return out.used_bytes;
		if (n > 0)
			from = key[n - 1];
		again = true;
	} while (n == ARRAY_COUNT(key));
	return out.used_bytes;
}

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

static void kv_list_begin(struct req *req)
{
	struct target *t = req->queue->target;
	uint32_t used = kv_list_write(kv_ns(req), &req->kv.key, t->list_page, kv_list_room(req));

	must(used >= NV_KV_LIST_HEADER_BYTES && used <= req->buf->payload_bytes);
	pieces_fill(req->buf, t->list_page, used);
	req_push(req, req->buf->piece, req->buf->piece_count, used);
	req_answer(req, NV_OK, 0);
}

/* --- the others -------------------- */

static void kv_deleted(struct store_op *op, int res)
{
	struct req *req = container_of(op, struct req, op);
	struct queue *q = req->queue;
	bool forgives = q->ctrl->edneks_off >> (req->ns->nsid - 1) & 1;

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

static void kv_exist(struct req *req)
{
	uint32_t value_bytes = 0;
	bool there = store_exists(kv_ns(req)->store, &req->kv.key, &value_bytes);

	kv_end(req, there ? NV_OK : NV_KV_KEY_NOT_FOUND, 0);
}

static void kv_execute(struct req *req)
{
	struct ns *ns = kv_ns(req);

	switch (req->kv.opcode) {
	case NV_KV_STORE:
		counts(req)->stores++;
		req_buf_take(req, req->kv.bytes, kv_store_begin);
		break;
	case NV_KV_RETRIEVE:
		counts(req)->retrieves++;
		req_share_take(req, kv_retrieve_room(req), kv_retrieve_begin);
		break;
	case NV_KV_LIST:
		counts(req)->lists++;
		req_buf_take(req, kv_list_room(req), kv_list_begin);
		break;
	case NV_KV_EXIST:
		counts(req)->exists++;
		kv_exist(req);
		break;
	case NV_KV_DELETE:
		counts(req)->deletes++;
		req_go(req, REQ_STORE);
		req->op = (struct store_op){.key = req->kv.key, .done = kv_deleted};
		store_delete(ns->store, &req->op);
		break;
	case NV_KV_FLUSH:
		req_go(req, REQ_STORE);
		req->op = (struct store_op){.done = kv_flushed};
		store_flush(ns->store, &req->op);
		break;
	}
}

/* --- what the namespace says of itself -------------------- */

static void kv_identify(const struct ns *ns, uint8_t out[NV_IDENTIFY_BYTES])
{
	struct nv_id_kv_namespace *id = (struct nv_id_kv_namespace *)out;
	struct store_stat stat;

	store_stat(ns->store, &stat);
	/* With no drive left it keeps its size: hosts take 0 for nonsense, and could not even ask
	 * what has failed. */
	id->nsze = le64_of(stat.capacity_bytes > 0 ? stat.capacity_bytes : ns->capacity_bytes);
	id->nuse = le64_of(stat.used_bytes);
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
