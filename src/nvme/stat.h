/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The statistics log page of a kvof array: log identifier C0h (vendor specific), for one namespace.
 * docs/formats.md, section "statistics log page". Counters only grow, from the start of the array's
 * process; gauges are the state now. All bytes are those of the devices. Pure; any thread.
 */
#ifndef KVOF_NVME_STAT_H
#define KVOF_NVME_STAT_H

#include "base/bytes.h"

#define NV_LOG_KVOF_STAT 0xc0
#define NV_KVOF_STAT_MAGIC "kvofSTAT"
#define NV_KVOF_STAT_VERSION 1

enum nv_kvof_stat_flags {
	NV_KVOF_STAT_MEMORY = 1,       /* a drive is memory: figures are not those of flash */
	NV_KVOF_STAT_EVICTS = 2,       /* cache namespace: oldest segments go when full */
};

enum {
	NV_KVOF_STAT_ROWS = 0
#define STAT(name, is_bytes, text) + 1
#include "tbl/stat.def"
};

struct nv_kvof_stat {                  /* docs/formats.md, "statistics log page" */
	uint8_t magic[8];              /* NV_KVOF_STAT_MAGIC without its end */
	le32 version;
	le32 bytes;                    /* 512; later versions may only add */
	le32 nsid;
	le32 flags;                    /* enum nv_kvof_stat_flags */
	le32 drives;
	le32 drives_failed;
	le32 value_bytes_max;
	le32 segment_bytes;
#define STAT(name, is_bytes, text) le64 name;
#include "tbl/stat.def"
	uint8_t reserved[512 - 40 - 8 * NV_KVOF_STAT_ROWS];
};
_Static_assert(sizeof(struct nv_kvof_stat) == 512, "the statistics log page is 512 bytes");
_Static_assert(offsetof(struct nv_kvof_stat, keys) == 40, "the counters start at byte 40");
_Static_assert(offsetof(struct nv_kvof_stat, no_space) == 160, "rows keep their place for ever");

#endif
