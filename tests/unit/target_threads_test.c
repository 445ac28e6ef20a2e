/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole array on three real loops, each in a thread of its own, with hosts on a fourth: what the
 * simulator runs in one thread, here for the thread sanitizer, too.
 */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/prng.h"
#include "host/host.h"
#include "kt.h"
#include "store/space.h"
#include "target/target.h"

#define LOOPS 3
#define HOSTS 2
#define FLIGHT 16
#define KEYS 40
#define VALUE_BYTES_MAX (512 * KiB)
#define NQN "nqn.2026-11.io.kvof:array"

static struct loop *loop[LOOPS], *mine;
static struct buf_pool *pool[LOOPS];
static struct store *store[LOOPS];
static struct space *space;
static struct target *target;
static pthread_t thread[LOOPS];
static _Atomic unsigned stores_closed;
static uint16_t port;
static bool on_files;                          /* drives are files, not memory */

static void path_of(unsigned i, char out[64])
{
	snprintf(out, 64, "/tmp/kvof-threads-%d-%u", (int)getpid(), i);
}

static void *thread_main(void *arg)
{
	loop_run(arg);
	return NULL;
}

static void array_open(void)
{
	struct space_shard shard[LOOPS];
	struct target_ns_opts ns = {.nsid = 1, .evicts = true};
	struct target_subsys_opts subsys = {.nqn = NQN, .ns = &ns, .ns_count = 1};
	struct target_opts to = {.subsys = &subsys, .subsys_count = 1, .loops = loop,
		.pools = pool, .loop_count = LOOPS};
	char why[256] = "";

	for (unsigned i = 0; i < LOOPS; i++) {
		char path[64] = "mem";
		struct store_opts so = {.drive = {{.path = path, .bytes = 64 * MiB}},
			.drive_count = 1, .value_bytes_max = VALUE_BYTES_MAX, .evict = true};
		struct store_report report = {.text = ""};

		if (on_files)
			path_of(i, path);
		expect_int(loop_open(&(struct loop_opts){.name = "array"}, &loop[i]), 0);
		expect_int(store_pool_open(loop[i], 16 * MiB, &pool[i]), 0);
		so.pool = pool[i];
		if (store_open(&so, loop[i], &store[i], &report) != 0)
			fail_msg("store: %s", report.text);
		shard[i] = (struct space_shard){loop[i], store[i]};
	}
	expect_int(space_open(shard, LOOPS, &space), 0);
	ns.space = space;
	if (target_open(&to, why, &target) != 0)
		fail_msg("target: %s", why);
	expect_int(target_listen(target, &(struct sock_addr){.host = "127.0.0.1"}, NULL, &port), 0);
	for (unsigned i = 0; i < LOOPS; i++)
		expect_int(pthread_create(&thread[i], NULL, thread_main, loop[i]), 0);
}

/* --- closing, by messages -------------------- */

static struct msg store_msg[LOOPS], stop_msg[LOOPS];

static void stop_run(struct loop *here, struct msg *m)
{
	for (unsigned i = 0; i < LOOPS; i++)
		if (loop[i] == here)
			must(store_pool_close(&pool[i]));      /* every buffer is at home */
	loop_stop(here);
}

/* When the last store is closed nothing more is sent between the loops. */
static void store_closed(void *arg)
{
	if (++stores_closed < LOOPS)
		return;
	for (unsigned i = 0; i < LOOPS; i++) {
		stop_msg[i].run = stop_run;
		loop_post(loop[i], &stop_msg[i]);
	}
}

static void store_close_run(struct loop *here, struct msg *m)
{
	store_close(&store[m - store_msg], store_closed, NULL);
}

static void target_closed(void *arg)
{
	for (unsigned i = 0; i < LOOPS; i++) {
		store_msg[i].run = store_close_run;
		loop_post(loop[i], &store_msg[i]);
	}
}

static void target_close_run(struct loop *here, struct msg *m)
{
	target_close(&target, NS_PER_S, target_closed, NULL);
}

static void array_close(void)
{
	struct msg m = {.run = target_close_run};

	stores_closed = 0;
	loop_post(loop[0], &m);
	for (unsigned i = 0; i < LOOPS; i++)
		pthread_join(thread[i], NULL);
	space_close(&space);
	for (unsigned i = 0; i < LOOPS; i++) {
		char path[64];

		loop_close(&loop[i]);
		path_of(i, path);
		unlink(path);
	}
}

/* --- hosts -------------------- */

struct slot {
	struct host_op op;
	struct iovec iov;
	struct node *node;
	unsigned key;
	bool busy;
	uint8_t value[1 << 17];
};

