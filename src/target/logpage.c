/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Get Log Page. A page is built whole in the controller's page buffer, then the part asked for
 * moves to its front; what lies past the log's end is zeros. An offset past the end is refused. The
 * target's loop.
 *
 * SMART says what is known and no more: the part of the drives that still serves (spare), what
 * this controller read and wrote for its host, errors. Temperature, hours and wear are the
 * drives' own and not known here: zero.
 */
#include "target/core.h"

struct log_row {
	uint8_t lid;
	bool io, discovery;                            /* which controllers have it */
	uint32_t bytes;                                /* 0: varies */
	uint32_t (*build)(struct ctrl *c, const struct nv_log *log);   /* into c->page; bytes */
};

static uint32_t log_supported(struct ctrl *c, const struct nv_log *log);

static uint32_t log_error(struct ctrl *c, const struct nv_log *log)
{
	struct nv_log_error *out = (struct nv_log_error *)c->page;
	uint64_t kept;

	ctrl_errors_fetch(c);
	kept = c->errors < TARGET_ERRORS ? c->errors : TARGET_ERRORS;

	for (uint64_t i = 0; i < kept; i++)            /* newest first */
		out[i] = c->error[(c->errors - 1 - i) % TARGET_ERRORS];
	return TARGET_ERRORS * sizeof(*out);
}

static uint32_t log_smart(struct ctrl *c, const struct nv_log *log)
{
	struct nv_log_smart *out = (struct nv_log_smart *)c->page;
	struct target_host_counts n;
	uint64_t media_errors = 0;
	unsigned spare = 100;

	host_counts(c, &n);
	if (!log->retain_event)
		event_log_read(c, EVENT_HEALTH);
	for (uint32_t nsid = 1; nsid <= TARGET_NAMESPACES; nsid++) {
		const struct ns *ns = subsys_ns(c->subsys, nsid);
		const struct store_stat *stat = ns != NULL ? &ns->stat : NULL;
		unsigned left;

		if (ns == NULL)
			continue;
		must(stat->drives_failed <= stat->drives);
		media_errors += stat->corrupt + stat->io_errors;
		left = stat->drives == 0 ? 0 :
		       100 * (stat->drives - stat->drives_failed) / stat->drives;
		spare = left < spare ? left : spare;
		if (stat->drives_failed > 0)
			out->critical_warning |= 1 << 2;       /* reliability is degraded */
	}
	out->available_spare = (uint8_t)spare;
	out->available_spare_threshold = 10;
	if (spare < 10)
		out->critical_warning |= 1 << 0;               /* spare below its threshold */
	out->data_units_read[0] = le64_of((n.bytes_out + 511999) / 512000);
	out->data_units_written[0] = le64_of((n.bytes_in + 511999) / 512000);
	out->host_reads[0] = le64_of(n.reads);
	out->host_writes[0] = le64_of(n.writes);
	out->media_errors[0] = le64_of(media_errors);
	ctrl_errors_fetch(c);
	out->error_log_entries[0] = le64_of(c->errors);
	return sizeof(*out);
}

static uint32_t log_firmware(struct ctrl *c, const struct nv_log *log)
{
	struct nv_log_firmware *out = (struct nv_log_firmware *)c->page;

	out->active = 1;
	nv_text_pad(out->revision[0], sizeof(out->revision[0]), KVOF_VERSION);
	return sizeof(*out);
}

static uint32_t log_changed(struct ctrl *c, const struct nv_log *log)
{
	struct nv_log_changed *out = (struct nv_log_changed *)c->page;
	unsigned n = 0;

	_Static_assert(TARGET_NAMESPACES <= 64, "a bit each");
	for (uint32_t nsid = 1; nsid <= TARGET_NAMESPACES; nsid++)
		if (c->changed >> (nsid - 1) & 1)
			out->nsid[n++] = le32_of(nsid);
	if (!log->retain_event) {
		c->changed = 0;
		event_log_read(c, EVENT_NAMESPACE);
	}
	return sizeof(*out);
}

