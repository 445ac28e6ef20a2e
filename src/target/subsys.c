/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subsystems: names, who may connect, namespaces and their identifiers; they come and go while the
 * array serves. The first loop.
 *
 * A namespace that comes is announced when every lane knows it. One that is removed leaves its
 * subsystem's table at once and those of the lanes when they hear of it, so that no new command
 * finds it; its memory goes when the last request that names it has ended. What waits for its turn
 * or a buffer is answered 00h/0Bh now, a Store whose data still comes when it has come; a host that
 * has not moved its data after TARGET_LEAVE_NS loses its connection (lane.c).
 *
 * A namespace's UUID is that of the catalog; NGUID and EUI64 are digests of it and the nsid, the
 * serial number is one of the subsystem's uuid (without these, of that of the store): two arrays
 * never share one (Linux drops a namespace whose identifier it has already), and one array keeps
 * them over restarts.
 */
#include "target/core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"

#define BLOCK_TRANSFER_BYTES (8 * MiB)       /* MDTS where only blocks are served */

static void ns_last_step(struct loop_timer *timer);

static void digest_of(const char *what, const uint8_t uuid[16], uint32_t nsid, uint8_t out[32])
{
	struct hash_sha256 *h = hash_sha256_begin();
	le32 id = le32_of(nsid);

	hash_sha256_add(h, what, strlen(what) + 1);
	hash_sha256_add(h, uuid, 16);
	hash_sha256_add(h, &id, sizeof(id));
	hash_sha256_end(&h, out);
}

static bool uuid_given(const uint8_t uuid[16])
{
	return !bytes_all_zero(uuid, 16);
}

