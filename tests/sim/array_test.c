/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole array and two hosts in one thread, from a seed: random Store, Retrieve, Delete, Exist and
 * List through host, wire, target and store on four drives, held against a map, with faults,
 * crashes and reconnects. The array has one, two or three loops, each with a shard of the keys.
 *
 * usage: array_test [--seed N] [--seeds N] [--first N] [--ops N] [--jobs N]
 *        one seed runs here and tells; many run in children of their own, and the fault kinds they
 *        hit are added up: a kind that was never hit fails the run. KVOF_SEEDS sets --seeds.
 *
 * Judged: no wrong byte ever; each operation ends by its deadline; in worlds without media faults
 * nothing acknowledged is missed, nothing overwritten or deleted comes back (model.h); after the
 * faults stop the array serves again.
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/must.h"
#include "base/prng.h"
#include "host/host.h"
#include "loop/sim.h"
#include "model.h"
#include "store/store.h"
#include "target/target.h"

#define NQN "nqn.2026-11.io.kvof:array"
#define HOSTS 2
#define LOOPS 3
#define KEYS 12
#define FLIGHT 4                      /* operations of one host at once */
#define OP_NS (2 * NS_PER_S)
#define SLACK_NS NS_PER_MS            /* a completion may wait for its turn of the loop */

/* What kind of world a seed makes; the laws that hold in it follow. */
enum world { W_CLEAN, W_MEDIA, W_POWER, W_EVICT, W_OBJECT, W_KINDS };

struct shared {                       /* adds up over the children */
	uint64_t ops, hits, misses, errors, late, crashes, power_cuts, reconnects, lists;
	uint64_t evicted, kept, cleaned, carried, refused;
	uint64_t fault[SIM_FAULT_COUNT];
};

struct slot {
	struct host_op op;
	struct node *node;
	struct iovec iov;
	uint8_t *buffer;
	unsigned key, write;
	uint64_t start, deadline_ns;
	bool busy, in_flight;
};

struct node {
	struct loop *loop;
	struct host *host;
	struct slot slot[FLIGHT];
	unsigned flying;
};

static struct sim {
	uint64_t seed;
	enum world world;
	struct prng p;
	struct loop *array, *loop[LOOPS];     /* array is the first */
	struct buf_pool *pool[LOOPS];
	struct store *store[LOOPS];
	struct space *space;
	unsigned loops;
	struct target *target;
	struct node node[HOSTS];
	struct model_key model[KEYS];
	struct kv_key key[KEYS];
	uint64_t step;                /* orders starts and ends */
	uint64_t target_ops, ops_begun, ops_done;
	uint32_t value_bytes_max;
	bool failed, must_open, draining, died_again;
	struct shared *sum;
} S;

#define FAIL(...)                                                                                  \
	do {                                                                                       \
		S.failed = true;                                                                   \
		printf("# seed %llu: ", (unsigned long long)S.seed);                               \
		printf(__VA_ARGS__);                                                               \
		printf(" (op %llu of %llu, %.6f s)\n", (unsigned long long)S.ops_done,             \
		       (unsigned long long)S.target_ops, (double)sim_now_ns() / 1e9);              \
	} while (0)

/* --- the array -------------------- */

/* Memory of what died stays reachable: it belongs to a process that is no more. */
static void *graveyard[16384];
static unsigned graves;

/* Small drives: values go, or what was deleted and overwritten is cleaned away. */
static bool tight(void)
{
	return S.world == W_EVICT || S.world == W_OBJECT;
}

static void store_count(const struct store *st)
{
	struct store_stat stat;

	store_stat(st, &stat);
	S.sum->evicted += stat.evicted_segments;
	S.sum->kept += stat.kept_segments;
	S.sum->cleaned += stat.cleaned_segments;
	S.sum->carried += stat.carried_values;
	S.sum->refused += stat.no_space;
}

static void bury(void)
{
	must(graves + 2 + 2 * LOOPS <= ARRAY_COUNT(graveyard));
	for (unsigned i = 0; i < S.loops; i++) {
		if (S.store[i] != NULL)
			store_count(S.store[i]);
		graveyard[graves++] = S.store[i];
		graveyard[graves++] = S.pool[i];
		S.store[i] = NULL;
	}
	graveyard[graves++] = S.space;
	graveyard[graves++] = S.target;
}

