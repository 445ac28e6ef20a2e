/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only the plain loop has: threads of drives, of which a drive that hangs holds no others;
 * edges of descriptors; refusals at its opening. Calls of the loop to the system go through
 * __wrap_*() here (the linker's --wrap), where a test may hold or refuse them.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/must.h"
#include "base/prng.h"
#include "kt.h"
#include "loop/disk.h"
#include "loop/lane.h"
#include "loop/loop.h"
#include "loop/sock.h"

#define WAIT_NS (10 * NS_PER_S)
#define DRIVE_BYTES (4 * MiB)
#define PIECE 4096u

/* ---- calls of the loop ---- */

static unsigned long fail_at, asked;    /* fail_at 0: never */

static bool refuse(void)
{
	return fail_at != 0 && ++asked == fail_at;
}

#define WRAP(type, name, args, pass, refused)                                                      \
	type __real_##name args;                                                                   \
	type __wrap_##name args;                                                                   \
	type __wrap_##name args                                                                    \
	{                                                                                          \
		if (refuse()) {                                                                    \
			errno = ENOMEM;                                                            \
			return refused;                                                            \
		}                                                                                  \
		return __real_##name pass;                                                         \
	}

WRAP(void *, malloc, (size_t bytes), (bytes), NULL)
WRAP(void *, calloc, (size_t n, size_t bytes), (n, bytes), NULL)
WRAP(void *, realloc, (void *at, size_t bytes), (at, bytes), NULL)
WRAP(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes), NULL)
WRAP(int, epoll_create1, (int flags), (flags), -1)
WRAP(int, epoll_ctl, (int e, int op, int fd, struct epoll_event *ev), (e, op, fd, ev), -1)
WRAP(int, eventfd, (unsigned first, int flags), (first, flags), -1)
WRAP(int, socket, (int family, int type, int protocol), (family, type, protocol), -1)
WRAP(int, pthread_create, (pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg),
     (t, a, f, arg), EAGAIN)

/* Reads of this many bytes hang until let go. */
#define HANG_BYTES (8 * PIECE)
static pthread_mutex_t hang_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hang_moved = PTHREAD_COND_INITIALIZER;
static unsigned hanging;
static bool hang_on;

ssize_t __real_pread64(int fd, void *into, size_t bytes, off_t at);
ssize_t __wrap_pread64(int fd, void *into, size_t bytes, off_t at);
ssize_t __wrap_pread64(int fd, void *into, size_t bytes, off_t at)
{
	pthread_mutex_lock(&hang_lock);
	if (hang_on && bytes == HANG_BYTES) {
		hanging++;
		pthread_cond_broadcast(&hang_moved);
		while (hang_on)
			pthread_cond_wait(&hang_moved, &hang_lock);
		hanging--;
		pthread_cond_broadcast(&hang_moved);
	}
	pthread_mutex_unlock(&hang_lock);
	return __real_pread64(fd, into, bytes, at);
}

static void hang_set(bool on)
{
	pthread_mutex_lock(&hang_lock);
	hang_on = on;
	pthread_cond_broadcast(&hang_moved);
	pthread_mutex_unlock(&hang_lock);
}

static void hang_wait(unsigned count)
{
	pthread_mutex_lock(&hang_lock);
	while (hanging < count || (!hang_on && hanging > count))
		pthread_cond_wait(&hang_moved, &hang_lock);
	expect_int(hanging, count);
	pthread_mutex_unlock(&hang_lock);
}

/* ---- what is done with a loop ---- */

struct sio { struct sock_io io; struct iovec iov; unsigned calls; int res; };
struct dial { struct sock_connect c; unsigned calls; int res; };
struct simple { struct loop_op op; unsigned calls; int res; };
struct dio { struct disk_io io; struct iovec iov; unsigned calls; int res; };

#define DONE(type, member)                                                                         \
	static void type##_done(struct loop_op *op, int res)                                       \
	{                                                                                          \
		struct type *x = container_of(op, struct type, member);                            \
                                                                                                   \
		x->calls++;                                                                        \
		x->res = res;                                                                      \
	}
DONE(sio, io.op)
DONE(dial, c.op)
DONE(simple, op)
DONE(dio, io.op)

static struct loop *open_loop(void)
{
	struct loop *l = NULL;

	expect_int(loop_open(&(struct loop_opts){.name = "test", .kind = LOOP_PLAIN}, &l), 0);
	return l;
}

