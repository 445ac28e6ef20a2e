/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of the wire with an allocator that refuses the n-th request, for every n: connect, one
 * value there and back, close. It works or it ends cleanly; nothing is left, nothing crashes.
 */
#include "wire_fixture.h"

static unsigned calls, fail_at;
static bool hit;

void *fault_malloc(size_t bytes);
void *fault_calloc(size_t count, size_t bytes);
void *fault_realloc(void *old, size_t bytes);

static bool refused(void)
{
	if (fail_at == 0 || ++calls != fail_at)
		return false;
	hit = true;
	return true;
}

void *fault_malloc(size_t bytes)
{
	return refused() ? NULL : malloc(bytes);
}

void *fault_calloc(size_t count, size_t bytes)
{
	return refused() ? NULL : calloc(count, bytes);
}

void *fault_realloc(void *old, size_t bytes)
{
	return refused() ? NULL : realloc(old, bytes);
}

static int listened, dialled;
static bool submitted;

static void try_listen(void *arg)
{
	struct sock_addr addr = wf_addr();

	(void)arg;
	listened = wire_listen(wf_ctrl.loop, &addr, &wf_ctrl.opts, &wf_ctrl_events, &wf_ctrl,
			       &wf_ctrl.listener);
}

static void try_connect(void *arg)
{
	struct sock_addr addr = wf_addr();

	(void)arg;
	dialled = wire_connect(wf_host.loop, &addr, &wf_host.opts, &wf_host_events, &wf_host,
			       &wf_host.conn);
}

static void try_grow(void *arg)
{
	(void)arg;
	if (wf_ctrl.conn != NULL)
		(void)wire_depth_set(wf_ctrl.conn, 40);
}

static void try_submit(void *arg)
{
	if (wf_host.conn == NULL || wf_host.connected == 0)
		return;
	submitted = true;
	wire_submit(wf_host.conn, &((struct wf_req *)arg)->req);
}

static void run(const struct wire_ops *ops, unsigned n)
{
	static uint8_t data[20000];
	struct iovec iov = {data, sizeof(data)};
	struct wf_req r = wf_req_of(1, 0, &iov, sizeof(data));

	if (ops == &wire_mem)
		wf_begin_mem(n);
	else
		wf_begin(n, NULL);
	kt_noise(data, sizeof(data));
	calls = 0;
	hit = submitted = false;
	fail_at = n;
	wf_on(wf_ctrl.loop, try_listen, NULL);
	wf_on(wf_host.loop, try_connect, NULL);
	wf_wait_ms(6000);
	wf_on(wf_ctrl.loop, try_grow, NULL);
	wf_on(wf_host.loop, try_submit, &r);
	wf_wait_ms(100);
	fail_at = 0;
	expect(listened == 0 || listened == -ENOMEM);
	expect(dialled == 0 || dialled == -ENOMEM);
	expect_int(r.done, submitted);
	if (!hit)
		expect(submitted && r.res == 0);
	if (submitted && r.res == 0)
		expect_mem(wf_ctrl.store, data, sizeof(data));
	wf_end();
}

static unsigned sweep(const struct wire_ops *ops)
{
	unsigned n = 1;

	for (run(ops, n); hit; run(ops, n))
		n++;
	return n;
}

TEST(tcp_survives_each_refused_allocation)
{
	expect(sweep(&wire_tcp) > 7);
}

TEST(mem_survives_each_refused_allocation)
{
	expect(sweep(&wire_mem) > 7);
}