/* One shard, on its own drives. Return: as store_open(). */
static int shard_open(unsigned i, bool format)
{
	static const char *const drive[LOOPS][4] = {
		{"d0", "d1", "d2", "d3"}, {"e0", "e1"}, {"f0", "f1"}};
	struct store_opts so = {.drive_count = tight() ? 1 : S.loops == 1 ? 4 : 2,
		.evict = S.world != W_OBJECT, .carry_percent = 50,
		.value_bytes_max = S.value_bytes_max, .pool = S.pool[i], .format = format,
		.ack_durable = S.world == W_POWER && (S.seed & 64) != 0};
	struct store_report report = {.text = ""};
	int rc;

	for (unsigned d = 0; d < so.drive_count; d++)
		so.drive[d] = (struct store_drive){.path = drive[i][d],
			.bytes = tight() ? 10 * (uint64_t)S.value_bytes_max : 96 * MiB};
	rc = store_open(&so, S.loop[i], &S.store[i], &report);
	if (rc != 0 && S.must_open)
		FAIL("store_open: %s (%s)", strerror(-rc), report.text);
	return rc;
}

/* The process ends as it began. */
static void array_give_up(void)
{
	S.died_again = sim_crashed() == S.array;      /* in its recovery */
	if (S.died_again || S.loops > 1) {
		bury();
		sim_crash(&S.array, true);
		return;
	}
	store_pool_close(&S.pool[0]);
	loop_close(&S.array);
}

static bool array_open(bool format)
{
	struct target_ns_opts ns = {.nsid = 1, .evicts = S.world != W_OBJECT};
	struct target_subsys_opts subsys = {.nqn = NQN, .ns = &ns, .ns_count = 1};
	struct target_opts to = {.subsys = &subsys, .subsys_count = 1, .loops = S.loop,
		.pools = S.pool, .loop_count = S.loops};
	struct space_shard shard[LOOPS];
	struct loop_opts lo = {.name = "array"};
	struct sock_addr addr = {.host = "array", .port = 4420};
	char why[256] = "";
	uint16_t port = 0;
	int rc;

	for (unsigned i = 0; i < S.loops; i++) {
		must(loop_open(&lo, &S.loop[i]) == 0);
		if (i > 0)
			sim_join(S.loop[i], S.loop[0]);
		must(store_pool_open(S.loop[i], 16 * (uint64_t)S.value_bytes_max, &S.pool[i]) == 0);
	}
	S.array = S.loop[0];
	for (unsigned i = 0; i < S.loops; i++) {
		if (shard_open(i, format) != 0) {
			array_give_up();
			return false;
		}
		shard[i] = (struct space_shard){S.loop[i], S.store[i]};
	}
	must(space_open(shard, S.loops, &S.space) == 0);
	ns.space = S.space;
	rc = target_open(&to, why, &S.target);
	if (rc != 0) {
		FAIL("target_open: %s (%s)", strerror(-rc), why);
		return false;
	}
	rc = target_listen(S.target, &addr, NULL, &port);
	if (rc != 0)
		FAIL("target_listen: %s", strerror(-rc));
	return rc == 0;
}

static bool never(void *arg)
{
	(void)arg;
	return sim_crashed() != NULL;
}

/* Only a world whose drives lie may fail to open at the first try: then once more without
 * faults. */
static void array_crash_and_reopen(void)
{
	bool power = S.world == W_POWER && prng_chance(&S.p, 500000);

	bury();
	S.sum->crashes++;
	S.sum->power_cuts += power;
	sim_crash(&S.array, !power);
	if (power && !(S.seed & 64)) {        /* stores since the last flush may be lost again */
		for (unsigned k = 0; k < KEYS; k++)
			for (unsigned i = 1; i < S.model[k].count; i++)
				if (!S.model[k].write[i].absent)
					S.model[k].write[i].shaky = true;
	}
	sim_run_until(never, NULL, prng_below(&S.p, 300) * NS_PER_MS);
	S.died_again = false;
	if (!array_open(false) && !(S.died_again && array_open(false))) {
		if (S.world != W_MEDIA) {
			FAIL("the array did not open after a crash");
			return;
		}
		sim_faults_on(false);
		S.must_open = true;
		array_open(false);
		S.must_open = false;
		sim_faults_on(true);
	}
}

/* --- operations -------------------- */

