/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public client (include/kvof/client.h): a host on a loop of its own thread, and a door to it.
 *
 *	caller's thread                         the client's thread
 *	batch made (one allocation)   --msg-->  host_submit() each operation
 *	                                        done(): event to the stack, eventfd if it was empty
 *	drain: takes the whole stack  <-------
 *	wait:  sleeps on a semaphore  <-------  the last event of the batch
 *
 * A batch has n results, and a release for each busy one; left counts those to come, on the
 * client's thread. The event that makes it 0 carries KVOF_CLIENT_LAST; whoever drains that frees
 * the batch. Events leave in the order they were pushed, so nothing of a batch is in use then.
 *
 * Fork: a counter that the child's atfork handler advances; a handle made under another count is
 * dead: nothing of it is touched but its memory.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <kvof/client.h>

#include "base/files.h"
#include "base/must.h"
#include "host/host.h"
#include "nvme/kv.h"

#define CLIENT_MAGIC 0x6b76636cu
#define CLIENT_IOV_MAX 1024
#define CLIENT_DEADLINE_NS_MAX (UINT64_C(365) * 86400 * NS_PER_S)
#define LIST_RECORD_BYTES 20           /* length, 16 bytes, padding: the longest record of a List */

struct event {
	struct event *next;
	struct batch *batch;
	struct kvof_client_result result;
};

struct client_op {
	struct host_op op;
	struct batch *batch;
	struct event done, released;
};

struct batch {
	struct msg msg;
	struct kvof_client *client;
	struct list_link link;         /* client's thread: batches with events to come */
	uint64_t number;
	uint64_t deadline_ns, made_ns; /* relative; when it was submitted */
	size_t n, left;
	struct kvof_client_result *results;    /* of a waiter; else NULL */
	sem_t over;                    /* of a waiter */
	struct iovec *iov;             /* behind op[n] */
	struct client_op op[];
};

struct kvof_client {
	uint32_t magic;
	unsigned fork_count;
	struct host_opts host_opts;
	uint64_t deadline_ns;
	uint32_t in_flight_max;
	pthread_t thread;
	atomic_size_t in_flight;
	atomic_uint_fast64_t batches;

	/* the client's thread */
	struct loop *loop;
	struct host *host;
	struct list_link live;         /* batches */
	bool settled;                  /* the first try to connect has ended */

	/* between it and openers */
	sem_t opened;
	sem_t posted;                  /* the closer has left loop_post(): the loop may be freed */
	int open_rc;
	bool background;

	/* events: pushed by the client's thread, taken by any */
	_Atomic(struct event *) stack;
	int fd;
	pthread_mutex_t drain_lock;
	struct event *pending, *pending_last;

	pthread_mutex_t info_lock;
	struct kvof_client_info info;
	char why[256];
};

static atomic_uint client_forks;
static pthread_once_t client_once = PTHREAD_ONCE_INIT;

static void client_forked(void)
{
	atomic_fetch_add(&client_forks, 1);
}

static void client_once_init(void)
{
	pthread_atfork(NULL, NULL, client_forked);
}

static uint64_t client_clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void client_sem_wait(sem_t *sem)
{
	while (sem_wait(sem) != 0)
		must(errno == EINTR);
}

/* 0, or why the handle can't be used. */
static int client_check(const struct kvof_client *c)
{
	if (c == NULL || c->magic != CLIENT_MAGIC)
		return -EINVAL;
	return c->fork_count == atomic_load(&client_forks) ? 0 : -ESHUTDOWN;
}

/* --- events -------------------- */

static void client_push(struct kvof_client *c, struct event *e)
{
	struct event *head = atomic_load_explicit(&c->stack, memory_order_relaxed);
	uint64_t one = 1;

	do {
		e->next = head;
	} while (!atomic_compare_exchange_weak_explicit(&c->stack, &head, e, memory_order_release,
							memory_order_relaxed));
	if (head == NULL)
		(void)!write(c->fd, &one, sizeof(one));
}

/* One event of a batch; the batch may be gone afterwards. */
static void batch_event(struct batch *b, struct event *e, bool counts)
{
	struct kvof_client *c = b->client;

	must(b->left > 0);
	if (counts)
		b->left--;
	e->result.batch = b->number;
	e->batch = b;
	if (b->left == 0) {
		list_remove(&b->link);
		e->result.flags |= KVOF_CLIENT_LAST;
	}
	if (b->results == NULL) {
		client_push(c, e);
		return;
	}
	if (!(e->result.flags & KVOF_CLIENT_RELEASED))
		b->results[e->result.index] = e->result;
	if (b->left == 0)
		sem_post(&b->over);
}

