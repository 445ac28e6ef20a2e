/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many commands at once, in any order, from seeds: stores and retrieves of random sizes, cut into
 * random pieces of memory, withdrawn at any time, on a network that splits, delays, resets and
 * flips bits. What must hold: each request is given back exactly once; after that its memory is
 * not touched (it is filled with a mark and looked at later); bytes of a read that succeeded are
 * those of the store; nothing is left when both ends have closed.
 */
#include "wire_fixture.h"

#define SLOTS 8u
#define ROOM (300 * KiB)
#define PIECES 24u

struct soak_slot {
	struct wire_req req;
	struct iovec iov[PIECES];
	uint8_t *buf;
	uint32_t bytes;
	uint8_t mark;                  /* what buf is filled with after done() */
	bool flying, withdrawn, read;
};

static struct soak_slot slot[SLOTS];
/* Stores land here, each slot apart, so that damaged ones harm nothing else. */
static uint8_t landed[SLOTS * ROOM];
#ifndef SOAK_SEEDS
#define SOAK_SEEDS 12
#endif
static struct prng rnd;
static unsigned done_ok, done_bad, done_lost, done_cancelled, submitted, stops;
static bool digests_on;

static uint8_t content(uint32_t at)
{
	return (uint8_t)(at * 131 + (at >> 8) * 7);
}

static void soak_done(struct wire_req *req, int res)
{
	struct soak_slot *s = container_of(req, struct soak_slot, req);

	must(s->flying);
	s->flying = false;
	if (res == 0) {
		done_ok++;
		must(nv_status_ok(nv_cqe_status(&req->cqe)) ||
		     nv_status_is(nv_cqe_status(&req->cqe), NV_TRANSIENT_TRANSPORT));
		if (s->read && nv_status_ok(nv_cqe_status(&req->cqe)))
			must(req->in_bytes_got == s->bytes);
		for (uint32_t i = 0; s->read && i < req->in_bytes_got; i += 1 + i / 64)
			must(s->buf[i] == content(i));
	} else if (res == -EBADMSG) {
		done_bad++;
	} else if (res == -ECANCELED) {
		done_cancelled++;
	} else {
		must(res == -ECONNRESET || res == -EPROTO || res == -ETIMEDOUT);
		done_lost++;
	}
	s->mark = (uint8_t)prng_next(&rnd);
	memset(s->buf, s->mark, ROOM);
}

static void stored(struct wf_ctrl *c, const struct wire_cmd *cmd, const uint8_t *at)
{
	(void)c;
	for (uint32_t i = 0; i < le32_get(cmd->sqe.cdw10); i += 1 + i / 64)
		must(at[i] == content(i));
}

static void look_at_marks(void)
{
	for (unsigned i = 0; i < SLOTS; i++)
		if (!slot[i].flying)
			for (uint32_t at = 0; at < ROOM; at += 509)
				must(slot[i].buf[at] == slot[i].mark);
}

/* Random pieces, some empty, that hold `bytes` in all. */
static unsigned cut(struct soak_slot *s, uint32_t bytes)
{
	unsigned n = 0;
	uint32_t at = 0;

	while (n < PIECES - 1 && at < bytes && prng_below(&rnd, 4) != 0) {
		uint32_t piece = (uint32_t)prng_below(&rnd, bytes - at + 1);

		s->iov[n++] = (struct iovec){s->buf + at, piece};
		at += piece;
	}
	if (at < bytes)
		s->iov[n++] = (struct iovec){s->buf + at, bytes - at};
	return n;
}

static void submit_one(struct soak_slot *s)
{
	static const uint32_t most[] = {600, 9000, 40000, (uint32_t)ROOM};
	uint32_t bytes = (uint32_t)prng_below(&rnd, most[prng_below(&rnd, 4)]);
	unsigned count = cut(s, bytes);

	s->read = prng_below(&rnd, 2) == 0;
	s->bytes = bytes;
	s->req = (struct wire_req){.sqe = nv_sqe_of(s->read ? 2 : 1, 1),
				   .cid = (uint16_t)(s - slot), .done = soak_done};
	s->req.sqe.cdw10 = le32_of(bytes);
	if (s->read) {
		s->req.in = s->iov;
		s->req.in_count = count;
		s->req.in_bytes = bytes;
	} else {
		for (uint32_t i = 0; i < bytes; i++)
			s->buf[i] = content(i);
		s->req.out = s->iov;
		s->req.out_count = count;
		s->req.out_bytes = bytes;
	}
	s->flying = true;
	s->withdrawn = false;
	submitted++;
	wire_submit(wf_host.conn, &s->req);
}

