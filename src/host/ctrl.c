/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host: one association at a time, made again when it is lost, until closed.
 *
 *	CONNECTING --attached--> LIVE --lost--> DOWN --back-off--> CONNECTING ...
 *	     +------failed----------------------> DOWN      (with `once` DOWN is final)
 *	any -> CLOSED
 *
 * The back-off doubles from reconnect_min to reconnect_max with jitter (half to whole), and starts
 * anew after an association that answered a command or stayed up longer than reconnect_max: an
 * array that was restarted is used at once, one that only lets hosts in is not stormed. Without a
 * name the only subsystem of Discovery is taken, asked again after each failure to join it.
 *
 * host_close(): operations end with -ESHUTDOWN, then the associations are freed, then closed().
 *
 * On the host's loop.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "host/impl.h"

static const uint8_t host_next[] = {   /* bit n set: may go to state n */
	[HOST_CONNECTING] = 1 << HOST_LIVE | 1 << HOST_DOWN | 1 << HOST_CLOSED,
	[HOST_LIVE] = 1 << HOST_DOWN | 1 << HOST_CLOSED,
	[HOST_DOWN] = 1 << HOST_CONNECTING | 1 << HOST_CLOSED,
	[HOST_CLOSED] = 0,
};

static void host_connect(struct host *h);

/* The only writer of h->state; tells the owner. */
static void host_go(struct host *h, enum host_state to, int why)
{
	must(host_next[h->state] & 1u << to);
	h->state = to;
	if (to != HOST_CLOSED && h->events != NULL && h->events->state != NULL)
		h->events->state(h->arg, to, why);
}

static void host_down(struct host *h, int why, const char *text)
{
	uint64_t delay;
	bool told = h->attempts > 0 && strcmp(h->last_error, text) == 0;

	snprintf(h->last_error, sizeof(h->last_error), "%s", text);
	h->last_errno = why;
	delay = h->opts.reconnect_max_ns;
	if (h->attempts < 32)
		delay = bytes_min(delay, h->opts.reconnect_min_ns << h->attempts);
	h->attempts++;
	delay = delay / 2 + prng_below(&h->prng, delay / 2 + 1);
	if (!h->opts.once) {
		if (!told)             /* the same again is counted, and told when it is back */
			log_warn("array lost: %s; trying again", text);
		loop_timer_set(h->loop, &h->reconnect, loop_now_ns(h->loop) + delay);
	}
	host_go(h, HOST_DOWN, why);
	if (h->opts.once)
		queue_refuse_waiting(h, why == -EPROTO ? -EPROTO : -ECONNRESET);
}

/* --- the association's owner -------------------- */

static void host_assoc_live(struct assoc *a)
{
	struct host *h = a->arg;

	must(h->assoc == a && h->state == HOST_CONNECTING);
	h->ns = a->ns;
	if (h->stat.reconnects > 0 || h->attempts > 0)
		log_warn("array %s port %u is back after %u tries: namespace %u of %s",
			 a->opts.addr.host, a->opts.addr.port, h->attempts, a->ns.nsid,
			 a->ns.subnqn);
	loop_timer_set(h->loop, &h->keep_alive, loop_now_ns(h->loop) + h->opts.keep_alive_ns / 4);
	host_go(h, HOST_LIVE, 0);
	queue_kick(h);
}

static void host_assoc_dead(struct assoc *a, int why)
{
	struct host *h = a->arg;
	bool was_live = a->live_ns != 0;

	must(h->assoc == a);
	h->assoc = NULL;
	loop_timer_cancel(h->loop, &h->keep_alive);
	queue_forget(h, a);
	if (h->closing)
		return;
	if (was_live)
		h->stat.reconnects++;
	if (was_live && (a->answered ||
			 loop_now_ns(h->loop) - a->live_ns > h->opts.reconnect_max_ns))
		h->attempts = 0;
	if (!was_live && h->opts.subnqn[0] == 0)
		h->subnqn[0] = 0;
	host_down(h, why, a->text);
}

