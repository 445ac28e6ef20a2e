/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket, both ends.
 *
 *	server: bind (0600, in a directory that no other user writes to) ─ accept ─ who is it?
 *		(SO_PEERCRED: owner or root) ─ one line, at most CONTROL_LINE_MAX, within LINE_NS ─
 *		answer ─ close
 *
 * A thread of its own, since answers block on drives and on the loops; one client at a time, and
 * one that says nothing is closed after LINE_NS, so that it delays the others by no more. A socket
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
	char line[CONTROL_LINE_MAX + 1];
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

/* The line without its end; 0: no whole line came (closed, silent or too long). */
static size_t line_read(struct control *c, int fd, bool *too_long)
{
	uint64_t until = now_ns() + LINE_NS;
	size_t have = 0;

	*too_long = false;
	while (have < CONTROL_LINE_MAX) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		uint64_t now = now_ns();
		ssize_t got;
		char *end;

		if (now >= until || poll(&ready, 1, (int)((until - now) / NS_PER_MS) + 1) <= 0)
			return 0;
		got = recv(fd, c->line + have, CONTROL_LINE_MAX - have, MSG_DONTWAIT);
		if (got <= 0)
			return 0;
		end = memchr(c->line + have, '\n', (size_t)got);
		if (end != NULL)
			return (size_t)(end - c->line);
		have += (size_t)got;
	}
	*too_long = true;
	return 0;
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
static void rest_drop(struct control *c, int fd)
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

static json_t *request_answer(struct control *c, size_t bytes)
{
	json_error_t at;
	json_t *request = json_loadb(c->line, bytes, JSON_REJECT_DUPLICATES, &at), *answer;

	if (request == NULL)
		return control_error(CMD_USAGE, "control: not JSON: %.200s", at.text);
	answer = json_is_object(request) ? c->answer(c->arg, request) :
		control_error(CMD_USAGE, "control: a request is an object");
	must(json_is_object(answer));
	json_decref(request);
	return answer;
}

static void client_serve(struct control *c, int fd)
{
	json_t *answer = NULL;
	bool too_long;
	size_t bytes;

	if (!peer_is_owner(fd)) {
		answer = control_error(CMD_REFUSED, "control: only the owner of the array, and "
				       "root, may ask");
	} else {
		bytes = line_read(c, fd, &too_long);
		if (bytes > 0)
			answer = request_answer(c, bytes);
		else if (too_long)
			answer = control_error(CMD_USAGE, "control: a request is at most %d bytes",
					       CONTROL_LINE_MAX);
	}
	if (answer == NULL)
		return;
	line_write(fd, answer);
	json_decref(answer);
	rest_drop(c, fd);
}

static void *control_thread(void *arg)
{
	struct control *c = arg;

	for (;;) {
		struct pollfd ready[2] = {{.fd = c->wake_fd, .events = POLLIN},
					  {.fd = c->listen_fd, .events = POLLIN}};
		uint64_t count;
		int fd;

		if (poll(ready, 2, -1) < 0 && errno != EINTR)
			break;
		if (ready[0].revents != 0) {           /* what was written before is seen now */
			if (read(c->wake_fd, &count, sizeof(count)) == sizeof(count))
				break;
			continue;
		}
		fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		client_serve(c, fd);
		close(fd);
	}
	if (c->ended != NULL)
		c->ended(c->ended_arg);
	return NULL;
}

/* --- open and close -------------------- */

int control_open(const char *path, control_answer answer, void *arg, char why[256],
		 struct control **out)
{
	struct control *c = calloc(1, sizeof(*c));
	int rc;

	if (c == NULL)
		return -ENOMEM;
	c->listen_fd = -1;
	c->answer = answer;
	c->arg = arg;
	snprintf(why, 256, "%.200s: %s", path, strerror(EIO));
	snprintf(c->path, sizeof(c->path), "%s", strlen(path) < sizeof(c->path) ? path : "");
	c->wake_fd = eventfd(0, EFD_CLOEXEC);
	rc = c->wake_fd < 0 ? -EIO : socket_bind(c, why);
	if (rc == 0 && pthread_create(&c->thread, NULL, control_thread, c) != 0) {
		unlink(c->path);
		rc = -EIO;
	}
	if (rc == 0) {
		*out = c;
		return 0;
	}
	if (c->listen_fd >= 0)
		close(c->listen_fd);
	if (c->wake_fd >= 0)
		close(c->wake_fd);
	free(c);
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
	close(c->listen_fd);
	close(c->wake_fd);
	free(c);
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
