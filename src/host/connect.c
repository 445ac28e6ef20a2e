/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One association: from a TCP connection to live I/O queues, one admin command at a time.
 *
 *	WIRE -> CONNECT -> CAP -> ENABLE -> READY -+-> IDENTIFY -> LIST -> DESCRIPTORS -> NAMESPACE
 *	                                           |   -> QUEUES -> IO (all queues at once) -> LIVE
 *	                                           +-> LOG_HEAD -> LOG ... -> LIVE   (discovery)
 *	any -> DEAD
 *
 * Each step has one function that sends and one that reads the answer (steps[]); assoc_go() is the
 * only writer of a->step. All the controller says is checked in nvme/ before it is used; nonsense
 * ends the attach with a sentence that names the field. opts.connect_ns bounds the whole.
 *
 * On the owner's loop.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvof/error.h>

#include "base/log.h"
#include "host/impl.h"
#include "nvme/feature.h"

#define READY_POLL_NS (5 * NS_PER_MS)
#define ADMIN_ENTRIES 32
#define ADMIN_LATE_NS (10 * NS_PER_S)
#define CID_ATTACH 0
#define CID_KEEP_ALIVE 1
#define CID_USER 2
/*
 * On one machine a sender runs ahead by little: what it has written is read out of the processor's
 * caches then. One queue alone needs more, for it would wait too often; two and more take turns.
 * Where net.core.rmem_max is less, it is that.
 */
#define NEAR_ROOM_BYTES (96 * KiB)
#define NEAR_ROOM_ONE_BYTES (384 * KiB)
#define MAY(step) (UINT32_C(1) << (step))

struct step {
	const char *what;              /* "no answer while ..." */
	void (*send)(struct assoc *a);
	void (*got)(struct assoc *a);
	uint32_t next;                 /* bit n: may go to step n; DEAD always */
};
static const struct step steps[STEP_COUNT];

void assoc_go(struct assoc *a, enum assoc_step to)
{
	OBJ_CHECK(a, ASSOC_MAGIC);
	must(to == STEP_DEAD || steps[a->step].next & MAY(to));
	must(a->step != STEP_DEAD);
	a->step = to;
	if (steps[to].send != NULL)
		steps[to].send(a);
}

/* --- the end of an association -------------------- */

static void assoc_gone_done(struct loop_op *op, int res)
{
	struct assoc *a = container_of(op, struct assoc, gone);
	void (*gone)(void *arg) = a->owner->gone;
	void *arg = a->arg;

	(void)res;
	must(a->step == STEP_DEAD && a->out == 0 && a->admin == NULL);
	for (unsigned i = 0; i < a->queue_count; i++)
		queue_free(&a->queue[i]);
	a->magic = 0;
	free(a);
	gone(arg);
}

static void assoc_bury_done(struct loop_op *op, int res)
{
	struct assoc *a = container_of(op, struct assoc, bury);

	(void)res;
	OBJ_CHECK(a, ASSOC_MAGIC);
	if (a->admin != NULL)
		wire_close(&a->admin);
	for (unsigned i = 0; i < a->queue_count; i++) {
		a->queue[i].live = false;
		if (a->queue[i].conn != NULL)
			wire_close(&a->queue[i].conn);
	}
	a->owner->dead(a, a->why);
	a->buried = true;
	if (a->out == 0)
		loop_soon(a->loop, &a->gone, 0);
}

void assoc_fail(struct assoc *a, int why, const char *format, ...)
{
	va_list args;

	OBJ_CHECK(a, ASSOC_MAGIC);
	must(why < 0);
	if (a->step == STEP_DEAD)
		return;
	a->why = why;
	va_start(args, format);
	vsnprintf(a->text, sizeof(a->text), format, args);
	va_end(args);
	assoc_go(a, STEP_DEAD);
	loop_timer_cancel(a->loop, &a->late);
	loop_timer_cancel(a->loop, &a->poll);
	loop_timer_cancel(a->loop, &a->user_late);
	loop_soon(a->loop, &a->bury, 0);
}

void assoc_returned(struct assoc *a)
{
	must(a->out > 0);
	a->out--;
	if (a->out == 0 && a->buried)
		loop_soon(a->loop, &a->gone, 0);
}

static void assoc_late(struct loop_timer *t)
{
	struct assoc *a = container_of(t, struct assoc, late);

	assoc_fail(a, -ETIMEDOUT, "%s port %u: no answer while %s", a->opts.addr.host,
		   a->opts.addr.port, steps[a->step].what);
}