static void host_assoc_gone(void *arg)
{
	struct host *h = arg;

	must(h->assocs > 0);
	h->assocs--;
	host_check_closed(h);
}

static const struct assoc_owner host_owner = {host_assoc_live, host_assoc_dead, host_assoc_gone};

static void host_keep_alive_fire(struct loop_timer *t)
{
	struct host *h = container_of(t, struct host, keep_alive);

	if (h->assoc != NULL && assoc_keep_alive(h->assoc, h->opts.keep_alive_ns))
		loop_timer_set(h->loop, t, loop_now_ns(h->loop) + h->opts.keep_alive_ns / 4);
}

/* --- connecting -------------------- */

static void host_attach(struct host *h)
{
	struct assoc_opts o = {
		.addr = h->opts.addr,
		.ops = h->opts.ops,
		.nsid = h->opts.nsid,
		.block = h->opts.block,
		.any = h->opts.any,
		.queues = h->opts.queues,
		.depth = h->opts.depth,
		.header_digest = h->opts.header_digest,
		.data_digest = h->opts.data_digest,
		.connect_ns = h->opts.connect_ns,
		.kato_ms = (uint32_t)bytes_min(h->opts.keep_alive_ns / NS_PER_MS, UINT32_MAX),
	};
	char text[128];
	int rc;

	must(h->assoc == NULL);
	memcpy(o.subnqn, h->subnqn, sizeof(o.subnqn));
	memcpy(o.hostnqn, h->opts.hostnqn, sizeof(o.hostnqn));
	memcpy(o.hostid, h->opts.hostid, sizeof(o.hostid));
	rc = assoc_open(h->loop, &o, &host_owner, h, &h->assoc);
	if (rc == 0) {
		h->assocs++;
		return;
	}
	snprintf(text, sizeof(text), "%s port %u: can't connect", o.addr.host, o.addr.port);
	host_down(h, rc, text);
}

static void host_discovered(struct host_discover *d, int res)
{
	struct host *h = d->arg;
	char text[256], self[NV_NQN_BYTES_MAX + 1];
	const char *nqn = NULL;
	unsigned count = 0;
	uint8_t id[16];

	h->discover_out = false;
	if (h->closing) {
		host_check_closed(h);
		return;
	}
	if (res != 0) {
		host_down(h, res, d->why);
		return;
	}
	for (unsigned i = 0; i < d->count; i++) {
		if (d->entry[i].subtype != NV_SUBTYPE_NVM ||
		    (nqn != NULL && strcmp(nqn, d->entry[i].subnqn) == 0))
			continue;
		nqn = d->entry[i].subnqn;
		count++;
	}
	if (count == 1) {
		snprintf(h->subnqn, sizeof(h->subnqn), "%s", nqn);
		host_attach(h);
		return;
	}
	if (count == 0) {
		host_names_fill(&h->opts, self, id);
		snprintf(text, sizeof(text), "%s port %u: no subsystem is offered; is this "
			 "host on the array's list? It is %.100s", h->opts.addr.host,
			 h->opts.addr.port, self);
	} else {
		snprintf(text, sizeof(text), "%s port %u: Discovery lists %u subsystems; name one "
			 "in the target, as in tcp://ADDR:PORT/NQN", h->opts.addr.host,
			 h->opts.addr.port, count);
	}
	host_down(h, -ENOENT, text);
}

static void host_connect(struct host *h)
{
	int rc;

	if (h->subnqn[0] != 0) {
		host_attach(h);
		return;
	}
	h->discover->done = host_discovered;
	h->discover->arg = h;
	rc = host_discover(h->loop, &h->opts, h->discover);
	if (rc == 0)
		h->discover_out = true;
	else
		host_down(h, rc, h->discover->why);
}