static void op_done(struct host_op *op, int res)
{
	struct client_op *o = container_of(op, struct client_op, op);
	struct batch *b = o->batch;

	o->done.result = (struct kvof_client_result){
		.index = (uint32_t)(o - b->op),
		.res = res,
		.value_bytes = res == 0 ? op->value_bytes : 0,
		.moved_bytes = res == 0 ? op->moved_bytes : 0,
		.busy = op->busy && b->results == NULL,
	};
	batch_event(b, &o->done, !op->busy);
}

static void op_released(struct host_op *op)
{
	struct client_op *o = container_of(op, struct client_op, op);

	o->released.result = (struct kvof_client_result){
		.index = (uint32_t)(o - o->batch->op),
		.flags = KVOF_CLIENT_RELEASED,
	};
	batch_event(o->batch, &o->released, true);
}

/* Takes what has been pushed, oldest first, behind what is pending. Under drain_lock. */
static void client_take(struct kvof_client *c)
{
	struct event *e, *next, *first = NULL, *last = NULL;
	uint64_t count;

	(void)!read(c->fd, &count, sizeof(count));
	e = atomic_exchange_explicit(&c->stack, NULL, memory_order_acquire);
	last = e;
	for (; e != NULL; e = next) {
		next = e->next;
		e->next = first;
		first = e;
	}
	if (first == NULL)
		return;
	if (c->pending == NULL)
		c->pending = first;
	else
		c->pending_last->next = first;
	c->pending_last = last;
}

static bool client_pop(struct kvof_client *c, struct kvof_client_result *out)
{
	struct event *e;

	if (c->pending == NULL)
		client_take(c);
	e = c->pending;
	if (e == NULL)
		return false;
	c->pending = e->next;
	*out = e->result;
	if (!(out->flags & KVOF_CLIENT_RELEASED))
		atomic_fetch_sub(&c->in_flight, 1);
	if (out->flags & KVOF_CLIENT_LAST)
		free(e->batch);
	return true;
}

int kvof_client_drain(struct kvof_client *c, struct kvof_client_result *out, size_t n)
{
	int rc = client_check(c);
	uint64_t one = 1;
	size_t got = 0;

	if (rc < 0)
		return rc;
	if (out == NULL && n > 0)
		return -EINVAL;
	if (n > INT32_MAX)
		n = INT32_MAX;
	pthread_mutex_lock(&c->drain_lock);
	while (got < n && client_pop(c, &out[got]))
		got++;
	if (c->pending != NULL)
		(void)!write(c->fd, &one, sizeof(one));
	pthread_mutex_unlock(&c->drain_lock);
	return (int)got;
}

int kvof_client_fd(struct kvof_client *c)
{
	int rc = client_check(c);

	return rc < 0 ? rc : c->fd;
}

/* --- batches -------------------- */

static void batch_start(struct loop *here, struct msg *m)
{
	struct batch *b = container_of(m, struct batch, msg);
	struct kvof_client *c = b->client;
	uint64_t passed = client_clock_ns() - b->made_ns;
	uint64_t deadline = loop_now_ns(here) + (b->deadline_ns > passed ?
						 b->deadline_ns - passed : 0);
	size_t n = b->n;

	list_push_back(&c->live, &b->link);
	for (size_t i = 0; i < n; i++) {
		b->op[i].op.deadline_ns = deadline;
		if (c->host != NULL)
			host_submit(c->host, &b->op[i].op);
		else
			op_done(&b->op[i].op, -ESHUTDOWN);
	}
}

/* NULL: no memory. */
static struct batch *batch_new(struct kvof_client *c, size_t n, size_t iov_count,
			       uint64_t deadline_ns)
{
	struct batch *b = calloc(1, sizeof(*b) + n * sizeof(b->op[0]) +
				    iov_count * sizeof(struct iovec));

	if (b == NULL)
		return NULL;
	b->client = c;
	b->msg.run = batch_start;
	b->number = atomic_fetch_add(&c->batches, 1) + 1;
	b->n = b->left = n;
	b->iov = (struct iovec *)(void *)&b->op[n];
	b->deadline_ns = deadline_ns != 0 ? deadline_ns : c->deadline_ns;
	if (b->deadline_ns > CLIENT_DEADLINE_NS_MAX)
		b->deadline_ns = CLIENT_DEADLINE_NS_MAX;
	b->made_ns = client_clock_ns();
	for (size_t i = 0; i < n; i++) {
		b->op[i].batch = b;
		b->op[i].op.done = op_done;
		b->op[i].op.released = op_released;
	}
	return b;
}