void assoc_lost(struct assoc *a, int why)
{
	const char *how = why == -EPROTO ? "protocol error" : why == -ETIMEDOUT ? "no answer" :
			  why == -EMFILE ? kvof_error_text(why) : "connection refused or lost";

	if (why == -EMFILE)
		why = -ECONNRESET;             /* what is done about it is the same */
	if (a->step == STEP_LIVE)
		assoc_fail(a, why, "%s port %u: %s", a->opts.addr.host, a->opts.addr.port, how);
	else
		assoc_fail(a, why, "%s port %u: %s while %s", a->opts.addr.host, a->opts.addr.port,
			   how, steps[a->step].what);
}

/* --- one admin command at a time -------------------- */

static void assoc_command_done(struct wire_req *req, int res)
{
	struct assoc *a = container_of(req, struct assoc, req);
	nv_status status;

	OBJ_CHECK(a, ASSOC_MAGIC);
	if (a->step != STEP_DEAD && res != 0) {
		assoc_lost(a, retry_is_lost(res) ? res : -EPROTO);
	} else if (a->step != STEP_DEAD) {
		status = nv_cqe_status(&req->cqe);
		if (!nv_status_ok(status))
			assoc_fail(a, -EIO, "%s port %u: refused while %s: %s (%x/%02x)",
				   a->opts.addr.host, a->opts.addr.port, steps[a->step].what,
				   nv_status_text(status), nv_status_code(status) >> 8,
				   nv_status_code(status) & 0xff);
		else
			steps[a->step].got(a);
	}
	assoc_returned(a);
}

void assoc_command(struct assoc *a, const struct nv_sqe *sqe, uint32_t in_bytes)
{
	must(in_bytes <= sizeof(a->page));
	a->req = (struct wire_req){.sqe = *sqe, .cid = CID_ATTACH, .done = assoc_command_done};
	memset(a->page, 0, sizeof(a->page));
	a->in = (struct iovec){a->page, in_bytes};
	if (in_bytes > 0) {
		a->req.in = &a->in;
		a->req.in_count = 1;
		a->req.in_bytes = in_bytes;
	}
	a->out++;
	wire_submit(a->admin, &a->req);
}

/* An answer that must be a whole page. */
static bool assoc_page_whole(struct assoc *a)
{
	if (a->req.in_bytes_got == a->req.in_bytes)
		return true;
	assoc_fail(a, -EPROTO, "%s port %u: answer of %u bytes instead of %u while %s",
		   a->opts.addr.host, a->opts.addr.port, a->req.in_bytes_got, a->req.in_bytes,
		   steps[a->step].what);
	return false;
}

static void assoc_nonsense(struct assoc *a, const char *what, const struct bad *bad)
{
	assoc_fail(a, -EPROTO, "%s port %u: %s makes no sense: %s (byte %u)", a->opts.addr.host,
		   a->opts.addr.port, what, bad->why, bad->offset);
}

/* --- WIRE, CONNECT -------------------- */

static void assoc_wire_opts(const struct assoc *a, uint16_t entries, struct wire_opts *out)
{
	*out = (struct wire_opts){
		.ops = a->opts.ops,
		.header_digest = a->opts.header_digest,
		.data_digest = a->opts.data_digest,
		.handshake_ns = a->opts.connect_ns,
		.depth_max = entries,
	};
}

static void admin_connected(void *arg, struct wire_conn *conn)
{
	struct assoc *a = arg;

	if (a->step != STEP_WIRE)
		return;
	must(conn == a->admin);
	assoc_go(a, STEP_CONNECT);
}

static void admin_closed(void *arg, int why)
{
	struct assoc *a = arg;

	if (a->step != STEP_DEAD)
		assoc_lost(a, why < 0 ? why : -ECONNRESET);
}

static const struct wire_host_events admin_events = {admin_connected, admin_closed};

static int connect_command(struct assoc *a, const struct nv_connect *c, struct wire_req *req)
{
	int rc = nv_connect_build(c, &req->sqe, &a->connect_data);

	if (rc < 0)
		return rc;
	a->out_iov = (struct iovec){&a->connect_data, sizeof(a->connect_data)};
	req->out = &a->out_iov;
	req->out_count = 1;
	req->out_bytes = sizeof(a->connect_data);
	return 0;
}

