/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `kvof serve` is killed with SIGKILL under load, again and again, and restarted on the same
 * drives; one client handle lives through all of it.
 *
 * usage: kill9_test KVOF [ROUNDS]      100 rounds by default; prints TAP
 *
 * Judged after every restart: each value is exactly the bytes of its last acknowledged Store, or of
 * a later one whose answer never came; nothing acknowledged is missing while less than half the
 * capacity has been written since (a cache evicts its oldest segments); usage stays within the
 * drives.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <kvof/client.h>

#include "base/must.h"
#include "base/prng.h"

#define KEYS 400
#define CHECKS 20u                    /* divides KEYS */
#define FLIGHT 12
#define DRIVES 4
#define DRIVE_MIB 96
#define VALUE_MAX (256 * 1024)
#define UNKNOWN_MAX 64

struct key {
	uint32_t acked;              /* version of the last acknowledged Store; 0: none yet */
	uint64_t acked_at;           /* bytes written by then */
	uint32_t unknown[UNKNOWN_MAX];
	unsigned unknown_count;      /* versions after acked whose outcome is not known */
	bool flying;
};

static struct {
	const char *kvof;
	char dir[64];
	int port;
	pid_t serve;
	struct kvof_client *client;
	struct prng p;
	struct key key[KEYS];
	uint32_t version;
	uint64_t written;
	uint64_t acked, unknown, hits, misses_allowed, wrong, lost, errors;
	uint8_t *buffer[FLIGHT];
	struct {
		uint64_t batch;
		unsigned key;
		uint32_t version;
	} flight[FLIGHT];
	unsigned flying;
	uint8_t *want, *got;
} T;

static uint32_t value_bytes(unsigned key, uint32_t version)
{
	struct prng p = prng_of((uint64_t)key << 32 | version);

	return (uint32_t)prng_below(&p, VALUE_MAX);
}

static uint32_t value_make(unsigned key, uint32_t version, uint8_t *out)
{
	struct prng p = prng_of((uint64_t)key << 32 | version);
	uint32_t bytes = (uint32_t)prng_below(&p, VALUE_MAX);

	prng_fill(&p, out, bytes);
	return bytes;
}

static struct kvof_key key_of(unsigned i)
{
	struct kvof_key k = {.bytes = 8};

	memcpy(k.byte, "kill", 4);
	memcpy(k.byte + 4, &i, 4);
	return k;
}

static int free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	must(fd >= 0 && bind(fd, (struct sockaddr *)&a, bytes) == 0);
	must(getsockname(fd, (struct sockaddr *)&a, &bytes) == 0);
	close(fd);
	return ntohs(a.sin_port);
}

/* Starts the array and waits for its ready line. */
static bool serve_start(void)
{
	char listen[64], drive[DRIVES][128], line[256];
	char *argv[5 + 2 * DRIVES];
	int out[2], n = 0;
	FILE *f;
	bool ready;

	snprintf(listen, sizeof(listen), "tcp://127.0.0.1:%d", T.port);
	argv[n++] = (char *)(uintptr_t)T.kvof;
	argv[n++] = (char *)(uintptr_t)"serve";
	argv[n++] = (char *)(uintptr_t)"--listen";
	argv[n++] = listen;
	for (int i = 0; i < DRIVES; i++) {
		snprintf(drive[i], sizeof(drive[i]), "%s/d%d,size=%dMiB", T.dir, i, DRIVE_MIB);
		argv[n++] = (char *)(uintptr_t)"--drive";
		argv[n++] = drive[i];
	}
	argv[n] = NULL;
	must(pipe2(out, O_CLOEXEC) == 0);
	T.serve = fork();
	must(T.serve >= 0);
	if (T.serve == 0) {
		dup2(out[1], 1);
		execv(T.kvof, argv);
		_exit(127);
	}
	close(out[1]);
	f = fdopen(out[0], "r");
	must(f != NULL);
	ready = fgets(line, sizeof(line), f) != NULL && strncmp(line, "ready ", 6) == 0;
	fclose(f);
	return ready;
}

static void serve_kill(int signo)
{
	int status;

	kill(T.serve, signo);
	waitpid(T.serve, &status, 0);
	T.serve = 0;
}