static void host_reconnect_fire(struct loop_timer *t)
{
	struct host *h = container_of(t, struct host, reconnect);

	if (h->state == HOST_DOWN)
		host_go(h, HOST_CONNECTING, 0);
	if (!h->closing)
		host_connect(h);
}

/* --- open and close -------------------- */

static int host_opts_check(const struct host_opts *o, char why[256])
{
	const char *wrong = NULL;

	if (o->queues > HOST_QUEUES_MAX)
		wrong = "more than 64 queues";
	else if (o->depth > HOST_DEPTH_MAX)
		wrong = "a queue deeper than 1024";
	else if (o->subnqn[0] != 0 && !nv_nqn_check(o->subnqn))
		wrong = "the subsystem's name is no NQN (nqn.yyyy-mm.domain:name)";
	else if (o->hostnqn[0] != 0 && !nv_nqn_check(o->hostnqn))
		wrong = "the host's name is no NQN (nqn.yyyy-mm.domain:name)";
	else if (o->addr.host[0] == 0)
		wrong = "no address";
	else if (o->keep_alive_ns != 0 && o->keep_alive_ns < 100 * NS_PER_MS)
		wrong = "keep alive below 100 ms";
	else if (o->reconnect_min_ns > o->reconnect_max_ns && o->reconnect_max_ns != 0)
		wrong = "reconnect minimum above its maximum";
	if (wrong == NULL)
		return 0;
	snprintf(why, 256, "%s", wrong);
	return -EINVAL;
}

static void host_defaults(struct host_opts *o)
{
	if (o->queues == 0)
		o->queues = 4;
	if (o->depth == 0)
		o->depth = 32;
	if (o->connect_ns == 0)
		o->connect_ns = 3 * NS_PER_S;
	if (o->keep_alive_ns == 0)
		o->keep_alive_ns = 10 * NS_PER_S;
	if (o->reconnect_min_ns == 0)
		o->reconnect_min_ns = 100 * NS_PER_MS;
	if (o->reconnect_max_ns == 0)
		o->reconnect_max_ns = 5 * NS_PER_S;
	if (o->reconnect_max_ns < o->reconnect_min_ns)
		o->reconnect_max_ns = o->reconnect_min_ns;
	if (o->backlog_max == 0)
		o->backlog_max = 4096;
	o->subnqn[NV_NQN_BYTES_MAX] = o->hostnqn[NV_NQN_BYTES_MAX] = 0;
}

int host_open(struct loop *loop, const struct host_opts *opts, const struct host_events *events,
	      void *arg, char why[256], struct host **out)
{
	struct host *h;
	int rc;

	loop_must_own(loop);
	why[0] = 0;
	rc = host_opts_check(opts, why);
	if (rc < 0)
		return rc;
	h = calloc(1, sizeof(*h));
	if (h == NULL)
		return -ENOMEM;
	OBJ_INIT(h, HOST_MAGIC);
	h->loop = loop;
	h->opts = *opts;
	host_defaults(&h->opts);
	host_names_fill(opts, h->opts.hostnqn, h->opts.hostid);
	memcpy(h->subnqn, h->opts.subnqn, sizeof(h->subnqn));
	h->events = events;
	h->arg = arg;
	h->state = HOST_CONNECTING;
	h->prng = prng_of(loop_now_ns(loop) ^ hash_xxh3(h->opts.hostnqn, strlen(h->opts.hostnqn)));
	order_init(&h->order);
	list_init(&h->ready);
	list_init(&h->held);
	list_init(&h->old);
	loop_timer_init(&h->reconnect, host_reconnect_fire);
	loop_timer_init(&h->keep_alive, host_keep_alive_fire);
	loop_timer_init(&h->deadline, queue_deadline_fire);
	loop_timer_init(&h->sweep, queue_sweep_fire);
	h->discover = calloc(1, sizeof(*h->discover));
	if (h->discover == NULL || deadline_heap_init(&h->deadlines, h->opts.backlog_max) < 0) {
		free(h->discover);
		free(h);
		return -ENOMEM;
	}
	loop_timer_set(loop, &h->reconnect, loop_now_ns(loop));
	*out = h;
	return 0;
}

