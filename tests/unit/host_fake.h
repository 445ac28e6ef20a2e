/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A controller that does as it is told, for the tests of host/: over the controller end of wire/,
 * so framing is right, on the simulator. It answers what an attach asks, keeps values in a small
 * table, and has knobs to hold answers, refuse, or talk nonsense. One world, one fake, one host a
 * test.
 */
#ifndef KVOF_TESTS_UNIT_HOST_FAKE_H
#define KVOF_TESTS_UNIT_HOST_FAKE_H

#include "kt.h"

#include <errno.h>

#include "host/host.h"
#include "host/impl.h"
#include "loop/sim.h"
#include "nvme/feature.h"

#define FAKE_NQN "nqn.2026-11.io.kvof:fake"
#define FAKE_CONNS 64
#define FAKE_VALUES 64
#define FAKE_VALUE_MAX (256 * KiB)
#define FAKE_HELD 256

struct fake_value {
	struct kv_key key;             /* len 0: free */
	uint32_t bytes;
	uint8_t *at;
};

struct fake_conn {
	struct fake *fake;
	struct wire_conn *conn;
	bool io, discovery;
	uint16_t qid;
	unsigned flying;
};

struct fake_work {                     /* one command being moved */
	struct fake *fake;
	struct wire_cmd *cmd;
	struct iovec iov;
	uint8_t *data;
	struct nv_kv_cmd kv;
};

struct fake {
	struct loop *loop;
	struct wire_listener *listener;
	const struct wire_ops *ops;
	struct sock_addr addr;
	struct fake_conn conn[FAKE_CONNS];
	struct fake_value value[FAKE_VALUES];
	uint8_t page[4096];

	/* knobs */
	bool hold;                     /* I/O commands are parked, not answered */
	bool deaf;                     /* Keep Alive is not answered */
	nv_status io_status;           /* answered io_status_times times before work begins */
	unsigned io_status_times;
	unsigned grant;                /* I/O queues; 0: what is asked */
	unsigned mqes;                 /* entries of a queue */
	unsigned not_ready;            /* CSTS reads before RDY */
	unsigned subsystems;           /* that Discovery lists */
	bool fatal;
	void (*patch)(void *page, unsigned cns);

	struct wire_cmd *held[FAKE_HELD];
	unsigned held_count;
	unsigned io_seen[256], flying, flying_max, attaches;
};

static inline struct fake_conn *fake_conn_of(struct fake *f, struct wire_conn *conn)
{
	for (unsigned i = 0; i < FAKE_CONNS; i++)
		if (f->conn[i].conn == conn)
			return &f->conn[i];
	return NULL;
}

static inline void fake_respond(struct wire_cmd *cmd, nv_status status, uint64_t dw)
{
	struct nv_cqe cqe = nv_cqe_of(0, status);

	cqe.dw0 = le32_of((uint32_t)dw);
	cqe.dw1 = le32_of((uint32_t)(dw >> 32));
	wire_respond(cmd, &cqe);
}

static inline struct fake_value *fake_find(struct fake *f, const struct kv_key *key)
{
	for (unsigned i = 0; i < FAKE_VALUES; i++)
		if (f->value[i].key.len != 0 && kv_key_equal(&f->value[i].key, key))
			return &f->value[i];
	return NULL;
}

/* --- admin -------------------- */

static inline void fake_page_sent(struct wire_cmd *cmd, int res)
{
	(void)cmd;
	(void)res;
}

static inline void fake_page(struct fake *f, struct wire_cmd *cmd, uint32_t bytes)
{
	static struct iovec iov;

	iov = (struct iovec){f->page, bytes};
	wire_push(cmd, &iov, 1, bytes, fake_page_sent);
	fake_respond(cmd, NV_OK, 0);
}

