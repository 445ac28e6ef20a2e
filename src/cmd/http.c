/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread of libmicrohttpd answers; what it tells is gathered by the first loop when it is asked
 * for (array_collect()), at most once in SNAPSHOT_NS, so that no client makes work for a loop that
 * serves. While a collection is on its way only the loop touches `rows`, else only this thread:
 * `busy` says which. A loop that does not answer within WAIT_NS is itself the news: /health is 503.
 *
 * A client can hold one of CLIENTS_MAX connections and CLIENT_BYTES of memory; it sends a GET of
 * these two paths or gets an error. Its request and the answer have CLIENT_S seconds from their
 * first moment, whatever trickles in. An address has CLIENTS_ADDRESS_MAX places: one more from it
 * takes the place of its own oldest. Where all places are taken, a newcomer gets that of the oldest
 * of the address that has most. So nobody keeps the others out, not even from the same address.
 *
 * The thread is ours, and waits for the library's epoll: that has no limit of 1024 files, and the
 * times above need a clock that the library has not. All clients are this thread's alone.
 */
#include "cmd/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>
#include <microhttpd.h>

#include "base/bytes.h"
#include "base/must.h"

#define SNAPSHOT_NS (200 * NS_PER_MS)
#define WAIT_NS (1 * NS_PER_S)
#define CLIENTS_MAX 32
#define CLIENTS_ADDRESS_MAX 24
#define CLIENT_S 5
#define CLIENT_BYTES (16 * KiB)

enum scope { ARRAY, KV, BLOCK, DRIVE, HOST };
enum kind { GAUGE, COUNTER };