/* given: the namespace's own, shown as it is; else all are made from that of the store. */
static struct nv_ns_ids ids_of(const uint8_t given[16], const uint8_t store[16], uint32_t nsid,
			       uint8_t csi)
{
	const uint8_t *uuid = uuid_given(given) ? given : store;
	struct nv_ns_ids ids = {.csi = csi, .csi_given = true};
	uint8_t digest[32];

	digest_of("kvof nguid", uuid, nsid, digest);
	memcpy(ids.nguid, digest, sizeof(ids.nguid));
	digest_of("kvof eui64", uuid, nsid, digest);
	memcpy(ids.eui64, digest, sizeof(ids.eui64));
	ids.eui64[0] = (uint8_t)((ids.eui64[0] & 0xfc) | 0x02);        /* locally administered */
	if (uuid_given(given)) {
		memcpy(ids.uuid, given, sizeof(ids.uuid));
		return ids;
	}
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

static void serial_set(struct subsys *s, const uint8_t uuid[16])
{
	uint8_t digest[32];

	digest_of("kvof serial", uuid, 0, digest);
	for (unsigned i = 0; i < 10; i++)
		snprintf(s->serial + 2 * i, 3, "%02x", digest[i]);
}

/* The space, or one over the store that was given. */
static int ns_space(struct ns *ns, struct target *t, const struct target_ns_opts *opts)
{
	struct space_shard shard = {t->loop, opts->store};
	int rc = 0;

	if (opts->store != NULL) {
		rc = space_open(&shard, 1, &ns->own_space);
		if (t->lane[0].pool == NULL)
			t->lane[0].pool = store_pool_of(opts->store);
		t->lane[0].pool_bytes = store_pool_bytes(t->lane[0].pool);
	}
	ns->space = opts->store != NULL ? ns->own_space : opts->space;
	return rc;
}

/* A volume's statistics in the words of a store's. */
static void volume_stat_fill(const struct volume *v, struct store_stat *out)
{
	struct block_stat stat;

	volume_stat(v, &stat);
	*out = (struct store_stat){
		.used_bytes = stat.used_bytes, .capacity_bytes = stat.cap_bytes,
		.device_read_bytes = stat.device_read_bytes,
		.device_write_bytes = stat.device_write_bytes,
		.io_errors = stat.io_errors, .no_space = stat.no_space,
		.drives = stat.drives, .drives_failed = stat.drives_failed,
		.value_bytes_max = BLOCK_TRANSFER_BYTES,
	};
	volume_uuid(v, out->uuid);
}

static void volume_stat_told(struct loop_op *soon, int res)
{
	struct space_stat *stat = container_of((uint64_t (*)[16])(void *)soon, struct space_stat,
					       lease);

	stat->done(stat);
}

void ns_stat_ask(struct ns *ns, struct loop *here, struct space_stat *stat)
{
	struct loop_op *soon = (struct loop_op *)(void *)stat->lease;

	_Static_assert(sizeof(*soon) <= sizeof(stat->lease), "it fits what the caller lends");
	if (ns->volume == NULL) {
		space_stat(ns->space, here, stat);
		return;
	}
	volume_stat_fill(ns->volume, &stat->stat);
	*soon = (struct loop_op){.done = volume_stat_told};
	loop_soon(here, soon, 0);
}

/* What its statistics say that does not change. */
static void ns_learn(struct ns *ns)
{
	struct subsys *s = ns->subsys;

	must(ns->stat.value_bytes_max > 0);
	ns->value_bytes_max = ns->stat.value_bytes_max;
	ns->transfer_bytes_max = transfer_of(ns->stat.value_bytes_max);
	if (ns->transfer_bytes_max > atomic_load(&s->transfer_bytes_max))
		atomic_store(&s->transfer_bytes_max, ns->transfer_bytes_max);
	ns->capacity_bytes = ns->stat.capacity_bytes;
	ns->ids = ids_of(ns->given_uuid, ns->stat.uuid, ns->nsid, ns->ops->csi);
	if (s->serial[0] == '\0')
		serial_set(s, ns->stat.uuid);
}

static void ns_free(struct ns *ns)
{
	if (ns->own_space != NULL)
		space_close(&ns->own_space);
	free(ns);
}

/* Nobody knows it yet but its subsystem's table. */
static int ns_make(struct subsys *s, const struct target_ns_opts *opts, char why[256],
		   struct ns **out)
{
	unsigned lanes = s->target->lane_count;
	struct ns *ns;

	if (opts->nsid < 1 || opts->nsid > TARGET_NAMESPACES || s->ns[opts->nsid - 1] != NULL ||
	    (opts->store != NULL) + (opts->space != NULL) + (opts->volume != NULL) != 1) {
		snprintf(why, 256, "namespace %u of %.150s: number is not free or not 1 to %u",
			 opts->nsid, s->nqn, (unsigned)TARGET_NAMESPACES);
		return -EINVAL;
	}
	ns = calloc(1, sizeof(*ns) + lanes * sizeof(ns->seat[0]));
	if (ns == NULL)
		return -ENOMEM;
	*ns = (struct ns){.ops = opts->volume != NULL ? &ns_block_ops : &ns_kv_ops, .subsys = s,
		.nsid = opts->nsid, .volume = opts->volume,
		.memory = opts->memory, .evicts = opts->evicts, .durable = opts->durable,
		.nmic = s->target->multipath ? NV_NMIC_SHARED : 0};
	if (ns_space(ns, s->target, opts) != 0) {
		free(ns);
		return -ENOMEM;
	}
	memcpy(ns->given_uuid, opts->uuid, sizeof(ns->given_uuid));
	loop_timer_init(&ns->leave, ns_last_step);
	s->ns[opts->nsid - 1] = ns;
	*out = ns;
	return 0;
}

/* --- subsystems -------------------- */

static void subsys_free(struct subsys *s)
{
	must(s->refs == 0 && s->ctrl_count == 0);
	for (unsigned i = 0; i < TARGET_NAMESPACES; i++) {
		if (s->ns[i] != NULL)
			ns_free(s->ns[i]);
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
	struct subsys *s = calloc(1, sizeof(*s) + t->lane_count * sizeof(s->view[0]));

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
	if (memcmp(opts->uuid, (const uint8_t[16]){0}, sizeof(opts->uuid)) != 0)
		serial_set(s, opts->uuid);
	for (unsigned i = 0; rc == 0 && i < opts->ns_count; i++) {
		struct ns *ns;

		rc = ns_make(s, &opts->ns[i], why, &ns);
		if (rc != 0)
			break;
		if (ns->volume != NULL)
			volume_stat_fill(ns->volume, &ns->stat);
		else
			space_stat_still(ns->space, &ns->stat);
		ns_learn(ns);
		ns->announced = true;
		ns_publish(ns);
	}
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
		atomic_fetch_and(&c->edneks_off, ~(UINT64_C(1) << (nsid - 1)));
		event_come(c, EVENT_NAMESPACE);
	}
}

/* Its last request on any lane has ended. */
static void ns_last_step(struct loop_timer *timer)
{
	struct ns *ns = container_of(timer, struct ns, leave);
	struct target *t = ns->subsys->target;
	void (*left)(void *arg) = ns->left;
	void *arg = ns->left_arg;

	must(ns->removed && ns->loops_left == 0 && t->leaving > 0);
	t->leaving--;
	subsys_put(ns->subsys);
	ns_free(ns);
	left(arg);
}

void ns_all_told(struct ns *ns)
{
	struct target *t = ns->subsys->target;
	void (*done)(void *arg) = ns->added;

	if (ns->seat[0].leaving) {
		loop_timer_set(t->loop, &ns->leave, 0);        /* nobody is in between */
		return;
	}
	ns->added = NULL;
	if (!ns->announced && !ns->removed)
		ns_changed(ns->subsys, ns->nsid);
	ns->announced = true;
	if (ns->removed)
		ns_retire(ns);
	if (done != NULL)
		done(ns->added_arg);
}

static void ns_stat_came(struct space_stat *stat)
{
	struct ns *ns = container_of(stat, struct ns, asked);

	must(ns->subsys->target->telling > 0);
	ns->subsys->target->telling--;
	ns->stat = stat->stat;
	ns_learn(ns);
	ns_publish(ns);
}

int target_ns_add(struct target *t, const char *nqn, const struct target_ns_opts *opts,
		  char why[256], void (*done)(void *arg), void *arg)
{
	struct subsys *s = subsys_find(t, nqn);
	struct ns *ns;
	int rc;

	OBJ_CHECK(t, TARGET_MAGIC);
	must(!t->draining);
	if (s == NULL || s->discovery)
		return -ENOENT;
	rc = ns_make(s, opts, why, &ns);
	if (rc != 0)
		return rc;
	ns->added = done;
	ns->added_arg = arg;
	t->telling++;
	ns->asked.done = ns_stat_came;
	ns_stat_ask(ns, t->loop, &ns->asked);
	return 0;
}

int target_ns_remove(struct target *t, const char *nqn, uint32_t nsid, void (*left)(void *arg),
		     void *arg)
{
	struct subsys *s = subsys_find(t, nqn);
	struct ns *ns = s != NULL && nsid >= 1 && nsid <= TARGET_NAMESPACES ?
			s->ns[nsid - 1] : NULL;

	OBJ_CHECK(t, TARGET_MAGIC);
	must(left != NULL);
	if (ns == NULL)
		return -ENOENT;
	s->ns[nsid - 1] = NULL;
	ns->removed = true;
	s->refs++;
	t->leaving++;
	ns->left = left;
	ns->left_arg = arg;
	if (ns->announced)                             /* else when all have learnt that it came */
		ns_retire(ns);
	ns_changed(s, nsid);
	return 0;
}

/* --- statistics -------------------- */

/* What an admin command needs while namespaces are asked, one after another. On the heap: I/O
 * requests, of which there are many, don't carry it. */
struct stats_tour {
	struct space_stat asked;
	struct req *req;
	struct ns *ns;
	unsigned next;
};

/* False: all are there. */
static bool stats_more(struct stats_tour *tour)
{
	struct subsys *s = tour->req->queue->ctrl->subsys;

	while (tour->next < TARGET_NAMESPACES) {
		struct ns *ns = s->ns[tour->next++];

		if (ns == NULL || !ns->announced || ns->seat[0].leaving)
			continue;
		tour->ns = ns;
		ns->seat[0].busy++;
		ns_stat_ask(ns, s->target->loop, &tour->asked);
		return true;
	}
	return false;
}

static void stats_end(struct stats_tour *tour)
{
	tour->req->scratch = NULL;
	free(tour);
}

static void stats_came(struct space_stat *stat)
{
	struct stats_tour *tour = container_of(stat, struct stats_tour, asked);
	struct req *req = tour->req;
	struct queue *q = req->queue;

	must(req->state == REQ_STORE && req->scratch == tour);
	tour->ns->stat = stat->stat;
	ns_unbusy(&tour->ns->seat[0]);
	if (q->state == QUEUE_DEAD) {
		stats_end(tour);
		req_end(req);
	} else if (!stats_more(tour)) {
		stats_end(tour);
		req_go(req, REQ_NEW);
		req->ready(req);
	}
	queue_done(q);
}

void req_stats_take(struct req *req, void (*next)(struct req *req))
{
	struct stats_tour *tour = calloc(1, sizeof(*tour));

	must(req->queue->lane->index == 0 && req->state == REQ_NEW);
	if (tour == NULL) {
		req_fail(req, NV_INTERNAL_ERROR, NULL);
		return;
	}
	req->ready = next;
	req->scratch = tour;
	tour->req = req;
	tour->asked.done = stats_came;
	if (stats_more(tour)) {
		req_go(req, REQ_STORE);
		return;
	}
	stats_end(tour);
	next(req);
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
	struct ns *ns = nsid < 1 || nsid > TARGET_NAMESPACES ? NULL : s->ns[nsid - 1];

	return ns != NULL && ns->announced ? ns : NULL;
}

static void health_came(struct space_stat *stat);

/* Asks the next namespace, or tells the hosts that something has become worse. */
static void health_more(struct subsys *s)
{
	while (s->health_next < TARGET_NAMESPACES) {
		struct ns *ns = s->ns[s->health_next++];

		if (ns == NULL || !ns->announced || ns->seat[0].leaving)
			continue;
		s->health_ns = ns;
		ns->seat[0].busy++;
		s->health = (struct space_stat){.done = health_came};
		ns_stat_ask(ns, s->target->loop, &s->health);
		return;
	}
	s->health_asked = false;
	if (s->health_worse) {
		log_event(LOG_WARN, "subsystem_degraded", LOG_TEXT("subsystem", s->nqn),
			  LOG_TEXT("why", "a drive has failed"));
		LIST_FOR_EACH_SAFE(link, &s->ctrls)
			event_come(container_of(link, struct ctrl, link), EVENT_HEALTH);
	}
	must(s->target->asking > 0);
	s->target->asking--;
	subsys_put(s);
}

static void health_came(struct space_stat *stat)
{
	struct subsys *s = container_of(stat, struct subsys, health);
	struct ns *ns = s->health_ns;

	ns->stat = stat->stat;
	s->health_worse |= stat->stat.drives_failed > ns->drives_failed_seen;
	ns->drives_failed_seen = stat->stat.drives_failed;
	ns_unbusy(&ns->seat[0]);
	health_more(s);
}

void subsys_health_look(struct subsys *s)
{
	if (s->health_asked)
		return;
	s->health_asked = true;
	s->health_worse = false;
	s->health_next = 0;
	s->refs++;
	s->target->asking++;
	health_more(s);
}

bool subsys_asking(const struct target *t)
{
	return t->asking > 0;
}