static struct nv_connect connect_facts(const struct assoc *a)
{
	struct nv_connect c = {.cntlid = NV_CNTLID_DYNAMIC};

	memcpy(c.hostid, a->opts.hostid, sizeof(c.hostid));
	memcpy(c.subnqn, a->opts.subnqn, sizeof(c.subnqn));
	memcpy(c.hostnqn, a->opts.hostnqn, sizeof(c.hostnqn));
	return c;
}

static void connect_send(struct assoc *a)
{
	struct nv_connect c = connect_facts(a);

	c.sq_entries = ADMIN_ENTRIES;
	c.kato_ms = a->opts.kato_ms;
	a->req = (struct wire_req){.cid = CID_ATTACH, .done = assoc_command_done};
	must(connect_command(a, &c, &a->req) == 0);
	a->out++;
	wire_submit(a->admin, &a->req);
}

static void connect_got(struct assoc *a)
{
	a->cntlid = (uint16_t)le32_get(a->req.cqe.dw0);
	if (le32_get(a->req.cqe.dw0) >> 16 & 3) {
		assoc_fail(a, -EIO, "%s port %u: the array asks for authentication, which this "
			   "version can't do", a->opts.addr.host, a->opts.addr.port);
		return;
	}
	assoc_go(a, STEP_CAP);
}

/* --- CAP, ENABLE, READY -------------------- */

static void cap_send(struct assoc *a)
{
	struct nv_property p = {.offset = NV_PROP_CAP, .size_bytes = 8};
	struct nv_sqe sqe = nv_property_get_build(&p);

	assoc_command(a, &sqe, 0);
}

static void cap_got(struct assoc *a)
{
	a->cap = nv_cap_unpack((uint64_t)le32_get(a->req.cqe.dw1) << 32 | le32_get(a->req.cqe.dw0));
	if (!a->opts.discovery && !a->cap.css_iocs) {
		assoc_fail(a, -EPROTO, "%s port %u: %s has no KV command set (CAP.CSS bit 6 is "
			   "clear)", a->opts.addr.host, a->opts.addr.port, a->opts.subnqn);
		return;
	}
	assoc_go(a, STEP_ENABLE);
}

static void enable_send(struct assoc *a)
{
	uint32_t css = a->cap.css_iocs ? NV_CC_CSS_IOCS :
		       a->cap.css_nvm ? NV_CC_CSS_NVM : NV_CC_CSS_ADMIN;
	struct nv_property p = {
		.offset = NV_PROP_CC,
		.size_bytes = 4,
		.value = NV_CC_EN | css | NV_CC_QUEUE_SIZES |
			 (uint32_t)(a->cap.page_shift_min - 12) << 7,
	};
	struct nv_sqe sqe = nv_property_set_build(&p);

	assoc_command(a, &sqe, 0);
}

static void enable_got(struct assoc *a)
{
	assoc_go(a, STEP_READY);
}

static void ready_send(struct assoc *a)
{
	struct nv_property p = {.offset = NV_PROP_CSTS, .size_bytes = 4};
	struct nv_sqe sqe = nv_property_get_build(&p);

	assoc_command(a, &sqe, 0);
}

static void ready_poll(struct loop_timer *t)
{
	struct assoc *a = container_of(t, struct assoc, poll);

	if (a->step == STEP_READY)
		ready_send(a);
}

static void ready_got(struct assoc *a)
{
	uint32_t csts = le32_get(a->req.cqe.dw0);

	if (csts & NV_CSTS_CFS)
		assoc_fail(a, -EIO, "%s port %u: the controller reports a fatal state (CSTS.CFS)",
			   a->opts.addr.host, a->opts.addr.port);
	else if (!(csts & NV_CSTS_RDY))
		loop_timer_set(a->loop, &a->poll, loop_now_ns(a->loop) + READY_POLL_NS);
	else
		assoc_go(a, a->opts.discovery ? STEP_LOG_HEAD : STEP_IDENTIFY);
}

/* --- IDENTIFY, LIST, DESCRIPTORS, NAMESPACE -------------------- */

static void identify_send(struct assoc *a)
{
	struct nv_identify what = {.cns = NV_CNS_CONTROLLER};
	struct nv_sqe sqe = nv_identify_build(&what);

	assoc_command(a, &sqe, NV_IDENTIFY_BYTES);
}

