/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What loop.h, disk.h and sock.h promise, held against both sides of the seam: built once with the
 * kernel's ring, once (KVOF_LOOP_SIM) with the simulator.
 */
#include <errno.h>
#include <unistd.h>

#include "base/must.h"
#include "base/prng.h"
#include "kt.h"
#include "loop/disk.h"
#include "loop/loop.h"
#include "loop/sock.h"
#ifdef KVOF_LOOP_SIM
#include "loop/sim.h"
#endif

#define ALIGN 4096u
#define DISK_BYTES (4 * MiB)
#define WAIT_NS (10 * NS_PER_S)         /* a turn that finds nothing to do for so long has failed */

static struct loop *loop;
static char path[64];

static void begin(void)
{
#ifdef KVOF_LOOP_SIM
	expect_int(sim_begin(&(struct sim_opts){.seed = 42}), 0);
	snprintf(path, sizeof(path), "drive0");
#else
	snprintf(path, sizeof(path), "/tmp/kvof-loop-test-%d", (int)getpid());
	unlink(path);
#endif
	expect_int(loop_open(&(struct loop_opts){.name = "test"}, &loop), 0);
	expect(loop_here(loop));
}

static void end(void)
{
	loop_close(&loop);
	expect(loop == NULL);
#ifdef KVOF_LOOP_SIM
	sim_end();
#else
	unlink(path);
#endif
}

/* ---- operations that remember how they ended ---- */

static unsigned done_count;

struct want {
	struct loop_op *op;
	unsigned calls, order;
	int res;
};

struct soon { struct loop_op op; struct want want; };
struct dio { struct disk_io io; struct want want; struct iovec iov[8]; };
struct sio { struct sock_io io; struct want want; struct iovec iov[8]; };
struct dial { struct sock_connect c; struct want want; };

static void want_done(struct want *w, int res)
{
	w->calls++;
	w->res = res;
	w->order = done_count++;
}

static void soon_done(struct loop_op *op, int res)
{
	want_done(&container_of(op, struct soon, op)->want, res);
}

static void dio_done(struct loop_op *op, int res)
{
	want_done(&container_of(op, struct dio, io.op)->want, res);
}

static void sio_done(struct loop_op *op, int res)
{
	want_done(&container_of(op, struct sio, io.op)->want, res);
}

static void dial_done(struct loop_op *op, int res)
{
	want_done(&container_of(op, struct dial, c.op)->want, res);
}

static int wait_for(struct want *w)
{
	while (w->calls == 0)
		if (loop_turn(loop, WAIT_NS) == 0)
			fail_msg("nothing happened");
	expect_int(w->calls, 1);
	return w->res;
}

static void *pages(size_t bytes)
{
	void *at = NULL;

	expect_int(posix_memalign(&at, ALIGN, bytes), 0);
	kt_noise(at, bytes);
	return at;
}

/* ---- loop ---- */

TEST(soon_completes_later_and_in_order)
{
	struct soon s[3] = {{.op.done = soon_done}, {.op.done = soon_done}, {.op.done = soon_done}};

	begin();
	done_count = 0;
	for (int i = 0; i < 3; i++)
		loop_soon(loop, &s[i].op, -i);
	expect_int(done_count, 0);      /* never from inside the call */
	expect_int(wait_for(&s[2].want), -2);
	for (int i = 0; i < 3; i++) {
		expect_int(s[i].want.res, -i);
		expect_int(s[i].want.order, i);
	}
	end();
}

struct again { struct loop_op op; int left; };

static void again_done(struct loop_op *op, int res)
{
	struct again *a = container_of(op, struct again, op);

	if (--a->left > 0)
		loop_soon(loop, op, 0);
}

TEST(a_callback_may_start_its_own_operation_again)
{
	struct again a = {.op.done = again_done, .left = 1000};

	begin();
	loop_soon(loop, &a.op, 0);
	while (a.left > 0)
		expect(loop_turn(loop, WAIT_NS) <= LOOP_TURN_DONE_MAX);
	end();
}

struct note { struct msg msg; int number; };
static int notes[100], note_count;

static void note_run(struct loop *here, struct msg *m)
{
	expect(here == loop && loop_here(here));
	notes[note_count++] = container_of(m, struct note, msg)->number;
}

TEST(messages_run_in_the_order_they_were_posted)
{
	struct note n[100];

	begin();
	note_count = 0;
	for (int i = 0; i < 100; i++) {
		n[i] = (struct note){.msg.run = note_run, .number = i};
		loop_post(loop, &n[i].msg);
	}
	while (note_count < 100)
		expect(loop_turn(loop, WAIT_NS) > 0);
	for (int i = 0; i < 100; i++)
		expect_int(notes[i], i);
	end();
}

struct alarm { struct loop_timer t; uint64_t want_ns; int number; };
static struct alarm alarms[1000];
static int fired[1000], fired_count;
static bool fired_early;

static void alarm_fire(struct loop_timer *t)
{
	struct alarm *a = container_of(t, struct alarm, t);

	expect(!loop_timer_is_set(t));
	fired_early |= loop_now_ns(loop) < a->want_ns;
	fired[fired_count++] = a->number;
}

TEST(a_thousand_timers_fire_in_the_order_of_their_times)
{
	struct prng p = prng_of(7);
	uint64_t now_ns;

	begin();
	now_ns = loop_now_ns(loop);
	fired_count = 0;
	fired_early = false;
	for (int i = 0; i < 1000; i++) {
		alarms[i].number = i;
		alarms[i].want_ns = now_ns + prng_below(&p, 200) * 100000;
		loop_timer_init(&alarms[i].t, alarm_fire);
		loop_timer_set(loop, &alarms[i].t, alarms[i].want_ns);
	}
	for (int i = 0; i < 1000; i += 3)       /* every third is moved, every fifth taken back */
		loop_timer_set(loop, &alarms[i].t, alarms[i].want_ns += 5000000);
	for (int i = 0; i < 1000; i += 5)
		loop_timer_cancel(loop, &alarms[i].t);
	while (fired_count < 800)
		expect(loop_turn(loop, WAIT_NS) > 0);
	expect_int(loop_turn(loop, NS_PER_MS), 0);
	expect(!fired_early);
	for (int i = 1; i < 800; i++) {
		const struct alarm *a = &alarms[fired[i - 1]], *b = &alarms[fired[i]];

		expect(a->want_ns <= b->want_ns);
		expect(b->number % 5 != 0 && !loop_timer_is_set(&b->t));
	}
	end();
}

