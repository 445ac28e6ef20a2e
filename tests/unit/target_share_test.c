/* SPDX-License-Identifier: Apache-2.0 */
/*
 * src/target/share.c: hosts that hold buffers and move nothing, hosts that ask for all at once, and
 * a quiet one beside them. Each host is a process of its own, so that its link can be cut: then it
 * reads nothing and sends nothing, and its connection stays.
 */
#include "target_fixture.h"

#define LARGE (8 * MiB)                      /* the largest value; a pool has eight */
#define STUCK_MAX 12
/* a tenth of the stall time of 10 s, and what passes between two looks and more */
#define PRESSED_NS (1300 * NS_PER_MS)
#define DEEP 24

struct guest {
	struct loop *loop;
	struct lk h;
	struct ask ask[DEEP];
	bool cut;
};

static uint8_t large[LARGE], into[LARGE];
static struct guest stuck[STUCK_MAX], quiet, flood;

static void guest_enter(struct fix *f, struct guest *g, unsigned number)
{
	struct loop *array = f->loop;
	char name[64];

	*g = (struct guest){0};
	snprintf(name, sizeof(name), "nqn.2026-11.io.kvof:guest-%u", number);
	expect_int(loop_open(&(struct loop_opts){.name = "guest"}, &g->loop), 0);
	f->loop = g->loop;
	lk_open(f, &g->h, name);
	f->loop = array;
}

static void guest_cut(struct fix *f, struct guest *g, bool cut)
{
	g->cut = cut;
	sim_link_cut(f->loop, g->loop, cut);
}

static void guest_leave(struct fix *f, struct guest *g)
{
	if (g->cut)
		guest_cut(f, g, false);
	wire_close(&g->h.io.conn);
	wire_close(&g->h.admin.conn);
	settle(f);
	loop_close(&g->loop);
}

static void get_start(struct guest *g, unsigned i, const char *key, uint32_t bytes)
{
	struct nv_sqe sqe = kv_sqe(NV_KV_RETRIEVE, key, bytes, 0);

	g->ask[i] = (struct ask){.iov = {into, bytes}};
	g->ask[i].req.in = &g->ask[i].iov;
	g->ask[i].req.in_count = 1;
	g->ask[i].req.in_bytes = bytes;
	g->h.io.cid = (uint16_t)i;                     /* a place has its own, answers may cross */
	ask_start(&g->ask[i], &g->h.io, &sqe);
}

/* How long the quiet host waits for one value. */
static uint64_t quiet_get_ns(struct fix *f, const char *key, uint32_t bytes)
{
	uint64_t start_ns = sim_now_ns();

	get_start(&quiet, 0, key, bytes);
	expect_int(ask_wait(f, &quiet.ask[0]), NV_RAW_OK);
	return sim_now_ns() - start_ns;
}

static void quiet_put(struct fix *f, const char *key, uint32_t bytes)
{
	ask_put(&quiet.ask[0], &quiet.h.io, key, large, bytes);
	expect_int(ask_wait(f, &quiet.ask[0]), NV_RAW_OK);
}

static void share_open(struct fix *f)
{
	fix_open(f, NULL, 0);
	guest_enter(f, &quiet, 99);
	for (unsigned i = 0; i < DEEP; i++) {
		char key[8];

		snprintf(key, sizeof(key), "large%c", 'a' + i % 8);
		if (i < 8)
			quiet_put(f, key, LARGE);
		snprintf(key, sizeof(key), "mid%c", 'a' + i);
		quiet_put(f, key, MiB);
		snprintf(key, sizeof(key), "small%c", 'a' + i);
		quiet_put(f, key, 4000);
	}
}

/* `count` hosts that have read once, like any other, and then ask for much and read nothing. */
static void hosts_get_stuck(struct fix *f, unsigned count, bool stores)
{
	for (unsigned n = 0; n < count; n++) {
		guest_enter(f, &stuck[n], n);
		get_start(&stuck[n], 0, "smalla", 4000);
		expect_int(ask_wait(f, &stuck[n].ask[0]), NV_RAW_OK);
	}
	for (unsigned n = 0; n < count; n++) {
		for (unsigned i = 0; i < 8; i++) {
			char key[8];

			snprintf(key, sizeof(key), "large%c", 'a' + (n + i) % 8);
			if (stores)
				ask_put(&stuck[n].ask[i], &stuck[n].h.io, key, large, LARGE);
			else
				get_start(&stuck[n], i, key, LARGE);
		}
		pause_ns(f, 300 * UINT64_C(1000));     /* commands go out, not much comes back */
		guest_cut(f, &stuck[n], true);
	}
	pause_ns(f, 5 * NS_PER_MS);
}

