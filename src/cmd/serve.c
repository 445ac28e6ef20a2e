/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `kvof serve`: opens the drives, one KV namespace over them, and serves it until SIGTERM, SIGINT
 * or SIGHUP.
 *
 *	options ─ checked ─ loop ─ store ─ target ─ listeners ─ "ready" ─ loop_run
 *	signal  ─ target_close (commands end, at most 2 s) ─ store_close (seals, marks clean) ─ exit
 *
 * What can be refused is refused before anything is touched: options first, then the listeners'
 * ports are taken only after the store is open. A stop that takes longer than STOP_NS ends with
 * exit code 3; the store is made for that. One thread, one loop.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/must.h"
#include "cmd/cmd.h"
#include "cmd/config.h"
#include "nvme/fabrics.h"
#include "target/target.h"

#define DRAIN_NS (2 * NS_PER_S)
#define STOP_NS (4500 * NS_PER_MS)
#define FILES_SPARE 64

struct serve {
	struct config config;
	struct loop *loop;
	struct store_opts store_opts;
	struct store *store;
	struct target *target;
	struct sock_addr listen[CONFIG_VALUES_MAX];
	unsigned listen_count, conns_max;
	char path[STORE_DRIVES_MAX][256];
	bool memory;
	int signal_fd;
	struct loop_op signal_op;
	struct loop_timer watchdog;
	bool stopping;
};

/* --- options -------------------- */