static int client_admit(struct kvof_client *c, size_t n)
{
	size_t before = atomic_fetch_add(&c->in_flight, n);

	if (before + n <= c->in_flight_max)
		return 0;
	atomic_fetch_sub(&c->in_flight, n);
	return -EBUSY;
}

static int key_check(const struct kvof_key *key, unsigned least)
{
	return key != NULL && key->bytes >= least && key->bytes <= KVOF_KEY_BYTES_MAX ? 0 : -EINVAL;
}

static struct kv_key key_of(const struct kvof_key *key)
{
	struct kv_key k = {.len = key->bytes};

	memcpy(k.byte, key->byte, key->bytes);
	return k;
}

static const enum host_op_kind client_kind[] = {
	[KVOF_CLIENT_STORE] = HOST_STORE, [KVOF_CLIENT_RETRIEVE] = HOST_RETRIEVE,
	[KVOF_CLIENT_EXIST] = HOST_EXIST, [KVOF_CLIENT_DELETE] = HOST_DELETE,
	[KVOF_CLIENT_READ] = HOST_READ, [KVOF_CLIENT_WRITE] = HOST_WRITE,
	[KVOF_CLIENT_FLUSH] = HOST_FLUSH, [KVOF_CLIENT_ZERO] = HOST_ZERO,
	[KVOF_CLIENT_DEALLOCATE] = HOST_DEALLOCATE, [KVOF_CLIENT_COMPARE] = HOST_COMPARE,
};

static bool req_is_block(const struct kvof_client_req *r)
{
	return r->op >= KVOF_CLIENT_READ;
}

/* Checks one request; -EINVAL, or 0 with the sum of its pieces. */
static int req_check(const struct kvof_client_req *r, uint32_t *bytes)
{
	const uint32_t conditions = KVOF_CLIENT_IF_ABSENT | KVOF_CLIENT_IF_PRESENT;
	uint64_t sum = 0;

	if (r->op > KVOF_CLIENT_COMPARE || (!req_is_block(r) && key_check(&r->key, 1) < 0))
		return -EINVAL;
	if (r->flags & KVOF_CLIENT_FUA && r->op != KVOF_CLIENT_WRITE && r->op != KVOF_CLIENT_ZERO)
		return -EINVAL;
	if (r->flags & ~(conditions | KVOF_CLIENT_REPEAT_OK | KVOF_CLIENT_FUA) ||
	    (r->flags & conditions && r->op != KVOF_CLIENT_STORE) ||
	    (r->flags & conditions) == conditions)
		return -EINVAL;
	if (r->iov_count > CLIENT_IOV_MAX || (r->iov_count > 0 && r->iov == NULL))
		return -EINVAL;
	for (uint32_t i = 0; i < r->iov_count; i++) {
		if (r->iov[i].iov_len > UINT32_MAX - sum ||
		    (r->iov[i].iov_base == NULL && r->iov[i].iov_len > 0))
			return -EINVAL;
		sum += r->iov[i].iov_len;
	}
	*bytes = (uint32_t)sum;
	return 0;
}

