/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's own promises: a seed fixes the run, crashes lose what they may, faults are really hit. */
#include <errno.h>

#include "base/must.h"
#include "base/prng.h"
#include "kt.h"
#include "loop/sim.h"

#define ALIGN 4096u
#define DISK_BYTES (4 * MiB)
#define ALL_RATE 1000000u

static struct loop *loop;
static struct disk *disk;
static uint8_t *page;                   /* 16 pages of noise */

struct dio { struct disk_io io; struct iovec iov; unsigned calls; int res; };
struct sio { struct sock_io io; struct iovec iov; unsigned calls; int res; };
struct dial { struct sock_connect c; unsigned calls; int res; };

static void dio_done(struct loop_op *op, int res)
{
	struct dio *x = container_of(op, struct dio, io.op);

	x->calls++;
	x->res = res;
}

static void sio_done(struct loop_op *op, int res)
{
	struct sio *x = container_of(op, struct sio, io.op);

	x->calls++;
	x->res = res;
}

static void dial_done(struct loop_op *op, int res)
{
	struct dial *x = container_of(op, struct dial, c.op);

	x->calls++;
	x->res = res;
}

static void begin(struct sim_opts opts)
{
	if (opts.seed == 0)
		opts.seed = 5;
	expect_int(sim_begin(&opts), 0);
	expect_int(loop_open(&(struct loop_opts){.name = "node"}, &loop), 0);
	expect_int(disk_open(loop, "d0", &(struct disk_opts){.create_bytes = DISK_BYTES}, &disk), 0);
	if (page == NULL)
		expect_int(posix_memalign((void **)&page, ALIGN, 16 * ALIGN), 0);
	kt_noise(page, 16 * ALIGN);
}

static void end(void)
{
	sim_end();
	free(page);
	page = NULL;
	disk = NULL;
	loop = NULL;
}

static void restart(void)
{
	expect_int(loop_open(&(struct loop_opts){.name = "node"}, &loop), 0);
	expect_int(disk_open(loop, "d0", &(struct disk_opts){0}, &disk), 0);
}

static void start(struct dio *x, void (*op)(struct disk *, struct disk_io *), void *at, uint64_t bytes,
		  uint64_t offset_bytes)
{
	*x = (struct dio){.io = {.op.done = dio_done, .iov_count = 1, .bytes = bytes,
		.offset_bytes = offset_bytes}, .iov = {at, bytes}};
	x->io.iov = &x->iov;
	op(disk, &x->io);
}

static int now(void (*op)(struct disk *, struct disk_io *), void *at, uint64_t bytes,
	       uint64_t offset_bytes)
{
	struct dio x;

	start(&x, op, at, bytes, offset_bytes);
	while (x.calls == 0)
		if (!sim_step())
			return 1;
	expect_int(x.calls, 1);
	return x.res;
}

/* ---- a seed fixes the run ---- */

static struct sock *far_end;

static void on_accept(void *arg, struct sock *sock)
{
	far_end = sock;
}

static void dial_start(struct dial *x, struct loop *from, uint16_t port)
{
	*x = (struct dial){.c = {.op.done = dial_done, .addr = {.host = "a", .port = port}}};
	sock_connect(from, &x->c);
}

static uint64_t busy_run(uint64_t seed)
{
	struct sock_listener *l = NULL;
	static struct dio w[16];
	static struct sio out, in;
	struct loop *other = NULL;
	struct dial x;
	uint64_t trace;

	begin((struct sim_opts){.seed = seed, .fault_per_million = {[SIM_DISK_WRITE_EIO] = 200000,
		[SIM_NET_DELAY] = 100000, [SIM_DISK_SLOW] = 100000}});
	expect_int(loop_open(&(struct loop_opts){.name = "other"}, &other), 0);
	expect_int(sock_listen(loop, &(struct sock_addr){.host = "a"}, on_accept, NULL, &l), 0);
	dial_start(&x, other, sock_listener_port(l));
	for (unsigned i = 0; i < 16; i++)
		start(&w[i], disk_write, page, 16 * ALIGN, i * 16 * (uint64_t)ALIGN);
	while (x.calls == 0)
		expect(sim_step());
	out = (struct sio){.io = {.op.done = sio_done, .iov_count = 1, .bytes = 65536},
		.iov = {page, 65536}};
	out.io.iov = &out.iov;
	in = out;
	in.io.iov = &in.iov;
	in.io.all = true;
	in.iov.iov_base = malloc(65536);
	sock_send(x.c.sock, &out.io);
	sock_recv(far_end, &in.io);
	while (sim_step())
		;
	expect_int(in.res, 65536);
	expect_mem(in.iov.iov_base, page, 65536);
	free(in.iov.iov_base);
	trace = sim_trace() ^ sim_now_ns();
	end();
	return trace;
}