TEST(timers_of_one_instant_fire_in_the_order_they_were_set)
{
	begin();
	fired_count = 0;
	for (int i = 0; i < 100; i++) {
		alarms[i].number = i;
		alarms[i].want_ns = loop_now_ns(loop) + NS_PER_MS;
		loop_timer_init(&alarms[i].t, alarm_fire);
		loop_timer_set(loop, &alarms[i].t, alarms[i].want_ns);
	}
	while (fired_count < 100)
		expect(loop_turn(loop, WAIT_NS) > 0);
	for (int i = 0; i < 100; i++)
		expect_int(fired[i], i);
	end();
}

TEST(a_turn_with_nothing_to_do_waits_and_comes_back)
{
	uint64_t before_ns;

	begin();
	expect_int(loop_turn(loop, 0), 0);
	before_ns = loop_now_ns(loop);
	expect_int(loop_turn(loop, 3 * NS_PER_MS), 0);
	expect_int(loop_turn(loop, 0), 0);
	expect(loop_now_ns(loop) >= before_ns + 3 * NS_PER_MS);
	end();
}

static void alarm_stop(struct loop_timer *t)
{
	loop_stop(loop);
}

TEST(run_ends_when_stopped)
{
	begin();
	loop_timer_init(&alarms[0].t, alarm_stop);
	loop_timer_set(loop, &alarms[0].t, loop_now_ns(loop) + NS_PER_MS);
	expect_int(loop_run(loop), 0);
	expect(!loop_timer_is_set(&alarms[0].t));
	end();
}

TEST(buffers_are_aligned_and_can_be_written_to_the_last_byte)
{
	for (uint64_t bytes = 1; bytes <= 5 * MiB; bytes = bytes * 7 + 1) {
		uint8_t *at = loop_buffer_map(bytes);

		expect(at != NULL && ((uintptr_t)at & 4095) == 0);
		memset(at, 0x5a, bytes);
		expect(at[bytes - 1] == 0x5a);
		loop_buffer_unmap(at, bytes);
	}
	loop_buffer_unmap(NULL, 1);
}

/* ---- disk ---- */

static struct disk *drive(uint64_t create_bytes)
{
	struct disk *d = NULL;

	expect_int(disk_open(loop, path, &(struct disk_opts){.create_bytes = create_bytes}, &d), 0);
	return d;
}

static int transfer(struct disk *d, void (*start)(struct disk *, struct disk_io *), void *at,
		    uint64_t bytes, uint64_t offset_bytes)
{
	struct dio x = {.io.op.done = dio_done};

	x.iov[0] = (struct iovec){at, bytes};
	x.io.iov = x.iov;
	x.io.iov_count = 1;
	x.io.bytes = bytes;
	x.io.offset_bytes = offset_bytes;
	start(d, &x.io);
	expect_int(x.want.calls, 0);
	return wait_for(&x.want);
}

TEST(a_missing_drive_is_enoent_unless_it_may_be_made)
{
	struct disk *d = NULL;

	begin();
	expect_int(disk_open(loop, path, &(struct disk_opts){0}, &d), -ENOENT);
	expect(d == NULL);
	d = drive(DISK_BYTES);
	expect_int(disk_info(d)->bytes, DISK_BYTES);
	expect(disk_info(d)->align_bytes == 512 || disk_info(d)->align_bytes == 4096);
	expect(!disk_info(d)->memory);
	expect_str(disk_info(d)->path, path);
	disk_close(&d);
	expect(d == NULL);
	d = drive(8 * MiB);             /* there already: its own size stands */
	expect_int(disk_info(d)->bytes, DISK_BYTES);
	disk_close(&d);
	end();
}

TEST(two_openers_of_a_drive_are_ebusy)
{
	struct disk *d, *other = NULL;

	begin();
	d = drive(DISK_BYTES);
	expect_int(disk_open(loop, path, &(struct disk_opts){0}, &other), -EBUSY);
	expect(other == NULL);
	disk_close(&d);
	d = drive(0);
	disk_close(&d);
	end();
}

TEST(a_drive_below_a_mebibyte_or_no_drive_at_all_is_einval)
{
	struct disk *d = NULL;

	begin();
	expect_int(disk_open(loop, path, &(struct disk_opts){.create_bytes = MiB - 4096}, &d),
		   -EINVAL);
	expect_int(disk_open(loop, "/tmp/", &(struct disk_opts){0}, &d), -EINVAL);
	expect_int(disk_open(loop, "mem", &(struct disk_opts){.memory = true}, &d), -EINVAL);
	expect(d == NULL);
	end();
}

TEST(reads_give_back_what_was_written_and_a_new_drive_is_zero)
{
	struct prng p = prng_of(3);
	uint8_t *out, *in;
	struct disk *d;

	begin();
	d = drive(DISK_BYTES);
	out = pages(MiB);
	in = pages(MiB);
	expect_int(transfer(d, disk_read, in, MiB, MiB), 0);
	for (unsigned i = 0; i < MiB; i++)
		expect(in[i] == 0);
	prng_fill(&p, out, MiB);
	expect_int(transfer(d, disk_write, out, MiB, 3 * MiB), 0);
	expect_int(transfer(d, disk_write, out, ALIGN, 2 * ALIGN), 0);
	kt_noise(in, MiB);
	expect_int(transfer(d, disk_read, in, MiB, 3 * MiB), 0);
	expect_mem(in, out, MiB);
	disk_close(&d);
	d = drive(0);
	expect_int(transfer(d, disk_read, in, ALIGN, 2 * ALIGN), 0);
	expect_mem(in, out, ALIGN);
	expect_int(disk_counts(d)->reads, 1);
	expect_int(disk_counts(d)->read_bytes, ALIGN);
	expect_int(disk_counts(d)->writes, 0);
	disk_close(&d);
	free(out);
	free(in);
	end();
}

