/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A target on the simulator and a host made of raw commands: fix is the array, link one connection,
 * lk an association with an admin queue and one I/O queue, ask one command in flight.
 * Answers are status codes (SCT << 8 | SC); DW0 and the bytes that came are left in the fix.
 *
 * Built twice: with one loop, and (FIX_LOOPS) with three, where I/O queues live on other loops than
 * their controller and each loop has a shard of the keys.
 */
#ifndef KVOF_TESTS_UNIT_TARGET_FIXTURE_H
#define KVOF_TESTS_UNIT_TARGET_FIXTURE_H

#include "kt.h"

#include "base/prng.h"
#include "loop/sim.h"
#include "target/core.h"

#define SUBNQN "nqn.2026-11.io.kvof:array"
#define HOST_A "nqn.2026-11.io.kvof:host-a"
#define HOST_B "nqn.2026-11.io.kvof:host-b"
#ifndef FIX_LOOPS
#define FIX_LOOPS 1
#endif
#define FIX_POOL_BYTES (64 * MiB)
#define PATIENCE_NS (30 * NS_PER_S)

static unsigned fix_drives = 1;
static bool fix_multipath;

struct fix {
	struct loop *loop;                     /* the first one, and the hosts' */
	struct store *store;                   /* the first shard */
	struct loop *loops[FIX_LOOPS];
	struct buf_pool *pools[FIX_LOOPS];
	struct store *stores[FIX_LOOPS];
	struct space *space;
	struct target *target;
	uint16_t port;
	bool target_gone, store_gone;
	uint32_t dw0, moved;
};

struct link {
	struct wire_conn *conn;
	bool connected, closed;
	uint16_t cid, cntlid;
	bool admin;
};

struct lk {
	struct link admin, io;
};

struct ask {
	struct wire_req req;
	struct iovec iov;
	struct link *link;
	bool over;
	int res;
};

static bool flag_is_set(void *flag)
{
	return *(bool *)flag;
}

static bool never(void *arg)
{
	return false;
}

static inline void pause_ns(struct fix *f, uint64_t ns)
{
	sim_run_until(never, NULL, ns);
}

static inline void settle(struct fix *f)
{
	pause_ns(f, 50 * NS_PER_MS);
}

static inline void steps(struct fix *f, unsigned n)
{
	while (n-- > 0 && sim_step())
		;
}

static inline void fill(uint8_t *at, size_t bytes, uint64_t seed)
{
	struct prng p = prng_of(seed);

	prng_fill(&p, at, bytes);
}

/* --- the array -------------------- */

static inline void fix_shard_open(struct fix *f, const char *path, unsigned i)
{
	static const char *const further[] = {NULL, "shard1", "shard2"};
	static const char *const seconds[] = {"second", "second1", "second2"};
	struct loop_opts loop_opts = {.name = "array"};
	struct store_opts store_opts = {.drive_count = fix_drives, .evict = true,
		.drive = {{.path = i == 0 ? path : further[i], .bytes = 256 * MiB},
			{.path = seconds[i], .bytes = 256 * MiB}}};
	struct store_report report = {0};

	expect_int(loop_open(&loop_opts, &f->loops[i]), 0);
	if (i > 0)
		sim_join(f->loops[i], f->loops[0]);
	expect_int(store_pool_open(f->loops[i], FIX_POOL_BYTES, &f->pools[i]), 0);
	store_opts.pool = f->pools[i];
	if (store_open(&store_opts, f->loops[i], &f->stores[i], &report) != 0)
		fail_msg("store: %s", report.text);
}

