/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts send commands that are nearly right: each is a valid one with a few bytes changed, on admin
 * and I/O queues, with data in both directions, and they leave whenever they like. Whatever comes,
 * the array asserts nothing, answers everything that it should, gives all back, and a canary's
 * values stay right. KVOF_SEED=n runs one seed, KVOF_SEEDS=n so many.
 */
#include "../unit/target_fixture.h"

enum { LINKS = 4, ASKS = 20, BYTES = 16384, ACTIONS = 400 };

struct noisy {
	struct lk h;
	bool open, io;                             /* io: commands go to the I/O queue */
	struct ask ask[ASKS];
	uint8_t buffer[ASKS][BYTES];
	struct prng *p;
};

static struct noisy noisy[LINKS];
static unsigned long sent, answered, refused_count, went;

static struct nv_sqe valid_admin(struct prng *p)
{
	struct nv_identify id = {.cns = (uint8_t)prng_below(p, 0x1e),
		.nsid = (uint32_t)prng_below(p, 3), .csi = (uint8_t)prng_below(p, 3)};
	static const uint8_t lids[] = {0, 1, 2, 3, 4, 5, 0x70, 0xc0};
	struct nv_log log = {.lid = lids[prng_below(p, sizeof(lids))], .nsid = 1,
		.bytes = 4 * (1 + prng_below(p, BYTES / 4)), .offset = 4 * prng_below(p, 300)};
	static const uint8_t fids[] = {1, 2, 4, 5, 6, 7, 0x0b, 0x0f, 0x19, 0x20, 0x81};
	struct nv_feature f = {.fid = fids[prng_below(p, sizeof(fids))],
		.nsid = (uint32_t)prng_below(p, 2), .cdw11 = (uint32_t)prng_next(p) & 0x00ff,
		.select = (uint8_t)prng_below(p, 4)};
	struct nv_property cc = {NV_PROP_CC, 4, NV_CC_CSS_IOCS | NV_CC_QUEUE_SIZES |
		(prng_below(p, 4) != 0) | (prng_below(p, 8) == 0 ? 1u << 14 : 0)};
	struct nv_property get = {4 * (uint32_t)prng_below(p, 10), 4, 0};

	switch (prng_below(p, 9)) {
	case 0:
		return nv_identify_build(&id);
	case 1:
		return nv_log_build(&log);
	case 2:
		return nv_feature_set_build(&f);
	case 3:
		return nv_feature_get_build(&f);
	case 4:
		return nv_property_set_build(&cc);
	case 5:
		return nv_property_get_build(&get);
	case 6:
		return nv_sqe_of(NV_ADMIN_KEEP_ALIVE, 0);
	case 7:
		return nv_sqe_of(NV_ADMIN_ASYNC_EVENT, 0);
	default: {
		struct nv_sqe sqe = nv_sqe_of(NV_ADMIN_ABORT, 0);

		sqe.cdw10 = le32_of((uint32_t)prng_below(p, 32) << 16 | (uint32_t)prng_below(p, 2));
		return sqe;
	}
	}
}

static struct nv_sqe valid_io(struct prng *p, uint32_t *bytes)
{
	static const enum nv_kv_opcode opcodes[] = {NV_KV_STORE, NV_KV_STORE, NV_KV_RETRIEVE,
		NV_KV_RETRIEVE, NV_KV_LIST, NV_KV_DELETE, NV_KV_EXIST};
	struct nv_kv_cmd cmd = {.opcode = opcodes[prng_below(p, ARRAY_COUNT(opcodes))]};

	if (prng_below(p, 40) == 0)
		return nv_disconnect_build();
	if (prng_below(p, 20) == 0)
		return nv_sqe_of(NV_KV_FLUSH, 1);
	*bytes = (uint32_t)prng_below(p, prng_below(p, 2) ? BYTES + 1 : 600);
	cmd.key.len = (uint8_t)(1 + prng_below(p, 16));
	cmd.key.byte[0] = (uint8_t)prng_below(p, 8);
	cmd.bytes = cmd.opcode == NV_KV_STORE || cmd.opcode == NV_KV_RETRIEVE ||
		    cmd.opcode == NV_KV_LIST ? *bytes : 0;
	return nv_kv_build(1, &cmd);
}

