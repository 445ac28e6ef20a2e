/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What include/kvof/client.h promises, held against a real `kvof serve`: results in order, one
 * completion descriptor, order by key, deadlines, cancel, fork, any thread, loss and return.
 */
#include "kt.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <kvof/client.h>

#include "base/must.h"
#include "base/prng.h"
#include "serve_child.h"

#define SLACK_NS (500 * NS_PER_MS)     /* what a busy machine may add to a wait */

struct fixture {
	struct serve serve;
	struct kvof_client *client;
	char dir[64], drive[128];
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static struct kvof_client *client_open(const char *target, const struct kvof_client_opts *with)
{
	struct kvof_client_opts opts = with != NULL ? *with : (struct kvof_client_opts){0};
	struct kvof_client *client;
	char why[256] = "";

	opts.struct_bytes = sizeof(opts);
	opts.target = target;
	if (kvof_client_open(&opts, why, &client) != 0)
		fail_msg("open: %s", why);
	return client;
}

static void begin(struct fixture *t, const struct kvof_client_opts *opts)
{
	static const char *const words[] = {"--drive", "mem,size=256MiB", NULL};

	*t = (struct fixture){0};
	expect(serve_start(&t->serve, 0, words));
	t->client = client_open(t->serve.target, opts);
}

static void end(struct fixture *t)
{
	kvof_client_close(&t->client);
	expect(t->client == NULL);
	serve_end(&t->serve, SIGTERM);
}

static struct kvof_key key_of(const char *text)
{
	struct kvof_key k = {.bytes = (uint8_t)strlen(text)};

	must(k.bytes <= KVOF_KEY_BYTES_MAX);
	memcpy(k.byte, text, k.bytes);
	return k;
}

static struct kvof_key key_n(unsigned n)
{
	char text[17];