TEST(pieces_of_a_buffer_are_filled_in_order)
{
	struct dio x = {.io.op.done = dio_done};
	uint8_t *out, *in;
	struct disk *d;

	begin();
	d = drive(DISK_BYTES);
	out = pages(8 * ALIGN);
	in = pages(8 * ALIGN);
	expect_int(transfer(d, disk_write, out, 8 * ALIGN, 0), 0);
	memset(in, 0, 8 * ALIGN);
	x.iov[0] = (struct iovec){in + 4 * ALIGN, 4 * ALIGN};
	x.iov[1] = (struct iovec){in, ALIGN};
	x.iov[2] = (struct iovec){in + ALIGN, 3 * ALIGN};
	x.io.iov = x.iov;
	x.io.iov_count = 3;
	x.io.bytes = 8 * ALIGN;
	disk_read(d, &x.io);
	expect_int(wait_for(&x.want), 0);
	expect_mem(in + 4 * ALIGN, out, 4 * ALIGN);
	expect_mem(in, out + 4 * ALIGN, 4 * ALIGN);
	disk_close(&d);
	free(out);
	free(in);
	end();
}

TEST(many_operations_in_flight_each_complete_once)
{
	enum { N = 256 };
	static struct dio x[N];
	uint8_t *out, *in;
	struct disk *d;

	begin();
	d = drive(DISK_BYTES);
	out = pages(N * ALIGN);
	in = pages(N * ALIGN);
	for (int pass = 0; pass < 2; pass++) {
		memset(x, 0, sizeof(x));
		for (unsigned i = 0; i < N; i++) {
			x[i].io.op.done = dio_done;
			x[i].iov[0] = (struct iovec){(pass ? in : out) + i * ALIGN, ALIGN};
			x[i].io.iov = x[i].iov;
			x[i].io.iov_count = 1;
			x[i].io.bytes = ALIGN;
			x[i].io.offset_bytes = i * 97 % N * (uint64_t)ALIGN;
			(pass ? disk_read : disk_write)(d, &x[i].io);
		}
		for (unsigned i = 0; i < N; i++)
			expect_int(wait_for(&x[i].want), 0);
	}
	expect_mem(in, out, N * ALIGN);
	expect_int(disk_counts(d)->writes, N);
	expect_int(disk_counts(d)->write_bytes, N * ALIGN);
	expect_int(disk_counts(d)->errors, 0);
	disk_close(&d);
	free(out);
	free(in);
	end();
}

TEST(flush_completes_and_is_counted)
{
	struct dio x = {.io.op.done = dio_done};
	struct disk *d;

	begin();
	d = drive(DISK_BYTES);
	disk_flush(d, &x.io);
	expect_int(wait_for(&x.want), 0);
	expect_int(disk_counts(d)->flushes, 1);
	disk_close(&d);
	end();
}

TEST(discarded_bytes_read_back_as_zeros)
{
	struct dio x = {.io.op.done = dio_done};
	uint8_t *out, *in;
	struct disk *d;

	begin();
	d = drive(DISK_BYTES);
	out = pages(MiB);
	in = pages(MiB);
	expect_int(transfer(d, disk_write, out, MiB, 0), 0);
	x.io.offset_bytes = 64 * KiB;
	x.io.bytes = 512 * KiB;
	disk_discard(d, &x.io);
	expect_int(wait_for(&x.want), 0);
	expect_int(transfer(d, disk_read, in, MiB, 0), 0);
	memset(out + 64 * KiB, 0, 512 * KiB);
	expect_mem(in, out, MiB);
	expect_int(disk_counts(d)->discards, 1);
	disk_close(&d);
	free(out);
	free(in);
	end();
}

TEST(zeroed_bytes_read_back_as_zeros_and_the_others_stay)
{
	struct dio x = {.io.op.done = dio_done};
	uint8_t *out, *in;
	struct disk *d;

	begin();
	d = drive(DISK_BYTES);
	out = pages(MiB);
	in = pages(MiB);
	expect_int(transfer(d, disk_write, out, MiB, 0), 0);
	x.io.offset_bytes = ALIGN;
	x.io.bytes = 300 * KiB;
	disk_zero(d, &x.io);
	expect_int(wait_for(&x.want), 0);
	expect_int(transfer(d, disk_read, in, MiB, 0), 0);
	memset(out + ALIGN, 0, 300 * KiB);
	expect_mem(in, out, MiB);
	expect_int(disk_counts(d)->zeroes, 1);
	disk_close(&d);
	free(out);
	free(in);
	end();
}

TEST(the_blocking_calls_see_the_same_bytes)
{
	uint8_t *out, *in;
	struct disk *d;

	begin();
	d = drive(DISK_BYTES);
	out = pages(2 * ALIGN);
	in = pages(2 * ALIGN);
	expect_int(disk_write_now(d, out, 2 * ALIGN, DISK_BYTES - 2 * ALIGN), 0);
	expect_int(disk_flush_now(d), 0);
	memset(in, 0, 2 * ALIGN);
	expect_int(transfer(d, disk_read, in, 2 * ALIGN, DISK_BYTES - 2 * ALIGN), 0);
	expect_mem(in, out, 2 * ALIGN);
	memset(in, 0, 2 * ALIGN);
	expect_int(disk_read_now(d, in, ALIGN, DISK_BYTES - ALIGN), 0);
	expect_mem(in, out + ALIGN, ALIGN);
	expect_int(disk_counts(d)->write_bytes, 2 * ALIGN);
	expect_int(disk_counts(d)->read_bytes, 3 * ALIGN);
	disk_close(&d);
	free(out);
	free(in);
	end();
}

