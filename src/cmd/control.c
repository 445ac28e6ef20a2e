/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket, both ends.
 *
 *	server: bind (0600, in a directory that no other user writes to) ─ accept ─ who is it?
 *		(SO_PEERCRED: owner or root) ─ one line, at most CONTROL_LINE_MAX, within LINE_NS ─
 *		answer ─ close
 *
 * One thread accepts and reads the lines of READING_MAX clients side by side; a newcomer displaces
 * the oldest that has sent no whole line. Each whole one is answered on a thread of its own, since
 * answers block on drives and on the loops, WORKING_MAX at a time; more wait. So neither a client
 * that says nothing nor a command that waits for a drive holds up the others. A socket
 * that is left from an array that was killed is replaced when nobody answers there.
 */
#include "cmd/control.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/must.h"
#include "cmd/cmd.h"

#define LINE_NS (2 * NS_PER_S)
#define REST_NS (300 * NS_PER_MS)
#define REST_READS 64
/* Descriptors of clients: of those that serve.c keeps free. */
#define READING_MAX 8
#define WORKING_MAX 8
/* bind() and listen() of an array that starts are closer together than that: nobody answers at an
 * older socket because the array is gone. */
#define SWEEP_AGE_S 60
#define ANSWER_NS (60 * NS_PER_S)              /* for the client to wait: a removal drains */

struct control {
	char path[CONTROL_PATH_BYTES];
	int listen_fd, wake_fd;
	control_answer answer;
	void *arg;
	pthread_t thread;
	void (*ended)(void *arg);
	void *ended_arg;
	/* being read, the oldest first; of the thread that accepts */
	struct client *reading[READING_MAX];
	unsigned reading_count;
	int ended_fd;                          /* one more has been answered */
	pthread_mutex_t mutex;
	pthread_cond_t left;
	unsigned working;                      /* under mutex */
};

struct client {
	struct control *control;
	int fd;
	uint64_t until_ns;
	bool whole;                            /* the line is, or there will be none */
	size_t have, line_bytes;
	char line[CONTROL_LINE_MAX];
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

json_t *control_error(int exit_code, const char *format, ...)
{
	char text[512];
	va_list args;
	json_t *out;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	for (char *at = text; *at != '\0'; at++)       /* what was sent may be quoted in it */
		if ((unsigned char)*at < ' ' || (unsigned char)*at > 126)
			*at = '?';
	out = json_pack("{s:b, s:i, s:s}", "ok", 0, "exit", exit_code, "error", text);
	must(out != NULL);
	return out;
}

void control_path_default(uint16_t port, char path[CONTROL_PATH_BYTES])
{
	const char *run = getenv("XDG_RUNTIME_DIR");

	if (geteuid() == 0)
		snprintf(path, CONTROL_PATH_BYTES, "/run/kvof/%u.sock", port);
	else if (run != NULL && run[0] == '/' && strlen(run) < 64)
		snprintf(path, CONTROL_PATH_BYTES, "%s/kvof/%u.sock", run, port);
	else
		snprintf(path, CONTROL_PATH_BYTES, "/tmp/kvof-%u/%u.sock", geteuid(), port);
}

static bool address_of(const char *path, struct sockaddr_un *out)
{
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (path[0] == '\0' || strlen(path) >= sizeof(out->sun_path))
		return false;
	memcpy(out->sun_path, path, strlen(path) + 1);
	return true;
}

/* --- the server's socket -------------------- */

/* Nobody else may put another socket in our place: the directory is ours or root's, and others
 * can't write to it, or only to files of their own (sticky). It is made where it is missing. */
static int folder_check(const char *path, char why[256])
{
	char folder[CONTROL_PATH_BYTES];
	const char *slash = strrchr(path, '/');
	struct stat st;

	snprintf(folder, sizeof(folder), "%.*s",
		 slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path),
		 slash == NULL ? "." : path);
	if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
		snprintf(why, 256, "folder %s: %s", folder, strerror(errno));
		return -EINVAL;
	}
	if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode)) {
		snprintf(why, 256, "folder %s: not a folder; choose another path", folder);
		return -EINVAL;
	}
	if ((st.st_uid != geteuid() && st.st_uid != 0) ||
	    ((st.st_mode & 022) != 0 && (st.st_mode & S_ISVTX) == 0)) {
		snprintf(why, 256, "folder %s: other users may write to it; choose another, or "
			 "chmod go-w", folder);
		return -EINVAL;
	}
	return 0;
}