static bool is_loopback(const char *host)
{
	struct in_addr v4;
	struct in6_addr v6;

	if (inet_pton(AF_INET, host, &v4) == 1)
		return ntohl(v4.s_addr) >> 24 == 127;
	return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static bool is_any(const char *host)
{
	struct in_addr v4;
	struct in6_addr v6;

	if (inet_pton(AF_INET, host, &v4) == 1)
		return v4.s_addr == INADDR_ANY;
	return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

/* Port 0 is another port each time. */
static bool listen_before(const struct serve *s, unsigned i)
{
	const struct sock_addr *a = &s->listen[i];

	for (unsigned k = 0; k < i; k++)
		if (a->port != 0 && s->listen[k].port == a->port &&
		    strcmp(s->listen[k].host, a->host) == 0)
			return true;
	return false;
}

static int check_listen(struct serve *s)
{
	const struct config_value *v = &s->config.value[CONFIG_listen];
	uint8_t numeric[16];

	if (v->count > TARGET_LISTENERS) {
		cmd_error("serve", "--listen: %u addresses, at most %u", v->count,
			  (unsigned)TARGET_LISTENERS);
		return CMD_USAGE;
	}
	for (unsigned i = 0; i < v->count; i++) {
		struct sock_addr *a = &s->listen[i];

		must(config_address_parse(v->text[i], a));
		if (inet_pton(AF_INET, a->host, numeric) != 1 &&
		    inet_pton(AF_INET6, a->host, numeric) != 1) {
			cmd_error("serve", "--listen %s: the address must be numeric", v->text[i]);
			return CMD_USAGE;
		}
		if (!is_loopback(a->host) && s->config.value[CONFIG_allow_host].count == 0) {
			cmd_error("serve", "--listen %s: not loopback: name the hosts that may "
				  "connect with --allow-host NQN", v->text[i]);
			return CMD_USAGE;
		}
		if (listen_before(s, i)) {
			cmd_error("serve", "--listen %s: given twice", v->text[i]);
			return CMD_USAGE;
		}
	}
	s->listen_count = v->count;
	return 0;
}

static int check_drives(struct serve *s)
{
	const struct config_value *v = &s->config.value[CONFIG_drive];
	const char *why;

	if (v->count == 0) {
		cmd_error("serve", "no drive: name at least one with --drive PATH[,size=S]");
		return CMD_USAGE;
	}
	if (v->count > STORE_DRIVES_MAX) {
		cmd_error("serve", "--drive: %u drives, at most %u", v->count,
			  (unsigned)STORE_DRIVES_MAX);
		return CMD_USAGE;
	}
	for (unsigned i = 0; i < v->count; i++) {
		struct store_drive *d = &s->store_opts.drive[i];

		must(config_drive_parse(v->text[i], s->path[i], &d->bytes, &why));
		d->path = s->path[i];
		s->memory |= strcmp(d->path, "mem") == 0;
		for (unsigned k = 0; k < i; k++) {
			if (strcmp(s->path[k], d->path) == 0 && strcmp(d->path, "mem") != 0) {
				cmd_error("serve", "--drive %s: given twice", d->path);
				return CMD_USAGE;
			}
		}
	}
	s->store_opts.drive_count = v->count;
	return 0;
}

static int check_options(struct serve *s)
{
	const struct config *c = &s->config;
	int code;

	if (config_number(c, CONFIG_block) > 0) {
		cmd_error("serve", "--block %s: block namespaces are not in this version; leave "
			  "it out", config_text(c, CONFIG_block));
		return CMD_USAGE;
	}
	if (config_is_set(c, CONFIG_metrics)) {
		cmd_error("serve", "--metrics %s: metrics over HTTP are not in this version; "
			  "kvof stat shows the counters", config_text(c, CONFIG_metrics));
		return CMD_USAGE;
	}
	if (config_is_set(c, CONFIG_kv) && config_number(c, CONFIG_kv) == 0) {
		cmd_error("serve", "--kv 0: then there is nothing to serve (block namespaces are "
			  "not in this version)");
		return CMD_USAGE;
	}
	if (strcmp(config_text(c, CONFIG_subsystem), NV_DISCOVERY_NQN) == 0) {
		cmd_error("serve", "--subsystem %s: the name of Discovery; choose another",
			  config_text(c, CONFIG_subsystem));
		return CMD_USAGE;
	}
	if (c->value[CONFIG_allow_host].count > TARGET_HOSTS) {
		cmd_error("serve", "--allow-host: %u names, at most %u",
			  c->value[CONFIG_allow_host].count, (unsigned)TARGET_HOSTS);
		return CMD_USAGE;
	}
	code = check_listen(s);
	return code != 0 ? code : check_drives(s);
}

static void fill_store_opts(struct serve *s)
{
	const struct config *c = &s->config;
	struct store_opts *o = &s->store_opts;
	uint64_t buffers;

	o->cap_bytes = config_number(c, CONFIG_kv);
	o->segment_bytes = (uint32_t)config_number(c, CONFIG_segment_bytes);
	o->value_bytes_max = (uint32_t)config_number(c, CONFIG_value_bytes_max);
	o->index_keys_max = config_number(c, CONFIG_index_keys);
	buffers = config_number(c, CONFIG_buffer_bytes);
	if (buffers == 0)
		buffers = 8 * (uint64_t)o->value_bytes_max > 64 * MiB ?
			8 * (uint64_t)o->value_bytes_max : 64 * MiB;
	o->buffer_bytes = buffers;
	o->evict = strcmp(config_text(c, CONFIG_on_full), "evict") == 0;
	o->ack_durable = strcmp(config_text(c, CONFIG_ack), "durable") == 0;
	o->format = config_bool(c, CONFIG_format);
	o->degraded = config_bool(c, CONFIG_degraded);
}

/* --- start -------------------- */

static int listen_failed(const struct serve *s, unsigned i, int rc)
{
	cmd_error("serve", "--listen %s: %s", s->config.value[CONFIG_listen].text[i],
		  rc == -EBUSY ? "the port is in use; choose another, or stop who has it" :
		  rc == -EINVAL ? "this machine has no such address" : strerror(-rc));
	return rc == -EINVAL ? CMD_USAGE : CMD_FAILED;
}

/* Ports are tried before the drives are touched: a port in use leaves no new store behind. */
static int check_ports(struct serve *s)
{
	for (unsigned i = 0; i < s->listen_count; i++) {
		int rc = sock_listen_try(&s->listen[i]);

		if (rc != 0)
			return listen_failed(s, i, rc);
	}
	return 0;
}

/* As many connections as there are file descriptors for; print_memory() says so. */
static void fit_files(struct serve *s)
{
	unsigned want = (unsigned)config_number(&s->config, CONFIG_connections);
	struct rlimit lim;

	s->conns_max = want;
	if (getrlimit(RLIMIT_NOFILE, &lim) != 0)
		return;
	lim.rlim_cur = lim.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY)
		return;
	if (lim.rlim_cur >= want + FILES_SPARE)
		return;
	s->conns_max = lim.rlim_cur > FILES_SPARE + 8 ? (unsigned)lim.rlim_cur - FILES_SPARE : 8;
}

static int open_loop(struct serve *s)
{
	struct loop_opts opts = {.name = "kvof-serve", .ops_max = 4 * s->conns_max + 4096,
				 .timers_max = 4 * s->conns_max + TARGET_CTRLS + 64};
	int rc = loop_open(&opts, &s->loop);

	if (rc == 0)
		return 0;
	cmd_error("serve", "event loop: %s; see the line above, or ulimit -l and -n",
		  strerror(-rc));
	return CMD_FAILED;
}

static int open_store(struct serve *s)
{
	struct store_report report = {0};
	int rc = store_open(&s->store_opts, s->loop, &s->store, &report);

	if (rc == 0) {
		if (report.text[0] != '\0')
			fprintf(stderr, "kvof serve: %s\n", report.text);
		return 0;
	}
	cmd_error("serve", "%s%s", report.text[0] != '\0' ? report.text : strerror(-rc),
		  rc == -EPROTO ? " (--format)" : "");
	switch (rc) {
	case -EINVAL:
	case -ENOENT:
		return CMD_USAGE;
	case -EPROTO:
		return CMD_REFUSED;
	default:
		return CMD_FAILED;
	}
}

static int open_target(struct serve *s)
{
	const struct config *c = &s->config;
	struct target_ns_opts ns = {.nsid = 1, .store = s->store, .memory = s->memory,
		.evicts = s->store_opts.evict, .durable = s->store_opts.ack_durable};
	struct target_subsys_opts subsys = {
		.host = (const char *const *)c->value[CONFIG_allow_host].text,
		.host_count = c->value[CONFIG_allow_host].count, .ns = &ns, .ns_count = 1};
	struct target_opts opts = {.loop = s->loop, .subsys = &subsys, .subsys_count = 1,
		.handshake_ns = config_number(c, CONFIG_handshake),
		.stall_ns = config_number(c, CONFIG_stall),
		.queues = (unsigned)config_number(c, CONFIG_io_queues), .conns_max = s->conns_max,
		.ctrls_max = (unsigned)config_number(c, CONFIG_controllers)};
	char why[256] = "";
	int rc;

	snprintf(subsys.nqn, sizeof(subsys.nqn), "%s", config_text(c, CONFIG_subsystem));
	rc = target_open(&opts, why, &s->target);
	if (rc == 0)
		return 0;
	cmd_error("serve", "%s", why[0] != '\0' ? why : strerror(-rc));
	return rc == -EINVAL ? CMD_USAGE : CMD_FAILED;
}

/* For 0.0.0.0 or ::, Discovery must name an address that a host can use: the first that is up. */
static const char *advertised(const char *host, char out[64])
{
	bool v6 = strchr(host, ':') != NULL;
	const char *found = NULL;
	struct ifaddrs *all;

	if (!is_any(host) || getifaddrs(&all) != 0)
		return NULL;
	for (struct ifaddrs *i = all; i != NULL && found == NULL; i = i->ifa_next) {
		const void *at;

		if (i->ifa_addr == NULL || (i->ifa_flags & (IFF_UP | IFF_LOOPBACK)) != IFF_UP ||
		    i->ifa_addr->sa_family != (v6 ? AF_INET6 : AF_INET))
			continue;
		at = v6 ? (const void *)&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)
				  ->sin6_addr :
			  (const void *)&((const struct sockaddr_in *)(const void *)i->ifa_addr)
				  ->sin_addr;
		found = inet_ntop(v6 ? AF_INET6 : AF_INET, at, out, 64);
	}
	freeifaddrs(all);
	return found;
}