static void store_start(void)
{
	unsigned at = 0, k;
	struct kvof_client_req req = {.op = KVOF_CLIENT_STORE, .iov_count = 1};
	struct iovec iov;

	while (T.flight[at].batch != 0)
		at++;
	do {
		k = (unsigned)prng_below(&T.p, KEYS);
	} while (T.key[k].flying || T.key[k].unknown_count == UNKNOWN_MAX);
	T.flight[at].key = k;
	T.flight[at].version = ++T.version;
	iov = (struct iovec){T.buffer[at], value_make(k, T.version, T.buffer[at])};
	req.key = key_of(k);
	req.iov = &iov;
	T.key[k].flying = true;
	T.key[k].unknown[T.key[k].unknown_count++] = T.version;
	T.written += iov.iov_len + 4096;
	T.flying++;
	must(kvof_client_submit(T.client, &req, 1, 3 * NS_PER_S, &T.flight[at].batch) == 0);
}

static void store_ended(const struct kvof_client_result *r)
{
	unsigned at = 0;
	struct key *k;

	if (r->flags & KVOF_CLIENT_RELEASED)
		return;
	while (T.flight[at].batch != r->batch)
		at++;
	k = &T.key[T.flight[at].key];
	k->flying = false;
	if (r->res == 0) {
		T.acked++;
		k->acked = T.flight[at].version;
		k->acked_at = T.written;
		k->unknown_count = 0;
	} else {
		T.unknown++;
	}
	if (!r->busy) {
		T.flight[at].batch = 0;
		T.flying--;
	}
}

/* Takes results for at most ms; buffers still busy are waited for. */
static void drain(int ms)
{
	struct pollfd p = {.fd = kvof_client_fd(T.client), .events = POLLIN};
	struct kvof_client_result r[16];
	int n;

	poll(&p, 1, ms);
	n = kvof_client_drain(T.client, r, 16);
	for (int i = 0; i < n; i++) {
		store_ended(&r[i]);
		if (r[i].flags & KVOF_CLIENT_RELEASED)
			for (unsigned at = 0; at < FLIGHT; at++)
				if (T.flight[at].batch == r[i].batch) {
					T.flight[at].batch = 0;
					T.flying--;
				}
	}
}

static bool bytes_match(unsigned i, uint32_t version, uint32_t bytes, const uint8_t *got)
{
	return version != 0 && value_bytes(i, version) == bytes &&
	       value_make(i, version, T.want) == bytes && memcmp(T.want, got, bytes) == 0;
}

static void check_key(unsigned i, int rc, uint32_t bytes, const uint8_t *got)
{
	struct key *k = &T.key[i];
	bool good;

	if (rc == -ENOENT) {
		if (k->acked != 0 && T.written - k->acked_at < DRIVES * DRIVE_MIB * MiB / 2) {
			T.lost++;
			printf("# key %u: version %u was acknowledged and is gone\n", i, k->acked);
		} else {
			T.misses_allowed++;
		}
		k->acked = 0;
		k->unknown_count = 0;
		return;
	}
	if (rc != 0) {
		T.errors++;
		printf("# key %u: %s\n", i, kvof_error_text(rc));
		return;
	}
	good = bytes_match(i, k->acked, bytes, got);
	for (unsigned u = 0; u < k->unknown_count && !good; u++) {
		good = bytes_match(i, k->unknown[u], bytes, got);
		if (good)
			k->acked = k->unknown[u];
	}
	T.hits += good;
	if (!good) {
		T.wrong++;
		printf("# key %u: WRONG BYTES, %u of them\n", i, bytes);
	}
	k->unknown_count = 0;
}

