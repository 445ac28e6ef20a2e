/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `kvof serve`: opens the drives and what is on them, and serves it until SIGTERM, SIGINT or
 * SIGHUP.
 *
 *	options ─ loops ─ array ─ target ─ listeners ─ control, metrics ─ "ready" ─ loop_run
 *	signal  ─ control ends what it is at ─ target_close (commands end, at most 2 s) ─ closer:
 *		  control and metrics go, stores seal and mark clean ─ loops stop ─ exit
 *
 * What can be refused is refused before anything is touched: options first, then the listeners'
 * ports are taken only after the array is open. A stop that takes longer than STOP_NS ends with
 * exit code 3; the store is made for that.
 *
 * Threads: the first loop is the main thread's; the other loops; control; metrics; and, at the
 * end, the closer, since closing blocks and the loops must turn meanwhile.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/must.h"
#include "cmd/array.h"
#include "cmd/cmd.h"
#include "cmd/config.h"
#include "cmd/http.h"
#include "cmd/manage.h"
#include "nvme/fabrics.h"

#define DRAIN_NS (2 * NS_PER_S)
#define STOP_NS (4500 * NS_PER_MS)
#define FILES_SPARE 64
#define CONNS_MIN 8

struct serve {
	struct config config;
	struct loop *loop[ARRAY_LOOPS_MAX];
	pthread_t thread[ARRAY_LOOPS_MAX];           /* of all loops but the first */
	unsigned loop_count;
	struct array_opts array_opts;
	struct array *array;
	struct target *target;
	struct manage manage;
	struct control *control;
	char control_path[CONTROL_PATH_BYTES];
	struct http *http;
	struct sock_addr metrics;
	struct sock_addr listen[CONFIG_VALUES_MAX];
	unsigned listen_count, conns_max;
	char path[STORE_DRIVES_MAX][256];
	bool memory;
	int signal_fd;
	struct loop_op signal_op;
	struct loop_timer watchdog;
	bool stopping;
	pthread_t closer;
	struct msg step;                             /* of the stop, to the first loop */
	struct msg stop_msg[ARRAY_LOOPS_MAX];
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
		struct store_drive *d = &s->array_opts.set.drive[i];

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
	s->array_opts.set.drive_count = v->count;
	return 0;
}

