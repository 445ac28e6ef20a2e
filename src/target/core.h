/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of target/ share: target, subsystem, controller, queue, request. Private.
 *
 *	target ── subsys ── ns ── space
 *	   │         └───── ctrl ── seat ──┐ cntlid, CC, CSTS, keep alive; a seat on each loop
 *	   └── lane ── queue (a connection) ┘ ── req, one a command of the host
 *
 * Loops: a lane is what the target has on one loop. Controllers, their admin queues, subsystems,
 * Connect and the limits are on the first one; an I/O queue is judged there and then lives on the
 * lane with the fewest. What a lane needs of a controller is in the controller's seat there, its
 * own; what changes behind its back (CC, features) is atomic. All else goes by message, in order:
 *
 *	first loop                                 a lane
 *	Connect is right     ─ q->msg ─►           queue_arrive(): lives here
 *	close them all       ─ seat->order[] ─►    its queues of that controller are closed ◄─
 *	tell when idle       ─ seat->order[] ─►    ... ◄─ when io_busy is 0
 *	qid is free again    ◄─ q->closed_msg ─    queue_close()
 *	conns, refs          ◄─ q->msg ─           queue_free(); the memory goes there
 *	namespace comes/goes ─ ns->seat[].msg ─►   known, or its last request has ended ◄─
 *	Abort                ─ req->ask ─►         recalled, or too late ◄─
 *	look at the drives   ◄─ seat->unwell_msg ─ a value could not be read
 *
 * A request is in one state; the table of moves and their only writer are in queue.c:
 *
 *	FREE ─ NEW ─┬─ SHARE ─ BUF ─ PULL ─ STORE ─┬─ PUSH ─ FREE
 *	            ├─ PAGE (admin answers wait for the controller's page) ─ PUSH
 *	            ├─ AER  (answered when something happens)
 *	            ├─ HELD (came while the queue drains; never run)
 *	            └─ LOOK (asks another loop how large the value is) ─ NEW
 *
 * Invariants:
 *  - queue->busy is the number of requests that are not FREE, plus one while Connect is at work.
 *  - a request's wire_cmd is answered exactly once (req->answered), also when the connection died.
 *  - ctrl->refs is the number of queues that name it, plus one while it flushes; a queue names its
 *    controller until it is freed.
 *  - seat->leased_bytes is the sum of req->share_bytes over the shared requests of the controller
 *    on that lane, lane->leased_bytes over all; lane->unproven_bytes over those with req->unproven.
 *  - ns->seat[].busy is the number of requests there that name it, plus on the first loop what asks
 *    or flushes it; subsys->refs the number of controllers whose memory is there, and of namespaces
 *    that are leaving.
 */
#ifndef KVOF_TARGET_CORE_H
#define KVOF_TARGET_CORE_H

#include <stdatomic.h>

#include "base/list.h"
#include "base/must.h"
#include "nvme/feature.h"
#include "nvme/identify.h"
#include "nvme/kv.h"
#include "nvme/log.h"
#include "nvme/nvm.h"
#include "target/ns.h"
#include "target/target.h"

#define TARGET_MAGIC 0x54475430u
#define CTRL_MAGIC 0x4354524cu
#define QUEUE_MAGIC 0x51554555u
#define QUEUE_CID_NEAR 256u

enum req_state {
	REQ_FREE, REQ_NEW, REQ_SHARE, REQ_BUF, REQ_PULL, REQ_STORE, REQ_PAGE, REQ_AER, REQ_HELD,
	REQ_FORGOTTEN, REQ_PUSH, REQ_LOOK, REQ_STATES
};

struct req {
	struct wire_cmd *cmd;
	struct queue *queue;
	struct ns *ns;                       /* I/O commands */
	enum req_state state;
	bool answered, failed, shared, wants_buf;
	bool guessed;                        /* Retrieve: its value is as long as the room, maybe */
	bool pulls;                          /* its data comes by R2T, and is not here yet */
	bool small;                          /* shared, of lane->small_bytes */
	bool moves, unproven;                /* shared, waits for the host; one not proven */
	bool cid_marked;                     /* it counts in queue->cid_near */
	uint16_t bad_offset;                 /* byte of the SQE that was wrong, for the error log */
	struct list_link link;               /* SHARE: seat->share_wait; PAGE: ctrl->page_wait */
	uint32_t share_bytes;                /* of the pool, counted in seat->leased_bytes */
	uint32_t moved_bytes;
	struct nv_kv_cmd kv;
	struct store_buf *buf;
	struct store_buf_wait wait;
	void (*ready)(struct req *req);      /* when the buffer is there */
	void (*page)(struct req *req);       /* when the page is there */
	struct nv_nvm_cmd nvm;               /* block namespaces; kv says bytes and dir, too */
	union {
		struct store_op op;
		struct block_op block;
	};
	void *scratch;                       /* what List and statistics need while STORE; heap */
	/* Abort of a command on another loop */
	struct msg ask;
	struct nv_abort abort;
	uint8_t abort_lane;
	bool aborted;
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
	struct lane *lane;                   /* whose it is */
	struct wire_conn *conn;              /* NULL once closed */
	struct ctrl *ctrl;                   /* NULL until Connect has succeeded */
	struct seat *seat;                   /* of it on this lane, likewise */
	struct list_link link;               /* lane->queues */
	struct msg msg, closed_msg;          /* to its lane, and back */
	uint64_t leased_bytes;               /* of seat->leased_bytes, by requests of this queue */
	unsigned pulling;                    /* requests with req->pulls */
	uint64_t moved_bytes, moved_ns;      /* of the connection, when it was last looked at */
	struct loop_timer timer;             /* Connect must come; after Disconnect, the close */
	uint16_t qid, entries, sqhd;
	bool no_sq_flow;
	bool paused;                         /* its connection is, for Connect to be judged */
	unsigned busy;
	struct req *req;                     /* [entries], by wire_cmd.slot */
	uint16_t *cid;                       /* [entries], of the requests at work */
	/* how many requests that are not answered have a CID of this remainder */
	uint8_t cid_near[QUEUE_CID_NEAR];
	/* Connect at work */
	struct wire_cmd *connect_cmd;
	struct nv_connect_data *connect_data;
	struct iovec connect_iov;
	struct nv_connect connect;           /* its parsed form, while it moves */
};

/* All its queues there are closed; it is told when none of its commands there is at work. */
enum seat_wish { SEAT_STOP, SEAT_QUIET };
#define SEAT_NOTES (2 * TARGET_ERRORS)

/* A controller as one lane sees it; that lane's, but for what is atomic. */
struct seat {
	struct ctrl *ctrl;
	struct lane *lane;
	struct list_link link;               /* lane->seats, while it has I/O queues here */
	struct list_link wait_link;          /* lane->waiters, while share_wait is not empty */
	unsigned queues, io_busy;            /* I/O queues here; their requests that are not FREE */

	uint64_t leased_bytes;
	bool proven;                         /* it has moved what it promised, lately */
	bool fits_not;                       /* its last Retrieve had room of another size */
	unsigned moving;                     /* shared requests that wait for the host */
	struct list_link share_wait;

	/* orders of the first loop, each on its way there or back, or the first loop's */
	struct seat_order {
		struct msg msg;
		struct seat *seat;
		bool out, again;             /* the first loop's */
	} order[2];                          /* by enum seat_wish */
	bool tell_quiet;                     /* the first loop waits for io_busy == 0 */

	struct msg unwell_msg;               /* a drive may have failed: the first loop looks */
	_Atomic bool unwell;                 /* it is on its way */

	struct target_host_counts counts;    /* written here alone, read anywhere */
	_Atomic uint64_t heard_ns;
	/* The last errors here, for the first loop to fetch: entry n is in note[n % SEAT_NOTES],
	 * written before note_count is n + 1; a reader that was overtaken sees that by the
	 * count. */
	_Atomic uint64_t note_count;
	_Atomic uint64_t note[SEAT_NOTES][2];
	uint64_t notes_fetched;              /* the first loop's */
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
	/* IO_READY, IO_SETS: what lanes ask before each command */
	_Atomic uint32_t io_on;
	char hostnqn[NV_NQN_BYTES_MAX + 1];
	uint8_t hostid[16];
	struct target_host *host_row;        /* NULL: of Discovery */
	/* 0: admin; another's is on queue_lane[] and no more than its number here */
	struct queue *queue[TARGET_QUEUES + 1];
	uint8_t queue_lane[TARGET_QUEUES + 1];
	unsigned queues_granted;
	unsigned quiet_left;                 /* seats that have not told that they are idle */
	struct store_op flush;               /* of a shutdown, namespace after namespace */
	struct block_op flush_block;
	struct ns *flush_ns;
	unsigned flush_next;
	bool flushing;

	uint64_t kato_ns;                    /* 0: no keep alive */
	struct loop_timer alive;

	struct req *aer[TARGET_EVENTS];
	unsigned aer_count;
	uint32_t events_on;                  /* feature 0Bh */
	/* bits by enum event: to be told; told, log not read */
	uint32_t events_due, events_told;
	uint64_t changed;                    /* namespaces, bit nsid - 1, since log 04h was read */

	uint32_t feature_arbitration, feature_power, feature_temperature, feature_recovery;
	_Atomic uint64_t edneks_off;         /* bit nsid - 1: Delete of an absent key succeeds */

	uint64_t errors;                     /* of all time; the last TARGET_ERRORS are kept */
	struct nv_log_error error[TARGET_ERRORS];

	uint8_t *page;                       /* one admin answer on its way at a time */
	uint32_t page_bytes;
	struct req *page_holder;
	struct list_link page_wait;
	struct iovec page_iov[2 + TARGET_LOG_BYTES / 65536];
	struct seat seat[];                  /* [target->lane_count] */
};

enum { IO_READY = 1, IO_SETS = 2 };

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
	_Atomic uint64_t transfer_bytes_max; /* MDTS: the largest that any namespace takes */
	bool health_asked, health_worse;     /* statistics are on their way; a drive less */
	unsigned health_next;
	struct ns *health_ns;
	struct space_stat health;
	struct subsys_view {                 /* the same table as each lane knows it; the lane's */
		struct ns *ns[TARGET_NAMESPACES];
	} view[];                            /* [target->lane_count] */
};