TEST(a_drive_of_memory_works_and_is_gone_when_closed)
{
	struct disk_opts opts = {.create_bytes = 2 * MiB, .memory = true};
	struct disk *d = NULL, *other = NULL;
	struct dio x = {.io.op.done = dio_done};
	uint8_t *out, *in;

	begin();
	expect_int(disk_open(loop, "mem", &opts, &d), 0);
	expect_int(disk_open(loop, "mem", &opts, &other), 0);   /* each opening is its own */
	expect(disk_info(d)->memory && !disk_info(d)->block_device);
	expect_int(disk_info(d)->bytes, 2 * MiB);
	out = pages(MiB);
	in = pages(MiB);
	expect_int(transfer(d, disk_write, out, MiB, MiB), 0);
	expect_int(transfer(d, disk_read, in, MiB, MiB), 0);
	expect_mem(in, out, MiB);
	x.io.offset_bytes = MiB;
	x.io.bytes = MiB / 2;
	disk_discard(d, &x.io);
	expect_int(wait_for(&x.want), 0);
	expect_int(disk_read_now(d, in, MiB, MiB), 0);
	memset(out, 0, MiB / 2);
	expect_mem(in, out, MiB);
	expect_int(disk_read_now(other, in, MiB, MiB), 0);
	memset(out, 0, MiB);
	expect_mem(in, out, MiB);
	disk_close(&other);
	disk_close(&d);
	expect_int(disk_open(loop, "mem", &opts, &d), 0);
	expect_int(disk_read_now(d, in, MiB, MiB), 0);
	expect_mem(in, out, MiB);
	disk_close(&d);
	free(out);
	free(in);
	end();
}

TEST(a_drive_of_memory_lends_its_bytes_where_they_lie_in_one_run)
{
	struct disk_extent extents[] = {{MiB, MiB / 2}, {0, MiB / 2}};
	uint8_t *out = pages(MiB), *in = pages(MiB), *lent;
	struct disk *d = NULL, *part = NULL;

	begin();
	expect_int(disk_open(loop, "mem", &(struct disk_opts){.create_bytes = DISK_BYTES,
		.memory = true}, &d), 0);
	expect_int(disk_open_part(loop, d, extents, 2, &part), 0);
	expect_int(transfer(part, disk_write, out, MiB, 0), 0);
	lent = disk_lend(part, 0, MiB / 2);
	must(lent != NULL);
	expect_mem(lent, out, MiB / 2);
	expect_int(disk_counts(part)->reads, 1);
	expect_int(disk_counts(part)->read_bytes, MiB / 2);
	expect(disk_lend(part, MiB / 2 - ALIGN, 2 * ALIGN) == NULL);
	expect_int(disk_counts(part)->reads, 1);
	lent = disk_lend(part, MiB - ALIGN, ALIGN);
	must(lent != NULL);
	expect_mem(lent, out + MiB - ALIGN, ALIGN);
	disk_close(&part);
	disk_close(&d);
	d = drive(DISK_BYTES);
	expect(disk_lend(d, 0, ALIGN) == NULL);        /* a file is no memory */
	disk_close(&d);
	free(out);
	free(in);
	end();
}

/* Extents that are neighbours, in disorder, and apart; a transfer over all of them. */
static const struct disk_extent part_extents[] = {
	{2 * MiB, 8 * ALIGN}, {2 * MiB + 8 * ALIGN, 8 * ALIGN}, {MiB, 4 * ALIGN},
	{3 * MiB, MiB / 2},
};

static void part_transfers(struct disk *whole)
{
	const uint64_t bytes = 20 * ALIGN + MiB / 2;
	struct disk *part = NULL, *other = NULL;
	struct dio x = {.io.op.done = dio_done}, z = {.io.op.done = dio_done};
	uint8_t *out = pages(DISK_BYTES), *in = pages(DISK_BYTES);

	expect_int(disk_write_now(whole, out, DISK_BYTES, 0), 0);
	expect_int(disk_open_part(loop, whole, part_extents, 4, &part), 0);
	expect_int(disk_open_part(loop, whole, &(struct disk_extent){0, MiB}, 1, &other), 0);
	expect_int(disk_info(part)->bytes, bytes);
	expect_str(disk_info(part)->path, disk_info(whole)->path);
	expect(!disk_info(part)->made);
	expect_int(transfer(part, disk_read, in, bytes, 0), 0);
	expect_mem(in, out + 2 * MiB, 16 * ALIGN);
	expect_mem(in + 16 * ALIGN, out + MiB, 4 * ALIGN);
	expect_mem(in + 20 * ALIGN, out + 3 * MiB, MiB / 2);
	memset(in, 0x5a, bytes);                /* three pieces over two seams */
	x.iov[0] = (struct iovec){in, 2 * ALIGN};
	x.iov[1] = (struct iovec){in + 2 * ALIGN, 3 * ALIGN};
	x.iov[2] = (struct iovec){in + 5 * ALIGN, 3 * ALIGN};
	x.io.iov = x.iov;
	x.io.iov_count = 3;
	x.io.bytes = 8 * ALIGN;
	x.io.offset_bytes = 14 * ALIGN;
	disk_write(part, &x.io);
	expect_int(wait_for(&x.want), 0);
	memset(out + 2 * MiB + 14 * ALIGN, 0x5a, 2 * ALIGN);
	memset(out + MiB, 0x5a, 4 * ALIGN);
	memset(out + 3 * MiB, 0x5a, 2 * ALIGN);
	z.io.offset_bytes = 15 * ALIGN;         /* zeros over the seam, then one page by discard */
	z.io.bytes = 2 * ALIGN;
	disk_zero(part, &z.io);
	expect_int(wait_for(&z.want), 0);
	memset(out + 2 * MiB + 15 * ALIGN, 0, ALIGN);
	memset(out + MiB, 0, ALIGN);
	expect_int(disk_discard_now(part, 2 * ALIGN, 19 * ALIGN), 0);
	memset(out + MiB + 3 * ALIGN, 0, ALIGN);
	memset(out + 3 * MiB, 0, ALIGN);
	expect_int(disk_flush_now(part), 0);
	expect_int(disk_read_now(whole, in, DISK_BYTES, 0), 0);
	expect_mem(in, out, DISK_BYTES);
	expect_int(disk_read_now(part, in, 6 * ALIGN, 14 * ALIGN), 0);
	expect_mem(in + 2 * ALIGN, out + MiB, 4 * ALIGN);
	expect_int(transfer(other, disk_read, in, MiB, 0), 0);
	expect_mem(in, out, MiB);
	expect_int(disk_counts(part)->writes, 1);
	expect_int(disk_counts(part)->write_bytes, 8 * ALIGN);
	expect_int(disk_counts(other)->reads, 1);
	disk_close(&part);
	disk_close(&other);
	free(out);
	free(in);
}

