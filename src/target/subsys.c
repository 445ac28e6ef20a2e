/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subsystems: names, who may connect, namespaces and their identifiers. Made at open, not changed
 * afterwards; the list of controllers is the only thing that moves. The target's loop.
 *
 * Identifiers of a namespace (NGUID, EUI64, UUID) and the serial number are digests of the store's
 * uuid and the nsid: two arrays never share one (Linux drops a namespace whose identifier it has
 * already), and one array keeps them over restarts.
 */
#include "target/core.h"

#include <errno.h>
#include <stdio.h>

#include "base/hash.h"
#include "base/log.h"

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

static int ns_init(struct subsys *s, const struct target_ns_opts *opts, char why[256])
{
	struct store_stat stat;
	struct ns *ns;

	if (opts->nsid < 1 || opts->nsid > TARGET_NAMESPACES || opts->store == NULL ||
	    s->ns[opts->nsid - 1].ops != NULL) {
		snprintf(why, 256, "namespace %u of %.150s: number is not free or not 1 to %u",
			 opts->nsid, s->nqn, (unsigned)TARGET_NAMESPACES);
		return -EINVAL;
	}
	store_stat(opts->store, &stat);
	must(stat.value_bytes_max > 0);
	ns = &s->ns[opts->nsid - 1];
	*ns = (struct ns){
		.ops = &ns_kv_ops,
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
	if (s->serial[0] == '\0') {
		uint8_t digest[32];

		digest_of("kvof serial", stat.uuid, 0, digest);
		for (unsigned i = 0; i < 10; i++)
			snprintf(s->serial + 2 * i, 3, "%02x", digest[i]);
	}
	return 0;
}

int subsys_init(struct subsys *s, struct target *t, const struct target_subsys_opts *opts,
		char why[256])
{
	s->target = t;
	list_init(&s->ctrls);
	s->cntlid_next = 1;
	if (!nv_nqn_check(opts->nqn) || strcmp(opts->nqn, NV_DISCOVERY_NQN) == 0) {
		snprintf(why, 256, "subsystem %.200s: not an NQN for a subsystem", opts->nqn);
		return -EINVAL;
	}
	memcpy(s->nqn, opts->nqn, sizeof(s->nqn));
	if (opts->host_count > TARGET_HOSTS) {
		snprintf(why, 256, "subsystem %.150s: %u hosts, at most %u", s->nqn,
			 opts->host_count, (unsigned)TARGET_HOSTS);
		return -EINVAL;
	}
	for (unsigned i = 0; i < opts->host_count; i++) {
		if (!nv_nqn_check(opts->host[i])) {
			snprintf(why, 256, "host %.200s: not an NQN", opts->host[i]);
			return -EINVAL;
		}
		memcpy(s->host[i], opts->host[i], strlen(opts->host[i]) + 1);
	}
	s->host_count = opts->host_count;
	for (unsigned i = 0; i < opts->ns_count; i++) {
		int rc = ns_init(s, &opts->ns[i], why);

		if (rc != 0)
			return rc;
	}
	return 0;
}

void subsys_init_discovery(struct subsys *s, struct target *t)
{
	s->target = t;
	s->discovery = true;
	list_init(&s->ctrls);
	s->cntlid_next = 1;
	memcpy(s->nqn, NV_DISCOVERY_NQN, sizeof(NV_DISCOVERY_NQN));
	memcpy(s->serial, "kvof", 5);
}

struct subsys *subsys_find(struct target *t, const char *nqn)
{
	for (unsigned i = 0; i < t->subsys_count; i++)
		if (strcmp(t->subsys[i].nqn, nqn) == 0)
			return &t->subsys[i];
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
	for (unsigned i = 0; i < t->subsys_count; i++)
		if (!subsys_allows(&t->subsys[i], hostnqn))
			return true;
	return false;
}

struct ns *subsys_ns(struct subsys *s, uint32_t nsid)
{
	if (nsid < 1 || nsid > TARGET_NAMESPACES || s->ns[nsid - 1].ops == NULL)
		return NULL;
	return &s->ns[nsid - 1];
}

void subsys_health_look(struct subsys *s)
{
	bool worse = false;

	for (unsigned i = 0; i < TARGET_NAMESPACES; i++) {
		struct ns *ns = &s->ns[i];
		struct store_stat stat;

		if (ns->ops == NULL)
			continue;
		store_stat(ns->store, &stat);
		worse |= stat.drives_failed > ns->drives_failed_seen;
		ns->drives_failed_seen = stat.drives_failed;
	}
	if (!worse)
		return;
	log_warn("subsystem %s: a drive has failed; its values are misses", s->nqn);
	LIST_FOR_EACH(link, &s->ctrls)
		ctrl_health_event(container_of(link, struct ctrl, link));
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
