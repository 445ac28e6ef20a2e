/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's own promises: a seed fixes the run, crashes lose what they may, faults are
 * really hit. */
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
	expect_int(disk_open(loop, "d0", &(struct disk_opts){.create_bytes = DISK_BYTES}, &disk),
		   0);
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

static void start(struct dio *x, void (*op)(struct disk *, struct disk_io *), void *at,
		  uint64_t bytes, uint64_t offset_bytes)
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
		while (flush.calls == 0)
			expect(sim_step());
		if (late.calls == 0) {          /* the other order proves nothing */
			end();
			continue;
		}
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

TEST(a_rotten_sector_fails_reads_until_it_is_written)
{
	begin((struct sim_opts){0});
	expect_int(now(disk_write, page, 4 * ALIGN, 0), 0);
	sim_disk_rot("d0", ALIGN + 100, 1);
	expect_int(now(disk_read, page, ALIGN, 0), 0);
	expect_int(now(disk_read, page, 4 * ALIGN, 0), -EIO);
	expect_int(disk_read_now(disk, page, ALIGN, ALIGN), -EIO);
	expect_int(now(disk_read, page, ALIGN, 2 * ALIGN), 0);
	expect_int(now(disk_write, page, ALIGN, ALIGN), 0);
	expect_int(now(disk_read, page, 4 * ALIGN, 0), 0);
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

static int sio_run(struct sock *s, struct sio *x, void (*op)(struct sock *, struct sock_io *),
		   void *at, uint64_t bytes)
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

TEST(bytes_on_their_way_when_a_link_is_cut_wait_too)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct dial x;
		struct sio out, in;
		uint8_t to[512];

		net_begin((struct sim_opts){.seed = seed});
		dial_start(&x, other, sock_listener_port(lis));
		while (sim_step())
			;
		expect_int(sio_run(x.c.sock, &out, sock_send, page, 512), 0);
		sim_link_cut(loop, other, true);
		expect_int(sio_run(far_end, &in, sock_recv, to, 512), 1);
		sim_link_cut(loop, other, false);
		while (sim_step())
			;
		expect_int(in.res, 512);
		end();
	}
}