static int batch_make(struct kvof_client *c, const struct kvof_client_req *reqs, size_t n,
		      uint64_t deadline_ns, struct batch **out)
{
	size_t iov_count = 0;
	struct iovec *iov;
	struct batch *b;
	uint32_t bytes;
	int rc = client_check(c);

	if (rc < 0)
		return rc;
	if (reqs == NULL || n == 0 || n > UINT32_MAX)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		if (req_check(&reqs[i], &bytes) < 0)
			return -EINVAL;
		iov_count += reqs[i].iov_count;
	}
	rc = client_admit(c, n);
	if (rc < 0)
		return rc;
	b = batch_new(c, n, iov_count, deadline_ns);
	if (b == NULL) {
		atomic_fetch_sub(&c->in_flight, n);
		return -ENOMEM;
	}
	iov = b->iov;
	for (size_t i = 0; i < n; i++) {
		struct host_op *op = &b->op[i].op;

		must(req_check(&reqs[i], &bytes) == 0);
		op->kind = client_kind[reqs[i].op];
		if (!req_is_block(&reqs[i]))
			op->key = key_of(&reqs[i].key);
		op->offset_bytes = reqs[i].offset;
		op->range_bytes = reqs[i].iov_count > 0 ? bytes : reqs[i].range;
		op->fua = reqs[i].flags & KVOF_CLIENT_FUA;
		op->if_absent = reqs[i].flags & KVOF_CLIENT_IF_ABSENT;
		op->if_present = reqs[i].flags & KVOF_CLIENT_IF_PRESENT;
		op->repeat_ok = reqs[i].flags & KVOF_CLIENT_REPEAT_OK;
		op->iov = iov;
		op->iov_count = reqs[i].iov_count;
		op->bytes = bytes;
		if (reqs[i].iov_count > 0)
			memcpy(iov, reqs[i].iov, reqs[i].iov_count * sizeof(*iov));
		iov += reqs[i].iov_count;
	}
	*out = b;
	return 0;
}

int kvof_client_submit(struct kvof_client *c, const struct kvof_client_req *reqs, size_t n,
		       uint64_t deadline_ns, uint64_t *batch)
{
	struct batch *b;
	int rc;

	if (batch == NULL)
		return -EINVAL;
	rc = batch_make(c, reqs, n, deadline_ns, &b);
	if (rc < 0)
		return rc;
	*batch = b->number;            /* b may be gone as soon as it is posted */
	loop_post(c->loop, &b->msg);
	return 0;
}

static void batch_wait(struct kvof_client *c, struct batch *b, struct kvof_client_result *results)
{
	size_t n = b->n;

	b->results = results;
	must(sem_init(&b->over, 0, 0) == 0);
	loop_post(c->loop, &b->msg);
	client_sem_wait(&b->over);
	sem_destroy(&b->over);
	free(b);
	atomic_fetch_sub(&c->in_flight, n);
}

int kvof_client_wait(struct kvof_client *c, const struct kvof_client_req *reqs, size_t n,
		     uint64_t deadline_ns, struct kvof_client_result *results)
{
	struct batch *b;
	int rc;

	if (results == NULL)
		return -EINVAL;
	rc = batch_make(c, reqs, n, deadline_ns, &b);
	if (rc < 0)
		return rc;
	batch_wait(c, b, results);
	return 0;
}

struct cancel {
	struct msg msg;
	struct kvof_client *client;
	uint64_t number;
};

static void cancel_run(struct loop *here, struct msg *m)
{
	struct cancel *x = container_of(m, struct cancel, msg);
	struct kvof_client *c = x->client;

	(void)here;
	LIST_FOR_EACH(at, &c->live) {
		struct batch *b = container_of(at, struct batch, link);

		if (b->number != x->number || c->host == NULL)
			continue;
		for (size_t i = 0; i < b->n; i++)
			host_cancel(c->host, &b->op[i].op);
		break;
	}
	free(x);
}

int kvof_client_cancel(struct kvof_client *c, uint64_t batch)
{
	struct cancel *x;
	int rc = client_check(c);

	if (rc < 0)
		return rc;
	x = calloc(1, sizeof(*x));
	if (x == NULL)
		return -ENOMEM;
	x->msg.run = cancel_run;
	x->client = c;
	x->number = batch;
	loop_post(c->loop, &x->msg);
	return 0;
}

/* --- one at a time -------------------- */

static int client_one(struct kvof_client *c, const struct kvof_client_req *req,
		      uint64_t deadline_ns, struct kvof_client_result *result)
{
	int rc = kvof_client_wait(c, req, 1, deadline_ns, result);

	return rc < 0 ? rc : result->res;
}

static int client_req(uint32_t op, const struct kvof_key *key, uint32_t flags,
		      const struct iovec *iov, struct kvof_client_req *out)
{
	if (key == NULL || (iov != NULL && iov->iov_base == NULL && iov->iov_len > 0))
		return -EINVAL;
	*out = (struct kvof_client_req){
		.op = op,
		.flags = flags,
		.key = *key,
		.iov = iov,
		.iov_count = iov != NULL && iov->iov_len > 0,
	};
	return 0;
}

