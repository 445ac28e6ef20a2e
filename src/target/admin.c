/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admin commands: which there are, Identify, and the small ones. Features are in feature.c, log
 * pages in logpage.c. Each checks everything first and takes the controller's page last, so that
 * nothing can fail while it is held. The target's loop.
 *
 * A KV namespace has no blocks. CNS 00h tells a host that set CC.CSS to 110b identifiers and a
 * size in bytes, with no block format (hosts take NCAP 0 for a namespace that is not there); one
 * that knows no command sets is told a size of zero, and sees an empty disk, not one to format.
 */
#include "target/core.h"

static const uint8_t admin_opcodes[] = {
	NV_ADMIN_GET_LOG_PAGE, NV_ADMIN_IDENTIFY, NV_ADMIN_ABORT, NV_ADMIN_SET_FEATURES,
	NV_ADMIN_GET_FEATURES, NV_ADMIN_ASYNC_EVENT, NV_ADMIN_KEEP_ALIVE,
};

/* --- Identify -------------------- */

static void identify_controller(const struct ctrl *c, struct nv_id_controller *id)
{
	const struct subsys *s = c->subsys;
	uint64_t transfer = atomic_load(&s->transfer_bytes_max);

	nv_text_pad(id->sn, sizeof(id->sn), s->serial);
	nv_text_pad(id->mn, sizeof(id->mn), s->discovery ? "kvof discovery" : "kvof array");
	nv_text_pad(id->fr, sizeof(id->fr), KVOF_VERSION);
	while (transfer >> 12 > UINT64_C(1) << id->mdts)
		id->mdts++;
	id->cntlid = le16_of(c->cntlid);
	id->ver = le32_of(NV_VS(2, 0, 0));
	id->oaes = le32_of(s->discovery ? NV_OAES_DISCOVERY : NV_OAES_NAMESPACE);
	id->ctratt = le32_of(NV_CTRATT_HOSTID_128 | NV_CTRATT_TBKAS);
	id->cntrltype = s->discovery ? NV_CNTRLTYPE_DISCOVERY : NV_CNTRLTYPE_IO;
	id->acl = 3;
	id->aerl = TARGET_EVENTS - 1;
	id->frmw = 0x03;                               /* one slot, read only */
	id->lpa = NV_LPA_EFFECTS | NV_LPA_EXTENDED;
	id->elpe = TARGET_ERRORS - 1;
	id->kas = le16_of(1);
	id->maxcmd = le16_of(TARGET_QUEUE_ENTRIES);
	id->sgls = le32_of(NV_SGLS_ANY | NV_SGLS_OFFSET | NV_SGLS_TRANSPORT);
	memcpy(id->subnqn, s->nqn, strlen(s->nqn));
	if (s->discovery)
		return;
	id->cmic = s->target->multipath ? NV_CMIC_CONTROLLERS : 0;
	id->sqes = 0x66;
	id->cqes = 0x44;
	id->nn = le32_of(TARGET_NAMESPACES);
	id->mnan = le32_of(TARGET_NAMESPACES);
	id->oncs = le16_of(NV_ONCS_SAVE | NV_ONCS_COMPARE | NV_ONCS_DSM | NV_ONCS_WRITE_ZEROES |
			   NV_ONCS_VERIFY);
	/* Always: hosts ask once, and a namespace that needs a Flush may come later. No Flush of
	 * FFFFFFFFh. */
	id->vwc = NV_VWC_PRESENT | 2 << 1;
	id->ioccsz = le32_of((uint32_t)(sizeof(struct nv_sqe) + TARGET_INLINE_BYTES) / 16);
	id->iorcsz = le32_of(sizeof(struct nv_cqe) / 16);
	id->msdbd = 1;
	id->ofcs = le16_of(NV_OFCS_DISCONNECT);
}