TEST(closing_with_bytes_unread_resets_the_peer)
{
	struct dial x;
	struct sio out, in;
	uint8_t to[16];

	for (int unread = 0; unread < 2; unread++) {
		net_begin((struct sim_opts){0});
		dial_start(&x, other, sock_listener_port(lis));
		while (sim_step())
			;
		if (unread)
			expect_int(sio_run(x.c.sock, &out, sock_send, page, 512), 0);
		while (sim_step())
			;
		sock_close(&far_end);
		expect_int(sio_run(x.c.sock, &in, sock_recv, to, 16), unread ? -ECONNRESET : 0);
		end();
	}
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

/* ---- any order of things, many seeds ---- */

enum { VERSIONS_SECTORS = 256, VERSIONS_FLYING = 8 };

/* What each sector may hold: every version from `least` to `most`. A version is stamped on each
 * byte. */
struct version { uint16_t least, most, done; };

static struct version version[VERSIONS_SECTORS];
static uint16_t stamp;

struct vio {
	struct dio d;
	bool flush;
	uint16_t stamp;
	struct version seen[VERSIONS_SECTORS];          /* at submission of a flush */
	uint8_t *buffer;
};

static struct vio vio[VERSIONS_FLYING];

static void vio_done(struct vio *v)
{
	uint64_t first = v->d.io.offset_bytes / 512, end = first + v->d.io.bytes / 512;

	expect_int(v->d.res, 0);
	for (uint64_t i = 0; v->flush && i < VERSIONS_SECTORS; i++)
		if (version[i].least < v->seen[i].done)
			version[i].least = v->seen[i].done;
	for (uint64_t i = first; !v->flush && i < end; i++)
		version[i].done = v->stamp;
}

static void vio_start(struct vio *v, struct prng *p)
{
	uint64_t first = prng_below(p, VERSIONS_SECTORS - 8), count = 1 + prng_below(p, 8);
	bool busy = false;

	v->flush = prng_below(p, 5) == 0;
	memcpy(v->seen, version, sizeof(version));
	if (v->flush) {
		start(&v->d, disk_flush, NULL, 0, 0);
		return;
	}
	/* no two writes of one sector at once */
	for (unsigned i = 0; i < VERSIONS_FLYING; i++) {
		const struct disk_io *io = &vio[i].d.io;

		busy |= &vio[i] != v && vio[i].d.calls == 0 && !vio[i].flush && io->bytes > 0 &&
			first * 512 < io->offset_bytes + io->bytes &&
			io->offset_bytes < (first + count) * 512;
	}
	if (busy) {
		v->d.calls = 1;
		return;
	}
	v->stamp = ++stamp;
	for (uint64_t i = 0; i < count * 256; i++)
		memcpy(v->buffer + i * 2, &v->stamp, 2);
	for (uint64_t i = first; i < first + count; i++)
		version[i].most = v->stamp;
	start(&v->d, disk_write, v->buffer, count * 512, first * 512);
}

static void versions_check(bool power_cut)
{
	const uint8_t *medium = sim_disk_bytes("d0", NULL);

	for (unsigned i = 0; i < VERSIONS_SECTORS; i++) {
		uint16_t first, last;

		memcpy(&first, medium + i * 512, 2);
		memcpy(&last, medium + i * 512 + 510, 2);
		expect_int(first, last);                /* a sector is never torn inside */
		expect(first >= (power_cut ? version[i].least : version[i].done));
		expect(first <= version[i].most);
		version[i].most = version[i].done = first;
		if (power_cut)
			version[i].least = first;       /* all is durable that is there */
	}
}

TEST(after_any_crash_a_sector_holds_a_version_that_it_may)
{
	for (unsigned i = 0; i < VERSIONS_FLYING; i++)
		expect_int(posix_memalign((void **)&vio[i].buffer, 4096, 4096), 0);
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct prng p = prng_of(seed);

		begin((struct sim_opts){.seed = seed, .disk_align_bytes = 512});
		memset(version, 0, sizeof(version));
		stamp = 0;
		for (unsigned round = 0; round < 10; round++) {
			bool power_cut = prng_below(&p, 2);

			for (unsigned i = 0; i < VERSIONS_FLYING; i++) {
				vio[i].d = (struct dio){.calls = 1};
				vio[i].flush = true;    /* nothing in flight yet */
			}
			for (uint64_t n = prng_below(&p, 60); n > 0; n--) {
				struct vio *v = &vio[prng_below(&p, VERSIONS_FLYING)];

				while (v->d.calls == 0) {
					expect(sim_step());
					for (unsigned i = 0; i < VERSIONS_FLYING; i++)
						if (vio[i].d.calls == 1 && vio[i].d.io.op.done) {
							vio_done(&vio[i]);
							vio[i].d.io.op.done = NULL;
						}
				}
				vio_start(v, &p);
			}
			sim_crash(&loop, !power_cut);
			versions_check(power_cut);
			restart();
		}
		end();
	}
	for (unsigned i = 0; i < VERSIONS_FLYING; i++)
		free(vio[i].buffer);
}

/* One direction of a stream: what was queued, what came. */
enum { FLOW_SENDS = 24, FLOW_BYTES = 40000 };
struct flow {
	struct sock **from, **to;
	struct sio out[FLOW_SENDS], in;
	unsigned started, ended;
	uint64_t queued, sent, got;
	bool over;
};

static uint8_t flow_byte(uint64_t at)
{
	return (uint8_t)(at * 2654435761u >> 13);
}

static void flow_send(struct flow *f, struct prng *p)
{
	struct sio *x = &f->out[f->started++];
	uint64_t bytes = 1 + prng_below(p, FLOW_BYTES);

	*x = (struct sio){.io = {.op.done = sio_done, .iov_count = 1, .bytes = bytes},
		.iov = {malloc(bytes), bytes}};
	for (uint64_t i = 0; i < bytes; i++)
		((uint8_t *)x->iov.iov_base)[i] = flow_byte(f->queued + i);
	f->queued += bytes;
	x->io.iov = &x->iov;
	sock_send(*f->from, &x->io);
}