int kvof_client_store(struct kvof_client *c, const struct kvof_key *key, const void *value,
		      size_t bytes, uint32_t flags, uint64_t deadline_ns)
{
	struct kvof_client_result result;
	struct kvof_client_req req;
	union { const void *from; void *base; } value_is = {value};
	struct iovec iov = {value_is.base, bytes};
	int rc = client_req(KVOF_CLIENT_STORE, key, flags, &iov, &req);

	return rc < 0 ? rc : client_one(c, &req, deadline_ns, &result);
}

int kvof_client_retrieve(struct kvof_client *c, const struct kvof_key *key, void *room,
			 size_t bytes, uint64_t deadline_ns, uint32_t *value_bytes)
{
	struct kvof_client_result result;
	struct kvof_client_req req;
	struct iovec iov = {room, bytes < UINT32_MAX ? bytes : UINT32_MAX};
	int rc = client_req(KVOF_CLIENT_RETRIEVE, key, 0, &iov, &req);

	if (rc == 0)
		rc = client_one(c, &req, deadline_ns, &result);
	if (rc == 0 && value_bytes != NULL)
		*value_bytes = result.value_bytes;
	return rc;
}

int kvof_client_exist(struct kvof_client *c, const struct kvof_key *key, uint64_t deadline_ns)
{
	struct kvof_client_result result;
	struct kvof_client_req req;
	int rc = client_req(KVOF_CLIENT_EXIST, key, 0, NULL, &req);

	return rc < 0 ? rc : client_one(c, &req, deadline_ns, &result);
}

int kvof_client_delete(struct kvof_client *c, const struct kvof_key *key, uint64_t deadline_ns)
{
	struct kvof_client_result result;
	struct kvof_client_req req;
	int rc = client_req(KVOF_CLIENT_DELETE, key, 0, NULL, &req);

	return rc < 0 ? rc : client_one(c, &req, deadline_ns, &result);
}

/* The keys of a List's answer. -EPROTO: it is not well formed, or not in order. */
static int list_read(const void *answer, uint32_t bytes, struct kvof_key *keys, size_t n_max,
		     size_t *n)
{
	struct nv_kv_list_in in;
	struct kv_key key;
	int rc = nv_kv_list_open(&in, answer, bytes);

	*n = 0;
	while (rc == 0 && *n < n_max) {
		rc = nv_kv_list_next(&in, &key);
		if (rc != 1)
			return rc;
		keys[*n].bytes = key.len;
		memcpy(keys[*n].byte, key.byte, sizeof(keys[*n].byte));
		++*n;
		rc = 0;
	}
	return rc;
}

int kvof_client_list(struct kvof_client *c, const struct kvof_key *from, struct kvof_key *keys,
		     size_t n_max, uint64_t deadline_ns, size_t *n)
{
	struct kvof_client_result result;
	struct batch *b;
	void *room;
	int rc = client_check(c);

	if (rc < 0)
		return rc;
	if (keys == NULL || n == NULL || n_max < 2 || (from != NULL && key_check(from, 0) < 0))
		return -EINVAL;
	if (n_max > MiB)
		n_max = MiB;
	rc = client_admit(c, 1);
	if (rc < 0)
		return rc;
	b = batch_new(c, 1, 1, deadline_ns);
	room = malloc(NV_KV_LIST_HEADER_BYTES + n_max * LIST_RECORD_BYTES);
	if (b == NULL || room == NULL) {
		atomic_fetch_sub(&c->in_flight, 1);
		free(b);
		free(room);
		return -ENOMEM;
	}
	b->iov[0] = (struct iovec){room, NV_KV_LIST_HEADER_BYTES + n_max * LIST_RECORD_BYTES};
	b->op[0].op.kind = HOST_LIST;
	if (from != NULL)
		b->op[0].op.key = key_of(from);
	b->op[0].op.iov = b->iov;
	b->op[0].op.iov_count = 1;
	b->op[0].op.bytes = (uint32_t)b->iov[0].iov_len;
	batch_wait(c, b, &result);
	rc = result.res;
	if (rc == 0)
		rc = list_read(room, result.moved_bytes, keys, n_max, n);
	free(room);
	return rc;
}

/* --- blocks, one at a time -------------------- */

#define CLIENT_PIECES 8                /* of one call in flight at once */

