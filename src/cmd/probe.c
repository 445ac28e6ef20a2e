/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive that hangs keeps whoever reads it, for ever perhaps: so each is read by a thread that may
 * be left behind, with a descriptor of its own. What they share goes with the last of them.
 */
#include "cmd/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/kv.h"
#include "base/must.h"

#define BLOCK_BYTES 4096

struct probe {
	pthread_mutex_t mutex;
	pthread_cond_t came;
	unsigned refs, waits;                /* under mutex; waits: for so many drives */
	bool answers[PROBE_DRIVES_MAX];
};

struct asked {
	struct probe *probe;
	unsigned number;
	char path[256];
	_Alignas(BLOCK_BYTES) char block[BLOCK_BYTES];
};

/* With the mutex, which it lets go of. */
static void probe_leave(struct probe *p)
{
	bool last = --p->refs == 0;

	pthread_mutex_unlock(&p->mutex);
	if (!last)
		return;
	pthread_mutex_destroy(&p->mutex);
	pthread_cond_destroy(&p->came);
	free(p);
}

static void drive_read(struct asked *a)
{
	int fd = open(a->path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return;                      /* not to be had that way: nothing hangs */
	(void)!pread(fd, a->block, BLOCK_BYTES, 0);
	close(fd);
}

static void *probe_thread(void *arg)
{
	struct asked *a = arg;
	struct probe *p = a->probe;

	drive_read(a);
	pthread_mutex_lock(&p->mutex);
	p->answers[a->number] = true;
	p->waits--;
	pthread_cond_signal(&p->came);
	probe_leave(p);
	free(a);
	return NULL;
}

/* With the mutex. Without memory or a thread for it the drive counts as one that answers. */
static void drive_ask(struct probe *p, unsigned number, const char *path)
{
	struct asked *a = aligned_alloc(BLOCK_BYTES, sizeof(*a));
	pthread_t thread;

	p->answers[number] = true;
	if (a == NULL)
		return;
	a->probe = p;
	a->number = number;
	snprintf(a->path, sizeof(a->path), "%s", path);
	if (pthread_create(&thread, NULL, probe_thread, a) != 0) {
		free(a);
		return;
	}
	pthread_detach(thread);
	p->answers[number] = false;
	p->waits++;
	p->refs++;
}

void probe_drives(const char *const *path, unsigned count, uint64_t wait_ns,
		  bool answers[PROBE_DRIVES_MAX])
{
	struct probe *p = calloc(1, sizeof(*p));
	pthread_condattr_t attr;
	struct timespec until;

	must(count <= PROBE_DRIVES_MAX);
	if (p == NULL) {
		memset(answers, true, count * sizeof(answers[0]));
		return;
	}
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&p->mutex, NULL);
	pthread_cond_init(&p->came, &attr);
	pthread_condattr_destroy(&attr);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)(wait_ns / NS_PER_S);
	pthread_mutex_lock(&p->mutex);
	p->refs = 1;
	for (unsigned i = 0; i < count; i++)
		drive_ask(p, i, path[i]);
	while (p->waits > 0 && pthread_cond_timedwait(&p->came, &p->mutex, &until) != ETIMEDOUT)
		;
	for (unsigned i = 0; i < count; i++)
		answers[i] = p->answers[i];
	probe_leave(p);
}