struct target_port {
	struct wire_listener *listener;
	struct sock_addr addr;               /* as the discovery log says it */
};

struct lane {
	struct target *target;
	struct loop *loop;
	struct buf_pool *pool;
	unsigned index;
	struct list_link queues;
	struct target_counts counts;         /* written here alone, read anywhere */
	/* fair use of the pool: share.c */
	uint64_t pool_bytes, leased_bytes, unproven_bytes, small_bytes;
	struct list_link seats, waiters;     /* of struct seat; waiters: least served first out */
	unsigned seat_count, buf_waits;      /* requests that wait for the pool itself */
	struct loop_timer pressure;
	/* the first loop's: I/O queues given to this lane, to be closed */
	unsigned queues_given;
	/* closing */
	struct msg drain_msg;
	struct loop_timer drain;
	bool draining, drained;              /* drained is the first loop's */
	uint64_t drain_until_ns;
};

/* A number that one loop writes and others read. */
static inline void count_add(uint64_t *at, uint64_t n)
{
	__atomic_store_n(at, *at + n, __ATOMIC_RELAXED);
}
#define COUNT(lane, name, n) count_add(&(lane)->counts.name, (uint64_t)(n))
/* Of the array, and of the host. */
#define COUNT_BYTES(q, name, n)                                                                    \
	(COUNT((q)->lane, name, n), count_add(&(q)->seat->counts.name, (uint64_t)(n)))