static inline void fake_identify(struct fake *f, struct wire_cmd *cmd)
{
	struct nv_identify what = nv_identify_parse(&cmd->sqe);
	struct nv_id_controller *id = (void *)f->page;
	struct nv_id_kv_namespace *ns = (void *)f->page;
	struct nv_id_list *list = (void *)f->page;
	struct nv_ns_ids ids = {.csi = NV_CSI_KV, .csi_given = true, .nguid = {1}};

	memset(f->page, 0, sizeof(f->page));
	switch (what.cns) {
	case NV_CNS_CONTROLLER:
		nv_text_pad(id->sn, sizeof(id->sn), "1");
		nv_text_pad(id->mn, sizeof(id->mn), "fake");
		id->mdts = 6;
		id->cntlid = le16_of(5);
		id->cntrltype = NV_CNTRLTYPE_IO;
		id->kas = le16_of(1);
		id->sqes = 0x66;
		id->cqes = 0x44;
		id->nn = le32_of(1);
		id->sgls = le32_of(NV_SGLS_ANY | NV_SGLS_OFFSET | NV_SGLS_TRANSPORT);
		id->ioccsz = le32_of(4 + 8192 / 16);
		id->iorcsz = le32_of(1);
		memcpy(id->subnqn, FAKE_NQN, sizeof(FAKE_NQN));
		break;
	case NV_CNS_ACTIVE_LIST:
		if (what.nsid < 3)
			list->nsid[0] = le32_of(3);
		break;
	case NV_CNS_DESCRIPTORS:
		nv_ns_ids_write(&ids, f->page);
		break;
	case NV_CNS_CSI_NAMESPACE:
		ns->nsze = le64_of(GiB);
		ns->nuse = le64_of(MiB);
		ns->kvf[0].key_bytes_max = le16_of(16);
		ns->kvf[0].value_bytes_max = le32_of(FAKE_VALUE_MAX);
		break;
	default:
		fake_respond(cmd, NV_INVALID_FIELD, 0);
		return;
	}
	if (f->patch != NULL)
		f->patch(f->page, what.cns);
	fake_page(f, cmd, NV_IDENTIFY_BYTES);
}

static inline void fake_log(struct fake *f, struct wire_cmd *cmd)
{
	static uint8_t log[1024 * 8];
	struct nv_discovery_header *head = (void *)log;
	struct nv_log what;
	struct bad bad;

	if (!nv_status_ok(nv_log_parse(&cmd->sqe, &what, &bad)) || what.lid != NV_LOG_DISCOVERY ||
	    what.offset + what.bytes > sizeof(log) || what.bytes > sizeof(f->page)) {
		fake_respond(cmd, NV_INVALID_LOG_PAGE, 0);
		return;
	}
	memset(log, 0, sizeof(log));
	head->numrec = le64_of(f->subsystems);
	head->genctr = le64_of(1);
	for (unsigned i = 0; i < f->subsystems; i++) {
		struct nv_discovered e = {.trtype = NV_TRTYPE_TCP, .adrfam = NV_ADRFAM_IPV4,
					  .subtype = NV_SUBTYPE_NVM, .traddr = "10.0.0.1",
					  .trsvcid = "4420", .cntlid = 0xffff, .portid = 1};

		snprintf(e.subnqn, sizeof(e.subnqn), "%s%.*s", FAKE_NQN, (int)i, "bcdefgh");
		nv_discovery_entry_write(&e, (void *)(log + 1024 * (i + 1)));
	}
	memcpy(f->page, log + what.offset, what.bytes);
	fake_page(f, cmd, (uint32_t)what.bytes);
}

static inline void fake_connect_pulled(struct wire_cmd *cmd, int res)
{
	fake_respond(cmd, res == 0 ? NV_OK : NV_TRANSIENT_TRANSPORT, 5);
}

static inline void fake_connect(struct fake *f, struct fake_conn *c, struct wire_cmd *cmd)
{
	const struct nv_connect_sqe *sqe = (const void *)&cmd->sqe;
	static struct iovec iov;
	static struct nv_connect_data data;

	c->qid = le16_get(sqe->qid);
	c->io = c->qid != 0;
	f->attaches += !c->io;
	wire_depth_set(c->conn, (uint16_t)(le16_get(sqe->sqsize) + 1));
	iov = (struct iovec){&data, sizeof(data)};
	wire_pull(cmd, &iov, 1, sizeof(data), fake_connect_pulled);
}

static inline void fake_property(struct fake *f, struct wire_cmd *cmd)
{
	struct nv_cap cap = {
		.queue_entries_max = (uint16_t)f->mqes, .contiguous_queues = true,
		.timeout_500ms = 10, .css_nvm = true, .css_iocs = true, .page_shift_min = 12,
		.page_shift_max = 12,
	};
	struct nv_property p;
	struct bad bad;

	if (!nv_status_ok(nv_property_parse(&cmd->sqe, &p, &bad)))
		fake_respond(cmd, NV_CONNECT_INVALID, 0);
	else if (nv_fctype(&cmd->sqe) == NV_FABRICS_PROPERTY_SET)
		fake_respond(cmd, NV_OK, 0);
	else if (p.offset == NV_PROP_CAP)
		fake_respond(cmd, NV_OK, nv_cap_pack(&cap));
	else if (f->fatal)
		fake_respond(cmd, NV_OK, NV_CSTS_CFS);
	else if (f->not_ready > 0 && f->not_ready--)
		fake_respond(cmd, NV_OK, 0);
	else
		fake_respond(cmd, NV_OK, NV_CSTS_RDY);
}