TEST(a_part_is_a_disk_of_its_own_over_the_extents_it_was_given)
{
	struct disk *d;

	begin();
	d = drive(DISK_BYTES);
	part_transfers(d);
	disk_close(&d);
	expect_int(disk_open(loop, "mem", &(struct disk_opts){.create_bytes = DISK_BYTES,
		.memory = true}, &d), 0);
	part_transfers(d);
	disk_close(&d);
	end();
}

TEST(many_blocking_reads_give_what_one_at_a_time_does)
{
	enum { N = 200 };
	static struct disk_read_now reads[N];
	struct disk *d, *part = NULL;
	uint8_t *out = pages(DISK_BYTES), *in = pages(N * 2 * ALIGN);

	begin();
	d = drive(DISK_BYTES);
	expect_int(disk_write_now(d, out, DISK_BYTES, 0), 0);
	expect_int(disk_open_part(loop, d, part_extents, 4, &part), 0);
	disk_read_many_now(part, reads, 0);
	for (unsigned i = 0; i < N; i++)            /* some of them over a seam */
		reads[i] = (struct disk_read_now){in + i * 2 * ALIGN, 2 * ALIGN,
			i % 100 * ALIGN, 1};
	disk_read_many_now(part, reads, N);
	for (unsigned i = 0; i < N; i++) {
		uint8_t one[2 * ALIGN] __attribute__((aligned(4096)));

		expect_int(reads[i].res, 0);
		expect_int(disk_read_now(part, one, 2 * ALIGN, reads[i].offset_bytes), 0);
		expect_mem(reads[i].into, one, 2 * ALIGN);
	}
	expect_int(disk_counts(part)->reads, 2 * N);
	expect_int(disk_counts(part)->read_bytes, 2 * N * 2 * ALIGN);
	disk_close(&part);
	disk_close(&d);
	free(out);
	free(in);
	end();
}

TEST(reads_of_two_drives_that_were_begun_are_both_right_at_their_ends)
{
	enum { N = 100 };
	static struct disk_read_now of_part[N], of_all[N];
	struct disk *d, *part = NULL;
	struct disk_many *first, *second, *none;
	uint8_t *out = pages(DISK_BYTES), *in = pages(2 * N * ALIGN);

	begin();
	d = drive(DISK_BYTES);
	expect_int(disk_write_now(d, out, DISK_BYTES, 0), 0);
	expect_int(disk_open_part(loop, d, &(struct disk_extent){MiB, MiB}, 1, &part), 0);
	for (unsigned i = 0; i < N; i++) {
		of_part[i] = (struct disk_read_now){in + i * ALIGN, ALIGN, i * ALIGN, 1};
		of_all[i] = (struct disk_read_now){in + (N + i) * ALIGN, ALIGN, i * ALIGN, 1};
	}
	first = disk_read_many_begin(part, of_part, N);
	second = disk_read_many_begin(d, of_all, N);
	none = disk_read_many_begin(d, of_all, 0);
	disk_read_many_end(&none);
	disk_read_many_end(&second);
	disk_read_many_end(&first);
	expect(first == NULL && second == NULL && none == NULL);
	expect_mem(in, out + MiB, N * ALIGN);
	expect_mem(in + N * ALIGN, out, N * ALIGN);
	for (unsigned i = 0; i < N; i++)
		expect(of_part[i].res == 0 && of_all[i].res == 0);
	expect_int(disk_counts(part)->reads, N);
	disk_close(&part);
	disk_close(&d);
	free(out);
	free(in);
	end();
}

TEST(rates_of_drives_are_measured_together_or_not_at_all)
{
	struct disk_probe probe[2] = {{.rate_count = 9}, {.rate_count = 9}};

	begin();
	probe[0].disk = drive(16 * MiB);
	expect_int(disk_open(loop, "mem", &(struct disk_opts){.create_bytes = 16 * MiB,
		.memory = true}, &probe[1].disk), 0);
	probe[0].bytes = probe[1].bytes = 15 * MiB;
	probe[0].offset_bytes = MiB;
	disk_rates_now(probe, 2, NS_PER_MS);
	expect_int(probe[1].rate_count, 0);
	expect(probe[0].rate_count == 0 || probe[0].rate_count == DISK_RATES_MAX);
	for (unsigned i = 0; i < probe[0].rate_count; i++) {
		expect(probe[0].rate[i].bytes_per_s > 0);
		expect(i == 0 || probe[0].rate[i].depth > probe[0].rate[i - 1].depth);
	}
	disk_close(&probe[0].disk);
	disk_close(&probe[1].disk);
	end();
}

TEST(a_part_lives_on_another_loop_than_the_whole)
{
	struct loop *first, *second;
	struct disk *d, *part = NULL;
	uint8_t *out = pages(MiB), *in = pages(MiB);

	begin();
	first = loop;
	d = drive(DISK_BYTES);
	expect_int(loop_open(&(struct loop_opts){.name = "second"}, &second), 0);
	expect_int(disk_open_part(second, d, &(struct disk_extent){2 * MiB, MiB}, 1, &part), 0);
	loop = second;
	expect_int(transfer(part, disk_write, out, MiB, 0), 0);
	loop = first;
	expect_int(transfer(d, disk_read, in, MiB, 2 * MiB), 0);
	expect_mem(in, out, MiB);
	disk_close(&part);
	loop_close(&second);
	disk_close(&d);
	free(out);
	free(in);
	end();
}