TEST(one_seed_is_one_run_and_another_seed_another)
{
	uint64_t first = busy_run(1);

	expect(busy_run(2) != first);
	expect(busy_run(1) == first);
	expect(busy_run(1) == first);
}

/* ---- crashes ---- */

TEST(a_kill_keeps_completed_writes_and_a_power_cut_keeps_flushed_ones)
{
	unsigned lost = 0, kept = 0, mixed = 0;

	for (uint64_t seed = 1; seed <= 60; seed++) {
		bool power_cut = seed % 2;
		uint8_t *medium;
		unsigned same = 0;

		begin((struct sim_opts){.seed = seed});
		expect_int(now(disk_write, page, 8 * ALIGN, 0), 0);
		expect_int(now(disk_flush, NULL, 0, 0), 0);
		expect_int(now(disk_write, page, 8 * ALIGN, 8 * ALIGN), 0);
		sim_crash(&loop, !power_cut);
		expect(loop == NULL);
		restart();
		medium = sim_disk_bytes("d0", NULL);
		expect_mem(medium, page, 8 * ALIGN);
		for (unsigned i = 0; i < 64; i++) {
			const uint8_t *at = medium + 8 * ALIGN + i * 512;
			static const uint8_t zero[512];

			if (memcmp(at, page + i * 512, 512) == 0)
				same++;
			else
				expect_mem(at, zero, 512);      /* old or new, nothing else */
		}
		if (power_cut) {
			lost += same == 0;
			kept += same == 64;
			mixed += same > 0 && same < 64;
		} else {
			expect_int(same, 64);
		}
		end();
	}
	expect(lost > 0 && kept > 0 && mixed > 0);
}

TEST(a_power_cut_may_bring_back_any_content_since_the_flush)
{
	unsigned seen[3] = {0};

	for (uint64_t seed = 1; seed <= 80; seed++) {
		const uint8_t *medium;

		begin((struct sim_opts){.seed = seed});
		for (unsigned i = 0; i < 3; i++) {
			memset(page, (int)i + 1, ALIGN);
			expect_int(now(disk_write, page, ALIGN, 0), 0);
			if (i == 0)
				expect_int(now(disk_flush, NULL, 0, 0), 0);
		}
		sim_crash(&loop, false);
		medium = sim_disk_bytes("d0", NULL);
		for (unsigned s = 0; s < 8; s++) {
			expect(medium[s * 512] >= 1 && medium[s * 512] <= 3);
			seen[medium[s * 512] - 1]++;
		}
		end();
	}
	expect(seen[0] > 0 && seen[1] > 0 && seen[2] > 0);
}

TEST(a_flush_covers_only_what_had_completed_when_it_was_submitted)
{
	unsigned lost = 0;

	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct dio flush, late;

		begin((struct sim_opts){.seed = seed});
		expect_int(now(disk_write, page, ALIGN, 0), 0);
		start(&late, disk_write, page, ALIGN, ALIGN);
		start(&flush, disk_flush, NULL, 0, 0);
		while (flush.calls == 0 || late.calls == 0)
			expect(sim_step());
		sim_crash(&loop, false);
		expect_mem(sim_disk_bytes("d0", NULL), page, ALIGN);
		lost += memcmp(sim_disk_bytes("d0", NULL) + ALIGN, page, ALIGN) != 0;
		end();
	}
	expect(lost > 0);
}

TEST(a_write_in_flight_at_a_kill_is_absent_torn_or_whole)
{
	unsigned absent = 0, torn = 0, whole = 0;

	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct dio x;
		unsigned same = 0;
		const uint8_t *medium;

		begin((struct sim_opts){.seed = seed});
		start(&x, disk_write, page, 16 * ALIGN, 0);
		sim_crash(&loop, true);
		expect_int(x.calls, 0);
		medium = sim_disk_bytes("d0", NULL);
		for (unsigned i = 0; i < 128; i++)
			same += memcmp(medium + i * 512, page + i * 512, 512) == 0;
		absent += same == 0;
		whole += same == 128;
		torn += same > 0 && same < 128;
		expect(sim_fault_hits(SIM_DISK_WRITE_TORN) > 0 || same == 0 || same == 128);
		end();
	}
	expect(absent > 5 && torn > 5 && whole > 5);
}