static uint64_t client_piece_bytes(struct kvof_client *c, const struct kvof_client_req *req)
{
	struct kvof_client_info info;
	uint64_t most;

	if (kvof_client_info(c, &info) != 0 || info.block_bytes == 0)
		return 0;
	most = req->op == KVOF_CLIENT_DEALLOCATE ? GiB : UINT64_C(65536) * info.block_bytes;
	if (req->iov_count > 0)
		most = bytes_min(most, info.transfer_bytes_max);
	return most / info.block_bytes * info.block_bytes;
}

/* One request of any length, in pieces that the namespace takes. */
static int client_blocks(struct kvof_client *c, const struct kvof_client_req *whole,
			 uint64_t deadline_ns)
{
	struct kvof_client_req piece[CLIENT_PIECES];
	struct kvof_client_result result[CLIENT_PIECES];
	struct iovec iov[CLIENT_PIECES];
	uint64_t most = client_piece_bytes(c, whole), at = 0, ns = client_clock_ns();
	int rc = client_check(c);

	deadline_ns = deadline_ns != 0 || rc < 0 ? deadline_ns : c->deadline_ns;
	if (rc == 0 && (!c->host_opts.block || whole->range == 0))
		rc = -EINVAL;
	if (rc == 0 && most == 0)
		rc = -ECONNRESET;              /* in the background, and never connected so far */
	while (rc == 0 && at < whole->range) {
		uint64_t passed = client_clock_ns() - ns;
		unsigned n = 0;

		for (; n < CLIENT_PIECES && at < whole->range; n++) {
			piece[n] = *whole;
			piece[n].offset += at;
			piece[n].range = bytes_min(whole->range - at, most);
			iov[n] = (struct iovec){NULL, piece[n].range};
			if (whole->iov_count > 0) {
				iov[n].iov_base = (uint8_t *)whole->iov->iov_base + at;
				piece[n].iov = &iov[n];
			}
			at += piece[n].range;
		}
		rc = kvof_client_wait(c, piece, n, passed < deadline_ns ? deadline_ns - passed : 1,
				      result);
		for (unsigned i = 0; i < n && rc == 0; i++)
			rc = result[i].res;
	}
	return rc;
}

static int client_data(struct kvof_client *c, uint32_t op, uint64_t offset, void *data,
		       size_t bytes, uint32_t flags, uint64_t deadline_ns)
{
	struct iovec iov = {data, bytes};
	struct kvof_client_req req = {.op = op, .flags = flags, .offset = offset, .range = bytes,
		.iov = &iov, .iov_count = 1};

	return data == NULL || bytes == 0 ? -EINVAL : client_blocks(c, &req, deadline_ns);
}

int kvof_client_read(struct kvof_client *c, uint64_t offset, void *room, size_t bytes,
		     uint64_t deadline_ns)
{
	return client_data(c, KVOF_CLIENT_READ, offset, room, bytes, 0, deadline_ns);
}

int kvof_client_write(struct kvof_client *c, uint64_t offset, const void *from, size_t bytes,
		      uint32_t flags, uint64_t deadline_ns)
{
	union { const void *from; void *base; } data = {from};

	return client_data(c, KVOF_CLIENT_WRITE, offset, data.base, bytes, flags, deadline_ns);
}

int kvof_client_compare(struct kvof_client *c, uint64_t offset, const void *with, size_t bytes,
			uint64_t deadline_ns)
{
	union { const void *from; void *base; } data = {with};

	return client_data(c, KVOF_CLIENT_COMPARE, offset, data.base, bytes, 0, deadline_ns);
}

int kvof_client_zero(struct kvof_client *c, uint64_t offset, uint64_t bytes, uint32_t flags,
		     uint64_t deadline_ns)
{
	struct kvof_client_req req = {.op = KVOF_CLIENT_ZERO, .flags = flags, .offset = offset,
		.range = bytes};

	return client_blocks(c, &req, deadline_ns);
}

int kvof_client_deallocate(struct kvof_client *c, uint64_t offset, uint64_t bytes,
			   uint64_t deadline_ns)
{
	struct kvof_client_req req = {.op = KVOF_CLIENT_DEALLOCATE, .offset = offset,
		.range = bytes};

	return client_blocks(c, &req, deadline_ns);
}

int kvof_client_flush(struct kvof_client *c, uint64_t deadline_ns)
{
	struct kvof_client_req req = {.op = KVOF_CLIENT_FLUSH};
	struct kvof_client_result result;

	return client_one(c, &req, deadline_ns, &result);
}

/* --- the client's thread -------------------- */