/* Someone has bound this path: removed when it is a socket of ours where nobody answers. */
static int stale_remove(const struct sockaddr_un *at, char why[256])
{
	struct stat st;
	int fd, rc;

	if (lstat(at->sun_path, &st) != 0)
		return errno == ENOENT ? 0 : -EIO;
	if (!S_ISSOCK(st.st_mode) || st.st_uid != geteuid()) {
		snprintf(why, 256, "%s: exists, and is not a socket of this user; choose another "
			 "path, or remove it", at->sun_path);
		return -EINVAL;
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -EIO;
	rc = connect(fd, (const struct sockaddr *)at, sizeof(*at));
	rc = rc == 0 || errno != ECONNREFUSED ? -EBUSY : 0;
	close(fd);
	if (rc != 0) {
		snprintf(why, 256, "%s: another array answers there; choose another path, or "
			 "stop that one", at->sun_path);
		return rc;
	}
	return unlink(at->sun_path) == 0 ? 0 : -EIO;
}

/* PORT.sock, as control_path_default() names it. */
static bool name_is_default(const char *name)
{
	size_t digits = strspn(name, "0123456789");

	return digits > 0 && digits <= 5 && strcmp(name + digits, ".sock") == 0;
}

void control_sweep(const char *path)
{
	time_t before = time(NULL) - SWEEP_AGE_S;
	const char *slash = strrchr(path, '/');
	char folder[CONTROL_PATH_BYTES], why[256];
	struct dirent *entry;
	DIR *dir;

	if (slash == NULL)
		return;
	snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
	dir = opendir(folder);
	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		char name[CONTROL_PATH_BYTES + sizeof(entry->d_name)];
		struct sockaddr_un at;
		struct stat st;

		snprintf(name, sizeof(name), "%s/%s", folder, entry->d_name);
		if (name_is_default(entry->d_name) && address_of(name, &at) &&
		    lstat(name, &st) == 0 && st.st_mtime < before)
			(void)stale_remove(&at, why);
	}
	if (dir != NULL)
		closedir(dir);
}

static int socket_bind(struct control *c, char why[256])
{
	struct sockaddr_un at;
	mode_t mask;
	int rc;

	if (!address_of(c->path, &at)) {
		snprintf(why, 256, "the control socket's path is empty or longer than %d bytes; "
			 "choose another", CONTROL_PATH_BYTES - 1);
		return -EINVAL;
	}
	rc = folder_check(c->path, why);
	if (rc == 0)
		rc = stale_remove(&at, why);
	if (rc != 0)
		return rc;
	c->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->listen_fd < 0)
		return -EIO;
	mask = umask(0177);                            /* 0600 from its first moment */
	rc = bind(c->listen_fd, (const struct sockaddr *)&at, sizeof(at));
	umask(mask);
	if (rc == 0 && listen(c->listen_fd, 16) == 0)
		return 0;
	snprintf(why, 256, "%s: %s", c->path, strerror(errno));
	return -EIO;
}

/* --- one client -------------------- */

static bool peer_is_owner(int fd)
{
	struct ucred who;
	socklen_t bytes = sizeof(who);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 &&
	       (who.uid == 0 || who.uid == geteuid());
}