static uint32_t random_size(void)
{
	static const uint32_t edge[] = {0, 1, 511, 512, 513, 4095, 4096, 4097, 65536, 131071,
		262145};
	uint64_t dice = prng_below(&S.p, 100);

	if (tight() && dice >= 50)
		return S.value_bytes_max / (1 + (uint32_t)prng_below(&S.p, 6));
	if (dice < 2)
		return S.value_bytes_max;
	if (dice < 70)
		return edge[prng_below(&S.p, ARRAY_COUNT(edge))];
	return (uint32_t)prng_below(&S.p, 100000);
}

static void node_fill(struct node *n);

/* In worlds of lying drives any value ever stored under the key may come back; nothing else may. */
static bool value_ok(const struct model_key *m, uint64_t rs, uint64_t re, uint32_t bytes,
		     uint64_t hash)
{
	if (S.world != W_MEDIA)
		return model_allows_value(m, rs, re, bytes, hash);
	for (unsigned i = 0; i < m->count; i++)
		if (!m->write[i].absent && m->write[i].start < re &&
		    m->write[i].value_bytes == bytes && m->write[i].content_hash == hash)
			return true;
	return false;
}

static bool absent_ok(const struct model_key *m, uint64_t rs, uint64_t re)
{
	return S.world == W_MEDIA || S.world == W_EVICT || model_allows_absent(m, rs, re);
}

static bool present_ok(const struct model_key *m, uint64_t rs, uint64_t re)
{
	return S.world == W_MEDIA || model_allows_present(m, rs, re);
}

static void judge_retrieve(struct slot *s, int res, uint64_t end)
{
	struct model_key *m = &S.model[s->key];

	if (res == -ENOENT) {
		S.sum->misses++;
		if (!absent_ok(m, s->start, end)) {
			FAIL("key %u: a miss after an acknowledged Store", s->key);
			model_dump(m);
		}
		return;
	}
	if (res == -EBADMSG && S.world != W_MEDIA && s->op.status.raw != 0 && !S.draining)
		FAIL("key %u: media error 88h on honest media", s->key);
	if (res != 0)
		return;
	if (s->op.moved_bytes != bytes_min(s->op.value_bytes, s->op.bytes))
		FAIL("key %u: %u bytes moved of a value of %u into %u", s->key, s->op.moved_bytes,
		     s->op.value_bytes, s->op.bytes);
	if (s->op.bytes < s->op.value_bytes)
		return;                       /* a short Retrieve: length judged, bytes not */
	S.sum->hits++;
	if (!value_ok(m, s->start, end, s->op.value_bytes,
		      hash_xxh3(s->buffer, s->op.value_bytes))) {
		FAIL("key %u: WRONG BYTES, %u of them, hash %llx", s->key, s->op.value_bytes,
		     (unsigned long long)hash_xxh3(s->buffer, s->op.value_bytes));
		model_dump(m);
	}
}

static void judge_write(struct slot *s, int res, uint64_t end)
{
	struct model_write *w = &S.model[s->key].write[s->write];

	if (res == 0) {
		w->end = end;
		if (s->op.kind == HOST_DELETE && !present_ok(&S.model[s->key], s->start, end) &&
		    S.world == W_CLEAN)
			FAIL("key %u: a Delete of nothing succeeded", s->key);
	} else if (res == -EEXIST) {
		w->failed = true;
		if (!present_ok(&S.model[s->key], s->start, end))
			FAIL("key %u: refused as present, but it is not", s->key);
	} else if (res == -ENOSPC && S.world == W_OBJECT) {
		w->failed = true;             /* full: what was there stays */
	} else if (res == -ENOENT) {
		w->failed = true;
		if (!absent_ok(&S.model[s->key], s->start, end)) {
			FAIL("key %u: refused as absent, but it is there", s->key);
			model_dump(&S.model[s->key]);
		}
	}                                     /* else: outcome not known, end stays open */
}

