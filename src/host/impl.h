/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of host/ share. Only they include it.
 *
 *	ctrl.c      the host: state, reconnect, keep alive, open and close
 *	connect.c   one association: the steps from a TCP connection to live I/O queues
 *	discover.c  the same for a discovery controller, and its log
 *	queue.c     slots of I/O queues; which operation goes where, deadlines, withdrawal
 *	kv.c        an operation as a command, and its answer as a result
 *	block.c     the same for blocks
 *	order.c     which operations on one key may run now
 *	deadline.c  heap of deadlines
 *	retry.c     may it be sent again? (pure)
 *	target.c    target strings and this host's names
 *
 * Lifetime of an association: assoc_open() .. assoc_fail() marks it dead, nothing is sent any more;
 * in the next turn it is buried (connections closed, owner told); it is freed when the wire has
 * given back the last request. A new one may be under way by then.
 */
#ifndef KVOF_HOST_IMPL_H
#define KVOF_HOST_IMPL_H

#include "base/must.h"
#include "base/prng.h"
#include "host/host.h"
#include "nvme/fabrics.h"
#include "nvme/identify.h"
#include "nvme/kv.h"
#include "nvme/nvm.h"

#define HOST_MAGIC 0x6b766831u
#define ASSOC_MAGIC 0x6b766132u

#define HOST_DIGEST_TRIES 16           /* a command whose data was damaged each time is given up */
#define HOST_RESET_TRIES 4             /* so is one that was in flight at each of so many losses */
/* what a command costs beside its bytes, when queues compare */
#define HOST_LOAD_COMMAND 4096

/* --- order of operations on one key (order.c) -------------------- */

#define ORDER_BUCKETS 1024

struct order_node {
	struct list_link link;         /* in its bucket, oldest first */
	struct kv_key key;
	bool changes;                  /* Store, Delete */
	bool held;                     /* waits for an older one */
	/* NULL: a command without owner that may still take effect */
	struct host_op *op;
};

struct order {
	struct list_link bucket[ORDER_BUCKETS];
};

void order_init(struct order *t);
/* True: it may run now. Else node->held, and order_leave() of another one lets it go. */
bool order_enter(struct order *t, struct order_node *node);
/* ready(arg, op) for each that may run now. */
void order_leave(struct order *t, struct order_node *node,
		 void (*ready)(void *arg, struct host_op *op), void *arg);
/* heir, which has no owner, takes node's place. */
void order_bequeath(struct order_node *node, struct order_node *heir);

/* --- deadlines (deadline.c) -------------------- */

struct deadline_heap {
	struct heap heap;
};

int deadline_heap_init(struct deadline_heap *heap, uint32_t max);
void deadline_heap_free(struct deadline_heap *heap);
void deadline_heap_add(struct deadline_heap *heap, struct host_op *op);
void deadline_heap_remove(struct deadline_heap *heap, struct host_op *op);   /* fine if not in it */
struct host_op *deadline_heap_first(const struct deadline_heap *heap);       /* NULL: none */

/* --- may it be sent again? (retry.c) -------------------- */

struct retry_facts {
	enum host_op_kind kind;
	bool repeat_ok, once;
	int res;                       /* of the wire; 0: answered, see status */
	nv_status status;
	unsigned digest_tries, reset_tries;
};

enum retry { RETRY_NO, RETRY_NOW, RETRY_WHEN_LIVE };

enum retry retry_decide(const struct retry_facts *f);
bool retry_is_lost(int res);           /* the connection is gone */

/* --- an operation in flight -------------------- */

enum op_state {
	OP_SOON = 1,                   /* answered in the next turn, off all lists */
	OP_HELD,                       /* waits for an older one on its key */
	OP_READY,                      /* waits for a slot */
	OP_FLIGHT,                     /* the wire has it */
	OP_DYING,                      /* withdrawn for a cancel; done() is to come */
	OP_BUSY,                       /* done() was called; released() is to come */
};

struct slot;