/* Namespaces above `after` with this command set (any: csi -1). */
static void identify_list(const struct subsys *s, uint32_t after, int csi, struct nv_id_list *id)
{
	unsigned n = 0;

	for (unsigned i = 0; i < TARGET_NAMESPACES; i++) {
		const struct ns *ns = subsys_ns(s, i + 1);

		if (ns != NULL && ns->nsid > after && (csi < 0 || ns->ops->csi == csi))
			id->nsid[n++] = le32_of(ns->nsid);
	}
}

static void identify_namespace(const struct ctrl *c, const struct ns *ns,
			       struct nv_id_namespace *id)
{
	if (ns->ops->csi == NV_CSI_NVM) {
		ns->ops->identify(ns, (uint8_t *)id);
		return;
	}
	if ((c->cc & NV_CC_CSS) == NV_CC_CSS_IOCS) {
		const struct store_stat *stat = &ns->stat;
		uint64_t bytes = stat->capacity_bytes > 0 ? stat->capacity_bytes :
							    ns->capacity_bytes;

		id->nsze = id->ncap = le64_of(bytes);
		id->nuse = le64_of(stat->used_bytes);
	}
	id->nmic = ns->nmic;
	memcpy(id->nguid, ns->ids.nguid, sizeof(id->nguid));
	memcpy(id->eui64, ns->ids.eui64, sizeof(id->eui64));
}

static void identify_independent(const struct ns *ns, struct nv_id_independent *id)
{
	id->nmic = ns->nmic;
	id->nstat = NV_NSTAT_READY;
}

static void identify_command_sets(const struct subsys *s, struct nv_id_command_sets *id)
{
	uint64_t sets = 0;

	for (unsigned i = 0; i < TARGET_NAMESPACES; i++)
		if (subsys_ns(s, i + 1) != NULL)
			sets |= UINT64_C(1) << s->ns[i]->ops->csi;
	id->vector[0] = le64_of(sets);
}

/* The page is ours and zero: fill it and send. Everything was checked by identify_check(). */
static void identify_fill(struct req *req)
{
	struct nv_identify what = nv_identify_parse(&req->cmd->sqe);
	struct ctrl *c = req->queue->ctrl;
	struct subsys *s = c->subsys;
	struct ns *ns = subsys_ns(s, what.nsid);
	void *out = c->page;

	switch (what.cns) {
	case NV_CNS_CONTROLLER:
		identify_controller(c, out);
		break;
	case NV_CNS_ACTIVE_LIST:
	case NV_CNS_ALLOCATED_LIST:
		identify_list(s, what.nsid, -1, out);
		break;
	case NV_CNS_CSI_ACTIVE_LIST:
		identify_list(s, what.nsid, what.csi, out);
		break;
	case NV_CNS_COMMAND_SETS:
		identify_command_sets(s, out);
		break;
	case NV_CNS_CSI_CONTROLLER:
		if (what.csi == NV_CSI_KV)
			((struct nv_id_kv_controller *)out)->ver = le32_of(NV_VS(1, 0, 0));
		else
			((struct nv_id_nvm_controller *)out)->dmrsl =
				le32_of(TARGET_DEALLOCATE_BLOCKS);
		break;
	case NV_CNS_DESCRIPTORS:
		if (ns != NULL)                /* it may have gone while this waited */
			nv_ns_ids_write(&ns->ids, out);
		break;
	default: /* of a namespace; zeros where there is none */
		if (ns == NULL)
			break;
		if (what.cns == NV_CNS_INDEPENDENT)
			identify_independent(ns, out);
		else if (what.cns == NV_CNS_CSI_NAMESPACE && ns->ops->csi == NV_CSI_NVM)
			break;                         /* no protection information: zeros */
		else if (what.cns == NV_CNS_CSI_NAMESPACE)
			ns->ops->identify(ns, out);
		else
			identify_namespace(c, ns, out);
	}
	ctrl_page_send(c, req, NV_IDENTIFY_BYTES, NV_IDENTIFY_BYTES);
}