static int wait_for(struct loop *l, const unsigned *calls, const int *res)
{
	while (*calls == 0)
		if (loop_turn(l, WAIT_NS) == 0)
			fail_msg("nothing happened");
	expect_int(*calls, 1);
	return *res;
}

static struct disk *drive(struct loop *l, unsigned number, char path[64])
{
	struct disk *d = NULL;

	snprintf(path, 64, "/tmp/kvof-plain-test-%d-%u", (int)getpid(), number);
	unlink(path);
	expect_int(disk_open(l, path, &(struct disk_opts){.create_bytes = DRIVE_BYTES}, &d), 0);
	return d;
}

static void read_start(struct disk *d, struct dio *x, uint8_t *into, uint64_t bytes)
{
	*x = (struct dio){.io = {.op.done = dio_done, .iov_count = 1, .bytes = bytes}};
	x->io.iov = &x->iov;
	x->iov = (struct iovec){into, bytes};
	disk_read(d, &x->io);
}

static int raw_listen(uint16_t *port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	expect(fd >= 0);
	expect_int(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	expect_int(listen(fd, 8), 0);
	expect_int(getsockname(fd, (struct sockaddr *)&at, &length), 0);
	*port = ntohs(at.sin_port);
	return fd;
}

/* A sock of ours and a plain descriptor, connected. */
static struct sock *raw_pair(struct loop *l, int *peer)
{
	struct dial x = {.c = {.op.done = dial_done, .addr = {.host = "127.0.0.1"}}};
	int lis = raw_listen(&x.c.addr.port);

	sock_connect(l, &x.c);
	expect_int(wait_for(l, &x.calls, &x.res), 0);
	*peer = accept(lis, NULL, NULL);
	expect(*peer >= 0);
	close(lis);
	return x.c.sock;
}

static void sio_start(struct sock *s, struct sio *x, bool send, uint8_t *at, uint64_t bytes,
		      bool all)
{
	*x = (struct sio){.io = {.op.done = sio_done, .iov_count = 1, .bytes = bytes, .all = all}};
	x->io.iov = &x->iov;
	x->iov = (struct iovec){at, bytes};
	(send ? sock_send : sock_recv)(s, &x->io);
}

static unsigned entries(const char *folder)
{
	DIR *d = opendir(folder);
	unsigned n = 0;

	expect(d != NULL);
	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n;
}

/* ---- drives ---- */

TEST(a_drive_that_hangs_holds_its_own_threads_and_neither_the_loop_nor_other_drives)
{
	enum { N = LANE_THREADS + 5 };
	static struct dio stuck[N], x;
	struct loop *l = open_loop();
	uint8_t *at = loop_buffer_map((N + 1) * HANG_BYTES), byte = 0;
	char path[2][64];
	struct disk *bad = drive(l, 0, path[0]), *good = drive(l, 1, path[1]);
	struct sio in;
	int peer;
	struct sock *s = raw_pair(l, &peer);

	hang_set(true);
	for (unsigned i = 0; i < N; i++)
		read_start(bad, &stuck[i], at + i * HANG_BYTES, HANG_BYTES);
	expect_int(loop_turn(l, 0), 0);
	hang_wait(LANE_THREADS);                /* and not one more */
	for (unsigned i = 0; i < 100; i++) {
		read_start(good, &x, at + N * HANG_BYTES, PIECE);
		expect_int(wait_for(l, &x.calls, &x.res), 0);
	}
	sio_start(s, &in, false, &byte, 1, true);
	expect_int(loop_turn(l, NS_PER_MS), 0);
	expect_int(write(peer, "x", 1), 1);
	expect_int(wait_for(l, &in.calls, &in.res), 1);
	for (unsigned i = 0; i < N; i++)
		expect_int(stuck[i].calls, 0);
	hang_set(false);
	for (unsigned i = 0; i < N; i++)
		expect_int(wait_for(l, &stuck[i].calls, &stuck[i].res), 0);
	sock_close(&s);
	close(peer);
	for (unsigned i = 0; i < 2; i++) {
		disk_close(i ? &good : &bad);
		unlink(path[i]);
	}
	loop_buffer_unmap(at, (N + 1) * HANG_BYTES);
	loop_close(&l);
}

static void close_over_a_read_that_hangs(void)
{
	static struct dio x;
	struct loop *l = open_loop();
	uint8_t *at = loop_buffer_map(HANG_BYTES);
	char path[64];
	struct disk *d = drive(l, 0, path);

	hang_set(true);
	unlink(path);
	read_start(d, &x, at, HANG_BYTES);
	expect_int(loop_turn(l, 0), 0);
	hang_wait(1);
	loop_close(&l);
	expect(l == NULL && x.calls == 0);
	hang_set(false);                        /* what comes now finds its memory there */
	hang_wait(0);
}

TEST(a_loop_closed_over_a_drive_that_never_answers_keeps_that_memory_and_goes_on)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		(void)!freopen("/dev/null", "w", stderr);
		close_over_a_read_that_hangs();
		_exit(0);
	}
	expect_int(waitpid(child, &status, 0), child);
	expect_int(status, 0);
}

