/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Little-endian byte types of alignment 1, for wire and disk structs. They are read and written
 * through functions, so that no struct depends on the machine's byte order or alignment.
 */
#ifndef KVOF_BASE_BYTES_H
#define KVOF_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct { uint8_t b[2]; } le16;
typedef struct { uint8_t b[4]; } le32;
typedef struct { uint8_t b[8]; } le64;

_Static_assert(sizeof(le16) == 2 && _Alignof(le16) == 1, "le16 is two loose bytes");
_Static_assert(sizeof(le32) == 4 && _Alignof(le32) == 1, "le32 is four loose bytes");
_Static_assert(sizeof(le64) == 8 && _Alignof(le64) == 1, "le64 is eight loose bytes");

static inline uint16_t le16_get(le16 v)
{
	return (uint16_t)(v.b[0] | v.b[1] << 8);
}

static inline uint32_t le32_get(le32 v)
{
	return (uint32_t)v.b[0] | (uint32_t)v.b[1] << 8 | (uint32_t)v.b[2] << 16 |
	       (uint32_t)v.b[3] << 24;
}

static inline uint64_t le64_get(le64 v)
{
	uint64_t x = 0;

	for (int i = 7; i >= 0; i--)
		x = x << 8 | v.b[i];
	return x;
}

static inline le16 le16_of(uint16_t x)
{
	return (le16){{(uint8_t)x, (uint8_t)(x >> 8)}};
}

static inline le32 le32_of(uint32_t x)
{
	return (le32){{(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24)}};
}

static inline le64 le64_of(uint64_t x)
{
	le64 v;

	for (int i = 0; i < 8; i++)
		v.b[i] = (uint8_t)(x >> (8 * i));
	return v;
}

/* Rounds up to a power of two; the caller has made sure that x + to does not overflow. */
static inline uint64_t bytes_round_up(uint64_t x, uint64_t to)
{
	return (x + to - 1) & ~(to - 1);
}

static inline uint64_t bytes_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

bool bytes_all_zero(const void *at, size_t bytes);

/* Bytes of the UTF-8 character at `at`, of which `left`, at least 1, are there; 0: it is none. */
size_t bytes_utf8(const uint8_t *at, size_t left);

#endif