/* Linux shows no KV namespace whose controller doesn't answer this with CSI 01h. */
static uint32_t log_effects(struct ctrl *c, const struct nv_log *log)
{
	static const uint8_t admin[] = {
		NV_ADMIN_GET_LOG_PAGE, NV_ADMIN_IDENTIFY, NV_ADMIN_ABORT, NV_ADMIN_SET_FEATURES,
		NV_ADMIN_GET_FEATURES, NV_ADMIN_ASYNC_EVENT, NV_ADMIN_KEEP_ALIVE,
	};
	struct nv_log_effects *out = (struct nv_log_effects *)c->page;

	for (unsigned i = 0; i < sizeof(admin); i++)
		out->admin[admin[i]] = le32_of(NV_EFFECT_SUPPORTED);
	/* Also for command sets of which there is no namespace yet: hosts ask once. */
	if (log->csi == NV_CSI_KV)
		ns_kv_ops.effects(out);
	else
		ns_block_ops.effects(out);
	return sizeof(*out);
}

static uint32_t log_discovery(struct ctrl *c, const struct nv_log *log)
{
	if (!log->retain_event)
		event_log_read(c, EVENT_DISCOVERY);
	return discovery_log(c->target, c->hostnqn, c->page, c->page_bytes);
}

/* The namespace that is named, or the first. */
static const struct ns *stat_ns(const struct ctrl *c, const struct nv_log *log)
{
	const struct ns *ns = subsys_ns(c->subsys, log->nsid);

	for (uint32_t i = 1; ns == NULL && i <= TARGET_NAMESPACES; i++)
		ns = subsys_ns(c->subsys, i);
	return ns;
}

/* docs/formats.md, "statistics log page" */
static uint32_t log_stat(struct ctrl *c, const struct nv_log *log)
{
	struct nv_kvof_stat *out = (struct nv_kvof_stat *)c->page;
	const struct ns *ns = stat_ns(c, log);
	const struct store_stat *st;

	if (ns == NULL)                                /* it has gone while this waited */
		return 0;
	st = &ns->stat;
	memcpy(out->magic, NV_KVOF_STAT_MAGIC, sizeof(out->magic));
	out->version = le32_of(NV_KVOF_STAT_VERSION);
	out->bytes = le32_of(sizeof(*out));
	out->nsid = le32_of(ns->nsid);
	out->flags = le32_of((ns->memory ? NV_KVOF_STAT_MEMORY : 0u) |
			     (ns->evicts ? NV_KVOF_STAT_EVICTS : 0u));
	out->drives = le32_of(st->drives);
	out->drives_failed = le32_of(st->drives_failed);
	out->value_bytes_max = le32_of(st->value_bytes_max);
	out->segment_bytes = le32_of(st->segment_bytes);
#define STAT(name, is_bytes, text) out->name = le64_of(st->name);
#include "tbl/stat.def"
	return sizeof(*out);
}

static const struct log_row log_rows[] = {
	{NV_LOG_SUPPORTED, true, true, 1024, log_supported},
	{NV_LOG_ERROR, true, true, TARGET_ERRORS * sizeof(struct nv_log_error), log_error},
	{NV_LOG_SMART, true, false, sizeof(struct nv_log_smart), log_smart},
	{NV_LOG_FIRMWARE, true, false, sizeof(struct nv_log_firmware), log_firmware},
	{NV_LOG_CHANGED_NAMESPACES, true, false, sizeof(struct nv_log_changed), log_changed},
	{NV_LOG_EFFECTS, true, false, sizeof(struct nv_log_effects), log_effects},
	{NV_LOG_DISCOVERY, false, true, 0, log_discovery},
	{NV_LOG_KVOF_STAT, true, false, sizeof(struct nv_kvof_stat), log_stat},
};

