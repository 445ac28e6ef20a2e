/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An array over NVMe/TCP, through the host library: Retrieve of values at several depths on one
 * queue (one stream, what one session can draw) and on several. Without --target the array is one
 * of memory in this process, behind a port of loopback: what it tells is this machine's CPU, and
 * the profile says so.
 *
 * The values are stored first, which gives the rate of stores, and deleted at the end; keys begin
 * with a number of this run, so that no other host's value is touched.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/prng.h"
#include "cmd/cmd.h"
#include "cmd/meter.h"
#include "cmd/plan_measure_inner.h"
#include "store/buf.h"
#include "target/target.h"

#define LINK_VALUES 64u
#define LINK_DEPTH_MAX 64u
#define LINK_QUEUES 4u
#define LINK_TURN_NS (10 * NS_PER_MS)
#define LINK_SLOT_LEAST_NS (30 * NS_PER_MS)
#define LINK_DRAIN_NS (500 * NS_PER_MS)
#define LINK_OP_NS (10 * NS_PER_S)
#define LINK_POOL_BYTES (96 * MiB)
#define ARRAY_NQN "nqn.2014-08.org.nvmexpress:kvof-calibrate"

/* --- an array in this process -------------------- */

struct measure_array {
	struct loop *loop;
	struct buf_pool *pool;
	struct store *store;
	struct target *target;
	pthread_t thread;
	struct msg close_msg, stop_msg;
	bool running;
};

static void *array_thread(void *arg)
{
	loop_run(arg);
	return NULL;
}

static void array_stop(struct loop *here, struct msg *msg)
{
	struct measure_array *a = container_of(msg, struct measure_array, stop_msg);

	must(store_pool_close(&a->pool));
	loop_stop(here);
}

static void array_store_closed(void *arg)
{
	struct measure_array *a = arg;

	a->stop_msg = (struct msg){.run = array_stop};
	loop_post(a->loop, &a->stop_msg);
}

static void array_target_closed(void *arg)
{
	struct measure_array *a = arg;

	store_close(&a->store, array_store_closed, a);
}

static void array_close_begin(struct loop *here, struct msg *msg)
{
	struct measure_array *a = container_of(msg, struct measure_array, close_msg);

	target_close(&a->target, LINK_DRAIN_NS, array_target_closed, a);
}

void measure_array_close(struct measure_array **ap)
{
	struct measure_array *a = *ap;

	*ap = NULL;
	if (a == NULL)
		return;
	if (!a->running)
		must(pthread_create(&a->thread, NULL, array_thread, a->loop) == 0);
	a->close_msg = (struct msg){.run = array_close_begin};
	loop_post(a->loop, &a->close_msg);
	pthread_join(a->thread, NULL);
	loop_close(&a->loop);
	free(a);
}

static int array_store(struct measure_array *a, uint64_t bytes)
{
	struct store_opts opts = {.drive = {{.path = "mem", .bytes = bytes}}, .drive_count = 1,
				  .evict = true};
	const struct loop_opts lo = {.name = "array"};
	struct store_report report = {.text = ""};

	if (loop_open(&lo, &a->loop) != 0)
		return measure_failed("no loop can be opened; see ulimit -l and -n");
	if (store_pool_open(a->loop, LINK_POOL_BYTES, &a->pool) != 0)
		return measure_failed("no memory for an array on loopback");
	opts.pool = a->pool;
	if (store_open(&opts, a->loop, &a->store, &report) != 0)
		return measure_failed("an array on loopback: %s", report.text);
	return 0;
}

static int array_listen(struct measure_array *a, char target[64])
{
	struct target_ns_opts ns = {.nsid = 1, .evicts = true, .memory = true, .store = a->store};
	struct target_subsys_opts subsys = {.nqn = ARRAY_NQN, .ns = &ns, .ns_count = 1};
	struct target_opts opts = {.subsys = &subsys, .subsys_count = 1, .loops = &a->loop,
				   .pools = &a->pool, .loop_count = 1};
	const struct sock_addr addr = {.host = "127.0.0.1"};
	char why[256] = "";
	uint16_t port = 0;

	if (target_open(&opts, why, &a->target) != 0)
		return measure_failed("an array on loopback: %s", why);
	if (target_listen(a->target, &addr, NULL, &port) != 0)
		return measure_failed("no port of loopback can be listened at; name an array with "
				      "--target");
	snprintf(target, 64, "tcp://127.0.0.1:%u", port);
	return 0;
}

int measure_array_open(uint64_t bytes, struct measure_array **out, char target[64])
{
	struct measure_array *a = calloc(1, sizeof(*a));
	int rc;

	if (a == NULL)
		return measure_failed("no memory");
	rc = array_store(a, bytes);
	if (rc == 0)
		rc = array_listen(a, target);
	if (rc == 0 && pthread_create(&a->thread, NULL, array_thread, a->loop) != 0)
		rc = measure_failed("no thread for an array on loopback");
	a->running = rc == 0;
	if (rc == 0)
		*out = a;                /* else it goes with the process, which ends now */
	return rc;
}

/* --- the host -------------------- */

