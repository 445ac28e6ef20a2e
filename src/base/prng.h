/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded numbers for simulation, jitter and test noise (xoshiro-free: splitmix64). Not for
 * secrets. */
#ifndef KVOF_BASE_PRNG_H
#define KVOF_BASE_PRNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prng {
	uint64_t state;
};

static inline struct prng prng_of(uint64_t seed)
{
	return (struct prng){seed};
}

uint64_t prng_next(struct prng *p);
uint64_t prng_below(struct prng *p, uint64_t limit);      /* 0 .. limit-1; limit > 0 */
bool prng_chance(struct prng *p, uint32_t per_million);   /* true with that probability */
void prng_fill(struct prng *p, void *out, size_t bytes);

#endif