static void noisy_send(struct fix *f, struct noisy *n)
{
	struct link *l = n->io ? &n->h.io : &n->h.admin;
	unsigned i = 0;
	uint32_t bytes = (uint32_t)prng_below(n->p, BYTES + 1);
	struct ask *a;
	struct nv_sqe sqe;
	uint8_t *raw = (uint8_t *)&sqe;

	while (i < ASKS && !n->ask[i].over && n->ask[i].link != NULL)
		i++;
	if (i == ASKS)
		return;
	a = &n->ask[i];
	sqe = n->io ? valid_io(n->p, &bytes) : valid_admin(n->p);
	for (unsigned k = (unsigned)prng_below(n->p, 4); k > 0; k--)
		raw[4 + prng_below(n->p, 60)] = (uint8_t)prng_next(n->p);
	if (prng_below(n->p, 30) == 0)
		sqe.opcode = (uint8_t)prng_next(n->p);
	*a = (struct ask){.iov = {n->buffer[i], bytes}, .link = l};
	prng_fill(n->p, n->buffer[i], bytes < 64 ? bytes : 64);
	if (nv_sqe_dir(&sqe) == NV_DATA_TO_CONTROLLER) {
		a->req.out = &a->iov;
		a->req.out_count = bytes > 0;
		a->req.out_bytes = bytes;
	} else if (nv_sqe_dir(&sqe) == NV_DATA_TO_HOST) {
		a->req.in = &a->iov;
		a->req.in_count = bytes > 0;
		a->req.in_bytes = bytes;
	}
	a->req.sqe = sqe;
	a->req.cid = (uint16_t)i;
	a->req.done = ask_done;
	sent++;
	wire_submit(l->conn, &a->req);
}

static void noisy_tally(struct noisy *n)
{
	for (unsigned i = 0; i < ASKS; i++) {
		struct ask *a = &n->ask[i];

		if (!a->over)
			continue;
		answered += a->res == 0;
		went += a->res != 0;
		refused_count += a->res == 0 && !nv_status_ok(nv_cqe_status(&a->req.cqe));
		*a = (struct ask){0};
	}
}

static void noisy_leave(struct fix *f, struct noisy *n)
{
	if (n->h.io.conn != NULL)
		wire_close(&n->h.io.conn);
	if (n->h.admin.conn != NULL)
		wire_close(&n->h.admin.conn);
	settle(f);
	noisy_tally(n);
	for (unsigned i = 0; i < ASKS; i++)
		expect(n->ask[i].link == NULL);
	n->open = false;
}

static void noisy_act(struct fix *f, struct noisy *n)
{
	if (!n->open) {
		lk_open(f, &n->h, HOST_A);
		n->open = true;
		n->io = prng_below(n->p, 3) != 0;
		return;
	}
	noisy_tally(n);
	if (n->h.io.closed || n->h.admin.closed || prng_below(n->p, 60) == 0)
		noisy_leave(f, n);
	else
		noisy_send(f, n);
}

static void run_seed(uint64_t seed)
{
	static uint8_t value[70000], got[70000];
	struct prng p = prng_of(seed * 7919 + 1);
	struct lk canary;
	struct fix f;

	memset(noisy, 0, sizeof(noisy));
	fix_open(&f, NULL, 0);
	lk_open(&f, &canary, HOST_B);
	fill(value, sizeof(value), seed);
	expect_int(kv_put(&f, &canary.io, "the canary's own", value, sizeof(value), 0), NV_RAW_OK);
	for (unsigned i = 0; i < ACTIONS; i++) {
		struct noisy *n = &noisy[prng_below(&p, LINKS)];

		n->p = &p;
		noisy_act(&f, n);
		steps(&f, (unsigned)prng_below(&p, 12));
		if (i % 100 != 99)
			continue;
		kt_noise(got, sizeof(got));
		expect_int(kv_get(&f, &canary.io, "the canary's own", got, sizeof(got)), NV_RAW_OK);
		expect_mem(got, value, sizeof(value));
	}
	for (unsigned i = 0; i < LINKS; i++)
		if (noisy[i].open)
			noisy_leave(&f, &noisy[i]);
	pause_ns(&f, 2 * NS_PER_S);
	expect_int(target_counts(f.target)->busy, 0);
	expect_int(target_counts(f.target)->conns, 2);
	expect_int(target_counts(f.target)->ctrls, 1);
	lk_close(&f, &canary);
	fix_close(&f);
}

TEST(commands_that_are_nearly_right_harm_nobody)
{
	const char *first = getenv("KVOF_SEED"), *many = getenv("KVOF_SEEDS");
	uint64_t from = first != NULL ? strtoull(first, NULL, 0) : 1;
	uint64_t count = many != NULL ? strtoull(many, NULL, 0) : first != NULL ? 1 : 100;

	for (uint64_t seed = from; seed < from + count; seed++) {
		printf("# seed %llu\n", (unsigned long long)seed);
		run_seed(seed);
	}
	printf("# %lu commands: %lu answered (%lu with an error), %lu went with their connection\n",
	       sent, answered, refused_count, went);
	expect(sent > 200 * count && answered > sent / 3);
	expect(refused_count > answered / 10 && refused_count < answered);
}