static void act(void *arg)
{
	struct soak_slot *s = &slot[prng_below(&rnd, SLOTS)];

	(void)arg;
	if (wf_host.conn == NULL)
		return;
	if (s->flying && !s->withdrawn && prng_below(&rnd, 8) == 0) {
		s->withdrawn = true;
		wire_withdraw(wf_host.conn, &s->req);
	} else if (!s->flying && wire_cid_free(wf_host.conn, (uint16_t)(s - slot))) {
		submit_one(s);
	} else if (prng_below(&rnd, 400) == 0) {
		stops++;
		wire_close(&wf_host.conn);
	}
}

static void reconnect(void)
{
	wf_on(wf_ctrl.loop, wf_do_ctrl_close, NULL);
	wf_wait_ms(50);
	wf_host.connected = wf_ctrl.accepted = 0;
	wf_listen();
	for (unsigned tries = 0; tries < 20 && wf_host.connected == 0; tries++) {
		if (wf_host.conn == NULL)
			wf_on(wf_host.loop, wf_do_connect, NULL);
		(void)sim_run_until(wf_is_connected, NULL, 7 * NS_PER_S);
	}
	expect(wf_host.connected > 0);
}

static bool all_back(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < SLOTS; i++)
		if (slot[i].flying)
			return false;
	return true;
}

static void soak(uint64_t seed, const struct sim_opts *opts, bool mem)
{
	if (mem)
		wf_begin_mem(seed);
	else
		wf_begin(seed, opts);
	rnd = prng_of(seed);
	wf_store_size(ROOM);
	wf_ctrl.pull_to = landed;
	wf_ctrl.pulled = stored;
	for (uint32_t i = 0; i < ROOM; i++)
		wf_ctrl.store[i] = content(i);
	for (unsigned i = 0; i < SLOTS; i++) {
		slot[i] = (struct soak_slot){.buf = malloc(ROOM)};
		memset(slot[i].buf, 0, ROOM);
	}
	digests_on = opts != NULL && opts->fault_per_million[SIM_NET_FLIP] > 0;
	wf_host.opts.header_digest = wf_ctrl.opts.header_digest = digests_on || seed % 2;
	wf_host.opts.data_digest = wf_ctrl.opts.data_digest = digests_on || seed % 3 == 0;
	wf_ctrl.opts.h2c_bytes_max = 4096u << seed % 5;
	sim_faults_on(false);
	reconnect();
	sim_faults_on(true);
	for (unsigned i = 0; i < 600; i++) {
		wf_on(wf_host.loop, act, NULL);
		(void)sim_run_until(wf_never, NULL, prng_below(&rnd, 400000));
		look_at_marks();
		if (wf_host.conn == NULL) {
			expect(sim_run_until(all_back, NULL, 30 * NS_PER_S));
			sim_faults_on(false);
			reconnect();
			sim_faults_on(true);
		}
	}
	sim_faults_on(false);
	expect(sim_run_until(all_back, NULL, 60 * NS_PER_S));
	look_at_marks();
	wf_end();
	look_at_marks();
	for (unsigned i = 0; i < SLOTS; i++)
		free(slot[i].buf);
}

TEST(any_order_of_commands_and_withdrawals_on_a_good_network)
{
	for (uint64_t seed = 1; seed <= SOAK_SEEDS; seed++)
		soak(seed, NULL, false);
	expect(done_ok > 500 && done_cancelled > 20);
}

TEST(any_order_within_one_process)
{
	for (uint64_t seed = 1; seed <= SOAK_SEEDS; seed++)
		soak(seed, NULL, true);
}

TEST(any_order_on_a_network_that_delays_and_resets)
{
	struct sim_opts opts = {0};
	unsigned lost = done_lost;

	opts.fault_per_million[SIM_NET_DELAY] = 20000;
	opts.fault_per_million[SIM_NET_RESET] = 1000;
	for (uint64_t seed = 1; seed <= SOAK_SEEDS; seed++)
		soak(seed, &opts, false);
	expect(done_lost > lost);
}

TEST(any_order_on_a_network_that_flips_bits)
{
	struct sim_opts opts = {0};
	unsigned bad = done_bad;
	uint64_t counted = wire_counts()->data_digest_bad + wire_counts()->header_digest_bad;

	opts.fault_per_million[SIM_NET_FLIP] = 3000;
	for (uint64_t seed = 1; seed <= 2 * SOAK_SEEDS; seed++)
		soak(seed, &opts, false);
	expect(done_bad > bad);
	expect(wire_counts()->data_digest_bad + wire_counts()->header_digest_bad > counted);
}