struct node {
	struct host *host;
	struct prng p;
	struct slot slot[FLIGHT];
	unsigned flying, left, hits, lists;
	bool closed;
};

static struct node node[HOSTS];

static void slot_start(struct slot *s);

static void slot_judge(struct slot *s, int res)
{
	if (s->op.kind == HOST_RETRIEVE && res == 0) {
		s->node->hits++;
		for (unsigned i = 0; i < s->op.moved_bytes; i++)
			must(s->value[i] == (uint8_t)(s->key + 1));
	}
	s->node->lists += s->op.kind == HOST_LIST && res == 0;
	must(res == 0 || res == -ENOENT || res == -EEXIST);
}

static void slot_done(struct host_op *op, int res)
{
	struct slot *s = container_of(op, struct slot, op);

	slot_judge(s, res);
	s->node->flying--;
	if (s->node->left > 0)
		slot_start(s);
}

static void slot_start(struct slot *s)
{
	static const enum host_op_kind kinds[] = {HOST_STORE, HOST_STORE, HOST_STORE,
		HOST_RETRIEVE, HOST_RETRIEVE, HOST_RETRIEVE, HOST_RETRIEVE, HOST_EXIST,
		HOST_DELETE, HOST_LIST};
	struct node *n = s->node;
	enum host_op_kind kind = kinds[prng_below(&n->p, ARRAY_COUNT(kinds))];

	n->left--;
	n->flying++;
	s->key = (unsigned)prng_below(&n->p, KEYS);
	s->op = (struct host_op){.kind = kind, .done = slot_done,
		.key = {.len = 2, .byte = {'k', (uint8_t)s->key}}};
	s->iov = (struct iovec){s->value, sizeof(s->value)};
	if (kind == HOST_STORE)
		s->iov.iov_len = prng_below(&n->p, 3) == 0 ? sizeof(s->value) :
				 1 + prng_below(&n->p, 9000);
	if (kind == HOST_LIST)
		s->iov.iov_len = 4096;
	memset(s->value, (int)s->key + 1, sizeof(s->value));
	if (kind == HOST_STORE || kind == HOST_RETRIEVE || kind == HOST_LIST) {
		s->op.iov = &s->iov;
		s->op.iov_count = 1;
		s->op.bytes = (uint32_t)s->iov.iov_len;
	}
	host_submit(n->host, &s->op);
}

static void node_open(struct node *n, unsigned index)
{
	struct host_opts o = {.addr = {.host = "127.0.0.1", .port = port}, .queues = 4,
		.depth = 16, .data_digest = index == 1, .header_digest = index == 1};
	char why[256] = "";

	*n = (struct node){.p = prng_of(index + 1)};
	snprintf(o.subnqn, sizeof(o.subnqn), NQN);
	snprintf(o.hostnqn, sizeof(o.hostnqn), "nqn.2026-11.io.kvof:host-%u", index);
	if (host_open(mine, &o, NULL, NULL, why, &n->host) != 0)
		fail_msg("host: %s", why);
	for (unsigned i = 0; i < FLIGHT; i++)
		n->slot[i].node = n;
}

static void node_closed(void *arg)
{
	((struct node *)arg)->closed = true;
}

static void hosts_run(unsigned ops)
{
	for (unsigned h = 0; h < HOSTS; h++) {
		node[h].left = ops;
		for (unsigned i = 0; i < FLIGHT; i++)
			slot_start(&node[h].slot[i]);
	}
	for (unsigned h = 0; h < HOSTS; h++)
		while (node[h].flying > 0)
			expect(loop_turn(mine, 30 * NS_PER_S) > 0);
}

static void whole_array(bool files)
{
	on_files = files;
	expect_int(loop_open(&(struct loop_opts){.name = "hosts"}, &mine), 0);
	array_open();
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned h = 0; h < HOSTS; h++)
			node_open(&node[h], h);
		hosts_run(1500);
		for (unsigned h = 0; h < HOSTS; h++) {
			expect(node[h].hits > 100 && node[h].lists > 20);
			expect_int(host_ns(node[h].host)->queues, 4);
			host_close(&node[h].host, node_closed, &node[h]);
			while (!node[h].closed)
				expect(loop_turn(mine, 30 * NS_PER_S) > 0);
		}
	}
	array_close();
	loop_close(&mine);
}

TEST(hosts_on_their_queues_of_all_loops_see_the_right_bytes_and_the_array_stops)
{
	whole_array(false);
}

TEST(and_so_they_do_where_the_drives_are_files)
{
	whole_array(true);
}