static void share_close(struct fix *f, unsigned count)
{
	for (unsigned n = 0; n < count; n++)
		guest_leave(f, &stuck[n]);
	guest_leave(f, &quiet);
	fix_close(f);
}

TEST(three_hosts_that_stop_reading_cost_a_quiet_one_nothing)
{
	struct fix f;
	uint64_t alone_ns, large_ns;

	share_open(&f);
	alone_ns = quiet_get_ns(&f, "smallb", 4000);
	large_ns = quiet_get_ns(&f, "larged", LARGE);
	hosts_get_stuck(&f, 3, false);
	for (unsigned i = 0; i < 20; i++)
		expect(quiet_get_ns(&f, "smallb", 4000) < 4 * alone_ns + NS_PER_MS);
	for (unsigned i = 0; i < 5; i++)
		expect(quiet_get_ns(&f, "larged", LARGE) < 2 * large_ns);
	share_close(&f, 3);
}

TEST(so_many_that_they_hold_the_pool_are_closed_after_a_tenth_of_the_stall_time)
{
	struct fix f;
	uint64_t large_ns, small_ns;

	share_open(&f);
	large_ns = quiet_get_ns(&f, "larged", LARGE);
	small_ns = quiet_get_ns(&f, "smallb", 4000);
	hosts_get_stuck(&f, STUCK_MAX, false);
	for (unsigned i = 0; i < 20; i++)              /* small values pass while others wait */
		expect(quiet_get_ns(&f, "smallb", 4000) < 4 * small_ns + NS_PER_MS);
	expect(quiet_get_ns(&f, "larged", LARGE) < PRESSED_NS + 2 * large_ns);
	expect(quiet_get_ns(&f, "smallb", 4000) < PRESSED_NS);
	share_close(&f, STUCK_MAX);
}

TEST(hosts_that_promise_data_and_send_none_are_no_better)
{
	struct fix f;
	uint64_t large_ns;

	share_open(&f);
	large_ns = quiet_get_ns(&f, "larged", LARGE);
	hosts_get_stuck(&f, STUCK_MAX, true);
	for (unsigned i = 0; i < 3; i++) {
		uint64_t start_ns = sim_now_ns();

		quiet_put(&f, "mine", LARGE);
		expect(sim_now_ns() - start_ns < PRESSED_NS + 2 * large_ns);
	}
	share_close(&f, STUCK_MAX);
}

TEST(a_host_that_is_alone_may_be_slow_for_the_whole_stall_time)
{
	struct fix f;

	share_open(&f);
	guest_enter(&f, &stuck[0], 0);
	for (unsigned i = 0; i < 8; i++)
		get_start(&stuck[0], i, "largea", LARGE);
	pause_ns(&f, 2 * NS_PER_MS);
	guest_cut(&f, &stuck[0], true);
	pause_ns(&f, 9 * NS_PER_S);
	guest_cut(&f, &stuck[0], false);
	for (unsigned i = 0; i < 8; i++)
		expect_int(ask_wait(&f, &stuck[0].ask[i]), NV_RAW_OK);
	expect_int(target_counts(f.target)->pressed, 0);
	share_close(&f, 1);
}

TEST(a_host_that_moves_a_little_now_and_then_keeps_its_connection_under_pressure)
{
	struct fix f;

	share_open(&f);
	hosts_get_stuck(&f, STUCK_MAX, false);
	get_start(&quiet, 1, "largeb", LARGE);         /* somebody waits */
	for (unsigned i = 0; i < 60; i++) {            /* 6 s: each reads a little every 400 ms */
		for (unsigned n = 0; n < STUCK_MAX; n++)
			guest_cut(&f, &stuck[n], i % 4 != n % 4);
		pause_ns(&f, 100 * UINT64_C(1000));
		for (unsigned n = 0; n < STUCK_MAX; n++)
			guest_cut(&f, &stuck[n], true);
		pause_ns(&f, 100 * NS_PER_MS);
	}
	expect_int(target_counts(f.target)->pressed, 0);
	for (unsigned n = 0; n < STUCK_MAX; n++)
		guest_cut(&f, &stuck[n], false);
	expect_int(ask_wait(&f, &quiet.ask[1]), NV_RAW_OK);
	share_close(&f, STUCK_MAX);
}

