/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller of disk.h must keep to, asserted alike by both loops. */
#ifndef KVOF_LOOP_DISK_CHECK_H
#define KVOF_LOOP_DISK_CHECK_H

#include "loop/disk.h"
#include "loop/iov.h"

#define DISK_IOV_MAX 1024

static inline void disk_io_check(const struct disk_info *info, const struct disk_io *io,
				 bool buffers)
{
	uint64_t mask = info->align_bytes - 1;

	must((io->offset_bytes & mask) == 0 && (io->bytes & mask) == 0 && io->bytes > 0);
	must(io->bytes <= info->bytes && io->offset_bytes <= info->bytes - io->bytes);
	if (!buffers)
		return;
	must(io->iov_count >= 1 && io->iov_count <= DISK_IOV_MAX);
	must(iov_bytes(io->iov, io->iov_count) == io->bytes);
	for (unsigned i = 0; i < io->iov_count; i++)
		must((((uintptr_t)io->iov[i].iov_base | io->iov[i].iov_len) & mask) == 0);
}

#endif
