/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays as the devices of a tier of values.
 *
 *   each array   away -> live: limits, then joining (domains) -> answered
 *                not live, or not joined, by the deadline     -> answered: away for now
 *   ready()      when all have answered; at once when one refuses
 *
 * Invariant: closed() is called when no host is open, no joining runs and no operation of the tier
 * is left. Owned by one loop.
 */
#include "cache/route.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cache/core.h"
#include "cache/join.h"
#include "cache/values.h"

#define ROUTE_MAGIC 0x726f7574u
#define ROUTE_KNOWN 65536u                 /* blocks whose length is remembered */
#define ROUTE_NAME_BYTES 320

struct array {
	struct route *route;
	struct dev *dev;
	struct host *host;                 /* NULL: not opened, or closing */
	unsigned index;
	char name[ROUTE_NAME_BYTES];
	struct join join;
	bool joined, answered;
};

struct route {
	uint32_t magic;
	struct loop *loop;
	struct tier *tier;
	void (*ready)(void *arg, int res, const char *why);
	void *arg;
	uint64_t deadline_ns;
	bool strict, told, closing, part_bytes_given;
	uint32_t part_bytes;
	struct loop_timer timer;
	struct loop_op soon, end;
	bool soon_pending, end_pending;
	int res;                           /* for ready() */
	char why[256];
	unsigned open;                     /* hosts not closed yet */
	void (*closed)(void *arg);
	void *closed_arg;
	unsigned count;
	struct array array[];
};

static struct route *route_of(const struct tier *t)
{
	struct route *r = values_owner(t);

	OBJ_CHECK(r, ROUTE_MAGIC);
	return r;
}

/* --- answers ---------------------------------------------------------------------------------- */

static void tell(struct route *r)
{
	if (r->told || r->closing)
		return;
	r->told = true;
	loop_timer_cancel(r->loop, &r->timer);
	r->ready(r->arg, r->res, r->why);
}

/* An array's word: why is "" when there is nothing to say. The first refusal counts, else the
 * first warning. */
static void answered(struct array *a, int res, const char *why)
{
	struct route *r = a->route;
	bool all = true;

	if (r->told || (res == 0 && r->res != 0))
		return;
	a->answered = true;
	if (why[0] != '\0' && (r->why[0] == '\0' || (res != 0 && r->res == 0))) {
		if (r->count > 1)
			snprintf(r->why, sizeof(r->why), "array %.100s: %.140s", a->name, why);
		else
			snprintf(r->why, sizeof(r->why), "%s", why);
	}
	if (r->res == 0)
		r->res = res;
	for (unsigned i = 0; i < r->count; i++)
		all = all && r->array[i].answered;
	if (all || r->res != 0)
		tell(r);
}

static void close_check(struct route *r);

static void join_done(struct join *j, int res)
{
	struct array *a = container_of(j, struct array, join);
	struct route *r = a->route;

	if (r->closing) {
		close_check(r);
		return;
	}
	a->joined = res == 0;
	if (res == -ETIMEDOUT || res == -ECONNRESET || res == -EIO)
		snprintf(j->why, sizeof(j->why), "the array did not give its list of domains: %s",
			 strerror(-res));
	answered(a, r->strict || res == -EINVAL ? res : 0, j->why);
}

/* What the namespace takes against what the options ask. False: it can't be used. */
static bool limits_fit(struct array *a)
{
	const struct host_ns *ns = host_ns(a->host);
	const struct route *r = a->route;
	uint32_t most = ns->value_bytes_max;
	char *why = a->join.why;

	if (ns->key_bytes_max < KV_KEY_BYTES_MAX)
		snprintf(why, sizeof(a->join.why), "the namespace takes keys of at most %u bytes, "
			 "16 are needed", ns->key_bytes_max);
	else if (r->part_bytes_given ? most < r->part_bytes : most < TIER_CUT_MIN + FRAME_BYTES)
		snprintf(why, sizeof(a->join.why), "part_bytes is %u, the namespace takes values "
			 "of at most %u bytes", r->part_bytes, most);
	else
		return true;
	return false;
}