static int check_options(struct serve *s)
{
	const struct config *c = &s->config;
	uint8_t numeric[16];
	int code;

	if (config_number(c, CONFIG_block) % 4096 != 0) {
		cmd_error("serve", "--block %s: not a multiple of 4KiB",
			  config_text(c, CONFIG_block));
		return CMD_USAGE;
	}
	if (config_is_set(c, CONFIG_metrics)) {
		must(config_host_port_parse(config_text(c, CONFIG_metrics), &s->metrics));
		if (inet_pton(AF_INET, s->metrics.host, numeric) != 1 &&
		    inet_pton(AF_INET6, s->metrics.host, numeric) != 1) {
			cmd_error("serve", "--metrics %s: the address must be numeric",
				  config_text(c, CONFIG_metrics));
			return CMD_USAGE;
		}
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

static void fill_array_opts(struct serve *s)
{
	const struct config *c = &s->config;
	struct array_opts *o = &s->array_opts;
	struct array_want *w = &o->want;

	o->set.format = config_bool(c, CONFIG_format);
	o->set.degraded = config_bool(c, CONFIG_degraded);
	o->set.replace = config_bool(c, CONFIG_replace);
	o->set.shards = (unsigned)config_number(c, CONFIG_shards);
	o->segment_bytes = (uint32_t)config_number(c, CONFIG_segment_bytes);
	o->index_keys = config_number(c, CONFIG_index_keys);
	o->buffer_bytes = config_number(c, CONFIG_buffer_bytes);
	o->ack_durable = strcmp(config_text(c, CONFIG_ack), "durable") == 0;
	o->second_touch = strcmp(config_text(c, CONFIG_admit), "second-touch") == 0;
	o->carry_percent = (uint32_t)config_number(c, CONFIG_carry);
	if (o->carry_percent == 0)
		o->carry_percent = STORE_CARRY_NONE;
	o->keep_blocks = !config_bool(c, CONFIG_discard);
	o->drive_depth = (unsigned)config_number(c, CONFIG_drive_depth);
	o->set.drive_read_bytes_per_s = config_number(c, CONFIG_drive_rate);
	o->scrub_bytes = config_number(c, CONFIG_scrub);
	o->write_budget_percent = (uint32_t)config_number(c, CONFIG_write_budget);
	o->host = (const char *const *)c->value[CONFIG_allow_host].text;
	o->host_count = c->value[CONFIG_allow_host].count;
	w->kv_given = config_is_set(c, CONFIG_kv);
	w->kv_bytes = config_number(c, CONFIG_kv);
	w->block_given = config_is_set(c, CONFIG_block);
	w->block_size = config_number(c, CONFIG_block);
	w->block_bytes_given = config_is_set(c, CONFIG_block_bytes);
	w->block_bytes = strcmp(config_text(c, CONFIG_block_bytes), "512") == 0 ? 512 : 4096;
	w->value_given = config_is_set(c, CONFIG_value_bytes_max);
	w->value_bytes_max = (uint32_t)config_number(c, CONFIG_value_bytes_max);
	w->evict_given = config_is_set(c, CONFIG_on_full);
	w->evict = strcmp(config_text(c, CONFIG_on_full), "evict") == 0;
	w->nqn_given = config_is_set(c, CONFIG_subsystem);
	w->nqn = config_text(c, CONFIG_subsystem);
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

/*
 * As many connections as there are file descriptors for; print_memory() says so. Spare are what is
 * open before the first of them: of each loop a ring, a bell and a descriptor in exchange (a thread
 * that takes a loop over replaces its ring), the drives and what asks whether they answer, who
 * listens, the control socket and metrics with as many clients as they take, standard streams, and
 * what was inherited.
 */
static int fit_files(struct serve *s)
{
	unsigned want = (unsigned)config_number(&s->config, CONFIG_connections);
	unsigned spare = FILES_SPARE + 3 * s->loop_count + 2 * s->array_opts.set.drive_count +
			 s->listen_count;
	struct rlimit lim;

	s->conns_max = want;
	if (getrlimit(RLIMIT_NOFILE, &lim) != 0)
		return 0;
	lim.rlim_cur = lim.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY)
		return 0;
	if (lim.rlim_cur >= want + spare)
		return 0;
	if (lim.rlim_cur < CONNS_MIN + spare) {
		cmd_error("serve", "%" PRIu64 " files may be open (ulimit -n), at least %u are "
			  "needed", (uint64_t)lim.rlim_cur, CONNS_MIN + spare);
		return CMD_FAILED;
	}
	s->conns_max = (unsigned)lim.rlim_cur - spare;
	return 0;
}

static enum loop_kind kind_wanted(const struct serve *s)
{
	const char *text = config_text(&s->config, CONFIG_loop_kind);

	return strcmp(text, "plain") == 0 ? LOOP_PLAIN :
		strcmp(text, "io_uring") == 0 ? LOOP_IO_URING : LOOP_AUTO;
}

static void count_loops(struct serve *s)
{
	cpu_set_t allowed;
	int cores = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;

	s->loop_count = (unsigned)config_number(&s->config, CONFIG_loops);
	if (s->loop_count == 0)
		s->loop_count = cores < 1 ? 1 : cores > ARRAY_LOOPS_MAX ? ARRAY_LOOPS_MAX :
			(unsigned)cores;
}

static int open_loops(struct serve *s)
{
	struct loop_opts opts = {.name = "kvof-serve", .ops_max = 4 * s->conns_max + 4096,
				 .timers_max = 4 * s->conns_max + 128 +
		(unsigned)config_number(&s->config, CONFIG_controllers),
				 .kind = kind_wanted(s),
				 .spin_ns = config_number(&s->config, CONFIG_poll)};

	for (unsigned i = 0; i < s->loop_count; i++) {
		int rc = loop_open(&opts, &s->loop[i]);

		if (rc == 0)
			continue;
		cmd_error("serve", "event loop: %s; see the line above, or ulimit -l and -n",
			  strerror(-rc));
		return CMD_FAILED;
	}
	return 0;
}

static void *loop_thread(void *arg)
{
	loop_run(arg);
	return NULL;
}

/* A core each where there are enough: a loop that moves between cores loses its caches. */
static void loop_pin(pthread_t thread, unsigned index)
{
	cpu_set_t allowed, one;
	unsigned seen = 0;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		return;
	for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed) || seen++ != index)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		(void)pthread_setaffinity_np(thread, sizeof(one), &one);
		return;
	}
}