TEST(extents_that_are_none_are_refused)
{
	static const struct disk_extent bad[] = {
		{0, 0}, {512, ALIGN}, {0, 512}, {DISK_BYTES, ALIGN},
		{DISK_BYTES - ALIGN, 2 * ALIGN}, {UINT64_MAX - ALIGN + 1, ALIGN},
		{ALIGN, UINT64_MAX - ALIGN + 1},
	};
	struct disk *d, *part = NULL;

	begin();
	d = drive(DISK_BYTES);
	for (unsigned i = 0; i < ARRAY_COUNT(bad); i++)
		expect_int(disk_open_part(loop, d, &bad[i], 1, &part), -EINVAL);
	expect_int(disk_open_part(loop, d, bad, 0, &part), -EINVAL);
	expect(part == NULL);
	disk_close(&d);
	end();
}

/* ---- sock ---- */

static struct sock *accepted_sock;
static unsigned accepted_count;

static void on_accept(void *arg, struct sock *sock)
{
	expect(arg == &accepted_sock && loop_here(loop));
	accepted_sock = sock;
	accepted_count++;
}

static struct sock_listener *listener(void)
{
	struct sock_listener *l = NULL;

	accepted_sock = NULL;
	accepted_count = 0;
	expect_int(sock_listen(loop, &(struct sock_addr){.host = "127.0.0.1"}, on_accept,
			       &accepted_sock, &l),
		   0);
	expect(sock_listener_port(l) != 0);
	return l;
}

static void dial_start(struct dial *x, uint16_t port)
{
	*x = (struct dial){
		.c = {.op.done = dial_done, .addr = {.host = "127.0.0.1", .port = port}}};
	sock_connect(loop, &x->c);
	expect_int(x->want.calls, 0);
}

/* Both ends of a new connection. */
static void pair(struct sock **client, struct sock **server)
{
	struct sock_listener *l = listener();
	struct dial x;

	dial_start(&x, sock_listener_port(l));
	expect_int(wait_for(&x.want), 0);
	*client = x.c.sock;
	while (accepted_count == 0)
		expect(loop_turn(loop, WAIT_NS) > 0);
	*server = accepted_sock;
	sock_listener_close(&l);
	expect(l == NULL && *client != NULL && *server != NULL);
}

static void sio_start(struct sock *s, struct sio *x, bool send, void *at, uint64_t bytes)
{
	*x = (struct sio){.io.op.done = sio_done};
	x->iov[0] = (struct iovec){at, bytes};
	x->io.iov = x->iov;
	x->io.iov_count = 1;
	x->io.bytes = bytes;
	x->io.all = true;
	(send ? sock_send : sock_recv)(s, &x->io);
}

static void drain(struct sock **a, struct sock **b)
{
	sock_close(a);
	sock_close(b);
	expect(*a == NULL && *b == NULL);
	while (loop_turn(loop, NS_PER_MS) > 0)
		;
}

TEST(what_is_sent_arrives_in_order_and_whole)
{
	enum { N = 200 };
	static struct sio out[N], in;
	struct prng p = prng_of(11);
	struct sock *a, *b;
	uint64_t total = 0;
	uint8_t *from, *to;

	begin();
	pair(&a, &b);
	expect(strncmp(sock_peer(a), "127.0.0.1:", 10) == 0);
	from = pages(4 * MiB);
	to = pages(4 * MiB);
	prng_fill(&p, from, 4 * MiB);
	memset(to, 0, 4 * MiB);
	for (int i = 0; i < N; i++) {           /* sizes from 1 byte up, three pieces each */
		uint64_t bytes = 3 + prng_below(&p, i % 10 == 0 ? 100000 : 2000);

		out[i] = (struct sio){.io.op.done = sio_done};
		out[i].iov[0] = (struct iovec){from + total, 1};
		out[i].iov[1] = (struct iovec){from + total + 1, bytes - 2};
		out[i].iov[2] = (struct iovec){from + total + bytes - 1, 1};
		out[i].io.iov = out[i].iov;
		out[i].io.iov_count = 3;
		out[i].io.bytes = bytes;
		total += bytes;
		sock_send(a, &out[i].io);
	}
	must(total <= 4 * MiB);
	sio_start(b, &in, false, to, total);
	expect_int(wait_for(&in.want), total);
	expect_mem(to, from, total);
	for (int i = 0; i < N; i++) {
		expect_int(wait_for(&out[i].want), 0);
		expect(i == 0 || out[i].want.order > out[i - 1].want.order);
	}
	drain(&a, &b);
	free(from);
	free(to);
	end();
}

/* A send of `count` pieces, alone, to a peer that begins to read when all rooms are full. */
static void many_pieces(unsigned count)
{
	struct iovec *iov = calloc(count, sizeof(*iov)), *kept = calloc(count, sizeof(*iov));
	struct prng p = prng_of(count);
	struct sio out = {.io.op.done = sio_done}, in;
	uint8_t *from = pages(16 * MiB), *to = pages(16 * MiB);
	uint64_t total = 0;
	struct sock *a, *b;

	begin();
	pair(&a, &b);
	prng_fill(&p, from, 16 * MiB);
	for (unsigned i = 0; i < count; i++) {
		iov[i] = (struct iovec){from + total, 1 + prng_below(&p, 14 * MiB / count)};
		total += iov[i].iov_len;
	}
	for (unsigned i = 0; i < count / 2; i++) {      /* not in the order of their addresses */
		struct iovec first = iov[i];

		iov[i] = iov[count - 1 - i];
		iov[count - 1 - i] = first;
	}
	memcpy(kept, iov, count * sizeof(*iov));
	out.io.iov = iov;
	out.io.iov_count = count;
	out.io.bytes = total;
	sock_send(a, &out.io);
	for (int i = 0; i < 20; i++)
		loop_turn(loop, 0);
	expect_int(out.want.calls, 0);
	sio_start(b, &in, false, to, total);
	expect_int(wait_for(&in.want), total);
	expect_int(wait_for(&out.want), 0);
	expect_mem(iov, kept, count * sizeof(*iov));
	total = 0;
	for (unsigned i = 0; i < count; i++) {
		expect_mem(to + total, iov[i].iov_base, iov[i].iov_len);
		total += iov[i].iov_len;
	}
	drain(&a, &b);
	free(iov);
	free(kept);
	free(from);
	free(to);
	end();
}