static void client_settle(struct kvof_client *c, int rc)
{
	if (c->settled)
		return;
	c->settled = true;
	c->open_rc = rc;
	sem_post(&c->opened);
}

static void client_state(void *arg, enum host_state state, int why)
{
	struct kvof_client *c = arg;
	const struct host_ns *ns = host_ns(c->host);

	pthread_mutex_lock(&c->info_lock);
	c->info.live = state == HOST_LIVE;
	snprintf(c->info.last_error, sizeof(c->info.last_error), "%s", host_last_error(c->host));
	if (state == HOST_LIVE) {
		c->info.nsid = ns->nsid;
		c->info.value_bytes_max = ns->value_bytes_max;
		c->info.key_bytes_max = ns->key_bytes_max;
		c->info.block_bytes = ns->block_bytes;
		c->info.transfer_bytes_max = (uint32_t)bytes_min(ns->transfer_bytes_max, GiB);
		c->info.capacity_bytes = ns->capacity_bytes;
		c->info.used_bytes = ns->used_bytes;
		snprintf(c->info.subnqn, sizeof(c->info.subnqn), "%s", ns->subnqn);
	}
	pthread_mutex_unlock(&c->info_lock);
	if (state == HOST_LIVE)
		client_settle(c, 0);
	if (state == HOST_DOWN && !c->background && !c->settled) {
		snprintf(c->why, sizeof(c->why), "%s", host_last_error(c->host));
		client_settle(c, why);
	}
}

static const struct host_events client_events = {client_state};

static void client_closed(void *arg)
{
	struct kvof_client *c = arg;

	loop_stop(c->loop);
}

struct client_msg {
	struct msg msg;
	struct kvof_client *client;
	struct kvof_client_stat *stat;
	sem_t over;
};

static void client_close_run(struct loop *here, struct msg *m)
{
	struct client_msg *x = container_of(m, struct client_msg, msg);

	(void)here;
	host_close(&x->client->host, client_closed, x->client);
}

static void client_stat_run(struct loop *here, struct msg *m)
{
	struct client_msg *x = container_of(m, struct client_msg, msg);
	struct host_stat s;

	(void)here;
	host_stat(x->client->host, &s);
	*x->stat = (struct kvof_client_stat){
		.ops = s.ops, .errors = s.errors, .timeouts = s.timeouts,
		.reconnects = s.reconnects, .digest_retries = s.digest_retries,
		.repeats = s.repeats, .bytes_in = s.bytes_in, .bytes_out = s.bytes_out,
	};
	sem_post(&x->over);
}

static void *client_main(void *arg)
{
	struct kvof_client *c = arg;
	struct loop_opts lopts = {.name = "kvof-client"};
	int rc = loop_open(&lopts, &c->loop);

	if (rc < 0) {
		snprintf(c->why, sizeof(c->why), "the client's loop can't start: %s",
			 kvof_error_text(rc));
		client_settle(c, rc);
		return NULL;
	}
	rc = host_open(c->loop, &c->host_opts, &client_events, c, c->why, &c->host);
	if (rc < 0) {
		loop_close(&c->loop);
		client_settle(c, rc);
		return NULL;
	}
	if (c->background)
		client_settle(c, 0);
	loop_run(c->loop);
	client_sem_wait(&c->posted);
	loop_close(&c->loop);
	return NULL;
}

/* --- open and close -------------------- */

static int client_opts_read(const struct kvof_client_opts *in, struct kvof_client *c)
{
	struct host_opts *o = &c->host_opts;
	int rc;

	if (in == NULL || in->struct_bytes != sizeof(*in) || in->target == NULL ||
	    in->digests & ~(KVOF_DIGEST_HEADER | KVOF_DIGEST_DATA) || in->background > 1 ||
	    in->block > 1 || in->reserved != 0 ||
	    in->queues > HOST_QUEUES_MAX || in->depth > HOST_DEPTH_MAX ||
	    in->in_flight_max > 16 * MiB) {
		snprintf(c->why, sizeof(c->why), "an option is missing or out of range");
		return -EINVAL;
	}
	rc = host_target_parse(in->target, o, c->why);
	if (rc < 0)
		return rc;
	if (in->host_nqn != NULL) {
		if (!nv_nqn_check(in->host_nqn)) {
			snprintf(c->why, sizeof(c->why), "host_nqn is no NQN");
			return -EINVAL;
		}
		snprintf(o->hostnqn, sizeof(o->hostnqn), "%s", in->host_nqn);
	}
	o->block = in->block;
	o->queues = in->queues;
	o->depth = in->depth;
	o->header_digest = in->digests & KVOF_DIGEST_HEADER;
	o->data_digest = in->digests & KVOF_DIGEST_DATA;
	o->connect_ns = in->connect_ns;
	c->in_flight_max = in->in_flight_max != 0 ? in->in_flight_max : 4096;
	o->backlog_max = c->in_flight_max;
	c->deadline_ns = in->deadline_ns != 0 ? in->deadline_ns : 5 * NS_PER_S;
	c->background = in->background;
	return 0;
}

