/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The discovery log: one entry for each subsystem that the host may use, at each address. A host
 * sees only what would accept it. GENCTR counts the changes since the array was started. The
 * target's loop.
 */
#include "target/core.h"

#include <stdio.h>

static void entry_write(const struct subsys *s, const struct target_port *port, uint16_t portid,
			struct nv_discovery_entry *out)
{
	struct nv_discovered e = {.trtype = NV_TRTYPE_TCP, .subtype = NV_SUBTYPE_NVM,
		.adrfam = strchr(port->addr.host, ':') != NULL ? NV_ADRFAM_IPV6 : NV_ADRFAM_IPV4,
		.portid = portid, .cntlid = NV_CNTLID_DYNAMIC};

	must(!s->discovery && port->listener != NULL && port->addr.port != 0);
	memcpy(e.subnqn, s->nqn, sizeof(e.subnqn));
	memcpy(e.traddr, port->addr.host, strlen(port->addr.host) + 1);
	snprintf(e.trsvcid, sizeof(e.trsvcid), "%u", port->addr.port);
	nv_discovery_entry_write(&e, out);
}

/* Length of the log in bytes; written to out when that is not NULL. */
uint32_t discovery_log(struct target *t, const char *hostnqn, uint8_t *out, uint32_t out_bytes)
{
	uint32_t used = sizeof(struct nv_discovery_header);
	uint64_t count = 0;

	_Static_assert(TARGET_DISCOVERY_BYTES >= 1024 * (1 + TARGET_SUBSYSTEMS * TARGET_LISTENERS),
		       "every subsystem at every listener has its entry");
	for (unsigned i = 0; i < ARRAY_COUNT(t->subsys); i++) {
		const struct subsys *s = t->subsys[i];

		if (s == NULL || s->discovery || !subsys_allows(s, hostnqn))
			continue;
		for (unsigned p = 0; p < t->port_count; p++) {
			must(used + sizeof(struct nv_discovery_entry) <= out_bytes);
			if (out != NULL)
				entry_write(s, &t->port[p], (uint16_t)(p + 1),
					    (struct nv_discovery_entry *)(out + used));
			used += sizeof(struct nv_discovery_entry);
			count++;
		}
	}
	if (out != NULL)
		*(struct nv_discovery_header *)out = (struct nv_discovery_header){
			.genctr = le64_of(1 + t->discovery_changes), .numrec = le64_of(count)};
	return used;
}