/* What has come of the line. Return: false: the client has left. */
static bool line_read(struct client *c)
{
	ssize_t got = recv(c->fd, c->line + c->have, CONTROL_LINE_MAX - c->have, MSG_DONTWAIT);
	char *end;

	if (got <= 0)
		return got < 0 && (errno == EAGAIN || errno == EINTR);
	end = memchr(c->line + c->have, '\n', (size_t)got);
	c->have += (size_t)got;
	c->line_bytes = end != NULL ? (size_t)(end - c->line) : 0;
	c->whole = end != NULL || c->have == CONTROL_LINE_MAX;
	return c->line_bytes > 0 || end == NULL;
}

static void line_write(int fd, json_t *answer)
{
	struct timeval limit = {.tv_sec = LINE_NS / NS_PER_S};
	char *text = json_dumps(answer, JSON_COMPACT);
	size_t bytes, sent = 0;

	must(text != NULL);
	bytes = strlen(text);
	text[bytes++] = '\n';
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	while (sent < bytes) {
		ssize_t n = send(fd, text + sent, bytes - sent, MSG_NOSIGNAL);

		if (n <= 0)
			break;                         /* the client has left or does not read */
		sent += (size_t)n;
	}
	free(text);
}

/* What the client still sends is read for a moment: closed with bytes unread, the answer goes. */
static void rest_drop(struct client *c, int fd)
{
	uint64_t until = now_ns() + REST_NS;

	(void)shutdown(fd, SHUT_WR);
	for (unsigned i = 0; i < REST_READS; i++) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		uint64_t now = now_ns();

		if (now >= until || poll(&ready, 1, (int)((until - now) / NS_PER_MS) + 1) <= 0 ||
		    recv(fd, c->line, CONTROL_LINE_MAX, MSG_DONTWAIT) <= 0)
			return;
	}
}

static void client_free(struct client *c)
{
	close(c->fd);
	free(c);
}

static json_t *request_answer(struct client *c, size_t bytes)
{
	json_error_t at;
	json_t *request = json_loadb(c->line, bytes, JSON_REJECT_DUPLICATES, &at), *answer;

	if (request == NULL)
		return control_error(CMD_USAGE, "control: not JSON: %.200s", at.text);
	answer = json_is_object(request) ? c->control->answer(c->control->arg, request) :
		control_error(CMD_USAGE, "control: a request is an object");
	must(json_is_object(answer));
	json_decref(request);
	return answer;
}

static void *client_thread(void *arg)
{
	struct client *client = arg;
	struct control *c = client->control;
	uint64_t one = 1;
	json_t *answer;

	if (!peer_is_owner(client->fd))
		answer = control_error(CMD_REFUSED, "control: only the owner of the array, and "
				       "root, may ask");
	else if (client->line_bytes == 0)
		answer = control_error(CMD_USAGE, "control: a request is at most %d bytes",
				       CONTROL_LINE_MAX);
	else
		answer = request_answer(client, client->line_bytes);
	line_write(client->fd, answer);
	json_decref(answer);
	rest_drop(client, client->fd);
	client_free(client);
	pthread_mutex_lock(&c->mutex);
	c->working--;
	must(write(c->ended_fd, &one, sizeof(one)) == sizeof(one));
	pthread_cond_signal(&c->left);
	pthread_mutex_unlock(&c->mutex);       /* the last that touches c */
	return NULL;
}

/* False: it has to wait for one of those at work. With none, and no thread, it is closed. */
static bool client_work(struct client *client)
{
	struct control *c = client->control;
	bool room, made = false;
	pthread_t thread;
	unsigned working;

	pthread_mutex_lock(&c->mutex);
	room = c->working < WORKING_MAX;
	if (room)
		made = pthread_create(&thread, NULL, client_thread, client) == 0;
	c->working += made;
	working = c->working;
	pthread_mutex_unlock(&c->mutex);
	if (made)
		pthread_detach(thread);
	else if (working == 0)
		client_free(client);
	return made || working == 0;
}