static const struct metric {
	const char *name, *help;
	enum kind kind;
	enum scope scope;
	size_t at;
} metrics[] = {
#define FIELD_ARRAY(field) offsetof(struct target_counts, field)
#define FIELD_KV(field) offsetof(struct store_stat, field)
#define FIELD_BLOCK(field) offsetof(struct block_stat, field)
#define FIELD_DRIVE(field) offsetof(struct disk_counts, field)
#define FIELD_HOST(field) offsetof(struct target_host_counts, field)
#define METRIC(name, kind, scope, field, help)                                                     \
	{"kvof_" #name, help, kind, scope, FIELD_##scope(field)},
#include "tbl/metrics.def"
};

struct client {
	int fd;
	bool taken, doomed;                  /* doomed: shut down, not closed yet */
	uint8_t address[16];                 /* zeros, then IPv4; of IPv6 the network, 64 bits */
	uint64_t begun_ns;                   /* of the connection, then of its newest request */
};

struct http {
	struct MHD_Daemon *daemon;
	struct array *array;
	int event_fd, stop_fd, epoll_fd;
	pthread_t thread;
	struct client client[CLIENTS_MAX];
	atomic_bool busy, draining;
	bool stopped;
	uint64_t taken_ns;                   /* 0: never */
	struct array_rows rows;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* --- the snapshot -------------------- */

static void rows_done(struct array_rows *r)
{
	struct http *h = container_of(r, struct http, rows);
	uint64_t one = 1;

	atomic_store(&h->busy, false);
	must(write(h->event_fd, &one, sizeof(one)) == sizeof(one));
}

/* False: the loop has not answered in time; what is there must not be looked at. */
static bool snapshot_take(struct http *h)
{
	struct pollfd ready = {.fd = h->event_fd, .events = POLLIN};
	uint64_t count, now = now_ns();

	if (!atomic_load(&h->busy) && h->taken_ns != 0 && now - h->taken_ns < SNAPSHOT_NS)
		return true;
	if (!atomic_load(&h->busy)) {
		if (read(h->event_fd, &count, sizeof(count)) < 0)
			must(errno == EAGAIN);
		atomic_store(&h->busy, true);
		h->rows.done = rows_done;
		array_collect(h->array, &h->rows);
	}
	while (atomic_load(&h->busy)) {
		uint64_t gone = now_ns() - now;

		if (gone >= WAIT_NS)
			return false;
		(void)poll(&ready, 1, (int)((WAIT_NS - gone) / NS_PER_MS) + 1);
	}
	h->taken_ns = now_ns();
	return true;
}

/* --- /metrics -------------------- */

/* The text format wants \, " and line ends escaped; names of ours have none, paths may. It is
 * UTF-8: for one byte that is none a scraper drops all of it, so the byte is shown as '?'. */
static void label_write(FILE *out, const char *name, const char *value)
{
	fprintf(out, "%s=\"", name);
	for (; *value != '\0'; value++) {
		size_t bytes = bytes_utf8((const uint8_t *)value, strlen(value));

		if (bytes != 1) {
			fprintf(out, "%.*s", bytes == 0 ? 1 : (int)bytes, bytes == 0 ? "?" : value);
			value += bytes == 0 ? 0 : bytes - 1;
			continue;
		}
		if (*value == '\\' || *value == '"')
			fputc('\\', out);
		if (*value == '\n')
			fputs("\\n", out);
		else
			fputc((unsigned char)*value < ' ' ? '?' : *value, out);
	}
	fputc('"', out);
}

static void ns_labels(FILE *out, const struct array_row *r)
{
	char text[37], *at = text;

	for (unsigned i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += snprintf(at, 3, "%02x", r->ns.uuid[i]);
	}
	fputc('{', out);
	label_write(out, "subsystem", r->nqn);
	fprintf(out, ",nsid=\"%u\",uuid=\"%s\"}", r->ns.nsid, text);
}

static void name_label(FILE *out, const char *label, const char *value)
{
	fputc('{', out);
	label_write(out, label, value);
	fputc('}', out);
}

static void value_write(FILE *out, const struct metric *m, const void *counts)
{
	uint64_t value;

	memcpy(&value, (const char *)counts + m->at, sizeof(value));
	fprintf(out, " %llu\n", (unsigned long long)value);
}

static void ns_write(FILE *out, const struct metric *m, const struct array_rows *all)
{
	for (unsigned i = 0; i < all->count; i++) {
		const struct array_row *r = &all->row[i];

		if (r->ns.kind != (m->scope == KV ? SET_KV : SET_BLOCK))
			continue;
		fputs(m->name, out);
		ns_labels(out, r);
		value_write(out, m, m->scope == KV ? (const void *)&r->kv : &r->block);
	}
}

static void head_write(FILE *out, const char *name, const char *help, enum kind kind)
{
	fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
		kind == COUNTER ? "counter" : "gauge");
}

static void metric_write(FILE *out, const struct metric *m, const struct array_rows *all)
{
	head_write(out, m->name, m->help, m->kind);
	switch (m->scope) {
	case ARRAY:
		fputs(m->name, out);
		value_write(out, m, &all->target);
		break;
	case DRIVE:
		for (unsigned i = 0; i < all->drive_count; i++) {
			fputs(m->name, out);
			name_label(out, "drive", all->drive[i].path);
			value_write(out, m, &all->drive[i].counts);
		}
		break;
	case HOST:
		for (unsigned i = 0; i < all->host_count; i++) {
			fputs(m->name, out);
			name_label(out, "host", all->host[i].nqn);
			value_write(out, m, &all->host[i].counts);
		}
		break;
	default:
		ns_write(out, m, all);
	}
}

/* What is no 64-bit member of a struct of counters. */
static void states_write(FILE *out, const struct array_rows *all)
{
	head_write(out, "kvof_info", "The program.", GAUGE);
	fprintf(out, "kvof_info{version=\"%s\"} 1\n", KVOF_VERSION);
	head_write(out, "kvof_drive_up", "1: all its parts serve; 0: one has failed or is missing.",
		   GAUGE);
	for (unsigned i = 0; i < all->drive_count; i++) {
		fputs("kvof_drive_up", out);
		name_label(out, "drive", all->drive[i].path);
		fprintf(out, " %d\n", !all->drive[i].failed && !all->drive[i].missing);
	}
	head_write(out, "kvof_host_controllers", "Controllers of the host now.", GAUGE);
	for (unsigned i = 0; i < all->host_count; i++) {
		fputs("kvof_host_controllers", out);
		name_label(out, "host", all->host[i].nqn);
		fprintf(out, " %u\n", all->host[i].ctrls);
	}
}

static void metrics_write(struct http *h, FILE *out)
{
	states_write(out, &h->rows);
	for (unsigned i = 0; i < ARRAY_COUNT(metrics); i++)
		metric_write(out, &metrics[i], &h->rows);
}

/* --- /health -------------------- */

/* Reasons why this array should get no new work; empty: it is well. */
static json_t *reasons_of(struct http *h, bool answered)
{
	json_t *reasons = json_array(), *path;
	char text[400];

	if (atomic_load(&h->draining))
		json_array_append_new(reasons, json_string("draining: the array stops"));
	if (!answered)
		json_array_append_new(reasons, json_string("the array does not answer"));
	for (unsigned i = 0; answered && i < h->rows.drive_count; i++) {
		const struct array_drive *d = &h->rows.drive[i];

		if (!d->failed && !d->missing)
			continue;
		snprintf(text, sizeof(text), "drive %s: %s", d->path,
			 d->missing ? "is missing" : "has failed");
		path = json_string(text);
		json_array_append_new(reasons, path != NULL ? path :
				      json_string("a drive has failed or is missing"));
	}
	return reasons;
}

static bool health_write(struct http *h, FILE *out, bool answered)
{
	json_t *reasons = reasons_of(h, answered), *all;
	bool well = json_array_size(reasons) == 0;

	all = json_pack("{s:s, s:o}", "status", well ? "ok" : "failing", "reasons", reasons);
	must(all != NULL && json_dumpf(all, out, JSON_COMPACT) == 0);
	fputc('\n', out);
	json_decref(all);
	return well;
}

/* --- requests -------------------- */

static enum MHD_Result answer_text(struct MHD_Connection *client, unsigned code, const char *type,
				   char *text, size_t bytes)
{
	struct MHD_Response *r =
		MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);
	enum MHD_Result rc;

	if (r == NULL) {
		free(text);
		return MHD_NO;
	}
	(void)MHD_add_response_header(r, "Content-Type", type);
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		(void)MHD_add_response_header(r, "Allow", "GET, HEAD");
	rc = MHD_queue_response(client, code, r);
	MHD_destroy_response(r);
	return rc;
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *client, const char *url,
			      const char *method, const char *version, const char *upload,
			      size_t *upload_bytes, void **state)
{
	bool health = strcmp(url, "/health") == 0, answered;
	unsigned code = MHD_HTTP_OK;
	struct http *h = arg;
	char *text = NULL;
	size_t bytes = 0;
	bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
	FILE *out;

	if (*upload_bytes != 0 || (*state == NULL && get)) {
		*state = h;                            /* a body is read and dropped */
		*upload_bytes = 0;
		return MHD_YES;
	}
	out = open_memstream(&text, &bytes);
	if (out == NULL)
		return MHD_NO;
	if (!get) {
		code = MHD_HTTP_METHOD_NOT_ALLOWED;
		fputs("GET is all there is\n", out);
	} else if (!health && strcmp(url, "/metrics") != 0) {
		code = MHD_HTTP_NOT_FOUND;
		fputs("/metrics and /health are all there is\n", out);
	} else {
		answered = snapshot_take(h);
		if (health)
			code = health_write(h, out, answered) ? code : MHD_HTTP_SERVICE_UNAVAILABLE;
		else if (answered)
			metrics_write(h, out);
		else
			code = MHD_HTTP_SERVICE_UNAVAILABLE;
	}
	if (fclose(out) != 0) {
		free(text);
		return MHD_NO;
	}
	return answer_text(client, code, health && code != MHD_HTTP_METHOD_NOT_ALLOWED ?
			   "application/json" : "text/plain; version=0.0.4; charset=utf-8", text,
			   bytes);
}