static void identify_got(struct assoc *a)
{
	struct bad bad = {0, ""};

	if (!assoc_page_whole(a))
		return;
	if (nv_id_controller_check((const struct nv_id_controller *)(void *)a->page, &a->cap,
				   &a->facts, &bad) < 0) {
		assoc_nonsense(a, "Identify Controller", &bad);
		return;
	}
	a->nsid = a->opts.nsid;
	assoc_go(a, a->nsid != 0 ? STEP_DESCRIPTORS : STEP_LIST);
}

static void list_send(struct assoc *a)
{
	struct nv_identify what = {.cns = NV_CNS_ACTIVE_LIST, .nsid = a->nsid};
	struct nv_sqe sqe = nv_identify_build(&what);

	assoc_command(a, &sqe, NV_IDENTIFY_BYTES);
}

static const char *kind_name(const struct assoc *a)
{
	return a->opts.block ? "block" : "KV";
}

/* The next namespace of the list, the next page of the list, or no more. */
static void list_next(struct assoc *a)
{
	uint32_t nsid = 0;

	if (a->list_index < ARRAY_COUNT(a->list.nsid))
		nsid = le32_get(a->list.nsid[a->list_index++]);
	else if (a->nsid < NV_NSID_ALL - 1) {
		assoc_go(a, STEP_LIST);
		return;
	}
	if (nsid == 0) {
		assoc_fail(a, -ENOENT, "%s port %u: %s has no %s namespace", a->opts.addr.host,
			   a->opts.addr.port, a->opts.subnqn, kind_name(a));
	} else if (nsid <= a->nsid || nsid == NV_NSID_ALL) {
		assoc_fail(a, -EPROTO, "%s port %u: the list of namespaces does not ascend",
			   a->opts.addr.host, a->opts.addr.port);
	} else {
		a->nsid = nsid;
		assoc_go(a, STEP_DESCRIPTORS);
	}
}

static void list_got(struct assoc *a)
{
	if (!assoc_page_whole(a))
		return;
	memcpy(&a->list, a->page, sizeof(a->list));
	a->list_index = 0;
	list_next(a);
}

static void descriptors_send(struct assoc *a)
{
	struct nv_identify what = {.cns = NV_CNS_DESCRIPTORS, .nsid = a->nsid};
	struct nv_sqe sqe = nv_identify_build(&what);

	assoc_command(a, &sqe, NV_IDENTIFY_BYTES);
}

static void descriptors_got(struct assoc *a)
{
	struct nv_ns_ids ids;
	struct bad bad = {0, ""};

	if (!assoc_page_whole(a))
		return;
	if (nv_ns_ids_read(a->page, &ids, &bad) < 0) {
		assoc_nonsense(a, "the namespace's list of descriptors", &bad);
		return;
	}
	if (a->opts.any)
		a->opts.block = ids.csi == NV_CSI_NVM;
	if (ids.csi == (a->opts.block ? NV_CSI_NVM : NV_CSI_KV) &&
	    (ids.csi_given || a->opts.block))
		assoc_go(a, STEP_NAMESPACE);
	else if (a->opts.nsid != 0)
		assoc_fail(a, -ENOENT, "%s port %u: namespace %u of %s is no %s namespace",
			   a->opts.addr.host, a->opts.addr.port, a->nsid, a->opts.subnqn,
			   kind_name(a));
	else
		list_next(a);
}

static void namespace_send(struct assoc *a)
{
	struct nv_identify what = {
		.cns = a->opts.block ? NV_CNS_NAMESPACE : NV_CNS_CSI_NAMESPACE,
		.csi = a->opts.block ? 0 : NV_CSI_KV, .nsid = a->nsid,
	};
	struct nv_sqe sqe = nv_identify_build(&what);

	assoc_command(a, &sqe, NV_IDENTIFY_BYTES);
}

/* What Identify says of a block namespace, and of a KV one; an empty sentence: fine. */
static int facts_block(struct assoc *a, struct bad *bad)
{
	const struct nv_id_namespace *id = (const void *)a->page;
	struct nv_block_facts facts;

	if (nv_id_namespace_check(id, &facts, bad) < 0)
		return -EPROTO;
	a->ns = (struct host_ns){
		.block_bytes = facts.block_bytes,
		.capacity_bytes = facts.blocks * facts.block_bytes,
		.used_bytes = bytes_min(le64_get(id->nuse), facts.blocks) * facts.block_bytes,
	};
	return 0;
}

