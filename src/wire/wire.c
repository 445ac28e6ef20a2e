/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door: looks the transport up and goes through. Invariant: a connection's calls all run on the
 * loop that has it; between wire_leave() and wire_join() none is made. The counters are of the
 * process; loops add to them without a lock.
 */
#include "wire/impl.h"

struct wire_counts wire_count;

const struct wire_counts *wire_counts(void)
{
	return &wire_count;
}

static struct wire_opts wire_opts_filled(const struct wire_opts *opts)
{
	struct wire_opts o = *opts;

	if (o.ops == NULL)
		o.ops = &wire_tcp;
	if (o.inline_bytes_max == 0)
		o.inline_bytes_max = WIRE_INLINE_BYTES;
	if (o.h2c_bytes_max == 0)
		o.h2c_bytes_max = (uint32_t)MiB;
	if (o.handshake_ns == 0)
		o.handshake_ns = WIRE_HANDSHAKE_NS;
	if (o.stall_ns == 0)
		o.stall_ns = WIRE_STALL_NS;
	if (o.depth_max == 0)
		o.depth_max = WIRE_DEPTH_MAX;
	must(o.h2c_bytes_max >= 4096 && o.h2c_bytes_max % 4 == 0);
	return o;
}

int wire_listen(struct loop *loop, const struct sock_addr *addr, const struct wire_opts *opts,
		const struct wire_ctrl_events *events, void *listener_arg,
		struct wire_listener **out)
{
	struct wire_opts o = wire_opts_filled(opts);

	loop_must_own(loop);
	must(events->accepted != NULL && events->command != NULL && events->closed != NULL);
	return o.ops->listen(loop, addr, &o, events, listener_arg, out);
}

uint16_t wire_listener_port(const struct wire_listener *l)
{
	OBJ_CHECK(l, WIRE_LISTENER_MAGIC);
	return l->ops->listener_port(l);
}

void wire_listener_close(struct wire_listener **lp)
{
	struct wire_listener *l;

	OBJ_TAKE(l, lp, WIRE_LISTENER_MAGIC);
	l->ops->listener_close(l);
}

int wire_connect(struct loop *loop, const struct sock_addr *addr, const struct wire_opts *opts,
		 const struct wire_host_events *events, void *conn_arg, struct wire_conn **out)
{
	struct wire_opts o = wire_opts_filled(opts);

	loop_must_own(loop);
	must(events->connected != NULL && events->closed != NULL);
	return o.ops->connect(loop, addr, &o, events, conn_arg, out);
}

static const struct wire_ops *ops_of(const struct wire_conn *conn)
{
	OBJ_CHECK(conn, WIRE_CONN_MAGIC);
	loop_must_own(conn->loop);
	return conn->ops;
}

int wire_depth_set(struct wire_conn *conn, uint16_t depth)
{
	must(depth >= 1);
	return ops_of(conn)->depth_set(conn, depth);
}

void wire_pull(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count, uint64_t bytes,
	       void (*done)(struct wire_cmd *cmd, int res))
{
	must(bytes <= UINT32_MAX && done != NULL);
	ops_of(cmd->conn)->pull(cmd, iov, iov_count, bytes, done);
}

void wire_push(struct wire_cmd *cmd, const struct iovec *iov, unsigned iov_count, uint64_t bytes,
	       void (*done)(struct wire_cmd *cmd, int res))
{
	must(bytes <= UINT32_MAX && done != NULL);
	ops_of(cmd->conn)->push(cmd, iov, iov_count, bytes, done);
}

void wire_respond(struct wire_cmd *cmd, const struct nv_cqe *cqe)
{
	ops_of(cmd->conn)->respond(cmd, cqe);
}

void wire_submit(struct wire_conn *conn, struct wire_req *req)
{
	must(req->done != NULL && (req->out_bytes == 0 || req->in_bytes == 0));
	ops_of(conn)->submit(conn, req);
}

void wire_inline_set(struct wire_conn *conn, uint32_t bytes)
{
	ops_of(conn)->inline_set(conn, bytes);
}

void wire_withdraw(struct wire_conn *conn, struct wire_req *req)
{
	ops_of(conn)->withdraw(conn, req);
}

bool wire_cid_free(const struct wire_conn *conn, uint16_t cid)
{
	return ops_of(conn)->cid_free(conn, cid);
}

void wire_conn_arg_set(struct wire_conn *conn, void *conn_arg)
{
	OBJ_CHECK(conn, WIRE_CONN_MAGIC);
	conn->arg = conn_arg;
}

void *wire_conn_arg(const struct wire_conn *conn)
{
	OBJ_CHECK(conn, WIRE_CONN_MAGIC);
	return conn->arg;
}

bool wire_waits_for_peer(const struct wire_conn *conn)
{
	return ops_of(conn)->waits_for_peer(conn);
}

uint64_t wire_moved_bytes(const struct wire_conn *conn)
{
	return ops_of(conn)->moved_bytes(conn);
}

bool wire_can_move(const struct wire_conn *conn)
{
	return ops_of(conn)->pause != NULL;
}

void wire_pause(struct wire_conn *conn, void (*paused)(struct wire_conn *conn, int res))
{
	must(paused != NULL && wire_can_move(conn));
	ops_of(conn)->pause(conn, paused);
}

void wire_resume(struct wire_conn *conn)
{
	ops_of(conn)->resume(conn);
}

void wire_leave(struct wire_conn *conn)
{
	ops_of(conn)->leave(conn);
	conn->loop = NULL;
}

void wire_join(struct wire_conn *conn, struct loop *loop)
{
	OBJ_CHECK(conn, WIRE_CONN_MAGIC);
	loop_must_own(loop);
	must(conn->loop == NULL);
	conn->loop = loop;
	conn->ops->join(conn, loop);
}

const char *wire_peer(const struct wire_conn *conn)
{
	return ops_of(conn)->peer(conn);
}

const char *wire_digests(const struct wire_conn *conn)
{
	return ops_of(conn)->digests(conn);
}

void wire_close(struct wire_conn **connp)
{
	struct wire_conn *conn;

	OBJ_TAKE(conn, connp, WIRE_CONN_MAGIC);
	loop_must_own(conn->loop);
	conn->ops->close(conn);
}

void wire_drop(struct wire_conn **connp)
{
	struct wire_conn *conn;

	OBJ_TAKE(conn, connp, WIRE_CONN_MAGIC);
	loop_must_own(conn->loop);
	conn->ops->drop(conn);
}