static inline void fake_feature(struct fake *f, struct wire_cmd *cmd)
{
	struct nv_queue_counts counts = nv_queue_counts_unpack(le32_get(cmd->sqe.cdw11));

	if (f->grant != 0 && f->grant < counts.submission)
		counts.submission = counts.completion = f->grant;
	fake_respond(cmd, NV_OK, nv_queue_counts_pack(counts));
}

static inline void fake_admin(struct fake *f, struct fake_conn *c, struct wire_cmd *cmd)
{
	if (cmd->sqe.opcode == NV_OPCODE_FABRICS && nv_fctype(&cmd->sqe) == NV_FABRICS_CONNECT)
		fake_connect(f, c, cmd);
	else if (cmd->sqe.opcode == NV_OPCODE_FABRICS)
		fake_property(f, cmd);
	else if (cmd->sqe.opcode == NV_ADMIN_IDENTIFY)
		fake_identify(f, cmd);
	else if (cmd->sqe.opcode == NV_ADMIN_GET_LOG_PAGE)
		fake_log(f, cmd);
	else if (cmd->sqe.opcode == NV_ADMIN_SET_FEATURES)
		fake_feature(f, cmd);
	else if (cmd->sqe.opcode == NV_ADMIN_KEEP_ALIVE && f->deaf)
		f->held[f->held_count++] = cmd;
	else if (cmd->sqe.opcode == NV_ADMIN_KEEP_ALIVE)
		fake_respond(cmd, NV_OK, 0);
	else
		fake_respond(cmd, NV_INVALID_OPCODE, 0);
}

/* --- values -------------------- */

static struct fake_work fake_works[FAKE_HELD];

static inline struct fake_work *fake_work_of(struct wire_cmd *cmd)
{
	for (unsigned i = 0; i < FAKE_HELD; i++)
		if (fake_works[i].cmd == cmd)
			return &fake_works[i];
	must(cmd == NULL);            /* it has to be a command that is being worked on */
	return NULL;
}

static inline void fake_work_end(struct fake_work *w, nv_status status, uint32_t dw0)
{
	struct wire_cmd *cmd = w->cmd;

	w->fake->flying--;
	w->cmd = NULL;
	free(w->data);
	fake_respond(cmd, status, dw0);
}

static inline void fake_store(struct fake_work *w)
{
	struct fake *f = w->fake;
	struct fake_value *v = fake_find(f, &w->kv.key);

	if (v != NULL && w->kv.if_absent) {
		fake_work_end(w, NV_KV_KEY_EXISTS, 0);
		return;
	}
	for (unsigned i = 0; v == NULL && i < FAKE_VALUES; i++)
		if (f->value[i].key.len == 0)
			v = &f->value[i];
	must(v != NULL);
	free(v->at);
	*v = (struct fake_value){w->kv.key, w->kv.bytes, w->data};
	w->data = NULL;
	fake_work_end(w, NV_OK, 0);
}

static inline void fake_pulled(struct wire_cmd *cmd, int res)
{
	struct fake_work *w = fake_work_of(cmd);

	if (res == 0)
		fake_store(w);
	else
		fake_work_end(w, NV_TRANSIENT_TRANSPORT, 0);
}

static inline void fake_pushed(struct wire_cmd *cmd, int res)
{
	struct fake_work *w = fake_work_of(cmd);

	(void)res;
	fake_work_end(w, NV_OK, w->kv.bytes);
}

static inline void fake_retrieve(struct fake_work *w)
{
	struct fake_value *v = fake_find(w->fake, &w->kv.key);
	uint32_t moved;

	if (v == NULL) {
		fake_work_end(w, NV_KV_KEY_NOT_FOUND, 0);
		return;
	}
	moved = w->kv.bytes < v->bytes ? w->kv.bytes : v->bytes;
	w->kv.bytes = v->bytes;
	if (moved == 0) {
		fake_work_end(w, NV_OK, v->bytes);
		return;
	}
	w->data = malloc(moved);
	memcpy(w->data, v->at, moved);
	w->iov = (struct iovec){w->data, moved};
	wire_push(w->cmd, &w->iov, 1, moved, fake_pushed);
}