static void judge(struct slot *s, int res)
{
	uint64_t end = ++S.step;
	struct model_key *m = &S.model[s->key];

	if (sim_now_ns() > s->deadline_ns + SLACK_NS)
		FAIL("kind %d ended %.3f ms after its deadline", (int)s->op.kind,
		     (double)(sim_now_ns() - s->deadline_ns) / 1e6);
	S.sum->late += res == -ETIMEDOUT;
	S.sum->errors += res != 0 && res != -ENOENT && res != -EEXIST;
	switch (s->op.kind) {
	case HOST_RETRIEVE:
		judge_retrieve(s, res, end);
		break;
	case HOST_STORE:
	case HOST_DELETE:
		judge_write(s, res, end);
		break;
	case HOST_EXIST:
		if (res == 0 && !present_ok(m, s->start, end))
			FAIL("key %u: Exist says yes, it was deleted", s->key);
		if (res == -ENOENT && !absent_ok(m, s->start, end))
			FAIL("key %u: Exist says no after an acknowledged Store", s->key);
		break;
	case HOST_LIST:
		S.sum->lists += res == 0;
		break;
	default:                              /* of blocks: not here */
		must(false);
	}
}

static void slot_free(struct slot *s)
{
	free(s->buffer);
	s->buffer = NULL;
	s->in_flight = false;
	s->node->flying--;
}

static void op_released(struct host_op *op)
{
	struct slot *s = container_of(op, struct slot, op);

	must(s->busy);
	s->busy = false;
	slot_free(s);
}

static void op_done(struct host_op *op, int res)
{
	struct slot *s = container_of(op, struct slot, op);
	struct node *n = s->node;

	must(s->in_flight && !s->busy);
	judge(s, res);
	S.ops_done++;
	S.sum->ops++;
	if (op->busy)
		s->busy = true;
	else
		slot_free(s);
	if (!S.draining)
		node_fill(n);
}

static void slot_prepare(struct slot *s, enum host_op_kind kind)
{
	struct host_op *op = &s->op;
	uint32_t bytes = 0;

	*op = (struct host_op){.kind = kind, .done = op_done, .released = op_released};
	s->start = ++S.step;
	s->deadline_ns = sim_now_ns() + OP_NS / 2 + prng_below(&S.p, OP_NS / 2);
	op->deadline_ns = s->deadline_ns;
	op->key = S.key[s->key];
	if (kind == HOST_STORE)
		bytes = random_size();
	else if (kind == HOST_RETRIEVE)
		bytes = !S.draining && prng_chance(&S.p, 100000) ? 1000 : S.value_bytes_max;
	else if (kind == HOST_LIST)
		bytes = 4096;
	s->buffer = malloc(bytes + 1);
	must(s->buffer != NULL);
	memset(s->buffer, 0xa5, bytes + 1);
	if (kind == HOST_LIST && prng_chance(&S.p, 500000))
		op->key = (struct kv_key){.len = 0};
	if (kind == HOST_STORE) {
		uint64_t mode = prng_below(&S.p, 10);

		prng_fill(&S.p, s->buffer, bytes);
		op->if_absent = mode == 0;
		op->if_present = mode == 1;
		s->write = model_begin(&S.model[s->key], s->start, false, bytes,
				       hash_xxh3(s->buffer, bytes));
	} else if (kind == HOST_DELETE) {
		s->write = model_begin(&S.model[s->key], s->start, true, 0, 0);
	}
	s->iov = (struct iovec){s->buffer, bytes};
	op->iov = &s->iov;
	op->iov_count = bytes > 0;
	op->bytes = bytes;
}

static enum host_op_kind random_kind(void)
{
	uint64_t dice = prng_below(&S.p, 100);

	return dice < 35 ? HOST_STORE : dice < 75 ? HOST_RETRIEVE : dice < 85 ? HOST_EXIST :
	       dice < 95 ? HOST_DELETE : HOST_LIST;
}

static void node_fill(struct node *n)
{
	for (unsigned i = 0; i < FLIGHT && S.ops_begun < S.target_ops; i++) {
		struct slot *s = &n->slot[i];

		if (s->in_flight)
			continue;
		s->node = n;
		s->in_flight = true;
		n->flying++;
		s->key = (unsigned)prng_below(&S.p, KEYS);
		slot_prepare(s, random_kind());
		S.ops_begun++;
		host_submit(n->host, &s->op);
	}
}

/* --- one seed -------------------- */

