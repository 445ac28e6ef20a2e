/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Discovery: an association with the well-known discovery subsystem, whose log names subsystems and
 * their addresses. Read in pages of three entries; when the log changed meanwhile (GENCTR), it is
 * read again, a bounded number of times. All entries are checked in nvme/log.h; those that can't be
 * used are counted, not believed.
 *
 * On the caller's loop.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/impl.h"

#define DISCOVER_PAGE_ENTRIES 3
#define DISCOVER_REREADS_MAX 8
#define DISCOVER_SERVED (-EALREADY)    /* the end of an association that has told all */

static void log_send(struct assoc *a, uint64_t offset, uint32_t bytes)
{
	struct nv_log what = {.lid = NV_LOG_DISCOVERY, .offset = offset, .bytes = bytes};
	struct nv_sqe sqe = nv_log_build(&what);

	assoc_command(a, &sqe, bytes);
}

void discover_log_head_send(struct assoc *a)
{
	log_send(a, 0, sizeof(struct nv_discovery_header));
}

void discover_log_head_got(struct assoc *a)
{
	const struct nv_discovery_header *head = (const void *)a->page;
	struct host_discover *d = a->discover;

	if (a->req.in_bytes_got < sizeof(*head)) {
		assoc_fail(a, -EPROTO, "the discovery log of %s is too short", a->opts.addr.host);
		return;
	}
	if (a->rereads > 0 && le64_get(head->genctr) == a->genctr) {
		assoc_go(a, STEP_LIVE);
		a->owner->live(a);
		return;
	}
	if (le16_get(head->recfmt) != 0 || a->rereads++ == DISCOVER_REREADS_MAX) {
		assoc_fail(a, -EPROTO, "the discovery log of %s %s", a->opts.addr.host,
			   le16_get(head->recfmt) != 0 ? "has an unknown format" :
							 "changes all the time");
		return;
	}
	a->genctr = le64_get(head->genctr);
	a->numrec = le64_get(head->numrec);
	a->record = 0;
	d->count = d->left_out = 0;
	if (a->numrec > HOST_DISCOVER_MAX) {
		d->left_out = (unsigned)bytes_min(a->numrec - HOST_DISCOVER_MAX, UINT32_MAX / 2);
		a->numrec = HOST_DISCOVER_MAX;
	}
	if (a->numrec > 0) {
		assoc_go(a, STEP_LOG);
	} else {
		assoc_go(a, STEP_LIVE);
		a->owner->live(a);
	}
}

void discover_log_send(struct assoc *a)
{
	uint64_t count = bytes_min(a->numrec - a->record, DISCOVER_PAGE_ENTRIES);

	log_send(a, sizeof(struct nv_discovery_header) +
		 a->record * sizeof(struct nv_discovery_entry),
		 (uint32_t)(count * sizeof(struct nv_discovery_entry)));
}

void discover_log_got(struct assoc *a)
{
	const struct nv_discovery_entry *entry = (const void *)a->page;
	struct host_discover *d = a->discover;
	unsigned count = a->req.in_bytes / sizeof(*entry);
	struct bad bad;

	if (a->req.in_bytes_got < a->req.in_bytes) {
		assoc_fail(a, -EPROTO, "the discovery log of %s is too short", a->opts.addr.host);
		return;
	}
	for (unsigned i = 0; i < count; i++) {
		if (nv_discovery_entry_check(&entry[i], &d->entry[d->count], &bad) == 0)
			d->count++;
		else
			d->left_out++;
	}
	a->record += count;
	must(a->record <= a->numrec && d->count <= HOST_DISCOVER_MAX);
	assoc_go(a, a->record < a->numrec ? STEP_LOG : STEP_LOG_HEAD);
}

/* The log is whole: the association has served, and its end is the answer. */
static void discover_live(struct assoc *a)
{
	assoc_fail(a, DISCOVER_SERVED, "served");
}

static void discover_dead(struct assoc *a, int why)
{
	struct host_discover *d = a->discover;

	d->assoc = NULL;
	d->res = why == DISCOVER_SERVED ? 0 : why;
	if (d->res != 0)
		memcpy(d->why, a->text, sizeof(d->why));
}

/* Only now is nothing left on the loop, which the caller may want to close. */
static void discover_gone(void *arg)
{
	struct host_discover *d = arg;

	d->done(d, d->res);
}

static const struct assoc_owner discover_owner = {discover_live, discover_dead, discover_gone};

int host_discover(struct loop *loop, const struct host_opts *opts, struct host_discover *d)
{
	struct assoc_opts aopts = {
		.addr = opts->addr,
		.ops = opts->ops,
		.subnqn = NV_DISCOVERY_NQN,
		.header_digest = opts->header_digest,
		.data_digest = opts->data_digest,
		.discovery = true,
		.connect_ns = opts->connect_ns != 0 ? opts->connect_ns : 3 * NS_PER_S,
	};
	struct assoc *a;
	int rc;

	d->count = d->left_out = 0;
	d->why[0] = 0;
	host_names_fill(opts, aopts.hostnqn, aopts.hostid);
	rc = assoc_open(loop, &aopts, &discover_owner, d, &a);
	if (rc < 0) {
		snprintf(d->why, sizeof(d->why), "%s port %u: can't connect", opts->addr.host,
			 opts->addr.port);
		return rc;
	}
	a->discover = d;
	d->assoc = a;
	return 0;
}

void discover_cancel(struct host_discover *d)
{
	assoc_fail(d->assoc, -ESHUTDOWN, "closed");
}