struct target {
	uint32_t magic;
	struct loop *loop;                   /* the first one */
	struct lane *lane;                   /* [lane_count] */
	unsigned lane_count;
	struct wire_opts wire;
	uint64_t handshake_ns, stall_ns;
	unsigned queues_max, conns_max, ctrls_max;
	bool multipath;
	struct subsys *subsys[TARGET_SUBSYSTEMS + 1];        /* NULL: none; the first: Discovery */
	uint64_t discovery_changes;
	struct target_host *host;            /* [TARGET_HOST_ROWS] */
	unsigned leaving;                    /* namespaces that were removed, with work left */
	unsigned telling, ctrls_there;       /* namespaces on their way; controllers in memory */
	unsigned asking;                     /* subsystems whose statistics are on their way */
	struct target_port port[TARGET_LISTENERS];
	unsigned port_count;
	unsigned conns;                      /* of all lanes */
	struct target_counts sum;
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
struct subsys *subsys_find(struct target *t, const char *nqn);
bool subsys_allows(const struct subsys *s, const char *hostnqn);
/* True when some subsystem would refuse this host: then a name that does not exist is not told. */
bool subsys_hides_from(const struct target *t, const char *hostnqn);
struct ns *subsys_ns(const struct subsys *s, uint32_t nsid);       /* NULL: none */
/* Tells the hosts that asked for it when a drive has failed since the last look. */
void subsys_health_look(struct subsys *s);
/* Asks for the statistics of the namespaces, then next(req) with ns->stat as they were just now. */
void req_stats_take(struct req *req, void (*next)(struct req *req));

/* --- hosts.c -------------------- */

void host_enter(struct ctrl *c);                      /* it counts for its host from now on */
void host_leave(struct ctrl *c);
void host_counts(const struct ctrl *c, struct target_host_counts *out);

/* --- lane.c -------------------- */

int lanes_open(struct target *t, const struct target_opts *opts);     /* 0 or -ENOMEM */
void lanes_free(struct target *t);
struct lane *lane_choose(struct target *t);           /* for one more I/O queue */
/* Runs m on another lane, or at once where that is the one we are on. */
void lane_send(struct lane *from, struct lane *to, struct msg *m);
bool subsys_asking(const struct target *t);           /* for statistics that have not come yet */
void lane_drain_soon(struct lane *lane);              /* while draining: look what can be closed */
void lane_drain(struct lane *lane);
bool lanes_drained(const struct target *t);
/* Orders a seat to do something; the controller stays until it is done. First loop. */
void seat_order(struct seat *seat, enum seat_wish wish);
void seat_quiet_look(struct seat *seat);              /* io_busy is 0: somebody may wait for that */
/* All lanes know it; before loops run it is known at once. First loop. */
void ns_publish(struct ns *ns);
void ns_retire(struct ns *ns);
static inline struct ns_seat *ns_seat(struct ns *ns, const struct lane *lane)
{
	return &ns->seat[lane->index];
}
void ns_unbusy(struct ns_seat *seat);                 /* may free it */
/* Its statistics, as space_stat(). */
void ns_stat_ask(struct ns *ns, struct loop *here, struct space_stat *stat);
void ns_all_told(struct ns *ns);                      /* subsys.c: every lane has answered */

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
void ctrl_heard(struct seat *seat);
void ctrl_keep_alive_set(struct ctrl *c, uint32_t kato_ms);
struct nv_cap ctrl_cap(void);
void ctrl_cc_write(struct ctrl *c, uint32_t cc);
void ctrl_idle(struct ctrl *c);                       /* the last I/O queue has ended */
void ctrl_quiet(struct ctrl *c);                      /* one more seat has nothing at work */
void ctrl_unwell(struct seat *seat);                  /* a value could not be read there */
void ctrl_queues_close(struct seat *seat);            /* its I/O queues on that lane */
void ctrl_error_note(const struct req *req, nv_status status);
void ctrl_errors_fetch(struct ctrl *c);               /* what was noted since into c->error */

/* --- event.c -------------------- */

enum event { EVENT_HEALTH, EVENT_NAMESPACE, EVENT_DISCOVERY, EVENTS };
void event_come(struct ctrl *c, enum event event);    /* told if the host asked for such */
void event_log_read(struct ctrl *c, enum event event);
void event_reset(struct ctrl *c);
void event_request(struct req *req);
bool event_request_abort(struct ctrl *c, uint16_t cid);
/* The host has used its CID again: it gets no answer. False: none has this CID. */
bool event_request_forget(struct ctrl *c, uint16_t cid);
void event_requests_drop(struct ctrl *c);

/* --- the page (ctrl.c) -------------------- */

/* The page: page(req) is called, now or later, when req holds it; given back by req_end(). */
void ctrl_page_give(struct ctrl *c);
void ctrl_page_take(struct ctrl *c, struct req *req, void (*page)(struct req *req));
/* Pushes the first `filled` bytes of the page and zeros up to `bytes`, and answers. */
void ctrl_page_send(struct ctrl *c, struct req *req, uint32_t filled, uint32_t bytes);

/* --- share.c -------------------- */

/* A buffer of the lane's pool, when the controller's share allows: ready(req) comes then. */
void req_buf_take(struct req *req, uint32_t bytes, void (*ready)(struct req *req));
/* The same, in whole blocks of 4 KiB (store/buf.h). */
void req_buf_take_plain(struct req *req, uint32_t bytes, void (*ready)(struct req *req));
/* Only the share, of a Retrieve whose buffer the store takes. */
void req_share_take(struct req *req, uint32_t bytes, void (*ready)(struct req *req));
void req_share_leave(struct req *req);                /* it waits no more */
bool req_buf_cancel(struct req *req);                 /* REQ_BUF: false: ready() is on its way */
void req_share_give(struct req *req);
void req_moved(struct req *req);                      /* the host has sent, or taken, all of it */
void share_seat_leave(struct seat *seat);             /* its last I/O queue here is gone */
void share_lane_open(struct lane *lane);
void share_lane_close(struct lane *lane);

/* --- queue.c -------------------- */

extern const struct wire_ctrl_events queue_events;

void queue_close(struct queue *q);                    /* of this one; queue_done() must follow */
void queue_drop(struct queue *q);                     /* at once: its host moves nothing */
void queue_kill(struct queue *q);                     /* and, with an admin queue, all others */
bool queue_idle(const struct queue *q);               /* only AER and HELD are left, or nothing */
/* Connect has succeeded, on the lane where the queue is to live. */
int queue_live(struct queue *q, struct ctrl *c, const struct nv_connect *connect);
void queue_move(struct queue *q, struct ctrl *c, const struct nv_connect *connect,
		struct lane *to);
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
/* Answers a Connect, on whatever lane; the queue is LIVE or NEW again. */
void connect_end(struct queue *q, nv_status status, uint64_t result);
uint32_t discovery_log(struct target *t, const char *hostnqn, uint8_t *out, uint32_t out_bytes);

#endif