TEST(parts_of_a_drive_share_its_threads_over_all_loops)
{
	enum { LOOPS = 3, PARTS = 4 };
	struct loop *l[LOOPS];
	unsigned before = entries("/proc/self/task");
	struct disk *whole, *part[LOOPS][PARTS];
	char path[64];

	for (unsigned i = 0; i < LOOPS; i++)
		l[i] = open_loop();
	whole = drive(l[0], 0, path);
	expect_int(entries("/proc/self/task"), before + LANE_THREADS);
	for (unsigned i = 0; i < LOOPS; i++)
		for (unsigned j = 0; j < PARTS; j++)
			expect_int(disk_open_part(l[i], whole, &(struct disk_extent){j * MiB, MiB},
						  1, &part[i][j]), 0);
	expect_int(entries("/proc/self/task"), before + LANE_THREADS);
	for (unsigned i = 0; i < LOOPS; i++)
		for (unsigned j = 0; j < PARTS; j++)
			disk_close(&part[i][j]);
	disk_close(&whole);
	unlink(path);
	for (unsigned i = 0; i < LOOPS; i++)
		loop_close(&l[i]);
}

static void child_uses_a_drive(void)
{
	struct loop *l = open_loop();
	uint8_t *at = loop_buffer_map(PIECE);
	char path[64];
	struct disk *d = drive(l, 7, path);
	struct dio x;

	read_start(d, &x, at, PIECE);
	expect_int(wait_for(l, &x.calls, &x.res), 0);
	disk_close(&d);
	unlink(path);
	loop_close(&l);
}

TEST(a_forked_child_has_threads_of_its_own_also_where_the_number_is_one_of_the_parents)
{
	struct loop *l = open_loop();
	char path[64];
	struct disk *d = drive(l, 0, path);
	int status;
	pid_t child = fork();

	if (child == 0) {
		for (int fd = 3; fd < 64; fd++)
			close(fd);
		child_uses_a_drive();
		_exit(0);
	}
	expect_int(waitpid(child, &status, 0), child);
	expect_int(status, 0);
	disk_close(&d);
	unlink(path);
	loop_close(&l);
}

/* ---- descriptors ---- */

TEST(a_number_that_another_file_has_now_is_watched_anew)
{
	struct loop *l = open_loop();
	int first = -1, fd;

	for (unsigned i = 0; i < 20; i++) {
		struct simple x = {.op.done = simple_done};

		fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		expect(first < 0 || fd == first);
		first = fd;
		loop_poll(l, fd, &x.op);
		expect_int(loop_turn(l, 0), 0);
		if (i % 3 == 0)
			loop_poll_cancel(l, &x.op);
		else
			expect_int(eventfd_write(fd, 1), 0);
		wait_for(l, &x.calls, &x.res);
		expect(i % 3 == 0 ? x.res == -ECANCELED : x.res > 0);
		close(fd);
	}
	loop_close(&l);
}

TEST(a_sock_that_a_child_still_holds_does_not_disturb_the_next_with_its_number)
{
	struct loop *l = open_loop();
	uint8_t to[8];
	int peer, other_peer, hold[2], status, spare = eventfd(0, EFD_CLOEXEC);
	struct sock *s = raw_pair(l, &peer), *other;
	struct sio x;
	pid_t child;

	sio_start(s, &x, false, to, 8, true);
	expect_int(loop_turn(l, NS_PER_MS), 0);         /* it is watched */
	expect_int(pipe(hold), 0);
	child = fork();
	if (child == 0) {
		close(hold[1]);
		close(STDOUT_FILENO);           /* or a test that failed waits for this child */
		_exit(read(hold[0], to, 1) == 0 ? 0 : 1);
	}
	sock_close(&s);
	expect_int(wait_for(l, &x.calls, &x.res), -ECANCELED);
	close(spare);                   /* its number for the listener, and so the sock's again */
	other = raw_pair(l, &other_peer);
	sio_start(other, &x, false, to, 5, true);
	expect_int(loop_turn(l, NS_PER_MS), 0);
	expect(write(peer, "stale", 5) == 5 || errno == EPIPE);
	expect_int(loop_turn(l, NS_PER_MS), 0);
	expect_int(write(other_peer, "fresh", 5), 5);
	expect_int(wait_for(l, &x.calls, &x.res), 5);
	expect_mem(to, "fresh", 5);
	close(hold[1]);
	close(hold[0]);
	expect_int(waitpid(child, &status, 0), child);
	expect_int(status, 0);
	sock_close(&other);
	close(peer);
	close(other_peer);
	loop_close(&l);
}