static inline void fix_reopen_with(struct fix *f, const char *path, const char *const *hosts,
				   unsigned host_count)
{
	struct target_ns_opts ns = {.nsid = 1, .evicts = true};
	struct target_subsys_opts subsys = {.nqn = SUBNQN, .host = hosts, .host_count = host_count,
		.ns = &ns, .ns_count = 1};
	struct target_opts opts = {.subsys = &subsys, .subsys_count = 1, .loops = f->loops,
		.pools = f->pools, .loop_count = FIX_LOOPS, .multipath = fix_multipath};
	struct space_shard shard[FIX_LOOPS];
	struct sock_addr addr = {.host = "array", .port = 0};
	char why[256] = "";

	*f = (struct fix){0};
	for (unsigned i = 0; i < FIX_LOOPS; i++) {
		fix_shard_open(f, path, i);
		shard[i] = (struct space_shard){f->loops[i], f->stores[i]};
	}
	f->loop = f->loops[0];
	f->store = f->stores[0];
	expect_int(space_open(shard, FIX_LOOPS, &f->space), 0);
	ns.space = f->space;
	if (target_open(&opts, why, &f->target) != 0)
		fail_msg("target: %s", why);
	expect_int(target_listen(f->target, &addr, NULL, &f->port), 0);
}

static inline void fix_reopen(struct fix *f, const char *path)
{
	fix_reopen_with(f, path, NULL, 0);
}

static inline void fix_open(struct fix *f, const char *const *hosts, unsigned host_count)
{
	struct sim_opts sim = {.seed = 1};

	expect_int(sim_begin(&sim), 0);
	fix_reopen_with(f, "drive", hosts, host_count);
}

static void set_flag(void *flag)
{
	*(bool *)flag = true;
}

static inline void target_shut(struct fix *f)
{
	target_close(&f->target, NS_PER_S, set_flag, &f->target_gone);
	expect(sim_run_until(flag_is_set, &f->target_gone, PATIENCE_NS));
}

static inline void fix_stop(struct fix *f)
{
	if (!f->target_gone)
		target_shut(f);
	for (unsigned i = 0; i < FIX_LOOPS; i++) {
		f->store_gone = false;
		store_close(&f->stores[i], set_flag, &f->store_gone);
		expect(sim_run_until(flag_is_set, &f->store_gone, PATIENCE_NS));
	}
	space_close(&f->space);
	f->store = NULL;
	for (unsigned i = 0; i < FIX_LOOPS; i++) {
		expect(store_pool_close(&f->pools[i]));
		loop_close(&f->loops[i]);
	}
	f->loop = NULL;
}

static inline void fix_close(struct fix *f)
{
	fix_stop(f);
	sim_end();
}

/* --- a connection -------------------- */

static void on_connected(void *arg, struct wire_conn *conn)
{
	((struct link *)arg)->connected = true;
}

static void on_closed(void *arg, int why)
{
	((struct link *)arg)->closed = true;
}

static const struct wire_host_events link_events = {on_connected, on_closed};

static bool link_is_settled(void *arg)
{
	struct link *l = arg;

	return l->connected || l->closed;
}

static inline bool link_is_closed(void *arg)
{
	return ((struct link *)arg)->closed;
}

static inline void link_open(struct fix *f, struct link *l)
{
	struct sock_addr addr = {.host = "array", .port = f->port};
	struct wire_opts opts = {0};

	*l = (struct link){0};
	expect_int(wire_connect(f->loop, &addr, &opts, &link_events, l, &l->conn), 0);
	expect(sim_run_until(link_is_settled, l, PATIENCE_NS));
	expect(l->connected);
	wire_inline_set(l->conn, TARGET_INLINE_BYTES);
}

static inline void link_close(struct fix *f, struct link *l)
{
	if (l->conn != NULL)
		wire_close(&l->conn);
	settle(f);
}

static void ask_done(struct wire_req *req, int res)
{
	struct ask *a = container_of(req, struct ask, req);

	must(!a->over);
	a->over = true;
	a->res = res;
}

static inline void ask_start(struct ask *a, struct link *l, const struct nv_sqe *sqe)
{
	a->req.sqe = *sqe;
	a->req.cid = (uint16_t)(l->cid++ % 32);
	a->req.done = ask_done;
	a->link = l;
	a->over = false;
	wire_submit(l->conn, &a->req);
}

