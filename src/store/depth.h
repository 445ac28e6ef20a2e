/* SPDX-License-Identifier: Apache-2.0 */
/* How many reads a drive has in flight. */
#ifndef KVOF_STORE_DEPTH_H
#define KVOF_STORE_DEPTH_H

#include "loop/disk.h"

struct store;

/* The least depth that is nearly as fast as the fastest, with room for smaller reads. Pure. */
unsigned depth_choose(const struct disk_rate *rate, unsigned count);
/* Sets the limits of each drive; once all are recovered. */
void depth_open(struct store *st);

#endif
