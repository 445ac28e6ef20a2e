/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, listening and closing of a target. See core.h for the objects.
 *
 * Closing: listeners go first, then every queue of every lane is told to run nothing new. A queue
 * is closed when what it has at work has ended: I/O queues first, an admin queue after its
 * controller's last I/O queue. At the deadline the rest is closed as it is. What the stores have at
 * work ends by itself; when every lane has told that its last queue is freed, closed() is called
 * from the drain timer, never from inside another callback. The first loop.
 */
#include "target/core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"

#define DRAIN_LOOK_NS (10 * NS_PER_MS)

static void drain_timer(struct loop_timer *timer);

static void target_free(struct target *t)
{
	subsys_free_all(t);
	lanes_free(t);
	free(t->host);
	t->magic = 0;
	free(t);
}

static struct wire_opts wire_opts_of(const struct target_opts *opts)
{
	return (struct wire_opts){
		.ops = opts->wire, .header_digest = true, .data_digest = true,
		.inline_bytes_max = TARGET_INLINE_BYTES,
		.h2c_bytes_max = opts->h2c_bytes_max != 0 ? opts->h2c_bytes_max : 128 * KiB,
		.handshake_ns = opts->handshake_ns != 0 ? opts->handshake_ns : 5 * NS_PER_S,
		.stall_ns = opts->stall_ns, .depth_max = 4,
	};
}

int target_open(const struct target_opts *opts, char why[256], struct target **out)
{
	struct target *t;
	int rc = 0;

	if (opts->subsys_count > TARGET_SUBSYSTEMS || opts->queues > TARGET_QUEUES ||
	    opts->conns_max > TARGET_CONNS || opts->ctrls_max > TARGET_CTRLS ||
	    opts->loop_count > TARGET_LOOPS) {
		snprintf(why, 256, "target: a number is beyond its limit (tbl/limits.def)");
		return -EINVAL;
	}
	t = calloc(1, sizeof(*t));
	if (t == NULL)
		return -ENOMEM;
	OBJ_INIT(t, TARGET_MAGIC);
	t->loop = opts->loop_count > 0 ? opts->loops[0] : opts->loop;
	t->wire = wire_opts_of(opts);
	t->handshake_ns = t->wire.handshake_ns;
	t->stall_ns = opts->stall_ns != 0 ? opts->stall_ns : 10 * NS_PER_S;
	t->queues_max = opts->queues != 0 ? opts->queues : TARGET_QUEUES;
	t->conns_max = opts->conns_max != 0 ? opts->conns_max : TARGET_CONNS;
	t->ctrls_max = opts->ctrls_max != 0 ? opts->ctrls_max : TARGET_CTRLS;
	t->multipath = opts->multipath;
	loop_timer_init(&t->drain, drain_timer);
	t->host = calloc(TARGET_HOST_ROWS, sizeof(*t->host));
	rc = t->host == NULL ? -ENOMEM : lanes_open(t, opts);
	if (rc == 0)
		rc = subsys_make_discovery(t);
	for (unsigned i = 0; rc == 0 && i < opts->subsys_count; i++)
		rc = subsys_make(t, &opts->subsys[i], why);
	if (rc != 0) {
		if (rc == -ENOMEM)
			snprintf(why, 256, "target: no memory");
		target_free(t);
		return rc;
	}
	*out = t;
	return 0;
}

int target_listen(struct target *t, const struct sock_addr *addr, const char *advertise,
		  uint16_t *port)
{
	struct target_port *p;
	int rc;

	OBJ_CHECK(t, TARGET_MAGIC);
	if (t->port_count == TARGET_LISTENERS || t->draining)
		return -EINVAL;
	must(t->port_count < TARGET_LISTENERS);
	p = &t->port[t->port_count];
	*p = (struct target_port){.addr = *addr};
	if (advertise != NULL) {
		if (strlen(advertise) >= sizeof(p->addr.host))
			return -EINVAL;
		memcpy(p->addr.host, advertise, strlen(advertise) + 1);
	}
	rc = wire_listen(t->loop, addr, &t->wire, &queue_events, t, &p->listener);
	if (rc != 0)
		return rc;
	t->port_count++;
	p->addr.port = wire_listener_port(p->listener);
	if (port != NULL)
		*port = p->addr.port;
	return 0;
}

struct target_memory target_memory(void)
{
	return (struct target_memory){
		.conn_bytes = queue_bytes(0),
		.queue_bytes = queue_bytes(TARGET_QUEUE_ENTRIES),
		.ctrl_bytes = sizeof(struct ctrl) + 2 * sizeof(struct seat) + TARGET_PAGE_BYTES +
			      queue_bytes(TARGET_QUEUE_ENTRIES),
	};
}

/* --- closing -------------------- */

void target_drain_soon(struct target *t)
{
	must(t->draining);
	loop_timer_set(t->loop, &t->drain, loop_now_ns(t->loop));
}

static void drain_timer(struct loop_timer *timer)
{
	struct target *t = container_of(timer, struct target, drain);
	void (*closed)(void *arg) = t->closed;
	void *arg = t->closed_arg;

	OBJ_CHECK(t, TARGET_MAGIC);
	if (!lanes_drained(t) || t->leaving > 0 || t->telling > 0 || t->ctrls_there > 0 ||
	    subsys_asking(t)) {
		loop_timer_set(t->loop, &t->drain, loop_now_ns(t->loop) + DRAIN_LOOK_NS);
		return;
	}
	loop_timer_cancel(t->loop, &t->drain);
	must(t->conns == 0 && target_counts(t)->ctrls == 0 && target_counts(t)->busy == 0);
	target_free(t);
	closed(arg);
}

void target_close(struct target **tp, uint64_t drain_ns, void (*closed)(void *arg), void *arg)
{
	struct target *t;

	OBJ_TAKE(t, tp, TARGET_MAGIC);
	must(!t->draining && closed != NULL);
	t->draining = true;
	t->closed = closed;
	t->closed_arg = arg;
	t->drain_until_ns = loop_now_ns(t->loop) + drain_ns;
	for (unsigned i = 0; i < t->port_count; i++)
		wire_listener_close(&t->port[i].listener);
	for (unsigned i = 0; i < t->lane_count; i++)
		lane_drain(&t->lane[i]);
	target_drain_soon(t);
}