static int facts_kv(struct assoc *a, struct bad *bad)
{
	struct nv_kv_facts kv;

	if (nv_id_kv_namespace_check((const void *)a->page, &kv, bad) < 0)
		return -EPROTO;
	a->ns = (struct host_ns){
		.value_bytes_max = (uint32_t)bytes_min(kv.value_bytes_max,
						       a->facts.transfer_bytes_max),
		.key_bytes_max = kv.key_bytes_max,
		.capacity_bytes = kv.capacity_bytes,
		.used_bytes = kv.used_bytes,
	};
	return 0;
}

static void namespace_got(struct assoc *a)
{
	struct bad bad = {0, ""};

	if (!assoc_page_whole(a))
		return;
	if ((a->opts.block ? facts_block(a, &bad) : facts_kv(a, &bad)) < 0) {
		assoc_nonsense(a, a->opts.block ? "Identify of the block namespace" :
						  "Identify of the KV namespace", &bad);
		return;
	}
	a->ns.nsid = a->nsid;
	a->ns.transfer_bytes_max = a->facts.transfer_bytes_max;
	a->ns.cntlid = a->cntlid;
	memcpy(a->ns.subnqn, a->opts.subnqn, sizeof(a->ns.subnqn));
	memcpy(a->ns.model, a->facts.model, sizeof(a->ns.model));
	memcpy(a->ns.serial, a->facts.serial, sizeof(a->ns.serial));
	memcpy(a->ns.firmware, a->facts.firmware, sizeof(a->ns.firmware));
	assoc_go(a, STEP_QUEUES);
}

/* --- QUEUES, IO -------------------- */

static void queues_send(struct assoc *a)
{
	struct nv_queue_counts want = {a->opts.queues, a->opts.queues};
	struct nv_feature f = {.fid = NV_FEAT_QUEUES, .cdw11 = nv_queue_counts_pack(want)};
	struct nv_sqe sqe = nv_feature_set_build(&f);

	assoc_command(a, &sqe, 0);
}

static void queues_got(struct assoc *a)
{
	struct nv_queue_counts got = nv_queue_counts_unpack(le32_get(a->req.cqe.dw0));
	unsigned depth = a->opts.depth, count = a->opts.queues;

	count = (unsigned)bytes_min(count, bytes_min(got.submission, got.completion));
	/* A queue of n entries is full with n - 1 commands in flight. */
	depth = (unsigned)bytes_min(depth, a->cap.queue_entries_max - 1u);
	if (a->facts.queue_commands_max > 0)
		depth = (unsigned)bytes_min(depth, a->facts.queue_commands_max);
	if (depth < 1 || count < 1) {
		assoc_fail(a, -EPROTO, "%s port %u: the controller grants no I/O queue",
			   a->opts.addr.host, a->opts.addr.port);
		return;
	}
	for (unsigned i = 0; i < count; i++) {
		if (queue_init(&a->queue[i], a, (uint16_t)(i + 1), (uint16_t)depth) < 0) {
			assoc_fail(a, -ENOMEM, "no memory for %u queues of depth %u", count, depth);
			return;
		}
		a->queue_count = i + 1;
	}
	a->ns.queues = count;
	a->ns.depth = depth;
	assoc_go(a, STEP_IO);
}

static void io_connect_done(struct wire_req *req, int res)
{
	struct slot *s = container_of(req, struct slot, req);
	struct queue *q = s->queue;
	struct assoc *a = q->assoc;
	nv_status status = res == 0 ? nv_cqe_status(&req->cqe) : NV_OK;

	OBJ_CHECK(a, ASSOC_MAGIC);
	if (a->step == STEP_DEAD) {
		;
	} else if (res != 0) {
		assoc_lost(a, retry_is_lost(res) ? res : -EPROTO);
	} else if (!nv_status_ok(status)) {
		assoc_fail(a, -EIO, "%s port %u: I/O queue %u refused: %s (%x/%02x)",
			   a->opts.addr.host, a->opts.addr.port, q->qid, nv_status_text(status),
			   nv_status_code(status) >> 8, nv_status_code(status) & 0xff);
	} else {
		wire_inline_set(q->conn, a->facts.capsule_data_bytes);
		q->live = true;
		if (++a->queues_live == a->queue_count) {
			loop_timer_cancel(a->loop, &a->late);
			a->live_ns = a->ka_ns = loop_now_ns(a->loop);
			assoc_go(a, STEP_LIVE);
			a->owner->live(a);
		}
	}
	assoc_returned(a);
}