/* --- clients -------------------- */

static void address_take(struct MHD_Connection *c, uint8_t out[16])
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	struct sockaddr_in6 v6;
	struct sockaddr_in v4;

	memset(out, 0, 16);
	if (info == NULL || info->client_addr == NULL)
		return;
	if (info->client_addr->sa_family == AF_INET) {
		memcpy(&v4, info->client_addr, sizeof(v4));
		memcpy(out + 12, &v4.sin_addr, 4);
	} else if (info->client_addr->sa_family == AF_INET6) {
		memcpy(&v6, info->client_addr, sizeof(v6));
		if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
			memcpy(out + 12, v6.sin6_addr.s6_addr + 12, 4);
		else
			memcpy(out, v6.sin6_addr.s6_addr, 8);
	}
}

/* The library sees the end of the connection, closes it and tells client_told(). */
static void client_doom(struct client *c)
{
	if (c->doomed)
		return;
	c->doomed = true;
	(void)shutdown(c->fd, SHUT_RDWR);
}

/* Those that live and have the address of this one, itself too. */
static unsigned neighbours(const struct http *h, const struct client *of)
{
	unsigned count = 0;

	for (unsigned i = 0; i < CLIENTS_MAX; i++) {
		const struct client *c = &h->client[i];

		count += c->taken && !c->doomed && memcmp(c->address, of->address, 16) == 0;
	}
	return count;
}

