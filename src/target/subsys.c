/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subsystems: names, who may connect, namespaces and their identifiers; they come and go while the
 * array serves. The target's loop.
 *
 * A namespace that is removed leaves its subsystem's table at once, so that no new command finds
 * it; its memory goes when the last request that names it has ended. What waits for its turn or a
 * buffer is answered 00h/0Bh now, a Store whose data still comes when it has come; a host that has
 * not moved its data after TARGET_LEAVE_NS loses its connection.
 *
 * Identifiers of a namespace (NGUID, EUI64, UUID) and the serial number are digests of the store's
 * uuid and the nsid: two arrays never share one (Linux drops a namespace whose identifier it has
 * already), and one array keeps them over restarts.
 */
#include "target/core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"

#define LEAVE_LOOK_NS (50 * NS_PER_MS)

static void ns_leave_timer(struct loop_timer *timer);

static void digest_of(const char *what, const uint8_t uuid[16], uint32_t nsid, uint8_t out[32])
{
	struct hash_sha256 *h = hash_sha256_begin();
	le32 id = le32_of(nsid);

	hash_sha256_add(h, what, strlen(what) + 1);
	hash_sha256_add(h, uuid, 16);
	hash_sha256_add(h, &id, sizeof(id));
	hash_sha256_end(&h, out);
}

static struct nv_ns_ids ids_of(const uint8_t uuid[16], uint32_t nsid, uint8_t csi)
{
	struct nv_ns_ids ids = {.csi = csi, .csi_given = true};
	uint8_t digest[32];

	digest_of("kvof nguid", uuid, nsid, digest);
	memcpy(ids.nguid, digest, sizeof(ids.nguid));
	digest_of("kvof eui64", uuid, nsid, digest);
	memcpy(ids.eui64, digest, sizeof(ids.eui64));
	ids.eui64[0] = (uint8_t)((ids.eui64[0] & 0xfc) | 0x02);        /* locally administered */
	digest_of("kvof uuid", uuid, nsid, digest);
	memcpy(ids.uuid, digest, sizeof(ids.uuid));
	ids.uuid[6] = (uint8_t)((ids.uuid[6] & 0x0f) | 0x80);          /* RFC 9562: version 8 */
	ids.uuid[8] = (uint8_t)((ids.uuid[8] & 0x3f) | 0x80);
	return ids;
}

/* MDTS is a power of two pages; the next one above the largest value. */
static uint64_t transfer_of(uint32_t value_bytes_max)
{
	uint64_t bytes = 4096;

	must(value_bytes_max <= STORE_VALUE_BYTES_LIMIT);
	while (bytes < value_bytes_max)
		bytes *= 2;
	return bytes;
}

static int ns_make(struct subsys *s, const struct target_ns_opts *opts, char why[256])
{
	struct store_stat stat;
	struct ns *ns;

	if (opts->nsid < 1 || opts->nsid > TARGET_NAMESPACES || opts->store == NULL ||
	    s->ns[opts->nsid - 1] != NULL) {
		snprintf(why, 256, "namespace %u of %.150s: number is not free or not 1 to %u",
			 opts->nsid, s->nqn, (unsigned)TARGET_NAMESPACES);
		return -EINVAL;
	}
	ns = calloc(1, sizeof(*ns));
	if (ns == NULL)
		return -ENOMEM;
	store_stat(opts->store, &stat);
	must(stat.value_bytes_max > 0);
	*ns = (struct ns){
		.ops = &ns_kv_ops,
		.subsys = s,
		.nsid = opts->nsid,
		.store = opts->store,
		.buffer_bytes = opts->buffer_bytes,
		.value_bytes_max = stat.value_bytes_max,
		.transfer_bytes_max = transfer_of(stat.value_bytes_max),
		.memory = opts->memory,
		.capacity_bytes = stat.capacity_bytes,
		.evicts = opts->evicts,
		.durable = opts->durable,
		.ids = ids_of(stat.uuid, opts->nsid, NV_CSI_KV),
	};
	loop_timer_init(&ns->leave, ns_leave_timer);
	s->ns[opts->nsid - 1] = ns;
	if (s->serial[0] == '\0') {
		uint8_t digest[32];

		digest_of("kvof serial", stat.uuid, 0, digest);
		for (unsigned i = 0; i < 10; i++)
			snprintf(s->serial + 2 * i, 3, "%02x", digest[i]);
	}
	return 0;
}