static const struct log_row *log_find(const struct ctrl *c, uint8_t lid)
{
	for (unsigned i = 0; i < ARRAY_COUNT(log_rows); i++)
		if (log_rows[i].lid == lid)
			return (c->subsys->discovery ? log_rows[i].discovery : log_rows[i].io) ?
				&log_rows[i] : NULL;
	return NULL;
}

static uint32_t log_supported(struct ctrl *c, const struct nv_log *log)
{
	le32 *out = (le32 *)c->page;

	for (unsigned lid = 0; lid < 256; lid++)
		out[lid] = le32_of(log_find(c, (uint8_t)lid) != NULL);       /* LSUPP */
	return 1024;
}

static uint32_t log_bytes(const struct ctrl *c, const struct log_row *row)
{
	return row->bytes != 0 ? row->bytes :
		discovery_log(c->target, c->hostnqn, NULL, UINT32_MAX);
}

static nv_status log_check(struct ctrl *c, const struct nv_log *log, const struct log_row *row,
			   struct bad *bad)
{
	const uint16_t at_nsid = offsetof(struct nv_sqe, nsid);
	bool named = log->nsid != 0 && log->nsid != NV_NSID_ALL;

	if (row == NULL)
		return nv_bad(bad, NV_INVALID_LOG_PAGE, offsetof(struct nv_sqe, cdw10),
			      "no such log");
	if (named && subsys_ns(c->subsys, log->nsid) == NULL)
		return nv_bad(bad, NV_INVALID_NAMESPACE, at_nsid, "no such namespace");
	if (log->lid == NV_LOG_KVOF_STAT && stat_ns(c, log) == NULL)
		return nv_bad(bad, NV_INVALID_NAMESPACE, at_nsid, "no namespace at all");
	if (log->lid == NV_LOG_EFFECTS && log->csi > NV_CSI_KV)
		return nv_bad(bad, NV_INVALID_FIELD, offsetof(struct nv_sqe, cdw14) + 3,
			      "no such command set");
	if (log->offset > log_bytes(c, row))
		return nv_bad(bad, NV_INVALID_FIELD, offsetof(struct nv_sqe, cdw12),
			      "offset past the end of the log");
	if (log->bytes > TARGET_LOG_BYTES)
		return nv_bad(bad, NV_INVALID_FIELD, offsetof(struct nv_sqe, cdw10) + 2,
			      "longer than an answer can be");
	return NV_OK;
}

static void logpage_fill(struct req *req)
{
	struct ctrl *c = req->queue->ctrl;
	struct nv_log log;
	struct bad bad;
	nv_status status = nv_log_parse(&req->cmd->sqe, &log, &bad);
	const struct log_row *row = log_find(c, log.lid);
	uint32_t built;

	must(nv_status_ok(status) && row != NULL);
	must(c->page_holder == req && bytes_all_zero(c->page, 64));
	built = row->build(c, &log);
	must(built <= c->page_bytes);
	if (log.offset >= built)
		built = 0;
	else
		built -= (uint32_t)log.offset;
	memmove(c->page, c->page + log.offset * (built > 0), built);
	ctrl_page_send(c, req, built, (uint32_t)log.bytes);
}

static void logpage_take_page(struct req *req)
{
	ctrl_page_take(req->queue->ctrl, req, logpage_fill);
}

void logpage_get(struct req *req)
{
	struct ctrl *c = req->queue->ctrl;
	struct nv_log log;
	struct bad bad;
	nv_status status = nv_log_parse(&req->cmd->sqe, &log, &bad);

	if (nv_status_ok(status))
		status = log_check(c, &log, log_find(c, log.lid), &bad);
	if (!nv_status_ok(status))
		req_fail(req, status, &bad);
	else if (!req_data_check(req, NV_DATA_TO_HOST, (uint32_t)log.bytes))
		return;
	else if (log.lid == NV_LOG_SMART || log.lid == NV_LOG_KVOF_STAT)
		req_stats_take(req, logpage_take_page);
	else
		logpage_take_page(req);
}
