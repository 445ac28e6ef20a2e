/* SPDX-License-Identifier: Apache-2.0 */
/* src/store/space.c: three loops of one process, a shard on each, called from all of them. */
#include <errno.h>

#include "base/prng.h"
#include "kt.h"
#include "loop/sim.h"
#include "store/space.h"

#define LOOPS 3
#define VALUE_BYTES_MAX (512 * KiB)
#define PATIENCE_NS (30 * NS_PER_S)

static struct loop *loop[LOOPS];
static struct buf_pool *pool[LOOPS];
static struct store *store[LOOPS];
static struct space *space;
static bool flag;

static void set_flag(void *arg)
{
	*(bool *)arg = true;
}

static bool flag_is_set(void *arg)
{
	return *(bool *)arg;
}

static void begin(uint64_t seed)
{
	static const char *const path[LOOPS] = {"a", "b", "c"};
	struct space_shard shard[LOOPS];

	expect_int(sim_begin(&(struct sim_opts){.seed = seed}), 0);
	for (unsigned i = 0; i < LOOPS; i++) {
		struct store_opts o = {.drive = {{.path = path[i], .bytes = 64 * MiB}},
			.drive_count = 1, .value_bytes_max = VALUE_BYTES_MAX};
		struct store_report report;

		expect_int(loop_open(&(struct loop_opts){.name = path[i]}, &loop[i]), 0);
		if (i > 0)
			sim_join(loop[i], loop[0]);
		expect_int(store_pool_open(loop[i], 8 * VALUE_BYTES_MAX, &pool[i]), 0);
		o.pool = pool[i];
		expect_int(store_open(&o, loop[i], &store[i], &report), 0);
		shard[i] = (struct space_shard){loop[i], store[i]};
	}
	expect_int(space_open(shard, LOOPS, &space), 0);
}

static void end(void)
{
	for (unsigned i = 0; i < LOOPS; i++) {
		flag = false;
		store_close(&store[i], set_flag, &flag);
		expect(sim_run_until(flag_is_set, &flag, PATIENCE_NS));
	}
	space_close(&space);
	for (unsigned i = 0; i < LOOPS; i++) {
		expect(store_pool_close(&pool[i]));    /* every buffer came home */
		loop_close(&loop[i]);
	}
	sim_end();
}

/* --- an operation, made on a loop -------------------- */

enum what { PUT, GET, DELETE, EXISTS, FLUSH, GET_LENT };

struct call {
	struct msg msg;
	struct store_op op;
	struct store_buf_wait wait;
	struct loop *from;
	struct buf_pool *pool;
	struct store_buf *lent;
	enum what what;
	uint8_t seed;
	uint32_t bytes;
	int res;
	bool over;
	unsigned order;
};

static unsigned order_next;

static struct kv_key key_of(unsigned n)
{
	struct kv_key key = {.len = 3, .byte = {'k', (uint8_t)(n / 256), (uint8_t)n}};

	return key;
}

static void pieces_set(const struct store_buf *buf, uint8_t seed)
{
	for (unsigned i = 0; i < buf->piece_count; i++)
		memset(buf->piece[i].iov_base, seed, buf->piece[i].iov_len);
}

static bool pieces_are(const struct store_buf *buf, uint8_t seed, uint32_t bytes)
{
	uint32_t seen = 0;

	for (unsigned i = 0; i < buf->piece_count; i++) {
		const uint8_t *at = buf->piece[i].iov_base;

		for (size_t n = 0; n < buf->piece[i].iov_len; n++)
			if (at[n] != seed)
				return false;
		seen += (uint32_t)buf->piece[i].iov_len;
	}
	return seen == bytes;
}

static void call_done(struct store_op *op, int res)
{
	struct call *c = container_of(op, struct call, op);

	must(loop_here(c->from) && !c->over);          /* where it was called, once */
	c->res = res;
	c->over = true;
	c->order = order_next++;
	if (c->what == GET_LENT)
		must(c->op.buf == c->lent);
	if ((c->what == GET || c->what == GET_LENT) && res == 0 && c->op.buf != NULL)
		must(pieces_are(c->op.buf, c->seed, c->op.value_bytes));
	if (c->op.buf != NULL)
		store_buf_return(&c->op.buf);
}

static void call_put(struct store_buf_wait *w, struct store_buf *buf)
{
	struct call *c = container_of(w, struct call, wait);

	pieces_set(buf, c->seed);
	c->op.buf = c->lent = buf;
	c->op.want_bytes = VALUE_BYTES_MAX;
	if (c->what == PUT)
		space_put(space, c->from, &c->op);
	else
		space_get(space, c->from, &c->op);
}