struct op_lease {
	struct host *host;
	struct slot *slot;             /* FLIGHT, DYING, BUSY */
	struct order_node order;
	struct loop_op soon;
	int res;                       /* SOON */
	struct heap_node deadline;     /* of the host's heap */
	uint8_t state;
	uint8_t digest_tries, reset_tries;
	bool ordered;                  /* in the order table */
	bool maybe_done;               /* an earlier sending may have been carried out */
	struct nv_dsm_range range;     /* Deallocate: what is sent */
	struct iovec range_iov;
};
_Static_assert(sizeof(struct op_lease) <= sizeof(((struct host_op *)0)->lease),
	       "the lease of an operation holds what the host notes about it");

static inline struct op_lease *op_lease(struct host_op *op)
{
	return (struct op_lease *)(void *)op->lease;
}

/* --- associations (connect.c) -------------------- */

enum slot_state { SLOT_FREE, SLOT_FLIGHT, SLOT_WITHDRAWN, SLOT_GHOST };

struct slot {
	struct wire_req req;
	struct queue *queue;
	struct host_op *op;            /* NULL: free or ghost */
	struct order_node order;       /* GHOST of a Store or Delete */
	struct list_link age;          /* WITHDRAWN, GHOST: on the host's list, oldest first */
	uint64_t since_ns;
	uint32_t load;
	enum slot_state state;
	bool ordered;
};

struct queue {
	struct assoc *assoc;
	struct wire_conn *conn;        /* NULL once closed */
	uint16_t qid;
	uint16_t depth;                /* slots */
	uint16_t free_count, ghost_count;
	uint16_t *free_cid;            /* stack of free slots */
	struct slot *slot;
	uint64_t load;
	bool live;
};

enum assoc_step {
	STEP_WIRE, STEP_CONNECT, STEP_CAP, STEP_ENABLE, STEP_READY, STEP_IDENTIFY, STEP_LIST,
	STEP_DESCRIPTORS, STEP_NAMESPACE, STEP_QUEUES, STEP_IO, STEP_LOG_HEAD, STEP_LOG, STEP_LIVE,
	STEP_DEAD, STEP_COUNT
};

struct assoc;

struct assoc_owner {
	void (*live)(struct assoc *a);
	/* Nothing more is sent. Requests may still come back; then gone(). */
	void (*dead)(struct assoc *a, int why);
	void (*gone)(void *arg);       /* a is freed after this call */
};

struct assoc_opts {
	struct sock_addr addr;
	const struct wire_ops *ops;
	char subnqn[NV_NQN_BYTES_MAX + 1], hostnqn[NV_NQN_BYTES_MAX + 1];
	uint8_t hostid[16];
	uint32_t nsid;
	bool block, any;               /* any: block is what was found */
	unsigned queues, depth;
	bool header_digest, data_digest;
	bool discovery;
	uint64_t connect_ns;
	uint32_t kato_ms;
};

struct assoc {
	uint32_t magic;
	struct loop *loop;
	struct assoc_opts opts;
	const struct assoc_owner *owner;
	void *arg;
	enum assoc_step step;
	bool buried;
	int why;
	char text[256];                /* why, for people */
	unsigned out;                  /* requests that the wire has */
	struct loop_op bury, gone;
	struct loop_timer late, poll, user_late;
	uint64_t live_ns;              /* when it went live */
	bool answered;                 /* an operation was answered since */

	/* admin queue: attach, keep alive, the owner's own command have one request each */
	struct wire_conn *admin;
	struct wire_req req, ka, user;
	bool ka_out;
	uint64_t ka_ns;                /* when the last Keep Alive was sent */
	struct host_admin *user_admin;
	struct iovec in, out_iov, user_iov;
	struct nv_connect_data connect_data;
	uint8_t page[NV_IDENTIFY_BYTES];
	struct nv_cap cap;
	struct nv_controller_facts facts;
	uint16_t cntlid;

	struct nv_id_list list;        /* namespaces to look at */
	unsigned list_index;
	uint32_t nsid;
	struct host_ns ns;