/* Bytes in random pieces, then the end, in one breath or with a receive waiting in between. */
static void stream_to_its_end(struct loop *l, struct prng *p)
{
	uint8_t from[2000], to[2000];
	unsigned sent = 0, got = 0, total = 1 + (unsigned)prng_below(p, sizeof(from));
	bool ended = false;
	int peer;
	struct sock *s = raw_pair(l, &peer);

	prng_fill(p, from, total);
	for (;;) {
		unsigned asked_bytes = 1 + (unsigned)prng_below(p, sizeof(to) - 1);
		struct sio x;

		while (sent < total && prng_below(p, 3) != 0) {
			unsigned step = 1 + (unsigned)prng_below(p, total - sent);

			expect_int(write(peer, from + sent, step), step);
			sent += step;
		}
		if (sent == total && !ended && prng_below(p, 2) == 0) {
			expect_int(shutdown(peer, SHUT_WR), 0);
			ended = true;
		}
		asked_bytes = (unsigned)bytes_min(asked_bytes, sizeof(to) - got);
		sio_start(s, &x, false, to + got, asked_bytes == 0 ? 1 : asked_bytes, false);
		if (prng_below(p, 2) == 0)
			loop_turn(l, 0);
		if (sent == total && !ended) {
			expect_int(shutdown(peer, SHUT_WR), 0);
			ended = true;
		} else if (sent == got && !ended && x.calls == 0) {
			expect_int(write(peer, from + sent, 1), 1);
			sent++;
		}
		if (wait_for(l, &x.calls, &x.res) == 0)
			break;
		got += (unsigned)x.res;
	}
	expect(ended);
	expect_int(got, total);
	expect_mem(to, from, total);
	sock_close(&s);
	close(peer);
}

TEST(streams_give_all_their_bytes_and_then_their_end)
{
	struct prng p = prng_of(5);
	struct loop *l = open_loop();

	for (unsigned i = 0; i < 300; i++)
		stream_to_its_end(l, &p);
	loop_close(&l);
}

TEST(a_send_of_many_pieces_that_stops_inside_one_goes_on_there)
{
	enum { PIECES = 300, EACH = 9001 };
	static uint8_t from[PIECES * EACH], to[PIECES * EACH];
	struct loop *l = open_loop();
	struct prng p = prng_of(8);
	struct iovec iov[PIECES];
	struct sio x = {.io = {.op.done = sio_done, .iov = iov, .iov_count = PIECES,
			       .bytes = sizeof(from)}};
	int room = 64 * 1024, peer;
	struct sock *s = raw_pair(l, &peer);
	size_t got = 0;

	expect_int(setsockopt(peer, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)), 0);
	prng_fill(&p, from, sizeof(from));
	for (unsigned i = 0; i < PIECES; i++)
		iov[i] = (struct iovec){from + i * EACH, EACH};
	sock_send(s, &x.io);
	while (got < sizeof(from)) {
		uint64_t most = bytes_min(1 + prng_below(&p, 100000), sizeof(to) - got);
		ssize_t n = recv(peer, to + got, most, MSG_DONTWAIT);

		if (n > 0)
			got += (size_t)n;
		loop_turn(l, NS_PER_MS);
	}
	expect_int(wait_for(l, &x.calls, &x.res), 0);
	expect_mem(to, from, sizeof(from));
	expect_int(recv(peer, to, 1, MSG_DONTWAIT), -1);
	sock_close(&s);
	close(peer);
	loop_close(&l);
}