static void call_run(struct loop *here, struct msg *m)
{
	struct call *c = container_of(m, struct call, msg);

	must(here == c->from);
	switch (c->what) {
	case PUT:
	case GET_LENT:
		c->wait = (struct store_buf_wait){.payload_bytes = c->bytes, .ready = call_put};
		store_pool_take(c->pool, &c->wait);
		break;
	case GET:
		c->op.want_bytes = VALUE_BYTES_MAX;
		space_get(space, here, &c->op);
		break;
	case DELETE:
		space_delete(space, here, &c->op);
		break;
	case EXISTS:
		space_exists(space, here, &c->op);
		break;
	case FLUSH:
		space_flush(space, here, &c->op);
		break;
	}
}

static void start(struct call *c, enum what what, unsigned from, unsigned key, uint32_t bytes,
		  uint8_t seed)
{
	*c = (struct call){.msg = {.run = call_run}, .from = loop[from], .pool = pool[from],
		.what = what, .seed = seed, .bytes = bytes};
	c->op.key = key_of(key);
	c->op.done = call_done;
	loop_post(loop[from], &c->msg);
}

static int wait_for(struct call *c)
{
	expect(sim_run_until(flag_is_set, &c->over, PATIENCE_NS));
	return c->res;
}

static int call(enum what what, unsigned from, unsigned key, uint32_t bytes, uint8_t seed)
{
	struct call c;

	start(&c, what, from, key, bytes, seed);
	return wait_for(&c);
}

/* --- */

TEST(a_key_has_one_shard_and_the_function_is_a_fact_of_the_format)
{
	unsigned count[LOOPS] = {0};

	for (unsigned n = 0; n < 3000; n++) {
		struct kv_key key = key_of(n);

		count[space_shard_of(&key, LOOPS)]++;
		expect_int(space_shard_of(&key, 1), 0);
	}
	for (unsigned i = 0; i < LOOPS; i++)
		expect(count[i] > 900 && count[i] < 1100);
	/* typed from the first run: a change would lose every value there is */
	expect_int(space_shard_of(&(struct kv_key){.len = 1, .byte = {'a'}}, 16), 8);
	expect_int(space_shard_of(&(struct kv_key){.len = 3, .byte = {'k', 1, 2}}, 7), 4);
}

TEST(what_one_loop_puts_every_loop_gets_and_is_answered_where_it_asked)
{
	begin(1);
	for (unsigned n = 0; n < 30; n++) {
		expect_int(call(PUT, n % LOOPS, n, 100 * n, (uint8_t)n), 0);
		for (unsigned from = 0; from < LOOPS; from++) {
			expect_int(call(GET, from, n, 0, (uint8_t)n), 0);
			expect_int(call(EXISTS, from, n, 0, 0), 0);
		}
	}
	for (unsigned n = 0; n < 30; n++) {
		expect_int(call(DELETE, (n + 1) % LOOPS, n, 0, 0), 0);
		expect_int(call(GET, n % LOOPS, n, 0, 0), -ENOENT);
		expect_int(call(EXISTS, (n + 2) % LOOPS, n, 0, 0), -ENOENT);
	}
	expect_int(call(FLUSH, 2, 0, 0, 0), 0);
	end();
}

TEST(operations_of_one_loop_on_one_key_keep_their_order)
{
	static struct call c[40];

	begin(2);
	for (unsigned n = 0; n < ARRAY_COUNT(c); n++)
		start(&c[n], PUT, 1, 5, 1000, (uint8_t)n);
	for (unsigned n = 0; n < ARRAY_COUNT(c); n++) {
		expect_int(wait_for(&c[n]), 0);
		expect(n == 0 || c[n].order > c[n - 1].order);
	}
	expect_int(call(GET, 0, 5, 0, 39), 0);
	end();
}

static void exists_at_once(struct loop_timer *t)
{
	unsigned here = 0;

	for (unsigned n = 0; n < 30; n++) {
		struct kv_key key = key_of(n);
		uint32_t bytes = 0;
		int res = space_exists_now(space, loop[1], &key, &bytes);

		if (space_shard_of(&key, LOOPS) == 1) {
			must(res == 0 && bytes == 77);
			here++;
		} else {
			must(res == -EBUSY);
		}
	}
	must(here > 0);
	flag = true;
}

TEST(what_lies_on_this_loop_is_known_at_once_and_the_rest_is_not)
{
	struct loop_timer t;

	begin(3);
	for (unsigned n = 0; n < 30; n++)
		expect_int(call(PUT, 0, n, 77, 1), 0);
	flag = false;
	loop_timer_init(&t, exists_at_once);
	loop_timer_set(loop[1], &t, sim_now_ns());
	expect(sim_run_until(flag_is_set, &flag, PATIENCE_NS));
	end();
}