/* -1: the connection went. */
static inline uint16_t ask_wait(struct fix *f, struct ask *a)
{
	expect(sim_run_until(flag_is_set, &a->over, PATIENCE_NS));
	if (a->res != 0)
		return 0xffff;
	f->dw0 = le32_get(a->req.cqe.dw0);
	f->moved = a->req.in_bytes_got;
	return nv_status_code(nv_cqe_status(&a->req.cqe));
}

static inline uint16_t ask_raw(struct fix *f, struct link *l, const struct nv_sqe *sqe)
{
	struct ask a = {0};

	ask_start(&a, l, sqe);
	return ask_wait(f, &a);
}

static inline uint16_t ask_in(struct fix *f, struct link *l, const struct nv_sqe *sqe, void *into,
			      uint32_t bytes)
{
	struct ask a = {.iov = {into, bytes}};

	a.req.in = &a.iov;
	a.req.in_count = bytes > 0;
	a.req.in_bytes = bytes;
	ask_start(&a, l, sqe);
	return ask_wait(f, &a);
}

static inline uint16_t ask_out(struct fix *f, struct link *l, const struct nv_sqe *sqe, void *from,
			       uint32_t bytes)
{
	struct ask a = {.iov = {from, bytes}};

	a.req.out = &a.iov;
	a.req.out_count = bytes > 0;
	a.req.out_bytes = bytes;
	ask_start(&a, l, sqe);
	return ask_wait(f, &a);
}

static inline uint16_t queue_open(struct fix *f, struct link *l, const char *subnqn,
				  const char *host, uint16_t qid, uint16_t cntlid)
{
	struct nv_connect in = {
		.qid = qid, .sq_entries = 32, .cntlid = cntlid, .hostid = {1, 2, 3}};
	struct nv_connect_data data;
	struct nv_sqe sqe;
	uint16_t status;

	link_open(f, l);
	snprintf(in.subnqn, sizeof(in.subnqn), "%s", subnqn);
	snprintf(in.hostnqn, sizeof(in.hostnqn), "%s", host);
	expect_int(nv_connect_build(&in, &sqe, &data), 0);
	status = ask_out(f, l, &sqe, &data, sizeof(data));
	if (status == NV_RAW_OK)
		l->cntlid = (uint16_t)f->dw0;
	return status;
}

static inline uint16_t admin_open(struct fix *f, struct link *l, const char *subnqn,
				  const char *host)
{
	struct nv_property cc = {NV_PROP_CC, 4, NV_CC_EN | NV_CC_CSS_IOCS | NV_CC_QUEUE_SIZES};
	uint16_t status = queue_open(f, l, subnqn, host, 0, NV_CNTLID_DYNAMIC);
	struct nv_sqe sqe = nv_property_set_build(&cc);

	return status != NV_RAW_OK ? status : ask_raw(f, l, &sqe);
}

static inline void lk_open(struct fix *f, struct lk *h, const char *host)
{
	expect_int(admin_open(f, &h->admin, SUBNQN, host), NV_RAW_OK);
	expect_int(queue_open(f, &h->io, SUBNQN, host, 1, h->admin.cntlid), NV_RAW_OK);
}

static inline void lk_close(struct fix *f, struct lk *h)
{
	link_close(f, &h->io);
	link_close(f, &h->admin);
}

/* --- commands -------------------- */

static inline struct nv_sqe kv_sqe(enum nv_kv_opcode opcode, const char *key, uint32_t bytes,
				   uint8_t options)
{
	struct nv_kv_cmd cmd = {.opcode = opcode, .bytes = bytes,
		.if_present = options & NV_KV_STORE_IF_PRESENT,
		.if_absent = options & NV_KV_STORE_IF_ABSENT};

	if (opcode != NV_KV_STORE)
		cmd.if_present = cmd.if_absent = false;
	cmd.key.len = (uint8_t)strlen(key);
	memcpy(cmd.key.byte, key, cmd.key.len);
	return nv_kv_build(1, &cmd);
}

