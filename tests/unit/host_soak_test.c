/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host through a bad network, from seeds: resets, delays, flipped bits and refused connections,
 * an array that dies and returns, with operations that have deadlines and are cancelled at random.
 *
 * Held for every operation: exactly one done(); at its deadline at the latest; released() exactly
 * when it was busy, soon; no byte of a buffer changes after that; what a Retrieve brings is one
 * whole value that was stored under its key. KVOF_SEEDS sets how many seeds (40), KVOF_SEED one.
 */
#include "host_fake.h"

#include "base/hash.h"
#include "base/log.h"

#define OPS 400
#define FLYING 24
#define KEYS 6
#define VALUE_BYTES_MAX 40000

struct soak_op {
	struct host_op op;
	struct iovec iov;
	uint8_t *buffer;
	uint64_t sum;                  /* of the buffer, once it is ours again */
	uint64_t begun_ns, done_ns, released_ns;
	unsigned dones, releases;
	int res;
	bool busy, ours;
};

static struct soak {
	uint64_t seed;
	struct prng p;
	struct loop *host_loop, *fake_loop;
	struct fake *fake;
	struct host *host;
	struct soak_op op[OPS];
	unsigned begun, over;
	bool closed;
	unsigned results[8];
} S;

/* A value says which key it belongs to, and every byte follows from its first eight. */
static void value_fill(uint8_t *at, uint32_t bytes, unsigned key, uint32_t version)
{
	struct prng p = prng_of((uint64_t)key << 32 | version);

	prng_fill(&p, at, bytes);
	at[0] = (uint8_t)key;
	memcpy(at + 1, &version, 4);
}

static bool value_right(const uint8_t *at, uint32_t bytes, unsigned key)
{
	uint8_t *want = malloc(bytes);
	uint32_t version;
	bool right;

	memcpy(&version, at + 1, 4);
	value_fill(want, bytes, key, version);
	right = memcmp(want, at, bytes) == 0;
	free(want);
	return right;
}

static unsigned key_index(const struct host_op *op)
{
	return op->key.byte[0] - 'a';
}

static void ours_again(struct soak_op *o)
{
	o->ours = true;
	o->sum = hash_xxh3(o->buffer, VALUE_BYTES_MAX);
	S.over++;
}

static void soak_done(struct host_op *op, int res)
{
	struct soak_op *o = container_of(op, struct soak_op, op);

	o->dones++;
	o->res = res;
	o->busy = op->busy;
	o->done_ns = sim_now_ns();
	if (res == 0 && op->kind == HOST_RETRIEVE && !value_right(o->buffer, op->value_bytes,
								  key_index(op)))
		fail_msg("seed %llu: a wrong value", (unsigned long long)S.seed);
	if (!o->busy)
		ours_again(o);
}

static void soak_released(struct host_op *op)
{
	struct soak_op *o = container_of(op, struct soak_op, op);

	o->releases++;
	o->released_ns = sim_now_ns();
	ours_again(o);
}

static void soak_begin_op(void)
{
	static const enum host_op_kind kinds[] = {HOST_STORE, HOST_STORE, HOST_RETRIEVE,
						  HOST_RETRIEVE, HOST_EXIST, HOST_DELETE};
	struct soak_op *o = &S.op[S.begun++];
	unsigned key = (unsigned)prng_below(&S.p, KEYS);
	uint32_t bytes = 5 + (uint32_t)prng_below(&S.p, VALUE_BYTES_MAX - 5);

	o->buffer = malloc(VALUE_BYTES_MAX);
	kt_noise(o->buffer, VALUE_BYTES_MAX);
	o->op.kind = kinds[prng_below(&S.p, ARRAY_COUNT(kinds))];
	o->op.key.len = 1;
	o->op.key.byte[0] = (uint8_t)('a' + key);
	o->op.done = soak_done;
	o->op.released = soak_released;
	o->op.repeat_ok = prng_chance(&S.p, 500000);
	o->op.if_absent = o->op.kind == HOST_STORE && prng_chance(&S.p, 200000);
	o->begun_ns = sim_now_ns();
	if (!prng_chance(&S.p, 100000))
		o->op.deadline_ns = sim_now_ns() + NS_PER_MS + prng_below(&S.p, NS_PER_S);
	if (o->op.kind == HOST_STORE || o->op.kind == HOST_RETRIEVE) {
		if (o->op.kind == HOST_STORE)
			value_fill(o->buffer, bytes, key, S.begun);
		o->op.bytes = o->op.kind == HOST_STORE ? bytes : VALUE_BYTES_MAX;
		o->iov = (struct iovec){o->buffer, o->op.bytes};
		o->op.iov = &o->iov;
		o->op.iov_count = 1;
	}
	host_submit(S.host, &o->op);
}

static void soak_cancel_one(void)
{
	struct soak_op *o = &S.op[prng_below(&S.p, S.begun)];

	if (o->dones == 0)
		host_cancel(S.host, &o->op);
}

static void soak_array_dies_or_returns(void)
{
	if (S.fake->listener != NULL)
		fake_die(S.fake);
	else
		fake_listen(S.fake);
}

static void soak_closed(void *arg)
{
	(void)arg;
	S.closed = true;
}