TEST(a_buffer_lent_to_a_get_stays_the_callers_whatever_comes)
{
	struct store_stat stat = {0};
	struct call c;

	begin(4);
	expect_int(call(PUT, 0, 1, 5000, 9), 0);
	for (unsigned from = 0; from < LOOPS; from++) {
		start(&c, GET_LENT, from, 1, 5000, 0);
		c.seed = 9;
		expect_int(wait_for(&c), 0);
		start(&c, GET_LENT, from, 1, 100000, 0);
		expect_int(wait_for(&c), -EBUSY);      /* it has another number of blocks */
		expect_int(c.op.value_bytes, 5000);
		start(&c, GET_LENT, from, 2, 5000, 0);
		expect_int(wait_for(&c), -ENOENT);
	}
	space_stat_still(space, &stat);
	expect_int(stat.hits, LOOPS);
	expect_int(stat.misses, LOOPS);
	expect_int(stat.gets, 2 * LOOPS);              /* one that is to be asked again is none */
	end();
}

struct listing {
	struct msg msg;
	struct space_list list;
	struct kv_key key[7];
	uint32_t bytes[7];
	bool over;
};

static void listed(struct space_list *l)
{
	struct listing *x = container_of(l, struct listing, list);

	must(loop_here(loop[2]));
	x->over = true;
}

static void list_run(struct loop *here, struct msg *m)
{
	struct listing *x = container_of(m, struct listing, msg);

	space_list(space, here, &x->list);
}

TEST(a_list_over_all_shards_is_in_order_and_complete)
{
	struct listing x = {.msg = {.run = list_run}};
	unsigned next = 0;

	begin(5);
	for (unsigned n = 0; n < 100; n++)
		expect_int(call(PUT, n % LOOPS, n, n, 1), 0);
	x.list = (struct space_list){.keys = x.key, .value_bytes = x.bytes, .key_count = 7,
		.done = listed};
	for (;;) {
		unsigned skip = next > 0;

		x.over = false;
		loop_post(loop[2], &x.msg);
		expect(sim_run_until(flag_is_set, &x.over, PATIENCE_NS));
		for (unsigned i = skip; i < x.list.filled; i++) {
			struct kv_key want = key_of(next);

			expect(kv_key_equal(&x.key[i], &want));
			expect_int(x.bytes[i], next);
			next++;
		}
		if (x.list.filled < 7)
			break;
		x.list.from = x.key[6];
	}
	expect_int(next, 100);
	end();
}

struct asking { struct msg msg; struct space_stat stat; bool over; };

static void stat_came(struct space_stat *s)
{
	must(loop_here(loop[1]));
	container_of(s, struct asking, stat)->over = true;
}

static void stat_run(struct loop *here, struct msg *m)
{
	space_stat(space, here, &container_of(m, struct asking, msg)->stat);
}

TEST(statistics_are_the_sum_of_the_shards)
{
	struct asking x = {.msg = {.run = stat_run}, .stat = {.done = stat_came}};
	struct store_stat still = {0};

	begin(6);
	for (unsigned n = 0; n < 50; n++)
		expect_int(call(PUT, 0, n, 1000, 1), 0);
	kt_noise(&x.stat.stat, sizeof(x.stat.stat));
	loop_post(loop[1], &x.msg);
	expect(sim_run_until(flag_is_set, &x.over, PATIENCE_NS));
	expect_int(x.stat.stat.keys, 50);
	expect_int(x.stat.stat.puts, 50);
	expect_int(x.stat.stat.value_bytes, 50000);
	expect_int(x.stat.stat.drives, 1);
	space_stat_still(space, &still);
	expect_int(still.keys, 50);
	end();
}

TEST(a_crowd_of_operations_from_all_loops_each_ends_once_with_the_right_bytes)
{
	enum { N = 400 };
	static struct call c[N];

	for (uint64_t seed = 10; seed < 30; seed++) {
		struct prng p = prng_of(seed);
		unsigned good = 0;

		begin(seed);
		for (unsigned n = 0; n < 20; n++)
			expect_int(call(PUT, 0, n, (uint32_t)prng_below(&p, 20000), (uint8_t)n), 0);
		for (unsigned n = 0; n < N; n++) {
			unsigned key = (unsigned)prng_below(&p, 20);
			enum what what = (enum what)prng_below(&p, 4);

			start(&c[n], what, (unsigned)prng_below(&p, LOOPS), key,
			      (uint32_t)prng_below(&p, 20000), (uint8_t)key);
		}
		for (unsigned n = 0; n < N; n++) {
			int res = wait_for(&c[n]);

			expect(res == 0 || (res == -ENOENT && c[n].what != PUT));
			good += res == 0;
		}
		expect(good > N / 4);
		end();
	}
}