static void world_begin(uint64_t seed, uint64_t ops, struct shared *sum)
{
	struct sim_opts o = {.seed = seed};
	uint32_t often = 50000, *rate = o.fault_per_million;
	uint32_t net = seed % 8 == 7 ? often : 4000;

	S = (struct sim){.seed = seed, .world = (enum world)(seed % W_KINDS), .target_ops = ops,
		.sum = sum, .p = prng_of(seed * 7919 + 1)};
	S.loops = 1 + (unsigned)(seed / W_KINDS % LOOPS);
	S.target_ops *= tight() ? 2 : 1;
	S.value_bytes_max = seed % 50 == 0 ? 8 * MiB : 512 * KiB;
	rate[SIM_NET_RESET] = rate[SIM_NET_FLIP] = net;
	rate[SIM_NET_DELAY] = rate[SIM_NET_REFUSE] = often;
	rate[SIM_DISK_SLOW] = rate[SIM_DISK_WRITE_TORN] = often;
	if (S.world == W_MEDIA) {
		for (int f = SIM_DISK_READ_EIO; f <= SIM_DISK_SLOW; f++)
			rate[f] = often;
	}
	must(sim_begin(&o) == 0);
	sim_faults_on(false);
	for (unsigned k = 0; k < KEYS; k++) {
		model_init(&S.model[k]);
		S.key[k].len = (uint8_t)(k == 0 ? 1 : k == 1 ? 16 : 1 + prng_below(&S.p, 16));
		prng_fill(&S.p, S.key[k].byte, S.key[k].len);
		S.key[k].byte[0] = (uint8_t)k;        /* no two alike */
	}
}

static void node_begin(struct node *n, unsigned index)
{
	static const char *const name[HOSTS] = {"host0", "host1"};
	struct loop_opts lo = {.name = name[index]};
	struct host_opts ho = {.addr = {.host = "array", .port = 4420}, .queues = 2, .depth = 8,
		.header_digest = true, .data_digest = true, .reconnect_min_ns = 10 * NS_PER_MS,
		.reconnect_max_ns = 200 * NS_PER_MS, .connect_ns = NS_PER_S};
	char why[256] = "";

	snprintf(ho.subnqn, sizeof(ho.subnqn), NQN);
	snprintf(ho.hostnqn, sizeof(ho.hostnqn), "nqn.2014-08.org.nvmexpress:uuid:"
		 "00000000-0000-4000-8000-00000000000%u", index + 1);
	must(loop_open(&lo, &n->loop) == 0);
	if (host_open(n->loop, &ho, NULL, NULL, why, &n->host) != 0)
		FAIL("host_open: %s", why);
}

static bool all_live(void *arg)
{
	(void)arg;
	return host_state(S.node[0].host) == HOST_LIVE && host_state(S.node[1].host) == HOST_LIVE;
}

static bool all_done(void *arg)
{
	const uint64_t *stop_at = arg;

	if (sim_crashed() != NULL || S.failed)
		return true;
	return S.ops_done >= *stop_at && (*stop_at < S.target_ops ||
					  (S.node[0].flying == 0 && S.node[1].flying == 0));
}

/* Runs until `upto` operations have ended; crashes of the array on the way are part of it. */
static void run_upto(uint64_t upto)
{
	while (!S.failed) {
		bool ended = sim_run_until(all_done, &upto, 120 * NS_PER_S);

		if (sim_crashed() != NULL) {
			must(sim_crashed() == S.array);
			array_crash_and_reopen();
			continue;
		}
		if (!ended)
			FAIL("hang: %u and %u operations never ended", S.node[0].flying,
			     S.node[1].flying);
		return;
	}
}

/* With the faults off, every key is read by both hosts and answers rightly. */
static void last_look(void)
{
	uint64_t upto;

	sim_faults_on(false);
	sim_crash_at_write(0);
	if (!sim_run_until(all_live, NULL, 60 * NS_PER_S) && !S.failed)
		FAIL("the hosts did not come back: %s", host_last_error(S.node[0].host));
	S.draining = true;
	for (unsigned k = 0; k < KEYS && !S.failed; k++) {
		for (unsigned i = 0; i < HOSTS; i++) {
			struct slot *s = &S.node[i].slot[0];

			s->node = &S.node[i];
			s->in_flight = true;
			s->key = k;
			S.node[i].flying++;
			S.ops_begun++;
			slot_prepare(s, HOST_RETRIEVE);
			host_submit(S.node[i].host, &s->op);
		}
		upto = S.target_ops = S.ops_begun;
		run_upto(upto);
	}
}

static bool closed_flag[HOSTS + 1];

static void mark_closed(void *arg)
{
	*(bool *)arg = true;
}

static bool all_closed(void *arg)
{
	(void)arg;
	return closed_flag[0] && closed_flag[1] && closed_flag[2];
}

