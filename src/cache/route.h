/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote tier: arrays over NVMe-oF, each with its association, its joining and its speed. A
 * block lies whole on one of them (values.h). Which one depends on the arrays' names, as the
 * options give them: hosts that are to share must give the same ones, in any order.
 *
 * An array that is lost is a set of misses until it is back; the others are not disturbed. Owned by
 * one loop.
 */
#ifndef KVOF_CACHE_ROUTE_H
#define KVOF_CACHE_ROUTE_H

#include "cache/identity.h"
#include "cache/tier.h"
#include "kvof/cache.h"

#define ROUTE_BACKLOG (TIER_FLYING_MAX + 16)   /* of one array; the domain list as well */

struct route_opts {
	const struct kvof_cache_opts *cache;   /* checked; borrowed until return */
	const struct identity *identity;       /* outlives the tier */
	const struct wire_ops *wire;           /* NULL: tcp */
	const char *model_id;                  /* outlives the tier */
	uint64_t deadline_ns;                  /* to reach and join each array */
};

/**
 * route_open() - starts to connect to all arrays, and joins each when it is first there
 * @ready: once, on a later turn. res: 0, why may hold a warning; -EINVAL an array can't hold our
 *         values, or (strict) has other domains; (strict) the errno of one that is out of reach
 *
 * An array that comes later is joined then.
 * Return: 0; -EINVAL with a sentence (a target that is none, or the same twice); -ENOMEM.
 */
int route_open(struct loop *loop, const struct route_opts *opts,
	       void (*ready)(void *arg, int res, const char *why), void *arg, char why[256],
	       struct tier **out);

/* Every operation has ended or been canceled; what flies ends in here, and ready() does not come
 * any more. closed(arg) is the last call, on a later turn. */
void route_close(struct tier **t, void (*closed)(void *arg), void *arg);

/* One array, for statistics. */
struct route_array {
	const char *name;                      /* ADDR:PORT/NQN?nsid=N, as given */
	struct tier_stat stat;
};
/* Return: how many there are. */
unsigned route_arrays(const struct tier *t, struct route_array out[KVOF_TARGETS_MAX]);
/* Of all together. */
void route_stat(const struct tier *t, struct tier_stat *out);

#endif