	snprintf(text, sizeof(text), "key-%08u", n);
	return key_of(text);
}

static int store(struct kvof_client *c, const char *key, const char *value)
{
	struct kvof_key k = key_of(key);

	return kvof_client_store(c, &k, value, strlen(value), 0, 0);
}

static void readable(struct kvof_client *c, bool want, int wait_ms)
{
	struct pollfd p = {.fd = kvof_client_fd(c), .events = POLLIN};

	expect(p.fd >= 0);
	expect_int(poll(&p, 1, wait_ms), want ? 1 : 0);
}

/* Drains until the batch's last event; counts results by index. */
static unsigned drain_batch(struct kvof_client *c, uint64_t batch, struct kvof_client_result *out,
			    unsigned n)
{
	unsigned seen = 0;
	bool last = false;

	kt_noise(out, n * sizeof(*out));
	while (!last) {
		struct kvof_client_result r[3];
		int got;

		readable(c, true, 20000);
		got = kvof_client_drain(c, r, 3);
		expect(got >= 0);
		for (int i = 0; i < got; i++) {
			expect(r[i].batch == batch);
			expect(!last);
			last = r[i].flags & KVOF_CLIENT_LAST;
			if (r[i].flags & KVOF_CLIENT_RELEASED)
				continue;
			expect(r[i].index < n);
			out[r[i].index] = r[i];
			seen++;
		}
	}
	return seen;
}

/* --- results ---------------------------------------------------------------------------------- */

TEST(batch_results_come_in_request_order_with_the_true_stored_length)
{
	struct fixture t;
	struct kvof_client_req req[40];
	struct kvof_client_result res[40];
	struct iovec iov[40];
	char value[4000], room[40][100];

	begin(&t, NULL);
	memset(value, 'v', sizeof(value));
	for (unsigned i = 0; i < 40; i++) {
		iov[i] = (struct iovec){value, i * 100};
		req[i] = (struct kvof_client_req){.op = KVOF_CLIENT_STORE, .key = key_n(i),
						  .iov = &iov[i], .iov_count = 1};
	}
	kt_noise(res, sizeof(res));
	expect_int(kvof_client_wait(t.client, req, 40, 0, res), 0);
	for (unsigned i = 0; i < 40; i++)
		expect_int(res[i].res, 0);
	for (unsigned i = 0; i < 40; i++) {
		iov[i] = (struct iovec){room[i], sizeof(room[i])};
		req[i].op = KVOF_CLIENT_RETRIEVE;
		req[i].key = i % 5 == 4 ? key_n(1000 + i) : key_n(39 - i);
	}
	kt_noise(res, sizeof(res));
	expect_int(kvof_client_wait(t.client, req, 40, 0, res), 0);
	for (unsigned i = 0; i < 40; i++) {
		expect_int(res[i].index, i);
		expect_int(res[i].busy, 0);
		if (i % 5 == 4) {
			expect_int(res[i].res, -ENOENT);
			continue;
		}
		expect_int(res[i].res, 0);
		expect_int(res[i].value_bytes, (39 - i) * 100);
		expect_int(res[i].moved_bytes, i == 39 ? 0 : 100);
	}
	end(&t);
}

TEST(a_value_is_gathered_from_and_scattered_to_pieces)
{
	struct fixture t;
	uint8_t out[30000], in[30000];
	struct iovec put[3] = {{out, 1}, {out + 1, 0}, {out + 1, 29999}};
	struct iovec get[4] = {{in, 7}, {in + 7, 8192}, {in + 8199, 21800}, {in + 29999, 1}};
	struct kvof_client_req req = {.op = KVOF_CLIENT_STORE, .key = key_n(1), .iov = put,
				      .iov_count = 3};
	struct kvof_client_result res;
	struct prng p = prng_of(1);

	prng_fill(&p, out, sizeof(out));
	kt_noise(in, sizeof(in));
	begin(&t, NULL);
	expect_int(kvof_client_wait(t.client, &req, 1, 0, &res), 0);
	expect_int(res.res, 0);
	req = (struct kvof_client_req){.op = KVOF_CLIENT_RETRIEVE, .key = key_n(1), .iov = get,
				       .iov_count = 4};
	expect_int(kvof_client_wait(t.client, &req, 1, 0, &res), 0);
	expect_int(res.res, 0);
	expect_mem(in, out, sizeof(out));
	end(&t);
}

TEST(one_descriptor_tells_when_to_drain_and_last_comes_once)
{
	struct fixture t;
	struct kvof_client_req req[100];
	struct kvof_client_result res[100], none;
	uint64_t batch = 0;

	begin(&t, NULL);
	readable(t.client, false, 0);
	expect_int(kvof_client_drain(t.client, &none, 1), 0);
	for (unsigned i = 0; i < 100; i++)
		req[i] = (struct kvof_client_req){.op = KVOF_CLIENT_EXIST, .key = key_n(i)};
	expect_int(kvof_client_submit(t.client, req, 100, 0, &batch), 0);
	expect(batch != 0);
	expect_int(drain_batch(t.client, batch, res, 100), 100);
	for (unsigned i = 0; i < 100; i++)
		expect_int(res[i].res, -ENOENT);
	expect_int(kvof_client_drain(t.client, &none, 1), 0);
	readable(t.client, false, 0);
	end(&t);
}

TEST(operations_on_one_key_take_effect_in_order)
{
	struct fixture t;
	struct kvof_client_req req[40];
	struct kvof_client_result res[40];
	struct iovec iov[40];
	uint32_t number[20], got[20];

	begin(&t, NULL);
	for (unsigned round = 0; round < 20; round++) {
		for (unsigned i = 0; i < 20; i++) {
			number[i] = round * 100 + i;
			got[i] = UINT32_MAX;
			iov[2 * i] = (struct iovec){&number[i], 4};
			iov[2 * i + 1] = (struct iovec){&got[i], 4};
			req[2 * i] = (struct kvof_client_req){
				.op = KVOF_CLIENT_STORE, .key = key_n(7), .iov = &iov[2 * i],
				.iov_count = 1};
			req[2 * i + 1] = (struct kvof_client_req){
				.op = KVOF_CLIENT_RETRIEVE, .key = key_n(7),
				.iov = &iov[2 * i + 1], .iov_count = 1};
		}
		expect_int(kvof_client_wait(t.client, req, 40, 0, res), 0);
		for (unsigned i = 0; i < 20; i++)
			expect_int(got[i], number[i]);
	}
	end(&t);
}

struct racer {
	pthread_t thread;
	struct kvof_client *client;
	unsigned wins, exists, other;
};

static void *race(void *arg)
{
	struct racer *r = arg;

	for (unsigned i = 0; i < 200; i++) {
		struct kvof_key key = key_n(i);
		int rc = kvof_client_store(r->client, &key, &r, sizeof(r), KVOF_CLIENT_IF_ABSENT,
					   0);

		r->wins += rc == 0;
		r->exists += rc == -EEXIST;
		r->other += rc != 0 && rc != -EEXIST;
	}
	return NULL;
}

TEST(store_if_absent_has_one_winner_among_threads_and_hosts)
{
	struct fixture t;
	struct racer r[6] = {0};
	struct kvof_client *second;
	unsigned wins = 0;

	begin(&t, NULL);
	second = client_open(t.serve.target, NULL);
	for (unsigned i = 0; i < 6; i++) {
		r[i].client = i % 2 ? t.client : second;
		expect_int(pthread_create(&r[i].thread, NULL, race, &r[i]), 0);
	}
	for (unsigned i = 0; i < 6; i++) {
		pthread_join(r[i].thread, NULL);
		expect_int(r[i].other, 0);
		wins += r[i].wins;
	}
	expect_int(wins, 200);
	kvof_client_close(&second);
	end(&t);
}

TEST(keys_are_listed_in_order_page_by_page)
{
	struct fixture t;
	struct kvof_key page[50], from = {0};
	unsigned seen = 0;
	size_t n;

	begin(&t, NULL);
	for (unsigned i = 0; i < 200; i++) {
		struct kvof_key key = key_n(i);

		expect_int(kvof_client_store(t.client, &key, "x", 1, 0, 0), 0);
	}
	for (;;) {
		size_t first = seen > 0;

		n = 12345;
		expect_int(kvof_client_list(t.client, &from, page, 50, 0, &n), 0);
		expect(n <= 50);
		if (n <= first)
			break;
		for (size_t i = first; i < n; i++) {
			struct kvof_key want = key_n(seen++);

			expect_mem(&page[i], &want, sizeof(want));
		}
		from = page[n - 1];
	}
	expect_int(seen, 200);
	end(&t);
}

/* --- deadlines and cancel --------------------------------------------------------------------- */

TEST(a_silent_array_does_not_hold_a_call_past_its_deadline)
{
	struct fixture t;
	struct kvof_key key = key_n(1);
	char room[1000];
	uint64_t begun_ns;

	begin(&t, NULL);
	expect_int(store(t.client, "key-00000001", "value"), 0);
	kill(t.serve.pid, SIGSTOP);
	for (unsigned i = 0; i < 3; i++) {
		begun_ns = now_ns();
		expect_int(kvof_client_retrieve(t.client, &key, room, sizeof(room),
						100 * NS_PER_MS, NULL), -ETIMEDOUT);
		expect(now_ns() - begun_ns >= 99 * NS_PER_MS);
		expect(now_ns() - begun_ns < 100 * NS_PER_MS + SLACK_NS);
	}
	kill(t.serve.pid, SIGCONT);
	expect_int(kvof_client_retrieve(t.client, &key, room, sizeof(room), 0, NULL), 0);
	expect_mem(room, "value", 5);
	end(&t);
}

TEST(a_late_result_that_is_busy_is_followed_by_its_release)
{
	struct fixture t;
	size_t bytes = 4 * MiB;
	char *value = calloc(1, bytes);
	struct iovec iov = {value, bytes};
	struct kvof_client_req req = {.op = KVOF_CLIENT_STORE, .key = key_n(1), .iov = &iov,
				      .iov_count = 1};
	struct kvof_client_result res;
	uint64_t batch, begun_ns;

	begin(&t, NULL);
	kill(t.serve.pid, SIGSTOP);
	begun_ns = now_ns();
	expect_int(kvof_client_submit(t.client, &req, 1, 100 * NS_PER_MS, &batch), 0);
	readable(t.client, true, 5000);
	expect(now_ns() - begun_ns < 100 * NS_PER_MS + SLACK_NS);
	expect_int(kvof_client_drain(t.client, &res, 1), 1);
	expect_int(res.res, -ETIMEDOUT);
	if (res.busy) {
		expect(!(res.flags & KVOF_CLIENT_LAST));
		readable(t.client, true, 1000);
		expect_int(kvof_client_drain(t.client, &res, 1), 1);
		expect_int(res.flags, KVOF_CLIENT_RELEASED | KVOF_CLIENT_LAST);
	} else {
		expect_int(res.flags, KVOF_CLIENT_LAST);
	}
	kill(t.serve.pid, SIGCONT);
	end(&t);
	free(value);
}

TEST(after_a_cancel_no_byte_is_written)
{
	struct fixture t;
	struct kvof_client_req req[100];
	struct kvof_client_result res[100];
	struct iovec iov[100];
	uint8_t *room = malloc(100 * 4096), *as_it_was = malloc(100 * 4096);
	struct kvof_key key = key_n(1);
	uint64_t batch;

	begin(&t, NULL);
	memset(room, 'v', 4096);
	expect_int(kvof_client_store(t.client, &key, room, 4096, 0, 0), 0);
	kill(t.serve.pid, SIGSTOP);
	for (unsigned i = 0; i < 100; i++) {
		iov[i] = (struct iovec){room + 4096 * i, 4096};
		req[i] = (struct kvof_client_req){.op = KVOF_CLIENT_RETRIEVE, .key = key,
						  .iov = &iov[i], .iov_count = 1};
	}
	kt_noise(room, 100 * 4096);
	expect_int(kvof_client_submit(t.client, req, 100, 60 * NS_PER_S, &batch), 0);
	expect_int(kvof_client_cancel(t.client, batch), 0);
	expect_int(drain_batch(t.client, batch, res, 100), 100);
	for (unsigned i = 0; i < 100; i++)
		expect_int(res[i].res, -ECANCELED);
	memcpy(as_it_was, room, 100 * 4096);
	kill(t.serve.pid, SIGCONT);
	for (unsigned i = 0; i < 50; i++)
		expect_int(kvof_client_exist(t.client, &key, 0), 0);
	expect_mem(room, as_it_was, 100 * 4096);
	expect_int(kvof_client_cancel(t.client, batch), 0);
	expect_int(kvof_client_cancel(t.client, 999999), 0);
	end(&t);
	free(room);
	free(as_it_was);
}

TEST(more_in_flight_than_agreed_is_refused_until_results_are_drained)
{
	struct kvof_client_opts opts = {.in_flight_max = 10};
	struct fixture t;
	struct kvof_client_req req[11];
	struct kvof_client_result res[11];
	uint64_t batch;

	begin(&t, &opts);
	for (unsigned i = 0; i < 11; i++)
		req[i] = (struct kvof_client_req){.op = KVOF_CLIENT_EXIST, .key = key_n(i)};
	expect_int(kvof_client_submit(t.client, req, 11, 0, &batch), -EBUSY);
	for (unsigned round = 0; round < 3; round++) {
		expect_int(kvof_client_submit(t.client, req, 10, 0, &batch), 0);
		readable(t.client, true, 5000);
		expect_int(kvof_client_wait(t.client, req, 1, 0, res), -EBUSY);
		expect_int(drain_batch(t.client, batch, res, 10), 10);
	}
	expect_int(kvof_client_wait(t.client, req, 1, 0, res), 0);
	end(&t);
}

/* --- threads and processes -------------------------------------------------------------------- */

struct worker {
	pthread_t thread;
	struct kvof_client *client;
	unsigned number, wrong, failed;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	struct prng p = prng_of(w->number);
	uint8_t *out = malloc(70000), *in = malloc(70000);