static void host_changed(void *arg, enum host_state state, int why)
{
	struct array *a = arg;
	struct route *r = a->route;
	bool fits;

	if (r->closing)
		return;
	values_dev_changed(r->tier, a->index);
	if (state != HOST_LIVE)
		return;
	fits = limits_fit(a);              /* it may have been made anew */
	values_dev_limit(r->tier, a->index, fits ? host_ns(a->host)->value_bytes_max : 0);
	if (!fits) {
		log_error("array %s: %s", a->name, a->join.why);
		answered(a, -EINVAL, a->join.why);
	} else if (!a->joined && !a->join.running) {
		a->join.host = a->host;
		a->join.deadline_ns = loop_now_ns(r->loop) + r->deadline_ns;
		a->join.strict = r->strict && !r->told;
		join_start(&a->join);
	}
}

static const struct host_events route_host_events = {.state = host_changed};

/* Who is not there by now is away; who is joining ends by its own deadline. */
static void open_late(struct loop_timer *timer)
{
	struct route *r = container_of(timer, struct route, timer);

	for (unsigned i = 0; i < r->count && !r->told; i++) {
		struct array *a = &r->array[i];
		const char *last = host_last_error(a->host);
		int res = host_last_errno(a->host);
		char why[256];

		if (a->answered || a->join.running)
			continue;
		snprintf(why, sizeof(why), "the array is out of reach: %.200s",
			 last[0] != '\0' ? last : "no answer in time");
		answered(a, !r->strict ? 0 : res != 0 ? res : -ETIMEDOUT, why);
	}
}

/* --- open ------------------------------------------------------------------------------------- */

static const char *target_at(const struct kvof_cache_opts *c, unsigned index)
{
	if (c->target != NULL && index-- == 0)
		return c->target;
	return c->targets[index];
}

static int target_read(const struct route_opts *opts, struct array *a, struct host_opts *host,
		       char why[256])
{
	const struct kvof_cache_opts *c = opts->cache;
	int rc;

	*host = (struct host_opts){
		.ops = opts->wire,
		.queues = c->queues,
		.depth = c->depth,
		.header_digest = (c->digests & 1) != 0,
		.data_digest = (c->digests & 2) != 0,
		.backlog_max = ROUTE_BACKLOG,
	};
	rc = host_target_parse(target_at(c, a->index), host, why);
	if (c->host_nqn != NULL)
		snprintf(host->hostnqn, sizeof(host->hostnqn), "%s", c->host_nqn);
	snprintf(a->name, sizeof(a->name), "%s:%u/%s?nsid=%u", host->addr.host, host->addr.port,
		 host->subnqn, host->nsid);
	for (unsigned i = 0; rc == 0 && i < a->index; i++)
		if (strcmp(a->route->array[i].name, a->name) == 0) {
			snprintf(why, 256, "target \"%.200s\" stands twice",
				 target_at(c, a->index));
			rc = -EINVAL;
		}
	return rc;
}

static void route_free(struct route *r)
{
	if (r->tier != NULL)
		values_close(&r->tier);
	for (unsigned i = 0; i < r->count; i++)
		if (r->array[i].dev != NULL)
			dev_host_free(&r->array[i].dev);
	r->magic = 0;
	free(r);
}

static int arrays_make(struct route *r, const struct route_opts *opts, char why[256])
{
	for (unsigned i = 0; i < r->count; i++) {
		struct array *a = &r->array[i];
		struct host_opts host;
		int rc;

		a->route = r;
		a->index = i;
		a->join.identity = opts->identity;
		a->join.model_id = opts->model_id;
		a->join.done = join_done;
		rc = target_read(opts, a, &host, why);
		if (rc == 0)
			rc = dev_host_make(&a->dev);
		if (rc != 0)
			return rc;
		must(values_dev_add(r->tier, a->dev, values_name(a->name)) == i);
	}
	return 0;
}

static void failed_soon(struct loop_op *soon, int res)
{
	struct route *r = container_of(soon, struct route, soon);

	r->soon_pending = false;
	if (r->closing)
		close_check(r);
	else
		tell(r);
}

/* Opens the hosts. When a later one can't be opened those before it can only be closed by turns of
 * the loop: then ready() tells. */