/* After a newcomer: one place is free, or will be at once, for the next. */
static void room_make(struct http *h, const struct client *newcomer)
{
	bool own = neighbours(h, newcomer) > CLIENTS_ADDRESS_MAX;
	struct client *victim = NULL;
	unsigned live = 0, most = 0;

	for (unsigned i = 0; i < CLIENTS_MAX; i++) {
		struct client *c = &h->client[i];
		unsigned count;

		if (!c->taken || c->doomed)
			continue;
		live++;
		count = neighbours(h, c);
		if (own && memcmp(c->address, newcomer->address, 16) != 0)
			continue;
		if (c == newcomer || count < most ||
		    (count == most && victim != NULL && victim->begun_ns <= c->begun_ns))
			continue;
		most = count;
		victim = c;
	}
	if (victim != NULL && (own || live == CLIENTS_MAX))
		client_doom(victim);
}

static void client_told(void *arg, struct MHD_Connection *connection, void **context,
			enum MHD_ConnectionNotificationCode code)
{
	struct http *h = arg;
	struct client *c = *context;

	if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
		if (c != NULL)
			c->taken = false;
		return;
	}
	for (c = h->client; c->taken; c++)
		must(c + 1 < h->client + CLIENTS_MAX);
	*c = (struct client){.taken = true, .begun_ns = now_ns(),
		.fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)
			->connect_fd};
	address_take(connection, c->address);
	*context = c;
	room_make(h, c);
}

/* The answer is out: the time of the next request begins. */
static void request_done(void *arg, struct MHD_Connection *connection, void **state,
			 enum MHD_RequestTerminationCode why)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct client *c = info == NULL ? NULL : info->socket_context;

	(void)arg;
	(void)state;
	(void)why;
	if (c != NULL)
		c->begun_ns = now_ns();
}

/* Ends those whose time is over; how long until the next, -1: there is none. */
static int clients_expire(struct http *h)
{
	uint64_t now = now_ns(), next = UINT64_MAX;

	for (unsigned i = 0; i < CLIENTS_MAX; i++) {
		struct client *c = &h->client[i];
		uint64_t end = c->begun_ns + CLIENT_S * NS_PER_S;

		if (!c->taken || c->doomed)
			continue;
		if (end <= now)
			client_doom(c);
		else
			next = bytes_min(next, end - now);
	}
	return next == UINT64_MAX ? -1 : (int)(next / NS_PER_MS) + 1;
}