	for (unsigned i = 0; i < 60; i++) {
		struct kvof_key key = key_n(w->number * 1000 + i % 10);
		uint32_t bytes = (uint32_t)prng_below(&p, 70000), got = 0;

		prng_fill(&p, out, bytes);
		memset(in, 0, 70000);
		w->failed += kvof_client_store(w->client, &key, out, bytes, 0, 0) != 0;
		w->failed += kvof_client_retrieve(w->client, &key, in, 70000, 0, &got) != 0;
		w->wrong += got != bytes || memcmp(in, out, bytes) != 0;
		if (i % 7 == 0)
			w->failed += kvof_client_delete(w->client, &key, 0) != 0;
	}
	free(out);
	free(in);
	return NULL;
}

TEST(any_thread_may_call)
{
	struct fixture t;
	struct worker w[8] = {0};

	begin(&t, NULL);
	for (unsigned i = 0; i < 8; i++) {
		w[i].client = t.client;
		w[i].number = i + 1;
		expect_int(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (unsigned i = 0; i < 8; i++) {
		pthread_join(w[i].thread, NULL);
		expect_int(w[i].wrong, 0);
		expect_int(w[i].failed, 0);
	}
	end(&t);
}

static int child(struct kvof_client *client)
{
	struct kvof_client_req req = {.op = KVOF_CLIENT_EXIST, .key = key_n(1)};
	struct kvof_client_result res;
	struct kvof_client_info info;
	struct kvof_client_stat stat;
	struct kvof_key key = key_n(1);
	uint64_t batch;
	size_t n;
	int bad = 0;

	bad += kvof_client_exist(client, &key, 0) != -ESHUTDOWN;
	bad += kvof_client_store(client, &key, "x", 1, 0, 0) != -ESHUTDOWN;
	bad += kvof_client_retrieve(client, &key, NULL, 0, 0, NULL) != -ESHUTDOWN;
	bad += kvof_client_delete(client, &key, 0) != -ESHUTDOWN;
	bad += kvof_client_list(client, NULL, &key, 2, 0, &n) != -ESHUTDOWN;
	bad += kvof_client_submit(client, &req, 1, 0, &batch) != -ESHUTDOWN;
	bad += kvof_client_wait(client, &req, 1, 0, &res) != -ESHUTDOWN;
	bad += kvof_client_cancel(client, 1) != -ESHUTDOWN;
	bad += kvof_client_drain(client, &res, 1) != -ESHUTDOWN;
	bad += kvof_client_fd(client) != -ESHUTDOWN;
	bad += kvof_client_info(client, &info) != -ESHUTDOWN;
	bad += kvof_client_stat(client, &stat) != -ESHUTDOWN;
	kvof_client_close(&client);
	bad += client != NULL;
	return bad;
}

TEST(a_forked_child_is_told_at_once_and_the_parent_goes_on)
{
	struct fixture t;
	struct worker w = {0};

	begin(&t, NULL);
	w.client = t.client;
	w.number = 1;
	expect_int(pthread_create(&w.thread, NULL, work, &w), 0);
	for (unsigned i = 0; i < 5; i++) {
		pid_t pid = fork();
		int status = -1;

		expect(pid >= 0);
		if (pid == 0) {
			alarm(10);
			_exit(child(t.client));
		}
		expect_int(waitpid(pid, &status, 0), pid);
		expect(WIFEXITED(status));
		expect_int(WEXITSTATUS(status), 0);
	}
	pthread_join(w.thread, NULL);
	expect_int(w.wrong, 0);
	expect_int(w.failed, 0);
	expect_int(store(t.client, "after", "fork"), 0);
	end(&t);
}

TEST(closing_with_operations_in_flight_and_results_not_drained_ends)
{
	struct fixture t;
	struct kvof_client_req req[50];
	uint64_t batch, begun_ns;

	begin(&t, NULL);
	for (unsigned i = 0; i < 50; i++)
		req[i] = (struct kvof_client_req){.op = KVOF_CLIENT_EXIST, .key = key_n(i)};
	expect_int(kvof_client_submit(t.client, req, 50, 0, &batch), 0);
	readable(t.client, true, 5000);
	kill(t.serve.pid, SIGSTOP);
	expect_int(kvof_client_submit(t.client, req, 50, 60 * NS_PER_S, &batch), 0);
	begun_ns = now_ns();
	kvof_client_close(&t.client);
	expect(now_ns() - begun_ns < NS_PER_S + SLACK_NS);
	end(&t);
}

/* --- open, loss and return -------------------------------------------------------------------- */

TEST(an_array_that_was_killed_is_used_again_when_it_is_back)
{
	struct fixture t = {0};
	const char *words[] = {"--drive", t.drive, NULL};
	struct kvof_client_info info;
	struct kvof_client_stat stat;
	struct kvof_key key = key_of("kept");
	unsigned tries = 25;
	char room[16];
	uint32_t got = 0;

	snprintf(t.dir, sizeof(t.dir), "/tmp/kvof-client-test-XXXXXX");
	expect(mkdtemp(t.dir) != NULL);
	snprintf(t.drive, sizeof(t.drive), "%s/drive,size=64MiB", t.dir);
	expect(serve_start(&t.serve, 0, words));
	t.client = client_open(t.serve.target, NULL);
	expect_int(store(t.client, "kept", "value"), 0);
	serve_end(&t.serve, SIGKILL);
	do {    /* its thread may be late to hear of the end */
		expect_int(kvof_client_exist(t.client, &key, 200 * NS_PER_MS), -ETIMEDOUT);
		expect_int(kvof_client_info(t.client, &info), 0);
	} while (info.live != 0 && --tries > 0);
	expect_int(info.live, 0);
	expect(info.last_error[0] != 0);
	expect(serve_start(&t.serve, t.serve.port, words));
	expect_int(kvof_client_retrieve(t.client, &key, room, sizeof(room), 20 * NS_PER_S, &got),
		   0);
	expect_int(got, 5);
	expect_mem(room, "value", 5);
	expect_int(kvof_client_info(t.client, &info), 0);
	expect_int(info.live, 1);
	expect_int(kvof_client_stat(t.client, &stat), 0);
	expect(stat.reconnects >= 1);
	end(&t);
	*strchr(t.drive, ',') = 0;
	unlink(t.drive);
	rmdir(t.dir);
}

TEST(open_says_what_is_wrong)
{
	struct kvof_client_opts opts = {.struct_bytes = sizeof(opts)};
	struct kvof_client *client = (struct kvof_client *)&opts;
	char why[256];

	opts.target = "tcp://127.0.0.1:1";
	kt_noise(why, sizeof(why));
	expect_int(kvof_client_open(&opts, why, &client), -ECONNRESET);
	expect(strstr(why, "127.0.0.1") != NULL && client == NULL);
	opts.target = "tcp://nowhere";
	expect_int(kvof_client_open(&opts, why, &client), -EINVAL);
	expect(strstr(why, "nowhere") != NULL);
	opts.target = NULL;
	expect_int(kvof_client_open(&opts, why, &client), -EINVAL);
	opts.target = "tcp://127.0.0.1:1";
	opts.struct_bytes = 1;
	expect_int(kvof_client_open(&opts, why, &client), -EINVAL);
	expect_int(kvof_client_open(NULL, NULL, &client), -EINVAL);
	expect_int(kvof_client_open(&opts, NULL, NULL), -EINVAL);
	opts = (struct kvof_client_opts){.struct_bytes = sizeof(opts), .queues = 65,
					 .target = "tcp://127.0.0.1:1"};
	expect_int(kvof_client_open(&opts, why, &client), -EINVAL);
	opts.queues = 0;
	opts.host_nqn = "me";
	expect_int(kvof_client_open(&opts, why, &client), -EINVAL);
	expect(strstr(why, "NQN") != NULL);
}

TEST(open_in_the_background_returns_while_the_array_is_away)
{
	struct kvof_client_opts opts = {.struct_bytes = sizeof(opts), .background = 1,
					.target = "tcp://127.0.0.1:1"};
	struct kvof_client *client;
	struct kvof_key key = key_n(1);
	char why[256];

	expect_int(kvof_client_open(&opts, why, &client), 0);
	expect_int(kvof_client_exist(client, &key, 50 * NS_PER_MS), -ETIMEDOUT);
	kvof_client_close(&client);
}

TEST(wrong_arguments_are_refused_and_nothing_is_started)
{
	struct fixture t;
	struct kvof_key key = key_n(1), none = {0}, long_key = {.bytes = 17};
	struct iovec hole = {NULL, 5}, many[1025];
	struct kvof_client_req req = {.op = KVOF_CLIENT_EXIST, .key = key_n(1)};
	struct kvof_client_result res;
	struct kvof_client_stat stat;
	uint64_t batch;
	size_t n;

	begin(&t, NULL);
	expect_int(kvof_client_exist(NULL, &key, 0), -EINVAL);
	expect_int(kvof_client_exist(t.client, NULL, 0), -EINVAL);
	expect_int(kvof_client_exist(t.client, &none, 0), -EINVAL);
	expect_int(kvof_client_exist(t.client, &long_key, 0), -EINVAL);
	expect_int(kvof_client_store(t.client, &key, NULL, 1, 0, 0), -EINVAL);
	expect_int(kvof_client_store(t.client, &key, "x", 1, 64, 0), -EINVAL);
	expect_int(kvof_client_store(t.client, &key, "x", 1,
				     KVOF_CLIENT_IF_ABSENT | KVOF_CLIENT_IF_PRESENT, 0), -EINVAL);
	expect_int(kvof_client_store(t.client, &key, &key, (size_t)1 << 40, 0, 0), -EINVAL);
	expect_int(kvof_client_retrieve(t.client, &key, NULL, 1, 0, NULL), -EINVAL);
	expect_int(kvof_client_list(t.client, &long_key, &key, 2, 0, &n), -EINVAL);
	expect_int(kvof_client_list(t.client, NULL, NULL, 2, 0, &n), -EINVAL);
	expect_int(kvof_client_list(t.client, NULL, &key, 1, 0, &n), -EINVAL);
	expect_int(kvof_client_submit(t.client, NULL, 1, 0, &batch), -EINVAL);
	expect_int(kvof_client_submit(t.client, &req, 0, 0, &batch), -EINVAL);
	expect_int(kvof_client_submit(t.client, &req, 1, 0, NULL), -EINVAL);
	expect_int(kvof_client_wait(t.client, &req, 1, 0, NULL), -EINVAL);
	req.op = KVOF_CLIENT_COMPARE + 1;
	expect_int(kvof_client_wait(t.client, &req, 1, 0, &res), -EINVAL);
	req.op = KVOF_CLIENT_EXIST;
	req.flags = KVOF_CLIENT_IF_ABSENT;
	expect_int(kvof_client_wait(t.client, &req, 1, 0, &res), -EINVAL);
	req = (struct kvof_client_req){.op = KVOF_CLIENT_STORE, .key = key, .iov = &hole,
				       .iov_count = 1};
	expect_int(kvof_client_wait(t.client, &req, 1, 0, &res), -EINVAL);
	memset(many, 0, sizeof(many));
	req.iov = many;
	req.iov_count = 1025;
	expect_int(kvof_client_wait(t.client, &req, 1, 0, &res), -EINVAL);
	expect_int(kvof_client_drain(t.client, NULL, 1), -EINVAL);
	expect_int(kvof_client_info(t.client, NULL), -EINVAL);
	expect_int(kvof_client_stat(t.client, NULL), -EINVAL);
	expect_int(kvof_client_fd(NULL), -EINVAL);
	kvof_client_close(NULL);
	expect_int(kvof_client_stat(t.client, &stat), 0);
	expect_int(stat.ops, 0);
	end(&t);
}

/* Only so many files more may be opened; gives the limit that was. */
static struct rlimit files_leave(unsigned count)
{
	struct rlimit was = {0}, now;
	int lowest = dup(1);

	expect(lowest >= 0 && close(lowest) == 0 && getrlimit(RLIMIT_NOFILE, &was) == 0);
	now = was;
	now.rlim_cur = (rlim_t)lowest + count;
	expect(setrlimit(RLIMIT_NOFILE, &now) == 0);
	return was;
}

TEST(an_open_without_files_says_that_they_ran_out)
{
	int rc = -EMFILE;
	struct fixture t;

	begin(&t, NULL);
	for (unsigned left = 0; rc != 0; left++) {
		struct kvof_client_opts opts = {.struct_bytes = sizeof(opts),
			.target = t.serve.target, .queues = 2};
		struct rlimit was = files_leave(left);
		struct kvof_client *client = NULL;
		char why[256] = "";

		rc = kvof_client_open(&opts, why, &client);
		expect(setrlimit(RLIMIT_NOFILE, &was) == 0);
		expect(left < 16);
		if (rc == 0) {
			expect(left > 2);      /* liburing raises the limit for its files */
			kvof_client_close(&client);
		} else if ((rc != -EMFILE && rc != -ECONNRESET) ||
			   strstr(why, "ulimit -n") == NULL) {
			fail_msg("%u files left: %d, %s", left, rc, why);
		}
	}
	end(&t);
}

TEST(every_error_has_words_of_its_own)
{
	static const int all[] = {0, -ENOENT, -EEXIST, -ENOSPC, -EBADMSG, -EIO, -EPROTO, -ETIMEDOUT,
				  -ECONNRESET, -ECANCELED, -EBUSY, -ESHUTDOWN, -ENOMEM,
				  -EMFILE, -EINVAL, 1};

	for (size_t i = 0; i < ARRAY_COUNT(all); i++)
		for (size_t j = 0; j < i; j++)
			expect(strcmp(kvof_error_text(all[i]), kvof_error_text(all[j])) != 0);
}