TEST(a_crash_strikes_at_exactly_the_nth_write)
{
	for (uint64_t n = 1; n <= 6; n++) {
		struct loop *who;
		uint64_t i = 0;

		begin((struct sim_opts){.seed = n});
		sim_crash_at_write(n);
		while (now(i % 2 ? disk_flush : disk_write, page, ALIGN, 0) == 0)
			i++;
		expect_int(i, n - 1);
		expect_int(sim_writes(), n);
		who = sim_crashed();
		expect(who == loop && !sim_step());
		expect_int(loop_turn(loop, NS_PER_S), 0);
		expect_int(disk_write_now(disk, page, ALIGN, 0), -EIO);
		expect_int(sim_writes(), n);            /* the dead write nothing */
		sim_crash(&who, true);
		expect(sim_crashed() == NULL);
		restart();
		expect_int(now(disk_write, page, ALIGN, 0), 0);
		end();
	}
}

TEST(a_blocking_write_crashes_too)
{
	begin((struct sim_opts){0});
	sim_crash_at_write(2);
	expect_int(disk_write_now(disk, page, ALIGN, 0), 0);
	expect_int(disk_flush_now(disk), -EIO);
	expect(sim_crashed() == loop);
	sim_crash(&loop, true);
	restart();
	expect_mem(sim_disk_bytes("d0", NULL), page, ALIGN);
	disk_close(&disk);
	loop_close(&loop);
	end();
}

TEST(a_dead_nodes_callbacks_never_run)
{
	struct dio x;
	struct loop_timer t;

	begin((struct sim_opts){0});
	start(&x, disk_write, page, ALIGN, 0);
	loop_timer_init(&t, (void (*)(struct loop_timer *))abort);
	loop_timer_set(loop, &t, loop_now_ns(loop) + 1000);
	sim_crash(&loop, true);
	while (sim_step())
		;
	expect_int(x.calls, 0);
	end();
}

/* ---- one fault of each kind ---- */

#define WITH(kind) ((struct sim_opts){.fault_per_million = {[kind] = ALL_RATE}})

TEST(read_faults_fail_flip_or_misdirect)
{
	uint8_t *in = NULL;
	unsigned differ = 0;

	expect_int(posix_memalign((void **)&in, ALIGN, 2 * ALIGN), 0);
	begin(WITH(SIM_DISK_READ_EIO));
	expect_int(now(disk_read, in, ALIGN, 0), -EIO);
	expect_int(disk_read_now(disk, in, ALIGN, 0), -EIO);
	expect_int(sim_fault_hits(SIM_DISK_READ_EIO), 2);
	expect_int(disk_counts(disk)->errors, 2);
	sim_faults_on(false);
	expect_int(now(disk_read, in, ALIGN, 0), 0);
	end();

	begin(WITH(SIM_DISK_READ_BAD));
	expect_int(now(disk_write, page, 2 * ALIGN, 0), 0);
	expect_int(now(disk_read, in, 2 * ALIGN, 0), 0);
	for (unsigned i = 0; i < 2 * ALIGN; i++)
		differ += (unsigned)__builtin_popcount(in[i] ^ page[i]);
	expect_int(differ, 1);
	end();

	begin(WITH(SIM_DISK_READ_MISDIRECT));
	for (unsigned i = 0; i < 16; i++) {
		memset(page, (int)i + 1, ALIGN);
		expect_int(now(disk_write, page, ALIGN, i * (uint64_t)ALIGN), 0);
	}
	differ = 0;
	for (unsigned i = 0; i < 16; i++) {
		expect_int(now(disk_read, in, ALIGN, i * (uint64_t)ALIGN), 0);
		expect(in[0] >= 1 && in[0] <= 16);
		differ += in[0] != i + 1;
	}
	expect(differ > 8);
	end();
	free(in);
}