/* --- subsystems -------------------- */

static void subsys_free(struct subsys *s)
{
	must(s->refs == 0 && s->ctrl_count == 0);
	for (unsigned i = 0; i < TARGET_NAMESPACES; i++) {
		must(s->ns[i] == NULL || s->ns[i]->busy == 0);
		free(s->ns[i]);
	}
	free(s);
}

void subsys_put(struct subsys *s)
{
	must(s->refs > 0);
	s->refs--;
	if (s->gone && s->refs == 0)
		subsys_free(s);
}

void subsys_free_all(struct target *t)
{
	for (unsigned i = 0; i < ARRAY_COUNT(t->subsys); i++) {
		if (t->subsys[i] != NULL)
			subsys_free(t->subsys[i]);
		t->subsys[i] = NULL;
	}
}

static int subsys_check(struct target *t, const struct target_subsys_opts *opts, char why[256])
{
	if (!nv_nqn_check(opts->nqn) || strcmp(opts->nqn, NV_DISCOVERY_NQN) == 0) {
		snprintf(why, 256, "subsystem %.200s: not an NQN for a subsystem", opts->nqn);
		return -EINVAL;
	}
	if (subsys_find(t, opts->nqn) != NULL) {
		snprintf(why, 256, "subsystem %.200s: exists", opts->nqn);
		return -EINVAL;
	}
	if (opts->host_count > TARGET_HOSTS) {
		snprintf(why, 256, "subsystem %.150s: %u hosts, at most %u", opts->nqn,
			 opts->host_count, (unsigned)TARGET_HOSTS);
		return -EINVAL;
	}
	for (unsigned i = 0; i < opts->host_count; i++) {
		if (!nv_nqn_check(opts->host[i])) {
			snprintf(why, 256, "host %.200s: not an NQN", opts->host[i]);
			return -EINVAL;
		}
	}
	return 0;
}

static struct subsys *subsys_new(struct target *t)
{
	struct subsys *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	s->target = t;
	list_init(&s->ctrls);
	s->cntlid_next = 1;
	return s;
}

int subsys_make(struct target *t, const struct target_subsys_opts *opts, char why[256])
{
	unsigned at = 1;
	struct subsys *s;
	int rc = subsys_check(t, opts, why);

	if (rc != 0)
		return rc;
	while (at <= TARGET_SUBSYSTEMS && t->subsys[at] != NULL)
		at++;
	if (at > TARGET_SUBSYSTEMS) {
		snprintf(why, 256, "subsystem %.150s: there are %u already, the most", opts->nqn,
			 (unsigned)TARGET_SUBSYSTEMS);
		return -EINVAL;
	}
	s = subsys_new(t);
	if (s == NULL)
		return -ENOMEM;
	memcpy(s->nqn, opts->nqn, sizeof(s->nqn));
	for (unsigned i = 0; i < opts->host_count; i++)
		memcpy(s->host[i], opts->host[i], strlen(opts->host[i]) + 1);
	s->host_count = opts->host_count;
	for (unsigned i = 0; rc == 0 && i < opts->ns_count; i++)
		rc = ns_make(s, &opts->ns[i], why);
	if (rc != 0) {
		subsys_free(s);
		return rc;
	}
	t->subsys[at] = s;
	return 0;
}

