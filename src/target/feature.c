/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Set and Get Features. A row of the table says what a feature is: whether a Discovery controller
 * has it, whether it can be set, whether a namespace is named. Values live in the controller and go
 * back to their defaults with a controller reset; nothing is saved (SV is 1/0Dh).
 *
 * Delete of an absent key (EDNEK) is kept per controller and namespace: a host that wants success
 * for it must not change what other hosts see. The target's loop.
 */
#include "target/core.h"

struct feature_row {
	uint8_t fid;
	bool discovery, changeable, per_namespace;
	uint32_t allowed;                              /* bits of CDW11 that may be set */
	uint32_t standard;                             /* its value after a reset */
};

static const struct feature_row feature_rows[] = {
	{NV_FEAT_ARBITRATION, false, true, false, UINT32_C(0xffffff07), 0},
	{NV_FEAT_POWER, false, true, false, 0xe0, 0}, /* one power state: 0 */
	{NV_FEAT_TEMPERATURE, false, true, false, 0x3fffff, 0},
	{NV_FEAT_ERROR_RECOVERY, false, true, false, 0xffff, 0},
	{NV_FEAT_WRITE_CACHE, false, false, false, 1, 1},
	{NV_FEAT_QUEUES, false, true, false, UINT32_MAX, 0},
	{NV_FEAT_ASYNC_EVENTS, true, true, false,
	 0x1f | NV_ASYNC_NAMESPACE | NV_ASYNC_DISCOVERY, 0},
	{NV_FEAT_KEEP_ALIVE, true, true, false, UINT32_MAX, 0},
	{NV_FEAT_COMMAND_SET, false, true, false, 0x1ff, 0},
	{NV_FEAT_KV_CONFIGURATION, false, true, true, NV_KV_EDNEK, NV_KV_EDNEK},
	{NV_FEAT_HOST_ID, false, false, false, 1, 0},
};

static const struct feature_row *feature_find(const struct ctrl *c, uint8_t fid)
{
	for (unsigned i = 0; i < ARRAY_COUNT(feature_rows); i++)
		if (feature_rows[i].fid == fid)
			return c->subsys->discovery && !feature_rows[i].discovery ?
				NULL : &feature_rows[i];
	return NULL;
}

/* What Get and Set have in common: the feature is one, and the namespace fits it. */
static nv_status feature_check(struct ctrl *c, const struct nv_feature *f,
			       const struct feature_row **row, struct bad *bad)
{
	*row = feature_find(c, f->fid);
	if (*row == NULL)
		return nv_bad(bad, NV_INVALID_FIELD, offsetof(struct nv_sqe, cdw10),
			      "no such feature");
	if ((*row)->per_namespace) {
		if (subsys_ns(c->subsys, f->nsid) == NULL)
			return nv_bad(bad, NV_INVALID_NAMESPACE, offsetof(struct nv_sqe, nsid),
				      "no such namespace");
	} else if (f->nsid != 0 && f->nsid != NV_NSID_ALL) {
		return nv_bad(bad, NV_FEATURE_NOT_NAMESPACE, offsetof(struct nv_sqe, nsid),
			      "feature of the controller");
	}
	return NV_OK;
}

static uint32_t *feature_word(struct ctrl *c, uint8_t fid)
{
	switch (fid) {
	case NV_FEAT_ARBITRATION:
		return &c->feature_arbitration;
	case NV_FEAT_POWER:
		return &c->feature_power;
	case NV_FEAT_TEMPERATURE:
		return &c->feature_temperature;
	case NV_FEAT_ERROR_RECOVERY:
		return &c->feature_recovery;
	case NV_FEAT_ASYNC_EVENTS:
		return &c->events_on;
	default:
		return NULL;
	}
}

static uint32_t queues_pack(const struct ctrl *c)
{
	return nv_queue_counts_pack((struct nv_queue_counts){c->queues_granted, c->queues_granted});
}

static nv_status queues_set(struct ctrl *c, uint32_t cdw11, uint64_t *result, struct bad *bad)
{
	struct nv_queue_counts asked;
	nv_status status = nv_queue_counts_parse(cdw11, &asked, bad);
	uint32_t least;

	if (!nv_status_ok(status))
		return status;
	if (c->io_queues > 0)
		return nv_bad(bad, NV_SEQUENCE_ERROR, UINT16_MAX, "I/O queues exist already");
	least = asked.submission < asked.completion ? asked.submission : asked.completion;
	c->queues_granted = least < c->target->queues_max ? least : c->target->queues_max;
	*result = queues_pack(c);
	return NV_OK;
}

static nv_status feature_store(struct ctrl *c, const struct nv_feature *f, uint64_t *result,
			       struct bad *bad)
{
	uint32_t *word = feature_word(c, f->fid);
	uint64_t bit;

