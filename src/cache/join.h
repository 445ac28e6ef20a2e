/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining an array: what it can store, and which domains of this model are in use there. Runs once,
 * when the array is first there. Owned by one loop.
 */
#ifndef KVOF_CACHE_JOIN_H
#define KVOF_CACHE_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/domains.h"
#include "cache/frame.h"
#include "cache/identity.h"
#include "host/host.h"

#define JOIN_ROUNDS_MAX 4

struct join {
	struct host *host;
	const struct identity *identity;
	const char *model_id;
	bool strict;
	uint64_t deadline_ns;              /* absolute */
	/* res: 0, why may hold a warning; -EINVAL strict and the domain differs; else the errno of
	 * the array's answer. Once, never inside join_start(). */
	void (*done)(struct join *j, int res);
	char why[256];
	/* its own */
	bool running, absent;
	unsigned rounds;
	struct host_op op;
	struct kvof_id id;
	struct iovec iov;
	uint8_t read[DOMAINS_BYTES_MAX + FRAME_BYTES];
	uint8_t write[DOMAINS_BYTES_MAX + FRAME_BYTES];
};

void join_start(struct join *j);

#endif
