/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory runs out at the n-th request for it, n = 1, 2, ..., while a host connects, stores,
 * retrieves and leaves: no crash, no leak, and the next host is served as if nothing had been. The
 * target and both ends of the wire are built with an allocator that can refuse; a run without a
 * refusal ends the sweep.
 */
#include "../unit/target_fixture.h"

static unsigned long fail_at, asked;                 /* 0: never */

void *fault_malloc(size_t bytes);
void *fault_calloc(size_t n, size_t bytes);
void *fault_aligned_alloc(size_t align, size_t bytes);

static bool refuse(void)
{
	return fail_at != 0 && ++asked == fail_at;
}

void *fault_malloc(size_t bytes)
{
	return refuse() ? NULL : malloc(bytes);
}

void *fault_calloc(size_t n, size_t bytes)
{
	return refuse() ? NULL : calloc(n, bytes);
}

void *fault_aligned_alloc(size_t align, size_t bytes)
{
	return refuse() ? NULL : aligned_alloc(align, bytes);
}

/* False: the step failed, cleanly; the connection, if any, is closed by the caller. */
static bool try_link(struct fix *f, struct link *l)
{
	struct sock_addr addr = {.host = "array", .port = f->port};
	struct wire_opts opts = {0};

	*l = (struct link){0};
	if (wire_connect(f->loop, &addr, &opts, &link_events, l, &l->conn) != 0)
		return false;
	expect(sim_run_until(link_is_settled, l, PATIENCE_NS));
	return l->connected && !l->closed;
}

static bool try_queue(struct fix *f, struct link *l, uint16_t qid, uint16_t cntlid)
{
	struct nv_connect in = {.qid = qid, .sq_entries = 32, .cntlid = cntlid, .hostid = {1, 2, 3},
		.subnqn = SUBNQN, .hostnqn = HOST_A};
	struct nv_connect_data data;
	struct nv_sqe sqe;
	uint16_t status;

	if (!try_link(f, l))
		return false;
	wire_inline_set(l->conn, TARGET_INLINE_BYTES);
	expect_int(nv_connect_build(&in, &sqe, &data), 0);
	status = ask_out(f, l, &sqe, &data, sizeof(data));
	expect(status == NV_RAW_OK || status == NV_RAW_INTERNAL_ERROR || status == 0xffff);
	l->cntlid = (uint16_t)f->dw0;
	return status == NV_RAW_OK;
}

/* One host's life, as far as it gets. */
static bool try_host(struct fix *f, uint8_t *value, uint8_t *got, uint32_t bytes)
{
	struct nv_property cc = {NV_PROP_CC, 4, NV_CC_EN | NV_CC_CSS_IOCS | NV_CC_QUEUE_SIZES};
	struct nv_sqe sqe = nv_property_set_build(&cc);
	struct lk h = {0};
	bool whole = try_queue(f, &h.admin, 0, NV_CNTLID_DYNAMIC) &&
		     ask_raw(f, &h.admin, &sqe) == NV_RAW_OK &&
		     try_queue(f, &h.io, 1, h.admin.cntlid) &&
		     kv_put(f, &h.io, "alloc", value, bytes, 0) == NV_RAW_OK &&
		     kv_get(f, &h.io, "alloc", got, bytes) == NV_RAW_OK;

	if (whole)
		expect_mem(got, value, bytes);
	lk_close(f, &h);
	return whole;
}

TEST(a_host_is_served_after_any_single_refusal_of_memory)
{
	static uint8_t value[50000], got[50000];
	unsigned long n = 0;
	struct fix f;

	fill(value, sizeof(value), 9);
	fix_open(&f, NULL, 0);
	for (;;) {
		bool hit;

		asked = 0;
		fail_at = ++n;
		(void)try_host(&f, value, got, sizeof(value));
		hit = asked >= fail_at;
		fail_at = 0;
		expect(try_host(&f, value, got, sizeof(value)));
		settle(&f);
		expect_int(target_counts(f.target)->conns, 0);
		expect_int(target_counts(f.target)->ctrls, 0);
		expect_int(target_counts(f.target)->busy, 0);
		if (!hit)
			break;
	}
	printf("# %lu requests for memory in the life of a host\n", n - 1);
	expect(n > 6);
	fix_close(&f);
}
