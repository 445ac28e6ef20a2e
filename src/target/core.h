/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of target/ share: target, subsystem, controller, queue, request. Private.
 *
 *	target ── subsys ── ns ── store
 *	   │         └───── ctrl ──┐ cntlid, CC, CSTS, keep alive
 *	   └── queue (a connection) ┘ ── req, one a command of the host
 *
 * A request is in one state; the table of moves and their only writer are in queue.c:
 *
 *	FREE ─ NEW ─┬─ SHARE ─ BUF ─ PULL ─ STORE ─┬─ PUSH ─ FREE
 *	            ├─ PAGE (admin answers wait for the controller's page) ─ PUSH
 *	            ├─ AER  (answered when something happens)
 *	            └─ HELD (came while the queue drains; never run)
 *
 * Invariants:
 *  - queue->busy is the number of requests that are not FREE, plus one while Connect is at work.
 *  - a request's wire_cmd is answered exactly once (req->answered), also when the connection died.
 *  - ctrl->refs is the number of queues that name it, plus one while it flushes; a queue names its
 *    controller until it is freed.
 *  - ctrl->leased_bytes is the sum of req->share_bytes over the controller's shared requests;
 *    ns->unproven_bytes the sum over all requests with req->unproven.
 *  - ns->busy is the number of requests that name it, plus the controllers that flush it; subsys->
 *    refs the number of controllers whose memory is there, and of namespaces that are leaving.
 */
#ifndef KVOF_TARGET_CORE_H
#define KVOF_TARGET_CORE_H

#include "base/list.h"
#include "base/must.h"
#include "nvme/feature.h"
#include "nvme/identify.h"
#include "nvme/kv.h"
#include "nvme/log.h"
#include "target/ns.h"
#include "target/target.h"

#define TARGET_MAGIC 0x54475430u
#define CTRL_MAGIC 0x4354524cu
#define QUEUE_MAGIC 0x51554555u

enum req_state {
	REQ_FREE, REQ_NEW, REQ_SHARE, REQ_BUF, REQ_PULL, REQ_STORE, REQ_PAGE, REQ_AER, REQ_HELD,
	REQ_PUSH, REQ_STATES
};

struct req {
	struct wire_cmd *cmd;
	struct queue *queue;
	struct ns *ns;                       /* I/O commands */
	enum req_state state;
	bool answered, failed, shared, wants_buf;
	bool pulls, unproven;                /* waits for the host's data; from one not proven */
	uint16_t bad_offset;                 /* byte of the SQE that was wrong, for the error log */
	struct list_link link;               /* SHARE: ctrl->share_wait; PAGE: ctrl->page_wait */
	uint32_t share_bytes;                /* of the pool, counted in ctrl->leased_bytes */
	uint32_t moved_bytes;
	struct nv_kv_cmd kv;
	struct store_buf *buf;
	struct store_buf_wait wait;
	void (*ready)(struct req *req);      /* when the buffer is there */
	void (*page)(struct req *req);       /* when the page is there */
	struct store_op op;
};

enum queue_state {
	QUEUE_NEW,
	QUEUE_CONNECTING,
	QUEUE_LIVE,
	QUEUE_LEAVING,
	QUEUE_DEAD,
	QUEUE_STATES
};

struct queue {
	uint32_t magic;
	enum queue_state state;
	struct target *target;
	struct wire_conn *conn;              /* NULL once closed */
	struct ctrl *ctrl;                   /* NULL until Connect has succeeded */
	struct list_link link;               /* target->queues */
	struct loop_timer timer;             /* Connect must come; after Disconnect, the close */
	uint16_t qid, entries, sqhd;
	bool no_sq_flow;
	unsigned busy;
	struct req *req;                     /* [entries], by wire_cmd.slot */
	uint16_t *cid;                       /* [entries], of the requests at work */
	/* Connect at work */
	struct wire_cmd *connect_cmd;
	struct nv_connect_data *connect_data;
	struct iovec connect_iov;
};

enum ctrl_state {
	CTRL_OFF,
	CTRL_READY,
	CTRL_STOPPING,
	CTRL_SHUTTING,
	CTRL_SHUT,
	CTRL_GONE,
	CTRL_STATES
};

struct ctrl {
	uint32_t magic;
	enum ctrl_state state;
	struct target *target;
	struct subsys *subsys;
	struct list_link link;               /* subsys->ctrls */
	unsigned refs, io_queues;            /* queues that name it, and those of them for I/O */
	uint16_t cntlid;
	uint32_t cc, cc_shut;                /* as written; as it was when the shutdown began */
	char hostnqn[NV_NQN_BYTES_MAX + 1];
	uint8_t hostid[16];
	struct queue *queue[TARGET_QUEUES + 1];      /* 0: admin */
	unsigned queues_granted;
	unsigned io_busy;                    /* I/O requests that are not FREE */
	struct store_op flush;               /* of a shutdown, namespace after namespace */
	struct ns *flush_ns;
	unsigned flush_next;
	bool flushing;

	uint64_t kato_ns, heard_ns;          /* 0: no keep alive */
	struct loop_timer alive;

	struct req *aer[TARGET_EVENTS];
	unsigned aer_count;
	uint32_t events_on;                  /* feature 0Bh */
	/* bits by enum event: to be told; told, log not read */
	uint32_t events_due, events_told;
	uint64_t changed;                    /* namespaces, bit nsid - 1, since log 04h was read */

	uint32_t feature_arbitration, feature_power, feature_temperature, feature_recovery;
	uint64_t edneks_off;                 /* bit nsid - 1: Delete of an absent key succeeds */

	uint64_t errors;                     /* of all time; the last TARGET_ERRORS are kept */
	struct nv_log_error error[TARGET_ERRORS];

	uint64_t leased_bytes;
	bool proven;                         /* it has sent what it promised, once */
	unsigned pulling;                    /* requests that hold a buffer for R2T data */
	struct list_link share_wait;

	uint8_t *page;                       /* one admin answer on its way at a time */
	uint32_t page_bytes;
	struct req *page_holder;
	struct list_link page_wait;
	struct iovec page_iov[2 + TARGET_LOG_BYTES / 65536];
};

struct subsys {
	struct target *target;
	bool discovery;
	char nqn[NV_NQN_BYTES_MAX + 1];
	char serial[21];
	char host[TARGET_HOSTS][NV_NQN_BYTES_MAX + 1];
	unsigned host_count;
	struct ns *ns[TARGET_NAMESPACES];    /* nsid - 1; NULL where there is none */
	struct list_link ctrls;
	unsigned ctrl_count, refs;
	bool gone;                           /* removed; freed with its last controller */
	uint16_t cntlid_next;
};

struct target_port {
	struct wire_listener *listener;
	struct sock_addr addr;               /* as the discovery log says it */
};

struct target {
	uint32_t magic;
	struct loop *loop;
	struct wire_opts wire;
	uint64_t handshake_ns;
	unsigned queues_max, conns_max, ctrls_max;
	struct subsys *subsys[TARGET_SUBSYSTEMS + 1];        /* NULL: none; the first: Discovery */
	uint64_t discovery_changes;
	unsigned leaving;                    /* namespaces that were removed, with work left */
	struct target_port port[TARGET_LISTENERS];
	unsigned port_count;
	struct list_link queues;
	struct target_counts counts;
	uint8_t *list_page;                  /* [TARGET_LIST_BYTES], used within one call */
	bool draining;
	struct loop_timer drain;
	uint64_t drain_until_ns;
	void (*closed)(void *arg);
	void *closed_arg;
};

/* --- subsys.c -------------------- */

int subsys_make(struct target *t, const struct target_subsys_opts *opts, char why[256]);
int subsys_make_discovery(struct target *t);
void subsys_free_all(struct target *t);               /* no controller is left */
void subsys_put(struct subsys *s);                    /* a controller less */
void subsys_ns_unbusy(struct ns *ns);                 /* may free it */
struct subsys *subsys_find(struct target *t, const char *nqn);
bool subsys_allows(const struct subsys *s, const char *hostnqn);
/* True when some subsystem would refuse this host: then a name that does not exist is not told. */
bool subsys_hides_from(const struct target *t, const char *hostnqn);
struct ns *subsys_ns(const struct subsys *s, uint32_t nsid);       /* NULL: none */
/* Tells the hosts that asked for it when a drive has failed since the last look. */
void subsys_health_look(struct subsys *s);
/* Bytes that one controller may hold of the pool behind ns. */
uint64_t subsys_share_bytes(const struct subsys *s, const struct ns *ns);

/* --- target.c -------------------- */

void target_drain_soon(struct target *t);             /* while draining: look what can be closed */

/* --- ctrl.c -------------------- */

/* What a write to CC asks for; pure, tested as a table. */
struct ctrl_step {
	enum ctrl_state to;
	bool stop_queues, flush;
};
struct ctrl_step ctrl_step_of(enum ctrl_state from, uint32_t cc_old, uint32_t cc_new);
uint32_t ctrl_csts_of(enum ctrl_state state, uint32_t cc);
bool ctrl_may_go(enum ctrl_state from, enum ctrl_state to);

int ctrl_make(struct subsys *s, const struct nv_connect *connect, struct ctrl **out);
struct ctrl *ctrl_find(struct subsys *s, uint16_t cntlid);
void ctrl_put(struct ctrl *c);                        /* one reference less; the last frees */
void ctrl_kill(struct ctrl *c);                       /* its admin queue is gone, or it expired */
void ctrl_heard(struct ctrl *c);
void ctrl_keep_alive_set(struct ctrl *c, uint32_t kato_ms);
struct nv_cap ctrl_cap(void);
void ctrl_cc_write(struct ctrl *c, uint32_t cc);
void ctrl_idle(struct ctrl *c);                       /* an I/O request or queue ended */
void ctrl_error_note(struct ctrl *c, const struct req *req, nv_status status);

/* --- event.c -------------------- */

enum event { EVENT_HEALTH, EVENT_NAMESPACE, EVENT_DISCOVERY, EVENTS };
void event_come(struct ctrl *c, enum event event);    /* told if the host asked for such */
void event_log_read(struct ctrl *c, enum event event);
void event_reset(struct ctrl *c);
void event_request(struct req *req);
bool event_request_abort(struct ctrl *c, uint16_t cid);
void event_requests_drop(struct ctrl *c);

/* --- the page (ctrl.c) -------------------- */

/* The page: page(req) is called, now or later, when req holds it; given back by req_end(). */
void ctrl_page_give(struct ctrl *c);
void ctrl_page_take(struct ctrl *c, struct req *req, void (*page)(struct req *req));
/* Pushes the first `filled` bytes of the page and zeros up to `bytes`, and answers. */
void ctrl_page_send(struct ctrl *c, struct req *req, uint32_t filled, uint32_t bytes);

/* --- share.c -------------------- */

/* A buffer of the namespace's pool, when the controller's share allows: ready(req) comes then. */
void req_buf_take(struct req *req, uint32_t bytes, void (*ready)(struct req *req));
/* The same share for a Retrieve, whose buffer the store takes. */
void req_share_take(struct req *req, uint32_t bytes, void (*ready)(struct req *req));
void req_share_give(struct req *req, uint32_t keep_bytes);
void req_pull_came(struct req *req);                  /* the data that R2T asked for is here */

/* --- queue.c -------------------- */

extern const struct wire_ctrl_events queue_events;

void queue_close(struct queue *q);                    /* of this one; queue_done() must follow */
void queue_kill(struct queue *q);                     /* and, with an admin queue, all others */
bool queue_idle(const struct queue *q);               /* only AER and HELD are left, or nothing */
int queue_live(struct queue *q, struct ctrl *c, const struct nv_connect *connect);
void queue_go(struct queue *q, enum queue_state to);
void queue_done(struct queue *q);                     /* last thing in a callback: may free q */
uint64_t queue_bytes(unsigned entries);
/* The completion of a command with its SQHD; result is DW0 and DW1. */
struct nv_cqe queue_cqe(struct queue *q, const struct wire_cmd *cmd, nv_status status,
			uint64_t result);

void req_go(struct req *req, enum req_state to);
void req_answer(struct req *req, nv_status status, uint64_t result);  /* once; req_end() follows */
void req_end(struct req *req);                        /* gives everything back: FREE */
void req_fail(struct req *req, nv_status status, const struct bad *bad);      /* answer and end */
/* Ends one that waits for its turn, its share, a buffer or the page; false: it is past that. */
bool req_recall(struct req *req, nv_status status);
/* The data descriptor against what the command moves; false: it was answered and ended. */
bool req_data_check(struct req *req, enum nv_data_dir dir, uint32_t bytes);
void req_push(struct req *req, const struct iovec *iov, unsigned iov_count, uint32_t bytes);

/* --- fabrics.c, admin.c, feature.c, logpage.c, discovery.c -------------------- */

void fabrics_first(struct queue *q, struct wire_cmd *cmd);    /* before Connect has succeeded */
void fabrics_command(struct req *req);
void admin_command(struct req *req);
void feature_set(struct req *req);
void feature_get(struct req *req);
void logpage_get(struct req *req);
uint32_t discovery_log(struct target *t, const char *hostnqn, uint8_t *out, uint32_t out_bytes);

#endif
