/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection of a subcommand: a host on a loop of this thread, turned until what was asked for is
 * over. The first failure is final (`once`); the line that names it comes from the host.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <kvof/error.h>

#include "base/must.h"
#include "cmd/cmd.h"

#define LINK_TURN_NS (100 * NS_PER_MS)

static void link_state(void *arg, enum host_state state, int why)
{
	struct cmd_link *link = arg;

	link->live = state == HOST_LIVE;
	link->down = state == HOST_DOWN;
	link->why = why;
}

static const struct host_events link_events = {link_state};

static void link_closed(void *arg)
{
	struct cmd_link *link = arg;

	link->closed = true;
}

void cmd_link_close(struct cmd_link *link)
{
	if (link->host != NULL) {
		host_close(&link->host, link_closed, link);
		while (!link->closed)
			loop_turn(link->loop, LINK_TURN_NS);
	}
	if (link->loop != NULL)
		loop_close(&link->loop);
}

int cmd_target_check(const char *command, const char *text)
{
	struct host_opts o = {0};
	char why[256];

	if (host_target_parse(text, &o, why) == 0)
		return 0;
	cmd_error(command, "%s", why);
	return CMD_USAGE;
}

static int link_opts(struct cmd_link *link, struct host_opts *o)
{
	const struct cmd_common *c = &link->common;
	char why[256];

	*o = (struct host_opts){
		.block = c->block,
		.any = c->any_kind,
		.queues = c->queues != 0 ? c->queues : 1,
		.depth = c->depth,
		.header_digest = c->header_digest,
		.data_digest = c->data_digest,
		.connect_ns = c->connect_ns,
		/* A pipe may keep this thread from the loop for long; the connection goes with
		 * it. */
		.keep_alive_ns = 3600 * NS_PER_S,
		.once = true,
	};
	if (host_target_parse(link->target, o, why) < 0) {
		cmd_error(link->command, "%s", why);
		return CMD_USAGE;
	}
	if (c->host_nqn == NULL)
		return 0;
	if (!nv_nqn_check(c->host_nqn)) {
		cmd_error(link->command, "--host-nqn %s: not an NQN (nqn.yyyy-mm.domain:name)",
			  c->host_nqn);
		return CMD_USAGE;
	}
	snprintf(o->hostnqn, sizeof(o->hostnqn), "%s", c->host_nqn);
	return 0;
}

int cmd_link_open(const char *command, const char *target, const struct cmd_common *common,
		  struct cmd_link *link)
{
	struct loop_opts lopts = {.name = "kvof"};
	struct host_opts o;
	char why[256];
	int rc;

	*link = (struct cmd_link){.command = command, .target = target, .common = *common};
	rc = link_opts(link, &o);
	if (rc != 0)
		return rc;
	rc = loop_open(&lopts, &link->loop);
	if (rc < 0) {
		cmd_error(command, "no event loop: %s", kvof_error_text(rc));
		return CMD_FAILED;
	}
	rc = host_open(link->loop, &o, &link_events, link, why, &link->host);
	if (rc < 0) {
		cmd_error(command, "%s: %s", target, rc == -ENOMEM ? "no memory" : why);
		cmd_link_close(link);
		return rc == -EINVAL ? CMD_USAGE : CMD_FAILED;
	}
	while (!link->live && !link->down)
		loop_turn(link->loop, LINK_TURN_NS);
	if (link->live)
		return 0;
	cmd_error(command, "%s: %s", target, host_last_error(link->host));
	cmd_link_close(link);
	return CMD_FAILED;
}

/* --- one operation -------------------- */

struct link_op {
	struct host_op op;
	bool done, released;
	int res;
};

static void link_op_done(struct host_op *op, int res)
{
	struct link_op *l = container_of(op, struct link_op, op);

	l->res = res;
	l->done = true;
	l->released = !op->busy;
}

static void link_op_released(struct host_op *op)
{
	container_of(op, struct link_op, op)->released = true;
}

uint64_t cmd_link_timeout_ns(const struct cmd_link *link)
{
	return link->common.timeout_ns != 0 ? link->common.timeout_ns : 30 * NS_PER_S;
}

int cmd_link_op(struct cmd_link *link, struct host_op *op)
{
	struct link_op l = {.op = *op};

	l.op.done = link_op_done;
	l.op.released = link_op_released;
	/* its clock may be old: output may have waited for a reader */
	loop_turn(link->loop, 0);
	l.op.deadline_ns = loop_now_ns(link->loop) + cmd_link_timeout_ns(link);
	host_submit(link->host, &l.op);
	while (!l.done || !l.released)
		loop_turn(link->loop, LINK_TURN_NS);
	op->value_bytes = l.op.value_bytes;
	op->moved_bytes = l.op.moved_bytes;
	op->status = l.op.status;
	return l.res;
}

int cmd_link_length(struct cmd_link *link, const struct kv_key *key, uint32_t *bytes)
{
	struct host_op op = {.kind = HOST_RETRIEVE, .key = *key};
	int res = cmd_link_op(link, &op);

	*bytes = op.value_bytes;
	return res;
}

struct link_admin {
	struct host_admin *admin;
	bool done;
	int res;
};
static struct link_admin link_admin_now;

static void link_admin_done(struct host_admin *admin, int res)
{
	must(link_admin_now.admin == admin);
	link_admin_now.res = res;
	link_admin_now.done = true;
}

int cmd_link_admin(struct cmd_link *link, struct host_admin *admin)
{
	link_admin_now = (struct link_admin){.admin = admin};
	admin->done = link_admin_done;
	loop_turn(link->loop, 0);
	admin->deadline_ns = loop_now_ns(link->loop) + cmd_link_timeout_ns(link);
	host_admin(link->host, admin);
	while (!link_admin_now.done)
		loop_turn(link->loop, LINK_TURN_NS);
	return link_admin_now.res;
}

int cmd_link_result(const struct cmd_link *link, const char *key, int res)
{
	const struct host_ns *ns = host_ns(link->host);
	const char *error = host_last_error(link->host);

	switch (res) {
	case 0:
		return CMD_DONE;
	case -ENOENT:
		cmd_error(link->command, "%s: no such key", key);
		return CMD_MISS;
	case -EEXIST:
		cmd_error(link->command, "%s: the key exists, its value was left as it is", key);
		return CMD_REFUSED;
	case -ENOSPC:
		cmd_error(link->command, "%s: no room in namespace %u; delete keys or add a drive",
			  key, ns->nsid);
		return CMD_FAILED;
	case -EBADMSG:
		cmd_error(link->command, "%s: the stored value is damaged; store it again", key);
		return CMD_FAILED;
	case -EINVAL:
		cmd_error(link->command, "%s: refused; keys have up to %u bytes here, values %u",
			  key, ns->key_bytes_max, ns->value_bytes_max);
		return CMD_FAILED;
	case -ETIMEDOUT:
		cmd_error(link->command, "%s: no answer from %s in time; see --timeout", key,
			  link->target);
		return CMD_FAILED;
	default:
		cmd_error(link->command, "%s: %s", key, error[0] != 0 ? error : strerror(-res));
		return CMD_FAILED;
	}
}