static void reading_drop(struct control *c, unsigned at)
{
	memmove(&c->reading[at], &c->reading[at + 1],
		(--c->reading_count - at) * sizeof(c->reading[0]));
}

/* The oldest without a whole line makes room. Return: whether there is room. */
static bool reading_room(struct control *c)
{
	for (unsigned i = 0; i < c->reading_count && c->reading_count == READING_MAX; i++)
		if (!c->reading[i]->whole) {
			client_free(c->reading[i]);
			reading_drop(c, i);
		}
	return c->reading_count < READING_MAX;
}

/* A client that can't be served is closed without an answer. */
static void client_accept(struct control *c)
{
	int fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	struct client *client;

	if (fd < 0)
		return;
	client = calloc(1, sizeof(*client));
	if (client == NULL || !reading_room(c)) {
		free(client);
		close(fd);
		return;
	}
	client->control = c;
	client->fd = fd;
	client->until_ns = now_ns() + LINE_NS;
	client->whole = !peer_is_owner(fd);    /* nothing of it is read */
	if (!client->whole || !client_work(client))
		c->reading[c->reading_count++] = client;
}

/* Those whose line is whole go to work; those who have left or take too long are closed. */
static void reading_turn(struct control *c, const struct pollfd *ready)
{
	unsigned count = c->reading_count, at = 0;
	uint64_t now = now_ns();

	for (unsigned i = 0; i < count; i++) {
		struct client *client = c->reading[at];
		bool here = client->whole || ready[i].revents == 0 || line_read(client);

		if (here && client->whole) {
			if (client_work(client))
				reading_drop(c, at);
			else
				at++;          /* waits for one of those at work */
		} else if (here && now < client->until_ns) {
			at++;
		} else {
			client_free(client);
			reading_drop(c, at);
		}
	}
}

/* ready: wake, accept, ended, then reading. Return: milliseconds. */
static int poll_prepare(const struct control *c, struct pollfd *ready)
{
	uint64_t now = now_ns(), until = UINT64_MAX;

	ready[0] = (struct pollfd){.fd = c->wake_fd, .events = POLLIN};
	ready[1] = (struct pollfd){.fd = -1, .events = POLLIN};
	ready[2] = (struct pollfd){.fd = c->ended_fd, .events = POLLIN};
	for (unsigned i = 0; i < c->reading_count; i++) {
		const struct client *client = c->reading[i];

		ready[3 + i] = (struct pollfd){.fd = client->whole ? -1 : client->fd,
					       .events = POLLIN};
		if (!client->whole && client->until_ns < until)
			until = client->until_ns;
		if (!client->whole)
			ready[1].fd = c->listen_fd;
	}
	if (c->reading_count < READING_MAX)
		ready[1].fd = c->listen_fd;
	return until == UINT64_MAX ? -1 : until <= now ? 0 : (int)((until - now) / NS_PER_MS) + 1;
}

static void *control_thread(void *arg)
{
	struct control *c = arg;
	struct pollfd ready[3 + READING_MAX];
	uint64_t count;

	for (;;) {
		int wait_ms = poll_prepare(c, ready);
		bool comes;

		if (poll(ready, 3 + c->reading_count, wait_ms) < 0) {
			if (errno != EINTR)
				break;
			continue;
		}
		if (ready[0].revents != 0 &&           /* what was written before is seen now */
		    read(c->wake_fd, &count, sizeof(count)) == sizeof(count))
			break;
		if (ready[2].revents != 0)
			(void)!read(c->ended_fd, &count, sizeof(count));
		comes = ready[1].revents != 0;
		reading_turn(c, &ready[3]);
		if (comes)
			client_accept(c);
	}
	while (c->reading_count > 0)
		client_free(c->reading[--c->reading_count]);
	pthread_mutex_lock(&c->mutex);
	while (c->working > 0)
		pthread_cond_wait(&c->left, &c->mutex);
	pthread_mutex_unlock(&c->mutex);
	if (c->ended != NULL)
		c->ended(c->ended_arg);
	return NULL;
}