TEST(write_faults_fail_lose_or_misdirect)
{
	unsigned elsewhere = 0;

	begin(WITH(SIM_DISK_WRITE_EIO));
	expect_int(now(disk_write, page, ALIGN, 0), -EIO);
	expect_int(sim_fault_hits(SIM_DISK_WRITE_EIO), 1);
	end();
	begin(WITH(SIM_DISK_ENOSPC));
	expect_int(now(disk_write, page, ALIGN, 0), -ENOSPC);
	expect_int(sim_disk_bytes("d0", NULL)[0], 0);
	end();
	begin(WITH(SIM_DISK_WRITE_LOST));
	page[0] = 1;
	expect_int(now(disk_write, page, ALIGN, 0), 0);
	expect_int(sim_disk_bytes("d0", NULL)[0], 0);
	end();
	begin(WITH(SIM_DISK_WRITE_MISDIRECT));
	memset(page, 7, ALIGN);
	for (unsigned i = 0; i < 8; i++)
		expect_int(now(disk_write, page, ALIGN, 64 * (uint64_t)ALIGN), 0);
	for (unsigned i = 0; i < DISK_BYTES / ALIGN; i++)
		elsewhere += i != 64 && sim_disk_bytes("d0", NULL)[i * ALIGN] == 7;
	expect(elsewhere > 0);
	end();
	begin(WITH(SIM_DISK_SLOW));
	expect_int(now(disk_write, page, ALIGN, 0), 0);
	expect(sim_now_ns() > NS_PER_S + 5 * NS_PER_MS);
	end();
}

TEST(what_a_failed_flush_lost_no_later_flush_saves)
{
	unsigned lost = 0;

	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct sim_opts opts = WITH(SIM_DISK_FLUSH_EIO);

		opts.seed = seed;
		begin(opts);
		expect_int(now(disk_write, page, ALIGN, 0), 0);
		expect_int(now(disk_flush, NULL, 0, 0), -EIO);
		sim_faults_on(false);
		expect_int(now(disk_flush, NULL, 0, 0), 0);
		sim_crash(&loop, false);
		lost += memcmp(sim_disk_bytes("d0", NULL), page, ALIGN) != 0;
		end();
	}
	expect(lost > 0);
}

TEST(a_drive_that_hangs_answers_when_revived_and_one_that_is_gone_at_once)
{
	struct dio x;

	begin((struct sim_opts){0});
	sim_disk_mode("d0", SIM_DISK_HANGS);
	start(&x, disk_write, page, ALIGN, 0);
	while (sim_step())
		;
	expect_int(x.calls, 0);
	sim_disk_mode("d0", SIM_DISK_WELL);
	while (sim_step())
		;
	expect_int(x.calls, 1);
	expect_int(x.res, 0);
	sim_disk_mode("d0", SIM_DISK_GONE);
	expect_int(now(disk_read, page, ALIGN, 0), -EIO);
	expect_int(disk_flush_now(disk), -EIO);
	disk_close(&disk);
	expect_int(disk_open(loop, "d0", &(struct disk_opts){0}, &disk), -EIO);
	end();
}

/* ---- the network's faults ---- */

static struct loop *other;
static struct sock_listener *lis;

static void net_begin(struct sim_opts opts)
{
	begin(opts);
	far_end = NULL;
	lis = NULL;
	expect_int(loop_open(&(struct loop_opts){.name = "other"}, &other), 0);
	expect_int(sock_listen(loop, &(struct sock_addr){.host = "a"}, on_accept, NULL, &lis), 0);
}

static int sio_run(struct sock *s, struct sio *x, void (*op)(struct sock *, struct sock_io *), void *at,
		   uint64_t bytes)
{
	*x = (struct sio){.io = {.op.done = sio_done, .iov_count = 1, .bytes = bytes, .all = true},
		.iov = {at, bytes}};
	x->io.iov = &x->iov;
	op(s, &x->io);
	while (x->calls == 0 && sim_step())
		;
	return x->calls == 0 ? 1 : x->res;
}