/* --- a flood -------------------- */

static bool flood_on;

static void flood_next(unsigned i);

static void flood_done(struct wire_req *req, int res)
{
	struct ask *a = container_of(req, struct ask, req);

	a->over = true;
	a->res = res;
	must(res == 0);
	if (flood_on)
		flood_next((unsigned)(a - flood.ask));
}

static void flood_next(unsigned i)
{
	char key[8];

	snprintf(key, sizeof(key), "mid%c", 'a' + i);
	get_start(&flood, i, key, MiB);
	flood.ask[i].req.done = flood_done;
}

static uint64_t p99(uint64_t *ns, unsigned count)
{
	for (unsigned i = 1; i < count; i++)
		for (unsigned k = i; k > 0 && ns[k] < ns[k - 1]; k--) {
			uint64_t was = ns[k];

			ns[k] = ns[k - 1];
			ns[k - 1] = was;
		}
	return ns[count * 99 / 100];
}

static uint64_t quiet_p99(struct fix *f)
{
	static uint64_t ns[300];

	for (unsigned i = 0; i < ARRAY_COUNT(ns); i++) {
		char key[8];

		snprintf(key, sizeof(key), "small%c", 'a' + i % DEEP);
		ns[i] = quiet_get_ns(f, key, 4000);
	}
	return p99(ns, ARRAY_COUNT(ns));
}

TEST(a_flood_beside_a_quiet_host_keeps_its_p99_within_twice)
{
	struct fix f;
	uint64_t alone_ns, beside_ns;

	share_open(&f);
	alone_ns = quiet_p99(&f);
	guest_enter(&f, &flood, 7);
	flood_on = true;
	for (unsigned i = 0; i < DEEP; i++)
		flood_next(i);
	beside_ns = quiet_p99(&f);
	print_message("# quiet p99 %llu us alone, %llu us beside a flood\n",
		      (unsigned long long)alone_ns / 1000, (unsigned long long)beside_ns / 1000);
	expect(beside_ns < 2 * alone_ns);
	flood_on = false;
	for (unsigned i = 0; i < DEEP; i++)
		expect_int(ask_wait(&f, &flood.ask[i]), NV_RAW_OK);
	guest_leave(&f, &flood);
	share_close(&f, 0);
}

/* Not proven yet, so the second waits for the first; the third's data lies in front of the first's
 * on the connection. */
TEST(data_in_a_capsule_does_not_wait_for_what_comes_behind_it)
{
	uint64_t start_ns;
	struct fix f;

	share_open(&f);
	guest_enter(&f, &stuck[0], 0);
	start_ns = sim_now_ns();
	for (unsigned i = 0; i < 3; i++) {
		char key[8];

		snprintf(key, sizeof(key), "new%c", 'a' + i);
		stuck[0].h.io.cid = (uint16_t)i;
		ask_put(&stuck[0].ask[i], &stuck[0].h.io, key, large, i < 2 ? LARGE : 2000);
	}
	for (unsigned i = 0; i < 3; i++)
		expect_int(ask_wait(&f, &stuck[0].ask[i]), NV_RAW_OK);
	expect(sim_now_ns() - start_ns < NS_PER_S);
	share_close(&f, 1);
}

TEST(who_holds_least_is_served_first_and_a_large_value_is_not_passed)
{
	struct fix f;
	struct guest *all = stuck;

	share_open(&f);
	for (unsigned n = 0; n < 6; n++) {
		guest_enter(&f, &all[n], n);
		get_start(&all[n], 0, "smalla", 4000);
		expect_int(ask_wait(&f, &all[n].ask[0]), NV_RAW_OK);
	}
	for (unsigned n = 0; n < 6; n++)
		for (unsigned i = 0; i < 20; i++) {
			char key[8];

			snprintf(key, sizeof(key), "large%c", 'a' + (n + i) % 8);
			get_start(&all[n], i, key, LARGE);
		}
	for (unsigned i = 0; i < 10; i++)              /* among 120 large values that are wanted */
		expect(quiet_get_ns(&f, "largea", LARGE) < 300 * NS_PER_MS);
	for (unsigned n = 0; n < 6; n++)
		for (unsigned i = 0; i < 20; i++)
			expect_int(ask_wait(&f, &all[n].ask[i]), NV_RAW_OK);
	expect_int(target_counts(f.target)->pressed, 0);
	share_close(&f, 6);
}