/* --- open and close -------------------- */

static void control_free(struct control *c)
{
	int fd[] = {c->listen_fd, c->wake_fd, c->ended_fd};

	for (unsigned i = 0; i < ARRAY_COUNT(fd); i++)
		if (fd[i] >= 0)
			close(fd[i]);
	pthread_mutex_destroy(&c->mutex);
	pthread_cond_destroy(&c->left);
	free(c);
}

int control_open(const char *path, control_answer answer, void *arg, char why[256],
		 struct control **out)
{
	struct control *c = calloc(1, sizeof(*c));
	int rc;

	if (c == NULL)
		return -ENOMEM;
	pthread_mutex_init(&c->mutex, NULL);
	pthread_cond_init(&c->left, NULL);
	c->listen_fd = -1;
	c->answer = answer;
	c->arg = arg;
	snprintf(why, 256, "%.200s: %s", path, strerror(EIO));
	snprintf(c->path, sizeof(c->path), "%s", strlen(path) < sizeof(c->path) ? path : "");
	c->wake_fd = eventfd(0, EFD_CLOEXEC);
	c->ended_fd = eventfd(0, EFD_CLOEXEC);
	rc = c->wake_fd < 0 || c->ended_fd < 0 ? -EIO : socket_bind(c, why);
	if (rc == 0 && pthread_create(&c->thread, NULL, control_thread, c) != 0) {
		unlink(c->path);
		rc = -EIO;
	}
	if (rc == 0) {
		*out = c;
		return 0;
	}
	control_free(c);
	return rc;
}

void control_stop(struct control *c, void (*ended)(void *arg), void *arg)
{
	uint64_t one = 1;

	must(c->ended == NULL);
	c->ended = ended;
	c->ended_arg = arg;
	must(write(c->wake_fd, &one, sizeof(one)) == sizeof(one));
}

void control_close(struct control **cp)
{
	struct control *c = *cp;
	uint64_t one = 1;

	*cp = NULL;
	must(write(c->wake_fd, &one, sizeof(one)) == sizeof(one));
	must(pthread_join(c->thread, NULL) == 0);
	unlink(c->path);
	control_free(c);
}

/* --- the client -------------------- */

static int answer_read(int fd, json_t **answer, char why[256])
{
	struct timeval limit = {.tv_sec = ANSWER_NS / NS_PER_S};
	json_error_t at;
	FILE *f;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	f = fdopen(fd, "r");
	if (f == NULL) {
		close(fd);
		return -EPROTO;
	}
	errno = 0;
	*answer = json_loadf(f, 0, &at);
	if (*answer == NULL && errno == EAGAIN) {
		snprintf(why, 256, "the array has not answered within %llu s",
			 (unsigned long long)(ANSWER_NS / NS_PER_S));
		fclose(f);
		return -ETIMEDOUT;
	}
	fclose(f);
	if (json_is_object(*answer))
		return 0;
	json_decref(*answer);
	snprintf(why, 256, "the answer is not one of an array");
	return -EPROTO;
}

int control_ask(const char *path, const json_t *request, json_t **answer, char why[256])
{
	struct sockaddr_un at;
	json_t *copy;
	int fd;

	snprintf(why, 256, "no socket");
	if (!address_of(path, &at)) {
		snprintf(why, 256, "control socket %.100s: the path is empty or too long", path);
		return -ENOENT;
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -EPROTO;
	if (connect(fd, (const struct sockaddr *)&at, sizeof(at)) != 0) {
		snprintf(why, 256, "%s: %s; is an array running here, and --port or --control "
			 "right?", path, strerror(errno));
		close(fd);
		return -ENOENT;
	}
	copy = json_deep_copy(request);
	must(copy != NULL);
	line_write(fd, copy);
	json_decref(copy);
	return answer_read(fd, answer, why);
}