	must(feature_find(c, f->fid) != NULL);
	if (word != NULL) {
		*word = f->cdw11;
		return NV_OK;
	}
	switch (f->fid) {
	case NV_FEAT_QUEUES:
		return queues_set(c, f->cdw11, result, bad);
	case NV_FEAT_KEEP_ALIVE:
		ctrl_keep_alive_set(c, f->cdw11);
		return NV_OK;
	case NV_FEAT_COMMAND_SET:              /* the one combination that CNS 1Ch lists */
		if (f->cdw11 == 0)
			return NV_OK;
		return nv_bad(bad, NV_IOCS_REJECTED, offsetof(struct nv_sqe, cdw11), "combination");
	default:
		must(f->fid == NV_FEAT_KV_CONFIGURATION);
		bit = UINT64_C(1) << (f->nsid - 1);
		if (f->cdw11 & NV_KV_EDNEK)
			atomic_fetch_and(&c->edneks_off, ~bit);
		else
			atomic_fetch_or(&c->edneks_off, bit);
		return NV_OK;
	}
}

void feature_set(struct req *req)
{
	struct nv_feature f = nv_feature_set_parse(&req->cmd->sqe);
	struct ctrl *c = req->queue->ctrl;
	const struct feature_row *row;
	uint64_t result = 0;
	struct bad bad;
	nv_status status = feature_check(c, &f, &row, &bad);

	if (nv_status_ok(status) && f.save)
		status = nv_bad(&bad, NV_FEATURE_NOT_SAVEABLE, offsetof(struct nv_sqe, cdw10) + 3,
				"nothing is saved");
	if (nv_status_ok(status) && !row->changeable)
		status = nv_bad(&bad, NV_FEATURE_NOT_CHANGEABLE, offsetof(struct nv_sqe, cdw10),
				"can't be changed");
	if (nv_status_ok(status) && (f.cdw11 & ~row->allowed) != 0)
		status = nv_bad(&bad, NV_INVALID_FIELD, offsetof(struct nv_sqe, cdw11),
				"value is not one of this feature");
	if (nv_status_ok(status))
		status = feature_store(c, &f, &result, &bad);
	if (!nv_status_ok(status)) {
		req_fail(req, status, &bad);
		return;
	}
	req_answer(req, NV_OK, result);
	req_end(req);
}

static uint32_t feature_value(struct ctrl *c, const struct nv_feature *f)
{
	const uint32_t *word = feature_word(c, f->fid);

	if (word != NULL)
		return *word;
	switch (f->fid) {
	case NV_FEAT_QUEUES:
		return queues_pack(c);
	case NV_FEAT_KEEP_ALIVE:
		return (uint32_t)(c->kato_ns / NS_PER_MS);
	case NV_FEAT_WRITE_CACHE:
		return 1;
	case NV_FEAT_KV_CONFIGURATION:
		return c->edneks_off >> (f->nsid - 1) & 1 ? 0 : NV_KV_EDNEK;
	default:
		return 0;
	}
}

/* Host Identifier is the one feature with data: the 16 bytes that Connect brought (EXHID). */
static void host_id_fill(struct req *req)
{
	struct ctrl *c = req->queue->ctrl;

	memcpy(c->page, c->hostid, sizeof(c->hostid));
	ctrl_page_send(c, req, sizeof(c->hostid), sizeof(c->hostid));
}

void feature_get(struct req *req)
{
	struct ctrl *c = req->queue->ctrl;
	const struct feature_row *row;
	struct nv_feature f;
	struct bad bad;
	uint32_t value;
	nv_status status = nv_feature_get_parse(&req->cmd->sqe, &f, &bad);

	if (nv_status_ok(status))
		status = feature_check(c, &f, &row, &bad);
	if (nv_status_ok(status) && f.fid == NV_FEAT_HOST_ID && f.select != NV_SEL_SUPPORTED &&
	    (f.cdw11 & 1) == 0)
		status = nv_bad(&bad, NV_HOSTID_FORMAT, offsetof(struct nv_sqe, cdw11),
				"only the 128-bit identifier (EXHID)");
	if (!nv_status_ok(status)) {
		req_fail(req, status, &bad);
		return;
	}
	if (f.fid == NV_FEAT_HOST_ID && f.select != NV_SEL_SUPPORTED) {
		if (req_data_check(req, NV_DATA_TO_HOST, sizeof(c->hostid)))
			ctrl_page_take(c, req, host_id_fill);
		return;
	}
	if (f.select == NV_SEL_SUPPORTED)      /* bit 1: per namespace, bit 2: changeable */
		value = (uint32_t)row->per_namespace << 1 | (uint32_t)row->changeable << 2;
	else
		value = f.select == NV_SEL_CURRENT ? feature_value(c, &f) : row->standard;
	req_answer(req, NV_OK, value);
	req_end(req);
}
