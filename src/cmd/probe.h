/* SPDX-License-Identifier: Apache-2.0 */
/* Whether drives answer just now. Private to cmd/. */
#ifndef KVOF_CMD_PROBE_H
#define KVOF_CMD_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#define PROBE_DRIVES_MAX 16

/**
 * probe_drives() - reads a block of each drive, all at once
 * @answers: false for those of which nothing has come after wait_ns; an error is an answer. The
 *           thread that asked such a drive stays until it does.
 *
 * Any thread; blocks up to wait_ns.
 */
void probe_drives(const char *const *path, unsigned count, uint64_t wait_ns,
		  bool answers[PROBE_DRIVES_MAX]);

#endif