static inline uint16_t kv_put(struct fix *f, struct link *l, const char *key, const void *value,
			      uint32_t bytes, uint8_t options)
{
	struct nv_sqe sqe = kv_sqe(NV_KV_STORE, key, bytes, options);

	return ask_out(f, l, &sqe, (void *)(uintptr_t)value, bytes);
}

static inline uint16_t kv_get(struct fix *f, struct link *l, const char *key, void *into,
			      uint32_t bytes)
{
	struct nv_sqe sqe = kv_sqe(NV_KV_RETRIEVE, key, bytes, 0);

	return ask_in(f, l, &sqe, into, bytes);
}

static inline uint16_t kv_one(struct fix *f, struct link *l, enum nv_kv_opcode opcode,
			      const char *key)
{
	struct nv_sqe sqe = kv_sqe(opcode, key, 0, 0);

	return ask_raw(f, l, &sqe);
}

static inline uint16_t kv_list(struct fix *f, struct link *l, const struct kv_key *from, void *into,
			       uint32_t bytes)
{
	struct nv_kv_cmd cmd = {.opcode = NV_KV_LIST, .key = *from, .bytes = bytes};
	struct nv_sqe sqe = nv_kv_build(1, &cmd);

	return ask_in(f, l, &sqe, into, bytes);
}

static inline void ask_put(struct ask *a, struct link *l, const char *key, uint8_t *value,
			   uint32_t bytes)
{
	struct nv_sqe sqe = kv_sqe(NV_KV_STORE, key, bytes, 0);

	*a = (struct ask){.iov = {value, bytes}};
	a->req.out = &a->iov;
	a->req.out_count = 1;
	a->req.out_bytes = bytes;
	ask_start(a, l, &sqe);
}

static inline uint16_t feature_to(struct fix *f, struct link *l, uint8_t fid, uint32_t nsid,
				  uint32_t cdw11)
{
	struct nv_feature what = {.fid = fid, .nsid = nsid, .cdw11 = cdw11};
	struct nv_sqe sqe = nv_feature_set_build(&what);

	return ask_raw(f, l, &sqe);
}

static inline uint16_t feature_of(struct fix *f, struct link *l, uint8_t fid, uint32_t nsid,
				  uint8_t select)
{
	struct nv_feature what = {.fid = fid, .nsid = nsid, .select = select};
	struct nv_sqe sqe = nv_feature_get_build(&what);

	return ask_raw(f, l, &sqe);
}

static inline uint16_t abort_of(struct fix *f, struct link *l, uint16_t sqid, uint16_t cid)
{
	struct nv_sqe sqe = nv_sqe_of(NV_ADMIN_ABORT, 0);

	sqe.cdw10 = le32_of((uint32_t)cid << 16 | sqid);
	return ask_raw(f, l, &sqe);
}

/* Starts a Store of 0xee bytes and leaves after some steps of the world. */
static inline void put_and_leave(struct fix *f, struct lk *h, const char *key, uint32_t bytes,
				 unsigned after)
{
	static uint8_t value[1 << 20];
	static struct ask put;                         /* may still be at work when we return */

	expect(bytes <= sizeof(value));
	memset(value, 0xee, bytes);
	ask_put(&put, &h->io, key, value, bytes);
	steps(f, after);
	wire_close(&h->io.conn);
	expect(sim_run_until(flag_is_set, &put.over, PATIENCE_NS));
	settle(f);
}

/* All of the old value, or all 0xee. */
static inline bool all_one_of(const uint8_t *got, const uint8_t *old, size_t bytes)
{
	if (memcmp(got, old, bytes) == 0)
		return true;
	for (size_t i = 0; i < bytes; i++)
		if (got[i] != 0xee)
			return false;
	return true;
}

#endif
