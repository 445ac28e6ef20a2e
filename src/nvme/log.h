/* SPDX-License-Identifier: Apache-2.0 */
/* Get Log Page, the pages we have, and asynchronous events. Pure; any thread. */
#ifndef KVOF_NVME_LOG_H
#define KVOF_NVME_LOG_H

#include "nvme/fabrics.h"
#include "nvme/sqe.h"

enum nv_lid {                          /* [BASE 2.0] section 5.16 */
	NV_LOG_SUPPORTED = 0x00,
	NV_LOG_ERROR = 0x01,
	NV_LOG_SMART = 0x02,
	NV_LOG_FIRMWARE = 0x03,
	NV_LOG_CHANGED_NAMESPACES = 0x04,
	NV_LOG_EFFECTS = 0x05,
	NV_LOG_ANA = 0x0c,
	NV_LOG_DISCOVERY = 0x70,
};

struct nv_log {
	uint8_t lid;
	uint8_t lsp;
	bool retain_event;             /* RAE */
	uint8_t csi;                   /* CDW14 bits 31:24 */
	uint64_t offset;               /* LPO, a multiple of 4 */
	uint64_t bytes;                /* (NUMD + 1) * 4 */
	uint32_t nsid;
};

/* NV_INVALID_FIELD: offset not a multiple of 4, offset + bytes past 64 bits, index offset asked. */
nv_status nv_log_parse(const struct nv_sqe *sqe, struct nv_log *out, struct bad *bad);
struct nv_sqe nv_log_build(const struct nv_log *what);

struct nv_log_error {                  /* [BASE 2.0] Figure 206, LID 01h */
	le64 error_count;              /* 0: entry not used */
	le16 sqid;
	le16 cid;
	le16 status;                   /* as in the CQE, phase bit included */
	le16 location;                 /* byte in bits 7:0, bit in 10:8; FFFFh: not one field */
	le64 lba;
	le32 nsid;
	uint8_t vendor;
	uint8_t trtype;
	uint8_t reserved30[2];
	le64 command_specific;
	le16 trtype_specific;
	uint8_t reserved42[22];
};
_Static_assert(sizeof(struct nv_log_error) == 64, "an error entry is 64 bytes");
_Static_assert(offsetof(struct nv_log_error, location) == 14, "location is byte 14");

struct nv_log_smart {                  /* [BASE 2.0] Figure 207, LID 02h; counters of 128 bits */
	uint8_t critical_warning;
	le16 temperature_k;
	uint8_t available_spare;
	uint8_t available_spare_threshold;
	uint8_t percentage_used;
	uint8_t reserved6[26];
	le64 data_units_read[2];       /* thousands of 512 bytes */
	le64 data_units_written[2];
	le64 host_reads[2];
	le64 host_writes[2];
	le64 controller_busy_minutes[2];
	le64 power_cycles[2];
	le64 power_on_hours[2];
	le64 unsafe_shutdowns[2];
	le64 media_errors[2];
	le64 error_log_entries[2];
	le32 warning_minutes;
	le32 critical_minutes;
	le16 sensor_k[8];
	uint8_t reserved216[296];
};
_Static_assert(sizeof(struct nv_log_smart) == 512, "the SMART log is 512 bytes");
_Static_assert(offsetof(struct nv_log_smart, data_units_read) == 32, "units read are byte 32");

struct nv_log_firmware {               /* [BASE 2.0] Figure 208, LID 03h */
	uint8_t active;                /* bits 2:0: slot in use */
	uint8_t reserved1[7];
	uint8_t revision[7][8];
	uint8_t reserved64[448];
};
_Static_assert(sizeof(struct nv_log_firmware) == 512, "the firmware log is 512 bytes");

struct nv_log_changed {                /* LID 04h: namespaces that changed; FFFFFFFFh: too many */
	le32 nsid[1024];
};
_Static_assert(sizeof(struct nv_log_changed) == 4096, "the changed namespace list is 4096 bytes");

enum nv_effect {
	NV_EFFECT_SUPPORTED = 1 << 0,
	NV_EFFECT_CONTENT = 1 << 1,    /* changes what is stored */
};
struct nv_log_effects {                /* [BASE 2.0] Figure 211, LID 05h; CSI says which I/O set */
	le32 admin[256];
	le32 io[256];
	uint8_t reserved2048[2048];
};
_Static_assert(sizeof(struct nv_log_effects) == 4096, "the effects log is 4096 bytes");

enum nv_trtype { NV_TRTYPE_RDMA = 1, NV_TRTYPE_TCP = 3, NV_TRTYPE_LOOP = 0xfe };
enum nv_adrfam { NV_ADRFAM_IPV4 = 1, NV_ADRFAM_IPV6 = 2, NV_ADRFAM_LOOP = 0xfe };
enum nv_subtype {
	NV_SUBTYPE_REFERRAL = 1,
	NV_SUBTYPE_NVM = 2,
	NV_SUBTYPE_DISCOVERY = 3,      /* this discovery subsystem itself */
};
#define NV_TREQ_NOT_REQUIRED 0x02      /* no secure channel needed */

struct nv_discovery_entry {            /* [FABRICS 1.1] section 5.1, discovery log entry */
	uint8_t trtype;
	uint8_t adrfam;
	uint8_t subtype;
	uint8_t treq;
	le16 portid;
	le16 cntlid;
	le16 asqsz;                    /* admin queue size, at least 32 */
	le16 eflags;
	uint8_t reserved12[20];
	uint8_t trsvcid[32];           /* ASCII, the rest is NUL or space */
	uint8_t reserved64[192];
	uint8_t subnqn[NV_NQN_FIELD_BYTES];
	uint8_t traddr[256];
	uint8_t tsas[256];             /* TCP: byte 0 is the secure socket type */
};
_Static_assert(sizeof(struct nv_discovery_entry) == 1024, "a discovery entry is 1024 bytes");
_Static_assert(offsetof(struct nv_discovery_entry, trsvcid) == 32, "TRSVCID is byte 32");
_Static_assert(offsetof(struct nv_discovery_entry, subnqn) == 256, "SUBNQN is byte 256");
_Static_assert(offsetof(struct nv_discovery_entry, traddr) == 512, "TRADDR is byte 512");

struct nv_discovery_header {           /* [FABRICS 1.1] section 5.1, LID 70h */
	le64 genctr;
	le64 numrec;
	le16 recfmt;
	uint8_t reserved18[1006];
};
_Static_assert(sizeof(struct nv_discovery_header) == 1024, "the discovery header is 1024 bytes");

/* One entry, read and checked: strings end, the NQN is one. */
struct nv_discovered {
	uint8_t trtype, adrfam, subtype;
	uint16_t portid, cntlid;
	char subnqn[NV_NQN_BYTES_MAX + 1];
	char traddr[257];
	char trsvcid[33];
};
/* -EPROTO and *bad for an entry that can't be used; its neighbours are still good. */
int nv_discovery_entry_check(const struct nv_discovery_entry *entry, struct nv_discovered *out,
			     struct bad *bad);
/* The target's side: from zero, strings padded with NUL. */
void nv_discovery_entry_write(const struct nv_discovered *in, struct nv_discovery_entry *out);

enum nv_event {                        /* DW0 of an Asynchronous Event Request's completion */
	NV_EVENT_NAMESPACE_CHANGED = 2 | 0x00 << 8 | NV_LOG_CHANGED_NAMESPACES << 16,
	NV_EVENT_DISCOVERY_CHANGED = 2 | 0xf0 << 8 | NV_LOG_DISCOVERY << 16,
};

#endif