TEST(a_send_of_many_pieces_goes_on_where_it_stopped_and_leaves_them_as_they_are)
{
	many_pieces(70);
	many_pieces(1000);
	many_pieces(1500);              /* more than a kernel takes at once */
}

TEST(a_big_transfer_both_ways_at_once_is_exact)
{
	enum { BYTES = 8 * 1024 * 1024 };
	struct sio out[2], in[2];
	struct sock *s[2];
	uint8_t *from[2], *to[2];

	begin();
	pair(&s[0], &s[1]);
	for (unsigned i = 0; i < 2; i++) {
		struct prng p = prng_of(i + 20);

		from[i] = pages(BYTES);
		to[i] = pages(BYTES);
		prng_fill(&p, from[i], BYTES);
		sio_start(s[i], &out[i], true, from[i], BYTES);
		sio_start(s[1 - i], &in[i], false, to[i], BYTES);
	}
	for (int i = 0; i < 2; i++) {
		expect_int(wait_for(&in[i].want), BYTES);
		expect_int(wait_for(&out[i].want), 0);
		expect_mem(to[i], from[i], BYTES);
		free(from[i]);
		free(to[i]);
	}
	drain(&s[0], &s[1]);
	end();
}

TEST(a_receive_without_all_takes_what_is_there)
{
	uint8_t from[64], to[64];
	struct sio out, in;
	struct sock *a, *b;
	unsigned got = 0;

	begin();
	pair(&a, &b);
	kt_noise(from, 64);
	memset(to, 0, 64);
	sio_start(a, &out, true, from, 10);
	while (got < 10) {
		in = (struct sio){.io = {.op.done = sio_done, .iov = in.iov, .iov_count = 1,
			.bytes = 64 - got}};
		in.iov[0] = (struct iovec){to + got, 64 - got};
		sock_recv(b, &in.io);
		expect(wait_for(&in.want) > 0);
		got += (unsigned)in.want.res;
	}
	expect_int(got, 10);
	expect_mem(to, from, 10);
	expect_int(wait_for(&out.want), 0);
	drain(&a, &b);
	end();
}

TEST(the_end_of_a_stream_is_zero_bytes_or_fewer_than_asked)
{
	uint8_t from[100], to[200];
	struct sio out, in;
	struct sock *a, *b;

	begin();
	pair(&a, &b);
	kt_noise(from, 100);
	memset(to, 0, 200);
	sio_start(b, &in, false, to, 200);
	sio_start(a, &out, true, from, 100);
	expect_int(wait_for(&out.want), 0);
	sock_close(&a);
	expect_int(wait_for(&in.want), 100);
	expect_mem(to, from, 100);
	sio_start(b, &in, false, to, 200);
	expect_int(wait_for(&in.want), 0);
	sock_close(&b);
	end();
}

TEST(closing_ends_each_operation_in_flight_once)
{
	enum { N = 40, BYTES = 1024 * 1024 };
	static struct sio out[N];
	struct sio in;
	struct sock *a, *b;
	uint8_t *from, to[16];
	int cancelled = 0;

	begin();
	pair(&a, &b);
	from = pages(BYTES);
	sio_start(a, &in, false, to, 16);       /* a peer that never sends, never reads */
	for (int i = 0; i < N; i++)
		sio_start(a, &out[i], true, from, BYTES);
	expect_int(loop_turn(loop, NS_PER_MS) > 1000, 0);
	sock_close(&a);
	expect_int(wait_for(&in.want), -ECANCELED);
	for (int i = 0; i < N; i++) {
		int res = wait_for(&out[i].want);

		expect(res == 0 || res == -ECANCELED);
		cancelled += res != 0;
		expect(res != 0 || cancelled == 0);     /* in order: once cancelled, all after it */
	}
	expect(cancelled > 0);
	free(from);                             /* the loop has no eye on it any more (ASan) */
	sock_close(&b);
	end();
}

TEST(closing_at_once_after_a_turn_does_not_lose_an_operation)
{
	uint8_t byte = 1, to[8];
	struct sio out, in;
	struct sock *a, *b;

	begin();
	for (int i = 0; i < 20; i++) {
		pair(&a, &b);
		sio_start(a, &in, false, to, 8);
		sio_start(a, &out, true, &byte, 1);
		if (i % 2)
			loop_turn(loop, 0);
		sock_close(&a);
		expect_int(wait_for(&in.want), -ECANCELED);
		wait_for(&out.want);
		expect(out.want.res == 0 || out.want.res == -ECANCELED);
		sock_close(&b);
	}
	end();
}

TEST(closing_the_loop_waits_for_what_was_cancelled)
{
	static struct sio in[2];
	static uint8_t to[16];
	struct sock *a, *b;

	begin();
	pair(&a, &b);
	sio_start(a, &in[0], false, to, 16);
	sio_start(b, &in[1], false, to, 16);
	loop_turn(loop, 0);
	sock_close(&a);
	sock_close(&b);
	end();
	expect_int(in[0].want.calls, 1);
	expect_int(in[1].want.calls, 1);
}

TEST(shutdown_wakes_both_sides)
{
	struct sio in_a, in_b, out;
	struct sock *a, *b;
	uint8_t to[16], byte = 9;

	begin();
	pair(&a, &b);
	sio_start(a, &in_a, false, to, 16);
	sio_start(b, &in_b, false, to, 16);
	loop_turn(loop, 0);
	sock_shutdown(a);
	expect_int(wait_for(&in_a.want), 0);
	expect_int(wait_for(&in_b.want), 0);
	sio_start(a, &out, true, &byte, 1);
	expect_int(wait_for(&out.want), -ECONNRESET);
	drain(&a, &b);
	end();
}