static void world_end(void)
{
	for (unsigned i = 0; i < HOSTS; i++) {
		struct host_stat hs;

		host_stat(S.node[i].host, &hs);
		S.sum->reconnects += hs.reconnects;
		closed_flag[i] = false;
		host_close(&S.node[i].host, mark_closed, &closed_flag[i]);
	}
	closed_flag[HOSTS] = false;
	target_close(&S.target, NS_PER_S, mark_closed, &closed_flag[HOSTS]);
	if (!sim_run_until(all_closed, NULL, 30 * NS_PER_S))
		FAIL("closing hangs");
	for (unsigned i = 0; i < S.loops; i++) {
		closed_flag[0] = false;
		store_count(S.store[i]);
		store_close(&S.store[i], mark_closed, &closed_flag[0]);
		if (!sim_run_until(all_closed, NULL, 30 * NS_PER_S))
			FAIL("a store does not close");
	}
	space_close(&S.space);
	for (unsigned i = 0; i < S.loops; i++)
		if (!store_pool_close(&S.pool[i]) && S.world != W_MEDIA)
			FAIL("a buffer was not given back");
	for (int f = 0; f < SIM_FAULT_COUNT; f++)
		S.sum->fault[f] += sim_fault_hits((enum sim_fault)f);
	if (!S.failed) {
		for (unsigned i = 0; i < HOSTS; i++)
			loop_close(&S.node[i].loop);
		for (unsigned i = 0; i < S.loops; i++)
			loop_close(&S.loop[i]);
	}
	for (unsigned k = 0; k < KEYS; k++)
		free(S.model[k].write);
	sim_end();
}

static bool run_seed(uint64_t seed, uint64_t ops, struct shared *sum)
{
	unsigned crashes;

	world_begin(seed, ops, sum);
	S.must_open = true;
	if (!array_open(true))
		return false;
	S.must_open = false;
	for (unsigned i = 0; i < HOSTS; i++)
		node_begin(&S.node[i], i);
	if (!sim_run_until(all_live, NULL, 10 * NS_PER_S))
		FAIL("the hosts do not attach: %s", host_last_error(S.node[0].host));
	sim_faults_on(true);
	crashes = (unsigned)prng_below(&S.p, 3);
	for (unsigned i = 0; i < HOSTS && !S.failed; i++)
		node_fill(&S.node[i]);
	for (unsigned c = 0; c < crashes && !S.failed; c++) {
		run_upto(S.target_ops * (c + 1) / (crashes + 1));
		if (prng_chance(&S.p, 700000))
			sim_crash_at_write(1 + prng_below(&S.p, 12));
		else if (!S.failed)
			array_crash_and_reopen();
	}
	run_upto(S.target_ops);
	if (!S.failed)
		last_look();
	if (!S.failed)
		world_end();
	fflush(stdout);
	return !S.failed;
}

/* --- many seeds -------------------- */

static unsigned seeds_failed;

static void reap(pid_t *pid, uint64_t *seed, unsigned jobs)
{
	int status = 0;
	pid_t ended = waitpid(-1, &status, 0);

	for (unsigned i = 0; i < jobs; i++) {
		if (pid[i] != ended)
			continue;
		pid[i] = 0;
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			seeds_failed++;
			printf("# seed %llu failed (%s %d); replay: array_test --seed %llu\n",
			       (unsigned long long)seed[i],
			       WIFSIGNALED(status) ? "signal" : "exit",
			       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
			       (unsigned long long)seed[i]);
		}
	}
}

static void add_up(struct shared *to, const struct shared *from)
{
	const uint64_t *f = (const uint64_t *)from;
	uint64_t *t = (uint64_t *)to;

	for (size_t i = 0; i < sizeof(*to) / sizeof(*t); i++)
		__atomic_fetch_add(&t[i], f[i], __ATOMIC_RELAXED);
}

static void spawn(pid_t *pid, uint64_t seed, uint64_t ops, struct shared *total)
{
	fflush(stdout);
	*pid = fork();
	must(*pid >= 0);
	if (*pid == 0) {
		struct shared mine = {0};
		bool good;

		alarm(60);                    /* a world that spins is a failure of its seed */
		good = run_seed(seed, ops, &mine);
		add_up(total, &mine);
		fflush(stdout);
		if (mine.crashes > 0)         /* what a dead process held is no leak */
			_exit(good ? 0 : 1);
		exit(good ? 0 : 1);
	}
}