static int open_listeners(struct serve *s)
{
	for (unsigned i = 0; i < s->listen_count; i++) {
		struct sock_addr *a = &s->listen[i];
		char other[64];
		int rc = target_listen(s->target, a, advertised(a->host, other), &a->port);

		if (rc != 0)
			return listen_failed(s, i, rc);
	}
	return 0;
}

static void print_memory(const struct serve *s)
{
	unsigned want = (unsigned)config_number(&s->config, CONFIG_connections);
	struct target_memory m = target_memory();
	uint64_t conns = s->conns_max * (m.conn_bytes + m.queue_bytes);
	struct store_stat stat;

	if (s->conns_max < want)
		fprintf(stderr, "kvof serve: %u connections at most, not %u: raise the limit of "
			"open files (ulimit -n)\n", s->conns_max, want);
	store_stat(s->store, &stat);
	fprintf(stderr, "kvof serve: memory: %" PRIu64 " MiB value buffers, %" PRIu64
		" MiB index (for %" PRIu64 " keys), up to %" PRIu64
		" MiB for %u connections (%" PRIu64 " KiB a full queue)%s\n",
		s->store_opts.buffer_bytes / MiB, (stat.index_bytes + MiB - 1) / MiB,
		stat.index_keys_max, conns / MiB,
		s->conns_max, m.queue_bytes / KiB,
		s->memory ? "; drives are memory: nothing survives a restart" : "");
}

static void address_print(const struct sock_addr *a, char *out, size_t out_bytes)
{
	bool v6 = strchr(a->host, ':') != NULL;

	snprintf(out, out_bytes, "tcp://%s%s%s:%u", v6 ? "[" : "", a->host, v6 ? "]" : "", a->port);
}