static void flow_recv(struct flow *f, struct prng *p)
{
	uint64_t bytes = 1 + prng_below(p, FLOW_BYTES);
	bool all = prng_below(p, 2) && f->queued > f->got;

	if (all && bytes > f->queued - f->got)
		bytes = f->queued - f->got;     /* else it would wait for ever */
	f->in = (struct sio){
		.io = {.op.done = sio_done, .iov_count = 1, .bytes = bytes, .all = all},
		.iov = {malloc(bytes), bytes}};
	f->in.io.iov = &f->in.iov;
	sock_recv(*f->to, &f->in.io);
}

/* Looks at what has ended; buffers are freed at once, so that a late touch is seen. */
static void flow_look(struct flow *f)
{
	while (f->ended < f->started && f->out[f->ended].calls > 0) {
		struct sio *x = &f->out[f->ended++];

		expect_int(x->calls, 1);
		expect(x->res == 0 || x->res == -ECONNRESET || x->res == -ECANCELED);
		f->sent += x->res == 0 ? x->io.bytes : 0;
		free(x->iov.iov_base);
	}
	if (f->in.calls == 0 || f->in.iov.iov_base == NULL)
		return;
	expect_int(f->in.calls, 1);
	if (f->in.res > 0) {
		for (int i = 0; i < f->in.res; i++)
			expect_int(((uint8_t *)f->in.iov.iov_base)[i],
				   flow_byte(f->got + (uint64_t)i));
		f->got += (uint64_t)f->in.res;
		expect(f->got <= f->queued);
	}
	f->over |= f->in.res <= 0;
	free(f->in.iov.iov_base);
	f->in.iov.iov_base = NULL;
}

static void flow_idle(struct flow *f)
{
	expect_int(f->ended, f->started);
	expect(f->in.iov.iov_base == NULL);
}

static void streams_run(uint64_t seed, bool faults)
{
	static struct flow f[2];
	struct prng p = prng_of(seed * 77);
	struct sim_opts opts = {.seed = seed};
	struct sock *tip[2];
	struct dial x;

	opts.fault_per_million[SIM_NET_DELAY] = 50000;
	opts.fault_per_million[SIM_NET_RESET] = faults ? 2000 : 0;
	net_begin(opts);
	dial_start(&x, other, sock_listener_port(lis));
	while (sim_step())
		;
	expect_int(x.res, 0);
	tip[0] = x.c.sock;
	tip[1] = far_end;
	for (unsigned i = 0; i < 2; i++)
		f[i] = (struct flow){.from = &tip[i], .to = &tip[1 - i]};
	for (unsigned step = 0; step < 3000; step++) {
		struct flow *w = &f[prng_below(&p, 2)];
		uint64_t what = prng_below(&p, 100);

		if (what < 10 && w->started < FLOW_SENDS && *w->from != NULL)
			flow_send(w, &p);
		else if (what < 40 && w->in.iov.iov_base == NULL && !w->over && *w->to != NULL)
			flow_recv(w, &p);
		else if (what == 40)
			sim_link_cut(loop, other, prng_below(&p, 3) == 0);
		else if (what == 41 && faults && step > 1000 && *w->from != NULL)
			sock_shutdown(*w->from);
		else if (what == 42 && faults && step > 1500 && *w->from != NULL)
			sock_close(w->from);
		else
			sim_step();
		flow_look(&f[0]);
		flow_look(&f[1]);
	}
	sim_link_cut(loop, other, false);
	for (bool moved = true; moved;) {
		moved = false;
		while (sim_step())
			;
		for (unsigned i = 0; i < 2; i++) {
			flow_look(&f[i]);
			if (!faults && f[i].in.iov.iov_base == NULL && f[i].got < f[i].queued) {
				flow_recv(&f[i], &p);
				moved = true;
			}
		}
	}
	for (unsigned i = 0; !faults && i < 2; i++) {   /* nothing may be missing */
		expect_int(f[i].sent, f[i].queued);
		expect_int(f[i].got, f[i].queued);
	}
	for (unsigned i = 0; i < 2; i++)
		if (tip[i] != NULL)
			sock_close(&tip[i]);
	while (sim_step())
		;
	for (unsigned i = 0; i < 2; i++) {
		flow_look(&f[i]);
		flow_idle(&f[i]);
	}
	sock_listener_close(&lis);
	disk_close(&disk);
	loop_close(&other);
	loop_close(&loop);
	end();
}

