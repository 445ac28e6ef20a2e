/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole connection against a peer that sends what the input says. First byte: bit 0 which end is
 * under test, bits 1 and 2 digests, bit 3 send it byte by byte. What must hold: it ends within the
 * handshake deadline or lives on; each request and command is given back once; guard bytes stay.
 */
#include "../unit/wire_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define GUARD 64u

static uint8_t memory[2 * GUARD + 16384];
static struct iovec offered = {memory + GUARD, 16384};

static void dial(void *arg)
{
	struct wf_raw *r = arg;

	wf_raw_do_dial(r);
}

static void controller_under_test(struct wf_raw *r)
{
	wf_listen();
	wf_on(wf_host.loop, dial, r);
	must(sim_run_until(wf_flag, &r->connected, NS_PER_S));
	wf_raw_flush(r);
	wf_wait_ms(100);
	wf_on(r->loop, wf_raw_do_close, r);
	wf_wait_ms(6000);
	must(wf_ctrl.closed == (wf_ctrl.accepted > 0) && wf_ctrl.conn == NULL);
}

/* The first 128 bytes answer ICReq; the rest comes when commands are in flight. */
static void host_under_test(struct wf_raw *r)
{
	uint32_t all = r->to_send;
	struct wf_req req[3] = {
		wf_req_of(0, 0, NULL, 0), wf_req_of(1, 1, &offered, 16384),
		wf_req_of(2, 2, &offered, 16384),
	};
	uint8_t before[GUARD];

	wf_on(wf_ctrl.loop, wf_raw_do_listen, r);
	wf_on(wf_host.loop, wf_do_connect, NULL);
	(void)sim_run_until(wf_flag, &r->connected, NS_PER_S);
	r->to_send = all < 128 ? all : 128;
	wf_raw_flush(r);
	for (unsigned i = 0; i < 3 && wf_host.conn != NULL; i++)
		wf_submit(&req[i]);
	if (wf_host.conn == NULL)
		for (unsigned i = 0; i < 3; i++)
			req[i].done++;
	wf_wait_ms(1);
	r->to_send = all;
	wf_raw_flush(r);
	wf_wait_ms(100);
	wf_on(r->loop, wf_raw_do_close, r);
	wf_wait_ms(6000);
	kt_noise(before, GUARD);
	must(memcmp(memory, before, GUARD) == 0);
	must(wf_host.closed == 1);
	for (unsigned i = 0; i < 3; i++)
		must(req[i].done == 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wf_raw *r;

	if (size < 1 || size > 100000)
		return 0;
	wf_begin(data[0], NULL);
	kt_noise(memory, sizeof(memory));
	wf_ctrl.opts.header_digest = wf_host.opts.header_digest = data[0] & 2;
	wf_ctrl.opts.data_digest = wf_host.opts.data_digest = data[0] & 4;
	r = wf_raw_make();
	r->chunk = data[0] & 8 ? (uint32_t)(1 + size / 200) : 0;
	wf_raw_add(r, data + 1, size - 1);
	if (data[0] & 1)
		controller_under_test(r);
	else
		host_under_test(r);
	wf_raw_free(&r);
	wf_end();
	return 0;
}