/* All queues send the same Connect but for the queue's number: one data buffer serves them all. */
static void io_connected(void *arg, struct wire_conn *conn)
{
	struct queue *q = arg;
	struct assoc *a = q->assoc;
	struct nv_connect c = connect_facts(a);
	struct wire_req *req = &q->slot[0].req;

	if (a->step != STEP_IO)
		return;
	must(conn == q->conn);
	c.qid = q->qid;
	c.cntlid = a->cntlid;
	c.sq_entries = (uint16_t)(q->depth + 1);
	*req = (struct wire_req){.cid = 0, .done = io_connect_done};
	must(connect_command(a, &c, req) == 0);
	a->out++;
	wire_submit(q->conn, req);
}

static void io_closed(void *arg, int why)
{
	struct queue *q = arg;
	struct assoc *a = q->assoc;

	if (a->step != STEP_DEAD)
		assoc_lost(a, why < 0 ? why : -ECONNRESET);
}

static const struct wire_host_events io_events = {io_connected, io_closed};

static void io_send(struct assoc *a)
{
	struct wire_opts opts;

	for (unsigned i = 0; i < a->queue_count; i++) {
		struct queue *q = &a->queue[i];
		int rc;

		assoc_wire_opts(a, (uint16_t)(q->depth + 1), &opts);
		opts.near_room_bytes = a->queue_count > 1 ? NEAR_ROOM_BYTES : NEAR_ROOM_ONE_BYTES;
		rc = wire_connect(a->loop, &a->opts.addr, &opts, &io_events, q, &q->conn);
		if (rc < 0) {
			assoc_fail(a, -ECONNRESET, "%s port %u: I/O queue %u can't connect",
				   a->opts.addr.host, a->opts.addr.port, q->qid);
			return;
		}
	}
}

/* --- the owner's admin commands -------------------- */

static void keep_alive_done(struct wire_req *req, int res)
{
	struct assoc *a = container_of(req, struct assoc, ka);

	a->ka_out = false;
	if (res == 0 && a->step != STEP_DEAD && !nv_status_ok(nv_cqe_status(&req->cqe)))
		assoc_fail(a, -ECONNRESET, "%s port %u: Keep Alive refused: %s", a->opts.addr.host,
			   a->opts.addr.port, nv_status_text(nv_cqe_status(&req->cqe)));
	assoc_returned(a);
}

bool assoc_keep_alive(struct assoc *a, uint64_t keep_alive_ns)
{
	uint64_t now = loop_now_ns(a->loop);

	if (a->step != STEP_LIVE)
		return false;
	if (a->ka_out && now - a->ka_ns >= keep_alive_ns) {
		assoc_fail(a, -ETIMEDOUT, "%s port %u: no answer to Keep Alive for %llu ms",
			   a->opts.addr.host, a->opts.addr.port,
			   (unsigned long long)((now - a->ka_ns) / NS_PER_MS));
		return false;
	}
	if (!a->ka_out && now - a->ka_ns >= keep_alive_ns / 2) {
		a->ka = (struct wire_req){
			.sqe = nv_sqe_of(NV_ADMIN_KEEP_ALIVE, 0),
			.cid = CID_KEEP_ALIVE,
			.done = keep_alive_done,
		};
		a->ka_out = true;
		a->ka_ns = now;
		a->out++;
		wire_submit(a->admin, &a->ka);
	}
	return true;
}

static void admin_done(struct wire_req *req, int res)
{
	struct assoc *a = container_of(req, struct assoc, user);
	struct host_admin *admin = a->user_admin;

	a->user_admin = NULL;
	loop_timer_cancel(a->loop, &a->user_late);
	admin->cqe = req->cqe;
	admin->moved_bytes = req->in_bytes_got;
	assoc_returned(a);
	admin->done(admin, res);
}

/* An admin command can't be withdrawn for good: what it would write to is the caller's. */
static void admin_late(struct loop_timer *t)
{
	struct assoc *a = container_of(t, struct assoc, user_late);

	assoc_fail(a, -ETIMEDOUT, "%s port %u: no answer to an admin command (opcode %02xh)",
		   a->opts.addr.host, a->opts.addr.port, a->user.sqe.opcode);
}

