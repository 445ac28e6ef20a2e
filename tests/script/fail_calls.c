/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded before a `kvof serve`: lets calls to the system fail, or a drive hang, when a test says
 * so. What it is to do stands in a file that both have mapped (KVOF_FAIL_FILE):
 *
 *	word 0  1: reads, writes and flushes of files whose path holds "hang" do not return
 *	word 1  the number of the call that is to fail (enum below); 0: none
 *	word 2  which one of them from now on, 1 the next
 *	word 3  its errno
 *	word 4  how many calls have failed so far
 *
 * Any thread; the words are atomics. The real calls are found at the first use.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ACCEPT = 1, RECV, SEND, EPOLL_WAIT, EPOLL_CTL, SETSOCKOPT, GETPEERNAME, MMAP, SUBMIT };

static _Atomic int32_t *words;
static _Atomic int32_t none[5];

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("KVOF_FAIL_FILE");
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *at = fd >= 0 ? mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) :
		MAP_FAILED;

	words = at != MAP_FAILED ? at : none;
	if (fd >= 0)
		close(fd);
}

/* 0, or the errno that this call ends with. */
static int32_t fails(int32_t call)
{
	_Atomic int32_t *w = words != NULL ? words : none;
	int32_t error = atomic_load(&w[3]);

	if (atomic_load(&w[1]) != call || atomic_fetch_sub(&w[2], 1) != 1)
		return 0;
	atomic_fetch_add(&w[4], 1);
	return error;
}

#define REAL(name) \
	static __typeof__(name) *real; \
	if (real == NULL) \
		real = (__typeof__(name) *)(uintptr_t)dlsym(RTLD_NEXT, #name)

#define FAILING(call, type, name, params, args) \
	type name params \
	{ \
		int32_t error = fails(call); \
		REAL(name); \
		if (error == 0) \
			return real args; \
		errno = error; \
		return (type)-1; \
	}

FAILING(ACCEPT, int, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags),
	(fd, a, n, flags))
FAILING(RECV, ssize_t, recv, (int fd, void *at, size_t n, int flags), (fd, at, n, flags))
FAILING(RECV, ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
FAILING(SEND, ssize_t, send, (int fd, const void *at, size_t n, int flags), (fd, at, n, flags))
FAILING(SEND, ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
FAILING(EPOLL_WAIT, int, epoll_wait, (int fd, struct epoll_event *e, int n, int ms), (fd, e, n, ms))
FAILING(EPOLL_CTL, int, epoll_ctl, (int fd, int op, int on, struct epoll_event *e), (fd, op, on, e))
FAILING(SETSOCKOPT, int, setsockopt, (int fd, int l, int o, const void *at, socklen_t n),
	(fd, l, o, at, n))
FAILING(GETPEERNAME, int, getpeername, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
FAILING(MMAP, void *, mmap, (void *at, size_t n, int p, int f, int fd, off_t o),
	(at, n, p, f, fd, o))

#define SUBMITTING(name, params, args) \
	int name params \
	{ \
		int32_t error = fails(SUBMIT); \
		REAL(name); \
		return error != 0 ? -error : real args; \
	}

SUBMITTING(io_uring_submit, (struct io_uring *r), (r))
SUBMITTING(io_uring_submit_and_get_events, (struct io_uring *r), (r))
SUBMITTING(io_uring_submit_and_wait_timeout,
	   (struct io_uring *r, struct io_uring_cqe **c, unsigned n, struct __kernel_timespec *t,
	    sigset_t *s), (r, c, n, t, s))

/* The drive does not answer for as long as the test says. */
static void hang(int fd)
{
	_Atomic int32_t *w = words != NULL ? words : none;
	char link[64], path[4096];
	ssize_t n;

	if (atomic_load(&w[0]) == 0)
		return;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	while (strstr(path, "hang") != NULL && atomic_load(&w[0]) != 0)
		(void)poll(NULL, 0, 5);
}

#define HANGING(type, name, params, args) \
	type name params \
	{ \
		REAL(name); \
		hang(fd); \
		return real args; \
	}

HANGING(ssize_t, pread, (int fd, void *at, size_t n, off_t o), (fd, at, n, o))
HANGING(ssize_t, pwrite, (int fd, const void *at, size_t n, off_t o), (fd, at, n, o))
HANGING(ssize_t, preadv, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
HANGING(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
HANGING(int, fdatasync, (int fd), (fd))