static nv_status identify_check(const struct subsys *s, const struct nv_identify *what,
				struct bad *bad)
{
	const uint16_t at_nsid = offsetof(struct nv_sqe, nsid), at_csi = 47;
	const struct ns *ns = subsys_ns(s, what->nsid);

	switch (what->cns) {
	case NV_CNS_CONTROLLER:
		break;
	case NV_CNS_COMMAND_SETS:
	case NV_CNS_CSI_CONTROLLER:
		if (s->discovery || (what->cns == NV_CNS_CSI_CONTROLLER && what->csi > NV_CSI_KV))
			return nv_bad(bad, NV_INVALID_FIELD, at_csi, "no such command set");
		break;
	case NV_CNS_ACTIVE_LIST:
	case NV_CNS_ALLOCATED_LIST:
	case NV_CNS_CSI_ACTIVE_LIST:
		if (what->nsid >= NV_NSID_ALL - 1)
			return nv_bad(bad, NV_INVALID_NAMESPACE, at_nsid, "list starts too high");
		if (s->discovery || (what->cns == NV_CNS_CSI_ACTIVE_LIST && what->csi > NV_CSI_KV))
			return nv_bad(bad, NV_INVALID_FIELD, at_csi, "no such command set");
		return NV_OK;
	case NV_CNS_NAMESPACE:
	case NV_CNS_ALLOCATED_NAMESPACE:
	case NV_CNS_DESCRIPTORS:
	case NV_CNS_CSI_NAMESPACE:
	case NV_CNS_INDEPENDENT:
		if (s->discovery || what->nsid < 1 || what->nsid > TARGET_NAMESPACES ||
		    (ns == NULL && what->cns == NV_CNS_DESCRIPTORS))
			return nv_bad(bad, NV_INVALID_NAMESPACE, at_nsid, "no such namespace");
		if (what->cns == NV_CNS_CSI_NAMESPACE &&
		    (what->csi > NV_CSI_KV || (ns != NULL && ns->ops->csi != what->csi)))
			return nv_bad(bad, NV_INVALID_FIELD, at_csi,
				      "not the command set of this namespace");
		return NV_OK;
	default:
		return nv_bad(bad, NV_INVALID_FIELD, offsetof(struct nv_sqe, cdw10), "no such CNS");
	}
	if (what->nsid != 0 && what->nsid != NV_NSID_ALL)
		return nv_bad(bad, NV_INVALID_NAMESPACE, at_nsid, "a namespace is not meant here");
	return NV_OK;
}

static void identify_take_page(struct req *req)
{
	ctrl_page_take(req->queue->ctrl, req, identify_fill);
}

static void identify(struct req *req)
{
	struct nv_identify what = nv_identify_parse(&req->cmd->sqe);
	struct ctrl *c = req->queue->ctrl;
	struct bad bad;
	nv_status status = identify_check(c->subsys, &what, &bad);

	if (!nv_status_ok(status)) {
		req_fail(req, status, &bad);
		return;
	}
	if (!req_data_check(req, NV_DATA_TO_HOST, NV_IDENTIFY_BYTES))
		return;
	if (what.cns == NV_CNS_CSI_NAMESPACE || what.cns == NV_CNS_NAMESPACE ||
	    what.cns == NV_CNS_ALLOCATED_NAMESPACE)
		req_stats_take(req, identify_take_page);       /* how full it is */
	else
		identify_take_page(req);
}

/* --- the small ones -------------------- */

/* On the queue's lane. */
static bool queue_abort(struct queue *q, const struct req *self, uint16_t cid)
{
	for (unsigned i = 0; q->state != QUEUE_DEAD && i < q->entries; i++) {
		struct req *req = &q->req[i];

		if (req != self && req->state != REQ_FREE && !req->answered && q->cid[i] == cid)
			return req_recall(req, NV_ABORTED_BY_REQUEST);
	}
	return false;
}