static void soak_judge(void)
{
	for (unsigned i = 0; i < S.begun; i++) {
		struct soak_op *o = &S.op[i];
		uint64_t late_ns = o->op.deadline_ns + NS_PER_MS;

		expect_int(o->dones, 1);
		expect_int(o->releases, o->busy ? 1 : 0);
		if (o->op.deadline_ns != 0 && o->done_ns > late_ns)
			fail_msg("seed %llu: operation %u came %llu ns late",
				 (unsigned long long)S.seed, i,
				 (unsigned long long)(o->done_ns - o->op.deadline_ns));
		if (o->busy)
			expect(o->released_ns - o->done_ns <= 2 * HOST_RELEASE_NS);
		if (o->sum != hash_xxh3(o->buffer, VALUE_BYTES_MAX))
			fail_msg("seed %llu: a buffer changed after it was given back",
				 (unsigned long long)S.seed);
		S.results[o->res == 0 ? 0 : o->res == -ENOENT ? 1 : o->res == -ETIMEDOUT ? 2 :
			  o->res == -ECANCELED ? 3 : o->res == -ECONNRESET ? 4 :
			  o->res == -EEXIST ? 5 : 6]++;
		free(o->buffer);
	}
}

static void soak_open(void)
{
	struct sim_opts sim = {.seed = S.seed};
	struct host_opts opts = {
		.ops = &wire_tcp, .subnqn = FAKE_NQN, .hostnqn = "nqn.2026-11.io.kvof:soak",
		.queues = 3, .depth = 4, .header_digest = true, .data_digest = true,
		.reconnect_min_ns = 5 * NS_PER_MS, .reconnect_max_ns = 100 * NS_PER_MS,
		.keep_alive_ns = NS_PER_S, .connect_ns = NS_PER_S,
	};
	char why[256];

	sim.fault_per_million[SIM_NET_RESET] = 2000;
	sim.fault_per_million[SIM_NET_DELAY] = 20000;
	sim.fault_per_million[SIM_NET_REFUSE] = 100000;
	sim.fault_per_million[SIM_NET_FLIP] = 3000;
	expect_int(sim_begin(&sim), 0);
	expect_int(loop_open(&(struct loop_opts){.name = "host"}, &S.host_loop), 0);
	expect_int(loop_open(&(struct loop_opts){.name = "fake"}, &S.fake_loop), 0);
	S.fake = fake_new(&wire_tcp, S.fake_loop);
	opts.addr = S.fake->addr;
	expect_int(host_open(S.host_loop, &opts, NULL, NULL, why, &S.host), 0);
}

static void soak(uint64_t seed, uint64_t hits[SIM_FAULT_COUNT], unsigned results[8])
{
	memset(&S, 0, sizeof(S));
	memset(fake_works, 0, sizeof(fake_works));
	S.seed = seed;
	S.p = prng_of(seed);
	soak_open();
	while (S.begun < OPS && sim_step()) {
		if (S.begun - S.over < FLYING && prng_chance(&S.p, 100000))
			soak_begin_op();
		if (S.begun > 0 && prng_chance(&S.p, 5000))
			soak_cancel_one();
		if (prng_chance(&S.p, 200))
			soak_array_dies_or_returns();
	}
	/* Half of the seeds let the array come back and all operations end, half close at once. */
	sim_faults_on(false);
	if (S.fake->listener == NULL)
		fake_listen(S.fake);
	while (seed % 2 == 0 && S.over < S.begun && sim_step())
		;
	host_close(&S.host, soak_closed, NULL);
	while (!S.closed && sim_step())
		;
	expect(S.closed);
	soak_judge();
	fake_free(S.fake);
	for (unsigned i = 0; i < SIM_FAULT_COUNT; i++)
		hits[i] += sim_fault_hits(i);
	for (unsigned i = 0; i < 8; i++)
		results[i] += S.results[i];
	loop_close(&S.host_loop);
	loop_close(&S.fake_loop);
	sim_end();
}

TEST(every_operation_ends_once_in_time_with_right_bytes_through_a_bad_network)
{
	static const enum sim_fault kinds[] = {SIM_NET_RESET, SIM_NET_DELAY, SIM_NET_REFUSE,
					       SIM_NET_FLIP};
	uint64_t hits[SIM_FAULT_COUNT] = {0};
	unsigned results[8] = {0};
	const char *one = getenv("KVOF_SEED"), *many = getenv("KVOF_SEEDS");
	uint64_t seeds = many != NULL ? strtoull(many, NULL, 10) : 40;

	log_level_set(LOG_ERROR);
	if (one != NULL) {
		soak(strtoull(one, NULL, 10), hits, results);
		return;
	}
	for (uint64_t seed = 1; seed <= seeds; seed++)
		soak(seed, hits, results);
	printf("# done %u, absent %u, late %u, cancelled %u, lost %u, exists %u, other %u\n",
	       results[0], results[1], results[2], results[3], results[4], results[5], results[6]);
	for (size_t i = 0; i < ARRAY_COUNT(kinds); i++)
		if (hits[kinds[i]] == 0)
			fail_msg("%s was never hit", sim_fault_name(kinds[i]));
	for (unsigned i = 0; i < 5; i++)
		expect(results[i] > 0);
}