int subsys_make_discovery(struct target *t)
{
	struct subsys *s = subsys_new(t);

	if (s == NULL)
		return -ENOMEM;
	s->discovery = true;
	memcpy(s->nqn, NV_DISCOVERY_NQN, sizeof(NV_DISCOVERY_NQN));
	memcpy(s->serial, "kvof", 5);
	must(t->subsys[0] == NULL);
	t->subsys[0] = s;
	return 0;
}

static void discovery_changed(struct target *t)
{
	t->discovery_changes++;
	LIST_FOR_EACH_SAFE(link, &t->subsys[0]->ctrls)
		event_come(container_of(link, struct ctrl, link), EVENT_DISCOVERY);
}

int target_subsys_add(struct target *t, const struct target_subsys_opts *opts, char why[256])
{
	int rc;

	OBJ_CHECK(t, TARGET_MAGIC);
	must(!t->draining);
	rc = subsys_make(t, opts, why);
	if (rc == 0)
		discovery_changed(t);
	return rc;
}

int target_subsys_remove(struct target *t, const char *nqn)
{
	struct subsys *s = subsys_find(t, nqn);

	OBJ_CHECK(t, TARGET_MAGIC);
	if (s == NULL || s->discovery)
		return -ENOENT;
	for (unsigned i = 0; i < TARGET_NAMESPACES; i++)
		if (s->ns[i] != NULL)
			return -EBUSY;
	for (unsigned i = 1; i <= TARGET_SUBSYSTEMS; i++)
		if (t->subsys[i] == s)
			t->subsys[i] = NULL;
	s->gone = true;
	s->refs++;
	while (!list_empty(&s->ctrls)) {
		struct queue *admin = container_of(s->ctrls.next, struct ctrl, link)->queue[0];

		queue_kill(admin);
		queue_done(admin);
	}
	subsys_put(s);
	discovery_changed(t);
	return 0;
}

/* --- namespaces come and go -------------------- */

static void ns_changed(struct subsys *s, uint32_t nsid)
{
	must(nsid >= 1 && nsid <= TARGET_NAMESPACES);
	LIST_FOR_EACH_SAFE(link, &s->ctrls) {
		struct ctrl *c = container_of(link, struct ctrl, link);

		c->changed |= UINT64_C(1) << (nsid - 1);
		c->edneks_off &= ~(UINT64_C(1) << (nsid - 1));
		event_come(c, EVENT_NAMESPACE);
	}
}

int target_ns_add(struct target *t, const char *nqn, const struct target_ns_opts *opts,
		  char why[256])
{
	struct subsys *s = subsys_find(t, nqn);
	int rc;

	OBJ_CHECK(t, TARGET_MAGIC);
	must(!t->draining);
	if (s == NULL || s->discovery)
		return -ENOENT;
	rc = ns_make(s, opts, why);
	if (rc == 0)
		ns_changed(s, opts->nsid);
	return rc;
}

/* Ends those requests of a queue that wait for us; `late`: true if one waits for its host. */
static bool queue_ns_leave(struct queue *q, struct ns *ns)
{
	bool waits = false;

	for (unsigned i = 0; q->req != NULL && i < q->entries; i++) {
		struct req *req = &q->req[i];

		if (req->state == REQ_FREE || req->ns != ns)
			continue;
		waits |= req->state == REQ_PULL || req->state == REQ_PUSH;
		(void)req_recall(req, NV_INVALID_NAMESPACE);
	}
	return waits;
}

/* Those that still wait for their host have had their time: their connections are closed. */
static void ns_leave_timer(struct loop_timer *timer)
{
	struct ns *ns = container_of(timer, struct ns, leave);
	struct target *t = ns->subsys->target;

	must(ns->leaving);
	if (ns->busy == 0) {
		void (*left)(void *arg) = ns->left;
		void *arg = ns->left_arg;

		must(t->leaving > 0);
		t->leaving--;
		subsys_put(ns->subsys);
		free(ns);
		left(arg);
		return;
	}
	loop_timer_set(t->loop, timer, loop_now_ns(t->loop) + LEAVE_LOOK_NS);
	LIST_FOR_EACH_SAFE(link, &t->queues) {
		struct queue *q = container_of(link, struct queue, link);

		if (q->state == QUEUE_DEAD || q->qid == 0 || !queue_ns_leave(q, ns))
			continue;
		queue_close(q);
		queue_done(q);
	}
}