/* Without a thread nothing can be served, nor be closed in order: the next start recovers. */
static void thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
	int rc = pthread_create(thread, NULL, run, arg);

	if (rc == 0)
		return;
	cmd_error("serve", "no thread (%s): stopped without sealing; the next start recovers",
		  strerror(rc));
	_exit(CMD_FAILED);
}

static void loops_start(struct serve *s)
{
	bool pin = config_bool(&s->config, CONFIG_pin);
	cpu_set_t allowed;

	for (unsigned i = 1; i < s->loop_count; i++)
		thread_start(&s->thread[i], loop_thread, s->loop[i]);
	if (!pin || sched_getaffinity(0, sizeof(allowed), &allowed) != 0 ||
	    (unsigned)CPU_COUNT(&allowed) < s->loop_count)
		return;
	for (unsigned i = s->loop_count; i-- > 0;)
		loop_pin(i == 0 ? pthread_self() : s->thread[i], i);
}

static void loop_stop_msg(struct loop *here, struct msg *m)
{
	loop_stop(here);
}

static void loops_stop(struct serve *s)
{
	for (unsigned i = 0; i < s->loop_count; i++) {
		s->stop_msg[i] = (struct msg){.run = loop_stop_msg};
		loop_post(s->loop[i], &s->stop_msg[i]);
	}
}

static int open_array(struct serve *s)
{
	char why[512] = "";
	int code;

	s->array_opts.loop = s->loop;
	s->array_opts.loop_kind = kind_wanted(s);
	s->array_opts.loop_count = s->loop_count;
	code = array_open(&s->array_opts, &s->array, why);
	if (code != 0) {
		cmd_error("serve", "%s", why);
		return code;
	}
	s->memory = array_memory(s->array).memory;
	return 0;
}