static void client_free(struct kvof_client *c)
{
	struct kvof_client_result result;

	if (c->fd >= 0) {
		while (client_pop(c, &result))
			;
		close(c->fd);
	}
	sem_destroy(&c->opened);
	sem_destroy(&c->posted);
	pthread_mutex_destroy(&c->drain_lock);
	pthread_mutex_destroy(&c->info_lock);
	c->magic = 0;
	free(c);
}

static int client_start(struct kvof_client *c)
{
	sigset_t all, before;
	int rc;

	c->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (c->fd < 0) {
		int rc_files = files_errno(errno);

		snprintf(c->why, sizeof(c->why), "%s", kvof_error_text(rc_files));
		return rc_files;
	}
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&c->thread, NULL, client_main, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0)
		return -ENOMEM;
	client_sem_wait(&c->opened);
	if (c->open_rc == 0)
		return 0;
	if (c->host != NULL) {
		struct client_msg x = {.msg.run = client_close_run, .client = c};

		loop_post(c->loop, &x.msg);
		sem_post(&c->posted);
		pthread_join(c->thread, NULL);
	} else {
		pthread_join(c->thread, NULL);
	}
	return c->open_rc;
}

int kvof_client_open(const struct kvof_client_opts *opts, char why[256], struct kvof_client **out)
{
	struct kvof_client *c;
	int rc;

	if (out == NULL)
		return -EINVAL;
	*out = NULL;
	pthread_once(&client_once, client_once_init);
	c = calloc(1, sizeof(*c));
	if (c == NULL)
		return -ENOMEM;
	OBJ_INIT(c, CLIENT_MAGIC);
	c->fd = -1;
	c->fork_count = atomic_load(&client_forks);
	list_init(&c->live);
	sem_init(&c->opened, 0, 0);
	sem_init(&c->posted, 0, 0);
	pthread_mutex_init(&c->drain_lock, NULL);
	pthread_mutex_init(&c->info_lock, NULL);
	rc = client_opts_read(opts, c);
	if (rc == 0)
		rc = client_start(c);
	if (why != NULL)
		memcpy(why, c->why, 256);
	if (rc == 0)
		*out = c;
	else
		client_free(c);
	return rc;
}

void kvof_client_close(struct kvof_client **client)
{
	struct client_msg x = {.msg.run = client_close_run};
	struct kvof_client *c;
	int rc;

	if (client == NULL)
		return;
	c = *client;
	rc = client_check(c);
	if (rc == -EINVAL)
		return;
	*client = NULL;
	if (rc == -ESHUTDOWN) {        /* a child: the thread is not ours, its memory is a copy */
		c->magic = 0;
		close(c->fd);
		free(c);
		return;
	}
	x.client = c;
	loop_post(c->loop, &x.msg);
	sem_post(&c->posted);
	pthread_join(c->thread, NULL);
	client_free(c);
}

int kvof_client_info(struct kvof_client *c, struct kvof_client_info *out)
{
	int rc = client_check(c);

	if (rc < 0)
		return rc;
	if (out == NULL)
		return -EINVAL;
	pthread_mutex_lock(&c->info_lock);
	*out = c->info;
	pthread_mutex_unlock(&c->info_lock);
	return 0;
}

int kvof_client_stat(struct kvof_client *c, struct kvof_client_stat *out)
{
	struct client_msg x = {.msg.run = client_stat_run, .client = c, .stat = out};
	int rc = client_check(c);

	if (rc < 0)
		return rc;
	if (out == NULL)
		return -EINVAL;
	must(sem_init(&x.over, 0, 0) == 0);
	loop_post(c->loop, &x.msg);
	client_sem_wait(&x.over);
	sem_destroy(&x.over);
	return 0;
}