TEST(a_sock_goes_between_a_plain_loop_and_one_with_a_ring)
{
	struct loop *l[2] = {open_loop()};
	uint8_t to[5];
	struct sio x;
	struct sock *s;
	int peer;

	if (loop_open(&(struct loop_opts){.kind = LOOP_IO_URING}, &l[1]) != 0) {
		loop_close(&l[0]);
		skip_because("no io_uring here");
	}
	expect_str(loop_kind(l[0]), "plain");
	expect_str(loop_kind(l[1]), "io_uring");
	s = raw_pair(l[0], &peer);
	for (unsigned i = 0; i < 6; i++) {
		struct loop *here = l[i % 2];

		sio_start(s, &x, false, to, 5, true);
		expect_int(loop_turn(here, NS_PER_MS), 0);
		expect_int(write(peer, "hello", 5), 5);
		expect_int(wait_for(here, &x.calls, &x.res), 5);
		expect_mem(to, "hello", 5);
		sio_start(s, &x, true, to, 5, true);
		expect_int(wait_for(here, &x.calls, &x.res), 0);
		sock_leave(s);
		sock_join(s, l[(i + 1) % 2]);
	}
	sock_close(&s);
	close(peer);
	loop_close(&l[0]);
	loop_close(&l[1]);
}

/* ---- a machine that says no ---- */

/* All that a loop opens, once; 0, or the first error. Nothing stays. */
static int open_all(int listens, uint16_t port)
{
	struct dial x = {.c = {.op.done = dial_done, .addr = {"127.0.0.1", port}}};
	struct disk *d = NULL, *part = NULL;
	struct sock_listener *lis = NULL;
	struct loop *l = NULL;
	char path[64];
	int rc = loop_open(&(struct loop_opts){.name = "test", .kind = LOOP_PLAIN}, &l);

	snprintf(path, sizeof(path), "/tmp/kvof-plain-test-%d", (int)getpid());
	if (rc != 0)
		return rc;
	rc = disk_open(l, path, &(struct disk_opts){.create_bytes = MiB}, &d);
	if (rc == 0)
		rc = disk_open_part(l, d, &(struct disk_extent){0, MiB}, 1, &part);
	if (rc == 0)
		rc = sock_listen(l, &(struct sock_addr){.host = "127.0.0.1"},
				 (void (*)(void *, struct sock *))abort, NULL, &lis);
	if (rc == 0) {
		sock_connect(l, &x.c);
		rc = wait_for(l, &x.calls, &x.res);
		if (rc == 0) {
			close(accept(listens, NULL, NULL));
			sock_close(&x.c.sock);
		}
	}
	if (lis != NULL)
		sock_listener_close(&lis);
	if (part != NULL)
		disk_close(&part);
	if (d != NULL) {
		disk_close(&d);
		unlink(path);
	}
	expect(access(path, F_OK) != 0);
	loop_close(&l);
	return rc;
}

TEST(whatever_is_refused_at_opening_is_an_error_that_leaves_nothing_behind)
{
	unsigned files, tasks, refused = 0;
	uint16_t port;
	int listens = raw_listen(&port);

	expect_int(open_all(listens, port), 0);
	files = entries("/proc/self/fd");
	tasks = entries("/proc/self/task");
	for (unsigned long n = 1; n < 200; n++) {
		unsigned long seen;
		int rc;

		fail_at = n;
		asked = 0;
		rc = open_all(listens, port);
		seen = asked;
		fail_at = 0;
		if (seen < n)
			break;                  /* there was no n-th */
		refused += rc != 0;
		expect(rc == 0 || rc == -ENOMEM || rc == -EIO || rc == -ECONNRESET);
		expect_int(entries("/proc/self/fd"), files);
		expect_int(entries("/proc/self/task"), tasks);
	}
	expect(refused >= 10);
	expect_int(open_all(listens, port), 0);
	close(listens);
}

static void deny(int call, int err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof(code) / sizeof(code[0]), code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, 2, &prog) != 0)
		_exit(77);
}

static bool fired;
static uint64_t fired_ns;
static struct loop *fired_on;

static void fire(struct loop_timer *t)
{
	fired = true;
	fired_ns = loop_now_ns(fired_on);
}

TEST(without_a_wait_of_nanoseconds_timers_are_not_early_and_turns_wait)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		struct loop_timer t;
		uint64_t at_ns;

		deny(SYS_epoll_pwait2, EPERM);
		fired_on = open_loop();
		at_ns = loop_now_ns(fired_on) + 1500000;
		loop_timer_init(&t, fire);
		loop_timer_set(fired_on, &t, at_ns);
		while (!fired)
			expect_int(loop_turn(fired_on, WAIT_NS), 1);
		expect(fired_ns >= at_ns);
		at_ns = loop_now_ns(fired_on);
		expect_int(loop_turn(fired_on, 300000), 0);
		expect(loop_now_ns(fired_on) >= at_ns + 300000);
		loop_close(&fired_on);
		_exit(0);
	}
	expect_int(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip_because("no seccomp here");
	expect_int(status, 0);
}
