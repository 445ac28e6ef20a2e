/* SPDX-License-Identifier: Apache-2.0 */
/* splitmix64 [SPLITMIX]: one multiply-xor chain a number, any seed is a good seed. */
#include "base/prng.h"

#include <string.h>

#include "base/must.h"

uint64_t prng_next(struct prng *p)
{
	uint64_t z = p->state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

uint64_t prng_below(struct prng *p, uint64_t limit)
{
	must(limit > 0);
	return (uint64_t)(((unsigned __int128)prng_next(p) * limit) >> 64);
}

bool prng_chance(struct prng *p, uint32_t per_million)
{
	must(per_million <= 1000000);
	return prng_below(p, 1000000) < per_million;
}

void prng_fill(struct prng *p, void *out, size_t bytes)
{
	uint8_t *at = out;

	while (bytes > 0) {
		uint64_t x = prng_next(p);
		size_t step = bytes < 8 ? bytes : 8;

		memcpy(at, &x, step);
		at += step;
		bytes -= step;
	}
}
