/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Was this block touched before? A sketch in fixed memory that forgets: it remembers at least the
 * last `touches` touches and at most twice as many. It may take a block for one it has seen (about
 * one in a hundred when full), never the other way. Arithmetic only. Owned by one loop.
 */
#ifndef KVOF_CACHE_ADMIT_H
#define KVOF_CACHE_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "kvof/cache.h"

#define ADMIT_TOUCHES_MIN 1024
#define ADMIT_TOUCHES_MAX (UINT32_C(1) << 24)

struct admit;

/* Takes 8 bytes a touch, rounded up to a power of two. Return: 0; -EINVAL; -ENOMEM. */
int admit_open(uint32_t touches, struct admit **out);
void admit_close(struct admit **a);
/* Counts a touch. Return: it was remembered. */
bool admit_touch(struct admit *a, const struct kvof_id *id);

#endif