	struct host_discover *discover;
	uint64_t genctr, numrec, record;
	unsigned rereads;

	unsigned queue_count, queues_live;
	struct queue queue[HOST_QUEUES_MAX];
};

int assoc_open(struct loop *loop, const struct assoc_opts *opts, const struct assoc_owner *owner,
	       void *arg, struct assoc **out);
/* The first call counts; text is for people. Never calls the owner from inside. */
void assoc_fail(struct assoc *a, int why, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The connection went: the sentence says in which step. */
void assoc_lost(struct assoc *a, int why);
void assoc_go(struct assoc *a, enum assoc_step to);
void assoc_command(struct assoc *a, const struct nv_sqe *sqe, uint32_t in_bytes);
/* One request came back from the wire; frees a dead association after the last. */
void assoc_returned(struct assoc *a);
bool assoc_keep_alive(struct assoc *a, uint64_t keep_alive_ns);
void assoc_admin(struct assoc *a, struct host_admin *admin);

/* discover.c: the two steps of a discovery controller */
void discover_log_head_send(struct assoc *a);
void discover_log_head_got(struct assoc *a);
void discover_log_send(struct assoc *a);
void discover_log_got(struct assoc *a);
void discover_cancel(struct host_discover *d);

/* --- the host -------------------- */

struct host {
	uint32_t magic;
	struct loop *loop;
	struct host_opts opts;
	const struct host_events *events;
	void *arg;
	enum host_state state;
	char last_error[256];
	int last_errno;
	struct host_ns ns;
	char subnqn[NV_NQN_BYTES_MAX + 1];     /* given, or found */
	struct host_discover *discover;
	bool discover_out;                     /* it is in flight */
	struct assoc *assoc;                   /* in use; NULL: none */
	unsigned assocs;                       /* not freed yet */
	unsigned attempts;                     /* since it last stayed up */
	struct prng prng;
	struct loop_timer reconnect, keep_alive, deadline, sweep;

	struct order order;
	struct deadline_heap deadlines;
	struct list_link ready, held;          /* ops; link */
	struct list_link old;                  /* slots withdrawn or ghosts; age */
	unsigned ops;                          /* submitted, not over */
	struct host_stat stat;

	bool closing, closed_queued;
	void (*closed)(void *arg);
	void *closed_arg;
	struct loop_op closed_op;
};

/* queue.c */
int queue_init(struct queue *q, struct assoc *a, uint16_t qid, uint16_t depth);
void queue_free(struct queue *q);
void queue_kick(struct host *h);                    /* sends what can be sent */
void queue_refuse_waiting(struct host *h, int res); /* ends what has not been sent */
void queue_deadline_fire(struct loop_timer *t);
void queue_sweep_fire(struct loop_timer *t);
void queue_forget(struct host *h, struct assoc *a); /* its old slots leave the host's list */

/* ctrl.c */
void host_check_closed(struct host *h);

/* target.c: names of this host as opts say or as the machine is called */
void host_names_fill(const struct host_opts *opts, char hostnqn[NV_NQN_BYTES_MAX + 1],
		     uint8_t hostid[16]);

/* kv.c */
/* 0; -EINVAL: beyond the namespace's limits. */
int kv_request_build(const struct host_ns *ns, const struct host_op *op, struct wire_req *req);
/* The result of an operation whose command was answered; fills value_bytes, moved_bytes, status. */
int kv_answer_read(struct host_op *op, const struct wire_req *req, bool repeated);
/* block.c: the same for blocks */
int block_request_build(const struct host_ns *ns, struct host_op *op, struct wire_req *req);
int block_answer_read(struct host_op *op, const struct wire_req *req);
static inline bool op_is_block(const struct host_op *op)
{
	return op->kind >= HOST_READ;
}
static inline bool kv_op_changes(const struct host_op *op)
{
	return op->kind == HOST_STORE || op->kind == HOST_DELETE;
}

#endif
