/* SPDX-License-Identifier: Apache-2.0 */
/* Digests from libraries: CRC32C (ISA-L), XXH3-64 (xxHash), SHA-256 (OpenSSL). Any thread. */
#ifndef KVOF_BASE_HASH_H
#define KVOF_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* CRC32C as on the wire: start value ~0, final complement. crc32c_more continues a finished
 * value. */
uint32_t crc32c(const void *data, size_t bytes);
uint32_t crc32c_more(uint32_t crc, const void *data, size_t bytes);
uint32_t crc32c_iov(const struct iovec *iov, unsigned iov_count, size_t bytes);

uint64_t hash_xxh3(const void *data, size_t bytes);

/* XXH3-64 of a value that lies in pieces; equal to hash_xxh3() of the joined bytes. */
uint64_t hash_xxh3_iov(const struct iovec *iov, unsigned iov_count, size_t bytes);

/* SHA-256 over pieces; aborts only if the library itself is broken. */
struct hash_sha256;
struct hash_sha256 *hash_sha256_begin(void);
void hash_sha256_add(struct hash_sha256 *h, const void *data, size_t bytes);
void hash_sha256_end(struct hash_sha256 **h, uint8_t out[32]);
void hash_sha256_once(const void *data, size_t bytes, uint8_t out[32]);

/* 64-bit mix of a 16-byte key for hash tables (keyed by seed); not an identity. */
uint64_t hash_key16(const uint8_t key[16], uint64_t seed);

#endif
