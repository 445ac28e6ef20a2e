/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread of libmicrohttpd answers; what it tells is gathered by the first loop when it is asked
 * for (array_collect()), at most once in SNAPSHOT_NS, so that no client makes work for a loop that
 * serves. While a collection is on its way only the loop touches `rows`, else only this thread:
 * `busy` says which. A loop that does not answer within WAIT_NS is itself the news: /health is 503.
 *
 * A client can hold one of CLIENTS_MAX connections for CLIENT_S seconds and CLIENT_BYTES of memory;
 * it sends a GET of these two paths or gets an error.
 */
#include "cmd/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>
#include <microhttpd.h>

#include "base/bytes.h"
#include "base/must.h"

#define SNAPSHOT_NS (200 * NS_PER_MS)
#define WAIT_NS (1 * NS_PER_S)
#define CLIENTS_MAX 32
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

struct http {
	struct MHD_Daemon *daemon;
	struct array *array;
	int event_fd;
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

int http_open(struct sock_addr *addr, struct array *array, struct http **out)
{
	struct http *h = calloc(1, sizeof(*h));
	const union MHD_DaemonInfo *info;
	struct sockaddr_storage at;
	unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD;

	if (h == NULL)
		return -ENOMEM;
	h->array = array;
	h->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (h->event_fd < 0 || !address_of(addr, &at)) {
		if (h->event_fd >= 0)
			close(h->event_fd);
		free(h);
		return -EINVAL;
	}
	if (at.ss_family == AF_INET6)
		flags |= MHD_USE_IPv6;
	errno = 0;
	h->daemon = MHD_start_daemon(flags, addr->port, NULL, NULL, answer, h,
		MHD_OPTION_SOCK_ADDR, &at, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CLIENTS_MAX,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CLIENT_S,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CLIENT_BYTES, MHD_OPTION_END);
	if (h->daemon == NULL) {
		int why = errno;

		close(h->event_fd);
		free(h);
		return why == EADDRNOTAVAIL ? -EINVAL : why == ENOMEM ? -ENOMEM : -EBUSY;
	}
	info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
	if (info != NULL)
		addr->port = info->port;
	*out = h;
	return 0;
}

void http_draining(struct http *h)
{
	atomic_store(&h->draining, true);
}

void http_stop(struct http *h)
{
	must(!h->stopped);
	h->stopped = true;
	MHD_stop_daemon(h->daemon);
}

void http_free(struct http **hp)
{
	struct http *h = *hp;

	*hp = NULL;
	must(h->stopped && !atomic_load(&h->busy));
	close(h->event_fd);
	free(h);
}
