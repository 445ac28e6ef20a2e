/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host without an array: implements host/host.h over a small map, on any loop, so that the cache
 * is tested against answers that a real array seldom gives. Included once by a test program, whose
 * linker then takes these functions instead of the library's.
 *
 * Answers come after sim_host.latency_ns; hook() sees each operation first and may change it,
 * answer it, or leave it hanging; hanging ones end at their deadline, busy when sim_host.busy_ns is
 * set, and are released that much later. One host at a time.
 */
#ifndef KVOF_TESTS_UNIT_CACHE_SIM_HOST_H
#define KVOF_TESTS_UNIT_CACHE_SIM_HOST_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "host/host.h"

#define SIM_HOST_VALUES 512
#define SIM_HOST_FLYING 8192
#define SIM_HOST_LOG 4096

struct sim_value {
	struct kv_key key;
	uint8_t *at;
	uint32_t bytes;
	bool there;
};

struct sim_flight {
	struct host_op *op;                /* NULL: free */
	struct loop_timer timer, release;
	bool hangs, out;                   /* out: done has been called, busy */
	int res;
};

enum sim_hook { SIM_HOOK_NONE, SIM_HOOK_ANSWER, SIM_HOOK_HANG };

struct sim_host {
	/* set by the test */
	uint64_t latency_ns, busy_ns;
	uint32_t value_bytes_max;
	bool stays_down;
	enum sim_hook (*hook)(struct host_op *op, int *res);
	/* seen by the test */
	unsigned log_count;
	enum host_op_kind log_kind[SIM_HOST_LOG];
	struct kv_key log_key[SIM_HOST_LOG];
	_Atomic unsigned flying;           /* other threads may look */
	unsigned flying_max, canceled;
	/* its own */
	struct loop *loop;
	const struct host_events *events;
	void *arg;
	enum host_state state;
	struct host_ns ns;
	struct sim_value value[SIM_HOST_VALUES];
	struct sim_flight flight[SIM_HOST_FLYING];
	struct loop_op live, gone;
	void (*closed)(void *arg);
	void *closed_arg;
};

static struct sim_host sim_host;

struct host {
	int nothing;
};
static struct host sim_host_handle;

/* Forgets values and settings; between tests. */
static void sim_host_reset(void)
{
	for (unsigned i = 0; i < SIM_HOST_VALUES; i++)
		free(sim_host.value[i].at);
	memset(&sim_host, 0, sizeof(sim_host));
	sim_host.latency_ns = 100000;
	sim_host.value_bytes_max = 8 << 20;
}

static struct sim_value *sim_host_find(const struct kv_key *key)
{
	for (unsigned i = 0; i < SIM_HOST_VALUES; i++)
		if (sim_host.value[i].there && kv_key_equal(&sim_host.value[i].key, key))
			return &sim_host.value[i];
	return NULL;
}

static inline unsigned sim_host_count(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < SIM_HOST_VALUES; i++)
		n += sim_host.value[i].there;
	return n;
}

static void sim_host_put(const struct kv_key *key, const void *at, uint32_t bytes)
{
	struct sim_value *v = sim_host_find(key);

	for (unsigned i = 0; v == NULL; i++) {
		must(i < SIM_HOST_VALUES);
		if (!sim_host.value[i].there)
			v = &sim_host.value[i];
	}
	free(v->at);
	*v = (struct sim_value){*key, malloc(bytes + 1), bytes, true};
	memcpy(v->at, at, bytes);
}

static inline void sim_host_state_set(enum host_state state, int why)
{
	sim_host.state = state;
	if (sim_host.events != NULL)
		sim_host.events->state(sim_host.arg, state, why);
}

static void sim_host_live(struct loop_op *op, int res)
{
	if (sim_host.state == HOST_CONNECTING)
		sim_host_state_set(sim_host.stays_down ? HOST_DOWN : HOST_LIVE, 0);
}

int host_open(struct loop *loop, const struct host_opts *opts, const struct host_events *events,
	      void *arg, char why[256], struct host **out)
{
	sim_host.loop = loop;
	sim_host.events = events;
	sim_host.arg = arg;
	sim_host.state = HOST_CONNECTING;
	sim_host.ns = (struct host_ns){.nsid = 1, .value_bytes_max = sim_host.value_bytes_max,
				       .key_bytes_max = 16};
	sim_host.live.done = sim_host_live;
	loop_soon(loop, &sim_host.live, 0);
	*out = &sim_host_handle;
	return 0;
}

static void sim_host_store(struct host_op *op, int *res)
{
	uint8_t *at = malloc(op->bytes + 1), *to = at;

	for (unsigned i = 0; i < op->iov_count; i++) {
		memcpy(to, op->iov[i].iov_base, op->iov[i].iov_len);
		to += op->iov[i].iov_len;
	}
	must(to - at == op->bytes);
	*res = op->if_absent && sim_host_find(&op->key) != NULL ? -EEXIST : 0;
	if (*res == 0)
		sim_host_put(&op->key, at, op->bytes);
	free(at);
}