/* Every key is read, CHECKS at once. */
static void check_all(void)
{
	struct kvof_client_req req[CHECKS];
	struct kvof_client_result res[CHECKS];
	struct iovec iov[CHECKS];

	for (unsigned i = 0; i < KEYS; i += CHECKS) {
		for (unsigned j = 0; j < CHECKS; j++) {
			iov[j] = (struct iovec){T.got + (size_t)j * VALUE_MAX, VALUE_MAX};
			memset(iov[j].iov_base, 0xa5, 64);
			req[j] = (struct kvof_client_req){.op = KVOF_CLIENT_RETRIEVE,
				.key = key_of(i + j), .iov = &iov[j], .iov_count = 1};
		}
		must(kvof_client_wait(T.client, req, CHECKS, 5 * NS_PER_S, res) == 0);
		for (unsigned j = 0; j < CHECKS; j++)
			check_key(i + j, res[j].res, res[j].value_bytes, iov[j].iov_base);
	}
}

static bool within_cap(void)
{
	char path[128];
	struct stat st;

	for (int i = 0; i < DRIVES; i++) {
		snprintf(path, sizeof(path), "%s/d%d", T.dir, i);
		if (stat(path, &st) != 0 || (uint64_t)st.st_size > DRIVE_MIB * MiB ||
		    (uint64_t)st.st_blocks * 512 > DRIVE_MIB * MiB + MiB)
			return false;
	}
	return true;
}

static bool round_run(unsigned round)
{
	uint64_t until = T.acked + 1 + prng_below(&T.p, 60);

	while (T.acked < until) {
		while (T.flying < FLIGHT)
			store_start();
		drain(2000);
	}
	serve_kill(SIGKILL);
	if (!serve_start()) {
		printf("# round %u: the array did not come up again\n", round);
		return false;
	}
	while (T.flying > 0)
		drain(4000);
	check_all();
	return within_cap();
}

static void cleanup(void)
{
	char path[128];

	for (int i = 0; i < DRIVES; i++) {
		snprintf(path, sizeof(path), "%s/d%d", T.dir, i);
		unlink(path);
	}
	rmdir(T.dir);
}

static void verdict(int n, bool good, const char *what)
{
	printf("%s %d - %s\n", good ? "ok" : "not ok", n, what);
}

static bool setup(void)
{
	struct kvof_client_opts o = {.struct_bytes = sizeof(o), .digests = 0};
	char target[64], why[256] = "";

	for (unsigned i = 0; i < FLIGHT; i++)
		must((T.buffer[i] = malloc(VALUE_MAX)) != NULL);
	must((T.want = malloc(VALUE_MAX)) != NULL);
	must((T.got = malloc((size_t)CHECKS * VALUE_MAX)) != NULL);
	snprintf(T.dir, sizeof(T.dir), "kill9-XXXXXX");
	must(mkdtemp(T.dir) != NULL);
	T.port = free_port();
	T.p = prng_of(getenv("KVOF_SEED") ? strtoull(getenv("KVOF_SEED"), NULL, 0) : 1);
	if (!serve_start()) {
		printf("Bail out! kvof serve did not start\n");
		return false;
	}
	snprintf(target, sizeof(target), "tcp://127.0.0.1:%d", T.port);
	o.target = target;
	if (kvof_client_open(&o, why, &T.client) != 0) {
		printf("Bail out! %s\n", why);
		return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	unsigned rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 100, r = 0;
	bool up = true;

	if (argc < 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(600);
	T.kvof = argv[1];
	if (!setup())
		return 1;
	for (; r < rounds && up && T.wrong + T.lost + T.errors == 0; r++)
		up = round_run(r);
	kvof_client_close(&T.client);
	if (T.serve > 0)
		serve_kill(SIGTERM);
	cleanup();
	printf("# %u kills: %llu acknowledged, %llu unknown, %llu verified, %llu absent, "
	       "%llu errors, %.0f MB written\n", r, (unsigned long long)T.acked,
	       (unsigned long long)T.unknown, (unsigned long long)T.hits,
	       (unsigned long long)T.misses_allowed, (unsigned long long)T.errors,
	       (double)T.written / 1e6);
	printf("1..4\n");
	verdict(1, up && r == rounds, "the array comes up after every kill, within its drives");
	verdict(2, T.wrong == 0 && T.hits > rounds, "no wrong byte");
	verdict(3, T.lost == 0, "nothing acknowledged is lost");
	verdict(4, T.errors == 0, "one client handle lives through all kills");
	return T.wrong + T.lost + T.errors == 0 && up ? 0 : 1;
}