static int hosts_open(struct route *r, const struct route_opts *opts, char why[256])
{
	for (unsigned i = 0; i < r->count; i++) {
		struct array *a = &r->array[i];
		struct host_opts host;
		int rc = target_read(opts, a, &host, why);

		must(rc == 0);
		rc = host_open(r->loop, &host, &route_host_events, a, why, &a->host);
		if (rc != 0 && i == 0)
			return rc;
		if (rc != 0) {
			r->res = rc;
			snprintf(r->why, sizeof(r->why), "%s", why);
			r->soon_pending = true;
			r->soon = (struct loop_op){.done = failed_soon};
			loop_soon(r->loop, &r->soon, 0);
			return 0;
		}
		dev_host_set(a->dev, a->host);
		r->open++;
	}
	return 0;
}

int route_open(struct loop *loop, const struct route_opts *opts,
	       void (*ready)(void *arg, int res, const char *why), void *arg, char why[256],
	       struct tier **out)
{
	const struct kvof_cache_opts *c = opts->cache;
	unsigned count = c->target_count + (c->target != NULL);
	struct route *r = calloc(1, sizeof(*r) + count * sizeof(r->array[0]));
	struct values_opts values = {.name = "remote", .cut_bytes = core_cut_bytes(c),
				     .known_slots = ROUTE_KNOWN, .owner = r};
	int rc;

	why[0] = '\0';
	if (r == NULL)
		return -ENOMEM;
	must(count > 0 && count <= VALUES_DEVS_MAX);
	OBJ_INIT(r, ROUTE_MAGIC);
	r->loop = loop;
	r->ready = ready;
	r->arg = arg;
	r->count = count;
	r->deadline_ns = opts->deadline_ns;
	r->strict = c->strict != 0;
	r->part_bytes_given = c->part_bytes != 0;
	r->part_bytes = values.cut_bytes + FRAME_BYTES;
	loop_timer_init(&r->timer, open_late);
	rc = values_open(loop, &values, &r->tier);
	if (rc == 0)
		rc = arrays_make(r, opts, why);
	if (rc == 0)
		rc = hosts_open(r, opts, why);
	if (rc != 0) {
		route_free(r);
		return rc;
	}
	loop_timer_set(loop, &r->timer, loop_now_ns(loop) + r->deadline_ns);
	*out = r->tier;
	return 0;
}

/* --- close ------------------------------------------------------------------------------------ */

static void route_end(struct loop_op *end, int res)
{
	struct route *r = container_of(end, struct route, end);
	void (*closed)(void *arg) = r->closed;
	void *arg = r->closed_arg;

	r->end_pending = false;
	if (values_in_flight(r->tier) > 0) {       /* it ends on this turn or the next */
		close_check(r);
		return;
	}
	route_free(r);
	closed(arg);
}

static void close_check(struct route *r)
{
	if (!r->closing || r->end_pending || r->open > 0 || r->soon_pending)
		return;
	for (unsigned i = 0; i < r->count; i++)
		if (r->array[i].join.running)
			return;
	r->end_pending = true;
	r->end = (struct loop_op){.done = route_end};
	loop_soon(r->loop, &r->end, 0);
}

static void host_gone(void *arg)
{
	struct array *a = arg;

	must(a->route->open > 0);
	a->route->open--;
	close_check(a->route);
}

void route_close(struct tier **t, void (*closed)(void *arg), void *arg)
{
	struct route *r = route_of(*t);

	*t = NULL;
	loop_must_own(r->loop);
	must(!r->closing);
	r->closing = true;
	r->closed = closed;
	r->closed_arg = arg;
	loop_timer_cancel(r->loop, &r->timer);
	for (unsigned i = 0; i < r->count; i++) {
		struct array *a = &r->array[i];

		values_dev_limit(r->tier, i, 0);
		dev_host_set(a->dev, NULL);
		if (a->host != NULL)
			host_close(&a->host, host_gone, a);
	}
	close_check(r);
}

/* --- statistics ------------------------------------------------------------------------------- */

unsigned route_arrays(const struct tier *t, struct route_array out[KVOF_TARGETS_MAX])
{
	const struct route *r = route_of(t);

	for (unsigned i = 0; i < r->count; i++) {
		out[i].name = r->array[i].name;
		values_dev_stat(t, i, &out[i].stat);
	}
	return r->count;
}

void route_stat(const struct tier *t, struct tier_stat *out)
{
	values_stat(t, out);
}