static void verdict(unsigned n, bool good, const char *what)
{
	printf("%s %u - %s\n", good ? "ok" : "not ok", n, what);
}

static int report(const struct shared *t, uint64_t seeds)
{
	bool all_hit = true;
	unsigned n = 0;

	printf("# %llu seeds, %llu operations: %llu hits, %llu misses, %llu errors (%llu late), "
	       "%llu lists, %llu crashes (%llu power cuts), %llu reconnects\n",
	       (unsigned long long)seeds, (unsigned long long)t->ops, (unsigned long long)t->hits,
	       (unsigned long long)t->misses, (unsigned long long)t->errors,
	       (unsigned long long)t->late, (unsigned long long)t->lists,
	       (unsigned long long)t->crashes, (unsigned long long)t->power_cuts,
	       (unsigned long long)t->reconnects);
	for (int f = 0; f < SIM_FAULT_COUNT; f++) {
		printf("# fault %s: %llu\n", sim_fault_name((enum sim_fault)f),
		       (unsigned long long)t->fault[f]);
		all_hit = all_hit && t->fault[f] > 0;
	}
	printf("# %llu segments went, %llu stayed, %llu were cleaned, %llu values carried, %llu "
	       "Stores refused\n", (unsigned long long)t->evicted, (unsigned long long)t->kept,
	       (unsigned long long)t->cleaned, (unsigned long long)t->carried,
	       (unsigned long long)t->refused);
	printf("1..5\n");
	verdict(++n, seeds_failed == 0, "random operations of two hosts against a map, every seed");
	verdict(++n, all_hit, "every kind of fault was hit");
	verdict(++n, t->crashes > 0 && t->power_cuts > 0 && t->reconnects > 0,
		"crashes, power cuts and reconnects happened");
	verdict(++n, t->hits > t->ops / 20 && t->ops >= seeds * 20,
		"values were really read: more than one operation in twenty is a verified hit");
	verdict(++n, seeds < 200 ||
		(t->evicted > 0 && t->kept > 0 && t->cleaned > 0 && t->carried > 0),
		"segments went, stayed and were cleaned, values were carried");
	return seeds_failed == 0 && all_hit ? 0 : 1;
}

static int run_many(uint64_t first, uint64_t seeds, uint64_t ops, unsigned jobs)
{
	struct shared *total = mmap(NULL, sizeof(*total), PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid[16] = {0};
	uint64_t seed[16];
	unsigned flying = 0;

	must(total != MAP_FAILED && jobs >= 1 && jobs <= 16);
	for (uint64_t s = first; s < first + seeds; s++) {
		unsigned i = 0;

		if (flying == jobs) {
			reap(pid, seed, jobs);
			flying--;
		}
		while (pid[i] != 0)
			i++;
		seed[i] = s;
		spawn(&pid[i], s, ops, total);
		flying++;
	}
	for (; flying > 0; flying--)
		reap(pid, seed, jobs);
	return report(total, seeds);
}

int main(int argc, char **argv)
{
	static const struct option option[] = {{"seed", 1, NULL, 's'}, {"seeds", 1, NULL, 'n'},
		{"first", 1, NULL, 'f'}, {"ops", 1, NULL, 'o'}, {"jobs", 1, NULL, 'j'}, {0}};
	const char *env = getenv("KVOF_SEEDS");
	uint64_t seeds = env != NULL ? strtoull(env, NULL, 0) : 1000, first = 1, ops = 120, one = 0;
	unsigned jobs = 2;
	int c;

	while ((c = getopt_long(argc, argv, "", option, NULL)) != -1) {
		uint64_t v = optarg != NULL ? strtoull(optarg, NULL, 0) : 0;

		switch (c) {
		case 's': one = v; break;
		case 'n': seeds = v; break;
		case 'f': first = v; break;
		case 'o': ops = v; break;
		case 'j': jobs = (unsigned)v; break;
		default: return 2;
		}
	}
	if (one != 0) {
		static struct shared mine;
		bool good = run_seed(one, ops, &mine);

		printf("# world %d, trace %s\n", (int)S.world, good ? "good" : "bad");
		verdict(1, good, "the seed");
		return good ? 0 : 1;
	}
	return run_many(first, seeds, ops, jobs);
}