static void host_closed_done(struct loop_op *op, int res)
{
	struct host *h = container_of(op, struct host, closed_op);
	void (*closed)(void *arg) = h->closed;
	void *arg = h->closed_arg;

	(void)res;
	OBJ_CHECK(h, HOST_MAGIC);
	must(h->ops == 0 && h->assocs == 0 && list_empty(&h->old));
	must(list_empty(&h->ready) && list_empty(&h->held));
	loop_timer_cancel(h->loop, &h->sweep);
	loop_timer_cancel(h->loop, &h->deadline);
	deadline_heap_free(&h->deadlines);
	free(h->discover);
	h->magic = 0;
	free(h);
	closed(arg);
}

void host_check_closed(struct host *h)
{
	if (!h->closing || h->closed_queued || h->ops > 0 || h->assocs > 0 || h->discover_out)
		return;
	h->closed_queued = true;
	h->closed_op.done = host_closed_done;
	loop_soon(h->loop, &h->closed_op, 0);
}

void host_close(struct host **hp, void (*closed)(void *arg), void *arg)
{
	struct host *h;

	OBJ_TAKE(h, hp, HOST_MAGIC);
	loop_must_own(h->loop);
	must(closed != NULL && !h->closing);
	h->closing = true;
	h->closed = closed;
	h->closed_arg = arg;
	loop_timer_cancel(h->loop, &h->reconnect);
	loop_timer_cancel(h->loop, &h->keep_alive);
	host_go(h, HOST_CLOSED, 0);
	queue_refuse_waiting(h, -ESHUTDOWN);
	if (h->assoc != NULL)
		assoc_fail(h->assoc, -ESHUTDOWN, "closed");
	if (h->discover_out && h->discover->assoc != NULL)
		discover_cancel(h->discover);
	host_check_closed(h);
}

/* --- what the owner may ask -------------------- */

enum host_state host_state(const struct host *h)
{
	OBJ_CHECK(h, HOST_MAGIC);
	return h->state;
}

const struct host_ns *host_ns(const struct host *h)
{
	OBJ_CHECK(h, HOST_MAGIC);
	return &h->ns;
}

const char *host_last_error(const struct host *h)
{
	OBJ_CHECK(h, HOST_MAGIC);
	return h->last_error;
}

int host_last_errno(const struct host *h)
{
	OBJ_CHECK(h, HOST_MAGIC);
	return h->last_errno;
}

void host_stat(const struct host *h, struct host_stat *out)
{
	OBJ_CHECK(h, HOST_MAGIC);
	*out = h->stat;
	out->queues_live = h->assoc != NULL ? h->assoc->queues_live : 0;
}

static void host_admin_refused(struct loop_op *op, int res)
{
	struct host_admin *admin = container_of((uint64_t *)(void *)op, struct host_admin,
						lease[0]);

	admin->done(admin, res);
}

void host_admin(struct host *h, struct host_admin *admin)
{
	struct loop_op *soon = (struct loop_op *)(void *)admin->lease;

	OBJ_CHECK(h, HOST_MAGIC);
	loop_must_own(h->loop);
	_Static_assert(sizeof(*soon) <= sizeof(admin->lease), "the lease holds a loop_op");
	admin->moved_bytes = 0;
	if (h->assoc != NULL && h->assoc->step == STEP_LIVE && h->assoc->user_admin == NULL) {
		assoc_admin(h->assoc, admin);
		return;
	}
	*soon = (struct loop_op){.done = host_admin_refused};
	loop_soon(h->loop, soon, h->assoc == NULL || h->assoc->step != STEP_LIVE ? -ECONNRESET :
									     -EBUSY);
}