static void abort_answer(struct req *req, bool done)
{
	req_answer(req, NV_OK, done ? 0 : NV_ABORT_NOT_DONE);
	req_end(req);
}

static void abort_answered(struct loop *here, struct msg *m)
{
	struct req *req = container_of(m, struct req, ask);
	struct queue *q = req->queue;

	must(here == q->lane->loop && req->state == REQ_STORE);
	if (q->state == QUEUE_DEAD)
		req_end(req);
	else
		abort_answer(req, req->aborted);
	queue_done(q);
}

/* The lane that the command is on. */
static void abort_asked(struct loop *here, struct msg *m)
{
	struct req *req = container_of(m, struct req, ask);
	struct ctrl *c = req->queue->ctrl;
	struct lane *lane = &c->target->lane[req->abort_lane];

	must(here == lane->loop);
	LIST_FOR_EACH(link, &lane->queues) {
		struct queue *q = container_of(link, struct queue, link);

		if (q->ctrl != c || q->qid != req->abort.sqid || q->state == QUEUE_DEAD)
			continue;
		req->aborted = queue_abort(q, NULL, req->abort.cid);
		queue_done(q);
		break;
	}
	m->run = abort_answered;
	lane_send(lane, &c->target->lane[0], m);
}

static void abort_command(struct req *req)
{
	struct ctrl *c = req->queue->ctrl;
	struct nv_abort what = nv_abort_parse(&req->cmd->sqe);
	struct queue *q = what.sqid <= TARGET_QUEUES ? c->queue[what.sqid] : NULL;

	if (what.sqid == 0 && event_request_abort(c, what.cid)) {
		abort_answer(req, true);
	} else if (q == NULL) {
		abort_answer(req, false);
	} else if (c->queue_lane[what.sqid] == req->queue->lane->index) {
		abort_answer(req, queue_abort(q, req, what.cid));
	} else {
		req_go(req, REQ_STORE);
		req->abort = what;
		req->abort_lane = c->queue_lane[what.sqid];
		req->ask.run = abort_asked;
		lane_send(req->queue->lane, &c->target->lane[req->abort_lane], &req->ask);
	}
}

void admin_command(struct req *req)
{
	const struct nv_sqe *sqe = &req->cmd->sqe;
	struct ctrl *c = req->queue->ctrl;
	bool scoped = sqe->opcode != NV_ADMIN_KEEP_ALIVE && sqe->opcode != NV_ADMIN_ASYNC_EVENT &&
		      sqe->opcode != NV_ADMIN_ABORT;

	must(req->queue->qid == 0);
	if (memchr(admin_opcodes, sqe->opcode, sizeof(admin_opcodes)) == NULL) {
		req_fail(req, NV_INVALID_OPCODE, &(struct bad){0, "no such admin command"});
		return;
	}
	if (c->state != CTRL_READY) {
		req_fail(req, NV_SEQUENCE_ERROR, NULL);
		return;
	}
	if (!scoped && le32_get(sqe->nsid) != 0 && le32_get(sqe->nsid) != NV_NSID_ALL) {
		req_fail(req, NV_INVALID_FIELD,
			 &(struct bad){offsetof(struct nv_sqe, nsid), "a namespace is not meant"});
		return;
	}
	switch (sqe->opcode) {
	case NV_ADMIN_IDENTIFY:
		identify(req);
		break;
	case NV_ADMIN_GET_LOG_PAGE:
		logpage_get(req);
		break;
	case NV_ADMIN_SET_FEATURES:
		feature_set(req);
		break;
	case NV_ADMIN_GET_FEATURES:
		feature_get(req);
		break;
	case NV_ADMIN_ABORT:
		abort_command(req);
		break;
	case NV_ADMIN_ASYNC_EVENT:
		event_request(req);
		break;
	default:                                       /* Keep Alive: arriving is all it does */
		subsys_health_look(c->subsys);
		req_answer(req, NV_OK, 0);
		req_end(req);
	}
}