TEST(shutdown_fails_sends_that_wait)
{
	enum { N = 40, BYTES = 1024 * 1024 };
	static struct sio out[N];
	struct sock *a, *b;
	uint8_t *from;

	begin();
	pair(&a, &b);
	from = pages(BYTES);
	for (int i = 0; i < N; i++)
		sio_start(a, &out[i], true, from, BYTES);
	loop_turn(loop, NS_PER_MS);
	sock_shutdown(a);
	for (int i = 0; i < N; i++)
		wait_for(&out[i].want);
	expect_int(out[N - 1].want.res, -ECONNRESET);
	drain(&a, &b);
	free(from);
	end();
}

TEST(sends_to_a_peer_that_is_gone_fail_as_reset)
{
	struct sock *a, *b;
	struct sio out;
	uint8_t *from;
	int res = 0;

	begin();
	pair(&a, &b);
	from = pages(64 * KiB);
	sock_close(&b);
	for (int i = 0; res == 0 && i < 1000; i++) {
		sio_start(a, &out, true, from, 64 * KiB);
		res = wait_for(&out.want);
		loop_turn(loop, NS_PER_MS);
	}
	expect_int(res, -ECONNRESET);
	sock_close(&a);
	free(from);
	end();
}

TEST(nobody_listening_is_a_reset)
{
	struct sock_listener *l;
	struct dial x;
	uint16_t port;

	begin();
	l = listener();
	port = sock_listener_port(l);
	sock_listener_close(&l);
	loop_turn(loop, NS_PER_MS);
	dial_start(&x, port);
	expect_int(wait_for(&x.want), -ECONNRESET);
	expect(x.c.sock == NULL);
	expect_int(accepted_count, 0);
	end();
}

static void on_accept_close(void *arg, struct sock *sock)
{
	sock_close(&sock);
}

TEST(a_cancelled_connect_completes_once)
{
	struct sock_listener *l = NULL;
	struct dial x;

	begin();
	expect_int(sock_listen(loop, &(struct sock_addr){.host = "127.0.0.1"}, on_accept_close,
			       NULL, &l),
		   0);
	for (int i = 0; i < 10; i++) {
		int res;

		dial_start(&x, sock_listener_port(l));
		sock_connect_cancel(loop, &x.c);
		res = wait_for(&x.want);
		expect(res == -ECANCELED || res == 0);
		expect((res == 0) == (x.c.sock != NULL));
		if (res == 0)
			sock_close(&x.c.sock);
	}
	sock_listener_close(&l);
	end();
}

TEST(a_port_in_use_is_ebusy_and_no_address_einval)
{
	struct sock_listener *l, *other = NULL;
	struct sock_addr addr = {.host = "127.0.0.1"};

	begin();
	l = listener();
	addr.port = sock_listener_port(l);
	expect_int(sock_listen(loop, &addr, on_accept, &accepted_sock, &other), -EBUSY);
	expect_int(sock_listen_try(&addr), -EBUSY);
	expect_int(sock_listen_try(&(struct sock_addr){.host = ""}), -EINVAL);
	expect_int(sock_listen(loop, &(struct sock_addr){.host = ""}, on_accept, &accepted_sock,
			       &other),
		   -EINVAL);
	expect(other == NULL);
	sock_listener_close(&l);
	while (loop_turn(loop, NS_PER_MS) > 0)
		;
	expect_int(sock_listen_try(&addr), 0);  /* and keeps nothing */
	expect_int(sock_listen(loop, &addr, on_accept, &accepted_sock, &other), 0);
	sock_listener_close(&other);
	end();
}

TEST(many_connections_are_accepted_each_once)
{
	enum { N = 100 };
	static struct dial x[N];
	struct sock_listener *l;

	begin();
	l = listener();
	for (int i = 0; i < N; i++) {
		dial_start(&x[i], sock_listener_port(l));
		expect_int(wait_for(&x[i].want), 0);
		while (accepted_count <= (unsigned)i)
			expect(loop_turn(loop, WAIT_NS) > 0);
		sock_close(&accepted_sock);
	}
	expect_int(accepted_count, N);
	for (int i = 0; i < N; i++)
		sock_close(&x[i].c.sock);
	sock_listener_close(&l);
	while (loop_turn(loop, NS_PER_MS) > 0)
		;
	end();
}

static void turn_both(struct loop *other, struct want *w)
{
	for (unsigned i = 0; w->calls == 0 && i < 10000; i++) {
		loop_turn(other, NS_PER_MS);
		loop_turn(loop, 0);
	}
	expect_int(w->calls, 1);
}

TEST(a_sock_goes_on_on_another_loop_with_what_was_not_read_yet)
{
	struct loop *other;
	struct sock *a, *b;
	struct sio out, in, back, got;
	uint8_t *at = pages(4 * ALIGN);

	begin();
	expect_int(loop_open(&(struct loop_opts){.name = "other"}, &other), 0);
#ifdef KVOF_LOOP_SIM
	sim_join(other, loop);
#endif
	pair(&a, &b);
	sio_start(a, &out, true, at, ALIGN);
	expect_int(wait_for(&out.want), 0);
	sock_leave(b);
	sock_join(b, other);
	sio_start(b, &in, false, at + ALIGN, ALIGN);
	turn_both(other, &in.want);
	expect_int(in.want.res, ALIGN);
	expect_mem(at + ALIGN, at, ALIGN);
	sio_start(b, &back, true, at + ALIGN, ALIGN);
	sio_start(a, &got, false, at + 2 * ALIGN, ALIGN);
	turn_both(other, &got.want);
	expect_mem(at + 2 * ALIGN, at, ALIGN);
	turn_both(other, &back.want);
	sock_close(&b);
	sock_close(&a);
	for (unsigned i = 0; i < 10; i++) {
		loop_turn(other, NS_PER_MS);
		loop_turn(loop, NS_PER_MS);
	}
	loop_close(&other);
	free(at);
	end();
}