/* --- the thread -------------------- */

static void *http_run(void *arg)
{
	struct http *h = arg;
	struct pollfd ready[2] = {{.fd = h->stop_fd, .events = POLLIN},
		{.fd = h->epoll_fd, .events = POLLIN}};

	while ((ready[0].revents & POLLIN) == 0) {
		int wait_ms = clients_expire(h);
		MHD_UNSIGNED_LONG_LONG theirs_ms;

		if (MHD_get_timeout(h->daemon, &theirs_ms) == MHD_YES &&
		    (wait_ms < 0 || theirs_ms < (unsigned)wait_ms))
			wait_ms = (int)theirs_ms;
		if (poll(ready, 2, wait_ms) < 0)
			must(errno == EINTR);
		(void)MHD_run(h->daemon);
	}
	return NULL;
}

/* --- open and close -------------------- */

static bool address_of(const struct sock_addr *addr, struct sockaddr_storage *out)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)out;

	*out = (struct sockaddr_storage){.ss_family = AF_UNSPEC};
	if (inet_pton(AF_INET, addr->host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(addr->port);
	} else if (inet_pton(AF_INET6, addr->host, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(addr->port);
	}
	return out->ss_family != AF_UNSPEC;
}

static void fds_close(struct http *h)
{
	if (h->event_fd >= 0)
		close(h->event_fd);
	if (h->stop_fd >= 0)
		close(h->stop_fd);
}

static int daemon_open(struct http *h, struct sock_addr *addr)
{
	unsigned flags = MHD_USE_EPOLL;
	const union MHD_DaemonInfo *info;
	struct sockaddr_storage at;
	int why;

	if (!address_of(addr, &at))
		return -EINVAL;
	if (at.ss_family == AF_INET6)
		flags |= MHD_USE_IPv6;
	errno = 0;
	h->daemon = MHD_start_daemon(flags, addr->port, NULL, NULL, answer, h,
		MHD_OPTION_SOCK_ADDR, &at, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CLIENTS_MAX,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CLIENT_S,
		MHD_OPTION_NOTIFY_CONNECTION, client_told, h,
		MHD_OPTION_NOTIFY_COMPLETED, request_done, h,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CLIENT_BYTES, MHD_OPTION_END);
	why = errno;
	if (h->daemon == NULL)
		return why == EADDRNOTAVAIL ? -EINVAL : why == ENOMEM ? -ENOMEM : -EBUSY;
	info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
	if (info != NULL)
		addr->port = info->port;
	info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	must(info != NULL);
	h->epoll_fd = info->epoll_fd;
	return 0;
}

int http_open(struct sock_addr *addr, struct array *array, struct http **out)
{
	struct http *h = calloc(1, sizeof(*h));
	int rc;

	if (h == NULL)
		return -ENOMEM;
	h->array = array;
	h->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	h->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = h->event_fd < 0 || h->stop_fd < 0 ? -ENOMEM : daemon_open(h, addr);
	if (rc == 0 && pthread_create(&h->thread, NULL, http_run, h) != 0) {
		MHD_stop_daemon(h->daemon);
		rc = -ENOMEM;
	}
	if (rc == 0) {
		*out = h;
		return 0;
	}
	fds_close(h);
	free(h);
	return rc;
}

void http_draining(struct http *h)
{
	atomic_store(&h->draining, true);
}

void http_stop(struct http *h)
{
	uint64_t one = 1;

	must(!h->stopped);
	h->stopped = true;
	must(write(h->stop_fd, &one, sizeof(one)) == sizeof(one));
	must(pthread_join(h->thread, NULL) == 0);
	MHD_stop_daemon(h->daemon);
}

void http_free(struct http **hp)
{
	struct http *h = *hp;

	*hp = NULL;
	must(h->stopped && !atomic_load(&h->busy));
	fds_close(h);
	free(h);
}