TEST(network_faults_refuse_reset_flip_and_delay)
{
	struct dial x;
	struct sio out, in;
	uint8_t to[512];
	unsigned differ = 0;

	net_begin(WITH(SIM_NET_REFUSE));
	dial_start(&x, other, sock_listener_port(lis));
	while (sim_step())
		;
	expect_int(x.res, -ECONNRESET);
	expect(far_end == NULL && x.c.sock == NULL);
	end();

	net_begin(WITH(SIM_NET_RESET));
	dial_start(&x, other, sock_listener_port(lis));
	while (sim_step())
		;
	expect_int(x.res, 0);
	expect_int(sio_run(x.c.sock, &out, sock_send, page, 512), -ECONNRESET);
	expect_int(sio_run(far_end, &in, sock_recv, to, 512), -ECONNRESET);
	expect(sim_fault_hits(SIM_NET_RESET) > 0);
	end();

	net_begin(WITH(SIM_NET_FLIP));
	dial_start(&x, other, sock_listener_port(lis));
	while (sim_step())
		;
	expect_int(sio_run(x.c.sock, &out, sock_send, page, 512), 0);
	expect_int(sio_run(far_end, &in, sock_recv, to, 512), 512);
	for (unsigned i = 0; i < 512; i++)
		differ += (unsigned)__builtin_popcount(to[i] ^ page[i]);
	expect(differ >= 1 && differ <= sim_fault_hits(SIM_NET_FLIP));
	end();

	net_begin(WITH(SIM_NET_DELAY));
	dial_start(&x, other, sock_listener_port(lis));
	while (sim_step())
		;
	expect_int(sio_run(x.c.sock, &out, sock_send, page, 512), 0);
	expect_int(sio_run(far_end, &in, sock_recv, to, 512), 512);
	expect_mem(to, page, 512);
	expect(sim_now_ns() > NS_PER_S + 500000);
	end();
}

TEST(a_cut_link_keeps_bytes_and_connects_waiting)
{
	struct dial x, late;
	struct sio out, in;
	uint8_t to[512];

	net_begin((struct sim_opts){0});
	dial_start(&x, other, sock_listener_port(lis));
	while (sim_step())
		;
	sim_link_cut(loop, other, true);
	expect_int(sio_run(x.c.sock, &out, sock_send, page, 512), 0);
	expect_int(sio_run(far_end, &in, sock_recv, to, 512), 1);       /* nothing can happen */
	dial_start(&late, other, sock_listener_port(lis));
	while (sim_step())
		;
	expect_int(late.calls, 0);
	sim_link_cut(loop, other, false);
	while (sim_step())
		;
	expect_int(in.res, 512);
	expect_mem(to, page, 512);
	expect_int(late.calls, 1);
	expect_int(late.res, 0);
	end();
}

TEST(a_connect_over_a_cut_link_ends_at_its_deadline)
{
	struct dial x = {.c = {.op.done = dial_done, .addr = {.host = "a"}}};

	net_begin((struct sim_opts){0});
	x.c.addr.port = sock_listener_port(lis);
	sim_link_cut(loop, other, true);
	x.c.deadline_ns = loop_now_ns(other) + 20 * NS_PER_MS;
	sock_connect(other, &x.c);
	while (sim_step())
		;
	expect_int(x.res, -ETIMEDOUT);
	expect_int(sim_now_ns(), x.c.deadline_ns);
	end();
}

TEST(peers_of_a_dead_node_see_a_reset)
{
	struct dial x;
	struct sio in;
	uint8_t to[16];

	net_begin((struct sim_opts){0});
	dial_start(&x, other, sock_listener_port(lis));
	while (sim_step())
		;
	sim_crash(&loop, true);
	expect_int(sio_run(x.c.sock, &in, sock_recv, to, 16), -ECONNRESET);
	dial_start(&x, other, 40000);
	while (sim_step())
		;
	expect_int(x.res, -ECONNRESET);
	end();
}

TEST(a_sender_waits_while_nobody_reads)
{
	struct dial x;
	struct sio out, in;
	uint8_t *big = malloc(MiB), *to = malloc(MiB);

	kt_noise(big, MiB);
	net_begin((struct sim_opts){0});
	dial_start(&x, other, sock_listener_port(lis));
	while (sim_step())
		;
	expect_int(sio_run(x.c.sock, &out, sock_send, big, MiB), 1);
	expect_int(sio_run(far_end, &in, sock_recv, to, MiB), MiB);
	while (sim_step())
		;
	expect_int(out.res, 0);
	expect_mem(to, big, MiB);
	expect(sim_fault_hits(SIM_NET_SPLIT) > 0);
	end();
	free(big);
	free(to);
}

TEST(every_kind_of_fault_has_a_name)
{
	for (int i = 0; i < SIM_FAULT_COUNT; i++)
		for (int j = 0; j < i; j++)
			expect(strcmp(sim_fault_name((enum sim_fault)i),
				      sim_fault_name((enum sim_fault)j)) != 0);
}