static int open_target(struct serve *s)
{
	const struct config *c = &s->config;
	struct target_opts opts = {
		.handshake_ns = config_number(c, CONFIG_handshake),
		.stall_ns = config_number(c, CONFIG_stall),
		.queues = (unsigned)config_number(c, CONFIG_io_queues), .conns_max = s->conns_max,
		.ctrls_max = (unsigned)config_number(c, CONFIG_controllers),
		.multipath = config_bool(c, CONFIG_multipath)};
	char why[256] = "";
	int rc = array_target(s->array, &opts, why, &s->target);

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

/* A path that was asked for and can't be had ends the start; the standard one is only missed. */
static int open_control(struct serve *s)
{
	const char *path = config_text(&s->config, CONFIG_control);
	bool automatic = strcmp(path, "auto") == 0;
	char why[256] = "";
	int rc;

	if (strcmp(path, "none") == 0)
		return 0;
	if (automatic)
		control_path_default(s->listen[0].port, s->control_path);
	else
		snprintf(s->control_path, sizeof(s->control_path), "%s", path);
	s->manage = (struct manage){.array = s->array, .nqn = array_first_nqn(s->array)};
	rc = control_open(s->control_path, manage_answer, &s->manage, why, &s->control);
	if (rc == 0 && automatic)
		control_sweep(s->control_path);
	if (rc == 0)
		return 0;
	if (!automatic) {
		cmd_error("serve", "--control %s", why);
		return rc == -EINVAL ? CMD_USAGE : CMD_FAILED;
	}
	log_warn("no control socket (kvof ns): %s", why);
	s->control_path[0] = '\0';
	return 0;
}

static int open_http(struct serve *s)
{
	int rc;

	if (!config_is_set(&s->config, CONFIG_metrics))
		return 0;
	rc = http_open(&s->metrics, s->array, &s->http);
	if (rc == 0)
		return 0;
	cmd_error("serve", "--metrics %s: %s", config_text(&s->config, CONFIG_metrics),
		  rc == -EBUSY ? "the port is in use; choose another, or stop who has it" :
		  rc == -EINVAL ? "this machine has no such address" : strerror(-rc));
	return rc == -EINVAL ? CMD_USAGE : CMD_FAILED;
}

/* For people, or for who collects the log. */
static void say(void *arg, const char *text)
{
	const struct serve *s = arg;

	if (strcmp(config_text(&s->config, CONFIG_log_format), "json") == 0)
		log_notice("%s", text);
	else
		fprintf(stderr, "kvof serve: %s\n", text);
}

static void print_memory(struct serve *s)
{
	unsigned want = (unsigned)config_number(&s->config, CONFIG_connections);
	struct target_memory m = target_memory();
	uint64_t conns = s->conns_max * (m.conn_bytes + m.queue_bytes);
	struct array_memory a = array_memory(s->array);
	bool v6 = strchr(s->metrics.host, ':') != NULL;
	char text[400];

	if (s->conns_max < want) {
		snprintf(text, sizeof(text), "%u connections at most, not %u: raise the limit of "
			 "open files (ulimit -n)", s->conns_max, want);
		say(s, text);
	}
	snprintf(text, sizeof(text), "memory: %" PRIu64 " MiB value buffers, %" PRIu64
		 " MiB index (for %" PRIu64 " keys), up to %" PRIu64
		 " MiB for %u connections (%" PRIu64 " KiB a full queue)%s",
		 a.buffer_bytes / MiB, (a.index_bytes + MiB - 1) / MiB, a.index_keys, conns / MiB,
		 s->conns_max, m.queue_bytes / KiB,
		 s->memory ? "; drives are memory: nothing survives a restart" : "");
	say(s, text);
	if (s->http == NULL)
		return;
	snprintf(text, sizeof(text), "metrics http://%s%s%s:%u/metrics", v6 ? "[" : "",
		 s->metrics.host, v6 ? "]" : "", s->metrics.port);
	say(s, text);
}

static void address_print(const struct sock_addr *a, char *out, size_t out_bytes)
{
	bool v6 = strchr(a->host, ':') != NULL;

	snprintf(out, out_bytes, "tcp://%s%s%s:%u", v6 ? "[" : "", a->host, v6 ? "]" : "", a->port);
}

static void print_ready_json(const struct serve *s, json_t *all)
{
	json_t *out = json_pack("{s:o, s:s, s:i, s:b, s:s, s:i}", "ready", all, "subsystem",
		array_first_nqn(s->array), "pid", (int)getpid(), "memory", s->memory, "loop",
		loop_kind(s->loop[0]), "loops", (int)s->loop_count);

	must(out != NULL);
	if (s->control != NULL)
		json_object_set_new(out, "control", json_string(s->control_path));
	if (s->http != NULL)
		json_object_set_new(out, "metrics_port", json_integer(s->metrics.port));
	cmd_json_print("serve", out, CMD_DONE);
}

/* An array that nobody reads the line of serves all the same. */
static void print_ready(const struct serve *s)
{
	json_t *all = json_array();
	char line[128];

	for (unsigned i = 0; i < s->listen_count; i++) {
		address_print(&s->listen[i], line, sizeof(line));
		json_array_append_new(all, json_string(line));
		if (!s->config.json)
			printf("%s%s", i == 0 ? "ready " : ",", line);
	}
	if (s->config.json) {
		print_ready_json(s, all);
		return;
	}
	printf(" %s\n", array_first_nqn(s->array));
	json_decref(all);
	cmd_output_end("serve", CMD_DONE);
}

/* --- stop -------------------- */

/* Everything that blocks, while the loops turn. */
static void *closer_thread(void *arg)
{
	struct serve *s = arg;

	if (s->control != NULL)
		control_close(&s->control);
	if (s->http != NULL)
		http_stop(s->http);
	array_close(s->array);
	loops_stop(s);
	return NULL;
}

static void target_closed(void *arg)
{
	struct serve *s = arg;

	array_target_gone(s->array);
	thread_start(&s->closer, closer_thread, s);
}

static void control_has_ended(struct loop *here, struct msg *m)
{
	struct serve *s = container_of(m, struct serve, step);

	target_close(&s->target, DRAIN_NS, target_closed, s);
}

/* On the thread of control.c that accepts. */
static void control_ended(void *arg)
{
	struct serve *s = arg;

	s->step = (struct msg){.run = control_has_ended};
	loop_post(s->loop[0], &s->step);
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
	loop_timer_set(s->loop[0], &s->watchdog, loop_now_ns(s->loop[0]) + STOP_NS);
	if (s->http != NULL)
		http_draining(s->http);
	if (s->control != NULL)
		control_stop(s->control, control_ended, s);
	else
		control_ended(s);
}

static void signal_came(struct loop_op *op, int res)
{
	struct serve *s = container_of(op, struct serve, signal_op);
	struct signalfd_siginfo info;

	if (res == -ECANCELED)
		return;
	if (read(s->signal_fd, &info, sizeof(info)) == sizeof(info))
		log_event(LOG_INFO, "stopping", LOG_NUMBER("signal", info.ssi_signo));
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
	loop_poll(s->loop[0], s->signal_fd, &s->signal_op);
	return 0;
}

/* --- all together -------------------- */

static int serve_open(struct serve *s)
{
	int code = check_options(s);

	if (code != 0)
		return code;
	fill_array_opts(s);
	count_loops(s);
	code = fit_files(s);
	code = code != 0 ? code : check_ports(s);
	code = code != 0 ? code : open_loops(s);
	code = code != 0 ? code : open_array(s);
	code = code != 0 ? code : open_target(s);
	code = code != 0 ? code : open_listeners(s);
	code = code != 0 ? code : open_signals(s);     /* before the threads: they inherit it */
	code = code != 0 ? code : open_control(s);
	return code != 0 ? code : open_http(s);
}

/* A drive that never answers keeps its part, and the kernel may still write into our memory. */
static void leave_busy_drive(const struct serve *s)
{
	const char *path = array_busy_drive(s->array);

	if (path == NULL)
		return;
	cmd_error("serve", "drive %s: it still owes answers: stopped without it; the next start "
		  "recovers what it has", path);
	_exit(CMD_FAILED);
}

/* What was opened is closed in order, also when opening went wrong in the middle. */
static void serve_run(struct serve *s, bool serving)
{
	if (s->target == NULL) {
		if (s->array == NULL)
			return;
		array_close(s->array);
		leave_busy_drive(s);
		array_free(&s->array);
		return;
	}
	if (serving) {
		array_reports(s->array, say, s);
		print_memory(s);
		print_ready(s);
	} else {
		if (s->signal_op.done != NULL)
			loop_poll_cancel(s->loop[0], &s->signal_op);
		stop_begin(s);
	}
	loops_start(s);
	loop_run(s->loop[0]);
	for (unsigned i = 1; i < s->loop_count; i++)
		must(pthread_join(s->thread[i], NULL) == 0);
	must(pthread_join(s->closer, NULL) == 0);
	loop_timer_cancel(s->loop[0], &s->watchdog);
	if (s->http != NULL)
		http_free(&s->http);
	leave_busy_drive(s);
	array_free(&s->array);
}

static enum log_level level_of(const char *name)
{
	return strcmp(name, "debug") == 0 ? LOG_DEBUG : strcmp(name, "info") == 0 ? LOG_INFO :
	       strcmp(name, "error") == 0 ? LOG_ERROR : LOG_WARN;
}

static void serve_usage(void)
{
	printf("usage: kvof serve [--config F] [options]\n\n"
	       "Serves Key Value and block namespaces on drives over NVMe/TCP until SIGTERM.\n"
	       "Prints one line when ready: ready tcp://ADDR:PORT NQN\n\n"
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
		log_json_set(strcmp(config_text(&s->config, CONFIG_log_format), "json") == 0);
		code = serve_open(s);
		serve_run(s, code == 0);
	}
	if (s->signal_fd >= 0)
		close(s->signal_fd);
	for (unsigned i = 0; i < ARRAY_LOOPS_MAX; i++)
		if (s->loop[i] != NULL)
			loop_close(&s->loop[i]);
	config_free(&s->config);
	free(s);
	return code;
}