TEST(streams_deliver_each_byte_once_and_in_order)
{
	for (uint64_t seed = 1; seed <= 40; seed++)
		streams_run(seed, false);
}

TEST(streams_deliver_a_prefix_whatever_happens)
{
	for (uint64_t seed = 1; seed <= 150; seed++)
		streams_run(seed, true);
}

TEST(every_kind_of_fault_has_a_name)
{
	for (int i = 0; i < SIM_FAULT_COUNT; i++)
		for (int j = 0; j < i; j++)
			expect(strcmp(sim_fault_name((enum sim_fault)i),
				      sim_fault_name((enum sim_fault)j)) != 0);
}

/* ---- several loops of one process ---- */

static unsigned heard_count, heard[400];

struct word { struct msg msg; unsigned number; };

static void word_run(struct loop *here, struct msg *m)
{
	expect(loop_here(here));
	heard[heard_count++] = container_of(m, struct word, msg)->number;
}

struct speaker { struct loop_timer timer; struct loop *to; struct word *word; };

static void speak(struct loop_timer *t)
{
	struct speaker *s = container_of(t, struct speaker, timer);

	for (unsigned i = 0; i < 100; i++)
		loop_post(s->to, &s->word[i].msg);
}

TEST(messages_of_a_sender_keep_their_order_and_those_of_two_do_not)
{
	static struct word word[200];
	struct loop *from[2];
	struct speaker s[2];
	unsigned next[2] = {0, 100}, swaps = 0;

	begin((struct sim_opts){0});
	heard_count = 0;
	for (unsigned i = 0; i < 200; i++)
		word[i] = (struct word){.msg.run = word_run, .number = i};
	for (unsigned i = 0; i < 2; i++) {
		expect_int(loop_open(&(struct loop_opts){.name = "from"}, &from[i]), 0);
		sim_join(from[i], loop);
		s[i] = (struct speaker){.to = loop, .word = &word[100 * i]};
		loop_timer_init(&s[i].timer, speak);
		loop_timer_set(from[i], &s[i].timer, sim_now_ns() + 1000);
	}
	while (heard_count < 200)
		expect(sim_step());
	for (unsigned i = 0; i < 200; i++) {
		expect_int(heard[i], next[heard[i] >= 100]);
		next[heard[i] >= 100]++;
		swaps += i > 0 && (heard[i] >= 100) != (heard[i - 1] >= 100);
	}
	expect(swaps > 1);
	for (unsigned i = 0; i < 2; i++)
		loop_close(&from[i]);
	disk_close(&disk);
	loop_close(&loop);
	end();
}

static void tick(struct loop_timer *t)
{
	heard_count++;
}

TEST(a_crash_takes_all_loops_of_the_process_and_no_other)
{
	struct loop *second, *stranger;
	struct loop_timer mine, its, theirs;
	struct word w = {.msg.run = word_run};

	begin((struct sim_opts){0});
	heard_count = 0;
	expect_int(loop_open(&(struct loop_opts){.name = "second"}, &second), 0);
	expect_int(loop_open(&(struct loop_opts){.name = "stranger"}, &stranger), 0);
	sim_join(second, loop);
	loop_timer_init(&mine, tick);
	loop_timer_init(&its, tick);
	loop_timer_init(&theirs, tick);
	loop_timer_set(loop, &mine, sim_now_ns() + 1000);
	loop_timer_set(second, &its, sim_now_ns() + 1000);
	loop_timer_set(stranger, &theirs, sim_now_ns() + 1000);
	loop_post(second, &w.msg);
	sim_crash(&second, true);
	while (sim_step())
		;
	expect_int(heard_count, 1);
	loop_close(&stranger);
	end();
}