static void sim_host_retrieve(struct host_op *op, const struct sim_value *v)
{
	uint32_t left = v->bytes < op->bytes ? v->bytes : op->bytes, done = 0;

	op->value_bytes = v->bytes;
	op->moved_bytes = left;
	for (unsigned i = 0; i < op->iov_count && left > 0; i++) {
		uint32_t step = op->iov[i].iov_len < left ? (uint32_t)op->iov[i].iov_len : left;

		memcpy(op->iov[i].iov_base, v->at + done, step);
		done += step;
		left -= step;
	}
}

static int sim_host_carry_out(struct host_op *op)
{
	struct sim_value *v = sim_host_find(&op->key);
	int res = v != NULL ? 0 : -ENOENT;

	if (op->kind == HOST_STORE)
		sim_host_store(op, &res);
	else if (op->kind == HOST_RETRIEVE && v != NULL)
		sim_host_retrieve(op, v);
	else if (op->kind == HOST_DELETE && v != NULL)
		v->there = false;
	return res;
}

static void sim_flight_end(struct sim_flight *f)
{
	f->op = NULL;
	sim_host.flying--;
}

static void sim_flight_answer(struct loop_timer *t)
{
	struct sim_flight *f = container_of(t, struct sim_flight, timer);
	struct host_op *op = f->op;
	int res = f->hangs ? f->res : f->res == 1 ? sim_host_carry_out(op) : f->res;

	op->busy = f->hangs && sim_host.busy_ns > 0;
	if (op->busy) {
		f->out = true;
		loop_timer_set(sim_host.loop, &f->release,
			       loop_now_ns(sim_host.loop) + sim_host.busy_ns);
	} else {
		sim_flight_end(f);
	}
	op->done(op, res);
}

static void sim_flight_release(struct loop_timer *t)
{
	struct sim_flight *f = container_of(t, struct sim_flight, release);
	struct host_op *op = f->op;

	sim_flight_end(f);
	op->released(op);
}

void host_submit(struct host *h, struct host_op *op)
{
	uint64_t now = loop_now_ns(sim_host.loop), at = now + sim_host.latency_ns;
	struct sim_flight *f = sim_host.flight;
	enum sim_hook hook = SIM_HOOK_NONE;
	int res = 1;                       /* carry it out when it is answered */

	while (f->op != NULL)
		f++;
	must(f < sim_host.flight + SIM_HOST_FLYING);
	if (sim_host.log_count < SIM_HOST_LOG) {
		sim_host.log_kind[sim_host.log_count] = op->kind;
		sim_host.log_key[sim_host.log_count++] = op->key;
	}
	if (sim_host.hook != NULL)
		hook = sim_host.hook(op, &res);
	*f = (struct sim_flight){.op = op, .res = res, .hangs = hook == SIM_HOOK_HANG};
	if (++sim_host.flying > sim_host.flying_max)
		sim_host.flying_max = sim_host.flying;
	loop_timer_init(&f->timer, sim_flight_answer);
	loop_timer_init(&f->release, sim_flight_release);
	if (f->hangs || (op->deadline_ns != 0 && op->deadline_ns < at)) {
		f->hangs = true;
		f->res = -ETIMEDOUT;
		at = op->deadline_ns;
		if (at == 0)
			return;            /* for ever */
	}
	loop_timer_set(sim_host.loop, &f->timer, at < now ? now : at);
}

void host_cancel(struct host *h, struct host_op *op)
{
	for (unsigned i = 0; i < SIM_HOST_FLYING; i++) {
		struct sim_flight *f = &sim_host.flight[i];

		if (f->op != op || f->out)
			continue;
		sim_host.canceled++;
		f->res = -ECANCELED;
		f->hangs = true;
		loop_timer_set(sim_host.loop, &f->timer, loop_now_ns(sim_host.loop));
	}
}

static void sim_host_gone(struct loop_op *op, int res)
{
	for (unsigned i = 0; i < SIM_HOST_FLYING; i++) {
		struct sim_flight *f = &sim_host.flight[i];
		struct host_op *hop = f->op;
		bool out = f->out;

		if (hop == NULL)
			continue;
		loop_timer_cancel(sim_host.loop, &f->timer);
		loop_timer_cancel(sim_host.loop, &f->release);
		sim_flight_end(f);
		hop->busy = false;
		if (out)
			hop->released(hop);
		else
			hop->done(hop, -ESHUTDOWN);
	}
	must(sim_host.flying == 0);
	sim_host.closed(sim_host.closed_arg);
}

void host_close(struct host **h, void (*closed)(void *arg), void *arg)
{
	*h = NULL;
	sim_host.state = HOST_CLOSED;
	sim_host.closed = closed;
	sim_host.closed_arg = arg;
	sim_host.gone = (struct loop_op){.done = sim_host_gone};
	loop_soon(sim_host.loop, &sim_host.gone, 0);
}

enum host_state host_state(const struct host *h)
{
	return sim_host.state;
}

const struct host_ns *host_ns(const struct host *h)
{
	return &sim_host.ns;
}

const char *host_last_error(const struct host *h)
{
	return sim_host.stays_down ? "connection refused" : "";
}

int host_last_errno(const struct host *h)
{
	return sim_host.stays_down ? -ECONNRESET : 0;
}

void host_stat(const struct host *h, struct host_stat *out)
{
	*out = (struct host_stat){0};
}

int host_target_parse(const char *text, struct host_opts *opts, char why[256])
{
	return strncmp(text, "tcp://", 6) == 0 ? 0 : -EINVAL;
}

#endif