void assoc_admin(struct assoc *a, struct host_admin *admin)
{
	must(a->step == STEP_LIVE && a->user_admin == NULL);
	a->user_admin = admin;
	a->user_iov = (struct iovec){admin->into, admin->bytes};
	a->user = (struct wire_req){.sqe = admin->sqe, .cid = CID_USER, .done = admin_done};
	if (admin->bytes > 0) {
		a->user.in = &a->user_iov;
		a->user.in_count = 1;
		a->user.in_bytes = admin->bytes;
	}
	a->out++;
	loop_timer_set(a->loop, &a->user_late, admin->deadline_ns != 0 ? admin->deadline_ns :
		       loop_now_ns(a->loop) + ADMIN_LATE_NS);
	wire_submit(a->admin, &a->user);
}

/* --- the table, and the start -------------------- */

static const struct step steps[STEP_COUNT] = {
	[STEP_WIRE] = {"connecting", NULL, NULL, MAY(STEP_CONNECT)},
	[STEP_CONNECT] = {"joining the subsystem (Connect)", connect_send, connect_got,
			  MAY(STEP_CAP)},
	[STEP_CAP] = {"reading the controller's capabilities", cap_send, cap_got, MAY(STEP_ENABLE)},
	[STEP_ENABLE] = {"enabling the controller", enable_send, enable_got, MAY(STEP_READY)},
	[STEP_READY] = {"waiting for the controller to be ready", ready_send, ready_got,
			MAY(STEP_IDENTIFY) | MAY(STEP_LOG_HEAD)},
	[STEP_IDENTIFY] = {"identifying the controller", identify_send, identify_got,
			   MAY(STEP_LIST) | MAY(STEP_DESCRIPTORS)},
	[STEP_LIST] = {"listing namespaces", list_send, list_got,
		       MAY(STEP_LIST) | MAY(STEP_DESCRIPTORS)},
	[STEP_DESCRIPTORS] = {"asking for a namespace's command set", descriptors_send,
			      descriptors_got,
			      MAY(STEP_LIST) | MAY(STEP_DESCRIPTORS) | MAY(STEP_NAMESPACE)},
	[STEP_NAMESPACE] = {"identifying the KV namespace", namespace_send, namespace_got,
			    MAY(STEP_QUEUES)},
	[STEP_QUEUES] = {"asking for I/O queues", queues_send, queues_got, MAY(STEP_IO)},
	[STEP_IO] = {"connecting I/O queues", io_send, NULL, MAY(STEP_LIVE)},
	[STEP_LOG_HEAD] = {"reading the discovery log", discover_log_head_send,
			   discover_log_head_got,
			   MAY(STEP_LOG_HEAD) | MAY(STEP_LOG) | MAY(STEP_LIVE)},
	[STEP_LOG] = {"reading the discovery log", discover_log_send, discover_log_got,
		      MAY(STEP_LOG) | MAY(STEP_LOG_HEAD)},
	[STEP_LIVE] = {"in use", NULL, NULL, 0},
	[STEP_DEAD] = {"closing", NULL, NULL, 0},
};

int assoc_open(struct loop *loop, const struct assoc_opts *opts, const struct assoc_owner *owner,
	       void *arg, struct assoc **out)
{
	struct wire_opts wopts;
	struct assoc *a;
	int rc;

	must(opts->queues <= HOST_QUEUES_MAX && opts->depth <= HOST_DEPTH_MAX);
	a = calloc(1, sizeof(*a));
	if (a == NULL)
		return -ENOMEM;
	OBJ_INIT(a, ASSOC_MAGIC);
	a->loop = loop;
	a->opts = *opts;
	a->owner = owner;
	a->arg = arg;
	a->step = STEP_WIRE;
	a->bury.done = assoc_bury_done;
	a->gone.done = assoc_gone_done;
	loop_timer_init(&a->late, assoc_late);
	loop_timer_init(&a->poll, ready_poll);
	loop_timer_init(&a->user_late, admin_late);
	assoc_wire_opts(a, ADMIN_ENTRIES, &wopts);
	rc = wire_connect(loop, &opts->addr, &wopts, &admin_events, a, &a->admin);
	if (rc < 0) {
		free(a);
		return rc;
	}
	loop_timer_set(loop, &a->late, loop_now_ns(loop) + opts->connect_ns);
	*out = a;
	return 0;
}
