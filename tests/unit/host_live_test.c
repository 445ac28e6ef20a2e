/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host against a controller that does as it is told (host_fake.h), on the simulator: attach,
 * values, order, deadlines, cancel, limits, retries, loss and return of the array.
 */
#include "host_fake.h"

#define OPS 64

struct call {
	struct host_op op;
	struct fixture *fix;
	struct iovec iov[3];
	unsigned dones, releases;
	int res;
	uint64_t done_ns;
	bool busy;
};

struct fixture {
	struct loop *host_loop, *fake_loop;
	struct fake *fake;
	struct host *host;
	struct host_opts opts;
	bool closed;
	unsigned states[HOST_CLOSED + 1];
	int why;
	struct call call[OPS];
	unsigned calls;
};

static void state_changed(void *arg, enum host_state state, int why)
{
	struct fixture *x = arg;

	x->states[state]++;
	x->why = why;
}

static const struct host_events events = {state_changed};

static struct fixture *begin(void)
{
	struct fixture *x = calloc(1, sizeof(*x));

	memset(fake_works, 0, sizeof(fake_works));
	expect_int(sim_begin(&(struct sim_opts){.seed = 5}), 0);
	expect_int(loop_open(&(struct loop_opts){.name = "host"}, &x->host_loop), 0);
	expect_int(loop_open(&(struct loop_opts){.name = "fake"}, &x->fake_loop), 0);
	x->fake = fake_new(&wire_tcp, x->fake_loop);
	x->opts = (struct host_opts){
		.addr = x->fake->addr, .ops = &wire_tcp, .subnqn = FAKE_NQN,
		.hostnqn = "nqn.2026-11.io.kvof:test", .queues = 2, .depth = 4,
	};
	return x;
}

static bool settled(void *arg)
{
	struct fixture *x = arg;

	return x->states[HOST_LIVE] > 0 || x->states[HOST_DOWN] > 0;
}

static void host_start(struct fixture *x)
{
	char why[256];

	expect_int(host_open(x->host_loop, &x->opts, &events, x, why, &x->host), 0);
	expect(sim_run_until(settled, x, 10 * NS_PER_S));
}

static void start(struct fixture *x)
{
	host_start(x);
	if (host_state(x->host) != HOST_LIVE)
		fail_msg("not live: %s", host_last_error(x->host));
}

static void closed(void *arg)
{
	((struct fixture *)arg)->closed = true;
}

static bool is_closed(void *arg)
{
	return ((struct fixture *)arg)->closed;
}

static void end(struct fixture *x)
{
	if (x->host != NULL)
		host_close(&x->host, closed, x);
	expect(sim_run_until(is_closed, x, 10 * NS_PER_S));
	for (unsigned i = 0; i < x->calls; i++) {
		expect_int(x->call[i].dones, 1);
		expect_int(x->call[i].releases, x->call[i].busy ? 1 : 0);
	}
	fake_free(x->fake);
	loop_close(&x->host_loop);
	loop_close(&x->fake_loop);
	sim_end();
	free(x);
}

/* --- operations -------------------- */

static void call_done(struct host_op *op, int res)
{
	struct call *c = container_of(op, struct call, op);

	c->dones++;
	c->res = res;
	c->busy = op->busy;
	c->done_ns = sim_now_ns();
}

static void call_released(struct host_op *op)
{
	container_of(op, struct call, op)->releases++;
}

static struct call *call(struct fixture *x, enum host_op_kind kind, const char *key)
{
	struct call *c = &x->call[x->calls++];

	must(x->calls <= OPS);
	c->fix = x;
	c->op.kind = kind;
	c->op.key.len = (uint8_t)strlen(key);
	memcpy(c->op.key.byte, key, c->op.key.len);
	c->op.done = call_done;
	c->op.released = call_released;
	return c;
}