void subsys_ns_unbusy(struct ns *ns)
{
	must(ns->busy > 0);
	ns->busy--;
	if (ns->leaving && ns->busy == 0)              /* on a turn of its own, nobody in between */
		loop_timer_set(ns->subsys->target->loop, &ns->leave, 0);
}

int target_ns_remove(struct target *t, const char *nqn, uint32_t nsid, void (*left)(void *arg),
		     void *arg)
{
	struct subsys *s = subsys_find(t, nqn);
	struct ns *ns = s != NULL ? subsys_ns(s, nsid) : NULL;

	OBJ_CHECK(t, TARGET_MAGIC);
	must(left != NULL);
	if (ns == NULL)
		return -ENOENT;
	s->ns[nsid - 1] = NULL;
	ns->leaving = true;
	s->refs++;
	t->leaving++;
	ns->left = left;
	ns->left_arg = arg;
	loop_timer_set(t->loop, &ns->leave,
		       ns->busy > 0 ? loop_now_ns(t->loop) + TARGET_LEAVE_NS : 0);
	LIST_FOR_EACH_SAFE(link, &t->queues) {
		struct queue *q = container_of(link, struct queue, link);

		if (q->state != QUEUE_DEAD)
			(void)queue_ns_leave(q, ns);
	}
	ns_changed(s, nsid);
	return 0;
}

/* --- looking things up -------------------- */

struct subsys *subsys_find(struct target *t, const char *nqn)
{
	for (unsigned i = 0; i < ARRAY_COUNT(t->subsys); i++)
		if (t->subsys[i] != NULL && strcmp(t->subsys[i]->nqn, nqn) == 0)
			return t->subsys[i];
	return NULL;
}

bool subsys_allows(const struct subsys *s, const char *hostnqn)
{
	if (s->host_count == 0)
		return true;
	for (unsigned i = 0; i < s->host_count; i++)
		if (strcmp(s->host[i], hostnqn) == 0)
			return true;
	return false;
}

bool subsys_hides_from(const struct target *t, const char *hostnqn)
{
	for (unsigned i = 0; i < ARRAY_COUNT(t->subsys); i++)
		if (t->subsys[i] != NULL && !subsys_allows(t->subsys[i], hostnqn))
			return true;
	return false;
}

struct ns *subsys_ns(const struct subsys *s, uint32_t nsid)
{
	return nsid < 1 || nsid > TARGET_NAMESPACES ? NULL : s->ns[nsid - 1];
}

void subsys_health_look(struct subsys *s)
{
	bool worse = false;

	for (unsigned i = 0; i < TARGET_NAMESPACES; i++) {
		struct ns *ns = s->ns[i];
		struct store_stat stat;

		if (ns == NULL)
			continue;
		store_stat(ns->store, &stat);
		worse |= stat.drives_failed > ns->drives_failed_seen;
		ns->drives_failed_seen = stat.drives_failed;
	}
	if (!worse)
		return;
	log_warn("subsystem %s: a drive has failed; its values are misses", s->nqn);
	LIST_FOR_EACH_SAFE(link, &s->ctrls)
		event_come(container_of(link, struct ctrl, link), EVENT_HEALTH);
}

/*
 * A host that asks for buffers and then moves no data ("R2T hoard"), or takes none off its
 * connection, holds its share and no more: the shares add up to less than the pool, so that one
 * that is alone leaves room for the next. One request is admitted whatever its size when the
 * controller holds nothing, so that a small share still moves the largest value.
 */
uint64_t subsys_share_bytes(const struct subsys *s, const struct ns *ns)
{
	must(s->ctrl_count > 0);
	return ns->buffer_bytes / (s->ctrl_count + 1);
}