struct bench;

struct worker {
	struct host_op op;
	struct bench *bench;
	struct iovec iov;
	uint64_t begun_ns;
};

struct bench {
	struct measure *m;
	struct cmd_link link;
	struct worker worker[LINK_DEPTH_MAX];
	struct cmd_meter meter;
	struct prng prng;
	enum host_op_kind kind;
	uint64_t salt, next, until_ns, moved, value_bytes;
	unsigned depth, flying;
	uint8_t *room;
	int failed;
};

static bool bench_goes_on(const struct bench *b)
{
	if (b->failed != 0 || (b->kind != HOST_DELETE && measure_stopped()))
		return false;
	return b->kind == HOST_RETRIEVE ? cmd_now_ns() < b->until_ns : b->next < LINK_VALUES;
}

static void bench_start(struct bench *b, struct worker *w)
{
	uint64_t index = b->kind == HOST_RETRIEVE ? prng_below(&b->prng, LINK_VALUES) : b->next++;
	bool moves = b->kind != HOST_DELETE;

	w->op.kind = b->kind;
	w->op.key = (struct kv_key){.len = 16};
	memcpy(w->op.key.byte, &b->salt, 8);
	memcpy(w->op.key.byte + 8, &index, 8);
	w->iov.iov_len = b->value_bytes;
	w->op.iov = &w->iov;
	w->op.iov_count = moves;
	w->op.bytes = moves ? (uint32_t)b->value_bytes : 0;
	w->op.repeat_ok = true;
	w->begun_ns = cmd_now_ns();
	w->op.deadline_ns = loop_now_ns(b->link.loop) + LINK_OP_NS;
	b->flying++;
	host_submit(b->link.host, &w->op);
}

static void bench_released(struct host_op *op)
{
	container_of(op, struct worker, op)->bench->flying--;
}

static void bench_done(struct host_op *op, int res)
{
	struct worker *w = container_of(op, struct worker, op);
	struct bench *b = w->bench;

	if (res == -ENOENT && b->kind == HOST_DELETE)
		res = 0;
	if (res != 0 && b->failed == 0)
		b->failed = res;
	if (res == 0)
		b->moved += b->value_bytes;
	if (res == 0 && b->kind == HOST_RETRIEVE && b->depth == 1)
		cmd_meter_add(&b->meter, cmd_now_ns() - w->begun_ns);
	if (op->busy)
		return;
	b->flying--;
	if (bench_goes_on(b))
		bench_start(b, w);
}

/* Bytes a second with so many in flight: all values once, or Retrieves for a while. */
static double bench_phase(struct bench *b, enum host_op_kind kind, unsigned depth, uint64_t for_ns)
{
	uint64_t begun_ns = cmd_now_ns();

	b->kind = kind;
	b->depth = depth;
	b->next = b->moved = 0;
	b->until_ns = begun_ns + for_ns;
	for (unsigned i = 0; i < depth && bench_goes_on(b); i++)
		bench_start(b, &b->worker[i]);
	while (b->flying > 0)
		loop_turn(b->link.loop, LINK_TURN_NS);
	return (double)b->moved / (double)(cmd_now_ns() - begun_ns) * 1e9;
}

static int bench_wrong(struct bench *b, const char *what)
{
	(void)cmd_link_result(&b->link, what, b->failed);
	return CMD_FAILED;
}

/* Nothing of ours stays, whatever happened before. */
static void bench_erase(struct bench *b)
{
	b->failed = 0;
	(void)bench_phase(b, HOST_DELETE, 16, 0);
}

static int bench_open(struct bench *b, const char *target, unsigned queues)
{
	struct cmd_common common = {.queues = queues,
				    .depth = LINK_DEPTH_MAX / queues > 0 ? LINK_DEPTH_MAX / queues
									 : 1};
	int rc = cmd_link_open(MEASURE_NAME, target, &common, &b->link);

	if (rc != 0)
		return rc;
	if (host_ns(b->link.host)->value_bytes_max < b->m->value_bytes)
		b->value_bytes = host_ns(b->link.host)->value_bytes_max;
	return 0;
}

/* --- measuring -------------------- */

struct ladder {
	struct measured_series rate[8];
	struct measured_step step[8];
	unsigned depth[8], count;
};

/* Rounds over all depths until the time is over. */
static int ladder_run(struct bench *b, struct ladder *l, unsigned queues, uint64_t until_ns)
{
	uint64_t now_ns = cmd_now_ns();
	uint64_t slot_ns = until_ns > now_ns ? (until_ns - now_ns) / l->count / 4 : 0;

	slot_ns = slot_ns < LINK_SLOT_LEAST_NS ? LINK_SLOT_LEAST_NS : slot_ns;
	for (unsigned r = 0; r < MEASURED_REPEATS_MAX && !measure_stopped(); r++) {
		if (r >= MEASURE_REPEATS_LEAST && cmd_now_ns() >= until_ns)
			break;
		for (unsigned i = 0; i < l->count && !measure_stopped(); i++) {
			double rate = bench_phase(b, HOST_RETRIEVE, l->depth[i], slot_ns);

			if (b->failed != 0)
				return bench_wrong(b, "reading");
			measured_add(&l->rate[i], rate);
			measure_progress(b->m, "Retrieve at depth %u on %u queue%s, %.2f GB/s",
					 l->depth[i], queues, queues > 1 ? "s" : "", rate / 1e9);
		}
	}
	for (unsigned i = 0; i < l->count; i++)
		l->step[i] = (struct measured_step){l->depth[i], measured_median(&l->rate[i])};
	return 0;
}