static inline void fake_io(struct fake *f, struct wire_cmd *cmd)
{
	struct nv_kv_limits limits = {FAKE_VALUE_MAX, FAKE_VALUE_MAX};
	struct fake_work *w = NULL;
	struct fake_value *v;
	nv_status status;
	struct bad bad;

	for (unsigned i = 0; i < FAKE_HELD && w == NULL; i++)
		if (fake_works[i].cmd == NULL)
			w = &fake_works[i];
	must(w != NULL);
	*w = (struct fake_work){.fake = f, .cmd = cmd};
	status = nv_kv_parse(&cmd->sqe, &limits, &w->kv, &bad);
	if (nv_status_ok(status) && f->io_status_times > 0) {
		f->io_status_times--;
		status = f->io_status;
	}
	v = fake_find(f, &w->kv.key);
	if (!nv_status_ok(status)) {
		fake_work_end(w, status, 0);
	} else if (w->kv.opcode == NV_KV_STORE && w->kv.bytes > 0) {
		w->data = malloc(w->kv.bytes);
		w->iov = (struct iovec){w->data, w->kv.bytes};
		wire_pull(cmd, &w->iov, 1, w->kv.bytes, fake_pulled);
	} else if (w->kv.opcode == NV_KV_STORE) {
		fake_store(w);
	} else if (w->kv.opcode == NV_KV_RETRIEVE) {
		fake_retrieve(w);
	} else if (w->kv.opcode == NV_KV_LIST) {
		fake_work_end(w, NV_INVALID_OPCODE, 0);
	} else if (v == NULL) {
		fake_work_end(w, NV_KV_KEY_NOT_FOUND, 0);
	} else {
		if (w->kv.opcode == NV_KV_DELETE) {
			free(v->at);
			*v = (struct fake_value){0};
		}
		fake_work_end(w, NV_OK, 0);
	}
}

static inline void fake_command(void *conn_arg, struct wire_cmd *cmd)
{
	struct fake_conn *c = conn_arg;
	struct fake *f = c->fake;

	if (!c->io || cmd->sqe.opcode == NV_OPCODE_FABRICS) {
		fake_admin(f, c, cmd);
		return;
	}
	f->io_seen[cmd->sqe.opcode]++;
	if (++f->flying > f->flying_max)
		f->flying_max = f->flying;
	if (f->hold) {
		must(f->held_count < FAKE_HELD);
		f->held[f->held_count++] = cmd;
	} else {
		fake_io(f, cmd);
	}
}

/* Answers what was held, in the order it came. */
static inline void fake_let_go(struct fake *f)
{
	unsigned count = f->held_count;

	f->hold = f->deaf = false;
	f->held_count = 0;
	for (unsigned i = 0; i < count; i++) {
		if (f->held[i]->sqe.opcode == NV_ADMIN_KEEP_ALIVE)
			fake_respond(f->held[i], NV_OK, 0);
		else
			fake_io(f, f->held[i]);
	}
}

/* Gives held commands back without an answer: their connection has gone. */
static inline void fake_drop_held(struct fake *f)
{
	for (unsigned i = 0; i < f->held_count; i++) {
		f->flying -= f->held[i]->sqe.opcode != NV_ADMIN_KEEP_ALIVE;
		fake_respond(f->held[i], NV_INTERNAL_ERROR, 0);
	}
	f->held_count = 0;
}

/* --- connections -------------------- */

static inline void fake_accepted(void *listener_arg, struct wire_conn *conn)
{
	struct fake *f = listener_arg;
	struct fake_conn *c = fake_conn_of(f, NULL);

	must(c != NULL);
	*c = (struct fake_conn){.fake = f, .conn = conn};
	wire_conn_arg_set(conn, c);
}

static inline void fake_closed(void *conn_arg, int why)
{
	struct fake_conn *c = conn_arg;

	(void)why;
	wire_close(&c->conn);
}

static const struct wire_ctrl_events fake_events = {fake_accepted, fake_command, fake_closed};

static inline void fake_listen(struct fake *f)
{
	struct wire_opts opts = {.ops = f->ops, .header_digest = true, .data_digest = true,
				 .inline_bytes_max = 8192, .h2c_bytes_max = 16384,
				 .depth_max = 32};

	expect_int(wire_listen(f->loop, &f->addr, &opts, &fake_events, f, &f->listener), 0);
}

/* The array is gone: no listener, every connection closed. */
static inline void fake_die(struct fake *f)
{
	wire_listener_close(&f->listener);
	for (unsigned i = 0; i < FAKE_CONNS; i++)
		if (f->conn[i].conn != NULL)
			wire_close(&f->conn[i].conn);
	fake_drop_held(f);
}

static inline struct fake *fake_new(const struct wire_ops *ops, struct loop *loop)
{
	struct fake *f = calloc(1, sizeof(*f));

	f->loop = loop;
	f->ops = ops;
	f->addr = (struct sock_addr){"10.0.0.1", 4420};
	f->mqes = 128;
	f->subsystems = 1;
	fake_listen(f);
	return f;
}

/* The host is closed; what the controller's end still has in hand comes back here. */
static inline void fake_free(struct fake *f)
{
	if (f->listener != NULL)
		fake_die(f);
	fake_drop_held(f);
	while (sim_step())
		;
	for (unsigned i = 0; i < FAKE_VALUES; i++)
		free(f->value[i].at);
	free(f);
}

#endif
