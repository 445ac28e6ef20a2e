/* SPDX-License-Identifier: Apache-2.0 */
/* loop_opts.spin_ns: a loop that looks again for a while before it sleeps, and what wakes it. */
#include "kt.h"

#include <pthread.h>
#include <sys/resource.h>

#include "base/must.h"
#include "loop/loop.h"

/* How often the thread gave its core away by itself: it slept. */
static long sleeps(void)
{
	struct rusage u;

	must(getrusage(RUSAGE_THREAD, &u) == 0);
	return u.ru_nvcsw;
}

struct sender {
	struct msg msg;
	struct loop *to;
	bool came;
};

static void comes(struct loop *here, struct msg *m)
{
	container_of(m, struct sender, msg)->came = true;
}

static void *sends(void *arg)
{
	struct sender *s = arg;

	loop_post(s->to, &s->msg);
	return NULL;
}

static void soon(struct loop_op *op, int res)
{
}

/* One turn with work, so that the loop has something to be awake after. */
static void work(struct loop *l)
{
	struct loop_op op = {.done = soon};

	loop_soon(l, &op, 0);
	while (loop_turn(l, NS_PER_S) == 0)
		;
}

TEST(a_loop_that_polls_does_not_sleep_after_work_and_sleeps_at_last)
{
	for (unsigned kind = 0; kind < 2; kind++) {
		struct loop_opts o = {.name = "poll", .spin_ns = 3600 * NS_PER_S,
			.kind = kind == 0 ? LOOP_AUTO : LOOP_PLAIN};
		struct loop *l;
		long before;

		expect_int(loop_open(&o, &l), 0);
		work(l);
		before = sleeps();
		expect_int(loop_turn(l, 20 * NS_PER_MS), 0);
		expect_int(sleeps(), before);
		loop_close(&l);
		o.spin_ns = 1;
		expect_int(loop_open(&o, &l), 0);
		work(l);
		before = sleeps();
		expect_int(loop_turn(l, 20 * NS_PER_MS), 0);
		expect(sleeps() > before);
		loop_close(&l);
	}
}

TEST(messages_reach_a_loop_that_polls_and_one_that_went_to_sleep)
{
	for (unsigned i = 0; i < 6; i++) {
		struct loop_opts o = {.name = "poll", .spin_ns = i < 3 ? 3600 * NS_PER_S : 1};
		struct sender s = {.msg.run = comes};
		pthread_t thread;

		expect_int(loop_open(&o, &s.to), 0);
		work(s.to);
		expect_int(pthread_create(&thread, NULL, sends, &s), 0);
		while (!s.came)
			(void)loop_turn(s.to, NS_PER_S);
		expect_int(pthread_join(thread, NULL), 0);
		loop_close(&s.to);
	}
}