static void ladder_note(struct plan_device *d, const struct ladder *l, unsigned queues)
{
	char text[160] = "";

	for (unsigned i = 0; i < l->count; i++) {
		size_t used = strlen(text);

		snprintf(text + used, sizeof(text) - used, "%s%u: %.2f", i > 0 ? ", " : "",
			 l->step[i].depth, l->step[i].bytes_per_s / 1e9);
	}
	plan_device_note(d, "GB/s read by depth on %u queue%s: %s", queues, queues > 1 ? "s" : "",
			 text);
}

static void link_report(struct bench *b, struct plan_device *d, const struct ladder *one,
			const struct ladder *all, double store_rate)
{
	unsigned knee = measured_knee(all->step, all->count);
	unsigned stream = measured_knee(one->step, one->count);

	d->read_bytes_per_s = all->step[knee].bytes_per_s;
	d->write_bytes_per_s = store_rate;
	d->depth = all->step[knee].depth;
	d->value_bytes = b->value_bytes;
	d->latency_s = cmd_meter_us(&b->meter, 0.5) / 1e6;
	if (b->m->target == NULL)
		plan_device_note(d, PLAN_NOTE_LOOPBACK ": an array of memory in this "
				 "process, which shares its processors; name yours with --target");
	ladder_note(d, one, 1);
	ladder_note(d, all, LINK_QUEUES);
	plan_device_note(d, "one stream (one queue) has at most %.2f GB/s, from depth %u on; one "
			 "Retrieve at a time: p50 %.0f us, p99 %.0f us",
			 one->step[stream].bytes_per_s / 1e9, one->step[stream].depth,
			 cmd_meter_us(&b->meter, 0.5), cmd_meter_us(&b->meter, 0.99));
	measure_device_noisy(d, &all->rate[knee], " at the knee");
}

static int link_run(struct bench *b, const char *target)
{
	struct ladder one = {.depth = {1, 2, 4, 8, 16}, .count = 5};
	struct ladder all = {.depth = {4, 8, 16, 32, 64}, .count = 5};
	uint64_t now_ns = cmd_now_ns(), half_ns = b->m->stage_end_ns > now_ns ?
		now_ns + (b->m->stage_end_ns - now_ns) / 2 : now_ns;
	struct plan_device *d = measure_device(b->m, PLAN_DEVICE_LINK, "%s",
					       b->m->target != NULL ? target : "loopback");
	double stores;
	int rc = bench_open(b, target, 1);

	if (rc != 0)
		return rc;
	stores = bench_phase(b, HOST_STORE, 16, 0);
	if (b->failed != 0)
		rc = bench_wrong(b, "storing");
	cmd_meter_begin(&b->meter);
	if (rc == 0)
		rc = ladder_run(b, &one, 1, half_ns);
	cmd_meter_end(&b->meter);
	if (rc != 0 || measure_stopped())
		bench_erase(b);
	cmd_link_close(&b->link);
	if (rc == 0 && !measure_stopped())
		rc = bench_open(b, target, LINK_QUEUES);
	if (rc != 0 || measure_stopped())
		return rc;
	rc = ladder_run(b, &all, LINK_QUEUES, b->m->stage_end_ns);
	bench_erase(b);
	cmd_link_close(&b->link);
	if (rc == 0 && !measure_stopped())
		link_report(b, d, &one, &all, stores);
	return rc;
}

int measure_link(struct measure *m, const char *target)
{
	struct bench *b = calloc(1, sizeof(*b));
	uint64_t each = bytes_round_up(m->value_bytes, 4096);
	int rc = 0;

	if (b == NULL)
		return measure_failed("no memory");
	b->m = m;
	b->prng = prng_of(cmd_now_ns());
	b->value_bytes = m->value_bytes;
	loop_random(&b->salt, sizeof(b->salt));
	b->room = loop_buffer_map(LINK_DEPTH_MAX * each);
	if (b->room == NULL)
		rc = measure_failed("no memory for %u values", LINK_DEPTH_MAX);
	for (unsigned i = 0; rc == 0 && i < LINK_DEPTH_MAX; i++) {
		b->worker[i].bench = b;
		b->worker[i].op.done = bench_done;
		b->worker[i].op.released = bench_released;
		b->worker[i].iov = (struct iovec){b->room + i * each, m->value_bytes};
	}
	if (rc == 0) {
		prng_fill(&b->prng, b->room, LINK_DEPTH_MAX * each);
		rc = link_run(b, target);
	}
	if (b->room != NULL)
		loop_buffer_unmap(b->room, LINK_DEPTH_MAX * each);
	free(b);
	return rc;
}