/* An array that nobody reads the line of serves all the same. */
static void print_ready(const struct serve *s)
{
	const char *nqn = config_text(&s->config, CONFIG_subsystem);
	json_t *all = json_array();
	char line[128];

	for (unsigned i = 0; i < s->listen_count; i++) {
		address_print(&s->listen[i], line, sizeof(line));
		json_array_append_new(all, json_string(line));
		if (!s->config.json)
			printf("%s%s", i == 0 ? "ready " : ",", line);
	}
	if (s->config.json) {
		cmd_json_print("serve", json_pack("{s:o, s:s, s:i, s:b, s:s}", "ready", all,
			"subsystem", nqn, "pid", (int)getpid(), "memory", s->memory, "loop",
			loop_kind()), CMD_DONE);
	} else {
		printf(" %s\n", nqn);
		json_decref(all);
		cmd_output_end("serve", CMD_DONE);
	}
}

/* --- stop -------------------- */

static void store_closed(void *arg)
{
	struct serve *s = arg;

	loop_timer_cancel(s->loop, &s->watchdog);
	loop_stop(s->loop);
}

static void target_closed(void *arg)
{
	struct serve *s = arg;

	store_close(&s->store, store_closed, s);
}

static void watchdog_fire(struct loop_timer *timer)
{
	cmd_error("serve", "the drives did not let go in time: stopped without sealing; the next "
		  "start recovers");
	_exit(CMD_FAILED);
}

static void stop_begin(struct serve *s)
{
	if (s->stopping)
		return;
	s->stopping = true;
	loop_timer_init(&s->watchdog, watchdog_fire);
	loop_timer_set(s->loop, &s->watchdog, loop_now_ns(s->loop) + STOP_NS);
	if (s->target != NULL)
		target_close(&s->target, DRAIN_NS, target_closed, s);
	else
		target_closed(s);
}

static void signal_came(struct loop_op *op, int res)
{
	struct serve *s = container_of(op, struct serve, signal_op);
	struct signalfd_siginfo info;

	if (res == -ECANCELED)
		return;
	if (read(s->signal_fd, &info, sizeof(info)) == sizeof(info))
		log_info("signal %u: stopping", info.ssi_signo);
	stop_begin(s);
}

static int open_signals(struct serve *s)
{
	struct sigaction hangup;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
		sigaddset(&set, SIGHUP);       /* a terminal that closes; ignored under nohup */
	if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
		return CMD_FAILED;
	s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (s->signal_fd < 0) {
		cmd_error("serve", "signals: %s", strerror(errno));
		return CMD_FAILED;
	}
	s->signal_op = (struct loop_op){.done = signal_came};
	loop_poll(s->loop, s->signal_fd, &s->signal_op);
	return 0;
}

/* --- all together -------------------- */

static int serve_open(struct serve *s)
{
	int code = check_options(s);

	if (code != 0)
		return code;
	fill_store_opts(s);
	fit_files(s);
	code = check_ports(s);
	code = code != 0 ? code : open_loop(s);
	code = code != 0 ? code : open_store(s);
	code = code != 0 ? code : open_target(s);
	code = code != 0 ? code : open_listeners(s);
	return code != 0 ? code : open_signals(s);
}

/* What was opened is closed in order, also when opening went wrong in the middle. */
static void serve_run(struct serve *s, bool serving)
{
	if (serving) {
		print_memory(s);
		print_ready(s);
	} else if (s->store != NULL) {
		stop_begin(s);
	} else {
		return;
	}
	loop_run(s->loop);
}

static enum log_level level_of(const char *name)
{
	return strcmp(name, "debug") == 0 ? LOG_DEBUG : strcmp(name, "info") == 0 ? LOG_INFO :
	       strcmp(name, "error") == 0 ? LOG_ERROR : LOG_WARN;
}

static void serve_usage(void)
{
	printf("usage: kvof serve [--config F] [options]\n\n"
	       "Serves a Key Value namespace on drives over NVMe/TCP until SIGTERM. Prints one\n"
	       "line when ready: ready tcp://ADDR:PORT NQN\n\n"
	       "  --config FILE                INI file, as kvof config --effective prints it.\n"
	       "  --json                       The ready line as JSON.\n");
	config_help();
}

int cmd_serve(int argc, char **argv)
{
	struct serve *s = calloc(1, sizeof(*s));
	char why[512];
	int code;

	if (s == NULL)
		return CMD_FAILED;
	s->signal_fd = -1;
	signal(SIGPIPE, SIG_IGN);              /* who reads our lines may leave before us */
	if (config_load(argc, argv, &s->config, why) != 0) {
		cmd_error("serve", "%s", why);
		free(s);
		return CMD_USAGE;
	}
	if (s->config.help) {
		serve_usage();
		code = cmd_output_end("serve", CMD_DONE);
	} else {
		log_level_set(level_of(config_text(&s->config, CONFIG_log)));
		code = serve_open(s);
		serve_run(s, code == 0);
	}
	if (s->signal_fd >= 0)
		close(s->signal_fd);
	if (s->loop != NULL)
		loop_close(&s->loop);
	config_free(&s->config);
	free(s);
	return code;
}