static struct call *call_data(struct fixture *x, enum host_op_kind kind, const char *key, void *at,
			      size_t bytes)
{
	struct call *c = call(x, kind, key);

	c->iov[0] = (struct iovec){at, bytes};
	c->op.iov = c->iov;
	c->op.iov_count = 1;
	c->op.bytes = (uint32_t)bytes;
	return c;
}

static bool is_over(void *arg)
{
	struct call *c = arg;

	return c->dones > 0 && (!c->busy || c->releases > 0);
}

static int finish(struct call *c)
{
	expect(sim_run_until(is_over, c, 60 * NS_PER_S));
	return c->res;
}

static int run(struct fixture *x, struct call *c)
{
	host_submit(x->host, &c->op);
	expect_int(c->dones, 0);       /* never from inside */
	return finish(c);
}

static int store(struct fixture *x, const char *key, const char *value)
{
	union { const char *from; void *to; } v = {value};

	return run(x, call_data(x, HOST_STORE, key, v.to, strlen(value)));
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static void run_for(uint64_t ns)
{
	sim_run_until(never, NULL, ns);
}

static bool held_some(void *arg)
{
	return ((struct fixture *)arg)->fake->held_count > 0;
}

static bool is_live_again(void *arg)
{
	return ((struct fixture *)arg)->states[HOST_LIVE] > 1;
}

static bool is_down(void *arg)
{
	return ((struct fixture *)arg)->states[HOST_DOWN] > 0;
}

/* --- attach -------------------- */

TEST(an_attach_tells_what_the_namespace_is)
{
	struct fixture *x = begin();
	const struct host_ns *ns;

	x->fake->not_ready = 3;
	start(x);
	ns = host_ns(x->host);
	expect_int(ns->nsid, 3);
	expect_int(ns->value_bytes_max, FAKE_VALUE_MAX);
	expect_int(ns->key_bytes_max, 16);
	expect_int(ns->capacity_bytes, GiB);
	expect_int(ns->used_bytes, MiB);
	expect_int(ns->queues, 2);
	expect_int(ns->depth, 4);
	expect_str(ns->model, "fake");
	expect_int(x->fake->attaches, 1);
	end(x);
}

TEST(fewer_queues_and_entries_than_asked_for_are_taken)
{
	struct fixture *x = begin();

	x->fake->grant = 1;
	x->fake->mqes = 3;
	start(x);
	expect_int(host_ns(x->host)->queues, 1);
	expect_int(host_ns(x->host)->depth, 2);
	end(x);
}

TEST(without_a_name_the_only_subsystem_of_discovery_is_taken)
{
	struct fixture *x = begin();

	x->opts.subnqn[0] = 0;
	start(x);
	expect_str(host_ns(x->host)->subnqn, FAKE_NQN);
	expect_int(x->fake->attaches, 2);
	end(x);
}

TEST(two_subsystems_without_a_name_are_an_error_that_says_so)
{
	struct fixture *x = begin();

	x->opts.subnqn[0] = 0;
	x->opts.once = true;
	x->fake->subsystems = 2;
	host_start(x);
	expect_int(host_state(x->host), HOST_DOWN);
	expect_int(x->why, -ENOENT);
	expect(strstr(host_last_error(x->host), "2 subsystems") != NULL);
	end(x);
}

static void (*nonsense_of)(struct nv_id_controller *id, struct nv_id_kv_namespace *ns);

static void nonsense_patch(void *page, unsigned cns)
{
	if (cns == NV_CNS_CONTROLLER)
		nonsense_of(page, NULL);
	if (cns == NV_CNS_CSI_NAMESPACE)
		nonsense_of(NULL, page);
}

#define NONSENSE(name, part, change)                                                               \
	static void name(struct nv_id_controller *id, struct nv_id_kv_namespace *ns)               \
	{                                                                                          \
		(void)id, (void)ns;                                                                \
		if (part != NULL)                                                                  \
			change;                                                                    \
	}
NONSENSE(mdts_overflows, id, id->mdts = 255)
NONSENSE(no_sqes, id, id->sqes = 0)
NONSENSE(no_cqes, id, id->cqes = 0)
NONSENSE(no_namespaces, id, id->nn = le32_of(0))
NONSENSE(short_capsule, id, id->ioccsz = le32_of(3))
NONSENSE(no_value, ns, ns->kvf[0].value_bytes_max = le32_of(0))
NONSENSE(no_key, ns, ns->kvf[0].key_bytes_max = le16_of(0))
NONSENSE(long_key, ns, ns->kvf[0].key_bytes_max = le16_of(17))
NONSENSE(no_capacity, ns, ns->nsze = le64_of(0))

TEST(identify_nonsense_fails_the_attach_with_a_reason)
{
	static void (*const of[])(struct nv_id_controller *, struct nv_id_kv_namespace *) = {
		mdts_overflows, no_sqes, no_cqes, no_namespaces, short_capsule, no_value, no_key,
		long_key, no_capacity,
	};

	for (size_t i = 0; i < ARRAY_COUNT(of); i++) {
		struct fixture *x = begin();
		uint64_t begun_ns = sim_now_ns();

		nonsense_of = of[i];
		x->fake->patch = nonsense_patch;
		x->opts.once = true;
		host_start(x);
		expect_int(host_state(x->host), HOST_DOWN);
		expect_int(x->why, -EPROTO);
		expect(strstr(host_last_error(x->host), "makes no sense") != NULL);
		expect(sim_now_ns() - begun_ns < NS_PER_S);
		end(x);
	}
}

static void no_limit(struct nv_id_controller *id, struct nv_id_kv_namespace *ns)
{
	(void)ns;
	if (id != NULL)
		id->mdts = 0;
}

TEST(mdts_0_is_no_limit_and_values_stay_bounded_by_the_namespace)
{
	struct fixture *x = begin();

	nonsense_of = no_limit;
	x->fake->patch = nonsense_patch;
	start(x);
	expect_int(host_ns(x->host)->value_bytes_max, FAKE_VALUE_MAX);
	end(x);
}

TEST(a_controller_in_a_fatal_state_fails_the_attach)
{
	struct fixture *x = begin();

	x->fake->fatal = true;
	x->opts.once = true;
	host_start(x);
	expect_int(x->why, -EIO);
	expect(strstr(host_last_error(x->host), "CSTS.CFS") != NULL);
	end(x);
}

TEST(a_controller_that_is_never_ready_fails_the_attach_in_time)
{
	struct fixture *x = begin();
	uint64_t begun_ns = sim_now_ns();

	x->fake->not_ready = UINT32_MAX;
	x->opts.once = true;
	x->opts.connect_ns = NS_PER_S;
	host_start(x);
	expect_int(x->why, -ETIMEDOUT);
	expect(sim_now_ns() - begun_ns < 1100 * NS_PER_MS);
	expect(strstr(host_last_error(x->host), "ready") != NULL);
	end(x);
}

TEST(a_refused_connection_with_once_is_final)
{
	struct fixture *x = begin();
	struct call *c;

	fake_die(x->fake);
	x->opts.once = true;
	host_start(x);
	expect_int(x->why, -ECONNRESET);
	c = call(x, HOST_EXIST, "a");
	expect_int(run(x, c), -ECONNRESET);
	end(x);
}

/* --- values -------------------- */

TEST(values_of_any_size_and_alignment_come_back)
{
	static const uint32_t sizes[] = {0, 1, 511, 4096, 8192, 8193, 100000, FAKE_VALUE_MAX};
	static const bool digests[] = {false, true};
	uint8_t *out = malloc(FAKE_VALUE_MAX + 3), *in = malloc(FAKE_VALUE_MAX + 3);
	struct prng p = prng_of(3);

	for (size_t d = 0; d < ARRAY_COUNT(digests); d++) {
		struct fixture *x = begin();

		x->opts.header_digest = x->opts.data_digest = digests[d];
		start(x);
		for (size_t i = 0; i < ARRAY_COUNT(sizes); i++) {
			struct call *c;

			prng_fill(&p, out, FAKE_VALUE_MAX + 3);
			kt_noise(in, FAKE_VALUE_MAX + 3);
			c = call_data(x, HOST_STORE, "key", out + i % 3, sizes[i]);
			expect_int(run(x, c), 0);
			c = call_data(x, HOST_RETRIEVE, "key", in + 1, FAKE_VALUE_MAX);
			expect_int(run(x, c), 0);
			expect_int(c->op.value_bytes, sizes[i]);
			expect_int(c->op.moved_bytes, sizes[i]);
			expect_mem(in + 1, out + i % 3, sizes[i]);
			expect_int(in[1 + sizes[i]], (uint8_t)(0xa5 ^ (1 + sizes[i]) * 131));
		}
		end(x);
	}
	free(out);
	free(in);
}

TEST(a_value_in_pieces_comes_back_in_other_pieces)
{
	struct fixture *x = begin();
	uint8_t *out = malloc(70000), *in = malloc(70000);
	struct prng p = prng_of(4);
	struct call *c;

	prng_fill(&p, out, 70000);
	kt_noise(in, 70000);
	start(x);
	c = call(x, HOST_STORE, "k");
	c->iov[0] = (struct iovec){out, 1};
	c->iov[1] = (struct iovec){out + 1, 0};
	c->iov[2] = (struct iovec){out + 1, 69999};
	c->op.iov = c->iov;
	c->op.iov_count = 3;
	c->op.bytes = 70000;
	expect_int(run(x, c), 0);
	c = call(x, HOST_RETRIEVE, "k");
	c->iov[0] = (struct iovec){in, 12345};
	c->iov[1] = (struct iovec){in + 12345, 3};
	c->iov[2] = (struct iovec){in + 12348, 57652};
	c->op.iov = c->iov;
	c->op.iov_count = 3;
	c->op.bytes = 70000;
	expect_int(run(x, c), 0);
	expect_mem(in, out, 70000);
	end(x);
	free(out);
	free(in);
}

TEST(a_smaller_room_gets_the_head_and_the_true_length)
{
	struct fixture *x = begin();
	char room[9];
	struct call *c;

	start(x);
	expect_int(store(x, "k", "0123456789"), 0);
	memset(room, 'x', sizeof(room));
	c = call_data(x, HOST_RETRIEVE, "k", room, 4);
	expect_int(run(x, c), 0);
	expect_int(c->op.value_bytes, 10);
	expect_int(c->op.moved_bytes, 4);
	expect_mem(room, "0123xxxxx", 9);
	c = call_data(x, HOST_RETRIEVE, "k", NULL, 0);
	expect_int(run(x, c), 0);
	expect_int(c->op.value_bytes, 10);
	end(x);
}

TEST(conditions_misses_and_wrong_requests_have_their_own_results)
{
	struct fixture *x = begin();
	struct call *c;

	start(x);
	expect_int(run(x, call(x, HOST_EXIST, "k")), -ENOENT);
	expect_int(run(x, call(x, HOST_DELETE, "k")), -ENOENT);
	expect_int(store(x, "k", "one"), 0);
	c = call_data(x, HOST_STORE, "k", "two", 3);
	c->op.if_absent = true;
	expect_int(run(x, c), -EEXIST);
	expect_int(run(x, call(x, HOST_EXIST, "k")), 0);
	expect_int(run(x, call(x, HOST_EXIST, "")), -EINVAL);
	c = call(x, HOST_STORE, "k");
	c->op.if_absent = c->op.if_present = true;
	expect_int(run(x, c), -EINVAL);
	c = call_data(x, HOST_STORE, "k", NULL, 0);
	c->op.bytes = FAKE_VALUE_MAX + 1;
	expect_int(run(x, c), -EINVAL);
	expect_int(x->fake->io_seen[NV_KV_STORE], 2);
	end(x);
}

TEST(operations_on_one_key_take_effect_in_the_order_they_were_submitted)
{
	struct fixture *x = begin();
	char room[8][4];
	struct call *first = &x->call[0];

	start(x);
	for (unsigned i = 0; i < 8; i++) {
		static char value[8][4];

		snprintf(value[i], sizeof(value[i]), "v%u", i);
		memset(room[i], 0, sizeof(room[i]));
		call_data(x, HOST_STORE, "k", value[i], 2);
		call_data(x, HOST_RETRIEVE, "k", room[i], 3);
	}
	for (unsigned i = 0; i < 16; i++)
		host_submit(x->host, &first[i].op);
	for (unsigned i = 0; i < 16; i++)
		expect_int(finish(&first[i]), 0);
	for (unsigned i = 0; i < 8; i++) {
		expect_int(room[i][0], 'v');
		expect_int(room[i][1], '0' + i);
	}
	end(x);
}

TEST(no_more_is_in_flight_than_queues_times_depth)
{
	struct fixture *x = begin();

	x->fake->hold = true;
	start(x);
	for (unsigned i = 0; i < 20; i++) {
		char key[4];

		snprintf(key, sizeof(key), "k%u", i);
		host_submit(x->host, &call(x, HOST_EXIST, key)->op);
	}
	run_for(100 * NS_PER_MS);
	expect_int(x->fake->held_count, 8);
	fake_let_go(x->fake);
	for (unsigned i = 0; i < 20; i++)
		expect_int(finish(&x->call[i]), -ENOENT);
	expect_int(x->fake->flying_max, 8);
	end(x);
}

TEST(a_full_backlog_refuses_and_serves_the_rest)
{
	struct fixture *x = begin();
	unsigned refused = 0;

	x->opts.backlog_max = 10;
	x->fake->hold = true;
	start(x);
	for (unsigned i = 0; i < 12; i++)
		host_submit(x->host, &call(x, HOST_EXIST, "k")->op);
	run_for(100 * NS_PER_MS);
	for (unsigned i = 0; i < 12; i++)
		refused += x->call[i].dones == 1 && x->call[i].res == -EBUSY;
	expect_int(refused, 2);
	fake_let_go(x->fake);
	for (unsigned i = 0; i < 10; i++)
		expect_int(finish(&x->call[i]), -ENOENT);
	end(x);
}

/* --- deadlines and cancel -------------------- */

TEST(a_deadline_is_told_at_the_deadline_and_the_buffer_follows)
{
	struct fixture *x = begin();
	char room[100];
	struct call *c;

	start(x);
	x->fake->hold = true;
	c = call_data(x, HOST_RETRIEVE, "k", room, sizeof(room));
	c->op.deadline_ns = sim_now_ns() + 50 * NS_PER_MS;
	expect_int(run(x, c), -ETIMEDOUT);
	expect(c->done_ns >= c->op.deadline_ns);
	expect(c->done_ns < c->op.deadline_ns + NS_PER_MS);
	expect(c->busy);
	expect_int(c->releases, 1);
	expect(sim_now_ns() < c->op.deadline_ns + HOST_RELEASE_NS);
	end(x);
}

TEST(an_operation_that_never_got_a_slot_ends_at_its_deadline_too)
{
	struct fixture *x = begin();
	struct call *waits, *late;

	x->opts.queues = x->opts.depth = 1;
	start(x);
	x->fake->hold = true;
	waits = call(x, HOST_EXIST, "a");
	host_submit(x->host, &waits->op);
	late = call(x, HOST_EXIST, "b");
	late->op.deadline_ns = sim_now_ns() + 20 * NS_PER_MS;
	expect_int(run(x, late), -ETIMEDOUT);
	expect(!late->busy);
	expect(late->done_ns < late->op.deadline_ns + NS_PER_MS);
	fake_let_go(x->fake);
	expect_int(finish(waits), -ENOENT);
	expect_int(x->fake->io_seen[NV_KV_EXIST], 1);
	end(x);
}

TEST(a_deadline_already_past_is_told_at_once)
{
	struct fixture *x = begin();
	struct call *c;

	start(x);
	c = call(x, HOST_EXIST, "a");
	c->op.deadline_ns = sim_now_ns() != 0 ? sim_now_ns() : 1;
	expect_int(run(x, c), -ETIMEDOUT);
	expect_int(x->fake->io_seen[NV_KV_EXIST], 0);
	end(x);
}

TEST(a_slot_whose_answer_is_late_is_used_again_after_the_answer)
{
	struct fixture *x = begin();
	struct call *late, *next;

	x->opts.queues = 1;
	x->opts.depth = 2;
	start(x);
	x->fake->hold = true;
	late = call(x, HOST_EXIST, "a");
	late->op.deadline_ns = sim_now_ns() + 10 * NS_PER_MS;
	expect_int(run(x, late), -ETIMEDOUT);
	fake_let_go(x->fake);
	for (unsigned i = 0; i < 6; i++) {
		next = call(x, HOST_EXIST, "b");
		expect_int(run(x, next), -ENOENT);
	}
	expect_int(x->fake->attaches, 1);
	end(x);
}

TEST(a_delete_that_was_late_holds_younger_operations_on_its_key)
{
	struct fixture *x = begin();
	char room[8] = {0};
	struct call *late, *next;

	start(x);
	expect_int(store(x, "k", "value"), 0);
	x->fake->hold = true;
	late = call(x, HOST_DELETE, "k");
	late->op.deadline_ns = sim_now_ns() + 10 * NS_PER_MS;
	expect_int(run(x, late), -ETIMEDOUT);
	next = call_data(x, HOST_RETRIEVE, "k", room, sizeof(room));
	host_submit(x->host, &next->op);
	run_for(200 * NS_PER_MS);
	expect_int(next->dones, 0);
	expect_int(x->fake->io_seen[NV_KV_RETRIEVE], 0);
	fake_let_go(x->fake);
	expect_int(finish(next), -ENOENT);
	end(x);
}

TEST(a_controller_that_answers_nothing_any_more_is_connected_anew)
{
	struct fixture *x = begin();
	struct call *c;

	x->opts.queues = 1;
	x->opts.depth = 2;
	start(x);
	x->fake->hold = true;
	for (unsigned i = 0; i < 2; i++) {
		c = call(x, HOST_EXIST, i == 0 ? "a" : "b");
		c->op.deadline_ns = sim_now_ns() + 10 * NS_PER_MS;
		host_submit(x->host, &c->op);
	}
	run_for(100 * NS_PER_MS);
	x->fake->hold = false;
	c = call(x, HOST_EXIST, "c");
	expect_int(run(x, c), -ENOENT);
	expect_int(x->fake->attaches, 2);
	fake_drop_held(x->fake);
	end(x);
}

TEST(a_cancelled_operation_that_waits_is_never_sent)
{
	struct fixture *x = begin();
	struct call *flies, *waits;

	x->opts.queues = x->opts.depth = 1;
	start(x);
	x->fake->hold = true;
	flies = call(x, HOST_EXIST, "a");
	host_submit(x->host, &flies->op);
	waits = call(x, HOST_EXIST, "b");
	host_submit(x->host, &waits->op);
	host_cancel(x->host, &waits->op);
	expect_int(waits->dones, 0);
	expect_int(finish(waits), -ECANCELED);
	fake_let_go(x->fake);
	expect_int(finish(flies), -ENOENT);
	expect_int(x->fake->io_seen[NV_KV_EXIST], 1);
	end(x);
}

TEST(a_cancelled_operation_in_flight_gives_its_buffer_back_untouched_from_then_on)
{
	struct fixture *x = begin();
	char room[100], as_it_was[100];
	struct call *c;

	start(x);
	expect_int(store(x, "k", "value"), 0);
	x->fake->hold = true;
	c = call_data(x, HOST_RETRIEVE, "k", room, sizeof(room));
	host_submit(x->host, &c->op);
	expect(sim_run_until(held_some, x, NS_PER_S));
	host_cancel(x->host, &c->op);
	host_cancel(x->host, &c->op);
	expect_int(c->dones, 0);
	expect_int(finish(c), -ECANCELED);
	expect(!c->busy);
	memset(room, 'y', sizeof(room));
	memcpy(as_it_was, room, sizeof(room));
	fake_let_go(x->fake);
	run_for(NS_PER_S);
	expect_mem(room, as_it_was, sizeof(room));
	end(x);
}

/* --- retries and loss -------------------- */

TEST(data_damaged_on_its_way_is_sent_again_and_counted)
{
	struct fixture *x = begin();
	struct host_stat s;

	start(x);
	x->fake->io_status = NV_TRANSIENT_TRANSPORT;
	x->fake->io_status_times = 3;
	expect_int(store(x, "k", "value"), 0);
	host_stat(x->host, &s);
	expect_int(s.digest_retries, 3);
	expect_int(x->fake->io_seen[NV_KV_STORE], 4);
	end(x);
}

TEST(data_damaged_every_time_is_given_up)
{
	struct fixture *x = begin();

	start(x);
	x->fake->io_status = NV_TRANSIENT_TRANSPORT;
	x->fake->io_status_times = UINT32_MAX;
	expect_int(store(x, "k", "value"), -EBADMSG);
	expect_int(x->fake->io_seen[NV_KV_STORE], HOST_DIGEST_TRIES + 1);
	end(x);
}

TEST(a_failing_array_is_reported_and_not_asked_again)
{
	struct fixture *x = begin();

	start(x);
	x->fake->io_status = NV_KV_UNRECOVERED;
	x->fake->io_status_times = 1;
	expect_int(run(x, call(x, HOST_RETRIEVE, "k")), -EBADMSG);
	x->fake->io_status = NV_CAPACITY_EXCEEDED;
	x->fake->io_status_times = 1;
	expect_int(store(x, "k", "v"), -ENOSPC);
	expect_int(x->fake->io_seen[NV_KV_RETRIEVE], 1);
	end(x);
}

TEST(reads_in_flight_when_the_array_dies_end_well_when_it_is_back)
{
	struct fixture *x = begin();
	char room[8] = {0};
	struct host_stat s;
	struct call *c;

	start(x);
	expect_int(store(x, "k", "value"), 0);
	x->fake->hold = true;
	c = call_data(x, HOST_RETRIEVE, "k", room, sizeof(room));
	host_submit(x->host, &c->op);
	expect(sim_run_until(held_some, x, NS_PER_S));
	fake_die(x->fake);
	expect(sim_run_until(is_down, x, NS_PER_S));
	expect_int(c->dones, 0);
	x->fake->hold = false;
	fake_listen(x->fake);
	expect_int(finish(c), 0);
	expect_mem(room, "value", 5);
	expect_int(x->states[HOST_LIVE], 2);
	host_stat(x->host, &s);
	expect_int(s.reconnects, 1);
	expect_int(s.repeats, 1);
	end(x);
}

TEST(a_store_in_flight_when_the_array_dies_is_repeated_only_where_allowed)
{
	struct fixture *x = begin();
	struct call *unsure, *sure;

	start(x);
	x->fake->hold = true;
	unsure = call_data(x, HOST_STORE, "a", "value", 5);
	sure = call_data(x, HOST_STORE, "b", "value", 5);
	sure->op.repeat_ok = true;
	host_submit(x->host, &unsure->op);
	host_submit(x->host, &sure->op);
	run_for(50 * NS_PER_MS);
	expect_int(x->fake->held_count, 2);
	fake_die(x->fake);
	expect_int(finish(unsure), -ECONNRESET);
	x->fake->hold = false;
	fake_listen(x->fake);
	expect_int(finish(sure), 0);
	expect_int(run(x, call(x, HOST_EXIST, "a")), -ENOENT);
	expect_int(run(x, call(x, HOST_EXIST, "b")), 0);
	end(x);
}

TEST(an_operation_waits_for_the_array_until_its_deadline)
{
	struct fixture *x = begin();
	struct call *c;

	start(x);
	fake_die(x->fake);
	expect(sim_run_until(is_down, x, NS_PER_S));
	c = call(x, HOST_EXIST, "k");
	c->op.deadline_ns = sim_now_ns() + NS_PER_S;
	expect_int(run(x, c), -ETIMEDOUT);
	expect(c->done_ns - c->op.deadline_ns < NS_PER_MS);
	fake_listen(x->fake);
	expect(sim_run_until(is_live_again, x, 20 * NS_PER_S));
	expect_int(run(x, call(x, HOST_EXIST, "k")), -ENOENT);
	end(x);
}

TEST(tries_to_reconnect_grow_apart_and_stay_bounded)
{
	struct fixture *x = begin();
	unsigned tries;

	x->opts.reconnect_min_ns = 100 * NS_PER_MS;
	x->opts.reconnect_max_ns = NS_PER_S;
	start(x);
	fake_die(x->fake);
	run_for(2 * NS_PER_S);
	tries = x->states[HOST_CONNECTING];
	expect(tries >= 3 && tries <= 8);
	run_for(20 * NS_PER_S);
	tries = x->states[HOST_CONNECTING] - tries;
	expect(tries >= 18 && tries <= 42);
	fake_listen(x->fake);
	run_for(1100 * NS_PER_MS);
	expect_int(host_state(x->host), HOST_LIVE);
	end(x);
}

TEST(an_array_that_does_not_answer_keep_alive_is_lost)
{
	struct fixture *x = begin();
	uint64_t begun_ns;

	x->opts.keep_alive_ns = 2 * NS_PER_S;
	x->opts.once = true;
	start(x);
	run_for(10 * NS_PER_S);
	expect_int(host_state(x->host), HOST_LIVE);
	begun_ns = sim_now_ns();
	x->fake->deaf = true;
	expect(sim_run_until(is_down, x, 10 * NS_PER_S));
	expect(sim_now_ns() - begun_ns <= 4 * NS_PER_S);
	expect_int(x->why, -ETIMEDOUT);
	end(x);
}

TEST(closing_ends_everything_in_flight_and_what_waits)
{
	struct fixture *x = begin();
	char room[100];

	start(x);
	x->fake->hold = true;
	for (unsigned i = 0; i < 20; i++) {
		char key[4];

		snprintf(key, sizeof(key), "k%u", i % 10);
		host_submit(x->host, &call_data(x, i % 2 ? HOST_STORE : HOST_RETRIEVE, key, room,
						sizeof(room))->op);
	}
	run_for(10 * NS_PER_MS);
	host_close(&x->host, closed, x);
	expect(sim_run_until(is_closed, x, NS_PER_S));
	for (unsigned i = 0; i < 20; i++)
		expect_int(x->call[i].res, -ESHUTDOWN);
	end(x);
}

TEST(closing_while_connecting_ends)
{
	struct fixture *x = begin();
	char why[256];

	x->opts.subnqn[0] = 0;
	expect_int(host_open(x->host_loop, &x->opts, &events, x, why, &x->host), 0);
	run_for(120000);
	host_close(&x->host, closed, x);
	expect(sim_run_until(is_closed, x, NS_PER_S));
	end(x);
}

TEST(wrong_options_are_refused_with_a_sentence)
{
	struct fixture *x = begin();
	struct host_opts o = x->opts;
	char why[256];

	o.queues = HOST_QUEUES_MAX + 1;
	expect_int(host_open(x->host_loop, &o, &events, x, why, &x->host), -EINVAL);
	expect(strlen(why) > 5);
	o = x->opts;
	snprintf(o.subnqn, sizeof(o.subnqn), "array");
	expect_int(host_open(x->host_loop, &o, &events, x, why, &x->host), -EINVAL);
	o = x->opts;
	o.addr.host[0] = 0;
	expect_int(host_open(x->host_loop, &o, &events, x, why, &x->host), -EINVAL);
	x->closed = true;
	end(x);
}
